/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_layout.c - ckptctl layout: which elements each rank of a layout holds, without any
 * checkpoint. Drawn, as a picture, for a program, or counted; and questions by the thousand.
 * Invariant: one place computes shares (layout_shares.c), for drawings and for lists.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "ckpt/answer/answer_batch.h"
#include "ckpt/answer/question.h"
#include "ckpt/draw/layout_shares.h"
#include "ckpt/draw/map.h"
#include "ckpt/io/io_input.h"
#include "ckpt/cli/picture.h"
#include "ckpt/table/table.h"
#include <fcntl.h>

#define LINE_BYTES 1024
#define RANKS_SAID 16u	     /* more ranks than these share a row */
#define DRAWN_MAX (1u << 17) /* ranks of a drawing: their index sets take 64 MiB */

struct job {
	struct cli *c;
	struct arena arena;
	struct question q;
	struct shares shares;
	struct shares_totals sum;
	struct map *m; /* NULL: nothing is drawn */
};

/* --- the question --- */

static int take_question(struct job *j, struct ckpt_err *err)
{
	const struct cli *c = j->c;
	int rc;

	if (!c->narg)
		return question_of_words(c->value[OPT_SHAPE], c->value[OPT_MESH],
					 c->value[OPT_PLACEMENTS], c->value[OPT_MODE], &j->arena,
					 &j->q, err);
	rc = question_parse(c->arg[0], strlen(c->arg[0]), &j->arena, &j->q, err);
	if (!rc && j->q.kind != ASK_SHARES)
		rc = ckpt_error(
			err, -EINVAL,
			"only \"placements\" can be drawn; --batch answers the other kinds");
	return rc;
}

/* Either a question, or all of its words. */
static int check_options(const struct cli *c, struct ckpt_err *err)
{
	bool words = c->value[OPT_SHAPE] || c->value[OPT_MESH] || c->value[OPT_PLACEMENTS] ||
		     c->value[OPT_MODE];

	if (c->value[OPT_BATCH] && (words || c->value[OPT_SVG]))
		return ckpt_error(
			err, -EINVAL,
			"--batch reads its questions from FILE or stdin: the only other option "
			"that it takes is --summary");
	if (c->value[OPT_SUMMARY] && c->value[OPT_SVG])
		return ckpt_error(err, -EINVAL, "--summary draws nothing: leave out --svg");
	if (c->value[OPT_BATCH])
		return 0;
	if (c->narg && words)
		return ckpt_error(
			err, -EINVAL,
			"QUESTION has its own shape, mesh, placements and mode: leave out "
			"these options");
	if (!c->narg && (!c->value[OPT_SHAPE] || !c->value[OPT_MESH] || !c->value[OPT_PLACEMENTS]))
		return ckpt_error(
			err, -EINVAL,
			"give --shape, --mesh and --placements, or a QUESTION, or --batch");
	return 0;
}

/* --- drawing --- */

static int make_map(struct job *j, struct ckpt_err *err)
{
	const struct question *q = &j->q;
	uint32_t nrank = q->mesh.nrank;
	struct indexset *set = arena_array(&j->arena, nrank, sizeof *set);
	struct indices *dim = arena_array(&j->arena, (size_t)nrank * MAX(q->ndim, 1u), sizeof *dim);
	struct map_in *in = arena_array(&j->arena, nrank, sizeof *in);

	if (nrank > DRAWN_MAX)
		return ckpt_error(
			err, -E2BIG,
			"%u ranks are too many to draw, the maximum is %u; --summary counts what "
			"they hold",
			nrank, DRAWN_MAX);
	if (!set || !dim || !in)
		return -ENOMEM;
	for (uint32_t i = 0; i < nrank; i++, dim += q->ndim) {
		uint32_t coord[CKPT_DIMS_MAX];
		const struct shares_list *list[CKPT_DIMS_MAX];
		uint64_t rank = question_rank_ascending(q, i, coord);

		if (rank > UINT32_MAX)
			return ckpt_error(err, -EINVAL, "rank %llu is too large to be drawn",
					  (unsigned long long)rank);
		set[i] = (struct indexset){ .ndim = q->ndim,
					    .numel = shares_at(&j->shares, coord, list),
					    .dim = dim };
		for (uint32_t d = 0; d < q->ndim; d++)
			dim[d] = list[d]->x;
		in[i] = (struct map_in){ (uint32_t)rank, &set[i] };
	}
	return map_make(q->ndim, q->shape, in, nrank, &j->m);
}

static char *layout_text(const struct job *j, char *buf, size_t bytes)
{
	const struct table t = { .nmesh = 1,
				 .mesh = (struct mesh *)&j->q.mesh,
				 .nlayout = 1,
				 .layout = (struct layout *)&j->q.layout };

	return table_layout_print(&t, 0, buf, bytes);
}

static int picture_make(struct job *j, const char *path, struct ckpt_err *err)
{
	char title[LINE_BYTES], shape[256], mesh[256], layout[LINE_BYTES], words[LINE_BYTES];
	const char *line[] = { layout, words, NULL };
	struct picture svg;
	int rc = picture_begin(&svg, err);

	if (rc)
		return rc;
	snprintf(title, sizeof title, "%s over %s",
		 human_shape(j->q.ndim, j->q.shape, shape, sizeof shape),
		 j->q.mesh.ndim ? mesh_print(&j->q.mesh, mesh, sizeof mesh) : "one rank");
	layout_text(j, layout, sizeof layout);
	map_sentence(j->m, 0, words, sizeof words);
	return picture_end(&svg, map_svg(j->m, title, line, svg.out), j->c->ops, path, err);
}

static int map_draw(struct job *j)
{
	struct cli *c = j->c;
	char line[LINE_BYTES];
	int rc;

	cli_say(c, STYLE_PLAIN, "%s", "");
	if (map_axes(j->m, line, sizeof line)[0])
		cli_say(c, STYLE_DIM, "  %s", line);
	rc = map_print(j->m, c->out, &c->out_screen);
	if (rc)
		return rc;
	cli_say(c, STYLE_PLAIN, "%s%s", map_sentence(j->m, 0, line, sizeof line),
		layout_is_partial(&j->q.layout) ? "; what its ranks hold are operands" : "");
	if (c->value[OPT_SVG])
		cli_say(c, STYLE_PLAIN, "the picture is in %s", c->value[OPT_SVG]);
	return 0;
}

/* --- telling --- */

static struct cell replication_cell(const struct job *j)
{
	uint64_t n = j->shares.numel;

	return n ? cell_real((double)j->sum.held / (double)n) : cell_none();
}

static void put_question(struct job *j)
{
	struct output *o = j->c->o;
	char line[LINE_BYTES];

	output_field(o, "shape", "shape", cell_shape(j->q.ndim, j->q.shape));
	output_field(o, "mesh", "mesh", cell_text(mesh_print(&j->q.mesh, line, sizeof line)));
	output_field(o, "layout", "layout", cell_text(layout_text(j, line, sizeof line)));
	output_key(o, "elements", cell_count(j->shares.numel));
	output_key(o, "rank_count", cell_count(j->q.mesh.nrank));
}

static void put_counts(struct job *j)
{
	const struct shares_totals *s = &j->sum;
	const struct map_facts *f = j->m ? map_facts(j->m) : NULL;
	struct output *o = j->c->o;

	output_key(o, "held_elements", cell_count(s->held));
	output_key(o, "replication", replication_cell(j));
	output_key(o, "elements_min", cell_count(s->least));
	output_key(o, "elements_max", cell_count(s->most));
	output_key(o, "empty_rank_count", cell_count(s->empty));
	output_key(o, "progression_count", cell_count(s->progressions));
	output_key(o, "run_count", cell_count(s->runs));
	output_key(o, "copies_min", cell_if(f && f->copies_known, cell_number(f->copies_min)));
	output_key(o, "copies_max", cell_if(f && f->copies_known, cell_number(f->copies_max)));
}

static void say_counts(struct job *j)
{
	const struct shares_totals *s = &j->sum;
	char times[HUMAN_BYTES + 40] = "", line[LINE_BYTES];
	struct output *o = j->c->o;

	output_head(o, "elements", cell_count(j->shares.numel));
	if (j->shares.numel)
		snprintf(times, sizeof times, ", %.4g times the tensor",
			 (double)s->held / (double)j->shares.numel);
	output_label(o, "ranks hold", STYLE_PLAIN, "%s element%s%s", COUNT_TEXT(s->held),
		     s->held == 1 ? "" : "s", times);
	if (s->least == s->most)
		snprintf(line, sizeof line, "holds %s element%s", COUNT_TEXT(s->least),
			 s->least == 1 ? "" : "s");
	else
		snprintf(line, sizeof line, "holds %s to %s elements", COUNT_TEXT(s->least),
			 COUNT_TEXT(s->most));
	if (s->empty && s->most)
		human_add(line, sizeof line, "; ", "%s of %s hold nothing", COUNT_TEXT(s->empty),
			  COUNT_TEXT(j->q.mesh.nrank));
	output_head(o, "one rank", cell_text(line));
	output_label(o, "runs", STYLE_PLAIN,
		     "%s over all ranks and dimensions, described by %s progression%s",
		     COUNT_TEXT(s->runs), COUNT_TEXT(s->progressions),
		     s->progressions == 1 ? "" : "s");
}

enum {
	COL_RANK,
	COL_AT,
	COL_COORD,
	COL_ELEMENTS,
	COL_RUNS,
	COL_PROGRESSIONS,
	COL_INDEX,
	COL_COUNT
};
static const struct column rank_columns[COL_COUNT] = {
	[COL_RANK] = { "rank", "RANK", true, FIT_WHOLE },
	[COL_AT] = { NULL, "AT", false, FIT_LAST },
	[COL_COORD] = { NULL, NULL, false, FIT_WHOLE },
	[COL_ELEMENTS] = { "elements", "ELEMENTS", true, FIT_WHOLE },
	[COL_RUNS] = { "run_count", "RUNS", true, FIT_WHOLE },
	[COL_PROGRESSIONS] = { "progression_count", "PROGRESSIONS", true, FIT_WHOLE },
	[COL_INDEX] = { "index", NULL, false, FIT_WHOLE },
};

static void put_rank(struct job *j, uint32_t i, bool indexed)
{
	struct output *o = j->c->o;
	uint32_t coord[CKPT_DIMS_MAX], used = 0;
	uint64_t rank = question_rank_ascending(&j->q, i, coord), runs = 0, records = 0;
	const struct shares_list *list[CKPT_DIMS_MAX];
	struct indices dim[CKPT_DIMS_MAX];
	struct indexset set = { .ndim = j->q.ndim, .dim = dim };
	char at[LINE_BYTES] = "";

	set.numel = shares_at(&j->shares, coord, list);
	for (uint32_t d = 0; d < j->q.ndim; d++) {
		dim[d] = list[d]->x;
		records += list[d]->x.n;
		runs += list[d]->runs;
	}
	for (uint32_t d = 0; d < j->q.mesh.ndim; d++)
		used += (uint32_t)snprintf(at + used, sizeof at - used, "%s%s=%u", d ? "," : "",
					   j->q.mesh.name[d], coord[d]);
	output_row(o);
	output_put(o, &rank_columns[COL_RANK], cell_number(rank));
	output_put(o, &rank_columns[COL_AT], cell_text(at));
	output_list(o, "coord", NULL, 0);
	for (uint32_t d = 0; d < j->q.mesh.ndim; d++)
		output_key(o, "coord", cell_number(coord[d]));
	output_close(o);
	output_put(o, &rank_columns[COL_ELEMENTS], cell_count(set.numel));
	output_put(o, &rank_columns[COL_RUNS], cell_count(runs));
	output_put(o, &rank_columns[COL_PROGRESSIONS], cell_count(records));
	output_put(o, &rank_columns[COL_INDEX], cell_if(indexed, cell_set(&set, j->q.shape)));
	output_close(o);
}

static void put_ranks(struct job *j, bool summary)
{
	bool few = summary && j->q.mesh.nrank <= RANKS_SAID;
	struct output *o = j->c->o;

	output_list(o, "ranks", few ? rank_columns : NULL, few ? COL_COUNT : 0);
	for (uint32_t i = 0; i < j->q.mesh.nrank && (few || o->machine); i++)
		put_rank(j, i, !summary);
	output_close(o);
}

static int answer_print(struct job *j)
{
	struct cli *c = j->c;
	bool summary = c->value[OPT_SUMMARY];
	const char *svg = c->value[OPT_SVG];
	int rc = 0;

	output_begin(c->o, "ckptd.layout/1");
	put_question(j);
	put_counts(j);
	if (summary)
		say_counts(j);
	put_ranks(j, summary);
	output_key(c->o, "svg", cell_word(svg));
	if (!summary && !c->json)
		rc = map_draw(j);
	output_end(c->o);
	return rc;
}

/* --- the verb --- */

static int question_answer(struct job *j, struct ckpt_err *err, const char **next)
{
	bool summary = j->c->value[OPT_SUMMARY];
	int rc = take_question(j, err);

	*next = "ckptctl layout -h";
	if (rc)
		return rc;
	*next = NULL;
	rc = shares_make(&j->q.mesh, &j->q.layout, j->q.ndim, j->q.shape, &j->arena, &j->shares,
			 err);
	if (!rc)
		shares_count(&j->shares, &j->sum);
	if (!rc && !summary)
		rc = make_map(j, err);
	if (!rc && j->c->value[OPT_SVG]) {
		rc = picture_make(j, j->c->value[OPT_SVG], err);
		*next = rc ? "choose another FILE" : NULL;
	}
	return rc ? rc : answer_print(j);
}

static int run_one(struct cli *c)
{
	struct job j = { .c = c };
	struct ckpt_err err = { 0 };
	const char *next;
	int rc = question_answer(&j, &err, &next);

	if (rc == -E2BIG && !err.msg[0])
		ckpt_error(&err, rc, "its blocks are too many, and overlap too much, to be drawn");
	map_free(j.m);
	question_free(&j.q);
	arena_free(&j.arena);
	if (rc && next)
		return cli_fail(c, rc, &err, "%s", next);
	return rc ? cli_fail(c, rc, &err, NULL) : CLI_OK;
}

static int run_batch(struct cli *c)
{
	const char *path = c->narg ? c->arg[0] : NULL;
	cleanup_close int file = -1;
	struct ckpt_err err = { 0 };
	int rc;

	if (path) {
		file = io_input_open(path);
		if (file < 0)
			return cli_fail(c, ckpt_error_errno(&err, -file, "%s", path), &err, NULL);
	} else if (isatty(STDIN_FILENO)) {
		cli_hint(c, "reading questions, one JSON object a line; Ctrl-D ends");
	}
	rc = answer_batch(path ? file : STDIN_FILENO, c->out, c->value[OPT_SUMMARY], cli_stopped,
			  &err);
	return rc ? cli_fail(c, rc, &err, NULL) : CLI_OK;
}

static int layout_run(struct cli *c)
{
	struct ckpt_err err = { 0 };
	int rc = check_options(c, &err);

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl layout -h");
	return c->value[OPT_BATCH] ? run_batch(c) : run_one(c);
}

const struct cli_verb verb_layout = {
	.name = "layout",
	.help = "which elements of a tensor each rank of a mesh holds",
	.synopsis =
		(const char *const[]){
			"--shape=SHAPE --mesh=SPEC --placements=TEXT [--mode=MODE] [--svg=FILE]",
			"--shape=SHAPE --mesh=SPEC --placements=TEXT --summary",
			"QUESTION [--svg=FILE | --summary]", "--batch [--summary] [FILE]", NULL },
	.about = "Draws a layout; it needs no checkpoint. SHAPE is 4096,1024, or [] for a scalar. "
		 "SPEC names mesh dimensions and their sizes; the last one varies fastest over "
		 "the ranks 0, 1, 2, ...\n"
		 "TEXT has a placement for each mesh dimension, in the order of the mesh, in any "
		 "spelling of PyTorch's: (Shard(dim=0), Replicate()), _StridedShard(0, sf=2), "
		 "Partial(sum), or S(DIM), _S(DIM, FACTOR), R, P(OP). Or it names "
		 "the mesh dimensions, in the order in which they cut: Shard(DIM)@mesh, "
		 "StridedShard(DIM, FACTOR)@mesh, Only(COORDINATE)@mesh, Partial(OP)@mesh, "
		 "Replicate@mesh.\n"
		 "QUESTION is the same as JSON, with an order and ranks of its own: {\"shape\": "
		 "[7, 5], \"mesh\": [3, 2], \"placements\": [\"S(0)\", \"S(0)\"], \"order\": [[0, "
		 "[1, 0]]], \"ranks\": [0, 2, 4, 1, 3, 5], \"mode\": \"literal\"}.\n"
		 "--batch answers such lines from FILE or stdin. Each answer is an array with one "
		 "object for each rank, in ascending order: its coordinate \"coord\", and "
		 "\"runs\", the runs [start, stop) of each dimension. A line with \"strided\" in "
		 "place of \"placements\" asks which order its split factors mean: {\"decoded\": "
		 "[[0, [1, 0]]]}, or null. One with \"dtype\", \"src\" and \"dst\" (placements) "
		 "and \"locals\" (the values of each rank) asks for the values of each rank after "
		 "pending reductions are carried out: {\"result\": .., \"result_shapes\": ..}. One "
		 "with \"shape\", \"dtype\", \"devices_per_host\", \"src\" and \"dst\" asks "
		 "by which collectives src becomes dst, and what PyTorch believes that this "
		 "costs: {\"us\": .., \"trace\": \"S(0)R->RR\", \"steps\": ..}, by \"planner\" "
		 "\"greedy\" or \"graph\", or else by the one that PyTorch takes; "
		 "\"src_order\" and \"dst_order\" are orders; \"own\" is the cheapest plan by "
		 "the price of real links. If "
		 "a question is refused, its answer is {\"error\": \"why\"}, and the next line "
		 "follows.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl layout --shape 7,5 --mesh dp=3,tp=2 --placements 'S(0), S(1)'",
			  "blocks of a matrix" },
			{ "ckptctl layout --shape 7 --mesh x=3,y=2 --placements "
			  "'Shard(0)@y,Shard(0)@x'",
			  "y cuts first: so does TP under FSDP2" },
			{ "ckptctl layout --batch --summary questions.jsonl",
			  "counts, line by line" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_SHAPE, "sizes of the tensor's dimensions" },
			{ OPT_MESH, "the mesh: names and sizes, as in dp=2,fsdp=4" },
			{ OPT_PLACEMENTS, "what each mesh dimension does to the tensor" },
			{ OPT_MODE,
			  "how placements cut: literal, one after the other (the default); "
			  "order, the factors of _S give the order and nothing else; flat, all "
			  "placements of a dimension at once; unflatten_pad, _S pads rows to one "
			  "length" },
			{ OPT_SUMMARY, "count what ranks hold, and list no runs" },
			{ OPT_SVG,
			  "also draw into this file; an existing file is replaced only if it is "
			  "such a picture" },
			{ OPT_BATCH, "answer questions, one JSON object a line" },
			{ OPT_NONE, NULL },
		},
	.exits = "0, also if answers of a batch are errors; 1 the answer would be too large; 2 "
		 "the question is wrong; 10 there is no such FILE; 11 the picture's FILE exists "
		 "and is something else; 12 it cannot be written.",
	.args = (const enum cli_arg[]){ ARG_FILE, ARG_NONE },
	.narg_max = 1,
	.run = layout_run,
};
