#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# guest.sh - the first process of the machine that nfs.sh boots: makes a server of NFS and two clients of it, runs the cases, and ends the
# machine, whatever comes of them. NFS_OUT, NFS_KIT and NFS_CASES come from the kernel's command line.
# Client a is the machine itself, beside the server; client b has a network, a host name and mounts of its own, so it is another host to the
# server, with its own caches and leases. Both have the store at /mnt/store; the server has it at /srv/store.
here=$(cd "$(dirname "$0")" && pwd)
kit=$NFS_KIT/root
guest=$NFS_KIT/guest
export PATH=/usr/sbin:/usr/bin:/sbin:/bin:$kit/usr/sbin:$kit/sbin HOME=/ TMPDIR=/tmp
export LD_LIBRARY_PATH=$kit/usr/lib/x86_64-linux-gnu:$kit/lib/x86_64-linux-gnu
trap '"$guest" off' EXIT
set -eu
mount -t proc proc /proc
mount -t sysfs sys /sys
for dir in /run /mnt /var/lib /srv /tmp; do
	# The repository may lie below /tmp, and so may what nfs.sh made: they stay where they are.
	case "$here/ $NFS_OUT/ $NFS_KIT/" in
	*"$dir/"*) [ "$dir" = /tmp ] || mount -t tmpfs tmpfs "$dir" ;;
	*) mount -t tmpfs tmpfs "$dir" ;;
	esac
done
mkdir -p /run/tmp /run/out /run/lock /srv/store /mnt/store /var/lib/nfs/v4recovery
export TMPDIR=/run/tmp
mount -t hostfs none /run/out -o "$NFS_OUT"
exec 2>/run/out/log
set -x
modules=$(echo "$kit"/usr/lib/uml/modules/*)/kernel
for m in net/sunrpc/sunrpc fs/nfs_common/grace fs/lockd/lockd fs/nfs_common/nfs_acl lib/oid_registry net/sunrpc/auth_gss/auth_rpcgss \
	fs/nfsd/nfsd fs/netfs/netfs fs/fscache/fscache drivers/net/veth fs/nfs/nfs fs/nfs/nfsv3 net/dns_resolver/dns_resolver fs/nfs/nfsv4; do
	"$guest" load "$modules/$m.ko"
done
touch /var/lib/nfs/etab /var/lib/nfs/rmtab /var/lib/nfs/state
mount -t ext4 /dev/ubda /srv/store
mount -t nfsd nfsd /proc/fs/nfsd

ip link set lo up
ip link add va type veth peer name vb
unshare -n -u -m sh -c 'hostname host-b; echo $$ >/run/b; exec sleep 1000000' &
until [ -s /run/b ]; do sleep .02; done
b=$(cat /run/b)
b() { nsenter -t "$b" -n -u -m -- "$@"; }
hostname host-a
ip link set vb netns "$b"
ip addr add 10.9.0.1/24 dev va
ip link set va up
b ip link set lo up
b ip addr add 10.9.0.2/24 dev vb
b ip link set vb up

exportfs -i -o rw,no_root_squash,fsid=0,insecure,no_subtree_check,sync '*:/srv/store'
rpc.mountd -N 2 -N 3
echo "-2 -3 +4 +4.1 +4.2" >/proc/fs/nfsd/versions
echo 15 >/proc/fs/nfsd/nfsv4leasetime # the shortest
rpc.nfsd -N 3 4
echo Y >/proc/fs/nfsd/v4_end_grace
mount.nfs 10.9.0.1:/ /mnt/store -o vers=4.2
b mount.nfs 10.9.0.1:/ /mnt/store -o vers=4.2
export b guest
set +x
# shellcheck disable=SC2086 # words
bash "$here/cases.sh" ${NFS_CASES//,/ } >/run/out/tap || true
