/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_journal.c - what an interrupted `ckptctl convert` left behind (container_edits.h).
 * What is accepted holds together: every sum and fingerprint that it counts is there to be read,
 * and what is written of it again is the same.
 */
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "ckpt/engine/journal.h"
#include "tests/fuzz/container_edits.h"

#define WORLD 3
#define SUMS 5

static struct table all; /* place i is file i */

static void start(void)
{
	struct chunk sum[SUMS] = { 0 };
	struct journal_sum crc[2] = { { 17, 4096 }, { 0 } };
	struct journal_file file[WORLD] = {
		{ .state = JOURNAL_DONE, .bytes = 81920 },
		{ .state = JOURNAL_OPEN, .nchunk = SUMS, .fill = 77, .chunk = sum },
		{ .state = JOURNAL_NONE }
	};
	struct journal j =
		ROW(.seq = 3, .mem_limit = 64 << 20, .windows = 4, .bytes = 1000, .first = 1,
		    .batch = 2, .nfile = WORLD, .source = "0123456789abcdef", .from = "native",
		    .to = "native", .mesh = "fsdp=3", .tool = "ckptctl test", .options = "",
		    .file = file, .sum = crc, .nsum = 2);
	uint64_t len;
	void *bytes;
	int r = 0;

	for (uint32_t i = 0; i < SUMS; i++)
		sum[i] = (struct chunk){ .stored_crc = i + 1, .raw_hash = hash128(&i, sizeof i) };
	for (uint32_t i = 0; i < WORLD && !r; i++) {
		struct ckpt_errlist list = { 0 };
		struct sample x;
		uint32_t place;

		r = sample_make("fsdp=3", i, 1, 1, &x);
		r = r ? r : table_merge(&all, &x.decl, &place, &list, NULL);
		sample_free(&x);
	}
	r = r ? r : table_seal(&all, NULL);
	r = r ? r : journal_encode(&j, &all, &bytes, &len, NULL);
	assert(!r);
	container_start(bytes, len);
}

static void take(void *arg, const void *bytes, uint64_t len)
{
	struct ckpt_err err = { 0 };
	struct journal j, again;
	uint64_t sums = 0, n;
	void *p;

	(void)arg;
	if (journal_decode(bytes, len, &j, &err) < 0) {
		assert(err.code < 0 && err.msg[0] && !j.file && !j.nfile);
		return;
	}
	for (uint32_t i = 0; i < j.nfile; i++) {
		const struct journal_file *x = &j.file[i];

		assert(x->state <= JOURNAL_DONE);
		for (uint64_t k = 0; x->state == JOURNAL_OPEN && k < x->nchunk; k++)
			sums += x->chunk[k].raw_hash.b[0];
	}
	for (uint64_t i = 0; i < j.nsum; i++)
		sums += j.sum[i].crc + j.sum[i].at;
	assert(sums || !sums); /* all were read */
	assert(strlen(j.source) + strlen(j.from) + strlen(j.to) + strlen(j.mesh) + strlen(j.tool) +
		       strlen(j.options) <
	       len);
	assert(j.first <= j.nfile && j.batch);
	if (j.nfile == all.nplace && journal_prints(&j, &all, &err) == 0) {
		int r = journal_encode(&j, &all, &p, &n, NULL);

		assert(!r);
		r = journal_decode(p, n, &again, NULL);
		assert(!r && again.nprint == j.nprint && again.nfile == j.nfile &&
		       again.nsum == j.nsum && again.finished == j.finished);
		journal_free(&again);
		free(p);
	}
	journal_free(&j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!kept)
		start();
	if (size > 0)
		container_one(data, size, take, NULL);
	return 0;
}
