#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# storm.sh SEED KILLS [--daemon | --stop] [--device] - SIGKILLs at random instants against a
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
# At the end the job runs to its last step, and every line of losses that any of the runs wrote is, bit for
# bit, that of a run that nobody disturbed. On failure the store, the logs and the seed are kept and named.
# The state lies in memory of ckpt_alloc, in the trainer's own, or in both, from run to run: ckptd copies the one,
# the library the other, and either dies in the middle of it. Every second run goes back in mid-training, again and again.
# With --device most runs have their state on the GPU of tests/fakecuda, on one device or two, all
# of it or every second parameter, changed by kernels on a stream of theirs or on the legacy stream;
# copies take up to some steps, so kills fall into them; what forward counts is VOLATILE, and in
# every second storm the BF16 parameters are DERIVED; every second run restores over NCCL (that of
# tests/fakenccl). The run that nobody disturbs is on the host.
# Every second storm (by seed and kind) keeps two averages. The average of each step that is
# committed at the end is then, bit for bit, what average_check computes from the weights of the
# undisturbed run, along the chain of steps that the step says; and it has begun where the job
# began, since all who resumed went on.
# What is random comes from SEED; instants of kills also depend on the machine, so a seed narrows a failure
# down and does not replay it.
set -u
[ $# -ge 2 ] || { echo "usage: storm.sh SEED KILLS [--daemon | --stop] [--device]" >&2; exit 2; }
RANDOM=$1
seed=$1 kills=$2 victims='' on_device=''
for word in "${@:3}"; do
	case $word in
	--daemon | --stop) victims=$word ;;
	--device) on_device=$word ;;
	*) echo "storm.sh: '$word': --daemon, --stop or --device is needed" >&2; exit 2 ;;
	esac
done
build=$(cd "$(dirname "$0")/../../build" && pwd) || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/storm.XXXXXX") || exit 1
store=$tmp/store socket=$tmp/s job=storm losses=$tmp/losses
mkdir "$store"
: >"$losses"
params=30000
declare -A averages=()
case $victims in
'') one=1 ;;
*) one=0 ;;
esac
if [ $(((seed + one) % 2)) -eq 1 ]; then # the short storms of make test have seed 1: those with --daemon and --stop
	averages=([fast]='constant decay=.99 kahan' [slow]='power sigma_rel=.10')
fi
frozen=$((RANDOM % 2 * 97)) # percent: every second storm has a state whose copy takes as long as a step, so that kills meet it
as=() # what every run declares
if [ -n "$on_device" ]; then
	as=(--counters)
	[ $((RANDOM % 2)) -eq 0 ] || as+=(--derived)
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
		local kept="$build/storm-$seed-$$"
		mv "$tmp" "$kept" && echo "# kept: $kept (store, losses, logs), seed $seed: tests/storm/storm.sh $seed $kills $victims $on_device"
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

# Not in a subshell: its RANDOM would not be ours. All set $picked.
one_in() { # N: true once in so many times
	[ $((RANDOM % $1)) -eq 0 ]
}
pick() { # WORD...
	local i=$((RANDOM % $# + 1))
	picked=${!i}
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

# A run restored step FROM: when it commits, later steps that were there before may be set aside.
goes_back() { # FROM
	local step
	went_back=$1
	fated=()
	for step in "${!doomed[@]}"; do
		fated[$step]=${doomed[$step]}
	done
	doomed=()
	for step in "${!seen[@]}"; do
		[ "$step" -le "$1" ] || doomed[$step]=${seen[$step]}
	done
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
	local resume=$1 steps=$2 back=() more=() name
	shift 2
	: >"$tmp/out"
	# In mid-training it restores the newest step; not where the directory is taken away, for then there may be none.
	[ -n "$misplaced" ] || ! one_in 2 || back=(--go-back-every $((RANDOM % 12 + 2)))
	pick alloc own mixed
	memory=$picked
	for name in "${!averages[@]}"; do
		more+=(--average "$name=${averages[$name]}")
	done
	choose_device
	pick never bounded finish
	policy=$picked
	setsid env "${device_env[@]}" "$build/trainer" "${as[@]}" "${device[@]}" --frozen "$frozen" --memory "$memory" --mesh "$mesh" --steps "$steps" --params "$params" --step-ms "$step_ms" --snapshot-every $((RANDOM % 5 + 1)) \
		--persist-every $((RANDOM % 3 + 1)) --guard "$policy" --root "$store" --job "$job" --socket "$socket" --resume "$resume" \
		--losses "$losses" "${back[@]}" "${more[@]}" "$@" >"$tmp/out" 2>"$tmp/err" &
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

resumed_from() { # sets from: the step, or nothing
	from=$(sed -n 's/^trainer: resumed from [a-z]*, step \([0-9]*\),.*/\1/p' "$tmp/out")
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
	"$build/ckptctl" drain -q -S "$socket" --timeout "${wait_s}s" >/dev/null 2>&1
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
	rm -rf "$tmp/gone"
	seen=() said=() doomed=() fated=()
	newest='' floor=''
	return $rc
}

# ---- averages ----

edges() { # prints "STEP FROM" of all averages that a daemon has begun, by the time of the log lines
	sed -n "s/ .* average: job $job step \([0-9]*\) goes on from step \([0-9]*\).*/ \1 \2/p" "$tmp"/daemon.log "$socket.log" |
		sort -s -k1,1 | cut -d' ' -f2-
}

average_rows() { # NAME: of each committed step a line for average_check
	local name=$1 step path state
	mkdir -p "$tmp/models"
	while read -r step _ path; do
		state=$("$build/ckptctl" ema --json "$path" | tr '{' '\n' |
			sed -n 's/^"name":"'"$name"'",.*"updates":\([0-9]*\),"since_step":\([0-9]*\),"last_step":\([0-9]*\),.*"history":"\([0-9a-f]*\)".*/\2 \1 \3 \4/p')
		"$build/ckptctl" restore -q "$path" "$tmp/models/$name-$step" --only "ema.$name" >"$tmp/restore" 2>&1 || cat "$tmp/restore" >&2
		echo "$step ${state:-no state} $tmp/models/$name-$step/model.safetensors"
	done <"$tmp/listed"
}

# Adds to why; 0 when all are those of the undisturbed run.
averages_are_right() { # NAME
	local rc=0 since
	average_rows "$1" >"$tmp/rows.$1"
	why=$("$build/average_check" "$tmp/masters" "$params" "${averages[$1]}" "$tmp/edges" <"$tmp/rows.$1" 2>&1) || rc=1
	[[ ${why##*$'\n'} == "$(wc -l <"$tmp/listed") steps, 0 wrong" ]] || rc=1
	since=$(cut -d' ' -f2 "$tmp/rows.$1" | sort -nu | tr '\n' ' ')
	[[ $since != *' '*' '* ]] || { why+=$'\n'"it began anew: at steps $since" && rc=1; }
	return $rc
}

# ---- the storm ----

echo "# storm: seed $seed, $kills kills $victims $on_device"
if [ -z "$victims" ]; then
	"$build/ckptd" --socket "$socket" 2>"$tmp/daemon.log" &
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
	[ -z "$from" ] || goes_back "$from"
	inspect || good=1
	cp "$tmp/err" "$tmp/err.$n"
	cp "$tmp/out" "$tmp/out.$n"
	tap "$good" "kill $n: $mesh${device[1]:+, ${device[1]}, ${device[3]} stream${device[4]:+, NCCL}, ${device_env[0]#*=} GB/s}, resume $resume${from:+ (step $from)}, $how${misplaced:+, directory $misplaced}: ${#seen[@]} steps listed, all verify$([ "$rewound" -eq 0 ] || echo ', later ones set aside')"
	[ "$failures" -eq 0 ] || break
done

# ---- calm ----

if [ "$failures" -eq 0 ]; then
	last=$(awk '$1 > m { m = $1 } END { print m + 10 }' "$losses")
	mesh=fsdp=2
	misplaced=''
	launch latest "$last"
	wait_s=300 collect # a run whose guards tore every copy may have left it many steps
	why="status $status: $(tail -5 "$tmp/err")"
	tap "$status" "left alone, the job resumes and commits its last step, $last"
	why=''
	inspect
	tap $? "every step that was ever committed is listed and verifies"
	why="the newest is ${newest:-none}"
	[ "$newest" = "$last" ]
	tap $? "the last step is the newest"
	masters=()
	[ ${#averages[@]} -eq 0 ] || masters=(--masters "$tmp/masters")
	why=$("$build/trainer" --no-checkpoint --mesh fsdp=1 --steps "$last" --params "$params" --losses "$tmp/calm" "${masters[@]}" 2>&1)
	tap $? "a run that nobody disturbs trains to step $last"
	why=$(awk 'NR == FNR { calm[$1] = $0; next }
		$0 != calm[$1] { print "step " $1 ": " $0 ", undisturbed " calm[$1]; n++ }
		{ have[$1] = 1 }
		END {
			for (s in calm) if (!(s in have)) { print "step " s " has no loss"; n++ }
			exit n > 0
		}' "$tmp/calm" "$losses")
	tap $? "all $(wc -l <"$losses") losses of $kills interrupted runs are those of the undisturbed run, bit for bit"
	listed | sort -n >"$tmp/listed"
	edges >"$tmp/edges"
	for name in "${!averages[@]}"; do
		averages_are_right "$name"
		tap $? "the average $name of all $(wc -l <"$tmp/listed") steps is that of the undisturbed run, bit for bit: along $(wc -l <"$tmp/edges") updates"
	done
fi
echo "1..$tap_n"
[ "$failures" -eq 0 ]
