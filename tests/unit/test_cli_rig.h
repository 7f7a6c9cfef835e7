/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_rig.h - for the tests of ckptctl's verbs: a store made from the sample model, and the
 * command run in this process through cli_run. Include it once; give make_all and drop_all to
 * cmocka_run_group_tests.
 */
#ifndef CKPT_TEST_CLI_RIG_H
#define CKPT_TEST_CLI_RIG_H
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <jansson.h>
#include <pty.h>
#include "ckpt/base/dtype.h"
#include "ckpt/cli/cli.h"
#include "ckpt/move/move.h"
#include "ckpt/store/store.h"
#include "tests/lib/sample.h"
#include "tests/lib/unit.h"

#define SEED 7
#define RANKS_MAX 8
#define WALL_NS (UINT64_C(1700000000) * NS_PER_S)

/* Everything lies below top. work is a store: job alpha with the steps 10, 20 and 30 (fsdp=4), job
 * beta with step 25 (dp=2,fsdp=2). */
static char top[64];
static char work[PATH_MAX];

/* --- making stores --- */

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	return remove(path);
}

static void remove_tree(const char *path)
{
	assert_int_equal(nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

__attribute__((format(printf, 1, 2))) static const char *path_of(const char *fmt, ...)
{
	static char buf[64][PATH_MAX];
	static uint32_t next;
	char *p = buf[next++ % ARRAY_LEN(buf)];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(p, PATH_MAX, fmt, ap);
	va_end(ap);
	return p;
}

/* Where it is set, make_step's ranks declare what it leaves of the sample's table. */
static void (*declare)(struct table *decl);
/* Where it is set, the parts say what it makes of their tables; what they hold stays. */
static void (*lie)(struct table *part);

/* The note of the steps that are made. */
static double rig_loss = 2.5;

/* What rank r of the mesh owns, as a part of the transaction. The table stays for the manifest. */
static void write_part(struct store_txn *x, const char *mesh, uint32_t rank,
		       const struct native_info *info, struct table *t, struct native_part *ret)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	struct ckpt_err err;
	struct sample s;
	uint64_t bytes;
	bool direct = false;
	void *raw;
	int fd;

	assert_int_equal(sample_make(mesh, rank, SEED, 1, &s), 0);
	if (declare)
		declare(&s.decl);
	assert_int_equal(native_part_table(&s.decl, rank, t, &list, &err), 0);
	if (lie)
		lie(t);
	bytes = align_up(t->place[0].bytes, 4096);
	raw = aligned_alloc(4096, bytes ? bytes : 4096);
	assert_non_null(raw);
	memset(raw, 0, bytes);
	for (uint32_t i = 0; i < t->npiece; i++)
		sample_piece(SEED, t, &t->piece[i], info->step, (uint8_t *)raw + t->piece[i].off);
	assert_int_equal(
		store_part_create(x, rank, move_part_bytes_max(t), &direct, ret->name, &fd, &err),
		0);
	assert_int_equal(
		move_write_part(&(struct move_write){ .ops = &io_ops_posix, .engine = IO_INLINE },
				fd, raw, t, info, rank, ret, &err),
		0);
	assert_int_equal(store_part_finish(x, ret->name, fd, ret->file_bytes, &err), 0);
	free(raw);
	sample_free(&s);
	ckpt_errlist_free(&list);
}

struct how {
	const char *job, *mesh;
	uint64_t step, seq, parent, rewind;
	bool leave; /* do not commit: it stays collecting */
};

/* Of the committed step of that number; zeros: there is none. */
static void parent_id(const struct store *s, uint64_t step, uint8_t ret[16])
{
	struct store_step *all;
	uint32_t n;

	assert_int_equal(store_scan(s, false, &all, &n, NULL), 0);
	for (uint32_t i = 0; i < n; i++)
		if (all[i].step == step && all[i].state == STORE_COMMITTED)
			memcpy(ret, all[i].id, 16);
	free(all);
}

static void make_step(const char *root, const struct how *h)
{
	const struct ckpt_note note[] = { { "loss", rig_loss }, { "lr", 3e-4 } };
	struct native_lineage lineage = { .seq = h->seq,
					  .parent_step = h->parent,
					  .tool = "ckptd 0.1.0",
					  .nnote = 2,
					  .note = note };
	struct native_info info = { .job = h->job,
				    .step = h->step,
				    .generation = 1,
				    .wall_ns = WALL_NS + h->step * NS_PER_S };
	struct native_part part[RANKS_MAX] = { 0 };
	struct table table[RANKS_MAX] = { 0 };
	struct store *s;
	struct store_txn *x;
	struct ckpt_err err = { 0 };
	struct sample first;
	uint8_t id[16];
	uint64_t bytes, generation;
	void *manifest;
	int root_fd = open(root, O_RDONLY | O_DIRECTORY);

	assert_true(root_fd >= 0);
	memset(info.uuid, (int)h->step + 1, sizeof info.uuid);
	assert_int_equal(sample_make(h->mesh, 0, SEED, 1, &first), 0);
	info.world = first.world;
	sample_free(&first);
	assert_int_equal(store_open(&io_ops_posix, root_fd, h->job, true, &s, &err), 0);
	assert_int_equal(store_claim(s, 0, false, &generation, &err), 0);
	parent_id(s, h->parent, lineage.parent_id);
	assert_int_equal(store_begin(s, h->step, &x, &err), 0);
	for (uint32_t r = 0; r < info.world; r++)
		write_part(x, h->mesh, r, &info, &table[r], &part[r]);
	for (uint32_t r = 0; r < info.world; r++)
		part[r].table = &table[r];
	if (!h->leave) {
		if (native_manifest(&info, part, info.world, &lineage, &manifest, &bytes, id,
				    &err) ||
		    store_commit(x, manifest, bytes, h->rewind, &err))
			fail_msg("%s", err.msg);
		free(manifest);
		store_close(s);
	}
	/* A transaction that is left: its writer has died, so nobody ends it; only its memory is
	 * ours to forget. */
	if (h->leave) {
		DIR *d = opendir(path_of("%s/%s", root, h->job));

		for (struct dirent *e; (e = readdir(d));)
			if (!strncmp(e->d_name, ".tmp-", 5)) {
				const char *from = path_of("%s/%s/%s", root, h->job, e->d_name);
				const char *to = path_of("%s/kept", top);

				assert_int_equal(rename(from, to), 0);
				store_abort(x);
				assert_int_equal(rename(to, from), 0);
				break;
			}
		closedir(d);
		store_close(s);
	}
	for (uint32_t r = 0; r < info.world; r++)
		table_free(&table[r]);
	close(root_fd);
}

static const struct how standard[] = {
	{ "alpha", "fsdp=4", 10, 1, UINT64_MAX, UINT64_MAX, false },
	{ "alpha", "fsdp=4", 20, 2, 10, 10, false },
	{ "beta", "dp=2,fsdp=2", 25, 1, UINT64_MAX, UINT64_MAX, false },
	{ "alpha", "fsdp=4", 30, 3, 20, 20, false },
};

static void copy_file(const char *from, const char *to)
{
	char buf[65536];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0600);
	ssize_t n;

	assert_true(in >= 0 && out >= 0);
	while ((n = read(in, buf, sizeof buf)) > 0)
		assert_int_equal(write(out, buf, (size_t)n), n);
	close(in);
	close(out);
}

static void copy_step(const char *from, const char *to)
{
	DIR *d = opendir(from);

	assert_non_null(d);
	assert_int_equal(mkdir(to, 0700), 0);
	for (struct dirent *e; (e = readdir(d));)
		if (e->d_name[0] != '.')
			copy_file(path_of("%s/%s", from, e->d_name),
				  path_of("%s/%s", to, e->d_name));
	closedir(d);
}

/* --- running the command --- */

static struct {
	int code;
	char *out, *err;
	size_t out_len, err_len;
} got;

static void run_argv(int argc, char **argv)
{
	FILE *out, *err;

	free(got.out);
	free(got.err);
	out = open_memstream(&got.out, &got.out_len);
	err = open_memstream(&got.err, &got.err_len);
	got.code = cli_run(argc, argv, out, err);
	fclose(out);
	fclose(err);
}

/* Words up to a NULL. */
__attribute__((sentinel)) static int run(const char *word, ...)
{
	char *argv[24] = { (char *)"ckptctl" };
	int argc = 1;
	va_list ap;

	va_start(ap, word);
	for (; word; word = va_arg(ap, const char *))
		argv[argc++] = (char *)word;
	va_end(ap);
	run_argv(argc, argv);
	return got.code;
}
#define RUN(...) run(__VA_ARGS__, NULL)

#define assert_says(text, part)                                                        \
	do {                                                                           \
		if (!strstr(text, part))                                               \
			fail_msg("\"%s\" is not in:\n%s", part, (text) ? (text) : ""); \
	} while (0)
#define assert_silent(text, part)                                             \
	do {                                                                  \
		if (strstr(text, part))                                       \
			fail_msg("\"%s\" should not be in:\n%s", part, text); \
	} while (0)

/* The document on stdout: of lines the last, the summary. */
static json_t *json_out(const char *schema)
{
	const char *last = got.out;
	json_error_t e;
	json_t *j;

	for (const char *p = got.out; p && (p = strchr(p, '\n')) && p[1]; p++)
		last = p + 1;
	j = json_loads(last, JSON_REJECT_DUPLICATES, &e);
	if (!j)
		fail_msg("%s in: %s", e.text, last);
	assert_string_equal(json_string_value(json_object_get(j, "schema")), schema);
	return j;
}

/* The one line of stderr is an error object with this code. */
static void assert_json_error(int code)
{
	json_t *j = json_loads(got.err, 0, NULL);

	if (!j)
		fail_msg("no JSON: %s", got.err);
	assert_string_equal(json_string_value(json_object_get(j, "schema")), "ckptd.error/1");
	assert_int_equal(json_integer_value(json_object_get(j, "code")), code);
	assert_true(json_is_string(json_object_get(j, "message")));
	json_decref(j);
}

static const json_t *member(const json_t *j, const char *key, json_type type)
{
	const json_t *v = json_object_get(j, key);

	if (!v)
		fail_msg("there is no key \"%s\"", key);
	if (json_typeof(v) != type)
		fail_msg("key \"%s\" is of JSON type %d, not %d", key, json_typeof(v), type);
	return v;
}

static uint64_t number(const json_t *j, const char *key)
{
	return (uint64_t)json_integer_value(member(j, key, JSON_INTEGER));
}

static const char *string(const json_t *j, const char *key)
{
	return json_string_value(member(j, key, JSON_STRING));
}

static int make_all(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	unsetenv("CKPTD_STORE");
	unsetenv("NO_COLOR");
	unsetenv("COLUMNS");
	snprintf(top, sizeof top, "%.40s/ckptctl-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	if (!mkdtemp(top))
		return -1;
	snprintf(work, sizeof work, "%s/work", top);
	setenv("CKPTD_SOCKET", path_of("%s/nobody-listens", top), 1);
	assert_int_equal(mkdir(work, 0700), 0);
	for (size_t i = 0; i < ARRAY_LEN(standard); i++)
		make_step(work, &standard[i]);
	return 0;
}

static int drop_all(void **state)
{
	(void)state;
	free(got.out);
	free(got.err);
	remove_tree(top);
	return 0;
}
#endif
