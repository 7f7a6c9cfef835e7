#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh - the whole product in a minute: train, kill, resume on other meshes, compare. Called by `make demo`.
# Exit status 0 only if every loss is, bit for bit, that of a run that was never interrupted.
# Everything lies in build/demo, which is removed at the start and left at the end. BUILD names another build directory.
# DEVICE=cuda, or fake, puts the state of the killed jobs on a GPU (trainer --help); the job that is
# compared with stays on the host.
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build}
demo=build/demo
store=$demo/store
steps=80 every=4 kill_after=29
average='constant decay=.95' # what it keeps is mostly of the last 20 steps
params=4M
[[ ${DEVICE:-} != fake* ]] || params=200K # its kernels are interpreted
model=(--params "$params" --seed 7 --steps "$steps")
[ -d /usr/share/common-licenses ] || model+=(--text docs) # any text will do

bold='' dim='' green='' red='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ] && [ "${TERM:-dumb}" != dumb ]; then
	bold=$'\e[1m' dim=$'\e[2m' green=$'\e[32m' red=$'\e[31m' plain=$'\e[0m'
fi
say() { # WHO SENTENCE
	printf '%s%-8s%s %s\n' "$bold" "$1" "$plain" "$2"
}
die() {
	echo "demo: $*" >&2
	exit 1
}

daemon='' job='' end=''
run=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-demo.XXXXXX") # the path of a socket must be short
socket=$run/socket
finish() {
	local status=$?
	[ -z "$job" ] || kill -KILL "$job" 2>/dev/null || true
	[ -z "$daemon" ] || kill -TERM "$daemon" 2>/dev/null || true
	[ -z "$daemon" ] || wait "$daemon" 2>/dev/null || true
	[ -z "$end" ] && [ "$status" -ne 0 ] && [ -s $demo/ckptd.log ] &&
		{ echo "demo: the last lines of $demo/ckptd.log:"; tail -n 5 $demo/ckptd.log; } >&2
	rm -rf "$run"
	exit "$status"
}
trap finish EXIT
trap 'exit 130' INT TERM

start_daemon() {
	"$build/ckptd" --socket "$socket" >>$demo/ckptd.log 2>&1 &
	daemon=$!
	local i
	for ((i = 0; i < 200; i++)); do
		[ ! -S "$socket" ] || return 0
		kill -0 "$daemon" 2>/dev/null || break
		sleep 0.02
	done
	die "ckptd did not start: see $demo/ckptd.log"
}

train() { # NAME MESH OPTION...
	local name=$1 mesh=$2
	shift 2
	${exec:-} "$build/trainer" --mesh "$mesh" "${model[@]}" --losses "$demo/$name.losses" "$@"
}

snapshots() { # NAME: sets options, of a run that ckptd looks after
	options=(--snapshot-every "$every" --guard finish --root "$store" --job "$1" --socket "$socket" --print-stats "$demo/$1.stats")
	[ -z "${DEVICE:-}" ] || options+=(--device "$DEVICE")
	[ "$1" != demo-a ] || options+=(--average "fast=$average")
}

# Runs ckptctl and shows the command and the beginning of what it says.
show() { # LINES ARGUMENT...
	local lines=$1 out
	shift
	echo "         ${dim}\$${plain} ckptctl $*"
	out=$("$build/ckptctl" "$@" 2>&1) || die "ckptctl $*: $out"
	printf '%s\n' "$out" | awk -v n="$lines" -v dim="$dim" -v plain="$plain" '
		NR <= n { print "         " dim $0 plain }
		END { if (NR > n) print "         " dim "... " NR - n " more lines" plain }'
}

# Trains until the losses show that step $kill_after + 1 is under way, and kills all of it.
train_and_kill() { # NAME [PID: killed at the same time]
	local name=$1 i=0 line=
	say "$name" "Train on fsdp=4 with a snapshot every $every steps. Kill the whole job with SIGKILL in the middle of step $((kill_after + 1))."
	snapshots "$name"
	exec=exec train "$name" fsdp=4 "${options[@]}" >"$demo/$name.out" 2>&1 &
	job=$! # the trainer itself, not a shell around it
	until [ -s "$demo/$name.losses" ] && line=$(tail -n 1 "$demo/$name.losses") && [ "${line%% *}" -ge "$kill_after" ]; do
		kill -0 "$job" 2>/dev/null || die "the trainer ended by itself: $(cat "$demo/$name.out")"
		[ $((i += 1)) -lt 6000 ] || die "the trainer does not get to step $kill_after: $(cat "$demo/$name.out")"
		sleep 0.01
	done
	# One command, and both reaped at once: the shell would tell of them otherwise.
	# shellcheck disable=SC2086 # one or two
	{
		kill -KILL "$job" ${2:-} # the ranks die with their parent
		wait "$job" ${2:-} || true
	} 2>/dev/null
	job=''
}

inspect() { # NAME SENTENCE
	say '' "$2"
	show 4 ls $store/"$1"
	show 9 show latest -C $store/"$1"
}

resume() { # NAME MESH FROM SENTENCE
	say '' "$4"
	snapshots "$1"
	train "$1" "$2" "${options[@]}" --resume "$3" >"$demo/$1.out" 2>&1 || die "$(cat "$demo/$1.out")"
	sed -n "s/^trainer: \(resumed .*\)/         $dim\1$plain/p" "$demo/$1.out"
	echo
}

# Every line of every part of the run is the reference's line of that step, and no step is missing.
identical() { # NAME
	awk -v steps="$steps" 'NR == FNR { want[$1] = $0; next } $0 != want[$1] { bad = 1 } { seen[$1] = 1 }
		END { for (i = 1; i <= steps; i++) if (!(i in seen)) bad = 1; exit bad }' $demo/reference.losses "$demo/$1.losses"
}

value() { # NAME KEY
	sed -n "s/.*\"$2\":\"\{0,1\}\([^,\"}]*\).*/\1/p" "$demo/$1.stats" | tail -n 1
}

samples() { # NAME KEY: of an array of nanoseconds, sorted, a line each
	sed -n "s/.*\"$2\":\[\([^]]*\)\].*/\1/p" "$demo/$1.stats" | tail -n 1 | tr ',' '\n' | sort -n | grep . || true
}

# The value at PERCENT of the sorted samples; nothing if there is none.
quantile() { # NAME KEY PERCENT
	samples "$1" "$2" | awk -v p="$3" '{ v[++n] = $1 } END { if (n) { i = int((n * p + 99) / 100); print v[i < 1 ? 1 : i] } }'
}

human() { # NANOSECONDS
	awk -v t="${1:--1}" 'BEGIN { if (t < 0) print "-"; else if (t < 1e6) printf "%.0f us\n", t / 1e3; else printf "%.3g ms\n", t / 1e6 }'
}

# The loss of one component of a job's last step: as a user gets at it, with two commands.
loss() { # NAME COMPONENT
	local to=$demo/$1.$2
	"$build/ckptctl" restore latest "$to" --only "$2" --dtype BF16 -C $store/"$1" >"$demo/restore.out" 2>&1 || die "$(cat $demo/restore.out)"
	"$build/trainer" "${model[@]}" --evaluate "$to/model.safetensors" >"$demo/evaluate.out" 2>&1 || die "$(cat $demo/evaluate.out)"
	sed -n 's/^trainer: loss \([0-9.]*\) of .*/\1/p' $demo/evaluate.out
}

row() {
	local paint=''
	[ "$1" = IDENTICAL ] && paint=$green
	[ "$1" = DIFFERENT ] && paint=$red
	shift
	printf "%-9s %-11s %-15s %8s  %6s  %10s  $paint%-9s$plain  %7s %7s %8s  %7s %9s %9s\n" "$@"
}

mib() { # KEY: of demo-a's statistics
	awk -v b="$(value demo-a "$1")" 'BEGIN { printf "%.1f MiB", b / 1048576 }'
}

result() { # NAME MESH
	local mark=DIFFERENT word=DIFFERENT from median
	if identical "$1"; then mark=IDENTICAL word=identical; else end=1; fi
	from=$(value "$1" resumed_step) median=$(quantile "$1" stall_ns 50)
	row $mark "$1" "$2" "$(value "$1" resumed_from), step $from" "$(human "$(value "$1" restore_ns)")" "$((from + 1))-$steps" "$(value "$1" loss)" $word \
		"$(human "$median")" "$(human "$(quantile "$1" stall_ns 99)")" \
		"$(awk -v a="${median:-0}" -v b="$(value "$1" memcpy_ns)" 'BEGIN { if (a > 0 && b > 0) printf "%.1f %%", 100 * a / b; else print "-" }')" \
		"$(human "$(quantile "$1" staged_ns 50)")" "$(human "$(quantile "$1" persisted_ns 50)")" "$(human "$(quantile "$1" committed_ns 50)")"
}

rm -rf $demo && mkdir -p $demo
begin=$SECONDS
say 'ckptd' "4 processes on $(nproc) cores train a byte-level language model on the texts of licenses."
say '' "Three jobs are killed and resumed: from the memory of ckptd, on another mesh, and from disk."
[ -z "${DEVICE:-}" ] || say '' "Their state lies on a GPU: trainer --device $DEVICE."
echo
say 'ref' "Train $steps steps without interruption and without ckptd. Every loss of the other jobs must equal the loss of this run, bit for bit."
train reference fsdp=4 --no-checkpoint >$demo/reference.out 2>&1 || die "$(cat $demo/reference.out)"
echo "         $dim$(sed -n 's/^trainer: //p' $demo/reference.out | tail -n 1)$plain"
echo
start_daemon

train_and_kill demo-a
inspect demo-a "The store at this moment. ckptd outlived the job and still writes the staged steps:"
resume demo-a fsdp=4 memory "Resume on fsdp=4 from the memory of ckptd, at the newest staged step. Train to step $steps."

train_and_kill demo-b
inspect demo-b "The store at this moment:"
resume demo-b fsdp=3 memory "Resume on fsdp=3: 3 processes load from memory what 4 processes staged."

train_and_kill demo-c "$daemon"
daemon=''
say '' "Kill ckptd at the same time: the snapshots in its memory are lost. Start another ckptd."
start_daemon
inspect demo-c "The store at this moment: it has only committed steps."
resume demo-c dp=2,fsdp=2 disk "Resume on dp=2,fsdp=2 from disk: two replicas of two shards."

row '' '' '' 'RESUMED' 'RESTORE' '' 'FINAL' 'LOSSES,' 'STALL' 'STALL' 'OF A' 'TIME TO' '' '' | sed 's/ *$//'
row '' 'JOB' 'MESH' 'FROM' 'TOOK' 'STEPS' 'LOSS' 'ALL STEPS' 'MEDIAN' 'P99' 'MEMCPY' 'STAGED' 'PERSISTED' 'COMMITTED'
result demo-a fsdp=4
result demo-b fsdp=3
result demo-c dp=2,fsdp=2
raw=$(loss demo-a model) averaged=$(loss demo-a ema.fast)
echo
cat <<END
Losses: the job's loss of every step, before the kill and after it, equals that of the uninterrupted run.
Restore: what ckpt_restore took on the slowest rank. It loads and checks $(mib job_state_bytes).
Stall: what rank 0 spent in ckpt_snapshot and ckpt_guard for one snapshot ($(samples demo-a stall_ns | wc -l) of them in demo-a), and the median as a share
of one memcpy of the rank's $(mib state_bytes). Of so few samples the 99th percentile is the longest. The trainers and ckptd
share $(nproc) cores: during $(value demo-a stall_preempted) of these stalls the kernel gave rank 0's core to another thread. make bench measures one trainer alone.
Average: ckptd kept an average of demo-a's weights beside each of its steps, through kill and resume ($average). Loss of the averaged
model $averaged, of the weights of step $steps $raw: in BF16, on text that is drawn anew. ckptctl export --only ema.fast --dtype BF16 wrote it.
$((SECONDS - begin)) s. To look at the store: $build/ckptctl ls $store
END
if [ -n "$end" ]; then
	echo "${red}A loss differs from the uninterrupted run: see $demo/*.losses$plain"
	exit 1
fi
