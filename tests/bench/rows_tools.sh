# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_tools.sh - the command's rows: lists, layouts, plans. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this

tensors_part() {
	local i
	build/ckptbench many "$work/tensors" 200000 4 1 0
	for ((i = 0; i < 5; i++)); do
		build/ckptbench timed build/ckptctl show -C "$work/tensors" 2>"$tmp/timed.out" >"$tmp/show.out"
		samples show <"$tmp/timed.out"
	done
	grep -q 200,000 "$tmp/show.out" || fail "show does not show them: $(cat "$tmp/show.out")"
	row show_200k 0.5 lower "$(calc "$(median show_wall) / 1e9")" 1 s 5
	rm -rf "$work/tensors"
}

# Two tensors go from their first dimension to their second one, and back to the first: half of all
# bytes change their rank.
exchange_part() {
	local how moved side=$((mib < 256 ? 2048 : 8192))
	MAKEFLAGS='' make -s --no-print-directory build/exchange
	printf '{"shape":[%d,%d],"mesh":[2],"placements":["S(%d)"]}\n' "$side" "$side" 0 "$side" "$side" 1 >"$tmp/exchanged"
	for how in share copy; do
		TMPDIR=$work build/exchange --layouts --"$how" --elements $((side * side)) --round 4194304 --pairs 21 "$tmp/exchanged" >"$tmp/exchange.out" ||
			fail "exchange: $(cat "$tmp/exchange.out")"
		awk '/^pair/ { print "exchange", $4; print "memcpy", $7 }' "$tmp/exchange.out" >"$tmp/pairs"
		samples "$how" <"$tmp/pairs"
		moved=$(awk '/^[0-9]* bytes; / { print $1 / 1e6 }' "$tmp/exchange.out")
		row "exchange_$how" "$([ "$how" = share ] && echo 0.5 || echo null)" higher "$(calc "$moved / $(median "${how}_exchange")")" \
			"$(calc "$moved / $(median "${how}_memcpy")")" GB/s 21
	done
}
layout_part() {
	local i name
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
}

plan_part() {
	local i model what memory size dram_ns
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
}

schedule_part() {
	local i model
	for model in moe layouts; do
		for ((i = 0; i < 3; i++)); do
			build/ckptbench plan schedule "$model" >"$tmp/plan.out" || fail "plan schedule $model"
			samples "$model" <"$tmp/plan.out"
		done
		# One thread that waits for nothing: what it takes is its processor time, whatever
		# else the machine does.
		row "schedule_$model" 50 lower "$(calc "$(median "${model}_schedule_cpu") / 1e6")" 1 ms "$(count "${model}_schedule")"
		row "schedule_${model}_wall" null lower "$(calc "$(median "${model}_schedule") / 1e6")" 1 ms "$(count "${model}_schedule")"
		row "schedule_${model}_mem" 64 lower "$(calc "($(median "${model}_resident") - $(median "${model}_resident_before")) / 1048576")" 1 MiB 3
	done
}
take_part() { # what schedules of all ranks take, in the model, over what their busiest link needs
	local name
	build/ckptbench plan take >"$tmp/take.out" || fail "plan take"
	samples take <"$tmp/take.out"
	for name in fsdp64_tp8 ep2048_ep256 hsdp_fsdp pp_mesh; do
		row "take_$name" 1.15 lower "$(calc "$(median "take_${name}_ppm") / 1e6")" 1 x 1
	done
}

steps_of_many_part() { # one tensor on 2,048 ranks: a search, an exchange of all with all, PyTorch's plan; the whole command
	local i
	for ((i = 0; i < 5; i++)); do
		build/ckptbench timed build/ckptctl plan --steps 'S(0)[0]S(0)[1]R -> RS(1)S(0)' --mesh 64,8,4 --shape 16384,16384,8 \
			--dtype bf16 --links h100 --json 2>"$tmp/timed.out" >"$tmp/steps"
		samples steps <"$tmp/timed.out"
	done
	grep -q '"planner":"direct","us":[0-9]' "$tmp/steps" || fail "plan --steps: $(cat "$tmp/steps")"
	row steps_2048 0.5 lower "$(calc "$(median steps_wall) / 1e9")" 1 s 5
}

wide_part() { # few tensors, on more ranks than there are elements in some of them
	local i step
	build/ckptbench many "$work/wide" 20 4 1 0
	step=$(echo "$work"/wide/*/step-*)
	for ((i = 0; i < 5; i++)); do
		build/ckptbench timed build/ckptctl plan "$step" --mesh fsdp=100000 --links h100 2>"$tmp/timed.out" >"$tmp/plan.out"
		samples wide <"$tmp/timed.out"
	done
	grep -q "what its busiest link needs" "$tmp/plan.out" || fail "plan --links: $(cat "$tmp/timed.out" "$tmp/plan.out")"
	row plan_wide 1 lower "$(calc "$(median wide_cpu) / 1e9")" 1 s 5
	rm -rf "$work/wide"
}

apart_part() { # tensors without placements: an exchange has each of them apart
	local i n
	for n in 25000 100000; do
		python3 tests/bench/hub_write.py "$work/apart" "$n" 1 $((n * 64)) hole || fail "hub_write.py"
		for ((i = 0; i < 5; i++)); do
			build/ckptbench timed build/ckptctl plan "$work/apart" --mesh fsdp=4 --links h100 2>"$tmp/timed.out" >"$tmp/plan.out"
			samples "apart_$n" <"$tmp/timed.out"
		done
		grep -q "host r0 sends" "$tmp/plan.out" || fail "plan --links: $(cat "$tmp/timed.out" "$tmp/plan.out")"
		rm -rf "$work/apart"
	done
	row plan_apart 6 lower "$(calc "$(median apart_100000_cpu) / 1e9")" "$(calc "$(median apart_25000_cpu) / 1e9")" s 5
}

redist_steps_part() {
	build/ckptbench plan steps >"$tmp/steps.out" || fail "plan steps"
	samples redist <"$tmp/steps.out"
	row redist_steps 5 lower "$(calc "$(median redist_steps) / 1e6")" 1 ms "$(count redist_steps)"
	row redist_own 5 lower "$(calc "$(median redist_own) / 1e6")" 1 ms "$(count redist_own)"
}

tools_rows() {
	local model plans=
	part "show_200k" tensors_part
	part "layout_100k layout_million layout_million_mem" layout_part
	part "exchange_share exchange_copy" exchange_part
	for model in llama405b moe; do
		plans+=" ${model}_owners ${model}_owner ${model}_owners_mem ${model}_rank ${model}_rank_op"
		plans+=" ${model}_manifest ${model}_manifest_read ${model}_host_reads"
	done
	part "$plans" plan_part
	plans=
	for model in moe layouts; do
		plans+=" schedule_$model schedule_${model}_wall schedule_${model}_mem"
	done
	part "$plans" schedule_part
	part "redist_steps redist_own" redist_steps_part
	part "take_fsdp64_tp8 take_ep2048_ep256 take_hsdp_fsdp take_pp_mesh" take_part
	part "steps_2048" steps_of_many_part
	part "plan_wide" wide_part
	part "plan_apart" apart_part
}
