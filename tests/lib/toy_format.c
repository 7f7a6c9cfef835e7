/* SPDX-License-Identifier: Apache-2.0 */
/* toy_format.c - see toy_format.h. */
#include "tests/lib/toy_format.h"
#include <errno.h>
#include <stdio.h>

/* 75; 0: it is something else; -errno. The caller closes *ret, which was empty. */
static int toy_find(const struct source_dir *dir, struct source *ret, struct toy_head *head)
{
	int r = dir->open(dir->ctx, dir->entry ? dir->entry : TOY_FILE, ret);

	if (r)
		return r == -ENOENT || r == -EISDIR ? 0 : r;
	r = ret->bytes < sizeof *head ? 0 : ret->read(ret->ctx, head, sizeof *head, 0);
	if (!r && ret->bytes >= sizeof *head && !memcmp(head, TOY_MAGIC, sizeof head->magic))
		return 75;
	return r;
}

static int toy_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	struct source src = { 0 };
	struct toy_head head;
	int r = toy_find(dir, &src, &head);

	snprintf(looked, FORMAT_LOOKED, "no " TOY_FILE);
	source_close(&src);
	return r;
}

/* --- reading: tensors, where they lie, and what every byte of the file is --- */

static int toy_tensor(struct checkpoint *c, const struct toy_tensor *x, struct format_range *range,
		      struct ckpt_err *err)
{
	uint64_t shape[4], off = le64_get(x->off), coded = le64_get(x->coded), bytes = 0;
	uint32_t place = coded ? 1 + c->nmade : 0, crc = le32_get(x->crc);
	const struct table_place made = { x->name, 0, le64_get(x->bytes) };
	int r;

	if (!memchr(x->name, 0, sizeof x->name) || le32_get(x->ndim) > 4)
		return ckpt_error(err, -EPROTO, TOY_FILE ": a bad name or shape: %.63s", x->name);
	for (int d = 0; d < 4; d++)
		shape[d] = le64_get(x->shape[d]);
	c->made[c->nmade] = (struct format_made){ 0, MADE_DEFLATE, 0, off, coded, NULL, true, crc };
	c->nmade += coded != 0;
	r = coded ? table_add_place(&c->table, &made, NULL, err) : 0;
	r = r ? r
	      : format_tensor_add(&c->table, x->name, le32_get(x->dtype), le32_get(x->ndim), shape,
				  place, coded ? 0 : off, &bytes, err);
	*range = coded ? (struct format_range){ off, coded, 0, RANGE_DATA, SUM_NONE }
		       : (struct format_range){ off, bytes, crc, RANGE_DATA, SUM_CRC32 };
	return r == -EALREADY ? -EPROTO : r;
}

static int toy_read(struct checkpoint *c, const struct source *s, uint64_t n, struct ckpt_err *err)
{
	struct toy_tensor *rec = arena_array(&c->table.arena, n, sizeof *rec);
	struct format_range *range = arena_array(&c->table.arena, n + 1, sizeof *range);
	int r = table_add_place(&c->table, &(struct table_place){ TOY_FILE, 0, s->bytes }, NULL,
				err);

	c->made = arena_array(&c->table.arena, n, sizeof *c->made);
	if (!rec || !range || !c->made)
		return ckpt_error(err, -ENOMEM, "out of memory for " TOY_FILE);
	if (n && s->read(s->ctx, rec, n * sizeof *rec, sizeof(struct toy_head)))
		return ckpt_error(err, -EIO, TOY_FILE " cannot be read");
	for (uint64_t i = 0; i < n && !r; i++)
		r = toy_tensor(c, &rec[i], &range[i + 1], err);
	range[0] = (struct format_range){ 0, TOY_HEAD_BYTES(n), 0, RANGE_META, SUM_OPEN };
	r = r ? r : format_ranges_check(c->file, range, n + 1, err);
	return r ? r : table_seal(&c->table, err);
}

static int toy_open(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err)
{
	struct source src = { 0 };
	struct toy_head head;
	int r = toy_find(how->dir, &src, &head);

	*ret = NULL;
	if (r <= 0)
		r = ckpt_error(err, r ? r : -EPROTO, "there is no " TOY_FILE " to be read");
	else if (le64_get(head.n) > (src.bytes - sizeof head) / sizeof(struct toy_tensor))
		r = ckpt_error(err, -EPROTO, TOY_FILE " ends before its head does");
	else if (!(*ret = checkpoint_new(&format_toy, 1)))
		r = ckpt_error(err, -ENOMEM, "out of memory for " TOY_FILE);
	if (r > 0) {
		(*ret)->file->name = how->dir->entry ? how->dir->entry : TOY_FILE;
		(*ret)->stored_bytes = (*ret)->file->file_bytes = (*ret)->file->raw_bytes =
			src.bytes;
		r = toy_read(*ret, &src, le64_get(head.n), err);
	}
	source_close(&src);
	if (r)
		checkpoint_free(TAKE(*ret));
	return r;
}

/* --- writing: where tensors will lie, and the bytes that are no tensor's --- */

static bool toy_holds(const struct table *t, uint32_t tensor, char why[FORMAT_WHY])
{
	const struct table_tensor *x = &t->tensor[tensor];

	snprintf(why, FORMAT_WHY, "it has a long name, more than 4 dimensions, or is one rank's");
	return strlen(x->component) + strlen(x->name) < 63 && x->ndim <= 4 && x->rank == TABLE_NONE;
}

static int toy_sheet(const struct table *target, const struct format_want *want, struct sheet **ret,
		     struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	struct sheet *s = *ret = sheet_new(&format_toy, target->ntensor, 1, 1, target->ntensor);
	struct table_place place = { want->stem ? want->stem : TOY_FILE, 0, INT64_MAX };
	char name[2 * CKPT_NAME_MAX + 2];
	uint64_t end, bytes;
	int r = s ? table_add_place(&s->table, &place, NULL, err) : -ENOMEM;

	if (!s)
		return ckpt_error(err, r, "out of memory for " TOY_FILE);
	s->run->len = end = TOY_HEAD_BYTES(target->ntensor);
	for (uint32_t i = 0; i < target->ntensor && !r; i++, end += bytes) {
		const struct table_tensor *x = &target->tensor[i];

		r = format_tensor_add(&s->table, format_flat_name(x, want->strip, name), x->dtype,
				      x->ndim, x->shape, 0, end, &bytes, err);
		if (r == -EALREADY) {
			ckpt_errlist_add(cannot, "%s: two tensors have this name", name);
			r = -EMEDIUMTYPE;
		}
		s->origin[i] = i;
		s->sum[i] = (struct sheet_sum){ 0, end, bytes };
	}
	s->file[0] = (struct sheet_file){ .name = s->table.place->name, .bytes = end };
	s->table.place->bytes = end;
	r = r ? r : table_seal(&s->table, err);
	if (r)
		sheet_free(TAKE(*ret));
	return r;
}

static int toy_fill(const struct sheet *s, uint32_t run, const struct sheet_state *state,
		    struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		    struct ckpt_err *err)
{
	struct toy_head *head = arena_array(a, 1, s->run[run].len);
	struct toy_tensor *rec = (struct toy_tensor *)(head + 1);

	if (!head)
		return ckpt_error(err, -ENOMEM, "out of memory for " TOY_FILE);
	*head = (struct toy_head){ TOY_MAGIC, le64_of(s->table.ntensor) };
	for (uint32_t i = 0; i < s->table.ntensor; i++, rec++) {
		const struct table_tensor *x = &s->table.tensor[i];

		snprintf(rec->name, sizeof rec->name, "%s", x->name);
		rec->dtype = le32_of(x->dtype);
		rec->ndim = le32_of(x->ndim);
		for (uint32_t d = 0; d < x->ndim; d++)
			rec->shape[d] = le64_of(x->shape[d]);
		rec->off = le64_of(s->sum[i].off);
		rec->crc = le32_of(state->crc[i]);
	}
	*ret = head;
	*ret_len = s->run[run].len;
	*ret_seal = (struct hash128){ 0 };
	return 0;
}

const struct format format_toy = {
	.name = "toy",
	.about = "a format of the tests",
	.ending = ".toy",
	.probe = toy_probe,
	.open = toy_open,
	.holds = toy_holds,
	.sheet = toy_sheet,
	.fill = toy_fill,
};
