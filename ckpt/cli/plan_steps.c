/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_steps.c - see plan_steps.h. Called by verb_plan.c.
 * Invariant: all plans that are compared are priced by one model, over the same links.
 */
#include "ckpt/cli/plan_steps.h"
#include "ckpt/answer/question.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/cli/links_option.h"
#include "ckpt/cli/picture.h"
#include "ckpt/draw/steps_draw.h"
#include "ckpt/layout/human.h"
#include "ckpt/redist/redistribute.h"

#define DTYPE_DEFAULT CKPT_BF16
#define TIMES_SAID 1.005 /* the cheapest: less would be printed as "1 times" */
#define LINE_BYTES 1024
#define TRACE_BYTES 16384
#define EXPLAIN_BYTES 65536

struct asked {
	struct cli *c;
	struct arena arena;
	uint32_t ndim, dtype;
	uint64_t shape[CKPT_DIMS_MAX];
	struct mesh mesh;
	struct layout src, dst;
	struct redist_problem problem;
	struct links links;
	const char *links_name;
	const char *next; /* what to do after an error */
	char presets[128], enough[128];
	struct redist_model model;
	struct redist_steps best, all[3];
	/* What PyTorch does by itself, priced by our model; n == REDIST_NO_ANSWER: it cannot */
	struct redist_steps torch;
	double torch_us;	 /* what its own model says of it */
	struct steps_draw *draw; /* NULL: too large, for the reason in why */
	struct ckpt_err why;
};

/* --- the command line --- */

static bool is_given(const struct cli *c, const enum cli_option_id *id, uint32_t n,
		     struct text *ret)
{
	for (uint32_t i = 0; i < n; i++)
		for (uint32_t k = 0; c->value[id[i]] && k < cli_option_count; k++)
			if (cli_options[k].id == id[i])
				text_add(ret, "%s--%s", ret->len ? ", " : "", cli_options[k].name);
	return ret->len > 0;
}

int plan_steps_check(struct cli *c)
{
	static const enum cli_option_id with[] = { OPT_SHAPE, OPT_ANY_DTYPE, OPT_MEM_LIMIT };
	static const enum cli_option_id without[] = { OPT_LAYOUT,  OPT_REPLICATE, OPT_VIEW,
						      OPT_AVERAGE, OPT_FROM,	  OPT_EXPLICIT,
						      OPT_ALLOW,   OPT_ROUND };
	char buf[LINE_BYTES];
	struct text t = text_in(buf, sizeof buf);

	if (!c->value[OPT_STEPS])
		return is_given(c, with, ARRAY_LEN(with), &t)
			       ? cli_usage(c, NULL, "only --steps takes %s", buf)
			       : CLI_OK;
	if (c->narg)
		text_add(&t, "%s", c->arg[0]);
	return is_given(c, without, ARRAY_LEN(without), &t)
		       ? cli_usage(
				 c, NULL,
				 "--steps is about one tensor, without a checkpoint: leave out %s",
				 buf)
		       : CLI_OK;
}

/* "2,2,2" as "m0=2,m1=2,m2=2". */
static int take_mesh(struct asked *q, struct ckpt_err *err)
{
	const char *at = q->c->value[OPT_MESH];
	char named[LINE_BYTES];
	struct text t = text_in(named, sizeof named);

	if (!at)
		return ckpt_error(
			err, -EINVAL,
			"--mesh is missing: names and sizes, or sizes alone, as in 2,2,2");
	if (strspn(at, "0123456789, ") < strlen(at))
		return mesh_parse(at, &q->arena, &q->mesh, err);
	for (uint32_t i = 0; at; i++) {
		at += strspn(at, " ");
		text_add(&t, "%sm%u=%.*s", i ? "," : "", i, (int)strcspn(at, ", "), at);
		at = strchr(at, ',');
		at += at != NULL;
	}
	return mesh_parse(named, &q->arena, &q->mesh, err);
}

static int take_shape(struct asked *q, struct ckpt_err *err)
{
	if (!q->c->value[OPT_SHAPE])
		return ckpt_error(err, -EINVAL, "--shape is missing: sizes, as in 4096,1024");
	return question_shape_of_words(q->c->value[OPT_SHAPE], &q->ndim, q->shape, err);
}

/* As our files call it, whatever the case, or as PyTorch does. */
static int take_dtype(struct asked *q, struct ckpt_err *err)
{
	static const struct {
		const char *name;
		uint32_t dtype;
	} torch[] = {
		{ "bfloat16", CKPT_BF16 },
		{ "float16", CKPT_F16 },
		{ "float32", CKPT_F32 },
		{ "float64", CKPT_F64 },
		{ "complex64", CKPT_C64 },
		{ "complex128", CKPT_C128 },
		{ "int8", CKPT_I8 },
		{ "int16", CKPT_I16 },
		{ "int32", CKPT_I32 },
		{ "int64", CKPT_I64 },
		{ "uint8", CKPT_U8 },
		{ "uint16", CKPT_U16 },
		{ "uint32", CKPT_U32 },
		{ "uint64", CKPT_U64 },
		{ "float8_e4m3fn", CKPT_F8_E4M3 },
		{ "float8_e5m2", CKPT_F8_E5M2 },
	};
	const char *word = q->c->value[OPT_ANY_DTYPE];
	char upper[32];
	uint32_t i = 0;

	q->dtype = DTYPE_DEFAULT;
	if (!word)
		return 0;
	for (uint32_t k = 0; k < ARRAY_LEN(torch); k++)
		if (!strcmp(word, torch[k].name)) {
			q->dtype = torch[k].dtype;
			return 0;
		}
	for (; word[i] && i + 1 < sizeof upper; i++)
		upper[i] = (char)(word[i] >= 'a' && word[i] <= 'z' ? word[i] - 'a' + 'A' : word[i]);
	upper[i] = 0;
	q->dtype = dtype_of_name(upper);
	if (!q->dtype)
		return ckpt_error(
			err, -EINVAL,
			"--dtype %.40s is no dtype: write BF16, F32, F16, F64, F8_E4M3, C64, "
			"I64, U8, BOOL, ..., or as PyTorch does, bfloat16",
			word);
	return 0;
}

static int take_limit(struct asked *q, struct ckpt_err *err)
{
	const char *word = q->c->value[OPT_MEM_LIMIT];

	if (word && (human_parse_bytes(word, &q->problem.mem_limit) || !q->problem.mem_limit))
		return ckpt_error(
			err, -EINVAL,
			"--mem-limit %.40s is no size: write 80G, 512M or a number of bytes", word);
	return 0;
}

/* A sentence of several lines as one line of a list. */
static char *in_one_line(char *text, char buf[static LINE_BYTES])
{
	struct text t = text_in(buf, LINE_BYTES);

	for (char *line, *rest = text; (line = strsep(&rest, "\n"));)
		text_add(&t, "%s%s", !t.len ? "" : buf[t.len - 1] == ':' ? " " : "; ", line);
	return buf;
}

/* fits: mesh and tensor are there, so the states can be read. */
static int take_states(struct asked *q, bool fits, struct ckpt_errlist *wrong)
{
	const char *text = q->c->value[OPT_STEPS], *arrow = strstr(text, "->");
	struct layout *ret[] = { &q->src, &q->dst };
	static const char *const side[] = { "before", "after" };
	char line[LINE_BYTES];
	struct ckpt_err err;

	if (!arrow || strstr(arrow + 2, "->")) {
		ckpt_errlist_add(wrong,
				 "--steps \"%.200s\": expected two states with one \"->\" between "
				 "them, as in \"S(0)R -> RS(1)\"",
				 text);
		return 0;
	}
	for (uint32_t i = 0; i < 2 && fits; i++) {
		const char *from = i ? arrow + 2 : text;
		char *one = arena_dup(&q->arena, from, strlen(from) + 1);

		if (!one)
			return -ENOMEM;
		if (!i)
			one[arrow - text] = 0;
		for (size_t n = strlen(one); n && one[n - 1] == ' ';)
			one[--n] = 0;
		if (redist_state_parse(one + strspn(one, " "), &q->mesh, q->ndim, &q->arena, ret[i],
				       &err))
			ckpt_errlist_add(wrong, "--steps, the state %s the arrow: %s", side[i],
					 in_one_line(err.msg, line));
	}
	return 0;
}

/* The cost file; and if the states can be read (fits), whether one can become the other. What alone
 * is wrong keeps its lines: the states are checked once more when plans are made. */
static int take_links(struct asked *q, bool fits, struct ckpt_errlist *wrong, struct ckpt_err *err)
{
	char line[LINE_BYTES];
	struct ckpt_err one;
	int rc = links_option_take(q->c, &q->links, &q->links_name, err);

	if ((rc == -EINVAL || wrong->n) && fits && redist_check(&q->problem, &one))
		ckpt_errlist_add(wrong, "%s", in_one_line(one.msg, line));
	if (rc == -EINVAL && wrong->n) {
		ckpt_errlist_add(wrong, "--links: %s", in_one_line(err->msg, line));
		return 0;
	}
	if (rc == -EINVAL)
		q->next = links_option_next(q->presets, sizeof q->presets);
	return rc;
}

/* All that is wrong with the options. */
static int take_question(struct asked *q, struct ckpt_err *err)
{
	int (*const take[])(struct asked *, struct ckpt_err *) = { take_mesh, take_shape,
								   take_dtype, take_limit };
	struct ckpt_errlist wrong = { .code = -EINVAL };
	struct ckpt_err one;
	bool fits = false;
	int rc = 0;

	for (uint32_t i = 0; i < ARRAY_LEN(take) && !rc; i++) {
		if (take[i](q, &one))
			ckpt_errlist_add(&wrong, "%s", one.msg);
		if (i == 1) {
			rc = take_states(q, !wrong.n, &wrong);
			fits = !wrong.n;
		}
	}
	q->problem.mesh = &q->mesh;
	q->problem.ndim = q->ndim;
	q->problem.shape = q->shape;
	q->problem.elem_bytes = dtype_bytes(q->dtype);
	q->problem.stopped = cli_stopped;
	q->problem.src = &q->src;
	q->problem.dst = &q->dst;
	if (!rc)
		rc = take_links(q, fits, &wrong, err);
	if (!rc)
		rc = ckpt_errlist_end(&wrong, err, "this cannot be redistributed");
	ckpt_errlist_free(&wrong);
	return rc;
}

/* --- plans --- */

/* The steps that PyTorch takes by its own model, then their price by ours. */
static int torch_plan(struct asked *q, struct ckpt_err *err)
{
	struct redist_model own = redist_torch(q->links.per_host);
	struct redist_problem p = q->problem;
	struct redist_steps *t = &q->torch;
	int rc;

	p.mem_limit = 0; /* PyTorch has none */
	rc = redist_plan(&p, redist_torch_takes(&p), &own, &q->arena, t, err);
	if (rc == -EINVAL || rc == -E2BIG) {
		t->n = REDIST_NO_ANSWER;
		t->too_large = rc == -E2BIG;
		return 0;
	}
	if (rc)
		return rc;
	q->torch_us = t->us;
	t->us = 0;
	t->peak_bytes = t->n ? 0 : q->best.peak_bytes;
	for (uint32_t i = 0; i < t->n && !rc; i++) {
		rc = q->model.price(&q->model, &p, &t->step[i], err);
		t->us += t->step[i].us;
		t->peak_bytes = MAX(t->peak_bytes, t->step[i].peak_bytes);
	}
	return rc;
}

static int make_plans(struct asked *q, struct ckpt_err *err)
{
	int rc;

	q->model = redist_links(&q->links);
	rc = redist_cheapest(&q->problem, &q->model, &q->arena, &q->best, q->all, err);
	if (!rc)
		rc = torch_plan(q, err);
	if (rc)
		return rc;
	rc = steps_draw_make(&q->problem, &q->best, &q->draw, &q->why);
	if (rc == -E2BIG && !q->c->value[OPT_SVG])
		return 0; /* the steps are an answer, too */
	*err = q->why;
	return rc;
}

/* --- as a document --- */

static char *trace_print(const struct asked *q, const struct redist_steps *s, const char *arrow,
			 char buf[static TRACE_BYTES])
{
	struct text t = text_in(buf, TRACE_BYTES);
	char state[REDIST_STATE_BYTES];

	text_add(&t, "%s", redist_state_print(&q->mesh, &s->src, state, sizeof state));
	for (uint32_t i = 0; i < s->n; i++)
		text_add(&t, "%s%s", arrow,
			 redist_state_print(&q->mesh, &s->step[i].after, state, sizeof state));
	return buf;
}

static void put_steps(struct asked *q, const struct redist_steps *s)
{
	struct output *o = q->c->o;
	char word[REDIST_PLACEMENT_BYTES], state[REDIST_STATE_BYTES];

	output_list(o, "steps", NULL, 0);
	for (uint32_t i = 0; i < s->n && s->n != REDIST_NO_ANSWER && o->machine; i++) {
		const struct redist_step *x = &s->step[i];
		bool all = x->op == REDIST_EXCHANGE;

		output_row(o);
		output_key(o, "op", cell_text(redist_op_name(x->op)));
		output_key(o, "mesh_dim", cell_if(!all, cell_number(x->mesh_dim)));
		output_key(o, "before",
			   cell_if(!all,
				   cell_text(redist_placement_print(&x->from, word, sizeof word))));
		output_key(o, "after",
			   cell_if(!all,
				   cell_text(redist_placement_print(&x->to, word, sizeof word))));
		output_key(o, "state",
			   cell_text(redist_state_print(&q->mesh, &x->after, state, sizeof state)));
		output_key(o, "bytes", cell_bytes((uint64_t)x->bytes));
		output_key(o, "us", cell_real(x->us));
		output_key(o, "peak_bytes", cell_bytes(x->peak_bytes));
		output_close(o);
	}
	output_close(o);
}

enum {
	COL_PLAN,
	COL_US,
	COL_US_TEXT,
	COL_MEMORY,
	COL_TRACE,
	COL_TRACE_TEXT,
	COL_TOO_LARGE,
	COL_COUNT,
};
static const struct column plan_columns[COL_COUNT] = {
	[COL_PLAN] = { "planner", "PLAN", false, FIT_WHOLE },
	[COL_US] = { "us", NULL, true, FIT_WHOLE },
	[COL_US_TEXT] = { NULL, "TIME", true, FIT_WHOLE },
	[COL_MEMORY] = { "peak_bytes", "MEMORY", true, FIT_WHOLE },
	[COL_TRACE] = { "trace", NULL, false, FIT_WHOLE },
	[COL_TRACE_TEXT] = { NULL, "STATES", false, FIT_WRAP },
	[COL_TOO_LARGE] = { "too_large", NULL, false, FIT_WHOLE },
};

static void put_plan_cells(struct asked *q, const char *name, const struct redist_steps *s)
{
	char trace[TRACE_BYTES], shown[TRACE_BYTES];
	bool none = s->n == REDIST_NO_ANSWER;
	const struct cell cell[COL_COUNT] = {
		[COL_PLAN] = cell_text(name),
		[COL_US] = cell_if(!none, cell_real(s->us)),
		[COL_US_TEXT] = cell_text(none ? "-" : US_TEXT(s->us)),
		[COL_MEMORY] = cell_if(!none, cell_bytes(s->peak_bytes)),
		[COL_TRACE] = cell_if(!none, cell_text(trace_print(q, s, "->", trace))),
		[COL_TRACE_TEXT] = cell_text(s->too_large ? "too large to be counted"
					     : none	  ? "no answer"
							  : trace_print(q, s, " -> ", shown)),
		[COL_TOO_LARGE] = cell_flag(s->too_large),
	};

	output_cells(q->c->o, plan_columns, cell, COL_COUNT);
}

static void put_plans(struct asked *q)
{
	static const enum redist_planner order[] = { REDIST_GRAPH, REDIST_GREEDY, REDIST_DIRECT };
	struct output *o = q->c->o;

	output_list(o, "plans", plan_columns, COL_COUNT);
	for (uint32_t i = 0; i <= ARRAY_LEN(order); i++) {
		const struct redist_steps *s = i < ARRAY_LEN(order) ? &q->all[order[i]] : &q->torch;

		output_row(o);
		put_plan_cells(q, s == &q->torch ? "pytorch" : redist_planner_name(order[i]), s);
		put_steps(q, s);
		output_close(o);
	}
	output_close(o);
}

static void put_torch(struct asked *q)
{
	const struct redist_steps *t = &q->torch;
	bool none = t->n == REDIST_NO_ANSWER;
	struct output *o = q->c->o;
	char times[HUMAN_BYTES] = "";

	output_object(o, "pytorch");
	output_key(o, "planner", cell_if(!none, cell_text(redist_planner_name(t->planner))));
	output_key(o, "us", cell_if(!none, cell_real(q->torch_us)));
	output_close(o);
	if (none) {
		output_label(o, "pytorch", STYLE_PLAIN,
			     t->too_large ? "its search would visit too many states: its steps are "
					    "unknown"
					  : "cannot do it");
		return;
	}
	if (t->us >= q->best.us * TIMES_SAID && q->best.us > 0)
		snprintf(times, sizeof times, ", %.3g times the cheapest", t->us / q->best.us);
	output_label(o, "pytorch", STYLE_PLAIN,
		     "takes its %s planner, whose steps take %s%s; its own model says %s",
		     redist_planner_name(t->planner), US_TEXT(t->us), times, US_TEXT(q->torch_us));
}

/* "; not compared: direct": the planners whose price is unknown. Returns buf. */
static char *unknown_print(const struct asked *q, char buf[static HUMAN_BYTES])
{
	struct text t = text_in(buf, HUMAN_BYTES);

	for (uint32_t i = 0; i < ARRAY_LEN(q->all); i++)
		if (q->all[i].too_large)
			text_add(&t, "%s%s", t.len ? ", " : "; not compared: ",
				 redist_planner_name((enum redist_planner)i));
	return buf;
}

static void put_asked(struct asked *q)
{
	struct output *o = q->c->o;
	char src[REDIST_STATE_BYTES], dst[REDIST_STATE_BYTES], mesh[LINE_BYTES], shape[256],
		unknown[HUMAN_BYTES];
	uint64_t numel = 0, bytes = 0;

	(void)shape_numel(q->ndim, q->shape, &numel); /* the plans have counted it */
	(void)ckpt_mul(numel, q->problem.elem_bytes, &bytes);
	redist_state_print(&q->mesh, &q->src, src, sizeof src);
	redist_state_print(&q->mesh, &q->dst, dst, sizeof dst);
	mesh_print(&q->mesh, mesh, sizeof mesh);
	cli_say(q->c, STYLE_STRONG, "%s -> %s", src, dst);
	output_key(o, "src", cell_text(src));
	output_key(o, "dst", cell_text(dst));
	output_key(o, "shape", cell_shape(q->ndim, q->shape));
	output_key(o, "dtype", cell_text(dtype_name(q->dtype)));
	output_key(o, "tensor_bytes", cell_bytes(bytes));
	output_label(o, "tensor", STYLE_PLAIN, "%s %s, %s",
		     human_shape(q->ndim, q->shape, shape, sizeof shape), dtype_name(q->dtype),
		     BYTES_TEXT(bytes));
	output_key(o, "mesh", cell_text(mesh));
	output_key(o, "rank_count", cell_count(q->mesh.nrank));
	output_label(o, "mesh", STYLE_PLAIN, "%s, %s rank%s", mesh, COUNT_TEXT(q->mesh.nrank),
		     q->mesh.nrank == 1 ? "" : "s");
	output_field(o, "links", "links", cell_text(q->links_name));
	output_key(o, "mem_limit", cell_unless(CELL_BYTES, q->problem.mem_limit, 0));
	output_key(o, "planner", cell_text(redist_planner_name(q->best.planner)));
	output_key(o, "us", cell_real(q->best.us));
	if (q->best.n)
		output_label(o, "cheapest", STYLE_GOOD, "%s, %u step%s, %s%s",
			     redist_planner_name(q->best.planner), q->best.n,
			     q->best.n == 1 ? "" : "s", US_TEXT(q->best.us),
			     unknown_print(q, unknown));
	else
		output_label(o, "cheapest", STYLE_GOOD, "nothing is to be done");
}

static void put_explained(struct asked *q)
{
	bool asked = q->c->value[OPT_EXPLAIN];
	cleanup_free char *text = asked ? calloc(1, EXPLAIN_BYTES) : NULL;
	char *line, *rest = text;

	if (text)
		redist_explain(&q->problem, &q->model, q->all, text, EXPLAIN_BYTES);
	output_key(q->c->o, "explain", cell_word(text));
	for (bool first = true; text && (line = strsep(&rest, "\n")); first = false)
		output_label(q->c->o, first ? "why" : "", STYLE_PLAIN, "%s", line);
}

static int print_drawing(struct asked *q)
{
	struct cli *c = q->c;
	int rc;

	if (c->json)
		return 0;
	cli_say(c, STYLE_PLAIN, "%s", "");
	rc = q->draw ? steps_print(q->draw, c->out, &c->out_screen) : -E2BIG;
	if (rc == -E2BIG) {
		cli_say(c, STYLE_DIM, "%s",
			q->draw ? "it has too many blocks to be drawn" : q->why.msg);
		rc = 0;
	}
	if (!rc && c->value[OPT_SVG])
		cli_say(c, STYLE_PLAIN, "the picture is in %s", c->value[OPT_SVG]);
	return rc;
}

static int picture_make(struct asked *q, struct ckpt_err *err)
{
	char title[LINE_BYTES], src[REDIST_STATE_BYTES], dst[REDIST_STATE_BYTES],
		mesh[LINE_BYTES / 2], shape[256], what[LINE_BYTES], price[LINE_BYTES];
	const char *line[] = { what, price, NULL };
	struct picture svg;
	int rc = picture_begin(&svg, err);

	if (rc)
		return rc;
	snprintf(title, sizeof title, "%s -> %s",
		 redist_state_print(&q->mesh, &q->src, src, sizeof src),
		 redist_state_print(&q->mesh, &q->dst, dst, sizeof dst));
	snprintf(what, sizeof what, "%s %s over %s",
		 human_shape(q->ndim, q->shape, shape, sizeof shape), dtype_name(q->dtype),
		 mesh_print(&q->mesh, mesh, sizeof mesh));
	snprintf(price, sizeof price, "%s by %s; PyTorch's steps: %s", US_TEXT(q->best.us),
		 redist_planner_name(q->best.planner),
		 q->torch.n == REDIST_NO_ANSWER ? "none" : US_TEXT(q->torch.us));
	return picture_end(&svg, steps_svg(q->draw, title, line, svg.out), q->c->ops,
			   q->c->value[OPT_SVG], err);
}

static int answer_print(struct asked *q)
{
	struct output *o = q->c->o;
	int rc;

	output_begin(o, "ckptd.redistribution/1");
	put_asked(q);
	put_torch(q);
	put_explained(q);
	put_plans(q);
	output_key(o, "svg", cell_word(q->c->value[OPT_SVG]));
	rc = print_drawing(q);
	output_end(o);
	return rc;
}

/* What to do where nothing fits: how much memory does the plan take that needs no limit? */
static const char *enough_print(struct asked *q)
{
	struct redist_problem p = q->problem;
	struct redist_steps best;
	struct ckpt_err err;

	p.mem_limit = 0;
	if (redist_cheapest(&p, &q->model, &q->arena, &best, NULL, &err))
		return "give a larger --mem-limit";
	snprintf(q->enough, sizeof q->enough,
		 "--mem-limit %llu is enough for the plan that is the cheapest without a limit",
		 (unsigned long long)best.peak_bytes);
	return q->enough;
}

static int steps_answer(struct asked *q, struct ckpt_err *err)
{
	int rc = take_question(q, err);

	if (rc)
		return rc;
	rc = make_plans(q, err);
	if (rc == -ENOSPC) { /* of memory, not of a disk */
		q->next = enough_print(q);
		return rc;
	}
	if (rc == -E2BIG && q->why.msg[0])
		q->next = "leave out --svg";
	if (rc == -EOVERFLOW || rc == -E2BIG) /* it is the question that is too large */
		return -EINVAL;
	if (!rc && q->c->value[OPT_SVG]) {
		q->next = "choose another FILE";
		rc = picture_make(q, err);
	}
	return rc ? rc : answer_print(q);
}

int plan_steps_run(struct cli *c)
{
	struct asked q = { .c = c, .next = "ckptctl plan -h" };
	struct ckpt_err err = { 0 };
	int rc = steps_answer(&q, &err);

	steps_draw_free(q.draw);
	arena_free(&q.arena);
	if (rc == -ECANCELED)
		return cli_fail(c, rc, &err, NULL);
	return rc ? cli_fail(c, rc, &err, "%s", q.next) : CLI_OK;
}
