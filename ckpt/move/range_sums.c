/* SPDX-License-Identifier: Apache-2.0 */
/*
 * range_sums.c - see range_sums.h. Called by move_read, move_verify, move_sums and made.
 * Invariant: the CRC-32 of a range is the exclusive or of those of its parts, each moved on by the
 * bytes behind it: so the order of the parts does not matter.
 */
#include "ckpt/move/range_sums.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/coding/crc.h"
#include "ckpt/move/place_pieces.h"
#include "ckpt/move/verify_units.h"
#include <pthread.h>

#define PART_LOG2 20
#define LABEL_BYTES 160

struct range_state {
	uint64_t part; /* of its first part in `came` */
	uint64_t left; /* bytes that have not come */
	uint32_t crc;  /* of those that have */
	bool wanted;
};

struct range_sums {
	const struct checkpoint *c;
	struct range_state **file; /* [nfile], [nrange]; NULL: it has no such range */
	bool *wanted, *ended;	   /* [nmade] */
	pthread_mutex_t lock;	   /* protects came, left and crc */
	bool *came;
};

static uint64_t range_end(const struct format_range *r)
{
	return r->off + r->len;
}

static uint64_t range_parts(const struct format_range *r)
{
	return ((range_end(r) - 1) >> PART_LOG2) - (r->off >> PART_LOG2) + 1;
}

static bool has_sums(const struct format_file *f)
{
	for (uint64_t i = 0; i < f->nrange && !f->chunk; i++)
		if (f->range[i].sum == SUM_CRC32)
			return true;
	return false;
}

static int file_begin(struct range_sums *s, uint32_t file, bool all, uint64_t *part)
{
	const struct format_file *f = &s->c->file[file];
	struct range_state *x = calloc(f->nrange, sizeof *x);

	s->file[file] = x;
	for (uint64_t i = 0; x && i < f->nrange; i++) {
		if (f->range[i].sum != SUM_CRC32)
			continue;
		x[i] = (struct range_state){ .part = *part,
					     .left = f->range[i].len,
					     .wanted = all };
		*part += range_parts(&f->range[i]);
	}
	return x ? 0 : -ENOMEM;
}

int range_sums_make(const struct checkpoint *c, bool all, struct range_sums **ret)
{
	struct range_sums *s = *ret = NULL;
	uint64_t parts = 0;
	bool any = false;
	int e = 0;

	for (uint32_t i = 0; i < c->nmade && !any; i++)
		any = c->made[i].has_crc;
	for (uint32_t i = 0; i < c->nfile && !any; i++)
		any = has_sums(&c->file[i]);
	if (!any)
		return 0;
	s = calloc(1, sizeof *s);
	if (!s)
		return -ENOMEM;
	s->c = c;
	pthread_mutex_init(&s->lock, NULL);
	s->file = calloc((size_t)c->nfile + 1, sizeof(struct range_state *));
	s->wanted = calloc((size_t)c->nmade + 1, sizeof *s->wanted);
	s->ended = calloc((size_t)c->nmade + 1, sizeof *s->ended);
	e = s->file && s->wanted && s->ended ? 0 : -ENOMEM;
	for (uint32_t i = 0; i < c->nfile && !e; i++)
		e = has_sums(&c->file[i]) ? file_begin(s, i, all, &parts) : 0;
	s->came = calloc(parts + 1, sizeof *s->came);
	if (e || !s->came) {
		range_sums_free(s);
		return -ENOMEM;
	}
	*ret = s;
	return 0;
}

void range_sums_free(struct range_sums *s)
{
	if (!s)
		return;
	for (uint32_t i = 0; s->file && i < s->c->nfile; i++)
		free(s->file[i]);
	free(s->file);
	free(s->wanted);
	free(s->ended);
	free(s->came);
	pthread_mutex_destroy(&s->lock);
	free(s);
}

void range_sums_want(struct range_sums *s, uint32_t place, uint64_t from, uint64_t to)
{
	const struct format_file *f;

	while (s && place >= s->c->nfile) {
		const struct format_made *m = &s->c->made[place - s->c->nfile];

		s->wanted[place - s->c->nfile] = true;
		if (m->how == MADE_GIVEN)
			return;
		place = m->from;
		from = m->off;
		to = m->off + m->len;
	}
	if (!s || !s->file[place])
		return;
	f = &s->c->file[place];
	for (uint64_t i = ranges_from(f->range, f->nrange, from);
	     i < f->nrange && f->range[i].off < to; i++)
		s->file[place][i].wanted = f->range[i].sum == SUM_CRC32;
}

/* Bytes [from, to) of a range, which are one of its parts. Is the range complete with them? */
static bool part_add(struct range_sums *s, struct range_state *x, const struct format_range *r,
		     uint64_t from, uint64_t to, const uint8_t *p)
{
	bool *came = &s->came[x->part + (from >> PART_LOG2) - (r->off >> PART_LOG2)], again;
	bool complete;
	uint32_t crc;

	pthread_mutex_lock(&s->lock);
	again = *came;
	*came = true;
	pthread_mutex_unlock(&s->lock);
	if (again)
		return false;
	crc = crc_join(crc_add(0, p, to - from), 0, range_end(r) - to);
	pthread_mutex_lock(&s->lock);
	x->crc ^= crc;
	x->left -= to - from;
	complete = !x->left;
	pthread_mutex_unlock(&s->lock);
	return complete;
}

void range_sums_add(struct range_sums *s, uint32_t file, uint64_t off, uint64_t len,
		    const uint8_t *p, range_sum_fn *fn, void *arg)
{
	const struct format_file *f;
	uint64_t end = off + len;

	if (!s || !s->file[file])
		return;
	f = &s->c->file[file];
	for (uint64_t i = ranges_from(f->range, f->nrange, off);
	     i < f->nrange && f->range[i].off < end; i++) {
		const struct format_range *r = &f->range[i];
		struct range_state *x = &s->file[file][i];
		uint64_t from = MAX(r->off, off), to;

		for (; x->wanted && from < MIN(range_end(r), end); from = to) {
			uint64_t first = MAX(from >> PART_LOG2 << PART_LOG2, r->off);

			to = MIN(((from >> PART_LOG2) + 1) << PART_LOG2, range_end(r));
			if (first >= off && to <= end &&
			    part_add(s, x, r, from, to, p + (from - off)))
				fn(arg, r, x->crc == r->crc || MUTANT(RANGE_CRC_IGNORED));
		}
	}
}

void range_wrong_keep(void *arg, const struct format_range *r, bool right)
{
	const struct format_range **wrong = arg;

	if (!right)
		*wrong = r;
}

int range_damaged(const struct table *t, const struct format_file *f, uint32_t place,
		  const struct format_range *r, uint64_t lo, const char *why, struct ckpt_err *err)
{
	char label[LABEL_BYTES];

	place_pieces_label(t, place, lo, lo + r->len, label, sizeof label);
	return ckpt_error(
		err, -EBADMSG,
		"%s is damaged: %llu bytes at offset %llu, which hold %s: %s; restore an older "
		"step, and see ckptctl verify --data",
		f->name, (unsigned long long)r->len, (unsigned long long)r->off, label, why);
}

void range_sums_ended(struct range_sums *s, uint32_t place)
{
	if (s)
		s->ended[place - s->c->nfile] = true;
}

bool range_sums_missing(const struct range_sums *s, uint32_t file, uint64_t *at, uint64_t *ret_off,
			uint64_t *ret_len)
{
	const struct format_file *f;

	if (!s || !s->file[file])
		return false;
	f = &s->c->file[file];
	for (uint64_t i = ranges_from(f->range, f->nrange, *at); i < f->nrange; i++) {
		const struct format_range *r = &f->range[i];
		const struct range_state *x = &s->file[file][i];
		uint64_t from = MAX(r->off, *at), to;

		for (; x->wanted && x->left && from < range_end(r); from = to) {
			to = MIN(((from >> PART_LOG2) + 1) << PART_LOG2, range_end(r));
			if (s->came[x->part + (from >> PART_LOG2) - (r->off >> PART_LOG2)])
				continue;
			*ret_off = from;
			*ret_len = to - from;
			*at = to;
			return true;
		}
	}
	return false;
}

bool range_sums_unended(const struct range_sums *s, uint32_t place)
{
	uint32_t i = s ? place - s->c->nfile : 0;

	return s && s->wanted[i] && !s->ended[i] && s->c->made[i].has_crc;
}
