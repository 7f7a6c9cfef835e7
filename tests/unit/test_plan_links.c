/* SPDX-License-Identifier: Apache-2.0 */
/* test_plan_links.c - cost files: what they may say, all that is wrong at once, and back to
 * text. */
#include "tests/lib/unit.h"
#include "tests/lib/draw.h"
#include "ckpt/plan/links.h"
#include <math.h>

#define GOOD                      \
	"per_host 4\n"            \
	"memory .2us 2000GB/s\n"  \
	"host 600ns 87.7GB/s\n"   \
	"switch 2.7us 19.3GB/s\n" \
	"network 5us 10GB/s\n"    \
	"disk .1ms 3GB/s\n"

static int parse(const char *text, struct links *ret, struct ckpt_err *err)
{
	*err = (struct ckpt_err){ 0 };
	return links_parse("costs.txt", text, strlen(text), ret, err);
}

TEST(a_cost_file_says_what_each_tier_costs)
{
	struct ckpt_err err;
	struct links l;

	assert_ok_err(parse("# of one machine\r\n"
			    "  per_host\t8 # ranks\n"
			    "per_switch 2\n"
			    "\n"
			    "memory 200ns 2TB/s\n"
			    "host .6us 1GiB/s#near\n"
			    "switch 2.7e-3ms 19.3e3MB/s\n"
			    "network as torch\n"
			    "disk 1s 1B/s",
			    &l, &err),
		      &err);
	assert_int_equal(l.per_host, 8);
	assert_int_equal(l.per_switch, 2);
	assert_true(l.tier[LINKS_MEMORY].latency_us == .2);
	assert_true(l.tier[LINKS_MEMORY].bytes_per_us == 2e6);
	assert_true(l.tier[LINKS_HOST].bytes_per_us == (double)GIB / 1e6);
	assert_true(fabs(l.tier[LINKS_SWITCH].latency_us - 2.7) < 1e-12);
	assert_true(l.tier[LINKS_SWITCH].bytes_per_us == 19300);
	assert_true(l.tier[LINKS_NETWORK].latency_us == 2.7);
	assert_true(l.tier[LINKS_DISK].latency_us == 1e6);
	assert_true(l.tier[LINKS_DISK].bytes_per_us == 1e-6);
	/* 1 us and 2000 bytes at 2 bytes a us. */
	l.tier[LINKS_HOST] = (struct links_cost){ 1, 2 };
	assert_true(links_us(&l, LINKS_HOST, 2000) == 1001);
}

TEST(hosts_and_switches_are_counted_from_rank_0)
{
	struct links l = *links_preset(LINKS_DEFAULT);

	l.per_host = 4;
	l.per_switch = 2;
	assert_int_equal(links_between(&l, 3, 3), LINKS_MEMORY);
	assert_int_equal(links_between(&l, 0, 3), LINKS_HOST);
	assert_int_equal(links_between(&l, 3, 4), LINKS_SWITCH);
	assert_int_equal(links_between(&l, 7, 8), LINKS_NETWORK);
	assert_int_equal(links_between(&l, 8, 15), LINKS_SWITCH);
	l.per_switch = 0;
	assert_int_equal(links_between(&l, 0, UINT32_MAX), LINKS_SWITCH);
}

TEST(all_that_is_wrong_with_a_file_is_said_at_once)
{
	static const char *const says[] = {
		"costs.txt is no cost file",
		"line 1: expected \"per_host N\", N from 1 to 1048576",
		"line 2: \"-1us\" is no latency",
		"line 2: \"0x10GB/s\" is no bandwidth",
		"line 3: \"nan\" is no latency",
		"line 3: \"infGB/s\" is no bandwidth",
		"line 4: host is in line 3 already",
		"line 5: expected \"switch LATENCY BANDWIDTH\"",
		"line 6: there is no preset b300; the presets are h100, torch, cpu",
		"line 7: \"tape\" is none of memory, host",
		"line 8: expected \"per_switch N\"",
		"disk is missing",
	};
	struct ckpt_err err;
	struct links l;

	assert_int_equal(parse("per_host 0\n"
			       "memory -1us 0x10GB/s\n"
			       "host nan infGB/s\n"
			       "host 1us 1GB/s\n"
			       "switch 1us\n"
			       "network as b300\n"
			       "tape 1us 1GB/s\n"
			       "per_switch 1 2\n",
			       &l, &err),
			 -EINVAL);
	for (uint32_t i = 0; i < ARRAY_LEN(says); i++)
		if (!strstr(err.msg, says[i]))
			fail_msg("%s\n\nlacks: %s", err.msg, says[i]);
}

TEST(costs_that_would_overflow_are_refused)
{
	static const struct {
		const char *line, *says;
	} bad[] = {
		{ "disk 1e10us 1GB/s", "the latency 1e10us is more than 1000s" },
		{ "disk 1e400us 1GB/s", "is more than 1000s" },
		{ "disk 1us 0GB/s", "the bandwidth 0GB/s is not from 1B/s" },
		{ "disk 1us 1e-30GB/s", "is not from 1B/s" },
		{ "disk 1us 1e400GB/s", "is not from 1B/s" },
		{ "disk 1us 2e6TB/s", "to 1000000TB/s" },
		{ "disk 1us 1Gb/s", "\"1Gb/s\" is no bandwidth" },
		{ "disk 1 1GB/s", "\"1\" is no latency" },
		{ "disk 1us 1e+GB/s", "is no bandwidth" },
		{ "disk as", "expected \"disk LATENCY BANDWIDTH\"" },
		{ "disk 1us 1GB/s 2", "expected \"disk LATENCY BANDWIDTH\"" },
		{ "disk 1us 1GB/s 2 3 4", "expected \"disk LATENCY BANDWIDTH\"" },
		{ "disk .us 1GB/s", "is no latency" },
	};
	char text[512];

	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++) {
		struct ckpt_err err;
		struct links l;

		snprintf(text, sizeof text, "%.*s%s\n", (int)(strstr(GOOD, "disk") - GOOD), GOOD,
			 bad[i].line);
		assert_int_equal(parse(text, &l, &err), -EINVAL);
		if (!strstr(err.msg, bad[i].says))
			fail_msg("%s\n\nlacks: %s", err.msg, bad[i].says);
	}
}

static double figure(uint64_t *r, double most)
{
	return (double)draw_below(r, 1u << 20) / (double)(1 + draw_below(r, 1u << 20)) * most / 2e6;
}

TEST(a_file_that_was_printed_is_read_to_the_same)
{
	uint64_t r = draw_seed(__func__);

	for (uint32_t i = 0; i < 2000; i++) {
		struct links l = { .per_host = 1 + (uint32_t)draw_below(&r, 64),
				   .per_switch = (uint32_t)draw_below(&r, 3) },
			     again;
		char text[LINKS_PRINT_BYTES];
		struct ckpt_err err;

		for (uint32_t t = 0; t < LINKS_TIERS; t++)
			l.tier[t] = (struct links_cost){ figure(&r, LINKS_LATENCY_MAX),
							 1 + figure(&r, LINKS_RATE_MAX) };
		size_t len = links_print(&l, text, sizeof text);

		assert_int_equal(len, strlen(text));
		assert_ok_err(parse(text, &again, &err), &err);
		assert_memory_equal(&l, &again, sizeof l);
	}
}

TEST(every_preset_is_a_file_that_can_be_read)
{
	for (uint32_t i = 0; links_preset_name(i); i++) {
		char text[LINKS_PRINT_BYTES];
		struct ckpt_err err;
		struct links again;

		links_print(links_preset(links_preset_name(i)), text, sizeof text);
		assert_ok_err(parse(text, &again, &err), &err);
		assert_memory_equal(links_preset(links_preset_name(i)), &again, sizeof again);
	}
	assert_non_null(links_preset(LINKS_DEFAULT));
	assert_null(links_preset("H100"));
}
