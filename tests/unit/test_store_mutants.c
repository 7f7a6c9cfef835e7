/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_mutants.c - the crash matrix can fail: the store with one planted mistake after the other
 * (MUTANT(n) in ckpt/store) is run through it, each in a process of its own, and each is found.
 */
#define STORE_MUTANTS
#include "ckpt/store/store.c"
#include "ckpt/store/store_find.c"
#include "ckpt/store/store_name.c"
#include "ckpt/store/store_scan.c"
#include "ckpt/store/store_txn.c"
#include "tests/crash/crash_rigs.c"
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/wait.h>
#include <cmocka.h>

/* And the rig, counted in crash_rigs, that is asked first; any other will do. */
static const struct {
	const char *what;
	uint32_t rig;
} mistake[] = {
	[1] = { "a part is not synced", 3 },
	[2] = { "the collecting directory is not synced", 3 },
	[3] = { "MANIFEST is not synced before the rename", 3 },
	[4] = { "the job's directory is not synced after it", 3 },
	[5] = { "a failed fsync is asked again", 4 },
	[6] = { "names of collecting directories are used again", 0 },
	[7] = { "the claim is not checked", 0 },
	[8] = { "steps are set aside after the commit", 1 },
	[9] = { "steps that were set aside stay so on an error", 0 },
	[10] = { "a part that failed stays in the directory", 2 },
	[11] = { "a claim is not synced", 3 },
	[12] = { "what a claim finds is not made durable", 5 },
};

struct verdict {
	uint32_t rig; /* the one that found it; crash_rigs_n: none */
	char why[CRASH_WHY];
};

static void mutant_run(int n, struct verdict *ret)
{
	store_mutant = n;
	ret->rig = mistake[n].rig;
	if (crash_rigs[ret->rig].run(ret->why))
		return;
	for (ret->rig = 0; ret->rig < crash_rigs_n; ret->rig++)
		if (crash_rigs[ret->rig].run(ret->why))
			break;
}

/* The child says what it found through the pipe, and is silent otherwise. */
static struct verdict mutant_fork(int n)
{
	struct verdict v = { .rig = crash_rigs_n };
	int end[2], status;
	pid_t child;

	assert_int_equal(pipe2(end, O_CLOEXEC), 0);
	child = fork();
	assert_true(child >= 0);
	if (child == 0) {
		int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

		(void)dup2(null, STDERR_FILENO);
		mutant_run(n, &v);
		_exit(write(end[1], &v, sizeof v) != (ssize_t)sizeof v);
	}
	(void)close(end[1]);
	if (read(end[0], &v, sizeof v) != (ssize_t)sizeof v)
		(void)snprintf(v.why, sizeof v.why, "the process died");
	(void)close(end[0]);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	return v;
}

static void every_planted_mistake_is_found(void **state)
{
	uint32_t alive = 0;

	(void)state;
#if defined(__SANITIZE_THREAD__)
	print_message(
		"SKIP: the rigs that find them have one thread: nothing for this sanitizer\n");
	skip();
#endif
	for (int n = 1; n < (int)ARRAY_LEN(mistake); n++) {
		struct verdict v = mutant_fork(n);
		bool found = v.rig < crash_rigs_n;

		print_message("%2d %-48s %s%s\n   %s\n", n, mistake[n].what, found ? "found: " : "",
			      found ? crash_rigs[v.rig].name : "NOT FOUND", found ? v.why : "");
		alive += !found;
	}
	assert_int_equal(alive, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_planted_mistake_is_found),
	};

	return cmocka_run_group_tests_name("store_mutants", tests, NULL, NULL);
}
