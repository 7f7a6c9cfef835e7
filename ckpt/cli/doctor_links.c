/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_links.c - see doctor_links.h. Called by doctor.
 * Invariant: the file has no figure that was not measured; what is missing in it says so.
 */
#include "ckpt/cli/doctor_links.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/picture.h"
#include "ckpt/plan/links.h"

#define FILE_BYTES 4096
#define FIGURE_BYTES 40

static const char elsewhere[] = "one host cannot measure links to others";

/* What was measured of a tier; NULL: one host cannot measure it. */
static const struct host_link *link_of(const struct host_links *l, enum links_tier t)
{
	switch (t) {
	case LINKS_MEMORY:
		return &l->memory;
	case LINKS_HOST:
		return &l->socket;
	case LINKS_DISK:
		return &l->disk;
	case LINKS_SWITCH:
	case LINKS_NETWORK:
	case LINKS_TIERS:
		break;
	}
	return NULL;
}

static const char *why_not(const struct host_link *x)
{
	return x ? x->why : elsewhere;
}

/* "569 ns", "4.08 us", "4.03 ms", with what stands between number and unit. */
static char *latency_text(const struct host_link *x, const char *between, char *buf)
{
	double us = x->latency_us;
	const char *unit = us < .9995 ? "ns" : us < 999.5 ? "us" : "ms";

	snprintf(buf, FIGURE_BYTES, "%.3g%s%s",
		 us < .9995   ? us * 1e3
		 : us < 999.5 ? us
			      : us / 1e3,
		 between, unit);
	return buf;
}

static void file_text(const struct host_links *l, struct text *t)
{
	text_add(
		t, LINKS_MARK
		"# memory: a copy by one core. host: two processes through a socket; links between\n"
		"# GPUs were not measured. disk: writing to a file, and a sync.\n"
		"# What a line with MISSING names was not measured: add it, or nothing reads this file.\n"
		"# MISSING: per_host N (how many ranks share a host)\n");
	for (uint32_t i = 0; i < LINKS_TIERS; i++) {
		const struct host_link *x = link_of(l, i);
		const char *name = links_tier_name(i);
		char latency[FIGURE_BYTES];

		if (*why_not(x))
			text_add(t, "# MISSING: %s LATENCY BANDWIDTH, or %s as cpu (%s)\n", name,
				 name, why_not(x));
		else
			text_add(t, "%-8s%s %.4gGB/s\n", name, latency_text(x, "", latency),
				 x->bytes_per_us / 1e3);
	}
}

int doctor_links_write(struct cli *c, const char *dir, struct host_links *ret)
{
	const char *path = c->value[OPT_LINKS_FILE];
	struct ckpt_err err = { 0 };
	char buf[FILE_BYTES];
	struct text t = text_in(buf, sizeof buf);
	int rc;

	host_links_measure(c->ops, dir, ret);
	file_text(ret, &t);
	rc = marked_file_write(c->ops, path, LINKS_MARK, buf, t.len, &err);
	return rc ? cli_fail(c, rc, &err, "choose another FILE") : CLI_OK;
}

static char *rate_text(const struct host_link *x, char *buf)
{
	snprintf(buf, FIGURE_BYTES, "%.3g GB/s", x->bytes_per_us / 1e3);
	return buf;
}

void doctor_links_put(struct cli *c, const struct host_links *l)
{
	static const struct column col[] = {
		{ "tier", "TIER", false, FIT_WHOLE },
		{ "latency_s", NULL, true, FIT_WHOLE },
		{ NULL, "LATENCY", true, FIT_WHOLE },
		{ "bytes_per_second", NULL, true, FIT_WHOLE },
		{ NULL, "BANDWIDTH", true, FIT_WHOLE },
		{ "missing", "NOT MEASURED", false, FIT_LAST },
	};
	struct output *o = c->o;

	if (!l) {
		output_key(o, "link_costs", cell_none());
		return;
	}
	output_object(o, "link_costs");
	output_key(o, "file", cell_text(c->value[OPT_LINKS_FILE]));
	output_list(o, "tiers", col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < LINKS_TIERS; i++) {
		const struct host_link *x = link_of(l, i);
		bool known = !*why_not(x);
		char latency[FIGURE_BYTES], rate[FIGURE_BYTES];

		OUTPUT_ROW(o, col, cell_text(links_tier_name(i)),
			   known ? cell_real(x->latency_us / 1e6) : cell_none(),
			   cell_text(known ? latency_text(x, " ", latency) : "-"),
			   known ? cell_count((uint64_t)(x->bytes_per_us * 1e6)) : cell_none(),
			   cell_text(known ? rate_text(x, rate) : "-"), cell_word(why_not(x)));
	}
	output_close(o);
	output_close(o);
	cli_say(c, STYLE_DIM,
		"These are in %s. Write there what was not measured, and per_host, how many ranks "
		"share a host; then ckptctl plan --links reads it.",
		c->value[OPT_LINKS_FILE]);
}
