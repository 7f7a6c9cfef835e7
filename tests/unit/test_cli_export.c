/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_export.c - ckptctl export: every element of every rank's file on many meshes against
 * the sample's truth, read by a reader that is not ours; and that after whatever goes wrong the
 * directory is as it was.
 */
#include "tests/lib/cli_rig.h"
#include <sys/resource.h>
#include <sys/wait.h>
#include "ckpt/move/cast.h"
#include "ckpt/engine/convert.h"
#include "ckpt/cli/subject.h"
#include "ckpt/table/target.h"
#include "tests/lib/handmade.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/row.h"
#include "tests/lib/strict_safetensors.h"

/* plain is a store like work, whose tensors safetensors can hold: a job per mesh, step 7. */
static const char *const sources[] = { "fsdp=4", "fsdp=2,tp=2", "pp=2,fsdp=2", "dp=2,fsdp=2" };
static char plain[PATH_MAX];
static char in[PATH_MAX], out[PATH_MAX]; /* the step of sources[0]; not there between tests */
#define STEP 7

static bool is_cut(const struct table *t, const struct table_tensor *x)
{
	const struct layout *l = x->layout == TABLE_NONE ? NULL : &t->layout[x->layout];

	return l && l->nplace && l->place[0].how == CKPT_SHARD && x->dtype != CKPT_C128;
}

static void declare_cut(struct table *t)
{
	declare_some(t, is_cut);
}

static const char *step_of(size_t source)
{
	return path_of("%s/job%zu/step-%012d", plain, source, STEP);
}

static int make_plain(void **state)
{
	char job[8];

	if (make_all(state))
		return -1;
	snprintf(plain, sizeof plain, "%s/plain", top);
	assert_int_equal(mkdir(plain, 0700), 0);
	declare = declare_plain;
	for (size_t i = 0; i < ARRAY_LEN(sources); i++) {
		snprintf(job, sizeof job, "job%zu", i);
		make_step(plain,
			  &(struct how){ job, sources[i], STEP, 1, UINT64_MAX, UINT64_MAX, false });
	}
	declare = NULL;
	snprintf(in, sizeof in, "%s", step_of(0));
	snprintf(out, sizeof out, "%s/out", top);
	return 0;
}

static const char *file_of(const char *dir, uint32_t rank)
{
	return path_of("%s/rank-%05u.safetensors", dir, rank);
}

static struct strict_file must_load(const char *path)
{
	struct strict_file f;
	char why[200];

	if (!strict_load(path, &f, why))
		fail_msg("%s: %s", path, why);
	return f;
}

static bool same_file(const char *a, const char *b)
{
	struct strict_file x = must_load(a), y = must_load(b);
	bool same = x.len == y.len && !memcmp(x.bytes, y.bytes, x.len);

	strict_free(&x);
	strict_free(&y);
	return same;
}

/* --- what is in the files --- */

/* The tensor's entry and bytes. piece: what the rank holds of it; NULL: nothing, if it is there. */
static void check_tensor(const struct strict_file *f, const struct table *t, uint32_t tensor,
			 const struct table_piece *piece, const char *key)
{
	const struct table_tensor *x = &t->tensor[tensor];
	const struct strict_tensor *y = strict_find(f, key);
	uint64_t bytes = piece ? piece->set.numel * x->elem_bytes : 0;
	uint8_t *truth = malloc(bytes + 1);

	if (!y)
		fail_msg("there is no %s", key);
	assert_string_equal(y->dtype, dtype_name(x->dtype));
	assert_int_equal(y->ndim, x->ndim);
	assert_int_equal(y->end - y->begin, bytes);
	if (piece) {
		for (uint32_t d = 0; d < x->ndim; d++)
			assert_int_equal(y->shape[d], piece->set.dim[d].total);
		sample_piece(SEED, t, piece, STEP, truth);
		if (memcmp(truth, f->bytes + f->data + y->begin, bytes))
			fail_msg("%s has other elements than the sample", key);
	}
	free(truth);
}

/* A file against what the rank holds by target.h. Returns how many of its tensors are empty. */
static uint32_t check_file(const char *path, const struct table *target, uint32_t rank)
{
	struct strict_file f;
	struct table t;
	char why[200], key[300];
	uint32_t seen = 0, empty = 0;

	if (!strict_load(path, &f, why))
		fail_msg("%s: %s", path, why);
	assert_int_equal(target_rank(target, rank, &t, NULL), 0);
	for (uint32_t i = 0; i < t.ntensor; i++) {
		const struct table_tensor *x = &t.tensor[i];
		bool has = t.first[i] < t.first[i + 1];

		if (x->rank != TABLE_NONE && x->rank % target_world(target) != rank)
			continue;
		snprintf(key, sizeof key, "%s/%s", x->component, x->name);
		if (x->rank != TABLE_NONE && x->rank != rank)
			snprintf(key + strlen(key), 32, "/rank-%05u", x->rank);
		if (!has && !strict_find(&f, key))
			continue;
		check_tensor(&f, &t, i, has ? &t.piece[t.first[i]] : NULL, key);
		seen++;
		empty += !has;
	}
	assert_int_equal(seen, f.ntensor);
	assert_string_equal(strict_meta(&f, "format"), "pt");
	assert_int_equal(strtoul(strict_meta(&f, "rank"), NULL, 10), rank);
	assert_string_equal(strict_meta(&f, "step"), "7");
	table_free(&t);
	strict_free(&f);
	return empty;
}

/* Which mesh, onto which: the target's own tests say that its shares are right. */
static uint32_t check_files(const char *dir, size_t source, const char *mesh)
{
	struct subject s;
	struct table target;
	uint32_t empty = 0, world;

	assert_int_equal(subject_find(&s, &io_ops_posix, ".", step_of(source), NULL, NULL), 0);
	assert_int_equal(subject_open(&s, NULL, NULL, NULL), 0);
	assert_int_equal(target_make(&s.ckpt->table, mesh, NULL, 0, &target, NULL, NULL, NULL), 0);
	world = target_world(&target);
	assert_int_equal(entries(dir), world);
	for (uint32_t r = 0; r < world; r++)
		empty += check_file(file_of(dir, r), &target, r);
	table_free(&target);
	subject_close(&s);
	return empty;
}

TEST(every_rank_of_every_mesh_gets_its_elements)
{
	static const char *const meshes[] = { "fsdp=1",	     "fsdp=3",	    "fsdp=4", "fsdp=7",
					      "fsdp=40",     "dp=2,fsdp=3", "tp=2",   "fsdp=3,tp=2",
					      "pp=2,fsdp=2", "pp=3,tp=2",   "new=2" };
	uint32_t empty = 0;

	for (size_t i = 0; i < ARRAY_LEN(sources); i++)
		for (size_t m = 0; m < ARRAY_LEN(meshes); m++) {
			/* All of them from the first, each from one or two of the others. */
			if (i && (m + i) % 2)
				continue;
			if (RUN("export", step_of(i), out, "--mesh", meshes[m], "-q", "--replicate",
				dims_of(meshes[m])))
				fail_msg("%s to %s: %s", sources[i], meshes[m], got.err);
			empty += check_files(out, i, meshes[m]);
			remove_tree(out);
		}
	/* The sample has tensors of a few rows: 40 shards of them must have been empty. */
	assert_true(empty > 100);
}

/* Without target.h: on a mesh that the sample knows the files are the memory of its ranks. */
TEST(files_are_the_memory_of_ranks_of_such_a_mesh)
{
	static const struct {
		size_t source;
		const char *mesh;
	} how[] = { { 0, "fsdp=3" },	  { 0, "fsdp=8" },	{ 1, "fsdp=2,tp=2" },
		    { 1, "fsdp=4,tp=2" }, { 2, "pp=2,fsdp=1" }, { 3, "dp=1,fsdp=5" } };

	for (size_t i = 0; i < ARRAY_LEN(how); i++) {
		struct sample s;
		uint32_t world = 1;

		RUN_IS(0, "export", step_of(how[i].source), out, "--mesh", how[i].mesh);
		for (uint32_t r = 0; r < world; r++) {
			struct strict_file f;
			char key[300];

			assert_int_equal(sample_make(how[i].mesh, r, SEED, 1, &s), 0);
			declare_plain(&s.decl);
			world = s.world;
			f = must_load(file_of(out, r));
			for (uint32_t t = 0; t < s.decl.ntensor; t++) {
				const struct table_tensor *x = &s.decl.tensor[t];
				uint32_t at = s.decl.first[t];

				if (x->flags & TENSOR_BLOB)
					continue;
				snprintf(key, sizeof key, "%s/%s", x->component, x->name);
				if (at < s.decl.first[t + 1])
					check_tensor(&f, &s.decl, t, &s.decl.piece[at], key);
			}
			strict_free(&f);
			sample_free(&s);
		}
		remove_tree(out);
	}
}

TEST(the_same_files_come_out_of_little_memory)
{
	const char *big = path_of("%s/big", top), *little = path_of("%s/little", top);
	char text[32];

	snprintf(text, sizeof text, "%u", CONVERT_MEM_MIN);
	RUN_IS(0, "export", in, big, "--mesh", "dp=2,fsdp=3", "--replicate", "dp", "--mem-limit",
	       "2G");
	RUN_IS(0, "export", in, little, "--mesh", "dp=2,fsdp=3", "--replicate", "dp", "--mem-limit",
	       text);
	for (uint32_t r = 0; r < 6; r++)
		assert_true(same_file(file_of(big, r), file_of(little, r)));
	remove_tree(big);
	remove_tree(little);
	RUN_IS(CLI_USAGE, "export", in, big, "--mesh", "fsdp=3", "--mem-limit", "1K");
	assert_false(exists(big));
}

TEST(few_descriptors_make_batches_with_the_same_files)
{
	const char *all = path_of("%s/all", top), *few = path_of("%s/few", top);
	struct rlimit was, low;

	RUN_IS(0, "export", in, all, "--mesh", "fsdp=11");
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
	low = was;
	low.rlim_cur = 32 + 4 + 2 * 3; /* what convert.c leaves to others, the source's, three */
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	run("export", in, few, "--mesh", "fsdp=11", NULL);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
	assert_int_equal(got.code, 0);
	for (uint32_t r = 0; r < 11; r++)
		assert_true(same_file(file_of(all, r), file_of(few, r)));
	remove_tree(all);
	remove_tree(few);
}

TEST(blobs_go_to_their_ranks_and_the_rest_are_carried)
{
	struct strict_file f;

	SHOWN_IS(0, "export", in, out, "--mesh", "fsdp=3");
	f = must_load(file_of(out, 0));
	assert_string_equal(strict_find(&f, "blob/rng")->dtype, "U8");
	assert_non_null(strict_find(&f, "blob/rng/rank-00003"));
	assert_non_null(strict_find(&f, "blob/cursor"));
	strict_free(&f);
	f = must_load(file_of(out, 2));
	assert_non_null(strict_find(&f, "blob/rng"));
	assert_null(strict_find(&f, "blob/rng/rank-00003"));
	assert_non_null(strict_find(&f, "blob/cursor"));
	strict_free(&f);
	remove_tree(out);
	SHOWN_IS(0, "export", in, out, "--mesh", "fsdp=6");
	f = must_load(file_of(out, 5));
	assert_null(strict_find(&f, "blob/rng"));
	strict_free(&f);
	remove_tree(out);
}

TEST(a_stage_of_a_pipeline_has_its_own_tensors_only)
{
	struct strict_file f[2];
	uint32_t both = 0, only[2] = { 0 };

	RUN_IS(0, "export", step_of(2), out, "--mesh", "pp=2,fsdp=1");
	for (uint32_t r = 0; r < 2; r++)
		f[r] = must_load(file_of(out, r));
	for (uint32_t r = 0; r < 2; r++)
		for (uint32_t i = 0; i < f[r].ntensor; i++) {
			if (!strncmp(f[r].tensor[i].name, "blob/", 5))
				continue;
			if (strict_find(&f[!r], f[r].tensor[i].name))
				both++;
			else
				only[r]++;
		}
	assert_true(both > 0 && only[0] > 0 && only[1] > 0);
	strict_free(&f[0]);
	strict_free(&f[1]);
	remove_tree(out);
}

/* --- one rank --- */

TEST(rank_writes_one_file_beside_what_is_there)
{
	const char *all = path_of("%s/all", top);

	RUN_IS(0, "export", in, all, "--mesh", "fsdp=3");
	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3", "--rank", "2");
	assert_int_equal(entries(out), 1);
	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3", "--rank", "0");
	assert_int_equal(entries(out), 2);
	assert_true(same_file(file_of(out, 2), file_of(all, 2)));
	assert_true(same_file(file_of(out, 0), file_of(all, 0)));
	SHOWN_IS(CLI_MISFIT, "export", in, out, "--mesh", "fsdp=4", "--rank", "0");
	SHOWN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--rank", "0");
	assert_true(same_file(file_of(out, 0), file_of(all, 0)));
	assert_int_equal(entries(out), 2);
	remove_tree(out);
	remove_tree(all);
}

/* --- what is refused --- */

TEST(of_one_rank_only_the_parts_that_it_needs_are_opened)
{
	cleanup_free char *all = strdup(path_of("%s/all", top)); /* path_of forgets */
	cleanup_free char *from = strdup(path_of("%s/cut/step-%012d", plain, STEP));
	cleanup_free char *some = strdup(path_of("%s/some", top));
	const char *mesh = "fsdp=4";
	uint32_t good = 0, bad = 0;
	char rank[8];
	DIR *d;

	declare = declare_cut;
	make_step(plain, &(struct how){ "cut", mesh, STEP, 1, UINT64_MAX, UINT64_MAX, false });
	declare = NULL;
	RUN_IS(0, "export", from, all, "--mesh", mesh);
	d = opendir(from);
	for (struct dirent *e; (e = readdir(d));) {
		if (!strstr(e->d_name, ".part"))
			continue;
		copy_step(from, some);
		assert_int_equal(unlink(path_of("%s/%s", some, e->d_name)), 0);
		for (uint32_t r = 0; r < 4; r++) {
			int code;

			snprintf(rank, sizeof rank, "%u", r);
			code = RUN("export", some, out, "--mesh", mesh, "--rank", rank);
			if (code == CLI_CORRUPT) {
				assert_false(exists(out));
				bad++;
				continue;
			}
			assert_int_equal(code, 0);
			assert_true(same_file(file_of(out, r), file_of(all, r)));
			remove_tree(out);
			good++;
		}
		/* The others are no concern of one rank; of all ranks they are. */
		RUN_IS(CLI_CORRUPT, "export", some, out, "--mesh", mesh);
		remove_tree(some);
	}
	closedir(d);
	assert_int_equal(good, 12);
	assert_int_equal(bad, 4);
	remove_tree(all);
	remove_tree(path_of("%s/cut", plain));
}

/* Each Shard is told as an Only at some coordinate, and no two layouts as the same. */
static void lie_about_layouts(struct table *t)
{
	for (uint32_t i = 0; i < t->nlayout; i++)
		for (uint32_t k = 0; k < t->layout[i].nplace; k++) {
			struct ckpt_placement *p = (struct ckpt_placement *)&t->layout[i].place[k];

			if (p->how != CKPT_SHARD)
				continue;
			p->how = CKPT_ONLY;
			p->split_factor = p->tensor_dim + (p->split_factor > 1 ? 2u : 0u);
			p->tensor_dim = 0;
		}
}

TEST(where_layouts_do_not_help_all_parts_are_opened)
{
	cleanup_free char *all = strdup(path_of("%s/all", top));
	cleanup_free char *from = strdup(path_of("%s/lies/step-%012d", plain, STEP));
	char rank[8];

	declare = declare_plain;
	lie = lie_about_layouts;
	make_step(plain, &(struct how){ "lies", "fsdp=4", STEP, 1, UINT64_MAX, UINT64_MAX, false });
	declare = NULL;
	lie = NULL;
	RUN_IS(0, "export", from, all, "--mesh", "fsdp=3");
	for (uint32_t r = 0; r < 3; r++) {
		snprintf(rank, sizeof rank, "%u", r);
		RUN_IS(0, "export", from, out, "--mesh", "fsdp=3", "--rank", rank);
		assert_true(same_file(file_of(out, r), file_of(all, r)));
	}
	remove_tree(out);
	remove_tree(all);
	remove_tree(path_of("%s/lies", plain));
}

/* Complete tensors: the same elements as one rank's file, under component.name. */
TEST(export_without_a_mesh_writes_the_complete_model)
{
	struct strict_file one, all;
	uint32_t n = 0;

	SHOWN_IS(CLI_OK, "export", in, path_of("%s/all.safetensors", top));
	RUN_IS(CLI_OK, "export", in, path_of("%s/one", top), "--mesh", "fsdp=1");
	one = must_load(file_of(path_of("%s/one", top), 0));
	all = must_load(path_of("%s/all.safetensors", top));
	assert_int_equal(one.ntensor, all.ntensor);
	assert_int_equal(all.data % 4096, 0);
	for (uint32_t i = 0; i < one.ntensor; i++) {
		const struct strict_tensor *x = &one.tensor[i], *y;
		char name[2000];

		snprintf(name, sizeof name, "%s", x->name);
		if (strchr(name, '/') && strncmp(name, "/", 1))
			*strchr(name, '/') = '.';
		y = strict_find(&all, name);
		if (!y)
			fail_msg("there is no %s", name);
		assert_string_equal(x->dtype, y->dtype);
		assert_int_equal(x->end - x->begin, y->end - y->begin);
		assert_memory_equal(one.bytes + one.data + x->begin,
				    all.bytes + all.data + y->begin, x->end - x->begin);
		n += x->end > x->begin;
	}
	assert_true(n > 4);
	strict_free(&one);
	strict_free(&all);
	assert_int_equal(unlink(path_of("%s/all.safetensors", top)), 0);
	RUN_IS(CLI_OK, "export", in, out, "--shard-size", "64K", "--strip", "model");
	assert_true(exists(path_of("%s/model.safetensors.index.json", out)));
	RUN_IS(CLI_WARNINGS, "verify", "--data", out); /* it has no sums */
	RUN_IS(CLI_OK, "export", in, path_of("%s/none", top), "-n");
	assert_false(exists(path_of("%s/none", top)));
	remove_tree(out);
	remove_tree(path_of("%s/one", top));
}

static const uint8_t *bytes_of(const struct strict_file *f, const char *key, uint64_t *ret_bytes)
{
	const struct strict_tensor *y = strict_find(f, key);

	if (!y)
		fail_msg("there is no %s", key);
	*ret_bytes = y->end - y->begin;
	return f->bytes + f->data + y->begin;
}

/* A step of two tensors, of which one has three names. */
static void make_tied(const char *dir)
{
	struct checkpoint_attr attr[] = { { "ckpt.alias:model/a.tied", "model/w" },
					  { "ckpt.alias:model/z.tied", "model/w" } };
	static const uint64_t origin[1];
	struct ckpt_err err = { 0 };
	struct handmade p;
	struct table t;

	handmade_begin(&p, "demo", 12, 1, 0);
	handmade_table(&t, NULL);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t k = handmade_tensor(
			&t,
			&(struct handmade_tensor)ROW(.component = "model", .name = i ? "w" : "v",
						     .dtype = CKPT_F32, .layout = TABLE_NONE,
						     .ndim = 1, .shape = { 70 }));

		handmade_piece(&t, 0, k, 4096 * i, 0, origin, (const uint64_t[]){ 70 });
	}
	(void)handmade_add(&p, 0, PART_MAIN, 0, &t, NULL, 0);
	p.line.attr = attr;
	p.line.nattr = 2;
	assert_ok_err(handmade_commit(&p, &err), &err);
	handmade_spill(&p, dir);
	handmade_free(&p);
}

TEST(a_tensor_of_several_names_is_there_under_each_of_them)
{
	static const char *const name[] = { "w", "a.tied", "z.tied", "v" };
	static const char *const more[][2] = { { "--strip", "model" },
					       { "--dtype", "BF16" },
					       { "--shard-size", "300" } };
	const uint8_t *first, *p;
	uint64_t bytes, n;
	char tied[256];

	snprintf(tied, sizeof tied, "%s/tied", top);
	make_tied(tied);
	for (uint32_t i = 0; i < ARRAY_LEN(more); i++) {
		struct strict_file f[4];

		RUN_IS(0, "export", tied, out, more[i][0], more[i][1]);
		for (uint32_t k = 0; k < 4; k++) {
			f[k] = must_load(i == 2 ? path_of("%s/model-%05u-of-00004.safetensors", out,
							  k == 3 ? 1 : k + 2)
						: path_of("%s/model.safetensors", out));
			p = bytes_of(&f[k], path_of("%s%s", i ? "model." : "", name[k]), &n);
			first = bytes_of(&f[0], i ? "model.w" : "w", &bytes);
			assert_int_equal(bytes, 70 * (i == 1 ? 2 : 4));
			assert_int_equal(bytes, n);
			assert_int_equal(memcmp(first, p, n) == 0, k < 3);
		}
		for (uint32_t k = 0; k < 4; k++)
			strict_free(&f[k]);
		remove_tree(out);
	}
	remove_tree(tied);
}

TEST(restore_is_the_old_name_and_does_the_same)
{
	const char *old = path_of("%s/old", top);

	RUN_IS(0, "restore", in, old, "--mesh", "fsdp=3");
	assert_silent(got.err, "export");
	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3");
	for (uint32_t r = 0; r < 3; r++)
		assert_true(same_file(file_of(old, r), file_of(out, r)));
	remove_tree(old);
	remove_tree(out);
}

TEST(options_of_complete_tensors_go_with_ranks_and_the_other_way_round)
{
	const char *alpha = path_of("%s/alpha", work);
	struct strict_file f;

	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3", "-n");
	assert_says(got.out, "Nothing was written");
	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3", "--rank", "1", "-n");
	RUN_IS(0, "export", in, out, "--only", "model", "-n");
	assert_false(exists(out));
	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3", "--strip", "model");
	f = must_load(file_of(out, 1));
	assert_non_null(strict_find(&f, "embed.weight"));
	assert_null(strict_find(&f, "model/embed.weight"));
	assert_non_null(strict_find(&f, "blob/cursor"));
	strict_free(&f);
	remove_tree(out);
	RUN_IS(CLI_WARNINGS, "export", "latest", out, "--mesh", "fsdp=2", "-C", alpha,
	       "--drop-unsupported");
	assert_says(got.err, "model/spectrum");
	f = must_load(file_of(out, 0));
	assert_null(strict_find(&f, "model/spectrum"));
	strict_free(&f);
	remove_tree(out);
	RUN_IS(0, "export", in, out, "--only", "model", "--shard-size", "64K");
	assert_true(exists(path_of("%s/model.safetensors.index.json", out)));
	remove_tree(out);
	RUN_IS(0, "export", in, path_of("%s/m.safetensors", top), "--only", "model");
	f = must_load(path_of("%s/m.safetensors", top));
	assert_non_null(strict_find(&f, "embed.weight"));
	strict_free(&f);
	assert_int_equal(unlink(path_of("%s/m.safetensors", top)), 0);
}

/* convert's files of ranks are those that export writes, and hold what the source does. */
static void is_converted(const char *from, const char *mesh, uint32_t world, const char *option,
			 const char *value)
{
	const char *ranks = path_of("%s/ranks", top), *back = path_of("%s/back", top);
	json_t *j;

	RUN_IS(0, "export", from, out, "--mesh", mesh, option, value);
	j = json_run("ckptd.convert/1", "convert", from, ranks, "--to", "safetensors", "--mesh",
		     mesh, option, value, "--check", "--json");
	assert_string_equal(string(j, "format"), "safetensors");
	assert_string_equal(string(j, "mesh"), mesh);
	assert_int_equal(number(j, "world_size"), world);
	assert_int_equal(number(j, "file_count"), world);
	for (uint32_t r = 0; r < world; r++)
		assert_true(same_file(file_of(out, r), file_of(ranks, r)));
	assert_false(exists(file_of(ranks, world)));
	RUN_IS(0, "diff", from, ranks);
	RUN_IS(0, "diff", from, ranks, "--values");
	RUN_IS(0, "convert", ranks, back, "--mesh", "fsdp=1");
	RUN_IS(0, "diff", from, back);
	remove_tree(out);
	remove_tree(ranks);
	remove_tree(back);
}

TEST(convert_writes_what_each_rank_of_a_mesh_holds)
{
	is_converted(in, "fsdp=3", 3, "--mem-limit", "40M");
	is_converted(in, "fsdp=1", 1, "--mem-limit", "1G");
	is_converted(in, "dp=2,fsdp=2", 4, "--replicate", "dp");
	is_converted(in, "fsdp=2,tp=2", 4, "--layout", "*=Shard(0)@fsdp, Shard(0)@tp");
	is_converted(step_of(2), "fsdp=5", 5, "--mem-limit", "64M");
	RUN_IS(0, "convert", in, out, "--to", "safetensors", "--mesh", "fsdp=3", "-n");
	assert_says(got.out, "safetensors on fsdp=3, 3 files");
	assert_false(exists(out));
	RUN_IS(0, "convert", in, out, "--to", "safetensors", "--mesh", "fsdp=3");
	assert_says(got.out, "step 7, safetensors on fsdp=3, 3 files");
	assert_says(got.err, "4 ranks had blobs of their own, and this mesh has 3");
	assert_says(got.err, "are in the file of rank 0");
	RUN_IS(CLI_USAGE, "convert", in, out, "--to", "safetensors", "--mesh", "fsdp=3");
	remove_tree(out);
}

/* What would say one thing and do another is refused, in both verbs. */
TEST(shards_are_of_complete_tensors_in_a_directory)
{
	char file[256];

	snprintf(file, sizeof file, "%s/one.safetensors", top);

	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--shard-size", "1M");
	assert_says(got.err, "what a rank holds is one file, as large as the mesh makes it");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--rank", "1", "--shard-size",
	       "1M");
	assert_says(got.err, "what a rank holds is one file");
	RUN_IS(CLI_USAGE, "export", in, file, "--shard-size", "1M");
	assert_says(got.err, "a directory: not the file one.safetensors");
	RUN_IS(CLI_USAGE, "export", in, file, "--only", "model", "--shard-size", "1M");
	assert_says(got.err, "a directory: not the file one.safetensors");
	RUN_IS(CLI_USAGE, "convert", in, file, "--mesh", "fsdp=3");
	assert_says(got.err, "the files of ranks are a directory, not the file /");
	assert_says(got.err, "--to safetensors");
	RUN_IS(CLI_USAGE, "convert", in, out, "--to", "safetensors", "--mesh", "fsdp=3",
	       "--shard-size", "1M");
	assert_says(got.err, "what a rank holds is one file");
	RUN_IS(CLI_USAGE, "convert", in, out, "--to", "safetensors", "--layout", "*=Shard(0)@fsdp");
	assert_says(got.err, "without --mesh safetensors holds complete tensors");
	RUN_IS(CLI_USAGE, "convert", in, out, "--to", "safetensors", "--replicate", "dp");
	assert_says(got.err, "which nothing cuts");
	RUN_IS(CLI_USAGE, "convert", in, out, "--mesh", "fsdp=3", "--shard-size", "1M");
	assert_says(got.err, "a native checkpoint has a part for each rank");
	assert_false(exists(out) || exists(file));
}

TEST(wrong_commands_say_what_to_write)
{
	SHOWN_IS(CLI_USAGE, "export", in);
	RUN_IS(CLI_USAGE, "export", in, out, "--rank", "1");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--shard-size", "1M");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=0");
	SHOWN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--rank", "3");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--rank", "-1");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--rank", "1x");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--rank", "99999999999999999999");
	RUN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3", "--mem-limit", "much");
	RUN_IS(CLI_MISSING, "export", "step:999", out, "--mesh", "fsdp=3", "-C",
	       path_of("%s/job0", plain));
	RUN_IS(CLI_MISSING, "export", in, path_of("%s/no/such", top), "--mesh", "fsdp=3");
	RUN_IS(CLI_USAGE, "export", in, out, "--rank", "1", "--json");
	assert_json_error(CLI_USAGE);
	assert_false(exists(out));
}

TEST(what_exists_is_left_alone)
{
	const char *other = path_of("%s/out/mine", top);
	FILE *f;

	assert_int_equal(mkdir(out, 0700), 0);
	f = fopen(other, "w");
	fputs("mine", f);
	fclose(f);
	SHOWN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=3");
	SHOWN_IS(CLI_USAGE, "export", in, other, "--mesh", "fsdp=3");
	assert_int_equal(entries(out), 1);
	remove_tree(out);
	assert_int_equal(mkdir(out, 0700), 0);
	RUN_IS(0, "export", in, path_of("%s/", out), "--mesh", "fsdp=3");
	assert_int_equal(entries(out), 3);
	remove_tree(out);
}

TEST(nothing_is_written_into_the_checkpoint)
{
	uint32_t n = entries(in);

	SHOWN_IS(CLI_USAGE, "export", in, in, "--mesh", "fsdp=3", "--rank", "0");
	SHOWN_IS(CLI_USAGE, "export", in, path_of("%s/out", in), "--mesh", "fsdp=3");
	assert_int_equal(symlink(in, path_of("%s/link", top)), 0);
	SHOWN_IS(CLI_USAGE, "export", in, path_of("%s/link/../step-%012d/x", top, STEP), "--mesh",
		 "fsdp=3");
	unlink(path_of("%s/link", top));
	assert_int_equal(entries(in), n);
}

TEST(all_that_the_format_lacks_is_listed)
{
	SHOWN_IS(CLI_MISFIT, "export", "latest", out, "--mesh", "fsdp=3", "-C",
		 path_of("%s/alpha", work));
	assert_false(exists(out));
	RUN_IS(CLI_MISFIT, "export", "latest", out, "--mesh", "fsdp=3", "--json", "-C",
	       path_of("%s/alpha", work));
	assert_json_error(CLI_MISFIT);
}

/* --- what goes wrong on the way --- */

TEST(a_damaged_source_leaves_nothing)
{
	const char *bad = path_of("%s/bad", top);

	copy_step(in, bad);
	flip(part(bad, 0), 300000);
	SHOWN_IS(CLI_CORRUPT, "export", bad, out, "--mesh", "fsdp=3");
	assert_false(exists(out));
	assert_int_equal(mkdir(out, 0700), 0);
	RUN_IS(CLI_CORRUPT, "export", bad, out, "--mesh", "fsdp=3");
	assert_int_equal(entries(out), 0);
	remove_tree(out);
	remove_tree(bad);
}

/* --- what is left of a damaged checkpoint --- */

static bool is_left_out(const json_t *j, const char *key)
{
	const json_t *left = member(j, "left_out", JSON_ARRAY);
	size_t n = strcspn(key, "");
	const char *rank = strstr(key, "/rank-");

	if (rank)
		n = (size_t)(rank - key);
	for (size_t i = 0; i < json_array_size(left); i++) {
		const char *name = string(json_array_get(left, i), "tensor");

		assert_true(strlen(string(json_array_get(left, i), "why")) > 10);
		if (!strncmp(name, key, n) && (!name[n] || !strncmp(name + n, " of rank", 8)))
			return true;
	}
	return false;
}

/* Every tensor of the file that was made of the sound step is in the other with the same bytes, or
 * is listed as left out; and the other has no more. Returns how many are left out. */
static uint32_t what_is_there_is_right(const char *sound, const char *kept, const json_t *j)
{
	struct strict_file x, y;
	char why[200];
	uint32_t nleft = 0;

	if (!strict_load(sound, &x, why) || !strict_load(kept, &y, why))
		fail_msg("%s: %s", kept, why);
	for (uint32_t i = 0; i < x.ntensor; i++) {
		const struct strict_tensor *a = &x.tensor[i], *b = strict_find(&y, a->name);

		if (!b && !is_left_out(j, a->name))
			fail_msg("%s is missing and not listed", a->name);
		nleft += !b;
		if (b && (a->end - a->begin != b->end - b->begin ||
			  memcmp(x.bytes + x.data + a->begin, y.bytes + y.data + b->begin,
				 a->end - a->begin) != 0))
			fail_msg("%s is other than it was", a->name);
	}
	assert_int_equal(y.ntensor, x.ntensor - nleft);
	strict_free(&x);
	strict_free(&y);
	return nleft;
}

/* Returns how many tensors were left out of all files. */
static uint32_t keep_going(const char *bad, const char *sound, const char *view)
{
	uint32_t n = 0;
	json_t *j;

	if (view)
		RUN("export", bad, out, "--mesh", "fsdp=3", "--json", "--view", view);
	else
		RUN("export", bad, out, "--mesh", "fsdp=3", "--json");
	assert_int_equal(got.code, CLI_CORRUPT);
	assert_false(exists(out));
	if (view)
		RUN("export", bad, out, "--mesh", "fsdp=3", "--json", "--keep-going", "--view",
		    view);
	else
		RUN("export", bad, out, "--mesh", "fsdp=3", "--json", "--keep-going");
	if (got.code != CLI_WARNINGS)
		fail_msg("%d: %s", got.code, got.err);
	assert_string_equal(got.err, "");
	j = json_out("ckptd.restore/1");
	assert_true(count(j, "left_out") > 0);
	for (uint32_t r = 0; r < 3; r++)
		n += what_is_there_is_right(file_of(sound, r), file_of(out, r), j);
	json_decref(j);
	assert_int_equal(entries(out), 3);
	remove_tree(out);
	return n;
}

TEST(what_is_damaged_is_left_out_and_the_rest_is_right)
{
	char bad[PATH_MAX], sound[PATH_MAX], view[PATH_MAX], viewed[PATH_MAX], all[PATH_MAX];
	FILE *f;
	uint32_t n;

	snprintf(bad, sizeof bad, "%s", path_of("%s/bad", top));
	snprintf(sound, sizeof sound, "%s", path_of("%s/sound", top));
	snprintf(view, sizeof view, "%s", path_of("%s/view", top));
	snprintf(viewed, sizeof viewed, "%s", path_of("%s/viewed", top));
	snprintf(all, sizeof all, "%s", path_of("%s/all", top));
	f = fopen(view, "w");
	fputs("rename model/* -> seen/{1}\n", f);
	fclose(f);
	RUN_IS(0, "export", in, sound, "--mesh", "fsdp=3");
	RUN_IS(0, "export", in, viewed, "--mesh", "fsdp=3", "--view", view);
	/* nothing is damaged, nothing is left out */
	RUN("export", in, out, "--mesh", "fsdp=3", "--keep-going", "--json");
	assert_json(0, "ckptd.restore/1", "{'left_out':[]}");
	for (uint32_t r = 0; r < 3; r++)
		assert_true(same_file(file_of(sound, r), file_of(out, r)));
	remove_tree(out);
	/* a byte of the data, one of the sections behind them, a file that is missing */
	for (uint32_t how = 0; how < 3; how++) {
		copy_step(in, bad);
		if (how == 2)
			assert_int_equal(unlink(part(bad, 1)), 0);
		else
			flip(part(bad, how), how ? -8180 : 300000);
		n = keep_going(bad, sound, NULL);
		assert_true(n >= 1);
		assert_int_equal(keep_going(bad, viewed, view), n);
		/* one rank, and for people */
		SHOWN_IS(CLI_WARNINGS, "export", bad, out, "--mesh", "fsdp=3", "--rank", "1",
			 "--keep-going");
		assert_int_equal(entries(out), 1);
		RUN("export", bad, all, "--mesh", "fsdp=3", "--keep-going");
		assert_true(same_file(file_of(out, 1), file_of(all, 1)));
		remove_tree(all);
		remove_tree(out);
		remove_tree(bad);
	}
	remove_tree(sound);
	remove_tree(viewed);
}

TEST(of_a_checkpoint_of_which_nothing_is_left_nothing_is_written)
{
	char bad[PATH_MAX];

	snprintf(bad, sizeof bad, "%s", path_of("%s/bad", top));
	copy_step(in, bad);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(unlink(part(bad, 0)), 0);
	SHOWN_IS(CLI_CORRUPT, "export", bad, out, "--mesh", "fsdp=3", "--keep-going");
	assert_false(exists(out));
	remove_tree(bad);
	copy_step(in, bad);
	flip(path_of("%s/MANIFEST", bad), 4100);
	SHOWN_IS(CLI_CORRUPT, "export", bad, out, "--mesh", "fsdp=3", "--keep-going");
	assert_false(exists(out));
	remove_tree(bad);
	RUN_IS(CLI_MISSING, "export", path_of("%s/none", top), out, "--mesh", "fsdp=3",
	       "--keep-going");
	RUN_IS(0, "export", in, out, "--keep-going");
	assert_true(exists(path_of("%s/model.safetensors", out)));
	remove_tree(out);
}

static int run_ops(const struct io_ops *ops, const char *mesh)
{
	return run_verb(ops, &verb_export, (const char *const[]){ in, out, NULL },
			(const struct verb_option[]){ { OPT_MESH, mesh }, { OPT_NONE, NULL } });
}

TEST(whichever_call_fails_nothing_is_left)
{
	static const struct {
		uint32_t on, stride;
	} call[] = { { IO_ON_CREATE, 1 }, { IO_ON_WRITE, 11 }, { IO_ON_SYNC, 1 },
		     { IO_ON_RENAME, 1 }, { IO_ON_MKDIR, 1 },  { IO_ON_FALLOCATE, 1 },
		     { IO_ON_OPEN, 1 },	  { IO_ON_READ, 5 },   { IO_ON_LIST, 1 } };
	struct io_faults f;

	io_faults_init(&f, quick_ops());
	for (size_t i = 0; i < ARRAY_LEN(call); i++) {
		uint64_t failed = 0, damaged = 0;

		for (uint64_t n = 1;; n += call[i].stride) {
			int code;

			io_faults_fail(&f, call[i].on, n, -EIO, false);
			code = run_ops(&f.ops, "fsdp=3");
			if (!io_faults_hit(&f)) {
				assert_int_equal(code, 0);
				check_files(out, 0, "fsdp=3");
				remove_tree(out);
				break;
			}
			/* A reader may do without direct reads, a file system without fallocate. */
			if (!code) {
				check_files(out, 0, "fsdp=3");
				remove_tree(out);
				continue;
			}
			failed++;
			/* The checkpoint is never to blame for what cannot be written. */
			if (call[i].on & IO_ON_MUTATING)
				assert_int_not_equal(code, CLI_CORRUPT);
			damaged += code == CLI_CORRUPT;
			if (exists(out) && (call[i].on != IO_ON_SYNC || entries(out) != 3))
				fail_msg("%x, number %d: %s is there: %s", call[i].on, (int)n, out,
					 got.err);
			if (exists(out))
				remove_tree(out);
			assert_true(strlen(got.err) > 10);
		}
		if (call[i].on != IO_ON_LIST)
			assert_true(failed > 0);
		if (call[i].on == IO_ON_READ)
			assert_true(damaged > 0);
	}
}

static struct io_ops racing;

static int rename_and_lose(void *ctx, int dirfd, const char *from, const char *to)
{
	assert_int_equal(mkdir(out, 0700), 0);
	spill(path_of("%s/mine", out), "mine");
	return io_ops_posix.rename(ctx, dirfd, from, to);
}

TEST(of_two_that_make_the_directory_one_is_told_that_it_lost)
{
	racing = io_ops_posix;
	racing.rename = rename_and_lose;
	assert_int_equal(run_ops(&racing, "fsdp=3"), CLI_LOCKED);
	assert_says(got.err, "meanwhile");
	assert_true(exists(path_of("%s/mine", out)));
	assert_int_equal(entries(out), 1);
	remove_tree(out);
}

/* --- files of two checkpoints --- */

/* A job with the steps 20 and 32, whose latest moves. Returns its directory. */
static const char *make_moving(void)
{
	declare = declare_plain;
	make_step(plain, &(struct how){ "moving", "fsdp=2", 20, 1, UINT64_MAX, UINT64_MAX, false });
	make_step(plain, &(struct how){ "moving", "fsdp=2", 32, 2, 20, 20, false });
	declare = NULL;
	return path_of("%s/moving", plain);
}

/* DIR has the file of rank 0 of step 20, and whatever is asked for is refused before it is there. */
static void is_refused(const char *name, const char *mesh, const char *option, const char *value)
{
	RUN_IS(CLI_MISFIT, "export", "-C", path_of("%s/moving", plain), name, out, "--mesh", mesh,
	       "--rank", "1", option, value);
	assert_says(got.err, "has files of another checkpoint or mesh");
	assert_says(got.err, "rank-00000.safetensors: ");
	assert_int_equal(entries(out), 1);
}

TEST(no_rank_is_written_beside_files_of_another_checkpoint_or_mesh)
{
	const char *job = make_moving();
	cleanup_free char *view = strdup(path_of("%s/view", top));
	FILE *f;

	RUN_IS(0, "export", "-C", job, "step:20", out, "--mesh", "fsdp=2", "--rank", "0");
	assert_null(strstr(got.err, "other ranks"));
	SHOWN_IS(CLI_MISFIT, "export", "-C", job, "latest", out, "--mesh", "fsdp=2", "--rank", "1");
	is_refused("latest", "fsdp=2", "--mem-limit", "1G");
	assert_says(got.err, "ckptctl export step:20 ");
	is_refused("moving@latest", "fsdp=2", "--mem-limit", "1G");
	assert_says(got.err, "ckptctl export moving@20 ");
	is_refused("32", "fsdp=2", "--mem-limit", "1G");
	assert_says(got.err, "give another DIR");
	assert_null(strstr(got.err, "ckptctl export"));
	is_refused("20", "fsdp=3", "--mem-limit", "1G");
	is_refused("20", "fsdp=2", "--only", "model");
	spill(view, "rename model/embed.weight -> model/e\n");
	is_refused("20", "fsdp=2", "--view", view);
	RUN_IS(CLI_MISFIT, "export", "-C", job, "latest", out, "--mesh", "fsdp=2", "--rank", "1",
	       "-n");
	/* What no ckptctl wrote, or what nobody can read, is another checkpoint's, too. */
	f = fopen(path_of("%s/other.safetensors", out), "w");
	fwrite("\2\0\0\0\0\0\0\0{}", 1, 10, f);
	fclose(f);
	RUN_IS(CLI_MISFIT, "export", "-C", job, "20", out, "--mesh", "fsdp=2", "--rank", "1");
	assert_says(got.err, "other.safetensors: no checkpoint: ckptctl did not write it");
	spill(path_of("%s/other.safetensors", out), "x");
	RUN_IS(CLI_MISFIT, "export", "-C", job, "20", out, "--mesh", "fsdp=2", "--rank", "1");
	assert_says(got.err, "\n  other.safetensors has 1 bytes");
	unlink(path_of("%s/other.safetensors", out));
	spill(path_of("%s/README", out), "x");
	SHOWN_IS(0, "export", "-C", job, "step:20", out, "--mesh", "fsdp=2", "--rank", "1");
	unlink(path_of("%s/README", out));
	RUN_IS(CLI_WARNINGS, "verify", "--data", out);
	remove_tree(out);
	SHOWN_IS(0, "export", "-C", job, "latest", out, "--mesh", "fsdp=2", "--rank", "0");
	remove_tree(out);
	remove_tree(path_of("%s/moving", plain));
}

/* Files of a moving latest, as an older ckptctl left them. */
TEST(no_verb_opens_files_of_two_steps)
{
	static const char *const verbs[][4] = {
		{ "show" },   { "verify" }, { "verify", "--data" },	    { "stats" },
		{ "cat" },    { "ema" },    { "plan", "--mesh", "fsdp=1" }, { "convert" },
		{ "export" }, { "diff" },
	};
	const char *job = make_moving(), *other = path_of("%s/other", top);

	RUN_IS(0, "export", "-C", job, "20", out, "--mesh", "fsdp=2", "--rank", "0");
	RUN_IS(0, "export", "-C", job, "32", other, "--mesh", "fsdp=2", "--rank", "1");
	copy_file(file_of(other, 1), file_of(out, 1));
	for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
		const char *v = verbs[i][0], *more = verbs[i][1] ? verbs[i][1] : "--ascii";
		const char *to = path_of("%s/made", top);

		if (!strcmp(v, "convert") || !strcmp(v, "export") || !strcmp(v, "diff"))
			RUN_IS(CLI_CORRUPT, v, out, !strcmp(v, "diff") ? other : to);
		else if (!strcmp(v, "cat"))
			RUN_IS(CLI_CORRUPT, v, out, "model/embed.weight");
		else if (verbs[i][2])
			RUN_IS(CLI_CORRUPT, v, out, more, verbs[i][2]);
		else
			RUN_IS(CLI_CORRUPT, v, out, more);
		assert_says(path_of("%.3000s%.3000s", got.out, got.err), "step 20");
		assert_says(path_of("%.3000s%.3000s", got.out, got.err), "step 32");
		assert_false(exists(to));
	}
	SHOWN_IS(CLI_CORRUPT, "verify", out);
	SHOWN_IS(CLI_CORRUPT, "convert", out, path_of("%s/made", top), "--mesh", "fsdp=2");
	RUN_IS(CLI_CORRUPT, "export", out, path_of("%s/made", top), "--mesh", "fsdp=2",
	       "--keep-going");
	assert_false(exists(path_of("%s/made", top)));
	remove_tree(out);
	remove_tree(other);
	remove_tree(path_of("%s/moving", plain));
}

/* A model that no ckptctl wrote: eight equal bytes. */
static void make_foreign(const char *dir, char byte)
{
	static const char header[] =
		"{\"w\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
	const uint64_t len = sizeof header - 1; /* this machine is little-endian */
	FILE *f;

	assert_int_equal(mkdir(dir, 0700), 0);
	f = fopen(path_of("%s/model.safetensors", dir), "w");
	assert_non_null(f);
	fwrite(&len, sizeof len, 1, f);
	fputs(header, f);
	for (uint32_t i = 0; i < 8; i++)
		fputc(byte, f);
	fclose(f);
}

/* These have no id, no job and no step: what tells them apart are the files themselves. */
TEST(ranks_of_two_models_without_an_id_are_never_joined)
{
	const char *one = path_of("%s/one", top), *two = path_of("%s/two", top);
	const char *ranks = path_of("%s/ranks", top), *link = path_of("%s/link", top);

	make_foreign(one, 'A');
	make_foreign(two, 'B');
	RUN_IS(0, "export", one, out, "--mesh", "fsdp=2", "--layout", "*=Shard(0)@fsdp", "--rank",
	       "0");
	RUN_IS(CLI_MISFIT, "export", two, out, "--mesh", "fsdp=2", "--layout", "*=Shard(0)@fsdp",
	       "--rank", "1");
	assert_says(got.err, "has files of another checkpoint or mesh");
	assert_says(got.err, "source files with the sum ");
	assert_int_equal(entries(out), 1);
	/* Put there by other means, no verb opens them; convert says the same as export. */
	RUN_IS(0, "convert", two, ranks, "--to", "safetensors", "--mesh", "fsdp=2", "--layout",
	       "*=Shard(0)@fsdp");
	copy_file(file_of(ranks, 1), file_of(out, 1));
	RUN_IS(CLI_CORRUPT, "verify", out);
	RUN_IS(CLI_CORRUPT, "convert", out, path_of("%s/made", top));
	assert_false(exists(path_of("%s/made", top)));
	assert_int_equal(unlink(file_of(out, 1)), 0);
	/* The same model by another path is the same. What is made of the files does not say it. */
	assert_int_equal(symlink(one, link), 0);
	RUN_IS(0, "export", path_of("%s/", link), out, "--mesh", "fsdp=2", "--layout",
	       "*=Shard(0)@fsdp", "--rank", "1");
	RUN_IS(CLI_WARNINGS, "verify", "--data", out);
	RUN_IS(0, "show", out);
	assert_null(strstr(got.out, "ckpt.source"));
	unlink(link);
	remove_tree(ranks);
	remove_tree(one);
	remove_tree(two);
	remove_tree(out);
}

/* Another run's file comes between our look and our rename: under the lock it is seen. */
static int lock_and_lose(void *ctx, int fd, bool exclusive)
{
	if (exclusive && !exists(file_of(out, 0)))
		copy_file(path_of("%s/other/rank-00000.safetensors", top), file_of(out, 0));
	return io_ops_posix.lock(ctx, fd, exclusive);
}

static int lock_refused(void *ctx, int fd, bool exclusive)
{
	(void)ctx;
	(void)fd;
	(void)exclusive;
	return -EOPNOTSUPP;
}

static int rank_ops(const struct io_ops *ops, const char *name)
{
	const char *words[] = { name, out, NULL };
	const struct verb_option options[] = { { OPT_MESH, "fsdp=2" },
					       { OPT_RANK, "1" },
					       { OPT_NONE, NULL } };

	return run_verb(ops, &verb_export, words, options);
}

TEST(of_two_exports_of_ranks_at_once_one_sees_the_others_file)
{
	const char *job = make_moving(), *step = path_of("%s/moving/step-%012d", plain, 32);

	RUN_IS(0, "export", "-C", job, "20", path_of("%s/other", top), "--mesh", "fsdp=2", "--rank",
	       "0");
	racing = io_ops_posix;
	racing.lock = lock_and_lose;
	assert_int_equal(rank_ops(&racing, step), CLI_MISFIT);
	assert_says(got.err, "rank-00000.safetensors: ");
	assert_int_equal(entries(out), 1);
	remove_tree(out);
	/* Of one step they are friends; and a file system without locks is one, too. */
	assert_int_equal(rank_ops(&racing, path_of("%s/moving/step-%012d", plain, 20)), 0);
	assert_int_equal(entries(out), 2);
	remove_tree(out);
	racing.lock = lock_refused;
	assert_int_equal(rank_ops(&racing, step), 0);
	remove_tree(out);
	remove_tree(path_of("%s/other", top));
	remove_tree(path_of("%s/moving", plain));
}

/* Eight processes at a time, half of them of step 20, half of step 32. */
TEST(ranks_that_are_exported_at_once_are_of_one_step)
{
	const char *job = make_moving();
	uint32_t rounds = 6, mixed = 0;

	for (uint32_t i = 0; i < rounds; i++) {
		char rank[8];
		uint32_t good[2] = { 0 };
		pid_t pid[8];

		for (uint32_t k = 0; k < ARRAY_LEN(pid); k++) {
			pid[k] = fork();
			if (pid[k])
				continue;
			snprintf(rank, sizeof rank, "%u", k / 2);
			_exit(RUN("export", "-C", job, (k + i) % 2 ? "20" : "32", out, "--mesh",
				  "fsdp=4", "--rank", rank));
		}
		for (uint32_t k = 0; k < ARRAY_LEN(pid); k++) {
			int status;

			assert_int_equal(waitpid(pid[k], &status, 0), pid[k]);
			assert_true(WIFEXITED(status));
			good[(k + i) % 2] += WEXITSTATUS(status) == 0;
			/* CLI_USAGE: the other step's file of the same rank came between two looks */
			assert_true(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == CLI_MISFIT ||
				    WEXITSTATUS(status) == CLI_USAGE);
		}
		if (good[0] && good[1])
			mixed++;
		assert_int_equal(entries(out), good[0] + good[1]);
		remove_tree(out);
	}
	assert_int_equal(mixed, 0);
	remove_tree(path_of("%s/moving", plain));
}

/* --- where no export is made --- */

TEST(a_line_break_in_a_path_makes_no_line)
{
	const char *dst = path_of("%s/a\nWrote b", top), *all = path_of("%s/c\nd", top);

	RUN_IS(0, "export", in, dst, "--only", "model");
	assert_says(got.out, "/a?Wrote b");
	assert_null(strstr(got.out, "\nWrote b"));
	RUN_IS(0, "convert", in, all, "--mesh", "fsdp=2");
	assert_says(got.out, "/c?d: step 7");
	remove_tree(dst);
	remove_tree(all);
}

TEST(no_export_is_made_in_a_jobs_directory_or_named_as_its_steps)
{
	static const char *const name[] = { "step-000000000077", "step-000000000007",
					    ".old-000000000007-s3",
					    ".tmp-000000000007-g00000001-00000000",
					    ".trash-00000001" };
	static const char *const how[][2] = { { "--mesh", "fsdp=2" },
					      { "--only", "model" },
					      { "--strip", "model" },
					      { "--view", "" } };
	const char *job = path_of("%s/job0", plain), *link = path_of("%s/link", top);
	char dst[5][PATH_MAX];

	snprintf(dst[0], PATH_MAX, "%s/made", job);
	snprintf(dst[1], PATH_MAX, "%s/mine/made/", job);
	snprintf(dst[2], PATH_MAX, "%s/../job0/made", job);
	snprintf(dst[3], PATH_MAX, "%s/made", link);
	snprintf(dst[4], PATH_MAX, "%s/in.safetensors", link);
	spill(path_of("%s/none.view", top), "");
	(void)mkdir(path_of("%s/.ckptd", job), 0700);
	assert_int_equal(mkdir(path_of("%s/mine", job), 0700), 0);
	assert_int_equal(symlink(path_of("%s/mine", job), link), 0);
	for (size_t i = 0; i < ARRAY_LEN(dst); i++)
		for (size_t k = 0; k < ARRAY_LEN(how); k++) {
			const char *value = *how[k][1] ? how[k][1] : path_of("%s/none.view", top);

			RUN_IS(CLI_USAGE, "export", in, dst[i], how[k][0], value);
			assert_says(got.err, "is in the directory of a job");
			RUN_IS(CLI_USAGE, "convert", in, dst[i], "--to", "safetensors");
			RUN_IS(CLI_USAGE, "convert", in, dst[i], "--to", "native");
			assert_says(got.err, "is in the directory of a job");
			assert_false(exists(dst[i]));
		}
	/* One rank's file in a directory that is there: the job's own, or one in it, or a link to it. */
	RUN_IS(CLI_USAGE, "export", in, job, "--mesh", "fsdp=2", "--rank", "0");
	RUN_IS(CLI_USAGE, "export", in, link, "--mesh", "fsdp=2", "--rank", "0");
	SHOWN_IS(CLI_USAGE, "export", in, path_of("%s/mine/", job), "--mesh", "fsdp=2", "--rank",
		 "0");
	RUN_IS(CLI_USAGE, "export", "latest", path_of("%s/mine/x", job), "--mesh", "fsdp=2",
	       "--from-memory");
	assert_int_equal(entries(path_of("%s/mine", job)), 0);
	for (size_t i = 0; i < ARRAY_LEN(name); i++) {
		const char *to = path_of("%s/%s", top, name[i]);

		RUN_IS(CLI_USAGE, "export", in, to, "--mesh", "fsdp=2");
		assert_says(got.err, "is what a store calls");
		RUN_IS(CLI_USAGE, "export", in, path_of("%s/", to), "--only", "model");
		RUN_IS(CLI_USAGE, "convert", in, to, "--to", "safetensors");
		assert_false(exists(to));
		/* The directory of one rank, by its name or by a link. */
		assert_int_equal(mkdir(to, 0700), 0);
		RUN_IS(CLI_USAGE, "export", in, to, "--mesh", "fsdp=2", "--rank", "0");
		assert_int_equal(unlink(link), 0);
		assert_int_equal(symlink(to, link), 0);
		RUN_IS(CLI_USAGE, "export", in, link, "--mesh", "fsdp=2", "--rank", "0");
		assert_says(got.err, "is what a store calls");
		assert_int_equal(entries(to), 0);
		assert_int_equal(rmdir(to), 0);
	}
	SHOWN_IS(CLI_USAGE, "export", in, path_of("%s/%s", top, name[0]), "--mesh", "fsdp=2");
	/* A copy of the step may have its name elsewhere. */
	RUN_IS(0, "convert", in, path_of("%s/%s", top, name[1]), "--mesh", "fsdp=2");
	remove_tree(path_of("%s/%s", top, name[1]));
	/* Beside the job, in its store, there is room. */
	RUN_IS(0, "export", in, path_of("%s/beside", plain), "--mesh", "fsdp=2");
	remove_tree(path_of("%s/beside", plain));
	unlink(link);
	remove_tree(path_of("%s/mine", job));
	remove_tree(path_of("%s/.ckptd", job));
}

TEST(a_full_disk_is_13_and_leaves_nothing)
{
	struct io_faults f;

	io_faults_init(&f, quick_ops());
	for (uint64_t n = 1; n < 60; n += 13) {
		io_faults_fail(&f, IO_ON_WRITE, n, -ENOSPC, true);
		assert_int_equal(run_ops(&f.ops, "fsdp=3"), CLI_NO_SPACE);
		assert_false(exists(out));
	}
	io_faults_fail(&f, IO_ON_FALLOCATE, 2, -ENOSPC, true);
	assert_int_equal(run_ops(&f.ops, "fsdp=3"), CLI_NO_SPACE);
	assert_false(exists(out));
	/* What cannot be reserved is written all the same. */
	io_faults_fail(&f, IO_ON_FALLOCATE, 1, -EOPNOTSUPP, true);
	assert_int_equal(run_ops(&f.ops, "fsdp=3"), 0);
	check_files(out, 0, "fsdp=3");
	remove_tree(out);
}

TEST(files_and_both_directories_are_synced)
{
	struct io_faults f;

	io_faults_init(&f, quick_ops());
	io_faults_count(&f, IO_ON_SYNC);
	assert_int_equal(run_ops(&f.ops, "fsdp=3"), 0);
	assert_int_equal(io_faults_calls(&f), 3 + 1 + 1);
	remove_tree(out);
	assert_int_equal(mkdir(out, 0700), 0);
	io_faults_count(&f, IO_ON_SYNC);
	assert_int_equal(run_ops(&f.ops, "fsdp=3"), 0);
	assert_int_equal(io_faults_calls(&f), 3 + 1 + 1);
	remove_tree(out);
}

/* --- Ctrl-C --- */

static struct {
	struct io_ops ops;
	uint64_t writes, stop_at;
	int signal;
} stopper;

static int64_t stop_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	(void)ctx;
	if (++stopper.writes == stopper.stop_at) {
		cli_stop_signal = stopper.signal;
		cli_stops = 1;
	}
	return io_ops_posix.pwrite(io_ops_posix.ctx, fd, buf, len, off);
}

TEST(after_ctrl_c_nothing_is_left)
{
	stopper.ops = *quick_ops();
	stopper.ops.pwrite = stop_pwrite;
	for (uint64_t n = 1; n < 1000; n += 31) {
		int code;

		stopper.writes = 0;
		stopper.stop_at = n;
		stopper.signal = n % 2 ? SIGINT : SIGTERM;
		code = run_ops(&stopper.ops, "fsdp=3");
		cli_stops = cli_stop_signal = 0;
		if (stopper.writes < n) {
			assert_int_equal(code, 0);
			remove_tree(out);
			assert_true(n > 31);
			return;
		}
		assert_int_equal(code, n % 2 ? CLI_INTERRUPTED : CLI_TERMINATED);
		assert_says(got.err, "interrupted");
		assert_false(exists(out));
	}
	fail_msg("too many writes");
}

/* --- what it prints --- */

TEST(json_ends_with_a_summary)
{
	const char *line;
	uint64_t sum = 0;
	json_t *j, *files;

	RUN_IS(0, "export", in, out, "--mesh", "fsdp=3", "--json");
	assert_string_equal(got.err, "");
	got.out[got.out_len - 1] = 0;
	line = strrchr(got.out, '\n');
	j = json_loads(line ? line + 1 : got.out, 0, NULL);
	assert_non_null(j);
	assert_json_has(j, "{'schema':'ckptd.restore/1', 'type':'summary'}");
	assert_string_equal(string(j, "path"), in);
	assert_string_equal(string(j, "job"), "job0");
	assert_int_equal(number(j, "step"), STEP);
	assert_json_has(j, "{'mesh':'fsdp=3', 'world_size':3}");
	assert_string_equal(string(j, "destination"), out);
	member(j, "took_s", JSON_REAL);
	number(j, "bytes_per_second");
	member(j, "changes", JSON_ARRAY);
	files = (json_t *)member(j, "files", JSON_ARRAY);
	assert_int_equal(json_array_size(files), 3);
	for (uint32_t r = 0; r < 3; r++) {
		const json_t *f = json_array_get(files, r);
		struct strict_file x;

		x = must_load(file_of(out, r));
		assert_string_equal(string(f, "file"), path_of("rank-%05u.safetensors", r));
		assert_int_equal(number(f, "rank"), r);
		assert_int_equal(number(f, "tensor_count"), x.ntensor);
		assert_int_equal(number(f, "bytes"), x.len);
		assert_int_equal(number(f, "data_bytes"), x.len - x.data);
		assert_int_equal(number(f, "other_blob_count"), r == 0);
		sum += x.len;
		strict_free(&x);
	}
	assert_int_equal(number(j, "bytes"), sum);
	json_decref(j);
	remove_tree(out);
}

TEST(people_read_what_was_written)
{
	SHOWN_IS(0, "export", in, out, "--mesh", "fsdp=3");
	remove_tree(out);
	SHOWN_IS(0, "export", in, out, "--mesh", "fsdp=20");
	remove_tree(out);
}

/* --- through a view --- */

static const char *view_file(const char *rules)
{
	const char *path = path_of("%s/view.txt", top);

	spill(path, rules);
	return path;
}

/* Element g of what is called key is element number(g) of the checkpoint's model/name. */
static void check_seen(const struct strict_file *f, const struct table *t, const char *key,
		       const char *name, uint64_t (*of)(uint64_t g))
{
	const struct table_tensor *x = &t->tensor[table_find(t, "model", name, TABLE_NONE)];
	uint64_t bytes;
	const uint8_t *p = bytes_of(f, key, &bytes);

	for (uint64_t g = 0; g < bytes / x->elem_bytes; g++) {
		uint8_t truth[16];

		sample_truth(SEED, x, of(g), STEP, truth);
		if (memcmp(p + g * x->elem_bytes, truth, x->elem_bytes) != 0)
			fail_msg("%s: element %llu", key, (unsigned long long)g);
	}
}

#define ROWS 67 /* of layers.N.wq, which have 98 columns */

static uint64_t turned(uint64_t g)
{
	return g % ROWS * 98 + g / ROWS;
}

static uint64_t last_twelve_of_17(uint64_t g)
{
	return g / 12 * 17 + 5 + g % 12;
}

TEST(through_a_view_tensors_have_other_names_and_shapes)
{
	const char *view =
		view_file("# as the other framework calls them\n"
			  "rename    model/embed.weight -> net/tok\n"
			  "transpose model/layers.*.wq dims 1,0 -> net/{1}.q\n"
			  "split     model/layers.3.fused dim 1 sizes 5,12 -> net/a net/b\n"
			  "concat    net/#.q dim 0 -> net/q\n");
	struct strict_file f, plainly;
	const struct strict_tensor *q;
	const uint8_t *tok, *embed;
	struct subject s;
	uint64_t n, m;

	assert_int_equal(subject_find(&s, &io_ops_posix, ".", step_of(1), NULL, NULL), 0);
	assert_int_equal(subject_open(&s, NULL, NULL, NULL), 0);
	RUN_IS(0, "export", step_of(1), out, "--mesh", "fsdp=1", "--view", view);
	f = must_load(file_of(out, 0));
	assert_null(strict_find(&f, "model/layers.0.wq"));
	assert_non_null(strict_find(&f, "model/norm.weight"));
	q = strict_find(&f, "net/q");
	assert_true(q && q->ndim == 2 && q->shape[0] == 2 * 98 && q->shape[1] == ROWS);
	remove_tree(out);
	strict_free(&f);

	/* Without the concat: each by itself. */
	view = view_file("rename model/embed.weight -> net/tok\n"
			 "transpose model/layers.*.wq dims 1,0 -> net/{1}.q\n"
			 "split model/layers.3.fused dim 1 sizes 5,12 -> net/a net/b\n");
	RUN_IS(0, "export", step_of(1), out, "--mesh", "x=1", "--view", view);
	f = must_load(file_of(out, 0));
	check_seen(&f, &s.ckpt->table, "net/0.q", "layers.0.wq", turned);
	check_seen(&f, &s.ckpt->table, "net/1.q", "layers.1.wq", turned);
	check_seen(&f, &s.ckpt->table, "net/b", "layers.3.fused", last_twelve_of_17);
	strict_free(&f);
	remove_tree(out);

	/* A renamed tensor is cut as it was; one rank's file is that of all ranks. */
	RUN_IS(0, "export", step_of(1), out, "--mesh", "fsdp=3", "--view", view);
	RUN_IS(0, "export", step_of(1), path_of("%s/plainly", top), "--mesh", "fsdp=3");
	RUN_IS(0, "export", step_of(1), path_of("%s/one", top), "--mesh", "fsdp=3", "--view", view,
	       "--rank", "1");
	assert_true(same_file(file_of(out, 1), file_of(path_of("%s/one", top), 1)));
	f = must_load(file_of(out, 2));
	plainly = must_load(file_of(path_of("%s/plainly", top), 2));
	tok = bytes_of(&f, "net/tok", &n);
	embed = bytes_of(&plainly, "model/embed.weight", &m);
	assert_int_equal(n, m);
	assert_memory_equal(tok, embed, n);
	strict_free(&f);
	strict_free(&plainly);
	remove_tree(out);
	remove_tree(path_of("%s/plainly", top));
	remove_tree(path_of("%s/one", top));
	subject_close(&s);
}

/* What a plain model takes: bare names, tied ones twice, nothing else; the mesh of one rank need
 * not be one of the checkpoint's. */
TEST(a_view_makes_one_file_of_bare_names)
{
	const char *view = view_file("drop optim*/*\ndrop blob/*\n"
				     "copy model/embed.weight -> model/head/tied\n"
				     "rename model/* -> /{1}\n");
	const struct strict_tensor *embed, *tied;
	struct strict_file f;

	RUN_IS(0, "export", step_of(1), out, "--mesh", "rank=1", "--view", view);
	f = must_load(file_of(out, 0));
	embed = strict_find(&f, "embed.weight");
	tied = strict_find(&f, "head/tied");
	assert_true(embed && tied && embed->end - embed->begin == tied->end - tied->begin);
	assert_memory_equal(f.bytes + f.data + embed->begin, f.bytes + f.data + tied->begin,
			    embed->end - embed->begin);
	for (uint32_t i = 0; i < f.ntensor; i++)
		assert_true(strncmp(f.tensor[i].name, "model/", 6) != 0 &&
			    strncmp(f.tensor[i].name, "optim", 5) != 0 &&
			    strncmp(f.tensor[i].name, "blob/", 5) != 0);
	strict_free(&f);
	remove_tree(out);
	RUN_IS(0, "show", step_of(1));
	assert_non_null(strstr(got.out, "optim")); /* there was something to drop */
}

/* Elements of f's key, which is model/name of the checkpoint as another dtype, in the same order. */
static void check_cast(const struct strict_file *f, const struct table *t, const char *key,
		       const char *name, uint32_t dtype)
{
	const struct table_tensor *x = &t->tensor[table_find(t, "model", name, TABLE_NONE)];
	uint64_t bytes;
	const uint8_t *p = bytes_of(f, key, &bytes);

	assert_int_equal(bytes, x->numel * dtype_bytes(dtype));
	assert_string_equal(strict_find(f, key)->dtype, dtype_name(dtype));
	for (uint64_t g = 0; g < x->numel; g++) {
		uint8_t truth[16], want[16];

		sample_truth(SEED, x, g, STEP, truth);
		if (dtype == x->dtype)
			memcpy(want, truth, sizeof want);
		else
			cast(x->dtype, truth, dtype, want, 1);
		if (memcmp(p + g * dtype_bytes(dtype), want, dtype_bytes(dtype)) != 0)
			fail_msg("%s: element %llu", key, (unsigned long long)g);
	}
}

TEST(a_view_casts_and_reshapes)
{
	const char *view =
		view_file("drop optim*/*\nreshape model/layers.0.wq 7,-1,67\n"
			  "cast    model/layers.* F64\ncast model/layers.1.wq BF16\n"
			  "reshape model/layers.3.fused -1\ncast model/scales F8_E8M0\n");
	const struct strict_tensor *wq;
	struct strict_file f;
	struct subject s;

	assert_int_equal(subject_find(&s, &io_ops_posix, ".", step_of(1), NULL, NULL), 0);
	assert_int_equal(subject_open(&s, NULL, NULL, NULL), 0);
	/* The complete tensors, of shards that no longer are boxes; --dtype is for the others. */
	RUN_IS(CLI_WARNINGS, "export", step_of(1), path_of("%s/all.safetensors", top), "--view",
	       view, "--dtype", "F32", "--strip", "model");
	f = must_load(path_of("%s/all.safetensors", top));
	wq = strict_find(&f, "layers.0.wq");
	assert_true(wq && wq->ndim == 3 && wq->shape[0] == 7 && wq->shape[1] == 14);
	check_cast(&f, &s.ckpt->table, "layers.0.wq", "layers.0.wq", CKPT_F64);
	check_cast(&f, &s.ckpt->table, "layers.1.wq", "layers.1.wq", CKPT_BF16);
	check_cast(&f, &s.ckpt->table, "layers.3.fused", "layers.3.fused", CKPT_F64);
	check_cast(&f, &s.ckpt->table, "embed.weight", "embed.weight", CKPT_F32);
	check_cast(&f, &s.ckpt->table, "scales", "scales", CKPT_F8_E8M0);
	assert_string_equal(strict_find(&f, "mask")->dtype, "BOOL");
	strict_free(&f);
	assert_int_equal(unlink(path_of("%s/all.safetensors", top)), 0);
	/* A rank's file, and every rank's of a mesh of one. */
	RUN_IS(0, "export", step_of(1), out, "--view", view, "--mesh", "fsdp=1");
	f = must_load(file_of(out, 0));
	check_cast(&f, &s.ckpt->table, "model/layers.0.wq", "layers.0.wq", CKPT_F64);
	check_cast(&f, &s.ckpt->table, "model/embed.weight", "embed.weight", CKPT_BF16);
	strict_free(&f);
	remove_tree(out);
	RUN_IS(CLI_WARNINGS, "export", step_of(1), out, "--mesh", "fsdp=1", "--view",
	       view_file("drop model/*\ncast optim/* F16"));
	assert_says(got.err, "too large for the new dtype and became infinite");
	remove_tree(out);
	/* Without a rule that keeps them, 8-bit floats are in the way of --dtype. */
	RUN_IS(CLI_MISFIT, "export", step_of(1), out, "--dtype", "F32");
	assert_says(got.err, "model/scales: F8_E8M0");
	assert_says(got.err, "\"cast NAME F8_E4M3\"");
	RUN_IS(CLI_MISFIT, "convert", step_of(1), out, "--dtype", "F32");
	RUN_IS(CLI_USAGE, "convert", step_of(1), out, "--view", view_file("\ncast model/* F32\n"));
	assert_says(got.err, "view.txt:2: model/scales is F8_E8M0, which cannot become F32");
	RUN_IS(CLI_USAGE, "convert", step_of(1), out, "--view",
	       view_file("reshape model/layers.0.wq 5,-1"));
	assert_says(got.err, "view.txt:1: model/layers.0.wq has 6566 elements");
	assert_false(exists(out));
	subject_close(&s);
}

TEST(a_view_that_is_wrong_is_told_and_nothing_is_made)
{
	json_t *j;

	SHOWN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=1", "--view",
		 view_file("\nrename model/a -> b c\nrenam\n"));
	SHOWN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=1", "--view",
		 view_file("rename model/nothing.* -> b\n"));
	SHOWN_IS(CLI_USAGE, "export", in, out, "--mesh", "fsdp=1", "--view", "/no/such");
	assert_false(exists(out));
	j = json_run("ckptd.restore/1", "export", in, out, "--mesh", "fsdp=1", "--json", "--view",
		     view_file("rename model/mask -> mask\n"));
	assert_says(string(j, "view_file"), "/view.txt");
	remove_tree(out);
}

UNIT(.group_setup = make_plain, .group_teardown = drop_all);
