# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_convert.sh - conversions between formats and meshes, beside the disk that reads and writes at once; and what headers with
# very many tensors cost. Read by run.sh.
# shellcheck disable=SC2034,SC2154 # set or used by who reads this
limit_mib=512

data_bytes() { du -b -c "$@" | tail -1 | cut -f1; } # FILE...

# Samples: PREFIX_speed, PREFIX_wall, PREFIX_cpu, PREFIX_rss. OPTION... come after --mem-limit.
converted() { # PREFIX BYTES SOURCE DST [OPTION...]
	local prefix=$1 size=$2 source=$3 dst=$4
	shift 4
	sleep "$rest"
	build/ckptbench timed build/ckptctl convert "$source" "$dst" --mem-limit ${limit_mib}M --quiet "$@" \
		2>"$tmp/timed.out" >"$tmp/convert.out" || fail "convert: $(cat "$tmp/timed.out" "$tmp/convert.out")"
	samples "$prefix" <"$tmp/timed.out"
	sample "${prefix}_speed" "$(calc "$size * 1e9 / $(pick wall "$tmp/timed.out")")"
	rm -rf "$work/converted"
}
native_to_native() { converted convert "$native_bytes" "$native" "$work/converted" --mesh fsdp=3; }
native_to_hub() { converted to_hub "$native_bytes" "$native" "$work/converted" --to safetensors; }
hub_to_native() { converted from_hub "$hub_bytes" "$hub" "$work/converted"; }
mixed_native() { files=$native_files; sample mixed_native "$(fio_speed mixed)"; }
mixed_hub() { files=$hub_files; sample mixed_hub "$(fio_speed mixed)"; }

over_limit() { calc "($(median "$1") / 1048576) - $limit_mib"; } # MiB beyond the limit
convert_rows() { # ROW FIO BYTES CPU_TARGET
	row "$1" 0.9 higher "$(speed "$1_speed")" "$(speed "$2")" GB/s "$pairs"
	row "$1_cpu" "$4" lower "$(calc "$(median "$1_cpu") / 1e9")" "$(calc "$3 / 1e9")" s/GB "$pairs"
	row "$1_memory" 64 lower "$(over_limit "$1_rss")" 1 MiB "$pairs"
}

convert_part() {
	local i what all=(native_to_native mixed_native native_to_hub mixed_hub hub_to_native)
	build/ckptbench many "$work/source" 96 4 1 "$bytes"
	step_files "$work/source" 1
	native=$where native_files=$files native_bytes=$(data_bytes "$where"/*.part)
	hub=$work/hub
	python3 tests/bench/hub_write.py "$hub" 96 4 "$bytes" || fail "hub_write.py"
	hub_files=$(printf ':%s' "$hub"/*.safetensors)
	hub_files=${hub_files#:} hub_bytes=$(data_bytes "$hub"/*.safetensors)
	for what in "${all[@]}"; do # once, for what a first run makes
		$what
	done
	rm "$tmp"/convert_*.n "$tmp"/to_hub_*.n "$tmp"/from_hub_*.n "$tmp"/mixed_*.n
	for ((i = 0; i < pairs; i++)); do
		pair "$i" native_to_native mixed_native
		pair "$i" mixed_native native_to_hub
		pair "$i" hub_to_native mixed_hub
	done
	convert_rows convert mixed_native "$native_bytes" null
	convert_rows to_hub mixed_native "$native_bytes" 0.15
	convert_rows from_hub mixed_hub "$hub_bytes" 0.15
	rm -rf "$work/source" "$hub"
}

convert_big_part() {
	rm -rf "$work/source"
	build/ckptbench many "$work/source" 96 4 1 $((big_mib << 20))
	step_files "$work/source" 1
	converted big "$(data_bytes "$where"/*.part)" "$where" "$work/converted" --mesh fsdp=3
	row convert_memory_big 64 lower "$(over_limit big_rss)" 1 MiB 1
	row convert_growth 1.05 lower "$(calc "$(median big_rss) / 1048576")" "$(calc "$(median convert_rss) / 1048576")" MiB 1
	rm -rf "$work/source"
}

# ---- 200,000 tensors in one header ----

json_loads() { # FILE: Python reads and parses its header; nanoseconds
	python3 - "$1" <<-'PYTHON'
		import json, sys, time
		begin = time.monotonic_ns()
		with open(sys.argv[1], "rb") as f:
		    assert len(json.loads(f.read(int.from_bytes(f.read(8), "little")))) == 200001
		print("json", time.monotonic_ns() - begin)
	PYTHON
}
shown() { # PREFIX PATH
	build/ckptbench timed build/ckptctl show "$2" 2>"$tmp/timed.out" >"$tmp/show.out" || fail "show: $(cat "$tmp/timed.out")"
	samples "$1" <"$tmp/timed.out"
}
headers_part() {
	local i header=$work/headers/model.safetensors sparse=$work/sparse/model.safetensors
	python3 tests/bench/hub_write.py "$work/headers" 200000 1 $((200000 * 64)) || fail "hub_write.py"
	python3 tests/bench/hub_write.py "$work/sparse" 200000 1 $((200000 * 4096)) hole || fail "hub_write.py"
	for ((i = 0; i < 5; i++)); do
		shown header "$work/headers"
		json_loads "$header" >"$tmp/json.out" || fail "json.loads"
		samples header <"$tmp/json.out"
		shown sparse "$work/sparse"
	done
	grep -q 133,334 "$tmp/show.out" || fail "show does not show them: $(cat "$tmp/show.out")"
	row show_header 0.5 lower "$(calc "$(median header_wall) / 1e9")" 1 s 5
	row show_header_json 0.5 lower "$(calc "$(median header_wall) / 1e9")" "$(calc "$(median header_json) / 1e9")" s 5
	row show_header_memory 128 lower "$(calc "$(median header_rss) / 1048576")" 1 MiB 5
	row show_header_data 1.1 lower "$(calc "$(median sparse_cpu) / 1e9")" "$(calc "$(median header_cpu) / 1e9")" s 5
	rm -rf "$work/headers" "$work/sparse"
}

lists_part() {
	local i steps=5
	build/ckptbench many "$work/many" 100000 4 $steps 0
	for ((i = 0; i < 5; i++)); do
		build/ckptbench timed build/ckptctl ls "$work/many" 2>"$tmp/timed.out" >"$tmp/ls.out"
		samples ls_100k <"$tmp/timed.out"
	done
	grep -q "$steps checkpoints" "$tmp/ls.out" || fail "ls: $(cat "$tmp/ls.out")"
	row ls_100k 10 lower "$(calc "$(median ls_100k_wall) / 1e6 / $steps")" 1 ms 5
	rm -rf "$work/many"
}

# What looking for changes adds to a plan, where all tensors are alike.
explicit_part() {
	local i step
	build/ckptbench many "$work/many" 100000 4 1 0
	step=$(echo "$work"/many/*/step-*)
	for ((i = 0; i < 5; i++)); do
		build/ckptbench timed build/ckptctl plan "$step" --mesh fsdp=3 2>"$tmp/timed.out" >"$tmp/plan.out"
		samples planned <"$tmp/timed.out"
		build/ckptbench timed build/ckptctl plan "$step" --mesh fsdp=3 --explicit --allow reshard 2>"$tmp/timed.out" >"$tmp/plan.out"
		samples explicit <"$tmp/timed.out"
	done
	grep -q "READ/HELD" "$tmp/plan.out" || fail "plan: $(cat "$tmp/timed.out" "$tmp/plan.out")"
	row explicit_100k 1.3 lower "$(calc "$(median explicit_cpu) / 1e9")" "$(calc "$(median planned_cpu) / 1e9")" s 5
	rm -rf "$work/many"
}

conversion_rows() {
	local name list=
	for name in convert to_hub from_hub; do
		list+=" $name ${name}_cpu ${name}_memory"
	done
	part "$list convert_growth" convert_part
	part "convert_memory_big convert_growth" convert_big_part
	part ls_100k lists_part
	part explicit_100k explicit_part
	part "show_header show_header_json show_header_memory show_header_data" headers_part
}
