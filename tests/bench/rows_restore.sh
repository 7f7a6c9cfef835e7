# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_restore.sh - what it takes to go on: from disk, from memory, after a kill. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this

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
	row "$1_cpu" null lower "$(calc "$(median "$1_cpu") / 1e9")" "$(calc "$(median save_bytes) / 1e9")" s/GB "$pairs"
	row "$1_read" 1.02 lower "$(calc "$read / 1e9")" "$(calc "$pairs * $(median save_bytes) / 1e9")" GB "$pairs"
}

same_part() {
	if [ -z "$one" ]; then # no save was measured
		daemon_start
		saver_start "$work/one" 1
		save_one
		one=$last
		saver_stop
		daemon_stop
	fi
	restores restore_same_mesh "$work/one" "$one" 1 0.95
}
verify_one() {
	local t
	sleep "$rest"
	t=$(date +%s%N)
	build/ckptctl verify --data "$where" >"$tmp/verify.out" || fail "verify: $(cat "$tmp/verify.out")"
	sample verify "$(calc "$verify_bytes / (($(date +%s%N) - $t) / 1e9)")"
}
verify_part() {
	local i
	[ -n "$one" ] || same_part
	step_files "$work/one" "$one"
	verify_bytes=$(du -b -c "$where"/* | tail -1 | cut -f1)
	label=verify
	for ((i = 0; i < 5; i++)); do
		pair "$i" verify_one fio_read
	done
	row verify_data null higher "$(speed verify)" "$(speed fio_verify)" GB/s 5
}
other_part() {
	local two
	daemon_start
	saver_start "$work/two" 2
	save_one
	two=$last
	saver_stop
	daemon_stop
	restores restore_other_mesh "$work/two" "$two" 3 0.9
	rm -rf "$work/two"
}

# A job is killed and starts again. Each round has a daemon of its own, which then knows no other job.
life_run() { # PREFIX RANKS REST_MS [COMMAND...] that runs both
	local i prefix=$1 ranks=$2 wait=$3
	shift 3
	for ((i = 0; i < 3; i++)); do
		daemon_start "$@"
		"$@" build/ckptbench life "$socket" "$work/life" "$bytes" "$ranks" 2 "$wait" "$daemon" >"$tmp/life.out" ||
			fail "ckptbench life"
		samples "$prefix" <"$tmp/life.out"
		daemon_stop
		rm -rf "$work/life"
	done
}
life_part() {
	life_run life "$(nproc)" 3000
	local copy
	copy=$(median life_copy_best)
	row restart 1.3 lower "$(calc "$(median life_restart) / 1e6")" "$(calc "($(median life_fresh) + $copy) / 1e6")" ms "$(count life_restart)"
	row restore_memory 1.05 lower "$(calc "$(median life_restored) / 1e6")" "$(calc "($copy + 5e7) / 1e6")" ms "$(count life_restored)"
	[ "$(median life_memory_restart)" = 0 ] ||
		row memory_restarting 1.05 lower "$(calc "$(quantile life_memory_restart 1) / 1e6")" "$(calc "3 * $(median life_bytes) / 1e6")" MB 3
}
life_one_part() {
	life_run life_one 1 0 taskset -c 0
	row restore_memory_one 1.05 lower "$(calc "$(median life_one_restored) / 1e6")" \
		"$(calc "($(median life_one_copy_best) + 5e7) / 1e6")" ms "$(count life_one_restored)"
}

restore_rows() {
	part "restore_same_mesh restore_same_mesh_cpu restore_same_mesh_read" same_part
	part "verify_data" verify_part
	rm -rf "$work/one"
	part "restore_other_mesh restore_other_mesh_cpu restore_other_mesh_read" other_part
	part "restart restore_memory memory_restarting" life_part
	part "restore_memory_one" life_one_part
}
