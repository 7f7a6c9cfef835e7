/* SPDX-License-Identifier: Apache-2.0 */
/*
 * host.h - a host for tests: a directory of its own, a daemon in a thread of this process, the stores
 * below it, and a gate that holds back the daemon's writes. Include host.c into the test (after rank.c).
 */
#ifndef TESTS_HOST_H
#define TESTS_HOST_H
#include "ckpt/base/log.h"
#include "ckpt/store/store.h"
#include "ckpt/move/move.h"
#include "daemon/daemon.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/rank.h"
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <pthread.h>

struct host {
	char dir[96], socket[108], store[108];
	struct daemon *d;
	pthread_t thread;
	struct log log; /* of the daemons that are started from now on */
};
void host_make(struct host *h);
void host_free(struct host *h); /* the daemon must be gone */
void host_start(struct host *h, enum io_engine engine,
		const struct io_ops *ops); /* ops NULL: the kernel's */
void host_stop(struct host *h);		   /* drains */
void host_kill(struct host *h);		   /* as SIGKILL would */

/* Committed steps of a job, newest first; every byte of each has been verified. At most n of them into ret. */
uint32_t host_committed(const struct host *h, const char *job, uint64_t *ret, uint32_t n);
bool host_has(const struct host *h, const char *job, uint64_t step); /* is it committed? */
uint32_t host_count(const struct host *h, const char *job,
		    enum store_state state); /* entries of a state */
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
void gate_await(struct gate *g); /* until somebody waits at it */

/* What host_start's thread runs, and its end. */
void *host_run(void *host);
void host_end(struct host *h);
int host_job_fd(const struct host *h, const char *job);
uint32_t host_scan(const struct host *h, const char *job, struct store_step **ret);
/* Every byte of a committed step is good. */
void host_verify(const struct host *h, const char *job, const char *dir);
#endif
