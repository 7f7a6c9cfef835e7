/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selection.c - see selection.h. Called by export.
 * Invariant: an averaged model has every tensor that its spec averages or copies, or there is none.
 */
#include "ckpt/engine/selection.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/engine/named.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define LISTED 8u /* components that an error names */

struct choosing {
	const struct checkpoint *ckpt;
	const struct table *t; /* of it */
	bool *take;	       /* [ntensor] */
	/* The component that a tensor of an average gets (as_model); NULL: it keeps its own.
	 * [ntensor] */
	const char **component;
	struct selection *x;
	struct ckpt_errlist list;
	struct ckpt_err *err;
};

static bool is_averages(const char *component)
{
	return !strncmp(component, AVERAGES_COMPONENT, strlen(AVERAGES_COMPONENT));
}

/* Of its name, the record of the whole; NULL. */
static const struct table_average *average_of(const struct table *t, const char *component)
{
	for (uint32_t i = 0; is_averages(component) && i < t->naverage; i++)
		if (!t->average[i].rule &&
		    !strcmp(t->average[i].name, component + strlen(AVERAGES_COMPONENT)))
			return &t->average[i];
	return NULL;
}

static bool has_component(const struct table *t, const char *component)
{
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (!strcmp(t->tensor[i].component, component))
			return true;
	return false;
}

/* "model, optim, ema.fast": those that there are, as many as are worth reading. */
static void components_print(const struct table *t, char *buf, size_t bytes)
{
	uint32_t n = 0;

	*buf = 0;
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const char *x = t->tensor[i].component;
		bool known = false;

		for (uint32_t j = i; j-- > 0 && !known;)
			known = !strcmp(t->tensor[j].component, x);
		if (known)
			continue;
		if (n++ == LISTED) {
			snprintf(buf + strlen(buf), bytes - strlen(buf), ", ...");
			return;
		}
		snprintf(buf + strlen(buf), bytes - strlen(buf), "%s%.100s", n > 1 ? ", " : "",
			 *x ? x : "\"\"");
	}
}

static void missing_say(struct choosing *k, const struct selection_of *of,
			const struct table_tensor *x)
{
	const char *name =
		x->role == CKPT_MASTER && strchr(x->of, '/') ? strchr(x->of, '/') + 1 : x->name;
	char key[TABLE_KEY_BYTES];

	ckpt_errlist_add(&k->list, "%s/%s: there is no such tensor, and the average is of %s",
			 of->component, name, table_key(x, key));
}

/* The tensors of an averaged model: those of the step itself are taken, the averaged ones must be
 * there. */
static int take_average(struct choosing *k, struct selection_of *of)
{
	const struct table_average *a = of->average;
	struct ema_spec *spec = NULL;
	char key[TABLE_KEY_BYTES];
	int rc = ema_spec_parse(a->schedule, &spec, k->err);

	if (rc == -EINVAL)
		return ckpt_newer(k->err,
				  "the rules of average %s, \"%.300s\", so it is not known which "
				  "tensors it copies (without --only export writes those that it "
				  "averages, as %s/...)",
				  a->name, a->schedule, of->component);
	for (uint32_t i = 0; !rc && i < k->t->ntensor; i++) {
		const struct table_tensor *x = &k->t->tensor[i];
		uint32_t made;

		switch (average_part_of(k->t, spec, of->component, i, &made)) {
		case AVERAGE_NOT:
			break;
		case AVERAGE_COPIED:
			if (MUTANT(ONLY_WITHOUT_COPIED))
				break;
			k->take[i] = true;
			of->ncopied++;
			of->copied = of->copied ? of->copied
						: arena_str(&k->x->arena, table_key(x, key));
			break;
		case AVERAGE_IS_MADE:
			if (MUTANT(ONLY_RAW)) {
				k->take[made] = false;
				k->take[i] = true;
			}
			if (k->component && !averages_is_master(x))
				k->component[made] = x->component;
			break;
		case AVERAGE_MISSING:
			missing_say(k, of, x);
			break;
		}
	}
	ema_spec_free(spec);
	return rc;
}

/* A master without a declared parameter was averaged under its own name. */
static int component_of_master(struct choosing *k, uint32_t i)
{
	const char *of = k->t->tensor[i].of;
	const char *slash = strchr(of, '/');
	size_t n = slash ? (size_t)(slash - of) : 0;
	char *s;

	if (!k->component || k->component[i])
		return 0;
	s = arena_alloc(&k->x->arena, n + 1);
	if (!s)
		return -ENOMEM;
	memcpy(s, of, n);
	s[n] = 0;
	k->component[i] = s;
	return 0;
}

/* The tensors that a glob means, as convert's --only takes it. */
static int take_glob(struct choosing *k, struct selection_of *of)
{
	cleanup_free uint32_t *id = NULL;
	int rc = named_glob(k->ckpt, of->component, &id, &of->ntensor, k->err);

	of->glob = true;
	for (uint32_t i = 0; !rc && i < of->ntensor; i++)
		k->take[id[i]] = true;
	return rc;
}

static int take_component(struct choosing *k, struct selection_of *of)
{
	int rc = 0;

	if (of->glob)
		return 0;
	of->average = average_of(k->t, of->component);
	for (uint32_t i = 0; i < k->t->ntensor; i++)
		if (!strcmp(k->t->tensor[i].component, of->component)) {
			k->take[i] = true;
			of->ntensor++;
		}
	if (!of->average)
		return 0;
	rc = take_average(k, of);
	for (uint32_t i = 0; !rc && i < k->t->ntensor; i++)
		if (!strcmp(k->t->tensor[i].component, of->component))
			rc = component_of_master(k, i);
	return rc;
}

/* The components and tensors that are named. The error lists all that the step lacks. */
static int selection_find(struct choosing *k, const char *const *name, uint32_t n)
{
	struct selection *x = k->x;
	char have[1200];
	int rc = 0;

	for (uint32_t i = 0; i < n; i++) {
		struct selection_of *of;
		bool again = false;

		for (uint32_t j = 0; j < x->n && !again; j++)
			again = !strcmp(x->of[j].component, name[i]);
		if (again)
			continue;
		if (x->n == SELECTION_MAX)
			return ckpt_error(k->err, -EINVAL, "--only was given more than %u times",
					  SELECTION_MAX);
		of = &x->of[x->n++];
		of->component = name[i];
		if (has_component(k->t, name[i]) || average_of(k->t, name[i]))
			continue;
		rc = take_glob(k, of);
		if (rc && rc != -ENOENT)
			return rc;
		if (rc)
			ckpt_errlist_add(&k->list, "--only=%s: there is no such component",
					 name[i]);
		rc = 0;
	}
	if (k->list.n) {
		components_print(k->t, have, sizeof have);
		k->list.code = -EINVAL;
		return ckpt_errlist_end(
			&k->list, k->err,
			strcmp(have, "\"\"") != 0
				? "the checkpoint's components are %s"
				: "the checkpoint's tensors have no components (%s)",
			have);
	}
	for (uint32_t i = 0; i < x->n && !rc; i++)
		rc = take_component(k, &x->of[i]);
	k->list.code = -EMEDIUMTYPE;
	return rc ? rc
		  : ckpt_errlist_end(
			    &k->list, k->err,
			    "the averages are not complete, so no model can be made of them");
}

int selection_take(const struct checkpoint *k, const char *const *name, uint32_t n, bool *ret,
		   struct ckpt_err *err)
{
	struct selection x = { 0 };
	struct choosing a = { .ckpt = k, .t = &k->table, .take = ret, .x = &x, .err = err };
	int rc = selection_find(&a, name, n);

	ckpt_errlist_free(&a.list);
	arena_free(&x.arena);
	return rc;
}

/* --- the table that is left --- */

/* As ckpt/table/view.c: places keep their numbers, pieces their bytes. own: the tensors' names in
 * their own format, where that has others; NULL. */
static int table_of(struct choosing *k, struct table *ret, const char **own)
{
	const struct table *t = k->t;
	uint64_t ntensor = 0, npiece = 0;
	int rc = 0;

	for (uint32_t i = 0; i < t->nmesh && !rc; i++)
		rc = table_add_mesh(ret, &t->mesh[i], NULL, k->err);
	for (uint32_t i = 0; i < t->nlayout && !rc; i++)
		rc = table_add_layout(ret, &t->layout[i], NULL, k->err);
	for (uint32_t i = 0; i < t->naverage && !rc; i++)
		rc = table_add_average(ret, &t->average[i], NULL, k->err);
	for (uint32_t i = 0; i < t->nplace && !rc; i++)
		rc = table_add_place(ret, &t->place[i], NULL, k->err);
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (k->take[i]) {
			ntensor++;
			npiece += t->first[i + 1] - t->first[i];
		}
	if (!rc)
		rc = table_reserve(ret, ntensor, npiece);
	for (uint32_t i = 0; i < t->ntensor && !rc; i++) {
		struct table_tensor x = t->tensor[i];
		uint32_t id = 0;

		if (!k->take[i])
			continue;
		if (k->component && k->component[i])
			x.component = k->component[i];
		rc = table_put_tensor(ret, &x, &id, k->err);
		if (!rc && own)
			own[id] = k->ckpt->foreign_name[i];
		for (uint32_t p = t->first[i]; p < t->first[i + 1] && !rc; p++) {
			struct table_piece piece = t->piece[p];

			piece.tensor = id;
			rc = table_put_piece(ret, &piece, k->err);
		}
	}
	return rc ? rc : table_seal(ret, k->err);
}

int selection_make(const struct checkpoint *c, const char *const *name, uint32_t n, bool as_model,
		   struct selection *ret, struct ckpt_err *err)
{
	const struct table *t = &c->table;
	struct choosing k = { .ckpt = c, .t = t, .x = ret, .err = err };
	struct table left = { 0 };
	const char **own = NULL;
	int rc = 0;

	*ret = (struct selection){ 0 };
	k.take = arena_array(&ret->arena, (size_t)t->ntensor + 1, sizeof *k.take);
	if (as_model)
		k.component = arena_array(&ret->arena, (size_t)t->ntensor + 1, sizeof *k.component);
	if (c->foreign_name)
		own = arena_array(&ret->arena, (size_t)t->ntensor + 1, sizeof *own);
	if (!k.take || (as_model && !k.component) || (c->foreign_name && !own))
		rc = ckpt_error(err, -ENOMEM, "out of memory for %u tensors", t->ntensor);
	if (!rc)
		rc = selection_find(&k, name, n);
	if (!rc)
		rc = table_of(&k, &left, own);
	/* Two averages of one model, both under its names. */
	if (rc == -EALREADY)
		rc = ckpt_error(err, -EMEDIUMTYPE,
				"%s twice: with --view export one component at a time", err->msg);
	ckpt_errlist_free(&k.list);
	if (rc) {
		table_free(&left);
		return rc;
	}
	ret->seen = *c;
	ret->seen.table = left;
	ret->seen.foreign_name = own;
	return 0;
}

void selection_free(struct selection *x)
{
	table_free(&x->seen.table);
	arena_free(&x->arena);
	*x = (struct selection){ 0 };
}

/* --- names --- */

static int name_compare(const void *va, const void *vb)
{
	const struct table_tensor *const *a = va, *const *b = vb;
	int d = strcmp((*a)->name, (*b)->name);

	return d ? d : strcmp((*a)->component, (*b)->component);
}

int selection_clashes(const struct table *t, struct ckpt_errlist *list, struct ckpt_err *err)
{
	cleanup_free const struct table_tensor **x = calloc((size_t)t->ntensor + 1, sizeof *x);
	char a[TABLE_KEY_BYTES], b[TABLE_KEY_BYTES];
	uint32_t n = 0;

	if (!x)
		return ckpt_error(err, -ENOMEM, "out of memory for %u names", t->ntensor);
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].cls != CKPT_SINK)
			x[n++] = &t->tensor[i];
	qsort(x, n, sizeof(struct table_tensor *), name_compare);
	for (uint32_t i = 1; i < n; i++)
		if (!strcmp(x[i]->name, x[i - 1]->name) &&
		    strcmp(x[i]->component, x[i - 1]->component) != 0)
			ckpt_errlist_add(list, "%s: %s and %s", x[i]->name, table_key(x[i - 1], a),
					 table_key(x[i], b));
	return 0;
}

/* --- what a file says of it --- */

static int meta_add(struct selection *x, struct selection_meta *ret, uint32_t *n, const char *key,
		    const char *fmt, ...) __attribute__((format(printf, 5, 6)));
static int meta_add(struct selection *x, struct selection_meta *ret, uint32_t *n, const char *key,
		    const char *fmt, ...)
{
	char text[EMA_SPEC_BYTES + CKPT_NAME_MAX];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ret[*n] = (struct selection_meta){ key, arena_str(&x->arena, text) };
	return ret[(*n)++].value ? 0 : -ENOMEM;
}

int selection_meta(struct selection *x, struct selection_meta *ret, uint32_t *ret_n)
{
	const struct table_average *a = x->n == 1 ? x->of[0].average : NULL;
	char names[1024] = "";
	uint32_t n = 0;
	int rc = 0;

	*ret_n = 0;
	for (uint32_t i = 0; i < x->n; i++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
			 x->of[i].component);
	if (x->n)
		rc = meta_add(x, ret, &n, "only", "%s", names);
	if (!rc && a)
		rc = meta_add(x, ret, &n, "average", "%s", a->name);
	if (!rc && a)
		rc = meta_add(x, ret, &n, "average_schedule", "%s", a->schedule);
	if (!rc && a)
		rc = meta_add(x, ret, &n, "average_updates", "%" PRIu64, a->updates);
	if (!rc && a)
		rc = meta_add(x, ret, &n, "average_since", "%" PRIu64, a->since);
	if (!rc && a && a->last_step != EMA_NO_STEP)
		rc = meta_add(x, ret, &n, "average_last_step", "%" PRIu64, a->last_step);
	if (!rc && a && a->flags & AVERAGE_MIXED)
		rc = meta_add(x, ret, &n, "average_mixed", "true");
	*ret_n = n;
	return rc;
}
