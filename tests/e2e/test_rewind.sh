#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A job goes back to an early step by mistake: its later steps are set aside, ls says so, and rewind makes them its line again, past a daemon
# that has something else in memory and not below ranks that run.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
export CKPTD_SOCKET=$socket CKPTD_STORE=$store/a

ctl_says() { # CODE WORD COMMAND...
	local code=$1 word=$2
	shift 2
	exits "$code" "$ckptctl" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || { cat "$tmp/out" "$tmp/err"; return 1; }
	cat "$tmp/out" "$tmp/err" >"$tmp/both"
	says "$word" "$tmp/both"
}
line() { # the committed ones, newest first
	"$ckptctl" ls --json | grep -o '"step":[0-9]*,"state":"committed"' | grep -o '[0-9]*' | tr '\n' ' '
}
line_is() { # STEP...
	[ "$(line)" = "$* " ] || { echo "the line is $(line)"; return 1; }
}
train() { # LAST OPTION...
	job_start --mesh fsdp=2 --snapshot-every 4 --step-ms 2 --guard finish --steps "$@"
	job_ends 0
}

check "a daemon listens" daemon_start
check "a job commits steps up to 16" train 16
read -ra was <<<"$(line)" # not every snapshot finds a free slot
first=${was[-1]}
check "several of them" [ "${#was[@]}" -gt 1 ]
check "and goes on from the first by mistake" train $((first + 1)) --resume "step:$first"
check "that is its line now" line_is $((first + 1)) "$first"
aside=$((${#was[@]} - 1)) && [ "$aside" -gt 1 ] && aside+=" steps up to 16 were" || aside+=" step up to 16 was"
check "ls says what was set aside, and what to do" ctl_says 0 "$aside set aside at " ls
check "with the command" says "; to go back: ckptctl rewind step:16" "$tmp/out"
check "the daemon would have removed none of them: prune says for how long they stay" ctl_says 0 \
	"set aside: stays for 1w" prune -n --keep-last 1

job_start --mesh fsdp=2 --snapshot-every 7 --steps 100000 --step-ms 5 --persist-every 100000 --resume latest # never 16
running() { "$ckptctl" status --json | grep -q '"attached_count":2'; }
check "it runs again" within running
check "a running job is not rewound: 11" ctl_says 11 "2 ranks are attached" rewind --yes step:16
job_kill
gone() { ! running; }
check "it dies" within gone
check "what it had staged is written" exits 0 "$ckptctl" drain
check "the plan says what would move" ctl_says 0 "bring-back" rewind -n step:16
before=$(newest)
check "and moves nothing" [ "$(newest)" -eq "$before" ]
check "where it cannot ask, and without --yes, nothing moves" ctl_says 2 "ckptctl cannot ask" rewind step:16
check "with it the step is the newest of the line" ctl_says 0 "step 16 is the newest of job a now: " rewind --yes step:16
check "with what is before it" line_is "${was[@]}"
check "a second time nothing moves" ctl_says 0 "is the newest of job a already" rewind --yes step:16
check "what it had instead is aside" ctl_says 0 " set aside at " ls
check "all of the line is whole" exits 0 "$ckptctl" verify --data --all
touch "$(step_dir 16)/.nfs0001"
check "a foreign file in it is a warning" ctl_says 3 "ok (1 foreign file ignored: .nfs0001)" verify --data
check "the job goes on from it" train 20 --resume latest
check "from the disk: what the daemon had in memory was given up" says "resumed from disk, step 16" "$tmp/job.out"
check "and the line goes on" line_is 20 "${was[@]}"
awk '$1 <= 20' "$tmp/losses" >"$tmp/few" && mv "$tmp/few" "$tmp/losses"
check "with the losses of a run that was never disturbed" losses_undisturbed 20

# --- a step that never came to the disk ---
job_start --mesh fsdp=2 --snapshot-every 4 --steps 100000 --step-ms 5 --resume latest
check "the job runs" within running
: >"$store/a/.ckptd/gen-00000099" # as another daemon would, for a later launch
failed() { "$ckptctl" status --json | grep -q '"state":"failed","generation":[0-9]*,"in_memory":true'; }
check "a step is in memory and cannot be written" within failed
job_kill
check "the job dies" within gone
idle() { ! "$ckptctl" status --json | grep -q '"in_memory":true,"to_write":true'; }
check "nothing is being written" within idle
check "a step that is in memory alone is not given up without a yes: 11" ctl_says 11 "in ckptd's memory and not on disk" \
	rewind step:20
check "with a yes it is" ctl_says 0 "ckptd gave up its memory of the job, 1 step of it not on disk" rewind --yes step:20
held() { "$ckptctl" status --json | grep -q '"in_memory":true'; }
check "nothing is in memory any more" exits 1 held
tap_end
