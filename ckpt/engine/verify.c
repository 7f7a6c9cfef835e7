/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify.c - see verify.h. Called by the verbs that say that a checkpoint is right, and by the
 * daemon before it removes an older one.
 * Invariant: a byte counts as summed only if it was compared with a sum, or its value is fixed;
 * what was not read counts as neither.
 */
#include "ckpt/engine/verify.h"
#include <stdio.h>
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/shared_files.h"

/* --- sums --- */

enum { IN_OPEN = 1, IN_DATA = 2 }; /* bytes that engine_open checks; those that move_verify reads */

/* What the file says itself of some of its bytes. */
static void sums_add(const struct format_file *f, unsigned int which, struct engine_verified *ret)
{
	if (f->lost || f->unread)
		return;
	for (uint64_t i = 0; i < f->nrange; i++) {
		const struct format_range *r = &f->range[i];

		if (!(which & (move_reads(r) ? IN_DATA : IN_OPEN)))
			continue;
		if (r->sum != SUM_NONE || r->kind == RANGE_ZERO || MUTANT(UNSUMMED_IS_SUMMED))
			ret->summed += r->len;
		else if (r->kind != RANGE_SLACK)
			ret->unsummed += r->len;
	}
	if (f->nrange || !(which & IN_DATA))
		return;
	if (f->chunk)
		ret->summed += f->file_bytes;
	else
		ret->unsummed += f->file_bytes;
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

/* Bytes of which a place with a sum is made, that sums_add has found to have none. */
static void sums_of_made(const struct checkpoint *k, struct engine_verified *ret)
{
	for (uint32_t i = 0; i < k->nmade; i++) {
		const struct format_made *m = &k->made[i];
		uint64_t n = MIN(m->len, ret->unsummed);

		if (m->how == MADE_GIVEN || !m->has_crc || m->from >= k->nfile ||
		    !is_unsummed(&k->file[m->from], m))
			continue;
		ret->summed += n;
		ret->unsummed -= n;
	}
}

/* skip: files that were read before; NULL: no data were read. */
static void sums_make(const struct checkpoint *k, const bool *skip, struct engine_verified *ret)
{
	ret->summed = skip ? ret->data.summed : 0;
	ret->unsummed = skip ? ret->data.unsummed : 0;
	for (uint32_t i = 0; i < k->nfile; i++)
		sums_add(&k->file[i], skip && !skip[i] ? IN_OPEN : IN_OPEN | IN_DATA, ret);
	if (!skip)
		sums_of_made(k, ret);
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

/* --- a checkpoint --- */

struct verifying {
	const struct engine *e;
	const struct engine_verify *v;
	format_fault_fn *fault; /* the caller's */
	void *arg;
	bool in_data;
	const struct opened *o;
	struct engine_verified *ret;
};

static void verifying_fault(void *arg, const struct format_fault *f)
{
	struct verifying *x = arg;

	if (format_fault_is_odd(f))
		x->ret->nodd++;
	else
		x->ret->nfault++;
	x->ret->nunread += f->kind && !strcmp(f->kind, "unreadable");
	if (x->in_data && x->v->shared && x->ret->nfault + x->ret->nodd <= SHARED_FAULTS_MAX)
		shared_fault(x->v->shared, f);
	if (x->fault)
		x->fault(x->arg, f);
}

/* After all data were read: for checkpoints with the same files, and from those before. */
static void verifying_share(struct verifying *x, const struct move_files *files, const bool *skip,
			    uint32_t first)
{
	struct engine_verified *ret = x->ret;

	x->in_data = false;
	if (!ret->nunread && ret->nfault + ret->nodd <= SHARED_FAULTS_MAX)
		shared_keep(x->v->shared, files, skip, first);
	shared_tell(x->v->shared, files, skip, verifying_fault, x);
}

static int data_read(struct verifying *x, const struct move_files *files, bool *skip,
		     struct ckpt_err *err)
{
	const struct checkpoint *k = x->o->ckpt;
	struct move_subset subset = x->v->subset;
	bool all = subset.how == SUBSET_ALL, shares = all && x->v->shared;
	uint32_t first = x->v->shared ? x->v->shared->nfault : 0;
	uint64_t nfault = x->ret->nfault;
	struct move_verified size, rest;
	int rc;

	move_subset_size(k, &subset, &size);
	if (x->v->percent > 0)
		subset.bytes = (uint64_t)((double)size.all_bytes * x->v->percent / 100);
	move_subset_size(k, &subset, &size);
	if (shares)
		shared_find(x->v->shared, files, skip);
	subset.skip = skip;
	move_subset_size(k, &subset, &rest);
	if (x->v->begin)
		x->v->begin(x->v->arg, k, rest.bytes);
	x->in_data = true;
	rc = MUTANT(NOT_READ_BACK) ? 0
				   : move_verify_some(files, &subset, x->e->tick, x->e->arg,
						      verifying_fault, x, &x->ret->data, err);
	x->in_data = false;
	x->ret->bytes += x->ret->data.bytes;
	sums_make(k, skip, x->ret);
	if (!all || (rc && rc != -EBADMSG))
		return rc;
	x->ret->before_bytes = size.bytes - rest.bytes;
	x->ret->data.bytes += x->ret->before_bytes;
	x->ret->data.chunks += size.chunks - rest.chunks;
	x->ret->data.pieces = x->ret->data.all_pieces;
	if (shares)
		verifying_share(x, files, skip, first);
	return rc || x->ret->nfault == nfault
		       ? rc
		       : ckpt_error(err, -EBADMSG, "a file that it shares is damaged");
}

static int data_check(struct verifying *x, struct ckpt_err *err)
{
	const struct checkpoint *k = x->o->ckpt;
	cleanup_free bool *skip = calloc((size_t)k->nfile + 1, sizeof *skip);
	struct move_files files;
	int rc;

	if (!skip)
		return ckpt_error(err, -ENOMEM, "no memory to check %.300s", x->o->path);
	rc = move_open(x->e->ops, x->o->fd, k, true, x->e->io, &files, err);
	if (rc)
		return rc;
	files.buffer_bytes = x->v->buffer_bytes;
	rc = data_read(x, &files, skip, err);
	move_close(&files);
	return rc;
}

/* What there is to read, and of it nothing has been. */
static void verified_begin(const struct checkpoint *k, struct engine_verified *ret)
{
	struct move_verified size;

	move_subset_size(k, &(struct move_subset){ 0 }, &size);
	ret->data = (struct move_verified){ .all_bytes = size.all_bytes,
					    .all_chunks = size.all_chunks,
					    .all_pieces = k->table.npiece };
	if (!k->partial)
		ret->bytes = k->stored_bytes - MIN(size.bytes, k->stored_bytes);
	sums_make(k, NULL, ret);
}

int engine_verify(const struct engine *e, const struct engine_subject *s,
		  const struct engine_verify *v, struct opened *o, struct engine_verified *ret,
		  struct ckpt_err *err)
{
	struct verifying x = {
		.e = e, .v = v, .fault = s->how.fault, .arg = s->how.fault_arg, .o = o, .ret = ret
	};
	struct engine_subject subject = *s;
	int rc, data = 0;

	*ret = (struct engine_verified){ 0 };
	subject.flags |= v->data ? SOURCE_FRESH : 0;
	subject.how.fault = verifying_fault;
	subject.how.fault_arg = &x;
	rc = engine_open(e, &subject, o, err);
	rc = rc == -ESTALE ? rc : engine_damage(rc);
	ret->damaged = rc && err->code == -EBADMSG;
	if (o->ckpt) {
		verified_begin(o->ckpt, ret);
		if (v->data)
			data = engine_damage(data_check(&x, rc ? NULL : err));
	}
	ret->damaged |= data == -EBADMSG;
	if (data == -ECANCELED || data == -EBADMSG || !rc)
		rc = data;
	return !rc && ret->nfault ? -EBADMSG : rc;
}

/* --- one answer --- */

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
					     .how.fault = checking_fault,
					     .how.fault_arg = &c };
	const struct engine_verify all = {
		.data = true, .buffer_bytes = x->buffer_bytes, .begin = x->begin, .arg = x->arg
	};
	struct ckpt_err found = { 0 };
	struct engine_verified got;
	struct opened o;
	int rc = engine_verify(e, &step, &all, &o, &got, &found);

	engine_close(&o);
	if (ret)
		*ret = (struct engine_checked){ .bytes = got.bytes, .nfault = got.nfault };
	return checking_judge(&c, rc, &found, x->path, err);
}
