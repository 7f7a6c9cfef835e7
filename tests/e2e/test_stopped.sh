#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A process that stands still (SIGSTOP, a debugger, a laptop's lid) and goes on later: the daemon in the midst of a write,
# with another one in its place meanwhile; a rank of one job beside another job. Late is allowed, torn and lost are not.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
all_whole() { exits 0 "$ckptctl" verify --data --all "$store"; }
losses_right() { # LAST
	losses_undisturbed "$1" >"$tmp/compared" || { head -5 "$tmp/compared"; return 1; }
}
resumed_beyond() { # STEP
	[ "$(sed -n 's/^trainer: resumed from [a-z]*, step \([0-9]*\),.*/\1/p' "$tmp/job.out")" -ge "$1" ]
}
listed() { # JOB STEP
	"$ckptctl" ls --json "$store/$1" | grep -q "\"step\":$2,"
}

# Stops the daemon when a step lies half-written in the store.
stop_amid() {
	local i
	for ((i = 0; i < limit_s * 50; i++)); do
		kill -STOP "$daemon"
		[ -z "$(find "$store/a" -maxdepth 1 -name '.tmp-*' 2>/dev/null)" ] || return 0
		kill -CONT "$daemon"
		sleep 0.0"$((RANDOM % 20 + 10))"
	done
	return 1
}

# ---- the daemon, in the midst of a write ----
check "a daemon listens" daemon_start
params=600K
job_start --mesh fsdp=2 --steps 1000000 --snapshot-every 1
check "a job commits steps" within committed_after 0
check "its daemon is stopped with a step half-written" stop_amid
before=$(newest)
at=$(lines "$tmp/losses")
check "training goes on" within trained_beyond $((at + 30))
check "what is listed is whole" all_whole
check "another daemon cannot have the socket" exits 11 "$ckptd" --socket "$socket"
kill -CONT "$daemon"
check "when it continues, steps are committed" within committed_after "$before"
check "all are whole" all_whole

# ---- the same, and its job goes on under another daemon meanwhile ----
check "the daemon is stopped with a step half-written, again" stop_amid
job_kill
first=$daemon before=$(newest)
half=$(find "$store/a" -maxdepth 1 -name '.tmp-*' -printf '%f ')
socket=$tmp/other
check "another daemon listens elsewhere" daemon_start
last=$(awk '$1 > m { m = $1 } END { print m + 10 }' "$tmp/losses")
job_start --mesh fsdp=1 --steps "$last" --resume disk
check "and the job goes on to its end with it" job_ends 0
check "from the newest committed step" says "resumed from disk, step $before" "$tmp/job.out"
"$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*,"state":"[a-z]*"\|"id":"[0-9a-f]*"' >"$tmp/before"
at=$(lines "$tmp/daemon.log")
kill -CONT "$first"
ended() { # the first daemon's attempts, all of them
	local step
	for step in $half; do
		step=$((10#$(cut -d- -f2 <<<"$step")))
		tail -n "+$((at + 1))" "$tmp/daemon.log" | grep -q "step $step could not be written" || return 1
	done
}
check "the first daemon, when it continues, is refused its half-written step" within ended
check "all that is listed stays as it was" cmp "$tmp/before" <("$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*,"state":"[a-z]*"\|"id":"[0-9a-f]*"')
check "and whole" all_whole
check "all losses are those of an undisturbed run" losses_right "$last"
kill -KILL "$first"

# ---- a rank, beside another job ----
rm -f "$tmp/losses"
params=60K
b_committed() { listed b 300; }
setsid "$trainer" --params "$params" --root "$store" --job c --socket "$socket" --mesh fsdp=2 --steps 1000000 --step-ms 2 --snapshot-every 1 \
	>"$tmp/c.out" 2>"$tmp/c.err" &
job=$! # which tidy_up ends
stopped_job=$job
c_newest() { "$ckptctl" ls --json "$store/c" 2>/dev/null | grep -o '"step":[0-9]*,"state":"committed"' | head -1 | grep -o '[0-9]*' || echo 0; }
c_beyond() { [ "$(c_newest)" -gt "$1" ]; }
check "a job commits steps, very often" within c_beyond 0
read -ra ranks <"/proc/$job/task/$job/children" || true
kill -STOP "${ranks[1]}"
job_start --job b --mesh fsdp=2 --steps 300 --step-ms 4 --snapshot-every 3
other_job=$job
job=$stopped_job
check "with one of its ranks stopped, another job trains" within trained_beyond 20
check "and has its last step committed" within b_committed
check "what there is of the stopped job is whole" all_whole
before=$(c_newest)
kill -CONT "${ranks[1]}"
check "when the rank continues, so do its job's commits" within c_beyond "$before"
check "which are whole" all_whole
kill -STOP "${ranks[0]}" "${ranks[1]}"
kill -KILL -- "-$job"
wait "$job" 2>/dev/null || true
job=$other_job
check "the other job has ended with 0" job_ends 0
check "all its losses are those of an undisturbed run" losses_right 300
job_start --job c --mesh fsdp=3 --steps $((before + 100)) --resume latest
check "the stopped job, killed as it stood, is resumed by other ranks" job_ends 0
check "not from before its newest commit" resumed_beyond "$before"
check "every step is whole" all_whole

# ---- the daemon, while a job goes back to an earlier step ----
rm -f "$tmp/losses"
job_start --job d --mesh fsdp=2 --steps 1000000 --step-ms 4 --snapshot-every 1 --go-back-every 2
check "a job goes back to its newest step, again and again" within grep -q 'went back from step [0-9]' "$tmp/job.out"
kill -STOP "$daemon"
check "its daemon is stopped, until the job takes it for dead" within grep -q 'the daemon has exited' "$tmp/job.err"
kill -CONT "$daemon"
at=$(lines "$tmp/losses")
check "when the daemon continues, the job goes back, blobs included, and trains on" within trained_beyond $((at + 20))
job_kill
check "every step is whole" all_whole
tap_end
