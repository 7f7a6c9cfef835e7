#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A few power cuts on ext4 and XFS while a job saves; `make power` makes many.
exec "$(dirname "$0")/../power/power.sh" "${SEED:-1}" 6 ext4 xfs
