/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_exchange.h - ckptctl plan --mesh --links: the ranks of the checkpoint's mesh, if they still
 * hold what they saved, send it to those of another one (ckpt/plan/plan_schedule.h): in how many
 * rounds, over which links, and how long it takes.
 */
#ifndef CKPT_CLI_PLAN_EXCHANGE_H
#define CKPT_CLI_PLAN_EXCHANGE_H
#include "ckpt/cli/cli.h"
#include "ckpt/draw/rounds_draw.h"
#include "ckpt/plan/plan_schedule.h"

/* If a schedule takes more than so many times what its busiest link needs, plan names a larger
 * --round. */
#define PLAN_EXCHANGE_LONG 1.15

struct plan_exchange {
	bool asked;	      /* --links is there */
	uint64_t round_bytes; /* 0: the default */
	const char *links_name;
	struct links links;
	/* Tensors for which the checkpoint does not record which rank held what. */
	uint32_t left_out;
	struct schedule_total total;
	/* A larger --round that is not PLAN_EXCHANGE_LONG, if this one is; 0: this one is not. */
	uint64_t better_bytes, better_rounds;
	double better_us;
	struct rounds *rounds; /* as a drawing; NULL: too large, for the reason in why */
	struct ckpt_err why;
};

/* --links and --round. Returns an exit code, after the error was printed. */
int plan_exchange_take(struct cli *c, struct plan_exchange *ret);
/* from: the checkpoint's declarations; to: of target_make. Without --links nothing is done. Returns
 * an exit code, after the error was printed. */
int plan_exchange_find(struct cli *c, const struct table *from, const struct table *to,
		       struct plan_exchange *x);
void plan_exchange_free(struct plan_exchange *x);
/* Into the document, which is open; for people also a table of the rounds, if there are several. */
void plan_exchange_put(struct cli *c, const struct plan_exchange *x);
/* For people: the rounds, link by link. */
void plan_exchange_print(struct cli *c, const struct plan_exchange *x);
#endif
