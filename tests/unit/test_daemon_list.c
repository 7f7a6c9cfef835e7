/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_list.c - ckpt_tensors: what a step holds, from memory and from disk, before anything
 * is declared; and ckpt_unmatched: what a restore did not match, by name. Each error of both.
 */
#include "ckpt/base/container.h"
#include "ckpt/base/dtype.h"
#include "ckpt/client/handle.h"
#include "ckpt/table/encode.h"
#include "formats/native/native.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define JOB "list"
#define job(mesh, ...) plan(JOB, mesh, ##__VA_ARGS__)
#define INFOS 64

/* What was told, copied: it goes when the call returns. */
struct told {
	struct info {
		struct ckpt_tensor_info t;
		char component[32], name[32], of[32], text[300];
		uint64_t shape[4];
	} info[INFOS];
	uint32_t n, most; /* most: then it says -ECANCELED; 0: never */
};

static int tell(void *arg, const struct ckpt_tensor_info *t)
{
	struct told *x = arg;
	struct info *to = &x->info[x->n];

	MUST(t->size == sizeof *t && x->n < INFOS && t->ndim <= 4);
	to->t = *t;
	snprintf(to->component, sizeof to->component, "%s", t->component);
	snprintf(to->name, sizeof to->name, "%s", t->name);
	snprintf(to->of, sizeof to->of, "%s", t->of);
	snprintf(to->text, sizeof to->text, "%s", t->text);
	for (uint32_t d = 0; d < t->ndim; d++)
		to->shape[d] = t->shape[d];
	x->n++;
	return x->n == x->most ? -ECANCELED : 7; /* what is not below 0 goes on */
}

static const struct info *told_find(const struct told *x, const char *component, const char *name,
				    uint32_t rank)
{
	for (uint32_t i = 0; i < x->n; i++)
		if (!strcmp(x->info[i].component, component) && !strcmp(x->info[i].name, name) &&
		    x->info[i].t.rank == rank)
			return &x->info[i];
	return NULL;
}

static int list_of(struct rank *k, uint64_t step, uint32_t flags, struct told *ret)
{
	const struct ckpt_want want = { sizeof want, .flags = flags, .step = step };

	ret->n = 0;
	return ckpt_tensors(k->c, &want, tell, ret, &k->err);
}
#define must_list(k, step, flags, ret) MUST_OF(k, list_of(k, step, flags, ret))

static int unmatched(struct rank *k, struct told *ret)
{
	ret->n = 0;
	return ckpt_unmatched(k->c, tell, ret);
}

/* "?model/extra -optim/t !model/w": missing, unused, mismatched, in the order that they came. */
static const char *what_of(const struct told *x)
{
	static _Thread_local char buf[2000];
	size_t n = 0;

	buf[0] = 0;
	for (uint32_t i = 0; i < x->n; i++)
		n += (size_t)snprintf(buf + n, sizeof buf - n, "%s%c%s/%s", i ? " " : "",
				      "+?-!"[x->info[i].t.what], x -> info[i].component,
				      x->info[i].name);
	return buf;
}

static int setup(void **state)
{
	(void)host_setup(state);
	host_start(&H, NULL);
	return 0;
}

/* Only attached. */
static void looks(struct rank *k, const struct plan_of_job *p)
{
	must_attach(k, p, 0);
}

/* --- what a step holds --- */
static void check_specs(const struct told *x, uint64_t step, uint32_t ranks, bool fingerprints)
{
	assert_int_equal(x->n, RANK_SPECS - 1 + 1 + ranks);
	for (uint32_t i = 0; i < RANK_SPECS - 1; i++) {
		const struct rank_spec *s = &rank_specs[i];
		const struct info *t = told_find(x, s->component, s->name, UINT32_MAX);
		uint64_t numel = 1;

		if (!t)
			fail_msg("%s/%s", s->component, s->name);
		assert_true(t->t.what == CKPT_SAVED && t->t.step == step && !t->text[0]);
		assert_true(t->t.dtype == s->dtype && t->t.role == s->role && t->t.cls == s->cls &&
			    t->t.ndim == s->ndim && !t->t.blob && !t->t.media);
		assert_string_equal(t->of, s->of ? s->of : "");
		for (uint32_t d = 0; d < s->ndim; d++) {
			assert_int_equal(t->shape[d],
					 s->shape[d] || s->cut == 4 ? s->shape[d] : 64);
			numel *= t->shape[d];
		}
		assert_int_equal(t->t.numel, numel);
		assert_int_equal(t->t.fp_known, fingerprints);
	}
}

static void check_blobs(const struct told *x, const struct rank *k, uint32_t ranks)
{
	const struct info *t = told_find(x, "blob", "cursor", UINT32_MAX);

	assert_true(t && t->t.blob == 1 && t->t.media == CKPT_MEDIA_TEXT && t->t.dtype == CKPT_U8 &&
		    t->t.ndim == 1 && t->t.numel == k[0].blob_len[0]);
	for (uint32_t r = 0; r < ranks; r++) {
		t = told_find(x, "blob", "rng", r);
		assert_true(t && t->t.blob == 1 && t->t.media == CKPT_MEDIA_PICKLE &&
			    t->t.numel == k[r].blob_len[1]);
	}
}

TEST(what_a_step_holds_is_told_before_anything_is_declared)
{
	struct plan_of_job p = job("fsdp=2");
	struct rank k[2] = { 0 }, other = { 0 };
	struct plan_of_job q = plan("another", "fsdp=1");
	struct checkpoint *saved;
	struct told x;

	ranks_open(k, 2, &p);
	/* a rank that trains may ask as well */
	for (uint32_t r = 0; r < 2; r++)
		must_step(&k[r], 5, CKPT_PERSIST);
	must_wait(&k[0], 5, CKPT_STAGED);
	must_list(&k[0], CKPT_LATEST, CKPT_FROM_MEMORY, &x);
	check_specs(&x, 5, 2, false);
	check_blobs(&x, k, 2);
	for (uint32_t r = 0; r < 2; r++)
		must_guard(&k[r]);
	must_wait(&k[1], 5, CKPT_COMMITTED);
	ranks_close(k, 2);

	p.mesh = "fsdp=1"; /* as many ranks as one likes */
	looks(&K, &p);
	must_list(&K, CKPT_LATEST, 0, &x); /* in memory */
	check_specs(&x, 5, 2, false);
	must_list(&K, 5, CKPT_FROM_DISK, &x);
	check_specs(&x, 5, 2, true);
	check_blobs(&x, k, 2);
	saved = host_open(&H, JOB, 5);
	assert_int_equal(saved->table.ntensor, x.n);
	for (uint32_t i = 0; i < x.n; i++) {
		uint32_t at = table_find(&saved->table, x.info[i].component, x.info[i].name,
					 x.info[i].t.rank);

		assert_true(at != TABLE_NONE);
		assert_int_equal(saved->table.tensor[at].fp, x.info[i].t.fp);
	}
	checkpoint_free(saved);
	/* nothing of another job */
	must_attach(&other, &q, 0);
	assert_int_equal(list_of(&other, CKPT_LATEST, 0, &x), -ENOENT);
	assert_int_equal(x.n, 0);
	assert_non_null(strstr(other.err.msg, "has nothing to restore"));
	rank_close(&other, 0);
}

TEST(one_component_alone_and_a_function_that_has_enough)
{
	struct plan_of_job p = job("fsdp=1");
	struct ckpt_want want = { sizeof want, .step = CKPT_LATEST, .only = "optim" };
	struct told x = { .n = 0 };

	saves(&p, 1, 1);
	looks(&K, &p);
	assert_ok(ckpt_tensors(K.c, &want, tell, &x, &K.err));
	assert_string_equal(what_of(&x), "+optim/w.master +optim/w.exp_avg +optim/t");
	x.most = 2;
	assert_int_equal(list_of(&K, CKPT_LATEST, 0, &x), -ECANCELED);
	assert_int_equal(x.n, 2);
}

/* It may call what it likes. */
static int declares(void *arg, const struct ckpt_tensor_info *t)
{
	struct rank *k = arg;
	static const struct ckpt_placement none[1];
	struct ckpt_step steps[8];
	void *memory;

	if (t->blob)
		return 0;
	MUST(ckpt_steps(k->c, steps, 8) == 2);
	MUST_OF(k, ckpt_alloc(k->c, t->numel * dtype_bytes(t->dtype) + 1, &memory, &k->err));
	struct ckpt_local local = { .ptr = memory };
	struct ckpt_tensor y =
		ROW(.size = sizeof y, .cls = t->cls, .role = t->role, .dtype = t->dtype,
		    .component = t->component, .name = t->name, .of = t->of, .ndim = t->ndim,
		    .mesh = k->mesh_id, .shape = t->shape, .place = none, .nlocal = t->numel > 0,
		    .local = &local);
	MUST_OF(k, ckpt_tensor_add(k->c, &y, NULL, &k->err));
	return 0;
}

TEST(who_knows_nothing_of_a_job_declares_by_what_it_is_told_and_restores_it)
{
	struct plan_of_job p = job("fsdp=2");
	struct ckpt_want want = { sizeof want, .step = 1 };
	struct told x;

	saves(&p, 1, 2);
	p.mesh = "fsdp=1";
	looks(&K, &p);
	assert_ok_err(ckpt_tensors(K.c, &want, declares, &K, &K.err), &K.err);
	must_seal(&K);
	must_restore(&K, 1, 0);
	assert_int_equal(K.got.ntensor, RANK_SPECS - 1);
	assert_true(K.got.nunused == 0 && K.got.nmissing == 0);
	assert_ok(unmatched(&K, &x));
	assert_int_equal(x.n, 0);
}

TEST(nothing_is_held_for_who_has_looked)
{
	struct plan_of_job p = job("fsdp=1");
	struct told x;

	rank_open(&K, &p, 0);
	for (uint64_t step = 1; step <= 8; step++) {
		must_step(&K, step, CKPT_STAGE_ONLY);
		must_wait(&K, step, CKPT_STAGED);
		must_guard(&K);
		must_list(&K, CKPT_LATEST, 0, &x);
		assert_int_equal(x.info[0].t.step, step);
		if (step > 2)
			assert_false(in_memory(&K, step - 2));
	}
	assert_int_equal(list_of(&K, 6, 0, &x), -ENOENT);
}

/* --- which step --- */
/* In its header, or where its tensors are, which nobody reads who only looks which steps there
 * are. */
static void manifest_damage(uint64_t step, bool tensors)
{
	cleanup_close int dir = host_step_fd(&H, JOB, step),
			  fd = openat(dir, NATIVE_MANIFEST, O_RDWR | O_CLOEXEC);
	static _Alignas(8) uint8_t bytes[1 << 20];
	ssize_t n = pread(fd, bytes, sizeof bytes, 0);
	off_t at = 100;

	MUST(n > 0 && n < (ssize_t)sizeof bytes);
	if (tensors) {
		struct container_view v;
		struct ckpt_err err;

		MUST_OK(container_decode(bytes, (uint64_t)n, CONTAINER_MANIFEST, &v, &err), &err);
		at = (const uint8_t *)container_view_get(&v, CK_TENSORS).p - bytes + 9;
	}
	bytes[at] ^= 1;
	MUST(pwrite(fd, &bytes[at], 1, at) == 1);
}

static void passes_over(bool tensors)
{
	struct plan_of_job p = job("fsdp=1");
	struct told x;

	saves(&p, 1, 3);
	host_restart(&H);
	manifest_damage(3, tensors);
	looks(&K, &p);
	must_list(&K, CKPT_LATEST, 0, &x);
	check_specs(&x, 2, 1, true);
	assert_int_equal(list_of(&K, CKPT_LATEST, CKPT_EXACT, &x), -EUCLEAN);
	assert_non_null(strstr(K.err.msg, "step 3: "));
	assert_int_equal(list_of(&K, 3, 0, &x), -EBADMSG);
	assert_int_equal(x.n, 0);
	must_list(&K, 1, CKPT_EXACT, &x);
	check_specs(&x, 1, 1, true);
	/* To look is not to mark. */
	assert_int_equal(host_count(&H, JOB, STORE_QUARANTINED), 0);
	manifest_damage(2, tensors);
	manifest_damage(1, tensors);
	assert_int_equal(list_of(&K, CKPT_LATEST, 0, &x), -EUCLEAN);
	assert_true(strstr(K.err.msg, "step 3: ") && strstr(K.err.msg, "step 1: "));
}

TEST(a_damaged_newest_step_is_passed_over_as_a_restore_does_it)
{
	passes_over(false);
}

TEST(a_newest_step_whose_tensors_prove_damaged_is_passed_over_too)
{
	passes_over(true);
}

TEST(a_step_that_is_not_there_and_a_daemon_that_is_not)
{
	struct plan_of_job p = job("fsdp=1");
	struct ckpt_want want = { sizeof want, .step = CKPT_LATEST };
	struct told x;

	looks(&K, &p);
	assert_int_equal(list_of(&K, CKPT_LATEST, 0, &x), -ENOENT);
	assert_non_null(strstr(K.err.msg, "start at step 0"));
	assert_int_equal(list_of(&K, CKPT_LATEST, CKPT_FROM_MEMORY, &x), -ENOENT);
	assert_non_null(strstr(K.err.msg, "in memory"));
	assert_int_equal(unmatched(&K, &x), -ENOENT);
	rank_close(&K, 0);
	saves(&p, 1, 2);
	looks(&K, &p);
	assert_int_equal(list_of(&K, 7, 0, &x), -ENOENT);
	assert_non_null(strstr(K.err.msg, "does not have this step"));
	must_list(&K, 1, CKPT_FROM_DISK, &x);
	assert_int_equal(list_of(&K, 1, CKPT_FROM_MEMORY, &x), -ENOENT);
	/* mistakes */
	assert_int_equal(ckpt_tensors(K.c, &want, NULL, NULL, NULL), -EINVAL);
	assert_int_equal(list_of(&K, 1, CKPT_FROM_MEMORY | CKPT_FROM_DISK, &x), -EINVAL);
	assert_int_equal(list_of(&K, 1, 1u << 30, &x), -EOPNOTSUPP);
	assert_int_equal(ckpt_unmatched(K.c, NULL, NULL), -EINVAL);
	host_stop(&H);
	assert_soon(list_of(&K, 1, 0, &x) == -ECONNRESET);
	assert_int_equal(unmatched(&K, &x), -ECONNRESET);
	assert_int_equal(x.n, 0);
}

/* --- what did not match --- */
TEST(each_tensor_that_did_not_match_is_told_by_its_name)
{
	struct plan_of_job p = job("fsdp=1");
	const struct info *t;
	struct told x;

	saves(&p, 1, 1);
	p.extra = true; /* declared and not saved */
	p.rows = 80;	/* and other shapes */
	looks(&K, &p);
	for (uint32_t i = 0; i < RANK_SPECS; i++)
		if (strcmp(rank_specs[i].name, "comb") != 0) /* saved and not declared */
			assert_ok(rank_tensor_declare(&K, i));
	must_seal(&K);
	assert_int_equal(unmatched(&K, &x), -ENOENT);
	assert_int_equal(rank_restore(&K, 1, CKPT_DRY_RUN), -EMEDIUMTYPE);
	assert_non_null(strstr(K.err.msg, "model/extra: not in the checkpoint"));
	assert_ok(unmatched(&K, &x));
	assert_string_equal(what_of(&x), "!optim/w.master !model/w !optim/w.exp_avg ?model/extra "
					 "-model/comb");
	t = told_find(&x, "model", "w", UINT32_MAX);
	assert_non_null(t);
	assert_string_equal(t->text, "model/w: declared BF16 [80, 48], the checkpoint has BF16 "
				     "[64, 48]");
	assert_non_null(strstr(K.err.msg, "model/w: declared BF16 [80, 48], the checkpoint has "));
	assert_true(t->t.dtype == CKPT_BF16 && t->shape[0] == 64 && t->t.step == 1); /* as saved */
	t = told_find(&x, "model", "extra", UINT32_MAX);
	assert_true(t && t->shape[0] == 50 && !t->text[0]); /* as declared */
	/* It ends where it is told to. */
	x.most = 4;
	assert_int_equal(unmatched(&K, &x), -ECANCELED);
	assert_int_equal(x.n, 4);
	x.most = 0;
	/* Of one component. */
	assert_int_equal(rank_want(&K, &(struct ckpt_want){ sizeof(struct ckpt_want), .step = 1,
							    .only = "optim" }),
			 -EMEDIUMTYPE);
	assert_ok(unmatched(&K, &x));
	assert_string_equal(what_of(&x), "!optim/w.master !optim/w.exp_avg");
}

TEST(what_the_model_lacks_or_has_more_is_told_of_a_restore_that_succeeds)
{
	struct plan_of_job p = job("fsdp=1");
	struct told x;

	saves(&p, 1, 1);
	p.extra = true;
	looks(&K, &p);
	for (uint32_t i = 0; i < RANK_SPECS; i++)
		if (strcmp(rank_specs[i].name, "comb") != 0)
			assert_ok(rank_tensor_declare(&K, i));
	must_seal(&K);
	for (int dry = 1; dry >= 0; dry--) {
		must_restore(&K, CKPT_LATEST, CKPT_LENIENT | (dry ? CKPT_DRY_RUN : 0));
		assert_true(K.got.nmissing == 1 && K.got.nunused == 1);
		assert_ok(unmatched(&K, &x));
		assert_string_equal(what_of(&x), "?model/extra -model/comb");
	}
	must_step(&K, 2, CKPT_PERSIST); /* it stays */
	assert_ok(unmatched(&K, &x));
	assert_string_equal(what_of(&x), "?model/extra -model/comb");
}

/* What rank 1 declares, rank 0 does not: each tensor is one rank's alone. */
static void stages_script(struct rank *k)
{
	static const char *const alone[] = { "alone" };
	const uint32_t one = 1;
	struct told x;

	must_attach(k, k->arg, k->rank);
	MUST_OF(k, ckpt_mesh(k->c, 1, alone, &one, &k->rank, &k->mesh_id, &k->err));
	for (uint32_t i = 0; i < RANK_SPECS - 1; i++)
		if (i % 2 == k->rank && strcmp(rank_specs[i].name, "comb") != 0)
			MUST(rank_tensor_declare(k, i) == 0);
	must_seal(k);
	must_restore(k, CKPT_LATEST, 0);
	MUST_BE(k->got.nunused, 1);
	MUST(unmatched(k, &x) == 0);
	MUST(strcmp(what_of(&x), "-model/comb") == 0);
	rank_meet(k);
	rank_close(k, 0);
}

struct stage {
	struct rank k;
	pthread_t thread;
};

static void *stage_run(void *arg)
{
	struct stage *s = arg;

	stages_script(&s->k);
	return NULL;
}

TEST(what_another_rank_declares_is_not_unused)
{
	struct plan_of_job p = job("dp=2");
	struct stage s[2] = { 0 };
	pthread_barrier_t barrier;

	saves(&p, 1, 1);
	pthread_barrier_init(&barrier, NULL, 2);
	for (uint32_t r = 0; r < 2; r++) {
		s[r].k.rank = r;
		s[r].k.arg = &p;
		s[r].k.barrier = &barrier;
		assert_ok(pthread_create(&s[r].thread, NULL, stage_run, &s[r]));
	}
	for (uint32_t r = 0; r < 2; r++)
		assert_ok(pthread_join(s[r].thread, NULL));
	pthread_barrier_destroy(&barrier);
}

/* --- a daemon that is not ours --- */
static int count(void *arg, const struct ckpt_tensor_info *t)
{
	(void)t;
	++*(uint32_t *)arg;
	return 0;
}

TEST(a_request_with_flags_of_a_later_version_is_refused)
{
	struct plan_of_job p = job("fsdp=1");
	struct wire_list m = { .flags = WIRE_LIST_TRIED | 1, .step = 1 };
	struct wire_listed r;
	uint32_t n = 0;
	struct told x;

	saves(&p, 1, 1);
	looks(&K, &p);
	MUST(rpc_take(K.c, now_ns() + PATIENCE));
	assert_int_equal(rpc_call(K.c, &m, WIRE_LIST, -1, &r, NULL, PATIENCE, &K.err), -EPROTO);
	rpc_give(K.c);
	must_list(&K, 1, 0, &x); /* the connection is as it was */
	assert_int_equal(list_each("", 0, false, 1, NULL, count, &n, &K.err), -EBADMSG);
	assert_int_equal(n, 0);
}

UNIT(.setup = setup, .teardown = host_teardown);
