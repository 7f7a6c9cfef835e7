#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cases.sh [CASE...] - what must hold of a store that two hosts use over NFS. guest.sh runs it in the machine that nfs.sh boots. A case is a
# function case_NAME; each has a store of its own.
# shellcheck disable=SC2317,SC2154 # the functions are called by their names; guest.sh exports b and guest
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/../e2e/ckptd_tap.sh"
params=1M
tensor=optim/fc2.weight.master # 2 MiB: more than a pipe holds
a() { "$@"; }
b() { nsenter -t "$b" -n -u -m -- "$@"; }

store_new() { # NAME: at $store for clients, at $disk for the server
	store=/mnt/store/$1
	disk=/srv/store/$1
	mkdir "$disk"
	claims=$disk/a/.ckptd
}
trains() { # HOST LAST OPTION...: a job with a daemon on that host, to its end
	local host=$1 last=$2 ckptd_pid
	shift 2
	# shellcheck disable=SC2086 # words
	"$host" "$ckptd" --socket "$tmp/$host.s" ${daemon_options:-} 2>>"$tmp/daemon.log" &
	ckptd_pid=$!
	within [ -S "$tmp/$host.s" ] || return 1
	"$host" "$trainer" --params "$params" --root "$store" --job a --socket "$tmp/$host.s" --mesh fsdp=2 --snapshot-every 2 --guard finish \
		--persist-every 1 --steps "$last" "$@" >"$tmp/job.out" 2>&1 || { cat "$tmp/job.out"; return 1; }
	kill "$ckptd_pid"
	wait "$ckptd_pid" || true
	rm -f "$tmp/$host.s"
}
steps() { # what the server has, oldest first
	find "$disk/a" -maxdepth 1 -name 'step-*' -printf '%f\n' | sort | sed 's/step-0*//' | tr '\n' ' '
}
steps_are() { # STEP...
	[ "$(steps)" = "$* " ] || { echo "the steps are $(steps)"; return 1; }
}
oldest() { steps | cut -d' ' -f1; }
newest() { steps | tr ' ' '\n' | grep . | tail -n 1; }
readings() { find "$claims" -name "reading-$(printf %012d "$1")-*" -printf '%f\n'; }
is_read() { [ -n "$(readings "$1")" ]; }
# reader_start HOST STEP [STORE]: reads until reader_end, for it cannot write on.
reader_start() {
	rm -f "$tmp/go"
	mkfifo "$tmp/go"
	{ "$1" "$ckptctl" cat -C "${3:-$store}" "step:$2" "$tensor" 2>"$tmp/reader.err" || echo failed >"$tmp/reader.failed"; } |
		{ read -r _ <"$tmp/go"; cat >"$tmp/read"; } &
	reader=$!
	rm -f "$tmp/reader.failed"
}
reader_end() {
	echo >"$tmp/go"
	wait "$reader"
	[ ! -e "$tmp/reader.failed" ] || { cat "$tmp/reader.err"; return 1; }
	cmp "$tmp/read" "$tmp/whole"
}
prunes() { # EXIT HOST OPTION...
	local code=$1 host=$2
	shift 2
	exits "$code" "$host" "$ckptctl" prune --yes --keep-last 1 "$@" "$store" >"$tmp/prune.out" 2>&1 || { cat "$tmp/prune.out"; return 1; }
}
some_steps() { # NAME: a store with several, made by host a; sets old, new and what old has
	store_new "$1"
	check "$1: host a saves a job's steps" trains a 8
	old=$(oldest)
	new=$(newest)
	a "$ckptctl" cat -C "$store" "step:$old" "$tensor" >"$tmp/whole"
	check "$1: several, and a tensor that a pipe does not hold" [ "$old" -lt "$new" -a "$(stat -c %s "$tmp/whole")" -gt 100000 ]
}

# The lock of a directory is each host's own: what this rig is for.
case_directory_locks() {
	store_new directory
	mkdir "$disk/d"
	a flock "$store/d" sleep 1000 &
	local pid=$!
	held() { ! flock -n "$store/d" true; }
	check "the lock of a directory excludes the processes of its host" within held
	check "and none of another host" b flock -n "$store/d" true
	kill "$pid"
}

case_reader() {
	some_steps reader
	reader_start b "$old"
	check "host b reads the oldest step, and leaves that it does" within is_read "$old"
	check "host a prunes the others, and exits 3" prunes 3 a
	check "and says who reads it" says "it is being read" "$tmp/prune.out"
	check "the step is there" steps_are "$old" "$new"
	check "host a does not remove it by name either" exits 11 a "$ckptctl" rm --yes -C "$store" "step:$old"
	check "nor does the server on its own disk" exits 11 "$ckptctl" prune --yes --keep-last 1 "$disk"
	check "it is there still" steps_are "$old" "$new"
	check "host b reads it to its end, every byte" reader_end
	check "and leaves nothing" exits 1 is_read "$old"
	check "now host a prunes it" prunes 0 a
	check "the newest alone is left" steps_are "$new"
	check "and it is whole for host b" b "$ckptctl" verify --data -C "$store"
}

# ckptd keeps to it as prune does.
case_reader_beside_a_daemon() {
	some_steps daemon
	reader_start a "$old"
	check "host a reads the oldest step" within is_read "$old"
	local daemon_options="--keep-last 1"
	check "host b trains on, with a ckptd that keeps one step" trains b 16 --resume latest
	check "the step that host a reads is there" is_there "$old"
	check "host a reads it to its end" reader_end
	check "now it can go" prunes 0 a
	check "and has gone" gone "$old"
}
is_there() { [ -d "$(step_of "$1")" ]; }
gone() { ! is_there "$1"; }

case_two_prune() {
	some_steps both
	a "$ckptctl" prune --yes --keep-last 1 "$store" >"$tmp/a.out" 2>&1 &
	local pid=$!
	b "$ckptctl" prune --yes --keep-last 1 "$store" >"$tmp/b.out" 2>&1 || true
	wait "$pid" || true
	check "two hosts prune at once, and one of them once more" prunes_in_the_end
	check "the newest alone is left" steps_are "$new"
	check "with nothing of the others" [ -z "$(find "$disk/a" -maxdepth 1 -name '.trash-*')" ]
	check "and it is whole for both" whole_for_both
}
prunes_in_the_end() { prunes 0 a || prunes 11 a; }
whole_for_both() { a "$ckptctl" verify --data -C "$store" && b "$ckptctl" verify --data -C "$store"; }

case_reader_died() {
	some_steps died
	reader_start b "$old"
	check "host b reads the oldest step" within is_read "$old"
	kill -KILL "$(readings "$old" | sed 's/.*\.//')"
	echo >"$tmp/go"
	wait "$reader" || true
	check "it is killed, and what it left stays" is_read "$old"
	check "host a does not know that, and prunes the others" prunes 3 a
	check "and says for how long" says "counts for ten minutes" "$tmp/prune.out"
	check "and on which host it was" says "on host-b, process " "$tmp/prune.out"
	check "the step is there" steps_are "$old" "$new"
	mv "$claims/$(readings "$old")" "$claims/reading-$(printf %012d "$old")-0badcafe.0-host-b.1" # a name that host a has not seen
	touch -d '11 minutes ago' "$claims/$(readings "$old")"
	check "after ten minutes by the server's clock host a prunes it" prunes 0 a
	check "and what the dead one left" exits 1 is_read "$old"
	check "the newest alone is left" steps_are "$new"
}

# The server gives the locks of a host that it does not hear of to others.
case_reader_cut_off() {
	some_steps cut
	reader_start b "$old"
	check "host b reads the oldest step" within is_read "$old"
	b ip link set vb down
	# 2+2N: the step's byte. A server keeps what nobody wants: so it is wanted.
	taken() { a "$guest" lock "$store/a/.ckptd/lock-steps" $((2 + 2 * old)) 1 </dev/null >/dev/null 2>&1; }
	check "when it was not heard of for a while, its lock is anybody's" within taken
	check "host a leaves the step all the same" prunes 3 a
	check "and says who reads it" says "on host-b, process " "$tmp/prune.out"
	b ip link set vb up
	check "the step is there" steps_are "$old" "$new"
	echo >"$tmp/go"
	wait "$reader" || true
	check "what host b has read of it, if it could, is right" cmp -n "$(stat -c %s "$tmp/read")" "$tmp/read" "$tmp/whole"
}

case_read_only() {
	some_steps readonly
	check "host a prunes once, to one step" prunes 0 a
	check "and saves more" trains a 12 --resume latest
	old=$new
	new=$(newest)
	a "$ckptctl" cat -C "$store" "step:$old" "$tensor" >"$tmp/whole"
	b mkdir -p /mnt/ro
	b mount.nfs 10.9.0.1:/ /mnt/ro -o vers=4.2,ro
	reader_start b "$old" /mnt/ro/readonly
	local byte=$((2 + 2 * old))
	locked() { ! a "$guest" lock "$store/a/.ckptd/lock-steps" "$byte" 1 </dev/null >/dev/null 2>&1; }
	check "host b, which may not write there, locks what it reads" within locked
	check "and leaves nothing" exits 1 is_read "$old"
	check "host a prunes around it" prunes 3 a
	check "host b reads it to its end" reader_end
	b umount /mnt/ro
}

# Host a sets steps aside when host b claims the job: b sees the whole line, or waits.
case_claim_waits() {
	some_steps claim
	mkfifo "$tmp/hold"
	a "$guest" lock "$store/a/.ckptd/lock-steps" 0 1 <"$tmp/hold" >"$tmp/held" &
	exec 9>"$tmp/hold"
	check "host a has the line of the job" within [ -s "$tmp/held" ]
	mv "$(step_of "$new")" "$disk/a/away"
	trains b 12 --resume latest >"$tmp/b.out" 2>&1 9>&- & # it must not keep the line
	local pid=$!
	claimed() { [ -n "$(find "$claims" -name 'gen-*2' -print -quit)" ]; }
	check "host b claims the job" within claimed
	mv "$disk/a/away" "$(step_of "$new")"
	exec 9>&-
	check "and goes on" ends_well "$pid" "$tmp/b.out"
	check "from the newest step, which came back" says "step $new" "$tmp/job.out"
}
ends_well() { # PID FILE: shown otherwise
	wait "$1" || { cat "$2" "$tmp/job.out"; tail -n 5 "$tmp/daemon.log"; return 1; }
}
step_of() { printf '%s/a/step-%012d' "$disk" "$1"; }

# Ranks of one launch that come to the daemons of two hosts are told so. They have one token, of their launcher.
case_ranks_on_two_hosts() {
	store_new ranks
	local host daemons=() pid
	for host in a b; do
		"$host" "$ckptd" --socket "$tmp/$host.s" 2>>"$tmp/daemon.log" &
		daemons+=($!)
		check "a ckptd listens on host $host" within [ -S "$tmp/$host.s" ]
	done
	rank_on a 0 &
	pid=$!
	check "rank 0 of a launch attaches on host a" within claim_is_there
	check "rank 1 on host b is refused" exits 1 within_seconds 90 rank_on b 1
	check "it is told where rank 0 is" says "rank 0 of this launch is attached to the ckptd of host host-a" "$tmp/rank1"
	check "the launch has used up no numbers" [ "$(find "$claims" -name 'gen-*' | sed 's/.*gen-0*//; s/\..*//' | sort -n | tail -n 1)" -le 2 ]
	pkill -x rank || true # the machine is ours
	wait "$pid" || true
	kill "${daemons[@]}"
	wait "${daemons[@]}" || true
	rm -f "$tmp"/[ab].s
}
rank_on() { # HOST RANK: one of two ranks
	"$1" env SLURM_JOB_ID=7 SLURM_STEP_ID=0 CKPTD_SOCKET="$tmp/$1.s" CKPTD_STORE="$store" CKPTD_JOB=a LD_LIBRARY_PATH="$build" \
		"$(dirname "$guest")/rank" "$2" 2 >"$tmp/rank$2" 2>&1
}
within_seconds() { # N COMMAND...: a function's end, in bounded time
	local n=$1 pid i
	shift
	"$@" &
	pid=$!
	for ((i = 0; i < n * 20; i++)); do
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.05
	done
	kill "$pid" 2>/dev/null && echo "not ended after $n s: $*"
	wait "$pid"
}
claim_is_there() { [ -n "$(find "$claims" -name 'gen-*1' 2>/dev/null)" ]; }

case_doctor() {
	store_new doctor
	check "doctor finds no fault of the locks" doctor_says b "work"
	check "and does not claim that nothing is pruned" exits 1 grep -q "never prunes" "$tmp/doctor"
}
doctor_says() { # HOST WORD
	"$1" "$ckptctl" doctor "$store" >"$tmp/doctor" 2>&1 || true
	grep -A2 '^ *[^ ]* *locks' "$tmp/doctor" | grep -q "$2" || { cat "$tmp/doctor"; return 1; }
}

if [ $# -eq 0 ]; then
	mapfile -t cases < <(sed -n 's/^case_\([a-z_]*\)() {.*/\1/p' "${BASH_SOURCE[0]}")
	set -- "${cases[@]}"
fi
for c; do
	"case_$c"
done
tap_end
