#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where no daemon listens the trainer starts one: beside itself, or from PATH, a process of its own; or ends with 14.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

# A copy of the programs with no daemon beside them.
mkdir "$tmp/bin" "$tmp/path"
cp -d "$trainer" "$build"/libckpt.so* "$tmp/bin"
alone() { # STATUS PATH
	exits "$1" env PATH="$2" "$tmp/bin/trainer" --mesh fsdp=2 --steps 3 --params 20K --root "$store" --job a \
		--socket "$socket" 2>"$tmp/alone.err"
}
check "no daemon and no ckptd to start: 14" alone 14 /nonexistent
check "the message says what to do" says "ckptd" "$tmp/alone.err"
check "nothing was written" exits 0 [ ! -e "$store/a" ]
printf '#!/bin/sh\nexit 1\n' >"$tmp/path/ckptd"
chmod +x "$tmp/path/ckptd"
check "a ckptd that fails: 14" alone 14 "$tmp/path:/usr/bin:/bin"
rm "$tmp/path/ckptd"
ln -s "$ckptd" "$tmp/path/ckptd"
check "a ckptd in PATH is started" alone 0 "$tmp/path"
check "and listens" [ -S "$socket" ]
kill -KILL "$(daemons)"

# The whole pipeline must end: a daemon that held the job's stdout would keep cat waiting for a minute.
piped() {
	rm -rf "$store"
	timeout -k 1 15 bash -o pipefail -c '"$0" "$@" 2>&1 | cat' "$trainer" --mesh fsdp=2 --steps 6 --params 20K --root "$store" --job a --socket "$socket"
}
check "a pipe from a job that started the daemon ends with the job" piped
check "and the daemon lives on" [ -n "$(daemons)" ]
kill -KILL "$(daemons)"

rm -rf "$store" "$tmp/losses"
job_start --mesh fsdp=2 --steps 1000000 --step-ms 5
check "a job starts a daemon" within committed_after 0
pid=$(daemons)
field() { # PID N: of /proc/PID/stat, counted from 3, after the name
	sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f $(($2 - 2))
}
no_child() {
	local parent
	parent=$(field "$pid" 4)
	[ "$parent" -ne "$job" ] && ! grep -qw "$parent" "/proc/$job/task/$job/children"
}
check "one daemon" [ "$(wc -w <<<"$pid")" -eq 1 ]
check "which is no child of the job or its ranks" no_child
check "and in a session of its own" [ "$(field "$pid" 6)" -ne "$(field "$job" 6)" ]
job_kill
sleep_less() { kill -0 "$pid"; }
check "it outlives the job that started it" sleep_less
idle() { tr '\0' ' ' <"/proc/$pid/cmdline" | grep -q -- '--idle-exit 600 '; }
check "for ten minutes, as ckpt.h says" idle
check "a later job finds the same one" exits 0 "$trainer" --mesh fsdp=1 --steps 3 --params 20K --root "$store" \
	--job b --socket "$socket"
check "and starts none" [ "$(daemons)" = "$pid" ]

# CKPTD_SOCKET means the same to daemon, command and library.
other=$tmp/named
check "a daemon listens where CKPTD_SOCKET says" exits 0 env CKPTD_SOCKET="$other" "$ckptd" --background
check "and there the command finds it" exits 0 env CKPTD_SOCKET="$other" "$ckptctl" status
check "but what --socket says counts more" exits 11 env CKPTD_SOCKET="$tmp/elsewhere" "$ckptd" --socket "$other" --background
kill -KILL "$(sed -n 's/.*, pid \([0-9]*\), listens.*/\1/p' "$other.log")"
tap_end
