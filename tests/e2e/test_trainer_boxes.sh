#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# A trainer whose state is cut as ZeRO cuts it (--layout boxes) is killed, and goes on with other numbers of ranks, with boxes and with
# shards, from disk and from memory: every loss is that of a run that was never interrupted.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"

steps=60
check "one rank trains without checkpoints" \
	"$trainer" --no-checkpoint --mesh fsdp=1 --steps $steps --params "$params" --losses "$tmp/want"
# By step, the newest line of each: what was trained again counts.
newest() {
	awk '{ line[$1] = $0 } END { for (i = 1; i <= '$steps'; i++) print line[i] }' "$tmp/losses"
}
same_losses() {
	newest >"$tmp/have"
	cmp "$tmp/want" "$tmp/have"
}
committed() { # so many steps
	[ "$(CKPTD_SOCKET=$tmp/none "$ckptctl" ls --json "$store" 2>/dev/null | grep -o '"step":[0-9]*' | wc -l)" -ge "$1" ]
}
train=(--snapshot-every 5 --wait-ready --guard finish)
run() { # OPTION...: to its end
	job_start "${train[@]}" "$@" && job_ends 0
}
all_stop() {
	local pid
	for pid in $(daemons); do
		kill -KILL "$pid"
	done
	within eval '[ -z "$(daemons)" ]'
}

daemon_start
job_start "${train[@]}" --mesh fsdp=3 --layout boxes --steps 1000000 --step-ms 20
check "three ranks train in boxes" within committed 2
job_kill
check "killed with their daemon, two go on from disk with replicas that share meshes" \
	eval 'all_stop && daemon_start && run --mesh dp=2,fsdp=2 --layout boxes --resume disk --steps 40'
check "from a step of three ranks" grep -q "resumed from disk, step [0-9]*, written by 3 ranks" "$tmp/job.out"
check "five ranks go on with shards, from memory" run --mesh fsdp=5 --resume memory --steps 50
check "and one rank with boxes again" run --mesh fsdp=1 --layout boxes --resume latest --steps $steps
check "every loss is that of the run without checkpoints" same_losses
check "every byte of every step is good" "$ckptctl" verify --data --all "$store"

# ---- what is said about a step in boxes, and what can be made of it ----
boxed=$("$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | tr -dc '0-9\n' | awk '$1 <= 40' | sort -n | tail -1)
path=$store/a/step-$(printf %012d "$boxed")
check "show draws stretches that no shard has" eval '"$ckptctl" show "$path" --map=optim/fc1.weight.master >"$tmp/map" &&
	grep -q "no layout was declared" "$tmp/map"'
check "it is converted for other ranks, by a rule" eval 'echo "* Shard(0)@fsdp" >"$tmp/rules" &&
	"$ckptctl" convert "$path" "$tmp/three" --mesh fsdp=3 --layout "$tmp/rules"'
fingerprints() { # CKPT
	"$ckptctl" show "$1" --tensors='*' --json | grep -o '"fingerprint":"[0-9a-f]*"' | sort
}
same_contents() {
	fingerprints "$path" >"$tmp/a" && fingerprints "$tmp/three" >"$tmp/b" && [ -s "$tmp/a" ] && cmp "$tmp/a" "$tmp/b"
}
check "with the same contents" same_contents
lost_manifest() { # in a copy of the store
	cp -a "$store" "$tmp/again" && rm "$tmp/again/a/${path##*/}/MANIFEST" &&
		CKPTD_SOCKET=$tmp/none "$ckptctl" repair --yes "$tmp/again/a/${path##*/}" &&
		"$ckptctl" verify --data "$tmp/again/a/${path##*/}"
}
check "without its MANIFEST, the parts make a new one" lost_manifest
for pid in $(daemons); do
	kill -TERM "$pid"
done
tap_end
