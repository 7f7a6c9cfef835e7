# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_torch.sh - the Python package beside torch.distributed.checkpoint: the same state, in one process after the other's turn.
# Read by frameworks.sh. Trainers are as many as cores at most: 2 ranks, or 1 where a core must be free.
# shellcheck disable=SC2034,SC2154 # of common.sh

torch_job_start() { # DIR WORLD
	local line=''
	mkdir -p "$work/$1"
	rm -f "$tmp/job.in" "$tmp/job.out"
	mkfifo "$tmp/job.in" "$tmp/job.out"
	"$python" -W ignore tests/bench/torch_job.py serve "$work/$1" "$socket" "$bytes" "$2" <"$tmp/job.in" >"$tmp/job.out" 2>"$tmp/job.log" &
	torch_job=$!
	exec {job_in}>"$tmp/job.in" {job_out}<"$tmp/job.out"
	while [ "$line" != "ready 0" ]; do
		read -r line <&"$job_out" || fail "torch_job.py did not start: $(tail -n 5 "$tmp/job.log")"
		case $line in state*) sample "torch_state_$2" "${line#state }" ;; esac
	done
}

torch_job_do() { # WORDS: its samples are tj_NAME
	local name n
	sleep "$rest"
	echo "$*" >&"$job_in"
	while read -r name n <&"$job_out"; do
		[ "$name" != end ] || return 0
		sample "tj_${prefix:-}$name" "$n"
	done
	fail "torch_job.py has gone: $(tail -n 5 "$tmp/job.log")"
}

torch_job_stop() {
	exec {job_in}>&-
	wait "$torch_job" || fail "torch_job.py failed: $(tail -n 5 "$tmp/job.log")"
}

# NAME TARGET BETTER NUMERATOR DENOMINATOR: medians of samples in ns, as ms
torch_ms() { row "$1" "$2" "$3" "$(calc "$(median "tj_$4") / 1e6")" "$(calc "$(median "tj_$5") / 1e6")" ms "$(count "tj_$4")"; }

torch_save_part() {
	local i n how all=(ckptd thread process) world=2
	[ "$(nproc)" -ge 2 ] || world=1
	daemon_start
	torch_job_start two "$world"
	for how in "${all[@]}"; do # the first save makes what later ones use: files, processes, pinned memory
		prefix=first_ torch_job_do "$how"
	done
	for ((i = 0; i < pairs; i++)); do
		for ((n = 0; n < 3; n++)); do
			torch_job_do "${all[(i + n) % 3]}"
		done
	done
	torch_ms torch_blocked_thread 0.002 lower ckptd_blocked thread_blocked
	torch_ms torch_blocked_process 0.002 lower ckptd_blocked process_blocked
	torch_ms torch_committed 0.333 lower ckptd_committed thread_committed
	torch_ms torch_committed_process 0.333 lower ckptd_committed process_committed

	# What was written last is loaded, on the same mesh and then on one rank.
	label=torch_fio
	step_files "$work/two/store"
	fio_read_choose
	for ((i = 0; i < pairs; i++)); do
		torch_job_do load_ckptd
		torch_job_do load_dcp
		fio_read
	done
	torch_ms torch_load_same 0.7 lower load_ckptd load_dcp
	row torch_load_same_fio 0.95 higher "$(calc "$(median "torch_state_$world") * $world / $(median tj_load_ckptd)")" "$(speed fio_torch_fio)" GB/s "$pairs"
	torch_job_stop
	torch_job_start two 1
	for ((i = 0; i < pairs; i++)); do
		prefix=other_ torch_job_do load_ckptd
		prefix=other_ torch_job_do load_dcp
		fio_read
	done
	torch_ms torch_load_other 0.75 lower other_load_ckptd other_load_dcp
	row torch_load_other_fio 0.9 higher "$(calc "$(median torch_state_1) / $(median tj_other_load_ckptd)")" "$(speed fio_torch_fio)" GB/s "$pairs"
	torch_job_stop
	daemon_stop
	rm -rf "$work/two"
}

torch_loop_part() { # one trainer: a core is free for the copies, as the rows ask
	local i n how all=(none ckptd thread)
	daemon_start
	torch_job_start one 1
	for how in "${all[@]}"; do
		prefix=first_ torch_job_do "loop_$how" 2
	done
	for ((i = 0; i < pairs; i++)); do
		for ((n = 0; n < 3; n++)); do
			torch_job_do "loop_${all[(i + n) % 3]}" 8
		done
	done
	torch_ms torch_loop 1.03 lower loop_ckptd loop_none
	torch_ms torch_loop_dcp null lower loop_thread loop_none
	echo "# of $((pairs * 8)) snapshots $(quantile tj_loop_lost 1) were skipped or torn"
	torch_job_stop
	daemon_stop
	rm -rf "$work/one"
}

torch_memory_part() {
	local i how
	for ((i = 0; i < (pairs + 1) / 2; i++)); do
		for how in ckptd thread process; do
			daemon_start
			BENCH_DAEMON=$daemon "$python" -W ignore tests/bench/torch_job.py memory "$work/memory" "$socket" "$bytes" 2 "$how" >"$tmp/out" 2>"$tmp/job.log" ||
				fail "torch_job.py memory: $(tail -n 5 "$tmp/job.log")"
			sample "peak_$how" "$(pick peak "$tmp/out")"
			daemon_stop
			rm -rf "$work/memory"
		done
	done
	for how in thread process; do
		row "torch_memory_$how" "$([ $how = thread ] && echo 1 || echo null)" lower "$(calc "$(median peak_ckptd) / 1048576")" \
			"$(calc "$(median "peak_$how") / 1048576")" MiB "$(count peak_ckptd)"
	done
}

torch_restart_part() {
	local i how
	for ((i = 0; i < pairs; i++)); do
		for how in ckptd dcp; do
			daemon_start
			sleep "$rest"
			"$python" -W ignore tests/bench/torch_job.py restart "$work/restart" "$socket" "$bytes" 2 "$how" >"$tmp/out" 2>"$tmp/job.log" ||
				fail "torch_job.py restart: $(tail -n 5 "$tmp/job.log")"
			sample "tj_restart_$how" "$(pick restart "$tmp/out")"
			kill -KILL "$daemon"
			wait "$daemon" 2>/dev/null || true
			daemon=
			rm -rf "$work/restart"
		done
	done
	torch_ms torch_restart null lower restart_ckptd restart_dcp
}

torch_rows() {
	part "torch_blocked_thread torch_blocked_process torch_committed torch_committed_process torch_load_same torch_load_same_fio torch_load_other torch_load_other_fio" torch_save_part
	part "torch_loop torch_loop_dcp" torch_loop_part
	part "torch_memory_thread torch_memory_process" torch_memory_part
	part torch_restart torch_restart_part
}
