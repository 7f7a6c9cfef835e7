/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_result.c - what ckptctl export says of what it wrote. Called by verb_export.c. Invariant:
 * raw weights never pass for averaged ones, and each tensor that is left out is named.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/casts.h"
#include "ckpt/cli/export.h"
#include "ckpt/cli/verb_convert.h"
#include "ckpt/layout/human.h"

#define FILES_SAID 16u /* more are summed up for people */

void export_document(struct export *r)
{
	if (r->told)
		return;
	r->told = true;
	output_line(r->c->o, "ckptd.restore/1", "summary");
	if (!r->alone) {
		mesh_option_print(r->c, &r->to);
		return;
	}
	output_list(r->c->o, "changes", NULL, 0);
	output_close(r->c->o);
}

static void put_files(struct export *r)
{
	static const struct column files[] = {
		{ "file", "file", false, FIT_LAST },
		{ "rank", "rank", true, FIT_WHOLE },
		{ "tensor_count", "tensors", true, FIT_WHOLE },
		{ "bytes", "size", true, FIT_WHOLE },
		{ "data_bytes", NULL, true, FIT_WHOLE },
		{ "other_blob_count", NULL, true, FIT_WHOLE },
	};
	struct output *o = r->c->o;

	output_list(o, "files", files, ARRAY_LEN(files));
	for (uint32_t i = 0; i < r->nfile && (o->machine || r->nfile <= FILES_SAID); i++) {
		const struct export_file *f = &r->made_file[i];

		output_row(o);
		output_put(o, &files[0], cell_text(f->name));
		output_put(o, &files[1], cell_of(CELL_NUMBER, f->rank));
		output_put(o, &files[2], cell_of(CELL_COUNT, f->ntensor));
		output_put(o, &files[3], cell_of(CELL_BYTES, f->bytes));
		output_put(o, &files[4], cell_of(CELL_BYTES, f->data_bytes));
		output_put(o, &files[5], cell_of(CELL_NUMBER, f->nblob_other));
		output_close(o);
	}
	output_close(o);
}

static void put_left(struct export *r)
{
	static const struct column left[] = {
		{ "tensor", "left out", false, FIT_LAST },
		{ "why", "why", false, FIT_WRAP },
	};
	const struct table *t = &r->s.ckpt->table;
	struct output *o = r->c->o;
	char name[2 * CKPT_NAME_MAX + 64], why[600];

	output_list(o, "left_out", left, ARRAY_LEN(left));
	for (uint32_t i = 0; r->left && i < t->ntensor; i++) {
		if (!r->left[i])
			continue;
		(void)damage_of(&r->damage, t, i, why, sizeof why);
		output_row(o);
		output_put(o, &left[0],
			   cell_text(table_tensor_print(&t->tensor[i], name, sizeof name)));
		output_put(o, &left[1], cell_text(why));
		output_close(o);
	}
	output_close(o);
}

/* What --only selected, and of whom its tensors are: raw weights must not pass for averaged
 * ones. */
static void put_only(struct export *r)
{
	static const struct column only[] = {
		{ "component", NULL, false, FIT_WHOLE },
		{ "tensor_count", NULL, false, FIT_WHOLE },
		{ "copied_count", NULL, false, FIT_WHOLE },
		{ "average", NULL, false, FIT_WHOLE },
		{ "schedule", NULL, false, FIT_WHOLE },
		{ "updates", NULL, false, FIT_WHOLE },
		{ "last_step", NULL, false, FIT_WHOLE },
		{ "since_step", NULL, false, FIT_WHOLE },
		{ "mixed", NULL, false, FIT_WHOLE },
	};
	struct output *o = r->c->o;

	output_list(o, "only", NULL, 0);
	for (uint32_t i = 0; i < r->only.selection.n && o->machine; i++) {
		const struct selection_of *x = &r->only.selection.of[i];
		const struct table_average *a = x->average;

		output_row(o);
		output_put(o, &only[0], cell_text(x->component));
		output_put(o, &only[1], cell_of(CELL_NUMBER, x->ntensor));
		output_put(o, &only[2], cell_of(CELL_NUMBER, x->ncopied));
		output_put(o, &only[3], cell_word(a ? a->name : NULL));
		output_put(o, &only[4], cell_word(a ? a->schedule : NULL));
		output_put(o, &only[5], a ? cell_of(CELL_NUMBER, a->updates) : cell_none());
		output_put(o, &only[6],
			   a ? cell_unless(CELL_NUMBER, a->last_step, UINT64_MAX) : cell_none());
		output_put(o, &only[7], a ? cell_of(CELL_NUMBER, a->since) : cell_none());
		output_put(o, &only[8],
			   a ? cell_of(CELL_FLAG, (a->flags & AVERAGE_MIXED) != 0) : cell_none());
		output_close(o);
	}
	output_close(o);
}

static void say_only(struct export *r)
{
	for (uint32_t i = 0; i < r->only.selection.n; i++) {
		const struct selection_of *x = &r->only.selection.of[i];
		const struct table_average *a = x->average;
		char count[HUMAN_BYTES], copied[HUMAN_BYTES];

		if (!a) {
			cli_hint(r->c, "%s: %s tensor%s.", x->component,
				 human_count(x->ntensor, count), x->ntensor == 1 ? "" : "s");
			continue;
		}
		if (!x->ncopied)
			cli_hint(r->c, "%s: %s averaged tensor%s (%s).", x->component,
				 human_count(x->ntensor, count), x->ntensor == 1 ? "" : "s",
				 a->schedule);
		else
			cli_hint(
				r->c,
				"%s: %s averaged tensor%s (%s), and %s that the average copies, which %s "
				"the step's own (%s%s).",
				x->component, human_count(x->ntensor, count),
				x->ntensor == 1 ? "" : "s", a->schedule,
				human_count(x->ncopied, copied), x->ncopied == 1 ? "is" : "are",
				x->copied, x->ncopied == 1 ? "" : ", ...");
		if (a->flags & AVERAGE_MIXED)
			cli_hint(
				r->c,
				"%s: its parts have different chains of updates: ckptctl ema explains.",
				x->component);
	}
}

/* What the cast could not hold. Returns how many elements. */
static uint64_t put_overflows(struct export *r)
{
	static const struct column over[] = {
		{ "tensor", "became infinite", false, FIT_LAST },
		{ "element_count", "elements", true, FIT_WHOLE },
	};
	const struct table *t = &r->to.target;
	struct output *o = r->c->o;
	char name[2 * CKPT_NAME_MAX + 64];
	uint64_t all = 0;

	output_list(o, "overflows", over, ARRAY_LEN(over));
	for (uint32_t i = 0; r->overflow && i < t->ntensor; i++) {
		if (!r->overflow[i])
			continue;
		all += r->overflow[i];
		output_row(o);
		output_put(o, &over[0],
			   cell_text(table_tensor_print(&t->tensor[i], name, sizeof name)));
		output_put(o, &over[1], cell_of(CELL_COUNT, r->overflow[i]));
		output_close(o);
	}
	output_close(o);
	return all;
}

/* Per-rank blobs belong to ranks of the old mesh: who has them now? */
static void say_blobs(struct export *r)
{
	const struct table *t = &r->to.target;
	uint32_t world = target_world(t), old = 0, last = r->first + r->n - 1, example = TABLE_NONE;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];

		if (x->rank == TABLE_NONE || x->cls == CKPT_SINK)
			continue;
		old = MAX(old, x->rank + 1);
		if (example == TABLE_NONE && x->rank >= world && x->rank % world >= r->first &&
		    x->rank % world <= last)
			example = i;
	}
	if (example != TABLE_NONE) {
		const struct table_tensor *x = &t->tensor[example];

		cli_hint(r->c,
			 "%u ranks had blobs of their own, and this mesh has %u: rank %u also has "
			 "rank %u's, as %s%s%s/rank-%05u%s.",
			 old, world, x->rank % world, x->rank, x->component,
			 *x->component ? "/" : "", x->name, x->rank,
			 old > world + 1 ? ", and so on" : "");
	}
	if (old && last >= old)
		cli_hint(r->c,
			 "%u ranks had blobs of their own: ranks %u and above have none of these.",
			 old, MAX(old, r->first));
}

/* Returns how many elements became infinite. */
static uint64_t put_result(struct export *r)
{
	static const struct column path = { "path", NULL, false, FIT_WHOLE },
				   from_memory = { "from_memory", NULL, false, FIT_WHOLE },
				   job = { "job", NULL, false, FIT_WHOLE },
				   step = { "step", NULL, false, FIT_WHOLE },
				   view = { "view_file", NULL, false, FIT_WHOLE },
				   dtype = { "dtype", NULL, false, FIT_WHOLE },
				   destination = { "destination", NULL, false, FIT_WHOLE },
				   dry = { "dry_run", NULL, false, FIT_WHOLE },
				   dropped = { "dropped_tensor_count", NULL, false, FIT_WHOLE },
				   bytes = { "bytes", NULL, false, FIT_WHOLE },
				   took = { "took_s", NULL, false, FIT_WHOLE },
				   speed = { "bytes_per_second", NULL, false, FIT_WHOLE };
	const struct checkpoint *k = r->s.ckpt;
	struct output *o = r->c->o;
	char text[512], size[HUMAN_BYTES], count[HUMAN_BYTES], title[SUBJECT_TITLE];
	const char *from = r->memory.dir[0] ? " from memory" : "";
	const char *wrote = r->c->value[OPT_DRY_RUN] ? "Would write" : "Wrote";
	char dst[PATH_MAX];
	uint64_t over;

	screen_clean(r->path, dst, sizeof dst);
	mesh_print(r->to.target.mesh, text, sizeof text);
	subject_short(k, r->s.ref.path, title);
	output_put(o, &path, r->memory.dir[0] ? cell_none() : cell_text(r->s.ref.path));
	output_put(o, &from_memory, cell_of(CELL_FLAG, r->memory.dir[0] != 0));
	output_put(o, &job, cell_word(k->job));
	output_put(o, &step, subject_step(k));
	mesh_option_put(r->c, &r->to);
	output_put(o, &view, cell_word(r->c->value[OPT_VIEW]));
	output_put(o, &dtype, cell_word(r->c->value[OPT_DTYPE]));
	put_only(r);
	output_put(o, &destination, cell_text(r->path));
	output_put(o, &dry, cell_of(CELL_FLAG, r->c->value[OPT_DRY_RUN] != NULL));
	output_put(o, &dropped, cell_of(CELL_NUMBER, r->made.ndropped));
	put_files(r);
	put_left(r);
	over = put_overflows(r);
	output_put(o, &bytes, cell_of(CELL_BYTES, r->made.stored_bytes));
	output_put(o, &took,
		   cell_real((double)elapsed_ns(r->begin_ns, now_ns()) / (double)NS_PER_S));
	output_put(o, &speed, cell_of(CELL_NUMBER, (uint64_t)r->speed));
	human_bytes(r->made.stored_bytes, size);
	if (r->file && !r->one)
		cli_say(r->c, STYLE_PLAIN, "%s %s, %s: %s%s.", wrote, dst, size, title, from);
	else if (r->alone && r->nfile == 1)
		cli_say(r->c, STYLE_PLAIN, "%s %s/%s, %s: %s%s.", wrote, dst, r->made_file[0].name,
			size, title, from);
	else if (r->one)
		cli_say(r->c, STYLE_PLAIN, "%s %s/%s, %s: %s%s, rank %u of %s.", wrote, dst,
			r->made_file[0].name, size, title, from, r->first, text);
	else
		cli_say(r->c, STYLE_PLAIN, "%s %s file%s to %s, %s: %s%s%s%s.", wrote,
			human_count(r->nfile, count), r->nfile == 1 ? "" : "s", dst, size, title,
			from, r->alone ? "" : " on ", r->alone ? "" : text);
	if (r->c->value[OPT_DRY_RUN])
		cli_say(r->c, STYLE_PLAIN, "Nothing was written.");
	explicit_option_put(r->c, &r->to, &r->explicit, r->mem_limit, CONVERT_PEAK);
	return over;
}

int export_put(struct export *r)
{
	uint64_t over;

	export_document(r);
	over = put_result(r);
	output_end(r->c->o);
	say_only(r);
	say_blobs(r);
	export_others_say(r);
	casts_tell_overflow(r->c, over);
	if (r->nleft)
		cli_hint(r->c, "%u of %u tensors are damaged and were left out.", r->nleft,
			 r->to.target.ntensor);
	convert_cannot_say(r->c, &r->cannot);
	return r->nleft || over || r->made.ndropped || r->made.nunsaid ? CLI_WARNINGS : CLI_OK;
}
