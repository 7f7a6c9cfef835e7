/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_const.c - tensors of class const lie in a part of their own, which is written once
 * and linked by the steps behind it; and everything that makes the daemon write it again. The
 * library and the daemon in one process; the only const tensor of the job is "table", which one
 * rank writes.
 */
#include "ckpt/store/label.h"
#include "tests/unit/test_daemon_const_rig.h"

static struct io_faults disk;
static _Atomic uint64_t free_bytes; /* that its file system says it has; 0: it says nothing */

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

TEST(a_rank_that_moves_a_tensor_writes_it_again)
{
	struct ckpt_local same = { 0 };
	int i;

	start();
	rank_open(&K, &P, 0);
	save_with(&K, 1, 0);
	save_with(&K, 2, 0);
	i = rank_tensor_find(&K, "w");
	same.ptr = K.t[i].ptr[0]; /* to where it is */
	MUST_OF(&K, ckpt_tensor_move(K.c, K.t[i].id, &same, 1, &K.err));
	must_seal(&K);
	save_with(&K, 3, 0);
	save_with(&K, 4, 0);
	assert_linked(2, 1);
	assert_fresh(3);
	assert_linked(4, 3);
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

/* A byte of many: the words may miss it, but its MiB has its turn. */
TEST(one_byte_that_changes_is_seen_before_the_part_has_had_as_many_steps_as_mib)
{
	static const uint64_t bytes = FROZEN_MIB * MIB;
	uint64_t step = 2, since;
	uint8_t *p;

	start();
	rank_open(&K, &P, 0);
	p = frozen_declare(&K, bytes);
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
