/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_convert.c - ckptctl convert: a checkpoint written again for another mesh, so that every rank
 * of it reads one file.
 * Invariant: the destination is whole or not there, and nothing that existed is touched.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/conversion.h"
#include "ckpt/cli/destination.h"
#include "ckpt/io/publish.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/remesh.h"
#include "ckpt/cli/subject.h"

#define MEM_LIMIT GIB		  /* without --mem-limit */
#define JOURNAL_NS (3 * NS_PER_S) /* between two journals */
#define FIELD(name, key) static const struct column name = { key, NULL, false, FIT_WHOLE }

struct converting {
	struct cli *c;
	struct subject s;
	struct remesh to;
	struct conversion *v;
	uint64_t mem_limit, begin_ns;
	double speed;
};

FIELD(f_path, "path");
FIELD(f_job, "job");
FIELD(f_step, "step");
FIELD(f_destination, "destination");
FIELD(f_id, "destination_id");
FIELD(f_compared, "compared_tensor_count");
FIELD(f_bytes, "tensor_bytes");
FIELD(f_before, "resumed_bytes");
FIELD(f_stored, "bytes");
FIELD(f_seconds, "took_s");
FIELD(f_speed, "bytes_per_second");

static void put_result(struct converting *x)
{
	const struct conversion_facts *f = conversion_facts(x->v);
	const struct checkpoint *k = x->s.ckpt;
	struct output *o = x->c->o;
	uint64_t ns = elapsed_ns(x->begin_ns, now_ns());
	char mesh[512], size[HUMAN_BYTES], span[HUMAN_BYTES], count[HUMAN_BYTES], speed[64] = "";

	mesh_print(x->to.target.mesh, mesh, sizeof mesh);
	output_put(o, &f_path, cell_text(x->s.ref.path));
	output_put(o, &f_job, cell_word(k->job));
	output_put(o, &f_step, cell_of(CELL_NUMBER, k->step));
	remesh_put(x->c, &x->to);
	output_put(o, &f_destination, cell_text(x->c->arg[1]));
	output_put(o, &f_id, cell_text(f->id));
	output_put(o, &f_compared, cell_of(CELL_NUMBER, f->nprint));
	output_put(o, &f_bytes, cell_of(CELL_BYTES, f->bytes));
	output_put(o, &f_before, cell_of(CELL_BYTES, f->before));
	output_put(o, &f_stored, cell_of(CELL_BYTES, f->stored_bytes));
	output_put(o, &f_seconds, cell_real((double)ns / (double)NS_PER_S));
	output_put(o, &f_speed, cell_of(CELL_NUMBER, (uint64_t)x->speed));
	if (x->c->out_screen.terminal && x->speed > 0)
		snprintf(speed, sizeof speed, " in %s, %.2f GB/s", human_span(ns, span),
			 x->speed / 1e9);
	cli_say(x->c, STYLE_PLAIN, "Wrote %s: step %llu on %s, %u part%s, %s%s.", x->c->arg[1],
		(unsigned long long)k->step, mesh, f->world, f->world == 1 ? "" : "s",
		human_bytes(f->bytes, size), speed);
	if (f->nprint > 1)
		cli_say(x->c, STYLE_PLAIN,
			"The fingerprints of all %s tensors are those of the source.",
			human_count(f->nprint, count));
	else if (f->nprint)
		cli_say(x->c, STYLE_PLAIN, "The fingerprint of its tensor is that of the source.");
}

static int fail_parent(struct converting *x, const struct ckpt_err *err)
{
	struct publish_place d;

	if (publish_split(x->c->arg[1], &d, NULL))
		return cli_fail(x->c, -ENOENT, err, NULL);
	return cli_fail(x->c, -ENOENT, err, "mkdir -p %s, then run the same command again",
			d.parent);
}

/* Tell what went wrong, and what to do. Returns the exit code. */
static int fail(struct converting *x, int rc, const struct ckpt_err *err)
{
	const struct conversion_facts *f = x->v ? conversion_facts(x->v) : NULL;
	struct ckpt_err told = *err;

	if (rc == -ECANCELED)
		return cli_fail(
			x->c, rc,
			&(struct ckpt_err){ .msg = "interrupted; the destination does not exist" },
			f && f->kept ? "run the same command again: it continues where this one "
				       "stopped. To give up: rm -r %s"
				     : NULL,
			f ? f->partial : "");
	if (rc == -ENOSPC || rc == -EDQUOT)
		return cli_fail(
			x->c, rc, &told,
			f && f->kept ? "free space, then run the same command again: it continues "
				       "where this one stopped. To give up: rm -r %s"
				     : "free space there, or give another DST",
			f ? f->partial : "");
	if (rc == -EBADMSG || rc == -EPROTO)
		return cli_fail(x->c, -EBADMSG, &told,
				"ckptctl verify --data %s lists every fault; ckptctl ls, the other "
				"checkpoints",
				x->s.ref.path);
	if (f && f->kept && rc == -EINVAL)
		return cli_fail(x->c, rc, &told,
				"move it away, then run the same command again: only the rename is "
				"missing. To give up: rm -r %s",
				f->partial);
	if (f && f->kept)
		return cli_fail(
			x->c, rc, &told,
			"run the same command again: it continues where this one stopped. To "
			"give up: rm -r %s",
			f->partial);
	if (rc == -ENOENT && !f)
		return fail_parent(x, &told);
	return cli_fail(x->c, rc, &told, NULL);
}

static void say_resumed(struct converting *x)
{
	const struct conversion_facts *f = conversion_facts(x->v);
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

static int convert(struct converting *x)
{
	struct conversion_opts opts = {
		.ops = x->c->ops,
		.engine = IO_AUTO,
		.src = x->s.ckpt,
		.src_fd = x->s.ref.step_fd,
		.target = &x->to.target,
		.dst = x->c->arg[1],
		.mem_limit = x->mem_limit,
		.journal_ns = JOURNAL_NS,
	};
	const struct conversion_facts *f;
	struct ckpt_err err = { 0 };
	struct progress progress;
	int rc = conversion_open(&opts, &x->v, &err);

	if (rc)
		return fail(x, rc, &err);
	f = conversion_facts(x->v);
	output_line(x->c->o, "ckptd.convert/1", "summary");
	remesh_tell(x->c, &x->to);
	say_resumed(x);
	progress_begin(&progress, x->c, f->bytes, "step %llu", (unsigned long long)x->s.ckpt->step);
	progress_skip(&progress, f->before);
	rc = conversion_run(x->v, progress_tick, &progress, &err);
	x->speed = progress_end(&progress);
	if (rc)
		return fail(x, rc, &err);
	put_result(x);
	output_end(x->c->o);
	say_blobs(x);
	return CLI_OK;
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
	if (limit && x->mem_limit < CONVERSION_MEM_MIN)
		return cli_fail(c,
				ckpt_error(&err, -EINVAL,
					   "--mem-limit %s is too small; the minimum is %uM", limit,
					   CONVERSION_MEM_MIN >> 20),
				&err, NULL);
	code = subject_get(c, c->arg[0], &x->s);
	if (!code)
		code = remesh(c, &x->s, &x->to);
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
	conversion_close(x.v);
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
		"Until then convert collects everything in .DST.ckptctl-partial beside it. After "
		"Ctrl-C, a kill or a full disk, the same command continues from there, and "
		"nothing else has changed. To give up, remove that directory.",
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
