/* SPDX-License-Identifier: Apache-2.0 */
/* human_moment.c - a moment as text: see human.h. Called by ckptctl hold. Pure. */
#include "ckpt/layout/human.h"
#include "ckpt/base/util.h"
#include <string.h>
#include <time.h>

/* Digits, exactly n of them. */
static bool date_digits(const char **p, uint32_t n, uint32_t *ret)
{
	for (*ret = 0; n; n--, ++*p) {
		if (**p < '0' || **p > '9')
			return false;
		*ret = *ret * 10 + (uint32_t)(**p - '0');
	}
	return true;
}

static bool date_sign(const char **p, const char *any)
{
	return **p && strchr(any, **p) ? ++*p, true : false;
}

/* RFC 3339, to the second: parts of one do not count. */
static bool date_parse(const char *p, uint64_t *ret_ns)
{
	uint32_t year, month, day, h, m, s, zh = 0, zm = 0;
	struct tm tm = { 0 };
	bool west = false;
	int64_t t;

	if (!date_digits(&p, 4, &year) || !date_sign(&p, "-") || !date_digits(&p, 2, &month) ||
	    !date_sign(&p, "-") || !date_digits(&p, 2, &day) || !date_sign(&p, "Tt ") ||
	    !date_digits(&p, 2, &h) || !date_sign(&p, ":") || !date_digits(&p, 2, &m) ||
	    !date_sign(&p, ":") || !date_digits(&p, 2, &s))
		return false;
	if (date_sign(&p, ".")) {
		if (*p < '0' || *p > '9')
			return false;
		p += strspn(p, "0123456789");
	}
	if (!date_sign(&p, "Zz")) {
		west = *p == '-';
		if (!date_sign(&p, "+-") || !date_digits(&p, 2, &zh) || !date_sign(&p, ":") ||
		    !date_digits(&p, 2, &zm))
			return false;
	}
	if (*p || year < 1970 || !month || month > 12 || !day || day > 31 || h > 23 || m > 59 ||
	    s > 60 || zh > 23 || zm > 59)
		return false;
	tm.tm_year = (int)year - 1900;
	tm.tm_mon = (int)month - 1;
	tm.tm_mday = (int)day;
	tm.tm_hour = (int)h;
	tm.tm_min = (int)m;
	tm.tm_sec = (int)s;
	t = timegm(&tm);
	if (tm.tm_mon != (int)month - 1) /* the 31st of a month that has 30 */
		return false;
	t -= (west ? -1 : 1) * (int64_t)(zh * 3600 + zm * 60);
	return t > 0 && !ckpt_mul((uint64_t)t, NS_PER_S, ret_ns);
}

int human_parse_moment(const char *text, uint64_t now_ns, uint64_t *ret_ns)
{
	size_t n = strlen(text);
	char word[32];
	uint64_t span;

	if (date_parse(text, ret_ns))
		return *ret_ns <= now_ns ? -ERANGE : 0;
	/* Weeks are seven days; without a unit it could mean anything. */
	if (n < 2 || n >= sizeof word || text[0] < '0' || text[0] > '9' ||
	    (text[n - 1] >= '0' && text[n - 1] <= '9'))
		return -EINVAL;
	memcpy(word, text, n + 1);
	if (word[n - 1] == 'w')
		word[n - 1] = 'd';
	if (human_parse_time(word, &span) || !span ||
	    ckpt_mul(span, text[n - 1] == 'w' ? 7 : 1, &span) || ckpt_add(now_ns, span, ret_ns))
		return -EINVAL;
	return 0;
}
