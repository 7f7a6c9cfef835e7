/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_const_rig.h - a job with const tensors and what lies of them on the disk, for
 * test_daemon_const.c and test_daemon_rot.c. The library and the daemon in one process; the only
 * const tensor of the plan is "table", which one rank writes.
 */
#ifndef TESTS_UNIT_TEST_DAEMON_CONST_RIG_H
#define TESTS_UNIT_TEST_DAEMON_CONST_RIG_H
#include "ckpt/client/handle.h"
#include "ckpt/store/store.h"
#include "daemon/state.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include "formats/native/native.h"
#include <inttypes.h>

#define OTHER 0x5a
#define FROZEN_MIB 5u

static struct plan_of_job P;

/* --- what the trainer has --- */
static inline bool other_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	const uint8_t *with = arg;

	rank_fill_one(t, p, g, &(uint64_t){ 0 });
	for (uint32_t i = 0; i < t->elem; i++)
		p[i] ^= *with;
	return true;
}

static inline bool is_other_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	uint8_t want[16], *at = p;

	(void)other_one(t, want, g, arg);
	return memcmp(at, want, t->elem) == 0;
}

/* The values of the const tensor: as the rig has them, xor with. */
static inline void table_set(struct rank *k, uint8_t with)
{
	(void)rank_each(&k->t[rank_tensor_find(k, "table")], other_one, &with);
}

static inline bool table_is(struct rank *k, uint8_t with)
{
	return rank_each(&k->t[rank_tensor_find(k, "table")], is_other_one, &with);
}

static inline int try_mark(struct rank *k, uint64_t step, uint8_t with)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_PERSIST };

	must_guard(k);
	rank_fill(k, step);
	table_set(k, with);
	return ckpt_snapshot(k->c, step, &m);
}

static inline void mark_with(struct rank *k, uint64_t step, uint8_t with)
{
	must_soon(rank_took(try_mark(k, step, with)));
}

static inline void save_with(struct rank *k, uint64_t step, uint8_t with)
{
	mark_with(k, step, with);
	must_wait(k, step, CKPT_COMMITTED);
	must_guard(k);
}

/* A new launch of the job, with this step. */
static inline void go_on(struct rank *k, uint64_t step, uint32_t flags)
{
	rank_close(k, 0);
	*k = (struct rank){ 0 };
	rank_open(k, &P, 0);
	rank_clear(k);
	must_restore(k, step, flags);
}

/* --- what lies on the disk --- */
struct seen {
	uint32_t n;    /* const parts */
	uint64_t step; /* for which the first one was written */
	uint64_t ino, links, bytes;
	char name[40];
};

/* Of a committed step, every byte of which is right. */
static inline struct seen seen_in(uint64_t step)
{
	struct checkpoint *c = host_open(&H, "job", step);
	cleanup_close int fd = host_step_fd(&H, "job", step);
	struct seen ret = { 0 };
	uint64_t linked = 0;

	for (uint32_t i = 0; i < c->nfile; i++) {
		const struct format_file *f = &c->file[i];
		struct stat st;

		MUST((f->kind == PART_CONST) == (i >= c->world));
		linked += f->step != step ? f->file_bytes : 0;
		if (f->kind != PART_CONST)
			continue;
		MUST(fstatat(fd, f->name, &st, 0) == 0);
		if (ret.n++)
			continue;
		ret.step = f->step;
		ret.ino = st.st_ino;
		ret.links = st.st_nlink;
		ret.bytes = (uint64_t)st.st_size;
		snprintf(ret.name, sizeof ret.name, "%s", f->name);
	}
	MUST_BE(c->linked_bytes, linked);
	checkpoint_free(c);
	return ret;
}

static inline void assert_linked(uint64_t step, uint64_t from)
{
	struct seen a = seen_in(step), b = seen_in(from);

	assert_true(a.n == 1 && b.n == 1);
	assert_int_equal(a.step, b.step);
	assert_int_equal(a.ino, b.ino);
	assert_true(a.links > 1);
}

static inline void assert_fresh(uint64_t step)
{
	struct seen a = seen_in(step);

	assert_int_equal(a.n, 1);
	assert_int_equal(a.step, step);
}

static inline void assert_all_whole(uint32_t n)
{
	uint64_t step[64];

	assert_int_equal(host_committed(&H, "job", step, 64), n);
}

/* As a library may that does not refuse it: the daemon does not. */
static inline void restore_late(struct rank *k, uint64_t step, uint32_t flags)
{
	canary_off(&k->c->canary); /* the memory is to change */
	k->c->snapped = false;
	must_restore(k, step, flags);
	k->c->snapped = true;
}

static inline uint8_t frozen_byte(uint64_t i)
{
	return (uint8_t)(i * 2654435761u >> 13);
}

/* One more const tensor of so many bytes, frozen/w, sealed. Returns its memory. */
static inline uint8_t *frozen_declare(struct rank *k, const uint64_t bytes)
{
	static const struct ckpt_placement whole = { .how = CKPT_REPLICATE };
	struct ckpt_local local = { 0 };
	struct ckpt_tensor t = ROW(.size = sizeof t, .cls = CKPT_CONST, .dtype = CKPT_U8,
				   .component = "frozen", .name = "w", .ndim = 1, .shape = &bytes,
				   .nplace = 1, .place = &whole, .nlocal = 1, .local = &local);
	uint8_t *p;

	MUST_OF(k, ckpt_alloc(k->c, bytes, &local.ptr, &k->err));
	t.mesh = k->mesh_id;
	MUST_OF(k, ckpt_tensor_add(k->c, &t, NULL, &k->err));
	must_seal(k);
	p = local.ptr;
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = frozen_byte(i);
	return p;
}

/* A bit of the file that the step has, on the disk and in the page cache. */
static inline void damage(uint64_t step, uint64_t at)
{
	struct seen s = seen_in(step);
	cleanup_close int dir = host_step_fd(&H, "job", step), fd = -1;
	struct timespec times[2];
	struct stat st;
	uint8_t b = 0;

	fd = openat(dir, s.name, O_RDWR | O_CLOEXEC);
	MUST(fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &b, 1, (off_t)at) == 1);
	b ^= 1;
	MUST(pwrite(fd, &b, 1, (off_t)at) == 1);
	/* a device that forgets changes no time */
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	MUST(futimens(fd, times) == 0);
}
#endif
