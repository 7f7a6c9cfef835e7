/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_table.c - tables decoded from changed sections (edits.h) of a real declaration, each in
 * memory of its exact size. What is accepted must hold together: it is covered, found, printed,
 * merged, and comes back from another round.
 */
#include "tests/lib/sample.h"
#include "ckpt/table/encode.h"
#include "tests/fuzz/edits.h"

static struct table_section section[TABLE_SECTIONS_MAX];
static uint32_t nsection;
static struct edits edits;
static struct table unedited; /* its tensors */

static void start(void)
{
	struct table_section s[TABLE_SECTIONS_MAX];
	struct arena a = { 0 };
	struct sample x;
	int r = sample_make("pp=2,tp=2,fsdp=2", 3, 1, 1, &x);

	assert(!r);
	r = table_encode(&x.decl, true, &a, s, &nsection, NULL);
	assert(!r);
	r = table_decode_tensors(s, nsection, &unedited, NULL);
	assert(!r);
	for (uint32_t i = 0; i < nsection; i++) {
		uint8_t *p = malloc(s[i].len);

		assert(p);
		memcpy(p, s[i].bytes, s[i].len);
		section[i] = s[i];
		section[i].bytes = p;
		edits_region(&edits, p, s[i].len);
	}
	arena_free(&a);
	sample_free(&x);
}

static void use(const struct table *t)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct table_section s[TABLE_SECTIONS_MAX];
	struct table again, both = { 0 };
	struct arena a = { 0 };
	uint32_t n, place;
	char buf[100];
	int r;

	table_cover(t, &list);
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];

		assert(table_find(t, x->component, x->name, x->rank) == i);
		assert(strlen(table_tensor_print(x, buf, sizeof buf)) < sizeof buf);
		(void)table_layout_print(t, x->layout, buf, sizeof buf);
		table_tensor_compare(t, i, "x", t, 0, "y", &list);
	}
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];

		assert(p->tensor < t->ntensor && p->place < t->nplace);
		assert(p->off + p->len >= p->off && p->off + p->len <= t->place[p->place].bytes);
		for (uint32_t d = 0; d < p->set.ndim; d++) {
			struct indices_cursor c = { 0 };
			struct stretch s1;

			/* Any list may be walked; a few steps will do. */
			for (int k = 0;
			     k < 16 && indices_next(&p->set.dim[d], &p->set.dim[d], &c, &s1); k++)
				assert(s1.index + s1.len <= t->tensor[p->tensor].shape[d]);
		}
	}
	r = table_encode(t, true, &a, s, &n, NULL);
	assert(!r);
	r = table_decode(s, n, NULL, 0, &again, NULL);
	assert(!r && again.ntensor == t->ntensor && again.npiece == t->npiece);
	r = table_merge(&both, t, &place, &list, NULL);
	assert(!r && both.npiece == t->npiece);
	table_free(&both);
	table_free(&again);
	arena_free(&a);
	ckpt_errlist_free(&list);
}

/* In two steps the outcome is the same; and pieces may come with declarations that are not
 * theirs. */
static void two_steps(int want)
{
	struct table tensors, t;
	int r = table_decode_tensors(section, nsection, &tensors, NULL);

	if (!r) {
		r = table_decode_pieces(section, nsection, &tensors, NULL, 0, &t, NULL);
		if (!r)
			table_free(&t);
		table_free(&tensors);
	}
	assert(r == want);
	r = table_decode_pieces(section, nsection, &unedited, NULL, 0, &t, NULL);
	if (!r) {
		use(&t);
		table_free(&t);
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct ckpt_err err;
	struct table t;
	int r;

	if (!nsection)
		start();
	edits_apply(&edits, data, size);
	r = table_decode(section, nsection, NULL, 0, &t, &err);
	assert(r == 0 || (r == err.code && *err.msg));
	if (r == 0) {
		use(&t);
		table_free(&t);
	}
	two_steps(r);
	edits_undo(&edits);
	return 0;
}
