/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_repair.c - ckptctl repair: what is found, what is done about it, and the exit codes.
 * That a crash in the middle loses nothing is test_store_repair's.
 */
#include "tests/lib/cli_rig.h"
#include "tests/lib/memdir.h"

static json_t *repaired(int code)
{
	if (got.code != code)
		fail_msg("exit %d: %s%s", got.code, got.out, got.err);
	return json_out("ckptd.repair/1");
}

static const char *action(json_t *j, uint64_t step)
{
	return string(of_step(json_object_get(j, "items"), step), "action");
}

static const char *text_of(json_t *j, uint64_t step)
{
	return string(of_step(json_object_get(j, "items"), step), "text");
}

TEST(where_all_is_well_there_is_nothing_to_repair)
{
	const char *root = place("well"), *job = line(root, "run", 2);

	SHOWN_IS(0, "repair", job);
	RUN_IS(0, "repair", "-n", root);
	RUN_IS(0, "repair", "-C", root);
	RUN_IS(0, "repair", "-C", job, "latest");
	RUN_IS(0, "repair", step_path(job, 10));
	RUN("repair", "--yes", root, "--json");
	assert_json(0, "ckptd.repair/1", "{'items':[], 'dry_run':false}");
	RUN_IS(2, "repair", "-n", "--yes", root);
	RUN_IS(2, "repair", "");
	RUN_IS(10, "repair", path_of("%s/none", top));
	RUN_IS(10, "repair", "-C", job, "step:11");
	copy_step(step_path(job, 10), place("copied"));
	SHOWN_IS(2, "repair", path_of("%s/copied", top));
}

TEST(a_quarantined_step_that_is_whole_counts_again)
{
	const char *job = line(place("released"), "run", 3);
	json_t *j;

	flip(part(step_path(job, 30), 0), 8192);
	flip(part(step_path(job, 20), 0), 8192);
	RUN_IS(4, "verify", "--data", "--all", job);
	flip(part(step_path(job, 30), 0), 8192);
	/* Nobody can be asked. */
	SHOWN_IS(2, "repair", job);
	assert_string_equal(steps_of(job), "10 ");
	RUN("repair", "-n", job, "--json");
	assert_true(got.code == 0 || got.code == 4);
	SHOWN("repair", "-n", job);
	assert_string_equal(steps_of(job), "10 ");
	RUN("repair", "--yes", job, "--json");
	j = repaired(4); /* 20 is damaged as it was */
	assert_string_equal(action(j, 30), "release");
	assert_string_equal(action(j, 20), "leave");
	assert_true(strlen(text_of(j, 20)) > 20);
	assert_json_has(j, "{'released_count':1, 'left_count':1}");
	json_decref(j);
	assert_string_equal(steps_of(job), "30 10 ");
	string(listed(job, 30, &j), "verified");
	json_decref(j);
	/* One alone. */
	flip(part(step_path(job, 20), 0), 8192);
	SHOWN_IS(0, "repair", "--yes", "-C", job, "step:20");
	assert_string_equal(steps_of(job), "30 20 10 ");
	RUN_IS(0, "verify", "--data", "--all", job);
}

TEST(a_lost_or_damaged_manifest_is_built_anew)
{
	const char *job = line(place("rebuilt"), "run", 3);
	json_t *j;

	RUN_IS(0, "tag", "-C", job, "step:20", "mine");
	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 20))), 0);
	assert_int_equal(truncate(path_of("%s/MANIFEST", step_path(job, 30)), 100), 0);
	assert_string_equal(steps_of(job), "10 ");
	/* Whoever finds them is led there. */
	SHOWN_IS(3, "ls", job);
	SHOWN_IS(4, "show", "-C", job, "step:20");
	SHOWN("repair", "-n", job);
	RUN("repair", "-n", job, "--json");
	j = repaired(0);
	assert_string_equal(action(j, 20), "rebuild");
	assert_string_equal(action(j, 30), "rebuild");
	json_decref(j);
	assert_string_equal(steps_of(job), "10 ");
	RUN("repair", "--yes", job, "--json");
	assert_json(0, "ckptd.repair/1", "{'rebuilt_count':2}");
	assert_string_equal(steps_of(job), "30 20 10 ");
	RUN_IS(0, "verify", "--data", "--all", job);
	SHOWN_IS(0, "show", "-C", job);
	RUN_IS(0, "show", "-C", job, "tag:mine");
	RUN_IS(0, "diff", "--values", step_path(job, 30), step_path(job, 30));
	SHOWN_IS(0, "repair", job);
}

TEST(a_step_that_misses_a_part_is_left_and_said)
{
	const char *job = line(place("lost"), "run", 2);
	json_t *j;

	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 20))), 0);
	assert_int_equal(unlink(part(step_path(job, 20), 0)), 0);
	RUN("repair", "--yes", job, "--json");
	j = repaired(4);
	assert_string_equal(action(j, 20), "leave");
	json_decref(j);
	assert_true(there(job, 20));
	SHOWN_IS(4, "repair", "--yes", job);
}

TEST(a_step_that_lacks_a_part_has_no_label_and_is_said_all_the_same)
{
	const char *job = line(place("lacks"), "run", 2);
	json_t *j;

	assert_int_equal(unlink(part(step_path(job, 10), 0)), 0);
	RUN("repair", "--yes", job, "--json");
	j = repaired(4);
	assert_string_equal(action(j, 10), "leave");
	assert_non_null(strstr(text_of(j, 10), "missing"));
	assert_json_has(j, "{'left_count':1}");
	json_decref(j);
	SHOWN_IS(4, "repair", "--yes", "-C", job, "step:10");
	RUN_IS(0, "repair", "-C", job, "step:20");
}

/* MANIFEST with a dtype of tomorrow, and with what no program can make sense of: all sums are
 * right. */
static void manifest_newer(const char *path, bool newer)
{
	static uint8_t bytes[1 << 20];
	struct memdir d = { .n = 0 };
	struct memdir_file *f;
	FILE *file = fopen(path, "r+");
	size_t n;

	assert_non_null(file);
	n = fread(bytes, 1, sizeof bytes, file);
	f = memdir_add(&d, NATIVE_MANIFEST, bytes, n);
	if (newer)
		((struct ck_tensor *)memdir_section(f, CK_TENSORS))->dtype = le16_of(23);
	((struct ck_part *)memdir_section(f, CK_PARTS))->writer = le32_of(7);
	memdir_sign(&d, f);
	rewind(file);
	assert_int_equal(fwrite(f->bytes, 1, f->len, file), n);
	assert_int_equal(fclose(file), 0);
	memdir_clear(&d);
}

TEST(what_is_newer_and_contradicts_itself_is_not_replaced)
{
	const char *job = line(place("newer"), "run", 2), *manifest;
	json_t *j;

	manifest = path_of("%s/MANIFEST", step_path(job, 20));
	manifest_newer(manifest, true);
	RUN_IS(8, "show", "-C", job, "latest");
	RUN("repair", "--yes", job, "--json");
	j = repaired(8);
	assert_string_equal(action(j, 20), "leave");
	assert_non_null(strstr(text_of(j, 20), "newer version"));
	json_decref(j);
	RUN_IS(8, "show", "-C", job, "latest");
	/* What only contradicts itself is. */
	job = line(place("nonsense"), "run", 2);
	manifest_newer(path_of("%s/MANIFEST", step_path(job, 20)), false);
	RUN("repair", "--yes", job, "--json");
	j = repaired(0);
	assert_string_equal(action(j, 20), "rebuild");
	json_decref(j);
}

TEST(what_a_launch_left_unfinished_goes_when_it_is_over)
{
	const char *root = place("left"), *job = line(root, "run", 2);
	json_t *j;

	make_step(root, &(struct how){ "run", "fsdp=2", 25, 0, 0, 0, true });
	/* The newest launch's: it may be alive. */
	RUN("repair", "--yes", job, "--json");
	j = repaired(0);
	assert_string_equal(action(j, 25), "leave");
	json_decref(j);
	RUN_IS(5, "show", "-C", job, "step:25");
	RUN("repair", "--abandoned", job);
	assert_int_equal(got.code, 2);
	RUN_IS(5, "show", "-C", job, "step:25");
	RUN("repair", "--yes", "--abandoned", job, "--json");
	j = repaired(0);
	assert_int_equal(number(j, "removed_count"), 1);
	assert_true(number(j, "freed_bytes") > MIB);
	json_decref(j);
	RUN_IS(10, "show", "-C", job, "step:25");
	assert_string_equal(steps_of(job), "20 10 ");
}

TEST(a_person_is_asked)
{
	const char *job = line(place("asked"), "run", 2);

	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 20))), 0);
	TYPED_IS(0, "n\n", "repair", job);
	assert_string_equal(steps_of(job), "10 ");
	TYPED_IS(0, "y\n", "repair", job);
	assert_string_equal(steps_of(job), "20 10 ");
}

TEST(another_user_repairs_nothing)
{
	const char *root = place("others"), *job = line(root, "run", 2);

	if (!only_root())
		skip();
	assert_int_equal(chmod(top, 0755), 0);
	assert_int_equal(chmod(root, 0755), 0);
	become_nobody(true);
	RUN("repair", "--yes", root);
	assert_int_equal(got.code, 12);
	become_nobody(false);
	assert_int_equal(chmod(top, 0700), 0);
	assert_string_equal(steps_of(job), "20 10 ");
}

TEST(root_leaves_nothing_in_anothers_job_that_they_could_not_read)
{
	const char *root = place("theirs"), *job = line(root, "run", 3);

	if (!only_root())
		skip();
	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 20))), 0);
	give_away(root);
	RUN_IS(0, "repair", "-n", job);
	RUN_IS(12, "repair", "--yes", job);
	RUN_IS(12, "repair", "--yes", "-C", job, "step:20");
	RUN_IS(12, "hold", "-C", job, "latest");
	RUN_IS(12, "tag", "-C", job, "latest", "x");
	assert_int_equal(access(path_of("%s/MANIFEST", step_path(job, 20)), F_OK), -1);
	assert_int_equal(chmod(top, 0755), 0);
	become_nobody(true);
	RUN("repair", "--yes", job);
	assert_int_equal(got.code, 0);
	RUN("verify", "--data", "--all", job);
	assert_int_equal(got.code, 0);
	RUN("hold", "-C", job, "step:20", "--by=me");
	assert_int_equal(got.code, 0);
	become_nobody(false);
	assert_int_equal(chmod(top, 0700), 0);
	/* Taking away leaves nothing. */
	RUN_IS(0, "release", "-C", job, "step:20", "--by=me");
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
