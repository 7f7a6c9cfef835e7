#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Parameters that are declared as the rounding of their masters are not written, and are there all the same:
# after kill -9 and on another mesh the losses are those of a run without checkpoints, bit for bit.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/trainer_tap.sh"

ctl=$(dirname "$trainer")/ckptctl
store=$tmp/store
steps=40
train() { # JOB OPTION...
	local name=$1
	shift
	"$trainer" --root "$store" --socket "$tmp/sock" --job "$name" --steps $steps --params 400K \
		--snapshot-every 5 --losses "$tmp/$name.losses" "$@"
}
# Train until a step is committed, then kill all ranks.
train_and_kill() { # JOB OPTION...
	setsid "$trainer" --root "$store" --socket "$tmp/sock" --job "$1" --steps 100000 --params 400K \
		--snapshot-every 5 --step-ms 20 --losses "$tmp/$1.losses" "${@:2}" &
	job=$!
	for _ in $(seq 300); do
		[ -z "$(find "$store/$1" -maxdepth 1 -name 'step-*' 2>/dev/null)" ] || break
		kill -0 "$job" || return 1
		sleep 0.1
	done
	kill -KILL -- "-$job"
	wait "$job" 2>/dev/null || true
	job=
	[ -n "$(find "$store/$1" -maxdepth 1 -name 'step-*')" ]
}
# The last line of each step, up to the last one that both runs have.
same_losses() { # JOB
	awk -v steps=$steps '$1 <= steps { line[$1] = $0 } END { for (i = 1; i <= steps; i++) print line[i] }' \
		"$tmp/$1.losses" >"$tmp/$1.last"
	cmp "$tmp/plain" "$tmp/$1.last"
}
newest() { find "$store/$1" -maxdepth 1 -name 'step-*' | sort | tail -n 1; } # JOB
bytes() { cat "$(newest "$1")"/*.part | wc -c; }				 # JOB
# Of what is derived nothing is stored.
all_spared() { # JOB
	"$ctl" show "$(newest "$1")" --json >"$tmp/show.json" && cat "$tmp/show.json"
	grep -q '"stored_piece_count":0' "$tmp/show.json" && ! grep -q '"spared_bytes":0' "$tmp/show.json"
}
# Of a step whose derived tensors were checked and are the rounding of their masters nobody says anything else.
not_slandered() { # STEP
	"$ctl" show "$1" >"$tmp/show.out" && cat "$tmp/show.out" && ! grep -q "not the rounding" "$tmp/show.out"
}
# What a tensor is by cat, and after a conversion to another mesh.
same_values() { # STEP OTHER
	local name
	for name in fc1.weight kind.weight out.bias; do
		"$ctl" cat "$1" "model/$name" >"$tmp/a" && "$ctl" cat "$2" "model/$name" >"$tmp/b" &&
			[ -s "$tmp/a" ] && cmp "$tmp/a" "$tmp/b" || return 1
	done
}
# Cut, turned, joined and renamed, onto another mesh: the data of the safetensors files.
cat >"$tmp/view" <<-'EOT'
	transpose model/fc1.weight dims 1,0
	split model/emb.weight dim 0 sizes 100,156 -> model/emb.a model/emb.b
	rename optim/out.weight.master -> optim/ow
	concat model/fc1.bias model/fc2.bias dim 0 -> model/biases
EOT
tensors_of() { tail -c +$((9 + $(od -An -tu8 -N8 "$1"))) "$1"; } # FILE
same_views() { # STEP OTHER
	local file
	"$ctl" restore "$1" "$tmp/view.a" --mesh fsdp=3 --view "$tmp/view" &&
		"$ctl" restore "$2" "$tmp/view.b" --mesh fsdp=3 --view "$tmp/view" || return 1
	for file in "$tmp"/view.a/*.safetensors; do
		tensors_of "$file" >"$tmp/a" && tensors_of "$tmp/view.b/${file##*/}" >"$tmp/b" &&
			[ -s "$tmp/a" ] && cmp "$tmp/a" "$tmp/b" || return 1
	done
}
smaller() { # of 14 bytes a parameter two are not written
	local with without
	with=$(bytes derived)
	without=$(bytes stored)
	echo "$with bytes derived, $without bytes stored"
	[ $((with * 100)) -lt $((without * 92)) ]
}

check "a run without checkpoints" "$trainer" --no-checkpoint --mesh fsdp=2 --steps $steps --params 400K \
	--losses "$tmp/plain"
check "a run that stores its parameters" train stored --mesh fsdp=2
check "a run that derives them is killed" train_and_kill derived --mesh fsdp=2 --derived
check "what it wrote is right" "$ctl" verify --data "$(newest derived)"
check "and has no bytes of what is derived" all_spared derived
check "it goes on, from disk, on another mesh" train derived --mesh dp=2,fsdp=3 --derived --resume disk
check "with the same losses" same_losses derived
check "what it wrote is right" "$ctl" verify --data "$(newest derived)"
check "and has no bytes of what is derived" all_spared derived
check "its steps are smaller" smaller
for component in model optim; do
	check "diff finds both runs equal in every tensor of $component" \
		"$ctl" diff "$(newest stored)" "$(newest derived)" --tensors "$component/*"
done
check "it is converted to another mesh" "$ctl" convert "$(newest derived)" "$tmp/converted" --mesh fsdp=3
check "with the same bytes" same_values "$(newest stored)" "$tmp/converted"
check "which is right" "$ctl" verify --data "$tmp/converted"
check "show says nothing false of it" not_slandered "$tmp/converted"
check "a run that derives them and is not killed" train whole --mesh fsdp=2 --derived
check "restored on another mesh through a view, the bytes are the same" \
	same_views "$(newest stored)" "$(newest whole)"
check "a run of boxes that derives is killed" train_and_kill boxes --mesh fsdp=3 --layout boxes --derived
check "what it wrote is right" "$ctl" verify --data "$(newest boxes)"
check "and has no bytes of what is derived" all_spared boxes
check "it goes on from memory" train boxes --mesh fsdp=3 --layout boxes --derived --resume latest
check "with the same losses" same_losses boxes
tap_end
