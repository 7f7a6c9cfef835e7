#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A small disk and a policy: ckptd removes what need not stay, in time, and never what must; without one it says what does not fit before it
# writes it.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# A mount namespace of our own: the file systems go with the test, however it ends.
if [ -z "${DAEMON_KEEP_INSIDE:-}" ]; then
	for how in "unshare -m" "unshare -rm"; do
		# shellcheck disable=SC2086 # words
		if $how true 2>/dev/null; then
			DAEMON_KEEP_INSIDE=1 exec $how "$0"
		fi
	done
	echo "ok 1 - a small disk and a policy # SKIP needs a mount namespace (root, or user namespaces)"
	echo "1..1"
	exit 0
fi
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
mkdir "$tmp/disk"
mount -t tmpfs -o size=64m none "$tmp/disk"
head -c 56M /dev/zero >"$tmp/disk/ballast"
trap 'umount -l "$tmp/disk" || true; tidy_up' EXIT # the daemon still has it open
store=$tmp/disk/store
steps() { # the committed ones, newest first, in one line
	"$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | grep -o '[0-9]*' | tr '\n' ' '
}
few_are_left() { # which ones depends on how fast the disk is; the third one is the newest that was verified
	[[ $(steps) =~ ^100\ [0-9]+\ ([0-9]+\ )?$ ]]
}
stop_daemon() {
	kill -TERM "$daemon"
	wait "$daemon"
}

check "an option that makes no sense is refused" exits 2 "$ckptd" --keep-last none
check "a daemon with a policy listens" daemon_start --keep-last 2 --verbose
# 60K parameters are 1 MiB of state; 20 steps are to be written where there is room for about six.
job_start --mesh fsdp=2 --steps 100 --snapshot-every 5 --step-ms 20 --wait-ready --guard finish
check "a job that writes more than the disk holds ends well" job_ends 0
check "its last step is there" [ "$(newest)" -eq 100 ]
check "no step failed to be written" [ "$(grep -c "could not be written" "$tmp/daemon.log" || true)" -eq 0 ]
check "and one before it, and the one that was verified, and no more" within few_are_left
check "they are whole" exits 0 "$ckptctl" verify --data --all "$store"
check "each step that went was said to go, and why" says "step 5 removed: " "$tmp/daemon.log"
check "one was read back first" says "read back and verified" "$tmp/daemon.log"
check "what the store is like was said" says "; tmpfs, " "$tmp/daemon.log"
check "also that nothing survives power loss there" says "nothing survives power loss" "$tmp/daemon.log"
check "nothing half-removed is left" [ -z "$(find "$store/a" -maxdepth 1 -name '.tmp-*' -o -maxdepth 1 -name '.trash*')" ]
check "the daemon ends well" stop_daemon

check "a daemon without a policy listens" daemon_start
check "there is no room for another step" nearly_full "$tmp/disk"
job_start --mesh fsdp=2 --steps 200 --snapshot-every 5 --step-ms 5 --resume latest
check "a job whose last step does not fit ends with 13" job_ends 13
check "what the step needs is said" says " needs " "$tmp/job.err"
check "and what would make room" says "ckptctl prune -n --keep-last" "$tmp/job.err"
check "the steps that fitted are whole" exits 0 "$ckptctl" verify --data --all "$store"
told() {
	"$ckptctl" status --socket "$socket" --json | grep -q '"fits":false'
}
check "status tells that the next step does not fit" within told
tap_end
