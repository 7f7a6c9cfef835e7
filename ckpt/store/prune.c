/* SPDX-License-Identifier: Apache-2.0 */
/*
 * prune.c - removal of steps: see prune.h. Called by the daemon and by ckptctl.
 * Invariant: a step loses its first file only when nobody reads it, nobody has held it, a newer
 * committed step and one that was verified are there, and the rename that took its name away is
 * durable.
 */
#include "ckpt/store/prune.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

/* --- its bytes --- */

struct names_seen {
	const struct store *s;
	int fd;
	struct file_links *links;
};

static int name_see(void *arg, const char *name, unsigned char d_type)
{
	struct names_seen *x = arg;
	struct io_stat st;

	if (store_is_ours(x->s, name, d_type))
		x->links->unseen |= io_stat_at(x->s->ops, x->fd, name, &st) != 0 ||
				    file_links_add(x->links, &st) != 0;
	return 0;
}

uint64_t store_bytes_stay(const struct store *s, const char *dir, struct file_links *links,
			  uint32_t *ret_first)
{
	struct names_seen x = { .s = s, .links = links };

	*ret_first = links->nuse;
	x.fd = s->ops->open(s->ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	if (x.fd < 0) {
		links->unseen = true;
		return 0;
	}
	links->unseen |= s->ops->list(s->ops->ctx, x.fd, name_see, &x) != 0;
	(void)s->ops->close(s->ops->ctx, x.fd);
	return file_links_kept(links, *ret_first, links->nuse - *ret_first);
}

/* --- one step --- */

/* What is gone for good while it stays: the step that a removal relies on, locked. */
struct keeper {
	const struct store_step *step; /* NULL: none, nothing complete is removed */
	int fd;			       /* -1: none */
	uint64_t now_ns;
};

/* It is this user's, or root does it for the job's owner. */
static int remove_check_owner(const struct store *s, const struct store_step *st, int fd,
			      struct ckpt_err *err)
{
	struct io_stat dir, job;
	int r = io_stat(s->ops, fd, &dir);

	if (!r)
		r = io_stat(s->ops, s->job_fd, &job);
	if (!r && dir.uid != geteuid() && (geteuid() != 0 || dir.uid != job.uid))
		return ckpt_error(err, -EPERM,
				  "%s belongs to user %" PRIu32 ": it is theirs to remove", st->dir,
				  dir.uid);
	return r && r != -EOPNOTSUPP ? store_fail(err, r, "cannot look at %s", st->dir) : 0;
}

/* Under the lock: it is still the checkpoint that was judged, nobody has held or tagged it, and
 * nobody has found the one that stays damaged. */
static int remove_check_labels(const struct store *s, const struct store_step *st,
			       const struct keeper *k, struct ckpt_err *err)
{
	cleanup_free struct store_label *label = NULL;
	struct store_step now;
	uint32_t n;
	int r = store_step_look(s, st->dir, &now);

	if (!r && now.state == STORE_DAMAGED && st->state != STORE_DAMAGED)
		return ckpt_error(err, -EIO, "it cannot be read any more: %s", now.why);
	if (!r && memcmp(now.id, st->id, sizeof now.id) != 0 && !MUTANT(ANOTHER_REMOVED))
		r = -ENOENT;
	if (r)
		return r == -ENOENT ? ckpt_error(err, r, "it has gone, or is another one now")
				    : store_fail(err, r, "cannot look at %s", st->dir);
	r = store_labels_of(s, 1u << LABEL_HOLD | 1u << LABEL_TAG | 1u << LABEL_BAD, &label, &n,
			    err);
	for (uint32_t i = 0; !r && i < n; i++) {
		if (label[i].kind == LABEL_BAD && k->step && store_label_is(&label[i], k->step))
			r = ckpt_error(err, -EBUSY,
				       "step %" PRIu64
				       ", which was to stay instead, was found damaged",
				       k->step->step);
		else if (label[i].kind != LABEL_BAD && store_label_is(&label[i], st) &&
			 store_label_counts(&label[i], k->now_ns) &&
			 !MUTANT(HELD_MEANWHILE_REMOVED))
			r = ckpt_error(err, -EPERM, "%s %s",
				       label[i].kind == LABEL_TAG ? "tagged" : "held by",
				       label[i].name);
	}
	return r;
}

/* From its name to trash, durably; or back. Under the line's lock. */
static int remove_rename(const struct store *s, const struct store_step *st, const struct keeper *k,
			 char trash[STORE_DIR_MAX], struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	int r = store_here(s, err);

	if (r)
		return r;
	r = k->step ? store_hold_check(s, k->step->dir, k->fd) : 0;
	if (r && r != -ENOENT && r != -ESTALE && !MUTANT(KEEPER_UNCHECKED))
		return store_fail(err, r, "cannot look at %s, which is to stay instead",
				  k->step->dir);
	if (r && !MUTANT(KEEPER_UNCHECKED))
		return ckpt_error(err, -EBUSY,
				  "step %" PRIu64 ", which was to stay instead, has gone",
				  k->step->step);
	io_point(ops, POINT_REMOVE_CHECKED);
	r = store_trash(s, st->dir, trash);
	if (r)
		return store_fail(err, r, "cannot rename %s", st->dir);
	io_point(ops, POINT_REMOVE_TRASHED);
	/* Once more: who came since, without a lock that is seen here, has looked at the name later. */
	r = store_readings_check(s, st->step, err);
	if (r) {
		(void)ops->rename(ops->ctx, s->job_fd, trash, st->dir);
		return r;
	}
	r = MUTANT(REMOVED_BEFORE_SYNC) ? 0 : store_sync(ops, s->job_fd);
	if (r) {
		(void)ops->rename(ops->ctx, s->job_fd, trash, st->dir);
		return store_fail(err, r, "cannot sync the job's directory");
	}
	io_point(ops, POINT_REMOVE_SYNCED);
	return 0;
}

static int remove_locked(const struct store *s, const struct store_step *st, const struct keeper *k,
			 int fd, char ret_left[STORE_DIR_MAX], struct ckpt_err *err)
{
	struct store_foreign foreign;
	char trash[STORE_DIR_MAX];
	int r, line;

	io_point(s->ops, POINT_REMOVE_LOCKED);
	r = remove_check_owner(s, st, fd, err);
	if (r)
		return r;
	r = store_line_lock(s, false, false, &line);
	if (r == -EAGAIN)
		return ckpt_error(err, -EBUSY,
				  "the job is going back to an older step at this moment");
	if (r)
		return store_fail(err, r, "cannot lock the job's directory");
	r = remove_check_labels(s, st, k, err);
	if (!r)
		r = store_readings_check(s, st->step, err);
	if (!r)
		r = remove_rename(s, st, k, trash, err);
	store_unlock(s->ops, line);
	if (r)
		return r;
	store_unlock_name(fd);
	store_trash_empty(s, trash, fd);
	io_point(s->ops, POINT_REMOVE_DONE);
	store_labels_forget(s, st->step, st->id);
	if (store_foreign_look(s, trash, &foreign) == 0 && foreign.n)
		memcpy(ret_left, trash, sizeof trash);
	return 0;
}

/* -EAGAIN: being read. -EBUSY: the line or the keeper has changed: decide again. */
static int remove_step(const struct store *s, const struct store_step *st, const struct keeper *k,
		       char ret_left[STORE_DIR_MAX], struct ckpt_err *err)
{
	int fd, r = store_hold(s, st->dir, true, &fd);

	ret_left[0] = 0;
	if (r == -EAGAIN)
		return ckpt_error(err, r, "it is being read");
	if (r == -EOPNOTSUPP)
		return ckpt_error(err, r,
				  "this file system has no locks, so whether it is being read "
				  "cannot be known");
	if (r == -ENOENT || r == -ESTALE)
		return ckpt_error(err, -ENOENT, "it has gone, or is another one now");
	if (r)
		return store_fail(err, r, "cannot open %s", st->dir);
	r = remove_locked(s, st, k, fd, ret_left, err);
	store_unlock(s->ops, fd);
	return r;
}

/* --- the step that stays --- */

static void keeper_release(const struct store *s, struct keeper *k)
{
	store_unlock(s->ops, k->fd);
	k->fd = -1;
}

static bool is_verified(const struct store_step *st, const struct store_label *label, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (label[i].kind == LABEL_VERIFIED && store_label_is(&label[i], st))
			return true;
	return false;
}

static uint32_t newest_committed(const struct store_step *step, uint32_t n)
{
	uint32_t i = 0;

	while (i < n && step[i].state != STORE_COMMITTED)
		i++;
	return i;
}

/* May this one go when the keeper stays? A damaged one has no seq and stands where it was. */
static bool is_older(const struct store_step *step, uint32_t i, uint32_t keeper)
{
	const struct store_step *st = &step[i], *k = &step[keeper];

	if (i <= keeper)
		return false;
	return st->state == STORE_DAMAGED ? st->step < k->step : st->seq < k->seq;
}

/* --- a policy --- */

struct pruning {
	const struct store *s;
	const struct prune_opts *o;
	struct prune_result *ret;
	struct ckpt_err *err;
	struct store_step *step;
	struct store_label *label;
	struct retain_row *row;
	uint32_t n, nlabel;
	uint32_t newest; /* n: none */
	uint32_t
		stays; /* the step that removals rely on: the newest, or an older one (lean); n: none */
	struct keeper keeper;
	struct file_links *links, own;
};

__attribute__((format(printf, 3, 4))) static void row_keep(struct pruning *p, uint32_t i,
							   const char *fmt, ...)
{
	va_list ap;

	p->row[i].remove = false;
	va_start(ap, fmt);
	(void)vsnprintf(p->row[i].reason, sizeof p->row[i].reason, fmt, ap);
	va_end(ap);
}

static bool is_bad(const struct store_step *st, const struct store_label *label, uint32_t n)
{
	if (st->state == STORE_COLLECTING || st->state == STORE_COMMITTED)
		return false;
	if (st->state != STORE_SET_ASIDE || !store_step_has_id(st) || st->code == -EBADMSG)
		return true;
	for (uint32_t i = 0; i < n; i++)
		if (label[i].kind == LABEL_BAD && store_label_is(&label[i], st))
			return true;
	return false;
}

static bool is_kept_by_label(const struct pruning *p, const struct store_step *st)
{
	for (uint32_t i = 0; i < p->nlabel; i++)
		if ((p->label[i].kind == LABEL_HOLD || p->label[i].kind == LABEL_TAG) &&
		    store_label_is(&p->label[i], st) &&
		    store_label_counts(&p->label[i], p->o->now_ns))
			return true;
	return false;
}

static int steps_read(struct pruning *p)
{
	int r;

	free(TAKE(p->row));
	free(TAKE(p->label));
	free(TAKE(p->step));
	r = p->o->bad ? store_scan_parts(p->s, true, NULL, &p->step, &p->n, p->err)
		      : store_scan(p->s, true, &p->step, &p->n, p->err);
	if (!r)
		r = store_labels(p->s, &p->label, &p->nlabel, p->err);
	if (r)
		return r;
	/* What was found bad since the scan is nothing to rely on. */
	for (uint32_t k = 0; k < p->nlabel; k++)
		for (uint32_t i = 0; p->label[k].kind == LABEL_BAD && i < p->n; i++)
			if (p->step[i].state == STORE_COMMITTED &&
			    store_label_is(&p->label[k], &p->step[i]))
				p->step[i].state = STORE_QUARANTINED;
	p->row = calloc((size_t)p->n + 1, sizeof *p->row);
	return p->row ? 0
		      : ckpt_error(p->err, -ENOMEM, "job %s: no memory to judge %" PRIu32 " steps",
				   p->s->job, p->n);
}

/* It may be whole, and is another job's or another version's to remove. */
static bool is_out_of_place(const struct store_step *st)
{
	return (store_step_misplaced(st) || store_step_newer(st) || store_step_older(st)) &&
	       !MUTANT(MISPLACED_REMOVED);
}

/* Does it go because all that was set aside does? */
static bool is_aside(const struct pruning *p, const struct store_step *st)
{
	return p->o->set_aside && st->state == STORE_SET_ASIDE;
}

/* What is to go because it was asked for. */
static void row_ask(struct pruning *p, uint32_t i)
{
	const struct store_step *st = &p->step[i];
	bool bad = p->o->bad && is_bad(st, p->label, p->nlabel);

	if ((!bad && !is_aside(p, st)) || is_kept_by_label(p, st) || is_out_of_place(st))
		return; /* and the policy has said why it stays */
	if (store_step_unread(st)) {
		row_keep(p, i, "it cannot be read now: %.120s", st->why);
		return;
	}
	p->row[i].remove = true;
	(void)snprintf(p->row[i].reason, sizeof p->row[i].reason, "%.150s",
		       is_aside(p, st) ? p->o->free_bytes ? "set aside, to make room" : "set aside"
		       : st->why[0]    ? st->why
				       : "quarantined");
}

/* This call has found that it is damaged, though nobody will say so of it. As a scan with parts
 * tells it. */
static void step_fault(struct store_step *st, int code, bool lacks, const char *why)
{
	if (st->state == STORE_COMMITTED)
		st->state = STORE_DAMAGED;
	st->code = code;
	st->lacks = lacks;
	(void)snprintf(st->why, sizeof st->why, "%.*s", (int)sizeof st->why - 1, why);
}

/* One stat for each of its parts: what is damaged goes only if that was asked for. */
static bool is_faulty(const struct pruning *p, struct store_step *st)
{
	struct store_step now;

	if (MUTANT(PARTS_UNSEEN_PRUNED) || store_step_look_parts(p->s, st->dir, &now) ||
	    !now.code || memcmp(now.id, st->id, sizeof now.id) != 0)
		return false;
	step_fault(st, now.code, now.lacks, now.why);
	return true;
}

/* The newest verified one; if there is none, or it is not lean, the newest. */
static uint32_t stays_find(const struct pruning *p)
{
	for (uint32_t i = p->newest; p->o->lean && i < p->n; i++)
		if (p->step[i].state == STORE_COMMITTED &&
		    is_verified(&p->step[i], p->label, p->nlabel))
			return i;
	return p->newest;
}

/* By policy, then what was asked for besides, then what may not be. *ret: how many are to go. */
static int rows_decide(struct pruning *p, uint32_t *ret)
{
	int r = retain_decide(p->o->policy, p->step, p->n, p->label, p->nlabel, p->o->now_ns,
			      p->row);

	*ret = 0;
	if (r)
		return ckpt_error(p->err, r, "job %s: no memory to judge its steps", p->s->job);
	p->newest = newest_committed(p->step, p->n);
	p->stays = stays_find(p);
	for (uint32_t i = 0; i < p->n; i++) {
		row_ask(p, i);
		if (!p->row[i].remove)
			continue;
		if (i == p->stays && p->stays != p->newest && !MUTANT(VERIFIED_PRUNED))
			row_keep(p, i, "the newest that is verified");
		else if (!MUTANT(PRUNED_NEWEST) &&
			 (p->newest == p->n ||
			  (!is_older(p->step, i, p->newest) && !is_aside(p, &p->step[i]))))
			row_keep(p, i, "no newer step is committed");
		else if (!p->o->bad && !is_aside(p, &p->step[i]) && is_faulty(p, &p->step[i]))
			row_keep(p, i, "%s: %.120s", store_step_fault(&p->step[i]), p->step[i].why);
		else
			++*ret;
	}
	return 0;
}

static void keep_all(struct pruning *p, const char *reason)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->row[i].remove)
			row_keep(p, i, "%s", reason);
}

/* The newest is not whole: told, and no label of it. */
static int newest_fault(struct pruning *p, const struct store_step *st)
{
	if (!p->ret->faulty++) {
		(void)ckpt_error(&p->ret->fault, -EBADMSG, "step %" PRIu64 ": %s: %s", st->step,
				 store_step_fault(st), st->why);
		memcpy(p->ret->fault_dir, st->dir, sizeof st->dir);
	}
	return 1;
}

/* 1: it is found damaged, and no longer what it was: decide again. */
static int newest_verify(struct pruning *p)
{
	struct store_step *st = &p->step[p->stays];
	struct ckpt_err why = { .msg = "" };
	int r = p->o->verify(p->o->arg, st, p->keeper.fd, &why);

	if (r == -EPROTO || r == -EUCLEAN) {
		step_fault(st, r == -EPROTO ? r : -EBADMSG, r == -EUCLEAN, why.msg);
		return newest_fault(p, st);
	}
	if (r == -EBADMSG) {
		p->ret->quarantined++;
		st->state = STORE_QUARANTINED;
		(void)snprintf(st->why, sizeof st->why, "%.*s", (int)sizeof st->why - 1, why.msg);
		/* A sum is wrong, for everybody. Where that cannot be written it counts for this
		 * call. */
		(void)store_label_set(p->s, st, LABEL_BAD, NULL, 0, why.msg, NULL);
		return 1;
	}
	if (r < 0) {
		if (p->err)
			*p->err = why;
		return ckpt_error_prefix(p->err, r,
					 "step %" PRIu64 " could not be verified, nothing older "
					 "is removed",
					 st->step);
	}
	/* A full disk has no room for the label: that it is verified is known here all the same. */
	(void)store_label_set(p->s, st, LABEL_VERIFIED, NULL, 0, NULL, NULL);
	return 0;
}

/* 0: the step that stays is locked and verified, or nothing is to go; 1: decide again. */
static int keeper_take(struct pruning *p)
{
	struct store_step *st = &p->step[p->stays];
	bool verified = is_verified(st, p->label, p->nlabel) || MUTANT(PRUNED_UNVERIFIED);
	int r;

	if (!p->o->bad && is_faulty(p, &p->step[p->newest]))
		return newest_fault(p, &p->step[p->newest]);
	if (!p->o->bad && p->stays != p->newest && is_faulty(p, st))
		return newest_fault(p, st);
	if (!verified && !p->o->verify && !p->o->dry) {
		p->ret->unverified = true;
		keep_all(p, "no newer step is verified");
		return 0;
	}
	if (p->o->dry) {
		p->ret->unverified = !verified;
		return 0;
	}
	r = store_hold_keep(p->s, st->dir, &p->keeper.fd);
	if (r == -ENOENT || r == -ESTALE || r == -EAGAIN) {
		r = steps_read(p);
		return r ? r : 1;
	}
	if (r)
		return store_fail(p->err, r, "job %s: cannot open %s", p->s->job, st->dir);
	p->keeper.step = st;
	if (!verified)
		r = newest_verify(p);
	if (!r)
		io_point(p->s->ops, POINT_PRUNE_VERIFIED);
	else
		keeper_release(p->s, &p->keeper);
	return r;
}

static void row_remove(struct pruning *p, uint32_t i)
{
	const struct store_step *st = &p->step[i];
	struct ckpt_err why = { .msg = "" };
	char left[STORE_DIR_MAX] = "";
	size_t used = strlen(p->row[i].reason);
	uint32_t first;
	uint64_t stay = store_bytes_stay(p->s, st->dir, p->links, &first);
	int r = p->o->dry ? 0 : remove_step(p->s, st, &p->keeper, left, &why);

	if (!r) {
		p->ret->removed++;
		p->ret->freed += st->bytes - MIN(stay, st->bytes);
		if (left[0])
			(void)snprintf(p->row[i].reason + used, sizeof p->row[i].reason - used,
				       "; what is not ckptd's stays in %s", left);
		return;
	}
	file_links_cut(p->links, first);
	p->ret->busy += r == -EAGAIN;
	p->ret->failed += r != -EAGAIN && r != -ENOENT;
	if (!p->ret->why.code && r != -EAGAIN && r != -ENOENT)
		(void)ckpt_error(&p->ret->why, r, "%s", why.msg);
	row_keep(p, i, "%.*s", (int)sizeof p->row[i].reason - 1, why.msg);
	if (r == -EBUSY)
		keep_all(p, why.msg);
}

/* Oldest first. aside: those that were set aside and go for that, or the others. */
static void remove_some(struct pruning *p, bool aside)
{
	for (uint32_t i = p->n; i-- > 0;) {
		if (!p->row[i].remove || is_aside(p, &p->step[i]) != aside)
			continue;
		if (p->o->free_bytes && p->ret->freed >= p->o->free_bytes)
			row_keep(p, i, "enough is free without it");
		else
			row_remove(p, i);
	}
}

static int steps_prune(struct pruning *p)
{
	uint32_t want = 0;
	int r = steps_read(p), again = 1;

	for (uint32_t i = 0; !r && again > 0; i++) {
		r = rows_decide(p, &want);
		if (i == STORE_TRIES_MAX) {
			keep_all(p, "the newest step changes all the time");
			want = 0;
		}
		again = r || !want ? 0 : keeper_take(p);
		if (again < 0)
			r = again;
	}
	if (r)
		return r;
	remove_some(p, true);
	remove_some(p, false);
	p->ret->shared = file_links_kept_once(p->links);
	p->ret->unseen = p->links->unseen;
	p->ret->newest = p->newest < p->n ? p->step[p->newest].step : UINT64_MAX;
	for (uint32_t i = 0; i < p->n; i++) {
		p->ret->kept += !p->row[i].remove && p->step[i].state != STORE_COLLECTING;
		if (p->o->row)
			p->o->row(p->o->arg, &p->step[i], &p->row[i]);
	}
	return 0;
}

int store_prune(struct store *s, const struct prune_opts *o, struct prune_result *ret,
		struct ckpt_err *err)
{
	struct pruning p = {
		.s = s, .o = o, .ret = ret, .err = err, .keeper = { .fd = -1, .now_ns = o->now_ns }
	};
	int r = 0;

	p.links = o->links ? o->links : &p.own;
	*ret = (struct prune_result){ .newest = UINT64_MAX };
	if (!o->dry)
		r = store_here(s, err);
	if (!r && !o->dry) {
		r = store_trash_sweep(s, false);
		if (r)
			r = store_fail(err, r, "job %s: cannot sweep its trash", s->job);
	}
	if (!r && !o->dry)
		(void)store_readings_check(s, UINT64_MAX, NULL);
	if (!r)
		r = steps_prune(&p);
	keeper_release(s, &p.keeper);
	file_links_free(&p.own);
	free(p.row);
	free(p.label);
	free(p.step);
	return r;
}

/* --- one that somebody names --- */

struct removing {
	struct store_step *step;
	struct store_label *label;
	uint32_t n, nlabel, at;
	struct keeper keeper;
};

/* The newest committed step but this one; n: none. */
static uint32_t another_committed(const struct removing *x)
{
	uint32_t i = 0;

	while (i < x->n && (i == x->at || x->step[i].state != STORE_COMMITTED))
		i++;
	return i;
}

/* No other is committed. It is the last one that a job can start from, be it with an older
 * version. */
static bool is_last(const struct removing *x)
{
	uint32_t nolder = 0;

	for (uint32_t i = 0; i < x->n; i++)
		nolder += i != x->at && x->step[i].state == STORE_OLDER;
	return x->step[x->at].state == STORE_COMMITTED ||
	       (x->step[x->at].state == STORE_OLDER && !nolder);
}

static int remove_judge(const struct store *s, struct removing *x, uint64_t now_ns,
			struct ckpt_err *err)
{
	const struct store_step *st = &x->step[x->at];
	uint32_t other = another_committed(x);
	int r;

	if (st->state == STORE_COLLECTING)
		return ckpt_error(err, -EBUSY,
				  "%s is being written, or its writer died: ckptctl repair removes "
				  "what dead writers left",
				  st->dir);
	/* What an older version wrote, somebody has named and nobody here can judge. */
	r = store_step_older(st) ? 0 : store_step_refuse_in(s, st, err);
	if (r)
		return r;
	for (uint32_t i = 0; i < x->nlabel; i++)
		if ((x->label[i].kind == LABEL_HOLD || x->label[i].kind == LABEL_TAG) &&
		    store_label_is(&x->label[i], st) && store_label_counts(&x->label[i], now_ns))
			return ckpt_error(err, -EBUSY, "step %" PRIu64 " is %s %s", st->step,
					  x->label[i].kind == LABEL_TAG ? "tagged" : "held by",
					  x->label[i].name);
	if (other == x->n && is_last(x) && !MUTANT(LAST_STEP_REMOVED))
		return ckpt_error(err, -EBUSY,
				  "step %" PRIu64
				  " is the last complete step of job %s: without it "
				  "the job starts from nothing",
				  st->step, s->job);
	x->keeper.step = other < x->n ? &x->step[other] : NULL;
	return 0;
}

/* Is somebody reading it now? */
static int remove_could(const struct store *s, const struct store_step *st, struct ckpt_err *err)
{
	int fd, r = store_hold(s, st->dir, true, &fd);

	if (r == -EAGAIN)
		return ckpt_error(err, r, "it is being read");
	if (r)
		return store_fail(err, r, "cannot open %s", st->dir);
	r = store_readings_check(s, st->step, err);
	store_unlock(s->ops, fd);
	return r;
}

static int remove_found(struct store *s, struct removing *x, bool dry, uint64_t now_ns,
			char ret_left[STORE_DIR_MAX], struct ckpt_err *err)
{
	const struct store_step *k;
	int r = remove_judge(s, x, now_ns, err);

	if (!r && dry)
		return remove_could(s, &x->step[x->at], err);
	if (r)
		return r;
	r = store_trash_sweep(s, false);
	if (r)
		return store_fail(err, r, "job %s: cannot sweep its trash", s->job);
	k = x->keeper.step;
	r = k ? store_hold_keep(s, k->dir, &x->keeper.fd) : 0;
	if (r == -ENOENT || r == -ESTALE || r == -EAGAIN)
		return ckpt_error(err, -EBUSY,
				  "step %" PRIu64 ", which is to stay instead, is being removed",
				  k->step);
	if (r)
		return store_fail(err, r, "job %s: cannot open %s", s->job, k->dir);
	return remove_step(s, &x->step[x->at], &x->keeper, ret_left, err);
}

int store_remove(struct store *s, const char *dir, bool dry, uint64_t now_ns,
		 struct store_step *ret, char ret_left[STORE_DIR_MAX], struct ckpt_err *err)
{
	struct removing x = { .keeper = { .fd = -1, .now_ns = now_ns } };
	struct file_links links = { 0 };
	uint32_t first;
	int r = store_scan(s, true, &x.step, &x.n, err);

	ret_left[0] = 0;
	if (!r)
		r = store_labels(s, &x.label, &x.nlabel, err);
	while (!r && x.at < x.n && strcmp(x.step[x.at].dir, dir) != 0)
		x.at++;
	if (!r && x.at == x.n)
		r = ckpt_error(err, -ENOENT, "job %s: there is no %s", s->job, dir);
	if (!r && ret) {
		*ret = x.step[x.at];
		ret->note = NULL; /* it goes with the scan */
		ret->nnote = 0;
	}
	if (!r && ret)
		ret->shared = MIN(store_bytes_stay(s, dir, &links, &first), ret->bytes);
	if (!r && ret)
		ret->shared_unseen = links.unseen;
	if (!r)
		r = remove_found(s, &x, dry, now_ns, ret_left, err);
	file_links_free(&links);
	keeper_release(s, &x.keeper);
	free(x.label);
	free(x.step);
	return r;
}
