#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Averages of the weights from the job to a model file: a job of one process keeps two averages, each committed step has them, and
# ckptctl lists, verifies, restores and converts them. The elements of the averaged model are those that the trainer's own plain
# loop computed.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
export CKPTD_SOCKET=$socket

build_it() {
	gcc -std=c17 -D_GNU_SOURCE -O1 -I"$root/ckpt" -o "$tmp/averaged" "$root/tests/e2e/averaged.c" -L"$build" -lckpt -lm \
		-Wl,-rpath,"$build"
}
says() { grep -qF -- "$1" "$2" || { cat "$2"; return 1; }; }
run_job() { (cd "$tmp" && timeout 60 ./averaged "$store" "$tmp" "$1" >"$tmp/job.out" 2>&1) || { cat "$tmp/job.out"; return 1; }; }
# The bytes of a tensor of a safetensors file: its offsets stand in the header.
tensor_of() { # FILE NAME
	local n at
	n=$(od -An -t u8 -N 8 "$1" | tr -d ' ')
	at=$(head -c $((8 + n)) "$1" | tail -c "$n" | grep -o "\"$2\":{[^}]*}" | grep -o 'data_offsets":\[[0-9]*,[0-9]*' | grep -o '[0-9]*,[0-9]*$')
	[ -n "$at" ] || return 1
	tail -c +$((9 + n + ${at%,*})) "$1" | head -c $((${at#*,} - ${at%,*}))
}
same_tensor() { # FILE NAME FILE2: the tensor's bytes are all of that file
	tensor_of "$1" "$2" >"$tmp/have" && [ -s "$tmp/have" ] && cmp "$tmp/have" "$3"
}
ctl() { "$ckptctl" -C "$store" "$@" >"$tmp/out.txt" 2>&1 || { local rc=$?; cat "$tmp/out.txt"; return "$rc"; }; }

check "a trainer with averages compiles" build_it
check "a daemon listens" daemon_start
check "the job keeps its averages for 7 steps" run_job 7
check "ema lists them" ctl ema
check "fast has 6 updates behind the copy" eval 'ctl ema && says "fast: constant decay=0.9 " "$tmp/out.txt" && says "6 updates since step 1, the newest at step 7" "$tmp/out.txt"'
check "slow has a carry and a rule of its own" eval 'ctl ema && says "ema.slow.carry/" "$tmp/out.txt" && says "rule 1, uniform" "$tmp/out.txt"'
check "and their health" eval 'ctl ema && says "health: updates 6" "$tmp/out.txt"'
check "status has them too" eval 'ctl status && says "fast: step 7, 6 updates, 0 steps behind" "$tmp/out.txt"'
check "every byte is verified" ctl verify --data latest
check "export --only ema.fast" ctl restore latest "$tmp/fast" --only ema.fast
check "its elements are those of the plain loop" same_tensor "$tmp/fast/model.safetensors" w "$tmp/fast.w"
check "the copied tensors are the step's own" eval 'ctl restore latest "$tmp/raw" --only model && tensor_of "$tmp/raw/model.safetensors" running >"$tmp/running" && same_tensor "$tmp/fast/model.safetensors" running "$tmp/running"'
check "the raw model has the weights" same_tensor "$tmp/raw/model.safetensors" w "$tmp/raw.w"
check "and is another one" eval '! cmp -s "$tmp/fast.w" "$tmp/raw.w"'
check "as BF16" ctl restore latest "$tmp/half" --only ema.fast --dtype BF16
check "the averaged model of the step in memory" ctl restore averaged@latest "$tmp/memory" --only ema.fast --from-memory
check "has the same elements" same_tensor "$tmp/memory/model.safetensors" w "$tmp/fast.w"
check "convert to another mesh" ctl convert latest "$tmp/converted" --mesh fsdp=3
check "has the same averages" eval '"$ckptctl" diff "$store/averaged/step-000000000007" "$tmp/converted" >"$tmp/out.txt" && ! grep "^Average " "$tmp/out.txt"'
check "from there, the averaged model" "$ckptctl" restore "$tmp/converted" "$tmp/again" --only ema.fast
check "with the same elements" same_tensor "$tmp/again/model.safetensors" w "$tmp/fast.w"

# README's commands, one by one, on this store.
readme_commands() {
	local line n=0
	awk '/^<!-- averages -->$/ { on = 1; next } on && /^[^ ]/ { exit } on && NF' "$root/README.md" >"$tmp/commands"
	mkdir -p "$tmp/readme"
	while read -r line; do
		(cd "$tmp/readme" && export CKPTD_STORE=$store PATH=$build:$PATH && eval "$line") >"$tmp/out.txt" 2>&1 || {
			[[ $line == *" diff "* && $? -eq 6 ]] || { echo "$line"; cat "$tmp/out.txt"; return 1; }
		}
		n=$((n + 1))
	done <"$tmp/commands"
	[ "$n" -ge 4 ]
}
check "README's commands about averages run" readme_commands
check "and the model of its restore is the averaged one" cmp "$tmp/readme/fast/model.safetensors" "$tmp/half/model.safetensors"
tap_end
