/* SPDX-License-Identifier: Apache-2.0 */
/* rank.c - see rank.h. Invariant: a value depends on tensor, index and step alone. */
#include "tests/lib/rank.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "tests/lib/row.h"
#include <inttypes.h>
#include <stdio.h>

void rank_must(int ok, const char *what, const char *file, int line, const char *why)
{
	if (ok)
		return;
	fprintf(stderr, "%s:%d: must hold and does not: %s%s%s\n", file, line, what,
		why && *why ? ": " : "", why ? why : "");
	fflush(stderr);
	abort();
}

void rank_must_be(int64_t x, int64_t y, const char *what, const char *file, int line)
{
	if (x == y)
		return;
	fprintf(stderr, "%s:%d: %s is %" PRId64 " and must be %" PRId64 "\n", file, line, what, x,
		y);
	fflush(stderr);
	abort();
}

const struct rank_spec rank_specs[RANK_SPECS] = {
	{ "optim",
	  "w.master",
	  "model/w",
	  CKPT_F32,
	  CKPT_MASTER,
	  CKPT_STABLE,
	  OF_LIBRARY,
	  2,
	  { 0, 48 },
	  1 },
	{ "model", "w", NULL, CKPT_BF16, CKPT_PARAM, CKPT_STABLE, OF_LIBRARY, 2, { 0, 48 }, 1 },
	{ "optim",
	  "w.exp_avg",
	  "model/w",
	  CKPT_F32,
	  CKPT_MOMENT1,
	  CKPT_STABLE,
	  OWN,
	  2,
	  { 0, 48 },
	  1 },
	{ "model", "uneven", NULL, CKPT_F16, CKPT_PARAM, CKPT_STABLE, WITH_GAPS, 2, { 13, 9 }, 1 },
	{ "model", "boxes", NULL, CKPT_F64, CKPT_PARAM, CKPT_STABLE, TWO_BOXES, 2, { 21, 6 }, 1 },
	{ "model", "comb", NULL, CKPT_I32, CKPT_PARAM, CKPT_STABLE, OF_LIBRARY, 2, { 29, 3 }, 2 },
	{ "model", "tiny", NULL, CKPT_U8, CKPT_PARAM, CKPT_STABLE, OWN, 1, { 2 }, 1 },
	{ "model", "norm", NULL, CKPT_F32, CKPT_PARAM, CKPT_STABLE, OF_LIBRARY, 1, { 37 }, 0 },
	{ "model", "table", NULL, CKPT_F32, CKPT_BUFFER, CKPT_CONST, WITH_GAPS, 2, { 5, 7 }, 0 },
	{ "model", "running", NULL, CKPT_F32, CKPT_BUFFER, CKPT_VOLATILE, OWN, 2, { 4, 5 }, 0 },
	{ "optim", "t", NULL, CKPT_I64, CKPT_COUNTER, CKPT_VOLATILE, OF_LIBRARY, 0, { 1 }, 0 },
	{ "model", "none", NULL, CKPT_F32, CKPT_OTHER, CKPT_STABLE, OF_LIBRARY, 2, { 0, 0 }, 4 },
	{ "model", "twice", NULL, CKPT_C64, CKPT_PARAM, CKPT_STABLE, OF_LIBRARY, 2, { 17, 4 }, 3 },
	{ "model", "extra", NULL, CKPT_F32, CKPT_PARAM, CKPT_STABLE, OF_LIBRARY, 1, { 50 }, 1 },
};

static void value_of(uint32_t spec, uint64_t g, uint64_t step, uint32_t elem, uint8_t *ret)
{
	uint64_t z = (g + 1) * 0x9e3779b97f4a7c15 +
		     (rank_specs[spec].cls == CKPT_CONST ? 0 : step) * 0xd1b54a32d192ed03 + spec;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z ^= z >> 27;
	memcpy(ret, &z, MIN(elem, 8u));
	if (elem > 8)
		memset(ret + 8, (int)z & 0xff, elem - 8);
}

uint32_t rank_world(const char *mesh)
{
	struct arena a = { 0 };
	struct ckpt_err err;
	struct mesh m;
	uint32_t n;

	MUST_OK(mesh_parse(mesh, &a, &m, &err), &err);
	n = m.nrank;
	arena_free(&a);
	return n;
}

int rank_attach(struct rank *k, const struct plan_of_job *p, uint32_t rank)
{
	struct ckpt_err *err = &k->err;
	const struct plan_of_job own = *p;
	void *arg = k->arg;
	pthread_barrier_t *barrier = k->barrier;
	struct ckpt_opts o;
	int rc;

	*k = (struct rank)ROW(.plan = &k->own, .own = own, .rank = rank, .arg = arg,
			      .barrier = barrier);
	p = &k->own;
	MUST_OK(mesh_parse(p->mesh, &k->a, &k->mesh, err), err);
	k->world = k->mesh.nrank;
	o = (struct ckpt_opts)ROW(.size = sizeof o, .flags = p->flags ? p->flags : CKPT_REQUIRE,
				  .job = p->job, .store = p->store, .socket = p->socket,
				  .rank = rank, .world = k->world, .generation = p->generation,
				  .launch = p->launch, .token = p->token, .run = p->run,
				  .restart = p->restart, .slots = p->slots,
				  .persist_every = p->persist_every, .guard = p->guard,
				  .guard_ns = p->guard_ns, .memory_max = p->memory_max,
				  .check = p->check, .agree = p->agree, .agree_ctx = k,
				  .log = p->log, .keep_last = p->keep_last,
				  .keep_every = p->keep_every, .keep_best = p->keep_best,
				  .restart_wait_ns = p->restart_wait_ns,
				  .log_ctx = p->log_ctx ? p->log_ctx : k);
	rc = ckpt_attach(&o, &k->c, err);
	if (rc == 0 && p->fresh)
		MUST(ckpt_fresh(k->c) == 0);
	if (rc == 0)
		rc = ckpt_mesh(k->c, k->mesh.ndim, k->mesh.name, k->mesh.dim, k->mesh.rank,
			       &k->mesh_id, err);
	return rc;
}

static uint32_t placements(const struct rank *k, const struct rank_spec *s,
			   struct ckpt_placement *ret)
{
	uint32_t n = 0;

	if (s->cut == 0)
		return 0;
	for (uint32_t pass = 0; pass < 2; pass++)
		for (uint32_t d = 0; d < k->mesh.ndim; d++) {
			bool fsdp = strcmp(k->mesh.name[d], "fsdp") == 0,
			     tp = strcmp(k->mesh.name[d], "tp") == 0;

			/* Twice: tp cuts dimension 0 first, then fsdp what tp left. */
			if ((!fsdp && !tp) || (s->cut == 3 ? fsdp != (pass == 1) : pass == 1))
				continue;
			if (tp && s->ndim < 2)
				continue;
			ret[n++] = (struct ckpt_placement)
				ROW(.how = CKPT_SHARD, .mesh_dim = (uint16_t)d,
				    .tensor_dim = (uint16_t)(tp && s->cut != 3 ? 1 : 0),
				    .split_factor = fsdp && s->cut == 2 ? 3 : 1);
		}
	return n;
}

static uint64_t *expand(struct arena *a, const struct indices *x)
{
	uint64_t *at = arena_array(a, x->total ? x->total : 1, sizeof *at), n = 0;

	for (uint32_t i = 0; i < x->n; i++)
		for (uint64_t c = 0; c < x->run[i].count; c++)
			for (uint64_t e = 0; e < x->run[i].len; e++)
				at[n++] = x->run[i].start + c * x->run[i].stride + e;
	MUST(n == x->total);
	return at;
}

int rank_tensor_declare(struct rank *k, uint32_t spec)
{
	struct ckpt_err *err = &k->err;
	const struct rank_spec *s = &rank_specs[spec];
	struct rank_tensor *t = &k->t[k->ntensor];
	struct ckpt_placement place[4];
	struct layout l = { .nplace = placements(k, s, place), .place = place };
	struct ckpt_local local[2] = { { 0 } };
	struct ckpt_tensor x =
		ROW(.size = sizeof x, .cls = s->cls, .role = s->role, .dtype = s->dtype,
		    .component = s->component, .name = s->name, .of = s->of, .ndim = s->ndim,
		    .mesh = k->mesh_id, .nplace = l.nplace, .shape = t->shape, .place = place,
		    .local = local);
	uint64_t start[2][3], extent[2][3], bytes, numel = 1;
	uint32_t coord[CKPT_DIMS_MAX], pad = s->memory == WITH_GAPS ? 3 : 0;
	struct indexset share;
	bool boxes;
	int rc = 0;

	*t = (struct rank_tensor){ .spec = spec, .ndim = s->ndim, .elem = dtype_bytes(s->dtype) };
	for (uint32_t d = 0; d < s->ndim; d++)
		t->shape[d] = s->shape[d] || s->cut == 4 ? s->shape[d]
			      : k->plan->rows		 ? k->plan->rows
							 : 64;
	MUST(mesh_coord(&k->mesh, k->rank, coord));
	MUST(layout_share(&k->mesh, &l, s->ndim, t->shape, coord, &k->a, &share) == 0);
	for (uint32_t d = s->ndim; d-- > 0;) {
		t->n[d] = share.dim[d].total;
		t->at[d] = expand(&k->a, &share.dim[d]);
		t->stride[d] = (int64_t)numel;
		numel *= t->n[d] + (d + 1 == s->ndim ? pad : 0);
	}
	bytes = MAX(numel * t->elem, UINT64_C(1));
	boxes = s->memory == TWO_BOXES && share.numel && t->n[0] > 1;
	t->nlocal = share.numel ? boxes ? 2 : 1 : 0;
	t->rows0 = boxes ? t->n[0] / 2 : s->ndim ? t->n[0] : 1;
	if (s->memory == OWN && !k->plan->shared_only)
		t->ptr[0] = t->own = malloc(bytes);
	else
		rc = ckpt_alloc(k->c, bytes, (void **)&t->ptr[0], err);
	if (rc < 0)
		return rc;
	t->ptr[1] = boxes ? t->ptr[0] + t->rows0 * (uint64_t)t->stride[0] * t->elem : NULL;
	for (uint32_t i = 0; i < t->nlocal; i++) {
		for (uint32_t d = 0; d < s->ndim; d++) {
			start[i][d] = t->at[d][d == 0 && i ? t->rows0 : 0];
			extent[i][d] =
				d == 0 && boxes ? i ? t->n[0] - t->rows0 : t->rows0 : t->n[d];
		}
		local[i] =
			(struct ckpt_local){ .ptr = t->ptr[i], .stride = pad ? t->stride : NULL };
		if (boxes) {
			local[i].start = start[i];
			local[i].extent = extent[i];
		}
	}
	x.nlocal = t->nlocal;
	rc = ckpt_tensor_add(k->c, &x, &t->id, err);
	if (rc == 0)
		k->ntensor++;
	return rc;
}

int rank_declare(struct rank *k)
{
	struct ckpt_err *err = &k->err;
	uint32_t n = (uint32_t)RANK_SPECS - !k->plan->extra;
	int rc = 0;

	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = rank_tensor_declare(k, i);
	if (rc == 0)
		rc = ckpt_blob_add(k->c, "cursor", CKPT_TEXT, k->blob[0], &k->blob_len[0],
				   RANK_BLOB_MAX, err);
	if (rc == 0)
		rc = ckpt_blob_add(k->c, "rng", CKPT_PER_RANK | CKPT_PICKLE, k->blob[1],
				   &k->blob_len[1], RANK_BLOB_MAX, err);
	return rc;
}

int rank_seal(struct rank *k, uint64_t ns)
{
	return ckpt_seal(k->c, ns, &k->err);
}

int rank_wait(struct rank *k, uint64_t step, int state)
{
	return ckpt_wait(k->c, step, state, PATIENCE, &k->err);
}

int rank_why(struct rank *k)
{
	return ckpt_why(k->c, &k->err);
}

struct ckpt_stats rank_stats(const struct rank *k)
{
	struct ckpt_stats s = { .size = sizeof s };

	MUST_BE(ckpt_stats(k->c, &s), 0);
	return s;
}

bool in_memory(struct rank *k, uint64_t step)
{
	struct ckpt_step s[16];
	int n = ckpt_steps(k->c, s, 16);

	for (int i = 0; i < n; i++)
		if (s[i].step == step && s[i].where & 1)
			return true;
	return false;
}

void must_reattach(struct rank *k, uint64_t times)
{
	must_soon(rank_stats(k).reattached >= times);
}

void rank_declare_and_seal(struct rank *k)
{
	must_declare(k);
	must_seal(k);
}

void rank_open(struct rank *k, const struct plan_of_job *p, uint32_t rank)
{
	must_attach(k, p, rank);
	rank_declare_and_seal(k);
}

void ranks_open(struct rank *k, uint32_t n, const struct plan_of_job *p)
{
	int rc = 0;

	for (uint32_t r = 0; r < n; r++) {
		must_attach(&k[r], p, r);
		must_declare(&k[r]);
		rc = rank_seal(&k[r], 0);
		rank_must(rc >= 0, "ckpt_seal", __FILE__, __LINE__, k[r].err.msg);
	}
	/* Whom the last answer found ready would declare anew, and wait for all the others. */
	for (uint32_t r = 0; r < n - (rc == 0); r++)
		must_seal(&k[r]);
}

void ranks_guard(struct rank *k, uint32_t n)
{
	for (uint32_t r = 0; r < n; r++)
		must_guard(&k[r]);
}

void ranks_close(struct rank *k, uint32_t n)
{
	for (uint32_t r = 0; r < n; r++)
		rank_close(&k[r], 0);
}

void rank_free(struct rank *k)
{
	for (uint32_t i = 0; i < k->ntensor; i++)
		free(k->t[i].own);
	k->ntensor = 0;
	arena_free(&k->a);
}

void rank_close(struct rank *k, uint64_t drain_ns)
{
	(void)ckpt_detach(TAKE(k->c), drain_ns);
	rank_free(k);
}

int rank_tensor_find(const struct rank *k, const char *name)
{
	for (uint32_t i = 0; i < k->ntensor; i++)
		if (strcmp(rank_specs[k->t[i].spec].name, name) == 0)
			return (int)i;
	return -1;
}

/* --- values --- */
/* Each local element: its address and global index. False from each ends it. */
bool rank_each(const struct rank_tensor *t,
	       bool (*each)(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg),
	       void *arg)
{
	uint64_t i[3] = { 0 }, n[3] = { 1, 1, 1 };

	if (!t->nlocal)
		return true;
	for (uint32_t d = 0; d < t->ndim; d++)
		n[d] = t->n[d];
	for (i[0] = 0; i[0] < n[0]; i[0]++)
		for (i[1] = 0; i[1] < n[1]; i[1]++)
			for (i[2] = 0; i[2] < n[2]; i[2]++) {
				uint64_t g = 0;
				int64_t off = 0;
				bool second = t->ptr[1] && i[0] >= t->rows0;

				for (uint32_t d = 0; d < t->ndim; d++) {
					g = g * t->shape[d] + t->at[d][i[d]];
					off += (int64_t)(i[d] - (d == 0 && second ? t->rows0 : 0)) *
					       t->stride[d];
				}
				if (!each(t, t->ptr[second] + off * t->elem, g, arg))
					return false;
			}
	return true;
}

uint64_t rank_bytes(const struct rank *k)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < k->ntensor; i++) {
		uint64_t n = k->t[i].nlocal ? k->t[i].elem : 0;

		for (uint32_t d = 0; d < k->t[i].ndim; d++)
			n *= k->t[i].n[d];
		sum += n;
	}
	return sum;
}

bool rank_fill_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	value_of(t->spec, g, *(const uint64_t *)arg, t->elem, p);
	return true;
}

static void blob_of(uint32_t which, uint32_t rank, uint64_t step, uint8_t *ret, uint64_t *ret_len)
{
	*ret_len = 1 + (step * 37 + which * 11 + rank * 3) % (RANK_BLOB_MAX - 1);
	for (uint64_t i = 0; i < *ret_len; i++)
		ret[i] = (uint8_t)(step + i * 3 + (which ? rank * 17 : 0));
}

void rank_fill(struct rank *k, uint64_t step)
{
	for (uint32_t i = 0; i < k->ntensor; i++)
		rank_each(&k->t[i], rank_fill_one, &step);
	blob_of(0, 0, step, k->blob[0], &k->blob_len[0]);
	blob_of(1, k->rank, step, k->blob[1], &k->blob_len[1]);
}

static bool clear_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	(void)g;
	(void)arg;
	memset(p, 0xa5, t->elem);
	return true;
}

void rank_clear(struct rank *k)
{
	for (uint32_t i = 0; i < k->ntensor; i++)
		rank_each(&k->t[i], clear_one, NULL);
}

bool rank_check_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	uint64_t step = *(const uint64_t *)arg;
	uint8_t want[16], clear[16];

	memset(clear, 0xa5, sizeof clear);
	value_of(t->spec, g, step, t->elem, want);
	if (step == UINT64_MAX)
		memcpy(want, clear, t->elem);
	if (memcmp(p, want, t->elem) == 0)
		return true;
	fprintf(stderr, "# %s/%s element %" PRIu64 " is not of step %" PRId64,
		rank_specs[t->spec].component, rank_specs[t->spec].name, g, (int64_t)step);
	for (uint64_t s = 0; s < 100; s++) {
		value_of(t->spec, g, s, t->elem, want);
		if (memcmp(p, want, t->elem) == 0)
			fprintf(stderr, " but of step %" PRIu64, s);
	}
	fprintf(stderr, "%s\n", memcmp(p, clear, t->elem) == 0 ? " but untouched" : "");
	return false;
}

bool rank_check(struct rank *k, uint64_t step)
{
	bool ok = true;

	for (uint32_t i = 0; i < k->ntensor; i++)
		ok &= rank_each(&k->t[i], rank_check_one, &step);
	if (!ok)
		fprintf(stderr, "# (rank %u of %s)\n", k->rank, k->plan->mesh);
	return ok;
}

bool rank_check_clear(struct rank *k)
{
	return rank_check(k, UINT64_MAX);
}

bool rank_check_blobs(struct rank *k, uint64_t step, uint32_t world_saved)
{
	uint8_t want[RANK_BLOB_MAX], got[RANK_BLOB_MAX];
	uint64_t want_len, len;

	for (uint32_t r = 0; r < world_saved; r++)
		for (uint32_t which = 0; which < 2; which++) {
			blob_of(which, r * which, step, want, &want_len);
			if (ckpt_blob_read(k->c, which ? "rng" : "cursor", r, got, sizeof got,
					   &len) < 0 ||
			    len != want_len || memcmp(want, got, len) != 0) {
				fprintf(stderr, "# blob %u of rank %u is not of step %" PRIu64 "\n",
					which, r, step);
				return false;
			}
		}
	return ckpt_blob_read(k->c, "rng", world_saved, got, sizeof got, &len) == -ENOENT &&
	       ckpt_blob_read(k->c, "nothing", 0, got, sizeof got, &len) == -ENOENT;
}

/* --- a job --- */
int rank_step(struct rank *k, uint64_t step, uint32_t mark_flags)
{
	struct ckpt_note note[] = { { "loss", 1.0 / (double)(step + 1) }, { "lr", 0.5 } };
	struct ckpt_mark m = { .size = sizeof m, .flags = mark_flags, .note = note, .nnote = 2 };
	int rc = ckpt_guard(k->c, NULL);

	MUST(rc == 0 || rc == CKPT_TORN);
	rank_fill(k, step);
	return ckpt_snapshot(k->c, step, &m);
}

int rank_want(struct rank *k, const struct ckpt_want *w)
{
	k->got = (struct ckpt_got){ .size = sizeof k->got };
	return ckpt_restore(k->c, w, &k->got, &k->err);
}

int rank_restore(struct rank *k, uint64_t step, uint32_t flags)
{
	return rank_want(
		k, &(struct ckpt_want){ sizeof(struct ckpt_want), .flags = flags, .step = step });
}

void rank_meet(struct rank *k)
{
	(void)pthread_barrier_wait(k->barrier);
}

struct teammate {
	struct rank k;
	const struct plan_of_job *plan;
	void (*script)(struct rank *k);
	pthread_t thread;
};

static void *teammate_run(void *arg)
{
	struct teammate *m = arg;

	m->script(&m->k);
	return NULL;
}

void team(const struct plan_of_job *p, void (*script)(struct rank *k), void *arg)
{
	uint32_t n = rank_world(p->mesh);
	struct teammate *m = calloc(n, sizeof *m);
	pthread_barrier_t barrier;

	pthread_barrier_init(&barrier, NULL, n);
	for (uint32_t i = 0; i < n; i++) {
		m[i] = (struct teammate)
			ROW(.k = { .plan = p, .rank = i, .arg = arg, .barrier = &barrier },
			    .script = script);
		MUST(pthread_create(&m[i].thread, NULL, teammate_run, &m[i]) == 0);
	}
	for (uint32_t i = 0; i < n; i++)
		pthread_join(m[i].thread, NULL);
	pthread_barrier_destroy(&barrier);
	free(m);
}

struct launched {
	void (*script)(struct rank *k);
	void *arg;
};

static void opened(struct rank *k)
{
	const struct launched *l = k->arg;

	rank_open(k, k->plan, k->rank);
	k->arg = l->arg;
	l->script(k);
	rank_meet(k);
	rank_close(k, 0);
}

void launch(const struct plan_of_job *p, void (*script)(struct rank *k), void *arg)
{
	struct launched l = { script, arg };

	team(p, opened, &l);
}

static void save_steps(struct rank *k)
{
	const uint64_t *step = k->arg;

	for (uint64_t s = step[0]; s <= step[1]; s++)
		save(k, s);
}

void saves(const struct plan_of_job *p, uint64_t first, uint64_t last)
{
	launch(p, save_steps, (uint64_t[]){ first, last });
}
