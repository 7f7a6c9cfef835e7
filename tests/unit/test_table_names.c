/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_table_names.c - a packed table says what it said before, without the one that it was made
 * of; what two of them have in common is there once.
 */
#include "ckpt/table/encode.h"
#include "ckpt/table/names.h"
#include "tests/lib/sample.h"
#include "tests/lib/unit.h"

static struct names *names;

static int setup(void **state)
{
	(void)state;
	names = names_new();
	return names ? 0 : -1;
}

static int teardown(void **state)
{
	(void)state;
	names_unref(names);
	return 0;
}

static void same_bytes(const struct table *x, const struct table *y)
{
	struct table_section a[TABLE_SECTIONS_MAX], b[TABLE_SECTIONS_MAX];
	cleanup_arena struct arena ax = { 0 }, ay = { 0 };
	struct ckpt_err err;
	uint32_t n, m;

	assert_int_equal(table_encode(x, true, &ax, a, &n, &err), 0);
	assert_int_equal(table_encode(y, true, &ay, b, &m, &err), 0);
	assert_int_equal(n, m);
	for (uint32_t i = 0; i < n; i++) {
		assert_int_equal(a[i].kind, b[i].kind);
		assert_int_equal(a[i].len, b[i].len);
		if (a[i].len)
			assert_memory_equal(a[i].bytes, b[i].bytes, a[i].len);
	}
}

TEST(a_packed_table_says_the_same_and_needs_no_other)
{
	for (uint32_t rank = 0; rank < 2; rank++) {
		cleanup_sample struct sample s = { 0 }, other = { 0 };
		struct table t;

		assert_int_equal(sample_make("fsdp=2", rank, 1, 1, &s), 0);
		assert_int_equal(sample_make("fsdp=2", rank, 1, 1, &other), 0);
		assert_int_equal(table_pack(&s.decl, names, &t), 0);
		table_free(&s.decl);
		same_bytes(&other.decl, &t);
		for (uint32_t i = 0; i < t.ntensor; i++) {
			const struct table_tensor *x = &other.decl.tensor[i];

			assert_int_equal(table_find(&t, x->component, x->name, x->rank), i);
		}
		assert_int_equal(table_find(&t, "model", "no such", TABLE_NONE), TABLE_NONE);
		table_free(&t);
	}
}

TEST(what_two_have_in_common_is_there_once)
{
	cleanup_sample struct sample s = { 0 }, other = { 0 };
	struct table t, same, late;

	assert_int_equal(sample_make("fsdp=2", 0, 1, 1, &s), 0);
	assert_int_equal(sample_make("fsdp=2", 0, 1, 1, &other), 0);
	assert_int_equal(table_pack(&s.decl, names, &t), 0);
	assert_int_equal(table_pack(&other.decl, names, &same), 0);
	assert_ptr_equal(t.tensor, same.tensor);
	assert_ptr_equal(t.index.slot, same.index.slot);
	assert_ptr_equal(t.first, same.first);
	assert_ptr_not_equal(t.piece, same.piece);
	for (uint32_t i = 0; i < t.npiece; i++)
		assert_ptr_equal(t.piece[i].set.dim, same.piece[i].set.dim);
	/* What comes later is whole, too, and what was given out stays. */
	names_settle(names);
	assert_int_equal(table_pack(&other.decl, names, &late), 0);
	same_bytes(&other.decl, &late);
	same_bytes(&other.decl, &t);
	table_free(&t);
	table_free(&same);
	table_free(&late);
}

TEST(a_table_of_nothing_can_be_packed)
{
	struct table x = { 0 }, t;
	struct ckpt_err err;

	assert_int_equal(table_seal(&x, &err), 0);
	assert_int_equal(table_pack(&x, names, &t), 0);
	assert_int_equal(t.ntensor + t.npiece, 0);
	assert_int_equal(table_find(&t, "a", "b", TABLE_NONE), TABLE_NONE);
	table_free(&x);
	table_free(&t);
}

UNIT(.setup = setup, .teardown = teardown);
