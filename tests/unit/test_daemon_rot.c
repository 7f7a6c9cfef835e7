/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_rot.c - a disk that changes the bytes of a const part, which many steps share: it is
 * found by the steps that link the part, named, and written anew; and what has such a file still
 * loads. The disk is a table of calls between the daemon and the file system: reads past the page
 * cache get what is on the disk, all others what the cache still has.
 */
#include "ckpt/store/label.h"
#include "tests/lib/draw.h"
#include "tests/unit/test_daemon_const_rig.h"
#include <sys/mman.h>

#define SEEN_MAX 4096u

/* --- the disk --- */
static struct {
	struct io_ops ops;
	pthread_mutex_t lock; /* protects all below */
	uint64_t ino, off;    /* of the rotten byte; ino 0: there is none */
	int code;	      /* its read fails with this; 0: it gets another byte */
	bool no_direct, full;
	uint64_t watched; /* the file whose reads are noted */
	struct {
		uint64_t off, len, cached; /* cached: bytes that the page cache had */
	} seen[SEEN_MAX];
	uint32_t nseen;
} disk = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int disk_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	bool refused;

	(void)pthread_mutex_lock(&disk.lock);
	refused = disk.no_direct && flags & O_DIRECT;
	(void)pthread_mutex_unlock(&disk.lock);
	return refused ? -EINVAL : host_ops.open(ctx, dirfd, name, flags, mode);
}

/* Bytes of these that the page cache has. */
static uint64_t cached_bytes(int fd, uint64_t off, uint64_t len)
{
	uint8_t page[MIB / 4096];
	uint64_t n = 0;
	void *p;

	if (off % 4096 || len > MIB)
		return UINT64_MAX;
	p = mmap(NULL, len, PROT_READ, MAP_SHARED, fd, (off_t)off);
	MUST(p != MAP_FAILED && mincore(p, len, page) == 0);
	for (uint64_t i = 0; i < div_up(len, UINT64_C(4096)); i++)
		n += page[i] & 1 ? 4096 : 0;
	(void)munmap(p, len);
	return n;
}

static int64_t disk_pread(void *ctx, int fd, void *buf, uint64_t len, uint64_t off)
{
	struct stat st;
	int64_t n;

	MUST(fstat(fd, &st) == 0);
	(void)pthread_mutex_lock(&disk.lock);
	if (st.st_ino == disk.watched && disk.nseen < SEEN_MAX) {
		disk.seen[disk.nseen].off = off;
		disk.seen[disk.nseen].len = len;
		disk.seen[disk.nseen++].cached = cached_bytes(fd, off, len);
	}
	n = host_ops.pread(ctx, fd, buf, len, off);
	if (n > 0 && st.st_ino == disk.ino && disk.off >= off && disk.off < off + (uint64_t)n &&
	    (io_fd_direct(fd) || disk.no_direct)) {
		if (disk.code)
			n = disk.code;
		else
			((uint8_t *)buf)[disk.off - off] ^= 0x10;
	}
	(void)pthread_mutex_unlock(&disk.lock);
	return n;
}

static int disk_sync(void *ctx, int fd)
{
	int rc;

	(void)ctx;
	(void)pthread_mutex_lock(&disk.lock);
	rc = disk.full ? -ENOSPC : disk.no_direct ? io_ops_posix.sync(NULL, fd) : 0;
	(void)pthread_mutex_unlock(&disk.lock);
	return rc;
}

static void full(bool is)
{
	(void)pthread_mutex_lock(&disk.lock);
	disk.full = is;
	(void)pthread_mutex_unlock(&disk.lock);
}

/* The byte of the file that this step has is another one on the disk from now on. */
static void rot(uint64_t step, uint64_t off, int code)
{
	struct seen s = seen_in(step);

	assert_true(off < s.bytes);
	(void)pthread_mutex_lock(&disk.lock);
	disk.ino = s.ino;
	disk.off = off;
	disk.code = code;
	(void)pthread_mutex_unlock(&disk.lock);
}

static void heal(void)
{
	(void)pthread_mutex_lock(&disk.lock);
	disk.ino = 0;
	(void)pthread_mutex_unlock(&disk.lock);
}

static void watch(uint64_t ino)
{
	(void)pthread_mutex_lock(&disk.lock);
	disk.watched = ino;
	disk.nseen = 0;
	(void)pthread_mutex_unlock(&disk.lock);
}

static uint32_t reads_seen(void)
{
	uint32_t n;

	(void)pthread_mutex_lock(&disk.lock);
	n = disk.nseen;
	(void)pthread_mutex_unlock(&disk.lock);
	return n;
}

static int setup(void **state)
{
	(void)host_setup(state);
	disk.ops = host_ops;
	disk.ops.open = disk_open;
	disk.ops.pread = disk_pread;
	disk.ops.sync = disk_sync;
	disk.no_direct = disk.full = false;
	heal();
	watch(0);
	P = plan("job", "fsdp=1");
	return 0;
}

static void start(void)
{
	host_start(&H, &disk.ops);
}

/* A copy of the daemon's, as it stays until the next step when the log has said that this one is
 * committed; its units are the daemon's. */
static struct const_file const_file_of(uint64_t step)
{
	struct const_file f;
	char said[64];

	snprintf(said, sizeof said, " step %" PRIu64 " committed (", step);
	assert_soon(said_times(&daemon_said, said) >= 1);
	f = H.d->jobs->launch->constant[0].file;
	(void)reads_seen(); /* which the next step's reads come after */
	return f;
}

static uint32_t rotation(uint64_t step)
{
	const struct const_file f = const_file_of(step);

	return const_file_rotation(&f);
}

/* Steps from *step on, until one has a file of its own; at most `most` of them. */
static void save_until_fresh(uint64_t *step, uint64_t most)
{
	for (uint64_t n = 0; n < most; n++) {
		uint64_t before = seen_in(*step - 1).ino;

		save_with(&K, (*step)++, 0);
		if (seen_in(*step - 1).ino != before)
			return;
	}
	fail_msg("%" PRIu64 " steps share a rotten file", most);
}

/* --- (a) what commits read --- */
#define SAID "damaged file of frozen weights: byte "

static uint64_t tail_at(const struct seen *s)
{
	const struct const_file f = const_file_of(s->step);
	uint32_t i = f.nunit;
	uint64_t off;

	while (i > 1 && f.unit[i - 1].chunk == TABLE_NONE)
		i--;
	off = f.unit[i].off;
	(void)reads_seen();
	return off;
}

static uint64_t head_from(const struct seen *s)
{
	(void)s;
	return 0;
}

static uint64_t data_from(const struct seen *s)
{
	(void)s;
	return NATIVE_DATA_OFF;
}

/* Before the table: frozen/w, which is all of the first chunks. */
static uint64_t data_to(const struct seen *s)
{
	(void)s;
	return NATIVE_DATA_OFF + FROZEN_MIB * MIB;
}

static uint64_t trailer_from(const struct seen *s)
{
	return s->bytes - CONTAINER_BLOCK;
}

static uint64_t file_to(const struct seen *s)
{
	return s->bytes;
}

/* In which of the file's areas the byte is. */
static const struct area {
	const char *called;
	uint64_t (*from)(const struct seen *s), (*to)(const struct seen *s);
} areas[] = {
	{ "its header", head_from, data_from },
	{ "frozen/w", data_from, data_to },
	{ "its sections", tail_at, trailer_from },
	{ "its sections", trailer_from, file_to },
};

TEST(a_byte_that_rots_below_the_page_cache_is_found_and_named_within_one_rotation)
{
	uint64_t step = 2;
	uint64_t rng = draw_seed("daemon_rot");
	char said[160];

	start();
	rank_open(&K, &P, 0);
	(void)frozen_declare(&K, FROZEN_MIB * MIB);
	save_with(&K, 1, 0);
	for (uint32_t i = 0; i < ARRAY_LEN(areas); i++) {
		struct seen s = seen_in(step - 1);
		uint64_t first = s.step, from = areas[i].from(&s), at;

		for (uint64_t n = draw_below(&rng, 4); n > 0; n--)
			save_with(&K, step++, 0);
		at = from + draw_below(&rng, areas[i].to(&s) - from);
		rot(step - 1, at, 0);
		save_until_fresh(&step, rotation(step - 1));
		snprintf(said, sizeof said, SAID "%" PRIu64 " of step-%012" PRIu64, at, step - 2);
		/* A byte of a chunk; of what else there is, where the hash begins. */
		if (i != 1)
			snprintf(said, sizeof said, " of step-%012" PRIu64, step - 2);
		assert_soon(said_times(&daemon_said, said) >= 1);
		snprintf(said, sizeof said, "(%s, rank 0) is not what was written; ",
			 areas[i].called);
		assert_true(said_times(&daemon_said, said) >= 1);
		snprintf(said, sizeof said, "from %" PRIu64 " to %" PRIu64 "; it is written again",
			 first, step - 2);
		assert_soon(said_times(&daemon_said, said) == 1);
		heal();
		/* The steps that have it are named as damaged; the newest one is not. */
		assert_int_equal(host_count(&H, "job", STORE_QUARANTINED), step - 2);
		(void)rotation(step - 1);
		assert_int_equal(H.d->jobs->tally.error_step, step);
		/* and that is no news which makes another file */
		save_with(&K, step++, 0);
		assert_linked(step - 1, step - 2);
	}
	assert_int_equal(said_times(&daemon_said, SAID), ARRAY_LEN(areas));
}

TEST(one_rotation_reads_every_byte_of_the_file_and_one_mib_a_commit)
{
	cleanup_free uint8_t *read = NULL;
	uint64_t step = 2;
	uint32_t n, before = 0;
	struct seen s;

	start();
	rank_open(&K, &P, 0);
	(void)frozen_declare(&K, FROZEN_MIB * MIB + 12345);
	save_with(&K, 1, 0);
	s = seen_in(1);
	n = rotation(1);
	assert_true(n >= s.bytes / MIB && n <= s.bytes / MIB + 4);
	for (uint32_t round = 0; round < 2; round++) {
		watch(s.ino);
		read = calloc(s.bytes, 1);
		for (uint32_t i = 0; i < n; i++) {
			uint64_t bytes = 0;

			uint32_t seen;

			before = reads_seen();
			save_with(&K, step++, 0);
			seen = reads_seen();
			for (uint32_t k = before; k < seen; k++) {
				memset(read + disk.seen[k].off, 1, disk.seen[k].len);
				bytes += disk.seen[k].len;
			}
			assert_true(seen > before && bytes <= MIB);
		}
		for (uint64_t i = 0; i < s.bytes; i++)
			assert_true(read[i]);
		free(TAKE(read));
	}
	assert_linked(step - 1, 1);
}

TEST(where_o_direct_is_refused_the_page_cache_has_forgotten_what_is_read)
{
	uint64_t step = 2;
	struct seen s;

	start();
	disk.no_direct = true;
	rank_open(&K, &P, 0);
	(void)frozen_declare(&K, FROZEN_MIB * MIB);
	save_with(&K, 1, 0);
	assert_int_equal(host_committed(&H, "job", NULL, 0), 1); /* so the cache has all of it */
	s = seen_in(1);
	watch(s.ino);
	for (; step < 5; step++)
		save_with(&K, step, 0);
	assert_true(reads_seen() >= 3);
	for (uint32_t i = reads_seen(); i-- > 0;)
		assert_int_equal(disk.seen[i].cached, 0);
	assert_soon(said_times(&daemon_said, "its file system refuses O_DIRECT, so") == 1);
	rot(step - 1, NATIVE_DATA_OFF + 3 * MIB + 77, 0);
	save_until_fresh(&step, rotation(step - 1));
}

TEST(a_file_that_cannot_be_read_is_written_again_and_its_steps_may_be_right)
{
	uint64_t step = 2;

	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	save_with(&K, step++, 0);
	rot(1, NATIVE_DATA_OFF + 9, -EIO);
	save_until_fresh(&step, 1);
	assert_soon(said_times(&daemon_said, " cannot be read (Input/output error); ") == 1);
	heal();
	assert_string_equal(host_steps(&H, "job"), "1 2 3");
	assert_linked(2, 1);
	save_with(&K, step++, 0);
	assert_linked(4, 3);
}

TEST(a_step_that_finds_it_and_fails_leaves_the_labels_to_the_next_one)
{
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	save_with(&K, 2, 0);
	rot(1, NATIVE_DATA_OFF + 9, 0);
	full(true);
	mark_with(&K, 3, 0);
	assert_int_equal(rank_wait(&K, 3, CKPT_COMMITTED), -ENOSPC);
	full(false);
	must_guard(&K);
	assert_string_equal(host_steps(&H, "job"), "1 2");
	save_with(&K, 4, 0);
	assert_fresh(4);
	assert_string_equal(host_steps(&H, "job"), "q1 q2 4");
	assert_int_equal(said_times(&daemon_said, SAID), 1);
}

/* The numbers of its steps may be those of others by then. */
TEST(a_job_that_goes_back_meanwhile_gets_no_label_on_its_new_steps)
{
	start();
	rank_open(&K, &P, 0);
	for (uint64_t step = 1; step <= 3; step++)
		save_with(&K, step, 0);
	rot(1, NATIVE_DATA_OFF + 9, 0);
	full(true);
	mark_with(&K, 4, 0);
	assert_int_equal(rank_wait(&K, 4, CKPT_COMMITTED), -ENOSPC);
	full(false);
	heal();
	must_guard(&K);
	restore_late(&K, 1, CKPT_FROM_DISK);
	save_with(&K, 2, 0);
	assert_fresh(2);
	assert_string_equal(host_steps(&H, "job"), "q1 2 ~2 ~3");
}

/* --- (b) how many share one --- */
TEST(no_more_than_64_steps_share_a_file_and_none_a_file_that_is_a_day_old)
{
	uint64_t step = 1;
	struct const_file f;

	start();
	rank_open(&K, &P, 0);
	for (; step <= 2 * CONST_STEPS_MAX + 2; step++)
		save_with(&K, step, 0);
	for (uint64_t i = 1; i < step; i++)
		assert_int_equal(seen_in(i).step, (i - 1) / CONST_STEPS_MAX * CONST_STEPS_MAX + 1);
	assert_int_equal(seen_in(1).links, CONST_STEPS_MAX);
	f = const_file_of(step - 1);
	assert_true(f.old_ns > now_ns() + CONST_AGE_NS / 2 && f.old_ns <= now_ns() + CONST_AGE_NS);
	f.nstep = 1;
	assert_true(const_file_may_share(&f, f.old_ns - 1));
	assert_false(const_file_may_share(&f, f.old_ns));
}

/* --- (c) what is damaged is taken from another step --- */

static void launch_next(void)
{
	if (K.c)
		rank_close(&K, 0);
	K = (struct rank){ 0 };
	rank_open(&K, &P, 0);
	rank_clear(&K);
}

/* Two launches, each with const parts of its own: steps 1, 2 and 3, 4. */
static void two_launches(uint8_t first, uint8_t second)
{
	for (uint64_t step = 1; step <= 3; step += 2) {
		launch_next();
		if (step > 1)
			must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
		save_with(&K, step, step > 1 ? second : first);
		save_with(&K, step + 1, step > 1 ? second : first);
		assert_fresh(step);
		assert_linked(step + 1, step);
	}
}

enum harm { BYTE_OF_DATA, HEADER, SECTIONS, TRAILER, CUT_SHORT, MISSING, HARMS };

static void harm(enum harm how, uint64_t step)
{
	struct seen s = seen_in(step);
	cleanup_close int dir = host_step_fd(&H, "job", step), fd = openat(dir, s.name, O_RDWR);
	const uint64_t at[] = { [BYTE_OF_DATA] = NATIVE_DATA_OFF + 10,
				[HEADER] = 100,
				[SECTIONS] = 2 * NATIVE_DATA_OFF + 5,
				[TRAILER] = s.bytes - 77 };

	MUST(fd >= 0);
	if (how == CUT_SHORT)
		MUST(ftruncate(fd, (off_t)(s.bytes / 2)) == 0);
	else if (how == MISSING)
		MUST(unlinkat(dir, s.name, 0) == 0);
	else
		damage(step, at[how]);
}

TEST(a_damaged_const_tensor_is_restored_from_another_launchs_step)
{
	start();
	for (uint32_t i = 0; i < 2 * HARMS; i++) {
		P.shared_only = i & 1;
		two_launches(0, 0);
		harm(i / 2, 4);
		launch_next();
		said_forget(&daemon_said);
		must_restore(&K, i % 4 < 2 ? CKPT_LATEST : 4, CKPT_FROM_DISK);
		assert_int_equal(K.got.step, 4);
		assert_true(rank_check(&K, 4) && table_is(&K, 0));
		/* The file that step 4 lacks has another name in step 3. */
		assert_soon(said_times(&daemon_said, i / 2 == MISSING
							     ? "model/table from step 3, "
							     : "model/table from step 2, ") == 1);
		/* It is the newest one still, and what follows is right. */
		save_with(&K, 5, 0);
		assert_fresh(5);
		assert_string_equal(host_steps(&H, "job"), "1 2 3 4 5");
		rank_close(&K, 0);
		K = (struct rank){ 0 };
		host_stop(&H);
		MUST(scratch_remove(H.store) == 0);
		start();
	}
}

static void frozen_save(struct rank *k)
{
	uint64_t step = *(const uint64_t *)k->arg;

	(void)frozen_declare(k, FROZEN_MIB * MIB);
	if (step > 1)
		must_restore(k, CKPT_LATEST, CKPT_FROM_DISK);
	save(k, step);
	save(k, step + 1);
}

static void frozen_check(struct rank *k)
{
	uint64_t step = *(const uint64_t *)k->arg, bytes = FROZEN_MIB * MIB;
	uint8_t *p = frozen_declare(k, bytes);

	rank_clear(k);
	memset(p, 0, bytes);
	must_restore(k, CKPT_LATEST, CKPT_FROM_DISK);
	MUST_BE(k->got.step, step);
	MUST(rank_check(k, step));
	for (uint64_t i = 0; i < bytes; i++)
		MUST(p[i] == frozen_byte(i));
}

/* Each rank writes another share of it, on each mesh. */
TEST(it_is_taken_from_a_step_of_another_mesh_by_the_ranks_of_a_third)
{
	start();
	P.shared_only = true;
	P.mesh = "fsdp=2";
	launch(&P, frozen_save, &(uint64_t){ 1 });
	P.mesh = "fsdp=3";
	launch(&P, frozen_save, &(uint64_t){ 3 });
	assert_int_equal(seen_in(4).n, 3);
	damage(4, NATIVE_DATA_OFF + 10);       /* of the table */
	damage(4, NATIVE_DATA_OFF + 4096 + 9); /* of frozen/w */
	P.mesh = "fsdp=4";
	launch(&P, frozen_check, &(uint64_t){ 4 });
	assert_soon(said_times(&daemon_said, "model/table and 1 more from step 2, ") == 1);
}

TEST(another_value_is_never_taken)
{
	start();
	two_launches(OTHER, 0);
	damage(4, NATIVE_DATA_OFF + 10);
	launch_next();
	assert_int_equal(rank_restore(&K, 4, CKPT_FROM_DISK), -EBADMSG);
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_int_equal(K.got.step, 2);
	assert_true(table_is(&K, OTHER));
}

TEST(damage_elsewhere_is_damage)
{
	start();
	two_launches(0, 0);
	damage(4, NATIVE_DATA_OFF + 10);
	host_damage(&H, "job", 4); /* the first main part */
	launch_next();
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_int_equal(K.got.step, 3); /* it has the damaged file, too */
	assert_true(rank_check(&K, 3) && table_is(&K, 0));
	assert_string_equal(host_steps(&H, "job"), "1 2 3 q4");
}

/* 4 and 5 go by the policy, but for one that was read back since 2 was not the one any more; 3 is
 * held, for it may have the only good file. */
static bool policy_is_obeyed(void)
{
	const char *now = host_steps(&H, "job");

	return !strcmp(now, "q2 3 6") || !strcmp(now, "q2 3 4 6") || !strcmp(now, "q2 3 5 6");
}

/* What hangs on a rotten file is named as damaged, stays, and can be had. */
TEST(quarantined_steps_of_a_rotten_file_load_from_the_part_that_was_written_anew)
{
	uint64_t step = 2;

	H.opts.policy.keep_last = 1;
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	mark_with(&K, step++, 0);
	must_wait(&K, 2, CKPT_COMMITTED);
	must_guard(&K);
	assert_soon(said_times(&daemon_said, "step 1 removed") == 1);
	damage(2, NATIVE_DATA_OFF + 10);
	save_with(&K, 3, 0);
	assert_fresh(3);
	for (step = 4; step <= 6; step++)
		save_with(&K, step, 0);
	assert_soon(policy_is_obeyed());
	for (uint64_t which = 2; which <= 6; which += which == 2 ? 1 : 3) {
		launch_next();
		must_restore(&K, which, CKPT_FROM_DISK);
		assert_true(rank_check(&K, which) && table_is(&K, 0));
	}
	launch_next();
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_int_equal(K.got.step, 6);
}

UNIT(.setup = setup, .teardown = host_teardown);
