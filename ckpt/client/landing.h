/* SPDX-License-Identifier: Apache-2.0 */
/*
 * landing.h - what a restore brings for memory of the process's own, from the daemon's windows to
 * where it belongs (wire/wire.h, LANDED). For ckpt/client only.
 */
#ifndef CKPT_CLIENT_LANDING_H
#define CKPT_CLIENT_LANDING_H
#include "ckpt/client/sealed.h"

struct landings {
	struct source_span *span; /* [nspan] declared memory, merged: nothing is landed outside */
	uint32_t nspan;
	int fd[2]; /* of the windows; -1: none yet */
	/* the same, mapped and known to devices, from the first row on that is one's */
	struct device_target window[2];
	struct device_handle *device; /* that knows them; NULL: none yet */
	const ckpt *c;
};
struct ckpt_err;

int landings_begin(const ckpt *c, struct landings *ret, struct ckpt_err *err); /* -ENOMEM */
void landings_end(struct landings *k);
/* Does all that the row names lie in a window of so many bytes, and in one of the spans? Pure:
 * fuzzed. */
int landing_row_check(const struct wire_row *r, const struct source_span *span, uint32_t nspan,
		      uint64_t bytes);
/* Carries out one message. fd: what came with it, which it takes. 0; -EFAULT: memory is not there,
 * or not to be written; -EPROTO: a row is outside of what was declared, or the message makes no
 * sense; -ENOMEM. */
int landing_take(struct landings *k, const struct wire_landed *m, int fd[WIRE_FDS_MAX]);
#endif
