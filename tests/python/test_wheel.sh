#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# test_wheel.sh - the wheel, in fresh environments of every Python that is here. Apart from test_python.sh, beside which it runs.
exec "$(dirname "$0")/test_python.sh" tests/python/test_wheel.py
