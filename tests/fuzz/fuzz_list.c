/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_list.c - the memory that the daemon's answer to LIST brings, as the library reads it: a
 * container with tensors, verdicts and texts, all of which are the daemon's, or whoever's sits on
 * its socket. What the trainer's function gets lies inside, and is what a trainer may declare.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/client/handle.h"
#include "tests/lib/sample.h"
#include "daemon/state.h"
#include "tests/fuzz/container_edits.h"
#include <sys/mman.h>

static void start(void)
{
	struct list_notes notes = { 0 };
	struct table none = { 0 };
	struct listed l;
	struct sample x;
	void *map, *bytes;
	int r = sample_make("pp=2,tp=2,fsdp=2", 3, 1, 1, &x);

	assert(!r);
	r = table_seal(&none, NULL);
	assert(!r);
	for (uint32_t i = 0; i < x.decl.ntensor / 2; i++)
		list_differs(&notes, i, i % 2 ? NULL : "it is another one");
	list_unmatched(&notes, &x.decl, &x.decl, NULL, &l);
	assert(l.set);
	r = wire_map(l.fd, l.bytes, 1, &map, NULL);
	assert(!r);
	bytes = malloc(l.bytes);
	assert(bytes);
	memcpy(bytes, map, l.bytes);
	container_start(bytes, l.bytes);
	munmap(map, l.bytes);
	listed_free(&l);
	list_notes_free(&notes);
	table_free(&none);
	sample_free(&x);
}

static int told(void *arg, const struct ckpt_tensor_info *t)
{
	uint32_t *most = arg;
	uint64_t sum = t->step + t->numel + t->fp;

	assert(t->size == sizeof *t && t->what <= CKPT_MISMATCH);
	assert(strlen(t->component) <= CKPT_NAME_MAX && strlen(t->name) <= CKPT_NAME_MAX);
	assert(strlen(t->of) < 3 * CKPT_NAME_MAX && strlen(t->text) < UINT32_MAX);
	assert(dtype_bytes(t->dtype) && t->ndim <= CKPT_DIMS_MAX && t->cls <= CKPT_SINK);
	for (uint32_t d = 0; d < t->ndim; d++)
		sum += t->shape[d];
	assert(t->blob <= 1 && (t->blob || t->rank == UINT32_MAX) && t->fp_known <= 1);
	return --*most == sum % 2 ? -ECANCELED : 0;
}

static void take(void *arg, const void *bytes, uint64_t len)
{
	(void)arg;
	for (int verdicts = 0; verdicts < 2; verdicts++) {
		struct ckpt_err err = { 0 };
		uint32_t most = 40;
		int r = list_each(bytes, len, verdicts, 7, NULL, told, &most, &err);

		assert(r == 0 || r == -ECANCELED || (r < 0 && err.code == r && err.msg[0]));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!kept)
		start();
	if (size > 0)
		container_one(data, size, take, NULL);
	return 0;
}
