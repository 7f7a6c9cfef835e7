/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_diff.c - ckptctl diff: do two checkpoints hold the same? Names, shapes, dtypes and
 * fingerprints decide, all from metadata; where a fingerprint is not known the tensors are read
 * (engine/compare.h). Invariant: all differences are found, counted and, for programs, listed; how
 * the elements lie in ranks and files is none, unless --layouts. What was not compared is never
 * called equal.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/progress.h"
#include "ckpt/table/shown.h"
#include "ckpt/cli/subject.h"
#include "ckpt/engine/compare.h"
#include "formats/registry/registry.h"
#include <stdarg.h>

#define SAID_MAX 20u /* differences of a kind that people see */
#define LINE_BYTES 1024
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

static const struct {
	const char *key, *one, *many; /* "1 has another shape", "2 have another shape" */
} kinds[COMPARE_KINDS] = {
	[COMPARE_ONLY_A] = { "only_in_a", "is only in A", "are only in A" },
	[COMPARE_ONLY_B] = { "only_in_b", "is only in B", "are only in B" },
	[COMPARE_SHAPE] = { "shape", "has another shape", "have another shape" },
	[COMPARE_DTYPE] = { "dtype", "has another dtype", "have another dtype" },
	[COMPARE_OPERANDS] = { "operands", "has other operands of a pending reduction",
			       "have other operands of a pending reduction" },
	[COMPARE_CONTENTS] = { "contents", "has other contents", "have other contents" },
	[COMPARE_UNKNOWN] = { "unknown", "was not compared: a fingerprint is not known",
			      "were not compared: a fingerprint is not known" },
	[COMPARE_LAYOUT] = { "layout", "has another layout", "have another layout" },
	[COMPARE_ROLE] = { "role", "is declared differently", "are declared differently" },
};

struct diff {
	struct cli *c;
	struct subject a, b;
	bool *in_a, *in_b; /* [tensor] is it asked for */
	struct compared found;
	bool layouts, values, no_read;
	bool mesh_differs, parts_differ;
};

/* --- finding --- */

/* Is it a difference by what was asked for? */
static bool kind_counts(const struct diff *d, enum compare_kind kind)
{
	return (kind != COMPARE_LAYOUT && kind != COMPARE_ROLE) || d->layouts;
}

static bool diff_found(const struct diff *d)
{
	for (uint32_t k = 0; k < COMPARE_KINDS; k++)
		if (k != COMPARE_UNKNOWN && d->found.count[k] && kind_counts(d, k))
			return true;
	return d->layouts && (d->mesh_differs || d->parts_differ);
}

/* Nothing differs, but not all was compared. */
static bool diff_unknown(const struct diff *d)
{
	return !diff_found(d) && d->found.count[COMPARE_UNKNOWN];
}

static bool diff_equal(const struct diff *d)
{
	return !diff_found(d) && !diff_unknown(d);
}

static int select_some(const struct checkpoint *k, const char *glob, bool **ret, uint32_t *ret_n,
		       struct ckpt_err *err)
{
	cleanup_free uint32_t *id = NULL;
	uint32_t n = 0;
	int rc = 0;

	*ret = calloc((size_t)k->table.ntensor + 1, sizeof **ret);
	if (!*ret)
		return -ENOMEM;
	if (glob)
		rc = named_glob(k, glob, &id, &n, err);
	else
		memset(*ret, true, k->table.ntensor);
	for (uint32_t i = 0; !rc && i < n; i++)
		(*ret)[id[i]] = true;
	*ret_n = n;
	return rc;
}

/* What --tensors means in the two: it must mean something in one of them. */
static int tensors_choose(struct diff *d, struct ckpt_err *err)
{
	const char *glob = d->c->value[OPT_TENSORS];
	uint32_t na = 0, nb = 0;
	int ra = select_some(d->a.ckpt, glob, &d->in_a, &na, err), rb;

	if (ra && ra != -ENOENT)
		return ra;
	rb = select_some(d->b.ckpt, glob, &d->in_b, &nb, err);
	if (rb == -ENOENT && !ra)
		rb = 0;
	else if (rb == -ENOENT)
		return ckpt_error(err, rb, "no tensor matches \"%.200s\", neither in A nor in B",
				  glob);
	return rb;
}

/* --- contents --- */

static int contents_read(struct diff *d, struct ckpt_err *err)
{
	struct progress progress;
	struct engine e = {
		.ops = d->c->ops, .format = formats, .tick = progress_tick, .arg = &progress
	};
	uint64_t bytes = compare_choose(&d->a.ckpt->table, &d->b.ckpt->table, d->values, &d->found);
	int rc;

	if (!d->found.pair)
		return -ENOMEM;
	progress_begin(&progress, d->c, bytes, "comparing %u tensor%s", d->found.npair,
		       d->found.npair == 1 ? "" : "s");
	rc = compare_read(&e, &d->a.o, &d->b.o, d->values, &d->found, err);
	progress_end(&progress);
	return rc;
}

static int differences_find(struct diff *d)
{
	const struct table *a = &d->a.ckpt->table, *b = &d->b.ckpt->table;
	char mesh_a[LINE_BYTES], mesh_b[LINE_BYTES];

	d->mesh_differs = strcmp(shown_mesh(a, mesh_a, sizeof mesh_a),
				 shown_mesh(b, mesh_b, sizeof mesh_b)) != 0;
	d->parts_differ = d->a.ckpt->nfile != d->b.ckpt->nfile;
	return compare_find(a, b, d->in_a, d->in_b, &d->found);
}

/* --- telling: the two --- */

static void put_side(struct output *o, const char *key, const struct subject *s)
{
	const struct checkpoint *k = s->ckpt;
	char mesh[LINE_BYTES];

	output_object(o, key);
	subject_put(o, s->ref.path, k);
	output_key(o, "id", cell_word(k->id));
	output_key(o, "world_size", subject_world(k));
	output_key(o, "mesh", cell_word(shown_mesh(&k->table, mesh, sizeof mesh)));
	output_key(o, "part_count", cell_count(k->nfile));
	output_key(o, "bytes", cell_bytes(k->stored_bytes));
	output_key(o, "format", cell_text(s->format->name));
	output_key(o, "tensor_count", cell_count(k->table.ntensor));
	output_close(o);
}

static const struct column sides[] = {
	{ NULL, "", false, FIT_WHOLE },
	{ NULL, "A", false, FIT_THEN },
	{ NULL, "B", false, FIT_THEN },
};

__attribute__((format(printf, 3, 4))) static void say_row(struct output *o, const char *what,
							  const char *fmt, ...)
{
	char line[2 * 4096 + 64], *b;
	bool same;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	b = strchr(line, '\n');
	*b++ = 0;
	same = !strcmp(line, b);
	OUTPUT_ROW(o, sides, cell_styled(cell_text(what), STYLE_DIM),
		   cell_styled(cell_text(line), same ? STYLE_DIM : STYLE_PLAIN),
		   cell_styled(cell_text(b), same ? STYLE_DIM : STYLE_PLAIN));
}

static const char *step_print(const struct checkpoint *k, char buf[HUMAN_BYTES])
{
	buf[0] = 0;
	if (k->has & HAS_STEP)
		snprintf(buf, HUMAN_BYTES, "%llu", (unsigned long long)k->step);
	return buf;
}

static void say_sides(struct diff *d)
{
	const struct checkpoint *a = d->a.ckpt, *b = d->b.ckpt;
	struct output *o = d->c->o;
	char ma[LINE_BYTES], mb[LINE_BYTES], sa[HUMAN_BYTES], sb[HUMAN_BYTES];

	output_list(o, NULL, sides, ARRAY_LEN(sides));
	say_row(o, "path", "%s\n%s", d->a.ref.path, d->b.ref.path);
	if ((a->has | b->has) & HAS_STEP) {
		say_row(o, "job", "%s\n%s", a->job, b->job);
		say_row(o, "step", "%s\n%s", step_print(a, sa), step_print(b, sb));
	}
	say_row(o, "mesh", "%s\n%s", shown_mesh(&a->table, ma, sizeof ma),
		shown_mesh(&b->table, mb, sizeof mb));
	say_row(o, "parts", "%u\n%u", a->nfile, b->nfile);
	say_row(o, "size", "%s\n%s", human_bytes(a->stored_bytes, sa),
		human_bytes(b->stored_bytes, sb));
	output_close(o);
}

/* --- telling: one difference --- */

static void put_tensor(struct output *o, const char *key, const struct table *t, uint32_t id)
{
	const struct table_tensor *x = &t->tensor[id];
	char layout[LINE_BYTES], mesh[LINE_BYTES] = "";
	uint64_t shape[CKPT_DIMS_MAX];

	if (x->layout != TABLE_NONE)
		mesh_print(&t->mesh[t->layout[x->layout].mesh], mesh, sizeof mesh);
	output_object(o, key);
	output_key(o, "dtype", cell_text(dtype_name(x->dtype)));
	output_key(o, "shape", cell_shape(x->ndim, shown_shape(x, shape)));
	output_key(o, "fingerprint", cell_if(x->fp_known, cell_of(CELL_FINGERPRINT, x->fp)));
	output_key(o, "layout",
		   x->layout == TABLE_NONE
			   ? cell_none()
			   : cell_text(table_layout_print(t, x->layout, layout, sizeof layout)));
	output_key(o, "mesh", cell_word(mesh));
	output_key(o, "role", cell_text(role_name(x->role)));
	output_key(o, "class", cell_text(class_name(x->cls)));
	output_key(o, "of", cell_word(x->of));
	output_close(o);
}

static void put_values(struct output *o, const struct apart *v)
{
	bool same = v->dtype_a == v->dtype_b;

	output_object(o, "values");
	output_key(o, "elements", cell_count(v->count));
	output_key(o, "bits_differ_count", cell_if(same, cell_count(v->bits)));
	output_key(o, "values_differ_count", cell_count(v->values));
	output_key(o, "max_abs_delta", cell_real(v->max_delta));
	output_key(o, "nonfinite_differ_count", cell_count(v->nonfinite));
	output_key(o, "first_index", cell_if(v->has_first, cell_shape(v->ndim, v->first)));
	output_key(o, "nan_count_a", cell_count(v->nan_a));
	output_key(o, "nan_count_b", cell_count(v->nan_b));
	output_close(o);
}

static const struct table_tensor *tensor_of(const struct diff *d, const struct compare_item *x)
{
	return x->a != TABLE_NONE ? &d->a.ckpt->table.tensor[x->a] : &d->b.ckpt->table.tensor[x->b];
}

static void put_items(struct diff *d)
{
	struct output *o = d->c->o;

	output_list(o, "differences", NULL, 0);
	for (uint32_t i = 0; o->machine && i < d->found.nitem; i++) {
		const struct compare_item *x = &d->found.item[i];
		const struct table_tensor *t = tensor_of(d, x);

		if (!kind_counts(d, x->kind))
			continue;
		output_row(o);
		output_key(o, "kind", cell_text(kinds[x->kind].key));
		output_key(o, "component", cell_text(t->component));
		output_key(o, "name", cell_text(t->name));
		output_key(o, "rank", cell_unless(CELL_NUMBER, t->rank, TABLE_NONE));
		if (x->a == TABLE_NONE)
			output_key(o, "a", cell_none());
		else
			put_tensor(o, "a", &d->a.ckpt->table, x->a);
		if (x->b == TABLE_NONE)
			output_key(o, "b", cell_none());
		else
			put_tensor(o, "b", &d->b.ckpt->table, x->b);
		if (x->pair == TABLE_NONE)
			output_key(o, "values", cell_none());
		else
			put_values(o, &d->found.pair[x->pair].apart);
		output_close(o);
	}
	output_close(o);
}

enum { T_TENSOR, T_DTYPE, T_SHAPE, T_SIZE, T_A, T_B, T_DIFFER, T_DELTA, T_FIRST, T_NAN, T_COUNT };
static const struct column item_columns[T_COUNT] = {
	[T_TENSOR] = { NULL, "TENSOR", false, FIT_LAST },
	[T_DTYPE] = { NULL, "DTYPE", false, FIT_WHOLE },
	[T_SHAPE] = { NULL, "SHAPE", false, FIT_WHOLE },
	[T_SIZE] = { NULL, "SIZE", true, FIT_WHOLE },
	[T_A] = { NULL, "A", false, FIT_THEN },
	[T_B] = { NULL, "B", false, FIT_THEN },
	[T_DIFFER] = { NULL, "DIFFER", true, FIT_WHOLE },
	[T_DELTA] = { NULL, "MAX DELTA", true, FIT_WHOLE },
	[T_FIRST] = { NULL, "FIRST", false, FIT_WHOLE },
	[T_NAN] = { NULL, "NaN A/B", true, FIT_DROP },
};

static void say_values(struct output *o, const struct apart *v)
{
	char n[HUMAN_BYTES], delta[HUMAN_BYTES], nan[HUMAN_BYTES];

	human_count(v->dtype_a == v->dtype_b ? v->bits : v->values, n);
	output_put(o, &item_columns[T_DIFFER], cell_text(n));
	if (!v->values && v->bits)
		snprintf(delta, sizeof delta, "0 (bits)");
	else
		snprintf(delta, sizeof delta, v->nonfinite ? "%.4g, inf" : "%.4g", v->max_delta);
	output_put(o, &item_columns[T_DELTA], cell_text(delta));
	output_put(o, &item_columns[T_FIRST], cell_if(v->has_first, cell_shape(v->ndim, v->first)));
	snprintf(nan, sizeof nan, "%llu/%llu", (unsigned long long)v->nan_a,
		 (unsigned long long)v->nan_b);
	if (v->nan_a || v->nan_b)
		output_put(o, &item_columns[T_NAN], cell_styled(cell_text(nan), STYLE_BAD));
}

/* "Shard(0)@fsdp of fsdp=4": the same placements on another mesh are another layout. */
static void layout_print(const struct table *t, const struct table_tensor *x, char *buf,
			 size_t bytes)
{
	size_t len;

	table_layout_print(t, x->layout, buf, bytes);
	len = strlen(buf);
	if (x->layout == TABLE_NONE || len + sizeof " of " > bytes)
		return;
	strcpy(buf + len, " of ");
	len += strlen(" of ");
	mesh_print(&t->mesh[t->layout[x->layout].mesh], buf + len, bytes - len);
}

static void print_print(const struct table_tensor *x, char *buf, size_t bytes)
{
	if (x->fp_known)
		snprintf(buf, bytes, "%016llx", (unsigned long long)x->fp);
	else
		snprintf(buf, bytes, "not known");
}

/* What the two say, where it is not the same. */
static void say_two(const struct diff *d, const struct compare_item *x)
{
	const struct table *ta = &d->a.ckpt->table, *tb = &d->b.ckpt->table;
	const struct table_tensor *a = &ta->tensor[x->a], *b = &tb->tensor[x->b];
	char wa[LINE_BYTES], wb[LINE_BYTES], sa[LINE_BYTES], sb[LINE_BYTES];
	uint64_t shape[CKPT_DIMS_MAX];

	switch (x->kind) {
	case COMPARE_SHAPE:
		snprintf(wa, sizeof wa, "%s %.800s", dtype_name(a->dtype),
			 human_shape(a->ndim, shown_shape(a, shape), sa, sizeof sa));
		snprintf(wb, sizeof wb, "%s %.800s", dtype_name(b->dtype),
			 human_shape(b->ndim, shown_shape(b, shape), sb, sizeof sb));
		break;
	case COMPARE_DTYPE:
		snprintf(wa, sizeof wa, "%s", dtype_name(a->dtype));
		snprintf(wb, sizeof wb, "%s", dtype_name(b->dtype));
		break;
	case COMPARE_CONTENTS:
	case COMPARE_UNKNOWN:
		print_print(a, wa, sizeof wa);
		print_print(b, wb, sizeof wb);
		break;
	case COMPARE_OPERANDS:
	case COMPARE_LAYOUT:
		layout_print(ta, a, wa, sizeof wa);
		layout_print(tb, b, wb, sizeof wb);
		break;
	case COMPARE_ROLE:
		snprintf(wa, sizeof wa, "%s %s %.500s", role_name(a->role), class_name(a->cls),
			 a->of);
		snprintf(wb, sizeof wb, "%s %s %.500s", role_name(b->role), class_name(b->cls),
			 b->of);
		break;
	case COMPARE_ONLY_A:
	case COMPARE_ONLY_B:
	case COMPARE_KINDS:
		return;
	}
	output_put(d->c->o, &item_columns[T_A], cell_text(wa));
	output_put(d->c->o, &item_columns[T_B], cell_text(wb));
}

static void say_item(const struct diff *d, const struct compare_item *x)
{
	struct output *o = d->c->o;
	const struct table_tensor *t = tensor_of(d, x);
	char name[NAME_BYTES];
	uint64_t shape[CKPT_DIMS_MAX];
	bool only = x->kind == COMPARE_ONLY_A || x->kind == COMPARE_ONLY_B;

	output_row(o);
	output_put(o, &item_columns[T_TENSOR], cell_text(table_tensor_print(t, name, sizeof name)));
	if (only || x->kind == COMPARE_CONTENTS)
		output_put(o, &item_columns[T_DTYPE], cell_text(dtype_name(t->dtype)));
	if (only || x->kind == COMPARE_CONTENTS || x->kind == COMPARE_DTYPE)
		output_put(o, &item_columns[T_SHAPE], cell_shape(t->ndim, shown_shape(t, shape)));
	if (only)
		output_put(o, &item_columns[T_SIZE], cell_bytes(table_tensor_bytes(t)));
	if (x->pair == TABLE_NONE || x->kind == COMPARE_DTYPE || x->kind == COMPARE_OPERANDS)
		say_two(d, x);
	if (x->pair != TABLE_NONE)
		say_values(o, &d->found.pair[x->pair].apart);
	output_close(o);
}

static const char *kind_words(const struct diff *d, enum compare_kind kind)
{
	return d->found.count[kind] == 1 ? kinds[kind].one : kinds[kind].many;
}

static void say_kind(struct diff *d, enum compare_kind kind)
{
	char more[HUMAN_BYTES];
	uint32_t said = 0;

	if (!d->found.count[kind] || !kind_counts(d, kind))
		return;
	cli_say(d->c, STYLE_PLAIN, "%s", "");
	cli_say(d->c, STYLE_STRONG, "%s %s", COUNT_TEXT(d->found.count[kind]), kind_words(d, kind));
	output_list(d->c->o, NULL, item_columns, T_COUNT);
	for (uint32_t i = 0; i < d->found.nitem && said < SAID_MAX; i++)
		if (d->found.item[i].kind == kind) {
			say_item(d, &d->found.item[i]);
			said++;
		}
	output_close(d->c->o);
	if (said < d->found.count[kind])
		cli_say(d->c, STYLE_DIM, "and %s more: --json lists all",
			human_count(d->found.count[kind] - said, more));
}

/* --- telling: the result --- */

static bool lone_blobs(const struct diff *d)
{
	for (uint32_t i = 0; i < d->found.nitem; i++)
		if ((d->found.item[i].kind == COMPARE_ONLY_A ||
		     d->found.item[i].kind == COMPARE_ONLY_B) &&
		    tensor_of(d, &d->found.item[i])->rank != TABLE_NONE)
			return true;
	return false;
}

static void say_different(struct diff *d)
{
	char line[LINE_BYTES] = "";

	for (uint32_t k = 0; k < COMPARE_KINDS; k++)
		if (d->found.count[k] && kind_counts(d, k))
			human_add(line, sizeof line, ", ", "%s %s", COUNT_TEXT(d->found.count[k]),
				  kind_words(d, k));
	if (d->layouts && d->mesh_differs)
		human_add(line, sizeof line, ", ", "the meshes differ");
	if (d->layouts && d->parts_differ)
		human_add(line, sizeof line, ", ", "the numbers of parts differ");
	cli_mark(d->c, STYLE_WARN, "different", 2, ": %s; %s %s in both", line,
		 COUNT_TEXT(d->found.nboth),
		 d->found.nboth == 1 ? "tensor or blob is" : "tensors and blobs are");
	if (lone_blobs(d))
		cli_say(d->c, STYLE_DIM,
			"If only one checkpoint has a rank's blob, that is a difference: it is "
			"that rank's own data on any mesh.");
}

static const char *tensors_or_blobs(uint32_t n)
{
	return n == 1 ? "tensor or blob" : "tensors and blobs";
}

static void say_equal(struct diff *d)
{
	const struct compared *f = &d->found;
	char bytes[HUMAN_BYTES];

	human_bytes(f->both_bytes, bytes);
	cli_mark(d->c, STYLE_GOOD, "equal", 2,
		 ": %s %s, %s, %s the same names, shapes, dtypes%s and %s", COUNT_TEXT(f->nboth),
		 tensors_or_blobs(f->nboth), bytes, f->nboth == 1 ? "has" : "have",
		 d->layouts ? ", layouts" : "",
		 !f->nread		? "fingerprints"
		 : f->nread == f->nboth ? "contents"
					: "fingerprints or contents");
}

/* What that rests on. */
static void hint_equal(struct diff *d)
{
	const struct compared *f = &d->found;
	char read[HUMAN_BYTES];

	if (f->nread)
		cli_hint(d->c,
			 "%s of them %s no fingerprint on both sides: diff read %s and compared "
			 "every bit.",
			 human_count(f->nread, read), f->nread == 1 ? "has" : "have",
			 f->nread == 1 ? "it" : "them");
	else
		cli_hint(d->c,
			 "No data was read: the fingerprints are in the metadata; ckptctl verify "
			 "--data checks them.");
}

static void say_unknown(struct diff *d)
{
	const struct compared *f = &d->found;

	cli_mark(d->c, STYLE_WARN, "unknown", 2,
		 ": no difference in what was compared, but the contents of %s of %s %s were not",
		 COUNT_TEXT(f->count[COMPARE_UNKNOWN]), COUNT_TEXT(f->nboth),
		 tensors_or_blobs(f->nboth));
	if (d->no_read)
		cli_hint(d->c, "Without --no-read diff reads them and compares every bit.");
}

static void say_result(struct diff *d)
{
	cli_say(d->c, STYLE_PLAIN, "%s", "");
	if (diff_equal(d))
		say_equal(d);
	else if (diff_unknown(d))
		say_unknown(d);
	else
		say_different(d);
	if (!d->layouts && d->found.count[COMPARE_LAYOUT])
		cli_say(d->c, STYLE_DIM, "%s %s: no difference without --layouts.",
			COUNT_TEXT(d->found.count[COMPARE_LAYOUT]), kind_words(d, COMPARE_LAYOUT));
	if (diff_equal(d))
		hint_equal(d);
	if (d->values || !diff_found(d))
		return;
	if (d->found.count[COMPARE_OPERANDS])
		cli_hint(d->c, "Fingerprints do not show whether the operands reduce to the same "
			       "values: --values reduces and compares them.");
	else if (d->found.count[COMPARE_CONTENTS] || d->found.count[COMPARE_DTYPE])
		cli_hint(d->c, "--values reads those tensors and prints how far apart they are.");
}

/* --- telling: averages --- */

static const struct table_average *average_find(const struct table *t,
						const struct table_average *like)
{
	for (uint32_t i = 0; i < t->naverage; i++)
		if (t->average[i].rule == like->rule && !strcmp(t->average[i].name, like->name))
			return &t->average[i];
	return NULL;
}

static void average_name(const struct table_average *a, char *buf, size_t bytes)
{
	if (a->rule)
		snprintf(buf, bytes, "%.100s, rule %u", a->name, a->rule);
	else
		snprintf(buf, bytes, "%.100s", a->name);
}

/* a or b NULL: the other one alone has it. Tensors are compared as all others are: this is about
 * the steps that are in them. */
static void put_average(struct diff *d, const struct table_average *a,
			const struct table_average *b)
{
	const struct table_average *x = a ? a : b;
	char which[160], of_a[300], of_b[300];
	struct output *o = d->c->o;

	if (o->machine) {
		output_row(o);
		output_key(o, "name", cell_text(x->name));
		output_key(o, "rule", cell_number(x->rule));
		output_key(o, "in_a", cell_flag(a != NULL));
		output_key(o, "in_b", cell_flag(b != NULL));
		output_key(o, "same_chain", cell_if(a && b, cell_flag(averages_same_chain(a, b))));
		output_close(o);
		return;
	}
	average_name(x, which, sizeof which);
	if (!a || !b)
		cli_say(d->c, STYLE_WARN, "Only %s has the average %s.", a ? "A" : "B", which);
	else if (strcmp(a->schedule, b->schedule) != 0)
		cli_say(d->c, STYLE_WARN, "Average %s has other schedules: %s; %s.", which,
			a->schedule, b->schedule);
	else if ((a->flags | b->flags) & AVERAGE_MIXED)
		cli_say(d->c, STYLE_WARN,
			"Average %s has parts with different chains in %s: they cannot be compared.",
			which,
			!(b->flags & AVERAGE_MIXED) ? "A"
			: a->flags & AVERAGE_MIXED  ? "both"
						    : "B");
	else if (!averages_same_chain(a, b))
		cli_say(d->c, STYLE_WARN,
			"Average %s has different chains: A: %s (%02x%02x%02x%02x); B: %s "
			"(%02x%02x%02x%02x).",
			which, averages_chain(d->a.ckpt, a, of_a, sizeof of_a), a->history[0],
			a->history[1], a->history[2], a->history[3],
			averages_chain(d->b.ckpt, b, of_b, sizeof of_b), b->history[0],
			b->history[1], b->history[2], b->history[3]);
}

static void put_averages(struct diff *d)
{
	const struct table *s = &d->a.ckpt->table, *t = &d->b.ckpt->table;

	if (d->c->o->machine)
		output_list(d->c->o, "averages", NULL, 0);
	for (uint32_t i = 0; i < s->naverage; i++)
		put_average(d, &s->average[i], average_find(t, &s->average[i]));
	for (uint32_t i = 0; i < t->naverage; i++)
		if (!average_find(s, &t->average[i]))
			put_average(d, NULL, &t->average[i]);
	if (d->c->o->machine)
		output_close(d->c->o);
}

static void diff_print(struct diff *d)
{
	struct output *o = d->c->o;
	const char *glob = d->c->value[OPT_TENSORS];

	output_key(o, "equal", cell_if(!diff_unknown(d), cell_flag(diff_equal(d))));
	output_key(o, "layouts_compared", cell_flag(d->layouts));
	output_key(o, "values_compared", cell_flag(d->values));
	output_key(o, "tensor_glob", cell_word(glob));
	put_side(o, "a", &d->a);
	put_side(o, "b", &d->b);
	output_key(o, "in_both_count", cell_count(d->found.nboth));
	output_key(o, "in_both_bytes", cell_bytes(d->found.both_bytes));
	output_key(o, "compared_by_reading_count", cell_count(d->found.nread));
	output_key(o, "mesh_differs", cell_flag(d->mesh_differs));
	output_key(o, "parts_differ", cell_flag(d->parts_differ));
	output_object(o, "counts");
	for (uint32_t k = 0; k < COMPARE_KINDS; k++)
		output_put(o, &(struct column){ kinds[k].key, NULL, false, FIT_WHOLE },
			   cell_count(d->found.count[k]));
	output_close(o);
	put_items(d);
	if (o->machine) {
		put_averages(d);
		return;
	}
	say_sides(d);
	for (uint32_t k = 0; k < COMPARE_KINDS; k++)
		say_kind(d, k);
	say_result(d);
	put_averages(d);
}

/* --- the verb --- */

static int diff_subjects(struct diff *d)
{
	struct ckpt_err err = { 0 };
	int rc = tensors_choose(d, &err);
	bool reads;

	if (rc)
		return cli_fail(d->c, rc, &err, "ckptctl show %s --tensors '*' lists them all",
				d->a.ref.path);
	rc = differences_find(d);
	reads = !rc && (d->values || (d->found.count[COMPARE_UNKNOWN] && !d->no_read));
	if (reads)
		output_line(d->c->o, "ckptd.diff/1", "summary");
	else
		output_begin(d->c->o, "ckptd.diff/1");
	if (reads)
		rc = contents_read(d, &err);
	if (rc == -EBADMSG || rc == -EPROTO)
		return cli_fail(d->c, rc, &err, "ckptctl verify --data %s %s lists every fault",
				d->a.ref.path, d->b.ref.path);
	if (rc == -ECANCELED)
		ckpt_error(&err, rc, "interrupted");
	if (rc)
		return cli_fail(d->c, rc, &err, NULL);
	diff_print(d);
	output_end(d->c->o);
	return diff_equal(d) ? CLI_OK : diff_unknown(d) ? CLI_WARNINGS : CLI_DIFFERS;
}

static int diff_run(struct cli *c)
{
	struct diff d = { .c = c,
			  .a.ref.step_fd = -1,
			  .b.ref.step_fd = -1,
			  .layouts = c->value[OPT_LAYOUTS] != NULL,
			  .values = c->value[OPT_VALUES] != NULL,
			  .no_read = c->value[OPT_NO_READ] != NULL };
	int code;

	if (c->narg < 2)
		return cli_usage(c, "ckptctl diff latest~1 latest", "diff takes two checkpoints");
	if (d.values && d.no_read)
		return cli_usage(c, NULL, "--values reads, and --no-read forbids it: give one");
	code = subject_get(c, c->arg[0], &d.a);
	code = cli_worse(code, subject_get(c, c->arg[1], &d.b));
	if (!code)
		code = diff_subjects(&d);
	compared_free(&d.found);
	free(d.in_a);
	free(d.in_b);
	subject_close(&d.a);
	subject_close(&d.b);
	return code;
}

const struct cli_verb verb_diff = {
	.name = "diff",
	.help = "compare two checkpoints",
	.synonyms = (const char *const[]){ "compare", NULL },
	.synopsis =
		(const char *const[]){ "A B [--tensors=GLOB] [--layouts] [--values | --no-read]",
				       NULL },
	.about =
		"Compares the names, shapes, dtypes and contents of all tensors and blobs. It "
		"compares contents by the fingerprints in the metadata. A fingerprint does not "
		"depend on how a tensor was cut, so diff reads no data and takes little time; "
		"verify --data checks the fingerprints. If one of the two has no fingerprint of a "
		"tensor, as in most foreign formats, diff reads that tensor from both and compares "
		"every bit; with --no-read it says that it is not known. Another mesh, layout, number of parts, "
		"step or job is shown but is no difference. With --layouts the first three of "
		"them are differences, and so is another declaration of a tensor.\n"
		"--values reads the tensors whose contents or dtypes differ and prints how many "
		"elements differ, how far apart they are, the first one, and NaNs. 0.0 and -0.0 "
		"differ in bits and so in contents, but their values are equal; NaN equals "
		"NaN.\n"
		"Pending reductions are compared by their operands. If A has operands and B has "
		"the reduced tensor or other operands, that is a difference of its own: --values "
		"reduces both and compares the results.\n"
		"A and B may be in different stores.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl diff latest~1 latest --tensors 'model/*'",
			  "what did training change?" },
			{ "ckptctl diff step:90 /mnt/copy/step-90", "is the copy the same?" },
			{ "ckptctl diff latest converted --values",
			  "and if not, how far apart are they?" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_TENSORS, "only tensors whose name, or component/name, matches" },
			{ OPT_LAYOUTS, "mesh, parts, layouts and roles count too" },
			{ OPT_VALUES, "read what differs: how many elements, how far apart" },
			{ OPT_NO_READ, "read no data: what has no fingerprint is not compared" },
			{ OPT_FROM, FROM_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 equal; 3 nothing differs, but not all was compared; 6 different; 4 one is damaged; 5 one is not committed; 10 there is no "
		"such store, checkpoint or tensor; 12 it cannot be read.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 2,
	.run = diff_run,
};
