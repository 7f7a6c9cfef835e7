/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_leftover.c - what runs that were killed have left is found, judged and removed; what
 * another process has locked stays.
 */
#include "ckpt/io/leftover.h"
#include "ckpt/io/publish.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static char top[SCRATCH_MAX];
static int at;

struct found {
	uint32_t n;
	struct leftover x[16];
};

static int found_add(void *arg, const struct leftover *x)
{
	struct found *f = arg;

	assert_true(f->n < ARRAY_LEN(f->x));
	f->x[f->n++] = *x;
	return 0;
}

static const struct leftover *found_of(struct found *f, const char *name, uint64_t now_ns)
{
	f->n = 0;
	assert_int_equal(leftovers_find(&io_ops_posix, at, now_ns, found_add, f), 0);
	for (uint32_t i = 0; i < f->n; i++)
		if (!strcmp(f->x[i].at, name))
			return &f->x[i];
	return NULL;
}

static void begin(void)
{
	scratch_make(top);
	at = open(top, O_RDONLY | O_DIRECTORY);
	assert_true(at >= 0);
}

static void end(void)
{
	close(at);
	scratch_remove(top);
}

static void put(const char *name, uint64_t bytes)
{
	int fd = openat(at, name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	assert_true(fd >= 0 && !ftruncate(fd, (off_t)bytes));
	close(fd);
}

/* A run that was interrupted: a file and, with `noted`, a journal. */
static struct publish *begun(const char *name, bool dir, bool resume, bool noted)
{
	char path[SCRATCH_MAX + 64];
	struct publish_opts o = {
		.ops = &io_ops_posix, .path = path, .dir = dir, .resume = resume, .mode = 0600
	};
	struct publish *p;
	struct ckpt_err err;
	int fd;

	snprintf(path, sizeof path, "%s/%s", top, name);
	assert_ok_err(publish_begin(&o, 0, &p, &err), &err);
	assert_ok_err(publish_file(p, dir ? "sub/a" : "", 0, NULL, &fd, &err), &err);
	assert_int_equal(ftruncate(fd, 5000), 0);
	close(fd);
	if (noted)
		assert_ok_err(publish_note(p, 0, "123", 3, &err), &err);
	return p;
}

TEST(each_kind_is_found_with_its_name_its_size_and_what_can_be_done)
{
	const uint64_t now = wall_ns(), later = now + 2 * LEFTOVER_QUIET_NS;
	struct found f;
	const struct leftover *x;
	struct publish *p, *q;

	begin();
	put("data.ckptctl-new", 7); /* no dot */
	put(".ckptctl-new", 7);	    /* no name */
	put(".hidden", 7);
	assert_null(found_of(&f, "", later));
	assert_int_equal(f.n, 0);
	p = begun("dst", true, true, true);
	x = found_of(&f, ".dst.ckptctl-new", later);
	assert_int_equal(f.n, 1);
	assert_int_equal(x->is, LEFTOVER_WRITTEN);
	publish_end(p, true);
	x = found_of(&f, ".dst.ckptctl-new", now);
	assert_int_equal(f.n, 1);
	assert_int_equal(x->is, LEFTOVER_UNFINISHED);
	assert_string_equal(x->becomes, "dst");
	assert_string_equal(x->lock, ".dst.ckptctl");
	assert_true(x->bytes >= 5003 && x->bytes < 5003 + 100);
	p = begun("one.file", false, true, false);
	publish_end(p, true);
	x = found_of(&f, ".one.file.ckptctl-new", now);
	assert_int_equal(x->is, LEFTOVER_DEAD);
	assert_string_equal(x->becomes, "one.file");
	/* Without a lock time says whether it is written. */
	q = begun("out", true, false, false);
	f.n = 0;
	assert_int_equal(leftovers_find(&io_ops_posix, at, now, found_add, &f), 0);
	assert_int_equal(f.n, 3);
	for (x = f.x; strcmp(x->becomes, "out") != 0;)
		x++;
	assert_int_equal(x->is, LEFTOVER_WRITTEN);
	assert_string_equal(x->lock, "");
	x = found_of(&f, x->at, later);
	assert_int_equal(x->is, LEFTOVER_DEAD);
	assert_int_equal(x->bytes, 5000);
	publish_end(q, false);
	/* A lock alone, also with a journal: nothing is there to be continued. */
	assert_int_equal(mkdirat(at, ".gone.ckptctl", 0700), 0);
	put(".gone.ckptctl/journal-1", 9);
	x = found_of(&f, ".gone.ckptctl", now);
	assert_int_equal(x->is, LEFTOVER_DEAD);
	assert_string_equal(x->becomes, "gone");
	assert_int_equal(x->bytes, 9);
	end();
}

TEST(what_is_found_can_be_removed_unless_a_process_has_it)
{
	const uint64_t later = wall_ns() + 2 * LEFTOVER_QUIET_NS;
	struct found f, none;
	struct publish *p, *q, *r;
	const struct leftover *x;

	begin();
	put("mine", 7);
	p = begun("dst", true, true, true);
	q = begun("two", false, true, true);
	publish_end(q, true);
	r = begun("out", true, false, false);
	assert_int_equal(mkdirat(at, ".gone.ckptctl", 0700), 0);
	found_of(&f, "", later);
	assert_int_equal(f.n, 4);
	for (uint32_t i = 0; i < f.n; i++)
		assert_int_equal(leftover_remove(&io_ops_posix, at, &f.x[i]),
				 strcmp(f.x[i].becomes, "dst") ? 0 : -EBUSY);
	x = found_of(&none, ".dst.ckptctl-new", later);
	assert_int_equal(none.n, 1);
	assert_int_equal(x->is, LEFTOVER_WRITTEN);
	assert_int_equal(faccessat(at, ".dst.ckptctl-new/sub/a", F_OK, 0), 0);
	publish_end(p, true);
	assert_int_equal(leftover_remove(&io_ops_posix, at, x), 0);
	found_of(&none, "", later);
	assert_int_equal(none.n, 0);
	assert_int_equal(faccessat(at, "mine", F_OK, 0), 0);
	publish_end(r, true);
	end();
}

UNIT();
