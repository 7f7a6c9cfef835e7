/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_pages.c - the pages that a trainer and the daemon share, as the daemon reads them: the
 * trainer may write anything there. The input is laid over a job page and a rank page; then every
 * function of shared.h that the daemon calls is called as it calls them. What they return is within
 * its limits, they end, and they touch nothing outside the pages.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/wire/shared.h"

/* The input again and again would hide what little it says: what it does not reach is zero. */
static void *page(const uint8_t *data, size_t size, size_t from, size_t bytes, size_t align)
{
	uint8_t *p = aligned_alloc(align, bytes); /* exactly, so that one byte beyond is seen */

	assert(p);
	memset(p, 0, bytes);
	if (from < size)
		memcpy(p, data + from, MIN(size - from, bytes));
	return p;
}

static void gate(struct shared_job *job, uint16_t seen)
{
	struct ticket t[SHARED_PAST + 1];
	uint32_t free_mask, n;
	uint16_t was = seen;

	n = shared_gate_look(job, &seen, t, &free_mask);
	assert(n <= SHARED_PAST + 1 && free_mask < 16);
	assert(n || seen == was);
	for (uint32_t i = 0; i < n; i++) {
		assert(t[i].slot == SHARED_SKIP || t[i].slot < 7);
		assert(t[i].step >> 36 == 0);
		assert(shared_seq_cmp(t[i].seq, t[i].seq) == 0);
	}
	n = shared_gate_look(job, &seen, t, &free_mask);
	assert(n == 0); /* nothing new without a change: no loop without an end */
	for (uint32_t i = 0; i < 4; i++) {
		shared_gate_over(job, i);
		shared_gate_give(job, i);
		shared_gate_take(job, i);
	}
}

static void rank(struct shared_rank *r)
{
	uint64_t marks = atomic_load(&r->marks);
	struct shared_record rec = { 0 };
	enum snap_state state;
	static const uint8_t slot[64];
	uint64_t seq, at;

	(void)shared_copying_has(r, 3);
	for (uint64_t k = 0; k <= SHARED_SNAPS; k++) {
		struct shared_snap *s = &r->snap[(marks + k) % SHARED_SNAPS];

		if (shared_snap_read(s, &seq, &state, &rec) == 0) {
			assert(rec.nnote <= SHARED_NOTES && (int)state != SNAP_FREE);
			(void)shared_snap_guarded(r, seq, &rec);
			(void)shared_snap_closed(r, seq, &rec);
		}
		(void)shared_snap_need(s, seq);
		shared_snap_orphan(r, s, seq, k & 1, slot, sizeof slot);
		(void)shared_copy_end(r, s, marks + k, NEED_DAEMON, slot, sizeof slot, &at);
		shared_snap_drop(r, s, seq);
		assert(!shared_snap_going(s, seq));
	}
}

static void outcomes(struct shared_job *job, uint64_t step)
{
	static const uint64_t phase[3] = { 1, 2, 3 };
	struct shared_outcome o;

	(void)shared_outcome_get(job, step, &o);
	/* The trainer may have left the version odd: then nobody reads it, and nothing hangs. */
	shared_outcome_set(job, step, 1, OUTCOME_STAGED, 0, phase, "x");
	shared_outcome_set(job, step, 2, OUTCOME_FAILED, -EIO, NULL, "because");
	if (shared_outcome_get(job, step, &o))
		assert(memchr(o.text, 0, sizeof o.text) || job->next_outcome > 2);
	shared_event(job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct shared_job *job;
	struct shared_rank *r;
	uint64_t step = 0;

	if (size < 10)
		return 0;
	memcpy(&step, data, sizeof step);
	/* The words that matter lie at the beginning of the job page and all over the rank page. */
	job = page(data, size, 10, sizeof *job, _Alignof(struct shared_job));
	r = page(data, size, size / 2, sizeof *r, _Alignof(struct shared_rank));
	gate(job, (uint16_t)(data[8] | data[9] << 8));
	rank(r);
	outcomes(job, step);
	free(job);
	free(r);
	return 0;
}
