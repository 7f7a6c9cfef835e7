/* SPDX-License-Identifier: Apache-2.0 */
/*
 * schedule_total.c - what a schedule of all ranks amounts to. Called where it is drawn or decided
 * upon. Invariant: every message of every stream is counted once on each of its two links.
 */
#include "ckpt/base/util.h"
#include "ckpt/plan/schedule_bound.h"

/* Bytes of one rank, by tier and direction: in all, and in each round. */
struct link_use {
	uint64_t all;
	uint64_t *round; /* [rounds] */
};

struct totalling {
	struct schedule *s;
	const struct links *links;
	const struct schedule_rounds *rounds;
	struct link_use use[2][LINKS_TIERS]; /* [1]: sends */
	struct schedule_total *ret;
	struct ckpt_errlist list;
	struct ckpt_err *err;
};

static int stream_count(struct totalling *k, uint32_t from, uint32_t to, enum links_tier tier,
			uint64_t bytes, bool sends)
{
	struct link_use *u = &k->use[sends][tier];
	uint64_t n = schedule_messages(k->rounds, bytes);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t at = schedule_round_of(k->rounds, from, to, bytes, i), begin, end;

		schedule_span(k->rounds, from, to, bytes, at, &begin, &end);
		u->round[at] += end - begin;
		if (sends)
			k->ret->round[at].bytes += end - begin;
	}
	if (ckpt_add(u->all, bytes, &u->all))
		return -EOVERFLOW;
	if (!sends)
		return 0;
	k->ret->streams += from != to;
	k->ret->messages += from != to ? n : 0;
	return ckpt_add(k->ret->bytes[tier], bytes, &k->ret->bytes[tier]);
}

static int lanes_count(struct totalling *k, const struct schedule_part *p)
{
	int e = p->self_bytes ? stream_count(k, p->rank, p->rank, LINKS_MEMORY, p->self_bytes, true)
			      : 0;

	for (uint32_t i = 0; i < p->nout && !e; i++)
		e = stream_count(k, p->rank, p->out[i].peer, p->out[i].tier, p->out[i].bytes, true);
	for (uint32_t i = 0; i < p->nin && !e; i++)
		e = stream_count(k, p->in[i].peer, p->rank, p->in[i].tier, p->in[i].bytes, false);
	return e;
}

static void link_judge(struct totalling *k, uint32_t rank, enum links_tier tier, bool sends)
{
	struct link_use *u = &k->use[sends][tier];
	double us = u->all ? links_us(k->links, tier, (double)u->all) : 0;

	if (us > k->ret->bound_us) {
		k->ret->bound_us = us;
		k->ret->busiest = (struct schedule_link){ rank, tier, sends, u->all };
	}
	for (uint64_t i = 0; i < k->rounds->n && u->all; i++) {
		us = u->round[i] ? links_us(k->links, tier, (double)u->round[i]) : 0;
		if (us > k->ret->round[i].us) {
			k->ret->round[i].us = us;
			k->ret->round[i].slowest =
				(struct schedule_link){ rank, tier, sends, u->round[i] };
		}
	}
}

static int rank_count(struct totalling *k, uint32_t rank)
{
	struct schedule_part p;
	int e;

	for (uint32_t i = 0; i < 2 * LINKS_TIERS; i++) {
		struct link_use *u = &k->use[i % 2][i / 2];

		if (u->all)
			memset(u->round, 0, k->rounds->n * sizeof *u->round);
		u->all = 0;
	}
	e = schedule_part_list(k->s, rank, &p, &k->list, k->err);
	if (e)
		return e;
	e = lanes_count(k, &p);
	if (e)
		ckpt_error(k->err, e, "the bytes of all ranks cannot be counted in 64 bits");
	for (uint32_t i = 0; i < 2 * LINKS_TIERS && !e; i++)
		link_judge(k, rank, i / 2, i % 2);
	k->ret->ranks += p.nout || p.nin || p.self_bytes;
	k->ret->most_out = MAX(k->ret->most_out, p.out_bytes);
	k->ret->most_in = MAX(k->ret->most_in, p.in_bytes);
	schedule_part_free(&p);
	return e;
}

static int use_open(struct totalling *k)
{
	for (uint32_t i = 0; i < 2 * LINKS_TIERS; i++) {
		struct link_use *u = &k->use[i % 2][i / 2];

		u->round = calloc(k->rounds->n + 1, sizeof *u->round);
		if (!u->round)
			return -ENOMEM;
	}
	k->ret->round = calloc(k->rounds->n + 1, sizeof *k->ret->round);
	return k->ret->round ? 0 : -ENOMEM;
}

int schedule_total(struct schedule *s, const struct links *links, schedule_tick_fn *tick, void *arg,
		   struct schedule_total *ret, struct ckpt_err *err)
{
	const struct ranks *ranks = schedule_ranks(s);
	struct totalling k = { .s = s,
			       .links = links,
			       .rounds = schedule_rounds(s),
			       .ret = ret,
			       .list = { .code = -ENOLINK },
			       .err = err };
	int e;

	*ret = (struct schedule_total){ .rounds = k.rounds->n };
	e = use_open(&k);
	if (e)
		ckpt_error(err, e, "out of memory for %llu rounds",
			   (unsigned long long)k.rounds->n);
	for (uint32_t i = 0; i < ranks->n && !e; i++) {
		e = tick ? tick(arg, i) : 0;
		if (!e)
			e = rank_count(&k, ranks->rank[i]);
	}
	if (!e)
		e = ckpt_errlist_end(&k.list, err, SCHEDULE_UNREACHED);
	for (uint64_t i = 0; i < k.rounds->n && !e; i++)
		ret->us += ret->round[i].us;
	for (uint32_t i = 0; i < 2 * LINKS_TIERS; i++)
		free(k.use[i % 2][i / 2].round);
	ckpt_errlist_free(&k.list);
	if (e)
		schedule_total_free(ret);
	return e;
}

void schedule_total_free(struct schedule_total *t)
{
	free(TAKE(t->round));
}
