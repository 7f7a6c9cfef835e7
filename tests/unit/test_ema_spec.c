/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_ema_spec.c - the spec of an average: what is read, refused, printed, judged.
 */
#include "ema/spec.h"
#include "ckpt/base/error.h"
#include "tests/lib/unit.h"

static struct ema_spec *parsed(const char *text)
{
	struct ckpt_err err = { 0 };
	struct ema_spec *spec = NULL;

	if (ema_spec_parse(text, &spec, &err))
		fail_msg("%s: %s", text, err.msg);
	return spec;
}

static void assert_prints(const char *text, uint32_t rule, const char *canonical)
{
	struct ema_spec *spec = parsed(text);
	char s[EMA_SPEC_BYTES];

	assert_ok(ema_spec_print(spec, rule, s));
	assert_string_equal(s, canonical);
	ema_spec_free(spec);
}

TEST(the_canonical_form_has_every_parameter_of_the_preset)
{
	assert_prints("constant decay=.999", 0, "constant decay=0.999 start=0 source=master");
	assert_prints("timm decay=.9999", 0,
		      "timm decay=0.9999 gamma=1 power=0.6666666666666666 min_decay=0 warmup=0 "
		      "start=0 source=master");
	assert_prints("power sigma_rel=.10", 0,
		      "power gamma=6.937203937601807 start=0 source=master");
	assert_prints(
		"uniform *.bias=copy start=7 kahan a=(constant decay=.5) b=skip "
		"c=(zero  decay=9e-1 start=3)",
		0,
		"uniform start=7 source=master kahan *.bias=copy a=(constant decay=0.5 start=0) "
		"b=skip c=(zero decay=0.9 start=3)");
	assert_prints("uniform a=(constant decay=.5) b=skip c=(zero decay=.9 start=3)", 2,
		      "zero decay=0.9 start=3");
}

/* The whole sentence. */
static void assert_refused(const char *text, const char *why)
{
	struct ckpt_err err = { 0 };
	struct ema_spec *spec = NULL;

	assert_int_equal(ema_spec_parse(text, &spec, &err), -EINVAL);
	assert_string_equal(err.msg, why);
}

TEST(what_is_not_of_the_grammar_is_refused_with_a_sentence)
{
	assert_refused("", "the spec is empty: it begins with a schedule, for example \"constant "
			   "decay=.999\"");
	assert_refused(
		"konstant decay=.9",
		"word 1 of the spec, \"konstant\" (from byte 1 on), is no schedule: here stands "
		"one of constant, timm, diffusers, halflife, power, uniform or zero");
	assert_refused("constant",
		       "word 1 of the spec, \"constant\" (from byte 1 on), lacks decay: "
		       "write constant decay=VALUE");
	assert_refused(
		"constant decay=.9 decay=.9",
		"word 3 of the spec, \"decay=.9\" (from byte 19 on), sets decay a second time");
}

static struct ema_verdict judged(const char *text, struct ema_subject x)
{
	struct ema_spec *spec = parsed(text);
	struct ema_verdict v = ema_spec_judge(spec, &x);

	ema_spec_free(spec);
	return v;
}

TEST(without_rules_floating_parameters_are_averaged)
{
	const struct ema_subject w = { "model", "w", CKPT_F32, CKPT_PARAM, CKPT_STABLE, false };

	assert_int_equal(judged("uniform", w).act, EMA_AVERAGE);
	assert_int_equal(judged("uniform w=copy", w).act, EMA_COPY);
}

TEST(all_mistakes_are_listed)
{
	cleanup_errlist struct ckpt_errlist l = { 0 };
	struct ema_spec *spec = parsed("constant decay=1 *=copy w=skip w=(power gamma=-1)");

	ema_spec_check(spec, "a/b", &l);
	assert_int_equal(l.n, 5);
	ema_spec_free(spec);
}
