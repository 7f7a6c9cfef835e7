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

average_rows() {
	part "ema_bf16 ema_f32 ema_three ema_three_f32 ema_temporaries ema_lerp" ema_part
}
