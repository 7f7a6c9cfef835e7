/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_newfile.c - a file that the command has said it wrote is there after a power loss, with all its
 * bytes; and there is never half of one under its name.
 */
#include "ckpt/cli/newfile.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"

#define BYTES 9000

static char dir[300];

static uint8_t byte_at(uint32_t i)
{
	return (uint8_t)(i * 31 + 7);
}

static int looked_at(void *arg, int dirfd, const struct io_crash *at)
{
	uint8_t got[BYTES];
	uint64_t bytes = 0;
	int fd = at->ops->open(at->ops->ctx, dirfd, "new", O_RDONLY, 0), r;

	(void)arg;
	if (fd == -ENOENT)
		return at->mark != 0;
	if (fd < 0)
		return 1;
	r = at->ops->size(at->ops->ctx, fd, &bytes);
	if (!r && bytes == BYTES)
		r = io_pread_all(at->ops, fd, got, BYTES, 0);
	for (uint32_t i = 0; !r && bytes == BYTES && i < BYTES; i++)
		r = got[i] != byte_at(i);
	(void)at->ops->close(at->ops->ctx, fd);
	return r || bytes != BYTES;
}

TEST(a_file_that_was_written_survives_a_power_loss_whole)
{
	const struct io_crash_opts o = { .seed = 1, .nrandom = 8, .ntear = 4, .memory = true };
	uint8_t bytes[BYTES];
	char path[310];
	struct io_faults f;
	struct newfile n;
	struct ckpt_err err;
	uint64_t states;
	int root;

	for (uint32_t i = 0; i < BYTES; i++)
		bytes[i] = byte_at(i);
	(void)snprintf(dir, sizeof dir, "%.200s/newfile-XXXXXX",
		       getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_non_null(mkdtemp(dir));
	root = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	(void)snprintf(path, sizeof path, "%s/new", dir);
	io_faults_init(&f, &io_ops_posix);
	f.record = io_record_new(root);
	assert_int_equal(newfile_open(&f.ops, path, &n, &err), 0);
	assert_int_equal(newfile_write(&n, bytes, 5000, &err), 0);
	assert_int_equal(newfile_write(&n, bytes + 5000, BYTES - 5000, &err), 0);
	assert_int_equal(newfile_commit(&n, &err), 0);
	newfile_drop(&n);
	io_record_mark(f.record, 1);
	assert_int_equal(io_crash_states(f.record, &o, looked_at, NULL, &states), 0);
	assert_true(states > 20);
	io_record_free(f.record);
	(void)close(root);
	assert_int_equal(io_tree_remove(AT_FDCWD, dir), 0);
}
