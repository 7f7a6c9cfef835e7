/* SPDX-License-Identifier: Apache-2.0 */
/*
 * daemon.h - ckptd as a library: ckptd.c and the tests call it.
 *
 * One thread (the one that calls daemon_run) owns all state: sockets, jobs, launches, snapshots.
 * Everything that may take long (copying, touching memory, file systems, planning) is a task: a
 * worker thread runs it on data of its own, and the owner gets it back. There are no locks on
 * state.
 */
#ifndef DAEMON_DAEMON_H
#define DAEMON_DAEMON_H
#include "ckpt/base/log.h"
#include "ckpt/io/io.h"
#include "ckpt/store/retain.h"

extern const char ckptd_version[]; /* "ckptd " CKPT_VERSION: also the tool in MANIFEST */
struct daemon;
struct walk_span;
struct daemon_opts {
	const char *socket;    /* NULL: the user's default (wire_socket_path) */
	uint64_t idle_exit_ns; /* leave after so long without clients and work; 0: never */
	/* how long a stop may take to write what is staged; 0: 5 minutes */
	uint64_t drain_ns;
	uint32_t copy_threads; /* 0: min(4, cores - 1), at least 1 */
	enum io_engine engine;
	/* which steps stay, of every job that has no policy of its own (store/store_policy.h); none:
	 * all of them. After each commit the others are removed, but for the newest step of which
	 * every byte was read back and was right */
	struct retain_policy policy;
	/* A step is read back when none has been for so long (0: 10 minutes), and so many were
	 * committed since (0: 10), while nothing is written to the device */
	uint64_t verify_ns, verify_steps;
	/* Of each of the two windows through which a rank's own memory is restored, at least 128
	 * KiB; 0: 64 MiB */
	uint64_t landing_bytes;
	/* Tests: bytes that the host can give, as pages_available says; NULL: that */
	uint64_t (*available)(void);
	/* Tests: called with the bytes of rank's main part before they are averaged, by a thread for
	 * each rank; < 0 fails the step. NULL: none */
	int (*averages)(uint64_t step, uint32_t rank, const struct walk_span *s);
	/* Tests: this is another host, which is called so; NULL: the host that it is */
	const char *host;
	const struct io_ops *ops; /* NULL: io_ops_posix */
	struct log log;
};
/* Bind and listen; nothing runs yet. -EADDRINUSE: another ckptd serves the socket (exit 11);
 * -EACCES: not ours (12). */
int daemon_open(const struct daemon_opts *opts, struct daemon **ret, struct ckpt_err *err);
int daemon_run(struct daemon *d); /* until stopped or idle; 0 */
/* [any thread, signal handlers] drain and leave; twice: leave at once, nothing half-written is ever
 * visible */
void daemon_stop(struct daemon *d);
void daemon_kill(struct daemon *d); /* tests: leave as SIGKILL would: no drain, no goodbye */
void daemon_close(struct daemon *d);
const char *daemon_socket(const struct daemon *d);
#endif
