// SPDX-License-Identifier: Apache-2.0
// restoring.c - ckpt_restore: the request, the windows that answer it, and from where steps count
// on. Invariant: what a restore may overwrite is not copied meanwhile; after an error other
// than "there is nothing", no snapshot is taken of what memory holds then.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/abi.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/landing.h"
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

static int restore_call(ckpt *c, const struct ckpt_want *w, struct wire_restored *r,
			struct ckpt_err *err)
{
	struct wire_restore m = { .flags = w->flags,
				  .epoch = atomic_load(&c->epoch),
				  .step = w->step,
				  .deadline_ns = w->deadline_ns };
	uint64_t others_ns = w->deadline_ns ? w->deadline_ns : RPC_NS,
		 wait_ns = others_ns + RESTORE_MAX_NS < others_ns ? UINT64_MAX
								  : others_ns + RESTORE_MAX_NS;
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	int fd[WIRE_FDS_MAX], rc;
	const struct link *l;
	uint32_t begun;
	void *blobs;

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
	if (rc == 0 && want_peeks(w) &&
	    !MUTANT(PEEK_BLOBS_TAKEN)) { /* those of the restored step stay */
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

/* Every rank must have got the step, or none may use it. */
static int agree_on(ckpt *c, int rc, uint64_t step, struct ckpt_err *err)
{
	uint64_t mine = rc == 0 ? step + 1 : 0, all = mine;

	if (!c->agree)
		return rc;
	if (c->agree(c->agree_ctx, mine, &all) != 0)
		return ckpt_error(err, -ECONNRESET,
				  "ckpt_opts.agree failed: start all ranks again");
	if (rc == 0 && all != mine)
		return ckpt_error(err, -EBADMSG,
				  "another rank could not restore step %" PRIu64
				  ": memory is undefined; call ckpt_restore again",
				  step);
	return rc;
}

static int want_check(const ckpt *c, const struct ckpt_want *w, struct ckpt_err *err)
{
	int rc = abi_flags("ckpt_want.flags", w->flags,
			   CKPT_LENIENT | CKPT_FROM_DISK | CKPT_DRY_RUN | CKPT_FROM_MEMORY |
				   CKPT_EXACT | CKPT_PEEK,
			   err);

	if (rc < 0)
		return rc;
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
static void line_back(ckpt *c, uint64_t step)
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
	due_back(c);
	/* A daemon that takes over is not offered what lies above it. */
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		if (atomic_load(&c->held[i].step) > step)
			atomic_store(&c->held[i].step, UINT64_MAX);
}

int ckpt_restore(ckpt *c, const struct ckpt_want *want, struct ckpt_got *ret, struct ckpt_err *err)
{
	struct ckpt_want w = { 0 };
	struct wire_restored r = { 0 };
	struct ckpt_err why = { 0 };
	int rc = client_check(c, err);
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
	if (asked) {
		if (want_changes(&w)) {
			line = last_line(c);
			mark_end(c);
			shadow_copy(c, false); /* what is not restored stays */
		}
		atomic_store(&c->waits, true);
		rc = restore_call(c, &w, &r, &why);
		atomic_store(&c->waits, false);
	}
	rc = nothing_judge(c, &w, agree_on(c, rc, r.step, &why), &why);
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
		last_anew(c, line);
		line_back(c, r.step);
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
