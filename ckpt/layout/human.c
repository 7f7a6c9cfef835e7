/* SPDX-License-Identifier: Apache-2.0 */
/*
 * human.c - numbers as people read them. Called by the text output, the help and the progress line;
 * pure but for the time zone.
 * Invariant: the buffer is always zero-terminated and never overrun, whatever the numbers are.
 */
#include "ckpt/layout/human.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <inttypes.h>
#include <stdio.h>

#define RUNS_SHOWN \
	4 /* as many runs of a dimension are spelled out; more become a range and a count */
#define DISTANCE_MAX 128 /* bytes of a name that are compared */

char *human_bytes(uint64_t bytes, char *buf)
{
	static const char *const unit[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB" };
	double x = (double)bytes;
	uint32_t u = 0;

	if (bytes < 1024) {
		snprintf(buf, HUMAN_BYTES, "%" PRIu64 " B", bytes);
		return buf;
	}
	for (; x >= 999.5 && u + 1 < ARRAY_LEN(unit); u++)
		x /= 1024;
	snprintf(buf, HUMAN_BYTES, "%.*f %s", x < 9.995 ? 2 : x < 99.95 ? 1 : 0, x, unit[u]);
	return buf;
}

char *human_count(uint64_t n, char *buf)
{
	char digit[24];
	int len = snprintf(digit, sizeof digit, "%" PRIu64, n);
	char *to = buf;

	for (int i = 0; i < len; i++) {
		if (i && (len - i) % 3 == 0)
			*to++ = ',';
		*to++ = digit[i];
	}
	*to = 0;
	return buf;
}

uint32_t human_digits(uint64_t n)
{
	uint32_t d = 1;

	for (; n >= 10; n /= 10)
		d++;
	return d;
}

char *human_age(uint64_t then_ns, uint64_t now_ns, char *buf)
{
	static const struct {
		uint64_t s;
		char unit;
	} step[] = { { 365 * 86400, 'y' }, { 7 * 86400, 'w' }, { 86400, 'd' },
		     { 3600, 'h' },	   { 60, 'm' },	       { 1, 's' } };
	uint64_t s = then_ns < now_ns ? (now_ns - then_ns) / NS_PER_S : 0;

	if (!then_ns) {
		snprintf(buf, HUMAN_BYTES, "-");
		return buf;
	}
	snprintf(buf, HUMAN_BYTES, "now");
	for (uint32_t i = 0; i < ARRAY_LEN(step); i++) {
		/* Two of a unit and more: "90m" says more than "1h". */
		if (s < 2 * step[i].s && step[i].s > 1)
			continue;
		if (s)
			snprintf(buf, HUMAN_BYTES, "%" PRIu64 "%c", s / step[i].s, step[i].unit);
		break;
	}
	return buf;
}

char *human_ago(uint64_t then_ns, uint64_t now_ns, char *buf)
{
	human_age(then_ns, now_ns, buf);
	if (strcmp(buf, "now") && strcmp(buf, "-"))
		strcat(buf, " ago");
	return buf;
}

char *human_span(uint64_t ns, char *buf)
{
	static const struct {
		uint64_t below, unit;
		const char *name;
	} small[] = { { 1000, 1, "ns" },
		      { 1000000, 1000, "us" },
		      { NS_PER_S, NS_PER_MS, "ms" },
		      { 120 * NS_PER_S, NS_PER_S, "s" } };
	static const struct {
		uint64_t s, part;
		char unit, rest;
	} large[] = { { 86400, 3600, 'd', 'h' }, { 3600, 60, 'h', 'm' }, { 60, 1, 'm', 's' } };
	uint64_t s = ns / NS_PER_S;

	for (uint32_t i = 0; i < ARRAY_LEN(small); i++)
		if (ns < small[i].below) {
			double x = (double)ns / (double)small[i].unit;

			snprintf(buf, HUMAN_BYTES, "%.*f %s",
				 !i || x >= 99.95 ? 0
				 : x >= 9.995	  ? 1
						  : 2,
				 x, small[i].name);
			return buf;
		}
	for (uint32_t i = 0; i < ARRAY_LEN(large); i++)
		if (s >= large[i].s) {
			snprintf(buf, HUMAN_BYTES, "%" PRIu64 "%c %" PRIu64 "%c", s / large[i].s,
				 large[i].unit, s % large[i].s / large[i].part, large[i].rest);
			break;
		}
	return buf;
}

char *human_us(double us, char *buf)
{
	double ns = us * 1e3;

	return human_span(ns < (double)UINT64_MAX ? (uint64_t)(ns + .5) : UINT64_MAX, buf);
}

char *human_time(uint64_t wall, char *buf)
{
	time_t t = (time_t)(wall / NS_PER_S);
	struct tm tm;

	if (!wall || !localtime_r(&t, &tm) ||
	    !strftime(buf, HUMAN_BYTES, "%Y-%m-%d %H:%M:%S %Z", &tm))
		snprintf(buf, HUMAN_BYTES, "-");
	return buf;
}

char *human_time_utc(uint64_t wall, char *buf)
{
	time_t t = (time_t)(wall / NS_PER_S);
	struct tm tm;

	if (!gmtime_r(&t, &tm) || !strftime(buf, HUMAN_BYTES, "%Y-%m-%dT%H:%M:%SZ", &tm))
		snprintf(buf, HUMAN_BYTES, "-");
	return buf;
}

char *human_shape(uint32_t ndim, const uint64_t *shape, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	text_add(&t, "[");
	for (uint32_t d = 0; d < ndim; d++)
		text_add(&t, "%s%" PRIu64, d ? ", " : "", shape[d]);
	text_add(&t, "]");
	return buf;
}

static void set_dim(struct text *t, const struct indices *x, const uint64_t *extent)
{
	uint64_t runs = indices_runs(x), shown = 0;

	if (extent && x->total == *extent) {
		text_add(t, ":");
		return;
	}
	for (uint32_t i = 0; i < x->n; i++) {
		const struct run *r = &x->run[i];

		for (uint64_t k = 0; k < r->count; k++, shown++) {
			if (runs > RUNS_SHOWN && shown == RUNS_SHOWN - 1) {
				text_add(t, " .. %" PRIu64 ":%" PRIu64 " (%" PRIu64 " runs)",
					 indices_hi(x) - x->run[x->n - 1].len, indices_hi(x), runs);
				return;
			}
			text_add(t, "%s%" PRIu64 ":%" PRIu64, shown ? " " : "",
				 r->start + k * r->stride, r->start + k * r->stride + r->len);
		}
	}
	if (!x->n)
		text_add(t, "none");
}

char *human_set(const struct indexset *set, const uint64_t *shape, char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	text_add(&t, "[");
	for (uint32_t d = 0; d < set->ndim; d++) {
		text_add(&t, "%s", d ? ", " : "");
		set_dim(&t, &set->dim[d], shape ? &shape[d] : NULL);
	}
	text_add(&t, "]");
	return buf;
}

/* digits [. digits] in nano-units, exactly; *s is moved behind them. */
static int parse_number(const char **s, unsigned __int128 *ret_nano)
{
	const char *p = *s;
	unsigned __int128 x = 0;
	uint32_t digits = 0, places = 0;

	for (; *p >= '0' && *p <= '9'; p++, digits++) {
		x = x * 10 + (unsigned)(*p - '0');
		if (x > UINT64_MAX)
			return -ERANGE;
	}
	if (*p == '.')
		for (p++; *p >= '0' && *p <= '9'; p++, digits++)
			if (places < 9) {
				x = x * 10 + (unsigned)(*p - '0');
				places++;
			}
	for (; places < 9; places++)
		x *= 10;
	*s = p;
	*ret_nano = x;
	return digits ? 0 : -EINVAL;
}

static int unit_print(unsigned __int128 nano, uint64_t unit, uint64_t *ret)
{
	unsigned __int128 x;

	if (nano && unit > ~(unsigned __int128)0 / nano)
		return -ERANGE;
	x = nano * unit / NS_PER_S;
	if (x > UINT64_MAX)
		return -ERANGE;
	*ret = (uint64_t)x;
	return 0;
}

int human_parse_bytes(const char *s, uint64_t *ret)
{
	static const char units[] = "BKMGTPE";
	unsigned __int128 nano;
	uint32_t power = 0;
	int rc = parse_number(&s, &nano);

	if (rc)
		return rc;
	s += *s == ' ' && s[1];
	if (*s) {
		const char *u = *s == ' ' ? NULL : strchr(units, *s & ~0x20);

		if (!u)
			return -EINVAL;
		power = (uint32_t)(u - units);
		s++;
		if (power && (*s == 'i' || *s == 'I') && (s[1] & ~0x20) == 'B')
			s += 2;
		else if (power && (*s & ~0x20) == 'B')
			s++;
	}
	return *s ? -EINVAL : unit_print(nano, UINT64_C(1) << (10 * power), ret);
}

int human_parse_time(const char *s, uint64_t *ret_ns)
{
	static const struct {
		const char *unit;
		uint64_t ns;
	} unit[] = { { "", NS_PER_S },	       { "s", NS_PER_S },	 { "ms", NS_PER_MS },
		     { "m", 60 * NS_PER_S },   { "min", 60 * NS_PER_S }, { "h", 3600 * NS_PER_S },
		     { "d", 86400 * NS_PER_S } };
	unsigned __int128 nano;
	int rc = parse_number(&s, &nano);

	if (rc)
		return rc;
	s += *s == ' ' && s[1];
	for (uint32_t i = 0; i < ARRAY_LEN(unit); i++)
		if (!strcmp(s, unit[i].unit))
			return unit_print(nano, unit[i].ns, ret_ns);
	return -EINVAL;
}

uint32_t human_distance(const char *a, const char *b, uint32_t max)
{
	uint32_t row[3][DISTANCE_MAX + 1];
	size_t na = strlen(a), nb = strlen(b);

	if (na > DISTANCE_MAX || nb > DISTANCE_MAX || (na > nb ? na - nb : nb - na) > max)
		return UINT32_MAX;
	for (uint32_t j = 0; j <= nb; j++)
		row[0][j] = j;
	for (uint32_t i = 1; i <= na; i++) {
		uint32_t *cur = row[i % 3], *up = row[(i + 2) % 3], *up2 = row[(i + 1) % 3];

		cur[0] = i;
		for (uint32_t j = 1; j <= nb; j++) {
			uint32_t d = up[j - 1] + (a[i - 1] != b[j - 1]);

			d = MIN(d, up[j] + 1);
			d = MIN(d, cur[j - 1] + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
				d = MIN(d, up2[j - 2] + 1);
			cur[j] = d;
		}
	}
	return row[na % 3][nb] <= max ? row[na % 3][nb] : UINT32_MAX;
}

char *human_add(char *buf, size_t bytes, const char *sep, const char *fmt, ...)
{
	size_t len = strlen(buf);
	va_list ap;

	if (len && len < bytes)
		len += (size_t)snprintf(buf + len, bytes - len, "%s", sep);
	if (len >= bytes)
		return buf;
	va_start(ap, fmt);
	vsnprintf(buf + len, bytes - len, fmt, ap);
	va_end(ap);
	return buf;
}
