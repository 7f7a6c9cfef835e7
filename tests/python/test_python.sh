#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_python.sh - the cases of tests/python/test_*.py but test_wheel.py (test_wheel.sh). FILE... for some of them.
# Prints TAP: one plan and one numbering for each file.
set -u
cd "$(dirname "$0")/../.." || exit 1
if [ $# -eq 0 ]; then
	for f in tests/python/test_*.py; do
		[[ $f == */test_wheel.py ]] || set -- "$@" "$f"
	done
fi
new_enough='import ctypes, sys; sys.exit(sys.version_info < (3, 9))'
for python in python3 python3.13 python3.12 python3.11 python3.10 python3.9 ''; do
	[ -z "$python" ] || ! "$python" -c "$new_enough" 2>/dev/null || break
done
if [ -z "$python" ]; then
	echo "1..1"
	echo "ok 1 - the Python package # SKIP there is no python3 of version 3.9 or later, with ctypes"
	exit 0
fi
status=0
for file in "$@"; do
	echo "# $file"
	PYTHONDONTWRITEBYTECODE=1 "$python" -W error::ResourceWarning tests/frameworks/tap.py "$file" || status=1
done
exit $status
