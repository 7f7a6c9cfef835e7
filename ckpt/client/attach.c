// SPDX-License-Identifier: Apache-2.0
// attach.c - the connection to the daemon: first attach, requests, and the helper thread that
// attaches again. Called by client.c and itself.
// Invariant: losing the daemon changes link and state and tears what is being copied; it never
// touches the trainer's memory or makes it wait.
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <spawn.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "ckpt/base/thread.h"

#define PATH_BYTES 4096

extern char **environ;

void client_changed(ckpt *c)
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
	uint64_t beat = atomic_load_explicit(&l->job->beat_ns, memory_order_relaxed);

	return now > beat && now - beat > SHARED_BEAT_DEAD_NS;
}

/* --- requests --- */
/* watch: the pages of the daemon that is to answer; NULL before they came. */
static int wait_readable(ckpt *c, uint64_t until, const struct link *watch)
{
	struct pollfd p = { .fd = c->sock, .events = POLLIN };
	uint64_t now;

	while ((now = now_ns()) < until && !atomic_load(&c->stop) &&
	       !(watch && beat_lost(watch, now))) {
		int n = poll(&p, 1, (int)MIN((until - now) / NS_PER_MS + 1, UINT64_C(1000)));

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
	}
	return -ETIMEDOUT;
}

int rpc_call(ckpt *c, void *msg, uint32_t type, uint32_t bytes, const int *fd, int nfd,
	     uint32_t want, void *buf, uint32_t buf_bytes, int *ret_fd, uint64_t wait_ns,
	     struct ckpt_err *err)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	int got[WIRE_FDS_MAX], ngot, rc;

	if (c->sock < 0)
		return ckpt_error(err, -ECONNRESET, "not attached to a daemon (%s)", c->socket);
	rc = wire_send(c->sock, msg, type, bytes, ++c->seq, fd, nfd);
	if (rc == 0)
		rc = wait_readable(c, now_ns() + wait_ns,
				   type == WIRE_HELLO ? NULL : atomic_load(&c->link));
	if (rc == 0)
		rc = wire_recv(c->sock, in, sizeof in, got, &ngot);
	if (rc <= 0) {
		shutdown(c->sock, SHUT_RDWR); /* the helper takes it from here */
		if (rc == -ETIMEDOUT)
			return ckpt_error(err, -ETIMEDOUT,
					  "the daemon on %s does not answer: is it stopped?",
					  c->socket);
		return ckpt_error(err, -ECONNRESET, "the daemon on %s went away", c->socket);
	}
	if (head->type == WIRE_REFUSE && head->bytes == sizeof(struct wire_refuse) &&
	    head->seq == c->seq) {
		const struct wire_refuse *r = (const struct wire_refuse *)in;

		wire_close_fds(got, ngot);
		return ckpt_error(err, r->code < 0 ? r->code : -EPROTO, "%.*s", WIRE_TEXT_MAX - 1,
				  r->text);
	}
	if (head->type != want || head->bytes != buf_bytes || head->seq != c->seq) {
		wire_close_fds(got, ngot);
		shutdown(c->sock, SHUT_RDWR);
		return ckpt_error(err, -EPROTO,
				  "the daemon on %s answers out of turn: another version?",
				  c->socket);
	}
	memcpy(buf, in, buf_bytes);
	if (ret_fd)
		memcpy(ret_fd, got, sizeof got);
	else
		wire_close_fds(got, ngot);
	return 0;
}

/* --- connecting --- */
static int connect_socket(ckpt *c, struct ckpt_err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	struct ucred who;
	socklen_t len = sizeof who;
	/* a stopped daemon's backlog fills */
	const struct timeval slow = { .tv_sec = (time_t)(HELLO_NS / NS_PER_S) };
	cleanup_close int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (sock < 0)
		return ckpt_error_errno(err, errno, "cannot make a socket");
	if (strlen(c->socket) >= sizeof a.sun_path)
		return ckpt_error(err, -EINVAL, "the socket path %s is longer than %zu bytes",
				  c->socket, sizeof a.sun_path - 1);
	strcpy(a.sun_path, c->socket);
	setsockopt(sock, SOL_SOCKET, SO_SNDTIMEO, &slow, sizeof slow);
	if (connect(sock, (struct sockaddr *)&a, sizeof a) < 0) {
		if (errno == ENOENT || errno == ECONNREFUSED || errno == ENOTDIR)
			return ckpt_error(
				err, -ECONNREFUSED,
				"no daemon listens on %s: start ckptd, or set CKPT_AUTOSTART",
				c->socket);
		if (errno == EACCES || errno == EPERM)
			return ckpt_error(
				err, -EACCES,
				"the socket %s belongs to another user: give a socket of your own",
				c->socket);
		return ckpt_error_errno(err, errno, "cannot connect to %s", c->socket);
	}
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 ||
	    (who.uid != geteuid() && geteuid() != 0))
		return ckpt_error(
			err, -EACCES,
			"the daemon on %s belongs to user %u, not to you: give a socket of your own",
			c->socket, (unsigned)who.uid);
	c->sock = TAKE_FD(sock);
	return 0;
}

/* Ranks with a common parent are one launch. The parent's start time tells it from an older process
 * with its number. */
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

static int map_link(ckpt *c, int *fd, struct ckpt_err *err)
{
	struct link *l = calloc(1, sizeof *l);
	void *rank, *job;
	int rc = l ? wire_map(fd[0], sizeof *l->rank, 0, &rank, err)
		   : ckpt_error(err, -ENOMEM, "no memory to attach");

	if (rc == 0 && (rc = wire_map(fd[1], sizeof *l->job, 0, &job, err)) < 0)
		munmap(rank, sizeof *l->rank);
	if (rc < 0) {
		free(l);
		return rc;
	}
	l->rank = rank;
	l->job = job;
	l->bell = TAKE_FD(fd[2]);
	l->older = atomic_load(&c->link);
	atomic_store(&c->link, l);
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

static int hello(ckpt *c, bool again, struct ckpt_err *err)
{
	struct wire_hello h = { .flags = (again ? WIRE_REATTACH : 0) | start_known(c, again),
				.rank = c->rank,
				.world = c->world,
				.nslot = c->nslot,
				.generation = c->generation,
				.launch = launch_token(),
				.memory_max = c->memory_max,
				.base = c->base };
	struct wire_welcome w;
	int fd[WIRE_FDS_MAX], rc;

	snprintf(h.job, sizeof h.job, "%s", c->job);
	rc = rpc_call(c, &h, WIRE_HELLO, sizeof h, &c->store_fd, 1, WIRE_WELCOME, &w, sizeof w, fd,
		      HELLO_NS, err);
	if (rc < 0)
		return rc;
	rc = fd[2] >= 0 ? map_link(c, fd, err)
			: ckpt_error(err, -EPROTO, "the daemon's welcome is incomplete");
	wire_close_fds(fd, WIRE_FDS_MAX);
	if (rc == 0)
		c->generation = w.generation;
	return rc;
}

static void drop_socket(ckpt *c)
{
	if (c->sock >= 0)
		(void)close(TAKE_FD(c->sock));
	c->nseg_sent = 0;
}

/* --- starting a daemon --- */
/* ckptd lies beside the running program, or beside this library (as built), or in the bin of the same
 * tree (as installed, in lib or lib/TRIPLET), or in PATH. */
static void daemon_path(char *path, size_t bytes)
{
	static const char *const via[] = { "", "/../bin", "/../../bin" };
	char exe[PATH_BYTES];
	Dl_info here = { 0 };
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

	exe[n > 0 ? n : 0] = 0;
	if (!dladdr(&wait_readable, &here))
		here.dli_fname = NULL;
	for (size_t i = 0; i < 1 + ARRAY_LEN(via); i++) {
		const char *beside = i ? here.dli_fname : exe;
		const char *end = beside ? strrchr(beside, '/') : NULL;

		if (end &&
		    snprintf(path, bytes, "%.*s%s/ckptd", (int)(end - beside), beside,
			     i ? via[i - 1] : "") < (int)bytes &&
		    access(path, X_OK) == 0)
			return;
	}
	snprintf(path, bytes, "ckptd");
}

static int spawn_daemon(ckpt *c, struct ckpt_err *err)
{
	char path[PATH_BYTES], background[] = "--background", idle[] = "--idle-exit",
			       sixty[] = "60", sock[] = "--socket", *socket = strdup(c->socket);
	char *argv[] = { path, background, idle, sixty, sock, socket, NULL };
	posix_spawnattr_t attr;
	sigset_t none;
	pid_t pid;
	int rc, status = 0;

	daemon_path(path, sizeof path);
	sigemptyset(&none);
	posix_spawnattr_init(&attr);
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
	posix_spawnattr_setsigmask(&attr, &none);
	rc = socket ? posix_spawnp(&pid, path, NULL, &attr, argv, environ) : ENOMEM;
	posix_spawnattr_destroy(&attr);
	free(socket);
	if (rc)
		return ckpt_error(
			err, -ECONNREFUSED,
			"cannot start %s: %s; put ckptd beside the program, beside libckpt.so or into PATH, or start it by hand",
			path, strerror(rc));
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		;
	/* 11: another rank was faster, whose daemon will listen in a moment. */
	if (WIFEXITED(status) && WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 11)
		return ckpt_error(err, WEXITSTATUS(status) == 12 ? -EACCES : -ECONNREFUSED,
				  "%s --socket %s failed with exit code %d", path, c->socket,
				  WEXITSTATUS(status));
	return 0;
}

int connect_first(ckpt *c, struct ckpt_err *err)
{
	uint64_t start = now_ns(), until = start + ATTACH_BUSY_NS;
	bool spawned = false;
	int rc;

	for (;;) {
		rc = connect_socket(c, err);
		if (rc == 0) {
			rc = hello(c, false, err);
			if (rc < 0)
				drop_socket(c);
			if (rc == -ECONNRESET && now_ns() - start < ATTACH_MAX_NS) {
				/* the daemon died meanwhile: the next one may be started */
				spawned = false;
				until = now_ns() + ATTACH_BUSY_NS;
			}
		}
		if (rc == -ECONNREFUSED && c->flags & CKPT_AUTOSTART && !spawned) {
			spawned = true;
			rc = spawn_daemon(c, err);
			if (rc < 0)
				return rc;
			until = now_ns() + ATTACH_BUSY_NS;
			continue;
		}
		if (rc == 0) {
			atomic_store(&c->state, LINK_UP);
			return 0;
		}
		if ((rc != -EBUSY && rc != -ECONNRESET && !(rc == -ECONNREFUSED && spawned)) ||
		    now_ns() > until)
			return rc;
		usleep(50000);
	}
}

/* --- declarations and memory --- */
int send_segments(ckpt *c, struct ckpt_err *err)
{
	int rc = 0;

	for (; c->nseg_sent < c->nseg && rc == 0; c->nseg_sent++) {
		struct wire_segment m = { .id = c->nseg_sent, .bytes = c->seg[c->nseg_sent].bytes };
		struct wire_ok ok;

		rc = rpc_call(c, &m, WIRE_SEGMENT, sizeof m, &c->seg[c->nseg_sent].fd, 1, WIRE_OK,
			      &ok, sizeof ok, NULL, RPC_NS, err);
		if (rc < 0)
			break;
	}
	return rc;
}

int send_declaration(ckpt *c, struct ckpt_err *err)
{
	struct wire_declare m = { .epoch = atomic_load(&c->epoch), .bytes = c->decl_bytes };
	struct wire_sealed sealed;
	cleanup_close int fd = -1;
	int got[WIRE_FDS_MAX],
		rc = wire_memfd_of("ckpt-declaration", c->decl, c->decl_bytes, &fd, err);

	if (rc < 0)
		return rc;
	rc = rpc_call(c, &m, WIRE_DECLARE, sizeof m, &fd, 1, WIRE_SEALED, &sealed, sizeof sealed,
		      got, RPC_NS, err);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		if (c->slot[i].bytes)
			(void)close(c->slot[i].fd);
		c->slot[i] = (struct slot){ got[i], got[i] >= 0 ? sealed.slot_bytes : 0 };
	}
	return 0;
}

/* What the slots hold as far as this rank knows, from the pages of the connection that ended. */
static void remember_slots(ckpt *c, const struct link *l)
{
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
				shared_snap_closed(l->rank, mark, &r);
			c->held[i].mark_ns = r.mark_ns;
			c->held[i].epoch = r.epoch;
			c->held[i].flags = r.flags;
			atomic_store(&c->held[i].step, whole ? r.step : UINT64_MAX);
		}
	}
}

static int adopt_slots(ckpt *c, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->nslot && rc == 0; i++) {
		struct wire_adopt m = { .slot = i,
					.epoch = c->held[i].epoch,
					.flags = c->held[i].flags,
					.bytes = c->slot[i].bytes,
					.step = atomic_load(&c->held[i].step),
					.mark_ns = c->held[i].mark_ns };
		struct wire_ok ok;

		if (c->slot[i].bytes)
			rc = rpc_call(c, &m, WIRE_ADOPT, sizeof m, &c->slot[i].fd, 1, WIRE_OK, &ok,
				      sizeof ok, NULL, RPC_NS, err);
	}
	return rc;
}

/* --- the helper --- */
static void link_lost(ckpt *c)
{
	struct link *l = atomic_load(&c->link);
	bool fenced = l && atomic_load(&l->job->fenced);

	pthread_mutex_lock(&c->rpc);
	atomic_store(&c->state, fenced ? LINK_FENCED : LINK_DOWN);
	if (l) {
		shared_tear(l->rank);
		remember_slots(c, l);
	}
	drop_socket(c);
	pthread_mutex_unlock(&c->rpc);
	client_changed(c);
	log_line(
		&c->log, LOG_WARNING,
		fenced ? "client: rank %u of job %s: a newer launch took over; snapshots stop"
		       : "client: rank %u of job %s: the daemon is gone; training goes on, attaching again",
		c->rank, c->job);
}

static int attach_again(ckpt *c, struct ckpt_err *err)
{
	int rc = connect_socket(c, err);

	if (rc == -ECONNREFUSED && c->flags & CKPT_AUTOSTART && (rc = spawn_daemon(c, err)) == 0)
		rc = connect_socket(c, err);
	if (rc == 0)
		rc = hello(c, c->generation != 0, err);
	if (rc == -ESTALE && !c->generation_given && !atomic_load(&c->snapped) &&
	    !atomic_load(&c->restored)) {
		/* The daemon died while the ranks were attaching, and one that had not yet begun
		 * anew with the next. This rank has done nothing that could be stale: it begins
		 * anew too. */
		drop_socket(c);
		c->generation = 0;
		rc = connect_socket(c, err);
		if (rc == 0)
			rc = hello(c, false, err);
	}
	if (rc == 0)
		rc = send_segments(c, err);
	if (rc == 0 && c->decl) {
		rc = adopt_slots(c, err);
		if (rc == 0)
			rc = send_declaration(c, err);
	}
	if (rc < 0) {
		drop_socket(c);
		return rc;
	}
	atomic_store(&c->state, LINK_UP);
	atomic_fetch_add(&c->reattached, 1);
	return 0;
}

static void try_again(ckpt *c, uint64_t *backoff_ns)
{
	struct ckpt_err err = { 0 };
	int rc;

	pthread_mutex_lock(&c->rpc);
	rc = attach_again(c, &err);
	pthread_mutex_unlock(&c->rpc);
	if (rc == 0) {
		*backoff_ns = REATTACH_MIN_NS;
		client_changed(c);
		log_line(&c->log, LOG_NOTICE, "client: rank %u of job %s attached again", c->rank,
			 c->job);
		return;
	}
	if (rc == -ESTALE) {
		atomic_store(&c->state, LINK_FENCED);
		client_changed(c);
	}
	if (*backoff_ns == REATTACH_MIN_NS || rc == -ESTALE)
		log_line(&c->log, LOG_WARNING, "client: rank %u of job %s: %s", c->rank, c->job,
			 err.msg);
	*backoff_ns = MIN(*backoff_ns * 2, REATTACH_MAX_NS);
}

/* What is not the trainer's thread to say. */
static void say_what_is_new(ckpt *c)
{
	struct link *l = atomic_load(&c->link);
	char text[SHARED_TEXT];
	uint32_t n;

	if (atomic_exchange(&c->unclean_say, false)) {
		struct ckpt_err err = { 0 };

		(void)ckpt_why(c, &err);
		log_line(&c->log, LOG_ERROR, "client: rank %u of job %s: %s", c->rank, c->job,
			 err.msg);
	}
	if (!l)
		return;
	n = atomic_load(&l->job->waits.changes);
	if (n != l->waits_said && atomic_load(&c->waits)) {
		l->waits_said = n;
		if (shared_text_get(&l->job->waits, text))
			log_line(&c->log, LOG_WARNING, "client: job %s: %s", c->job, text);
	}
	n = atomic_load(&l->job->failing.changes);
	if (n == l->failing_said)
		return;
	l->failing_said = n;
	if (shared_text_get(&l->job->failing, text))
		log_line(&c->log, c->rank == 0 ? LOG_ERROR : LOG_INFO,
			 "client: job %s: checkpoints cannot be written, training goes on: %s",
			 c->job, text);
	else
		log_line(&c->log, c->rank == 0 ? LOG_WARNING : LOG_INFO,
			 "client: job %s: checkpoints are written again", c->job);
}

static void fill_private(ckpt *c)
{
	struct shared_snap *s = atomic_exchange(&c->fill, NULL);
	const uint64_t one = 1;
	const struct link *l;
	uint64_t mark;

	if (!s)
		return;
	l = c->fill_link;
	mark = c->fill_mark;
	shadow_fill(c, false);
	/* Before the daemon may copy: the step can be staged, and the next one marked, before we
	 * run again. */
	atomic_store(&c->filling, 0);
	shared_futex_wake(&c->filling);
	if (shared_snap_move(s, mark, SNAP_FILLING, SNAP_COPYING) &&
	    write(l->bell, &one, sizeof one) < 0)
		log_line(&c->log, LOG_DEBUG, "client: the doorbell is full");
}

void fill_quiesce(ckpt *c)
{
	struct link *l = atomic_load(&c->link);

	if (!atomic_load(&c->filling))
		return;
	if (l)
		shared_tear(l->rank);
	atomic_store(&c->fill_stop, 1);
	while (atomic_load(&c->filling))
		shared_futex_wait(&c->filling, 1, 100 * NS_PER_MS);
}

static void *helper_run(void *arg)
{
	ckpt *c = arg;
	uint64_t backoff = REATTACH_MIN_NS;

	while (!atomic_load(&c->stop)) {
		bool up = atomic_load(&c->state) == LINK_UP;
		struct pollfd p[2] = { { .fd = c->wake, .events = POLLIN },
				       { .fd = up ? c->sock : -1, .events = POLLRDHUP } };
		uint64_t n;
		int rc = poll(p, 2,
			      up				      ? 1000
			      : atomic_load(&c->state) == LINK_FENCED ? 1000
								      : (int)(backoff / NS_PER_MS));

		if (rc < 0 && errno != EINTR)
			return NULL;
		if (p[0].revents & POLLIN && read(c->wake, &n, sizeof n) < 0 && errno != EAGAIN)
			return NULL;
		if (atomic_load(&c->stop))
			break;
		fill_private(c);
		say_what_is_new(c);
		if (up && p[1].revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL))
			link_lost(c);
		else if (!up && atomic_load(&c->state) == LINK_DOWN && rc == 0)
			try_again(c, &backoff);
	}
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

void helper_stop(ckpt *c)
{
	if (!c->helper_runs)
		return;
	atomic_store(&c->stop, 1);
	helper_wake(c);
	pthread_join(c->helper, NULL);
	c->helper_runs = false;
}
