/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_labels.c - what is said about steps, through the verbs: hold, release, tag, verify
 * --data; and where it is shown: ls, show, completion.
 */
#include "ckpt/cli/labels.h"
#include "formats/registry/registry.h"
#include "tests/lib/cli_rig.h"
#include "tests/lib/libc.h"
#include <pwd.h>
#include <sys/file.h>

static json_t *first(const json_t *x, const char *list)
{
	json_t *l = json_object_get(x, list);

	assert_int_equal(json_array_size(l), 1);
	return json_array_get(l, 0);
}

/* --- what the page cache was told to forget --- */

static char forgotten[4096];

static int forget(int fd, off_t off, off_t len, int advice)
{
	char path[64], to[PATH_MAX];
	ssize_t n;

	(void)snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	n = readlink(path, to, sizeof to - 1);
	to[n > 0 ? n : 0] = 0;
	if (n > 0 && advice == POSIX_FADV_DONTNEED && off == 0 && len == 0 &&
	    strlen(forgotten) + 80 < sizeof forgotten)
		(void)snprintf(forgotten + strlen(forgotten), 80, "%.70s ", strrchr(to, '/') + 1);
	return 0;
}

/* --- keep --- */

static int account_of(uid_t uid, struct passwd *ret, char *buf, size_t bytes,
		      struct passwd **ret_found)
{
	*ret = (struct passwd){ .pw_uid = uid, .pw_name = buf };
	(void)snprintf(buf, bytes, "ann");
	*ret_found = ret;
	return 0;
}

TEST(keep_sets_the_policy_of_a_job_and_prints_what_is_in_force)
{
	const char *root = place("keep"), *job = line(root, "run", 2), *lone;
	json_t *j;

	libc_instead.getpwuid_r = account_of;
	SHOWN_IS(0, "keep", job);
	SHOWN_IS(0, "keep", job, "--last=3", "--every", "1000", "--best=loss", "--within=36h");
	SHOWN_IS(0, "ls", job);
	RUN("keep", job, "--json");
	assert_json(0, "ckptd.keep/1",
		    "{'job':'run', 'changed':false, 'keeps':{'source':'job', 'options':"
		    "'--keep-last 3 --keep-every 1000 --keep-within 36h --keep-best loss:min:1'}}");
	RUN("keep", "run", "-C", root, "--last=2", "--set-aside-for=2w", "--json");
	assert_json(0, "ckptd.keep/1",
		    "{'changed':true, 'keeps':{'options':'--keep-last 2 --set-aside-for 2w'}}");
	RUN_IS(0, "ls", root, "--json");
	j = json_out("ckptd.ls/1");
	assert_json_has(
		first(j, "policies"),
		"{'job':'run', 'source':'job', 'options':'--keep-last 2 --set-aside-for 2w'}");
	json_decref(j);
	SHOWN_IS(0, "keep", "-C", root, "--all"); /* the only job */
	RUN("keep", "-C", root, "--json");
	assert_json(0, "ckptd.keep/1", "{'keeps':{'source':'job', 'options':null}}");
	assert_true(there(job, 10) && there(job, 20));
	libc_instead.getpwuid_r = NULL;
	lone = line(root, "walk", 1);
	SHOWN_IS(2, "keep", "-C", root, "--last=1");
	RUN("keep", lone, "--json");
	assert_json(0, "ckptd.keep/1", "{'keeps':{'source':'none', 'options':null, 'by':null}}");
}

TEST(keep_refuses_what_is_no_policy_and_no_job)
{
	static const char *const wrong[] = { "--last=0", "--every=x", "--within=5", "--best=a:b" };
	const char *job = line(place("wrong"), "run", 1);

	for (uint32_t i = 0; i < ARRAY_LEN(wrong); i++)
		RUN_IS(2, "keep", job, wrong[i]);
	RUN_IS(2, "keep", job, "--all", "--last=1");
	RUN_IS(2, "keep", job, "--set-aside-for=1d");
	RUN_IS(2, "keep", "", "--last=1");
	RUN_IS(10, "keep", "nobody", "-C", place("wrong"), "--last=1");
	RUN("keep", job, "--json");
	assert_json(0, "ckptd.keep/1", "{'keeps':{'source':'none'}}");
}

TEST(a_policy_of_a_newer_version_is_printed_as_one_that_cannot_be_read)
{
	const char *job = line(place("newer"), "run", 1);

	spill(path_of("%s/.ckptd/keep-000000000004", job), "keep-last=1\nkeep-odd=1\nend=\n");
	SHOWN_IS(3, "keep", job);
	RUN("keep", job, "--json");
	assert_json(3, "ckptd.keep/1", "{'keeps':{'source':'unreadable', 'options':null}}");
	RUN_IS(0, "keep", job, "--last=2"); /* replaces it */
	RUN("keep", job, "--json");
	assert_json(0, "ckptd.keep/1", "{'keeps':{'source':'job', 'options':'--keep-last 2'}}");
}

/* --- hold and release --- */

TEST(a_hold_is_kept_with_who_how_long_and_why)
{
	const char *job = line(place("hold"), "run", 2);
	json_t *j, *x;

	SHOWN_IS(0, "hold", "-C", job, "step:10", "--by=eval-17", "--until", "6h", "--why",
		 "an evaluation");
	SHOWN_IS(0, "ls", job);
	x = first(listed(job, 10, &j), "holds");
	assert_json_has(x, "{'name':'eval-17', 'why':'an evaluation'}");
	assert_int_equal(strlen(string(x, "until")), 20);
	assert_int_equal(strlen(string(x, "created")), 20);
	assert_true(strlen(string(x, "by")) > 2);
	json_decref(j);
	listed(job, 20, &j);
	assert_int_equal(count(of_step(json_object_get(j, "checkpoints"), 20), "holds"), 0);
	json_decref(j);
	SHOWN_IS(0, "show", "-C", job, "step:10");
	RUN_IS(0, "show", "-C", job, "step:10", "--json");
	j = json_out("ckptd.show/1");
	assert_string_equal(string(first(j, "holds"), "name"), "eval-17");
	json_decref(j);
	SHOWN_IS(0, "show", "-C", job);

	/* Again by the same name: one hold, without an end now. */
	RUN("hold", step_path(job, 10), "--by=eval-17", "--json");
	assert_json(0, "ckptd.hold/1", "{'step':10, 'job':'run', 'name':'eval-17', 'until':null}");
	x = first(listed(job, 10, &j), "holds");
	assert_json_has(x, "{'until':null, 'why':null}");
	json_decref(j);
}

TEST(release_gives_up_one_hold_or_all)
{
	const char *job = line(place("release"), "run", 2);
	json_t *j;

	RUN_IS(2, "release", "-C", job);
	SHOWN_IS(10, "release", "-C", job, "latest");
	RUN_IS(0, "hold", "-C", job, "latest");
	RUN_IS(0, "hold", "-C", job, "latest", "--by=a.b_c-1");
	SHOWN_IS(10, "release", "-C", job, "latest", "--by=nobody");
	RUN_IS(2, "release", "-C", job, "latest", "--by=a", "--all");
	/* The default name of release is that of hold. */
	SHOWN_IS(0, "release", "-C", job, "latest");
	RUN_IS(0, "hold", "-C", job, "latest", "--by=x");
	RUN("release", "-C", job, "latest", "--all", "--json");
	assert_json(0, "ckptd.release/1", "{'released_count':2}");
	assert_int_equal(count(listed(job, 20, &j), "holds"), 0);
	json_decref(j);
	RUN_IS(10, "release", "-C", job, "latest", "--all");
}

TEST(names_and_times_that_are_none_are_usage_errors)
{
	static const char *const name[] = { "",	    ".x",   "a b",	"a/b",
					    "../x", "a\nb", "\303\244", "a~1" };
	static const char *const until[] = { "",
					     "6",
					     "0h",
					     "-6h",
					     "tomorrow",
					     "6 hours",
					     "1e99w",
					     "99999999999999999999w",
					     "2020-01-01T00:00:00Z",
					     "2099-02-30T00:00:00Z",
					     "2099-13-01T00:00:00Z",
					     "2099-01-01T24:00:00Z",
					     "2099-01-01T00:00:00",
					     "2099-01-01T00:00:00+99:00",
					     "2099-01-01T00:00:00Zx",
					     "20990101T000000Z" };
	static const char *const fine[] = { "90m",
					    "1.5h",
					    "7d",
					    "2w",
					    "2099-01-31T18:00:00Z",
					    "2099-01-31T18:00:00.25+02:00",
					    "2099-01-31t18:00:00-11:30" };
	const char *job = path_of("%s/alpha", work);
	char longest[STORE_LABEL_NAME_MAX + 2];
	json_t *j;

	memset(longest, 'x', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	for (size_t i = 0; i < ARRAY_LEN(name); i++) {
		RUN_IS(2, "hold", "-C", job, "latest", "--by", name[i]);
		RUN_IS(2, "release", "-C", job, "latest", "--by", name[i]);
		RUN_IS(2, "tag", "-C", job, "latest", name[i]);
	}
	RUN_IS(2, "hold", "-C", job, "latest", "--by", longest);
	RUN_IS(2, "tag", "-C", job, "latest", longest);
	for (size_t i = 0; i < ARRAY_LEN(until); i++)
		if (RUN("hold", "-C", job, "latest", "--until", until[i]) != 2)
			fail_msg("--until \"%s\" gives %d: %s", until[i], got.code, got.err);
	RUN_IS(2, "hold", "-C", job);
	RUN_IS(2, "hold", "-C", job, "latest", "more");
	RUN_IS(2, "hold", "-C", job, "latest", "--by=", "--json");
	assert_json_error(2);
	assert_int_equal(count(listed(job, 30, &j), "holds"), 0);
	json_decref(j);
	for (size_t i = 0; i < ARRAY_LEN(fine); i++)
		if (RUN("hold", "-C", job, "latest", "--by=t", "--until", fine[i], "--json"))
			fail_msg("--until \"%s\" gives %d: %s", fine[i], got.code, got.err);
	j = json_out("ckptd.hold/1");
	assert_string_equal(string(j, "until"), "2099-02-01T05:30:00Z");
	json_decref(j);
	RUN_IS(0, "release", "-C", job, "latest", "--by=t");
}

TEST(steps_that_are_not_there_are_ten_and_copies_have_no_labels)
{
	const char *job = path_of("%s/alpha", work), *copy = path_of("%s/copied", top);
	json_t *j;

	RUN_IS(10, "hold", "-C", job, "step:11");
	RUN_IS(10, "release", "-C", job, "step:11");
	RUN_IS(10, "tag", "-C", job, "step:11", "x");
	RUN_IS(10, "hold", "-C", path_of("%s/none", top), "latest");
	SHOWN_IS(2, "hold", "-C", work, "latest"); /* two jobs: which? */
	copy_step(step_path(job, 30), copy);
	SHOWN_IS(2, "hold", copy);
	RUN_IS(2, "tag", copy, "x");
	RUN_IS(2, "release", copy, "--all");
	/* A copy with the name of a step, in the name of a store, but no store. */
	assert_int_equal(mkdir(path_of("%s/notes", top), 0700), 0);
	copy_step(step_path(job, 30), path_of("%s/notes/step-000000000030", top));
	RUN_IS(2, "hold", path_of("%s/notes/step-000000000030", top));
	RUN_IS(0, "verify", "--data", copy);
	RUN_IS(0, "verify", "--data", copy, "--json");
	j = json_out("ckptd.verify/1");
	member(item(j, "checkpoints", 0), "mark", JSON_NULL);
	json_decref(j);
	RUN("show", copy, "--json");
	assert_json(0, "ckptd.show/1", "{'holds':[], 'verified':null}");
	assert_int_equal(access(path_of("%s/.ckptd", top), F_OK), -1);
	assert_int_equal(access(path_of("%s/notes/.ckptd", top), F_OK), -1);
}

TEST(a_step_that_was_renamed_meanwhile_is_not_taken_for_another)
{
	const char *job = path_of("%s/alpha", work);
	struct store_ref ref = { .step_fd = reading(job, 10) };
	struct store_home m;
	struct ckpt_err err = { 0 };

	snprintf(ref.path, sizeof ref.path, "%s", step_path(job, 20));
	assert_int_equal(store_home_find(&io_ops_posix, formats[0], &ref, &m, &err), 1);
	assert_int_equal(store_home_open(&io_ops_posix, formats[0], &ref, &m, &err), 1);
	snprintf(ref.path, sizeof ref.path, "%s", step_path(job, 10));
	assert_int_equal(store_home_find(&io_ops_posix, formats[0], &ref, &m, &err), 0);
	assert_int_equal(m.step.step, 10);
	store_home_close(&m);
	for (const char *const *p =
		     (const char *const[]){ "/", "/step-000000000010", "x", "", NULL };
	     *p; p++) {
		snprintf(ref.path, sizeof ref.path, "%s", *p);
		assert_int_equal(store_home_open(&io_ops_posix, formats[0], &ref, &m, &err), 1);
	}
	close(ref.step_fd);
}

TEST(a_step_that_is_being_removed_gets_no_label)
{
	const char *job = line(place("going"), "run", 2);
	int fd = open(step_path(job, 10), O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	RUN_IS(10, "hold", "-C", job, "step:10");
	RUN_IS(10, "tag", "-C", job, "step:10", "x");
	RUN_IS(10, "show", "-C", job, "step:10");
	RUN_IS(0, "hold", "-C", job, "step:20");
	close(fd);
	RUN_IS(0, "hold", "-C", job, "step:10");
}

/* --- tag --- */

TEST(a_tag_finds_its_step_moves_and_goes)
{
	const char *root = place("tag"), *job = line(root, "run", 3);
	json_t *j;

	RUN_IS(2, "tag", "-C", job);
	RUN_IS(2, "tag", "-C", job, "latest");
	RUN_IS(0, "tag", "-C", job, "step:10", "best");
	assert_string_equal(got.out, "step 10 of run is tagged best\n");
	RUN_IS(0, "show", "-C", job, "tag:best", "--json");
	j = json_out("ckptd.show/1");
	assert_int_equal(number(j, "step"), 10);
	assert_string_equal(string(first(j, "tags"), "name"), "best");
	json_decref(j);
	SHOWN_IS(0, "ls", job);
	RUN("tag", "-C", job, "step:20", "best", "--json");
	assert_json(0, "ckptd.tag/1", "{'step':20, 'moved_from':10, 'deleted':false}");
	assert_int_equal(count(listed(job, 10, &j), "tags"), 0);
	json_decref(j);
	RUN_IS(0, "tag", "-C", job, "tag:best", "again");
	assert_int_equal(count(listed(job, 20, &j), "tags"), 2);
	json_decref(j);
	RUN_IS(10, "show", "-C", job, "tag:none");
	RUN_IS(10, "tag", "--delete=none", job);
	RUN_IS(2, "tag", "--delete=best", job, "more");
	RUN_IS(0, "tag", "--delete=best", root, "--json");
	j = json_out("ckptd.tag/1");
	assert_json_has(j, "{'step':20, 'deleted':true}");
	assert_string_equal(string(j, "path"), step_path(job, 20));
	json_decref(j);
	RUN_IS(10, "tag", "--delete=best", "-C", job);
	RUN_IS(10, "show", "-C", job, "tag:best");
	RUN_IS(0, "show", "-C", job, "tag:again");
	RUN_IS(10, "tag", "--delete=again", path_of("%s/none", top));
}

TEST(a_tag_that_two_jobs_have_is_deleted_in_the_one_that_is_named)
{
	const char *root = place("two"), *a = line(root, "a", 1), *b = line(root, "b", 1);
	json_t *j;

	RUN_IS(0, "tag", step_path(a, 10), "best");
	RUN_IS(0, "tag", step_path(b, 10), "best");
	SHOWN_IS(2, "tag", "--delete=best", root);
	RUN_IS(0, "tag", "--delete=best", b);
	assert_int_equal(count(listed(a, 10, &j), "tags"), 1);
	json_decref(j);
	assert_int_equal(count(listed(b, 10, &j), "tags"), 0);
	json_decref(j);
	RUN_IS(0, "tag", "--delete=best", root);
}

/* --- verify --- */

TEST(verify_of_every_byte_is_kept_and_less_is_not)
{
	const char *job = line(place("checked"), "run", 2);
	json_t *j;

	RUN_IS(0, "verify", "-C", job);
	member(listed(job, 20, &j), "verified", JSON_NULL);
	json_decref(j);
	RUN_IS(0, "verify", "--data-subset=1/9", "-C", job);
	RUN_IS(0, "verify", "--data", "--no-mark", "-C", job);
	member(listed(job, 20, &j), "verified", JSON_NULL);
	json_decref(j);
	RUN_IS(0, "verify", "--data", "-C", job, "--json");
	j = json_out("ckptd.verify/1");
	assert_string_equal(string(item(j, "checkpoints", 0), "mark"), "verified");
	json_decref(j);
	assert_int_equal(strlen(string(listed(job, 20, &j), "verified")), 20);
	json_decref(j);
	member(listed(job, 10, &j), "verified", JSON_NULL);
	json_decref(j);
	RUN_IS(0, "verify", "--data", "--all", job);
	string(listed(job, 10, &j), "verified");
	json_decref(j);
	SHOWN_IS(0, "ls", job);
}

/* Bytes are right when the disk has them, metadata included. */
TEST(verify_of_every_byte_does_not_believe_the_page_cache)
{
	const char *job = line(place("fresh"), "run", 1);
	const char *all = forgotten;
	char file[64];

	(void)snprintf(file, sizeof file, "%.63s", strrchr(part(step_path(job, 10), 0), '/') + 1);
	libc_instead.posix_fadvise = forget;
	forgotten[0] = 0;
	RUN_IS(0, "verify", "-C", job);
	assert_string_equal(forgotten, "");
	RUN_IS(0, "verify", "--data", "-C", job);
	assert_says(all, "MANIFEST");
	assert_says(all, file);
	forgotten[0] = 0;
	RUN_IS(0, "repair", "--yes", job);
	assert_string_equal(forgotten, "");
	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 10))), 0);
	RUN_IS(0, "repair", "--yes", job);
	assert_says(all, "MANIFEST");
	assert_says(all, file);
	libc_instead.posix_fadvise = NULL;
}

TEST(damage_that_verify_finds_is_quarantined_and_latest_says_what_it_passes_over)
{
	const char *job = line(place("damage"), "run", 3);
	json_t *j, *x;

	flip(part(step_path(job, 30), 0), 8192);
	SHOWN_IS(4, "verify", "--data", "--no-mark", "-C", job);
	RUN("show", "-C", job, "--json");
	assert_json(0, "ckptd.show/1", "{'step':30}");
	SHOWN_IS(4, "verify", "--data", "-C", job);
	x = listed(job, 30, &j);
	assert_string_equal(string(x, "state"), "quarantined");
	assert_says(string(x, "bad"), ".part");
	assert_says(string(x, "why"), ".part");
	json_decref(j);
	SHOWN_IS(3, "ls", job);
	SHOWN_IS(3, "ls", "--all", job);

	SHOWN_IS(3, "show", "-C", job);
	SHOWN_IS(3, "stats", "-C", job);
	SHOWN_IS(3, "verify", "-C", job);
	SHOWN_IS(3, "hold", "-C", job, "latest", "--by=x");
	RUN_IS(3, "show", "-C", job, "--json");
	assert_json_error(3);
	assert_says(got.err, "passed over");
	RUN_IS(0, "show", "-C", job, "step:20", "--json");
	assert_string_equal(got.err, "");
	/* By its number it is still found: somebody wants to save what there is. */
	SHOWN_IS(0, "show", "-C", job, "step:30");
	RUN_IS(4, "verify", "--data", "-C", job, "step:30");
	/* Made whole again it is good, and stays quarantined until somebody says otherwise. */
	flip(part(step_path(job, 30), 0), 8192);
	SHOWN_IS(3, "verify", "--data", "-C", job, "step:30");
	RUN_IS(3, "verify", "-C", job, "step:30");
	assert_silent(got.out, "ok");
	RUN_IS(3, "verify", "--all", job, "--json");
	assert_json(3, "ckptd.verify/1", "{'checkpoints':[{'ok':false},{'ok':true},{'ok':true}]}");
	assert_string_equal(string(listed(job, 30, &j), "state"), "quarantined");
	json_decref(j);
}

TEST(where_all_are_damaged_latest_is_five_and_says_what_to_do)
{
	const char *job = line(place("alldamaged"), "run", 2);

	flip(part(step_path(job, 10), 0), 8192);
	flip(part(step_path(job, 20), 0), 8192);
	RUN_IS(4, "verify", "--data", "--all", job);
	SHOWN_IS(5, "show", "-C", job);
	RUN_IS(5, "hold", "-C", job, "latest");
	SHOWN_IS(3, "ls", job);
	RUN_IS(4, "verify", "--data", "-C", job, "step:10", "--json");
	RUN_IS(0, "show", "-C", job, "step:10");
}

/* --- a newest step that is spoiled, in every way that a look finds --- */
static void no_manifest(const char *step)
{
	assert_int_equal(unlink(path_of("%s/MANIFEST", step)), 0);
}

static void short_manifest(const char *step)
{
	assert_int_equal(truncate(path_of("%s/MANIFEST", step), 100), 0);
}

static void wrong_manifest(const char *step)
{
	flip(path_of("%s/MANIFEST", step), 64);
}

static void no_part(const char *step)
{
	assert_int_equal(unlink(part(step, 0)), 0);
}

static void short_part(const char *step)
{
	assert_int_equal(truncate(part(step, 0), 8192), 0);
}

static void linked_part(const char *step)
{
	const char *name = path_of("%s", part(step, 0)), *to = path_of("%s/elsewhere", top);

	(void)unlink(to);
	assert_int_equal(rename(name, to) | symlink(to, name), 0);
}

static void quarantined(const char *step)
{
	flip(part(step, 0), 8192);
	RUN_IS(4, "verify", "--data", step);
}

static void misplaced(const char *step)
{
	remove_tree(step);
	copy_step(step_path(line(place("stranger"), "stranger", 3), 30), step);
}

static const struct spoil {
	const char *name;
	void (*spoil)(const char *step);
} spoils[] = {
	{ "no MANIFEST", no_manifest },		{ "a short MANIFEST", short_manifest },
	{ "a wrong MANIFEST", wrong_manifest }, { "no part", no_part },
	{ "a short part", short_part },		{ "a part that is a link", linked_part },
	{ "quarantined", quarantined },		{ "misplaced", misplaced },
};

TEST(latest_is_one_step_for_all_verbs_whatever_the_newest_one_lacks)
{
	const char *const verbs[][7] = {
		{ "show", "latest" },
		{ "show", "latest~0", "--files" },
		{ "verify", "latest" },
		{ "verify", "latest", "--data" },
		{ "stats", "latest" },
		{ "plan", "latest", "--mesh", "fsdp=2" },
		{ "hold", "latest", "--by=me" },
		{ "tag", "latest", "best" },
		{ "wait", "latest" },
		{ "convert", "latest", "@c", "--mesh", "fsdp=1" },
		{ "export", "latest", "@e", "--mesh", "fsdp=1", "--drop-unsupported" },
		{ "diff", "latest", "step:10" },
		{ "cat", "latest", "model/spectrum", "--stats" },
		{ "release", "latest", "--by=me" },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(spoils); i++) {
		const char *store = path_of("%s/spoilt%" PRIu32, top, i);
		const char *job = line(store, "run", 3), *step = path_of("%s", step_path(job, 30));

		spoils[i].spoil(step);
		RUN("ls", job);
		if (got.code != 3 || !strstr(got.out, "20"))
			fail_msg("ls, %s: %d %s", spoils[i].name, got.code, got.out);
		RUN("ls", job, "--json");
		assert_says(got.out, "\"step\":30");
		for (uint32_t k = 0; k < ARRAY_LEN(verbs); k++) {
			char *argv[12] = { (char *)"ckptctl" }, to[PATH_MAX];
			const char *verb = verbs[k][0];
			int argc = 1, want = strcmp(verb, "diff") ? 3 : 6;

			for (uint32_t w = 0; w < 7 && verbs[k][w]; w++) {
				snprintf(to, sizeof to, "%s/made-%s", store, verbs[k][w] + 1);
				argv[argc++] =
					verbs[k][w][0] == '@' ? to : (char *)(uintptr_t)verbs[k][w];
			}
			argv[argc++] = (char *)"-C";
			argv[argc++] = (char *)(uintptr_t)job;
			run_argv(argc, argv);
			if (got.code != want || !strstr(got.err, "step 30 is passed over"))
				fail_msg("%s, %s: %d\n%s%s", verb, spoils[i].name, got.code,
					 got.out, got.err);
		}
		/* All of them have meant step 20. */
		RUN_IS(0, "show", "-C", job, "tag:best", "--json");
		assert_json(0, "ckptd.show/1", "{'step':20}");
		/* And nobody keeps what cannot be loaded under a name. */
		RUN_IS(4, "tag", "-C", job, "step:30", "worst");
		RUN_IS(4, "hold", "-C", job, "step:30", "--by=me");
		RUN_IS(4, "tag", step, "worst");
		RUN_IS(10, "show", "-C", job, "tag:worst");
	}
	RUN_IS(3, "show", "-C", path_of("%s/spoilt3/run", top), "latest~1", "--json");
	assert_json(3, "ckptd.show/1", "{'step':10}");
}

/* --- a store that is not ours to write --- */

TEST(where_nothing_can_be_written_verify_says_so_and_hold_is_twelve)
{
	const char *job = line(place("closed"), "run", 1);
	const char *labels = path_of("%s/.ckptd", job);
	json_t *j;

	if (geteuid() == 0) {
		print_message("skipped: root writes everywhere; the next test is its other half\n");
		skip();
	}
	assert_int_equal(chmod(labels, 0500), 0);
	RUN_IS(0, "verify", "--data", "-C", job);
	RUN_IS(0, "verify", "--data", "-C", job, "--json");
	assert_string_equal(got.err, "");
	RUN_IS(12, "hold", "-C", job, "latest");
	RUN_IS(12, "tag", "-C", job, "latest", "x", "--json");
	assert_json_error(12);
	assert_int_equal(chmod(labels, 0), 0);
	RUN_IS(12, "ls", job);
	RUN_IS(12, "show", step_path(job, 10), "--json");
	assert_json_error(12);
	json_decref(json_out("ckptd.show/1"));
	assert_int_equal(chmod(labels, 0700), 0);
	listed(job, 10, &j);
	json_decref(j);
}

TEST(another_user_who_may_only_read_checks_and_labels_nothing)
{
	const char *root = place("others"), *job = line(root, "run", 1);
	json_t *j;

	if (!only_root())
		skip();
	assert_int_equal(chmod(top, 0755), 0);
	assert_int_equal(chmod(root, 0755), 0);
	assert_int_equal(chmod(job, 0755), 0);
	assert_int_equal(chmod(path_of("%s/.ckptd", job), 0755), 0);
	assert_int_equal(chmod(step_path(job, 10), 0755), 0);
	for (const char *const *f = (const char *const[]){ ".part", "MANIFEST", NULL }; *f; f++) {
		DIR *d = opendir(step_path(job, 10));

		for (struct dirent *e; (e = readdir(d));)
			if (strstr(e->d_name, *f))
				chmod(path_of("%s/%s", step_path(job, 10), e->d_name), 0644);
		closedir(d);
	}
	RUN_IS(0, "hold", "-C", job, "latest", "--by=root");
	become_nobody(true);
	RUN("verify", "--data", "-C", job);
	assert_int_equal(got.code, 0);
	RUN("hold", "-C", job, "latest");
	assert_int_equal(got.code, 12);
	RUN("release", "-C", job, "latest", "--by=root");
	assert_int_equal(got.code, 12);
	RUN("tag", "-C", job, "latest", "mine");
	assert_int_equal(got.code, 12);
	RUN("tag", "--delete=none", job);
	assert_int_equal(got.code, 10);
	/* What root said in a file of its own cannot be read; that it holds still counts. */
	RUN("ls", job);
	assert_int_equal(got.code, 0);
	become_nobody(false);
	assert_int_equal(count(listed(job, 10, &j), "holds"), 1);
	json_decref(j);
	assert_int_equal(chmod(top, 0700), 0);
}

/* --- what lies there --- */

TEST(files_that_are_no_labels_or_torn_ones_break_no_verb)
{
	const char *job = line(place("hostile"), "run", 2);
	const char *labels = path_of("%s/.ckptd", job);
	char *names[64], big[8192];
	uint32_t n = 0;
	DIR *d;
	json_t *j;

	RUN_IS(0, "hold", "-C", job, "latest", "--by=torn");
	RUN_IS(0, "tag", "-C", job, "latest", "torn");
	RUN_IS(0, "verify", "--data", "-C", job);
	/* Each label's content becomes something else. */
	d = opendir(labels);
	for (struct dirent *e; (e = readdir(d)) && n < ARRAY_LEN(names);)
		if (strstr(e->d_name, "hold-") || strstr(e->d_name, "tag-") ||
		    strstr(e->d_name, "verified-"))
			names[n++] = strdup(path_of("%s/%s", labels, e->d_name));
	closedir(d);
	assert_int_equal(n, 3);
	memset(big, 'x', sizeof big - 1);
	big[sizeof big - 1] = 0;
	for (const char *const *text =
		     (const char *const[]){ "", "made=2026-11-21T00:00:00Z", "made=\n", "\033[2J\n",
					    "made=2026-11-21T00:00:00Z\nuntil=never\n", big, NULL };
	     *text; text++) {
		for (uint32_t i = 0; i < n; i++)
			spill(names[i], *text);
		/* Hold and tag count, verified does not. */
		SHOWN_IS(0, "ls", job);
		RUN_IS(0, "show", "-C", job, "tag:torn");
		member(first(listed(job, 20, &j), "holds"), "until", JSON_NULL);
		json_decref(j);
	}
	for (uint32_t i = 0; i < n; i++)
		free(names[i]);
	spill(path_of("%s/hold-xx", labels), "");
	spill(path_of("%s/tag-000000000020-0000000000000000-..", labels), "");
	spill(path_of("%s/hold-000000000020-zzzzzzzzzzzzzzzz-a", labels), "");
	assert_int_equal(mkdir(path_of("%s/bad-000000000010-0000000000000000", labels), 0700), 0);
	assert_int_equal(symlink("/etc/passwd", path_of("%s/tag-x", labels)), 0);
	RUN_IS(0, "ls", job);
	RUN_IS(0, "release", "-C", job, "latest", "--all");
	RUN_IS(0, "tag", "--delete=torn", job);
	SHOWN_IS(0, "ls", job, "--all");
}

TEST(a_directory_of_labels_that_leads_elsewhere_is_not_followed)
{
	const char *job = line(place("led"), "run", 1), *out = place("outside");

	assert_int_equal(mkdir(out, 0700), 0);
	assert_int_equal(rename(path_of("%s/.ckptd", job), path_of("%s/away", job)), 0);
	assert_int_equal(symlink(out, path_of("%s/.ckptd", job)), 0);
	assert_int_not_equal(RUN("hold", "-C", job, "latest"), 0);
	assert_int_not_equal(RUN("tag", "-C", job, "latest", "x"), 0);
	RUN("verify", "--data", "-C", job);
	RUN("prune", "--yes", "--keep-last=1", job);
	RUN("repair", "--yes", job);
	assert_int_equal(rmdir(out), 0); /* nothing is in it */
	assert_true(there(job, 10));
}

TEST(a_hold_that_is_over_is_none)
{
	const char *job = line(place("over"), "run", 1);
	char name[PATH_MAX] = "";
	DIR *d;
	json_t *j;

	RUN_IS(0, "hold", "-C", job, "latest", "--by=late", "--until=1h");
	d = opendir(path_of("%s/.ckptd", job));
	for (struct dirent *e; (e = readdir(d));)
		if (strstr(e->d_name, "hold-"))
			snprintf(name, sizeof name, "%s/.ckptd/%s", job, e->d_name);
	closedir(d);
	spill(name, "made=2020-01-01T00:00:00Z\nuntil=2020-01-02T00:00:00Z\n");
	SHOWN_IS(0, "ls", job);
	assert_int_equal(count(listed(job, 10, &j), "holds"), 0);
	json_decref(j);
}

/* --- looks --- */

TEST(everything_said_at_once_fits_80_columns)
{
	const char *root = place("narrow");
	const char *job = line(root, "a-job-with-a-long-name", 2);

	RUN_IS(0, "hold", "-C", job, "latest", "--by=evaluation-17-on-gpu-0007", "--until=300h");
	RUN_IS(0, "hold", "-C", job, "latest", "--by=somebody");
	RUN_IS(0, "tag", "-C", job, "latest", "release-candidate-4");
	RUN_IS(0, "verify", "--data", "-C", job);
	line(root, "b", 1);
	for (int i = 0; i < 4; i++) {
		const char *where = i & 1 ? root : job, *all = i & 2 ? "--all" : "--ascii";

		TYPED_IS(0, "", "ls", where, all);
	}
	TYPED_IS(0, "", "show", "-C", job);
	TYPED_IS(0, "", "hold", "-C", job, "latest", "--until=2099-01-01T00:00:00Z");
}

TEST(names_are_completed)
{
	const char *job = line(place("complete"), "run", 2);

	RUN_IS(0, "tag", "-C", job, "step:10", "best");
	RUN_IS(0, "hold", "-C", job, "step:10", "--by=eval");
	RUN_IS(0, "completion", "complete", "--", "-C", job, "show", "tag:");
	assert_says(got.out, "tag:best\tstep 10 of run\n");
	RUN_IS(0, "completion", "complete", "--", "-C", job, "show", "");
	assert_says(got.out, "tag:best\t");
	assert_says(got.out, "step:20\t");
	RUN_IS(0, "completion", "complete", "--", "-C", job, "tag", "--delete=b");
	assert_string_equal(got.out, "--delete=best\tstep 10 of run\n");
	RUN_IS(0, "completion", "complete", "--", "-C", job, "tag", "step:20", "");
	assert_string_equal(got.out, "best\tstep 10 of run\n");
	RUN_IS(0, "completion", "complete", "--", "-C", job, "release", "step:10", "--by", "");
	assert_string_equal(got.out, "eval\tstep 10 of run\n");
	RUN_IS(0, "completion", "complete", "--", "pru");
	assert_says(got.out, "prune\t");
	RUN_IS(0, "completion", "complete", "--", "prune", "--keep-");
	assert_says(got.out, "--keep-best\t");
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
