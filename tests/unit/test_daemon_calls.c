/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_calls.c - every function of ckpt.h, as its exported symbols list them, with a NULL
 * handle, with each of its pointers NULL, with every size of its structures, and in a child of the
 * process that has the handle: the result is the one that ckpt.h tells, and never a byte beyond
 * .size is touched.
 *
 * A new call is a line in `call`; without it the first test fails.
 */
#include "tests/lib/host.h"
#include "ckpt/client/handle.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define POINTERS 6

/* Not in every state of the tree: what is not there yet is not called. */
extern __typeof__(ckpt_fresh) ckpt_fresh __attribute__((weak));
extern __typeof__(ckpt_why) ckpt_why __attribute__((weak));

static uint64_t step_now = 100;

/* --- good arguments --- */
static const char *const dim_name[] = { "x" };
static const uint32_t dim_size[] = { 1 }, dim_rank[] = { 0 };
static const uint64_t shape[] = { 4 };
static const struct ckpt_placement place[] = { { .how = CKPT_REPLICATE } };
static uint64_t memory[4], length = 8, got_length;
static struct ckpt_local local[] = { { .ptr = memory } };
static struct ckpt_tensor tensor =
	ROW(.size = sizeof tensor, .dtype = CKPT_U64, .component = "new", .name = "t", .ndim = 1,
	    .nplace = 1, .nlocal = 1, .shape = shape, .place = place, .local = local);
static struct ckpt_opts opts = { .size = sizeof opts, .job = "calls", .world = 1 };
static struct ckpt_mark mark = { .size = sizeof mark };
static struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST };
static struct ckpt_got got = { .size = sizeof got };
static struct ckpt_stats stats = { .size = sizeof stats };
static struct ckpt_step steps[4];
static struct ckpt_err err_;
static uint32_t mesh_id, tensor_id, moves;
static uint64_t sum;
static void *memory_new;
static char buffer[16];
static ckpt *handle_new;

/* --- the calls --- */
#define A(i, type) ((type)(uintptr_t)p[i])
#define CALL(f) static int64_t f(ckpt *c, void *const *p)
#define GIVES(f, call)            \
	CALL(f)                   \
	{                         \
		(void)c, (void)p; \
		return call;      \
	}

CALL(do_attach)
{
	int rc = ckpt_attach(p[0], A(1, ckpt **), p[2]);

	(void)c;
	if (rc == 0)
		MUST(ckpt_detach(TAKE(handle_new), 0) == 0);
	return rc;
}
GIVES(do_mesh, ckpt_mesh(c, 1, A(0, const char *const *), p[1], p[2], p[3], p[4]))
GIVES(do_alloc, ckpt_alloc(c, 4096, A(0, void **), p[1]))
CALL(do_tensor_add)
{
	int rc = ckpt_tensor_add(c, p[0], p[1], p[2]);

	if (rc == 0) /* the next one is not declared twice */
		tensor.name = strcmp(tensor.name, "t") ? "t" : "u";
	if (rc == 0 && p[1])
		MUST(ckpt_tensor_drop(c, tensor_id) == 0);
	return rc;
}
CALL(do_tensor_move)
{
	struct ckpt_tensor t = tensor;
	uint32_t id = 0;

	t.name = "moves";
	if (c && ckpt_tensor_add(c, &t, &id, NULL) == 0)
		moves = id;
	return ckpt_tensor_move(c, moves, p[0], 1, p[1]);
}
GIVES(do_tensor_drop, ckpt_tensor_drop(c, 1u << 20))
GIVES(do_blob_add, ckpt_blob_add(c, p[0], 0, p[1], p[2], 8, p[3]))
GIVES(do_blob_resize, ckpt_blob_resize(c, p[0], 8, p[1]))
CALL(do_average)
{
	int rc = ckpt_average(c, p[0], p[1], p[2]);

	if (rc == 0) /* the next one is not declared twice */
		MUST(ckpt_average(c, p[0], NULL, NULL) == 0);
	return rc;
}
GIVES(do_attr, ckpt_attr(c, p[0], p[1], p[2]))
GIVES(do_seal, ckpt_seal(c, 0, p[0]))
GIVES(do_snapshot, ckpt_snapshot(c, ++step_now, p[0]))
GIVES(do_guard, ckpt_guard(c, p[0]))
GIVES(do_stop, ckpt_stop(c))
GIVES(do_last, ckpt_last(c, step_now + 1))
GIVES(do_wait, ckpt_wait(c, 1u << 30, CKPT_STAGED, 0, p[0]))
GIVES(do_steps, ckpt_steps(c, p[0], 4))
static int tensor_seen(void *arg, const struct ckpt_tensor_info *t)
{
	(void)arg, (void)t;
	return 0;
}
GIVES(do_tensors, ckpt_tensors(c, p[0], A(1, ckpt_tensor_fn *), p[2], p[3]))
GIVES(do_unmatched, ckpt_unmatched(c, A(0, ckpt_tensor_fn *), p[1]))
GIVES(do_restore, ckpt_restore(c, p[0], p[1], p[2]))
GIVES(do_blob_read, ckpt_blob_read(c, p[0], 0, p[1], sizeof buffer, p[2]))
GIVES(do_fingerprint, ckpt_fingerprint(c, 0, p[0]))
GIVES(do_stats, ckpt_stats(c, p[0]))
GIVES(do_fresh, ckpt_fresh(c))
GIVES(do_why, ckpt_why(c, p[0]))
GIVES(do_sizeof, ckpt_sizeof(p[0]))
GIVES(do_detach, ckpt_detach(c, 0))
GIVES(do_version, ckpt_version() ? 0 : -1)

#define GOOD(x) (void *)(uintptr_t)(x)

/* null: of each pointer, what NULL makes of the call: E -EINVAL; any other: it is allowed. handle:
 * it takes one. */
static const struct row {
	const char *name;
	int64_t (*call)(ckpt *c, void *const *p);
	const char *null;
	bool handle;
	void *good[POINTERS];
} call[] = {
	{ "ckpt_attach", do_attach, "EE-", false, { &opts, &handle_new, &err_ } },
	{ "ckpt_mesh",
	  do_mesh,
	  "EE-E-",
	  true,
	  { GOOD(dim_name), GOOD(dim_size), GOOD(dim_rank), &mesh_id, &err_ } },
	{ "ckpt_alloc", do_alloc, "E-", true, { &memory_new, &err_ } },
	{ "ckpt_tensor_add", do_tensor_add, "E--", true, { &tensor, &tensor_id, &err_ } },
	{ "ckpt_tensor_move", do_tensor_move, "E-", true, { local, &err_ } },
	{ "ckpt_tensor_drop", do_tensor_drop, "", true, { NULL } },
	{ "ckpt_blob_add", do_blob_add, "EEE-", true, { GOOD("a blob"), memory, &length, &err_ } },
	{ "ckpt_blob_resize", do_blob_resize, "E-", true, { GOOD("a blob"), &err_ } },
	{ "ckpt_average",
	  do_average,
	  "EE-",
	  true,
	  { GOOD("fast"), GOOD("constant decay=.9"), &err_ } },
	{ "ckpt_attr", do_attr, "E--", true, { GOOD("git"), GOOD("4f1c2ab"), &err_ } },
	{ "ckpt_seal", do_seal, "-", true, { &err_ } },
	{ "ckpt_snapshot", do_snapshot, "-", true, { &mark } },
	{ "ckpt_guard", do_guard, "-", true, { &mark } },
	{ "ckpt_last", do_last, "", true, { NULL } },
	{ "ckpt_stop", do_stop, "", true, { NULL } },
	{ "ckpt_wait", do_wait, "-", true, { &err_ } },
	{ "ckpt_steps", do_steps, "E", true, { steps } },
	{ "ckpt_restore", do_restore, "E--", true, { &want, &got, &err_ } },
	{ "ckpt_tensors", do_tensors, "EE--", true, { &want, GOOD(tensor_seen), &sum, &err_ } },
	{ "ckpt_unmatched", do_unmatched, "E-", true, { GOOD(tensor_seen), &sum } },
	{ "ckpt_blob_read", do_blob_read, "E--", true, { GOOD("a blob"), buffer, &got_length } },
	{ "ckpt_fingerprint", do_fingerprint, "E", true, { &sum } },
	{ "ckpt_stats", do_stats, "E", true, { &stats } },
	{ "ckpt_fresh", do_fresh, "", true, { NULL } },
	{ "ckpt_why", do_why, "-", true, { &err_ } },
	{ "ckpt_sizeof", do_sizeof, "-", false, { GOOD("ckpt_opts") } },
	{ "ckpt_detach", do_detach, "", true, { NULL } },
	{ "ckpt_version", do_version, "", false, { NULL } },
};

static bool there(const struct row *r)
{
	return !(r->call == do_fresh && !ckpt_fresh) && !(r->call == do_why && !ckpt_why);
}

/* --- the rig --- */
static int setup(void **state)
{
	static struct plan_of_job p;

	(void)state;
	host_make(&H);
	opts.store = H.store;
	opts.socket = "/nonexistent/socket"; /* of the handles that come and go */
	p = (struct plan_of_job)ROW(.socket = H.socket, .store = H.store, .job = "calls",
				    .mesh = "fsdp=1", .guard = CKPT_FINISH);
	host_start(&H, NULL);
	rank_open(&K, &p, 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (K.c)
		rank_close(&K, 0);
	host_stop(&H);
	host_free(&H);
	return 0;
}

/* --- the tests --- */
TEST_WITH(the_table_has_every_exported_call, NULL, NULL)
{
	FILE *f = popen("nm -D --defined-only " LIBCKPT, "re");
	bool exported[ARRAY_LEN(call)] = { false };
	char line[256], name[128];

	assert_non_null(f);
	while (fgets(line, sizeof line, f)) {
		size_t i = 0;

		if (sscanf(line, "%*s %*c %127[^@\n]", name) != 1 || strncmp(name, "ckpt_", 5) != 0)
			continue;
		while (i < ARRAY_LEN(call) && strcmp(call[i].name, name) != 0)
			i++;
		if (i == ARRAY_LEN(call))
			fail_msg("%s is exported and not tested", name);
		exported[i] = true;
	}
	assert_int_equal(pclose(f), 0);
	for (size_t i = 0; i < ARRAY_LEN(call); i++)
		if (exported[i] != there(&call[i]))
			fail_msg("%s is not exported", call[i].name);
}

TEST(a_handle_that_is_null_is_a_mistake_of_every_call)
{
	for (size_t i = 0; i < ARRAY_LEN(call); i++) {
		void *none[POINTERS] = { NULL };

		if (!call[i].handle || !there(&call[i]))
			continue;
		if (call[i].call(NULL, call[i].good) != -EINVAL ||
		    call[i].call(NULL, none) != -EINVAL)
			fail_msg("%s", call[i].name);
	}
	assert_non_null(strstr(err_.msg, "NULL"));
}

TEST(every_pointer_may_be_null_and_nothing_crashes)
{
	for (size_t i = 0; i < ARRAY_LEN(call); i++)
		for (size_t k = 0; k < strlen(call[i].null) && there(&call[i]); k++) {
			void *p[POINTERS];
			int64_t rc;

			memcpy(p, call[i].good, sizeof p);
			p[k] = NULL;
			rc = call[i].call(K.c, p);
			if (call[i].null[k] == 'E' ? rc != -EINVAL : rc == -EINVAL)
				fail_msg("%s without pointer %zu: %" PRId64, call[i].name, k, rc);
		}
	/* Inside of structures and arrays. */
	{
		static const int no_how[] = { 2,
					      0x80,
					      6 << 8,
					      0x100000,
					      INT_MIN,
					      -1,
					      CKPT_JSON | CKPT_NPY | CKPT_TEXT,
					      CKPT_PER_RANK | 4 };
		struct ckpt_tensor t = tensor;
		struct ckpt_mark m = mark;
		struct ckpt_note note = { NULL, 1 };
		const char *no_name[] = { NULL };
		static const char *const no_spec[] = { "",
						       " ",
						       "=",
						       "(",
						       "uniform (",
						       "uniform =copy",
						       "uniform a=(",
						       "uniform a=((uniform))",
						       "uniform \xff\n\x01",
						       "constant decay=1e999",
						       "constant decay=nan",
						       "constant decay=%n%s",
						       "uniform start=18446744073709551616" };
		static char long_name[CKPT_NAME_MAX + 2];
		struct ckpt_opts o = opts;

		memset(long_name, 'x', sizeof long_name - 1);
		t.name = NULL;
		assert_int_equal(ckpt_tensor_add(K.c, &t, NULL, NULL), -EINVAL);
		t = tensor;
		t.component = NULL;
		assert_int_equal(ckpt_tensor_add(K.c, &t, NULL, NULL), -EINVAL);
		for (size_t i = 0; i < ARRAY_LEN(no_how); i++)
			assert_int_equal(ckpt_blob_add(K.c, "a new blob", no_how[i], memory,
						       &length, 8, NULL),
					 -EOPNOTSUPP);
		t = tensor;
		t.dtype = CKPT_F4;
		t.ndim = 0;
		assert_int_equal(ckpt_tensor_add(K.c, &t, NULL, &err_), -EINVAL);
		assert_non_null(strstr(err_.msg, "a tensor of F4 needs a dimension"));
		t = tensor;
		t.shape = NULL;
		assert_int_equal(ckpt_tensor_add(K.c, &t, NULL, NULL), -EINVAL);
		t = tensor;
		t.place = NULL;
		assert_int_equal(ckpt_tensor_add(K.c, &t, NULL, NULL), -EINVAL);
		t = tensor;
		t.local = NULL;
		assert_int_equal(ckpt_tensor_add(K.c, &t, NULL, NULL), -EINVAL);
		m.nnote = 1;
		assert_int_equal(ckpt_snapshot(K.c, ++step_now, &m), -EINVAL);
		assert_int_equal(ckpt_guard(K.c, &m), -EINVAL);
		m.note = &note; /* a name is not needed */
		assert_true(ckpt_snapshot(K.c, ++step_now, &m) >= 0);
		assert_true(ckpt_guard(K.c, NULL) >= 0);
		assert_int_equal(ckpt_mesh(K.c, 1, no_name, dim_size, NULL, &mesh_id, NULL),
				 -EINVAL);
		for (size_t i = 0; i < ARRAY_LEN(no_spec); i++)
			assert_int_equal(ckpt_average(K.c, "fast", no_spec[i], NULL), -EINVAL);
		assert_int_equal(ckpt_average(K.c, long_name, "uniform", NULL), -EINVAL);
		assert_int_equal(ckpt_average(K.c, "", NULL, NULL), -EINVAL);
		o.job = NULL;
		assert_int_equal(ckpt_attach(&o, &handle_new, NULL), -EINVAL);
		o = opts;
		o.store = NULL;
		assert_int_equal(ckpt_attach(&o, &handle_new, NULL), -EINVAL);
		assert_null(handle_new);
	}
}

/* So many bytes that end where the memory ends. */
static uint8_t *edge(uint32_t bytes)
{
	static uint8_t *pages;

	if (!pages) {
		pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
			     0);
		MUST(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
	}
	return pages + 4096 - bytes;
}

static const struct row *row_of(int64_t (*f)(ckpt *c, void *const *p))
{
	size_t i = 0;

	while (call[i].call != f)
		i++;
	return &call[i];
}

static void sized(int64_t (*f)(ckpt *c, void *const *p), const void *good, uint32_t bytes,
		  uint32_t least)
{
	const struct row *r = row_of(f);

	for (uint32_t size = 0; size <= 2 * bytes; size++)
		for (int dirty = 0; dirty <= (size > bytes); dirty++) {
			uint32_t have = MAX(size, (uint32_t)sizeof size);
			uint8_t *at = edge(have);
			void *p[POINTERS];
			int64_t rc;

			memset(at, 0, have);
			memcpy(at, good, MIN(have, bytes));
			memcpy(at, &size, sizeof size);
			if (dirty)
				at[bytes + (size - bytes) / 2] = 1;
			memcpy(p, r->good, sizeof p);
			p[0] = at;
			err_.msg[0] = 0;
			rc = f(K.c, p);
			if (size < least			 ? rc != -EINVAL
			    : dirty				 ? rc != -EOPNOTSUPP
			    : f == do_restore || f == do_tensors ? rc != -ENOENT
								 : rc < 0)
				fail_msg("%s with .size %u of %u: %" PRId64 ", %s", r->name, size,
					 bytes, rc, err_.msg);
		}
}

TEST(structures_that_are_read_may_grow_but_not_shrink)
{
	sized(do_attach, &opts, sizeof opts, 128);
	sized(do_restore, &want, sizeof want, 32);
	sized(do_tensors, &want, sizeof want, 32);
	/* or ckpt_snapshot takes a launch for one whose restore has failed */
	assert_int_equal(do_restore(K.c, row_of(do_restore)->good), -ENOENT);
	sized(do_tensor_add, &tensor, sizeof tensor, 88);
	sized(do_snapshot, &mark, sizeof mark, 40);
	sized(do_guard, &mark, sizeof mark, 40);
	/* Flags of a later version. */
	opts.flags = want.flags = mark.flags = 1u << 30;
	assert_int_equal(do_attach(K.c, row_of(do_attach)->good), -EOPNOTSUPP);
	assert_int_equal(do_restore(K.c, row_of(do_restore)->good), -EOPNOTSUPP);
	assert_int_equal(do_snapshot(K.c, row_of(do_snapshot)->good), -EOPNOTSUPP);
	assert_int_equal(do_guard(K.c, row_of(do_guard)->good), -EOPNOTSUPP);
	opts.flags = want.flags = mark.flags = 0;
	opts.pad = 1;
	assert_int_equal(do_attach(K.c, row_of(do_attach)->good), -EOPNOTSUPP);
	opts.pad = 0;
}

static void filled(int64_t (*f)(ckpt *c, void *const *p), uint32_t which, uint32_t bytes,
		   uint32_t stride)
{
	const struct row *r = row_of(f);

	for (uint32_t size = 0; size <= 2 * bytes; size += size < 16 ? 1 : stride) {
		uint32_t have = MAX(size, (uint32_t)sizeof size);
		uint8_t *at = edge(have);
		void *p[POINTERS];
		uint32_t written = 0;
		int64_t rc;

		memset(at, 0xaa, have);
		memcpy(at, &size, sizeof size);
		memcpy(p, r->good, sizeof p);
		p[which] = at;
		rc = f(K.c, p);
		if (rc != (size < 8 ? -EINVAL : 0))
			fail_msg("%s with .size %u of %u: %" PRId64 ", %s", r->name, size, bytes,
				 rc, err_.msg);
		assert_memory_equal(at, &size, sizeof size);
		for (uint32_t i = sizeof size; i < have; i++)
			written += at[i] != 0xaa;
		if (size < 8)
			assert_int_equal(written, 0);
		else
			assert_true(written >= MIN(size, bytes) / 2 && written <= MIN(size, bytes));
		for (uint32_t i = bytes; i < have; i++)
			assert_int_equal(at[i], 0xaa);
	}
}

TEST(structures_that_are_filled_are_filled_up_to_their_size)
{
	struct plan_of_job p = *K.plan;

	filled(do_stats, 0, sizeof stats, 1);
	step_to(&K, 1, CKPT_FINAL, CKPT_COMMITTED);
	rank_close(&K, 0);
	rank_open(&K, &p, 0);
	filled(do_restore, 1, sizeof got, 97);
	rank_close(&K, 0);
	K.c = NULL;
}

TEST_WITH(bindings_can_ask_for_every_size, NULL, NULL)
{
#define SIZE(s) assert_int_equal(ckpt_sizeof(#s), sizeof(struct s))
	SIZE(ckpt_err);
	SIZE(ckpt_opts);
	SIZE(ckpt_placement);
	SIZE(ckpt_local);
	SIZE(ckpt_tensor);
	SIZE(ckpt_note);
	SIZE(ckpt_mark);
	SIZE(ckpt_step);
	SIZE(ckpt_want);
	SIZE(ckpt_got);
	SIZE(ckpt_stats);
	SIZE(ckpt_tensor_info);
	assert_int_equal(ckpt_sizeof("ckpt"), 0);
	assert_int_equal(ckpt_sizeof(""), 0);
	assert_int_equal(ckpt_sizeof(NULL), 0);
}

/* Attached anew, where this job's earlier steps are none to go on from. */
static void open_again(const struct plan_of_job *p)
{
	rank_open(&K, p, 0);
	if (ckpt_fresh)
		MUST_BE(ckpt_fresh(K.c), 0);
}

/* --- fork --- */
static void must_commit(uint64_t step)
{
	int rc;

	while ((rc = rank_step(&K, step, CKPT_PERSIST)) == CKPT_SKIPPED)
		usleep(2000);
	MUST_BE(rc, 0);
	must_wait(&K, step, CKPT_COMMITTED);
}

TEST(a_child_may_do_what_it_likes_and_the_parent_trains_on)
{
	enum { LEAVES, CALLS, DETACHES, STAYS, KINDS } kind;
	int status, hold[2];
	char byte;

	assert_int_equal(pipe2(hold, O_CLOEXEC), 0);
	must_commit(1);
	for (kind = LEAVES; kind < KINDS; kind++) {
		pid_t pid;

		must_step(&K, 2 * kind + 10, CKPT_PERSIST); /* its copy is under way */
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			int bad = 0;

			(void)close(hold[1]);
			for (size_t i = 0; i < ARRAY_LEN(call) && kind == CALLS; i++)
				if (call[i].handle && there(&call[i]))
					bad += call[i].call(K.c, call[i].good) != -ECHILD;
			if (kind == DETACHES)
				bad += ckpt_detach(K.c, SEC) != -ECHILD ||
				       ckpt_detach(K.c, 0) != -ECHILD;
			if (kind == STAYS && read(hold[0], &byte, 1) < 0)
				bad++;
			_exit(bad);
		}
		if (kind != STAYS) {
			assert_int_equal(waitpid(pid, &status, 0), pid);
			assert_int_equal(status, 0);
		}
		assert_ok(ckpt_guard(K.c, NULL)); /* not torn: FINISH, and nobody let go */
		must_commit(2 * kind + 11);
		assert_true(host_has(&H, "calls", 2 * kind + 10));
		if (kind != STAYS)
			continue;
		/* The child has the socket, too: that keeps nobody from leaving and coming back. */
		{
			const struct plan_of_job p = *K.plan;

			rank_close(&K, 0);
			open_again(&p);
			must_commit(100);
		}
		(void)close(hold[1]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		must_commit(101);
	}
	(void)close(hold[0]);
}

/* --- steps --- */
TEST(a_step_that_is_too_far_is_refused_and_the_next_one_is_taken)
{
	const uint64_t far = UINT64_C(1) << 35;
	struct plan_of_job p = *K.plan;
	struct ckpt_err err = { 0 };

	must_commit(5);
	for (int i = 0; i < 2; i++) {
		MUST_BE(rank_step(&K, 5 + far, 0), -EINVAL);
		assert_int_equal(why_jump(K.c, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "step 34359738373 is 2^35 or more above"));
		assert_int_equal(rank_why(&K), -EINVAL);
		assert_non_null(strstr(err.msg, "2^35"));
	}
	MUST_BE(rank_step(&K, CKPT_LATEST - 2, 0), -EINVAL);
	must_commit(6);
	assert_int_equal(why_jump(K.c, &err), 0);
	must_commit(5 + far);
	must_commit(4 + 2 * far);
	must_commit(5 + 2 * far);
	rank_close(&K, 0);
	rank_open(&K, &p, 0); /* another launch begins wherever it likes */
	must_restore(&K, 5 + 2 * far, 0);
	must_commit(UINT64_C(1) << 62);
	must_commit((UINT64_C(1) << 62) + 1);
}

/* --- STAGED --- */
TEST(one_rank_may_wait_for_staged_while_the_others_stand_in_a_barrier)
{
	struct plan_of_job p = *K.plan;
	struct rank k[2] = { 0 };

	p.job = "barrier";
	p.mesh = "fsdp=2";
	/* A loop that begins with a guard: the first step, too. */
	ranks_open(k, 2, &p);
	for (uint64_t step = 1; step <= 3; step++) {
		for (uint32_t r = 0; r < 2; r++)
			must_step(&k[r], step, CKPT_STAGE_ONLY);
		must_wait(&k[0], step, CKPT_STAGED);
	}
	ranks_close(k, 2);
	/* Without one nobody knows yet that the others will guard: each of them waits, or
	 * guards. */
	for (int how = 0; how < 2; how++) {
		p.job = how ? "guards" : "waits";
		ranks_open(k, 2, &p);
		for (uint32_t r = 0; r < 2; r++) {
			rank_fill(&k[r], 1);
			MUST_BE(ckpt_snapshot(k[r].c, 1, NULL), 0);
		}
		MUST_BE(ckpt_wait(k[0].c, 1, CKPT_STAGED, SEC / 2, &k[0].err), -ETIMEDOUT);
		if (how)
			must_guard(&k[1]);
		else
			MUST_BE(rank_wait(&k[1], 1, CKPT_STAGED), 0);
		must_wait(&k[0], 1, CKPT_STAGED);
		ranks_close(k, 2);
	}
}

/* --- seals --- */
TEST(a_rank_that_trained_on_after_an_unready_seal_declares_anew_with_the_others)
{
	struct plan_of_job p = *K.plan;
	struct rank k[2] = { 0 };

	p.job = "seals";
	p.mesh = "fsdp=2";
	ranks_open(k, 2, &p);
	for (uint64_t round = 0, step = 0; round < 3; round++) {
		uint64_t end = now_ns() + 30 * SEC;
		int rc;

		MUST_BE(rank_seal(&k[0], 0), CKPT_SKIPPED); /* rank 1 has not come yet */
		must_seal(&k[1]);
		do /* rank 0 trains on and does not call ckpt_seal again */
			rc = rank_step(&k[0], ++step, CKPT_STAGE_ONLY);
		while (rc == CKPT_SKIPPED && now_ns() < end);
		assert_int_equal(rc, 0);
		must_step(&k[1], step, CKPT_STAGE_ONLY);
		must_wait(&k[0], step, CKPT_STAGED);
	}
	ranks_close(k, 2);
}

UNIT(.setup = setup, .teardown = teardown);
