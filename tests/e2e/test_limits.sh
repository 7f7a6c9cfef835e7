#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Limits of a process - the size of files, descriptors, address space - are errors that are told, of daemon and of
# command: never a death by a signal, never a checkpoint called damaged, never half of one left behind.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
# shellcheck disable=SC2154
all_whole() { exits 0 "$ckptctl" verify --data --all "$store"; }
no_partial() { # nothing half-made beside DIR
	[ -z "$(find "$tmp" -maxdepth 2 -name '*partial*' -o -maxdepth 2 -name '*.tmp*')" ]
}
refused_since() { # LINES of the daemon's log
	tail -n "+$(($1 + 1))" "$tmp/daemon.log" | grep -q "could not be written"
}
limit() { prlimit --pid "$daemon" "$1"; }

# ---- the size of files: ckptd ----
check "a daemon listens" daemon_start
job_start --mesh fsdp=2 --steps 1000000 --step-ms 3 --snapshot-every 3
check "a job commits steps" within committed_after 0
at=$(lines "$tmp/daemon.log")
check "its daemon gets a file size limit" limit --fsize=100000:unlimited
check "steps are refused from then on" within refused_since "$at"
check "for that reason" says "File too large" "$tmp/daemon.log"
check "the daemon lives" kill -0 "$daemon"
trained=$(lines "$tmp/losses")
check "and training goes on" within trained_beyond $((trained + 20))
check "the limit goes" limit --fsize=unlimited:unlimited
before=$(newest)
check "steps are committed again" within committed_after "$before"

# ---- memory: ckptd ----
at=$(lines "$tmp/daemon.log")
check "its daemon gets no more address space" limit --as=1000000:unlimited
trained=$(lines "$tmp/losses")
check "training goes on" within trained_beyond $((trained + 30))
check "the daemon lives" kill -0 "$daemon"
check "the limit goes" limit --as=unlimited:unlimited
before=$(newest)
check "steps are committed" within committed_after "$before"

# ---- descriptors: ckptd ----
at=$(lines "$tmp/daemon.log")
check "its daemon gets no more descriptors" limit --nofile=8:1024
trained=$(lines "$tmp/losses")
check "training goes on" within trained_beyond $((trained + 30))
check "the daemon lives" kill -0 "$daemon"
check "the limit goes" limit --nofile=1024:1024
before=$(newest)
check "steps are committed" within committed_after "$before"
job_kill
check "every step is whole" all_whole
kill -TERM "$daemon"
check "the daemon ends as it should" wait "$daemon"

# Whatever a restore lacks descriptors for, it is an error, or late, and no reason to start afresh or to call a step damaged.
starved() { # DESCRIPTORS
	local n=$1 status=0
	limit "--nofile=$n:1024" || return 1
	timeout -s KILL 1 "$trainer" --params 60K --root "$store" --job a --socket "$socket" --mesh fsdp=1 --steps 1 --resume latest \
		>"$tmp/starved" 2>&1 || status=$?
	cat "$tmp/starved"
	echo "with $n descriptors the job ended with $status"
	kill -0 "$daemon" || return 1
	case $status in
	0) grep -q "resumed from" "$tmp/starved" ;;
	1 | 13 | 14 | 15 | 75 | 137) ! grep -q "starts at step 0" "$tmp/starved" ;;
	*) return 1 ;;
	esac
}
starved_all() {
	local n
	for n in 12 15 17 20 23 28; do
		starved "$n" || return 1
	done
	grep -q "resumed from" "$tmp/starved" || return 1 # the last had enough
}
check "a daemon listens" daemon_start
check "a job that resumes from a daemon with few descriptors resumes, or is told of them" starved_all
check "every step is whole" all_whole
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true

# ---- a trainer: what it shares are files to the kernel, and one beyond the limit would end it by a signal ----
small_files() {
	local status=0
	(ulimit -f 100; exec "$trainer" --params "$params" --root "$tmp/elsewhere" --job small --socket "$socket" --mesh fsdp=1 --steps 1) \
		>"$tmp/small" 2>&1 || status=$?
	cat "$tmp/small"
	[ "$status" -gt 0 ] && [ "$status" -lt 128 ] && grep -q "ulimit -f" "$tmp/small"
}
rm -f "$socket" # the daemon that was killed has left it, and daemon_start would take it for the new one's
check "a daemon listens again" daemon_start
check "a trainer under a file size limit is told, not killed" small_files
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true

# ---- the command ----
under() { # LIMIT COMMAND...: sets status; prints what it said
	local which=$1
	shift
	status=0
	prlimit "$which" "$@" >"$tmp/said" 2>&1 || status=$?
	cat "$tmp/said"
	[ "$status" -lt 128 ] || { echo "died of signal $((status - 128)) under $which: $*"; return 1; }
}
too_large() { # COMMAND...: fails for the size of its file
	under --fsize=4000:4000 "$@" || return 1
	[ "$status" -ne 0 ] || { echo "it has worked"; return 1; }
	grep -q "File too large" "$tmp/said"
}
check "convert is refused a file beyond the limit, and says so" too_large "$ckptctl" -C "$store" convert latest --mesh fsdp=1 "$tmp/converted"
check "restore is" too_large "$ckptctl" -C "$store" restore latest --mesh fsdp=1 "$tmp/restored"
check "cat is" too_large "$ckptctl" -C "$store" cat latest optim/emb.weight.master -o "$tmp/taken"
check "no checkpoint is there that is not whole" [ ! -e "$tmp/converted" ]
check "and no file" [ ! -e "$tmp/taken" ]
check "nor any in the directory of restore" [ -z "$(ls "$tmp/restored" 2>/dev/null)" ]

# Under each limit: done, or an error that names the shortage; with no limit, done and right.
through() { # OPTION WORDS VALUE... -- COMMAND...
	local option=$1 words=$2 value values=()
	shift 2
	while [ "$1" != -- ]; do
		values+=("$1")
		shift
	done
	shift
	for value in "${values[@]}"; do
		rm -rf "$tmp/out" "$tmp"/.out*
		under "--$option=$value:$value" "$@" || return 1
		case $status in
		0) ;;
		1 | 13 | 75 | 127) grep -qE "$words" "$tmp/said" ;; # 127: the loader had too little already
		*) false ;;
		esac || { echo "$option $value: status $status"; return 1; }
		[ "$status" -eq 0 ] || [ ! -e "$tmp/out" ] || [ -z "$(ls "$tmp/out")" ] || { echo "$option $value: something is left"; return 1; }
	done
	[ "$status" -eq 0 ] || { echo "the largest is too little"; return 1; }
}
few='Too many open files|cannot open shared object|Error 24'
little='out of memory|no memory|annot allocate memory|failed to map|hread|Resource temporarily'
for n in ls verify convert restore; do
	case $n in
	ls) command=(ls) ;;
	verify) command=(verify --data latest) ;;
	convert) command=(convert latest "$tmp/out" --mesh fsdp=3 --mem-limit 64M) ;;
	restore) command=(restore latest "$tmp/out" --mesh fsdp=3 --mem-limit 64M) ;;
	esac
	check "$n with few descriptors works, or names them" through nofile "$few" 3 4 5 6 7 8 9 10 11 12 16 64 -- "$ckptctl" -C "$store" "${command[@]}"
	check "$n with little memory works, or names it" through as "$little" \
		4000000 8000000 12000000 16000000 24000000 40000000 80000000 200000000 1000000000 -- "$ckptctl" -C "$store" "${command[@]}"
done
check "every step is whole" all_whole
tap_end
