/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - a host for tests: a directory of its own, a daemon in a thread of this process, the
 * stores below it, and a gate that holds back the daemon's writes.
 */
#ifndef TESTS_HOST_H
#define TESTS_HOST_H
#include "ckpt/base/log.h"
#include "ckpt/store/store.h"
#include "ckpt/move/move.h"
#include "daemon/daemon.h"
#include "tests/lib/asker.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/rank.h"
#include "tests/lib/said.h"
#include "tests/lib/scratch.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <pthread.h>

struct host {
	char dir[SCRATCH_MAX], socket[108], store[108];
	struct daemon *d;
	pthread_t thread;
	struct daemon_opts opts; /* of the daemons that are started from now on */
};
/* Of the case that runs; its log is kept in daemon_said. For UNIT: host_setup makes it, and
 * host_teardown closes K and A, stops its daemon, where these are there, and removes it. */
extern struct host H;
extern struct rank K;  /* of it, where the case has one */
extern struct asker A; /* and who asks its daemon */
extern struct said daemon_said;
int host_setup(void **state);
int host_setup_started(void **state); /* and its daemon, as host_start(&H, NULL) */
int host_teardown(void **state);
/* A job of H that never tears a copy, if what is given besides does not say otherwise. */
#define plan(job_, mesh_, ...) \
	plan_of_host((struct plan_of_job){ .job = job_, .mesh = mesh_, ##__VA_ARGS__ })
struct plan_of_job plan_of_host(struct plan_of_job p);

/* Of such a job its only rank. */
#define open_one(k, ...)                                   \
	({                                                 \
		struct plan_of_job p_ = plan(__VA_ARGS__); \
		rank_open(k, &p_, 0);                      \
	})

/* Its ranks, as rank.h says it of a plan. */
#define launch_of(plan_, script, arg)          \
	({                                     \
		struct plan_of_job p_ = plan_; \
		launch(&p_, script, arg);      \
	})
#define team_of(plan_, script, arg)            \
	({                                     \
		struct plan_of_job p_ = plan_; \
		team(&p_, script, arg);        \
	})

void host_make(struct host *h);
void host_free(struct host *h); /* the daemon must be gone */
/* ops are the daemon's until it is closed, in host_teardown: static ones. NULL: the kernel's; but
 * where h->opts.engine is IO_THREADS, as it is at first, nothing waits for the disk: no test here
 * outlives the power. */
void host_start(struct host *h, const struct io_ops *ops);
extern struct io_ops host_ops; /* these */
/* Memory forgets; the disk does not. */
void host_restart(struct host *h);
void host_stop(struct host *h); /* drains */
void host_kill(struct host *h); /* as SIGKILL would */

/* Committed steps of a job, newest first; every byte of each has been verified. At most n of them
 * into ret. */
uint32_t host_committed(const struct host *h, const char *job, uint64_t *ret, uint32_t n);
bool host_has(const struct host *h, const char *job, uint64_t step); /* is it committed? */
uint32_t host_count(const struct host *h, const char *job,
		    enum store_state state); /* entries of a state */
/* All but what is being collected, in order: "1 2 ~3", ~ set aside, q quarantined, ! damaged, ?
 * misplaced. */
const char *host_steps(const struct host *h, const char *job);
int host_step_fd(const struct host *h, const char *job, uint64_t step); /* committed */
struct checkpoint *host_open(const struct host *h, const char *job, uint64_t step);
/* Change one byte of the first part of a committed step. */
void host_damage(const struct host *h, const char *job, uint64_t step);

/* Writes of part files wait at a closed gate. */
struct gate {
	struct io_ops ops;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t changed;
	bool closed;
	uint32_t waiting;
};
void gate_make(struct gate *g);
void gate_set(struct gate *g, bool closed);
void gate_pass(struct gate *g); /* waits while it is closed */
extern struct gate G;
void host_start_gated(void); /* H, with G, which is open */
/* H with G, which is open: where its thread logs a line with this text, it passes G. What it finds
 * when it goes on has happened meanwhile, all of it. */
void host_start_gated_at(const char *text);
pthread_t gate_open_soon(struct gate *g); /* when another one is likely to wait for that */
void gate_await(struct gate *g);	  /* until somebody waits at it */

/* What host_start's thread runs, and its end. */
void *host_run(void *host);
void host_end(struct host *h);
int host_job_fd(const struct host *h, const char *job);
uint32_t host_scan(const struct host *h, const char *job, struct store_step **ret);
/* Every byte of a committed step is good. */
void host_verify(const struct host *h, const char *job, const char *dir);
#endif
