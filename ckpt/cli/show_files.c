/* SPDX-License-Identifier: Apache-2.0 */
/*
 * show_files.c - show --files: every file of a checkpoint, and what its bytes are for. Called by
 * verb_show.c.
 * Invariant: data, padding and metadata of a row are its size; the last line is the sum of the
 * rows.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/file_account.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/show.h"

#define OTHERS_MAX 1024 /* files without data that are listed, and in the sum */

static const struct column col[] = {
	{ "file", "FILE", false, FIT_LAST },
	{ "rank", "RANK", true, FIT_WHOLE },
	{ "bytes", "SIZE", true, FIT_WHOLE },
	{ "data_bytes", "DATA", true, FIT_WHOLE },
	{ "padding_bytes", "PADDING", true, FIT_WHOLE },
	{ "metadata_bytes", "METADATA", true, FIT_WHOLE },
	{ "piece_count", "PIECES", true, FIT_WHOLE },
	{ "tensor_count", NULL, true, FIT_WHOLE },
	{ "raw_bytes", NULL, true, FIT_WHOLE },
	{ "hole_bytes", NULL, true, FIT_WHOLE },
	{ NULL, "HOLES", true, FIT_DROP },
};

struct other {
	char name[256];
	uint64_t bytes;
};

struct others {
	const struct subject *s;
	struct other *file;
	uint32_t n;
};

static bool is_data_file(const struct checkpoint *k, const char *name)
{
	for (uint32_t i = 0; i < k->nfile; i++)
		if (!strcmp(k->file[i].name, name))
			return true;
	return false;
}

static int take_other(void *arg, const char *name, enum source_kind kind)
{
	struct others *o = arg;
	struct source src = { 0 };
	int rc;

	if (kind != SOURCE_FILE || o->n == OTHERS_MAX || strlen(name) >= sizeof o->file->name ||
	    is_data_file(o->s->ckpt, name))
		return 0;
	rc = o->s->o.dir.open(o->s->o.dir.ctx, name, &src);
	if (rc == -ENOENT || rc == -EACCES || rc == -EPERM || rc == -ELOOP || rc == -EISDIR ||
	    rc == -EINVAL)
		return 0; /* removed, of another user, or no file: no part of it */
	if (rc)
		return rc;
	strcpy(o->file[o->n].name, name);
	o->file[o->n++].bytes = src.bytes;
	if (src.close)
		src.close(src.ctx);
	return 0;
}

static int other_compare(const void *a, const void *b)
{
	const struct other *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static void put_row(struct output *o, const char *name, uint32_t rank, uint64_t bytes, uint64_t raw,
		    const struct file_account *a)
{
	char holes[HUMAN_BYTES] = "";

	if (a->hole_bytes)
		human_bytes(a->hole_bytes, holes);
	OUTPUT_ROW(o, col, cell_text(name), cell_unless(CELL_NUMBER, rank, TABLE_NONE),
		   cell_bytes(bytes), cell_bytes(a->data), cell_bytes(a->padding),
		   cell_bytes(a->metadata), cell_count(a->pieces), cell_count(a->tensors),
		   cell_bytes(raw), cell_bytes(a->hole_bytes), cell_text(holes));
}

static void put_sum(struct cli *c, uint64_t files, uint64_t bytes, const struct file_account *sum)
{
	char b[4][HUMAN_BYTES], holes[HUMAN_BYTES + 32] = "";
	double all = bytes ? (double)bytes : 1;
	struct output *o = c->o;

	output_object(o, "total");
	output_key(o, "file_count", cell_count(files));
	output_key(o, "bytes", cell_bytes(bytes));
	output_key(o, "data_bytes", cell_bytes(sum->data));
	output_key(o, "padding_bytes", cell_bytes(sum->padding));
	output_key(o, "metadata_bytes", cell_bytes(sum->metadata));
	output_key(o, "hole_bytes", cell_bytes(sum->hole_bytes));
	output_close(o);
	if (sum->hole_bytes)
		snprintf(holes, sizeof holes, "; holes, not stored: %s",
			 human_bytes(sum->hole_bytes, b[0]));
	cli_say(c, STYLE_PLAIN,
		"%s file%s, %s: data %s (%.1f %%), padding %s (%.1f %%), metadata %s (%.1f %%)%s",
		COUNT_TEXT(files), files == 1 ? "" : "s", human_bytes(bytes, b[0]),
		human_bytes(sum->data, b[1]), (double)sum->data / all * 100,
		human_bytes(sum->padding, b[2]), (double)sum->padding / all * 100,
		human_bytes(sum->metadata, b[3]), (double)sum->metadata / all * 100, holes);
}

static void put_files(struct cli *c, const struct subject *s, const struct file_account *a,
		      const struct others *others)
{
	const struct checkpoint *k = s->ckpt;
	struct file_account sum = { 0 };
	char title[SUBJECT_TITLE];
	uint64_t bytes = 0;

	output_begin(c->o, "ckptd.show/1");
	cli_say(c, STYLE_STRONG, "files of %s", subject_title(k, s->ref.path, title));
	subject_put(c->o, s->ref.path, k);
	output_list(c->o, "files", col, ARRAY_LEN(col));
	for (uint32_t i = 0; i < k->nfile; i++) {
		put_row(c->o, k->file[i].name, k->file[i].rank, k->file[i].file_bytes,
			k->file[i].raw_bytes, &a[i]);
		bytes += k->file[i].file_bytes;
		sum.data += a[i].data;
		sum.padding += a[i].padding;
		sum.metadata += a[i].metadata;
		sum.hole_bytes += a[i].hole_bytes;
	}
	for (uint32_t i = 0; i < others->n; i++) {
		struct file_account all = { .metadata = others->file[i].bytes };

		put_row(c->o, others->file[i].name, TABLE_NONE, all.metadata, 0, &all);
		bytes += all.metadata;
		sum.metadata += all.metadata;
	}
	output_close(c->o);
	put_sum(c, (uint64_t)k->nfile + others->n, bytes, &sum);
	output_end(c->o);
}

int show_files(struct cli *c, const struct subject *s)
{
	struct others others = { .s = s };
	cleanup_free struct file_account *a = NULL;
	struct ckpt_err err = { 0 };
	uint64_t rest;
	int rc = file_account_make(s->ckpt, &a, &rest);

	others.file = calloc(OTHERS_MAX, sizeof *others.file);
	if (rc || !others.file) {
		free(others.file);
		return cli_fail(c, -ENOMEM, NULL, NULL);
	}
	rc = s->o.dir.list(s->o.dir.ctx, "", take_other, &others);
	qsort(others.file, others.n, sizeof *others.file, other_compare);
	if (!rc)
		put_files(c, s, a, &others);
	free(others.file);
	if (rc)
		ckpt_error(&err, rc, "the files of %.200s cannot be listed: %s", s->ref.path,
			   strerror(-rc));
	return rc ? cli_fail(c, rc, &err, NULL) : CLI_OK;
}
