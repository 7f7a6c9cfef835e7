/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_ema_spec.c - the spec of an average as a person, a trainer or a file gives it: it is refused
 * with a sentence, or its canonical form reads back as itself; what ema_spec_check has nothing to
 * say about gives decays from 0 to 1 at every step.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/base/error.h"
#include "ema/spec.h"

static void check_sentence(const char *s)
{
	assert(*s);
	for (; *s; s++)
		assert((uint8_t)*s >= ' ' && *s != 0x7f);
}

static void check_steps(const struct ema_schedule *x, const char *canonical)
{
	static const uint64_t at[] = {
		0, 1, 2, 3, 100, 1001, 1u << 31, (UINT64_C(1) << 53) + 1, UINT64_MAX - 1
	};

	for (uint32_t i = 0; i + 1 < ARRAY_LEN(at); i++) {
		struct ema_state s = ema_state_copied(canonical, at[i]);

		for (uint32_t j = i + 1; j < ARRAY_LEN(at); j++) {
			struct ema_update u = ema_schedule_update(x, &s, at[j]);

			assert(u.decay >= 0 && u.decay <= 1 && u.a >= 0 && u.a <= 1);
			assert(u.copy == (u.a == 1) && (at[j] > x->start || u.copy));
			s = ema_state_after(&s, &u, canonical, at[j]);
			assert(s.last_step == at[j] && s.product >= 0 && s.product <= 1);
		}
	}
}

static void check_verdicts(const struct ema_spec *s)
{
	static const struct ema_subject x[] = {
		{ "model", "layer.1.weight", CKPT_BF16, CKPT_PARAM, CKPT_STABLE, false },
		{ "model", "bias", CKPT_I64, CKPT_BUFFER, CKPT_CONST, false },
		{ "ema.x", "w", CKPT_F32, CKPT_PARAM, CKPT_STABLE, false },
	};

	for (uint32_t i = 0; i < ARRAY_LEN(x); i++) {
		struct ema_verdict v = ema_spec_judge(s, &x[i]);
		char own[EMA_SPEC_BYTES];

		assert(v.rule <= s->nrule && (i != 2 || v.act == EMA_SKIP));
		assert(!v.rule || (s->rule[v.rule - 1].act == v.act &&
				   s->rule[v.rule - 1].own == (v.own > 0)));
		assert(!v.own || !ema_spec_print(s, v.own, own));
	}
}

static void check_spec(const struct ema_spec *s)
{
	char one[EMA_SPEC_BYTES], two[EMA_SPEC_BYTES];
	struct ckpt_errlist wrong = { 0 }, advice = { 0 };
	struct ema_spec *again = NULL;

	assert(!ema_spec_print(s, EMA_DECLARED, one));
	assert(!ema_spec_parse(one, &again, NULL));
	assert(!ema_spec_print(again, EMA_DECLARED, two) && !strcmp(one, two));
	assert(!ema_spec_print(s, 0, one) && strlen(one) <= strlen(two));
	assert(again->nrule == s->nrule && again->kahan == s->kahan && again->every == s->every);
	ema_spec_free(again);
	ema_spec_check(s, "fast", &wrong);
	ema_spec_advise(s, "fast", &advice);
	check_verdicts(s);
	if (!wrong.n)
		check_steps(&s->schedule, one);
	for (uint32_t i = 0; !wrong.n && i < s->nrule; i++)
		if (s->rule[i].own)
			check_steps(&s->rule[i].schedule, one);
	ckpt_errlist_free(&wrong);
	ckpt_errlist_free(&advice);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char *text = fuzz_text(data, bytes);
	struct ema_spec *spec = NULL;
	struct ckpt_err err = { 0 };
	int rc = ema_spec_parse(text, &spec, &err);

	if (rc) {
		assert(rc == -EINVAL && err.code == rc && !spec);
		check_sentence(err.msg);
	} else {
		check_spec(spec);
		ema_spec_free(spec);
	}
	free(text);
	return 0;
}
