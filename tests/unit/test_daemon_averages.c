/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_averages.c - what the averages of a declaration are: which tensors, of which source,
 * under which name, where in the slot, and what all ranks must agree about. Declarations are made
 * by hand, and no daemon runs.
 */
#include "ckpt/base/pages.h"
#include "ckpt/table/names.h"
#include "daemon/average.h"
#include "formats/native/native.h"
#include "tests/lib/declaration.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"

#define RANKS_MAX 8u

/* --- a job --- */

/* One tensor as every rank declares it, or some; what is 0 is Replicate, a parameter, BF16 (a
 * master: F32), 6 x 5. layout: as layout_parse reads it; "boxes": rank r has row
 * r of each `world` rows alone; "same boxes": all ranks have two boxes. */
struct want {
	const char *component, *name, *of, *layout;
	uint32_t role, dtype, cls;
	uint64_t rows, columns;
	uint32_t ranks; /* bit r: rank r declares it; 0: all */
};
struct spec {
	const char *name, *text;
};
struct ranks {
	const char *mesh;
	const struct want *want;
	uint32_t nwant;
	const struct spec *spec;
	uint32_t nspec;
	uint32_t world;
	struct names *names;
	struct decl *decl[RANKS_MAX];
};

static void canonical_of(const char *text, char ret[EMA_SPEC_BYTES])
{
	struct ckpt_err err = { 0 };
	struct ema_spec *s;

	MUST_OK(ema_spec_parse(text, &s, &err), &err);
	assert_ok(ema_spec_print(s, 0, ret));
	ema_spec_free(s);
}

static void piece_add(struct table *t, uint32_t tensor, uint32_t rank, uint64_t *end,
		      const struct indexset *set)
{
	struct table_piece p = { .tensor = tensor, .rank = rank, .off = *end, .set = *set };
	struct ckpt_err err = { 0 };

	MUST_OK(table_add_piece(t, &p, &err), &err);
	*end += set->numel * t->tensor[tensor].elem_bytes;
	*end = align_up(*end, 64);
}

static void boxes_add(struct table *t, uint32_t tensor, uint32_t rank, uint32_t world, bool same,
		      uint64_t *end, struct arena *a)
{
	const struct table_tensor *x = &t->tensor[tensor];
	uint64_t half = x->shape[0] / 2;
	struct indexset set;

	for (uint64_t row = rank; !same && row < x->shape[0]; row += world) {
		assert_ok(indexset_box(2, (uint64_t[]){ row, 0 }, (uint64_t[]){ 1, x->shape[1] }, a,
				       &set));
		piece_add(t, tensor, rank, end, &set);
	}
	for (uint32_t i = 0; same && i < 2; i++) {
		assert_ok(indexset_box(2, (uint64_t[]){ i * half, 0 },
				       (uint64_t[]){ i ? x->shape[0] - half : half, x->shape[1] },
				       a, &set));
		if (set.numel)
			piece_add(t, tensor, rank, end, &set);
	}
}

static struct want full_of(const struct want *given)
{
	struct want w = *given;

	w.role = w.role ? w.role : CKPT_PARAM;
	w.layout = w.layout ? w.layout : "Replicate";
	w.dtype = w.dtype ? w.dtype : w.role == CKPT_MASTER ? CKPT_F32 : CKPT_BF16;
	w.rows = w.rows ? w.rows : 6;
	w.columns = w.columns ? w.columns : 5;
	return w;
}

static void tensor_declare(struct table *t, const struct want *given, uint32_t rank, uint32_t world,
			   uint64_t *end, struct arena *a)
{
	const struct want full = full_of(given), *w = &full;
	const bool boxes = !strcmp(w->layout, "boxes"), same = !strcmp(w->layout, "same boxes");
	const uint64_t shape[] = { w->rows, w->columns };
	struct table_tensor x =
		ROW(.component = w->component, .name = w->name, .of = w->of ? w->of : "",
		    .dtype = w->dtype, .role = w->role, .cls = w->cls, .layout = TABLE_NONE,
		    .rank = TABLE_NONE, .ndim = 2, .shape = shape);
	struct layout l = ROW(.mode = CKPT_BOXES);
	uint32_t tensor, coord[CKPT_DIMS_MAX];
	struct ckpt_err err = { 0 };
	struct indexset set;

	if (!boxes && !same)
		MUST_OK(layout_parse(w->layout, &t->mesh[0], a, &l, &err), &err);
	if (!boxes)
		MUST_OK(table_add_layout(t, &l, &x.layout, &err), &err);
	MUST_OK(table_add_tensor(t, &x, &tensor, &err), &err);
	if (boxes || same) {
		boxes_add(t, tensor, rank, world, same, end, a);
		return;
	}
	assert_true(mesh_coord(&t->mesh[0], rank, coord));
	assert_ok(layout_share(&t->mesh[0], &l, 2, shape, coord, a, &set));
	piece_add(t, tensor, rank, end, &set);
}

static void declaration(const struct ranks *j, uint32_t rank, void **ret, uint64_t *ret_len)
{
	struct table_place place = ROW(.name = "memory", .rank = rank, .bytes = UINT64_C(1) << 40);
	struct table t = { 0 };
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh mesh;
	uint64_t end = 0;

	MUST_OK(mesh_parse(j->mesh, &a, &mesh, &err), &err);
	MUST_OK(table_add_mesh(&t, &mesh, NULL, &err), &err);
	MUST_OK(table_add_place(&t, &place, NULL, &err), &err);
	for (uint32_t i = 0; i < j->nspec; i++) {
		char canonical[EMA_SPEC_BYTES];
		struct table_average x = ROW(.name = j->spec[i].name, .schedule = canonical);

		canonical_of(j->spec[i].text, canonical);
		MUST_OK(table_add_average(&t, &x, NULL, &err), &err);
	}
	for (uint32_t i = 0; i < j->nwant; i++)
		if (!j->want[i].ranks || j->want[i].ranks >> rank & 1)
			tensor_declare(&t, &j->want[i], rank, mesh.nrank, &end, &a);
	declaration_of(&t, ret, ret_len);
	arena_free(&a);
}

/* Memory that nobody looks into. */
static struct segment *segment(void)
{
	static struct segment s = { .refs = 1u << 30, .bytes = UINT64_C(1) << 40 };

	return &s;
}

static int declare_bytes(void *bytes, uint64_t len, uint32_t rank, uint32_t rev,
			 struct names *names, struct decl **ret, struct ckpt_err *err)
{
	struct segment *seg[] = { segment() };
	int rc = decl_make(bytes, len, 1, rev, rank, seg, 1, names, ret, err);

	free(bytes);
	return rc;
}

static int declare(struct ranks *j, uint32_t rank, uint32_t rev, struct decl **ret,
		   struct ckpt_err *err)
{
	uint64_t len;
	void *bytes;

	declaration(j, rank, &bytes, &len);
	return declare_bytes(bytes, len, rank, rev, j->names, ret, err);
}

static void ranks_free(struct ranks *j)
{
	for (uint32_t r = 0; r < RANKS_MAX; r++) {
		decl_unref(j->decl[r]);
		j->decl[r] = NULL;
	}
	names_unref(TAKE(j->names));
}

/* Each rank's declaration is right by itself. */
static void ranks_declare(struct ranks *j)
{
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	struct mesh mesh;

	MUST_OK(mesh_parse(j->mesh, &a, &mesh, &err), &err);
	j->world = mesh.nrank;
	arena_free(&a);
	j->names = names_new();
	for (uint32_t r = 0; r < j->world; r++)
		MUST_OK(declare(j, r, 0, &j->decl[r], &err), &err);
}

#define RANKS(mesh_, want_, ...)                                            \
	{                                                                   \
		.mesh = mesh_, .want = want_, .nwant = ARRAY_LEN(want_),    \
		.spec = (const struct spec[]){ __VA_ARGS__ },               \
		.nspec = ARRAY_LEN(((const struct spec[]){ __VA_ARGS__ })), \
	}
#define PARAM(name_, ...) ROW(.component = "model", .name = name_, ##__VA_ARGS__)

static const struct table_tensor *made_of(const struct decl *d, const char *component,
					  const char *name)
{
	uint32_t i = table_find(&d->averages->made, component, name, TABLE_NONE);

	return i == TABLE_NONE ? NULL : &d->averages->made.tensor[i];
}

/* --- what must hold for every job --- */

static const struct table_piece *main_piece_at(const struct table *main, uint64_t off)
{
	for (uint32_t i = 0; i < main->npiece; i++)
		if (main->piece[i].off == off)
			return &main->piece[i];
	fail_msg("no piece of the main part begins at byte %" PRIu64, off);
	return NULL;
}

static const struct table_piece *made_piece_at(const struct averages *a, uint32_t tensor,
					       uint64_t off)
{
	for (uint32_t i = a->made.first[tensor]; i < a->made.first[tensor + 1]; i++)
		if (a->made.piece[i].off == off)
			return &a->made.piece[i];
	fail_msg("no piece of %s/%s at byte %" PRIu64, a->made.tensor[tensor].component,
		 a->made.tensor[tensor].name, off);
	return NULL;
}

/* Runs and targets name every piece once, and each goes with the elements of its source. */
static void check_runs(const struct decl *d)
{
	const struct averages *a = d->averages;
	const struct table *main = decl_part(d, PART_MAIN);
	uint32_t pieces = 0;

	for (uint32_t i = 0; i < a->nrun; i++) {
		const struct average_run *run = &a->run[i];
		const struct table_piece *src = main_piece_at(main, run->src);
		const struct table_piece *at = main_piece_at(main, run->at);
		const struct table_tensor *x = &main->tensor[src->tensor];
		char key[TABLE_KEY_BYTES];

		assert_true(i == 0 || run[-1].at <= run->at);
		assert_int_equal(run->n, src->set.numel);
		assert_int_equal(run->dtype, x->dtype);
		assert_int_equal(run->at_bytes, main->tensor[at->tensor].elem_bytes);
		assert_true(at == src || (x->cls == CKPT_DERIVED &&
					  &main->tensor[at->tensor] ==
						  &main->tensor[table_find_key(main, x->of)]));
		assert_true(indexset_equal(&at->set, &src->set));
		for (uint32_t k = run->target; k < run->target + run->ntarget; k++) {
			const struct average_target *to = &a->target[k];
			const struct table_tensor *y = &a->made.tensor[to->tensor];
			const struct table_piece *p = made_piece_at(a, to->tensor, to->off);

			assert_int_equal(y->made, to->row + 1);
			assert_string_equal(y->of, table_key(x, key));
			assert_true(indexset_equal(&p->set, &src->set));
			assert_int_equal(to->carry == AVERAGE_NO_CARRY, !a->row[to->row].kahan);
			pieces += 1 + a->row[to->row].kahan;
		}
	}
	assert_int_equal(pieces, a->made.npiece);
}

static void check_slot(const struct decl *d)
{
	const struct averages *a = d->averages;
	uint64_t n, end, most = 0;
	struct chunk *chunk;

	assert_int_equal(d->average_at % (2 * MIB), 0);
	assert_true(d->average_at >= d->part.place[0].bytes);
	assert_int_equal(d->raw_bytes % (2 * MIB), 0);
	assert_true(d->raw_bytes >= d->average_at + a->bytes + SLOT_SEAL_BYTES);
	assert_int_equal(averages_slot_bytes(d), d->raw_bytes - d->average_at);
	assert_ok(chunk_map_make(&a->made, NATIVE_DATA_OFF, &chunk, &n, &end, NULL));
	free(chunk);
	for (uint32_t i = 0; i < a->made.npiece; i++) {
		const struct table_piece *p = &a->made.piece[i];
		const struct table_tensor *x = &a->made.tensor[p->tensor];

		assert_int_equal(p->len, p->set.numel * sizeof(float));
		assert_int_equal(p->off % (p->len >= NATIVE_BIG ? MIB : NATIVE_PACK), 0);
		assert_true(p->off >= most); /* they ascend, and do not overlap */
		if (p->tensor && a->made.first[p->tensor] == i &&
		    strcmp(x->component, x[-1].component) != 0)
			assert_int_equal(p->off % MIB, 0);
		most = p->off + p->len;
	}
	assert_int_equal(a->made.place[0].bytes, most);
}

/* All of each average of all ranks, once; and that is found when all ranks are put together. */
static void check_ranks(struct ranks *j)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct ckpt_err err = { 0 };
	struct table all = { 0 };
	struct whole *w;

	for (uint32_t r = 0; r < j->world; r++) {
		check_runs(j->decl[r]);
		check_slot(j->decl[r]);
		assert_true(j->decl[r]->averages->nrow == j->decl[0]->averages->nrow);
		MUST_OK(table_merge(&all, &j->decl[r]->averages->made, NULL, &list, &err), &err);
	}
	MUST_OK(table_seal(&all, &err), &err);
	table_cover(&all, &list);
	if (list.n)
		fail_msg("%s", list.text);
	MUST_OK(whole_make(j->decl, j->world, &w, &err), &err);
	for (uint32_t i = 0; i < all.ntensor; i++)
		assert_true(table_find(&w->table, all.tensor[i].component, all.tensor[i].name,
				       TABLE_NONE) != TABLE_NONE);
	whole_unref(w);
	table_free(&all);
	ckpt_errlist_free(&list);
}

/* --- layouts --- */

static uint64_t owned(const struct ranks *j, uint32_t r, const char *component, const char *name)
{
	const struct table *t = &j->decl[r]->averages->made;
	uint32_t k = table_find(t, component, name, TABLE_NONE);
	uint64_t n = 0;

	for (uint32_t i = k == TABLE_NONE ? 0 : t->first[k]; k != TABLE_NONE && i < t->first[k + 1];
	     i++)
		n += t->piece[i].set.numel;
	return n;
}

TEST(a_rank_averages_its_uneven_share_and_one_without_a_share_nothing)
{
	static const struct want want[] = { PARAM("w", .layout = "Shard(0)@fsdp", .rows = 5) };
	struct ranks j = RANKS("fsdp=4", want, { "fast", "constant decay=.9" });

	ranks_declare(&j);
	check_ranks(&j);
	for (uint32_t r = 0; r < 4; r++) /* as torch.chunk: 2, 2, 1, 0 rows */
		assert_int_equal(owned(&j, r, "ema.fast", "w"), r < 2 ? 10 : r == 2 ? 5 : 0);
	assert_null(decl_part(j.decl[3], PART_AVERAGE));
	assert_true(j.decl[3]->averages && averages_slot_bytes(j.decl[3]) == 2 * MIB);
	assert_ptr_equal(decl_part(j.decl[0], PART_AVERAGE), &j.decl[0]->averages->made);
	ranks_free(&j);
}

TEST(each_element_of_replicas_is_averaged_once)
{
	static const struct want want[] = {
		PARAM("small", .layout = "Replicate"),
		PARAM("large", .layout = "Shard(1)@tp", .dtype = CKPT_F32, .rows = 1024,
		      .columns = 2048),
	};
	struct ranks j = RANKS("dp=2,tp=2", want, { "fast", "constant decay=.9" });
	uint64_t small = 0;

	ranks_declare(&j);
	for (uint32_t r = 0; r < 4; r++) {
		small += owned(&j, r, "ema.fast", "small");
		/* The two that have a half of it share it. */
		assert_int_equal(owned(&j, r, "ema.fast", "large"), 512 * 1024);
	}
	assert_int_equal(small, 30);
	check_ranks(&j);
	ranks_free(&j);
}

TEST(each_box_is_averaged_by_its_rank_and_each_box_of_a_mesh_once)
{
	static const struct want want[] = {
		PARAM("alone", .layout = "boxes", .dtype = CKPT_F16, .rows = 7),
		PARAM("alike", .layout = "same boxes", .rows = 4),
		PARAM("strided", .layout = "S(0)@tp,S(0)@fsdp", .rows = 8),
	};
	struct ranks j =
		RANKS("fsdp=2,tp=2", want, { "a", "constant decay=.9" }, { "b", "uniform kahan" });
	uint64_t alike = 0;

	ranks_declare(&j);
	check_ranks(&j);
	for (uint32_t r = 0; r < 4; r++) {
		assert_int_equal(owned(&j, r, "ema.a", "alone"), r < 3 ? 10 : 5);
		assert_int_equal(owned(&j, r, "ema.b.carry", "alone"), r < 3 ? 10 : 5);
		alike += owned(&j, r, "ema.a", "alike");
		assert_int_equal(owned(&j, r, "ema.a", "strided"), 10);
	}
	assert_int_equal(alike, 20);
	ranks_free(&j);
}

/* --- sources and names --- */

#define MASTER(name_, of_, ...) \
	ROW(.component = "optim", .name = name_, .of = of_, .role = CKPT_MASTER, ##__VA_ARGS__)

TEST(a_master_is_averaged_under_the_name_of_its_parameter)
{
	static const struct want want[] = {
		PARAM("w", .of = "optim/w.master", .cls = CKPT_DERIVED),
		MASTER("w.master", "model/w"),
		PARAM("plain"),
		MASTER("plain.master", "model/plain"),
		PARAM("none"),
		MASTER("alone", ""),
		MASTER("elsewhere", "model/never.declared"),
		PARAM("odd"),
		MASTER("odd.master", "model/odd", .rows = 7),
		PARAM("frozen.master"),
		MASTER("frozen", "model/frozen.master", .cls = CKPT_CONST),
	};
	static const struct {
		const char *name, *of;
	} made[] = { { "w", "optim/w.master" },
		     { "plain", "optim/plain.master" },
		     { "none", "model/none" },
		     { "alone", "optim/alone" },
		     { "never.declared", "optim/elsewhere" },
		     { "odd", "model/odd" },
		     { "frozen.master", "model/frozen.master" } };
	struct ranks j = RANKS("dp=1", want, { "m", "constant decay=.9" },
			       { "p", "constant decay=.9 source=param" });

	ranks_declare(&j);
	check_ranks(&j);
	for (uint32_t i = 0; i < ARRAY_LEN(made); i++) {
		const struct table_tensor *x = made_of(j.decl[0], "ema.m", made[i].name);

		if (!x)
			fail_msg("no ema.m/%s", made[i].name);
		assert_string_equal(x->of, made[i].of);
		assert_int_equal(x->dtype, CKPT_F32);
		assert_int_equal(x->role, CKPT_AVERAGE);
	}
	/* A derived parameter that is averaged itself. */
	assert_string_equal(made_of(j.decl[0], "ema.p", "w")->of, "model/w");
	assert_null(made_of(j.decl[0], "ema.p", "alone"));
	assert_int_equal(j.decl[0]->averages->made.ntensor, ARRAY_LEN(made) + 5);
	ranks_free(&j);
}

TEST(a_derived_parameter_is_met_where_its_master_is)
{
	static const struct want want[] = {
		PARAM("w", .of = "optim/w.master", .cls = CKPT_DERIVED, .layout = "Shard(0)@dp"),
		PARAM("other", .layout = "Shard(0)@dp"),
		MASTER("w.master", "model/w", .layout = "Shard(0)@dp"),
	};
	struct ranks j = RANKS("dp=2", want, { "m", "constant decay=.9" },
			       { "p", "constant decay=.9 source=param" });
	uint32_t apart = 0;

	ranks_declare(&j);
	check_ranks(&j);
	for (uint32_t i = 0; i < j.decl[0]->averages->nrun; i++) {
		const struct average_run *run = &j.decl[0]->averages->run[i];

		apart += run->at != run->src;
		assert_int_equal(run->at_bytes,
				 run->at != run->src || run->dtype == CKPT_F32 ? 4 : 2);
	}
	assert_int_equal(apart, 1);
	assert_int_equal(j.decl[0]->averages->nrun, 3);
	ranks_free(&j);
}

TEST(rules_decide_by_name_and_each_schedule_of_its_own_is_a_row)
{
	static const struct want want[] = {
		PARAM("a.weight"),
		PARAM("a.bias"),
		PARAM("head.weight"),
		PARAM("steps", .dtype = CKPT_I64),
		PARAM("frozen", .cls = CKPT_CONST),
		PARAM("expert_bias", .role = CKPT_BUFFER, .dtype = CKPT_F32),
		PARAM("running", .role = CKPT_BUFFER, .dtype = CKPT_F32),
		MASTER("a.weight.master", "model/a.weight"),
	};
	struct ranks j = RANKS(
		"dp=1", want, { "z", "uniform" },
		{ "a", "constant decay=.9 *.bias=copy head.*=(power gamma=3) expert_bias=average "
		       "a.weight=(uniform)" });
	const struct averages *a;

	ranks_declare(&j);
	check_ranks(&j);
	a = j.decl[0]->averages;
	assert_int_equal(a->nrow, 4);
	for (uint32_t i = 0; i < 4; i++) {
		static const uint32_t average[] = { 0, 0, 0, 1 }, rule[] = { 0, 1, 2, 0 };
		static const enum ema_preset preset[] = { EMA_CONSTANT, EMA_POWER, EMA_UNIFORM,
							  EMA_UNIFORM };

		assert_int_equal(a->row[i].average, average[i]);
		assert_int_equal(a->row[i].rule, rule[i]);
		assert_int_equal(a->row[i].schedule->preset, preset[i]);
		assert_string_equal(a->row[i].name, i < 3 ? "a" : "z");
		assert_int_equal(a->made.average[i].last_step, EMA_NO_STEP);
	}
	assert_int_equal(made_of(j.decl[0], "ema.a", "head.weight")->made, 2);
	assert_int_equal(made_of(j.decl[0], "ema.a", "a.weight")->made, 3);
	assert_int_equal(made_of(j.decl[0], "ema.a", "expert_bias")->made, 1);
	assert_null(made_of(j.decl[0], "ema.a", "a.bias"));
	assert_null(made_of(j.decl[0], "ema.a", "steps"));
	assert_null(made_of(j.decl[0], "ema.a", "frozen"));
	assert_null(made_of(j.decl[0], "ema.a", "running"));
	assert_int_equal(made_of(j.decl[0], "ema.z", "a.bias")->made, 4);
	ranks_free(&j);
}

/* --- what is refused --- */

static void judged(struct ranks *j, const char *const *line, uint32_t n, const char * not )
{
	struct ckpt_err err = { 0 };
	struct whole *w = NULL;
	int rc;

	ranks_declare(j);
	rc = whole_make(j->decl, j->world, &w, &err);
	if (!n)
		assert_ok_err(rc, &err);
	else
		assert_int_equal(rc, -EINVAL);
	for (uint32_t i = 0; i < n; i++)
		if (!strstr(err.msg, line[i]))
			fail_msg("\"%s\" is not in: %s", line[i], err.msg);
	if (not &&strstr(err.msg, not ))
		fail_msg("\"%s\" is in: %s", not, err.msg);
	whole_unref(w);
	ranks_free(j);
}

TEST(all_that_one_rank_can_see_is_refused_at_once)
{
	static const struct want want[] = {
		PARAM("count", .dtype = CKPT_I64),
		PARAM("frozen", .cls = CKPT_CONST),
		PARAM("sum", .layout = "Partial(sum)@dp"),
		PARAM("w"),
		ROW(.component = "copy", .name = "w", .layout = "Replicate", .role = CKPT_PARAM,
		    .rows = 2),
		ROW(.component = "ema.fast", .name = "w", .layout = "Replicate", .role = CKPT_PARAM,
		    .rows = 2),
		ROW(.component = "ema.fast.carry", .name = "v", .layout = "Replicate",
		    .role = CKPT_BUFFER, .rows = 2),
	};
	static const char *const line[] = {
		"average fast: model/count (I64): only F32, BF16 and F16 can be averaged",
		"average fast: model/frozen (BF16): it is of class const",
		"average fast: model/sum (BF16): it is partial",
		"would both be ema.fast/w",
		"average fast: ema.fast/w: this component is the average's",
		"average fast: ema.fast.carry/v: this component is the average's",
	};
	struct ranks j =
		RANKS("dp=2", want, { "fast", "constant decay=.9 count=average frozen=average" });

	judged(&j, line, ARRAY_LEN(line), NULL);
}

TEST(two_tensors_of_one_name_are_refused_though_one_rank_has_both)
{
	static const struct want want[] = {
		PARAM("w"),
		ROW(.component = "copy", .name = "w", .rows = 2),
		MASTER("w.master", "model/w"),
		MASTER("w.again", "model/w"),
	};
	static const char *const line[] = {
		"average fast: copy/w of rank 0 and optim/w.master of rank 0 would both be ema.fast/w",
		"average only: optim/w.master of rank 0 and optim/w.again of rank 0 would both be "
	};
	struct ranks j = RANKS("dp=1", want, { "fast", "constant decay=.9" },
			       { "only", "constant decay=.9 copy/w=skip" });

	judged(&j, line, ARRAY_LEN(line), NULL);
}

TEST(what_one_rank_sees_all_are_told_once_with_all_else)
{
	static const struct want want[] = {
		PARAM("first", .ranks = 1, .layout = "Only(0)@pp"),
		PARAM("count", .ranks = 2, .layout = "Only(1)@pp", .dtype = CKPT_I64),
	};
	static const char *const line[] = {
		"average a: model/count (I64): only F32, BF16 and F16 can be averaged",
		"average a: no tensor of any rank matches its rule *.bias",
		"average b: decay",
	};
	struct ranks j = RANKS("pp=2", want, { "a", "constant decay=.9 count=average *.bias=copy" },
			       { "b", "constant decay=1.5" });

	judged(&j, line, ARRAY_LEN(line), NULL);
}

TEST(values_that_are_not_right_are_refused_by_the_daemon_too)
{
	static const struct want want[] = { PARAM("w") };
	static const char *const line[] = { "average fast: " };
	struct ranks j = RANKS("dp=1", want, { "fast", "constant decay=1.5" });

	judged(&j, line, 1, NULL);
}

static int declare_row(const char *schedule, uint32_t rule)
{
	struct table_place place = ROW(.name = "memory", .bytes = UINT64_C(1) << 40);
	struct table_average x = ROW(.name = "fast", .schedule = schedule, .rule = rule);
	struct names *names = names_new();
	struct ckpt_err err = { 0 };
	struct table t = { 0 };
	struct decl *d = NULL;
	uint64_t len;
	void *bytes;
	int rc;

	MUST_OK(table_add_place(&t, &place, NULL, &err), &err);
	MUST_OK(table_add_average(&t, &x, NULL, &err), &err);
	declaration_of(&t, &bytes, &len);
	rc = declare_bytes(bytes, len, 0, 0, names, &d, &err);
	decl_unref(d);
	names_unref(names);
	return rc;
}

TEST(what_no_library_sends_is_a_broken_protocol)
{
	char canonical[EMA_SPEC_BYTES];

	canonical_of("constant decay=.9", canonical);
	assert_ok(declare_row(canonical, 0));
	assert_int_equal(declare_row(canonical, 1), -EPROTO);
	assert_int_equal(declare_row("constant decay=.9", 0), -EPROTO);
	assert_int_equal(declare_row("constant", 0), -EPROTO);
	assert_int_equal(declare_row("forever", 0), -EPROTO);
	assert_int_equal(declare_row("", 0), -EPROTO);
}

TEST(a_rule_may_match_on_another_rank_but_not_nowhere)
{
	static const struct want want[] = {
		PARAM("first", .ranks = 1, .layout = "Only(0)@pp"),
		PARAM("last", .ranks = 2, .layout = "Only(1)@pp"),
	};
	static const char *const line[] = {
		"average a: no tensor of any rank matches its rule *.bias",
		"average b: no tensor of any rank matches its rule optim/*",
		"average c: no tensor of any rank is averaged",
	};
	struct ranks good =
		RANKS("pp=2", want, { "a", "constant decay=.9 last=skip first=(uniform)" });
	struct ranks bad = RANKS("pp=2", want, { "a", "constant decay=.9 last=copy *.bias=skip" },
				 { "b", "uniform optim/*=skip" }, { "c", "uniform *=copy" });

	judged(&good, NULL, 0, NULL);
	judged(&bad, line, ARRAY_LEN(line), "rule last");
}

TEST(a_parameter_whose_master_only_another_rank_declares_is_refused)
{
	static const struct want want[] = {
		PARAM("w"),
		MASTER("w.master", "model/w", .ranks = 2, .layout = "Only(1)@dp"),
		PARAM("x"),
		MASTER("x.master", "model/x", .layout = "boxes"),
	};
	static const char *const line[] = {
		"average fast: model/w: rank 0 declares it without its FP32 master "
		"optim/w.master, which rank 1 declares"
	};
	struct ranks bad = RANKS("dp=2", want, { "fast", "constant decay=.9" });
	struct ranks itself = RANKS("dp=2", want, { "fast", "constant decay=.9 source=param" });
	struct ranks elsewhere = RANKS("dp=2", want, { "fast", "constant decay=.9 w=copy" });

	judged(&bad, line, 1, "model/x");
	judged(&itself, NULL, 0, NULL);
	judged(&elsewhere, NULL, 0, NULL);
}

TEST(names_that_tensors_of_two_ranks_would_share_are_refused_once)
{
	static const struct want want[] = {
		PARAM("w", .ranks = 1, .layout = "Only(0)@pp"),
		ROW(.component = "other", .name = "w", .layout = "Only(1)@pp", .role = CKPT_PARAM,
		    .rows = 2, .ranks = 2),
	};
	static const char *const line[] = {
		"average fast: model/w of rank 0 and other/w of rank 1 would both be ema.fast/w"
	};
	struct ranks bad = RANKS("pp=2", want, { "fast", "constant decay=.9" });
	struct ranks good = RANKS("pp=2", want, { "fast", "constant decay=.9 other/*=skip" });

	judged(&bad, line, 1, NULL);
	judged(&good, NULL, 0, NULL);
}

TEST(an_average_that_a_rank_lacks_or_has_otherwise_contradicts_the_others)
{
	static const struct want want[] = { PARAM("w") };
	struct ranks j = RANKS("dp=2", want, { "a", "constant decay=.9" }, { "b", "uniform" });
	struct ranks other = RANKS("dp=2", want, { "c", "uniform" }, { "a", "constant decay=.99" });
	struct ranks turned = RANKS("dp=2", want, { "b", "uniform" }, { "a", "constant decay=.9" });
	struct ranks *const with[] = { &other, &turned };

	ranks_declare(&j);
	for (uint32_t i = 0; i < 2; i++) {
		struct decl *const first[RANKS_MAX] = { j.decl[0] };
		struct ckpt_err err = { 0 };
		struct agreed *a = NULL;
		struct decl *d;
		int rc;

		with[i]->names = j.names;
		MUST_OK(declare(with[i], 1, 0, &d, &err), &err);
		MUST_OK(agree(&a, j.decl[0], (struct decl *[RANKS_MAX]){ NULL }, 2, &err), &err);
		rc = agree(&a, d, first, 2, &err);
		assert_int_equal(rc, i ? 0 : -EINVAL);
		assert_true(i || strstr(err.msg, "average a: \"constant decay=0.99"));
		assert_true(i ||
			    strstr(err.msg, "average b: declared on rank 0 and not on rank 1"));
		assert_true(i ||
			    strstr(err.msg, "average c: declared on rank 1 and not on rank 0"));
		agreed_free(a);
		decl_unref(d);
	}
	ranks_free(&j);
}

TEST(an_average_does_not_change_within_an_epoch)
{
	static const struct want want[] = { PARAM("w") };
	struct ranks j = RANKS("dp=1", want, { "a", "constant decay=.9" });
	struct ranks other = RANKS("dp=1", want, { "a", "constant decay=.99" });
	struct ckpt_err err = { 0 };
	struct decl *d;

	ranks_declare(&j);
	other.names = j.names;
	MUST_OK(declare(&j, 0, 1, &d, &err), &err);
	assert_ok_err(decl_moves_only(j.decl[0], d, &err), &err);
	assert_int_equal(d->slot_sum, j.decl[0]->slot_sum);
	assert_memory_equal(d->averages->declared, j.decl[0]->averages->declared, 16);
	decl_unref(d);
	MUST_OK(declare(&other, 0, 1, &d, &err), &err);
	assert_int_equal(decl_moves_only(j.decl[0], d, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "average a"));
	assert_memory_not_equal(d->averages->declared, j.decl[0]->averages->declared, 16);
	decl_unref(d);
	ranks_free(&j);
}

/* --- the slot --- */

TEST(a_slot_has_the_averages_behind_all_else_and_its_seal_on_the_last_page)
{
	static const struct want want[] = {
		PARAM("w", .rows = 1000, .columns = 700),
		PARAM("frozen", .rows = 700, .columns = 1000, .cls = CKPT_CONST),
		PARAM("b"),
	};
	struct ranks j =
		RANKS("dp=1", want, { "a", "constant decay=.9" }, { "k", "uniform kahan" });
	struct ranks none = { .mesh = "dp=1", .want = want, .nwant = ARRAY_LEN(want) };
	struct ckpt_err err = { 0 };
	struct table t;
	struct decl *d;
	uint8_t *raw;

	ranks_declare(&j);
	ranks_declare(&none);
	check_ranks(&j);
	d = j.decl[0];
	assert_null(none.decl[0]->averages);
	assert_int_equal(averages_slot_bytes(none.decl[0]), 0);
	assert_int_equal(none.decl[0]->raw_bytes, d->average_at);
	assert_int_not_equal(none.decl[0]->slot_sum, d->slot_sum);
	assert_int_equal(none.decl[0]->copy_bytes, d->copy_bytes);
	assert_true(d->average_at > d->const_at && d->const_at);
	raw = calloc(1, d->raw_bytes);
	assert_ptr_equal(decl_part_raw(d, PART_AVERAGE, raw), raw + d->average_at);
	MUST_OK(decl_part_now(d, PART_AVERAGE, raw, &t, &err), &err);
	assert_int_equal(t.npiece, 6);
	assert_int_equal(t.place[0].bytes, d->averages->made.place[0].bytes);
	t.average[0].updates = 7; /* of its own */
	assert_int_equal(d->averages->made.average[0].updates, 0);
	table_free(&t);
	MUST_OK(decl_slot_now(d, raw, true, &t, &err), &err);
	assert_int_equal(t.ntensor, 3 + 6);
	assert_int_not_equal(table_find(&t, "ema.k.carry", "w", TABLE_NONE), TABLE_NONE);
	table_free(&t);
	MUST_OK(decl_slot_now(d, raw, false, &t, &err), &err);
	assert_int_equal(t.ntensor, 3);
	assert_int_equal(t.naverage, 0);
	assert_int_equal(table_find(&t, "ema.a", "w", TABLE_NONE), TABLE_NONE);
	table_free(&t);
	assert_true(decl_bytes_max(d, true) > decl_bytes_max(none.decl[0], true) + 3 * 4 * 700000);
	free(raw);
	ranks_free(&j);
	ranks_free(&none);
}

TEST(a_slot_that_was_used_is_zero_between_averages_and_in_its_seal)
{
	static const struct want want[] = { PARAM("a"), PARAM("b"), PARAM("c") };
	struct ranks j =
		RANKS("dp=1", want, { "a", "constant decay=.9" }, { "k", "uniform kahan" });
	struct ckpt_err err = { 0 };
	struct slotmem *mem;
	uint64_t set = 0;
	struct decl *d;

	ranks_declare(&j);
	d = j.decl[0];
	MUST_OK(slotmem_new(NULL, d->raw_bytes, &mem, &err), &err);
	assert_ok(slotmem_touch(mem));
	memset(mem->base, 0xff, mem->bytes);
	assert_ok(slotmem_clean(mem, d));
	for (uint64_t i = 0; i < mem->bytes; i++)
		set += ((uint8_t *)mem->base)[i] != 0;
	/* three tensors of BF16, and of each an average and an average with a carry */
	assert_int_equal(set, 3 * 30 * (2 + 4 + 8));
	assert_int_equal(((uint8_t *)mem->base)[d->raw_bytes - SLOT_SEAL_BYTES], 0);
	slotmem_unref(mem);
	ranks_free(&j);
}

/* --- any job --- */

static const char *const any_layout[] = { "Replicate",	   "Shard(0)@a",
					  "Shard(1)@b",	   "Shard(0)@a, Shard(0)@b",
					  "S(0)@b,S(0)@a", "boxes",
					  "same boxes" };
static const char *const any_spec[] = { "constant decay=.9",
					"uniform kahan",
					"power gamma=3 source=param",
					"constant decay=.5 p1*=copy",
					"uniform *2=(constant decay=.9)",
					"zero decay=.9 p3*=skip" };

/* Does this random spec leave something to its rules, whatever was drawn? p1, p2 and p3 are
 * there. */
static uint32_t any_job(uint64_t *seed, struct want *want, char (*name)[32])
{
	uint32_t n = 0, tensors = 3 + (uint32_t)draw_below(seed, 6);

	for (uint32_t i = 1; i <= tensors; i++) {
		struct want *p = &want[n++];
		uint64_t kind = draw_below(seed, 4);

		snprintf(name[n], sizeof name[n], "p%u", i);
		*p = (struct want)ROW(.component = "model", .name = name[n],
				      .layout = any_layout[draw_below(seed, 7)],
				      .dtype = draw_below(seed, 2) ? CKPT_BF16 : CKPT_F32,
				      .rows = 1 + draw_below(seed, 9),
				      .columns = 1 + draw_below(seed, 7));
		if (draw_below(seed, 8) == 0) { /* large enough to be cut among replicas */
			p->rows = 700;
			p->columns = 1000;
		}
		if (kind == 0)
			continue;
		want[n] = *p;
		snprintf(name[n + 1], sizeof name[n + 1], "p%u.master", i);
		want[n].component = "optim";
		want[n].name = name[n + 1];
		want[n].role = CKPT_MASTER;
		want[n].dtype = CKPT_F32;
		snprintf(name[32 + n], sizeof name[0], "model/p%u", i);
		want[n].of = name[32 + n];
		if (kind == 1 && strcmp(p->layout, "boxes") != 0 &&
		    strcmp(p->layout, "same boxes") != 0) {
			p->dtype = CKPT_BF16;
			p->cls = CKPT_DERIVED;
			snprintf(name[64 + n], sizeof name[0], "optim/p%u.master", i);
			p->of = name[64 + n];
		}
		if (kind == 2)
			want[n].layout = any_layout[draw_below(seed, 7)];
		n++;
	}
	return n;
}

TEST(each_element_of_any_job_is_averaged_once)
{
	static const char *const mesh[] = { "a=1,b=1", "a=2,b=2", "a=3,b=2", "a=4,b=1", "a=1,b=5" };
	uint64_t seed = draw_seed("any job");

	for (uint32_t turn = 0; turn < 60; turn++) {
		struct want want[32] = { 0 };
		char name[128][32];
		struct spec spec[3];
		struct ranks j = { .mesh = mesh[draw_below(&seed, ARRAY_LEN(mesh))],
				   .want = want,
				   .spec = spec };

		j.nwant = any_job(&seed, want, name);
		j.nspec = 1 + (uint32_t)draw_below(&seed, 3);
		for (uint32_t i = 0; i < j.nspec; i++)
			spec[i] = (struct spec){ (const char *[]){ "x", "y", "z" }[i],
						 any_spec[draw_below(&seed, ARRAY_LEN(any_spec))] };
		ranks_declare(&j);
		check_ranks(&j);
		ranks_free(&j);
	}
}
