/* SPDX-License-Identifier: Apache-2.0 */
/*
 * links.c - see links.h. Called by what prices redistributions and schedules, and by verbs that
 * take --links.
 * Invariant: what links_parse takes is within the limits of links.h, so no cost overflows.
 */
#include "ckpt/plan/links.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <stdio.h>
#include <strings.h>

#define WORDS_MAX 4u
#define NUMBER_BYTES 64
#define WORD_SHOWN 40 /* bytes of a wrong word in an error */

static const char *const tier_name[LINKS_TIERS] = {
	[LINKS_MEMORY] = "memory",   [LINKS_HOST] = "host", [LINKS_SWITCH] = "switch",
	[LINKS_NETWORK] = "network", [LINKS_DISK] = "disk",
};

const char *links_tier_name(enum links_tier t)
{
	return tier_name[t];
}

/* --- presets --- */

/*
 * Latencies of host and switch are those of one hop of NCCL's ring (low-latency protocol; NVLink
 * .6 us, network 2.7 us), which PyTorch's cost model uses too.
 *
 * h100: 8 GPUs of a host on NVLink 4, 450 GB/s in each direction, of which 400 are reached; a port
 *	of 400 Gb/s for each GPU, 48 GB/s reached, half of that between switches; a copy in HBM3
 *	(3.35 TB/s) reads and writes.
 * torch: the figures of PyTorch's model (torch/distributed/tensor/_collective_utils.py, 2.15):
 *	87.7 GB/s in a host, 22 % of that between hosts.
 * cpu: processes that exchange by sockets on a host, 10 Gb/s Ethernet between hosts.
 */
static const struct {
	const char *name;
	struct links links;
} presets[] = {
	{ LINKS_DEFAULT,
	  { 8, 0, { { .2, 1600e3 }, { .6, 400e3 }, { 2.7, 48e3 }, { 5, 24e3 }, { 100, 3e3 } } } },
	{ "torch",
	  { 8,
	    0,
	    { { .2, 1600e3 },
	      { .6, 87.7e3 },
	      { 2.7, 19.294e3 },
	      { 2.7, 19.294e3 },
	      { 100, 3e3 } } } },
	{ "cpu",
	  { 8, 0, { { .1, 10e3 }, { 10, 2e3 }, { 30, 1.1e3 }, { 50, 1.1e3 }, { 200, 1e3 } } } },
};

const struct links *links_preset(const char *name)
{
	for (uint32_t i = 0; i < ARRAY_LEN(presets); i++)
		if (!strcmp(presets[i].name, name))
			return &presets[i].links;
	return NULL;
}

const char *links_preset_name(uint32_t i)
{
	return i < ARRAY_LEN(presets) ? presets[i].name : NULL;
}

char *links_presets_print(char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);

	for (uint32_t i = 0; i < ARRAY_LEN(presets); i++)
		text_add(&t, "%s%s", i ? ", " : "", presets[i].name);
	return buf;
}

/* --- costs --- */

enum links_tier links_between(const struct links *l, uint32_t rank, uint32_t other)
{
	uint32_t host = rank / l->per_host, its = other / l->per_host;

	if (rank == other)
		return LINKS_MEMORY;
	if (host == its)
		return LINKS_HOST;
	return !l->per_switch || host / l->per_switch == its / l->per_switch ? LINKS_SWITCH
									     : LINKS_NETWORK;
}

double links_us(const struct links *l, enum links_tier t, double bytes)
{
	return l->tier[t].latency_us + bytes / l->tier[t].bytes_per_us;
}

/* --- words of a line --- */

struct word {
	const char *at;
	int len;
};
#define WORD_ARGS(w) MIN((w)->len, WORD_SHOWN), (w)->at

static bool word_is(const struct word *w, const char *text)
{
	return (size_t)w->len == strlen(text) && !memcmp(w->at, text, (size_t)w->len);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* The words before a '#'; UINT32_MAX: more than WORDS_MAX. */
static uint32_t words_of(const char *line, size_t len, struct word ret[WORDS_MAX])
{
	uint32_t n = 0;

	for (size_t i = 0; i < len && line[i] != '#';) {
		size_t end = i;

		while (end < len && !is_blank(line[end]) && line[end] != '#')
			end++;
		if (end > i && n == WORDS_MAX)
			return UINT32_MAX;
		if (end > i)
			ret[n++] = (struct word){ line + i, (int)MIN(end - i, (size_t)INT32_MAX) };
		i = end + (end < len && line[end] != '#');
	}
	return n;
}

struct unit {
	const char *name;
	double times, over; /* number * times / over: powers of ten stay exact */
};

static const struct unit latency_unit[] = {
	{ "ns", 1, 1e3 }, { "us", 1, 1 }, { "ms", 1e3, 1 }, { "s", 1e6, 1 }, { NULL, 0, 0 }
};
static const struct unit rate_unit[] = {
	{ "B/s", 1, 1e6 },
	{ "kB/s", 1, 1e3 },
	{ "KB/s", 1, 1e3 },
	{ "MB/s", 1, 1 },
	{ "GB/s", 1e3, 1 },
	{ "TB/s", 1e6, 1 },
	{ "KiB/s", 1024, 1e6 },
	{ "MiB/s", (double)MIB, 1e6 },
	{ "GiB/s", (double)GIB, 1e6 },
	{ "TiB/s", (double)GIB * 1024, 1e6 },
	{ NULL, 0, 0 },
};

/* Digits with a point and an exponent, then a unit. What strtod takes besides (nan, inf,
 * hexadecimal numbers, signs in front) is no number here. */
static bool number_read(const struct word *w, const struct unit *unit, double *ret)
{
	char text[NUMBER_BYTES], *end;
	struct word rest;

	if (w->len >= NUMBER_BYTES)
		return false;
	memcpy(text, w->at, (size_t)w->len);
	text[w->len] = 0;
	if (strspn(text, ".0123456789") == 0 || !strncasecmp(text, "0x", 2))
		return false;
	*ret = strtod(text, &end);
	rest = (struct word){ end, (int)strlen(end) };
	for (; unit->name; unit++)
		if (end > text && word_is(&rest, unit->name)) {
			*ret = *ret * unit->times / unit->over;
			return true;
		}
	return false;
}

/* --- the file --- */

struct reading {
	const char *label;
	uint32_t line;
	uint32_t seen; /* a bit for each tier; for per_host and per_switch behind them */
	uint32_t at[LINKS_TIERS + 2]; /* the lines */
	struct links *links;
	struct ckpt_errlist list;
};
enum { SEEN_PER_HOST = LINKS_TIERS, SEEN_PER_SWITCH };

static bool seen_once(struct reading *r, const struct word *w, uint32_t what)
{
	bool first = !(r->seen >> what & 1);

	if (first)
		r->at[what] = r->line;
	else
		ckpt_errlist_add(&r->list, "line %u: %.*s is in line %u already", r->line,
				 WORD_ARGS(w), r->at[what]);
	r->seen |= 1u << what;
	return first;
}

static void count_line(struct reading *r, const struct word *w, uint32_t n, uint32_t *ret)
{
	uint64_t x = 0;
	int i = 0;

	for (; n == 2 && i < w[1].len && w[1].at[i] >= '0' && w[1].at[i] <= '9'; i++)
		x = MIN(x * 10 + (uint64_t)(w[1].at[i] - '0'), (uint64_t)UINT32_MAX);
	if (n != 2 || i < w[1].len || x < 1 || x > LINKS_RANKS_MAX)
		ckpt_errlist_add(&r->list, "line %u: expected \"%.*s N\", N from 1 to %u", r->line,
				 WORD_ARGS(w), LINKS_RANKS_MAX);
	else
		*ret = (uint32_t)x;
}

static void figures_line(struct reading *r, const struct word *w, struct links_cost *ret)
{
	struct links_cost x;

	if (!number_read(&w[1], latency_unit, &x.latency_us))
		ckpt_errlist_add(&r->list,
				 "line %u: \"%.*s\" is no latency: write a number of at least 0 "
				 "with ns, us, ms or s, as in .6us",
				 r->line, WORD_ARGS(&w[1]));
	else if (!(x.latency_us <= LINKS_LATENCY_MAX))
		ckpt_errlist_add(&r->list, "line %u: the latency %.*s is more than %.0fs", r->line,
				 WORD_ARGS(&w[1]), LINKS_LATENCY_MAX / 1e6);
	else
		ret->latency_us = x.latency_us;
	if (!number_read(&w[2], rate_unit, &x.bytes_per_us))
		ckpt_errlist_add(
			&r->list,
			"line %u: \"%.*s\" is no bandwidth: write a number of more than 0 with "
			"B/s, kB/s, MB/s, GB/s, TB/s, KiB/s, MiB/s, GiB/s or TiB/s, as in 87.7GB/s",
			r->line, WORD_ARGS(&w[2]));
	else if (!(x.bytes_per_us >= LINKS_RATE_MIN && x.bytes_per_us <= LINKS_RATE_MAX))
		ckpt_errlist_add(&r->list,
				 "line %u: the bandwidth %.*s is not from 1B/s to %.0fTB/s",
				 r->line, WORD_ARGS(&w[2]), LINKS_RATE_MAX / 1e6);
	else
		ret->bytes_per_us = x.bytes_per_us;
}

static void tier_line(struct reading *r, const struct word *w, uint32_t n, uint32_t tier)
{
	char name[WORD_SHOWN + 1], all[128];
	const struct links *preset;

	if (n != 3) {
		ckpt_errlist_add(&r->list,
				 "line %u: expected \"%s LATENCY BANDWIDTH\", or \"%s as PRESET\"",
				 r->line, tier_name[tier], tier_name[tier]);
		return;
	}
	if (!word_is(&w[1], "as")) {
		figures_line(r, w, &r->links->tier[tier]);
		return;
	}
	snprintf(name, sizeof name, "%.*s", WORD_ARGS(&w[2]));
	preset = links_preset(name);
	if (preset)
		r->links->tier[tier] = preset->tier[tier];
	else
		ckpt_errlist_add(&r->list, "line %u: there is no preset %s; the presets are %s",
				 r->line, name, links_presets_print(all, sizeof all));
}

static void file_line(struct reading *r, const char *line, size_t len)
{
	struct word w[WORDS_MAX];
	uint32_t n = words_of(line, len, w), tier = 0;

	if (!n)
		return;
	while (tier < LINKS_TIERS && !word_is(&w[0], tier_name[tier]))
		tier++;
	if (tier < LINKS_TIERS) {
		if (seen_once(r, &w[0], tier))
			tier_line(r, w, n, tier);
	} else if (word_is(&w[0], "per_host")) {
		if (seen_once(r, &w[0], SEEN_PER_HOST))
			count_line(r, w, n, &r->links->per_host);
	} else if (word_is(&w[0], "per_switch")) {
		if (seen_once(r, &w[0], SEEN_PER_SWITCH))
			count_line(r, w, n, &r->links->per_switch);
	} else {
		ckpt_errlist_add(
			&r->list,
			"line %u: \"%.*s\" is none of memory, host, switch, network, disk, "
			"per_host, per_switch",
			r->line, WORD_ARGS(&w[0]));
	}
}

int links_parse(const char *label, const char *text, size_t len, struct links *ret,
		struct ckpt_err *err)
{
	struct reading r = { .label = label, .links = ret, .list = { .code = -EINVAL } };
	int rc;

	*ret = (struct links){ 0 };
	for (size_t at = 0; at < len;) {
		const char *end = memchr(text + at, '\n', len - at);
		size_t n = end ? (size_t)(end - text) - at : len - at;

		r.line++;
		file_line(&r, text + at, n);
		at += n + 1;
	}
	if (!(r.seen >> SEEN_PER_HOST & 1))
		ckpt_errlist_add(&r.list, "per_host is missing: write \"per_host N\"");
	for (uint32_t t = 0; t < LINKS_TIERS; t++)
		if (!(r.seen >> t & 1))
			ckpt_errlist_add(
				&r.list,
				"%s is missing: write \"%s LATENCY BANDWIDTH\", or \"%s as " LINKS_DEFAULT
				"\"",
				tier_name[t], tier_name[t], tier_name[t]);
	rc = ckpt_errlist_end(&r.list, err, "%s is no cost file", label);
	ckpt_errlist_free(&r.list);
	return rc;
}

/* --- back to text --- */

/* x / times in as few digits as give x when they are read and multiplied; false: there are none. */
static bool number_print(double x, double times, char buf[static NUMBER_BYTES])
{
	for (int digits = 1; digits <= 17; digits++) {
		snprintf(buf, NUMBER_BYTES, "%.*g", digits, x / times);
		if (strtod(buf, NULL) * times == x)
			return true;
	}
	return false;
}

size_t links_print(const struct links *l, char *buf, size_t bytes)
{
	char text[LINKS_PRINT_BYTES], lat[NUMBER_BYTES], rate[NUMBER_BYTES];
	struct text t = text_in(text, sizeof text);

	text_add(&t, "per_host %u\n", l->per_host);
	if (l->per_switch)
		text_add(&t, "per_switch %u\n", l->per_switch);
	for (uint32_t i = 0; i < LINKS_TIERS; i++) {
		const struct links_cost *x = &l->tier[i];
		bool giga = number_print(x->bytes_per_us, 1e3, rate);

		if (!giga)
			number_print(x->bytes_per_us, 1, rate);
		number_print(x->latency_us, 1, lat);
		text_add(&t, "%-8s%sus %s%s\n", tier_name[i], lat, rate, giga ? "GB/s" : "MB/s");
	}
	assert(t.len < sizeof text);
	return (size_t)snprintf(buf, bytes, "%s", text);
}
