#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_law.sh - the dependency law of the Makefile's rooms, and the rules of the house that a program can check.
# Each check is a function of a tree; each is also run on a tree with the mistake planted, which it must find.
# shellcheck disable=SC2317,SC2329 # the functions are called through check
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-law.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
n=0 bad=0
check() { # SENTENCE COMMAND...
	local sentence=$1
	shift
	n=$((n + 1))
	if "$@" >"$tmp/out" 2>&1; then
		echo "ok $n - $sentence"
	else
		echo "not ok $n - $sentence"
		head -40 "$tmp/out" | sed 's/^/# /'
		bad=1
	fi
}
skip() { # SENTENCE WHY
	n=$((n + 1))
	echo "ok $n - $1 # SKIP $2"
}
# Nothing on standard output is good; what there is are the offences.
none() {
	local out
	out=$("$@") || true
	[ -z "$out" ] || { printf '%s\n' "$out"; return 1; }
}

make -s law-data >"$tmp/data" || { echo "not ok 1 - the makefile tells its rooms"; exit 1; }
# The files of the project: what git knows or would take, so that build/ and editors' leavings stay out.
if ! git ls-files --cached --others --exclude-standard >"$tmp/all" 2>/dev/null; then
	find . -path ./build -prune -o -path ./.git -prune -o -type f -print | sed 's,^\./,,' >"$tmp/all"
fi
while read -r f; do [ ! -f "$f" ] || echo "$f"; done <"$tmp/all" >"$tmp/files" # deleted ones are still known
grep -E '\.[ch]$' "$tmp/files" >"$tmp/c"

# ---- includes ----

# "FILE includes HEADER: ..." for each #include "..." that the law forbids.
includes() { # TREE
	(cd "$1" && xargs grep -nH '^[ \t]*#[ \t]*include[ \t]*"' <"$tmp/c" 2>/dev/null) | awk -v data="$tmp/data" '
		function room(path, r, best) {
			best = ""
			for (r in dir)
				if (index(path, dir[r] "/") == 1 && (best == "" || length(dir[r]) > length(dir[best])))
					best = r
			return best
		}
		BEGIN {
			while ((getline line < data) > 0) {
				k = split(line, w, " ")
				if (w[1] == "room") {
					dir[w[2]] = w[3]
					for (i = 4; i <= k; i++) uses[w[2], w[i]] = 1
				}
			}
		}
		{
			split($0, f, ":")
			file = f[1]
			split($0, q, "\"")
			header = q[2]
			from = room(file); to = room(header)
			own = file; sub(/\/[^\/]*$/, "", own)
			if (header ~ /\.\./) print file " includes " header ": includes go from the root of the tree"
			else if (file ~ /^tests\//) next
			else if (from == "") print file ": its folder belongs to no room of the Makefile"
			else if (header == "ckpt/ckpt.h") next
			else if (to == "" && index(header, "/")) print file " includes " header ", which belongs to no room"
			else if (to == "") print file " includes " header ": includes go from the root of the tree"
			else if (to == from) next
			else if (!((from, to) in uses)) print file " includes " header ": " from " may not use " to
		}' | grep -v '^ckpt/ckpt.h:'
}

# A library's headers belong to one room; jansson's to the one that reads questions and to the one that
# writes documents, and to none that reads a checkpoint: there formats/json keeps nothing.
libraries() { # TREE
	local pair
	for pair in 'liburing.h ckpt/io/' 'jansson.h ckpt/(answer|output)/' 'xxhash.h ckpt/base/' 'zlib.h ckpt/coding/' 'zstd.h ckpt/coding/' 'cmocka.h tests/'; do
		(cd "$1" && xargs grep -lE "^[ 	]*#[ 	]*include[ 	]*<${pair% *}" <"$tmp/c") | grep -vE "^${pair#* }" |
			grep -v '^tests/' | sed "s,\$, includes ${pair% *}: only ${pair#* } does,"
	done
}

# The trainer is a user: of ours it sees ckpt.h alone.
users() { # TREE
	(cd "$1" && grep '^tests/trainer/' "$tmp/c" | xargs grep -nE '^[ 	]*#[ 	]*include[ 	]*"(ckpt|ema|daemon|formats)/' | grep -v '"ckpt/ckpt.h"')
}

# The Python package is a user, too: of ours it loads libckpt.so and runs the programs; beyond itself it imports the
# standard library, and torch with what torch brings, inside of functions.
python_imports() { # TREE
	(cd "$1" && grep -E '^python/ckptd/.*\.py$' "$tmp/files" | xargs python3 -c '
import ast, os, sys

known = getattr(sys, "stdlib_module_names", ())


def outside(tree):
    """The imports that run when the module is imported."""
    top = set()

    def outer(nodes):
        for n in nodes:
            if isinstance(n, (ast.Import, ast.ImportFrom)):
                top.add(n)
            elif isinstance(n, ast.If) and "TYPE_CHECKING" in ast.dump(n.test):
                outer(n.orelse)
            elif not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef)):
                outer(ast.iter_child_nodes(n))

    outer(tree.body)
    return top


for path in filter(os.path.isfile, sys.argv[1:]):
    tree = ast.parse(open(path, encoding="utf-8").read())
    top = outside(tree)
    for n in ast.walk(tree):
        if isinstance(n, ast.ImportFrom) and n.level:
            continue
        for name in [a.name for a in n.names] if isinstance(n, ast.Import) else [n.module] if isinstance(n, ast.ImportFrom) else []:
            root = name.split(".")[0]
            if root in ("torch", "numpy", "torchdata"):
                if n in top and path not in ("python/ckptd/dcp.py",):
                    print(f"{path}:{n.lineno} imports {name} when it is imported itself")
            elif root != "ckptd" and known and root not in known:
                print(f"{path}:{n.lineno} imports {name}, which is not of the standard library")
        if isinstance(n, ast.Attribute) and n.attr in ("PyDLL", "pythonapi"):
            print(f"{path}:{n.lineno} uses {n.attr}, which holds the GIL")
        if isinstance(n, ast.Name) and n.id == "print" or isinstance(n, ast.Attribute) and n.attr in ("fsync", "fdatasync"):
            print(path, n.lineno, "calls " + getattr(n, "id", getattr(n, "attr", "")), sep=":")
        if isinstance(n, ast.Call) and getattr(n.func, "attr", "") == "CDLL" and path != "python/ckptd/_load.py":
            if not (n.args and isinstance(n.args[0], ast.Constant) and n.args[0].value is None):  # None: libc
                print(f"{path}:{n.lineno} loads a library: only _load.py does")
')
}

# ---- archives: who really calls whom, whatever was included ----

symbols() { # DIRECTORY-OF-ARCHIVES
	local r
	awk '$1 == "room" { print $2 }' "$tmp/data" | while read -r r; do
		[ -f "$1/$r.a" ] || continue
		nm "$1/$r.a" 2>/dev/null | awk -v r="$r" '
			$1 == "U" { print "need", r, $2 }
			NF == 3 && $2 ~ /^[TDBRCVWu]$/ { print "have", r, $3 }'
	done
}
calls() { # DIRECTORY-OF-ARCHIVES
	symbols "$1" | sort -u | awk -v data="$tmp/data" '
		BEGIN {
			while ((getline line < data) > 0) {
				k = split(line, w, " ")
				if (w[1] == "room") for (i = 4; i <= k; i++) uses[w[2], w[i]] = 1
			}
		}
		$1 == "have" { where[$3] = $2 }
		$1 == "need" { from[++m] = $2; what[m] = $3 }
		END {
			for (i = 1; i <= m; i++) {
				to = where[what[i]]
				if (to != "" && to != from[i] && !((from[i], to) in uses)) print from[i] " calls " what[i] " of " to ": it may not"
			}
		}'
}
upward() { # rooms stand in an order in which each uses and links lower ones only
	awk '$1 == "links" { for (i = 3; i <= NF; i++) if (!($i in seen)) print $2 " links " $i ", which does not come before it" }
		$1 == "room" { for (i = 4; i <= NF; i++) if (!($i in seen)) print $2 " uses " $i ", which does not come before it"; seen[$2] = 1 }' "$1"
}

# ---- the library that goes into trainers ----

needs_libc_only() { # LIBRARY
	ldd "$1" | awk '{ print $1 }' | grep -vE '^(linux-vdso|linux-gate|libc|libpthread)\.so|/ld-linux|^ld-' | sed 's/^/it needs /'
}
declared() { # TREE: functions of ckpt.h
	sed 's,/\*.*\*/,,' "$1/ckpt/ckpt.h" | tr '\n' ' ' | grep -oE '\bckpt_[a-z_]+\(' | tr -d '(' | sort -u | grep -vE '^ckpt_(opts|tensor|local|tensor_fn)$'
}
exported() { # LIBRARY: name@@version
	nm -D --defined-only "$1" | awk '$2 != "A" { print $3 }' | sort -u
}
exports() { # LIBRARY TREE
	diff <(declared "$2" | sed 's/$/@@CKPT_1/') <(exported "$1") | sed -n 's/^</declared, not exported:/p; s/^>/exported, not declared:/p'
}

# ---- text rules ----

spdx() { # TREE
	(cd "$1" && grep -E '\.(c|h|sh|py|mk|map)$|^Makefile$|^\.ci/|^tests/tidy$' "$tmp/files" |
		xargs awk 'FNR <= 3 && /SPDX-License-Identifier: Apache-2\.0/ { has[FILENAME] }
			END { for (i = 1; i < ARGC; i++) if (!(ARGV[i] in has)) print ARGV[i] ": no SPDX line at its top" }')
}
unique_names() { # FILE-LIST
	grep -E '\.[ch]$' "$1" | sed 's,.*/,,' | sort | uniq -d | sed 's/^/more than one file is called /'
}
one_fsync() { # TREE
	(cd "$1" && grep -E '\.c$|\.h$' "$tmp/files" | grep -vE '^ckpt/io/|^tests/' | xargs grep -nE '\b(fsync|fdatasync|sync_file_range|syncfs)\(' | grep -vE ':[0-9]+:[ \t]*(/?\*|//)')
}
nothing_beside() { # TREE: a clone must be enough
	(cd "$1" && grep -v '^tests/law/' "$tmp/files" | xargs grep -nIE '\.\./shared' )
}
no_vla_no_alloca() { # TREE
	(cd "$1" && xargs grep -nE '\balloca\(' <"$tmp/c")
}
# Formats are known by their array: only native, the array and the daemon, which writes native, have its names, in comments too.
native_names() { # TREE
	(cd "$1" && grep -E '^(ckpt|ema|formats)/' "$tmp/c" | grep -vE '^formats/(native|registry)/' |
		xargs grep -niE '\bnative_|"formats/native/')
}
# Tests that documents name are there: cases in the last column of a table if its head begins with "test"; units, fuzzers and
# files anywhere. `oldest` is the example of a verb.
named() { # TREE
	local f word
	grep -E '\.md$' "$tmp/files" | while read -r f; do
		[ -f "$1/$f" ] || continue
		awk -F'|' '!/^\|/ { tests = row = 0 } /^\|/ { if (!row++) tests = $(NF - 1) ~ /^ *test/; else if (tests) print $(NF - 1) }' "$1/$f" | grep -oE '`[a-z0-9]+(_[a-z0-9]+)+`|`[a-z]+( [a-z,]+){2,}`' | tr -d '`' | sort -u | while read -r word; do
			[ -e "$1/tests/unit/test_$word.c" ] || grep -rqwF -e "$word" "$1/tests" --include='*.[ch]' --include='*.py' || echo "$f: there is no test \"$word\""
		done
		grep -oE '\b(unit|fuzz)-[a-z0-9_]+\*?|\b(tests|ckpt|ema|daemon|formats|docs)/[A-Za-z0-9_/.*-]+[A-Za-z0-9_*]' "$1/$f" | grep -vE "oldest|NAME" | sort -u | while read -r word; do
			case $word in
			unit-* | fuzz-*) compgen -G "$1/tests/${word%%-*}/${word%%-*}_${word#*-}.c" ;;
			*) compgen -G "$1/$word" || compgen -G "$1/build/$word" ;;
			esac >/dev/null || compgen -G "$1/tests/unit/test_${word#unit-}.c" >/dev/null || echo "$f: there is no $word"
		done
	done
}
# One shell reads all parts of make bench: of two functions, or variables, of one name the later one would be used by both.
bench_names() { # TREE
	local f
	for f in "$1"/tests/bench/rows_*.sh; do
		bash --norc -euc 'bytes=1 mib=1; own() { declare -F | cut -d" " -f3; compgen -v; }; had=$(own); . "$1"
			grep -vxFf <(printf "%s\n" "$had" PIPESTATUS _ had) <(own)' bash "$f" || echo "$f: nothing is read of it"
	done >"$tmp/names"
	sed -n 's/^\([a-z_0-9]*\)() .*/\1/p' "$1"/tests/bench/{common,frameworks}.sh >>"$tmp/names"
	sort "$tmp/names" | uniq -d | sed 's/^/more than one part of make bench names something /'
}
self_contained() { # each header compiles alone, as the first thing in a file
	local h
	grep '\.h$' "$tmp/c" | grep -v '_body\.h$' | while read -r h; do
		printf '#include "%s"\n#include "%s"\n' "$h" "$h" | gcc -std=gnu17 -D_GNU_SOURCE -I. -Wall -Wextra -fsyntax-only -x c - 2>"$tmp/gcc" ||
			{ echo "$h does not compile alone:"; head -n 3 "$tmp/gcc"; }
	done
}

check "the rooms' order goes up only" none upward "$tmp/data"
check "every include is one that the law allows" none includes .
check "a library's headers are included in its own rooms only" none libraries .
check "the trainer uses ckpt.h and nothing else of ours" none users .
if command -v python3 >/dev/null; then
	check "the Python package uses libckpt.so, the programs and the standard library, and imports torch inside of functions" none python_imports .
else
	skip "the Python package uses libckpt.so, the programs and the standard library" "no python3: make deps"
fi
if [ -f build/obj/release/cli.a ] && command -v nm >/dev/null; then
	check "every call between archives is one that the law allows" none calls build/obj/release
	check "libckpt.so needs libc and nothing else" none needs_libc_only build/libckpt.so
	check "libckpt.so exports exactly the functions of ckpt.h, as CKPT_1" none exports build/libckpt.so .
	check "its soname is libckpt.so.0" grep -q 'SONAME.*\[libckpt\.so\.0\]' <(readelf -d build/libckpt.so)
else
	skip "calls between archives, and what libckpt.so needs and exports" "nothing is built: run make"
fi
check "every header compiles alone" none self_contained
check "ckpt.h is C17 without extensions" gcc -std=c17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c ckpt/ckpt.h
if command -v g++ >/dev/null; then
	check "ckpt.h is C++17" g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -x c++ ckpt/ckpt.h
else
	skip "ckpt.h is C++17" "no g++: make deps"
fi
check "file names are unique in the tree" none unique_names "$tmp/files"
check "only ckpt/io syncs files" none one_fsync .
check "only native, the array of formats and the daemon name anything of native" none native_names .
check "nothing refers to what lies outside of a clone" none nothing_beside .
check "no two parts of make bench name something alike" none bench_names .
check "no alloca" none no_vla_no_alloca .
check "every source, script and makefile names its licence" none spdx .
check "what the documents name is there" none named .
check "the licence is there" grep -q "Apache License" LICENSE

# ---- negative controls: a copy of the tree with a mistake in it ----

# One copy, which each mistake leaves as it was: only the file that had one is copied anew.
mkdir "$tmp/tree"
tar -cf - -T "$tmp/c" | tar -xf - -C "$tmp/tree"
planted=
plant() { # FILE LINE: at the end of the file, in the copy of the sources
	[ -z "$planted" ] || rm "$tmp/tree/$planted"
	[ ! -f "$planted" ] || ! grep -qxF "$planted" "$tmp/c" || cp "$planted" "$tmp/tree/$planted"
	planted=$1
	mkdir -p "$(dirname "$tmp/tree/$1")"
	printf '%s\n' "$2" >>"$tmp/tree/$1"
}
found() { # WORD CHECK...: the check names WORD
	local word=$1 out
	shift
	out=$("$@")
	case $out in
	*"$word"*) ;;
	*) echo "not found: $word"; echo "$out"; return 1 ;;
	esac
}
if command -v python3 >/dev/null; then
	python_found() { # WORD LINE: at the end of the package's _types.py
		mkdir -p "$tmp/package/python/ckptd"
		{ cat python/ckptd/_types.py && echo "$2"; } >"$tmp/package/python/ckptd/_types.py"
		found "$1" python_imports "$tmp/package"
	}
	check "(control) a package that is not of the standard library is found" python_found "imports requests" "import requests"
	check "(control) torch at the top of a module is found" python_found "imports torch when" "import torch"
	check "(control) a library that is loaded elsewhere is found" python_found "only _load.py" "import ctypes; x = ctypes.CDLL('libc.so.6')"
	check "(control) something printed is found" python_found "calls print" "print(1)"
fi
lower=$(grep '^ckpt/base/.*\.c$' "$tmp/c" | head -n 1)
plant "$lower" '#include "ckpt/layout/layout.h"'
check "(control) base including layout is found" found "base may not use layout" includes "$tmp/tree"
plant ckpt/client/client.c '#include "daemon/daemon.h"'
check "(control) the client including the daemon is found" found "client may not use daemon" includes "$tmp/tree"
plant ckpt/client/client.c '#include "ckpt/io/io.h"'
check "(control) the client including io is found" found "client may not use io" includes "$tmp/tree"
plant formats/native/native.h '#include "ckpt/store/store.h"'
check "(control) a format including the store is found" found "native may not use store" includes "$tmp/tree"
plant daemon/ckptd.c '#include "ckpt/client/handle.h"'
check "(control) the daemon looking into a client's handle is found" found "daemon may not use client" includes "$tmp/tree"
plant ckpt/cli/ckptctl.c '#include "daemon/daemon.h"'
check "(control) the command including the daemon is found" found "cli may not use daemon" includes "$tmp/tree"
plant ckpt/plan/plan.c '#include "../table/table.h"'
check "(control) an include that climbs is found" found "from the root of the tree" includes "$tmp/tree"
plant tests/trainer/train.c '#include "ckpt/base/util.h"'
check "(control) a trainer that looks inside is found" found "ckpt/base/util.h" users "$tmp/tree"
plant ckpt/store/store.c '#include <liburing.h>'
check "(control) io_uring outside of io is found" found "store.c includes liburing.h" libraries "$tmp/tree"
plant formats/safetensors/safetensors_read.c '#include <zlib.h>'
check "(control) a decoder outside of coding is found" found "safetensors_read.c includes zlib.h" libraries "$tmp/tree"
plant ckpt/store/store.c 'int x(int fd) { return fsync(fd); }'
check "(control) a sync outside of io is found" found "ckpt/store/store.c" one_fsync "$tmp/tree"
for each in ckpt/table/table.h:'/* as native_part_table has it */' ckpt/engine/open.c:'extern int native_open(void);' \
	formats/safetensors/safetensors_read.c:'#define MANY NATIVE_ATTRS_MAX'; do
	plant "${each%%:*}" "${each#*:}"
	check "(control) a name of native in ${each%%:*} is found" found "${each%%:*}" native_names "$tmp/tree"
done
plant formats/registry/registry.c '/* native_format */'
check "(control) the array of formats may name native" none native_names "$tmp/tree"
plant ckpt/cli/verb_ls.c '#include "formats/native/native.h"'
check "(control) the command including native, which it only links, is found" found "cli may not use native" includes "$tmp/tree"
plant ckpt/engine/open.c '#include "formats/native/native.h"'
check "(control) the engine including a format is found" found "engine may not use native" includes "$tmp/tree"
plant ckpt/base/arena.c "/* see ../""shared/design */"
check "(control) a word about what lies beside the clone is found" found "arena.c" nothing_beside "$tmp/tree"
plant docs/DURABILITY.md $'\n| claim | test |\n|---|---|\n| it holds | `store_crash`: `'no_such_test'_is_there` |'
check "(control) a test that a document names and nobody has is found" found "no_such_""test_is_there" named "$tmp/tree"
plant docs/DURABILITY.md $'\n| what | how |\n|---|---|\n| it is loaded | `'no_such_test'_either` |'
check "(control) a name in a table of something else is no test's" none named "$tmp/tree"
plant CONTRIBUTING.md '| a thing | `ckpt/base/thing.c` | `unit-base_thing` |'
check "(control) a file and a unit test that are not there are found" found "no ckpt/base/thing.c" named "$tmp/tree"
if command -v nm >/dev/null; then
	mkdir "$tmp/a"
	echo 'int store_thing(void); int base_thing(void) { return store_thing(); }' | gcc -c -x c -o "$tmp/a/1.o" -
	echo 'int store_thing(void); int store_thing(void) { return 1; }' | gcc -c -x c -o "$tmp/a/2.o" -
	ar rcs "$tmp/a/base.a" "$tmp/a/1.o"
	ar rcs "$tmp/a/store.a" "$tmp/a/2.o"
	check "(control) a call upwards without an include is found" found "base calls store_thing of store" calls "$tmp/a"
	echo 'int ckpt_extra(void); int ckpt_extra(void) { return 1; }' | gcc -shared -fPIC -x c -o "$tmp/a/x.so" -
	check "(control) an export that is not declared is found" found "exported, not declared: ckpt_extra" exports "$tmp/a/x.so" .
fi
bench_plant() { # FILE LINE
	rm -rf "$tmp/tree"
	mkdir -p "$tmp/tree/tests/bench"
	cp tests/bench/*.sh "$tmp/tree/tests/bench"
	echo "$2" >>"$tmp/tree/tests/bench/$1"
}
bench_plant rows_tools.sh 'steps_part() { :; }'
check "(control) a function of two parts of make bench is found" found "something steps_part" bench_names "$tmp/tree"
bench_plant rows_tools.sh 'steps=3'
check "(control) a variable of two parts is found" found "something steps" bench_names "$tmp/tree"
echo "ckpt/cli/arena.c" | cat - "$tmp/files" >"$tmp/twice"
check "(control) a second file of one name is found" found "arena.c" unique_names "$tmp/twice"

echo "1..$n"
exit $bad
