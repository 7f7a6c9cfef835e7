#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A full disk, or a quota that is used up, costs the steps that did not fit, and is said; training goes on, and when
# there is room, so do commits. The command leaves nothing half-made. On a small tmpfs, ext4 and btrfs, as they can be had.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# A mount namespace of our own: the file systems go with the test, however it ends.
if [ -z "${DISK_FULL_INSIDE:-}" ]; then
	for how in "unshare -m" "unshare -rm"; do
		# shellcheck disable=SC2086 # words
		if $how true 2>/dev/null; then
			DISK_FULL_INSIDE=1 exec $how "$0"
		fi
	done
	echo "ok 1 - a full disk # SKIP needs a mount namespace (root, or user namespaces)"
	echo "1..1"
	exit 0
fi
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
disk=$tmp/disk
mkdir "$disk"
trap 'umount -l "$disk" 2>/dev/null || true; tidy_up' EXIT # a daemon still has it open

# ---- disks with room for about ten steps of 60K parameters, 1 MiB each: store, and how there is room again ----

tmpfs_make() { # a user namespace may not remount it with another size: a ballast takes the room
	mount -t tmpfs -o size=64m none "$disk" && head -c 52M /dev/zero >"$disk/ballast" && mkdir "$disk/v"
}
tmpfs_room() { rm "$disk/ballast"; }
ext4_make() {
	command -v mkfs.ext4 >/dev/null || { echo "there is no mkfs.ext4"; return 1; }
	truncate -s 64M "$tmp/image" && mkfs.ext4 -q -m 0 "$tmp/image" && mount -o loop "$tmp/image" "$disk" || return 1
	local free
	free=$(df --output=avail -B1 "$disk" | tail -1)
	fallocate -l $((free - 12000000)) "$disk/ballast" && mkdir "$disk/v"
}
ext4_room() { rm "$disk/ballast"; }
btrfs_make() { # a quota, of which root is not free
	command -v mkfs.btrfs >/dev/null || { echo "there is no mkfs.btrfs"; return 1; }
	truncate -s 200M "$tmp/image" && mkfs.btrfs -q "$tmp/image" && mount -o loop "$tmp/image" "$disk" && btrfs quota enable "$disk" &&
		btrfs subvolume create "$disk/v" && btrfs qgroup limit 12M "$disk/v"
}
btrfs_room() { btrfs qgroup limit none "$disk/v"; }

said_full() { # FILE
	grep -qE "No space left|Disk quota exceeded|are free there" "$1" || { cat "$1"; return 1; }
}
steps_listed() { "$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | sort; }
half_written() { find "$store/a" -maxdepth 1 -name '.tmp-*' -o -maxdepth 1 -name '.trash*'; }
is_told() { # COMMAND...: ends with 13 and says why
	local status=0
	"$@" >"$tmp/said" 2>&1 || status=$?
	cat "$tmp/said"
	[ "$status" -eq 13 ] && said_full "$tmp/said"
}
works() { "$@" >"$tmp/said" 2>&1 || { cat "$tmp/said"; return 1; }; }
used() { du -s --apparent-size "$disk/v" | cut -f1; }
all_kept() { # FILE: every step in it is listed
	[ -z "$(comm -23 "$1" <(steps_listed))" ]
}

scenario() { # FILESYSTEM [OPTION OF THE TRAINER...]
	local fs=$1 fitted=0 why on=("${@:2}") name=$1${2:+, $*}
	if ! "${fs}_make" >"$tmp/made" 2>&1; then
		skip "$(tail -1 "$tmp/made")" "$name: a full disk"
		rm -f "$tmp/image"
		return
	fi
	store=$disk/v/store
	rm -f "$tmp/losses" "$socket"
	check "$name: a daemon listens" daemon_start
	job_start "${on[@]}" --mesh fsdp=2 --steps 20 --snapshot-every 5
	check "$name: a job whose steps fit ends well" job_ends 0
	check "$name: then there is no room for another one" nearly_full "$disk/v"
	job_start "${on[@]}" --mesh fsdp=2 --steps 200 --snapshot-every 5 --step-ms 4 --resume latest
	check "$name: a job whose last step does not fit ends with 13" job_ends 13
	check "$name: it has trained to the end" [ "$(lines "$tmp/losses")" -eq 200 ]
	check "$name: it has said that a step could not be written" says "could not be written" "$tmp/job.err"
	check "$name: by what ckpt_snapshot returned, once" [ "$(grep -c "a snapshot could not be written" "$tmp/job.err")" -eq 1 ]
	check "$name: and why" said_full "$tmp/job.err"
	fitted=$(newest)
	check "$name: the steps that fitted are there" [ "$fitted" -eq 20 ]
	check "$name: and whole" exits 0 "$ckptctl" verify --data --all "$store"
	check "$name: nothing half-written is left" [ -z "$(half_written)" ]
	steps_listed >"$tmp/before"

	# The command, on what little is left: nothing of 8 MiB fits.
	head -c 16M /dev/zero >"$disk/v/rest" 2>/dev/null || true
	why=$(used)
	check "$name: convert is told" is_told "$ckptctl" -C "$store" convert latest "$disk/v/converted" --mesh fsdp=1
	check "$name: and leaves no checkpoint" [ ! -e "$disk/v/converted" ]
	check "$name: restore is told" is_told "$ckptctl" -C "$store" restore latest "$disk/v/restored" --mesh fsdp=1
	check "$name: and leaves no file" [ -z "$(ls -A "$disk/v/restored" 2>/dev/null)" ]
	check "$name: the space has come back" [ "$(used)" -le $((why + 64)) ]
	if "$ckptctl" hold -h >/dev/null 2>&1; then # a mark is a few bytes: it is there, or it is told that it is not
		held() { works "$ckptctl" -C "$store" hold latest --by=full || is_told "$ckptctl" -C "$store" hold latest --by=full; }
		check "$name: hold holds, or is told" held
	fi
	check "$name: every step is whole" exits 0 "$ckptctl" verify --data --all "$store"
	check "$name: all are there" all_kept "$tmp/before"
	rm "$disk/v/rest" "$disk/v"/fill.*

	"${fs}_room"
	job_start "${on[@]}" --mesh fsdp=3 --steps 220 --snapshot-every 5 --step-ms 4 --resume latest
	check "$name: with room again the job goes on to its end" job_ends 0
	check "$name: from memory, where its last step still was" says "resumed from memory, step 200" "$tmp/job.out"
	check "$name: and commits" [ "$(newest)" -eq 220 ]
	check "$name: no older step was given up for it" all_kept "$tmp/before"
	check "$name: convert works" works "$ckptctl" -C "$store" convert latest "$disk/v/converted" --mesh fsdp=1
	check "$name: restore works" works "$ckptctl" -C "$store" restore latest "$disk/v/restored" --mesh fsdp=1
	check "$name: every step is whole" exits 0 "$ckptctl" verify --data --all "$store"
	check "$name: so is the converted one" exits 0 "$ckptctl" verify --data "$disk/v/converted"
	check "$name: all losses are those of an undisturbed run" losses_undisturbed 220
	kill -KILL "$daemon"
	wait "$daemon" 2>/dev/null || true
	umount -l "$disk"
	rm -f "$tmp/image"
}

for fs in tmpfs ext4 btrfs; do
	scenario "$fs"
done
scenario tmpfs --device fake # the state of a trainer on a GPU
tap_end
