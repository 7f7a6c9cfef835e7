/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_cuda.c - tensors in memory of CUDA devices, through the library and the daemon, over
 * a driver without a GPU (tests/fakecuda): what is committed is what the state was at the mark,
 * though the next update is queued while the copy runs; what each guard policy does; two devices;
 * and what is refused, skipped or torn, with its sentence. The library and the daemon are in one
 * process.
 */
#include "ckpt/client/handle.h"
#include "ckpt/device/cuda_driver.h"
#include "tests/fakecuda/fakecuda_test.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"
#include <sys/wait.h>

#define ROWS 96u
#define COLS 1024u
#define PITCH 1200u /* elements: the weights lie in a wider matrix */
#define BYTES ((uint64_t)ROWS * PITCH * 4)
#define AMAX 7u

static const struct fakecuda *fake;
static const struct cuda_calls *cu;
static struct said said = SAID_NOTHING;
static uint64_t generation;
static uint32_t slots; /* of the next attach; 0: the daemon decides */

/* A trainer: weights (a part of a wider matrix), a moment, an amax that is VOLATILE, on each of its
 * devices; and a counter in host memory. */
struct trainer {
	ckpt *c;
	struct ckpt_err err;
	uint32_t ndevice;
	cuda_ctx ctx[2];
	cuda_stream stream[2];
	cuda_ptr w[2], m[2], amax[2];
	uint32_t *host;
	uint32_t id[2];
};

static int library_open(void **unused)
{
	(void)unused;
	cu = fakecuda_open(FAKECUDA, "2", &fake);
	return cu ? 0 : -1;
}

/* --- the update of a step: a kernel of the stream, word by word --- */
struct update {
	const struct trainer *t;
	uint32_t device, step;
	bool volatile_only;
};

static uint32_t value(uint32_t device, uint32_t step, uint32_t i)
{
	return step * 1000003u + device * 7919u + i;
}

static void update_run(void *arg)
{
	struct update *u = arg;
	const struct trainer *t = u->t;
	volatile uint32_t *w = fake->alias(t->w[u->device]), *m = fake->alias(t->m[u->device]),
			  *amax = fake->alias(t->amax[u->device]);

	for (uint32_t i = 0; i < AMAX; i++)
		amax[i] = value(u->device, u->step, i) ^ 0x5a5a;
	for (uint32_t i = 0; i < ROWS * COLS && !u->volatile_only; i++) {
		w[i / COLS * PITCH + i % COLS] = value(u->device, u->step, i);
		m[i] = ~value(u->device, u->step, i);
	}
	free(u);
}

static void update_queue(struct trainer *t, uint32_t step, bool volatile_only)
{
	for (uint32_t d = 0; d < t->ndevice; d++) {
		struct update *u = malloc(sizeof *u);

		MUST(u);
		*u = (struct update){ t, d, step, volatile_only };
		MUST_BE(cu->ctx_set(t->ctx[d]), 0);
		MUST_BE(launch_host(t->stream[d], update_run, u), 0);
	}
	MUST_BE(cu->ctx_set(t->ctx[0]), 0);
	if (!volatile_only)
		*t->host = step;
}

/* So late that a host which does not wait is ahead of it. */
static void sleep_run(void *unused)
{
	(void)unused;
	usleep(200000);
}

static void sync_all(struct trainer *t)
{
	for (uint32_t d = 0; d < t->ndevice; d++) {
		MUST_BE(cu->ctx_set(t->ctx[d]), 0);
		MUST_BE(cu->stream_sync(t->stream[d]), 0);
	}
	MUST_BE(cu->ctx_set(t->ctx[0]), 0);
}

/* Does memory hold the state of this step? */
static bool holds(struct trainer *t, uint32_t step)
{
	bool good = *t->host == step;

	sync_all(t);
	for (uint32_t d = 0; d < t->ndevice; d++) {
		const uint32_t *w = fake->alias(t->w[d]), *m = fake->alias(t->m[d]),
			       *amax = fake->alias(t->amax[d]);

		for (uint32_t i = 0; i < AMAX; i++)
			good &= amax[i] == (value(d, step, i) ^ 0x5a5a);
		for (uint32_t i = 0; i < ROWS * COLS; i++)
			good &= w[i / COLS * PITCH + i % COLS] == value(d, step, i) &&
				m[i] == ~value(d, step, i);
	}
	return good;
}

/* --- a trainer's life --- */
static void attach(struct trainer *t, const char *job, uint32_t guard, uint64_t guard_ns,
		   uint64_t rate)
{
	struct ckpt_opts o =
		ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = job, .store = H.store,
		    .socket = H.socket, .world = 1, .generation = ++generation, .guard = guard,
		    .guard_ns = guard_ns, .slots = slots, .device = 1, .copy_rate = rate,
		    .log = said_line, .log_ctx = &said);

	MUST_OF(t, ckpt_attach(&o, &t->c, &t->err));
}

static int add(struct trainer *t, const char *name, uint32_t ndim, const uint64_t *shape, void *p,
	       const int64_t *stride, uint32_t cls, uint32_t *id)
{
	struct ckpt_local local = { .ptr = p, .stride = stride };
	uint64_t start[2] = { 0, 0 };
	struct ckpt_tensor x = ROW(.size = sizeof x, .dtype = CKPT_U32, .component = "model",
				   .name = name, .ndim = ndim, .shape = shape, .mesh = CKPT_ALONE,
				   .mode = CKPT_BOXES, .cls = cls, .nlocal = 1, .local = &local);

	local.start = start;
	local.extent = shape;
	return ckpt_tensor_add(t->c, &x, id, &t->err);
}

static void tensors_add(struct trainer *t)
{
	const uint64_t two[] = { ROWS, COLS }, all = ROWS * COLS, few = AMAX, one = 1;
	const int64_t wide[] = { PITCH, 1 };
	char name[3][16];

	for (uint32_t d = 0; d < t->ndevice; d++) {
		snprintf(name[0], 16, "w%u", d);
		snprintf(name[1], 16, "m%u", d);
		snprintf(name[2], 16, "amax%u", d);
		MUST_OF(t, add(t, name[0], 2, two, (void *)(uintptr_t)t->w[d], wide, CKPT_STABLE,
			       &t->id[d]));
		MUST_OF(t, add(t, name[1], 1, &all, (void *)(uintptr_t)t->m[d], NULL, CKPT_STABLE,
			       NULL));
		MUST_OF(t, add(t, name[2], 1, &few, (void *)(uintptr_t)t->amax[d], NULL,
			       CKPT_VOLATILE, NULL));
	}
	MUST_OF(t, add(t, "host", 1, &one, t->host, NULL, CKPT_STABLE, NULL));
}

static void declare(struct trainer *t)
{
	tensors_add(t);
	MUST_OF(t, ckpt_seal(t->c, PATIENCE, &t->err));
}

static void memory_make(struct trainer *t, uint32_t ndevice)
{
	*t = (struct trainer){ .ndevice = ndevice };
	for (uint32_t d = 0; d < ndevice; d++) {
		MUST_BE(cu->primary_retain(&t->ctx[d], (int)d), 0);
		MUST_BE(cu->ctx_set(t->ctx[d]), 0);
		MUST_BE(cu->stream_new(&t->stream[d], 0, 0), 0);
		MUST_BE(cu->mem_alloc(&t->w[d], BYTES), 0);
		MUST_BE(cu->mem_alloc(&t->m[d], BYTES), 0);
		MUST_BE(cu->mem_alloc(&t->amax[d], 64), 0);
	}
	MUST_BE(cu->ctx_set(t->ctx[0]), 0);
	t->host = calloc(1, 4096);
	MUST(t->host);
}

static void memory_free(struct trainer *t)
{
	for (uint32_t d = 0; d < t->ndevice; d++) {
		MUST_BE(cu->ctx_set(t->ctx[d]), 0);
		MUST_BE(cu->stream_free(t->stream[d]), 0);
		MUST_BE(cu->mem_free(t->w[d]), 0);
		MUST_BE(cu->mem_free(t->m[d]), 0);
		MUST_BE(cu->mem_free(t->amax[d]), 0);
	}
	MUST_BE(cu->ctx_set(t->ctx[0]), 0);
	free(t->host);
}

static int mark(struct trainer *t, uint32_t step, uint32_t flags)
{
	const struct ckpt_stream more = { .stream = t->stream[1], .device = 2 };
	struct ckpt_mark m = ROW(.size = sizeof m, .flags = flags, .stream = t->stream[0],
				 .nstream = t->ndevice - 1, .more = &more);

	return ckpt_snapshot(t->c, step, &m);
}

static int restore(struct trainer *t, uint64_t step, uint32_t flags)
{
	struct ckpt_want w = ROW(.size = sizeof w, .step = step, .flags = flags | CKPT_EXACT);

	return ckpt_restore(t->c, &w, NULL, &t->err);
}

static void forget(struct trainer *t)
{
	for (uint32_t d = 0; d < t->ndevice; d++) {
		memset(fake->alias(t->w[d]), 0xee, BYTES);
		memset(fake->alias(t->m[d]), 0xee, BYTES);
		memset(fake->alias(t->amax[d]), 0xee, 64);
	}
	*t->host = 0;
}

static void calm(void)
{
	slots = 0;
	fake->fault_none();
	fake->bandwidth(0);
	fake->seed(0);
	fake->release(false);
	fake->pause(0);
	fake->register_limit(0);
	fake->sticky(0, 0);
	fake->sticky(1, 0);
}

/* A trainer that has declared its state, on so many devices. */
static void job_begin(struct trainer *t, uint32_t ndevice, const char *job, uint32_t guard,
		      uint64_t guard_ns, uint64_t rate)
{
	calm();
	memory_make(t, ndevice);
	attach(t, job, guard, guard_ns, rate);
	declare(t);
}

static void job_end(struct trainer *t)
{
	MUST_BE(ckpt_detach(t->c, 0), 0);
	memory_free(t);
	host_stop(&H);
}

static void it_comes_back(struct trainer *t, uint32_t step, uint32_t flags)
{
	forget(t);
	MUST_OF(t, restore(t, step, flags));
	assert_true(holds(t, step));
}

/* Steps as a training loop has them, the host ahead of the devices: the update that follows is
 * queued before the copy has ended. held: of two steps of three the devices begin with nothing
 * before that, and with the updates or with the copies, where they may. */
static void train(struct trainer *t, uint32_t from, uint32_t to, bool held)
{
	update_queue(t, from, false);
	for (uint32_t step = from; step <= to; step++) {
		int rc;

		if (held && step % 3)
			fake->hold();
		rc = mark(t, step, CKPT_PERSIST);
		if (rc != 0) {
			(void)ckpt_why(t->c, &t->err);
			fail_msg("step %u: %d, %s", step, rc, t->err.msg);
		}
		update_queue(t, step + 50, true); /* forward: VOLATILE changes while it is copied */
		assert_int_equal(ckpt_guard(t->c, NULL), 0);
		update_queue(t, step + 1, false);
		fake->release(step % 3 == 1);
		MUST_OF(t, ckpt_wait(t->c, step, CKPT_COMMITTED, PATIENCE, &t->err));
	}
	sync_all(t);
}

static void round_trip(uint32_t ndevice, uint64_t rate)
{
	struct trainer t;

	job_begin(&t, ndevice, "gpu", CKPT_FINISH, 0, rate);
	fake->seed(7);
	fake->bandwidth(.5);
	train(&t, 1, 4, true);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	calm();
	for (uint32_t step = 4; step > 2; step--) {
		attach(&t, "gpu", CKPT_FINISH, 0, 0);
		declare(&t);
		it_comes_back(&t, step, CKPT_FROM_DISK);
		MUST_BE(ckpt_detach(t.c, 0), 0);
	}
	memory_free(&t);
	assert_int_equal(fake->violations(), 0);
	host_stop(&H);
}

TEST(a_step_is_what_the_state_was_at_the_mark)
{
	round_trip(1, UINT64_MAX);
}

TEST(a_step_of_two_devices_is_what_their_state_was)
{
	round_trip(2, 0);
}

/* The guard lets the stream wait: the next update is queued at once, and comes after the copy. */
TEST(the_update_behind_the_guard_comes_after_the_copy)
{
	struct trainer t;

	job_begin(&t, 2, "ahead", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	assert_int_equal(ckpt_wait(t.c, 1, CKPT_STAGED, 1, &t.err), -ETIMEDOUT); /* it goes on */
	update_queue(&t, 2, false);
	*t.host = 1; /* of the host the copy has ended */
	fake->release(true);
	MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_COMMITTED, PATIENCE, &t.err));
	*t.host = 2;
	assert_true(holds(&t, 2));
	it_comes_back(&t, 1, CKPT_FROM_DISK);
	job_end(&t);
}

/* Kernels that are queued before the guard change everything when the copies have brought so many
 * bytes: the step is torn, and whoever asks is told why, once. */
static void late_kernels(struct trainer *t, uint64_t brought)
{
	struct ckpt_stats s = { .size = sizeof s };
	uint64_t torn;

	MUST_BE(ckpt_stats(t->c, &s), 0);
	torn = s.torn;
	said_forget(&said);
	update_queue(t, 1, false);
	sync_all(t);
	fake->pause(brought);
	MUST_BE(mark(t, 1, CKPT_PERSIST), 0);
	assert_soon(fake->paused());
	update_queue(t, 2, false);
	sync_all(t);
	*t->host = 1; /* the host's is as it was */
	assert_int_equal(ckpt_guard(t->c, NULL), 0);
	fake->pause(0);
	assert_int_equal(ckpt_wait(t->c, 1, CKPT_COMMITTED, PATIENCE, &t->err), -ENOENT);
	assert_non_null(strstr(t->err.msg, "rank 0 changed model/"));
	assert_non_null(strstr(t->err.msg, "after ckpt_snapshot and before ckpt_guard"));
	assert_soon(said_times(&said, "step 1 is torn: rank 0 changed model/") == 1);
	assert_int_equal(ckpt_guard(t->c, NULL), CKPT_TORN); /* it is not counted, or said, again */
	MUST_BE(ckpt_stats(t->c, &s), 0);
	assert_int_equal(s.torn, torn + 1);
	assert_int_equal(s.committed, 0);
	job_end(t);
	assert_int_equal(said_times(&said, "is torn: rank 0 changed"), 1);
}

#define TENSOR ((uint64_t)ROWS * COLS * 4)
#define WORDS ((uint64_t)CANARY_FAR * 8)

/* Nothing is copied yet; everything is; a part of it. Of two devices each may be anywhere in its
 * copy; but one is, for together they have brought little more than one has. */
TEST(a_kernel_that_changes_a_state_while_it_is_copied_tears_it)
{
	struct trainer t;

	job_begin(&t, 1, "late", CKPT_FINISH, 0, UINT64_MAX);
	late_kernels(&t, WORDS);
	host_start(&H, NULL);
	job_begin(&t, 1, "late", CKPT_FINISH, 0, UINT64_MAX);
	late_kernels(&t, WORDS + 2 * TENSOR + AMAX * 4);
	host_start(&H, NULL);
	job_begin(&t, 2, "late", CKPT_FINISH, 0, UINT64_MAX);
	late_kernels(&t, 2 * TENSOR + 4096);
}

/* It is queued before the guard, too, and comes behind the copies. */
TEST(a_kernel_that_changes_a_state_behind_its_copy_does_no_harm)
{
	struct trainer t;

	job_begin(&t, 2, "behind", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	update_queue(&t, 2, false);
	*t.host = 1;
	assert_int_equal(ckpt_guard(t.c, NULL), 0);
	fake->release(false);
	MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_COMMITTED, PATIENCE, &t.err));
	it_comes_back(&t, 1, CKPT_FROM_DISK);
	job_end(&t);
}

/* What devices write to is neither copied for the child nor given back too soon. */
TEST(a_handle_that_is_forked_or_closed_while_devices_copy_does_no_harm)
{
	struct trainer t;
	int status;
	pid_t child;

	job_begin(&t, 1, "closed", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->pause(TENSOR);
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	assert_soon(fake->paused());
	child = fork();
	if (child == 0)
		_exit(0);
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(ckpt_guard(t.c, NULL), 0);
	fake->pause(0);
	MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_COMMITTED, PATIENCE, &t.err));
	it_comes_back(&t, 1, CKPT_FROM_DISK);
	fake->bandwidth(.02);
	MUST_BE(mark(&t, 2, CKPT_PERSIST), 0);
	assert_int_equal(ckpt_guard(t.c, NULL), 0);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	assert_int_equal(fake->registered(), 0);
	calm();
	memory_free(&t);
	host_stop(&H);
}

/* The weights of device 1 are changed by a kernel on the stream of device 0, before the mark and
 * behind the guard. */
TEST(copies_follow_the_streams_of_all_devices)
{
	struct trainer t;

	job_begin(&t, 2, "across", CKPT_FINISH, 0, UINT64_MAX);
	for (uint32_t step = 1; step <= 3; step++) {
		fake->hold();
		for (uint32_t d = 0; d < 2; d++) {
			struct update *u = malloc(sizeof *u);

			MUST(u);
			*u = (struct update){ &t, d, step, false };
			MUST_BE(launch_host(t.stream[0], update_run, u), 0);
		}
		*t.host = step;
		MUST_BE(mark(&t, step, CKPT_PERSIST), 0);
		MUST_BE(ckpt_guard(t.c, NULL), 0);
		for (uint32_t d = 0; d < 2; d++) {
			struct update *u = malloc(sizeof *u);

			MUST(u);
			*u = (struct update){ &t, d, 99, false };
			MUST_BE(launch_host(t.stream[0], update_run, u), 0);
		}
		fake->release(step == 1);
		MUST_OF(&t, ckpt_wait(t.c, step, CKPT_COMMITTED, PATIENCE, &t.err));
		sync_all(&t);
		forget(&t);
		MUST_OF(&t, restore(&t, step, CKPT_FROM_DISK));
		sync_all(&t);
		for (uint32_t d = 0; d < 2; d++) {
			const uint32_t *w = fake->alias(t.w[d]);

			for (uint32_t i = 0; i < ROWS * COLS; i++)
				assert_int_equal(w[i / COLS * PITCH + i % COLS], value(d, step, i));
		}
	}
	job_end(&t);
}

static _Atomic bool shut;

/* The device stands still until a test opens the gate. */
static void gate_run(void *unused)
{
	(void)unused;
	while (atomic_load(&shut))
		usleep(200);
}

/* Steps first to last while the devices stand still: which of them are taken, as bits. */
static uint32_t run_ahead(struct trainer *t, uint32_t first, uint32_t last)
{
	uint32_t taken = 0;

	atomic_store(&shut, true);
	for (uint32_t d = 0; d < t->ndevice; d++) {
		MUST_BE(cu->ctx_set(t->ctx[d]), 0);
		MUST_BE(launch_host(t->stream[d], gate_run, NULL), 0);
	}
	MUST_BE(cu->ctx_set(t->ctx[0]), 0);
	for (uint32_t step = first; step <= last; step++) {
		int rc;

		update_queue(t, step, false);
		rc = mark(t, step, CKPT_PERSIST);
		MUST(rc == 0 || (rc == CKPT_SKIPPED && ckpt_why(t->c, &t->err) == -ENOENT &&
				 strstr(t->err.msg, wire_skip_text(WIRE_SKIP_FULL))));
		taken |= rc == 0 ? 1u << step : 0;
		update_queue(t, step + 50, true);
		MUST_BE(ckpt_guard(t->c, NULL), 0);
	}
	update_queue(t, last + 1, false);
	*t->host = last + 1;
	return taken;
}

/* The host is so many steps ahead of the devices: each step that finds a slot is taken, and is what
 * the state was at its mark. */
static void ahead_by(uint32_t steps, uint32_t nslot, uint32_t want, uint32_t ndevice, uint64_t rate)
{
	struct trainer t;
	uint32_t taken;
	char job[16]; /* in a job that begins again a slot keeps its newest step for a while */

	calm();
	memory_make(&t, ndevice);
	slots = nslot;
	snprintf(job, sizeof job, "ahead%u%u", steps, ndevice);
	attach(&t, job, CKPT_FINISH, 0, rate);
	declare(&t);
	fake->seed(5 + steps);
	fake->bandwidth(.2);
	taken = run_ahead(&t, 1, 1 + steps);
	atomic_store(&shut, false);
	assert_int_equal(taken, ((1u << want) - 1) << 1);
	for (uint32_t left = taken; left; left &= left - 1)
		MUST_OF(&t, ckpt_wait(t.c, (uint64_t)__builtin_ctz(left), CKPT_COMMITTED, PATIENCE,
				      &t.err));
	sync_all(&t);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	calm();
	for (uint32_t step = want; step > 0; step--) {
		attach(&t, job, CKPT_FINISH, 0, 0);
		declare(&t);
		it_comes_back(&t, step, CKPT_FROM_DISK);
		MUST_BE(ckpt_detach(t.c, 0), 0);
	}
	memory_free(&t);
	assert_int_equal(fake->violations(), 0);
}

TEST(a_host_that_is_ahead_has_each_step_taken_that_finds_a_slot)
{
	ahead_by(1, 2, 2, 1, UINT64_MAX);
	ahead_by(2, 3, 3, 1, 0);
	ahead_by(2, 2, 2, 2, UINT64_MAX);
	ahead_by(5, 4, 4, 2, 0);
	host_stop(&H);
}

static enum snap_state newest_state(const struct trainer *t)
{
	return shared_snap_state(shared_snap_newest(atomic_load(&t->c->link)->rank), NULL);
}

/* Who waits for a device asks it again and again; who believes too soon that it has come does
 * not. */
static bool asked_often(uint64_t before)
{
	return fake->calls("cuEventQuery") >= before + 10;
}

/* The state is small: the device has little to come to. */
TEST(a_copy_has_not_ended_before_the_device_has_come_to_its_end)
{
	const uint64_t few = AMAX;
	struct trainer t;
	uint64_t before;

	calm();
	memory_make(&t, 1);
	attach(&t, "ends", CKPT_FINISH, 0, UINT64_MAX);
	MUST_OF(&t,
		add(&t, "amax", 1, &few, (void *)(uintptr_t)t.amax[0], NULL, CKPT_STABLE, NULL));
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	before = fake->calls("cuEventQuery");
	assert_soon(asked_often(before) || newest_state(&t) != SNAP_COPYING);
	assert_int_equal(newest_state(&t), SNAP_COPYING);
	fake->release(false);
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_COMMITTED, PATIENCE, &t.err));
	job_end(&t);
}

/* While the daemon does something else. */
/* Three steps have been copied when the daemon looks; each of them reaches `state`. */
static void steps_are_found_copied(uint32_t flags, int state)
{
	struct trainer t;

	host_stop(&H);
	host_start_gated_at("job other step 1 staged");
	calm();
	memory_make(&t, 1);
	slots = 4;
	attach(&t, "order", CKPT_FINISH, 0, UINT64_MAX);
	declare(&t);
	open_one(&K, "other", "fsdp=1");
	gate_set(&G, true);
	must_step(&K, 1, CKPT_STAGE_ONLY);
	gate_await(&G);
	for (uint32_t step = 1; step <= 3; step++) {
		update_queue(&t, step, false);
		MUST_BE(mark(&t, step, flags), 0);
		MUST_BE(ckpt_guard(t.c, NULL), 0);
	}
	assert_soon(copier_idle(t.c));
	gate_set(&G, false);
	for (uint32_t step = 1; step <= 3; step++)
		MUST_OF(&t, ckpt_wait(t.c, step, state, PATIENCE, &t.err));
	MUST_BE(ckpt_detach(t.c, 0), 0);
	rank_close(&K, 0);
	memory_free(&t);
	host_stop(&H);
}

TEST(steps_that_have_been_copied_when_the_daemon_looks_are_written_in_their_order)
{
	steps_are_found_copied(CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(steps_that_are_staged_at_once_are_all_told)
{
	steps_are_found_copied(CKPT_STAGE_ONLY, CKPT_STAGED);
}

static _Atomic uint32_t passed; /* steps that the device has done */

/* So long a step of the device takes at least. */
static void step_run(void *unused)
{
	(void)unused;
	usleep(60000);
	atomic_fetch_add(&passed, 1);
}

/* A guard may hold up nothing, and the host is two steps ahead: how long the device has for a copy
 * is known from when it came to the guards before, not from when they were called. */
TEST(what_a_bounded_guard_reckons_with_is_the_devices_time)
{
	uint32_t good = 0;
	struct trainer t;

	calm();
	memory_make(&t, 1);
	slots = 4;
	attach(&t, "bounded", CKPT_BOUNDED, NS_PER_MS, UINT64_MAX);
	declare(&t);
	fake->bandwidth(.06); /* a quarter of a step */
	atomic_store(&passed, 0);
	for (uint32_t step = 1; good < 4; step++) {
		int rc;

		assert_true(step <= 300); /* it does not go on for ever */
		assert_soon(atomic_load(&passed) + 2 >= step);
		update_queue(&t, step, false);
		rc = mark(&t, step, 0);
		assert_true(rc == 0 || rc == CKPT_SKIPPED);
		MUST_BE(launch_host(t.stream[0], step_run, NULL), 0);
		rc |= ckpt_guard(t.c, NULL);
		good += rc == 0;
	}
	sync_all(&t);
	job_end(&t);
}

/* The host is ahead: a FINAL mark waits for a slot, and for the copies before it. */
TEST(a_final_mark_waits_for_the_copies_before_it)
{
	struct trainer t;

	job_begin(&t, 1, "final", CKPT_FINISH, 0, UINT64_MAX);
	fake->bandwidth(.008); /* .1 s each */
	fake->hold();
	for (uint32_t step = 1; step <= 2; step++) {
		update_queue(&t, step, false);
		MUST_BE(mark(&t, step, 0), 0);
		MUST_BE(ckpt_guard(t.c, NULL), 0);
	}
	update_queue(&t, 3, false);
	assert_int_equal(mark(&t, 3, 0), CKPT_SKIPPED);
	fake->release(false);
	MUST_BE(mark(&t, 3, CKPT_FINAL), 0);
	fake->bandwidth(0);
	MUST_OF(&t, ckpt_wait(t.c, 3, CKPT_COMMITTED, PATIENCE, &t.err));
	it_comes_back(&t, 3, CKPT_FROM_DISK);
	job_end(&t);
}

/* A mark that goes without a guard to the next one, and a guard that may not wait. */
TEST(what_each_policy_does_with_a_copy_that_is_late)
{
	static const struct {
		uint32_t guard;
		uint64_t ns;
		int rc;
		bool held; /* the copy does not end before the guard does */
	} row[] = { { CKPT_NEVER, 0, CKPT_TORN, true },
		    { CKPT_BOUNDED, 2 * NS_PER_MS, CKPT_TORN, true },
		    { CKPT_BOUNDED, PATIENCE, 0, false },
		    { CKPT_FINISH, 0, 0, true } };

	for (size_t i = 0; i < ARRAY_LEN(row); i++) {
		struct trainer t;

		calm();
		memory_make(&t, 1);
		attach(&t, "late", row[i].guard, row[i].ns, UINT64_MAX);
		if (i)
			MUST_BE(ckpt_fresh(t.c), 0);
		declare(&t);
		update_queue(&t, 1, false);
		sync_all(&t);
		fake->bandwidth(.003); /* .3 s */
		if (row[i].held)
			fake->hold();
		MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
		assert_int_equal(ckpt_guard(t.c, NULL), row[i].rc);
		update_queue(&t, 2, false);
		fake->bandwidth(0);
		fake->release(false);
		if (row[i].rc)
			assert_int_equal(ckpt_wait(t.c, 1, CKPT_STAGED, PATIENCE, &t.err), -ENOENT);
		else
			MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_STAGED, PATIENCE, &t.err));
		MUST_BE(ckpt_detach(t.c, 0), 0);
		sync_all(&t);
		memory_free(&t);
	}
	host_stop(&H);
}

TEST(a_captured_stream_is_skipped_and_stays_captured)
{
	const struct graph_calls graphs = graph_calls();
	void *graph;
	struct trainer t;

	job_begin(&t, 1, "captured", CKPT_FINISH, 0, UINT64_MAX);
	for (unsigned mode = CUDA_CAPTURE_GLOBAL; mode <= CUDA_CAPTURE_RELAXED; mode++) {
		uint32_t step = 1 + 2 * mode;

		update_queue(&t, step, false);
		MUST_BE(graphs.begin(t.stream[0], mode), 0);
		assert_int_equal(mark(&t, step, 0), CKPT_SKIPPED);
		assert_int_equal(ckpt_why(t.c, &t.err), -ENOENT);
		assert_non_null(strstr(t.err.msg, "captured into a CUDA graph"));
		MUST_BE(graphs.end(t.stream[0], &graph), 0);
		MUST_BE(graphs.drop(graph), 0);
		MUST_BE(mark(&t, step, CKPT_PERSIST), 0); /* the same step once more */
		/* A guard that cannot wait on the stream waits here. */
		fake->bandwidth(.05);
		MUST_BE(ckpt_guard(t.c, NULL), 0);
		MUST_OF(&t, ckpt_wait(t.c, step, CKPT_COMMITTED, PATIENCE, &t.err));
		fake->bandwidth(.01);
		MUST_BE(mark(&t, step + 1, CKPT_PERSIST), 0);
		MUST_BE(graphs.begin(t.stream[0], mode), 0);
		MUST_BE(ckpt_guard(t.c, NULL), 0);
		MUST_BE(graphs.end(t.stream[0], &graph), 0);
		MUST_BE(graphs.drop(graph), 0);
		assert_int_equal(newest_state(&t), SNAP_COPIED);
		MUST_OF(&t, ckpt_wait(t.c, step + 1, CKPT_COMMITTED, PATIENCE, &t.err));
		fake->bandwidth(0);
	}
	job_end(&t);
}

TEST(what_cannot_be_copied_is_refused_with_its_sentence)
{
	const uint64_t few = 16;
	cuda_rc (*managed)(cuda_ptr *, size_t, unsigned);
	struct ckpt_mark m = ROW(.size = sizeof m);
	struct ckpt_opts o =
		ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = "host", .store = H.store,
		    .socket = H.socket, .world = 1, .log = said_line, .log_ctx = &said);
	struct ckpt_stream more = { 0 };
	struct trainer t;
	cuda_ptr x;

	fakecuda_find("cuMemAllocManaged", 6000, &managed);
	calm();
	memory_make(&t, 2);
	/* without a device */
	MUST_OF(&t, ckpt_attach(&o, &t.c, &t.err));
	assert_int_equal(add(&t, "w", 1, &few, (void *)(uintptr_t)t.w[1], NULL, 0, NULL), -EINVAL);
	assert_non_null(strstr(t.err.msg, "model/w: "));
	assert_non_null(strstr(t.err.msg, "memory of CUDA device 1, and this handle is for host"));
	assert_non_null(strstr(t.err.msg, "set ckpt_opts.device to 2"));
	m.stream = t.stream[0];
	assert_int_equal(ckpt_snapshot(t.c, 1, &m), -EINVAL);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	/* a device that is not there: host memory works */
	o.device = 9;
	said_forget(&said);
	MUST_OF(&t, ckpt_attach(&o, &t.c, &t.err));
	assert_true(said_times(&said, "no CUDA device is used"));
	assert_true(said_times(&said, "CUDA device 8: there is no such device"));
	MUST_OF(&t, add(&t, "h", 1, &few, t.host, NULL, 0, NULL));
	assert_int_equal(add(&t, "w", 1, &few, (void *)(uintptr_t)t.w[1], NULL, 0, NULL), -ENODEV);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	o.device = 33;
	assert_int_equal(ckpt_attach(&o, &t.c, &t.err), -EINVAL);
	/* kinds of memory, and streams */
	attach(&t, "kinds", CKPT_FINISH, 0, 0);
	MUST_BE(managed(&x, 4096, 1), 0);
	assert_int_equal(add(&t, "w", 1, &few, (void *)(uintptr_t)x, NULL, 0, NULL), -EOPNOTSUPP);
	assert_non_null(strstr(t.err.msg, "managed memory"));
	MUST_BE(cu->mem_free(x), 0);
	declare(&t);
	m.stream = t.stream[1]; /* of the other device */
	assert_int_equal(ckpt_snapshot(t.c, 1, &m), -EINVAL);
	m.stream = t.stream[0];
	m.nstream = 1;
	m.more = &more;
	assert_int_equal(ckpt_snapshot(t.c, 1, &m), -EINVAL); /* device 0 is none */
	more = (struct ckpt_stream){ t.stream[0], 1, 0 };
	assert_int_equal(ckpt_snapshot(t.c, 1, &m), -EINVAL); /* twice */
	more = (struct ckpt_stream){ t.stream[1], 2, 0 };
	update_queue(&t, 1, false);
	MUST_BE(ckpt_snapshot(t.c, 1, &m), 0);
	MUST_BE(ckpt_guard(t.c, &m), 0);
	MUST_BE(ckpt_detach(t.c, PATIENCE), 0);
	memory_free(&t);
	host_stop(&H);
}

/* The streams that a guard lets wait are those of the snapshot, whatever a mark said that took
 * nothing. */
TEST(a_mark_that_is_refused_leaves_the_guard_its_streams)
{
	const struct ckpt_stream closed = { .device = 2 };
	struct ckpt_mark bad = ROW(.size = sizeof bad, .nstream = 1, .more = &closed);
	struct trainer t;

	calm();
	memory_make(&t, 1);
	MUST_BE(cu->stream_free(t.stream[0]), 0);
	MUST_BE(cu->stream_new(&t.stream[0], CUDA_STREAM_NON_BLOCKING, 0), 0);
	attach(&t, "refused", CKPT_FINISH, 0, UINT64_MAX);
	declare(&t);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	assert_int_equal(ckpt_snapshot(t.c, 2, &bad), -EINVAL);
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	update_queue(&t, 2, false);
	*t.host = 1;
	fake->release(true);
	MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_COMMITTED, PATIENCE, &t.err));
	sync_all(&t);
	it_comes_back(&t, 1, CKPT_FROM_DISK);
	job_end(&t);
}

/* What torch's streams are if nobody has made others. Several tensors are copied by value. */
TEST(steps_are_taken_on_the_default_stream)
{
	struct trainer t;

	calm();
	memory_make(&t, 2);
	for (uint32_t d = 0; d < 2; d++) {
		MUST_BE(cu->ctx_set(t.ctx[d]), 0);
		MUST_BE(cu->stream_free(TAKE(t.stream[d])), 0);
	}
	attach(&t, "default", CKPT_FINISH, 0, UINT64_MAX);
	MUST_OF(&t, add(&t, "first", 1, &(uint64_t){ 3 }, (void *)(uintptr_t)t.amax[0], NULL,
			CKPT_VOLATILE, NULL));
	declare(&t);
	fake->seed(11);
	fake->bandwidth(.5);
	train(&t, 1, 3, true);
	calm();
	it_comes_back(&t, 3, CKPT_FROM_DISK);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	for (uint32_t d = 0; d < 2; d++) {
		MUST_BE(cu->ctx_set(t.ctx[d]), 0);
		MUST_BE(cu->stream_new(&t.stream[d], 0, 0), 0);
	}
	memory_free(&t);
	assert_int_equal(fake->violations(), 0);
	host_stop(&H);
}

/* A guard has let the stream wait, and the trainer may have ended it since: a later guard and a
 * detach do not use it any more. The copy goes on, and its step is whole. */
TEST(behind_its_guard_a_stream_is_not_used_any_more)
{
	struct trainer t;
	uint64_t asked;

	job_begin(&t, 1, "ended", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->bandwidth(.003);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	asked = fake->calls("cuStreamGetCtx") + fake->calls("cuStreamWaitEvent");
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	assert_int_equal(shared_snap_state(shared_snap_newest(atomic_load(&t.c->link)->rank), NULL),
			 SNAP_COPYING);
	fake->release(false);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	assert_int_equal(fake->calls("cuStreamGetCtx") + fake->calls("cuStreamWaitEvent"), asked);
	calm();
	attach(&t, "ended", CKPT_FINISH, 0, 0);
	declare(&t);
	it_comes_back(&t, 1, 0);
	job_end(&t);
}

/* A guard has let the copy go; a second one names another stream. It waits, whatever the time that
 * it takes; or if it cannot wait, the step is torn. */
TEST(a_second_guard_orders_the_stream_that_it_names)
{
	const struct graph_calls graphs = graph_calls();
	void *graph;
	struct ckpt_mark m = ROW(.size = sizeof m);
	struct trainer t;
	cuda_stream other;

	for (int captured = 0; captured < 2; captured++) {
		uint64_t waits;
		int rc;

		calm();
		memory_make(&t, 1);
		MUST_BE(cu->stream_new(&other, CUDA_STREAM_NON_BLOCKING, 0), 0);
		attach(&t, "second", CKPT_BOUNDED, PATIENCE, UINT64_MAX);
		declare(&t);
		MUST_BE(ckpt_fresh(t.c), 0);
		update_queue(&t, 1, false);
		sync_all(&t);
		fake->hold(); /* and the library thinks that the device is fast */
		atomic_store(&t.c->copier.queued.rate, UINT64_C(1) << 36);
		MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
		MUST_BE(ckpt_guard(t.c, NULL), 0);
		atomic_store(&t.c->copier.queued.rate, 1);
		t.c->guard_ns = 50 * NS_PER_MS;
		m.stream = other;
		if (captured)
			MUST_BE(graphs.begin(other, CUDA_CAPTURE_RELAXED), 0);
		waits = fake->calls("cuStreamWaitEvent");
		rc = ckpt_guard(t.c, &m);
		assert_int_equal(rc, captured ? CKPT_TORN : 0);
		assert_int_equal(fake->calls("cuStreamWaitEvent"), waits + !captured);
		if (captured) {
			MUST_BE(graphs.end(other, &graph), 0);
			MUST_BE(graphs.drop(graph), 0);
		}
		fake->release(false);
		rc = ckpt_wait(t.c, 1, CKPT_STAGED, PATIENCE, &t.err);
		assert_int_equal(rc, captured ? -ENOENT : 0);
		MUST_BE(ckpt_detach(t.c, 0), 0);
		MUST_BE(cu->stream_free(other), 0);
		memory_free(&t);
	}
	host_stop(&H);
}

/* The guard has returned 0: the step is not lost though its copy still runs. */
TEST(a_restore_waits_for_the_copy_that_a_guard_has_let_go)
{
	struct trainer t;

	job_begin(&t, 1, "back", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->bandwidth(.003);
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	MUST_OF(&t, restore(&t, CKPT_LATEST, 0));
	calm();
	assert_true(holds(&t, 1));
	job_end(&t);
}

/* Lets the streams go on behind gate_run when a call is seen to wait for them, or has copied. */
static struct tardy {
	pthread_t thread;
	uint64_t asked, synced, copied; /* before the call */
	_Atomic bool returned;
	bool wrote; /* it did not wait */
} tardy;

static void *late_run(void *unused)
{
	(void)unused;
	must_soon(asked_often(tardy.asked) || fake->calls("cuCtxSynchronize") > tardy.synced ||
		  fake->copied() != tardy.copied || atomic_load(&tardy.returned));
	tardy.wrote = atomic_load(&tardy.returned) || fake->copied() != tardy.copied;
	atomic_store(&shut, false);
	return NULL;
}

static void streams_are_late(struct trainer *t)
{
	atomic_store(&shut, true);
	for (uint32_t d = 0; d < t->ndevice; d++) {
		MUST_BE(cu->ctx_set(t->ctx[d]), 0);
		MUST_BE(launch_host(t->stream[d], gate_run, NULL), 0);
	}
	MUST_BE(cu->ctx_set(t->ctx[0]), 0);
	tardy = (struct tardy){ .asked = fake->calls("cuEventQuery"),
				.synced = fake->calls("cuCtxSynchronize"),
				.copied = fake->copied() };
	MUST_BE(pthread_create(&tardy.thread, NULL, late_run, NULL), 0);
}

static bool was_late(void)
{
	atomic_store(&tardy.returned, true);
	MUST_BE(pthread_join(tardy.thread, NULL), 0);
	return !tardy.wrote;
}

/* If a restore is given streams, it waits for the work on these and for nothing else: a capture of
 * another stream goes on, and its graph is complete. */
TEST(a_restore_waits_for_the_streams_that_it_is_given)
{
	const struct graph_calls graphs = graph_calls();
	void *graph;
	struct ckpt_stream at[2] = { 0 };
	struct ckpt_want w =
		ROW(.size = sizeof w, .step = 1, .flags = CKPT_FROM_DISK, .nstream = 2, .more = at);
	struct trainer t;
	cuda_stream other;

	calm();
	memory_make(&t, 2);
	MUST_BE(cu->stream_new(&other, CUDA_STREAM_NON_BLOCKING, 0), 0);
	attach(&t, "streams", CKPT_FINISH, 0, 0);
	declare(&t);
	train(&t, 1, 1, false);
	for (uint32_t d = 0; d < 2; d++)
		at[d] = (struct ckpt_stream){ t.stream[d], 1 + d, 0 };
	for (unsigned mode = CUDA_CAPTURE_GLOBAL; mode <= CUDA_CAPTURE_RELAXED; mode++) {
		MUST_BE(graphs.begin(other, mode), 0);
		streams_are_late(&t);
		update_queue(&t, 9, false);
		w.nstream = 2;
		MUST_OF(&t, ckpt_restore(t.c, &w, NULL, &t.err));
		assert_true(was_late());
		MUST_BE(graphs.end(other, &graph), 0);
		MUST_BE(graphs.drop(graph), 0);
		assert_true(holds(&t, 1));
		/* all streams of a device that is not named */
		MUST_BE(graphs.begin(other, mode), 0);
		w.nstream = 0;
		assert_int_equal(ckpt_restore(t.c, &w, NULL, &t.err), -EBUSY);
		assert_non_null(strstr(t.err.msg, "CUDA device 0: a stream is being captured"));
		assert_non_null(strstr(t.err.msg, "ckpt_want.more"));
		graph = NULL;
		assert_int_equal(graphs.end(other, &graph), CUDA_CAPTURE_INVALIDATED);
		if (graph)
			(void)graphs.drop(graph);
	}
	/* the stream that is given is captured; is of another device; is given twice; is nothing */
	w.nstream = 2;
	MUST_BE(graphs.begin(t.stream[0], CUDA_CAPTURE_RELAXED), 0);
	assert_int_equal(ckpt_restore(t.c, &w, NULL, &t.err), -EBUSY);
	MUST_BE(graphs.end(t.stream[0], &graph), 0);
	MUST_BE(graphs.drop(graph), 0);
	at[0].stream = t.stream[1];
	assert_int_equal(ckpt_restore(t.c, &w, NULL, &t.err), -EINVAL);
	assert_non_null(strstr(t.err.msg, "CUDA device 0: the stream that ckpt_want.more names"));
	at[0] = (struct ckpt_stream){ t.stream[1], 2, 0 };
	assert_int_equal(ckpt_restore(t.c, &w, NULL, &t.err), -EINVAL);
	assert_non_null(strstr(t.err.msg, "twice"));
	w.more = NULL;
	assert_int_equal(ckpt_restore(t.c, &w, NULL, &t.err), -EINVAL);
	assert_non_null(strstr(t.err.msg, "nstream"));
	w.nstream = 0;
	MUST_OF(&t, ckpt_restore(t.c, &w, NULL, &t.err));
	assert_true(holds(&t, 1));
	MUST_BE(ckpt_detach(t.c, 0), 0);
	MUST_BE(cu->stream_free(other), 0);
	memory_free(&t);
	host_stop(&H);
}

/* Without memory on the device for what is copied by value; then with it. */
TEST(a_seal_that_failed_is_made_up_for_by_the_next_one)
{
	struct trainer t;

	calm();
	memory_make(&t, 1);
	attach(&t, "sealed", CKPT_FINISH, 0, 0);
	tensors_add(&t);
	fake->fault("cuMemAlloc", 1, CUDA_OUT_OF_MEMORY);
	assert_int_equal(ckpt_seal(t.c, PATIENCE, &t.err), -ENOMEM);
	assert_non_null(strstr(t.err.msg, "CUDA_ERROR_OUT_OF_MEMORY"));
	calm();
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	train(&t, 1, 1, true);
	it_comes_back(&t, 1, CKPT_FROM_DISK);
	job_end(&t);
}

/* A seal that fails half way has already dropped the list of the seal before, though nothing was
 * declared in between. */
TEST(behind_a_seal_that_failed_half_way_no_step_is_marked_before_the_next_one)
{
	struct trainer t;

	job_begin(&t, 1, "halfway", CKPT_FINISH, 0, 0);
	train(&t, 1, 1, true);
	t.c->devices.scratch[0].bytes = 0; /* the next seal asks for memory of the device */
	fake->fault("cuMemAlloc", 1, CUDA_OUT_OF_MEMORY);
	assert_int_equal(ckpt_seal(t.c, PATIENCE, &t.err), -ENOMEM);
	calm();
	assert_int_equal(mark(&t, 2, CKPT_PERSIST), CKPT_SKIPPED);
	(void)ckpt_why(t.c, &t.err);
	assert_non_null(strstr(t.err.msg, "called ckpt_seal after the newest declaration"));
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	train(&t, 2, 2, true);
	it_comes_back(&t, 2, CKPT_FROM_DISK);
	job_end(&t);
}

/* At a byte a second; the first chunks go at once. */
TEST(until_its_guard_a_copy_gives_the_device_no_more_than_its_rate_allows_and_then_all)
{
	const uint64_t n = 20 << 20, all = n * 4, first = QUEUED_DEPTH * DEVICE_CHUNK;
	struct trainer t;
	uint64_t before;
	cuda_ptr big;

	calm();
	memory_make(&t, 1);
	MUST_BE(cu->mem_alloc(&big, all), 0);
	attach(&t, "paced", CKPT_FINISH, 0, 1);
	MUST_OF(&t, add(&t, "big", 1, &n, (void *)(uintptr_t)big, NULL, CKPT_STABLE, NULL));
	declare(&t);
	update_queue(&t, 1, false);
	sync_all(&t);
	before = fake->copied();
	MUST_BE(mark(&t, 1, CKPT_STAGE_ONLY), 0);
	assert_soon(fake->copied() - before >= first && fake->queued() == 0);
	for (uint32_t look = 0; look < 100; look++) { /* a tenth of a second: no byte more is due */
		assert_true(fake->copied() - before < first + 2 * DEVICE_CHUNK);
		usleep(1000);
	}
	assert_int_equal(ckpt_guard(t.c, NULL), 0);
	MUST_OF(&t, ckpt_wait(t.c, 1, CKPT_STAGED, PATIENCE, &t.err));
	assert_true(fake->copied() - before >= all);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	MUST_BE(cu->mem_free(big), 0);
	memory_free(&t);
	host_stop(&H);
}

/* The update that was queued last is in the fingerprint. */
TEST(a_fingerprint_waits_for_what_is_queued)
{
	uint64_t early, late;
	struct trainer t;

	job_begin(&t, 1, "early", CKPT_FINISH, 0, 0);
	update_queue(&t, 1, false);
	sync_all(&t);
	streams_are_late(&t);
	update_queue(&t, 2, false);
	MUST_BE(ckpt_fingerprint(t.c, t.id[0], &early), 0);
	assert_true(was_late());
	sync_all(&t);
	MUST_BE(ckpt_fingerprint(t.c, t.id[0], &late), 0);
	assert_true(early == late);
	job_end(&t);
}

/* Between the mark and its guard it waits for the streams of the mark: a capture of another stream
 * goes on. */
TEST(a_fingerprint_behind_a_mark_waits_for_its_streams)
{
	const struct graph_calls graphs = graph_calls();
	void *graph;
	struct trainer t;
	cuda_stream other;

	calm();
	memory_make(&t, 2);
	MUST_BE(cu->stream_new(&other, CUDA_STREAM_NON_BLOCKING, 0), 0);
	attach(&t, "amid", CKPT_FINISH, 0, 0);
	declare(&t);
	for (unsigned mode = CUDA_CAPTURE_GLOBAL; mode <= CUDA_CAPTURE_RELAXED; mode++) {
		uint64_t early, late;
		uint32_t step = 1 + mode;

		MUST_BE(launch_host(t.stream[0], sleep_run, NULL), 0);
		update_queue(&t, step, false);
		assert_soon(mark(&t, step, CKPT_STAGE_ONLY) == 0);
		MUST_BE(graphs.begin(other, mode), 0);
		MUST_BE(ckpt_fingerprint(t.c, t.id[0], &early), 0);
		MUST_BE(graphs.end(other, &graph), 0);
		MUST_BE(graphs.drop(graph), 0);
		assert_int_equal(ckpt_guard(t.c, NULL), 0);
		MUST_BE(ckpt_fingerprint(t.c, t.id[0], &late), 0);
		assert_true(early == late);
		MUST_BE(graphs.begin(other, mode), 0);
		assert_int_equal(ckpt_fingerprint(t.c, t.id[0], &late), -EBUSY);
		graph = NULL;
		assert_int_equal(graphs.end(other, &graph), CUDA_CAPTURE_INVALIDATED);
		if (graph)
			(void)graphs.drop(graph);
	}
	MUST_BE(ckpt_detach(t.c, 0), 0);
	MUST_BE(cu->stream_free(other), 0);
	memory_free(&t);
	host_stop(&H);
}

/* The device comes to the mark long after the guard. A first step is torn, because nothing is
 * known; what torn ones show is enough for later ones, however small the state is. */
TEST(a_host_that_is_ahead_of_a_small_state_tears_few_steps)
{
	uint32_t whole = 0;
	struct trainer t;

	job_begin(&t, 1, "small", CKPT_BOUNDED, 20 * NS_PER_MS, 0);
	for (uint32_t step = 1; whole < 2; step++) {
		int rc;

		assert_true(step < 300);
		fake->hold();
		update_queue(&t, step, false);
		rc = mark(&t, step, CKPT_PERSIST);
		assert_true(rc == 0 || rc == CKPT_SKIPPED);
		whole += ckpt_guard(t.c, NULL) == 0 && rc == 0;
		fake->release(false);
		sync_all(&t);
		assert_soon(copier_idle(t.c));
	}
	job_end(&t);
}

TEST(memory_that_was_freed_tears_the_step_and_is_named)
{
	struct trainer t;

	job_begin(&t, 1, "freed", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	MUST_BE(cu->mem_free(t.m[0]), 0);
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	assert_int_equal(ckpt_guard(t.c, NULL), CKPT_TORN);
	assert_int_equal(ckpt_why(t.c, &t.err), -ENOENT);
	assert_non_null(strstr(t.err.msg, "model/m0"));
	MUST_BE(cu->mem_alloc(&t.m[0], BYTES), 0);
	job_end(&t);
}

static uint64_t torn(const struct trainer *t)
{
	struct ckpt_stats s = { .size = sizeof s };

	MUST_BE(ckpt_stats(t->c, &s), 0);
	return s.torn;
}

/* The guard has let the copy go, and returned 0. */
TEST(a_copy_that_fails_behind_its_guard_is_counted_as_torn_once)
{
	const struct link *l;
	struct trainer t;

	job_begin(&t, 1, "later", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	MUST_BE(ckpt_guard(t.c, NULL), 0);
	assert_int_equal(torn(&t), 0);
	fake->sticky(0, CUDA_ILLEGAL_ADDRESS);
	assert_int_equal(ckpt_wait(t.c, 1, CKPT_STAGED, PATIENCE, &t.err), -ENOENT);
	l = atomic_load(&t.c->link);
	assert_soon(atomic_load(&l->job->count[OUTCOME_TORN]) == 1);
	assert_soon(torn(&t) == 1);
	assert_int_equal(ckpt_guard(t.c, NULL), CKPT_TORN);
	assert_int_equal(torn(&t), 1);
	calm(); /* so that what is pinned can be given back */
	MUST_BE(ckpt_detach(t.c, 0), 0);
	assert_int_equal(fake->registered(), 0);
	memory_free(&t);
	host_stop(&H);
}

/* What was pinned cannot be given back then: tests that need pinned slots come before. */
TEST(a_device_that_fails_tears_the_step_and_training_goes_on)
{
	struct trainer t;

	job_begin(&t, 1, "failed", CKPT_FINISH, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->hold();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	fake->sticky(0, CUDA_ILLEGAL_ADDRESS);
	assert_int_equal(ckpt_guard(t.c, NULL), CKPT_TORN);
	assert_int_equal(mark(&t, 2, CKPT_PERSIST), CKPT_SKIPPED);
	assert_int_equal(ckpt_why(t.c, &t.err), -ENOENT);
	assert_non_null(strstr(t.err.msg, "has failed"));
	assert_int_equal(restore(&t, CKPT_LATEST, 0), -EIO);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	calm();
	memory_free(&t);
	host_stop(&H);
}

/* Registration is refused, the device cannot write words: slower roads to the same steps. */
TEST(without_pinned_slots_steps_are_whole)
{
	struct trainer t;

	calm();
	memory_make(&t, 1);
	attach(&t, "bounced", CKPT_FINISH, 0, UINT64_MAX);
	fake->register_limit(fake->registered() + (60 << 20));
	fake->fault("cuMemHostRegister", 0, CUDA_OUT_OF_MEMORY);
	said_forget(&said);
	declare(&t);
	said_await(&said, "cannot be pinned"); /* the copier says it when it has the slots */
	train(&t, 1, 3, false);		       /* guards wait for the copy */
	it_comes_back(&t, 3, 0);
	assert_int_equal(fake->violations(), 0);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	calm();
	memory_free(&t);
	host_stop(&H);
}

TEST(a_fingerprint_is_that_of_the_same_values_in_host_memory)
{
	uint32_t *host = malloc(ROWS * COLS * 4), id;
	const uint64_t two[] = { ROWS, COLS };
	uint64_t of_host, of_device;
	struct trainer t;

	MUST(host);
	calm();
	memory_make(&t, 1);
	attach(&t, "print", CKPT_FINISH, 0, 0);
	for (uint32_t i = 0; i < ROWS * COLS; i++)
		host[i] = value(0, 1, i);
	MUST_OF(&t, add(&t, "copy", 2, two, host, NULL, 0, &id));
	declare(&t);
	update_queue(&t, 1, false);
	sync_all(&t);
	MUST_BE(ckpt_fingerprint(t.c, id, &of_host), 0);
	MUST_BE(ckpt_fingerprint(t.c, t.id[0], &of_device), 0);
	assert_true(of_host == of_device);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	memory_free(&t);
	free(host);
	host_stop(&H);
}

static uint64_t copy_calls(void)
{
	return fake->calls("cuMemcpyDtoHAsync") + fake->calls("cuMemcpyBatchAsync") +
	       fake->calls("cuMemcpy2DAsync");
}

/* Steps whose copies are late, with a guard that waits for none of them. Returns how many were torn
 * or skipped. */
static uint32_t averaged_late(const char *spec, struct ckpt_stats *ret)
{
	const uint64_t one = 1;
	const struct ckpt_local local = { .start = (const uint64_t[]){ 0 }, .extent = &one };
	struct ckpt_tensor x = ROW(.size = sizeof x, .dtype = CKPT_F32, .role = CKPT_PARAM,
				   .component = "model", .name = "p", .ndim = 1, .shape = &one,
				   .mesh = CKPT_ALONE, .mode = CKPT_BOXES, .nlocal = 1);
	struct ckpt_local at = local;
	struct trainer t;
	uint32_t lost = 0;

	calm();
	memory_make(&t, 1);
	slots = 3;
	attach(&t, spec, CKPT_NEVER, 0, UINT64_MAX);
	tensors_add(&t);
	at.ptr = t.host + 16;
	x.local = &at;
	MUST_OF(&t, ckpt_tensor_add(t.c, &x, NULL, &t.err));
	MUST_OF(&t, ckpt_average(t.c, "fast", *spec == 'e' ? "uniform every" : "uniform", &t.err));
	MUST_OF(&t, ckpt_seal(t.c, PATIENCE, &t.err));
	fake->bandwidth(.01);
	update_queue(&t, 1, false);
	for (uint32_t step = 1; step <= 12; step++) {
		lost += mark(&t, step, step == 12 ? CKPT_FINAL : CKPT_STAGE_ONLY) != 0;
		lost += ckpt_guard(t.c, NULL) != 0;
		update_queue(&t, step + 1, false);
	}
	(void)ckpt_wait(t.c, 12, CKPT_COMMITTED, PATIENCE, &t.err);
	*ret = (struct ckpt_stats){ .size = sizeof *ret };
	MUST_BE(ckpt_stats(t.c, ret), 0);
	sync_all(&t);
	job_end(&t);
	return lost;
}

TEST(with_every_the_guard_waits_for_devices_too)
{
	struct ckpt_stats s;

	assert_int_equal(averaged_late("every", &s), 0);
	assert_int_equal(s.average_taken, 11);
	assert_int_equal(s.average_left_out, 0);
	assert_true(s.average_waits > 0);
}

TEST(and_without_it_their_copies_are_torn)
{
	struct ckpt_stats s;

	assert_true(averaged_late("plain", &s) > 0);
	assert_int_equal(s.average_waits, 0);
}

/* A driver call that never returns keeps the helper, and nothing else. */
TEST(a_driver_that_hangs_keeps_nobody)
{
	struct trainer t;
	uint64_t copies;

	job_begin(&t, 1, "hangs", CKPT_BOUNDED, 0, UINT64_MAX);
	update_queue(&t, 1, false);
	sync_all(&t);
	fake->fault("cuMemcpyDtoHAsync", 0, FAKECUDA_HANG);
	fake->fault("cuMemcpyBatchAsync", 0, FAKECUDA_HANG);
	fake->fault("cuMemcpy2DAsync", 0, FAKECUDA_HANG);
	copies = copy_calls();
	MUST_BE(mark(&t, 1, CKPT_PERSIST), 0);
	assert_soon(copy_calls() > copies); /* and so it hangs */
	assert_int_equal(ckpt_guard(t.c, NULL), CKPT_TORN);
	MUST_BE(mark(&t, 2, CKPT_PERSIST), 0); /* the helper does not come to it */
	assert_int_equal(ckpt_guard(t.c, NULL), CKPT_TORN);
	assert_int_equal(mark(&t, 3, CKPT_PERSIST), CKPT_SKIPPED);
	said_forget(&said);
	MUST_BE(ckpt_detach(t.c, 0), 0);
	assert_true(said_times(&said, "does not end its copies"));
	fake->unhang();
	calm();
	sync_all(&t);
	host_stop(&H);
}

UNIT(.setup = host_setup_started, .teardown = host_teardown, .group_setup = library_open);
