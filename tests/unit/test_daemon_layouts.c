/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_layouts.c - every kind of layout from ckpt.h through the daemon into every other one,
 * on another mesh, from memory and from disk: each element comes back where it belongs.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <sys/mman.h>

#define ROWS 7
#define COLS 5

static const char *const saved[] = {
	"Shard(0)@x",
	"Shard(0)@y, Shard(0)@x", /* FSDP2 over TP, which does not divide 7 */
	"StridedShard(0, 2)@x, Shard(0)@y",
	"StridedShard(0, 3)@y, StridedShard(1, 2)@x",
	"flat: Shard(0)@y, Shard(0)@x",
	"flat: Shard(1)@x, Shard(1)@y",
	"unflatten_pad: StridedShard(0, 3)@x, Shard(0)@y",
	"Only(1)@x, Shard(1)@y",
	"Replicate@x, Shard(1)@y",
	"torch: _S(0, 2), S(0)", /* the same as the second one */
	"torch: S(0), S(0)",
};

/* On x=3,y=1 or x=2,y=2; tensor i is loaded as number i + a shift. */
static const char *const loaded[] = {
	"StridedShard(1, 2)@x",		"Replicate",
	"flat: Shard(0)@x, Shard(0)@y", "unflatten_pad: StridedShard(1, 2)@y, StridedShard(0, 2)@x",
	"Shard(1)@y, Shard(0)@x",	"Only(0)@y, Shard(0)@x",
};

#define TENSORS ARRAY_LEN(saved)

struct held {
	struct arena a;
	struct indexset share[TENSORS];
	int64_t *mem[TENSORS];
};

static int64_t value(uint32_t i, uint64_t g)
{
	return (int64_t)(i * 1000 + g);
}

static uint64_t nth(const struct indices *x, uint64_t i)
{
	const struct run *r = x->run;

	for (; i >= r->len * r->count; r++)
		i -= r->len * r->count;
	return r->start + i / r->len * r->stride + i % r->len;
}

static void declare(struct rank *k, struct held *h, uint32_t i, const char *text)
{
	static const uint64_t shape[2] = { ROWS, COLS };
	const bool torch = !strncmp(text, "torch: ", 7);
	uint32_t coord[CKPT_DIMS_MAX];
	struct layout l, plain;
	void *p = NULL;

	MUST_OK(layout_parse(text + (torch ? 7 : 0), &k->mesh, &h->a, &l, &k->err), &k->err);
	plain = l;
	if (torch) { /* without a split factor the order is that of the mesh */
		MUST_OK(layout_parse(strstr(text, "_S") ? saved[1] : text + 7, &k->mesh, &h->a,
				     &plain, &k->err),
			&k->err);
		l.mode = CKPT_TORCH_ORDER;
	}
	MUST(mesh_coord(&k->mesh, k->rank, coord));
	MUST(!layout_share(&k->mesh, &plain, 2, shape, coord, &h->a, &h->share[i]));
	MUST(!ckpt_alloc(k->c, ROWS * COLS * 8, &p, NULL));
	h->mem[i] = p;

	char name[16];
	struct ckpt_local local = { .ptr = p };
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_I64, .component = "state",
				   .name = name, .ndim = 2, .mesh = k->mesh_id, .nplace = l.nplace,
				   .nlocal = h->share[i].numel > 0, .shape = shape,
				   .place = l.place, .local = &local, .mode = l.mode);

	snprintf(name, sizeof name, "w%u", i);
	MUST_OK(ckpt_tensor_add(k->c, &t, NULL, &k->err), &k->err);
}

/* The rank's elements, in their order: to be these, or are they? */
static void each(const struct held *h, uint32_t i, bool fill)
{
	const struct indexset *x = &h->share[i];

	for (uint64_t e = 0; e < x->numel; e++) {
		uint64_t row = nth(&x->dim[0], e / x->dim[1].total);
		int64_t want = value(i, row * COLS + nth(&x->dim[1], e % x->dim[1].total));

		if (fill)
			h->mem[i][e] = want;
		else
			MUST_BE(h->mem[i][e], want);
	}
}

static void save_nine(struct rank *k)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_FINAL };
	struct held h = { 0 };

	must_attach(k, k->plan, k->rank);
	for (uint32_t i = 0; i < TENSORS; i++) {
		declare(k, &h, i, saved[i]);
		each(&h, i, true);
	}
	must_seal(k);
	MUST_BE(ckpt_snapshot(k->c, 9, &m), 0);
	must_wait(k, 9, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
	arena_free(&h.a);
}

struct wish {
	uint32_t flags, shift;
};

static void load_nine(struct rank *k)
{
	const struct wish *w = k->arg;
	struct held h = { 0 };

	must_attach(k, k->plan, k->rank);
	for (uint32_t i = 0; i < TENSORS; i++)
		declare(k, &h, i, loaded[(i + w->shift) % ARRAY_LEN(loaded)]);
	must_seal(k);
	must_restore(k, CKPT_LATEST, w->flags);
	MUST_BE(k->got.ntensor, TENSORS);
	for (uint32_t i = 0; i < TENSORS; i++)
		each(&h, i, false);
	rank_meet(k);
	rank_close(k, 0);
	arena_free(&h.a);
}

TEST(every_layout_is_loaded_as_any_other_on_any_mesh)
{
	static const char *const meshes[] = { "x=3,y=1", "x=2,y=2" };
	static const uint32_t flags[] = { CKPT_FROM_MEMORY, CKPT_FROM_DISK };

	H.opts.engine = IO_AUTO;
	host_start(&H, NULL);
	/* x = 2 would not do: there torch's order and its literal reading are the same */
	team_of(plan("layouts", "x=3,y=2"), save_nine, NULL);
	assert_true(host_has(&H, "layouts", 9)); /* and every byte of it verified */
	for (uint32_t i = 0; i < ARRAY_LEN(loaded); i++) {
		struct wish w = { flags[i % 2], i };
		struct plan_of_job q = plan("layouts", meshes[i / 2 % 2]);

		team(&q, load_nine, &w);
	}
}

UNIT(.setup = host_setup, .teardown = host_teardown);
