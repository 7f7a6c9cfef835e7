/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verify_units.c - see verify_units.h. Called by move_verify. Invariant: every byte that is to be
 * read is in exactly one unit, or belongs to the unit behind it or to the last one.
 */
#include "ckpt/move/verify_units.h"
#include "ckpt/base/util.h"
#include "ckpt/move/chunk_check.h"

#define CELL_BYTES ((uint64_t)1 << CHUNK_PLAIN_LOG2)

const struct format_range *file_ranges(const struct format_file *f, struct format_range *one,
				       uint64_t *ret_n)
{
	*ret_n = f->nrange ? f->nrange : f->file_bytes > 0;
	if (f->nrange)
		return f->range;
	*one = (struct format_range){ .len = f->file_bytes, .kind = RANGE_DATA, .sum = SUM_NONE };
	return one;
}

bool move_reads(const struct format_range *r)
{
	return r->sum == SUM_CRC32 ||
	       ((r->kind == RANGE_DATA || r->kind == RANGE_ZERO) && r->sum != SUM_OPEN);
}

uint64_t ranges_from(const struct format_range *range, uint64_t n, uint64_t at)
{
	uint64_t from = 0, to = n;

	while (from < to) {
		uint64_t mid = from + (to - from) / 2;

		if (range[mid].off + range[mid].len <= at)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

uint64_t file_read_bytes(const struct format_file *f, uint64_t from, uint64_t to,
			 uint64_t *ret_zero)
{
	struct format_range one;
	uint64_t n, sum = 0, zero = 0;
	const struct format_range *r = file_ranges(f, &one, &n);

	for (uint64_t i = ranges_from(r, n, from); i < n && r[i].off < to; i++) {
		uint64_t len = MIN(to, r[i].off + r[i].len) - MAX(from, r[i].off);

		if (!move_reads(&r[i]))
			continue;
		sum += len;
		zero += r[i].kind == RANGE_ZERO ? len : 0;
	}
	if (ret_zero)
		*ret_zero = zero;
	return sum;
}

void file_span(const struct format_file *f, uint64_t *ret_off, uint64_t *ret_end)
{
	struct format_range one;
	uint64_t n;
	const struct format_range *r = file_ranges(f, &one, &n);

	*ret_off = *ret_end = 0;
	while (n && !move_reads(&r[n - 1]))
		n--;
	for (uint64_t i = 0; i < n && !*ret_end; i++) {
		if (!move_reads(&r[i]))
			continue;
		*ret_off = r[i].off;
		*ret_end = r[n - 1].off + r[n - 1].len;
	}
}

/* --- units --- */

void units_begin(struct units *u, const struct format_file *f)
{
	uint64_t off, end;

	*u = (struct units){ .f = f, .n = f->nchunk };
	u->range = file_ranges(f, &u->one, &u->nrange);
	if (f->chunk)
		return;
	file_span(f, &off, &end);
	u->n = div_up(end, CELL_BYTES);
}

static bool chunks_next(struct units *u, struct unit *ret)
{
	while (u->i < u->n && !u->f->chunk[u->i].raw_len)
		u->i++;
	if (u->i == u->n)
		return false;
	*ret = (struct unit){ .i = u->i,
			      .off = u->f->chunk[u->i].off,
			      .len = u->f->chunk[u->i].stored_len };
	u->i++;
	return true;
}

/* The next MiB with a byte that is read, from its first to its last. */
static bool cells_next(struct units *u, struct unit *ret)
{
	uint64_t lo = u->i * CELL_BYTES, hi, to = 0;

	while (u->at < u->nrange &&
	       (u->range[u->at].off + u->range[u->at].len <= lo || !move_reads(&u->range[u->at])))
		u->at++;
	if (u->at == u->nrange)
		return false;
	lo = MAX(lo, u->range[u->at].off);
	u->i = lo / CELL_BYTES;
	hi = (u->i + 1) * CELL_BYTES;
	for (uint64_t k = u->at; k < u->nrange && u->range[k].off < hi; k++)
		if (move_reads(&u->range[k]))
			to = MIN(u->range[k].off + u->range[k].len, hi);
	*ret = (struct unit){ .i = u->i, .off = lo, .len = to - lo };
	u->i++;
	return true;
}

bool units_next(struct units *u, struct unit *ret)
{
	return u->f->chunk ? chunks_next(u, ret) : cells_next(u, ret);
}

/* --- which of them --- */

void picking_begin(struct picking *x, const struct checkpoint *c, const struct move_subset *s)
{
	*x = (struct picking){ .s = s };
	for (uint32_t i = 0; i < c->nfile; i++)
		x->all += c->file[i].lost ? 0 : file_read_bytes(&c->file[i], 0, UINT64_MAX, NULL);
}

void picking_file(struct picking *x, const struct format_file *f, uint32_t file)
{
	struct units u;
	struct unit unit;
	double share = x->all ? (double)x->s->bytes / (double)x->all : 0;

	x->left = x->want = 0;
	x->skip = x->s->skip && x->s->skip[file];
	if (x->skip || x->s->how != SUBSET_RANDOM)
		return;
	x->random = x->s->seed + file * UINT64_C(0x9e3779b97f4a7c15);
	for (units_begin(&u, f); units_next(&u, &unit);)
		x->left++;
	x->want = share >= 1 ? x->left : (uint64_t)(share * (double)x->left + 0.5);
	x->want = x->want ? x->want : 1;
	x->want = MIN(x->want, x->left);
}

static uint64_t random_below(struct picking *x, uint64_t n)
{
	uint64_t z = x->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return (z ^ z >> 31) % n;
}

bool picking_next(struct picking *x)
{
	uint64_t number = x->number++;

	if (x->skip)
		return false;
	if (x->s->how == SUBSET_ALL)
		return true;
	if (x->s->how == SUBSET_NTH)
		return number % x->s->n + 1 == x->s->k;
	if (random_below(x, x->left--) >= x->want)
		return false;
	x->want--;
	return true;
}
