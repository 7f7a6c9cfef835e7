/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_safetensors.c - a directory of safetensors files: refused with a sentence and a fault, or
 * every byte of each file is in one range, and pieces lie inside of the data and make whole
 * tensors. The input is the headers, with a byte 0xff between them; the first byte says how many
 * bytes of data each file has, and whether the last text is an index.
 */
#include "tests/fuzz/fuzz.h"
#include "formats/safetensors/safetensors_format.h"
#include "tests/lib/bytedir.h"
#include <stdio.h>

static uint32_t nfault;

static void on_fault(void *arg, const struct format_fault *f)
{
	(void)arg;
	assert(f->kind && f->file && f->text && *f->text);
	nfault++;
}

static void check_files(const struct checkpoint *k)
{
	for (uint32_t i = 0; i < k->nfile; i++) {
		const struct format_file *f = &k->file[i];
		uint64_t at = 0;

		for (uint64_t n = 0; n < f->nrange; at += f->range[n++].len)
			assert(f->range[n].off == at && f->range[n].len);
		assert(at == f->file_bytes && k->table.place[i].bytes == at);
	}
}

static void check_pieces(const struct table *t, const struct checkpoint *k)
{
	struct ckpt_errlist list = { 0 };

	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const struct format_file *f = &k->file[p->place];

		assert(f->nrange == 2 && p->off >= f->range[1].off &&
		       p->off + p->len <= f->file_bytes);
		assert(p->len == p->set.numel * t->tensor[p->tensor].elem_bytes);
	}
	table_cover(t, &list);
	assert(!list.n);
	ckpt_errlist_free(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	static struct bytedir dir;
	struct source_dir d = bytedir_source(&dir, NULL);
	struct ckpt_err err = { 0 };
	struct checkpoint *k = NULL;
	char looked[FORMAT_LOOKED];
	uint32_t n = 0;
	int rc;

	if (!bytes)
		return -1;
	nfault = 0;
	for (size_t at = 1; at <= bytes && n < 8; n++) {
		const uint8_t *end = memchr(data + at, 0xff, bytes - at);
		size_t len = end ? (size_t)(end - data) - at : bytes - at;
		char name[40], *text = fuzz_text(data + at, len);

		snprintf(name, sizeof name, "f%u.safetensors", n);
		if (!end && data[0] & 0x80)
			bytedir_add(&dir, "model.safetensors.index.json", text, len);
		else if (strlen(text) == len)
			bytedir_safetensors(&dir, name, text, data[0] & 0x7f);
		free(text);
		at += len + 1;
	}
	assert(format_safetensors.probe(&d, looked) >= 0);
	rc = format_safetensors.open(&(struct format_open){ .dir = &d, .fault = on_fault }, &k,
				     &err);
	assert(!dir.nopen && (rc == 0) == (k != NULL));
	if (rc) {
		assert(rc == -EPROTO || rc == -EBADMSG || rc == -EPROTONOSUPPORT || rc == -EUCLEAN);
		assert(err.code == rc && err.msg[0] &&
		       nfault >= 1); /* of files that do not fit: one each */
	} else {
		assert(!nfault && k->table.sealed);
		check_files(k);
		check_pieces(&k->table, k);
	}
	checkpoint_free(k);
	bytedir_clear(&dir);
	return 0;
}
