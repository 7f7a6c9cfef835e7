/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_average_base.c - averages go on, with the same bits, after every restart: of
 * trainers, of daemons, of both; from memory and from disk; on another mesh; after a new seal; back
 * to an older step. What a step's averages should be is computed here, element by element, from the
 * steps that were taken in, and compared with what is on disk.
 */
#include "ckpt/base/hash.h"
#include "ckpt/client/handle.h"
#include "ckpt/table/names.h"
#include "daemon/average_reading.h"
#include "ema/schedule.h"
#include "ema/spec.h"
#include "formats/native/native.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include <math.h>
#include <poll.h>
#include <sys/mman.h>

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
	uint32_t n[TENSORS];
	uint64_t first[TENSORS];
};
static struct mine mine_of[8];

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
	MUST_OF(k, ckpt_alloc(k->c, (uint64_t)m->n[i] * elem, (void **)&m->mem[i], &k->err));
	local = (struct ckpt_local){ .ptr = m->mem[i] };
	MUST_OF(k, ckpt_tensor_add(k->c, &t, NULL, &k->err));
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
static bool model_holds(const struct rank *k, uint64_t step, uint64_t line)
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

static void run(const char *mesh, struct flow *f)
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
static void same_tensor(uint64_t step, const char *component, const char *name)
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

static void assert_both(uint64_t step, const struct chain *c)
{
	assert_spec(step, "fast", FAST, c);
	assert_spec(step, "slow", SLOW, c);
}

#define assert_has(text, part)                                           \
	do {                                                             \
		if (!strstr(text, part))                                 \
			fail_msg("\"%s\" is not in \"%s\"", part, text); \
	} while (0)

/* --- restarts --- */
TEST(a_launch_that_is_not_disturbed_makes_the_averages_that_are_expected)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 5 });
	chain_steps(&c, 1, 5);
	assert_both(5, &c);
}

/* Saved and restored: on which mesh, and by whom is it remembered? */
static void goes_on(const char *before, const char *after, bool forgets)
{
	struct chain c = { 0 };
	struct flow f = { .average = BOTH, .from = 1, .to = 4 };

	host_start(&H, NULL);
	run(before, &f);
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .average = BOTH, .restore = true, .from = 5, .to = 8 };
	run(after, &f);
	assert_int_equal(f.got_step, 4);
	assert_int_equal(f.got_where, forgets ? 2 : 1);
	assert_has(f.got_averages, "average fast goes on from step 4");
	assert_has(f.got_averages, "average slow goes on from step 4");
	chain_steps(&c, 1, 8);
	assert_both(5,
		    &(struct chain){ .n = 5,
				     .at = { { 1, 0 }, { 2, 0 }, { 3, 0 }, { 4, 0 }, { 5, 0 } } });
	assert_both(8, &c);
}

TEST(a_launch_goes_on_from_memory)
{
	goes_on("fsdp=2", "fsdp=2", false);
}

TEST(a_launch_goes_on_from_disk)
{
	goes_on("fsdp=2", "fsdp=2", true);
}

TEST(more_ranks_go_on_from_disk)
{
	goes_on("fsdp=2", "fsdp=3", true);
}

TEST(fewer_ranks_go_on_from_memory)
{
	goes_on("fsdp=4", "fsdp=1", false);
}

TEST(ranks_with_replicas_go_on_from_memory_and_disk)
{
	goes_on("dp=2,fsdp=2", "fsdp=3", true);
}

TEST(replicas_go_on_from_ranks_without)
{
	goes_on("fsdp=3", "dp=2,fsdp=2", false);
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

/* The slot that the ranks bring along has its seal. */
TEST(a_new_daemon_goes_on_from_slots_that_are_sealed)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = daemon_dies });
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
}

static void staged_and_dies(struct rank *k)
{
	must_mark(k, 3, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	daemon_dies(k);
}

TEST(steps_that_were_never_written_count_for_a_new_daemon)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 2, .amid = staged_and_dies });
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
}

/* No slot has its seal: what is on disk is gone on from, at its true distance. staged: the step
 * that is not written and is averaged anew; 0: there is none. */
static void seals_break_with(struct rank *k, uint64_t staged)
{
	rank_meet(k);
	if (k->rank == 0) {
		host_kill(&H);
	}
	rank_meet(k);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		const uint32_t state = SLOT_SEAL_OPEN;
		uint64_t at = s->bytes - SLOT_SEAL_BYTES + offsetof(struct slot_seal, state);

		if (s->bytes)
			MUST_BE(pwrite(s->fd, &state, sizeof state, (off_t)at), sizeof state);
	}
	rank_meet(k);
	if (k->rank == 0)
		host_start(&H, NULL);
	must_reattach(k, 1);
	if (staged)
		must_soon(is_sealed(k, staged));
	rank_meet(k);
	for (uint64_t s = 7; s <= 8; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

static void seals_break(struct rank *k)
{
	const struct flow *f = k->arg;

	seals_break_with(k, f->flags & CKPT_STAGE_ONLY ? f->to : 0);
}

TEST(without_a_seal_a_new_daemon_goes_on_from_disk)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = seals_break });
	chain_steps(&c, 1, 4);
	chain_steps(&c, 7, 8);
	assert_both(8, &c);
}

static void staged_and_seals_break(struct rank *k)
{
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	seals_break_with(k, 4);
}

/* The line of a launch begins with the step that it has restored, whoever wrote it. */
TEST(without_a_seal_a_new_daemon_goes_on_from_the_restored_step)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=3", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	run("fsdp=2", &(struct flow){ .average = BOTH,
				      .restore = true,
				      .want_flags = CKPT_FROM_DISK,
				      .amid = staged_and_seals_break });
	chain_steps(&c, 1, 4);
	chain_steps(&c, 7, 8);
	assert_both(8, &c);
	assert_int_equal(said_times(&daemon_said, "are lost, and begin anew"), 0);
}

TEST(a_new_daemon_that_finds_nothing_begins_anew_and_says_so)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH,
				      .from = 1,
				      .to = 2,
				      .flags = CKPT_STAGE_ONLY,
				      .amid = seals_break });
	assert_true(said_times(&daemon_said, "are lost, and begin anew") == 1);
	/* The slots have both steps still, and they are averaged again. */
	chain_steps(&c, 1, 2);
	chain_steps(&c, 7, 8);
	assert_both(8, &c);
}

static void all_die(struct rank *k)
{
	rank_meet(k);
	if (k->rank == 0)
		host_kill(&H);
	rank_meet(k);
}

TEST(trainers_and_daemon_die_and_the_next_ones_go_on_from_disk)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = all_die });
	host_start(&H, NULL);
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 6 };
	run("fsdp=3", &f);
	assert_int_equal(f.got_where, 2);
	chain_steps(&c, 1, 6);
	assert_both(6, &c);
}

/* Whenever it stops, and whatever it goes on from. */
TEST(a_launch_may_stop_at_any_step)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=2", "fsdp=4" };
	struct chain c = { 0 };

	host_start(&H, NULL);
	for (uint64_t s = 1; s <= 9; s++) {
		struct flow f = { .average = BOTH, .restore = s > 1, .from = s, .to = s };

		if (s % 3 == 0)
			host_restart(&H);
		run(mesh[s % 3], &f);
		chain_add(&c, s, 0);
	}
	assert_both(9, &c);
}

/* --- going back --- */
static void goes_back_on_disk(struct rank *k)
{
	struct flow f = { .restore = true, .want = 2 };

	rank_meet(k);
	flow_restore(k, &f);
	MUST(model_holds(k, 2, 0));
	rank_meet(k);
	for (uint64_t s = 3; s <= 5; s++) {
		must_mark(k, s, 1, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

TEST(a_launch_that_goes_back_goes_on_from_the_averages_of_then)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = goes_back_on_disk });
	chain_steps(&c, 1, 2);
	chain_add(&c, 3, 1);
	chain_add(&c, 4, 1);
	chain_add(&c, 5, 1);
	assert_both(5, &c);
}

static void goes_back_in_memory(struct rank *k)
{
	struct flow f = { .restore = true };

	must_mark(k, 5, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	flow_restore(k, &f);
	MUST_BE(k->got.where, 1);
	MUST_BE(k->got.step, 5);
	rank_meet(k);
	must_mark(k, 6, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(the_newest_step_in_memory_is_gone_back_to_with_its_averages)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = goes_back_in_memory });
	chain_steps(&c, 1, 5);
	chain_add(&c, 6, 1);
	assert_both(6, &c);
}

TEST(an_older_step_is_restored_by_another_launch)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 5 });
	f = (struct flow){
		.average = BOTH, .restore = true, .want = 3, .from = 4, .to = 5, .line = 2
	};
	run("fsdp=3", &f);
	assert_int_equal(f.got_step, 3);
	chain_steps(&c, 1, 3);
	chain_add(&c, 4, 2);
	chain_add(&c, 5, 2);
	assert_both(5, &c);
}

/* --- changes --- */
TEST(an_average_that_is_new_begins_anew_and_another_one_is_left_alone)
{
	struct chain c = { 0 }, fresh = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	f = (struct flow){ .average = { { "fast", FAST }, { "new", SLOW } },
			   .restore = true,
			   .from = 4,
			   .to = 6 };
	run("fsdp=2", &f);
	assert_has(f.got_averages, "average fast goes on from step 3");
	assert_has(f.got_averages, "average new begins anew: ");
	assert_has(f.got_averages, "no average of that name");
	chain_steps(&c, 1, 6);
	chain_steps(&fresh, 4, 6);
	assert_spec(6, "fast", FAST, &c);
	assert_spec(6, "new", SLOW, &fresh);
}

TEST(a_job_that_had_no_averages_begins_them)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .from = 1, .to = 3 });
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 5 };
	run("fsdp=2", &f);
	assert_has(f.got_averages, "average fast begins anew");
	chain_steps(&c, 4, 5);
	assert_both(5, &c);
}

/* Values and product go on; the history says that the schedule is another one. */
static void another_schedule(bool forgets)
{
	const char *other = "constant decay=.5";
	struct chain c = { 0 }, more = { 0 };
	struct ema_spec *s = NULL;
	struct ckpt_err err;
	char canonical[EMA_SPEC_BYTES];
	struct hash128_state h;
	struct hash128 sum;
	struct expected x;
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .average = { { "fast", other }, { "slow", SLOW } },
			   .restore = true,
			   .from = 4,
			   .to = 5 };
	run("fsdp=2", &f);
	assert_has(f.got_averages, "with another schedule");
	chain_steps(&c, 1, 3);
	chain_steps(&more, 4, 5);
	x = expect(FAST, &c);
	MUST_OK(ema_spec_parse(other, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	ema_spec_free(s);
	hash128_begin(&h);
	hash128_add(&h, x.state.history, sizeof x.state.history);
	hash128_add(&h, canonical, strlen(canonical));
	sum = hash128_end(&h);
	memcpy(x.state.history, sum.b, sizeof x.state.history);
	x = expect_from(other, &more, false, &x);
	assert_average(5, "fast", &x);
	chain_steps(&c, 4, 5);
	assert_spec(5, "slow", SLOW, &c);
}

TEST(another_schedule_goes_on_from_memory_with_the_values)
{
	another_schedule(false);
}

TEST(another_schedule_goes_on_from_disk_with_the_values)
{
	another_schedule(true);
}

static void seals_again(struct rank *k)
{
	rank_meet(k);
	MUST_OF(k, ckpt_average(k->c, "fast", NULL, &k->err));
	MUST_OF(k, ckpt_average(k->c, "more", FAST, &k->err));
	must_seal(k);
	rank_meet(k);
	for (uint64_t s = 4; s <= 6; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

TEST(a_new_seal_goes_on_from_the_averages_of_the_one_before)
{
	struct chain c = { 0 }, fresh = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = seals_again });
	chain_steps(&c, 1, 6);
	chain_steps(&fresh, 4, 6);
	assert_spec(6, "slow", SLOW, &c);
	assert_spec(6, "more", FAST, &fresh);
}

TEST(a_new_seal_behind_a_restore_goes_on_from_the_newest_step)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 2 });
	run("fsdp=2",
	    &(struct flow){
		    .average = BOTH, .restore = true, .from = 3, .to = 3, .amid = seals_again });
	chain_steps(&c, 1, 6);
	assert_spec(6, "slow", SLOW, &c);
}

TEST(a_new_seal_before_the_first_step_goes_on_from_what_was_restored)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	run("fsdp=3", &(struct flow){ .average = BOTH, .restore = true, .amid = seals_again });
	chain_steps(&c, 1, 6);
	assert_spec(6, "slow", SLOW, &c);
}

/* --- for evaluation --- */
static void averages_are_restored(bool forgets)
{
	struct chain c = { 0 };
	struct expected x;
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	if (forgets)
		host_restart(&H);
	chain_steps(&c, 1, 3);
	x = expect(FAST, &c);
	f = (struct flow){ .average = BOTH, .sink_is = &x, .restore = true, .from = 4, .to = 4 };
	run("fsdp=3", &f);
	assert_int_equal(f.got_where, forgets ? 2 : 1);
	chain_steps(&c, 4, 4);
	assert_both(4, &c);
	x = expect(FAST, &c); /* without averages of its own, too */
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .sink_is = &x, .restore = true };
	run("fsdp=2", &f);
	assert_string_equal(f.got_averages, "");
}

TEST(averages_are_restored_into_sinks_from_memory)
{
	averages_are_restored(false);
}

TEST(averages_are_restored_into_sinks_from_disk)
{
	averages_are_restored(true);
}

/* --- what is missing or damaged --- */
TEST(an_average_of_which_a_tensor_is_missing_begins_anew_whole)
{
	struct chain c = { 0 }, fresh = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = { { "fast", FAST " gain=skip" }, { "slow", SLOW } },
			    .from = 1,
			    .to = 3 });
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 5 };
	run("fsdp=2", &f);
	assert_has(f.got_averages, "average fast begins anew");
	assert_has(f.got_averages, "lacks ema.fast/gain");
	assert_has(f.got_averages, "average slow goes on from step 3");
	chain_steps(&fresh, 4, 5);
	chain_steps(&c, 1, 5);
	assert_spec(5, "fast", FAST, &fresh);
	assert_spec(5, "slow", SLOW, &c);
}

static void average_part_damage(uint64_t step)
{
	struct checkpoint *c = host_open(&H, JOB, step);
	int dir = host_step_fd(&H, JOB, step), fd = -1;
	uint8_t b;

	for (uint32_t i = 0; i < c->nfile && fd < 0; i++)
		if (c->file[i].kind == PART_AVERAGE) {
			fd = openat(dir, c->file[i].name, O_RDWR | O_CLOEXEC);
			MUST_BE(pread(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
			b ^= 1;
			MUST_BE(pwrite(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
		}
	MUST(fd >= 0);
	(void)close(fd);
	(void)close(dir);
	checkpoint_free(c);
}

TEST(a_step_whose_averages_are_damaged_is_passed_over)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4 });
	host_stop(&H);
	average_part_damage(4);
	host_start(&H, NULL);
	f = (struct flow){ .average = BOTH, .restore = true, .from = 4, .to = 5, .line = 1 };
	run("fsdp=2", &f);
	assert_int_equal(f.got_step, 3);
	chain_steps(&c, 1, 3);
	chain_add(&c, 4, 1);
	chain_add(&c, 5, 1);
	assert_both(5, &c);
}

static void average_parts_remove(uint64_t step)
{
	struct checkpoint *c = host_open(&H, JOB, step);
	int dir = host_step_fd(&H, JOB, step);

	for (uint32_t i = 0; i < c->nfile; i++)
		if (c->file[i].kind == PART_AVERAGE)
			MUST_BE(unlinkat(dir, c->file[i].name, 0), 0);
	(void)close(dir);
	checkpoint_free(c);
}

/* Averages that the next launch finds in memory; each rank spoils its own of step 4. */
static void averages_spoil(struct rank *k)
{
	struct chain c = { 0 };
	const struct mine *m = &mine_of[k->rank];
	struct expected x;
	uint32_t found = 0;

	chain_steps(&c, 1, 4);
	x = expect(FAST, &c);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		uint8_t *p, *at;

		if (!s->bytes)
			continue;
		p = mmap(NULL, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, s->fd, 0);
		MUST(p != MAP_FAILED);
		at = memmem(p, s->bytes, x.w + m->first[MASTER], COLS * sizeof(float));
		if (at)
			*at ^= 1;
		found += at != NULL;
		(void)munmap(p, s->bytes);
	}
	MUST_BE(found, 1);
}

TEST(averages_that_are_damaged_in_memory_are_taken_from_disk)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2",
	    &(struct flow){ .average = BOTH, .from = 1, .to = 4, .amid = averages_spoil });
	f = (struct flow){ .average = BOTH, .restore = true, .from = 5, .to = 5 };
	run("fsdp=2", &f);
	assert_int_equal(f.got_step, 4);
	assert_int_equal(f.got_where, 2);
	chain_steps(&c, 1, 5);
	assert_both(5, &c);
}

/* Nobody who wants no averages opens their parts. */
TEST(a_job_without_averages_restores_a_step_whose_averages_are_gone)
{
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 4 });
	host_stop(&H);
	average_parts_remove(4);
	host_start(&H, NULL);
	f = (struct flow){ .restore = true };
	run("fsdp=2", &f);
	assert_int_equal(f.got_step, 4);
}

/* --- other words of a spec --- */
TEST(corrections_go_on_with_what_they_correct)
{
	const char *kahan = FAST " kahan";
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = { { "fast", kahan } }, .from = 1, .to = 3 });
	host_restart(&H);
	f = (struct flow){ .average = { { "fast", kahan } }, .restore = true, .from = 4, .to = 6 };
	run("fsdp=3", &f);
	assert_has(f.got_averages, "average fast goes on from step 3 on disk");
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "fast", kahan } }, .from = 1, .to = 6 });
	same_tensor(6, "ema.fast", "w");
	same_tensor(6, "ema.fast.carry", "w");
	same_tensor(6, "ema.fast", "gain");
}

TEST(an_average_of_the_parameter_goes_on)
{
	const char *param = FAST " source=param";
	struct chain c = { 0 };
	struct expected x;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = { { "fast", param } }, .from = 1, .to = 3 });
	host_restart(&H);
	run("fsdp=1",
	    &(struct flow){
		    .average = { { "fast", param } }, .restore = true, .from = 4, .to = 6 });
	chain_steps(&c, 1, 6);
	x = expect_from(param, &c, true, NULL);
	assert_average(6, "fast", &x);
}

/* --- parts of a restore --- */
static void takes_some(struct rank *k)
{
	struct flow f = { .restore = true, .want = 2, .only = "optim" };

	rank_meet(k);
	flow_restore(k, &f); /* the master is what is averaged */
	MUST(k->rank || strstr(f.got_averages, "average fast goes on from step 2"));
	rank_meet(k);
	must_mark(k, 3, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(a_restore_of_weights_alone_takes_their_averages)
{
	struct chain c = { 0 };

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3, .amid = takes_some });
	chain_steps(&c, 1, 2);
	chain_add(&c, 3, 1);
	assert_both(3, &c);
}

/* --- seeds --- */
static const char *seed_path(uint64_t step)
{
	static char path[200];

	snprintf(path, sizeof path, "%s/" OTHER "/step-%012llu", H.store, (unsigned long long)step);
	return path;
}

static const char *seeded(const char *schedule, const char *path)
{
	static char spec[400];

	snprintf(spec, sizeof spec, "%s seed=%s", schedule, path);
	return spec;
}

/* With a step of OTHER, which is there. */
static char seed_id[40];
static bool seed_weights; /* it has no average of the name */

static const char *seeded_with(const char *schedule, uint64_t step, bool weights)
{
	struct checkpoint *k = host_open(&H, OTHER, step);

	memcpy(seed_id, k->id, sizeof seed_id);
	seed_weights = weights;
	checkpoint_free(k);
	return seeded(schedule, seed_path(step));
}

/* The first step's average is the seed of seeded_with; then it goes on. */
static void assert_seeded(const char *spec, uint64_t first, uint64_t last, const float *w,
			  const float *gain)
{
	struct chain c = { 0 };
	struct ema_spec *s = NULL;
	struct ckpt_err err;
	char canonical[EMA_SPEC_BYTES];
	struct expected x = { 0 };
	struct checkpoint *k = host_open(&H, JOB, last);

	MUST_OK(ema_spec_parse(spec, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	ema_spec_free(s);
	x.state = ema_state_seeded(canonical, first, seed_id, seed_weights);
	memcpy(x.w, w, sizeof x.w);
	memcpy(x.gain, gain, sizeof x.gain);
	chain_steps(&c, first + 1, last);
	x = expect_from(spec, &c, false, &x);
	assert_average(last, "fast", &x);
	assert_true(row_of(k, "fast", 0)->flags & AVERAGE_SEEDED);
	assert_string_equal(row_of(k, "fast", 0)->schedule, canonical);
	checkpoint_free(k);
}

static void seed_remove(void)
{
	char was[200], now[220];

	snprintf(was, sizeof was, "%s/" OTHER, H.store);
	snprintf(now, sizeof now, "%s-away", was);
	MUST(rename(was, now) == 0);
}

TEST(an_average_begins_with_the_average_of_its_name_in_the_seed)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=3",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	spec = seeded_with(FAST, 3, false);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec } }, .from = 1, .to = 4 });
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, 1, 4, x.w, x.gain);
	/* What has gone on does not begin again. Its seed may be gone by then, */
	host_restart(&H);
	seed_remove();
	run("fsdp=1",
	    &(struct flow){ .average = { { "fast", spec } }, .restore = true, .from = 5, .to = 6 });
	assert_seeded(spec, 1, 6, x.w, x.gain);
	/* and be left out: it is still the same average. */
	host_restart(&H);
	run("fsdp=1",
	    &(struct flow){ .average = { { "fast", FAST } }, .restore = true, .from = 7, .to = 8 });
	assert_seeded(spec, 1, 8, x.w, x.gain);
	assert_int_equal(said_times(&daemon_said, "cannot be opened"), 0);
}

static void says_what_ends(bool forgets)
{
	static const char ends[] = "average %s does not go on: step 3 has it, and this job does "
				   "not declare it";
	char slow[128], fast[128];
	struct flow f;

	snprintf(slow, sizeof slow, ends, "slow");
	snprintf(fast, sizeof fast, ends, "fast");
	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = BOTH, .from = 1, .to = 3 });
	if (forgets)
		host_restart(&H);
	f = (struct flow){ .average = { { "fast", FAST } }, .restore = true };
	run("fsdp=2", &f);
	assert_has(f.got_averages, "average fast goes on from step 3");
	assert_has(f.got_averages, slow);
	assert_int_equal(said_times(&daemon_said, slow), 1);
	assert_int_equal(said_times(&daemon_said, fast), 0);
	f = (struct flow){ .restore = true };
	run("fsdp=2", &f);
	assert_string_equal(f.got_averages, "");
	assert_int_equal(said_times(&daemon_said, slow), 2);
	assert_int_equal(said_times(&daemon_said, fast), 1);
}

TEST(a_restore_out_of_memory_names_averages_that_nobody_declares_any_more)
{
	says_what_ends(false);
}

TEST(a_restore_from_disk_names_averages_that_nobody_declares_any_more)
{
	says_what_ends(true);
}

TEST(a_seed_that_is_gone_is_refused_at_seal_by_a_job_that_has_no_step)
{
	struct flow f = { .average = { { "fast", FAST " seed=/nowhere/step-1" },
				       { "slow", SLOW " seed=/nowhere/else" } },
			  .rc = -EINVAL };

	host_start(&H, NULL);
	run("fsdp=2", &f);
	assert_has(f.said, "average fast: its seed /nowhere/step-1 cannot be used: it cannot be "
			   "opened: No such file or directory");
	assert_has(f.said, "average slow: its seed /nowhere/else cannot");
}

TEST(an_average_that_the_restored_step_lacks_begins_anew_where_its_seed_is_gone)
{
	struct chain c = { 0 };
	struct flow f;

	host_start(&H, NULL);
	run("fsdp=2", &(struct flow){ .average = { { "slow", SLOW } }, .from = 1, .to = 4 });
	f = (struct flow){ .average = { { "fast", FAST " seed=/nowhere/step-1" },
					{ "slow", SLOW } },
			   .restore = true,
			   .from = 5,
			   .to = 6 };
	run("fsdp=2", &f);
	chain_steps(&c, 5, 6);
	assert_spec(6, "fast", FAST, &c);
	memset(&c, 0, sizeof c);
	chain_steps(&c, 1, 6);
	assert_spec(6, "slow", SLOW, &c);
	assert_int_equal(said_times(&daemon_said,
				    "average fast begins anew: average fast: its seed "
				    "/nowhere/step-1 cannot be used: it cannot be opened"),
			 1);
}

static void begins_with_weights(bool narrow)
{
	float w[ROWS * COLS], gain[BIAS];
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=3", &(struct flow){ .no_master = narrow, .from = 7, .to = 7 });
	spec = seeded_with(FAST, 7, true);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec } }, .from = 1, .to = 3 });
	for (uint32_t i = 0; i < ROWS * COLS; i++) {
		w[i] = value(MASTER, i, 7, 0);
		w[i] = narrow ? of_bf16(bf16_of(w[i])) : w[i];
	}
	for (uint32_t i = 0; i < BIAS; i++)
		gain[i] = value(GAIN, i, 7, 0);
	assert_seeded(spec, 1, 3, w, gain);
}

TEST(an_average_begins_with_the_masters_of_the_seed)
{
	begins_with_weights(false);
}

TEST(an_average_begins_with_the_parameters_of_the_seed_widened)
{
	begins_with_weights(true);
}

TEST(a_seed_is_for_the_average_that_the_restored_step_lacks)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;
	struct flow f;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	run("fsdp=2", &(struct flow){ .average = { { "slow", SLOW } }, .from = 1, .to = 4 });
	spec = seeded_with(FAST, 3, false);
	f = (struct flow){ .average = { { "fast", spec }, { "slow", SLOW } },
			   .restore = true,
			   .from = 5,
			   .to = 6 };
	run("fsdp=2", &f);
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, 4, 6, x.w, x.gain);
	chain_steps(&c, 4, 6);
	assert_spec(6, "slow", SLOW, &c);
}

static void daemon_dies_first(struct rank *k)
{
	daemon_dies(k);
	must_mark(k, 7, 0, CKPT_PERSIST, CKPT_COMMITTED);
	rank_meet(k);
}

/* The first step is copied, and its averages are not made: no seal was ever complete. */
static void daemon_dies_in_the_first_step(struct rank *k)
{
	must_mark(k, 4, 0, CKPT_STAGE_ONLY, CKPT_STAGED);
	rank_meet(k);
	if (k->rank == 0)
		host_kill(&H);
	rank_meet(k);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		const struct slot *s = &k->c->slot[i];
		const uint8_t zero[SLOT_SEAL_BYTES] = { 0 };

		if (s->bytes)
			MUST_BE(pwrite(s->fd, zero, sizeof zero, (off_t)(s->bytes - sizeof zero)),
				sizeof zero);
	}
	rank_meet(k);
	if (k->rank == 0)
		host_start(&H, NULL);
	must_reattach(k, 1);
	rank_meet(k);
	for (uint64_t s = 5; s <= 7; s++) {
		must_mark(k, s, 0, CKPT_PERSIST, CKPT_COMMITTED);
		rank_meet(k);
	}
}

/* Before anything was averaged, nothing is lost with a daemon: the launch begins as it would
 * have. */
static void begins_with_the_seed_under_the_next_daemon(void (*amid)(struct rank *k), uint64_t first)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=3",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	spec = seeded_with(FAST, 3, false);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec } }, .amid = amid });
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, first, 7, x.w, x.gain);
	assert_int_equal(said_times(&daemon_said, "are lost, and begin anew"), 0);
}

TEST(a_daemon_that_dies_before_the_first_step_does_not_lose_the_seed)
{
	begins_with_the_seed_under_the_next_daemon(daemon_dies_first, 5);
}

TEST(a_daemon_that_dies_in_the_first_step_does_not_lose_the_seed)
{
	begins_with_the_seed_under_the_next_daemon(daemon_dies_in_the_first_step, 4);
}

TEST(a_daemon_that_dies_behind_a_restore_does_not_lose_the_seed_of_what_that_step_lacks)
{
	struct chain c = { 0 };
	struct expected x;
	const char *spec;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "fast", SLOW } }, .from = 1, .to = 3 });
	run("fsdp=2", &(struct flow){ .average = { { "slow", SLOW } }, .from = 1, .to = 4 });
	spec = seeded_with(FAST, 3, false);
	run("fsdp=2", &(struct flow){ .average = { { "fast", spec }, { "slow", SLOW } },
				      .restore = true,
				      .want_flags = CKPT_FROM_DISK,
				      .amid = daemon_dies_first });
	chain_steps(&c, 1, 3);
	x = expect(SLOW, &c);
	assert_seeded(spec, 4, 7, x.w, x.gain);
	chain_steps(&c, 4, 7);
	assert_spec(7, "slow", SLOW, &c);
}

static void assert_refused(const char *path, const char *why)
{
	struct flow f = { .average = { { "fast", seeded(FAST, path) } }, .rc = -EINVAL };

	run("fsdp=2", &f);
	assert_has(f.said, "average fast: its seed ");
	assert_has(f.said, why);
}

TEST(a_seed_that_is_no_step_is_refused_at_seal)
{
	host_start(&H, NULL);
	MUST(mkdir(H.store, 0700) == 0 || errno == EEXIST);
	assert_refused(H.store, "cannot be used");
}

TEST(a_seed_that_lacks_a_tensor_is_refused_at_seal)
{
	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1",
	       &(struct flow){ .average = { { "other", "uniform" } },
			       .from = 1,
			       .to = 1,
			       .no_gain = true });
	assert_refused(seed_path(1), "model/gain");
}

/* A seed may be anybody's: what lies in the place of its files is not waited for, and no link is
 * followed. */
TEST(a_seed_with_other_things_in_the_place_of_its_files_is_refused)
{
	char step[300], part[600] = "", manifest[400];
	struct checkpoint *c;

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=1", &(struct flow){ .from = 1, .to = 2 });
	for (uint64_t i = 1; i <= 2; i++) {
		c = host_open(&H, OTHER, i);
		snprintf(step, sizeof step, "%s", seed_path(i));
		snprintf(manifest, sizeof manifest, "%s/MANIFEST", step);
		snprintf(part, sizeof part, "%s/%s", step, c->file[0].name);
		checkpoint_free(c);
		MUST_BE(unlink(i == 1 ? manifest : part), 0);
		MUST_BE(mkfifo(i == 1 ? manifest : part, 0600), 0);
		assert_refused(step,
			       i == 1 ? "MANIFEST: it cannot be opened" : "not a regular file");
		MUST_BE(unlink(i == 1 ? manifest : part), 0);
		MUST_BE(symlink("/dev/zero", i == 1 ? manifest : part), 0);
		assert_refused(step, "Too many levels of symbolic links");
	}
}

/* A seed is somebody else's: whatever its bytes are, it is a seed or a sentence. */
TEST(a_seed_whose_bytes_are_damaged_is_refused_or_not_begun_with)
{
	struct flow f = { .average = BOTH, .from = 1, .to = 2 };
	struct checkpoint *c;
	int dir, fd;
	struct chain chain = { 0 };

	host_start(&H, NULL);
	run_of(OTHER, "fsdp=2", &f);
	c = host_open(&H, OTHER, 2);
	dir = host_step_fd(&H, OTHER, 2);
	for (uint32_t i = 0; i < c->nfile; i++) {
		uint8_t b;

		if (c->file[i].kind != PART_AVERAGE)
			continue;
		fd = openat(dir, c->file[i].name, O_RDWR | O_CLOEXEC);
		MUST_BE(pread(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
		b ^= 1;
		MUST_BE(pwrite(fd, &b, 1, (off_t)c->file[i].chunk[0].off), 1);
		(void)close(fd);
	}
	checkpoint_free(c);
	f = (struct flow){ .average = { { "fast", seeded(FAST, seed_path(2)) } },
			   .from = 1,
			   .to = 2 };
	run("fsdp=2", &f);
	assert_int_equal(
		said_times(&daemon_said, "average fast begins anew: average fast: its seed"), 1);
	chain_steps(&chain, 1, 2);
	assert_spec(2, "fast", f.average[0].spec, &chain);
	(void)close(dir);
}

/* --- what is read, by hand --- */
#define HAND 4u /* rows of each tensor, and columns */

/* One rank that declares these, and no more than its averages. */
static struct decl *hand(const char *spec, bool gain, uint64_t columns)
{
	const uint64_t zero[] = { 0, 0 }, shape[] = { HAND, columns };
	struct table_place place = ROW(.name = "memory", .rank = 0, .bytes = 1 << 20);
	struct decl *d = calloc(1, sizeof *d);
	struct table t = { 0 }, main = { 0 };
	struct ckpt_errlist list = { .code = -EINVAL };
	struct ema_spec *s = NULL;
	char canonical[EMA_SPEC_BYTES];
	struct table_average average = ROW(.name = "fast", .schedule = canonical);
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct mesh mesh;

	MUST_OK(ema_spec_parse(spec, &s, &err), &err);
	MUST(ema_spec_print(s, 0, canonical) == 0);
	ema_spec_free(s);
	MUST_OK(mesh_parse("fsdp=1", &a, &mesh, &err), &err);
	MUST_OK(table_add_mesh(&t, &mesh, NULL, &err), &err);
	MUST_OK(table_add_place(&t, &place, NULL, &err), &err);
	MUST_OK(table_add_average(&t, &average, NULL, &err), &err);
	for (uint32_t i = 0; i < (gain ? 2u : 1u); i++) {
		struct layout l = { 0 };
		struct table_tensor x = ROW(.component = "model", .name = i ? "gain" : "w",
					    .of = "", .dtype = CKPT_F32, .role = CKPT_PARAM,
					    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
		struct table_piece p = { .rank = 0, .off = 4096ul * i };

		MUST_OK(table_add_layout(&t, &l, &x.layout, &err), &err);
		MUST_OK(table_add_tensor(&t, &x, &p.tensor, &err), &err);
		MUST(indexset_box(2, zero, shape, &a, &p.set) == 0);
		MUST_OK(table_add_piece(&t, &p, &err), &err);
	}
	MUST_OK(table_seal(&t, &err), &err);
	MUST_OK(native_part_table_of(&t, 0, NATIVE_MAIN, &main, &list, &err), &err);
	d->refs = d->slots = 2; /* it is freed by hand_free */
	d->names = names_new();
	d->epoch = 1;
	d->rows_fd = -1;
	MUST_OK(averages_make(&t, &main, 0, d->names, &d->averages, &err), &err);
	d->main = main;
	d->part = t; /* both live as long as the pieces' sets are used */
	ckpt_errlist_free(&list);
	arena_free(&a);
	return d;
}

static void hand_free(struct decl *d)
{
	averages_free(d->averages);
	table_free(&d->main);
	table_free(&d->part);
	names_unref(d->names);
	free(d);
}

static int hand_move(void *bytes, const struct plan *p, void *const *base, struct ckpt_err *err)
{
	const void *src[] = { bytes };

	(void)err;
	return move_copy(p, src, base, NULL, NULL);
}

/* What is made of `old`, whose rows the caller has changed. */
static struct average_base *hand_read(struct decl *old, struct decl *now,
				      const struct table_average *row, char said[1000])
{
	const struct average_origin from = {
		.table = &old->averages->made, .nrow = old->averages->nrow, .row = row, .step = 10
	};
	float *bytes = calloc(1, old->averages->bytes + 4096);
	struct average_reading *x = NULL;
	struct average_base *b;
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < old->averages->bytes / 4; i++)
		bytes[i] = (float)i + 1;
	MUST_OK(average_reading_plan(&now, 1, &from, &x, &err), &err);
	MUST_OK(average_reading_move(x, NULL, hand_move, bytes, &err), &err);
	b = average_reading_base(x);
	average_reading_say(x, said, 1000);
	average_reading_free(x);
	free(bytes);
	return b;
}

static void rows_of(const struct decl *d, struct table_average row[4])
{
	MUST(d->averages->nrow <= 4);
	for (uint32_t i = 0; i < d->averages->nrow; i++) {
		row[i] = d->averages->made.average[i];
		row[i].product = .25 / (i + 1);
		row[i].updates = 7 + i;
		row[i].last_step = 10 - i;
		row[i].since = 1;
		memset(row[i].history, 0x40 + (int)i, 16);
	}
}

/* Element 0 of a tensor of the base; NAN: it has none. */
static float hand_first(const struct average_base *b, const char *component, const char *name)
{
	const struct table *t = &b->decl[0]->averages->made;
	uint32_t i = table_find(t, component, name, TABLE_NONE);
	float f = NAN;

	if (i != TABLE_NONE)
		memcpy(&f, (uint8_t *)b->mem[0]->base + t->piece[t->first[i]].off, sizeof f);
	return f;
}

static float hand_of(const struct decl *d, const char *name)
{
	const struct table *t = &d->averages->made;
	uint32_t i = table_find(t, "ema.fast", name, TABLE_NONE);

	return (float)(t->piece[t->first[i]].off / 4) + 1;
}

/* What a row says that cannot be, or cannot be understood, is not gone on from. */
TEST(rows_that_make_no_sense_begin_anew)
{
	struct decl *d = hand(FAST, true, HAND);
	struct table_average good[4], bad;
	struct average_base *b;
	char said[1000];

	rows_of(d, good);
	b = hand_read(d, d, good, said);
	assert_string_equal(said, "average fast goes on from step 10 on disk");
	assert_int_equal(b->row[0].updates, 7);
	assert_true(b->row[0].product == .25);
	assert_int_equal(b->row[0].last_step, 10);
	assert_int_equal(b->row[0].since, 1);
	assert_memory_equal(b->row[0].history, good[0].history, 16);
	assert_true(hand_first(b, "ema.fast", "gain") == hand_of(d, "gain"));
	average_base_unref(b);
	for (uint32_t i = 0; i < 7; i++) {
		const struct table_average *row = &bad;

		bad = good[0];
		if (i == 0)
			bad.last_step = 11;
		else if (i == 1)
			bad.since = 11;
		else if (i == 2)
			bad.product = NAN;
		else if (i == 3)
			bad.product = 1.5;
		else if (i == 4)
			bad.last_step = EMA_NO_STEP;
		else if (i == 5)
			bad.schedule = "constant decay=.9 later=3";
		else
			bad.name = "other";
		b = hand_read(d, d, row, said);
		assert_null(b);
		assert_has(said, "average fast begins anew: step 10 on disk has it not: ");
		if (i == 5)
			assert_has(said, "a version newer than this one");
	}
	hand_free(d);
}

TEST(flags_go_on_and_another_shape_does_not)
{
	struct decl *d = hand(FAST, true, HAND), *other = hand(FAST, true, HAND + 1);
	struct table_average row[4];
	struct average_base *b;
	char said[1000];

	rows_of(d, row);
	row[0].flags = AVERAGE_MIXED | AVERAGE_SEEDED | AVERAGE_KAHAN;
	b = hand_read(d, d, row, said);
	assert_int_equal(b->flags[0], AVERAGE_MIXED | AVERAGE_SEEDED);
	average_base_unref(b);
	assert_null(hand_read(d, other, row, said));
	assert_has(said, "has another shape there");
	hand_free(d);
	hand_free(other);
}

TEST(a_correction_that_is_new_begins_at_zero)
{
	struct decl *old = hand(FAST, true, HAND), *now = hand(FAST " kahan", true, HAND);
	struct table_average row[4];
	struct average_base *b;
	char said[1000];

	rows_of(old, row);
	b = hand_read(old, now, row, said);
	assert_has(said, "with another schedule");
	assert_int_equal(b->flags[0], AVERAGE_KAHAN);
	assert_true(hand_first(b, "ema.fast", "w") == hand_of(old, "w"));
	assert_true(hand_first(b, "ema.fast.carry", "w") == 0);
	average_base_unref(b);
	row[0].flags = AVERAGE_KAHAN; /* then it should be there */
	assert_null(hand_read(old, now, row, said));
	assert_has(said, "lacks ema.fast.carry/");
	hand_free(old);
	hand_free(now);
}

/* Rules come and go: each tensor's values go on, and a history that is of several is MIXED. */
TEST(tensors_that_another_rule_has_averaged_go_on)
{
	struct decl *one = hand(FAST, true, HAND), *two = hand(FAST " gain=(uniform)", true, HAND);
	struct table_average row[4];
	struct average_base *b;
	char said[1000];

	assert_int_equal(two->averages->nrow, 2);
	rows_of(one, row);
	b = hand_read(one, two, row, said);
	assert_has(said,
		   "average fast (rule 1) goes on from step 10 on disk, with another schedule");
	assert_int_equal(b->row[1].updates, 7);
	assert_int_equal(b->flags[0] | b->flags[1], 0);
	assert_true(hand_first(b, "ema.fast", "gain") == hand_of(one, "gain"));
	average_base_unref(b);
	rows_of(two, row);
	b = hand_read(two, one, row, said);
	assert_has(said, "MIXED");
	assert_int_equal(b->flags[0], AVERAGE_MIXED);
	assert_int_equal(b->row[0].updates, 7);
	average_base_unref(b);
	hand_free(one);
	hand_free(two);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
