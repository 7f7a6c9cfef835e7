/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_plan.c - see bench_plan.h. Called by bench_main.c.
 * Invariant: a figure is printed only after what was computed has been held against what must come
 * out: all owners together own every byte once, and a rank's operations bring all that it holds.
 */
#include "bench_plan.h"
#include "bench_job.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/coalesce.h"
#include "ckpt/plan/plan.h"
#include "ckpt/redist/redistribute.h"
#include "ckpt/plan/plan_schedule.h"
#include "formats/native/native.h"
#include "tests/lib/models.h"
#include "tests/lib/onto.h"
#include "tests/lib/row.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define CHASE_BYTES (512 * MIB)
#define CHASE_READS (4u << 20)
#define LINE 64u
#define ROUNDS 5u
#define HOST_RANKS 8u
#define SAMPLED 16u /* ranks whose plans are timed */

static uint64_t resident_bytes(void)
{
	struct rusage use;

	getrusage(RUSAGE_SELF, &use);
	return (uint64_t)use.ru_maxrss << 10;
}

static uint64_t random_below(uint64_t *state, uint64_t n) /* splitmix64 */
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (x ^ x >> 31) % n;
}

/* A walk through one cycle of all lines: each read waits for the one before. */
static void dram(void)
{
	uint64_t n = CHASE_BYTES / LINE, state = 1, at = 0;
	uint64_t *p =
		mmap(NULL, CHASE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		die("no memory for %" PRIu64 " bytes", (uint64_t)CHASE_BYTES);
	madvise(p, CHASE_BYTES, MADV_HUGEPAGE);
	for (uint64_t i = 0; i < n; i++)
		p[i * LINE / 8] = i;
	for (uint64_t i = n - 1; i > 0; i--) { /* Sattolo's shuffle: one cycle */
		uint64_t k = random_below(&state, i), x = p[k * LINE / 8];

		p[k * LINE / 8] = p[i * LINE / 8];
		p[i * LINE / 8] = x;
	}
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t t = now_ns();

		for (uint32_t i = 0; i < CHASE_READS; i++)
			at = p[at * LINE / 8];
		__asm__ volatile("" : : "r"(at) : "memory");
		say("dram_read_ps", (now_ns() - t) * 1000 / CHASE_READS);
	}
	munmap(p, CHASE_BYTES);
}

static void model_get(const char *name, bool loaded, struct table *ret)
{
	struct ckpt_err err;

	if (model_find(name) == MODELS)
		die("there is no model '%s'", name);
	if (model_make(model_find(name), loaded, ret, &err))
		die("%s", err.msg);
}

static uint64_t table_bytes(const struct table *t)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		sum += t->tensor[i].numel * t->tensor[i].elem_bytes;
	return sum;
}

/* ---- owners ---- */

struct owned {
	const struct table *t;
	uint64_t *bytes; /* by rank */
	uint64_t npiece;
};

static int count_owned(void *arg, uint32_t tensor, const struct holder *h)
{
	struct owned *o = arg;

	o->bytes[h->rank] += h->set.numel * o->t->tensor[tensor].elem_bytes;
	o->npiece++;
	return 0;
}

static void owners(const char *model)
{
	struct owned o = { .npiece = 0 };
	struct ckpt_err err;
	struct table t;

	model_get(model, false, &t);
	say("tensors", t.ntensor);
	say("resident_before", resident_bytes());
	say("ranks", model_world(&t));
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t sum = 0, most = 0, ns = now_ns();

		o = (struct owned){ &t, calloc(model_world(&t), sizeof *o.bytes), 0 };
		if (!o.bytes || reshard_owners(&t, HOLDERS_OWNERS, count_owned, &o, &err))
			die("%s", o.bytes ? err.msg : "out of memory");
		ns = now_ns() - ns;
		for (uint32_t i = 0; i < model_world(&t); i++) {
			sum += o.bytes[i];
			most = MAX(most, o.bytes[i]);
		}
		if (sum != table_bytes(&t))
			die("the owners own %" PRIu64 " of %" PRIu64 " bytes", sum,
			    table_bytes(&t));
		say("owners", ns);
		say("owners_piece_ps", ns * 1000 / o.npiece);
		if (!round) {
			say("pieces", o.npiece);
			say("bytes", sum);
			say("bytes_of_the_largest_rank", most);
		}
		free(o.bytes);
	}
	say("resident", resident_bytes());
	table_free(&t);
}

/* ---- one rank ---- */

struct moved {
	uint64_t nop, bytes;
};

static int count_moved(void *arg, const struct reshard_op *op)
{
	struct moved *m = arg;

	m->nop++;
	m->bytes += op->bytes;
	return 0;
}

static struct reshard *opened(const struct table *src, const struct table *dst)
{
	struct reshard *r;
	struct ckpt_err err;

	if (reshard_open(src, dst, NULL, &r, &err))
		die("%s", err.msg);
	return r;
}

/* What a rank holds, one tensor behind the other. */
static void rank_table(const struct table *dst, uint32_t rank, struct table *ret)
{
	struct table_place place = { "memory", rank, INT64_MAX };
	struct ckpt_err err = { .msg = "out of memory" };
	uint64_t end = 0;
	int e;

	*ret = table_borrow(dst);
	e = table_add_place(ret, &place, NULL, &err);
	for (uint32_t i = 0; i < dst->ntensor && !e; i++) {
		const struct table_tensor *x = &dst->tensor[i];
		const struct layout *l = &dst->layout[x->layout];
		struct table_piece p = { .tensor = i, .rank = rank, .off = end };
		uint32_t coord[CKPT_DIMS_MAX];

		mesh_coord(&dst->mesh[l->mesh], rank, coord);
		e = layout_share(&dst->mesh[l->mesh], l, x->ndim, x->shape, coord, &ret->arena,
				 &p.set);
		if (!e && p.set.numel)
			e = table_put_piece(ret, &p, &err);
		end += p.set.numel * x->elem_bytes;
	}
	if (e || table_seal(ret, &err))
		die("%s", err.msg);
}

/*
 * The pieces of the parts that are needed, as opening them would give: packed, or on chunks.
 * Weights and the optimizer's tensors lie apart, as in a part; here the latter begin at OPTIM_AT.
 */
#define OPTIM_AT (UINT64_C(1) << 36)
struct parts {
	struct table t;
	const bool *needed;
	uint32_t *place;    /* by rank; + 1 */
	uint64_t (*end)[2]; /* by place */
	uint64_t *bytes;    /* the same: where all ends */
};

static int add_part_piece(void *arg, uint32_t tensor, const struct holder *h)
{
	struct parts *p = arg;
	struct table_place place = { "part", h->rank, INT64_MAX };
	struct table_piece x = { .tensor = tensor, .rank = h->rank, .set = h->set };
	uint64_t bytes = h->set.numel * p->t.tensor[tensor].elem_bytes;
	uint64_t *end;
	int e = 0;

	if (!p->needed[h->rank])
		return 0;
	if (!p->place[h->rank]) {
		e = table_add_place(&p->t, &place, NULL, NULL);
		p->place[h->rank] = p->t.nplace;
	}
	x.place = p->place[h->rank] - 1;
	end = &p->end[x.place][strcmp(p->t.tensor[tensor].component, "optim") == 0];
	x.off = align_up(*end, bytes >= NATIVE_BIG ? UINT64_C(1) << CHUNK_LOG2 : NATIVE_PACK);
	*end = x.off + bytes;
	x.off += end == &p->end[x.place][1] ? OPTIM_AT : 0;
	p->bytes[x.place] = MAX(p->bytes[x.place], x.off + bytes);
	return e ? e : table_add_piece(&p->t, &x, NULL);
}

/* Whole chunks, as they are checked whole; bytes: of each place. */
static uint64_t plan_reads(const struct plan *p, const uint64_t *bytes, struct reads *r)
{
	uint64_t chunk = UINT64_C(1) << CHUNK_LOG2, needed = 0;

	for (uint64_t i = 0; i < p->nop; i++) {
		struct plan_cursor c;
		struct plan_row row;

		for (plan_rows(p, &p->op[i], &c); plan_row_next(&c, &row);) {
			uint64_t from = row.src_off / chunk * chunk, len = plan_row_src_bytes(&row);
			uint64_t to =
				MIN(align_up(row.src_off + len, chunk), bytes[p->op[i].src_place]);

			needed += len;
			if (reads_add(r, p->op[i].src_place, from, to - from))
				die("out of memory");
		}
	}
	return needed;
}

/* What comes after the parts are opened, for n ranks of one host. */
static void with_pieces(const struct table *src, const struct table *dst, uint32_t first,
			uint32_t n)
{
	uint32_t world = model_world(src), nneeded = 0;
	cleanup_free bool *needed = calloc(world, sizeof *needed);
	struct parts parts = { .t = table_borrow(src), .needed = needed };
	struct reshard *r = opened(src, dst);
	struct reads reads = { .n = 0 };
	struct ckpt_err err;
	uint64_t ns = now_ns(), needed_bytes = 0;
	bool all;

	parts.place = calloc(world, sizeof *parts.place);
	parts.end = calloc(world, sizeof *parts.end);
	parts.bytes = calloc(world, sizeof *parts.bytes);
	if (!needed || !parts.place || !parts.end || !parts.bytes)
		die("out of memory");
	for (uint32_t i = 0; i < n; i++)
		if (reshard_ranks(r, first + i, world, needed, &all, &err))
			die("%s", err.msg);
	say(n > 1 ? "host_parts_found" : "parts_found", now_ns() - ns);
	reshard_close(r);
	if (reshard_owners(src, HOLDERS_OWNERS, add_part_piece, &parts, &err) ||
	    table_seal(&parts.t, &err))
		die("%s", err.msg);
	for (uint32_t i = 0; i < world; i++)
		nneeded += needed[i];
	say(n > 1 ? "host_parts_needed" : "parts_needed", nneeded);
	for (uint32_t i = 0; i < n; i++) {
		struct table mine;
		struct plan plan;

		rank_table(dst, first + i, &mine);
		ns = now_ns();
		if (plan_make(&parts.t, &mine, NULL, &plan, NULL, &err))
			die("%s", err.msg);
		say("plan_of_pieces", now_ns() - ns);
		ns = now_ns();
		needed_bytes += plan_reads(&plan, parts.bytes, &reads);
		say("reads_added", now_ns() - ns);
		plan_free(&plan);
		table_free(&mine);
	}
	ns = now_ns();
	reads_unite(&reads);
	say(n > 1 ? "host_coalesce" : "coalesce", now_ns() - ns);
	say(n > 1 ? "host_reads" : "reads", reads.requests);
	say(n > 1 ? "host_read_bytes" : "read_bytes", reads.bytes);
	say(n > 1 ? "host_needed_bytes" : "needed_bytes", needed_bytes);
	reads_free(&reads);
	table_free(&parts.t);
	free(parts.place);
	free(parts.end);
	free(parts.bytes);
}

static void rank_plans(const char *model)
{
	struct table src, dst;
	uint32_t world;

	model_get(model, false, &src);
	model_get(model, true, &dst);
	world = model_world(&dst);
	say("ranks", world);
	for (uint32_t i = 0; i < SAMPLED; i++) {
		uint32_t rank = (uint32_t)((uint64_t)i * (world - 1) / (SAMPLED - 1));
		struct moved m = { 0 }, again = { 0 };
		struct ckpt_err err;
		uint64_t t0 = now_ns(), t1, t2, t3;
		struct reshard *r = opened(&src, &dst);

		t1 = now_ns();
		if (reshard_rank(r, rank, count_moved, &m, &err))
			die("%s", err.msg);
		t2 = now_ns();
		if (reshard_rank(r, rank, count_moved, &again, &err) || again.nop != m.nop)
			die("the same plan is another one");
		t3 = now_ns();
		say("rank_open", t1 - t0);
		say("rank_plan", t2 - t0);
		say("rank_plan_again", t3 - t2);
		say("rank_ops", m.nop);
		say("rank_op_ps", (t2 - t0) * 1000 / MAX(m.nop, UINT64_C(1)));
		reshard_close(r);
		if (i == 0 || i == SAMPLED / 2) {
			struct table mine;
			uint64_t held = 0;

			rank_table(&dst, rank, &mine);
			for (uint32_t k = 0; k < mine.npiece; k++)
				held += mine.piece[k].len;
			if (held != m.bytes)
				die("rank %u gets %" PRIu64 " of %" PRIu64 " bytes", rank, m.bytes,
				    held);
			table_free(&mine);
		}
	}
	with_pieces(&src, &dst, world / 2, 1);
	with_pieces(&src, &dst, world / 2, HOST_RANKS);
	table_free(&src);
	table_free(&dst);
}

/* ---- the schedule of one rank ---- */

#define LAYOUTS 200u
#define ALIKE 187000u

/* One of 200 layouts of a tensor with three dimensions: which of them each mesh dimension cuts (the
 * first may replicate), in which order, and how finely. */
static uint32_t varied_layout(struct table *t, const struct mesh *m, uint32_t number)
{
	struct ckpt_placement p[CKPT_DIMS_MAX];
	struct layout l = { .place = p };
	struct ckpt_err err;
	uint32_t id, digits = number / 8;

	for (uint32_t i = 0; i < m->ndim; i++) {
		uint32_t d = number % 2 ? i : m->ndim - 1 - i;
		uint32_t to = d == 0 ? digits % 4 : digits / 4 / (d == 1 ? 1 : 3) % 3;

		if (to < 3)
			p[l.nplace++] =
				(struct ckpt_placement){ .how = CKPT_SHARD,
							 .mesh_dim = (uint16_t)d,
							 .tensor_dim = (uint16_t)to,
							 .split_factor = 1 + number / 2 % 4 };
	}
	if (table_add_layout(t, &l, &id, &err))
		die("%s", err.msg);
	return id;
}

static void varied_table(const char *spec, uint32_t from, struct table *ret)
{
	struct arena a = { 0 };
	uint32_t layout[LAYOUTS];
	struct ckpt_err err;
	struct mesh m;
	char name[64];
	int e;

	*ret = (struct table){ 0 };
	e = mesh_parse(spec, &a, &m, &err);
	if (!e)
		e = table_add_mesh(ret, &m, NULL, &err);
	for (uint32_t i = 0; i < LAYOUTS && !e; i++)
		layout[i] = varied_layout(ret, &m, from + i);
	for (uint32_t i = 0; i < ALIKE && !e; i++) {
		uint64_t shape[] = { 2048, 2048, 64 };
		struct table_tensor x =
			ROW(.component = "model", .name = name, .of = "", .dtype = CKPT_BF16,
			    .cls = CKPT_STABLE, .layout = layout[i % LAYOUTS], .rank = TABLE_NONE,
			    .ndim = 3, .shape = shape);

		snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.weight", i / 1000,
			 i % 1000);
		e = table_add_tensor(ret, &x, NULL, &err);
	}
	if (e || table_seal(ret, &err))
		die("%s", err.msg);
	arena_free(&a);
}

static uint64_t cpu_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * NS_PER_S + (uint64_t)t.tv_nsec;
}

/* What the rank sends and receives is what it has to. */
static void part_check(const struct table *dst, const struct schedule_part *p)
{
	struct table mine;
	uint64_t held = 0;

	if (p->rank >= model_world(dst))
		return;
	rank_table(dst, p->rank, &mine);
	for (uint32_t i = 0; i < mine.npiece; i++)
		held += mine.piece[i].len;
	if (p->in_bytes + p->self_bytes != held)
		die("rank %u gets %" PRIu64 " of %" PRIu64 " bytes", p->rank,
		    p->in_bytes + p->self_bytes, held);
	table_free(&mine);
}

static void rank_schedules(const char *model)
{
	struct schedule_opts opts = { .who = HOLDERS_ONE, .links = links_preset(LINKS_DEFAULT) };
	struct schedule_part part[SAMPLED];
	struct table src, dst;
	uint32_t world;

	if (!strcmp(model, "layouts")) {
		varied_table("dp=2,fsdp=128,tp=8", 0, &src);
		varied_table("dp=4,fsdp=64,tp=8", 7, &dst);
	} else {
		model_get(model, false, &src);
		model_get(model, true, &dst);
	}
	world = MAX(model_world(&src), model_world(&dst));
	say("ranks", world);
	say("resident_before", resident_bytes());
	for (uint32_t i = 0; i < SAMPLED; i++) {
		uint32_t rank = (uint32_t)((uint64_t)i * (world - 1) / (SAMPLED - 1));
		struct schedule *s;
		struct ckpt_err err;
		uint64_t t0 = now_ns(), cpu = cpu_ns(), t1;

		if (schedule_open(&src, &dst, &opts, &s, &err))
			die("%s", err.msg);
		t1 = now_ns();
		if (schedule_part(s, rank, &part[i], &err))
			die("%s", err.msg);
		say("schedule", now_ns() - t0);
		say("schedule_cpu", cpu_ns() - cpu);
		say("schedule_open", t1 - t0);
		say("schedule_rounds", schedule_rounds(s)->n);
		say("schedule_peers", part[i].nout + part[i].nin);
		schedule_close(s);
	}
	say("resident", resident_bytes());
	for (uint32_t i = 0; i < SAMPLED; i++) {
		if (i % (SAMPLED / 2) == 0)
			part_check(&dst, &part[i]);
		schedule_part_free(&part[i]);
	}
	table_free(&src);
	table_free(&dst);
}

/* ---- how long schedules take ---- */

static void takes(void)
{
	const struct links *links = links_preset(LINKS_DEFAULT);
	struct schedule_opts opts = { .who = HOLDERS_ONE, .links = links };

	for (uint32_t i = 0; i < ONTO_CASES; i++) {
		struct table src, dst;
		struct schedule_total t;
		struct schedule *s;
		struct ckpt_err err;

		if (onto_make(&onto_case[i], false, &src, &err) ||
		    onto_make(&onto_case[i], true, &dst, &err) ||
		    schedule_open(&src, &dst, &opts, &s, &err) ||
		    schedule_total(s, links, NULL, NULL, &t, &err))
			die("%s: %s", onto_case[i].name, err.msg);
		printf("%s_ppm %.0f\n", onto_case[i].name, t.us / t.bound_us * 1e6);
		schedule_total_free(&t);
		schedule_close(s);
		table_free(&src);
		table_free(&dst);
	}
}

/* ---- the steps of a redistribution ---- */

static uint64_t redist_ns(const struct redist_problem *p, enum redist_planner planner,
			  const struct redist_model *m, struct arena *a, struct redist_steps *ret)
{
	struct ckpt_err err;
	uint64_t ns = now_ns();

	if (redist_plan(p, planner, m, a, ret, &err))
		die("%s", err.msg);
	return now_ns() - ns;
}

/* One thread that waits for nothing: its processor time. */
static uint64_t search_ns(const struct redist_problem *p, const struct redist_model *m)
{
	struct arena a = { 0 };
	struct redist_steps steps;
	uint64_t ns = cpu_ns();

	(void)redist_ns(p, REDIST_GRAPH, m, &a, &steps);
	ns = cpu_ns() - ns;
	if (!steps.n)
		die("a redistribution takes steps");
	arena_free(&a);
	return ns;
}

/* Four mesh dimensions, eight tensor dimensions: the pair that takes longest, in each round. */
static void steps(void)
{
	static const char *const pair[][2] = {
		{ "S(0)S(1)S(2)S(3)", "S(3)S(2)S(1)S(0)" },
		{ "S(0)S(1)S(2)S(3)", "S(4)S(5)S(6)S(7)" },
		{ "S(7)S(6)S(5)S(4)", "RRRS(0)" },
		{ "S(0)[0]S(0)[1]S(0)[2]S(0)[3]", "S(0)[3]S(0)[2]S(0)[1]S(0)[0]" },
		{ "P(sum)P(sum)P(sum)P(sum)", "RRRR" },
		{ "_S(0, 2)_S(0, 2)_S(0, 2)_S(0, 2)", "_S(7, 4)_S(6, 4)_S(5, 4)_S(4, 4)" },
	};
	static const uint64_t shape[] = { 64, 64, 64, 64, 64, 64, 64, 64 };
	struct redist_model torch = redist_torch(HOST_RANKS),
			    own = redist_links(links_preset(LINKS_DEFAULT));
	struct arena a = { 0 };
	struct ckpt_err err;
	struct mesh m;

	if (mesh_parse("a=4,b=4,c=4,d=4", &a, &m, &err))
		die("%s", err.msg);
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint64_t most = 0, most_own = 0;

		for (size_t i = 0; i < ARRAY_LEN(pair); i++) {
			struct layout src, dst;
			struct redist_problem p = { .mesh = &m,
						    .ndim = ARRAY_LEN(shape),
						    .elem_bytes = 2,
						    .shape = shape,
						    .src = &src,
						    .dst = &dst };

			if (redist_state_parse(pair[i][0], &m, p.ndim, &a, &src, &err) ||
			    redist_state_parse(pair[i][1], &m, p.ndim, &a, &dst, &err))
				die("%s", err.msg);
			most = MAX(most, search_ns(&p, &torch));
			most_own = MAX(most_own, search_ns(&p, &own));
		}
		say("steps", most);
		say("own", most_own);
	}
	arena_free(&a);
}

/* "4,2": their number. */
static uint32_t numbers(const char *text, uint64_t ret[CKPT_DIMS_MAX])
{
	uint32_t n = 0;
	char *end;

	do {
		if (n == CKPT_DIMS_MAX)
			die("more than %d dimensions", CKPT_DIMS_MAX);
		ret[n++] = strtoull(text, &end, 10);
		text = end + 1;
	} while (*end == ',');
	return n;
}

static void pair_answer(const char *mesh, const char *shape, const char *src, const char *dst,
			const char *planner)
{
	uint64_t dim[CKPT_DIMS_MAX], sizes[CKPT_DIMS_MAX];
	uint32_t ndim = numbers(mesh, dim);
	struct redist_model torch = redist_torch(HOST_RANKS);
	struct arena a = { 0 };
	struct layout from, to;
	struct ckpt_err err;
	struct mesh m;
	struct redist_problem p = { .mesh = &m,
				    .ndim = numbers(shape, sizes),
				    .elem_bytes = 4,
				    .shape = sizes,
				    .src = &from,
				    .dst = &to };
	struct redist_steps steps;
	char spec[256] = "", placement[2][REDIST_PLACEMENT_BYTES];
	uint64_t ns;

	for (uint32_t i = 0; i < ndim; i++)
		snprintf(spec + strlen(spec), sizeof spec - strlen(spec), "%sm%u=%" PRIu64,
			 i ? "," : "", i, dim[i]);
	if (mesh_parse(spec, &a, &m, &err) ||
	    redist_state_parse(src, &m, p.ndim, &a, &from, &err) ||
	    redist_state_parse(dst, &m, p.ndim, &a, &to, &err))
		die("%s", err.msg);
	ns = redist_ns(&p, !strcmp(planner, "graph") ? REDIST_GRAPH : REDIST_GREEDY, &torch, &a,
		       &steps);
	printf("%" PRIu64, ns);
	for (uint32_t i = 0; i < steps.n; i++)
		printf(" %u:%s>%s", steps.step[i].mesh_dim,
		       redist_placement_print(&steps.step[i].from, placement[0],
					      sizeof placement[0]),
		       redist_placement_print(&steps.step[i].to, placement[1],
					      sizeof placement[1]));
	putchar('\n');
	arena_free(&a);
}

/* Lines "MESH SHAPE SRC DST PLANNER", each answered by "NS STEP..". */
static void pairs(void)
{
	char mesh[64], shape[64], src[256], dst[256], planner[16];

	while (scanf("%63s %63s %255s %255s %15s", mesh, shape, src, dst, planner) == 5) {
		pair_answer(mesh, shape, src, dst, planner);
		fflush(stdout);
	}
}

/* ---- MANIFEST ---- */

struct file {
	uint8_t *bytes;
	uint64_t len;
};

static int file_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct file *f = ctx;

	if (off > f->len || len > f->len - off)
		return -EIO;
	memcpy(buf, f->bytes + off, len);
	return 0;
}

static int file_open(void *ctx, const char *name, struct source *ret)
{
	struct file *f = ctx;

	if (strcmp(name, NATIVE_MANIFEST) != 0)
		return -ENOENT;
	*ret = (struct source){ .ctx = f, .bytes = f->len, .read = file_read };
	return 0;
}

static int choose_none(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	(void)arg;
	(void)k;
	(void)needed;
	(void)err;
	return 0;
}

static void manifest(const char *model)
{
	struct table t;
	struct native_info info = { .job = "bench", .step = 1000, .generation = 1 };
	struct native_lineage lineage = { .seq = 1,
					  .parent_step = UINT64_MAX,
					  .tool = "ckptbench" };
	struct native_part *part;
	struct file file = { 0 };
	struct source_dir dir = { .ctx = &file, .open = file_open };
	struct source source;
	uint64_t state = 7;
	struct ckpt_err err;
	uint8_t id[16];
	void *bytes;

	model_get(model, false, &t);
	info.world = model_world(&t);
	part = calloc(info.world, sizeof *part);
	if (!part)
		die("out of memory");
	for (uint32_t i = 0; i < t.ntensor; i++) {
		t.tensor[i].fp = random_below(&state, UINT64_MAX);
		t.tensor[i].fp_known = true;
	}
	for (uint32_t i = 0; i < info.world; i++) {
		struct native_part *p = &part[i];

		p->rank = i;
		p->step = info.step;
		p->generation = info.generation;
		native_part_uuid(&info, i, p->uuid);
		p->file_bytes = 4096 + random_below(&state, 1 << 20) * 4096;
		p->raw_bytes = p->file_bytes;
		for (uint32_t k = 0; k < 16; k++)
			p->root.b[k] = (uint8_t)random_below(&state, 256);
		snprintf(p->name, sizeof p->name, "w%04u-%08x-%03u.part", i,
			 (unsigned)random_below(&state, UINT32_MAX), 0u);
	}
	if (native_manifest_declared(&info, &t, part, info.world, &lineage, &bytes, &file.len, id,
				     &err))
		die("%s", err.msg);
	file.bytes = bytes;
	say("manifest_bytes", file.len);
	for (uint32_t i = 0; i < ROUNDS; i++) {
		struct checkpoint *k;
		uint64_t ns = now_ns();

		if (format_native.open(&(struct format_open){ .dir = &dir, .choose = choose_none },
				       &k, &err))
			die("%s", err.msg);
		say("manifest_read", now_ns() - ns);
		if (k->table.ntensor != t.ntensor || k->nfile != info.world)
			die("a MANIFEST is read as another one");
		checkpoint_free(k);
		ns = now_ns();
		if (file_open(&file, NATIVE_MANIFEST, &source) ||
		    format_native.root->summary(&source, &k, &err))
			die("%s", err.msg);
		say("manifest_summary", now_ns() - ns);
		checkpoint_free(k);
	}
	free(bytes);
	free(part);
	table_free(&t);
}

/* ---- for other planners ---- */

/* A line a tensor: name, shape, and how it is cut before and after, in order of application. */
static void list(const char *model)
{
	struct table src, dst;
	char from[128], to[128];

	model_get(model, false, &src);
	model_get(model, true, &dst);
	printf("mesh %s", mesh_print(&src.mesh[0], from, sizeof from));
	printf(" %s\n", mesh_print(&dst.mesh[0], to, sizeof to));
	for (uint32_t i = 0; i < src.ntensor; i++) {
		const struct table_tensor *x = &src.tensor[i];

		printf("%s/%s\t", x->component, x->name);
		for (uint32_t d = 0; d < x->ndim; d++)
			printf("%s%" PRIu64, d ? "," : "", x->shape[d]);
		printf("\t%s\t%s\n", table_layout_print(&src, x->layout, from, sizeof from),
		       table_layout_print(&dst, dst.tensor[i].layout, to, sizeof to));
	}
	table_free(&src);
	table_free(&dst);
}

bool bench_plan(const char *what, const char *model)
{
	if (!strcmp(what, "dram") && !model)
		dram();
	else if (!strcmp(what, "owners") && model)
		owners(model);
	else if (!strcmp(what, "rank") && model)
		rank_plans(model);
	else if (!strcmp(what, "schedule") && model)
		rank_schedules(model);
	else if (!strcmp(what, "take") && !model)
		takes();
	else if (!strcmp(what, "steps") && !model)
		steps();
	else if (!strcmp(what, "pairs") && !model)
		pairs();
	else if (!strcmp(what, "manifest") && model)
		manifest(model);
	else if (!strcmp(what, "list") && model)
		list(model);
	else
		return false;
	return true;
}
