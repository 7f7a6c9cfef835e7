/* SPDX-License-Identifier: Apache-2.0 */
/*
 * exchange.h - a checkpoint as the memory of ranks, exchanged between real processes: what is
 * exchanged (exchange_job.c), what one process does (exchange_rank.c), and the program
 * (exchange_main.c).
 *
 * A job is a checkpoint on disk and two declarations of its tensors. Each rank fills its memory of
 * the first by a restore from disk, exchanges it over local sockets into the second, restores the
 * second from disk, too, and compares all bytes.
 */
#ifndef CKPT_TEST_EXCHANGE_H
#define CKPT_TEST_EXCHANGE_H
#include "ckpt/cli/subject.h"
#include "ckpt/engine/remesh.h"

#define EXCHANGE_WORLD_MAX \
	256u /* sockets from each to each: 256 * 255 descriptors while they start */

struct exchange_job {
	struct subject disk;
	struct table *from,
		*to; /* declarations; the tensors of both have the checkpoint's numbers */
	bool *moves; /* [ntensor] true: has placements on both sides, and no pending reduction */
	uint32_t nmoves, world;
	/* What they are made of. */
	struct remesh remesh;
	struct table own[2];
	char *dir; /* of the temporary checkpoint; NULL: there is none */
	/* Of the layouts that were given. */
	uint64_t numel_max;
	uint32_t nrefused, nreplicas, nsmaller;
};

/* The checkpoint of this name, from its own layouts onto those of q. -ENOENT, -EINVAL, ... */
int exchange_job_checkpoint(const char *name, const struct remesh_ask *q, struct exchange_job *ret,
			    struct ckpt_err *err);
/*
 * Tensors for the layouts of these files, one question a line (ckpt/answer/question.h): from each
 * layout to the next one for the same shape; a layout whose shape occurs once is exchanged with a
 * plain one, in both directions. Lines without a layout are counted. Pending reductions count as
 * replicas, and shapes of more than numel_max elements are halved until they have fewer. A
 * checkpoint of these tensors, filled with noise, is written into a new directory below $TMPDIR.
 */
int exchange_job_layouts(char *const *path, uint32_t n, uint64_t numel_max,
			 struct exchange_job *ret, struct ckpt_err *err);
void exchange_job_free(struct exchange_job *j); /* zeroed is fine */

/* What a rank does wrong, in a round in which it sends or receives. */
enum exchange_mistake {
	MISTAKE_NONE,
	MISTAKE_DIES,	   /* SIGKILL */
	MISTAKE_STOPS,	   /* SIGSTOP */
	MISTAKE_GIVES_UP,  /* ends its exchange, as after an error of its own */
	MISTAKE_TRUNCATES, /* ends inside of a message */
	MISTAKE_FOREIGN,   /* sends bytes that are no message */
	MISTAKE_OTHER,	   /* has longer rounds than the others */
};

struct exchange_how {
	uint64_t round_bytes, round_ns; /* of a rank; of a round */
	bool staged;			/* all bytes pass through staging memory */
	bool share;			/* ranks read each other's memory */
	uint32_t pairs;			/* measured: exchanges and copies, in turn */
	enum exchange_mistake mistake;
	uint32_t rank; /* of the mistake */
	uint64_t round;
};

#define EXCHANGE_PAIRS_MAX 64u

/* What a rank did; in memory that all processes share. */
struct exchange_outcome {
	uint32_t met, ended; /* atomic; met: how often it has waited for the others */
	bool mistaken;	     /* it has made its mistake */
	int rc;
	uint64_t wrong_bytes;
	uint64_t rounds, out_bytes, in_bytes, self_bytes;
	uint64_t exchange_ns[EXCHANGE_PAIRS_MAX], copy_ns[EXCHANGE_PAIRS_MAX];
	struct ckpt_err err;
};

/* fd: [world] sockets to the others. outcome: [world]; the rank's own is written. */
void exchange_rank_run(const struct exchange_job *j, const struct exchange_how *how, uint32_t rank,
		       const int *fd, struct exchange_outcome *outcome);
#endif
