#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The experiments and tests of docs/GPU.md, on the driver without a GPU: they run to their end, from
# a folder that was copied elsewhere, with libc alone; rows are judged and merged; what fails is a
# failed row; no result of such a driver is kept.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
unset "${!FAKECUDA_@}"
folder=$tmp/f
cp -r "$build/gpu" "$folder"
# Nothing of this machine but a PATH and the driver.
bare() { env -i PATH="$PATH" TMPDIR="$tmp" LD_LIBRARY_PATH="$build/fakecuda:$build/fakenccl" "$@"; }
bench() { bare "$folder/run.sh" bench --small "$@"; }
exit_of() { # CODE COMMAND...
	local code=$1 got=0
	shift
	"$@" >"$tmp/out" 2>"$tmp/err" || got=$?
	[ "$got" -eq "$code" ] || { echo "exit $got, expected $code"; cat "$tmp/out" "$tmp/err"; return 1; }
}
rows() { grep -c "\"experiment\": *\"$1\"" "$2"; }

# ---- the folder ----
small_enough() { [ "$(du -sm "$folder" | cut -f1)" -lt 60 ]; }
libc_alone() {
	local program
	for program in gpubench gputest ckptd ckptctl trainer libckpt.so libckpt-nccl.so; do
		ldd "$folder/$program" | grep -v 'linux-vdso\|libc\.so\|libm\.so\|libdl\.so\|libpthread\.so\|ld-linux\|libckpt\.so' && return 1
	done
	return 0
}
check "the folder has less than 60 MiB" small_enough
check "its programs need libc and libm, and what lies beside them" libc_alone

# ---- all experiments ----
all() {
	exit_of 0 bench --out "$tmp/all.json" || return 1
	local i
	for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do
		[ "$(rows "E$i" "$tmp/all.json")" -gt 0 ] || { echo "no row of E$i"; return 1; }
	done
	grep -q '"device": "fake"' "$tmp/all.json" && ! grep -q '"verdict": "fail' "$tmp/all.json"
}
merged() {
	local before e1
	before=$(wc -l <"$tmp/all.json") e1=$(rows E1 "$tmp/all.json")
	sed 's/"row": "noise_median"/"row": "an_old_row"/' "$tmp/all.json" >"$tmp/m" && mv "$tmp/m" "$tmp/all.json"
	exit_of 0 bench E=e3 --out "$tmp/all.json" && [ "$(wc -l <"$tmp/all.json")" -eq "$before" ] &&
		[ "$(rows E1 "$tmp/all.json")" -eq "$e1" ] && ! grep -q an_old_row "$tmp/all.json"
}
check "all experiments run, and each has rows" all
check "a second run replaces the rows of its experiments, and keeps the others" merged

nccl() { # WORDS VARIABLE=VALUE...
	exit_of 0 bare "${@:2}" "$folder/run.sh" bench --small E=E12 --out "$tmp/nccl.json" && grep '"row": "nccl' "$tmp/nccl.json" >"$tmp/nccl" &&
		grep -q "$1" "$tmp/nccl" || { cat "$tmp/nccl.json"; return 1; }
	rm -f "$tmp/nccl.json"
}
check "two ranks on one device restore over NCCL" nccl '"row": "nccl_rate"'
check "an NCCL that is too old is the reason why that is not judged" nccl 'not judged.*NCCL 2.10.3' FAKENCCL_VERSION=21003
check "so is an exchange that fails" nccl 'not judged.*the exchange over NCCL has failed' FAKENCCL_FAIL=ncclRecv:1:2

pull() { # WORDS VARIABLE=VALUE...
	exit_of 0 bare "${@:2}" "$folder/run.sh" bench --small E=E5 --out "$tmp/pull.json" && grep -q "$1" "$tmp/pull.json" || { cat "$tmp/pull.json"; return 1; }
	rm -f "$tmp/pull.json"
}
check "a second process copies the state out of the device, and each word is of its step" pull '"row": "pull_wrong".*"value": 0\(\.0\)\?,' FAKECUDA_SEED=3
check "what such copies cost is not judged" pull '"row": "pull_torn".*"verdict": "info"' FAKECUDA_GBPS=1
kills() { # WORDS VARIABLE=VALUE...: the rows pass, and one of them has the words
	local row
	exit_of 0 bare "${@:2}" "$folder/run.sh" bench --small E=E5 --out "$tmp/pull.json" && grep -q "$1" "$tmp/pull.json" || { cat "$tmp/pull.json"; return 1; }
	for row in torn no_end guard control; do
		grep -q "\"row\": \"kill_$row\".*\"verdict\": \"pass\"" "$tmp/pull.json" || { cat "$tmp/pull.json"; return 1; }
	done
	rm -f "$tmp/pull.json"
}
check "if the owner of the memory is killed meanwhile, no copy of two steps is accepted, and the second process ends" kills 'kill_torn.* SEED=1 draws'
check "where memory of the dead is something else at once, it would be accepted if only the guard decided" \
	kills '"row": "kill_memory".*"value": [1-9]' SEED=2 FAKECUDA_ORPHANS=reused
check "where the driver takes it away, the second process ends with its error" kills '"row": "kill_no_end".* [1-9] errors of the driver' FAKECUDA_ORPHANS=lost
check "a driver without CUDA IPC is the reason why there are none" pull 'not judged: the driver has no CUDA IPC' FAKECUDA_WITHOUT=cuIpcOpenMemHandle
check "so is one that refuses it" pull 'not judged: cuIpcOpenMemHandle.*NOT_SUPPORTED' FAKECUDA_FAIL=cuIpcOpenMemHandle:1:801

# ---- what fails ----
failing() { # FAULT EXPERIMENT WORDS
	exit_of 1 bare FAKECUDA_FAIL="$1" "$folder/run.sh" bench --small "E=$2" --out "$tmp/failing.json" &&
		grep -q "\"verdict\": \"fail.*$3" "$tmp/failing.json" || { cat "$tmp/failing.json"; return 1; }
	rm -f "$tmp/failing.json"
}
check "memory that cannot be registered is a failed row" failing cuMemHostRegister:0:2 E1 CUDA_ERROR_OUT_OF_MEMORY
check "a guard that hangs is a failed row, not a run that hangs" failing cuStreamWaitEvent:9:hang E8 hung
check "a kernel that cannot be started is one, too" failing cuLaunchKernel:5:1 E3 gpu_train\\\|gpu_device

# ---- judging ----
cat >"$tmp/rows" <<'ROWS'
{"experiment": "E4", "row": "below", "value": 0.1, "bound": "<=", "limit": 0.2}
{"experiment": "E4", "row": "above", "what": "it is above its limit", "value": 0.3, "low": 0.25, "high": 0.35, "bound": "<=", "limit": 0.2}
{"experiment": "E4", "row": "around", "value": 0.19, "low": 0.15, "high": 0.25, "bound": "<=", "limit": 0.2}
{"experiment": "E4", "row": "too_low", "value": 0.9, "bound": ">=", "limit": 0.95}
{"experiment": "E4", "row": "time", "value": 9, "bound": "<=", "limit": 0.2, "time": true}
{"experiment": "E4", "row": "none", "value": null, "bound": "<=", "limit": 0.2}
{"experiment": "E4", "row": "unlimited", "value": 1, "bound": "<="}
{"experiment": "E4", "row": "unjudged", "why": "there is no reason"}
{"experiment": "E4", "row": "informs", "value": 1}
{"experiment": "E4", "row": "text", "what": "a figure that is a text", "value": null}
{"experiment": "E4", "row": "large", "value": 704512}
this is no row
ROWS
verdict() { # ROW VERDICT
	grep "\"row\": \"$1\"" "$tmp/judged.json" | grep -qF "\"verdict\": \"$2" || { grep "\"row\": \"$1\"" "$tmp/judged.json"; return 1; }
}
judged() {
	exit_of 1 bare "$folder/gpubench" --out "$tmp/judged.json" merge "$tmp/rows" || return 1
	verdict below 'pass"' && verdict above 'fail"' && verdict around 'not judged: the interval contains' && verdict too_low 'fail"' &&
		verdict time 'not judged: a driver without' && verdict none 'fail: it has no value' && verdict unlimited 'fail: its bound' &&
		verdict unjudged 'not judged: there is no reason' && verdict informs 'info"' && verdict text 'info"' && verdict '?' 'fail: this is no row'
}
check "rows are judged by value, interval and limit; one that cannot be read fails" judged
seen() {
	grep -q '^E4  text  *a figure that is a text  *info$' "$tmp/out" && grep -q '^E4  large  *704512  *info$' "$tmp/out" &&
		grep -A1 '^E4  above .* fail$' "$tmp/out" | grep -q '^    it is above its limit$' || { cat "$tmp/out"; return 1; }
}
check "a reader sees what is a text, whole numbers, and what a row is that fails" seen

# ---- what is refused ----
mkdir -p "$tmp/docs/results"
ln -s "$tmp/docs/results" "$tmp/link"
refused() { # WORDS COMMAND...
	local words=$1
	shift
	exit_of 2 "$@" && grep -qF -- "$words" "$tmp/err" || { cat "$tmp/err"; return 1; }
}
kept_nothing() { [ -z "$(ls -A "$tmp/docs/results")" ]; }
check "no row of a driver without a GPU goes among the results that are kept" refused 'driver without a GPU' bench E=E0 --out "$tmp/docs/results/GPU-1.json"
check "nor by another name of that directory" refused 'driver without a GPU' bench E=E0 --out "$tmp/link/GPU-1.json"
check "and nothing was written there" kept_nothing
check "docs/results has none" bash -c "! grep -l '\"device\": *\"fake\"' '$root'/docs/results/*"
sed 's/"device": "fake"/"device": "another"/' "$tmp/all.json" >"$tmp/other.json"
check "rows of two devices are not mixed" refused another bench E=E0 --out "$tmp/other.json"
echo '{}' >"$tmp/no.json"
check "nor rows with what is no document" refused 'no document' bench E=E0 --out "$tmp/no.json"
check "an experiment that there is not" refused E99 bench E=E1,E99
check "a number that is none" refused "'x'" bench --state-mib x
check "a verb that there is not" refused 'run.sh bench' bare "$folder/run.sh" measure
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
	skip "there is a driver" "no driver is a sentence"
else
	check "no driver is a sentence" refused 'there is no CUDA driver here' env -u LD_LIBRARY_PATH "$folder/run.sh" bench E=E0 --out "$tmp/none.json"
	check "for the tests, too" refused 'there is no CUDA driver here' env -u LD_LIBRARY_PATH "$folder/run.sh" test
fi

# ---- the tests of a device ----
check "the tests of a device pass on the driver without one" exit_of 0 bare GPU_TRAINER_PARAMS=20K GPU_TRAINER_STEPS=60 "$folder/run.sh" test --kills 2
check_assembles "$root/tests/gpu/kernels.ptx" sm_80 sm_90 sm_100
nvcc=$(command -v nvcc || command -v "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" || true)
same_text() { # other versions of nvcc write it differently
	"$nvcc" -ptx -arch=compute_80 -fmad=false -o "$tmp/k.ptx" "$root/tests/gpu/kernels.cu" || return 1
	sed -e 's/^\.version .*/.version 7.0/' -e '/^\/\//d' -e '/^$/d' "$tmp/k.ptx" | diff - "$root/tests/gpu/kernels.ptx"
}
if [ -n "$nvcc" ] && "$nvcc" --version | grep -q 'release 13\.0'; then
	check "kernels.ptx is what nvcc makes of kernels.cu" same_text
else
	skip "there is no nvcc 13.0" "kernels.ptx is what nvcc makes of kernels.cu"
fi
tap_end
