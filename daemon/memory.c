// SPDX-License-Identifier: Apache-2.0
// memory.c - the daemon's reference-counted memory: segments of clients, slots, declarations.
// Invariant: a mapping that a task can reach is held by a reference of that task; a large one is
// undone by the reaper, not by the owner.
#include "ckpt/base/container.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/wire/attributes.h"
#include "daemon/average.h"
#include "daemon/state.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>

static bool refs_drop(_Atomic uint32_t *refs)
{
	return atomic_fetch_sub_explicit(refs, 1, memory_order_acq_rel) == 1;
}

struct segment *segment_ref(struct segment *s)
{
	add_relaxed(&s->refs, 1);
	return s;
}

/* --- giving back --- */
#define RELEASES_MAX 65536u	 /* that wait; further ones are released at once */
#define RELEASE_STEP (256 * MIB) /* at once: the address space is locked as long */

struct release {
	void *base;
	uint64_t bytes;
	int fd; /* -1: none */
};

static void release_do(const struct release *x)
{
	for (uint64_t at = 0; at < x->bytes; at += RELEASE_STEP)
		munmap((uint8_t *)x->base + at, MIN(RELEASE_STEP, x->bytes - at));
	if (x->fd >= 0)
		(void)close(x->fd);
}

static void *reaper_run(void *arg)
{
	struct reaper *r = arg;
	struct release *x;

	while ((x = queue_pop(&r->queue))) {
		release_do(x);
		free(x);
	}
	return NULL;
}

int reaper_start(struct reaper *r)
{
	int rc = queue_init(&r->queue, RELEASES_MAX);

	if (rc == 0)
		rc = thread_start(&r->thread, "ckptd-release", true, reaper_run, r);
	r->runs = rc == 0;
	return rc;
}

void reaper_stop(struct reaper *r)
{
	if (!r->queue.item)
		return;
	queue_close(&r->queue);
	if (r->runs)
		pthread_join(r->thread, NULL);
	r->runs = false;
	queue_destroy(&r->queue);
}

static void give_back(struct reaper *r, struct release x)
{
	struct release *later =
		r && r->runs && x.bytes >= RELEASE_BYTES ? malloc(sizeof *later) : NULL;

	if (later)
		*later = x;
	if (!later || !queue_try_push(&r->queue, later)) {
		free(later);
		release_do(&x);
	}
}

void segment_unref(struct segment *s)
{
	if (!s || !refs_drop(&s->refs))
		return;
	give_back(s->reaper, (struct release){ s->base, s->bytes, -1 });
	free(s);
}

struct slotmem *slotmem_ref(struct slotmem *s)
{
	add_relaxed(&s->refs, 1);
	return s;
}

void slotmem_unref(struct slotmem *s)
{
	if (!s || !refs_drop(&s->refs))
		return;
	give_back(s->reaper, (struct release){ s->base, s->bytes, s->fd });
	free(s);
}

int slotmem_adopt(struct reaper *r, int fd, uint64_t bytes, struct slotmem **ret,
		  struct ckpt_err *err)
{
	struct slotmem *s = calloc(1, sizeof *s);
	struct stat st = { 0 };
	int rc = s ? wire_map(fd, bytes, 0, &s->base, err)
		   : ckpt_error(err, -ENOMEM, "no memory for a slot");

	if (rc < 0) {
		(void)close(fd);
		free(s);
		return rc;
	}
	s->refs = 1;
	s->fd = fd;
	s->ino = fstat(fd, &st) < 0 ? 0 : st.st_ino;
	s->bytes = bytes;
	s->reaper = r;
	*ret = s;
	return 0;
}

int slotmem_new(struct reaper *r, uint64_t bytes, struct slotmem **ret, struct ckpt_err *err)
{
	int fd, rc = wire_memfd("ckptd-slot", bytes, &fd, err);

	return rc < 0 ? rc : slotmem_adopt(r, fd, bytes, ret, err);
}

int slotmem_touch(struct slotmem *s)
{
	int rc = pages_commit(s->fd, s->base, s->bytes);

	s->touched = rc == 0;
	return rc;
}

struct extent {
	uint64_t off, end;
};

static int by_off(const void *va, const void *vb)
{
	const struct extent *a = va, *b = vb;

	return COMPARE(a->off, b->off);
}

int slotmem_clean(struct slotmem *s, const struct decl *d)
{
	const struct table *made = decl_part(d, PART_AVERAGE);
	uint64_t most = (uint64_t)d->part.npiece + (made ? made->npiece : 0) + 1;
	cleanup_free struct extent *x = calloc(most, sizeof *x);
	uint64_t end = 0, n = 0;

	if (!x)
		return -ENOMEM;
	for (uint32_t i = 0; i < d->part.npiece; i++) {
		const struct table_piece *p = &d->part.piece[i];

		if (!(d->part.tensor[p->tensor].flags & TENSOR_BLOB))
			x[n++] = (struct extent){ p->off, p->off + p->len };
	}
	for (uint32_t i = 0; made && i < made->npiece; i++) {
		uint64_t off = d->average_at + made->piece[i].off;

		x[n++] = (struct extent){ off, off + made->piece[i].len };
	}
	qsort(x, n, sizeof *x, by_off);
	x[n++] = (struct extent){ s->bytes, s->bytes };
	for (uint64_t i = 0; i < n && !MUTANT(SLOT_NOT_CLEANED); i++) {
		if (x[i].off > end)
			memset((uint8_t *)s->base + end, 0, x[i].off - end);
		end = MAX(end, x[i].end);
	}
	s->dirty = false;
	return 0;
}

struct decl *decl_ref(struct decl *d)
{
	add_relaxed(&d->refs, 1);
	return d;
}

struct decl *decl_slot_ref(struct decl *d)
{
	add_relaxed(&d->slots, 1);
	return d;
}

void decl_slot_unref(struct decl *d)
{
	if (!d || !refs_drop(&d->slots))
		return;
	averages_free(d->averages);
	turns_free(d->turns);
	free(d->attributes);
	table_free(&d->constant);
	table_free(&d->main);
	table_free(&d->part);
	names_unref(d->names);
	free(d);
}

void decl_unref(struct decl *d)
{
	if (!d || !refs_drop(&d->refs))
		return;
	plan_free(&d->copy);
	table_free(&d->table);
	for (uint32_t i = 0; d->seg && i < d->nseg && !MUTANT(SEGMENTS_KEPT); i++)
		segment_unref(d->seg[i]);
	free(TAKE(d->seg));
	free(TAKE(d->base));
	free(TAKE(d->boxes));
	free(TAKE(d->boxes_mesh));
	drift_decl_free(TAKE(d->drift));
	if (d->rows_fd >= 0)
		(void)close(TAKE_FD(d->rows_fd));
	decl_slot_unref(d);
}

static int decl_rows(struct decl *d, struct ckpt_err *err)
{
	cleanup_free struct wire_row *row = NULL;
	int rc = rows_make(&d->copy, d->own, d->turns, &row, &d->nrow, err);
	uint32_t n = drift_nrow(d->drift);
	struct wire_row *all =
		rc == 0 && n ? realloc(row, (d->nrow + (size_t)n) * sizeof *row) : NULL;

	if (rc == 0 && n && !all)
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	if (all) {
		row = all;
		drift_rows(d, row + d->nrow);
		d->nrow += n;
	}
	if (rc == 0 && d->nrow)
		return wire_memfd_of("ckptd-rows", row, d->nrow * sizeof *row, &d->rows_fd, err);
	return rc;
}

/* What the library copies is no part of the daemon's plan any more. Operations are sorted by place,
 * and that one is the last. */
static void decl_leave_own(struct decl *d)
{
	struct plan *p = &d->copy;

	while (p->nop && p->op[p->nop - 1].src_place == d->own)
		d->own_bytes += p->op[--p->nop].bytes;
	p->bytes -= d->own_bytes;
}

char *decl_name_at(const struct decl *d, uint64_t off, char *buf, size_t bytes)
{
	for (uint32_t i = 0; i < d->part.npiece; i++) {
		const struct table_piece *p = &d->part.piece[i];

		if (off >= p->off && off - p->off < p->len)
			return table_tensor_print(&d->part.tensor[p->tensor], buf, bytes);
	}
	snprintf(buf, bytes, "its state");
	return buf;
}

static int decl_attributes(struct decl *d, const struct container_bytes *b, struct ckpt_err *err)
{
	int rc;

	if (d->rank != 0 || b->rec_bytes != 1)
		return ckpt_error(err, -EPROTO,
				  "rank %u sends attributes: those of rank 0 alone are kept",
				  d->rank);
	rc = attributes_check(b->p, b->len, &d->nattribute, err);
	if (rc < 0)
		return rc;
	d->attributes = malloc(b->len + 1);
	if (!d->attributes)
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	memcpy(d->attributes, b->p, b->len);
	d->attributes_bytes = b->len;
	return 0;
}

/* *ret_devices: its section WIRE_DEVICES, in bytes; it may be empty. */
static int decl_decode(const void *bytes, uint64_t len, struct decl *d,
		       struct container_bytes *ret_devices, struct ckpt_err *err)
{
	struct container_view v;
	struct table_section s[CONTAINER_SECT_MAX];
	int rc = container_decode(bytes, len, CONTAINER_DECLARATION, &v, err);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < v.map.nsect; i++) {
		struct container_bytes b = container_view_get(&v, v.map.sect[i].kind);

		if (b.kind == WIRE_ATTRIBUTES && b.len && (rc = decl_attributes(d, &b, err)) < 0)
			return rc;
		if (b.kind == WIRE_DEVICES)
			*ret_devices = b;
		s[i] = (struct table_section){ .kind = b.kind,
					       .rec_bytes = b.rec_bytes,
					       .len = b.len,
					       .count = b.count,
					       .bytes = b.p };
	}
	return table_decode(s, v.map.nsect, NULL, 0, &d->table, err);
}

static int decl_places(struct decl *d, struct segment *const *seg, uint32_t nseg,
		       struct ckpt_err *err)
{
	uint32_t n = d->table.nplace;

	d->seg = calloc(n ? n : 1, sizeof(struct segment *));
	d->base = calloc(n ? n : 1, sizeof(void *));
	if (!d->seg || !d->base)
		return ckpt_error(err, -ENOMEM, "no memory for a declaration");
	d->own = n && d->table.place[n - 1].bytes == WIRE_OWN_BYTES ? n - 1 : TABLE_NONE;
	d->nseg = d->own == TABLE_NONE ? n : n - 1;
	for (uint32_t i = 0; i < d->nseg; i++) {
		const struct table_place *p = &d->table.place[i];

		if (i >= nseg || !seg[i] || seg[i]->bytes < p->bytes)
			return ckpt_error(err, -EPROTO,
					  "rank %u declares segment %u of %" PRIu64
					  " bytes, but has not sent it",
					  d->rank, i, p->bytes);
		d->seg[i] = segment_ref(seg[i]);
		d->base[i] = seg[i]->base;
	}
	return 0;
}

/* Everything that has no pieces yet. */
static int slot_begin(const struct table *from, uint64_t bytes, struct table *ret,
		      struct ckpt_err *err)
{
	struct table_place place = from->place[0];
	int rc = 0;

	*ret = (struct table){ 0 };
	place.bytes = bytes;
	for (uint32_t i = 0; i < from->nmesh && rc == 0; i++)
		rc = table_add_mesh(ret, &from->mesh[i], NULL, err);
	for (uint32_t i = 0; i < from->nlayout && rc == 0; i++)
		rc = table_add_layout(ret, &from->layout[i], NULL, err);
	return rc == 0 ? table_add_place(ret, &place, NULL, err) : rc;
}

static int slot_add(struct table *slot, const struct table *part, uint64_t at, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < part->npiece && rc == 0; i++) {
		const struct table_tensor *x = &part->tensor[part->piece[i].tensor];
		struct table_piece p = part->piece[i];

		p.tensor = table_find(slot, x->component, x->name, x->rank);
		p.off += at;
		rc = table_add_piece(slot, &p, err);
	}
	return rc;
}

/* One table of both parts, as they lie in the slot. */
static int slot_table(struct decl *d, struct ckpt_err *err)
{
	const struct table *m = &d->main;
	int rc;

	d->const_at = align_up(m->place[0].bytes, 2 * MIB);
	rc = slot_begin(m, d->const_at + d->constant.place[0].bytes, &d->part, err);
	for (uint32_t i = 0; i < m->ntensor && rc == 0; i++)
		rc = table_add_tensor(&d->part, &m->tensor[i], NULL, err);
	if (rc == 0)
		rc = slot_add(&d->part, m, 0, err);
	if (rc == 0)
		rc = slot_add(&d->part, &d->constant, d->const_at, err);
	return rc == 0 ? table_seal(&d->part, err) : rc;
}

/* What never changes lies behind the rest: in the file it is a part of its own. */
static int decl_slot(struct decl *d, struct ckpt_errlist *list, struct ckpt_err *err)
{
	int rc = native_part_table_of(&d->table, d->rank, NATIVE_MAIN, &d->main, list, err);

	if (rc == 0)
		rc = native_part_table_of(&d->table, d->rank, NATIVE_CONST, &d->constant, NULL,
					  err);
	if (rc < 0)
		return rc;
	if (d->constant.npiece)
		return slot_table(d, err);
	d->part = d->main;
	d->main = (struct table){ 0 };
	return 0;
}

const struct table *decl_part(const struct decl *d, uint32_t kind)
{
	if (kind == PART_AVERAGE)
		return d->averages && d->averages->made.npiece ? &d->averages->made : NULL;
	if (kind == PART_CONST)
		return d->constant.npiece ? &d->constant : NULL;
	return d->constant.npiece ? &d->main : &d->part;
}

static int table_repack(struct table *t, struct names *n)
{
	struct table packed;
	int rc = t->sealed ? table_pack(t, n, &packed) : 0;

	if (rc < 0 || !t->sealed)
		return rc;
	table_free(t);
	*t = packed;
	return 0;
}

/* Before anything points into its tables. */
static int decl_pack(struct decl *d)
{
	struct table *const table[] = { &d->table, &d->part, &d->main, &d->constant };
	int rc = 0;

	for (uint32_t i = 0; i < ARRAY_LEN(table) && rc == 0; i++)
		rc = table_repack(table[i], d->names);
	return rc;
}

/* Behind its tables are packed: the averages point into them. What the library brings of replicas
 * lies between the tensors and the averages. */
static int decl_averages(struct decl *d, struct ckpt_err *err)
{
	int rc = averages_make(&d->table, decl_part(d, PART_MAIN), d->rank, d->names, &d->averages,
			       err);

	d->replicas_at = align_up(d->part.place[0].bytes, 4096);
	d->average_at = align_up(MAX(d->replicas_at + drift_bytes(d->drift), UINT64_C(1)), 2 * MIB);
	d->raw_bytes = d->average_at;
	if (rc == 0 && d->averages)
		d->raw_bytes =
			align_up(d->average_at + d->averages->bytes + SLOT_SEAL_BYTES, 2 * MIB);
	return rc;
}

/* A blob lies in a segment: only ckpt_snapshot copies it. (What else is copied by value may lie on
 * a device of the process, from where the library copies it.) */
static int pieces_check(const struct decl *d, struct ckpt_err *err)
{
	const struct table *t = &d->table;

	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].flags & TENSOR_BLOB && t->tensor[i].numel < 64)
			return ckpt_error(err, -EPROTO, "rank %u declares a blob without its head",
					  d->rank);
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_tensor *x = &t->tensor[t->piece[i].tensor];

		if (t->piece[i].flags)
			return ckpt_error(err, -EPROTO, "rank %u declares a piece without bytes",
					  d->rank);
		if (t->piece[i].place == d->own && x->flags & TENSOR_BLOB)
			return ckpt_error(err, -EPROTO,
					  "rank %u declares memory of its own for blob %s", d->rank,
					  x->name);
	}
	return 0;
}

static void pieces_sum(struct hash128_state *s, const struct table *t, uint64_t from)
{
	for (uint32_t i = 0; i < t->npiece; i++) {
		const struct table_piece *p = &t->piece[i];
		const uint64_t at[] = { from + p->off, p->len, t->tensor[p->tensor].flags };

		hash128_add(s, at, sizeof at);
	}
}

static uint64_t slot_sum(const struct decl *d)
{
	struct hash128_state s;

	hash128_begin(&s);
	pieces_sum(&s, &d->part, 0);
	if (d->averages)
		pieces_sum(&s, &d->averages->made, d->average_at);
	return hash_word(hash128_end(&s));
}

int decl_make(const void *bytes, uint64_t len, uint32_t epoch, uint32_t rev, uint32_t rank,
	      struct segment *const *seg, uint32_t nseg, struct names *names, struct decl **ret,
	      struct ckpt_err *err)
{
	struct decl *d = calloc(1, sizeof *d);
	struct ckpt_errlist list = { .code = -EINVAL };
	struct container_bytes devices = { 0 };
	int rc = d ? 0 : ckpt_error(err, -ENOMEM, "no memory for a declaration");

	if (rc < 0)
		return rc;
	d->refs = d->slots = 1;
	d->names = names_ref(names);
	d->rows_fd = -1;
	d->epoch = epoch;
	d->rev = rev;
	d->rank = rank;
	rc = decl_decode(bytes, len, d, &devices, err);
	if (rc == 0)
		rc = decl_places(d, seg, nseg, err);
	if (rc == 0)
		rc = pieces_check(d, err);
	if (rc == 0)
		rc = decl_slot(d, &list, err);
	if (rc == 0 && (boxes_note(d) < 0 || table_boxes_forget(&d->table) < 0))
		rc = ckpt_error(err, -ENOMEM, "no memory for a declaration");
	if (rc == 0 && decl_pack(d) < 0)
		rc = ckpt_error(err, -ENOMEM, "no memory for a declaration");
	if (rc == 0)
		rc = drift_decl_make(d, err);
	if (rc == 0)
		rc = decl_averages(d, err);
	if (rc == 0 && devices.len)
		rc = turns_make(d, devices.p, devices.len, err);
	if (rc == 0) {
		struct plan_opts opts = { .memory_blobs = true };

		rc = plan_make(&d->table, &d->part, &opts, &d->copy, &list, err);
	}
	if (rc == 0)
		rc = decl_rows(d, err);
	if (list.n)
		rc = ckpt_errlist_end(&list, err, "the declaration of rank %u is inconsistent",
				      rank);
	ckpt_errlist_free(&list);
	if (rc < 0) {
		decl_unref(d);
		return rc;
	}
	decl_leave_own(d);
	d->slot_sum = slot_sum(d);
	d->copy_bytes = d->copy.bytes;
	*ret = d;
	return 0;
}

/* Dimensions of a blob are its capacity. */
static bool tensor_same(const struct table *x, const struct table *y, uint32_t i)
{
	const struct table_tensor *a = &x->tensor[i], *b = &y->tensor[i];
	struct ckpt_errlist list = { .code = -EINVAL };
	bool same;

	if (strcmp(a->component, b->component) != 0 || strcmp(a->name, b->name) != 0 ||
	    a->rank != b->rank || a->flags != b->flags)
		return false;
	if (a->flags & TENSOR_BLOB)
		return a->media == b->media;
	table_tensor_compare(x, i, "then", y, i, "now", &list);
	same = list.n == 0 && boxes_sum(x, i) == boxes_sum(y, i);
	ckpt_errlist_free(&list);
	return same;
}

int decl_moves_only(const struct decl *old, const struct decl *now, struct ckpt_err *err)
{
	const struct table *x = &old->table, *y = &now->table;
	char name[TABLE_KEY_BYTES + 32];
	struct ckpt_errlist list = { .code = -EINVAL };
	int rc;

	if (old->attributes_bytes != now->attributes_bytes ||
	    (now->attributes_bytes &&
	     memcmp(old->attributes, now->attributes, now->attributes_bytes) != 0))
		return ckpt_error(err, -EINVAL,
				  "attributes may be other ones only with a new ckpt_seal of every "
				  "rank");
	averages_compare(old, "then", now, "now", &list);
	rc = ckpt_errlist_end(&list, err,
			      "averages may be other ones only with a new ckpt_seal of every rank");
	ckpt_errlist_free(&list);
	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < MIN(x->ntensor, y->ntensor); i++)
		if (!tensor_same(x, y, i))
			return ckpt_error(err, -EINVAL,
					  "%s: only its memory may be another one without a new "
					  "ckpt_seal of every rank",
					  table_tensor_print(&y->tensor[i], name, sizeof name));
	if (x->ntensor != y->ntensor)
		return ckpt_error(err, -EINVAL,
				  "%u tensors were declared and now %u: that needs a new ckpt_seal "
				  "of every rank",
				  x->ntensor, y->ntensor);
	for (uint32_t i = 0; i < MIN(old->nboxes, now->nboxes); i++)
		if (old->boxes_mesh[old->boxes[i].mesh].sum !=
		    now->boxes_mesh[now->boxes[i].mesh].sum)
			return ckpt_error(err, -EINVAL,
					  "%s: its mesh is another one: that needs a new ckpt_seal "
					  "of every rank",
					  table_tensor_print(&y->tensor[now->boxes[i].tensor], name,
							     sizeof name));
	return 0;
}

static uint64_t pieces_end(const struct table *t)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < t->npiece; i++)
		end = MAX(end, t->piece[i].off + t->piece[i].len);
	return end;
}

/* A by-value blob is declared as its cap and 64 bytes in front, the first 8 of which say how long
 * it is now (client/declare.c). Its pieces: one, or none where it has no bytes. */
static int blob_now(struct table *t, uint32_t i, const void *raw, struct arena *a)
{
	struct table_tensor *x = &t->tensor[i];
	struct table_piece *p = &t->piece[t->first[i]];
	const uint64_t zero = 0, head = 64;
	uint64_t *shape;
	le64 now;

	if (t->first[i] == t->first[i + 1])
		return 0;
	shape = arena_alloc(a, sizeof *shape);
	if (!shape)
		return -ENOMEM;
	memcpy(&now, (const uint8_t *)raw + p->off, sizeof now);
	*shape = MIN(le64_get(now), x->shape[0] - head);
	x->shape = shape;
	x->numel = p->len = *shape;
	p->off += head;
	return indexset_box(1, &zero, shape, a, &p->set);
}

/* Without the pieces that have no bytes. */
static void empty_leave(struct table *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0, k = 0; i < t->ntensor; i++) {
		t->first[i] = n;
		for (; k < t->npiece && t->piece[k].tensor == i; k++)
			if (t->piece[k].len)
				t->piece[n++] = t->piece[k];
	}
	t->first[t->ntensor] = t->npiece = n;
}

/* It needs t as long as it is there. */
static int table_now(const struct table *t, const void *raw, struct table *ret,
		     struct ckpt_err *err)
{
	bool empty = false;
	int rc;

	*ret = (struct table){ 0 };
	rc = table_twin(t, ret);

	for (uint32_t i = 0; i < t->ntensor && rc == 0; i++)
		if (t->tensor[i].flags & TENSOR_BLOB) {
			rc = blob_now(ret, i, raw, &ret->arena);
			empty |= !ret->tensor[i].numel;
		}
	if (rc < 0) {
		table_free(ret);
		return ckpt_error(err, rc, "no memory for the table of a slot");
	}
	if (empty)
		empty_leave(ret);
	/* A blob that is shorter than its capacity may be the last: the raw space ends where the
	 * last piece does. */
	ret->place[0].bytes = pieces_end(ret);
	return 0;
}

/* What is in `now`, and behind it the averages. The sets are those of the two, but for blobs'. */
static int slot_averaged(const struct decl *d, const struct table *now, struct table *ret,
			 struct ckpt_err *err)
{
	const struct table *made = &d->averages->made;
	int rc = slot_begin(now, d->average_at + made->place[0].bytes, ret, err);

	if (rc == 0 && table_reserve(ret, (uint64_t)now->ntensor + made->ntensor,
				     (uint64_t)now->npiece + made->npiece) < 0)
		rc = ckpt_error(err, -ENOMEM, "no memory for the table of a slot");
	for (uint32_t i = 0; i < made->naverage && rc == 0; i++)
		rc = table_add_average(ret, &made->average[i], NULL, err);
	for (uint32_t i = 0; i < now->ntensor && rc == 0; i++)
		rc = table_add_tensor(ret, &now->tensor[i], NULL, err);
	for (uint32_t i = 0; i < made->ntensor && rc == 0; i++)
		rc = table_add_tensor(ret, &made->tensor[i], NULL, err);
	for (uint32_t i = 0; i < now->npiece && rc == 0; i++)
		rc = now->tensor[now->piece[i].tensor].flags & TENSOR_BLOB
			     ? table_add_piece(ret, &now->piece[i], err)
			     : table_put_piece(ret, &now->piece[i], err);
	for (uint32_t i = 0; i < made->npiece && rc == 0; i++) {
		struct table_piece p = made->piece[i];

		p.tensor += now->ntensor;
		p.off += d->average_at;
		rc = table_put_piece(ret, &p, err);
	}
	if (rc == 0)
		rc = table_seal(ret, err);
	if (rc < 0)
		table_free(ret);
	return rc;
}

int decl_slot_now(const struct decl *d, const void *raw, bool averaged, struct table *ret,
		  struct ckpt_err *err)
{
	struct table now;
	int rc;

	if (!averaged || !d->averages)
		return table_now(&d->part, raw, ret, err);
	rc = table_now(&d->part, raw, &now, err);
	if (rc < 0)
		return rc;
	rc = slot_averaged(d, &now, ret, err);
	table_free(&now);
	return rc;
}

int decl_part_now(const struct decl *d, uint32_t kind, const void *raw, struct table *ret,
		  struct ckpt_err *err)
{
	return table_now(decl_part(d, kind), raw, ret, err);
}

const void *decl_part_raw(const struct decl *d, uint32_t kind, const void *raw)
{
	const uint64_t at[PART_KINDS] = { 0, d->const_at, d->average_at };

	return (const uint8_t *)raw + at[kind];
}

uint64_t decl_bytes_max(const struct decl *d, bool with_const)
{
	const struct table *constant = decl_part(d, PART_CONST);
	const struct table *made = decl_part(d, PART_AVERAGE);
	uint64_t bytes = native_part_bytes_max(decl_part(d, PART_MAIN),
					       (constant ? 1u : 0u) + (made ? 1u : 0u));

	if (made)
		bytes += native_part_bytes_max(made, 0);
	return constant && with_const ? bytes + native_part_bytes_max(constant, 0) : bytes;
}
