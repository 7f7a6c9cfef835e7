/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_spare.c - a job that is killed and starts again: the daemon holds no more memory than
 * while it ran; a slot that the next launch took over is not used as long as it holds a step; and
 * no byte of what it held before comes into a file.
 */
#include "formats/native/native.h"
#include "ckpt/client/handle.h"
#include "tests/lib/procs.h"
#include <inttypes.h>

#define WORDS (1u << 18) /* of a rank's tensor: 2 MiB */

/* What a daemon has mapped of memfds of this name, each counted once. */
static uint64_t mapped(pid_t pid, const char *name)
{
	char path[64], line[512], memfd[64];
	uint64_t sum = 0, seen[256];
	uint32_t n = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/maps", pid);
	snprintf(memfd, sizeof memfd, "/memfd:%s ", name);
	f = fopen(path, "re");
	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		uint64_t from, to, ino;
		uint32_t i = 0;

		if (!strstr(line, memfd) ||
		    sscanf(line, "%" SCNx64 "-%" SCNx64 " %*s %*s %*s %" SCNu64, &from, &to,
			   &ino) != 3)
			continue;
		while (i < n && seen[i] != ino)
			i++;
		if (i < n)
			continue;
		assert_true(n < 256);
		seen[n++] = ino;
		sum += to - from;
	}
	fclose(f);
	return sum;
}

#define slots() mapped(D, "ckptd-slot")
#define segments() mapped(D, "ckpt-segment")

static const struct proc_opts big = { .guard = CKPT_FINISH, .words = WORDS };

/* Nothing is written: each step takes a slot as soon as the one before has given its own up. */
static void stage_on(uint32_t n, uint64_t from, uint64_t to)
{
	for (uint64_t step = from; step <= to; step++)
		train(R, n, step, CKPT_STAGE_ONLY, CKPT_STAGED);
}

TEST(while_a_killed_job_starts_again_there_is_its_state_and_its_slots)
{
	uint64_t memory, slot;

	procs_start(R, 2, big);
	train(R, 2, 1, CKPT_STAGE_ONLY, CKPT_STAGED);
	memory = segments();
	slot = slots();
	assert_true(memory >= 2 * 2 * WORDS * 8 && slot >= 2 * memory);
	for (uint64_t step = 1; step < 7; step += 2) {
		procs_kill(R, 2);
		assert_soon(segments() == 0);
		assert_true(slots() <= slot);
		procs_start(R, 2, big);
		assert_int_equal(segments(), memory);
		assert_int_equal(slots(), slot);
		assert_true(remembers(&R[0], step));
		bid(&R[0], (struct order){ .verb = RESTORE,
					   .step = CKPT_LATEST,
					   .flags = CKPT_FROM_MEMORY });
		good(&R[1], restore(&R[1], CKPT_LATEST, CKPT_FROM_MEMORY));
		good(&R[0], hear(&R[0]));
		assert_int_equal(R[0].last.got.step, step);
		assert_true(holds_all(&R[0], step) && holds_all(&R[1], step));
		train(R, 2, step + 1, CKPT_STAGE_ONLY, CKPT_STAGED);
		train(R, 2, step + 2, CKPT_STAGE_ONLY, CKPT_STAGED);
		assert_int_equal(slots(), slot);
	}
}

TEST(a_slot_that_was_taken_over_is_not_used_before_its_step_is_released)
{
	procs_start(R, 2, big);
	train(R, 2, 1, CKPT_PERSIST, CKPT_COMMITTED);
	procs_kill(R, 2);
	assert_soon(segments() == 0);
	procs_start(R, 2, big);
	good(&R[0], tell(&R[0], (struct order){ .verb = FRESH }));
	/* One rank alone takes what slots there are: nothing is staged of it. */
	fill(R, 1, 2);
	good(&R[0], snap(&R[0], 2, CKPT_STAGE_ONLY));
	good(&R[0], guard(&R[0]));
	fill(R, 1, 3);
	assert_int_equal(snap(&R[0], 3, CKPT_STAGE_ONLY), CKPT_SKIPPED);
	assert_int_equal(guard(&R[0]), 0);
	procs_kill(R, 2);
	assert_soon(segments() == 0);
	procs_start(R, 2, big);
	bid(&R[0], (struct order){ .verb = RESTORE, .step = 1, .flags = CKPT_FROM_MEMORY });
	good(&R[1], restore(&R[1], 1, CKPT_FROM_MEMORY));
	good(&R[0], hear(&R[0]));
	assert_true(holds_all(&R[0], 1) && holds_all(&R[1], 1));
	/* And when it is, both are. */
	stage_on(2, 4, 9);
}

TEST(what_is_staged_for_another_directory_takes_no_slot_of_the_next_launch)
{
	char to[160], from[160];
	uint64_t one;

	procs_start(R, 1, big);
	train(R, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	one = slots();
	snprintf(from, sizeof from, "%s/" JOB, H.store);
	snprintf(to, sizeof to, "%s/moved", H.store);
	assert_int_equal(rename(from, to), 0);
	assert_int_equal(mkdir(from, 0700), 0);
	procs_kill(R, 1);
	assert_soon(segments() == 0);
	procs_start(R, 1, big);
	assert_int_equal(slots(), one + one / 3); /* three are mapped, though two have memory */
	stage_on(1, 1, 6);
}

TEST(a_launch_of_another_size_gets_slots_of_its_own)
{
	const struct proc_opts small = { .guard = CKPT_FINISH, .words = WORDS / 4 };
	uint64_t one;

	procs_start(R, 1, big);
	train(R, 1, 1, CKPT_PERSIST, CKPT_COMMITTED);
	one = slots() / 2;
	procs_kill(R, 1);
	assert_soon(segments() == 0);
	procs_start(R, 1, small);
	assert_true(slots() > one && slots() <= 2 * one);
	good(&R[0], tell(&R[0], (struct order){ .verb = FRESH }));
	stage_on(1, 2, 5);
	assert_true(slots() <= one);
}

/* --- what lies between the pieces --- */

static void covered_by(const struct checkpoint *c, uint32_t file, uint8_t *raw)
{
	for (uint32_t i = 0; i < c->table.npiece; i++) {
		const struct table_piece *p = &c->table.piece[i];
		bool blob = c->table.tensor[p->tensor].flags & TENSOR_BLOB;

		if (p->place == file) /* a blob's length lies in front of it */
			memset(raw + p->off - (blob ? 64 : 0), 0, p->len + (blob ? 64 : 0));
	}
}

static void no_bytes_of_others(const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(&H, job, step);
	cleanup_close int dir = host_step_fd(&H, job, step);

	for (uint32_t i = 0; i < c->nfile; i++) {
		const struct format_file *f = &c->file[i];
		uint64_t bytes = f->nchunk << CHUNK_LOG2;
		cleanup_free uint8_t *raw = calloc(1, bytes + 1);
		cleanup_close int fd = openat(dir, f->name, O_RDONLY | O_CLOEXEC);

		assert_true(raw && fd >= 0);
		for (uint64_t k = 0; k < f->nchunk; k++)
			assert_int_equal(pread(fd, raw + (k << CHUNK_LOG2), f->chunk[k].raw_len,
					       (off_t)f->chunk[k].off),
					 f->chunk[k].raw_len);
		covered_by(c, i, raw);
		for (uint64_t at = 0; at < bytes; at++)
			if (raw[at])
				fail_msg("%s: byte %" PRIu64 " of no piece is %u", f->name, at,
					 raw[at]);
	}
	checkpoint_free(c);
}

/* Tensors of one group, in this order. */
static void open_with(struct plan_of_job *p, const char *first)
{
	static const char *const name[] = { "extra", "norm", "running" };
	bool on = false;

	must_attach(&K, p, 0);
	for (uint32_t i = 0; i < ARRAY_LEN(name); i++)
		for (uint32_t spec = 0; spec < RANK_SPECS; spec++) {
			if (strcmp(rank_specs[spec].name, name[i]) != 0)
				continue;
			on |= !strcmp(name[i], first);
			if (on)
				MUST_OF(&K, rank_tensor_declare(&K, spec));
		}
	must_seal(&K);
}

TEST(no_byte_of_the_launch_before_comes_into_a_file)
{
	struct plan_of_job p = plan("gaps", "fsdp=1");
	uint64_t before;

	open_with(&p, "extra");
	rank_fill(&K, 1);
	save(&K, 1);
	save(&K, 2);
	stage(&K, 3, CKPT_STAGE_ONLY);
	before = slots();
	rank_close(&K, PATIENCE);
	p.fresh = true;
	open_with(&p, "norm");
	assert_true(slots() < 2 * before); /* else the case is without a point */
	for (uint64_t step = 4; step < 8; step++) {
		save(&K, step);
		no_bytes_of_others("gaps", step);
	}
	rank_close(&K, PATIENCE);
}

/* A rank that declares anew while no daemon is there brings its slots along to the next one. */
TEST(no_byte_of_older_declarations_comes_into_a_file_of_the_next_daemon)
{
	struct plan_of_job p = plan("anew", "fsdp=1");
	pid_t old = D;

#ifdef __SANITIZE_THREAD__
	print_message(
		"skipped: ThreadSanitizer ends a daemon that is forked from several threads\n");
	skip();
#endif
	open_with(&p, "extra");
	rank_fill(&K, 1);
	save(&K, 1);
	save(&K, 2);
	stage(&K, 3, CKPT_STAGE_ONLY);
	assert_int_equal(kill(old, SIGKILL), 0);
	assert_int_equal(waitpid(old, NULL, 0), old);
	assert_int_equal(ckpt_tensor_drop(K.c, (uint32_t)K.t[rank_tensor_find(&K, "extra")].id), 0);
	assert_int_equal(rank_seal(&K, 0), CKPT_SKIPPED);
	D = daemon_start();
	must_seal(&K);
	for (uint32_t step = 4; step < 8; step++) {
		save(&K, step);
		no_bytes_of_others("anew", step);
	}
	rank_close(&K, PATIENCE);
}

UNIT(.setup = procs_setup, .teardown = procs_teardown);

/* The library's connections to the daemon end, as if it had not answered in time. */
static void connections_cut(void)
{
	for (int fd = 3; fd < 1024; fd++) {
		struct sockaddr_un at = { .sun_family = AF_UNSPEC };
		socklen_t n = sizeof at;

		if (getpeername(fd, (struct sockaddr *)&at, &n) == 0 && at.sun_family == AF_UNIX &&
		    n > offsetof(struct sockaddr_un, sun_path) && !strcmp(at.sun_path, H.socket))
			(void)shutdown(fd, SHUT_RDWR);
	}
}

/* While its daemon stands still, the rank drops its last tensor, and declares it again if `again`.
 * It comes back to the same daemon. */
static void come_back(bool again)
{
	uint64_t before = rank_stats(&K).reattached;
	const struct rank_tensor last = K.t[--K.ntensor];

	stop(D);
	connections_cut();
	assert_int_equal(ckpt_tensor_drop(K.c, (uint32_t)last.id), 0);
	if (again)
		MUST_OF(&K, rank_tensor_declare(&K, last.spec));
	assert_int_equal(rank_seal(&K, 0), CKPT_SKIPPED);
	go_on(D);
	must_reattach(&K, before + 1);
	must_seal(&K);
}

TEST(a_slot_that_is_brought_back_keeps_the_step_of_the_launch_before)
{
	struct plan_of_job p = plan("back", "fsdp=1");
	uint64_t before;

	p.extra = true;
	rank_open(&K, &p, 0);
	save(&K, 1);
	stage(&K, 2, CKPT_STAGE_ONLY);
	before = slots();
	come_back(true);
	assert_int_equal(slots(), before);
	rank_clear(&K);
	must_restore(&K, 2, CKPT_FROM_MEMORY);
	assert_true(rank_check(&K, 2) && rank_check_blobs(&K, 2, 1));
	for (uint32_t step = 3; step < 7; step++)
		save(&K, step);
	rank_close(&K, PATIENCE);
}

/* Its gaps lie elsewhere. */
TEST(a_slot_that_is_brought_back_with_other_declarations_keeps_its_step_too)
{
	struct plan_of_job p = plan("other", "fsdp=1");
	uint64_t before;

	p.extra = true;
	rank_open(&K, &p, 0);
	save(&K, 1);
	save(&K, 2);
	stage(&K, 3, CKPT_STAGE_ONLY);
	before = slots();
	come_back(false);
	assert_true(slots() > before && slots() < 2 * before);
	rank_clear(&K);
	must_restore(&K, 3, CKPT_FROM_MEMORY);
	assert_true(rank_check(&K, 3) && rank_check_blobs(&K, 3, 1));
	for (uint32_t step = 4; step < 8; step++) {
		save(&K, step);
		no_bytes_of_others("other", step);
	}
	rank_close(&K, PATIENCE);
}

/* --- ranks that bring their slots back, and ranks that are new, in one launch --- */
static _Atomic bool keeps_away;

/* The helper of a rank that has lost its daemon does nothing more before it may. */
static void log_of_loser(void *rank, int level, const char *line)
{
	(void)rank;
	(void)level;
	while (strstr(line, "the daemon has exited") && atomic_load(&keeps_away))
		usleep(1000);
}

/* Marked again while the slot of the step before is not released yet. */
static void stage_both(struct rank *k, uint64_t step)
{
	for (uint32_t i = 0; i < 2; i++)
		must_soon(rank_step(&k[i], step, CKPT_STAGE_ONLY) == 0);
	for (uint32_t i = 0; i < 2; i++)
		must_wait(&k[i], step, CKPT_STAGED);
	ranks_guard(k, 2);
}

static void *restore_one(void *rank)
{
	struct rank *k = rank;

	rank_clear(k);
	must_restore(k, 1, CKPT_FROM_MEMORY);
	MUST(rank_check(k, 1));
	return NULL;
}

/* The first rank leaves, and the second one has lost its daemon, which then has a launch that has
 * ended: with slots of a rank that has left. A first rank that is new gets those, and the second
 * one brings its own along. first: the new one declares before the other does. */
static void come_together(const char *job, bool first)
{
	struct plan_of_job p = plan(job, "fsdp=2", .generation = 5, .fresh = true, .slots = 2,
				    .log = log_of_loser);
	struct rank k[2] = { 0 };
	struct link *old;
	pthread_t other;
	int rc;

	ranks_open(k, 2, &p);
	stage_both(k, 1);
	old = atomic_load(&k[1].c->link);
	atomic_store(&keeps_away, true);
	rank_close(&k[0], 0);
	connections_cut();
	assert_soon(segments() == 0); /* the launch has ended */
	assert_int_equal(atomic_load(&k[1].c->held[0].step), 1);
	if (first)
		pthread_mutex_lock(&k[1].c->mem); /* it attaches, and does not declare */
	atomic_store(&keeps_away, false);
	assert_soon(atomic_load(&k[1].c->link) != old);
	if (!first)
		must_reattach(&k[1], 1);
	must_attach(&k[0], &p, 0);
	must_declare(&k[0]);
	rc = rank_seal(&k[0], 0);
	assert_true(rc == CKPT_SKIPPED || (rc == 0 && !first));
	assert_soon(atomic_load(&k[0].c->declared) == 1);
	if (first)
		pthread_mutex_unlock(&k[1].c->mem);
	must_reattach(&k[1], 1);
	if (rc) /* else it would declare anew */
		must_seal(&k[0]);
	assert_int_equal(atomic_load(&k[1].c->held[0].step), first ? UINT64_MAX : 1);
	assert_int_equal(pthread_create(&other, NULL, restore_one, &k[1]), 0);
	(void)restore_one(&k[0]);
	assert_int_equal(pthread_join(other, NULL), 0);
	for (uint64_t step = 2; step < 7; step++)
		stage_both(k, step);
	ranks_close(k, 2);
}

TEST(a_new_rank_is_lent_the_slots_that_others_bring_back_with_a_step)
{
	come_together("behind", false);
}

TEST(a_rank_that_would_bring_back_the_last_free_slot_gets_another_one)
{
	come_together("ahead", true);
}
