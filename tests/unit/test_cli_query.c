/* SPDX-License-Identifier: Apache-2.0 */
/* test_cli_query.c - what the verbs that only look have in common: every screen fits, every error
 * says the next command, names do no harm, and nothing that could not be read is passed over in
 * silence. */
#include "tests/lib/cli_rig.h"
#include "ckpt/draw/map.h"
#include "ckpt/cli/progress.h"
#include "ckpt/draw/svg.h"
#include "tests/lib/io_faults.h"
#include <signal.h>

#define LONG_NAME 200

static char long_name[LONG_NAME + 1];
static const char *made; /* the step of the job "made" */

static const char *alpha(void)
{
	return path_of("%s/alpha", work);
}

/* Names as nobody should have them. */
static void make_strange(void)
{
	static float x[40];
	const struct made m[] = {
		{ "model", long_name, CKPT_F32, 1, { 10 }, x, 0 },
		{ "model", "red\033[31m\nline\tend", CKPT_F32, 1, { 10 }, x, 0 },
		{ "model", "\xe6\x97\xa5\xe6\x9c\xac.wide", CKPT_F32, 1, { 10 }, x, 0 },
		{ "model",
		  "turn\xe2\x80\xae"
		  "ed",
		  CKPT_F32,
		  1,
		  { 10 },
		  x,
		  0 },
		{ "model", "%s%n <&>\"'", CKPT_F32, 2, { 10, 2 }, x, 0 },
		{ "model", "bad\xff.utf8", CKPT_F32, 1, { 10 }, x, 0 },
		{ "model", "empty", CKPT_BF16, 3, { 4, 0, 7 }, x, 0 },
		{ "model", "alone", CKPT_I64, 0, { 0 }, x, 0 }
	};

	memset(long_name, 'n', LONG_NAME);
	memcpy(long_name, "layers.17.attention.", 20);
	memcpy(long_name + LONG_NAME - 10, "END.weight", 10);
	made = strdup(make_made(path_of("%s/made", top), "made", 1, m, ARRAY_LEN(m)));
}

static int make_rig(void **state)
{
	int rc = make_all(state);

	if (!rc)
		make_strange();
	return rc;
}

/* --- a terminal --- */

TEST(every_screen_fits_eighty_columns)
{
	const char *a = path_of("%s/step-000000000030", alpha());
	const char *b = path_of("%s/beta/step-000000000025", work);
	const char *const lines[][4] = { { "stats", a },
					 { "stats", "--tensors=*mask", a },
					 { "show", "--files", a },
					 { "show", "--map=layers.3.fused", a },
					 { "show", "--tensors=*", made },
					 { "stats", made },
					 { "diff", a, b },
					 { "diff", "--values", a, b },
					 { "verify", "--data", a, b },
					 { "verify", "--data-subset=5%@1234567890", a },
					 { "verify", "--data-subset=1/3", a },
					 { "cat", "--stats", a, "rope.table" },
					 { "cat", a, "spectrum" } };

	setenv("LC_ALL", "C.UTF-8", 1);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
		TERMINAL(lines[i][0], lines[i][1], lines[i][2], lines[i][3]);
		assert_narrow(got.out, 80);
	}
	unsetenv("LC_ALL");
}

TEST(a_long_value_goes_on_below_itself)
{
	SHOWN_IS(0, "stats", "-C", alpha());
	RUN("stats", "-C", alpha());
	assert_says(got.out, "copies on other ranks, stored once\n");
}

TEST(wide_characters_take_two_columns)
{
	char *wide, *plain;

	assert_int_equal(screen_columns("\xe6\x97\xa5x\xf0\x9f\x98\x80"), 5);
	assert_int_equal(screen_columns("e\xcc\x81"), 1);
	assert_int_equal(screen_prefix("\xe6\x97\xa5\xe6\x9c\xac", 3), 3);
	setenv("LC_ALL", "C.UTF-8", 1);
	TERMINAL("show", "--tensors=*", "--color=never", made);
	unsetenv("LC_ALL");
	wide = strstr(got.out, ".wide");
	plain = strstr(got.out, "model/empty");
	assert_true(wide && plain);
	while (wide[-1] != '\n')
		wide--;
	*strstr(wide, "F32") = 0;
	*strstr(plain, "BF16") = 0;
	assert_int_equal(screen_columns(wide), screen_columns(plain));
}

TEST(no_name_is_obeyed_by_a_terminal)
{
	static const char *const verb[][2] = { { "show", "--tensors=*" },
					       { "stats", "--depth=3" },
					       { "show", "--color=never" } };

	for (size_t i = 0; i < ARRAY_LEN(verb); i++) {
		RUN_IS(0, verb[i][0], verb[i][1], made);
		assert_silent(got.out, "\033");
		assert_silent(got.out, "\t");
		assert_silent(got.out, "\xe2\x80\xae");
		assert_silent(got.out, "\xff");
	}
}

/* --- alphabets --- */

static void assert_ascii(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text >= 0x80)
			fail_msg("beyond ASCII: %.40s", text);
}

TEST(ascii_means_names_too)
{
	const char *path = made;
	json_t *j;

	for (int i = 0; i < 3; i++) {
		RUN_IS(0, i == 2 ? "stats" : "show", path,
		       i == 1 ? "\xe6\x97\xa5\xe6\x9c\xac.wide" : "--ascii", "--ascii");
		assert_ascii(got.out);
	}
	SHOWN_IS(0, "show", "--ascii", "--tensors=*", path);
	assert_ascii(got.out);
	RUN_IS(10, "show", "--ascii", path, "\xe6\x97\xa5");
	assert_ascii(got.err);
	/* A program gets the names themselves, spelled in ASCII. */
	RUN_IS(0, "show", "--ascii", "--json", "--tensors=*wide", path);
	assert_ascii(got.out);
	j = json_out("ckptd.show/1");
	assert_string_equal(string(item(j, "tensors", 0), "name"), "\xe6\x97\xa5\xe6\x9c\xac.wide");
	json_decref(j);
	RUN_IS(10, "show", "--ascii", "--json", path, "\xe6\x97\xa5");
	assert_ascii(got.err);
	/* Whose terminal knows no other characters gets none; a pipe gets what there is. */
	TERMINAL("show", "--tensors=*", path);
	assert_ascii(got.out);
	RUN_IS(0, "show", "--tensors=*", path);
	assert_says(got.out, "model/\xe6\x97\xa5\xe6\x9c\xac.wide");
}

TEST(a_dumb_terminal_has_lines_and_no_bar)
{
	char *text = NULL;
	size_t len;
	struct cli c = { .err = open_memstream(&text, &len) };
	struct progress p;

	setenv("TERM", "dumb", 1);
	screen_probe(c.err, NULL, false, &c.err_screen);
	assert_true(c.err_screen.dumb);
	c.err_screen.terminal = true;
	c.err_screen.width = 80;
	c.o = output_text_new(c.err, &c.out_screen, c.err, &c.err_screen);
	progress_begin(&p, &c, 100, "step 1");
	p.begin_ns -= 60 * NS_PER_S;
	p.shown_ns -= 60 * NS_PER_S;
	progress_tick(&p, 50);
	progress_end(&p);
	c.o->ops->free(c.o);
	fclose(c.err);
	assert_says(text, "step 1: 50 %");
	assert_silent(text, "\033");
	assert_silent(text, "\r");
	free(text);
}

/* --- errors --- */

TEST(a_slip_brings_each_near_name_once_and_no_far_one)
{
	SHOWN_IS(10, "cat", "latest", "rgn", "-C", alpha());
	SHOWN_IS(10, "cat", "latest", "fused", "-C", alpha());
	SHOWN_IS(10, "cat", "latest", "nosuch", "-C", alpha());
	SHOWN_IS(10, "cat", "latest", "optim/embed.wieght.master", "-C", alpha());
}

TEST(every_error_says_the_next_command)
{
	const char *none = path_of("%s/nothing here", top), *file = path_of("%s/a file", top);
	const char *step = path_of("%s/step-000000000030", alpha());
	const struct {
		int code;
		const char *word[5];
	} cases[] = { { 10, { "show", "-C", none } },
		      { 10, { "show", none } },
		      { 10, { "verify", none } },
		      { 10, { "diff", none, step } },
		      { 10, { "show", "step:31", "-C", alpha() } },
		      { 10, { "cat", "latest~9", "w", "-C", alpha() } },
		      { 10, { "stats", "31", "-C", alpha() } },
		      { 10, { "verify", "alpha@31", "-C", work } },
		      { 10, { "verify", "gamma@31", "-C", work } },
		      { 2, { "verify", "@31", "-C", work } },
		      { 2, { "show", "step:", "-C", alpha() } },
		      { 2, { "verify", "latest~x", "-C", alpha() } },
		      { 2, { "show", "-C", work } },
		      { 10, { "show", "-C", step } },
		      { 10, { "show", file } },
		      { 10, { "ls", file } },
		      { 10, { "ls", none } },
		      { 2, { "show", "latest", "--map=rng", "-C", alpha() } },
		      { 2, { "cat", step, "rng" } },
		      { 10, { "cat", step, "rng", "--rank=7" } },
		      { 2, { "cat", step, "mask", "--rank=0" } },
		      { 2, { "cat", step, "mask", "--slice=99" } },
		      { 2, { "cat", step, "mask", "-o", "/nonexistent/x" } },
		      { 11, { "cat", step, "mask", "-o", file } },
		      { 2, { "show", step, "--map=mask", "--svg=/nonexistent/x" } },
		      { 11, { "show", step, "--map=mask", path_of("--svg=%s", file) } } };

	spill(file, "mine");
	for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
		const char *const *w = cases[i].word;

		if (SHOWN(w[0], w[1], w[2], w[3], w[4]) != cases[i].code)
			fail_msg("%s %s: %d, %s", w[0], w[1], got.code, got.err);
		assert_says(got.err, "\n  next: ");
	}
}

TEST(one_is_not_told_as_many)
{
	SHOWN_IS(0, "stats", "--tensors=optim/step", "-C", alpha());
	SHOWN_IS(6, "diff", "latest~1", "latest", "--tensors=head.bias", "-C", alpha());
	SHOWN_IS(0, "diff", "latest", "latest", "--tensors=head.bias", "-C", alpha());
}

TEST(what_was_interrupted_says_so)
{
	cli_stops = 1;
	cli_stop_signal = SIGINT;
	SHOWN_IS(130, "verify", "--data", "-C", alpha());
	cli_stops = cli_stop_signal = 0;
}

TEST(jobs_that_may_not_be_read_are_not_passed_over)
{
	const char *store = path_of("%s/shared store", top);
	const char *mine = path_of("%s/beta", store), *theirs = path_of("%s/theirs", store);
	const char *step = path_of("%s/step-000000000025", mine);
	bool root = !geteuid();
	int code[7];

	assert_int_equal(mkdir(store, 0755), 0);
	assert_int_equal(mkdir(mine, 0755), 0);
	assert_int_equal(mkdir(theirs, 0700), 0);
	copy_step(path_of("%s/beta/step-000000000025", work), step);
	copy_step(path_of("%s/beta/step-000000000025", work),
		  path_of("%s/step-000000000025", theirs));
	if (root) {
		DIR *d = opendir(step);

		for (struct dirent *e; (e = readdir(d));)
			if (e->d_name[0] != '.')
				assert_int_equal(chmod(path_of("%s/%s", step, e->d_name), 0644), 0);
		closedir(d);
	}
	assert_int_equal(chmod(step, 0755), 0);
	assert_int_equal(chmod(top, 0755), 0);
	assert_int_equal(chmod(theirs, 0), 0);
	become_nobody(true);
	code[0] = SHOWN("ls", store);
	/* What is not checked is not called good. */
	code[1] = SHOWN("verify", "--all", store);
	code[2] = SHOWN("show", "-C", store);
	become_nobody(false);
	assert_int_equal(chmod(mine, 0), 0);
	become_nobody(true);
	code[3] = SHOWN("ls", store);
	code[4] = RUN("verify", "--all", "--json", store);
	assert_json_error(12);
	code[5] = RUN("show", "-C", store);
	code[6] = SHOWN("stats", "latest", "-C", store);
	become_nobody(false);
	assert_int_equal(chmod(mine, 0700), 0);
	assert_int_equal(chmod(theirs, 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(code); i++)
		assert_int_equal(code[i], i == 0 || i == 2 ? 0 : 12);
}

/* --- pictures and files --- */

TEST(the_title_of_a_picture_fits_it)
{
	const char *file = path_of("%s/long.svg", top);
	char *svg, *title, *end;

	RUN_IS(0, "show", made, path_of("--map=%s", long_name), path_of("--svg=%s", file));
	svg = slurp(file);
	assert_says(svg, path_of("<title>model/%s in step 1 of made</title>", long_name));
	title = strstr(svg, "class=\"h\"");
	assert_non_null(title);
	title = strchr(title, '>') + 1;
	end = strchr(title, '<');
	*end = 0;
	assert_says(title, "model/layers.17.");
	assert_says(title, "\xe2\x80\xa6");
	assert_says(title, "END.weight in step 1 of made");
	/* 15 pixels high, bold: 9 pixels a character. */
	assert_true(screen_columns(title) * 9 < 780);
}

static int run_ops(const struct io_ops *ops, const struct cli_verb *verb, enum cli_option_id id,
		   const char *value, const char *tensor)
{
	const char *step = path_of("%s/step-000000000030", alpha());

	if (verb == &verb_cat)
		return run_verb(ops, verb, (const char *const[]){ step, tensor, NULL },
				(const struct verb_option[]){ { id, value }, { OPT_NONE, NULL } });
	return run_verb(ops, verb, (const char *const[]){ step, NULL },
			(const struct verb_option[]){
				{ id, value }, { OPT_MAP, tensor }, { OPT_NONE, NULL } });
}

TEST(whichever_call_fails_a_file_is_whole_or_as_it_was)
{
	static const uint32_t call[] = { IO_ON_CREATE, IO_ON_WRITE, IO_ON_SYNC, IO_ON_RENAME };
	char dir[300], file[310];
	struct io_faults f;

	snprintf(dir, sizeof dir, "%s", path_of("%s/faults", top));
	snprintf(file, sizeof file, "%s/f.svg", dir);

	assert_int_equal(mkdir(dir, 0700), 0);
	io_faults_init(&f, quick_ops());
	for (size_t i = 0; i < 2 * ARRAY_LEN(call); i++) {
		uint32_t on = call[i / 2];
		bool picture = i % 2, hit = true;

		for (uint64_t n = 1; hit; n++) {
			/* The second sync is the directory's: the file has its name by then. */
			bool late = on == IO_ON_SYNC && n == 2;
			int code;

			if (picture)
				assert_int_equal(
					run_ops(&io_ops_posix, &verb_show, OPT_SVG, file, "mask"),
					0);
			io_faults_fail(&f, on, n, -ENOSPC, false);
			code = picture ? run_ops(&f.ops, &verb_show, OPT_SVG, file, "head.bias")
				       : run_ops(&f.ops, &verb_cat, OPT_OUTPUT, file, "mask");
			hit = io_faults_hit(&f);
			assert_int_equal(code, hit ? 13 : 0);
			assert_int_equal(entries(dir), picture || late || !hit);
			if (hit)
				assert_says(got.err, "choose another FILE");
			if (picture) {
				char *svg = slurp(file);

				assert_says(svg, "</svg>\n");
				assert_says(svg, late || !hit ? "head.bias" : "model/mask");
			}
			unlink(file);
		}
	}
}

/* --- stats --- */

TEST(modules_beyond_a_screen_are_counted)
{
	static struct made m[60];
	static float x[4];
	static char name[60][16];
	const char *store = path_of("%s/flat", top);
	json_t *j;

	for (uint32_t i = 0; i < 60; i++) {
		snprintf(name[i], sizeof name[i], "w%02u", i);
		m[i] = (struct made){ "model", name[i], CKPT_F32, 1, { 4 }, x, 0 };
	}
	make_made(store, "flat", 1, m, 60);
	SHOWN_IS(0, "stats", "-C", store);
	SHOWN_IS(0, "stats", "--depth=1", "-C", store);
	RUN_IS(0, "stats", "--json", "-C", store);
	j = json_out("ckptd.stats/1");
	assert_int_equal(count(j, "modules"), 60);
	json_decref(j);
}

UNIT(.group_setup = make_rig, .group_teardown = drop_all);
