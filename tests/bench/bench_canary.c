/* SPDX-License-Identifier: Apache-2.0 */
/* bench_canary.c - see bench_canary.h. Called by bench_main.c. Invariant: places are drawn, and the
 * slot's pages touched, before the clock runs, as the helper does it; what is read has not been
 * read before. */
#include "bench_canary.h"
#include "bench_job.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

#define TENSORS 96u

static uint8_t *shared(const char *name, uint64_t bytes)
{
	struct ckpt_err e = { 0 };
	void *p;
	int fd;

	if (wire_memfd(name, bytes, &fd, &e) < 0 || wire_map(fd, bytes, 0, &p, &e) < 0)
		die("%s", e.msg);
	if (pages_populate(p, bytes) < 0)
		die("no memory for %" PRIu64 " bytes", bytes);
	(void)close(fd);
	return p;
}

void bench_canary(uint64_t bytes, uint32_t rounds, int own)
{
	static struct canary x;
	static struct sources sources;
	struct wire_row row[TENSORS];
	uint8_t *state = shared("state", bytes), *slot = shared("slot", bytes);
	struct canary_map parts = { .epoch = 1,
				    .nslot = 1,
				    .nrow = TENSORS,
				    .nsegment = 1,
				    .slot = { slot },
				    .slot_bytes = bytes,
				    .row = row,
				    .segment = &state,
				    .sources = &sources,
				    .rng = now_ns() };
	struct canary_map *m;
	struct ckpt_err e = { 0 };
	bool low;

	for (uint32_t i = 0; i < TENSORS; i++)
		row[i] = (struct wire_row){ .tensor = i,
					    .flags = own ? WIRE_ROW_CLIENT : 0,
					    .src = (own ? (uintptr_t)state : 0) +
						   bytes / TENSORS * i,
					    .dst = bytes / TENSORS * i,
					    .width = bytes / TENSORS,
					    .rows = 1 };
	if (canary_init(&x, 0) < 0 || canary_map_make(&parts, &bytes, &m) < 0 ||
	    wire_memfd("scratch", CANARY_SCRATCH, &x.scratch_fd, &e) < 0)
		die("no memory");
	canary_replace(&x, m);
	for (uint64_t i = 0; i < bytes; i += 8)
		memcpy(state + i, &i, 8);
	memcpy(slot, state, bytes);
	for (uint32_t i = 0; i < rounds; i++) {
		uint64_t t, mark, guard;

		canary_draw(m, CANARY_AHEAD, CANARY_AHEAD);
		t = now_ns();
		(void)canary_mark(&x, 1, 0, &low);
		mark = now_ns() - t;
		t = now_ns();
		if (canary_guard(&x) != CANARY_SAME)
			die("what was not changed is said to be changed");
		guard = now_ns() - t;
		printf("mark %" PRIu64 "\nguard %" PRIu64 "\n", mark, guard);
	}
	canary_destroy(&x);
	munmap(state, bytes);
	munmap(slot, bytes);
}
