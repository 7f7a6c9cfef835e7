/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rewind.c - back to a step that was set aside: see rewind.h. Called by ckptctl rewind.
 * Invariant: at every moment the steps of the line are one another's ancestors.
 */
#include "ckpt/store/rewind.h"
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

struct rewinding {
	struct store *s;
	const struct rewind_opts *o;
	struct rewind_result *ret;
	struct ckpt_err *err;
	struct store_step *step; /* newest first */
	struct store_label *bad;
	uint32_t n, nbad;
	uint32_t target;
	uint32_t fork;	/* the newest of the line that stays; n: none does */
	uint32_t *back; /* those that come back, newest first */
	uint32_t nback;
};

static bool is_of_line(const struct store_step *st)
{
	return st->state != STORE_COLLECTING && st->state != STORE_SET_ASIDE;
}

/* --- who follows whom --- */

/* It is what it is called. What is misplaced belongs to no line of this job. */
static bool is_known(const struct store_step *k)
{
	return k->state != STORE_COLLECTING && store_step_has_id(k) && !store_step_misplaced(k);
}

/* An adopted one says the seq of another line. */
static bool is_parent(const struct store_step *st, const struct store_step *k)
{
	return is_known(k) && (k->seq < st->seq || k->adopted || st->adopted) &&
	       k->step < st->step && memcmp(k->id, st->said.parent_id, sizeof k->id) == 0;
}

/* One of the line that cannot be read is taken for what it is called. */
static bool is_called_parent(const struct store_step *st, const struct store_step *k)
{
	return is_of_line(k) && !store_step_has_id(k) && k->step == st->parent_step;
}

/*
 * The newest that can be before the parent of st, which is no longer there: older than that one,
 * and not set aside before st was written, neither by a step that went back behind it nor by the
 * clock.
 */
static uint32_t before_parent(const struct rewinding *x, const struct store_step *st)
{
	uint64_t up_to = MIN(st->parent_step, st->step - 1);

	for (uint32_t i = 0; i < x->n; i++) {
		const struct store_step *k = &x->step[i];

		if (!is_known(k) || k->seq >= st->seq)
			continue;
		if (k->step <= up_to &&
		    (is_of_line(k) || !k->aside_ns || k->aside_ns >= st->wall_ns))
			return i;
		if (k->parent_step == UINT64_MAX)
			break;
		up_to = MIN(up_to, k->parent_step);
	}
	return x->n;
}

/* *ret n: it begins a line. */
static int parent_find(const struct rewinding *x, uint32_t child, uint32_t *ret)
{
	const struct store_step *st = &x->step[child];

	*ret = x->n;
	if (st->parent_step == UINT64_MAX || st->step == 0)
		return 0;
	for (uint32_t i = 0; i < x->n; i++)
		if (is_parent(st, &x->step[i])) {
			*ret = i;
			return 0;
		}
	for (uint32_t i = 0; i < x->n; i++)
		if (store_step_unread(&x->step[i]))
			return ckpt_error(x->err, x->step[i].code,
					  "%s cannot be read now, and may be what step %" PRIu64
					  " continues: %.200s; nothing more is moved before it can",
					  x->step[i].dir, st->step, x->step[i].why);
	for (uint32_t i = 0; i < x->n; i++)
		if (is_called_parent(st, &x->step[i])) {
			*ret = i;
			return 0;
		}
	*ret = before_parent(x, st);
	return 0;
}

/* From the target down to the line. Each is older than its child, so it ends. */
static int line_find(struct rewinding *x)
{
	uint32_t at = x->target;
	int r = 0;

	x->back = calloc((size_t)x->n + 1, sizeof *x->back);
	if (!x->back)
		return ckpt_error(x->err, -ENOMEM, "job %s: no memory for its %" PRIu32 " steps",
				  x->s->job, x->n);
	while (!r && at < x->n && !is_of_line(&x->step[at])) {
		x->back[x->nback++] = at;
		r = parent_find(x, at, &at);
	}
	x->fork = at;
	return r;
}

/* --- may it be --- */

static int target_check(const struct rewinding *x)
{
	const struct store_step *st = &x->step[x->target];
	int r;

	if (st->state == STORE_COLLECTING)
		return ckpt_error(x->err, -EUCLEAN,
				  "%s is not committed: it is being written, or its writer died",
				  st->dir);
	r = store_step_refuse_in(x->s, st, x->err);
	if (r)
		return r;
	if (st->state != STORE_COMMITTED && st->state != STORE_SET_ASIDE)
		return ckpt_error(x->err, -EBADMSG, "step %" PRIu64 " is %s: %.200s", st->step,
				  st->state == STORE_QUARANTINED ? "quarantined" : "damaged",
				  st->why);
	if (st->code)
		return ckpt_error(x->err, st->code, "step %" PRIu64 " cannot be read: %.200s",
				  st->step, st->why);
	for (uint32_t i = 0; i < x->nbad; i++)
		if (store_label_is(&x->bad[i], st))
			return ckpt_error(x->err, -EBADMSG,
					  "step %" PRIu64 " is quarantined: %.200s", st->step,
					  x->bad[i].why);
	return 0;
}

static int target_find(struct rewinding *x)
{
	int r = store_scan(x->s, true, &x->step, &x->n, x->err);

	if (!r)
		r = store_labels_of(x->s, 1u << LABEL_BAD, &x->bad, &x->nbad, x->err);
	while (!r && x->target < x->n && strcmp(x->step[x->target].dir, x->o->dir) != 0)
		x->target++;
	if (!r && x->target == x->n)
		r = ckpt_error(x->err, -ENOENT, "job %s: there is no %s", x->s->job, x->o->dir);
	return r ? r : target_check(x);
}

/* --- moving --- */

static int step_move(struct rewinding *x, const struct store_step *st, bool back)
{
	struct store *s = x->s;
	char to[STORE_DIR_MAX];
	int r;

	if (x->o->row)
		x->o->row(x->o->arg, st, back);
	if (x->o->dry)
		return 0;
	r = store_claim_check(s, x->err);
	if (r)
		return r;
	if (back) {
		store_name_step(st->step, to);
		r = s->ops->rename(s->ops->ctx, s->job_fd, st->dir, to);
	} else {
		store_name_old(st->step, st->seq, wall_ns() / NS_PER_S, to);
		r = store_aside_rename(s, st->dir, to);
	}
	if (!r) {
		io_point(s->ops, back ? POINT_BACK_RENAMED : POINT_ASIDE_RENAMED);
		r = store_sync(s->ops, s->job_fd);
	}
	if (r)
		return store_fail(x->err, r,
				  "job %s: cannot %s %s; what moved before it is durable, and the "
				  "same command again goes on from there",
				  s->job, back ? "bring back" : "set aside", st->dir);
	io_point(s->ops, back ? POINT_BACK_SYNCED : POINT_ASIDE_SYNCED);
	return 0;
}

static int move_all(struct rewinding *x)
{
	int r = 0;

	for (uint32_t i = 0; !r && i < x->n; i++) {
		if (!is_of_line(&x->step[i]) ||
		    (x->fork < x->n && x->step[i].step <= x->step[x->fork].step))
			continue;
		x->ret->naside++;
		r = step_move(x, &x->step[i], false);
	}
	for (uint32_t i = 0; !r && i < x->nback; i++) {
		uint32_t at = MUTANT(REWIND_NEWEST_FIRST) ? i : x->nback - 1 - i;

		x->ret->nback++;
		r = step_move(x, &x->step[x->back[at]], true);
	}
	return r;
}

static int rewind_locked(struct rewinding *x)
{
	int r = target_find(x);

	if (!r)
		r = line_find(x);
	if (r)
		return r;
	x->ret->step = x->step[x->target].step;
	return move_all(x);
}

int store_rewind(struct store *s, const struct rewind_opts *o, struct rewind_result *ret,
		 struct ckpt_err *err)
{
	struct rewinding x = { .s = s, .o = o, .ret = ret, .err = err };
	int r = 0, lock = -1;

	*ret = (struct rewind_result){ .step = UINT64_MAX };
	if (!o->dry) {
		r = store_line_lock(s, true, true, &lock);
		if (r == -EAGAIN)
			return ckpt_error(err, -EBUSY,
					  "job %s: a commit or a removal of steps does not end; is "
					  "it stopped?",
					  s->job);
		if (r)
			return store_fail(err, r, "job %s: cannot lock its directory", s->job);
		io_point(s->ops, POINT_ASIDE_LOCKED);
	}
	r = rewind_locked(&x);
	store_unlock(s->ops, lock);
	free(x.back);
	free(x.bad);
	free(x.step);
	return r;
}
