# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_snapshot.sh - what a snapshot costs the training loop, and what copying costs. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this
snapshots=60
many_snapshots=1000
few_mib=$((mib < 128 ? mib : 128)) # of state, where snapshots are many
few_bytes=$((few_mib << 20))
us() { calc "$(median "$1") / 1e3"; }
ms() { calc "$(median "$1") / 1e6"; }

stall_run() { # PREFIX BYTES SNAPSHOTS LOAD MEMORY: on a daemon of its own
	daemon_start
	bench "$1" stall "$socket" "$work/$1" "$2" "$3" "$4" "$5" "$daemon"
	daemon_stop
	rm -rf "${work:?}/$1"
}
copy_ns() { least "$1_copy_memcpy" "$1_copy_stream"; } # PREFIX
copy_cpu_ns() { least "$1_cpu_memcpy" "$1_cpu_stream"; }

stall_part() {
	local best n
	stall_run stall "$bytes" "$snapshots" free alloc
	best=$(copy_ns stall)
	n=$(count stall_stall)
	state=$(median stall_bytes)
	row stall 0.005 lower "$(us stall_stall)" "$(calc "$best / 1e3")" us "$n"
	row staged_share 0.99 higher "$(median stall_staged)" "$(median stall_asked)" steps "$snapshots"
	row interval null higher "$(ms stall_interval)" "$(calc "$best / 1e6")" ms "$snapshots"
	row snapshot_copy 0.95 higher "$(calc "$state / $(median stall_copy_cpu)")" "$(calc "$state / $(copy_cpu_ns stall)")" GB/s "$n"
	row snapshot_wait null lower "$(ms stall_copy_wait)" "$(ms stall_copy_cpu)" ms "$n"
	row time_to_staged null lower "$(ms stall_time_to_staged)" "$(calc "$best / 1e6")" ms "$n"
	[ "$(median stall_memory)" = 0 ] || row memory_running 1.05 lower "$(calc "$(median stall_memory) / 1e6")" "$(calc "$(median stall_slots) / 1e6")" MB 1
	bench hash hash $((256 << 20))
	row hash_pass null higher "$(calc "$((256 << 20)) / $(median hash_hashed)")" "$(calc "$state / $best")" GB/s "$(count hash_hashed)"
}

stall_tail() { # LOAD: the slowest of many
	stall_run "tail_$1" "$few_bytes" "$many_snapshots" "$1" alloc
	local n name=stall_p99 share=staged_share_busy
	[ "$1" = free ] || name=stall_p99_busy
	n=$(count "tail_$1_stall_all")
	row "$name" null lower "$(calc "$(quantile "tail_$1_stall_all" 0.99) / 1e3")" "$(calc "$(copy_ns "tail_$1") / 1e3")" us "$n"
	[ "$1" = free ] || row "$share" null higher "$(median tail_busy_staged)" "$(median tail_busy_asked)" steps "$many_snapshots"
}

canary_part() {
	for how in shared own; do
		bench "canary_$how" canary $how "$bytes" 1000
	done
	row mark_canary 5 lower "$(us canary_shared_mark)" 1 us 1000
	row guard_pages 20 lower "$(us canary_shared_guard)" 1 us 1000
	row guard_pages_own 20 lower "$(us canary_own_guard)" 1 us 1000
}

loop_part() { # HOW
	daemon_start
	bench "loop_$1" loop "$socket" "$work/loop" "$bytes" "$1" "$pairs"
	daemon_stop
	rm -rf "$work/loop"
	row "loop_$1" null lower "$(ms "loop_$1_with")" "$(ms "loop_$1_plain")" ms "$(count "loop_$1_with")"
	row "loop_$1_reached" null higher "$(median "loop_$1_reached")" "$(median "loop_$1_asked")" steps "$(median "loop_$1_asked")"
}

private_part() {
	local i load how
	for ((i = 0; i < 3; i++)); do
		for load in free idle; do
			for how in alloc private; do
				stall_run "${how}_$load" "$few_bytes" "$snapshots" "$load" "$how"
			done
		done
	done
	row private_staged 1.5 lower "$(ms private_free_time_to_staged)" "$(ms alloc_free_time_to_staged)" ms "$(count private_free_time_to_staged)"
	row private_staged_idle 1.2 lower "$(ms private_idle_time_to_staged)" "$(ms alloc_idle_time_to_staged)" ms "$(count private_idle_time_to_staged)"
	row private_stall null lower "$(us private_free_stall)" "$(us alloc_free_stall)" us "$(count private_free_stall)"
	[ "$(median private_free_memory)" = 0 ] || row private_memory 3.05 lower "$(calc "$(median private_free_memory) / 1e6")" "$(calc "$(median private_free_bytes) / 1e6")" MB 3
}

drift_part() {
	local i how
	for ((i = 0; i < pairs; i++)); do
		for how in replicated sharded; do
			daemon_start
			bench "drift_$how" drift "$socket" "$work/drift" "$few_bytes" $how 20 "$daemon"
			daemon_stop
			rm -rf "$work/drift"
		done
	done
	row drift_cpu 1.01 lower "$(ms drift_replicated_copy_cpu)" "$(ms drift_sharded_copy_cpu)" ms "$(count drift_sharded_copy_cpu)"
}

snapshot_rows() {
	part "stall staged_share interval snapshot_copy snapshot_wait time_to_staged memory_running hash_pass" stall_part
	part "stall_p99" stall_tail free
	part "stall_p99_busy staged_share_busy" stall_tail busy
	part "mark_canary guard_pages guard_pages_own" canary_part
	part "loop_staged loop_staged_reached" loop_part staged
	part "loop_persisted loop_persisted_reached" loop_part persisted
	part "private_staged private_staged_idle private_stall private_memory" private_part
	part "drift_cpu" drift_part
}
