#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - `make test-frameworks`: the Python package with real PyTorch, on the CPU. Prints like tests/run.sh, which runs
# the tests: all of tests/frameworks/test_*.py, or those in the arguments (torch:matrix).
#
#   TORCH=2.4.1   that version, in build/venv-2.4.1: the short half of the tests, as with SHORT=1
#   SEED=N        the draws of an earlier run, which printed it
#   TEST_JOBS=N   programs at a time (2: each of them starts several ranks)
#
# If PyTorch is not there and cannot be installed, everything is skipped, with the reason.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/frameworks/venv.sh
venv=build/venv${TORCH:+-$TORCH}
why=
.ci/deps install frameworks >/dev/null 2>&1 || why="this Python cannot make virtual environments (python3-venv)"
[ -n "$why" ] || venv_make "$venv" "${TORCH:-}" || why=$venv_why
if [ -n "$why" ]; then
	echo "  skipped:"
	echo "    all: $why"
	echo "0 passed, 0 failed, 1 skipped"
	exit 0
fi
if [ $# -eq 0 ]; then
	set -- script:tests/frameworks/types.sh
	for t in tests/frameworks/test_*.py; do
		t=${t##*/test_}
		set -- "$@" "torch:${t%.py}"
	done
fi
export TEST_PYTHON=$PWD/$venv/bin/python SHORT=${SHORT:-${TORCH:+1}} SEED=${SEED:-$RANDOM}
export TEST_JOBS=${TEST_JOBS:-2} TEST_SECONDS=${TEST_SECONDS:-1200} CKPT_SEED_SAID=1
echo "  PyTorch $("$TEST_PYTHON" -c 'import torch; print(torch.__version__)'), SEED=$SEED${SHORT:+, the short half}"
exec tests/run.sh "$@"
