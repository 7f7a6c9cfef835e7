/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_line.h - for the tests of the verbs that keep, name and remove steps: a store of its own
 * for each test, with a line of steps 10, 20, ..., and looks at what is left of it.
 */
#ifndef CKPT_TEST_CLI_LINE_H
#define CKPT_TEST_CLI_LINE_H
#include "ckpt/store/mark.h"
#include "tests/unit/test_cli_rig.h"

/* A path below top that stays what it is, however often path_of is asked. */
static char *place(const char *name)
{
	static char buf[64][PATH_MAX];
	static uint32_t n;

	assert_true(n < ARRAY_LEN(buf));
	snprintf(buf[n], PATH_MAX, "%s/%s", top, name);
	return buf[n++];
}

/* ROOT/JOB with the steps 10, 20, ..., 10 * n. Returns the job's directory. */
static const char *line(const char *root, const char *job, uint64_t n)
{
	char *path = place("");

	snprintf(path, PATH_MAX, "%s/%s", root, job);
	if (access(root, F_OK))
		assert_int_equal(mkdir(root, 0700), 0);
	for (uint64_t i = 1; i <= n; i++) {
		uint64_t before = i == 1 ? UINT64_MAX : 10 * (i - 1);

		make_step(root, &(struct how){ job, "fsdp=2", 10 * i, i, before, before, false });
	}
	return path;
}

static const char *step_path(const char *job, uint64_t step)
{
	return path_of("%s/step-%012llu", job, (unsigned long long)step);
}

static bool there(const char *job, uint64_t step)
{
	return !access(step_path(job, step), F_OK);
}

/* The numbers of the committed steps, newest first: "30 20 10 ". */
static const char *steps_of(const char *job)
{
	static char buf[1024];
	json_t *j;
	size_t n = 0;

	buf[0] = 0;
	assert_int_equal(RUN("ls", job, "--json"), 0);
	j = json_out("ckptd.ls/1");
	for (size_t i = 0; i < json_array_size(json_object_get(j, "checkpoints")); i++) {
		const json_t *x = json_array_get(json_object_get(j, "checkpoints"), i);

		if (!strcmp(string(x, "state"), "committed"))
			n += (size_t)snprintf(buf + n, sizeof buf - n, "%llu ",
					      (unsigned long long)number(x, "step"));
	}
	json_decref(j);
	return buf;
}

/* The one entry of a list whose step that is. */
static json_t *of_step(json_t *list, uint64_t step)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (number(json_array_get(list, i), "step") == step)
			return json_array_get(list, i);
	fail_msg("step %llu is not in the list", (unsigned long long)step);
	return NULL;
}

/* The entry of a step in ls --all --json. The caller drops *ret_doc. */
static json_t *listed(const char *job, uint64_t step, json_t **ret_doc)
{
	assert_int_equal(RUN("ls", job, "--all", "--json"), 0);
	*ret_doc = json_out("ckptd.ls/1");
	return of_step(json_object_get(*ret_doc, "checkpoints"), step);
}

/* The first part file of a step directory. */
static const char *a_part(const char *step)
{
	DIR *d = opendir(step);
	const char *found = NULL;

	assert_non_null(d);
	for (struct dirent *e; !found && (e = readdir(d));)
		if (strstr(e->d_name, ".part"))
			found = path_of("%s/%s", step, e->d_name);
	closedir(d);
	assert_non_null(found);
	return found;
}

/* Flip a byte of it. */
static void hurt(const char *path, off_t at)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t b;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &b, 1, at), 1);
	b ^= 0x40;
	assert_int_equal(pwrite(fd, &b, 1, at), 1);
	close(fd);
}

/* For nftw(3): another user's. */
static int give(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	return lchown(path, 65534, 65534);
}

/* What a reader does. The caller closes the descriptor. */
static int reading(const char *job, uint64_t step)
{
	struct store s = { .ops = &io_ops_posix,
			   .root_fd = -1,
			   .job_fd = open(job, O_RDONLY | O_DIRECTORY | O_CLOEXEC) };
	struct ckpt_err err = { 0 };
	char dir[STORE_DIR_MAX];
	int fd;

	snprintf(s.job, sizeof s.job, "%s", strrchr(job, '/') + 1);
	snprintf(dir, sizeof dir, "step-%012llu", (unsigned long long)step);
	assert_int_equal(store_step_open(&s, dir, &fd, &err), 0);
	close(s.job_fd);
	return fd;
}

/* --- a person at a terminal of 80 columns --- */

/* The command with stdin, stdout and stderr being one terminal, where `typed` has been typed. Returns
 * the exit code; what was to be seen is in *ret, malloc'ed. */
__attribute__((sentinel)) static int at_terminal(char **ret, const char *typed, const char *word,
						 ...)
{
	char *argv[24] = { (char *)"ckptctl" };
	struct winsize size = { .ws_row = 40, .ws_col = 80 };
	int master, slave, saved = dup(STDIN_FILENO), argc = 1, code;
	char buf[4096];
	FILE *out, *err, *mem;
	size_t len;
	ssize_t n;
	va_list ap;

	va_start(ap, word);
	for (; word; word = va_arg(ap, const char *))
		argv[argc++] = (char *)word;
	va_end(ap);
	assert_int_equal(openpty(&master, &slave, NULL, NULL, &size), 0);
	setenv("TERM", "xterm", 1);
	if (*typed)
		assert_int_equal(write(master, typed, strlen(typed)), strlen(typed));
	assert_true(dup2(slave, STDIN_FILENO) >= 0);
	out = fdopen(dup(slave), "w");
	err = fdopen(slave, "w");
	code = cli_run(argc, argv, out, err);
	fclose(out);
	fclose(err);
	/* The last of its ends; a read of the other one ends then. */
	if (saved >= 0)
		dup2(saved, STDIN_FILENO);
	else
		close(STDIN_FILENO);
	if (saved >= 0)
		close(saved);
	mem = open_memstream(ret, &len);
	while ((n = read(master, buf, sizeof buf)) > 0)
		fwrite(buf, 1, (size_t)n, mem);
	fclose(mem);
	close(master);
	return code;
}

/* No line of it is wider than a terminal of 80 columns. Colours take none; a path is as long as it is. */
static void fits_80(const char *text)
{
	size_t len;

	for (const char *p = text; *p; p += len + (p[len] != 0)) {
		uint32_t n = 0;

		len = strcspn(p, "\r\n");
		for (size_t i = 0; i < len; i++) {
			if (p[i] == 0x1b)
				i += strcspn(p + i, "mK");
			else
				n += (p[i] & 0xc0) != 0x80;
		}
		if (n > 80 && !memmem(p, len, top, strlen(top)))
			fail_msg("a line is wider than 80 columns: %.*s", (int)len, p);
	}
}
#endif
