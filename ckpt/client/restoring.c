// SPDX-License-Identifier: Apache-2.0
// restoring.c - ckpt_restore: the request, the windows that answer it, and from where steps count
// on. Invariant: what a restore may overwrite is not copied meanwhile; after an error other
// than "there is nothing", no snapshot is taken of what memory holds then.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/abi.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/landing.h"
#include "ckpt/client/nccl_share.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

/* What does not come in one answer: windows of what goes to memory of our own. */
static int landings_take(ckpt *c, uint8_t in[WIRE_BYTES_MAX], int fd[WIRE_FDS_MAX],
			 uint64_t wait_ns, struct ckpt_err *err)
{
	struct landings k;
	int begun = landings_begin(c, &k, err), rc = WIRE_LANDED;

	while (rc == WIRE_LANDED) {
		struct wire_landed m;
		struct wire_land land = { 0 };

		memcpy(&m, in, sizeof m);
		land.round = m.round;
		/* all ranks wait for this answer, whatever it is */
		land.code = begun < 0 ? begun : landing_take(&k, &m, fd);
		wire_close_fds(fd, WIRE_FDS_MAX);
		rc = rpc_ask(c, &land, WIRE_LAND, -1, in, fd, wait_ns, err);
	}
	landings_end(&k);
	return rc;
}

static uint32_t link_fills(const struct link *l)
{
	return l ? atomic_load(&l->job->fills) : 0;
}

static bool want_peeks(const struct ckpt_want *w)
{
	return w->flags & CKPT_PEEK;
}

/* Does it change more than SINKs? */
static bool want_changes(const struct ckpt_want *w)
{
	return !(w->flags & (CKPT_DRY_RUN | CKPT_PEEK));
}

/* WIRE_DIVIDED: the rank's own part, of what several ranks hold. lacks: after that, of the step
 * that *r says, what has not arrived. */
static int restore_call(ckpt *c, const struct ckpt_want *w, uint32_t divided,
			const struct nccl_done *lacks, struct wire_restored *r,
			struct ckpt_err *err)
{
	struct wire_restore m = { .flags = w->flags | divided,
				  .epoch = atomic_load(&c->epoch),
				  .step = lacks ? r->step : w->step,
				  .deadline_ns = w->deadline_ns };
	uint64_t others_ns = w->deadline_ns ? w->deadline_ns : RPC_NS,
		 wait_ns = others_ns + RESTORE_MAX_NS < others_ns ? UINT64_MAX
								  : others_ns + RESTORE_MAX_NS;
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	int fd[WIRE_FDS_MAX], rc;
	const struct link *l;
	uint32_t begun;
	void *blobs;

	if (lacks) {
		m.flags |= WIRE_MISSING;
		m.chunk_bytes = lacks->chunk_bytes;
		m.rounds = lacks->rounds;
	}
	snprintf(m.only, sizeof m.only, "%s", w->only ? w->only : "");
	if (!rpc_take(c, client_until(others_ns)))
		return ckpt_error(err, -ETIMEDOUT,
				  "no daemon is attached: the one on %s does not answer",
				  c->socket);
	l = atomic_load(&c->link);
	begun = link_fills(l);
	rc = rpc_ask(c, &m, WIRE_RESTORE, -1, in, fd, wait_ns, err);
	if (rc == WIRE_LANDED)
		rc = landings_take(c, in, fd, wait_ns, err);
	if (rc < 0 && !c->answered) {
		struct ckpt_err why;

		if (segments_renew(c, &why) < 0) {
			atomic_store(&c->undefined, true);
			rc = ckpt_error(
				err, why.code,
				"the daemon on %s did not answer a restore, and may still write to "
				"this process's memory: end this process (%.300s)",
				c->socket, why.msg);
		}
	}
	/* after the renewal: what a daemon writes from now on is not this process's memory */
	if (link_fills(l) != begun)
		atomic_store(&c->undefined, true);
	if (rc == WIRE_RESTORED) {
		memcpy(r, in, sizeof *r);
		rc = wire_map(fd[0], r->blob_bytes, 0, &blobs, err);
		wire_close_fds(fd, WIRE_FDS_MAX);
	}
	if (rc == 0 && (lacks || (want_peeks(w) && !MUTANT(PEEK_BLOBS_TAKEN)))) {
		/* those of the restored step stay */
		munmap(blobs, r->blob_bytes);
	} else if (rc == 0) {
		if (c->blobs)
			munmap(c->blobs, c->blobs_bytes);
		c->blobs = blobs;
		c->blobs_bytes = r->blob_bytes;
		if (want_changes(w)) {
			/* before the agreement: should the daemon die meanwhile, the next one must
			 * know */
			c->base = r->base;
			c->back = r->back;
		}
	}
	rpc_give(c);
	return rc;
}

void agreements_carry(ckpt *c)
{
	struct link *l;

	pthread_mutex_lock(&c->why_lock);
	l = atomic_load(&c->link);
	if (l)
		atomic_store(&l->rank->agreements, c->agreements);
	pthread_mutex_unlock(&c->why_lock);
}

static void agreements_set(ckpt *c, uint32_t agreements)
{
	pthread_mutex_lock(&c->why_lock);
	c->agreements = agreements;
	pthread_mutex_unlock(&c->why_lock);
	agreements_carry(c);
}

/* Every rank must have got the step, or none may use it. */
static int agree_on(ckpt *c, int rc, uint64_t step, struct ckpt_err *err)
{
	uint64_t mine = rc == 0 ? step + 1 : 0, all = mine;
	uint32_t now;
	int failed;

	if (!c->agree)
		return rc;
	/* The daemon sees it before this rank waits: the others may be waiting for it there. */
	now = (c->agreements | 1) + 1;
	agreements_set(c, now + (rc < 0));
	failed = c->agree(c->agree_ctx, mine, &all);
	agreements_set(c, now);
	if (failed)
		return ckpt_error(err, -ECONNRESET,
				  "ckpt_opts.agree failed: start all ranks again");
	if (rc == 0 && all != mine)
		return ckpt_error(err, -EBADMSG,
				  "another rank could not restore step %" PRIu64
				  ": memory is undefined; call ckpt_restore again",
				  step);
	return rc;
}

/* What a failed exchange has not brought, of the step of which the rest is here. */
static int restore_lacking(ckpt *c, const struct ckpt_want *w, const struct nccl_done *done,
			   const struct wire_restored *r, struct ckpt_err *err)
{
	struct wire_restored rest = { .step = r->step };
	int rc = restore_call(c, w, 0, done, &rest, err);

	if (rc == 0 && (rest.where != r->where || strcmp(rest.id, r->id) != 0))
		rc = ckpt_error(err, -ESTALE, "step %" PRIu64 " is another one now", r->step);
	return agree_on(c, rc, r->step, err);
}

/* What ranks hold together is read once and goes from rank to rank; if that fails, each of them
 * reads what it lacks; if that cannot be read, all that it holds, maybe of an older step. Every
 * rank does the same. */
static int restore_together(ckpt *c, const struct ckpt_want *w, struct nccl_share *s,
			    struct wire_restored *r, struct ckpt_err *err)
{
	struct ckpt_err why = { 0 };
	struct nccl_done done;
	int rc = agree_on(c, restore_call(c, w, WIRE_DIVIDED, NULL, r, err), r->step, err);

	if (rc < 0 || nccl_share_run(c, s, w->only, &done, &why) == 0 || MUTANT(SHARE_NOT_READ))
		return rc;
	if (restore_lacking(c, w, &done, r, &why) == 0)
		return 0;
	log_line(&c->log, LOG_WARNING,
		 "client: job %s: what has not arrived of step %" PRIu64
		 " cannot be read, each rank reads all of its memory: %s",
		 c->job, r->step, why.msg);
	*r = (struct wire_restored){ 0 };
	return agree_on(c, restore_call(c, w, 0, NULL, r, err), r->step, err);
}

#define ALLOWS (CKPT_ALLOW_RESHARD | CKPT_ALLOW_REDUCE | CKPT_ALLOW_REPLICATE | CKPT_ALLOW_DROP)

static int want_check(const ckpt *c, const struct ckpt_want *w, struct ckpt_err *err)
{
	int rc = abi_flags("ckpt_want.flags", w->flags,
			   CKPT_LENIENT | CKPT_FROM_DISK | CKPT_DRY_RUN | CKPT_FROM_MEMORY |
				   CKPT_EXACT | CKPT_PEEK | CKPT_EXPLICIT | ALLOWS,
			   err);

	if (rc < 0)
		return rc;
	if (w->pad || (w->nstream && !w->more))
		return ckpt_error(err, -EINVAL,
				  "ckpt_want has nstream without .more, or .pad is not 0");
	if ((w->flags & CKPT_FROM_DISK && w->flags & CKPT_FROM_MEMORY) ||
	    (w->only && strnlen(w->only, CKPT_NAME_MAX + 1) > CKPT_NAME_MAX))
		return ckpt_error(
			err, -EINVAL,
			"ckpt_want has both FROM_DISK and FROM_MEMORY, or .only is too long");
	if (want_peeks(w) && w->flags & (CKPT_LENIENT | CKPT_EXACT))
		return ckpt_error(
			err, -EINVAL,
			"ckpt_want has CKPT_PEEK, which does not combine with CKPT_LENIENT "
			"and CKPT_EXACT");
	if (w->flags & ALLOWS && !(w->flags & CKPT_EXPLICIT))
		return ckpt_error(
			err, -EINVAL,
			"ckpt_want has CKPT_ALLOW_.. without CKPT_EXPLICIT, without which "
			"everything is allowed");
	if (!c->sealed_once || c->dirty || c->moved)
		return ckpt_error(err, -EINVAL, "call ckpt_seal before ckpt_restore");
	return 0;
}

/* "Nothing found" would mean: keep what memory holds. */
static int nothing_judge(const ckpt *c, const struct ckpt_want *w, int rc, struct ckpt_err *err)
{
	if (rc != -ENOENT || !want_changes(w) || !atomic_load(&c->undefined))
		return rc;
	return ckpt_error(
		err, -EUCLEAN,
		"job %s: there is nothing to restore, and memory is undefined, because an "
		"earlier ckpt_restore had begun to write and failed; end this process, or "
		"fill all memory anew and call ckpt_fresh",
		c->job);
}

/* May ckpt_snapshot begin after this? "Nothing found" permits it only if the caller asked for the
 * latest step of memory and disk. */
static void start_judge(ckpt *c, const struct ckpt_want *w, int rc, const struct ckpt_err *why)
{
	bool all = w->step == CKPT_LATEST && !(w->flags & (CKPT_FROM_DISK | CKPT_FROM_MEMORY));

	if (!want_changes(w) || (rc == -ENOENT && !all))
		return;
	pthread_mutex_lock(&c->why_lock);
	snprintf(c->unrestored_why, sizeof c->unrestored_why, "%.*s", SHARED_TEXT - 1, why->msg);
	pthread_mutex_unlock(&c->why_lock);
	atomic_store(&c->unrestored, rc != 0 && rc != -ENOENT);
	if (rc == 0)
		atomic_store(&c->undefined, false);
	atomic_store(&c->unclean_said, false);
}

/* One line of the log each. */
static void passed_say(ckpt *c, const struct wire_restored *r, const char *what)
{
	for (const char *p = r->passed; *p; p += strcspn(p, "\n"), p += *p == '\n')
		log_line(&c->log, c->rank == 0 ? LOG_WARNING : LOG_INFO,
			 "client: job %s: step %" PRIu64 " is %s; passed over: %.*s", c->job,
			 r->step, what, (int)strcspn(p, "\n"), p);
}

/* What was taken: weights, and where averages go on. What ckptd has filled in addition, tensors of
 * averages that are declared as SINKs, is counted among the tensors. */
static void taken_say(ckpt *c, const struct ckpt_want *w, const struct wire_restored *r)
{
	int level = c->rank == 0 ? LOG_NOTICE : LOG_DEBUG;

	log_line(&c->log, level,
		 "client: job %s: step %" PRIu64 " is restored from %s: %u tensors%s%s", c->job,
		 r->step, r->where == 1 ? "memory" : "disk", r->ntensor,
		 w->only ? " of component " : "", w->only ? w->only : "");
	for (const char *p = r->averages; *p; p += strcspn(p, "\n"), p += *p == '\n')
		log_line(&c->log, level, "client: job %s: %.*s", c->job, (int)strcspn(p, "\n"), p);
}

/* Steps count on from this one, whatever was marked before. */
static void line_back(ckpt *c, uint64_t step, uint64_t marked)
{
	struct link *l = atomic_load(&c->link);

	if (l) {
		atomic_store(&l->left_step, step);
		atomic_store(&l->left_mark, atomic_load(&l->rank->marks));
	}
	c->restored = true;
	c->restored_step = step;
	c->last_step = step + 1;
	c->spent_step = 0;
	c->last_mark_ns = 0;
	atomic_store(&c->jumped_to, 0);
	due_back(c, marked);
	/* A daemon that takes over is not offered what lies above it. */
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		if (atomic_load(&c->held[i].step) > step)
			atomic_store(&c->held[i].step, UINT64_MAX);
}

/* Nothing of the trainer's reads or writes memory of devices any more, and what is copied by value
 * there stays if it is not restored. */
static int memory_ready(ckpt *c, const struct ckpt_want *w, struct ckpt_err *err)
{
	int rc = w->flags & CKPT_DRY_RUN ? 0 : devices_settle(c, w, err);

	if (rc == 0 && want_changes(w) && devices_by_value(c, false) < 0)
		rc = ckpt_error(err, -EIO, "a CUDA device has failed: end this process");
	return rc;
}

int ckpt_restore(ckpt *c, const struct ckpt_want *want, struct ckpt_got *ret, struct ckpt_err *err)
{
	struct ckpt_want w = { 0 };
	struct wire_restored r = { 0 };
	struct ckpt_err why = { 0 };
	int rc = client_check(c, err);
	struct nccl_share *share;
	uint32_t line = 0;
	bool asked;

	if (rc < 0)
		return rc;
	rc = abi_take(ABI_WANT, &w, want, &why);
	if (rc == 0 && ret)
		rc = abi_size(ABI_GOT, ret, &why);
	if (rc == 0)
		rc = want_check(c, &w, &why);
	asked = rc == 0;
	share = nccl_share_open(c, &w, asked);
	if (asked) {
		if (want_changes(&w)) {
			line = last_line(c);
			mark_end(c);
			shadow_copy(c, false); /* what is not restored stays */
		}
		atomic_store(&c->waits, true);
		rc = memory_ready(c, &w, &why);
		if (rc == 0)
			rc = share ? restore_together(c, &w, share, &r, &why)
				   : restore_call(c, &w, 0, NULL, &r, &why);
		atomic_store(&c->waits, false);
	}
	if (!share)
		rc = agree_on(c, rc, r.step, &why);
	nccl_share_close(share);
	rc = nothing_judge(c, &w, rc, &why);
	if (asked || !c->snapped) /* a wrong call does not stop a launch that trains */
		start_judge(c, &w, rc, &why);
	if (rc < 0) {
		if (err)
			*err = why;
		return rc;
	}
	r.passed[sizeof r.passed - 1] = 0;
	r.averages[sizeof r.averages - 1] = 0;
	passed_say(c, &r, want_peeks(&w) ? "read" : "restored");
	if (want_changes(&w)) {
		shadow_copy(c, true);
		if (devices_by_value(c, true) < 0) {
			atomic_store(&c->undefined, true);
			atomic_store(&c->unrestored, true);
			return ckpt_error(err, -EIO,
					  "step %" PRIu64 " is read, and a CUDA device has failed: "
					  "end this process",
					  r.step);
		}
		last_anew(c, line);
		line_back(c, r.step, r.marked);
		taken_say(c, &w, &r);
	}
	if (ret) {
		struct ckpt_got got = { .step = r.step,
					.where = r.where,
					.world_saved = r.world_saved,
					.ntensor = r.ntensor,
					.nmissing = r.nmissing,
					.nunused = r.nunused,
					.npassed = r.npassed };

		memcpy(got.id, r.id, sizeof got.id - 1);
		memcpy(got.passed, r.passed, sizeof got.passed);
		memcpy(got.averages, r.averages, sizeof got.averages);
		abi_give(ABI_GOT, ret, &got);
	}
	return 0;
}
