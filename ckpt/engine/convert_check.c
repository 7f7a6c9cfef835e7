/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_check.c - is what a conversion made what its source holds? Called by convert.c before the
 * rename. Invariant: a fingerprint that one side does not know is compared with nothing, and
 * counted as such.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/engine/convert_impl.h"
#include "ckpt/engine/open.h"
#include "ckpt/io/io_source.h"
#include "ckpt/move/place_pieces.h"
#include <stdio.h>

/* --- fingerprints --- */

static int sets_compare(const void *va, const void *vb)
{
	const struct table_piece *a = *(const struct table_piece *const *)va,
				 *b = *(const struct table_piece *const *)vb;

	for (uint32_t d = 0; d < a->set.ndim; d++) {
		const struct indices *x = &a->set.dim[d], *y = &b->set.dim[d];
		int order;

		if (x->n != y->n)
			return x->n < y->n ? -1 : 1;
		order = memcmp(x->run, y->run, x->n * sizeof *x->run);
		if (order)
			return order;
	}
	return 0;
}

/*
 * The sum over the tensor's distinct sets, if they are as many elements as it has. -EBADMSG: two
 * pieces of the same elements differ. 1: known; 0: not; -ENOMEM.
 */
static int tensor_print(const struct table *t, uint32_t tensor, uint64_t *ret)
{
	uint32_t n = t->first[tensor + 1] - t->first[tensor];
	cleanup_free const struct table_piece **p = calloc((size_t)n + 1, sizeof *p);
	uint64_t numel = 0;

	if (!p)
		return -ENOMEM;
	*ret = 0;
	for (uint32_t i = 0; i < n; i++) {
		p[i] = &t->piece[t->first[tensor] + i];
		if (!p[i]->fp_known)
			return 0;
	}
	qsort(p, n, sizeof *p, sets_compare);
	for (uint32_t i = 0; i < n; i++) {
		if (i && !sets_compare(&p[i - 1], &p[i])) {
			if (p[i - 1]->fp != p[i]->fp && !MUTANT(COPIES_NOT_COMPARED))
				return -EBADMSG;
			continue;
		}
		*ret += p[i]->fp;
		numel += p[i]->set.numel;
	}
	return numel == t->tensor[tensor].numel;
}

static int print_check(struct convert *v, uint32_t tensor, struct ckpt_err *err)
{
	const struct table_tensor *x = &v->target->tensor[v->sheet->origin[tensor]];
	struct table_tensor *y = &v->sheet->table.tensor[tensor];
	char name[TABLE_KEY_BYTES + 32];
	uint64_t fp;
	int known = tensor_print(&v->sheet->table, tensor, &fp);

	if (known == -ENOMEM)
		return ckpt_error(err, known, "out of memory for fingerprints");
	y->fp_known = known == 1;
	y->fp = y->fp_known ? fp : 0;
	/* A cast tensor's is that of other elements. */
	if (known == 1 && x->fp_known &&
	    !passing_casts(v->sheet, &v->map, &v->c->src->ckpt->table, tensor)) {
		v->facts->nprint++;
		if (fp == x->fp)
			return 0;
	} else if (known >= 0) {
		v->facts->nmade += known == 1;
		return 0;
	}
	return ckpt_error(err, -EBADMSG,
			  "%s: what was written of it does not have the source's fingerprint",
			  table_tensor_print(x, name, sizeof name));
}

int convert_prints_check(struct convert *v, struct ckpt_err *err)
{
	int rc = 0;

	if (MUTANT(CONVERTED_NOT_COMPARED))
		return 0;
	v->facts->nprint = v->facts->nmade = 0;
	for (uint32_t i = 0; i < v->sheet->table.ntensor && !rc; i++)
		rc = print_check(v, i, err);
	return rc;
}

/* --- as its own format reads it --- */

/* Elements in pieces, each set once: files of ranks have copies, of which a reader may give one.
 * UINT64_MAX: out of memory. */
static uint64_t pieces_numel(const struct table *t, uint32_t tensor)
{
	uint32_t first = t->first[tensor], n = t->first[tensor + 1] - first;
	cleanup_free const struct table_piece **p = NULL;
	uint64_t numel = 0;

	if (n == 1)
		return t->piece[first].set.numel;
	p = calloc((size_t)n + 1, sizeof *p);
	if (!p)
		return UINT64_MAX;
	for (uint32_t i = 0; i < n; i++)
		p[i] = &t->piece[first + i];
	qsort(p, n, sizeof *p, sets_compare);
	for (uint32_t i = 0; i < n; i++)
		numel += i && !sets_compare(&p[i - 1], &p[i]) ? 0 : p[i]->set.numel;
	return numel;
}

/* The result's tensor is the sheet's. */
static bool tensor_equal(const struct convert *v, uint32_t tensor, const struct table *t,
			 uint32_t at)
{
	const struct table *s = &v->sheet->table;
	const struct table_tensor *x = &s->tensor[tensor], *y = &t->tensor[at];
	uint64_t numel = pieces_numel(s, tensor);

	return x->dtype == y->dtype && x->ndim == y->ndim && x->media == y->media &&
	       (x->flags & TENSOR_BLOB) == (y->flags & TENSOR_BLOB) &&
	       (!x->ndim || !memcmp(x->shape, y->shape, x->ndim * sizeof *x->shape)) &&
	       numel != UINT64_MAX && numel == pieces_numel(t, at) &&
	       !(x->fp_known && y->fp_known && x->fp != y->fp);
}

static int tables_compare(const struct convert *v, const struct table *t, struct ckpt_err *err)
{
	const struct table *s = &v->sheet->table;
	char name[TABLE_KEY_BYTES + 32];

	if (s->ntensor != t->ntensor)
		return ckpt_error(err, -EBADMSG, "%s holds %u tensors, not %u", publish_path(v->to),
				  t->ntensor, s->ntensor);
	for (uint32_t i = 0; i < s->ntensor; i++) {
		const struct table_tensor *x = &s->tensor[i];
		uint32_t at = table_find(t, x->component, x->name, x->rank);

		if (at == TABLE_NONE || !tensor_equal(v, i, t, at))
			return ckpt_error(
				err, -EBADMSG, "%s does not hold what the source holds: %s",
				publish_path(v->to), table_tensor_print(x, name, sizeof name));
	}
	return 0;
}

/* --- every byte again --- */

struct reread {
	struct convert *v;
	const struct table *t; /* the result's */
	uint64_t *fp;	       /* [npiece of t] */
};

static int on_window(void *arg, const struct window *w, const uint8_t *buf)
{
	struct reread *x = arg;

	for (uint32_t i = 0; i < w->ncut; i++) {
		const struct window_cut *c = &w->cut[i];
		const struct table_piece *p = &x->t->piece[c->piece];
		uint32_t elem = x->t->tensor[p->tensor].elem_bytes;
		uint64_t from = (c->dst_off - p->off) / elem;

		x->fp[c->piece] +=
			piece_fingerprint(x->t, p, from, from + c->len / elem, buf + c->buf_off);
	}
	return 0;
}

/* Its bytes are in no total. */
static int read_tick(void *arg, uint64_t done)
{
	const struct engine *e = arg;

	(void)done;
	return e->tick ? e->tick(e->arg, 0) : 0;
}

/* Each piece of the result again, against the tensors of the sheet. */
static int prints_compare(struct reread *x, struct ckpt_err *err)
{
	const struct table *s = &x->v->sheet->table;
	char name[TABLE_KEY_BYTES + 32];
	struct table again;
	int rc = table_twin(x->t, &again);

	for (uint32_t k = 0; k < x->t->npiece && !rc; k++) {
		again.piece[k].fp = x->fp[k];
		again.piece[k].fp_known = true;
	}
	for (uint32_t i = 0; i < s->ntensor && !rc; i++) {
		const struct table_tensor *y = &s->tensor[i];
		uint64_t fp;
		int known = tensor_print(&again, table_find(&again, y->component, y->name, y->rank),
					 &fp);

		if (known == -ENOMEM)
			rc = known;
		else if (y->fp_known && (known != 1 || fp != y->fp))
			rc = ckpt_error(
				err, -EBADMSG, "%s: %s is not on the disk as it was written",
				publish_path(x->v->to), table_tensor_print(y, name, sizeof name));
	}
	table_free(&again);
	return rc == -ENOMEM ? ckpt_error(err, rc, "out of memory for fingerprints") : rc;
}

static int result_read(struct convert *v, struct checkpoint *k, int dirfd, struct ckpt_err *err)
{
	struct reread x = { .v = v,
			    .t = &k->table,
			    .fp = calloc((size_t)k->table.npiece + 1, sizeof *x.fp) };
	struct move_files files;
	int rc = x.fp ? move_open(v->e->ops, dirfd, k, true, v->e->io, &files, err)
		      : ckpt_error(err, -ENOMEM, "out of memory for fingerprints");

	if (!rc) {
		rc = move_windows(&files, &k->table, v->j.mem_limit, 0, on_window, &x, read_tick,
				  (void *)(uintptr_t)v->e, err);
		move_close(&files);
	}
	if (!rc)
		rc = prints_compare(&x, err);
	free(x.fp);
	return rc;
}

int convert_result_check(struct convert *v, struct ckpt_err *err)
{
	const struct engine_subject made = { .fd = publish_fd(v->to),
					     .entry = publish_entry(v->to),
					     .path = publish_path(v->to),
					     .force = v->c->to };
	struct opened o;
	int rc;

	/* Its header is of this run, as its data are. */
	if (convert_is_part(v))
		return 0;
	rc = engine_open(v->e, &made, &o, err);
	if (!rc && !MUTANT(CONVERTED_NOT_OPENED))
		rc = tables_compare(v, &o.ckpt->table, err);
	/* What an earlier run wrote into files without checksums is read again, too. */
	if (!rc && ((v->c->check && !MUTANT(CHECK_NOT_READ)) ||
		    (v->facts->resumed && !(o.ckpt->has & HAS_SUMS) && !MUTANT(RESUMED_NOT_READ))))
		rc = result_read(v, o.ckpt, o.fd, err);
	if (!rc) {
		v->facts->stored_bytes = o.ckpt->stored_bytes;
		snprintf(v->facts->id, sizeof v->facts->id, "%s", o.ckpt->id);
	}
	engine_close(&o);
	return rc;
}
