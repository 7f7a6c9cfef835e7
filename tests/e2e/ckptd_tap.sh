# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# ckptd_tap.sh - what the tests of trainer, daemon and command together share; sourced by them. On top of trainer_tap.sh: $build,
# $ckptd, $ckptctl, a $store and a $socket of its own, a job that trains in the background, waits with a
# bound, and an end that leaves no process behind.
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "${BASH_SOURCE[0]}")/trainer_tap.sh"
# shellcheck disable=SC2034 # for those who source this
{
	build=$root/build
	ckptd=$build/ckptd
	ckptctl=$build/ckptctl
	store=$tmp/store
	socket=$tmp/s
	limit_s=60 # of every wait: a busy machine may take a while
	params=60K # of the model that jobs train
}

# within COMMAND...: the command succeeds at last, in bounded time.
within() {
	local i
	for ((i = 0; i < limit_s * 20; i++)); do
		! "$@" || return 0
		sleep 0.05
	done
	echo "not so after $limit_s s: $*"
	return 1
}

# A daemon of ours, in the foreground of its own; sets daemon.
daemon_start() { # OPTION...
	"$ckptd" --socket "$socket" "$@" 2>>"$tmp/daemon.log" &
	# shellcheck disable=SC2034 # for the caller
	daemon=$!
	within [ -S "$socket" ]
}

# Starts a job in a process group of its own; its output is $tmp/job.out, $tmp/job.err. Sets job.
job_start() { # OPTION...
	setsid "$trainer" --params "$params" --root "$store" --job a --socket "$socket" --losses "$tmp/losses" "$@" \
		>"$tmp/job.out" 2>"$tmp/job.err" &
	job=$!
}

# Waits for the job's end, in bounded time; succeeds when it ended with STATUS.
job_ends() { # STATUS
	local line status=0
	job_over() {
		read -r line 2>/dev/null <"/proc/$job/stat" || return 0
		[[ $line == *") Z "* ]]
	}
	within job_over || kill -KILL -- "-$job"
	wait "$job" 2>/dev/null || status=$?
	job=
	[ "$status" -eq "$1" ] || {
		echo "exit status $status, expected $1"
		cat "$tmp/job.out" "$tmp/job.err"
		return 1
	}
}

job_kill() {
	kill -KILL -- "-$job"
	wait "$job" 2>/dev/null || true
	job=
}

lines() { # FILE: how many, 0 when it is not there
	wc -l <"$1" 2>/dev/null || echo 0
}

# The newest committed step, or -1.
newest() {
	"$ckptctl" ls --json "$store" 2>/dev/null | grep -o '"step":[0-9]*,"state":"committed"' | head -1 | grep -o '[0-9]*' || echo -1
}

committed_after() { # STEP
	[ "$(newest)" -gt "$1" ]
}

trained_beyond() { # LINES of losses
	[ "$(lines "$tmp/losses")" -gt "$1" ]
}

step_dir() { # N, of job a
	printf '%s/a/step-%012d' "$store" "$1"
}

# says WORD FILE: the file names it; shown otherwise.
says() {
	grep -qF -- "$1" "$2" || {
		echo "'$1' is not in:"
		cat "$2"
		return 1
	}
}

# All losses written are those of an undisturbed run, and every step has one.
losses_undisturbed() { # LAST
	"$trainer" --no-checkpoint --mesh fsdp=1 --steps "$1" --params "$params" --losses "$tmp/calm" >/dev/null || return 1
	awk 'NR == FNR { calm[$1] = $0; next }
		$0 != calm[$1] { print "step " $1 ": " $0 ", undisturbed: " calm[$1]; bad = 1 }
		{ have[$1] = 1 }
		END { for (s in calm) if (!(s in have)) { print "no loss of step " s; bad = 1 } exit bad }' \
		"$tmp/calm" "$tmp/losses"
}

# Fills the file system of DIR, but for less than a step of 60K parameters takes (1012 KiB) and more than a launch does.
nearly_full() { # DIR
	local i=0
	while head -c 100K /dev/zero >"$1/fill.$i" 2>/dev/null; do i=$((i + 1)); done
	[ "$i" -gt 6 ] || { echo "$1 has room for $i times 100 KiB only"; return 1; }
	for ((i -= 6; ; i++)); do rm "$1/fill.$i" 2>/dev/null || break; done
	sync -f "$1" # btrfs counts what was removed from then on
}

# skip REASON SENTENCE
skip() {
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $2 # SKIP $1"
}

# check_assembles PTX ARCH...: ptxas, if there is one, takes the kernels for each of these that it has.
check_assembles() {
	local what="the toolkit's assembler takes the kernels"
	if ptxas=$(command -v ptxas || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/ptxas"); then
		check "$what" assembles "$@"
	else
		skip "there is no ptxas" "$what"
	fi
}
assembles() {
	local ptx=$1 arch n=0
	shift
	for arch; do
		"$ptxas" --help | grep -q "'$arch'" || continue
		"$ptxas" -arch="$arch" -o "$tmp/cubin" "$ptx" || return 1
		n=$((n + 1))
	done
	[ $n -gt 0 ]
}
