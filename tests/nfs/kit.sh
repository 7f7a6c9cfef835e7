#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# kit.sh DIR - a kernel that runs as a process, and NFS for it, unpacked below DIR; nothing is installed. Called by `make nfs`.
# Ends with 1 and says why if they cannot be had. The packages are Debian's, 42 MB; an installed linux.uml is not asked for, because the
# modules must be its own.
set -eu
dir=$1
packages="user-mode-linux nfs-kernel-server nfs-common libwrap0"
[ -e "$dir/complete" ] && exit 0
if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
	echo "there is no apt-get to get $packages with"
	exit 1
fi
mkdir -p "$dir/deb" "$dir/root"
cd "$dir/deb"
for package in $packages; do
	set -- "$package"_*.deb
	if [ ! -e "$1" ]; then
		apt-get download -q "$package" >log 2>&1 || {
			echo "the package $package is not to be had: $(grep -m1 '^E:' log || tail -n 1 log)"
			exit 1
		}
		set -- "$package"_*.deb
	fi
	dpkg-deb -x "$1" ../root
done
cd ..
if [ ! -x root/usr/bin/linux.uml ] || ! ls root/usr/lib/uml/modules/*/kernel/fs/nfsd/nfsd.ko >/dev/null 2>&1; then
	echo "the package user-mode-linux has no kernel with the modules of NFS"
	exit 1
fi
rm -rf deb
: >complete
