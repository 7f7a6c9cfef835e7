#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A bad option ends the trainer with status 2, and a bad file with its own, with a message that names it.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/trainer_tap.sh"

# refused CODE WORD OPTION...: ends with CODE, names WORD on stderr and prints nothing on stdout.
refused() {
	local code=$1 word=$2 got=0
	shift 2
	"$trainer" "$@" >"$tmp/out" 2>"$tmp/err" || got=$?
	cat "$tmp/out" "$tmp/err"
	[ "$got" -eq "$code" ] || { echo "exit status $got, expected $code"; return 1; }
	[ ! -s "$tmp/out" ] && grep -qF -- "$word" "$tmp/err"
}

run=(--steps 3 --no-checkpoint --params 20K)
one=(--mesh fsdp=1 --no-checkpoint)
check "--help is no error" exits 0 "$trainer" --help
check "nothing at all" refused 2 --mesh
check "no mesh" refused 2 --mesh "${run[@]}"
for mesh in '' fsdp fsdp= fsdp=x fsdp=-1 fsdp=0 fsdp=65 =4 'fsdp=4,' ',fsdp=4' fsdp=2,dp=64 \
	fsdp=99999999999999999999 'fsdp=2 '; do
	check "mesh '$mesh'" refused 2 --mesh --mesh "$mesh" "${run[@]}"
done
check "a mesh dimension of another kind" refused 2 "'tp'" --mesh tp=2 "${run[@]}"
check "a name that only begins well" refused 2 "'fsdp2'" --mesh fsdp2=2 "${run[@]}"
check "a mesh dimension named twice" refused 2 twice --mesh fsdp=2,fsdp=2 "${run[@]}"
check "no steps" refused 2 --steps "${one[@]}"
for n in '' x -1 3x 99999999999999999999; do
	check "steps '$n'" refused 2 --steps "${one[@]}" --steps "$n"
done
for n in '' x 0 1 1M2 2Q 4999 17G 99999999999G -2M; do
	check "params '$n'" refused 2 --params "${one[@]}" --steps 3 --params "$n"
done
for opt in snapshot-every persist-every restart-wait; do
	for n in 0 x ''; do
		check "$opt '$n'" refused 2 "--$opt" "${one[@]}" --steps 3 "--$opt" "$n"
	done
done
for from in '' newest step: step:x step:1x; do
	check "resume '$from'" refused 2 --resume --mesh fsdp=1 --steps 3 --root "$tmp/s" --job a \
		--resume "$from"
done
check "a layout of another name" refused 2 --layout "${one[@]}" --steps 3 --layout rows
check "memory of another kind" refused 2 --memory "${one[@]}" --steps 3 --memory shared
check "a guard policy of another name" refused 2 --guard "${one[@]}" --steps 3 --guard often
check "resume without checkpoints" refused 2 --resume "${one[@]}" --steps 3 --resume latest
for average in '' fast =fast '=constant decay=.9'; do
	check "average '$average'" refused 2 --average --mesh fsdp=1 --steps 3 --root "$tmp/s" --job a --average "$average"
done
nine=()
for n in 1 2 3 4 5 6 7 8 9; do
	nine+=(--average "a$n=constant decay=.9")
done
check "nine averages" refused 2 a9 --mesh fsdp=1 --steps 3 --root "$tmp/s" --job a "${nine[@]}"
check "an average without checkpoints" refused 2 --average "${one[@]}" --steps 3 --average 'fast=constant decay=.9'
check "no store" refused 2 --root --mesh fsdp=1 --steps 3 --job a
check "no job" refused 2 --job --mesh fsdp=1 --steps 3 --root "$tmp/s"
check "an unknown option" refused 2 --nonsense "${one[@]}" --steps 3 --nonsense
check "an option without its value" refused 2 --seed "${one[@]}" --steps 3 --seed
check "a word that is no option" refused 2 "'more'" "${one[@]}" --steps 3 more

check "a folder of text that is missing" refused 10 "$tmp/none" --mesh fsdp=2 "${run[@]}" \
	--text "$tmp/none"
mkdir "$tmp/text"
check "a folder without text" refused 10 "$tmp/text" --mesh fsdp=2 "${run[@]}" --text "$tmp/text"
ln -s /usr/share/common-licenses/Apache-2.0 "$tmp/text/link"
check "a folder with nothing but links" refused 10 "$tmp/text" --mesh fsdp=2 "${run[@]}" \
	--text "$tmp/text"
check "losses in a folder that is missing" refused 10 "$tmp/none/losses" --mesh fsdp=2 "${run[@]}" \
	--losses "$tmp/none/losses"
check "masters in a folder that is missing" refused 10 "$tmp/none/masters" --mesh fsdp=2 "${run[@]}" \
	--masters "$tmp/none/masters"
masters() { # whatever the mesh
	local mesh
	for mesh in fsdp=1 fsdp=3 dp=2,fsdp=2; do
		"$trainer" --mesh "$mesh" "${run[@]}" --masters "$tmp/masters.$mesh" || return 1
	done
	cmp "$tmp/masters.fsdp=1" "$tmp/masters.fsdp=3" && cmp "$tmp/masters.fsdp=1" "$tmp/masters.dp=2,fsdp=2"
}
check "masters of each step are the same on all meshes" masters
events() { # steps of NaNs, and a base that is trained now and then, whatever the mesh and the layout
	local mesh
	for mesh in fsdp=1 fsdp=3 dp=2,fsdp=2; do
		"$trainer" --mesh "$mesh" "${run[@]}" --steps 30 --nan-every 7 --thaw-every 5 --frozen 50 --losses "$tmp/events.$mesh" || return 1
	done
	"$trainer" --mesh fsdp=2 "${run[@]}" --steps 30 --nan-every 7 --layout boxes --losses "$tmp/events.boxes" || return 1
	cmp "$tmp/events.fsdp=1" "$tmp/events.fsdp=3" && cmp "$tmp/events.fsdp=1" "$tmp/events.dp=2,fsdp=2" && cmp "$tmp/events.fsdp=1" "$tmp/events.boxes"
}
check "so are losses with steps of NaNs" events
check "a step to go back to of another name" refused 2 --go-back-to "${one[@]}" --steps 3 --go-back-to first
check "NaNs from a host that is ahead" refused 2 --nan-every "${one[@]}" --steps 3 --device fake --ahead 2 --nan-every 2
check "wrong bits without moves" refused 2 --move-every --mesh fsdp=1 --steps 3 --root "$tmp/s" --job a --wrong
check "a model that is missing" refused 10 "$tmp/none" --evaluate "$tmp/none"
check "a model that is no safetensors file" refused 10 "$tmp/text/link" --evaluate "$tmp/text/link"
check "a loss that cannot be written does not end training" \
	exits 0 "$trainer" --mesh fsdp=2 "${run[@]}" --losses /dev/full
check "--steps 0 ends at once" exits 0 "$trainer" "${one[@]}" --steps 0
tap_end
