/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_diff.c - ckptctl diff: do two checkpoints hold the same? Keys, shapes, dtypes and
 * fingerprints decide, all from metadata; --values reads what differs and says how far.
 * Invariant: all differences are found, counted and, for programs, listed; how the elements lie in
 * ranks and files is none, unless --layouts.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/average_seen.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/pairs.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/shown.h"
#include "ckpt/cli/subject.h"
#include "ckpt/table/operand.h"
#include <stdarg.h>

#define SAID_MAX 20u /* differences of a kind that a person is shown */
#define LINE_BYTES 1024
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

enum kind { ONLY_A, ONLY_B, SHAPE, DTYPE, OPERANDS, CONTENTS, UNKNOWN, LAYOUT, ROLE, KINDS };
static const struct {
	const char *key, *one, *many; /* "1 has another shape", "2 have another shape" */
} kinds[KINDS] = {
	[ONLY_A] = { "only_in_a", "is only in A", "are only in A" },
	[ONLY_B] = { "only_in_b", "is only in B", "are only in B" },
	[SHAPE] = { "shape", "has another shape", "have another shape" },
	[DTYPE] = { "dtype", "has another dtype", "have another dtype" },
	[OPERANDS] = { "operands", "has other operands of a pending reduction",
		       "have other operands of a pending reduction" },
	[CONTENTS] = { "contents", "has other contents", "have other contents" },
	[UNKNOWN] = { "unknown", "was not compared: a fingerprint is not known",
		      "were not compared: a fingerprint is not known" },
	[LAYOUT] = { "layout", "has another layout", "have another layout" },
	[ROLE] = { "role", "is declared differently", "are declared differently" },
};

struct item {
	enum kind kind;
	uint32_t a, b; /* tensors; TABLE_NONE */
	uint32_t pair; /* its values; TABLE_NONE: not compared */
};

struct diff {
	struct cli *c;
	struct subject a, b;
	bool *in_a, *in_b; /* [tensor] is it asked for */
	struct item *item;
	uint32_t nitem;
	uint32_t count[KINDS];
	uint32_t nboth;	     /* keys that both have */
	uint64_t both_bytes; /* of them, in A */
	bool layouts, values;
	bool mesh_differs, parts_differ;
	struct pair *pair;
	uint32_t npair;
};

/* --- finding --- */

static uint64_t tensor_bytes(const struct table_tensor *x)
{
	uint64_t bytes;

	return ckpt_mul(x->numel, x->elem_bytes, &bytes) ? UINT64_MAX : bytes;
}

static void add(struct diff *d, enum kind kind, uint32_t a, uint32_t b)
{
	d->item[d->nitem++] = (struct item){ .kind = kind, .a = a, .b = b, .pair = TABLE_NONE };
	d->count[kind]++;
}

static bool same_shape(const struct table_tensor *x, const struct table_tensor *y)
{
	uint64_t a[CKPT_DIMS_MAX], b[CKPT_DIMS_MAX];

	return x->ndim == y->ndim &&
	       !memcmp(shown_shape(x, a), shown_shape(y, b), x->ndim * sizeof *a);
}

static bool same_layout(const struct diff *d, const struct table_tensor *x,
			const struct table_tensor *y)
{
	if (x->layout == TABLE_NONE || y->layout == TABLE_NONE)
		return x->layout == y->layout;
	return table_layout_equal(&d->a.ckpt->table, x->layout, &d->b.ckpt->table, y->layout);
}

/* Has y's layout the PARTIALs of x's, by the names of the mesh dimensions? */
static bool has_partials(const struct table *s, const struct table_tensor *x, const struct table *t,
			 const struct table_tensor *y)
{
	const struct layout *l = &s->layout[x->layout], *m = &t->layout[y->layout];
	const struct mesh *p = &s->mesh[l->mesh], *q = &t->mesh[m->mesh];

	for (uint32_t i = 0; i < l->nplace; i++) {
		const struct ckpt_placement *a = &l->place[i];
		uint32_t k = 0;

		if (a->how != CKPT_PARTIAL)
			continue;
		while (k < m->nplace &&
		       (m->place[k].how != CKPT_PARTIAL || m->place[k].reduce != a->reduce ||
			p->dim[a->mesh_dim] != q->dim[m->place[k].mesh_dim] ||
			strcmp(p->name[a->mesh_dim], q->name[m->place[k].mesh_dim]) != 0))
			k++;
		if (k == m->nplace)
			return false;
	}
	return true;
}

/* Fingerprints of operands say nothing of others, nor of what comes of them. */
static bool same_operands(const struct table *s, const struct table_tensor *x,
			  const struct table *t, const struct table_tensor *y)
{
	bool a = operand_dims(s, x) != 0, b = operand_dims(t, y) != 0;

	if (!a || !b)
		return a == b;
	return has_partials(s, x, t, y) && has_partials(t, y, s, x);
}

/* At most three differences of a pair. */
static void compare(struct diff *d, uint32_t a, uint32_t b)
{
	const struct table_tensor *x = &d->a.ckpt->table.tensor[a],
				  *y = &d->b.ckpt->table.tensor[b];

	d->nboth++;
	d->both_bytes += tensor_bytes(x);
	if (!same_shape(x, y))
		add(d, SHAPE, a, b);
	else if (x->dtype != y->dtype)
		add(d, DTYPE, a, b);
	else if (!same_operands(&d->a.ckpt->table, x, &d->b.ckpt->table, y))
		add(d, OPERANDS, a, b);
	else if (x->fp_known && y->fp_known && x->fp != y->fp)
		add(d, CONTENTS, a, b);
	else if (!x->fp_known || !y->fp_known)
		add(d, UNKNOWN, a, b);
	if (!same_layout(d, x, y))
		add(d, LAYOUT, a, b);
	if (x->role != y->role || x->cls != y->cls || strcmp(x->of, y->of))
		add(d, ROLE, a, b);
}

static int find(struct diff *d)
{
	const struct table *a = &d->a.ckpt->table, *b = &d->b.ckpt->table;
	char mesh_a[LINE_BYTES], mesh_b[LINE_BYTES];

	d->item = calloc((size_t)3 * a->ntensor + b->ntensor + 1, sizeof *d->item);
	if (!d->item)
		return -ENOMEM;
	for (uint32_t i = 0; i < a->ntensor; i++) {
		const struct table_tensor *x = &a->tensor[i];
		uint32_t j = table_find(b, x->component, x->name, x->rank);

		if (d->in_a[i] && j == TABLE_NONE)
			add(d, ONLY_A, i, TABLE_NONE);
		else if (d->in_a[i])
			compare(d, i, j);
	}
	for (uint32_t j = 0; j < b->ntensor; j++) {
		const struct table_tensor *y = &b->tensor[j];

		if (d->in_b[j] && table_find(a, y->component, y->name, y->rank) == TABLE_NONE)
			add(d, ONLY_B, TABLE_NONE, j);
	}
	d->mesh_differs = strcmp(subject_mesh(a, mesh_a, sizeof mesh_a),
				 subject_mesh(b, mesh_b, sizeof mesh_b)) != 0;
	d->parts_differ = d->a.ckpt->nfile != d->b.ckpt->nfile;
	return 0;
}

/* Is it a difference by what was asked for? */
static bool counts(const struct diff *d, enum kind kind)
{
	return (kind != LAYOUT && kind != ROLE) || d->layouts;
}

static bool equal(const struct diff *d)
{
	for (uint32_t k = 0; k < KINDS; k++)
		if (d->count[k] && counts(d, k))
			return false;
	return !d->layouts || (!d->mesh_differs && !d->parts_differ);
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
		rc = subject_glob(k, glob, &id, &n, err);
	else
		memset(*ret, true, k->table.ntensor);
	for (uint32_t i = 0; !rc && i < n; i++)
		(*ret)[id[i]] = true;
	*ret_n = n;
	return rc;
}

/* What --tensors means in the two: it must mean something in one of them. */
static int choose(struct diff *d, struct ckpt_err *err)
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

/* --- values --- */

/* Two of which an element of one holds more values than one of the other (dtype_values) lie in
 * bytes that windows cut differently: that they differ in dtype is all that is said. */
static bool comparable(const struct diff *d, const struct item *x)
{
	if (x->kind != CONTENTS && x->kind != DTYPE && x->kind != OPERANDS)
		return false;
	return dtype_values(d->a.ckpt->table.tensor[x->a].dtype) ==
	       dtype_values(d->b.ckpt->table.tensor[x->b].dtype);
}

static int read_values(struct diff *d, struct ckpt_err *err)
{
	struct progress progress;
	int rc;

	d->pair = calloc((size_t)d->nitem + 1, sizeof *d->pair);
	if (!d->pair)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->nitem; i++) {
		struct item *x = &d->item[i];

		if (!comparable(d, x))
			continue;
		x->pair = d->npair;
		d->pair[d->npair++] = (struct pair){ .a = x->a, .b = x->b };
	}
	progress_begin(&progress, d->c,
		       pairs_bytes(&d->a.ckpt->table, &d->b.ckpt->table, d->pair, d->npair),
		       "comparing %u tensor%s", d->npair, d->npair == 1 ? "" : "s");
	rc = pairs_compare(&d->a, &d->b, d->pair, d->npair, progress_tick, &progress, err);
	progress_end(&progress);
	return rc;
}

/* --- telling: the two --- */

#define KEY(name, key) static const struct column name = { key, NULL, false, FIT_WHOLE }
KEY(f_equal, "equal");
KEY(f_layouts, "layouts_compared");
KEY(f_values, "values_compared");
KEY(f_tensors, "tensor_glob");
KEY(f_both, "in_both_count");
KEY(f_both_bytes, "in_both_bytes");
KEY(f_mesh_differs, "mesh_differs");
KEY(f_parts_differ, "parts_differ");
KEY(f_path, "path");
KEY(f_job, "job");
KEY(f_step, "step");
KEY(f_id, "id");
KEY(f_world, "world_size");
KEY(f_mesh, "mesh");
KEY(f_parts, "part_count");
KEY(f_bytes, "bytes");
KEY(f_format, "format");
KEY(f_count, "tensor_count");

static void put_side(struct output *o, const char *key, const struct subject *s)
{
	const struct checkpoint *k = s->ckpt;
	char mesh[LINE_BYTES];

	output_object(o, key);
	output_put(o, &f_path, cell_text(s->ref.path));
	output_put(o, &f_job, cell_word(k->job));
	output_put(o, &f_step, cell_of(CELL_NUMBER, k->step));
	output_put(o, &f_id, k->id[0] ? cell_text(k->id) : cell_none());
	output_put(o, &f_world, cell_of(CELL_COUNT, k->world));
	output_put(o, &f_mesh, cell_word(subject_mesh(&k->table, mesh, sizeof mesh)));
	output_put(o, &f_parts, cell_of(CELL_COUNT, k->nfile));
	output_put(o, &f_bytes, cell_of(CELL_BYTES, k->stored_bytes));
	output_put(o, &f_format, cell_text(s->format->name));
	output_put(o, &f_count, cell_of(CELL_COUNT, k->table.ntensor));
	output_close(o);
}

enum { COL_WHAT, COL_A, COL_B, COL_SIDES };
static const struct column sides[COL_SIDES] = { { NULL, "", false, FIT_WHOLE },
						{ NULL, "A", false, FIT_THEN },
						{ NULL, "B", false, FIT_THEN } };

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
	output_row(o);
	output_put(o, &sides[COL_WHAT], cell_styled(cell_text(what), STYLE_DIM));
	output_put(o, &sides[COL_A], cell_styled(cell_text(line), same ? STYLE_DIM : STYLE_PLAIN));
	output_put(o, &sides[COL_B], cell_styled(cell_text(b), same ? STYLE_DIM : STYLE_PLAIN));
	output_close(o);
}

static void say_sides(struct diff *d)
{
	const struct checkpoint *a = d->a.ckpt, *b = d->b.ckpt;
	struct output *o = d->c->o;
	char ma[LINE_BYTES], mb[LINE_BYTES], sa[HUMAN_BYTES], sb[HUMAN_BYTES];

	output_list(o, NULL, sides, COL_SIDES);
	say_row(o, "path", "%s\n%s", d->a.ref.path, d->b.ref.path);
	say_row(o, "job", "%s\n%s", a->job, b->job);
	say_row(o, "step", "%llu\n%llu", (unsigned long long)a->step, (unsigned long long)b->step);
	say_row(o, "mesh", "%s\n%s", subject_mesh(&a->table, ma, sizeof ma),
		subject_mesh(&b->table, mb, sizeof mb));
	say_row(o, "parts", "%u\n%u", a->nfile, b->nfile);
	say_row(o, "size", "%s\n%s", human_bytes(a->stored_bytes, sa),
		human_bytes(b->stored_bytes, sb));
	output_close(o);
}

/* --- telling: one difference --- */

KEY(i_kind, "kind");
KEY(i_component, "component");
KEY(i_name, "name");
KEY(i_rank, "rank");
KEY(i_a, "a");
KEY(i_b, "b");
KEY(i_dtype, "dtype");
KEY(i_shape, "shape");
KEY(i_layout, "layout");
KEY(i_mesh, "mesh");
KEY(i_role, "role");
KEY(i_class, "class");
KEY(i_of, "of");
KEY(i_fp, "fingerprint");
KEY(i_values, "values");
KEY(v_elements, "elements");
KEY(v_bits, "bits_differ_count");
KEY(v_values, "values_differ_count");
KEY(v_delta, "max_abs_delta");
KEY(v_nonfinite, "nonfinite_differ_count");
KEY(v_first, "first_index");
KEY(v_nan_a, "nan_count_a");
KEY(v_nan_b, "nan_count_b");

static void put_tensor(struct output *o, const struct column *col, const struct table *t,
		       uint32_t id)
{
	const struct table_tensor *x = &t->tensor[id];
	char layout[LINE_BYTES], mesh[LINE_BYTES] = "";
	uint64_t shape[CKPT_DIMS_MAX];

	if (x->layout != TABLE_NONE)
		mesh_print(&t->mesh[t->layout[x->layout].mesh], mesh, sizeof mesh);
	output_object(o, col->key);
	output_put(o, &i_dtype, cell_text(dtype_name(x->dtype)));
	output_put(o, &i_shape, cell_shape(x->ndim, shown_shape(x, shape)));
	output_put(o, &i_fp, x->fp_known ? cell_of(CELL_FINGERPRINT, x->fp) : cell_none());
	output_put(o, &i_layout,
		   x->layout == TABLE_NONE
			   ? cell_none()
			   : cell_text(table_layout_print(t, x->layout, layout, sizeof layout)));
	output_put(o, &i_mesh, *mesh ? cell_text(mesh) : cell_none());
	output_put(o, &i_role, cell_text(role_name(x->role)));
	output_put(o, &i_class, cell_text(class_name(x->cls)));
	output_put(o, &i_of, x->of[0] ? cell_text(x->of) : cell_none());
	output_close(o);
}

static void put_values(struct output *o, const struct apart *v)
{
	bool same = v->dtype_a == v->dtype_b;

	output_object(o, i_values.key);
	output_put(o, &v_elements, cell_of(CELL_COUNT, v->count));
	output_put(o, &v_bits, same ? cell_of(CELL_COUNT, v->bits) : cell_none());
	output_put(o, &v_values, cell_of(CELL_COUNT, v->values));
	output_put(o, &v_delta, cell_real(v->max_delta));
	output_put(o, &v_nonfinite, cell_of(CELL_COUNT, v->nonfinite));
	output_put(o, &v_first, v->has_first ? cell_shape(v->ndim, v->first) : cell_none());
	output_put(o, &v_nan_a, cell_of(CELL_COUNT, v->nan_a));
	output_put(o, &v_nan_b, cell_of(CELL_COUNT, v->nan_b));
	output_close(o);
}

static const struct table_tensor *tensor_of(const struct diff *d, const struct item *x)
{
	return x->a != TABLE_NONE ? &d->a.ckpt->table.tensor[x->a] : &d->b.ckpt->table.tensor[x->b];
}

static void put_items(struct diff *d)
{
	struct output *o = d->c->o;

	output_list(o, "differences", NULL, 0);
	for (uint32_t i = 0; o->machine && i < d->nitem; i++) {
		const struct item *x = &d->item[i];
		const struct table_tensor *t = tensor_of(d, x);

		if (!counts(d, x->kind))
			continue;
		output_row(o);
		output_put(o, &i_kind, cell_text(kinds[x->kind].key));
		output_put(o, &i_component, cell_text(t->component));
		output_put(o, &i_name, cell_text(t->name));
		output_put(o, &i_rank, cell_unless(CELL_NUMBER, t->rank, TABLE_NONE));
		if (x->a == TABLE_NONE)
			output_put(o, &i_a, cell_none());
		else
			put_tensor(o, &i_a, &d->a.ckpt->table, x->a);
		if (x->b == TABLE_NONE)
			output_put(o, &i_b, cell_none());
		else
			put_tensor(o, &i_b, &d->b.ckpt->table, x->b);
		if (x->pair == TABLE_NONE)
			output_put(o, &i_values, cell_none());
		else
			put_values(o, &d->pair[x->pair].compare);
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
	output_put(o, &item_columns[T_FIRST],
		   v->has_first ? cell_shape(v->ndim, v->first) : cell_none());
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
static void say_two(const struct diff *d, const struct item *x)
{
	const struct table *ta = &d->a.ckpt->table, *tb = &d->b.ckpt->table;
	const struct table_tensor *a = &ta->tensor[x->a], *b = &tb->tensor[x->b];
	char wa[LINE_BYTES], wb[LINE_BYTES], sa[LINE_BYTES], sb[LINE_BYTES];
	uint64_t shape[CKPT_DIMS_MAX];

	switch (x->kind) {
	case SHAPE:
		snprintf(wa, sizeof wa, "%s %.800s", dtype_name(a->dtype),
			 human_shape(a->ndim, shown_shape(a, shape), sa, sizeof sa));
		snprintf(wb, sizeof wb, "%s %.800s", dtype_name(b->dtype),
			 human_shape(b->ndim, shown_shape(b, shape), sb, sizeof sb));
		break;
	case DTYPE:
		snprintf(wa, sizeof wa, "%s", dtype_name(a->dtype));
		snprintf(wb, sizeof wb, "%s", dtype_name(b->dtype));
		break;
	case CONTENTS:
	case UNKNOWN:
		print_print(a, wa, sizeof wa);
		print_print(b, wb, sizeof wb);
		break;
	case OPERANDS:
	case LAYOUT:
		layout_print(ta, a, wa, sizeof wa);
		layout_print(tb, b, wb, sizeof wb);
		break;
	case ROLE:
		snprintf(wa, sizeof wa, "%s %s %.500s", role_name(a->role), class_name(a->cls),
			 a->of);
		snprintf(wb, sizeof wb, "%s %s %.500s", role_name(b->role), class_name(b->cls),
			 b->of);
		break;
	case ONLY_A:
	case ONLY_B:
	case KINDS:
		return;
	}
	output_put(d->c->o, &item_columns[T_A], cell_text(wa));
	output_put(d->c->o, &item_columns[T_B], cell_text(wb));
}

static void say_item(const struct diff *d, const struct item *x)
{
	struct output *o = d->c->o;
	const struct table_tensor *t = tensor_of(d, x);
	char name[NAME_BYTES];
	uint64_t shape[CKPT_DIMS_MAX];
	bool only = x->kind == ONLY_A || x->kind == ONLY_B;

	output_row(o);
	output_put(o, &item_columns[T_TENSOR], cell_text(table_tensor_print(t, name, sizeof name)));
	if (only || x->kind == CONTENTS)
		output_put(o, &item_columns[T_DTYPE], cell_text(dtype_name(t->dtype)));
	if (only || x->kind == CONTENTS || x->kind == DTYPE)
		output_put(o, &item_columns[T_SHAPE], cell_shape(t->ndim, shown_shape(t, shape)));
	if (only)
		output_put(o, &item_columns[T_SIZE], cell_of(CELL_BYTES, tensor_bytes(t)));
	if (x->pair == TABLE_NONE || x->kind == DTYPE || x->kind == OPERANDS)
		say_two(d, x);
	if (x->pair != TABLE_NONE)
		say_values(o, &d->pair[x->pair].compare);
	output_close(o);
}

static const char *words(const struct diff *d, enum kind kind)
{
	return d->count[kind] == 1 ? kinds[kind].one : kinds[kind].many;
}

static void say_kind(struct diff *d, enum kind kind)
{
	char n[HUMAN_BYTES], more[HUMAN_BYTES];
	uint32_t said = 0;

	if (!d->count[kind] || !counts(d, kind))
		return;
	cli_say(d->c, STYLE_PLAIN, "%s", "");
	cli_say(d->c, STYLE_STRONG, "%s %s", human_count(d->count[kind], n), words(d, kind));
	output_list(d->c->o, NULL, item_columns, T_COUNT);
	for (uint32_t i = 0; i < d->nitem && said < SAID_MAX; i++)
		if (d->item[i].kind == kind) {
			say_item(d, &d->item[i]);
			said++;
		}
	output_close(d->c->o);
	if (said < d->count[kind])
		cli_say(d->c, STYLE_DIM, "and %s more: --json lists all",
			human_count(d->count[kind] - said, more));
}

/* --- telling: the result --- */

static bool lone_blobs(const struct diff *d)
{
	for (uint32_t i = 0; i < d->nitem; i++)
		if ((d->item[i].kind == ONLY_A || d->item[i].kind == ONLY_B) &&
		    tensor_of(d, &d->item[i])->rank != TABLE_NONE)
			return true;
	return false;
}

static void say_different(struct diff *d)
{
	char line[LINE_BYTES], n[HUMAN_BYTES];
	size_t len = 0;

	for (uint32_t k = 0; k < KINDS; k++)
		if (d->count[k] && counts(d, k))
			len += (size_t)snprintf(line + len, sizeof line - len, "%s%s %s",
						len ? ", " : "", human_count(d->count[k], n),
						words(d, k));
	if (d->layouts && d->mesh_differs)
		len += (size_t)snprintf(line + len, sizeof line - len, "%sthe meshes differ",
					len ? ", " : "");
	if (d->layouts && d->parts_differ)
		snprintf(line + len, sizeof line - len, "%sthe numbers of parts differ",
			 len ? ", " : "");
	cli_mark(d->c, STYLE_WARN, "different", 2, ": %s; %s %s in both", line,
		 human_count(d->nboth, n),
		 d->nboth == 1 ? "tensor or blob is" : "tensors and blobs are");
	if (lone_blobs(d))
		cli_say(d->c, STYLE_DIM,
			"If only one checkpoint has a rank's blob, that is a difference: it is "
			"that rank's own data on any mesh.");
}

static void say_result(struct diff *d)
{
	char n[HUMAN_BYTES], bytes[HUMAN_BYTES];
	bool same = equal(d);

	cli_say(d->c, STYLE_PLAIN, "%s", "");
	if (same)
		cli_mark(d->c, STYLE_GOOD, "equal", 2,
			 ": %s %s, %s, %s the same names, shapes, dtypes%s and "
			 "fingerprints",
			 human_count(d->nboth, n),
			 d->nboth == 1 ? "tensor or blob" : "tensors and blobs",
			 human_bytes(d->both_bytes, bytes), d->nboth == 1 ? "has" : "have",
			 d->layouts ? ", layouts" : "");
	else
		say_different(d);
	if (!d->layouts && d->count[LAYOUT])
		cli_say(d->c, STYLE_DIM, "%s %s: no difference without --layouts.",
			human_count(d->count[LAYOUT], n), words(d, LAYOUT));
	if (same)
		cli_hint(d->c,
			 "No data was read: the fingerprints are in the metadata; ckptctl verify "
			 "--data checks them.");
	else if (!d->values && d->count[OPERANDS])
		cli_hint(d->c, "Fingerprints do not show whether the operands reduce to the same "
			       "values: --values reduces and compares them.");
	else if (!d->values && (d->count[CONTENTS] || d->count[DTYPE]))
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
	static const struct column name = { "name", NULL, false, FIT_WHOLE },
				   rule = { "rule", NULL, true, FIT_WHOLE },
				   in_a = { "in_a", NULL, false, FIT_WHOLE },
				   in_b = { "in_b", NULL, false, FIT_WHOLE },
				   same = { "same_chain", NULL, false, FIT_WHOLE };
	const struct table_average *x = a ? a : b;
	char who[160], of_a[300], of_b[300];
	struct output *o = d->c->o;

	if (o->machine) {
		output_row(o);
		output_put(o, &name, cell_text(x->name));
		output_put(o, &rule, cell_of(CELL_NUMBER, x->rule));
		output_put(o, &in_a, cell_of(CELL_FLAG, a != NULL));
		output_put(o, &in_b, cell_of(CELL_FLAG, b != NULL));
		output_put(o, &same,
			   a && b ? cell_of(CELL_FLAG, averages_same_chain(a, b)) : cell_none());
		output_close(o);
		return;
	}
	average_name(x, who, sizeof who);
	if (!a || !b)
		cli_say(d->c, STYLE_WARN, "Only %s has the average %s.", a ? "A" : "B", who);
	else if (strcmp(a->schedule, b->schedule) != 0)
		cli_say(d->c, STYLE_WARN, "Average %s has other schedules: %s; %s.", who,
			a->schedule, b->schedule);
	else if ((a->flags | b->flags) & AVERAGE_MIXED)
		cli_say(d->c, STYLE_WARN,
			"Average %s has parts with different chains in %s: they cannot be compared.",
			who,
			!(b->flags & AVERAGE_MIXED) ? "A"
			: a->flags & AVERAGE_MIXED  ? "both"
						    : "B");
	else if (!averages_same_chain(a, b))
		cli_say(d->c, STYLE_WARN,
			"Average %s has different chains: A: %s (%02x%02x%02x%02x); B: %s "
			"(%02x%02x%02x%02x).",
			who, averages_chain(d->a.ckpt, a, of_a, sizeof of_a), a->history[0],
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

static void tell(struct diff *d)
{
	struct output *o = d->c->o;
	const char *glob = d->c->value[OPT_TENSORS];

	output_put(o, &f_equal, cell_of(CELL_FLAG, equal(d)));
	output_put(o, &f_layouts, cell_of(CELL_FLAG, d->layouts));
	output_put(o, &f_values, cell_of(CELL_FLAG, d->values));
	output_put(o, &f_tensors, glob ? cell_text(glob) : cell_none());
	put_side(o, "a", &d->a);
	put_side(o, "b", &d->b);
	output_put(o, &f_both, cell_of(CELL_COUNT, d->nboth));
	output_put(o, &f_both_bytes, cell_of(CELL_BYTES, d->both_bytes));
	output_put(o, &f_mesh_differs, cell_of(CELL_FLAG, d->mesh_differs));
	output_put(o, &f_parts_differ, cell_of(CELL_FLAG, d->parts_differ));
	output_object(o, "counts");
	for (uint32_t k = 0; k < KINDS; k++)
		output_put(o, &(struct column){ kinds[k].key, NULL, false, FIT_WHOLE },
			   cell_of(CELL_COUNT, d->count[k]));
	output_close(o);
	put_items(d);
	if (o->machine) {
		put_averages(d);
		return;
	}
	say_sides(d);
	for (uint32_t k = 0; k < KINDS; k++)
		say_kind(d, k);
	say_result(d);
	put_averages(d);
}

/* --- the verb --- */

static int diff(struct diff *d)
{
	struct ckpt_err err = { 0 };
	int rc = choose(d, &err);

	if (rc)
		return cli_fail(d->c, rc, &err, "ckptctl show %s --tensors '*' lists them all",
				d->a.ref.path);
	if (d->values)
		output_line(d->c->o, "ckptd.diff/1", "summary");
	else
		output_begin(d->c->o, "ckptd.diff/1");
	rc = find(d);
	if (!rc && d->values)
		rc = read_values(d, &err);
	if (rc == -EBADMSG || rc == -EPROTO)
		return cli_fail(d->c, rc, &err, "ckptctl verify --data %s %s lists every fault",
				d->a.ref.path, d->b.ref.path);
	if (rc == -ECANCELED)
		ckpt_error(&err, rc, "interrupted");
	if (rc)
		return cli_fail(d->c, rc, &err, NULL);
	tell(d);
	output_end(d->c->o);
	return equal(d) ? CLI_OK : CLI_DIFFERS;
}

static int run(struct cli *c)
{
	struct diff d = { .c = c,
			  .a.ref.step_fd = -1,
			  .b.ref.step_fd = -1,
			  .layouts = c->value[OPT_LAYOUTS] != NULL,
			  .values = c->value[OPT_VALUES] != NULL };
	struct ckpt_err err = { 0 };
	int code;

	if (c->narg < 2)
		return cli_fail(c, ckpt_error(&err, -EINVAL, "diff takes two checkpoints"), &err,
				"ckptctl diff latest~1 latest");
	code = subject_get(c, c->arg[0], &d.a);
	code = cli_worse(code, subject_get(c, c->arg[1], &d.b));
	if (!code)
		code = diff(&d);
	free(d.pair);
	free(d.item);
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
	.synopsis = (const char *const[]){ "A B [--tensors=GLOB] [--layouts] [--values]", NULL },
	.about = "Compares the names, shapes, dtypes and contents of all tensors and blobs. It "
		 "compares contents by the fingerprints in the metadata. A fingerprint does not "
		 "depend on how a tensor was cut, so diff reads no data and takes little time; "
		 "verify --data checks the fingerprints. Another mesh, layout, number of parts, "
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
			{ OPT_NONE, NULL },
		},
	.exits = "0 equal; 6 different; 4 one is damaged; 5 one is not committed; 10 there is no "
		 "such store, checkpoint or tensor; 12 it cannot be read.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 2,
	.run = run,
};
