#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What make install puts somewhere is whole, can be moved, compiles and runs README's program, and make uninstall
# removes exactly that.
# shellcheck disable=SC2317,SC2329 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/../e2e/ckptd_tap.sh"

dest=$tmp/dest prefix=/opt/ckptd
at=$dest$prefix

make_quiet() {
	(cd "$root" && env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL make -s DESTDIR="$dest" PREFIX="$prefix" "$@")
}
under_umask() { # UMASK COMMAND...
	(umask "$1" && shift && "$@")
}

check "it installs, whatever the umask" under_umask 077 make_quiet install

everything_is_there() {
	local f verb
	for f in bin/ckptctl bin/ckptd include/ckpt.h lib/pkgconfig/ckpt.pc lib/libckpt.so lib/libckpt.so.0 lib/libckpt-nccl.so share/man/man1/ckptctl.1 \
		share/man/man8/ckptd.8 share/man/man3/ckpt.3 share/man/man3/ckpt_attach.3 share/doc/ckptd/README.md \
		share/bash-completion/completions/ckptctl share/zsh/site-functions/_ckptctl share/fish/vendor_completions.d/ckptctl.fish; do
		[ -s "$at/$f" ] || { echo "$f is not there, or empty"; return 1; }
	done
	"$ckptctl" completion complete -- '' | cut -f1 >"$tmp/verbs"
	[ "$(wc -l <"$tmp/verbs")" -gt 3 ] || { echo "there are hardly any verbs"; return 1; }
	while read -r verb; do
		grep -q "^\.TH CKPTCTL" "$at/share/man/man1/ckptctl-$verb.1" || { echo "no page of $verb"; return 1; }
	done <"$tmp/verbs"
	grep -oE '^(struct|enum|typedef int) ckpt_[a-z_]+' "$root/ckpt/ckpt.h" | while read -r f; do
		grep -q "^$f\b" "$at/share/man/man3/ckpt.3" || { echo "ckpt(3) does not have $f"; return 1; }
	done || return 1
	grep -oE '\bckpt_[a-z_]+\(' "$root/ckpt/ckpt.h" | tr -d '(' | sort -u | while read -r f; do
		! grep -E "^[a-z].*\b$f\(" "$root/ckpt/ckpt.h" | grep -qv '^typedef' || [ -s "$at/share/man/man3/$f.3" ] || { echo "no page of $f"; return 1; }
	done
}
check "programs, library, header, pages of all verbs and functions, completions, documents" everything_is_there

readable_by_all() {
	find "$dest" -mindepth 1 \( -type d ! -perm 755 -o -type f ! -perm 644 ! -perm 755 \) -printf '%m %p\n' | tee "$tmp/odd"
	[ ! -s "$tmp/odd" ]
}
check "everybody may read it" readable_by_all

no_path_of_this_machine() {
	local f
	for f in bin/ckptctl bin/ckptd lib/libckpt.so lib/libckpt-nccl.so; do
		! grep -qaF "$root" "$at/$f" || { echo "$f holds the path of the sources"; return 1; }
		! readelf -d "$at/$f" | grep -E 'R(UN)?PATH' || { echo "$f has a run path"; return 1; }
	done
	! grep -rlaF "$tmp" "$dest" || { echo "these hold DESTDIR"; return 1; }
}
if command -v readelf >/dev/null; then
	check "no path of the machine that built it is in it" no_path_of_this_machine
else
	skip "there is no readelf" "no path of the machine that built it is in it"
fi

# --- pages ---

fits_80() { ! "$at/bin/ckptd" --help | awk 'length > 80' | grep .; }
check "ckptd --help fits 80 columns" fits_80
exits_told() {
	local code
	for code in 0 1 2 11 12 13; do
		grep -q "^\.B $code\$" "$at/share/man/man8/ckptd.8" || { echo "not there: $code"; return 1; }
	done
}
check "ckptd(8) tells every exit code" exits_told

lint() { # COMMAND...: says nothing about any page
	local page
	for page in "$at"/share/man/man1/*.1 "$at"/share/man/man8/*.8 "$at"/share/man/man3/ckpt.3; do
		"$@" "$page" 2>&1 >/dev/null | sed "s,^,${page##*/}: ,"
	done >"$tmp/lint"
	cat "$tmp/lint"
	[ ! -s "$tmp/lint" ]
}
mandoc_lint() {
	! mandoc -Tlint "$1" >&2 || return 0
}
man_lint() {
	LC_ALL=C.UTF-8 MANWIDTH=80 man --warnings -l "$1"
}
if command -v mandoc >/dev/null; then
	check "mandoc finds no fault in the pages" lint mandoc_lint
else
	skip "there is no mandoc" "mandoc finds no fault in the pages"
fi
if command -v man >/dev/null && man --warnings -w -l "$at/share/man/man1/ckptctl.1" >/dev/null 2>&1; then
	check "man finds no fault in the pages" lint man_lint
	page_of_function() {
		MANPATH=$at/share/man man ckpt_attach 2>/dev/null | grep -q 'Attach'
	}
	check "man ckpt_attach shows the library's page" page_of_function
else
	skip "there is no man(1) that checks" "man finds no fault in the pages"
	skip "there is no man(1) that checks" "man ckpt_attach shows the library's page"
fi

# --- as a user has it, somewhere else than it was installed to ---

awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/README.md" >"$tmp/example.c"
compile() { # TREE LIBDIR
	local flags
	flags=$(PKG_CONFIG_PATH=$1/$2/pkgconfig pkg-config --cflags --libs ckpt) || return 1
	echo "$flags"
	case $flags in
	*"$root"/* | *"$root ") echo "these are the sources, not what was installed"; return 1 ;;
	esac
	# shellcheck disable=SC2086 # flags are words
	gcc -std=c17 -Wall -Wextra -Werror -o "$tmp/example" "$tmp/example.c" $flags
}
# Two ranks; ckptd is neither beside the program nor in PATH: it is found by where the library lies.
train() { # TREE LIBDIR
	local pids=() pid i status=0
	for i in 0 1; do
		(cd "$tmp" && CKPTD_SOCKET=$socket LD_LIBRARY_PATH=$1/$2 exec ./example "$i" 2 >"out.$i" 2>&1) &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do
		wait "$pid" || status=$?
	done
	cat "$tmp"/out.*
	[ $status -eq 0 ] || return $status
	[ "$(readlink "/proc/$(daemons | head -n 1)/exe")" = "$1/bin/ckptd" ] || { echo "another ckptd ran"; return 1; }
}
stop_daemons() {
	local pid
	for pid in $(daemons); do
		kill -KILL "$pid"
	done
	rm -f "$socket"
}
moved=$tmp/moved
mv "$at" "$moved"
if command -v pkg-config >/dev/null; then
	check "moved elsewhere, pkg-config finds it, and README's program compiles" compile "$moved" lib
	check "and trains: the library finds ckptd in ../bin" train "$moved" lib
	check "the installed ckptctl lists its last step" grep -q '"step":100,' <("$moved/bin/ckptctl" ls --json "$tmp/ckpts")
	stop_daemons
else
	skip "there is no pkg-config" "moved elsewhere, pkg-config finds it, and README's program compiles"
fi
check "ckptctl man works there too" grep -q 'CKPTCTL\\-LS 1' <("$moved/bin/ckptctl" man ls)
mv "$moved" "$at"

# --- again, and away ---

theirs=$dest$prefix/share/man/man1/theirs.1
again() {
	find "$dest" | sort >"$tmp/before"
	make_quiet install || return 1
	find "$dest" | sort | diff "$tmp/before" -
}
check "installing again changes nothing" again
away() {
	echo theirs >"$theirs"
	mkdir "$dest$prefix/share/theirs"
	make_quiet uninstall || return 1
	find "$dest" -type f -o -type l | grep -v '/theirs' | tee "$tmp/left"
	[ ! -s "$tmp/left" ] && [ -f "$theirs" ] && [ -d "$dest$prefix/share/theirs" ]
}
check "uninstall removes what was installed, and nothing that others put beside it" away
nothing_left() {
	rm -r "$dest" && mkdir "$dest"
	make_quiet install && make_quiet uninstall || return 1
	find "$dest" -mindepth 1 | tee "$tmp/left"
	[ ! -s "$tmp/left" ]
}
check "where nothing was, nothing stays" nothing_left
check "there is nothing to uninstall then" exits 2 make_quiet uninstall

multiarch() {
	local triplet=lib/x86_64-linux-gnu
	make_quiet install LIBDIR="$prefix/$triplet" || return 1
	! command -v pkg-config >/dev/null || { compile "$at" "$triplet" && train "$at" "$triplet"; }
}
check "a library directory that is one deeper works as well" multiarch
stop_daemons
tap_end
