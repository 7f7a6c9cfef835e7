/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_verbs.c - ckptctl as its users meet it: text, JSON, exit codes, on stores that hold
 * several jobs and on every kind of damage. The program runs in this process through cli_run; the
 * stores are made by the rooms below, from the sample model.
 */
#include "formats/native/native.h"
#include "tests/lib/cli_rig.h"
#include "tests/lib/row.h"

/* --- stores without anything --- */

TEST(an_empty_store_is_no_failure_but_holds_no_checkpoint)
{
	const char *empty = path_of("%s/empty", top);

	assert_int_equal(mkdir(empty, 0700), 0);
	SHOWN_IS(0, "ls", empty);
	RUN("ls", empty, "--json");
	assert_json(0, "ckptd.ls/1", "{'checkpoints':[]}");
	RUN_IS(0, "verify", "--all", empty);
	RUN("verify", "--data", "--all", "-C", empty, "--json");
	assert_json(0, "ckptd.verify/1", "{'checked_bytes':0, 'faults':[]}");
	RUN_IS(10, "show", "-C", empty);
	RUN_IS(10, "verify", "-C", empty);
	RUN_IS(10, "--json", "show", "-C", empty);
	assert_json_error(10);
	assert_string_equal(got.out, "");
}

TEST(a_path_that_does_not_exist_is_ten_everywhere)
{
	const char *none = path_of("%s/none", top);

	SHOWN_IS(10, "ls", none);
	RUN_IS(10, "ls", "-C", none);
	RUN_IS(10, "verify", "--all", none);
	RUN_IS(10, "verify", none);
	RUN_IS(10, "show", none);
	RUN_IS(10, "show", "-C", none);
	RUN_IS(10, "show", "-C", work, "no-such-name");
	SHOWN_IS(10, "show", "-C", path_of("%s/alpha", work), "step:11");
	RUN_IS(10, "ls", none, "--json");
	assert_json_error(10);
	RUN_IS(10, "verify", "--all", none, "--json");
	assert_json_error(10);
}

/* --- ls --- */

TEST(ls_lists_what_is_committed_newest_first)
{
	static const uint64_t steps[] = { 30, 25, 20, 10 };
	json_t *j, *list;

	j = json_run("ckptd.ls/1", "ls", work, "--json");
	list = json_object_get(j, "checkpoints");
	assert_int_equal(json_array_size(list), 4);
	for (size_t i = 0; i < 4; i++) {
		json_t *x = json_array_get(list, i);
		const char *job = steps[i] == 25 ? "beta" : "alpha";
		const char *path = path_of("%s/%s/step-%012d", work, job, (int)steps[i]);

		assert_int_equal(number(x, "step"), steps[i]);
		assert_string_equal(string(x, "job"), job);
		assert_string_equal(string(x, "path"), path);
		assert_json_has(x, "{'state':'committed', 'format':'native'}");
		assert_string_equal(string(x, "mesh"), steps[i] == 25 ? "dp=2,fsdp=2" : "fsdp=4");
		assert_int_equal(number(x, "world_size"), 4);
		assert_true(number(x, "bytes") > MIB);
		assert_int_equal(number(x, "seq"), steps[i] == 25 ? 1 : steps[i] / 10);
		if (steps[i] == 10 || steps[i] == 25)
			member(x, "parent", JSON_NULL);
		else
			assert_int_equal(number(x, "parent"), steps[i] - 10);
		assert_int_equal(number(x, "created_ns"), WALL_NS + steps[i] * NS_PER_S);
		assert_int_equal(strlen(string(x, "created")), 20);
	}
}

TEST(ls_as_text_is_a_table_with_jobs_where_there_are_several)
{
	SHOWN_IS(0, "ls", work);
	SHOWN_IS(0, "ls", path_of("%s/alpha", work));
	assert_string_equal(got.err, "");
}

TEST(the_store_comes_from_the_argument_the_option_or_the_environment)
{
	char cwd[PATH_MAX], *want;

	RUN_IS(0, "ls", work, "--json");
	want = strdup(got.out);
	RUN_IS(0, "ls", "--json", "-C", work);
	assert_string_equal(got.out, want);
	RUN_IS(0, "-C", work, "ls", "--json");
	assert_string_equal(got.out, want);
	RUN_IS(0, "--json", path_of("--store=%s", work), "ls");
	assert_string_equal(got.out, want);
	setenv("CKPTD_STORE", work, 1);
	RUN_IS(0, "ls", "--json");
	assert_string_equal(got.out, want);
	RUN_IS(0, "ls", "--json", "-C", path_of("%s/empty", top));
	assert_string_not_equal(got.out, want);
	unsetenv("CKPTD_STORE");
	assert_non_null(getcwd(cwd, sizeof cwd));
	assert_int_equal(chdir(work), 0);
	RUN_IS(0, "ls", "--json");
	assert_string_equal(got.out, want);
	RUN_IS(0, "ls", ".", "--json");
	assert_string_equal(got.out, want);
	assert_int_equal(chdir(cwd), 0);
	free(want);
}

TEST(what_is_unfinished_or_set_aside_appears_with_all_only_and_damage_always)
{
	const char *root = path_of("%s/line", top);
	uint32_t seen[4] = { 0 };
	json_t *j, *list;

	assert_int_equal(mkdir(root, 0700), 0);
	make_step(root, &(struct how){ "run", "fsdp=2", 1, 1, UINT64_MAX, UINT64_MAX, false });
	make_step(root, &(struct how){ "run", "fsdp=2", 2, 2, 1, 1, false });
	make_step(root, &(struct how){ "run", "fsdp=2", 3, 3, 1, 1, false }); /* sets 2 aside */
	make_step(root, &(struct how){ "run", "fsdp=2", 4, 4, 3, 3, false });
	make_step(root, &(struct how){ "run", "fsdp=2", 5, 0, 0, 0, true });
	j = json_run("ckptd.ls/1", "ls", root, "--json");
	assert_int_equal(count(j, "checkpoints"), 3);
	RUN_IS(0, "verify", "--data", "--all", root);

	assert_int_equal(truncate(path_of("%s/run/step-000000000004/MANIFEST", root), 100), 0);
	SHOWN_IS(3, "ls", root);
	RUN_IS(3, "ls", root, "--json");
	j = json_kept(json_out("ckptd.ls/1"));
	assert_int_equal(count(j, "checkpoints"), 3);
	assert_string_equal(string(item(j, "checkpoints", 0), "state"), "damaged");
	SHOWN_IS(3, "ls", root, "--all");
	RUN_IS(3, "ls", root, "--all", "--json");
	j = json_kept(json_out("ckptd.ls/1"));
	list = json_object_get(j, "checkpoints");
	assert_int_equal(json_array_size(list), 5);
	for (size_t i = 0; i < 5; i++) {
		const char *s = string(json_array_get(list, i), "state");

		seen[0] += !strcmp(s, "committed");
		if (!strcmp(s, "collecting")) /* its links are not counted yet */
			assert_true(json_is_null(
				json_object_get(json_array_get(list, i), "shared_bytes")));
		seen[1] += !strcmp(s, "collecting");
		seen[2] += !strcmp(s, "set-aside");
		seen[3] += !strcmp(s, "damaged");
		if (!strcmp(s, "damaged"))
			assert_true(strlen(string(json_array_get(list, i), "why")) > 0);
	}
	assert_int_equal(seen[0], 2);
	assert_int_equal(seen[1], 1);
	assert_int_equal(seen[2], 1);
	assert_int_equal(seen[3], 1);
	RUN_IS(4, "verify", "--all", root);
	SHOWN_IS(4, "show", "-C", root, "step:4");
	SHOWN_IS(3, "show", "-C", root);
	RUN_IS(3, "show", "-C", root, "latest~1");
	RUN_IS(10, "show", "-C", root, "step:2");
	/* Unfinished: by number, and by path. */
	RUN_IS(5, "show", "-C", root, "step:5");
	RUN_IS(5, "verify", "-C", root, "step:5", "--json");
	assert_json_error(5);
	for (size_t i = 0; i < 2; i++) {
		char tmp[PATH_MAX] = "";
		DIR *d = opendir(path_of("%s/run", root));

		for (struct dirent *e; (e = readdir(d));)
			if (!strncmp(e->d_name, ".tmp-", 5))
				snprintf(tmp, sizeof tmp, "%s/run/%s", root, e->d_name);
		closedir(d);
		assert_true(*tmp);
		RUN_IS(5, i ? "show" : "verify", tmp);
	}
}

TEST(a_checkpoint_in_place_of_a_store_is_told_apart)
{
	SHOWN_IS(2, "ls", path_of("%s/beta/step-000000000025", work));
	SHOWN_IS(2, "verify", "--all", path_of("%s/beta/step-000000000025", work));
}

/* --- show --- */

static uint64_t total(const json_t *dim)
{
	uint64_t n = 0;

	for (size_t i = 0; i < json_array_size(dim); i++) {
		const json_t *r = json_array_get(dim, i);

		if (json_is_array(r))
			n += (uint64_t)(json_integer_value(json_array_get(r, 1)) -
					json_integer_value(json_array_get(r, 0)));
		else
			n += number(r, "len") * number(r, "count");
	}
	return n;
}

/* The pieces of a tensor hold all its elements, and lie in the files where show says. */
static void check_pieces(const json_t *x, const char *path, uint64_t step)
{
	const json_t *pieces = member(x, "pieces", JSON_ARRAY),
		     *shape = member(x, "shape", JSON_ARRAY);
	uint64_t numel = 1, sum = 0, bytes = 0;
	uint32_t elem = dtype_bytes(dtype_of_name(string(x, "dtype")));

	for (size_t d = 0; d < json_array_size(shape); d++)
		numel *= (uint64_t)json_integer_value(json_array_get(shape, d));
	for (size_t i = 0; i < json_array_size(pieces); i++) {
		const json_t *p = json_array_get(pieces, i),
			     *index = member(p, "index", JSON_ARRAY);
		uint64_t n = 1, first = 0;
		uint8_t want[16], have[16];
		struct table_tensor t = { 0 };
		uint64_t dims[CKPT_DIMS_MAX];
		int fd;

		assert_int_equal(json_array_size(index), json_array_size(shape));
		for (size_t d = 0; d < json_array_size(index); d++) {
			const json_t *run0 = json_array_get(json_array_get(index, d), 0);
			uint64_t at =
				json_is_array(run0)
					? (uint64_t)json_integer_value(json_array_get(run0, 0))
					: number(run0, "start");

			n *= total(json_array_get(index, d));
			dims[d] = (uint64_t)json_integer_value(json_array_get(shape, d));
			first = first * dims[d] + at;
		}
		assert_true(number(p, "rank") < 4);
		assert_int_equal(number(p, "bytes"), n * elem);
		sum += n;
		bytes += number(p, "bytes");
		t = (struct table_tensor)ROW(.component = string(x, "component"),
					     .name = string(x, "name"), .of = "",
					     .elem_bytes = elem,
					     .dtype = dtype_of_name(string(x, "dtype")),
					     .rank = TABLE_NONE,
					     .ndim = (uint32_t)json_array_size(shape),
					     .shape = dims, .numel = numel, .role = CKPT_OTHER);
		if (json_is_integer(json_object_get(x, "rank")))
			t.rank = (uint32_t)number(x, "rank");
		for (uint32_t c = 0; c <= CKPT_SINK; c++)
			if (!strcmp(class_name(c), string(x, "class")))
				t.cls = c;
		t.flags = strcmp(t.component, "blob") ? 0 : TENSOR_BLOB;
		sample_truth(SEED, &t, first, step, want);
		fd = open(path_of("%s/%s", path, string(p, "file")), O_RDONLY);
		assert_true(fd >= 0);
		assert_int_equal(pread(fd, have, elem, (off_t)number(p, "offset")), elem);
		close(fd);
		assert_memory_equal(have, want, elem);
	}
	assert_int_equal(sum, numel);
	assert_int_equal(bytes, number(x, "bytes"));
}

TEST(show_tells_a_program_everything)
{
	const char *path = path_of("%s/alpha/step-000000000030", work);
	json_t *j, *list;
	uint64_t bytes = 0, elements;

	j = json_run("ckptd.show/1", "show", "--json", "-C", path_of("%s/alpha", work));
	assert_string_equal(string(j, "path"), path);
	assert_json_has(
		j,
		"{'job':'alpha', 'step':30, 'seq':3, 'parent':20, 'world_size':4, 'mesh':'fsdp=4', 'format':'native', 'tool':'ckptd 0.2.0', 'created':'2023-11-14T22:13:50Z'}");
	assert_int_equal(strlen(string(j, "id")), 32);
	assert_int_equal(count(j, "parts"), 4);
	assert_true(json_real_value(json_object_get(member(j, "notes", JSON_OBJECT), "loss")) ==
		    2.5);
	list = json_object_get(j, "tensors");
	assert_true(json_array_size(list) > 15);
	assert_int_equal(json_array_size(list), number(j, "tensor_count"));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *x = json_array_get(list, i);

		assert_true(dtype_of_name(string(x, "dtype")) != 0);
		assert_int_equal(strspn(string(x, "fingerprint"), "0123456789abcdef"), 16);
		assert_int_equal(strlen(string(x, "fingerprint")), 16);
		string(x, "role");
		bytes += number(x, "bytes");
		check_pieces(x, path, 30);
	}
	assert_int_equal(bytes, number(j, "tensor_bytes"));
	bytes = 0;
	elements = 0;
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *shape = json_object_get(json_array_get(list, i), "shape");
		uint64_t numel = 1;

		for (size_t d = 0; d < json_array_size(shape); d++)
			numel *= (uint64_t)json_integer_value(json_array_get(shape, d));
		elements += numel;
	}
	for (size_t i = 0; i < count(j, "groups"); i++)
		elements -= number(item(j, "groups", i), "elements");
	assert_int_equal(elements, 0);
	for (size_t i = 0; i < count(j, "groups"); i++)
		bytes += number(item(j, "groups", i), "bytes");
	assert_int_equal(bytes, number(j, "tensor_bytes"));
}

TEST(show_tells_a_person_the_summary)
{
	SHOWN_IS(0, "show", "-C", path_of("%s/alpha", work), "step:20");
	assert_string_equal(got.err, "");
}

TEST(a_checkpoint_has_many_names)
{
	static const struct {
		const char *name;
		uint64_t step;
	} names[] = { { "latest", 30 },
		      { "latest~0", 30 },
		      { "latest~2", 10 },
		      { "step:20", 20 },
		      { "step-000000000010", 10 } };

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		json_t *j;

		j = json_run("ckptd.show/1", "show", "-C", path_of("%s/alpha", work), names[i].name,
			     "--json");
		assert_int_equal(number(j, "step"), names[i].step);
	}
	SHOWN_IS(0, "show", path_of("%s/beta/step-000000000025", work));
	RUN_IS(10, "show", "-C", path_of("%s/alpha", work), "latest~9");
	RUN_IS(2, "show", "-C", path_of("%s/alpha", work), "latest~x");
}

TEST(several_jobs_are_listed_when_one_must_be_named)
{
	SHOWN_IS(2, "show", "-C", work);
	RUN_IS(2, "verify", "-C", work, "step:10", "--json");
	assert_json_error(2);
}

TEST(a_copied_and_renamed_step_needs_no_store)
{
	const char *copy = path_of("%s/some copy", top);

	copy_step(path_of("%s/alpha/step-000000000020", work), copy);
	SHOWN_IS(0, "show", copy);
	RUN_IS(0, "verify", "--data", copy);
	remove_tree(copy);
}

TEST(one_tensor_is_shown_with_the_rows_of_its_ranks)
{
	json_t *j, *list;

	SHOWN_IS(0, "-C", path_of("%s/alpha", work), "show", "latest", "optim/embed.weight.master");
	/* A bare name is enough, and a program still gets one document of the same kind. */
	j = json_run("ckptd.show/1", "-C", path_of("%s/alpha", work), "show", "latest",
		     "embed.weight.master", "--json");
	list = json_object_get(j, "tensors");
	assert_int_equal(json_array_size(list), 1);
	assert_string_equal(string(json_array_get(list, 0), "component"), "optim");
	assert_int_equal(json_array_size(member(json_array_get(list, 0), "pieces", JSON_ARRAY)), 4);
	/* What exists once per rank is one row each. */
	SHOWN_IS(0, "-C", path_of("%s/alpha", work), "show", "latest", "blob/rng");
}

TEST(tensors_are_listed_by_a_glob)
{
	json_t *j;

	SHOWN_IS(0, "-C", path_of("%s/alpha", work), "show", "--tensors=model/layers.*");
	j = json_run("ckptd.show/1", "-C", path_of("%s/alpha", work), "show", "step:10",
		     "--tensors", "*", "--json");
	assert_int_equal(count(j, "tensors"), number(j, "tensor_count"));
	RUN_IS(10, "-C", path_of("%s/alpha", work), "show", "--tensors=nope*");
	RUN_IS(2, "-C", path_of("%s/alpha", work), "show", "latest", "mask", "--tensors=*");
}

TEST(a_tensor_that_does_not_exist_brings_its_neighbours)
{
	SHOWN_IS(10, "-C", path_of("%s/alpha", work), "show", "latest", "layers.0.wk");
	RUN_IS(10, "-C", path_of("%s/alpha", work), "show", "latest", "model/rope.tabel", "--json");
	assert_json_error(10);
	assert_says(got.err, "model/rope.table");
}

/* --- verify --- */

TEST(a_good_checkpoint_is_called_good_and_all_of_it_was_read)
{
	json_t *j;
	uint64_t structure;

	SHOWN_IS(0, "verify", "-C", path_of("%s/alpha", work));
	j = json_run("ckptd.verify/1", "verify", "-C", path_of("%s/alpha", work), "--json");
	structure = number(j, "checked_bytes");
	assert_true(structure > 0);
	j = json_run("ckptd.verify/1", "verify", "--data", "-C", path_of("%s/alpha", work),
		     "latest", "step:10", "--json");
	assert_int_equal(count(j, "faults"), 0);
	assert_int_equal(count(j, "checkpoints"), 2);
	for (size_t i = 0; i < 2; i++) {
		const json_t *x = item(j, "checkpoints", i);

		assert_true(json_is_true(json_object_get(x, "ok")));
		assert_int_equal(number(x, "checked_bytes"), number(x, "bytes"));
		assert_true(number(x, "checked_bytes") > structure);
	}
	SHOWN_IS(0, "verify", "--all", "--data", work);
	assert_string_equal(got.err, "");
}

static int64_t size_of(const char *file)
{
	struct stat st;

	assert_int_equal(stat(file, &st), 0);
	return st.st_size;
}

/* Where the data of a part end: its trailer says. */
static int64_t data_end(const char *file)
{
	int fd = open(file, O_RDONLY);
	le64 end;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &end, sizeof end,
			       size_of(file) - 4096 + (int64_t)offsetof(struct ck_tail, data_end)),
			 sizeof end);
	close(fd);
	return (int64_t)le64_get(end);
}

static void add_file(const char *p)
{
	copy_file(part(p, 0), path_of("%s/extra", p));
}
static void add_part(const char *p)
{
	copy_file(part(p, 0), path_of("%s/w0009-00000000-000.part", p));
}
static void remove_part(const char *p)
{
	assert_int_equal(unlink(part(p, 2)), 0);
}
static void remove_manifest(const char *p)
{
	assert_int_equal(unlink(path_of("%s/MANIFEST", p)), 0);
}
static void rename_part(const char *p)
{
	assert_int_equal(rename(part(p, 0), path_of("%s/w0009-00000000-000.part", p)), 0);
}

static void swap_parts(const char *p)
{
	const char *a = part(p, 0), *b = part(p, 1), *spare = path_of("%s/spare", p);

	assert_int_equal(rename(a, spare), 0);
	assert_int_equal(rename(b, a), 0);
	assert_int_equal(rename(spare, b), 0);
}

static void part_of_another_step(const char *p)
{
	const char *to = part(p, 0);

	assert_int_equal(unlink(to), 0);
	copy_file(part(path_of("%s/alpha/step-000000000010", work), 0), to);
}

static void part_becomes_a_link(const char *p)
{
	const char *at = part(p, 0), *away = path_of("%s/linked", top);

	unlink(away);
	assert_int_equal(rename(at, away), 0);
	assert_int_equal(symlink(away, at), 0);
}

/* An entry that is none of the checkpoint's is a warning of verify, and nothing to anybody else. */
TEST(a_foreign_file_is_a_warning_and_no_obstacle)
{
	const char *root = path_of("%s/foreign", top), *job = path_of("%s/alpha", root);
	char step[PATH_MAX], out[PATH_MAX];
	json_t *j, *x;

	assert_int_equal(mkdir(root, 0700), 0);
	assert_int_equal(mkdir(job, 0700), 0);
	assert_int_equal(mkdir(path_of("%s/.ckptd", job), 0700), 0);
	snprintf(step, sizeof step, "%s/step-000000000020", job);
	copy_step(path_of("%s/alpha/step-000000000020", work), step);
	copy_file(part(step, 0), path_of("%s/.nfs0001", step));
	for (uint32_t data = 0; data < 2; data++) {
		SHOWN_IS(3, "verify", data ? "--data" : "--no-mark", step);
	}
	RUN_IS(3, "verify", "--data", "--all", root);
	RUN_IS(10, "verify", "-C", root, "step:20", "step:77");
	add_file(step);
	add_part(step);
	assert_int_equal(mkdir(path_of("%s/lost+found", step), 0700), 0);
	assert_int_equal(symlink("/", path_of("%s/root", step)), 0);
	RUN_IS(3, "verify", "--data", step, "--json");
	j = json_out("ckptd.verify/1");
	x = item(j, "checkpoints", 0);
	assert_json_has(x, "{'ok':true, 'fault_count':0, 'foreign_count':5}");
	assert_int_equal(count(x, "foreign"), 5);
	string(item(x, "foreign", 0), "file");
	assert_string_equal(string(x, "mark"), "verified");
	json_decref(j);
	/* Nobody minds: it is not quarantined, and is read like any other. */
	SHOWN_IS(0, "ls", root);
	snprintf(out, sizeof out, "%s/out", top);
	RUN_IS(0, "show", "-C", job);
	RUN_IS(0, "stats", "-C", job);
	RUN_IS(0, "diff", "--values", step, path_of("%s/alpha/step-000000000020", work));
	RUN_IS(0, "convert", step, out, "--mesh", "fsdp=1");
	remove_tree(out);
	RUN_IS(0, "cat", "-C", job, "latest", "model/embed.weight", "--stats");
	/* Damage is damage all the same. */
	flip(part(step, 0), 4096);
	RUN_IS(4, "verify", "--data", step);
	remove_tree(root);
}

/* Bytes that nothing uses and no sum covers: told, and no obstacle to anybody. */
TEST(padding_that_is_not_zero_is_a_warning_and_no_obstacle)
{
	const char *step = path_of("%s/odd", top);
	json_t *j;

	copy_step(path_of("%s/alpha/step-000000000020", work), step);
	flip(part(step, 3), -4097);
	for (uint32_t data = 0; data < 2; data++)
		SHOWN_IS(3, "verify", data ? "--data" : "--no-mark", step);
	RUN_IS(3, "verify", "--data", "--json", step);
	j = json_out("ckptd.verify/1");
	assert_json_has(item(j, "checkpoints", 0),
			"{'ok':true, 'fault_count':0, 'padding_count':1, 'mark':null}");
	assert_json_has(item(j, "faults", 0), "{'kind':'padding'}");
	json_decref(j);
	RUN_IS(0, "show", step);
	RUN_IS(0, "diff", "--values", step, path_of("%s/alpha/step-000000000020", work));
	remove_tree(step);
}

/* One way to damage a step: something is done, or a bit of a file is flipped, or the file gets
 * another length. */
struct damage {
	const char *name, *kind; /* kind: one of the faults; NULL: any */
	void (*inflict)(const char *path);
	int part; /* its number; -1: MANIFEST */
	enum { FLIP, CUT } how;
	enum { START, DATA_END, DATA_MIDDLE, END } from;
	int64_t at;
	bool data_only; /* structure alone does not see it */
};

static const struct damage damages[] = {
	{ "magic", "checksum", NULL, 0, FLIP, START, 0, false },
	{ "version", "checksum", NULL, 1, FLIP, START, 8, false },
	{ "header, a zero", "checksum", NULL, 1, FLIP, START, 2000, false },
	{ "header, its hash", "checksum", NULL, 1, FLIP, START, 4095, false },
	{ "first of the data", "checksum", NULL, 0, FLIP, START, 4096, true },
	{ "middle of the data", NULL, NULL, 2, FLIP, DATA_MIDDLE, 0, true },
	{ "section", "checksum", NULL, 3, FLIP, DATA_END, 5, false },
	{ "last section", NULL, NULL, 3, FLIP, END, -4096 - 4096, false },
	{ "trailer", "checksum", NULL, 0, FLIP, END, -4096 + 100, false },
	{ "last byte", "checksum", NULL, 0, FLIP, END, -1, false },
	{ "MANIFEST, magic", "checksum", NULL, -1, FLIP, START, 0, false },
	{ "MANIFEST, section", "checksum", NULL, -1, FLIP, START, 4100, false },
	{ "MANIFEST, trailer", "checksum", NULL, -1, FLIP, END, -20, false },
	{ "a byte less", NULL, NULL, 1, CUT, END, -1, false },
	{ "nothing left", NULL, NULL, 1, CUT, START, 0, false },
	{ "MANIFEST cut", "truncated", NULL, -1, CUT, START, 4096, false },
	{ "a longer part", NULL, NULL, 1, CUT, END, 4096, false },
	{ "remove_part", "missing", remove_part, 0, FLIP, START, 0, false },
	{ "remove_manifest", "missing", remove_manifest, 0, FLIP, START, 0, false },
	{ "rename_part", "missing", rename_part, 0, FLIP, START, 0, false },
	{ "swap_parts", NULL, swap_parts, 0, FLIP, START, 0, false },
	{ "part_of_another_step", NULL, part_of_another_step, 0, FLIP, START, 0, false },
	{ "part_becomes_a_link", NULL, part_becomes_a_link, 0, FLIP, START, 0, false }
};

static void damage_do(const struct damage *d, const char *path)
{
	const char *file =
		d->part < 0 ? path_of("%s/MANIFEST", path) : part(path, (uint32_t)d->part);
	int64_t at = d->at;

	if (d->inflict) {
		d->inflict(path);
		return;
	}
	at += d->from == START	    ? 0
	      : d->from == END	    ? size_of(file)
	      : d->from == DATA_END ? data_end(file)
				    : (data_end(file) + 4096) / 2;
	if (d->how == FLIP)
		flip(file, at);
	else
		assert_int_equal(truncate(file, at), 0);
}

/* verify of the damaged step by path: 4, and a fault of the kind, in every form of output. */
static void check_damage(const struct damage *d, const char *path, uint64_t step)
{
	json_t *j, *list;
	bool found = !d->kind;

	if (RUN("verify", "--data", path, "--json") != 4)
		fail_msg("%s: verify --data gives %d: %s%s", d->name, got.code, got.out, got.err);
	j = json_out("ckptd.verify/1");
	list = json_object_get(j, "faults");
	if (!json_array_size(list))
		fail_msg("%s: no fault is listed", d->name);
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *f = json_array_get(list, i);

		found |= d->kind && !strcmp(string(f, "kind"), d->kind);
		assert_true(json_is_null(json_object_get(f, "file")) || *string(f, "file"));
		assert_true(json_is_null(json_object_get(f, "tensor")) || *string(f, "tensor"));
		assert_true(strlen(string(f, "text")) > 0);
		number(f, "offset");
		number(f, "length");
		assert_int_equal(number(f, "step"), step);
		assert_string_equal(string(f, "path"), path);
	}
	if (!found)
		fail_msg("%s: no fault is of kind %s: %s", d->name, d->kind, got.out);
	json_decref(j);
	RUN_IS(4, "verify", "--data", path);
	assert_says(got.out, "FAULTY");
	assert_says(got.out, "next:");
	if (RUN("verify", path) != (d->data_only ? 3 : 4)) /* it is in quarantine since then */
		fail_msg("%s: verify gives %d", d->name, got.code);
	if (RUN("show", path) != (d->data_only ? 0 : 4))
		fail_msg("%s: show gives %d: %s", d->name, got.code, got.err);
}

TEST(every_kind_of_damage_is_found_and_hides_no_other)
{
	char root[PATH_MAX], step20[PATH_MAX + 32];

	snprintf(root, sizeof root, "%s/hurt", top);
	assert_int_equal(mkdir(root, 0700), 0);
	assert_int_equal(mkdir(path_of("%s/alpha", root), 0700), 0);
	copy_step(path_of("%s/alpha/step-000000000030", work),
		  path_of("%s/alpha/step-000000000030", root));
	copy_step(path_of("%s/alpha/step-000000000010", work),
		  path_of("%s/alpha/step-000000000010", root));
	snprintf(step20, sizeof step20, "%s/alpha/step-000000000020", root);
	for (size_t i = 0; i < ARRAY_LEN(damages); i++) {
		json_t *j, *list;

		copy_step(path_of("%s/alpha/step-000000000020", work), step20);
		damage_do(&damages[i], step20);
		check_damage(&damages[i], step20, 20);
		RUN_IS(4, "verify", "--data", "--all", root, "--json");
		j = json_out("ckptd.verify/1");
		list = json_object_get(j, "checkpoints");
		assert_int_equal(json_array_size(list), 3);
		for (size_t k = 0; k < 3; k++) {
			const json_t *x = json_array_get(list, k);

			assert_int_equal(json_is_true(json_object_get(x, "ok")),
					 number(x, "step") != 20);
		}
		json_decref(j);
		remove_tree(step20);
	}
	/* Two damaged ones: both are told. */
	flip(part(path_of("%s/alpha/step-000000000010", root), 0), 4096);
	flip(part(path_of("%s/alpha/step-000000000030", root), 0), -4096 + 100);
	SHOWN_IS(4, "verify", "--data", "--all", root);
	/* And one that is missing does not turn 4 into 10. */
	RUN_IS(4, "verify", "--data", "-C", root, "step:77", "step:10");
	RUN_IS(10, "verify", "-C", root, "step:77", "step:10");
}

TEST(a_step_under_the_number_of_another_is_found_by_all)
{
	const char *root = path_of("%s/misnamed", top);
	json_t *j;

	assert_int_equal(mkdir(root, 0700), 0);
	assert_int_equal(mkdir(path_of("%s/alpha", root), 0700), 0);
	copy_step(path_of("%s/alpha/step-000000000030", work),
		  path_of("%s/alpha/step-000000000031", root));
	SHOWN_IS(3, "verify", path_of("%s/alpha/step-000000000031", root));
	RUN_IS(4, "verify", "--all", root, "--json");
	j = json_out("ckptd.verify/1");
	assert_int_equal(number(item(j, "faults", 0), "step"), 31);
	json_decref(j);
}

TEST(what_may_not_be_read_is_twelve)
{
	char root[PATH_MAX], copy[PATH_MAX];
	int code[6];

	snprintf(root, sizeof root, "%s/closed", top);
	snprintf(copy, sizeof copy, "%s/half closed", top);
	assert_int_equal(mkdir(root, 0000), 0);
	copy_step(path_of("%s/beta/step-000000000025", work), copy);
	assert_int_equal(chmod(copy, 0755), 0);
	assert_int_equal(chmod(path_of("%s/MANIFEST", copy), 0644), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(chmod(part(copy, i), i == 2 ? 0000 : 0644), 0);
	assert_int_equal(chmod(top, 0755), 0);
	become_nobody(true);
	code[0] = RUN("ls", root);
	code[1] = RUN("verify", "--all", root);
	code[2] = RUN("show", "-C", root);
	code[3] = RUN("verify", path_of("%s/step-000000000001", root));
	/* A part that is closed to this user is not damaged. */
	code[4] = RUN("verify", copy);
	code[5] = SHOWN("show", copy);
	become_nobody(false);
	assert_int_equal(chmod(root, 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(code); i++)
		assert_int_equal(code[i], 12);
}

TEST(a_directory_of_strangers_is_no_checkpoint)
{
	RUN_IS(10, "show", "/etc");
	RUN_IS(10, "verify", "/etc");
	SHOWN_IS(10, "verify", path_of("%s/alpha", work));
	RUN_IS(10, "ls", "/etc/hostname");
}

/* --- the frame --- */

TEST(a_wrong_command_line_is_two_and_says_what_to_do)
{
	static const char *const lines[][6] =
		ROW({ "lss" }, { "ls", "--nope" }, { "ls", "-x" }, { "ls", "a", "b" },
		    { "ls", "--data" }, { "ls", "-C" }, { "ls", "-C", "" }, { "--color=red", "ls" },
		    { "--all", "ls" }, { "show", "a", "b", "c" }, { "verify", "--all", "a", "b" },
		    { "verify", "--data=3" }, { "version", "x" }, { "show", "--tensors" });

	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		char *argv[8] = { (char *)"ckptctl" };
		int argc = 1;

		for (size_t k = 0; k < 6 && lines[i][k]; k++)
			argv[argc++] = (char *)lines[i][k];
		run_argv(argc, argv);
		assert_int_equal(got.code, 2);
		assert_string_equal(got.out, "");
		assert_says(got.err, "next: ckptctl");
		argc = 1;
		argv[argc++] = (char *)"--json";
		for (size_t k = 0; k < 6 && lines[i][k]; k++)
			argv[argc++] = (char *)lines[i][k];
		run_argv(argc, argv);
		assert_int_equal(got.code, 2);
		assert_json_error(2);
	}
	SHOWN_IS(2, "shwo");
	SHOWN_IS(2, "verify", "--dta");
}

/* The tables of verbs and options are what it is made of, so each is asked for by its own name. */
TEST(help_fits_eighty_columns_and_names_every_option)
{
	char *only_name[] = { (char *)"ckptctl" };

	run_argv(1, only_name);
	assert_int_equal(got.code, 0);
	assert_narrow(got.out, 80);
	assert_string_equal(got.err, "");
	for (const struct cli_verb *const *v = cli_verbs; *v; v++) {
		RUN_IS(0, "-h");
		assert_non_null(strstr(got.out, (*v)->name));
		assert_non_null(strstr(got.out, (*v)->help));
		RUN_IS(0, (*v)->name, "--help");
		assert_narrow(got.out, 80);
		assert_non_null(strstr(got.out, "EXAMPLES"));
		for (uint32_t i = 0; i < cli_option_count; i++) {
			const struct cli_option *x = &cli_options[i];
			bool its = x->global;

			for (const struct cli_verb_option *o = (*v)->option; o && o->id != OPT_NONE;
			     o++)
				its |= o->id == x->id;
			if (its && !strstr(got.out, path_of("--%s", x->name)))
				fail_msg("--%s is not in ckptctl %s -h", x->name, (*v)->name);
		}
	}
}

TEST(version_says_itself)
{
	json_t *j;

	SHOWN_IS(0, "version");
	SHOWN_IS(0, "--version");
	j = json_run("ckptd.version/1", "version", "--json");
	assert_string_equal(string(j, "version"), CLI_VERSION);
	assert_string_equal(string(item(j, "formats", 0), "format"), "native");
}

TEST(colour_and_other_alphabets_are_for_terminals_only)
{
	SHOWN_IS(0, "ls", work);
	for (const char *c = got.out; *c; c++)
		assert_true((unsigned char)*c < 0x80);
	RUN_IS(0, "ls", work, "--color=always");
	assert_says(got.out, "\033[");
	RUN_IS(0, "ls", work, "--color=always", "--json");
	assert_silent(got.out, "\033");
}

TEST(on_a_terminal_tables_are_coloured_and_eighty_wide)
{
	const char *alpha = path_of("%s/alpha", work);

	setenv("LC_ALL", "C.UTF-8", 1);
	for (size_t i = 0; i < 5; i++) {
		assert_ok(i == 0   ? TERMINAL("ls", work)
			  : i == 1 ? TERMINAL("ls", "--all", work)
			  : i == 2 ? TERMINAL("-C", alpha, "show", "--tensors=*")
			  : i == 3 ? TERMINAL("-C", alpha, "show", "latest", "layers.3.fused")
				   : TERMINAL("verify", "--all", work));
		assert_says(got.out, "\033[");
		assert_narrow(got.out, 80);
	}
	setenv("NO_COLOR", "1", 1);
	assert_int_equal(TERMINAL("ls", "--all", work), 0);
	assert_silent(got.out, "\033[");
	assert_int_equal(TERMINAL("ls", "--all", work, "--color=auto"), 0);
	assert_silent(got.out, "\033[");
	assert_int_equal(TERMINAL("ls", "--all", work, "--color=always"), 0);
	assert_says(got.out, "\033[");
	setenv("NO_COLOR", "", 1);
	for (int i = 0; i < 2; i++) {
		bool beyond = false;

		assert_ok(TERMINAL("-C", alpha, "show", "--tensors=*",
				   i ? "--ascii" : "--color=never"));
		for (const char *c = got.out; *c; c++)
			beyond |= (unsigned char)*c >= 0x80;
		assert_int_equal(beyond, !i);
		assert_int_equal(strstr(got.out, "\033[") != NULL, i);
	}
	unsetenv("NO_COLOR");
	unsetenv("LC_ALL");
}

TEST(output_that_cannot_be_written_is_a_failure)
{
	char *argv[] = { (char *)"ckptctl", (char *)"-h" };
	FILE *full = fopen("/dev/full", "w"), *err = fopen("/dev/null", "w");

	if (!full) {
		print_message("SKIP: there is no /dev/full here, which refuses every byte\n");
		skip();
	}
	assert_int_equal(cli_run(2, argv, full, err), 13);
	fclose(full);
	fclose(err);
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
