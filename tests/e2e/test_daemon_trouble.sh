#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A daemon that stops, dies or is told to leave in the middle of a run does not hurt training; what was staged is written.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

# ---- stopped: silent for longer than the five seconds after which it counts as gone ----
check "a daemon listens" daemon_start
job_start --mesh fsdp=2 --steps 1000000 --step-ms 5 --snapshot-every 5
check "a job commits steps" within committed_after 0
kill -STOP "$daemon"
at=$(lines "$tmp/losses")
check "with its daemon stopped, training goes on" within trained_beyond $((at + 200))
told() { grep -qF "training goes on" "$tmp/job.err"; }
check "and says that its snapshots have no daemon" within told
at=$(lines "$tmp/losses")
check "and goes on" within trained_beyond $((at + 50))
before=$(newest)
kill -CONT "$daemon"
check "when the daemon continues, so do the commits" within committed_after "$before"
job_kill
check "every step is whole" exits 0 "$ckptctl" verify --data --all "$store"

# ---- told to leave, with staged steps not yet written ----
staged() { grep -ao "job $1 step [0-9]* staged" "$tmp/daemon.log" | tail -1 | grep -o '[0-9]* staged' | cut -d' ' -f1; }
job_start --mesh fsdp=2 --steps 1000000 --job drain --params 6M --persist-every 1000000 --snapshot-every 1
first_staged() { [ -n "$(staged drain)" ]; }
check "a job stages steps that it does not ask to be written" within first_staged
kill -STOP -- "-$job" # so that it starts no other daemon
sleep 0.3             # a copy that was under way ends
kill -TERM "$daemon"
status=0
wait "$daemon" || status=$?
check "SIGTERM ends the daemon with 0" [ "$status" -eq 0 ]
step=$(staged drain)
listed() { "$ckptctl" ls --json "$store/drain" | grep -q "\"step\":$step,"; }
check "the newest staged step has been committed by then" listed
check "and is whole" exits 0 "$ckptctl" verify --data --all "$store"
job_kill

# ---- killed, and found again ----
rm -rf "$store" "$tmp/losses"
job_start --mesh fsdp=2 --steps 150 --step-ms 40 --snapshot-every 5 # so that it does not end before the daemon is killed
check "a job starts a daemon of its own" within committed_after 0
old=$(daemons)
kill -KILL "$old"
before=$(newest)
at=$(lines "$tmp/losses")
check "with its daemon killed, training goes on" within trained_beyond $((at + 10))
check "and steps are committed again before the end" within committed_after "$before"
check "the last step is committed and the job ends with 0" job_ends 0
check "it is the newest" [ "$(newest)" -eq 150 ]
new=$(daemons)
check "by another daemon" [ "$new" != "$old" ]
check "every step is whole" exits 0 "$ckptctl" verify --data --all "$store"
check "all losses are those of an undisturbed run" losses_undisturbed 150

# ---- killed at the very end, when only the last step is missing ----
job_start --mesh fsdp=2 --steps 250 --step-ms 10 --snapshot-every 1000 --resume latest
check "a job goes on" within trained_beyond 240
kill -KILL "$new"
check "a daemon that is killed at the end costs nothing either" job_ends 0
check "the last step is committed" [ "$(newest)" -eq 250 ]
check "all losses are those of an undisturbed run" losses_undisturbed 250
tap_end
