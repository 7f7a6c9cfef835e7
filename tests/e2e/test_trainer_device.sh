#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A trainer whose state lies on a GPU, and is changed by kernels there, has the losses, masters and
# checkpoints of one on the host, bit for bit. The GPU is the driver of tests/fakecuda, which runs
# the PTX text that a GPU would compile.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
steps=30
unset "${!FAKECUDA_@}"

# ---- the arithmetic ----
alone() { # NAME OPTION...: without checkpoints
	local name=$1
	shift
	"$trainer" --no-checkpoint --steps $steps --params "$params" --losses "$tmp/$name.losses" --masters "$tmp/$name.masters" "$@"
}
as_on_the_host() { # OPTION...
	rm -f "$tmp/there.losses" "$tmp/there.masters"
	alone there "$@" && cmp "$tmp/host.losses" "$tmp/there.losses" && cmp "$tmp/host.masters" "$tmp/there.masters"
}
check "one rank trains on the host" alone host --mesh fsdp=1
check "on a GPU it has the same losses and masters, bit for bit" as_on_the_host --mesh fsdp=1 --device fake
check "on the legacy stream, too" as_on_the_host --mesh fsdp=2 --device fake --stream legacy
check "on two GPUs" as_on_the_host --mesh dp=2,fsdp=2 --device fake:0,1
check "with every second parameter on the host" as_on_the_host --mesh fsdp=3 --device fake --memory mixed
check "with stretches of all elements" as_on_the_host --mesh fsdp=3 --device fake --layout boxes
check "where all streams share one queue" env FAKECUDA_CONNECTIONS=1 "$trainer" --no-checkpoint --mesh fsdp=1 --steps 3 --params "$params" --device fake
check_assembles "$root/tests/trainer/kernels.ptx" sm_52 sm_75 sm_80 sm_90 sm_100

# ---- what may be wrong ----
refused() { # CODE WORDS OPTION...
	local code=$1 words=$2
	shift 2
	exits "$code" "$trainer" --no-checkpoint --mesh fsdp=1 --steps 3 --params "$params" "$@" 2>"$tmp/err" || { cat "$tmp/err"; return 1; }
	grep -qF -- "$words" "$tmp/err" || { cat "$tmp/err"; return 1; }
}
for which in '' gpu cuda1 fake: fake:x fake:-1 'cuda:1,' cuda:0,1,2,3,4 99; do
	check "device '$which'" refused 2 --device --device "$which"
done
check "a device that is named twice" refused 2 twice --device fake:1,1
check "a stream of another name" refused 2 --stream --device fake --stream mine
check "a stream without a device" refused 2 --device --stream legacy
check "a mistake that is none" refused 2 --mistake --device fake --mistake all
check "a device that the driver does not have" env FAKECUDA_DEVICES=1 "$BASH" -c "$(declare -f exits refused); trainer='$trainer' params='$params' tmp='$tmp'; refused 10 CUDA_ERROR_INVALID_DEVICE --device fake:1"
failing() { # CALL:NTH:RC CODE [WORDS]
	FAKECUDA_FAIL=$1 refused "$2" "${3:-${1%%:*}}" --device fake
}
check "no memory on the device" failing cuMemAlloc:7:2 13
check "a kernel that cannot be started" failing cuLaunchKernel:9:1 1 trainer_
check "kernels that the driver does not take" failing cuModuleLoadData:1:218 1
if ldconfig -p 2>/dev/null | grep -q 'libcuda\.so\.1'; then
	skip "there is a driver" "no driver"
else
	check "no driver" refused 10 "there is no CUDA driver" --device cuda
fi

# ---- snapshots ----
# Lines "STEP COMPONENT/NAME FINGERPRINT" of each committed step of a store.
contents() { # STORE
	local path
	for path in "$1"/a/step-*; do
		"$ckptctl" show "$path" --tensors='*' --json | tr '{' '\n' |
			sed -n 's/.*"component":"\([^"]*\)","name":"\([^"]*\)".*"fingerprint":"\([0-9a-f]*\)".*/\1\/\2 \3/p' | sed "s/^/${path##*-} /"
	done | grep -v ' blob/' | sort
}
# Of the steps that both have, how many have a tensor that differs; "few" if fewer than LEAST are in
# common, "odd" if one has other tensors.
differing_steps() { # CONTENTS CONTENTS LEAST
	awk -v least="$3" 'NR == FNR { want[$1, $2] = $3; have[$1] = 1; next }
		!have[$1] { next }
		{ seen[$1] = 1 }
		!(($1, $2) in want) { print "no " $2 > "/dev/stderr"; odd = 1 }
		want[$1, $2] != $3 { bad[$1] = 1; tensor[$2] = 1 }
		END {
			for (s in seen) n++
			for (s in bad) b++
			for (t in tensor) print "torn: " t > "/dev/stderr"
			if (n < least) print "only " n + 0 " steps in common" > "/dev/stderr"
			print odd ? "odd" : n < least ? "few" : b + 0
		}' "$1" "$2"
}
snapshots=(--snapshot-every 1 --wait-ready --guard finish --counters --step-ms 10)
ends() { # STORE OPTION...: a job of its own, to its end
	local there=$1
	shift
	rm -rf "$there" "$tmp/ends.losses"
	"$trainer" --params "$params" --root "$there" --job a --socket "$socket" --steps $steps --losses "$tmp/ends.losses" "${snapshots[@]}" "$@" \
		>"$tmp/ends.out" 2>&1 || { cat "$tmp/ends.out"; return 1; }
}
reference() { # OPTION...: so slow that nearly all steps find a slot on this machine
	local ms
	for ms in 50 150 400; do
		ends "$tmp/host" "$@" --step-ms "$ms" && contents "$tmp/host" >"$tmp/host.contents" || return 1
		[ "$(cut -d' ' -f1 "$tmp/host.contents" | sort -u | wc -l)" -lt $((steps - 2)) ] || return 0
	done
}
same_steps() { # OPTION...: again and more slowly, if few steps have found a slot
	local slow differ
	for slow in '' '--step-ms 100' '--step-ms 300'; do
		# shellcheck disable=SC2086 # two words, or none
		ends "$tmp/there" --device fake "$@" $slow || return 1
		contents "$tmp/there" >"$tmp/there.contents"
		differ=$(differing_steps "$tmp/host.contents" "$tmp/there.contents" 5)
		[ "$differ" = few ] || break
	done
	cmp "$tmp/ends.losses" "$tmp/host.losses" && [ "$differ" = 0 ] || { cat "$tmp/ends.out"; return 1; }
	"$ckptctl" verify --data --all "$tmp/there" >/dev/null
}
daemon_start
check "a job on the host commits steps" eval 'reference --mesh fsdp=2 && cmp "$tmp/ends.losses" "$tmp/host.losses"'
check "on a GPU every committed step has the fingerprints of that job's" same_steps --mesh fsdp=2
check "on the legacy stream" same_steps --mesh fsdp=1 --stream legacy
check "on two GPUs, with streams of their own" same_steps --mesh fsdp=1 --device fake:0,1
check "with every second parameter on the host, and boxes" same_steps --mesh fsdp=2 --memory mixed --layout boxes
export FAKECUDA_GBPS=.1 # a copy of the state takes about a step
check "while copies are slow" same_steps --mesh fsdp=1
check "at a rate that was asked for" same_steps --mesh fsdp=1 --copy-rate 20000000
check "with delays between all operations" env FAKECUDA_SEED=7 "$BASH" -c "$(declare -p steps snapshots params tmp trainer ckptctl socket); $(declare -f contents differing_steps ends same_steps); same_steps --mesh fsdp=1"
unset FAKECUDA_GBPS

# ---- mistakes of a trainer: the library finds them, or the rig sees them ----
torn() { # MISTAKE OPTION...: while copies are slow enough for this machine
	local gbps
	for gbps in .02 .004 .001; do
		FAKECUDA_GBPS=$gbps ends "$tmp/there" --mesh fsdp=1 --device fake --mistake "$@" || return 1
		! grep -q "is torn: rank 0 changed" "$tmp/ends.out" || return 0
		contents "$tmp/there" >"$tmp/there.contents"
		[[ $(differing_steps "$tmp/host.contents" "$tmp/there.contents" 2) != [1-9]* ]] || return 0
	done
	cat "$tmp/ends.out"
	return 1
}
check "a guard behind the optimizer lets snapshots tear" torn late-guard
check "a mark that names another stream does, too" torn stream
check "without a guard nothing but the last step is written" eval \
	'ends "$tmp/there" --mesh fsdp=1 --device fake --mistake no-guard && [ "$(ls -d "$tmp"/there/a/step-* | wc -l)" -eq 1 ]'

# ---- a host that is ahead of its devices ----
reference_ahead() { # STEPS
	reference --mesh fsdp=1 --ahead "$1" && cp "$tmp/ends.losses" "$tmp/host.losses"
}
ahead() { # STEPS OPTION...
	reference_ahead "$1" && same_steps --mesh fsdp=1 --ahead "$@"
}
killed_ahead() {
	rm -rf "$tmp/there"
	job_start --root "$tmp/there" "${snapshots[@]}" --device fake --mesh fsdp=1 --ahead 2 --step-ms 100 --steps 1000000
	within eval '[ "$(contents "$tmp/there" 2>/dev/null | cut -d" " -f1 | sort -u | wc -l)" -ge 5 ]' || return 1
	job_kill
	rm -f "$tmp/losses"
	contents "$tmp/there" >"$tmp/there.contents"
	[ "$(differing_steps "$tmp/host.contents" "$tmp/there.contents" 2)" = 0 ] && "$ckptctl" verify --data --all "$tmp/there" >/dev/null
}
export FAKECUDA_GBPS=.3
check "a host that is a step ahead of the device has whole steps" ahead 1
check "five steps ahead of two devices" ahead 5 --device fake:0,1
check "two steps ahead, with guards that may wait for little" ahead 2 --guard bounded --step-ms 60
check "killed two steps ahead, it leaves whole steps alone" killed_ahead
check "a guard behind the optimizer lets snapshots tear there, too" torn late-guard --ahead 2
unset FAKECUDA_GBPS

# ---- killed and restored ----
steps=60
on=(--device fake --counters --snapshot-every 2 --guard finish --wait-ready)
run() { # OPTION...: to its end
	job_start "${on[@]}" "$@" && job_ends 0
}
export FAKECUDA_GBPS=.4
job_start "${on[@]}" --mesh fsdp=2 --steps 1000000 --derived
check "a job on a GPU commits steps" within committed_after 3
job_kill
check "killed, it goes on from memory, on another mesh and two GPUs" run --device fake:0,1 --mesh dp=2,fsdp=2 --resume memory --derived --steps 30
check "it says so" says "resumed from memory" "$tmp/job.out"
last=$(tail -1 "$tmp/losses" | cut -d' ' -f1)
job_start "${on[@]}" --mesh fsdp=3 --steps 1000000 --resume latest --go-back-every 7
check "it trains on" within committed_after "$last"
job_kill
last=$(awk '$1 > m { m = $1 } END { print m }' "$tmp/losses")
kill -KILL "$daemon"
check "killed with its daemon, it goes on from disk" eval 'within eval "[ -z \"\$(daemons)\" ]" && rm -f "$socket" && daemon_start && run --mesh fsdp=1 --stream legacy --resume disk --steps $((last += 40))'
check "on the host it goes on from there" eval 'on=(--counters --snapshot-every 20) && run --mesh fsdp=2 --resume disk --steps $((last += 40))'
check "every loss is that of an undisturbed run" losses_undisturbed "$last"
check "every byte of every step is good" "$ckptctl" verify --data --all "$store"
unset FAKECUDA_GBPS

# ---- restored over NCCL ----
steps=10 params=350K # so large that the MiB in the daemon's log show whether something was read twice
store=$tmp/nccl socket=$tmp/n
here=$trainer
daemon_start
divided=': ranks send each other what they hold together; each has got its part: '
train_on() { # OPTION...: losses and masters of all runs are in one file each
	"$here" --params "$params" --root "$store" --job a --socket "$socket" --device fake:0,1 --counters \
		--losses "$tmp/nccl.losses" --masters "$tmp/nccl.masters" "$@" >"$tmp/nccl.out" 2>"$tmp/nccl.err" || { cat "$tmp/nccl.err"; return 1; }
}
over_nccl() { # OPTION...
	local step mib
	step=$(newest)
	mib=$("$ckptctl" show "$(step_dir "$step")" --json | sed 's/.*"tensor_bytes":\([0-9]*\).*/\1/') || return 1
	mib=$((mib / 1048576))
	[ "$mib" -ge 4 ] && train_on --nccl "$@" || return 1
	says "MiB from other ranks over NCCL" "$tmp/nccl.err" && within says " step $step$divided$mib MiB in all" "$tmp/daemon.log" || { cat "$tmp/nccl.err"; return 1; }
}
without_nccl() { # WORDS OPTION...: they are in the one line that says why
	local step
	step=$(newest)
	train_on --nccl "${@:2}" || return 1
	[ "$(grep -c NCCL "$tmp/nccl.err")" = 1 ] && grep "$1" "$tmp/nccl.err" && ! grep -qF -- " step $step$divided" "$tmp/daemon.log" || { cat "$tmp/nccl.err"; return 1; }
}
fails_midway() {
	FAKENCCL_FAIL=ncclRecv:3:2 train_on --nccl "$@" || return 1
	says 'the exchange over NCCL has failed, each rank reads what has not arrived' "$tmp/nccl.err"
}
check "NCCL without a device" refused 2 --nccl --nccl
check "NCCL without checkpoints" refused 2 --nccl --nccl --device fake
check "a large job on two GPUs commits steps" train_on --mesh dp=2,fsdp=2 --steps 3
check "its ranks restore over NCCL, and each byte is read from disk once" over_nccl --mesh dp=2,fsdp=2 --steps 5 --resume disk
check "from memory, on another mesh, with every second parameter on the host" over_nccl --mesh dp=3 --memory mixed --steps 6 --resume memory
check "if the exchange fails, the ranks read the rest" fails_midway --mesh dp=2,fsdp=2 --steps 7 --resume disk
# The trainer with what lies beside it, but for NCCL. A file that is no library stands before one that this machine may have.
mkdir -p "$tmp/beside/fakecuda" "$tmp/none"
cp "$trainer" "$build/libckpt.so" "$build/libckpt.so.0" "$build/libckpt-nccl.so" "$tmp/beside"
cp "$build/fakecuda/libcuda.so.1" "$tmp/beside/fakecuda"
: >"$tmp/none/libnccl.so.2"
here=$tmp/beside/trainer
export LD_LIBRARY_PATH=$tmp/none
check "without libnccl each rank reads all of its memory, and one line gives the reason" \
	without_nccl 'restores without NCCL, each rank reads all of its memory: there is no NCCL here: .*libnccl\.so\.2' --mesh dp=2,fsdp=2 --steps 8 --resume disk
unset LD_LIBRARY_PATH
rm "$tmp/beside/libckpt-nccl.so"
check "without libckpt-nccl.so, too" \
	without_nccl 'restores without NCCL, each rank reads all of its memory: libckpt-nccl\.so is not beside libckpt\.so' --mesh dp=2,fsdp=2 --steps 9 --resume memory
here=$trainer
check "a rank that is alone uses no NCCL" eval 'train_on --nccl --mesh fsdp=1 --steps $steps --resume disk && ! grep NCCL "$tmp/nccl.err"'
same_as_never_stopped() {
	rm -f "$tmp/host.losses" "$tmp/host.masters"
	alone host --mesh fsdp=1 && cmp "$tmp/host.losses" "$tmp/nccl.losses" && cmp "$tmp/host.masters" "$tmp/nccl.masters"
}
check "all losses and masters are those of a run that never stopped" same_as_never_stopped
tap_end
