/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_drift_rig.h - a job whose ranks hold replicas, all of them marked by one thread, for
 * the tests of daemon/drift.h. The memory of each rank is of one kind: from ckpt_alloc, the
 * process's own, or that of a CUDA device (tests/fakecuda).
 */
#ifndef TEST_DAEMON_DRIFT_RIG_H
#define TEST_DAEMON_DRIFT_RIG_H
#include "ckpt/base/dtype.h"
#include "daemon/drift.h"
#include "formats/native/native.h"
#include "tests/fakecuda/fakecuda_test.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define JOB "drift"
#define RANKS 8
#define TENSORS 11
#define ALL 128 /* steps in which all is compared */

static const struct fakecuda *fake;
static const struct cuda_calls *cu;

static inline int setup(void **state)
{
	(void)host_setup(state);
	daemon_said.level = LOG_NOTICE;
	host_start(&H, NULL);
	return 0;
}

/* --- a job, all of whose ranks are marked by one thread --- */
struct spec {
	const char *name;
	uint32_t dtype, cls, ndim;
	uint64_t shape[3];
	const char *by[3]; /* the mesh dimension that shards each dimension; NULL: none */
	uint32_t split;	   /* of dimension 0, where it is sharded */
	bool gap;	   /* rows are apart in memory */
	uint32_t operand;  /* 1: a pending sum over dp; 2: a buffer, another one on each rank */
	uint32_t world;	   /* of smaller ones it is left out */
};
static const struct spec specs[TENSORS] = {
	{ "large", CKPT_F32, CKPT_STABLE, 2, { 701, 1000 }, { NULL }, 0, false, 0, 0 },
	{ "cut", CKPT_BF16, CKPT_STABLE, 2, { 300, 70 }, { "fsdp", "tp" }, 0, false, 0, 0 },
	{ "columns", CKPT_F32, CKPT_STABLE, 2, { 90, 100 }, { NULL, "tp" }, 0, true, 0, 0 },
	{ "deep", CKPT_F64, CKPT_STABLE, 3, { 7, 40, 9 }, { NULL, "tp" }, 0, false, 0, 0 },
	{ "strided", CKPT_I32, CKPT_STABLE, 2, { 97, 64 }, { "fsdp" }, 3, false, 0, 0 },
	{ "norm", CKPT_F32, CKPT_STABLE, 1, { 37 }, { NULL }, 0, false, 0, 0 },
	{ "scalar", CKPT_C128, CKPT_STABLE, 0, { 0 }, { NULL }, 0, false, 0, 0 },
	{ "fixed", CKPT_F16, CKPT_CONST, 2, { 50, 90 }, { NULL }, 0, false, 0, 0 },
	{ "operand", CKPT_F32, CKPT_STABLE, 1, { 5000 }, { NULL }, 0, false, 1, 0 },
	/* more than 128 blocks, which cross rows */
	{ "wide", CKPT_U8, CKPT_STABLE, 2, { 703, 6001 }, { "fsdp", "tp" }, 0, false, 0, 8 },
	/* as batch norm's running statistics in a data parallel job: each rank has its own */
	{ "stats", CKPT_F32, CKPT_STABLE, 1, { 200 }, { NULL }, 0, false, 2, 0 },
};

enum kind { IN_SEGMENT, IN_PROCESS, ON_DEVICE };
struct one {
	ckpt *c;
	uint32_t mesh, rank;
	enum kind kind;
	cuda_stream stream; /* ON_DEVICE */
	uint32_t id[TENSORS];
	enum kind made[TENSORS]; /* of its memory: */
	void *ptr[TENSORS];	 /* as it is declared; */
	uint8_t *at[TENSORS];	 /* as the host touches it */
	uint64_t bytes[TENSORS]; /* of the memory, gaps included */
	uint64_t numel[TENSORS], row[TENSORS], pitch[TENSORS];
	uint8_t *rng;
	struct ckpt_err err;
};
struct job {
	uint32_t world;
	struct mesh mesh;
	struct arena a;
	struct one k[RANKS];
	uint64_t step;
};
static struct job J;
enum { FRESH = 1 }; /* of job_open */
/* What memory the ranks of the next job have, in turn: ''s'', ''o'' or ''d''. */
static const char *kinds = "s";
static const char *driver; /* file of the driver without a GPU: if a rank has a device */
static uint32_t slots;	   /* the same of ckpt_opts.slots */

static inline enum kind kind_of(uint32_t rank)
{
	char k = kinds[rank % strlen(kinds)];

	return k == 's' ? IN_SEGMENT : k == 'o' ? IN_PROCESS : ON_DEVICE;
}

/* With the driver. */
static inline void driver_open(void)
{
	cuda_ctx ctx;

	if (!cu)
		cu = fakecuda_open(driver, "1", &fake);
	MUST(cu);
	MUST_BE(cu->primary_retain(&ctx, 0), 0);
	MUST_BE(cu->ctx_set(ctx), 0);
}

static inline void memory_make(struct one *k, enum kind kind, uint32_t i)
{
	uint64_t bytes = k->bytes[i] + 1;
	cuda_ptr p = 0;

	k->made[i] = kind;
	if (kind == IN_SEGMENT)
		MUST_OF(k, ckpt_alloc(k->c, bytes, &k->ptr[i], &k->err));
	else if (kind == IN_PROCESS)
		MUST((k->ptr[i] = calloc(1, bytes)));
	else
		MUST_BE(cu->mem_alloc(&p, bytes), 0);
	if (kind == ON_DEVICE)
		k->ptr[i] = (void *)(uintptr_t)p;
	k->at[i] = kind == ON_DEVICE ? fake->alias(p) : k->ptr[i];
}

static inline void memory_free(enum kind made, void *ptr)
{
	if (made == IN_PROCESS)
		free(ptr);
	else if (made == ON_DEVICE && ptr)
		MUST_BE(cu->mem_free((uintptr_t)ptr), 0);
}

static inline bool shards(const struct job *j, const struct spec *s, uint32_t d,
			  struct ckpt_placement *ret)
{
	for (uint32_t m = 0; s->by[d] && m < j->mesh.ndim; m++)
		if (strcmp(j->mesh.name[m], s->by[d]) == 0) {
			*ret = (struct ckpt_placement)ROW(.how = CKPT_SHARD,
							  .mesh_dim = (uint16_t)m,
							  .tensor_dim = (uint16_t)d,
							  .split_factor = d ? 0 : s->split);
			return true;
		}
	return false;
}

static inline bool adds_up(const struct job *j, const struct spec *s, struct ckpt_placement *ret)
{
	for (uint32_t m = 0; s->operand == 1 && m < j->mesh.ndim; m++)
		if (strcmp(j->mesh.name[m], "dp") == 0) {
			*ret = (struct ckpt_placement){ .how = CKPT_PARTIAL,
							.mesh_dim = (uint16_t)m,
							.flags = CKPT_KEEP_PARTIAL };
			return true;
		}
	return false;
}

static inline void declare(struct job *j, struct one *k, uint32_t i)
{
	const struct spec *s = &specs[i];
	struct ckpt_placement place[3];
	struct layout l = { .place = place };
	uint32_t coord[CKPT_DIMS_MAX], elem = dtype_bytes(s->dtype);
	struct indexset share;
	int64_t stride[3] = { 0 }, below = 1;
	struct ckpt_local local = { 0 };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .role = s->operand == 2 ? CKPT_BUFFER : CKPT_OTHER,
		    .cls = s->cls, .dtype = s->dtype, .component = "model", .name = s->name,
		    .ndim = s->ndim, .mesh = k->mesh, .shape = s->shape, .place = place,
		    .local = &local);

	if (j->world < s->world)
		return;
	for (uint32_t d = 0; d < s->ndim; d++)
		l.nplace += shards(j, s, d, &place[l.nplace]);
	l.nplace += adds_up(j, s, &place[l.nplace]);
	MUST(mesh_coord(&j->mesh, k->rank, coord));
	MUST(layout_share(&j->mesh, &l, s->ndim, s->shape, coord, &j->a, &share) == 0);
	for (uint32_t d = s->ndim; d-- > 0;) {
		stride[d] = below;
		below *= (int64_t)share.dim[d].total + (s->gap && d + 1 == s->ndim ? 3 : 0);
	}
	k->numel[i] = share.numel;
	k->row[i] = s->ndim ? share.dim[s->ndim - 1].total : 1;
	k->pitch[i] = k->row[i] + (s->gap ? 3 : 0);
	k->bytes[i] = (uint64_t)below * elem;
	memory_make(k, k->kind, i);
	local.ptr = k->ptr[i];
	local.stride = s->gap ? stride : NULL;
	t.nplace = l.nplace;
	t.nlocal = share.numel > 0;
	MUST_OF(k, ckpt_tensor_add(k->c, &t, &k->id[i], &k->err));
	/* A value of each element, by its number: the ranks of a replica have the same. */
	if (s->world)
		memset(k->at[i], 5, k->bytes[i]);
	for (uint64_t e = 0; e < share.numel && !s->world; e++) {
		uint64_t left = e, number = 0, unit = 1, at = 0;

		for (uint32_t d = s->ndim; d-- > 0; left /= share.dim[d].total) {
			uint64_t pos = left % share.dim[d].total, index = 0;
			struct indices_cursor c = { 0 };
			struct stretch x;

			while (indices_next(&share.dim[d], &share.dim[d], &c, &x))
				if (pos >= x.x_pos && pos < x.x_pos + x.len)
					index = x.index + pos - x.x_pos;
			number += index * unit;
			unit *= s->shape[d];
			at += pos * (uint64_t)stride[d];
		}
		for (uint32_t b = 0; b < elem; b++)
			k->at[i][at * elem + b] =
				(uint8_t)((number + i) * UINT64_C(0x9e3779b97f4a7c15) >>
					  (8 * (b % 7)));
	}
	if (s->operand == 2)
		k->at[i][0] ^= (uint8_t)(1 + k->rank);
	if (s->operand == 1 && l.nplace) /* of each coordinate another one */
		k->at[i][0] ^= (uint8_t)(1 + coord[l.place[0].mesh_dim]);
}

static inline void job_open(struct job *j, const char *mesh, uint32_t flags)
{
	int rc = 0;

	*j = (struct job){ .world = rank_world(mesh) };
	MUST(mesh_parse(mesh, &j->a, &j->mesh, NULL) == 0);
	for (uint32_t r = 0; r < j->world; r++) {
		struct one *k = &j->k[r];
		static const uint64_t shape[] = { 100 };
		struct ckpt_opts o =
			ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = JOB, .store = H.store,
			    .socket = H.socket, .rank = r, .world = j->world, .guard = CKPT_FINISH,
			    .persist_every = 1000000, .slots = slots);
		struct ckpt_local local;
		struct ckpt_tensor t = ROW(.size = sizeof t, .cls = CKPT_VOLATILE, .dtype = CKPT_U8,
					   .component = "model", .name = "rng", .ndim = 1,
					   .nlocal = 1, .shape = shape, .local = &local);

		k->rank = r;
		k->kind = kind_of(r);
		if (k->kind == ON_DEVICE) {
			driver_open();
			MUST_BE(cu->stream_new(&k->stream, 0, 0), 0);
			o.device = 1;
		}
		MUST_OF(k, ckpt_attach(&o, &k->c, &k->err));
		if (flags & FRESH)
			MUST(ckpt_fresh(k->c) == 0);
		MUST_OF(k, ckpt_mesh(k->c, j->mesh.ndim, j->mesh.name, j->mesh.dim, j->mesh.rank,
				     &k->mesh, &k->err));
		for (uint32_t i = 0; i < TENSORS; i++)
			declare(j, k, i);
		/* is another one on each rank, as is what lies between the rows */
		MUST_OF(k, ckpt_alloc(k->c, 100, (void **)&k->rng, &k->err));
		memset(k->rng, (int)(1 + r), 100);
		local = (struct ckpt_local){ .ptr = k->rng };
		t.mesh = k->mesh;
		MUST_OF(k, ckpt_tensor_add(k->c, &t, NULL, &k->err));
		rc = ckpt_seal(k->c, 0, &k->err);
		rank_must(rc >= 0, "ckpt_seal", __FILE__, __LINE__, k->err.msg);
	}
	/* Whom the last answer found ready would declare anew. */
	for (uint32_t r = 0; r < j->world - (rc == 0); r++)
		MUST_OF(&j->k[r], ckpt_seal(j->k[r].c, PATIENCE, &j->k[r].err));
	for (uint32_t r = 0; r < j->world; r++) /* so that one rank may wait for all */
		MUST_BE(ckpt_guard(j->k[r].c, NULL), 0);
}

static inline int one_mark(struct one *k, uint64_t step, uint32_t flags)
{
	const struct ckpt_mark mark = { .size = sizeof mark, .flags = flags, .stream = k->stream };

	return ckpt_snapshot(k->c, step, &mark);
}

static inline void job_mark(struct job *j, uint32_t flags)
{
	int rc;

	do
		rc = one_mark(&j->k[0], ++j->step, flags);
	while (rc == CKPT_SKIPPED && usleep(1000) == 0);
	MUST_BE(rc, 0);
	for (uint32_t r = 1; r < j->world; r++)
		MUST_BE(one_mark(&j->k[r], j->step, flags), 0);
}

static inline void job_guard(struct job *j)
{
	for (uint32_t r = 0; r < j->world; r++)
		MUST_BE(ckpt_guard(j->k[r].c, NULL), 0);
}

/* All steps are taken, and compared. */
static inline void job_steps(struct job *j, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		job_mark(j, CKPT_STAGE_ONLY);
		MUST_OF(&j->k[0],
			ckpt_wait(j->k[0].c, j->step, CKPT_STAGED, PATIENCE, &j->k[0].err));
		job_guard(j);
	}
}

static inline void job_close(struct job *j)
{
	for (uint32_t r = 0; r < j->world; r++) {
		(void)ckpt_detach(TAKE(j->k[r].c), 0);
		for (uint32_t i = 0; i < TENSORS; i++)
			memory_free(j->k[r].made[i], j->k[r].ptr[i]);
		if (j->k[r].stream)
			MUST_BE(cu->stream_free(j->k[r].stream), 0);
	}
	arena_free(&j->a);
}

static inline int teardown(void **state)
{
	if (J.world)
		job_close(&J);
	J.world = 0;
	return host_teardown(state);
}

static inline uint32_t findings(void)
{
	return said_times(&daemon_said, "replicas of a tensor are not equal");
}

/* "model/norm: ...": what the newest line says. */
static inline const char *finding(void)
{
	static char line[512];
	const char *at = strstr(daemon_said.text, "replicas of a tensor are not equal: ");

	snprintf(line, sizeof line, "%.*s", at ? (int)strcspn(at, "\n") : 0, at ? at : "");
	return line;
}

static inline uint32_t spec_of(const char *name)
{
	uint32_t i = 0;

	while (strcmp(specs[i].name, name) != 0)
		i++;
	return i;
}

/* A bit of an element that the rank has; not in a gap. */
static inline void flip(struct job *j, uint32_t rank, const char *name, uint64_t n)
{
	uint32_t i = spec_of(name), elem = dtype_bytes(specs[i].dtype);
	struct one *k = &j->k[rank];
	uint64_t e = n % k->numel[i];

	k->at[i][(e / k->row[i] * k->pitch[i] + e % k->row[i]) * elem + n % elem] ^=
		(uint8_t)(1u << n % 8);
}

/* --- found --- */
struct steps_named {
	uint64_t equal, unequal;
};

static inline struct steps_named steps_of(const char *line)
{
	struct steps_named s = { UINT64_MAX, UINT64_MAX };
	const char *a = strstr(line, "last equal in step "), *b = strstr(line, "unequal in step ");

	if (a)
		s.equal = strtoull(a + strlen("last equal in step "), NULL, 10);
	if (b)
		s.unequal = strtoull(b + strlen("unequal in step "), NULL, 10);
	return s;
}

static inline void found_after(const char *mesh, uint32_t rank, const char *name, const char *who)
{
	struct steps_named s;
	char label[64];
	uint64_t at;

	job_open(&J, mesh, 0);
	job_steps(&J, ALL + 9);
	assert_int_equal(findings(), 0);
	at = J.step;
	flip(&J, rank, name, 12345);
	for (uint32_t i = 0; i < ALL + 2 && !findings(); i++)
		job_steps(&J, 1);
	assert_soon(findings() == 1);
	s = steps_of(finding());
	snprintf(label, sizeof label, ": model/%s: %s;", name, who);
	if (!strstr(finding(), label))
		fail_msg("%s, not %s", finding(), label);
	/* between these two */
	if (s.equal > at || s.unequal <= at || s.unequal > J.step || s.unequal - s.equal > ALL + 3)
		fail_msg("flipped after %" PRIu64 ": %s", at, finding());
	job_steps(&J, ALL); /* once */
	assert_int_equal(findings(), 1);
}

static inline struct ckpt_stats stats_of(const struct one *k)
{
	struct ckpt_stats s = { .size = sizeof s };

	MUST_BE(ckpt_stats(k->c, &s), 0);
	return s;
}

/* --- healthy --- */
static inline void says_nothing(const char *mesh)
{
	job_open(&J, mesh, FRESH);
	for (uint32_t i = 0; i < 300; i++) {
		/* training: replicas change alike, and random states as they like */
		for (uint32_t r = 0; r < J.world; r++)
			for (uint32_t t = 0; t < TENSORS; t++)
				for (uint64_t b = i;
				     specs[t].cls != CKPT_CONST && b < J.k[r].bytes[t]; b += 997)
					J.k[r].at[t][b]++;
		for (uint32_t r = 0; r < J.world; r++)
			J.k[r].rng[i % 100]++;
		job_steps(&J, 1);
	}
	assert_int_equal(findings(), 0);
	job_close(&J);
	J.world = 0;
}
#endif
