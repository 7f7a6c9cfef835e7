#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# storm.sh SEED KILLS [--daemon | --stop] [--device] [--threads] - SIGKILLs at random instants against a
# training job that is resumed each time, on another mesh; with --daemon the daemon is among the
# victims; with --stop, too, and before it dies whoever it is (the daemon, a rank, all ranks) stands
# still for a while (SIGSTOP), goes on or does not. Between kills and in mid-training the job's
# directory is moved away, swapped with another one, replaced by an empty one or by a link, and
# comes back; or it is removed, and what the daemon has staged is rescued elsewhere. Prints TAP.
# After each kill:
#
#   every step that ckptctl ls lists verifies, to the last byte;
#   no step that was once listed, or that a daemon called committed, is missing, but where the job went back
#   to an older step by --resume step:N and committed again;
#   with --resume latest the job goes on from no older step than the newest one listed;
#   a directory that was taken away is as it was, whoever was writing, and so is an empty one in its place;
#   a job that is given another directory goes on from the newest step in that one.
#
# At the end the job runs to its last step. Then, and each time that its directory is given up, storm_check
# compares every step in it, also those that were set aside, with a run that nobody disturbed and that has
# nothing to do with ckptd: every element of every tensor, of the averages and of the blobs, and every line
# of losses, bit for bit. Last, a run commits a few steps with one wrong bit each, in a tensor of each kind,
# and storm_check must find exactly these. On failure the store, the logs and the seed are kept and named.
#
# All at once: the state lies in memory of ckpt_alloc, in the trainer's own, or in both, from run to run:
# ckptd copies the one, the library the other, and either dies in the middle of it; in most runs it moves to
# other memory every few steps, and what it leaves is overwritten or unmapped. Tensors are cut in rows or in
# boxes. The BF16 parameters are DERIVED in every second run. The base is CONST, or is trained, frozen and
# trained again, each for some steps. What forward counts is VOLATILE. Every few steps some of the state is
# NaN or infinite. Every second run goes back in mid-training, again and again, to the newest step or to an
# older one, and from there to the newest or on. Three averages are kept. Each must have begun where the job
# began, since all who resumed went on.
# With --device most runs have their state on the GPU of tests/fakecuda, on one device or two, all
# of it or every second parameter, changed by kernels on a stream of theirs or on the legacy stream;
# copies take up to some steps, so kills fall into them; every second run restores over NCCL (that of
# tests/fakenccl). With --threads ckptd writes by threads instead of io_uring, into which sanitizers do not
# see. BUILD says where the programs are (build), as in BUILD=build/asan after make V=asan all; a report of
# a sanitizer is a failure.
# What is random comes from SEED; instants of kills also depend on the machine, so a seed narrows a failure
# down and does not replay it.
set -u
[ $# -ge 2 ] || { echo "usage: storm.sh SEED KILLS [--daemon | --stop] [--device] [--threads]" >&2; exit 2; }
RANDOM=$(cksum <<<"$1 ${*:3}" | cut -d' ' -f1)
again="tests/storm/storm.sh $*"
seed=$1 kills=$2 victims='' on_device='' threads=''
for word in "${@:3}"; do
	case $word in
	--daemon | --stop) victims=$word ;;
	--device) on_device=$word ;;
	--threads) threads=$word ;;
	*) echo "storm.sh: '$word': --daemon, --stop, --device or --threads is needed" >&2; exit 2 ;;
	esac
done
here=$(cd "$(dirname "$0")/../../build" && pwd) || exit 1
build=$(cd "${BUILD:-$here}" && pwd) || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/storm.XXXXXX") || exit 1
store=$tmp/store socket=$tmp/s job=storm losses=$tmp/losses
mkdir "$store"
: >"$losses"
# Not in a subshell: its RANDOM would not be ours. All set $picked.
one_in() { # N: true once in so many times
	[ $((RANDOM % $1)) -eq 0 ]
}
pick() { # WORD...
	local i=$((RANDOM % $# + 1))
	picked=${!i}
}

# What all runs have, and storm_check is told.
nan_every=$((RANDOM % 3 * 2 + 7))
as=(--params 30000 --counters --nan-every "$nan_every" --average 'fast=constant decay=.99 kahan base.*=copy')
case $((RANDOM % 3)) in
0) as+=(--average 'b=power gamma=6.94 base.*=copy') ;;
1) as+=(--average 'b=timm decay=.999 warmup=1 base.*=copy *.bias=(constant decay=.9) kind.*=skip') ;;
2) as+=(--average 'b=uniform base.*=copy') ;;
esac
case $((RANDOM % 3)) in
0) as+=(--average 'c=diffusers decay=.99 gate_loss=4.5 base.*=copy emb*=(uniform)') ;;
1) as+=(--average 'c=zero decay=.98 source=param base.*=skip fc2.*=copy') ;;
2) as+=(--average 'c=halflife fraction=.2 kahan base.*=copy') ;;
esac
thaw_every=0
if one_in 6; then # a state whose copy takes as long as a step, so that kills meet it
	as+=(--frozen 97)
else
	thaw_every=$((RANDOM % 3 * 4 + 10))
	as+=(--frozen 50 --thaw-every "$thaw_every")
fi
step_ms=4 # so that the run that nobody disturbs is short
wait_s=30 # bound of every wait
meshes=(fsdp=4 fsdp=3 'dp=2,fsdp=2' fsdp=2 fsdp=1 'fsdp=2,dp=2' dp=3 dp=2)
tap_n=0 failures=0 trainer='' daemon_pids=() misplaced=''
exec 2>"$tmp/shell.err" # where the shell tells whom we killed
declare -A seen=()   # step -> seq, of steps that were listed
declare -A said=()   # step -> 1, of steps that a daemon called committed
declare -A doomed=() # step -> seq, of steps that may be set aside: the last run that restored went back to an earlier one,
declare -A fated=()  # or the one before, whose commit may have been under way when the last one began
declare -A heard=()  # log -> lines of it that were read
went_back=           # the step that the last run restored, where one did

cleanup() {
	exec 2>/dev/null
	[ -z "$trainer" ] || kill -KILL -- "-$trainer" 2>/dev/null
	daemons
	[ ${#daemon_pids[@]} -eq 0 ] || kill -KILL "${daemon_pids[@]}" 2>/dev/null
	if [ "$failures" -eq 0 ]; then
		rm -rf "$tmp"
	else
		# A test runner removes its temporary directories: this one is wanted.
		local kept="$here/storm-$seed-$$"
		mv "$tmp" "$kept" && echo "# kept: $kept (store, losses, logs), seed $seed: $again"
	fi
}
trap cleanup EXIT
trap 'failures=1; exit 1' INT TERM

tap() { # RESULT SENTENCE: a failure is told with what $why says
	tap_n=$((tap_n + 1))
	if [ "$1" -eq 0 ]; then
		echo "ok $tap_n - $2"
	else
		echo "not ok $tap_n - $2"
		sed 's/^/# /' <<<"$why"
		failures=$((failures + 1))
	fi
}

nap() { # MILLISECONDS
	sleep "$(printf '%d.%03d' $(($1 / 1000)) $(($1 % 1000)))"
}

daemons() { # sets daemon_pids: those that serve our socket, whoever started them
	local pid
	daemon_pids=()
	while read -r pid; do
		pid=${pid#/proc/}
		[[ $(tr '\0' ' ' 2>/dev/null <"/proc/${pid%%/*}/cmdline") == *ckptd\ *"$socket"* ]] && daemon_pids+=("${pid%%/*}")
	done < <(grep -lasF "$socket" /proc/[0-9]*/cmdline)
}

# ---- what must hold ----

listed() { # prints "STEP SEQ PATH" of each committed step
	"$build/ckptctl" ls --json "$store" | tr '{' '\n' |
		sed -n 's/.*"path":"\([^"]*\)".*"step":\([0-9]*\).*"seq":\([0-9]*\).*/\2 \3 \1/p'
}

# Reads what daemons have said into said, each line once. Their lines are whole: one write each.
hear() {
	local log line step
	for log in "$tmp/daemon.log" "$socket.log"; do
		[ -e "$log" ] || continue
		while read -r line; do
			heard[$log]=$((${heard[$log]:-0} + 1))
			[[ $line =~ job\ $job\ step\ ([0-9]+)\ committed ]] || continue
			step=${BASH_REMATCH[1]}
			said[$step]=1
			unset "doomed[$step]" "fated[$step]"
		done < <(tail -n "+$((${heard[$log]:-0} + 1))" "$log")
	done
}

# What daemons have said of another directory in the job's place: nothing of it is the job's.
overhear() {
	local log
	for log in "$tmp/daemon.log" "$socket.log"; do
		[ ! -e "$log" ] || heard[$log]=$(wc -l <"$log")
	done
}

# Sets newest, and floor: the newest that nothing may set aside. Adds to why; 0 when all is well.
inspect() {
	local step seq list out bad=0
	declare -A now=()
	newest='' floor=''
	hear # before the list: what was said by now must be in it
	list=$(listed) || { why+="ckptctl ls failed"; return 1; }
	while read -r step seq _; do
		[ -n "$step" ] || continue
		now[$step]=$seq
		[ "${doomed[$step]:-}" != its ] || doomed[$step]=$seq
		[ "${doomed[$step]:-$seq}" = "$seq" ] || unset "doomed[$step]"
		[ "${fated[$step]:-$seq}" = "$seq" ] || unset "fated[$step]"
		[ "${newest:--1}" -ge "$step" ] || newest=$step
		[ "${floor:--1}" -ge "$step" ] || [ -n "${doomed[$step]:-}${fated[$step]:-}" ] || floor=$step
	done <<<"$list"
	for step in "${!seen[@]}" "${!said[@]}"; do
		[ -z "${now[$step]:-}" ] || continue
		if [ -n "${doomed[$step]:-}${fated[$step]:-}" ]; then
			unset "seen[$step]" "said[$step]"
			rewound=1
			continue
		fi
		[ -n "${seen[$step]:-}${said[$step]:-}" ] || continue
		# Of the run before: ckptd wrote it when its directory was back, while a new run had gone back already.
		if [ -z "${seen[$step]:-}" ] && [ "$step" -gt "${went_back:-$step}" ] &&
			compgen -G "$store/$job/.old-$(printf %012d "$step")-*" >"$tmp/aside"; then
			unset "said[$step]"
			rewound=1
			continue
		fi
		why+="step $step was committed and is not listed any more"$'\n'
		bad=1
	done
	for step in "${!now[@]}"; do
		seen[$step]=${now[$step]}
	done
	out=$("$build/ckptctl" verify --data --all "$store" 2>&1) || {
		why+="verify --data --all ended with $?:"$'\n'"$out"
		bad=1
	}
	return $bad
}

# A run restored step FROM, and none below it: when it commits, later steps may be set aside: those that were
# there before, or, with OFTEN, also those that it made.
goes_back() { # FROM [OFTEN]
	local step
	went_back=$1
	fated=()
	for step in "${!doomed[@]}"; do
		fated[$step]=${doomed[$step]}
	done
	doomed=()
	for step in "${!seen[@]}" ${2:+"${!said[@]}"}; do
		[ "$step" -le "$1" ] || doomed[$step]=${seen[$step]:-its}
	done
}

went_anywhere() { # where resumed_from says
	local lowest
	lowest=$(printf '%s\n' "$from" "$older" | grep . | sort -n | head -1)
	[ -z "$lowest" ] || goes_back "$lowest" "${older:+often}"
}

# ---- the job ----

# Sets device, the options, and device_env. Of four runs of a storm with --device one is on the
# host.
choose_device() {
	device=() device_env=()
	[ -n "$on_device" ] && ! one_in 4 || return 0
	pick fake fake fake:0,1
	device=(--device "$picked")
	pick own legacy
	device+=(--stream "$picked")
	pick 0 .05 .1 .4 # GB/s: the state that changes is .4 MB
	device_env=("FAKECUDA_GBPS=$picked")
	one_in 2 || device+=(--nccl)
	one_in 2 || device_env+=("FAKECUDA_SEED=$((RANDOM + 1))")
}

launch() { # RESUME STEPS OPTION...: in a process group of its own
	local resume=$1 steps=$2 more=() prefix=()
	shift 2
	: >"$tmp/out"
	# In mid-training it restores the newest step; not where the directory is taken away, for then there may be none.
	[ -n "$misplaced" ] || ! one_in 2 || more=(--go-back-every $((RANDOM % 12 + 2)))
	[ ${#more[@]} -eq 0 ] || ! one_in 2 || more+=(--go-back-to older)
	! one_in 2 || more+=(--derived)
	one_in 3 || more+=(--move-every $((RANDOM % 7 + 1)))
	pick shards shards boxes
	more+=(--layout "$picked")
	pick alloc own mixed
	more+=(--memory "$picked")
	choose_device
	[ -z "$threads" ] || prefix=("$here/without" io_uring --) # for a daemon that the library starts
	pick never bounded finish
	policy=$picked
	setsid env "${device_env[@]}" "${prefix[@]}" "$build/trainer" "${as[@]}" "${device[@]}" --restart-wait 100 --mesh "$mesh" --steps "$steps" --step-ms "$step_ms" \
		--snapshot-every $((RANDOM % 5 + 1)) \
		--persist-every $((RANDOM % 3 + 1)) --guard "$policy" --root "$store" --job "$job" --socket "$socket" --resume "$resume" \
		--losses "$losses" "${more[@]}" "$@" >"$tmp/out" 2>"$tmp/err" &
	trainer=$!
}

collect() { # waits for the job's end, in bounded time; sets status
	local i line
	for ((i = 0; i < wait_s * 50; i++)); do
		read -r line 2>/dev/null <"/proc/$trainer/stat" || break
		[[ $line != *") Z "* ]] || break
		sleep 0.02
	done
	kill -KILL -- "-$trainer" 2>/dev/null
	status=0
	wait "$trainer" 2>/dev/null || status=$?
	trainer=''
}

kill_job() { # sets how
	local ranks=()
	read -ra ranks <"/proc/$trainer/task/$trainer/children"
	pick "the whole group" "the parent" "one rank"
	how=$picked
	[ ${#ranks[@]} -gt 0 ] || how="the parent"
	case $how in
	"the whole group") kill -KILL -- "-$trainer" ;;
	"the parent") kill -KILL "$trainer" ;;
	"one rank")
		pick "${ranks[@]}"
		kill -KILL "$picked"
		;;
	esac
	collect
}

# A daemon that stutters copies while the trainer goes on: that is how copies are torn.
stutter() { # MILLISECONDS, about
	local left=$1
	daemons
	while [ "$left" -gt 0 ] && [ ${#daemon_pids[@]} -gt 0 ]; do
		kill -STOP "${daemon_pids[@]}"
		nap 12
		kill -CONT "${daemon_pids[@]}"
		nap 3
		left=$((left - 18))
	done
}

# Somebody stands still, several times; the last time perhaps until a kill.
standstill() { # TIMES
	local i ranks=() who=()
	for ((i = 0; i < $1; i++)); do
		daemons
		read -ra ranks <"/proc/$trainer/task/$trainer/children"
		pick daemon rank ranks
		case $picked in
		daemon) who=("${daemon_pids[@]}") ;;
		rank) [ ${#ranks[@]} -eq 0 ] || { pick "${ranks[@]}" && who=("$picked"); } ;;
		ranks) who=("${ranks[@]}") ;;
		esac
		[ ${#who[@]} -gt 0 ] || continue
		kill -STOP "${who[@]}"
		if one_in 40; then
			nap 6000 # longer than after which a daemon counts as gone
		else
			nap $((RANDOM % 200 + 5))
		fi
		[ "$i" -eq $(($1 - 1)) ] && one_in 3 || kill -CONT "${who[@]}"
	done
}

kill_daemon() {
	daemons
	[ ${#daemon_pids[@]} -eq 0 ] || kill -KILL "${daemon_pids[@]}" 2>/dev/null
}

# After the daemon's death training goes on, and a step later than all listed ones is committed; or
# copies are torn by guards.
goes_on() {
	local before=${newest:--1} lines i
	lines=$(wc -l <"$losses")
	for ((i = 0; i < wait_s * 20; i++)); do
		kill -0 "$trainer" 2>/dev/null || { why="the trainer ended"; return 1; }
		newest=$(listed | sort -n | tail -1 | cut -d' ' -f1)
		[ "${newest:--1}" -le "$before" ] || [ "$(wc -l <"$losses")" -le "$lines" ] || return 0
		sleep 0.05
	done
	why="no step after $before was committed in $wait_s s"
	# A guard that does not wait gives up what a busy machine has not copied in time: then
	# training alone has gone on.
	[ "$policy" != finish ] && [ "$(wc -l <"$losses")" -gt "$lines" ] && tail -n 1 "$socket.log" | grep -q 'guard ended the copy'
}

# Sets from: the step, or nothing; older: the lowest that it went back to, where it did not want the newest.
resumed_from() {
	from=$(sed -n 's/^trainer: resumed from [a-z]*, step \([0-9]*\),.*/\1/p' "$tmp/out")
	older=$(sed -n 's/^trainer: went back from .* to older step \([0-9]*\)$/\1/p' "$tmp/out" | sort -n | head -1)
}

# ---- the directory ----

away='' # where the job's directory is; '': in its place
names_in() { # DIRECTORY: all but what was begun, which is the daemon's to clear away
	(cd "$1" && find . -mindepth 1 -maxdepth 2 ! -path './.tmp-*' ! -path './.trash-*' 2>/dev/null | sort)
}

# What the daemon was about to do when the directory went, it still does there.
names_settle() { # DIRECTORY; sets had
	local i now
	had=$(names_in "$1")
	for ((i = 0; i < 50; i++)); do
		nap 40
		now=$(names_in "$1")
		[ "$now" != "$had" ] || return 0
		had=$now
	done
}

take_away() { # moved | empty | link | swapped; sets away, had
	[ -d "$store/$job" ] || return 1
	mv "$store/$job" "$tmp/away" || return 1
	away=$tmp/away
	case $1 in
	empty) mkdir "$store/$job" ;;
	link) ln -s "$tmp/away" "$store/$job" ;;
	swapped) mv "$tmp/other" "$store/$job" ;;
	esac
	names_settle "$away"
}

# Adds to why; 0 when nothing was written to what was away.
bring_back() { # moved | empty | link | swapped
	local bad=0
	[ -n "$away" ] || return 0
	if [ "$(names_in "$away")" != "$had" ]; then
		why+="the directory that was away ($1) had $had and has $(names_in "$away")"$'\n'
		bad=1
	fi
	case $1 in
	moved) [ ! -e "$store/$job" ] || { why+="a launch that lives made another directory"$'\n' && bad=1; } ;;
	empty) rmdir "$store/$job" || { why+="written to another directory: $(ls -A "$store/$job")"$'\n' && bad=1; } ;;
	link) rm "$store/$job" ;;
	swapped) rm -rf "${store:?}/$job" ;;
	esac
	mv "$away" "$store/$job"
	away=''
	return $bad
}

trains() { # bounded: it has some losses more than now, so its ranks are attached
	local lines i
	lines=$(wc -l <"$losses")
	for ((i = 0; i < wait_s * 50; i++)); do
		kill -0 "$trainer" 2>/dev/null || return 1
		[ "$(wc -l <"$losses")" -le $((lines + 8)) ] || return 0
		nap 20
	done
	return 1
}

settled() { # the daemon, if one lives, has written what it has
	"$build/ckptctl" drain --all -q -S "$socket" --timeout "${wait_s}s" >/dev/null 2>&1
}

# Another directory has the job's name for one launch: a copy, of which the last step is missing.
visit() {
	local there
	settled
	hear
	listed | sort -n >"$tmp/listed"
	[ "$(wc -l <"$tmp/listed")" -gt 1 ] || return 0
	rm -rf "$tmp/other"
	cp -a "$store/$job" "$tmp/other"
	rm -rf "$tmp/other/step-$(printf %012d "$(tail -1 "$tmp/listed" | cut -d' ' -f1)")"
	there=$(tail -2 "$tmp/listed" | head -1 | cut -d' ' -f1)
	take_away swapped || return 0
	launch latest 1000000
	trains
	kill_job
	resumed_from
	settled
	overhear
	all_is_right "$store" "$job" || { bring_back swapped; return 1; }
	bring_back swapped || return 1
	[ "${from:-}" = "$there" ] && return
	why+="in another directory it went on from ${from:-nothing}, and $there is the newest there"$'\n'
	return 1
}

# It is removed for good: the job begins anew, and what the daemon has in memory is rescued.
removed() {
	local rc=0
	[ -d "$store/$job" ] || return 0
	mv "$store/$job" "$tmp/gone"
	rm -rf "$tmp/rescue"
	"$build/ckptctl" drain "$job" --to "$tmp/rescue" -q -S "$socket" --timeout "${wait_s}s" >"$tmp/drain" 2>&1 || rc=$?
	case $rc in
	0) [ -z "$(ls -A "$tmp/rescue")" ] || "$build/ckptctl" verify --data --all "$tmp/rescue" >>"$tmp/drain" 2>&1 || rc=99 ;;
	10 | 14) rc=0 ;; # no daemon lives, or a new one, which has nothing
	esac
	[ "$rc" -eq 0 ] || why+="what was staged was not rescued ($rc): $(cat "$tmp/drain")"$'\n'
	hear
	all_is_right "$tmp" gone || rc=98
	edges_past=$(edges | wc -l)
	rm -rf "$tmp/gone"
	seen=() said=() doomed=() fated=()
	newest='' floor=''
	return $rc
}

# ---- what the steps hold ----

# Prints "STEP FROM" of all averages that a daemon has begun, by the time of the log lines. "STEP STEP": they had to begin anew,
# because the daemon died while the directory was away, with averages in memory alone, and the next one says so.
edges() {
	cat "$tmp/daemon.log" "$socket.log" 2>"$tmp/absent" | sort -s -k1,1 | grep -aF "job $job" | awk '
		/ all [0-9]* ranks attached, generation / { if ($NF != launch) away = 0; launch = $NF }
		/ could not be written: the directory of job / { away = 1 }
		/ are lost, and begin anew/ { lost = away }
		/ average: job .* step [0-9]* goes on from step / { for (i = 1; i < NF; i++) if ($i == "step") { print $(i + 1), from(i); break } }
		/ average: job .* step [0-9]* begins anew/ && lost { for (i = 1; i < NF; i++) if ($i == "step") print $(i + 1), $(i + 1); lost = 0 }
		function from(i) { while ($(++i) != "step"); return $(i + 1) }'
}
edges_past=0 # of those that a job began whose directory is gone

# Of a directory of a job. Adds to why; sets summary: what was compared.
all_is_right() { # ROOT JOB [OPTION...]
	local out rc=0
	[ -s "$losses" ] || return 0
	last=$(awk '$1 > m { m = $1 } END { print m + 0 }' "$losses")
	edges | tail -n "+$((edges_past + 1))" >"$tmp/edges"
	out=$("$here/storm_check" "$tmp/edges" --root "$1" --job "$2" --mesh fsdp=1 --steps "$last" "${as[@]}" "${@:3}" 2>&1) || rc=1
	summary=${out##*$'\n'}
	[ "$rc" -eq 0 ] || why+=$out$'\n'
	return $rc
}

# Is what storm_check has said in why what --wrong did? One wrong bit in each of these; averages keep the last two.
bites() {
	local found want
	found=$(sed -n 's/^\(step [0-9]*: .*\): element.*/\1/p' <<<"$why" | sort)
	want="step $((end + 1)): optim/emb.weight.exp_avg_sq
step $((end + 2)): base/base.weight
step $((end + 3)): model/out.bias
step $((end + 4)): model/fc1.weight
step $((end + 4)): optim/fc1.weight.master"
	[ "$(grep -v ': ema\.' <<<"$found")" = "$want" ] &&
		[ "$(grep -cE "^step ($((end + 4))|$((end + 5))): ema.fast/fc1.weight$" <<<"$found")" -eq 2 ] &&
		! grep ': ema\.' <<<"$found" | grep -qvE "^step ($((end + 3))|$((end + 4))|$((end + 5))): ema\.[a-z.]*/(out.bias|fc1.weight)$"
}

# ---- the storm ----

echo "# storm: seed $seed, $kills kills $victims $on_device $threads, trainer ${as[*]}"
if [ -z "$victims" ]; then
	"$build/ckptd" ${threads:+--engine threads} --socket "$socket" 2>"$tmp/daemon.log" &
	disown
fi
newest='' floor=''
n=0
while [ "$n" -lt "$kills" ]; do
	n=$((n + 1))
	pick "${meshes[@]}"
	mesh=$picked
	resume=latest
	why=''
	good=0
	rewound=0
	misplaced=''
	case $((n % 8)) in # each of them also in a short storm
	2 | 5) pick moved empty link && misplaced=$picked ;;
	3) visit || good=1 ;;
	4) removed || good=1 ;;
	esac
	if one_in 8 && [ ${#seen[@]} -gt 1 ]; then
		pick "${!seen[@]}"
		[ -n "${doomed[$picked]:-}${fated[$picked]:-}" ] || resume=step:$picked
	elif one_in 6 && [ -n "$newest" ]; then
		resume=disk
	fi
	if [ "$resume" != latest ]; then
		nap 300 # what a dead launch staged is written: all that may be set aside is listed
		inspect || good=1
	fi
	least=$floor
	launch "$resume" 1000000
	nap $((RANDOM % 400 + 20))
	if [ -n "$misplaced" ] && trains && take_away "$misplaced"; then
		nap $((RANDOM % 300 + 20))
		if one_in 2; then # else it is away when the kill comes
			bring_back "$misplaced" || good=1
			trains
		fi
	fi
	if [ "$victims" = --stop ]; then
		standstill $((RANDOM % 4 + 1))
	elif one_in 2; then
		stutter $((RANDOM % 400 + 20))
	fi
	what=job
	if [ -n "$victims" ]; then
		pick job daemon both both
		what=$picked
	fi
	case $what in
	job) kill_job ;;
	daemon)
		how="the daemon alone"
		kill_daemon
		kill -CONT -- "-$trainer" # of a standstill
		nap $((RANDOM % 300)) # a daemon that is new may find it away
		bring_back "$misplaced" || good=1
		goes_on || good=1
		kill -KILL -- "-$trainer" 2>/dev/null
		collect
		;;
	both)
		if one_in 2; then
			kill_daemon
			nap $((RANDOM % 30))
			kill_job
			how="the daemon, then $how"
		else
			kill_job
			nap $((RANDOM % 30))
			kill_daemon
			how="$how, then the daemon"
		fi
		;;
	esac
	daemons
	[ "$victims" != --stop ] || [ ${#daemon_pids[@]} -eq 0 ] || kill -CONT "${daemon_pids[@]}"
	bring_back "$misplaced" || good=1
	resumed_from
	if [ "$status" -ne 137 ]; then
		why+="the job was not killed but ended with $status: $(tail -5 "$tmp/err")"$'\n'
		good=1
	fi
	if [ "$resume" = latest ] && [ -n "$from" ] && [ "$from" -lt "${least:-0}" ]; then
		why+="--resume latest went back to step $from, and $least was committed"$'\n'
		good=1
	fi
	hear
	went_anywhere
	inspect || good=1
	cp "$tmp/err" "$tmp/err.$n"
	cp "$tmp/out" "$tmp/out.$n"
	tap "$good" "kill $n: $mesh${device[1]:+, ${device[1]}, ${device[3]} stream${device[4]:+, NCCL}, ${device_env[0]#*=} GB/s}, resume $resume${from:+ (step $from)}${older:+, back to $older}, $how${misplaced:+, directory $misplaced}: ${#seen[@]} steps listed, all verify$([ "$rewound" -eq 0 ] || echo ', later ones set aside')"
	[ "$failures" -eq 0 ] || break
done

# ---- calm ----

if [ "$failures" -eq 0 ]; then
	# A step of NaNs, behind which the base stays as it is for a while.
	last=$(awk '$1 > m { m = $1 } END { print m + 10 }' "$losses")
	while [ $((last % nan_every)) -ne 0 ] ||
		{ [ "$thaw_every" -ne 0 ] && [ $(((last + 1) / thaw_every % 2 + (last + 5) / thaw_every % 2)) -ne 0 ]; }; do
		last=$((last + 1))
	done
	end=$last
	mesh=fsdp=2
	misplaced=''
	launch latest "$last"
	wait_s=300 collect # a run whose guards tore every copy may have left it many steps
	why="status $status: $(tail -5 "$tmp/err")"
	tap "$status" "left alone, the job resumes and commits its last step, $last"
	why=''
	resumed_from
	hear
	went_anywhere
	inspect
	tap $? "every step that was ever committed is listed and verifies"
	why="the newest is ${newest:-none}"
	[ "$newest" = "$last" ]
	tap $? "the last step is the newest"
	why=''
	all_is_right "$store" "$job" --losses "$losses"
	tap $? "it is all as in a run that nobody disturbs, bit for bit: $summary"
	mesh=dp=2,fsdp=2
	on_device=''
	launch latest "$((end + 5))" --go-back-every 1000000 --layout shards --memory mixed --move-every 3 --guard finish --derived --wrong
	wait_s=300 collect
	why="status $status: $(tail -5 "$tmp/err")"
	tap "$status" "a run commits four steps with a wrong bit each, and a right one"
	why=''
	all_is_right "$store" "$job"
	bites
	tap $? "these bits are found, and what the averages have of them, and nothing else"
	why=$(grep -asE 'Sanitizer|runtime error' "$tmp"/err* "$tmp/daemon.log" "$socket.log")
	[ -z "$why" ]
	tap $? "no sanitizer has reported anything"
fi
echo "1..$tap_n"
[ "$failures" -eq 0 ]
