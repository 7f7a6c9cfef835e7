#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A full disk costs the steps that did not fit, and is said; training goes on, and when there is room, so do commits.
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
mkdir "$tmp/disk"
mount -t tmpfs -o size=64m none "$tmp/disk"
head -c 52M /dev/zero >"$tmp/disk/ballast" # a user namespace may not remount with another size
trap 'umount -l "$tmp/disk"; tidy_up' EXIT # the daemon still has it open
store=$tmp/disk/store

# 60K parameters are 1 MiB of state, so that about ten steps fit.
check "a daemon listens" daemon_start
job_start --mesh fsdp=2 --steps 200 --snapshot-every 5 --step-ms 5
check "a job whose last step does not fit ends with 13" job_ends 13
check "it has trained to the end" [ "$(lines "$tmp/losses")" -eq 200 ]
check "it has said that a step could not be written" says "could not be written" "$tmp/job.err"
check "and that there is no space" says "No space left" "$tmp/job.err"
fitted=$(newest)
check "the steps that fitted are there" [ "$fitted" -gt 0 ]
check "and whole" exits 0 "$ckptctl" verify --data --all "$store"
before=$("$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | wc -l)
check "nothing half-written is left" [ -z "$(find "$store/a" -maxdepth 1 -name '.tmp-*' -o -maxdepth 1 -name '.trash*')" ]

rm "$tmp/disk/ballast"
job_start --mesh fsdp=3 --steps 220 --snapshot-every 5 --step-ms 5 --resume latest
check "with room again the job goes on to its end" job_ends 0
check "from memory, where its last step still was" says "resumed from memory, step 200" "$tmp/job.out"
check "and commits" [ "$(newest)" -eq 220 ]
after=$("$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | wc -l)
check "no older step was given up for it" [ "$after" -gt "$before" ]
check "every step is whole" exits 0 "$ckptctl" verify --data --all "$store"
check "all losses are those of an undisturbed run" losses_undisturbed 220
tap_end
