/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_ema.c - ckptctl ema: the averages of the weights that a checkpoint has: how they are made,
 * which steps are in them, and whether they look sound.
 * Invariant: it reads metadata alone, and says "sound" of nothing: health is what the daemon
 * measured when it made them, or it is not known.
 */
#include "ckpt/base/util.h"
#include "ckpt/cli/average_put.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/subject.h"
#include <inttypes.h>

#define LINE_BYTES 1024

static struct cell left_out(const struct average_seen *x)
{
	struct cell n = cell_count(x->missed.left_out);

	if (!x->missed.known)
		return cell_none();
	return averages_missed_many(&x->missed) ? cell_styled(n, STYLE_WARN) : n;
}

static void put_table(struct output *o, const struct checkpoint *k, const struct average_seen *x,
		      uint32_t n)
{
	static const struct column col[] = {
		{ NULL, "AVERAGE", false, FIT_LAST },  { NULL, "UPDATES", true, FIT_WHOLE },
		{ NULL, "LEFT OUT", true, FIT_WHOLE }, { NULL, "LAST STEP", true, FIT_WHOLE },
		{ NULL, "SINCE", true, FIT_WHOLE },    { NULL, "PRODUCT", true, FIT_DROP },
		{ NULL, "TENSORS", true, FIT_WHOLE },  { NULL, "SIZE", true, FIT_WHOLE },
		{ NULL, "CHAIN", false, FIT_DROP },
	};

	(void)k;
	output_list(o, NULL, col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < n; i++) {
		const struct table_average *a = x[i].a;
		char chain[16];

		for (uint32_t b = 0; b < 4; b++)
			snprintf(chain + 2 * b, sizeof chain - 2 * b, "%02x", a->history[b]);
		OUTPUT_ROW(o, col, cell_text(a->name), cell_count(a->updates), left_out(&x[i]),
			   cell_unless(CELL_NUMBER, a->last_step, UINT64_MAX),
			   a->last_step == UINT64_MAX ? cell_none() : cell_number(a->since),
			   cell_real(a->product), cell_count(x[i].ntensor),
			   cell_bytes(x[i].bytes + x[i].carry_bytes),
			   x[i].mixed ? cell_styled(cell_text("mixed"), STYLE_WARN)
				      : cell_text(chain));
	}
	output_close(o);
}

static void say_left_out(struct cli *c, const struct average_missed *m)
{
	char counts[80];

	if (!m->known)
		cli_mark(c, STYLE_DIM, "", 4,
			 "    how many steps it left out is not known: ckptd did not count them.");
	else if (m->left_out)
		cli_mark(
			c, averages_missed_many(m) ? STYLE_WARN : STYLE_PLAIN, "    left out: ", 4,
			"%s steps that were marked (%.2g %%), because they were skipped or torn, or ckptd was late.",
			averages_missed_print(m, counts, sizeof counts),
			100. * (double)m->left_out / (double)m->of);
	else if (m->least)
		cli_mark(c, STYLE_DIM, "", 4,
			 "    how many steps it left out is known of the newer ones only: none.");
}

static void say_rules(struct cli *c, const struct checkpoint *k, const struct average_seen *x)
{
	const struct table *t = &k->table;
	char line[LINE_BYTES];

	for (uint32_t i = 0; i < t->naverage; i++) {
		const struct table_average *a = &t->average[i];

		if (!a->rule || strcmp(a->name, x->a->name) != 0)
			continue;
		cli_mark(c, STYLE_PLAIN, "", 4, "    rule %u, %s: %s%s", a->rule, a->schedule,
			 averages_chain(k, a, line, sizeof line),
			 a->flags & AVERAGE_MIXED ? " (" AVERAGES_MIXED_TEXT ")" : "");
	}
}

/* What the columns are too narrow for. */
static void say_average(struct cli *c, const struct checkpoint *k, const struct average_seen *x)
{
	const struct table_average *a = x->a;
	char line[LINE_BYTES];

	cli_mark(c, STYLE_STRONG, a->name, 4, ": %s", a->schedule);
	cli_mark(c, STYLE_PLAIN, "", 4, "    %s.", averages_chain(k, a, line, sizeof line));
	say_left_out(c, &x->missed);
	if (averages_lag(k, a) && averages_lag(k, a) != UINT64_MAX)
		cli_mark(
			c, STYLE_PLAIN, "", 4,
			"    the checkpoint's own step is not in it: a gate kept it out, or CKPT_NO_EMA.");
	if (x->ncopied == UINT32_MAX)
		cli_mark(
			c, STYLE_WARN, "", 4,
			"    This version cannot read the schedule: which tensors are copied is not known.");
	else if (x->ncopied)
		cli_mark(
			c, STYLE_PLAIN, "", 4,
			"    %s tensor%s copied: the step's own (export --only ema.%s takes them along).",
			COUNT_TEXT(x->ncopied), x->ncopied == 1 ? " is" : "s are", a->name);
	if (a->flags & AVERAGE_KAHAN)
		cli_mark(c, STYLE_PLAIN, "", 4,
			 "    kahan: ema.%s.carry/... keep what rounding would lose (%s).", a->name,
			 BYTES_TEXT(x->carry_bytes));
	if (a->flags & AVERAGE_SEEDED)
		cli_mark(c, STYLE_PLAIN, "", 4,
			 "    seeded: it began at step %" PRIu64
			 " with values of another checkpoint (seed=).",
			 a->since);
	if (a->flags & AVERAGE_MIXED)
		cli_mark(c, STYLE_WARN, "    mixed: ", 4, AVERAGES_MIXED_TEXT ".");
	say_rules(c, k, x);
	if (x->health)
		cli_mark(c, averages_health_is_bad(x->health) ? STYLE_BAD : STYLE_PLAIN,
			 "    health: ", 4, "%s", x->health);
	else
		cli_mark(c, STYLE_DIM, "    health: ", 4, "not known: ckptd wrote none");
}

static int averages_print(struct cli *c, const struct subject *s, const struct average_seen *x,
			  uint32_t n)
{
	const struct checkpoint *k = s->ckpt;
	uint64_t bytes = 0;
	bool bad = false;
	char title[SUBJECT_TITLE];

	for (uint32_t i = 0; i < n; i++) {
		bytes += x[i].bytes + x[i].carry_bytes;
		bad |= x[i].mixed || averages_health_is_bad(x[i].health);
	}
	output_begin(c->o, "ckptd.ema/1");
	subject_put(c->o, s->ref.path, k);
	output_key(c->o, "average_bytes", cell_bytes(bytes));
	averages_put(c->o, k, x, n);
	if (!c->json) {
		cli_say(c, STYLE_STRONG, "%s", subject_title(k, s->ref.path, title));
		put_table(c->o, k, x, n);
		for (uint32_t i = 0; i < n; i++)
			say_average(c, k, &x[i]);
		cli_say(c, STYLE_DIM,
			"%u average%s: %s on disk, and as much in each slot of memory.", n,
			n == 1 ? "" : "s", BYTES_TEXT(bytes));
	}
	output_end(c->o);
	return bad ? CLI_WARNINGS : CLI_OK;
}

static int ema_run(struct cli *c)
{
	cleanup_free struct average_seen *x = NULL;
	struct ckpt_err err = { 0 };
	char title[SUBJECT_TITLE];
	struct subject s;
	uint32_t n = 0;
	int code = subject_get(c, c->narg ? c->arg[0] : "latest", &s), rc;

	if (!code) {
		rc = averages_see(s.ckpt, &x, &n);
		if (rc)
			code = cli_fail(c, ckpt_error(&err, rc, "out of memory for the averages"),
					&err, NULL);
		else if (!n)
			code = cli_fail(c,
					ckpt_error(&err, -ENOENT,
						   "%s has no averages of its weights",
						   subject_title(s.ckpt, s.ref.path, title)),
					&err,
					"a job has them that calls ckpt_average before ckpt_seal; "
					"docs/AVERAGES.md describes it");
		else
			code = averages_print(c, &s, x, n);
	}
	subject_close(&s);
	return code;
}

const struct cli_verb verb_ema = {
	.name = "ema",
	.synonyms = (const char *const[]){ "averages", NULL },
	.help = "the averages of the weights in a checkpoint",
	.synopsis = (const char *const[]){ "[CKPT]", NULL },
	.about =
		"ema lists the averages of a checkpoint, which ckptd makes (ckpt_average): their "
		"schedules, which steps they have taken in, and their health. CKPT is latest (the "
		"default), latest~1, step:12000, or a path.\n"
		"UPDATES counts the steps that were taken in since step SINCE, where the average was "
		"copied from the weights, or seeded. LEFT OUT counts the steps that the trainer marked "
		"since then, and that are not in the average because they were skipped or torn, or "
		"ckptd was late; steps that a gate keeps out, or CKPT_NO_EMA, count in neither. "
		"PRODUCT is the product of all decays: the share "
		"that those first weights still have. CHAIN identifies the series of updates: two "
		"averages with one schedule and one chain took in the same steps, in the same order. "
		"\"mixed\" means that parts of the average have different chains.\n"
		"Health is what ckptd measured when it made the average: lag is the number of steps "
		"since the newest update; |p-e|/|e| is the largest relative distance of a tensor's "
		"weights from their average; far counts tensors that are farther off than they "
		"should ever be, NaN counts such values in the average. If elements are larger than "
		"the weights ever were, which cannot be, ema says in how many tensors. ema reads "
		"only metadata; ckptctl verify --data checks the bytes.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl ema", "those of the newest checkpoint" },
			{ "ckptctl ema step:90 --json", "for a program" },
			{ "ckptctl export latest out --only ema.fast", "one of them as a model" },
			{ NULL, NULL },
		},
	.exits =
		"0; 3 an average is mixed, or its health is bad; 4 the metadata is damaged; 5 it is "
		"not committed; 10 there is no such store or checkpoint, or it has no averages; 12 no "
		"permission.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_NONE },
	.narg_max = 1,
	.run = ema_run,
};
