// SPDX-License-Identifier: Apache-2.0
// wire.c - messages and descriptors of wire.h; called by both ends. Invariant: a descriptor
// that came in is either handed to the caller or closed.
#include "ckpt/wire/wire.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

void wire_close_fds(int *fd, int nfd)
{
	for (int i = 0; i < nfd; i++)
		if (fd[i] >= 0)
			(void)close(TAKE_FD(fd[i]));
}

static int send_as(int sock, void *msg, uint16_t abi, uint32_t type, uint32_t bytes, uint32_t seq,
		   const int *fd, int nfd)
{
	struct wire_head *head = msg;
	union {
		char buf[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { .iov_base = msg, .iov_len = bytes };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	assert(nfd <= WIRE_FDS_MAX && bytes <= WIRE_BYTES_MAX);
	*head = (struct wire_head){
		.magic = WIRE_MAGIC, .abi = abi, .type = (uint16_t)type, .bytes = bytes, .seq = seq
	};
	if (nfd) {
		struct cmsghdr *c;

		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfd);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfd);
		memcpy(CMSG_DATA(c), fd, sizeof(int) * (size_t)nfd);
	}
	for (;;) {
		ssize_t n = sendmsg(sock, &m, MSG_NOSIGNAL);

		if (n == (ssize_t)bytes)
			return 0;
		if (n >= 0)
			return -EPROTO;
		if (errno != EINTR)
			return -errno;
	}
}

int wire_send(int sock, void *msg, uint32_t type, uint32_t bytes, uint32_t seq, const int *fd,
	      int nfd)
{
	return send_as(sock, msg, WIRE_ABI, type, bytes, seq, fd, nfd);
}

int wire_refuse_other(int sock, const struct wire_head *ask, const char *text)
{
	struct wire_refuse r = { .code = -EPROTO };

	snprintf(r.text, sizeof r.text, "%s", text);
	return send_as(sock, &r, ask->abi, WIRE_REFUSE, sizeof r, ask->seq, NULL, 0);
}

static bool is_refusal(const void *msg, size_t bytes)
{
	const struct wire_head *head = msg;

	return bytes >= offsetof(struct wire_refuse, text) && head->type == WIRE_REFUSE;
}

int wire_refusal(const void *msg, uint32_t bytes, struct ckpt_err *err)
{
	const struct wire_refuse *r = msg;
	size_t most = bytes - offsetof(struct wire_refuse, text);

	return ckpt_error(err, r->code < 0 && r->code > -4096 ? r->code : -EPROTO, "%.*s",
			  (int)strnlen(r->text, most), r->text);
}

static int take_fds(struct msghdr *m, int *ret_fd, int *ret_nfd)
{
	int rc = m->msg_flags & (MSG_CTRUNC | MSG_TRUNC) ? -EPROTO : 0;

	*ret_nfd = 0;
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		size_t n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		for (size_t i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
			if (*ret_nfd < WIRE_FDS_MAX) {
				ret_fd[(*ret_nfd)++] = fd;
			} else {
				(void)close(fd);
				rc = -EPROTO;
			}
		}
	}
	return rc;
}

int wire_recv(int sock, void *buf, uint32_t bytes, int *ret_fd, int *ret_nfd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * WIRE_FDS_MAX * 2)];
		struct cmsghdr align;
	} control;
	struct iovec iov = { .iov_base = buf, .iov_len = bytes };
	struct msghdr m = { .msg_iov = &iov,
			    .msg_iovlen = 1,
			    .msg_control = control.buf,
			    .msg_controllen = sizeof control.buf };
	struct wire_head *head = buf;
	ssize_t n;
	int rc;

	for (int i = 0; i < WIRE_FDS_MAX; i++)
		ret_fd[i] = -1;
	*ret_nfd = 0;
	do
		n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return errno == ECONNRESET ? 0 : -errno;
	rc = take_fds(&m, ret_fd, ret_nfd);
	if (rc == 0 && n == 0)
		return 0;
	if ((size_t)n < sizeof *head || head->magic != WIRE_MAGIC) {
		rc = -EPROTO;
	} else if (is_refusal(buf, (size_t)n)) {
		wire_close_fds(ret_fd, *ret_nfd);
		*ret_nfd = 0;
		return (int)n;
	} else if (head->abi != WIRE_ABI) {
		rc = -EPROTONOSUPPORT;
	} else if (head->bytes != (uint64_t)n) {
		rc = -EPROTO;
	}
	if (rc < 0) {
		wire_close_fds(ret_fd, *ret_nfd);
		*ret_nfd = 0;
		return rc;
	}
	return (int)n;
}

static bool string_terminated(const char *s, size_t bytes)
{
	return memchr(s, 0, bytes) != NULL;
}

#define REQUEST(X, NAME, WHO, FD, ...)                                                 \
	{                                                                              \
		WIRE_##X, WHO, sizeof(struct wire_##NAME), FD, FD, { __VA_ARGS__ }, #X \
	}
#define ANSWER(X, NAME, FD_MIN, FD_MAX)                                                      \
	{                                                                                    \
		WIRE_##X, WIRE_DAEMON, sizeof(struct wire_##NAME), FD_MIN, FD_MAX, { 0 }, #X \
	}
static const struct wire_kind kinds[] = {
	REQUEST(HELLO, hello, WIRE_RANK, 1, WIRE_WELCOME),
	REQUEST(SEGMENT, segment, WIRE_RANK, 1, WIRE_OK),
	REQUEST(ADOPT, adopt, WIRE_RANK, 1, WIRE_OK),
	REQUEST(DECLARE, declare, WIRE_RANK, 1, WIRE_SEALED),
	REQUEST(RESTORE, restore, WIRE_RANK, 0, WIRE_RESTORED, WIRE_LANDED),
	REQUEST(LAND, land, WIRE_RANK, 0, WIRE_RESTORED, WIRE_LANDED),
	REQUEST(LIST, list, WIRE_RANK, 0, WIRE_LISTED),
	/* the directory, if it could be opened */
	{ WIRE_SEED, WIRE_RANK, sizeof(struct wire_seed), 0, 1, { WIRE_OK }, "SEED" },
	REQUEST(KEEP, keep, WIRE_RANK, 0, WIRE_OK),
	REQUEST(STEPS, steps, WIRE_RANK, 0, WIRE_STEPS_ARE),
	REQUEST(BYE, plain, WIRE_RANK, 0, WIRE_OK),
	REQUEST(FRESH, plain, WIRE_RANK, 0, WIRE_OK),
	REQUEST(CLAIM, plain, WIRE_RANK, 0, WIRE_CLAIMED),
	REQUEST(CONTROL, plain, WIRE_CONTROLLER, 0, WIRE_OK),
	REQUEST(STATUS, plain, WIRE_CONTROLLER, 0, WIRE_STATUS_IS),
	REQUEST(TRIGGER, trigger, WIRE_CONTROLLER, 0, WIRE_TRIGGERED),
	/* WIRE_TO brings a directory */
	{ WIRE_DRAIN, WIRE_CONTROLLER, sizeof(struct wire_drain), 0, 1, { WIRE_DRAINED }, "DRAIN" },
	REQUEST(FORGET, forget, WIRE_CONTROLLER, 0, WIRE_FORGOTTEN),
	ANSWER(WELCOME, welcome, 3, 3),
	ANSWER(OK, ok, 0, 0),
	ANSWER(SEALED, sealed, 2,
	       WIRE_SLOTS_MAX + 1), /* each slot, and rows where there are some */
	ANSWER(RESTORED, restored, 1, 1),
	ANSWER(LANDED, landed, 0, 2), /* the first one brings both windows */
	ANSWER(LISTED, listed, 1, 1),
	ANSWER(CLAIMED, claimed, 0, 0),
	ANSWER(STEPS_ARE, steps_are, 0, 0),
	ANSWER(STATUS_IS, status_is, 1, 1),
	ANSWER(TRIGGERED, triggered, 0, 0),
	ANSWER(DRAINED, drained, 0, 0),
	ANSWER(FORGOTTEN, forgotten, 0, 0),
};

const struct wire_kind *wire_kind(uint32_t type)
{
	for (size_t i = 0; i < ARRAY_LEN(kinds); i++)
		if (kinds[i].type == type)
			return &kinds[i];
	return NULL;
}

/* Has it the size and the descriptors of its type? NULL: no, or there is no such type. */
static const struct wire_kind *kind_check(const void *msg, uint32_t bytes, int nfd)
{
	const struct wire_head *head = msg;
	const struct wire_kind *k = bytes < sizeof *head ? NULL : wire_kind(head->type);

	return k && k->bytes == bytes && nfd >= k->fd_min && nfd <= k->fd_max ? k : NULL;
}

static bool drain_fits(const struct wire_drain *d, int nfd)
{
	return d->flags <= (WIRE_TO | WIRE_COPY) && d->flags != WIRE_COPY &&
	       nfd == (int)(d->flags & WIRE_TO) && !d->pad && (d->job || !nfd);
}

static bool seed_fits(const struct wire_seed *s, int nfd)
{
	return (s->error == 0) == (nfd == 1) && s->error <= INT32_MAX &&
	       string_terminated(s->path, sizeof s->path);
}

int wire_request_check(const void *msg, uint32_t bytes, int nfd)
{
	const struct wire_kind *k = kind_check(msg, bytes, nfd);
	bool good = k && k->sender != WIRE_DAEMON;

	if (good && k->type == WIRE_DRAIN)
		good = drain_fits(msg, nfd);
	if (good && k->type == WIRE_HELLO)
		good = string_terminated(((const struct wire_hello *)msg)->job,
					 sizeof((struct wire_hello *)0)->job);
	if (good && k->type == WIRE_SEED)
		good = seed_fits(msg, nfd);
	if (good && k->type == WIRE_KEEP)
		good = string_terminated(((const struct wire_keep *)msg)->rules,
					 sizeof((struct wire_keep *)0)->rules);
	if (good && k->type == WIRE_RESTORE)
		good = string_terminated(((const struct wire_restore *)msg)->only,
					 sizeof((struct wire_restore *)0)->only);
	return good ? 0 : -EPROTO;
}

static bool drained_fits(const struct wire_drained *d)
{
	return d->code <= 0 && (d->code < 0) == (d->failed > 0) &&
	       string_terminated(d->text, sizeof d->text);
}

static bool sealed_fits(const struct wire_sealed *m, int nfd)
{
	return m->nslot >= 2 && m->nslot <= WIRE_SLOTS_MAX && nfd == (int)m->nslot + (m->nrow > 0);
}

int wire_answer_check(uint32_t ask, const void *msg, uint32_t bytes, int nfd)
{
	const struct wire_kind *asked = wire_kind(ask), *k;
	bool good;

	if (is_refusal(msg, bytes))
		return nfd ? -EPROTO : 0;
	k = kind_check(msg, bytes, nfd);
	good = k && asked && (k->type == asked->answer[0] || k->type == asked->answer[1]);
	if (good && k->type == WIRE_DRAINED)
		good = drained_fits(msg);
	if (good && k->type == WIRE_SEALED)
		good = sealed_fits(msg, nfd);
	return good ? 0 : -EPROTO;
}

static bool row_inside(uint64_t at, const struct wire_row *r, uint64_t pitch, uint64_t bytes)
{
	uint64_t more, end;

	return ckpt_mul(r->rows - 1, pitch, &more) == 0 && ckpt_add(at, more, &end) == 0 &&
	       ckpt_add(end, r->width, &end) == 0 && end <= bytes;
}

static bool turn_check(const struct wire_row *r)
{
	return r->flags & WIRE_ROW_REPLICA ? r->flags == (WIRE_ROW_CLIENT | WIRE_ROW_REPLICA) &&
						     r->turn < WIRE_REPLICA_TURNS
					   : r->turn == 0;
}

int wire_row_check(const struct wire_row *r, const uint64_t *segment_bytes, uint32_t nsegment,
		   uint64_t slot_bytes)
{
	bool own = r->flags & WIRE_ROW_CLIENT;
	uint32_t segment = WIRE_ROW_SEGMENT(r->src);

	return r->rows && r->width && (own || segment < nsegment) && turn_check(r) &&
			       row_inside(own ? r->src : WIRE_ROW_OFF(r->src), r, r->src_pitch,
					  own ? WIRE_OWN_BYTES : segment_bytes[segment]) &&
			       row_inside(r->dst, r, r->dst_pitch, slot_bytes)
		       ? 0
		       : -EPROTO;
}

const char *wire_skip_text(uint32_t reason)
{
	static const char *const text[WIRE_SKIPS] = {
		[WIRE_SKIP_FULL] =
			"every slot holds a step that is being copied or written, or the "
			"newest one: raise persist_every or slots, or use a faster store",
		[WIRE_SKIP_UNREADY] =
			"the slots are not in memory yet, or not every rank has called "
			"ckpt_seal after the newest declaration",
		[WIRE_SKIP_LATE] = "this rank marks steps for which the other ranks no longer wait",
		[WIRE_SKIP_COPYING] =
			"the library was still copying the memory of the step before: use "
			"ckpt_alloc, or call ckpt_guard",
		[WIRE_SKIP_DRAINING] = "ckptd is stopping",
		[WIRE_SKIP_DETACHED] = "no ckptd is attached: start one",
		[WIRE_SKIP_BLOB] =
			"a rank had no state of the step, or could not copy it: the log of that "
			"rank says why",
		[WIRE_SKIP_DEVICE] = "its stream was being captured into a CUDA graph, or its CUDA "
				     "device has failed",
	};

	return reason < WIRE_SKIPS && text[reason] ? text[reason] : "the reason is unknown";
}

/* --- the report --- */
uint64_t wire_report_bytes(uint32_t njob, uint32_t nrank, uint32_t nstep, uint32_t naverage)
{
	return sizeof(struct wire_report_head) + njob * (uint64_t)sizeof(struct wire_report_job) +
	       nrank * (uint64_t)sizeof(struct wire_report_rank) +
	       nstep * (uint64_t)sizeof(struct wire_report_step) +
	       naverage * (uint64_t)sizeof(struct wire_report_average);
}

static bool report_job_good(const struct wire_report_job *j)
{
	return string_terminated(j->name, sizeof j->name) &&
	       string_terminated(j->store, sizeof j->store) &&
	       string_terminated(j->error, sizeof j->error) &&
	       string_terminated(j->failing, sizeof j->failing) &&
	       string_terminated(j->drift, sizeof j->drift) &&
	       string_terminated(j->device, sizeof j->device) &&
	       string_terminated(j->policy, sizeof j->policy) &&
	       string_terminated(j->policy_by, sizeof j->policy_by) &&
	       j->policy_from <= WIRE_POLICY_UNREAD && j->launch <= WIRE_ENDED &&
	       j->attached <= j->world && j->used <= j->held;
}

static bool report_step_good(const struct wire_report_step *s)
{
	return s->state <= WIRE_THINNED && s->code <= 0 && s->written <= s->total &&
	       string_terminated(s->text, sizeof s->text);
}

static bool report_average_good(const struct wire_report_average *a)
{
	return string_terminated(a->name, sizeof a->name) &&
	       string_terminated(a->schedule, sizeof a->schedule) &&
	       string_terminated(a->worst_name, sizeof a->worst_name) &&
	       string_terminated(a->convex_name, sizeof a->convex_name) && a->gate < WIRE_GATES;
}

bool wire_average_is_bad(const struct wire_report_average *a)
{
	return a->nan || a->inf || a->far || a->convex_broken || a->flags & WIRE_AVERAGE_MIXED;
}

int wire_report_check(const void *p, uint64_t bytes, struct wire_report *ret, struct ckpt_err *err)
{
	const struct wire_report_head *h = p;

	if (bytes < sizeof *h || h->magic != WIRE_MAGIC || h->njob > WIRE_REPORT_JOBS_MAX ||
	    h->nrank > WIRE_REPORT_RANKS_MAX || h->nstep > WIRE_REPORT_STEPS_MAX ||
	    h->naverage > WIRE_REPORT_AVERAGES_MAX ||
	    wire_report_bytes(h->njob, h->nrank, h->nstep, h->naverage) != bytes ||
	    !string_terminated(h->version, sizeof h->version))
		return ckpt_error(err, -EPROTO, "the daemon's report has an unknown structure");
	ret->head = h;
	ret->job = (const struct wire_report_job *)(h + 1);
	ret->rank = (const struct wire_report_rank *)(ret->job + h->njob);
	ret->step = (const struct wire_report_step *)(ret->rank + h->nrank);
	ret->average = (const struct wire_report_average *)(ret->step + h->nstep);
	for (uint32_t i = 0; i < h->njob; i++)
		if (!report_job_good(&ret->job[i]))
			return ckpt_error(err, -EPROTO,
					  "job %u of the daemon's report is malformed", i);
	for (uint32_t i = 0; i < h->nrank; i++)
		if (ret->rank[i].job >= h->njob || ret->rank[i].state > WIRE_DETACHED ||
		    (i && ret->rank[i].job < ret->rank[i - 1].job))
			return ckpt_error(err, -EPROTO,
					  "rank %u of the daemon's report is malformed", i);
	for (uint32_t i = 0; i < h->nstep; i++)
		if (ret->step[i].job >= h->njob || !report_step_good(&ret->step[i]) ||
		    (i && ret->step[i].job < ret->step[i - 1].job))
			return ckpt_error(err, -EPROTO,
					  "step %u of the daemon's report is malformed", i);
	for (uint32_t i = 0; i < h->naverage; i++)
		if (ret->average[i].job >= h->njob || !report_average_good(&ret->average[i]) ||
		    (i && ret->average[i].job < ret->average[i - 1].job))
			return ckpt_error(err, -EPROTO,
					  "average %u of the daemon's report is malformed", i);
	return 0;
}

int wire_bell_check(int fd, struct ckpt_err *err)
{
	char path[64], what[64] = "";
	int flags = fcntl(fd, F_GETFL);
	struct stat st;
	ssize_t n;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	n = readlink(path, what, sizeof what - 1);
	/* Without /proc: of what has no type in its mode, none raises a signal or waits when it is
	 * non-blocking. */
	if (flags < 0 || !(flags & O_NONBLOCK) || (flags & O_ACCMODE) != O_RDWR ||
	    fstat(fd, &st) < 0 || (st.st_mode & S_IFMT) ||
	    (n > 0 && strcmp(what, "anon_inode:[eventfd]") != 0))
		return ckpt_error(
			err, -EPROTO,
			"the doorbell that was received is not an eventfd, or it can block its writer");
	return 0;
}

static int map_sealed(int fd, uint64_t bytes, int want, int prot, void **ret_ptr,
		      struct ckpt_err *err)
{
	int seals = fcntl(fd, F_GET_SEALS);
	struct stat st;
	void *p;
	int rc;

	if ((seals < 0 || (seals & want) != want) && !MUTANT(SEALS_UNCHECKED))
		return ckpt_error(
			err, -EPROTO,
			"a memfd was received without the seals that keep it from shrinking");
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < 0 ||
	    (uint64_t)st.st_size != bytes || bytes == 0)
		return ckpt_error(err, -EPROTO,
				  "a memfd is not %" PRIu64
				  " bytes long, although its message says so",
				  bytes);
	rc = pages_map(fd, bytes, prot, &p);
	if (rc < 0)
		return ckpt_error_errno(err, -rc, "cannot map %" PRIu64 " bytes of shared memory",
					bytes);
	*ret_ptr = p;
	return 0;
}

int wire_map(int fd, uint64_t bytes, int read_only, void **ret_ptr, struct ckpt_err *err)
{
	return map_sealed(fd, bytes, F_SEAL_SHRINK | F_SEAL_GROW | (read_only ? F_SEAL_WRITE : 0),
			  read_only ? PROT_READ : PROT_READ | PROT_WRITE, ret_ptr, err);
}

/* To the kernel a memfd is a file, and one beyond the file size limit ends the process by SIGXFSZ:
 * this is a trainer, so the limit is checked first. */
static int memfd_open(const char *name, uint64_t bytes, struct ckpt_err *err)
{
	struct rlimit limit;
	int fd;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && bytes > limit.rlim_cur)
		return ckpt_error(err, -EFBIG,
				  "%" PRIu64
				  " bytes of shared memory are more than this process's file "
				  "size limit of %" PRIu64 ": raise it (ulimit -f unlimited)",
				  bytes, (uint64_t)limit.rlim_cur);
	if (bytes > INT64_MAX)
		return ckpt_error(err, -EFBIG,
				  "%" PRIu64 " bytes of shared memory are not possible", bytes);
	fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
	return fd < 0 ? ckpt_error_errno(err, errno, "cannot create shared memory") : fd;
}

int wire_memfd(const char *name, uint64_t bytes, int *ret_fd, struct ckpt_err *err)
{
	cleanup_close int fd = memfd_open(name, bytes, err);

	if (fd < 0)
		return fd;
	if (ftruncate(fd, (off_t)bytes) < 0)
		return ckpt_error_errno(err, errno,
					"cannot size shared memory to %" PRIu64 " bytes", bytes);
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) < 0)
		return ckpt_error_errno(err, errno, "cannot seal shared memory");
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int wire_memfd_map(const char *name, uint64_t bytes, int *ret_fd, void **ret_ptr,
		   struct ckpt_err *err)
{
	int rc = wire_memfd(name, bytes, ret_fd, err);

	if (rc == 0 && (rc = wire_map(*ret_fd, bytes, 0, ret_ptr, err)) < 0)
		(void)close(TAKE_FD(*ret_fd));
	return rc;
}

int wire_memfd_of(const char *name, const void *p, uint64_t bytes, int *ret_fd,
		  struct ckpt_err *err)
{
	cleanup_close int fd = memfd_open(name, bytes, err);

	if (fd < 0)
		return fd;
	for (uint64_t at = 0; at < bytes;) {
		ssize_t n = write(fd, (const uint8_t *)p + at, bytes - at);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return ckpt_error_errno(err, n < 0 ? errno : ENOSPC,
						"cannot write to shared memory");
		at += (uint64_t)n;
	}
	if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL) < 0)
		return ckpt_error_errno(err, errno, "cannot seal shared memory");
	*ret_fd = TAKE_FD(fd);
	return 0;
}

int wire_socket_path(char *buf, int make, struct ckpt_err *err)
{
	const size_t max = sizeof((struct sockaddr_un *)0)->sun_path;
	unsigned uid = (unsigned)geteuid();
	char dir[64];
	struct stat st;

	snprintf(dir, sizeof dir, "/run/user/%u", uid);
	if (stat(dir, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid)
		snprintf(dir, sizeof dir, "/run/user/%u/ckptd", uid);
	else
		snprintf(dir, sizeof dir, "/tmp/ckptd-%u", uid);
	if (make && mkdir(dir, 0700) < 0 && errno != EEXIST)
		return ckpt_error_errno(err, errno, "cannot make %s for the socket", dir);
	if (lstat(dir, &st) == 0 &&
	    (!S_ISDIR(st.st_mode) || st.st_uid != uid || (st.st_mode & 077)))
		return ckpt_error(
			err, -EACCES,
			"%s is not a directory that only this user can open (mode 0700): remove it, or use another socket",
			dir);
	snprintf(buf, max, "%s/socket", dir);
	return 0;
}
