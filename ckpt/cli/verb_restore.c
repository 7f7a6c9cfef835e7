/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_restore.c - ckptctl restore: a checkpoint on another mesh as a safetensors file per rank,
 * for programs that know nothing of ckptd.
 * Invariant: the directory holds what it held before, or that and all files that were asked for.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/io/publish.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/memory_step.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/rank_files.h"
#include "ckpt/cli/remesh.h"
#include "ckpt/cli/selection.h"
#include "ckpt/cli/subject.h"
#include "ckpt/cli/verb_convert.h"
#include "ckpt/engine/verify.h"
#include "ckpt/cli/view_file.h"
#include "ckpt/engine/open.h"
#include "ckpt/move/cast.h"
#include "ckpt/move/damage.h"
#include "ckpt/move/move.h"
#include "ckpt/plan/reshard.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define MEM_LIMIT GIB  /* without --mem-limit */
#define FILES_SAID 16u /* more are summed up for people */
#define FREE_SPARE MIB /* of directory entries and the like */
#define AGAIN (-1)     /* in place of an exit code: nothing is printed yet; look for damage */

struct restore {
	struct cli *c;
	const char *name; /* of the checkpoint: the first argument, or the path of memory's step */
	struct memory_step memory;
	struct subject s;
	struct selection only; /* stands below the view */
	struct view_file view;
	bool alone;		      /* without --mesh: everything in one file */
	char mesh[CKPT_NAME_MAX + 8]; /* that it has then */
	uint32_t dtype;		      /* 0: as they are */
	struct safetensors_meta meta[SELECTION_META];
	struct remesh to;
	struct rank_files files;
	uint64_t mem_limit;
	uint32_t first, n; /* ranks */
	bool one;	   /* --rank */
	int refused;	   /* the exit code, told while the parts were chosen */
	/* The directory: dir_fd -1 until it is there, parent_fd and base where it has to be made. */
	const char *path;
	struct publish_place d;
	int dir_fd, parent_fd;
	bool made;
	uint64_t begin_ns;
	double speed;
	/* --keep-going */
	bool keep_going, scanned; /* scanned: every byte was looked at */
	struct damage damage;
	uint32_t nleft;
	bool *left; /* [ntensor] that are damaged, and left out */
};

/* --- the directory --- */

struct contents {
	uint32_t n, ntemp;
};

static int count_entry(void *arg, const char *name, unsigned char d_type)
{
	struct contents *x = arg;

	(void)d_type;
	x->n++;
	x->ntemp += rank_file_is_temp(name);
	return 0;
}

static int check_empty(struct restore *r, struct ckpt_err *err)
{
	const struct io_ops *ops = r->c->ops;
	struct contents x = { 0 };
	int rc = ops->list(ops->ctx, r->dir_fd, count_entry, &x);

	if (rc)
		return ckpt_error_errno(err, -rc, "%s cannot be read", r->path);
	if (x.n && x.n == x.ntemp)
		return ckpt_error(
			err, -EBUSY,
			"%s holds %u unfinished file%s (.rank-*.tmp-*) of another restore, "
			"which is under way or was killed",
			r->path, x.n, x.n == 1 ? "" : "s");
	if (x.n)
		return ckpt_error(err, -EINVAL,
				  "%s is not empty: a restore of all ranks takes a directory that "
				  "does not exist yet, or an empty one",
				  r->path);
	return 0;
}

static int check_absent(struct restore *r, struct ckpt_err *err)
{
	char name[RANK_FILE_NAME_MAX];
	struct stat st;

	rank_file_name(r->first, name);
	if (fstatat(r->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0)
		return ckpt_error(err, -EINVAL, "%s already has a %s, which was not changed",
				  r->path, name);
	return errno == ENOENT ? 0 : ckpt_error_errno(err, errno, "%s cannot be read", r->path);
}

static int parent_open(struct restore *r, struct ckpt_err *err)
{
	int rc = publish_split(r->path, &r->d, err);

	if (rc)
		return rc;
	r->parent_fd = open(r->d.parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	return r->parent_fd < 0 ? ckpt_error_errno(err, errno, "%s cannot be made in %s", r->path,
						   r->d.parent)
				: 0;
}

/* Find where the files go; nothing is made yet. */
static int directory_find(struct restore *r, struct ckpt_err *err)
{
	const struct engine e = { .ops = r->c->ops, .format = formats };
	int rc;

	r->dir_fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (r->dir_fd < 0 && errno == ENOTDIR)
		return ckpt_error(err, -EINVAL, "%s is not a directory", r->path);
	if (r->dir_fd < 0 && errno != ENOENT)
		return ckpt_error_errno(err, errno, "%s cannot be opened", r->path);
	if (r->dir_fd < 0) {
		rc = parent_open(r, err);
		if (rc)
			return rc;
	}
	rc = engine_outside(&e, &r->s.o, r->path, r->dir_fd >= 0 ? r->dir_fd : r->parent_fd, err);
	if (rc || r->dir_fd < 0)
		return rc;
	return r->one ? check_absent(r, err) : check_empty(r, err);
}

static int directory_make(struct restore *r, struct ckpt_err *err)
{
	const struct io_ops *ops = r->c->ops;
	int rc;

	if (r->dir_fd >= 0)
		return 0;
	rc = ops->mkdir(ops->ctx, r->parent_fd, r->d.base, 0777);
	/* Of several runs with --rank one makes it. */
	if (rc == -EEXIST && !r->one)
		return ckpt_error(err, -EBUSY,
				  "another process made %s meanwhile: it was not changed", r->path);
	if (rc && rc != -EEXIST)
		return ckpt_error_errno(err, -rc, "%s cannot be made", r->path);
	r->made = !rc;
	rc = ops->open(ops->ctx, r->parent_fd, r->d.base, O_RDONLY | O_DIRECTORY, 0);
	if (rc < 0)
		return ckpt_error_errno(err, -rc, "%s cannot be opened", r->path);
	r->dir_fd = rc;
	return 0;
}

static int check_space(struct restore *r, struct ckpt_err *err)
{
	char need[HUMAN_BYTES], room[HUMAN_BYTES];
	struct statvfs fs;
	uint64_t avail;

	/* Where it cannot be asked, the files find out. */
	if (fstatvfs(r->dir_fd >= 0 ? r->dir_fd : r->parent_fd, &fs) ||
	    ckpt_mul(fs.f_bavail, fs.f_frsize, &avail))
		return 0;
	if (r->files.bytes <= avail && avail - r->files.bytes >= FREE_SPARE)
		return 0;
	return ckpt_error(err, -ENOSPC, "%s is too small: the files take %s, and %s are free there",
			  r->path, human_bytes(r->files.bytes, need), human_bytes(avail, room));
}

/* --- what was done --- */

static void put_files(struct restore *r)
{
	static const struct column files[] = {
		{ "file", "file", false, FIT_LAST },
		{ "rank", "rank", true, FIT_WHOLE },
		{ "tensor_count", "tensors", true, FIT_WHOLE },
		{ "bytes", "size", true, FIT_WHOLE },
		{ "data_bytes", NULL, true, FIT_WHOLE },
		{ "other_blob_count", NULL, true, FIT_WHOLE },
	};
	struct output *o = r->c->o;

	output_list(o, "files", files, ARRAY_LEN(files));
	for (uint32_t i = 0; i < r->n && (o->machine || r->n <= FILES_SAID); i++) {
		const struct rank_file *f = &r->files.file[i];

		output_row(o);
		output_put(o, &files[0], cell_text(f->name));
		output_put(o, &files[1], cell_of(CELL_NUMBER, f->rank));
		output_put(o, &files[2], cell_of(CELL_COUNT, f->ntensor));
		output_put(o, &files[3], cell_of(CELL_BYTES, f->bytes));
		output_put(o, &files[4], cell_of(CELL_BYTES, f->data_bytes));
		output_put(o, &files[5], cell_of(CELL_NUMBER, f->nblob_other));
		output_close(o);
	}
	output_close(o);
}

static void put_left(struct restore *r)
{
	static const struct column left[] = {
		{ "tensor", "left out", false, FIT_LAST },
		{ "why", "why", false, FIT_WRAP },
	};
	const struct table *t = &r->s.ckpt->table;
	struct output *o = r->c->o;
	char name[2 * CKPT_NAME_MAX + 64], why[600];

	output_list(o, "left_out", left, ARRAY_LEN(left));
	for (uint32_t i = 0; r->left && i < t->ntensor; i++) {
		if (!r->left[i])
			continue;
		(void)damage_of(&r->damage, t, i, why, sizeof why);
		output_row(o);
		output_put(o, &left[0],
			   cell_text(table_tensor_print(&t->tensor[i], name, sizeof name)));
		output_put(o, &left[1], cell_text(why));
		output_close(o);
	}
	output_close(o);
}

/* What --only selected, and of whom its tensors are: raw weights must not pass for averaged ones. */
static void put_only(struct restore *r)
{
	static const struct column only[] = {
		{ "component", NULL, false, FIT_WHOLE },
		{ "tensor_count", NULL, false, FIT_WHOLE },
		{ "copied_count", NULL, false, FIT_WHOLE },
		{ "average", NULL, false, FIT_WHOLE },
		{ "schedule", NULL, false, FIT_WHOLE },
		{ "updates", NULL, false, FIT_WHOLE },
		{ "last_step", NULL, false, FIT_WHOLE },
		{ "since_step", NULL, false, FIT_WHOLE },
		{ "mixed", NULL, false, FIT_WHOLE },
	};
	struct output *o = r->c->o;

	output_list(o, "only", NULL, 0);
	for (uint32_t i = 0; i < r->only.n && o->machine; i++) {
		const struct selection_of *x = &r->only.of[i];
		const struct table_average *a = x->average;

		output_row(o);
		output_put(o, &only[0], cell_text(x->component));
		output_put(o, &only[1], cell_of(CELL_NUMBER, x->ntensor));
		output_put(o, &only[2], cell_of(CELL_NUMBER, x->ncopied));
		output_put(o, &only[3], cell_word(a ? a->name : NULL));
		output_put(o, &only[4], cell_word(a ? a->schedule : NULL));
		output_put(o, &only[5], a ? cell_of(CELL_NUMBER, a->updates) : cell_none());
		output_put(o, &only[6],
			   a ? cell_unless(CELL_NUMBER, a->last_step, UINT64_MAX) : cell_none());
		output_put(o, &only[7], a ? cell_of(CELL_NUMBER, a->since) : cell_none());
		output_put(o, &only[8],
			   a ? cell_of(CELL_FLAG, (a->flags & AVERAGE_MIXED) != 0) : cell_none());
		output_close(o);
	}
	output_close(o);
}

static void say_only(struct restore *r)
{
	for (uint32_t i = 0; i < r->only.n; i++) {
		const struct selection_of *x = &r->only.of[i];
		const struct table_average *a = x->average;
		char count[HUMAN_BYTES], copied[HUMAN_BYTES];

		if (!a) {
			cli_hint(r->c, "%s: %s tensor%s.", x->component,
				 human_count(x->ntensor, count), x->ntensor == 1 ? "" : "s");
			continue;
		}
		if (!x->ncopied)
			cli_hint(r->c, "%s: %s averaged tensor%s (%s).", x->component,
				 human_count(x->ntensor, count), x->ntensor == 1 ? "" : "s",
				 a->schedule);
		else
			cli_hint(
				r->c,
				"%s: %s averaged tensor%s (%s), and %s that the average copies, which %s "
				"the step's own (%s%s).",
				x->component, human_count(x->ntensor, count),
				x->ntensor == 1 ? "" : "s", a->schedule,
				human_count(x->ncopied, copied), x->ncopied == 1 ? "is" : "are",
				x->copied, x->ncopied == 1 ? "" : ", ...");
		if (a->flags & AVERAGE_MIXED)
			cli_hint(
				r->c,
				"%s: its parts have different chains of updates: ckptctl ema explains.",
				x->component);
	}
}

/* What the cast could not hold. Returns how many elements. */
static uint64_t put_overflows(struct restore *r)
{
	static const struct column over[] = {
		{ "tensor", "became infinite", false, FIT_LAST },
		{ "element_count", "elements", true, FIT_WHOLE },
	};
	const struct table *t = &r->to.target;
	struct output *o = r->c->o;
	char name[2 * CKPT_NAME_MAX + 64];
	uint64_t all = 0;

	output_list(o, "overflows", over, ARRAY_LEN(over));
	for (uint32_t i = 0; r->files.overflow && i < t->ntensor; i++) {
		if (!r->files.overflow[i])
			continue;
		all += r->files.overflow[i];
		output_row(o);
		output_put(o, &over[0],
			   cell_text(table_tensor_print(&t->tensor[i], name, sizeof name)));
		output_put(o, &over[1], cell_of(CELL_COUNT, r->files.overflow[i]));
		output_close(o);
	}
	output_close(o);
	return all;
}

/* Per-rank blobs belong to ranks of the old mesh: who has them now? */
static void say_blobs(struct restore *r)
{
	const struct table *t = &r->to.target;
	uint32_t world = target_world(t), old = 0, last = r->first + r->n - 1, example = TABLE_NONE;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];

		if (x->rank == TABLE_NONE || x->cls == CKPT_SINK)
			continue;
		old = MAX(old, x->rank + 1);
		if (example == TABLE_NONE && x->rank >= world && x->rank % world >= r->first &&
		    x->rank % world <= last)
			example = i;
	}
	if (example != TABLE_NONE) {
		const struct table_tensor *x = &t->tensor[example];

		cli_hint(r->c,
			 "%u ranks had blobs of their own, and this mesh has %u: rank %u also has "
			 "rank %u's, as %s%s%s/rank-%05u%s.",
			 old, world, x->rank % world, x->rank, x->component,
			 *x->component ? "/" : "", x->name, x->rank,
			 old > world + 1 ? ", and so on" : "");
	}
	if (old && last >= old)
		cli_hint(r->c,
			 "%u ranks had blobs of their own: ranks %u and above have none of these.",
			 old, MAX(old, r->first));
}

/* Returns how many elements became infinite. */
static uint64_t put_result(struct restore *r)
{
	static const struct column path = { "path", NULL, false, FIT_WHOLE },
				   from_memory = { "from_memory", NULL, false, FIT_WHOLE },
				   job = { "job", NULL, false, FIT_WHOLE },
				   step = { "step", NULL, false, FIT_WHOLE },
				   view = { "view_file", NULL, false, FIT_WHOLE },
				   dtype = { "dtype", NULL, false, FIT_WHOLE },
				   destination = { "destination", NULL, false, FIT_WHOLE },
				   bytes = { "bytes", NULL, false, FIT_WHOLE },
				   took = { "took_s", NULL, false, FIT_WHOLE },
				   speed = { "bytes_per_second", NULL, false, FIT_WHOLE };
	const struct checkpoint *k = r->s.ckpt;
	struct output *o = r->c->o;
	char text[512], size[HUMAN_BYTES], count[HUMAN_BYTES];
	const char *from = r->memory.dir[0] ? " from memory" : "";
	uint64_t over;

	mesh_print(r->to.target.mesh, text, sizeof text);
	output_put(o, &path, r->memory.dir[0] ? cell_none() : cell_text(r->s.ref.path));
	output_put(o, &from_memory, cell_of(CELL_FLAG, r->memory.dir[0] != 0));
	output_put(o, &job, cell_word(k->job));
	output_put(o, &step, cell_of(CELL_NUMBER, k->step));
	remesh_put(r->c, &r->to);
	output_put(o, &view, cell_word(r->c->value[OPT_VIEW]));
	output_put(o, &dtype, cell_word(r->c->value[OPT_DTYPE]));
	put_only(r);
	output_put(o, &destination, cell_text(r->path));
	put_files(r);
	put_left(r);
	over = put_overflows(r);
	output_put(o, &bytes, cell_of(CELL_BYTES, r->files.bytes));
	output_put(o, &took,
		   cell_real((double)elapsed_ns(r->begin_ns, now_ns()) / (double)NS_PER_S));
	output_put(o, &speed, cell_of(CELL_NUMBER, (uint64_t)r->speed));
	human_bytes(r->files.bytes, size);
	if (r->alone)
		cli_say(r->c, STYLE_PLAIN, "Wrote %s/%s, %s: step %llu%s.", r->path,
			r->files.file[0].name, size, (unsigned long long)k->step, from);
	else if (r->one)
		cli_say(r->c, STYLE_PLAIN, "Wrote %s/%s, %s: step %llu%s, rank %u of %s.", r->path,
			r->files.file[0].name, size, (unsigned long long)k->step, from, r->first,
			text);
	else
		cli_say(r->c, STYLE_PLAIN, "Wrote %s file%s to %s, %s: step %llu%s on %s.",
			human_count(r->n, count), r->n == 1 ? "" : "s", r->path, size,
			(unsigned long long)k->step, from, text);
	return over;
}

/* --- the work --- */

/* 0, or the exit code: it has been told; or AGAIN. */
static int fail(struct restore *r, int rc, bool write, const struct ckpt_err *err)
{
	if (rc == -ECANCELED)
		return cli_fail(r->c, rc,
				&(struct ckpt_err){ .msg = "interrupted; nothing was written" },
				NULL);
	if (rc == -ENOSPC || rc == -EDQUOT)
		return cli_fail(r->c, rc, err, "free space there, or use another DIR");
	if (!write && rc != -EINVAL && rc != -EMEDIUMTYPE && engine_damage(rc) == -EBADMSG &&
	    r->keep_going && !r->scanned)
		return AGAIN;
	if (!write && rc != -EINVAL && rc != -EMEDIUMTYPE && engine_damage(rc) == -EBADMSG)
		return cli_fail(
			r->c, -EBADMSG, err,
			"ckptctl verify --data %s lists every fault; ckptctl ls lists the other "
			"checkpoints",
			r->s.ref.path);
	return cli_fail(r->c, rc, err, NULL);
}

static int fill(struct restore *r)
{
	struct cli *c = r->c;
	struct progress progress;
	struct move_files from;
	struct ckpt_err err = { 0 };
	bool write = false;
	int rc = move_open(c->ops, r->s.ref.step_fd, r->s.ckpt, true, IO_AUTO, &from, &err);

	if (rc)
		return fail(r, rc, false, &err);
	progress_begin(&progress, c, r->files.source_bytes, "step %llu",
		       (unsigned long long)r->s.ckpt->step);
	rc = rank_files_write(&r->files, r->dir_fd, &from, r->mem_limit, progress_tick, &progress,
			      &write, &err);
	r->speed = progress_end(&progress);
	move_close(&from);
	if (rc)
		return fail(r, rc, write, &err);
	if (cli_stopped())
		return fail(r, -ECANCELED, true, &err);
	rc = rank_files_publish(&r->files, r->dir_fd, &err);
	return rc ? fail(r, rc, true, &err) : CLI_OK;
}

/* The directory's own name must last as the files do. */
static int sync_parent(struct restore *r)
{
	struct ckpt_err err = { 0 };
	int rc = r->made ? r->c->ops->sync(r->c->ops->ctx, r->parent_fd) : 0;

	if (!rc)
		return CLI_OK;
	ckpt_error_errno(&err, -rc, "the directory of %s cannot be synced to the disk", r->path);
	return cli_fail(r->c, rc, &err, NULL);
}

static int write_all(struct restore *r)
{
	const struct io_ops *ops = r->c->ops;
	struct ckpt_err err = { 0 };
	int rc = directory_make(r, &err), code;

	if (rc)
		code = fail(r, rc, true, &err);
	else
		code = fill(r);
	if (!code)
		return sync_parent(r);
	if (r->dir_fd >= 0)
		rank_files_drop(&r->files, r->dir_fd);
	if (r->made) {
		(void)ops->unlink(ops->ctx, r->parent_fd, r->d.base, true);
		(void)close(TAKE_FD(r->dir_fd));
		r->made = false;
	}
	return code;
}

/* All reasons, however many: struct ckpt_err has room for some. */
static void misfit(struct restore *r, const char *reasons)
{
	cleanup_free char *text = NULL, *next = NULL;

	if (asprintf(&text, "safetensors cannot hold this checkpoint:\n%s", reasons) < 0)
		text = NULL;
	if (asprintf(&next, "ckptctl cat %s TENSOR writes one tensor of any dtype", r->s.ref.path) <
	    0)
		next = NULL;
	r->c->o->ops->error(r->c->o, CLI_MISFIT, text ? text : reasons, next);
}

static bool is_small_float(uint32_t dtype)
{
	return dtype == CKPT_F8_E4M3 || dtype == CKPT_F8_E5M2 || dtype == CKPT_F8_E8M0 ||
	       dtype == CKPT_F8_E4M3FNUZ || dtype == CKPT_F8_E5M2FNUZ || dtype == CKPT_F4;
}

/* All that --only and --dtype cannot do, before anything is written: 0, or the exit code, which has been
 * told. */
static int check_names(struct restore *r)
{
	struct ckpt_errlist casts = { .code = -EMEDIUMTYPE }, clashes = { .code = -EMEDIUMTYPE };
	const struct table *t = &r->to.target;
	char name[2 * CKPT_NAME_MAX + 64];
	struct ckpt_err err = { 0 };
	int rc = 0, code = CLI_OK;

	for (uint32_t i = 0; i < t->ntensor && r->dtype; i++)
		if (t->tensor[i].cls != CKPT_SINK && is_small_float(t->tensor[i].dtype))
			ckpt_errlist_add(&casts, "%s: %s",
					 table_tensor_print(&t->tensor[i], name, sizeof name),
					 dtype_name(t->tensor[i].dtype));
	rc = ckpt_errlist_end(&casts, &err, "--dtype cannot cast elements of these dtypes");
	if (rc)
		code = cli_fail(r->c, rc, &err, "run this without --dtype");
	if (!rc && r->c->value[OPT_ONLY]) {
		rc = selection_clashes(t, &clashes, &err);
		if (!rc)
			rc = ckpt_errlist_end(
				&clashes, &err,
				"files of --only have names without components, and several tensors "
				"would have one name");
		if (rc)
			code = cli_fail(r->c, rc, &err,
					"restore one component at a time, or rename tensors with "
					"--view");
	}
	ckpt_errlist_free(&casts);
	ckpt_errlist_free(&clashes);
	return code;
}

/* Which files there will be. */
static int files_make(struct restore *r)
{
	struct ckpt_errlist list = { .code = -EMEDIUMTYPE };
	struct rank_files_as as = { .bare = r->c->value[OPT_ONLY] != NULL,
				    .alone = r->alone,
				    .dtype = r->dtype,
				    .meta = r->meta };
	struct selection_meta meta[SELECTION_META];
	struct ckpt_err err = { 0 };
	int rc = check_names(r);

	if (rc)
		return rc;
	rank_files_free(&r->files);
	if (selection_meta(&r->only, meta, &as.nmeta))
		return cli_fail(r->c,
				ckpt_error(&err, -ENOMEM, "out of memory for the files' metadata"),
				&err, NULL);
	for (uint32_t i = 0; i < as.nmeta; i++)
		r->meta[i] = (struct safetensors_meta){ meta[i].key, meta[i].value };
	rc = rank_files_make(r->c->ops, r->s.ckpt, &r->to.target, &as, r->first, r->n, &r->files,
			     &list, &err);
	if (rc == -EMEDIUMTYPE && list.text) {
		misfit(r, list.text);
		ckpt_errlist_free(&list);
		return cli_exit(rc);
	}
	ckpt_errlist_free(&list);
	if (!rc)
		rc = check_space(r, &err);
	return rc ? fail(r, rc, true, &err) : CLI_OK;
}

/* What can be refused before anything is written. */
static int prepare(struct restore *r)
{
	struct ckpt_err err = { 0 };
	int rc = directory_find(r, &err);

	if (rc)
		return cli_fail(r->c, rc, &err,
				rc == -EBUSY	? "if none is running: rm %s/.rank-*.tmp-*"
				: rc == -ENOENT ? "mkdir -p %s, and run this again"
						: NULL,
				rc == -ENOENT ? r->d.parent : r->path);
	return files_make(r);
}

/* Which ranks. */
static int take_ranks(struct restore *r, struct ckpt_err *err)
{
	const char *s = r->c->value[OPT_RANK];
	uint32_t world = target_world(&r->to.target);
	unsigned long rank;
	char *end;

	r->first = 0;
	r->n = world;
	if (!s)
		return 0;
	r->one = true;
	r->n = 1;
	errno = 0;
	rank = strtoul(s, &end, 10);
	if (*s < '0' || *s > '9' || *end)
		return ckpt_error(err, -EINVAL, "--rank=%s is not a number", s);
	if (errno || rank >= world)
		return ckpt_error(err, -EINVAL, "--rank=%s: the mesh %s has the ranks 0 to %u", s,
				  r->c->value[OPT_MESH], world - 1);
	r->first = (uint32_t)rank;
	return 0;
}

static int take_mem_limit(struct restore *r, struct ckpt_err *err)
{
	const char *s = r->c->value[OPT_MEM_LIMIT];

	r->mem_limit = MEM_LIMIT;
	if (s && human_parse_bytes(s, &r->mem_limit))
		return ckpt_error(
			err, -EINVAL,
			"--mem-limit=%s is not a size: write 512M, 2G or a number of bytes", s);
	return 0;
}

/* Without --mesh a model in one file is wanted: a mesh of one rank, in which a dimension of the
 * checkpoint's own mesh keeps its name, so that a layout file can name it. */
static void take_alone(struct restore *r, const struct table *t)
{
	if (!r->c->value[OPT_ONLY] || r->c->value[OPT_MESH])
		return;
	r->alone = true;
	snprintf(r->mesh, sizeof r->mesh, "%s=1",
		 t->nmesh && t->mesh[0].ndim ? t->mesh[0].name[0] : "rank");
	r->c->value[OPT_MESH] = r->mesh;
}

/* The mesh and the ranks on it: 0, or the exit code, which has been told. */
static int take_mesh(struct restore *r, const struct subject *s)
{
	struct ckpt_err err = { 0 };
	int code, rc;

	take_alone(r, &s->ckpt->table);
	code = remesh(r->c, s, &r->to);

	if (code)
		return code;
	rc = take_ranks(r, &err);
	return rc ? cli_fail(r->c, rc, &err, NULL) : CLI_OK;
}

/* --- one rank: of thousands of parts it needs a few --- */

/* No part is opened for the sake of tensors that --only does not select. */
static int leave_unselected(struct restore *r, const struct checkpoint *k)
{
	cleanup_free bool *take = calloc((size_t)k->table.ntensor + 1, sizeof *take);
	struct ckpt_err err = { 0 };
	int code;

	if (!r->c->value[OPT_ONLY])
		return CLI_OK;
	if (!take)
		return cli_fail(r->c, ckpt_error(&err, -ENOMEM, "out of memory for --only"), &err,
				NULL);
	code = selection_choose(r->c, k, take);
	for (uint32_t i = 0; i < k->table.ntensor && !code; i++)
		if (!take[i])
			r->to.target.tensor[i].cls = CKPT_SINK;
	return code;
}

static int choose_parts(void *arg, const struct checkpoint *k, bool *needed, struct ckpt_err *err)
{
	struct reshard_opts opts = { .blobs = true };
	struct restore *r = arg;
	struct subject s = r->s;
	struct reshard *plan;
	bool all = false;
	int rc;

	s.ckpt = (struct checkpoint *)k; /* only looked at; remesh lasts as long as it does */
	r->refused = take_mesh(r, &s);
	if (r->refused)
		return -ECANCELED;
	r->refused = leave_unselected(r, k);
	if (r->refused)
		return -ECANCELED;
	rc = reshard_open(&k->table, &r->to.target, &opts, &plan, err);
	if (!rc)
		rc = reshard_ranks(plan, r->first, k->world, needed, &all, err);
	reshard_close(plan);
	if (rc || all) /* layouts are a hint: where they do not help, all parts are needed */
		memset(needed, true, k->world);
	return rc == -ENOMEM ? rc : 0;
}

/* Do the parts that were chosen hold all that the rank needs? */
static int is_enough(struct restore *r, bool *ret, struct ckpt_err *err)
{
	struct plan_opts opts = { .memory_blobs = true };
	struct table mine = { 0 };
	struct plan plan = { 0 };
	int rc = target_rank(&r->to.target, r->first, &mine, err);

	if (!rc)
		rc = plan_make(&r->s.ckpt->table, &mine, &opts, &plan, NULL, err);
	plan_free(&plan);
	table_free(&mine);
	*ret = rc != -EMEDIUMTYPE;
	return *ret ? rc : 0;
}

/* --- what is damaged is left out --- */

/* As subject_get, of what is damaged too. */
static int subject_get_damaged(struct restore *r)
{
	struct cli *c = r->c;
	struct ckpt_err err = { 0 };
	const struct format *force = NULL;
	int rc = subject_from(c, &force, &err);

	if (!rc)
		rc = subject_find(&r->s, c->ops, c->where, r->name, force, &err);

	if (rc)
		return subject_tell(c, rc, &err, r->name);
	subject_note(c, &r->s.ref);
	r->s.partial = true;
	rc = subject_open(&r->s, damage_fault, &r->damage, &err);
	if (rc == -EBADMSG && r->s.ckpt)
		rc = damage_settle(&r->damage, r->s.ckpt, &err);
	if (rc == -EBADMSG)
		return cli_fail(c, rc, &err,
				"ckptctl verify %s lists every fault; without its MANIFEST nothing "
				"can be restored",
				r->s.ref.path);
	return rc ? subject_tell(c, rc, &err, r->name) : CLI_OK;
}

/* Tensors that are not whole are not on the new mesh either: as if there had been none. */
static int leave_out(struct restore *r)
{
	struct table *to = &r->to.target;
	struct ckpt_err err = { 0 };
	uint32_t nkept = 0;
	char why[600];

	free(r->left);
	r->nleft = 0;
	r->left = calloc((size_t)to->ntensor + 1, sizeof *r->left);
	if (!r->left)
		return cli_fail(r->c, ckpt_error(&err, -ENOMEM, "no memory for the tensors' list"),
				&err, NULL);
	for (uint32_t i = 0; i < to->ntensor; i++) {
		r->left[i] = damage_of(&r->damage, &r->s.ckpt->table, i, why, sizeof why);
		if (r->left[i])
			to->tensor[i].cls = CKPT_SINK;
		r->nleft += r->left[i];
		nkept += to->tensor[i].cls != CKPT_SINK && to->tensor[i].numel;
	}
	if (!r->nleft || nkept)
		return CLI_OK;
	ckpt_error(&err, -EBADMSG, "each of the %u tensors is damaged: nothing can be restored",
		   r->nleft);
	return cli_fail(r->c, -EBADMSG, &err, "ckptctl verify --data %s lists every fault",
			r->s.ref.path);
}

/* Read every byte, so that nothing that is damaged is written. */
static int find_damage(struct restore *r)
{
	const struct checkpoint *k = r->only.whole   ? r->only.whole
				     : r->view.whole ? r->view.whole
						     : r->s.ckpt;
	struct cli *c = r->c;
	struct move_files files;
	struct move_verified size;
	struct progress progress;
	struct ckpt_err err = { 0 };
	uint64_t bytes;
	int rc;

	r->scanned = true;
	if (!r->one)
		cli_hint(
			c,
			"The checkpoint is damaged: ckptctl reads it in full to find the undamaged tensors.");
	move_subset_size(k, &(struct move_subset){ 0 }, &size);
	rc = move_open(c->ops, r->s.ref.step_fd, k, true, IO_AUTO, &files, &err);
	if (rc)
		return fail(r, rc, false, &err);
	progress_begin(&progress, c, size.bytes, "step %llu", (unsigned long long)k->step);
	rc = move_verify(&files, progress_tick, &progress, damage_fault, &r->damage, &bytes, &err);
	progress_end(&progress);
	move_close(&files);
	if (rc && rc != -EBADMSG && rc != -EIO)
		return fail(r, rc, false, &err);
	rc = damage_settle(&r->damage, k, &err);
	if (rc)
		return fail(r, rc, false, &err);
	rc = leave_out(r);
	return rc ? rc : files_make(r);
}

/* Open the checkpoint, and its tensors on the mesh. */
static int subject_get_mesh(struct restore *r)
{
	struct cli *c = r->c;
	struct ckpt_err err = { 0 };
	bool enough;
	int code, rc;

	/* What a view is made of is not known before all pieces are. */
	if (c->value[OPT_RANK] && c->value[OPT_MESH] && !c->value[OPT_VIEW] && !r->keep_going) {
		code = subject_get_some(c, r->name, choose_parts, r, &r->s);
		if (code)
			return code < 0 ? r->refused : code;
		if (c->value[OPT_ONLY]) {
			remesh_free(&r->to);
			code = selection_begin(c, &r->s, false, &r->only);
			if (!code)
				code = take_mesh(r, &r->s);
			if (code)
				return code;
		}
		if (!r->s.ckpt->some)
			return r->to.from ? CLI_OK : take_mesh(r, &r->s);
		rc = is_enough(r, &enough, &err);
		if (rc)
			return fail(r, rc, false, &err);
		if (enough)
			return CLI_OK;
		remesh_free(&r->to);
		selection_end(&r->s, &r->only);
		subject_close(&r->s);
	}
	code = r->keep_going ? subject_get_damaged(r) : subject_get(c, r->name, &r->s);
	if (!code)
		code = selection_begin(c, &r->s, c->value[OPT_VIEW] != NULL, &r->only);
	if (!code)
		code = view_file_begin(c, &r->s, &r->view);
	if (!code)
		code = take_mesh(r, &r->s);
	return code || !r->keep_going ? code : leave_out(r);
}

/* A file with everything is placed as was asked: what is no longer cut is no news. */
static void remesh_say(struct restore *r)
{
	if (!r->alone) {
		remesh_tell(r->c, &r->to);
		return;
	}
	output_list(r->c->o, "changes", NULL, 0);
	output_close(r->c->o);
}

static int restore(struct restore *r)
{
	struct cli *c = r->c;
	uint64_t over;
	int code = subject_get_mesh(r);

	if (code)
		return code;
	code = prepare(r);
	if (code)
		return code;
	output_line(c->o, "ckptd.restore/1", "summary");
	remesh_say(r);
	/* Each rank's own run must leave out the same. */
	code = r->keep_going && r->one ? AGAIN : write_all(r);
	if (code == AGAIN)
		code = find_damage(r);
	if (!code && r->scanned)
		code = write_all(r);
	if (code)
		return code;
	over = put_result(r);
	output_end(c->o);
	say_only(r);
	say_blobs(r);
	if (over)
		cli_hint(c, "%llu elements are too large for %s and became infinite.",
			 (unsigned long long)over, c->value[OPT_DTYPE]);
	if (r->nleft)
		cli_hint(c, "%u of %u tensors are damaged and were left out.", r->nleft,
			 r->to.target.ntensor);
	return r->nleft || over ? CLI_WARNINGS : CLI_OK;
}

/* Have the daemon write it beside DIR first. What can be refused is, before it does. */
static int take_memory(struct restore *r)
{
	struct cli *c = r->c;
	struct ckpt_err err = { 0 };
	struct publish_place d;
	int rc, code;

	if (!c->value[OPT_MESH] && !c->value[OPT_ONLY])
		return cli_fail(
			c, ckpt_error(&err, -EINVAL, "--mesh is missing: which mesh to load onto?"),
			&err, "ckptctl restore %s %s --from-memory --mesh fsdp=4", c->arg[0],
			r->path);
	rc = publish_split(r->path, &d, &err);
	if (rc)
		return cli_fail(c, rc, &err, NULL);
	code = memory_step_get(c, c->arg[0], d.parent, &r->memory);
	r->name = r->memory.path;
	return code;
}

/* Complete tensors, as convert writes them; not what only files of ranks have. */
static bool is_complete(const struct cli *c)
{
	static const enum cli_option_id ranks[] = { OPT_MESH,	OPT_RANK,	 OPT_ONLY,
						    OPT_LAYOUT, OPT_FROM_MEMORY, OPT_KEEP_GOING };

	for (uint32_t i = 0; i < ARRAY_LEN(ranks); i++)
		if (c->value[ranks[i]])
			return false;
	return true;
}

/* Options that only complete tensors have. */
static int refuse_complete(struct cli *c)
{
	static const struct {
		enum cli_option_id id;
		const char *name;
	} only[] = { { OPT_STRIP, "strip" },
		     { OPT_SHARD_SIZE, "shard-size" },
		     { OPT_DROP_UNSUPPORTED, "drop-unsupported" },
		     { OPT_DRY_RUN, "dry-run" } };
	struct ckpt_err err = { 0 };

	for (uint32_t i = 0; i < ARRAY_LEN(only); i++)
		if (c->value[only[i].id])
			return cli_fail(
				c,
				ckpt_error(&err, -EINVAL,
					   "--%s is for complete tensors: not with --mesh, --rank, "
					   "--only, --layout, --keep-going or --from-memory",
					   only[i].name),
				&err, NULL);
	return CLI_OK;
}

static int restore_run(struct cli *c)
{
	struct restore r = {
		.c = c, .s.ref.step_fd = -1, .dir_fd = -1, .parent_fd = -1, .begin_ns = now_ns()
	};
	struct ckpt_err err = { 0 };
	int code;

	if (c->narg < 2)
		return cli_fail(
			c,
			ckpt_error(&err, -EINVAL,
				   "restore needs a checkpoint and the directory to write to"),
			&err, "ckptctl restore latest DIR --mesh SPEC");
	if (is_complete(c)) {
		c->value[OPT_TO_FORMAT] = "safetensors";
		return convert_run(c);
	}
	code = refuse_complete(c);
	if (code)
		return code;
	if (take_mem_limit(&r, &err))
		return cli_fail(c, -EINVAL, &err, NULL);
	if (c->value[OPT_RANK] && c->value[OPT_ONLY] && !c->value[OPT_MESH])
		return cli_fail(
			c, ckpt_error(&err, -EINVAL, "--rank needs --mesh: a rank of which mesh?"),
			&err, "--only without --mesh and --rank writes one file with everything");
	r.dtype = c->value[OPT_DTYPE] ? dtype_of_name(c->value[OPT_DTYPE]) : 0;
	r.path = c->arg[1];
	r.name = c->arg[0];
	code = c->value[OPT_FROM_MEMORY] ? take_memory(&r) : CLI_OK;
	r.keep_going = c->value[OPT_KEEP_GOING] != NULL;
	if (!code)
		code = restore(&r);
	rank_files_free(&r.files);
	damage_free(&r.damage);
	free(r.left);
	remesh_free(&r.to);
	view_file_end(&r.s, &r.view);
	selection_end(&r.s, &r.only);
	subject_close(&r.s);
	if (r.dir_fd >= 0)
		close(r.dir_fd);
	if (r.parent_fd >= 0)
		close(r.parent_fd);
	memory_step_drop(&r.memory);
	return code;
}

const struct cli_verb verb_restore = {
	.name = "restore",
	.synonyms = (const char *const[]){ "export", NULL },
	.help = "write safetensors files, one per rank of a mesh",
	.synopsis =
		(const char *const[]){
			"CKPT DIR --mesh=SPEC [--rank=R] [--only=COMPONENT]... [--dtype=DTYPE] "
			"[--view=FILE] [--layout=FILE] [--mem-limit=BYTES] [--keep-going] "
			"[--from-memory]",
			"CKPT DST [--strip=COMPONENT] [--dtype=DTYPE] [--view=FILE] "
			"[--shard-size=BYTES] [--mem-limit=BYTES] [--drop-unsupported] [-n]",
			"CKPT DIR --only=COMPONENT... [--dtype=DTYPE] [--view=FILE] "
			"[--layout=FILE] [--mem-limit=BYTES] [--keep-going] [--from-memory]",
			NULL },
	.about =
		"Without --mesh, restore (or export: it has both names) writes the complete tensors, "
		"as Hugging Face has them: DST is one file, if its name ends in .safetensors, or a "
		"directory with model.safetensors, or, with --shard-size, with "
		"model-00001-of-00003.safetensors, ... and their index. Keys are component.name; "
		"--strip COMPONENT leaves that component's name away, as load_state_dict and "
		"from_pretrained want it. A tensor with several names (tied weights) is there under "
		"each of them. The same command continues a run that was interrupted. "
		"docs/JSON.md: the summary is that of ckptctl convert.\n"
		"With --mesh, restore writes the data of each rank of a mesh to DIR/rank-00000.safetensors, "
		"DIR/rank-00001.safetensors, .... Every program that reads safetensors can load these "
		"files. Keys are component/name, each tensor is the rank's local shard (also an "
		"empty one, with a 0 in its shape), blobs are U8. Blobs that belong to no rank are in "
		"every file. Blobs of a rank are in that rank's file; if the mesh has fewer ranks, "
		"rank R also has those of R + world, R + 2 world, ..., as "
		"component/name/rank-00007. The files' metadata has job, step, mesh and rank.\n"
		"ckptctl plan -h describes how tensors are cut on the new mesh. CKPT is latest, "
		"latest~1, 12000, JOB@latest, or a path. If DIR does not exist, restore makes it; "
		"otherwise it must be empty. With --rank DIR may have other ranks' files, and restore "
		"opens only the parts that have data of that rank.\n"
		"With --only restore writes the tensors of one component, or those whose "
		"component/name, or name, matches a pattern with *; it can be given several times. Keys are then the tensors' own names, without a component: "
		"those of the model. If two tensors would have one name, restore lists them and "
		"writes nothing. With --only and without --mesh everything is in one file, "
		"DIR/model.safetensors. --only ema.fast is the averaged model: the averaged "
		"tensors, and those that the average copies (buffers, frozen tensors, ...; "
		"ckpt_average), which are the step's own. The file's metadata names the average, "
		"its schedule, its number of updates and their last step.\n"
		"With --dtype floating-point tensors (F16, BF16, F32, F64) are cast, rounded to "
		"nearest even; all others stay. Elements that are too large become infinite: "
		"restore counts them, and exits with 3.\n"
		"With --view restore first renames, copies, drops, splits, joins and transposes "
		"tensors, by the rules of a file: \"rename model/layers.*.wq -> blk.{1}.q\", "
		"\"copy model/wte.weight -> lm_head.weight\", \"drop optim/*\", \"split "
		"model/l.*.qkv dim 0 sizes 4096,1024,1024 -> l.{1}.q l.{1}.k l.{1}.v\", "
		"\"stack model/experts.#.up dim 0 -> experts.up\", \"transpose model/w dims "
		"1,0\" (docs/LAYOUTS.md describes all rules). A tensor that is cut or joined along "
		"a sharded dimension is complete on every rank, unless --layout places it otherwise. "
		"With --view restore opens all parts. With --only the rules apply to the selected "
		"tensors alone, and averaged tensors have the components of those that they "
		"average: a file of rules that was written for the model serves its averages, too. "
		"Keys are the new names without their components.\n"
		"restore checks every byte that it reads, and uses a bounded amount of memory. "
		"The files appear when all of them are complete and on the disk; after an error "
		"or Ctrl-C DIR is as it was.\n"
		"With --keep-going restore leaves damaged tensors out of the files, lists them, and "
		"exits with 3. The files have no damaged data. If the damage is in the data, restore "
		"reads the checkpoint in full to find it; with --rank it always does, so that every "
		"rank leaves out the same tensors.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl restore latest model.safetensors --strip model",
			  "the complete model in one file, under its own names" },
			{ "ckptctl restore latest out --mesh fsdp=3", "all ranks of fsdp=3" },
			{ "ckptctl restore step:90 out --mesh fsdp=1", "everything in one file" },
			{ "ckptctl restore latest out --mesh fsdp=1 --view names.txt",
			  "the same under other names" },
			{ "ckptctl restore 90 out --mesh fsdp=1 --keep-going",
			  "the undamaged tensors of a damaged step" },
			{ "ckptctl restore demo@latest out --mesh fsdp=1 --from-memory",
			  "the newest step of job demo in the memory of ckptd" },
			{ "ckptctl restore latest out --only ema.fast --dtype BF16",
			  "the averaged model in one file, under the model's names" },
			{ "ckptctl restore latest out --mesh dp=2,fsdp=8 --rank 5",
			  "one rank's file, on its own host" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			REMESH_OPTIONS,
			VIEW_OPTION,
			{ OPT_RANK, "only this rank's file" },
			{ OPT_ONLY,
			  "only this component, or tensors whose name matches, without the "
			  "component in the keys; can be repeated" },
			{ OPT_DTYPE, "cast floating-point tensors: F32, BF16 or F16" },
			{ OPT_MEM_LIMIT, "memory for data, as in 512M (default: 1G)" },
			{ OPT_FROM_MEMORY, "of the newest staged step, which a ckptd here holds" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_STRIP, "leave this component's name out of the keys" },
			{ OPT_SHARD_SIZE,
			  "split complete tensors into files of at most so many bytes" },
			{ OPT_DROP_UNSUPPORTED, "leave out what safetensors cannot hold" },
			{ OPT_DRY_RUN, "only print what would be made" },
			{ OPT_KEEP_GOING, "leave out and list the tensors that are damaged" },
			{ OPT_FROM,
			  "the format of a CKPT that is a path, if ckptctl takes it for another" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0; 2 the mesh, the layout or view file, --rank or --only is wrong, DIR is not "
		"empty or is in a checkpoint; 3 damaged tensors were left out (--keep-going), or "
		"elements became infinite (--dtype); 4 the checkpoint is damaged; 5 it is not "
		"committed; 7 safetensors cannot hold a tensor, --dtype cannot cast one, two would "
		"have one name, or an average is not complete; 8 the average's rules are of a newer "
		"version; 10 there is no such store or checkpoint, or none in "
		"memory; 11 another restore "
		"writes to DIR; 12 no permission; 13 no space; 14 no daemon (--from-memory); 15 it does not "
		"answer; 130, 143 interrupted.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_DIR, ARG_NONE },
	.narg_max = 2,
	.run = restore_run,
};
