/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_write.c - see bench_write.h. Called by bench_main.c.
 * Invariant: both ways write from the same memory through the same queue with the same blocks.
 */
#include "bench_write.h"
#include "bench_job.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "daemon/part_file.h"
#include "ckpt/move/round.h"

#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define READS_BYTES (256 * MIB) /* more than any cache */
#define LARGE 96u		/* tensors, where nobody says how many */

static uint64_t cpu_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return ((uint64_t)u.ru_utime.tv_sec + (uint64_t)u.ru_stime.tv_sec) * NS_PER_S +
	       ((uint64_t)u.ru_utime.tv_usec + (uint64_t)u.ru_stime.tv_usec) * 1000;
}

/* Tensor i of a state: FP32 alone, or in turn a BF16 parameter, its master and two moments. */
static const struct kind {
	const char *component, *suffix;
	uint32_t dtype, role, bytes;
} plain = { "model", "", CKPT_F32, CKPT_PARAM, 4 }, mixed[] = {
	{ "model", "", CKPT_BF16, CKPT_PARAM, 2 },
	{ "optim", ".master", CKPT_F32, CKPT_MASTER, 4 },
	{ "optim", ".exp_avg", CKPT_F32, CKPT_MOMENT1, 4 },
	{ "optim", ".exp_avg_sq", CKPT_F32, CKPT_MOMENT2, 4 },
};

/* One rank's part of tensors of equal numbers of elements. cls: of the parameters. */
static void part_make(uint64_t bytes, uint32_t tensors, bool is_mixed, uint32_t cls,
		      struct table *ret)
{
	struct table_place mem = { .name = "memory", .bytes = bytes };
	struct ckpt_errlist list = { .code = -EINVAL };
	uint64_t words = is_mixed ? bytes / tensors * 4 / 14 : bytes / tensors / 4, zero = 0,
		 at = 0;
	struct layout replicated = { 0 };
	struct table decl = { 0 };
	struct arena a = { 0 };
	struct mesh mesh;
	int rc = mesh_parse("fsdp=1", &a, &mesh, NULL);

	rc = rc ? rc : table_add_mesh(&decl, &mesh, NULL, NULL);
	rc = rc ? rc : table_add_layout(&decl, &replicated, NULL, NULL);
	rc = rc ? rc : table_add_place(&decl, &mem, NULL, NULL);
	for (uint32_t i = 0; i < tensors && !rc; i++) {
		const struct kind *k = is_mixed ? &mixed[i % 4] : &plain;
		char name[40], of[48];
		struct table_tensor x = { .component = k->component,
					  .name = name,
					  .of = of,
					  .dtype = k->dtype,
					  .role = k->role,
					  .cls = k->role == CKPT_PARAM ? cls : CKPT_STABLE,
					  .rank = TABLE_NONE,
					  .ndim = 1,
					  .shape = &words };
		struct table_piece p = { .off = at };

		at += words * k->bytes;
		snprintf(name, sizeof name, "tensor.%u%s", is_mixed ? i / 4 : i, k->suffix);
		snprintf(of, sizeof of,
			 k->role == CKPT_PARAM ? "optim/%s.master" : "model/tensor.%.0s%u", name,
			 i / 4);
		rc = table_add_tensor(&decl, &x, &p.tensor, NULL);
		rc = rc ? rc : indexset_box(1, &zero, &words, &a, &p.set);
		rc = rc ? rc : table_add_piece(&decl, &p, NULL);
	}
	rc = rc ? rc : table_seal(&decl, NULL);
	rc = rc ? rc : native_part_table(&decl, 0, ret, &list, NULL);
	if (rc)
		die("the part cannot be declared: %s", strerror(-rc));
	ckpt_errlist_free(&list);
	table_free(&decl);
	arena_free(&a);
}

/* Every BF16 parameter becomes the rounding of its master, of which none is a NaN. */
static void round_masters(const struct table *t, uint8_t *raw)
{
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		char key[TABLE_KEY_BYTES];
		uint32_t *word, m;

		if (t->tensor[p->tensor].dtype != CKPT_BF16)
			continue;
		m = table_find_key(t, t->tensor[p->tensor].of);
		if (m == TABLE_NONE)
			die("%s has no master", table_key(&t->tensor[p->tensor], key));
		word = (uint32_t *)(void *)(raw + t->piece[t->first[m]].off);
		for (uint64_t k = 0; k < p->set.numel; k++)
			word[k] &= 0xbfffffff;
		round_f32(CKPT_BF16, word, raw + p->off, p->set.numel);
	}
}

static void write_check(const struct io_req *r)
{
	if (r->res < 0)
		die("a write failed: %s", strerror(-(int)r->res));
}

static void raw_write(struct io_queue *q, int fd, uint8_t *raw, uint64_t bytes)
{
	struct io_req req[CHUNK_QUEUE_BYTES / MOVE_BLOCK], *r;
	uint32_t used = 0;

	for (uint64_t at = 0; at < bytes; at += MOVE_BLOCK) {
		if (used < ARRAY_LEN(req)) {
			r = &req[used++];
		} else {
			r = io_reap(q);
			write_check(r);
		}
		*r = (struct io_req){ .fd = fd,
				      .write = true,
				      .buf = raw + at,
				      .len = MIN(bytes - at, (uint64_t)MOVE_BLOCK),
				      .off = at };
		io_submit(q, r);
	}
	while ((r = io_reap(q)))
		write_check(r);
}

static atomic_bool reads_begun, reads_end;

static void *memory_reads(void *arg)
{
	uint8_t *p = pages_new(READS_BYTES);
	uint64_t sum = 0;

	(void)arg;
	if (!p)
		die("no memory to read");
	memset(p, 1, READS_BYTES);
	atomic_store(&reads_begun, true); /* all of it is touched */
	while (!atomic_load(&reads_end))
		for (uint64_t at = 0; at < READS_BYTES; at += MIB)
			sum += hash128(p + at, MIB).b[0];
	__asm__ volatile("" : : "r"(sum));
	pages_free(p, READS_BYTES);
	return NULL;
}

/* A disk that is faster than everything else. */
static int64_t sink_write(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	(void)ctx;
	(void)fd;
	(void)buf;
	(void)off;
	return (int64_t)len;
}

void bench_write(const char *how, const char *dir, uint64_t bytes, uint32_t tensors)
{
	const struct native_info info = { .job = "write", .step = 1, .generation = 1, .world = 1 };
	struct io_ops ops = io_ops_posix;
	struct part_file_opts opts = { .ops = &ops };
	uint64_t whole, wall, cpu, seed = 1,
				   state = 0; /* state: without what lies between its tensors */
	bool derived = !strcmp(how, "derived"), is_mixed = derived || !strcmp(how, "stored");
	bool two = !strcmp(how, "sink2"), sink = two || !strcmp(how, "sink"),
	     sums = is_mixed || sink || !strcmp(how, "sums");
	struct native_part part = { 0 };
	struct io_queue *q = NULL;
	struct ckpt_err e = { 0 };
	char name[4096];
	pthread_t reads;
	struct table t;
	uint64_t *raw;
	int fd, rc;

	part_make(bytes, tensors ? tensors : LARGE, is_mixed, derived ? CKPT_DERIVED : CKPT_STABLE,
		  &t);
	whole = align_up(t.place[0].bytes, 4096);
	for (uint32_t i = 0; i < t.npiece; i++)
		state += t.piece[i].len;
	raw = pages_new(whole);
	if (!raw)
		die("no memory for %" PRIu64 " bytes", whole);
	for (uint64_t i = 0; i < whole / 8; i++) {
		seed += UINT64_C(0x9e3779b97f4a7c15);
		raw[i] = seed * (seed >> 32 | 1);
	}
	if (is_mixed)
		round_masters(&t, (uint8_t *)raw);
	snprintf(name, sizeof name, "%s/write.part", dir);
	fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
	if (fd < 0 || fallocate(fd, 0, 0, (off_t)native_part_bytes_max(&t, 0)))
		die("%s cannot be made: %s", name, strerror(errno));
	if (!sums && io_queue_open(&io_ops_posix, IO_AUTO, CHUNK_QUEUE_DEPTH, &q, &e))
		die("%s", e.msg);
	if (!strcmp(how, "beside")) {
		if (pthread_create(&reads, NULL, memory_reads, NULL))
			die("cannot start a thread");
		while (!atomic_load(&reads_begun))
			sched_yield();
	}
	if (sink) {
		ops.pwrite = sink_write;
		opts.engine = IO_INLINE;
		opts.nhelper = two;
	}
	wall = now_ns();
	cpu = cpu_ns();
	if (sums && part_file_write(&opts, fd, raw, &t, &info, 0, &part, &e))
		die("%s", e.msg);
	if (!sums)
		raw_write(q, fd, (uint8_t *)raw, whole);
	rc = io_ops_posix.sync(NULL, fd);
	if (rc)
		die("%s cannot be synced: %s", name, strerror(-rc));
	printf("wall %" PRIu64 "\ncpu %" PRIu64 "\nbytes %" PRIu64 "\nstate %" PRIu64
	       "\nwritten %" PRIu64 "\n",
	       now_ns() - wall, cpu_ns() - cpu, whole, state, sums ? part.file_bytes : whole);
	if (!strcmp(how, "beside")) {
		atomic_store(&reads_end, true);
		pthread_join(reads, NULL);
	}
	io_queue_close(q);
	close(fd);
	unlink(name);
	pages_free(raw, whole);
	table_free(&t);
}
