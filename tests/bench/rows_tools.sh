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

tools_rows() {
	local model plans=
	part "show_200k" tensors_part
	part "layout_100k layout_million layout_million_mem" layout_part
	for model in llama405b moe; do
		plans+=" ${model}_owners ${model}_owner ${model}_owners_mem ${model}_rank ${model}_rank_op"
		plans+=" ${model}_manifest ${model}_manifest_read ${model}_host_reads"
	done
	part "$plans" plan_part
}
