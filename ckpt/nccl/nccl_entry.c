// SPDX-License-Identifier: Apache-2.0
// nccl_entry.c - the one symbol of libckpt-nccl.so. Called by ckpt/client/nccl_share.c.
// Invariant: each function agrees as often on every rank, whatever happens on this one.
#include "ckpt/wire/nccl_entry.h"
#include "ckpt/base/container.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/nccl/nccl_transport.h"
#include "ckpt/table/encode.h"
#include <stdio.h>

#define ABORTED_NS (5 * NS_PER_S) /* until a stream ends whose communicator is aborted */

struct share {
	struct nccl_job job;
	struct spread_transport *t;
};

static int share_open(const struct nccl_job *j, void **ret, struct ckpt_err *err)
{
	const struct nccl_opts o = { .rank = j->rank,
				     .world = j->world,
				     .device = j->device,
				     .comm = j->comm,
				     .agree = j->agree,
				     .agree_ctx = j->agree_ctx,
				     .init_ns = j->init_ns };
	struct share *s = calloc(1, sizeof *s);
	uint64_t all;
	int rc;

	*ret = NULL;
	if (!s) {
		(void)j->agree(j->agree_ctx, 0, &all); /* nccl_open's first one */
		return ckpt_error(err, -ENOMEM, "no memory to use NCCL");
	}
	s->job = *j;
	rc = nccl_open(&o, &s->t, err);
	if (rc < 0)
		free(s);
	else
		*ret = s;
	return rc;
}

static void share_close(void *handle)
{
	struct share *s = handle;

	s->t->calls->close(s->t);
	free(s);
}

/* --- the exchange --- */

static int declaration_decode(const struct nccl_state *s, struct table *ret, struct ckpt_err *err)
{
	struct table_section section[CONTAINER_SECT_MAX];
	struct container_view v;
	int rc = container_decode(s->declaration, s->bytes, CONTAINER_DECLARATION, &v, err);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < v.map.nsect; i++) {
		struct container_bytes b = container_view_get(&v, v.map.sect[i].kind);

		section[i] = (struct table_section){ .kind = b.kind,
						     .rec_bytes = b.rec_bytes,
						     .len = b.len,
						     .count = b.count,
						     .bytes = b.p };
	}
	return table_decode(section, v.map.nsect, NULL, 0, ret, err);
}

struct exchange {
	struct share *k;
	struct table all, divided;
	uint64_t *base; /* [nplace] */
	struct spread *s;
	struct spread_memory m;
	struct spread_how how;
};

static int exchange_plan(struct exchange *x, const struct nccl_state *state, struct ckpt_err *err)
{
	const struct reshard_opts opts = { .only = state->only, .who = HOLDERS_OWNERS };
	int rc = declaration_decode(state, &x->all, err);

	if (rc == 0)
		rc = spread_divided(&x->all, &x->divided, err);
	if (rc < 0)
		return rc;
	x->base = calloc((size_t)x->divided.nplace + 1, sizeof *x->base);
	if (!x->base)
		return ckpt_error(err, -ENOMEM, "no memory for an exchange");
	for (uint32_t i = 0; i < MIN(x->divided.nplace, state->nbase); i++)
		x->base[i] = state->base[i];
	return spread_open(&x->divided, &x->divided, &opts, x->k->job.rank, &x->s, err);
}

static int agree(const struct share *k, uint64_t mine, uint64_t *ret, struct ckpt_err *err)
{
	*ret = mine;
	return k->job.agree(k->job.agree_ctx, mine, ret) == 0
		       ? 0
		       : ckpt_error(err, -ECONNRESET,
				    "ckpt_opts.agree failed: start all ranks again");
}

/* What every rank can do, or none. rc: of this one. */
static int all_can(const struct share *k, int rc, const char *what, struct ckpt_err *err)
{
	uint64_t all;
	int e = agree(k, rc == 0, &all, rc < 0 ? NULL : err);

	if (rc < 0 || e < 0)
		return rc < 0 ? rc : e;
	return all ? 0
		   : ckpt_error(err, -EOPNOTSUPP, "rank %u: another rank %s; its log says why",
				k->job.rank, what);
}

/* Windows of one length on all ranks: as the rank that has most peers can afford them. */
static int chunk_agree(struct exchange *x, int rc, struct ckpt_err *err)
{
	struct spread_cost c = rc == 0 ? spread_cost(x->s) : (struct spread_cost){ 0 };
	uint64_t peers = MAX(c.out_peers, c.in_peers), least;
	int e = agree(x->k, rc < 0 ? 0 : UINT64_MAX - peers, &least, rc < 0 ? NULL : err);
	uint64_t chunk, out, in;

	if (rc < 0 || e < 0)
		return rc < 0 ? rc : e;
	if (!least)
		return ckpt_error(err, -EOPNOTSUPP,
				  "rank %u: another rank has no plan of the exchange; its log says "
				  "why",
				  x->k->job.rank);
	/* Sent and received, of two rounds each. */
	chunk = x->k->job.staging_bytes / (4 * (UINT64_MAX - least + 1));
	chunk = MIN(chunk, SPREAD_CHUNK_MAX) / SPREAD_CHUNK_MIN * SPREAD_CHUNK_MIN;
	x->how = (struct spread_how){ .chunk_bytes = MAX(chunk, (uint64_t)SPREAD_CHUNK_MIN),
				      .round_ns = x->k->job.round_ns,
				      .ahead = true };
	spread_staging(x->s, &x->how, &out, &in);
	return nccl_staging(x->k->t, out, in, &x->m, err);
}

static int exchange_run(struct exchange *x, struct nccl_done *ret, struct ckpt_err *err)
{
	uint64_t settle_ns = x->how.round_ns;
	struct ckpt_err why;
	int rc, settled;

	x->m.from = x->m.to = &x->divided;
	x->m.from_base = x->m.to_base = x->base;
	rc = spread_run(x->s, x->k->t, &x->m, &x->how, err);
	if (rc < 0)
		settle_ns = MIN(settle_ns, ABORTED_NS);
	/* Also after an error: what has arrived is on its way out of the windows until then. */
	settled = nccl_settle(x->k->t, now_ns() + settle_ns, rc < 0 ? &why : err);
	ret->rounds = settled < 0 ? 0 : spread_rounds(x->s) + MUTANT(MISSING_TOO_LITTLE);
	return rc < 0 ? rc : settled;
}

static int share_run(void *handle, const struct nccl_state *state, struct nccl_done *ret,
		     struct ckpt_err *err)
{
	struct exchange x = { .k = handle };
	int rc = chunk_agree(&x, exchange_plan(&x, state, err), err);

	*ret = (struct nccl_done){ .chunk_bytes = x.how.chunk_bytes ? x.how.chunk_bytes
								    : SPREAD_CHUNK_MAX };

	/* If a rank has no plan, all have seen that, and none goes on. */
	if (x.how.chunk_bytes) {
		rc = all_can(x.k, rc, "has no memory for the rounds", err);
		if (rc == 0)
			rc = all_can(x.k, exchange_run(&x, ret, err), "has not got everything",
				     err);
	}
	if (rc < 0) /* also where it went well: no rank has a use for it any more */
		x.k->t->calls->abort(x.k->t);
	ret->bytes = rc == 0 ? spread_cost(x.s).in_bytes : 0;
	spread_close(x.s);
	table_free(&x.divided);
	table_free(&x.all);
	free(x.base);
	return rc;
}

__attribute__((visibility("default"))) extern const struct nccl_entry ckpt_nccl_entry;
const struct nccl_entry ckpt_nccl_entry = { NCCL_ENTRY_BYTES, CKPT_VERSION, share_open, share_run,
					    share_close };
