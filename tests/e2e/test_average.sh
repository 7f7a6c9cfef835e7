#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The three averages that ckpt.h shows, through a training job: every step has them; they go on in memory, on disk and on other
# meshes; what a user restores is a model that anything loads; and an average that cannot be made is refused, with everything that is wrong.
# (test_ema.sh checks the elements; tests/storm checks them through kills.)
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

three=(--average 'fast=constant decay=.999' --average 'slow=power sigma_rel=.10' --average 'paper=diffusers decay=.9999')
job() { # OPTION...: in the foreground
	timeout 60 "$trainer" --params "$params" --root "$store" --job a --socket "$socket" --guard finish --wait-ready --snapshot-every 2 "$@"
}
ctl() {
	"$ckptctl" -C "$store/a" "$@"
}
states() { # of each average NAME UPDATES SINCE LAST, a line each
	ctl ema --json | tr '{' '\n' |
		sed -n 's/^"name":"\([a-z]*\)".*"updates":\([0-9]*\),"since_step":\([0-9]*\),"last_step":\([0-9]*\),.*/\1 \2 \3 \4/p'
}
states_are() { # UPDATES SINCE LAST: of all three
	local now
	now=$(states)
	[ "$now" = "fast $*"$'\n'"paper $*"$'\n'"slow $*" ] || { echo "$now"; return 1; }
}
has() { # WORD COMMAND...: the command succeeds, and says so
	local word=$1 out
	shift
	out=$("$@" 2>&1) || { echo "$out"; return 1; }
	grep -qF -- "$word" <<<"$out" || { echo "$out"; return 1; }
}
# A number that is the loss of a model, printed by the trainer.
loss_of() { # FILE
	"$trainer" --params "$params" --evaluate "$1" | sed -n 's/^trainer: loss \([0-9.]*\) of .*/\1/p' | grep .
}
average_is_another_model() {
	local raw fast
	ctl restore latest "$tmp/raw" --only model --dtype BF16 && ctl restore latest "$tmp/fast" --only ema.fast --dtype BF16 || return 1
	raw=$(loss_of "$tmp/raw/model.safetensors") && fast=$(loss_of "$tmp/fast/model.safetensors") || return 1
	[ "$raw" != "$fast" ] || { echo "both have the loss $raw"; return 1; }
}
# refused WORD SPEC...: with exit status 2; all ranks say the same, and no step is written
refused() {
	local word=$1 got=0 more=() spec
	shift
	for spec; do
		more+=(--average "$spec")
	done
	timeout 60 "$trainer" --params "$params" --root "$tmp/none" --job b --socket "$socket" --mesh fsdp=2 --steps 4 "${more[@]}" \
		>"$tmp/out" 2>"$tmp/err" || got=$?
	cat "$tmp/out" "$tmp/err"
	[ "$got" -eq 2 ] || { echo "exit status $got, expected 2"; return 1; }
	grep -qF -- "$word" "$tmp/err" && [ -z "$(find "$tmp/none" -name 'step-*')" ]
}
converted_the_same() {
	ctl convert latest "$tmp/converted" --mesh fsdp=4 --layout '*=Shard(0)@fsdp' &&
		"$ckptctl" diff "$store/a/step-000000000020" "$tmp/converted"
}
kill_daemon() {
	kill -KILL "$daemon" && { wait "$daemon" 2>/dev/null || true; }
	rm -f "$socket" # which the next one makes anew
}

check "a daemon listens" daemon_start
check "a job trains with three averages" job --mesh fsdp=2 --steps 8 "${three[@]}"
check "all three began at the first step, and took in the other three" states_are 3 2 8
check "the log says what memory they take" has "in each of 3 slots" cat "$tmp/daemon.log"
check "every byte of every step is checked" has " checkpoints good" ctl verify --data --all
check "show has them as tensors of their own role" has "ema.slow" ctl show latest
check "show says how they came about" has "paper: 3 updates since step 2" ctl show latest
check "the averaged model and the raw one load, and are not the same" average_is_another_model
check "a component that is not there is refused" exits 2 ctl restore latest "$tmp/no" --only ema.other
check "the job goes on from memory, on another mesh" job --mesh fsdp=3 --resume memory --steps 14 "${three[@]}"
check "and so do its averages" states_are 6 2 14
check "the daemon is killed" kill_daemon
check "another daemon listens" daemon_start
check "the job goes on from disk, on a third mesh" job --mesh dp=2 --resume disk --steps 20 "${three[@]}"
check "and so do its averages" states_are 9 2 20
check "converted to a fourth mesh they are the same" converted_the_same
check "a job that goes back has the averages of that step" job --mesh fsdp=2 --resume step:8 --steps 10 "${three[@]}"
check "which go on from there" states_are 4 2 10
check "a job without averages goes on" job --mesh fsdp=2 --resume latest --steps 12
check "and has none" has "has no averages" eval 'ctl ema || true'
check "a job goes back and gives one of them another decay" job --mesh fsdp=2 --resume step:10 --steps 14 --average 'fast=constant decay=.99' "${three[@]:2}"
check "all go on" states_are 6 2 14
check "and the log says which has another schedule" has "average fast goes on from step 10 on disk, with another schedule" cat "$tmp/daemon.log"

check "no spec" refused "the spec is empty" 'fast='
check "no schedule of that name" refused '"constan"' 'fast=constan decay=.9'
check "a schedule without its decay" refused "lacks decay" 'fast=constant'
check "a decay of 1 and one below 0, both told" refused "average slow: decay=-1" 'fast=constant decay=1' 'slow=constant decay=-1'
check "the first of them too" grep -F "average fast: decay=1 " "$tmp/err"
check "a rule that matches nothing" refused "no tensor of any rank matches its rule lm_head.*" 'fast=constant decay=.9 lm_head.*=skip'
check "a rule that never counts" refused "never counts" 'fast=constant decay=.9 *=copy fc1.weight=skip'
check "rules that contradict each other" refused "contradict" 'fast=constant decay=.9 out.bias=copy out.bias=skip'
check "a seed that is not there" refused "$tmp/gone" "fast=constant decay=.9 seed=$tmp/gone"
check "a name that is no name" refused '"/"' 'a/b=constant decay=.9'
tap_end
