/* SPDX-License-Identifier: Apache-2.0 */
/* test_host_links.c - what a host measures of messages, and that it says what it cannot. */
#include "ckpt/host/host_links.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <dirent.h>

static void assert_measured(const struct host_link *x)
{
	assert_string_equal(x->why, "");
	assert_true(x->latency_us > 0 && x->latency_us < 1e9);
	assert_true(x->bytes_per_us > 0 && x->bytes_per_us < 1e12);
}

static int no_sync(void *ctx, int fd)
{
	return -EIO;
}

TEST(memory_sockets_and_the_disk_are_measured_and_nothing_stays_there)
{
	char top[SCRATCH_MAX];
	struct host_links l;
	struct dirent *e;
	uint32_t n = 0;
	DIR *d;

	scratch_make(top);
	host_links_measure(&io_ops_posix, top, &l);
	assert_measured(&l.memory);
	assert_measured(&l.socket);
	assert_measured(&l.disk);
	d = opendir(top);
	assert_non_null(d);
	while ((e = readdir(d)))
		n++;
	closedir(d);
	assert_int_equal(n, 2);
	assert_int_equal(scratch_remove(top), 0);
}

TEST(a_disk_that_cannot_be_measured_says_why_and_has_no_figures)
{
	struct io_ops ops = io_ops_posix;
	char top[SCRATCH_MAX];
	struct host_links l;

	host_links_measure(&ops, "/no/such/directory", &l);
	assert_measured(&l.socket);
	assert_non_null(strstr(l.disk.why, "No such file or directory"));
	assert_true(l.disk.latency_us == 0 && l.disk.bytes_per_us == 0);
	scratch_make(top);
	ops.sync = no_sync;
	host_links_measure(&ops, top, &l);
	assert_non_null(strstr(l.disk.why, "Input/output error"));
	assert_true(l.disk.latency_us == 0 && l.disk.bytes_per_us == 0);
	assert_int_equal(scratch_remove(top), 0);
}
