/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_viewed.h - a model whose names change on the way onto another mesh: fused QKV, gate and up,
 * experts. For tests of what ranks then send each other.
 */
#ifndef CKPT_TEST_VIEWED_H
#define CKPT_TEST_VIEWED_H
#include "ckpt/plan/reshard.h"
#include "ckpt/table/view.h"
#include "tests/lib/onto.h"
#include "tests/lib/unit.h"

static const struct onto_case viewed_from = {
	"from",
	"pp=2,fsdp=3",
	NULL,
	1,
	6,
	{ { "qkv", { 12, 8 }, "Only(0)@pp, Shard(0)@fsdp", NULL },
	  { "gate", { 10, 8 }, "Only(0)@pp, Shard(0)@fsdp", NULL },
	  { "up", { 10, 8 }, "Only(0)@pp, Shard(0)@fsdp", NULL },
	  { "experts.0", { 6, 4 }, "Only(0)@pp, Shard(1)@fsdp", NULL },
	  { "experts.1", { 6, 4 }, "Only(1)@pp, Shard(1)@fsdp", NULL },
	  { "plain", { 9 }, "Only(1)@pp, Shard(0)@fsdp", NULL } }
};
static const struct onto_case viewed_to = { "to",
					    NULL,
					    "tp=4",
					    1,
					    6,
					    { { "q", { 8, 8 }, NULL, "Shard(0)@tp" },
					      { "k", { 2, 8 }, NULL, "Shard(0)@tp" },
					      { "v", { 2, 8 }, NULL, "Replicate@tp" },
					      { "gate_up", { 20, 8 }, NULL, "Shard(0)@tp" },
					      { "experts", { 2, 6, 4 }, NULL, "Shard(0)@tp" },
					      { "plain", { 9 }, NULL, "Shard(0)@tp" } } };
static const char viewed_rules[] =
	"split model/*.qkv dim 0 sizes 8,2,2 -> model/{1}.q model/{1}.k model/{1}.v\n"
	"concat model/*.gate model/{1}.up dim 0 -> model/{1}.gate_up\n"
	"stack model/*.experts.# dim 0 -> model/{1}.experts\n";

struct owning {
	struct table *t;
	uint64_t end[16]; /* by rank */
};

static inline int piece_own(void *arg, uint32_t tensor, const struct holder *h)
{
	struct owning *o = arg;
	struct table_piece p = { .tensor = tensor,
				 .rank = h->rank,
				 .place = h->rank,
				 .set = h->set,
				 .off = o->end[h->rank] };

	o->end[h->rank] += h->set.numel * o->t->tensor[tensor].elem_bytes;
	return table_add_piece(o->t, &p, NULL);
}

/* The declarations with each rank's elements as pieces, seen through a view. */
static inline void viewed(const struct table *declared, const char *rules, struct table *pieces,
			  struct table *ret)
{
	cleanup_arena struct arena a = { 0 };
	struct owning o = { .t = pieces };
	const struct view_cast *cast;
	struct ckpt_err err;
	struct view v;

	*pieces = table_borrow(declared);
	for (uint32_t r = 0; r < ARRAY_LEN(o.end); r++) {
		struct table_place place = { "memory", r, INT64_MAX };

		assert_ok(table_add_place(pieces, &place, NULL, NULL));
	}
	assert_ok(reshard_owners(declared, HOLDERS_OWNERS, piece_own, &o, NULL));
	assert_ok(table_seal(pieces, NULL));
	assert_ok_err(view_parse(rules, "rules", &a, &v, &err), &err);
	assert_ok_err(view_make(pieces, &v, ret, &cast, &err), &err);
}
#endif
