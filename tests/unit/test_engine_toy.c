/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_engine_toy.c - the format that docs/ADDING-A-FORMAT.md walks through, in the engine:
 * converted from native and back, interrupted, with tensors that are deflated, verified, compared;
 * a bomb is refused.
 */
#include "ckpt/coding/crc.h"
#include "ckpt/engine/compare.h"
#include "ckpt/engine/convert.h"
#include "ckpt/engine/open.h"
#include "ckpt/engine/values.h"
#include "ckpt/engine/verify.h"
#include "ckpt/table/target.h"
#include "formats/native/native.h"
#include "tests/lib/row.h"
#include "tests/lib/scratch.h"
#include "tests/lib/toy_format.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#define LARGE (UINT64_C(12) << 20) /* elements of the first tensor, which windows cut */
#define TENSORS 4u

static const struct format *const formats[] = { &format_native, &format_toy, NULL };
static struct ckpt_err err;
static char top[SCRATCH_MAX], path[8][SCRATCH_MAX + 32];
static uint64_t nread, ticked, stop_at, limit = 64 << 20;
static struct io_ops counting;
static enum io_engine io_of_engine = IO_INLINE; /* others go past `counting` */

static int64_t counted_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	int64_t n = io_ops_posix.pread(ctx, fd, buf, len, off);

	nread += n > 0 ? (uint64_t)n : 0;
	return n;
}

static uint32_t asked, stop_asked; /* how often; which of them ends it, 0: none */

static int stopping_tick(void *arg, uint64_t done)
{
	ticked += done;
	return (stop_at && ticked >= stop_at) || ++asked == stop_asked;
}

static const char *in_top(const char *name)
{
	static uint32_t at;
	char *p = path[at++ % ARRAY_LEN(path)];

	snprintf(p, sizeof path[0], "%s/%s", top, name);
	return p;
}

/* --- a toy file, of which some tensors are deflated --- */

static uint64_t deflated(const uint8_t *from, uint64_t len, uint8_t *to, uint64_t room)
{
	z_stream z = { .next_in = (uint8_t *)(uintptr_t)from, .avail_in = (uInt)len };

	assert_int_equal(deflateInit2(&z, 1, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
	z.next_out = to;
	z.avail_out = (uInt)room;
	assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
	deflateEnd(&z);
	return z.total_out;
}

static uint64_t elems_of(uint32_t tensor)
{
	return tensor ? 1000 * tensor : LARGE;
}

/* Of tensor i: bytes that can be made smaller, the same at each call. */
static void tensor_bytes(uint32_t i, uint8_t *p)
{
	for (uint64_t k = 0; k < elems_of(i); k++)
		((uint32_t *)p)[k] = (uint32_t)(k * 2654435761u >> 20) + i;
}

/* coded: bit i: tensor i is deflated. twist, if any, changes the head. */
static void toy_write(const char *dir, uint32_t coded, void (*twist)(struct toy_tensor *rec))
{
	uint64_t room = 4 * LARGE + (64 << 10), end = TOY_HEAD_BYTES(TENSORS);
	uint8_t *plain = malloc(room), *file = calloc(2, room);
	struct toy_head *head = (struct toy_head *)file;
	struct toy_tensor *rec = (struct toy_tensor *)(head + 1);
	char name[SCRATCH_MAX + 32];
	int fd;

	assert_true(plain && file);
	*head = (struct toy_head){ TOY_MAGIC, le64_of(TENSORS) };
	for (uint32_t i = 0; i < TENSORS; i++) {
		uint64_t bytes = 4 * elems_of(i), len = bytes;

		tensor_bytes(i, plain);
		if (coded >> i & 1)
			len = deflated(plain, bytes, file + end, room);
		else
			memcpy(file + end, plain, bytes);
		snprintf(rec[i].name, sizeof rec[i].name, "t%u", i);
		rec[i].dtype = le32_of(CKPT_F32);
		rec[i].ndim = le32_of(1);
		rec[i].shape[0] = le64_of(elems_of(i));
		rec[i].off = le64_of(end);
		rec[i].coded = le64_of(coded >> i & 1 ? len : 0);
		rec[i].bytes = le64_of(coded >> i & 1 ? bytes : 0);
		rec[i].crc = le32_of(crc_add(0, plain, bytes));
		end += len;
	}
	if (twist)
		twist(rec);
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(name, sizeof name, "%s/" TOY_FILE, dir);
	fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0 && write(fd, file, end) == (ssize_t)end);
	close(fd);
	free(plain);
	free(file);
}

/* --- through the engine --- */

static struct engine engine_of(uint64_t mem_limit)
{
	counting = io_ops_posix;
	counting.pread = counted_pread;
	return (struct engine)ROW(.ops = io_of_engine == IO_INLINE ? &counting : &io_ops_posix,
				  .io = io_of_engine, .format = formats, .mem_limit = mem_limit,
				  .tick = stopping_tick);
}

static int dir_open(const struct engine *e, const char *dir, struct opened *ret)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	assert_true(fd >= 0);
	return engine_open(e, &(struct engine_subject){ .fd = fd, .path = dir }, ret, &err);
}

static void dir_close(struct opened *o)
{
	int fd = o->fd;

	engine_close(o);
	close(fd);
}

static int converted(const char *from, const char *to, const struct format *format,
		     const char *mesh, struct converted *ret)
{
	struct engine e = engine_of(limit);
	struct ckpt_errlist cannot = { .code = -EMEDIUMTYPE };
	struct engine_convert c = { .to = format, .dst = to, .source = from, .options = "" };
	struct checkpoint said;
	struct table target;
	struct opened src;
	int rc;

	ticked = 0;
	assert_ok_err(dir_open(&e, from, &src), &err);
	said = *src.ckpt;
	assert_ok_err(target_make(&src.ckpt->table, mesh, NULL, 0, &target, NULL, NULL, &err),
		      &err);
	if (!(said.has & HAS_STEP))
		strcpy(said.job, "toy");
	c.src = &src;
	c.target = &target;
	c.want = (struct format_want){ .facts = &said, .tool = "test 1" };
	nread = 0;
	rc = engine_convert(&e, &c, ret, &cannot, &err);
	ckpt_errlist_free(&cannot);
	table_free(&target);
	dir_close(&src);
	return rc;
}

/* Every byte of both is read, and nothing differs. */
static void are_equal(const char *a, const char *b)
{
	struct engine e = engine_of(64 << 20);
	struct opened x, y;
	struct compared c;

	ticked = 0;
	assert_ok_err(dir_open(&e, a, &x), &err);
	assert_ok_err(dir_open(&e, b, &y), &err);
	assert_ok_err(compare_find(&x.ckpt->table, &y.ckpt->table, NULL, NULL, &c), &err);
	assert_int_equal(c.nboth, TENSORS);
	assert_int_equal(c.count[COMPARE_UNKNOWN], TENSORS);
	assert_int_equal(c.nitem, TENSORS);
	assert_true(compare_choose(&x.ckpt->table, &y.ckpt->table, false, &c) != UINT64_MAX);
	assert_ok_err(compare_read(&e, &x, &y, false, &c, &err), &err);
	assert_int_equal(c.nread, TENSORS);
	assert_int_equal(c.nitem, 0);
	compared_free(&c);
	dir_close(&x);
	dir_close(&y);
}

struct told {
	uint32_t n;
	char kind[16], tensor[64];
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct told *t = arg;

	t->n++;
	snprintf(t->kind, sizeof t->kind, "%s", f->kind);
	snprintf(t->tensor, sizeof t->tensor, "%s", f->tensor);
}

/* Bytes without a sum are the same, whether data are read or it is said what would be. */
static int verified(const char *dir, struct told *ret, struct engine_verified *found)
{
	struct engine e = engine_of(64 << 20);
	struct engine_verify v = { .data = false };
	struct engine_subject s = { .path = dir, .how = { .fault = on_fault, .fault_arg = ret } };
	cleanup_close int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint64_t unsummed;
	struct opened x;
	int rc;

	*ret = (struct told){ 0 };
	ticked = 0;
	s.fd = fd;
	assert_ok_err(engine_verify(&e, &s, &v, &x, found, &err), &err);
	engine_close(&x);
	unsummed = found->unsummed;
	v.data = true;
	rc = engine_verify(&e, &s, &v, &x, found, &err);
	assert_true(rc || found->unsummed == unsummed);
	engine_close(&x);
	return rc;
}

static void byte_flip(const char *dir, uint64_t from_end)
{
	char name[SCRATCH_MAX + 32];
	struct stat st;
	uint8_t b;
	int fd;

	snprintf(name, sizeof name, "%s/" TOY_FILE, dir);
	fd = open(name, O_RDWR);
	assert_true(fd >= 0 && !fstat(fd, &st));
	assert_int_equal(pread(fd, &b, 1, st.st_size - (off_t)from_end), 1);
	b ^= 1;
	assert_int_equal(pwrite(fd, &b, 1, st.st_size - (off_t)from_end), 1);
	close(fd);
}

static void there_and_back(void)
{
	const char *coded, *plain, *native, *back;
	struct converted made;
	struct engine_verified sums;
	struct told told;

	scratch_make(top);
	coded = in_top("coded");
	plain = in_top("plain");
	native = in_top("native");
	back = in_top("back");
	toy_write(coded, 5, NULL);
	toy_write(plain, 0, NULL);
	assert_ok_err(converted(coded, native, &format_native, "fsdp=2", &made), &err);
	assert_int_equal(made.nmade, TENSORS);
	assert_ok_err(converted(native, back, &format_toy, "all=1", &made), &err);
	assert_int_equal(made.nprint, TENSORS);
	are_equal(back, plain);
	are_equal(coded, plain);
	/* A sum covers every byte of each, and is right. */
	assert_ok_err(verified(back, &told, &sums), &err);
	assert_int_equal(sums.unsummed, 0);
	assert_ok_err(verified(coded, &told, &sums), &err);
	assert_int_equal(sums.unsummed, 0);
	assert_int_equal(told.n, 0);
	scratch_remove(top);
}

TEST(deflated_tensors_become_native_and_come_back_plain)
{
	static const enum io_engine each[] = { IO_INLINE, IO_THREADS, IO_AUTO };

	for (uint32_t i = 0; i < ARRAY_LEN(each); i++) {
		io_of_engine = each[i];
		there_and_back();
	}
	io_of_engine = IO_INLINE;
}

TEST(a_limit_without_room_for_a_decoder_is_too_little_memory)
{
	const char *coded, *made, *least;
	struct converted c;

	scratch_make(top);
	coded = in_top("coded");
	made = in_top("made");
	toy_write(coded, 1, NULL);
	limit = CONVERT_MEM_MIN;
	assert_int_equal(converted(coded, made, &format_native, "fsdp=2", &c), -ENOMEM);
	assert_true(access(made, F_OK) != 0);
	least = strstr(err.msg, "--mem-limit ");
	assert_non_null(least);
	limit = strtoull(least + strlen("--mem-limit "), NULL, 10) << 20;
	assert_ok_err(converted(coded, made, &format_native, "fsdp=2", &c), &err);
	limit = 64 << 20;
	scratch_remove(top);
}

TEST(a_stream_is_decoded_twice_at_most_in_a_conversion)
{
	struct converted made;
	struct stat st;
	const char *coded;

	scratch_make(top);
	coded = in_top("coded");
	toy_write(coded, 15, NULL);
	assert_int_equal(stat(in_top("coded/" TOY_FILE), &st), 0);
	assert_ok_err(converted(coded, in_top("native"), &format_native, "fsdp=2", &made), &err);
	assert_true(made.bytes > 40 << 20);
	assert_true(nread < 2 * (uint64_t)st.st_size + (1 << 20));
	scratch_remove(top);
}

/* The sums of what was written before are in the journal. */
TEST(a_conversion_to_it_goes_on_after_it_was_stopped)
{
	const char *plain, *again;
	struct engine_verified sums;
	struct converted made;
	struct told told;

	scratch_make(top);
	plain = in_top("plain");
	again = in_top("again");
	toy_write(plain, 0, NULL);
	stop_at = 30 << 20;
	assert_int_equal(converted(plain, again, &format_toy, "all=1", &made), -ECANCELED);
	assert_true(made.kept);
	stop_at = 0;
	assert_ok_err(converted(plain, again, &format_toy, "all=1", &made), &err);
	assert_true(made.resumed && made.before > 0 && made.before < made.bytes);
	assert_ok_err(verified(again, &told, &sums), &err);
	assert_int_equal(sums.unsummed, 0);
	are_equal(plain, again);
	scratch_remove(top);
}

/* Before the first byte: while it is found out what the files of many ranks will be. */
TEST(a_conversion_that_is_still_being_planned_can_be_stopped)
{
	const char *plain, *native, *lock, *new;
	struct converted made;

	scratch_make(top);
	plain = in_top("plain");
	native = in_top("native");
	lock = in_top(".native.ckptctl");
	new = in_top(".native.ckptctl-new");
	toy_write(plain, 0, NULL);
	for (uint32_t at = 1; at <= 64; at += 21) {
		asked = 0;
		stop_asked = at;
		assert_int_equal(converted(plain, native, &format_native, "fsdp=64", &made),
				 -ECANCELED);
		assert_int_equal(asked, at);
		assert_true(!made.kept && !made.nfile && !made.unfinished[0]);
		assert_non_null(strstr(err.msg, "interrupted"));
		assert_int_equal(access(native, F_OK), -1);
		assert_int_equal(access(lock, F_OK), -1);
		assert_int_equal(access(new, F_OK), -1);
	}
	stop_asked = 0;
	scratch_remove(top);
}

static void stranger_put(const char *name)
{
	int fd = open(name, O_WRONLY | O_CREAT | O_EXCL, 0600);

	assert_true(fd >= 0 && write(fd, "mine", 4) == 4);
	close(fd);
}

/* The toy, if its file lay in a directory of its own. */
static int nested_sheet(const struct table *target, const struct format_want *want,
			struct sheet **ret, struct ckpt_errlist *cannot, struct ckpt_err *e)
{
	int rc = format_toy.sheet(target, want, ret, cannot, e);

	if (!rc)
		(*ret)->file[0].name = "in/" TOY_FILE;
	return rc;
}

TEST(what_lies_deeper_in_a_conversions_directory_and_is_none_of_its_files_stays)
{
	struct format nested = format_toy;
	const char *plain, *again, *mine;
	struct converted made;

	nested.sheet = nested_sheet;
	scratch_make(top);
	plain = in_top("plain");
	again = in_top("again");
	mine = in_top(".again.ckptctl-new/in/thesis");
	toy_write(plain, 0, NULL);
	assert_int_equal(mkdir(in_top(".again.ckptctl"), 0700), 0);
	assert_int_equal(mkdir(in_top(".again.ckptctl-new"), 0700), 0);
	assert_int_equal(mkdir(in_top(".again.ckptctl-new/in"), 0700), 0);
	stranger_put(mine);
	assert_int_equal(converted(plain, again, &nested, "all=1", &made), -EINVAL);
	assert_non_null(strstr(err.msg, "holds in/thesis, which this conversion did not make"));
	assert_int_equal(access(mine, F_OK), 0);
	scratch_remove(top);
}

/* With a journal that it could continue, and without. */
TEST(what_lies_in_a_conversions_directory_and_is_none_of_its_files_stays)
{
	const char *plain, *again, *new, *mine, *lock;
	struct converted made;

	scratch_make(top);
	plain = in_top("plain");
	again = in_top("again");
	new = in_top(".again.ckptctl-new");
	mine = in_top(".again.ckptctl-new/thesis");
	lock = in_top(".again.ckptctl");
	toy_write(plain, 0, NULL);
	assert_int_equal(mkdir(new, 0700), 0);
	stranger_put(mine);
	assert_int_equal(converted(plain, again, &format_toy, "all=1", &made), -EINVAL);
	assert_non_null(strstr(err.msg, ".again.ckptctl-new is not what ckptctl makes there"));
	assert_int_equal(access(mine, F_OK), 0);
	assert_int_equal(access(lock, F_OK), -1);
	assert_int_equal(mkdir(lock, 0700), 0);
	assert_int_equal(converted(plain, again, &format_toy, "all=1", &made), -EINVAL);
	assert_non_null(strstr(err.msg, "holds thesis, which this conversion did not make"));
	assert_int_equal(access(mine, F_OK), 0);
	assert_int_equal(unlink(mine), 0);
	stop_at = 30 << 20;
	assert_int_equal(converted(plain, again, &format_toy, "all=1", &made), -ECANCELED);
	assert_true(made.kept);
	stop_at = 0;
	stranger_put(mine);
	assert_int_equal(converted(plain, again, &format_toy, "all=1", &made), -EINVAL);
	assert_int_equal(access(mine, F_OK), 0);
	assert_int_equal(unlink(mine), 0);
	assert_ok_err(converted(plain, again, &format_toy, "all=1", &made), &err);
	assert_true(made.resumed);
	assert_int_equal(access(lock, F_OK), -1);
	assert_int_equal(access(again, F_OK), 0);
	scratch_remove(top);
}

TEST(damage_in_a_stream_is_found_and_nothing_is_made_of_it)
{
	const char *coded, *native;
	struct engine_verified sums;
	struct converted made;
	struct told told;

	scratch_make(top);
	coded = in_top("coded");
	native = in_top("native");
	toy_write(coded, 8, NULL);
	byte_flip(coded, 1000);
	assert_int_equal(verified(coded, &told, &sums), -EBADMSG);
	assert_int_equal(told.n, 1);
	assert_string_equal(told.kind, "checksum");
	assert_string_equal(told.tensor, "t3");
	assert_int_equal(converted(coded, native, &format_native, "fsdp=2", &made), -EBADMSG);
	assert_non_null(strstr(err.msg, "t3 in " TOY_FILE));
	assert_false(made.kept);
	assert_int_equal(access(native, F_OK), -1);
	scratch_remove(top);
}

/* Of a file without chunks: the sum that the container holds of a tensor. */
TEST(damage_in_a_tensor_is_found_by_a_conversion_also_by_one_that_goes_on)
{
	const uint64_t first = TOY_HEAD_BYTES(TENSORS), rest = 4 * (1000 + 2000 + 3000);
	const char *plain, *native;
	struct converted made;

	scratch_make(top);
	plain = in_top("plain");
	native = in_top("native");
	toy_write(plain, 0, NULL);
	byte_flip(plain, rest + 4 * LARGE - 100); /* near the beginning of t0 */
	assert_int_equal(converted(plain, native, &format_native, "fsdp=2", &made), -EBADMSG);
	assert_non_null(strstr(err.msg, "which hold t0: their CRC-32 is wrong"));
	assert_false(made.kept);
	assert_true(made.source_failed);
	stop_at = 30 << 20;
	assert_int_equal(converted(plain, native, &format_toy, "all=1", &made), -ECANCELED);
	assert_true(made.kept);
	stop_at = 0;
	assert_int_equal(converted(plain, native, &format_toy, "all=1", &made), -EBADMSG);
	assert_true(made.resumed && made.before > first);
	assert_non_null(strstr(err.msg, "which hold t0: their CRC-32 is wrong"));
	assert_int_equal(access(native, F_OK), -1);
	scratch_remove(top);
}

static int values_pass(void *arg, const uint8_t *p, uint64_t len, uint64_t done)
{
	(void)p;
	*(uint64_t *)arg = done + len;
	return 0;
}

static int values_read(const char *dir, const char *slice, uint64_t *ret)
{
	struct engine e = engine_of(0);
	struct opened x;
	struct values v;
	int rc;

	ticked = 0;
	*ret = 0;
	assert_ok_err(dir_open(&e, dir, &x), &err);
	assert_ok_err(values_choose(&x.ckpt->table, 0, slice, &v, &err), &err);
	rc = engine_values_all(&e, &x, &v, values_pass, ret, &err);
	dir_close(&x);
	return rc;
}

TEST(values_have_their_sum_compared_where_all_of_a_tensor_is_read)
{
	const char *plain, *other;
	struct engine e = engine_of(64 << 20);
	struct opened x, y;
	struct compared c;
	uint64_t n;

	scratch_make(top);
	plain = in_top("plain");
	other = in_top("other");
	toy_write(plain, 0, NULL);
	toy_write(other, 0, NULL);
	assert_ok_err(values_read(plain, NULL, &n), &err);
	byte_flip(plain, 4 * (1000 + 2000 + 3000) + 4 * LARGE - 100);
	assert_int_equal(values_read(plain, NULL, &n), -EBADMSG);
	assert_non_null(strstr(err.msg, "which hold t0: their CRC-32 is wrong"));
	/* Of a part nothing is known. */
	assert_ok_err(values_read(plain, "0:1000", &n), &err);
	assert_int_equal(n, 4000);
	ticked = 0;
	assert_ok_err(dir_open(&e, plain, &x), &err);
	assert_ok_err(dir_open(&e, other, &y), &err);
	assert_ok_err(compare_find(&x.ckpt->table, &y.ckpt->table, NULL, NULL, &c), &err);
	assert_true(compare_choose(&x.ckpt->table, &y.ckpt->table, false, &c) != UINT64_MAX);
	assert_int_equal(compare_read(&e, &x, &y, false, &c, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, plain));
	compared_free(&c);
	dir_close(&x);
	dir_close(&y);
	scratch_remove(top);
}

/* 48 MiB come out of the stream of a tensor of a few bytes. */
static void bomb(struct toy_tensor *rec)
{
	rec[0].shape[0] = le64_of(100);
	rec[0].bytes = le64_of(400);
}

/* The tensor is a TiB, and its stream a few MiB. */
static void boast(struct toy_tensor *rec)
{
	rec[0].shape[0] = le64_of(UINT64_C(1) << 38);
	rec[0].bytes = le64_of(UINT64_C(1) << 40);
}

TEST(a_stream_with_more_or_fewer_bytes_than_its_tensor_is_refused)
{
	void (*const twist[])(struct toy_tensor *) = { bomb, boast };

	for (size_t i = 0; i < ARRAY_LEN(twist); i++) {
		const char *coded, *native;
		struct engine_verified sums;
		struct converted made;
		struct told told;

		scratch_make(top);
		coded = in_top("coded");
		native = in_top("native");
		toy_write(coded, 1, twist[i]);
		assert_int_equal(verified(coded, &told, &sums), -EBADMSG);
		assert_string_equal(told.tensor, "t0");
		assert_true(converted(coded, native, &format_native, "all=1", &made) < 0);
		assert_int_equal(access(native, F_OK), -1);
		scratch_remove(top);
	}
}
