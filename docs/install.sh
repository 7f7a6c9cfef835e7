#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# install.sh - what `make install` and `make uninstall` do, and what they need made. Called by the Makefile, which sets PREFIX,
# BINDIR, LIBDIR, INCLUDEDIR, MANDIR, DATADIR, DOCDIR, BASHCOMPDIR, ZSHCOMPDIR, FISHCOMPDIR and DESTDIR.
#   install.sh pages BUILD OUT     make man pages and completions, from the programs in BUILD, below OUT
#   install.sh install BUILD OUT   put everything in its place; what was put, and which directories were made, is
#                                  written to DOCDIR/installed
#   install.sh uninstall           remove exactly that
# Nothing that is installed holds a path of this machine: programs, library and ckpt.pc find each other by where they lie.
set -eu
umask 022 # whatever root's is: this is for everybody
cd "$(dirname "$0")/.."
version=$(sed -n 's/^#define CKPT_VERSION "\(.*\)".*/\1/p' ckpt/ckpt.h)
major=${version%%.*}

pages() { # BUILD OUT
	build=$1 out=$2
	rm -rf "$out"
	mkdir -p "$out/man1" "$out/man3" "$out/man8" "$out/completion"
	"$build/ckptctl" man >"$out/man1/ckptctl.1"
	date=$(sed -n 's/^\.TH [^ ]* 1 \([^ ]*\) .*/\1/p' "$out/man1/ckptctl.1")
	"$build/ckptctl" completion complete -- '' | cut -f1 | while read -r verb; do
		"$build/ckptctl" man "$verb" >"$out/man1/ckptctl-$verb.1"
	done
	awk -f docs/man_ckpt.awk -v version="$version" -v date="$date" ckpt/ckpt.h ckpt/ckpt.h >"$out/man3/ckpt.3"
	for name in libckpt $(awk -f docs/man_ckpt.awk -v names=1 ckpt/ckpt.h ckpt/ckpt.h); do
		echo ".so man3/ckpt.3" >"$out/man3/$name.3"
	done
	"$build/ckptd" --help | awk -f docs/man_ckptd.awk -v version="$version" -v date="$date" >"$out/man8/ckptd.8"
	"$build/ckptctl" completion bash >"$out/completion/ckptctl"
	"$build/ckptctl" completion zsh >"$out/completion/_ckptctl"
	"$build/ckptctl" completion fish >"$out/completion/ckptctl.fish"
}

record() {
	printf '%s\n' "$*" >>"$list"
}

directory() { # DIR: with its parents; those that were not there are recorded
	[ -d "$DESTDIR$1" ] || {
		case $1 in
		*/?*) directory "${1%/*}" ;;
		esac
		[ -z "$1" ] || {
			mkdir -m 755 "$DESTDIR$1"
			record "directory $1"
		}
	}
}

put() { # MODE FILE DESTINATION
	directory "${3%/*}"
	rm -f "$DESTDIR$3"
	cp "$2" "$DESTDIR$3"
	chmod "$1" "$DESTDIR$3"
	record "file $3"
}

link() { # TARGET DESTINATION
	rm -f "$DESTDIR$2"
	ln -s "$1" "$DESTDIR$2"
	record "file $2"
}

# What stands for PREFIX in ckpt.pc: the way up from where it lies, so that the whole may be moved.
prefix_of_pc() {
	case $LIBDIR/pkgconfig in
	"$PREFIX"/*)
		# shellcheck disable=SC2016 # pkg-config's own variable
		printf '${pcfiledir}'
		rest=${LIBDIR#"$PREFIX"}/pkgconfig
		while [ -n "$rest" ]; do
			rest=${rest%/*}
			printf '/..'
		done
		;;
	*) printf '%s' "$PREFIX" ;;
	esac
}

below_prefix() { # DIR
	# shellcheck disable=SC2016 # pkg-config's own variable
	case $1 in
	"$PREFIX"/*) printf '${prefix}%s' "${1#"$PREFIX"}" ;;
	*) printf '%s' "$1" ;;
	esac
}

pc_file() {
	cat <<-END
	prefix=$(prefix_of_pc)
	libdir=$(below_prefix "$LIBDIR")
	includedir=$(below_prefix "$INCLUDEDIR")

	Name: ckpt
	Description: checkpoints of sharded training, through the ckptd daemon
	Version: $version
	Cflags: -I\${includedir}
	Libs: -L\${libdir} -lckpt
	END
}

install_all() { # BUILD OUT
	build=$1 out=$2
	[ ! -e "$DESTDIR$DOCDIR/installed" ] || uninstall # what an older version had and this one has not
	list=$(mktemp)
	trap 'rm -f "$list" "$list.pc"' EXIT
	[ -z "$DESTDIR" ] || mkdir -p "$DESTDIR"
	put 755 "$build/ckptctl" "$BINDIR/ckptctl"
	put 755 "$build/ckptd" "$BINDIR/ckptd"
	put 755 "$build/libckpt.so" "$LIBDIR/libckpt.so.$version"
	link "libckpt.so.$version" "$LIBDIR/libckpt.so.$major"
	link "libckpt.so.$major" "$LIBDIR/libckpt.so"
	put 755 "$build/libckpt-nccl.so" "$LIBDIR/libckpt-nccl.so"
	put 644 ckpt/ckpt.h "$INCLUDEDIR/ckpt.h"
	pc_file >"$list.pc"
	put 644 "$list.pc" "$LIBDIR/pkgconfig/ckpt.pc"
	for page in "$out"/man1/* "$out"/man3/* "$out"/man8/*; do
		chapter=${page%/*}
		put 644 "$page" "$MANDIR/${chapter##*/}/${page##*/}"
	done
	put 644 "$out/completion/ckptctl" "$BASHCOMPDIR/ckptctl"
	put 644 "$out/completion/_ckptctl" "$ZSHCOMPDIR/_ckptctl"
	put 644 "$out/completion/ckptctl.fish" "$FISHCOMPDIR/ckptctl.fish"
	for file in README.md LICENSE docs/*.md docs/*.svg; do
		put 644 "$file" "$DOCDIR/${file##*/}"
	done
	record "file $DOCDIR/installed"
	cp "$list" "$DESTDIR$DOCDIR/installed"
	chmod 644 "$DESTDIR$DOCDIR/installed"
	echo "Installed in $DESTDIR$PREFIX: ckptctl, ckptd, libckpt $version, manual pages, completions."
	case $LIBDIR in
	/usr/lib* | /lib*) ;;
	*) [ -n "$DESTDIR" ] || echo "Where programs do not find libckpt.so.$major: ldconfig, or LD_LIBRARY_PATH=$LIBDIR" ;;
	esac
}

uninstall() {
	[ -r "$DESTDIR$DOCDIR/installed" ] || {
		echo "Nothing is installed there: no $DESTDIR$DOCDIR/installed" >&2
		exit 1
	}
	old=$(mktemp)
	cp "$DESTDIR$DOCDIR/installed" "$old"
	while read -r kind path; do
		[ "$kind" != file ] || rm -f "$DESTDIR$path"
	done <"$old"
	# Deepest first: parents were recorded before what is in them. What others use stays.
	sed -n 's/^directory //p' "$old" | sed '1!G;h;$!d' | while read -r path; do
		rmdir "$DESTDIR$path" 2>/dev/null || true
	done
	rm -f "$old"
}

DESTDIR=${DESTDIR:-}
case $1 in
pages) pages "$2" "$3" ;;
install) install_all "$2" "$3" ;;
uninstall) uninstall ;;
esac
