/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_foreign.c - ckptctl on checkpoints of a format that is not ckptd's own: one without
 * fingerprints, sums, step or job. What nobody knows is said to be unknown, never equal, checked or
 * 0.
 *
 * The format "bare" is a native step directory with a file BARE in it, of which all is left out
 * that other formats do not have: its files are plain bytes.
 */
#include "ckpt/base/util.h"
#include "formats/native/native.h"
#include "formats/safetensors/safetensors_format.h"
#include "formats/registry/registry.h"
#include "tests/lib/cli_rig.h"

static int bare_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	struct source src = { 0 };
	int rc = dir->entry ? -ENOENT : dir->open(dir->ctx, "BARE", &src);

	snprintf(looked, FORMAT_LOOKED, "no BARE");
	if (!rc && src.close)
		src.close(src.ctx);
	return rc ? 0 : 100;
}

/* Where the byte at `off` of the raw space lies in the file. */
static uint64_t file_offset(const struct format_file *f, uint64_t off)
{
	const struct chunk *c = &f->chunk[off >> f->chunk_log2];

	assert_true(off >> f->chunk_log2 < f->nchunk && c->raw_len);
	return c->off + (off & ((UINT64_C(1) << f->chunk_log2) - 1));
}

static void strip_files(struct checkpoint *k)
{
	for (uint32_t i = 0; i < k->table.npiece; i++) {
		struct table_piece *p = &k->table.piece[i];

		if (p->set.numel)
			p->off = file_offset(&k->file[p->place], p->off);
		p->fp_known = false;
		p->fp = 0;
	}
	for (uint32_t i = 0; i < k->nfile; i++) {
		k->table.place[i].bytes = k->file[i].file_bytes;
		k->file[i].raw_bytes = k->file[i].file_bytes;
		k->file[i].chunk = NULL;
		k->file[i].nchunk = 0;
		k->file[i].nrange = 0;
	}
}

extern const struct format format_bare;

static const char *const *foreign_names(struct table *t)
{
	const char **ret = arena_array(&t->arena, (size_t)t->ntensor + 1, sizeof *ret);

	for (uint32_t i = 0; i < t->ntensor; i++)
		ret[i] = arena_str(&t->arena, path_of("bare:%s", t->tensor[i].name));
	return ret;
}

static int bare_open(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err)
{
	int rc = format_native.open(how, ret, err);
	struct checkpoint *k = *ret;

	if (rc)
		return rc;
	strip_files(k);
	for (uint32_t i = 0; i < k->table.ntensor; i++) {
		k->table.tensor[i].fp_known = false;
		k->table.tensor[i].fp = 0;
	}
	k->format = &format_bare;
	k->foreign_name = foreign_names(&k->table);
	k->has = 0;
	k->id[0] = k->job[0] = 0;
	k->step = k->seq = k->generation = k->wall_ns = 0;
	k->parent_step = UINT64_MAX;
	k->nforeign = 0;
	return 0;
}

const struct format format_bare = {
	.name = "bare",
	.about = "plain files",
	.probe = bare_probe,
	.open = bare_open,
};

/* A second format that lies where a file TWIN does, besides BARE or alone. */
static int twin_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	struct source src = { 0 };
	int rc = dir->entry ? -ENOENT : dir->open(dir->ctx, "TWIN", &src);

	snprintf(looked, FORMAT_LOOKED, "no TWIN");
	if (!rc && src.close)
		src.close(src.ctx);
	return rc ? 0 : 100;
}

/* One file whose first bytes are "lone". */
static int lone_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	struct source src = { 0 };
	char magic[4] = "";

	snprintf(looked, FORMAT_LOOKED, "no file that begins with lone");
	if (!dir->entry || dir->open(dir->ctx, dir->entry, &src))
		return 0;
	if (src.bytes >= 4)
		assert_int_equal(src.read(src.ctx, magic, 4, 0), 0);
	src.close(src.ctx);
	return memcmp(magic, "lone", 4) ? 0 : 75;
}

static int refuse_open(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err)
{
	(void)how;
	*ret = NULL;
	return ckpt_error(err, -EPROTONOSUPPORT, "it is only a test");
}

static const struct format format_twin = { .name = "twin", .probe = twin_probe, .open = bare_open },
			   format_lone = { .name = "lone",
					   .probe = lone_probe,
					   .open = refuse_open };
const struct format *const formats[] = { &format_native, &format_bare,	      &format_twin,
					 &format_lone,	 &format_safetensors, NULL };

/* --- checkpoints --- */

static uint64_t size_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return (uint64_t)st.st_size;
}

static const char *native_step(const char *job, uint64_t step)
{
	return step_path(path_of("%s/%s", work, job), step);
}

/* A copy of a step as a bare checkpoint. */
static char *bare_of(const char *name, const char *job, uint64_t step)
{
	char *to = place(name);

	if (exists(to))
		remove_tree(to);
	copy_step(native_step(job, step), to);
	spill(path_of("%s/BARE", to), "");
	return to;
}

static json_t *diff_json(int code, const char *a, const char *b, const char *option)
{
	RUN("diff", a, b, "--json", option);
	if (got.code != code)
		fail_msg("diff is %d, not %d: %s%s", got.code, code, got.out, got.err);
	return json_out("ckptd.diff/1");
}

TEST(what_has_no_fingerprint_is_read_and_what_is_equal_bit_by_bit_is_equal)
{
	const char *plain = native_step("alpha", 10), *same = bare_of("same", "alpha", 10),
		   *mesh = bare_of("mesh", "gamma", 10);
	json_t *j = diff_json(0, plain, same, NULL);

	assert_json_has(j, "{'equal':true, 'compared_by_reading_count':23}");
	json_decref(j);
	/* on another mesh, and neither side has any */
	j = diff_json(0, same, mesh, NULL);
	assert_json_has(j, "{'equal':true, 'compared_by_reading_count':23, 'mesh_differs':true}");
	json_decref(j);
	SHOWN_IS(0, "diff", same, mesh);
	j = diff_json(0, same, mesh, "--values");
	assert_json_has(j, "{'equal':true, 'compared_by_reading_count':23}");
	json_decref(j);
}

TEST(what_differs_by_one_bit_differs_also_without_fingerprints)
{
	const char *a = bare_of("a", "alpha", 10), *b = bare_of("b", "alpha", 10);
	json_t *j;

	flip(part(b, 1), 4096 + 5);
	j = diff_json(6, a, b, NULL);
	assert_json_has(j, "{'equal':false, 'compared_by_reading_count':23}");
	assert_int_equal(number(member(j, "counts", JSON_OBJECT), "contents"), 1);
	assert_int_equal(number(member(j, "counts", JSON_OBJECT), "unknown"), 0);
	json_decref(j);
	j = diff_json(6, a, b, "--values");
	assert_json_has(item(j, "differences", 0), "{'kind':'contents'}");
	assert_json_has(member(item(j, "differences", 0), "values", JSON_OBJECT),
			"{'bits_differ_count':1}");
	json_decref(j);
	SHOWN_IS(6, "diff", a, b);
	/* two models */
	j = diff_json(6, bare_of("model-a", "alpha", 10), bare_of("model-b", "alpha", 20), NULL);
	assert_int_equal(number(member(j, "counts", JSON_OBJECT), "contents"), 21);
	json_decref(j);
}

TEST(what_was_not_read_is_unknown_and_never_equal)
{
	const char *a = bare_of("a", "alpha", 10), *b = bare_of("b", "alpha", 20);
	json_t *j = diff_json(3, a, a, "--no-read");

	assert_json_has(j, "{'equal':null, 'compared_by_reading_count':0}");
	assert_int_equal(number(member(j, "counts", JSON_OBJECT), "unknown"), 23);
	json_decref(j);
	SHOWN_IS(3, "diff", a, b, "--no-read");
	assert_silent(got.out, "equal:");
	/* with fingerprints on one side it is no better; with them on both nothing is read */
	json_decref(diff_json(3, native_step("alpha", 10), a, "--no-read"));
	json_decref(diff_json(0, native_step("alpha", 10), native_step("gamma", 10), "--no-read"));
	/* a difference that is known stays one */
	json_decref(diff_json(6, a, bare_of("delta", "delta", 10), "--no-read"));
	RUN_IS(2, "diff", a, b, "--no-read", "--values");
}

static uint64_t parts_bytes(const char *step)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < 4; i++)
		bytes += size_of(part(step, i));
	return bytes;
}

static const json_t *one_verified(int code, const char *path, const char *option)
{
	RUN("verify", path, "--json", option);
	if (got.code != code)
		fail_msg("verify is %d, not %d: %s%s", got.code, code, got.out, got.err);
	return item(json_kept(json_out("ckptd.verify/1")), "checkpoints", 0);
}

TEST(verify_says_how_many_bytes_have_sums_and_how_many_have_none)
{
	const char *bare = bare_of("bare", "alpha", 10);
	const json_t *x = one_verified(0, native_step("alpha", 10), "--data");

	assert_int_equal(number(x, "unsummed_bytes"), 0);
	assert_int_equal(number(x, "summed_bytes"), parts_bytes(native_step("alpha", 10)));
	/* its structure is all that can be checked, and nobody says that its bytes are right */
	x = one_verified(3, bare, "--data");
	assert_int_equal(number(x, "summed_bytes"), 0);
	assert_int_equal(number(x, "unsummed_bytes"), parts_bytes(bare));
	assert_json_has(x, "{'ok':true, 'data_read':'all', 'step':null, 'job':null, 'mark':null}");
	/* of some of the bytes it says what was read, not what there is */
	x = one_verified(3, bare, "--data-subset=1/2");
	assert_int_equal(number(x, "unsummed_bytes"), number(x, "checked_data_bytes"));
	assert_true(number(x, "unsummed_bytes") < parts_bytes(bare));
	SHOWN_IS(3, "verify", "--data", bare);
	assert_silent(got.out, "every byte checked");
	assert_silent(got.out, "good");
	flip(part(bare, 1), 8000);
	one_verified(3, bare, "--data");
	one_verified(0, bare, NULL);
}

TEST(what_a_format_does_not_know_is_shown_by_no_verb)
{
	const char *bare = bare_of("bare", "alpha", 10);
	json_t *j;

	SHOWN_IS(0, "show", bare);
	SHOWN_IS(0, "stats", bare);
	SHOWN_IS(0, "show", bare, "model/embed.weight");
	SHOWN_IS(0, "cat", bare, "model/embed.weight", "--stats");
	SHOWN_IS(0, "show", bare, "--files");
	j = json_run("ckptd.show/1", "show", bare, "--json");
	assert_json_has(j,
			"{'step':null, 'job':null, 'seq':null, 'created':null, 'generation':null, "
			"'world_size':null, 'id':null, 'format':'bare'}");
	assert_json_has(item(j, "tensors", 0), "{'fingerprint':null}");
	j = json_run("ckptd.stats/1", "stats", bare, "--json");
	assert_json_has(j, "{'step':null, 'job':null, 'contents_known':false, 'equal_bytes':null, "
			   "'zero_tensor_count':null, 'held_bytes':null}");
	j = json_run("ckptd.cat/1", "cat", bare, "model/embed.weight", "--json");
	assert_json_has(j, "{'step':null, 'job':null}");
	j = json_run("ckptd.restore/1", "export", bare, path_of("%s/exported", work), "--only",
		     "model/embed*", "--json");
	assert_json_has(j, "{'step':null, 'job':null}");
	SHOWN_IS(0, "export", bare, path_of("%s/alone", work), "--only", "model/embed*");
	SHOWN_IS(10, "show", bare, "model/none");
}

TEST(a_tensor_is_found_by_the_name_that_its_own_format_gives_it)
{
	const char *bare = bare_of("bare", "alpha", 10);
	json_t *j = json_run("ckptd.show/1", "show", bare, "bare:embed.weight", "--json");

	assert_json_has(item(j, "tensors", 0),
			"{'name':'embed.weight', 'foreign_name':'bare:embed.weight'}");
	RUN_IS(0, "show", bare, "--tensors", "bare:embed*");
	RUN_IS(0, "cat", bare, "bare:embed.weight");
	RUN_IS(0, "stats", bare, "--tensors", "bare:*");
	RUN_IS(0, "diff", bare, bare, "--tensors", "bare:embed*");
	RUN_IS(0, "convert", bare, path_of("%s/by-name", top), "--only", "bare:embed*");
	j = json_run("ckptd.show/1", "show", path_of("%s/by-name", top), "--json", "--tensors",
		     "*");
	assert_int_equal(json_array_size(json_object_get(j, "tensors")), 4);
	j = json_run("ckptd.restore/1", "export", bare, path_of("%s/exported", top), "--only",
		     "bare:embed*", "--json");
	assert_json_has(item(j, "only", 0), "{'tensor_count':4}");
	RUN_IS(2, "export", bare, path_of("%s/none", top), "--only", "bare:none*");
	RUN_IS(10, "show", native_step("alpha", 10), "bare:embed.weight");
	j = json_run("ckptd.show/1", "show", native_step("alpha", 10), "model/embed.weight",
		     "--json");
	assert_json_has(item(j, "tensors", 0), "{'foreign_name':null}");
}

/* Each verb that takes names of tensors takes the name, component/name, and that of the format. */
TEST(every_verb_takes_a_name_with_and_without_its_component_and_that_of_the_format)
{
	static const char *const called[] = { "stats.sum", "model/stats.sum", "bare:stats.sum" };
	char bare[PATH_MAX], to[PATH_MAX], out[PATH_MAX];

	snprintf(bare, sizeof bare, "%s", bare_of("named", "alpha", 10));

	for (uint32_t i = 0; i < ARRAY_LEN(called); i++) {
		const char *name = called[i];
		json_t *j = json_run("ckptd.show/1", "show", bare, name, "--json");

		snprintf(to, sizeof to, "%s/named-%u", top, i);
		snprintf(out, sizeof out, "%s/named-out-%u", top, i);
		assert_string_equal(string(item(j, "tensors", 0), "component"), "model");
		j = json_run("ckptd.show/1", "show", bare, "--tensors", name, "--json");
		assert_string_equal(string(item(j, "tensors", 0), "name"), "stats.sum");
		RUN_IS(0, "show", bare, "--map", name);
		RUN_IS(0, "cat", bare, name, "--stats");
		RUN_IS(0, "stats", bare, "--tensors", name);
		RUN_IS(0, "diff", bare, bare, "--tensors", name);
		RUN_IS(0, "convert", bare, to, "--only", name);
		RUN_IS(0, "show", to, "model/stats.sum");
		RUN_IS(10, "show", to, "model/embed.weight");
		RUN_IS(0, "export", bare, out, "--only", name);
		RUN_IS(0, "cat", path_of("%s/model.safetensors", out), "stats.sum");
	}
}

/* --- which format it is --- */

static const char *format_of(const char *path, const char *option)
{
	json_t *j;

	RUN("show", path, "--json", option);
	if (got.code)
		return NULL;
	j = json_kept(json_out("ckptd.show/1"));
	return string(j, "format");
}

TEST(the_most_confident_format_is_chosen_and_from_forces_another)
{
	const char *both = bare_of("chosen", "alpha", 10), *plain = place("copied");

	assert_string_equal(format_of(both, NULL), "bare");
	assert_string_equal(format_of(both, "--from=native"), "native");
	copy_step(native_step("alpha", 10), plain);
	assert_string_equal(format_of(plain, NULL), "native");
	/* what the store finds by a step's name is the store's format, whatever lies in it */
	assert_string_equal(format_of(native_step("alpha", 10), NULL), "native");
	RUN_IS(2, "show", native_step("alpha", 10), "--from=bare");
	RUN_IS(2, "show", both, "--from=nothing");
	assert_says(got.err, "native, bare, twin, lone");
}

TEST(two_formats_that_fit_equally_are_refused_with_both_names)
{
	const char *both = bare_of("torn", "alpha", 10);

	spill(path_of("%s/TWIN", both), "");
	SHOWN_IS(2, "show", both);
	assert_says(got.err, "bare and twin");
	assert_string_equal(format_of(both, "--from=twin"), "twin");
	RUN_IS(0, "diff", both, both, "--from=bare");
}

TEST(where_no_format_fits_each_says_what_it_looked_for)
{
	const char *empty = place("empty"), *manifest = place("others"), *file = place("file.txt");

	assert_int_equal(mkdir(empty, 0700), 0);
	assert_int_equal(mkdir(manifest, 0700), 0);
	spill(path_of("%s/MANIFEST", manifest), "include README.md\n");
	spill(file, "hello");
	SHOWN_IS(10, "show", empty);
	SHOWN_IS(10, "verify", manifest);
	SHOWN_IS(10, "show", file);
	RUN_IS(10, "show", file);
	assert_says(got.err, "no file that begins with lone");
	assert_silent(got.err, "damaged");
	RUN_IS(10, "show", path_of("%s/nothing", top));
	/* a file is one format's, and its answer is the answer */
	spill(file, "lone file");
	SHOWN_IS(8, "show", file);
	/* a job's directory is no checkpoint, and that is said */
	SHOWN_IS(10, "show", path_of("%s/alpha", work));
}

static int make_more(void **state)
{
	static const struct how more[] = {
		{ "gamma", "dp=2,fsdp=2", 10, 1, UINT64_MAX, UINT64_MAX, false },
		{ "delta", "fsdp=2", 10, 1, UINT64_MAX, UINT64_MAX, false }
	};

	if (make_all(state))
		return -1;
	for (size_t i = 0; i < ARRAY_LEN(more); i++)
		make_step(work, &more[i]);
	return 0;
}

UNIT(.group_setup = make_more, .group_teardown = drop_all);
