#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The program in README.md compiles as a user would compile it and is run on every store that a user may have: an empty one, a
# good one, damaged ones, one of another shape, one of another job, with wrong arguments, with a rank missing, started twice. It
# trains on, or it ends with a sentence; and no committed step that is whole is lost.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

compile() { # SOURCE
	gcc -std=c17 -Wall -Wextra -Werror -I"$root/ckpt" -o "${1%.c}" "$1" -L"$build" -lckpt -Wl,-rpath,"$build"
}
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/README.md" >"$tmp/example.c"
check "README has a program" [ "$(wc -l <"$tmp/example.c")" -gt 20 ]
check "it compiles without a warning" compile "$tmp/example.c"
sed 's/{ 1000, COLS }/{ 1001, COLS }/' "$tmp/example.c" >"$tmp/longer.c"
sed 's/^#define WAIT .*/#define WAIT (7 * SEC)/' "$tmp/example.c" >"$tmp/hasty.c"
check "so do one with another shape, and one that waits for 7 s" eval 'compile "$tmp/longer.c" && compile "$tmp/hasty.c"'

export CKPTD_SOCKET=$socket # nothing but that nobody else's daemon is used: ckptd is found beside libckpt.so
program=example
launch() { # N: so many ranks, children of one process
	local pids=() i status=0
	rm -f "$tmp"/out.*
	for ((i = 0; i < $1; i++)); do
		(cd "$tmp" && exec "./$program" "$i" "$1" >"out.$i" 2>&1) &
		pids+=($!)
	done
	for i in "${pids[@]}"; do
		wait "$i" || status=$?
	done
	cat "$tmp"/out.*
	return $status
}
# Every rank ends with an error and has said something; one of them, the sentence: once it has ended, the others may hear of nothing but that.
refused() { # N SENTENCE
	local i
	launch "$1" >"$tmp/said" && return 1
	for ((i = 0; i < $1; i++)); do
		[ -s "$tmp/out.$i" ] || return 1
	done
	says "$2" "$tmp/said"
}
starts_at() { # STEP, of the last launch's rank 0
	says "rank 0 starts at step $1 with $1" "$tmp/out.0"
}
ckptd_stops() { # so that nothing is in memory
	local pid
	for pid in $(daemons); do
		kill -TERM "$pid"
	done
	within eval '[ -z "$(daemons)" ]'
}
store_is() { # STEP...: these are committed and whole, newest first, and there is no other
	local have
	# on disk: no daemon is asked what it holds in memory
	have=$(CKPTD_SOCKET=$tmp/none "$ckptctl" ls --json "$tmp/ckpts" | grep -o '"step":[0-9]*' | grep -o '[0-9]*' | tr '\n' ' ')
	[ "$have" = "$* " ] || {
		echo "steps are $have, not $*"
		return 1
	}
	"$ckptctl" verify --data --all "$tmp/ckpts"
}
part() { # STEP: a part of it
	find "$tmp/ckpts/demo/step-$(printf %012d "$1")" -name '*.part' | sort | head -1
}
damage() { # STEP: one byte
	local f
	f=$(part "$1")
	printf '\377' | dd of="$f" bs=1 seek=5000 conv=notrunc status=none
}
# What a case finds: steps 100 and 200, whole. At the end of each the store is thrown away.
good_store() {
	ckptd_stops && rm -rf "$tmp/ckpts" && cp -a "$tmp/good" "$tmp/ckpts"
}
untouched() { # what was there is there, byte for byte; claims and marks are others' business
	diff -r --exclude=.ckptd "$tmp/good" "$tmp/ckpts"
}

# ---- an empty store, and a good one ----
check "two ranks train" launch 2
check "from the beginning" grep -qx "rank 1 starts at step 0 with 0" "$tmp/out.1"
keep_some() { # of the hundred steps that it commits
	"$ckptctl" prune --yes --keep-last 1 "$tmp/ckpts"
}
check "and their last step is committed" eval 'keep_some && store_is 100'
check "three ranks go on" launch 3
check "from there" grep -qx "rank 2 starts at step 100 with 100" "$tmp/out.2"
only_hundreds() {
	"$ckptctl" prune --yes --keep-last 1 --keep-every 100 "$tmp/ckpts" && store_is 200 100
}
check "nothing is lost" only_hundreds
ckptd_stops
cp -a "$tmp/ckpts" "$tmp/good"

# ---- damage ----
goes_back() { # STEP: launch goes on from there, and all that was whole before is whole
	launch 2 && starts_at "$1" && "$ckptctl" ls --json "$tmp/ckpts" | grep -q "\"step\":$(($1 + 100)),"
}
good_store
damage 200
check "one byte of the newest step is wrong: it goes on from the one before" goes_back 100
check "and says so" says "passed over: step 200: " "$tmp/out.0"
check "the damaged step is still there, set aside" [ -n "$(find "$tmp/ckpts/demo" -maxdepth 1 -name '.old-*200-*')" ]
check "and step 100 is whole" "$ckptctl" verify --data -C "$tmp/ckpts" step:100
good_store
damage 200
damage 100
check "every step is damaged: it ends, and names them" refused 2 "step 100: "
check "on the second try too" refused 2 "step 200: "
check "and neither was set aside" [ "$(find "$tmp/ckpts/demo" -maxdepth 1 -name 'step-*' | wc -l)" -eq 2 ]

# ---- steps that are not this program's ----
good_store
program=longer
check "another shape: it ends, and says what does not fit" refused 2 "optim/w.master: declared F32 [1001, 256]"
check "and nothing was touched" untouched
program=example
good_store
mkdir "$tmp/ckpts/other"
cp -a "$tmp/ckpts/demo/.ckptd" "$tmp/ckpts/demo/step-000000000200" "$tmp/ckpts/other/"
rm -rf "$tmp/ckpts/demo"
other_untouched() {
	diff -r --exclude=.ckptd "$tmp/good/demo/step-000000000200" "$tmp/ckpts/other/step-000000000200"
}
check "a store with another job's steps: it begins at 0" eval 'launch 2 && starts_at 0'
check "beside them" other_untouched

# A file of a network file system, in the newest step: a warning, and no obstacle.
good_store
touch "$tmp/ckpts/demo/step-000000000200/.nfs000000000001"
stray_file() {
	launch 2 && starts_at 200
}
check "a stray .nfs file in the newest step: it goes on from there" stray_file
check "and step 100 is there" "$ckptctl" verify --data -C "$tmp/ckpts" step:100
step_200_is_somewhere() { # committed or set aside
	local f
	for f in "$tmp"/good/demo/step-000000000200/*; do
		cmp "$f" "$(find "$tmp/ckpts/demo" -path '*200*' -name "${f##*/}" -exec cmp -s "$f" {} \; -print -quit)" || return 1
	done
}
check "and so are all bytes of step 200, committed or set aside" step_200_is_somewhere

# ---- nobody asked ----
awk '!/rc < 0 && rc != -ENOENT/ { print; next } { getline } ' "$tmp/example.c" | sed 's/ckpt_restore(c, &want, &got, &e)/-ENOENT; (void)want, (void)got/' >"$tmp/forgetful.c"
good_store
program=forgetful
check "a program that does not restore compiles" compile "$tmp/forgetful.c"
check "and is not allowed to begin beside the steps" refused 1 "no rank has called ckpt_restore"
check "which are untouched" untouched
program=example

# ---- wrong arguments ----
good_store
wrong() {
	local status=0
	(cd "$tmp" && ./example "$@" 2>usage) || status=$?
	[ $status -eq 2 ] && says "usage: " "$tmp/usage"
}
check "no arguments" wrong
check "no ranks" wrong 0 0
check "a rank beyond the ranks" wrong 2 2
check "text" wrong zero two
check "text behind a number" wrong 0 2x
check "negative numbers" eval '! (cd "$tmp" && ./example -2 -1) 2>/dev/null'
check "they have touched nothing" untouched

# ---- one rank is missing ----
good_store
missing() { # the sentence within 5 to 10 s, the end after 7 s
	local from=$EPOCHREALTIME status=0 at pid
	(cd "$tmp" && exec ./hasty 0 2 >out.0 2>&1) &
	pid=$!
	within grep -q "rank 0 waits in ckpt_seal for rank 1 to attach" "$tmp/out.0"
	at=$((${EPOCHREALTIME/[.,]/} - ${from/[.,]/}))
	wait "$pid" || status=$?
	[ $status -eq 1 ] && [ $at -gt 4900000 ] && [ $at -lt 15000000 ] || {
		echo "exit status $status, the sentence came after $at us"
		cat "$tmp/out.0"
		return 1
	}
}
rm -f "$tmp"/out.*
check "one rank is missing: a sentence after 5 s says which one" missing
check "and nothing was touched" untouched

# ---- two launches ----
good_store
second_takes_over() { # the first one trains for ever; the second one is refused, but for CKPT_TAKEOVER
	local first status=0
	sed 's/CKPT_REQUIRE/CKPT_REQUIRE | CKPT_TAKEOVER/' "$tmp/example.c" >"$tmp/taking.c"
	compile "$tmp/taking.c" || return 1
	sed 's/last = step + 100/last = step + 1000000000/; s/\.log = to_stderr/.log = to_stderr, .persist_every = 100/' \
		"$tmp/example.c" >"$tmp/endless.c"
	compile "$tmp/endless.c" || return 1
	(cd "$tmp" && exec ./endless 0 1 >first.0 2>&1) &
	first=$!
	within eval '[ "$("$ckptctl" ls --json "$tmp/ckpts" | grep -c "\"step\":[3-9]")" -gt 0 ]' || return 1
	bash -c 'cd "$1" && ./example 0 1 >out.0 2>&1' _ "$tmp" || status=$?
	[ $status -eq 1 ] && says "job demo is in use: process $first (rank 0 of 1)" "$tmp/out.0" || return 1
	kill -0 "$first" || return 1
	# The first one commits all the time: a step between the restore and the mark of the second one means "restore again".
	takes_over() {
		bash -c 'cd "$1" && ./taking 0 1 >out.0 2>&1' _ "$tmp" || { says "restore again, then mark" "$tmp/out.0" || kill "$first"; false; }
	}
	within takes_over || { cat "$tmp/out.0"; return 1; }
	status=0
	wait "$first" || status=$?
	[ $status -eq 1 ] && says "a newer launch" "$tmp/first.0"
}
check "a second launch is refused, or takes over if it says so, and the first one ends with a sentence" second_takes_over
whole() {
	"$ckptctl" verify --data --all "$tmp/ckpts" && "$ckptctl" verify --data -C "$tmp/ckpts" step:200 &&
		"$ckptctl" verify --data -C "$tmp/ckpts" step:100
}
check "all steps are whole, the good ones among them" whole
good_store
at_once() { # two launches of two ranks, of a parent each, at the same time
	local a b status_a=0 status_b=0
	one() {
		bash -c 'cd "$1" || exit
			./hasty 0 2 >"$2.0" 2>&1 & a=$!
			./hasty 1 2 >"$2.1" 2>&1 & b=$!
			wait $a; x=$?; wait $b; y=$?; exit $((x + y))' _ "$tmp" "$1"
	}
	one a &
	a=$!
	one b &
	b=$!
	wait "$a" || status_a=$?
	wait "$b" || status_b=$?
	[ $((status_a == 0 || status_b == 0)) -eq 1 ] || {
		echo "both ended with an error: $status_a, $status_b"
		cat "$tmp"/a.? "$tmp"/b.?
		return 1
	}
}
check "two launches at once: one of them trains" at_once
check "and all steps are whole, the good ones among them" whole
ckptd_stops
tap_end
