/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_average_rig.h - a job with averages that is trained, marked and restored, for
 * test_daemon_average_base.c and test_daemon_average_seed.c. What the averages of a step should be
 * is computed here, element by element, from the steps that were taken in, and compared with what
 * is on disk.
 */
#ifndef TESTS_UNIT_TEST_DAEMON_AVERAGE_RIG_H
#define TESTS_UNIT_TEST_DAEMON_AVERAGE_RIG_H
#include "ckpt/client/handle.h"
#include "daemon/average_reading.h"
#include "ema/schedule.h"
#include "ema/spec.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/says.h"
#include "tests/lib/unit.h"
#include <math.h>
#include <poll.h>

#define JOB "job"
#define OTHER "other" /* whose steps are seeds */
#define ROWS 48u
#define COLS 5u
#define BIAS 7u

/* --- the model --- */
enum { WEIGHT, MASTER, GAIN, COUNT, SINK, TENSORS };
static const struct {
	const char *component, *name, *of;
	uint32_t dtype, role, cls, n; /* n: elements */
} model[TENSORS] = {
	[WEIGHT] = ROW("model", "w", NULL, CKPT_BF16, CKPT_PARAM, CKPT_STABLE, ROWS *COLS),
	[MASTER] =
		ROW("optim", "w.master", "model/w", CKPT_F32, CKPT_MASTER, CKPT_STABLE, ROWS *COLS),
	[GAIN] = ROW("model", "gain", NULL, CKPT_F32, CKPT_PARAM, CKPT_STABLE, BIAS),
	[COUNT] = ROW("model", "count", NULL, CKPT_I64, CKPT_BUFFER, CKPT_STABLE, 1),
	[SINK] = ROW("ema.fast", "w", NULL, CKPT_F32, CKPT_AVERAGE, CKPT_SINK, ROWS *COLS),
};

/* Element i of the master or of gain, behind that step of that line. */
static float value(uint32_t tensor, uint64_t i, uint64_t step, uint64_t line)
{
	uint64_t x = ((line << 48) + (step << 24) + ((uint64_t)tensor << 20) + i + 1) *
		     UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 31)) * UINT64_C(0xbf58476d1ce4e5b9);
	return (float)((double)(x >> 40) / (1 << 23) - 1.0) + (float)tensor;
}

static uint16_t bf16_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static float of_bf16(uint16_t h)
{
	uint32_t u = (uint32_t)h << 16;
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

/* --- what averages should be --- */
#define CHAIN_MAX 64
/* The steps that were taken in, from where the average began; `line` tells values apart. */
struct chain {
	uint32_t n;
	struct {
		uint64_t step, line;
	} at[CHAIN_MAX];
};

static void chain_add(struct chain *c, uint64_t step, uint64_t line)
{
	MUST(c->n < CHAIN_MAX);
	c->at[c->n].step = step;
	c->at[c->n++].line = line;
}

static void chain_steps(struct chain *c, uint64_t from, uint64_t to)
{
	for (uint64_t s = from; s <= to; s++)
		chain_add(c, s, 0);
}

static float update(float a, float p, float e)
{
	return a == 1 ? p : a < .5f ? fmaf(a, p - e, e) : fmaf(a - 1, p - e, p);
}

struct expected {
	struct ema_state state;
	float w[ROWS * COLS], gain[BIAS];
};

/* What the chain makes of this spec; from NULL: of nothing. */
static struct expected expect_from(const char *spec, const struct chain *c, bool param,
				   const struct expected *from)
{
	struct ema_spec *s = NULL;
	struct ckpt_err err;
	char canonical[EMA_SPEC_BYTES];
	struct expected x = { 0 };

	MUST_OK(ema_spec_parse(spec, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	x.state = ema_state_new(canonical);
	if (from)
		x = *from;
	for (uint32_t i = 0; i < c->n; i++) {
		struct ema_update u = ema_schedule_update(&s->schedule, &x.state, c->at[i].step);
		float a = u.copy ? 1 : u.a;

		x.state = ema_state_after(&x.state, &u, canonical, c->at[i].step);
		for (uint32_t k = 0; k < ROWS * COLS; k++) {
			float p = value(MASTER, k, c->at[i].step, c->at[i].line);

			x.w[k] = update(a, param ? of_bf16(bf16_of(p)) : p, x.w[k]);
		}
		for (uint32_t k = 0; k < BIAS; k++)
			x.gain[k] =
				update(a, value(GAIN, k, c->at[i].step, c->at[i].line), x.gain[k]);
	}
	ema_spec_free(s);
	return x;
}

static struct expected expect(const char *spec, const struct chain *c)
{
	return expect_from(spec, c, false, NULL);
}

/* --- a rank --- */
struct average_of_job {
	const char *name, *spec;
};

/* What one launch does; the same on all ranks. */
struct flow {
	struct average_of_job average[4];
	/* ema.fast/w is declared to be restored into, and is this then */
	const struct expected *sink_is;
	bool restore;  /* restore, with these */
	uint64_t want; /* 0: the newest */
	uint32_t want_flags;
	const char *only;
	bool no_master, no_gain; /* what it does not declare */
	int rc;			 /* that restore or, if not restore, seal must end with */
	uint64_t from, to, line; /* the steps that are saved; to 0: none */
	uint32_t flags;		 /* of the marks; 0: PERSIST, and each is committed */
	uint64_t got_step;	 /* that was restored */
	uint32_t got_where;
	char got_averages[512], said[512];
	void (*amid)(struct rank *k); /* rank 0, when all have saved, before they close */
};

struct mine { /* of a rank: what it has declared */
	uint8_t *mem[TENSORS];
	uint32_t n[TENSORS], id[TENSORS];
	uint64_t first[TENSORS];
};
static struct mine mine_of[8];
static bool own_memory; /* malloc's, which the case frees: the library copies it */

static uint32_t shards(const struct rank *k)
{
	return k->mesh.dim[k->mesh.ndim - 1]; /* fsdp comes last */
}

static void tensor_declare(struct rank *k, uint32_t i)
{
	const uint64_t two[] = { ROWS, COLS }, one[] = { model[i].n };
	const struct ckpt_placement place = { .how = CKPT_SHARD,
					      .mesh_dim = (uint16_t)(k->mesh.ndim - 1) };
	bool sharded = model[i].n == ROWS * COLS;
	struct mine *m = &mine_of[k->rank];
	struct ckpt_local local;
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .cls = model[i].cls, .role = model[i].role,
		    .dtype = model[i].dtype, .component = model[i].component, .name = model[i].name,
		    .of = model[i].of, .ndim = sharded ? 2 : 1, .mesh = k->mesh_id,
		    .nplace = sharded, .nlocal = 1, .shape = sharded ? two : one, .place = &place,
		    .local = &local);
	uint32_t elem = model[i].dtype == CKPT_BF16 ? 2 : model[i].dtype == CKPT_I64 ? 8 : 4;

	m->n[i] = sharded ? model[i].n / shards(k) : model[i].n;
	m->first[i] = sharded ? (uint64_t)(k->rank % shards(k)) * m->n[i] : 0;
	if (own_memory)
		MUST((m->mem[i] = calloc(m->n[i], elem)) != NULL);
	else
		MUST_OF(k,
			ckpt_alloc(k->c, (uint64_t)m->n[i] * elem, (void **)&m->mem[i], &k->err));
	local = (struct ckpt_local){ .ptr = m->mem[i] };
	MUST_OF(k, ckpt_tensor_add(k->c, &t, &m->id[i], &k->err));
}

static void put(const struct mine *m, uint32_t t, uint32_t i, float f)
{
	uint16_t h = bf16_of(f);
	uint64_t n = (uint64_t)f;

	if (model[t].dtype == CKPT_BF16)
		memcpy(m->mem[t] + 2ul * i, &h, 2);
	else if (model[t].dtype == CKPT_I64)
		memcpy(m->mem[t] + 8ul * i, &n, 8);
	else
		memcpy(m->mem[t] + 4ul * i, &f, 4);
}

static float element(uint32_t t, uint64_t i, uint64_t step, uint64_t line)
{
	return t == COUNT ? (float)step : value(t == WEIGHT ? MASTER : t, i, step, line);
}

static void model_fill(const struct rank *k, uint64_t step, uint64_t line)
{
	const struct mine *m = &mine_of[k->rank];

	for (uint32_t t = 0; t < SINK; t++)
		for (uint32_t i = 0; m->mem[t] && i < m->n[t]; i++)
			put(m, t, i, element(t, m->first[t] + i, step, line));
}

/* But for SINKs, of a job with a master. */
static inline bool model_holds(const struct rank *k, uint64_t step, uint64_t line)
{
	struct mine *m = &mine_of[k->rank], was = *m;
	bool same = true;

	for (uint32_t t = 0; t < SINK; t++) {
		uint32_t elem = model[t].dtype == CKPT_BF16  ? 2
				: model[t].dtype == CKPT_I64 ? 8
							     : 4;
		uint8_t *want = calloc(was.n[t], elem);

		m->mem[t] = want;
		for (uint32_t i = 0; i < m->n[t]; i++)
			put(m, t, i, element(t, m->first[t] + i, step, line));
		same &= memcmp(want, was.mem[t], (size_t)was.n[t] * elem) == 0;
		free(want);
	}
	*m = was;
	return same;
}

/* The sums are right to the bit? */
static bool sink_holds(const struct rank *k, const struct expected *x)
{
	const struct mine *m = &mine_of[k->rank];

	return memcmp(m->mem[SINK], x->w + m->first[SINK], m->n[SINK] * sizeof(float)) == 0;
}

/* The averages of that step are made: a slot's last page says so. */
static bool is_sealed(const struct rank *k, uint64_t step)
{
	bool sealed = false;

	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		struct slot_seal seal;

		if (s->bytes)
			MUST_BE(pread(s->fd, &seal, sizeof seal,
				      (off_t)(s->bytes - SLOT_SEAL_BYTES)),
				sizeof seal);
		sealed |= s->bytes && seal.magic == SLOT_SEAL_MAGIC &&
			  seal.state == SLOT_SEAL_COMPLETE && seal.step == step;
	}
	return sealed;
}

/* One that is not written has its averages then: else it might give them up for a newer one. */
static void must_mark(struct rank *k, uint64_t step, uint64_t line, uint32_t flags, int state)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = flags };
	int rc = CKPT_SKIPPED;

	for (int i = 0; i < 100 && (rc == CKPT_SKIPPED || rc == CKPT_DETACHED); i++) {
		if (i)
			(void)poll(NULL, 0, 20);
		(void)ckpt_guard(k->c, NULL);
		model_fill(k, step, line);
		rc = ckpt_snapshot(k->c, step, &mark);
	}
	MUST_BE(rc, 0);
	must_wait(k, step, state);
	must_guard(k);
	if (flags & CKPT_STAGE_ONLY)
		must_soon(is_sealed(k, step));
}

static void flow_open(struct rank *k, struct flow *f)
{
	must_attach(k, k->plan, k->rank);
	mine_of[k->rank] = (struct mine){ 0 };
	for (uint32_t i = 0; i < (f->sink_is ? TENSORS : SINK); i++)
		if (!(i == MASTER && f->no_master) && !(i == GAIN && f->no_gain))
			tensor_declare(k, i);
	for (uint32_t i = 0; i < ARRAY_LEN(f->average) && f->average[i].name; i++)
		MUST_OF(k, ckpt_average(k->c, f->average[i].name, f->average[i].spec, &k->err));
}

static void flow_restore(struct rank *k, struct flow *f)
{
	const struct ckpt_want want = { .size = sizeof want,
					.flags = f->want_flags,
					.step = f->want ? f->want : CKPT_LATEST,
					.only = f->only };
	int rc = rank_want(k, &want);

	if (rc != f->rc)
		fprintf(stderr, "# %s\n", k->err.msg);
	MUST_BE(rc, f->rc);
	MUST(!f->sink_is || sink_holds(k, f->sink_is));
	if (k->rank)
		return;
	f->got_step = k->got.step;
	f->got_where = k->got.where;
	snprintf(f->got_averages, sizeof f->got_averages, "%s", k->got.averages);
	snprintf(f->said, sizeof f->said, "%.500s", k->err.msg);
}

static void flow_run(struct rank *k)
{
	struct flow *f = k->arg;
	int rc;

	flow_open(k, f);
	rc = rank_seal(k, PATIENCE);
	if (!f->restore && f->rc) {
		MUST_BE(rc, f->rc);
		if (k->rank == 0)
			snprintf(f->said, sizeof f->said, "%.500s", k->err.msg);
		rank_meet(k);
		rank_close(k, 0);
		return;
	}
	if (rc)
		fprintf(stderr, "# %s\n", k->err.msg);
	MUST_BE(rc, 0);
	if (f->restore)
		flow_restore(k, f);
	for (uint64_t s = f->from; s <= f->to && f->to; s++) {
		must_mark(k, s, f->line, f->flags ? f->flags : CKPT_PERSIST,
			  f->flags & CKPT_STAGE_ONLY ? CKPT_STAGED : CKPT_COMMITTED);
		rank_meet(k);
	}
	if (f->amid)
		f->amid(k);
	rank_meet(k);
	rank_close(k, 0);
}

/* With so many slots no step is left out because the next one needs its slot. */
static void run_of(const char *job, const char *mesh, struct flow *f)
{
	team_of(plan(job, mesh, .slots = 4), flow_run, f);
}

static inline void run(const char *mesh, struct flow *f)
{
	run_of(JOB, mesh, f);
}

#define FAST "constant decay=.9"
#define SLOW "power gamma=4"
#define BOTH                                        \
	{                                           \
		{ "fast", FAST }, { "slow", SLOW }, \
	}

/* --- what is on disk --- */
static void read_tensor(const struct checkpoint *c, int fd, const char *component, const char *name,
			float *ret)
{
	uint32_t i = table_find(&c->table, component, name, TABLE_NONE);
	struct table_tensor t;
	struct table dst = { 0 };
	struct table_place place = { .name = "here", .rank = TABLE_NONE };
	struct table_piece p = { .rank = TABLE_NONE };
	struct plan_opts opts = { .casts = true };
	struct move_files files;
	struct arena a = { 0 };
	struct plan plan;
	struct ckpt_err err;
	const uint64_t zero[2] = { 0, 0 };
	void *base = ret;

	if (i == TABLE_NONE)
		fail_msg("the step has no %s/%s", component, name);
	t = c->table.tensor[i];
	t.layout = TABLE_NONE;
	t.made = 0;
	t.dtype = CKPT_F32;
	t.elem_bytes = 4;
	place.bytes = t.numel * 4;
	MUST_OK(table_add_place(&dst, &place, NULL, &err), &err);
	MUST_OK(table_add_tensor(&dst, &t, NULL, &err), &err);
	MUST(indexset_box(t.ndim, zero, t.shape, &a, &p.set) == 0);
	MUST_OK(table_add_piece(&dst, &p, &err), &err);
	MUST_OK(table_seal(&dst, &err), &err);
	MUST_OK(plan_make(&c->table, &dst, &opts, &plan, NULL, &err), &err);
	MUST_OK(move_open(&io_ops_posix, fd, c, false, IO_INLINE, &files, &err), &err);
	MUST_OK(move_read(&plan, &files, &base, NULL, NULL, &err), &err);
	move_close(&files);
	plan_free(&plan);
	table_free(&dst);
	arena_free(&a);
}

static const struct table_average *row_of(const struct checkpoint *c, const char *name,
					  uint32_t rule)
{
	for (uint32_t i = 0; i < c->table.naverage; i++)
		if (!strcmp(c->table.average[i].name, name) && c->table.average[i].rule == rule)
			return &c->table.average[i];
	return NULL;
}

static void assert_state(const struct table_average *r, const struct ema_state *s)
{
	assert_int_equal(r->last_step, s->last_step);
	assert_int_equal(r->since, s->since);
	assert_int_equal(r->updates, s->updates);
	assert_memory_equal(&r->product, &s->product, sizeof r->product);
	assert_memory_equal(r->history, s->history, sizeof r->history);
}

/* The step's average is that one, to the bit, its state and its history too. */
static void assert_average(uint64_t step, const char *name, const struct expected *x)
{
	struct checkpoint *c = host_open(&H, JOB, step);
	int fd = host_step_fd(&H, JOB, step);
	const struct table_average *r = row_of(c, name, 0);
	char component[64];
	float w[ROWS * COLS], gain[BIAS];

	assert_non_null(r);
	snprintf(component, sizeof component, "ema.%s", name);
	read_tensor(c, fd, component, "w", w);
	read_tensor(c, fd, component, "gain", gain);
	assert_state(r, &x->state);
	assert_memory_equal(w, x->w, sizeof w);
	assert_memory_equal(gain, x->gain, sizeof gain);
	(void)close(fd);
	checkpoint_free(c);
}

/* Two jobs' steps have the same bits. */
static inline void same_tensor(uint64_t step, const char *component, const char *name)
{
	const char *const job[] = { JOB, OTHER };
	float x[2][ROWS * COLS] = { { 0 } };

	for (uint32_t i = 0; i < 2; i++) {
		struct checkpoint *c = host_open(&H, job[i], step);
		int fd = host_step_fd(&H, job[i], step);

		read_tensor(c, fd, component, name, x[i]);
		(void)close(fd);
		checkpoint_free(c);
	}
	assert_memory_equal(x[0], x[1], sizeof x[0]);
}

static void assert_spec(uint64_t step, const char *name, const char *spec, const struct chain *c)
{
	struct expected x = expect(spec, c);

	assert_average(step, name, &x);
}

static inline void assert_both(uint64_t step, const struct chain *c)
{
	assert_spec(step, "fast", FAST, c);
	assert_spec(step, "slow", SLOW, c);
}

/* --- deaths of the daemon --- */
static void daemon_dies(struct rank *k)
{
	uint64_t times = rank_stats(k).reattached;

	rank_meet(k);
	if (k->rank == 0) {
		host_kill(&H);
		host_start(&H, NULL);
	}
	rank_meet(k);
	must_reattach(k, times + 1);
	rank_meet(k);
	for (uint64_t s = 5; s <= 6; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

static inline void staged_and_dies(struct rank *k)
{
	must_mark(k, 3, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	daemon_dies(k);
}
#endif
