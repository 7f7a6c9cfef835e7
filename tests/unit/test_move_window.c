/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_window.c - a checkpoint streamed in windows gives every element of every place, blobs
 * included, whatever the meshes, the limit and the engine; and ends cleanly whatever goes wrong.
 * All meshes, sizes and moments in release; ThreadSanitizer looks at every sixth, and both
 * sanitizers at fewer windows.
 */
#include "tests/unit/test_move_disk.h"
#include "tests/lib/deny_syscall.h"
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

/* All of them, passed by. */
static uint64_t count_windows(const struct table *dst, uint64_t bytes_max)
{
	struct windows *w;
	uint64_t n = 0;

	assert_int_equal(windows_open(dst, bytes_max, &w, NULL), 0);
	for (struct window x; windows_next(w, &x, NULL) > 0; n++)
		window_free(&x);
	windows_close(w);
	return n;
}

#define SEED UINT64_C(0x77)
#define LEAST (16u << 20)

static const struct disk_how threads = { &io_ops_posix, IO_THREADS, false };

static void files_open(struct move_files *f, struct disk *d, const struct checkpoint *c,
		       const struct disk_how *how)
{
	struct ckpt_err err;

	assert_ok_err(move_open(how->ops, d->fd, c, how->direct, how->engine, f, &err), &err);
}

/* A checkpoint of `mesh`, on disk and open. */
static struct checkpoint *made(struct disk *d, const char *mesh, uint64_t scale)
{
	const struct disk_how how = { &io_ops_posix, IO_INLINE, false };
	struct job j;

	disk_make(d);
	job_make(&j, mesh, SEED, scale);
	job_stage(&j, 3, 0);
	job_write(&j, d, &how);
	job_free(&j);
	return disk_open(d);
}

/* What the caller of move_windows does here: put the cuts where they belong. */
struct sink {
	const struct table *dst;
	uint8_t *place[DISK_RANKS_MAX];
	uint64_t windows, bytes, ticked, cut_bytes;
	uint64_t fail_at, stop_at; /* of windows, of ticked bytes; 0: never */
	int fail_with;
	pthread_t thread;
};

static int take(void *arg, const struct window *w, const uint8_t *buf)
{
	struct sink *s = arg;

	assert_true(pthread_equal(pthread_self(), s->thread));
	for (uint32_t i = 0; i < w->ncut; i++) {
		memcpy(s->place[w->cut[i].place] + w->cut[i].dst_off, buf + w->cut[i].buf_off,
		       w->cut[i].len);
		s->cut_bytes += w->cut[i].len;
	}
	assert_int_equal(w->number, s->windows);
	s->windows++;
	s->bytes += w->bytes;
	return s->windows == s->fail_at ? s->fail_with : 0;
}

static int tick(void *arg, uint64_t done)
{
	struct sink *s = arg;

	assert_true(pthread_equal(pthread_self(), s->thread));
	s->ticked += done;
	return s->stop_at && s->ticked >= s->stop_at;
}

static void sink_make(struct sink *s, const struct table *dst)
{
	*s = (struct sink){ .dst = dst, .thread = pthread_self() };
	assert_true(dst->nplace <= DISK_RANKS_MAX);
	for (uint32_t i = 0; i < dst->nplace; i++)
		s->place[i] = calloc(1, dst->place[i].bytes + 1);
}

static void sink_free(struct sink *s)
{
	for (uint32_t i = 0; i < s->dst->nplace; i++)
		free(s->place[i]);
}

/* The raw spaces of a job's ranks as one table: what a converter wants. */
static void wanted_make(struct job *j, struct table *ret)
{
	struct ckpt_errlist list = { 0 };
	struct ckpt_err err;

	*ret = (struct table){ 0 };
	for (uint32_t i = 0; i < j->world; i++)
		if (table_merge(ret, &j->part[i], NULL, &list, &err) < 0 || list.n)
			fail_msg("%s", err.msg);
	assert_int_equal(table_seal(ret, NULL), 0);
}

/* From mesh to mesh in windows of `limit`. */
static void stream(const char *from, const char *to, uint64_t scale, uint64_t limit,
		   const struct disk_how *how)
{
	struct disk d;
	struct checkpoint *c = made(&d, from, scale);
	struct table dst;
	struct move_files f;
	struct ckpt_err err;
	struct sink s;
	struct job j;
	uint64_t total = 0;

	job_make(&j, to, SEED, scale);
	job_stage(&j, 3, 0);
	wanted_make(&j, &dst);
	files_open(&f, &d, c, how);
	sink_make(&s, &dst);
	if (move_windows(&f, &dst, limit, 0, take, &s, tick, &s, &err) < 0)
		fail_msg("%s -> %s: %s", from, to, err.msg);
	for (uint32_t i = 0; i < dst.npiece; i++) {
		const struct table_piece *p = &dst.piece[i];

		total += p->len;
		assert_true(!memcmp(s.place[p->place] + p->off, j.raw[p->place] + p->off, p->len));
	}
	assert_int_equal(s.cut_bytes, total);
	assert_int_equal(s.ticked, total);
	assert_int_equal(s.windows, count_windows(&dst, move_window_bytes(limit)));
	move_close(&f);
	sink_free(&s);
	table_free(&dst);
	job_free(&j);
	checkpoint_free(c);
	disk_free(&d);
}

TEST(test_windows_give_every_element_of_every_place)
{
	static const char *const pairs[][2] = ROW(
		{ "fsdp=4", "fsdp=3" }, { "dp=2,fsdp=2", "fsdp=3" }, { "fsdp=2,tp=2", "fsdp=4" },
		{ "pp=2,fsdp=2", "fsdp=2,tp=2" }, { "fsdp=4", "fsdp=1" });

	for (size_t i = 0; i < ARRAY_LEN(pairs); i += EVERY == 1 ? 1 : 3) {
		stream(pairs[i][0], pairs[i][1], 1, LEAST, &threads);
		stream(pairs[i][0], pairs[i][1], 1, UINT64_C(1) << 30,
		       &(struct disk_how){ &io_ops_posix, IO_AUTO, true });
	}
}

TEST(test_many_windows_pass_through_little_memory)
{
	stream("fsdp=4", "fsdp=2,tp=2", FEWER(12), LEAST, &threads);
	stream("fsdp=2,tp=2", "fsdp=3", FEWER(12), 20u << 20,
	       &(struct disk_how){ &io_ops_posix, IO_AUTO, true });
}

/* Sanitizers look at fewer windows; release has them all. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define MANY 5 /* 25 MB or so: some windows */
#define SOME 2 /* where it may be one */
#else
#define MANY (unit_scaled(10) == 10 ? 10u : 5u)
#define SOME (unit_scaled(10) == 10 ? 10u : 2u)
#endif

/* A job, wanted on another mesh. */
struct rig {
	struct disk d;
	struct checkpoint *c;
	struct job j;
	struct table dst;
	struct move_files f;
	struct sink s;
};

/* What costs most is made once for the cases of this process: nobody changes it for good. */
static struct {
	uint64_t scale; /* 0: not yet */
	pid_t maker;
	struct rig rig;
} kept;

static void kept_free(void)
{
	if (!TAKE(kept.scale))
		return;
	table_free(&kept.rig.dst);
	job_free(&kept.rig.j);
	checkpoint_free(kept.rig.c);
	disk_free(&kept.rig.d);
}

__attribute__((destructor)) static void kept_end(void)
{
	if (kept.maker == getpid())
		kept_free();
}

static void rig_make(struct rig *r, uint64_t scale)
{
	if (kept.scale != scale) {
		kept_free();
		kept.rig.c = made(&kept.rig.d, "fsdp=3", scale);
		job_make(&kept.rig.j, "fsdp=2", SEED, scale);
		job_stage(&kept.rig.j, 3, 0);
		wanted_make(&kept.rig.j, &kept.rig.dst);
		kept.scale = scale;
		kept.maker = getpid();
	}
	*r = kept.rig;
	files_open(&r->f, &r->d, r->c, &threads);
	sink_make(&r->s, &r->dst);
}

static void rig_free(struct rig *r)
{
	move_close(&r->f);
	sink_free(&r->s);
}

static int rig_run(struct rig *r, struct ckpt_err *err)
{
	r->s.windows = r->s.bytes = r->s.ticked = r->s.cut_bytes = 0;
	return move_windows(&r->f, &r->dst, LEAST, 0, take, &r->s, tick, &r->s, err);
}

TEST(test_it_ends_where_the_caller_says)
{
	struct ckpt_err err = { 0 };
	uint64_t n, total = 0;
	struct rig r;

	rig_make(&r, MANY);
	n = count_windows(&r.dst, move_window_bytes(LEAST));
	assert_in_range(n, 4, 100);
	for (uint64_t i = 1; i <= n; i += EVERY) {
		r.s.fail_at = i;
		r.s.fail_with = i % 2 ? -ENOSPC : 77;
		assert_int_equal(rig_run(&r, &err), r.s.fail_with);
		assert_int_equal(r.s.windows, i);
	}
	r.s.fail_at = 0;
	for (uint32_t i = 0; i < r.dst.npiece; i++)
		total += r.dst.piece[i].len;
	assert_true(total > 2 * MOVE_BLOCK);
	/* It asks every MOVE_BLOCK bytes: with less than that left, the last window may come before
	 * it asks again. */
	for (uint64_t at = 1; at + MOVE_BLOCK <= total; at += EVERY * (3u << 20)) {
		r.s.stop_at = at;
		err.msg[0] = 0;
		assert_int_equal(rig_run(&r, &err), -ECANCELED);
		assert_true(err.msg[0] != 0);
		assert_true(r.s.windows < n);
	}
	r.s.stop_at = 0;
	assert_int_equal(rig_run(&r, &err), 0);
	rig_free(&r);
}

/* The reader is two windows ahead, and waits, when the caller ends it. */
static struct {
	struct io_ops ops;
	_Atomic uint64_t reads;
	uint64_t two;  /* reads of two windows */
	uint64_t good; /* the others fail */
} ahead;

static int64_t ahead_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	int64_t n = io_ops_posix.pread(ctx, fd, buf, len, off);

	return ahead.reads++ >= ahead.good ? -EIO : n;
}

static int refuse_when_ahead(void *arg, const struct window *w, const uint8_t *buf)
{
	(void)arg;
	(void)w;
	(void)buf;
	while (ahead.reads < ahead.two)
		sched_yield();
	/* What it does with the last of them, it does without a system call: almost always it has
	 * by now. */
	for (uint32_t i = 0; i < 3000; i++)
		sched_yield();
	return 77;
}

TEST(test_a_reader_that_waits_ends_with_its_caller)
{
	struct ckpt_err err = { 0 };
	struct windows *ws;
	struct window w;
	struct rig r;
	uint8_t *buf = malloc(move_window_bytes(LEAST));

	assert_non_null(buf);
	rig_make(&r, MANY);
	ahead.good = UINT64_MAX;
	ahead.ops = io_ops_posix;
	ahead.ops.pread = ahead_pread;
	r.f.ops = &ahead.ops;
	r.f.engine = IO_INLINE;
	r.f.buffer_bytes = LEAST / 4;
	assert_int_equal(windows_open(&r.dst, move_window_bytes(LEAST), &ws, &err), 0);
	for (int i = 0; i < 2; i++) {
		assert_int_equal(windows_next(ws, &w, &err), 1);
		assert_int_equal(move_window(&r.f, &w, buf, NULL, NULL, &err), 0);
		window_free(&w);
	}
	windows_close(ws);
	ahead.two = ahead.reads;
	for (int i = 0; i < 10; i++) {
		ahead.reads = 0;
		/* Every other time the last of them fails: what the caller says counts. */
		ahead.good = i % 2 ? ahead.two - 1 : UINT64_MAX;
		assert_int_equal(move_windows(&r.f, &r.dst, LEAST, 0, refuse_when_ahead, NULL, NULL,
					      NULL, &err),
				 77);
		assert_in_range(ahead.reads, ahead.two, 2 * ahead.two);
	}
	free(buf);
	rig_free(&r);
}

TEST(test_skipped_windows_are_passed_by)
{
	struct ckpt_err err;
	struct rig r;
	uint64_t n;

	rig_make(&r, MANY);
	n = count_windows(&r.dst, move_window_bytes(LEAST));
	for (uint64_t skip = 0; skip <= n + 1; skip += EVERY == 1 ? 3 : n) {
		r.s.windows = skip;
		r.s.cut_bytes = r.s.ticked = 0;
		assert_ok(move_windows(&r.f, &r.dst, LEAST, skip, take, &r.s, tick, &r.s, &err));
		assert_int_equal(r.s.windows, MAX(skip, n));
		assert_int_equal(r.s.cut_bytes, r.s.ticked);
	}
	rig_free(&r);
}

TEST(test_damage_in_a_chunk_is_EBADMSG_and_never_delivered)
{
	struct ckpt_err err = { 0 };
	struct rig r;

	rig_make(&r, SOME);
	for (uint32_t i = 0; i < r.c->nfile; i++) {
		const struct format_file *x = &r.c->file[i];
		uint64_t at = x->chunk[x->nchunk / 2].off + 5;
		int fd = openat(r.d.fd, x->name, O_RDWR);
		uint8_t b;

		assert_int_equal(pread(fd, &b, 1, (off_t)at), 1);
		b ^= 1;
		assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
		assert_int_equal(rig_run(&r, &err), -EBADMSG);
		assert_non_null(strstr(err.msg, x->name));
		assert_int_equal(rig_run(&r, NULL), -EBADMSG);
		b ^= 1;
		assert_int_equal(pwrite(fd, &b, 1, (off_t)at), 1);
		close(fd);
	}
	/* Buffers that are smaller still only read more often. */
	r.f.buffer_bytes = 1 << 20;
	assert_int_equal(rig_run(&r, &err), 0);
	r.f.buffer_bytes = UINT64_MAX / 2;
	assert_int_equal(rig_run(&r, &err), 0);
	rig_free(&r);
}

TEST(test_what_the_source_lacks_is_said)
{
	struct table_tensor x = ROW(.component = "no", .name = "where", .of = "", .dtype = CKPT_U8,
				    .layout = TABLE_NONE, .rank = TABLE_NONE);
	struct table t = { 0 };
	struct ckpt_err err = { 0 };
	struct rig r;

	rig_make(&r, SOME);
	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	assert_ok(
		table_add_place(&t, &(struct table_place){ .name = "p", .bytes = 1 }, NULL, &err));
	assert_ok(table_add_piece(&t, &(struct table_piece){ .set = { .numel = 1 } }, &err));
	assert_int_equal(table_seal(&t, &err), 0);
	assert_int_equal(move_windows(&r.f, &t, LEAST, 0, take, &r.s, tick, &r.s, &err),
			 -EMEDIUMTYPE);
	assert_non_null(strstr(err.msg, "no/where"));
	table_free(&t);
	rig_free(&r);
}

TEST(test_too_little_memory_is_refused_with_the_least)
{
	struct ckpt_err err = { 0 };
	struct rig r;

	rig_make(&r, SOME);
	assert_int_equal(move_window_bytes(LEAST - 1), 0);
	assert_int_equal(move_windows(&r.f, &r.dst, LEAST - 1, 0, take, &r.s, tick, &r.s, &err),
			 -EINVAL);
	assert_non_null(strstr(err.msg, "16 MiB"));
	for (uint64_t limit = LEAST; limit < UINT64_C(1) << 40; limit += limit / 3)
		assert_true(2 * move_window_bytes(limit) + MIN(limit / 4, 32u << 20) <= limit);
	rig_free(&r);
}

/* Also among windows that are passed by. */
TEST(test_an_element_in_more_places_than_fit_a_window_is_refused)
{
	uint64_t one = 1, zero = 0, n = move_window_bytes(LEAST) / 16 + 1;
	struct table_tensor x =
		ROW(.component = "m", .name = "w", .of = "", .dtype = CKPT_C128,
		    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 1, .shape = &one);
	struct table_place place = { .name = "p", .bytes = n * 16 };
	struct table_piece p = { .tensor = 0 };
	struct table t = { 0 };
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct rig r;

	assert_int_equal(table_add_tensor(&t, &x, NULL, &err), 0);
	assert_int_equal(table_add_place(&t, &place, NULL, &err), 0);
	assert_int_equal(indexset_box(1, &zero, &one, &a, &p.set), 0);
	for (; p.off < place.bytes; p.off += 16)
		assert_int_equal(table_add_piece(&t, &p, &err), 0);
	assert_int_equal(table_seal(&t, &err), 0);
	rig_make(&r, SOME);
	for (uint64_t skip = 0; skip < 2; skip++) {
		err.msg[0] = 0;
		assert_int_equal(move_windows(&r.f, &t, LEAST, skip, take, &r.s, tick, &r.s, &err),
				 -E2BIG);
		assert_non_null(strstr(err.msg, "m/w: one element for all its places"));
		assert_int_equal(r.s.windows, 0);
	}
	rig_free(&r);
	table_free(&t);
	arena_free(&a);
}

static int without_threads(void *arg)
{
	struct rig *r = arg;
	struct ckpt_err err;

	r->f.engine = IO_INLINE;
	if (move_windows(&r->f, &r->dst, LEAST, 0, take, &r->s, tick, &r->s, &err) < 0)
		return 1;
	for (uint32_t i = 0; i < r->dst.npiece; i++) {
		const struct table_piece *p = &r->dst.piece[i];

		if (memcmp(r->s.place[p->place] + p->off, r->j.raw[p->place] + p->off, p->len))
			return 2;
	}
	if (r->s.ticked != r->s.cut_bytes)
		return 3;
	/* What the caller says, and what the file says, is what ends it. */
	r->s.windows = 0;
	r->s.fail_at = 1;
	r->s.fail_with = 77;
	if (move_windows(&r->f, &r->dst, LEAST, 0, take, &r->s, tick, &r->s, &err) != 77)
		return 4;
	r->s.windows = 0;
	r->s.fail_at = 0;
	((struct chunk *)(uintptr_t)r->c->file[0].chunk)->raw_hash.b[0] ^= 1;
	if (move_windows(&r->f, &r->dst, LEAST, 0, take, &r->s, tick, &r->s, &err) != -EBADMSG)
		return 5;
	return 0;
}

TEST(test_without_threads_it_is_only_slower)
{
	struct rig r;
	int code;

#if defined(__SANITIZE_THREAD__)
	print_message("skipped: ThreadSanitizer ends a program that cannot start threads\n");
	skip();
#endif
	rig_make(&r, SOME);
	code = deny_run(SYS_clone3, EAGAIN, without_threads, &r);
	if (code == DENY_NOT_POSSIBLE) {
		rig_free(&r);
		print_message("skipped: no seccomp filter can be installed here\n");
		skip();
	}
	assert_int_equal(code, 0);
	rig_free(&r);
}

TEST(test_one_window_is_read_alone)
{
	struct windows *ws;
	struct window w;
	struct ckpt_err err;
	struct rig r;
	uint8_t *buf;

	rig_make(&r, MANY);
	assert_int_equal(windows_open(&r.dst, 5u << 20, &ws, &err), 0);
	assert_int_equal(windows_skip(ws, 2, &err), 0);
	assert_int_equal(windows_next(ws, &w, &err), 1);
	buf = malloc(w.bytes);
	assert_int_equal(move_window(&r.f, &w, buf, NULL, NULL, &err), 0);
	for (uint32_t i = 0; i < w.ncut; i++)
		assert_true(!memcmp(buf + w.cut[i].buf_off,
				    r.j.raw[w.cut[i].place] + w.cut[i].dst_off, w.cut[i].len));
	free(buf);
	window_free(&w);
	windows_close(ws);
	rig_free(&r);
}
