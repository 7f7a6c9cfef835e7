#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Where a job's steps are there and none can be read - all damaged, or on a disk that fails - resuming is an error; only where
# there are none does a job start at step 0.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
refused() { # the job has ended with an error, and has trained nothing
	local status=0
	job_ends 0 >/dev/null || status=$?
	cat "$tmp/job.out" "$tmp/job.err"
	[ "$status" -ne 0 ] && [ ! -s "$tmp/losses" ] && ! grep -q "starts at step 0" "$tmp/job.out"
}
check "a daemon listens" daemon_start
job_start --mesh fsdp=2 --steps 20 --snapshot-every 5 --resume latest
check "where there is nothing, a job starts at step 0" job_ends 0
kill -KILL "$daemon"
wait "$daemon" 2>/dev/null || true
rm "$socket" "$tmp/losses"
for manifest in "$store"/a/step-*/MANIFEST; do
	mv "$manifest" "$manifest.kept"
	echo nonsense >"$manifest"
done
check "a new daemon listens" daemon_start
job_start --mesh fsdp=2 --steps 30 --snapshot-every 5 --resume latest
check "where all steps are damaged, a job that resumes from the latest ends" refused
for manifest in "$store"/a/step-*/MANIFEST; do
	mv "$manifest.kept" "$manifest"
done
job_start --mesh fsdp=2 --steps 30 --snapshot-every 5 --resume latest
check "when they can be read again, it goes on" job_ends 0
check "from the newest" says "resumed from disk, step 20" "$tmp/job.out"
tap_end
