#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A short storm of kills, without and with the daemon among the victims, and with standstills, on
# the host and on the GPU of tests/fakecuda; `make storm` is the whole one. storm.sh says what all of them have and compare.
set -u
seed=${SEED:-1}
status=0
"$(dirname "$0")/../storm/storm.sh" "$seed" 8 || status=1
"$(dirname "$0")/../storm/storm.sh" "$seed" 8 --daemon || status=1
"$(dirname "$0")/../storm/storm.sh" "$seed" 4 --stop || status=1
"$(dirname "$0")/../storm/storm.sh" "$seed" 8 --daemon --device || status=1
exit $status
