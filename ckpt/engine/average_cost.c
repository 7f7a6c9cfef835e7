/* SPDX-License-Identifier: Apache-2.0 */
/* average_cost.c - see average_cost.h. Called by verb_plan.c. Invariant: no element is counted for
 * two ranks. */
#include "ckpt/engine/average_cost.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/table/target.h"

struct costing {
	const struct table *t;
	const struct ema_spec *spec;
	uint32_t *master; /* [ntensor] of a parameter; TABLE_NONE */
	bool *stands;	  /* [ntensor] a master whose parameter nobody declares */
	uint64_t *rank;	  /* [world] bytes */
	uint32_t ntensor;
	bool (*stopped)(void);
	struct ckpt_errlist list;
};

static void masters_find(struct costing *k)
{
	const struct table *t = k->t;

	for (uint32_t i = 0; i < t->ntensor; i++)
		k->master[i] = TABLE_NONE;
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];
		uint32_t of = table_find_key(t, x->of);

		if (k->spec->source != EMA_MASTER || !averages_is_master(x))
			continue;
		if (of == TABLE_NONE || of == i)
			k->stands[i] = true;
		else if (table_shape_same(x, &t->tensor[of]))
			k->master[of] = i;
	}
}

/* The tensor of which tensor i's average is made; TABLE_NONE: none is. */
static uint32_t source_of(struct costing *k, uint32_t i)
{
	const struct table_tensor *x = &k->t->tensor[i];
	bool master = k->master[i] != TABLE_NONE;
	uint32_t from = master ? k->master[i] : i;
	char of[CKPT_NAME_MAX + 1];
	/* Its master speaks for it: frozen or not, and of whatever dtype. */
	const struct ema_subject subject =
		averages_subject(&k->t->tensor[from], master || k->stands[i], of);

	if (x->made || !x->numel || ema_spec_judge(k->spec, &subject).act != EMA_AVERAGE)
		return TABLE_NONE;
	if (!ema_can_average(k->t->tensor[from].dtype)) {
		ckpt_errlist_add(&k->list, "%s/%s: %s elements cannot be averaged", x->component,
				 x->name, dtype_name(k->t->tensor[from].dtype));
		return TABLE_NONE;
	}
	return from;
}

static int tensor_count(struct costing *k, uint32_t from, struct ckpt_err *err)
{
	static const struct layout whole;
	const struct table *t = k->t;
	const struct mesh *m = &t->mesh[0];
	const struct table_tensor *x = &t->tensor[from], *as = table_owned_as(t, x);
	const struct layout *l = x->layout == TABLE_NONE ? &whole : &t->layout[x->layout];
	uint64_t each = sizeof(float) * (k->spec->kahan ? 2 : 1);
	int rc = 0;

	k->ntensor++;
	for (uint32_t r = 0; r < m->nrank && !rc; r++) {
		uint32_t coord[CKPT_DIMS_MAX];
		struct arena a = { 0 };
		struct indexset set;

		(void)mesh_coord(m, r, coord);
		rc = layout_owned(m, l, x->ndim, x->shape, coord, as->elem_bytes, as->component,
				  as->name, &a, &set);
		if (rc)
			rc = ckpt_error(err, rc, "%s/%s: its share cannot be computed",
					x->component, x->name);
		else
			k->rank[r] += set.numel * each;
		arena_free(&a);
	}
	return k->stopped && k->stopped() ? ckpt_error(err, -ECANCELED, "interrupted") : rc;
}

static int costs_count(struct costing *k, struct ckpt_err *err)
{
	int rc = 0;

	masters_find(k);
	for (uint32_t i = 0; i < k->t->ntensor && !rc; i++) {
		uint32_t from = source_of(k, i);

		if (from != TABLE_NONE)
			rc = tensor_count(k, from, err);
	}
	k->list.code = -EMEDIUMTYPE;
	return rc ? rc
		  : ckpt_errlist_end(&k->list, err, "the spec averages what cannot be averaged");
}

static int spec_take(const char *text, struct ema_spec **ret, char **canonical,
		     struct ckpt_err *err)
{
	struct ckpt_errlist wrong = { .code = -EINVAL };
	char buf[EMA_SPEC_BYTES];
	int rc = ema_spec_parse(text, ret, err);

	if (rc)
		return rc;
	ema_spec_check(*ret, "plan", &wrong);
	rc = ckpt_errlist_end(&wrong, err, "--average=%.200s cannot be", text);
	ckpt_errlist_free(&wrong);
	if (!rc)
		rc = ema_spec_print(*ret, 0, buf);
	*canonical = rc ? NULL : strdup(buf);
	return rc ? rc : *canonical ? 0 : -ENOMEM;
}

int average_cost(const struct table *target, const char *spec, bool (*stopped)(void),
		 struct average_cost *ret, struct ckpt_err *err)
{
	struct costing k = { .t = target, .stopped = stopped };
	struct ema_spec *s = NULL;
	int rc;

	*ret = (struct average_cost){ 0 };
	rc = spec_take(spec, &s, &ret->canonical, err);
	k.spec = s;
	k.master = calloc((size_t)target->ntensor + 1, sizeof *k.master);
	k.stands = calloc((size_t)target->ntensor + 1, sizeof *k.stands);
	k.rank = calloc((size_t)target_world(target) + 1, sizeof *k.rank);
	if (!rc && (!k.master || !k.stands || !k.rank))
		rc = ckpt_error(err, -ENOMEM, "out of memory for the cost of an average");
	if (!rc)
		rc = costs_count(&k, err);
	for (uint32_t r = 0; r < target_world(target) && !rc; r++) {
		ret->bytes += k.rank[r];
		ret->most = MAX(ret->most, k.rank[r]);
	}
	ret->ntensor = k.ntensor;
	ema_spec_free(s);
	ckpt_errlist_free(&k.list);
	free(k.master);
	free(k.stands);
	free(k.rank);
	return rc;
}
