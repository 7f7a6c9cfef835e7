#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The function in docs/LAYOUTS.md that declares a stretch of a flattened tensor compiles as a user would compile it, and saves two tensors
# from one flat buffer of three ranks. Two and five ranks restore them, in other stretches; ckptctl shows, verifies, prints, compares,
# plans, restores and converts them.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

# ---- the program: the function of LAYOUTS.md, and a rank around it ----
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$root/docs/LAYOUTS.md" >"$tmp/flat.c"
check "LAYOUTS.md has a function" grep -q '^static int add_flat(' "$tmp/flat.c"
cat >>"$tmp/flat.c" <<'C'
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define SEC 1000000000ull
#define ALL 23
#define W ((struct ckpt_tensor){ .component = "optim", .name = "w", .ndim = 2, .shape = (uint64_t[]){ 4, 5 } })
#define B ((struct ckpt_tensor){ .component = "optim", .name = "b", .ndim = 1, .shape = (uint64_t[]){ 3 } })

static uint64_t among(uint64_t x, uint64_t low, uint64_t high)
{
	return x < low ? 0 : (x > high ? high : x) - low;
}

/* flat RANK WORLD STEP: restores what is there, sets element i to STEP + i, saves that as step STEP. */
int main(int argc, char **argv)
{
	uint32_t rank = (uint32_t)atoi(argv[1]), world = (uint32_t)atoi(argv[2]);
	uint64_t step = (uint64_t)atoi(argv[3]), each = (ALL + world - 1) / world, sum = 0;
	uint64_t from = among(rank * each, 0, ALL), to = among(rank * each + each, 0, ALL);
	struct ckpt_opts o = { .size = sizeof o, .flags = CKPT_REQUIRE | CKPT_AUTOSTART | CKPT_USE_ENV,
			       .job = "flat", .store = "ckpts", .rank = rank, .world = world };
	struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST, .flags = CKPT_FROM_DISK };
	struct ckpt_got got = { .size = sizeof got };
	struct ckpt_mark last = { .size = sizeof last, .flags = CKPT_FINAL };
	struct ckpt_err e = { 0 };
	float own[ALL] = { 0 };
	ckpt *c;
	int rc;

	(void)argc;
	if (ckpt_attach(&o, &c, &e) ||
	    (among(from, 0, 20) < among(to, 0, 20) && /* else it does not even declare w */
	     add_flat(c, W, among(from, 0, 20), among(to, 0, 20), own, &e)) ||
	    add_flat(c, B, among(from, 20, ALL), among(to, 20, ALL), own + (from < 20 && to > 20 ? 20 - from : 0), &e) ||
	    ckpt_seal(c, 30 * SEC, &e)) {
		fprintf(stderr, "%s\n", e.msg);
		return 1;
	}
	rc = ckpt_restore(c, &want, &got, &e);
	for (uint64_t i = from; i < to; i++)
		if (rc == 0 && own[i - from] != (float)(got.step + i)) {
			fprintf(stderr, "element %d is %g\n", (int)i, (double)own[i - from]);
			return 1;
		}
	if (rc && rc != -ENOENT) {
		fprintf(stderr, "%s\n", e.msg);
		return 1;
	}
	printf("rank %u has [%d, %d) of step %d\n", rank, (int)from, (int)to, rc ? 0 : (int)got.step);
	for (uint64_t i = from; i < to; i++)
		own[i - from] = (float)(step + i);
	if (ckpt_fingerprint(c, 0, &sum) || (rc = ckpt_snapshot(c, step, &last)) < 0 ||
	    ckpt_wait(c, step, CKPT_COMMITTED, 30 * SEC, &e)) {
		fprintf(stderr, "%d %s\n", rc, e.msg);
		return 1;
	}
	return ckpt_detach(c, 0);
}
C
compile() {
	gcc -std=c17 -Wall -Wextra -Werror -I"$root/ckpt" -o "$tmp/flat" "$tmp/flat.c" -L"$build" -lckpt -Wl,-rpath,"$build"
}
check "it compiles without a warning" compile

export CKPTD_SOCKET=$socket
launch() { # WORLD STEP
	local pids=() i status=0
	rm -f "$tmp"/out.*
	for ((i = 0; i < $1; i++)); do
		(cd "$tmp" && exec ./flat "$i" "$1" "$2" >"out.$i" 2>&1) &
		pids+=($!)
	done
	for i in "${pids[@]}"; do
		wait "$i" || status=$?
	done
	cat "$tmp"/out.*
	return $status
}
cd "$tmp"
check "three ranks save" launch 3 100
check "as the table says" eval 'grep -qx "rank 1 has \[8, 16) of step 0" out.1'
check "two ranks have it back, and save" eval 'launch 2 200 && grep -qx "rank 1 has \[12, 23) of step 100" out.1'
check "five ranks too" eval 'launch 5 300 && grep -qx "rank 4 has \[20, 23) of step 200" out.4'

# ---- ckptctl, on a checkpoint without any mesh ----
step() { # STEP
	printf 'ckpts/flat/step-%012d' "$1"
}
check "all steps are whole" "$ckptctl" verify --data --all ckpts
check "show lists the tensors" eval '"$ckptctl" show "$(step 100)" >show && grep -q "^optim " show'
check "and the boxes of one of them" eval '"$ckptctl" show "$(step 100)" optim/w >show &&
	grep -qE "^ +1 +\[1:2, 3:5\]" show && grep -qE "^ +1 +\[2:3, :\]" show && grep -qE "^ +1 +\[3:4, 0:1\]" show'
check "and draws them" eval '"$ckptctl" show "$(step 100)" --map=optim/w >map && grep -q r2 map'
check "and accounts for all bytes" "$ckptctl" show "$(step 100)" --files
values() { # CKPT TENSOR: as text
	"$ckptctl" cat "$1" "$2" | od -An -v -tf4 | tr -s ' \n' ' '
}
check "cat prints a tensor in its order" [ "$(values "$(step 100)" optim/w)" = " $(seq -s ' ' 100 119) " ]
check "diff compares" eval '! "$ckptctl" diff "$(step 100)" "$(step 200)" >diff && grep -q optim/w diff'
check "plan on another mesh" eval '"$ckptctl" plan "$(step 100)" --mesh fsdp=2 >plan 2>&1 && grep -q "loading step 100" plan'
check "and says how it is cut" grep -q "have no placements: .* cut along dimension 0" plan
check "restore writes files" "$ckptctl" restore "$(step 100)" files --mesh fsdp=2
check "convert writes it for a mesh" "$ckptctl" convert "$(step 100)" copies --mesh fsdp=2
check "cut along dimension 0" eval '"$ckptctl" show copies optim/w | grep -q "Shard(0)@fsdp"'
echo 'optim/w Shard(1)@fsdp' >rules
check "or by a rule" "$ckptctl" convert "$(step 100)" shards --mesh fsdp=2 --layout rules
check "as that says" eval '"$ckptctl" show shards optim/w | grep -q "Shard(1)@fsdp"'
check "with the same bits" eval '"$ckptctl" verify --data shards &&
	[ "$(values shards optim/w)" = "$(values "$(step 100)" optim/w)" ] && [ "$(values copies optim/b)" = "$(values "$(step 100)" optim/b)" ]'
for pid in $(daemons); do
	kill -TERM "$pid"
done
tap_end
