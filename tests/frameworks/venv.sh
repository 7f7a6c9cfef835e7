# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# venv.sh - PyTorch in a virtual environment below build/: sourced by run.sh beside it and by tests/bench/frameworks.sh.

# Makes VENV if it is not there, with PyTorch VERSION, or with the newest, and transformers, if that is empty. 0; 1: it could
# not, and $venv_why says why.
venv_make() { # VENV VERSION
	local python log packages=(numpy safetensors torchdata mypy)
	venv_why=
	[ -n "$2" ] || packages+=(transformers)
	! "$1/bin/python" -c 'import importlib.util as u, sys, torch; sys.exit(not all(map(u.find_spec, sys.argv[1:])))' \
		"${packages[@]}" 2>/dev/null || return 0
	log=$(mktemp)
	# The newest Python that has a wheel of every PyTorch since 2.4 is 3.12.
	for python in ${2:+python3.12 python3.11 python3.10 python3.9} python3; do
		! "$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || break
	done
	echo "installing PyTorch${2:+ $2} into $1"
	if ! "$python" -m venv "$1" >"$log" 2>&1; then
		venv_why="a virtual environment cannot be made: $(tail -n 1 "$log")"
	elif ! "$1/bin/pip" --quiet --disable-pip-version-check install "torch${2:+==$2}" "${packages[@]}" wheel setuptools \
		>"$log" 2>&1; then
		venv_why="PyTorch cannot be installed here: $(grep -v '^$' "$log" | tail -n 1 | cut -c1-160)"
	fi
	rm -f "$log"
	[ -z "$venv_why" ]
}
