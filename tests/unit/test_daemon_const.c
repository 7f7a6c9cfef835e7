/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_const.c - tensors of class const lie in a part of their own, which is written once
 * and linked by the steps behind it; and everything that makes the daemon write it again. The
 * library and the daemon in one process; the only const tensor of the job is "table", which one
 * rank writes.
 */
#include "ckpt/client/handle.h"
#include "ckpt/store/label.h"
#include "ckpt/store/store.h"
#include "daemon/state.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include "formats/native/native.h"
#include <inttypes.h>

#define OTHER 0x5a

static struct io_faults disk;
static _Atomic uint64_t free_bytes; /* that its file system says it has; 0: it says nothing */
static struct plan_of_job P;

static int d_space(void *ctx, int fd, struct io_space *ret)
{
	(void)ctx, (void)fd;
	*ret = (struct io_space){ .free_bytes = atomic_load(&free_bytes),
				  .total_bytes = atomic_load(&free_bytes) ? UINT64_C(1) << 40 : 0 };
	return 0;
}

static int setup(void **state)
{
	(void)host_setup(state);
	io_faults_init(&disk, &host_ops);
	disk.ops.space = d_space;
	atomic_store(&free_bytes, 0);
	P = plan("job", "fsdp=1");
	return 0;
}

static void start(void)
{
	host_start(&H, NULL);
}

/* host_start sets what lies below. */
static void start_faulty(void)
{
	host_start(&H, &disk.ops);
}

/* --- what the trainer has --- */
static bool other_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	const uint8_t *with = arg;

	rank_fill_one(t, p, g, &(uint64_t){ 0 });
	for (uint32_t i = 0; i < t->elem; i++)
		p[i] ^= *with;
	return true;
}

static bool is_other_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg)
{
	uint8_t want[16], *at = p;

	(void)other_one(t, want, g, arg);
	return memcmp(at, want, t->elem) == 0;
}

/* The values of the const tensor: as the rig has them, xor with. */
static void table_set(struct rank *k, uint8_t with)
{
	(void)rank_each(&k->t[rank_tensor_find(k, "table")], other_one, &with);
}

static bool table_is(struct rank *k, uint8_t with)
{
	return rank_each(&k->t[rank_tensor_find(k, "table")], is_other_one, &with);
}

static int try_mark(struct rank *k, uint64_t step, uint8_t with)
{
	struct ckpt_mark m = { .size = sizeof m, .flags = CKPT_PERSIST };

	must_guard(k);
	rank_fill(k, step);
	table_set(k, with);
	return ckpt_snapshot(k->c, step, &m);
}

static void mark_with(struct rank *k, uint64_t step, uint8_t with)
{
	must_soon(rank_took(try_mark(k, step, with)));
}

static void save_with(struct rank *k, uint64_t step, uint8_t with)
{
	mark_with(k, step, with);
	must_wait(k, step, CKPT_COMMITTED);
	must_guard(k);
}

/* A new launch of the job, with this step. */
static void go_on(struct rank *k, uint64_t step, uint32_t flags)
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
static struct seen seen_in(uint64_t step)
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

static void assert_linked(uint64_t step, uint64_t from)
{
	struct seen a = seen_in(step), b = seen_in(from);

	assert_true(a.n == 1 && b.n == 1);
	assert_int_equal(a.step, b.step);
	assert_int_equal(a.ino, b.ino);
	assert_true(a.links > 1);
}

static void assert_fresh(uint64_t step)
{
	struct seen a = seen_in(step);

	assert_int_equal(a.n, 1);
	assert_int_equal(a.step, step);
}

static void assert_all_whole(uint32_t n)
{
	uint64_t step[64];

	assert_int_equal(host_committed(&H, "job", step, 64), n);
}

/* --- written once --- */
TEST(a_const_tensor_is_written_once_and_linked)
{
	start();
	rank_open(&K, &P, 0);
	for (uint64_t step = 1; step <= 5; step++)
		save_with(&K, step, 0);
	assert_fresh(1);
	for (uint64_t step = 2; step <= 5; step++)
		assert_linked(step, 1);
	assert_int_equal(seen_in(1).links, 5);
	assert_all_whole(5);
	assert_soon(said_times(&daemon_said, ", linked ") == 4); /* behind what is told of it */
	go_on(&K, 3, CKPT_FROM_DISK);
	assert_true(rank_check(&K, 3) && table_is(&K, 0));
}

static void two_save(struct rank *k)
{
	uint64_t first = *(const uint64_t *)k->arg;

	for (uint64_t step = first; step < first + 3; step++)
		save(k, step);
}

static void two_check(struct rank *k)
{
	uint64_t step = *(const uint64_t *)k->arg;

	rank_clear(k);
	must_restore(k, step, CKPT_FROM_DISK);
	MUST(rank_check(k, step));
	MUST(rank_check_blobs(k, step, 4));
}

TEST(of_several_ranks_each_has_its_own_and_another_mesh_reads_them)
{
	uint64_t first = 1;

	start();
	launch_of(plan("job", "fsdp=2,tp=2"), two_save, &first);
	assert_fresh(1);
	assert_linked(3, 1);
	assert_all_whole(3);
	launch_of(plan("job", "fsdp=3"), two_check, &(uint64_t){ 3 });
}

TEST(every_launch_writes_it_once)
{
	start();
	for (uint64_t first = 1; first <= 4; first += 3) {
		rank_open(&K, &P, 0);
		if (first > 1)
			must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
		for (uint64_t step = first; step < first + 3; step++)
			save_with(&K, step, 0);
		rank_close(&K, 0);
		K = (struct rank){ 0 };
		assert_fresh(first);
		assert_linked(first + 2, first);
	}
	assert_all_whole(6);
}

/* --- what makes its bytes others --- */
TEST(a_new_epoch_writes_it_again)
{
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	save_with(&K, 2, 0);
	MUST_OF(&K, rank_tensor_declare(&K, RANK_SPECS - 1));
	must_seal(&K);
	save_with(&K, 3, 0); /* the same bytes: what is compared before a link finds nothing */
	save_with(&K, 4, 0);
	assert_linked(2, 1);
	assert_fresh(3);
	assert_linked(4, 3);
	go_on(&K, 4, CKPT_FROM_DISK | CKPT_LENIENT);
	assert_true(table_is(&K, 0));
}

/* As a library may that does not refuse it: the daemon does not. */
static void restore_late(struct rank *k, uint64_t step, uint32_t flags)
{
	canary_off(&k->c->canary); /* the memory is to change */
	k->c->snapped = false;
	must_restore(k, step, flags);
	k->c->snapped = true;
}

TEST(a_restore_writes_it_again)
{
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	MUST_OF(&K, rank_tensor_declare(&K, RANK_SPECS - 1));
	must_seal(&K);
	save_with(&K, 2, 0);
	save_with(&K, 3, 0);
	/* It brings back what step 1 had, which lacks a tensor of now; and the same bytes. */
	restore_late(&K, 1, CKPT_FROM_DISK | CKPT_LENIENT);
	assert_true(table_is(&K, 0));
	save_with(&K, 4, 0);
	assert_fresh(4);
	/* A dry run brings nothing. */
	restore_late(&K, 4, CKPT_FROM_DISK | CKPT_DRY_RUN);
	save_with(&K, 5, 0);
	assert_linked(5, 4);
	go_on(&K, 5, CKPT_FROM_DISK | CKPT_LENIENT);
	assert_true(table_is(&K, 0));
}

TEST(a_daemon_that_takes_a_step_over_writes_it_again)
{
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	mark_with(&K, 2, 0);
	must_wait(&K, 2, CKPT_COMMITTED);
	host_kill(&H);
	start();
	must_reattach(&K, 1);
	/* Both slots hold steps that it has taken over, until these are on disk. */
	assert_soon(said_times(&daemon_said, "step 2 committed") == 2);
	save_with(&K, 3, 0);
	assert_fresh(3);
	save_with(&K, 4, 0);
	assert_linked(4, 3);
	assert_all_whole(4);
}

/* --- a trainer that changes it all the same --- */
#define WARNING "const tensors have changed: "

TEST(a_const_tensor_that_changes_is_written_again_and_said_once_per_epoch)
{
	start();
	rank_open(&K, &P, 0);
	for (uint64_t step = 1; step <= 3; step++)
		save_with(&K, step, 0);
	save_with(&K, 4, OTHER);
	assert_linked(3, 1);
	assert_fresh(4);
	assert_soon(said_times(&daemon_said, WARNING
			       "model/table of rank 0 was last seen right in step 3,") == 1);
	assert_non_null(strstr(H.d->jobs->tally.error, WARNING "model/table"));
	assert_int_equal(H.d->jobs->tally.error_step, 4 + 1);
	save_with(&K, 5, OTHER);
	assert_linked(5, 4);
	save_with(&K, 6, 0);
	assert_fresh(6);
	assert_soon(said_times(&daemon_said, WARNING) == 1);
	MUST_OF(&K, rank_tensor_declare(&K, RANK_SPECS - 1));
	must_seal(&K);
	save_with(&K, 7, 0);
	save_with(&K, 8, OTHER);
	assert_fresh(8);
	assert_soon(said_times(&daemon_said, WARNING) == 2);
	go_on(&K, 5, CKPT_FROM_DISK | CKPT_LENIENT);
	assert_true(table_is(&K, OTHER));
	go_on(&K, 6, CKPT_FROM_DISK | CKPT_LENIENT);
	assert_true(table_is(&K, 0));
	go_on(&K, 8, CKPT_FROM_DISK | CKPT_LENIENT);
	assert_true(table_is(&K, OTHER));
	assert_all_whole(8);
}

TEST(a_step_that_fails_does_not_forget_that_it_has_changed)
{
	start_faulty();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	io_faults_fail(&disk, IO_ON_MUTATING, 1, -ENOSPC, true);
	mark_with(&K, 2, OTHER);
	assert_int_equal(rank_wait(&K, 2, CKPT_COMMITTED), -ENOSPC);
	io_faults_count(&disk, IO_ON_ANY);
	must_guard(&K);
	assert_soon(said_times(&daemon_said, WARNING) == 1);
	save_with(&K, 3, OTHER);
	assert_fresh(3);
	go_on(&K, 3, CKPT_FROM_DISK);
	assert_true(table_is(&K, OTHER));
}

#define FROZEN_MIB 5u

/* A byte of many: the words may miss it, but its MiB has its turn. */
TEST(one_byte_that_changes_is_seen_before_the_part_has_had_as_many_steps_as_mib)
{
	static const uint64_t bytes = FROZEN_MIB * MIB;
	static const struct ckpt_placement whole = { .how = CKPT_REPLICATE };
	struct ckpt_local local = { 0 };
	struct ckpt_tensor t = ROW(.size = sizeof t, .cls = CKPT_CONST, .dtype = CKPT_U8,
				   .component = "frozen", .name = "w", .ndim = 1, .shape = &bytes,
				   .nplace = 1, .place = &whole, .nlocal = 1, .local = &local);
	uint64_t step = 2, since;
	uint8_t *p;

	start();
	rank_open(&K, &P, 0);
	MUST_OF(&K, ckpt_alloc(K.c, bytes, &local.ptr, &K.err));
	t.mesh = K.mesh_id;
	MUST_OF(&K, ckpt_tensor_add(K.c, &t, NULL, &K.err));
	must_seal(&K);
	p = local.ptr;
	for (uint64_t i = 0; i < bytes; i++)
		p[i] = (uint8_t)(i * 2654435761u >> 13);
	for (uint64_t at = 0; at < bytes; at += bytes / 4 + 7) {
		save_with(&K, step++, 0);
		save_with(&K, step++, 0);
		assert_linked(step - 1, step - 2);
		p[at] ^= 1;
		since = step - 1;
		/* The part has what lies beside it, too. */
		do {
			save_with(&K, step++, 0);
		} while (seen_in(step - 1).step != step - 1 && step - since < 3 * FROZEN_MIB);
		assert_fresh(step - 1);
		assert_true(step - 1 - since <= FROZEN_MIB + 2);
	}
	assert_soon(said_times(&daemon_said, WARNING "frozen/w of rank 0 was last seen") == 1);
	assert_all_whole((uint32_t)(step - 2));
}

/* --- damage --- */
static void damage(uint64_t step)
{
	struct seen s = seen_in(step);
	cleanup_close int dir = host_step_fd(&H, "job", step), fd = -1;
	struct timespec times[2];
	struct stat st;
	uint8_t b = 0;

	fd = openat(dir, s.name, O_RDWR | O_CLOEXEC);
	MUST(fd >= 0 && fstat(fd, &st) == 0 && pread(fd, &b, 1, 4096 + 10) == 1);
	b ^= 1;
	MUST(pwrite(fd, &b, 1, 4096 + 10) == 1);
	/* a device that forgets changes no time */
	times[0] = st.st_atim;
	times[1] = st.st_mtim;
	MUST(futimens(fd, times) == 0);
}

/* As ckptctl verify does. */
static void quarantine(uint64_t step)
{
	struct store s = { .ops = &io_ops_posix,
			   .format = &format_native,
			   .job_fd = host_job_fd(&H, "job"),
			   .job = "job" };
	struct store_step *all;
	uint32_t n = host_scan(&H, "job", &all), i = 0;
	struct ckpt_err err = { 0 };

	while (i < n && all[i].step != step)
		i++;
	MUST(i < n);
	MUST_OK(store_label_set(&s, &all[i], LABEL_BAD, NULL, 0, "a test says so", &err), &err);
	free(all);
	(void)close(s.job_fd);
}

TEST(a_bad_mark_of_any_program_writes_it_again)
{
	start();
	rank_open(&K, &P, 0);
	for (uint64_t step = 1; step <= 3; step++)
		save_with(&K, step, 0);
	quarantine(2);
	save_with(&K, 4, 0);
	assert_fresh(4);
	save_with(&K, 5, 0); /* once */
	assert_linked(5, 4);
}

TEST(a_flipped_bit_in_a_shared_part_damages_each_step_that_names_it_and_no_later_one)
{
	H.opts.policy.keep_last = 2;
	start();
	rank_open(&K, &P, 0);
	for (uint64_t step = 1; step <= 3; step++)
		save_with(&K, step, 0);
	assert_soon(said_times(&daemon_said, "step 1 removed") == 1);
	assert_linked(3, 2);
	damage(2);
	save_with(&K, 4, 0); /* the same file; a check behind the commit finds it */
	assert_soon(said_times(&daemon_said, "and quarantined") == 1);
	save_with(&K, 5, 0);
	assert_fresh(5);
	assert_soon(said_times(&daemon_said, "step 5 read back and verified") == 1);
	rank_close(&K, 0);
	K = (struct rank){ 0 };
	rank_open(&K, &P, 0);
	for (uint64_t step = 2; step <= 4; step++) {
		bool there = host_has(&H, "job", step);
		int rc = there ? rank_restore(&K, step, CKPT_FROM_DISK) : -EBADMSG;

		/* The policy may remove it meanwhile. */
		assert_true(rc == -EBADMSG || (rc == -ENOENT && !host_has(&H, "job", step)));
	}
	rank_clear(&K);
	must_restore(&K, CKPT_LATEST, CKPT_FROM_DISK);
	assert_int_equal(K.got.step, 5);
	assert_true(rank_check(&K, 5));
}

/* --- links that are refused --- */
TEST(where_the_file_system_refuses_links_each_step_writes_it)
{
	static const int refusal[] = { -EPERM, -EMLINK, -EXDEV, -EOPNOTSUPP };
	uint64_t step = 1;

	start_faulty();
	rank_open(&K, &P, 0);
	save_with(&K, step, 0);
	for (uint32_t i = 0; i < ARRAY_LEN(refusal); i++) {
		io_faults_fail(&disk, IO_ON_LINK, 1, refusal[i], true);
		save_with(&K, ++step, 0);
		assert_fresh(step);
		save_with(&K, ++step, 0); /* what was said is not said again */
		assert_fresh(step);
	}
	io_faults_count(&disk, IO_ON_ANY);
	save_with(&K, ++step, 0);
	assert_linked(step, step - 1);
	assert_soon(said_times(&daemon_said, "is written again: ") == ARRAY_LEN(refusal));
	assert_all_whole((uint32_t)step);
}

TEST(a_link_that_fails_otherwise_costs_this_step_and_no_later_one)
{
	start_faulty();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	io_faults_fail(&disk, IO_ON_LINK, 1, -ENOSPC, true);
	mark_with(&K, 2, 0);
	assert_int_equal(rank_wait(&K, 2, CKPT_COMMITTED), -ENOSPC);
	io_faults_count(&disk, IO_ON_ANY);
	must_guard(&K);
	save_with(&K, 3, 0);
	assert_linked(3, 1);
	assert_all_whole(2);
}

TEST(what_is_linked_needs_no_room)
{
	const struct decl *d;

	start_faulty();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	d = H.d->jobs->launch->member[0].decl;
	assert_true(decl_bytes_max(d, true) > decl_bytes_max(d, false));
	atomic_store(&free_bytes, KEEP_SPARE + decl_bytes_max(d, false));
	save_with(&K, 2, 0);
	assert_linked(2, 1);
	atomic_fetch_sub(&free_bytes, 1);
	mark_with(&K, 3, 0);
	assert_int_equal(rank_wait(&K, 3, CKPT_COMMITTED), -ENOSPC);
	/* In a new epoch it is to be written. */
	atomic_store(&free_bytes, KEEP_SPARE + decl_bytes_max(d, true) - 1);
	MUST_OF(&K, rank_tensor_declare(&K, RANK_SPECS - 1));
	must_seal(&K);
	mark_with(&K, 4, 0);
	assert_int_equal(rank_wait(&K, 4, CKPT_COMMITTED), -ENOSPC);
	d = H.d->jobs->launch->member[0].decl;
	atomic_store(&free_bytes, KEEP_SPARE + decl_bytes_max(d, true));
	must_guard(&K);
	save_with(&K, 5, 0);
	assert_fresh(5);
}

static void rename_step(uint64_t step, const char *to)
{
	cleanup_close int job = host_job_fd(&H, "job");
	char name[STORE_DIR_MAX];

	store_name_step(step, name);
	MUST(renameat(job, name, job, to) == 0);
}

TEST(of_a_step_that_was_removed_nothing_is_linked)
{
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	save_with(&K, 2, 0);
	rename_step(2, ".trash-0");
	save_with(&K, 3, 0);
	assert_fresh(3);
	save_with(&K, 4, 0);
	assert_linked(4, 3);
	/* the step before it still has the other file */
	assert_fresh(1);
}

TEST(a_file_that_is_not_the_remembered_one_is_not_linked)
{
	struct seen s;
	cleanup_close int dir = -1, fd = -1;

	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	s = seen_in(1);
	dir = host_step_fd(&H, "job", 1);
	MUST(unlinkat(dir, s.name, 0) == 0);
	fd = openat(dir, s.name, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
	MUST(fd >= 0 && ftruncate(fd, (off_t)s.bytes) == 0);
	save_with(&K, 2, 0);
	assert_fresh(2);
	save_with(&K, 3, 0);
	assert_linked(3, 2);
	go_on(&K, 3, CKPT_FROM_DISK);
	assert_true(rank_check(&K, 3));
}

/* --- writes that fail --- */
TEST(every_call_of_a_step_may_fail_and_the_next_ones_are_right)
{
	static const int err[] = { -EIO, -ENOSPC };
	uint64_t step = 1, n = 1, calls;

	start_faulty();
	rank_open(&K, &P, 0);
	save_with(&K, step, 0);
	io_faults_count(&disk, IO_ON_MUTATING);
	save_with(&K, ++step, 0);
	calls = io_faults_calls(&disk);
	for (; n <= calls; n++) {
		io_faults_fail(&disk, IO_ON_MUTATING, n, err[n % 2], false);
		mark_with(&K, ++step, 0);
		(void)rank_wait(&K, step, CKPT_COMMITTED);
		io_faults_count(&disk, IO_ON_MUTATING);
		must_guard(&K);
		save_with(&K, ++step, 0);
		assert_int_equal(seen_in(step).n, 1);
	}
	print_message("each of %" PRIu64 " calls of a step failed once\n", calls);
	assert_true(calls > 10);
	host_committed(&H, "job", NULL, 0);
	go_on(&K, step, CKPT_FROM_DISK);
	assert_true(rank_check(&K, step));
}

/* --- from memory --- */
TEST(what_is_staged_has_both_parts)
{
	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, OTHER);
	go_on(&K, 1, CKPT_FROM_MEMORY);
	assert_true(table_is(&K, OTHER));
	table_set(&K, 0);
	assert_true(rank_check(&K, 1));
}

/* --- elsewhere --- */
TEST(a_rescue_writes_it_there)
{
	struct wire_drained d = { 0 };
	struct host there = H;
	char to[108];

	start();
	snprintf(to, sizeof to, "%.90s/to", H.dir);
	MUST(mkdir(to, 0700) == 0);
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	ask_open(&A, H.socket);
	assert_int_equal(ask_drain(&A, "job", to, WIRE_TO | WIRE_COPY, &d), WIRE_DRAINED);
	assert_true(d.failed == 0 && d.written == 1);
	save_with(&K, 2, 0);
	assert_linked(2, 1); /* what was written elsewhere is not what is linked here */
	snprintf(there.store, sizeof there.store, "%.107s", to);
	assert_int_equal(host_committed(&there, "job", NULL, 0), 1);
}

UNIT(.setup = setup, .teardown = host_teardown);
