/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_plan_schedule.c - exchanges between two meshes in rounds: both ends of a stream agree, every
 * byte is carried once, no rank exceeds the limit of a round, and the schedule takes hardly longer
 * than its busiest link needs.
 */
#include "tests/unit/test_plan_kinds.h"
#include "tests/unit/test_layout_lines.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/schedule_bound.h"
#include "ckpt/table/view.h"
#include "tests/unit/test_viewed.h"
#include "tests/lib/row.h"

#define TENSORS 6

struct job {
	struct random_kind side[2];
	struct table table[2];
};

/* Tensors that are alike but for their names, and others. */
static void draw_job(struct job *j)
{
	uint64_t shape[3];
	uint32_t layout[2] = { 0 }, ndim = 0;

	*j = (struct job){ 0 };
	for (int s = 0; s < 2; s++) {
		random_mesh(&j->side[s]);
		assert_ok(table_add_mesh(&j->table[s], &j->side[s].mesh, NULL, NULL));
	}
	for (uint32_t i = 0; i < TENSORS; i++) {
		bool again = i > 0 && naive_below(2);
		char name[16];
		struct table_tensor x = ROW(.component = i % 2 ? "model" : "optim", .name = name,
					    .of = "", .dtype = CKPT_F32, .cls = CKPT_STABLE,
					    .rank = TABLE_NONE, .shape = shape);

		snprintf(name, sizeof name, "w%u", i);
		ndim = again ? ndim : naive_below(4);
		for (uint32_t d = 0; d < ndim && !again; d++)
			shape[d] = naive_below(20) ? 1 + naive_below(12) : 0;
		x.ndim = ndim;
		for (int s = 0; s < 2; s++) {
			if (!again)
				layout[s] = random_layout(&j->table[s], &j->side[s], ndim, false);
			x.layout = s && !naive_below(10) ? TABLE_NONE : layout[s];
			assert_ok(table_add_tensor(&j->table[s], &x, NULL, NULL));
		}
	}
	assert_ok(table_seal(&j->table[0], NULL));
	assert_ok(table_seal(&j->table[1], NULL));
}

static void job_free(struct job *j)
{
	table_free(&j->table[0]);
	table_free(&j->table[1]);
}

/* --- what goes from rank to rank, tensor by tensor --- */

#define RANKS 700u

struct matrix {
	uint64_t (*sent)[RANKS], (*got)[RANKS]; /* [from][to] */
	const struct job *j;
	uint8_t *seen[TENSORS]; /* elements of each that the rank has got */
	bool out;
};

/* Every element of a set: it is the sender's, and the receiver does not have it yet. */
static void elements_note(struct matrix *m, const struct reshard_op *op)
{
	const struct table *src = &m->j->table[0];
	const struct table_tensor *x = &src->tensor[op->src_tensor];
	const struct layout *l = &src->layout[x->layout];
	cleanup_arena struct arena a = { 0 };
	uint32_t coord[CKPT_DIMS_MAX];
	uint64_t pos[CKPT_DIMS_MAX] = { 0 };
	struct indexset has, both;

	assert_true(mesh_coord(&src->mesh[0], op->src_rank, coord));
	assert_ok(layout_share(&src->mesh[0], l, x->ndim, x->shape, coord, &a, &has));
	assert_ok(indexset_intersect(&has, &op->part, &a, &both));
	assert_int_equal(both.numel, op->part.numel);
	for (uint64_t n = 0; n < op->part.numel; n++) {
		uint64_t index = 0;

		for (uint32_t d = 0; d < x->ndim; d++)
			index = index * x->shape[d] + indices_at(&op->part.dim[d], pos[d]);
		assert_int_equal(m->seen[op->dst_tensor][index]++, 0);
		for (uint32_t d = x->ndim; d-- > 0 && ++pos[d] == op->part.dim[d].total;)
			pos[d] = 0;
	}
}

static int matrix_add(void *arg, const struct reshard_op *op)
{
	struct matrix *m = arg;

	assert_true(op->src_rank < RANKS && op->dst_rank < RANKS);
	(m->out ? m->sent : m->got)[op->src_rank][op->dst_rank] += op->bytes;
	if (!m->out)
		elements_note(m, op);
	return 0;
}

/* All that the rank is to hold has come. */
static void rank_is_served(struct matrix *m, struct reshard *r, uint32_t rank)
{
	const struct table *dst = &m->j->table[1];
	uint64_t seen = 0, held = 0;

	for (uint32_t i = 0; i < TENSORS; i++)
		m->seen[i] = calloc(dst->tensor[i].numel + 1, 1);
	assert_ok(reshard_rank(r, rank, matrix_add, m, NULL));
	for (uint32_t i = 0; i < TENSORS; i++) {
		const struct table_tensor *x = &dst->tensor[i];
		static const struct layout whole;
		const struct layout *l = x->layout == TABLE_NONE ? &whole : &dst->layout[x->layout];
		cleanup_arena struct arena a = { 0 };
		uint32_t coord[CKPT_DIMS_MAX];
		struct indexset set;

		assert_true(mesh_coord(&dst->mesh[0], rank, coord));
		assert_ok(layout_share(&dst->mesh[0], l, x->ndim, x->shape, coord, &a, &set));
		for (uint64_t k = 0; k < x->numel; k++)
			seen += m->seen[i][k];
		/* What an ONLY of the source keeps is somewhere; an element of 0-d is, too. */
		held += set.numel;
		free(m->seen[i]);
	}
	assert_int_equal(seen, held);
}

static void matrix_find(struct matrix *m, const struct job *j, const struct reshard_opts *opts)
{
	const struct mesh *from = &j->table[0].mesh[0], *to = &j->table[1].mesh[0];
	struct reshard *r;

	*m = (struct matrix){ .j = j,
			      .sent = calloc(RANKS, sizeof *m->sent),
			      .got = calloc(RANKS, sizeof *m->got) };
	assert_true(m->sent && m->got);
	assert_ok(reshard_open(&j->table[0], &j->table[1], opts, &r, NULL));
	for (uint32_t i = 0; i < to->nrank; i++)
		rank_is_served(m, r, to->rank[i]);
	m->out = true;
	for (uint32_t i = 0; i < from->nrank; i++)
		assert_ok(reshard_sends(r, from->rank[i], matrix_add, m, NULL));
	assert_memory_equal(m->sent, m->got, RANKS * sizeof *m->sent);
	reshard_close(r);
}

static void matrix_free(struct matrix *m)
{
	free(m->sent);
	free(m->got);
}

/* --- what a schedule says --- */

/* Its messages cover the stream in rounds that ascend; what each round has is added. */
static void stream_check(const struct schedule_rounds *r, uint32_t from, uint32_t to,
			 uint64_t bytes, uint64_t *round)
{
	uint64_t at = 0, messages = 0, n = schedule_messages(r, bytes);

	for (uint64_t k = 0; k < r->n; k++) {
		uint64_t begin, end;

		schedule_span(r, from, to, bytes, k, &begin, &end);
		assert_int_equal(begin, at);
		assert_true(end >= begin && end - begin <= div_up(bytes, n) + SCHEDULE_ALIGN);
		if (end == begin)
			continue;
		round[k] += end - begin;
		at = end;
		messages++;
	}
	assert_int_equal(at, bytes);
	assert_true(messages <= n);
}

static uint64_t most_of(const uint64_t *round, uint64_t n)
{
	uint64_t most = 0;

	for (uint64_t k = 0; k < n; k++)
		most = MAX(most, round[k]);
	return most;
}

static void part_check(const struct schedule_rounds *r, const struct schedule_part *p,
		       const struct matrix *m, uint64_t round_bytes)
{
	cleanup_free uint64_t *out = calloc(r->n + 1, sizeof *out);
	cleanup_free uint64_t *in = calloc(r->n + 1, sizeof *in);
	uint32_t nout = 0, nin = 0;

	for (uint32_t i = 0; i < RANKS && i != p->rank; i++) {
		nout += m->sent[p->rank][i] > 0;
		nin += m->got[i][p->rank] > 0;
	}
	for (uint32_t i = p->rank + 1; i < RANKS; i++) {
		nout += m->sent[p->rank][i] > 0;
		nin += m->got[i][p->rank] > 0;
	}
	assert_int_equal(p->nout, nout);
	assert_int_equal(p->nin, nin);
	assert_int_equal(p->self_bytes, m->got[p->rank][p->rank]);
	for (uint32_t i = 0; i < p->nout; i++) {
		assert_int_equal(p->out[i].bytes, m->sent[p->rank][p->out[i].peer]);
		stream_check(r, p->rank, p->out[i].peer, p->out[i].bytes, out);
	}
	for (uint32_t i = 0; i < p->nin; i++) {
		assert_int_equal(p->in[i].bytes, m->got[p->in[i].peer][p->rank]);
		stream_check(r, p->in[i].peer, p->rank, p->in[i].bytes, in);
	}
	assert_true(p->out_bytes <= r->n * round_bytes);
	assert_true(p->in_bytes <= r->n * round_bytes);
	assert_true(most_of(out, r->n) <= round_bytes + nout * (r->message_bytes + SCHEDULE_ALIGN));
	assert_true(most_of(in, r->n) <= round_bytes + nin * (r->message_bytes + SCHEDULE_ALIGN));
}

/* What is known without asking ranks is not less than what they exchange. */
static void bound_check(const struct job *j, const struct matrix *m, uint32_t per_host)
{
	const struct table *src = &j->table[0], *dst = &j->table[1];
	cleanup_arena struct arena a = { 0 };
	uint64_t bound, most = 0;
	struct rank_bounds b;
	struct ranks ranks;

	assert_ok(ranks_find(src, dst, &a, &ranks));
	assert_ok(rank_bounds_open(src, dst, &ranks, &b));
	for (uint32_t i = 0; i < TENSORS; i++) {
		struct bound_kind k = { i, i, 1, HOLDERS_ONE, per_host };

		assert_ok(rank_bounds_add(&b, &k));
	}
	assert_ok(rank_bounds_most(&b, &bound));
	for (uint32_t i = 0; i < RANKS; i++) {
		uint64_t out = 0, in = 0;

		for (uint32_t k = 0; k < RANKS; k++) {
			out += k != i ? m->sent[i][k] : 0;
			in += k != i ? m->got[k][i] : 0;
		}
		most = MAX(most, out);
		most = MAX(most, in);
	}
	if (most > bound)
		fail_msg("a rank exchanges %llu B, the bound is %llu", (unsigned long long)most,
			 (unsigned long long)bound);
	rank_bounds_close(&b);
}

TEST(both_ends_of_every_stream_agree_and_no_rank_has_more_in_a_round_than_it_may)
{
	uint64_t rounds = 0, streams = 0;

	naive_seed(__func__);
	for (uint64_t i = 0; i < unit_scaled(150); i++) {
		struct links links = *links_preset(LINKS_DEFAULT);
		struct schedule_opts opts = { .who = naive_below(4) ? HOLDERS_ONE : HOLDERS_OWNERS,
					      .round_bytes = UINT64_C(64) << naive_below(6),
					      .message_bytes = 64,
					      .links = naive_below(2) ? &links : NULL };
		struct reshard_opts how = { .who = opts.who };
		struct ckpt_err err = { 0 };
		struct schedule *s;
		struct matrix m;
		struct job j;

		links.per_host = how.per_host = 1 + naive_below(5);
		if (!opts.links)
			how.per_host = 0;
		draw_job(&j);
		matrix_find(&m, &j, &how);
		assert_ok_err(schedule_open(&j.table[0], &j.table[1], &opts, &s, &err), &err);
		rounds += schedule_rounds(s)->n;
		if (how.who == HOLDERS_ONE)
			bound_check(&j, &m, how.per_host);
		for (uint32_t rank = 0; rank < RANKS; rank += naive_below(3) ? 1 : 2) {
			struct schedule_part p;

			assert_ok_err(schedule_part(s, rank, &p, &err), &err);
			part_check(schedule_rounds(s), &p, &m,
				   how.who == HOLDERS_ONE ? opts.round_bytes : UINT32_MAX);
			streams += p.nout;
			schedule_part_free(&p);
		}
		schedule_close(s);
		matrix_free(&m);
		job_free(&j);
	}
	printf("%llu rounds, %llu streams\n", (unsigned long long)rounds,
	       (unsigned long long)streams);
	assert_true(rounds > unit_scaled(150) && streams > unit_scaled(150));
}

/* --- how long it takes --- */

static void total_find(const struct table *src, const struct table *dst,
		       const struct schedule_opts *opts, struct schedule_total *ret)
{
	struct ckpt_err err = { 0 };
	struct schedule *s;

	assert_ok_err(schedule_open(src, dst, opts, &s, &err), &err);
	assert_ok_err(schedule_total(s, opts->links, NULL, NULL, ret, &err), &err);
	assert_int_equal(schedule_left_out(s), 0);
	schedule_close(s);
}

static uint64_t bytes_held(const struct table *t)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];
		const struct mesh *m = &t->mesh[t->layout[x->layout].mesh];

		for (uint32_t k = 0; k < m->nrank; k++) {
			cleanup_arena struct arena a = { 0 };
			uint32_t coord[CKPT_DIMS_MAX];
			struct indexset set;

			mesh_place_coord(m, k, coord);
			assert_ok(layout_share(m, &t->layout[x->layout], x->ndim, x->shape, coord,
					       &a, &set));
			sum += set.numel * x->elem_bytes;
		}
	}
	return sum;
}

/* Within 1.15 of what the busiest link needs. And senders are well chosen: if hosts do not count,
 * by the bytes of ranks; if they do, by time: no slower than the network in perfect balance. */
static void total_check(const char *what, const struct table *src, const struct table *dst,
			uint32_t per_host, uint64_t held)
{
	struct links links = *links_preset(LINKS_DEFAULT);
	struct schedule_opts opts = { .who = HOLDERS_ONE, .links = &links };
	struct schedule_total t;
	uint64_t sum = 0, each = 0, least;

	links.per_host = per_host;
	total_find(src, dst, &opts, &t);
	for (uint32_t i = 0; i < LINKS_TIERS; i++)
		sum += t.bytes[i];
	for (uint64_t i = 0; i < t.rounds; i++)
		each += t.round[i].bytes;
	printf("%s, %u per host: %llu rounds, %.4f of the bound %.0f us; most sent %llu, received "
	       "%llu\n",
	       what, per_host, (unsigned long long)t.rounds, t.us / t.bound_us, t.bound_us,
	       (unsigned long long)t.most_out, (unsigned long long)t.most_in);
	assert_int_equal(sum, held);
	assert_int_equal(each, sum);
	assert_true(t.rounds > 1);
	assert_true(t.us >= t.bound_us);
	assert_true(t.us <= 1.15 * t.bound_us);
	least = MAX(t.most_in, sum / src->mesh[0].nrank);
	if (per_host == 1)
		assert_true((double)t.most_out <= 1.15 * (double)least);
	assert_true(t.bound_us <= 1.15 * links_us(&links, LINKS_NETWORK, (double)least));
	schedule_total_free(&t);
}

/* Lanes of one direction, by peer; returns how many there are. */
static uint32_t lanes_ascend(const struct schedule_lane *lane, uint32_t n)
{
	for (uint32_t i = 1; i < n; i++)
		assert_true(lane[i - 1].peer < lane[i].peer);
	return n;
}

static void peers_ascend(const struct table *src, const struct table *dst)
{
	uint32_t world = MAX(src->mesh[0].nrank, dst->mesh[0].nrank), n = 0;
	struct schedule *s;

	assert_ok(schedule_open(src, dst, NULL, &s, NULL));
	for (uint32_t rank = 0; rank < world; rank += 1 + world / 64) {
		struct schedule_part p;

		assert_ok(schedule_part(s, rank, &p, NULL));
		n += lanes_ascend(p.out, p.nout) + lanes_ascend(p.in, p.nin);
		schedule_part_free(&p);
	}
	assert_true(n > world / 64);
	schedule_close(s);
}

static void case_check(const struct onto_case *c)
{
	cleanup_table struct table src = { 0 }, dst = { 0 };
	uint64_t held;

	assert_ok(onto_make(c, false, &src, NULL));
	assert_ok(onto_make(c, true, &dst, NULL));
	held = bytes_held(&dst);
	total_check(c->name, &src, &dst, 1, held);
	total_check(c->name, &src, &dst, 8, held);
	peers_ascend(&src, &dst);
}

TEST(from_one_mesh_to_another_it_takes_what_the_busiest_link_needs)
{
	static const struct onto_case uneven = {
		"uneven",
		"dp=3,fsdp=16",
		"fsdp=40",
		80,
		2,
		{ { "gate", { 28672, 8192 }, "Shard(0)@fsdp", "Shard(0)@fsdp" },
		  { "norm", { 8192 }, "Shard(0)@fsdp", "Shard(0)@fsdp" } }
	};

	for (uint32_t i = 0; i < ONTO_CASES; i++)
		case_check(&onto_case[i]);
	case_check(&uneven);
}

TEST(short_streams_are_spread_over_the_rounds)
{
	static const struct onto_case c = {
		"rows to columns",
		"fsdp=256",
		"fsdp=256",
		12,
		1,
		{ { "w", { 8192, 8192 }, "Shard(0)@fsdp", "Shard(1)@fsdp" } }
	};
	struct schedule_opts opts = { .who = HOLDERS_ONE,
				      .links = links_preset(LINKS_DEFAULT),
				      .round_bytes = MIB,
				      .message_bytes = 32 * KIB };
	cleanup_table struct table src = { 0 }, dst = { 0 };
	struct schedule_total t;
	uint64_t most = 0;

	assert_ok(onto_make(&c, false, &src, NULL));
	assert_ok(onto_make(&c, true, &dst, NULL));
	total_find(&src, &dst, &opts, &t);
	for (uint64_t i = 0; i < t.rounds; i++)
		most = MAX(most, t.round[i].slowest.bytes);
	printf("%llu streams of %llu B in %llu rounds: at most %llu B in one\n",
	       (unsigned long long)t.streams, (unsigned long long)(t.most_out / 255),
	       (unsigned long long)t.rounds, (unsigned long long)most);
	assert_int_equal(t.streams, 256 * 255);
	assert_int_equal(t.messages, t.streams);
	assert_true(t.rounds >= 5 && most <= MIB + 64 * KIB);
	schedule_total_free(&t);
}

/* A vector's layout of its tensor, each element of which is a row of ROW_BYTES. */
#define ROW_BYTES (64 * MIB)
#define LARGE 65536 /* elements: those of larger tensors are no rows */

static bool vector_table(const struct vector *v, uint32_t mode, uint32_t ndim,
			 const uint64_t *shape, struct table *ret)
{
	uint64_t rows[CKPT_DIMS_MAX];
	struct layout l = v->layout;
	uint64_t numel;
	struct table_tensor x =
		ROW(.component = "model", .name = "w", .of = "", .dtype = CKPT_F32,
		    .cls = CKPT_STABLE, .rank = TABLE_NONE, .ndim = ndim + 1, .shape = rows);

	*ret = (struct table){ 0 };
	l.mode = mode;
	if (ndim == CKPT_DIMS_MAX || layout_is_partial(&l) || mesh_check(&v->mesh, NULL) ||
	    layout_check(&v->mesh, &l, ndim, NULL))
		return false;
	memcpy(rows, shape, ndim * sizeof *rows);
	assert_ok(shape_numel(ndim, shape, &numel));
	rows[ndim] = numel > LARGE ? 1 : ROW_BYTES / 4;
	assert_ok(table_add_mesh(ret, &v->mesh, &l.mesh, NULL));
	assert_ok(table_add_layout(ret, &l, &x.layout, NULL));
	assert_ok(table_add_tensor(ret, &x, NULL, NULL));
	assert_ok(table_seal(ret, NULL));
	return true;
}

/* From each line to the one behind it. */
static double lines_take(const char *name, uint32_t mode, uint32_t *ret_n)
{
	static struct vector line[2];
	struct schedule_opts opts = { .who = HOLDERS_ONE, .links = links_preset(LINKS_DEFAULT) };
	cleanup_free char *text = NULL;
	FILE *f = open_vectors(name);
	double worst = 0;
	size_t cap = 0;

	for (uint32_t n = 0; getline(&text, &cap, f) > 0;) {
		const struct vector *v = &line[n % 2], *w = &line[(n + 1) % 2];
		cleanup_table struct table src = { 0 }, dst = { 0 };
		struct schedule_total t;

		if (*text == '#')
			continue;
		read_vector(&line[n++ % 2], text);
		if (n < 2 || v->mesh.nrank > 64 || w->mesh.nrank > 64 ||
		    !vector_table(w, mode, v->ndim, v->shape, &src) ||
		    !vector_table(v, mode, v->ndim, v->shape, &dst))
			continue;
		opts.round_bytes = 256 * MIB;
		total_find(&src, &dst, &opts, &t);
		if (t.rounds > 1 && t.us > worst * t.bound_us)
			worst = t.us / t.bound_us;
		if (t.us > 1.15 * t.bound_us)
			fail_msg("%s: %.3f of the bound", v->id, t.us / t.bound_us);
		*ret_n += t.rounds > 1;
		schedule_total_free(&t);
	}
	fclose(f);
	return worst;
}

TEST(between_all_layouts_that_were_asked_of_torch_it_takes_what_the_busiest_link_needs)
{
	for (uint32_t i = 0; i < ARRAY_LEN(vector_files); i++) {
		uint32_t n = 0;
		double worst = lines_take(vector_files[i].name, vector_files[i].mode, &n);

		printf("%s: %u pairs of layouts, at most %.4f of the bound\n", vector_files[i].name,
		       n, worst);
		assert_true(n > 5);
	}
}

/* --- names through views --- */

struct view_case {
	const struct table *src, *dst;
	uint64_t sent[8][8], got[8][8],
		cut; /* cut: bytes of tensors that the view left without a layout */
	uint8_t seen[8][1024];
	bool out;
};

static int view_op(void *arg, const struct reshard_op *op)
{
	struct view_case *c = arg;
	const struct table_tensor *x = &c->src->tensor[op->src_tensor];
	uint64_t pos[CKPT_DIMS_MAX] = { 0 };

	(c->out ? c->sent : c->got)[op->src_rank][op->dst_rank] += op->bytes;
	if (c->out)
		return 0;
	c->cut += x->layout == TABLE_NONE ? op->bytes : 0;
	for (uint64_t n = 0; n < op->part.numel; n++) {
		uint64_t index = 0;

		for (uint32_t d = 0; d < x->ndim; d++)
			index = index * x->shape[d] + indices_at(&op->part.dim[d], pos[d]);
		assert_true(index < 1024);
		assert_int_equal(c->seen[op->dst_tensor][index]++, 0);
		for (uint32_t d = x->ndim; d-- > 0 && ++pos[d] == op->part.dim[d].total;)
			pos[d] = 0;
	}
	return 0;
}

TEST(tensors_that_a_view_cuts_and_joins_come_from_the_ranks_that_have_their_parts)
{
	static const uint64_t expected[] = { 16 + 8 + 16 + 40 + 24 + 3, 16 + 8 + 16 + 40 + 24 + 3,
					     16 + 16 + 40 + 3, 16 + 16 + 40 };
	struct table declared = { 0 }, pieces, src, dst = { 0 };
	struct reshard_opts how = { .who = HOLDERS_ONE, .pieces = true };
	struct view_case c = { .src = &src, .dst = &dst };
	struct ckpt_err err = { 0 };
	struct schedule *s;
	struct reshard *r;

	assert_ok(onto_make(&viewed_from, false, &declared, NULL));
	assert_ok(onto_make(&viewed_to, true, &dst, NULL));
	viewed(&declared, viewed_rules, &pieces, &src);
	assert_ok_err(reshard_open(&src, &dst, &how, &r, &err), &err);
	for (uint32_t i = 0; i < 4; i++) {
		uint64_t seen = 0, held = 0;

		memset(c.seen, 0, sizeof c.seen);
		assert_ok_err(reshard_rank(r, i, view_op, &c, &err), &err);
		for (uint32_t k = 0; k < sizeof c.seen; k++)
			seen += c.seen[k / 1024][k % 1024];
		for (uint32_t k = 0; k < 8; k++)
			held += c.got[k][i] / 2; /* BF16 */
		assert_int_equal(seen, held);
		assert_int_equal(held, expected[i]);
	}
	c.out = true;
	for (uint32_t i = 0; i < 6; i++)
		assert_ok_err(reshard_sends(r, i, view_op, &c, &err), &err);
	assert_memory_equal(c.sent, c.got, sizeof c.got);
	assert_true(c.cut > 300);
	reshard_close(r);
	assert_ok_err(schedule_open(&src, &dst, NULL, &s, &err), &err);
	assert_int_equal(schedule_left_out(s), 0);
	for (uint32_t i = 0; i < 6; i++) {
		struct schedule_part p;

		assert_ok_err(schedule_part(s, i, &p, &err), &err);
		for (uint32_t k = 0; k < p.nout; k++)
			assert_int_equal(p.out[k].bytes, c.sent[i][p.out[k].peer]);
		for (uint32_t k = 0; k < p.nin; k++)
			assert_int_equal(p.in[k].bytes, c.got[p.in[k].peer][i]);
		assert_int_equal(p.self_bytes, c.got[i][i]);
		schedule_part_free(&p);
	}
	schedule_close(s);
	table_free(&src);
	table_free(&pieces);
	table_free(&declared);
	table_free(&dst);
}

/* --- what cannot be --- */

static void refused(const struct table *src, const struct table *dst,
		    const struct schedule_opts *opts, int code, const char *const *words)
{
	struct ckpt_err err = { 0 };
	struct schedule *s;

	assert_int_equal(schedule_open(src, dst, opts, &s, &err), code);
	assert_null(s);
	for (; *words; words++)
		if (!strstr(err.msg, *words))
			fail_msg("'%s' is not in: %s", *words, err.msg);
}

/* n matrices of 8 columns, cut alike. */
static void matrices(struct table *t, const char *mesh, const char *layout, uint64_t rows,
		     uint32_t n)
{
	const struct onto_case c = { "", mesh, NULL, n, 1, { { "w", { rows, 8 }, layout, NULL } } };

	assert_ok(onto_make(&c, false, t, NULL));
}

TEST(all_that_is_wrong_with_options_and_tensors_is_said_at_once)
{
	struct schedule_opts wrong = {
		.who = HOLDERS_EACH, .round_bytes = 4, .message_bytes = 8, .unreached = LINKS_TIERS
	};
	cleanup_table struct table src = { 0 }, dst = { 0 }, other = { 0 };

	matrices(&src, "fsdp=4", "Shard(0)@fsdp", 64, 1);
	matrices(&dst, "tp=2", "Shard(0)@tp", 64, 3);
	matrices(&other, "tp=2", "Shard(0)@tp", 65, 1);
	refused(&src, &src, &wrong, -EINVAL,
		(const char *[]){ "choose HOLDERS_ONE", "messages of 8 B", "rounds of 4 B",
				  "no tier number", NULL });
	refused(&src, &dst, NULL, -EMEDIUMTYPE,
		(const char *[]){ "model/layers.1.w: not in", "model/layers.2.w: not in", NULL });
	refused(&src, &other, NULL, -EMEDIUMTYPE,
		(const char *[]){ "declared [65, 8]", "has [64, 8]", NULL });
	other.tensor[0].dtype = CKPT_F16;
	((uint64_t *)(uintptr_t)other.tensor[0].shape)[0] = 64;
	other.tensor[0].numel = 512;
	refused(&src, &other, NULL, -EMEDIUMTYPE,
		(const char *[]){ "declared F16, the source has BF16", NULL });
}

TEST(ranks_between_which_there_is_no_transport_are_all_named)
{
	struct links links = *links_preset(LINKS_DEFAULT);
	struct schedule_opts opts = { .who = HOLDERS_ONE,
				      .links = &links,
				      .unreached = LINKS_HOST };
	cleanup_table struct table src = { 0 }, dst = { 0 };
	struct schedule_total t;
	struct schedule_part p;
	struct ckpt_err err;
	struct schedule *s;

	links.per_host = 2;
	matrices(&src, "fsdp=4", "Shard(0)@fsdp", 64, 1);
	matrices(&dst, "tp=2", "Shard(0)@tp", 64, 1);
	assert_ok(schedule_open(&src, &dst, &opts, &s, &err));
	assert_int_equal(schedule_part(s, 1, &p, &err), -ENOLINK);
	assert_non_null(strstr(err.msg, "rank 1 needs 256 B of rank 2 (switch)"));
	assert_non_null(strstr(err.msg, "rank 1 needs 256 B of rank 3 (switch)"));
	assert_non_null(strstr(err.msg, "rank 1 has 256 B for rank 0 (host)"));
	assert_int_equal(schedule_total(s, &links, NULL, NULL, &t, &err), -ENOLINK);
	assert_non_null(strstr(err.msg, "rank 2 has 256 B for rank 1 (switch)"));
	schedule_close(s);
	opts.unreached = LINKS_SWITCH;
	assert_ok(schedule_open(&src, &dst, &opts, &s, &err));
	assert_ok(schedule_part(s, 0, &p, &err)); /* the other one is on its host */
	schedule_part_free(&p);
	assert_int_equal(schedule_part(s, 3, &p, &err), -ENOLINK);
	schedule_close(s);
	opts.unreached = LINKS_HOST; /* what stays with its rank needs none */
	assert_ok(schedule_open(&src, &src, &opts, &s, &err));
	assert_ok_err(schedule_total(s, &links, NULL, NULL, &t, &err), &err);
	assert_int_equal(t.streams, 0);
	assert_int_equal(t.bytes[LINKS_MEMORY], 64 * 8 * 2);
	schedule_total_free(&t);
	schedule_close(s);
}

TEST(bytes_that_cannot_be_counted_and_rounds_without_end_are_refused)
{
	struct schedule_opts opts = { .who = HOLDERS_ONE,
				      .round_bytes = 4096,
				      .message_bytes = 64 };
	cleanup_table struct table src = { 0 }, dst = { 0 }, many = { 0 };
	struct ckpt_err err = { 0 };
	struct schedule *s;
	const char *at;
	uint64_t least;

	matrices(&src, "fsdp=4", "Shard(0)@fsdp", UINT64_C(1) << 57, 10);
	matrices(&dst, "tp=2", "Replicate@tp", UINT64_C(1) << 57, 10);
	refused(&src, &dst, NULL, -EOVERFLOW, (const char *[]){ "model/layers.", "64 bits", NULL });
	matrices(&many, "tp=2", "Replicate@tp", UINT64_C(1) << 57, 1);
	refused(&src, &many, &opts, -E2BIG, (const char *[]){ "choose rounds of at least", NULL });
	(void)schedule_open(&src, &many, &opts, &s, &err);
	at = strstr(err.msg, "at least ");
	assert_non_null(at);
	least = strtoull(at + strlen("at least "), NULL, 10);
	opts.round_bytes = least << 40; /* TiB */
	assert_non_null(strstr(at, "TiB"));
	assert_ok_err(schedule_open(&src, &many, &opts, &s, &err), &err);
	schedule_close(s);
}
