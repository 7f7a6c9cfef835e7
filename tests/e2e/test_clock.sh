#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The time of day jumps, years ahead and decades back, under daemon, trainer and command: the order of steps does not
# come from it, no wait is cut short or prolonged by it, and no step is removed because of it. The machine's clock is left
# alone: a library in front of the processes adds what a file says (tests/power/clock_shim.c).
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
shim=$build/rig/clock_shim.so
clock=$tmp/clock
hour=3600
year=31557600
shimmed() { # NAME: a program with its clock in our hand
	printf '#!/bin/sh\nCLOCK_SHIM=%s LD_PRELOAD=%s exec %s "$@"\n' "$clock" "$shim" "$build/$1" >"$tmp/$1"
	chmod +x "$tmp/$1"
}
for program in ckptd ckptctl trainer; do
	shimmed "$program"
done
ckptd=$tmp/ckptd ckptctl=$tmp/ckptctl trainer=$tmp/trainer
jump() { # SECONDS that all clocks are off from now on; whole at once
	echo "$1" >"$clock.new" && mv "$clock.new" "$clock"
}
to_1970() { # a machine without a battery
	jump $((86400 - $(date +%s)))
}
numbers() { "$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | cut -d: -f2; }
in_order() { # newest first, none twice
	numbers | sort -rn -c && [ -z "$(numbers | sort -n | uniq -d)" ]
}
created() { # the year of the newest
	"$ckptctl" ls --json "$store" | grep -o '"created":"[0-9]*' | head -1 | cut -d'"' -f4
}
all_whole() { exits 0 "$ckptctl" verify --data --all "$store"; }
latest_is() { # STEP
	"$ckptctl" -C "$store" show latest --json >"$tmp/shown" && grep -q "\"step\":$1," "$tmp/shown"
}
daemon_kill() {
	kill -KILL "$daemon"
	wait "$daemon" 2>/dev/null || true
	rm "$socket" # what the next one is waited for by
}
losses_right() {
	losses_undisturbed "$1" >"$tmp/compared" || { head -5 "$tmp/compared"; return 1; }
}

# ---- jumps under a job that trains ----
jump 0
this_year=$(date +%Y)
check "a daemon listens" daemon_start
job_start --mesh fsdp=2 --steps 1000000 --step-ms 4 --snapshot-every 4
check "a job commits steps" within committed_after 0
jump $((10 * year))
before=$(newest)
check "with the clock ten years ahead, so it does" within committed_after "$before"
ten_years_on() { [ "$(created)" -ge $((this_year + 9)) ]; }
check "the steps bear that date" within ten_years_on
check "they are listed in the order of their making" in_order
to_1970
before=$(newest)
check "with the clock in 1970, steps are committed" within committed_after "$before"
in_1970() { [ "$(created)" -eq 1970 ]; }
check "they bear that date too" within in_1970
check "and come first all the same" in_order
check "ls, for people, is printed" "$ckptctl" -C "$store" ls
check "so is show" "$ckptctl" -C "$store" show latest
check "so is status" "$ckptctl" status -S "$socket"

# ---- waiting ----
step=$(($(newest) + 120))
step=$((step - step % 4))
"$ckptctl" wait "$step" -S "$socket" -C "$store" --job a --timeout 10m >"$tmp/waited" 2>&1 &
waiter=$!
jump $((20 * year))
before=$(newest)
check "a command waits while the clock jumps ahead" within committed_after "$before"
jump 0
status=0
over() { ! kill -0 "$waiter" 2>/dev/null; }
check "it ends" within over
wait "$waiter" || status=$?
came() { # 5: of all steps, the job skipped this one
	[ "$status" -eq 0 ] || [ "$status" -eq 5 ] || { cat "$tmp/waited"; return 1; }
}
check "when its step is committed or passed over, not when a clock says that its time is up" came
"$ckptctl" wait 99999999 -S "$socket" -C "$store" --job a --timeout 1s >"$tmp/waited" 2>&1 &
waiter=$!
to_1970
check "a command whose time is up while the clock jumps back ends" within over
status=0
wait "$waiter" || status=$?
check "with 15" [ "$status" -eq 15 ]

check "the trainer has not seen its daemon go" exits 1 grep -q "training goes on" "$tmp/job.err"
job_kill
jump 0
daemon_kill
before=$(newest)

# ---- what comes after ----
to_1970
check "a new daemon listens, in 1970" daemon_start
last=$(awk '$1 > m { m = $1 } END { print m + 10 }' "$tmp/losses")
job_start --mesh fsdp=1 --steps "$last" --step-ms 4 --snapshot-every 4 --resume latest
check "the job goes on" job_ends 0
check "from its newest step, whatever the dates say" says "resumed from disk, step $before" "$tmp/job.out"
jump 0
check "latest is the last" latest_is "$last"
check "steps are in order" in_order
check "and whole" all_whole
check "all losses are those of an undisturbed run" losses_right "$last"
daemon_kill

# ---- retention ----
if ! "$ckptd" --help | grep -q -- --keep-within; then
	skip "this ckptd has no --keep-within" "no step is removed because a clock has jumped"
	tap_end
fi
rm -rf "$store" "$tmp/losses"
check "a daemon that keeps the steps of an hour listens" daemon_start --keep-within 1h
job_start --mesh fsdp=2 --steps 24 --step-ms 4 --snapshot-every 4
check "a job commits steps" job_ends 0
job_start --mesh fsdp=2 --steps 1000000 --step-ms 4 --snapshot-every 4 --resume "step:$(numbers | tail -1)"
asides() { find "$store/a" -maxdepth 1 -name '.old-*' | sort; }
went_back() { [ -n "$(asides)" ]; }
check "goes back to the first one, and sets the others aside" within went_back
check "and commits steps" within committed_after 20
asides >"$tmp/asides"
asides_kept() { cmp "$tmp/asides" <(asides); }
numbers >"$tmp/kept"
all_kept() { # every step of $tmp/kept is listed
	local gone
	gone=$(comm -23 <(sort "$tmp/kept") <(numbers | sort))
	[ -z "$gone" ] || { echo "removed:" $gone; return 1; }
}
committed_more() { [ "$(numbers | head -1)" -ge $((before + 20)) ]; }
for off in $((10 * year)) back 0 $((2 * hour)) $((20 * year)) 0; do
	before=$(newest)
	if [ "$off" = back ]; then
		to_1970
	else
		jump "$off"
	fi
	check "with a clock off by $off the job commits steps" within committed_more
	check "and none of all its steps is removed" all_kept
	check "nor of those that were set aside" asides_kept
	numbers >"$tmp/kept"
done
job_kill
check "every step is whole" all_whole

# With nobody there who saw the jump: ages count from the newest step.
kill -TERM "$daemon"
wait "$daemon" || true
numbers >"$tmp/kept"
jump $((10 * year))
check "ten years later prune is asked to keep what is younger than an hour" "$ckptctl" prune --yes --keep-within 1h "$store"
check "nothing was older when the job stopped, and all is there" all_kept
check "what was set aside is too" asides_kept
check "every step is whole" all_whole
tap_end
