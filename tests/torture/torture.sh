#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# torture.sh SEED SECONDS [RIG...] - everything that looks for lost data, in full. Called by `make torture`,
# which has built the programs. SECONDS (600) is about how long each open-ended rig goes on (power cuts,
# storms, all fuzzers together, other seeds for all tests that draw); the others end when there is nothing left to try. A line for each rig, its
# log in build/torture/; the last line is always "N passed, N failed, N skipped". Exit status 1 when anything
# failed. torture.sh list prints the RIGs and how long each usually takes.
#
# STATES (1000000) different states of the disk at least; JOBS (all processors) processes look at them.
set -u
cd "$(dirname "$0")/../.." || exit 1
# NAME, minutes on two processors (S: as many seconds as are asked for; ?: nobody measured it), what it does.
usual() {
	cat <<-END
		variants        8    every unit test without a sanitizer, and every threaded one with TSan
		seeds           S    the tests that draw, with one seed after the other
		states          4    a million different states of a disk after a power loss or a death
		store-faults    1    a fault at every call that the store makes
		daemon-faults   1    a fault at every call that the daemon makes
		command-faults  2    a fault at every call that the command makes
		mutants         2    every planted mistake, and the test that finds it
		pairs           1    20 pairs of runs under load, whose averages are to be equal
		without         ?    every unit program where features of the kernel are missing
		power           S    power cuts on ext4 and XFS under the real daemon, as root
		storm           S    kills, kills of the daemon too, standstills, on a GPU, and with a sanitizer
		fuzz            S    libFuzzer on everything that a peer can send or a file can contain
	END
}
if [ "${1:-}" = list ] || [ "${3:-}" = list ]; then
	usual | awk '{ m = $2 == "S" ? "SECONDS" : $2 " min"; w = $1; if ($2 == "?") m = "?"; sub(/^[^ ]+ +[^ ]+ +/, ""); printf "%-15s %8s  %s\n", w, m, $0 }'
	exit
fi
[ $# -ge 2 ] || { echo "usage: torture.sh SEED SECONDS [RIG...] | torture.sh list" >&2; exit 2; }
seed=$1 seconds=$2
shift 2
rigs=("$@")
[ $# -gt 0 ] || mapfile -t rigs < <(usual | awk '{ print $1 }')
states=${STATES:-1000000}
jobs=${JOBS:-$(nproc)}
unit=build/obj/release/unit
logs=$PWD/build/torture
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckpt-torture.XXXXXX") || exit 1
chmod 711 "$tmp" # tests that run as another user come through
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM
export TMPDIR=$tmp CMOCKA_MESSAGE_OUTPUT=TAP SEED=$seed
unset MAKEFLAGS MAKELEVEL CKPT_MUTANT
mkdir -p "$logs"
passed=0 failed=0 skipped=0

# Runs a rig and prints its line. PATTERN: what of its log is worth a line, the last that matches.
rig() { # NAME PATTERN COMMAND...
	local name=$1 pattern=$2 log=$logs/$1.log begin=$SECONDS status=0 ok bad skip word=ok
	shift 2
	echo "     $name: usually $(usual | awk -v n="${name%%-daemon}" '$1 == n { print $2 == "S" ? "as long as SECONDS says" : $2 == "?" ? "nobody measured it" : $2 " min" }')"
	"$@" >"$log" 2>&1 </dev/null || status=$?
	read -r ok bad skip < <(awk '
		/^ok([ \t]|$)/ { if (toupper($0) ~ /# *SKIP/) s++; else p++ }
		/^not ok([ \t]|$)/ { if (toupper($0) ~ /# *(SKIP|TODO)/) s++; else f++ }
		END { printf "%d %d %d\n", p, f, s }' "$log")
	if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ $((ok + skip)) -eq 0 ]; }; then
		bad=1
	fi
	passed=$((passed + ok)) failed=$((failed + bad)) skipped=$((skipped + skip))
	[ "$bad" -eq 0 ] || word=FAIL
	printf '%-4s %-16s %5d cases, %d failed, %d skipped, %4d s  %s\n' "$word" "$name" $((ok + bad + skip)) "$bad" "$skip" \
		$((SECONDS - begin)) "$(grep -aE "$pattern" "$log" | tail -n 1 | sed 's/^#* *//' | cut -c1-100)"
	if [ "$bad" -gt 0 ]; then
		grep -a -A6 '^not ok' "$log" | head -30 | cut -c1-300 | sed 's/^/     | /'
		echo "     | ... the end of $log:"
		tail -n 12 "$log" | cut -c1-300 | sed 's/^/     | /'
	elif [ "$skip" -gt 0 ]; then
		grep -aiE '^ok.*# *skip' "$log" | head -5 | cut -c1-200 | sed 's/^/     skipped: /'
	fi
}

# The programs of the fuzzers, one after the other; TAP.
fuzz() {
	local name n=0 each
	local targets=(tests/fuzz/fuzz_*.c)
	each=$((seconds / ${#targets[@]}))
	[ "$each" -ge 2 ] || each=2
	for name in "${targets[@]}"; do
		name=${name##*/fuzz_}
		name=${name%.c}
		n=$((n + 1))
		if make -s --no-print-directory "-j$jobs" "fuzz-$name" ARGS="-max_total_time=$each -seed=$((seed % 4294967295)) -close_fd_mask=1"; then
			echo "ok $n - $name: $each s"
		else
			echo "not ok $n - $name: what it found is in build/fuzz/"
		fi
	done
	echo "1..$n"
}

# The unit tests that draw, with one seed after the other; TAP, a case for each.
seeds() {
	local name n=0 each s found
	local tests=()
	mapfile -t tests < <(grep -lE '(draw|naive)_seed\(|"test_layout_cases.h"' tests/unit/test_*.c)
	each=$((seconds / ${#tests[@]}))
	for name in "${tests[@]}"; do
		name=${name##*/test_}
		name=${name%.c}
		s=0 found=''
		local end=$((SECONDS + each))
		while [ -z "$found" ] && { [ $s -lt 2 ] || [ $SECONDS -lt $end ]; }; do
			SEED=$((seed + s)) "$unit/$name" >"$tmp/seeds.log" 2>&1 || found=$((seed + s))
			s=$((s + 1))
		done
		n=$((n + 1))
		[ -z "$found" ] || { echo "not ok $n - $name: SEED=$found"; grep -a '^[#N]' "$tmp/seeds.log" | grep -av '^# .*SEED=' | tail -5; }
		[ -n "$found" ] || echo "ok $n - $name: $s seeds"
	done
	echo "1..$n"
}

# Every unit test without a sanitizer, and every threaded one with TSan: `make test` runs a choice of both. TAP.
variants() {
	local program n=0
	for program in build/obj/release/unit/*_* build/obj/tsan/unit/*_*; do
		[ -x "$program" ] || continue
		n=$((n + 1))
		mkdir "$tmp/v" || return
		if TMPDIR=$tmp/v timeout -k 5 600 "$program" >"$tmp/variants.log" 2>&1; then
			echo "ok $n - $program"
		else
			echo "not ok $n - $program"
			tail -n 5 "$tmp/variants.log"
		fi
		rm -rf "$tmp/v"
	done
	echo "1..$n"
}

program() { # NAME: one case of its own when it is not there
	[ -x "$unit/$1" ] && return
	echo "not ok 1 - $unit/$1 is not built: make units"
	return 1
}
run_unit() { # NAME
	program "$1" && "$unit/$1"
}

echo "torture: seed $seed, $seconds s for each open-ended rig"
for r in "${rigs[@]}"; do
	case $r in
	variants) rig variants '^1\.\.' variants ;;
	seeds) rig seeds '^#' seeds ;;
	# In memory, or the machine's disk would be what is tortured: no TMPDIR.
	states) CRASH_STATES=$states CRASH_JOBS=$jobs rig states 'distinct states' env -u TMPDIR "$unit/store_crash" ;;
	store-faults) FAULT_STEP=1 rig store-faults 'injections' run_unit store_faults ;;
	daemon-faults) FAULT_STEP=1 rig daemon-faults 'injections' run_unit daemon_faults ;;
	command-faults) FAULT_STEP=1 rig command-faults 'injections' run_unit cli_faults ;;
	# Sockets lie in its directories, whose names must be short: no TMPDIR here either.
	mutants) MUTANT_JOBS=$jobs rig mutants 'mistakes' env -u TMPDIR tests/mutants/run.sh --tap ALL ;;
	pairs) EVERY_PAIRS=20 rig pairs '^#' run_unit daemon_every ;;
	without) UNITS=$unit ALL=1 rig without '^#' tests/e2e/test_without.sh ;;
	power) rig power '^#' tests/power/power.sh "$seed" $((seconds / 20 + 1)) ext4 xfs ;;
	storm)
		rig storm '^#' tests/storm/storm.sh "$seed" $((seconds / 12 + 1))
		rig storm-daemon '^#' tests/storm/storm.sh "$seed" $((seconds / 12 + 1)) --daemon
		rig storm-stop '^#' tests/storm/storm.sh "$seed" $((seconds / 12 + 1)) --stop
		rig storm-device '^#' tests/storm/storm.sh "$seed" $((seconds / 12 + 1)) --daemon --device
		# Sanitizers do not see what io_uring writes: ckptd writes by threads.
		BUILD=build/asan rig storm-asan '^#' tests/storm/storm.sh "$seed" $((seconds / 48 + 1)) --daemon --threads
		;;
	fuzz) rig fuzz '^ok' fuzz ;;
	*)
		echo "FAIL $r: there is no such rig"
		failed=$((failed + 1))
		;;
	esac
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ]
