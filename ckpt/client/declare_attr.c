// SPDX-License-Identifier: Apache-2.0
// declare_attr.c - attributes that a handle declares: ckpt_attr keeps them by key, and the
// declaration of rank 0 has the section that carries them. Called by declare.c.
// Invariant: what is declared does not depend on the order in which ckpt_attr was called.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include "ckpt/wire/attributes.h"

static void attr_free(struct attr *x)
{
	free(x->key);
	free(x->value);
}

void declare_attrs_free(ckpt *c)
{
	while (c->nattr)
		attr_free(&c->attr[--c->nattr]);
	free(TAKE(c->attr));
}

/* Its place, or where it would be. */
static uint32_t attr_at(const ckpt *c, const char *key, bool *ret_there)
{
	uint32_t from = 0, to = c->nattr;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (strcmp(c->attr[mid].key, key) < 0)
			from = mid + 1;
		else
			to = mid;
	}
	*ret_there = from < c->nattr && strcmp(c->attr[from].key, key) == 0;
	return from;
}

static void attr_drop(ckpt *c, uint32_t at)
{
	attr_free(&c->attr[at]);
	c->nattr--;
	memmove(&c->attr[at], &c->attr[at + 1], (c->nattr - at) * sizeof *c->attr);
}

static int attr_add(ckpt *c, uint32_t at, const char *key, const char *value, struct ckpt_err *err)
{
	uint32_t cap = c->cap_attr;
	struct attr x;

	if (c->nattr == ATTRIBUTES_MAX)
		return ckpt_error(err, -E2BIG,
				  "attribute %.200s: there are %u already, which is the maximum",
				  key, ATTRIBUTES_MAX);
	if (c->nattr == cap) {
		struct attr *p = reallocarray(c->attr, cap ? 2 * (size_t)cap : 16, sizeof *p);

		if (!p)
			return ckpt_error(err, -ENOMEM, "no memory for an attribute");
		c->attr = p;
		c->cap_attr = cap ? 2 * cap : 16;
	}
	x = (struct attr){ strdup(key), strdup(value) };
	if (!x.key || !x.value) {
		attr_free(&x);
		return ckpt_error(err, -ENOMEM, "no memory for an attribute");
	}
	memmove(&c->attr[at + 1], &c->attr[at], (c->nattr - at) * sizeof *c->attr);
	c->attr[at] = x;
	c->nattr++;
	return 0;
}

static int attr_change(struct attr *x, const char *value, struct ckpt_err *err)
{
	char *now = strdup(value);

	if (!now)
		return ckpt_error(err, -ENOMEM, "no memory for an attribute");
	free(x->value);
	x->value = now;
	return 0;
}

int ckpt_attr(ckpt *c, const char *key, const char *value, struct ckpt_err *err)
{
	int rc = client_check(c, err);
	bool there;
	uint32_t at;

	if (rc < 0)
		return rc;
	if (!key)
		return ckpt_error(err, -EINVAL, "ckpt_attr: key is NULL");
	if (value)
		rc = attribute_check(key, value, err);
	if (rc < 0)
		return rc;
	at = attr_at(c, key, &there);
	if (!value && !there)
		return ckpt_error(err, -ENOENT, "there is no attribute %.200s to remove", key);
	if (value && there && strcmp(c->attr[at].value, value) == 0)
		return 0;
	if (!value)
		attr_drop(c, at);
	else
		rc = there ? attr_change(&c->attr[at], value, err)
			   : attr_add(c, at, key, value, err);
	if (rc == 0 && !MUTANT(ATTR_NO_SEAL_DUE))
		c->dirty = true;
	return rc;
}

int declare_attrs_section(const ckpt *c, struct arena *a, const void **ret_bytes, uint64_t *ret_len,
			  struct ckpt_err *err)
{
	uint64_t len = 0;
	char *p;

	*ret_len = 0;
	for (uint32_t i = 0; i < c->nattr; i++)
		len += strlen(c->attr[i].key) + strlen(c->attr[i].value) + 2;
	if (!len || (c->rank != 0 && !MUTANT(ATTR_OF_EACH_RANK)))
		return 0;
	*ret_bytes = p = arena_array(a, len, 1);
	if (!p)
		return ckpt_error(err, -ENOMEM, "no memory for the attributes");
	for (uint32_t i = 0; i < c->nattr; i++)
		p = stpcpy(stpcpy(p, c->attr[i].key) + 1, c->attr[i].value) + 1;
	*ret_len = len;
	return 0;
}
