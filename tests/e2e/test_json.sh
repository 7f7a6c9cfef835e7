#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docs/JSON.md and what ckptctl prints with --json: every verb runs on a store with a job that trains; each key that is printed stands
# in the document with its type, and each key of the document was printed. A verb of `ckptctl -h` that is not run here is a failure.
# Over all verbs a key has one type, and objects of one kind always have the same keys: what there is not is null.
# shellcheck disable=SC2317 # the functions are called through check
set -eu
# shellcheck source=tests/e2e/ckptd_tap.sh
. "$(dirname "$0")/ckptd_tap.sh"
export CKPTD_SOCKET=$socket
unset CKPTD_STORE
doc=$root/docs/JSON.md
keys=$root/tests/e2e/json_keys.awk
: >"$tmp/verbs"

# Run a verb and collect what it prints: lines of JSON on stdout, errors on stderr.
json() { # CODE VERB ARGUMENT...
	local code=$1
	shift
	echo "$1" >>"$tmp/verbs"
	exits "$code" "$ckptctl" "$@" --json >"$tmp/out" 2>"$tmp/err" || {
		cat "$tmp/out" "$tmp/err"
		return 1
	}
	awk -f "$keys" "$tmp/out" "$tmp/err" >>"$tmp/seen"
}
field() { # PATTERN: the first number behind it in the JSON of status
	"$ckptctl" status --json | grep -o "\"$1\":[0-9]*" | head -1 | grep -o '[0-9]*$' || echo -1
}
field_above() { [ "$(field "$1")" -gt "$2" ]; }

# Rows of the document: SCHEMA, key, type, meaning, separated by tabs.
rows() {
	awk '/^##+ .*`ckptd[.]/ {
		match($0, /ckptd[.][a-z]+/)
		schema = substr($0, RSTART, RLENGTH)
	}
	/^\| `/ { n = split($0, cell, / *\| */); gsub(/`/, "", cell[2]); print schema "\t" cell[2] "\t" cell[3] "\t" cell[4] }' "$doc"
}
# What is seen and not written down, or otherwise.
unknown_keys() {
	rows | awk -F '\t' 'NR == FNR { type[$1 "\t" $2] = " " $3 " "; next }
	$2 ~ /^(schema|type)$/ || $3 ~ /^[{]/ { next }
	{
		key = $1 "\t" $2
		if (!(key in type) && !sub(/attributes[.].*$/, "attributes.*", key)) sub(/[.][^.]*$/, ".*", key)
		if (!(key in type)) print "not in docs/JSON.md: " $1 " " $2 " (" $3 ")"
		else if (index(type[key], " " $3 " ") == 0 && !($3 == "integer" && index(type[key], " number ")))
			print "docs/JSON.md: " $1 " " $2 " is" type[key] "but " $3 " was printed"
	}' - "$tmp/seen" | sort -u >"$tmp/unknown"
	cat "$tmp/unknown"
	[ ! -s "$tmp/unknown" ]
}
# A key of which nothing but null was seen has shown no type. Not asked of what lasts for milliseconds, while a step is
# written, of what fails or hangs, and of ranks' blobs that are equal.
unseen_keys() {
	rows | awk -F '\t' 'NR == FNR {
		key = $1 "\t" $2
		other = key
		if (!sub(/attributes[.].*$/, "attributes.*", other)) sub(/[.][^.]*$/, ".*", other)
		seen[key] = seen[other] = 1
		if ($3 != "null") typed[key] = typed[other] = 1
		next
	}
	{ key = $1 "\t" $2 }
	!(key in seen) { print "nothing printed " $1 " " $2; next }
	$2 ~ /^jobs\[\]\.(failing|device|replicas)\./ { next } # nothing fails, hangs or drifts apart here
	$2 ~ /^jobs\[\]\.steps\[\]\.(written_bytes|total_bytes|writing_s)$/ || $2 == "equal_groups[].tensors[].rank" { next }
	$2 ~ /[.]convex_broken_tensor$/ { next } # nothing is ill here
	$2 == "derived.stored_first" { next } # here every one is the rounding of its master
	!(key in typed) { print $1 " " $2 " was always null, never " $3 }' "$tmp/seen" - >"$tmp/unseen"
	cat "$tmp/unseen"
	[ ! -s "$tmp/unseen" ]
}
rows_are_whole() {
	rows | awk -F '\t' '$1 == "" || $3 !~ /^(string|integer|number|boolean|array|object)( or null)?$/ || length($4) < 3 {
		print "a row without schema, type or meaning: " $0
		bad = 1
	}
	count[$1 "\t" $2]++ { print "twice: " $1 " " $2; bad = 1 } END { exit bad || NR < 100 }'
}
# What stands in `counts` is called after what it counts, a note as the trainer likes.
types_agree() {
	rows | awk -F '\t' '$2 ~ /(^|[.])(counts|notes|attributes)[.]/ { next }
	{
		key = $2
		sub(/.*[.]/, "", key)
		sub(/ or null$/, "", $3)
		if (key in type && type[key] != $3) { print key ": " type[key] " in " where[key] ", " $3 " in " $1 " " $2; bad = 1 }
		type[key] = $3
		where[key] = $1 " " $2
	}
	END { exit bad }'
}
# `show` answers one of three questions; notes are of the trainer.
objects_agree() {
	grep -P '\t\{' "$tmp/seen" | grep -Pv '^ckptd.show\t(\.|notes|attributes)\t' | sort -u | awk -F '\t' '{
		key = $1 " " $2
		if (key in keys) { print key " has now " keys[key] ", now " $3; bad = 1 }
		keys[key] = $3
	}
	END { exit bad || NR < 40 }'
}
fits() { ! awk 'length > 140 { print FILENAME ":" FNR ": " length " columns" }' "$doc" | grep .; }
all_verbs() {
	"$ckptctl" -h | awk '/^VERBS/ { on = 1; next } on && !NF { exit } on && /^  [^ ]/ { print $1 }' >"$tmp/all_verbs"
	[ -s "$tmp/all_verbs" ] && ! sort -u "$tmp/verbs" | comm -13 - <(sort "$tmp/all_verbs") | sed 's/^/not run here: /' | grep .
}
has_schema() { # every verb has a heading
	local verb bad=0
	while read -r verb; do
		[ "$verb" != export ] || verb=restore # its name when the schema was made
		grep -q "^## .*\`ckptd[.]$verb/1\`" "$doc" || { echo "docs/JSON.md has no $verb"; bad=1; }
	done <"$tmp/all_verbs"
	return "$bad"
}

# --- what needs a daemon ---
check "an error is JSON" json 14 status
check "a daemon listens" daemon_start
check "status without a job" json 0 status
job_start --mesh fsdp=2 --steps 100000 --snapshot-every 2 --persist-every 1000 --wait-ready --step-ms 5 --guard finish
check "a job trains" within field_above attached_count 1
check "and has steps" within field_above newest_step 3
check "status" json 0 status
check "ls with steps in memory" json 0 ls "$store"
check "export --from-memory" json 0 export latest "$tmp/memory" --mesh fsdp=1 --from-memory
check "restore of what is not in memory" json 10 export 99998 "$tmp/none" --mesh fsdp=1 --from-memory
check "trigger" json 0 trigger
check "trigger of a job that is not there" json 10 trigger --job=nobody
check "trigger --wait" json 0 trigger --final --wait --timeout 20s
check "wait" json 0 wait latest --state staged --timeout 20s
check "wait for what is committed" json 0 wait latest --timeout 20s
check "wait for a state" json 0 wait latest --state=persisted --timeout 20s
check "wait in vain" json 15 wait 99998 --timeout 200ms
check "drain" json 0 drain --timeout 20s
check "drain to another directory" json 0 drain a --to "$tmp/spare" --timeout 20s
check "status with steps" json 0 status
check "keep" json 0 keep "$store/a" --last 100
status_has() { "$ckptctl" status --json | grep -qF -- "$1"; }
check "what is kept" json 0 keep "$store/a"
check "ckptd obeys it" within status_has '"options":"--keep-last 100"'
check "status with a policy" json 0 status
check "ls with a policy" json 0 ls "$store"
on_any_machine() { # VERB ARGUMENT...: 0, 3 with warnings, 1 where it fails
	json 0 "$@" || json 3 "$@" || json 1 "$@"
}
watched() {
	local pid
	"$ckptctl" status -w --json >"$tmp/watch" 2>"$tmp/err" &
	pid=$!
	looked_twice() { [ "$(lines "$tmp/watch")" -ge 2 ]; }
	within looked_twice
	kill -INT "$pid"
	exits 0 wait "$pid"
	awk -f "$keys" "$tmp/watch" >>"$tmp/seen"
}
check "status -w" watched
# A job whose directory is gone cannot be written.
cp -r "$store/a" "$tmp/kept"
rm -r "$store/a"
has_error() { "$ckptctl" status --json | grep -q '"error":{"text":"'; }
cannot_write() { "$ckptctl" trigger && within has_error; }
check "a step cannot be written" cannot_write
check "status with an error" json 3 status
rm -rf "$store/a"
mv "$tmp/kept" "$store/a"
job_kill
check "its ranks have died" within status_has '"died_at":"'
check "status of them" json 3 status
check "the job's memory is given back" within json 0 forget --all "$store/a"

# --- a checkpoint ---
step=$(newest)
dir=$(step_dir "$step")
cp -r "$dir" "$tmp/broken"
for part in "$tmp"/broken/*.part; do
	truncate -s -4096 "$part"
	break
done
older=$(step_dir "$("$ckptctl" ls --json "$store" | grep -o '"step":[0-9]*' | sed -n '2s/.*://p')")
"$trainer" --mesh fsdp=1 --params 20K --steps 4 --snapshot-every 4 --root "$tmp/other" --job b --socket "$socket" \
	--derived --frozen 50 --wait-ready >/dev/null 2>&1
other=$tmp/other/b/step-000000000004
# It goes on, and back.
for how in "8 latest" "6 step:4"; do
	"$trainer" --mesh fsdp=1 --params 20K --steps "${how% *}" --snapshot-every 4 --root "$tmp/other" --job b --socket "$socket" \
		--derived --frozen 50 --wait-ready --resume "${how#* }" >/dev/null 2>&1
done
# Two tensors that are equal, which no trained model has.
cat >"$tmp/twins.c" <<'END'
#include <ckpt.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	const char *const dim[] = { "fsdp" };
	uint64_t shape[] = { 64 };
	uint32_t n = 1, mesh, id;
	struct ckpt_err e = { 0 };
	float *w;
	ckpt *c;
	struct ckpt_opts o = { .size = sizeof o, .flags = CKPT_REQUIRE | CKPT_USE_ENV, .job = "twins", .store = "twins", .world = 1 };
	struct ckpt_mark final = { .size = sizeof final, .flags = CKPT_FINAL };
	int r = ckpt_attach(&o, &c, &e);

	r = r < 0 ? r : ckpt_mesh(c, 1, dim, &n, NULL, &mesh, &e);
	r = r < 0 ? r : ckpt_alloc(c, 2 * 64 * sizeof *w, (void **)&w, &e);
	for (int i = 0; r >= 0 && i < 2; i++) {
		struct ckpt_local at = { .ptr = w + 64 * i };
		struct ckpt_tensor t = { .size = sizeof t, .dtype = CKPT_F32, .component = "model", .name = i ? "tied" : "emb",
					 .ndim = 1, .mesh = mesh, .nlocal = 1, .shape = shape, .local = &at };

		for (int k = 0; k < 64; k++)
			w[64 * i + k] = (float)k;
		r = ckpt_tensor_add(c, &t, &id, &e);
	}
	r = r < 0 ? r : ckpt_seal(c, 20000000000ull, &e);
	if (r >= 0) {
		ckpt_snapshot(c, 1, &final);
		r = ckpt_wait(c, 1, CKPT_COMMITTED, 20000000000ull, &e);
		ckpt_detach(c, 0);
	}
	if (r < 0)
		puts(e.msg);
	return r < 0;
}
END
twins() {
	gcc -std=c17 -I"$root/ckpt" -o "$tmp/twins_made" "$tmp/twins.c" -L"$build" -lckpt -Wl,-rpath,"$build" &&
		(cd "$tmp" && ./twins_made)
}
check "a checkpoint with equal tensors" twins
tensor=$("$ckptctl" show --json "$dir" | grep -o '"component":"model","name":"[^"]*","foreign_name":null,"dtype":"[A-Z0-9]*","shape":\[[0-9]*,[0-9]*\]' | head -1 |
	sed 's/.*"name":"\([^"]*\)".*/\1/')
check "a tensor to look at" [ -n "$tensor" ]
check "ls" json 0 ls "$store"
check "ls --all" json 0 ls --all "$store"
check "ls --all with what was set aside" json 0 ls --all "$tmp/other"
check "prune -n --set-aside" json 0 prune -n --set-aside "$tmp/other"
check "rewind -n" json 0 rewind -n -C "$tmp/other" step:8
check "rewind" json 0 rewind --yes -C "$tmp/other" step:8
check "rm -n" json 0 rm -n -C "$tmp/other" step:6
touch "$(dirname "$other")/step-000000000008/.nfs0001"
check "verify with a foreign file" json 3 verify -C "$tmp/other"
check "rm" json 0 rm --yes -C "$tmp/other" step:8
check "rm of the last one" json 11 rm --yes -C "$tmp/other" step:4
check "repair with trash that is not ckptd's" json 3 repair -n "$tmp/other"
check "ls of no store" json 10 ls "$tmp"
mkdir "$tmp/hurt"
cp -r "$tmp/broken" "$tmp/hurt/step-000000000001"
truncate -s -1 "$tmp/hurt/step-000000000001/MANIFEST"
check "ls --all of a damaged one" json 3 ls --all "$tmp/hurt"
check "show" json 0 show "$dir"
check "show of some tensors" json 0 show "$dir" --tensors='*'
check "show of one" json 0 show "$dir" "model/$tensor"
check "show --files" json 0 show "$dir" --files
# A job with averages that waits, so that status has them.
averages() {
	gcc -std=c17 -D_GNU_SOURCE -I"$root/ckpt" -o "$tmp/averaged" "$root/tests/e2e/averaged.c" -L"$build" -lckpt -lm -Wl,-rpath,"$build" &&
		mkfifo "$tmp/hold" || return 1
	(cd "$tmp" && exec ./averaged "$tmp/averages" "$tmp" 3 hold <"$tmp/hold" >"$tmp/averaged.out" 2>&1) &
	averaged=$!
	exec 9>"$tmp/hold"
	within grep -q "done" "$tmp/averaged.out"
}
one_more() { echo >&9 && within grep -q "more" "$tmp/averaged.out"; }
check "a job with averages" averages
check "status of averages" within json 0 status # the job that could not write is dropped within a moment
check "one more step, which no average takes in" one_more
check "status of averages that are behind" within json 0 status
echo >&9
exec 9>&-
wait "$averaged"
ema=$tmp/averages/averaged/step-000000000003
check "ema" json 0 ema "$ema"
check "ema of a step without averages" json 10 ema "$dir"
check "show of averages" json 0 show "$ema"
check "diff of averages" json 6 diff "$ema" "$tmp/averages/averaged/step-000000000002"
check "diff with a step without averages" json 6 diff "$ema" "$dir"
check "export --only --dtype" json 3 export "$ema" "$tmp/average" --only ema.fast --dtype F16
check "show of derived tensors, and of parts that steps share" json 0 show "$other" --tensors='model/*'
"$ckptctl" convert "$dir" "$tmp/whole" --to safetensors --drop-unsupported >/dev/null 2>&1 || true
check "show of a foreign format" json 0 show "$tmp/whole"
check "show --map" json 0 show "$dir" --map "model/$tensor"
blob=$("$ckptctl" show --json "$dir" | grep -o '"component":"[a-z]*","name":"[^"]*","foreign_name":null,"dtype":"[A-Z0-9]*","shape":[^}]*"rank":0,"layout"' | head -1 |
	sed 's|.*"component":"\([^"]*\)","name":"\([^"]*\)".*|\1/\2|')
check "show --map of a blob" json 2 show "$dir" --map "$blob"
check "show --map --svg" json 0 show "$dir" --map "model/$tensor" --svg "$tmp/map.svg"
check "stats" json 0 stats "$dir"
check "stats of some tensors" json 0 stats "$dir" --depth=2 --tensors="model/*"
check "stats of equal tensors" json 0 stats -C "$tmp/twins"
check "verify" json 0 verify "$dir"
check "verify --data" json 0 verify --data "$dir"
check "verify --data-subset" json 0 verify --data-subset=1/2 "$dir"
check "verify --all" json 0 verify --all "$tmp/other"
check "verify of a damaged one" json 4 verify --data "$tmp/broken"
cp -r "$dir" "$tmp/flipped"
for part in "$tmp"/flipped/*.part; do
	printf '\377\376\375\374' | dd of="$part" bs=1 seek=8200 conv=notrunc status=none
done
check "verify of wrong bytes" json 4 verify --data "$tmp/flipped"
check "diff" json 0 diff "$dir" "$dir"
check "diff of models" json 6 diff "$dir" "$other"
check "diff of some" json 6 diff --tensors="model/*" "$dir" "$other"
check "diff of values" json 6 diff --values --layouts "$dir" "$older"
check "cat" json 0 cat "$dir" "model/$tensor"
check "cat --slice -o" json 0 cat "$dir" "model/$tensor" --slice=0:1 -o "$tmp/raw"
check "cat --npy" json 0 cat "$dir" "model/$tensor" --npy -o "$tmp/npy"
check "cat of a blob" json 0 cat "$dir" "$blob" --rank 0
check "cat --stats" json 0 cat "$dir" "model/$tensor" --stats
echo "model/* Shard(1)@dp" >"$tmp/rules"
check "layout" json 0 layout --shape 7,5 --mesh dp=3,tp=2 --placements 'S(0),S(1)' --svg "$tmp/layout.svg"
check "layout --summary" json 0 layout --shape 7,5 --mesh dp=3,tp=2 --placements 'S(0),S(1)' --summary
check "plan" json 0 plan "$dir" --mesh fsdp=2
check "plan --average" json 0 plan "$dir" --mesh fsdp=2 --average "constant decay=.9"
check "plan --links" json 0 plan "$dir" --mesh dp=3 --replicate dp --links h100 --round 4K
check "plan --svg" json 0 plan "$dir" --mesh fsdp=3 --svg "$tmp/flow.svg"
check "plan --steps" json 0 plan --steps '_S(0, 2)R -> S(0)S(1)' --mesh 2,3 --shape 17,5 --explain --mem-limit 1G --svg "$tmp/steps.svg"
check "plan --layout" json 0 plan "$dir" --mesh dp=3 --replicate dp --explain --links h100 --layout "$tmp/rules" --layout 'model/*=Shard(0)@dp'
check "convert" json 0 convert "$dir" "$tmp/converted" --mesh dp=3 --replicate dp
check "convert --layout" json 0 convert "$dir" "$tmp/laid_out" --mesh dp=3 --replicate dp --explain --links h100 --layout "$tmp/rules" --layout 'model/*=Shard(0)@dp'
check "restore" json 0 export "$dir" "$tmp/files" --mesh dp=3 --replicate dp
check "restore --rank" json 0 export "$dir" "$tmp/file" --mesh dp=3 --replicate dp --rank 1 --explain --links h100 --layout "$tmp/rules" --layout 'model/*=Shard(0)@dp'
echo 'rename model/* -> weights/{1}' >"$tmp/names"
check "restore --view" json 0 export "$dir" "$tmp/renamed" --mesh dp=1 --view "$tmp/names"
check "restore into what exists" json 2 restore "$dir" "$tmp/files" --mesh dp=3 --replicate dp
check "a converted one" json 0 show "$tmp/converted"
check "has no difference" json 0 diff "$dir" "$tmp/converted"
check "hold" json 0 hold "$dir" --by=eval --until=6h --why='it is read'
check "hold for ever" json 0 hold "$dir" --by=nobody
check "tag" json 0 tag "$older" best
check "tag that moves" json 0 tag "$dir" best
check "verify --data in a store" json 0 verify --data "$dir"
check "show of what is held and tagged" json 0 show "$dir"
check "ls of it" json 0 ls "$store"
mkdir "$store/.big.ckptctl-new" # what a killed convert leaves
check "ls of what a killed conversion left" json 0 ls "$store"
check "prune --unfinished" json 0 prune --yes --unfinished "$store"
check "prune -n" json 0 prune -n --keep-last=1 --keep-best=loss "$store"
check "prune without a rule" json 2 prune "$store"
check "prune without --yes" json 2 prune --keep-last=1 "$store"
check "prune --bad" json 0 prune --yes --bad "$store"
check "release" json 0 release "$dir" --all
check "tag --delete" json 0 tag --delete=best "$store/a"
cp -r "$store/a" "$tmp/sick"
sick=$tmp/sick/$(basename "$dir")
for part in "$sick"/*.part; do
	printf '\377\376\375\374' | dd of="$part" bs=1 seek=8200 conv=notrunc status=none
done
rm "$tmp/sick/$(basename "$older")/MANIFEST"
check "verify that quarantines" json 4 verify --data "$sick"
check "restore --keep-going" json 3 export "$sick" "$tmp/kept" --mesh dp=3 --replicate dp --keep-going
check "ls --all with a quarantined one" json 3 ls --all "$tmp/sick"
check "show of a quarantined one" json 0 show "$sick"
check "prune of it" json 0 prune -n --keep-last=1 "$tmp/sick"
check "repair -n" json 0 repair -n "$tmp/sick"
check "repair" json 4 repair --yes "$tmp/sick"
check "prune --yes" json 0 prune --yes --keep-last=1 "$tmp/sick"
cp -r "$store/a" "$tmp/moved"
rm "$tmp/moved/$(basename "$older")/MANIFEST"
check "adopt -n" json 3 adopt -n "$tmp/moved"
check "adopt without --yes" json 2 adopt "$tmp/moved"
check "adopt" json 3 adopt --yes "$tmp/moved"
check "ls of what was adopted" json 0 ls "$tmp/moved"
check "show of what was adopted" json 0 show "$tmp/moved/$(basename "$dir")"
check "doctor" on_any_machine doctor --job-size=1M "$tmp"
check "doctor, with what messages cost" on_any_machine doctor --links="$tmp/links.txt" "$tmp"
check "doctor of a store" on_any_machine doctor "$store"
check "doctor of nothing" on_any_machine doctor "$tmp/none"
check "completion" json 0 completion bash
check "help" json 0 help
check "help of a verb" json 0 help ls
check "man" json 0 man
check "man of a verb" json 0 man ls
check "version" json 0 version
check "an unknown step" json 10 show -C "$store" step:99999999
check "the wrong word" json 2 show --no-such

# --- the document ---
check "every verb was run" all_verbs
check "every verb has its tables" has_schema
check "every row has a schema, a type and a meaning" rows_are_whole
check "a key has one type in all verbs" types_agree
check "objects of one kind have the same keys" objects_agree
check "lines fit 140 columns" fits
check "every key that is printed stands in docs/JSON.md with its type" unknown_keys
check "every key of docs/JSON.md is printed" unseen_keys
tap_end
