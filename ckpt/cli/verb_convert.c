/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_convert.c - ckptctl convert: a checkpoint written again, for another mesh or in another
 * format. Invariant: the destination is complete or not there, and nothing that existed is touched.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/casts.h"
#include "ckpt/cli/explicit_option.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/mesh_option.h"
#include "ckpt/cli/subject.h"
#include "ckpt/cli/verb_convert.h"
#include "ckpt/engine/convert.h"
#include "ckpt/io/publish.h"
#include "ckpt/layout/human.h"
#include "formats/registry/registry.h"
#include <inttypes.h>
#include <sys/stat.h>

#define MEM_LIMIT GIB		  /* without --mem-limit */
#define JOURNAL_NS (3 * NS_PER_S) /* between two journals */
#define TOOL "ckptctl " CKPT_VERSION
#define OPTIONS_BYTES 4096u
#define NO_JOB "imported" /* of a source that has no job, without --job */
#define FIELD(name, key) static const struct column name = { key, NULL, false, FIT_WHOLE }

struct converting {
	struct cli *c;
	struct subject s;
	struct view_file view;
	struct remesh to;
	struct explicit_option explicit;
	struct links links_read;
	const struct links *links;     /* NULL: no --links */
	const struct format *format;   /* of what is made */
	bool file;		       /* one file, not a directory */
	bool alone;		       /* without --mesh: one rank */
	bool by_rank;		       /* files with what each rank of the mesh holds */
	char mesh[CONVERT_MESH_BYTES]; /* without --mesh: the mesh of one rank */
	struct publish_path place;
	struct checkpoint said; /* step, job, ... that DST records */
	char options[OPTIONS_BYTES];
	uint64_t shard_bytes;
	enum format_tied tied;
	uint32_t nleft;	 /* tensors that --only leaves out */
	char source[64]; /* "id ..." */
	struct converted made;
	struct progress progress;
	bool begun; /* the document, and the progress in it */
	uint64_t mem_limit, begin_ns;
	double speed;
};

FIELD(f_path, "path");
FIELD(f_job, "job");
FIELD(f_step, "step");
FIELD(f_destination, "destination");
FIELD(f_from, "from_format");
FIELD(f_format, "format");
FIELD(f_files, "file_count");
FIELD(f_dropped, "dropped_tensor_count");
FIELD(f_dry, "dry_run");
FIELD(f_overflow, "overflow_count");
FIELD(f_id, "destination_id");
FIELD(f_compared, "compared_tensor_count");
FIELD(f_unknown, "made_tensor_count");
FIELD(f_bytes, "tensor_bytes");
FIELD(f_before, "resumed_bytes");
FIELD(f_stored, "bytes");
FIELD(f_seconds, "took_s");
FIELD(f_speed, "bytes_per_second");

static void say_compared(struct converting *x)
{
	const struct converted *f = &x->made;
	char count[HUMAN_BYTES], made[HUMAN_BYTES];

	if (f->nmade && !(x->s.ckpt->has & HAS_PRINTS))
		cli_say(x->c, STYLE_PLAIN,
			"The source has no fingerprints to compare: those of %s tensor%s were made on "
			"the way.",
			human_count(f->nmade, made), f->nmade == 1 ? "" : "s");
	else if (f->nmade)
		cli_say(x->c, STYLE_PLAIN,
			"Fingerprints: %s as in the source, %s new (of tensors that are cast, reduced "
			"or cut, or have none in the source).",
			human_count(f->nprint, count), human_count(f->nmade, made));
	else if (f->nprint > 1)
		cli_say(x->c, STYLE_PLAIN,
			"The fingerprints of all %s tensors are those of the source.",
			human_count(f->nprint, count));
	else if (f->nprint)
		cli_say(x->c, STYLE_PLAIN, "The fingerprint of its tensor is that of the source.");
}

static void say_made(struct converting *x, uint64_t ns)
{
	const struct converted *f = &x->made;
	uint32_t world = target_world(&x->to.target);
	char mesh[512], size[HUMAN_BYTES], span[HUMAN_BYTES], speed[64] = "", step[48] = "";
	char format[600], dst[PATH_MAX];

	screen_clean(x->c->arg[1], dst, sizeof dst);
	mesh_print(x->to.target.mesh, mesh, sizeof mesh);
	snprintf(format, sizeof format, "%s%s%s", x->format->name, x->by_rank ? " on " : "",
		 x->by_rank ? mesh : "");
	if (x->c->out_screen.terminal && x->speed > 0)
		snprintf(speed, sizeof speed, " in %s, %.2f GB/s", human_span(ns, span),
			 x->speed / 1e9);
	if (x->said.has & HAS_STEP)
		snprintf(step, sizeof step, "step %llu%s", (unsigned long long)x->said.step,
			 x->format->root ? " on " : ", ");
	if (x->c->value[OPT_DRY_RUN])
		cli_say(x->c, STYLE_PLAIN,
			"Would write %s: %s, %u file%s, %s. Nothing was written.", dst, format,
			f->nfile, f->nfile == 1 ? "" : "s", human_bytes(f->made_bytes, size));
	else if (x->format->root)
		cli_say(x->c, STYLE_PLAIN, "Wrote %s: %s%s, %u part%s, %s%s.", dst, step, mesh,
			world, world == 1 ? "" : "s", human_bytes(f->made_bytes, size), speed);
	else
		cli_say(x->c, STYLE_PLAIN, "Wrote %s: %s%s, %u file%s, %s%s.", dst, step, format,
			f->nfile, f->nfile == 1 ? "" : "s", human_bytes(f->made_bytes, size),
			speed);
}

static void put_result(struct converting *x)
{
	const struct converted *f = &x->made;
	struct output *o = x->c->o;
	uint64_t ns = elapsed_ns(x->begin_ns, now_ns());
	bool dry = x->c->value[OPT_DRY_RUN];

	output_put(o, &f_path, cell_text(x->s.ref.path));
	output_put(o, &f_from, cell_text(x->s.ckpt->format->name));
	output_put(o, &f_job, cell_word(x->said.job));
	output_put(o, &f_step,
		   x->said.has & HAS_STEP ? cell_of(CELL_NUMBER, x->said.step) : cell_word(NULL));
	mesh_option_put(x->c, &x->to);
	output_put(o, &f_destination, cell_text(x->c->arg[1]));
	output_put(o, &f_format, cell_text(x->format->name));
	output_put(o, &f_dry, cell_of(CELL_FLAG, dry));
	output_put(o, &f_id, cell_word(f->id));
	output_put(o, &f_files, cell_of(CELL_NUMBER, f->nfile));
	output_put(o, &f_compared, cell_of(CELL_NUMBER, f->nprint));
	output_put(o, &f_unknown, cell_of(CELL_NUMBER, f->nmade));
	output_put(o, &f_dropped, cell_of(CELL_NUMBER, f->ndropped));
	output_put(o, &f_overflow, cell_of(CELL_NUMBER, f->noverflow));
	output_put(o, &f_bytes, cell_of(CELL_BYTES, f->made_bytes));
	output_put(o, &f_before, cell_of(CELL_BYTES, f->before));
	output_put(o, &f_stored, cell_of(CELL_BYTES, f->stored_bytes));
	output_put(o, &f_seconds, cell_real((double)ns / (double)NS_PER_S));
	output_put(o, &f_speed, cell_of(CELL_NUMBER, (uint64_t)x->speed));
	say_made(x, ns);
	say_compared(x);
	explicit_option_put(x->c, &x->to, &x->explicit, x->mem_limit, CONVERT_PEAK);
}

/* What an earlier run had done, and how to give up. */
#define AGAIN "run the same command again: it continues where this one stopped. To give up"

static int fail_kept(struct converting *x, int rc, const struct ckpt_err *err, const char *what)
{
	const char *unfinished = x->made.unfinished;
	char lock[sizeof x->made.unfinished];

	snprintf(lock, sizeof lock, "%.*s", (int)(strlen(unfinished) - strlen("-new")), unfinished);
	return cli_fail(x->c, rc, err, "%s: rm -r %s %s", what, CLI_WORD(lock),
			CLI_WORD(unfinished));
}

/* Report what went wrong, and what to do. Returns the exit code. */
static int failure_report(struct converting *x, int rc, const struct ckpt_err *err)
{
	bool kept = x->made.kept;

	if (rc == -ECANCELED) {
		const struct ckpt_err said = {
			.msg = "interrupted; the destination does not exist"
		};

		return kept ? fail_kept(x, rc, &said, AGAIN) : cli_fail(x->c, rc, &said, NULL);
	}
	if (rc == -ENOSPC || rc == -EDQUOT)
		return kept ? fail_kept(x, rc, err, "free space, then " AGAIN)
			    : cli_fail(x->c, rc, err, "free space there, or give another DST");
	if (rc == -EBADMSG || rc == -EPROTO)
		return cli_fail(x->c, -EBADMSG, err,
				"ckptctl verify --data %s lists every fault; ckptctl ls, the other "
				"checkpoints",
				CLI_WORD(x->s.ref.path));
	if (kept && rc == -EEXIST)
		return fail_kept(
			x, -EINVAL, err,
			"move it away, then run the same command again: only the rename is "
			"missing. To give up");
	if (kept)
		return fail_kept(x, rc, err, AGAIN);
	return cli_fail(x->c, rc == -EEXIST ? -EINVAL : rc, err, NULL);
}

static void say_resumed(struct converting *x)
{
	const struct converted *f = &x->made;
	char done[HUMAN_BYTES], all[HUMAN_BYTES];

	if (f->resumed)
		cli_hint(x->c, "Continuing an earlier run: %s of %s are done (%s).",
			 human_bytes(f->before, done), human_bytes(f->bytes, all), f->unfinished);
	else if (f->restarted)
		cli_hint(x->c,
			 "Nothing of an earlier run can be used: starting from the beginning (%s).",
			 f->unfinished);
}

/* Blobs of ranks that the new mesh does not have: which rank has them now? */
static void say_blobs(struct converting *x)
{
	const struct table *t = &x->to.target;
	uint32_t world = target_world(t), old = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].rank != TABLE_NONE)
			old = MAX(old, t->tensor[i].rank + 1);
	if (old > world)
		cli_hint(x->c,
			 "%u ranks had blobs of their own, and this mesh has %u. All blobs are "
			 "kept: those of rank %u are in the %s of rank 0, and so on.",
			 old, world, world, x->format->root ? "part" : "file");
}

static int on_tick(void *arg, uint64_t done)
{
	struct converting *x = arg;

	return x->begun ? progress_tick(&x->progress, done) : cli_stopped();
}

/* Without --mesh the command does not ask how tensors are placed: the list is empty. */
static void changes_print(struct converting *x)
{
	if (!x->alone) {
		mesh_option_print(x->c, &x->to);
		return;
	}
	output_list(x->c->o, "changes", NULL, 0);
	output_close(x->c->o);
}

static void on_begun(void *arg)
{
	struct converting *x = arg;
	char title[SUBJECT_TITLE];

	output_line(x->c->o, "ckptd.convert/1", "summary");
	changes_print(x);
	say_resumed(x);
	progress_begin(&x->progress, x->c, x->made.bytes, "%s",
		       subject_short(x->s.ckpt, x->s.ref.path, title));
	progress_skip(&x->progress, x->made.before);
	x->begun = true;
}

void convert_cannot_say(struct cli *c, const struct ckpt_errlist *cannot)
{
	for (const char *p = cannot->text, *end; p && *p; p = end ? end + 1 : NULL) {
		end = strchr(p, '\n');
		cli_hint(c, "  left out: %.*s", end ? (int)(end - p) : (int)strlen(p), p);
	}
}

int convert_misfit(struct cli *c, const char *path, const struct converted *f,
		   const struct ckpt_errlist *cannot, const struct ckpt_err *err)
{
	cleanup_free char *text = NULL;
	char next[CLI_WORD_BYTES + 128];

	if (asprintf(&text, "%s:\n%s", err->msg, cannot->text ? cannot->text : "") < 0)
		text = NULL;
	snprintf(next, sizeof next,
		 "--drop-unsupported leaves them out; ckptctl cat %s TENSOR writes one tensor of "
		 "any dtype",
		 CLI_WORD(path));
	c->o->ops->error(c->o, CLI_MISFIT, text ? text : err->msg,
			 f->ndropped || f->nunsaid ? next : NULL);
	return cli_exit(-EMEDIUMTYPE);
}

/* What was made, and the exit code. */
static int made_say(struct converting *x, const struct ckpt_errlist *cannot)
{
	const struct converted *f = &x->made;

	if (!x->begun) {
		output_line(x->c->o, "ckptd.convert/1", "summary");
		changes_print(x);
	}
	put_result(x);
	output_end(x->c->o);
	if (x->format->root || x->by_rank)
		say_blobs(x);
	convert_cannot_say(x->c, cannot);
	casts_tell_overflow(x->c, f->noverflow);
	return f->ndropped || f->nunsaid || f->noverflow ? CLI_WARNINGS : CLI_OK;
}

static int engine_run(struct converting *x)
{
	struct opened src = x->s.o;
	const struct engine e = { .ops = x->c->ops,
				  .io = IO_AUTO,
				  .format = formats,
				  .mem_limit = x->mem_limit,
				  .tick = on_tick,
				  .arg = x };
	const struct engine_convert how = { .src = &src,
					    .target = &x->to.target,
					    .to = x->format,
					    .want = { .facts = &x->said,
						      .tool = TOOL,
						      .stem = x->file ? x->place.base : NULL,
						      .shard_bytes = x->shard_bytes,
						      .strip = x->c->value[OPT_STRIP],
						      .tied = x->tied,
						      .by_rank = x->by_rank },
					    .dst = x->c->arg[1],
					    .file = x->file,
					    .source = x->s.ckpt->has & HAS_SUMS ? x->source
										: x->s.ref.path,
					    .options = x->options,
					    .journal_ns = JOURNAL_NS,
					    .dry = x->c->value[OPT_DRY_RUN],
					    .drop = x->c->value[OPT_DROP_UNSUPPORTED],
					    .check = x->c->value[OPT_CHECK],
					    .begun = on_begun,
					    .begun_arg = x };
	struct ckpt_errlist cannot = { .code = -EMEDIUMTYPE };
	struct ckpt_err err = { 0 };
	int rc, code;

	src.ckpt = x->s.ckpt; /* perhaps through a view */
	rc = engine_convert(&e, &how, &x->made, &cannot, &err);
	if (x->begun)
		x->speed = progress_end(&x->progress);
	if (rc == -EMEDIUMTYPE)
		code = convert_misfit(x->c, x->s.ref.path, &x->made, &cannot, &err);
	else
		code = rc ? failure_report(x, rc, &err) : made_say(x, &cannot);
	ckpt_errlist_free(&cannot);
	return code;
}

/* --- before --- */

int convert_place(struct cli *c, const char *dst, uint64_t own_step, struct publish_path *ret)
{
	struct ckpt_err err = { 0 };
	int rc = publish_split(dst, ret, &err);

	if (!rc)
		rc = store_outside(c->ops, dst, own_step, &err);
	if (rc)
		return cli_fail(c, rc, &err, NULL);
	if (!access(ret->parent, F_OK))
		return CLI_OK;
	rc = ckpt_error_errno(&err, errno, "%s cannot be made in %s", dst, ret->parent);
	return rc == -ENOENT ? cli_fail(c, rc, &err, "mkdir -p %s, then run the same command again",
					CLI_WORD(ret->parent))
			     : cli_fail(c, rc, &err, NULL);
}

/* DST has a directory around it, is not SRC, and is neither in a job's directory nor what a store
 * calls another step. */
static int destination_check(struct converting *x)
{
	const char *dst = x->c->arg[1];
	struct publish_path *d = &x->place;
	struct ckpt_err err = { 0 };
	struct stat src, st;
	int code = convert_place(x->c, dst, x->format->root ? x->said.step : UINT64_MAX, d);

	if (code)
		return code;
	if (!stat(dst, &st) && !fstat(x->s.o.fd, &src) && st.st_dev == src.st_dev &&
	    st.st_ino == src.st_ino)
		return cli_fail(x->c,
				ckpt_error(&err, -EINVAL,
					   "%s is the checkpoint itself: give a path that does not "
					   "exist yet",
					   dst),
				&err, NULL);
	return CLI_OK;
}

/* --- what is asked for --- */

static int usage_fail(struct converting *x, const struct ckpt_err *err, const char *next)
{
	return cli_fail(x->c, -EINVAL, err, next ? "%s" : NULL, next);
}

static int bytes_option(struct cli *c, enum cli_option_id id, const char *name, uint64_t *ret)
{
	const char *text = c->value[id];
	struct ckpt_err err = { 0 };

	if (!text || !human_parse_bytes(text, ret))
		return CLI_OK;
	ckpt_error(&err, -EINVAL, "--%s=%s is not a size: write 512M, 2G or a number of bytes",
		   name, text);
	return cli_fail(c, -EINVAL, &err, NULL);
}

int convert_sizes(struct cli *c, uint64_t *ret_mem_limit, uint64_t *ret_shard_bytes)
{
	struct ckpt_err err = { 0 };
	int code;

	*ret_mem_limit = MEM_LIMIT;
	code = bytes_option(c, OPT_MEM_LIMIT, "mem-limit", ret_mem_limit);
	if (!code)
		code = bytes_option(c, OPT_SHARD_SIZE, "shard-size", ret_shard_bytes);
	if (code || *ret_mem_limit >= CONVERT_MEM_MIN)
		return code;
	ckpt_error(&err, -EINVAL, "--mem-limit %s is too small; the minimum is %uM",
		   c->value[OPT_MEM_LIMIT], CONVERT_MEM_MIN >> 20);
	return cli_fail(c, -EINVAL, &err, NULL);
}

int convert_tied(struct cli *c, const struct format *f, bool by_rank, enum format_tied *ret)
{
	const char *how = c->value[OPT_TIED];
	struct ckpt_err err = { 0 };

	*ret = !how ? TIED_AS_SAID : !strcmp(how, "once") ? TIED_ONCE : TIED_COPY;
	if (how && f->root)
		ckpt_error(&err, -EINVAL,
			   "--tied is for DST in other formats: %s stores each tensor once "
			   "and keeps all of its names",
			   f->name);
	else if (*ret == TIED_COPY && by_rank)
		ckpt_error(&err, -EINVAL,
			   "--tied copy is for complete tensors: the files of ranks hold each "
			   "tensor once, and say its other names");
	else
		return CLI_OK;
	return cli_fail(c, -EINVAL, &err, NULL);
}

bool convert_alone(struct cli *c, const struct table *t, char mesh[CONVERT_MESH_BYTES])
{
	if (c->value[OPT_MESH])
		return false;
	snprintf(mesh, CONVERT_MESH_BYTES, "%s=1",
		 t->nmesh && t->mesh[0].ndim ? t->mesh[0].name[0] : "rank");
	c->value[OPT_MESH] = mesh;
	return true;
}

bool convert_is_file(const char *path, const struct format *f)
{
	size_t n = strlen(path), m = f->ending ? strlen(f->ending) : 0;

	return m && n > m && !strcmp(path + n - m, f->ending);
}

/* A format without parts: files of ranks are a directory, and complete tensors are not cut. */
static int placing_check(struct converting *x)
{
	struct ckpt_err err = { 0 };

	if (x->by_rank && x->file) {
		ckpt_error(&err, -EINVAL, "the files of ranks are a directory, not the file %s",
			   x->c->arg[1]);
		return cli_fail(x->c, -EINVAL, &err,
				"give the name of a directory, and --to %s, or leave out --mesh",
				x->format->name);
	}
	if (x->by_rank || (!x->c->value[OPT_LAYOUT] && !x->c->value[OPT_REPLICATE]))
		return CLI_OK;
	ckpt_error(&err, -EINVAL, "without --mesh %s holds complete tensors, which nothing cuts",
		   x->format->name);
	return cli_fail(x->c, -EINVAL, &err,
			"give --mesh, too, or leave out --layout and --replicate");
}

/* By --to, else by DST's ending, else the one that stores are made of. */
static int format_find(struct converting *x)
{
	const char *to = x->c->value[OPT_TO_FORMAT], *dst = x->c->arg[1];
	char known[256] = "";
	struct ckpt_err err = { 0 };
	int code;

	for (uint32_t i = 0; formats[i]; i++) {
		const struct format *f = formats[i];

		if (!f->sheet)
			continue;
		snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s",
			 *known ? ", " : "", f->name);
		if (to ? !strcmp(to, f->name) : convert_is_file(dst, f))
			x->format = f;
	}
	if (to && !x->format)
		return usage_fail(
			x,
			(ckpt_error(&err, -EINVAL, "--to %s: convert writes %s", to, known), &err),
			NULL);
	if (!x->format)
		x->format = formats[0];
	x->file = convert_is_file(dst, x->format);
	x->by_rank = !x->format->root && x->c->value[OPT_MESH];
	code = convert_tied(x->c, x->format, x->by_rank, &x->tied);
	return code || x->format->root ? code : placing_check(x);
}

/* What else decides what is made; another run must have the same to continue this one. */
static int options_print(struct converting *x)
{
	static const struct {
		enum cli_option_id id;
		const char *name;
	} word[] = {
		{ OPT_ONLY_GLOB, "only" }, { OPT_DTYPE, "dtype" },	     { OPT_STEP, "step" },
		{ OPT_NEW_JOB, "job" },	   { OPT_SHARD_SIZE, "shard-size" }, { OPT_STRIP, "strip" },
		{ OPT_TIED, "tied" },
	};
	size_t n = 0;
	struct ckpt_err err = { 0 };

	if (x->c->value[OPT_VIEW])
		n += (size_t)snprintf(x->options, OPTIONS_BYTES, "--view %s (%02x%02x%02x%02x)",
				      x->c->value[OPT_VIEW], x->view.sum.b[0], x->view.sum.b[1],
				      x->view.sum.b[2], x->view.sum.b[3]);
	for (uint32_t i = 0; i < x->c->ngiven && n < OPTIONS_BYTES; i++)
		for (uint32_t k = 0; k < ARRAY_LEN(word) && n < OPTIONS_BYTES; k++)
			if (x->c->given[i].id == word[k].id)
				n += (size_t)snprintf(x->options + n, OPTIONS_BYTES - n,
						      "%s--%s %s", n ? " " : "", word[k].name,
						      x->c->given[i].value);
	if (x->c->value[OPT_DROP_UNSUPPORTED] && n < OPTIONS_BYTES)
		n += (size_t)snprintf(x->options + n, OPTIONS_BYTES - n, "%s--drop-unsupported",
				      n ? " " : "");
	if (x->by_rank &&
	    n < OPTIONS_BYTES) /* the journal has which; without it tensors are complete */
		n += (size_t)snprintf(x->options + n, OPTIONS_BYTES - n, "%s--mesh", n ? " " : "");
	if (n < OPTIONS_BYTES)
		return CLI_OK;
	ckpt_error(&err, -EINVAL, "the options have more than %u bytes together", OPTIONS_BYTES);
	return usage_fail(x, &err, NULL);
}

/* Step and job: the source's, or those of the command where it has none. */
static int facts_find(struct converting *x)
{
	const char *step = x->c->value[OPT_STEP], *job = x->c->value[OPT_NEW_JOB];
	struct checkpoint *k = &x->said;
	struct ckpt_err err = { 0 };
	uint64_t n = 0;
	char *end = NULL;

	*k = *x->s.ckpt;
	if (k->has & HAS_STEP) {
		if (!step && !job)
			return CLI_OK;
		ckpt_error(&err, -EINVAL,
			   "%s says itself that it is step %" PRIu64
			   " of job %s: --step and --job are for sources that do not",
			   x->s.ref.path, k->step, k->job);
		return usage_fail(x, &err, NULL);
	}
	if (step) /* UINT64_MAX if it is too large, and that is no step */
		n = strtoull(step, &end, 10);
	if (step && (*end || *step < '0' || *step > '9' || n == UINT64_MAX)) {
		ckpt_error(&err, -EINVAL, "--step=%.100s is not a number below 2^64 - 1", step);
		return usage_fail(x, &err, NULL);
	}
	if (job && store_job_check(job, &err))
		return usage_fail(x, &err, NULL);
	if (!step && !job && !x->format->root)
		return CLI_OK;
	k->has |= HAS_STEP;
	k->step = n;
	k->parent_step = UINT64_MAX;
	snprintf(k->job, sizeof k->job, "%s", job ? job : NO_JOB);
	if (!step || !job)
		cli_hint(x->c,
			 "%s has no step and no job: the result is step %" PRIu64
			 " of job %s (--step, --job)",
			 x->s.ref.path, k->step, k->job);
	return CLI_OK;
}

/* --only: all others are left out. */
static int only_take(struct converting *x)
{
	struct table *t = &x->to.target;
	cleanup_free bool *take = NULL;
	struct ckpt_err err = { 0 };

	if (!x->c->value[OPT_ONLY_GLOB])
		return CLI_OK;
	take = calloc((size_t)t->ntensor + 1, sizeof *take);
	if (!take)
		return cli_fail(x->c, ckpt_error(&err, -ENOMEM, "out of memory for --only"), &err,
				NULL);
	for (uint32_t i = 0; i < x->c->ngiven; i++) {
		cleanup_free uint32_t *id = NULL;
		uint32_t n = 0;
		int rc;

		if (x->c->given[i].id != OPT_ONLY_GLOB)
			continue;
		rc = named_glob(x->s.ckpt, x->c->given[i].value, &id, &n, &err);
		if (rc)
			return cli_fail(x->c, rc == -ENOENT ? -EINVAL : rc, &err, NULL);
		for (uint32_t k = 0; k < n; k++)
			take[id[k]] = true;
	}
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (!take[i]) {
			t->tensor[i].cls = CKPT_SINK;
			x->nleft++;
		}
	return CLI_OK;
}

static int target_find(struct converting *x)
{
	bool casts;
	int code;

	x->alone = convert_alone(x->c, &x->s.ckpt->table, x->mesh);
	code = mesh_option(x->c, &x->s, &x->to);
	if (!code)
		code = only_take(x);
	if (!code)
		code = casts_apply(x->c, &x->view, &x->to.target, &casts);
	if (!code)
		code = explicit_option(x->c, &x->to, x->links, &x->explicit);
	return code;
}

static int conversion_run(struct converting *x)
{
	int code = convert_sizes(x->c, &x->mem_limit, &x->shard_bytes);

	if (!code)
		code = explicit_links(x->c, &x->links_read, &x->links);
	if (!code)
		code = format_find(x);
	if (!code)
		code = subject_get(x->c, x->c->arg[0], &x->s);
	if (code)
		return code;
	snprintf(x->source, sizeof x->source, "id %s", x->s.ckpt->id);
	code = view_file_begin(x->c, &x->s, &x->view);
	if (!code)
		code = target_find(x);
	if (!code)
		code = facts_find(x);
	if (!code)
		code = options_print(x);
	if (!code)
		code = destination_check(x);
	return code ? code : engine_run(x);
}

int convert_run(struct cli *c)
{
	struct converting x = { .c = c, .s.ref.step_fd = -1, .begin_ns = now_ns() };
	struct ckpt_err err = { 0 };
	int code;

	if (c->narg < 2)
		return cli_fail(c,
				ckpt_error(&err, -EINVAL,
					   "convert needs a checkpoint and what to make of it"),
				&err, "ckptctl convert latest DST --mesh SPEC");
	code = conversion_run(&x);
	explicit_option_end(&x.explicit);
	remesh_free(&x.to);
	view_file_end(&x.s, &x.view);
	subject_close(&x.s);
	return code;
}

const struct cli_verb verb_convert = {
	.name = "convert",
	.help = "write a checkpoint again: for another mesh, in another format",
	.synopsis =
		(const char *const[]){
			"SRC DST [--from=FORMAT] [--to=FORMAT] [--mesh=SPEC] [--layout=RULE|FILE]... [--replicate=DIMS] "
			"[--only=GLOB]... [--dtype=DTYPE] [--view=FILE] "
			"[--shard-size=BYTES] [--tied=HOW] [--step=N] [--job=NAME] "
			"[--drop-unsupported] [--check] [-n] [--mem-limit=BYTES] " EXPLICIT_LINKS_SYNOPSIS,
			NULL },
	.about =
		"Makes DST, a checkpoint with the same tensors. No daemon is needed. Step, job, notes, "
		"times, lineage and all values are those of SRC. "
		"convert checks every byte of SRC that has a checksum, and makes each tensor's "
		"fingerprint on the way: it compares those that SRC has. It opens what it has made "
		"before DST appears; with --check it also reads every byte of it again. It carries "
		"out pending reductions (Partial): DST holds the results.\n"
		"SRC is latest, latest~1, 12000, JOB@latest, or a path, also of a checkpoint in another "
		"format. DST must not exist; its parent directory must. The format of DST is that of "
		"--to, else that of its ending (as in .safetensors: one file), else native: then DST has one "
		"part for each rank of the mesh, with what that rank owns, and keeps the blobs of ranks "
		"that the mesh does not have. Without --mesh there is one rank. safetensors holds "
		"complete tensors; with --mesh it has a file for each rank, DST/rank-00000.safetensors, "
		"..., with all that the rank holds (ckptctl export -h describes these files, and --tied). "
		"ckptctl plan -h explains how tensors are cut on another mesh. What the format cannot hold is listed, "
		"and nothing is written; with --drop-unsupported it is left out.\n"
		"Memory is bounded: if it is too small for all files at once, convert writes "
		"some of them after the others. DST appears when it is complete and on disk. "
		"Until then convert collects everything in .DST.ckptctl-new beside it. After "
		"Ctrl-C, a kill or a full disk, the same command continues from there, and "
		"nothing else has changed. If SRC changes meanwhile, nothing is made of it. To give up, "
		"remove .DST.ckptctl-new and .DST.ckptctl.\n" EXPLICIT_ABOUT("convert"),
	.example =
		(const struct cli_example[]){
			{ "ckptctl convert latest /data/on3 --mesh fsdp=3", "for three ranks" },
			{ "ckptctl convert step:90 /data/whole", "everything in one part" },
			{ "ckptctl convert latest /data/big --mesh fsdp=256 --mem-limit 256M",
			  "with little memory" },
			{ "ckptctl convert ./Llama-8B /data/llama --mesh fsdp=8 --job llama",
			  "a Hugging Face directory, for eight ranks" },
			{ "ckptctl convert latest out --to safetensors --mesh fsdp=8",
			  "a safetensors file for each of eight ranks" },
			{ "ckptctl convert latest /data/on8 --mesh fsdp=8 --explicit --allow reshard",
			  "refuse all but new shards" },
			{ "ckptctl convert latest model.safetensors --only \"model/*\" --dtype BF16",
			  "one file of the model's tensors" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_TO_FORMAT, "the format of DST" },
			{ OPT_MESH, "the mesh of DST: names and sizes, as in dp=2,fsdp=4" },
			REMESH_LAYOUT,
			{ OPT_ONLY_GLOB,
			  "only tensors whose component/name, or name, matches; may be "
			  "given more than once" },
			{ OPT_DTYPE, "cast floating-point tensors: F32, BF16 or F16" },
			VIEW_OPTION,
			{ OPT_SHARD_SIZE,
			  "files of at most so many bytes where tensors allow it, as "
			  "in 5G, and their index (DST is a directory of complete tensors)" },
			{ OPT_TIED, CONVERT_TIED_HELP " (DST is safetensors)" },
			{ OPT_STEP, "the step of DST, if SRC has none (default: 0)" },
			{ OPT_NEW_JOB, "the job of DST, if SRC has none (default: " NO_JOB ")" },
			{ OPT_DROP_UNSUPPORTED, "leave out what the format cannot hold" },
			{ OPT_CHECK, "read every byte of the result again before it appears" },
			EXPLICIT_OPTIONS,
			EXPLICIT_LINKS_OPTION,
			{ OPT_DRY_RUN, "only print what would be made" },
			{ OPT_MEM_LIMIT,
			  "memory for data, as in 512M (default: 1G; at least 40M)" },
			{ OPT_FROM,
			  "the format of a CKPT that is a path, if ckptctl takes it for another" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0; 2 an option, the mesh, a layout or view file is wrong, DST exists, is inside a "
		"checkpoint or the directory of a job, or has the name that a store gives to another step, or another "
		"conversion to DST was not finished; 3 tensors were left out (--drop-unsupported), or "
		"elements became infinite (--dtype, --view), or the mesh would hold copies that --replicate does "
		"not name, and nothing is written; 4 SRC is damaged; 5 SRC is not committed; "
		"7 the format cannot hold a tensor, or nobody asked for a change (--explicit); "
		"10 there is no such checkpoint, or DST has no parent directory; 11 another "
		"convert to DST is running, or SRC has changed; 12 no permission; 13 no space, "
		"or --mem-limit is too small for what SRC has compressed; 130, "
		"143 interrupted: run it again.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_DIR, ARG_NONE },
	.narg_max = 2,
	.run = convert_run,
};
