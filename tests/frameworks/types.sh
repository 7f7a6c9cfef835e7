#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# types.sh - the package has types that mypy --strict accepts, for the oldest Python that it runs on.
cd "$(dirname "$0")/../.." || exit 1
echo 1..1
if [ -n "${TORCH:-}" ]; then
	echo "ok 1 - mypy --strict accepts python/ckptd # SKIP PyTorch $TORCH has other types; those of the newest one are checked"
elif out=$(MYPYPATH=python "$TEST_PYTHON" -m mypy --strict --cache-dir build/.mypy python/ckptd 2>&1); then
	echo "ok 1 - mypy --strict accepts python/ckptd"
else
	echo "not ok 1 - mypy --strict accepts python/ckptd"
	printf '%s\n' "$out"
fi
