/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_resume.c - the journals of a conversion: written, and taken up again. Called by
 * convert.c. Invariant: of an earlier run nothing is believed but what the newest journal with a
 * right hash says, and that only if it is of the same conversion of the same source.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/engine/convert_impl.h"
#include "ckpt/io/io_source.h"
#include "ckpt/layout/human.h"

int convert_journal_put(struct convert *v, struct ckpt_err *err)
{
	cleanup_free void *bytes = NULL;
	uint64_t len;
	int rc;

	v->j.seq++;
	rc = journal_encode(&v->j, &v->sheet->table, &bytes, &len, err);
	if (!rc)
		rc = publish_note(v->to, (uint32_t)(v->j.seq % PUBLISH_JOURNALS), bytes, len, err);
	if (rc)
		return rc;
	v->saved_bytes = v->j.bytes;
	v->saved_finished = v->j.finished;
	return 0;
}

/* --- an earlier run's --- */

struct earlier {
	struct journal j;
	void *bytes; /* NULL: there is none */
};

static void earlier_free(struct earlier *x)
{
	journal_free(&x->j);
	free(TAKE(x->bytes));
}

/* The newest journal that is complete. */
static int earlier_find(struct convert *v, struct earlier *ret, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < PUBLISH_JOURNALS; i++) {
		struct earlier x = { 0 };
		uint64_t len;
		int rc = publish_journal(v->to, i, JOURNAL_BYTES_MAX, &x.bytes, &len, err);

		if (rc == -ENOENT)
			continue;
		if (rc)
			return rc;
		rc = journal_decode(x.bytes, len, &x.j, NULL);
		if (rc == -ENOMEM) {
			free(x.bytes);
			return ckpt_error(err, rc, "out of memory for the journal of a conversion");
		}
		if (rc || (ret->bytes && x.j.seq < ret->j.seq)) {
			earlier_free(&x);
			continue;
		}
		earlier_free(ret);
		*ret = x;
	}
	return 0;
}

static void words_compare(const struct convert *v, const struct journal *was,
			  struct ckpt_errlist *l)
{
	const struct journal *is = &v->j;

	if (strcmp(was->source, is->source))
		ckpt_errlist_add(l, "of another checkpoint: %s, not %s", was->source, is->source);
	if (strcmp(was->from, is->from))
		ckpt_errlist_add(l, "of a checkpoint in the format %s, not %s", was->from,
				 is->from);
	if (strcmp(was->to, is->to))
		ckpt_errlist_add(l, "to the format %s, not %s", was->to, is->to);
	if (strcmp(was->mesh, is->mesh))
		ckpt_errlist_add(l, "onto the mesh %s, not %s", was->mesh, is->mesh);
	if (strcmp(was->tool, is->tool))
		ckpt_errlist_add(l, "by %s, not %s", was->tool, is->tool);
	if (strcmp(was->options, is->options))
		ckpt_errlist_add(l, "with %s, not with %s",
				 *was->options ? was->options : "no further options",
				 *is->options ? is->options : "no further options");
}

static int earlier_check(struct convert *v, const struct journal *was, struct ckpt_err *err)
{
	struct ckpt_errlist l = { .code = -EINVAL };
	char had[HUMAN_BYTES], has[HUMAN_BYTES];
	int rc;

	words_compare(v, was, &l);
	if (!l.n && memcmp(was->uuid, v->j.uuid, sizeof was->uuid) != 0 &&
	    !MUTANT(JOURNAL_OF_ANOTHER)) {
		if (v->c->src->ckpt->has & HAS_SUMS)
			ckpt_errlist_add(&l, "with other placements (--layout)");
		else
			ckpt_errlist_add(&l,
					 "of %s as it was then: its files have changed since, or "
					 "the placements (--layout) are others",
					 v->j.source);
	} else if (!l.n && was->nfile != v->j.nfile) {
		ckpt_errlist_add(&l, "into %u files, not %u", was->nfile, v->j.nfile);
	}
	if (!l.n && was->mem_limit > v->j.mem_limit)
		ckpt_errlist_add(&l, "with more memory, %s, and this run has %s: --mem-limit %llu",
				 human_bytes(was->mem_limit, had), human_bytes(v->j.mem_limit, has),
				 (unsigned long long)was->mem_limit);
	rc = ckpt_errlist_end(
		&l, err,
		"%s holds another conversion, which is not finished; run that one again, or remove "
		"it. It is",
		publish_path(v->to));
	ckpt_errlist_free(&l);
	return rc;
}

static int file_bytes(const struct source_dir *d, const char *name, uint64_t *ret)
{
	struct source f;
	int rc = d->open(d->ctx, name, &f);

	if (rc)
		return rc;
	*ret = f.bytes;
	if (f.close)
		f.close(f.ctx);
	return 0;
}

/* Are the files that are begun or done still there, and as long as they were? */
static int files_check(struct convert *v, const struct journal *was)
{
	struct source_dir d;
	int rc = publish_source(v->to, &d);

	if (rc)
		return rc;
	for (uint32_t i = 0; i < v->sheet->nfile && !rc; i++) {
		const struct journal_file *f = &was->file[i];
		uint64_t bytes;

		if (f->state == JOURNAL_NONE)
			continue;
		rc = file_bytes(&d, v->c->file ? d.entry : v->sheet->file[i].name, &bytes);
		if (!rc && f->state == JOURNAL_DONE && bytes != f->bytes)
			rc = -EBADMSG;
	}
	source_end(&d);
	return rc;
}

static int earlier_use(struct convert *v, const struct journal *was, struct ckpt_err *err)
{
	int rc = was->nsum == v->j.nsum ? journal_prints(was, &v->sheet->table, err) : -EBADMSG;

	if (rc)
		return rc;
	if (!MUTANT(JOURNAL_SUMS_LOST))
		memcpy(v->j.sum, was->sum, v->j.nsum * sizeof *v->j.sum);
	v->j.mem_limit = was->mem_limit;
	v->j.batch = v->facts->batch = was->batch;
	v->j.first = was->first;
	v->j.windows = was->windows;
	v->j.finished = v->saved_finished = was->finished;
	v->j.bytes = v->facts->before = v->saved_bytes = was->bytes;
	memcpy(v->j.file, was->file, v->j.nfile * sizeof *v->j.file);
	for (uint32_t i = 0; i < v->j.nfile; i++)
		v->done[i] = (struct sheet_done){ .bytes = was->file[i].bytes,
						  .data_end = was->file[i].data_end,
						  .seal = was->file[i].seal };
	return 0;
}

int convert_take_up(struct convert *v, struct ckpt_err *err)
{
	struct earlier x = { 0 };
	int rc = earlier_find(v, &x, err);

	if (!rc && x.bytes && (x.j.bytes || x.j.finished)) {
		rc = earlier_check(v, &x.j, err);
		if (!rc && (MUTANT(JOURNAL_PARTS_TRUSTED) || !files_check(v, &x.j)) &&
		    !earlier_use(v, &x.j, NULL))
			rc = 1;
	}
	if (rc >= 0 && x.bytes)
		v->j.seq = x.j.seq;
	if (rc == 1) {
		/* What the journal points to lives on with it. */
		v->earlier = x.j;
		v->earlier_bytes = TAKE(x.bytes);
		return 1;
	}
	earlier_free(&x);
	return rc;
}
