#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The ranks are direct children of the process that was started, die with it, and give it their status.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/trainer_tap.sh"
limit=200 # looks, 50 ms apart, before something is said not to happen

# Starts a job that would train for hours and waits for its ranks to do the first step.
launch() {
	rm -f "$tmp/losses"
	"$trainer" --mesh fsdp=4 --steps 100000000 --params 20K --no-checkpoint \
		--losses "$tmp/losses" >"$tmp/job.out" 2>&1 &
	job=$!
	local i
	for ((i = 0; i < limit; i++)); do
		[ ! -s "$tmp/losses" ] || break
		sleep 0.05
	done
	mapfile -t ranks < <(children "$job")
}

children() { # PID
	tr ' ' '\n' <"/proc/$1/task/$1/children" | grep -v '^$'
}

gone() { # PID...: none of them runs any more; a zombie has ended
	local i pid state left
	for ((i = 0; i < limit; i++)); do
		left=0
		for pid in "$@"; do
			state=$(awk '/^State/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || state=X
			[ "$state" = Z ] || [ "$state" = X ] || [ -z "$state" ] || left=1
		done
		[ "$left" -eq 1 ] || return 0
		sleep 0.05
	done
	echo "still there: $*"
	return 1
}

ended_with() { # CODE: what the job, a child of this shell, ended with
	[ "$status" -eq "$1" ] || { echo "exit status $status, expected $1"; cat "$tmp/job.out"; return 1; }
}

collect() {
	status=0
	wait "$job" 2>/dev/null || status=$?
}

launch
check "a job of four ranks has four direct children" [ "${#ranks[@]}" -eq 4 ]
kill -KILL "$job"
collect
check "the ranks die with a parent that is killed" gone "${ranks[@]}"

launch
kill -KILL "${ranks[2]}"
collect
check "a rank that is killed gives the job its status" ended_with 137
check "and takes the others with it" gone "${ranks[@]}"
check "and the message says so" grep -q "ended by signal 9" "$tmp/job.out"

launch
kill -STOP "${ranks[0]}"
kill -TERM "$job"
collect
check "SIGTERM ends the job, a stopped rank included" ended_with 143
check "and its ranks" gone "${ranks[@]}"

# A shell without job control starts background jobs with SIGINT ignored; env undoes that.
rm -f "$tmp/losses"
env --default-signal=INT "$trainer" --mesh fsdp=2 --steps 100000000 --params 20K --no-checkpoint \
	--losses "$tmp/losses" >"$tmp/job.out" 2>&1 &
job=$!
for ((i = 0; i < limit; i++)); do
	[ ! -s "$tmp/losses" ] || break
	sleep 0.05
done
mapfile -t ranks < <(children "$job")
kill -INT "$job"
collect
check "SIGINT ends the job" ended_with 130
check "and its ranks too" gone "${ranks[@]}"
tap_end
