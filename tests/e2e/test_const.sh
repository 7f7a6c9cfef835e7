#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job whose base never changes (95 % of its state, as in a LoRA) from end to end: the base is written once per launch and
# linked by each later step; it survives pruning, deaths of daemon and trainer, another mesh, conversion, and damage.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

lora() { # OPTION...: in the foreground
	"$trainer" --params "$params" --frozen 95 --root "$store" --job a --socket "$socket" --guard finish \
		--wait-ready "$@"
}
lora_start() { # OPTION...
	job_start --frozen 95 --guard finish --wait-ready "$@"
}
steps() { # the committed ones, newest first, in one line
	"$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | grep -o '[0-9]*' | tr '\n' ' '
}
steps_are() {
	[ "$(steps)" = "$1" ] || { steps; return 1; }
}
bases() { # [DIR...]: the different files that are at least half of a MiB: main parts are not
	find "${@:-$store/a}" -name '*.part' -size +512k -printf '%i\n' | sort -u | wc -l
}
base_of() { # STEP: inode of the first rank's
	find "$(step_dir "$1")" -name 'w0000-*.part' -size +512k -printf '%i\n'
}
links_of() { # STEP
	find "$(step_dir "$1")" -name 'w0000-*.part' -size +512k -printf '%n\n'
}
all_good() {
	"$ckptctl" verify --data --all "$store"
}
used() { # bytes on disk, what is linked once
	du -sB1 "$store/a" | cut -f1
}
stop_daemon() {
	kill -TERM "$daemon"
	wait "$daemon"
}

# --- ten steps, three of which stay, and the newest one that ckptd has read back ---
check "a daemon that keeps three steps listens" daemon_start --keep-last 3 --verbose
check "a job with a frozen base trains" lora --mesh fsdp=2 --steps 100 --step-ms 60
three_stay() { # which ones are before the last depends on how fast the disk is
	read -ra stay <<<"$(steps)"
	{ [ "${#stay[@]}" -eq 3 ] || [ "${#stay[@]}" -eq 4 ]; } && [ "${stay[0]}" -eq 100 ]
}
check "three steps stay" within three_stay
check "each rank's base is there once" [ "$(bases)" -eq 2 ]
check "the name in each step leads to it" [ "$(links_of 100)" -eq "${#stay[@]}" ]
check "every byte of all steps is right" all_good
check "the log says what was written and what was linked" says ", linked 16 MiB" "$tmp/daemon.log"
check "they take less than one and a half of one" [ "$(used)" -lt $((3 * $(du -sB1 "$(step_dir 100)" | cut -f1) / 2)) ]
"$ckptctl" show "$(step_dir 100)" >"$tmp/show.out"
check "show says how much of it is shared" says "shared with older steps" "$tmp/show.out"

# --- a MANIFEST that is lost ---
rm "$(step_dir "${stay[1]}")/MANIFEST"
check "repair makes a lost MANIFEST again, of parts that are linked too" "$ckptctl" repair --yes "$store/a"
check "which names them" exits 0 "$ckptctl" verify --data "$(step_dir "${stay[1]}")"

# --- another launch, another mesh ---
base=$(base_of 100)
check "another mesh goes on from it" lora --mesh fsdp=3 --steps 130 --step-ms 60 --resume disk
check "and writes its base once again" [ "$(base_of 130)" != "$base" ]
check "its steps share that" [ "$(links_of 130)" -eq 3 ]
check "a prune, which reads the newest back, removes the last step of the older one" "$ckptctl" prune --yes --keep-last 3 "$store/a"
check "and that one has gone with it" [ "$(bases)" -eq 3 ]
check "replicas do not write it twice" lora --mesh dp=2,fsdp=2 --steps 160 --step-ms 60 --resume disk
check "every byte is right" all_good

# --- removal by hand ---
check "rm removes a step" "$ckptctl" rm --yes "$(step_dir "$(steps | cut -d" " -f2)")"
check "and no byte of the others" all_good
check "prune leaves the newest" "$ckptctl" prune --yes --keep-last 1 "$store/a"
check "which has its base" all_good
check "and is the only one" steps_are "160 "

# --- convert ---
check "it is converted" "$ckptctl" convert --mesh fsdp=3 "$(step_dir 160)" "$tmp/converted"
check "to a checkpoint that is right" "$ckptctl" verify --data "$tmp/converted"
check "and holds the same" exits 0 "$ckptctl" diff "$(step_dir 160)" "$tmp/converted"

# --- to another file system, where nothing can be linked ---
if [ -w /dev/shm ] && [ "$(stat -c %d /dev/shm)" != "$(stat -c %d "$tmp")" ]; then
	open=$(mktemp -d /dev/shm/ckptd-const.XXXXXX)
	lora_start --mesh fsdp=2 --steps 100000 --step-ms 60 --resume disk --persist-every 1000000
	check "a job stages steps that are not to be written" within trained_beyond 60
	check "drain --to writes one elsewhere" "$ckptctl" drain a --to "$open" --socket "$socket"
	own_bases() { # of two ranks; and of a second step, if one was staged meanwhile
		[ "$(bases "$open")" -eq $((2 * $(find "$open/a" -maxdepth 1 -name 'step-*' | wc -l))) ]
	}
	check "with a base of its own" own_bases
	check "every byte of which is right" exits 0 "$ckptctl" verify --data --all "$open"
	job_kill
fi

# --- deaths ---
daemon_dies() { # its job stands still, or it would start another one that has no policy
	kill -STOP -- "-$job"
	kill -KILL "$daemon"
	wait "$daemon" 2>/dev/null || true
	rm -f "$socket" # which the next one makes anew
}
died=0
for how in trainer daemon both daemon trainer both; do
	before=$(newest)
	lora_start --mesh fsdp=2 --steps 100000 --step-ms 5 --snapshot-every 3 --resume latest
	within committed_after "$before" || died=1
	sleep "0.$((RANDOM % 900 + 10))"
	case $how in
	trainer) job_kill ;;
	daemon)
		daemon_dies
		daemon_start --keep-last 3 --verbose
		kill -CONT -- "-$job"
		within committed_after "$(newest)" || died=1
		job_kill
		;;
	both)
		daemon_dies
		job_kill
		daemon_start --keep-last 3 --verbose
		;;
	esac
	all_good >"$tmp/good.out" 2>&1 || { died=1; sed 's/^/# /' "$tmp/good.out"; }
done
check "six deaths of daemon, trainer and both leave steps that are right" [ "$died" -eq 0 ]
check "the job goes on from them" lora --mesh fsdp=2 --steps "$(($(newest) + 40))" --step-ms 60 --resume latest
check "no more bases stay than steps do" [ "$(bases)" -le $((2 * $(steps | wc -w))) ]

# --- a flipped bit in each shared file: where one is right, a restore takes the base from there (daemon_rot) ---
last=$(newest)
check "the newest steps share it" [ "$(links_of "$last")" -gt 1 ]
find "$store/a" -name 'w0000-*.part' -size +512k -printf '%i %p\n' | sort -u -k1,1 | while read -r _ file; do
	time=$(stat -c %y "$file")
	printf '\x55' | dd of="$file" bs=1 seek=70000 conv=notrunc status=none
	touch -d "$time" "$file"
done
check "verify finds them all damaged" exits 4 "$ckptctl" verify --data --all "$store"
check "a job finds nothing to go on from" exits 5 lora --mesh fsdp=2 --steps "$((last + 10))" --resume disk
check "started anew it writes a new base" lora --mesh fsdp=2 --steps 30 --step-ms 60
check "which is right" exits 0 "$ckptctl" verify --data "$(step_dir 30)"
check "the daemon ends well" stop_daemon
tap_end
