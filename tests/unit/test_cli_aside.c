/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_aside.c - what the commands do with steps that were set aside, with one that somebody
 * names to rm, with what ls can see of damage, and with a directory that is no store. What rewind
 * moves is test_store_rewind's; that it stands back from a job that runs,
 * tests/e2e/test_rewind.sh's.
 */
#include "tests/lib/cli_rig.h"

#define NOBODY "-S", path_of("%s/nobody", top)

/* 10, 20, 30 and 40; back to 20: 25. */
static const char *gone_back(const char *name)
{
	const char *root = place(name), *job = line(root, "run", 4);

	make_step(root, &(struct how){ "run", "fsdp=2", 25, 5, 20, 20, false });
	return job;
}

static const char *aside_of(const char *job, uint64_t step)
{
	json_t *j, *x = listed(job, step, &j);
	char *path = place("");

	assert_string_equal(string(x, "state"), "set-aside");
	snprintf(path, PATH_MAX, "%s", string(x, "path"));
	json_decref(j);
	return path;
}

static json_t *document(const char *schema, int code)
{
	if (got.code != code)
		fail_msg("exit %d: %s%s", got.code, got.out, got.err);
	return json_out(schema);
}

TEST(ls_ends_with_what_was_set_aside_and_how_to_go_back)
{
	const char *job = gone_back("ls"), *root = path_of("%s/ls", top);
	json_t *j, *x;

	SHOWN_IS(0, "ls", job);
	RUN_IS(0, "ls", root, "--json");
	j = json_out("ckptd.ls/1");
	assert_int_equal(count(j, "set_aside"), 1);
	x = item(j, "set_aside", 0);
	assert_json_has(x, "{'job':'run', 'step_count':2, 'up_to':40}");
	assert_true(number(x, "bytes") > MIB);
	string(x, "aside_at");
	assert_says(string(x, "path"), "/run/.old-000000000040-s4-t");
	assert_int_equal(count(j, "checkpoints"), 3);
	member(item(j, "checkpoints", 0), "aside_at", JSON_NULL);
	json_decref(j);
	x = listed(job, 30, &j);
	string(x, "aside_at");
	json_decref(j);
	/* What cannot be loaded is nothing to go back to. */
	RUN_IS(0, "verify", "--data", aside_of(job, 40));
	assert_int_equal(truncate(path_of("%s/MANIFEST", aside_of(job, 40)), 10), 0);
	SHOWN_IS(0, "ls", job);
	flip(part(aside_of(job, 30), 0), 8192);
	RUN_IS(4, "verify", "--data", aside_of(job, 30));
	SHOWN_IS(0, "ls", job);
	/* A number that two have is no name. */
	job = gone_back("twice");
	make_step(path_of("%s/twice", top), &(struct how){ "run", "fsdp=2", 40, 6, 25, 25, false });
	SHOWN_IS(0, "ls", job);
}

TEST(what_was_set_aside_stays_until_somebody_says_otherwise)
{
	const char *job = gone_back("stays");
	json_t *j;

	RUN("prune", "--yes", "--keep-last=1", job, "--json");
	j = document("ckptd.prune/1", 0);
	assert_int_equal(number(j, "removed_count"), 2);
	assert_says(string(of_step(json_object_get(j, "checkpoints"), 40), "reason"),
		    "set aside: stays for 1w (7d left)");
	json_decref(j);
	RUN_IS(2, "prune", "--set-aside", "--set-aside-for=1d", job);
	RUN_IS(2, "prune", "--set-aside-for=1d", job);
	RUN_IS(2, "prune", "--keep-last=1", "--set-aside-for=0", job);
	RUN_IS(0, "hold", aside_of(job, 30), "--by=me");
	RUN_IS(2, "prune", "--set-aside", job); /* nobody can be asked */
	SHOWN_IS(0, "prune", "-n", "--set-aside", job);
	assert_says(aside_of(job, 40), ".old-");
	RUN("prune", "--yes", "--set-aside", job, "--json");
	assert_json(0, "ckptd.prune/1", "{'removed_count':1, 'policy':null}");
	assert_string_equal(steps_of(job), "25 ");
	assert_says(aside_of(job, 30), ".old-");
	SHOWN_IS(0, "ls", job);
}

TEST(rewind_makes_a_step_the_newest_of_its_line)
{
	const char *job = gone_back("rewound");
	json_t *j;

	RUN_IS(2, "rewind");
	RUN_IS(2, "rewind", "-n", "--yes", "-C", job, "step:40");
	RUN_IS(10, "rewind", "-C", job, "step:41", NOBODY);
	SHOWN_IS(2, "rewind", "-C", job, "step:40", NOBODY);
	RUN("rewind", "-n", "-C", job, "step:40", NOBODY, "--json");
	j = document("ckptd.rewind/1", 0);
	assert_true(json_is_true(json_object_get(j, "dry_run")));
	assert_int_equal(count(j, "moves"), 3);
	assert_string_equal(string(item(j, "moves", 0), "action"), "set-aside");
	assert_string_equal(string(item(j, "moves", 2), "action"), "bring-back");
	assert_int_equal(number(item(j, "moves", 2), "step"), 40);
	json_decref(j);
	assert_string_equal(steps_of(job), "25 20 10 ");
	TYPED_IS(0, "n\n", "rewind", "-C", job, "step:40", NOBODY);
	assert_string_equal(steps_of(job), "25 20 10 ");
	TYPED_IS(0, "y\n", "rewind", "-C", job, "step:40", NOBODY);
	assert_string_equal(steps_of(job), "40 30 20 10 ");
	RUN_IS(0, "verify", "--data", "--all", job);
	SHOWN_IS(0, "rewind", "--yes", "-C", job, "step:40", NOBODY);
	/* By its path, and by its entry; a step of the line too. */
	RUN_IS(0, "rewind", "--yes", aside_of(job, 25), NOBODY);
	assert_string_equal(steps_of(job), "25 20 10 ");
	RUN_IS(0, "rewind", "--yes", "-C", job, strrchr(aside_of(job, 30), '/') + 1, NOBODY);
	assert_string_equal(steps_of(job), "30 20 10 ");
	RUN_IS(0, "rewind", "--yes", "-C", job, "latest~1", NOBODY, "--json");
	j = json_out("ckptd.rewind/1");
	assert_int_equal(number(j, "step"), 20);
	assert_says(string(j, "path"), "/run/step-000000000020");
	json_decref(j);
	assert_string_equal(steps_of(job), "20 10 ");
	/* The next step goes on from there. */
	make_step(path_of("%s/rewound", top),
		  &(struct how){ "run", "fsdp=2", 22, 6, 20, 20, false });
	assert_string_equal(steps_of(job), "22 20 10 ");
}

TEST(rewind_refuses_what_is_damaged_and_what_is_in_no_store)
{
	const char *job = gone_back("refused");
	char copy[PATH_MAX];

	assert_int_equal(unlink(part(aside_of(job, 40), 0)), 0);
	RUN_IS(4, "rewind", "--yes", "-C", job, "step:40", NOBODY);
	flip(part(aside_of(job, 30), 0), 8192);
	RUN_IS(4, "verify", "--data", aside_of(job, 30));
	SHOWN_IS(4, "rewind", "--yes", "-C", job, "step:30", NOBODY);
	assert_string_equal(steps_of(job), "25 20 10 ");
	snprintf(copy, sizeof copy, "%s/alone", top);
	copy_step(step_path(job, 20), copy);
	RUN_IS(2, "rewind", "--yes", copy, NOBODY);
	RUN_IS(2, "rm", "--yes", copy);
	assert_false(access(copy, F_OK));
	/* Two of that number: the path says which. */
	make_step(path_of("%s/refused", top),
		  &(struct how){ "run", "fsdp=2", 30, 6, 20, 20, false });
	make_step(path_of("%s/refused", top),
		  &(struct how){ "run", "fsdp=2", 26, 7, 20, 20, false });
	SHOWN_IS(2, "rewind", "--yes", "-C", job, "step:30", NOBODY);
}

TEST(rm_removes_one_and_never_the_last)
{
	const char *job = gone_back("rm");
	json_t *j;
	int fd;

	RUN_IS(2, "rm");
	RUN_IS(10, "rm", "-C", job, "step:11");
	RUN_IS(2, "rm", "-n", "--yes", "-C", job, "step:10");
	SHOWN_IS(2, "rm", "-C", job, "step:10");
	SHOWN_IS(0, "rm", "-n", "-C", job, "step:10");
	TYPED_IS(0, "n\n", "rm", "-C", job, "step:10");
	assert_true(there(job, 10));
	TYPED_IS(0, "y\n", "rm", "-C", job, "step:10");
	assert_string_equal(steps_of(job), "25 20 ");
	/* Held, tagged, being read: 11. */
	RUN_IS(0, "hold", "-C", job, "step:20", "--by=me");
	SHOWN_IS(11, "rm", "--yes", "-C", job, "step:20");
	RUN_IS(0, "release", "-C", job, "step:20", "--by=me");
	RUN_IS(0, "tag", "-C", job, "step:20", "best");
	RUN_IS(11, "rm", "--yes", "-C", job, "tag:best");
	RUN_IS(0, "tag", "-C", job, "--delete=best");
	fd = open(step_path(job, 20), O_RDONLY | O_DIRECTORY);
	assert_int_equal(io_ops_posix.lock(NULL, fd, false), 0);
	SHOWN_IS(11, "rm", "--yes", "-C", job, "step:20");
	close(fd);
	/* Set aside, by its number or its path. */
	RUN_IS(0, "rm", "--yes", "-C", job, "step:40");
	RUN("rm", "--yes", aside_of(job, 30), "--json");
	assert_json(0, "ckptd.rm/1", "{'state':'set-aside', 'step':30, 'trash':null}");
	/* The newest goes while an older one is complete; then nothing does. */
	copy_file(part(step_path(job, 25), 0), path_of("%s/.nfs0001", step_path(job, 25)));
	RUN("rm", "--yes", "-C", job, "latest", "--json");
	j = document("ckptd.rm/1", 0);
	assert_says(string(j, "trash"), "/run/.trash-");
	assert_int_equal(access(path_of("%s/.nfs0001", string(j, "trash")), F_OK), 0);
	json_decref(j);
	SHOWN_IS(11, "rm", "--yes", "-C", job, "step:20");
	RUN_IS(11, "rm", "-n", "-C", job, "step:20");
	assert_string_equal(steps_of(job), "20 ");
	/* A quarantined one is not complete. */
	make_step(path_of("%s/rm", top), &(struct how){ "run", "fsdp=2", 30, 6, 20, 20, false });
	flip(part(step_path(job, 30), 0), 8192);
	RUN_IS(4, "verify", "--data", "-C", job, "step:30");
	RUN_IS(11, "rm", "--yes", "-C", job, "step:20");
	RUN_IS(0, "rm", "--yes", "-C", job, "step:30");
	assert_string_equal(steps_of(job), "20 ");
}

TEST(ls_marks_what_cannot_be_loaded)
{
	const char *job = line(place("marks"), "run", 5);
	json_t *j, *x;

	SHOWN_IS(0, "ls", job);
	assert_int_equal(unlink(part(step_path(job, 50), 0)), 0);
	assert_int_equal(truncate(part(step_path(job, 40), 0), 5000), 0);
	flip(path_of("%s/MANIFEST", step_path(job, 30)), 8);
	SHOWN_IS(3, "ls", job);
	x = listed(job, 50, &j);
	assert_json_has(x, "{'state':'damaged', 'seq':5}");
	assert_says(string(x, "why"), "is missing");
	json_decref(j);
	x = listed(job, 30, &j);
	member(x, "seq", JSON_NULL);
	json_decref(j);
}

TEST(a_directory_that_is_no_store_is_ten_with_the_stores_below_it)
{
	static const char *const verb[][3] = { { "ls", NULL },
					       { "prune", "--keep-last=1" },
					       { "repair", "-n" } };
	const char *home = place("home"), *empty = place("empty"), *full = place("full");

	assert_int_equal(mkdir(home, 0700), 0);
	assert_int_equal(mkdir(empty, 0700), 0);
	assert_int_equal(mkdir(full, 0700), 0);
	assert_int_equal(mkdir(path_of("%s/a", home), 0700), 0);
	assert_int_equal(mkdir(path_of("%s/a/deep", home), 0700), 0);
	assert_int_equal(mkdir(path_of("%s/.hidden", home), 0700), 0);
	line(path_of("%s/a/deep/runs", home), "x", 1);
	line(path_of("%s/b", home), "y", 1);
	line(path_of("%s/.hidden/c", home), "z", 1);
	copy_file(part(path_of("%s/b/y/step-000000000010", home), 0), path_of("%s/notes", full));
	for (uint32_t i = 0; i < ARRAY_LEN(verb); i++) {
		const char *option = verb[i][1] ? verb[i][1] : "--color=never";

		SHOWN_IS(10, verb[i][0], option, home);
		SHOWN_IS(10, verb[i][0], option, full);
		RUN_IS(0, verb[i][0], option, path_of("%s/b", home));
		/* A store to be. */
		RUN_IS(0, verb[i][0], option, empty);
	}
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
