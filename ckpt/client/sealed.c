// SPDX-License-Identifier: Apache-2.0
// sealed.c - see sealed.h. Called by attach.c when SEALED has come, and by the copier, which holds
// one.
#include "ckpt/client/sealed.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/wire/turns.h"
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
		if (k && span[i].from <= span[k - 1].to && span[i].device == span[k - 1].device)
			span[k - 1].to = MAX(span[k - 1].to, span[i].to);
		else
			span[k++] = span[i];
	}
	return k;
}

const struct source_span *sources_in(const struct source_span *span, uint32_t n, uint64_t from,
				     uint64_t to)
{
	uint32_t low = 0, high = n;

	while (low < high) { /* the last one that begins at or before from */
		uint32_t mid = low + (high - low) / 2;

		if (span[mid].from <= from)
			low = mid + 1;
		else
			high = mid;
	}
	return low && to <= span[low - 1].to ? &span[low - 1] : NULL;
}

static const struct source_span *sources_have(const struct sources *s, uint32_t tensor,
					      uint64_t from, uint64_t to)
{
	const struct source_name *x = tensor < s->nname ? &s->name[tensor] : NULL;

	return x ? sources_in(s->span + x->first, x->nspan, from, to) : NULL;
}

/* --- slots --- */
static void slot_unref(struct sealed_slot *s)
{
	if (!s || !refs_drop(&s->refs))
		return;
	if (s->device)
		s->device->ops->forget(s->device, &s->at);
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
static int slot_map(struct sealed_slot *s, int fd, uint64_t bytes, struct ckpt_err *err)
{
	void *base;
	int rc = wire_map(fd, bytes, 0, &base, err);

	if (rc < 0)
		return rc;
	s->at.base = base;
	s->at.bytes = bytes;
	(void)madvise(base, bytes, MADV_DONTFORK);
	s->at.fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	return s->at.fd < 0 ? ckpt_error_errno(err, errno, "cannot hold a slot") : 0;
}

int sealed_slot_register(struct sealed_slot *s, struct device_handle *device, struct ckpt_err *err)
{
	int rc = s->device ? 0 : device->ops->target(device, &s->at, err);

	if (rc == 0 && !s->device)
		s->device = device;
	return rc;
}

static int slot_get(const struct sealed *before, int fd, uint64_t bytes, struct sealed_slot **ret,
		    struct ckpt_err *err)
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
	rc = slot_map(s, fd, bytes, err);
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

		if (!sealed_host_row(s, at.row)) {
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
		while (at.row < s->nrow && !sealed_host_row(s, at.row))
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

/* From *at on, which moves: lines up to `last`, or a part of one, of at most `most` bytes. */
static void row_piece(const struct wire_row *r, uint8_t *slot, struct sealed_at *at, uint64_t last,
		      uint64_t most, struct device_row *ret)
{
	*ret = (struct device_row){ .src = r->src + at->line * r->src_pitch + at->in,
				    .dst = slot + r->dst + at->line * r->dst_pitch + at->in,
				    .src_pitch = r->src_pitch,
				    .dst_pitch = r->dst_pitch,
				    .rows = 1 };
	if (at->in || r->width > most) {
		ret->width = MIN(r->width - at->in, most);
		at->in += ret->width;
		if (at->in == r->width) {
			at->in = 0;
			at->line++;
		}
	} else {
		ret->width = r->width;
		ret->rows = MIN(most / r->width, last - at->line); /* width >= 1: wire_row_check */
		at->line += ret->rows;
	}
	if (at->line == r->rows)
		*at = (struct sealed_at){ at->row + 1, 0, 0 };
}

bool sealed_next(const struct sealed *s, uint32_t slot, struct sealed_at *at,
		 const struct sealed_at *end, struct device_row *ret)
{
	const struct wire_row *r;

	while (at->row < end->row && !sealed_host_row(s, at->row))
		*at = (struct sealed_at){ at->row + 1, 0, 0 };
	if (at->row > end->row ||
	    (at->row == end->row && at->line >= end->line && at->in >= end->in))
		return false;
	r = &s->row[at->row];
	row_piece(r, s->slot[slot]->at.base, at, at->row == end->row ? end->line : r->rows,
		  SEALED_UNIT, ret);
	return true;
}

/* Moves on to the next byte of the row that is in the turn. From there a piece may have bytes up to
 * *most and lines up to *last, without leaving the block. False: the rest of the row is in other
 * turns. */
static bool turn_seek(const struct wire_row *r, uint32_t turn, struct sealed_at *at, uint64_t *most,
		      uint64_t *last)
{
	while (at->line < r->rows) {
		uint64_t off = r->dst + at->line * r->dst_pitch + at->in, to = turn_from(off, turn),
			 room = turn_until(off) - off;

		if (to == off) {
			*most = MIN(*most, room);
			if (r->width <= room && r->rows > 1)
				*last = MIN(*last, at->line + 1 + (room - r->width) / r->dst_pitch);
			return true;
		}
		if (to - off < r->width - at->in) {
			at->in += to - off;
			continue;
		}
		/* The first line that ends behind `to`: a later one, as this one does not. */
		at->line = r->rows > 1 ? (to - r->dst - r->width) / r->dst_pitch + 1 : 1;
		off = r->dst + at->line * r->dst_pitch;
		at->in = to > off ? to - off : 0;
	}
	*at = (struct sealed_at){ at->row + 1, 0, 0 };
	return false;
}

bool sealed_queue_next(const struct sealed *s, const struct sealed_some *x, struct sealed_at *at,
		       uint64_t most, struct device_row *ret)
{
	const struct sealed_queue *q = x->rows;
	uint32_t begin = x->replicas ? q->first[x->replicas - 1] : 0,
		 end = x->replicas ? q->first[x->replicas] : q->nrow;

	at->row = MAX(at->row, begin);
	while (at->row < end) {
		uint32_t i = q->row[at->row];
		const struct wire_row *r = &s->row[i];
		uint64_t last = r->rows, bytes = MAX(most, UINT64_C(1));

		if (x->turn != TURN_WHOLE && s->in_turns && s->in_turns[i] &&
		    !turn_seek(r, x->turn - 1, at, &bytes, &last))
			continue;
		row_piece(r, s->slot[x->slot]->at.base, at, last, bytes, ret);
		return true;
	}
	return false;
}

uint64_t sealed_queue_bytes(const struct sealed *s, const struct sealed_some *x)
{
	struct sealed_at at = { 0 };
	struct device_row row;
	uint64_t bytes = 0;

	if (!x->replicas && (x->turn == TURN_WHOLE || !s->in_turns))
		return x->rows->bytes;
	while (sealed_queue_next(s, x, &at, UINT64_MAX, &row))
		bytes += row.width * row.rows;
	return bytes;
}

void sealed_whole(struct sealed *s, const _Atomic uint32_t *whole, uint32_t n)
{
	for (; s->in_turns && s->nwhole < n; s->nwhole++) {
		uint32_t tensor = load_relaxed(&whole[s->nwhole]);

		for (uint32_t i = 0; i < s->nrow; i++)
			s->in_turns[i] &= s->row[i].tensor != tensor;
	}
}

/* Only what lies on devices; and lines do not overlap in the slot. */
static int turns_check(struct sealed *s, uint32_t i, bool on_device, struct ckpt_err *err)
{
	const struct wire_row *r = &s->row[i];

	if (!on_device || !(r->flags & WIRE_ROW_DERIVED) ||
	    (r->rows > 1 && r->dst_pitch < r->width))
		return ckpt_error(err, -EPROTO,
				  "the daemon sent a row that cannot be copied in turns");
	if (!s->in_turns)
		s->in_turns = calloc(s->nrow, sizeof *s->in_turns);
	if (!s->in_turns)
		return -ENOMEM;
	s->in_turns[i] = true;
	return 0;
}

static int row_check(struct sealed *s, uint32_t i, const uint64_t *segment_bytes, uint32_t nsegment,
		     struct ckpt_err *err)
{
	const struct wire_row *r = &s->row[i];
	const struct source_span *from;

	if (wire_row_check(r, segment_bytes, nsegment, s->slot_bytes) < 0)
		return ckpt_error(err, -EPROTO, "the daemon sent a row that leaves its bounds");
	if (!(r->flags & WIRE_ROW_CLIENT)) {
		s->others++;
		return 0;
	}
	if (!sealed_replica(s, i))
		s->own_bytes += r->width * r->rows;
	s->own_end = MAX(s->own_end, r->dst + (r->rows - 1) * r->dst_pitch + r->width);
	from = sources_have(s->sources, r->tensor, r->src,
			    r->src + (r->rows - 1) * (r->rows > 1 ? r->src_pitch : 0) + r->width);
	if (!from)
		return ckpt_error(err, -EPROTO,
				  "the daemon sent a row of memory that was not declared");
	if (from->device && !s->on)
		s->on = calloc(s->nrow, 1);
	if (from->device && !s->on)
		return -ENOMEM;
	if (from->device)
		s->on[i] = (uint8_t)from->device;
	return r->flags & WIRE_ROW_TURNS ? turns_check(s, i, from->device, err) : 0;
}

/* Row i: as source_span.device. */
static uint32_t device_of(const struct sealed *s, uint32_t i)
{
	return s->on ? s->on[i] : 0;
}

/* Those of replicas come last, by turn: first[0] counts them, and first[k + 1] those of turn k. */
static void queue_put(const struct sealed *s, struct sealed_queue *q, uint32_t i)
{
	const struct wire_row *r = &s->row[i];

	if (sealed_replica(s, i)) {
		q->row[q->nrow + q->first[0]++] = i;
		q->first[r->turn + 1]++;
	} else {
		q->row[q->nrow++] = i;
		q->bytes += r->width * r->rows;
	}
}

static void queue_end(struct sealed_queue *q)
{
	q->first[0] = q->nrow;
	for (uint32_t k = 0; k < WIRE_REPLICA_TURNS; k++)
		q->first[k + 1] += q->first[k];
}

/* The rows of each device, and those of replicas in host memory, in their order. */
static int queues_make(struct sealed *s)
{
	uint32_t n[UINT8_MAX + 1] = { 0 }, of[UINT8_MAX + 1], k = 0;

	for (uint32_t i = 0; i < s->nrow; i++)
		n[device_of(s, i)] += device_of(s, i) || sealed_replica(s, i);
	for (uint32_t d = 1; d <= UINT8_MAX; d++)
		s->nqueue += n[d] > 0;
	s->queue = calloc((size_t)s->nqueue + 1, sizeof *s->queue);
	if (n[0])
		s->replicas.row = calloc(n[0], sizeof *s->replicas.row);
	if (!s->queue || (n[0] && !s->replicas.row))
		return -ENOMEM;
	for (uint32_t d = 1; d <= UINT8_MAX; d++) {
		if (!n[d])
			continue;
		of[d] = k;
		s->queue[k].device = d - 1;
		s->queue[k].row = calloc(n[d], sizeof *s->queue[k].row);
		if (!s->queue[k++].row)
			return -ENOMEM;
	}
	for (uint32_t i = 0; i < s->nrow; i++)
		if (device_of(s, i))
			queue_put(s, &s->queue[of[device_of(s, i)]], i);
		else if (sealed_replica(s, i))
			queue_put(s, &s->replicas, i);
	for (uint32_t i = 0; i < s->nqueue; i++)
		queue_end(&s->queue[i]);
	queue_end(&s->replicas);
	return 0;
}

/* Those of replicas come last, by turn. */
static int replicas_check(const struct sealed *s, struct ckpt_err *err)
{
	for (uint32_t i = 1; i < s->nrow; i++)
		if (sealed_replica(s, i - 1) &&
		    (!sealed_replica(s, i) || s->row[i].turn < s->row[i - 1].turn))
			return ckpt_error(err, -EPROTO,
					  "the daemon sent rows of replicas in no order");
	return 0;
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
		rc = row_check(s, i, segment_bytes, nsegment, err);
	s->own_end = MIN(align_up(s->own_end, PAGES_HUGE), s->slot_bytes);
	if (rc == 0)
		rc = replicas_check(s, err);
	if (rc == 0 && (s->on || (s->nrow && sealed_replica(s, s->nrow - 1))))
		rc = queues_make(s);
	return rc == 0 ? units_make(s) : rc;
}

int sealed_make(const struct wire_sealed *m, const int *fd, const struct sealed *before,
		struct sources *sources, const uint64_t *segment_bytes, uint32_t nsegment,
		struct sealed **ret, struct ckpt_err *err)
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
		rc = slot_get(before, fd[i], m->slot_bytes, &s->slot[i], err);
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
	for (uint32_t i = 0; i < s->nqueue && s->queue; i++)
		free(s->queue[i].row);
	free(s->queue);
	free(s->replicas.row);
	free(s->on);
	free(s->in_turns);
	free(s->unit);
	free(s);
}
