#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What the ranks of a checkpoint hold is exchanged between real processes (build/exchange) until
# they hold it as it lies on another mesh: every byte is that of a restore from disk, for every
# layout of the vectors and for the state of the trainer. And when a rank dies, stops, sends
# something else, or has other rounds: every process ends in time, with a sentence that names a rank
# and the round.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
exchange=$build/exchange
vectors=$root/tests/vectors/layout

exchanged() { # ARGUMENT...: all is equal, and something went from rank to rank
	exits 0 "$exchange" "$@" >"$tmp/out" 2>"$tmp/err" && grep -q "^[1-9][0-9]* bytes went .* all memory is equal" "$tmp/out" || {
		cat "$tmp/out" "$tmp/err"
		return 1
	}
}

# ---- every layout ----
check "tensors of every layout are what a restore from disk reads" \
	exchanged --round 4096 --layouts "$vectors"/{literal,strided,order,fsdp,ranks,modes,large}.jsonl
# No line was left out: those of one shape are one tensor each, those alone are two.
check "and so they are if the ranks share their memory" exchanged --round 65536 --share --layouts "$vectors"/{literal,fsdp,ranks,large}.jsonl
check "and so they are through staging memory" exchanged --round 65536 --staged --layouts "$vectors"/{strided,order,modes}.jsonl
check "no line of these was left out" eval '! grep -q "lines are no layouts" "$tmp/out"'
check "lines that are no layouts are counted" eval 'exchanged --layouts "$vectors"/{ranks,errors}.jsonl && grep -q "120 lines are no layouts" "$tmp/out"'

# ---- the trainer's state ----
daemon_start
job_start --mesh fsdp=3 --steps 20 --snapshot-every 10 --wait-ready --guard finish --params 400K
check "three ranks train, with a checkpoint at the end" job_ends 0
state=$(step_dir 20)
rounds=(--round 65536)
check "three ranks exchange it with four others, in rounds" eval \
	'exchanged "${rounds[@]}" --mesh dp=2,fsdp=2 --replicate dp "$state" && grep -q "in [1-9][0-9] rounds" "$tmp/out"'
check "and with five" exchanged "${rounds[@]}" --mesh fsdp=5 "$state"
check "and with five that share their memory" exchanged --share "${rounds[@]}" --mesh fsdp=5 "$state"
check "and with one" exchanged "${rounds[@]}" --mesh fsdp=1 "$state"
check "placements can be chosen" exchanged --mesh fsdp=2 --layout '*=Shard(1)@fsdp' "$state"
check "nothing goes where nothing changes" eval \
	'exits 0 "$exchange" --mesh fsdp=3 "$state" >"$tmp/out" && grep -q "^0 bytes went" "$tmp/out"'

# ---- a rank does something wrong ----
# Every other rank has printed a sentence with a round and no process is left; one of them names
# rank 1 in the words that are given.
fails() { # CODE MISTAKE WORDS [OPTION...]
	local code=$1 mistake=$2 words=$3 rank
	shift 3
	exits "$code" "$exchange" "${rounds[@]}" --mistake "$mistake" "$@" --mesh fsdp=4 "$state" >"$tmp/out" 2>"$tmp/err" || {
		cat "$tmp/out" "$tmp/err"
		return 1
	}
	for rank in 0 2 3; do
		grep -q "^rank $rank, round [0-9]*: .*rank" "$tmp/out" || { echo "rank $rank did not end with a sentence:" && cat "$tmp/out" && return 1; }
	done
	says "$words" "$tmp/out"
}
none_left() { # of ours
	local pid
	for pid in $(grep -lasF -- "$state" /proc/[0-9]*/cmdline | tr -dc '0-9\n'); do
		[[ $(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") != "$exchange "* ]] || return 1
	done
}
check "a rank that is killed is named, and the round" fails 75 dies@1:2 "round 2: rank 1 has closed its connection"
check "it is said which one was killed" says "rank 1 was killed, in round 2" "$tmp/out"
check "a rank that stops is named when the time is over" fails 15 stops@1:1 "round 1: the time is over, and rank 1 has not done its part" --deadline 8000
check "a rank is named as well if it is killed with memory that it shares" fails 75 dies@1:2 "round 2: rank 1 has closed its connection" --share
check "a rank that gives up ends the exchange for all" fails 1 gives-up@1:2 "round 2: rank 1 has failed"
check "a stream that is cut off inside of a message is reported" fails 75 truncates@1:2 "inside of a message"
check "what is no message is found out" fails 1 foreign@1:2 "round 2: what rank 1 sends is no message"
check "and so it is if that rank is sent something, and sends nothing" eval \
	'exits 1 "$exchange" "${rounds[@]}" --mistake foreign@3:2 --mesh fsdp=4 "$state" >"$tmp/out" && says ": what rank 3 sends is no message" "$tmp/out"'
check "a rank with other rounds is found out" fails 1 other@1:0 "the ranks' schedules differ"
check "no process is left" none_left

"$exchange" "${rounds[@]}" --mistake stops@1:0 --deadline 3600000 --mesh fsdp=4 "$state" >/dev/null 2>&1 &
pid=$!
stopped() { # a rank of ours
	local p line
	for p in $(pgrep -P "$pid"); do
		read -r line 2>/dev/null <"/proc/$p/stat" && [[ $line == *") T "* ]] && return 0
	done
	return 1
}
check "a rank stops while the others have an hour" within stopped
kill -KILL "$pid"
check "if the program is killed then, no rank outlives it" within none_left

# ---- bad input ----
check "a checkpoint that does not exist" exits 10 "$exchange" --mesh fsdp=2 "$tmp/none"
check "a mesh that cannot be read" exits 2 "$exchange" --mesh fsdp=x "$state"
check "a mesh that makes copies which nobody allowed" exits 2 "$exchange" --mesh dp=2,fsdp=2 "$state"
check "rounds that are too short" exits 2 "$exchange" --round 100 --mesh fsdp=2 "$state"
check "a rank that does not exist" exits 2 "$exchange" --mistake dies@9:0 --mesh fsdp=2 "$state"
check "a mistake in a round that does not exist" exits 2 "$exchange" --mistake dies@1:9999 --mesh fsdp=2 "$state"
check "a file without layouts" eval 'echo "{}" >"$tmp/empty" && exits 2 "$exchange" --layouts "$tmp/empty"'
tap_end
