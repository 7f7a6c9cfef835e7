/* SPDX-License-Identifier: Apache-2.0 */
/*
 * identity.c - see identity.h. Invariant: two checkpoints of equal identity were read from the same
 * metadata and the same files.
 */
#include "ckpt/engine/identity.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/io/io_source.h"

static int files_stamp(const struct source_dir *watch, const struct checkpoint *k,
		       struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < k->nfile && !rc; i++) {
		if (k->file[i].lost || k->file[i].unread)
			continue;
		rc = source_stamp(watch, k->file[i].name);
		if (rc == -ESTALE)
			ckpt_error(
				err, rc,
				"%.300s was changed or replaced while its metadata were read: run "
				"this again when nothing writes to it",
				k->file[i].name);
		else if (rc)
			ckpt_error_errno(err, -rc, "%s cannot be examined", k->file[i].name);
	}
	return rc;
}

/* Name, length, times and inode of every file. */
static int stamp_make(const struct opened *o, struct hash128 *ret, struct ckpt_err *err)
{
	struct source_dir watch;
	int rc = source_watch(&o->dir, &watch);

	if (rc)
		return ckpt_error(err, rc, "out of memory for the files of a checkpoint");
	rc = files_stamp(&watch, o->ckpt, err);
	*ret = source_watched(&watch);
	source_end(&watch);
	return rc;
}

int identity_make(struct opened *o, const struct source_dir *watch, struct ckpt_err *err)
{
	int rc;

	if (o->ckpt->has & HAS_SUMS) {
		o->identity = hash128(o->ckpt->id, strlen(o->ckpt->id));
		return 0;
	}
	rc = MUTANT(SOURCE_BY_METADATA) ? 0 : files_stamp(watch, o->ckpt, err);
	o->identity = source_watched(watch);
	return rc ? rc : stamp_make(o, &o->stamp, err);
}

int identity_check(const struct opened *o, const char *name, struct ckpt_err *err)
{
	struct hash128 now;
	int rc;

	if (o->ckpt->has & HAS_SUMS || MUTANT(SOURCE_NOT_STAMPED))
		return 0;
	rc = stamp_make(o, &now, err);
	if (rc && rc != -ENOENT)
		return rc;
	if (!rc && !memcmp(now.b, o->stamp.b, sizeof now.b))
		return 0;
	return ckpt_error(err, -ESTALE,
			  "files of %s have changed while it was read: nothing was made of it",
			  name);
}
