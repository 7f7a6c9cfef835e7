/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_write.c - the files of ckptctl export, which the engine writes. Called by verb_export.c.
 * Invariant: all files appear by one rename. If one rank's file cannot be written, the directory
 * around it is removed, if this run made it.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/export.h"
#include "ckpt/engine/open.h"
#include "ckpt/engine/verify.h"
#include "ckpt/io/publish.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <sys/stat.h>

#define TOOL "ckptctl " CKPT_VERSION

/* --- the destination --- */

int export_find(struct export *r)
{
	struct publish_path d;
	struct ckpt_err err = { 0 };
	struct stat st;
	int n, code;

	r->file = r->one || (r->alone && convert_is_file(r->path, r->format));
	n = r->one ? snprintf(r->dst, sizeof r->dst, "%s/rank-%05u%s", r->path, r->first,
			      r->format->ending)
		   : snprintf(r->dst, sizeof r->dst, "%s", r->path);
	if ((size_t)n >= sizeof r->dst) {
		ckpt_error(&err, -ENAMETOOLONG, "the path %.60s... is too long", r->path);
		return cli_fail(r->c, -ENAMETOOLONG, &err, NULL);
	}
	code = convert_place(r->c, r->path, UINT64_MAX, &d);
	if (code || (r->file && !r->one) || stat(r->path, &st) || S_ISDIR(st.st_mode))
		return code;
	ckpt_error(&err, -EINVAL, "%s is not a directory", r->path);
	return cli_fail(r->c, -EINVAL, &err, NULL);
}

/* --rank: make the directory around the file. Of several runs with --rank one makes it. */
static int directory_make(struct export *r, struct ckpt_err *err)
{
	const struct io_ops *ops = r->c->ops;
	const struct engine e = { .ops = ops, .format = formats };
	struct publish_path d;
	cleanup_close int parent = -1;
	int rc = publish_split(r->path, &d, err);

	if (rc || !r->one || r->c->value[OPT_DRY_RUN])
		return rc;
	parent = open(d.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (parent < 0)
		return ckpt_error_errno(err, errno, "%s cannot be opened", d.parent);
	rc = access(r->path, F_OK) ? engine_outside(&e, &r->s.o, r->path, parent, "", err) : 0;
	if (rc)
		return rc;
	rc = ops->mkdir(ops->ctx, parent, d.base, 0777);
	r->made_dir = !rc;
	if (!rc)
		rc = ops->sync(ops->ctx, parent);
	return !rc || rc == -EEXIST ? 0 : ckpt_error_errno(err, -rc, "%s cannot be made", r->path);
}

/* Remove the directory that this run made, unless another run has put a file there. */
static void directory_drop(struct export *r)
{
	const struct io_ops *ops = r->c->ops;
	struct publish_path d;
	cleanup_close int parent = -1;

	if (!r->made_dir || publish_split(r->path, &d, NULL))
		return;
	parent = open(d.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (parent >= 0)
		(void)ops->unlink(ops->ctx, parent, d.base, true);
	r->made_dir = false;
}

/* --- the files --- */

int export_fail(struct export *r, int rc, bool source, const struct ckpt_err *err)
{
	struct ckpt_err again = { 0 };

	if (rc == -ECANCELED)
		return cli_fail(r->c, rc,
				&(struct ckpt_err){ .msg = "interrupted; nothing was written" },
				NULL);
	if (r->beside.mixed)
		return export_mixed(r, err);
	if (rc == -EMEDIUMTYPE)
		return convert_misfit(r->c, r->s.ref.path, &r->made, &r->cannot, err);
	if (rc == -EEXIST && r->begun) {
		ckpt_error(&again, -EBUSY, "another process made %s meanwhile: it was not changed",
			   r->dst);
		return cli_fail(r->c, again.code, &again, NULL);
	}
	if (rc == -EEXIST)
		return cli_fail(r->c, -EINVAL, err, NULL);
	if (rc == -ENOSPC || rc == -EDQUOT)
		return cli_fail(r->c, rc, err, "free space there, or use another DIR");
	if (source && rc != -EINVAL && engine_damage(rc) == -EBADMSG && r->keep_going &&
	    !r->scanned)
		return EXPORT_AGAIN;
	if (source && rc != -EINVAL && engine_damage(rc) == -EBADMSG)
		return cli_fail(
			r->c, -EBADMSG, err,
			"ckptctl verify --data %s lists every fault; ckptctl ls lists the other "
			"checkpoints",
			CLI_WORD(r->s.ref.path));
	return cli_fail(r->c, rc, err, NULL);
}

static int on_tick(void *arg, uint64_t done)
{
	struct export *r = arg;

	return r->begun ? progress_tick(&r->progress, done) : cli_stopped();
}

static void on_begun(void *arg)
{
	struct export *r = arg;
	char title[SUBJECT_TITLE];

	export_document(r);
	progress_begin(&r->progress, r->c, r->made.bytes, "%s",
		       subject_short(r->s.ckpt, r->s.ref.path, title));
	r->begun = true;
}

/* Blobs of ranks that the mesh does not have, which this rank's file carries. */
static uint32_t blobs_carried(const struct export *r, uint32_t rank)
{
	const struct table *t = &r->to.target;
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		n += t->tensor[i].cls != CKPT_SINK && t->tensor[i].rank != TABLE_NONE &&
		     t->tensor[i].rank != rank && t->tensor[i].rank % target_world(t) == rank;
	return n;
}

static int on_planned(void *arg, const struct sheet *s, struct ckpt_err *err)
{
	struct export *r = arg;

	free(r->made_file);
	r->made_file = calloc(s->nfile, sizeof *r->made_file);
	if (!r->made_file)
		return ckpt_error(err, -ENOMEM, "out of memory for a list of files");
	r->nfile = s->nfile;
	for (uint32_t i = 0; i < r->nfile; i++) {
		struct export_file *f = &r->made_file[i];

		snprintf(f->name, sizeof f->name, "%s", s->file[i].name);
		f->rank = r->alone ? 0 : r->first + i;
		f->ntensor = s->file[i].ntensor;
		f->nblob_other = blobs_carried(r, f->rank);
		f->bytes = f->data_bytes = s->file[i].bytes;
	}
	for (uint32_t i = 0; i < s->nrun && r->nfile; i++)
		r->made_file[s->run[i].file].data_bytes -= s->run[i].len;
	return r->one ? export_beside(r, s, err) : 0;
}

static int on_ready(void *arg, struct ckpt_err *err)
{
	struct export *r = arg;

	return r->one ? export_beside_again(r, err) : 0;
}

static bool has_attr(const struct checkpoint_attr *attr, uint32_t n, const char *key)
{
	for (uint32_t i = 0; i < n; i++)
		if (!strcmp(attr[i].key, key))
			return true;
	return false;
}

/* The files record what the checkpoint does, and what was selected and cast. */
static int facts_make(struct export *r, struct ckpt_err *err)
{
	struct checkpoint *k = r->s.ckpt;
	struct selection_meta meta[SELECTION_META];
	struct checkpoint_attr *attr;
	char *sum = arena_alloc(&r->arena, 17);
	uint32_t nmeta, n = 0;

	attr = arena_array(&r->arena, (size_t)k->nattr + SELECTION_META + 2, sizeof *attr);
	if (!sum || !attr || selection_meta(&r->only.selection, meta, &nmeta))
		return ckpt_error(err, -ENOMEM, "out of memory for the files' metadata");
	if (r->c->value[OPT_DTYPE])
		attr[n++] = (struct checkpoint_attr){ "dtype", r->c->value[OPT_DTYPE] };
	/* Files of ranks that were made with other rules do not fit together. */
	snprintf(sum, 17, "%016llx",
		 (unsigned long long)le64_get(*(const le64 *)(const void *)r->view.sum.b));
	if (r->c->value[OPT_VIEW] && !r->alone)
		attr[n++] = (struct checkpoint_attr){ "view", sum };
	for (uint32_t i = 0; i < nmeta; i++)
		attr[n++] = (struct checkpoint_attr){ meta[i].key, meta[i].value };
	for (uint32_t i = 0, own = n; i < k->nattr; i++)
		if (!has_attr(attr, own, k->attr[i].key))
			attr[n++] = k->attr[i];
	if (r->c->value[OPT_FROM_MEMORY]) /* the id is that of a copy, which export removes */
		*k->id = 0;
	r->said = *k;
	r->said.attr = attr;
	r->said.nattr = n;
	return 0;
}

static int engine_run(struct export *r, struct ckpt_err *err)
{
	struct opened src = r->s.o;
	const struct engine e = { .ops = r->c->ops,
				  .io = IO_AUTO,
				  .format = formats,
				  .mem_limit = r->mem_limit,
				  .tick = on_tick,
				  .arg = r };
	const char *slash = strrchr(r->dst, '/');
	const struct engine_convert how = { .src = &src,
					    .target = &r->to.target,
					    .to = r->format,
					    .want = { .facts = &r->said,
						      .tool = TOOL,
						      .stem = r->file ? (slash ? slash + 1 : r->dst)
								      : NULL,
						      .shard_bytes = r->shard_bytes,
						      .strip = r->c->value[OPT_STRIP],
						      .tied = r->tied,
						      .by_rank = !r->alone,
						      .rank_first = r->first,
						      .nrank = r->one ? 1 : 0,
						      .bare = r->c->value[OPT_ONLY] != NULL },
					    .dst = r->dst,
					    .file = r->file,
					    .source = r->s.ref.path,
					    .once = true,
					    .dry = r->c->value[OPT_DRY_RUN],
					    .drop = r->c->value[OPT_DROP_UNSUPPORTED],
					    .overflow = r->overflow,
					    .planned = on_planned,
					    .ready = on_ready,
					    .begun = on_begun,
					    .begun_arg = r };
	int rc = facts_make(r, err);

	if (rc)
		return rc;
	src.ckpt = r->s.ckpt; /* perhaps through a view */
	ckpt_errlist_free(&r->cannot);
	r->cannot = (struct ckpt_errlist){ .code = -EMEDIUMTYPE };
	r->begun = false;
	rc = engine_convert(&e, &how, &r->made, &r->cannot, err);
	if (r->begun)
		r->speed = progress_end(&r->progress);
	return rc;
}

int export_write(struct export *r)
{
	struct ckpt_err err = { 0 };
	int rc = directory_make(r, &err);

	if (!rc)
		rc = engine_run(r, &err);
	if (!rc)
		return CLI_OK;
	directory_drop(r);
	return export_fail(r, rc, r->made.source_failed, &err);
}
