#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_mutants.sh - the planted mistakes: none of them is in a program that people use, each has its place and its
# tests, and a third of the quick ones is found, another third each day. `make mutants` runs all.
set -u
cd "$(dirname "$0")/../.." || exit 1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-mutants.XXXXXX") || exit 1
trap 'rm -rf "$tmp"' EXIT
n=0 bad=0
none() { # SENTENCE: what the function "it" prints are the offences
	n=$((n + 1))
	if it >"$tmp/out" 2>&1 && [ ! -s "$tmp/out" ]; then
		echo "ok $n - $1"
	else
		echo "not ok $n - $1"
		sed 's/^/# /' "$tmp/out"
		bad=1
	fi
}
sed -n 's/^[[:space:]]*X(\([A-Z_0-9]*\),.*/\1/p' ckpt/base/mutants.h | sort >"$tmp/list"
grep -rhoE '\bMUTANT\([A-Z_0-9]+\)' ckpt ema daemon formats --include='*.[ch]' | sed 's/.*(//; s/)//' | grep -v '^NAME$\|^X$' | sort -u >"$tmp/hooks"
sed '/^#/d; /^[[:space:]]*$/d; s/[[:space:]].*//' tests/mutants/table | sort >"$tmp/table"

it() {
	comm -23 "$tmp/list" "$tmp/hooks" | sed 's/$/ is nowhere in the code/'
	comm -13 "$tmp/list" "$tmp/hooks" | sed 's/$/ is not in ckpt\/base\/mutants.h/'
	uniq -d "$tmp/list" | sed 's/$/ is there twice/'
}
none "every planted mistake has its place in the code"
it() { diff "$tmp/list" "$tmp/table" | sed -n 's/^[<>] \(.*\)/\1 is in one of ckpt\/base\/mutants.h and tests\/mutants\/table/p'; }
none "every planted mistake has tests that should find it"

traces() { # PROGRAM...
	local f
	for f; do
		nm -a "$f" 2>/dev/null | grep -iE 'mutant' | sed "s,^,$f: ,"
		strings -a "$f" | grep -E 'CKPT_MUTANT|COLLECTING_NOT_SYNCED' | sed "s,^,$f: ,"
	done
}
it() { traces build/ckptd build/ckptctl build/libckpt.so; }
if [ -x build/ckptd ]; then
	none "programs that people use have no trace of them"
	it() { [ -n "$(traces build/obj/mutant/unit/store_crash)" ] || echo "no trace is found in a program that has them"; }
	[ ! -x build/obj/mutant/unit/store_crash ] || none "(control) a program that was built for them shows it"
else
	n=$((n + 1))
	echo "ok $n - programs that people use have no trace of them # SKIP nothing is built: run make"
fi

export SEED=${SEED:-$(date +%-j)}
echo "# mutants: SEED=$SEED"
tests/mutants/run.sh --tap THIRD >"$tmp/run" || bad=1
awk -v n="$n" '/^1\.\.[0-9]/ { print "1.." substr($0, 4) + n; next }
	/^(not )?ok [0-9]/ { sub(/ok [0-9]+/, "ok " ++k + n) } { print }' "$tmp/run"
exit $bad
