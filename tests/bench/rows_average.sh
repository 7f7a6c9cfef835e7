# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_average.sh - what averages of the weights cost. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this
ema_elements=$((bytes / 32)) # 1.2 GB in all where the state is 1 GiB

ema_speed() { calc "$2 * $ema_elements / $1"; } # NS BYTES-OF-AN-ELEMENT: GB/s
ema_bound() { least "ema_bound_$1_0" "ema_bound_$1_1" "ema_bound_$1_2"; }

ema_row() { # ROW TARGET SOURCE BYTES-OF-AN-ELEMENT
	row "$1" "$2" higher "$(ema_speed "$(median "ema_$3")" "$4")" "$(ema_speed "$(ema_bound "$3")" "$4")" GB/s "$(count "ema_$3")"
}

ema_part() {
	bench ema ema "$ema_elements" $((2 * pairs + 1))
	ema_row ema_bf16 0.95 bf16 10
	ema_row ema_f32 0.90 f32 12
	ema_row ema_three 0.90 three 26
	ema_row ema_three_f32 0.90 three_f32 28
	row ema_temporaries 8 higher "$(ema_speed "$(median ema_f32)" 12)" "$(ema_speed "$(median ema_temporaries)" 12)" GB/s "$(count ema_f32)"
	row ema_lerp null higher "$(ema_speed "$(median ema_f32)" 12)" "$(ema_speed "$(median ema_lerp)" 12)" GB/s "$(count ema_f32)"
}

# A job with one average beside one without, whose state is larger by what an average takes: 18 bytes of a
# weight instead of 14.
average_save() { # HOW BYTES AVERAGES [WORLD]: a row of steps
	local i
	daemon_start
	saver_start "$work/average" "${4:-1}" 0 0 "$2" "$3"
	save_one
	rm -f "$tmp"/save_*.n
	for ((i = 0; i < pairs; i++)); do
		save_one
	done
	median save_whole >>"$tmp/average_$1.n"
	rm -f "$tmp"/save_*.n
	saver_stop
	daemon_stop
	rm -rf "$work/average"
}
average_with() { average_save with "$bytes" 1; }
average_larger() { average_save larger $((bytes / 14 * 18)) 0; }
# Of eight ranks, whose parts are small: what counts is how often files are waited for.
average_ranks_with() { average_save ranks_with $((bytes / 16)) 1 8; }
average_ranks_larger() { average_save ranks_larger $((bytes / 16 / 14 * 18)) 0 8; }
average_ranks_part() {
	local round
	for ((round = 0; round < 4; round++)); do
		pair "$round" average_ranks_with average_ranks_larger
	done
	row average_committed_8 null lower "$(ms average_ranks_with)" "$(ms average_ranks_larger)" ms 4
}
average_save_part() {
	local round
	for ((round = 0; round < 4; round++)); do
		pair "$round" average_with average_larger
	done
	row average_committed 1.10 lower "$(ms average_with)" "$(ms average_larger)" ms 4
}

# Two jobs at once, so a quarter of the state each.
average_loop_part() {
	daemon_start
	bench averages averages "$socket" "$work/averages" $((bytes / 4)) $((4 * pairs)) "$daemon"
	daemon_stop
	rm -rf "$work/averages"
	row average_loop 1.02 lower "$(ms averages_with)" "$(ms averages_plain)" ms "$(count averages_with)"
	row average_stall 1.02 lower "$(us averages_stall_with)" "$(us averages_stall_plain)" us "$(count averages_stall_with)"
	row average_reached null higher "$(median averages_reached_with)" "$(median averages_reached_plain)" steps $((32 * pairs))
	row average_memory null lower "$(calc "$(median averages_memory_with) / 1e6")" "$(calc "$(median averages_memory_plain) / 1e6")" MB 1
}

average_scale_part() {
	local i
	for ((i = 0; i < 3; i++)); do
		scale_run average_100k 100000 1 9 1
		scale_run average_none 100000 1 9
	done
	for i in seal seal_cpu step_cpu; do
		row "average_${i}_100k" null lower "$(ms "average_100k_$i")" "$(ms "average_none_$i")" ms 3
	done
	row average_snapshot_100k null lower "$(us average_100k_snapshot)" "$(us average_none_snapshot)" us "$(count average_100k_snapshot)"
	row average_parts_100k null lower "$(ms average_100k_parts)" "$(ms average_none_parts)" ms "$(count average_100k_parts)"
	row average_commit_100k null lower "$(ms average_100k_commit)" "$(ms average_none_commit)" ms "$(count average_100k_commit)"
	row average_heap_100k null lower "$(median average_100k_heap)" "$(median average_none_heap)" B 3
}

average_rows() {
	part "ema_bf16 ema_f32 ema_three ema_three_f32 ema_temporaries ema_lerp" ema_part
	part "average_committed" average_save_part
	part "average_committed_8" average_ranks_part
	part "average_loop average_stall average_reached average_memory" average_loop_part
	part "average_seal_100k average_seal_cpu_100k average_step_cpu_100k average_snapshot_100k average_parts_100k average_commit_100k average_heap_100k" \
		average_scale_part
}
