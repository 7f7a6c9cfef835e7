# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# rows_hub.sh - a Hugging Face directory of several files, loaded and cut for the ranks of a mesh: by ckptctl, and as one writes it
# in Python. Read by frameworks.sh.
# shellcheck disable=SC2154 # of common.sh
hub_ranks=4

cold() { # FILE...: out of the page cache
	local f
	for f; do
		dd if="$f" iflag=nocache count=0 status=none
	done
}

# Samples: hub_NAME_wall and hub_NAME_rss of a program that reads $hub.
hub_run() { # NAME CODE COMMAND...
	local name=$1 code=$2 got=0
	shift 2
	sleep "$rest"
	cold "$hub"/*.safetensors
	build/ckptbench timed "$@" 2>"$tmp/timed.out" >"$tmp/hub.out" || got=$?
	[ "$got" -eq "$code" ] || fail "$* ended with $got: $(tail -n 5 "$tmp/timed.out")"
	grep '^\(wall\|rss\) ' "$tmp/timed.out" >"$tmp/timed"
	samples "hub_$name" <"$tmp/timed"
}
hub_reshard() { hub_run reshard 0 build/ckptctl export "$hub" "$work/cut" --mesh fsdp=$hub_ranks --quiet; }
hub_reshard_torch() {
	hub_run reshard_torch 0 "$python" -W ignore tests/bench/hub_torch.py reshard "$hub" "$work/cut_torch" $hub_ranks
	sample hub_reshard_torch "$(pick reshard "$tmp/hub.out")"
}
# It ends with 3: safetensors has no checksums.
hub_load() { hub_run load 3 build/ckptctl verify --data "$hub" --quiet; }
hub_load_torch() {
	hub_run load_torch 0 "$python" -W ignore tests/bench/hub_torch.py load "$hub"
	sample hub_load_torch "$(pick load "$tmp/hub.out")"
}

# The same tensors in both: read by the safetensors package.
hub_compare() {
	"$python" - "$work/cut" "$work/cut_torch" $hub_ranks <<-'PYTHON' || fail "the shards of ckptctl and of torch differ"
		import sys
		import torch
		from safetensors.torch import load_file

		for rank in range(int(sys.argv[3])):
		    ours, theirs = (load_file(f"{d}/rank-{rank:05}.safetensors") for d in sys.argv[1:3])
		    assert ours.keys() == theirs.keys() and len(ours) > 0, rank
		    for k, v in theirs.items():
		        assert ours[k].dtype == v.dtype and ours[k].shape == v.shape, k
		        assert torch.equal(ours[k].view(torch.uint8), v.view(torch.uint8)), k
	PYTHON
}

hub_part() {
	local i size
	hub=$work/hub
	python3 tests/bench/hub_write.py "$hub" 96 4 "$bytes" || fail "hub_write.py"
	size=$(du -b -c "$hub"/*.safetensors | tail -1 | cut -f1)
	for ((i = 0; i < pairs; i++)); do
		rm -rf "$work/cut" "$work/cut_torch"
		pair "$i" hub_reshard hub_reshard_torch
		[ "$i" -ne 0 ] || hub_compare
		pair "$i" hub_load hub_load_torch
	done
	row hub_reshard 1.5 higher "$(calc "$size / $(median hub_reshard_wall)")" "$(calc "$size / $(median hub_reshard_torch)")" GB/s "$pairs"
	row hub_reshard_memory 0.2 lower "$(calc "$(median hub_reshard_rss) / 1048576")" "$(calc "$(median hub_reshard_torch_rss) / 1048576")" MiB "$pairs"
	row hub_load null higher "$(calc "$size / $(median hub_load_wall)")" "$(calc "$size / $(median hub_load_torch)")" GB/s "$pairs"
	row hub_load_memory null lower "$(calc "$(median hub_load_rss) / 1048576")" "$(calc "$(median hub_load_torch_rss) / 1048576")" MiB "$pairs"
	rm -rf "$hub" "$work/cut" "$work/cut_torch"
}

hub_rows() {
	part "hub_reshard hub_reshard_memory hub_load hub_load_memory" hub_part
}
