#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - `make bench`: what ckptd costs, each figure as a ratio to what this machine can do at the same
# time. Prints a table, writes build/bench.json (one object a line), names the targets that were missed.
#
#   BENCH_DIR=PATH   where the checkpoints go (build/bench): the disk that is measured
#   BENCH_MIB=N      size of the state in MiB (1024)
#   BENCH_PAIRS=N    pairs of each comparison with the disk (7)
#   ROWS='A B*'      only these rows, by name or pattern; what else the same run gives is not shown
#   BENCH_FAST_DIR=PATH  a disk faster than one core's sums (/dev/shm)
#   BENCH_BIG_MIB=N  size of the checkpoint that shows that memory does not grow with it (8192)
# A state of fewer than 256 MiB is for a look: three pairs, shorter pauses, 8 x BENCH_MIB as the big one.
#
# Both sides of a ratio are measured in turn, A B, B A, A B, ...; ratio = median / median. The page cache is
# out of the way on both sides: everything uses O_DIRECT. See tests/bench/README.md for what each row is.
set -eu
cd "$(dirname "$0")/../.."
json=build/bench.json
. tests/bench/common.sh
for rows in snapshot average save restore scale tools convert; do
	# shellcheck disable=SC1090 # the seven files beside this one
	. "tests/bench/rows_$rows.sh"
done

read -r load _ </proc/loadavg
echo "$(nproc) cores, load before $load; $mib MiB of state; $(stat -f -c %T "$dir") at $dir"
snapshot_rows
average_rows
save_rows
restore_rows
scale_rows
tools_rows
conversion_rows
bench_end
