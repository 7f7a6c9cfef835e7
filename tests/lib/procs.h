/* SPDX-License-Identifier: Apache-2.0 */
/*
 * procs.h - daemons and ranks as processes of their own, for tests that kill, stop and start them
 * at chosen moments; beside the host H, whose directory, socket and store they use. A rank does
 * what the test orders over a socket and answers with what the library said and how long it took.
 *
 * Every element of the state is a function of its tensor, its index and the step, so what is on
 * disk or in memory can be checked element by element.
 */
#ifndef TESTS_PROCS_H
#define TESTS_PROCS_H
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define JOB "job"
#define NOBODY 65534
/* "at once": a busy machine may take a while, a wait takes longer */
#define AT_ONCE_NS (20 * NS_PER_S)

int procs_setup(void **state);
int procs_setup_without_daemon(void **state);
int procs_teardown(void **state); /* nobody is left */

/* What daemons do on the disk when a test says so; shared with all of them. */
extern struct shared_faults {
	_Atomic uint32_t no_space; /* writes fail with -ENOSPC */
	_Atomic uint32_t hold;	   /* the next listing of a directory waits until this is 0 again */
	_Atomic uint32_t held;	   /* it does */
	_Atomic uint32_t meeting;  /* agreements of ranks do not end before this is 0 again */
} * faults;
void faults_make(void);

/* --- processes --- */
void child_keep(pid_t pid); /* to be killed at the end, unless child_end has seen its end */
int child_end(pid_t pid);   /* as waitpid tells it */
void stop(pid_t pid);
void go_on(pid_t pid);
void kill_9(pid_t pid);

/* --- daemons --- */
/* Serve until told to leave, and end this process. say: gets the result of daemon_open. */
void serve(const char *path, int say);
/* What daemon_open said in a process of its own, which then serves if that was 0. */
int daemon_try(pid_t *ret_pid);
pid_t daemon_start(void);
extern pid_t D; /* of the case that runs: procs_setup starts it, and procs_teardown lets it leave */
void daemon_leave(pid_t pid); /* SIGTERM: it drains and leaves in order */

/* --- ranks --- */
enum verb {
	ATTACH,
	DECLARE,
	DECLARE_REST,
	SEAL,
	FILL,
	HOLDS,
	SNAP,
	GUARD,
	WAIT,
	RESTORE,
	STEPS,
	STATS,
	FRESH,

	DETACH
};
struct order {
	enum verb verb;
	uint32_t flags;
	uint64_t step, ns;
	int state;
	char only[16];
};
struct answer {
	int rc;
	bool agreeing; /* no answer yet: the rank is inside its agreement */
	uint64_t ns;   /* the call took */
	struct ckpt_got got;
	struct ckpt_stats stats;
	struct ckpt_step step[8];
	char text[1024];
};

/* What a rank is; zero means the usual. */
struct proc_opts {
	uint32_t rank, world, flags, guard, slots, persist_every, check;
	uint64_t generation, guard_ns;
	uint32_t words;	     /* that a rank holds of each tensor; 0: 4096 */
	bool private_memory; /* not from ckpt_alloc */
	bool only_weights;   /* DECLARE leaves the moments to DECLARE_REST */
	bool own_parent;     /* a launch of its own */
	bool fresh;	     /* procs_start: starting over is meant, whatever the store has */
	bool agree;	     /* has an agreement, which waits until the rank has attached again */
	uid_t uid;
};

struct proc {
	struct proc_opts o;
	pid_t pid, parent; /* parent: ours to wait for; pid itself unless own_parent */
	int sock;
	struct answer last;
};

extern const struct proc_opts finishing; /* whose guard is CKPT_FINISH, and else the usual */
extern struct proc R[3];		 /* ranks of the case that runs */

enum { WEIGHTS, MOMENTS, TENSORS };
extern const char *const tensor_name[TENSORS];

void proc_start(struct proc *r, struct proc_opts o); /* a new process, not attached yet */
void procs_start(struct proc *r, uint32_t n, struct proc_opts o); /* of one launch, ready */
void proc_join(struct proc *r);					  /* attach and declare */
void proc_kill(struct proc *r);
void procs_kill(struct proc *r, uint32_t n);
void proc_leave(struct proc *r);			  /* detach, and end the process */
void all_leave(struct proc *r, uint32_t n, pid_t daemon); /* the ranks, then the daemon */

void bid(struct proc *r, struct order o); /* do this */
int hear(struct proc *r);		  /* the answer, in r->last: its rc */
int tell(struct proc *r, struct order o); /* both */
void good(struct proc *r, int rc);	  /* fails if it is not 0 */
int seal(struct proc *r, uint32_t n);
void fill(struct proc *r, uint32_t n, uint64_t step);
int snap(struct proc *r, uint64_t step, uint32_t flags);
int guard(struct proc *r);
int wait_for(struct proc *r, uint64_t step, int state);
const struct ckpt_stats *stats(struct proc *r);
bool reattached(struct proc *r, uint32_t n, uint64_t times); /* all of them */
int restore(struct proc *r, uint64_t step, uint32_t flags);
bool holds(struct proc *r, uint32_t tensor, uint64_t step);
bool holds_all(struct proc *r, uint64_t step);
/* All ranks mark a step: 0, or what the last rank that did not get 0 got. */
int mark_all(struct proc *r, uint32_t n, uint64_t step, uint32_t flags);
void guard_all(struct proc *r, uint32_t n);
int wait_all(struct proc *r, uint32_t n, uint64_t step, int state);
/* A whole step of training: marked (again, while no slot is free), come to that state, guarded. */
void train(struct proc *r, uint32_t n, uint64_t step, uint32_t flags, int state);
void train_staged(struct proc *r, uint32_t n, uint64_t from, uint64_t to);
/* The next steps, until one is marked by all: its number. It is guarded when it has been
 * committed. */
uint64_t train_on(struct proc *r, uint32_t n, uint64_t next);
/* Is this step, and nothing newer, in the memory of the daemon? */
bool remembers(struct proc *r, uint64_t step);

/* --- the disk: as host_steps says --- */
bool disk_is(const char *steps);
#define assert_disk(steps) assert_string_equal(host_steps(&H, JOB), steps)
/* The format's reader accepts it, and every element of every tensor is that step's: read by
 * hand. */
void assert_whole(uint64_t step, const struct proc_opts *o, uint32_t world);
#endif
