/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec.c - reads, prints and judges the spec of an average. Called by the library at ckpt_average,
 * by the daemon for each declaration, and by ckptctl for the specs that files keep. Invariant: what
 * was read prints as its canonical form, and that reads back as the same.
 *
 * Numbers are read and printed as in the C locale, whatever the program around has set.
 */
#include "ema/spec.h"
#include "ckpt/base/error.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* Every parameter: those of the schedule by enum ema_param, then the others. */
enum { P_WARMUP = EMA_PARAMS, P_START, P_GATE_LOSS, P_SOURCE, P_SEED, P_COUNT };
static const char *const param_name[P_COUNT] = {
	[EMA_DECAY] = "decay",
	[EMA_SIGMA_REL] = "sigma_rel",
	[EMA_GAMMA] = "gamma",
	[EMA_EXPONENT] = "power",
	[EMA_MIN_DECAY] = "min_decay",
	[EMA_FRACTION] = "fraction",
	[P_WARMUP] = "warmup",
	[P_START] = "start",
	[P_GATE_LOSS] = "gate_loss",
	[P_SOURCE] = "source",
	[P_SEED] = "seed",
};
#define BIT(p) (1u << (p))
#define SCHEDULE_BITS BIT(P_START)
#define WHOLE_BITS (BIT(P_GATE_LOSS) | BIT(P_SOURCE) | BIT(P_SEED)) /* not in a rule's schedule */
#define RAMP_BITS \
	(BIT(EMA_DECAY) | BIT(EMA_GAMMA) | BIT(EMA_EXPONENT) | BIT(EMA_MIN_DECAY) | BIT(P_WARMUP))

static const struct preset {
	const char *name;
	uint32_t has, needs;
} presets[] = {
	[EMA_CONSTANT] = { "constant", BIT(EMA_DECAY), BIT(EMA_DECAY) },
	[EMA_TIMM] = { "timm", RAMP_BITS, BIT(EMA_DECAY) },
	[EMA_DIFFUSERS] = { "diffusers", RAMP_BITS, BIT(EMA_DECAY) },
	[EMA_HALFLIFE] = { "halflife", BIT(EMA_FRACTION), BIT(EMA_FRACTION) },
	[EMA_POWER] = { "power", BIT(EMA_SIGMA_REL) | BIT(EMA_GAMMA), 0 },
	[EMA_UNIFORM] = { "uniform", 0, 0 },
	[EMA_ZERO] = { "zero", BIT(EMA_DECAY), BIT(EMA_DECAY) },
};
/* Of the warm-up: the defaults of timm and diffusers. */
#define WARMUP_GAMMA 1.0
#define WARMUP_POWER (2.0 / 3)

static const char *const act_name[] = {
	[EMA_AVERAGE] = "average", [EMA_COPY] = "copy", [EMA_SKIP] = "skip"
};
static const char *const source_name[] = { [EMA_MASTER] = "master", [EMA_PARAM] = "param" };

/* "decay, gamma and start" */
static const char *params_text(uint32_t bits, char ret[256])
{
	struct text o = text_in(ret, 256);

	for (uint32_t p = 0; p < P_COUNT; p++) {
		if (!(bits & BIT(p)))
			continue;
		bits &= ~BIT(p);
		text_add(&o, "%s%s", param_name[p],
			 !bits		     ? ""
			 : bits & (bits - 1) ? ", "
					     : " and ");
	}
	return ret;
}

/* The beginning of some bytes, which may be anything, so that a sentence can show it. */
#define SHOWN_BYTES 48
static const char *text_shown(const char *s, size_t len, char ret[SHOWN_BYTES + 4])
{
	size_t n = MIN(len, (size_t)SHOWN_BYTES);

	while (n < len && n && ((uint8_t)s[n] & 0xc0) == 0x80)
		n--; /* not in the middle of a character of UTF-8 */
	for (size_t i = 0; i < n; i++)
		ret[i] = (uint8_t)s[i] < ' ' || s[i] == 0x7f ? '?' : s[i];
	memcpy(ret + n, len > n ? "..." : "", len > n ? 4 : 1);
	return ret;
}

/* --- numbers --- */

struct c_numbers {
	locale_t ours, before;
};

static int c_numbers_begin(struct c_numbers *c)
{
	c->ours = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!c->ours)
		return -ENOMEM;
	c->before = uselocale(c->ours);
	return 0;
}

static void c_numbers_end(struct c_numbers *c)
{
	(void)uselocale(c->before);
	freelocale(c->ours);
}

static size_t digits_count(const char *s)
{
	size_t n = 0;

	while (s[n] >= '0' && s[n] <= '9')
		n++;
	return n;
}

/* A decimal number that a finite double can say, and nothing behind it. */
static bool number_read(const char *s, double *ret)
{
	const char *p = s + (*s == '-' || *s == '+');
	bool some = false;
	size_t n = digits_count(p), after = 0;

	for (size_t i = 0; i < n; i++)
		some |= p[i] != '0';
	p += n;
	if (*p == '.') {
		p++;
		after = digits_count(p);
		for (size_t i = 0; i < after; i++)
			some |= p[i] != '0';
		p += after;
	}
	if (!n && !after)
		return false;
	if (*p == 'e' || *p == 'E') {
		p += 1 + (p[1] == '-' || p[1] == '+');
		n = digits_count(p);
		if (!n)
			return false;
		p += n;
	}
	if (*p)
		return false;
	*ret = strtod(s, NULL);
	if (!isfinite(*ret) || (some && *ret == 0))
		return false;
	*ret += 0.0; /* -0 is 0 */
	return true;
}

static bool count_read(const char *s, uint64_t *ret)
{
	uint64_t x = 0;

	if (!*s || s[digits_count(s)])
		return false;
	for (; *s; s++)
		if (ckpt_mul(x, 10, &x) || ckpt_add(x, (uint64_t)(*s - '0'), &x))
			return false;
	*ret = x;
	return true;
}

/* The fewest digits that read back as the same. */
static void number_add(struct text *o, double x)
{
	char s[32];

	for (int digit = 1; digit <= 17; digit++) {
		snprintf(s, sizeof s, "%.*g", digit, x);
		if (strtod(s, NULL) == x)
			break;
	}
	text_add(o, "%s", s);
}

/* --- reading --- */

struct parse {
	const char *text; /* as given, for sentences */
	char *copy;	  /* of it, in which words end with 0 */
	uint32_t number;  /* of the word, from 1 */
	struct ema_spec *spec;
	struct ckpt_err *err;
};

/* A word of the text: [at, at + len). */
struct word {
	size_t at, len;
	size_t left; /* bytes before the '=' that cuts it; len: there is none */
	bool own;    /* what stands right of it is in parentheses, and left is before that '=' */
};

__attribute__((format(printf, 3, 4))) static int
word_error(const struct parse *p, const struct word *w, const char *fmt, ...)
{
	char s[SHOWN_BYTES + 4], why[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	return ckpt_error(p->err, -EINVAL, "word %u of the spec, \"%s\" (from byte %zu on), %s",
			  p->number, text_shown(p->text + w->at, w->len, s), w->at + 1, why);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\n';
}

/* The next word of [*at, end); inside: of parentheses. 1; 0: there is none; -EINVAL. */
static int word_next(struct parse *p, size_t *at, size_t end, bool inside, struct word *ret)
{
	const char *s = p->text;
	size_t i = *at;

	while (i < end && is_blank(s[i]))
		i++;
	*ret = (struct word){ .at = i };
	if (i == end)
		return 0;
	p->number += !inside; /* those in parentheses are of the word around them */
	for (ret->left = SIZE_MAX; i < end && !is_blank(s[i]); i++) {
		if ((uint8_t)s[i] < ' ' || s[i] == 0x7f) {
			ret->len = i + 1 - ret->at;
			return word_error(p, ret,
					  "has a control character (byte %u) at byte %zu: "
					  "a spec is text, its words separated by blanks",
					  (uint8_t)s[i], i + 1);
		}
		if (s[i] == '(' && i > ret->at && s[i - 1] == '=') {
			const char *close = memchr(s + i, ')', end - i);
			const char *open = memchr(s + i + 1, '(', end - i - 1);

			ret->len = end - ret->at;
			if (inside || (open && close && open < close))
				return word_error(p, ret,
						  "opens a parenthesis inside another one: a "
						  "rule's own schedule has no rules");
			if (!close)
				return word_error(p, ret,
						  "opens a parenthesis that nothing closes: "
						  "the act is (PRESET PARAM=VALUE ...)");
			ret->own = true;
			i = (size_t)(close - s) + 1;
			ret->len = i - ret->at;
			if (i < end && !is_blank(s[i]))
				return word_error(p, ret,
						  "goes on behind its parenthesis: put a "
						  "blank there");
			break;
		}
		if (s[i] == '=')
			ret->left = i - ret->at;
	}
	ret->len = i - ret->at;
	ret->left = MIN(ret->left, ret->len);
	*at = i;
	return 1;
}

/* What stands right of the word's '='. It ends with the word. */
static const char *word_right(struct parse *p, const struct word *w)
{
	p->copy[w->at + w->len] = 0;
	return p->copy + w->at + w->left + (w->left < w->len);
}

static int preset_read(struct parse *p, const struct word *w, struct ema_schedule *ret)
{
	char list[128];
	struct text o = text_in(list, sizeof list);

	for (uint32_t i = 0; i < ARRAY_LEN(presets); i++) {
		text_add(&o, "%s%s", i ? i + 1 < ARRAY_LEN(presets) ? ", " : " or " : "",
			 presets[i].name);
		if (w->len != strlen(presets[i].name) ||
		    memcmp(p->text + w->at, presets[i].name, w->len) != 0)
			continue;
		*ret = (struct ema_schedule){ .preset = (enum ema_preset)i };
		if (presets[i].has & BIT(P_WARMUP)) {
			ret->param[EMA_GAMMA] = WARMUP_GAMMA;
			ret->param[EMA_EXPONENT] = WARMUP_POWER;
		}
		return 0;
	}
	return word_error(p, w, "is no schedule: here stands one of %s", list);
}

static int value_error(const struct parse *p, const struct word *w, const char *what)
{
	return word_error(p, w, "has a value that is not %s", what);
}

static int param_set(struct parse *p, const struct word *w, uint32_t param,
		     struct ema_schedule *schedule)
{
	const char *value = word_right(p, w);
	struct ema_spec *spec = p->spec;
	uint64_t n;

	switch (param) {
	default:
		if (!number_read(value, &schedule->param[param]))
			return value_error(p, w, "a decimal number, like .999 or 1e-3");
		if (param == EMA_SIGMA_REL && schedule->param[param] == 0)
			return value_error(p, w, "greater than 0"); /* 0 says: it has none */
		return 0;
	case P_WARMUP:
		if (!count_read(value, &n) || n > 1)
			return value_error(p, w, "0 or 1");
		schedule->warmup = n;
		return 0;
	case P_START:
		if (!count_read(value, &schedule->start))
			return value_error(p, w, "the number of a step");
		return 0;
	case P_GATE_LOSS:
		if (!number_read(value, &spec->gate_loss))
			return value_error(p, w, "a decimal number, like 8 or 3.5");
		spec->has_gate = true;
		return 0;
	case P_SOURCE:
		for (uint32_t i = 0; i < ARRAY_LEN(source_name); i++)
			if (!strcmp(value, source_name[i])) {
				spec->source = (enum ema_source)i;
				return 0;
			}
		return value_error(p, w, "master or param");
	case P_SEED:
		if (!*value)
			return value_error(p, w, "the directory of a step");
		spec->seed = value;
		return 0;
	}
}

/* Which parameter the word's left side names; P_COUNT: none. */
static uint32_t word_param(const struct parse *p, const struct word *w, size_t *ret_left)
{
	const char *s = p->text + w->at, *equal = memchr(s, '=', w->len);
	size_t left = equal ? (size_t)(equal - s) : w->len;

	*ret_left = left;
	for (uint32_t i = 0; equal && i < P_COUNT; i++)
		if (left == strlen(param_name[i]) && !memcmp(s, param_name[i], left))
			return i;
	return P_COUNT;
}

/* param=value. given: what was said before, by bits. */
static int param_read(struct parse *p, struct word *w, struct ema_schedule *schedule, bool inside,
		      uint32_t *given)
{
	const struct preset *preset = &presets[schedule->preset];
	uint32_t has = preset->has | SCHEDULE_BITS | (inside ? 0 : WHOLE_BITS);
	uint32_t param = word_param(p, w, &w->left);
	char list[256];

	if (param == P_COUNT)
		return inside ? word_error(p, w,
					   "is not known: in parentheses stands %s with %s=VALUE",
					   preset->name, params_text(has, list))
			      : word_error(
					p, w,
					"is not known: here stands PARAM=VALUE (%s has %s), kahan, "
					"every, or a rule PATTERN=average, =copy, =skip or =(PRESET "
					"PARAM=VALUE ...)",
					preset->name, params_text(has, list));
	if (inside && BIT(param) & WHOLE_BITS)
		return word_error(p, w,
				  "is of the whole average, not of a rule: write it outside of "
				  "the parentheses");
	if (!(has & BIT(param)))
		return word_error(p, w, "does not go with %s, which has %s", preset->name,
				  params_text(has, list));
	if (*given & BIT(param))
		return word_error(p, w, "sets %s a second time", param_name[param]);
	*given |= BIT(param);
	return param_set(p, w, param, schedule);
}

/* Is everything there that the schedule needs? `whole`: all of it, for the sentence. */
static int schedule_complete(const struct parse *p, const struct word *whole,
			     struct ema_schedule *schedule, uint32_t given)
{
	const struct preset *preset = &presets[schedule->preset];
	double sigma = schedule->param[EMA_SIGMA_REL], gamma;
	char list[256];

	if (preset->needs & ~given)
		return word_error(p, whole, "lacks %s: write %s %s=VALUE",
				  params_text(preset->needs & ~given, list), preset->name, list);
	if (schedule->preset != EMA_POWER)
		return 0;
	given &= BIT(EMA_SIGMA_REL) | BIT(EMA_GAMMA);
	if (!given || given & (given - 1))
		return word_error(p, whole, "%s: write power sigma_rel=VALUE or power gamma=VALUE",
				  given ? "has both sigma_rel and gamma"
					: "lacks sigma_rel or gamma");
	/* One that has no gamma stays what it is, for ema_spec_check to say. */
	gamma = given & BIT(EMA_SIGMA_REL) ? ema_gamma_of_sigma(sigma) : NAN;
	if (!isnan(gamma)) {
		schedule->param[EMA_GAMMA] = gamma;
		schedule->param[EMA_SIGMA_REL] = 0;
	}
	return 0;
}

/* preset { param=value } in a rule's parentheses. */
static int own_read(struct parse *p, const struct word *rule, struct ema_schedule *ret)
{
	size_t at = rule->at + rule->left + 2, end = rule->at + rule->len - 1;
	struct word w, all = { .at = at, .len = end - at };
	uint32_t given = 0;
	int rc = word_next(p, &at, end, true, &w);

	if (!rc)
		rc = word_error(p, rule,
				"has nothing in its parentheses: the act is "
				"(PRESET PARAM=VALUE ...)");
	else if (rc > 0)
		rc = preset_read(p, &w, ret);
	while (!rc && (rc = word_next(p, &at, end, true, &w)) > 0)
		rc = param_read(p, &w, ret, true, &given);
	return rc ? rc : schedule_complete(p, &all, ret, given);
}

/* Is the word a rule? Then it is read. 1; 0: it is none; -EINVAL. */
static int rule_read(struct parse *p, const struct word *w)
{
	struct ema_spec *spec = p->spec;
	struct ema_rule rule = { .act = EMA_AVERAGE, .own = w->own };
	const char *right = word_right(p, w);
	uint32_t i = 0;
	int rc;

	while (!w->own && i < ARRAY_LEN(act_name) && strcmp(right, act_name[i]) != 0)
		i++;
	if (w->left == w->len || i == ARRAY_LEN(act_name))
		return 0;
	if (!w->left)
		return word_error(p, w, "has no pattern before its \"=\"");
	if (spec->nrule == EMA_RULES_MAX)
		return word_error(p, w, "is one rule too many: there may be %u", EMA_RULES_MAX);
	rule.act = w->own ? EMA_AVERAGE : (enum ema_act)i;
	rule.pattern = p->copy + w->at;
	rc = w->own ? own_read(p, w, &rule.schedule) : 0;
	if (rc)
		return rc;
	p->copy[w->at + w->left] = 0;
	spec->rule[spec->nrule++] = rule;
	return 1;
}

/* What a word without a value sets; NULL: it is none. */
static bool *flag_of(const struct parse *p, const struct word *w)
{
	if (w->len == 5 && !memcmp(p->text + w->at, "kahan", 5))
		return &p->spec->kahan;
	return w->len == 5 && !memcmp(p->text + w->at, "every", 5) ? &p->spec->every : NULL;
}

static int spec_read(struct parse *p, size_t len)
{
	struct ema_spec *spec = p->spec;
	uint32_t given = 0;
	size_t at = 0;
	struct word w, first;
	int rc = word_next(p, &at, len, false, &first);

	if (!rc)
		return ckpt_error(p->err, -EINVAL,
				  "the spec is empty: it begins with a schedule, for example "
				  "\"constant decay=.999\"");
	if (rc > 0)
		rc = preset_read(p, &first, &spec->schedule);
	while (!rc && (rc = word_next(p, &at, len, false, &w)) > 0) {
		bool *flag = flag_of(p, &w);

		rc = flag ? 0 : rule_read(p, &w);
		if (rc > 0) {
			rc = 0;
		} else if (flag) {
			if (*flag)
				rc = word_error(p, &w, "stands there a second time");
			*flag = true;
		} else if (!rc) {
			rc = param_read(p, &w, &spec->schedule, false, &given);
		}
	}
	p->number = 1;
	return rc ? rc : schedule_complete(p, &first, &spec->schedule, given);
}

static int spec_parse(const char *text, size_t len, struct ema_spec **ret, struct ckpt_err *err)
{
	uint32_t rules = 0;
	struct ema_spec *spec;
	struct parse p = { .text = text, .err = err };
	char canonical[EMA_SPEC_BYTES];
	int rc;

	for (size_t i = 0; i < len; i++)
		rules += text[i] == '=';
	rules = MIN(rules, EMA_RULES_MAX);
	spec = calloc(1, sizeof *spec + rules * sizeof *spec->rule + len + 1);
	if (!spec)
		return ckpt_error(err, -ENOMEM, "no memory for a spec");
	spec->rule = (struct ema_rule *)(spec + 1);
	p.spec = spec;
	p.copy = memcpy(spec->rule + rules, text, len + 1);
	rc = spec_read(&p, len);
	if (!rc && ema_spec_print(spec, EMA_DECLARED, canonical))
		rc = ckpt_error(
			err, -EINVAL,
			"the spec has more than %u bytes when all its parameters are written "
			"out: use fewer or shorter rules",
			EMA_SPEC_BYTES - 1);
	if (rc)
		free(spec);
	else
		*ret = spec;
	return rc;
}

int ema_spec_parse(const char *text, struct ema_spec **ret, struct ckpt_err *err)
{
	size_t len = strnlen(text, EMA_SPEC_BYTES);
	struct c_numbers c;
	int rc;

	if (len == EMA_SPEC_BYTES)
		return ckpt_error(err, -EINVAL, "the spec has more than %u bytes",
				  EMA_SPEC_BYTES - 1);
	if (c_numbers_begin(&c))
		return ckpt_error(err, -ENOMEM, "no memory for a spec");
	rc = spec_parse(text, len, ret, err);
	c_numbers_end(&c);
	return rc;
}

void ema_spec_free(struct ema_spec *s)
{
	free(s);
}

/* --- printing --- */

static void schedule_add(struct text *o, const struct ema_schedule *x)
{
	uint32_t has = presets[x->preset].has;

	/* Whose gamma is known needs no sigma_rel, and the other way round. */
	if (x->preset == EMA_POWER)
		has = x->param[EMA_SIGMA_REL] != 0 ? BIT(EMA_SIGMA_REL) : BIT(EMA_GAMMA);
	text_add(o, "%s", presets[x->preset].name);
	for (uint32_t p = 0; p < EMA_PARAMS; p++) {
		if (!(has & BIT(p)))
			continue;
		text_add(o, " %s=", param_name[p]);
		number_add(o, x->param[p]);
	}
	if (has & BIT(P_WARMUP))
		text_add(o, " warmup=%d", x->warmup);
	text_add(o, " start=%" PRIu64, x->start);
}

static void spec_add(struct text *o, const struct ema_spec *s, bool declared)
{
	schedule_add(o, &s->schedule);
	if (s->has_gate) {
		text_add(o, " gate_loss=");
		number_add(o, s->gate_loss);
	}
	text_add(o, " source=%s", source_name[s->source]);
	if (s->seed && declared)
		text_add(o, " seed=%s", s->seed);
	if (s->every && (declared || MUTANT(EVERY_IN_HISTORY)))
		text_add(o, " every");
	if (s->kahan)
		text_add(o, " kahan");
	for (uint32_t i = 0; i < s->nrule; i++) {
		const struct ema_rule *r = &s->rule[i];

		text_add(o, " %s=", r->pattern);
		if (r->own) {
			text_add(o, "(");
			schedule_add(o, &r->schedule);
			text_add(o, ")");
		} else {
			text_add(o, "%s", act_name[r->act]);
		}
	}
}

/* The n-th schedule that a rule has, from 1; NULL: there is none. */
static const struct ema_schedule *own_schedule(const struct ema_spec *s, uint32_t n)
{
	for (uint32_t i = 0; i < s->nrule; i++)
		if (s->rule[i].own && !--n)
			return &s->rule[i].schedule;
	return NULL;
}

int ema_spec_print(const struct ema_spec *s, uint32_t rule, char ret[EMA_SPEC_BYTES])
{
	bool whole = !rule || rule == EMA_DECLARED;
	const struct ema_schedule *own = whole ? NULL : own_schedule(s, rule);
	struct text o = text_in(ret, EMA_SPEC_BYTES);
	struct c_numbers c;

	if (!whole && !own)
		return -ENOENT;
	if (c_numbers_begin(&c))
		return -ENOMEM;
	if (own)
		schedule_add(&o, own);
	else
		spec_add(&o, s, rule == EMA_DECLARED);
	c_numbers_end(&c);
	return o.len == o.bytes ? -E2BIG : 0;
}

/* --- patterns --- */

/* '*' stands for any bytes, '?' for any one. */
static bool glob_matches(const char *p, const char *s)
{
	const char *star = NULL, *from = NULL;

	while (*s) {
		if (*p == '*') {
			star = ++p;
			from = s;
		} else if (*p == '?' || *p == *s) {
			p++;
			s++;
		} else if (star) {
			p = star;
			s = ++from;
		} else {
			return false;
		}
	}
	while (*p == '*')
		p++;
	return !*p;
}

bool ema_pattern_matches(const char *pattern, const char *component, const char *name)
{
	char whole[2 * CKPT_NAME_MAX + 2];
	int n;

	if (!strchr(pattern, '/'))
		return glob_matches(pattern, name);
	n = snprintf(whole, sizeof whole, "%s/%s", component, name);
	return n >= 0 && (size_t)n < sizeof whole && glob_matches(pattern, whole);
}

/* Each run of '*' and '?' as one form: its '?' first, then at most one '*'. */
static void glob_tidy(const char *p, char ret[EMA_SPEC_BYTES])
{
	while (*p) {
		bool star = false;

		for (; *p == '*' || *p == '?'; p++) {
			star |= *p == '*';
			if (*p == '?')
				*ret++ = '?';
		}
		if (star)
			*ret++ = '*';
		else if (*p)
			*ret++ = *p++;
	}
	*ret = 0;
}

/* Does tidy pattern a match all that tidy pattern b matches? b is read as if it were a name in
 * which '?' is a letter that no pattern has, and '*' a text of such letters, of any length. */
static bool glob_covers(const char *a, const char *b)
{
	const char *star = NULL, *from = NULL;

	while (*b) {
		if (*a == '*') {
			star = ++a;
			from = b;
		} else if (*b != '*' && (*a == '?' || *a == *b)) {
			a++;
			b++;
		} else if (star) {
			a = star;
			b = ++from;
		} else {
			return false;
		}
	}
	return !strcmp(a, "*") || !*a;
}

/* Does every tensor that b matches match a? Where that is not seen easily: no. */
static bool pattern_covers(const char *a, const char *b)
{
	char x[EMA_SPEC_BYTES], y[EMA_SPEC_BYTES];
	const char *slash;

	glob_tidy(a, x);
	glob_tidy(b, y);
	if (!strchr(x, '/') == !strchr(y, '/'))
		return glob_covers(x, y);
	if (strchr(x, '/')) /* in whatever component a name is */
		return !strncmp(x, "*/", 2) && glob_covers(x + 2, y);
	if (!strcmp(x, "*"))
		return true;
	slash = strchr(y, '/');
	for (const char *p = y; p < slash; p++)
		if (*p == '*' || *p == '?')
			return false;
	return glob_covers(x, slash + 1);
}

/* --- what is wrong with it --- */

/* Whose line it is: an average, and a schedule of it. */
struct subject {
	struct ckpt_errlist *list;
	char name[SHOWN_BYTES + 4];
	char place[SHOWN_BYTES + 16]; /* "", or "rule PATTERN: " */
};

__attribute__((format(printf, 2, 3))) static void wrong(const struct subject *x, const char *fmt,
							...)
{
	char line[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	ckpt_errlist_add(x->list, "average %s: %s%s", x->name, x->place, line);
}

static struct subject subject_of(struct ckpt_errlist *list, const char *name)
{
	struct subject x = { .list = list };

	text_shown(name, strlen(name), x.name);
	return x;
}

static void place_set(struct subject *x, const struct ema_rule *rule)
{
	char pattern[SHOWN_BYTES + 4];

	x->place[0] = 0;
	if (rule)
		snprintf(x->place, sizeof x->place,
			 "rule %s: ", text_shown(rule->pattern, strlen(rule->pattern), pattern));
}

static const char *number_text(double v, char ret[32])
{
	struct text o = text_in(ret, 32);

	number_add(&o, v);
	return ret;
}

static void value_wrong(const struct subject *x, const struct ema_schedule *s, uint32_t param,
			const char *range)
{
	char v[32];

	wrong(x, "%s=%s is outside its range: %s", param_name[param],
	      number_text(s->param[param], v), range);
}

static void warmup_check(const struct subject *x, const struct ema_schedule *s)
{
	if (!(s->param[EMA_GAMMA] > 0))
		value_wrong(x, s, EMA_GAMMA, "it must be greater than 0");
	if (!(s->param[EMA_EXPONENT] > 0))
		value_wrong(x, s, EMA_EXPONENT, "it must be greater than 0");
	if (!(s->param[EMA_MIN_DECAY] >= 0 && s->param[EMA_MIN_DECAY] <= s->param[EMA_DECAY]))
		value_wrong(x, s, EMA_MIN_DECAY, "it must be 0 or more, and at most decay");
	if (s->warmup)
		return;
	if (s->param[EMA_GAMMA] != WARMUP_GAMMA || s->param[EMA_EXPONENT] != WARMUP_POWER)
		wrong(x, "gamma and power are the warm-up's, which is off: write warmup=1 too, or "
			 "leave them out");
	if (s->preset == EMA_TIMM && s->param[EMA_MIN_DECAY] != 0)
		wrong(x, "min_decay of timm is the warm-up's, which is off: write warmup=1 too, or "
			 "leave it out");
}

static void schedule_check(const struct subject *x, const struct ema_schedule *s)
{
	uint32_t has = presets[s->preset].has;
	double decay = s->param[EMA_DECAY];

	if (has & BIT(EMA_DECAY) && !(decay >= 0 && decay < 1))
		value_wrong(x, s, EMA_DECAY,
			    "it must be 0 or more, and less than 1 (it is the part of the average "
			    "that a step leaves)");
	if (s->param[EMA_SIGMA_REL] != 0)
		value_wrong(x, s, EMA_SIGMA_REL,
			    "no power function is so narrow or so wide; it must be at least 1e-12, "
			    "and at most 0.2886");
	if (has & BIT(P_WARMUP))
		warmup_check(x, s);
	if (s->preset == EMA_POWER && !(s->param[EMA_GAMMA] >= 0))
		value_wrong(x, s, EMA_GAMMA, "it must be 0 or more");
	if (has & BIT(EMA_FRACTION) && !(s->param[EMA_FRACTION] > 0))
		value_wrong(x, s, EMA_FRACTION, "it must be greater than 0");
}

static bool same_act(const struct ema_rule *a, const struct ema_rule *b)
{
	if (a->act != b->act || a->own != b->own)
		return false;
	return !a->own || (a->schedule.preset == b->schedule.preset &&
			   a->schedule.warmup == b->schedule.warmup &&
			   a->schedule.start == b->schedule.start &&
			   !memcmp(a->schedule.param, b->schedule.param, sizeof a->schedule.param));
}

/* What the rules before it make of this one: a line, of the first that matters. */
static void rule_check(const struct subject *x, const struct ema_spec *s, uint32_t i)
{
	char a[SHOWN_BYTES + 4], b[SHOWN_BYTES + 4];
	const struct ema_rule *late = &s->rule[i];

	text_shown(late->pattern, strlen(late->pattern), b);
	for (uint32_t j = 0; j < i; j++) {
		const struct ema_rule *early = &s->rule[j];

		if (!pattern_covers(early->pattern, late->pattern))
			continue;
		text_shown(early->pattern, strlen(early->pattern), a);
		if (!pattern_covers(late->pattern, early->pattern))
			wrong(x,
			      "rule %u, %s, never counts: rule %u, %s, takes all that it matches, "
			      "and the first rule that matches counts: put it before that one, or "
			      "leave it out",
			      i + 1, b, j + 1, a);
		else if (same_act(early, late))
			wrong(x, "rule %u, %s, says again what rule %u says: leave it out", i + 1,
			      b, j + 1);
		else
			wrong(x,
			      "rules %u and %u contradict each other: both are for %s, and say "
			      "different things: leave one out",
			      j + 1, i + 1, b);
		return;
	}
}

static void name_check(const struct subject *x, const char *name)
{
	static const char carry[] = ".carry";
	size_t n = strlen(name), bad = 0;

	while (bad < n && (uint8_t)name[bad] > ' ' && name[bad] != 0x7f && name[bad] != '/')
		bad++;
	if (!n)
		wrong(x, "it has no name");
	if (n >= EMA_NAME_BYTES)
		wrong(x, "its name has %zu bytes: it may have %u", n, EMA_NAME_BYTES - 1);
	if (bad < n)
		wrong(x, "its name has a %s: its tensors are ema.NAME/TENSOR",
		      name[bad] == '/'	 ? "\"/\""
		      : name[bad] == ' ' ? "blank"
					 : "control character");
	if (n >= sizeof carry - 1 && !strcmp(name + n - (sizeof carry - 1), carry))
		wrong(x, "its name ends in .carry, as those of the carries of kahan do: give it "
			 "another one");
}

void ema_spec_check(const struct ema_spec *s, const char *name, struct ckpt_errlist *list)
{
	struct subject x = subject_of(list, name);
	struct c_numbers c;
	bool numbers = !c_numbers_begin(&c);

	name_check(&x, name);
	schedule_check(&x, &s->schedule);
	for (uint32_t i = 0; i < s->nrule; i++) {
		if (s->rule[i].own) {
			place_set(&x, &s->rule[i]);
			schedule_check(&x, &s->rule[i].schedule);
			place_set(&x, NULL);
		}
		rule_check(&x, s, i);
	}
	if (numbers)
		c_numbers_end(&c);
}

/* Above this, additions to a float get lost by the percent (docs/AVERAGES.md). */
#define DECAY_WITHOUT_KAHAN .99999

static void schedule_advise(const struct subject *x, const struct ema_schedule *s)
{
	char v[32];

	if (presets[s->preset].has & BIT(EMA_DECAY) && s->param[EMA_DECAY] > DECAY_WITHOUT_KAHAN)
		wrong(x,
		      "decay=%s without kahan: changes of less than some percent of a weight are "
		      "lost in FP32: write kahan too (4 more bytes for each element)",
		      number_text(s->param[EMA_DECAY], v));
}

void ema_spec_advise(const struct ema_spec *s, const char *name, struct ckpt_errlist *list)
{
	struct subject x = subject_of(list, name);
	struct c_numbers c;
	bool numbers;

	if (s->kahan)
		return;
	numbers = !c_numbers_begin(&c);
	schedule_advise(&x, &s->schedule);
	for (uint32_t i = 0; i < s->nrule; i++) {
		if (!s->rule[i].own)
			continue;
		place_set(&x, &s->rule[i]);
		schedule_advise(&x, &s->rule[i].schedule);
	}
	if (numbers)
		c_numbers_end(&c);
}

/* --- what becomes of a tensor --- */

bool ema_can_average(uint32_t dtype)
{
	return dtype == CKPT_F32 || dtype == CKPT_BF16 || dtype == CKPT_F16;
}

struct ema_verdict ema_spec_judge(const struct ema_spec *s, const struct ema_subject *x)
{
	struct ema_verdict v = { .act = EMA_SKIP };
	bool param = x->role == CKPT_PARAM, buffer = x->role == CKPT_BUFFER;
	uint32_t own = 0;

	if (x->blob || x->cls == CKPT_SINK || !strncmp(x->component, "ema.", 4) ||
	    !(param || buffer || x->role == CKPT_OTHER))
		return v;
	for (uint32_t i = 0; i < s->nrule; i++) {
		own += s->rule[i].own;
		if (ema_pattern_matches(s->rule[i].pattern, x->component, x->name))
			return (struct ema_verdict){ .act = s->rule[i].act,
						     .rule = i + 1,
						     .own = s->rule[i].own ? own : 0 };
	}
	if (param && ema_can_average(x->dtype) && x->cls != CKPT_CONST)
		v.act = EMA_AVERAGE;
	else if (param || buffer)
		v.act = EMA_COPY;
	return v;
}
