#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ckptctl and a daemon that serves a real job: status, trigger, wait, drain, forget, and their exit codes.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
export CKPTD_SOCKET=$socket
unset CKPTD_STORE

ctl() {
	"$ckptctl" "$@" >"$tmp/out" 2>"$tmp/err"
}
# The exit status, and a word that stdout or stderr has.
ctl_says() { # CODE WORD COMMAND...
	local code=$1 word=$2
	shift 2
	exits "$code" ctl "$@" || { cat "$tmp/out" "$tmp/err"; return 1; }
	cat "$tmp/out" "$tmp/err" >"$tmp/both"
	says "$word" "$tmp/both"
}
field() { # PATTERN: the first number behind it in the JSON of status
	"$ckptctl" status --json | grep -o "\"$1\":[0-9]*" | head -1 | grep -o '[0-9]*$' || echo -1
}
field_above() { [ "$(field "$1")" -gt "$2" ]; }
field_is() { [ "$(field "$1")" -eq "$2" ]; }
narrow() { # FILE: no line is wider than 80 columns
	awk '{ gsub(/[\200-\277]/, "") } length($0) > 80 { print length($0) ": " $0; bad = 1 } END { exit bad }' "$1"
}
not_found() { # WORD FILE
	! grep -qF -- "$1" "$2"
}
# Two looks at least, each a line of JSON.
watched() {
	local pid
	"$ckptctl" status -w --json >"$tmp/watch" 2>"$tmp/err" &
	pid=$!
	looked_twice() { [ "$(lines "$tmp/watch")" -ge 2 ]; }
	within looked_twice
	kill -INT "$pid"
	exits 0 wait "$pid"
	[ "$(grep -c '^{"schema":"ckptd.status/1","type":"status",.*}$' "$tmp/watch")" -eq "$(lines "$tmp/watch")" ]
}

# --- no daemon ---
check "without a daemon status ends with 14 and says how to start one" ctl_says 14 "ckptd --background" status
check "so does trigger" ctl_says 14 "no ckptd listens on $socket" trigger
check "so does drain" ctl_says 14 "no ckptd listens on" drain
check "so does forget" ctl_says 14 "no ckptd listens on" forget a
check "and ckptctl alone says what to do first" ctl_says 0 "begin with:" --
check "as an error with --json" ctl_says 2 "no verb was given" --json
check "wait where nothing was ever written ends with 10" ctl_says 10 "$store" wait latest -C "$store"

# --- a job that writes every 1000th of its snapshots, and the daemon ---
check "a daemon listens" daemon_start
check "ckptctl alone is status now" ctl_says 0 "No job has attached yet" --
check "nobody can be triggered" ctl_says 10 "has no job" trigger
job_start --mesh fsdp=2 --steps 100000 --snapshot-every 2 --persist-every 1000 --wait-ready --step-ms 5 --guard finish
check "its ranks are seen" within field_is attached_count 2
check "and its steps" within field_above newest_step 3
check "status says so in words" ctl_says 0 "2 of 2 attached" status
check "in 80 columns" narrow "$tmp/out"
check "and without a colour or an escape" not_found $'\033' "$tmp/out"
check "status --json is one line with its schema" ctl_says 0 '{"schema":"ckptd.status/1","running":true' status --json
check "status -w prints JSON Lines until it is interrupted, and ends with 0" watched
check "a step that is only staged is waited for" ctl_says 0 "staged" wait latest --state staged
check "one that was replaced in memory can never be committed: 5" ctl_says 5 "was" wait 2 --timeout 20s
check "one that is far away is waited for, and then 15" ctl_says 15 "not committed yet" wait 99998 --timeout 200ms
check "a step that is none is a wrong command" ctl_says 2 "is not a step" wait soon
check "and so is a time that is none" ctl_says 2 "is not a time" wait latest --timeout soon
check "a job that nobody knows is 10 at once, with those that there are" ctl_says 10 "has no job b; it has $store/a" \
	wait latest --job b
check "and 10 when the time is over" ctl_says 10 "has no job b; it has $store/a" wait 5 --job b --timeout 200ms
check "-C is where the job must be" ctl_says 10 "has no job in $tmp/nowhere" trigger -C "$tmp/nowhere"
# What is staged, without waiting for the disk: under no name but DIR's does anything stay.
restored() { # CODE WORD DIR ARGUMENT...
	local code=$1 word=$2 dir=$3
	shift 3
	ctl_says "$code" "$word" restore "$@" "$dir" --mesh fsdp=3 --from-memory || return 1
	! find "$tmp" -name '.ckptd-memory-*' | grep .
}
check "a staged step is restored from memory" restored 0 "from memory on fsdp=3" "$tmp/kept" latest
check "under the name of its job, one rank alone" restored 0 "from memory, rank 1 of fsdp=3" "$tmp/one" a@latest --rank 1
check "of the same size as any" [ "$(stat -c %s "$tmp/one/rank-00001.safetensors")" -eq "$(stat -c %s "$tmp/kept/rank-00001.safetensors")" ]
check "and nothing is on disk of it" ctl_says 0 "No committed checkpoint" ls "$store"
check "a step that is not in memory: 10, with those that are" restored 10 "is not in memory; ckptd holds" "$tmp/none" 99998
check "a tag names nothing in memory: 2" restored 2 "names no step in memory" "$tmp/none" tag:best
check "a job that is not there: 10" restored 10 "has no job nix" "$tmp/none" nix@latest
check "and no directory was made" [ ! -e "$tmp/none" ]
check "trigger says after which step" ctl_says 0 "after step" trigger
check "and the step is committed" within field_above committed 0
check "trigger --wait comes back when its step is committed" ctl_says 0 "is committed" trigger --final --wait --timeout 20s
check "which ls lists" ctl_says 0 "latest" ls "$store"
triggered=$(newest)
check "and wait finds" ctl_says 0 "Step $triggered of a is committed" wait "$triggered"
check "drain writes what is staged" ctl_says 0 "written" drain --timeout 20s
check "which is newer" committed_after "$triggered"
check "drain of one job names it" ctl_says 0 "job      a" drain a --timeout 20s
check "of a job that nobody knows: 10, with those that there are" ctl_says 10 "has no job nix; it has $store/a" drain nix
check "drain --to writes to another directory, which it makes" ctl_says 0 "$tmp/spare" drain a --to "$tmp/spare" --timeout 20s
check "where it is a store like any other" ctl_says 0 "latest" ls "$tmp/spare"
check "the job's own store is refused: 2" ctl_says 2 "a launch of this ckptd writes to the directory a below it" drain --to "$store"
check "and what is no directory: 10" ctl_says 10 "cannot open" drain a --to "$tmp/spare/a/.ckptd/gen-00000001"
check "the job's memory is in use: 11" ctl_says 11 "attached" forget --all a
check "a job that is not there: 10, with those that are" ctl_says 10 "$store/a" forget nix
check "forget --all needs a name, even of the only job" ctl_says 2 "needs the job's name" forget --all
other_start() { # JOB
	"$trainer" --mesh fsdp=1 --steps 100000 --params 20K --root "$tmp/other" --job "$1" --step-ms 5 --guard finish \
		--snapshot-every 2 --wait-ready >/dev/null 2>&1 & # its socket is $CKPTD_SOCKET
	other=$!
}
other_end() {
	kill -TERM "$other"
	wait "$other" 2>/dev/null || true
}
# The command stands in the directory of job a; the job comes while it waits.
awaited() {
	"$ckptctl" wait latest --job live --timeout 20s >"$tmp/out" 2>"$tmp/err" &
	local pid=$! status=0
	other_start live
	wait "$pid" || status=$?
	cat "$tmp/out" "$tmp/err"
	[ "$status" -eq 0 ] && says "of live is committed" "$tmp/out"
}
export CKPTD_STORE=$store/a
check "a job that is not there yet is waited for, whatever directory the command stands in" awaited
check "its latest is the daemon's" ctl_says 0 "of live is" wait latest --job live --state staged --timeout 20s
unset CKPTD_STORE
other_end
check "one that is over is waited for only with --timeout: 5" within ctl_says 5 "no rank of live is attached any more" \
	wait 99999999 --job live
check "else 15" ctl_says 15 "not committed yet" wait 99999999 --job live --timeout 100ms
check "it is forgotten" within ctl_says 0 "memory" forget --all live
check "and cannot be forgotten twice" ctl_says 10 "has no job live" forget live
other_start a
check "a second job appears" within field_is world_size 1
check "then --job is needed: 2, with all of them" ctl_says 2 "$tmp/other/a, $store/a" trigger
check "a name that two stores have is not enough" ctl_says 2 "--job" trigger --job a
check "the store's path before it is" ctl_says 0 "will be written" trigger --job "$store/a"
check "or -C" ctl_says 0 "is committed" trigger --wait --timeout 20s -C "$store"
check "two jobs fit 80 columns" ctl_says 0 "$tmp/other" status
check "as they are" narrow "$tmp/out"
other_end

# --- the job's directory is moved ---
check "its directory is moved away in mid-training" mv "$store/a" "$store/a.kept"
check "then drain says so" ctl_says 1 "the directory of job a was moved or replaced" drain "$store/a" --timeout 20s
check "and how to rescue what is staged" ctl_says 1 "ckptctl drain a --to DIR" drain "$store/a" --timeout 20s
check "which does" ctl_says 0 "failed   0" drain "$store/a" --to "$tmp/rescue" --timeout 20s
check "to the last byte" ctl_says 0 "ok" verify --data "$tmp/rescue/a/step-$(printf %012d "$("$ckptctl" ls --json "$tmp/rescue" |
	grep -o '"step":[0-9]*' | head -1 | cut -d: -f2)")"
kept=$(ls "$store/a.kept")
check "nothing is put in its place" test ! -e "$store/a"
check "it comes back" mv "$store/a.kept" "$store/a"
came_back() { [ "$(ls "$store/a")" != "$kept" ]; }
check "and ckptd goes on with it, whatever persist_every says" within came_back

# --- the daemon is stopped, or goes away ---
pause() {
	kill -STOP "$daemon"
}
check "the daemon is stopped" pause
interrupted_restore() {
	local pid
	"$ckptctl" restore latest "$tmp/none" --mesh fsdp=1 --from-memory >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	kill -INT "$pid"
	! wait "$pid" || return 1
	! find "$tmp" -name '.ckptd-memory-*' | grep .
}
check "a restore from memory that is interrupted leaves nothing" interrupted_restore
check "then a wait ends with 15 in its time" ctl_says 15 "does not answer" wait 99998 --job a --timeout 100ms
timed() { # MS COMMAND...: no longer than that
	local began=${EPOCHREALTIME//[.,]/} limit=$1
	shift
	"$@" || return 1
	[ $((${EPOCHREALTIME//[.,]/} - began)) -le $((limit * 1000)) ] || { echo "too long"; return 1; }
}
check "completion says nothing, and not late" timed 2900 exits 0 "$ckptctl" completion complete -- trigger --job ''
kill -CONT "$daemon"
# Meanwhile the trainer stands still: it would start a daemon, in which a wait may find no job yet.
daemon_dies() {
	kill -STOP -- "-$job"
	kill -KILL "$daemon"
	wait "$daemon" 2>/dev/null || true
	rm -f "$socket" # which the next one makes anew
}
# The wait lives through the death of one daemon and the birth of the next, which the trainer attaches to.
survived() {
	local pid
	"$ckptctl" wait 99998 --job "$store/a" --timeout 3s >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	daemon_dies
	daemon_start --quiet
	kill -CONT -- "-$job"
	within field_is attached_count 2 || return 1
	exits 15 wait "$pid" || return 1
	says "is not committed yet" "$tmp/err"
}
check "a wait with a time outlives the daemon" survived
gone_without_time() {
	local pid status=0
	"$ckptctl" wait 99998 --job "$store/a" -C "$store" >"$tmp/out" 2>"$tmp/err" &
	pid=$!
	daemon_dies
	exits 14 wait "$pid" || status=1
	daemon_start --quiet
	kill -CONT -- "-$job"
	return "$status"
}
check "a wait without a time ends with 14 when the daemon dies" gone_without_time
check "the job is attached again" within field_is attached_count 2

# --- the job is over ---
last_of_memory() { "$ckptctl" status --json | grep -o '"memory_step":[0-9][0-9]*' | head -1 | grep -o '[0-9]*$'; }
check "a step of it is in memory again" within last_of_memory
job_kill
check "the daemon sees the ranks go" within ctl_says 3 "2 of 2 died" status
same_as_disk() { # the newest staged step, from memory and then from disk
	local step
	step=$(last_of_memory)
	restored 0 "step $step from memory" "$tmp/last" "$step" || return 1
	"$ckptctl" drain --all --timeout 20s >/dev/null || return 1
	ctl_says 0 "step $step on" restore "$step" "$tmp/disk" --mesh fsdp=3 -C "$store" || return 1
	cmp_files
}
# But for the id, which a step has when it is committed, and the blanks behind the header the files are the same.
but_for_id() { LC_ALL=C sed -E 's/,?"checkpoint":"[0-9a-f]*"//; s/, id [0-9a-f]*"/"/; s/\}\} +/}}/' "$1"; }
cmp_files() {
	local r
	for r in 0 1 2; do
		cmp <(but_for_id "$tmp/last/rank-0000$r.safetensors") <(but_for_id "$tmp/disk/rank-0000$r.safetensors") || return 1
	done
}
check "what memory holds of a job that is over is what is on disk later" same_as_disk
no_id() { ! grep -aqE '"checkpoint":|, id [0-9a-f]' "$tmp/last/rank-00000.safetensors"; }
check "and it names no id: the copy that had one is gone" no_id
check "wait latest waits for what the daemon writes on its own" ctl_says 0 "is committed" wait latest --timeout 20s \
	--job "$store/a"
not_alone() { # its directory was moved away since: what memory has may be the only copy
	local status=0
	mv "$store/a" "$store/away" || return 1
	ctl_says 11 "may have its only copy" forget "$store/a" || status=1
	mv "$store/away" "$store/a" && return $status
}
check "memory is not given back without --all where the step is no longer on disk: 11" not_alone
check "memory of a job that is over is given back" within ctl_says 0 "memory" forget "$store/a"
check "and the job is gone" ctl_says 10 "has no job" forget "$store/a"
stop_daemon() {
	kill -TERM "$daemon"
	wait "$daemon"
}
check "the daemon ends well" stop_daemon
check "without a daemon a committed step is found in the store" ctl_says 0 "is committed" wait "$(newest)" -C "$store"
check "and latest too" ctl_says 0 "Step $(newest) of a is committed" wait latest -C "$store"
check "and any lesser state of it" ctl_says 0 "is staged" wait latest --state staged -C "$store"
check "what is not there is 14" ctl_says 14 "no ckptd listens" wait 99998 -C "$store"
check "or 15, when there was time" ctl_says 15 "not committed yet" wait 99998 -C "$store" --timeout 100ms
check "and 14 at once for what only a daemon knows" ctl_says 14 "no ckptd" wait 99998 -C "$store" --state staged --timeout 9s
tap_end
