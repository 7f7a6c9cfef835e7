/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_show.c - ckptctl show: what is in a checkpoint. The summary, a list of tensors, or one
 * tensor and which rank wrote which elements of it; its files (show_files.c), a map (show_map.c).
 * Invariant: works on the table alone; a program gets every tensor and piece that was asked for, a
 * terminal what fits a screen.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/average_put.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/show.h"
#include "ckpt/table/shown.h"
#include "formats/registry/registry.h"
#include <inttypes.h>

#define LINE_BYTES 1024
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

/* --- the summary --- */

static void put_lineage(struct output *o, const struct checkpoint *k)
{
	char parent[64] = "no parent";

	if (k->parent_step != UINT64_MAX)
		snprintf(parent, sizeof parent, "parent step %" PRIu64, k->parent_step);
	output_label(o, "lineage", STYLE_PLAIN, "seq %" PRIu64 ", %s, launch %" PRIu64, k->seq,
		     parent, k->generation);
}

static void put_meshes(struct output *o, const struct table *t)
{
	cleanup_free uint64_t *uses = calloc((size_t)t->nmesh + 1, sizeof *uses);
	char mesh[LINE_BYTES];

	for (uint32_t i = 0; uses && i < t->ntensor; i++)
		if (t->tensor[i].layout != TABLE_NONE)
			uses[t->layout[t->tensor[i].layout].mesh]++;
	output_list(o, "meshes", NULL, 0);
	for (uint32_t i = 0; uses && i < t->nmesh; i++) {
		output_row(o);
		output_key(o, "mesh", cell_text(mesh_print(&t->mesh[i], mesh, sizeof mesh)));
		output_key(o, "rank_count", cell_count(t->mesh[i].nrank));
		output_key(o, "tensor_count", cell_count(uses[i]));
		output_close(o);
	}
	output_close(o);
}

static void put_world(struct output *o, const struct checkpoint *k)
{
	const struct table *t = &k->table;
	char mesh[LINE_BYTES], line[2 * LINE_BYTES] = "";

	output_key(o, "world_size", subject_world(k));
	output_key(o, "mesh", cell_word(shown_mesh(t, mesh, sizeof mesh)));
	for (uint32_t i = 0; i < t->nmesh && strlen(line) < LINE_BYTES; i++)
		human_add(line, sizeof line, "; ", "%s",
			  mesh_print(&t->mesh[i], mesh, sizeof mesh));
	if (k->has & HAS_STEP)
		human_add(line, sizeof line, ", ", "%u rank%s", k->world, k->world == 1 ? "" : "s");
	if (*line)
		output_head(o, "mesh", cell_text(line));
	put_meshes(o, t);
}

static void put_parts(struct output *o, const struct checkpoint *k)
{
	static const char *const kind[] = { "main", "const", "average" };
	char line[LINE_BYTES], a[HUMAN_BYTES], b[HUMAN_BYTES];
	uint64_t least = UINT64_MAX, most = 0;

	for (uint32_t i = 0; i < k->nfile; i++) {
		least = MIN(least, k->file[i].file_bytes);
		most = MAX(most, k->file[i].file_bytes);
	}
	output_key(o, "bytes", cell_bytes(k->stored_bytes));
	snprintf(line, sizeof line, "%s in %u part%s", BYTES_TEXT(k->stored_bytes), k->nfile,
		 k->nfile == 1 ? "" : "s");
	if (k->nfile > 1) {
		bool same = !strcmp(human_bytes(least, a), human_bytes(most, b));

		human_add(line, sizeof line, "", same ? " of %s" : " of %s to %s", a, b);
	}
	if (k->linked_bytes)
		human_add(line, sizeof line, "", "; %s of it shared with older steps",
			  BYTES_TEXT(k->linked_bytes));
	if (k->nfile)
		output_head(o, "size", cell_text(line));
	output_key(o, "linked_bytes", cell_bytes(k->linked_bytes));
	output_list(o, "parts", NULL, 0);
	for (uint32_t i = 0; i < k->nfile && o->machine; i++) {
		output_row(o);
		output_key(o, "file", cell_text(k->file[i].name));
		output_key(o, "rank", cell_unless(CELL_NUMBER, k->file[i].rank, TABLE_NONE));
		output_key(o, "kind", cell_text(kind[k->file[i].kind]));
		output_key(o, "step", cell_if(k->has & HAS_STEP, cell_number(k->file[i].step)));
		output_key(o, "bytes", cell_bytes(k->file[i].file_bytes));
		output_key(o, "raw_bytes", cell_bytes(k->file[i].raw_bytes));
		output_close(o);
	}
	output_close(o);
}

static void put_notes(struct output *o, const struct checkpoint *k)
{
	char line[LINE_BYTES] = "";

	output_object(o, "notes");
	for (uint32_t i = 0; i < k->nnote; i++) {
		output_key(o, k->note[i].key, cell_real(k->note[i].value));
		human_add(line, sizeof line, ", ", "%.100s %.6g", k->note[i].key, k->note[i].value);
	}
	output_close(o);
	if (k->nnote)
		output_head(o, "notes", cell_text(line));
}

#define ATTRS_SHOWN 20u /* of thousands, for people */
/* Where it came from, configurations, ...: a value may have many lines, of which people see the
 * first. */
static void put_attrs(struct output *o, const struct checkpoint *k)
{
	output_object(o, "attributes");
	for (uint32_t i = 0; i < k->nattr; i++)
		output_key(o, k->attr[i].key, cell_text(k->attr[i].value));
	output_close(o);
	for (uint32_t i = 0; i < MIN(k->nattr, ATTRS_SHOWN); i++) {
		const char *value = k->attr[i].value;
		size_t n = MIN(strcspn(value, "\n"), (size_t)200);

		output_label(o, i ? "" : "attributes", STYLE_PLAIN, "%.100s: %.*s%s",
			     k->attr[i].key, (int)n, value, value[n] ? " ..." : "");
	}
	if (k->nattr > ATTRS_SHOWN)
		output_label(o, "", STYLE_PLAIN, "and %u more: ckptctl show --json",
			     k->nattr - ATTRS_SHOWN);
	output_key(o, "newer_left_out", cell_flag(k->newer));
	if (k->newer)
		output_head(o, "left out",
			    cell_text("notes or attributes that a newer version wrote"));
}

/* What was said about it in its store. A copy elsewhere has none of that. */
static int put_labels(struct cli *c, const struct subject *s)
{
	struct store_label *label = NULL;
	struct ckpt_err err = { 0 };
	struct store_home m;
	uint32_t n = 0;
	char line[LINE_BYTES];
	int code = CLI_OK, rc = store_home_open(c->ops, formats[0], &s->ref, &m, &err);

	if (!rc) {
		m.step.step = s->ckpt->step;
		store_id_parse(s->ckpt->id, m.step.id);
		rc = store_labels(&m.s, &label, &n, &err);
	}
	if (rc < 0) {
		ckpt_error_prefix(&err, rc, "holds, tags and other labels are not shown");
		code = cli_fail(c, rc, &err, NULL);
	}
	store_label_sentence(&m.step, label, n, wall_ns(), false, 0, line, sizeof line);
	if (*line)
		output_head(c->o, "labels", cell_text(line));
	labels_put(c->o, &m.step, label, n, wall_ns());
	free(label);
	store_home_close(&m);
	return code;
}

static void put_totals(struct output *o, const struct table *t)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		bytes += table_tensor_bytes(&t->tensor[i]);
	output_key(o, "tensor_count", cell_count(t->ntensor));
	output_key(o, "tensor_bytes", cell_bytes(bytes));
	output_label(o, "tensors", STYLE_PLAIN, "%s, %s", COUNT_TEXT(t->ntensor),
		     BYTES_TEXT(bytes));
}

/* Tensors that are declared as the rounding of others: what of them has no bytes, and what has some
 * all the same. Nothing where there are none. */
static void put_derived(struct output *o, const struct table *t)
{
	uint64_t spared = 0, stored = 0, pieces = 0, trusted = 0;
	char first[NAME_BYTES] = "", a[HUMAN_BYTES], b[HUMAN_BYTES];
	bool any = false;

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct table_tensor *x = &t->tensor[p->tensor];

		if (x->cls != CKPT_DERIVED)
			continue;
		any = true;
		trusted += p->flags & PIECE_TRUSTED ? 1 : 0;
		if (p->flags & PIECE_DERIVED) {
			spared += p->len;
			continue;
		}
		if (!pieces++)
			table_tensor_print(x, first, sizeof first);
		stored += p->set.numel * x->elem_bytes;
	}
	if (!any)
		return;
	output_object(o, "derived");
	output_key(o, "spared_bytes", cell_bytes(spared));
	output_key(o, "stored_bytes", cell_bytes(stored));
	output_key(o, "stored_piece_count", cell_count(pieces));
	output_key(o, "stored_first", cell_word(first));
	output_key(o, "trusted_piece_count", cell_count(trusted));
	output_close(o);
	human_bytes(spared, a);
	human_bytes(stored, b);
	if (pieces)
		output_label(
			o, "derived", STYLE_PLAIN,
			"%s of derived tensors not stored; %s in %llu piece%s stored as %s: %.150s first",
			a, b, (unsigned long long)pieces, pieces == 1 ? "" : "s",
			pieces == 1 ? "it is" : "they are", first);
	else
		output_label(o, "derived", STYLE_PLAIN, "%s of derived tensors not stored", a);
}

/* How averaged weights came about, and what is odd about them. Nothing for people where there are
 * none. */
static void put_averages(struct output *o, const struct checkpoint *k)
{
	cleanup_free struct average_seen *x = NULL;
	char chain[300], left[128];
	uint32_t n = 0;

	o->failed |= averages_see(k, &x, &n) != 0;
	averages_put(o, k, x, n);
	for (uint32_t i = 0; i < n; i++)
		output_label(o, i ? "" : "averages", STYLE_PLAIN, "%.60s: %s%s%s%s%s", x[i].a->name,
			     averages_chain(k, x[i].a, chain, sizeof chain),
			     x[i].missed.left_out ? "; left out: " : "",
			     x[i].missed.left_out
				     ? averages_missed_print(&x[i].missed, left, sizeof left)
				     : "",
			     x[i].mixed ? "; " AVERAGES_MIXED_TEXT : "",
			     averages_health_is_bad(x[i].health)
				     ? "; its health is bad: ckptctl ema"
				     : "");
}

/* Returns an exit code. */
static int put_summary(struct cli *c, const struct subject *s)
{
	const struct checkpoint *k = s->ckpt;
	struct output *o = c->o;
	const bool steps = k->has & HAS_STEP;
	/* Commits are counted from 1; what was made of a file of another program has none. */
	const bool line = steps && k->seq;
	int code = CLI_OK;

	output_field(o, "path", "path", cell_text(s->ref.path));
	output_key(o, "job", subject_job(k));
	output_key(o, "step", subject_step(k));
	output_field(o, "created", "created", cell_if(steps, cell_of(CELL_TIME, k->wall_ns)));
	output_key(o, "created_ns", cell_unless(CELL_NUMBER, k->wall_ns, 0));
	output_field(o, "id", "id", cell_word(k->id));
	if (line)
		put_lineage(o, k);
	output_key(o, "seq", cell_if(line, cell_number(k->seq)));
	output_key(o, "parent", cell_unless(CELL_NUMBER, k->parent_step, UINT64_MAX));
	output_key(o, "parent_id", cell_word(k->parent_id));
	output_key(o, "generation", cell_if(line, cell_number(k->generation)));
	put_world(o, k);
	put_parts(o, k);
	put_totals(o, &k->table);
	put_derived(o, &k->table);
	put_averages(o, k);
	put_notes(o, k);
	put_attrs(o, k);
	if (steps)
		code = put_labels(c, s);
	else
		labels_put(o, &(struct store_step){ 0 }, NULL, 0, 0);
	output_key(o, "format", cell_text(s->format->name));
	output_key(o, "tool", cell_word(k->tool));
	output_label(o, "format", STYLE_PLAIN, "%s%s%s", s->format->name,
		     k->tool[0] ? ", written by " : "", k->tool);
	return code;
}

/* --- bytes by component, role and element type --- */

static int group_compare(const void *a, const void *b, void *arg)
{
	const struct table *t = arg;
	const struct table_tensor *x = &t->tensor[*(const uint32_t *)a],
				  *y = &t->tensor[*(const uint32_t *)b];
	int d = strcmp(x->component, y->component);

	if (!d)
		d = (x->role > y->role) - (x->role < y->role);
	return d ? d : (x->dtype > y->dtype) - (x->dtype < y->dtype);
}

static int put_groups(struct output *o, const struct table *t)
{
	static const struct column col[] = {
		{ "component", "COMPONENT", false, FIT_LAST },
		{ "role", "ROLE", false, FIT_WHOLE },
		{ "dtype", "DTYPE", false, FIT_WHOLE },
		{ "tensor_count", "TENSORS", true, FIT_WHOLE },
		{ "elements", "ELEMENTS", true, FIT_WHOLE },
		{ "bytes", "SIZE", true, FIT_WHOLE },
	};
	cleanup_free uint32_t *id = calloc((size_t)t->ntensor + 1, sizeof *id);

	if (!id)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->ntensor; i++)
		id[i] = i;
	qsort_r(id, t->ntensor, sizeof *id, group_compare, (void *)t);
	output_list(o, "groups", col, ARRAY_LEN(col));
	for (uint32_t i = 0, n; i < t->ntensor; i += n) {
		const struct table_tensor *x = &t->tensor[id[i]];
		uint64_t elements = 0, bytes = 0;

		for (n = 0; i + n < t->ntensor && !group_compare(&id[i], &id[i + n], (void *)t);
		     n++) {
			elements += shown_numel(&t->tensor[id[i + n]]);
			bytes += table_tensor_bytes(&t->tensor[id[i + n]]);
		}
		OUTPUT_ROW(o, col, cell_text(x->component), cell_text(role_name(x->role)),
			   cell_text(dtype_name(x->dtype)), cell_count(n), cell_count(elements),
			   cell_bytes(bytes));
	}
	output_close(o);
	return 0;
}

/* --- tensors and pieces --- */

/* Where in its file a piece begins; UINT64_MAX if its elements are not packed there: it has none,
 * or they lie coded, with strides, or in chunks with gaps between them. */
static uint64_t file_offset(const struct format_file *f, const struct table_piece *p)
{
	uint64_t first, last;

	if (p->flags & PIECE_DERIVED || p->stride)
		return UINT64_MAX;
	if (!f->chunk)
		return p->off;
	first = p->off >> f->chunk_log2;
	last = (p->off + (p->len ? p->len - 1 : 0)) >> f->chunk_log2;
	if (last >= f->nchunk)
		return UINT64_MAX;
	for (uint64_t i = first; i <= last; i++)
		if (f->chunk[i].codec != CODEC_RAW ||
		    f->chunk[i].off - f->chunk[first].off != (i - first) << f->chunk_log2)
			return UINT64_MAX;
	return f->chunk[first].off + (p->off - (first << f->chunk_log2));
}

static void put_pieces(struct output *o, const struct checkpoint *k, uint32_t tensor)
{
	enum {
		COL_RANK,
		COL_INDEX,
		COL_BYTES,
		COL_STORED,
		COL_FILE,
		COL_OFFSET,
		COL_RAW,
		COL_COUNT
	};
	/* Of what is derived, how much of it is in the file is not what it is large. */
	const bool derived = k->table.tensor[tensor].cls == CKPT_DERIVED;
	const struct column col[COL_COUNT] = {
		[COL_RANK] = { "rank", "RANK", true, FIT_WHOLE },
		[COL_STORED] = { "stored_bytes", derived ? "STORED" : NULL, true, FIT_WHOLE },
		[COL_INDEX] = { "index", "ELEMENTS", false, FIT_THEN },
		[COL_BYTES] = { "bytes", "SIZE", true, FIT_WHOLE },
		[COL_FILE] = { "file", "FILE", false, FIT_LAST },
		[COL_OFFSET] = { "offset", "OFFSET", true, FIT_WHOLE },
		[COL_RAW] = { "raw_offset", NULL, true, FIT_WHOLE },
	};
	const struct table *t = &k->table;
	const struct table_tensor *x = &t->tensor[tensor];
	uint64_t buf[CKPT_DIMS_MAX];

	output_list(o, "pieces", col, COL_COUNT);
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++) {
		const struct table_piece *p = &t->piece[i];
		const uint32_t file = checkpoint_file_of(k, p->place);
		const bool none = p->flags & PIECE_DERIVED;
		struct arena a = { 0 };
		const struct indexset *set = shown_set(x, &p->set, &a);

		output_row(o);
		output_put(o, &col[COL_RANK], cell_unless(CELL_NUMBER, p->rank, TABLE_NONE));
		output_put(o, &col[COL_FILE],
			   file == TABLE_NONE ? cell_none() : cell_text(k->file[file].name));
		output_put(o, &col[COL_OFFSET],
			   cell_if(p->place < k->nfile,
				   cell_unless(CELL_NUMBER, file_offset(&k->file[file], p),
					       UINT64_MAX)));
		output_put(o, &col[COL_RAW], cell_number(p->off));
		output_put(o, &col[COL_STORED], cell_bytes(none ? 0 : p->len));
		output_put(o, &col[COL_BYTES], cell_bytes(p->set.numel * x->elem_bytes));
		if (set)
			output_put(o, &col[COL_INDEX], cell_set(set, shown_shape(x, buf)));
		o->failed |= !set;
		output_close(o);
		arena_free(&a);
	}
	output_close(o);
}

enum {
	COL_TENSOR,
	COL_COMPONENT,
	COL_NAME,
	COL_FOREIGN,
	COL_DTYPE,
	COL_SHAPE,
	COL_BYTES,
	COL_ROLE,
	COL_CLASS,
	COL_ROLE_CLASS,
	COL_OF,
	COL_MEDIA,
	COL_RANK,
	COL_LAYOUT,
	COL_PIECES,
	COL_FINGERPRINT,
	COL_COUNT,
};

static const struct column tensor_columns[COL_COUNT] = {
	[COL_TENSOR] = { NULL, "TENSOR", false, FIT_LAST },
	[COL_COMPONENT] = { "component", NULL, false, FIT_WHOLE },
	[COL_NAME] = { "name", NULL, false, FIT_WHOLE },
	[COL_FOREIGN] = { "foreign_name", NULL, false, FIT_WHOLE },
	[COL_DTYPE] = { "dtype", "DTYPE", false, FIT_WHOLE },
	[COL_SHAPE] = { "shape", "SHAPE", false, FIT_WHOLE },
	[COL_BYTES] = { "bytes", NULL, true, FIT_WHOLE },
	[COL_ROLE] = { "role", NULL, false, FIT_WHOLE },
	[COL_CLASS] = { "class", NULL, false, FIT_WHOLE },
	[COL_ROLE_CLASS] = { NULL, "ROLE", false, FIT_DROP },
	[COL_OF] = { "of", NULL, false, FIT_WHOLE },
	[COL_MEDIA] = { "media", NULL, false, FIT_WHOLE },
	[COL_RANK] = { "rank", NULL, true, FIT_WHOLE },
	[COL_LAYOUT] = { "layout", "LAYOUT", false, FIT_THEN },
	[COL_PIECES] = { NULL, "PIECES", true, FIT_DROP },
	[COL_FINGERPRINT] = { "fingerprint", "FINGERPRINT", false, FIT_FIRST },
};

/* One look of a tensor: as a row of a table, or as labels (the same columns with other heads). */
static void put_tensor(struct output *o, const struct checkpoint *k, uint32_t id,
		       const struct column *col)
{
	const struct table *t = &k->table;
	const struct table_tensor *x = &t->tensor[id];
	const char *foreign = named_foreign(k, id);
	char full[NAME_BYTES], layout[LINE_BYTES], role[128];
	uint64_t shape[CKPT_DIMS_MAX];

	/* Most tensors are STABLE: only the others have their class. */
	snprintf(role, sizeof role, "%s%s%s", role_name(x->role), x->cls == CKPT_STABLE ? "" : " ",
		 x->cls == CKPT_STABLE ? "" : class_name(x->cls));
	output_put(o, &col[COL_TENSOR], cell_text(table_tensor_print(x, full, sizeof full)));
	output_put(o, &col[COL_COMPONENT], cell_text(x->component));
	output_put(o, &col[COL_NAME], cell_text(x->name));
	output_put(o, &col[COL_FOREIGN], cell_word(foreign));
	output_put(o, &col[COL_DTYPE], cell_text(dtype_name(x->dtype)));
	output_put(o, &col[COL_SHAPE], cell_shape(x->ndim, shown_shape(x, shape)));
	output_put(o, &col[COL_BYTES], cell_bytes(table_tensor_bytes(x)));
	output_put(o, &col[COL_ROLE], cell_text(role_name(x->role)));
	output_put(o, &col[COL_CLASS], cell_text(class_name(x->cls)));
	output_put(o, &col[COL_ROLE_CLASS], cell_text(role));
	output_put(o, &col[COL_OF], cell_word(x->of));
	output_put(o, &col[COL_MEDIA],
		   cell_if(x->flags & TENSOR_BLOB, cell_text(media_name(x->media))));
	output_put(o, &col[COL_RANK], cell_unless(CELL_NUMBER, x->rank, TABLE_NONE));
	if (x->layout == TABLE_NONE)
		output_put(o, &col[COL_LAYOUT], cell_none());
	else
		output_put(o, &col[COL_LAYOUT],
			   cell_text(table_layout_print(t, x->layout, layout, sizeof layout)));
	output_put(o, &col[COL_PIECES], cell_count(t->first[id + 1] - t->first[id]));
	output_put(o, &col[COL_FINGERPRINT],
		   cell_if(x->fp_known, cell_of(CELL_FINGERPRINT, x->fp)));
}

static void put_tensors(struct output *o, const struct checkpoint *k, const uint32_t *id,
			uint32_t n, bool shown)
{
	output_list(o, "tensors", shown || o->machine ? tensor_columns : NULL, COL_COUNT);
	for (uint32_t i = 0; i < n; i++) {
		output_row(o);
		put_tensor(o, k, id ? id[i] : i, tensor_columns);
		if (o->machine)
			put_pieces(o, k, id ? id[i] : i);
		output_close(o);
	}
	output_close(o);
}

/* One tensor for people: labels, then its pieces. */
static void say_tensor(struct cli *c, const struct subject *s, uint32_t id)
{
	const struct checkpoint *k = s->ckpt;
	char title[SUBJECT_TITLE];
	struct column col[COL_COUNT] = { 0 };
	const struct table_tensor *x = &k->table.tensor[id];
	char full[NAME_BYTES];

	col[COL_DTYPE].head = "dtype";
	col[COL_SHAPE].head = "shape";
	col[COL_BYTES].head = "size";
	col[COL_ROLE].head = "role";
	col[COL_CLASS].head = "class";
	col[COL_OF].head = x->of[0] ? "of" : NULL;
	col[COL_MEDIA].head = x->flags & TENSOR_BLOB ? "content" : NULL;
	col[COL_LAYOUT].head = "layout";
	col[COL_FINGERPRINT].head = "fingerprint";
	cli_say(c, STYLE_STRONG, "%s in %s", table_tensor_print(x, full, sizeof full),
		subject_title(k, s->ref.path, title));
	put_tensor(c->o, k, id, col);
	put_pieces(c->o, k, id);
}

/* --- the verb --- */

static int show_tensors(struct cli *c, const struct subject *s, const uint32_t *id, uint32_t n)
{
	const struct checkpoint *k = s->ckpt;
	char title[SUBJECT_TITLE];
	int rc = 0, code = CLI_OK;

	output_begin(c->o, "ckptd.show/1");
	if (id && !c->json) {
		if (n == 1)
			say_tensor(c, s, id[0]);
		else
			put_tensors(c->o, k, id, n, true);
	} else {
		cli_say(c, STYLE_STRONG, "%s", subject_title(k, s->ref.path, title));
		code = put_summary(c, s);
		rc = put_groups(c->o, &k->table);
		if (c->o->machine)
			put_tensors(c->o, k, id, id ? n : k->table.ntensor, false);
	}
	output_end(c->o);
	return rc ? cli_fail(c, rc, NULL, NULL) : code;
}

/* One of the ways to look, at most. */
static int check_options(const struct cli *c, struct ckpt_err *err)
{
	bool word = c->narg > 1, tensors = c->value[OPT_TENSORS], files = c->value[OPT_FILES],
	     map = c->value[OPT_MAP];

	if (tensors && word && !files && !map)
		return ckpt_error(err, -EINVAL,
				  "TENSOR names one tensor, --tensors many: give one of them");
	if (word + tensors + files + map > 1)
		return ckpt_error(
			err, -EINVAL,
			"TENSOR, --tensors, --files and --map show different things: give one of "
			"them");
	if (c->value[OPT_SVG] && !map)
		return ckpt_error(err, -EINVAL, "--svg draws a map: give --map TENSOR too");
	return 0;
}

static int run_tensors(struct cli *c, const struct subject *s)
{
	const char *glob = c->value[OPT_TENSORS], *word = c->narg > 1 ? c->arg[1] : NULL;
	cleanup_free uint32_t *id = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	int rc = 0;

	if (glob)
		rc = named_glob(s->ckpt, glob, &id, &n, &err);
	else if (word)
		rc = named_tensors(s->ckpt, word, &id, &n, &err);
	if (rc)
		return cli_fail(c, rc, &err, "ckptctl show %s --tensors '*' lists them all",
				s->ref.path);
	return show_tensors(c, s, id, n);
}

/* What several tensors are called that one word means. */
static int map_ambiguous(const struct checkpoint *k, const char *word, const uint32_t *id,
			 uint32_t n, struct ckpt_err *err)
{
	const struct table_tensor *x = &k->table.tensor[id[0]];
	char list[1024] = "", full[NAME_BYTES];

	if (x->rank != TABLE_NONE)
		return ckpt_error(err, -EINVAL,
				  "%.200s is not shared by ranks: each of %u ranks holds its own",
				  word, n);
	for (uint32_t i = 0; i < n && strlen(list) < sizeof list - 300; i++)
		snprintf(list + strlen(list), 300, "%s%.250s", i ? ", " : "",
			 table_tensor_print(&k->table.tensor[id[i]], full, sizeof full));
	return ckpt_error(err, -EINVAL, "\"%.200s\" is %u tensors: %s", word, n, list);
}

static int run_map(struct cli *c, const struct subject *s)
{
	const char *word = c->value[OPT_MAP];
	cleanup_free uint32_t *id = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n = 0;
	int rc = named_tensors(s->ckpt, word, &id, &n, &err);

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl show %s --tensors '*' lists them all",
				s->ref.path);
	if (n > 1)
		return cli_fail(c, map_ambiguous(s->ckpt, word, id, n, &err), &err,
				"ckptctl show %s %s", s->ref.path, word);
	return show_map(c, s, id[0], c->value[OPT_SVG]);
}

static int show_run(struct cli *c)
{
	struct ckpt_err err = { 0 };
	struct subject s;
	int code, rc = check_options(c, &err);

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl show -h");
	code = subject_get(c, c->narg ? c->arg[0] : "latest", &s);
	if (!code && c->value[OPT_FILES])
		code = show_files(c, &s);
	else if (!code && c->value[OPT_MAP])
		code = run_map(c, &s);
	else if (!code)
		code = run_tensors(c, &s);
	subject_close(&s);
	return code;
}

const struct cli_verb verb_show = {
	.name = "show",
	.synonyms = (const char *const[]){ "info", "inspect", NULL },
	.help = "what is in a checkpoint, or in one of its tensors",
	.synopsis =
		(const char *const[]){ "[CKPT]", "[CKPT] --tensors=GLOB", "CKPT TENSOR",
				       "[CKPT] --files", "[CKPT] --map=TENSOR [--svg=FILE]", NULL },
	.about = "CKPT is latest (the default), latest~1, step:12000, tag:best, or the path of a "
		 "step directory, also of a copied or renamed one. TENSOR is a name or "
		 "component/name; for one tensor, the table lists which rank wrote which elements "
		 "of it, and where they are. --files accounts for every byte of every file. --map "
		 "draws which rank holds which elements, by its declared layout, with the exact "
		 "cuts. show reads only metadata.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl show", "the newest one" },
			{ "ckptctl show step:90 --tensors='*.wq.*'", "some of its tensors" },
			{ "ckptctl show latest optim/w.master", "which rank holds which rows" },
			{ "ckptctl show latest --map=optim/w.master --svg=w.svg", "drawn, and as "
										  "a picture" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_TENSORS, "list the tensors whose name, or component/name, matches; "
				       "* matches anything" },
			{ OPT_FILES, "every file: its rank, its size, and what the bytes are for" },
			{ OPT_MAP, "draw which rank holds which elements of this tensor" },
			{ OPT_SVG,
			  "with --map: also draw into this file; an existing file is replaced "
			  "only if it is such a picture" },
			{ OPT_FROM, FROM_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0; 4 its metadata is damaged; 5 it is not committed; 10 there is no such store, "
		 "checkpoint or tensor; 11 the picture's FILE exists and is something else; 12 it "
		 "cannot be read, or FILE cannot be written.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_TENSOR, ARG_NONE },
	.narg_max = 2,
	.run = show_run,
};
