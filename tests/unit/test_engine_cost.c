/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_cost.c - what loading costs where places are made of bytes of a file: each rank reads
 * these bytes once, and the file is named. Files alone: test_cli_plan.c.
 */
#include "ckpt/engine/load_cost.h"
#include "ckpt/table/target.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define ELEMS 1000u
#define CODED 700u /* bytes of a tensor where it is compressed */

static struct ckpt_err err;

/* Plain, deflated, swapped of one that is deflated, at hand: one tensor each. */
static struct checkpoint *coded_checkpoint(void)
{
	struct checkpoint *c = checkpoint_new(NULL, 1);
	static const uint8_t given[4 * ELEMS];
	const struct format_made made[] = {
		{ .how = MADE_DEFLATE, .from = 0, .off = 5000, .len = CODED },
		{ .how = MADE_DEFLATE, .from = 0, .off = 6000, .len = CODED },
		{ .how = MADE_SWAPPED, .elem = 4, .from = 2, .len = 4 * ELEMS },
		{ .how = MADE_GIVEN, .given = given },
	};
	const uint32_t place[] = { 0, 1, 3, 4 };
	const uint64_t shape = ELEMS;
	char name[] = "t0";
	uint64_t bytes;

	assert_non_null(c);
	c->nmade = ARRAY_LEN(made);
	c->made = arena_dup(&c->table.arena, made, sizeof made);
	c->file[0] = (struct format_file)ROW(.name = "f", .file_bytes = 7000, .raw_bytes = 7000,
					     .rank = TABLE_NONE);
	for (uint32_t i = 0; i <= c->nmade; i++) {
		const struct table_place x = { "f", TABLE_NONE, i ? 4 * ELEMS : 7000 };

		assert_ok_err(table_add_place(&c->table, &x, NULL, &err), &err);
	}
	for (uint32_t i = 0; i < ARRAY_LEN(place); i++, name[1]++)
		assert_ok_err(format_tensor_add(&c->table, name, CKPT_F32, 1, &shape, place[i], 0,
						&bytes, &err),
			      &err);
	assert_ok_err(table_seal(&c->table, &err), &err);
	return c;
}

TEST(what_is_decoded_is_read_once_by_each_rank_that_holds_some_of_it)
{
	struct checkpoint *c = coded_checkpoint();
	struct load_cost cost;
	struct table target;

	assert_ok_err(target_make(&c->table, "fsdp=2", NULL, 0, &target, NULL, NULL, &err), &err);
	assert_ok_err(load_cost(c, &target, &cost, NULL, NULL, &err), &err);
	assert_int_equal(cost.world, 2);
	assert_int_equal(cost.held_bytes, cost.rank[0].bytes + cost.rank[1].bytes);
	for (uint32_t i = 0; i < 2; i++) {
		const struct load_rank *r = &cost.rank[i];
		uint64_t plain = r->bytes / 4;

		assert_int_equal(r->tensors, 4);
		assert_int_equal(r->files, 1);
		assert_int_equal(r->read_bytes, plain + 2 * CODED);
	}
	assert_int_equal(cost.host.read_bytes, 7000);
	assert_int_equal(cost.host.files, 1);
	assert_int_equal(cost.requests, 1);
	/* A file without a writer counts as its number's, and so does what is made of it. */
	assert_int_equal(flow_row(&cost.flow, 0), cost.held_bytes);
	load_cost_free(&cost);
	table_free(&target);
	checkpoint_free(c);
}

TEST(a_place_that_is_made_has_the_file_of_what_it_is_made_of)
{
	static const uint32_t file[] = { 0, 0, 0, 0, TABLE_NONE };
	struct checkpoint *c = coded_checkpoint();

	for (uint32_t i = 0; i < ARRAY_LEN(file); i++)
		assert_int_equal(checkpoint_file_of(c, i), file[i]);
	c->made[0].from = 1; /* of itself */
	assert_int_equal(checkpoint_file_of(c, 1), TABLE_NONE);
	checkpoint_free(c);
}
