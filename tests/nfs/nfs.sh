#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# nfs.sh [CASE...] - a store on NFS that two hosts use: boots a kernel as a process (User-mode Linux), with a server of NFS 4.2 and two
# clients of it in network namespaces of their own, and runs tests/nfs/cases.sh there, with the programs of build/. Called by `make nfs`.
# Prints TAP. Without the kernel or what it needs, it skips and says why.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd)
kit=$root/build/nfs
limit_s=${NFS_SECONDS:-900}
skip() {
	echo "ok 1 - a store on NFS that two hosts use # SKIP $1"
	echo "1..1"
	exit 0
}
why=$("$root/tests/nfs/kit.sh" "$kit") || skip "$why"
for program in mkfs.ext4 ip unshare nsenter; do
	PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null || skip "there is no $program"
done
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-nfs.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
truncate -s 1G "$tmp/disk"
PATH=$PATH:/usr/sbin:/sbin mkfs.ext4 -q -F "$tmp/disk"
mkdir "$tmp/out"
status=0
# The guest's root is ours, read-only; what it writes to keep goes to $tmp/out.
HOME=$tmp timeout -k 5 "$limit_s" "$kit/root/usr/bin/linux.uml" mem=768M ubd0="$tmp/disk" root=/dev/root rootfstype=hostfs rootflags=/ ro \
	init="$root/tests/nfs/guest.sh" con=null con0=null,fd:1 \
	NFS_OUT="$tmp/out" NFS_KIT="$kit" NFS_CASES="$(IFS=, && echo "$*")" </dev/null >"$tmp/console" 2>&1 || status=$?
if ! grep -q '^1\.\.' "$tmp/out/tap" 2>/dev/null; then
	cat "$tmp/out/tap" 2>/dev/null || true
	tail -n 40 "$tmp/out/log" "$tmp/console" 2>/dev/null | sed 's/^/# /'
	echo "not ok 999 - the machine reached the end of its cases (it ended with $status; 124: after $limit_s s)"
	exit 1
fi
cat "$tmp/out/tap"
! grep -q '^not ok' "$tmp/out/tap"
