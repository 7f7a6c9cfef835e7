#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A byte of the device rots below the file that the steps of a job share, under a mounted ext4 whose page cache still has the
# right one: the job's next commits find it, name it and write the part anew; the newest steps load, and so do those that
# have the rotten file. As root, with loop devices. ALL=1: at the 140th of 900 committed steps; else sooner, of fewer.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

steps=70 rots=14
[ -z "${ALL:-}" ] || { steps=900 rots=140; }
image=$tmp/image disk=$tmp/disk
why=
[ "$(id -u)" -eq 0 ] || why="not root"
command -v mkfs.ext4 >/dev/null && command -v filefrag >/dev/null || why=${why:-"no mkfs.ext4 or filefrag"}
mkdir "$disk"
if [ -z "$why" ]; then
	truncate -s 1500M "$image"
	mkfs.ext4 -qF "$image" && mount -o loop "$image" "$disk" 2>"$tmp/mount.err" || why="no loop device: $(cat "$tmp/mount.err")"
fi
if [ -n "$why" ]; then
	skip "$why" "a byte of the device that rots is found"
	tap_end
	exit
fi
trap 'umount -l "$disk" 2>/dev/null || true; tidy_up' EXIT
store=$disk/store

# The byte of the image that is this byte of the file.
byte_of() { # FILE OFFSET
	filefrag -b4096 -v "$1" | awk -v at="$2" '
		/^ *[0-9]+:/ { gsub(/[.:]+/, " "); block = int(at / 4096)
			if (block >= $2 && block <= $3) { print ($4 + block - $2) * 4096 + at % 4096; exit } }'
}
base_of() { # STEP
	find "$(step_dir "$1")" -name 'w0000-*.part' -size +4M
}
rot() { # STEP OFFSET
	local at old
	at=$(byte_of "$(base_of "$1")" "$2")
	[ -n "$at" ] || return 1
	old=$(od -An -tu1 -j "$at" -N1 "$image")
	# shellcheck disable=SC2059 # the byte
	printf "\\x$(printf %02x $((old ^ 16)))" | dd of="$image" bs=1 seek="$at" conv=notrunc status=none
	sync "$image"
}

check "a daemon listens" daemon_start --verbose
job_start --frozen 95 --guard finish --wait-ready --mesh fsdp=1 --snapshot-every 1 --steps 1000000 --step-ms 2
commits() { # [FROM TO]: how many steps were committed, of these
	sed -n 's/.*snap: job a step \([0-9]*\) committed (.*/\1/p' "$tmp/daemon.log" |
		awk -v from="${1:-0}" -v to="${2:-999999999}" '$1 > from && $1 <= to { n++ } END { print n + 0 }'
}
committed() { # N
	[ "$(commits)" -ge "$1" ]
}
# shellcheck disable=SC2034 # of within
limit_s=300
check "a job with a frozen base saves steps" within committed "$rots"
step=$(newest)
check "a byte of the device below its file rots" rot "$step" $((7 * 1048576 + 4321))
rotten=$(newest) # by now; steps are committed while the byte is written
cached() { # the file system still gives the right one to who asks its cache
	"$ckptctl" show "$(step_dir "$step")" >/dev/null
}
check "its MANIFEST is as it was" cached
found() {
	sed -n 's/.*persist: job a step \([0-9]*\): damaged file.*/\1/p' "$tmp/daemon.log"
}
is_found() {
	[ -n "$(found)" ]
}
check "a commit finds it" within is_found
check "the job trains on" within committed "$steps"
job_kill
check "the log names the byte, the file and the tensor" \
	grep -qE "damaged file of frozen weights: byte $((7 * 1048576 + 4321)) of step-[0-9]+/w0000-[^ ]+ \(base/base\.weight, rank 0\) is not what was" \
	"$tmp/daemon.log"
check "once" [ "$(grep -c 'damaged file of frozen weights' "$tmp/daemon.log")" -eq 1 ]
n=$(commits "$step" "$(found)")
echo "# rotted after step $step, found by the commit of step $(found), the $n. after it"
within_rotation() { # the base has some 16 MiB
	[ "$n" -ge 1 ] && [ "$(commits "$rotten" "$(found)")" -le 20 ]
}
check "within one rotation" within_rotation
damaged=$("$ckptctl" ls --json --all "$store" | grep -c '"state":"quarantined"' || true)
check "at most 64 steps have it, and are quarantined" [ "$damaged" -ge 1 -a "$damaged" -le 64 ]
check "the newest step is right" exits 0 "$ckptctl" verify --data "$(step_dir "$(newest)")"
check "the job goes on from it" "$trainer" --params "$params" --root "$store" --job a --socket "$socket" --frozen 95 \
	--guard finish --wait-ready --mesh fsdp=1 --snapshot-every 1 --steps "$(($(newest) + 5))" --step-ms 15 --resume disk
kill -TERM "$daemon"
wait "$daemon"
tap_end
