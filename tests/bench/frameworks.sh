#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make bench-frameworks: the same work by a framework and by ckptd, in turn, on this machine. PyTorch comes into
# build/venv (some GB, once). What each row is: README.md beside this file. BENCH_* as for run.sh.
set -eu
cd "$(dirname "$0")/../.."
. tests/frameworks/venv.sh
venv_make build/venv '' || { echo "frameworks.sh: $venv_why" >&2; exit 1; }
python=build/venv/bin/python
json=build/bench-frameworks.json
. tests/bench/common.sh

echo "PyTorch $("$python" -c 'import torch; print(torch.__version__)'), $(nproc) cores, load before $(cut -d' ' -f1 /proc/loadavg)"

# ---- averages of the weights ----

. tests/bench/rows_average.sh
forms="foreach_lerp mul_add temporaries diffusers"
ema_torch_part() {
	local i form
	for ((i = 0; i < pairs; i++)); do
		bench ema ema "$ema_elements" 2
		"$python" tests/bench/ema_torch.py "$ema_elements" 2 >"$tmp/ema_torch" || fail "ema_torch.py"
		samples ema_torch <"$tmp/ema_torch"
	done
	ema_row ema_f32 null f32 12
	for form in $forms; do
		row "ema_$form" null higher "$(ema_speed "$(median "ema_torch_$form")" 12)" "$(ema_speed "$(ema_bound f32)" 12)" GB/s "$(count "ema_torch_$form")"
	done
}
part "ema_f32 ema_foreach_lerp ema_mul_add ema_temporaries ema_diffusers" ema_torch_part

# ---- the Python package ----

. tests/bench/rows_torch.sh
torch_rows

# ---- a Hugging Face directory ----

. tests/bench/rows_hub.sh
hub_rows

# ---- the steps of a redistribution ----

redist_part() {
	local planner
	"$python" -W ignore tests/bench/redist_torch.py build/ckptbench 200 1 >"$tmp/redist.out" || fail "redist_torch.py"
	samples redist <"$tmp/redist.out"
	for planner in graph greedy; do
		row "redist_$planner" null lower "$(median "redist_ratio_$planner")" 1 - "$(count "redist_ratio_$planner")"
		echo "# medians: $(calc "$(median "redist_ours_$planner") / 1e3") us, PyTorch's planner $(calc "$(median "redist_torch_$planner") / 1e3") us"
	done
}
part "redist_graph redist_greedy" redist_part

if ! wanted rank_plan_dcp durable_save dcp_save safetensors_save dcp_async_stall dcp_async_done load dcp_load safetensors_load; then
	bench_end
	exit 0
fi
part_rows=

# ---- planning ----

build/ckptbench plan list llama64 >"$tmp/list"
for _ in 1 2 3; do
	build/ckptbench plan rank llama64 >"$tmp/ours"
	samples ours <"$tmp/ours"
	"$python" tests/bench/dcp_planner.py 0 9 18 27 36 45 54 63 <"$tmp/list" >"$tmp/dcp"
	samples dcp <"$tmp/dcp"
done
row rank_plan_dcp null lower "$(calc "$(median ours_rank_plan) / 1e6")" "$(calc "$(median dcp_dcp_rank_plan) / 1e6")" ms "$(count dcp_dcp_rank_plan)"
echo "# 4,548 tensors of Llama 3.1 405B on 64 ranks (fsdp=16,tp=4), $(pick dcp_chunks "$tmp/dcp" | head -1) chunks in DCP's metadata; one rank of"
echo "# fsdp=8,tp=8 plans $(pick rank_ops "$tmp/ours" | head -1) operations here, $(pick dcp_ops "$tmp/dcp" | head -1) there"

# ---- the same state, saved and loaded ----

torch_start() {
	local line='' # bash has one coprocess at a time, and that is the job that saves
	mkfifo "$tmp/torch.in" "$tmp/torch.out"
	"$python" -W ignore::UserWarning tests/bench/dcp_state.py "$work" "$bytes" <"$tmp/torch.in" >"$tmp/torch.out" &
	torch=$!
	exec {torch_in}>"$tmp/torch.in" {torch_out}<"$tmp/torch.out"
	while [ "$line" != "ready 0" ]; do
		read -r line <&"$torch_out" || fail "PyTorch did not start"
	done
}

torch_do() { # WHAT N: its samples are torch_NAME
	local name n
	[ "$1" = remove ] || sleep "$rest"
	echo "$1 $2" >&"$torch_in"
	while read -r name n <&"$torch_out"; do
		[ "$name" != end ] || return 0
		sample "torch_$name" "$n"
	done
	fail "PyTorch has gone"
}

at=0
save_dcp() { torch_do save "$at"; }
load_dcp() { torch_do load "$at"; }
async_dcp() { torch_do async "a$at"; }
save_st() { torch_do st_save "$at"; }
load_st() { torch_do st_load "$at"; }
memcpy_dcp() { torch_do memcpy 0; }
everything() { # one round; the order turns
	local what all=(save_one fio_write save_dcp save_st async_dcp memcpy_dcp) n=6 i
	for ((i = 0; i < n; i++)); do
		what=${all[(i + $1) % n]}
		$what
	done
	rm -rf "$work/dcp-a$at"
}

torch_start
daemon_start
saver_start "$work/one" 1
for ((at = 0; at < pairs; at++)); do
	everything "$at"
	[ "$at" -eq 0 ] || torch_do remove $((at - 1))
done
at=$((pairs - 1))
saver_stop
daemon_stop
gb() { calc "$(median save_bytes) / $(median "torch_$1")"; } # GB/s
row durable_save null higher "$(speed save_speed)" "$(speed fio_write)" GB/s "$pairs"
row dcp_save null higher "$(gb save)" "$(speed fio_write)" GB/s "$pairs"
row safetensors_save null higher "$(gb st_save)" "$(speed fio_write)" GB/s "$pairs"
row dcp_async_stall null lower "$(calc "$(median torch_async_blocked) / 1e6")" "$(calc "$(median torch_memcpy) / 1e6")" ms "$pairs"
row dcp_async_done null higher "$(gb async)" "$(speed fio_write)" GB/s "$pairs"

label=load store=$work/one step=$last world=1
step_files "$store"
fio_read_choose
daemon_start
for ((i = 0; i < pairs; i++)); do
	for what in restore_one fio_read load_dcp load_st; do
		$what
	done
done
daemon_stop
row load null higher "$(speed load)" "$(speed fio_load)" GB/s "$pairs"
row dcp_load null higher "$(gb load)" "$(speed fio_load)" GB/s "$pairs"
row safetensors_load null higher "$(gb st_load)" "$(speed fio_load)" GB/s "$pairs"
exec {torch_in}>&-
wait "$torch" || true
bench_end
