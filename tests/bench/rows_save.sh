# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_save.sh - what a durable save costs. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this

one= # the newest step of $work/one, from which restores are measured, too
save_part() {
	local cpu i
	daemon_start
	saver_start "$work/one" 1
	save_one # the first pair warms both sides up
	fio_write
	rm -f "$tmp"/save_*.n "$tmp/fio_write.n"
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
	row save_cpu null lower "$(calc "$cpu / 1e9")" "$(calc "$pairs * $(median save_bytes) / 1e9")" s/GB "$pairs"
}

# The same bytes in 10,000 tensors, most of them far smaller than a block.
small_part() {
	local i
	daemon_start
	saver_start "$work/small" 1 10000
	save_one
	rm -f "$tmp"/save_*.n "$tmp/fio_write.n"
	for ((i = 0; i < pairs; i++)); do
		pair "$i" save_one fio_write
	done
	saver_stop
	daemon_stop
	row durable_save_small 0.9 higher "$(speed save_speed)" "$(speed fio_write)" GB/s "$pairs"
	rm -rf "$work/small"
}

# To a disk that is faster than one core's sums: memory.
fast_part() {
	local i
	fast=$(mktemp -d "${BENCH_FAST_DIR:-/dev/shm}/ckptbench.XXXXXX")
	if ! dd if=/dev/zero of="$fast/try" bs=4096 count=1 oflag=direct 2>/dev/null; then
		echo "durable_save_fast: skipped, $fast takes no direct writes; BENCH_FAST_DIR names a fast disk" >&2
		return
	fi
	daemon_start
	saver_start "$fast/fast" 1
	save_one
	rm -f "$tmp"/save_*.n
	for ((i = 0; i < pairs; i++)); do
		pair "$i" save_one fio_fast
		fast_prune
	done
	saver_stop
	daemon_stop
	row durable_save_fast null higher "$(speed save_speed)" "$(speed fio_fast)" GB/s "$pairs"
	rm -rf "$fast"
}
fio_fast() { sample fio_fast "$(fio_dir=$fast fio_speed write)"; }
fast_prune() { build/ckptctl prune --keep-last 1 --yes "$fast/fast" >/dev/null 2>&1 || true; } # memory is short

# A frozen base of 95 %, as a LoRA has one, against the same state of which all may change: steps of one in
# a row, then of the other, for the base is written with the first.
lora() { # FROZEN: the samples of its steps become those of lora_FROZEN
	local i written
	daemon_start
	saver_start "$work/lora" 1 4000 "$1"
	save_one
	rm -f "$tmp"/save_*.n
	written=$(daemon_written_bytes)
	for ((i = 0; i < pairs; i++)); do
		save_one
	done
	sample "lora_written_$1" "$(calc "($(daemon_written_bytes) - $written) / $pairs")"
	sample "lora_bytes" "$(median save_bytes)"
	calc "$(median save_parts) + $(median save_commit)" >>"$tmp/lora_time_$1.n"
	echo >>"$tmp/lora_time_$1.n"
	rm -f "$tmp"/save_*.n
	saver_stop
	daemon_stop
	rm -rf "$work/lora"
}
lora_part() {
	local round
	for ((round = 0; round < 3; round++)); do
		lora 95
		lora 0
	done
	row lora_written 0.06 lower "$(calc "$(median lora_written_95) / 1e6")" "$(calc "$(median lora_bytes) / 1e6")" MB "$pairs"
	row lora_save null lower "$(calc "$(median lora_time_95) / 1e6")" "$(calc "$(median lora_time_0) / 1e6")" ms 3
}

# What a policy costs: the same steps with one, under which each commit removes a step, and without.
keep() { # NAME [OPTION...]: the samples of its steps become those of keep_NAME
	local cpu i name=$1 rest=0 # without a pause: what ckptd does beside the next step costs time
	shift
	daemon_start
	saver_start "$work/keep" 1
	save_one
	[ $# -eq 0 ] || build/ckptctl keep -q "$work/keep" "$@" --socket "$socket" >/dev/null
	for ((i = 0; i < 3; i++)); do # until the first one is removed, before which one is read back
		save_one
	done
	rm -f "$tmp"/save_*.n
	cpu=$(daemon_cpu_ns)
	for ((i = 0; i < pairs; i++)); do
		save_one
	done
	sample "keep_cpu_$name" "$(calc "($(daemon_cpu_ns) - $cpu) / ($pairs * $(median save_bytes))")"
	sample "keep_time_$name" "$(calc "$(median save_parts) + $(median save_commit)")"
	saver_stop
	daemon_stop
	rm -rf "$work/keep"
}
keep_part() {
	local round
	for ((round = 0; round < 3; round++)); do
		pair "$round" keep_two keep_all
	done
	row keep_cpu 1.2 lower "$(median keep_cpu_two)" "$(median keep_cpu_all)" s/GB 3
	row keep_save null lower "$(calc "$(median keep_time_two) / 1e6")" "$(calc "$(median keep_time_all) / 1e6")" ms 3
}
keep_two() { keep two --last=2; }
keep_all() { keep all; }

# What the sums cost: one part file with them and without.
write_part() { # HOW
	sleep "$rest"
	build/ckptbench write "$1" "$work" "$bytes" 0 >"$tmp/write.out"
	samples "$1" <"$tmp/write.out"
}
sums() { write_part sums; }
raw() { write_part raw; }
beside() { write_part beside; }
sink() { write_part sink; }
sink2() { write_part sink2; }
sums_part() {
	local i
	for ((i = 0; i < pairs; i++)); do
		pair "$i" sums raw
		beside
		pair "$i" sink sink2
	done
	row sums_cpu 0.08 lower "$(calc "($(median sums_cpu) - $(median raw_cpu)) / 1e9")" "$(calc "$(median raw_bytes) / 1e9")" s/GB "$pairs"
	row bus_wall null lower "$(calc "$(median beside_wall) / 1e6")" "$(calc "$(median raw_wall) / 1e6")" ms "$pairs"
	row sums_wall 1.03 lower "$(calc "$(median sums_wall) / 1e6")" "$(calc "$(median raw_wall) / 1e6")" ms "$pairs"
	row sums_second null higher "$(calc "$(median sink_wall) / 1e6")" "$(calc "$(median sink2_wall) / 1e6")" ms "$pairs"
	row sums_sink null higher "$(calc "$(median sink_state) / $(median sink_wall)")" "$(calc "$(median raw_bytes) / $(median raw_wall)")" GB/s "$pairs"
}

# What it costs to compare BF16 parameters with their masters, and what it spares.
derived() { write_part derived; }
stored() { write_part stored; }
derived_part() {
	local i
	for ((i = 0; i < pairs; i++)); do
		pair "$i" derived stored
	done
	row derived_cpu 1.1 lower "$(calc "$(median derived_cpu) / 1e6")" "$(calc "$(median stored_cpu) / 1e6")" ms "$pairs"
	row derived_wall null lower "$(calc "$(median derived_wall) / 1e6")" "$(calc "$(median stored_wall) / 1e6")" ms "$pairs"
	row derived_bytes 0.87 lower "$(calc "$(median derived_written) / 1e6")" "$(calc "$(median derived_state) / 1e6")" MB "$pairs"
}

# System calls of the daemon for a save: what four of them make beyond what one makes.
calls() { awk '$NF == "total" { print $4 }' "$tmp/calls.$1"; } # % time, seconds, us/call, calls, errors
calls_part() {
	local n i
	command -v strace >/dev/null || return 0
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
	row save_syscalls null lower "$(calc "($(calls 4) - $(calls 1)) / 3")" "$(calc "$(median save_bytes) / 1e9")" /GB 3
}

# Eight ranks with 2 MiB each: what their parts wait for, they wait for together.
ranks_part() {
	local i
	rm -f "$tmp"/save_*.n
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
}

save_rows() {
	part "durable_save save_commit save_cpu" save_part
	part "durable_save_small" small_part
	part "durable_save_fast" fast_part
	part "save_8_ranks" ranks_part
	part "lora_written lora_save" lora_part
	part "keep_cpu keep_save" keep_part
	part "sums_cpu bus_wall sums_wall sums_sink sums_second" sums_part
	part "derived_cpu derived_wall derived_bytes" derived_part
	part "save_syscalls" calls_part
}
