#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - experiments and tests on a GPU, from the folder that this file lies in
# (`make gpu-folder`: build/gpu). The machine needs a driver, bash and libc; neither compiler nor
# make nor other packages. Copy the folder, then:
#
#   ./run.sh bench [E=E4,E6] [--out FILE] [--device N]   experiments; without --out into results/GPU-DATE.json here
#   ./run.sh test [--device N] [--kills N]               correctness; prints TAP; a trainer is killed N times (10)
#
# Exit of bench: 0, 1 a row failed, 2 there is no device here, or the command is wrong. Of test: 0,
# 1 a case failed, 2 as above.
set -u
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd) || exit 2
verb=${1:-}
[ $# -eq 0 ] || shift
case $verb in
bench)
	out=''
	for word; do
		[ "$word" != --out ] || out=given
	done
	if [ -z "$out" ]; then
		mkdir -p "$here/results" || exit 2
		set -- --out "$here/results/GPU-$(date +%F).json" "$@"
	fi
	exec "$here/gpubench" "$@"
	;;
test) ;;
*)
	sed -n 's/^# \{0,1\}//; 3,11p' "$here/run.sh" >&2
	exit 2
	;;
esac

device=0 kills=10
while [ $# -gt 0 ]; do
	case $1 in
	--device) device=${2:?--device needs a number}; shift 2 ;;
	--kills) kills=${2:?--kills needs a number}; shift 2 ;;
	*) echo "run.sh test: '$1': --device N or --kills N is needed" >&2; exit 2 ;;
	esac
done
tmp=$(mktemp -d "${TMPDIR:-/tmp}/gpu.XXXXXX") || exit 2
trap 'rm -rf "$tmp"' EXIT
n=0 failed=0
ok() { # SENTENCE COMMAND...
	local sentence=$1
	shift
	n=$((n + 1))
	if "$@" >"$tmp/log" 2>&1; then
		echo "ok $n - $sentence"
	else
		echo "not ok $n - $sentence"
		sed 's/^/#   /' "$tmp/log" | tail -20
		failed=$((failed + 1))
	fi
}

"$here/gputest" --device "$device" --dir "$tmp" >"$tmp/gputest"
status=$?
grep -v '^1\.\.' "$tmp/gputest"
[ $status -ne 2 ] || exit 2 # no device: gputest has said so
n=$(grep -c '^\(not \)\{0,1\}ok ' "$tmp/gputest") failed=$(grep -c '^not ok ' "$tmp/gputest")
if [ $status -ne 0 ] && [ "$failed" -eq 0 ]; then
	n=$((n + 1)) failed=1
	echo "not ok $n - gputest runs to its end: status $status"
fi

# ---- kill -9 of a trainer, again and again ----
# What `make storm` does with ckptd's own driver, in short: the losses of a run that dies and
# resumes are those of one that does not.
export CKPTD_SOCKET=$tmp/socket
"$here/ckptd" --quiet 2>"$tmp/ckptd.log" &
daemon=$!
trap 'kill $daemon 2>/dev/null; wait $daemon 2>/dev/null; rm -rf "$tmp"' EXIT
RANDOM=${SEED:-1}
run=("$here/trainer" --mesh fsdp=1 --params "${GPU_TRAINER_PARAMS:-2M}" --steps "${GPU_TRAINER_STEPS:-400}" --device "${GPU_TRAINER_DEVICE:-cuda:$device}")
killed() {
	local i pid cut
	"${run[@]}" --no-checkpoint --losses "$tmp/calm" || return 1
	for ((i = 0; i < kills; i++)); do
		setsid "${run[@]}" --root "$tmp/store" --job storm --socket "$CKPTD_SOCKET" --resume latest --losses "$tmp/storm" &
		pid=$!
		cut=$((RANDOM % 18 + 3)) # tenths of a second
		sleep "$((cut / 10)).$((cut % 10))"
		kill -9 -- "-$pid" 2>/dev/null
		wait "$pid" 2>/dev/null
	done
	"${run[@]}" --root "$tmp/store" --job storm --socket "$CKPTD_SOCKET" --resume latest --losses "$tmp/storm" || return 1
	sort -u "$tmp/calm" >"$tmp/calm.sorted"
	sort -u "$tmp/storm" | comm -23 - "$tmp/calm.sorted" >"$tmp/strange"
	[ -s "$tmp/storm" ] && [ ! -s "$tmp/strange" ] || { echo "losses that no undisturbed run has:"; head -5 "$tmp/strange"; return 1; }
}
echo "# the moments of the kills: SEED=${SEED:-1}"
ok "a trainer that is killed $kills times with its state on the device has the losses of one that is not" killed
ok "every step that it left verifies, to the last byte" "$here/ckptctl" verify --data -C "$tmp/store" storm@latest

# ---- torch ----
n=$((n + 1))
why=$(PYTHONPATH=$here/python CKPTD_LIBRARY=$here/libckpt.so python3 "$here/torch_gpu.py" test "$tmp" 2>"$tmp/torch.err")
case $? in
0) echo "ok $n - torch FSDP2 on one GPU through ckptd.attach" ;;
77) echo "ok $n - torch FSDP2 on one GPU through ckptd.attach # SKIP $why" ;;
127) echo "ok $n - torch FSDP2 on one GPU through ckptd.attach # SKIP there is no python3" ;;
*)
	echo "not ok $n - torch FSDP2 on one GPU through ckptd.attach"
	{ echo "$why"; tail -15 "$tmp/torch.err"; } | sed 's/^/#   /'
	failed=$((failed + 1))
	;;
esac
echo "1..$n"
[ "$failed" -eq 0 ]
