/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_safetensors.c - golden safetensors files, of Hugging Face and of
 * torch.distributed.checkpoint: every tensor's bytes, read as verbs read them, have the SHA-256
 * that the framework's own reader saw (truth.json beside them); and malformed ones are refused in
 * time. tests/vectors/foreign.md says who wrote them.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/engine/convert.h"
#include "ckpt/engine/open.h"
#include "ckpt/io/io_source.h"
#include "ckpt/move/move.h"
#include "ckpt/plan/plan.h"
#include "ckpt/table/target.h"
#include "formats/safetensors/safetensors_format.h"
#include "formats/native/native.h"
#include "formats/registry/registry.h"
#include "tests/lib/cli_rig.h"
#include "tests/lib/sha256.h"
#include "tests/lib/strict_safetensors.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <dirent.h>
#include <jansson.h>

static struct ckpt_err err;

static int opened(const char *path, struct checkpoint **ret, int *ret_fd)
{
	char entry[NAME_MAX + 1];
	struct source_dir d;
	int rc;

	assert_ok_err(source_path(&io_ops_posix, path, ret_fd, entry, &err), &err);
	assert_ok(source_make(&io_ops_posix, *ret_fd, entry, SOURCE_LINKS, &d));
	rc = format_safetensors.open(&(struct format_open){ .dir = &d }, ret, &err);
	source_end(&d);
	return rc;
}

/* All of it on one rank. */
static uint8_t *gathered(const struct checkpoint *k, int fd, struct table *target,
			 struct table *mine)
{
	struct plan plan = { 0 };
	struct move_files files;
	uint8_t *base;

	assert_ok_err(target_make(&k->table, "all=1", NULL, 0, target, NULL, NULL, &err), &err);
	assert_ok_err(target_rank(target, 0, mine, &err), &err);
	base = malloc(mine->place[0].bytes + 1);
	assert_ok_err(plan_make(&k->table, mine, NULL, &plan, NULL, &err), &err);
	assert_ok_err(move_open(&io_ops_posix, fd, k, false, IO_AUTO, &files, &err), &err);
	assert_ok_err(move_read(&plan, &files, (void *[]){ base }, NULL, NULL, &err), &err);
	move_close(&files);
	plan_free(&plan);
	return base;
}

static void tensor_is(const struct checkpoint *k, const struct table *mine, const uint8_t *base,
		      const char *name, const json_t *truth)
{
	uint32_t id = table_find(&k->table, "", name, TABLE_NONE), n;
	const json_t *shape = json_object_get(truth, "shape");
	const struct table_tensor *x = &k->table.tensor[id];
	const struct table_piece *p;
	char hex[65];

	if (id == TABLE_NONE)
		fail_msg("there is no %s", name);
	assert_string_equal(dtype_name(x->dtype),
			    json_string_value(json_object_get(truth, "dtype")));
	assert_int_equal(x->ndim, json_array_size(shape));
	for (uint32_t d = 0; d < x->ndim; d++)
		assert_int_equal(x->shape[d] * (d + 1 == x->ndim ? dtype_values(x->dtype) : 1),
				 (uint64_t)json_number_value(json_array_get(shape, d)));
	n = mine->first[id + 1] - mine->first[id];
	p = &mine->piece[mine->first[id]];
	assert_int_equal(n, x->numel != 0);
	sha256(base + (n ? p->off : 0), n ? p->len : 0, hex);
	if (strcmp(hex, json_string_value(json_object_get(truth, "sha256"))) != 0)
		fail_msg("%s: %s", name, hex);
}

/* Returns how many tensors. */
static size_t golden_is_read(const char *dir, const char *truth_name)
{
	struct table target = { 0 }, mine = { 0 };
	char path[600];
	struct checkpoint *k;
	const char *name;
	json_t *truth, *tensors, *x;
	uint8_t *base;
	size_t n;
	int fd;

	snprintf(path, sizeof path, "%s/%s", dir, truth_name);
	truth = json_load_file(path, JSON_DECODE_INT_AS_REAL, NULL);
	assert_non_null(truth);
	snprintf(path, sizeof path, "%s/%s", dir,
		 json_string_value(json_object_get(truth, "path")));
	if (opened(path, &k, &fd))
		fail_msg("%s: %s", path, err.msg);
	tensors = json_object_get(truth, "tensors");
	n = json_object_size(tensors);
	assert_int_equal(k->table.ntensor, n);
	base = gathered(k, fd, &target, &mine);
	json_object_foreach(tensors, name, x) tensor_is(k, &mine, base, name, x);
	free(base);
	table_free(&mine);
	table_free(&target);
	checkpoint_free(k);
	close(fd);
	json_decref(truth);
	return n;
}

/* *ret_n: cases. */
static size_t goldens_are_read(const char *dir, uint32_t *ret_n)
{
	DIR *d = opendir(dir);
	size_t n = 0;

	assert_non_null(d);
	*ret_n = 0;
	for (struct dirent *e; (e = readdir(d));) {
		if (!strstr(e->d_name, ".truth.json"))
			continue;
		n += golden_is_read(dir, e->d_name);
		++*ret_n;
	}
	closedir(d);
	return n;
}

TEST(every_golden_tensor_has_the_bytes_that_its_own_reader_saw)
{
	uint32_t ncase;

	assert_int_equal(goldens_are_read("tests/vectors/safetensors", &ncase), 77);
	assert_int_equal(ncase, 8);
	assert_int_equal(goldens_are_read("tests/vectors/hf", &ncase), 103);
	assert_int_equal(ncase, 4);
	assert_int_equal(goldens_are_read("tests/vectors/dcp_hf", &ncase), 54);
	assert_int_equal(ncase, 3);
}

/* --- there and back --- */

static int tick(void *arg, uint64_t done)
{
	return 0;
}

/* dst: a new directory beside the other ones. */
static void converted_to(const char *from, const char *to, const struct format *format,
			 const char *mesh, struct format_want want)
{
	const struct engine e = { .ops = &io_ops_posix,
				  .io = IO_AUTO,
				  .format = formats,
				  .mem_limit = CONVERT_MEM_MIN,
				  .tick = tick };
	struct engine_convert c = {
		.to = format, .dst = to, .source = from, .options = "", .check = true
	};
	struct ckpt_errlist cannot = { .code = -EMEDIUMTYPE };
	char entry[NAME_MAX + 1];
	struct converted made;
	struct table target;
	struct opened src;
	int fd;

	assert_ok_err(source_path(&io_ops_posix, from, &fd, entry, &err), &err);
	assert_ok_err(
		engine_open(&e, &(struct engine_subject){ .fd = fd, .entry = entry, .path = from },
			    &src, &err),
		&err);
	assert_ok_err(target_make(&src.ckpt->table, mesh, NULL, 0, &target, NULL, NULL, &err),
		      &err);
	c.src = &src;
	c.target = &target;
	c.want = want;
	c.want.facts = src.ckpt;
	c.want.tool = "ckptctl 1.2.3";
	assert_ok_err(engine_convert(&e, &c, &made, &cannot, &err), &err);
	ckpt_errlist_free(&cannot);
	table_free(&target);
	engine_close(&src);
	close(fd);
}

/* Every tensor's bytes are those of the golden checkpoint. */
static void is_still(const char *path, const char *truth_name)
{
	struct table target = { 0 }, mine = { 0 };
	struct checkpoint *k;
	json_t *truth = json_load_file(truth_name, JSON_DECODE_INT_AS_REAL, NULL), *x;
	const char *name;
	uint8_t *base;
	int fd;

	assert_ok_err(opened(path, &k, &fd), &err);
	base = gathered(k, fd, &target, &mine);
	assert_int_equal(k->table.ntensor, json_object_size(json_object_get(truth, "tensors")));
	json_object_foreach(json_object_get(truth, "tensors"), name, x)
		tensor_is(k, &mine, base, name, x);
	free(base);
	table_free(&mine);
	table_free(&target);
	checkpoint_free(k);
	close(fd);
	json_decref(truth);
}

/* A file has no sums of its tensors; that of its header is that it was read. */
TEST(verify_says_that_bytes_of_tensors_have_no_sums)
{
	static const char file[] = "tests/vectors/hf/llama_single/model.safetensors";
	struct stat st;

	assert_int_equal(stat(file, &st), 0);
	for (int data = 0; data < 2; data++) { /* what the header says, and what was read */
		const json_t *x;

		RUN_IS(data ? 3 : 0, "--json", "verify", data ? "--data" : "--", file);
		x = item(json_kept(json_out("ckptd.verify/1")), "checkpoints", 0);
		assert_true(number(x, "unsummed_bytes") > (uint64_t)st.st_size / 2);
		assert_int_equal(number(x, "summed_bytes") + number(x, "unsummed_bytes"),
				 st.st_size);
	}
}

TEST(a_hugging_face_directory_comes_back_from_native_as_it_was)
{
	char dir[SCRATCH_MAX], native[400], back[400], ranks[400], again[400];

	scratch_make(dir);
	snprintf(native, sizeof native, "%s/native", dir);
	snprintf(back, sizeof back, "%s/back", dir);
	snprintf(ranks, sizeof ranks, "%s/ranks", dir);
	snprintf(again, sizeof again, "%s/again", dir);
	converted_to("tests/vectors/hf/mixtral", native, &format_native, "fsdp=3",
		     (struct format_want){ 0 });
	converted_to(native, back, &format_safetensors, "all=1",
		     (struct format_want){ .shard_bytes = 9000 });
	is_still(back, "tests/vectors/hf/mixtral.truth.json");
	/* The same by way of files of ranks. */
	converted_to(native, ranks, &format_safetensors, "fsdp=2",
		     (struct format_want){ .by_rank = true });
	converted_to(ranks, again, &format_safetensors, "all=1", (struct format_want){ 0 });
	is_still(again, "tests/vectors/hf/mixtral.truth.json");
	scratch_remove(dir);
}

/* --- names and blobs --- */

static const float three[3] = { 1, 2, 3 };

#define ROW3(c, n)                                                                       \
	{                                                                                \
		.component = c, .name = n, .dtype = CKPT_F32, .ndim = 1, .shape = { 3 }, \
		.bytes = three                                                           \
	}
#define TEXT(c, n, media, text)                                                       \
	{                                                                             \
		.component = c, .name = n, .dtype = CKPT_U8, .ndim = 1,               \
		.shape = { sizeof text - 1 }, .bytes = text, .role = MADE_BLOB(media) \
	}

/* The tensor of a checkpoint: what show says of it. */
static json_t *shown_tensor(const char *path, const char *name)
{
	json_t *j = json_run("ckptd.show/1", "show", path, name, "--json");

	assert_int_equal(count(j, "tensors"), 1);
	return item(j, "tensors", 0);
}

static void bytes_are(const char *path, const char *name, const char *want)
{
	RUN_IS(CLI_OK, "cat", path, name);
	assert_int_equal(got.out_len, strlen(want));
	assert_memory_equal(got.out, want, got.out_len);
}

static void is_blob(const char *path, const char *name, const char *media, const char *text)
{
	const json_t *x = shown_tensor(path, name);

	assert_string_equal(string(x, "media"), media);
	assert_string_equal(string(x, "name"), name);
	bytes_are(path, name, text);
}

TEST(names_and_types_of_blobs_come_back_with_strip_and_without)
{
	static const struct made made[] = {
		ROW3("model", "w"),
		TEXT("model", "config", CKPT_MEDIA_JSON, "{\"layers\": 3}"),
		TEXT("data", "cursor", CKPT_MEDIA_TEXT, "line 7\n"),
		TEXT("rng", "state", CKPT_MEDIA_PICKLE, "\x80\x04N."),
		TEXT("rng", "seed", CKPT_RAW, "seed"),
		TEXT("rng", "none", CKPT_MEDIA_NPY, ""),
	};
	const char *from = make_made(place("blobs"), "j", 3, made, ARRAY_LEN(made));
	const char *const strip[] = { "rng", "model" };

	for (uint32_t i = 0; i < ARRAY_LEN(strip); i++) {
		const char *file = path_of("%s/blobs-%u.safetensors", top, i);
		const char *native = path_of("%s/blobs-native-%u", top, i);
		const char *again = path_of("%s/blobs-again-%u", top, i);

		RUN_IS(CLI_OK, "export", from, file, "--strip", strip[i]);
		RUN_IS(CLI_OK, "convert", file, native);
		RUN_IS(CLI_OK, "convert", native, again, "--to", "safetensors");
		for (uint32_t k = 0; k < 3; k++) {
			const char *at = k == 0 ? file : k == 1 ? native : again;

			is_blob(at, i ? "config" : "model.config", "json", "{\"layers\": 3}");
			is_blob(at, "data.cursor", "text", "line 7\n");
			is_blob(at, i ? "rng.state" : "state", "pickle", "\x80\x04N.");
			is_blob(at, i ? "rng.seed" : "seed", "raw", "seed");
			is_blob(at, i ? "rng.none" : "none", "npy", "");
			assert_json_has(shown_tensor(at, i ? "w" : "model.w"), "{'media':null}");
		}
		RUN_IS(CLI_OK, "diff", file, again, "--values");
		RUN_IS(CLI_OK, "diff", file, native, "--values");
	}
}

TEST(equal_names_of_different_components_are_refused_and_nothing_is_made)
{
	static const struct made made[] = { ROW3("model", "a.b"), ROW3("model.a", "b"),
					    ROW3("", "b") };
	const char *from = make_made(place("equal"), "j", 3, made, 2);
	const char *three_of = make_made(place("equal3"), "j", 3, made, 3);
	const char *file = path_of("%s/equal.safetensors", top), *ranks = place("equal-ranks");
	const char *view = place("equal.view");

	RUN_IS(CLI_MISFIT, "convert", from, file);
	assert_says(got.err, "tensor model.a.b: two or more have this name in the files");
	assert_null(strstr(got.err, "--drop-unsupported"));
	RUN_IS(CLI_MISFIT, "convert", from, file, "--drop-unsupported");
	RUN_IS(CLI_MISFIT, "export", from, file);
	assert_says(got.err, "tensor model.a.b: two or more");
	assert_false(exists(file));
	/* Files of ranks have components. */
	RUN_IS(CLI_OK, "export", from, ranks, "--mesh", "all=1");
	assert_string_equal(string(shown_tensor(ranks, "model/a.b"), "component"), "model");
	assert_string_equal(string(shown_tensor(ranks, "model.a/b"), "component"), "model.a");
	/* A component less in front makes names different, or equal. */
	RUN_IS(CLI_OK, "export", from, file, "--strip", "model");
	shown_tensor(file, "a.b");
	shown_tensor(file, "model.a.b");
	RUN_IS(CLI_MISFIT, "export", three_of, place("equal3.safetensors"), "--strip", "model.a");
	assert_says(got.err, "tensor b: two or more");
	/* A view gives another name, or the same to two. */
	spill(view, "rename model/a.b -> model/c\n");
	RUN_IS(CLI_OK, "convert", from, place("equal-view.safetensors"), "--view", view);
	shown_tensor(place("equal-view.safetensors"), "model.c");
	spill(view, "rename model/a.b -> x/p.q\nrename model.a/b -> x.p/q\n");
	RUN_IS(CLI_MISFIT, "convert", from, place("equal-view2.safetensors"), "--view", view);
	assert_says(got.err, "tensor x.p.q: two or more");
}

TEST(metadata_that_native_cannot_hold_is_listed_and_left_out_only_if_asked)
{
	const char *file = place("long.safetensors"), *native = place("long-native");
	char *header = malloc(6000);
	FILE *f = fopen(file, "we");
	le64 len;

	sprintf(header, "{\"__metadata__\":{\"short\":\"s\",\"ss_tags\":\"%*d\"}}", 5000, 7);
	len = le64_of(strlen(header));
	assert_int_equal(fwrite(&len, 8, 1, f), 1);
	assert_int_equal(fputs(header, f) >= 0, 1);
	assert_int_equal(fclose(f), 0);
	free(header);
	RUN_IS(CLI_MISFIT, "convert", file, native);
	assert_says(got.err, "native cannot hold 1 of 2 attributes");
	assert_says(got.err, "attribute ss_tags: a key has 1 to 2060 bytes, a value at most 4096");
	assert_false(exists(native));
	RUN_IS(CLI_WARNINGS, "convert", file, native, "--drop-unsupported");
	assert_says(got.err, "left out: attribute ss_tags");
	RUN_IS(CLI_OK, "show", native, "--json");
	assert_says(got.out, "\"short\"");
	assert_null(strstr(got.out, "ss_tags"));
	RUN_IS(CLI_OK, "convert", file, place("long-again.safetensors"));
}

/* A safetensors file of one tensor, 12 bytes. */
static void file_put(const char *path, const char *dtype)
{
	char header[200];
	FILE *f = fopen(path, "we");
	le64 len;

	snprintf(header, sizeof header,
		 "{\"w\":{\"dtype\":\"%s\",\"shape\":[3],\"data_offsets\":[0,12]}}", dtype);
	len = le64_of(strlen(header));
	assert_int_equal(fwrite(&len, 8, 1, f), 1);
	assert_int_equal(fputs(header, f) >= 0, 1);
	assert_int_equal(fwrite(three, sizeof three, 1, f), 1);
	assert_int_equal(fclose(f), 0);
}

/* --- tied weights of save_model --- */

static void tie_is(const char *dst, const char *alias, const char *kept)
{
	struct strict_file f;
	const char *said;
	char why[200];

	if (!strict_load(dst, &f, why))
		fail_msg("%s: %s", dst, why);
	said = strict_meta(&f, alias);
	if (kept ? !said || strcmp(said, kept) != 0 : said != NULL)
		fail_msg("%s is said to be %s, not %s", alias, said, kept);
	assert_int_equal(strict_find(&f, alias) != NULL, !kept);
	strict_free(&f);
}

TEST(a_tie_of_save_model_comes_through_every_way_as_it_was)
{
	const char *file = "tests/vectors/safetensors/model_tied.safetensors",
		   *native = place("tied"), *a = place("tied-a.safetensors"),
		   *b = place("tied-b.safetensors"), *c = place("tied-c.safetensors"),
		   *d = place("tied-d.safetensors"), *e = place("tied-e.safetensors"),
		   *f = place("tied-f.safetensors"), *ranks = place("tied-ranks"),
		   *view = place("tied.view");
	static const char alias[] = "tok_embeddings.weight", kept[] = "output.weight";

	tie_is(file, alias, kept);
	RUN_IS(0, "convert", file, native);
	RUN_IS(0, "convert", native, a);
	RUN_IS(0, "export", native, b, "--only", "*");
	RUN_IS(0, "export", file, c, "--tied", "once");
	tie_is(a, alias, kept);
	tie_is(b, alias, kept);
	tie_is(c, alias, kept);
	RUN_IS(0, "diff", file, a, "--values");
	RUN_IS(0, "convert", native, d, "--tied", "copy");
	tie_is(d, alias, NULL);
	RUN_IS(0, "export", native, ranks, "--mesh", "fsdp=2", "--layout", "*=Shard(0)@fsdp");
	RUN_IS(0, "convert", ranks, e);
	tie_is(e, alias, kept);
	/* Without the tensor there is no tie; a view that renames it says so. */
	RUN_IS(0, "export", native, f, "--only", "layers.*");
	RUN("show", f, "--json");
	assert_silent(got.out, alias);
	assert_silent(got.out, kept);
	spill(view, "rename output.weight -> out\n");
	SHOWN_IS(0, "convert", native, place("tied-g.safetensors"), "--view", view);
	RUN("show", place("tied-g.safetensors"), "--json");
	assert_silent(got.out, alias);
	spill(view, "copy output.weight -> tok_embeddings.weight\nrename output.weight -> out\n");
	RUN_IS(0, "convert", native, place("tied-h.safetensors"), "--view", view);
	assert_silent(got.err, "left out");
	tie_is(place("tied-h.safetensors"), alias, NULL);
}

TEST(tied_is_refused_where_it_says_nothing)
{
	const char *file = "tests/vectors/safetensors/model_tied.safetensors",
		   *to = place("tied-not");

	SHOWN_IS(CLI_USAGE, "convert", file, to, "--tied", "once");
	SHOWN_IS(CLI_USAGE, "export", file, to, "--mesh", "fsdp=2", "--tied", "copy");
	RUN_IS(CLI_USAGE, "convert", file, to, "--to", "safetensors", "--mesh", "fsdp=2", "--tied",
	       "copy");
	RUN_IS(CLI_USAGE, "export", file, to, "--tied", "twice");
	assert_false(exists(to));
}

TEST(what_no_launch_has_committed_has_no_lineage)
{
	const char *file = place("plain.safetensors"), *native = place("plain-native"),
		   *back = place("plain-back.safetensors");

	file_put(file, "F32");
	RUN_IS(CLI_OK, "convert", file, native, "--step=7", "--job=j");
	RUN_IS(CLI_OK, "convert", native, back);
	for (int i = 0; i < 2; i++) {
		RUN_IS(CLI_OK, "show", i ? back : native);
		assert_says(got.out, "step 7 of j");
		assert_silent(got.out, "lineage");
		RUN("show", i ? back : native, "--json");
		assert_json(0, "ckptd.show/1",
			    "{'step':7, 'seq':null, 'parent':null, 'generation':null}");
	}
}

TEST(of_a_file_that_is_not_understood_no_ckptctl_is_said_to_be_the_writer)
{
	const char *file = place("newer.safetensors");

	file_put(file, "F99");
	RUN_IS(CLI_NEWER, "show", file);
	assert_says(got.err, "dtype F99 is not known");
	assert_says(got.err, "a newer ckptctl may read it");
	assert_silent(got.err, "that wrote it");
	RUN_IS(CLI_NEWER, "verify", file);
	assert_silent(got.err, "that wrote it");
	RUN_IS(CLI_NEWER, "convert", file, place("newer-native"));
	assert_silent(got.err, "that wrote it");
}

/* --- Hugging Face's cache: snapshots/REVISION/NAME is a link to ../../blobs/HASH --- */

/* from, laid out so below `cache`; sets `snapshot`. */
static void cache_lay(const char *from, const char *cache, char snapshot[PATH_MAX])
{
	DIR *d = opendir(from);
	uint32_t n = 0;

	assert_non_null(d);
	snprintf(snapshot, PATH_MAX, "%s/snapshots/0123abcd", cache);
	assert_ok(mkdir(cache, 0700));
	assert_ok(mkdir(path_of("%s/blobs", cache), 0700));
	assert_ok(mkdir(path_of("%s/snapshots", cache), 0700));
	assert_ok(mkdir(snapshot, 0700));
	for (struct dirent *e; (e = readdir(d)); n++) {
		if (e->d_name[0] == '.')
			continue;
		copy_file(path_of("%s/%s", from, e->d_name), path_of("%s/blobs/%u", cache, n));
		assert_ok(symlink(path_of("../../blobs/%u", n),
				  path_of("%s/%s", snapshot, e->d_name)));
	}
	closedir(d);
}

TEST(a_directory_of_links_is_read_like_any_other)
{
	static const char golden[] = "tests/vectors/hf/mixtral";
	const char *native = place("mixtral-native"), *back = place("mixtral-back");
	char snapshot[PATH_MAX];
	size_t len;
	char *bytes;

	cache_lay(golden, place("models--mixtral"), snapshot);
	RUN_IS(CLI_OK, "show", snapshot);
	RUN_IS(CLI_WARNINGS, "verify", "--data", snapshot); /* they have no checksums */
	RUN_IS(CLI_OK, "cat", golden, "lm_head.weight");
	len = got.out_len;
	bytes = malloc(len);
	assert_non_null(bytes);
	memcpy(bytes, got.out, len);
	RUN_IS(CLI_OK, "cat", snapshot, "lm_head.weight");
	assert_int_equal(got.out_len, len);
	assert_memory_equal(got.out, bytes, len);
	free(bytes);
	RUN_IS(CLI_OK, "diff", "--values", snapshot, golden);
	RUN_IS(CLI_OK, "convert", snapshot, native, "--mesh", "fsdp=2");
	RUN_IS(CLI_OK, "convert", native, back, "--to", "safetensors");
	is_still(back, "tests/vectors/hf/mixtral.truth.json");
}

TEST(beside_a_file_but_in_no_directory_of_a_checkpoint_something_is_made)
{
	const char *dir = place("beside"), *file = path_of("%s/one.safetensors", dir),
		   *native = path_of("%s/native", dir);

	assert_ok(mkdir(dir, 0700));
	copy_file("tests/vectors/safetensors/numpy.safetensors", file);
	RUN_IS(CLI_OK, "convert", file, native);
	RUN_IS(CLI_OK, "export", file, path_of("%s/whole", dir), "--mesh", "all=1");
	RUN_IS(CLI_USAGE, "convert", dir, path_of("%s/in", dir));
	RUN_IS(CLI_USAGE, "export", dir, path_of("%s/in", dir), "--mesh", "all=1");
	RUN_IS(CLI_USAGE, "convert", file, path_of("%s/in", native));
	assert_says(got.err, "inside another checkpoint");
	RUN_IS(CLI_USAGE, "export", file, path_of("%s/in", native), "--mesh", "all=1");
	RUN_IS(CLI_OK, "verify", "--data", native);
}

TEST(a_link_in_a_stores_step_is_refused)
{
	const char *store = place("linked-store"), *step, *file, *moved = place("moved.part");

	make_step(store, &(struct how){ "alpha", "fsdp=2", 10, 1, UINT64_MAX, UINT64_MAX, false });
	step = step_path(path_of("%s/alpha", store), 10);
	file = part(step, 1);
	RUN_IS(CLI_OK, "verify", "--data", step);
	assert_ok(rename(file, moved));
	assert_ok(symlink(moved, file));
	RUN_IS(CLI_CORRUPT, "verify", "--data", step);
	RUN_IS(CLI_CORRUPT, "convert", step, place("of-links"), "--mesh", "fsdp=1");
	assert_false(exists(place("of-links")));
}

TEST(a_malformed_golden_file_is_refused)
{
	DIR *d = opendir("tests/vectors/malformed");
	uint32_t n = 0;

	assert_non_null(d);
	for (struct dirent *e; (e = readdir(d));) {
		struct checkpoint *k = NULL;
		char path[600];
		int rc, fd;

		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "tests/vectors/malformed/%s", e->d_name);
		rc = opened(path, &k, &fd);
		close(fd);
		if (k ||
		    (rc != -EPROTO && rc != -EBADMSG && rc != -EUCLEAN && rc != -EPROTONOSUPPORT))
			fail_msg("%s: %d", path, rc);
		assert_true(err.msg[0]);
		n++;
	}
	closedir(d);
	assert_int_equal(n, 15);
}

TEST(every_verb_refuses_a_malformed_file_as_damaged_incomplete_or_unknown)
{
	static const char *const verbs[] = { "show", "verify", "convert" };
	DIR *d = opendir("tests/vectors/malformed");
	char dir[SCRATCH_MAX], dst[400], path[600];

	assert_non_null(d);
	scratch_make(dir);
	snprintf(dst, sizeof dst, "%s/dst", dir);
	for (struct dirent *e; (e = readdir(d));) {
		if (e->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "tests/vectors/malformed/%s", e->d_name);
		for (uint32_t i = 0; i < ARRAY_LEN(verbs); i++) {
			int code = i == 2 ? RUN(verbs[i], path, dst) : RUN(verbs[i], path);

			if (code != 4 && code != 5 && code != 7 && code != 8)
				fail_msg("%s %s: %d", verbs[i], path, code);
			assert_true(got.err[0] || got.out[0]);
			assert_int_not_equal(access(dst, F_OK), 0);
		}
	}
	closedir(d);
	scratch_remove(dir);
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
