/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_prune.c - ckptctl prune: what goes, what stays, who is asked, and the exit codes. Which
 * rule keeps which step is test_store_retain's, that a crash loses nothing, test_store_prune's.
 */
#include "ckpt/cli/full_check.h"
#include "tests/lib/cli_rig.h"
#include <sys/file.h>

/* The document of a run that was right to end with this code. */
static json_t *pruned(int code)
{
	if (got.code != code)
		fail_msg("exit %d: %s%s", got.code, got.out, got.err);
	return json_out("ckptd.prune/1");
}

static const char *decision(json_t *j, uint64_t step)
{
	return string(of_step(json_object_get(j, "checkpoints"), step), "decision");
}

static const char *reason(json_t *j, uint64_t step)
{
	return string(of_step(json_object_get(j, "checkpoints"), step), "reason");
}

/* --- the command line --- */

TEST(without_a_rule_or_with_a_wrong_one_it_is_two_and_nothing_goes)
{
	static const char *const wrong[] = { "--keep-last=0x",
					     "--keep-last=-1",
					     "--keep-last=",
					     "--keep-every=x",
					     "--keep-within=soon",
					     "--keep-within=1e9",
					     "--keep-best=",
					     "--keep-best=loss:best",
					     "--keep-best=loss:min:x",
					     "--free=0",
					     "--free=much",
					     "--free=-1G",
					     "--keep-last=99999999999999999999" };
	const char *job = line(place("usage"), "run", 2);

	SHOWN_IS(2, "prune", job);
	RUN_IS(2, "prune", job, "--yes");
	RUN_IS(2, "prune", job, "-n", "--yes", "--keep-last=1");
	RUN_IS(2, "prune", job, "--json");
	assert_json_error(2);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
		if (RUN("prune", "--yes", wrong[i], job) != 2)
			fail_msg("%s gives %d: %s", wrong[i], got.code, got.err);
	RUN_IS(2, "prune", "--yes", "--keep-best=a", "--keep-best=b", "--keep-best=c",
	       "--keep-best=d", "--keep-best=e", job);
	RUN_IS(2, "prune", "--yes", "--keep-last=1", step_path(job, 10));
	RUN_IS(2, "prune", "--yes", "--keep-last=1", job, job);
	RUN_IS(2, "prune", "--yes", "--keep-last=1", "");
	RUN_IS(10, "prune", "--yes", "--keep-last=1", path_of("%s/none", top));
	assert_string_equal(steps_of(job), "20 10 ");
}

TEST(an_empty_store_has_nothing_to_remove)
{
	const char *root = place("nothing");

	assert_int_equal(mkdir(root, 0700), 0);
	SHOWN_IS(0, "prune", "--keep-last=1", root);
	RUN("prune", "--keep-last=1", "--yes", root, "--json");
	assert_json(0, "ckptd.prune/1", "{'removed_count':0}");
}

/* --- deciding --- */

TEST(a_dry_run_says_all_and_changes_nothing)
{
	const char *job = line(place("dry"), "run", 5);
	json_t *j;

	RUN_IS(0, "hold", "-C", job, "step:30", "--by=eval");
	RUN_IS(0, "tag", "-C", job, "step:10", "first");
	SHOWN_IS(0, "prune", "-n", "--keep-last", "2", job);
	RUN("prune", "--dry-run", "--keep-last=2", job, "--json");
	j = pruned(0);
	assert_true(json_is_true(json_object_get(j, "dry_run")));
	assert_says(string(j, "policy"), "keep-last");
	assert_int_equal(count(j, "checkpoints"), 5);
	assert_string_equal(decision(j, 50), "keep");
	assert_string_equal(decision(j, 40), "keep");
	assert_string_equal(decision(j, 30), "keep");
	assert_string_equal(decision(j, 20), "remove");
	assert_string_equal(decision(j, 10), "keep");
	assert_says(reason(j, 50), "newest committed");
	assert_says(reason(j, 10), "first");
	assert_json_has(j, "{'removed_count':1, 'kept_count':4}");
	assert_true(number(j, "freed_bytes") > MIB);
	assert_int_equal(number(of_step(json_object_get(j, "checkpoints"), 20), "bytes"),
			 number(j, "freed_bytes"));
	json_decref(j);
	assert_string_equal(steps_of(job), "50 40 30 20 10 ");
	/* Nothing was verified for it either. */
	member(listed(job, 50, &j), "verified", JSON_NULL);
	json_decref(j);
}

TEST(rules_add_up_and_a_rule_may_come_again)
{
	const char *job = line(place("rules"), "run", 5);
	json_t *j;

	RUN("prune", "-n", "--keep-last=1", "--keep-every=20", job, "--json");
	j = pruned(0);
	assert_string_equal(decision(j, 40), "keep");
	assert_string_equal(decision(j, 30), "remove");
	assert_string_equal(decision(j, 20), "keep");
	assert_says(reason(j, 20), "every 20");
	json_decref(j);
	/* All losses are equal: the newer is better. */
	RUN("prune", "-n", "--keep-best=loss:min:2", "--keep-best=lr:max:3", job, "--json");
	j = pruned(0);
	assert_int_equal(number(j, "removed_count"), 2);
	assert_says(reason(j, 40), "loss");
	assert_says(reason(j, 40), "lr");
	assert_says(reason(j, 30), "lr");
	json_decref(j);
	/* The steps are of 2023. */
	RUN("prune", "-n", "--keep-within=2w", job, "--json");
	j = pruned(0);
	json_decref(j);
	RUN("prune", "-n", "--keep-last=9", job, "--json");
	j = pruned(0);
	assert_int_equal(number(j, "removed_count"), 0);
	json_decref(j);
}

/* --- removing --- */

TEST(where_nobody_can_be_asked_nothing_goes_without_yes)
{
	const char *job = line(place("unasked"), "run", 3);

	SHOWN_IS(2, "prune", "--keep-last=1", job);
	RUN_IS(2, "prune", "--keep-last=1", job, "--json");
	assert_json_error(2);
	assert_string_equal(got.out, "");
	assert_string_equal(steps_of(job), "30 20 10 ");
	/* What changes nothing needs no answer. */
	SHOWN_IS(0, "prune", "--keep-last=3", job);
}

TEST(with_yes_the_newest_is_checked_and_the_others_go)
{
	const char *job = line(place("yes"), "run", 4);
	json_t *j;

	RUN("prune", "--yes", "--keep-last=2", job, "--json");
	j = pruned(0);
	assert_json_has(j, "{'dry_run':false, 'removed_count':2, 'kept_count':2}");
	assert_true(number(j, "freed_bytes") > 2 * MIB);
	json_decref(j);
	assert_string_equal(steps_of(job), "40 30 ");
	assert_false(there(job, 10));
	string(listed(job, 40, &j), "verified");
	json_decref(j);
	RUN_IS(0, "verify", "--data", "--all", job);
	SHOWN_IS(0, "prune", "--yes", "--keep-last=2", job);
	SHOWN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "40 ");
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "40 ");
}

TEST(what_is_held_or_tagged_goes_only_when_released)
{
	const char *job = line(place("kept_steps"), "run", 3);

	RUN_IS(0, "hold", "-C", job, "step:10", "--by=a");
	RUN_IS(0, "hold", "-C", job, "step:10", "--by=b", "--until=2099-01-01T00:00:00Z");
	RUN_IS(0, "tag", "-C", job, "step:20", "t");
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "30 20 10 ");
	RUN_IS(0, "release", "-C", job, "step:10", "--by=a");
	RUN_IS(0, "tag", "--delete=t", job);
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "30 10 ");
	RUN_IS(0, "release", "-C", job, "step:10", "--all");
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "30 ");
}

TEST(what_is_being_read_stays_and_the_code_says_so)
{
	const char *job = line(place("reading"), "run", 3);
	int ten = reading(job, 10);
	json_t *j;

	RUN("prune", "--yes", "--keep-last=1", job, "--json");
	j = pruned(3);
	assert_json_has(j, "{'removed_count':1, 'reading_count':1}");
	assert_string_equal(decision(j, 10), "keep");
	assert_says(reason(j, 10), "read");
	assert_string_equal(decision(j, 20), "remove");
	json_decref(j);
	assert_string_equal(steps_of(job), "30 10 ");
	/* All that should go. */
	SHOWN_IS(11, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "30 10 ");
	close(ten);
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "30 ");
}

TEST(a_newest_that_is_damaged_is_quarantined_and_the_one_before_is_asked)
{
	const char *job = line(place("damaged"), "run", 4);
	json_t *j;

	flip(part(step_path(job, 40), 0), 8192);
	RUN("prune", "--yes", "--keep-last=1", job, "--json");
	assert_json_error(4);
	assert_json(4, "ckptd.prune/1", "{'quarantined_count':1}");
	assert_string_equal(string(listed(job, 40, &j), "state"), "quarantined");
	json_decref(j);
	/* What is left is whole. */
	assert_true(there(job, 40));
	assert_true(there(job, 30));
	assert_string_equal(steps_of(job), "30 ");
	RUN_IS(3, "verify", "--data", "-C", job, "latest");
	/* Damaged ones go when asked for and a newer one is there, and only these. */
	RUN_IS(0, "prune", "--yes", "--bad", job);
	assert_true(there(job, 40));
	make_step(place("damaged"), &(struct how){ "run", "fsdp=2", 50, 5, 30, 40, false });
	RUN_IS(0, "prune", "--yes", "--bad", job);
	assert_false(there(job, 40));
	assert_string_equal(steps_of(job), "50 30 ");
}

TEST(where_every_step_is_damaged_nothing_goes)
{
	const char *job = line(place("allbad"), "run", 3);

	for (uint64_t i = 10; i <= 30; i += 10)
		flip(part(step_path(job, i), 0), 8192);
	SHOWN_IS(4, "prune", "--yes", "--keep-last=1", job);
	SHOWN_IS(0, "prune", "--yes", "--keep-last=1", "--bad", job);
	for (uint64_t i = 10; i <= 30; i += 10)
		assert_true(there(job, i));
}

/* ls calls it damaged, and the help says that such a step stays without --bad. */
TEST(a_step_that_lacks_a_part_stays_without_bad)
{
	const char *job = line(place("nopart"), "run", 3);

	assert_int_equal(unlink(part(step_path(job, 20), 0)), 0);
	RUN_IS(4, "verify", "--data", step_path(job, 20));
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_true(there(job, 20));
	assert_false(there(job, 10));
	assert_non_null(strstr(got.out, "it lacks a part: part "));
	RUN_IS(0, "prune", "--yes", "--bad", "--keep-last=1", job);
	assert_false(there(job, 20));
}

/* Also where it was verified before: the older one, which is whole, stays. */
TEST(a_newest_step_that_lost_a_part_after_it_was_verified_is_not_relied_on)
{
	const char *job = line(place("lostpart"), "run", 3);

	RUN_IS(0, "verify", "--data", step_path(job, 30));
	assert_int_equal(unlink(part(step_path(job, 30), 0)), 0);
	RUN_IS(4, "prune", "--yes", "--keep-last=1", job);
	assert_true(there(job, 30));
	assert_true(there(job, 20));
	assert_false(there(job, 10));
}

/* Nothing is marked for what is missing, so nothing says that it is: latest does not pass it
 * over. */
TEST(a_newest_step_that_lacks_a_part_is_not_said_to_be_quarantined)
{
	const char *job = line(place("newestnopart"), "run", 3);

	assert_int_equal(unlink(part(step_path(job, 30), 0)), 0);
	RUN_IS(4, "prune", "--yes", "--keep-last=1", job);
	assert_non_null(strstr(got.err, "it lacks a part: part "));
	assert_non_null(strstr(got.err, "ckptctl verify --data /"));
	assert_null(strstr(got.out, "quarantined"));
	assert_null(strstr(got.err, "quarantined"));
	assert_null(strstr(got.err, "Bad message"));
}

TEST(bad_is_also_a_step_without_its_manifest)
{
	const char *job = line(place("nomanifest"), "run", 3);
	json_t *j;

	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 20))), 0);
	RUN_IS(0, "prune", "--yes", "--keep-last=1", job);
	assert_true(there(job, 20));
	assert_false(there(job, 10));
	RUN("prune", "-n", "--bad", job, "--json");
	j = pruned(0);
	assert_string_equal(decision(j, 20), "remove");
	assert_string_equal(decision(j, 30), "keep");
	member(j, "policy", JSON_NULL);
	json_decref(j);
	RUN_IS(0, "prune", "--yes", "--bad", job);
	assert_false(there(job, 20));
	assert_true(there(job, 30));
}

TEST(bad_removes_nothing_that_may_be_whole)
{
	const char *job = line(place("maybe"), "run", 4);
	json_t *j;

	/* Whole, under another's name. */
	assert_int_equal(rename(step_path(job, 20), step_path(job, 21)), 0);
	RUN_IS(0, "prune", "--yes", "--bad", "--keep-last=1", job, "--json");
	j = pruned(0);
	assert_string_equal(decision(j, 21), "keep");
	assert_says(got.out, "misplaced: its MANIFEST is that of step 20");
	assert_string_equal(decision(j, 10), "remove");
	json_decref(j);
	assert_true(there(job, 21));
	job = line(place("maybe2"), "run", 4);
	RUN_IS(0, "prune", "--yes", "--bad", job);
	if (geteuid() != 0) {
		const char *manifest = path_of("%s/MANIFEST", step_path(job, 10));

		assert_int_equal(chmod(manifest, 0), 0);
		RUN_IS(12, "prune", "--yes", "--bad", job);
		RUN_IS(12, "prune", "-n", "--bad", job);
		assert_int_equal(chmod(manifest, 0600), 0);
	}
	assert_string_equal(steps_of(job), "40 30 20 10 ");
	/* Whatever else it may be. */
	assert_int_equal(unlink(path_of("%s/MANIFEST", step_path(job, 20))), 0);
	assert_int_equal(mkdir(path_of("%s/MANIFEST", step_path(job, 20)), 0700), 0);
	assert_int_equal(truncate(path_of("%s/MANIFEST", step_path(job, 30)), 0), 0);
	flip(path_of("%s/MANIFEST", step_path(job, 10)), 8);
	SHOWN("prune", "--yes", "--bad", job);
	assert_int_equal(got.code, 0);
	assert_true(there(job, 40));
	assert_false(there(job, 30) || there(job, 20) || there(job, 10));
}

TEST(a_store_is_pruned_job_by_job)
{
	const char *root = place("jobs"), *a = line(root, "a", 3), *b = line(root, "b", 2);

	SHOWN_IS(0, "prune", "-n", "--keep-last=1", root);
	RUN("prune", "--yes", "--keep-last=1", "-C", root, "--json");
	assert_json(0, "ckptd.prune/1", "{'removed_count':3, 'kept_count':2}");
	assert_string_equal(steps_of(a), "30 ");
	assert_string_equal(steps_of(b), "20 ");
}

/* --- what convert and export left --- */

TEST(what_killed_conversions_left_is_shown_and_removed_only_when_asked)
{
	const struct timespec old[2] = { { 1000000000, 0 }, { 1000000000, 0 } };
	const char *root = place("left");
	char new[PATH_MAX], dead[PATH_MAX], lock[PATH_MAX];
	json_t *j;
	int held;

	line(root, "run", 3);
	snprintf(lock, sizeof lock, "%s/.dst.ckptctl", root);
	snprintf(new, sizeof new, "%s/.dst.ckptctl-new", root);
	snprintf(dead, sizeof dead, "%s/.model.safetensors.0123abcd.ckptctl-new", root);
	assert_int_equal(mkdir(lock, 0700), 0);
	spill(path_of("%s/journal-0", lock), "torn");
	spill(new, "123456");
	spill(dead, "123");
	assert_int_equal(utimensat(AT_FDCWD, dead, old, 0), 0);
	SHOWN_IS(0, "ls", root);
	RUN("ls", root, "--json");
	assert_json(0, "ckptd.ls/1",
		    "{'unfinished':[{'becomes':'dst', 'state':'unfinished', 'bytes':10},"
		    " {'becomes':'model.safetensors', 'state':'dead', 'bytes':3}]}");
	/* A policy for steps is none for these. */
	RUN("prune", "--yes", "--keep-last=1", root, "--json");
	j = pruned(0);
	assert_json_has(j, "{'removed_count':2, 'unfinished_removed_count':0}");
	assert_int_equal(count(j, "unfinished"), 2);
	json_decref(j);
	assert_true(exists(new) && exists(dead) && exists(lock));
	RUN_IS(2, "prune", "--unfinished", root);
	assert_says(got.err, "2 unfinished, 13 B, would be removed, and ckptctl cannot ask");
	SHOWN_IS(0, "prune", "-n", "--unfinished", root);
	RUN("prune", "-n", "--unfinished", root, "--json");
	assert_json(0, "ckptd.prune/1", "{'removed_count':0, 'unfinished_removed_count':2}");
	assert_true(exists(new) && exists(dead) && exists(lock));
	/* One that is being written stays. */
	held = open(lock, O_RDONLY | O_DIRECTORY);
	assert_int_equal(flock(held, LOCK_EX | LOCK_NB), 0);
	RUN("prune", "--yes", "--unfinished", root, "--json");
	assert_json(0, "ckptd.prune/1", "{'removed_count':0, 'unfinished_removed_count':1}");
	assert_true(exists(new) && !exists(dead) && exists(lock));
	close(held);
	RUN_IS(0, "prune", "--yes", "--unfinished", root);
	assert_says(got.out, "freed 10 B");
	assert_false(exists(new) || exists(lock));
	RUN_IS(0, "prune", "--yes", "--unfinished", root);
	assert_says(got.out, "nothing to remove");
	assert_string_equal(steps_of(path_of("%s/run", root)), "30 ");
	RUN_IS(10, "prune", "--yes", "--unfinished", path_of("%s/none", root));
}

/* Others by whom a directory of models is a checkpoint. */
TEST(beside_files_of_models_is_found_what_a_killed_conversion_left)
{
	const char *root = place("weights");
	char new[PATH_MAX], model[PATH_MAX], lock[PATH_MAX];
	int fd;

	assert_int_equal(mkdir(root, 0700), 0);
	snprintf(model, sizeof model, "%s/a.safetensors", root);
	snprintf(lock, sizeof lock, "%s/.b.safetensors.ckptctl", root);
	snprintf(new, sizeof new, "%s/.b.safetensors.ckptctl-new", root);
	fd = open(model, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, "\x02\0\0\0\0\0\0\0{}", 10), 10);
	close(fd);
	RUN_IS(2, "ls", root);
	RUN_IS(2, "prune", "--yes", "--unfinished", root);
	assert_int_equal(mkdir(lock, 0700), 0);
	spill(path_of("%s/journal-0", lock), "torn");
	spill(new, "123456");
	RUN_IS(0, "ls", root);
	assert_says(got.out, ".b.safetensors.ckptctl-new, 10 B: a conversion was interrupted");
	RUN_IS(2, "prune", "--yes", "--keep-last=1", root);
	RUN_IS(0, "prune", "--yes", "--unfinished", root);
	assert_says(got.out, "freed 10 B");
	assert_true(exists(model) && !exists(new) && !exists(lock));
}

TEST(in_a_directory_that_is_no_store_what_killed_conversions_left_is_said)
{
	const char *root = place("models");
	char new[PATH_MAX];

	assert_int_equal(mkdir(root, 0700), 0);
	assert_int_equal(mkdir(path_of("%s/vectors", root), 0700), 0);
	assert_int_equal(mkdir(path_of("%s/.dst.ckptctl", root), 0700), 0);
	spill(path_of("%s/.dst.ckptctl/journal-0", root), "torn");
	snprintf(new, sizeof new, "%s/.dst.ckptctl-new", root);
	spill(new, "123456");
	SHOWN_IS(10, "prune", "-n", "--keep-last=1", root);
	RUN_IS(10, "prune", "--yes", "--keep-last=1", root);
	assert_says(got.err, "1 unfinished, 10 B");
	assert_true(exists(new));
	RUN_IS(0, "prune", "--yes", "--unfinished", root);
	assert_false(exists(new));
}

TEST(free_takes_the_oldest_until_it_is_enough)
{
	const char *job = line(place("free"), "run", 5);

	RUN("prune", "--yes", "--free=6M", job, "--json");
	assert_json(0, "ckptd.prune/1", "{'removed_count':2}");
	assert_string_equal(steps_of(job), "50 40 30 ");
	/* With rules, of those that they give up. */
	RUN_IS(0, "prune", "--yes", "--free=1", "--keep-every=30", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "50 30 ");
	/* More than there is: the newest stays. */
	RUN_IS(0, "prune", "--yes", "--free=1E", job);
	assert_string_equal(steps_of(job), "50 ");
}

TEST(what_is_not_the_stores_own_stays_and_is_listed)
{
	const char *job = line(place("foreign"), "run", 3);
	json_t *j;

	assert_int_equal(mkdir(path_of("%s/notes", step_path(job, 10)), 0700), 0);
	assert_int_equal(symlink("/", path_of("%s/w-link.part", step_path(job, 20))), 0);
	make_step(place("foreign"), &(struct how){ "run", "fsdp=2", 35, 0, 0, 0, true });
	RUN("prune", "--yes", "--keep-last=1", job, "--json");
	j = pruned(0);
	assert_json_has(j, "{'failed_count':0, 'removed_count':2}");
	assert_says(reason(j, 10), "what is not ckptd's stays in .trash-");
	json_decref(j);
	assert_true(!there(job, 10) && !there(job, 20) && there(job, 30));
	/* Both directories are listed, and stay. */
	for (uint32_t i = 0; i < 2; i++) {
		RUN("repair", i ? "--yes" : "-n", job, "--json");
		assert_int_equal(got.code, 3);
		j = json_out("ckptd.repair/1");
		assert_int_equal(number(j, "left_count"), 3); /* and what is being written */
		json_decref(j);
	}
	RUN_IS(3, "repair", "-n", job); /* in the order of the directory */
	assert_says(got.out, "1 file is in it that ckptd did not make: notes");
	SHOWN_IS(0, "ls", "--all", job);
}

TEST(an_interrupt_before_anything_went_loses_nothing)
{
	const char *job = line(place("stop"), "run", 3);

	cli_stops = 1;
	cli_stop_signal = SIGINT;
	RUN("prune", "--yes", "--keep-last=1", job);
	cli_stops = 0;
	cli_stop_signal = 0;
	assert_int_equal(got.code, 130);
	assert_string_equal(steps_of(job), "30 20 10 ");
}

/* --- the check of every byte --- */

static int checked(const char *step, struct engine_checked *ret, struct ckpt_err *err)
{
	FILE *none = fopen("/dev/null", "w");
	struct cli c = { .ops = &io_ops_posix, .quiet = true, .out = none, .err = none };
	int fd = open(step, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc;

	screen_probe(none, NULL, false, &c.out_screen);
	screen_probe(none, NULL, false, &c.err_screen);
	c.o = output_text_new(none, &c.out_screen, none, &c.err_screen);
	assert_true(fd >= 0 && c.o);
	*err = (struct ckpt_err){ 0 };
	rc = full_check(&c, fd, step, ret, err);
	assert_int_equal(fcntl(fd, F_GETFD) >= 0, true); /* it stays the caller's */
	close(fd);
	c.o->ops->free(c.o);
	fclose(none);
	return rc;
}

TEST(a_check_says_good_damaged_or_that_nobody_knows)
{
	const char *job = line(place("full"), "run", 2), *step = step_path(job, 20);
	struct engine_checked n;
	struct ckpt_err err;
	json_t *j;

	assert_int_equal(checked(step, &n, &err), 0);
	assert_int_equal(n.bytes, number(listed(job, 20, &j), "bytes"));
	json_decref(j);
	assert_int_equal(n.nfault, 0);
	cli_stops = 1;
	assert_int_equal(checked(step, &n, &err), -ECANCELED);
	cli_stops = 0;
	if (geteuid() != 0) {
		const char *file = part(step, 0);

		assert_int_equal(chmod(file, 0), 0);
		if (checked(step, &n, &err) != -EIO && err.code != -EACCES)
			fail_msg("%d: %s", err.code, err.msg);
		/* What could not be read is no damage: nothing goes, nothing is quarantined. */
		assert_int_not_equal(RUN("prune", "--yes", "--keep-last=1", job), 0);
		assert_int_not_equal(RUN("verify", "--data", "-C", job), 0);
		assert_int_equal(chmod(file, 0600), 0);
		assert_string_equal(steps_of(job), "20 10 ");
	}
	flip(part(step, 0), 8192);
	assert_int_equal(checked(step, &n, &err), -EBADMSG);
	assert_says(err.msg, ".part");
	assert_int_equal(n.nfault, 1);
	flip(part(step, 0), 8192);
	flip(path_of("%s/MANIFEST", step), 4100);
	assert_int_equal(checked(step, &n, &err), -EBADMSG);
	flip(path_of("%s/MANIFEST", step), 4100);
	assert_int_equal(unlink(part(step, 0)), 0);
	assert_int_equal(checked(step, &n, &err), -EUCLEAN);
}

TEST(another_user_removes_nothing)
{
	const char *root = place("others"), *job = line(root, "run", 3);

	if (!only_root())
		skip();
	assert_int_equal(chmod(top, 0755), 0);
	assert_int_equal(chmod(root, 0755), 0);
	become_nobody(true);
	RUN("prune", "--yes", "--keep-last=1", root);
	assert_int_equal(got.code, 12);
	RUN("prune", "--yes", "--keep-last=1", job);
	assert_int_equal(got.code, 12);
	become_nobody(false);
	assert_int_equal(chmod(top, 0700), 0);
	assert_string_equal(steps_of(job), "30 20 10 ");
}

TEST(what_cannot_be_written_is_twelve_and_said)
{
	const char *root = place("closed"), *job = line(root, "run", 3);

	if (!only_root())
		skip();
	give_away(root);
	assert_int_equal(chmod(top, 0755), 0);
	assert_int_equal(chmod(job, 0500), 0);
	become_nobody(true);
	RUN("prune", "--yes", "--keep-last=1", job);
	assert_int_equal(got.code, 12);
	RUN("prune", "--yes", "--keep-last=1", job, "--json");
	assert_int_equal(got.code, 12);
	assert_json_error(12);
	become_nobody(false);
	assert_int_equal(chmod(top, 0700), 0);
	assert_int_equal(chmod(job, 0700), 0);
	assert_string_equal(steps_of(job), "30 20 10 ");
}

/* --- asking --- */

TEST(a_person_is_asked_and_only_yes_is_yes)
{
	static const char *const no[] = { "\n", "n\n", "N\n", "no\n", "\004", "x\n", " y\n" };
	const char *job = line(place("asked"), "run", 3);

	for (size_t i = 0; i < ARRAY_LEN(no); i++) {
		assert_int_equal(at_terminal(no[i], "prune", "--keep-last=1", job, NULL), 0);
		assert_says(got.out, "[y/N]");
		assert_string_equal(steps_of(job), "30 20 10 ");
	}
	TYPED_IS(0, "n\n", "prune", "--keep-last=1", job);
	TYPED_IS(0, "y\n", "prune", "--keep-last=1", job);
	assert_string_equal(steps_of(job), "30 ");
	/* Nothing to ask for. */
	TYPED_IS(0, "", "prune", "--keep-last=1", job);
}

TEST(what_is_read_while_a_person_thinks_stays)
{
	const char *job = line(place("thinks"), "run", 3);
	int fd = reading(job, 20);

	TYPED_IS(3, "y\n", "prune", "--keep-last=1", job);
	close(fd);
	assert_string_equal(steps_of(job), "30 20 ");
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
