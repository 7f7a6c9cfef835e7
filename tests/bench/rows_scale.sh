# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_scale.sh - what grows, and what must not: with steps, with tensors, with ranks. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this
steps=1000

steps_part() {
	local i
	daemon_start
	bench steps steps "$socket" "$work/many" "$steps"
	daemon_stop
	row small_commit null lower "$(calc "$(median steps_small_commit) / 1e6")" 1 ms "$steps"
	row commit_1000 3 lower "$(calc "$(median steps_commit_last) / 1e6")" 1 ms "$(count steps_commit_last)"
	row commit_growth null lower "$(calc "$(median steps_commit_last) / 1e6")" "$(calc "$(median steps_commit_first) / 1e6")" ms "$(count steps_commit_last)"
	for ((i = 0; i < 5; i++)); do
		build/ckptbench timed build/ckptctl ls "$work/many" 2>"$tmp/timed.out" >"$tmp/ls.out"
		samples ls <"$tmp/timed.out"
	done
	[ "$(grep -c steps "$tmp/ls.out")" -gt 0 ] || fail "ls lists nothing"
	row ls_1000 50 lower "$(calc "$(median ls_wall) / 1e6")" 1 ms 5
	rm -rf "$work/many"
}

scale_run() { # PREFIX TENSORS RANKS ROUNDS [AVERAGES]
	daemon_start
	bench "$1" scale "$socket" "$work/scale" "$2" "$3" "$4" "$daemon" ${5:+"$5"}
	daemon_stop
	rm -rf "$work/scale"
}
scale_part() { # NAME TENSORS RANKS
	local target=null
	scale_run "$1" "$2" "$3" 9
	[ "$2" -lt 100000 ] || target=0.3
	row "declare_$1" $target lower "$(calc "$(median "$1_declare") / 1e9")" 1 s "$(count "$1_declare")"
	row "seal_$1" null lower "$(calc "$(median "$1_seal") / 1e9")" 1 s 1
	row "seal_cpu_$1" null lower "$(calc "$(median "$1_seal_cpu") / 1e9")" 1 s 1
	row "snapshot_$1" 15 lower "$(us "$1_snapshot")" 1 us "$(count "$1_snapshot")"
	row "parts_$1" null lower "$(ms "$1_parts")" 1 ms "$(count "$1_parts")"
	row "commit_$1" null lower "$(ms "$1_commit")" 1 ms "$(count "$1_commit")"
	row "step_cpu_$1" null lower "$(ms "$1_step_cpu")" 1 ms 9
	row "heap_$1" "$([ "$2" -lt 10000 ] && echo null || echo 300)" lower "$(median "$1_heap")" 1 B 1
}
agree_part() {
	local i
	for ((i = 0; i < 3; i++)); do
		scale_run agree 10000 16 1
	done
	row agree_16x10k null lower "$(ms agree_seal)" 1 ms 3
	row agree_cpu null lower "$(ms agree_seal_cpu)" 1 ms 3
	row agree_owner null lower "$(ms agree_seal_owner)" 1 ms 3
}

scale_rows() {
	local thousands ranks name
	part "small_commit commit_1000 commit_growth ls_1000" steps_part
	for thousands in 1 10 100; do
		for ranks in 1 4 8; do
			name=${thousands}k_$ranks
			part "declare_$name seal_$name seal_cpu_$name snapshot_$name parts_$name commit_$name step_cpu_$name heap_$name" \
				scale_part "$name" $((thousands * 1000)) $ranks
		done
	done
	part "agree_16x10k agree_cpu agree_owner" agree_part
}
