#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# record.sh - `make bench-results`: measures, and keeps what was printed as a section of docs/results/README.md. A section with the
# same title is replaced. Run it on a machine that does nothing else.
#
#   TITLE=TEXT            the section's title (Conversions from and to safetensors)
#   ROWS='A B*'           rows of `make bench` (those of that section); ROWS= for all
#   FRAMEWORK_ROWS='A B*' rows of `make bench-frameworks`; FRAMEWORK_ROWS= for none
#
# BENCH_* as for run.sh.
set -eu
cd "$(dirname "$0")/../.."
title=${TITLE-Conversions from and to safetensors}
rows=${ROWS-convert* to_hub* from_hub* show_* ls_100k}
framework_rows=${FRAMEWORK_ROWS-hub_*}
page=docs/results/README.md
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

settings=$(env | grep -o '^BENCH_\(MIB\|PAIRS\|BIG_MIB\)=.*' | sort | tr '\n' ' ' || true)

# What a run printed, as the page has it: settings and target, then its first line without the path, then the table.
# shellcheck disable=SC2016 # backquotes of Markdown
section() { # ROWS TARGET FILE
	printf '`%s%smake %s`; %s:\n\n' "${1:+ROWS='$1' }" "$settings" "$2" "$(grep -m 1 'load before' "$3" | sed 's/ at \/.*//')"
	sed -n '/^name  *ratio/,/^$/{/^$/!s/^/    /p}' "$3"
	sed -n '/^missed: /{s/.*/\n&/p}' "$3"
	echo
}

machine() {
	awk -F': *' '/^model name/ { cpu = $2 } END { printf "%d cores (%s), ", '"$(nproc)"', cpu }' /proc/cpuinfo
	awk '/^MemTotal/ { printf "%d GiB, ", $2 / 1048576 }' /proc/meminfo
	echo "Linux $(uname -r | cut -d- -f1), $(gcc --version | head -1 | grep -o '[0-9.]*$' | sed 's/^/gcc /'), $(fio --version)."
}

ROWS=$rows tests/bench/run.sh | tee "$out/bench"
[ -z "$framework_rows" ] || ROWS=$framework_rows tests/bench/frameworks.sh | tee "$out/frameworks"
{
	printf '## %s\n\n%s\n\n' "$title" "$(machine)"
	section "$rows" bench "$out/bench"
	[ -z "$framework_rows" ] || section "$framework_rows" bench-frameworks "$out/frameworks"
} >"$out/section"

# Behind the introduction, in front of all other sections.
awk -v title="## $title" -v new="$out/section" '
	/^## / {
		if (!put) {
			while ((getline line <new) > 0)
				print line
			put = 1
		}
		old = $0 == title
	}
	!old' "$page" >"$out/page"
cp "$out/page" "$page"
echo "written: $page"
