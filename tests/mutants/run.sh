#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - every planted mistake (ckpt/base/mutants.h) against the tests that should find it (tests/mutants/table).
# Called by `make mutants`, `make torture` and tests/mutants/test_mutants.sh. Builds what it runs (V=mutant).
#
#   tests/mutants/run.sh ALL | FAST | THIRD | NAME...   a table; exit 1 when a mistake is not found
#   tests/mutants/run.sh --tap ...                TAP instead, the table behind "#| "
#   tests/mutants/run.sh --programs SET B O       what the makefile has to build for them
#
# THIRD is every third of FAST: which, says SEED, or the day, so that three days have them all.
# A mistake is found by the first of its tests that fails, dies or does not end. Each of these tests also
# runs once without a mistake, and must pass: a test that always fails finds nothing. What a test may take
# is MUTANT_SECONDS (60); MUTANT_JOBS (2) run at once.
set -u
cd "$(dirname "$0")/../.." || exit 1
jobs=${MUTANT_JOBS:-2}
limit=${MUTANT_SECONDS:-60}
build=${MUTANT_BUILD:-build}
list=ckpt/base/mutants.h table=tests/mutants/table

# NAME SET TEST... of those that are asked for.
chosen() { # ALL | FAST | THIRD | NAME...
	case ${1:-ALL} in
	ALL) sed '/^#/d; /^[[:space:]]*$/d' $table ;;
	FAST) awk '/^[^#]/ && $2 == "fast"' $table ;;
	THIRD) awk -v of="${SEED:-$(date +%-j)}" '/^[^#]/ && $2 == "fast" && (NR + of) % 3 == 0' $table ;;
	*)
		local name
		for name; do
			grep -E "^$name +" $table || echo "$name none"
		done
		;;
	esac
}
step_of() { # NAME: what the mistake takes away
	sed -n "s/^[[:space:]]*X($1, [a-z]*, \"\\(.*\\)\").*/\\1/p" $list
}
program_of() { # TEST
	local name=${1#*:}
	case $1 in
	unit:*) echo "$build/obj/mutant/unit/${name%%@*}" ;;
	*) echo "$build/mutant/ckptd" ;;
	esac
}

if [ "${1:-}" = --programs ]; then
	read -ra set <<<"$2"
	chosen "${set[@]}" | awk -v b="$3" -v o="$4" '{
		for (i = 3; i <= NF; i++) {
			n = $i; sub(/^unit:/, "", n); sub(/@.*/, "", n)
			if ($i ~ /^unit:/) print o "/unit/" n
			else print b "/ckptd " b "/ckptctl " b "/trainer " b "/libckpt.so"
		}
	}' | sort -u
	exit
fi

tap=0
[ "${1:-}" != --tap ] || { tap=1 && shift; }
[ $# -gt 0 ] || set -- ALL
unset MAKEFLAGS MAKELEVEL CKPT_MUTANT
make -s --no-print-directory "-j$(nproc)" V=mutant mutant-rigs "MUTANTS=$*" >&2 || { echo "Bail out! the mistakes do not build"; exit 1; }

tmp=$(mktemp -d "${TMPDIR:-/tmp}/mXXX") || exit 1 # short: sockets lie in it
logs=$(mktemp -d "${TMPDIR:-/tmp}/mXXX") || exit 1
memory=$tmp
[ ! -w /dev/shm ] || memory=$(mktemp -d /dev/shm/ckpt-mXXXXXX) || exit 1
chmod 711 "$tmp" "$memory" # some tests become another user for a while
declare -A running=()
# shellcheck disable=SC2317,SC2329 # called by the trap
finish() {
	local pid
	for pid in "${!running[@]}"; do
		kill -KILL -- "-$pid" 2>/dev/null
	done
	reap "$tmp" && reap "$memory"
	rm -rf "$tmp" "$memory" "$logs"
}
# Daemons that a test started and that left its session.
reap() { # DIR
	local pid
	for pid in $(grep -lasF "$1/" /proc/[0-9]*/cmdline | tr -dc '0-9\n'); do
		tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qF "$1/" && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != grep ] &&
			kill -KILL "$pid" 2>/dev/null
	done
	true
}
trap finish EXIT
trap 'exit 130' INT TERM

# One test with a mistake, or with none (""): prints "found|holds|skips SECONDS WHY". Ends at the first case that fails.
hold() { # NAME TEST
	local name=${2#*:} cmd dir log pid status=0 begun now why='' result=holds cases
	dir=$(mktemp -d "$tmp/XXX") log=$(mktemp "$logs/XXXXXX")
	case $2 in
	unit:*) cmd=("$(program_of "$2")" -j1) ;;
	*) cmd=(bash "${name%%@*}") ;;
	esac
	case $2 in
	unit:store_*) rmdir "$dir" && dir=$(mktemp -d "$memory/XXX") ;;
	esac
	case $name in
	*@*) cmd+=("${name#*@}") ;;
	esac
	begun=${EPOCHREALTIME//[.,]/}
	chmod 711 "$dir"
	CKPT_MUTANT=$1 CKPT_BUILD=$PWD/$build/mutant SEED=1 TMPDIR=$dir CMOCKA_MESSAGE_OUTPUT=TAP \
		setsid timeout -k 2 "$limit" "${cmd[@]}" >"$log" 2>&1 </dev/null &
	pid=$!
	running[$pid]=1
	while [ -n "$1" ] && kill -0 $pid 2>/dev/null; do # to its end without a mistake
		grep -aq '^not ok' "$log" && kill -KILL -- -$pid 2>/dev/null && break
		sleep 0.05
	done
	wait $pid 2>/dev/null || status=$?
	unset "running[$pid]"
	reap "$dir"
	now=${EPOCHREALTIME//[.,]/}
	why=$(grep -am1 '^not ok' "$log" | sed 's/^not ok [0-9]* *-* *//' | cut -c1-90)
	cases=$(grep -ac '^ok' "$log")
	if [ -n "$why" ]; then
		result=found
	elif [ $status -eq 124 ] || { [ $status -eq 137 ] && [ $((now - begun)) -ge $((limit * 1000000)) ]; }; then
		result=found why="it does not end"
	elif [ $status -eq 125 ]; then
		result=fails why=$(grep -am1 CKPT_MUTANT "$log")
	elif [ $status -ne 0 ]; then
		result=found why="it dies: $(grep -a . "$log" | tail -n 1 | cut -c1-80)"
	elif [ "$cases" -eq 0 ]; then
		result=fails why="ran no case"
	elif [ "$(grep -aic '^ok.*# *skip' "$log")" -eq "$cases" ]; then
		result=skips why=$(grep -aim1 '^ok.*# *skip' "$log" | sed 's/.*# *[Ss][Kk][Ii][Pp] *//')
	fi
	[ "$result" != found ] || [ -n "$1" ] || tail -n 15 "$log" | cut -c1-200 >"$tmp/shown"
	rm -rf "$dir" "$log"
	echo "$result $(((now - begun) / 100000)) ${why:-}"
}

# All tests of a mistake, one after the other, until one finds it: a line in a file of its own.
mutant() { # FILE NAME TEST...
	local file=$1 name=$2 t result time why sum=0 all=''
	shift 2
	for t; do
		read -r result time why < <(hold "$name" "$t")
		sum=$((sum + time))
		[ "$result" != skips ] || all="$all $t: $why;"
		case $result in
		found) break ;;
		fails) break ;;
		esac
	done
	[ "${result:-holds}" = found ] || why=${why:-$all}
	printf '%s\t%s\t%s\t%s\n' "${result:-holds}" "${t:-}" "$((sum / 10)).$((sum % 10))" "${why:-}" >"$file"
}

n=0 bad=0
say() { # ok|not ok SENTENCE
	n=$((n + 1))
	[ "$1" = ok ] || bad=1
	[ $tap -eq 0 ] && [ "$1" = ok ] || echo "$1 $n - $2"
}
wait_one() { while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n 2>/dev/null || true; done; }

mapfile -t line < <(chosen "$@")
i=0
mapfile -t rigs < <(printf '%s\n' "${line[@]}" | awk '{ for (i = 3; i <= NF; i++) print $i }' | sort -u)
for r in "${rigs[@]}"; do
	wait_one
	{ hold '' "$r" >"$tmp/rig.$i"; } &
	i=$((i + 1))
done
i=0
for l in "${line[@]}"; do
	read -ra w <<<"$l"
	wait_one
	mutant "$tmp/mutant.$i" "${w[0]}" "${w[@]:2}" &
	i=$((i + 1))
done
wait
i=0
for r in "${rigs[@]}"; do
	read -r result time why <"$tmp/rig.$i"
	case $result in
	holds) say ok "without a mistake $r passes in $((time / 10)).$((time % 10)) s" ;;
	skips) say ok "without a mistake $r passes # SKIP $why" ;;
	*) say "not ok" "without a mistake $r passes: $why"; [ ! -f "$tmp/shown" ] || sed 's/^/# /' "$tmp/shown" ;;
	esac
	i=$((i + 1))
done
i=0
printf '%-24s %6s  %-58s %s\n' MISTAKE AFTER 'FOUND BY' 'THE STEP THAT IT TAKES AWAY' >"$tmp/table"
for l in "${line[@]}"; do
	name=${l%%[[:space:]]*}
	IFS=$'\t' read -r result t time why <"$tmp/mutant.$i"
	case $result in
	found) say ok "$name: $(step_of "$name"); missed by $t after $time s" ;;
	skips) say ok "$name: $(step_of "$name") # SKIP $why" ;;
	*) say "not ok" "$name: $(step_of "$name"); nothing misses it ${why:-}" ;;
	esac
	[ "$result" = found ] && by="${t%%@*}: $why" || by="NOT FOUND"
	[ "$result" = skips ] && by="skipped: $why"
	printf '%-24s %4s s  %-58s %s\n' "$name" "$time" "${by:0:58}" "$(step_of "$name")" >>"$tmp/table"
	i=$((i + 1))
done
summary="${#line[@]} mistakes, $(grep -c '  NOT FOUND' "$tmp/table") not found"
if [ $tap -eq 1 ]; then
	sed 's/^/#| /' "$tmp/table"
	echo "# $summary"
	echo "1..$n"
else
	cat "$tmp/table"
	echo "$summary"
fi
exit $bad
