/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fakenccl.c - see fakenccl.h. A communicator has a socket to each other rank, in the abstract
 * namespace under a name made of the identifier. A group becomes one function on the stream of its
 * calls, which sends and receives all of it at once. Invariant: memory is read and written on the
 * stream's thread alone, as a GPU's kernel would do it.
 */
#include "tests/fakenccl/fakenccl.h"
#include "ckpt/base/util.h"
#include "ckpt/nccl/nccl_library.h"
#include "tests/fakecuda/fakecuda.h"
#include <dlfcn.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#define EXPORT __attribute__((visibility("default")))
#define MAGIC UINT64_C(0x4c43434e454b4146)
#define PEERS_MAX 64
#define CALLS_MAX 256

enum {
	RC_CUDA = 1,
	RC_SYSTEM = 2,
	RC_INTERNAL = 3,
	RC_ARGUMENT = 4,
	RC_USAGE = 5,
};

struct ncclComm {
	char name[64]; /* of its sockets */
	int rank, n, device;
	int fd[PEERS_MAX];
	pthread_t thread;
	bool joined;
	_Atomic int state; /* ncclResult_t */
	_Atomic int polls; /* that still say ncclInProgress, after a group */
	_Atomic bool aborted;
	_Atomic uint32_t running; /* groups on streams */
	uint64_t group;		  /* number of the next one; the streams' thread's */
	char last[256];
};

struct call {
	struct ncclComm *comm;
	nccl_stream stream;
	uint8_t *at; /* where the host may touch it */
	size_t bytes, done;
	int peer;
	bool out, ended;
	uint64_t head[2];
};

struct group {
	struct ncclComm *comm;
	uint32_t n;
	struct call call[];
};

static _Atomic uint64_t groups_run, comms_there;
static __thread uint32_t depth, ncall;
static __thread struct call call_of_group[CALLS_MAX];
static __thread nccl_rc group_rc;

/* --- the fake driver --- */

static void *driver_library;

static void driver_open(void)
{
	driver_library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!driver_library)
		fprintf(stderr, "fakenccl: needs tests/fakecuda: %s\n", dlerror());
}

static void *driver(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, driver_open);
	return driver_library;
}

static uint8_t *host_address(const void *at)
{
	const struct fakecuda *fake = driver() ? dlsym(driver(), "fakecuda") : NULL;

	return fake ? fake->alias((cuda_ptr)(uintptr_t)at) : NULL;
}

static void *driver_call(const char *name, int version)
{
	cuda_rc (*find)(const char *, void **, int, uint64_t, unsigned *);
	void *p = driver() ? dlsym(driver(), "cuGetProcAddress_v2") : NULL, *fn = NULL;
	unsigned status;

	memcpy(&find, &p, sizeof p);
	return p && find(name, &fn, version, 1, &status) == 0 ? fn : NULL;
}

static cuda_rc launch_host(nccl_stream s, void (*fn)(void *), void *arg)
{
	cuda_rc (*launch)(cuda_stream, void (*)(void *), void *);
	void *p = driver_call("cuLaunchHostFunc", 10000);

	memcpy(&launch, &p, sizeof p);
	return p ? launch(s, fn, arg) : CUDA_NOT_FOUND;
}

/* --- faults --- */

static bool is_fault(const char *variable, int rank, uint64_t round)
{
	const char *v = getenv(variable);
	int r;
	unsigned long long n;

	return v && sscanf(v, "%d:%llu", &r, &n) == 2 && r == rank && n == round;
}

/* 0, or what FAKENCCL_FAIL says of this call. Another value counts anew. */
static nccl_rc fault(const char *symbol)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static char counted[64]; /* the value, whose calls these are */
	static uint64_t calls;
	const char *v = getenv("FAKENCCL_FAIL");
	size_t n = strlen(symbol);
	bool now = false;
	unsigned nth;
	int rc;

	pthread_mutex_lock(&lock);
	if (!v || strncmp(v, counted, sizeof counted - 1) != 0) {
		snprintf(counted, sizeof counted, "%s", v ? v : "");
		calls = 0;
	}
	if (v && strncmp(v, symbol, n) == 0 && sscanf(v + n, ":%u:%d", &nth, &rc) == 2)
		now = ++calls == nth;
	pthread_mutex_unlock(&lock);
	return now ? rc : 0;
}
#define FAULT(symbol)                       \
	do {                                \
		nccl_rc f_ = fault(symbol); \
		if (f_)                     \
			return f_;          \
	} while (0)

static nccl_rc comm_fail(struct ncclComm *c, nccl_rc rc, const char *fmt, int peer, uint64_t a,
			 uint64_t b)
{
	snprintf(c->last, sizeof c->last, fmt, peer, (unsigned long long)a, (unsigned long long)b);
	return rc;
}

/* --- coming up --- */

static socklen_t name_address(const struct ncclComm *c, int rank, struct sockaddr_un *ret)
{
	*ret = (struct sockaddr_un){ .sun_family = AF_UNIX };
	/* the first byte stays 0: it is no file */
	snprintf(ret->sun_path + 1, sizeof ret->sun_path - 1, "%s-%d", c->name, rank);
	return (socklen_t)sizeof *ret;
}

static int peer_connect(struct ncclComm *c, int peer)
{
	struct sockaddr_un a;
	socklen_t len = name_address(c, peer, &a);

	while (!atomic_load(&c->aborted)) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

		if (fd < 0)
			return -1;
		if (connect(fd, (struct sockaddr *)&a, len) == 0 &&
		    send(fd, &c->rank, sizeof c->rank, MSG_NOSIGNAL) == sizeof c->rank) {
			c->fd[peer] = fd;
			return 0;
		}
		(void)close(fd);
		(void)poll(NULL, 0, 1); /* it is not there yet */
	}
	return -1;
}

static int peer_accept(struct ncclComm *c, int listener)
{
	struct pollfd p = { .fd = listener, .events = POLLIN };

	while (!atomic_load(&c->aborted)) {
		int fd, rank;

		if (poll(&p, 1, 5) <= 0)
			continue;
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0 || recv(fd, &rank, sizeof rank, MSG_WAITALL) != sizeof rank ||
		    rank <= c->rank || rank >= c->n || c->fd[rank] >= 0)
			return -1;
		c->fd[rank] = fd;
		return 0;
	}
	return -1;
}

static int peers_find(struct ncclComm *c)
{
	struct sockaddr_un a;
	socklen_t len = name_address(c, c->rank, &a);
	int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), rc = 0;

	if (listener < 0 || bind(listener, (struct sockaddr *)&a, len) < 0 ||
	    listen(listener, PEERS_MAX) < 0)
		rc = -1;
	for (int i = 0; i < c->rank && rc == 0; i++)
		rc = peer_connect(c, i);
	for (int i = c->rank + 1; i < c->n && rc == 0; i++)
		rc = peer_accept(c, listener);
	if (listener >= 0)
		(void)close(listener);
	return rc;
}

static void *comm_come_up(void *arg)
{
	struct ncclComm *c = arg;
	const char *never = getenv("FAKENCCL_INIT");

	if (never && !strcmp(never, "never")) {
		while (!atomic_load(&c->aborted))
			(void)poll(NULL, 0, 1);
		return NULL;
	}
	atomic_store(&c->state, peers_find(c) < 0 ? RC_SYSTEM : NCCL_OK);
	return NULL;
}

static void comm_free(struct ncclComm *c)
{
	if (!c->joined)
		pthread_join(c->thread, NULL);
	for (int i = 0; i < c->n; i++)
		if (c->fd[i] >= 0)
			(void)close(c->fd[i]);
	free(c);
	atomic_fetch_sub(&comms_there, 1);
}

/* --- a group, on its stream --- */

/* Until somebody aborts it, as a kernel does that spins for a peer. */
static void wait_for_abort(const struct ncclComm *c)
{
	while (!atomic_load(&c->aborted))
		(void)poll(NULL, 0, 1);
}

static void peer_lost(struct ncclComm *c, int peer)
{
	if (getenv("FAKENCCL_SILENT"))
		return;
	(void)comm_fail(c, 0, "the connection to rank %d is closed", peer, 0, 0);
	atomic_store(&c->state, NCCL_REMOTE_ERROR);
}

/* The first one of a direction and a peer that has not ended. */
static struct call *call_next(struct group *g, int peer, bool out)
{
	for (uint32_t i = 0; i < g->n; i++)
		if (!g->call[i].ended && g->call[i].peer == peer && g->call[i].out == out)
			return &g->call[i];
	return NULL;
}

/* False: it cannot go on. */
static bool call_move(struct ncclComm *c, struct call *x)
{
	size_t head = sizeof x->head;
	uint8_t *p = x->done < head ? (uint8_t *)x->head + x->done : x->at + (x->done - head);
	size_t left = x->done < head ? head - x->done : head + x->bytes - x->done;
	ssize_t n = 0;

	if (left)
		n = x->out ? send(c->fd[x->peer], p, MIN(left, (size_t)65536),
				  MSG_DONTWAIT | MSG_NOSIGNAL)
			   : recv(c->fd[x->peer], p, MIN(left, (size_t)65536), MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (left && n <= 0) {
		peer_lost(c, x->peer);
		return false;
	}
	x->done += (size_t)n;
	if (!x->out && x->done == head && (x->head[0] != MAGIC || x->head[1] != x->bytes)) {
		(void)comm_fail(c, 0, "rank %d sends %llu bytes where %llu are received", x->peer,
				x->head[1], x->bytes);
		atomic_store(&c->state, RC_INTERNAL);
		return false;
	}
	x->ended = x->done == head + x->bytes;
	return true;
}

static bool group_move(struct group *g)
{
	struct ncclComm *c = g->comm;
	struct pollfd p[PEERS_MAX];
	bool some = false;

	for (int i = 0; i < c->n; i++) {
		struct call *out = call_next(g, i, true), *in = call_next(g, i, false);

		p[i] = (struct pollfd){
			.fd = in || out ? c->fd[i] : -1,
			.events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0)),
		};
		some |= in || out;
	}
	if (!some || poll(p, (nfds_t)c->n, 5) <= 0)
		return some;
	for (int i = 0; i < c->n; i++) {
		struct call *out = call_next(g, i, true), *in = call_next(g, i, false);

		if (p[i].fd < 0 || !p[i].revents)
			continue;
		if ((in && p[i].revents & (POLLIN | POLLHUP | POLLERR) && !call_move(c, in)) ||
		    (out && p[i].revents & (POLLOUT | POLLHUP | POLLERR) && !call_move(c, out))) {
			wait_for_abort(c);
			return false;
		}
	}
	return true;
}

/* To itself: each send has its receive, which ncclGroupEnd has seen. */
static void selves_copy(struct group *g)
{
	struct call *out, *in;

	while ((out = call_next(g, g->comm->rank, true)) &&
	       (in = call_next(g, g->comm->rank, false))) {
		memmove(in->at, out->at, out->bytes);
		in->ended = out->ended = true;
	}
}

static void group_run(void *arg)
{
	struct group *g = arg;
	struct ncclComm *c = g->comm;

	if (is_fault("FAKENCCL_DIE", c->rank, c->group))
		(void)raise(SIGKILL);
	if (is_fault("FAKENCCL_STOP", c->rank, c->group))
		(void)raise(SIGSTOP);
	c->group++;
	selves_copy(g);
	while (!atomic_load(&c->aborted) && group_move(g))
		;
	atomic_fetch_add(&groups_run, !atomic_load(&c->aborted));
	free(g);
	atomic_fetch_sub(&c->running, 1);
}

/* --- the calls --- */

#define DEFINE(symbol, ...)                 \
	EXPORT nccl_rc symbol(__VA_ARGS__); \
	EXPORT nccl_rc symbol(__VA_ARGS__)

DEFINE(ncclGetVersion, int *ret)
{
	const char *v = getenv("FAKENCCL_VERSION");

	FAULT("ncclGetVersion");
	*ret = v ? atoi(v) : 22809;
	return NCCL_OK;
}

DEFINE(ncclGetUniqueId, struct nccl_id *ret)
{
	static _Atomic unsigned number;

	FAULT("ncclGetUniqueId");
	if (getenv("FAKENCCL_WITHOUT_ID"))
		return RC_SYSTEM;
	memset(ret, 0x5a, sizeof *ret);
	snprintf(ret->bytes, 64, "fakenccl-%d-%u-%llx", (int)getpid(), atomic_fetch_add(&number, 1),
		 (unsigned long long)now_ns());
	return NCCL_OK;
}

DEFINE(ncclCommInitRankConfig, nccl_comm *ret, int world, struct nccl_id id, int rank,
       struct nccl_config *config)
{
	cuda_rc (*device_get)(cuda_device *);
	void *p = driver_call("cuCtxGetDevice", 2000);
	struct ncclComm *c;

	FAULT("ncclCommInitRankConfig");
	memcpy(&device_get, &p, sizeof p);
	if (config->magic != NCCL_MAGIC || config->size < sizeof *config ||
	    config->version < NCCL_VERSION_MIN || world < 1 || world > PEERS_MAX || rank < 0 ||
	    rank >= world)
		return RC_ARGUMENT;
	c = calloc(1, sizeof *c);
	if (!c)
		return RC_SYSTEM;
	if (!p || device_get(&c->device)) { /* no context is current */
		free(c);
		return RC_CUDA;
	}
	snprintf(c->name, sizeof c->name, "%.60s", id.bytes);
	c->rank = rank;
	c->n = world;
	for (int i = 0; i < world; i++)
		c->fd[i] = -1;
	atomic_store(&c->state, NCCL_IN_PROGRESS);
	atomic_fetch_add(&comms_there, 1);
	if (pthread_create(&c->thread, NULL, comm_come_up, c)) {
		free(c);
		return RC_SYSTEM;
	}
	*ret = c;
	if (config->blocking == 0)
		return NCCL_IN_PROGRESS;
	pthread_join(c->thread, NULL);
	c->joined = true;
	return atomic_load(&c->state);
}

DEFINE(ncclCommGetAsyncError, nccl_comm c, nccl_rc *ret)
{
	FAULT("ncclCommGetAsyncError");
	if (!c)
		return RC_ARGUMENT;
	*ret = atomic_load(&c->state);
	if (*ret == NCCL_OK && atomic_load(&c->polls) > 0) {
		atomic_fetch_sub(&c->polls, 1);
		*ret = NCCL_IN_PROGRESS;
	}
	return NCCL_OK;
}

DEFINE(ncclGroupStart, void)
{
	FAULT("ncclGroupStart");
	if (!depth++) {
		ncall = 0;
		group_rc = NCCL_OK;
	}
	return NCCL_OK;
}

/* Sends of the rank to itself, minus receives of the same length. */
static nccl_rc selves_check(struct ncclComm *c)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < ncall; i++) {
		const struct call *x = &call_of_group[i];
		uint32_t n = 0, k;

		if (x->peer != c->rank || !x->out)
			continue;
		for (k = 0; k < ncall; k++)
			if (call_of_group[k].peer == c->rank && !call_of_group[k].out && n++ == at)
				break;
		if (k == ncall || call_of_group[k].bytes != x->bytes)
			return comm_fail(c, RC_USAGE,
					 "rank %d: trying to send to self without a matching recv",
					 c->rank, 0, 0);
		at++;
	}
	return NCCL_OK;
}

static nccl_rc group_start(void)
{
	struct ncclComm *c = call_of_group[0].comm;
	struct group *g;
	nccl_rc rc = selves_check(c);

	if (rc)
		return rc;
	g = malloc(sizeof *g + ncall * sizeof *call_of_group);
	if (!g)
		return RC_SYSTEM;
	g->comm = c;
	g->n = ncall;
	memcpy(g->call, call_of_group, ncall * sizeof *call_of_group);
	atomic_fetch_add(&c->running, 1);
	if (launch_host(g->call[0].stream, group_run, g)) {
		atomic_fetch_sub(&c->running, 1);
		free(g);
		return RC_CUDA;
	}
	atomic_store(&c->polls, 2); /* it is queued, a little later */
	return NCCL_IN_PROGRESS;
}

DEFINE(ncclGroupEnd, void)
{
	FAULT("ncclGroupEnd");
	if (!depth || --depth)
		return depth ? NCCL_OK : RC_USAGE;
	if (group_rc)
		return group_rc;
	return ncall ? group_start() : NCCL_OK;
}

static nccl_rc call_add(struct ncclComm *c, const void *at, size_t n, int type, int peer,
			nccl_stream s, bool out)
{
	struct call x = { .comm = c,
			  .stream = s,
			  .at = host_address(at),
			  .bytes = n,
			  .peer = peer,
			  .out = out,
			  .head = { MAGIC, n } };
	nccl_rc rc = NCCL_OK;

	if (!c || type != NCCL_UINT8 || peer < 0 || peer >= c->n || ncall == CALLS_MAX)
		rc = RC_ARGUMENT;
	else if (!x.at)
		rc = comm_fail(c, RC_ARGUMENT, "rank %d: this is no memory of a device", c->rank, 0,
			       0);
	else if (atomic_load(&c->state))
		rc = comm_fail(c, RC_USAGE, "rank %d: the communicator is not ready", c->rank, 0,
			       0);
	else if (ncall && (call_of_group[0].comm != c || call_of_group[0].stream != s))
		rc = RC_USAGE; /* NCCL could; we do not */
	if (rc) {
		group_rc = rc;
		return rc;
	}
	call_of_group[ncall++] = x;
	return NCCL_OK;
}

DEFINE(ncclSend, const void *at, size_t n, int type, int peer, nccl_comm c, nccl_stream s)
{
	nccl_rc rc;

	FAULT("ncclSend");
	rc = ncclGroupStart();
	if (!rc)
		rc = call_add(c, at, n, type, peer, s, true);
	return rc ? (depth--, rc) : ncclGroupEnd();
}

DEFINE(ncclRecv, void *at, size_t n, int type, int peer, nccl_comm c, nccl_stream s)
{
	nccl_rc rc;

	FAULT("ncclRecv");
	rc = ncclGroupStart();
	if (!rc)
		rc = call_add(c, at, n, type, peer, s, false);
	return rc ? (depth--, rc) : ncclGroupEnd();
}

/* What is left in a socket was sent and not received. */
DEFINE(ncclCommFinalize, nccl_comm c)
{
	FAULT("ncclCommFinalize");
	while (atomic_load(&c->running))
		(void)poll(NULL, 0, 1);
	for (int i = 0; i < c->n; i++) {
		char byte;

		if (c->fd[i] >= 0 && recv(c->fd[i], &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0)
			return comm_fail(c, RC_USAGE, "rank %d has sent what was not received", i,
					 0, 0);
	}
	return NCCL_OK;
}

DEFINE(ncclCommDestroy, nccl_comm c)
{
	FAULT("ncclCommDestroy");
	atomic_store(&c->aborted, true);
	while (atomic_load(&c->running))
		(void)poll(NULL, 0, 1);
	comm_free(c);
	return NCCL_OK;
}

DEFINE(ncclCommAbort, nccl_comm c)
{
	FAULT("ncclCommAbort");
	return ncclCommDestroy(c);
}

DEFINE(ncclCommCount, const nccl_comm c, int *ret)
{
	*ret = c->n;
	return NCCL_OK;
}

DEFINE(ncclCommUserRank, const nccl_comm c, int *ret)
{
	*ret = c->rank;
	return NCCL_OK;
}

DEFINE(ncclCommCuDevice, const nccl_comm c, int *ret)
{
	*ret = c->device;
	return NCCL_OK;
}

EXPORT const char *ncclGetErrorString(nccl_rc rc);
EXPORT const char *ncclGetErrorString(nccl_rc rc)
{
	static const char *const text[] = { "no error",
					    "unhandled cuda error",
					    "unhandled system error",
					    "internal error",
					    "invalid argument",
					    "invalid usage",
					    "remote process exited or there was a network error",
					    "NCCL operation in progress" };

	return rc >= 0 && rc < (int)ARRAY_LEN(text) ? text[rc] : "unknown result code";
}

EXPORT const char *ncclGetLastError(nccl_comm c);
EXPORT const char *ncclGetLastError(nccl_comm c)
{
	return c ? c->last : "";
}

static uint64_t groups_count(void)
{
	return atomic_load(&groups_run);
}

static uint64_t comms_count(void)
{
	return atomic_load(&comms_there);
}

EXPORT extern const struct fakenccl fakenccl;
EXPORT const struct fakenccl fakenccl = { groups_count, comms_count };
