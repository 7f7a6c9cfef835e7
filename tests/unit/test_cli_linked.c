/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_linked.c - steps that share part files, as ckptctl counts and checks them. The shared
 * ones are made by hand: two jobs whose steps are hard links of each other.
 */
#include "tests/lib/cli_rig.h"

static uint64_t part_bytes; /* of part 0 of a step */

/* one: steps 10 and 20. two: the same, and part 1 of step 20 is a file of its own. */
static const char *linked_of(const char *name)
{
	const char *store = place(name), *step, *own;
	char command[4096];
	struct stat st;

	line(store, "one", 2);
	snprintf(command, sizeof command,
		 "cd '%s' && cp -al one two && mv two/.ckptd/job-one two/.ckptd/job-two", store);
	assert_int_equal(system(command), 0);
	step = step_path(path_of("%s/two", store), 20);
	own = part(step, 1);
	snprintf(command, sizeof command, "cp '%s' '%s/x' && mv -f '%s/x' '%s'", own, step, step,
		 own);
	assert_int_equal(system(command), 0);
	RUN_IS(0, "adopt", "--yes", path_of("%s/two", store));
	assert_int_equal(stat(part(step, 0), &st), 0);
	part_bytes = (uint64_t)st.st_size;
	return store;
}

static const json_t *row_of(const json_t *doc, const char *job, uint64_t step)
{
	const json_t *all = json_object_get(doc, "checkpoints");

	for (size_t i = 0; i < json_array_size(all); i++) {
		const json_t *x = json_array_get(all, i);

		if (number(x, "step") == step && !strcmp(string(x, "job"), job))
			return x;
	}
	fail_msg("no step %d of %s", (int)step, job);
	return NULL;
}

TEST(ls_says_what_is_shared_and_counts_it_once)
{
	const char *store = linked_of("ls");
	uint64_t sum = 0, shared;
	json_t *j;

	SHOWN_IS(0, "ls", store);
	j = json_run("ckptd.ls/1", "ls", "--json", store);
	for (uint64_t step = 10; step <= 20; step += 10) {
		const json_t *one = row_of(j, "one", step), *two = row_of(j, "two", step);

		shared = number(one, "shared_bytes");
		assert_int_equal(number(two, "shared_bytes"), shared);
		assert_int_equal(number(one, "own_bytes"), number(one, "bytes") - shared);
		sum += number(one, "bytes") + number(two, "bytes") - shared;
	}
	assert_int_equal(shared, part_bytes); /* of step 20; MANIFEST counts as the step's own */
	assert_int_equal(number(j, "stored_bytes"), sum);
	/* What one job shares with another is not seen where only one is listed. */
	j = json_run("ckptd.ls/1", "ls", "--json", path_of("%s/one", store));
	assert_int_equal(number(row_of(j, "one", 20), "shared_bytes"), 0);
}

TEST(rm_and_prune_say_what_stays)
{
	const char *store = linked_of("rm");
	uint64_t bytes, freed;
	json_t *j;

	SHOWN_IS(0, "rm", "-n", path_of("%s/two/step-000000000010", store));
	j = json_run("ckptd.rm/1", "rm", "-n", "--json",
		     path_of("%s/two/step-000000000010", store));
	bytes = number(j, "bytes");
	freed = number(j, "freed_bytes");
	assert_int_equal(freed + number(j, "shared_bytes"), bytes);
	assert_int_equal(freed, 0); /* MANIFEST too is a link */
	SHOWN_IS(0, "prune", "-n", "--keep-last=1", path_of("%s/two", store));
	j = json_run("ckptd.prune/1", "prune", "-n", "--json", "--keep-last=1",
		     path_of("%s/two", store));
	assert_int_equal(number(j, "freed_bytes"), 0);
	assert_int_equal(number(j, "shared_bytes"), bytes);
	j = json_run("ckptd.prune/1", "prune", "-n", "--json", "--keep-last=1", store);
	assert_int_equal(number(j, "freed_bytes"), bytes); /* both names go */
	assert_int_equal(number(j, "shared_bytes"), 0);
	SHOWN_IS(0, "rm", "--yes", path_of("%s/two/step-000000000010", store));
	SHOWN_IS(0, "prune", "--yes", "--keep-last=1", store);
}

TEST(verify_reads_a_shared_part_once_and_its_verdict_counts_for_each)
{
	const char *store = linked_of("verify"), *hit;
	int fd;

	SHOWN_IS(0, "verify", "--data", "--all", store);
	hit = part(step_path(path_of("%s/one", store), 20), 0);
	fd = open(hit, O_WRONLY);
	assert_int_equal(pwrite(fd, "damaged!", 8, 8192), 8);
	close(fd);
	SHOWN_IS(4, "verify", "--data", "--all", store);
	RUN_IS(0, "verify", "-C", path_of("%s/one", store), "step:10");
	RUN_IS(4, "verify", "--data", "-C", path_of("%s/two", store), "step:20");
}

TEST(verify_says_which_steps_share_what_is_damaged)
{
	const char *store = place("sharers"), *job = line(store, "one", 3);
	char name[4096];

	snprintf(name, sizeof name, "%s", part(step_path(job, 30), 0));
	assert_int_equal(unlink(name), 0);
	assert_int_equal(link(part(step_path(job, 20), 0), name), 0);
	RUN_IS(4, "verify", "-C", job, "step:30");
	assert_non_null(strstr(got.out, ": steps 20 and 30 share this file\n"));
	RUN_IS(0, "verify", "-C", job, "step:20");
	assert_null(strstr(got.out, "share"));
	/* Another name, which is no step's here. */
	assert_int_equal(link(part(step_path(job, 10), 0), path_of("%s/copy", top)), 0);
	flip(part(step_path(job, 10), 0), 8192);
	RUN_IS(4, "verify", "--data", "-C", job, "step:10");
	assert_non_null(strstr(got.out, ": 1 other name elsewhere leads to this file\n"));
}

UNIT(.group_setup = make_top, .group_teardown = drop_all);
