// SPDX-License-Identifier: Apache-2.0
// exchange_rank.c - see exchange.h. Invariant: what is compared with the disk was never read from
// the disk by this rank, but for what it held before the exchange.
#include "ckpt/base/util.h"
#include "ckpt/spread/spread.h"
#include "ckpt/spread/spread_socket.h"
#include "tests/exchange/exchange.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>

#define SECRET 0xa5 /* what memory holds that nobody has written */

/* --- memory --- */

struct memory {
	struct table t;
	uint8_t *base; /* of its only place */
	uint64_t bytes;
	int fd;
};

/* Pages that other processes can map, and that cannot be taken from them. NULL: there is no
 * memory. */
static void *shared_alloc(uint64_t bytes, int *ret_fd)
{
	int fd = memfd_create("exchange", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	void *p = MAP_FAILED;

	if (fd >= 0 && ftruncate(fd, (off_t)bytes + 1) == 0 &&
	    fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
		p = mmap(NULL, bytes + 1, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	*ret_fd = fd;
	if (p == MAP_FAILED)
		return NULL;
	(void)madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

static void shared_free(void *p, uint64_t bytes, int fd)
{
	if (p)
		(void)munmap(p, bytes + 1);
	if (p && fd >= 0)
		(void)close(fd);
}

static int share_add(const struct table *declared, uint32_t tensor, uint32_t rank,
		     struct memory *ret, struct ckpt_err *err)
{
	const struct table_tensor *x = &declared->tensor[tensor];
	const struct layout *l = &declared->layout[x->layout];
	const struct mesh *m = &declared->mesh[l->mesh];
	struct table_piece p = { .tensor = tensor, .rank = rank, .off = ret->bytes };
	uint32_t coord[CKPT_DIMS_MAX];
	int rc;

	if (!mesh_coord(m, rank, coord))
		return 0;
	rc = layout_share(m, l, x->ndim, x->shape, coord, &ret->t.arena, &p.set);
	if (rc < 0)
		return ckpt_error(err, rc, "the share of %s", x->name);
	ret->bytes = align_up(ret->bytes + p.set.numel * x->elem_bytes, 64);
	return table_put_piece(&ret->t, &p, err);
}

/* The rank's shares, row-major, one after the other. */
static int memory_make(const struct exchange_job *j, const struct table *declared, uint32_t rank,
		       struct memory *ret, struct ckpt_err *err)
{
	struct table_place place = { "memory", rank, INT64_MAX };
	int rc;

	*ret = (struct memory){ .t = table_borrow(declared), .fd = -1 };
	rc = table_add_place(&ret->t, &place, NULL, err);
	for (uint32_t i = 0; i < declared->ntensor && rc == 0; i++)
		if (j->moves[i])
			rc = share_add(declared, i, rank, ret, err);
	if (rc == 0)
		rc = table_seal(&ret->t, err);
	if (rc < 0)
		return rc;
	ret->base = shared_alloc(ret->bytes, &ret->fd);
	if (!ret->base)
		return ckpt_error(err, -ENOMEM, "no memory for the shares of rank %u", rank);
	memset(ret->base, SECRET, ret->bytes);
	return 0;
}

static void memory_free(struct memory *m)
{
	shared_free(m->base, m->bytes, m->fd);
	table_free(&m->t);
}

/* From disk. */
static int memory_restore(const struct exchange_job *j, const struct memory *m,
			  struct ckpt_err *err)
{
	void *base[] = { m->base };
	struct move_files files;
	struct plan plan = { 0 };
	int rc = plan_make(&j->disk.ckpt->table, &m->t, NULL, &plan, NULL, err);

	if (rc == 0)
		rc = move_open(&io_ops_posix, j->disk.o.fd, j->disk.ckpt, false, IO_INLINE, &files,
			       err);
	if (rc < 0) {
		plan_free(&plan);
		return rc;
	}
	rc = move_read(&plan, &files, base, NULL, NULL, err);
	move_close(&files);
	plan_free(&plan);
	return rc;
}

/* --- a rank that does something wrong --- */

struct mistaken {
	const struct spread_calls *real;
	struct spread_calls calls;
	const struct exchange_how *how;
	const int *fd;
	struct exchange_outcome *outcome;
};
static struct mistaken mistaken; /* of this process */

static void all_send(const struct spread_transport *t, const void *bytes, size_t n)
{
	for (uint32_t i = 0; i < t->world; i++)
		if (mistaken.fd[i] >= 0)
			(void)!send(mistaken.fd[i], bytes, n, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static int mistaken_round_end(struct spread_transport *t, uint64_t deadline_ns,
			      struct ckpt_err *err)
{
	static const char foreign[] = "GET / HTTP/1.1\r\nHost: rank\r\n\r\n";

	mistaken.outcome->rounds = t->round;
	if (t->round == mistaken.how->round) {
		mistaken.outcome->mistaken = true;
		switch (mistaken.how->mistake) {
		case MISTAKE_DIES:
			(void)raise(SIGKILL);
			break;
		case MISTAKE_STOPS:
			(void)raise(SIGSTOP);
			break;
		case MISTAKE_GIVES_UP:
			return ckpt_error(err, -EIO,
					  "rank %u, round %llu: it ends its exchange, as --mistake "
					  "asks",
					  t->rank, (unsigned long long)t->round);
		case MISTAKE_TRUNCATES:
			all_send(t, "CKSPAD1", 7);
			_exit(CLI_FAILED);
		case MISTAKE_FOREIGN:
			all_send(t, foreign, sizeof foreign - 1);
			break;
		case MISTAKE_NONE:
		case MISTAKE_OTHER:
			break;
		}
	}
	return mistaken.real->round_end(t, deadline_ns, err);
}

static void mistake_plant(struct spread_transport *t, const struct exchange_how *how, const int *fd,
			  struct exchange_outcome *o)
{
	mistaken = (struct mistaken){ t->calls, *t->calls, how, fd, o };
	mistaken.calls.round_end = mistaken_round_end;
	t->calls = &mistaken.calls;
}

/* --- a rank --- */

/* On a busy machine a process may come late, which is no fault of a round. -ECONNRESET: one of them
 * has ended, and will not come. */
static int all_meet(struct exchange_outcome *o, uint32_t rank, uint32_t world, struct ckpt_err *err)
{
	uint32_t n = __atomic_add_fetch(&o[rank].met, 1, __ATOMIC_ACQ_REL);

	for (uint32_t r = 0; r < world; r++)
		while (__atomic_load_n(&o[r].met, __ATOMIC_ACQUIRE) < n) {
			if (__atomic_load_n(&o[r].ended, __ATOMIC_ACQUIRE))
				return ckpt_error(err, -ECONNRESET,
						  "rank %u, round 0: rank %u does not begin", rank,
						  r);
			(void)poll(NULL, 0, 1);
		}
	return 0;
}

struct rank {
	const struct exchange_job *j;
	const struct exchange_how *how;
	struct spread *s;
	struct spread_transport *t;
	struct memory from, to, disk;
	struct schedule_rounds rounds;
	void *out, *in; /* staging */
	int out_fd;
	uint64_t out_bytes;
};

/* The rounds, as every rank computes them from the two declarations alone. Their streams must be
 * those of the walk. */
static int schedule_make(struct rank *k, uint32_t rank, struct ckpt_err *err)
{
	bool other = k->how->mistake == MISTAKE_OTHER && k->how->rank == rank;
	uint64_t round = k->how->round_bytes * (other ? 2 : 1);
	const struct schedule_opts opts = { .who = HOLDERS_ONE,
					    .round_bytes = round,
					    .message_bytes =
						    MIN(round / 16, SCHEDULE_MESSAGE_BYTES) };
	struct spread_cost cost = spread_cost(k->s);
	struct schedule_part part = { 0 };
	struct schedule *s = NULL;
	int rc = schedule_open(k->j->from, k->j->to, &opts, &s, err);

	if (rc == 0)
		rc = schedule_part(s, rank, &part, err);
	if (rc == 0)
		k->rounds = *schedule_rounds(s);
	if (rc == 0 && (part.out_bytes != cost.out_bytes || part.in_bytes != cost.in_bytes ||
			part.nout != cost.out_peers || part.nin != cost.in_peers))
		rc = ckpt_error(
			err, -EILSEQ,
			"rank %u: the schedule has %llu bytes to send and %llu to receive, "
			"the walk %llu and %llu",
			rank, (unsigned long long)part.out_bytes, (unsigned long long)part.in_bytes,
			(unsigned long long)cost.out_bytes, (unsigned long long)cost.in_bytes);
	schedule_part_free(&part);
	schedule_close(s);
	return rc;
}

/* Copies as many bytes as the rank has in the end, from its old memory to its new one. */
static void rank_copy(const struct rank *k)
{
	for (uint64_t left = k->to.bytes, n; left > 0 && k->from.bytes > 0; left -= n) {
		n = MIN(left, k->from.bytes);
		memcpy(k->to.base + (k->to.bytes - left), k->from.base, n);
	}
}

/* Each measurement begins when all ranks have met. The exchange that is compared with the disk
 * comes after them, into memory that was reset. */
static int rank_measure(struct rank *k, const struct spread_memory *m, const struct spread_how *how,
			struct exchange_outcome *o, uint32_t rank, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < 2 * k->how->pairs && rc == 0; i++) {
		bool exchange = (i ^ i >> 1) & 1; /* A B, B A, A B, ... */
		uint64_t began;

		rc = all_meet(o, rank, k->j->world, err);
		began = now_ns();
		if (rc == 0 && exchange)
			rc = spread_run(k->s, k->t, m, how, err);
		else if (rc == 0)
			rank_copy(k);
		*(exchange ? &o[rank].exchange_ns[i / 2] : &o[rank].copy_ns[i / 2]) =
			now_ns() - began;
	}
	memset(k->to.base, SECRET, k->how->pairs ? k->to.bytes : 0);
	return rc;
}

static int rank_exchange(struct rank *k, struct exchange_outcome *o, uint32_t rank,
			 struct ckpt_err *err)
{
	struct spread_how how = { .rounds = &k->rounds, .round_ns = k->how->round_ns };
	uint64_t from_base = (uintptr_t)k->from.base, to_base = (uintptr_t)k->to.base;
	struct spread_memory m = { .from = &k->from.t,
				   .to = &k->to.t,
				   .from_base = &from_base,
				   .to_base = &to_base,
				   .direct = !k->how->staged };
	uint64_t out, in;
	int rc;

	spread_staging(k->s, &how, &out, &in);
	k->out = shared_alloc(out, &k->out_fd);
	k->out_bytes = out;
	k->in = aligned_alloc(4096, in);
	if (!k->out || !k->in)
		return ckpt_error(err, -ENOMEM, "no memory for the rounds");
	m.out = (uintptr_t)k->out;
	m.in = (uintptr_t)k->in;
	if (k->how->share)
		spread_socket_share(
			k->t,
			(const struct spread_segment[]){ { k->from.fd, from_base, k->from.bytes },
							 { k->out_fd, m.out, out } },
			2);
	rc = rank_measure(k, &m, &how, o, rank, err);
	if (rc == 0)
		rc = all_meet(o, rank, k->j->world, err);
	if (rc == 0)
		rc = spread_run(k->s, k->t, &m, &how, err);
	/* All have sent what they send: an empty round finds what is left over. */
	if (rc == 0 && all_meet(o, rank, k->j->world, NULL) == 0)
		rc = k->t->calls->round_end(k->t, UINT64_MAX, err);
	return rc;
}

static int rank_prepare(struct rank *k, uint32_t rank, const int *fd, struct exchange_outcome *o)
{
	const struct reshard_opts opts = { .who = HOLDERS_ONE };
	struct ckpt_err *err = &o->err;
	int rc = memory_make(k->j, k->j->from, rank, &k->from, err);

	if (rc == 0)
		rc = memory_restore(k->j, &k->from, err);
	if (rc == 0)
		rc = memory_make(k->j, k->j->to, rank, &k->to, err);
	if (rc == 0)
		rc = spread_open(k->j->from, k->j->to, &opts, rank, &k->s, err);
	if (rc == 0)
		rc = schedule_make(k, rank, err);
	if (rc == 0)
		rc = spread_socket_open(rank, k->j->world, fd, &k->t, err);
	if (rc == 0 && k->how->mistake && k->how->rank == rank)
		mistake_plant(k->t, k->how, fd, o);
	return rc;
}

/* The gaps between shares as well: nothing was written there. */
static int rank_compare(struct rank *k, uint32_t rank, struct exchange_outcome *o)
{
	int rc = memory_make(k->j, k->j->to, rank, &k->disk, &o->err);

	if (rc == 0)
		rc = memory_restore(k->j, &k->disk, &o->err);
	if (rc < 0)
		return rc;
	for (uint64_t i = 0; i < k->to.bytes; i++)
		o->wrong_bytes += k->to.base[i] != k->disk.base[i];
	for (uint32_t i = 0; i < k->to.t.npiece && rc == 0; i++) {
		const struct table_piece *p = &k->to.t.piece[i];

		if (memcmp(k->to.base + p->off, k->disk.base + p->off, p->len) != 0)
			rc = ckpt_error(&o->err, -EILSEQ,
					"rank %u: %s is not what a restore from disk reads: %llu "
					"bytes of the rank's memory differ",
					rank, k->to.t.tensor[p->tensor].name,
					(unsigned long long)o->wrong_bytes);
	}
	if (o->wrong_bytes && rc == 0)
		rc = ckpt_error(&o->err, -EILSEQ, "rank %u: bytes beside its shares were written",
				rank);
	return rc;
}

void exchange_rank_run(const struct exchange_job *j, const struct exchange_how *how, uint32_t rank,
		       const int *fd, struct exchange_outcome *outcome)
{
	struct exchange_outcome *o = &outcome[rank];
	struct rank k = { .j = j, .how = how };
	int rc = rank_prepare(&k, rank, fd, o);

	if (rc == 0)
		rc = rank_exchange(&k, outcome, rank, &o->err);
	if (rc == 0) {
		struct spread_cost c = spread_cost(k.s);

		o->out_bytes = c.out_bytes;
		o->in_bytes = c.in_bytes;
		o->self_bytes = c.self_bytes;
		o->rounds = k.rounds.n;
	}
	/* Closed before the comparison: what the others see of a failed exchange comes from the
	 * transport, not from the end of this process. */
	if (k.t)
		k.t->calls->close(k.t);
	if (rc == 0)
		rc = rank_compare(&k, rank, o);
	o->rc = rc;
	spread_close(k.s);
	memory_free(&k.from);
	memory_free(&k.to);
	memory_free(&k.disk);
	shared_free(k.out, k.out_bytes, k.out_fd);
	free(k.in);
	__atomic_store_n(&o->ended, 1, __ATOMIC_RELEASE);
}
