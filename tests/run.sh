#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - runs test programs, some at a time, and counts their cases. Called by `make test`, which has built
# them; `make test TESTS='asan:io_queue script:tests/e2e/test_x.sh'` for some. Arguments:
#
#   unit:NAME asan:NAME tsan:NAME   tests/unit/test_NAME.c in that variant (unit: V=release)
#   plain:NAME                      the same with V=mutant, and no mistake chosen
#   fuzz:NAME                       tests/fuzz/fuzz_NAME.c over its corpus and mutations of it
#   script:PATH                     a script that prints TAP
#   torch:NAME                      tests/frameworks/test_NAME.py, by the Python in $TEST_PYTHON (tests/frameworks/run.sh)
#
# A case is a line "ok ..." or "not ok ..." (TAP) at the beginning of a line; "# SKIP why" makes it a skip. A
# program that dies, runs out of time or runs fewer cases than it announced is a failed case of its own.
# Every program has a TMPDIR to itself. What it leaves running that names this directory is killed, and is a
# failed case, as is a file that it leaves there.
# At the end: the slowest ten, what was skipped and why, what failed. The last line is always
# "N passed, N failed, N skipped". Exit status 1 when anything failed, 2 when another run uses this tree.
# TSan sees races, whatever is drawn, so its programs have SCALE=4; and so have those of asan: that
# run as plain: too.
# TEST_SECONDS (600) limits each program, TEST_JOBS (two more than there are processors, for some tests
# wait) how many run at once.
set -u
cd "$(dirname "$0")/.." || exit 1
jobs=${TEST_JOBS:-$(($(nproc) + 2))}
limit=${TEST_SECONDS:-600}
logs=$PWD/build/test

mkdir -p "$logs" || exit 1
exec 9>build/.test-lock || exit 1
flock -n 9 || { echo "tests/run.sh: another run uses $PWD/build/test: wait for its end, or use another clone" >&2; exit 2; }
# The longest of the last run begin first, or processors are idle at the end.
mapfile -t order < <([ ! -f build/test-seconds ] || sort -k1,1nr build/test-seconds | awk '{ print $2 }')
mapfile -t tests < <(printf '%s\n' "$@" | awk 'BEGIN { for (i = 1; i < ARGC; i++) at[ARGV[i]] = i; ARGC = 1 }
	{ printf "%d %d %s\n", ($0 in at) ? at[$0] : 0, NR, $0 }' "${order[@]}" | sort -k1,1n -k2,2n | cut -d' ' -f3)
rm -rf "${logs:?}"/*
root=${TMPDIR:-/tmp}
if [ ${#root} -gt 40 ]; then
	echo "  TMPDIR=$root is too long for the names of sockets: the tests work in /tmp"
	root=/tmp
fi
tmp=$(mktemp -d "$root/ckpt-t.XXXXXX") || exit 1
memory=$tmp
if [ -w /dev/shm ] && [ "$(df --output=avail /dev/shm | tail -n 1)" -ge $((jobs * 1048576)) ]; then
	memory=$(mktemp -d /dev/shm/ckpt-t.XXXXXX) || exit 1
else
	echo "  /dev/shm has less than $jobs GiB: all tests work in $root, which is slower"
fi
[ -z "${SCALE:-}" ] || echo "  SCALE=$SCALE: draws and states of a disk are divided by it (make test: all of them)"
unset GOLDEN CKPT_MUTANT
chmod 711 "$tmp" "$memory" # some tests become another user for a while
red='' dim='' plain=''
if [ -t 1 ] && [ -z "${NO_COLOR:-}" ]; then
	red=$'\e[31m' dim=$'\e[2m' plain=$'\e[0m'
fi

# Kills what names DIR on its command line: daemons that a test started and that left its session. Prints them.
reap() { # DIR
	local pid line
	while read -r pid; do
		pid=${pid#/proc/} pid=${pid%/cmdline}
		line=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") 2>/dev/null || continue
		[[ $line == *"$1"/* && $line != grep* ]] || continue # gone, or the search itself
		echo "left running: $pid $line"
		kill -KILL "$pid" 2>/dev/null
	done < <(grep -lasF "$1/" /proc/[0-9]*/cmdline)
}

finish() {
	local pid
	for pid in "${!running[@]}"; do
		kill -KILL -- "-$pid" 2>/dev/null
	done
	reap "$tmp" >/dev/null
	reap "$memory" >/dev/null
	rm -rf "$tmp" "$memory"
}
declare -A running=()
trap finish EXIT
trap 'exit 130' INT TERM

command_of() { # TEST: sets cmd
	local name=${1#*:}
	case $1 in
	unit:*) cmd=("build/obj/release/unit/$name" -j1) ;;
	plain:*) cmd=("build/obj/mutant/unit/$name" -j1) ;;
	asan:* | tsan:*) cmd=("build/obj/${1%%:*}/unit/$name" -j1) ;;
	fuzz:*)
		cmd=("build/obj/asan/fuzz/$name")
		[ ! -d "tests/fuzz/corpus/$name" ] || cmd+=("tests/fuzz/corpus/$name")
		;;
	script:*) cmd=(bash "$name") ;;
	torch:*) cmd=("${TEST_PYTHON:?}" tests/frameworks/tap.py "tests/frameworks/test_$name.py") ;;
	*) cmd=(false) ;;
	esac
}

# Runs in the background: the program in a group of its own, its log, its status.
run_one() { # TEST LOG DIR
	local status=0 cmd scale=${SCALE:-1}
	command_of "$1"
	case $1 in tsan:*) [ "$scale" -ge 4 ] || scale=4 ;; asan:*) [[ " ${tests[*]} " != *" plain:${1#*:} "* || $scale -ge 4 ]] || scale=4 ;; esac
	mkdir -p "$3"
	local TIMEFORMAT='%R %U %S' # of the group below; what it prints goes to the log
	{
		time SCALE=$scale TMPDIR=$3 CMOCKA_MESSAGE_OUTPUT=TAP FUZZ_CRASHES=$logs UBSAN_OPTIONS=print_stacktrace=1 \
			timeout -k 5 "$limit" "${cmd[@]}" >"$2" 2>&1 </dev/null || status=$?
	} 2>"$2.status"
	reap "$3" >"$2.left"
	# PyTorch leaves these behind by itself, also where nobody kills its processes.
	case $1 in torch:*) rm -rf "$3"/torchinductor_* "$3"/torchelastic_* "$3"/pymp-* ;; esac
	[ -z "$(ls -A "$3")" ] || (cd "$3" && find . -mindepth 1 -maxdepth 2 | head -5 | sed 's/^/left lying: /') >>"$2.left"
	rm -rf "$3"
	echo "$status" >>"$2.status"
}

passed=0 failed=0 skipped=0
failures=() skips=()

# Counts a finished test and prints its line; the end of its log if it failed.
report() { # TEST LOG
	local status seconds user sys ok=0 bad=0 skip=0 plan='' say=''
	# The last two lines: the shell writes of a program that aborted before them.
	{ read -r seconds user sys && read -r status; } < <(tail -n 2 "$2.status")
	echo "$seconds $user $sys $1" >>"$logs/seconds" # elapsed, of the processor, of the kernel
	seconds=${seconds%??}
	read -r ok bad skip plan < <(awk '
		/^ok([ \t]|$)/ { if (toupper($0) ~ /# *SKIP/) s++; else p++ }
		/^not ok([ \t]|$)/ { if (toupper($0) ~ /# *(SKIP|TODO)/) s++; else f++ }
		/^1\.\.[0-9]+/ { n += substr($1, 4) }
		END { printf "%d %d %d %s\n", p, f, s, n }' "$2")
	if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
		bad=$((bad + 1)) say="ran longer than $limit s"
	elif [ -n "$plan" ] && [ $((ok + bad + skip)) -ne "$plan" ]; then
		bad=$((bad + 1)) say="announced $plan cases, ran $((ok + bad + skip - 1)), ended with status $status"
	elif [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; then
		bad=1 say="ended with status $status"
	elif [ $((ok + bad + skip)) -eq 0 ]; then
		bad=1 say="ran no case"
	elif [ -s "$2.left" ] && [ "$bad" -eq 0 ]; then
		bad=1 say="left something behind"
	fi
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
	if [ "$bad" -eq 0 ]; then
		printf '  ok   %-46s %s%3d cases %5s s%s%s\n' "$1" "$dim" $((ok + skip)) "$seconds" "$plain" \
			"$([ "$skip" -eq 0 ] || echo ", $skip skipped")"
	else
		printf '  %sFAIL%s %-46s %3d of %d cases %5s s  %s\n' "$red" "$plain" "$1" "$bad" $((ok + bad + skip)) "$seconds" "$say"
		grep -a -A12 '^not ok' "$2" | head -40 | cut -c1-300 | sed 's/^/       | /'
		echo "       | ... the end of $2:"
		tail -n 25 "$2" | cut -c1-300 | sed 's/^/       | /'
		failures+=("$1")
	fi
	# A skip without a reason of its own is explained by the line that the test printed before it.
	[ "$skip" -eq 0 ] || mapfile -t -O "${#skips[@]}" skips < <(awk -v name="$1" '
		/^(ok|not ok).*# *(SKIP|skip)/ {
			sub(/^(not )?ok [0-9]* *-* */, "")
			sub(/^# *SKIP */, "")
			sub(/# *(SKIP|skip)/, ":")
			print name ": " $0 (before == "" ? "" : "  (" before ")")
			before = ""
			next
		}
		{ before = ($0 ~ /^(ok|not ok|1\.\.)/) ? "" : $0 }' "$2" | cut -c1-200)
	[ ! -s "$2.left" ] || sed 's/^/       /' "$2.left" | cut -c1-200
	sed -n 's/^#| /       /p' "$2" # a table that belongs into the report
}

n=0
begin=$SECONDS
collect() { # waits for one of the running
	local pid
	wait -n -p pid "${!running[@]}" 2>/dev/null
	[ -n "${pid:-}" ] || return
	report "${running[$pid]%% *}" "${running[$pid]#* }"
	unset "running[$pid]"
}
for t in "${tests[@]}"; do
	[ "${#running[@]}" -lt "$jobs" ] || collect
	n=$((n + 1))
	log=$logs/$(printf '%s' "$t" | tr -c 'A-Za-z0-9_.' '-').log
	set -m # each in a process group of its own, to be killed whole
	case $t in # in memory, but for what looks at files of a real file system: I/O itself, and who does it in large
	*:io_* | asan:move_* | asan:daemon_* | tsan:move_* | tsan:daemon_* | plain:move_* | plain:daemon_* | script:* | torch:*) dir=$tmp/$n ;;
	*) dir=$memory/$n ;;
	esac
	run_one "$t" "$log" "$dir" 9>&- &
	running[$!]="$t $log"
	set +m
done
while [ "${#running[@]}" -gt 0 ]; do
	collect
done

awk '{ print $1, $4 }' "$logs/seconds" >"$logs/now" 2>/dev/null
# Remembered for the next run's order, also of those that did not run this time.
cat "$logs/now" build/test-seconds 2>/dev/null | awk '!seen[$2]++' >"$logs/all" && mv "$logs/all" build/test-seconds
if [ "$n" -gt 10 ]; then
	echo "  slowest:"
	sort -k1,1nr "$logs/now" | head -10 | awk '{ printf "    %5.1f s  %s\n", $1, $2 }'
fi
if [ "${#skips[@]}" -gt 0 ]; then
	echo "  skipped:"
	printf '    %s\n' "${skips[@]}"
fi
echo "  $n test programs in $((SECONDS - begin)) s; logs in build/test/"
[ "${#failures[@]}" -eq 0 ] || printf '  failed: %s\n' "${failures[@]}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
