/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_policy.c - see retain_policy.h. Called by ckptd, ckptctl, the store and the library.
 * Invariant: what is printed is read back as the same policy.
 */
#include "ckpt/base/retain_policy.h"
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"

static const struct unit {
	char letter;
	uint64_t seconds;
} units[] = { { 'w', 7 * 86400 }, { 'd', 86400 }, { 'h', 3600 }, { 'm', 60 }, { 's', 1 } };

/* --- reading --- */

/* A number of at least 1 that fills the text up to `end`. */
static bool number_parse(const char *text, const char *end, uint64_t max, uint64_t *ret)
{
	*ret = 0;
	for (const char *p = text; p < end; p++)
		if (*p < '0' || *p > '9' || ckpt_mul(*ret, 10, ret) ||
		    ckpt_add(*ret, (uint64_t)(*p - '0'), ret))
			return false;
	return *ret > 0 && *ret <= max;
}

static bool time_parse(const char *value, uint64_t *ret)
{
	size_t n = strlen(value);
	uint64_t count;

	for (size_t i = 0; n > 1 && i < ARRAY_LEN(units); i++)
		if (value[n - 1] == units[i].letter)
			return number_parse(value, value + n - 1, UINT64_MAX, &count) &&
			       ckpt_mul(count, units[i].seconds, &count) == 0 &&
			       ckpt_mul(count, NS_PER_S, ret) == 0;
	return false;
}

static bool best_parse(const char *value, struct retain_best *ret)
{
	size_t n = strcspn(value, ":");
	const char *p = value + n;
	uint64_t count = 1;

	*ret = (struct retain_best){ .n = 1 };
	if (n == 0 || n > RETAIN_KEY_MAX)
		return false;
	for (size_t i = 0; i < n; i++)
		if ((uint8_t)value[i] < 0x20 || value[i] == 0x7f)
			return false;
	memcpy(ret->key, value, n);
	if (!*p)
		return true;
	ret->max = strncmp(p, ":max", 4) == 0;
	if (!ret->max && strncmp(p, ":min", 4) != 0)
		return false;
	p += 4;
	if (*p && (*p != ':' || !number_parse(p + 1, p + strlen(p), UINT32_MAX, &count)))
		return false;
	ret->n = (uint32_t)count;
	return true;
}

static int best_add(struct retain_policy *p, const struct retain_best *b, struct ckpt_err *err)
{
	uint32_t i = 0;

	while (i < p->nbest && strcmp(p->best[i].key, b->key) != 0)
		i++;
	if (i == RETAIN_BEST_MAX)
		return ckpt_error(err, -EINVAL, "keep-best %.80s: at most %d keys are possible",
				  b->key, RETAIN_BEST_MAX);
	p->best[i] = *b;
	p->nbest = MAX(p->nbest, i + 1);
	return 0;
}

enum rule { LAST, EVERY, WITHIN, BEST, ASIDE, RULES };
static const struct {
	const char *option, *hint;
} rules[RULES] = {
	[LAST] = { "keep-last", "give how many of the newest steps to keep, 1 or more" },
	[EVERY] = { "keep-every", "give a number of steps, as 5000: multiples of it are kept" },
	[WITHIN] = { "keep-within", "give a time with its unit, as 90m, 36h, 7d or 2w" },
	[BEST] = { "keep-best", "give the key of a note, as loss, acc:max or loss:min:3 (at most "
				"64 bytes, no ':' in it)" },
	[ASIDE] = { "set-aside-for", "give a time with its unit, as 90m, 36h, 7d or 2w" },
};

/* RULES: there is none of this name, which has n bytes. */
static enum rule rule_find(const char *option, size_t n)
{
	enum rule r = LAST;

	while (r < RULES && (strncmp(rules[r].option, option, n) != 0 || rules[r].option[n]))
		r++;
	return r;
}

static int rule_parse(struct retain_policy *p, enum rule r, const char *value, struct ckpt_err *err)
{
	const char *end = value + strlen(value);
	struct retain_best best;
	uint64_t n = 0;
	bool good = false;

	switch (r) {
	case LAST:
		good = number_parse(value, end, UINT32_MAX, &n);
		p->keep_last = good ? (uint32_t)n : p->keep_last;
		break;
	case EVERY:
		good = number_parse(value, end, UINT64_MAX, &n);
		p->keep_every = good ? n : p->keep_every;
		break;
	case WITHIN:
		good = time_parse(value, &n);
		p->keep_within_ns = good ? n : p->keep_within_ns;
		break;
	case ASIDE:
		good = time_parse(value, &n);
		p->set_aside_for_ns = good ? n : p->set_aside_for_ns;
		break;
	case BEST:
		if (best_parse(value, &best))
			return best_add(p, &best, err);
		break;
	case RULES:
		break;
	}
	return good ? 0
		    : ckpt_error(err, -EINVAL, "%s %.80s: %s", rules[r].option, value,
				 rules[r].hint);
}

int retain_parse(struct retain_policy *p, const char *option, const char *value,
		 struct ckpt_err *err)
{
	enum rule r = rule_find(option, strlen(option));

	if (r == RULES)
		return ckpt_error(err, -EINVAL,
				  "%.80s is no rule: give keep-last, keep-every, keep-within, "
				  "keep-best or set-aside-for",
				  option);
	return rule_parse(p, r, value, err);
}

static bool rule_given(const struct retain_policy *p, enum rule r)
{
	return (r == LAST && p->keep_last) || (r == EVERY && p->keep_every) ||
	       (r == WITHIN && p->keep_within_ns) || (r == ASIDE && p->set_aside_for_ns);
}

int retain_line(struct retain_policy *p, const char *line, struct ckpt_err *err)
{
	size_t n = strcspn(line, "=");
	enum rule r = rule_find(line, n);

	if (!line[n] || !n)
		return ckpt_error(err, -EINVAL, "\"%.80s\" is no rule", line);
	if (r == RULES)
		return ckpt_error(err, -EOPNOTSUPP, "\"%.80s\" is a rule of a newer version", line);
	if (rule_given(p, r))
		return ckpt_error(err, -EINVAL, "%s is given twice", rules[r].option);
	return rule_parse(p, r, line + n + 1, err);
}

int retain_lines(struct retain_policy *p, const char *text, struct ckpt_err *err)
{
	char line[RETAIN_TEXT_MAX];

	for (size_t n; *text; text += n + 1) {
		int rc;

		n = strcspn(text, "\n");
		if (!text[n] || n >= sizeof line)
			return ckpt_error(err, -EINVAL, "a rule has no end, or is too long");
		memcpy(line, text, n);
		line[n] = 0;
		rc = retain_line(p, line, err);
		if (rc < 0)
			return rc;
	}
	return 0;
}

/* --- printing --- */

bool retain_is_policy(const struct retain_policy *p)
{
	return p->keep_last || p->keep_every || p->keep_within_ns || p->nbest;
}

/* In the largest unit that divides it. */
void retain_time_print(uint64_t ns, char ret[32])
{
	uint64_t s = ns / NS_PER_S;
	const struct unit *u = units;

	while (s % u->seconds != 0) /* the last one is a second */
		u++;
	(void)snprintf(ret, 32, "%" PRIu64 "%c", s / u->seconds, u->letter);
}

/* Each rule as: before, its option, between, its value, after. */
static void rules_print(const struct retain_policy *p, const char *before, const char *between,
			const char *after, struct text *t)
{
	char time[32];

	if (p->keep_last)
		text_add(t, "%skeep-last%s%" PRIu32 "%s", before, between, p->keep_last, after);
	if (p->keep_every)
		text_add(t, "%skeep-every%s%" PRIu64 "%s", before, between, p->keep_every, after);
	if (p->keep_within_ns) {
		retain_time_print(p->keep_within_ns, time);
		text_add(t, "%skeep-within%s%s%s", before, between, time, after);
	}
	for (uint32_t i = 0; i < p->nbest; i++)
		text_add(t, "%skeep-best%s%s:%s:%" PRIu32 "%s", before, between, p->best[i].key,
			 p->best[i].max ? "max" : "min", p->best[i].n, after);
	if (p->set_aside_for_ns) {
		retain_time_print(p->set_aside_for_ns, time);
		text_add(t, "%sset-aside-for%s%s%s", before, between, time, after);
	}
}

void retain_print(const struct retain_policy *p, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	rules_print(p, " --", " ", "", &t);
	if (t.len)
		memmove(buf, buf + 1, strlen(buf));
}

void retain_lines_print(const struct retain_policy *p, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	rules_print(p, "", "=", "\n", &t);
}
