#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_golden.sh - tests/golden is what the command's unit tests would write, no file more and none less. That each
# output is that of its file is what these tests compare by themselves.
set -u
# shellcheck source=tests/e2e/trainer_tap.sh
. "$(dirname "$0")/../e2e/trainer_tap.sh"
cd "$root" || exit 1
programs=build/obj/mutant/unit
[ -x $programs/cli ] && [ -x $programs/cli_foreign ] || programs=build/obj/release/unit
chmod 711 "$tmp" # some cases become another user for a while

# SUBJECT:CASE of each case that calls SHOWN, also through functions and macros of its file.
showing() {
	local f
	for f in tests/unit/test_cli_*.c; do
		awk -v of="$(basename "$f" .c)" '
			/^#define [A-Za-z_]*\(/ { body[called(substr($0, 9))] = $0 }
			/^[A-Za-z].*\(/ && !/;$/ {
				name = $0
				sub(/^TEST(_WITH)?\(/, "", name) ? test[name = first(name)] = 1 : name = called(name)
			}
			name != "" { body[name] = body[name] $0 "\n" }
			/^}/ { name = "" }
			function first(s) { sub(/[,)].*/, "", s); return s }
			function called(s) { sub(/\(.*/, "", s); sub(/.*[ *]/, "", s); return s }
			END {
				shows["SHOWN"] = shows["SHOWN_IS"] = shows["TYPED_IS"] = shows["shown"] = 1
				for (more = 1; more;) {
					more = 0
					for (f in body) for (s in shows)
						if (!(f in shows) && index(body[f], s "(")) { shows[f] = 1; more = 1; break }
				}
				for (f in test) if (f in shows) print substr(of, 6) ":" f
			}' "$f"
	done
}
writes() {
	mkdir -m 755 "$tmp/golden" || return 1
	showing >"$tmp/cases"
	grep -v '^cli_foreign:' "$tmp/cases" | TMPDIR=$tmp GOLDEN=$tmp/golden xargs $programs/cli >"$tmp/log" 2>&1 &&
		sed -n 's/^cli_foreign://p' "$tmp/cases" | TMPDIR=$tmp GOLDEN=$tmp/golden xargs $programs/cli_foreign >>"$tmp/log" 2>&1 && return
	grep -aE 'not ok|FAILED|rror' "$tmp/log" | head -n 20
	return 1
}
check "the command's tests write their golden files" writes
check "they are those of tests/golden (make golden writes them anew)" diff -r "$tmp/golden" tests/golden
mkdir -p "$tmp/golden/ls"
echo >"$tmp/golden/ls/no_test_asks_for_this.txt"
check "(control) one that no test asks for is found" eval '! diff -r "$tmp/golden" tests/golden'
tap_end
