#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Files of a committed step that are not those that were committed - of another rank, step, launch or job, linked, piped,
# exchanged in part - are found by verify and verify --data, refused by restore before anything of them is written, and
# passed by in favour of an older step by the daemon. Regions of files one by one: tests/unit/test_move_rot.c.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

# ---- a store with a newest step that has everything around it to be mistaken for ----
train() { # JOB LAST OPTION...
	exits 0 "$trainer" --params 20K --root "$store" --job "$1" --socket "$socket" --mesh fsdp=2 --steps "$2" \
		--snapshot-every 1000 "${@:3}"
}
daemon_start --quiet
check "a job commits step 8" train a 8
check "and step 16, of a second launch" train a 16 --resume latest
check "and goes back and commits another step 16" train a 16 --resume step:8
check "another job commits its step 16" train b 16 --seed 9
kill -TERM "$daemon"
wait "$daemon"
new=$(step_dir 16) old=$(step_dir 8)
aside=$(find "$store/a" -maxdepth 1 -name '.old-*16-*')
other=$store/b/step-000000000016
check "all of it is whole" exits 0 "$ckptctl" verify --data --all "$store"
mv "$store" "$tmp/good"

part() { # DIRECTORY N
	find "$1" -name 'w000*.part' | sort | sed -n "$2p"
}
of_good() { # PATH in the store: the same in the good copy
	echo "$tmp/good${1#"$store"}"
}
stray() { # moves FILE out of the store, prints where to
	mv "$1" "$tmp/stray"
	echo "$tmp/stray"
}

# ---- what is done to it. Each: a sentence, and commands on a fresh copy ----
as_directory() { rm "$1" && mkdir "$1"; }
as_link() { ln -s "$(stray "$1")" "$1"; }
as_pipe() { rm "$1" && mkfifo "$1"; }
as_hard_link() { rm "$1" && ln "$2" "$1"; }
as_copy() { cat "$2" >"$1"; }
differ() { if cmp -s "$1" "$2"; then return 1; fi; }
exchange_blocks() { # FILE OFFSET FILE OFFSET: 4 KiB
	dd if="$1" of="$tmp/one" bs=4096 skip="$2" count=1 status=none
	dd if="$3" of="$tmp/two" bs=4096 skip="$4" count=1 status=none
	differ "$tmp/one" "$tmp/two"
	dd if="$tmp/two" of="$1" bs=4096 seek="$2" conv=notrunc status=none
	dd if="$tmp/one" of="$3" bs=4096 seek="$4" conv=notrunc status=none
}
all_parts_of() { # DIRECTORY: under the names that MANIFEST knows
	as_copy "$(part "$new" 1)" "$(part "$1" 1)"
	as_copy "$(part "$new" 2)" "$(part "$1" 2)"
}
whole_step() { rm -rf "$new" && cp -a "$1" "$new"; }
step_as_link() { mv "$new" "$tmp/stray" && ln -s "$tmp/stray" "$new"; }

# A pipe that nobody writes to must keep nobody waiting.
quick() {
	timeout -k 1 60 "$@"
}
# verify exits with 4: of the step by its path, and of everything.
verify_finds() { # OPTION...
	exits 4 quick "$ckptctl" verify "$@" "$new" >"$tmp/v.out" 2>&1 || { cat "$tmp/v.out"; return 1; }
}
names() { # WORD...: verify --data says so of the step
	local word
	quick "$ckptctl" verify --data "$new" >"$tmp/v.out" 2>&1 || true
	for word; do
		says "$word" "$tmp/v.out" || return 1
	done
}
refused() { # by restore: nothing of it is left
	rm -rf "$tmp/out"
	exits 4 quick "$ckptctl" restore "$new" "$tmp/out" --mesh fsdp=1 >"$tmp/r.out" 2>&1 || {
		cat "$tmp/r.out"
		return 1
	}
	[ ! -e "$tmp/out" ] || [ -z "$(ls -A "$tmp/out")" ]
}
falls_back() {
	daemon_start --quiet
	exits 0 quick "$trainer" --params 20K --root "$store" --job a --socket "$socket" --mesh fsdp=3 --steps 20 \
		--snapshot-every 1000 --resume latest >"$tmp/t.out" 2>"$tmp/t.err" || {
		cat "$tmp/t.err"
		return 1
	}
	kill -TERM "$daemon"
	wait "$daemon" || true
	says "resumed from disk, step 8" "$tmp/t.out"
}
fresh() {
	rm -rf "$store" "$tmp/stray"
	cp -a "$tmp/good" "$store"
}
rot() { # SENTENCE WORD COMMAND...: verify --data must say WORD (a file's name, most often)
	fresh
	check "$1: done" "${@:3}"
	check "$1: found by verify" verify_finds
	check "$1: named" names "$2"
	check "$1: refused by restore" refused
	check "$1: the job resumes from the step before" falls_back
}

p=$(basename "$(part "$(of_good "$new")" 1)")
one=$new/$p
two=$new/$(basename "$(part "$(of_good "$new")" 2)")
rot "a part that is a directory" "$p" as_directory "$one"
rot "a part that is a link to itself elsewhere" "$p" as_link "$one"
rot "a part that is a pipe" "$p" as_pipe "$one"
rot "a part that is a hard link to another step's" "$p" as_hard_link "$one" "$(part "$(of_good "$old")" 1)"
rot "a part of another rank" "$p" as_copy "$one" "$(of_good "$two")"
rot "a part of another launch" "$p" as_copy "$one" "$(part "$(of_good "$aside")" 1)"
rot "a part of another job" "$p" as_copy "$one" "$(part "$(of_good "$other")" 1)"
rot "all parts of another launch" "$p" all_parts_of "$(of_good "$aside")"
rot "all parts of another job" "$p" all_parts_of "$(of_good "$other")"
rot "MANIFEST of another step" "$p" as_copy "$new/MANIFEST" "$(of_good "$old")/MANIFEST"
rot "MANIFEST of another launch" "$p" as_copy "$new/MANIFEST" "$(of_good "$aside")/MANIFEST"
rot "MANIFEST of another job" "$p" as_copy "$new/MANIFEST" "$(of_good "$other")/MANIFEST"
rot "MANIFEST that is a link to itself elsewhere" MANIFEST as_link "$new/MANIFEST"
rot "MANIFEST that is a pipe" MANIFEST as_pipe "$new/MANIFEST"
rot "MANIFEST that is a directory" MANIFEST as_directory "$new/MANIFEST"

# What is whole in itself, and stands in the wrong place: its own path reads it, the job does not take it.
misplaced() { # SENTENCE COMMAND...
	fresh
	check "$1: done" "${@:2}"
	check "$1: found by verify --all" exits 4 "$ckptctl" verify --all "$store"
	check "$1: the job resumes from the step before" falls_back
}
misplaced "another step under this one's name" whole_step "$(of_good "$old")"
# A job's directory may be renamed or copied, so that is no fault; but whose it is can be seen.
fresh
check "another job's step in this job" whole_step "$(of_good "$other")"
whose() { "$ckptctl" show --json "$new" >"$tmp/v.out" && says '"job":"b"' "$tmp/v.out"; }
check "says so" whose
fresh
check "a step that is a link to itself elsewhere is none" step_as_link
check "and the job resumes from the step before" falls_back

# ---- data: only reading it finds that ----
rot_data() { # SENTENCE WORD COMMAND...
	fresh
	check "$1: done" "${@:3}"
	check "$1: found by verify --data" verify_finds --data
	check "$1: named" names "$2"
	check "$1: refused by restore" refused
	check "$1: the job resumes from the step before" falls_back
}
rot_data "blocks exchanged between two parts" "$p" exchange_blocks "$one" 1 "$two" 1
rot_data "blocks exchanged within a part" "$p" exchange_blocks "$one" 1 "$one" 2
block_of() { # FILE: its second block becomes ours
	dd if="$1" of="$one" bs=4096 skip=1 seek=1 count=1 conv=notrunc status=none
	differ "$one" "$(of_good "$one")"
}
rot_data "a block of another step" "$p" block_of "$(part "$(of_good "$old")" 1)"
rot_data "a block of another job" "$p" block_of "$(part "$(of_good "$other")" 1)"

# Zeros between chunks: no byte of them reaches a model, so they are told and are no damage.
padding_at() { # FILE: an offset of padding behind a chunk
	local at
	for ((at = 8192; at < $(stat -c %s "$1") - 8192; at += 4096)); do
		if [ "$(od -An -v -tu1 -j $((at - 32)) -N 32 "$1" | tr -d ' 0\n')" = "" ] &&
			[ "$(od -An -v -tu1 -j $((at - 4096)) -N 4096 "$1" | tr -d ' 0\n')" != "" ]; then
			echo $((at - 1))
			return 0
		fi
	done
	return 1
}
fresh
at=$(padding_at "$one")
printf 'x' | dd of="$one" bs=1 seek="$at" conv=notrunc status=none
check "a byte of padding: a warning" exits 3 quick "$ckptctl" verify --data "$new"
check "called padding, with its file and place" names padding "$p" "$at"

fresh
check "what was not touched has no faults" exits 0 "$ckptctl" verify --data --all "$store"
tap_end
