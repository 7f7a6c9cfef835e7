/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_average.c - the averages of steps (daemon/average.h): which steps they take in, with
 * what bits, and what becomes of them when something fails. Trainers are in this process; what a
 * committed step holds is compared with a plain loop over whole tensors that applied the same
 * steps.
 */
#include "tests/lib/handmade.h"
#include "tests/lib/host.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include "ckpt/base/dtype.h"
#include "daemon/average.h"
#include "daemon/passes.h"
#include <inttypes.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>

#define JOB "avg"
#define ROWS 211 /* of the large tensors: uneven on every mesh */
#define RANKS_MAX 4
#define AVERAGES_MAX 64

/* --- trainers --- */
struct spec {
	const char *component, *name, *of;
	uint32_t dtype, role, cls, ndim;
	uint64_t n[2];
	bool shard;
	float scale;
};
enum { MASTER_W, W, U, NORM, NORM2, BIG, BIG_M, BUF, SPECS };
static const struct spec specs[SPECS] = {
	{ "optim",
	  "w.master",
	  "model/w",
	  CKPT_F32,
	  CKPT_MASTER,
	  CKPT_STABLE,
	  2,
	  { ROWS, 24 },
	  true,
	  1 },
	{ "model",
	  "w",
	  "optim/w.master",
	  CKPT_BF16,
	  CKPT_PARAM,
	  CKPT_DERIVED,
	  2,
	  { ROWS, 24 },
	  true,
	  1 },
	{ "model", "u", NULL, CKPT_F16, CKPT_PARAM, CKPT_STABLE, 2, { 13, 9 }, true, 1 },
	{ "model", "norm", NULL, CKPT_F32, CKPT_PARAM, CKPT_STABLE, 1, { 37, 1 }, false, 1 },
	{ "model", "norm2", NULL, CKPT_F32, CKPT_PARAM, CKPT_STABLE, 1, { 37, 1 }, false, 8 },
	{ "model", "big", NULL, CKPT_F32, CKPT_PARAM, CKPT_STABLE, 2, { ROWS, 1601 }, true, 1 },
	{ "optim",
	  "big.m",
	  "model/big",
	  CKPT_F32,
	  CKPT_MOMENT1,
	  CKPT_STABLE,
	  2,
	  { ROWS, 7 },
	  true,
	  1 },
	{ "model", "buf", NULL, CKPT_F32, CKPT_BUFFER, CKPT_STABLE, 2, { 5, 7 }, false, 1 },
};
static const uint32_t averaged[] = { W, U, NORM, NORM2, BIG };

struct trainer {
	ckpt *c;
	struct arena a;
	uint32_t rank;
	uint8_t *p[SPECS];
	uint64_t at[SPECS], rows[SPECS]; /* its share: rows [at, + rows) */
	struct ckpt_err err;
};
static struct team {
	struct trainer r[RANKS_MAX];
	uint32_t world, slots;
	const char *name[AVERAGES_MAX], *spec[AVERAGES_MAX];
	uint32_t naverage;
	/* The step whose values are not finite, in this rank, and what they are */
	uint64_t bad_step;
	uint64_t unequal; /* in this step W is not the rounding of its master */
	uint32_t bad_rank;
	float bad;
} T;

/*
 * What is computed for comparison, for each element of each step: no other thread has it, and
 * ThreadSanitizer takes half of the program's time for it.
 */
#define OWN __attribute__((no_sanitize("thread")))

OWN static float part_of(uint64_t x)
{
	x *= 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return (float)((int64_t)(x ^ x >> 31) >> 40) / 8388608.0f;
}

/* Of an element before it is stored: the master of W is W. */
OWN static float value(uint32_t spec, uint64_t g, uint64_t step)
{
	uint64_t of = spec == W && step != T.unequal ? MASTER_W : spec;

	return specs[spec].scale *
	       (part_of(of << 40 ^ g) + .05f * part_of(of << 40 ^ g ^ (step + 1) << 20));
}

OWN static uint16_t bf16_of(float x)
{
	uint32_t b;

	memcpy(&b, &x, 4);
	return (uint16_t)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

OWN static float f32_of_bf16(uint16_t x)
{
	uint32_t b = (uint32_t)x << 16;
	float f;

	memcpy(&f, &b, 4);
	return f;
}

OWN static uint16_t f16_of(float x)
{
	uint32_t bits;

	memcpy(&bits, &x, 4);
	return handmade_f16(bits);
}

/* Of a finite one. */
OWN static float f32_of_f16(uint16_t h)
{
	int exponent = h >> 10 & 31;
	float x = ldexpf((float)((h & 1023) | (exponent ? 1024 : 0)), MAX(exponent, 1) - 25);

	return h & 0x8000 ? -x : x;
}

/* As the averages see it. */
OWN static float stored(uint32_t spec, uint64_t g, uint64_t step)
{
	float x = value(spec, g, step);

	if (specs[spec].dtype == CKPT_BF16)
		return f32_of_bf16(bf16_of(x));
	return specs[spec].dtype == CKPT_F16 ? f32_of_f16(f16_of(x)) : x;
}

static void put(uint32_t dtype, uint8_t *p, float x)
{
	uint16_t h = dtype == CKPT_BF16 ? bf16_of(x) : f16_of(x);

	if (dtype == CKPT_F32)
		memcpy(p, &x, 4);
	else
		memcpy(p, &h, sizeof h);
}

OWN static uint64_t columns(uint32_t spec)
{
	return specs[spec].n[1];
}

static void fill_one(struct trainer *k, uint64_t step)
{
	for (uint32_t s = 0; s < SPECS; s++)
		for (uint64_t i = 0; i < k->rows[s] * columns(s); i++)
			put(specs[s].dtype, k->p[s] + i * dtype_bytes(specs[s].dtype),
			    value(s, k->at[s] * columns(s) + i, step));
	if (T.bad_step == step && T.bad_rank == k->rank)
		put(CKPT_F32, k->p[BIG] + 4, T.bad);
}

static void declare_one(struct trainer *k, uint32_t s, uint32_t mesh, const struct mesh *m)
{
	const struct spec *x = &specs[s];
	struct ckpt_placement place = ROW(.how = CKPT_SHARD, .split_factor = 1);
	struct layout l = { .nplace = x->shard, .place = &place };
	struct ckpt_local local = { 0 };
	uint32_t coord[CKPT_DIMS_MAX];
	struct indexset share;
	struct ckpt_tensor t = ROW(.size = sizeof t, .cls = x->cls, .role = x->role,
				   .dtype = x->dtype, .component = x->component, .name = x->name,
				   .of = x->of, .ndim = x->ndim, .mesh = mesh, .nplace = l.nplace,
				   .shape = x->n, .place = &place, .local = &local);

	MUST(mesh_coord(m, k->rank, coord));
	MUST(layout_share(m, &l, x->ndim, x->n, coord, &k->a, &share) == 0);
	k->rows[s] = share.dim[0].total;
	k->at[s] = k->rows[s] ? share.dim[0].run[0].start : 0;
	MUST_OF(k, ckpt_alloc(k->c, MAX(k->rows[s] * columns(s) * 4, UINT64_C(4)),
			      (void **)&k->p[s], &k->err));
	local.ptr = k->p[s];
	t.nlocal = k->rows[s] > 0;
	MUST_OF(k, ckpt_tensor_add(k->c, &t, &(uint32_t){ 0 }, &k->err));
}

static void trainer_open(struct trainer *k, uint32_t rank)
{
	struct ckpt_opts o = ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = JOB,
				 .store = H.store, .socket = H.socket, .rank = rank,
				 .world = T.world, .slots = T.slots, .guard = CKPT_FINISH);
	char text[16];
	struct mesh m;
	uint32_t mesh;

	*k = (struct trainer){ .rank = rank };
	snprintf(text, sizeof text, "fsdp=%u", T.world);
	MUST_OF(k, mesh_parse(text, &k->a, &m, &k->err));
	MUST_OF(k, ckpt_attach(&o, &k->c, &k->err));
	MUST(ckpt_fresh(k->c) == 0);
	MUST_OF(k, ckpt_mesh(k->c, m.ndim, m.name, m.dim, m.rank, &mesh, &k->err));
	for (uint32_t s = 0; s < SPECS; s++)
		declare_one(k, s, mesh, &m);
	for (uint32_t i = 0; i < T.naverage; i++)
		MUST_OF(k, ckpt_average(k->c, T.name[i], T.spec[i], &k->err));
}

static void team_close(void)
{
	for (uint32_t r = 0; r < T.world; r++)
		if (T.r[r].c) {
			(void)ckpt_detach(TAKE(T.r[r].c), 0);
			arena_free(&T.r[r].a);
		}
}

static void team_open(uint32_t world, uint32_t slots)
{
	int rc = 0;

	T.world = world;
	T.slots = slots;
	for (uint32_t r = 0; r < world; r++) {
		trainer_open(&T.r[r], r);
		rc = ckpt_seal(T.r[r].c, 0, &T.r[r].err);
		rank_must(rc >= 0, "ckpt_seal", __FILE__, __LINE__, T.r[r].err.msg);
	}
	for (uint32_t r = 0; r < world - (rc == 0); r++)
		MUST_OF(&T.r[r], ckpt_seal(T.r[r].c, PATIENCE, &T.r[r].err));
}

static void average(const char *name, const char *spec)
{
	T.name[T.naverage] = name;
	T.spec[T.naverage++] = spec;
}

static void guard_all(void)
{
	for (uint32_t r = 0; r < T.world; r++) {
		int rc = ckpt_guard(T.r[r].c, NULL);

		MUST(rc == 0 || rc == CKPT_TORN);
	}
}

/* One step of training; the first rank whose mark was not taken says why. */
static int mark_with(uint64_t step, uint32_t flags, double loss)
{
	struct ckpt_note note = { "loss", loss };
	struct ckpt_mark m = { .size = sizeof m, .flags = flags, .note = &note, .nnote = 1 };
	int rc = 0;

	for (uint32_t r = 0; r < T.world && rc == 0; r++) {
		fill_one(&T.r[r], step);
		rc = ckpt_snapshot(T.r[r].c, step, &m);
		rc = rank_took(rc) ? 0 : rc;
	}
	return rc;
}

static int mark(uint64_t step, uint32_t flags)
{
	return mark_with(step, flags, 1);
}

static bool said(const char *what)
{
	return said_times(&daemon_said, what) > 0;
}

static bool is_made(uint64_t step)
{
	char text[96];

	snprintf(text, sizeof text, "job " JOB " step %" PRIu64 " has its averages", step);
	return said(text);
}

static int wait_one(uint64_t step, int state)
{
	return ckpt_wait(T.r[0].c, step, state, PATIENCE, &T.r[0].err);
}

/* Marked, guarded, and its averages made. */
static void stage_only(uint64_t step, uint32_t flags)
{
	MUST_BE(mark(step, CKPT_STAGE_ONLY | flags), 0);
	guard_all();
	must_soon(is_made(step));
}

static void commit(uint64_t step)
{
	MUST_BE(mark(step, CKPT_PERSIST), 0);
	guard_all();
	MUST_OF(&T.r[0], wait_one(step, CKPT_COMMITTED));
}

/* --- the reference: whole tensors, a plain loop --- */
struct ref {
	struct ema_spec *spec;
	struct ema_state state;
	char canonical[EMA_SPEC_BYTES];
	float *e[SPECS], *c[SPECS];
	uint64_t applied;
};
static struct ref X[AVERAGES_MAX];

OWN static uint64_t numel(uint32_t s)
{
	return specs[s].n[0] * columns(s);
}

static void refs_make(void)
{
	for (uint32_t i = 0; i < T.naverage; i++) {
		struct ref *x = &X[i];
		struct ckpt_err err;

		*x = (struct ref){ 0 };
		MUST_OK(ema_spec_parse(T.spec[i], &x->spec, &err), &err);
		MUST(ema_spec_print(x->spec, 0, x->canonical) == 0);
		x->state = ema_state_new(x->canonical);
		for (uint32_t s = 0; s < SPECS; s++) {
			x->e[s] = calloc(numel(s), sizeof(float));
			x->c[s] = calloc(numel(s), sizeof(float));
		}
	}
}

static void refs_free(void)
{
	for (uint32_t i = 0; i < T.naverage; i++) {
		ema_spec_free(X[i].spec);
		for (uint32_t s = 0; s < SPECS; s++) {
			free(X[i].e[s]);
			free(X[i].c[s]);
		}
	}
}

OWN static void update(float *e, float *c, float p, const struct ema_update *u, bool kahan)
{
	if (u->copy || u->a == 1) {
		*e = p;
		*c = 0;
	} else if (kahan) {
		float y = fmaf(u->a, p - *e, -*c), sum = *e + y;

		*c = (sum - *e) - y;
		*e = sum;
	} else {
		*e = u->a < .5f ? fmaf(u->a, p - *e, *e) : fmaf(u->a - 1, p - *e, p);
	}
}

OWN static void ref_step(struct ref *x, uint64_t step)
{
	struct ema_update u = ema_schedule_update(&x->spec->schedule, &x->state, step);

	for (uint32_t i = 0; i < ARRAY_LEN(averaged); i++) {
		uint32_t s = averaged[i];
		uint32_t from = s == W && x->spec->source == EMA_MASTER ? MASTER_W : s;

		for (uint64_t g = 0; g < numel(s); g++)
			update(&x->e[s][g], &x->c[s][g], stored(from, g, step), &u, x->spec->kahan);
	}
	x->state = ema_state_after(&x->state, &u, x->canonical, step);
	x->applied++;
}

static void refs_step(uint64_t step)
{
	for (uint32_t i = 0; i < T.naverage; i++)
		ref_step(&X[i], step);
}

/* --- what a committed step holds --- */
static void raw_read(int dir, const struct format_file *f, uint64_t off, void *p, uint64_t len)
{
	cleanup_close int fd = openat(dir, f->name, O_RDONLY);
	uint64_t chunk = (uint64_t)1 << f->chunk_log2;

	assert_true(fd >= 0);
	for (uint64_t n; len; off += n, p = (uint8_t *)p + n, len -= n) {
		n = MIN(len, chunk - off % chunk);
		assert_int_equal(pread(fd, p, n, (off_t)(f->chunk[off / chunk].off + off % chunk)),
				 n);
	}
}

static void tensor_read(int dir, const struct checkpoint *c, uint32_t t, float *ret)
{
	const struct table *x = &c->table;
	uint64_t got = 0;

	for (uint32_t i = x->first[t]; i < x->first[t + 1]; i++) {
		const struct table_piece *p = &x->piece[i];
		const struct run *rows = p->set.dim[0].run;
		uint64_t cols = x->tensor[t].ndim > 1 ? x->tensor[t].shape[1] : 1, elements = 1;

		for (uint32_t d = 0; d < p->set.ndim; d++) {
			assert_int_equal(p->set.dim[d].n, 1);
			assert_int_equal(p->set.dim[d].run[0].count, 1);
			elements *= p->set.dim[d].total;
		}
		if (x->tensor[t].ndim > 1)
			assert_int_equal(p->set.dim[1].total, cols);
		raw_read(dir, &c->file[p->place], p->off, ret + rows->start * cols, elements * 4);
		got += elements;
	}
	assert_int_equal(got, x->tensor[t].numel);
}

static void same_bits(const float *got, const float *want, uint64_t n, const char *what,
		      const char *name, uint64_t step)
{
	for (uint64_t i = 0; i < n; i++)
		if (memcmp(&got[i], &want[i], 4) != 0)
			fail_msg("step %" PRIu64 ", %s/%s, element %" PRIu64 ": %a, not %a", step,
				 what, name, i, (double)got[i], (double)want[i]);
}

static void tensor_is(int dir, const struct checkpoint *c, const char *component, const char *name,
		      const float *want, uint64_t n)
{
	uint32_t t = table_find(&c->table, component, name, TABLE_NONE);
	cleanup_free float *got = calloc(n, sizeof *got);

	assert_true(t != TABLE_NONE);
	assert_int_equal(c->table.tensor[t].numel, n);
	assert_int_equal(c->table.tensor[t].dtype, CKPT_F32);
	tensor_read(dir, c, t, got);
	same_bits(got, want, n, component, name, c->step);
}

static void state_is(const struct checkpoint *c, const struct ref *x, const char *name)
{
	for (uint32_t i = 0; i < c->table.naverage; i++) {
		const struct table_average *a = &c->table.average[i];

		if (strcmp(a->name, name) != 0 || a->rule)
			continue;
		assert_string_equal(a->schedule, x->canonical);
		assert_int_equal(a->last_step, x->state.last_step);
		assert_int_equal(a->updates, x->state.updates);
		assert_int_equal(a->since, x->state.since);
		assert_memory_equal(&a->product, &x->state.product, sizeof a->product);
		assert_memory_equal(a->history, x->state.history, sizeof a->history);
		assert_int_equal(a->flags, x->spec->kahan ? AVERAGE_KAHAN : 0);
		return;
	}
	fail_msg("step %" PRIu64 " has no average %s", c->step, name);
}

/* Every average of a committed step is the reference's, and its files are right. */
static void committed_is_ref(uint64_t step)
{
	cleanup_close int dir = host_step_fd(&H, JOB, step);
	struct checkpoint *c = host_open(&H, JOB, step);
	char component[128];

	for (uint32_t i = 0; i < T.naverage; i++) {
		state_is(c, &X[i], T.name[i]);
		for (uint32_t k = 0; k < ARRAY_LEN(averaged); k++) {
			uint32_t s = averaged[k];

			snprintf(component, sizeof component, "ema.%s", T.name[i]);
			tensor_is(dir, c, component, specs[s].name, X[i].e[s], numel(s));
			snprintf(component, sizeof component, "ema.%s.carry", T.name[i]);
			if (X[i].spec->kahan)
				tensor_is(dir, c, component, specs[s].name, X[i].c[s], numel(s));
		}
	}
	checkpoint_free(c);
}

static char *attr_of(uint64_t step, const char *name, char ret[1024])
{
	struct checkpoint *c = host_open(&H, JOB, step);
	char key[128];

	ret[0] = 0;
	snprintf(key, sizeof key, "ckpt.health:ema.%s", name);
	for (uint32_t i = 0; i < c->nattr; i++)
		if (!strcmp(c->attr[i].key, key))
			snprintf(ret, 1024, "%s", c->attr[i].value);
	checkpoint_free(c);
	return ret;
}

/* --- in front of the averages, to hold a walk or to change what it will read --- */
static struct hold {
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t moved;
	uint64_t step; /* whose walk is held, unless it is open; 0: none */
	bool open;
	uint64_t after; /* bytes of it that are walked before */
	uint32_t waits;
	uint64_t fail_step;
	void (*plant)(void); /* done once, in the walk of plant_step, before its first bytes */
	uint64_t plant_step;
} W_;

static int hold_span(uint64_t step, uint32_t rank, const struct walk_span *s)
{
	struct hold *w = &W_;
	int rc = 0;

	(void)rank;
	pthread_mutex_lock(&w->lock);
	if (step == w->plant_step && w->plant)
		TAKE(w->plant)();
	if (step == w->fail_step && s->off >= w->after)
		rc = -EDOM;
	w->waits++;
	pthread_cond_broadcast(&w->moved);
	while (w->step == step && !w->open && s->off >= w->after)
		pthread_cond_wait(&w->moved, &w->lock);
	w->waits--;
	pthread_mutex_unlock(&w->lock);
	return rc;
}

/* Before the daemon starts. */
static void with_hold(uint64_t step)
{
	pthread_mutex_init(&W_.lock, NULL);
	pthread_cond_init(&W_.moved, NULL);
	W_.step = step;
	W_.open = false;
	H.opts.averages = hold_span;
}

static void let_go(void)
{
	pthread_mutex_lock(&W_.lock);
	W_.open = true;
	pthread_cond_broadcast(&W_.moved);
	pthread_mutex_unlock(&W_.lock);
}

static bool is_held(void)
{
	bool held;

	pthread_mutex_lock(&W_.lock);
	held = W_.waits > 0 && !W_.open;
	pthread_mutex_unlock(&W_.lock);
	return held;
}

static int setup(void **state)
{
	memset(&T, 0, sizeof T);
	memset(&W_, 0, sizeof W_);
	T.bad_step = UINT64_MAX;
	return host_setup(state);
}

static int teardown(void **state)
{
	let_go(); /* where a case has failed, the daemon may wait */
	gate_set(&G, false);
	team_close();
	refs_free();
	return host_teardown(state);
}

/* --- the cases --- */
static void same_as_the_reference(uint32_t world)
{
	const uint64_t last = unit_scaled(9) < 9 ? 6 : 9;
	uint64_t all[4];

	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	average("half", "constant decay=.3");
	average("slow", "power sigma_rel=.10");
	average("k", "constant decay=.99 kahan");
	average("p", "constant decay=.95 source=param");
	average("mean", "uniform");
	average("zero", "zero decay=.9");
	average("late", "constant decay=.8 start=3");
	average("hl", "halflife fraction=.5");
	average("d", "diffusers decay=.9999 warmup=1");
	refs_make();
	T.unequal = 6;
	team_open(world, 3);
	for (uint64_t step = 1; step <= last; step++) {
		if (step == 5)
			continue; /* nobody marks it: the true distance counts */
		refs_step(step);
		if (step % 3) {
			stage_only(step, 0);
			continue;
		}
		commit(step);
		committed_is_ref(step);
	}
	assert_int_equal(host_committed(&H, JOB, all, 4),
			 last / 3); /* every byte of each is right */
	assert_true(said("derived tensors are not the rounding of their masters"));
}

TEST(averages_are_those_of_a_plain_loop_one_rank)
{
	same_as_the_reference(1);
}

TEST(averages_are_those_of_a_plain_loop_two_ranks)
{
	same_as_the_reference(2);
}

TEST(averages_are_those_of_a_plain_loop_four_ranks)
{
	same_as_the_reference(4);
}

static void fast_and_gated(void)
{
	average("fast", "constant decay=.9");
	average("gated", "constant decay=.9 gate_loss=10");
	refs_make();
}

TEST(a_step_that_is_gated_keeps_what_the_step_before_had)
{
	host_start(&H, NULL);
	fast_and_gated();
	team_open(2, 3);
	for (uint64_t step = 1; step <= 3; step++) {
		refs_step(step);
		stage_only(step, 0);
	}
	stage_only(4, CKPT_NO_EMA);
	commit(5);
	refs_step(5);
	committed_is_ref(5);
	/* The loss: at the gate, not a number, below. */
	for (uint64_t step = 6; step <= 8; step++) {
		static const double loss[] = { 10, NAN, 9.999 };

		MUST_BE(mark_with(step, CKPT_PERSIST, loss[step - 6]), 0);
		guard_all();
		MUST_OF(&T.r[0], wait_one(step, CKPT_COMMITTED));
		ref_step(&X[0], step);
		if (step == 8)
			ref_step(&X[1], step);
		committed_is_ref(step);
	}
	assert_true(said("step 4 has its averages; kept out: CKPT_NO_EMA"));
}

TEST(a_value_that_is_not_finite_in_one_rank_drops_the_step_in_all)
{
	char text[1024];

	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	average("k", "constant decay=.99 kahan");
	average("late", "constant decay=.8 start=100");
	refs_make();
	team_open(2, 3);
	T.bad_rank = 1;
	for (uint64_t step = 1; step <= 6; step++) {
		T.bad = step == 3 ? NAN : INFINITY;
		T.bad_step = step == 3 || step == 5 ? step : UINT64_MAX;
		commit(step);
		if (T.bad_step != step)
			refs_step(step);
		committed_is_ref(step);
	}
	assert_non_null(strstr(attr_of(5, "fast", text), "lag 1"));
	assert_non_null(strstr(text, "kept out: values that are not finite"));
	assert_null(strstr(attr_of(6, "fast", text), "kept out"));
}

/* Nothing is before it: the copy is made, and the next step begins anew. */
TEST(an_average_that_would_begin_with_a_gated_step_begins_with_the_next_one)
{
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	T.bad_rank = 1;
	T.bad_step = 1;
	T.bad = NAN;
	commit(1);
	T.bad_step = UINT64_MAX;
	commit(2);
	refs_step(2);
	committed_is_ref(2);
	commit(3);
	refs_step(3);
	committed_is_ref(3);
}

TEST(a_step_that_was_torn_or_failed_leaves_no_mark)
{
	with_hold(0);
	W_.fail_step = 3;
	W_.after = 65536;
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	for (uint64_t step = 1; step <= 2; step++) {
		refs_step(step);
		commit(step);
	}
	/* A pass fails in the middle of the walk. */
	MUST_BE(mark(3, CKPT_PERSIST), 0);
	guard_all();
	assert_int_equal(wait_one(3, CKPT_COMMITTED), -EDOM);
	assert_soon(mark(4, CKPT_PERSIST) == 0);
	guard_all();
	MUST_OF(&T.r[0], wait_one(4, CKPT_COMMITTED));
	refs_step(4);
	committed_is_ref(4);
	/* The rank changes its weights before the guard. */
	MUST_BE(mark(5, CKPT_STAGE_ONLY), 0);
	assert_soon(said("step 5 staged") || said("step 5 torn"));
	for (uint32_t r = 0; r < T.world; r++)
		fill_one(&T.r[r], 1000);
	for (uint32_t r = 0; r < T.world; r++)
		(void)ckpt_guard(T.r[r].c, NULL);
	assert_soon(said("step 5 torn"));
	assert_soon(mark(6, CKPT_PERSIST) == 0);
	guard_all();
	MUST_OF(&T.r[0], wait_one(6, CKPT_COMMITTED));
	refs_step(6);
	committed_is_ref(6);
}

/* Who stops a daemon does not wait for guards: a step is walked of which a late guard then says that
 * it was changed. What was made of it is not kept. */
TEST(averages_of_a_step_go_if_its_guard_finds_a_change)
{
	with_hold(2);
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(1, 3);
	stage_only(1, 0);
	MUST_BE(mark(2, CKPT_STAGE_ONLY), 0);
	assert_soon(said("step 2 staged"));
	daemon_stop(H.d);
	assert_soon(is_held());
	fill_one(&T.r[0], 1000);
	assert_int_equal(ckpt_guard(T.r[0].c, NULL), CKPT_TORN);
	let_go();
	host_stop(&H);
	assert_true(is_made(1) && !is_made(2));
}

/* A daemon that has nothing else to do sums what is staged: when it has done so for another job,
 * all that it began before has ended. */
static void await_idle(uint64_t step)
{
	char text[64];

	stage(&K, step, CKPT_STAGE_ONLY);
	snprintf(text, sizeof text, "job other step %" PRIu64 " has sums in memory", step);
	assert_soon(said(text));
}

/* Not before its guard: until then the step may turn out to be torn. */
TEST(averages_are_made_of_guarded_steps_alone)
{
	static const uint32_t flags[] = { CKPT_STAGE_ONLY, CKPT_PERSIST };

	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(1, 3);
	open_one(&K, "other", "fsdp=1");
	stage_only(1, 0);
	for (uint64_t step = 2; step <= 3; step++) {
		char text[64];

		MUST_BE(mark(step, flags[step - 2]), 0);
		snprintf(text, sizeof text, "step %" PRIu64 " staged", step);
		assert_soon(said(text)); /* who waits for no guard begins, and has ended then: */
		await_idle(step);
		assert_false(is_made(step));
		guard_all();
		assert_soon(is_made(step));
	}
}

static struct io_faults faults;

TEST(a_step_whose_disk_fails_is_written_anew_with_the_same_averages)
{
	uint64_t step = 1;

	io_faults_init(&faults, &io_ops_posix);
	host_start(&H, &faults.ops);
	average("fast", "constant decay=.9");
	average("k", "constant decay=.99 kahan");
	refs_make();
	team_open(2, 3);
	commit(step);
	refs_step(step);
	for (uint64_t nth = 1; nth <= 12; nth++) {
		uint32_t on = nth % 3 ? IO_ON_WRITE : IO_ON_SYNC;
		bool done;

		io_faults_fail(&faults, on, nth, -EIO, false);
		MUST_BE(mark(++step, CKPT_PERSIST), 0);
		guard_all();
		done = wait_one(step, CKPT_COMMITTED) == 0;
		io_faults_fail(&faults, IO_ON_WRITE, UINT64_MAX, -EIO, false);
		refs_step(step); /* whether it is on disk or not: it was guarded */
		if (done)
			committed_is_ref(step);
	}
	/* No try succeeds: it stays in memory, averaged, and the next one goes on from it. */
	io_faults_fail(&faults, IO_ON_WRITE, 1, -ENOSPC, true);
	MUST_BE(mark(++step, CKPT_PERSIST), 0);
	guard_all();
	assert_int_equal(wait_one(step, CKPT_COMMITTED), -ENOSPC);
	io_faults_fail(&faults, IO_ON_WRITE, UINT64_MAX, -EIO, false);
	refs_step(step);
	commit(++step);
	refs_step(step);
	committed_is_ref(step);
}

/* The first file that is synced waits for another one that is synced at the same time. */
static struct together {
	struct io_ops ops;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t moved;
	uint32_t files;
	bool armed, were;
} together;

static int sync_together(void *ctx, int fd)
{
	struct together *t = &together;
	struct timespec until;
	struct stat at;

	(void)ctx;
	MUST(fstat(fd, &at) == 0 && clock_gettime(CLOCK_REALTIME, &until) == 0);
	until.tv_sec += 10;
	if (!S_ISREG(at.st_mode))
		return 0;
	pthread_mutex_lock(&t->lock);
	t->were |= t->armed && t->files > 0;
	t->files += t->armed;
	pthread_cond_broadcast(&t->moved);
	while (t->armed && !t->were &&
	       pthread_cond_timedwait(&t->moved, &t->lock, &until) != ETIMEDOUT)
		;
	t->armed &= t->were;
	pthread_mutex_unlock(&t->lock);
	return 0;
}

TEST(average_parts_are_synced_several_at_a_time)
{
	bool were;

	together = (struct together){ .ops = host_ops,
				      .lock = PTHREAD_MUTEX_INITIALIZER,
				      .moved = PTHREAD_COND_INITIALIZER };
	together.ops.sync = sync_together;
	host_start(&H, &together.ops);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	together.armed = true;
	commit(1); /* of each rank the averages are the first file that is synced */
	refs_step(1);
	pthread_mutex_lock(&together.lock);
	were = together.were;
	pthread_mutex_unlock(&together.lock);
	assert_true(were);
	committed_is_ref(1);
}

/* --- the slots (FLOOR C3) --- */
/* Is the step in a list such as " 1 2 20"? */
static bool is_in(const char *steps, uint64_t step)
{
	char text[24], all[72];

	snprintf(text, sizeof text, " %" PRIu64 " ", step);
	snprintf(all, sizeof all, "%s ", steps);
	return strstr(all, text);
}

/* Marks a step, and it finds a slot, soon, if it is one of those in taken; or finds none. */
static bool mark_finds_a_slot(uint64_t step, const char *taken)
{
	if (is_in(taken, step)) {
		assert_soon(mark(step, CKPT_STAGE_ONLY) == 0);
		return true;
	}
	usleep(50000); /* a slot that is released has gone back to the gate */
	assert_int_not_equal(mark(step, CKPT_STAGE_ONLY), 0);
	return false;
}

/* Steps 1 and 2 are marked; the walk of 2 is held. Which marks find a slot then, and which steps
 * are averaged in the end? */
static void slots_with_a_slow_walk(uint32_t slots, const char *taken, const char *made)
{
	char is[64] = "";
	uint64_t step;

	with_hold(2);
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(1, slots);
	stage_only(1, 0);
	MUST_BE(mark(2, CKPT_STAGE_ONLY), 0);
	guard_all();
	assert_soon(is_held());
	for (step = 3; step <= 7; step++) {
		char text[64];

		if (!mark_finds_a_slot(step, taken))
			continue;
		guard_all();
		snprintf(text, sizeof text, "step %" PRIu64 " staged", step);
		assert_soon(said(text));
	}
	let_go();
	/* A step that is to be written would take the place of those that still wait. */
	for (step = 1; step <= 7; step++)
		if (is_in(made, step))
			assert_soon(is_made(step));
	assert_soon(mark(20, CKPT_PERSIST) == 0);
	guard_all();
	MUST_OF(&T.r[0], wait_one(20, CKPT_COMMITTED));
	for (step = 1; step <= 20; step++)
		if (is_made(step)) {
			snprintf(is + strlen(is), sizeof is - strlen(is), " %" PRIu64, step);
			refs_step(step);
		}
	committed_is_ref(20);
	assert_string_equal(is, made);
}

TEST(of_two_slots_one_has_the_step_before)
{
	slots_with_a_slow_walk(2, "", " 1 2 20");
}

TEST(of_three_slots_one_is_for_the_next_step)
{
	slots_with_a_slow_walk(3, " 3", " 1 2 3 20");
}

TEST(of_four_slots_one_is_always_free_and_steps_in_between_give_up)
{
	slots_with_a_slow_walk(4, " 3 4 5 6 7", " 1 2 7 20");
}

/* The walk of step 1 is held, 2 waits for its own, and 3 is to be written: both make way. */
TEST(a_step_that_is_written_does_not_wait_for_the_averages_of_one_that_is_not)
{
	with_hold(1);
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(1, 4);
	for (uint64_t step = 1; step <= 3; step++) {
		char text[64];

		MUST_BE(mark(step, step == 3 ? CKPT_PERSIST : CKPT_STAGE_ONLY), 0);
		guard_all();
		snprintf(text, sizeof text, "step %" PRIu64 " staged", step);
		assert_soon(said(text));
	}
	assert_soon(is_held());
	assert_false(said("given up"));
	assert_soon(said("step 1 makes way"));
	let_go();
	MUST_OF(&T.r[0], wait_one(3, CKPT_COMMITTED));
	assert_false(is_made(1));
	assert_false(is_made(2));
	assert_soon(said("step 1 has given up its averages"));
	assert_soon(said("step 2 has given up its averages"));
	refs_step(3);
	committed_is_ref(3);
}

/* Step 2 is being written, and its directory does not answer. How many of the next five marks find
 * a slot, and is each of these steps averaged? */
static void slots_with_a_slow_disk(uint32_t slots, const char *taken)
{
	host_start_gated();
	average("fast", "constant decay=.9");
	refs_make();
	team_open(1, slots);
	stage_only(1, 0);
	refs_step(1);
	gate_set(&G, true);
	MUST_BE(mark(2, CKPT_PERSIST), 0);
	guard_all();
	assert_soon(is_made(2)); /* its walk does not wait for the disk */
	refs_step(2);
	for (uint64_t step = 3; step <= 7; step++) {
		if (!mark_finds_a_slot(step, taken))
			continue;
		guard_all();
		assert_soon(is_made(step));
		refs_step(step);
	}
	gate_set(&G, false);
	MUST_OF(&T.r[0], wait_one(2, CKPT_COMMITTED));
	assert_soon(mark(20, CKPT_PERSIST) == 0);
	guard_all();
	MUST_OF(&T.r[0], wait_one(20, CKPT_COMMITTED));
	refs_step(20);
	committed_is_ref(20);
}

TEST(of_two_slots_one_is_written_and_the_next_step_is_averaged)
{
	slots_with_a_slow_disk(2, " 3");
}

TEST(of_three_slots_each_step_finds_one_while_one_is_written)
{
	slots_with_a_slow_disk(3, " 3 4 5 6 7");
}

TEST(of_four_slots_each_step_finds_one_while_one_is_written)
{
	slots_with_a_slow_disk(4, " 3 4 5 6 7");
}

/* The writer of step 2 waits, and so does the walk of step 3: steps give up as without a writer. */
TEST(of_four_slots_one_is_free_while_one_is_written_and_another_walked)
{
	with_hold(3);
	host_start_gated();
	average("fast", "constant decay=.9");
	refs_make();
	team_open(1, 4);
	commit(1);
	refs_step(1);
	gate_set(&G, true);
	MUST_BE(mark(2, CKPT_PERSIST), 0);
	guard_all();
	assert_soon(is_made(2));
	refs_step(2);
	MUST_BE(mark(3, CKPT_STAGE_ONLY), 0);
	guard_all();
	assert_soon(is_held());
	for (uint64_t step = 4; step <= 8; step++) {
		char text[64];

		assert_soon(mark(step, CKPT_STAGE_ONLY) == 0);
		guard_all();
		snprintf(text, sizeof text, "step %" PRIu64 " staged", step);
		assert_soon(said(text));
	}
	assert_soon(said("step 4 has given up its averages"));
	let_go();
	assert_soon(is_made(3) && is_made(8));
	gate_set(&G, false);
	MUST_OF(&T.r[0], wait_one(2, CKPT_COMMITTED));
	refs_step(3);
	refs_step(8);
	commit(9);
	refs_step(9);
	committed_is_ref(9);
	assert_false(is_made(4) || is_made(7));
}

TEST(as_many_averages_as_there_can_be_are_committed)
{
	static char name[TABLE_AVERAGES_MAX][EMA_NAME_BYTES];
	const uint32_t n = (uint32_t)unit_scaled(TABLE_AVERAGES_MAX);

	_Static_assert(TABLE_AVERAGES_MAX == AVERAGES_MAX, "all of them");
	host_start(&H, NULL);
	for (uint32_t i = 0; i < n; i++) {
		memset(name[i], 'n', sizeof name[i] - 1);
		snprintf(name[i] + sizeof name[i] - 3, 3, "%02u", i % 100);
		average(name[i], "constant decay=.9");
	}
	refs_make();
	team_open(2, 3);
	for (uint64_t step = 1; step <= 2; step++) {
		refs_step(step);
		commit(step);
		committed_is_ref(step);
	}
	for (uint32_t i = 0; i < n; i += 21) {
		char text[1024];

		assert_non_null(strstr(attr_of(2, name[i], text), "updates 1, lag 0"));
	}
}

/* --- rules --- */
TEST(a_rule_gives_tensors_a_schedule_of_their_own_or_none)
{
	struct checkpoint *c;
	int dir;

	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	average("half", "constant decay=.5");
	refs_make();
	average("mix", "constant decay=.9 norm*=(constant decay=.5) u=skip big=copy");
	team_open(2, 3);
	for (uint64_t step = 1; step <= 4; step++) {
		T.naverage = 2;
		refs_step(step);
		T.naverage = 3;
		commit(step);
	}
	dir = host_step_fd(&H, JOB, 4);
	c = host_open(&H, JOB, 4);
	tensor_is(dir, c, "ema.mix", "w", X[0].e[W], numel(W));
	tensor_is(dir, c, "ema.mix", "norm", X[1].e[NORM], numel(NORM));
	tensor_is(dir, c, "ema.mix", "norm2", X[1].e[NORM2], numel(NORM2));
	assert_int_equal(table_find(&c->table, "ema.mix", "u", TABLE_NONE), TABLE_NONE);
	assert_int_equal(table_find(&c->table, "ema.mix", "big", TABLE_NONE), TABLE_NONE);
	checkpoint_free(c);
	(void)close(dir);
	T.naverage = 2;
}

/* --- the daemon dies --- */
static void must_come_back(uint64_t times)
{
	for (uint32_t r = 0; r < T.world; r++)
		must_soon(({
			struct ckpt_stats x = { .size = sizeof x };

			MUST_BE(ckpt_stats(T.r[r].c, &x), 0);
			x.reattached >= times;
		}));
	must_soon(said("job " JOB " ready"));
}

/* In the middle of a walk some of the step's averages are made: the next daemon makes all of them
 * anew, from what the step before has in memory. */
TEST(a_daemon_that_is_killed_amid_a_walk_leaves_no_half_average)
{
	static const uint32_t flags[] = { CKPT_STAGE_ONLY, CKPT_PERSIST };

	for (uint64_t i = 0; i < 2; i++) {
		uint64_t step = 3 + 2 * i;
		char text[96];

		with_hold(step);
		W_.after = 1 << 20;
		host_start(&H, NULL);
		if (i == 0) {
			average("fast", "constant decay=.9");
			average("k", "constant decay=.99 kahan");
			refs_make();
			team_open(2, 3);
			stage_only(1, 0);
			refs_step(1);
		} else {
			must_come_back(2);
		}
		stage_only(step - 1, 0);
		refs_step(step - 1);
		MUST_BE(mark(step, flags[i]), 0);
		guard_all();
		assert_soon(is_held());
		atomic_fetch_add(&H.d->stops, 1000u);
		let_go();
		host_kill(&H);
		assert_false(is_made(step));
		said_forget(&daemon_said);
		H.opts.averages = NULL;
		host_start(&H, NULL);
		must_come_back(2 * i + 1);
		snprintf(text, sizeof text, "step %" PRIu64 " taken over from an earlier daemon, w",
			 step);
		assert_false(said(text)); /* nobody says that the half is whole */
		assert_soon(is_made(step));
		assert_true(said("taken over from an earlier daemon, with its averages"));
		refs_step(step);
		if (i == 1)
			MUST_OF(&T.r[0], wait_one(step, CKPT_COMMITTED));
		if (i == 0) {
			host_kill(&H);
			said_forget(&daemon_said);
		}
	}
	committed_is_ref(5);
	commit(6);
	refs_step(6);
	committed_is_ref(6);
}

/* The newest of the launch that the daemon has averaged. Its thread waits. */
static struct slot_seal *seal_in_memory(uint32_t r, uint64_t step, uint8_t **ret_average)
{
	for (struct snap *s = H.d->jobs->snaps; s; s = s->next)
		if (s->step == step) {
			const struct decl *d = s->rank[r].decl;
			uint8_t *base = s->rank[r].mem->base;

			*ret_average = base + d->average_at;
			return (struct slot_seal *)(base + d->raw_bytes - SLOT_SEAL_BYTES);
		}
	MUST(false);
	return NULL;
}

static void seal_again(struct slot_seal *seal)
{
	const struct hash128 self = hash128(seal, offsetof(struct slot_seal, self));

	memcpy(seal->self, &self, sizeof seal->self);
}

/* What another declaration left in a slot, with a seal that is right in itself. */
static void other_declaration(void)
{
	for (uint32_t r = 0; r < T.world; r++) {
		uint8_t *average = NULL;
		struct slot_seal *seal = seal_in_memory(r, 2, &average);

		memset(average, 0x3f, 4096);
		seal->declared[0] ^= 1;
		seal_again(seal);
	}
}

/* The seal, which a trainer has mapped, says what no pass makes. */
static void impossible_rows(void (*spoil)(struct slot_seal_row *row))
{
	for (uint32_t r = 0; r < T.world; r++) {
		uint8_t *average = NULL;
		struct slot_seal *seal = seal_in_memory(r, 2, &average);

		memset(average, 0x3f, 4096);
		spoil(&seal->row[0]);
		seal_again(seal);
	}
}

static void spoil_flags(struct slot_seal_row *row)
{
	row->flags |= 1u << 30;
}
static void spoil_product(struct slot_seal_row *row)
{
	row->state.product = NAN;
}
static void spoil_step(struct slot_seal_row *row)
{
	row->state.last_step = 3;
}
static void impossible_flags(void)
{
	impossible_rows(spoil_flags);
}
static void impossible_product(void)
{
	impossible_rows(spoil_product);
}
static void impossible_step(void)
{
	impossible_rows(spoil_step);
}
static void not_taken_over(void (*plant)(void))
{
	with_hold(0);
	W_.step = 3;
	W_.plant_step = 3;
	W_.plant = plant;
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	commit(1);
	refs_step(1);
	stage_only(2, 0);
	refs_step(2);
	MUST_BE(mark(3, CKPT_STAGE_ONLY), 0);
	guard_all();
	assert_soon(is_held());
	atomic_fetch_add(&H.d->stops, 1000u);
	let_go();
	host_kill(&H);
	said_forget(&daemon_said);
	H.opts.averages = NULL;
	host_start(&H, NULL);
	must_come_back(1);
	assert_soon(is_made(3));
	/* Step 2 is averaged anew, of step 1, which is on disk. */
	assert_true(is_made(2));
	assert_false(said("with its averages: "));
	refs_step(3);
	commit(4);
	refs_step(4);
	committed_is_ref(4);
}

TEST(averages_of_another_declaration_are_not_taken_over)
{
	not_taken_over(other_declaration);
}

TEST(a_seal_with_flags_that_no_pass_sets_is_open)
{
	not_taken_over(impossible_flags);
}

TEST(a_seal_with_a_product_that_no_schedule_has_is_open)
{
	not_taken_over(impossible_product);
}

TEST(a_seal_that_tells_of_a_later_step_is_open)
{
	not_taken_over(impossible_step);
}

/* --- health --- */
static float *average_in_memory(uint32_t r, const char *name, uint64_t *ret_n)
{
	const struct snap *s = H.d->jobs->before;
	const struct decl *d = s->rank[r].decl;
	const struct table *t = &d->averages->made;
	uint32_t i = table_find(t, "ema.fast", name, TABLE_NONE);

	if (i == TABLE_NONE || t->first[i] == t->first[i + 1])
		return NULL;
	*ret_n = t->piece[t->first[i]].len / 4;
	return (float *)((uint8_t *)s->rank[r].mem->base + d->average_at +
			 t->piece[t->first[i]].off);
}

static void flip_sign(void)
{
	for (uint32_t r = 0; r < T.world; r++) {
		uint64_t n;
		float *e = average_in_memory(r, "big", &n);

		for (uint64_t i = 0; e && i < n; i++)
			e[i] = -e[i];
	}
}

static void swap_two(void)
{
	for (uint32_t r = 0; r < T.world; r++) {
		uint64_t n;
		float *e = average_in_memory(r, "norm", &n), *f = average_in_memory(r, "norm2", &n);

		for (uint64_t i = 0; e && f && i < n; i++) {
			float x = e[i];

			e[i] = f[i];
			f[i] = x;
		}
	}
}

static void planted(void (*plant)(void), uint32_t world, const char *want)
{
	char text[1024];

	with_hold(0);
	W_.plant = plant;
	W_.plant_step = 11;
	host_start(&H, NULL);
	average("fast", "constant decay=.6");
	refs_make();
	team_open(world, 3);
	for (uint64_t step = 1; step <= 9; step++)
		stage_only(step, 0);
	commit(10);
	assert_non_null(strstr(attr_of(10, "fast", text), "updates 9, lag 0, "));
	assert_non_null(strstr(text, "far 0, NaN 0"));
	assert_null(strstr(text, "larger than"));
	commit(11);
	if (!strstr(attr_of(11, "fast", text), want))
		fail_msg("%s has no %s", text, want);
}

TEST(a_sign_that_was_flipped_is_seen)
{
	planted(flip_sign, 2, "far 1, NaN 0");
}

TEST(tensors_that_were_swapped_are_seen)
{
	planted(swap_two, 1, "far 2, NaN 0, larger than its weights ever were in 1 (model/norm)");
}

/* --- leaving --- */
TEST(who_stops_the_daemon_gets_the_newest_step_with_its_averages)
{
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	for (uint64_t step = 1; step <= 4; step++) {
		stage_only(step, 0);
		refs_step(step);
	}
	host_stop(&H);
	assert_string_equal(host_steps(&H, JOB), "4");
	committed_is_ref(4);
}

/* All ranks end amid the walk of a step that nobody was to write: it is written, from the step
 * before it. */
TEST(the_last_step_of_ranks_that_ended_goes_on_from_the_one_before)
{
	with_hold(3);
	host_start(&H, NULL);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	for (uint64_t step = 1; step <= 2; step++) {
		stage_only(step, 0);
		refs_step(step);
	}
	MUST_BE(mark(3, CKPT_STAGE_ONLY), 0);
	guard_all();
	assert_soon(is_held());
	team_close();
	let_go();
	assert_soon(host_has(&H, JOB, 3));
	refs_step(3);
	committed_is_ref(3);
}

/* Writes to the job's own directory wait at the gate, and no others. */
static char own_store[sizeof H.store];
static int64_t own_pwrite(void *ctx, int fd, const void *buf, uint64_t n, uint64_t off)
{
	char link[64], path[512] = "";

	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof path - 1) > 0 &&
			       !strncmp(path, own_store, strlen(own_store))
		       ? G.ops.pwrite(ctx, fd, buf, n, off)
		       : io_ops_posix.pwrite(NULL, fd, buf, n, off);
}

TEST(a_step_whose_directory_hangs_is_rescued_with_its_averages)
{
	static struct io_ops ops;
	char to[160];
	struct wire_drained d = { 0 };

	memcpy(own_store, H.store, sizeof own_store);
	gate_make(&G);
	ops = G.ops;
	ops.pwrite = own_pwrite;
	host_start(&H, &ops);
	average("fast", "constant decay=.9");
	refs_make();
	team_open(2, 3);
	stage_only(1, 0);
	refs_step(1);
	gate_set(&G, true);
	MUST_BE(mark(2, CKPT_PERSIST), 0);
	guard_all();
	gate_await(&G);
	refs_step(2);
	snprintf(to, sizeof to, "%.100s/there", H.dir);
	MUST(mkdir(to, 0755) == 0);
	ask_open(&A, H.socket);
	assert_int_equal(ask_drain(&A, JOB, to, WIRE_TO | WIRE_COPY, &d), WIRE_DRAINED);
	gate_set(&G, false);
	assert_true(d.written == 1 && d.failed == 0);
	snprintf(H.store, sizeof H.store, "%.107s", to);
	committed_is_ref(2);
	memcpy(H.store, own_store, sizeof own_store);
	MUST_OF(&T.r[0], wait_one(2, CKPT_COMMITTED));
	committed_is_ref(2);
}

UNIT(.setup = setup, .teardown = teardown);
