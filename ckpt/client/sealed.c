// SPDX-License-Identifier: Apache-2.0 sealed.c - see sealed.h. Called by attach.c when SEALED has
// come, and by the copier, which holds one.
#include "ckpt/client/sealed.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

static bool refs_drop(_Atomic uint32_t *refs)
{
	return atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

static void refs_take(_Atomic uint32_t *refs)
{
	add_relaxed(refs, 1);
}

/* --- sources --- */
struct sources *sources_ref(struct sources *s)
{
	refs_take(&s->refs);
	return s;
}

void sources_unref(struct sources *s)
{
	if (!s || !refs_drop(&s->refs))
		return;
	free(s->name);
	free(s->span);
	free(s);
}

static int span_order(const void *x, const void *y)
{
	const struct source_span *a = x, *b = y;

	return (a->from > b->from) - (a->from < b->from);
}

uint32_t sources_merge(struct source_span *span, uint32_t n)
{
	uint32_t k = 0;

	if (n > 1)
		qsort(span, n, sizeof *span, span_order);
	for (uint32_t i = 0; i < n; i++) {
		if (k && span[i].from <= span[k - 1].to)
			span[k - 1].to = MAX(span[k - 1].to, span[i].to);
		else
			span[k++] = span[i];
	}
	return k;
}

bool sources_in(const struct source_span *span, uint32_t n, uint64_t from, uint64_t to)
{
	uint32_t low = 0, high = n;

	while (low < high) { /* the last one that begins at or before from */
		uint32_t mid = low + (high - low) / 2;

		if (span[mid].from <= from)
			low = mid + 1;
		else
			high = mid;
	}
	return low && to <= span[low - 1].to;
}

static bool sources_have(const struct sources *s, uint32_t tensor, uint64_t from, uint64_t to)
{
	const struct source_name *x = tensor < s->nname ? &s->name[tensor] : NULL;

	return x && sources_in(s->span + x->first, x->nspan, from, to);
}

/* --- slots --- */
static void slot_unref(struct sealed_slot *s)
{
	if (!s || !refs_drop(&s->refs))
		return;
	if (s->ops)
		s->ops->forget(s->device, &s->at);
	if (s->at.base)
		munmap(s->at.base, s->at.bytes);
	if (s->at.fd >= 0)
		(void)close(s->at.fd);
	free(s);
}

static struct sealed_slot *slot_of(const struct sealed *before, const struct stat *st,
				   uint64_t bytes)
{
	for (uint32_t i = 0; before && i < before->nslot; i++) {
		struct sealed_slot *s = before->slot[i];

		if (s->dev == st->st_dev && s->ino == st->st_ino && s->at.bytes == bytes) {
			refs_take(&s->refs);
			return s;
		}
	}
	return NULL;
}

/* A child of the trainer has no use for it, and must not keep it. */
static int slot_map(struct sealed_slot *s, int fd, uint64_t bytes, struct device_handle *device,
		    struct ckpt_err *err)
{
	void *base;
	int rc = wire_map(fd, bytes, 0, &base, err);

	if (rc < 0)
		return rc;
	s->at.base = base;
	s->at.bytes = bytes;
	(void)madvise(base, bytes, MADV_DONTFORK);
	s->at.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (s->at.fd < 0)
		return ckpt_error_errno(err, errno, "cannot hold a slot");
	rc = device->ops->target(device, &s->at, err);
	if (rc == 0) {
		s->ops = device->ops;
		s->device = device;
	}
	return rc;
}

static int slot_get(const struct sealed *before, int fd, uint64_t bytes,
		    struct device_handle *device, struct sealed_slot **ret, struct ckpt_err *err)
{
	struct sealed_slot *s;
	struct stat st;
	int rc;

	if (fstat(fd, &st) < 0)
		return ckpt_error_errno(err, errno, "cannot look at a slot");
	*ret = slot_of(before, &st, bytes);
	if (*ret)
		return 0;
	s = calloc(1, sizeof *s);
	if (!s)
		return ckpt_error(err, -ENOMEM, "no memory for a slot");
	*s = (struct sealed_slot){ .refs = 1, .dev = st.st_dev, .ino = st.st_ino, .at.fd = -1 };
	rc = slot_map(s, fd, bytes, device, err);
	if (rc < 0)
		slot_unref(s);
	else
		*ret = s;
	return rc;
}

/* --- rows --- */
/* The end of the unit that begins at `at`. */
static struct sealed_at unit_end(const struct sealed *s, struct sealed_at at)
{
	uint64_t left = SEALED_UNIT;

	while (at.row < s->nrow) {
		const struct wire_row *r = &s->row[at.row];
		uint64_t line = r->width + (r->width < SEALED_UNIT ? SEALED_ROW_COST : 0), n;

		if (!(r->flags & WIRE_ROW_CLIENT)) {
			at = (struct sealed_at){ at.row + 1, 0, 0 };
			continue;
		}
		if (r->rows > 1 && r->src_pitch >= r->width &&
		    r->src_pitch <= r->width + SEALED_ROW_COST)
			line = r->src_pitch; /* they are read together */
		line = MAX(line, UINT64_C(1));
		if (line > SEALED_UNIT) { /* by itself, in pieces */
			if (left < SEALED_UNIT)
				return at;
			at.in += SEALED_UNIT;
			if (at.in >= r->width) {
				at.in = 0;
				at.line++;
			}
			if (at.line == r->rows)
				at = (struct sealed_at){ at.row + 1, 0, 0 };
			return at;
		}
		n = left / line;
		if (n == 0)
			return at;
		n = MIN(r->rows - at.line, n);
		at.line += n;
		if (at.line == r->rows)
			at = (struct sealed_at){ at.row + 1, 0, 0 };
		if (n * line >= left)
			return at;
		left -= n * line;
		if (at.line)
			return at;
	}
	return at;
}

static int units_make(struct sealed *s)
{
	struct sealed_at at = { 0 };
	uint32_t cap = 0;

	for (s->nunit = 0;; s->nunit++) {
		while (at.row < s->nrow && !(s->row[at.row].flags & WIRE_ROW_CLIENT))
			at.row++;
		if (s->nunit + 1 >= cap) {
			struct sealed_at *more;

			cap = cap ? cap * 2 : 64;
			more = realloc(s->unit, cap * sizeof *more);
			if (!more)
				return -ENOMEM;
			s->unit = more;
		}
		s->unit[s->nunit] = at;
		if (at.row >= s->nrow)
			return 0;
		at = unit_end(s, at);
	}
}

bool sealed_next(const struct sealed *s, uint32_t slot, struct sealed_at *at,
		 const struct sealed_at *end, struct device_row *ret)
{
	const struct wire_row *r;
	uint64_t n;

	while (at->row < end->row && !(s->row[at->row].flags & WIRE_ROW_CLIENT))
		*at = (struct sealed_at){ at->row + 1, 0, 0 };
	if (at->row > end->row ||
	    (at->row == end->row && at->line >= end->line && at->in >= end->in))
		return false;
	r = &s->row[at->row];
	*ret = (struct device_row){ .src = r->src + at->line * r->src_pitch + at->in,
				    .dst = s->slot[slot]->at.base + r->dst +
					   at->line * r->dst_pitch + at->in,
				    .src_pitch = r->src_pitch,
				    .dst_pitch = r->dst_pitch,
				    .rows = 1 };
	if (at->in || r->width > SEALED_UNIT) {
		ret->width = MIN(r->width - at->in, SEALED_UNIT);
		at->in += ret->width;
		if (at->in == r->width) {
			at->in = 0;
			at->line++;
		}
	} else {
		n = SEALED_UNIT / r->width; /* 1 or more: wire_row_check */
		n = MIN(n, (at->row == end->row ? end->line : r->rows) - at->line);
		ret->width = r->width;
		ret->rows = n;
		at->line += n;
	}
	if (at->line == r->rows)
		*at = (struct sealed_at){ at->row + 1, 0, 0 };
	return true;
}

static int row_check(struct sealed *s, const struct wire_row *r, const uint64_t *segment_bytes,
		     uint32_t nsegment, struct ckpt_err *err)
{
	if (wire_row_check(r, segment_bytes, nsegment, s->slot_bytes) < 0)
		return ckpt_error(err, -EPROTO, "the daemon sent a row that leaves its bounds");
	if (!(r->flags & WIRE_ROW_CLIENT)) {
		s->others++;
		return 0;
	}
	s->own_bytes += r->width * r->rows;
	s->own_end = MAX(s->own_end, r->dst + (r->rows - 1) * r->dst_pitch + r->width);
	return sources_have(s->sources, r->tensor, r->src,
			    r->src + (r->rows - 1) * (r->rows > 1 ? r->src_pitch : 0) + r->width)
		       ? 0
		       : ckpt_error(err, -EPROTO,
				    "the daemon sent a row of memory that was not declared");
}

static int rows_take(struct sealed *s, int fd, const uint64_t *segment_bytes, uint32_t nsegment,
		     struct ckpt_err *err)
{
	void *p;
	int rc;

	if (!s->nrow)
		return units_make(s);
	rc = wire_map(fd, s->nrow * sizeof *s->row, 1, &p, err);
	if (rc < 0)
		return rc;
	s->row = p;
	for (uint32_t i = 0; i < s->nrow && rc == 0; i++)
		rc = row_check(s, &s->row[i], segment_bytes, nsegment, err);
	s->own_end = MIN(align_up(s->own_end, PAGES_HUGE), s->slot_bytes);
	return rc == 0 ? units_make(s) : rc;
}

int sealed_make(const struct wire_sealed *m, const int *fd, const struct sealed *before,
		struct sources *sources, struct device_handle *device,
		const uint64_t *segment_bytes, uint32_t nsegment, struct sealed **ret,
		struct ckpt_err *err)
{
	struct sealed *s = calloc(1, sizeof *s);
	int rc = s && m->nslot <= WIRE_SLOTS_MAX ? 0 : -ENOMEM;

	*ret = NULL;
	if (rc < 0) {
		free(s);
		return ckpt_error(err, rc, "no memory for the slots");
	}
	*s = (struct sealed){ .refs = 1,
			      .epoch = m->epoch,
			      .rev = m->rev,
			      .nrow = m->nrow,
			      .slot_bytes = m->slot_bytes,
			      .sources = sources_ref(sources) };
	for (uint32_t i = 0; i < m->nslot && rc == 0; i++, s->nslot += rc == 0)
		rc = slot_get(before, fd[i], m->slot_bytes, device, &s->slot[i], err);
	if (rc == 0)
		rc = rows_take(s, fd[m->nslot], segment_bytes, nsegment, err);
	if (rc < 0) {
		sealed_unref(s);
		return rc == -ENOMEM ? ckpt_error(err, rc, "no memory for the slots") : rc;
	}
	*ret = s;
	return 0;
}

struct sealed *sealed_ref(struct sealed *s)
{
	refs_take(&s->refs);
	return s;
}

void sealed_unref(struct sealed *s)
{
	if (!s || !refs_drop(&s->refs))
		return;
	for (uint32_t i = 0; i < s->nslot; i++)
		slot_unref(s->slot[i]);
	if (s->row)
		munmap((void *)(uintptr_t)s->row, s->nrow * sizeof *s->row);
	sources_unref(s->sources);
	free(s->unit);
	free(s);
}
