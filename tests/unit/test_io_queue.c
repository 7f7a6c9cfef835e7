/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_io_queue.c - one queue, three engines: what goes in comes out, whatever the engine, the
 * depth and the kind of file; and every rung of the ladder from io_uring down to threads, forced.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include "ckpt/io/io_window.h"
#include "tests/lib/row.h"
#include "tests/lib/deny_syscall.h"
#include "tests/lib/draw.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"

#define BLOCK 4096
#define FILE_BLOCKS 512 /* 2 MiB */
#define DEPTH_MAX 8

static char dir_path[256];
static int dir_fd = -1;

static const enum io_engine engines[] = { IO_URING, IO_THREADS, IO_INLINE };

static int dir_open(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)signal(SIGXFSZ, SIG_IGN);
	(void)snprintf(dir_path, sizeof(dir_path), "%s/ckpt-io-queue-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(dir_path))
		return -1;
	dir_fd = open(dir_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return dir_fd < 0;
}

static int dir_close(void **state)
{
	(void)close(dir_fd);
	return io_tree_remove(AT_FDCWD, dir_path);
}

static uint8_t *pages(uint64_t bytes)
{
	uint8_t *p = aligned_alloc(BLOCK, bytes);

	assert_non_null(p);
	memset(p, 0, bytes);
	return p;
}

/* NULL: this machine has no such engine, and the test goes on without. */
static struct io_queue *queue_or_skip(enum io_engine engine, uint32_t depth)
{
	struct io_queue *q;
	struct ckpt_err err;
	int rc = io_queue_open(&io_ops_posix, engine, depth, &q, &err);

	if (rc && engine == IO_URING) {
		print_message("without io_uring: %s\n", err.msg);
		return NULL;
	}
	assert_int_equal(rc, 0);
	assert_int_equal(io_queue_engine(q), engine);
	return q;
}

/* -1: no O_DIRECT here. */
static int scratch(bool direct)
{
	int flags = O_RDWR | O_CREAT | O_TRUNC | (direct ? O_DIRECT : 0);
	int fd = io_ops_posix.open(NULL, dir_fd, "file", flags, 0600);

	if (fd == -EINVAL && direct) {
		print_message("without direct: O_DIRECT is refused in %s\n", dir_path);
		return -1;
	}
	assert_true(fd >= 0);
	return fd;
}

struct round {
	uint64_t seed;
	bool direct;
	struct io_queue *q;
	int fd;
	uint8_t *model, *from, *to; /* the file; a block of memory per request, twice */
	struct io_req req[DEPTH_MAX];
	bool busy[DEPTH_MAX];
};

#define REQ_BYTES (64 * KIB)

static struct io_req *idle_req(struct round *r)
{
	for (uint32_t i = 0; i < DEPTH_MAX; i++) {
		if (!r->busy[i]) {
			r->busy[i] = true;
			return &r->req[i];
		}
	}
	fail();
	return NULL;
}

/*
 * Any place and length that a request may have. Writes in flight do not overlap: each lies in the
 * lane of its request.
 */
static void req_aim(struct round *r, struct io_req *req, bool write)
{
	uint64_t lane = FILE_BLOCKS * BLOCK / DEPTH_MAX, i = (uint64_t)(req - r->req);
	uint64_t at = draw(&r->seed) % lane;
	uint64_t len = draw(&r->seed) % (MIN(REQ_BYTES, lane - at) + 1);

	if (r->direct) {
		at = at / BLOCK * BLOCK;
		len = len / BLOCK * BLOCK;
	}
	*req = (struct io_req)ROW(.fd = r->fd, .write = write,
				  .buf = (write ? r->from : r->to) + i * REQ_BYTES, .len = len,
				  .off = i * lane + at, .user = req);
}

static void reap_one(struct round *r)
{
	struct io_req *req = io_reap(r->q);

	assert_non_null(req);
	assert_ptr_equal(req->user, req);
	assert_int_equal(req->res, req->len);
	if (!req->write)
		assert_memory_equal(req->buf, r->model + req->off, req->len);
	r->busy[req - r->req] = false;
}

static void requests(struct round *r, uint32_t depth, uint32_t n, bool write)
{
	for (uint32_t k = 0; k < n; k++) {
		struct io_req *req;

		if (io_in_flight(r->q) == depth)
			reap_one(r);
		req = idle_req(r);
		req_aim(r, req, write);
		for (uint64_t i = 0; write && i < req->len; i += 8)
			((uint8_t *)req->buf)[i] = (uint8_t)draw(&r->seed);
		if (write)
			memcpy(r->model + req->off, req->buf, req->len);
		assert_int_equal(io_submit(r->q, req), 0);
	}
	while (io_in_flight(r->q))
		reap_one(r);
	assert_null(io_reap(r->q));
}

static void round_trip(enum io_engine engine, bool direct, uint32_t depth, uint64_t seed)
{
	struct round r = { .seed = seed, .direct = direct };

	r.q = queue_or_skip(engine, depth);
	if (!r.q)
		return;
	r.fd = scratch(direct);
	if (r.fd >= 0) {
		assert_int_equal(io_ops_posix.truncate(NULL, r.fd, FILE_BLOCKS * BLOCK), 0);
		r.model = pages(FILE_BLOCKS * BLOCK);
		r.from = pages(DEPTH_MAX * REQ_BYTES);
		r.to = pages(DEPTH_MAX * REQ_BYTES);
		requests(&r, depth, 60, true);
		requests(&r, depth, 60, false);
		free(r.model);
		free(r.from);
		free(r.to);
		(void)close(r.fd);
	}
	io_queue_close(r.q);
}

TEST(what_is_written_is_read_whatever_the_engine_and_depth)
{
	uint64_t seed = draw_seed("round trips");

	for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
		for (uint32_t depth = 1; depth <= DEPTH_MAX; depth++) {
			round_trip(engines[e], false, depth, seed + depth);
			round_trip(engines[e], true, depth, seed + depth);
		}
	}
}

TEST(depth_requests_fit_and_no_more)
{
	struct io_req req[3] = { 0 };
	cleanup_free uint8_t *buf = pages(BLOCK);
	cleanup_close int fd = scratch(false);

	for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
		struct io_queue *q = queue_or_skip(engines[e], 2);

		if (!q)
			continue;
		for (int i = 0; i < 3; i++)
			req[i] = (struct io_req){ .fd = fd, .buf = buf, .len = 1 };
		assert_null(io_reap(q));
		assert_int_equal(io_submit(q, &req[0]), 0);
		assert_int_equal(io_submit(q, &req[1]), 0);
		assert_int_equal(io_submit(q, &req[2]), -EAGAIN);
		assert_int_equal(io_in_flight(q), 2);
		assert_non_null(io_reap(q));
		assert_int_equal(io_submit(q, &req[2]), 0);
		io_queue_close(q); /* with two in flight */
	}
}

TEST(a_queue_without_a_depth_is_refused_with_a_sentence)
{
	struct io_queue *q;
	struct ckpt_err err;

	assert_int_equal(io_queue_open(&io_ops_posix, IO_AUTO, 0, &q, &err), -EINVAL);
	assert_null(q);
	assert_non_null(strstr(err.msg, "depth of 0"));
	assert_int_equal(io_queue_open(&io_ops_posix, IO_AUTO, UINT32_MAX, &q, NULL), -EINVAL);
	io_queue_close(NULL);
}

static int64_t one(struct io_queue *q, struct io_req *r)
{
	assert_int_equal(io_submit(q, r), 0);
	assert_ptr_equal(io_reap(q), r);
	return r->res;
}

static void each_engine(void (*check)(struct io_queue *q, bool direct), uint32_t depth)
{
	for (size_t i = 0; i < 2 * ARRAY_LEN(engines); i++) {
		struct io_queue *q = queue_or_skip(engines[i / 2], depth);

		if (!q)
			continue;
		check(q, i % 2);
		io_queue_close(q);
	}
}

static void end_check(struct io_queue *q, bool direct)
{
	const uint64_t sizes[] = { 0, 1, 511, 512, 4095, 4096, 5000, 8192, 20000, 65536 };
	uint8_t *buf = pages(2 * REQ_BYTES);
	int fd = scratch(direct);

	for (size_t i = 0; fd >= 0 && i < ARRAY_LEN(sizes); i++) {
		struct io_req r = { .fd = fd, .buf = buf, .len = 2 * REQ_BYTES };

		assert_int_equal(io_ops_posix.truncate(NULL, fd, sizes[i]), 0);
		assert_int_equal(one(q, &r), sizes[i]);
		r.off = BLOCK;
		assert_int_equal(one(q, &r), sizes[i] > BLOCK ? sizes[i] - BLOCK : 0);
		r.off = 4 * MIB;
		assert_int_equal(one(q, &r), 0);
	}
	free(buf);
	if (fd >= 0)
		(void)close(fd);
}

TEST(a_read_gets_what_there_is_before_the_end_of_the_file)
{
	each_engine(end_check, 4);
}

static void bad_check(struct io_queue *q, bool direct)
{
	uint8_t *buf = pages(2 * BLOCK);
	int fd = scratch(direct), ro;
	struct io_req r = { .fd = fd, .write = true, .buf = buf, .len = BLOCK };

	if (fd < 0) {
		free(buf);
		return;
	}
	assert_int_equal(one(q, &r), BLOCK);
	r.len = 100;
	r.off = 4;
	if (direct) { /* some file systems take it: then it is done, never half */
		int64_t res = one(q, &r);

		assert_true(res == -EINVAL || res == 100);
		assert_true(io_fd_direct(fd)); /* a mistake is not repaired by going buffered */
	}
	r.buf = buf + 1;
	r.len = BLOCK;
	r.off = 0;
	if (direct) {
		int64_t res = one(q, &r);

		assert_true(res == -EINVAL || res == BLOCK);
		assert_true(io_fd_direct(fd));
	}
	r = (struct io_req){ .fd = fd, .write = true, .buf = buf, .len = 0, .off = 1 };
	assert_int_equal(one(q, &r), 0);
	r = (struct io_req){ .fd = fd, .buf = buf, .len = 1, .off = UINT64_MAX };
	assert_int_equal(one(q, &r), -EINVAL);
	r = (struct io_req){ .fd = -1, .buf = buf, .len = BLOCK };
	assert_int_equal(one(q, &r), -EBADF);
	ro = io_ops_posix.open(NULL, dir_fd, "file", O_RDONLY, 0);
	r = (struct io_req){ .fd = ro, .write = true, .buf = buf, .len = BLOCK };
	assert_int_equal(one(q, &r), -EBADF);
	r = (struct io_req){ .fd = fd, .write = true, .buf = buf, .len = 2 * BLOCK };
	assert_int_equal(one(q, &r), 2 * BLOCK); /* and the queue is as good as before */
	(void)close(ro);
	(void)close(fd);
	free(buf);
}

TEST(a_bad_request_fails_alone)
{
	each_engine(bad_check, 3);
}

/*
 * In a child, for the limit stays. RLIMIT_FSIZE is the full disk that needs no mount: a short
 * write, then an error.
 */
static int limit_body(void *arg)
{
	enum io_engine engine = *(enum io_engine *)arg;
	struct rlimit limit = { .rlim_cur = MIB + 8192, .rlim_max = MIB + 8192 };
	struct io_queue *q;
	cleanup_free uint8_t *buf = aligned_alloc(BLOCK, 2 * MIB);
	cleanup_close int fd =
		io_ops_posix.open(NULL, dir_fd, "limited", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct io_req r = { .fd = fd, .write = true, .buf = buf, .len = 2 * MIB };
	uint64_t size;

	if (!buf || fd < 0 || setrlimit(RLIMIT_FSIZE, &limit) ||
	    io_queue_open(&io_ops_posix, engine, 4, &q, NULL))
		return 2;
	memset(buf, 7, 2 * MIB);
	if (io_submit(q, &r) || io_reap(q) != &r)
		return 3;
	if (r.res != -EFBIG)
		return 4;
	if (io_ops_posix.size(NULL, fd, &size) || size != MIB + 8192)
		return 5; /* the short write was really continued, up to the limit */
	io_queue_close(q);
	return 0;
}

TEST(a_write_beyond_the_limit_is_short_then_an_error)
{
	for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
		enum io_engine engine = engines[e];
		struct io_queue *q = queue_or_skip(engine, 1);

		if (!q)
			continue;
		io_queue_close(q);
		/* denying a call that is not made: only the child is wanted */
		assert_int_equal(deny_run(SYS_swapon, EPERM, limit_body, &engine), 0);
	}
}

/* Short and interrupted transfers inside the engines that go through the table. */
TEST(engines_through_the_table_meet_its_faults)
{
	const enum io_engine through[] = { IO_THREADS, IO_INLINE };
	cleanup_free uint8_t *buf = pages(16 * BLOCK), *got = pages(16 * BLOCK);
	struct io_faults f;

	memset(buf, 9, 16 * BLOCK);
	for (size_t e = 0; e < ARRAY_LEN(through); e++) {
		cleanup_close int fd = scratch(false);
		struct io_req r = { .fd = fd, .write = true, .buf = buf, .len = 16 * BLOCK };
		struct io_req back = { .fd = fd, .buf = got, .len = 16 * BLOCK };
		struct io_queue *q;

		io_faults_init(&f, &io_ops_posix);
		assert_int_equal(io_queue_open(&f.ops, through[e], 2, &q, NULL), 0);
		io_faults_fail(&f, IO_ON_WRITE, 1, -EIO, false);
		assert_int_equal(one(q, &r), -EIO);
		io_faults_short(&f, 1);
		assert_int_equal(one(q, &r), 16 * BLOCK);
		assert_int_equal(io_faults_calls(&f), 2);
		io_faults_fail(&f, IO_ON_READ, 1, -EINTR, false);
		assert_int_equal(one(q, &back), 16 * BLOCK);
		assert_memory_equal(buf, got, 16 * BLOCK);
		io_faults_fail(&f, IO_ON_READ, 1, -EAGAIN, true);
		assert_int_equal(one(q, &back), -EAGAIN);
		io_queue_close(q);
	}
}

TEST(a_replaced_table_is_never_bypassed)
{
	struct io_faults f;
	struct io_queue *q;
	struct ckpt_err err;
	struct io_ops half = io_ops_posix;

	io_faults_init(&f, &io_ops_posix);
	half.pread = f.ops.pread;
	assert_int_equal(io_queue_open(&half, IO_URING, 2, &q, NULL), -EINVAL);
	half = io_ops_posix;
	half.pwrite = f.ops.pwrite;
	assert_int_equal(io_queue_open(&half, IO_URING, 2, &q, NULL), -EINVAL);
	assert_int_equal(io_queue_open(&f.ops, IO_URING, 2, &q, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "bypass"));
	assert_int_equal(io_queue_open(&f.ops, IO_AUTO, 2, &q, NULL), 0);
	assert_int_equal(io_queue_engine(q), IO_THREADS);
	assert_non_null(strstr(io_queue_why(q), "bypass"));
	io_queue_close(q);
}

/*
 * A file system that takes O_DIRECT at open and refuses the transfers. The table looks at the
 * descriptor as such a file system would.
 */
struct refuser {
	int eno;
	bool always; /* also what is not direct */
	_Atomic uint32_t refused, served;
};

static bool refuses(struct refuser *f, int fd)
{
	bool no = f->always || (fcntl(fd, F_GETFL) & O_DIRECT);

	atomic_fetch_add(no ? &f->refused : &f->served, 1);
	return no;
}

static int64_t refuser_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct refuser *f = ctx;

	return refuses(f, fd) ? -f->eno : io_ops_posix.pread(NULL, fd, buf, len, off);
}

static int64_t refuser_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	struct refuser *f = ctx;

	return refuses(f, fd) ? -f->eno : io_ops_posix.pwrite(NULL, fd, buf, len, off);
}

#define PIECES 32

/* All at once, so that threads meet the refusal together. */
static void pieces_move(struct io_queue *q, int fd, uint8_t *buf, bool write, int64_t expect)
{
	struct io_req r[PIECES], *done;
	uint32_t n = 0;

	for (uint32_t i = 0; i < PIECES; i++) {
		r[i] = (struct io_req){ .fd = fd, .write = write, .buf = buf + i * BLOCK };
		r[i].len = BLOCK;
		r[i].off = (uint64_t)i * BLOCK;
		assert_int_equal(io_submit(q, &r[i]), 0);
	}
	for (; (done = io_reap(q)); n++)
		assert_int_equal(done->res, expect);
	assert_int_equal(n, PIECES);
}

TEST(refused_direct_transfers_are_done_buffered)
{
	const enum io_engine through[] = { IO_THREADS, IO_INLINE };
	const int eno[] = { EINVAL, EOPNOTSUPP };
	cleanup_free uint8_t *buf = pages(PIECES * BLOCK), *got = pages(PIECES * BLOCK);

	for (uint32_t i = 0; i < PIECES * BLOCK; i++)
		buf[i] = (uint8_t)(i / BLOCK + i % 251);
	for (uint32_t i = 0; i < 4; i++) {
		struct refuser f = { .eno = eno[i % 2] };
		struct io_ops ops = io_ops_posix;
		struct io_queue *q;
		cleanup_close int fd = scratch(true);

		if (fd < 0)
			skip();
		ops.ctx = &f;
		ops.pread = refuser_pread;
		ops.pwrite = refuser_pwrite;
		assert_int_equal(io_queue_open(&ops, through[i / 2], PIECES, &q, NULL), 0);
		pieces_move(q, fd, buf, true, BLOCK);
		assert_false(io_fd_direct(fd));
		assert_true(f.refused >= 1 && f.served == PIECES);
		assert_int_equal(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT), 0);
		memset(got, 0, PIECES * BLOCK);
		pieces_move(q, fd, got, false, BLOCK);
		assert_false(io_fd_direct(fd));
		assert_memory_equal(buf, got, PIECES * BLOCK);
		/* What is refused without O_DIRECT, too, is not its fault. */
		f.always = true;
		pieces_move(q, fd, buf, true, -eno[i % 2]);
		io_queue_close(q);
	}
}

#define WINDOWS 6 /* of a file that is larger than what may be dirty */

static uint64_t resident(int fd, uint64_t bytes)
{
	unsigned char *in = calloc(bytes / BLOCK, 1);
	void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t n = 0;

	assert_true(in && map != MAP_FAILED);
	assert_int_equal(mincore(map, bytes, in), 0);
	for (uint64_t i = 0; i < bytes / BLOCK; i++)
		n += in[i] & 1;
	(void)munmap(map, bytes);
	free(in);
	return n * BLOCK;
}

/* 0, or the first error of a large file's buffered writes. */
static int64_t large_write(struct io_queue *q, int fd, uint8_t *block, uint64_t windows)
{
	struct io_req r[4], *done;
	int64_t bad = 0;
	uint32_t n = 0;

	for (uint64_t off = 0; off < windows * IO_WINDOW_BYTES; off += MIB, n++) {
		done = n < 4 ? &r[n] : io_reap(q);
		if (n >= 4 && done->res < 0)
			bad = bad ? bad : done->res;
		*done = (struct io_req){ .fd = fd, .write = true, .buf = block, .len = MIB };
		done->off = off;
		(void)io_submit(q, done);
	}
	while ((done = io_reap(q)))
		if (done->res < 0)
			bad = bad ? bad : done->res;
	return bad;
}

TEST(large_buffered_writes_do_not_stay_in_the_page_cache)
{
	int probe = scratch(false);
	bool can = sync_file_range(probe, 0, 0, SYNC_FILE_RANGE_WRITE) == 0 &&
		   posix_fadvise(probe, 0, 0, POSIX_FADV_DONTNEED) == 0;
	uint8_t *block = pages(MIB);
	struct statfs fs;

	(void)close(probe);
	if (!can) {
		print_message("skipped: no sync_file_range or posix_fadvise here\n");
		free(block);
		skip();
	}
	assert_int_equal(fstatfs(dir_fd, &fs), 0);
	if (fs.f_type == 0x01021994 || fs.f_type == 0x858458f6) {
		print_message("skipped: the temporary directory is the page cache itself\n");
		free(block);
		skip();
	}
	for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
		struct io_queue *q = queue_or_skip(engines[e], 4);
		cleanup_close int fd = scratch(false);

		if (q) {
			assert_int_equal(large_write(q, fd, block, WINDOWS), 0);
			assert_true(resident(fd, WINDOWS * IO_WINDOW_BYTES) <= 3 * IO_WINDOW_BYTES);
			io_queue_close(q);
		}
	}
	free(block);
}

struct windowed {
	enum io_engine engine;
	int64_t expect;
	int eno;
	unsigned mask; /* of the call's flags: 0 denies all */
};

static int windowed_body(void *arg)
{
	const struct windowed *x = arg;
	uint8_t *block = aligned_alloc(BLOCK, MIB);
	int fd = io_ops_posix.open(NULL, dir_fd, "file", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct io_queue *q;
	int64_t got;

	if (deny_install_if(SYS_sync_file_range, (unsigned)x->eno, 3, x->mask))
		return DENY_NOT_POSSIBLE;
	if (!block || fd < 0 || io_queue_open(&io_ops_posix, x->engine, 4, &q, NULL))
		return 2;
	memset(block, 3, MIB);
	got = large_write(q, fd, block, 2);
	io_queue_close(q);
	free(block);
	(void)close(fd);
	return got == x->expect ? 0 : 3;
}

static void windows_with(int eno, unsigned mask, int64_t expect)
{
	for (size_t e = 0; e < ARRAY_LEN(engines); e++) {
		struct windowed x = { engines[e], expect, eno, mask };
		struct io_queue *q = queue_or_skip(engines[e], 1);
		int rc;

		if (!q)
			continue;
		io_queue_close(q);
		/* only the child is wanted: the filter that counts is its own */
		rc = deny_run(SYS_swapon, EPERM, windowed_body, &x);
		if (rc == DENY_NOT_POSSIBLE) {
			print_message("skipped: this kernel takes no seccomp filter\n");
			skip();
		}
		assert_int_equal(rc, 0);
	}
}

/* The kernel tells it once: swallowed here, the fsync that follows would say that all is well. */
TEST(an_error_that_a_window_meets_is_the_error_of_a_write)
{
	const int any[] = { EIO, ENOSPC, EPERM, EINVAL, EOPNOTSUPP };
	int probe = scratch(false);
	bool has = sync_file_range(probe, 0, 0, SYNC_FILE_RANGE_WRITE) == 0;

	(void)close(probe);
	windows_with(EIO, 0, -EIO);
	windows_with(ENOSPC, 0, -ENOSPC);
	for (size_t i = 0; has && i < ARRAY_LEN(any); i++)
		windows_with(any[i], SYNC_FILE_RANGE_WAIT_AFTER, -any[i]);
}

TEST(without_sync_file_range_buffered_writes_work)
{
	windows_with(ENOSYS, 0, 0);
	windows_with(EPERM, 0, 0);
}

struct rung {
	int eno;
	const char *word;
};

static int forbidden_body(void *arg)
{
	const struct rung *rung = arg;
	struct io_queue *q;
	struct ckpt_err err;
	cleanup_free uint8_t *buf = aligned_alloc(BLOCK, BLOCK);
	cleanup_close int fd =
		io_ops_posix.open(NULL, dir_fd, "forbidden", O_RDWR | O_CREAT | O_TRUNC, 0600);
	struct io_req r = { .fd = fd, .write = true, .buf = buf, .len = BLOCK };

	if (!buf || fd < 0)
		return 2;
	memset(buf, 1, BLOCK);
	if (io_queue_open(&io_ops_posix, IO_URING, 4, &q, &err) != -rung->eno)
		return 3;
	if (!strstr(err.msg, rung->word) || !strstr(err.msg, strerrorname_np(rung->eno)))
		return 4;
	if (io_queue_open(&io_ops_posix, IO_AUTO, 4, &q, &err))
		return 5;
	if (io_queue_engine(q) != IO_THREADS)
		return 6;
	(void)fprintf(stderr, "why: %s\n", io_queue_why(q));
	if (!strstr(io_queue_why(q), "threads (4)") || !strstr(io_queue_why(q), rung->word) ||
	    !strstr(io_queue_why(q), strerrorname_np(rung->eno)))
		return 7;
	if (io_submit(q, &r) || io_reap(q) != &r || r.res != BLOCK)
		return 8;
	io_queue_close(q);
	return 0;
}

TEST(without_io_uring_threads_do_the_work_and_say_why)
{
	struct rung rungs[] = { { EPERM, "seccomp" },
				{ ENOSYS, "has no io_uring" },
				{ ENOMEM, "ulimit -l" },
				{ EMFILE, "ulimit -n" } };

	for (size_t i = 0; i < ARRAY_LEN(rungs); i++) {
		int rc = deny_run(SYS_io_uring_setup, rungs[i].eno, forbidden_body, &rungs[i]);

		if (rc == DENY_NOT_POSSIBLE) {
			print_message("skipped: this kernel takes no seccomp filter\n");
			skip();
		}
		assert_int_equal(rc, 0);
	}
}

static int no_register_body(void *arg)
{
	struct io_queue *q;

	if (io_queue_open(&io_ops_posix, IO_AUTO, 4, &q, NULL))
		return 2;
	if (io_queue_engine(q) != IO_THREADS || !strstr(io_queue_why(q), "no read or write"))
		return 3;
	io_queue_close(q);
	return 0;
}

TEST(a_ring_that_cannot_be_asked_what_it_can_is_not_used)
{
	struct io_queue *q = queue_or_skip(IO_URING, 1);

	if (!q)
		skip();
	print_message("%s\n", io_queue_why(q));
	io_queue_close(q);
	assert_int_equal(deny_run(SYS_io_uring_register, EINVAL, no_register_body, NULL), 0);
}

#if defined(__SANITIZE_ADDRESS__)
static int overrun_body(void *arg)
{
	struct io_queue *q;
	uint8_t *buf = malloc(BLOCK);
	struct io_req r = { .fd = *(int *)arg, .buf = buf, .len = BLOCK + 1 };

	(void)freopen("/dev/null", "w", stderr); /* the assertion speaks */
	if (io_queue_open(&io_ops_posix, IO_AUTO, 1, &q, NULL))
		return 2;
	(void)io_submit(q, &r);
	return 0;
}

TEST(a_buffer_that_is_not_ours_is_found_before_the_kernel_fills_it)
{
	cleanup_close int fd = scratch(false);

	assert_int_equal(deny_run(SYS_swapon, EPERM, overrun_body, &fd), 119); /* it did not exit */
}
#endif

UNIT(.group_setup = dir_open, .group_teardown = dir_close);
