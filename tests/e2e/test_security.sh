#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Names lead nowhere else, links are not followed, nothing is open to others whatever the umask, and a daemon that may
# write to its store and its socket's directory alone is content with that. Other users: test_daemon_owner.sh; hostile
# trainers: tests/unit/test_daemon_hostile.c.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

skip() { # REASON SENTENCE
	tap_n=$((tap_n + 1))
	echo "ok $tap_n - $2 # SKIP $1"
}
train() { # JOB LAST OPTION...
	exits 0 "$trainer" --params 20K --root "$store" --job "$1" --socket "$socket" --mesh fsdp=2 --steps "$2" \
		--snapshot-every 1000 "${@:3}"
}
stop() {
	kill -TERM "$daemon"
	wait "$daemon" || true
}
outside=$tmp/outside
mkdir "$outside"
untouched() { # what lies outside is what it was
	[ -z "$(ls -A "$outside")" ] || {
		find "$outside"
		return 1
	}
}

# ---- names ----
check "a daemon listens" daemon_start --quiet
refuses_job() { # NAME
	! "$trainer" --params 20K --root "$store" --job "$1" --socket "$socket" --mesh fsdp=1 --steps 4 2>"$tmp/err" ||
		return 1
	untouched
}
for name in ../outside . .. .ckptd a/b /tmp 'a b' "$(printf 'a\nb')" "$(printf 'x%.0s' {1..65})" step-000000000004; do
	check "no job is called $(printf %q "$name")" refuses_job "$name"
done
check "a job commits step 4" train a 4
check "and step 8" train a 8 --resume latest
stop
refuses_step() { # NAME
	! "$ckptctl" verify "$1" -C "$store" >"$tmp/out" 2>&1
}
for name in step:../../outside step:-1 step:18446744073709551616 latest~99999999999999999999 tag:../../x 'step:8/../8'; do
	check "no step is called $name" refuses_step "$name"
done
check "a view of a file that is none is refused" exits 2 "$ckptctl" restore latest "$tmp/r" -C "$store" --mesh fsdp=1 --view "$outside"
# Names in a view are keys in a file, and no paths.
echo "rename model/** -> ../../../outside/{1}" >"$tmp/view"
view_names() {
	"$ckptctl" restore latest "$tmp/r" -C "$store" --mesh fsdp=1 --view "$tmp/view" >"$tmp/out" 2>&1 || true
	untouched
}
check "a name in a view is no path" view_names
rm -rf "$tmp/r"

# ---- links where we write ----
links_job() {
	ln -s "$outside" "$store/link"
	! train link 4 2>"$tmp/err" || return 1
	rm "$store/link"
	untouched
}
links_claims() {
	mkdir "$store/linked"
	ln -s "$outside" "$store/linked/.ckptd"
	! train linked 4 2>"$tmp/err" || return 1
	rm -rf "$store/linked"
	untouched
}
daemon_start --quiet
check "a job's directory that is a link is not followed" links_job
check "nor its directory of claims" links_claims
stop
links_partial() { # SUFFIX: convert collects beside its destination
	ln -s "$outside" "$tmp/.dst.ckptctl$1"
	! "$ckptctl" convert "$(step_dir 8)" "$tmp/dst" --mesh fsdp=3 >"$tmp/out" 2>&1 || return 1
	rm "$tmp/.dst.ckptctl$1"
	untouched
}
links_dst() {
	ln -s "$outside" "$tmp/dst"
	! "$ckptctl" convert "$(step_dir 8)" "$tmp/dst" --mesh fsdp=3 >"$tmp/out" 2>&1 || return 1
	rm "$tmp/dst"
	untouched
}
check "what convert collects in is no link" links_partial -new
check "nor is the directory of its lock" links_partial ""
check "nor what it makes" links_dst

# A part that is a link at one moment and itself at the next, as often as can be: it is read, or refused.
swapping() {
	local part i good=0 bad=0 status
	part=$(find "$(step_dir 8)" -name '*.part' | sort | head -1)
	mv "$part" "$tmp/real"
	(
		while :; do
			ln -s "$tmp/real" "$tmp/new" && mv -fT "$tmp/new" "$part"
			ln "$tmp/real" "$tmp/new" && mv -fT "$tmp/new" "$part"
		done 2>/dev/null
	) &
	local racer=$!
	for ((i = 0; i < 60; i++)); do
		status=0
		"$ckptctl" verify --data "$(step_dir 8)" >"$tmp/out" 2>&1 || status=$?
		case $status in
		0 | 3) good=$((good + 1)) ;; # 3: it is right, and in quarantine since it was not
		4 | 5) bad=$((bad + 1)) ;;
		*)
			cat "$tmp/out"
			break
			;;
		esac
	done
	kill -KILL "$racer"
	wait "$racer" 2>/dev/null || true
	rm -f "$part" "$tmp/new"
	mv "$tmp/real" "$part"
	echo "read $good times, refused $bad times"
	[ "$i" -eq 60 ]
}
check "a part that becomes a link again and again is read or refused" swapping
check "repair releases it, if a read found it damaged" exits 0 "$ckptctl" repair --yes "$store/a"
check "and it is whole afterwards" exits 0 "$ckptctl" verify --data --all "$store"

# ---- who may read ----
private() { # DIRECTORY: nothing in it is for anybody else, and all of it is for its owner
	local bad
	bad=$(find "$1" \( -perm /077 -o -type d ! -perm 0700 -o -type f ! -perm /400 \) ! -type l -printf '%m %p\n')
	echo "$bad"
	[ -z "$bad" ]
}
for mask in 000 022 077 777; do
	rm -rf "$tmp/masked" "$tmp/run"
	# The directory that is to hold the socket is ours to make: the daemon makes none but its default one.
	mkdir -m 700 "$tmp/run"
	masked() {
		socket=$tmp/run/s store=$tmp/masked
		umask "$mask"
		daemon_start --quiet 2>/dev/null || return 1
		[ "$mask" != 777 ] || umask 022 # the daemon's alone
		train m 4 && train m 8 --resume latest && train m 8 --resume step:4 && stop
		"$ckptctl" convert "$store/m/step-000000000008" "$store/converted" --mesh fsdp=3 >"$tmp/out"
	}
	check "umask $mask: a job runs" masked
	check "umask $mask: nothing in its store is for others" private "$tmp/masked"
	check "umask $mask: nor its socket and lock" private "$tmp/run"
done

# ---- a sandbox ----
# As a service manager does it: all file systems read-only but the store and the socket's directory, no new privileges.
sandboxed() { # COMMAND... : in place of this shell
	# shellcheck disable=SC2016 # for the inner shell
	exec unshare --mount --propagation private bash -c '
		set -e
		mount --bind "$1" "$1" && mount --bind "$2" "$2"
		mount -o remount,bind,ro / /
		! touch "$3/probe" 2>/dev/null && ! touch /tmp/probe.$$ 2>/dev/null || { echo "it is writable"; exit 99; }
		shift 3
		exec "$@"' - "$tmp/box/store" "$tmp/box/run" "$tmp" "$@"
}
mkdir -p "$tmp/box/store" "$tmp/box/run"
no_new=()
if command -v setpriv >/dev/null; then
	no_new=(setpriv --no-new-privs)
fi
if [ "$(id -u)" -ne 0 ] || ! (sandboxed true) >"$tmp/out" 2>&1; then
	skip "needs root and mount namespaces" "a daemon that can write to its store and socket alone serves"
else
	boxed() {
		sandboxed "${no_new[@]}" "$ckptd" --socket "$tmp/box/run/s" --quiet 2>"$tmp/box.err" &
		daemon=$!
		within [ -S "$tmp/box/run/s" ] || return 1
		socket=$tmp/box/run/s store=$tmp/box/store
		train boxed 4 && train boxed 8 --resume latest && train boxed 12 --resume disk
		kill -TERM "$daemon"
		wait "$daemon"
	}
	check "a daemon that can write to its store and socket alone serves" boxed
	check "and says nothing" [ ! -s "$tmp/box.err" ]
	check "what it committed is whole" exits 0 "$ckptctl" verify --data --all "$tmp/box/store"
fi
tap_end
