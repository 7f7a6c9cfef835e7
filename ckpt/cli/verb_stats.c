/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_stats.c - ckptctl stats: where the bytes of a checkpoint are, and which of them are there
 * more than once.
 * Invariant: every sum is over all tensors that were asked for; linear in tensors and pieces, but
 * for sorting.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/engine/file_account.h"
#include "ckpt/engine/held.h"
#include "ckpt/layout/human.h"
#include "ckpt/engine/module_tree.h"
#include "ckpt/table/shown.h"
#include "ckpt/cli/subject.h"

#define LINE_BYTES 1024
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)
#define MODULES_SHOWN 20u /* without --depth: the tree goes as deep as this many rows allow */
#define RANKS_SHOWN 16u
#define EQUALS_SHOWN 8u

struct stats {
	struct chosen of; /* the tensors asked for */
	const char *glob; /* that asked for them; NULL: all there are */
	uint64_t bytes;
};

static double percent_of(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole * 100 : 0;
}

/* --- sums by something --- */

enum { SUM_KEY, SUM_TENSORS, SUM_ELEMENTS, SUM_BYTES, SUM_PART, SUM_COUNT };

static void put_sum(struct output *o, const struct column *col, const struct module_row *r,
		    uint64_t all)
{
	char part[16];

	snprintf(part, sizeof part, "%.1f %%", percent_of(r->bytes, all));
	output_row(o);
	output_put(o, &col[SUM_KEY], cell_text(r->path));
	output_put(o, &col[SUM_TENSORS], cell_count(r->tensors));
	output_put(o, &col[SUM_ELEMENTS], cell_count(r->elements));
	output_put(o, &col[SUM_BYTES], cell_bytes(r->bytes));
	output_put(o, &col[SUM_PART], cell_text(part));
	output_close(o);
}

#define SUM_COLUMNS(key, head)                                                                   \
	{                                                                                        \
		{ key, head, false, FIT_FIRST }, { "tensor_count", "TENSORS", true, FIT_WHOLE }, \
			{ "elements", "ELEMENTS", true, FIT_WHOLE },                             \
			{ "bytes", "SIZE", true, FIT_WHOLE }, { NULL, "PART", true, FIT_WHOLE }, \
	}

static int put_modules(struct output *o, struct stats *s, uint32_t depth)
{
	static const struct column col[SUM_COUNT] = SUM_COLUMNS("module", "MODULE");
	bool all = o->machine || depth != MODULE_AUTO;
	struct module_row *row;
	uint32_t n, shown;
	uint64_t more = 0;
	int rc = module_rows(&s->of.k->table, s->of.id, s->of.n, depth, MODULES_SHOWN, &s->of.arena,
			     &row, &n, &depth);

	if (rc)
		return rc;
	output_key(o, "depth", cell_number(depth));
	shown = all ? n : MIN(n, MODULES_SHOWN);
	output_list(o, "modules", col, SUM_COUNT);
	for (uint32_t i = 0; i < shown; i++)
		put_sum(o, col, &row[i], s->bytes);
	output_close(o);
	for (uint32_t i = shown; i < n; i++)
		more += row[i].bytes;
	if (shown < n) {
		char text[LINE_BYTES];

		snprintf(text, sizeof text, "and %s more, %s: --depth=%u lists all",
			 COUNT_TEXT(n - shown), BYTES_TEXT(more), depth);
		o->ops->say(o, STYLE_DIM, NULL, 0, text);
	}
	return 0;
}

static const char *role_of(const struct table_tensor *x)
{
	return role_name(x->role);
}

static const char *dtype_of(const struct table_tensor *x)
{
	return dtype_name(x->dtype);
}

static int sum_compare(const void *a, const void *b)
{
	const struct module_row *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return strcmp(x->path, y->path);
}

/* Few different words: role names, element types. */
static void put_words(struct output *o, const struct stats *s, const char *key,
		      const struct column *col, const char *(*word)(const struct table_tensor *))
{
	struct module_row row[64];
	uint32_t n = 0, at = 0;

	for (uint32_t i = 0; i < s->of.n; i++) {
		const struct table_tensor *x = &s->of.k->table.tensor[s->of.id[i]];
		const char *w = word(x);

		if (at >= n || strcmp(row[at].path, w) != 0)
			for (at = 0; at < n && strcmp(row[at].path, w) != 0;)
				at++;
		if (at == n && n < ARRAY_LEN(row))
			row[n++] = (struct module_row){ .path = w };
		if (at == ARRAY_LEN(row))
			continue;
		row[at].tensors++;
		row[at].elements += shown_numel(x);
		row[at].bytes += table_tensor_bytes(x);
	}
	qsort(row, n, sizeof *row, sum_compare);
	output_list(o, key, col, SUM_COUNT);
	for (uint32_t i = 0; i < n; i++)
		put_sum(o, col, &row[i], s->bytes);
	output_close(o);
}

static int put_sums(struct output *o, struct stats *s, uint32_t depth)
{
	static const struct column component[SUM_COUNT] = SUM_COLUMNS("component", "COMPONENT");
	static const struct column role[SUM_COUNT] = SUM_COLUMNS("role", "ROLE");
	static const struct column dtype[SUM_COUNT] = SUM_COLUMNS("dtype", "DTYPE");
	struct module_row *row;
	uint32_t n, zero;
	int rc = put_modules(o, s, depth);

	if (!rc)
		rc = module_rows(&s->of.k->table, s->of.id, s->of.n, 0, 0, &s->of.arena, &row, &n,
				 &zero);
	if (rc)
		return rc;
	output_list(o, "components", component, SUM_COUNT);
	for (uint32_t i = 0; i < n; i++)
		put_sum(o, component, &row[i], s->bytes);
	output_close(o);
	put_words(o, s, "roles", role, role_of);
	put_words(o, s, "dtypes", dtype, dtype_of);
	return 0;
}

/* --- ranks --- */

static int u64_compare(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Least, median and most of a field of all ranks. */
static int put_spread(struct output *o, const struct stats *s, const struct ranks *r, size_t field,
		      const char *key)
{
	cleanup_free uint64_t *x = calloc((size_t)s->of.k->world + 1, sizeof *x);
	uint32_t n = s->of.k->world;
	char a[3][HUMAN_BYTES];

	if (!x)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++)
		memcpy(&x[i], (const char *)&r->rank[i] + field, sizeof *x);
	qsort(x, n, sizeof *x, u64_compare);
	output_object(o, key);
	output_key(o, "least_bytes", cell_bytes(x[0]));
	output_key(o, "median_bytes", cell_bytes(x[n / 2]));
	output_key(o, "most_bytes", cell_bytes(x[n ? n - 1 : 0]));
	output_close(o);
	for (uint32_t i = 0; i < 3; i++)
		human_bytes(x[i == 2 ? (n ? n - 1 : 0) : i ? n / 2 : 0], a[i]);
	if (n < 2)
		output_label(o, key, STYLE_PLAIN, "by one rank %s", a[0]);
	else if (!strcmp(a[0], a[2]))
		output_label(o, key, STYLE_PLAIN, "per rank %s", a[0]);
	else
		output_label(o, key, STYLE_PLAIN, "per rank %s to %s, median %s", a[0], a[2], a[1]);
	return 0;
}

static int put_rank_lines(struct output *o, const struct stats *s, const struct ranks *r)
{
	int rc = 0;

	if (s->of.k->has & HAS_STEP)
		rc = put_spread(o, s, r, offsetof(struct rank_sum, wrote), "written");
	else
		output_key(o, "written", cell_none());
	if (rc)
		return rc;
	if (r->held_known)
		rc = put_spread(o, s, r, offsetof(struct rank_sum, holds), "held");
	else
		output_key(o, "held", cell_none());
	output_key(o, "held_bytes", cell_if(r->held_known, cell_bytes(r->held)));
	output_key(o, "replicated_bytes", cell_if(r->held_known, cell_bytes(r->replicated)));
	if (r->held_known)
		output_label(o, "in memory", STYLE_PLAIN,
			     "%s, of which %s (%.1f %%) are copies on other ranks, stored once",
			     BYTES_TEXT(r->held), BYTES_TEXT(r->replicated),
			     percent_of(r->replicated, r->held));
	else
		output_head(o, "in memory",
			    cell_text(s->of.k->has & HAS_LAYOUTS
					      ? "not counted: too many shapes on too many ranks"
					      : "not known: there are no layouts"));
	return rc;
}

static void put_ranks(struct output *o, const struct stats *s, const struct ranks *r)
{
	static const struct column col[] = {
		{ "rank", "RANK", true, FIT_WHOLE },
		{ "written_bytes", "WRITTEN", true, FIT_WHOLE },
		{ "held_bytes", "HELD", true, FIT_WHOLE },
		{ "piece_count", "PIECES", true, FIT_WHOLE },
	};
	bool shown = o->machine || (s->of.k->world > 1 && s->of.k->world <= RANKS_SHOWN);

	output_list(o, "ranks", shown ? col : NULL, ARRAY_LEN(col));
	for (uint32_t i = 0; i < s->of.k->world && shown; i++)
		OUTPUT_ROW(o, col, cell_number(i), cell_bytes(r->rank[i].wrote),
			   cell_if(r->held_known, cell_bytes(r->rank[i].holds)),
			   cell_count(r->rank[i].pieces));
	output_close(o);
}

/* --- contents that are there twice --- */

static void put_twin_lines(struct output *o, const struct stats *s, const struct twins *w)
{
	const bool known = !w->unknown;

	output_key(o, "contents_known", cell_flag(known));
	output_key(o, "equal_bytes", cell_if(known, cell_bytes(w->equal_bytes)));
	output_key(o, "zero_tensor_count", cell_if(known, cell_count(w->zero_tensors)));
	output_key(o, "zero_bytes", cell_if(known, cell_bytes(w->zero_bytes)));
	if (!known) {
		output_label(o, "equal", STYLE_PLAIN,
			     "not known: %s of %s tensors have no fingerprint",
			     COUNT_TEXT(w->unknown), COUNT_TEXT(s->of.n));
		return;
	}
	if (w->ngroup)
		output_label(o, "equal", STYLE_PLAIN,
			     "%s group%s of tensors with equal contents: %s (%.1f %%) stored again",
			     COUNT_TEXT(w->ngroup), w->ngroup == 1 ? "" : "s",
			     BYTES_TEXT(w->equal_bytes), percent_of(w->equal_bytes, s->bytes));
	else
		output_head(o, "equal", cell_text("no two tensors have equal contents"));
	if (w->zero_tensors)
		output_label(o, "zero", STYLE_PLAIN, "%s tensor%s with zeros only, %s",
			     COUNT_TEXT(w->zero_tensors), w->zero_tensors == 1 ? "" : "s",
			     BYTES_TEXT(w->zero_bytes));
	else
		output_head(o, "zero", cell_text("no tensor is all zeros"));
}

static void put_twins(struct output *o, const struct twins *w)
{
	static const struct column col[] = {
		{ "tensor_count", "EQUAL", true, FIT_WHOLE },
		{ "bytes", "SIZE", true, FIT_WHOLE },
		{ "extra_bytes", "AGAIN", true, FIT_WHOLE },
		{ "fingerprint", NULL, false, FIT_WHOLE },
		{ NULL, "TENSORS", false, FIT_FIRST },
	};
	uint32_t shown = o->machine ? w->ngroup : MIN(w->ngroup, EQUALS_SHOWN);
	char full[NAME_BYTES], names[2 * NAME_BYTES + 32];

	output_list(o, "equal_groups", col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < shown; i++) {
		const struct twin *g = &w->group[i];
		const struct table_tensor *const *x = w->x + g->first;
		int n = snprintf(names, sizeof names, "%s",
				 table_tensor_print(x[0], full, sizeof full));

		snprintf(names + n, sizeof names - (size_t)n, ", %s",
			 table_tensor_print(x[1], full, sizeof full));
		if (g->n > 2)
			snprintf(names + strlen(names), 32, ", %u more", g->n - 2);
		output_row(o);
		output_cells(o, col,
			     (const struct cell[]){
				     cell_count(g->n), cell_bytes(table_tensor_bytes(x[0])),
				     cell_bytes(g->extra), cell_of(CELL_FINGERPRINT, x[0]->fp),
				     cell_text(names) },
			     ARRAY_LEN(col));
		output_list(o, "tensors", NULL, 0);
		for (uint32_t k = 0; k < g->n && o->machine; k++) {
			output_row(o);
			output_key(o, "component", cell_text(x[k]->component));
			output_key(o, "name", cell_text(x[k]->name));
			output_key(o, "rank", cell_unless(CELL_NUMBER, x[k]->rank, TABLE_NONE));
			output_close(o);
		}
		output_close(o);
		output_close(o);
	}
	output_close(o);
}

/* --- the whole --- */

static int put_overhead(struct output *o, const struct stats *s)
{
	cleanup_free struct file_account *a = NULL;
	uint64_t padding = 0, metadata, all = s->of.k->stored_bytes;
	char b[3][HUMAN_BYTES];
	int rc = file_account_make(s->of.k, &a, &metadata);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < s->of.k->nfile; i++) {
		padding += a[i].padding;
		metadata += a[i].metadata;
	}
	output_key(o, "bytes", cell_bytes(all));
	output_key(o, "padding_bytes", cell_bytes(padding));
	output_key(o, "metadata_bytes", cell_bytes(metadata));
	output_label(o, "files", STYLE_PLAIN,
		     "%s, of which padding %s (%.1f %%), metadata %s (%.1f %%)",
		     human_bytes(all, b[0]), human_bytes(padding, b[1]), percent_of(padding, all),
		     human_bytes(metadata, b[2]), percent_of(metadata, all));
	return 0;
}

static int put_head(struct output *o, struct stats *s, const struct subject *subject,
		    const struct ranks *r, const struct twins *w)
{
	char of[HUMAN_BYTES] = "";
	int rc;

	output_field(o, "path", "path", cell_text(subject->ref.path));
	output_key(o, "job", subject_job(s->of.k));
	output_key(o, "step", subject_step(s->of.k));
	output_key(o, "tensor_glob", cell_word(s->glob));
	output_key(o, "tensor_count", cell_count(s->of.n));
	output_key(o, "tensor_bytes", cell_bytes(s->bytes));
	if (s->glob)
		snprintf(of, sizeof of, " of %u", s->of.k->table.ntensor);
	output_label(o, "tensors", STYLE_PLAIN, "%s%s, %s", COUNT_TEXT(s->of.n), of,
		     BYTES_TEXT(s->bytes));
	rc = put_overhead(o, s);
	if (!rc)
		rc = put_rank_lines(o, s, r);
	put_twin_lines(o, s, w);
	return rc;
}

static int stats_print(struct cli *c, const struct subject *subject, struct stats *s,
		       uint32_t depth)
{
	char title[SUBJECT_TITLE];
	struct ranks r;
	struct twins w;
	int rc = ranks_make(&s->of, &r);

	if (!rc)
		rc = twins_make(&s->of, &w);
	if (rc)
		return rc;
	output_begin(c->o, "ckptd.stats/1");
	cli_say(c, STYLE_STRONG, "%s", subject_title(s->of.k, subject->ref.path, title));
	rc = put_head(c->o, s, subject, &r, &w);
	if (!rc)
		rc = put_sums(c->o, s, depth);
	if (!rc) {
		put_ranks(c->o, s, &r);
		put_twins(c->o, &w);
		output_end(c->o);
	}
	return rc;
}

static int parse_depth(const char *word, uint32_t *ret, struct ckpt_err *err)
{
	char *end;
	unsigned long n;

	*ret = MODULE_AUTO;
	if (!word)
		return 0;
	n = strtoul(word, &end, 10);
	if (*word < '0' || *word > '9' || *end || n > MODULE_DEPTH_MAX)
		return ckpt_error(err, -EINVAL,
				  "--depth=%.40s is not a number of name parts, 0 to %d", word,
				  MODULE_DEPTH_MAX);
	*ret = (uint32_t)n;
	return 0;
}

/* All tensors, or those of --tensors. */
static int select_tensors(struct cli *c, const struct subject *subject, uint32_t **ret,
			  struct stats *s, struct ckpt_err *err)
{
	const struct table *t = &s->of.k->table;
	int rc = 0;

	s->glob = c->value[OPT_TENSORS];
	if (s->glob) {
		rc = named_glob(subject->ckpt, s->glob, ret, &s->of.n, err);
	} else {
		*ret = calloc((size_t)t->ntensor + 1, sizeof **ret);
		for (; *ret && s->of.n < t->ntensor; s->of.n++)
			(*ret)[s->of.n] = s->of.n;
		rc = *ret ? 0 : -ENOMEM;
	}
	s->of.id = *ret;
	for (uint32_t i = 0; i < s->of.n && !rc; i++)
		s->bytes += table_tensor_bytes(&t->tensor[s->of.id[i]]);
	return rc;
}

static int stats_run(struct cli *c)
{
	cleanup_free uint32_t *id = NULL;
	struct ckpt_err err = { 0 };
	struct stats s = { 0 };
	struct subject subject;
	uint32_t depth;
	int code, rc = parse_depth(c->value[OPT_DEPTH], &depth, &err);

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl stats -h");
	code = subject_get(c, c->narg ? c->arg[0] : "latest", &subject);
	if (!code) {
		s.of.k = subject.ckpt;
		rc = select_tensors(c, &subject, &id, &s, &err);
		if (rc == -ENOENT)
			code = cli_fail(c, rc, &err, "ckptctl show %s --tensors '*' lists them all",
					subject.ref.path);
		else if (rc || (rc = stats_print(c, &subject, &s, depth)))
			code = cli_fail(c, rc, &err, NULL);
	}
	arena_free(&s.of.arena);
	subject_close(&subject);
	return code;
}

const struct cli_verb verb_stats = {
	.name = "stats",
	.help = "the bytes of a checkpoint by module and rank; duplicates",
	.synopsis = (const char *const[]){ "[CKPT] [--depth=N] [--tensors=GLOB]", NULL },
	.about = "Sums up the tensors by module (the parts of their names; layers and experts "
		 "whose names differ only in numbers share a row), component, role, element type "
		 "and rank. \"written\" is what a rank stored; \"held\" is what it had in memory "
		 "according to the layouts, copies included. If tensors of one shape and type "
		 "have the same fingerprint, their contents are equal: tied weights, or something "
		 "that was saved twice. stats reads only metadata.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl stats", "the newest one" },
			{ "ckptctl stats step:90 --depth=2", "two parts of each name" },
			{ "ckptctl stats --tensors='optim/*'", "of the optimizer only" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DEPTH,
			  "parts of a name that count (default: as many as fit a screen); "
			  "0: components" },
			{ OPT_TENSORS,
			  "only tensors whose name, or component/name, matches; * matches "
			  "anything" },
			{ OPT_FROM, FROM_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0; 4 its metadata is damaged; 5 it is not committed; 10 there is no such store, "
		 "checkpoint or tensor; 12 it cannot be read.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = stats_run,
};
