/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_convert.c - ckptctl convert: a checkpoint written again for another mesh, so that every rank
 * of it reads one file.
 * Invariant: the destination is complete or not there, and nothing that existed is touched.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/destination.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/remesh.h"
#include "ckpt/cli/subject.h"
#include "ckpt/engine/convert.h"
#include "ckpt/io/publish.h"
#include "ckpt/layout/human.h"
#include "formats/registry/registry.h"
#include <inttypes.h>
#include <sys/stat.h>

#define MEM_LIMIT GIB		  /* without --mem-limit */
#define JOURNAL_NS (3 * NS_PER_S) /* between two journals */
#define TOOL "ckptctl " CKPT_VERSION
#define FIELD(name, key) static const struct column name = { key, NULL, false, FIT_WHOLE }

struct converting {
	struct cli *c;
	struct subject s;
	struct remesh to;
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

	if (f->nmade)
		cli_say(x->c, STYLE_PLAIN,
			"%s tensor%s compared with the source's fingerprints; of %s the source has "
			"none, and they were made on the way.",
			human_count(f->nprint, count), f->nprint == 1 ? " was" : "s were",
			human_count(f->nmade, made));
	else if (f->nprint > 1)
		cli_say(x->c, STYLE_PLAIN,
			"The fingerprints of all %s tensors are those of the source.",
			human_count(f->nprint, count));
	else if (f->nprint)
		cli_say(x->c, STYLE_PLAIN, "The fingerprint of its tensor is that of the source.");
}

static void put_result(struct converting *x)
{
	const struct converted *f = &x->made;
	const struct checkpoint *k = x->s.ckpt;
	struct output *o = x->c->o;
	uint64_t ns = elapsed_ns(x->begin_ns, now_ns());
	uint32_t world = target_world(&x->to.target);
	char mesh[512], size[HUMAN_BYTES], span[HUMAN_BYTES], speed[64] = "";

	mesh_print(x->to.target.mesh, mesh, sizeof mesh);
	output_put(o, &f_path, cell_text(x->s.ref.path));
	output_put(o, &f_job, cell_word(k->job));
	output_put(o, &f_step, cell_of(CELL_NUMBER, k->step));
	remesh_put(x->c, &x->to);
	output_put(o, &f_destination, cell_text(x->c->arg[1]));
	output_put(o, &f_id, cell_text(f->id));
	output_put(o, &f_compared, cell_of(CELL_NUMBER, f->nprint));
	output_put(o, &f_unknown, cell_of(CELL_NUMBER, f->nmade));
	output_put(o, &f_bytes, cell_of(CELL_BYTES, f->bytes));
	output_put(o, &f_before, cell_of(CELL_BYTES, f->before));
	output_put(o, &f_stored, cell_of(CELL_BYTES, f->stored_bytes));
	output_put(o, &f_seconds, cell_real((double)ns / (double)NS_PER_S));
	output_put(o, &f_speed, cell_of(CELL_NUMBER, (uint64_t)x->speed));
	if (x->c->out_screen.terminal && x->speed > 0)
		snprintf(speed, sizeof speed, " in %s, %.2f GB/s", human_span(ns, span),
			 x->speed / 1e9);
	cli_say(x->c, STYLE_PLAIN, "Wrote %s: step %llu on %s, %u part%s, %s%s.", x->c->arg[1],
		(unsigned long long)k->step, mesh, world, world == 1 ? "" : "s",
		human_bytes(f->bytes, size), speed);
	say_compared(x);
}

/* What an earlier run had done, and how to give up. */
#define AGAIN "run the same command again: it continues where this one stopped. To give up"

static int fail_kept(struct converting *x, int rc, const struct ckpt_err *err, const char *what)
{
	const char *partial = x->made.partial;
	int lock = (int)(strlen(partial) - strlen("-new"));

	return cli_fail(x->c, rc, err, "%s: rm -r %.*s %s", what, lock, partial, partial);
}

/* Report what went wrong, and what to do. Returns the exit code. */
static int fail(struct converting *x, int rc, const struct ckpt_err *err)
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
				x->s.ref.path);
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
			 human_bytes(f->before, done), human_bytes(f->bytes, all), f->partial);
	else if (f->restarted)
		cli_hint(x->c,
			 "Nothing of an earlier run can be used: starting from the beginning (%s).",
			 f->partial);
}

/* Per-rank blobs belong to ranks of the old mesh: who has them now? */
static void say_blobs(struct converting *x)
{
	const struct table *t = &x->to.target;
	uint32_t world = target_world(t), old = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].rank != TABLE_NONE)
			old = MAX(old, t->tensor[i].rank + 1);
	if (old > world)
		cli_hint(x->c,
			 "%u ranks had blobs of their own, this mesh has %u ranks. All blobs are "
			 "kept: those of rank %u go into the part of rank %u, and so on.",
			 old, world, world, 0u);
}

static int on_tick(void *arg, uint64_t done)
{
	struct converting *x = arg;

	return x->begun ? progress_tick(&x->progress, done) : cli_stopped();
}

static void on_begun(void *arg)
{
	struct converting *x = arg;

	output_line(x->c->o, "ckptd.convert/1", "summary");
	remesh_tell(x->c, &x->to);
	say_resumed(x);
	progress_begin(&x->progress, x->c, x->made.bytes, "step %llu",
		       (unsigned long long)x->s.ckpt->step);
	progress_skip(&x->progress, x->made.before);
	x->begun = true;
}

static int allow(void *arg, int dirfd, struct ckpt_err *err)
{
	struct converting *x = arg;

	return destination_check(x->c->ops, x->c->arg[1], dirfd, x->s.o.fd, err);
}

static int convert(struct converting *x)
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
					    .to = formats[0],
					    .want = { .facts = x->s.ckpt, .tool = TOOL },
					    .dst = x->c->arg[1],
					    .source = x->s.ckpt->has & HAS_SUMS ? x->source
										: x->s.ref.path,
					    .options = "",
					    .journal_ns = JOURNAL_NS,
					    .allow = allow,
					    .allow_arg = x,
					    .begun = on_begun,
					    .begun_arg = x };
	struct ckpt_errlist cannot = { .code = -EMEDIUMTYPE };
	struct ckpt_err err = { 0 };
	int rc;

	src.ckpt = x->s.ckpt; /* perhaps through a view */
	rc = engine_convert(&e, &how, &x->made, &cannot, &err);
	ckpt_errlist_free(&cannot);
	if (x->begun)
		x->speed = progress_end(&x->progress);
	if (rc)
		return fail(x, rc, &err);
	put_result(x);
	output_end(x->c->o);
	say_blobs(x);
	return CLI_OK;
}

/* --- before --- */

/* Stores call a step's directory so. */
static bool names_step(const char *base, uint64_t *ret_step)
{
	char again[STORE_DIR_MAX];
	char *end;

	if (strncmp(base, "step-", 5) != 0 || base[5] < '0' || base[5] > '9')
		return false;
	*ret_step = strtoull(base + 5, &end, 10);
	store_name_step(*ret_step, again);
	return !*end && !strcmp(again, base);
}

/* Is there a directory for it, and does a store use its name for another step? */
static int destination_find(struct converting *x)
{
	const char *dst = x->c->arg[1];
	struct publish_place d;
	struct ckpt_err err = { 0 };
	struct stat src, st;
	uint64_t step = x->s.ckpt->step, named;
	int rc = publish_split(dst, &d, &err);

	if (rc)
		return cli_fail(x->c, rc, &err, NULL);
	if (access(d.parent, F_OK)) {
		rc = ckpt_error_errno(&err, errno, "%s cannot be made in %s", dst, d.parent);
		return rc == -ENOENT
			       ? cli_fail(x->c, rc, &err,
					  "mkdir -p %s, then run the same command again", d.parent)
			       : cli_fail(x->c, rc, &err, NULL);
	}
	if (!stat(dst, &st) && !fstat(x->s.o.fd, &src) && st.st_dev == src.st_dev &&
	    st.st_ino == src.st_ino)
		return cli_fail(x->c,
				ckpt_error(&err, -EINVAL,
					   "%s is the checkpoint itself: give a path that does not "
					   "exist yet",
					   dst),
				&err, NULL);
	if (!names_step(d.base, &named) || named == step)
		return CLI_OK;
	return cli_fail(x->c,
			ckpt_error(&err, -EINVAL,
				   "%s is what a store calls its step %" PRIu64
				   ", and this is step %" PRIu64 ": give another name",
				   dst, named, step),
			&err, NULL);
}

static int source_find(struct converting *x)
{
	int code = subject_get(x->c, x->c->arg[0], &x->s);

	if (!code)
		snprintf(x->source, sizeof x->source, "id %s", x->s.ckpt->id);
	return code;
}

static int begin(struct converting *x)
{
	struct cli *c = x->c;
	const char *limit = c->value[OPT_MEM_LIMIT];
	struct ckpt_err err = { 0 };
	int code;

	x->mem_limit = MEM_LIMIT;
	if (limit && human_parse_bytes(limit, &x->mem_limit))
		return cli_fail(
			c,
			ckpt_error(
				&err, -EINVAL,
				"--mem-limit=%s is not a size: write 512M, 2G or a number of bytes",
				limit),
			&err, NULL);
	if (limit && x->mem_limit < CONVERT_MEM_MIN)
		return cli_fail(c,
				ckpt_error(&err, -EINVAL,
					   "--mem-limit %s is too small; the minimum is %uM", limit,
					   CONVERT_MEM_MIN >> 20),
				&err, NULL);
	code = source_find(x);
	if (!code)
		code = remesh(c, &x->s, &x->to);
	if (!code)
		code = destination_find(x);
	return code ? code : convert(x);
}

static int run(struct cli *c)
{
	struct converting x = { .c = c, .s.ref.step_fd = -1, .begin_ns = now_ns() };
	struct ckpt_err err = { 0 };
	int code;

	if (c->narg < 2)
		return cli_fail(c,
				ckpt_error(&err, -EINVAL,
					   "convert needs a checkpoint and the directory to make"),
				&err, "ckptctl convert latest DST --mesh SPEC");
	code = begin(&x);
	remesh_free(&x.to);
	subject_close(&x.s);
	return code;
}

const struct cli_verb verb_convert = {
	.name = "convert",
	.help = "write a checkpoint again for another mesh",
	.synopsis =
		(const char *const[]){ "SRC DST --mesh=SPEC [--layout=FILE] [--mem-limit=BYTES]",
				       NULL },
	.about =
		"Makes the directory DST, a checkpoint with the same tensors on another mesh. "
		"DST has one part for each rank of the mesh, with what that rank owns. No daemon "
		"is needed. Step, job, notes, times, lineage and all values are those of SRC. "
		"convert checks every byte that it reads, and at the end it compares every "
		"tensor's fingerprint. It carries out pending reductions (Partial): DST holds "
		"the results. It keeps the blobs of ranks that the new mesh does not have.\n"
		"SRC is latest, latest~1, 12000, JOB@latest, or a path. DST must not exist; its parent "
		"directory must. Every verb accepts DST as it accepts SRC. ckptctl plan -h "
		"explains how tensors are cut on the new mesh.\n"
		"Memory is bounded: if it is too small for all parts at once, convert writes "
		"some of them after the others. DST appears when it is complete and on disk. "
		"Until then convert collects everything in .DST.ckptctl-new beside it. After "
		"Ctrl-C, a kill or a full disk, the same command continues from there, and "
		"nothing else has changed. To give up, remove that directory and .DST.ckptctl-new.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl convert latest /data/on3 --mesh fsdp=3", "for three ranks" },
			{ "ckptctl convert step:90 /data/whole --mesh fsdp=1",
			  "everything in one part" },
			{ "ckptctl convert latest /data/big --mesh dp=4,fsdp=64 --mem-limit 256M",
			  "with little memory" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			REMESH_OPTIONS,
			{ OPT_MEM_LIMIT,
			  "memory for data, as in 512M (default: 1G; at least 40M)" },
			{ OPT_FROM,
			  "the format of a CKPT that is a path, if ckptctl takes it for another" },
			{ OPT_NONE, NULL },
		},
	.exits = "0; 2 the mesh, the layout file or --mem-limit is wrong, DST exists, is inside a "
		 "checkpoint, or has the name that a store gives to another step, or another "
		 "conversion to DST was not finished; 4 SRC is damaged; 5 SRC is not committed; "
		 "10 there is no such checkpoint, or DST has no parent directory; 11 another "
		 "convert to DST is running; 12 no permission; 13 no space; 130, 143 interrupted: "
		 "run it again.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_DIR, ARG_NONE },
	.narg_max = 2,
	.run = run,
};
