/* SPDX-License-Identifier: Apache-2.0 */
/*
 * unit.c - the main of a room's unit tests (unit.h). One after the other, or some at a time in
 * processes of their own:
 *
 *	build/obj/release/unit/ROOM [-l] [-j N] [ROOM_SUBJECT[:CASE]...]
 *	build/obj/release/unit/ROOM_SUBJECT [-l] [-j N] [CASE...]
 *
 * ROOM_SUBJECT is that of tests/unit/test_ROOM_SUBJECT.c, and a link to the program of its room.
 * Subjects and cases may be patterns (*, ?). None: all.
 * -l lists them. -j N (two more than there are processors, for some wait): how many processes at
 * once. Of one subject, with -j 1 or where only one case or a group with fixtures is asked for, the
 * cases run in this process, so that a debugger sees them. What a process prints comes out whole,
 * when it ends. The exit status is 1 when a case failed, 2 when nothing has the name.
 * CMOCKA_MESSAGE_OUTPUT=TAP is understood, as by every cmocka program.
 */
#include "tests/lib/unit.h"
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/wait.h>

extern const struct unit_case *const __start_unit_cases[], *const __stop_unit_cases[];
void (*unit_played)(int argc, char **argv) __attribute__((weak));

struct group { /* the chosen cases of a file */
	const char *subject;
	const struct unit_file *file;
	struct CMUnitTest *test;
	size_t ntest;
};

static struct group *group;
static size_t ngroup;

uint64_t unit_scaled(uint64_t n)
{
	const char *by = getenv("SCALE");
	uint64_t scale = by ? strtoull(by, NULL, 0) : 0;

	return scale > 1 ? (n + scale - 1) / scale : n;
}

static int by_place(const void *a, const void *b)
{
	const struct unit_case *x = *(const struct unit_case *const *)a,
			       *y = *(const struct unit_case *const *)b;
	int rc = strcmp(x->path, y->path);

	return rc ? rc : (x->line > y->line) - (x->line < y->line);
}

/* "cli_cat" of ".../test_cli_cat.c". */
static const char *subject_of(const char *path)
{
	const char *name = strstr(path, "/test_");

	return strndup(name + 6, strcspn(name + 6, "."));
}

static const char *only; /* the subject that the program was called by; NULL: that of the room */

static bool chosen(const char *subject, const char *name, char **pattern, int n)
{
	if (only && strcmp(only, subject) != 0)
		return false;
	for (int i = 0; i < n; i++) {
		const char *colon = strchrnul(pattern[i], ':');
		char *of = strndup(pattern[i], (size_t)(colon - pattern[i]));
		bool is = only ? fnmatch(pattern[i], name, 0) == 0
			       : fnmatch(of, subject, 0) == 0 &&
					  (!*colon || fnmatch(colon + 1, name, 0) == 0);

		free(of);
		if (is)
			return true;
	}
	return n == 0;
}

static void group_add(struct group *g, const struct CMUnitTest *t)
{
	g->test = reallocarray(g->test, g->ntest + 1, sizeof *t);
	g->test[g->ntest++] = *t;
}

/* The chosen cases, sorted by file and line. */
static void groups_make(char **pattern, int npattern)
{
	size_t n = (size_t)(__stop_unit_cases - __start_unit_cases);
	const struct unit_case **at = calloc(n, sizeof *at);

	memcpy(at, __start_unit_cases, n * sizeof *at);
	qsort(at, n, sizeof *at, by_place);
	group = calloc(n + 1, sizeof *group);
	for (size_t i = 0, k; i < n; i = k) {
		struct group *g = &group[ngroup];
		const struct CMUnitTest *more = NULL;

		*g = (struct group){ .subject = subject_of(at[i]->path), .file = at[i]->file };
		for (k = i; k < n && at[k]->file == g->file; k++) {
			struct CMUnitTest t = at[k]->test;

			if (!at[k]->own_fixtures) {
				t.setup_func = g->file->setup;
				t.teardown_func = g->file->teardown;
			}
			if (t.test_func && chosen(g->subject, t.name, pattern, npattern))
				group_add(g, &t);
		}
		if (g->file->cases)
			more = g->file->cases();
		for (; more && more->test_func; more++)
			if (chosen(g->subject, more->name, pattern, npattern))
				group_add(g, more);
		if (g->ntest)
			ngroup++;
		else
			free((char *)g->subject);
	}
	free(at);
}

static bool found(char *pattern)
{
	for (size_t i = 0; i < ngroup; i++)
		for (size_t k = 0; k < group[i].ntest; k++)
			if (chosen(group[i].subject, group[i].test[k].name, &pattern, 1))
				return true;
	return false;
}

static int group_run(const struct group *g, size_t first, size_t n)
{
	return _cmocka_run_group_tests(g->subject, g->test + first, n, g->file->group_setup,
				       g->file->group_teardown);
}

/* --- processes --- */
struct part { /* what one process runs */
	const struct group *group;
	size_t first, n;
	pid_t pid;
	int out;
};

static void part_start(struct part *p)
{
	p->out = memfd_create("unit", MFD_CLOEXEC);
	(void)fflush(NULL);
	p->pid = fork();
	if (p->pid != 0)
		return;
	(void)dup2(p->out, STDOUT_FILENO);
	(void)dup2(p->out, STDERR_FILENO);
	exit(group_run(p->group, p->first, p->n) ? 1 : 0);
}

/* Prints what the process printed. Returns whether all its cases passed. */
static bool part_end(struct part *p, int status)
{
	char buf[1 << 16];
	ssize_t n;

	for (off_t at = 0; (n = pread(p->out, buf, sizeof buf, at)) > 0; at += n)
		(void)fwrite(buf, 1, (size_t)n, stdout);
	(void)close(p->out);
	if (WIFSIGNALED(status))
		printf("not ok - %s died of signal %d\n", p->group->subject, WTERMSIG(status));
	else if (WEXITSTATUS(status) > 1)
		printf("not ok - %s ended with status %d\n", p->group->subject,
		       WEXITSTATUS(status));
	return status == 0;
}

/* A case without fixtures of its file is a part of its own. */
static int parts_run(size_t njob)
{
	struct part *part = NULL;
	size_t npart = 0, begun = 0, ended = 0;
	bool good = true;

	for (size_t i = 0; i < ngroup; i++) {
		const struct group *g = &group[i];
		bool together = njob <= 1 || g->file->group_setup || g->file->group_teardown;

		for (size_t k = 0; k < (together ? 1 : g->ntest); k++) {
			part = reallocarray(part, npart + 1, sizeof *part);
			part[npart++] = (struct part){ g, k, together ? g->ntest : 1, 0, -1 };
		}
	}
	while (ended < npart) {
		int status;
		pid_t pid;

		while (begun < npart && begun - ended < njob)
			part_start(&part[begun++]);
		pid = wait(&status);
		for (size_t i = 0; i < begun; i++)
			if (part[i].pid == pid) {
				good &= part_end(&part[i], status);
				ended++;
			}
	}
	free(part);
	return good ? 0 : 1;
}

int main(int argc, char **argv)
{
	size_t njob = (size_t)sysconf(_SC_NPROCESSORS_ONLN) + 2;
	const char *called = strrchr(argv[0], '/');
	bool list = false;
	int c, failed = 0;

	if (unit_played)
		unit_played(argc, argv);
	while ((c = getopt(argc, argv, "lj:")) != -1)
		if (c == 'l')
			list = true;
		else if (c == 'j')
			njob = MAX(strtoul(optarg, NULL, 0), 1u);
		else
			return 2;
	called = called ? called + 1 : argv[0];
	only = strchr(called, '_') ? called : NULL;
	groups_make(argv + optind, argc - optind);
	for (int i = optind; i < argc; i++)
		if (!found(argv[i])) {
			fprintf(stderr, "%s: no case has the name %s; -l lists them\n", argv[0],
				argv[i]);
			return 2;
		}
	if (list) {
		for (size_t i = 0; i < ngroup; i++)
			for (size_t k = 0; k < group[i].ntest; k++)
				printf("%s:%s\n", group[i].subject, group[i].test[k].name);
	} else if (ngroup == 1 && (njob <= 1 || group->ntest == 1 || group->file->group_setup)) {
		failed = group_run(group, 0, group->ntest);
	} else {
		failed = parts_run(njob);
	}
	for (size_t i = 0; i < ngroup; i++) {
		free((char *)group[i].subject);
		free(group[i].test);
	}
	free(group);
	return failed ? 1 : 0;
}
