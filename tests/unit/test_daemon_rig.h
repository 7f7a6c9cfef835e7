/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_rig.h - daemons and ranks as processes of their own, for tests that kill, stop and
 * start them at chosen moments. A rank does what the test orders over a socket and answers with what
 * the library said and how long it took. CKPT_TEST_LOG=1 shows what both log.
 *
 * Every element of the state is a function of its tensor, its index and the step, so what is on disk
 * or in memory can be checked element by element.
 */
#ifndef CKPT_TEST_DAEMON_RIG_H
#define CKPT_TEST_DAEMON_RIG_H
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include "ckpt/store/store.h"
#include "daemon/daemon.h"
#include "tests/lib/io_faults.h"
#include "tests/lib/unit.h"

#define JOB "job"
#define NOBODY 65534
#define PATIENCE_NS (20 * NS_PER_S) /* until a test gives up; not a time that anything may take */
#define AT_ONCE_NS (2 * NS_PER_S)   /* "at once", on a machine that is busy with other tests */
#define LOOK_US 2000

/* True as soon as the condition holds, false if it does not within the time. */
#define within(ns, cond)                                        \
	({                                                      \
		uint64_t until_ = now_ns() + (ns);              \
		bool holds_;                                    \
		while (!(holds_ = (cond)) && now_ns() < until_) \
			usleep(LOOK_US);                        \
		holds_;                                         \
	})
#define assert_soon(cond)                                      \
	do {                                                   \
		if (!within(PATIENCE_NS, cond))                \
			fail_msg("never happened: %s", #cond); \
	} while (0)

/* --- the place: a temporary directory with a store and a socket --- */
static struct {
	char dir[64], store[80], socket[80];
	int store_fd;
} at;

/* What daemons do on the disk when a test says so; shared with all of them. */
static struct shared_faults {
	_Atomic uint32_t no_space; /* writes fail with -ENOSPC */
	_Atomic uint32_t hold;	   /* the next listing of a directory waits until this is 0 again */
	_Atomic uint32_t held;	   /* it does */
} * faults;

static uint64_t drain_ns; /* of the daemons that are started from now on; 0: their own */

static int64_t fault_pwrite(void *ctx, int fd, const void *buf, uint64_t len, uint64_t off)
{
	if (atomic_load(&faults->no_space))
		return -ENOSPC;
	return io_ops_posix.pwrite(ctx, fd, buf, len, off);
}

static int fault_list(void *ctx, int dirfd, int (*each)(void *arg, const char *name, unsigned char),
		      void *arg)
{
	uint32_t one = 1;

	if (atomic_compare_exchange_strong(&faults->hold, &one, 2)) {
		atomic_store(&faults->held, 1);
		while (atomic_load(&faults->hold))
			usleep(LOOK_US);
	}
	return io_ops_posix.list(ctx, dirfd, each, arg);
}

static inline int rig_setup(void **state)
{
	const char *tmp = getenv("TMPDIR");

	(void)state;
	(void)snprintf(at.dir, sizeof at.dir, "%.32s/ckpt-daemon-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(at.dir) || chmod(at.dir, 0755) < 0)
		return -1;
	(void)snprintf(at.store, sizeof at.store, "%s/store", at.dir);
	(void)snprintf(at.socket, sizeof at.socket, "%s/s", at.dir);
	if (mkdir(at.store, 0700) < 0)
		return -1;
	at.store_fd = open(at.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	drain_ns = 0;
	return at.store_fd < 0 || faults == MAP_FAILED ? -1 : 0;
}

/* --- processes --- */
#define CHILDREN_MAX 32
static pid_t child[CHILDREN_MAX]; /* all that a test started and has not seen the end of */

static void child_keep(pid_t pid)
{
	for (uint32_t i = 0; i < CHILDREN_MAX; i++)
		if (!child[i]) {
			child[i] = pid;
			return;
		}
	fail_msg("more than %d processes", CHILDREN_MAX);
}

/* Its end, as waitpid tells it. */
static inline int child_end(pid_t pid)
{
	int status = -1;

	assert_soon(waitpid(pid, &status, WNOHANG) == pid);
	for (uint32_t i = 0; i < CHILDREN_MAX; i++)
		if (child[i] == pid)
			child[i] = 0;
	return status;
}

static inline int rig_teardown(void **state)
{
	(void)state;
	atomic_store(&faults->hold, 0);
	for (uint32_t i = 0; i < CHILDREN_MAX; i++)
		if (child[i]) {
			(void)kill(child[i], SIGKILL);
			(void)waitpid(TAKE(child[i]), NULL, 0);
		}
	(void)munmap(faults, sizeof *faults);
	(void)close(at.store_fd);
	return io_tree_remove(AT_FDCWD, at.dir);
}

static void die_with_parent(void)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == 1)
		_exit(1);
}

static inline void stop(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
}

static inline void go_on(pid_t pid)
{
	assert_int_equal(kill(pid, SIGCONT), 0);
}

static inline void kill_9(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(WTERMSIG(child_end(pid)), SIGKILL);
}

/* --- daemons --- */
static struct daemon *serving; /* in the daemon's process alone */

static void on_term(int sig)
{
	(void)sig;
	daemon_stop(serving);
}

#ifdef __SANITIZE_ADDRESS__
int __lsan_do_recoverable_leak_check(void);
#else
#define __lsan_do_recoverable_leak_check() 0
#endif

/* Serve until told to leave. say: gets the result of daemon_open. */
static inline void serve(const char *path, int say)
{
	struct daemon_opts o = { .socket = path, .drain_ns = drain_ns, .copy_threads = 2 };
	struct io_ops ops = io_ops_posix;
	struct sigaction on = { .sa_handler = on_term };
	struct ckpt_err err = { 0 };
	int rc;

	ops.pwrite = fault_pwrite;
	ops.list = fault_list;
	o.ops = &ops;
	if (getenv("CKPT_TEST_LOG"))
		o.log = (struct log){ log_to_stderr, NULL, 7 };
	rc = daemon_open(&o, &serving, &err);
	if (rc == 0)
		sigaction(SIGTERM, &on, NULL);
	if (write(say, &rc, sizeof rc) < 0 || rc < 0)
		_exit(9);
	rc = daemon_run(serving);
	daemon_close(TAKE(serving));
	_exit(rc < 0 ? 8 : __lsan_do_recoverable_leak_check() ? 7 : 0);
}

/* What daemon_open said in a process of its own, which then serves if that was 0. */
static inline int daemon_try(pid_t *ret_pid)
{
	int say[2], rc = -EPIPE;

	assert_int_equal(pipe2(say, O_CLOEXEC), 0);
	*ret_pid = fork();
	assert_true(*ret_pid >= 0);
	if (*ret_pid == 0) {
		die_with_parent();
		(void)close(say[0]);
		serve(at.socket, say[1]);
	}
	child_keep(*ret_pid);
	(void)close(say[1]);
	assert_int_equal(read(say[0], &rc, sizeof rc), sizeof rc);
	(void)close(say[0]);
	if (rc < 0)
		assert_int_equal(WEXITSTATUS(child_end(*ret_pid)), 9);
	return rc;
}

static inline pid_t daemon_start(void)
{
	pid_t pid;

	assert_int_equal(daemon_try(&pid), 0);
	return pid;
}

/* SIGTERM: it drains and leaves in order. */
static inline void daemon_leave(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGTERM), 0);
	status = child_end(pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("the daemon ended with status 0x%x", status);
}

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
	WHY,
	USE_AFTER_FORK,
	DETACH,
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
struct rank_opts {
	uint32_t rank, world, flags, guard, slots, persist_every, check;
	uint64_t generation, guard_ns;
	uint32_t words;	     /* that a rank holds of each tensor; 0: 4096 */
	bool private_memory; /* not from ckpt_alloc */
	bool only_weights;   /* DECLARE leaves the moments to DECLARE_REST */
	bool own_parent;     /* a launch of its own */
	bool fresh;	     /* ranks_start: starting over is meant, whatever the store has */
	bool agree;	     /* has an agreement, which waits until the rank has attached again */
	uid_t uid;
};

struct rank {
	struct rank_opts o;
	pid_t pid, parent; /* parent: ours to wait for; pid itself unless own_parent */
	int sock;
	struct answer last;
};

enum { WEIGHTS, MOMENTS, TENSORS };
static const char *const tensor_name[TENSORS] = { "w", "w.exp_avg" };
static const char *const component_name[TENSORS] = { "model", "optim" };

static uint64_t element(uint32_t tensor, uint64_t index, uint64_t step)
{
	return (step << 40 | (uint64_t)tensor << 32 | index) * UINT64_C(0x9e3779b97f4a7c15);
}

struct life { /* of a rank, in its process */
	struct rank_opts o;
	int sock;
	ckpt *c;
	uint64_t *mem[TENSORS];
	uint32_t mesh;
	uint64_t reattached;
};

static int agree(void *ctx, uint64_t mine, uint64_t *ret_min)
{
	struct life *l = ctx;
	struct answer a = { .agreeing = true };
	struct ckpt_stats s = { .size = sizeof s };
	uint64_t until = now_ns() + PATIENCE_NS;

	*ret_min = mine;
	if (send(l->sock, &a, sizeof a, MSG_NOSIGNAL) < 0)
		return -1;
	while (ckpt_stats(l->c, &s) == 0 && s.reattached == 0 && now_ns() < until)
		usleep(LOOK_US);
	return s.reattached ? 0 : -1;
}

static void log_of_rank(void *ctx, int level, const char *line)
{
	(void)ctx;
	log_to_stderr(NULL, level, line);
}

static int life_attach(struct life *l, struct ckpt_err *e)
{
	struct ckpt_opts o = {
		.size = sizeof o,
		.flags = l->o.flags ? l->o.flags : CKPT_REQUIRE,
		.job = JOB,
		.store = at.store,
		.socket = at.socket,
		.rank = l->o.rank,
		.world = l->o.world,
		.generation = l->o.generation,
		.agree = l->o.agree ? agree : NULL,
		.agree_ctx = l,
		.slots = l->o.slots,
		.persist_every = l->o.persist_every,
		.check = l->o.check,
		.guard = l->o.guard,
		.guard_ns = l->o.guard_ns,
		.log = getenv("CKPT_TEST_LOG") ? log_of_rank : NULL,
	};

	if (l->o.uid && (setgid(l->o.uid) < 0 || setuid(l->o.uid) < 0))
		return -errno;
	die_with_parent();
	return ckpt_attach(&o, &l->c, e);
}

static int life_tensor(struct life *l, uint32_t i, struct ckpt_err *e)
{
	const struct ckpt_placement shard = { .how = CKPT_SHARD };
	const uint64_t shape = (uint64_t)l->o.words * l->o.world;
	struct ckpt_local local = { .ptr = l->mem[i] };
	struct ckpt_tensor t = {
		.size = sizeof t,
		.role = i == WEIGHTS ? CKPT_PARAM : CKPT_MOMENT1,
		.dtype = CKPT_U64,
		.component = component_name[i],
		.name = tensor_name[i],
		.of = i == WEIGHTS ? NULL : tensor_name[WEIGHTS],
		.ndim = 1,
		.mesh = l->mesh,
		.nplace = 1,
		.nlocal = 1,
		.shape = &shape,
		.place = &shard,
		.local = &local,
	};

	return ckpt_tensor_add(l->c, &t, NULL, e);
}

static int life_declare(struct life *l, struct ckpt_err *e)
{
	uint64_t bytes = l->o.words * sizeof(uint64_t);
	void *mem = l->o.private_memory ? calloc(TENSORS, bytes) : NULL;
	int rc = mem ? 0 : ckpt_alloc(l->c, TENSORS * bytes, &mem, e);

	if (rc == 0)
		rc = ckpt_mesh(l->c, 1, (const char *const[]){ "fsdp" }, &l->o.world, NULL,
			       &l->mesh, e);
	for (uint32_t i = 0; i < TENSORS && rc == 0; i++) {
		l->mem[i] = (uint64_t *)mem + i * l->o.words;
		if (i == WEIGHTS || !l->o.only_weights)
			rc = life_tensor(l, i, e);
	}
	return rc;
}

/* Some tests do it while the memory is copied, which is the mistake that they are about. */
__attribute__((no_sanitize("thread"))) static void life_fill(struct life *l, uint64_t step)
{
	uint64_t first = (uint64_t)l->o.rank * l->o.words;

	for (uint32_t t = 0; t < TENSORS; t++)
		for (uint32_t i = 0; i < l->o.words; i++)
			l->mem[t][i] = element(t, first + i, step);
}

/* Is all of a tensor that step's? */
static int life_holds(const struct life *l, uint32_t t, uint64_t step)
{
	uint64_t first = (uint64_t)l->o.rank * l->o.words;

	for (uint32_t i = 0; i < l->o.words; i++)
		if (l->mem[t][i] != element(t, first + i, step))
			return 0;
	return 1;
}

/* What a child of a rank gets from the handle that it inherited: 0 if that is -ECHILD everywhere. */
static int life_fork(struct life *l)
{
	struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST };
	struct ckpt_step step[1];
	uint32_t dim = 1, id;
	uint64_t sum;
	void *p;
	int status = -1;
	pid_t pid = fork();

	if (pid == 0) {
		bool all = ckpt_snapshot(l->c, 1000, NULL) == -ECHILD &&
			   ckpt_guard(l->c, NULL) == -ECHILD &&
			   ckpt_wait(l->c, 1, CKPT_COMMITTED, 0, NULL) == -ECHILD &&
			   ckpt_steps(l->c, step, 1) == -ECHILD &&
			   ckpt_alloc(l->c, 4096, &p, NULL) == -ECHILD &&
			   ckpt_mesh(l->c, 1, (const char *const[]){ "x" }, &dim, NULL, &id,
				     NULL) == -ECHILD &&
			   ckpt_seal(l->c, 0, NULL) == -ECHILD && ckpt_fresh(l->c) == -ECHILD &&
			   ckpt_why(l->c, NULL) == -ECHILD &&
			   ckpt_restore(l->c, &want, NULL, NULL) == -ECHILD &&
			   ckpt_fingerprint(l->c, 0, &sum) == -ECHILD &&
			   ckpt_detach(l->c, 0) == -ECHILD;

		_exit(all ? 0 : 1);
	}
	if (pid < 0 || waitpid(pid, &status, 0) != pid)
		return -errno;
	return status;
}

static int life_order(struct life *l, const struct order *o, struct answer *a, struct ckpt_err *e)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = o->flags };
	struct ckpt_want want = { .size = sizeof want,
				  .flags = o->flags,
				  .step = o->step,
				  .only = o->only[0] ? o->only : NULL,
				  .deadline_ns = o->ns };

	switch (o->verb) {
	case ATTACH:
		return life_attach(l, e);
	case DECLARE:
		return life_declare(l, e);
	case DECLARE_REST:
		return life_tensor(l, MOMENTS, e);
	case SEAL:
		return ckpt_seal(l->c, o->ns, e);
	case FILL:
		life_fill(l, o->step);
		return 0;
	case HOLDS:
		return life_holds(l, o->flags, o->step);
	case SNAP:
		return ckpt_snapshot(l->c, o->step, &mark);
	case GUARD:
		return ckpt_guard(l->c, NULL);
	case WAIT:
		return ckpt_wait(l->c, o->step, o->state, o->ns, e);
	case RESTORE:
		a->got.size = sizeof a->got;
		return ckpt_restore(l->c, &want, &a->got, e);
	case STEPS:
		return ckpt_steps(l->c, a->step, ARRAY_LEN(a->step));
	case STATS:
		a->stats.size = sizeof a->stats;
		return ckpt_stats(l->c, &a->stats);
	case FRESH:
		return ckpt_fresh(l->c);
	case WHY:
		return ckpt_why(l->c, e);
	case USE_AFTER_FORK:
		return life_fork(l);
	case DETACH:
		return ckpt_detach(TAKE(l->c), o->ns);
	}
	return -EINVAL;
}

static void live(struct life *l)
{
	struct order o;

	while (recv(l->sock, &o, sizeof o, 0) == sizeof o) {
		struct answer a = { 0 };
		struct ckpt_err e = { 0 };
		uint64_t start = now_ns();

		a.rc = life_order(l, &o, &a, &e);
		a.ns = now_ns() - start;
		(void)snprintf(a.text, sizeof a.text, "%.1000s", e.msg);
		if (send(l->sock, &a, sizeof a, MSG_NOSIGNAL) < 0)
			break;
	}
	_exit(0);
}

static inline void ask(struct rank *r, struct order o)
{
	assert_int_equal(send(r->sock, &o, sizeof o, MSG_NOSIGNAL), sizeof o);
}

static inline int hear(struct rank *r)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	if (poll(&p, 1, (int)(2 * PATIENCE_NS / NS_PER_MS)) <= 0)
		fail_msg("rank %u does not answer", r->o.rank);
	assert_int_equal(recv(r->sock, &r->last, sizeof r->last, 0), sizeof r->last);
	return r->last.rc;
}

static inline int tell(struct rank *r, struct order o)
{
	ask(r, o);
	return hear(r);
}

/* A new process, not attached yet. */
static inline void rank_start(struct rank *r, struct rank_opts o)
{
	int pair[2];
	struct answer a = { 0 };

	o.world = o.world ? o.world : 1;
	o.words = o.words ? o.words : 4096;
	*r = (struct rank){ .o = o };
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
	r->parent = fork();
	assert_true(r->parent >= 0);
	if (r->parent == 0) {
		struct life l = { .o = o, .sock = pair[1] };
		pid_t own;

		die_with_parent();
		(void)close(pair[0]);
		if (o.own_parent && (own = fork()) != 0) {
			(void)close(pair[1]);
			(void)waitpid(own, NULL, 0);
			_exit(0);
		}
		die_with_parent();
		a.rc = getpid();
		if (send(l.sock, &a, sizeof a, MSG_NOSIGNAL) < 0)
			_exit(1);
		live(&l);
	}
	child_keep(r->parent);
	(void)close(pair[1]);
	r->sock = pair[0];
	r->pid = hear(r);
}

static inline void rank_gone(struct rank *r)
{
	(void)child_end(r->parent);
	(void)close(TAKE_FD(r->sock));
}

static inline void rank_kill(struct rank *r)
{
	assert_int_equal(kill(r->pid, SIGKILL), 0);
	rank_gone(r);
}

/* Detach, and end the process. */
static inline void rank_leave(struct rank *r)
{
	assert_int_equal(tell(r, (struct order){ .verb = DETACH }), 0);
	assert_int_equal(shutdown(r->sock, SHUT_WR), 0);
	rank_gone(r);
}

static inline void good(struct rank *r, int rc)
{
	if (rc != 0)
		fail_msg("rank %u: %d: %s", r->o.rank, rc, r->last.text);
}

static inline int seal(struct rank *r, uint32_t n)
{
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		ask(&r[i], (struct order){ .verb = SEAL, .ns = PATIENCE_NS });
	for (uint32_t i = 0; i < n; i++)
		rc = hear(&r[i]) ? r[i].last.rc : rc;
	return rc;
}

/* n ranks of one launch, attached and ready. */
static inline void ranks_start(struct rank *r, uint32_t n, struct rank_opts o)
{
	o.world = n;
	for (uint32_t i = 0; i < n; i++) {
		o.rank = i;
		rank_start(&r[i], o);
		good(&r[i], tell(&r[i], (struct order){ .verb = ATTACH }));
		good(&r[i], tell(&r[i], (struct order){ .verb = DECLARE }));
		if (o.fresh && i == 0) /* one rank's word counts for all */
			good(&r[i], tell(&r[i], (struct order){ .verb = FRESH }));
	}
	good(&r[0], seal(r, n));
}

static inline void fill(struct rank *r, uint32_t n, uint64_t step)
{
	for (uint32_t i = 0; i < n; i++)
		good(&r[i], tell(&r[i], (struct order){ .verb = FILL, .step = step }));
}

static inline int snap(struct rank *r, uint64_t step, uint32_t flags)
{
	return tell(r, (struct order){ .verb = SNAP, .step = step, .flags = flags });
}

static inline int guard(struct rank *r)
{
	return tell(r, (struct order){ .verb = GUARD });
}

static inline int wait_for(struct rank *r, uint64_t step, int state)
{
	return tell(
		r, (struct order){ .verb = WAIT, .step = step, .state = state, .ns = PATIENCE_NS });
}

static inline const struct ckpt_stats *stats(struct rank *r)
{
	good(r, tell(r, (struct order){ .verb = STATS }));
	return &r->last.stats;
}

static inline int restore(struct rank *r, uint64_t step, uint32_t flags)
{
	return tell(r, (struct order){ .verb = RESTORE, .step = step, .flags = flags });
}

static inline bool holds(struct rank *r, uint32_t tensor, uint64_t step)
{
	return tell(r, (struct order){ .verb = HOLDS, .flags = tensor, .step = step });
}

/* All ranks mark a step: 0, or what the last rank that did not get 0 got. */
static inline int mark_all(struct rank *r, uint32_t n, uint64_t step, uint32_t flags)
{
	int rc = 0;

	fill(r, n, step);
	for (uint32_t i = 0; i < n; i++)
		rc = snap(&r[i], step, flags) ? r[i].last.rc : rc;
	return rc;
}

static inline void guard_all(struct rank *r, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)guard(&r[i]);
}

static inline int wait_all(struct rank *r, uint32_t n, uint64_t step, int state)
{
	const struct order o = { .verb = WAIT, .step = step, .state = state, .ns = PATIENCE_NS };
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		ask(&r[i], o);
	for (uint32_t i = 0; i < n; i++)
		rc = hear(&r[i]) ? r[i].last.rc : rc;
	return rc;
}

/* A whole step of training: marked (again, while no slot is free), come to that state, guarded. */
static inline void train(struct rank *r, uint32_t n, uint64_t step, uint32_t flags, int state)
{
	assert_soon(mark_all(r, n, step, flags) == 0);
	good(&r[0], wait_all(r, n, step, state));
	guard_all(r, n);
}

/* The next steps, until one is marked by all: its number. It is guarded when it has been committed. */
static inline uint64_t train_on(struct rank *r, uint32_t n, uint64_t next)
{
	uint64_t until = now_ns() + PATIENCE_NS;

	for (; now_ns() < until; next++, usleep(10000)) {
		guard_all(r, n);
		if (mark_all(r, n, next, CKPT_PERSIST) == 0 &&
		    wait_all(r, n, next, CKPT_COMMITTED) == 0) {
			guard_all(r, n);
			return next;
		}
	}
	fail_msg("no step is committed any more: the last answer was %d", r[0].last.rc);
	return 0;
}

/* Is this step, and nothing newer, in the memory of the daemon? */
static inline bool in_memory(struct rank *r, uint64_t step)
{
	int n = tell(r, (struct order){ .verb = STEPS });
	bool there = false;

	for (int i = 0; i < n; i++) {
		there |= r->last.step[i].step == step && r->last.step[i].where & 1;
		if (r->last.step[i].step > step)
			return false;
	}
	return there;
}

/* --- the disk --- */
static int step_order(const void *a, const void *b)
{
	const struct store_step *x = a, *y = b;

	return x->step < y->step ? -1 : x->step > y->step;
}

/* "1 2 ~3": committed steps, and ~ those set aside. What is being collected is left out. */
static inline const char *on_disk(void)
{
	static char text[256];
	struct store_step *step = NULL;
	struct store s = { .ops = &io_ops_posix, .job = JOB };
	uint32_t n = 0, len = 0;

	text[0] = 0;
	s.job_fd = openat(at.store_fd, JOB, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	assert_true(s.job_fd >= 0);
	assert_int_equal(store_scan(&s, true, &step, &n, NULL), 0);
	qsort(step, n, sizeof *step, step_order);
	for (uint32_t i = 0; i < n && len < sizeof text - 32; i++)
		if (step[i].state != STORE_COLLECTING)
			len += (uint32_t)snprintf(text + len, sizeof text - len, "%s%s%" PRIu64,
						  len ? " " : "",
						  step[i].state == STORE_SET_ASIDE   ? "~"
						  : step[i].state == STORE_DAMAGED   ? "!"
						  : step[i].state == STORE_MISPLACED ? "?"
										     : "",
						  step[i].step);
	free(step);
	(void)close(s.job_fd);
	return text;
}

static inline bool disk_is(const char *steps)
{
	return strcmp(on_disk(), steps) == 0;
}

static uint64_t raw_word(int dirfd, const struct format_file *f, uint64_t off)
{
	const struct chunk *k = &f->chunk[off >> f->chunk_log2];
	cleanup_close int fd = openat(dirfd, f->name, O_RDONLY | O_CLOEXEC);
	uint64_t word;

	assert_int_equal(k->codec, CODEC_RAW);
	assert_int_equal(pread(fd, &word, sizeof word,
			       (off_t)(k->off + (off & (((uint64_t)1 << f->chunk_log2) - 1)))),
			 sizeof word);
	return word;
}

/* The format's reader accepts it, and every element of every tensor is that step's: read by hand. */
static inline void assert_whole(uint64_t step, const struct rank_opts *o, uint32_t world)
{
	struct store s = { .ops = &io_ops_posix, .job = JOB };
	struct source_dir dir;
	struct checkpoint *c = NULL;
	struct ckpt_err err = { 0 };
	uint64_t elements = 0;
	char name[32];
	int fd = -1;

	(void)snprintf(name, sizeof name, "step-%012" PRIu64, step);
	s.job_fd = openat(at.store_fd, JOB, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (store_step_open(&s, name, &fd, &err) || store_source_dir(&io_ops_posix, fd, &dir) ||
	    format_native.open(&dir, &c, NULL, NULL, &err))
		fail_msg("step %" PRIu64 ": %s", step, err.msg);
	assert_int_equal(c->step, step);
	assert_int_equal(c->world, world);
	assert_int_equal(c->table.ntensor, TENSORS);
	for (uint32_t i = 0; i < c->table.npiece; i++) {
		const struct table_piece *p = &c->table.piece[i];
		const struct table_tensor *t = &c->table.tensor[p->tensor];
		const struct run *run = p->set.dim[0].run;
		uint32_t which = strcmp(t->name, tensor_name[WEIGHTS]) ? MOMENTS : WEIGHTS;

		assert_string_equal(t->name, tensor_name[which]);
		assert_true(p->set.dim[0].n == 1 && run->count == 1 && !p->stride);
		for (uint64_t k = 0; k < run->len; k += k % 64 == 63 ? 1 : 7, elements++)
			assert_int_equal(raw_word(fd, &c->file[p->place], p->off + k * 8),
					 element(which, run->start + k, step));
	}
	assert_true(elements > (uint64_t)world * (o->words ? o->words : 4096) / 8);
	checkpoint_free(c);
	store_source_dir_close(&dir);
	(void)close(fd);
	(void)close(s.job_fd);
}

#define rig(t) cmocka_unit_test_setup_teardown(t, rig_setup, rig_teardown)
#endif
