/* SPDX-License-Identifier: Apache-2.0 */
/* procs.c - see procs.h. */
#include "tests/lib/procs.h"
#include "tests/lib/row.h"

struct shared_faults *faults;
pid_t D;
const struct proc_opts finishing = { .guard = CKPT_FINISH };
struct proc R[3];

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
			usleep(1000);
	}
	return io_ops_posix.list(ctx, dirfd, each, arg);
}

void faults_make(void)
{
	faults = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	MUST(faults != MAP_FAILED);
}

int procs_setup_without_daemon(void **state)
{
	(void)host_setup(state);
	faults_make();
	D = 0;
	return chmod(H.dir, 0755) < 0 || mkdir(H.store, 0700) < 0 ? -1 : 0;
}

int procs_setup(void **state)
{
	if (procs_setup_without_daemon(state) < 0)
		return -1;
	D = daemon_start();
	return 0;
}

/* --- processes --- */
#define CHILDREN_MAX 32
static pid_t child[CHILDREN_MAX]; /* all that a test started and has not seen the end of */

void child_keep(pid_t pid)
{
	for (uint32_t i = 0; i < CHILDREN_MAX; i++)
		if (!child[i]) {
			child[i] = pid;
			return;
		}
	fail_msg("more than %d processes", CHILDREN_MAX);
}

int child_end(pid_t pid)
{
	int status = -1;

	assert_soon(waitpid(pid, &status, WNOHANG) == pid);
	for (uint32_t i = 0; i < CHILDREN_MAX; i++)
		if (child[i] == pid)
			child[i] = 0;
	if (pid == D)
		D = 0;
	return status;
}

int procs_teardown(void **state)
{
	atomic_store(&faults->hold, 0);
	if (D)
		daemon_leave(D);
	for (uint32_t i = 0; i < CHILDREN_MAX; i++)
		if (child[i]) {
			(void)kill(child[i], SIGKILL);
			(void)waitpid(TAKE(child[i]), NULL, 0);
		}
	(void)munmap(faults, sizeof *faults);
	return host_teardown(state);
}

static void die_with_parent(void)
{
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() == 1)
		_exit(1);
}

void stop(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGSTOP), 0);
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
}

void go_on(pid_t pid)
{
	assert_int_equal(kill(pid, SIGCONT), 0);
}

void kill_9(pid_t pid)
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

void serve(const char *path, int say)
{
	struct daemon_opts o = { .socket = path, .copy_threads = 2 };
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

int daemon_try(pid_t *ret_pid)
{
	int say[2], rc = -EPIPE;

	assert_int_equal(pipe2(say, O_CLOEXEC), 0);
	*ret_pid = fork();
	assert_true(*ret_pid >= 0);
	if (*ret_pid == 0) {
		die_with_parent();
		(void)close(say[0]);
		serve(H.socket, say[1]);
	}
	child_keep(*ret_pid);
	(void)close(say[1]);
	assert_int_equal(read(say[0], &rc, sizeof rc), sizeof rc);
	(void)close(say[0]);
	if (rc < 0)
		assert_int_equal(WEXITSTATUS(child_end(*ret_pid)), 9);
	return rc;
}

pid_t daemon_start(void)
{
	pid_t pid;

	assert_int_equal(daemon_try(&pid), 0);
	return pid;
}

void daemon_leave(pid_t pid)
{
	int status;

	assert_int_equal(kill(pid, SIGTERM), 0);
	status = child_end(pid);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
		fail_msg("the daemon ended with status 0x%x", status);
}

/* --- ranks --- */
const char *const tensor_name[TENSORS] = { "w", "w.exp_avg" };
static const char *const component_name[TENSORS] = { "model", "optim" };

static uint64_t element(uint32_t tensor, uint64_t index, uint64_t step)
{
	return (step << 40 | (uint64_t)tensor << 32 | index) * UINT64_C(0x9e3779b97f4a7c15);
}

struct life { /* of a rank, in its process */
	struct proc_opts o;
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
	uint64_t until = now_ns() + PATIENCE;

	*ret_min = mine;
	if (send(l->sock, &a, sizeof a, MSG_NOSIGNAL) < 0)
		return -1;
	while ((atomic_load(&faults->meeting) ||
		(ckpt_stats(l->c, &s) == 0 && s.reattached == 0)) &&
	       now_ns() < until)
		usleep(1000);
	return s.reattached ? 0 : -1;
}

static void log_of_rank(void *ctx, int level, const char *line)
{
	(void)ctx;
	log_to_stderr(NULL, level, line);
}

static int life_attach(struct life *l, struct ckpt_err *e)
{
	struct ckpt_opts o =
		ROW(.size = sizeof o, .flags = l->o.flags ? l->o.flags : CKPT_REQUIRE, .job = JOB,
		    .store = H.store, .socket = H.socket, .rank = l->o.rank, .world = l->o.world,
		    .generation = l->o.generation, .agree = l->o.agree ? agree : NULL,
		    .agree_ctx = l, .slots = l->o.slots, .persist_every = l->o.persist_every,
		    .check = l->o.check, .guard = l->o.guard, .guard_ns = l->o.guard_ns,
		    .log = getenv("CKPT_TEST_LOG") ? log_of_rank : NULL);

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
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .role = i == WEIGHTS ? CKPT_PARAM : CKPT_MOMENT1,
		    .dtype = CKPT_U64, .component = component_name[i], .name = tensor_name[i],
		    .of = i == WEIGHTS ? NULL : "model/w", .ndim = 1, .mesh = l->mesh, .nplace = 1,
		    .nlocal = 1, .shape = &shape, .place = &shard, .local = &local);

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

static int life_order(struct life *l, const struct order *o, struct answer *a, struct ckpt_err *e)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = o->flags };
	struct ckpt_want want = ROW(.size = sizeof want, .flags = o->flags, .step = o->step,
				    .only = o->only[0] ? o->only : NULL, .deadline_ns = o->ns);

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

void bid(struct proc *r, struct order o)
{
	assert_int_equal(send(r->sock, &o, sizeof o, MSG_NOSIGNAL), sizeof o);
}

int hear(struct proc *r)
{
	struct pollfd p = { .fd = r->sock, .events = POLLIN };

	if (poll(&p, 1, (int)(2 * PATIENCE / NS_PER_MS)) <= 0)
		fail_msg("rank %u does not answer", r->o.rank);
	assert_int_equal(recv(r->sock, &r->last, sizeof r->last, 0), sizeof r->last);
	return r->last.rc;
}

int tell(struct proc *r, struct order o)
{
	bid(r, o);
	return hear(r);
}

void proc_start(struct proc *r, struct proc_opts o)
{
	int pair[2];
	struct answer a = { 0 };

	o.world = o.world ? o.world : 1;
	o.words = o.words ? o.words : 4096;
	*r = (struct proc){ .o = o };
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

static void proc_gone(struct proc *r)
{
	(void)child_end(r->parent);
	(void)close(TAKE_FD(r->sock));
}

void proc_kill(struct proc *r)
{
	assert_int_equal(kill(r->pid, SIGKILL), 0);
	proc_gone(r);
}

void procs_kill(struct proc *r, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		proc_kill(&r[i]);
}

void proc_leave(struct proc *r)
{
	assert_int_equal(tell(r, (struct order){ .verb = DETACH }), 0);
	assert_int_equal(shutdown(r->sock, SHUT_WR), 0);
	proc_gone(r);
}

void all_leave(struct proc *r, uint32_t n, pid_t daemon)
{
	for (uint32_t i = 0; i < n; i++)
		proc_leave(&r[i]);
	daemon_leave(daemon);
}

void good(struct proc *r, int rc)
{
	if (rc != 0)
		fail_msg("rank %u: %d: %s", r->o.rank, rc, r->last.text);
}

void proc_join(struct proc *r)
{
	good(r, tell(r, (struct order){ .verb = ATTACH }));
	good(r, tell(r, (struct order){ .verb = DECLARE }));
}

/* All do it at once: 0, or what the last rank that did not get 0 got. */
static int all(struct proc *r, uint32_t n, struct order o)
{
	int rc = 0;

	for (uint32_t i = 0; i < n; i++)
		bid(&r[i], o);
	for (uint32_t i = 0; i < n; i++)
		rc = hear(&r[i]) ? r[i].last.rc : rc;
	return rc;
}

int seal(struct proc *r, uint32_t n)
{
	return all(r, n, (struct order){ .verb = SEAL, .ns = PATIENCE });
}

void procs_start(struct proc *r, uint32_t n, struct proc_opts o)
{
	o.world = n;
	for (uint32_t i = 0; i < n; i++) {
		o.rank = i;
		proc_start(&r[i], o);
		proc_join(&r[i]);
		if (o.fresh && i == 0) /* one rank's word counts for all */
			good(&r[i], tell(&r[i], (struct order){ .verb = FRESH }));
	}
	good(&r[0], seal(r, n));
}

void fill(struct proc *r, uint32_t n, uint64_t step)
{
	for (uint32_t i = 0; i < n; i++)
		good(&r[i], tell(&r[i], (struct order){ .verb = FILL, .step = step }));
}

int snap(struct proc *r, uint64_t step, uint32_t flags)
{
	return tell(r, (struct order){ .verb = SNAP, .step = step, .flags = flags });
}

int guard(struct proc *r)
{
	return tell(r, (struct order){ .verb = GUARD });
}

int wait_for(struct proc *r, uint64_t step, int state)
{
	return tell(r,
		    (struct order){ .verb = WAIT, .step = step, .state = state, .ns = PATIENCE });
}

const struct ckpt_stats *stats(struct proc *r)
{
	good(r, tell(r, (struct order){ .verb = STATS }));
	return &r->last.stats;
}

bool reattached(struct proc *r, uint32_t n, uint64_t times)
{
	for (uint32_t i = 0; i < n; i++)
		if (stats(&r[i])->reattached != times)
			return false;
	return true;
}

int restore(struct proc *r, uint64_t step, uint32_t flags)
{
	return tell(r, (struct order){ .verb = RESTORE, .step = step, .flags = flags });
}

bool holds(struct proc *r, uint32_t tensor, uint64_t step)
{
	return tell(r, (struct order){ .verb = HOLDS, .flags = tensor, .step = step });
}

bool holds_all(struct proc *r, uint64_t step)
{
	return holds(r, WEIGHTS, step) && holds(r, MOMENTS, step);
}

int mark_all(struct proc *r, uint32_t n, uint64_t step, uint32_t flags)
{
	int rc = 0;

	fill(r, n, step);
	for (uint32_t i = 0; i < n; i++)
		rc = snap(&r[i], step, flags) ? r[i].last.rc : rc;
	return rc;
}

void guard_all(struct proc *r, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)guard(&r[i]);
}

int wait_all(struct proc *r, uint32_t n, uint64_t step, int state)
{
	return all(r, n,
		   (struct order){ .verb = WAIT, .step = step, .state = state, .ns = PATIENCE });
}

void train(struct proc *r, uint32_t n, uint64_t step, uint32_t flags, int state)
{
	assert_soon(mark_all(r, n, step, flags) == 0);
	good(&r[0], wait_all(r, n, step, state));
	guard_all(r, n);
}

void train_staged(struct proc *r, uint32_t n, uint64_t from, uint64_t to)
{
	for (uint64_t step = from; step <= to; step++)
		train(r, n, step, 0, CKPT_STAGED);
}

uint64_t train_on(struct proc *r, uint32_t n, uint64_t next)
{
	uint64_t until = now_ns() + PATIENCE;

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

bool remembers(struct proc *r, uint64_t step)
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
bool disk_is(const char *steps)
{
	return strcmp(host_steps(&H, JOB), steps) == 0;
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

void assert_whole(uint64_t step, const struct proc_opts *o, uint32_t world)
{
	cleanup_close int fd = host_step_fd(&H, JOB, step);
	struct checkpoint *c = host_open(&H, JOB, step);
	uint64_t elements = 0;

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
}
