// SPDX-License-Identifier: Apache-2.0
// session.c - one connected rank: its requests, its end. Called by the loop.
// Invariant: a session gets its answers in order, one for each request; while a task works for it,
// its socket is not read and it is not freed.
#include "daemon/holder.h"
#include "ckpt/base/mutant.h"
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#define SESSIONS_MAX 8192u
#define HELLO_NS (5 * NS_PER_S) /* from connecting to HELLO */
#define GARBAGE_NS (NS_PER_S)	/* from a line about garbage to the next */

/* Connections without a message take descriptors from ranks: beyond new_max the oldest of them is
 * closed. A rank that was only slow connects again. */
static uint32_t sessions_count(struct daemon *d)
{
	struct session *silent = NULL;
	uint32_t n = 0, fresh = 0;

	for (struct session *s = d->sessions; s; s = s->next) {
		n++;
		if (s->state == SESSION_NEW && !s->closed) {
			fresh++;
			silent = s; /* newest first */
		}
	}
	if (fresh >= d->new_max) {
		struct pollfd said = { .fd = silent->sock, .events = POLLIN };

		if (!silent->busy && poll(&said, 1, 0) > 0 && said.revents & POLLIN)
			session_readable(silent); /* its message has come, and was not read yet */
		else
			session_end(silent);
	}
	return n;
}

void session_accept(struct daemon *d)
{
	struct ucred who;
	socklen_t len = sizeof who;
	int sock = accept4(d->listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
	struct session *s;

	if (sock < 0) {
		if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
			d->deaf = true;
			daemon_unwatch(d, d->listen_fd);
		}
		return;
	}
	/* The kernel says whose process it is. Besides this user only root may connect. */
	if (getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) < 0 ||
	    (who.uid != geteuid() && who.uid != 0 && !MUTANT(FOREIGN_UID_TRUSTED)) ||
	    sessions_count(d) >= SESSIONS_MAX || !(s = calloc(1, sizeof *s))) {
		(void)close(sock);
		return;
	}
	s->d = d;
	s->sock = sock;
	s->pid = who.pid;
	s->uid = who.uid;
	s->root_fd = -1;
	s->closed_ns = 0;
	s->hello.head.seq = 0;
	s->pidfd = (int)syscall(SYS_pidfd_open, who.pid, 0);
	s->next = d->sessions;
	d->sessions = s;
	if (daemon_watch(d, sock, s, EPOLLIN) < 0 ||
	    (s->pidfd >= 0 && who.pid != getpid() &&
	     daemon_watch(d, s->pidfd, (void *)((uintptr_t)s | WATCH_PIDFD), EPOLLIN) < 0))
		session_end(s);
}

/* Not the same as the end of its socket: the kernel closes that before the process's last thread,
 * or a device that works for it, has stopped. */
static bool pidfd_dead(int pidfd)
{
	struct pollfd p = { .fd = pidfd, .events = POLLIN };

	return pidfd >= 0 && poll(&p, 1, 0) > 0 && (p.revents & POLLIN);
}

static bool process_dead(const struct session *s)
{
	return pidfd_dead(s->pidfd);
}

bool member_dead(const struct member *m)
{
	if (m->session)
		return MUTANT(DEAD_BY_SOCKET) ? m->session->closed : process_dead(m->session);
	return m->over || !m->attached || pidfd_dead(m->pidfd);
}

static void seeds_free(struct session *s)
{
	for (struct seed *x = TAKE(s->seeds), *next; x; x = next) {
		next = x->next;
		if (x->fd >= 0)
			(void)close(x->fd);
		free(x);
	}
}

static void session_free(struct session *s)
{
	struct session **at = &s->d->sessions;

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	control_gone(s);
	daemon_unwatch(s->d, s->sock);
	(void)close(s->sock);
	if (s->pidfd >= 0) {
		daemon_unwatch(s->d, s->pidfd);
		(void)close(s->pidfd);
	}
	if (s->root_fd >= 0)
		(void)close(s->root_fd);
	seeds_free(s);
	free(s);
}

/* The verdict: dead (its memory cannot change any more) or detached (it may). */
static void session_verdict(struct session *s, bool dead)
{
	struct launch *l = s->launch;
	struct member *m = s->member;

	s->state = SESSION_GONE;
	if (m && m->session == s) {
		m->session = NULL;
		m->over = dead;
		if (!dead) { /* its end is seen later, or never */
			daemon_unwatch(s->d, s->pidfd);
			m->pidfd = TAKE_FD(s->pidfd);
		}
		launch_member_gone(l, m, dead && !s->said_bye);
	}
	session_free(s);
	if (l)
		launch_unref(l);
}

void session_end(struct session *s)
{
	bool first = !s->closed;

	s->closed = true;
	if (first) {
		daemon_unwatch(s->d, s->sock);
		shutdown(s->sock, SHUT_RDWR);
	}
	if (s->busy)
		return;
	if (s->said_bye || !s->member || process_dead(s)) {
		session_verdict(s, true);
	} else if (s->closed_ns == 0) {
		/* session_tick decides when the process proves dead, or alive for DEATH_NS */
		s->closed_ns = now_ns();
	} else if (s->closed_ns == 1) {
		session_verdict(s, false);
	}
}

void session_tick(struct session *s, uint64_t now)
{
	if (s->busy)
		return;
	if (s->closed && process_dead(s))
		session_verdict(s, true);
	else if (s->closed && elapsed_ns(s->closed_ns, now) > DEATH_NS)
		session_verdict(s, false);
	else if (!s->closed && s->state == SESSION_NEW) {
		if (!s->closed_ns)
			s->closed_ns = now;
		else if (elapsed_ns(s->closed_ns, now) > HELLO_NS)
			session_end(s);
	} else if (!s->closed && s->state == SESSION_WAITING) {
		hello_try(s);
	} else if (!s->closed && s->state == SESSION_CONTROL) {
		control_tick(s, now);
	}
}

void session_busy(struct session *s)
{
	s->busy = true;
	daemon_unwatch(s->d, s->sock);
}

void session_unbusy(struct session *s)
{
	s->busy = false;
	if (s->closed)
		session_end(s);
	else
		daemon_watch(s->d, s->sock, s, EPOLLIN);
}

void session_reply(struct session *s, void *msg, enum wire_type type, const int *fd, int nfd)
{
	uint32_t bytes = type == WIRE_REFUSE ? sizeof(struct wire_refuse) : wire_kind(type)->bytes;
	int rc = s->closed ? 0 : wire_send(s->sock, msg, type, bytes, s->seq, fd, nfd);

	if (rc < 0) {
		log_line(&s->d->opts.log, LOG_WARNING, "session: cannot answer process %d: %s",
			 (int)s->pid, strerror(-rc));
		shutdown(s->sock, SHUT_RDWR); /* its end comes through the loop */
	}
}

void session_ok(struct session *s)
{
	struct wire_ok ok = { 0 };

	session_reply(s, &ok, WIRE_OK, NULL, 0);
}

void session_refuse(struct session *s, int code, const char *text)
{
	struct wire_refuse r = { .code = code };

	snprintf(r.text, sizeof r.text, "%s", text);
	session_reply(s, &r, WIRE_REFUSE, NULL, 0);
}

/* Is there space for one more job, or one more launch of a known one? The limit is what a report
 * can hold: each job and each rank costs memory before anything is checked that costs its sender.
 * */
static bool hello_fits(const struct daemon *d, const struct wire_hello *m, uint64_t dev,
		       uint64_t ino)
{
	uint64_t njob = 0, nrank = 0;

	for (const struct job *j = d->jobs; j; j = j->next) {
		bool mine = j->dev == dev && j->ino == ino && !strcmp(j->name, m->job);

		if (mine && j->launch)
			return true;
		njob += !mine;
		nrank += j->launch && !mine ? j->launch->world : 0;
	}
	return njob < WIRE_REPORT_JOBS_MAX && nrank + m->world <= WIRE_REPORT_RANKS_MAX;
}

static void on_hello(struct session *s, const struct wire_hello *m, int *fd)
{
	uint64_t dev, ino;
	struct ckpt_err err;

	if (s->state != SESSION_NEW) {
		session_refuse(s, -EPROTO, "attached already");
	} else if (dir_look(fd[0], &dev, &ino) < 0) {
		session_refuse(s, -ENOTDIR, "the store of the request is not a directory");
	} else if (m->world == 0 || m->world > WIRE_WORLD_MAX || m->rank >= m->world) {
		session_refuse(s, -EINVAL, "rank must be below world, and world at most 4096");
	} else if (m->nslot == 1 || m->nslot > WIRE_SLOTS_MAX) {
		session_refuse(s, -EINVAL, "slots must be 2, 3 or 4, or 0 for the default");
	} else if (store_job_check(m->job, &err) < 0) {
		session_refuse(s, err.code, err.msg);
	} else if (s->d->drain_until) {
		session_refuse(s, -ECONNREFUSED, "ckptd is stopping");
	} else if (!hello_fits(s->d, m, dev, ino)) {
		session_refuse(
			s, -EAGAIN,
			"ckptd has 1024 jobs or 32768 ranks, which is its maximum: end some, or start another ckptd for this store");
	} else {
		s->hello = *m;
		s->root_fd = TAKE_FD(fd[0]);
		s->state = SESSION_WAITING;
		s->closed_ns = 0;
		hello_try(s);
	}
}

/* Each segment is a mapping of this process, which may have 65530 as Linux comes: without one left
 * nothing more can be allocated. They are counted at every so-manieth of a rank. */
#define SEGMENTS_ALL_MAX 49152u
#define SEGMENTS_STRIDE 64u

static bool segments_fit(const struct daemon *d, const struct member *r, uint32_t id)
{
	uint64_t n = id + 1 - MIN(id + 1, r->nseg);

	if (r->nseg && id / SEGMENTS_STRIDE == (r->nseg - 1) / SEGMENTS_STRIDE)
		return true;
	for (const struct job *j = d->jobs; j; j = j->next)
		for (uint32_t i = 0; j->launch && i < j->launch->world; i++)
			n += j->launch->member[i].nseg;
	return n <= SEGMENTS_ALL_MAX;
}

static void on_segment(struct session *s, const struct wire_segment *m, int fd)
{
	struct member *r = s->member;
	struct ckpt_err err = { 0 };
	void *base;

	if (m->id >= WIRE_SEGMENTS_MAX) {
		session_refuse(s, -E2BIG, "more than 4096 segments: allocate larger segments");
		return;
	}
	if (!segments_fit(s->d, r, m->id)) {
		session_refuse(
			s, -E2BIG,
			"ckptd maps 49152 segments of all ranks, which is its maximum: allocate larger segments");
		return;
	}
	if (wire_map(fd, m->bytes, 0, &base, &err) < 0) {
		session_refuse(s, err.code, err.msg);
		return;
	}
	if (m->id >= r->nseg) {
		struct segment **seg = realloc(r->seg, (m->id + 1) * sizeof(struct segment *));

		if (seg) {
			memset(seg + r->nseg, 0, (m->id + 1 - r->nseg) * sizeof(struct segment *));
			r->seg = seg;
			r->nseg = m->id + 1;
		}
	}
	if (m->id < r->nseg && !r->seg[m->id] &&
	    (r->seg[m->id] = calloc(1, sizeof(struct segment)))) {
		*r->seg[m->id] = (struct segment){
			.refs = 1, .base = base, .bytes = m->bytes, .reaper = &s->d->reaper
		};
		r->seg_bytes += m->bytes;
		session_ok(s);
		return;
	}
	munmap(base, m->bytes);
	session_refuse(s, m->id < r->nseg && r->seg[m->id] ? -EALREADY : -ENOMEM,
		       "the segment was sent twice, or ckptd has no memory for it");
}

static void on_adopt(struct session *s, const struct wire_adopt *m, int *fd)
{
	const struct launch *l = s->launch;
	struct ckpt_err err = { 0 };
	struct adopt *a;

	if (m->slot >= (l->slots ? l->slots : WIRE_SLOTS_MAX) || s->member->decl ||
	    m->nwhole > WIRE_WHOLE_MAX) {
		session_refuse(s, -EPROTO,
			       "there is no such slot, or it comes after the declaration");
		return;
	}
	a = &s->member->adopt[m->slot];
	slotmem_unref(TAKE(a->mem));
	if (slotmem_adopt(&s->d->reaper, TAKE_FD(fd[0]), m->bytes, &a->mem, &err) < 0) {
		session_refuse(s, err.code, err.msg);
		return;
	}
	s->launch->marked |= m->step != UINT64_MAX;
	a->step = m->step;
	a->mark_ns = m->mark_ns;
	a->marked = m->marked;
	a->epoch = m->epoch;
	a->flags = m->flags;
	a->rev = m->rev;
	a->turn = m->turn;
	a->nwhole = m->nwhole;
	memcpy(a->whole, m->whole, sizeof a->whole);
	session_ok(s);
}

static void on_seed(struct session *s, const struct wire_seed *m, int *fd)
{
	struct seed *x = s->seeds;
	uint64_t dev, ino;

	if (m->average >= TABLE_AVERAGES_MAX || (!m->error && dir_look(fd[0], &dev, &ino) < 0)) {
		session_refuse(s, -EPROTO, "there is no such average, or its seed is no directory");
		return;
	}
	while (x && x->average != m->average)
		x = x->next;
	if (!x) {
		x = calloc(1, sizeof *x);
		if (!x) {
			session_refuse(s, -ENOMEM, "ckptd has no memory for a seed");
			return;
		}
		*x = (struct seed){ .average = m->average, .fd = -1, .next = s->seeds };
		s->seeds = x;
	}
	if (x->fd >= 0)
		(void)close(x->fd);
	x->fd = TAKE_FD(fd[0]);
	x->error = (int)m->error;
	memcpy(x->path, m->path, sizeof x->path);
	session_ok(s);
}

static void message_handle(struct session *s, const void *msg, int *fd)
{
	uint32_t type = ((const struct wire_head *)msg)->type;

	s->seq = ((const struct wire_head *)msg)->seq;
	if (wire_kind(type)->sender == WIRE_CONTROLLER) {
		control_request(s, msg, fd);
		return;
	}
	if (type != WIRE_HELLO && type != WIRE_BYE && s->state != SESSION_ATTACHED) {
		session_refuse(s, -EPROTO, "not attached");
		return;
	}
	switch (type) {
	case WIRE_HELLO:
		on_hello(s, msg, fd);
		break;
	case WIRE_SEGMENT:
		on_segment(s, msg, fd[0]);
		break;
	case WIRE_ADOPT:
		on_adopt(s, msg, fd);
		break;
	case WIRE_SEED:
		on_seed(s, msg, fd);
		break;
	case WIRE_KEEP:
		keep_set(s, msg);
		break;
	case WIRE_DECLARE:
		/* What no part could hold is not even hashed: others wait for the same threads. */
		if (((const struct wire_declare *)msg)->bytes > NATIVE_META_BYTES_MAX)
			session_refuse(
				s, -EFBIG,
				"the declaration is larger than 1 GiB: declare fewer tensors");
		else
			launch_declare(s, msg, fd[0]);
		break;
	case WIRE_RESTORE:
		restore_ask(s, msg);
		break;
	case WIRE_LAND:
		restore_land(s, msg);
		break;
	case WIRE_STEPS:
		restore_steps(s);
		break;
	case WIRE_LIST:
		list_ask(s, msg);
		break;
	case WIRE_FRESH:
		if (!MUTANT(FRESH_FORGOTTEN))
			launch_start(s->launch, START_FRESH);
		session_ok(s);
		break;
	case WIRE_CLAIM:
		holder_ask(s);
		break;
	case WIRE_BYE:
		s->said_bye = true;
		session_ok(s);
		break;
	}
}

static void garbage_say(struct daemon *d, struct garbage *g, uint64_t now)
{
	char which[32] = "another protocol";

	if (g->abi)
		snprintf(which, sizeof which, "protocol %u, not %u", g->abi, WIRE_ABI);
	if (g->untold == 1)
		log_line(&d->opts.log, LOG_WARNING,
			 "session: process %d speaks %s; ckptd closed its connection", (int)g->pid,
			 which);
	else
		log_line(
			&d->opts.log, LOG_WARNING,
			"session: process %d speaks %s; it is the last of %u such connections, which ckptd closed",
			(int)g->pid, which, g->untold);
	g->untold = 0;
	g->said_ns = now;
}

void garbage_tick(struct daemon *d, uint64_t now)
{
	for (uint32_t i = 0; i < ARRAY_LEN(d->garbage); i++)
		if (d->garbage[i].untold && elapsed_ns(d->garbage[i].said_ns, now) > GARBAGE_NS)
			garbage_say(d, &d->garbage[i], now);
}

/* abi: 0 where there is none */
static void garbage_met(const struct session *s, uint16_t abi)
{
	struct garbage *g = &s->d->garbage[s->uid != geteuid()];

	g->pid = s->pid;
	g->abi = abi;
	g->untold += g->untold < UINT32_MAX;
	garbage_tick(s->d, now_ns());
}

static void refuse_other_version(const struct session *s, const struct wire_head *ask)
{
	char text[400];

	snprintf(text, sizeof text,
		 "%s (process %d) speaks protocol %u, process %d protocol %u: use the ckptd, the "
		 "ckptctl and the library of one version, or start the ckptd of that version on "
		 "another socket (--socket, CKPTD_SOCKET)",
		 ckptd_version, (int)getpid(), WIRE_ABI, (int)s->pid, ask->abi);
	(void)wire_refuse_other(s->sock, ask, text);
}

void session_readable(struct session *s)
{
	_Alignas(16) uint8_t buf[WIRE_BYTES_MAX];
	int fd[WIRE_FDS_MAX], nfd, n = wire_recv(s->sock, buf, sizeof buf, fd, &nfd);

	if (n == -EAGAIN)
		return;
	if (n > 0 && wire_request_check(buf, (uint32_t)n, nfd) < 0)
		n = -EPROTO;
	if (n == -EPROTONOSUPPORT)
		refuse_other_version(s, (const struct wire_head *)buf);
	if (n <= 0) {
		if (n < 0)
			garbage_met(s, n == -EPROTONOSUPPORT ? ((struct wire_head *)buf)->abi : 0);
		wire_close_fds(fd, nfd);
		session_end(s);
		return;
	}
	message_handle(s, buf, fd);
	wire_close_fds(fd, nfd);
}
