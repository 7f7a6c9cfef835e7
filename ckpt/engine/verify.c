/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - see verify.h. Called by the verbs that say that a checkpoint is right, and by the daemon
 * before it removes an older one.
 * Invariant: a byte counts as summed only if a sum covers it, or its value is fixed.
 */
#include "ckpt/engine/verify.h"
#include <stdio.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/open.h"

static void ranges_count(const struct format_file *f, struct engine_sums *s)
{
	for (uint64_t i = 0; i < f->nrange; i++) {
		const struct format_range *r = &f->range[i];

		if (r->sum != SUM_NONE || r->kind == RANGE_ZERO)
			s->summed += r->len;
		else if (r->kind != RANGE_SLACK)
			s->unsummed += r->len;
	}
}

/* Do these bytes of the file have no sum of their own? */
static bool is_unsummed(const struct format_file *f, const struct format_made *m)
{
	uint64_t low = 0, high = f->nrange;

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;

		if (f->range[mid].off + f->range[mid].len <= m->off)
			low = mid + 1;
		else
			high = mid;
	}
	return low < f->nrange && f->range[low].kind == RANGE_DATA && f->range[low].sum == SUM_NONE;
}

struct engine_sums engine_sums(const struct checkpoint *k)
{
	struct engine_sums ret = { 0 };

	for (uint32_t i = 0; i < k->nfile; i++) {
		const struct format_file *f = &k->file[i];

		if (f->lost || f->unread)
			continue;
		if (f->nrange)
			ranges_count(f, &ret);
		else if (f->chunk)
			ret.summed += f->file_bytes;
		else
			ret.unsummed += f->file_bytes;
	}
	/* Bytes of which a place with a sum is made. */
	for (uint32_t i = 0; i < k->nmade; i++) {
		const struct format_made *m = &k->made[i];

		if (m->how == MADE_GIVEN || !m->has_crc || m->from >= k->nfile ||
		    !is_unsummed(&k->file[m->from], m))
			continue;
		ret.summed += MIN(m->len, ret.unsummed);
		ret.unsummed -= MIN(m->len, ret.unsummed);
	}
	return ret;
}

int engine_damage(int rc)
{
	switch (rc) {
	case -EACCES:
	case -EPERM:
	case -EPROTONOSUPPORT:
	case -ENOMEM:
	case -EMFILE:
	case -ENFILE:
	case -ECANCELED:
		return rc;
	default:
		return rc < 0 ? -EBADMSG : rc;
	}
}

struct checking {
	uint64_t ndamage, nunread;
	char first[2][400]; /* what was said first: of damage, of what could not be read */
};

static void checking_fault(void *arg, const struct format_fault *f)
{
	struct checking *x = arg;
	bool unread = f->kind && !strcmp(f->kind, "unreadable");
	char *say = x->first[unread];

	if (format_fault_is_odd(f))
		return;
	if ((unread ? x->nunread++ : x->ndamage++) > 0)
		return;
	if (f->file && *f->file && (f->offset || f->length))
		snprintf(say, sizeof x->first[0], "%.120s, byte %llu: %.240s", f->file,
			 (unsigned long long)f->offset, f->text ? f->text : f->kind);
	else
		snprintf(say, sizeof x->first[0], "%.120s%s%.240s", f->file ? f->file : "",
			 f->file && *f->file ? ": " : "", f->text ? f->text : f->kind);
}

/* Wrong, though no sum is: it contradicts itself, or files are missing. */
static bool is_unproven(int code)
{
	return code == -EPROTO || code == -EUCLEAN;
}

static int data_check(const struct engine *e, const struct engine_check *x, const struct opened *o,
		      struct checking *c, uint64_t *ret_bytes, struct ckpt_err *err)
{
	struct move_files files;
	struct move_verified size;
	int rc = move_open(e->ops, o->fd, o->ckpt, true, e->io, &files, err);

	if (rc)
		return rc;
	files.buffer_bytes = x->buffer_bytes;
	move_subset_size(o->ckpt, &(struct move_subset){ 0 }, &size);
	if (x->begin)
		x->begin(x->arg, o->ckpt, size.bytes);
	rc = MUTANT(NOT_READ_BACK)
		     ? 0
		     : move_verify(&files, e->tick, e->arg, checking_fault, c, ret_bytes, err);
	move_close(&files);
	return rc;
}

/* What was found, as one error. */
static int checking_judge(const struct checking *x, int rc, const struct ckpt_err *e,
			  const char *path, struct ckpt_err *err)
{
	if (rc == -ECANCELED)
		return ckpt_error(err, rc, "interrupted while %.300s was checked", path);
	/* What this version cannot judge is not damaged. */
	if (rc == -EPROTONOSUPPORT && !MUTANT(NEWER_QUARANTINED))
		return ckpt_error(err, rc, "%s", e->msg);
	if (x->ndamage)
		return ckpt_error(err, rc == -EBADMSG && is_unproven(e->code) ? e->code : -EBADMSG,
				  "%s", x->first[0]);
	if (x->nunread && (!rc || rc == -EBADMSG || rc == -EIO))
		return ckpt_error(err, -EIO, "%s", x->first[1]);
	/* engine_damage calls whatever is wrong -EBADMSG; the error knows better. */
	if (rc == -EBADMSG && e->code && e->code != -EBADMSG)
		rc = is_unproven(e->code) ? e->code : -EIO;
	return rc ? ckpt_error(err, rc, "%s", e->msg[0] ? e->msg : strerror(-rc)) : 0;
}

int engine_check(const struct engine *e, const struct engine_check *x, struct engine_checked *ret,
		 struct ckpt_err *err)
{
	struct checking c = { 0 };
	const struct engine_subject step = { .fd = x->fd,
					     .path = x->path,
					     .force = x->format,
					     .flags = SOURCE_FRESH,
					     .how.fault = checking_fault,
					     .how.fault_arg = &c };
	struct ckpt_err e_open = { 0 };
	uint64_t bytes = 0;
	struct opened o;
	int rc = engine_damage(engine_open(e, &step, &o, &e_open));

	if (!rc)
		rc = data_check(e, x, &o, &c, &bytes, &e_open);
	if (o.ckpt)
		bytes += o.ckpt->stored_bytes - MIN(bytes, o.ckpt->stored_bytes);
	engine_close(&o);
	if (ret)
		*ret = (struct engine_checked){ .bytes = bytes, .nfault = c.ndamage + c.nunread };
	return checking_judge(&c, rc, &e_open, x->path, err);
}
