/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_adopt.c - what is in the wrong place has no name and no quarantine label; ckptctl adopt
 * says that it is the right one. What a newer version wrote is not passed over. */
#include "tests/lib/cli_rig.h"
#include "formats/native/native.h"

static const char *directory(const char *name)
{
	const char *dir = place(name);

	assert_int_equal(mkdir(dir, 0700), 0);
	return dir;
}

/* A store with a job of the steps 10, 20, ... */
static const char *store_of(const char *name, const char *job, uint64_t n)
{
	const char *store = place(name);

	line(store, job, n);
	return store;
}

static const char *step_of(const char *store, const char *job, uint64_t step)
{
	return step_path(path_of("%s/%s", store, job), step);
}

/* What a mistaken rsync leaves: another directory's content under this name. */
static void exchange(const char *to, const char *from)
{
	remove_tree(to);
	copy_step(from, to);
}

static uint32_t labels_of(const char *store, const char *job, enum store_label_kind kind)
{
	struct store s = { .ops = &io_ops_posix, .format = &format_native, .root_fd = -1 };
	struct store_label *label = NULL;
	uint32_t n = 0, found = 0;

	s.job_fd = open(path_of("%s/%s", store, job), O_RDONLY | O_DIRECTORY);
	assert_int_equal(store_labels(&s, &label, &n, NULL), 0);
	for (uint32_t i = 0; i < n; i++)
		found += label[i].kind == kind;
	free(label);
	close(s.job_fd);
	return found;
}

static const char *state_of(const char *store, uint64_t step)
{
	static char word[32];
	json_t *j, *all;

	assert_int_equal(RUN("ls", "--all", "--json", store) & ~CLI_WARNINGS, 0);
	j = json_kept(json_out("ckptd.ls/1"));
	all = json_object_get(j, "checkpoints");
	word[0] = 0;
	for (size_t i = 0; i < json_array_size(all); i++)
		if (number(json_array_get(all, i), "step") == step)
			snprintf(word, sizeof word, "%s", string(json_array_get(all, i), "state"));
	return word;
}

/* Every verb that reads a checkpoint by its name refuses it with this exit code and this
 * sentence. */
static void assert_refused(const char *store, const char *name, int code, const char *what)
{
	static const char *const verbs[] = { "verify", "show", "stats", "plan", "convert",
					     "export", "cat",  "hold",	"tag",	"release",
					     "diff",   "rm",   "rewind" };
	const char *out = path_of("%s/never", top);

	for (size_t i = 0; i < ARRAY_LEN(verbs); i++) {
		const char *v = verbs[i];

		if (!strcmp(v, "convert") || !strcmp(v, "export"))
			RUN(v, "-C", store, name, out, "--mesh=fsdp=1");
		else if (!strcmp(v, "plan"))
			RUN(v, "-C", store, name, "--mesh=fsdp=1");
		else if (!strcmp(v, "cat"))
			RUN(v, "-C", store, name, "w");
		else if (!strcmp(v, "tag"))
			RUN(v, "-C", store, name, "x");
		else if (!strcmp(v, "rm") || !strcmp(v, "rewind"))
			RUN(v, "--yes", "-C", store, name);
		else if (!strcmp(v, "diff"))
			RUN(v, "-C", store, name, name);
		else
			RUN(v, "-C", store, name);
		if (got.code != code)
			fail_msg("%s %s: exit %d, %s", v, name, got.code, got.err);
		assert_says(got.err, what);
		assert_true(access(out, F_OK) != 0);
	}
}

TEST(another_steps_bytes_under_a_steps_name_are_refused_by_name)
{
	const char *store = store_of("swapped", "run", 3);

	exchange(step_of(store, "run", 10), step_of(store, "run", 20));
	assert_string_equal(state_of(store, 10), "misplaced");
	assert_string_equal(state_of(store, 20), "committed");
	assert_refused(store, "step:10", 4, "is not step 10: its MANIFEST is that of step 20");
	assert_says(got.err, "call it step-000000000020 in the directory of job run");
	/* Nor by all: and there is no label, the bytes are right. */
	SHOWN_IS(4, "verify", "--data", "--all", "-C", store);
	assert_int_equal(labels_of(store, "run", LABEL_BAD), 0);
	/* By its path it is read, with a warning. */
	SHOWN_IS(3, "verify", "--data", step_of(store, "run", 10));
	assert_int_equal(labels_of(store, "run", LABEL_BAD), 0);
	/* No adopting makes a number another one. */
	SHOWN_IS(4, "adopt", "--yes", step_of(store, "run", 10));
	RUN_IS(0, "prune", "--yes", "--bad", "--keep-last=1", store);
	assert_int_equal(access(step_of(store, "run", 10), F_OK), 0);
	assert_int_not_equal(access(step_of(store, "run", 20), F_OK), 0);
	SHOWN_IS(4, "repair", "--yes", store);
}

TEST(a_misplaced_newest_step_is_passed_over_with_the_reason)
{
	const char *store = store_of("newest", "run", 3);

	exchange(step_of(store, "run", 30), step_of(store, "run", 10));
	SHOWN_IS(3, "verify", "-C", store, "latest");
	SHOWN_IS(3, "ls", store);
	/* It comes back where it belongs. */
	remove_tree(step_of(store, "run", 10));
	assert_int_equal(rename(step_of(store, "run", 30), step_of(store, "run", 10)), 0);
	assert_string_equal(state_of(store, 10), "committed");
}

TEST(another_jobs_step_is_none_of_this_job_until_it_is_adopted)
{
	const char *store = store_of("foreign", "run", 2);
	const char *base = store_of("base", "base", 4);
	json_t *j;

	copy_step(step_of(base, "base", 40), step_of(store, "run", 40));
	copy_step(step_of(base, "base", 30), step_of(store, "run", 15));
	assert_string_equal(state_of(store, 40), "misplaced");
	assert_refused(store, "step:40", 4, "its MANIFEST says that it is a step of job base");
	assert_says(got.err, path_of("ckptctl adopt %s", step_of(store, "run", 40)));
	SHOWN_IS(3, "verify", "-C", store, "latest");
	SHOWN_IS(0, "show", step_of(store, "run", 40));
	/* A look and a refusal change nothing. */
	SHOWN_IS(0, "adopt", "-n", step_of(store, "run", 40));
	SHOWN_IS(2, "adopt", step_of(store, "run", 40));
	assert_string_equal(state_of(store, 40), "misplaced");
	j = json_run("ckptd.adopt/1", "adopt", "--yes", "--json", step_of(store, "run", 40));
	assert_json_has(j, "{'adopted_count':1, 'job':'run', 'directory_from':null}");
	assert_string_equal(string(item(j, "items", 0), "from_job"), "base");
	assert_string_equal(state_of(store, 40), "committed");
	RUN_IS(0, "verify", "--data", "-C", store, "step:40");
	SHOWN_IS(0, "ls", store);
	/* By number it is the newest, whatever its seq was. */
	SHOWN_IS(0, "verify", "-C", store, "latest");
	SHOWN_IS(0, "adopt", "--yes", step_of(store, "run", 40));
	/* The step that lies under another number is left. */
	SHOWN_IS(3, "adopt", "--yes", path_of("%s/run", store));
	assert_string_equal(state_of(store, 15), "misplaced");
	/* It goes like any other one. */
	RUN_IS(3, "adopt", "--yes", path_of("%s/run", store), "--json");
	make_step(store, &(struct how){ "run", "fsdp=2", 50, 3, 40, 40, false });
	RUN_IS(0, "prune", "--yes", "--keep-last=1", store);
	assert_int_not_equal(access(step_of(store, "run", 40), F_OK), 0);
	assert_int_equal(labels_of(store, "run", LABEL_ADOPTED), 0);
}

/* By their seq, the adopted ones would be the newest. */
TEST(adopted_steps_stand_where_their_numbers_say)
{
	static const uint64_t want[] = { 30, 25, 20, 10 };
	const char *store = store_of("order", "run", 3), *other = directory("far");
	const json_t *all;
	json_t *j;

	make_step(other, &(struct how){ "far", "fsdp=2", 25, 1000, UINT64_MAX, UINT64_MAX, false });
	copy_step(step_of(other, "far", 25), step_of(store, "run", 25));
	RUN_IS(0, "adopt", "--yes", step_of(store, "run", 25));
	j = json_run("ckptd.ls/1", "ls", "--json", store);
	all = member(j, "checkpoints", JSON_ARRAY);
	assert_int_equal(json_array_size(all), ARRAY_LEN(want));
	for (size_t i = 0; i < ARRAY_LEN(want); i++) {
		assert_int_equal(number(json_array_get(all, i), "step"), want[i]);
		assert_int_equal(json_typeof(json_object_get(json_array_get(all, i), "adopted")),
				 want[i] == 25 ? JSON_STRING : JSON_NULL);
	}
}

TEST(a_step_in_a_directory_that_no_job_has_is_refused_too)
{
	const char *store = directory("empty"), *base = store_of("base2", "base", 1);
	char *no = strdup(path_of("%s/tune", store));

	assert_int_equal(mkdir(no, 0700), 0);
	copy_step(step_of(base, "base", 10), step_of(store, "tune", 10));
	RUN_IS(4, "verify", "-C", no, "step:10");
	SHOWN_IS(5, "verify", "-C", no, "latest");
	RUN_IS(0, "adopt", "--yes", step_of(store, "tune", 10));
	RUN_IS(0, "verify", "-C", no, "latest");
	free(no);
}

static int open_store(const char *root, const char *job, struct ckpt_err *err)
{
	int fd = open(root, O_RDONLY | O_DIRECTORY), rc;
	struct store *s = NULL;

	rc = store_open(&io_ops_posix, &format_native, fd, job, true, &s, err);
	store_close(s);
	close(fd);
	return rc;
}

TEST(a_directory_that_was_renamed_is_read_as_its_jobs_and_not_claimed)
{
	const char *store = store_of("renamed", "run", 3);
	char *keep = strdup(path_of("%s/run.keep", store));
	struct ckpt_err err = { 0 };

	assert_int_equal(rename(path_of("%s/run", store), keep), 0);
	assert_string_equal(state_of(keep, 30), "committed");
	SHOWN_IS(0, "ls", keep);
	RUN_IS(0, "verify", "--data", "-C", keep, "step:20");
	RUN_IS(0, "hold", "-C", keep, "step:20");
	assert_int_equal(open_store(store, "run.keep", &err), -EINVAL);
	assert_says(err.msg, "the directory run.keep in the store belongs to job run");
	assert_says(err.msg, "ckptctl adopt");
	RUN("adopt", "-n", keep, "--json");
	assert_json(0, "ckptd.adopt/1", "{'directory_from':'run', 'adopted_count':3}");
	assert_int_equal(open_store(store, "run.keep", &err), -EINVAL);
	/* A damaged step is left, and does not stop the others. */
	assert_int_equal(truncate(path_of("%s/step-000000000010/MANIFEST", keep), 100), 0);
	SHOWN_IS(3, "adopt", "--yes", keep);
	assert_int_equal(open_store(store, "run.keep", &err), 0);
	SHOWN_IS(0, "ls", keep);
	SHOWN_IS(0, "verify", "--data", "-C", keep, "latest");
	/* And job run begins anew beside it; a copy is not its own either. */
	make_step(store, &(struct how){ "run", "fsdp=2", 5, 1, UINT64_MAX, UINT64_MAX, false });
	assert_string_equal(state_of(path_of("%s/run", store), 5), "committed");
	make_step(store, &(struct how){ "run.keep", "fsdp=2", 40, 4, 30, 30, false });
	assert_string_equal(state_of(keep, 40), "committed");
	assert_string_equal(state_of(keep, 30), "committed");
	free(keep);
}

TEST(who_has_opened_a_directory_cannot_claim_it_when_it_was_adopted_since)
{
	const char *store = store_of("since", "run", 1);
	int fd = open(store, O_RDONLY | O_DIRECTORY);
	struct ckpt_err err = { 0 };
	struct store *s;
	uint64_t generation;

	assert_int_equal(store_open(&io_ops_posix, &format_native, fd, "run", true, &s, &err), 0);
	assert_int_equal(rename(path_of("%s/run", store), path_of("%s/other", store)), 0);
	RUN_IS(0, "adopt", "--yes", path_of("%s/other", store));
	assert_int_equal(store_claim(s, 0, false, &generation, &err), -EIO);
	assert_says(err.msg, "was moved or replaced");
	assert_int_equal(rename(path_of("%s/other", store), path_of("%s/run", store)), 0);
	assert_int_equal(store_claim(s, 0, false, &generation, &err), -EINVAL);
	assert_says(err.msg, "belongs to job other");
	store_close(s);
	close(fd);
}

/* Both of this job: the one of another line has another id. */
TEST(a_step_whose_parent_was_replaced_is_misplaced)
{
	const char *store = store_of("parent", "run", 4);
	const char *other = store_of("parent2", "run", 1);

	make_step(other, &(struct how){ "run", "fsdp=1", 20, 2, UINT64_MAX, 10, false });
	exchange(step_of(store, "run", 20), step_of(other, "run", 20));
	assert_string_equal(state_of(store, 30), "misplaced");
	assert_refused(store, "step:30", 4, "it continues another step 20");
	SHOWN_IS(4, "repair", "--yes", store);
	assert_string_equal(state_of(store, 30), "misplaced");
	/* What continues a misplaced step is not judged by it, and 40 continues what is there. */
	assert_string_equal(state_of(store, 40), "committed");
	SHOWN_IS(0, "show", step_of(store, "run", 30));
	/* Without its parent it is judged by nothing; adopted neither. */
	assert_int_equal(rename(step_of(store, "run", 20), path_of("%s/away", store)), 0);
	assert_string_equal(state_of(store, 30), "committed");
	assert_int_equal(rename(path_of("%s/away", store), step_of(store, "run", 20)), 0);
	RUN_IS(0, "adopt", "--yes", step_of(store, "run", 30));
	assert_string_equal(state_of(store, 30), "committed");
}

TEST(a_child_of_a_step_whose_manifest_was_made_anew_is_not_refused)
{
	const char *store = store_of("rebuilt", "run", 3);

	assert_int_equal(unlink(path_of("%s/MANIFEST", step_of(store, "run", 20))), 0);
	RUN_IS(0, "repair", "--yes", store);
	assert_string_equal(state_of(store, 20), "committed");
	assert_string_equal(state_of(store, 30), "committed");
	SHOWN_IS(0, "verify", "-C", store, "latest");
}

/* The parts prove whose they are. */
TEST(a_manifest_that_was_exchanged_alone_is_made_anew)
{
	const char *store = store_of("manifest", "run", 3);
	const char *to = path_of("%s/MANIFEST", step_of(store, "run", 20));

	RUN_IS(0, "hold", "-C", store, "step:20", "--by=me");
	assert_int_equal(unlink(to), 0);
	copy_file(path_of("%s/MANIFEST", step_of(store, "run", 10)), to);
	assert_string_equal(state_of(store, 20), "misplaced");
	if (RUN("repair", "--yes", store))
		fail_msg("%s", got.out);
	assert_string_equal(state_of(store, 20), "committed");
	RUN_IS(0, "verify", "--data", "-C", store, "step:20");
}

TEST(what_lies_in_no_job_cannot_be_adopted)
{
	const char *store = store_of("outside", "run", 1);
	const char *alone = path_of("%s/alone", top);

	copy_step(step_of(store, "run", 10), alone);
	SHOWN_IS(2, "adopt", "--yes", alone);
	SHOWN_IS(2, "adopt", "--yes", store);
	RUN_IS(10, "adopt", "--yes", path_of("%s/nothing", top));
	RUN_IS(10, "adopt", "--yes", directory("bare"));
	RUN_IS(2, "adopt", "--yes", "--dry-run", store);
	RUN_IS(2, "adopt");
	assert_int_equal(unlink(path_of("%s/MANIFEST", step_of(store, "run", 10))), 0);
	RUN_IS(4, "adopt", "--yes", step_of(store, "run", 10));
	RUN_IS(10, "adopt", "--yes", path_of("%s/run/step-000000000099", store));
}

/* --- a newer version --- */

/* The first block of a file asks for a feature that nobody here knows. */
static void make_newer(const char *path)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	struct hash128 self;
	int fd = open(path, O_RDWR);

	assert_int_equal(pread(fd, head, sizeof *head, 0), sizeof *head);
	head->incompat = le64_of(CONTAINER_TESTED);
	self = hash128(head, offsetof(struct ck_head, self));
	memcpy(head->self, self.b, sizeof head->self);
	assert_int_equal(pwrite(fd, head, sizeof *head, 0), sizeof *head);
	close(fd);
}

TEST(latest_stops_at_what_a_newer_version_wrote)
{
	const char *store = store_of("newer", "run", 3);

	make_newer(path_of("%s/MANIFEST", step_of(store, "run", 30)));
	assert_string_equal(state_of(store, 30), "newer");
	assert_refused(store, "latest", 8, "was written by a newer version");
	assert_refused(store, "latest~1", 8, "was written by a newer version");
	assert_refused(store, "step:30", 8, "was written by a newer version");
	RUN_IS(8, "verify", step_of(store, "run", 30));
	RUN_IS(0, "verify", "-C", store, "step:20");
	RUN_IS(8, "verify", "--data", "--all", "-C", store);
	SHOWN_IS(0, "ls", store);
	RUN_IS(0, "prune", "--yes", "--bad", "--keep-last=1", store);
	assert_int_equal(access(step_of(store, "run", 30), F_OK), 0);
	SHOWN_IS(8, "repair", "--yes", store);
	RUN_IS(8, "adopt", "--yes", step_of(store, "run", 30));
	assert_int_equal(labels_of(store, "run", LABEL_BAD), 0);
	assert_string_equal(state_of(store, 30), "newer");
}

/* By its path a step may be looked at; it is not removed and not made the newest of a line, nor
 * does a policy remove it. */
static void assert_stays(const char *store, const char *dir, int code, const char *what)
{
	const char *path = path_of("%s/run/%s", store, dir);

	RUN_IS(code, "rm", "--yes", path);
	assert_says(got.err, what);
	RUN_IS(code, "rm", "-n", path);
	RUN_IS(code, "rewind", "--yes", path);
	assert_says(got.err, what);
	RUN_IS(code, "rm", "--yes", "-C", store, dir);
	RUN_IS(code, "rewind", "--yes", "-C", store, dir);
	assert_says(got.err, what);
	RUN_IS(0, "prune", "--yes", "--set-aside", "--keep-last=1", store);
	RUN("prune", "--yes", "--bad", store);
	assert_int_equal(access(path, F_OK), 0);
}

TEST(what_is_misplaced_or_newer_is_not_removed_and_not_gone_back_to)
{
	static const char other[] = ".old-000000000030-s3", newer[] = ".old-000000000020-s2";
	const char *store = store_of("stays", "run", 4);

	make_step(store, &(struct how){ "run", "fsdp=2", 50, 5, 40, 40, false });
	exchange(step_of(store, "run", 30), step_of(store, "run", 40));
	make_newer(path_of("%s/MANIFEST", step_of(store, "run", 20)));
	assert_stays(store, "step-000000000030", 4, "is not step 30");
	assert_stays(store, "step-000000000020", 8, "newer version");
	assert_string_equal(state_of(store, 50), "committed");
	assert_int_equal(rename(step_of(store, "run", 30), path_of("%s/run/%s", store, other)), 0);
	assert_int_equal(rename(step_of(store, "run", 20), path_of("%s/run/%s", store, newer)), 0);
	assert_stays(store, other, 4, "is not step 30");
	assert_stays(store, newer, 8, "newer version");
	/* A number that the line has not is that of the one that was set aside. */
	RUN_IS(4, "rm", "--yes", "-C", store, "step:30");
	RUN_IS(8, "rewind", "--yes", "-C", store, "step:20");
	assert_string_equal(state_of(store, 50), "committed");
}

/* What it lacks is said of the step that it is; it is another one. */
TEST(a_misplaced_step_that_lacks_a_part_is_misplaced)
{
	const char *store = store_of("lacks", "run", 3), *part = NULL;
	DIR *d;

	exchange(step_of(store, "run", 20), step_of(store, "run", 10));
	for (uint64_t step = 20; step <= 30; step += 10) {
		d = opendir(step_of(store, "run", step));
		for (struct dirent *e; (e = readdir(d));)
			if (e->d_name[0] == 'w')
				part = path_of("%s/%s", step_of(store, "run", step), e->d_name);
		closedir(d);
		assert_int_equal(unlink(part), 0);
	}
	assert_string_equal(state_of(store, 20), "misplaced");
	assert_string_equal(state_of(store, 30), "damaged");
}

TEST(a_newer_step_below_the_newest_stops_nothing)
{
	const char *store = store_of("below", "run", 3);

	make_newer(path_of("%s/MANIFEST", step_of(store, "run", 20)));
	SHOWN_IS(0, "verify", "-C", store, "latest");
}

/* MANIFEST is of this version: the parts are not. */
TEST(a_newer_part_is_no_damage)
{
	const char *store = store_of("part", "run", 2);
	char file[300] = "";
	DIR *d = opendir(step_of(store, "run", 20));

	for (struct dirent *e; (e = readdir(d));)
		if (e->d_name[0] == 'w')
			snprintf(file, sizeof file, "%s", e->d_name);
	closedir(d);
	make_newer(path_of("%s/%s", step_of(store, "run", 20), file));
	RUN_IS(8, "verify", "--data", "-C", store, "latest");
	RUN_IS(8, "export", "-C", store, "latest", path_of("%s/never", top));
	RUN("prune", "--yes", "--keep-last=1", store);
	assert_int_equal(got.code, 8);
	assert_int_equal(access(step_of(store, "run", 10), F_OK), 0);
	assert_int_equal(labels_of(store, "run", LABEL_BAD), 0);
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
