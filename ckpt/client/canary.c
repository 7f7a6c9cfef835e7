// SPDX-License-Identifier: Apache-2.0
// canary.c - see canary.h: places, drawing, comparing. Called by mark.c and canary_link.c.
// Invariant: nothing is read outside of what a row names, and of own memory nothing outside of its
// local's box; what a trainer that keeps to the rules has is never said to be changed.
#include "ckpt/client/canary.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include <sched.h>
#include <sys/mman.h>
#include <sys/uio.h>

#define CANARY_PROBES (CANARY_WORDS_ALL / 2) /* places of own memory that are read at once */
_Static_assert(2 * CANARY_WORDS_ALL <= CANARY_SCRATCH && 2 * CANARY_WORDS_ALL <= 1024,
	       "their bytes fit, and one call takes them");
_Static_assert(CANARY_WORDS_ALL == SHARED_CANARY_MAX, "the record has space for all words");

/* --- the map --- */
int canary_init(struct canary *x, uint32_t check)
{
	*x = (struct canary){ .check = check, .scratch_fd = -1 };
	return -pthread_mutex_init(&x->draw, NULL);
}

void canary_destroy(struct canary *x)
{
	canary_replace(x, NULL);
	if (x->scratch_fd >= 0)
		(void)close(x->scratch_fd);
	pthread_mutex_destroy(&x->draw);
}

void canary_map_free(struct canary_map *m)
{
	if (!m)
		return;
	sealed_unref(m->sealed);
	free(m->segment);
	free(m->near.row);
	free(m->near.upto);
	free(m->far.row);
	free(m->far.upto);
	free(m);
}

static int live_make(struct canary_live *l, uint32_t n)
{
	*l = (struct canary_live){ .row = calloc(n, sizeof *l->row),
				   .upto = calloc(n, sizeof *l->upto) };
	return l->row && l->upto ? 0 : -ENOMEM;
}

static void live_add(struct canary_live *l, uint32_t row, uint64_t bytes)
{
	l->row[l->n] = row;
	l->upto[l->n] = bytes + (l->n ? l->upto[l->n - 1] : 0);
	l->n++;
}

/* 0: in host memory; 1 + the number of the device. */
static uint8_t device_of(const struct canary_map *m, uint32_t row)
{
	return m->on ? m->on[row] : 0;
}

/* Is it copied with each snapshot, and no other time than all the rest? */
static bool row_looked_at(const struct canary_map *m, uint32_t row)
{
	uint32_t out = WIRE_ROW_CONST | WIRE_ROW_VALUE | WIRE_ROW_REPLICA;

	if (device_of(m, row))
		out |= WIRE_ROW_DERIVED | WIRE_ROW_TURNS;
	return !(m->row[row].flags & out);
}

int canary_map_make(const struct canary_map *parts, const uint64_t *segment_bytes,
		    struct canary_map **ret)
{
	struct canary_map *m = malloc(sizeof *m);
	uint32_t every = 1 + parts->nrow / (2 * WIRE_ROWS_MAX), n = parts->nrow / every + 1;
	int rc = 0;

	if (!m)
		return -ENOMEM;
	*m = *parts;
	m->sealed = NULL;
	if (live_make(&m->near, n) < 0)
		rc = -ENOMEM;
	if (live_make(&m->far, n) < 0)
		rc = -ENOMEM;
	m->segment = calloc(parts->nsegment ? parts->nsegment : 1, sizeof(uint8_t *));
	if (!m->segment)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < parts->nsegment && rc == 0; i++)
		m->segment[i] = parts->segment[i];
	for (uint32_t i = 0; i < m->nrow && rc == 0; i++) {
		const struct wire_row *r = &m->row[i];

		rc = wire_row_check(r, segment_bytes, m->nsegment, m->slot_bytes);
		if (rc == 0 && i % every == 0 && row_looked_at(m, i))
			live_add(device_of(m, i) ? &m->far : &m->near, i, r->width * r->rows);
	}
	if (rc < 0) {
		canary_map_free(m);
		return rc;
	}
	*ret = m;
	return 0;
}

void canary_replace(struct canary *x, struct canary_map *m)
{
	struct canary_map *old;

	pthread_mutex_lock(&x->draw);
	if (m)
		m->serial = ++x->serials;
	old = atomic_exchange(&x->map, m);
	while (old && atomic_load(&x->busy))
		sched_yield();
	pthread_mutex_unlock(&x->draw);
	canary_map_free(old);
}

const struct source_name *canary_name_at(const struct canary_map *m, uint64_t off)
{
	for (uint32_t i = 0; m && i < m->nrow; i++) {
		const struct wire_row *r = &m->row[i];
		uint64_t in = off - r->dst, line = r->rows > 1 ? r->dst_pitch : r->width;

		if (!(r->flags & WIRE_ROW_REPLICA) && off >= r->dst &&
		    in < (r->rows - 1) * line + r->width && in % line < r->width)
			return r->tensor < m->sources->nname ? &m->sources->name[r->tensor] : NULL;
	}
	return NULL;
}

/* --- drawing --- */
static uint64_t draw_random(struct canary_map *m)
{
	uint64_t z = m->rng += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* A byte of the k-th of n equal parts of all that can change. */
static uint64_t draw_byte(struct canary_map *m, const struct canary_live *l, uint32_t k, uint32_t n)
{
	__uint128_t part = ((__uint128_t)k << 64 | draw_random(m)) / n;

	return (uint64_t)(part * l->upto[l->n - 1] >> 64);
}

/* So many bytes of a row from this one of a line on, or as many as are contiguous. */
static void place_at(const struct canary_map *m, const struct wire_row *r, uint64_t line,
		     uint64_t in, uint64_t len, struct canary_place *ret)
{
	bool own = r->flags & WIRE_ROW_CLIENT;
	const uint8_t *src = own ? (const uint8_t *)(uintptr_t)r->src
				 : m->segment[WIRE_ROW_SEGMENT(r->src)] + WIRE_ROW_OFF(r->src);

	*ret = (struct canary_place){ .src = src + line * r->src_pitch + in,
				      .dst = r->dst + line * r->dst_pitch + in,
				      .len = (uint32_t)MIN(len, r->width - in),
				      .own = own,
				      .device = device_of(m, (uint32_t)(r - m->row)) };
}

/* Of own memory what lies in one page with that byte, which is at that address: so that one look
 * shows that it is there. */
static void page_align(const struct canary_map *m, const struct wire_row *r, uint64_t line,
		       uint64_t in, uintptr_t at, struct canary_place *ret)
{
	uint64_t back = MIN(in, at % CANARY_PAGE);
	struct canary_place p;

	place_at(m, r, line, in - back, CANARY_PAGE - (at - back) % CANARY_PAGE, &p);
	if (p.len > back)
		*ret = p;
}

/* A stretch of up to `unit` bytes around that byte. */
static void place_draw(const struct canary_map *m, const struct canary_live *l, uint64_t byte,
		       uint64_t unit, struct canary_place *ret)
{
	const struct wire_row *r;
	uint32_t low = 0, high = l->n;
	uint64_t line, in, from;

	while (low + 1 < high) {
		uint32_t mid = low + (high - low) / 2;

		if (l->upto[mid - 1] <= byte)
			low = mid;
		else
			high = mid;
	}
	r = &m->row[l->row[low]];
	byte -= low ? l->upto[low - 1] : 0;
	line = byte / r->width;
	in = byte % r->width;
	from = in - in % unit;
	place_at(m, r, line, from, unit, ret);
	if (ret->own && unit == CANARY_PAGE)
		page_align(m, r, line, in, (uintptr_t)ret->src + (in - from), ret);
}

static void place_touch(const struct canary_map *m, const struct canary_place *p)
{
	for (uint32_t i = 0; i < m->nthere; i++) {
		(void)*(const volatile uint8_t *)(m->slot[i] + p->dst);
		(void)*(const volatile uint8_t *)(m->slot[i] + p->dst + p->len - 1);
	}
}

static uint32_t ring_ahead(const struct canary_ring *r)
{
	return load_acquire(&r->made) - load_acquire(&r->used);
}

/* Up to `ahead` places of `unit` bytes at most, one in each of so many equal parts in turn. */
static void ring_draw(struct canary_map *m, const struct canary_live *l, struct canary_ring *r,
		      uint32_t ahead, uint32_t parts, uint64_t unit)
{
	while (l->n && ring_ahead(r) < MIN(ahead, CANARY_AHEAD)) {
		uint32_t made = load_relaxed(&r->made);
		struct canary_place p;

		place_draw(m, l, draw_byte(m, l, made % parts, parts), unit, &p);
		if (unit == CANARY_PAGE)
			place_touch(m, &p);
		r->at[made % CANARY_RING] = p;
		store_release(&r->made, made + 1);
	}
}

void canary_draw(struct canary_map *m, uint32_t words, uint32_t pages)
{
	ring_draw(m, &m->near, &m->word, words, CANARY_WORDS, sizeof(uint64_t));
	ring_draw(m, &m->far, &m->far_word, words, CANARY_FAR, sizeof(uint64_t));
	ring_draw(m, &m->near, &m->page, pages, CANARY_PAGES, CANARY_PAGE);
}

/* --- the trainer's thread --- */
static struct canary_map *map_enter(struct canary *x)
{
	atomic_store(&x->busy, 1);
	return atomic_load(&x->map);
}

static void map_leave(struct canary *x)
{
	store_release(&x->busy, 0);
}

/* The next places of a ring, at most CANARY_WORDS_ALL; or the newest, used or not. The helper
 * leaves so many used ones alone. */
static uint32_t ring_take(struct canary_ring *r, uint32_t n, struct canary_place *ret)
{
	uint32_t from = load_relaxed(&r->used), made = load_acquire(&r->made);

	n = MIN(n, made);
	if (made - from < n)
		from = made - n;
	for (uint32_t i = 0; i < n; i++) {
		ret[i] = r->at[(from + i) % CANARY_RING];
		__builtin_prefetch(ret[i].src);
	}
	store_release(&r->used, from + n);
	return n;
}

static uint64_t word_read(const uint8_t *from, uint32_t len)
{
	uint64_t w = 0;

	if (len == sizeof w)
		memcpy(&w, from, sizeof w);
	else
		memcpy(&w, from, len);
	return w;
}

static bool two_pages(const struct canary_place *p)
{
	return ((uintptr_t)(p->src + p->len - 1) ^ (uintptr_t)p->src) / CANARY_PAGE;
}

/* Own memory: before words are read, a system call shows that they are there. If not, the copier
 * finds the same, and says which tensor it is. */
static bool words_there(const struct canary *x)
{
	struct iovec probe[2 * CANARY_WORDS_ALL];
	uint32_t n = 0;

	for (uint32_t i = 0; i < x->n; i++) {
		const struct canary_place *p = &x->word[i];

		if (!p->own)
			continue;
		probe[n++] = (struct iovec){ (void *)(uintptr_t)p->src, 1 };
		if (two_pages(p))
			probe[n++] = (struct iovec){ (void *)(uintptr_t)(p->src + p->len - 1), 1 };
	}
	return !n || pwritev(x->scratch_fd, probe, (int)n, 0) == (ssize_t)n;
}

/* Those of a map that is not of a handle have no copier. */
static void far_take(struct canary *x, struct canary_map *m)
{
	if (!m->sealed)
		return;
	x->nfar = ring_take(&m->far_word, CANARY_FAR, x->far);
	x->far_epoch = m->epoch;
	x->far_rev = m->sealed->rev;
}

uint32_t canary_mark(struct canary *x, uint32_t epoch, uint32_t slot, bool *ret_low)
{
	struct canary_map *m;

	*ret_low = false;
	x->armed = false;
	x->nfar = 0;
	if (x->check == UINT32_MAX)
		return 0;
	m = map_enter(x);
	x->all = x->check && ++x->taken % x->check == 0;
	x->n = 0;
	if (m && m->epoch == epoch && slot < m->nslot) {
		x->n = ring_take(&m->word, x->all ? CANARY_WORDS_ALL : CANARY_WORDS, x->word);
		x->slot = slot;
		x->serial = m->serial;
		x->armed = m->near.n;
		far_take(x, m);
		*ret_low = (m->near.n && ring_ahead(&m->word) < CANARY_WORDS_ALL) ||
			   (m->far.n && ring_ahead(&m->far_word) < CANARY_WORDS_ALL);
	}
	map_leave(x);
	if (!words_there(x)) {
		x->n = 0;
		x->armed = false;
	}
	for (uint32_t i = 0; i < x->n; i++)
		x->note[i] = (struct shared_canary_word){
			.off = x->word[i].dst | (uint64_t)x->word[i].len << 56,
			.word = word_read(x->word[i].src, x->word[i].len),
		};
	return x->n;
}

void canary_off(struct canary *x)
{
	x->armed = false;
}

/* Private memory: before it is read, a system call shows that it is there. */
struct gather {
	struct canary *x;
	const uint8_t *slot;
	uint32_t n, nprobe;
	struct iovec probe[2 * CANARY_PROBES]; /* a byte of each page */
	uint32_t of[2 * CANARY_PROBES];	       /* which of the places it is in */
	struct canary_place at[CANARY_PROBES];
	const uint64_t *word[CANARY_PROBES]; /* what it was; NULL: as in the slot */
};

static bool place_differs(const struct gather *g, const struct canary_place *p,
			  const uint64_t *word)
{
	return word ? word_read(p->src, p->len) != *word
		    : memcmp(p->src, g->slot + p->dst, p->len) != 0;
}

/* The offset in the slot of the first that differs. What is not there any more does. */
static uint64_t gather_compare(struct gather *g)
{
	uint32_t n = TAKE(g->n), nprobe = TAKE(g->nprobe);
	ssize_t got;

	if (n == 0)
		return CANARY_SAME;
	got = pwritev(g->x->scratch_fd, g->probe, (int)nprobe, 0);
	if (got < 0 && errno != EFAULT)
		return CANARY_SAME; /* no memory for it: nothing is known */
	if (MAX(got, 0) < nprobe)
		return g->at[g->of[MAX(got, 0)]].dst;
	for (uint32_t i = 0; i < n; i++)
		if (place_differs(g, &g->at[i], g->word[i]))
			return g->at[i].dst;
	return CANARY_SAME;
}

static void probe_add(struct gather *g, const uint8_t *byte)
{
	g->of[g->nprobe] = g->n;
	g->probe[g->nprobe++] = (struct iovec){ (void *)(uintptr_t)byte, 1 };
}

/* p: at most a page. */
static uint64_t place_compare(struct gather *g, const struct canary_place *p, const uint64_t *word)
{
	const uint8_t *last = p->src + p->len - 1;
	uint64_t found = CANARY_SAME;

	if (!p->own)
		return place_differs(g, p, word) ? p->dst : CANARY_SAME;
	if (g->x->scratch_fd < 0)
		return CANARY_SAME;
	if (g->n == CANARY_PROBES)
		found = gather_compare(g);
	probe_add(g, p->src);
	if (two_pages(p))
		probe_add(g, last);
	g->word[g->n] = word;
	g->at[g->n++] = *p;
	return found;
}

static uint64_t words_compare(struct gather *g)
{
	struct canary *x = g->x;
	uint64_t found = CANARY_SAME;

	for (uint32_t i = 0; i < x->n; i++)
		__builtin_prefetch(x->word[i].src);
	for (uint32_t i = 0; i < x->n && found == CANARY_SAME; i++)
		found = place_compare(g, &x->word[i], &x->note[i].word);
	return found;
}

static uint64_t pages_compare(struct gather *g, struct canary_map *m)
{
	struct canary_place page[CANARY_PAGES];
	uint32_t n = ring_take(&m->page, CANARY_PAGES, page);
	uint64_t found = CANARY_SAME;

	for (uint32_t i = 0; i < n && found == CANARY_SAME; i++)
		found = place_compare(g, &page[i], NULL);
	return found;
}

static uint64_t all_compare(struct gather *g, const struct canary_map *m)
{
	uint64_t found = CANARY_SAME;

	for (uint32_t i = 0; i < m->near.n; i++) {
		const struct wire_row *r = &m->row[m->near.row[i]];
		struct canary_place p;

		for (uint64_t line = 0; line < r->rows; line++)
			for (uint64_t in = 0; in < r->width; in += p.len) {
				place_at(m, r, line, in, CANARY_PAGE, &p);
				found = place_compare(g, &p, NULL);
				if (found != CANARY_SAME)
					return found;
			}
	}
	return found;
}

uint64_t canary_guard(struct canary *x)
{
	struct gather g;
	struct canary_map *m;
	uint64_t found;

	if (!x->armed)
		return CANARY_SAME;
	x->armed = false;
	g.x = x;
	g.n = g.nprobe = 0;
	found = words_compare(&g);
	m = map_enter(x);
	if (found == CANARY_SAME && m && m->serial == x->serial) {
		g.slot = m->slot[x->slot];
		found = x->all ? all_compare(&g, m) : pages_compare(&g, m);
	}
	if (found == CANARY_SAME)
		found = gather_compare(&g);
	map_leave(x);
	return found;
}
