# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# common.sh - what the scripts here have in common: a place on a disk, a daemon, a job that saves and restores,
# fio, samples in files, rows of a table. Read by run.sh and frameworks.sh, which have set $json and stand in
# the top folder.
# shellcheck disable=SC2034,SC2119,SC2120,SC2154 # set or used by who reads this
dir=${BENCH_DIR:-build/bench}
mib=${BENCH_MIB:-1024}
pairs=7 big_mib=8192
rest=2 # seconds of silence before each use of the disk: many disks, all of the cloud's, save up speed while idle
if [ "$mib" -lt 256 ]; then # a look, not a measurement
	pairs=3 big_mib=$((8 * mib)) rest=0.2
fi
pairs=${BENCH_PAIRS:-$pairs}
big_mib=${BENCH_BIG_MIB:-$big_mib}
bytes=$((mib << 20))
missed=() targets=0

fail() { echo "make bench: $*" >&2; exit 1; }

# ---- which rows ----

wanted() { # ROW...: one of them at least, by the patterns in ROWS; all are, where there are none
	local r pattern
	[ -n "${ROWS:-}" ] || return 0
	set -f
	for r; do
		for pattern in $ROWS; do
			# shellcheck disable=SC2254 # it is a pattern
			case $r in $pattern) set +f; return 0 ;; esac
		done
	done
	set +f
	return 1
}

part_rows=
part() { # "ROW..." FUNCTION [ARGUMENT...]: run it if one of the rows that it prints is wanted
	part_rows=$1
	shift
	# shellcheck disable=SC2086 # a list
	! wanted $part_rows || "$@"
}

command -v fio >/dev/null || fail "fio is missing; make deps installs it"
MAKEFLAGS='' make -s --no-print-directory build/ckptbench build/ckptd build/ckptctl
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
case $(stat -f -c %T "$dir") in
tmpfs | ramfs) fail "$dir is memory, not a disk; name a directory on one with BENCH_DIR" ;;
esac
free_mib=$(df --output=avail -m "$dir" | tail -1)
need_mib=$(((pairs + 5) * mib))
! wanted convert_memory_big convert_growth || need_mib=$((need_mib + 2 * big_mib))
[ "$free_mib" -gt "$need_mib" ] || fail "$dir has $free_mib MiB free and $need_mib are needed; BENCH_DIR names another place, BENCH_MIB a smaller state"
memory_mib=$(awk '/^MemAvailable/ { print int($2 / 1024) }' /proc/meminfo)
[ "$memory_mib" -gt $((6 * mib)) ] || fail "$memory_mib MiB of memory are free and $((6 * mib)) are needed; BENCH_MIB sets a smaller state"

work=$dir/run.$$
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptbench.XXXXXX") # sockets have short names
socket=$tmp/socket
daemon=
cleanup() {
	[ -z "$daemon" ] || kill -KILL "$daemon" 2>/dev/null || true
	[ -z "${saver_PID:-}" ] || kill -KILL "$saver_PID" 2>/dev/null || true
	rm -rf "$work" "$tmp" ${fast:+"$fast"}
	rmdir "$dir" 2>/dev/null || true
}
trap cleanup EXIT
trap 'exit 1' INT TERM
mkdir "$work"
: >"$json"

# ---- daemon: a fresh one for each part, so that none measures with the memory of another ----

daemon_start() { # [COMMAND...] that runs it
	"$@" build/ckptd --quiet --socket "$socket" &
	daemon=$!
	local i
	for ((i = 0; i < 200; i++)); do
		[ ! -S "$socket" ] || return 0
		sleep 0.05
	done
	fail "ckptd does not listen on $socket after 10 s"
}

daemon_stop() {
	kill -TERM "$daemon"
	wait "$daemon" || fail "ckptd ended with $?"
	daemon=
}

bench() { # PREFIX VERB ARGUMENT...: what ckptbench prints becomes the samples PREFIX_...
	local prefix=$1
	shift
	build/ckptbench "$@" >"$tmp/bench.out" || fail "ckptbench $*"
	samples "$prefix" <"$tmp/bench.out"
}

daemon_cpu_ns() { # user and system time so far
	awk -v hz="$(getconf CLK_TCK)" '{ sub(/.*\) /, ""); print ($12 + $13) * 1e9 / hz }' "/proc/$daemon/stat"
}

daemon_written_bytes() { sed -n 's/^write_bytes: //p' "/proc/$daemon/io"; }
daemon_read_bytes() { sed -n 's/^read_bytes: //p' "/proc/$daemon/io"; }

# ---- samples: a file of numbers for each name ----

sample() { echo "$2" >>"$tmp/$1.n"; }

# Takes lines "NAME NUMBER" from a program; PREFIX keeps apart what two parts call the same.
samples() { # PREFIX
	local name n
	while read -r name n; do
		sample "$1_$name" "$n"
	done
}

quantile() { # NAME Q; 0: there are no samples
	[ -f "$tmp/$1.n" ] || { echo 0; return; }
	sort -n "$tmp/$1.n" | awk -v q="$2" '{ v[NR] = $1 }
		END { i = q * NR; i = i > int(i) ? int(i) + 1 : i; print v[i < 1 ? 1 : i] }'
}

least() { # NAME...: the smallest median of them
	local m
	for m; do median "$m"; done | sort -g | head -1
}

median() { # NAME; 0: there are no samples
	[ -f "$tmp/$1.n" ] || { echo 0; return; }
	sort -n "$tmp/$1.n" | awk '{ v[NR] = $1 }
		END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'
}

pick() { sed -n "s/^$1 //p" "$2"; } # NAME FILE: the number of a line that a program printed
count() { if [ -f "$tmp/$1.n" ]; then wc -l <"$tmp/$1.n"; else echo 0; fi; }
calc() { awk "BEGIN { printf \"%.9g\", $* }"; }

# ---- rows ----

head_printed=0
row() { # NAME TARGET lower|higher NUM DEN UNIT N
	local ratio verdict=
	case " ${part_rows:-$1} " in *" $1 "*) ;; *) fail "the row $1 is not in the list of its part" ;; esac
	wanted "$1" || return 0
	if [ "$7" -eq 0 ] || [ "$5" = 0 ]; then # every snapshot was torn or skipped
		missed+=("$1 (nothing was measured)")
		printf '%-20s nothing was measured\n' "$1"
		return
	fi
	ratio=$(calc "$4 / $5")
	if [ "$2" != null ]; then
		verdict=$(awk -v r="$ratio" -v t="$2" -v b="$3" 'BEGIN { print (b == "lower" ? r <= t : r >= t) ? "met" : "MISSED" }')
		[ "$verdict" = met ] || missed+=("$1 ($ratio, target $2)")
		targets=$((targets + 1))
	fi
	if [ "$head_printed" -eq 0 ]; then
		printf '%-20s %10s %9s %-7s %12s %12s %-5s %4s\n' name ratio target verdict numerator denominator unit n
		head_printed=1
	fi
	printf '%-20s %10.4g %9s %-7s %12.6g %12.6g %-5s %4d\n' "$1" "$ratio" \
		"$([ "$2" = null ] || { [ "$3" = lower ] && echo "<= $2" || echo ">= $2"; })" "$verdict" "$4" "$5" "$6" "$7"
	printf '{"name":"%s","ratio":%s,"target":%s,"better":"%s","num":%s,"den":%s,"unit":"%s","n":%d}\n' \
		"$1" "$ratio" "$2" "$3" "$4" "$5" "$6" "$7" >>"$json"
}

speed() { calc "$(median "$1") / 1e9"; } # samples in bytes/s

# ---- fio: bytes/s of one job file ----

fio_speed() { # read|write|mixed: both at once, and the slower of them counts
	local out
	sleep "$rest"
	out=$(BENCH_SIZE=${mib}m BENCH_DIR=${fio_dir:-$work} BENCH_FILES=${files:-} BENCH_DIRECT=$read_direct \
		BENCH_DEPTH=$read_depth BENCH_JOBS=$read_jobs BENCH_SHARE=$((100 / read_jobs))% \
		fio --output-format=json "tests/bench/fio-$1.fio") || fail "fio failed: $out"
	rm -f "${fio_dir:-$work}/fio-write.data"
	awk -v part="$1" '$1 ~ /^"(read|write|trim)"$/ { on = $1 == "\"" part "\"" || (part == "mixed" && $1 != "\"trim\"") }
		on && $1 == "\"bw_bytes\"" && $3 + 0 > 0 { if (!least || $3 + 0 < least) least = $3 + 0 } END { print least }' <<<"$out"
}

# How fio reads fastest what lies in $files: of depth 8 and 32, one job and two, past the cache and through it.
read_direct=1 read_depth=8 read_jobs=1
fio_read_choose() {
	local d j k n best=0 speed
	rm -f "$tmp"/choose_*.n
	for ((n = 0; n < 2; n++)); do
		for read_direct in 1 0; do
			for read_depth in 8 32; do
				for read_jobs in 1 2; do
					sample "choose_${read_direct}_${read_depth}_$read_jobs" "$(fio_speed read)"
				done
			done
		done
	done
	for n in "$tmp"/choose_*.n; do
		n=${n##*/}
		n=${n%.n}
		speed=$(median "$n")
		[ "$(calc "($speed > $best)")" = 0 ] || { best=$speed; IFS=_ read -r _ d j k <<<"$n"; }
	done
	read_direct=$d read_depth=$j read_jobs=$k
	echo "# fio reads fastest with direct=$read_direct iodepth=$read_depth numjobs=$read_jobs: $(calc "$best / 1e9") GB/s"
}

# The two sides of pair I, in the order that I gives.
pair() { # I A B
	if (($1 % 2)); then
		$2
		$3
	else
		$3
		$2
	fi
}

# ---- a durable save; a restore ----

saver_start() { # STORE WORLD [TENSORS [FROZEN [BYTES [AVERAGES]]]]
	local line
	coproc saver { exec build/ckptbench save "$socket" "$1" "${5:-$bytes}" "$2" "${3:-0}" "${4:-0}" ${6:+"$6"}; }
	saver_in=${saver[1]}
	saver_out=${saver[0]}
	read -r line <&"$saver_out" || true
	[ "$line" = "ready 0" ] || fail "the job that saves did not start"
}

save_one() { # one step; its phases go to the samples save_*
	local name n staged=0 committed=0 size=0 persisted=0
	sleep "$rest"
	echo go >&"$saver_in"
	while read -r name n <&"$saver_out"; do
		case $name in
		staged) staged=$n ;;
		persisted) persisted=$n ;;
		committed) committed=$n ;;
		bytes) size=$n ;;
		saved) last=$n; break ;;
		esac
	done
	[ "$committed" -gt "$staged" ] || fail "the step was not saved"
	sample save_bytes "$size"
	sample save_speed "$(calc "$size / (($committed - $staged) / 1e9)")"
	sample save_parts "$(calc "$persisted - $staged")"
	sample save_whole "$committed"
	sample save_commit "$(calc "$committed - $persisted")"
}

saver_stop() {
	exec {saver_in}>&-
	wait "$saver_PID" || fail "the job that saves failed"
}

fio_write() { sample fio_write "$(fio_speed write)"; }

step_files() { # STORE STEP: sets $where, and $files for fio
	where=$(build/ckptctl ls --json "$1" | grep -o '"path":"[^"]*' | cut -d'"' -f4 | head -1)
	[ -d "$where" ] || fail "no step in $1"
	files=$(printf ':%s' "$where"/*.part)
	files=${files#:}
}

restore_one() {
	build/ckptbench restore "$socket" "$store" "$bytes" "$world" "$step" "$daemon" >"$tmp/restore.out"
	sample "$label" "$(awk '/^bytes/ { b = $2 } /^restored/ { t = $2 } END { print b * 1e9 / t }' "$tmp/restore.out")"
	sample "${label}_cpu" "$(pick cpu "$tmp/restore.out")"
}

fio_read() { sample "fio_$label" "$(fio_speed read)"; }

# ---- the end ----

bench_end() {
	[ -s "$json" ] || [ ${#missed[@]} -gt 0 ] || fail "there is no row '$ROWS'; tests/bench/README.md has their names"
	echo
	if [ ${#missed[@]} -gt 0 ]; then
		echo "missed: $(printf '%s; ' "${missed[@]}")" | sed 's/; $//'
	elif [ "$targets" -gt 0 ]; then
		echo "all $targets targets are met"
	fi
	echo "written: $json ($(wc -l <"$json") rows), $SECONDS s"
}
