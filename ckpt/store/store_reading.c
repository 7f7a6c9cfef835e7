/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_reading.c - who reads a step, as processes of other hosts see it. Called by store_lock.c,
 * and by removal.
 * Locks do not reach other hosts if a file system is mounted so (NFS with nolock, Lustre without
 * flock), and a server drops those of a host that it has not heard of for a while. So, where a
 * store may be shared with other hosts, who reads a step leaves an empty file besides its lock:
 *
 *	.ckptd/reading-%012u-%08x.%u-HOST.PID		step, reader, beat
 *
 * Each beat makes the next name and removes the one before: a host sees new names at once, and
 * other news of a file half a minute late. A removal makes .ckptd/lock-now-%08x to learn the time:
 * it and the names are dated by one clock, the server's. A name counts for ten minutes, so a reader
 * that died is in nobody's way for longer; removals then remove the name.
 * Invariant: no step is removed by a process that saw, after it had locked the step, a name of
 * another reader of it that is younger.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include "ckpt/store/store_impl.h"

#define COUNTS_NS (600 * NS_PER_S)
#define BEAT_S 60
#define FILE_MAX 160  /* bytes of a name, with its zero */
#define WHO_MAX 80    /* of HOST.PID */
#define LOOKS_MAX 4   /* at names that change while they are looked at */
#define SEEN_MAX 4096 /* names that a look takes */
#define NOW "lock-now-"

struct store_reading {
	struct store_reading *next;
	const struct io_ops *ops;
	int fd; /* .ckptd */
	uint32_t nonce;
	uint64_t step, beat;
	bool beating; /* a beat uses all above, without the lock */
	bool ended;   /* while it was beating: the beat frees it */
};

struct later {
	struct later *next;
	void (*end)(void *arg);
	void *arg;
};

static struct {
	pthread_mutex_t lock; /* protects all below, and their links and flags */
	pthread_cond_t changed;
	struct store_reading *first;
	struct later *later; /* to be ended by the thread */
	uint32_t ending;     /* of those: taken from the list, and not yet done */
	bool beats; /* a thread is there. It is one of the process, and ends with all of these */
} all = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* --- names --- */

static void name_print(const struct store_reading *x, uint64_t beat, char ret[FILE_MAX])
{
	char host[65] = "";

	(void)gethostname(host, sizeof host - 1);
	for (char *p = host; *p; p++)
		if (*p <= ' ' || *p == '/' || *p > '~')
			*p = '?';
	(void)snprintf(ret, FILE_MAX, "reading-%012" PRIu64 "-%08" PRIx32 ".%" PRIu64 "-%s.%d",
		       x->step, x->nonce, beat, host, (int)getpid());
}

struct name {
	uint64_t step, beat;
	uint32_t nonce;
	char file[FILE_MAX];
};

static bool name_parse(const char *file, struct name *ret)
{
	const char *p = file;

	if (strlen(file) >= FILE_MAX || !store_take_text(&p, "reading-") ||
	    !store_take_decimal(&p, &ret->step) || !store_take_text(&p, "-") ||
	    !store_take_hex(&p, &ret->nonce) || !store_take_text(&p, ".") ||
	    !store_take_decimal(&p, &ret->beat) || *p != '-')
		return false;
	memcpy(ret->file, file, strlen(file) + 1);
	return true;
}

/* "host, process 17" */
static void who_print(const char *file, char ret[WHO_MAX])
{
	const char *host = strchr(strchr(file, '.'), '-') + 1, *dot = strrchr(host, '.');

	if (dot)
		(void)snprintf(ret, WHO_MAX, "%.*s, process %.10s", (int)MIN(dot - host, 50), host,
			       dot + 1);
	else
		(void)snprintf(ret, WHO_MAX, "%.50s", host);
}

/* --- one that reads here --- */

static int name_make(const struct store_reading *x, const char *file)
{
	int fd = x->ops->open(x->ops->ctx, x->fd, file, O_WRONLY | O_CREAT | O_EXCL, 0600);

	if (fd < 0)
		return fd;
	(void)x->ops->close(x->ops->ctx, fd);
	return 0;
}

static void name_remove(const struct store_reading *x)
{
	char file[FILE_MAX];

	name_print(x, x->beat, file);
	(void)x->ops->unlink(x->ops->ctx, x->fd, file, false);
}

/* Two calls, however many steps and readers there are. What could not be made is made at the next
 * one. */
static void reading_beat(struct store_reading *x)
{
	char file[FILE_MAX];

	name_print(x, x->beat + 1, file);
	if (name_make(x, file))
		return;
	name_remove(x);
	x->beat++;
}

static void reading_free(struct store_reading *x)
{
	name_remove(x);
	(void)x->ops->close(x->ops->ctx, x->fd);
	free(x);
}

/* With the lock. */
static void reading_unlink(struct store_reading *x)
{
	struct store_reading **p = &all.first;

	while (*p != x)
		p = &(*p)->next;
	*p = x->next;
}

/* With the lock, which it gives back meanwhile: a server may take its time. */
static void beat_all(void)
{
	struct store_reading *x = all.first, *next;

	for (; x; x = next) {
		next = x->next;
		if (x->beating)
			continue;
		x->beating = true;
		(void)pthread_mutex_unlock(&all.lock);
		reading_beat(x);
		(void)pthread_mutex_lock(&all.lock);
		x->beating = false;
		next = x->next;
		if (!x->ended)
			continue;
		reading_unlink(x);
		(void)pthread_mutex_unlock(&all.lock);
		reading_free(x);
		(void)pthread_mutex_lock(&all.lock);
		next = NULL; /* it may have gone; the others beat in a minute again */
	}
}

void store_readings_beat(void)
{
	(void)pthread_mutex_lock(&all.lock);
	beat_all();
	(void)pthread_mutex_unlock(&all.lock);
}

/* With the lock, which it gives back meanwhile. */
static void later_end(void)
{
	struct later *x = all.later;

	all.later = x->next;
	all.ending++;
	(void)pthread_mutex_unlock(&all.lock);
	x->end(x->arg);
	free(x);
	(void)pthread_mutex_lock(&all.lock);
	all.ending--;
	(void)pthread_cond_broadcast(&all.changed);
}

static void *beats(void *arg)
{
	struct timespec next;

	(void)arg;
	(void)clock_gettime(CLOCK_MONOTONIC, &next);
	next.tv_sec += BEAT_S;
	(void)pthread_mutex_lock(&all.lock);
	while (all.first || all.later) {
		if (all.later) {
			later_end();
		} else if (pthread_cond_clockwait(&all.changed, &all.lock, CLOCK_MONOTONIC,
						  &next) == ETIMEDOUT) {
			beat_all();
			(void)clock_gettime(CLOCK_MONOTONIC, &next);
			next.tv_sec += BEAT_S;
		}
	}
	all.beats = false;
	(void)pthread_mutex_unlock(&all.lock);
	return NULL;
}

/* With the lock. Without a thread a reading counts for ten minutes. */
static void beats_start(void)
{
	sigset_t none, before;
	pthread_attr_t attr;
	pthread_t thread;

	if (all.beats || pthread_attr_init(&attr))
		return;
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	(void)sigfillset(&none);
	(void)pthread_sigmask(SIG_SETMASK, &none, &before);
	all.beats = pthread_create(&thread, &attr, beats, NULL) == 0;
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	(void)pthread_attr_destroy(&attr);
}

struct store_reading *store_reading_begin(const struct store *s, uint64_t step)
{
	const struct io_ops *ops = s->ops;
	struct store_reading *x;
	char file[FILE_MAX];

	if (!io_shared(ops, s->job_fd))
		return NULL;
	x = malloc(sizeof *x);
	if (!x)
		return NULL;
	*x = (struct store_reading){ .ops = ops, .step = step };
	x->fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	if (x->fd < 0 || store_nonce(&x->nonce, NULL))
		goto none;
	name_print(x, 0, file);
	if (name_make(x, file))
		goto none;
	(void)pthread_mutex_lock(&all.lock);
	x->next = all.first;
	all.first = x;
	beats_start();
	(void)pthread_mutex_unlock(&all.lock);
	return x;
none:
	if (x->fd >= 0)
		(void)ops->close(ops->ctx, x->fd);
	free(x);
	return NULL;
}

void store_reading_end(struct store_reading *x)
{
	bool mine;

	if (!x)
		return;
	(void)pthread_mutex_lock(&all.lock);
	mine = !x->beating;
	x->ended = true;
	if (mine)
		reading_unlink(x);
	if (!all.first)
		(void)pthread_cond_broadcast(&all.changed);
	(void)pthread_mutex_unlock(&all.lock);
	if (mine)
		reading_free(x);
}

void store_later(void (*end)(void *arg), void *arg)
{
	struct later *x = malloc(sizeof *x);

	if (x) {
		*x = (struct later){ .end = end, .arg = arg };
		(void)pthread_mutex_lock(&all.lock);
		x->next = all.later;
		all.later = x;
		beats_start();
		if (all.beats)
			x = NULL;
		else
			all.later = x->next;
		(void)pthread_cond_broadcast(&all.changed);
		(void)pthread_mutex_unlock(&all.lock);
		if (!x)
			return;
		free(x);
	}
	end(arg);
}

void store_leave_wait(uint64_t ns)
{
	struct timespec until;
	int r = 0;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += (time_t)MIN(ns / NS_PER_S, UINT64_C(1) << 30);
	(void)pthread_mutex_lock(&all.lock);
	while ((all.later || all.ending) && r != ETIMEDOUT)
		r = pthread_cond_clockwait(&all.changed, &all.lock, CLOCK_MONOTONIC, &until);
	(void)pthread_mutex_unlock(&all.lock);
}

/* --- those that others read --- */

struct look {
	const struct store *s;
	int fd; /* .ckptd */
	uint64_t now_ns;
	struct name *seen;
	uint32_t n, cap;
	bool more; /* than it takes: what the dead left goes, and it looks again */
};

static bool is_own(uint32_t nonce)
{
	struct store_reading *x;

	(void)pthread_mutex_lock(&all.lock);
	for (x = all.first; x && x->nonce != nonce; x = x->next)
		;
	(void)pthread_mutex_unlock(&all.lock);
	return x != NULL;
}

/* Files that a killed removal left are judged by their age, as those of readers are. */
static int look_add(void *arg, const char *file, unsigned char d_type)
{
	struct look *l = arg;
	struct name name = { .step = UINT64_MAX };

	(void)d_type;
	if (strncmp(file, NOW, sizeof NOW - 1) == 0 && strlen(file) < FILE_MAX)
		memcpy(name.file, file, strlen(file) + 1);
	else if (!name_parse(file, &name) || is_own(name.nonce))
		return 0;
	l->more = l->n == SEEN_MAX;
	if (l->more)
		return -E2BIG;
	if (!ARRAY_GROW(l->seen, l->n, l->cap))
		return -ENOMEM;
	l->seen[l->n++] = name;
	return 0;
}

/* 0: no time is known, and so none has passed. */
static int now_ask(struct look *l)
{
	const struct io_ops *ops = l->s->ops;
	char file[FILE_MAX];
	struct io_stat st = { 0 };
	uint32_t nonce;
	int fd, r = store_nonce(&nonce, NULL);

	if (r)
		return r;
	(void)snprintf(file, sizeof file, NOW "%08" PRIx32, nonce);
	fd = ops->open(ops->ctx, l->fd, file, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return fd == -ENOSPC || fd == -EDQUOT ? 0 : fd;
	(void)io_stat(ops, fd, &st);
	(void)ops->close(ops->ctx, fd);
	(void)ops->unlink(ops->ctx, l->fd, file, false);
	l->now_ns = st.modified_ns;
	return 0;
}

/* 1: it counts; 0: it does not, and has gone. -ENOENT: its reader has changed it. */
static int name_judge(const struct look *l, const struct name *x)
{
	const struct io_ops *ops = l->s->ops;
	struct io_stat st;
	int r = io_stat_at(ops, l->fd, x->file, &st);

	if (r)
		return r == -ENOENT ? r : 1;
	if (!MUTANT(READINGS_FOR_EVER_YOUNG) && st.modified_ns && l->now_ns > st.modified_ns &&
	    l->now_ns - st.modified_ns >= COUNTS_NS) {
		(void)ops->unlink(ops->ctx, l->fd, x->file, false);
		return 0;
	}
	return 1;
}

/* -EAGAIN: somebody reads step; -ENOENT: look again. */
static int look_once(struct look *l, uint64_t step, char who[WHO_MAX])
{
	int found = 0, r;

	l->n = 0;
	l->more = false;
	r = l->s->ops->list(l->s->ops->ctx, l->fd, look_add, l);
	if (l->more)
		r = 0;
	if (!r && l->n)
		r = now_ask(l);
	for (uint32_t i = 0; !r && i < l->n; i++) {
		int is = name_judge(l, &l->seen[i]);

		if (step == UINT64_MAX || l->seen[i].step != step || is == 0 ||
		    MUTANT(READINGS_IGNORED))
			continue;
		if (is == 1)
			who_print(l->seen[i].file, who);
		found = is == 1 ? -EAGAIN : found ? found : is;
	}
	if (!found && l->more)
		found = -ENOENT;
	return r ? r : found;
}

/* A store that only this host has ever used has no such names. */
static bool is_used_by_others(const struct io_ops *ops, int claims)
{
	struct io_stat st;

	return io_shared(ops, claims) || io_stat_at(ops, claims, STORE_LOCK_FILE, &st) != -ENOENT;
}

int store_readings_check(const struct store *s, uint64_t step, struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	struct look l = { .s = s };
	char who[WHO_MAX] = "another host";
	int r = -ENOENT;

	for (uint32_t i = 0; r == -ENOENT && i < LOOKS_MAX; i++) {
		/* Anew each time: what a host has opened shows it no news. */
		l.fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
		if (l.fd == -ENOENT)
			return 0;
		r = l.fd < 0 ? l.fd : is_used_by_others(ops, l.fd) ? look_once(&l, step, who) : 0;
		if (l.fd >= 0)
			(void)ops->close(ops->ctx, l.fd);
	}
	free(l.seen);
	if (r == -EAGAIN || r == -ENOENT)
		return ckpt_error(err, -EAGAIN,
				  "it is being read on %s; what that one left in " STORE_CLAIMS
				  " counts for ten minutes after it has died",
				  who);
	return r ? store_fail(err, r, "job %s: cannot see who reads its steps in " STORE_CLAIMS,
			      s->job)
		 : 0;
}
