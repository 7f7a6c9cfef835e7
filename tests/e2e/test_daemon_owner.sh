#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One daemon a socket, one user a daemon.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

check "a daemon listens" daemon_start
first=$daemon
second() {
	exits 11 "$ckptd" --socket "$socket" 2>"$tmp/second.err"
}
check "a second one on its socket ends with 11" second
check "and names the socket" says "$socket" "$tmp/second.err"
third() {
	exits 11 "$ckptd" --background --socket "$socket" 2>"$tmp/third.err"
}
check "and one in the background too" third
check "and it says whose process has the socket" says "pid $first" "$tmp/third.err"
hang_up() {
	kill -HUP "$first" && exits 0 "$ckptctl" status --socket "$socket" >/dev/null && kill -0 "$first"
}
check "a terminal that ends does not end it" hang_up
check "the first one still serves" exits 0 "$trainer" --mesh fsdp=2 --steps 4 --params 20K --root "$store" \
	--job a --socket "$socket"
log_turns() {
	local pid
	truncate -s 16M "$tmp/r.log"
	echo old >"$tmp/r.log.1"
	exits 0 "$ckptd" --background --socket "$tmp/r" || return 1
	pid=$("$ckptctl" status --json --socket "$tmp/r" | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1)
	kill -HUP "$pid"
	within [ "$(stat -c %s "$tmp/r.log.1")" -ge $((16 << 20)) ] && [ "$(stat -c %s "$tmp/r.log")" -lt 4096 ] &&
		exits 0 "$ckptctl" status --socket "$tmp/r" >/dev/null
	kill -TERM "$pid"
	within [ ! -S "$tmp/r" ]
	says "stopping" "$tmp/r.log"
}
check "the log of the background begins anew at 16 MiB, and one older file stays" log_turns
died() {
	job_start --mesh fsdp=2 --steps 100000 --job b
	trains() { "$ckptctl" status --socket "$socket" | grep -q "2 of 2 attached, ready"; }
	within trains || return 1
	kill -KILL -- "-$job"
	wait "$job" 2>/dev/null || true
	job=
	dead() { exits 3 "$ckptctl" status --socket "$socket" >"$tmp/died"; }
	within dead >/dev/null || return 1
	says "2 of 2 died" "$tmp/died" && says "warning launch: job b: rank" "$tmp/daemon.log"
}
check "ranks that were killed are said to have died, in text, log and exit code" died
kill -KILL "$first"
wait "$first" 2>/dev/null || true
check "the socket of a daemon that was killed is taken over" daemon_start
check "and served" exits 0 "$trainer" --mesh fsdp=2 --steps 8 --params 20K --root "$store" --job a \
	--socket "$socket" --resume latest

# Another user needs to reach the socket and the programs, which may lie below a private directory.
as_nobody() {
	setpriv --reuid=65534 --regid=65534 --clear-groups "$@"
}
if [ "$(id -u)" -ne 0 ] || ! as_nobody true 2>/dev/null; then
	for sentence in "another user's trainer" "another user's daemon" "a socket that is somebody else's file"; do
		skip "needs root and setpriv" "$sentence ends with 12"
	done
else
	open=$(mktemp -d /tmp/ckptd-owner.XXXXXX)
	mkdir "$open/root" "$open/nobody" "$open/bin"
	cp -d "$build"/ckptd "$build"/trainer "$build"/libckpt.so* "$open/bin"
	chown 65534 "$open/nobody"
	chmod -R a+rX "$open"
	"$ckptd" --socket "$open/root/s" 2>/dev/null &
	daemon=$!
	within [ -S "$open/root/s" ]
	other() {
		exits 12 as_nobody "$open/bin/trainer" --mesh fsdp=1 --steps 2 --params 20K --root "$open/nobody/store" \
			--job a --socket "$open/root/s" 2>"$tmp/other.err"
	}
	check "another user's trainer ends with 12" other
	check "and names the socket" says "$open/root/s" "$tmp/other.err"
	check "another user's daemon ends with 12 on it" exits 12 as_nobody "$open/bin/ckptd" --socket "$open/root/s"
	# With a socket that lets everybody in, the daemon itself must refuse.
	chmod 777 "$open/root" "$open/root/s"
	check "also when the file's permissions let it in" other
	check "its owner is still served" exits 0 "$trainer" --mesh fsdp=1 --steps 2 --params 20K \
		--root "$open/root/store" --job a --socket "$open/root/s"
	kill -TERM "$daemon"
	ends() { wait "$daemon"; }
	check "and the daemon ends well" ends
fi
tap_end
