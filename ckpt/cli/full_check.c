/* SPDX-License-Identifier: Apache-2.0 */
/*
 * full_check.c - every byte of a step, once, with one answer. Called by ckptctl prune before anything
 * older goes, and by repair.
 * Invariant: 0 means that all bytes of all files were read and that all of them are right.
 */
#include "ckpt/cli/full_check.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/progress.h"
#include "ckpt/move/move.h"
#include <fcntl.h>

struct check {
	uint64_t ndamage, nunread;
	char first[2][400]; /* what was said first: of damage, of what could not be read */
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct check *x = arg;
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

static int check_data(struct cli *c, const struct subject *s, struct check *x, uint64_t *ret_bytes,
		      struct ckpt_err *err)
{
	struct progress progress;
	struct move_files files;
	struct move_verified size;
	int rc;

	move_subset_size(s->ckpt, &(struct move_subset){ 0 }, &size);
	rc = move_open(c->ops, s->ref.step_fd, s->ckpt, true, IO_AUTO, &files, err);
	if (rc)
		return rc;
	progress_begin(&progress, c, size.bytes, "step %llu", (unsigned long long)s->ckpt->step);
	rc = move_verify(&files, progress_tick, &progress, on_fault, x, ret_bytes, err);
	progress_end(&progress);
	move_close(&files);
	return rc;
}

/* Wrong, though no sum is: it contradicts itself, or files are missing. */
static bool is_unproven(int code)
{
	return code == -EPROTO || code == -EUCLEAN;
}

int full_check(struct cli *c, int step_fd, const char *path, struct full_checked *ret,
	       struct ckpt_err *err)
{
	struct subject s = { .ref.step_fd = -1 };
	struct check x = { 0 };
	struct ckpt_err e = { 0 };
	uint64_t bytes = 0;
	int rc, fd = fcntl(step_fd, F_DUPFD_CLOEXEC, 0);

	if (fd < 0)
		return ckpt_error_errno(err, errno, "%.300s cannot be read", path);
	subject_take(&s, c->ops, fd, path);
	s.flags = SOURCE_FRESH;
	rc = subject_open(&s, on_fault, &x, &e);
	if (!rc)
		rc = check_data(c, &s, &x, &bytes, &e);
	if (s.ckpt)
		bytes += s.ckpt->stored_bytes - MIN(bytes, s.ckpt->stored_bytes);
	subject_close(&s);
	if (ret)
		*ret = (struct full_checked){ .bytes = bytes, .nfault = x.ndamage + x.nunread };
	if (rc == -ECANCELED)
		return ckpt_error(err, rc, "interrupted while %.300s was checked", path);
	/* What this version cannot judge is not damaged. */
	if (rc == -EPROTONOSUPPORT && !MUTANT(NEWER_QUARANTINED))
		return ckpt_error(err, rc, "%s", e.msg);
	if (x.ndamage)
		return ckpt_error(err, rc == -EBADMSG && is_unproven(e.code) ? e.code : -EBADMSG,
				  "%s", x.first[0]);
	if (x.nunread && (!rc || rc == -EBADMSG || rc == -EIO))
		return ckpt_error(err, -EIO, "%s", x.first[1]);
	/* subject_open calls whatever is wrong -EBADMSG; the error knows better. */
	if (rc == -EBADMSG && e.code && e.code != -EBADMSG)
		rc = is_unproven(e.code) ? e.code : -EIO;
	return rc ? ckpt_error(err, rc, "%s", e.msg[0] ? e.msg : strerror(-rc)) : 0;
}
