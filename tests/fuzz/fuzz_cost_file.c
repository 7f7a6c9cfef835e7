/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_cost_file.c - links_parse: any text is costs whose figures are finite and within the limits,
 * and which print as a text that means the same; or an error with a sentence.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/plan/links.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	char text[LINKS_PRINT_BYTES];
	struct ckpt_err err = { 0 };
	struct links l, again;

	if (links_parse("f", (const char *)data, bytes, &l, &err)) {
		assert(err.code == -EINVAL && err.msg[0] != '\0');
		return 0;
	}
	assert(l.per_host >= 1 && l.per_host <= LINKS_RANKS_MAX);
	for (uint32_t t = 0; t < LINKS_TIERS; t++) {
		assert(l.tier[t].latency_us >= 0 && l.tier[t].latency_us <= LINKS_LATENCY_MAX);
		assert(l.tier[t].bytes_per_us >= LINKS_RATE_MIN);
		assert(l.tier[t].bytes_per_us <= LINKS_RATE_MAX);
	}
	assert(links_print(&l, text, sizeof text) < sizeof text);
	assert(links_parse("again", text, strlen(text), &again, &err) == 0);
	assert(memcmp(&l, &again, sizeof l) == 0);
	return 0;
}
