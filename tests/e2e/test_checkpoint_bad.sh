#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Checkpoints that do not fit, are damaged, unfinished or not there are refused with a status of their own; an older good one serves.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

check "a daemon listens" daemon_start
for last in 4 8 12 16; do # each the last of its run: committed before that ends
	job_start --mesh fsdp=2 --steps "$last" --snapshot-every 1000 --resume latest
	check "a job commits step $last" job_ends 0
done
good=$("$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | cut -d: -f2 | tr '\n' ' ')
check "they are listed, newest first" [ "$good" = "16 12 8 4 " ]

# ---- another model ----
resume() { # STATUS OPTION...
	exits "$1" "$trainer" --root "$store" --job a --socket "$socket" --snapshot-every 1000 "${@:2}" >"$tmp/r.out" 2>"$tmp/r.err"
}
check "a job of another model is refused with 7" resume 7 --mesh fsdp=2 --steps 20 --params 90K --resume latest
mismatches() { # every tensor whose shape differs has a line
	local name n=0
	"$ckptctl" show --json step:16 -C "$store" | grep -o '"component":"[a-z]*","name":"[^"]*","foreign_name":null,"dtype":"[A-Z0-9]*","shape":\[[0-9,]*\]' \
		>"$tmp/shapes"
	while read -r name; do
		name=$(sed 's/.*"name":"\([^"]*\)".*/\1/' <<<"$name")
		! grep -q "/$name: declared" "$tmp/r.err" || n=$((n + 1))
	done < <(grep '"component":"model"\|"component":"optim"' "$tmp/shapes")
	echo "$n tensors named"
	cat "$tmp/r.err"
	# All but those that have the same shape in both models: out.bias, of 256, with its master and moments.
	[ "$n" -ge $(($(grep -c '"component":"model"\|"component":"optim"' "$tmp/shapes") - 4)) ]
}
check "with all mismatches at once" mismatches
check "the same from disk" resume 7 --mesh fsdp=2 --steps 20 --params 90K --resume disk
check "another seed is another run: 7" resume 7 --mesh fsdp=2 --steps 20 --params 60K --seed 8 --resume latest
check "the right model is still served" resume 0 --mesh fsdp=3 --steps 16 --params 60K --resume latest

# ---- what is not there ----
check "ls of a path that is not there: 10" exits 10 "$ckptctl" ls "$tmp/none"
check "verify --all of one: 10" exits 10 "$ckptctl" verify --all "$tmp/none"
check "a step that is not there: 10" exits 10 "$ckptctl" verify step:5 -C "$store"
check "show of one: 10" exits 10 "$ckptctl" show step:5 -C "$store"
check "resume from one: 10" resume 10 --mesh fsdp=2 --steps 20 --params 60K --resume step:5
check "a job that is not there is an empty one to --resume latest" exits 0 "$trainer" --mesh fsdp=1 --steps 2 --params 20K \
	--root "$store" --job new --socket "$socket" --resume latest
check "and absent to --resume disk: 10" exits 10 "$trainer" --mesh fsdp=1 --steps 2 --params 20K --root "$store" --job newer \
	--socket "$socket" --resume disk
rm -rf "$store/new" "$store/newer"

# ---- what is not finished ----
cp -a "$(step_dir 12)" "$store/a/.tmp-13-g9-0123456789abcdef"
rm "$store/a/.tmp-13-g9-0123456789abcdef/MANIFEST"
check "an unfinished step: 5" exits 5 "$ckptctl" verify "$store/a/.tmp-13-g9-0123456789abcdef"
check "which is no fault of the store" exits 0 "$ckptctl" verify --data --all "$store"
rm -rf "$store/a/.tmp-13-g9-0123456789abcdef"

# ---- damage. Each is done to a fresh copy of the store, served by a fresh daemon with nothing in memory. ----
kill -TERM "$daemon"
wait "$daemon"
mv "$store" "$tmp/good"
part() { # N: which part of step 16
	find "$(step_dir 16)" -name '*.part' | sort | sed -n "$1p"
}
flip() { # FILE OFFSET
	local byte
	byte=$(od -An -tu1 -j "$2" -N 1 "$1")
	# shellcheck disable=SC2059 # the byte is the format
	printf "\\x$(printf '%02x' $((byte ^ 16)))" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none
}
flip_data() { flip "$(part 1)" 5000; }
flip_head() { flip "$(part 2)" 3; }
flip_padding() { flip "$(part 1)" 4000; }
flip_end() { flip "$(part 2)" $(($(stat -c %s "$(part 2)") - 1)); }
flip_manifest() { flip "$(step_dir 16)/MANIFEST" 4200; }
cut_part() { truncate -s -1 "$(part 1)"; }
grow_part() { printf x >>"$(part 1)"; }
empty_part() { truncate -s 0 "$(part 2)"; }
lose_part() { rm "$(part 2)"; }
lose_manifest() { rm "$(step_dir 16)/MANIFEST"; }
more_file() { echo more >"$(step_dir 16)/more"; }
other_step() { # a part of step 12 with the name of the one of step 16
	cp "$(find "$(step_dir 12)" -name '*.part' | sort | head -1)" "$(part 1)"
}
verify_finds() {
	exits 4 "$ckptctl" verify --data "$(step_dir 16)" && exits 4 "$ckptctl" verify --data --all "$store"
}
resumes_from_older() {
	resume 0 --mesh fsdp=3 --steps 20 --params 60K --resume latest && says "resumed from disk, step 12" "$tmp/r.out"
}
damage() { # SENTENCE FUNCTION
	cp -a "$tmp/good" "$store"
	"$2"
	check "$1: found" verify_finds
	daemon_start --quiet
	check "$1: the job resumes from the step before" resumes_from_older
	kill -TERM "$daemon"
	wait "$daemon" || true
	rm -rf "$store"
}
damage "a flipped bit in the data" flip_data
damage "a flipped bit in a part's header" flip_head
damage "a flipped bit in padding" flip_padding
damage "a flipped bit in a part's last byte" flip_end
damage "a flipped bit in MANIFEST" flip_manifest
damage "a part that is one byte short" cut_part
damage "a part that is one byte too long" grow_part
damage "an empty part" empty_part
damage "a missing part" lose_part
damage "a missing MANIFEST" lose_manifest
damage "a part of another step" other_step
cp -a "$tmp/good" "$store"
more_file
check "a file too many is a warning" exits 3 "$ckptctl" verify --data "$(step_dir 16)"
daemon_start --quiet
resumes_from_newest() {
	resume 0 --mesh fsdp=3 --steps 20 --params 60K --resume latest && says "resumed from disk, step 16" "$tmp/r.out"
}
check "and no obstacle to a job" resumes_from_newest
check "nor to restore" exits 0 "$ckptctl" restore "$(step_dir 16)" "$tmp/restored" --mesh fsdp=1
check "nor is the step quarantined" exits 3 "$ckptctl" verify --data --all "$store"
kill -TERM "$daemon"
wait "$daemon" || true
rm -rf "$store"

# Nothing older left: damage is not an empty store.
cp -a "$tmp/good" "$store"
rm -rf "$(step_dir 4)" "$(step_dir 8)" "$(step_dir 12)"
flip_data
daemon_start --quiet
check "the only step damaged: 4, not a fresh start" resume 4 --mesh fsdp=2 --steps 20 --params 60K --resume latest
kill -TERM "$daemon"
wait "$daemon" || true
tap_end
