#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# power.sh SEED CYCLES FILESYSTEM... - a daemon and a trainer save on a real ext4 or xfs in a loop file; at
# a random instant its power is cut (FS_IOC_SHUTDOWN, the log is lost), both are killed, and the file system
# is mounted again, which replays its log. CYCLES times for each file system, with both engines in turn;
# every third time the cut comes at once after the job has ended with its last step committed. After each:
#
#   every step that a daemon called committed, or that was ever listed, is listed;
#   every step that is listed verifies, to the last byte;
#   the next job goes on from the newest of them.
#
# At the end every line of losses is, bit for bit, that of a run that nobody disturbed. And last the rig is
# held against daemons that lie: one that syncs nothing, one that syncs no directory, one that syncs no file.
#
# Needs root, loop devices, mkfs.FILESYSTEM; prints TAP, and skips with the reason where they are missing.
# The file systems are mounted in a mount namespace of this script's own.
set -u
[ $# -ge 3 ] || { echo "usage: power.sh SEED CYCLES FILESYSTEM..." >&2; exit 2; }
if [ -z "${POWER_INSIDE:-}" ]; then
	if [ "$(id -u)" -eq 0 ] && unshare -m true 2>/dev/null; then
		POWER_INSIDE=1 exec unshare -m "$0" "$@"
	fi
	echo "ok 1 - power cuts # SKIP needs root and a mount namespace"
	echo "1..1"
	exit 0
fi
# shellcheck source=tests/e2e/ckptd_tap.sh
# shellcheck disable=SC2154,SC2317 # what that sets; functions that are called through check
. "$(dirname "$0")/../e2e/ckptd_tap.sh"
seed=$1 cycles=$2
shift 2
RANDOM=$seed
rig=$root/build/rig
memory=$tmp # where the disks are: their bytes need not outlive us
[ ! -w /dev/shm ] || memory=$(mktemp -d /dev/shm/ckpt-power.XXXXXX)
at=$tmp/at log=$tmp/daemon.log losses=$tmp/losses
mkdir "$at"
exec 2>"$tmp/shell.err" # where the shell tells whom we killed
params=60K
disk_mib=320 # the least that mkfs.xfs makes
steps_max=60 # listed; then the next job begins on an empty disk
disk='' engine='' preload='' lie='' daemon='' why='' n=0
declare -A said=() # step -> 1, that a daemon called committed or that was listed
trap 'exec 2>/dev/null; die; umount -l "$at"; rm -rf "$memory"; tidy_up' EXIT

# Both processes, and their ends awaited: what they had open is closed, but for writes that the kernel still holds.
die() {
	[ -z "$job" ] || kill -KILL -- "-$job"
	[ -z "$daemon" ] || kill -KILL "$daemon"
	wait
	job='' daemon=''
} 2>/dev/null

disk_on() { mount -o loop "$disk" "$at"; }
mounted() { grep -qF " $at " /proc/self/mounts; } # a disk without power answers no stat(2)
disk_off() { ! mounted || within umount "$at" 2>/dev/null; }

disk_new() { # FILESYSTEM
	disk=$memory/disk.$1
	rm -f "$disk"
	truncate -s "${disk_mib}M" "$disk" && "mkfs.$1" -q "$disk" && disk_on && touch "$at/this-disk-may-lose-its-power" &&
		mkdir "$at/store" && disk_off && disk_on
} >"$tmp/disk.err" 2>&1

refused() { # FILESYSTEM: prints why no power can be cut here
	command -v "mkfs.$1" >/dev/null || { echo "there is no mkfs.$1"; return; }
	disk_new "$1" || { echo "no $1 in a loop file: $(tail -1 "$tmp/disk.err")"; return; }
	"$rig/power_off" "$at" 2>"$tmp/disk.err" || tail -1 "$tmp/disk.err"
	disk_off >/dev/null
}

nap() { # MILLISECONDS
	sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
}

# ---- one life: sets why and fails when the job does not even start ----

# A trainer that came before it listens would start one of its own, which outlives both.
listens() { "$ckptctl" status -S "$socket" >"$tmp/status" 2>&1; }

launch() { # LAST_STEP
	: >"$log"
	rm -f "$socket"
	LD_PRELOAD=$preload NOSYNC=$lie "$ckptd" --socket "$socket" --engine "$engine" 2>>"$log" &
	daemon=$!
	within listens || { why="no daemon listens: $(cat "$tmp/status")"; return 1; }
	setsid "$trainer" --mesh "fsdp=$((RANDOM % 2 + 1))" --steps "$1" --params "$params" --snapshot-every $((RANDOM % 4 + 1)) \
		--step-ms 4 --guard never --root "$at/store" --job a --socket "$socket" --resume latest --losses "$losses" \
		>"$tmp/job.out" 2>"$tmp/job.err" &
	job=$!
}

power_cut() {
	"$rig/power_off" "$at" || { why="the power could not be cut"; return 1; }
	nap $((RANDOM % 20)) # whoever calls a step committed now lies
	die
	if ! disk_off || ! disk_on; then
		why="the disk cannot be mounted again"
		return 1
	fi
}

listed() {
	"$ckptctl" ls --json "$at/store" | tr '{' '\n' | sed -n 's/.*"step":\([0-9]*\),"state":"\([a-z]*\)".*/\1 \2/p'
}

# What must hold of the disk; sets newest_step and count.
inspect() {
	local step state list bad=0
	declare -A have=()
	while read -r step; do
		said[$step]=1
	done < <(sed -n 's/.* job a step \([0-9]*\) committed.*/\1/p' "$log")
	list=$(listed) || { why="ckptctl ls failed"; return 1; }
	newest_step=-1 count=0
	while read -r step state; do
		[ -n "$step" ] || continue
		[ "$state" = committed ] || { why+="step $step is $state"$'\n' bad=1; }
		have[$step]=1 count=$((count + 1))
		[ "$newest_step" -ge "$step" ] || newest_step=$step
	done <<<"$list"
	for step in "${!said[@]}"; do
		[ -n "${have[$step]:-}" ] || { why+="step $step was called committed and is gone"$'\n' bad=1; }
	done
	for step in "${!have[@]}"; do
		said[$step]=1
	done
	[ "$count" -eq 0 ] || "$ckptctl" verify --data --all "$at/store" >"$tmp/verify" 2>&1 || {
		why+="verify --data --all: $(cat "$tmp/verify")"$'\n' bad=1
	}
	return $bad
}

resumed_rightly() { # NEWEST: -1 for none
	local from
	from=$(sed -n 's/^trainer: resumed from disk, step \([0-9]*\),.*/\1/p' "$tmp/job.out")
	[ -z "$from" ] || [ "$from" -eq "$1" ] || { why+="resumed from step $from where $1 is the newest"$'\n'; return 1; }
	[ -n "$from" ] || [ "$1" -lt 0 ] || ! grep -q "starts at step 0" "$tmp/job.out" || { why+="started again where step $1 is the newest"$'\n'; return 1; }
}

acknowledged_by_exit() { # LAST: the job runs to its end
	job_ends 0 >"$tmp/ends" || { why=$(cat "$tmp/ends"); return 1; }
	said[$1]=1
}

# WHEN: after (its end) or amid. Sets sentence.
cycle() {
	local last=1000000 before=$newest_step good=0 ms=0
	why=''
	[ "$1" = amid ] || last=$((before + 8))
	launch "$last" || return 1
	if [ "$1" = amid ]; then
		ms=$((RANDOM % 250 + 10))
		nap "$ms"
		sentence="cut after $ms ms"
	else
		acknowledged_by_exit "$last" || good=1
		sentence="cut at the end of the job"
	fi
	power_cut || return 1
	inspect || good=1
	resumed_rightly "$before" || good=1
	sentence+=", engine $engine: all of ${#said[@]} steps are there and whole"
	return $good
}

begin_disk() { # FILESYSTEM
	disk_off >/dev/null 2>&1
	disk_new "$1" || why="no disk"
	said=() newest_step=-1 count=0
}

report() { # RESULT SENTENCE
	check "$2" said_why "$1"
}
said_why() {
	printf '%s' "$why"
	return "$1"
}

storm() { # FILESYSTEM
	begin_disk "$1"
	local k when good
	for ((k = 0; k < cycles; k++)); do
		engine=threads when=amid
		[ $((k % 2)) -eq 0 ] || engine=auto
		[ $((k % 3)) -ne 2 ] || when=after
		n=$((n + 1))
		good=0 sentence="cut"
		cycle "$when" || good=1
		report "$good" "$1, $sentence"
		if [ "$good" -ne 0 ]; then
			kept=$root/build/power-$seed-$n
			mkdir -p "$kept" && cp --sparse=always "$disk" "$log" "$tmp"/job.* "$kept" && echo "# kept: $kept, seed $seed"
			break
		fi
		[ "$count" -le "$steps_max" ] || begin_disk "$1"
	done
	disk_off >/dev/null
}

# A daemon that lies loses a step that it called committed: was that seen?
lies() { # FILESYSTEM WHAT
	begin_disk "$1"
	preload=$rig/nosync.so lie=$2 engine=threads why=''
	local seen=1 sentence losses=$tmp/lied
	! cycle after || seen=0
	preload='' lie=''
	disk_off >/dev/null
	[ "$seen" -eq 1 ] || { echo "nothing was lost, or nobody noticed"; return 1; }
	grep -q "is gone" <<<"$why" || grep -q verify <<<"$why" || { echo "something else went wrong: $why"; return 1; }
}

# $losses is of many jobs with the same seed: all lines of a step are the same.
losses_right() {
	awk '{ if ($1 > m) m = $1 } END { print m + 0 }' "$losses" >"$tmp/last"
	losses_undisturbed "$(cat "$tmp/last")" >"$tmp/compared" || { head -5 "$tmp/compared"; return 1; }
}

echo "# power: seed $seed, $cycles cuts for each of $*"
for fs; do
	reason=$(refused "$fs")
	if [ -n "$reason" ]; then
		skip "$reason" "$fs loses its power"
		continue
	fi
	begin_disk "$fs"
	check "$fs: a directory that lost a rename with the power is not synced" "$rig/power_off" --sync-late "$at"
	storm "$fs"
	check "$fs: a daemon that syncs nothing is found out" lies "$fs" all
	check "$fs: a daemon that syncs no directory is found out" lies "$fs" dirs
	check "$fs: a daemon that syncs no file is found out" lies "$fs" files
done
[ ! -s "$losses" ] || check "all losses are those of an undisturbed run" losses_right
tap_end
