/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_partial.c - pending reductions from memory and from files: what PyTorch 2.15.0 answers
 * (tests/vectors/partial/make.py), random layouts against sums made by hand, the order of operands,
 * bounded memory, casts, and operands that are missing.
 */
#include "tests/unit/test_move_partial.h"
#include "tests/lib/row.h"
#include <linux/limits.h>

static const enum io_engine engines[] = { IO_INLINE, IO_THREADS, IO_URING, IO_AUTO };
static const char *const dim_names[] = { "a", "b", "c", "d" };

/* --- ways from one job to another --- */

enum way { LIVE, STAGED, FILES, WAYS };
static const char *const way_names[] = { "live memory", "staged memory", "files" };

struct route {
	enum way way;
	enum io_engine engine;
	uint64_t buffer_bytes;
	bool casts;
	struct disk *disk;
	uint64_t told; /* by ticks */
};

static int count(void *arg, uint64_t done)
{
	((struct route *)arg)->told += done;
	return 0;
}

/* From files, or memory: what plan_make or the movement says. */
static int go_files(struct job *from, struct job *to, struct route *r, struct ckpt_err *err)
{
	const struct plan_opts opts = { .casts = r->casts };
	const struct disk_how how = { .ops = &io_ops_posix, .engine = r->engine };
	struct checkpoint *c;
	struct move_files f;
	struct plan p;
	int e;

	job_write(from, r->disk, &how);
	c = disk_open(r->disk);
	e = plan_make(&c->table, &to->all, &opts, &p, NULL, err);
	if (!e) {
		assert_ok(move_open(&io_ops_posix, r->disk->fd, c, false, r->engine, &f, err));
		f.buffer_bytes = r->buffer_bytes;
		e = move_read(&p, &f, to->base, count, r, err);
		if (!e)
			assert_int_equal(r->told, p.bytes);
		move_close(&f);
		plan_free(&p);
	}
	checkpoint_free(c);
	disk_clear(r->disk);
	return e;
}

static int go(struct job *from, struct job *to, struct route *r, struct ckpt_err *err)
{
	const struct plan_opts opts = { .casts = r->casts };
	struct table staged = { 0 };
	const struct table *src = &from->all;
	const void *const *base = (const void *const *)from->base;
	struct plan p;
	int e;

	r->told = 0;
	model_clear(to);
	if (!from->raw[0])
		model_stage(from);
	if (r->way == FILES)
		return go_files(from, to, r, err);
	if (r->way == STAGED) {
		model_staged(from, &staged);
		src = &staged;
		base = (const void *const *)from->raw;
	}
	e = plan_make(src, &to->all, &opts, &p, NULL, err);
	if (!e) {
		e = move_copy(&p, base, to->base, count, r);
		if (!e)
			assert_int_equal(r->told, p.bytes);
		plan_free(&p);
	}
	table_free(&staged);
	return e;
}

static void must_go(struct job *from, struct job *to, struct route *r)
{
	struct ckpt_err err = { 0 };

	if (go(from, to, r, &err) < 0)
		fail_msg("%s: %s", way_names[r->way], err.msg);
}

/* What is saved, and where it is loaded. */
static void jobs_make(struct model *src, struct job *from, struct model *dst, struct job *to)
{
	model_job(src, from);
	model_job(dst, to);
}

static void jobs_free(struct job *from, struct job *to)
{
	model_job_free(from);
	model_job_free(to);
}

/* --- PyTorch's answers --- */

static uint64_t next(char **at)
{
	return strtoull(*at, at, 10);
}

static int64_t next_number(char **at)
{
	return strtoll(*at, at, 10);
}

static char next_letter(char **at)
{
	while (**at == ' ')
		(*at)++;
	return *(*at)++;
}

static void read_place(char **at, uint32_t mesh_dim, struct held *h)
{
	struct ckpt_placement p = { .mesh_dim = (uint16_t)mesh_dim };
	char how = next_letter(at);

	if (how == 'P') {
		p.how = CKPT_PARTIAL;
		p.reduce = (uint8_t)next(at);
		p.flags = CKPT_KEEP_PARTIAL;
	} else if (how == 'S') {
		p.how = CKPT_SHARD;
		p.tensor_dim = (uint16_t)next(at);
		p.split_factor = (uint32_t)next(at);
	}
	if (how != 'R')
		h->place[h->nplace++] = p;
}

static void read_models(char **at, struct model *src, struct model *dst)
{
	struct held h = { .name = "w" };
	uint32_t ndim, dim[MESH_DIMS_MAX];
	char kind = next_letter(at);
	bool wide = next(at) == 64;

	h.dtype = kind == 'F' ? (wide ? CKPT_F64 : CKPT_F32) : wide ? CKPT_I64 : CKPT_I32;
	h.ndim = (uint32_t)next(at);
	for (uint32_t d = 0; d < h.ndim; d++)
		h.shape[d] = next(at);
	ndim = (uint32_t)next(at);
	for (uint32_t d = 0; d < ndim; d++)
		dim[d] = (uint32_t)next(at);
	model_mesh(src, ndim, dim_names, dim);
	model_mesh(dst, ndim, dim_names, dim);
	src->n = dst->n = 1;
	src->tensor[0] = dst->tensor[0] = h;
	for (uint32_t d = 0; d < ndim; d++)
		read_place(at, d, &src->tensor[0]);
	for (uint32_t d = 0; d < ndim; d++)
		read_place(at, d, &dst->tensor[0]);
}

static void each_vector(uint32_t line, const struct model *src, struct job *to, char *answer,
			const struct route *r)
{
	uint32_t dtype = src->tensor[0].dtype;

	for (uint32_t i = 0; i < to->world; i++) {
		uint64_t n;
		const uint8_t *x = rank_elements(&to->rank[i], 0, &n);

		if (n != next(&answer))
			fail_msg("line %u: rank %u holds %llu elements", line, i,
				 (unsigned long long)n);
		for (uint64_t k = 0; k < n; k++, x += dtype_bytes(dtype)) {
			int64_t want = next_number(&answer), is = number_get(dtype, x);

			if (want != is)
				fail_msg("line %u, %s: element %llu of rank %u is %lld, PyTorch "
					 "has %lld",
					 line, way_names[r->way], (unsigned long long)k, i,
					 (long long)is, (long long)want);
		}
	}
}

/* Both layouts are sound by themselves, and the one does not become the other. */
static bool is_refused(struct model *src, struct model *dst)
{
	struct layout a = held_layout(&src->tensor[0]), b = held_layout(&dst->tensor[0]);
	struct ckpt_err err = { 0 };
	struct job from, to;
	struct plan p;
	int e;

	if (layout_check(model_ready(src), &a, src->tensor[0].ndim, &err) < 0 ||
	    layout_check(model_ready(dst), &b, dst->tensor[0].ndim, &err) < 0) {
		printf("%s\n", err.msg);
		return true;
	}
	model_job(src, &from);
	model_job(dst, &to);
	e = plan_make(&from.all, &to.all, NULL, &p, NULL, &err);
	printf("%s\n", err.msg);
	if (!e)
		plan_free(&p);
	jobs_free(&from, &to);
	return e == -EMEDIUMTYPE;
}

static void one_vector(char *line, struct disk *d, uint32_t *refused)
{
	uint32_t number = (uint32_t)next(&line);
	struct model src, dst;
	struct job from, to;
	char *error;

	read_models(&line, &src, &dst);
	error = strchr(line, 'E');
	if (error) {
		if (!is_refused(&src, &dst))
			fail_msg("line %u is refused by PyTorch", number);
		++*refused;
		return;
	}
	jobs_make(&src, &from, &dst, &to);
	for (uint32_t i = 0; i < from.world; i++) {
		uint64_t n;
		uint8_t *x = rank_elements(&from.rank[i], 0, &n);

		assert_int_equal(next(&line), n);
		for (uint64_t k = 0; k < n; k++, x += dtype_bytes(src.tensor[0].dtype))
			number_put(src.tensor[0].dtype, x, next_number(&line));
	}
	for (uint32_t w = 0; w < WAYS; w++) {
		struct route r = { .way = w, .engine = engines[number % 4], .disk = d };
		struct ckpt_err err = { 0 };

		if (go(&from, &to, &r, &err) < 0)
			fail_msg("line %u: %s", number, err.msg);
		each_vector(number, &src, &to, line, &r);
	}
	jobs_free(&from, &to);
}

TEST(what_is_loaded_is_what_torch_makes_of_it)
{
	char path[PATH_MAX], here[] = __FILE__;
	cleanup_free char *line = NULL;
	uint32_t n = 0, refused = 0;
	size_t cap = 0;
	FILE *f;

	*strrchr(here, '/') = '\0';
	snprintf(path, sizeof path, "%s/../vectors/partial/partial.txt", here);
	f = fopen(path, "r");
	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	while (getline(&line, &cap, f) > 0)
		if (*line != '#' && n++ % EVERY == 0)
			one_vector(line, &D, &refused);
	fclose(f);
	printf("%u cases, %u of them refused\n", n, refused);
	assert_true(n >= 170);
}

/* --- random layouts on random meshes --- */

static int64_t value_of(uint32_t tensor, uint32_t operand, uint64_t g)
{
	return (int64_t)((tensor * 7 + operand * 5 + g * 3 + (g >> 3)) % 7) - 3;
}

static void random_mesh(uint64_t *rng, struct model *m)
{
	uint32_t n = 1 + (uint32_t)(draw(rng) % 3), dim[MESH_DIMS_MAX], ranks;

	do {
		ranks = 1;
		for (uint32_t d = 0; d < n; d++)
			ranks *= dim[d] = 1 + (uint32_t)(draw(rng) % 4);
	} while (ranks > 16);
	model_mesh(m, n, dim_names, dim);
	/* Which operand is whose follows from the mesh, not from the number of the rank. */
	for (uint32_t i = ranks - 1; i; i--) {
		uint32_t k = (uint32_t)(draw(rng) % (i + 1)), r = m->rank[i];

		m->rank[i] = m->rank[k];
		m->rank[k] = r;
	}
}

static void random_places(uint64_t *rng, const struct model *m, bool partial, struct held *h)
{
	uint8_t op = (uint8_t)(draw(rng) % 5);

	h->nplace = 0;
	for (uint32_t d = 0; d < m->mesh.ndim; d++) {
		struct ckpt_placement p = { .mesh_dim = (uint16_t)d };
		uint64_t how = draw(rng) % 4;

		if (how == 0 && h->ndim) {
			p.how = CKPT_SHARD;
			p.tensor_dim = (uint16_t)(draw(rng) % h->ndim);
			p.split_factor = (uint32_t)(draw(rng) % 4);
		} else if (how < 3 && partial) {
			p.how = CKPT_PARTIAL;
			p.reduce = op == CKPT_AVG ? CKPT_SUM : op;
			p.flags = CKPT_KEEP_PARTIAL;
		} else {
			continue;
		}
		h->place[h->nplace++] = p;
	}
}

static void random_model(uint64_t *rng, struct model *m)
{
	static const uint32_t dtypes[] = { CKPT_BF16, CKPT_F32, CKPT_F64, CKPT_I32, CKPT_I64 };

	random_mesh(rng, m);
	m->n = 1 + (uint32_t)(draw(rng) % TENSORS_MAX);
	for (uint32_t i = 0; i < m->n; i++) {
		struct held *h = &m->tensor[i];

		snprintf(h->name, sizeof h->name, "w%u", i);
		h->dtype = dtypes[draw(rng) % ARRAY_LEN(dtypes)];
		h->ndim = (uint32_t)(draw(rng) % 4);
		for (uint32_t d = 0; d < h->ndim; d++)
			h->shape[d] = draw(rng) % 9;
		random_places(rng, m, draw(rng) % 4 != 0, h);
	}
}

/* The same tensors on another mesh. */
static void random_target(uint64_t *rng, const struct model *from, struct model *to)
{
	random_mesh(rng, to);
	to->n = from->n;
	for (uint32_t i = 0; i < to->n; i++) {
		to->tensor[i] = from->tensor[i];
		random_places(rng, to, false, &to->tensor[i]);
	}
}

static uint64_t global_index(const struct held *h, const struct indexset *set, uint64_t k)
{
	uint64_t g = 0, step = 1;

	for (uint32_t d = h->ndim; d-- > 0; k /= set->dim[d].total) {
		uint64_t at = k % set->dim[d].total;

		for (uint32_t i = 0; i < set->dim[d].n; i++) {
			const struct run *r = &set->dim[d].run[i];

			if (at < r->len * r->count) {
				g += (r->start + at / r->len * r->stride + at % r->len) * step;
				break;
			}
			at -= r->len * r->count;
		}
		step *= h->shape[d];
	}
	return g;
}

static uint32_t dims_of(const struct model *m, const struct held *h, uint32_t *ret_op)
{
	uint32_t dims = 0;

	for (uint32_t i = 0; i < h->nplace; i++)
		if (h->place[i].how == CKPT_PARTIAL) {
			dims |= 1u << h->place[i].mesh_dim;
			*ret_op = h->place[i].reduce;
		}
	(void)m;
	return dims;
}

static void model_fill(struct model *m, struct job *j)
{
	for (uint32_t r = 0; r < j->world; r++)
		for (uint32_t i = 0; i < m->n; i++) {
			const struct held *h = &m->tensor[i];
			const struct table *t = &j->rank[r].decl;
			uint32_t coord[CKPT_DIMS_MAX], op, dims = dims_of(m, h, &op), k;
			uint64_t n;
			uint8_t *x = rank_elements(&j->rank[r], i, &n);

			assert_true(mesh_coord(&m->mesh, r, coord));
			k = operand_number(&m->mesh, dims, coord);
			for (uint64_t e = 0; e < n; e++)
				number_put(
					h->dtype, x + e * dtype_bytes(h->dtype),
					value_of(i, k,
						 global_index(h, &t->piece[t->first[i]].set, e)));
		}
}

static int64_t truth(const struct model *src, uint32_t tensor, uint64_t g)
{
	const struct held *h = &src->tensor[tensor];
	uint32_t op = CKPT_SUM, n = operand_count(&src->mesh, dims_of(src, h, &op));
	int64_t v = value_of(tensor, 0, g);

	for (uint32_t k = 1; k < n; k++) {
		int64_t x = value_of(tensor, k, g);

		if (op == CKPT_MIN)
			v = MIN(v, x);
		else if (op == CKPT_MAX)
			v = MAX(v, x);
		else
			v = op == CKPT_PRODUCT ? v * x : v + x;
	}
	return v;
}

static void expect_truth(struct model *src, struct model *dst, struct job *to, const char *how)
{
	for (uint32_t r = 0; r < to->world; r++)
		for (uint32_t i = 0; i < dst->n; i++) {
			const struct held *h = &dst->tensor[i];
			const struct table *t = &to->rank[r].decl;
			uint64_t n;
			const uint8_t *x = rank_elements(&to->rank[r], i, &n);

			for (uint64_t e = 0; e < n; e++, x += dtype_bytes(h->dtype)) {
				uint64_t g = global_index(h, &t->piece[t->first[i]].set, e);
				int64_t want = truth(src, i, g);

				/* A product of so many is no number of 8 bits any more; and an
				 * integer may be a zero of either sign. */
				if (want > -256 && want < 256 && number_get(h->dtype, x) != want)
					fail_msg("%s: tensor %u of rank %u: element %llu is %lld, "
						 "not %lld",
						 how, i, r, (unsigned long long)g,
						 (long long)number_get(h->dtype, x),
						 (long long)want);
			}
		}
}

TEST(any_mesh_gets_the_sum_that_any_mesh_left_pending)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(150); i++) {
		struct model src, dst;
		struct job from, to;

		random_model(&rng, &src);
		random_target(&rng, &src, &dst);
		jobs_make(&src, &from, &dst, &to);
		model_fill(&src, &from);
		for (uint32_t w = 0; w < WAYS; w++) {
			struct route r = { .way = w, .engine = engines[i % 4], .disk = &D };

			must_go(&from, &to, &r);
			expect_truth(&src, &dst, &to, way_names[w]);
		}
		jobs_free(&from, &to);
	}
}

TEST(what_is_declared_as_it_was_saved_comes_back_as_it_was)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(60); i++) {
		struct model m;
		struct job from, to;

		random_model(&rng, &m);
		jobs_make(&m, &from, &m, &to);
		model_fill(&m, &from);
		for (uint32_t w = 0; w < WAYS; w++) {
			struct route r = { .way = w, .engine = engines[i % 4], .disk = &D };

			must_go(&from, &to, &r);
			for (uint32_t k = 0; k < to.world; k++)
				for (uint32_t t = 0; t < m.n; t++) {
					uint64_t n;
					const void *a = rank_elements(&from.rank[k], t, &n),
						   *b = rank_elements(&to.rank[k], t, &n);

					if (n)
						assert_memory_equal(
							a, b, n * dtype_bytes(m.tensor[t].dtype));
				}
		}
		jobs_free(&from, &to);
	}
}

/* --- one order, bounded memory --- */

static void one_big(struct model *m, uint32_t dtype, uint64_t rows, bool partial)
{
	model_mesh(m, 2, (const char *const[]){ "dp", "fsdp" }, (uint32_t[]){ partial ? 4 : 1, 2 });
	m->n = 1;
	m->tensor[0] = (struct held)ROW(.name = "w", .dtype = dtype, .ndim = 2,
					.shape = { rows, 1000 }, .nplace = 1);
	m->tensor[0].place[0] = (struct ckpt_placement){ .how = CKPT_SHARD, .mesh_dim = 1 };
	if (partial)
		m->tensor[0].place[m->tensor[0].nplace++] = (struct ckpt_placement){
			.how = CKPT_PARTIAL, .reduce = CKPT_SUM, .flags = CKPT_KEEP_PARTIAL
		};
}

static void floats_fill(uint64_t *rng, struct job *j)
{
	for (uint32_t r = 0; r < j->world; r++) {
		uint64_t n;
		uint8_t *x = rank_elements(&j->rank[r], 0, &n);

		for (uint64_t i = 0; i < n; i++, x += 4) {
			float f = (float)(int64_t)draw(rng) / 1e9f;

			memcpy(x, &f, 4);
		}
	}
}

static void floats_expect(const struct job *from, const struct job *to)
{
	for (uint32_t c = 0; c < 2; c++) {
		uint64_t n;
		const float *is = rank_elements(&to->rank[c], 0, &n), *x[4];

		for (uint32_t k = 0; k < 4; k++)
			x[k] = rank_elements(&from->rank[2 * k + c], 0, &n);
		for (uint64_t i = 0; i < n; i++) {
			float want = x[0][i] + x[1][i];

			want += x[2][i];
			want += x[3][i];
			assert_memory_equal(&want, &is[i], 4);
		}
	}
}

TEST(operands_are_added_in_their_order_whatever_the_windows_and_engines)
{
	static const uint64_t buffers[] = { 0, 1 << 20, 8 << 20 };
	uint64_t rng = draw_seed(__func__);
	struct model src, dst;
	struct job from, to;

	one_big(&src, CKPT_F32, 1501, true); /* 6 MB, many windows of the smaller buffers */
	one_big(&dst, CKPT_F32, 1501, false);
	jobs_make(&src, &from, &dst, &to);
	floats_fill(&rng, &from);
	for (uint32_t i = 0; i < ARRAY_LEN(engines) * ARRAY_LEN(buffers); i += EVERY) {
		struct route r = ROW(.way = FILES, .engine = engines[i % 4],
				     .buffer_bytes = buffers[i / 4], .disk = &D);

		must_go(&from, &to, &r);
		floats_expect(&from, &to);
	}
	for (uint32_t w = LIVE; w < FILES; w++) {
		struct route r = { .way = w };

		must_go(&from, &to, &r);
		floats_expect(&from, &to);
	}
	jobs_free(&from, &to);
}

/* --- what is not there, or has no meaning --- */

static struct table without_rank(const struct job *j, uint32_t rank)
{
	struct table t = { 0 };
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };

	for (uint32_t r = 0; r < j->world; r++)
		if (r != rank)
			assert_int_equal(table_merge(&t, &j->part[r], NULL, &list, &err), 0);
	assert_int_equal(list.n, 0);
	assert_int_equal(table_seal(&t, &err), 0);
	return t;
}

TEST(an_operand_that_is_missing_is_named)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };
	struct model src, dst;
	struct job from, to;
	struct table t;
	struct plan p;

	one_big(&src, CKPT_F32, 3, true);
	one_big(&dst, CKPT_F32, 3, false);
	jobs_make(&src, &from, &dst, &to);
	model_stage(&from);
	t = without_rank(&from, 5); /* dp=2, fsdp=1: row 2 */
	table_cover(&t, &list);
	assert_int_equal(list.n, 1);
	assert_non_null(
		strstr(list.text, "model/w, operand of dp=2: element [2, 0] is in no piece"));
	assert_int_equal(plan_make(&t, &to.all, NULL, &p, NULL, &err), -EMEDIUMTYPE);
	printf("%s\n%s\n", list.text, err.msg);
	assert_non_null(strstr(err.msg, "model/w: 1000 of the 1000 elements of rank 1 are in no "
					"piece of the checkpoint that holds the operand of dp=2"));
	table_free(&t);
	ckpt_errlist_free(&list);
	model_job_free(&from);
	/* Where fsdp replicates, one rank holds all of an operand. */
	src.tensor[0].nplace = 2;
	src.tensor[0].place[0].how = CKPT_REPLICATE;
	model_job(&src, &from);
	model_stage(&from);
	for (uint32_t dp = 0; dp < 4; dp++) {
		char want[40];

		snprintf(want, sizeof want, "the operand of dp=%u, one of the 4", dp);
		t = without_rank(&from, 2 * dp + !from.part[2 * dp].npiece);
		list = (struct ckpt_errlist){ 0 };
		table_cover(&t, &list);
		assert_int_equal(list.n, 1);
		assert_non_null(strstr(list.text, want));
		assert_int_equal(plan_make(&t, &to.all, NULL, &p, NULL, &err), -EMEDIUMTYPE);
		table_free(&t);
		ckpt_errlist_free(&list);
	}
	jobs_free(&from, &to);
}

/* A piece is of a rank, and only the mesh knows whose operand that makes it. */
TEST(a_piece_of_no_rank_of_the_mesh_is_told)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };
	struct model src, dst;
	struct job from, to;
	struct table t;
	struct plan p;

	one_big(&src, CKPT_F32, 3, true);
	one_big(&dst, CKPT_F32, 3, false);
	jobs_make(&src, &from, &dst, &to);
	model_stage(&from);
	t = without_rank(&from, UINT32_MAX);
	t.piece[7].rank = 8;
	table_cover(&t, &list);
	assert_int_equal(list.n, 1);
	assert_non_null(strstr(list.text, "is of rank 8, which the mesh of its pending reduction"));
	assert_int_equal(plan_make(&t, &to.all, NULL, &p, NULL, &err), -EMEDIUMTYPE);
	assert_non_null(strstr(err.msg, "is of rank 8, which is not in the mesh"));
	table_free(&t);
	ckpt_errlist_free(&list);
	jobs_free(&from, &to);
}

/* --- any pieces --- */

struct tally {
	uint8_t at[TENSORS_MAX][16 * 512]; /* [operand][element] */
	bool strange[TENSORS_MAX];	   /* a piece of no rank of the mesh */
	bool given;			   /* to another rank */
};

static void tally_piece(struct tally *c, struct model *m, const struct table_piece *p, uint32_t i)
{
	const struct held *h = &m->tensor[i];
	uint32_t op, dims = dims_of(m, h, &op), k = 0, coord[CKPT_DIMS_MAX];

	if (dims && !mesh_coord(&m->mesh, p->rank, coord))
		c->strange[i] = true;
	else if (dims)
		k = operand_number(&m->mesh, dims, coord);
	for (uint64_t e = 0; e < p->set.numel && !c->strange[i]; e++)
		c->at[i][k * 512 + global_index(h, &p->set, e)]++;
}

/* The staged pieces, but some of them gone, there twice, or said to be of another rank. */
static struct table spoilt(uint64_t *rng, const struct table *from, struct model *m,
			   struct tally *c)
{
	struct table t = table_borrow(from);
	uint64_t much = draw(rng) % 3 ? 40 : 6;

	memset(c, 0, sizeof *c);
	for (uint32_t i = 0; i < from->nplace; i++)
		assert_int_equal(table_add_place(&t, &from->place[i], NULL, NULL), 0);
	for (uint32_t i = 0; i < from->npiece; i++) {
		struct table_piece p = from->piece[i];
		uint64_t what = draw(rng) % much;
		uint32_t tensor = 0;

		while (strcmp(m->tensor[tensor].name, from->tensor[p.tensor].name) != 0)
			tensor++;
		if (what == 0)
			continue;
		if (what == 1) {
			p.rank = (uint32_t)(draw(rng) % (m->mesh.nrank + 1));
			c->given = true;
		}
		for (uint32_t k = 0; k < (what == 2 ? 2 : 1); k++) {
			assert_int_equal(table_put_piece(&t, &p, NULL), 0);
			tally_piece(c, m, &p, tensor);
		}
	}
	assert_int_equal(table_seal(&t, NULL), 0);
	return t;
}

static void tally_end(const struct tally *c, const struct model *m, bool *ret_once, bool *ret_there)
{
	*ret_once = *ret_there = true;
	for (uint32_t i = 0; i < m->n; i++) {
		const struct held *h = &m->tensor[i];
		uint32_t op, n = operand_count(&m->mesh, dims_of(m, h, &op));
		uint64_t numel = 1;

		for (uint32_t d = 0; d < h->ndim; d++)
			numel *= h->shape[d];
		for (uint32_t k = 0; k < n; k++)
			for (uint64_t g = 0; g < numel; g++) {
				*ret_once &= c->at[i][k * 512 + g] == 1;
				*ret_there &= c->at[i][k * 512 + g] > 0;
			}
		*ret_once &= !c->strange[i];
		*ret_there &= !c->strange[i];
	}
}

/* Element by element, operand by operand, counted. */
TEST(exactly_what_is_there_once_is_covered_and_what_is_there_is_planned)
{
	uint64_t rng = draw_seed(__func__);
	uint32_t covered = 0, planned = 0;

	for (uint32_t i = 0; i < FEWER(400); i++) {
		struct tally *c = malloc(sizeof *c);
		struct ckpt_errlist list = { 0 };
		struct ckpt_err err = { 0 };
		struct model src, dst;
		struct job from, to;
		struct table staged, t;
		bool once, there;
		struct plan p;
		int e;

		assert_non_null(c);
		random_model(&rng, &src);
		for (uint32_t k = 0; k < src.n; k++)
			for (uint32_t d = 0; d < src.tensor[k].ndim; d++)
				src.tensor[k].shape[d] %= 8;
		random_target(&rng, &src, &dst);
		jobs_make(&src, &from, &dst, &to);
		model_fill(&src, &from);
		model_clear(&to);
		model_stage(&from);
		model_staged(&from, &staged);
		t = spoilt(&rng, &staged, &src, c);
		tally_end(c, &src, &once, &there);
		table_cover(&t, &list);
		if (once != !list.n)
			fail_msg("case %u: %s", i, list.n ? list.text : "covered, it says");
		e = plan_make(&t, &to.all, NULL, &p, NULL, &err);
		if (there != !e)
			fail_msg("case %u: %s", i, e ? err.msg : "planned, it says");
		if (!e) {
			assert_ok(
				move_copy(&p, (const void *const *)from.raw, to.base, NULL, NULL));
			if (!c->given)
				expect_truth(&src, &dst, &to, "spoilt pieces");
			plan_free(&p);
		}
		covered += once;
		planned += there;
		ckpt_errlist_free(&list);
		table_free(&t);
		table_free(&staged);
		jobs_free(&from, &to);
		free(c);
	}
	printf("%u covered, %u planned\n", covered, planned);
}

/* Of a mesh that claims many ranks and a checkpoint of one part: the work is that of the pieces. */
TEST(operands_that_nobody_has_cost_nothing)
{
	uint32_t dim = 1 << 16, *rank = calloc(dim, sizeof *rank);
	const struct mesh m = { 1, dim_names, &dim, dim, rank };
	struct ckpt_placement p = { .how = CKPT_PARTIAL, .flags = CKPT_KEEP_PARTIAL };
	struct layout l = { .nplace = 1, .place = &p };
	const struct table_place place = { "part", TABLE_NONE, 1 << 20 };
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };
	struct table t[2] = { { .ntensor = 0 }, { .ntensor = 0 } };
	uint64_t one = 1, began;
	struct plan plan;

	assert_non_null(rank);
	for (uint32_t r = 0; r < dim; r++)
		rank[r] = r;
	for (uint32_t k = 0; k < 2; k++) {
		assert_int_equal(table_add_mesh(&t[k], &m, NULL, NULL), 0);
		assert_int_equal(table_add_place(&t[k], &place, NULL, NULL), 0);
		for (uint32_t i = 0; i < 100; i++) {
			char name[16];
			struct table_tensor x = ROW(.component = "model", .name = name,
						    .dtype = CKPT_F32, .layout = TABLE_NONE,
						    .rank = TABLE_NONE, .ndim = 1, .shape = &one);
			struct table_piece piece = { .rank = 1000, .off = 64 * i };
			struct arena a = { 0 };

			snprintf(name, sizeof name, "w%u", i);
			if (!k)
				assert_int_equal(table_add_layout(&t[k], &l, &x.layout, NULL), 0);
			assert_int_equal(table_add_tensor(&t[k], &x, &piece.tensor, NULL), 0);
			assert_ok(indexset_box(1, (uint64_t[]){ 0 }, &one, &a, &piece.set));
			assert_int_equal(table_add_piece(&t[k], &piece, NULL), 0);
			arena_free(&a);
		}
		assert_int_equal(table_seal(&t[k], NULL), 0);
	}
	began = now_ns();
	assert_int_equal(plan_make(&t[0], &t[1], NULL, &plan, &list, &err), -EMEDIUMTYPE);
	printf("%.1f ms\n", (double)(now_ns() - began) / 1e6);
	assert_int_equal(list.n, 100);
	assert_non_null(strstr(err.msg, "model/w0: of the 65536 operands of its pending reduction "
					"at least 65535 are in no piece of the checkpoint"));
	ckpt_errlist_free(&list);
	table_free(&t[0]);
	table_free(&t[1]);
	free(rank);
}

/* Sums of one tensor have names of their own meanwhile, which tensors may have, too. */
TEST(tensors_may_be_called_anything)
{
	static const char *const name[] = { "a#3", "a", "a#1", "a#5" };
	struct model src, dst;
	struct job from, to;
	struct route r = { .way = LIVE };
	struct ckpt_err err = { 0 };

	model_mesh(&src, 2, (const char *const[]){ "dp", "tp" }, (uint32_t[]){ 2, 2 });
	model_mesh(&dst, 1, (const char *const[]){ "dp" }, (uint32_t[]){ 2 });
	src.n = dst.n = ARRAY_LEN(name);
	for (uint32_t i = 0; i < src.n; i++) {
		struct held *h = &src.tensor[i];

		*h = (struct held){ .dtype = CKPT_I64, .ndim = 1, .shape = { 5 }, .nplace = 1 };
		snprintf(h->name, sizeof h->name, "%s", name[i]);
		h->place[0] = (struct ckpt_placement)ROW(.how = CKPT_PARTIAL, .reduce = CKPT_MAX,
							 .flags = CKPT_KEEP_PARTIAL);
		dst.tensor[i] = *h;
		h->place[h->nplace++] =
			(struct ckpt_placement)ROW(.how = CKPT_PARTIAL, .mesh_dim = 1,
						   .reduce = CKPT_MAX, .flags = CKPT_KEEP_PARTIAL);
	}
	jobs_make(&src, &from, &dst, &to);
	model_fill(&src, &from);
	assert_ok_err(go(&from, &to, &r, &err), &err);
	for (uint32_t dp = 0; dp < 2; dp++)
		for (uint32_t i = 0; i < src.n; i++)
			for (uint64_t g = 0; g < 5; g++) {
				uint64_t n;
				const int64_t *x = rank_elements(&to.rank[dp], i, &n);

				assert_int_equal(x[g], MAX(value_of(i, 2 * dp, g),
							   value_of(i, 2 * dp + 1, g)));
			}
	jobs_free(&from, &to);
}

/* One dimension of a mesh, from and to. */
static void becomes(const struct ckpt_placement *from, uint32_t from_size,
		    const struct ckpt_placement *to, const char *to_dim, uint32_t to_size,
		    const char *why)
{
	struct model src, dst;
	struct ckpt_err err = { 0 };
	struct job a, b;
	struct plan p;
	int e;

	model_mesh(&src, 1, (const char *const[]){ "dp" }, &from_size);
	model_mesh(&dst, 1, &to_dim, &to_size);
	src.n = dst.n = 1;
	src.tensor[0] = dst.tensor[0] = (struct held)ROW(.name = "w", .dtype = CKPT_F32, .ndim = 1,
							 .shape = { 8 }, .nplace = 1);
	src.tensor[0].place[0] = *from;
	dst.tensor[0].place[0] = *to;
	model_job(&src, &a);
	model_job(&dst, &b);
	e = plan_make(&a.all, &b.all, NULL, &p, NULL, &err);
	if (e != (why ? -EMEDIUMTYPE : 0) || (why && !strstr(err.msg, why)))
		fail_msg("%s: %d: %s", why ? why : "allowed", e, err.msg);
	if (!e)
		plan_free(&p);
	model_job_free(&a);
	model_job_free(&b);
}

TEST(only_what_torch_takes_becomes_an_operand)
{
	static const struct ckpt_placement shard = { .how = CKPT_SHARD },
					   strided = { .how = CKPT_SHARD, .split_factor = 2 },
					   whole = { .how = CKPT_REPLICATE },
					   only = { .how = CKPT_ONLY },
					   sum = { .how = CKPT_PARTIAL, .flags = 1 },
					   avg = { .how = CKPT_PARTIAL, .reduce = 1, .flags = 1 },
					   max = { .how = CKPT_PARTIAL, .reduce = 3, .flags = 1 };

	becomes(&sum, 4, &sum, "dp", 4, NULL);
	becomes(&sum, 4, &shard, "dp", 3, NULL);
	becomes(&sum, 4, &strided, "other", 2, NULL);
	becomes(&shard, 4, &sum, "dp", 4, NULL);
	becomes(&sum, 4, &avg, "dp", 4, "a pending reduction does not become another one");
	becomes(&max, 4, &sum, "dp", 4, "a pending reduction does not become another one");
	becomes(&sum, 4, &sum, "dp", 2, "by a mesh dimension of the same size only");
	becomes(&sum, 4, &sum, "other", 4, "the mesh of the checkpoint has no other");
	becomes(&whole, 4, &sum, "dp", 4, "a complete tensor does not");
	becomes(&only, 4, &sum, "dp", 4, "a complete tensor does not");
	becomes(&strided, 4, &sum, "dp", 4, "a strided shard does not become an operand");
	becomes(&shard, 4, &max, "dp", 4, "operand of a sum, and of nothing else");
	becomes(&shard, 4, &sum, "dp", 2, "by a mesh dimension of the same size only");
}

/* Sets that have their ends and sizes in common are not the same. */
TEST(pieces_of_any_sets_get_their_own_elements)
{
	static const struct run runs[2][3] = { { { 0, 2, 2, 1 }, { 4, 1, 1, 1 }, { 7, 1, 1, 1 } },
					       { { 0, 1, 1, 1 }, { 3, 1, 1, 1 }, { 6, 2, 2, 1 } } };
	struct indices list[2] = { { 3, 4, runs[0] }, { 3, 4, runs[1] } };
	uint32_t four = 4;
	struct table dst = { 0 };
	struct ckpt_err err = { 0 };
	struct table_place place = { .name = "memory", .rank = TABLE_NONE, .bytes = 64 };
	struct table_tensor x;
	int64_t got[8];
	void *base = got;
	struct model src;
	struct job from;
	struct plan p;

	model_mesh(&src, 1, (const char *const[]){ "dp" }, &four);
	src.n = 1;
	src.tensor[0] = (struct held)ROW(.name = "w", .dtype = CKPT_I64, .ndim = 1, .shape = { 8 },
					 .nplace = 1);
	src.tensor[0].place[0] = (struct ckpt_placement){ .how = CKPT_PARTIAL, .flags = 1 };
	model_job(&src, &from);
	model_fill(&src, &from);
	x = from.all.tensor[0];
	x.layout = TABLE_NONE;
	assert_int_equal(table_add_tensor(&dst, &x, NULL, &err), 0);
	assert_int_equal(table_add_place(&dst, &place, NULL, &err), 0);
	for (uint32_t i = 0; i < 2; i++) {
		struct table_piece piece = { .set = { 1, 4, &list[i] }, .off = 32 * i };

		assert_ok_err(table_add_piece(&dst, &piece, &err), &err);
	}
	assert_int_equal(table_seal(&dst, &err), 0);
	assert_int_equal(plan_make(&from.all, &dst, NULL, &p, NULL, &err), 0);
	assert_int_equal(move_copy(&p, (const void *const *)from.base, &base, NULL, NULL), 0);
	for (uint32_t i = 0; i < 8; i++) {
		static const uint64_t g[8] = { 0, 1, 4, 7, 0, 3, 6, 7 };

		assert_int_equal(got[i], truth(&src, 0, g[i]));
	}
	plan_free(&p);
	table_free(&dst);
	model_job_free(&from);
}

TEST(an_operand_that_is_there_twice_is_named)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err = { 0 };
	struct table t = { 0 };
	struct model src;
	struct job from;

	one_big(&src, CKPT_F32, 3, true);
	model_job(&src, &from);
	model_stage(&from);
	for (uint32_t r = 0; r < 9; r++)
		assert_ok(table_merge(&t, &from.part[r % 8 + (r == 8)], NULL, &list, &err));
	assert_int_equal(table_seal(&t, &err), 0);
	table_cover(&t, &list);
	printf("%s\n", list.text);
	assert_int_equal(list.n, 1);
	assert_non_null(strstr(list.text, "model/w, operand of dp=0: element [2, 0] is in two"));
	table_free(&t);
	ckpt_errlist_free(&list);
	model_job_free(&from);
}

TEST(what_cannot_be_reduced_is_refused_before_a_byte_is_written)
{
	struct model src, dst;
	struct job from, to;

	one_big(&src, CKPT_U8, 2, true);
	one_big(&dst, CKPT_U8, 2, false);
	src.tensor[0].place[1].reduce = CKPT_AVG;
	src.tensor[src.n++] = src.tensor[0];
	snprintf(src.tensor[1].name, sizeof src.tensor[1].name, "x");
	src.tensor[1].dtype = CKPT_F32; /* and what could be is not begun, either */
	dst.tensor[dst.n++] = dst.tensor[0];
	dst.tensor[1] = src.tensor[1];
	dst.tensor[1].nplace = 1;
	jobs_make(&src, &from, &dst, &to);
	for (uint32_t w = 0; w < WAYS; w++) {
		struct route r = { .way = w, .disk = &D };
		struct ckpt_err err = { 0 };
		uint64_t n;

		assert_int_equal(go(&from, &to, &r, &err), -EOPNOTSUPP);
		if (w == FILES)
			assert_non_null(strstr(err.msg, "model/w: an average of U8"));
		assert_int_equal(*(uint8_t *)rank_elements(&to.rank[0], 0, &n), 0xee);
	}
	jobs_free(&from, &to);
}

TEST(a_place_without_memory_is_refused_before_a_byte_is_written)
{
	struct model src, dst;
	struct job from, to;
	struct table staged;
	struct ckpt_err err;
	struct plan p;
	void *none[DISK_RANKS_MAX] = { NULL };

	one_big(&src, CKPT_F32, 2, true);
	one_big(&dst, CKPT_F32, 2, false);
	jobs_make(&src, &from, &dst, &to);
	model_stage(&from);
	model_staged(&from, &staged);
	assert_int_equal(plan_make(&staged, &to.all, NULL, &p, NULL, &err), 0);
	assert_non_null(p.reduced);
	for (uint32_t r = 0; r < from.world; r++) {
		const void *base[DISK_RANKS_MAX];
		uint64_t n;

		for (uint32_t i = 0; i < from.world; i++)
			base[i] = i == r ? NULL : from.raw[i];
		assert_int_equal(move_copy(&p, base, to.base, NULL, NULL), -EINVAL);
		assert_int_equal(*(uint8_t *)rank_elements(&to.rank[0], 0, &n), 0xee);
	}
	assert_int_equal(move_copy(&p, (const void *const *)from.raw, none, NULL, NULL), -EINVAL);
	assert_int_equal(move_copy(&p, (const void *const *)from.raw, to.base, NULL, NULL), 0);
	plan_free(&p);
	table_free(&staged);
	jobs_free(&from, &to);
}

/* --- casts --- */

TEST(other_types_come_only_where_they_are_asked_for)
{
	uint64_t rng = draw_seed(__func__);

	for (uint32_t i = 0; i < FEWER(40); i++) {
		static const uint32_t types[] = { CKPT_BF16, CKPT_F32, CKPT_F64 };
		struct route r = { .way = i % WAYS, .engine = engines[i / 3 % 4], .disk = &D };
		struct ckpt_err err = { 0 };
		struct model src, dst;
		struct job from, to;
		bool differ = false;

		random_model(&rng, &src);
		for (uint32_t k = 0; k < src.n; k++)
			src.tensor[k].dtype = types[draw(&rng) % 3];
		random_target(&rng, &src, &dst);
		for (uint32_t k = 0; k < src.n; k++) {
			dst.tensor[k].dtype = types[draw(&rng) % 3];
			differ |= src.tensor[k].dtype != dst.tensor[k].dtype;
		}
		jobs_make(&src, &from, &dst, &to);
		model_fill(&src, &from);
		assert_int_equal(go(&from, &to, &r, &err), differ ? -EMEDIUMTYPE : 0);
		r.casts = true;
		assert_ok_err(go(&from, &to, &r, &err), &err);
		expect_truth(&src, &dst, &to, way_names[r.way]);
		jobs_free(&from, &to);
	}
}

UNIT(.setup = disk_setup, .teardown = disk_teardown);
