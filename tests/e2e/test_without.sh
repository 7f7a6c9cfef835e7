#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Whatever a machine lacks, checkpoints are as right as where it has everything: other tests are run again by
# build/without (tests/lib/without.c), which takes system calls away. A case is a program under a set of
# features that are gone; its own cases are counted and all must be ok or skipped.
#
# `make test` runs a choice, in about half a minute of CPU; ALL=1 runs every unit program under all features
# together, and those of I/O, store and daemon under each (make torture). FEATURES="a b,c" and PROGRAMS="io_ops ..." run some; UNITS=build/obj/asan/unit
# takes programs from there.
# shellcheck disable=SC2317 # the functions are called through check
set -u
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/trainer_tap.sh"
cd "$root" || exit 1
without=build/without
unit=${UNITS:-build/obj/mutant/unit}
limit_s=${ALL:+300}
limit_s=${limit_s:-60}
# On the disk the same programs run in `make test` as they are.
memory=$tmp
if [ -w /dev/shm ]; then
	memory=$(mktemp -d /dev/shm/ckpt-w.XXXXXX) # short: sockets lie in it
	# shellcheck disable=SC2034 # for tidy_up
	open=$memory
fi
chmod 711 "$tmp" "$memory" # some tests become another user for a while

# What a whole store and its daemon do without, at once.
everything=io_uring,odirect,openat2,renameat2,statx,sync_file_range,fadvise,pidfd,close_range

# FEATURES PROGRAM...: what `make test` runs. Each program where its subject meets the feature.
choice() {
	cat <<-END
		$everything io_ops io_queue io_probe io_xfer store_commit store_claim store_scan move_view daemon_inprocess cli_export script:test_readme_example
		io_uring io_queue store_commit
		io_uring-enosys io_queue io_probe
		io_uring-register io_queue
		odirect io_queue io_probe store_commit
		openat2 store_claim store_scan
		openat2-eperm io_ops store_commit store_claim
		fallocate io_ops store_commit move_part
		fallocate-enosys store_commit move_write
		noreplace io_ops store_commit store_claim
		renameat2 store_commit
		flock io_ops store_commit store_claim store_scan
		sync_file_range io_queue
		fadvise io_queue
		pidfd,close_range script:test_readme_example
	END
}

# What a program's tests cannot be without, and why. Succeeds when that is so.
needs() { # FEATURE PROGRAM
	case $1:$2 in
	memfd:*) ;;                                             # ckptd shares memory by nothing else
	flock:daemon_* | flock:script:*) ;; # a daemon's own lock file
	flock:store_label | flock:store_moments | flock:store_prune | flock:store_repair) ;; # where there are no locks, nothing is removed
	flock:cli_*) ;;                                         # some of its tests prune
	fallocate*:daemon_* | fallocate*:script:*) ;;           # of shared memory, not of files
	*odirect*:move_mesh | *odirect*:move_part | *odirect*:move_write) ;; # they open files with it by themselves
	*io_uring*:move_damage | *io_uring*:move_mesh | *io_uring*:move_partial | *io_uring*:move_write) ;; # they ask for it by name
	*) return 1 ;;
	esac
}

# Not the rigs, which replace the calls themselves and ask the kernel for little.
rigs='*_crash|*_faults|*_mutants|*_power|*_states'

all() {
	local feature programs program scripts="script:test_readme_example script:test_daemon_trouble script:test_disk_full"
	{
		echo "$everything $(cd "$unit" && echo *_*) $scripts"
		for feature in $("$without" --list | cut -f1); do
			echo "$feature $(cd "$unit" && echo io_* store_*) daemon_inprocess daemon_control cli_export cli_convert $scripts"
		done
	} | while read -r feature programs; do
		printf '%s' "$feature"
		for program in $programs; do
			[[ $program == @($rigs) ]] || needs "$feature" "$program" || printf ' %s' "$program"
		done
		echo
	done
}

# Runs one; its TAP is in $tmp/out.
run() { # FEATURES PROGRAM
	local cmd dir=$memory/run status=0
	case $2 in
	script:*) cmd=(bash "tests/e2e/${2#script:}.sh") ;;
	*) cmd=("$unit/$2") ;;
	esac
	mkdir "$dir"
	TMPDIR=$dir CMOCKA_MESSAGE_OUTPUT=TAP timeout -k 5 "$limit_s" "$without" "$1" -- "${cmd[@]}" \
		>"$tmp/out" 2>&1 </dev/null || status=$?
	rm -rf "$dir"
	return "$status"
}

# One case of ours.
pair() { # FEATURES PROGRAM
	local name=$1 status=0 counted
	[ "$1" != "$everything" ] || name="all of it"
	tap_n=$((tap_n + 1))
	if [[ $2 != script:* && ! -x $unit/$2 ]]; then
		echo "not ok $tap_n - without $name: $2 # not built: make units"
		tap_failed=1
		return
	fi
	run "$1" "$2" || status=$?
	counted=$(awk '/^(not )?ok / && /# *(SKIP|skip)/ { s++; next } /^ok / { n++ } /^not ok / { bad++ }
		END { printf "%d ok, %d skipped, %d failed", n, s, bad; exit bad || !(n + s) }' "$tmp/out") || status=${status/#0/1}
	if [ "$status" -eq 0 ]; then
		echo "ok $tap_n - without $name: $2 ($counted)"
		return
	fi
	echo "not ok $tap_n - without $name: $2 ($counted; status $status)"
	grep -a -A6 -E '^not ok [0-9]+ - ' "$tmp/out" | head -30 | cut -c1-300 | sed 's/^/# /'
	tail -n 8 "$tmp/out" | cut -c1-300 | sed 's/^/# /'
	tap_failed=1
}

status=0
"$without" fallocate -- true || status=$?
if [ "$status" -eq 125 ]; then
	echo "ok 1 - without features # SKIP no seccomp filter can be installed here"
	echo "1..1"
	exit 0
fi
check "the helper runs a command as it is" [ "$("$without" io_uring -- echo as it is)" = "as it is" ]
check "and gives its status back" exits 7 "$without" io_uring,flock -- sh -c 'exit 7'
check "a feature that it does not know is an error" exits 2 "$without" colour -- true
check "what it takes away is gone" exits 1 "$without" fallocate -- fallocate -l 4096 "$tmp/file"

# What nothing replaces is an error with a sentence, and says what.
refuses() { # FEATURE WORD COMMAND...
	local feature=$1 word=$2 status=0
	shift 2
	timeout -k 5 20 "$without" "$feature" -- "$@" >"$tmp/said" 2>&1 </dev/null || status=$?
	[ "$status" -ne 0 ] && [ "$status" -lt 124 ] && grep -q -- "$word" "$tmp/said" && return
	echo "status $status:"
	cat "$tmp/said"
	return 1
}
check "without flock a daemon does not start, and says that it cannot lock" \
	refuses flock 'cannot lock' build/ckptd --socket "$tmp/s"
check "without memfd a trainer says that there is no shared memory" \
	refuses memfd 'shared memory' build/trainer --mesh fsdp=2 --params 60K --root "$tmp/store" --job a --socket "$tmp/s" --steps 1
mkdir -p "$tmp/store"
check "without memfd the doctor says that ckptd would not work properly here" \
	refuses memfd 'memfd_create' build/ckptctl doctor -S "$tmp/s" "$tmp/store"

while read -r features programs; do
	for program in $programs; do
		pair "$features" "$program"
	done
done < <(
	if [ -n "${FEATURES:-}${PROGRAMS:-}" ]; then
		for f in ${FEATURES:-$everything}; do
			echo "$f ${PROGRAMS:-io_ops io_queue io_probe io_xfer}"
		done
	elif [ -n "${ALL:-}" ]; then
		all
	else
		choice
	fi
)
tap_end
