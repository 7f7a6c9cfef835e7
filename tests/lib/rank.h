/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank.h - a rank of a made-up job that uses ckpt.h as a trainer would. Every element of its state
 * is a pure function of (tensor, global index, step), so what comes back on another mesh can be
 * checked element by element.
 *
 * The state has what a declaration can say: tensors that are sharded (even, uneven, strided,
 * smaller than the mesh), replicated, 0-d, empty; in memory of the library, in the process's own,
 * with gaps between the rows, in two boxes; VOLATILE, CONST, DERIVED; a global blob that grows and
 * a blob per rank.
 *
 * Mesh dimensions are understood by name: fsdp cuts dimension 0, tp dimension 1, others replicate.
 */
#ifndef TESTS_RANK_H
#define TESTS_RANK_H
#include "ckpt/base/arena.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/layout.h"
#include <pthread.h>
#include <unistd.h>

#define SEC UINT64_C(1000000000)
#define PATIENCE (30 * SEC) /* until a test gives up; not a time that anything may take */
#define RANK_TENSORS 16
#define RANK_BLOB_MAX 300

/* In a thread or child nothing may jump: what must hold and does not ends the program. */
#define MUST(x) rank_must((x) != 0, #x, __FILE__, __LINE__, NULL)
#define MUST_OK(x, err) rank_must((x) == 0, #x, __FILE__, __LINE__, (err)->msg)
#define MUST_BE(x, y) rank_must_be((int64_t)(x), (int64_t)(y), #x, __FILE__, __LINE__)
/* A call about a rank, whose sentence is in k->err. */
#define MUST_OF(k, call) rank_must((call) == 0, #call, __FILE__, __LINE__, (k)->err.msg)
void rank_must(int ok, const char *what, const char *file, int line, const char *why);
void rank_must_be(int64_t x, int64_t y, const char *what, const char *file, int line);

/* True as soon as the condition holds, false if it does not within the time. */
#define within(ns, cond)                                        \
	({                                                      \
		uint64_t until_ = now_ns() + (ns);              \
		bool holds_;                                    \
		while (!(holds_ = (cond)) && now_ns() < until_) \
			usleep(1000);                           \
		holds_;                                         \
	})
#define soon(cond) within(PATIENCE, cond)
#define assert_soon(cond)                                      \
	do {                                                   \
		if (!soon(cond))                               \
			fail_msg("never happened: %s", #cond); \
	} while (0)
/* The same where nothing may jump. */
#define must_soon(cond) rank_must(soon(cond), #cond, __FILE__, __LINE__, NULL)

struct plan_of_job {
	const char *socket, *store, *job,
		*mesh; /* mesh as mesh_parse takes it; its size is the world */
	uint64_t generation, guard_ns, memory_max, rows; /* rows: of the large tensors; 0: 64 */
	uint64_t launch, token, run, restart;		 /* as in ckpt_opts */
	uint32_t flags, slots, persist_every, guard; /* as in ckpt_opts; flags 0: CKPT_REQUIRE */
	uint32_t check;
	uint32_t keep_last; /* the same */
	const char *keep_best;
	uint64_t keep_every, restart_wait_ns;
	void (*log)(void *ctx, int level,
		    const char *line); /* of every rank; log_ctx NULL: the rank */
	void *log_ctx;
	bool shared_only; /* nothing in private memory */
	bool extra;	  /* one tensor more */
	bool fresh;	  /* rank_attach says that starting over is meant, whatever the store has */
	int (*agree)(void *ctx, uint64_t mine, uint64_t *ret_min);
};

struct rank_tensor {
	uint32_t spec, id, ndim, elem, nlocal;
	uint64_t shape[3], n[3], *at[3]; /* at: the global index of each local one, by dimension */
	uint64_t rows0;			 /* in the first box */
	int64_t stride[3];
	uint8_t *ptr[2]; /* of the boxes */
	uint8_t *own;	 /* malloc'ed */
};

struct rank {
	const struct plan_of_job *plan; /* own, from rank_attach on */
	struct plan_of_job own;
	uint32_t rank, world, mesh_id;
	ckpt *c;
	struct arena a;
	struct mesh mesh;
	uint32_t ntensor;
	struct rank_tensor t[RANK_TENSORS];
	uint8_t blob[2][RANK_BLOB_MAX]; /* cursor, rng */
	uint64_t blob_len[2];
	struct ckpt_err err;	    /* what the newest of the calls below said */
	struct ckpt_got got;	    /* of rank_restore */
	void *arg;		    /* the script's */
	pthread_barrier_t *barrier; /* of the team; NULL */
};

uint32_t rank_world(const char *mesh);
int rank_attach(struct rank *k, const struct plan_of_job *p, uint32_t rank);
int rank_declare(struct rank *k);
int rank_tensor_declare(struct rank *k, uint32_t spec);
int rank_seal(struct rank *k, uint64_t ns);
int rank_wait(struct rank *k, uint64_t step, int state); /* with PATIENCE */
int rank_restore(struct rank *k, uint64_t step, uint32_t flags);
int rank_want(struct rank *k, const struct ckpt_want *w);
int rank_why(struct rank *k);
struct ckpt_stats rank_stats(const struct rank *k);
bool in_memory(struct rank *k, uint64_t step);	    /* of the daemon */
void must_reattach(struct rank *k, uint64_t times); /* has done it, so often at least */

#define must_attach(k, p, r) MUST_OF(k, rank_attach(k, p, r))
#define must_declare(k) MUST_OF(k, rank_declare(k))
#define must_seal(k) MUST_OF(k, rank_seal(k, PATIENCE))
#define must_wait(k, step, state) MUST_OF(k, rank_wait(k, step, state))
#define must_restore(k, step, flags) MUST_OF(k, rank_restore(k, step, flags))
#define must_step(k, step, flags) MUST_BE(rank_step(k, step, flags), 0)
#define must_guard(k) MUST_BE(ckpt_guard((k)->c, NULL), 0)
/* Marked, and come so far. */
#define step_to(k, step, flags, state)     \
	do {                               \
		must_step(k, step, flags); \
		must_wait(k, step, state); \
	} while (0)
/* Also guarded: what is waited for afterwards is not in the way of the next. */
#define save(k, step)                                           \
	do {                                                    \
		step_to(k, step, CKPT_PERSIST, CKPT_COMMITTED); \
		must_guard(k);                                  \
	} while (0)
#define stage(k, step, flags)                         \
	do {                                          \
		step_to(k, step, flags, CKPT_STAGED); \
		must_guard(k);                        \
	} while (0)

/* Attached, declared, ready. */
void rank_open(struct rank *k, const struct plan_of_job *p, uint32_t rank);
void rank_declare_and_seal(struct rank *k);
/* All n ranks of a job, in one thread. */
void ranks_open(struct rank *k, uint32_t n, const struct plan_of_job *p);
void ranks_guard(struct rank *k, uint32_t n);
void ranks_close(struct rank *k, uint32_t n);
void rank_close(struct rank *k, uint64_t drain_ns);
void rank_free(struct rank *k); /* what the library does not own; without ckpt_detach */
int rank_tensor_find(const struct rank *k, const char *name); /* index into t */
uint64_t rank_bytes(const struct rank *k);		      /* of all its tensors */

void rank_fill(struct rank *k, uint64_t step);
void rank_clear(struct rank *k); /* a pattern that is no step's */
/* Is everything of that step? Prints the first difference. blobs: also what ckpt_blob_read
 * gives. */
bool rank_check(struct rank *k, uint64_t step);
bool rank_check_clear(struct rank *k);
bool rank_check_blobs(struct rank *k, uint64_t step, uint32_t world_saved);

/* One step of training: guard, update, snapshot. The result of ckpt_snapshot. */
#define rank_took(rc)                                \
	({                                           \
		int took_ = (rc);                    \
		took_ == 0 || took_ == CKPT_FAILING; \
	})
int rank_step(struct rank *k, uint64_t step, uint32_t mark_flags);
void rank_meet(struct rank *k);

/* Run script in one thread a rank; each opens what it needs. */
void team(const struct plan_of_job *p, void (*script)(struct rank *k), void *arg);
/* The same, and it opens and closes them: none before the others have ended, too. */
void launch(const struct plan_of_job *p, void (*script)(struct rank *k), void *arg);
/* A launch that saves these steps. */
void saves(const struct plan_of_job *p, uint64_t first, uint64_t last);

enum rank_memory { OF_LIBRARY, OWN, WITH_GAPS, TWO_BOXES };

struct rank_spec {
	const char *component, *name, *of;
	uint32_t dtype, role, cls;
	enum rank_memory memory;
	uint32_t ndim;
	uint64_t shape[3]; /* 0 in front: the plan's rows */
	int cut; /* 1: dimension 0 and 1; 0: replicated; 2: strided; 3: dimension 0 twice (tp, then fsdp) */
};
#define RANK_SPECS 14
extern const struct rank_spec rank_specs[RANK_SPECS];

/* Each local element: its address and global index. False from each ends it. */
bool rank_each(const struct rank_tensor *t,
	       bool (*each)(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *arg),
	       void *arg);
bool rank_fill_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *step);
bool rank_check_one(const struct rank_tensor *t, uint8_t *p, uint64_t g, void *step);
#endif
