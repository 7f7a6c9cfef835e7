/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_open.c - which format opens a directory, and is it the checkpoint that was chosen?
 * With formats that fit as the test says.
 */
#include <fcntl.h>
#include "ckpt/base/util.h"
#include "ckpt/engine/open.h"
#include "tests/lib/unit.h"

static int fits[2], nopened;

static int probe_a(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	(void)snprintf(looked, FORMAT_LOOKED, "no A");
	return fits[0];
}

static int probe_b(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	(void)snprintf(looked, FORMAT_LOOKED, "%s", dir->entry ? dir->entry : "no B");
	return fits[1];
}

static int open_any(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err)
{
	assert_non_null(how->dir);
	nopened++;
	*ret = calloc(1, sizeof **ret);
	assert_non_null(*ret);
	strcpy((*ret)->id, "000102030405060708090a0b0c0d0e0f");
	return 0;
}

static const struct format a = { .name = "a", .probe = probe_a, .open = open_any },
			   b = { .name = "b", .probe = probe_b, .open = open_any };
static const struct format *const both[] = { &a, &b, NULL };
static const struct engine e = { .ops = &io_ops_posix, .format = both };
static struct ckpt_err err;

/* The result, and which format has opened it. */
static int opened_by(const struct engine_subject *s, const struct format **ret)
{
	struct engine_subject x = *s;
	cleanup_close int fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct opened o;
	int rc;

	x.fd = fd;
	x.path = "here";
	err = (struct ckpt_err){ 0 };
	rc = engine_open(&e, &x, &o, &err);
	if (ret)
		*ret = rc ? NULL : o.format;
	assert_true(rc || (o.ckpt && o.fd == fd && o.dir.ctx));
	engine_close(&o);
	return rc;
}

TEST(the_format_that_fits_best_opens_it)
{
	const struct format *by;

	fits[0] = 25;
	fits[1] = 75;
	assert_int_equal(opened_by(&(struct engine_subject){ 0 }, &by), 0);
	assert_ptr_equal(by, &b);
	fits[0] = 100;
	assert_int_equal(opened_by(&(struct engine_subject){ 0 }, &by), 0);
	assert_ptr_equal(by, &a);
}

TEST(two_that_fit_equally_are_refused_with_both_names)
{
	fits[0] = fits[1] = 75;
	nopened = 0;
	assert_int_equal(opened_by(&(struct engine_subject){ 0 }, NULL), -ENOTUNIQ);
	assert_non_null(strstr(err.msg, "a and b; --from"));
	assert_int_equal(nopened, 0);
	assert_int_equal(opened_by(&(struct engine_subject){ .force = &b }, NULL), 0);
}

TEST(if_none_fits_the_sentence_lists_what_each_looked_for)
{
	const struct format *by;

	fits[0] = fits[1] = 0;
	assert_int_equal(opened_by(&(struct engine_subject){ 0 }, NULL), -ENOMSG);
	assert_non_null(strstr(err.msg, "a: no A; b: no B"));
	assert_int_equal(opened_by(&(struct engine_subject){ .entry = "f.bin" }, NULL), -ENOMSG);
	assert_non_null(strstr(err.msg, "b: f.bin"));
	assert_int_equal(opened_by(&(struct engine_subject){ .force = &a }, &by), 0);
	assert_ptr_equal(by, &a);
}

TEST(a_probe_that_cannot_read_ends_it)
{
	fits[0] = 75;
	fits[1] = -EACCES;
	assert_int_equal(opened_by(&(struct engine_subject){ 0 }, NULL), -EACCES);
	assert_non_null(strstr(err.msg, "here cannot be read"));
}

TEST(another_checkpoint_than_the_chosen_one_is_refused)
{
	uint8_t id[16];

	fits[0] = 75;
	fits[1] = 0;
	for (uint32_t i = 0; i < sizeof id; i++)
		id[i] = (uint8_t)i;
	assert_int_equal(opened_by(&(struct engine_subject){ .id = id }, NULL), 0);
	id[15] ^= 1;
	assert_int_equal(opened_by(&(struct engine_subject){ .id = id }, NULL), -ESTALE);
	assert_non_null(strstr(err.msg, "another checkpoint than a moment ago"));
}

UNIT();
