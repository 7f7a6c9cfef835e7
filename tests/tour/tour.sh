#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# tour.sh - walks through docs/TOUR.md: every line `$ COMMAND` of its ```console blocks is run, in one shell, in a
# directory like the one that make demo leaves behind, and what it prints is compared with what stands below it.
#   tests/tour/tour.sh             TAP, one test a command (called by tests/e2e/test_tour.sh)
#   tests/tour/tour.sh --write     put what the commands print into the document
# What differs from run to run (times, rates, ids, process numbers) is compared as a word for it; behind a line
# <!-- not compared --> commands only must print something. Then the commands of README's ```sh block are run.
set -u
cd "$(dirname "$0")/../.." || exit 1
root=$PWD
doc=$root/docs/TOUR.md
write=
[ "${1:-}" != --write ] || write=1
tmp=$(mktemp -d "${TMPDIR:-/tmp}/ckptd-tour.XXXXXX")
place=$tmp/build/demo # what the document calls build/demo
daemon=
finish() {
	exec 2>/dev/null
	[ -z "$daemon" ] || kill -KILL "$daemon"
	# Whatever a command of the document left running.
	pkill -KILL -f -- "$tmp/" || true
	rm -rf "$tmp"
}
trap finish EXIT

# ---- what make demo leaves: the same model, the same jobs, trained without being killed ----

mkdir -p "$place"
export PATH=$root/build:$PATH XDG_RUNTIME_DIR=$tmp/run
mkdir -m 700 "$XDG_RUNTIME_DIR"
unset CKPTD_STORE CKPTD_SOCKET NO_COLOR COLUMNS
export LC_ALL=C.UTF-8 TZ=UTC
mkdir "$tmp/docs" # what the document calls docs: a text that is the same everywhere
cp LICENSE "$tmp/docs"
ln -s "$root/tests" "$tmp/tests" # and the golden files of Hugging Face
ckptd --quiet 2>"$tmp/ckptd.log" &
daemon=$!
disown # the document's %1 is the document's own
train() { # JOB MESH MILLISECONDS: of a step
	trainer --mesh "$2" --params 4M --seed 7 --steps 80 --snapshot-every 4 --guard finish --wait-ready --step-ms "$3" \
		--text "$tmp/docs" --root "$place/store" --job "$1" >"$tmp/train.out" 2>&1 || {
		echo "Bail out! the trainer failed"
		sed 's/^/# /' "$tmp/train.out" "$tmp/ckptd.log"
		exit 1
	}
}
for job in demo-a:fsdp=4 demo-b:fsdp=3 demo-c:dp=2,fsdp=2; do
	# A trainer that is too fast for the disk skips snapshots. Here each of the 20 shall be there.
	for ms in 0 50 150 500 1500; do
		train "${job%%:*}" "${job#*:}" $ms
		steps=("$place/store/${job%%:*}"/step-*)
		[ ${#steps[@]} -lt 20 ] || break
		ckptctl forget "${job%%:*}" >/dev/null
		rm -rf "$place/store/${job%%:*}"
	done
done

# ---- running the document ----

# One word for what differs. Widths of columns follow what stands in them, so blanks count as one.
plain() {
	sed -E -e 's/[0-9]{4}-[0-9]{2}-[0-9]{2}[ T][0-9:]{8}(\.[0-9]+)?( [A-Z]+|Z)?/DATE/g' \
		-e "s#($tmp|~/ckptd)/#TOUR/#g" \
		-e 's/\b[0-9a-f]{16}([0-9a-f]{16})?\b/HEX/g' \
		-e 's/[0-9.]+ ([KMG]i?B|GB|MB|kB|B)\/s/RATE/g' \
		-e 's/\b(now|([0-9.]+ ?(ns|us|µs|ms|s|m|h|d|w|y|min)))\b/TIME/g' \
		-e 's/TIME( TIME)?( ago)?/TIME/g' \
		-e 's/\b(pid|process) [0-9]+/PID/g' \
		-e 's/\b(launch|generation) [0-9]+/\1 N/g' -e 's/\bloss [0-9.]+/loss NUMBER/' -e 's/^ +(min|max|mean|std)  *-?[0-9.e-]+$/\1 NUMBER/' \
		-e 's/(\[256, 96\]) +[0-9,]+ +[0-9.e-]+ +\[[0-9, ]+\]$/\1 NUMBERS/' \
		-e 's/[0-9.]+ % of the time/PART of the time/' -e 's/[0-9.]+ MiB of ([0-9.]+ MiB in use)/SIZE of \1/' \
		-e 's/^ +written  *[0-9]+$/written N/' -e 's/^ +memory  *[0-9.]+ MiB$/memory SIZE/' -e 's/^ +steps  *[0-9]+$/steps N/' \
		-e 's/\bw([0-9]{4})-[0-9a-f]{8}-/w\1-HEX-/g' \
		-e 's/^([Ss]tep) [0-9]+ of live/\1 N of live/' \
		-e 's/\b[0-9]+ (taken|skipped|torn|staged|committed|in flight)\b/N \1/g' \
		-e 's/[0-9]+(\.[0-9]+)? [TGM]iB (free|available|of)/SPACE/g' \
		-e 's/^ +TIME +step [0-9]+/TIME step N/' -e 's/[0-9.e+]+ steps\/s/RATE/' -e 's/(memory holds|disk) step [0-9]+/\1 step N/g' \
		-e 's/(is at step|staged step is|newest committed) [0-9]+/\1 N/g' -e 's/ [0-9]+\.[0-9]{3,}( |$)/ NUMBER\1/' \
		-e 's/[ \t]+/ /g' -e 's/^ //' -e 's/ $//' "$1"
}

n=0 failed=0 command='' inside=0 free=''
: >"$tmp/new.md"
: >"$tmp/want"

judge() { # compares what the last command printed with what the document says
	[ -n "$command" ] || return 0
	n=$((n + 1))
	if [ -n "$write" ]; then
		sed "s#$tmp/#~/ckptd/#g" "$tmp/got" >>"$tmp/new.md"
	elif [ -n "$free" ] && [ -s "$tmp/got" ]; then
		echo "ok $n - $command"
	elif diff <(plain "$tmp/want") <(plain "$tmp/got") >"$tmp/diff"; then
		echo "ok $n - $command"
	else
		echo "not ok $n - $command"
		sed 's/^/# /' "$tmp/diff"
		failed=$((failed + 1))
	fi
	command=''
}

cd "$tmp" || exit 1
while IFS= read -r line <&3; do
	if [ "$inside" -eq 1 ] && [[ $line == '```' ]]; then
		judge
		inside=0 free=''
	elif [ "$inside" -eq 1 ] && [[ $line == '$ '* ]]; then
		judge
		command=${line#\$ }
		: >"$tmp/want"
		[ -z "$write" ] || printf '%s\n' "$line" >>"$tmp/new.md"
		eval "$command" >"$tmp/got" 2>&1 3>&-
		continue
	elif [ "$inside" -eq 1 ]; then
		printf '%s\n' "$line" >>"$tmp/want"
		continue
	fi
	[[ $line != '```console' ]] || inside=1
	[[ $line != '<!-- not compared -->' ]] || free=1
	[ -z "$write" ] || printf '%s\n' "$line" >>"$tmp/new.md"
done 3<"$doc"
# The picture that README shows is the one that the document's command draws.
if [ -n "$write" ]; then
	cp "$tmp/plan.svg" "$root/docs/demo-plan.svg"
	cp "$tmp/steps.svg" "$root/docs/steps.svg"
	cp "$tmp/new.md" "$doc"
	echo "$n commands, written to docs/TOUR.md"
	exit 0
fi
picture() { # NAME-HERE NAME-IN-DOCS SENTENCE
	n=$((n + 1))
	if cmp "$tmp/$1" "$root/docs/$2" >"$tmp/diff" 2>&1; then
		echo "ok $n - docs/$2 is $3"
	else
		echo "not ok $n - docs/$2 is $3"
		sed 's/^/# /' "$tmp/diff"
		failed=$((failed + 1))
	fi
}
picture plan.svg demo-plan.svg "the picture of the demo's plan"
picture steps.svg steps.svg "the picture of the tour's steps"
# The commands that README shows work as they stand there, on this store; those for PyTorch are for tests/frameworks/test_docs.py. A difference (6) and a warning (3) are answers.
while IFS= read -r line <&3; do
	n=$((n + 1)) code=0
	eval "$line" >"$tmp/got" 2>&1 3>&- || code=$?
	if [[ $code == 0 || $line == *' diff '* && $code == 6 || $line == *' doctor '* && $code == 3 ]]; then
		echo "ok $n - README: ${line%%  *}"
	else
		echo "not ok $n - README: ${line%%  *}"
		echo "# exit $code"
		sed 's/^/# /' "$tmp/got"
		failed=$((failed + 1))
	fi
done 3< <(awk '/^## / { torch = /PyTorch/ } /^```sh$/ { on = !torch; next } /^```$/ { on = 0 } on && NF' "$root/README.md")

echo "1..$n"
[ "$failed" -eq 0 ] && [ "$n" -gt 0 ]
