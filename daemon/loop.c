// SPDX-License-Identifier: Apache-2.0
// loop.c - the owner thread of the daemon: sockets, clock, workers' results. Called by main and
// the tests.
// Invariant: only the thread inside daemon_run touches state; workers give their tasks back
// through done_fd.
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/move/chunk_stream.h"
#include "daemon/state.h"
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/timerfd.h>

/* Connections that have said nothing yet, each two descriptors; of few descriptors a quarter. */
#define NEW_MAX 1024u
#define QUEUE_MAX 65536u       /* tasks waiting; each member has at most a few */
#define LEAVE_WAIT_NS NS_PER_S /* at the end, for what other hosts see of steps that were read */

/* --- workers --- */
static void task_back(struct daemon *d, struct task *t)
{
	const uint64_t one = 1;

	pthread_mutex_lock(&d->done_lock);
	t->next = NULL;
	if (d->done_last)
		d->done_last->next = t;
	else
		d->done_first = t;
	d->done_last = t;
	pthread_mutex_unlock(&d->done_lock);
	if (write(d->done_fd, &one, sizeof one) < 0)
		return; /* the counter is full: the owner is awake anyway */
}

static _Thread_local struct worker *me;

struct worker *worker_me(void)
{
	return me;
}

void worker_sign(struct worker *w)
{
	if (w)
		store_relaxed(&w->sign_ns, now_ns());
}

static void *worker_run(void *arg)
{
	struct task *t;

	me = arg;
	while ((t = queue_pop(&me->pool->queue))) {
		worker_sign(me);
		t->run(t);
		atomic_store(&me->sign_ns, 0);
		task_back(me->pool->d, t);
	}
	chunk_queue_close(TAKE(me->io));
	return NULL;
}

void daemon_task(struct pool *p, struct task *t, task_fn *run, task_fn *done)
{
	*t = (struct task){ run, done, NULL };
	p->d->running++;
	if (!queue_try_push(&p->queue, t)) {
		run(t);
		task_back(p->d, t);
	}
}

int pool_start(struct daemon *d, struct pool *p, const char *name, uint32_t n)
{
	int rc = queue_init(&p->queue, QUEUE_MAX);

	p->d = d;
	for (p->nworker = 0; rc == 0 && p->nworker < n; p->nworker++) {
		struct worker *w = &p->worker[p->nworker];

		w->pool = p;
		rc = thread_start(&w->thread, name, true, worker_run, w);
		if (rc < 0)
			break;
	}
	return rc;
}

void pool_stop(struct pool *p)
{
	if (!p->queue.item)
		return;
	queue_close(&p->queue);
	for (uint32_t i = 0; i < p->nworker; i++)
		pthread_join(p->worker[i].thread, NULL);
	p->nworker = 0;
	queue_destroy(&p->queue);
}

static void tasks_done(struct daemon *d)
{
	struct task *t;
	uint64_t n;

	if (read(d->done_fd, &n, sizeof n) < 0 && errno != EAGAIN)
		return;
	pthread_mutex_lock(&d->done_lock);
	t = d->done_first;
	d->done_first = d->done_last = NULL;
	pthread_mutex_unlock(&d->done_lock);
	while (t) {
		struct task *next = t->next;

		d->running--;
		t->done(t);
		t = next;
	}
}

/* --- descriptors that are watched: a pointer whose low bits say what it points to --- */
int daemon_watch(struct daemon *d, int fd, void *what, uint32_t events)
{
	struct epoll_event e = { .events = events, .data.ptr = what };

	if (epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &e) == 0)
		return 0;
	return errno == EEXIST && epoll_ctl(d->epoll_fd, EPOLL_CTL_MOD, fd, &e) == 0 ? 0 : -errno;
}

void daemon_unwatch(struct daemon *d, int fd)
{
	(void)epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

static void *watch_tag(void *p, uintptr_t tag)
{
	return (void *)((uintptr_t)p | tag);
}

static int clock_start(struct daemon *d)
{
	const struct itimerspec every = { .it_interval.tv_nsec = (long)BEAT_NS / 5,
					  .it_value.tv_nsec = (long)BEAT_NS / 5 };

	d->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	return d->timer_fd < 0 || timerfd_settime(d->timer_fd, 0, &every, NULL) < 0 ? -errno : 0;
}

int daemon_open(const struct daemon_opts *opts, struct daemon **ret, struct ckpt_err *err)
{
	struct daemon *d = calloc(1, sizeof *d);
	long cores = sysconf(_SC_NPROCESSORS_ONLN);
	struct rlimit files;
	uint32_t copies;
	int rc;

	*ret = NULL;
	if (!d)
		return ckpt_error(err, -ENOMEM, "no memory for the daemon");
	d->opts = *opts;
	d->opts.ops = opts->ops ? opts->ops : &io_ops_posix;
	d->opts.drain_ns = opts->drain_ns ? opts->drain_ns : 300 * NS_PER_S;
	d->new_max = getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur < 8 * NEW_MAX
			     ? (uint32_t)MAX(files.rlim_cur / 8, (rlim_t)1)
			     : NEW_MAX;
	copies = opts->copy_threads ? opts->copy_threads : (uint32_t)MAX(cores - 1, 1L);
	d->lock_fd = d->listen_fd = d->epoll_fd = d->timer_fd = d->done_fd = d->stop_fd = -1;
	d->report_fd = -1;
	pthread_mutex_init(&d->done_lock, NULL);
	if (opts->socket && strlen(opts->socket) >= sizeof d->socket)
		rc = ckpt_error(err, -EINVAL, "the socket path %s is longer than %zu bytes",
				opts->socket, sizeof d->socket - 1);
	else if (opts->socket)
		rc = snprintf(d->socket, sizeof d->socket, "%s", opts->socket) < 0 ? -EINVAL : 0;
	else
		rc = wire_socket_path(d->socket, 1, err);
	if (rc == 0)
		rc = door_open(d, err);
	if (rc == 0) {
		d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
		d->done_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		d->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
		rc = d->epoll_fd < 0 || d->done_fd < 0 || d->stop_fd < 0 ? -errno : clock_start(d);
		if (rc == 0)
			rc = pool_start(d, &d->copy, "ckptd-copy",
					MIN(copies, (uint32_t)COPY_THREADS_MAX));
		if (rc == 0)
			rc = pool_start(d, &d->work, "ckptd-work", COPY_THREADS_MAX);
		if (rc == 0)
			rc = reaper_start(&d->reaper);
		if (rc < 0)
			ckpt_error_errno(err, -rc, "cannot start the daemon's threads");
	}
	if (rc < 0) {
		daemon_close(d);
		return rc;
	}
	door_watch(d);
	daemon_watch(d, d->timer_fd, watch_tag(&d->timer_fd, WATCH_SELF), EPOLLIN);
	daemon_watch(d, d->done_fd, watch_tag(&d->done_fd, WATCH_SELF), EPOLLIN);
	daemon_watch(d, d->stop_fd, watch_tag(&d->stop_fd, WATCH_SELF), EPOLLIN);
	d->idle_since = d->began_ns = now_ns();
	*ret = d;
	return 0;
}

const char *daemon_socket(const struct daemon *d)
{
	return d->socket;
}

void daemon_stop(struct daemon *d)
{
	const uint64_t one = 1;
	int saved = errno;

	atomic_fetch_add(&d->stops, 1);
	if (write(d->stop_fd, &one, sizeof one) < 0)
		errno = saved;
	errno = saved;
}

void daemon_kill(struct daemon *d)
{
	atomic_fetch_add(&d->stops, 1000);
	daemon_stop(d);
}

/* --- the loop --- */
static void loop_tick(struct daemon *d)
{
	uint64_t now = now_ns(), n;
	bool busy = d->running > 0;

	if (read(d->timer_fd, &n, sizeof n) < 0)
		return;
	if (!d->drain_until)
		door_tick(d);
	garbage_tick(d, now);
	for (struct session *s = d->sessions, *next; s; s = next) {
		next = s->next;
		session_tick(s, now);
	}
	for (struct job *j = d->jobs, *next; j; j = next) {
		next = j->next;
		job_tick(j, now);
		keep_tick(j, now);
		busy |= !job_idle(j);
		if (job_forgotten(j, now))
			job_free(j);
	}
	if (busy || daemon_attended(d))
		d->idle_since = now;
}

/* A guard rings no bell: the trainer would pay for it. */
#define GUARD_LOOK_MS 10
static bool guards_are_awaited(const struct daemon *d)
{
	for (const struct job *j = d->jobs; j; j = j->next)
		if (j->awaits_guard)
			return true;
	return false;
}

static void guards_look(struct daemon *d)
{
	for (struct job *j = d->jobs; j; j = j->next)
		if (j->awaits_guard)
			job_settle(j);
}

static bool drain_done(struct daemon *d)
{
	if (now_ns() > d->drain_until)
		atomic_store(&d->stops, 2); /* what is being written gives up */
	if (atomic_load(&d->stops) > 1)
		return true;
	for (struct job *j = d->jobs; j; j = j->next)
		if (j->writing || !job_idle(j))
			return false;
	return d->running == 0;
}

static void begin_drain(struct daemon *d)
{
	log_line(
		&d->opts.log, LOG_NOTICE,
		"ckptd: stopping; it writes the staged steps first (after a second signal it exits at once)");
	d->drain_until = now_ns() + d->opts.drain_ns;
	daemon_unwatch(d, d->listen_fd);
	for (struct job *j = d->jobs; j; j = j->next)
		job_drain(j);
}

static void event_dispatch(struct daemon *d, const struct epoll_event *e)
{
	uintptr_t tag = (uintptr_t)e->data.ptr & 3;
	void *p = (void *)((uintptr_t)e->data.ptr & ~(uintptr_t)3);

	if (tag == WATCH_SESSION) {
		session_readable(p);
	} else if (tag == WATCH_PIDFD) {
		struct session *s = p;

		if (s->busy) /* session_unbusy looks again */
			daemon_unwatch(d, s->pidfd);
		session_end(s);
	} else if (tag == WATCH_BELL) {
		struct launch *l = p;
		uint64_t n;

		if (read(l->bell, &n, sizeof n) > 0) {
			struct job *j = l->job;

			launch_ring(l);
			job_settle(j);
		}
	} else if (p == &d->listen_fd) {
		session_accept(d);
	} else if (p == &d->timer_fd) {
		loop_tick(d);
	} else if (p == &d->done_fd) {
		tasks_done(d);
	}
}

int daemon_run(struct daemon *d)
{
	const struct sched_param none = { 0 };

	/* The doorbell wakes this thread from within ckpt_snapshot: it must not preempt the
	 * trainer. */
	pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
	while (atomic_load(&d->stops) < 1000) {
		/* one at a time: handling one may free what another points to */
		struct epoll_event e[1];
		bool look = guards_are_awaited(d);
		int n = epoll_wait(d->epoll_fd, e, 1, look ? GUARD_LOOK_MS : 1000);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0)
			event_dispatch(d, e);
		else if (look)
			guards_look(d);
		if (atomic_load(&d->stops) && !d->drain_until)
			begin_drain(d);
		if (d->ndraining)
			control_look(d);
		if (d->drain_until) {
			uint64_t stop;

			if (read(d->stop_fd, &stop, sizeof stop) < 0 && errno != EAGAIN)
				return -errno;
			if (drain_done(d))
				break;
		} else if (d->opts.idle_exit_ns && !daemon_attended(d) &&
			   now_ns() - d->idle_since > d->opts.idle_exit_ns) {
			log_line(&d->opts.log, LOG_NOTICE, "ckptd: idle for %" PRIu64 " s, exits",
				 d->opts.idle_exit_ns / NS_PER_S);
			break;
		}
	}
	d->killed = atomic_load(&d->stops) >= 1000;
	return 0;
}

void daemon_close(struct daemon *d)
{
	if (!d)
		return;
	atomic_fetch_add(&d->stops, 1000); /* results that come in now start nothing new */
	pool_stop(&d->copy);
	pool_stop(&d->work);
	for (struct device *v = d->devices; v; v = v->next)
		for (enum lane i = 0; i < LANES; i++)
			pool_stop(&v->lane[i]);
	while (d->running && d->done_fd >= 0) {
		tasks_done(d);
		if (!d->done_first)
			break;
	}
	while (d->sessions) {
		d->sessions->busy = false;
		d->sessions->closed_ns = 1;
		session_end(d->sessions);
	}
	while (d->jobs)
		job_free(d->jobs);
	store_leave_wait(LEAVE_WAIT_NS);
	reaper_stop(&d->reaper);
	if (d->report_fd >= 0)
		(void)close(d->report_fd);
	door_close(d);
	for (int *fd = &d->lock_fd; fd <= &d->stop_fd; fd++)
		if (fd != &d->listen_fd && *fd >= 0)
			(void)close(*fd);
	pthread_mutex_destroy(&d->done_lock);
	free(d);
}
