#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - `make bench`: what ckptd costs, each figure as a ratio to what this machine can do at the same
# time. Prints a table, writes build/bench.json (one object a line), names the targets that were missed.
#
#   BENCH_DIR=PATH   where the checkpoints go (build/bench): the disk that is measured
#   BENCH_MIB=N      size of the state in MiB (1024)
#   BENCH_PAIRS=N    pairs of each comparison with the disk (7)
#   BENCH_BIG_MIB=N  size of the checkpoint that shows that memory does not grow with it (8192)
#
# Both sides of a ratio are measured in turn, A B, B A, A B, ...; ratio = median / median. The page cache is
# out of the way on both sides: everything uses O_DIRECT. See tests/bench/README.md for what each row is.
set -eu
cd "$(dirname "$0")/../.."
snapshots=60
steps=1000
json=build/bench.json
. tests/bench/common.sh

# ---- stall and copy ----

read -r load _ </proc/loadavg
echo "$(nproc) cores, load before $load; $mib MiB of state; $(stat -f -c %T "$dir") at $dir"
daemon_start
build/ckptbench stall "$socket" "$work/stall" "$bytes" "$snapshots" >"$tmp/stall.out"
samples stall <"$tmp/stall.out"
daemon_stop
memcpy_ns=$(median stall_copy_memcpy)
stream_ns=$(median stall_copy_stream)
best_ns=$(calc "$memcpy_ns < $stream_ns ? $memcpy_ns : $stream_ns")
state=$(median stall_bytes)
n=$(count stall_stall)
row stall "0.005" lower "$(calc "$(median stall_stall) / 1e3")" "$(calc "$best_ns / 1e3")" us "$n"
row stall_p99 null lower "$(calc "$(quantile stall_stall 0.99) / 1e3")" "$(calc "$best_ns / 1e3")" us "$n"
row staged_share 0.99 higher "$(median stall_staged)" "$(median stall_asked)" steps "$snapshots"
for how in shared own; do
	build/ckptbench canary $how "$bytes" 1000 >"$tmp/canary.out"
	samples "canary_$how" <"$tmp/canary.out"
done
us() { calc "$(median "$1") / 1e3"; }
row mark_canary 5 lower "$(us canary_shared_mark)" 1 us 1000
row guard_pages 20 lower "$(us canary_shared_guard)" 1 us 1000
row guard_pages_own 20 lower "$(us canary_own_guard)" 1 us 1000
row interval null higher "$(calc "$(median stall_interval) / 1e6")" "$(calc "$best_ns / 1e6")" ms "$snapshots"
row snapshot_copy 0.9 higher "$(calc "$(median stall_daemon_copy_bytes) / $(median stall_daemon_copy)")" \
	"$(calc "$state / $best_ns")" GB/s "$n"
row time_to_staged null lower "$(calc "$(median stall_time_to_staged) / 1e6")" "$(calc "$best_ns / 1e6")" ms "$n"
build/ckptbench hash $((256 << 20)) >"$tmp/hash.out"
samples hash <"$tmp/hash.out"
row hash_pass null higher "$(calc "$((256 << 20)) / $(median hash_hashed)")" "$(calc "$state / $best_ns")" GB/s "$(count hash_hashed)"

# ---- durable save ----

daemon_start
saver_start "$work/one" 1
save_one # the first pair warms both sides up
fio_write
rm "$tmp"/save_*.n "$tmp/fio_write.n"
cpu=$(daemon_cpu_ns)
for ((i = 0; i < pairs; i++)); do
	pair "$i" save_one fio_write
done
cpu=$(calc "$(daemon_cpu_ns) - $cpu")
one=$last
saver_stop
daemon_stop
row durable_save 0.95 higher "$(speed save_speed)" "$(speed fio_write)" GB/s "$pairs"
row save_commit null lower "$(calc "$(median save_commit) / 1e6")" "$(calc "$(median save_parts) / 1e6")" ms "$pairs"
row save_cpu null lower "$(calc "$cpu / 1e9")" "$(calc "$pairs * $state / 1e9")" s/GB "$pairs"

# The same bytes in 10,000 tensors, most of them far smaller than a block.
daemon_start
saver_start "$work/small" 1 10000
save_one
rm "$tmp"/save_*.n "$tmp/fio_write.n"
for ((i = 0; i < pairs; i++)); do
	pair "$i" save_one fio_write
done
saver_stop
daemon_stop
row durable_save_small 0.9 higher "$(speed save_speed)" "$(speed fio_write)" GB/s "$pairs"
rm -rf "$work/small"

# Eight ranks with 2 MiB each: what their parts wait for, they wait for together.
daemon_start
saver_start "$work/ranks" 8 0 0 $((16 << 20))
save_one
rm "$tmp"/save_*.n
for ((i = 0; i < pairs; i++)); do
	save_one
done
saver_stop
daemon_stop
row save_8_ranks null lower "$(calc "$(median save_parts) / 1e6")" 1 ms "$pairs"
rm -rf "$work/ranks"
rm "$tmp"/save_*.n

# A frozen base of 95 %, as a LoRA has one, against the same state of which all may change: steps of one in
# a row, then of the other, for the base is written with the first.
lora() { # FROZEN: the samples of its steps become those of lora_FROZEN
	local i written
	daemon_start
	saver_start "$work/lora" 1 4000 "$1"
	save_one
	rm "$tmp"/save_*.n
	written=$(daemon_written_bytes)
	for ((i = 0; i < pairs; i++)); do
		save_one
	done
	sample "lora_written_$1" "$(calc "($(daemon_written_bytes) - $written) / $pairs")"
	sample "lora_bytes" "$(median save_bytes)"
	calc "$(median save_parts) + $(median save_commit)" >>"$tmp/lora_time_$1.n"
	echo >>"$tmp/lora_time_$1.n"
	rm "$tmp"/save_*.n
	saver_stop
	daemon_stop
	rm -rf "$work/lora"
}
for ((round = 0; round < 3; round++)); do
	lora 95
	lora 0
done
row lora_written 0.06 lower "$(calc "$(median lora_written_95) / 1e6")" "$(calc "$(median lora_bytes) / 1e6")" MB "$pairs"
row lora_save null lower "$(calc "$(median lora_time_95) / 1e6")" "$(calc "$(median lora_time_0) / 1e6")" ms 3

# What the sums cost: one part file with them and without.
write_part() { # HOW
	sleep "$rest"
	build/ckptbench write "$1" "$work" "$bytes" 0 >"$tmp/write.out"
	samples "$1" <"$tmp/write.out"
}
sums() { write_part sums; }
raw() { write_part raw; }
beside() { write_part beside; }
for ((i = 0; i < pairs; i++)); do
	pair "$i" sums raw
	beside
done
row sums_cpu 0.1 lower "$(calc "($(median sums_cpu) - $(median raw_cpu)) / 1e9")" "$(calc "$(median raw_bytes) / 1e9")" s/GB "$pairs"
row bus_wall null lower "$(calc "$(median beside_wall) / 1e6")" "$(calc "$(median raw_wall) / 1e6")" ms "$pairs"
row sums_wall 1.03 lower "$(calc "$(median sums_wall) / 1e6")" "$(calc "$(median raw_wall) / 1e6")" ms "$pairs"

# What it costs to compare BF16 parameters with their masters, and what it spares.
derived() { write_part derived; }
stored() { write_part stored; }
for ((i = 0; i < pairs; i++)); do
	pair "$i" derived stored
done
row derived_cpu 1.1 lower "$(calc "$(median derived_cpu) / 1e6")" "$(calc "$(median stored_cpu) / 1e6")" ms "$pairs"
row derived_wall null lower "$(calc "$(median derived_wall) / 1e6")" "$(calc "$(median stored_wall) / 1e6")" ms "$pairs"
row derived_bytes 0.87 lower "$(calc "$(median derived_written) / 1e6")" "$(calc "$(median derived_state) / 1e6")" MB "$pairs"

# System calls of the daemon for a save: what four of them make beyond what one makes.
if command -v strace >/dev/null; then
	for n in 1 4; do
		daemon_start strace -D -f -qq -c -o "$tmp/calls.$n"
		saver_start "$work/traced" 1
		for ((i = 0; i < n; i++)); do save_one; done
		saver_stop
		daemon_stop
		rm -rf "$work/traced"
		for ((i = 0; i < 100; i++)); do # strace writes when the daemon has gone
			! grep -q total "$tmp/calls.$n" || break
			sleep 0.1
		done
	done
	calls() { awk '$NF == "total" { print $4 }' "$tmp/calls.$1"; } # % time, seconds, us/call, calls, errors
	row save_syscalls null lower "$(calc "($(calls 4) - $(calls 1)) / 3")" "$(calc "$state / 1e9")" /GB 3
fi

# ---- restore and verify ----

restores() { # LABEL STORE STEP WORLD TARGET
	local i
	label=$1 store=$2 step=$3 world=$4
	step_files "$2" "$3"
	fio_read_choose
	daemon_start
	restore_one
	rm "$tmp/$1.n" "$tmp/$1_cpu.n"
	read=$(daemon_read_bytes)
	for ((i = 0; i < pairs; i++)); do
		pair "$i" restore_one fio_read
	done
	read=$(calc "$(daemon_read_bytes) - $read")
	daemon_stop
	row "$1" "$5" higher "$(speed "$1")" "$(speed "fio_$1")" GB/s "$pairs"
	row "$1_cpu" null lower "$(calc "$(median "$1_cpu") / 1e9")" "$(calc "$state / 1e9")" s/GB "$pairs"
	row "$1_read" 1.02 lower "$(calc "$read / 1e9")" "$(calc "$pairs * $state / 1e9")" GB "$pairs"
}

restores restore_same_mesh "$work/one" "$one" 1 0.95
verify_bytes=$(du -b -c "$where"/* | tail -1 | cut -f1)
verify_one() {
	local t
	sleep "$rest"
	t=$(date +%s%N)
	build/ckptctl verify --data "$where" >"$tmp/verify.out" || fail "verify: $(cat "$tmp/verify.out")"
	sample verify "$(calc "$verify_bytes / (($(date +%s%N) - $t) / 1e9)")"
}
label=verify
for ((i = 0; i < 5; i++)); do
	pair "$i" verify_one fio_read
done
row verify_data null higher "$(speed verify)" "$(speed fio_verify)" GB/s 5
rm -rf "$work/one"

daemon_start
saver_start "$work/two" 2
save_one
two=$last
saver_stop
daemon_stop
restores restore_other_mesh "$work/two" "$two" 3 0.9
rm -rf "$work/two"

# ---- many small steps ----

daemon_start
build/ckptbench steps "$socket" "$work/many" "$steps" >"$tmp/steps.out"
samples steps <"$tmp/steps.out"
daemon_stop
row small_commit null lower "$(calc "$(median steps_small_commit) / 1e6")" 1 ms "$steps"
row commit_1000 3 lower "$(calc "$(median steps_phase_last) / 1e6")" 1 ms 100
row commit_growth 1.2 lower "$(calc "$(median steps_phase_last) / 1e6")" "$(calc "$(median steps_phase_first) / 1e6")" ms 100
for ((i = 0; i < 5; i++)); do
	build/ckptbench timed build/ckptctl ls "$work/many" 2>"$tmp/timed.out" >"$tmp/ls.out"
	samples ls <"$tmp/timed.out"
done
[ "$(grep -c steps "$tmp/ls.out")" -gt 0 ] || fail "ls lists nothing"
row ls_1000 50 lower "$(calc "$(median ls_wall) / 1e6")" 1 ms 5
rm -rf "$work/many"

# ---- many tensors ----

build/ckptbench many "$work/tensors" 200000 4 1 0
for ((i = 0; i < 5; i++)); do
	build/ckptbench timed build/ckptctl show -C "$work/tensors" 2>"$tmp/timed.out" >"$tmp/show.out"
	samples show <"$tmp/timed.out"
done
grep -q 200,000 "$tmp/show.out" || fail "show does not show them: $(cat "$tmp/show.out")"
row show_200k 0.5 lower "$(calc "$(median show_wall) / 1e9")" 1 s 5
rm -rf "$work/tensors"

# ---- questions about layouts ----

for name in literal strided order fsdp ranks modes errors strided_order partial; do
	sed 's/,"expect":.*}$/}/' "tests/vectors/layout/$name.jsonl"
done | awk 'length($0) < 200 { line[n++] = $0 } END { for (i = 0; i < 100000; i++) print line[i % n] }' >"$tmp/questions"
for ((i = 0; i < 5; i++)); do
	build/ckptbench timed build/ckptctl layout --batch "$tmp/questions" 2>"$tmp/timed.out" >"$tmp/answers"
	samples layout <"$tmp/timed.out"
	build/ckptbench timed build/ckptctl layout --shape 1000000000 --mesh fsdp=64 --placements '_S(0, 1000000)' --summary \
		2>"$tmp/timed.out" >"$tmp/summary"
	samples summary <"$tmp/timed.out"
done
[ "$(wc -l <"$tmp/answers")" -eq 100000 ] || fail "layout --batch answers $(wc -l <"$tmp/answers") of 100000"
grep -q 1,000,000,000 "$tmp/summary" || fail "layout --summary: $(cat "$tmp/summary")"
row layout_100k 5 lower "$(calc "$(median layout_wall) / 1e9")" 1 s 5
row layout_million 1 lower "$(calc "$(median summary_wall) / 1e9")" 1 s 5
row layout_million_mem 64 lower "$(calc "$(median summary_rss) / 1048576")" 1 MiB 5

# ---- planning at a scale that no one host has ----

for model in llama405b moe; do
	for ((i = 0; i < 3; i++)); do # the yardstick in turn with what it measures
		build/ckptbench plan dram >"$tmp/plan.out"
		samples plan <"$tmp/plan.out"
		for what in owners rank manifest; do
			build/ckptbench plan "$what" "$model" >"$tmp/plan.out" || fail "plan $what $model"
			samples "$model" <"$tmp/plan.out"
		done
	done
done
dram_ns=$(calc "$(median plan_dram_read_ps) / 1e3")
for model in llama405b moe; do
	of() { calc "$(median "${model}_$1") / $2"; }
	memory='' size=''
	[ $model = moe ] || { memory=64 size=4; }
	row "${model}_owners" 1 lower "$(of owners 1e9)" 1 s "$(count "${model}_owners")"
	row "${model}_owner" null lower "$(of owners_piece_ps 1e3)" "$dram_ns" ns "$(count "${model}_owners")"
	row "${model}_owners_mem" "${memory:-null}" lower "$(of resident 1048576)" 1 MiB 3
	row "${model}_rank" 10 lower "$(calc "$(quantile "${model}_rank_plan" 0.99) / 1e6")" 1 ms "$(count "${model}_rank_plan")"
	row "${model}_rank_op" null lower "$(of rank_op_ps 1e3)" "$dram_ns" ns "$(count "${model}_rank_plan")"
	row "${model}_manifest" "${size:-null}" lower "$(of manifest_bytes 1048576)" 1 MiB 1
	row "${model}_manifest_read" "$([ $model = moe ] && echo null || echo 50)" lower "$(of manifest_read 1e6)" 1 ms "$(count "${model}_manifest_read")"
	row "${model}_host_reads" null lower "$(of host_read_bytes 1e9)" "$(of host_needed_bytes 1e9)" GB 1
done

# ---- convert ----

limit_mib=512
converted() { # SOURCE PREFIX: four parts become three
	sleep "$rest"
	build/ckptbench timed build/ckptctl convert "$1" "$work/converted" --mesh fsdp=3 --mem-limit ${limit_mib}M --quiet \
		2>"$tmp/timed.out" >"$tmp/convert.out" || fail "convert: $(cat "$tmp/timed.out" "$tmp/convert.out")"
	samples "$2" <"$tmp/timed.out"
	sample "$2_speed" "$(calc "$(du -b -c "$1"/*.part | tail -1 | cut -f1) * 1e9 / $(sed -n 's/^wall //p' "$tmp/timed.out")")"
	rm -rf "$work/converted"
}
convert_one() { converted "$where" convert; }
fio_mixed() { sample fio_mixed "$(fio_speed mixed)"; }

build/ckptbench many "$work/source" 96 4 1 "$bytes"
step_files "$work/source" 1
convert_one
fio_mixed
rm "$tmp"/convert_*.n "$tmp/fio_mixed.n"
for ((i = 0; i < pairs; i++)); do
	pair "$i" convert_one fio_mixed
done
row convert 0.9 higher "$(speed convert_speed)" "$(speed fio_mixed)" GB/s "$pairs"
over() { calc "($(median "$1") / 1048576) - $limit_mib"; } # MiB beyond the limit
row convert_memory 64 lower "$(over convert_rss)" 1 MiB "$pairs"
rm -rf "$work/source"
build/ckptbench many "$work/source" 96 4 1 $((big_mib << 20))
step_files "$work/source" 1
converted "$where" big
row convert_memory_big 64 lower "$(over big_rss)" 1 MiB 1
row convert_growth 1.05 lower "$(calc "$(median big_rss) / 1048576")" "$(calc "$(median convert_rss) / 1048576")" MiB 1
rm -rf "$work/source"

bench_end
