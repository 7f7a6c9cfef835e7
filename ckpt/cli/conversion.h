/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion.h - a checkpoint written again as a native one on another mesh, offline, in bounded
 * memory. It streams windows of the source (ckpt/move/move.h) into the parts of the destination,
 * all of them at once where their buffers fit, else in batches of ranks.
 *
 * What is made depends on the source, the target and the tool alone: the same conversion gives the
 * same bytes and the same id. It has the source's step, generation, times, notes and lineage; each
 * tensor's fingerprint is compared with the source's before anything appears.
 *
 * Everything is collected beside the destination (conversion_dir.h), with a journal that is written
 * after what it tells was synced; another run with the same arguments goes on from there, whatever
 * ended the first.
 */
#ifndef CKPT_CLI_CONVERSION_H
#define CKPT_CLI_CONVERSION_H
#include "ckpt/move/move.h"

#define CONVERSION_MEM_MIN (40u << 20)

struct conversion_opts {
	const struct io_ops *ops;
	enum io_engine engine;
	const struct checkpoint *src;
	int src_fd;		    /* its directory */
	const struct table *target; /* of target_make; its tensors have the source's numbers */
	const char *dst;
	uint64_t mem_limit;  /* for data: windows and buffers; at least CONVERSION_MEM_MIN */
	uint64_t journal_ns; /* at least so long between two journals; 0: after every window */
};

struct conversion_facts {
	uint64_t bytes;	       /* of all tensors' owned elements and blobs */
	uint64_t before;       /* of them, done by an earlier run */
	uint64_t stored_bytes; /* of the destination's files, when it is done */
	uint32_t world, batch; /* parts; parts that are written at once */
	uint32_t nprint;       /* tensors whose fingerprints were compared: not reduced ones */
	bool resumed;	       /* something of an earlier run is used */
	bool restarted;	       /* an earlier run had left nothing that can be used */
	bool kept;	       /* after an error: `partial` stays, and can be continued */
	char id[33];	       /* when it is done */
	const char *partial;   /* where it is collected */
};

struct conversion;

/*
 * Checks, locks, reads what an earlier run has left, makes all part files. -EINVAL: dst is taken or
 * impossible, too little memory, what an earlier run has left is of another conversion; -ENOENT: no
 * parent; -EBUSY: another run is at it; -ENOSPC; -ECANCELED: cli_stopped. Nothing is left after an error, except what an
 * earlier run had done.
 */
int conversion_open(const struct conversion_opts *opts, struct conversion **ret,
		    struct ckpt_err *err);
/* Everything else. tick: the bytes that were read, beginning behind `before`. -ECANCELED when it
 * says so, -ENOSPC, -EBADMSG damage in the source or a fingerprint that differs, ... */
int conversion_run(struct conversion *c, move_tick_fn *tick, void *arg, struct ckpt_err *err);
const struct conversion_facts *conversion_facts(const struct conversion *c);
void conversion_close(struct conversion *c); /* NULL is fine */
#endif
