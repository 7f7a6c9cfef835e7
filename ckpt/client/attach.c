// SPDX-License-Identifier: Apache-2.0
// attach.c - the connection to the daemon: first attach, requests, and the helper thread that
// attaches again. Called by client.c and itself.
// Invariant: losing the daemon changes link and state and tears what is being copied; it never
// touches the trainer's memory or makes it wait.
#include "ckpt/base/hash.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include "ckpt/wire/turns.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "ckpt/base/thread.h"

#define STOP_S 5 /* a device's driver that keeps the helper for longer hangs */
#define PATH_BYTES 4096
#define CONNECT_LOOK_NS (10 * NS_PER_MS) /* how often a full backlog is tried again */
#define AUTOSTART_IDLE_S "600"		 /* ckpt.h says so, and README and ckptd(8) */
#define AGAIN_NS (50 * NS_PER_MS)	 /* from one attempt to attach to the next */

extern char **environ;

/* Wakes threads in ckpt_wait or ckpt_guard. */
static void client_changed(ckpt *c)
{
	struct link *l = atomic_load(&c->link);

	atomic_fetch_add(&c->changed, 1);
	shared_futex_wake(&c->changed);
	if (l) {
		atomic_fetch_add(&l->rank->wake, 1);
		shared_futex_wake(&l->rank->wake);
		shared_futex_wake(&l->job->event);
	}
}

bool beat_lost(const struct link *l, uint64_t now)
{
	uint64_t beat = load_relaxed(&l->job->beat_ns);

	return now > beat && now - beat > SHARED_BEAT_DEAD_NS;
}

/* --- requests --- */
bool rpc_take(ckpt *c, uint64_t until)
{
	for (;;) {
		uint32_t nobody = 0;
		uint64_t now;

		if (atomic_compare_exchange_strong(&c->rpc, &nobody, 1))
			return true;
		now = now_ns();
		if (now >= until)
			return false;
		shared_futex_wait(&c->rpc, 1, MIN(until - now, 100 * NS_PER_MS));
	}
}

void rpc_give(ckpt *c)
{
	c->on_helper = false;
	atomic_store(&c->rpc, 0);
	shared_futex_wake(&c->rpc);
}

uint64_t client_until(uint64_t ns)
{
	uint64_t now = now_ns();

	return now + ns < now ? UINT64_MAX : now + ns;
}

/* One moment of waiting, for the socket (-1: none) too. The helper is woken, and does its other
 * work. */
static void wait_a_moment(ckpt *c, int sock, short events, uint64_t ns)
{
	struct pollfd p[2] = { { .fd = sock, .events = events },
			       { .fd = c->on_helper ? c->wake : -1, .events = POLLIN } };
	uint64_t n;

	if (poll(p, 2, (int)(MIN(ns, NS_PER_S) / NS_PER_MS) + 1) <= 0 || !p[1].revents)
		return;
	if (read(c->wake, &n, sizeof n) == sizeof n)
		copier_finish(c);
}

/* watch: the pages of the daemon that is to answer; NULL before they came. */
static int wait_readable(ckpt *c, uint64_t until, const struct link *watch)
{
	struct pollfd p = { .fd = c->sock, .events = POLLIN };

	for (;;) {
		uint64_t now = now_ns();

		if (poll(&p, 1, 0) > 0)
			return 0;
		if (now >= until || atomic_load(&c->stop) || (watch && beat_lost(watch, now)))
			return -ETIMEDOUT;
		wait_a_moment(c, c->sock, POLLIN, until - now);
	}
}

/* The answer to seq; older ones, for which no call waits any more, are dropped. Its length; -EPIPE:
 * the daemon has closed; -ECONNRESET, -ETIMEDOUT, -EPROTO, -EPROTONOSUPPORT. */
static int answer_await(ckpt *c, uint64_t until, const struct link *watch,
			uint8_t in[WIRE_BYTES_MAX], int got[WIRE_FDS_MAX], int *ret_ngot)
{
	const struct wire_head *head = (const struct wire_head *)in;

	for (;;) {
		int failed = 0, rc = wait_readable(c, until, watch);
		socklen_t len = sizeof failed;

		if (rc < 0)
			return rc;
		if (getsockopt(c->sock, SOL_SOCKET, SO_ERROR, &failed, &len) == 0 && failed)
			return -ECONNRESET;
		rc = wire_recv(c->sock, in, WIRE_BYTES_MAX, got, ret_ngot);
		if (rc == -EAGAIN)
			continue;
		if (rc <= 0)
			return rc ? rc : -EPIPE;
		if (head->seq == c->seq)
			return rc;
		wire_close_fds(got, *ret_ngot);
		if ((int32_t)(head->seq - c->seq) > 0)
			return -EPROTO;
	}
}

/* No answer: the sentence, and whether the connection is of any further use. */
static int answer_missing(ckpt *c, uint32_t type, int rc, const struct wire_head *head,
			  struct ckpt_err *err)
{
	pid_t closer = TAKE(c->closer);

	c->late = rc == -ETIMEDOUT && (type == WIRE_STEPS || type == WIRE_LIST);
	if (!c->late)
		shutdown(c->sock, SHUT_RDWR); /* the helper takes it from here */
	if (rc == -ETIMEDOUT)
		return ckpt_error(err, rc,
				  "the daemon on %s (process %d) does not answer: is it stopped?",
				  c->socket, (int)c->peer);
	if (rc == -EPROTONOSUPPORT)
		return ckpt_error(
			err, -EPROTO,
			"the daemon on %s (process %d) speaks protocol %u, this library protocol %u: "
			"start the ckptd that came with this library, on another socket",
			c->socket, (int)c->peer, head->abi, WIRE_ABI);
	if (rc == -EPROTO)
		return ckpt_error(
			err, rc,
			"the daemon on %s (process %d) sent an unexpected answer: is it another version?",
			c->socket, (int)c->peer);
	if (rc == -EPIPE && type == WIRE_HELLO) {
		if (closer == c->peer)
			return ckpt_error(
				err, -EPROTO,
				"the daemon on %s (process %d) closes the connection without an answer: "
				"it has an older version (this library speaks protocol %u); stop it, "
				"or start the ckptd that came with this library on another socket",
				c->socket, (int)c->peer, WIRE_ABI);
		c->closer = c->peer;
	}
	return ckpt_error(err, -ECONNRESET, "the daemon on %s closed the connection", c->socket);
}

int rpc_ask(ckpt *c, void *msg, enum wire_type type, int fd, uint8_t in[WIRE_BYTES_MAX],
	    int ret_fd[WIRE_FDS_MAX], uint64_t wait_ns, struct ckpt_err *err)
{
	const struct wire_head *head = (const struct wire_head *)in;
	const struct link *watch = type == WIRE_HELLO ? NULL : atomic_load(&c->link);
	uint64_t until = client_until(wait_ns);
	int ngot = 0, rc = 0;

	c->answered = c->sock < 0;
	if (c->sock < 0)
		return ckpt_error(err, -ECONNRESET, "not attached to a daemon (%s)", c->socket);
	if (c->late) {
		rc = answer_await(c, until, watch, in, ret_fd, &ngot);
		if (rc > 0) {
			wire_close_fds(ret_fd, ngot);
			c->late = false;
			rc = 0;
		}
	}
	if (rc == 0)
		rc = wire_send(c->sock, msg, type, wire_kind(type)->bytes, ++c->seq, &fd, fd >= 0);
	if (rc == 0)
		rc = answer_await(c, until, watch, in, ret_fd, &ngot);
	else if (rc == -EPIPE)
		rc = -ECONNRESET;
	if (rc < 0)
		return answer_missing(c, type, rc, head, err);
	c->answered = true;
	if (head->type == WIRE_REFUSE)
		return wire_refusal(in, (uint32_t)rc, err);
	if (wire_answer_check(type, in, (uint32_t)rc, ngot) < 0) {
		wire_close_fds(ret_fd, ngot);
		c->answered = false;
		return answer_missing(c, type, -EPROTO, head, err);
	}
	c->closer = 0;
	return head->type;
}

int rpc_call(ckpt *c, void *msg, enum wire_type type, int fd, void *answer,
	     int ret_fd[WIRE_FDS_MAX], uint64_t wait_ns, struct ckpt_err *err)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	int got[WIRE_FDS_MAX];
	int rc = rpc_ask(c, msg, type, fd, in, got, wait_ns, err);

	assert(!wire_kind(type)->answer[1]);
	if (rc < 0)
		return rc;
	if (answer)
		memcpy(answer, in, wire_kind((uint32_t)rc)->bytes);
	if (ret_fd)
		memcpy(ret_fd, got, sizeof got);
	else
		wire_close_fds(got, WIRE_FDS_MAX);
	return 0;
}

/* --- connecting --- */
/* A stopped daemon's backlog fills; there is nothing to wait on then. */
static int connect_by(ckpt *c, int sock, const struct sockaddr_un *a, uint64_t until)
{
	while (connect(sock, (const struct sockaddr *)a, sizeof *a) < 0) {
		if (errno != EAGAIN && errno != EINTR)
			return -errno;
		if (now_ns() >= until || atomic_load(&c->stop))
			return -ETIMEDOUT;
		wait_a_moment(c, -1, 0, CONNECT_LOOK_NS);
	}
	return 0;
}

static int connect_socket(ckpt *c, uint64_t until, struct ckpt_err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ucred who;
	socklen_t len = sizeof who;
	cleanup_close int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int rc =
		c->socket_default ? wire_socket_path(c->socket, c->flags & CKPT_AUTOSTART, err) : 0;

	if (rc < 0)
		return rc;
	if (sock < 0)
		return ckpt_error_errno(err, errno, "cannot make a socket");
	memcpy(a.sun_path, c->socket, sizeof a.sun_path);
	rc = connect_by(c, sock, &a, until);
	if (rc == -ENOENT || rc == -ECONNREFUSED || rc == -ENOTDIR)
		return ckpt_error(err, -ECONNREFUSED,
				  "no daemon listens on %s: start ckptd, or set CKPT_AUTOSTART",
				  c->socket);
	if (rc == -EACCES || rc == -EPERM)
		return ckpt_error(err, -EACCES,
				  "the socket %s belongs to another user: use a socket of your own",
				  c->socket);
	if (rc == -ETIMEDOUT)
		return ckpt_error(err, rc,
				  "the daemon on %s does not accept connections: is it stopped?",
				  c->socket);
	if (rc == -EPROTOTYPE)
		return ckpt_error(err, -EPROTO,
				  "%s is another program's socket, not a ckptd's: use another one",
				  c->socket);
	if (rc < 0)
		return ckpt_error_errno(err, -rc, "cannot connect to %s", c->socket);
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 ||
	    (who.uid != geteuid() && geteuid() != 0))
		return ckpt_error(
			err, -EACCES,
			"the daemon on %s belongs to user %u, not to you: use a socket of your own",
			c->socket, (unsigned)who.uid);
	c->sock = TAKE_FD(sock);
	c->peer = who.pid;
	if (TAKE(c->starts))
		c->own_daemon = who.pid;
	c->late = false;
	return 0;
}

/* The client's own descriptor, which a daemon gets with HELLO. Before a rank was ever attached it
 * is opened at each try, by name: where it could not be, or is mounted by now. */
static int store_open_dir(ckpt *c, struct ckpt_err *err)
{
	cleanup_close int fd = -1;

	if (c->store_fd >= 0 && atomic_load(&c->link))
		return 0;
	if (mkdir(c->store, 0700) < 0 && errno != EEXIST)
		return ckpt_error_errno(err, errno, "cannot make the store %s", c->store);
	fd = open(c->store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return ckpt_error_errno(err, errno, "cannot open the store %s", c->store);
	if (faccessat(fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		return ckpt_error_errno(err, errno, "cannot write into the store %s", c->store);
	if (c->store_fd >= 0)
		(void)close(c->store_fd);
	c->store_fd = TAKE_FD(fd);
	return 0;
}

/* Ranks with a common parent are one launch. The parent's start time distinguishes it from an older
 * process with its number. */
static uint64_t launch_token(void)
{
	char path[64], line[1024];
	uint64_t start = 0;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%d/stat", (int)getppid());
	f = fopen(path, "re");
	if (f && fgets(line, sizeof line, f)) {
		char *p = strrchr(line, ')');

		for (int field = 2; p && field < 22; field++)
			p = strchr(p + 1, ' ');
		start = p ? strtoull(p, NULL, 10) : 0;
	}
	if (f)
		fclose(f);
	return (uint64_t)getppid() << 40 ^ start ^ 1;
}

/* Of a launcher that gives its run, or its step, a name of its own on all hosts. */
static uint64_t token_of_env(void)
{
	static const char *const names[][3] = {
		{ "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT" },
		{ "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT" },
		{ "PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_RESTART_COUNT" },
	};

	for (size_t i = 0; i < ARRAY_LEN(names); i++) {
		const char *v[3];
		char all[512];

		for (size_t k = 0; k < 3; k++)
			v[k] = getenv(names[i][k]) ? getenv(names[i][k]) : "";
		/* torchrun without --rdzv-id; and a batch script is no step */
		if (!v[0][0] || strcmp(v[0], "none") == 0 ||
		    (i == 1 && (!v[1][0] || v[1][0] < '0' || v[1][0] > '9')))
			continue;
		snprintf(all, sizeof all, "%s\n%s\n%s\n%s", names[i][0], v[0], v[1], v[2]);
		return hash_word(hash128(all, strlen(all))) >> 1 | 1;
	}
	return 0;
}

/* Rank 0's random number reaches all by their minimum. */
static int token_of_agree(ckpt *c, struct ckpt_err *err)
{
	uint64_t mine = UINT64_MAX;

	if (c->rank == 0 && getrandom(&mine, sizeof mine, GRND_NONBLOCK) != sizeof mine)
		mine = now_ns() ^ (uint64_t)getpid() << 40;
	if (c->rank == 0)
		mine = mine >> 1 | 1;
	if (c->agree(c->agree_ctx, mine, &c->token) < 0 || c->token == UINT64_MAX)
		return ckpt_error(err, -ECONNRESET,
				  "job %s: the ranks cannot agree on a launch, because "
				  "ckpt_opts.agree has failed",
				  c->job);
	return 0;
}

int token_find(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err)
{
	c->token = o->token;
	if (!c->token && c->agree && c->world > 1 && !c->launch && !c->generation_given)
		return token_of_agree(c, err);
	if (!c->token && c->flags & CKPT_USE_ENV)
		c->token = token_of_env();
	return 0;
}

static bool pages_ours(const ckpt *c, const struct shared_rank *rank, const struct shared_job *job)
{
	return rank->magic == SHARED_MAGIC && rank->rank == c->rank && job->magic == SHARED_MAGIC &&
	       job->world == c->world && (!c->slots || job->nslot == c->slots);
}

static int map_link(ckpt *c, int *fd, struct ckpt_err *err)
{
	struct link *l = calloc(1, sizeof *l);
	void *rank = NULL, *job = NULL;
	int rc = l ? wire_bell_check(fd[2], err) : ckpt_error(err, -ENOMEM, "no memory to attach");

	if (rc == 0)
		rc = wire_map(fd[0], sizeof *l->rank, 0, &rank, err);
	if (rc == 0)
		rc = wire_map(fd[1], sizeof *l->job, 0, &job, err);
	if (rc == 0 && !pages_ours(c, rank, job))
		rc = ckpt_error(err, -EPROTO, "the daemon sent the pages of another rank");
	if (rc < 0) {
		if (rank)
			munmap(rank, sizeof *l->rank);
		if (job)
			munmap(job, sizeof *l->job);
		free(l);
		return rc;
	}
	l->rank = rank;
	l->job = job;
	l->bell = TAKE_FD(fd[2]);
	skips_carry(c, l);
	l->older = atomic_load(&c->link);
	atomic_store(&c->link, l);
	agreements_carry(c);
	return 0;
}

/* What the daemon before knew of the launch and the next one cannot know. */
static uint32_t start_known(const ckpt *c, bool again)
{
	struct link *l = atomic_load(&c->link);
	uint32_t start = l ? atomic_load(&l->job->start) : START_UNASKED, flags = 0;

	if (atomic_load(&c->fresh) || (again && start == START_FRESH))
		flags |= WIRE_AFRESH;
	if (again && (start == START_CLEAR || atomic_load(&c->snapped)))
		flags |= WIRE_ASKED;
	return flags;
}

static int hello_send(ckpt *c, bool again, uint64_t until, struct ckpt_err *err)
{
	struct wire_hello h = { .flags = (again ? WIRE_REATTACH : 0) | start_known(c, again) |
					 (c->flags & CKPT_TAKEOVER ? WIRE_TAKEOVER : 0) |
					 (c->flags & CKPT_FOREIGN_OWNER ? WIRE_FOREIGN_OWNER : 0),
				.rank = c->rank,
				.world = c->world,
				.nslot = c->slots,
				.generation = c->generation,
				.launch = c->launch ? c->launch : launch_token(),
				.token = c->token,
				.run = c->run,
				.restart = c->restart,
				.memory_max = c->memory_max,
				.base = c->base,
				.back = c->back,
				.dev = again ? c->dev : 0,
				.ino = again ? c->ino : 0 };
	struct wire_welcome w;
	uint64_t now = now_ns();
	int fd[WIRE_FDS_MAX], rc;

	snprintf(h.job, sizeof h.job, "%s", c->job);
	rc = rpc_call(c, &h, WIRE_HELLO, c->store_fd, &w, fd, until - MIN(until, now), err);
	if (rc < 0)
		return rc;
	rc = map_link(c, fd, err);
	if (rc < 0)
		(void)ckpt_error_prefix(err, rc, "the daemon on %s (process %d)", c->socket,
					(int)c->peer);
	wire_close_fds(fd, WIRE_FDS_MAX);
	if (rc == 0) {
		c->generation = w.generation;
		c->dev = w.dev;
		c->ino = w.ino;
	}
	return rc;
}

void drop_socket(ckpt *c)
{
	if (c->sock >= 0) {
		shutdown(c->sock, SHUT_RDWR); /* a child may hold it, too */
		(void)close(TAKE_FD(c->sock));
	}
	c->late = false;
	c->nseg_sent = 0;
	atomic_store(&c->declared, 0);
}

/* --- starting a daemon --- */
/* ckptd lies beside this library (as built, and in a Python wheel), or in the bin of the same tree
 * (as installed, in lib or lib/TRIPLET), or beside the running program, or in PATH. The library's
 * own tree comes first: a program like /usr/bin/python3 may lie beside a ckptd of another
 * version. */
static void daemon_path(char *path, size_t bytes)
{
	static const char *const via[] = { "", "/../bin", "/../../bin" };
	char exe[PATH_BYTES];
	Dl_info here = { 0 };
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

	exe[n > 0 ? n : 0] = 0;
	if (!dladdr(&wait_readable, &here))
		here.dli_fname = NULL;
	for (size_t i = 0; i < ARRAY_LEN(via) + 1; i++) {
		bool program = i == ARRAY_LEN(via);
		const char *beside = program ? exe : here.dli_fname;
		const char *end = beside ? strrchr(beside, '/') : NULL;

		if (end &&
		    snprintf(path, bytes, "%.*s%s/ckptd", (int)(end - beside), beside,
			     program ? "" : via[i]) < (int)bytes &&
		    access(path, X_OK) == 0)
			return;
	}
	snprintf(path, bytes, "ckptd");
}

/* Its end, or -ETIMEDOUT with its end forced. */
static int wait_spawned(ckpt *c, pid_t pid, uint64_t until, int *ret_status)
{
	for (;;) {
		pid_t ended = waitpid(pid, ret_status, WNOHANG);

		if (ended == pid || (ended < 0 && errno != EINTR))
			return 0;
		if (now_ns() >= until || atomic_load(&c->stop))
			break;
		wait_a_moment(c, -1, 0, CONNECT_LOOK_NS);
	}
	(void)kill(pid, SIGKILL);
	for (int i = 0; i < 100 && waitpid(pid, ret_status, WNOHANG) == 0; i++)
		usleep(CONNECT_LOOK_NS / 1000);
	return -ETIMEDOUT;
}

/* What ckptd has written to its standard error, in one line, without its name. */
static void said_read(int fd, char *ret, size_t bytes)
{
	ssize_t n = pread(fd, ret, bytes - 1, 0);
	size_t skip;

	ret[n > 0 ? n : 0] = 0;
	for (char *p = ret; *p; p++)
		if (*p == '\n')
			*p = p[1] ? ';' : 0;
	skip = strncmp(ret, "ckptd: ", 7) == 0 ? 7 : 0;
	memmove(ret, ret + skip, strlen(ret + skip) + 1);
}

/* Its standard error is a file of ours: the library prints nothing, and the reason of a failure
 * belongs into the sentence. */
static int spawn_daemon(ckpt *c, uint64_t until, struct ckpt_err *err)
{
	cleanup_close int said = memfd_create("ckptd-said", MFD_CLOEXEC);
	posix_spawn_file_actions_t files;
	char why[300] = "";
	char path[PATH_BYTES], background[] = "--background", idle[] = "--idle-exit",
			       seconds[] = AUTOSTART_IDLE_S, sock[] = "--socket";
	char *argv[] = { path, background, idle, seconds, sock, c->socket, NULL };
	posix_spawnattr_t attr;
	sigset_t none;
	pid_t pid;
	int rc, status = 0;

	daemon_path(path, sizeof path);
	sigemptyset(&none);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawn_file_actions_init(&files);
	if (said >= 0)
		posix_spawn_file_actions_adddup2(&files, said, STDERR_FILENO);
	rc = posix_spawnp(&pid, path, &files, &attr, argv, environ);
	posix_spawn_file_actions_destroy(&files);
	posix_spawnattr_destroy(&attr);
	if (rc)
		return ckpt_error(
			err, -ECONNREFUSED,
			"cannot start %s: %s; put ckptd into the directory of the program or of "
			"libckpt.so, or into PATH, or start it yourself",
			path, strerror(rc));
	if (wait_spawned(c, pid, until, &status) < 0)
		return ckpt_error(err, -ETIMEDOUT, "%s --socket %s did not begin to listen in time",
				  path, c->socket);
	c->starts = WIFEXITED(status) && WEXITSTATUS(status) == 0;
	/* 11: another rank was faster, whose daemon will listen in a moment. */
	if (said >= 0)
		said_read(said, why, sizeof why);
	if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 11)
		return ckpt_error(err, WEXITSTATUS(status) == 12 ? -EACCES : -ECONNREFUSED,
				  "%s --socket %s failed with exit code %d%s%s", path, c->socket,
				  WEXITSTATUS(status), why[0] ? ": " : "", why);
	return 0;
}

/* The job's policy, once. A daemon that cannot set it is no reason not to be attached to it. */
static int keep_send(ckpt *c, uint64_t until, struct ckpt_err *err)
{
	struct wire_keep m = { .rules = "" };
	struct ckpt_err why = { 0 };
	int rc;

	if (!c->keep[0])
		return 0;
	snprintf(m.rules, sizeof m.rules, "%s", c->keep);
	rc = rpc_call(c, &m, WIRE_KEEP, -1, NULL, NULL, until - MIN(until, now_ns()), &why);
	if (rc < 0 && !c->answered)
		return ckpt_error(err, rc, "%s", why.msg);
	c->keep[0] = 0;
	if (rc < 0)
		log_line(
			&c->log, LOG_WARNING,
			"client: job %s: the policy of ckpt_opts (keep_last, ...) could not be set, "
			"and the one before is in force: %s",
			c->job, why.msg);
	return 0;
}

/* One attempt: connected, welcomed; or nothing is left of it. */
static int connect_once(ckpt *c, bool again, uint64_t until, struct ckpt_err *err)
{
	int rc = connect_socket(c, until, err);

	if (rc == 0)
		rc = hello_send(c, again, until, err);
	if (rc == 0)
		rc = keep_send(c, until, err);
	if (rc < 0)
		drop_socket(c);
	return rc;
}

int connect_first(ckpt *c, struct ckpt_err *err)
{
	const uint64_t last = client_until(c->wait_ns);
	uint64_t until = MIN(last, client_until(ATTACH_BUSY_NS));
	bool spawned = false;
	int rc = store_open_dir(c, err);

	while (rc == 0) {
		rc = connect_once(c, false, last, err);
		if (rc == -ECONNRESET) {
			/* the daemon died meanwhile: the next one may be started */
			spawned = false;
			until = MIN(last, client_until(ATTACH_BUSY_NS));
		}
		if (rc == -ECONNREFUSED && c->flags & CKPT_AUTOSTART && !spawned) {
			spawned = true;
			rc = spawn_daemon(c, last, err);
			until = MIN(last, client_until(ATTACH_BUSY_NS));
			continue;
		}
		if (rc == 0) {
			atomic_store(&c->state, LINK_UP);
			return 0;
		}
		if ((rc != -EBUSY && rc != -ECONNRESET && !(rc == -ECONNREFUSED && spawned)) ||
		    client_until(2 * AGAIN_NS) >= until) /* the next one has time for an answer */
			return rc;
		usleep(AGAIN_NS / 1000);
		rc = 0;
	}
	return rc;
}

/* --- declarations and memory --- */
static int send_segments(ckpt *c, struct ckpt_err *err)
{
	for (;; c->nseg_sent++) {
		struct wire_segment m = { .id = c->nseg_sent };
		int fd = -1, rc;

		pthread_mutex_lock(&c->mem);
		if (c->nseg_sent < c->nseg) {
			m.bytes = c->seg[c->nseg_sent].bytes;
			fd = c->seg[c->nseg_sent].fd;
		}
		pthread_mutex_unlock(&c->mem);
		if (fd < 0)
			return 0;
		rc = rpc_call(c, &m, WIRE_SEGMENT, fd, NULL, NULL, RPC_NS, err);
		if (rc < 0)
			return rc;
	}
}

/* What SEALED has brought is what is copied from now on. (rpc), the helper or before there is
 * one. */
static int sealed_take(ckpt *c, const struct wire_sealed *m, const int *fd, struct sources *sources,
		       struct ckpt_err *err)
{
	cleanup_free uint64_t *bytes = NULL;
	struct sealed *s = NULL;
	struct ckpt_err why = { 0 };
	uint32_t nseg, which = 0;
	int rc = 0, unseen;

	pthread_mutex_lock(&c->mem);
	nseg = c->nseg;
	bytes = calloc((size_t)nseg + 1, sizeof *bytes);
	for (uint32_t i = 0; bytes && i < nseg; i++)
		bytes[i] = c->seg[i].bytes;
	pthread_mutex_unlock(&c->mem);
	rc = bytes ? sealed_make(m, fd, c->sealed, sources, bytes, nseg, &s, err)
		   : ckpt_error(err, -ENOMEM, "no memory for the slots");
	sealed_unref(c->sealed);
	c->sealed = s;
	/* In segments the daemon may compare what it does not copy. */
	atomic_store(&c->need, (!s || s->others || !s->own_bytes || nseg ? NEED_DAEMON : 0) |
				       (s && sealed_copies(s) ? NEED_CLIENT : 0));
	for (uint32_t i = 0; s && i < s->nqueue; i++)
		which |= 1u << s->queue[i].device;
	atomic_store(&c->which, which);
	pthread_mutex_lock(&c->mem);
	unseen = atomic_load(&c->epoch) == m->epoch && atomic_load(&c->rev) == m->rev
			 ? canary_sealed(c, s, &why)
			 : 0; /* it is declared anew meanwhile */
	pthread_mutex_unlock(&c->mem);
	if (rc < 0 ||
	    unseen < 0) /* the log is the trainer's code: no lock that it could want is held */
		log_line(&c->log, LOG_WARNING,
			 "client: rank %u of job %s: the library cannot check whether the state is "
			 "changed before ckpt_guard: %s",
			 c->rank, c->job, rc < 0 ? err->msg : why.msg);
	/* Without the slots the process's own memory cannot be copied. */
	return sources->nspan ? rc : 0;
}

static bool same_memory(int a, int b)
{
	struct stat x, y;

	return b >= 0 && fstat(a, &x) == 0 && fstat(b, &y) == 0 && x.st_ino == y.st_ino;
}

static int send_declaration(ckpt *c, struct ckpt_err *err)
{
	struct wire_declare m = { 0 };
	struct wire_sealed sealed;
	struct sources *sources;
	struct seeds *seeds;
	cleanup_close int fd = -1;
	int got[WIRE_FDS_MAX], rc;

	pthread_mutex_lock(&c->mem);
	if (c->nseg_sent < c->nseg) { /* sealed anew since: it may name memory that was not sent */
		pthread_mutex_unlock(&c->mem);
		return 0;
	}
	m.epoch = atomic_load(&c->epoch);
	m.rev = atomic_load(&c->rev);
	m.bytes = c->decl_bytes;
	sources = c->decl ? sources_ref(c->sources) : NULL;
	/* of an epoch that this daemon has taken it has them */
	seeds = c->decl && atomic_load(&c->declared) != m.epoch &&
				!(c->adopting && MUTANT(SEEDS_FORGOTTEN))
			? seeds_ref(c->seeds)
			: NULL;
	if (c->adopting && c->adopted_rev != c->slots_rev)
		rc = ckpt_error(err, -EAGAIN, "ckpt_seal came between: attaching begins anew");
	else
		rc = c->decl ? wire_memfd_of("ckpt-declaration", c->decl, c->decl_bytes, &fd, err)
			     : 0;
	pthread_mutex_unlock(&c->mem);
	if (rc == 0 && seeds)
		rc = seeds_send(c, seeds, err);
	if (rc == 0 && fd >= 0)
		rc = rpc_call(c, &m, WIRE_DECLARE, fd, &sealed, got, RPC_NS, err);
	if (rc < 0 && fd >= 0 && c->answered &&
	    (c->accepted != m.epoch || c->accepted_rev != m.rev)) {
		pthread_mutex_lock(&c->mem);
		c->refused_epoch = m.epoch;
		c->refused_rev = m.rev;
		c->refusal = *err;
		pthread_mutex_unlock(&c->mem);
	}
	if (rc == 0 && fd >= 0) {
		rc = sealed_take(c, &sealed, got, sources, err);
		store_relaxed(&c->nslot, MUTANT(SLOTS_AS_ASKED) ? 2 : sealed.nslot);
		if (sealed.nrow)
			(void)close(TAKE_FD(got[sealed.nslot]));
		for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
			if (c->slot[i].bytes && !same_memory(c->slot[i].fd, got[i]))
				atomic_store(&c->held[i].step, UINT64_MAX);
			if (c->slot[i].bytes)
				(void)close(c->slot[i].fd);
			c->slot[i] = (struct slot){ got[i], got[i] >= 0 ? sealed.slot_bytes : 0 };
		}
	}
	sources_unref(sources);
	seeds_unref(seeds);
	if (rc < 0)
		return rc;
	if (fd >= 0) { /* else it was refused, and the trainer has yet to correct it */
		c->accepted = m.epoch;
		c->accepted_rev = m.rev;
	}
	atomic_store(&c->declared_rev, m.rev);
	atomic_store(&c->declared, m.epoch);
	return 0;
}

bool declared_now(const ckpt *c)
{
	return atomic_load(&c->declared) == atomic_load(&c->epoch) &&
	       atomic_load(&c->declared_rev) == atomic_load(&c->rev);
}

static bool to_declare(ckpt *c)
{
	bool refused;

	if (declared_now(c))
		return false;
	pthread_mutex_lock(&c->mem);
	refused = c->refused_epoch && c->refused_epoch == atomic_load(&c->epoch) &&
		  c->refused_rev == atomic_load(&c->rev);
	pthread_mutex_unlock(&c->mem);
	return !refused;
}

/* Declared anew while that was under way: once more. */
static int declare_all(ckpt *c, struct ckpt_err *err)
{
	int rc = 0;

	while (rc == 0 && to_declare(c)) {
		rc = send_segments(c, err);
		if (rc == 0)
			rc = send_declaration(c, err);
	}
	return rc;
}

/* Which bytes of derived tensors are those of the step (turns.h). */
static void turn_remember(struct held *x, const struct shared_rank *page,
			  const struct shared_record *r)
{
	x->turn = r->turn;
	x->nwhole = MIN(r->nwhole, WIRE_WHOLE_MAX);
	for (uint32_t i = 0; i < x->nwhole; i++)
		x->whole[i] = load_relaxed(&page->whole[i]);
}

/* What the slots hold as far as this rank knows, from the pages of the connection that ended. */
static void remember_slots(ckpt *c, const struct link *l)
{
	pthread_mutex_lock(&c->mem);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		uint64_t newest = 0;

		for (uint32_t k = 0; k < SHARED_SNAPS; k++) {
			struct shared_record r;
			uint64_t mark;
			enum snap_state state;
			bool whole;

			if (shared_snap_read(&l->rank->snap[k], &mark, &state, &r) < 0 ||
			    r.slot != i || mark < newest)
				continue;
			newest = mark;
			whole = state == SNAP_COPIED && r.epoch == atomic_load(&c->epoch) &&
				(r.rev >= c->slots_rev || MUTANT(SLOTS_OF_OLD_REV)) &&
				shared_snap_closed(l->rank, mark, &r) &&
				(turn_compared(l->rank, mark, r.turn) ||
				 MUTANT(TURN_OFFERED_UNCOMPARED)) &&
				!link_left(l, mark, r.step);
			c->held[i].mark_ns = r.mark_ns;
			c->held[i].marked = r.marked;
			c->held[i].epoch = r.epoch;
			c->held[i].rev = r.rev;
			c->held[i].flags = r.flags;
			turn_remember(&c->held[i], l->rank, &r);
			atomic_store(&c->held[i].step, whole ? r.step : UINT64_MAX);
		}
	}
	pthread_mutex_unlock(&c->mem);
}

/* UINT64_MAX: nothing. A guard that found a change either is seen here, or sees the new page, which
 * it then says it to: it stores this word before it looks for the page, and the page is there
 * before this word is read. */
static uint64_t held_step(const ckpt *c, uint32_t slot)
{
	uint64_t step = atomic_load(&c->held[slot].step);

	return atomic_load(&c->canary.changed_step) == step + 1 ? UINT64_MAX : step;
}

static int adopt_slots(ckpt *c, struct ckpt_err *err)
{
	int rc = 0;

	pthread_mutex_lock(&c->mem);
	c->adopted_rev = c->slots_rev;
	pthread_mutex_unlock(&c->mem);
	c->adopting = true;
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX && rc == 0; i++) {
		struct wire_adopt m = { .slot = i,
					.epoch = c->held[i].epoch,
					.flags = c->held[i].flags,
					.rev = c->held[i].rev,
					.bytes = c->slot[i].bytes,
					.step = held_step(c, i),
					.mark_ns = c->held[i].mark_ns,
					.marked = c->held[i].marked,
					.turn = c->held[i].turn,
					.nwhole = c->held[i].nwhole };

		memcpy(m.whole, c->held[i].whole, sizeof m.whole);
		if (c->slot[i].bytes)
			rc = rpc_call(c, &m, WIRE_ADOPT, c->slot[i].fd, NULL, NULL, RPC_NS, err);
	}
	return rc;
}

/* --- the helper --- */
static void helper_takes_rpc(ckpt *c)
{
	(void)rpc_take(c, UINT64_MAX);
	c->on_helper = true;
}

static void link_lost(ckpt *c)
{
	struct link *l = atomic_load(&c->link);
	bool fenced = l && atomic_load(&l->job->fenced);

	helper_takes_rpc(c);
	c->lost_ns = c->peer == c->own_daemon || MUTANT(RESTART_NOT_AWAITED) ? 0 : now_ns();
	atomic_store(&c->state, fenced ? LINK_FENCED : LINK_DOWN);
	if (l) {
		shared_tear_lost(l->rank);
		remember_slots(c, l);
	}
	drop_socket(c);
	c->said = 0;
	rpc_give(c);
	client_changed(c);
	log_line(
		&c->log, LOG_WARNING,
		fenced ? "client: rank %u of job %s: a newer launch has taken over; snapshots stop%s"
		       : "client: rank %u of job %s: the daemon has exited; training continues, "
			 "and the library tries to attach again%s",
		c->rank, c->job,
		!fenced && c->lost_ns && c->flags & CKPT_AUTOSTART
			? "; it did not start that daemon, so it waits before it starts one"
			: "");
}

/* A person or a service started the lost daemon, with options of its own: it gets time to come back. */
static bool restart_awaited(const ckpt *c)
{
	return c->lost_ns && elapsed_ns(c->lost_ns, now_ns()) < c->restart_wait_ns;
}

static int attach_again(ckpt *c, struct ckpt_err *err)
{
	const uint64_t until = client_until(HELLO_NS);
	struct link *l = atomic_load(&c->link);
	int rc = store_open_dir(c, err);

	if (rc < 0)
		return rc;
	/* Another rank may have asked for the claim, which is this one's, too. */
	if (!c->generation && l && !MUTANT(CLAIM_OF_ANOTHER_RANK_UNSEEN))
		c->generation = atomic_load(&l->job->generation);
	rc = connect_once(c, c->generation != 0, until, err);
	if (rc == -ECONNREFUSED && c->flags & CKPT_AUTOSTART && !restart_awaited(c) &&
	    (rc = spawn_daemon(c, until, err)) == 0)
		rc = connect_once(c, c->generation != 0, until, err);
	if (rc == -ESTALE && !c->generation_given && !atomic_load(&c->snapped) &&
	    !atomic_load(&c->restored)) {
		/* The daemon died while the ranks were attaching, and one that had not yet begun
		 * anew with the next. This rank has done nothing that could be stale: it begins
		 * anew too. */
		c->generation = 0;
		rc = connect_once(c, false, until, err);
	}
	if (rc == 0)
		rc = send_segments(c, err);
	if (rc == 0 && atomic_load(&c->epoch))
		rc = adopt_slots(c, err);
	if (rc == 0)
		rc = declare_all(c, err);
	c->adopting = false;
	if (rc < 0) {
		drop_socket(c);
		return rc;
	}
	atomic_store(&c->state, LINK_UP);
	atomic_fetch_add(&c->reattached, 1);
	return 0;
}

static uint64_t backoff_after(int rc, uint64_t was_ns)
{
	return rc == -EPROTO ? REATTACH_OTHER_NS
	       : rc == 0     ? REATTACH_MIN_NS
			     : MIN(was_ns * 2, REATTACH_MAX_NS);
}

static void try_again(ckpt *c, uint64_t *backoff_ns)
{
	struct ckpt_err err = { 0 };
	bool news;
	int rc;

	helper_takes_rpc(c);
	rc = attach_again(c, &err);
	if (atomic_load(&c->stop)) {
		rpc_give(c);
		return;
	}
	news = rc != c->said;
	c->said = rc;
	rpc_give(c);
	*backoff_ns = backoff_after(rc, *backoff_ns);
	if (rc == -ESTALE)
		atomic_store(&c->state, LINK_FENCED);
	client_changed(c); /* also when it failed: a declaration may have been refused */
	if (rc == 0)
		log_line(&c->log, LOG_NOTICE, "client: rank %u of job %s attached again", c->rank,
			 c->job);
	else if (news)
		log_line(&c->log, LOG_WARNING, "client: rank %u of job %s: %s", c->rank, c->job,
			 err.msg);
}

/* What ckpt_seal has encoded. */
static void declare_again(ckpt *c)
{
	struct ckpt_err err = { 0 };
	bool news;
	int rc;

	helper_takes_rpc(c);
	rc = declare_all(c, &err);
	news = rc < 0 && rc != c->said;
	c->said = rc;
	rpc_give(c);
	client_changed(c);
	if (news)
		log_line(&c->log, LOG_WARNING, "client: rank %u of job %s: %s", c->rank, c->job,
			 err.msg);
}

/* Once, of one rank: the averages are the same on all. */
static void say_left_out(ckpt *c, struct link *l)
{
	uint64_t left = atomic_load(&l->job->average_left_out),
		 of = left + atomic_load(&l->job->average_taken);

	if (c->rank != 0 || c->left_out_said || (left <= of / 100 && !MUTANT(LEFT_OUT_CRIED)))
		return;
	c->left_out_said = true;
	log_line(&c->log, LOG_WARNING,
		 "client: job %s: averages of the weights have left out %" PRIu64 " of %" PRIu64
		 " steps (%.1f %%): snapshots were skipped or torn, or ckptd was late; with the "
		 "word `every` in the spec of an average ckpt_guard waits instead",
		 c->job, left, of, 100. * (double)left / (double)of);
}

/* A line for each tensor. The other ranks' logs have it as information. */
static void say_drift(ckpt *c, struct link *l)
{
	uint32_t n = load_acquire(&l->job->drifts);
	char text[SHARED_TEXT];

	if (n - l->drift_said > SHARED_DRIFTS)
		l->drift_said = n - SHARED_DRIFTS;
	for (uint32_t i = l->drift_said; i != n; i++)
		if (shared_text_get(&l->job->drift[i % SHARED_DRIFTS], text))
			log_line(&c->log, c->rank == 0 ? LOG_WARNING : LOG_INFO,
				 "client: job %s: replicas of a tensor have drifted apart: %s",
				 c->job, text);
	l->drift_said = n;
}

/* What is not the trainer's thread to say. */
static void say_what_is_new(ckpt *c)
{
	struct link *l = atomic_load(&c->link);
	char text[SHARED_TEXT];
	uint32_t n;

	if (atomic_exchange(&c->unclean_say, false)) {
		struct ckpt_err err = { 0 };

		if (ckpt_why(c, &err) < 0)
			log_line(&c->log, LOG_ERROR, "client: rank %u of job %s: %s", c->rank,
				 c->job, err.msg);
	}
	if (atomic_exchange(&c->blob_say, false)) {
		char why[SHARED_TEXT];

		pthread_mutex_lock(&c->why_lock);
		memcpy(why, c->refuse_why, sizeof why);
		pthread_mutex_unlock(&c->why_lock);
		log_line(&c->log, LOG_WARNING,
			 "client: rank %u of job %s: snapshots are skipped: %s", c->rank, c->job,
			 why);
	}
	if (!l)
		return;
	n = atomic_load(&l->job->waits.changes);
	if (n != l->waits_said && atomic_load(&c->waits)) {
		l->waits_said = n;
		if (shared_text_get(&l->job->waits, text))
			log_line(&c->log, LOG_WARNING, "client: job %s: %s", c->job, text);
	}
	say_drift(c, l);
	say_left_out(c, l);
	n = atomic_load(&l->job->failing.changes);
	if (n == l->failing_said)
		return;
	l->failing_said = n;
	if (shared_text_get(&l->job->failing, text))
		log_line(
			&c->log, c->rank == 0 ? LOG_ERROR : LOG_INFO,
			"client: job %s: the daemon cannot write checkpoints; training continues: %s",
			c->job, text);
	else
		log_line(&c->log, c->rank == 0 ? LOG_WARNING : LOG_INFO,
			 "client: job %s: the daemon writes checkpoints again", c->job);
}

static void *helper_run(void *arg)
{
	ckpt *c = arg;
	uint64_t backoff = backoff_after(c->said, REATTACH_MIN_NS / 2);

	while (!atomic_load(&c->stop)) {
		bool up = atomic_load(&c->state) == LINK_UP;
		struct pollfd p[2] = { { .fd = c->wake, .events = POLLIN },
				       { .fd = up ? c->sock : -1, .events = POLLRDHUP } };
		uint64_t n;
		bool lost;
		int rc = poll(p, 2,
			      copier_looks(c)			      ? 0
			      : up				      ? 1000
			      : atomic_load(&c->state) == LINK_FENCED ? 1000
								      : (int)(backoff / NS_PER_MS));

		if (rc < 0 && errno != EINTR)
			return NULL;
		if (p[0].revents & POLLIN && read(c->wake, &n, sizeof n) < 0 && errno != EAGAIN)
			return NULL;
		if (atomic_load(&c->stop))
			break;
		copier_help(c);
		copier_prepare(c);
		canary_help(c);
		skips_log(c);
		say_what_is_new(c);
		lost = up && p[1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL);
		/* What was copied by then is known, and no copy goes on. */
		if (lost || (up && to_declare(c)))
			copier_finish(c);
		if (lost)
			link_lost(c);
		else if (up && to_declare(c))
			declare_again(c);
		else if (!up && atomic_load(&c->state) == LINK_DOWN && rc == 0)
			try_again(c, &backoff);
	}
	copier_finish(c);
	return NULL;
}

void helper_wake(ckpt *c)
{
	const uint64_t one = 1;

	if (write(c->wake, &one, sizeof one) < 0)
		return; /* full: it is awake */
}

int helper_start(ckpt *c, struct ckpt_err *err)
{
	int rc = thread_start(&c->helper, "ckpt-helper", true, helper_run, c);

	c->helper_runs = rc == 0;
	return rc < 0 ? ckpt_error_errno(err, -rc, "cannot start the helper thread") : 0;
}

bool helper_stop(ckpt *c)
{
	struct timespec until;

	if (!c->helper_runs || atomic_load(&c->copier.queued.stuck))
		return !atomic_load(&c->copier.queued.stuck);
	atomic_store(&c->stop, 1);
	queued_stir(&c->copier.queued);
	helper_wake(c);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += STOP_S;
	if (!load_relaxed(&c->devices.open)) {
		pthread_join(c->helper, NULL);
	} else if (pthread_timedjoin_np(c->helper, NULL, &until) != 0) {
		pthread_detach(c->helper);
		atomic_store(&c->copier.queued.stuck, true);
	}
	c->helper_runs = false;
	return !atomic_load(&c->copier.queued.stuck);
}
