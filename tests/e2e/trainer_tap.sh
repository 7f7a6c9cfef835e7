# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# trainer_tap.sh - what the tests of the trainer share; sourced by them. Sets $trainer (build/trainer, or
# what TRAINER names) and $tmp, which goes away at the end with the daemons whose sockets lie in it; prints "ok N - sentence" or "not ok N -
# sentence"; tap_end tells whether all were ok.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# shellcheck disable=SC2034
trainer=${TRAINER:-$root/build/trainer}
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-trainer.XXXXXX")
open= # a second directory, where $tmp is too private or not the right place; goes away too
job=  # the process group of one that trains in the background; is killed

# The daemons whose sockets lie in DIR, or in our directory, whoever started them, a line each.
daemons() { # [DIR]
	local pid line
	for pid in $(grep -lasF -- "${1:-$tmp}/" /proc/[0-9]*/cmdline | tr -dc '0-9\n'); do
		line=$(tr '\0' ' ' 2>/dev/null <"/proc/$pid/cmdline") || continue
		[[ $line != *ckptd\ * ]] || echo "$pid"
	done
}
tidy_up() {
	local pid
	exec 2>/dev/null
	set +e # what is to be killed may have ended
	[ -z "$job" ] || kill -KILL -- "-$job"
	for pid in $(daemons) ${open:+$(daemons "$open")}; do
		kill -KILL "$pid"
	done
	rm -rf "$tmp" ${open:+"$open"}
}
trap tidy_up EXIT
tap_n=0
tap_failed=0

# check SENTENCE COMMAND...: ok when the command succeeds; what it printed is shown when it fails.
check() {
	local sentence=$1
	shift
	tap_n=$((tap_n + 1))
	if "$@" >"$tmp/check.out" 2>&1; then
		echo "ok $tap_n - $sentence"
	else
		echo "not ok $tap_n - $sentence"
		sed 's/^/# /' "$tmp/check.out"
		tap_failed=1
	fi
}

# exits CODE COMMAND...: succeeds when the command ends with this status.
exits() {
	local want=$1 got=0
	shift
	"$@" || got=$?
	[ "$got" -eq "$want" ] || { echo "exit status $got, expected $want: $*"; return 1; }
}

tap_end() {
	echo "1..$tap_n"
	exit "$tap_failed"
}
