#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make bench-frameworks: the same work by a framework and by ckptd, in turn, on this machine. PyTorch comes into
# build/venv (some GB, once). What each row is: README.md beside this file.
set -eu
cd "$(dirname "$0")/../.."
python=build/venv/bin/python
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-bench.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
if ! "$python" -c 'import torch' 2>/dev/null; then
	echo "installing PyTorch into build/venv"
	python3 -m venv build/venv
	build/venv/bin/pip --quiet install torch numpy
fi
median() { sort -n "$1" | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }
pick() { sed -n "s/^$1 //p" "$2"; } # NAME FILE

echo "PyTorch $("$python" -c 'import torch; print(torch.__version__)'), $(nproc) cores, load before $(cut -d' ' -f1 /proc/loadavg)"
build/ckptbench plan list llama64 >"$tmp/list"
for _ in 1 2 3; do
	build/ckptbench plan rank llama64 >"$tmp/ours"
	pick rank_plan "$tmp/ours" >>"$tmp/ours.ns"
	"$python" tests/bench/dcp_planner.py 0 9 18 27 36 45 54 63 <"$tmp/list" >"$tmp/dcp"
	pick dcp_rank_plan "$tmp/dcp" >>"$tmp/dcp.ns"
done
ours=$(median "$tmp/ours.ns") dcp=$(median "$tmp/dcp.ns")
printf '%-20s %10s %12s %12s %-5s %4s\n' name ratio numerator denominator unit n
awk -v a="$ours" -v b="$dcp" -v n="$(wc -l <"$tmp/dcp.ns")" \
	'BEGIN { printf "%-20s %10.4g %12.6g %12.6g %-5s %4d\n", "rank_plan_dcp", a / b, a / 1e6, b / 1e6, "ms", n }'
echo "4,548 tensors of Llama 3.1 405B on 64 ranks (fsdp=16,tp=4), $(pick dcp_chunks "$tmp/dcp") chunks in DCP's metadata; one rank of fsdp=8,tp=8"
echo "plans $(pick rank_ops "$tmp/ours" | head -1) operations here, $(pick dcp_ops "$tmp/dcp" | head -1) there"
