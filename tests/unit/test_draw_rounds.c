/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_draw_rounds.c - rounds of schedules drawn: each link's line, compared with the rounds and
 * ranks of the schedule itself.
 */
#include "ckpt/base/error.h"
#include "ckpt/draw/rounds_draw.h"
#include "tests/lib/onto.h"
#include "tests/lib/unit.h"

struct rig {
	struct table src, dst;
	struct links links;
	struct schedule *s;
	struct schedule_total total;
	struct rounds *r;
};

static void rig_make(struct rig *g, const struct onto_case *c, uint32_t per_host,
		     uint64_t round_bytes)
{
	struct schedule_opts opts = { .who = HOLDERS_ONE,
				      .round_bytes = round_bytes,
				      .message_bytes = 192 };
	struct ckpt_err err = { 0 };

	*g = (struct rig){ .links = *links_preset(LINKS_DEFAULT) };
	g->links.per_host = per_host;
	opts.links = &g->links;
	assert_ok(onto_make(c, false, &g->src, NULL));
	assert_ok(onto_make(c, true, &g->dst, NULL));
	assert_ok_err(schedule_open(&g->src, &g->dst, &opts, &g->s, &err), &err);
	assert_ok_err(schedule_total(g->s, &g->links, NULL, NULL, &g->total, &err), &err);
	assert_ok_err(rounds_make(g->s, &g->links, &g->total, &g->r, &err), &err);
}

static void rig_free(struct rig *g)
{
	rounds_free(g->r);
	schedule_total_free(&g->total);
	schedule_close(g->s);
	table_free(&g->src);
	table_free(&g->dst);
}

static char *text_of(const struct rounds *r, const struct screen *s)
{
	char *text = NULL;
	size_t len;
	FILE *f = open_memstream(&text, &len);

	rounds_print(r, f, s);
	fclose(f);
	return text;
}

static const struct onto_case uneven = { "uneven",
					 "dp=2,fsdp=3",
					 "fsdp=4",
					 2,
					 2,
					 { { "w", { 64, 32 }, "Shard(0)@fsdp", "Shard(1)@fsdp" },
					   { "b", { 50 }, "Shard(0)@fsdp", "Shard(0)@fsdp" } } };

/* Behind the name of a link's line: a character a round, and the bytes. */
static const char *line_of(const char *text, const struct schedule_link *l)
{
	char name[64];
	const char *at;

	snprintf(name, sizeof name, "%s r%u %s ", links_tier_name(l->tier), l->rank,
		 l->sends ? "sends" : "receives");
	at = strstr(text, name);
	if (!at)
		fail_msg("no \"%s\" in:\n%s", name, text);
	return at + strlen(name);
}

TEST(the_slowest_link_is_busy_all_of_its_round_and_the_others_as_long_as_they_have_bytes)
{
	static const struct screen wide = { .width = 120 };
	struct rig g;
	cleanup_free char *text = NULL;

	rig_make(&g, &uneven, 2, 300);
	text = text_of(g.r, &wide);
	assert_true(g.total.rounds > 3 && g.total.rounds <= ROUNDS_COLUMNS);
	for (uint64_t i = 0; i < g.total.rounds; i++)
		assert_int_equal(line_of(text, &g.total.round[i].slowest)[i], '#');
	for (uint32_t rank = 0; rank < 6; rank++) {
		struct schedule_part p;
		struct ckpt_err err;

		assert_ok_err(schedule_part(g.s, rank, &p, &err), &err);
		for (uint32_t tier = LINKS_HOST; tier <= LINKS_NETWORK; tier++) {
			struct schedule_link l = { .rank = rank, .tier = tier, .sends = true };
			char want[64];

			for (uint32_t i = 0; i < p.nout; i++)
				l.bytes += p.out[i].tier == tier ? p.out[i].bytes : 0;
			if (!l.bytes)
				continue;
			snprintf(want, sizeof want, " %llu B\n", (unsigned long long)l.bytes);
			if (l.bytes < 1024)
				assert_int_equal(strncmp(line_of(text, &l) + g.total.rounds, want,
							 strlen(want)),
						 0);
		}
		schedule_part_free(&p);
	}
	rig_free(&g);
}

/* Whatever the numbers: the narrowest screen, and one that shows all. */
TEST(many_ranks_and_rounds_are_put_together_and_fit)
{
	static const struct onto_case many = {
		"many", "fsdp=96", "fsdp=64",
		1,	1,	   { { "w", { 3840, 512 }, "Shard(0)@fsdp", "Shard(1)@fsdp" } }
	};
	static const struct screen screens[] = { { .width = 40 },
						 { .width = 80, .unicode = true } };
	struct rig g;

	rig_make(&g, &many, 8, 256);
	assert_true(g.total.rounds > 2 * ROUNDS_COLUMNS);
	for (size_t i = 0; i < ARRAY_LEN(screens); i++) {
		cleanup_free char *text = text_of(g.r, &screens[i]);
		uint32_t lines = 0;

		assert_non_null(strstr(text, "a column is "));
		for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"), lines++)
			if (screen_columns(line) > screens[i].width)
				fail_msg("%s", line);
		assert_true(lines < 34);
	}
	rig_free(&g);
}

TEST(a_picture_has_each_link_and_its_height)
{
	cleanup_free char *svg = NULL;
	size_t len;
	FILE *f = open_memstream(&svg, &len);
	double height, y, lowest = 0;
	struct rig g;

	rig_make(&g, &uneven, 2, 300);
	rounds_svg(g.r, f, 100);
	fclose(f);
	height = rounds_svg_height(g.r);
	for (const char *at = svg; (at = strstr(at, " y=\"")); at++) {
		y = strtod(at + 4, NULL);
		lowest = MAX(lowest, y);
	}
	assert_true(lowest > 100 && lowest <= 100 + height);
	assert_non_null(strstr(svg, "busy for 100 % of it"));
	assert_null(strstr(svg, "nan"));
	rig_free(&g);
}
