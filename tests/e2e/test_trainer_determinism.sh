#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The trainer's loss curve does not depend on how many ranks train or how they are arranged, and falls.
# All later tests of resume and reshard compare such curves, so they rest on this one.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/trainer_tap.sh"

seed=7
echo "# seed $seed"
lose() { # FILE OPTION...: train without checkpoints
	local file=$1
	shift
	"$trainer" --no-checkpoint --seed "$seed" --losses "$file" "$@"
}

# The first line also fixes the form: step, 16 hex digits, loss.
well_formed() { # FILE STEPS
	awk -v steps="$2" '
		NF != 3 || $1 != NR || length($2) != 16 || $2 ~ /[^0-9a-f]/ || $3 !~ /^[0-9.]+$/ { exit 1 }
		END { if (NR != steps) exit 1 }' "$1"
}

falls() { # FILE: untrained at first (ln 256 is 5.5), then better than the frequency of bytes (4.3)
	awk 'NR <= 3 { first += $3 / 3 } NR > 180 { last += $3 / 20 }
		END { print "mean loss of steps 1-3:", first, "of steps 181-200:", last
			exit !(first > 4.8 && last < 3.2) }' "$1"
}

check "one rank trains 200 steps" lose "$tmp/one" --mesh fsdp=1 --steps 200 --params 500K
check "each step appends one line: step, bits of the loss, loss" well_formed "$tmp/one" 200
check "the loss falls" falls "$tmp/one"
for mesh in fsdp=4 fsdp=3 dp=2,fsdp=2; do
	check "$mesh trains 200 steps" lose "$tmp/$mesh" --mesh "$mesh" --steps 200 --params 500K
	check "$mesh has the same losses, bit for bit" cmp "$tmp/one" "$tmp/$mesh"
done

check "a small model trains on one rank" lose "$tmp/small" --mesh fsdp=1 --steps 40 --params 20K
for mesh in fsdp=2,dp=2 dp=3 dp=1,fsdp=5 fsdp=16; do
	check "a small model trains on $mesh" \
		lose "$tmp/small,$mesh" --mesh "$mesh" --steps 40 --params 20K
	check "and has the same losses, bit for bit" cmp "$tmp/small" "$tmp/small,$mesh"
done

check "two runs of the same length append to one file" \
	lose "$tmp/small" --mesh fsdp=2 --steps 40 --params 20K
check "so that it holds both" exits 0 cmp -n "$(stat -c %s "$tmp/small,dp=3")" \
	"$tmp/small" "$tmp/small,dp=3"
check "whole" [ "$(wc -l <"$tmp/small")" -eq 80 ]

seed=8
check "another seed trains" lose "$tmp/other" --mesh fsdp=2 --steps 40 --params 20K
check "and has other losses" exits 1 cmp -s "$tmp/other" "$tmp/small,dp=3"
tap_end
