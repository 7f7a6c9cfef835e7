#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_tour.sh - docs/TOUR.md shows what the commands print today.
exec "$(dirname "$0")/../tour/tour.sh"
