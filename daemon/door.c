// SPDX-License-Identifier: Apache-2.0
// door.c - the socket that ckptd listens on, and the lock beside it. Called by loop.
// Invariants: only the process that has the lock of a path listens there; if a cleaner of temporary
// files removes the socket or the lock, ckptd makes it again; ckptd removes nothing of another
// ckptd.
#include "ckpt/base/error.h"
#include "daemon/state.h"
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define BACKLOG 512
#define WAIT_NS (2 * NS_PER_S) /* for a daemon that is being killed */

/* Whatever program it is. Its pid, of which 0 is an unknown one; -1: nobody listens. */
static pid_t listener_find(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	cleanup_close int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	struct ucred who = { 0 };
	socklen_t len = sizeof who;

	snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
	if (sock < 0)
		return -1;
	if (connect(sock, (struct sockaddr *)&a, sizeof a) == 0)
		return getsockopt(sock, SOL_SOCKET, SO_PEERCRED, &who, &len) == 0 ? who.pid : 0;
	return errno == EAGAIN || errno == EPROTOTYPE ? 0 : -1;
}

static bool somebody_listens(const char *path)
{
	return listener_find(path) >= 0;
}

static void lock_path(const struct daemon *d, char path[128])
{
	snprintf(path, 128, "%s.lock", d->socket);
}

static int another_serves(const struct daemon *d, struct ckpt_err *err)
{
	pid_t pid = listener_find(d->socket);
	char who[64] = " (it does not listen yet, or does not answer)";

	_Static_assert(sizeof " (pid 2147483647)" <= sizeof who, "the largest pid");
	if (pid > 0)
		snprintf(who, sizeof who, " (pid %d)", (int)pid);
	return ckpt_error(
		err, -EADDRINUSE,
		"another ckptd%s serves %s: use it, stop it (SIGTERM), or start this one with another --socket",
		who, d->socket);
}

/* wait_ns: a killed daemon's lock can outlive it for as long as its last writes are under way. */
static int take_lock(const struct daemon *d, uint64_t wait_ns, int *ret_fd, struct ckpt_err *err)
{
	uint64_t until = now_ns() + wait_ns;
	cleanup_close int fd = -1;
	char path[128];

	lock_path(d, path);
	fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return ckpt_error_errno(err, errno, "cannot open the lock %s", path);
	while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
		if (errno != EWOULDBLOCK && errno != EINTR)
			return ckpt_error_errno(err, errno, "cannot lock %s", path);
		if (!wait_ns || somebody_listens(d->socket) || now_ns() > until)
			return another_serves(d, err);
		usleep(20000);
	}
	*ret_fd = TAKE_FD(fd);
	return 0;
}

/* Removes what a killed daemon of this user left, but no other file and no other program's socket.
 * */
static int old_remove(const struct daemon *d, uint64_t wait_ns, struct ckpt_err *err)
{
	uint64_t until = now_ns() + wait_ns;
	struct stat st;

	if (lstat(d->socket, &st) < 0)
		return 0; /* bind says what is wrong with the path */
	if (!S_ISSOCK(st.st_mode))
		return ckpt_error(
			err, -EINVAL,
			"%s exists and is not a socket: start ckptd with another --socket",
			d->socket);
	/* The lock is ours; a daemon that is being killed may listen a moment longer. */
	while (somebody_listens(d->socket)) {
		if (now_ns() >= until)
			return ckpt_error(
				err, -EADDRINUSE,
				"another program listens on %s: start ckptd with another --socket",
				d->socket);
		usleep(20000);
	}
	(void)unlink(d->socket);
	return 0;
}

/* The mode is the socket's own before it is bound: umask would be that of all threads. */
static int listen_on(struct daemon *d, uint64_t wait_ns, int *ret_fd, struct ckpt_err *err)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	cleanup_close int fd = -1;
	struct stat st;
	int rc = old_remove(d, wait_ns, err);

	if (rc < 0)
		return rc;
	memcpy(a.sun_path, d->socket, sizeof a.sun_path);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return ckpt_error_errno(err, errno, "cannot make a socket");
	if (fchmod(fd, 0600) < 0 || bind(fd, (struct sockaddr *)&a, sizeof a) < 0 ||
	    listen(fd, BACKLOG) < 0 || lstat(d->socket, &st) < 0)
		return ckpt_error_errno(err, errno, "cannot listen on %s", d->socket);
	d->socket_dev = st.st_dev;
	d->socket_ino = st.st_ino;
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int door_open(struct daemon *d, struct ckpt_err *err)
{
	int rc = take_lock(d, WAIT_NS, &d->lock_fd, err);

	return rc < 0 ? rc : listen_on(d, WAIT_NS, &d->listen_fd, err);
}

void door_watch(struct daemon *d)
{
	daemon_watch(d, d->listen_fd, (void *)((uintptr_t)&d->listen_fd | WATCH_SELF), EPOLLIN);
}

/* --- what a cleaner has removed --- */
static bool leads_to(const char *path, uint64_t dev, uint64_t ino)
{
	struct stat st;

	return lstat(path, &st) == 0 && st.st_dev == dev && st.st_ino == ino;
}

static bool lock_is_there(const struct daemon *d)
{
	char path[128];
	struct stat st;

	lock_path(d, path);
	return fstat(d->lock_fd, &st) == 0 && leads_to(path, st.st_dev, st.st_ino);
}

/* The directory too: one that is made here, of this user alone, or none. */
static int make_directory(const struct daemon *d, struct ckpt_err *err)
{
	char dir[sizeof d->socket], *slash;
	char usual[sizeof d->socket];

	if (!d->opts.socket &&
	    (wire_socket_path(usual, 1, err) < 0 || strcmp(usual, d->socket) != 0))
		return ckpt_error(err, -EACCES, "the directory of %s cannot be made again",
				  d->socket);
	snprintf(dir, sizeof dir, "%s", d->socket);
	slash = strrchr(dir, '/');
	if (!slash || slash == dir)
		return 0;
	*slash = 0;
	if (mkdir(dir, 0700) < 0 && errno != EEXIST)
		return ckpt_error_errno(err, errno, "cannot make %s for the socket", dir);
	return 0;
}

/* Accepts the connections that wait at the old socket. */
static void listen_there(struct daemon *d, int fd)
{
	struct pollfd p = { .fd = d->listen_fd, .events = POLLIN };

	for (uint32_t i = 0; i < BACKLOG && poll(&p, 1, 0) > 0; i++)
		session_accept(d);
	daemon_unwatch(d, d->listen_fd);
	(void)close(d->listen_fd);
	d->listen_fd = fd;
	d->deaf = false;
	door_watch(d);
}

/* The lock first: a daemon without it leaves the socket alone. */
static int make_again(struct daemon *d, bool locked, bool bound, struct ckpt_err *err)
{
	int fd = -1, rc = make_directory(d, err);

	if (rc == 0 && !locked) {
		rc = take_lock(d, 0, &fd, err);
		if (rc == 0) {
			(void)close(d->lock_fd);
			d->lock_fd = fd;
		}
	}
	if (rc == 0 && !bound) {
		rc = listen_on(d, 0, &fd, err);
		if (rc == 0)
			listen_there(d, fd);
	}
	return rc;
}

void door_tick(struct daemon *d)
{
	bool locked = lock_is_there(d), bound = leads_to(d->socket, d->socket_dev, d->socket_ino);
	struct ckpt_err err = { 0 };

	if (d->deaf) {
		d->deaf = false;
		door_watch(d);
	}
	if (locked && bound)
		return;
	if (make_again(d, locked, bound, &err) == 0) {
		log_line(&d->opts.log, LOG_NOTICE,
			 "ckptd: %s%s had been removed or replaced; ckptd made it again", d->socket,
			 bound ? ".lock" : "");
		d->shut_out = false;
	} else if (!d->shut_out) {
		log_line(
			&d->opts.log, LOG_WARNING,
			"ckptd: the socket or its lock was removed and cannot be made again now: %s; ckptd "
			"serves the attached ranks, and keeps trying",
			err.msg);
		d->shut_out = true;
	}
}

void door_close(struct daemon *d)
{
	if (d->listen_fd < 0)
		return;
	if (!d->killed && leads_to(d->socket, d->socket_dev, d->socket_ino))
		(void)unlink(d->socket);
	(void)close(TAKE_FD(d->listen_fd));
}
