/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_golden.c - what each verb shows to a person (tests/golden/VERB/SITUATION.txt): its help,
 * a success, nothing there, damage, a wrong command. What else happens to a verb is shown in the
 * verb's own tests.
 */
#include "tests/lib/cli_rig.h"
#include <pwd.h>

/* --- what takes the place of the C library's, so that the same appears everywhere --- */

/* Who asks, and where. */
int gethostname(char *ret, size_t bytes)
{
	(void)snprintf(ret, bytes, "node7");
	return 0;
}

int __gethostname_chk(char *ret, size_t len, size_t bytes);
int __gethostname_chk(char *ret, size_t len, size_t bytes)
{
	return gethostname(ret, MIN(len, bytes));
}

struct passwd *getpwuid(uid_t uid)
{
	static struct passwd ada = { .pw_name = (char *)"ada" };

	(void)uid;
	return &ada;
}

/* --- the files --- */

static uint32_t nfile, nwide;

/* Wider than a terminal may be: JSON, one word that is that long, and what follows a question,
 * because what was typed is not there. */
static bool may_be_wide(const char *line, size_t len)
{
	return *line == '{' || memmem(line, len, "[y/N] ", 6) || !strncmp(line, "$ ckptctl", 9) ||
	       !memchr(line + strspn(line, " "), ' ', len - strspn(line, " "));
}

static int is_narrow(const char *path, const struct stat *st, int type, struct FTW *f)
{
	size_t bytes;
	char *text;

	(void)st, (void)f;
	if (type != FTW_F)
		return 0;
	nfile++;
	text = file_bytes(path, &bytes);
	for (const char *line = text, *end; (end = strchr(line, '\n')); line = end + 1)
		if (end - line > 80 && !may_be_wide(line, (size_t)(end - line))) {
			print_error("%s: %.*s\n", path, (int)(end - line), line);
			nwide++;
		}
	free(text);
	return 0;
}

TEST(nothing_is_wider_than_a_terminal)
{
	assert_int_equal(nftw("tests/golden", is_narrow, 16, FTW_PHYS), 0);
	if (getenv("GOLDEN")) { /* they are being written: tests/cli/test_golden.sh looks at them later */
		print_message("skipped: the golden files are being written\n");
		skip();
	}
	assert_true(nfile > 100);
	assert_int_equal(nwide, 0);
}

/* --- the situations --- */

struct row {
	int code;
	const char *words; /* @ is top */
};

static void show_rows(const char *test, const struct row *row)
{
	for (; row->words; row++) {
		char *copy = strdup(row->words), *save, *w[10] = { NULL };
		uint32_t n = 0;

		for (char *p = strtok_r(copy, " ", &save); p; p = strtok_r(NULL, " ", &save))
			w[n++] = *p == '@' ? (char *)path_of("%s%s", top, p + 1) : p;
		if (shown(test, NULL, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9],
			  NULL) != row->code)
			fail_msg("%s: exit %d: %s%s", row->words, got.code, got.out, got.err);
		free(copy);
	}
}
#define SHOW_ROWS(...) show_rows(__func__, (const struct row[]){ __VA_ARGS__, { 0, NULL } })

TEST(help)
{
	for (const struct cli_verb *const *v = cli_verbs; *v; v++)
		SHOWN_IS(0, (*v)->name, "-h");
	SHOWN_IS(0, "-h");
}

TEST(success)
{
	SHOW_ROWS({ 0, "ls @/work" }, { 0, "ls @/work/alpha" }, { 0, "show -C @/work/alpha" },
		  { 0, "show -C @/work/alpha step:20 optim/embed.weight.master" },
		  { 0, "show -C @/work/alpha --tensors=model/layers.*" },
		  { 0, "stats -C @/work/alpha" }, { 6, "diff -C @/work/alpha latest~1 latest" },
		  { 0, "diff -C @/work/alpha latest latest" },
		  { 0, "plan -C @/work/alpha latest --mesh fsdp=3" },
		  { 0, "cat -C @/work/alpha latest model/stats.sum --stats" },
		  { 0, "cat -C @/work/alpha latest model/stats.sum" },
		  { 0, "verify -C @/work/alpha" }, { 0, "verify --data --all @/work" },
		  { 0, "restore -C @/work/plain latest @/restored --mesh fsdp=3" },
		  { 0, "convert -C @/work/alpha latest @/converted --mesh fsdp=3" },
		  { 0, "hold -C @/work/beta latest --by=eval-17 --until=6h --why=evaluation" },
		  { 0, "tag -C @/work/beta latest best" }, { 0, "ls @/work/beta" },
		  { 0, "release -C @/work/beta latest --by=eval-17" },
		  { 0, "tag -C @/work/beta --delete=best" },
		  { 0, "prune -n --keep-last=1 @/work/alpha" },
		  { 0, "rm -n -C @/work/alpha step:10" },
		  { 0, "rewind -n -C @/work/alpha step:20" }, { 0, "adopt -n @/work/alpha" },
		  { 0, "repair @/work/alpha" }, { 0, "wait 30 -C @/work/alpha" }, { 0, "version" },
		  { 0, "layout --shape 7,5 --mesh dp=3,tp=2 --placements S(0),S(1)" });
}

TEST(not_found)
{
	SHOW_ROWS({ 10, "ls @/none" }, { 10, "show @/none" },
		  { 10, "show -C @/work/alpha step:11" },
		  { 10, "show -C @/work/alpha latest layers.0.wk" }, { 10, "show -C @/empty" },
		  { 10, "stats -C @/work/alpha step:11" }, { 10, "diff @/none @/none2" },
		  { 10, "plan -C @/work/alpha step:11 --mesh fsdp=3" },
		  { 10, "cat -C @/work/alpha latest model/embed.weigth" },
		  { 10, "verify -C @/work/alpha step:11" },
		  { 10, "restore -C @/work/alpha step:11 @/out --mesh fsdp=3" },
		  { 10, "convert -C @/work/alpha step:11 @/out --mesh fsdp=3" },
		  { 10, "convert -C @/work/alpha latest @/no/out --mesh fsdp=3" },
		  { 10, "hold -C @/work/alpha step:11" }, { 10, "release -C @/work/alpha latest" },
		  { 10, "tag -C @/work/alpha --delete=best" }, { 10, "prune --keep-last=1 @/none" },
		  { 10, "rm -C @/work/alpha step:11" }, { 10, "rewind -C @/work/alpha step:11" },
		  { 10, "adopt @/none" }, { 10, "repair @/none" },
		  { 10, "wait tag:none -C @/work/alpha" }, { 10, "layout --batch @/none" });
}

TEST(damaged)
{
	SHOW_ROWS({ 3, "ls @/hurt/alpha" }, { 4, "show -C @/hurt/alpha step:30" },
		  { 3, "show -C @/hurt/alpha" }, { 4, "stats -C @/hurt/alpha step:30" },
		  { 4, "diff -C @/hurt/alpha step:20 step:30" },
		  { 4, "diff -C @/hurt/alpha step:10 step:20 --values" },
		  { 4, "plan -C @/hurt/alpha step:30 --mesh fsdp=3" },
		  { 4, "cat -C @/hurt/alpha step:20 model/embed.weight --stats" },
		  { 4, "verify -C @/hurt/alpha step:30" },
		  { 4, "verify --data --no-mark @/hurt/alpha/step-000000000020" },
		  { 4, "restore -C @/hurt/alpha step:30 @/out --mesh fsdp=3" },
		  { 4, "convert -C @/hurt/alpha step:20 @/out --mesh fsdp=3" },
		  { 4, "hold -C @/hurt/alpha step:30 --by=me" },
		  { 4, "tag -C @/hurt/alpha step:30 x" },
		  { 4, "adopt --yes @/hurt/alpha/step-000000000030" },
		  { 4, "rewind --yes -C @/hurt/alpha step:30" }, { 0, "repair -n @/hurt" },
		  { 0, "prune -n --bad --keep-last=1 @/hurt" });
}

TEST(wrong_usage)
{
	SHOW_ROWS({ 2, "lss" }, { 2, "ls --nope" }, { 2, "ls a b" }, { 2, "ls -C" },
		  { 2, "ls @/work/beta/step-000000000025" }, { 2, "show -C @/work" },
		  { 2, "show -C @/work/alpha latest~x" }, { 2, "stats -C @/work/alpha --depth=x" },
		  { 2, "diff -C @/work/alpha latest" }, { 2, "plan -C @/work/alpha latest" },
		  { 2, "plan -C @/work/alpha latest --mesh dp=2,fsdp" },
		  { 2, "cat -C @/work/alpha latest" }, { 2, "cat -C @/work/alpha latest blob/rng" },
		  { 2, "verify --dta" }, { 2, "verify -C @/work/alpha --data-subset=8/7" },
		  { 2, "restore -C @/work/plain latest" },
		  { 2, "restore -C @/work/plain latest @/out --mesh fsdp=3 --rank 3" },
		  { 2, "convert -C @/work/alpha latest @/out --mesh fsdp" },
		  { 2, "convert -C @/work/alpha latest @/work --mesh fsdp=3" },
		  { 2, "hold -C @/work/alpha" },
		  { 2, "hold -C @/work/alpha latest --until=tomorrow" },
		  { 2, "release -C @/work/alpha" }, { 2, "tag -C @/work/alpha latest" },
		  { 2, "tag -C @/work/alpha latest a/b" }, { 2, "prune @/work/alpha" },
		  { 2, "prune --keep-last=1 @/work/alpha" }, { 2, "rm" },
		  { 2, "rm -C @/work/alpha step:10" },
		  { 2, "rewind -n --yes -C @/work/alpha step:10" }, { 2, "adopt" },
		  { 2, "adopt @/work" }, { 2, "repair -n --yes @/work" },
		  { 2, "wait soon -C @/work/alpha" }, { 2, "status -S @/work" },
		  { 2, "trigger now then" }, { 2, "drain --nope" }, { 2, "forget --all" },
		  { 2, "doctor @/work --job-size=many" },
		  { 2, "layout --shape 7 --mesh dp --placements S(0)" }, { 2, "man nonsense" },
		  { 2, "help lsit" }, { 2, "completion csh" }, { 2, "version x" });
}

TEST(no_daemon)
{
	SHOW_ROWS({ 14, "status" }, { 14, "trigger" }, { 14, "drain" }, { 14, "forget alpha" });
}

/* hurt: of alpha's steps 20 has a wrong byte, 30 half a MANIFEST. */
static int make_situations(void **state)
{
	const char *alpha;
	int rc = make_all(state);

	declare = declare_plain;
	make_step(work, &(struct how){ "plain", "fsdp=2", 7, 1, UINT64_MAX, UINT64_MAX, false });
	declare = NULL;
	alpha = path_of("%s/alpha", work);
	assert_int_equal(mkdir(place("empty"), 0700), 0);
	assert_int_equal(mkdir(place("hurt"), 0700), 0);
	assert_int_equal(mkdir(place("hurt/alpha"), 0700), 0);
	assert_int_equal(mkdir(place("hurt/alpha/.ckptd"), 0700), 0);
	for (uint64_t i = 10; i <= 30; i += 10)
		copy_step(step_path(alpha, i), step_path(place("hurt/alpha"), i));
	flip(part(step_path(place("hurt/alpha"), 20), 0), 8192);
	assert_int_equal(truncate(path_of("%s/MANIFEST", step_path(place("hurt/alpha"), 30)), 5000),
			 0);
	return rc;
}

UNIT(.group_setup = make_situations, .group_teardown = drop_all);
