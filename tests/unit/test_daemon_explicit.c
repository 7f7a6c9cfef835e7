/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_explicit.c - CKPT_EXPLICIT: a restore that only copies succeeds; any other is refused
 * before a byte of the trainer's memory is written, with all that would be done besides, on every
 * rank, from memory and from disk; CKPT_ALLOW_.. permits a kind.
 */
#include "ckpt/client/handle.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"

#define JOB "explicit"
#define job(mesh, ...) plan(JOB, mesh, ##__VA_ARGS__)
#define RESHARDS (CKPT_ALLOW_RESHARD | CKPT_ALLOW_REPLICATE)

struct wish {
	uint32_t flags;
	const char *only, *says[4]; /* what the error says */
	uint32_t nlisted;	    /* by ckpt_unmatched; 0: not looked at */
};

static int count_listed(void *arg, const struct ckpt_tensor_info *t)
{
	uint32_t *n = arg;

	MUST(t->what == CKPT_UNUSED || strstr(t->text, ": reshard, ") ||
	     strstr(t->text, ": replicate, "));
	++*n;
	return 0;
}

/* It is refused, and memory is what it was; allowed, it is restored. */
static void is_refused(struct rank *k)
{
	const struct wish *w = k->arg;
	struct ckpt_want want = {
		.size = sizeof want, .step = CKPT_LATEST, .flags = w->flags, .only = w->only
	};
	uint32_t n = 0;

	must_attach(k, k->plan, k->rank);
	rank_declare_and_seal(k);
	rank_clear(k);
	MUST_BE(rank_want(k, &want), -EMEDIUMTYPE);
	for (uint32_t i = 0; i < ARRAY_LEN(w->says) && w->says[i]; i++)
		if (!strstr(k->err.msg, w->says[i]))
			rank_must(0, w->says[i], __FILE__, __LINE__, k->err.msg);
	MUST(rank_check_clear(k));
	MUST_BE(ckpt_unmatched(k->c, count_listed, &n), 0);
	MUST(!w->nlisted || n >= w->nlisted);
	rank_meet(k);
	want.flags = 0;
	MUST_OF(k, rank_want(k, &want));
	rank_meet(k);
	rank_close(k, 0);
}

static void is_restored(struct rank *k)
{
	const struct wish *w = k->arg;

	must_attach(k, k->plan, k->rank);
	rank_declare_and_seal(k);
	rank_clear(k);
	must_restore(k, CKPT_LATEST, w->flags);
	MUST(rank_check(k, 2));
	rank_meet(k);
	rank_close(k, 0);
}

static void both_ways(const char *mesh, void (*script)(struct rank *k), struct wish w)
{
	static const uint32_t from[] = { CKPT_FROM_MEMORY, CKPT_FROM_DISK };
	const uint32_t flags = w.flags;

	for (uint32_t i = 0; i < ARRAY_LEN(from); i++) {
		w.flags = flags | from[i];
		team_of(job(mesh), script, &w);
	}
}

TEST(what_is_only_copied_is_restored)
{
	struct plan_of_job p = job("dp=2,fsdp=2");

	saves(&p, 1, 2);
	both_ways("dp=2,fsdp=2", is_restored, (struct wish){ .flags = CKPT_EXPLICIT });
}

TEST(other_shares_are_refused_all_at_once_and_nothing_is_written)
{
	struct plan_of_job p = job("fsdp=2");

	saves(&p, 1, 2);
	both_ways("fsdp=3", is_refused,
		  (struct wish){ .flags = CKPT_EXPLICIT,
				 .says = { "step 2 does not fit the declarations",
					   ": reshard, Shard(0)@fsdp on fsdp=2 -> Shard(0)@fsdp on "
					   "fsdp=3: ",
					   ": replicate, Replicate@fsdp on fsdp=2 -> " },
				 .nlisted = 5 });
	both_ways("fsdp=3", is_refused,
		  (struct wish){ .flags = CKPT_EXPLICIT | CKPT_ALLOW_RESHARD,
				 .says = { ": replicate, " } });
	both_ways("fsdp=3", is_restored, (struct wish){ .flags = CKPT_EXPLICIT | RESHARDS });
}

TEST(a_tensor_that_nobody_declares_is_a_drop)
{
	struct plan_of_job p = job("fsdp=2", .extra = true);

	saves(&p, 1, 2);
	both_ways("fsdp=2", is_refused,
		  (struct wish){ .flags = CKPT_EXPLICIT,
				 .says = { "model/extra: drop, " },
				 .nlisted = 1 });
	both_ways("fsdp=2", is_restored, (struct wish){ .flags = CKPT_EXPLICIT | CKPT_ALLOW_DROP });
}

/* .only says that the rest is not wanted. */
static void component_is_restored(struct rank *k)
{
	struct ckpt_want want = {
		.size = sizeof want, .step = CKPT_LATEST, .flags = CKPT_EXPLICIT, .only = "optim"
	};

	must_attach(k, k->plan, k->rank);
	rank_declare_and_seal(k);
	MUST_OF(k, rank_want(k, &want));
	rank_meet(k);
	rank_close(k, 0);
}

TEST(what_only_leaves_out_is_no_drop)
{
	struct plan_of_job p = job("fsdp=2", .extra = true);

	saves(&p, 1, 2);
	team_of(job("fsdp=2"), component_is_restored, NULL);
}

static void averages(struct rank *k)
{
	must_attach(k, k->plan, k->rank);
	MUST_OF(k, ckpt_average(k->c, "fast", "constant decay=.5", &k->err));
	rank_declare_and_seal(k);
	must_step(k, 2, CKPT_PERSIST);
	must_wait(k, 2, CKPT_COMMITTED);
	must_guard(k);
	rank_meet(k);
	rank_close(k, 0);
}

static void average_goes_on(struct rank *k)
{
	must_attach(k, k->plan, k->rank);
	MUST_OF(k, ckpt_average(k->c, "fast", "constant decay=.5", &k->err));
	rank_declare_and_seal(k);
	must_restore(k, CKPT_LATEST, CKPT_EXPLICIT);
	rank_meet(k);
	rank_close(k, 0);
}

TEST(an_average_that_nobody_declares_is_a_drop)
{
	team_of(job("fsdp=2"), averages, NULL);
	team_of(job("fsdp=2"), average_goes_on, NULL);
	both_ways("fsdp=2", is_refused,
		  (struct wish){ .flags = CKPT_EXPLICIT,
				 .says = { "average fast: drop, this job does not declare it" } });
}

TEST(what_is_allowed_without_explicit_is_a_mistake)
{
	struct plan_of_job p = job("fsdp=1");

	saves(&p, 1, 2);
	rank_open(&K, &p, 0);
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_ALLOW_DROP), -EINVAL);
	assert_non_null(strstr(K.err.msg, "without CKPT_EXPLICIT"));
	assert_int_equal(rank_restore(&K, CKPT_LATEST, CKPT_EXPLICIT | 2048), -EOPNOTSUPP);
	must_restore(&K, CKPT_LATEST, CKPT_EXPLICIT | CKPT_DRY_RUN);
}

UNIT(.setup = host_setup_started, .teardown = host_teardown);
