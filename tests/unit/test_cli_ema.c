/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_ema.c - averages of the weights as the command sees them: ckptctl ema, show, verify,
 * diff, stats, convert and repair of checkpoints with averages, which are made by hand; and restore
 * --only and --dtype, element by element against the elements that the hand wrote.
 */
#include "tests/lib/cli_rig.h"
#include "ckpt/engine/average_seen.h"
#include "ckpt/move/cast.h"
#include "tests/lib/handmade.h"
#include "tests/lib/row.h"
#include "tests/lib/strict_safetensors.h"
#include "ema/spec.h"
#include <math.h>

#define T(...) (&(struct handmade_tensor){ __VA_ARGS__ })
#define BOX(...) ((uint64_t[]){ __VA_ARGS__ })
#define MB (UINT64_C(1) << 20)
#define GOOD_HEALTH "updates 3, lag 0, |p-e|/|e| 0.01 at most (model/w), far 0, NaN 0"

static const uint64_t origin[CKPT_DIMS_MAX];
static char out[PATH_MAX];

/* What is odd about a checkpoint. */
struct odd {
	const char *fast;     /* the spec of average fast; NULL: a constant decay */
	const char *schedule; /* in its place, as it stands in the file */
	const char *health;   /* of fast */
	const char *health_of_slow;
	const char *left_out, *left_out_of_slow;
	uint64_t step, last_step; /* 0: 30 */
	uint32_t try;
	bool mixed, no_b, clash, f8, f64, large, seeded, none;
	bool half; /* model/half is frozen, and has an FP32 master; model/void has no elements */
	double product;	    /* of fast; 0: some */
	uint64_t updates;   /* of fast; 0: some */
	uint32_t flags;	    /* of fast, and more */
	uint32_t nrow;	    /* rules of fast with schedules of their own */
	bool copied_master; /* nobody declares the parameter of optim/alone */
};

static void canonical(const char *text, char ret[EMA_SPEC_BYTES])
{
	struct ema_spec *s;
	struct ckpt_err err = { 0 };

	if (ema_spec_parse(text, &s, &err))
		fail_msg("%s", err.msg);
	assert_int_equal(ema_spec_print(s, 0, ret), 0);
	ema_spec_free(s);
}

static struct table_average row_of(const struct odd *x, const char *name, const char *schedule,
				   uint32_t rank)
{
	struct table_average a = ROW(.name = name, .schedule = schedule, .product = 0.25,
				     .updates = 3, .last_step = x->last_step ? x->last_step : 30,
				     .since = 10, .history = { 0xab, 0xcd, 3, (uint8_t)x->try });

	if (!strcmp(name, "slow"))
		a.flags = AVERAGE_KAHAN;
	else if (x->seeded)
		a.flags = AVERAGE_SEEDED;
	if (x->mixed && rank && !strcmp(name, "fast"))
		a.updates = 2;
	if (strcmp(name, "fast") != 0)
		return a;
	a.product = x->product != 0 ? x->product : a.product; /* NaN is not 0 */
	a.updates = x->updates ? x->updates : a.updates;
	a.flags |= x->flags;
	return a;
}

static void add_averages(struct handmade *p, uint32_t rank, const struct odd *x)
{
	char fast[EMA_SPEC_BYTES], slow[EMA_SPEC_BYTES];
	struct table_average a;
	struct table t;
	uint32_t cut, all, w, k;

	canonical(x->fast ? x->fast : "constant decay=.999", fast);
	canonical("constant decay=.9999 kahan", slow);
	handmade_table(&t, "fsdp=2");
	a = row_of(x, "fast", x->schedule ? x->schedule : fast, rank);
	assert_int_equal(table_add_average(&t, &a, NULL, NULL), 0);
	a = row_of(x, "slow", slow, rank);
	assert_int_equal(table_add_average(&t, &a, NULL, NULL), 0);
	for (uint32_t i = 0; i < x->nrow; i++) {
		a = row_of(x, "fast", "uniform", rank);
		a.rule = i + 1;
		assert_int_equal(table_add_average(&t, &a, NULL, NULL), 0);
	}
	cut = handmade_layout(&t, "Shard(0)@fsdp");
	all = handmade_layout(&t, "Replicate@fsdp");
	for (uint32_t i = 0; i < 2; i++) {
		w = handmade_tensor(&t,
				    T(.component = i ? "ema.slow" : "ema.fast", .name = "w",
				      .of = "model/w", .dtype = CKPT_F32, .role = CKPT_AVERAGE,
				      .made = 1 + i, .layout = cut, .ndim = 2, .shape = { 8, 6 }));
		handmade_piece(&t, rank, w, i * 256, 0, BOX(4 * rank, 0), BOX(4, 6));
	}
	w = handmade_tensor(&t, T(.component = "ema.slow.carry", .name = "w", .of = "model/w",
				  .dtype = CKPT_F32, .role = CKPT_OTHER, .made = 2, .layout = cut,
				  .ndim = 2, .shape = { 8, 6 }));
	handmade_piece(&t, rank, w, 512, 0, BOX(4 * rank, 0), BOX(4, 6));
	if (!rank && !x->no_b) {
		k = handmade_tensor(&t, T(.component = "ema.fast", .name = "b", .of = "model/b",
					  .dtype = CKPT_F32, .role = CKPT_AVERAGE, .made = 1,
					  .layout = all, .ndim = 1, .shape = { 6 }));
		handmade_piece(&t, rank, k, 1024, 0, origin, BOX(6));
		k = handmade_tensor(&t, T(.component = "ema.slow", .name = "b", .of = "model/b",
					  .dtype = CKPT_F32, .role = CKPT_AVERAGE, .made = 2,
					  .layout = all, .ndim = 1, .shape = { 6 }));
		handmade_piece(&t, rank, k, 1088, 0, origin, BOX(6));
	}
	if (!rank && x->half) {
		k = handmade_tensor(&t, T(.component = "ema.fast", .name = "half",
					  .of = "optim/half.master", .dtype = CKPT_F32,
					  .role = CKPT_AVERAGE, .made = 1, .layout = all, .ndim = 1,
					  .shape = { 6 }));
		handmade_piece(&t, rank, k, 1152, 0, origin, BOX(6));
	}
	(void)handmade_add(p, rank, PART_AVERAGE, 0, &t, NULL, 0);
}

static void add_main(struct handmade *p, uint32_t rank, const struct odd *x)
{
	uint32_t cut, all, k, source = rank;
	struct table t;

	handmade_table(&t, "fsdp=2");
	cut = handmade_layout(&t, "Shard(0)@fsdp");
	all = handmade_layout(&t, "Replicate@fsdp");
	k = handmade_tensor(&t, T(.component = "model", .name = "w", .dtype = CKPT_F32,
				  .role = CKPT_PARAM, .layout = cut, .ndim = 2, .shape = { 8, 6 }));
	handmade_piece(&t, rank, k, 0, 0, BOX(4 * rank, 0), BOX(4, 6));
	k = handmade_tensor(&t, T(.component = "optim", .name = "w.m", .of = "model/w",
				  .dtype = CKPT_F32, .role = CKPT_MOMENT1, .layout = cut, .ndim = 2,
				  .shape = { 8, 6 }));
	handmade_piece(&t, rank, k, 256, 0, BOX(4 * rank, 0), BOX(4, 6));
	k = handmade_tensor(&t, T(.component = x->clash ? "other" : "model",
				  .name = x->clash ? "w" : "running", .dtype = CKPT_F32,
				  .role = CKPT_BUFFER, .layout = all, .ndim = 1, .shape = { 6 }));
	if (!rank)
		handmade_piece(&t, rank, k, 512, 0, origin, BOX(6));
	k = handmade_tensor(&t, T(.component = "model", .name = "frozen", .dtype = CKPT_F32,
				  .role = CKPT_PARAM, .cls = CKPT_CONST, .layout = all, .ndim = 1,
				  .shape = { 4 }));
	if (rank)
		handmade_piece(&t, rank, k, 512, 0, origin, BOX(4));
	k = handmade_tensor(&t, T(.component = "model", .name = "b", .dtype = CKPT_BF16,
				  .role = CKPT_PARAM, .layout = all, .ndim = 1, .shape = { 6 }));
	if (!rank)
		handmade_piece(&t, rank, k, MB, 0, origin, BOX(6));
	k = handmade_tensor(&t, T(.component = "model", .name = "steps", .dtype = CKPT_I64,
				  .role = CKPT_BUFFER, .layout = all));
	if (rank)
		handmade_piece(&t, rank, k, 2 * MB, 0, origin, origin);
	if (x->f8) {
		k = handmade_tensor(&t, T(.component = "model", .name = "q", .dtype = CKPT_F8_E4M3,
					  .role = CKPT_BUFFER, .layout = all, .ndim = 1,
					  .shape = { 6 }));
		if (!rank)
			handmade_piece(&t, rank, k, 3 * MB, 0, origin, BOX(6));
	}
	if (x->f64) {
		k = handmade_tensor(&t, T(.component = "model", .name = "wide", .dtype = CKPT_F64,
					  .role = CKPT_BUFFER, .layout = all, .ndim = 1,
					  .shape = { 6 }));
		if (!rank)
			handmade_piece(&t, rank, k, 4 * MB, 0, origin, BOX(6));
	}
	if (x->half) {
		(void)handmade_tensor(&t, T(.component = "model", .name = "void",
					    .dtype = CKPT_BF16, .role = CKPT_PARAM, .layout = all,
					    .ndim = 2, .shape = { 0, 4 }));
		k = handmade_tensor(&t, T(.component = "model", .name = "half", .dtype = CKPT_BF16,
					  .role = CKPT_PARAM, .cls = CKPT_CONST, .layout = all,
					  .ndim = 1, .shape = { 6 }));
		if (!rank)
			handmade_piece(&t, rank, k, 5 * MB, 0, origin, BOX(6));
		k = handmade_tensor(&t,
				    T(.component = "optim", .name = "half.master",
				      .of = "model/half", .dtype = CKPT_F32, .role = CKPT_MASTER,
				      .layout = all, .ndim = 1, .shape = { 6 }));
		if (!rank)
			handmade_piece(&t, rank, k, 6 * MB, 0, origin, BOX(6));
	}
	if (x->copied_master) {
		k = handmade_tensor(&t, T(.component = "optim", .name = "alone", .of = "model/gone",
					  .dtype = CKPT_F32, .role = CKPT_MASTER, .layout = all,
					  .ndim = 1, .shape = { 6 }));
		if (!rank)
			handmade_piece(&t, rank, k, 7 * MB, 0, origin, BOX(6));
	}
	(void)handmade_add(p, rank, PART_MAIN, 0, &t, &source, x->none ? 0 : 1);
}

/* A step of two ranks. */
static void make_at(const char *dir, const struct odd *x)
{
	struct checkpoint_attr attr[4] = {
		{ AVERAGES_HEALTH "fast", x->health ? x->health : GOOD_HEALTH },
		{ AVERAGES_HEALTH "slow", x->health_of_slow },
	};
	uint32_t nattr = x->health_of_slow ? 2 : 1;
	struct ckpt_err err = { 0 };
	struct handmade p;

	handmade_begin(&p, "demo", x->step ? x->step : 30, 2, x->try);
	for (uint32_t r = 0; r < 2 && !x->none; r++)
		add_averages(&p, r, x);
	for (uint32_t r = 0; r < 2; r++)
		add_main(&p, r, x);
	p.line.attr = attr;
	if (x->left_out)
		attr[nattr++] = (struct checkpoint_attr){ AVERAGES_LEFT_OUT "fast", x->left_out };
	if (x->left_out_of_slow)
		attr[nattr++] =
			(struct checkpoint_attr){ AVERAGES_LEFT_OUT "slow", x->left_out_of_slow };
	p.line.nattr = nattr;
	if (handmade_commit(&p, &err))
		fail_msg("%s", err.msg);
	handmade_spill(&p, dir);
	handmade_free(&p);
}

/* The same below top. Returns its path. */
static const char *make(const char *name, const struct odd *x)
{
	char *dir = place(name);

	make_at(dir, x);
	return dir;
}

/* --- restore --- */

static struct strict_file load(const char *path)
{
	struct strict_file f;
	char why[200];

	if (!strict_load(path, &f, why))
		fail_msg("%s: %s", path, why);
	return f;
}

/* The elements of a tensor as the hand wrote them, and then as `to` has them, rounded by another
 * hand. */
static void expect(const struct strict_file *f, const char *key, const char *component,
		   const char *name, uint32_t from, uint32_t to, uint64_t numel)
{
	const struct strict_tensor *y = strict_find(f, key);
	const struct table none = { 0 };
	struct table_tensor x = { .component = component,
				  .name = name,
				  .dtype = from,
				  .elem_bytes = dtype_bytes(from),
				  .of = "" };

	if (!y)
		fail_msg("there is no %s", key);
	assert_string_equal(y->dtype, dtype_name(to));
	assert_int_equal(y->end - y->begin, numel * dtype_bytes(to));
	for (uint64_t i = 0; i < numel; i++) {
		const uint8_t *have = f->bytes + f->data + y->begin + i * dtype_bytes(to);
		uint8_t want[16];
		uint32_t bits;
		uint16_t half;

		handmade_element(&none, &x, i, want);
		if (from != to) {
			if (from == CKPT_BF16) {
				memcpy(&half, want, sizeof half);
				bits = (uint32_t)half << 16;
			} else {
				memcpy(&bits, want, sizeof bits);
			}
			if (to == CKPT_F32) {
				memcpy(want, &bits, sizeof bits);
			} else {
				half = to == CKPT_BF16 ? handmade_bf16(bits) : handmade_f16(bits);
				memcpy(want, &half, sizeof half);
			}
		}
		if (memcmp(have, want, dtype_bytes(to)))
			fail_msg("%s: element %d is not %s/%s", key, (int)i, component, name);
	}
}

static void clear(void)
{
	if (exists(out))
		remove_tree(out);
}

static const char *alone(void)
{
	return path_of("%s/model.safetensors", out);
}

static int make_out(void **state)
{
	int rc = make_top(state);

	snprintf(out, sizeof out, "%s/out", top);
	return rc;
}

TEST(export_only_an_average_is_the_model_under_its_own_names)
{
	const char *step = make("only", &(struct odd){ 0 });
	struct strict_file f;

	clear();
	RUN_IS(0, "export", step, out, "--only", "ema.fast");
	assert_int_equal(entries(out), 1);
	f = load(alone());
	assert_int_equal(f.ntensor, 5);
	expect(&f, "w", "ema.fast", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "b", "ema.fast", "b", CKPT_F32, CKPT_F32, 6);
	expect(&f, "running", "model", "running", CKPT_F32, CKPT_F32, 6);
	expect(&f, "frozen", "model", "frozen", CKPT_F32, CKPT_F32, 4);
	expect(&f, "steps", "model", "steps", CKPT_I64, CKPT_I64, 1);
	assert_string_equal(strict_meta(&f, "only"), "ema.fast");
	assert_string_equal(strict_meta(&f, "average"), "fast");
	assert_string_equal(strict_meta(&f, "average_schedule"),
			    "constant decay=0.999 start=0 source=master");
	assert_string_equal(strict_meta(&f, "average_updates"), "3");
	assert_string_equal(strict_meta(&f, "average_last_step"), "30");
	assert_string_equal(strict_meta(&f, "step"), "30");
	assert_null(strict_meta(&f, "average_mixed"));
	assert_null(strict_meta(&f, "dtype"));
	strict_free(&f);
	remove_tree(out);

	RUN_IS(0, "export", step, out, "--only", "ema.slow", "--dtype", "BF16", "--mem-limit",
	       "64M");
	f = load(alone());
	assert_int_equal(f.ntensor, 5);
	expect(&f, "w", "ema.slow", "w", CKPT_F32, CKPT_BF16, 48);
	expect(&f, "b", "ema.slow", "b", CKPT_F32, CKPT_BF16, 6);
	expect(&f, "running", "model", "running", CKPT_F32, CKPT_BF16, 6);
	expect(&f, "steps", "model", "steps", CKPT_I64, CKPT_I64, 1);
	assert_string_equal(strict_meta(&f, "dtype"), "BF16");
	strict_free(&f);
	remove_tree(out);

	SHOWN_IS(0, "export", step, out, "--only", "ema.fast", "--dtype", "BF16");
	remove_tree(out);
}

TEST(export_only_the_model_is_raw)
{
	const char *step = make("raw", &(struct odd){ 0 });
	struct strict_file f;

	clear();
	RUN_IS(0, "export", step, out, "--only", "model", "--dtype", "F32");
	f = load(alone());
	assert_int_equal(f.ntensor, 5);
	expect(&f, "w", "model", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "b", "model", "b", CKPT_BF16, CKPT_F32, 6);
	assert_null(strict_meta(&f, "average"));
	strict_free(&f);
	remove_tree(out);
	/* Without --only names have their components, and averages are tensors like others. */
	RUN_IS(0, "export", step, out, "--mesh", "fsdp=1");
	f = load(path_of("%s/rank-00000.safetensors", out));
	assert_int_equal(f.ntensor, 11);
	expect(&f, "model/w", "model", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "ema.fast/w", "ema.fast", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "ema.slow.carry/w", "ema.slow.carry", "w", CKPT_F32, CKPT_F32, 48);
	strict_free(&f);
	remove_tree(out);
	/* Of all components that are named. */
	RUN_IS(0, "export", step, out, "--only", "model", "--only", "optim");
	f = load(alone());
	assert_int_equal(f.ntensor, 6);
	expect(&f, "w.m", "optim", "w.m", CKPT_F32, CKPT_F32, 48);
	strict_free(&f);
	remove_tree(out);
}

TEST(export_only_goes_with_mesh_rank_layout_and_view)
{
	const char *step = make("mesh", &(struct odd){ 0 }), *view = path_of("%s/view.txt", top);
	struct strict_file f, one;
	const struct strict_tensor *y;

	clear();
	RUN_IS(0, "export", step, out, "--only", "ema.fast", "--mesh", "fsdp=4", "--dtype", "BF16");
	assert_int_equal(entries(out), 4);
	f = load(path_of("%s/rank-00003.safetensors", out));
	y = strict_find(&f, "w");
	assert_true(y && y->shape[0] == 2);
	RUN_IS(0, "export", step, path_of("%s/one", top), "--only", "ema.fast", "--mesh", "fsdp=4",
	       "--dtype", "BF16", "--rank", "3");
	one = load(path_of("%s/one/rank-00003.safetensors", top));
	assert_int_equal(f.len, one.len);
	assert_memory_equal(f.bytes, one.bytes, f.len);
	strict_free(&f);
	strict_free(&one);
	remove_tree(out);
	remove_tree(path_of("%s/one", top));

	/* The rules of a view were written for the model, and serve its averages. */
	spill(view, "rename model/w -> model/blk.q\ntranspose model/blk.q dims 1,0\n");
	RUN_IS(0, "export", step, out, "--only", "model", "--view", view);
	f = load(alone());
	y = strict_find(&f, "blk.q");
	assert_true(y && y->shape[0] == 6 && y->shape[1] == 8);
	strict_free(&f);
	remove_tree(out);
	RUN_IS(0, "export", step, out, "--only", "ema.fast", "--view", view);
	f = load(alone());
	assert_int_equal(f.ntensor, 5);
	y = strict_find(&f, "blk.q");
	assert_true(y && y->shape[0] == 6 && y->shape[1] == 8);
	strict_free(&f);
	remove_tree(out);
	spill(view, "rename model/w -> model/blk.q\n");
	RUN_IS(0, "export", step, out, "--only", "ema.fast", "--view", view);
	f = load(alone());
	expect(&f, "blk.q", "ema.fast", "w", CKPT_F32, CKPT_F32, 48);
	strict_free(&f);
	remove_tree(out);
	/* All of it through a view has the averages under their own names. */
	spill(view, "rename ema.fast/* -> fast/{1}\n");
	RUN_IS(0, "export", step, out, "--mesh", "fsdp=1", "--view", view);
	f = load(path_of("%s/rank-00000.safetensors", out));
	expect(&f, "fast/w", "ema.fast", "w", CKPT_F32, CKPT_F32, 48);
	strict_free(&f);
	remove_tree(out);
}

TEST(export_only_refuses_what_would_be_no_model)
{
	const char *step = make("refuse", &(struct odd){ 0 }), *bad;

	clear();
	RUN_IS(2, "export", step, out, "--only", "ema.fats");
	assert_says(got.err, "--only=ema.fats: there is no such component");
	assert_says(got.err, "model");
	RUN_IS(2, "export", step, out, "--only", "model", "--rank", "0");
	assert_says(got.err, "--rank needs --mesh");
	RUN_IS(2, "export", step, out, "--only", "model", "--dtype", "F8");
	/* Two components with one name: all such names are told. */
	RUN_IS(7, "export", step, out, "--only", "ema.fast", "--only", "ema.slow");
	assert_says(got.err, "b: ema.fast/b and ema.slow/b");
	assert_says(got.err, "w: ema.fast/w and ema.slow/w");
	RUN_IS(7, "export", step, out, "--only", "model", "--only", "ema.slow");
	assert_says(got.err, "w: ema.slow/w and model/w");
	assert_silent(got.err, "running"); /* copied: it is one tensor */
	/* A copied tensor of another component with the name of an averaged one. */
	bad = make("clash", &(struct odd){ .clash = true, .try = 1 });
	RUN_IS(7, "export", bad, out, "--only", "ema.fast");
	assert_says(got.err, "w: ema.fast/w and other/w");
	/* A tensor is missing. */
	bad = make("gap", &(struct odd){ .no_b = true, .try = 2 });
	RUN_IS(7, "export", bad, out, "--only", "ema.fast");
	assert_says(got.err, "ema.fast/b: there is no such tensor");
	/* Whose rules a newer version wrote. */
	bad = make("newer", &(struct odd){ .schedule = "quadratic decay=1 zig", .try = 3 });
	RUN_IS(8, "export", bad, out, "--only", "ema.fast");
	assert_says(got.err, "quadratic");
	RUN_IS(0, "export", bad, out, "--only", "ema.slow");
	remove_tree(out);
	assert_false(exists(out));
}

TEST(the_rules_of_an_average_say_what_it_copies)
{
	const char *step =
		make("rules",
		     &(struct odd){ .fast = "constant decay=.9 running=skip frozen=copy steps=skip",
				    .try = 4 });
	struct strict_file f;

	clear();
	RUN_IS(0, "export", step, out, "--only", "ema.fast");
	f = load(alone());
	assert_int_equal(f.ntensor, 3);
	expect(&f, "w", "ema.fast", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "frozen", "model", "frozen", CKPT_F32, CKPT_F32, 4);
	assert_null(strict_find(&f, "running"));
	strict_free(&f);
	remove_tree(out);
}

/* What is there of an average counts, whatever the rules say of its parameter's own record. */
TEST(a_frozen_parameter_with_a_master_is_averaged_and_an_empty_one_is_the_steps_own)
{
	const char *step = make("half", &(struct odd){ .half = true, .try = 20 });
	struct strict_file f;
	const struct strict_tensor *y;

	clear();
	RUN_IS(0, "export", step, out, "--only", "ema.fast");
	f = load(alone());
	assert_int_equal(f.ntensor, 7);
	expect(&f, "half", "ema.fast", "half", CKPT_F32, CKPT_F32, 6);
	y = strict_find(&f, "void");
	assert_true(y && y->begin == y->end && y->shape[1] == 4);
	strict_free(&f);
	remove_tree(out);
	RUN_IS(0, "ema", step, "--json");
	assert_json_has(json_kept(json_out("ckptd.ema/1")),
			"{'averages': [{'name': 'fast', 'tensor_count': 3, 'copied_count': 4}, "
			"{'name': 'slow'}]}");
	/* half by its master; void needs nothing. */
	RUN_IS(0, "plan", step, "--mesh", "fsdp=1", "--average", "constant decay=.999", "--json");
	assert_json(0, "ckptd.plan/1", "{'averages': [{'tensor_count': 3, 'bytes': 240}]}");
	RUN_IS(0, "plan", step, "--mesh", "fsdp=1", "--average", "constant decay=.999 source=param",
	       "--json");
	assert_json(0, "ckptd.plan/1", "{'averages': [{'tensor_count': 2, 'bytes': 216}]}");
}

/* A copy has the name of a tensor of the step: without one the model would have a gap. */
TEST(a_master_that_is_copied_for_a_parameter_that_nobody_declares_makes_no_model)
{
	const char *step = make("alone", &(struct odd){ .fast = "constant decay=.9 gone=copy",
							.copied_master = true,
							.try = 21 });

	clear();
	RUN_IS(7, "export", step, out, "--only", "ema.fast");
	assert_says(got.err, "ema.fast/gone: there is no such tensor");
	step = make("skipped", &(struct odd){ .fast = "constant decay=.9 gone=skip",
					      .copied_master = true,
					      .try = 22 });
	RUN_IS(0, "export", step, out, "--only", "ema.fast");
	remove_tree(out);
}

TEST(dtype_rounds_counts_what_overflows_and_refuses_what_it_cannot)
{
	const char *step = make("cast", &(struct odd){ .f64 = true, .try = 5 }), *bad;
	struct strict_file f;
	uint64_t over = 0, told;
	json_t *j;

	clear();
	/* The hand's elements reach 2^16: F16 ends below that. */
	(void)RUN("export", step, out, "--only", "ema.fast", "--dtype", "F16", "--json");
	f = load(alone());
	expect(&f, "w", "ema.fast", "w", CKPT_F32, CKPT_F16, 48);
	for (uint32_t i = 0; i < f.ntensor; i++)
		for (uint64_t k = f.tensor[i].begin;
		     k < f.tensor[i].end && !strcmp(f.tensor[i].dtype, "F16"); k += 2)
			over += (f.bytes[f.data + k + 1] & 0x7f) == 0x7c && !f.bytes[f.data + k];
	strict_free(&f);
	j = json_kept(json_out("ckptd.restore/1"));
	told = 0;
	for (size_t i = 0; i < count(j, "overflows"); i++)
		told += number(item(j, "overflows", i), "element_count");
	assert_int_equal(told, over);
	assert_true(over > 0);
	assert_int_equal(got.code, 3);
	assert_string_equal(string(j, "dtype"), "F16");
	assert_json_has(j, "{'only': [{'component': 'ema.fast', 'average': 'fast', 'updates': 3, "
			   "'tensor_count': 2, 'copied_count': 4, 'mixed': false}]}");
	remove_tree(out);
	bad = make("f8", &(struct odd){ .f8 = true, .try = 6 });
	RUN_IS(7, "export", bad, out, "--only", "model", "--dtype", "BF16");
	assert_says(got.err, "model/q: F8_E4M3");
	RUN_IS(0, "export", bad, out, "--only", "model");
	remove_tree(out);
}

/* --- the cast's count --- */

TEST(an_infinite_value_that_was_one_is_no_overflow)
{
	const float x[] = {
		1.0f, 65520.0f, 65519.0f, -70000.0f, INFINITY, -INFINITY, NAN, 3.4e38f
	};
	const double wide[] = { 1e39, INFINITY, 3e38, -1e300 };
	uint16_t half[8];
	float narrow[4];

	cast(CKPT_F32, x, CKPT_F16, half, 8);
	assert_int_equal(cast_overflows(CKPT_F32, x, CKPT_F16, half, 8), 3);
	cast(CKPT_F32, x, CKPT_BF16, half, 8);
	assert_int_equal(cast_overflows(CKPT_F32, x, CKPT_BF16, half, 8), 1);
	cast(CKPT_F64, wide, CKPT_F32, narrow, 4);
	assert_int_equal(cast_overflows(CKPT_F64, wide, CKPT_F32, narrow, 4), 2);
}

/* --- ema, show --- */

TEST(ema_lists_averages_their_chains_and_their_health)
{
	const char *step = make("list", &(struct odd){ .try = 7 });

	SHOWN_IS(0, "ema", step);
	RUN_IS(0, "ema", step, "--json");
	assert_json(
		0, "ckptd.ema/1",
		"{'step': 30, 'job': 'demo', 'average_bytes': 624, 'averages': ["
		"{'name': 'fast', 'component': 'ema.fast', 'schedule': 'constant decay=0.999 start=0 source=master', "
		"'updates': 3, 'since_step': 10, 'last_step': 30, 'lag_steps': 0, 'product': 0.25, "
		"'mixed': false, 'seeded': false, 'kahan': false, 'tensor_count': 2, "
		"'copied_count': 3, 'bytes': 216, 'carry_bytes': 0, "
		"'health': 'updates 3, lag 0, |p-e|/|e| 0.01 at most (model/w), far 0, NaN 0', 'rules': []}, "
		"{'name': 'slow', 'kahan': true, 'carry_bytes': 192, 'health': null}]}");
	SHOWN_IS(0, "show", step);
	RUN_IS(0, "show", step, "--json");
	assert_json(0, "ckptd.show/1",
		    "{'averages': [{'name': 'fast', 'updates': 3}, "
		    "{'name': 'slow', 'kahan': true}]}");
}

TEST(ema_says_what_is_wrong)
{
	const char *mixed = make("mixed", &(struct odd){ .mixed = true, .seeded = true, .try = 8 });
	const char *ill = make(
		"ill",
		&(struct odd){
			.health = "updates 3, lag 0, |p-e|/|e| 2.5 at most (model/w), far 1, NaN 0",
			.health_of_slow = "updates 3, lag 0, |p-e|/|e| not known",
			.try = 9 });
	const char *late = make("late", &(struct odd){ .last_step = 27, .try = 10 });
	const char *none = make("none", &(struct odd){ .none = true, .try = 11 });

	SHOWN_IS(3, "ema", mixed);
	assert_says(got.out, "mixed");
	SHOWN_IS(0, "show", mixed);
	RUN_IS(0, "show", mixed);
	assert_says(got.out, "parts with different chains");
	SHOWN_IS(3, "ema", ill);
	RUN_IS(0, "show", ill);
	assert_says(got.out, "its health is bad");
	SHOWN_IS(0, "ema", late);
	assert_says(got.out, "3 steps ago");
	SHOWN_IS(10, "ema", none);
	RUN_IS(10, "ema", none, "--json");
	assert_json_error(10);
	RUN_IS(10, "ema", path_of("%s/nowhere", top));
}

TEST(ema_and_show_say_what_was_left_out)
{
	const char *step = make("left", &(struct odd){ .updates = 97,
						       .left_out = "2 of 99",
						       .left_out_of_slow = "at least 0 of 3",
						       .try = 12 });

	SHOWN_IS(0, "ema", step);
	RUN_IS(0, "ema", step);
	assert_says(got.out, "left out: 2 of 99 steps");
	assert_says(got.out, "known of the newer ones only");
	RUN_IS(0, "ema", step, "--json");
	assert_json(0, "ckptd.ema/1",
		    "{'averages': [{'name': 'fast', 'updates': 97, 'left_out_count': 2, "
		    "'left_out_complete': true}, "
		    "{'name': 'slow', 'left_out_count': 0, 'left_out_complete': false}]}");
	RUN_IS(0, "show", step);
	assert_says(got.out, "left out: 2 of 99");
}

/* What contradicts the record, or is no such text, is not known, and never 0. */
TEST(what_was_left_out_is_believed_only_if_it_fits_the_record)
{
	static const char *const text[] = { "2 of 98",
					    "-1 of 96",
					    "2",
					    "",
					    " 2 of 99",
					    "2 of 99 ",
					    "99999999999999999999 of 99",
					    "at least 2 of 97" };

	for (size_t i = 0; i < ARRAY_LEN(text); i++) {
		const char *step =
			make(path_of("odd%zu", i), &(struct odd){ .updates = 97,
								  .left_out = text[i],
								  .try = 13 + (uint32_t)i });

		RUN_IS(0, "ema", step, "--json");
		assert_json(0, "ckptd.ema/1",
			    "{'averages': [{'name': 'fast', 'left_out_count': null, "
			    "'left_out_complete': null}, {}]}");
	}
}

TEST(a_health_is_bad_only_where_it_says_so)
{
	static const struct {
		const char *text;
		bool bad;
	} is[] = {
		{ NULL, false },
		{ "", false },
		{ GOOD_HEALTH, false },
		{ "updates 9, lag 7, |p-e|/|e| not known", false },
		{ "lag 0, far 1, NaN 0", true },
		{ "far 0, NaN 2", true },
		{ "Inf 1", true },
		{ "NaN 0, larger than its weights ever were in 4 (model/w)", true },
		{ "notfar 1", false },
		{ "far x", false },
		{ "farther 3", false },
	};

	for (size_t i = 0; i < ARRAY_LEN(is); i++)
		if (averages_health_is_bad(is[i].text) != is[i].bad)
			fail_msg("\"%s\"", is[i].text);
	assert_int_equal(averages_health_count("updates 1, lag 12, far 0", "lag"), 12);
	assert_int_equal(averages_health_count("lag 12x", "lag"), UINT64_MAX);
}

/* --- the other verbs --- */

TEST(a_bare_name_means_the_weights)
{
	const char *step = make("bare", &(struct odd){ .try = 12 });

	RUN_IS(0, "show", step, "w", "--json");
	assert_json(0, "ckptd.show/1", "{'tensors': [{'component': 'model', 'name': 'w'}]}");
	RUN_IS(0, "show", step, "ema.fast/w", "--json");
	assert_json(0, "ckptd.show/1",
		    "{'tensors': [{'component': 'ema.fast', 'role': 'average'}]}");
	RUN_IS(0, "cat", step, "ema.fast/w", "--stats");
	RUN_IS(0, "cat", step, "w", "--stats");
}

TEST(verify_reads_averages)
{
	const char *step = make("verify", &(struct odd){ .try = 13 });
	char name[PATH_MAX];

	RUN_IS(0, "verify", "--data", step);
	snprintf(name, sizeof name, "%s", part(step, 1)); /* w0000-...-000 or -001 */
	for (uint32_t i = 0; i < 4; i++) {
		snprintf(name, sizeof name, "%s", part(step, i));
		flip(name, 4096 + 3);
		RUN_IS(4, "verify", "--data", step);
		flip(name, 4096 + 3);
	}
	RUN_IS(0, "verify", "--data", step);
	RUN_IS(0, "stats", step);
	RUN_IS(0, "show", "--files", step);
}

/* Whatever the records of AVERAGES say, every verb says it, or refuses it, and ends. */
static void read_by_all(const char *step, const char *other)
{
	static const char *const verb[] = { "ema", "show", "stats", "ls", "verify" };
	const char *copy = path_of("%s/copy", top);

	for (uint32_t i = 0; i < ARRAY_LEN(verb); i++) {
		(void)RUN(verb[i], step);
		assert_in_range(got.code, 0, 15);
		assert_null(strchr(got.out, '\x1b'));
		(void)RUN(verb[i], step, "--json");
		assert_in_range(got.code, 0, 15);
		if (i < 2) /* all of it is JSON */
			(void)json_kept(json_out(i ? "ckptd.show/1" : "ckptd.ema/1"));
	}
	(void)RUN("diff", step, other);
	assert_in_range(got.code, 0, 15);
	(void)RUN("diff", other, step, "--json");
	assert_in_range(got.code, 0, 15);
	(void)RUN("plan", step, "--mesh", "fsdp=3", "--average", "uniform");
	assert_in_range(got.code, 0, 15);
	clear();
	(void)RUN("export", step, out, "--only", "ema.fast", "--only", "ema.slow");
	assert_in_range(got.code, 0, 15);
	clear();
	(void)RUN("export", step, out, "--mesh", "fsdp=3");
	assert_int_equal(got.code, 0);
	clear();
	(void)RUN("convert", step, copy, "--mesh", "fsdp=3");
	assert_int_equal(got.code, 0);
	(void)RUN("ema", copy);
	assert_in_range(got.code, 0, 15);
	remove_tree(copy);
}

TEST(records_of_averages_that_make_no_sense_are_said_or_refused_by_every_verb)
{
	char rule[EMA_SPEC_BYTES] = "constant decay=0.9 start=0 source=master ",
	     noise[EMA_SPEC_BYTES];
	const char *good = make("sense", &(struct odd){ .try = 30 });

	for (size_t n = strlen(rule); n + 8 < sizeof rule; n = strlen(rule))
		snprintf(rule + n, sizeof rule - n, "a=skip ");
	memset(noise, '\\', sizeof noise - 1);
	noise[sizeof noise - 1] = 0;
	const struct odd odd[] = {
		{ .schedule = rule },
		{ .schedule = noise },
		{ .schedule = "\n\x1b[31mred \"quoted\" %s%n" },
		{ .schedule = "constant   decay=9e-1" }, /* not canonical */
		{ .schedule = "x" },
		{ .product = NAN },
		{ .product = -INFINITY },
		{ .product = 1e308 },
		{ .last_step = 31 }, /* of the future */
		{ .last_step = UINT64_MAX },
		{ .last_step = UINT64_MAX - 1 },
		{ .last_step = 3 }, /* before since */
		{ .updates = UINT64_MAX, .flags = AVERAGE_KAHAN | AVERAGE_MIXED | AVERAGE_SEEDED },
		{ .health = "far 99999999999999999999999, NaN -1, \x1b[2J, Inf 1" },
		{ .nrow = TABLE_AVERAGES_MAX - 2 },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(odd); i++) {
		struct odd x = odd[i];

		x.try = 31 + i;
		read_by_all(make("senseless", &x), good);
		remove_tree(path_of("%s/senseless", top));
	}
}

TEST(plan_counts_the_memory_of_averages)
{
	const char *step = make("plan", &(struct odd){ .f8 = true, .try = 19 });

	/* w has 48 elements, b 6. */
	SHOWN_IS(0, "plan", step, "--mesh", "fsdp=2", "--average", "constant decay=.999",
		 "--average", "uniform kahan w=skip");
	RUN_IS(0, "plan", step, "--mesh", "fsdp=2", "--average", "constant decay=.999", "--average",
	       "uniform kahan w=skip", "--json");
	assert_json(0, "ckptd.plan/1",
		    "{'averages': [{'schedule': 'constant decay=0.999 start=0 source=master', "
		    "'tensor_count': 2, 'bytes': 216}, "
		    "{'tensor_count': 1, 'bytes': 48, 'rank_bytes_max': 48}]}");
	/* On one rank all of it is that one's. */
	RUN_IS(0, "plan", step, "--mesh", "fsdp=1", "--average", "constant decay=.999", "--json");
	assert_json(0, "ckptd.plan/1", "{'averages': [{'bytes': 216, 'rank_bytes_max': 216}]}");
	RUN_IS(0, "plan", step, "--mesh", "fsdp=1", "--json");
	assert_json(0, "ckptd.plan/1", "{'averages': []}");
	RUN_IS(2, "plan", step, "--mesh", "fsdp=2", "--average", "constant");
	RUN_IS(2, "plan", step, "--mesh", "fsdp=2", "--average", "constant decay=1.5");
	assert_says(got.err, "decay");
	RUN_IS(2, "plan", step, "--mesh", "fsdp=2", "--average", "nonsense decay=.5");
	RUN_IS(7, "plan", step, "--mesh", "fsdp=2", "--average", "constant decay=.9 q=average");
	assert_says(got.err, "model/q: F8_E4M3");
}

TEST(export_only_needs_only_what_it_writes)
{
	const char *step = make("hurt", &(struct odd){ .try = 20 });
	json_t *j;

	clear();
	/* Part 0 is rank 0's averages: the first piece of ema.fast/w lies in front. */
	flip(part(step, 0), 4096 + 3);
	RUN_IS(0, "export", step, out, "--only", "model");
	clear();
	RUN_IS(4, "export", step, out, "--only", "ema.fast");
	assert_false(exists(out));
	RUN_IS(3, "export", step, out, "--only", "ema.fast", "--keep-going", "--json");
	j = json_kept(json_out("ckptd.restore/1"));
	assert_true(count(j, "left_out") >= 1);
	assert_says(string(item(j, "left_out", 0), "tensor"), "ema.fast/");
	clear();
}

TEST(components_are_offered_behind_only)
{
	const char *step = make("offered", &(struct odd){ .try = 21 });

	RUN_IS(0, "completion", "complete", "--", "export", step, "--only", "ema.f");
	assert_string_equal(got.out, "ema.fast\n");
	RUN_IS(0, "completion", "complete", "--", "export", step, "--dtype=B");
	assert_string_equal(got.out, "--dtype=BF16\n");
}

/* --- to another mesh, and back --- */

/* The tensors of a step, averages among them, hold what the hand wrote. */
static void check_step(const char *step)
{
	struct strict_file f;

	clear();
	RUN_IS(0, "verify", "--data", step);
	RUN_IS(0, "export", step, out, "--mesh", "x=1");
	f = load(path_of("%s/rank-00000.safetensors", out));
	assert_int_equal(f.ntensor, 11);
	expect(&f, "model/w", "model", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "model/steps", "model", "steps", CKPT_I64, CKPT_I64, 1);
	expect(&f, "ema.fast/w", "ema.fast", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "ema.fast/b", "ema.fast", "b", CKPT_F32, CKPT_F32, 6);
	expect(&f, "ema.slow/w", "ema.slow", "w", CKPT_F32, CKPT_F32, 48);
	expect(&f, "ema.slow/b", "ema.slow", "b", CKPT_F32, CKPT_F32, 6);
	expect(&f, "ema.slow.carry/w", "ema.slow.carry", "w", CKPT_F32, CKPT_F32, 48);
	strict_free(&f);
	clear();
}

/* Parts of averages that it has. */
static uint32_t average_parts(const char *step)
{
	json_t *j = json_run("ckptd.show/1", "show", step, "--json");
	uint32_t n = 0;

	for (size_t i = 0; i < count(j, "parts"); i++)
		n += !strcmp(string(item(j, "parts", i), "kind"), "average");
	return n;
}

TEST(convert_takes_averages_to_another_mesh_with_their_chains)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=2", "fsdp=3", "fsdp=8", "dp=2,fsdp=2" };
	const char *step = make("convert", &(struct odd){ .seeded = true, .try = 14 });
	char *to = place("converted"), *back = place("back");

	check_step(step);
	for (size_t i = 0; i < ARRAY_LEN(mesh); i++) {
		RUN_IS(0, "convert", step, to, "--mesh", mesh[i], "--replicate", dims_of(mesh[i]));
		check_step(to);
		assert_in_range(average_parts(to), 1, 8);
		RUN_IS(0, "ema", to, "--json");
		assert_json(0, "ckptd.ema/1",
			    "{'averages': [{'name': 'fast', 'updates': 3, 'since_step': 10, "
			    "'last_step': 30, 'product': 0.25, 'seeded': true, "
			    "'history': 'abcd030e000000000000000000000000', 'copied_count': 3}, "
			    "{'name': 'slow', 'kahan': true}]}");
		RUN_IS(0, "diff", step, to);
		RUN_IS(0, "diff", step, to, "--values");
		/* In little memory: several batches. */
		RUN_IS(0, "convert", to, back, "--mesh", "fsdp=2", "--mem-limit", "64M");
		check_step(back);
		remove_tree(to);
		remove_tree(back);
	}
}

/* What --only leaves out has no part, be it the average or the model. */
TEST(convert_only_leaves_averages_out)
{
	static const char *const only[] = { "model/*", "ema.*", "*" };
	const char *step = make("convert_only", &(struct odd){ .seeded = true, .try = 14 });

	for (uint32_t i = 0; i < ARRAY_LEN(only); i++) {
		const char *to = path_of("%s/only-%u", top, i);

		RUN_IS(0, "convert", step, to, "--mesh", "fsdp=2", "--only", only[i]);
		RUN_IS(0, "verify", to, "--data");
		assert_int_equal(average_parts(to) > 0, i > 0);
		assert_int_equal(RUN("show", to, "--tensors", "ema.*"), i ? 0 : CLI_MISSING);
		assert_int_equal(RUN("show", to, "--tensors", "model/*"), i != 1 ? 0 : CLI_MISSING);
	}
}

/* Its record goes with the last of its tensors. */
TEST(an_average_of_which_nothing_is_converted_is_not_in_the_result)
{
	const char *step = make("convert_one", &(struct odd){ .seeded = true, .try = 14 });
	const char *to = place("one"), *back = place("one_on_two");
	const char *drop = path_of("%s/drop", top);

	RUN_IS(0, "convert", step, to, "--mesh", "fsdp=2", "--only", "model/*");
	RUN_IS(CLI_MISSING, "ema", to);
	RUN_IS(0, "verify", to, "--data");
	remove_tree(to);
	RUN_IS(0, "convert", step, to, "--mesh", "fsdp=2", "--only", "model/*", "--only",
	       "ema.slow/*");
	RUN_IS(0, "ema", to, "--json");
	assert_json(0, "ckptd.ema/1", "{'averages': [{'name': 'slow', 'kahan': true}]}");
	assert_int_equal(count(json_kept(json_out("ckptd.ema/1")), "averages"), 1);
	RUN_IS(0, "verify", to, "--data");
	RUN_IS(0, "convert", to, back, "--mesh", "fsdp=3");
	RUN_IS(0, "diff", to, back, "--values");
	remove_tree(to);
	spill(drop, "drop ema.slow/*\ndrop ema.slow.carry/*\n");
	RUN_IS(0, "convert", step, to, "--mesh", "fsdp=2", "--view", drop);
	RUN_IS(0, "ema", to, "--json");
	assert_json(0, "ckptd.ema/1", "{'averages': [{'name': 'fast', 'updates': 3}]}");
	assert_int_equal(count(json_kept(json_out("ckptd.ema/1")), "averages"), 1);
}

TEST(repair_makes_the_manifest_of_averages_anew)
{
	const char *job = line(place("mend"), "demo", 1), *step;

	step = step_path(job, 30);
	make_at(step, &(struct odd){ .mixed = true, .try = 15 });
	RUN_IS(0, "verify", "--data", step);
	assert_int_equal(unlink(path_of("%s/MANIFEST", step)), 0);
	RUN("verify", step);
	assert_int_not_equal(got.code, 0);
	RUN_IS(0, "repair", "--yes", step);
	check_step(step);
	RUN("ema", step, "--json");
	assert_json(3, "ckptd.ema/1",
		    "{'averages': [{'name': 'fast', 'mixed': true, 'health': null}, {}]}");
}

TEST(diff_compares_averages_as_tensors_and_says_when_chains_differ)
{
	const char *a = make("diff-a", &(struct odd){ .try = 16 });
	const char *b = make("diff-b", &(struct odd){ .try = 16 });
	const char *other = make("diff-c", &(struct odd){ .try = 17 });
	const char *none = make("diff-d", &(struct odd){ .none = true, .try = 18 });

	RUN_IS(0, "diff", a, b);
	assert_silent(got.out, "chains");
	assert_silent(got.out, "verage");
	/* The same bytes, whatever chain they came from, are no difference; that is told all the
	 * same. */
	SHOWN_IS(0, "diff", a, other);
	assert_says(got.out, "different chains");
	RUN_IS(0, "diff", a, other, "--json");
	assert_json(
		0, "ckptd.diff/1",
		"{'equal': true, 'averages': [{'name': 'fast', 'rule': 0, 'in_a': true, 'in_b': true, "
		"'same_chain': false}, {'name': 'slow', 'rule': 0, 'same_chain': false}]}");
	SHOWN_IS(6, "diff", a, none);
	RUN_IS(6, "diff", none, a, "--json");
	assert_json(6, "ckptd.diff/1",
		    "{'averages': [{'in_a': false, 'in_b': true, 'same_chain': null}, {}]}");
}

UNIT(.group_setup = make_out, .group_teardown = drop_all);
