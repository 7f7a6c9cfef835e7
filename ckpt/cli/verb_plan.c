/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_plan.c - ckptctl plan: what loading a checkpoint onto a mesh costs, without reading data.
 * Invariant: the figures are those of the plans that a restore would carry out.
 */
#include "ckpt/base/util.h"
#include "ckpt/engine/average_cost.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/explicit_option.h"
#include "ckpt/draw/flow_draw.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/links_option.h"
#include "ckpt/cli/mesh_option.h"
#include "ckpt/cli/plan_exchange.h"
#include "ckpt/cli/subject.h"
#include "ckpt/table/shown.h"
#include "ckpt/cli/picture.h"
#include "ckpt/cli/plan_steps.h"
#include "ckpt/engine/load_cost.h"

#define LINE_BYTES 1024
#define TIMES_BYTES 128
#define RANKS_SAID 16u /* of more ranks than these: least, median and most */

struct planning {
	struct cli *c;
	const struct subject *s;
	struct remesh to;
	struct explicit_option explicit;
	struct load_cost cost;
	struct plan_exchange exchange;
	uint32_t naverage;
	struct average_cost average[CLI_GIVEN_MAX];
};

/* --- figures --- */

/* x / of; CELL_NONE where there is nothing to compare with. */
static struct cell ratio_cell(uint64_t x, uint64_t of)
{
	return of ? cell_real((double)x / (double)of) : cell_none();
}

/* ", 1.36 times what they hold"; "" where there is nothing to compare with. */
static char *times_print(uint64_t x, uint64_t of, const char *what, char buf[static TIMES_BYTES])
{
	*buf = 0;
	if (of)
		snprintf(buf, TIMES_BYTES, ", %.2f times %s", (double)x / (double)of, what);
	return buf;
}

static uint64_t most_bytes(const struct load_cost *k)
{
	uint64_t most = 0;

	for (uint32_t i = 0; i < k->world; i++)
		most = MAX(most, k->rank[i].bytes);
	return most;
}

static double load_imbalance(const struct load_cost *k)
{
	return k->held_bytes ? (double)most_bytes(k) * k->world / (double)k->held_bytes : 1;
}

/* --- the summary --- */

/* "fsdp=4, 4 ranks"; "" where that is not known. */
static void from_print(const struct checkpoint *k, char *buf, size_t bytes)
{
	size_t len;

	shown_mesh(&k->table, buf, bytes);
	len = strlen(buf);
	if (k->has & HAS_STEP)
		snprintf(buf + len, bytes - len, "%s%u rank%s", len ? ", " : "", k->world,
			 k->world == 1 ? "" : "s");
}

static void put_who(struct planning *p)
{
	const struct checkpoint *k = p->s->ckpt;
	struct output *o = p->c->o;
	const char *layout = p->c->value[OPT_LAYOUT];
	char to[LINE_BYTES / 2], line[LINE_BYTES];

	mesh_print(p->to.target.mesh, to, sizeof to);
	subject_put(o, p->s->ref.path, k);
	from_print(k, line, sizeof line);
	output_label(o, "from", STYLE_PLAIN, "%s%s%u file%s", line, *line ? ", " : "", k->nfile,
		     k->nfile == 1 ? "" : "s");
	mesh_option_put(p->c, &p->to);
	output_label(o, "onto", STYLE_PLAIN, "%s, %u rank%s%s%s", to, p->cost.world,
		     p->cost.world == 1 ? "" : "s", layout ? ", by " : "", layout ? layout : "");
}

static void put_held(struct planning *p)
{
	const struct load_cost *k = &p->cost;
	struct output *o = p->c->o;
	char what[64], x[TIMES_BYTES];

	output_key(o, "tensor_count", cell_count(k->host.tensors));
	output_key(o, "tensor_bytes", cell_bytes(k->host.bytes));
	output_key(o, "held_bytes", cell_bytes(k->held_bytes));
	output_key(o, "replication", ratio_cell(k->held_bytes, k->host.bytes));
	snprintf(what, sizeof what, "the %s of the tensors", BYTES_TEXT(k->host.bytes));
	output_label(o, "ranks hold", STYLE_PLAIN, "%s in all%s", BYTES_TEXT(k->held_bytes),
		     times_print(k->held_bytes, k->host.bytes, what, x));
	output_key(o, "imbalance", cell_real(load_imbalance(k)));
	output_label(o, "imbalance", STYLE_PLAIN, "%.2f: the largest rank holds %s, the mean is %s",
		     load_imbalance(k), BYTES_TEXT(most_bytes(k)),
		     BYTES_TEXT(k->held_bytes / k->world));
}

/* "7 reads of 7.64 MiB on average, gaps of 1.20 MiB in them" */
static void put_requests(struct output *o, const struct load_cost *k)
{
	bool gaps = k->request_bytes > k->host.read_bytes;

	output_label(o, "in reads", STYLE_PLAIN, "%s of %s on average%s%s%s",
		     COUNT_TEXT(k->requests),
		     BYTES_TEXT(k->requests ? k->request_bytes / k->requests : 0), gaps ? "; " : "",
		     gaps ? BYTES_TEXT(k->request_bytes - k->host.read_bytes) : "",
		     gaps ? " of gaps are read through" : "");
}

static void put_read(struct planning *p)
{
	const struct load_cost *k = &p->cost;
	struct output *o = p->c->o;
	char x[TIMES_BYTES];

	output_key(o, "read_bytes", cell_bytes(k->read_bytes));
	output_key(o, "amplification", ratio_cell(k->read_bytes, k->held_bytes));
	output_label(o, "ranks read", STYLE_PLAIN, "%s in all%s", BYTES_TEXT(k->read_bytes),
		     times_print(k->read_bytes, k->held_bytes, "what they hold", x));
	output_label(o, "one host", STYLE_PLAIN, "reads %s%s: %s chunk%s of %s file%s",
		     BYTES_TEXT(k->host.read_bytes),
		     times_print(k->host.read_bytes, k->host.bytes, "the tensors", x),
		     COUNT_TEXT(k->host.chunks), k->host.chunks == 1 ? "" : "s",
		     COUNT_TEXT(k->host.files), k->host.files == 1 ? "" : "s");
	put_requests(o, k);
	output_object(o, "one_reader");
	output_key(o, "read_bytes", cell_bytes(k->host.read_bytes));
	output_key(o, "amplification", ratio_cell(k->host.read_bytes, k->host.bytes));
	output_key(o, "file_count", cell_count(k->host.files));
	output_key(o, "chunk_count", cell_count(k->host.chunks));
	output_key(o, "request_count", cell_count(k->requests));
	output_key(o, "request_bytes", cell_bytes(k->request_bytes));
	output_close(o);
}

/* --- averages that it does not have yet --- */

static void put_averages(struct planning *p)
{
	static const struct column col[] = {
		{ "schedule", "AVERAGE", false, FIT_LAST },
		{ "tensor_count", "TENSORS", true, FIT_WHOLE },
		{ "bytes", "EACH SLOT", true, FIT_WHOLE },
		{ "rank_bytes_max", "OF ONE RANK", true, FIT_WHOLE },
	};
	struct output *o = p->c->o;

	output_list(o, "averages", p->naverage ? col : NULL, p->naverage ? ARRAY_LEN(col) : 0);
	for (uint32_t i = 0; i < p->naverage; i++) {
		const struct average_cost *x = &p->average[i];

		OUTPUT_ROW(o, col, cell_text(x->canonical), cell_count(x->ntensor),
			   cell_bytes(x->bytes), cell_bytes(x->most));
	}
	output_close(o);
	if (p->naverage)
		cli_say(p->c, STYLE_DIM,
			"Averages take this much memory in each slot, and disk in each step. With averages "
			"a job has three slots where memory permits.");
}

static int take_averages(struct planning *p, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < p->c->ngiven && !rc; i++)
		if (p->c->given[i].id == OPT_AVERAGE)
			rc = average_cost(&p->to.target, p->c->given[i].value, cli_stopped,
					  &p->average[p->naverage++], err);
	return rc;
}

/* --- the ranks --- */

enum {
	COL_RANK,
	COL_BYTES,
	COL_READ,
	COL_AMPLIFICATION,
	COL_AMPLIFICATION_TEXT,
	COL_FILES,
	COL_CHUNKS,
	COL_TENSORS,
	COL_COUNT
};
static const struct column rank_columns[COL_COUNT] = {
	[COL_RANK] = { "rank", "RANK", true, FIT_WHOLE },
	[COL_BYTES] = { "held_bytes", "HOLDS", true, FIT_WHOLE },
	[COL_READ] = { "read_bytes", "READS", true, FIT_WHOLE },
	[COL_AMPLIFICATION] = { "amplification", NULL, true, FIT_WHOLE },
	[COL_AMPLIFICATION_TEXT] = { NULL, "READ/HELD", true, FIT_WHOLE },
	[COL_FILES] = { "file_count", "FILES", true, FIT_WHOLE },
	[COL_CHUNKS] = { "chunk_count", "CHUNKS", true, FIT_WHOLE },
	[COL_TENSORS] = { "tensor_count", "TENSORS", true, FIT_WHOLE },
};

static void put_row(struct output *o, struct cell rank, const struct load_rank *r, double times)
{
	char text[HUMAN_BYTES] = "-";

	if (times >= 0)
		snprintf(text, sizeof text, "%.2f", times);
	OUTPUT_ROW(o, rank_columns, rank, cell_bytes(r->bytes), cell_bytes(r->read_bytes),
		   times < 0 ? cell_none() : cell_real(times), cell_text(text),
		   cell_count(r->files), cell_count(r->chunks), cell_count(r->tensors));
}

/* Read for each byte held; -1 of a rank that holds nothing. */
static double read_amplification(const struct load_rank *r)
{
	return r->bytes ? (double)r->read_bytes / (double)r->bytes : -1;
}

static int real_compare(const void *va, const void *vb)
{
	double a = *(const double *)va, b = *(const double *)vb;

	return (a > b) - (a < b);
}

static double rank_figure(const struct load_rank *r, uint32_t col)
{
	switch (col) {
	case COL_BYTES:
		return (double)r->bytes;
	case COL_READ:
		return (double)r->read_bytes;
	case COL_AMPLIFICATION:
		return read_amplification(r);
	case COL_FILES:
		return r->files;
	case COL_CHUNKS:
		return (double)r->chunks;
	default:
		return r->tensors;
	}
}

/* Of many ranks: the least, the median and the most of each column by itself. */
static int put_spread(struct output *o, const struct load_cost *k)
{
	static const char *const name[] = { "least", "median", "most" };
	const uint32_t at[] = { 0, k->world / 2, k->world - 1 };
	cleanup_free double *x = calloc(k->world, sizeof *x);
	double found[ARRAY_LEN(at)][COL_COUNT] = { 0 };

	if (!x)
		return -ENOMEM;
	for (uint32_t col = COL_BYTES; col < COL_COUNT; col++) {
		for (uint32_t i = 0; i < k->world; i++)
			x[i] = rank_figure(&k->rank[i], col);
		qsort(x, k->world, sizeof *x, real_compare);
		for (uint32_t i = 0; i < ARRAY_LEN(at); i++)
			found[i][col] = x[at[i]];
	}
	output_list(o, NULL, rank_columns, COL_COUNT);
	for (uint32_t i = 0; i < ARRAY_LEN(at); i++) {
		const struct load_rank r = { .bytes = (uint64_t)found[i][COL_BYTES],
					     .read_bytes = (uint64_t)found[i][COL_READ],
					     .chunks = (uint64_t)found[i][COL_CHUNKS],
					     .files = (uint32_t)found[i][COL_FILES],
					     .tensors = (uint32_t)found[i][COL_TENSORS] };

		put_row(o, cell_text(name[i]), &r, found[i][COL_AMPLIFICATION]);
	}
	output_close(o);
	return 0;
}

static int put_ranks(struct planning *p)
{
	const struct load_cost *k = &p->cost;
	struct output *o = p->c->o;
	bool few = k->world <= RANKS_SAID;

	output_list(o, "ranks", few ? rank_columns : NULL, few ? COL_COUNT : 0);
	for (uint32_t i = 0; i < k->world && (few || o->machine); i++)
		put_row(o, cell_number(i), &k->rank[i], read_amplification(&k->rank[i]));
	output_close(o);
	if (few || o->machine)
		return 0;
	return put_spread(o, k);
}

/* --- from rank to rank --- */

static void put_flow(struct output *o, const struct flow *f)
{
	output_object(o, "flow");
	output_key(o, "from_block", cell_count(f->from_block));
	output_key(o, "to_block", cell_count(f->to_block));
	output_list(o, "cells", NULL, 0);
	for (uint32_t i = 0; i < f->nrow && o->machine; i++)
		for (uint32_t j = 0; j < f->ncol; j++) {
			if (!flow_at(f, i, j))
				continue;
			output_row(o);
			output_key(o, "from", cell_number(i * f->from_block));
			output_key(o, "to", cell_number(j * f->to_block));
			output_key(o, "bytes", cell_bytes(flow_at(f, i, j)));
			output_close(o);
		}
	output_close(o);
	output_close(o);
}

static int print_flow(struct planning *p)
{
	struct cli *c = p->c;
	const char *svg = c->value[OPT_SVG];
	int rc;

	if (c->json)
		return 0;
	cli_say(c, STYLE_PLAIN, "%s", "");
	rc = flow_print(&p->cost.flow, c->out, &c->out_screen);
	if (!rc && svg)
		cli_say(c, STYLE_PLAIN, "the picture is in %s", svg);
	return rc;
}

static int flow_picture(struct planning *p, struct ckpt_err *err)
{
	const struct checkpoint *k = p->s->ckpt;
	char where[SUBJECT_TITLE], title[LINE_BYTES], from[LINE_BYTES / 4], to[LINE_BYTES / 4],
		what[LINE_BYTES], words[LINE_BYTES];
	const char *line[] = { what, words, NULL };
	struct picture svg;
	int rc = picture_begin(&svg, err);

	if (rc)
		return rc;
	from_print(k, from, sizeof from);
	mesh_print(p->to.target.mesh, to, sizeof to);
	snprintf(title, sizeof title, "loading %s", subject_title(k, p->s->ref.path, where));
	snprintf(what, sizeof what, "%s -> %s, %u rank%s%s%s", from, to, p->cost.world,
		 p->cost.world == 1 ? "" : "s", p->c->value[OPT_LAYOUT] ? ", by " : "",
		 p->c->value[OPT_LAYOUT] ? p->c->value[OPT_LAYOUT] : "");
	snprintf(words, sizeof words, "ranks hold %s (imbalance %.2f) and read %s",
		 BYTES_TEXT(p->cost.held_bytes), load_imbalance(&p->cost),
		 BYTES_TEXT(p->cost.read_bytes));
	return picture_end(&svg, flow_svg(&p->cost.flow, p->exchange.rounds, title, line, svg.out),
			   p->c->ops, p->c->value[OPT_SVG], err);
}

/* --- the verb --- */

static int plan_tick(void *arg, uint32_t ranks_done)
{
	(void)arg;
	(void)ranks_done;
	return cli_stopped();
}

static int put_plan(struct planning *p)
{
	const struct checkpoint *k = p->s->ckpt;
	struct ckpt_err err = { 0 };
	char title[SUBJECT_TITLE];
	struct cli *c = p->c;
	int rc = c->value[OPT_SVG] ? flow_picture(p, &err) : 0;

	if (rc)
		return cli_fail(c, rc, &err, "choose another FILE");
	output_begin(c->o, "ckptd.plan/1");
	cli_say(c, STYLE_STRONG, "loading %s", subject_title(k, p->s->ref.path, title));
	put_who(p);
	put_held(p);
	put_read(p);
	plan_exchange_put(c, &p->exchange);
	rc = put_ranks(p);
	put_averages(p);
	put_flow(c->o, &p->cost.flow);
	output_key(c->o, "svg", cell_word(c->value[OPT_SVG]));
	if (!rc)
		rc = print_flow(p);
	if (!rc)
		plan_exchange_print(c, &p->exchange);
	explicit_option_put(c, &p->to, &p->explicit, most_bytes(&p->cost),
			    "which the largest rank holds");
	mesh_option_print(c, &p->to);
	output_end(c->o);
	return rc ? cli_fail(c, rc, NULL, NULL) : CLI_OK;
}

static int subject_plan(struct planning *p)
{
	struct ckpt_err err = { 0 };
	int code = mesh_option(p->c, p->s, &p->to), rc;

	if (code)
		return code;
	rc = take_averages(p, &err);
	if (rc) {
		code = cli_fail(p->c, rc, &err, "docs/AVERAGES.md describes the specs");
		goto out;
	}
	code = plan_exchange_take(p->c, &p->exchange);
	if (!code)
		code = explicit_option(p->c, &p->to, p->exchange.asked ? &p->exchange.links : NULL,
				       &p->explicit);
	if (code)
		goto out;
	code = plan_exchange_find(p->c, &p->s->ckpt->table, &p->to.target, &p->exchange);
	if (code)
		goto out;
	rc = load_cost(p->s->ckpt, &p->to.target, &p->cost, plan_tick, NULL, &err);
	if (rc)
		code = cli_fail(p->c, rc, &err, rc == -EMEDIUMTYPE ? "ckptctl verify %s" : NULL,
				CLI_WORD(p->s->ref.path));
	else
		code = put_plan(p);
	load_cost_free(&p->cost);
out:
	for (uint32_t i = 0; i < p->naverage; i++)
		free(p->average[i].canonical);
	plan_exchange_free(&p->exchange);
	explicit_option_end(&p->explicit);
	remesh_free(&p->to);
	return code;
}

static int plan_run(struct cli *c)
{
	struct subject s;
	int code = plan_steps_check(c);

	if (code || c->value[OPT_STEPS])
		return code ? code : plan_steps_run(c);
	code = subject_get(c, c->narg ? c->arg[0] : "latest", &s);
	if (!code)
		code = subject_plan(&(struct planning){ .c = c, .s = &s });
	subject_close(&s);
	return code;
}

const struct cli_verb verb_plan = {
	.name = "plan",
	.help = "the cost of loading a checkpoint onto another mesh",
	.synopsis =
		(const char *const[]){
			"[CKPT] --mesh=SPEC [--layout=RULE|FILE]... [--replicate=DIMS] "
			"[--average=SPEC]... [--links=FILE|PRESET [--round=BYTES]] [--svg=FILE] " EXPLICIT_SYNOPSIS,
			"--steps=STATES --mesh=SPEC --shape=SHAPE [--dtype=DTYPE] "
			"[--links=FILE|PRESET] [--mem-limit=BYTES] [--explain] [--svg=FILE]",
			NULL },
	.about =
		"Prints for every rank of a mesh how many bytes it would hold, and how many it "
		"would have to read for them. A rank reads every chunk in full, because it "
		"checks it in full; so a rank that needs a few columns of a matrix reads more "
		"than it holds. One host that loads all ranks reads each chunk once, in few "
		"large reads. plan reads only metadata and writes no checkpoint.\n"
		"The matrix shows how many bytes each new rank (column) needs from each old rank "
		"(row), which saved them. If there are many ranks, a cell stands for several "
		"neighbours. --svg also draws the matrix, for a bug report; with --links the "
		"rounds below it.\n"
		"Placements follow the names of mesh dimensions. If both meshes have a "
		"dimension, it cuts what it cut before, whatever its new size is. If a dimension "
		"is new and nothing says how it cuts most of the tensors, its ranks would hold "
		"copies: then plan, convert and export only print what the copies would cost, and "
		"what to write instead; with --replicate they make them. If the new mesh does not "
		"have a dimension, that dimension cuts nothing any more. Shards may be uneven or "
		"empty. If several mesh dimensions would cut one dimension of a tensor that has "
		"too few elements for them, only the largest cuts it. plan lists the tensors whose "
		"cuts change, with the reason.\n"
		"With --average plan also prints how much memory an average of the weights with "
		"this spec (ckpt_average, docs/AVERAGES.md) would take on the mesh, in each slot.\n"
		"With --links plan also prints how long an exchange takes in which the ranks that "
		"saved the checkpoint, if they still hold it, send it to the ranks of the mesh. "
		"They send each byte once, from a replica on the same host if there is one, in "
		"rounds; in a round a rank sends at most 64 MiB (--round), and receives at most as "
		"much. A round takes as long as its slowest link. Which ranks share a host follows "
		"from their numbers. The last drawing shows how busy each link is in each round.\n"
		"A tensor without placements is cut as its chunks are, if they are those of "
		"torch.chunk, else along its dimension 0 over the largest dimension of the mesh "
		"that it fills.\n"
		"--layout overrides these rules. Each rule is a name, or a glob over "
		"component/name, and placements in the order in which they apply: "
		"Shard(DIM)@mesh, StridedShard(DIM, FACTOR)@mesh, Only(COORDINATE)@mesh, "
		"Replicate@mesh. The first rule that matches counts; in a FILE '#' begins a "
		"comment. CKPT is latest (the default), latest~1, 12000, JOB@latest, or a path.\n"
		"--steps needs no checkpoint: it prints the cheapest steps, over --links, from one "
		"layout of a tensor to another one on the same mesh, and draws them: what each "
		"rank holds before and after each step, and what ranks send each other. "
		"STATES is \"S(0)[1]S(0)[0]R -> RS(1)S(0)\": a placement for each mesh dimension, "
		"as PyTorch writes them, and in brackets the order in which several of them cut "
		"one dimension of the tensor. SPEC may then be sizes alone, as in 2,2,2. plan "
		"compares the cheapest sequence of collectives (graph), PyTorch's greedy pass "
		"(greedy), and one exchange in which each rank sends what others need (direct); "
		"pytorch is what PyTorch does by itself. --explain prints why the others "
		"lost.\n" EXPLICIT_ABOUT(
			"plan") " plan itself casts nothing and leaves nothing out: convert -n "
				"prints what convert would do, and has the options for that.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl plan --mesh fsdp=6", "the newest one on six ranks" },
			{ "ckptctl plan step:90 --mesh fsdp=8 --json",
			  "every rank and tensor, for a program" },
			{ "ckptctl plan --mesh fsdp=6 --average 'constant decay=.999'",
			  "and the memory of an average" },
			{ "ckptctl plan --mesh tp=4 --layout tp.txt", "cut by rules of your own" },
			{ "ckptctl plan --mesh tp=4 --layout \"*.weight=Shard(1)@tp\" --replicate tp",
			  "one rule; what it does not name is on every rank" },
			{ "ckptctl plan --mesh dp=2,fsdp=4 --replicate dp", "two copies" },
			{ "ckptctl plan --mesh fsdp=6 --explain",
			  "what happens to which tensors, and why" },
			{ "ckptctl plan --mesh fsdp=6 --svg flow.svg",
			  "draw which rank needs whose bytes" },
			{ "ckptctl plan --mesh fsdp=6 --links h100",
			  "how long it takes ranks to exchange it" },
			{ "ckptctl plan --steps 'S(0)R -> RS(1)' --mesh 2,2 --shape 17,5",
			  "the cheapest way from one layout to another, drawn" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			REMESH_OPTIONS,
			{ OPT_AVERAGE,
			  "also the memory of an average with this spec; can be repeated" },
			{ OPT_SVG,
			  "also draw the matrix, or the steps, into this file; an existing file "
			  "is replaced only if it is such a picture" },
			{ OPT_STEPS, "from which state to which: \"SRC -> DST\"" },
			{ OPT_SHAPE, "with --steps: sizes of the tensor's dimensions" },
			{ OPT_ANY_DTYPE, "with --steps: of the tensor; the default is BF16" },
			{ OPT_LINKS, LINKS_HELP
			  "; without --steps, plan then also prints what an exchange between ranks "
			  "takes" },
			{ OPT_ROUND,
			  "with --links: what a rank sends and receives in a round at most; the "
			  "default is 64M" },
			{ OPT_MEM_LIMIT,
			  "with --steps: use no state and no step for which a rank needs more "
			  "memory" },
			EXPLICIT_OPTIONS,
			{ OPT_FROM, FROM_HELP },
			{ OPT_NONE, NULL } },
	.exits = "0; 2 the mesh, the layout file, the spec of an average or what --steps asks is "
		 "wrong; 3 the mesh would hold copies that --replicate does not name; 4 its "
		 "metadata is damaged; 5 it is not committed; 7 it lacks what the mesh needs, or "
		 "nobody asked for a change (--explicit); 10 there is no such store or "
		 "checkpoint; 11 the picture's FILE exists and is something else; 12 it cannot be "
		 "read; 13 --mem-limit is too small for every plan, or there is no space for the "
		 "picture.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = plan_run,
};
