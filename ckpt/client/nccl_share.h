/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nccl_share.h - ckpt_restore over NCCL, as the library sees it: libckpt-nccl.so is opened, and
 * what each rank has loaded of its own goes to the others. For ckpt/client only.
 */
#ifndef CKPT_CLIENT_NCCL_SHARE_H
#define CKPT_CLIENT_NCCL_SHARE_H
#include "ckpt/client/handle.h"
#include "ckpt/wire/nccl_entry.h"

struct nccl_share; /* NULL: this restore does without */

/* Take what ckpt_opts say; -EINVAL. */
int nccl_share_options(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err);
/* Does this restore use it, if it works? usable: the call is well-formed on this rank. All ranks
 * get one, or none; then the log says why. */
struct nccl_share *nccl_share_open(ckpt *c, const struct ckpt_want *w, bool usable);
/* All ranks have loaded their parts: 0: they have all of it; else each lacks what *ret does not
 * say that it has got. */
int nccl_share_run(ckpt *c, struct nccl_share *s, const char *only, struct nccl_done *ret,
		   struct ckpt_err *err);
void nccl_share_close(struct nccl_share *s); /* NULL is fine */
#endif
