// SPDX-License-Identifier: Apache-2.0
// nccl_transport.c - see nccl_transport.h. Called by nccl_share.c.
// Invariant: between two calls of `agree` nothing can keep a rank longer than its deadline, and no
// rank leaves nccl_open before it has agreed as often as all others.
#include "ckpt/nccl/nccl_transport.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/device/cuda_driver.h"
#include "ckpt/nccl/nccl_library.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>

#define ID_WORDS (NCCL_ID_BYTES / 8)
#define PEERS_SAID 8u /* in a sentence */

enum ready { NOT_READY, READY, HAS_COMM }; /* what ranks agree on: the least of all */

struct op {
	uint64_t at, bytes;
	uint32_t peer;
	bool out;
};

struct nccl_transport {
	struct spread_transport t;
	struct nccl_opts o;
	const struct nccl_calls *nc;
	const struct cuda_calls *cu;
	cuda_device device;
	cuda_ctx ctx;
	cuda_stream stream, copies; /* the groups'; between tensors and windows */
	cuda_event event, copied;
	cuda_ptr staging;
	uint64_t staging_bytes;
	nccl_comm comm;
	bool made; /* the communicator is our own */
	uint32_t n, cap;
	struct op *op; /* of this round */
	/* The allocation that was met last: [lo, hi) is memory of the device of that number. */
	uint64_t lo, hi;
	int number;
};

static struct nccl_transport *of(struct spread_transport *t)
{
	return (struct nccl_transport *)t;
}

/* --- errors --- */

static int cuda_fail(const struct nccl_transport *k, cuda_rc rc, const char *what,
		     struct ckpt_err *err)
{
	char name[32];

	return ckpt_error(err, rc == CUDA_OUT_OF_MEMORY ? -ENOMEM : -EIO,
			  "rank %u, CUDA device %u: %s: %s", k->o.rank, k->o.device, what,
			  cuda_error_name(k->cu, rc, name));
}

static int nccl_fail(const struct nccl_transport *k, nccl_rc rc, const char *what,
		     struct ckpt_err *err)
{
	const char *more = k->nc->last_error(k->comm);

	return ckpt_error(err, rc == NCCL_REMOTE_ERROR ? -ECONNRESET : -EIO,
			  "rank %u, %s: NCCL: %s%s%.300s", k->o.rank, what, k->nc->error_string(rc),
			  more && *more ? ": " : "", more ? more : "");
}

/* --- waiting --- */

static void breathe(uint64_t since)
{
	if (elapsed_ns(since, now_ns()) > NS_PER_MS)
		(void)poll(NULL, 0, 1);
}

/* Waits until NCCL has ended its last call: 0, or NCCL's error; NCCL_IN_PROGRESS: it had not by the
 * deadline. */
static nccl_rc comm_wait(const struct nccl_transport *k, uint64_t deadline_ns)
{
	uint64_t since = now_ns();
	nccl_rc state = NCCL_OK, rc;

	for (;;) {
		rc = k->nc->async_error(k->comm, &state);
		if (rc || state != NCCL_IN_PROGRESS)
			return rc ? rc : state;
		if (now_ns() >= deadline_ns)
			return NCCL_IN_PROGRESS;
		breathe(since);
	}
}

/* What the thread had before it entered our context. */
struct entered {
	cuda_ctx ctx;
	unsigned mode;
};

/* Until context_leave no call of this thread ends a capture of the trainer's streams. */
static int context_enter(const struct nccl_transport *k, struct entered *ret, struct ckpt_err *err)
{
	cuda_rc rc = k->cu->ctx_current(&ret->ctx);

	if (!rc && ret->ctx != k->ctx)
		rc = k->cu->ctx_set(k->ctx);
	ret->mode = CUDA_CAPTURE_RELAXED;
	if (!rc)
		rc = k->cu->capture_mode(&ret->mode);
	return rc ? cuda_fail(k, rc, "its context cannot be made current", err) : 0;
}

static void context_leave(const struct nccl_transport *k, const struct entered *was)
{
	unsigned mode = was->mode;

	(void)k->cu->capture_mode(&mode);
	if (was->ctx != k->ctx)
		(void)k->cu->ctx_set(was->ctx);
}

/* --- rounds --- */

/* A round has begun: the group of it waits for the copies that are queued by now, and not for those
 * of the rounds beside it, which are queued until round_end. */
static int copies_note(const struct nccl_transport *k, struct ckpt_err *err)
{
	struct entered was;
	cuda_rc rc;
	int e = context_enter(k, &was, err);

	if (e < 0)
		return e;
	rc = k->cu->event_record(k->copied, k->copies);
	if (!rc && !MUTANT(NCCL_COPY_UNORDERED))
		rc = k->cu->stream_wait(k->stream, k->copied, 0);
	context_leave(k, &was);
	return rc ? cuda_fail(k, rc, "a round behind its copies", err) : 0;
}

static int op_add(struct nccl_transport *k, const struct op *op, struct ckpt_err *err)
{
	int rc = k->n ? 0 : copies_note(k, err);

	assert(op->peer < k->t.world && op->peer != k->t.rank);
	if (rc < 0)
		return rc;
	if (!ARRAY_GROW(k->op, k->n, k->cap))
		return ckpt_error(err, -ENOMEM, "no memory for a round");
	k->op[k->n++] = *op;
	return 0;
}

static int call_send(struct spread_transport *t, uint32_t peer, uint64_t from, uint64_t bytes,
		     struct ckpt_err *err)
{
	return op_add(of(t), &(struct op){ from, bytes, peer, true }, err);
}

static int call_recv(struct spread_transport *t, uint32_t peer, uint64_t to, uint64_t bytes,
		     struct ckpt_err *err)
{
	return op_add(of(t), &(struct op){ to, bytes, peer, false }, err);
}

/* "ranks 1, 2, 5": NCCL does not report for which rank it waits. */
static void peers_print(const struct nccl_transport *k, char *buf, size_t bytes)
{
	struct text x = text_in(buf, bytes);
	uint32_t said = 0;

	for (uint32_t i = 0; i < k->n; i++) {
		bool before = false;

		for (uint32_t j = 0; j < i && !before; j++)
			before = k->op[j].peer == k->op[i].peer;
		if (before)
			continue;
		if (said++ == PEERS_SAID) {
			text_add(&x, ", ...");
			return;
		}
		text_add(&x, "%s%u", said > 1 ? ", " : "", k->op[i].peer);
	}
}

static int round_late(const struct nccl_transport *k, struct ckpt_err *err)
{
	char peers[128] = "";

	peers_print(k, peers, sizeof peers);
	return ckpt_error(err, -ETIMEDOUT,
			  "rank %u, round %" PRIu64 ": NCCL: the time is over; of the ranks that "
			  "it exchanges with (%s), one has ended or is late",
			  k->o.rank, k->t.round, peers);
}

static int round_fail(const struct nccl_transport *k, nccl_rc rc, struct ckpt_err *err)
{
	char what[32];

	if (rc == NCCL_IN_PROGRESS)
		return round_late(k, err);
	snprintf(what, sizeof what, "round %" PRIu64, k->t.round);
	return nccl_fail(k, rc, what, err);
}

/* Until the stream has come to its end: whatever NCCL has queued there, and the copies. */
static int stream_wait(struct nccl_transport *k, uint64_t deadline_ns, struct ckpt_err *err)
{
	uint64_t since = now_ns();
	cuda_rc done = k->cu->event_record(k->event, k->stream);

	while (!done) {
		nccl_rc rc;

		done = k->cu->event_query(k->event);
		if (done != CUDA_NOT_READY)
			break;
		rc = k->comm ? comm_wait(k, deadline_ns) : NCCL_OK; /* none: aborted */
		if (rc)
			return round_fail(k, rc, err);
		if (now_ns() >= deadline_ns)
			return round_late(k, err);
		breathe(since);
		done = CUDA_OK;
	}
	return done ? cuda_fail(k, done, "a round", err) : 0;
}

static nccl_rc group_run(const struct nccl_transport *k)
{
	nccl_rc rc = k->nc->group_start(), end;

	if (rc)
		return rc;
	for (uint32_t i = 0; i < k->n && (!rc || rc == NCCL_IN_PROGRESS); i++) {
		const struct op *x = &k->op[i];
		void *at = (void *)(uintptr_t)x->at;

		rc = x->out ? k->nc->send(at, x->bytes, NCCL_UINT8, (int)x->peer, k->comm,
					  k->stream)
			    : k->nc->recv(at, x->bytes, NCCL_UINT8, (int)x->peer, k->comm,
					  k->stream);
	}
	end = k->nc->group_end();
	return rc && rc != NCCL_IN_PROGRESS ? rc : end;
}

static int round_run(struct nccl_transport *k, uint64_t deadline_ns, struct ckpt_err *err)
{
	nccl_rc rc = k->n ? group_run(k) : NCCL_OK;

	if (rc == NCCL_IN_PROGRESS)
		rc = comm_wait(k, deadline_ns);
	return rc ? round_fail(k, rc, err) : stream_wait(k, deadline_ns, err);
}

static int call_round_end(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err)
{
	struct nccl_transport *k = of(t);
	struct entered was;
	int rc;

	if (!k->comm)
		return ckpt_error(err, -ECONNRESET, "rank %u: the exchange was aborted", k->o.rank);
	rc = context_enter(k, &was, err);
	if (rc < 0)
		return rc;
	rc = round_run(k, deadline_ns, err);
	context_leave(k, &was);
	if (rc == 0) {
		k->n = 0;
		t->round++;
	}
	return rc;
}

/* NCCL ends its kernels that wait for a peer, and frees the communicator. */
static void call_abort(struct spread_transport *t)
{
	struct nccl_transport *k = of(t);
	struct entered was;
	int entered;

	if (!k->comm)
		return;
	entered = context_enter(k, &was, NULL);
	(void)k->nc->abort(TAKE(k->comm));
	if (entered == 0)
		context_leave(k, &was);
}

int nccl_settle(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err)
{
	struct nccl_transport *k = of(t);
	struct entered was;
	int rc = context_enter(k, &was, err);
	cuda_rc late;

	if (rc < 0)
		return rc;
	late = k->cu->event_record(k->copied, k->copies);
	if (!late)
		late = k->cu->stream_wait(k->stream, k->copied, 0);
	rc = late ? cuda_fail(k, late, "copies behind the rounds", err)
		  : stream_wait(k, deadline_ns, err);
	context_leave(k, &was);
	return rc;
}

/* --- staging --- */

/* The driver reports whether an address is on a device, and where that allocation ends. */
static bool is_of_device(struct nccl_transport *k, uint64_t at)
{
	unsigned type = 0, attr[] = { CUDA_POINTER_MEMORY_TYPE, CUDA_POINTER_RANGE_START,
				      CUDA_POINTER_RANGE_BYTES, CUDA_POINTER_DEVICE };
	cuda_ptr start = 0;
	size_t bytes = 0;
	int number = -1;
	void *ret[] = { &type, &start, &bytes, &number };

	if (at >= k->lo && at < k->hi)
		return true;
	if (k->cu->pointer_attrs(ARRAY_LEN(attr), attr, ret, at) || type != CUDA_MEMORY_DEVICE)
		return false;
	k->number = number;
	k->lo = bytes ? start : at;
	k->hi = bytes ? start + bytes : at + 1;
	return true;
}

static int lines_carry(void *arg, const struct spread_lines *l, struct ckpt_err *err)
{
	struct nccl_transport *k = arg;
	struct cuda_copy2d c = { .width = l->width,
				 .height = l->rows,
				 .src_pitch = l->rows > 1 ? l->from_pitch : l->width,
				 .dst_pitch = l->rows > 1 ? l->to_pitch : l->width };
	struct entered was;
	cuda_rc rc;
	int e = context_enter(k, &was, err);

	if (e < 0)
		return e;
	if (is_of_device(k, l->from)) {
		c.src_type = CUDA_MEMORY_DEVICE;
		c.src_device = l->from;
	} else {
		c.src_type = CUDA_MEMORY_HOST;
		c.src_host = (const void *)(uintptr_t)l->from;
	}
	if (is_of_device(k, l->to)) {
		c.dst_type = CUDA_MEMORY_DEVICE;
		c.dst_device = l->to;
	} else {
		c.dst_type = CUDA_MEMORY_HOST;
		c.dst_host = (void *)(uintptr_t)l->to;
	}
	if (l->rows == 1 && c.src_type == CUDA_MEMORY_DEVICE && c.dst_type == CUDA_MEMORY_DEVICE)
		rc = k->cu->copy_on(l->to, l->from, l->width, k->copies);
	else
		rc = k->cu->copy_2d(&c, k->copies);
	context_leave(k, &was);
	return rc ? cuda_fail(k, rc, "a copy between a tensor and a window", err) : 0;
}

/* NCCL reads a tensor of this device where it lies. It does not write there: if a group is aborted
 * and does not end, only windows are in danger. */
static bool sends_from(void *arg, uint64_t from, uint64_t bytes)
{
	struct nccl_transport *k = arg;
	struct entered was;
	bool is;

	if (context_enter(k, &was, NULL) < 0)
		return false;
	is = is_of_device(k, from) && k->number == (int)k->o.device && bytes <= k->hi - from;
	context_leave(k, &was);
	return is;
}

int nccl_staging(struct spread_transport *t, uint64_t out_bytes, uint64_t in_bytes,
		 struct spread_memory *m, struct ckpt_err *err)
{
	struct nccl_transport *k = of(t);
	struct entered was;
	cuda_rc rc;
	int e;

	assert(!k->staging);
	out_bytes = align_up(out_bytes, 4096);
	e = context_enter(k, &was, err);
	if (e < 0)
		return e;
	rc = k->cu->mem_alloc(&k->staging, out_bytes + in_bytes);
	context_leave(k, &was);
	if (rc)
		return cuda_fail(k, rc, "memory for the rounds", err);
	k->staging_bytes = out_bytes + in_bytes;
	m->out = k->staging;
	m->in = k->staging + out_bytes;
	m->carry = lines_carry;
	m->sends = sends_from;
	m->arg = k;
	return 0;
}

/* --- coming up --- */

static int agree(const struct nccl_transport *k, uint64_t mine, uint64_t *ret, struct ckpt_err *err)
{
	*ret = mine;
	return k->o.agree(k->o.agree_ctx, mine, ret) == 0
		       ? 0
		       : ckpt_error(err, -ECONNRESET,
				    "ckpt_opts.agree failed: start all ranks again");
}

static int comm_check(struct nccl_transport *k, struct ckpt_err *err)
{
	int n = -1, rank = -1, device = -1;
	nccl_rc rc;

	k->comm = k->o.comm;
	rc = k->nc->comm_count(k->comm, &n);
	if (!rc)
		rc = k->nc->comm_rank(k->comm, &rank);
	if (!rc)
		rc = k->nc->comm_device(k->comm, &device);
	k->comm = NULL;
	if (rc)
		return ckpt_error(err, -EINVAL, "rank %u: ckpt_opts.nccl: NCCL: %s", k->o.rank,
				  k->nc->error_string(rc));
	if ((uint32_t)n != k->o.world || (uint32_t)rank != k->o.rank ||
	    (uint32_t)device != k->o.device)
		return ckpt_error(
			err, -EINVAL,
			"ckpt_opts.nccl is rank %d of %d on device %d; this is rank %u of "
			"%u on device %u",
			rank, n, device, k->o.rank, k->o.world, k->o.device);
	return 0;
}

/* What this rank needs, and can find without the others. */
static int prepare(struct nccl_transport *k, struct ckpt_err *err)
{
	struct entered was;
	cuda_rc cu;
	int rc;

	k->cu = cuda_driver(&rc, err);
	if (rc == 0)
		k->nc = nccl_library(&rc, err);
	if (rc < 0)
		return rc;
	cu = k->cu->device_get(&k->device, (int)k->o.device);
	if (!cu)
		cu = k->cu->primary_retain(&k->ctx, k->device);
	if (cu)
		return cuda_fail(k, cu, "no context of it", err);
	rc = context_enter(k, &was, err);
	if (rc < 0)
		return rc;
	cu = k->cu->stream_new(&k->stream, CUDA_STREAM_NON_BLOCKING, 0);
	if (!cu)
		cu = k->cu->stream_new(&k->copies, CUDA_STREAM_NON_BLOCKING, 0);
	if (!cu)
		cu = k->cu->event_new(&k->event, CUDA_EVENT_DISABLE_TIMING);
	if (!cu)
		cu = k->cu->event_new(&k->copied, CUDA_EVENT_DISABLE_TIMING);
	context_leave(k, &was);
	if (cu)
		return cuda_fail(k, cu, "no stream", err);
	return k->o.comm ? comm_check(k, err) : 0;
}

static uint64_t id_check(const struct nccl_id *id)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (uint32_t i = 0; i < sizeof id->bytes; i++)
		h = (h ^ (uint8_t)id->bytes[i]) * UINT64_C(0x00000100000001b3);
	return h >> 1; /* less than what the others say */
}

/* Rank 0's, word by word: the others' are never the least. 1: what arrived is what was sent. */
static int id_share(struct nccl_transport *k, struct nccl_id *id, struct ckpt_err *err)
{
	uint64_t word[ID_WORDS], mine, all;
	nccl_rc made = NCCL_OK;
	int rc = 0;

	memset(id, 0, sizeof *id);
	if (k->o.rank == 0)
		made = k->nc->unique_id(id);
	memcpy(word, id, sizeof word);
	for (uint32_t i = 0; i < ID_WORDS && rc == 0; i++)
		rc = agree(k, k->o.rank ? UINT64_MAX : word[i], &word[i], err);
	/* Its check: what another rank said meanwhile would make it another one. */
	mine = k->o.rank ? UINT64_MAX : id_check(id);
	if (rc == 0)
		rc = agree(k, mine, &all, err);
	if (rc < 0)
		return rc;
	memcpy(id, word, sizeof *id);
	mine = !made && id_check(id) == all;
	if (!mine)
		(void)ckpt_error(err, -EPROTO, "rank %u: %s", k->o.rank,
				 made ? "NCCL gives no identifier for a communicator"
				      : "NCCL's identifier came through ckpt_opts.agree altered: "
					"it must return the least of what all ranks gave");
	rc = agree(k, mine, &all, err);
	if (rc < 0 || all)
		return rc < 0 ? rc : 1;
	return mine ? ckpt_error(
			      err, -EOPNOTSUPP,
			      "rank %u: another rank has no identifier of a communicator of NCCL",
			      k->o.rank)
		    : -EPROTO;
}

static int comm_make(struct nccl_transport *k, const struct nccl_id *id, struct ckpt_err *err)
{
	struct nccl_config config = { .size = sizeof config,
				      .magic = NCCL_MAGIC,
				      .version = NCCL_VERSION_MIN,
				      .blocking = 0 };
	uint64_t deadline = now_ns() + k->o.init_ns;
	struct entered was;
	nccl_rc rc;
	int e = context_enter(k, &was, err);

	if (e < 0)
		return e;
	k->made = true;
	rc = k->nc->init(&k->comm, (int)k->o.world, *id, (int)k->o.rank, &config);
	if (rc == NCCL_IN_PROGRESS || rc == NCCL_OK)
		rc = comm_wait(k, deadline);
	context_leave(k, &was);
	if (rc == NCCL_IN_PROGRESS)
		return ckpt_error(
			err, -ETIMEDOUT,
			"rank %u: NCCL has not come up in %.1f s: ranks that do not answer, or a "
			"network interface that leads nowhere (NCCL_DEBUG=INFO and NCCL_SOCKET_IFNAME help)",
			k->o.rank, (double)k->o.init_ns / 1e9);
	return rc ? nccl_fail(k, rc, "ncclCommInitRankConfig", err) : 0;
}

/* All ranks, or none. */
static int all_have(struct nccl_transport *k, int mine, const char *what, struct ckpt_err *err)
{
	uint64_t all;
	int rc = agree(k, mine == 0, &all, mine < 0 ? NULL : err);

	if (rc < 0 || all)
		return rc;
	return mine < 0 ? mine
			: ckpt_error(err, -EOPNOTSUPP, "rank %u: another rank %s", k->o.rank, what);
}

static int comm_open(struct nccl_transport *k, int prepared, struct ckpt_err *err)
{
	struct ckpt_err why;
	struct nccl_id id;
	uint64_t least;
	int rc = agree(k, prepared < 0 ? NOT_READY : k->o.comm ? HAS_COMM : READY, &least, &why);

	if (rc < 0) {
		*err = why;
		return rc;
	}
	if (least == NOT_READY)
		return prepared < 0 ? prepared
				    : ckpt_error(err, -EOPNOTSUPP,
						 "rank %u: another rank cannot use NCCL; its log "
						 "says why",
						 k->o.rank);
	if (least == HAS_COMM) {
		k->comm = k->o.comm;
		return 0;
	}
	rc = id_share(k, &id, err);
	if (rc < 0)
		return rc;
	rc = comm_make(k, &id, err);
	if (rc < 0 && MUTANT(NCCL_NOT_ALL))
		return rc;
	return all_have(k, rc, "has no communicator of NCCL", err);
}

/* A communicator of our own: freed, or aborted. */
static void comm_close(struct nccl_transport *k)
{
	uint64_t deadline = now_ns() + 5 * NS_PER_S;
	nccl_rc rc;

	if (!k->comm || !k->made)
		return;
	rc = k->nc->finalize(k->comm);
	if (rc == NCCL_IN_PROGRESS || rc == NCCL_OK)
		rc = comm_wait(k, deadline);
	(void)(rc ? k->nc->abort : k->nc->destroy)(TAKE(k->comm));
}

static void call_close(struct spread_transport *t)
{
	struct nccl_transport *k = of(t);
	struct entered was;

	if (k->ctx && context_enter(k, &was, NULL) == 0) {
		comm_close(k);
		if (k->stream)
			(void)k->cu->stream_free(k->stream);
		if (k->copies)
			(void)k->cu->stream_free(k->copies);
		if (k->event)
			(void)k->cu->event_free(k->event);
		if (k->copied)
			(void)k->cu->event_free(k->copied);
		if (k->staging)
			(void)k->cu->mem_free(k->staging);
		context_leave(k, &was);
	}
	if (k->ctx)
		(void)k->cu->primary_release(k->device);
	free(k->op);
	free(k);
}

int nccl_open(const struct nccl_opts *o, struct spread_transport **ret, struct ckpt_err *err)
{
	static const struct spread_calls calls = { call_send, call_recv, call_round_end, call_abort,
						   call_close };
	struct nccl_transport *k = calloc(1, sizeof *k);
	uint64_t all;
	int rc;

	*ret = NULL;
	if (!k) {
		(void)o->agree(o->agree_ctx, NOT_READY, &all);
		return ckpt_error(err, -ENOMEM, "no memory to use NCCL");
	}
	k->t = (struct spread_transport){ .calls = &calls, .rank = o->rank, .world = o->world };
	k->o = *o;
	rc = comm_open(k, prepare(k, err), err);
	if (rc < 0) {
		call_abort(&k->t);
		call_close(&k->t);
		return rc;
	}
	*ret = &k->t;
	return 0;
}
