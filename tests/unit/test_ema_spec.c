/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ema_spec.c - the spec of an average: what is read, what is refused and with which sentence,
 * the canonical form, what is wrong with values and rules, what becomes of a tensor; and that every
 * example of docs/AVERAGES.md is a good one.
 */
#include "ema/spec.h"
#include "ckpt/base/error.h"
#include "tests/lib/draw.h"
#include "tests/lib/unit.h"
#include <locale.h>
#include <math.h>

static struct ema_spec *parsed(const char *text)
{
	struct ckpt_err err = { 0 };
	struct ema_spec *spec = NULL;

	if (ema_spec_parse(text, &spec, &err))
		fail_msg("%s: %s", text, err.msg);
	return spec;
}

/* --- the canonical form --- */

static void assert_prints(const char *text, uint32_t rule, const char *canonical)
{
	struct ema_spec *spec = parsed(text);
	char s[EMA_SPEC_BYTES];

	assert_ok(ema_spec_print(spec, rule, s));
	assert_string_equal(s, canonical);
	ema_spec_free(spec);
}

/* Files keep it: what stands here never changes. */
TEST(the_canonical_form_has_every_parameter_of_the_preset)
{
	assert_prints("constant decay=.999", 0, "constant decay=0.999 start=0 source=master");
	assert_prints("timm decay=.9999", 0,
		      "timm decay=0.9999 gamma=1 power=0.6666666666666666 min_decay=0 warmup=0 "
		      "start=0 source=master");
	assert_prints("diffusers warmup=1 decay=.9999 min_decay=1e-1 power=.75 gamma=2", 0,
		      "diffusers decay=0.9999 gamma=2 power=0.75 min_decay=0.1 warmup=1 start=0 "
		      "source=master");
	assert_prints("halflife fraction=.05", 0, "halflife fraction=0.05 start=0 source=master");
	assert_prints("power sigma_rel=.10", 0,
		      "power gamma=6.937203937601807 start=0 source=master");
	assert_prints("power gamma=0", 0, "power gamma=0 start=0 source=master");
	assert_prints("uniform start=18446744073709551615", 0,
		      "uniform start=18446744073709551615 source=master");
	assert_prints("zero decay=.9", 0, "zero decay=0.9 start=0 source=master");
	assert_prints("zero gate_loss=8.5 source=param kahan decay=.9", 0,
		      "zero decay=0.9 start=0 gate_loss=8.5 source=param kahan");
}

TEST(the_canonical_form_has_a_seed_where_ranks_declare_it_and_not_in_files)
{
	static const char text[] =
		"zero seed=/ckpts/a/step-7 gate_loss=8.5 source=param kahan decay=.9";

	assert_prints(text, EMA_DECLARED,
		      "zero decay=0.9 start=0 gate_loss=8.5 source=param seed=/ckpts/a/step-7 "
		      "kahan");
	assert_prints(text, 0, "zero decay=0.9 start=0 gate_loss=8.5 source=param kahan");
	assert_prints("uniform a=skip", EMA_DECLARED, "uniform start=0 source=master a=skip");
}

/* So an average that waits has the history of one that does not, and files that older programs
 * read. */
TEST(every_is_what_ranks_declare_and_not_in_files)
{
	assert_prints("zero every decay=.9 kahan seed=/a", EMA_DECLARED,
		      "zero decay=0.9 start=0 source=master seed=/a every kahan");
	assert_prints("zero every decay=.9 kahan", 0, "zero decay=0.9 start=0 source=master kahan");
	assert_prints("uniform every=skip", EMA_DECLARED,
		      "uniform start=0 source=master every=skip");
}

TEST(rules_are_printed_in_their_order_and_their_schedules_alone)
{
	static const char text[] = "uniform *.bias=copy start=7 kahan a/b=(constant decay=.5) "
				   "b=skip\n\tc=( power sigma_rel=.1  start=3 ) d=average";

	assert_prints(text, 0,
		      "uniform start=7 source=master kahan *.bias=copy "
		      "a/b=(constant decay=0.5 start=0) b=skip "
		      "c=(power gamma=6.937203937601807 start=3) d=average");
	assert_prints(text, 1, "constant decay=0.5 start=0");
	assert_prints(text, 2, "power gamma=6.937203937601807 start=3");
}

TEST(a_schedule_that_no_rule_has_is_not_printed)
{
	struct ema_spec *spec = parsed("uniform a=copy b=(constant decay=.5)");
	char s[EMA_SPEC_BYTES];

	assert_ok(ema_spec_print(spec, 1, s));
	assert_int_equal(ema_spec_print(spec, 2, s), -ENOENT);
	assert_int_equal(ema_spec_print(spec, UINT32_MAX - 1, s), -ENOENT);
	ema_spec_free(spec);
}

TEST(zero_has_one_sign)
{
	assert_prints("constant decay=-0", 0, "constant decay=0 start=0 source=master");
	assert_prints("constant decay=-0e7", 0, "constant decay=0 start=0 source=master");
}

/* --- what is equal stays equal --- */

static void assert_same_schedule(const struct ema_schedule *a, const struct ema_schedule *b)
{
	assert_int_equal(a->preset, b->preset);
	assert_int_equal(a->warmup, b->warmup);
	assert_int_equal(a->start, b->start);
	assert_memory_equal(a->param, b->param, sizeof a->param);
}

static void assert_same(const struct ema_spec *a, const struct ema_spec *b)
{
	assert_same_schedule(&a->schedule, &b->schedule);
	assert_int_equal(a->source, b->source);
	assert_int_equal(a->kahan, b->kahan);
	assert_int_equal(a->every, b->every);
	assert_int_equal(a->has_gate, b->has_gate);
	assert_memory_equal(&a->gate_loss, &b->gate_loss, sizeof a->gate_loss);
	assert_int_equal(!a->seed, !b->seed);
	if (a->seed)
		assert_string_equal(a->seed, b->seed);
	assert_int_equal(a->nrule, b->nrule);
	for (uint32_t i = 0; i < a->nrule; i++) {
		assert_string_equal(a->rule[i].pattern, b->rule[i].pattern);
		assert_int_equal(a->rule[i].act, b->rule[i].act);
		assert_int_equal(a->rule[i].own, b->rule[i].own);
		assert_same_schedule(&a->rule[i].schedule, &b->rule[i].schedule);
	}
}

/* A spec under construction. */
struct text {
	char s[2 * EMA_SPEC_BYTES];
	size_t used;
	uint64_t draw;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	t->used += (size_t)vsnprintf(t->s + t->used, sizeof t->s - t->used, fmt, ap);
	va_end(ap);
	assert_true(t->used < sizeof t->s);
}

static uint32_t below(struct text *t, uint32_t n)
{
	return (uint32_t)draw_below(&t->draw, n);
}

static void add_blanks(struct text *t)
{
	do
		add(t, "%c", " \t\n"[below(t, 3)]);
	while (!below(t, 3));
}

/* Any finite number, in any form. */
static void add_number(struct text *t)
{
	double x;

	do {
		uint64_t bits = draw(&t->draw);

		memcpy(&x, &bits, sizeof x);
	} while (!isfinite(x));
	switch (below(t, 6)) {
	case 0:
		add(t, "%s%u.%u", below(t, 2) ? "-" : "", below(t, 3), below(t, 10000));
		break;
	case 1:
		add(t, ".%u", below(t, 1000000));
		break;
	case 2:
		add(t, "%u.", below(t, 1000));
		break;
	case 3:
		add(t, "%.*g", 1 + (int)below(t, 30), x);
		break;
	case 4:
		add(t, "%s%ue%s%u", below(t, 2) ? "+" : "", below(t, 100),
		    below(t, 2)	  ? "-"
		    : below(t, 2) ? "+"
				  : "",
		    below(t, 20));
		break;
	default:
		add(t, "%.17g", x);
	}
}

static void add_schedule(struct text *t, bool inside)
{
	static const struct {
		const char *name, *needs, *may[4];
	} preset[] = {
		{ "constant", "decay", { 0 } },
		{ "timm", "decay", { "gamma", "power", "min_decay", "warmup" } },
		{ "diffusers", "decay", { "gamma", "power", "min_decay", "warmup" } },
		{ "halflife", "fraction", { 0 } },
		{ "power", "sigma_rel", { 0 } },
		{ "power", "gamma", { 0 } },
		{ "uniform", NULL, { 0 } },
		{ "zero", "decay", { 0 } },
	};
	uint32_t i = below(t, ARRAY_LEN(preset));

	add(t, "%s", preset[i].name);
	if (below(t, 2)) {
		add_blanks(t);
		add(t, "start=%" PRIu64, draw(&t->draw) >> below(t, 64));
	}
	if (preset[i].needs) {
		add_blanks(t);
		add(t, "%s=", preset[i].needs);
		add_number(t);
	}
	for (uint32_t m = 0; m < 4 && preset[i].may[m]; m++) {
		if (below(t, 2))
			continue;
		add_blanks(t);
		add(t, "%s=", preset[i].may[m]);
		if (m == 3)
			add(t, "%u", below(t, 2));
		else
			add_number(t);
	}
	if (inside)
		return;
	if (below(t, 2)) {
		add_blanks(t);
		add(t, "gate_loss=");
		add_number(t);
	}
	if (below(t, 2)) {
		add_blanks(t);
		add(t, "source=%s", below(t, 2) ? "master" : "param");
	}
}

static void add_rule(struct text *t)
{
	static const char *const piece[] = { "*", "?", ".", "/",     "weight", "=", "(",
					     ")", "é", "0", "decay", "kahan",  ",", "\"" };
	static const char *const act[] = { "average", "copy", "skip" };

	add_blanks(t);
	for (uint32_t n = 1 + below(t, 5); n; n--) {
		uint32_t i = below(t, ARRAY_LEN(piece));

		if (!strcmp(piece[i], "(") && t->s[t->used - 1] == '=')
			continue;
		add(t, "%s", piece[i]);
	}
	add(t, "=");
	if (below(t, 3)) {
		add(t, "%s", act[below(t, 3)]);
	} else {
		add(t, "(%s", below(t, 2) ? " " : "");
		add_schedule(t, true);
		add(t, "%s)", below(t, 2) ? " " : "");
	}
}

static void draw_spec(struct text *t)
{
	t->used = 0;
	add_schedule(t, false);
	for (uint32_t n = below(t, 12); n; n--)
		add_rule(t);
	if (below(t, 2))
		add(t, " kahan");
	if (below(t, 2))
		add(t, " every");
	if (below(t, 2))
		add(t, " seed=/a/%u=b(c)", below(t, 100));
	if (below(t, 2))
		add_blanks(t);
}

TEST(what_was_printed_reads_back_as_the_same)
{
	struct text t = { .draw = draw_seed("specs") };
	uint64_t refused = 0, n = unit_scaled(20000);

	for (uint64_t i = 0; i < n; i++) {
		struct ckpt_err err = { 0 };
		struct ema_spec *x, *y;
		char one[EMA_SPEC_BYTES], two[EMA_SPEC_BYTES];

		draw_spec(&t);
		if (ema_spec_parse(t.s, &x, &err)) { /* numbers that no double has */
			if (!strstr(err.msg, "has a value"))
				fail_msg("%s: %s", t.s, err.msg);
			refused++;
			continue;
		}
		assert_ok(ema_spec_print(x, EMA_DECLARED, one));
		y = parsed(one);
		assert_same(x, y);
		assert_ok(ema_spec_print(y, EMA_DECLARED, two));
		assert_string_equal(one, two);
		for (uint32_t rule = 1; !ema_spec_print(x, rule, one); rule++) {
			struct ema_spec *alone = parsed(one);

			assert_int_equal(alone->nrule, 0);
			ema_spec_free(alone);
		}
		ema_spec_free(x);
		ema_spec_free(y);
	}
	assert_true(refused < n / 4);
}

/* --- numbers --- */

static int parse_decay(const char *number, double *ret)
{
	char s[2048];
	struct ckpt_err err = { 0 };
	struct ema_spec *spec;
	int rc;

	snprintf(s, sizeof s, "constant decay=%s", number);
	rc = ema_spec_parse(s, &spec, &err);
	if (rc)
		return rc;
	*ret = spec->schedule.param[EMA_DECAY];
	ema_spec_free(spec);
	return 0;
}

TEST(numbers_are_decimal_and_finite)
{
	static const char *const good[] = { "0",  ".5",	   "5.",    "1e-3",	"1E3",	  "+.25",
					    "-2", "000.5", "1e+05", "4.9e-324", "1.7e308" };
	static const char *const bad[] = { "",	       ".",	"-",	 "+",	   "e5",  "1e",
					   "1e+",      "0x1p3", "0x10",	 "inf",	   "nan", "-inf",
					   "infinity", "NAN",	"1e999", "1e-999", "1,5", "1_000",
					   "1.2.3",    "--1",	"1f",	 "٣",	   "½" };
	double x;

	for (uint32_t i = 0; i < ARRAY_LEN(good); i++) {
		assert_ok(parse_decay(good[i], &x));
		assert_true(x == strtod(good[i], NULL));
	}
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++)
		if (parse_decay(bad[i], &x) != -EINVAL)
			fail_msg("%s was read as %g", bad[i], x);
}

TEST(numbers_of_steps_are_whole)
{
	static const char *const bad[] = {
		"-1", "+1", "1e3", "1.0", "0x10", "", "18446744073709551616"
	};

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct ema_spec *spec;
		char s[64];

		snprintf(s, sizeof s, "uniform start=%s", bad[i]);
		assert_int_equal(ema_spec_parse(s, &spec, NULL), -EINVAL);
	}
}

/* As bindings of Python leave it behind, for example. */
TEST(the_locale_of_the_program_changes_nothing)
{
	static const char *const comma[] = { "de_DE.UTF-8", "de_DE.utf8", "fr_FR.UTF-8",
					     "fr_FR.utf8", "de_DE" };
	uint32_t i = 0;

	while (i < ARRAY_LEN(comma) && !setlocale(LC_ALL, comma[i]))
		i++;
	if (i == ARRAY_LEN(comma)) {
		printf("no locale with a decimal comma is installed\n");
		skip();
	}
	assert_string_equal(localeconv()->decimal_point, ",");
	assert_prints("power gamma=1.25 gate_loss=.5", 0,
		      "power gamma=1.25 start=0 gate_loss=0.5 source=master");
	{
		struct ema_spec *spec;

		assert_int_equal(ema_spec_parse("power gamma=1,25", &spec, NULL), -EINVAL);
	}
	assert_string_equal(localeconv()->decimal_point, ",");
}

/* --- what is not of the grammar --- */

static void assert_refused(const char *text, const char *why)
{
	struct ckpt_err err = { 0 };
	struct ema_spec *spec = NULL;

	assert_int_equal(ema_spec_parse(text, &spec, &err), -EINVAL);
	assert_int_equal(err.code, -EINVAL);
	assert_string_equal(err.msg, why);
	assert_null(spec);
	assert_int_equal(ema_spec_parse(text, &spec, NULL), -EINVAL);
}

#define WORD(n, word, at) "word " #n " of the spec, \"" word "\" (from byte " #at " on), "
#define ONE_OF "one of constant, timm, diffusers, halflife, power, uniform or zero"
#define STANDS_CONSTANT                                                                     \
	"here stands PARAM=VALUE (constant has decay, start, gate_loss, source and seed), " \
	"kahan, every, or a rule PATTERN=average, =copy, =skip or =(PRESET PARAM=VALUE ...)"

TEST(what_begins_with_no_schedule_is_refused)
{
	assert_refused("", "the spec is empty: it begins with a schedule, for example \"constant "
			   "decay=.999\"");
	assert_refused(" \t\n ", "the spec is empty: it begins with a schedule, for example "
				 "\"constant decay=.999\"");
	assert_refused("konstant decay=.9",
		       WORD(1, "konstant", 1) "is no schedule: here stands " ONE_OF);
	assert_refused("  decay=.9", WORD(1, "decay=.9", 3) "is no schedule: here stands " ONE_OF);
	assert_refused("constantly",
		       WORD(1, "constantly", 1) "is no schedule: here stands " ONE_OF);
	assert_refused("*=copy", WORD(1, "*=copy", 1) "is no schedule: here stands " ONE_OF);
}

TEST(a_word_that_is_unknown_is_refused_with_what_may_stand_there)
{
	assert_refused("constant decay=.9 decy=.9",
		       WORD(3, "decy=.9", 19) "is not known: " STANDS_CONSTANT);
	assert_refused("constant decay=.9 Kahan",
		       WORD(3, "Kahan", 19) "is not known: " STANDS_CONSTANT);
	assert_refused("constant decay=.9 *.bias=kopy",
		       WORD(3, "*.bias=kopy", 19) "is not known: " STANDS_CONSTANT);
	assert_refused("constant decay=.9 =", WORD(3, "=", 19) "is not known: " STANDS_CONSTANT);
	assert_refused("constant decay=.9 decay",
		       WORD(3, "decay", 19) "is not known: " STANDS_CONSTANT);
	assert_refused("uniform a=(timm decay=.9 x=1)",
		       WORD(2, "x=1", 26) "is not known: in parentheses stands timm with decay, "
					  "gamma, power, min_decay, warmup and start=VALUE");
}

TEST(a_parameter_of_another_schedule_is_refused_with_those_that_this_one_has)
{
	assert_refused("constant decay=.9 gamma=2",
		       WORD(3, "gamma=2", 19) "does not go with constant, which has decay, start, "
					      "gate_loss, source and seed");
	assert_refused("power decay=.9",
		       WORD(2, "decay=.9", 7) "does not go with power, which has sigma_rel, gamma, "
					      "start, gate_loss, source and seed");
	assert_refused("uniform w=(zero decay=.9 warmup=1)",
		       WORD(2, "warmup=1", 26) "does not go with zero, which has decay and start");
	assert_refused("uniform w=(zero decay=.9 seed=x)",
		       WORD(2, "seed=x", 26) "is of the whole average, not of a rule: write it "
					     "outside of the parentheses");
}

TEST(what_a_schedule_needs_must_be_there)
{
	assert_refused("constant",
		       WORD(1, "constant", 1) "lacks decay: write constant decay=VALUE");
	assert_refused("timm warmup=1", WORD(1, "timm", 1) "lacks decay: write timm decay=VALUE");
	assert_refused("diffusers kahan",
		       WORD(1, "diffusers", 1) "lacks decay: write diffusers decay=VALUE");
	assert_refused("zero *=copy", WORD(1, "zero", 1) "lacks decay: write zero decay=VALUE");
	assert_refused("halflife",
		       WORD(1, "halflife", 1) "lacks fraction: write halflife fraction=VALUE");
	assert_refused("power", WORD(1, "power", 1) "lacks sigma_rel or gamma: write power "
						    "sigma_rel=VALUE or power gamma=VALUE");
	assert_refused("power gamma=1 sigma_rel=.1",
		       WORD(1, "power", 1) "has both sigma_rel and gamma: write power "
					   "sigma_rel=VALUE or power gamma=VALUE");
	assert_refused("uniform a=copy w=(constant start=3)",
		       WORD(3, "constant start=3", 19) "lacks decay: write constant decay=VALUE");
	assert_refused("uniform w=(power)",
		       WORD(2, "power", 12) "lacks sigma_rel or gamma: write power sigma_rel=VALUE "
					    "or power gamma=VALUE");
}

TEST(a_word_that_is_said_twice_is_refused)
{
	assert_refused("constant decay=.9 decay=.9",
		       WORD(3, "decay=.9", 19) "sets decay a second time");
	assert_refused("uniform kahan kahan", WORD(3, "kahan", 15) "stands there a second time");
	assert_refused("uniform every every", WORD(3, "every", 15) "stands there a second time");
	assert_refused("uniform seed=a seed=b", WORD(3, "seed=b", 16) "sets seed a second time");
	assert_refused("uniform w=(constant decay=.9 decay=.8)",
		       WORD(2, "decay=.8", 30) "sets decay a second time");
}

TEST(values_of_another_kind_are_refused)
{
	assert_refused("constant decay=high",
		       WORD(2, "decay=high", 10) "has a value that is not a decimal number, like "
						 ".999 or 1e-3");
	assert_refused("constant decay=",
		       WORD(2, "decay=", 10) "has a value that is not a decimal number, like .999 "
					     "or 1e-3");
	assert_refused("timm decay=.9 warmup=yes",
		       WORD(3, "warmup=yes", 15) "has a value that is not 0 or 1");
	assert_refused("timm decay=.9 warmup=2",
		       WORD(3, "warmup=2", 15) "has a value that is not 0 or 1");
	assert_refused("uniform start=-1",
		       WORD(2, "start=-1", 9) "has a value that is not the number of a step");
	assert_refused("uniform source=both",
		       WORD(2, "source=both", 9) "has a value that is not master or param");
	assert_refused("uniform seed=",
		       WORD(2, "seed=", 9) "has a value that is not the directory of "
					   "a step");
	assert_refused("power sigma_rel=0",
		       WORD(2, "sigma_rel=0", 7) "has a value that is not greater than 0");
	assert_refused("uniform gate_loss=inf",
		       WORD(2, "gate_loss=inf",
			    9) "has a value that is not a decimal number, like 8 or 3.5");
}

TEST(parentheses_are_closed_and_not_nested)
{
	assert_refused(
		"uniform w=(constant decay=.9",
		WORD(2, "w=(constant decay=.9", 9) "opens a parenthesis that nothing closes: "
						   "the act is (PRESET PARAM=VALUE ...)");
	assert_refused("uniform w=()",
		       WORD(2, "w=()", 9) "has nothing in its parentheses: the act is (PRESET "
					  "PARAM=VALUE ...)");
	assert_refused("uniform w=(constant decay=.9)x=copy",
		       WORD(2, "w=(constant decay=.9)",
			    9) "goes on behind its parenthesis: put a blank there");
	assert_refused("uniform w=(constant decay=(.9))",
		       WORD(2, "w=(constant decay=(.9))",
			    9) "opens a parenthesis inside another one: a rule's own schedule has "
			       "no rules");
	assert_refused("uniform w=(uniform x=(uniform))",
		       WORD(2, "w=(uniform x=(uniform))",
			    9) "opens a parenthesis inside another one: a rule's own schedule has "
			       "no rules");
	assert_refused("uniform w=)",
		       WORD(2, "w=)", 9) "is not known: here stands PARAM=VALUE "
					 "(uniform has start, gate_loss, source and "
					 "seed), kahan, every, or a rule PATTERN=average, "
					 "=copy, =skip or =(PRESET PARAM=VALUE ...)");
	assert_refused("uniform =(uniform)",
		       WORD(2, "=(uniform)", 9) "has no pattern before its \"=\"");
	assert_refused("uniform =copy", WORD(2, "=copy", 9) "has no pattern before its \"=\"");
}

TEST(control_characters_are_refused_and_not_shown)
{
	assert_refused("uniform w\033[31m=copy",
		       WORD(2, "w?", 9) "has a control character (byte 27) at byte 10: a spec is "
					"text, its words separated by blanks");
	assert_refused("uniform\rkahan",
		       WORD(1, "uniform?", 1) "has a control character (byte 13) at byte 8: a spec "
					      "is text, its words separated by blanks");
	assert_refused("uniform w=(constant\177 decay=.9)",
		       WORD(2, "constant?", 12) "has a control character (byte 127) at byte 20: a "
						"spec is text, its words separated by blanks");
}

TEST(long_words_are_shown_by_their_beginning)
{
	char s[128] = "uniform ", why[256];

	memset(s + 8, 'x', 100);
	assert_int_equal(snprintf(why, sizeof why, "\"%.48s...\" (from byte 9 on)", s + 8), 70);
	{
		struct ckpt_err err = { 0 };
		struct ema_spec *spec;

		assert_int_equal(ema_spec_parse(s, &spec, &err), -EINVAL);
		assert_non_null(strstr(err.msg, why));
		memset(s + 8, 'x', 47); /* and no character of UTF-8 is cut */
		memcpy(s + 8 + 47, "\xc3\xa9\xc3\xa9", 4);
		assert_int_equal(ema_spec_parse(s, &spec, &err), -EINVAL);
		assert_non_null(strstr(err.msg, "x...\""));
	}
}

TEST(specs_have_an_end)
{
	const size_t huge = 1 << 20;
	cleanup_free char *s = malloc(huge + 1);
	struct ckpt_err err = { 0 };
	struct ema_spec *spec;

	assert_non_null(s);
	for (const char *c = " (=x*"; *c; c++) {
		memset(s, *c, huge);
		s[huge] = 0;
		memcpy(s, "uniform ", 8);
		assert_int_equal(ema_spec_parse(s, &spec, &err), -EINVAL);
		assert_string_equal(err.msg, "the spec has more than 4095 bytes");
	}
	/* one byte less than the limit is none too many */
	memset(s, ' ', EMA_SPEC_BYTES);
	s[EMA_SPEC_BYTES - 1] = 0;
	memcpy(s, "uniform ", 8);
	ema_spec_free(parsed(s));
}

TEST(a_spec_whose_canonical_form_is_too_long_is_refused)
{
	struct text t = { .used = 0 };
	struct ckpt_err err = { 0 };
	struct ema_spec *spec;

	add(&t, "uniform");
	for (uint32_t i = 0; i < 63; i++)
		add(&t, " %u=(timm decay=.1)", i);
	assert_true(t.used < EMA_SPEC_BYTES);
	assert_int_equal(ema_spec_parse(t.s, &spec, &err), -EINVAL);
	assert_string_equal(err.msg,
			    "the spec has more than 4095 bytes when all its parameters are "
			    "written out: use fewer or shorter rules");
}

TEST(sixty_three_rules_are_read_and_no_more)
{
	struct text t = { .used = 0 };
	struct ckpt_err err = { 0 };
	struct ema_spec *spec;

	add(&t, "uniform");
	for (uint32_t i = 0; i < 63; i++)
		add(&t, " layer%u.*=%s", i, i % 2 ? "copy" : "(zero decay=.9)");
	spec = parsed(t.s);
	assert_int_equal(spec->nrule, 63);
	assert_string_equal(spec->rule[62].pattern, "layer62.*");
	ema_spec_free(spec);
	add(&t, " b=skip");
	assert_int_equal(ema_spec_parse(t.s, &spec, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "\"b=skip\" (from byte "));
	assert_non_null(strstr(err.msg, "is one rule too many: there may be 63"));
}

/* A word is a rule exactly when its right side is an act. */
TEST(tensors_may_have_the_names_of_parameters)
{
	struct ema_spec *spec = parsed("constant decay=.9 decay=copy kahan=skip a=b=average "
				       "seed=(constant decay=.5) f(x)=copy");

	assert_int_equal(spec->nrule, 5);
	assert_string_equal(spec->rule[0].pattern, "decay");
	assert_string_equal(spec->rule[1].pattern, "kahan");
	assert_string_equal(spec->rule[2].pattern, "a=b");
	assert_string_equal(spec->rule[3].pattern, "seed");
	assert_string_equal(spec->rule[4].pattern, "f(x)");
	assert_false(spec->kahan);
	assert_null(spec->seed);
	ema_spec_free(spec);
}

TEST(every_prefix_and_every_changed_byte_of_a_spec_is_read_or_refused)
{
	static const char whole[] = "timm decay=.99 warmup=1 gate_loss=8 seed=/a *.bias=copy "
				    "m/?=(power gamma=2) kahan";

	for (size_t n = 0; n < sizeof whole; n++)
		for (uint32_t c = 0; c < 256; c += n < sizeof whole - 1 ? 1 : 256) {
			struct ckpt_err err = { 0 };
			struct ema_spec *spec = NULL;
			char s[sizeof whole];
			int rc;

			memcpy(s, whole, sizeof whole);
			s[n] = (char)c;
			rc = ema_spec_parse(s, &spec, &err);
			assert_true(rc == -EINVAL ? err.msg[0] && !spec : !rc && spec);
			ema_spec_free(spec);
		}
}

/* --- values and rules --- */

/* Their lines; "" when there are none. */
static void assert_check(const char *name, const char *text, const char *lines)
{
	cleanup_errlist struct ckpt_errlist l = { 0 };
	struct ema_spec *spec = parsed(text);

	ema_spec_check(spec, name, &l);
	assert_string_equal(l.n ? l.text : "", lines);
	ema_spec_free(spec);
}

#define RANGE " is outside its range: "
#define RANGE_DECAY \
	RANGE "it must be 0 or more, and less than 1 (it is the part of the average that a step leaves)"
#define RANGE_SIGMA \
	RANGE "no power function is so narrow or so wide; it must be at least 1e-12, and at most 0.2886"

TEST(a_good_spec_has_nothing_wrong_with_it)
{
	assert_check("fast", "constant decay=.999", "");
	assert_check("f", "constant decay=0 *.bias=copy b.*=skip *=(zero decay=.5)", "");
	assert_check("slow", "power sigma_rel=.05", "");
	assert_check("wide", "power gamma=0", "");
	assert_check("t", "timm decay=.9 warmup=1 min_decay=.9 gamma=.1 power=3", "");
	assert_check("d", "diffusers decay=.9 min_decay=.1", "");
}

TEST(values_outside_their_range_are_listed)
{
	assert_check("a", "constant decay=1", "average a: decay=1" RANGE_DECAY);
	assert_check("a", "constant decay=-.1", "average a: decay=-0.1" RANGE_DECAY);
	assert_check("a", "power gamma=-.5", "average a: gamma=-0.5" RANGE "it must be 0 or more");
	assert_check("a", "power sigma_rel=.5", "average a: sigma_rel=0.5" RANGE_SIGMA);
	assert_check("a", "power sigma_rel=-1", "average a: sigma_rel=-1" RANGE_SIGMA);
	assert_check("a", "halflife fraction=0",
		     "average a: fraction=0" RANGE "it must be greater than 0");
	assert_check("a", "timm decay=.5 warmup=1 gamma=0 power=-1 min_decay=.6",
		     "average a: gamma=0" RANGE "it must be greater than 0\n"
		     "average a: power=-1" RANGE "it must be greater than 0\n"
		     "average a: min_decay=0.6" RANGE "it must be 0 or more, and at most decay");
	assert_check("a", "uniform w=(constant decay=2)", "average a: rule w: decay=2" RANGE_DECAY);
}

TEST(a_warm_up_that_is_off_has_no_parameters)
{
	static const char line[] = "average a: gamma and power are the warm-up's, which is off: "
				   "write warmup=1 too, or leave them out";

	assert_check("a", "timm decay=.9 gamma=2", line);
	assert_check("a", "diffusers decay=.9 power=.75", line);
	assert_check("a", "timm decay=.9 min_decay=.5",
		     "average a: min_decay of timm is the warm-up's, which is off: write warmup=1 "
		     "too, or leave it out");
}

TEST(names_that_are_no_names_are_listed)
{
	char name[80];

	assert_check("", "uniform", "average : it has no name");
	assert_check("a/b", "uniform",
		     "average a/b: its name has a \"/\": its tensors are ema.NAME/TENSOR");
	assert_check("a b", "uniform",
		     "average a b: its name has a blank: its tensors are ema.NAME/TENSOR");
	assert_check("a\tb", "uniform",
		     "average a?b: its name has a control character: its tensors are "
		     "ema.NAME/TENSOR");
	assert_check(
		"fast.carry", "uniform",
		"average fast.carry: its name ends in .carry, as those of the carries of kahan "
		"do: give it another one");
	assert_check(
		".carry", "uniform",
		"average .carry: its name ends in .carry, as those of the carries of kahan do: "
		"give it another one");
	memset(name, 'n', 64);
	name[64] = 0;
	{
		cleanup_errlist struct ckpt_errlist l = { 0 };
		struct ema_spec *spec = parsed("uniform");

		ema_spec_check(spec, name, &l);
		assert_int_equal(l.n, 1);
		assert_non_null(strstr(l.text, "its name has 64 bytes: it may have 63"));
		name[63] = 0;
		ema_spec_check(spec, name, &l);
		assert_int_equal(l.n, 1);
		ema_spec_free(spec);
	}
}

#define NEVER(late, pattern, early, covers)                                                   \
	"average a: rule " late ", " pattern ", never counts: rule " early ", " covers        \
	", takes all that it matches, and the first rule that matches counts: put it before " \
	"that one, or leave it out"
#define AGAIN(late, pattern, early) \
	"average a: rule " late ", " pattern ", says again what rule " early " says: leave it out"
#define CONTRADICT(one, two, pattern)                                                       \
	"average a: rules " one " and " two " contradict each other: both are for " pattern \
	", and say different things: leave one out"

TEST(rules_that_never_count_are_listed)
{
	assert_check("a", "uniform *=copy w=skip", NEVER("2", "w", "1", "*"));
	assert_check("a", "uniform *.bias=copy layer?.bias=copy",
		     NEVER("2", "layer?.bias", "1", "*.bias"));
	assert_check("a", "uniform *a*=copy x=skip b*a=skip", NEVER("3", "b*a", "1", "*a*"));
	assert_check("a", "uniform w=copy w=copy", AGAIN("2", "w", "1"));
	assert_check("a", "uniform w=copy w=skip", CONTRADICT("1", "2", "w"));
	assert_check("a", "uniform w*=copy w**=skip", CONTRADICT("1", "2", "w**"));
	assert_check("a", "uniform w=(constant decay=.5) w=(constant decay=.50)",
		     AGAIN("2", "w", "1"));
	assert_check("a", "uniform w=(constant decay=.5) w=(constant decay=.6)",
		     CONTRADICT("1", "2", "w"));
	assert_check("a", "uniform w=average w=(constant decay=.6)", CONTRADICT("1", "2", "w"));
	/* components */
	assert_check("a", "uniform w=copy model/w=skip", NEVER("2", "model/w", "1", "w"));
	assert_check("a", "uniform */w*=copy w1=skip", NEVER("2", "w1", "1", "*/w*"));
	assert_check("a", "uniform model/*=copy model/w=skip",
		     NEVER("2", "model/w", "1", "model/*"));
}

TEST(rules_that_count_are_not_listed)
{
	assert_check("a", "uniform w=skip *=copy", "");
	assert_check("a", "uniform a*=copy *a=skip", "");
	assert_check("a", "uniform ?=copy *=skip", "");
	assert_check("a", "uniform a?=copy ?=skip ?*=copy *=skip", "");
	assert_check("a", "uniform model/w=copy w=skip", "");
	/* it has the tensor a/w of m too */
	assert_check("a",
		     "uniform w=copy m*/"
		     "w=skip",
		     "");
	assert_check("a", "uniform a?=copy a*=skip", "");
}

TEST(all_mistakes_are_listed_at_once)
{
	assert_check("a/b", "constant decay=1 *=copy w=skip v=(power gamma=-1)",
		     "average a/b: its name has a \"/\": its tensors are ema.NAME/TENSOR\n"
		     "average a/b: decay=1" RANGE_DECAY "\n"
		     "average a/b: rule 2, w, never counts: rule 1, *, takes all that it matches, "
		     "and the first rule that matches counts: put it before that one, or leave it "
		     "out\n"
		     "average a/b: rule v: gamma=-1" RANGE "it must be 0 or more\n"
		     "average a/b: rule 3, v, never counts: rule 1, *, takes all that it matches, "
		     "and the first rule that matches counts: put it before that one, or leave it "
		     "out");
}

/* What rule_check says is held against names: every name that the later pattern matches, the
 * earlier one matches too. */
TEST(a_rule_that_is_said_to_be_hidden_matches_nothing_first)
{
	static const char letters[] = "ab*?/";
	struct text t = { .draw = draw_seed("patterns") };
	uint32_t hidden = 0;

	for (uint64_t i = 0; i < unit_scaled(3000); i++) {
		cleanup_errlist struct ckpt_errlist l = { 0 };
		struct ema_spec *spec;

		t.used = 0;
		add(&t, "uniform ");
		for (uint32_t r = 0; r < 2; r++) {
			for (uint32_t n = 1 + below(&t, 4); n; n--)
				add(&t, "%c", letters[below(&t, 5)]);
			add(&t, "=%s ", r ? "copy" : "skip");
		}
		spec = parsed(t.s);
		ema_spec_check(spec, "x", &l);
		for (uint32_t n = 0; l.n && n < 4 * 4 * 4 * 4; n++) {
			char name[8] = "";
			uint32_t len = 0;

			for (uint32_t m = n; m; m /= 4)
				if (m % 4)
					name[len++] = " ab/"[m % 4];
			for (uint32_t c = 0; c < 4; c++) {
				static const char *const component[] = { "a", "b", "ab", "bba" };

				if (ema_pattern_matches(spec->rule[1].pattern, component[c], name))
					assert_true(ema_pattern_matches(spec->rule[0].pattern,
									component[c], name));
			}
		}
		hidden += l.n > 0;
		ema_spec_free(spec);
	}
	assert_true(hidden > 20);
}

static void assert_advice(const char *text, const char *lines)
{
	cleanup_errlist struct ckpt_errlist l = { 0 };
	struct ema_spec *spec = parsed(text);

	ema_spec_advise(spec, "slow", &l);
	assert_string_equal(l.n ? l.text : "", lines);
	ema_spec_free(spec);
}

TEST(a_decay_that_floats_cannot_follow_is_advised_against)
{
#define LOST                                                                                     \
	" without kahan: changes of less than some percent of a weight are lost in FP32: write " \
	"kahan too (4 more bytes for each element)"

	assert_advice("constant decay=.99999", "");
	assert_advice("constant decay=.999995", "average slow: decay=0.999995" LOST);
	assert_advice("constant decay=.999995 kahan", "");
	assert_advice("zero decay=.999999", "average slow: decay=0.999999" LOST);
	assert_advice("uniform a=(timm decay=.999999)",
		      "average slow: rule a: decay=0.999999" LOST);
}

/* --- what becomes of a tensor --- */

static struct ema_verdict judged(const char *text, struct ema_subject x)
{
	struct ema_spec *spec = parsed(text);
	struct ema_verdict v = ema_spec_judge(spec, &x);

	ema_spec_free(spec);
	return v;
}

static struct ema_subject tensor(uint32_t role, uint32_t dtype)
{
	return (struct ema_subject){ "model", "w", dtype, role, CKPT_STABLE, false };
}

TEST(patterns_match_names_or_components_and_names)
{
	static const struct {
		const char *pattern, *component, *name;
		bool yes;
	} x[] = {
		{ "w", "m", "w", true },
		{ "w", "m", "ww", false },
		{ "*", "m", "", true },
		{ "?", "m", "", false },
		{ "*.bias", "m", "a.b.bias", true },
		{ "*.bias", "m", "bias", false },
		{ "l?.w", "m", "l1.w", true },
		{ "l?.w", "m", "l10.w", false },
		{ "a*b*c", "m", "aXbbYbc", true },
		{ "a*b*c", "m", "acb", false },
		{ "m/w", "m", "w", true },
		{ "m/w", "n", "w", false },
		{ "*/w", "m", "w", true },
		{ "m/*", "m", "a/b", true },
		{ "a/b", "m", "a/b", false },
		{ "m/a/b", "m", "a/b", true },
		{ "*a*a*a*a*a*a*b", "m", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", false },
		{ "model/*", "model", "", true },
		{ "[ab]", "m", "a", false },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++)
		if (ema_pattern_matches(x[i].pattern, x[i].component, x[i].name) != x[i].yes)
			fail_msg("%s and %s/%s", x[i].pattern, x[i].component, x[i].name);
}

TEST(the_longest_names_are_matched)
{
	char component[CKPT_NAME_MAX + 1], name[CKPT_NAME_MAX + 1];

	memset(component, 'c', CKPT_NAME_MAX);
	memset(name, 'n', CKPT_NAME_MAX);
	component[CKPT_NAME_MAX] = name[CKPT_NAME_MAX] = 0;
	assert_true(ema_pattern_matches("c*/*n", component, name));
}

TEST(a_pattern_of_many_stars_takes_no_long_time)
{
	char pattern[EMA_SPEC_BYTES], name[CKPT_NAME_MAX + 1];

	for (uint32_t i = 0; i + 1 < sizeof pattern; i++)
		pattern[i] = i % 2 ? 'a' : '*';
	pattern[sizeof pattern - 1] = 0;
	memset(name, 'a', CKPT_NAME_MAX);
	name[CKPT_NAME_MAX] = 0;
	for (uint32_t i = 0; i < 1000; i++)
		assert_false(ema_pattern_matches(pattern, "m", name));
}

TEST(without_rules_floating_parameters_are_averaged)
{
	static const uint32_t averaged[] = { CKPT_F32, CKPT_BF16, CKPT_F16 };
	static const uint32_t copied[] = { CKPT_F64,  CKPT_F8_E4M3, CKPT_U8, CKPT_I64,
					   CKPT_BOOL, CKPT_C64,	    CKPT_F4 };
	struct ema_subject frozen = tensor(CKPT_PARAM, CKPT_F32);

	for (uint32_t i = 0; i < ARRAY_LEN(averaged); i++) {
		struct ema_verdict v = judged("uniform", tensor(CKPT_PARAM, averaged[i]));

		assert_int_equal(v.act, EMA_AVERAGE);
		assert_int_equal(v.rule, 0);
		assert_int_equal(v.own, 0);
	}
	for (uint32_t i = 0; i < ARRAY_LEN(copied); i++)
		assert_int_equal(judged("uniform", tensor(CKPT_PARAM, copied[i])).act, EMA_COPY);
	frozen.cls = CKPT_CONST;
	assert_int_equal(judged("uniform", frozen).act, EMA_COPY);
	frozen.cls = CKPT_DERIVED;
	assert_int_equal(judged("uniform", frozen).act, EMA_AVERAGE);
}

TEST(without_rules_buffers_are_copied_and_all_else_is_skipped)
{
	static const uint32_t skipped[] = {
		CKPT_OTHER, CKPT_MASTER, CKPT_MOMENT1, CKPT_MOMENT2, CKPT_AVERAGE, CKPT_COUNTER, 99
	};

	assert_int_equal(judged("uniform", tensor(CKPT_BUFFER, CKPT_F32)).act, EMA_COPY);
	assert_int_equal(judged("uniform", tensor(CKPT_BUFFER, CKPT_I64)).act, EMA_COPY);
	for (uint32_t i = 0; i < ARRAY_LEN(skipped); i++)
		assert_int_equal(judged("uniform", tensor(skipped[i], CKPT_F32)).act, EMA_SKIP);
}

TEST(the_first_rule_that_matches_counts)
{
	static const char text[] = "uniform a=copy *a=(zero decay=.5) w=(constant decay=.5) *=skip";
	struct ema_subject x = tensor(CKPT_PARAM, CKPT_F32);
	struct ema_verdict v = judged(text, x);

	assert_int_equal(v.act, EMA_AVERAGE);
	assert_int_equal(v.rule, 3);
	assert_int_equal(v.own, 2);
	x.name = "a";
	v = judged(text, x);
	assert_int_equal(v.act, EMA_COPY);
	assert_int_equal(v.rule, 1);
	assert_int_equal(v.own, 0);
	x.name = "v";
	assert_int_equal(judged(text, x).rule, 4);
	assert_int_equal(judged("uniform v=average", x).own, 0);
}

/* The bias that decides which expert gets a token, for example, is a buffer that is averaged. */
TEST(rules_reach_buffers_and_other_tensors)
{
	assert_int_equal(judged("uniform *=average", tensor(CKPT_BUFFER, CKPT_F32)).act,
			 EMA_AVERAGE);
	assert_int_equal(judged("uniform *=copy", tensor(CKPT_OTHER, CKPT_F32)).act, EMA_COPY);
	/* the caller refuses what cannot be averaged */
	assert_int_equal(judged("uniform *=average", tensor(CKPT_BUFFER, CKPT_I64)).act,
			 EMA_AVERAGE);
	assert_false(ema_can_average(CKPT_I64));
	assert_false(ema_can_average(CKPT_F64));
	assert_true(ema_can_average(CKPT_BF16));
}

TEST(rules_reach_no_optimizer_state_no_blob_no_sink_and_no_average)
{
	static const uint32_t roles[] = { CKPT_MASTER, CKPT_MOMENT1, CKPT_MOMENT2, CKPT_AVERAGE,
					  CKPT_COUNTER };
	struct ema_subject x;

	for (uint32_t i = 0; i < ARRAY_LEN(roles); i++) {
		struct ema_verdict v = judged("uniform *=average", tensor(roles[i], CKPT_F32));

		assert_int_equal(v.act, EMA_SKIP);
		assert_int_equal(v.rule, 0);
	}
	x = tensor(CKPT_PARAM, CKPT_F32);
	x.blob = true;
	assert_int_equal(judged("uniform *=average", x).act, EMA_SKIP);
	x = tensor(CKPT_PARAM, CKPT_F32);
	x.cls = CKPT_SINK;
	assert_int_equal(judged("uniform *=average", x).act, EMA_SKIP);
	x = tensor(CKPT_PARAM, CKPT_F32);
	x.component = "ema.fast";
	assert_int_equal(judged("uniform *=average", x).act, EMA_SKIP);
	x.component = "ema";
	assert_int_equal(judged("uniform *=average", x).act, EMA_AVERAGE);
}

/* --- docs/AVERAGES.md --- */

/* Every text in backticks or quotation marks that begins with a schedule and has a blank. */
static bool example_end(const char *line, const char *at, size_t *ret_bytes)
{
	static const char *const preset[] = { "constant", "timm",    "diffusers", "halflife",
					      "power",	  "uniform", "zero" };

	if (at == line || (at[-1] != '`' && at[-1] != '"'))
		return false;
	for (uint32_t i = 0; i < ARRAY_LEN(preset); i++) {
		const char *end = strchr(at, at[-1]);
		size_t n = strlen(preset[i]);

		if (strncmp(at, preset[i], n) != 0 || at[n] != ' ' || !end)
			continue;
		*ret_bytes = (size_t)(end - at);
		return true;
	}
	return false;
}

static FILE *tree_file(const char *name)
{
	char here[] = __FILE__, path[512];
	FILE *f;

	*strrchr(here, '/') = '\0';
	snprintf(path, sizeof path, "%s/../../%s", here, name);
	f = fopen(path, "re");
	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	return f;
}

/* How many there are. */
static uint32_t assert_examples(const char *file)
{
	char line[2048], text[EMA_SPEC_BYTES];
	uint32_t examples = 0;
	FILE *f = tree_file(file);
	size_t n;

	while (fgets(line, sizeof line, f))
		for (const char *at = line; *at; at++) {
			if (!example_end(line, at, &n))
				continue;
			snprintf(text, sizeof text, "%.*s", (int)n, at);
			assert_check("example", text, "");
			examples++;
		}
	fclose(f);
	printf("%u examples in %s\n", examples, file);
	return examples;
}

TEST(every_example_of_the_page_is_a_good_spec)
{
	assert_true(assert_examples("docs/AVERAGES.md") >= 30);
	(void)assert_examples("ckpt/ckpt.h");
}

static bool is_test(const char *name)
{
	FILE *f = tree_file("tests/unit/test_ema_schedule.c");
	char line[512], test[256];
	bool found = false;

	snprintf(test, sizeof test, "TEST(%s)\n", name);
	while (!found && fgets(line, sizeof line, f))
		found = !strcmp(line, test);
	fclose(f);
	return found;
}

/* The rows "| trap | `test` |". */
TEST(every_test_that_the_page_names_is_there)
{
	FILE *f = tree_file("docs/AVERAGES.md");
	char line[2048], name[200];
	uint32_t tests = 0;

	while (fgets(line, sizeof line, f)) {
		const char *last = strrchr(line, '|'), *cell = strstr(line + 1, "| `");

		while (cell && strstr(cell + 1, "| `"))
			cell = strstr(cell + 1, "| `");
		if (!cell || last <= cell || sscanf(cell, "| `%199[a-zA-Z0-9_]` |", name) != 1 ||
		    strlen(name) < 30)
			continue;
		if (!is_test(name))
			fail_msg("there is no test %s", name);
		tests++;
	}
	fclose(f);
	assert_int_equal(tests, 6);
}
