/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_partial.c - tensors whose reduction is pending, from ckpt.h to a restore on another
 * mesh, from memory and from disk: refused without consent, stored as they are with it, reduced
 * when they are loaded, or given back as they were.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <sys/mman.h>

#define ROWS 7 /* fsdp does not divide it */
#define COLS 5

/* --- the state: element g is a whole number that every coordinate of dp has its own part of --- */

enum { GRAD, COUNTS, MEAN, WEIGHT, STATES };
static const struct {
	const char *name;
	uint32_t dtype;
	int reduce; /* over dp; -1: whole on every coordinate of it */
	bool cut;   /* by rows over fsdp */
} specs[STATES] = {
	[GRAD] = { "grad", CKPT_F32, CKPT_SUM, true },
	[COUNTS] = { "counts", CKPT_I64, CKPT_SUM, false },
	[MEAN] = { "mean", CKPT_F32, CKPT_AVG, true },
	[WEIGHT] = { "weight", CKPT_F32, -1, true },
};

static int64_t value(uint32_t i, uint64_t g, uint32_t dp, uint64_t step)
{
	int64_t v = (int64_t)(g * 3 + step + i);

	return specs[i].reduce < 0 ? v : (v + (int64_t)(g % 3)) * (dp ? 4 : -2);
}

static int64_t whole(uint32_t i, uint64_t g, uint64_t step)
{
	int64_t sum = value(i, g, 0, step) + value(i, g, 1, step);

	return specs[i].reduce < 0	     ? value(i, g, 0, step)
	       : specs[i].reduce == CKPT_AVG ? sum / 2
					     : sum;
}

struct state {
	uint64_t from, rows; /* of ROWS */
	uint8_t *mem[STATES];
	uint32_t dp;
	bool pending; /* declared as it is saved */
};

static uint32_t dim_of(const struct rank *k, const char *name)
{
	uint32_t d = 0;

	while (d < k->mesh.ndim && strcmp(k->mesh.name[d], name) != 0)
		d++;
	return d;
}

static uint32_t at_of(const struct rank *k, const char *name, uint32_t *ret_size)
{
	uint32_t coord[CKPT_DIMS_MAX], d = dim_of(k, name);

	*ret_size = d < k->mesh.ndim ? k->mesh.dim[d] : 1;
	MUST(mesh_coord(&k->mesh, k->rank, coord));
	return d < k->mesh.ndim ? coord[d] : 0;
}

static int declare_one(struct rank *k, struct state *h, uint32_t i, int reduce, uint16_t flags,
		       struct ckpt_err *err)
{
	const uint64_t shape[2] = { ROWS, COLS };
	struct ckpt_local local = { .ptr = h->mem[i] };
	struct ckpt_placement place[2];
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = specs[i].dtype, .component = "state",
				   .name = specs[i].name, .ndim = 2, .mesh = k->mesh_id,
				   .nlocal = 1, .shape = shape, .place = place, .local = &local);
	uint16_t fsdp = (uint16_t)dim_of(k, "fsdp"), dp = (uint16_t)dim_of(k, "dp");

	if (specs[i].cut && fsdp < k->mesh.ndim)
		place[t.nplace++] = (struct ckpt_placement){ .how = CKPT_SHARD, .mesh_dim = fsdp };
	if (reduce >= 0)
		place[t.nplace++] = (struct ckpt_placement){ .how = CKPT_PARTIAL,
							     .reduce = (uint8_t)reduce,
							     .mesh_dim = dp,
							     .flags = flags };
	return ckpt_tensor_add(k->c, &t, NULL, err);
}

static void held_make(struct rank *k, struct state *h)
{
	uint32_t n, at = at_of(k, "fsdp", &n), all;
	uint64_t chunk = div_up(ROWS, n);

	h->from = MIN(at * chunk, (uint64_t)ROWS);
	h->rows = MIN((at + 1) * chunk, (uint64_t)ROWS) - h->from;
	h->dp = at_of(k, "dp", &all);
	for (uint32_t i = 0; i < STATES; i++) {
		void *p = NULL;

		/* Some in the library's memory, some in the process's. */
		if (i % 2)
			p = malloc(ROWS * COLS * 8);
		else
			MUST(!ckpt_alloc(k->c, ROWS * COLS * 8, &p, NULL));
		h->mem[i] = p;
		MUST(p != NULL);
		memset(h->mem[i], 0x5a, ROWS * COLS * 8);
	}
}

static void held_free(struct state *h)
{
	for (uint32_t i = 1; i < STATES; i += 2)
		free(h->mem[i]);
}

static void element(uint32_t i, uint8_t *at, int64_t v)
{
	float f = (float)v;

	memcpy(at, specs[i].dtype == CKPT_F32 ? (void *)&f : (void *)&v,
	       specs[i].dtype == CKPT_F32 ? 4 : 8);
}

/* The rank's elements of tensor i: to be of the step, or are they? */
static void each(const struct state *h, uint32_t i, uint64_t step, bool fill)
{
	uint64_t rows = specs[i].cut ? h->rows : ROWS, from = specs[i].cut ? h->from : 0;
	uint32_t bytes = specs[i].dtype == CKPT_F32 ? 4 : 8;

	for (uint64_t e = 0; e < rows * COLS; e++) {
		uint64_t g = from * COLS + e;
		uint8_t want[8], *at = h->mem[i] + e * bytes;

		element(i, want, h->pending ? value(i, g, h->dp, step) : whole(i, g, step));
		if (fill)
			memcpy(at, want, bytes);
		else if (memcmp(at, want, bytes) != 0)
			rank_must(0, specs[i].name, __FILE__, (int)g, "another value");
	}
}

static void open_all(struct rank *k, struct state *h, bool pending)
{
	must_attach(k, k->plan, k->rank);
	held_make(k, h);
	h->pending = pending;
	for (uint32_t i = 0; i < STATES; i++)
		MUST_OK(declare_one(k, h, i, pending ? specs[i].reduce : -1, CKPT_KEEP_PARTIAL,
				    &k->err),
			&k->err);
	must_seal(k);
}

/* --- scripts --- */

static void save_nine(struct rank *k)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_FINAL };
	struct state h;

	open_all(k, &h, true);
	for (uint32_t i = 0; i < STATES; i++)
		each(&h, i, 9, true);
	MUST_BE(ckpt_snapshot(k->c, 9, &m), 0);
	must_wait(k, 9, CKPT_COMMITTED);
	rank_meet(k);
	rank_close(k, 0);
	held_free(&h);
}

struct wish {
	uint32_t flags;
	bool pending;
};

static void load_nine(struct rank *k)
{
	const struct wish *w = k->arg;
	struct state h;

	open_all(k, &h, w->pending);
	must_restore(k, CKPT_LATEST, w->flags);
	MUST_BE(k->got.step, 9);
	MUST_BE(k->got.ntensor, STATES);
	for (uint32_t i = 0; i < STATES; i++)
		each(&h, i, 9, false);
	rank_meet(k);
	rank_close(k, 0);
	held_free(&h);
}

static void reduce_nothing(struct rank *k)
{
	const struct wish *w = k->arg;
	struct state h;

	open_all(k, &h, false);
	MUST_BE(rank_restore(k, CKPT_LATEST, w->flags), -EMEDIUMTYPE);
	MUST(strstr(k->err.msg, "state/grad: reduce, ") &&
	     strstr(k->err.msg, "state/mean: reduce, "));
	MUST(!strstr(k->err.msg, "state/weight"));
	for (uint64_t i = 0; i < ROWS * COLS * 4; i++)
		MUST_BE(h.mem[GRAD][i], 0x5a);
	rank_meet(k);
	rank_close(k, 0);
	held_free(&h);
}

TEST(what_was_pending_is_reduced_on_any_mesh_or_comes_back_as_it_was)
{
	static const enum io_engine engines[] = { IO_THREADS, IO_AUTO };
	static const char *const meshes[] = { "fsdp=3", "dp=1", "fsdp=1,dp=3", "dp=2,fsdp=2" };
	static const uint32_t flags[] = { CKPT_FROM_MEMORY, CKPT_FROM_DISK };

	for (uint32_t e = 0; e < ARRAY_LEN(engines); e++) {
		const char *job = e ? "auto" : "threads";
		struct plan_of_job p = plan(job, "dp=2,fsdp=2");

		H.opts.engine = engines[e];
		host_start(&H, NULL);
		team(&p, save_nine, NULL);
		assert_true(host_has(&H, job, 9)); /* and every byte of it verified */
		for (uint32_t f = 0; f < ARRAY_LEN(flags); f++) {
			struct wish w = { flags[f], false };

			for (uint32_t i = 0; i < ARRAY_LEN(meshes); i++) {
				struct plan_of_job q = plan(job, meshes[i]);

				team(&q, load_nine, &w);
			}
			w.flags |= CKPT_EXPLICIT; /* nothing is done but copying */
			w.pending = true;
			team(&p, load_nine, &w);
			w.pending = false;
			team(&p, reduce_nothing, &w);
		}
		host_stop(&H);
	}
}

/* One byte of what a rank saved, in every slot of it, is another one. */
static void save_nine_and_change_it(struct rank *k)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_FINAL };
	const bool *pending = k->arg;
	struct state h;

	open_all(k, &h, *pending);
	for (uint32_t i = 0; i < STATES; i++)
		each(&h, i, 9, true);
	MUST_BE(ckpt_snapshot(k->c, 9, &m), 0);
	must_wait(k, 9, CKPT_COMMITTED);
	rank_meet(k);
	for (uint32_t i = 0; i < k->c->nslot; i++) {
		uint8_t b;

		MUST_BE(pread(k->c->slot[i].fd, &b, 1, 1), 1);
		b ^= 4;
		MUST_BE(pwrite(k->c->slot[i].fd, &b, 1, 1), 1);
	}
	rank_meet(k);
	rank_close(k, 0);
	held_free(&h);
}

static void load_what_is_right(struct rank *k)
{
	struct state h;

	open_all(k, &h, false);
	MUST_BE(rank_want(k, &(struct ckpt_want){ .size = sizeof(struct ckpt_want),
						  .step = 9,
						  .flags = CKPT_FROM_MEMORY }),
		-EBADMSG);
	MUST(strstr(k->err.msg, "memory has changed since the step was staged"));
	must_restore(k, CKPT_LATEST, 0);
	MUST_BE(k->got.step, 9);
	MUST_BE(k->got.where, 2);
	for (uint32_t i = 0; i < STATES; i++)
		each(&h, i, 9, false);
	rank_meet(k);
	rank_close(k, 0);
	held_free(&h);
}

TEST(of_a_staged_step_that_has_changed_nothing_is_restored_reduced_or_not)
{
	host_start(&H, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		const char *job = i ? "pending" : "whole";
		struct plan_of_job p = plan(job, "dp=2,fsdp=2"), q = plan(job, "fsdp=3");
		bool pending = i;

		team(&p, save_nine_and_change_it, &pending);
		team(&q, load_what_is_right, NULL);
	}
}

static void refused_without_consent(struct rank *k)
{
	struct state h;

	must_attach(k, k->plan, k->rank);
	held_make(k, &h);
	MUST_BE(declare_one(k, &h, GRAD, CKPT_SUM, 0, &k->err), -EOPNOTSUPP);
	MUST(strstr(k->err.msg, "state/grad: ") && strstr(k->err.msg, "\"dp\"") &&
	     strstr(k->err.msg, "set CKPT_KEEP_PARTIAL"));
	/* Two kinds at once are none; the first is declared as whole then. */
	MUST_OK(declare_one(k, &h, GRAD, -1, 0, &k->err), &k->err);
	rank_close(k, 0);
	held_free(&h);
}

TEST(a_pending_reduction_is_saved_with_consent_only)
{
	H.opts.engine = IO_AUTO;
	host_start(&H, NULL);
	team_of(plan("consent", "dp=2,fsdp=1"), refused_without_consent, NULL);
}

/* What the checkpoint has becomes no other pending reduction. */
static void load_as_others(struct rank *k)
{
	struct state h;

	must_attach(k, k->plan, k->rank);
	held_make(k, &h);
	MUST_OK(declare_one(k, &h, GRAD, CKPT_AVG, CKPT_KEEP_PARTIAL, &k->err), &k->err);
	MUST_OK(declare_one(k, &h, WEIGHT, CKPT_SUM, CKPT_KEEP_PARTIAL, &k->err), &k->err);
	must_seal(k);
	MUST_BE(rank_restore(k, CKPT_LATEST, CKPT_FROM_DISK), -EMEDIUMTYPE);
	MUST(strstr(k->err.msg,
		    "state/grad: declared Partial(avg)@dp (2), the checkpoint has "
		    "Partial(sum)@dp (2): a pending reduction does not become another"));
	MUST(strstr(k->err.msg, "state/weight: declared Partial(sum)@dp (2), the checkpoint has "
				"Replicate@dp (2): only a shard becomes an operand"));
	for (uint64_t i = 0; i < ROWS * COLS * 4; i++)
		MUST_BE(h.mem[GRAD][i], 0x5a);
	rank_meet(k);
	rank_close(k, 0);
	held_free(&h);
}

TEST(what_torch_refuses_is_refused_with_every_reason)
{
	struct plan_of_job p = plan("others", "dp=2,fsdp=2");

	H.opts.engine = IO_AUTO;
	host_start(&H, NULL);
	team(&p, save_nine, NULL);
	team(&p, load_as_others, NULL);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
