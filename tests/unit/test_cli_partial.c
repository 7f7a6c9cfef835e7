/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_partial.c - ckptctl on a checkpoint whose tensors are pending maxima over dp, every
 * operand of which is what the sample model holds: so they are the sample's tensors, reduced.
 */
#include "tests/lib/cli_rig.h"

static const char *pending, *plain; /* the same step of the same model */

/* And keeps its bits, NaNs included: 16-bit floats go by F32, which quiets them. */
static bool has_maximum(const struct table_tensor *x)
{
	return x->layout != TABLE_NONE &&
	       (x->dtype == CKPT_F32 || x->dtype == CKPT_F64 || x->dtype == CKPT_I64);
}

/* No file of a rank can hold complex numbers: they are not stored. */
static void declare_stored(struct table *t)
{
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].dtype == CKPT_C128)
			t->tensor[i].cls = CKPT_SINK;
}

/* Every tensor that has a maximum is declared as one that is pending over dp. */
static void declare_pending(struct table *t)
{
	uint32_t n = t->nlayout, to[64];

	assert_true(n <= ARRAY_LEN(to));
	declare_stored(t);
	t->sealed = false;
	for (uint32_t i = 0; i < n; i++) {
		struct layout from = t->layout[i];
		struct ckpt_placement p[CKPT_DIMS_MAX];
		uint32_t k = 0;

		assert_string_equal(t->mesh[from.mesh].name[0], "dp");
		for (uint32_t d = 0; d < from.nplace; d++)
			if (from.place[d].mesh_dim)
				p[k++] = from.place[d];
		p[k++] = (struct ckpt_placement){ .how = CKPT_PARTIAL,
						  .reduce = CKPT_MAX,
						  .flags = CKPT_KEEP_PARTIAL };
		from.place = p;
		from.nplace = k;
		assert_int_equal(table_add_layout(t, &from, &to[i], NULL), 0);
	}
	t->sealed = true;
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (has_maximum(&t->tensor[i]))
			t->tensor[i].layout = to[t->tensor[i].layout];
}

static int make_pending(void **state)
{
	const struct how a = { "pending", "dp=2,fsdp=2", 25, 1, UINT64_MAX, UINT64_MAX, false },
			 b = { "plain", "dp=2,fsdp=2", 25, 1, UINT64_MAX, UINT64_MAX, false };
	int e = make_all(state);

	declare = declare_pending;
	make_step(work, &a);
	declare = declare_stored;
	make_step(work, &b);
	declare = NULL;
	pending = strdup(step_path(path_of("%s/pending", work), 25));
	plain = strdup(step_path(path_of("%s/plain", work), 25));
	return e;
}

static uint32_t count_pending(void)
{
	uint32_t n = 0;
	struct sample s;

	assert_int_equal(sample_make("dp=2,fsdp=2", 0, SEED, 1, &s), 0);
	for (uint32_t i = 0; i < s.decl.ntensor; i++)
		n += has_maximum(&s.decl.tensor[i]);
	sample_free(&s);
	assert_true(n > 2);
	return n;
}

TEST(it_is_shown_and_every_operand_is_verified)
{
	uint64_t copies[2];

	RUN_IS(0, "show", pending);
	RUN_IS(0, "show", pending, "--tensors", "*", "--json");
	assert_says(got.out, "Partial(max, keep)@dp");
	RUN_IS(0, "verify", pending, "--data");
	RUN_IS(0, "verify", pending);
	SHOWN_IS(0, "show", pending, "--map", "model/head.bias");
	SHOWN_IS(0, "show", plain, "--map", "model/head.bias");
	/* Operands are no copies of each other. */
	for (uint32_t i = 0; i < 2; i++) {
		json_t *j;

		RUN_IS(0, "stats", i ? plain : pending, "--json");
		j = json_out("ckptd.stats/1");
		copies[i] = number(j, "replicated_bytes");
		json_decref(j);
	}
	assert_true(copies[0] < copies[1]);
}

TEST(what_is_converted_holds_what_comes_of_the_operands)
{
	const char *dst[] = { "fsdp=3", "dp=2,fsdp=2", "dp=1" };
	json_t *j;

	for (uint32_t i = 0; i < ARRAY_LEN(dst); i++) {
		const char *to = path_of("%s/converted-%u", top, i);

		RUN_IS(0, "convert", pending, to, "--mesh", dst[i], "--json");
		j = json_out("ckptd.convert/1");
		assert_true(number(j, "compared_tensor_count") < 23);
		json_decref(j);
		/* All fingerprints are those of the model that was never pending. */
		RUN_IS(0, "diff", plain, to);
		RUN_IS(0, "verify", to, "--data");
	}
	SHOWN_IS(0, "convert", pending, path_of("%s/told", top), "--mesh", "fsdp=2");
	RUN_IS(0, "convert", pending, path_of("%s/small", top), "--mesh", "fsdp=2", "--mem-limit",
	       "40M");
	RUN_IS(0, "diff", plain, path_of("%s/small", top));
}

/* The command has refused a reduction, and nothing else. */
static void is_refused(const char *to)
{
	assert_says(got.err, ": reduce, ");
	assert_says(got.err, "--allow reduce permits");
	assert_false(exists(to));
}

/* Nobody asked for it, unless a rule says what a tensor is to be; on the same mesh as on
 * another. */
TEST(a_reduction_that_nobody_asked_for_is_refused_with_its_price)
{
	static const char *const mesh[] = { "dp=2,fsdp=2", "fsdp=2" };
	static const char rest[] = "reshard,cast,replicate,drop,cut";
	const char *to = path_of("%s/explicit", top);

	for (uint32_t i = 0; i < ARRAY_LEN(mesh); i++) {
		RUN_IS(7, "convert", pending, to, "--mesh", mesh[i], "--explicit", "--allow", rest);
		is_refused(to);
		RUN_IS(7, "export", pending, to, "--mesh", mesh[i], "--explicit", "--allow", rest,
		       "--drop-unsupported");
		is_refused(to);
		RUN_IS(7, "plan", pending, "--mesh", mesh[i], "--explicit", "--allow", rest);
		is_refused(to);
	}
	RUN_IS(0, "convert", pending, to, "--mesh", "fsdp=2", "--explicit", "--allow",
	       "reduce,reshard");
	RUN_IS(0, "diff", plain, to);
	remove_tree(to);
}

static uint64_t data_of(const char *path, uint8_t *ret, uint64_t cap)
{
	int fd = open(path, O_RDONLY);
	ssize_t n;
	le64 head;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &head, sizeof head, 0), sizeof head);
	n = pread(fd, ret, cap, (off_t)(sizeof head + le64_get(head)));
	assert_true(n > 0 && (uint64_t)n < cap);
	close(fd);
	return (uint64_t)n;
}

TEST(what_is_restored_and_printed_is_what_comes_of_the_operands)
{
	const uint64_t cap = 64 << 20;
	uint8_t *a = malloc(cap), *b = malloc(cap);
	uint8_t printed[12];

	assert_true(a && b);
	RUN_IS(0, "export", pending, path_of("%s/ra", top), "--mesh", "fsdp=3");
	RUN_IS(0, "export", plain, path_of("%s/rb", top), "--mesh", "fsdp=3");
	for (uint32_t r = 0; r < 3; r++) {
		uint64_t n = data_of(path_of("%s/ra/rank-%05u.safetensors", top, r), a, cap);

		assert_int_equal(data_of(path_of("%s/rb/rank-%05u.safetensors", top, r), b, cap),
				 n);
		assert_memory_equal(a, b, n);
	}
	free(a);
	free(b);
	for (uint32_t i = 0; i < 2; i++) {
		RUN_IS(0, "cat", i ? plain : pending, "model/head.bias");
		assert_int_equal(got.out_len, 12);
		if (i)
			assert_memory_equal(printed, got.out, 12);
		memcpy(printed, got.out, 12);
	}
}

/* Of one rank only some parts are opened: all operands of what it holds, or it is refused. */
TEST(one_rank_gets_all_operands_or_nothing)
{
	const uint64_t cap = 64 << 20;
	uint8_t *a = malloc(cap), *b = malloc(cap);
	cleanup_free char *some = strdup(path_of("%s/one", top));
	uint32_t good = 0, bad = 0;
	DIR *d;

	assert_true(a && b);
	RUN_IS(0, "export", plain, path_of("%s/oall", top), "--mesh", "fsdp=2");
	d = opendir(pending);
	for (struct dirent *e; (e = readdir(d));) {
		if (!strstr(e->d_name, ".part"))
			continue;
		copy_step(pending, some);
		assert_int_equal(unlink(path_of("%s/%s", some, e->d_name)), 0);
		for (uint32_t r = 0; r < 2; r++) {
			int code = RUN("export", some, path_of("%s/oone", top), "--mesh", "fsdp=2",
				       "--rank", r ? "1" : "0");
			uint64_t n;

			if (code == CLI_CORRUPT) {
				bad++;
				continue;
			}
			assert_int_equal(code, 0);
			good++;
			n = data_of(path_of("%s/oone/rank-%05u.safetensors", top, r), a, cap);
			assert_int_equal(
				data_of(path_of("%s/oall/rank-%05u.safetensors", top, r), b, cap),
				n);
			assert_memory_equal(a, b, n);
			remove_tree(path_of("%s/oone", top));
		}
		remove_tree(some);
	}
	closedir(d);
	printf("%u good, %u bad\n", good, bad);
	assert_int_equal(good + bad, 8);
	assert_true(bad >= 4); /* both operands, of either shard */
	for (uint32_t r = 0; r < 2; r++) {
		uint64_t n;

		RUN_IS(0, "export", pending, path_of("%s/oone", top), "--mesh", "fsdp=2", "--rank",
		       r ? "1" : "0");
		n = data_of(path_of("%s/oone/rank-%05u.safetensors", top, r), a, cap);
		assert_int_equal(data_of(path_of("%s/oall/rank-%05u.safetensors", top, r), b, cap),
				 n);
		assert_memory_equal(a, b, n);
	}
	remove_tree(path_of("%s/oone", top));
	remove_tree(path_of("%s/oall", top));
	free(a);
	free(b);
}

TEST(diff_tells_operands_from_what_comes_of_them)
{
	uint32_t n = count_pending();
	json_t *j;

	RUN_IS(0, "diff", pending, pending);
	SHOWN_IS(6, "diff", pending, plain);
	RUN_IS(6, "diff", pending, plain, "--values", "--json");
	j = json_out("ckptd.diff/1");
	assert_int_equal(number(member(j, "counts", JSON_OBJECT), "operands"), n);
	assert_int_equal(number(member(j, "counts", JSON_OBJECT), "contents"), 0);
	for (uint32_t i = 0; i < n; i++) {
		const json_t *x = item(j, "differences", i);

		assert_string_equal(string(x, "kind"), "operands");
		assert_int_equal(number(member(x, "values", JSON_OBJECT), "bits_differ_count"), 0);
	}
	json_decref(j);
}

TEST(plan_counts_all_operands_as_read_and_what_is_held_once)
{
	uint64_t held[2], read[2];

	for (uint32_t i = 0; i < 2; i++) {
		json_t *j;

		RUN_IS(0, "plan", i ? plain : pending, "--mesh", "fsdp=2", "--json");
		j = json_out("ckptd.plan/1");
		held[i] = number(j, "held_bytes");
		read[i] = number(j, "read_bytes");
		json_decref(j);
	}
	assert_int_equal(held[0], held[1]);
	assert_true(read[0] > read[1] * 5 / 4);
}

TEST(an_operand_whose_part_is_lost_is_missed)
{
	const char *copy = path_of("%s/lost", top);
	DIR *d;

	copy_step(pending, copy);
	d = opendir(copy);
	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));)
		if (!strncmp(e->d_name, "w0003", 5))
			assert_int_equal(unlinkat(dirfd(d), e->d_name, 0), 0);
	closedir(d);
	SHOWN_IS(4, "export", copy, path_of("%s/rc", top), "--mesh", "fsdp=3");
	assert_int_not_equal(access(path_of("%s/rc/rank-00000.safetensors", top), F_OK), 0);
}

TEST(a_rule_makes_no_pending_reduction)
{
	const char *rules = path_of("%s/rules.txt", top);
	FILE *f = fopen(rules, "w");

	assert_non_null(f);
	fputs("*  Partial(sum)@fsdp\n", f);
	fclose(f);
	SHOWN_IS(2, "plan", plain, "--mesh", "fsdp=2", "--layout", rules);
}

UNIT(.group_setup = make_pending, .group_teardown = drop_all);
