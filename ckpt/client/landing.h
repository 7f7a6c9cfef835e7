/* SPDX-License-Identifier: Apache-2.0 */
/*
 * landing.h - what a restore brings for memory of the process's own, from the daemon's windows to
 * where it belongs (wire/wire.h, LANDED). For ckpt/client only.
 */
#ifndef CKPT_CLIENT_LANDING_H
#define CKPT_CLIENT_LANDING_H
#include "ckpt/wire/wire.h"

/* Memory that was declared: nothing is landed outside. */
struct landing_span {
	uint64_t lo, hi;
};
struct landings {
	struct landing_span *span; /* [nspan] ascending, disjoint */
	uint32_t nspan;
	int fd[2]; /* of the windows; -1: none yet */
};
struct ckpt_err;

int landings_begin(const ckpt *c, struct landings *ret, struct ckpt_err *err); /* -ENOMEM */
void landings_end(struct landings *k);
/* Sorts them, and makes one of those that touch. Returns how many are left. */
uint32_t landing_spans(struct landing_span *x, uint32_t n);
/* Does all that the row names lie in a window of so many bytes, and in one of the spans? Pure:
 * fuzzed. */
int landing_row_check(const struct wire_row *r, const struct landing_span *span, uint32_t nspan,
		      uint64_t bytes);
/* Carries out one message. fd: what came with it, which it takes. 0; -EFAULT: memory is not there,
 * or not to be written; -EPROTO: a row is outside of what was declared, or the message makes no
 * sense; -ENOMEM. */
int landing_take(struct landings *k, const struct wire_landed *m, int fd[WIRE_FDS_MAX]);
#endif
