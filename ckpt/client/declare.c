// SPDX-License-Identifier: Apache-2.0
// declare.c - meshes, tensors and blobs of a handle: checked as they come, encoded as one table
// at the seal, and what is copied by value. Called by client.c and mark.c.
// Invariant: every piece that is encoded lies inside one segment, which the daemon reads, or in the
// process's own memory, which the library alone reads.
#include "ckpt/base/container.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/client/abi.h"
#include "ckpt/client/handle.h"
#include "ckpt/table/encode.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/random.h>

/* --- segments --- */
/* The place in seg_by_base of the first segment above this address. */
static uint32_t segments_upto(const ckpt *c, const void *ptr)
{
	return SEARCH(i, 0u, c->nseg, (uintptr_t)c->seg[c->seg_by_base[i]].base <= (uintptr_t)ptr);
}

/* All of it is in memory, on huge pages where there are some, before the trainer has it: a full
 * host is an error here, and no SIGBUS amid its training. */
static int segment_commit(int fd, void *base, uint64_t bytes, struct ckpt_err *err)
{
	int rc = MUTANT(ALLOC_UNTOUCHED) ? 0 : pages_commit(fd, base, bytes);

	return rc < 0 ? ckpt_error_errno(err, -rc, "no memory for %" PRIu64 " shared bytes", bytes)
		      : 0;
}

int segment_new(ckpt *c, uint64_t bytes, uint32_t *ret_seg, struct ckpt_err *err)
{
	uint64_t whole = align_up(bytes, PAGES_HUGE);
	struct seg *seg = realloc(c->seg, (c->nseg + 1) * sizeof *seg);
	uint32_t at, *by_base;
	void *base;
	int fd, rc;

	if (!seg)
		return ckpt_error(err, -ENOMEM, "no memory for a segment");
	c->seg = seg;
	by_base = realloc(c->seg_by_base, (c->nseg + 1) * sizeof *by_base);
	if (!by_base)
		return ckpt_error(err, -ENOMEM, "no memory for a segment");
	c->seg_by_base = by_base;
	if (c->nseg >= WIRE_SEGMENTS_MAX)
		return ckpt_error(err, -E2BIG,
				  "more than %u ckpt_alloc calls: allocate larger segments",
				  WIRE_SEGMENTS_MAX);
	rc = wire_memfd("ckpt-segment", whole, &fd, err);
	if (rc < 0)
		return rc;
	rc = pages_map(fd, whole, PROT_READ | PROT_WRITE, &base);
	if (rc < 0) {
		(void)close(fd);
		return ckpt_error_errno(err, -rc, "cannot map %" PRIu64 " bytes of shared memory",
					whole);
	}
	/* What lies behind the bytes that were asked for is not used, and stays untouched. */
	rc = segment_commit(fd, base, align_up(bytes, UINT64_C(4096)), err);
	if (rc < 0) {
		(void)munmap(base, whole);
		(void)close(fd);
		return rc;
	}
	at = segments_upto(c, base);
	memmove(by_base + at + 1, by_base + at, (c->nseg - at) * sizeof *by_base);
	by_base[at] = c->nseg;
	c->seg[c->nseg] = (struct seg){ .base = base, .bytes = whole, .fd = fd };
	*ret_seg = c->nseg++;
	return 0;
}

/* The new pages come over the old ones in one step. A daemon that lives keeps the old ones
 * mapped. */
static int segment_renew(struct seg *s, struct ckpt_err *err)
{
	cleanup_close int fd = -1;
	void *p;
	int rc = wire_memfd("ckpt-segment", s->bytes, &fd, err);

	if (rc == 0 && (rc = pages_map(fd, s->bytes, PROT_READ | PROT_WRITE, &p)) < 0)
		ckpt_error_errno(err, -rc, "cannot map %" PRIu64 " bytes of shared memory",
				 s->bytes);
	if (rc < 0)
		return rc;
	rc = segment_commit(fd, p, s->bytes, err);
	if (rc < 0) {
		munmap(p, s->bytes);
		return rc;
	}
	memcpy(p, s->base, s->bytes);
	if (mremap(p, s->bytes, s->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, s->base) != s->base) {
		rc = ckpt_error_errno(err, errno, "cannot exchange %" PRIu64 " bytes of memory",
				      s->bytes);
		munmap(p, s->bytes);
		return rc;
	}
	(void)close(s->fd);
	s->fd = TAKE_FD(fd);
	return 0;
}

int segments_renew(ckpt *c, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->nseg && rc == 0; i++) {
		struct seg s = c->seg[i];

		rc = segment_renew(&s, err);
		pthread_mutex_lock(&c->mem);
		c->seg[i] = s;
		pthread_mutex_unlock(&c->mem);
	}
	return rc;
}

static bool segment_find(const ckpt *c, const void *ptr, uint64_t span, uint32_t *ret_seg,
			 uint64_t *ret_off)
{
	uint32_t above = segments_upto(c, ptr), i = above ? c->seg_by_base[above - 1] : c->shadow;
	uint64_t off;

	if (i == c->shadow)
		return false;
	off = (uint64_t)((const uint8_t *)ptr - (const uint8_t *)c->seg[i].base);
	if (off >= c->seg[i].bytes || span > c->seg[i].bytes - off)
		return false;
	*ret_seg = i;
	*ret_off = off;
	return true;
}

/* --- meshes --- */
int ckpt_mesh(ckpt *c, uint32_t ndim, const char *const *name, const uint32_t *dim,
	      const uint32_t *rank, uint32_t *ret_mesh, struct ckpt_err *err)
{
	struct mesh m = { .ndim = ndim, .name = name, .dim = dim, .nrank = 1, .rank = rank };
	cleanup_free uint32_t *iota = NULL;
	int rc = client_check(c, err);

	if (rc < 0)
		return rc;
	if (ndim > CKPT_DIMS_MAX || (ndim && (!name || !dim)) || !ret_mesh)
		return ckpt_error(err, -EINVAL,
				  "a mesh has at most %d dimensions, each with a name and a size",
				  CKPT_DIMS_MAX);
	for (uint32_t i = 0; i < ndim; i++)
		if (__builtin_mul_overflow(m.nrank, dim[i], &m.nrank) ||
		    m.nrank > LAYOUT_RANKS_MAX || !name[i])
			return ckpt_error(
				err, -EINVAL,
				"mesh dimension %u has no name, or the mesh has more than %u ranks",
				i, LAYOUT_RANKS_MAX);
	if (!rank) {
		iota = calloc(m.nrank ? m.nrank : 1, sizeof *iota);
		if (!iota)
			return ckpt_error(err, -ENOMEM, "no memory for a mesh");
		for (uint32_t i = 0; i < m.nrank; i++)
			iota[i] = i;
		m.rank = iota;
	}
	rc = mesh_check(&m, err);
	for (uint32_t i = 0; i < m.nrank && rc == 0; i++)
		if (m.rank[i] >= c->world)
			rc = ckpt_error(err, -EINVAL,
					"the mesh names rank %u, but the world has %u ranks",
					m.rank[i], c->world);
	return rc < 0 ? rc : table_add_mesh(&c->meshes, &m, ret_mesh, err);
}

/* --- tensors --- */
static int name_check(const char *what, const char *s, bool may_be_empty, struct ckpt_err *err)
{
	if (!s || (!*s && !may_be_empty) || strnlen(s, CKPT_NAME_MAX + 1) > CKPT_NAME_MAX)
		return ckpt_error(err, -EINVAL, "a %s must have 1 to %d bytes", what,
				  CKPT_NAME_MAX);
	return 0;
}

static int span_of(const struct part_of *p, uint32_t elem, uint64_t *ret_span)
{
	uint64_t span = elem;

	for (uint32_t d = 0; d < p->ndim; d++) {
		uint64_t n;

		if (p->extent[d] == 0) {
			*ret_span = 0;
			return 0;
		}
		if (p->stride[d] < 0 ||
		    ckpt_mul(p->extent[d] - 1, (uint64_t)p->stride[d], &n) < 0 ||
		    ckpt_mul(n, elem, &n) < 0 || ckpt_add(span, n, &span) < 0)
			return -EINVAL;
	}
	*ret_span = span;
	return 0;
}

/* numbers: space for 3 per dimension. */
/* The daemon reads segments, the library what is the process's own. */
static int place_take(ckpt *c, const struct ckpt_tensor *t, struct part_of *p, struct ckpt_err *err)
{
	int rc = 0;

	if (segment_find(c, p->ptr, p->span, &p->seg, &p->off) && !p->shadow)
		return 0;
	if (p->bytes)
		rc = devices_find(c, p->ptr, p->span, &p->device, err);
	if (rc < 0)
		return ckpt_error_prefix(err, rc, "%s/%s", t->component, t->name);
	p->own = !p->shadow || p->device;
	return 0;
}

static int local_take(ckpt *c, const struct ckpt_tensor *t, const struct indexset *share,
		      const struct ckpt_local *l, uint64_t *numbers, struct part_of *ret,
		      struct ckpt_err *err)
{
	uint32_t elem = dtype_bytes(t->dtype);
	uint64_t span, numel = 1;
	int64_t dense = 1;

	*ret = (struct part_of){ .ptr = l->ptr,
				 .ndim = t->ndim,
				 .start = numbers,
				 .extent = numbers + t->ndim,
				 .stride = (int64_t *)(numbers + 2 * t->ndim),
				 .dense = true,
				 .boxed = l->start || l->extent || t->mode == CKPT_BOXES };
	if (!l->start != !l->extent)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: a ckpt_local needs both start and extent, or neither",
				  t->component, t->name);
	if (t->mode == CKPT_BOXES && t->ndim && !l->start)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: with CKPT_BOXES, each ckpt_local needs start and extent",
				  t->component, t->name);
	for (uint32_t d = 0; d < t->ndim; d++) {
		ret->start[d] = l->start ? l->start[d] : 0;
		ret->extent[d] = l->extent ? l->extent[d] : share->dim[d].total;
		if (l->start &&
		    (l->start[d] > t->shape[d] || l->extent[d] > t->shape[d] - l->start[d]))
			return ckpt_error(
				err, -EINVAL,
				"%s/%s: the local box is outside the tensor in dimension %u",
				t->component, t->name, d);
		numel *= ret->extent[d];
	}
	for (uint32_t d = t->ndim; d-- > 0;) {
		ret->stride[d] = l->stride ? l->stride[d] : dense;
		ret->dense &= ret->extent[d] == 1 || ret->stride[d] == dense;
		if (numel && __builtin_mul_overflow(dense, (int64_t)ret->extent[d], &dense))
			return ckpt_error(err, -EINVAL, "%s/%s: the local box is too large",
					  t->component, t->name);
	}
	ret->bytes = numel * elem;
	if (span_of(ret, elem, &span) < 0)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: strides must be 0 or more and stay below 2^63 bytes",
				  t->component, t->name);
	if (numel && !l->ptr)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: the box has %" PRIu64
				  " elements, but no memory (ptr is NULL)",
				  t->component, t->name, numel);
	ret->shadow = t->cls == CKPT_VOLATILE;
	if (numel && (uintptr_t)l->ptr > WIRE_OWN_BYTES - MIN(span, WIRE_OWN_BYTES))
		return ckpt_error(err, -EINVAL,
				  "%s/%s: no memory of a process reaches from %p so far as its "
				  "strides say",
				  t->component, t->name, l->ptr);
	ret->span = span;
	return place_take(c, t, ret, err);
}

static int locals_take(ckpt *c, const struct ckpt_tensor *t, const struct indexset *share,
		       const struct ckpt_local *l, uint32_t n, struct declared *ret,
		       struct ckpt_err *err)
{
	size_t count = 3 * (size_t)t->ndim, each = sizeof(struct part_of) + count * 8;
	struct part_block *b = NULL;
	uint64_t *numbers;
	int rc = 0;

	if (n < SIZE_MAX / each - 1)
		b = calloc(1, sizeof *b + n * each);
	if (!b)
		return ckpt_error(err, -ENOMEM, "no memory for a tensor");
	numbers = (uint64_t *)&b->part[n];
	for (uint32_t i = 0; i < n && rc == 0; i++)
		rc = local_take(c, t, share, &l[i], numbers + i * count, &b->part[i], err);
	if (rc == 0 && n == 0 && share->numel)
		rc = ckpt_error(err, -EINVAL,
				"%s/%s: this rank holds %" PRIu64
				" elements by its layout, but nlocal is 0",
				t->component, t->name, share->numel);
	if (rc < 0) {
		free(b);
		return rc;
	}
	ret->block = b;
	ret->local = b->part;
	ret->nlocal = n;
	return 0;
}

static void locals_retire(ckpt *c, struct declared *d)
{
	d->block->retired = c->retired;
	c->retired = TAKE(d->block);
	d->local = NULL;
	d->nlocal = 0;
}

static void retired_free(ckpt *c)
{
	for (struct part_block *b = TAKE(c->retired), *next; b; b = next) {
		next = b->retired;
		free(b);
	}
}

void declare_free(ckpt *c)
{
	for (uint32_t i = 0; i < c->ntensor; i++)
		free(c->tensor[i].block);
	retired_free(c);
	free(c->tensor);
	free(c->by_value);
	free(c->blob);
}

static int tensor_check(const ckpt *c, const struct ckpt_tensor *t, struct ckpt_err *err)
{
	uint64_t numel;
	int rc = name_check("component", t->component, false, err);

	if (rc == 0)
		rc = name_check("tensor name", t->name, false, err);
	if (rc < 0)
		return rc;
	if (strchr(t->component, '/'))
		return ckpt_error(err, -EINVAL, "%s/%s: a component cannot have a '/'",
				  t->component, t->name);
	if (t->of && *t->of &&
	    (!strchr(t->of, '/') || strnlen(t->of, TABLE_KEY_BYTES) == TABLE_KEY_BYTES))
		return ckpt_error(
			err, -EINVAL,
			"%s/%s: .of is \"%.60s\", but must be COMPONENT/NAME of another tensor",
			t->component, t->name, t->of);
	if (!dtype_bytes(t->dtype))
		return ckpt_error(err, -EINVAL, "%s/%s: dtype %u is unknown; see enum ckpt_dtype",
				  t->component, t->name, t->dtype);
	if (t->cls > CKPT_SINK || t->role > CKPT_COUNTER)
		return ckpt_error(err, -EINVAL, "%s/%s: class %u or role %u is unknown",
				  t->component, t->name, t->cls, t->role);
	if (t->cls == CKPT_DERIVED && (!t->of || !strchr(t->of, '/')))
		return ckpt_error(err, -EINVAL,
				  "%s/%s: a derived tensor needs .of, COMPONENT/NAME of its FP32 "
				  "master",
				  t->component, t->name);
	if (t->cls == CKPT_DERIVED && t->dtype != CKPT_BF16 && t->dtype != CKPT_F16)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: it is derived, so it must be BF16 or F16, not %s",
				  t->component, t->name, dtype_name(t->dtype));
	if (t->ndim > CKPT_DIMS_MAX || (t->ndim && !t->shape))
		return ckpt_error(err, -EINVAL,
				  "%s/%s: ndim is %u: it must be at most %d, and shape must be set",
				  t->component, t->name, t->ndim, CKPT_DIMS_MAX);
	if (dtype_values(t->dtype) > 1 && !t->ndim)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: a tensor of %s needs a dimension: an element is a byte "
				  "of %u values, which lie side by side in the last dimension; "
				  "declare one value as shape [1]",
				  t->component, t->name, dtype_name(t->dtype),
				  dtype_values(t->dtype));
	if (shape_numel(t->ndim, t->shape, &numel) < 0)
		return ckpt_error(err, -EINVAL, "%s/%s has more than 2^63-1 elements", t->component,
				  t->name);
	if (t->mesh == CKPT_ALONE && t->mode != CKPT_BOXES)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: mesh CKPT_ALONE needs mode CKPT_BOXES: a layout needs a "
				  "mesh from ckpt_mesh",
				  t->component, t->name);
	if (t->mesh >= c->meshes.nmesh && t->mesh != CKPT_ALONE)
		return ckpt_error(err, -EINVAL, "%s/%s: mesh %u was not declared with ckpt_mesh",
				  t->component, t->name, t->mesh);
	if ((t->nplace && !t->place) || (t->nlocal && !t->local) || t->nplace > CKPT_DIMS_MAX)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: nplace or nlocal has no array, or nplace is too large",
				  t->component, t->name);
	if (t->cls != CKPT_SINK && strncmp(t->component, "ema.", 4) == 0)
		return ckpt_error(
			err, -EINVAL,
			"%s/%s: components that begin with ema. belong to the averages of "
			"ckpt_average, which ckptd makes itself: use another component, or "
			"class CKPT_SINK to have an average restored into this memory",
			t->component, t->name);
	if (t->group)
		return ckpt_error(err, -EOPNOTSUPP,
				  "%s/%s: this version does not support guard groups", t->component,
				  t->name);
	return 0;
}

static struct layout layout_of(const struct ckpt_tensor *t)
{
	return (struct layout){
		.mesh = t->mesh, .mode = t->mode, .nplace = t->nplace, .place = t->place
	};
}

/* Nothing: with CKPT_BOXES too, where the boxes themselves say what the rank holds. */
static int share_none(const struct ckpt_tensor *t, struct arena *a, struct indexset *ret,
		      struct ckpt_err *err)
{
	struct indices *none = arena_array(a, t->ndim ? t->ndim : 1, sizeof *none);

	if (!none)
		return ckpt_error(err, -ENOMEM, "no memory for a tensor");
	*ret = (struct indexset){ .ndim = t->ndim, .dim = none };
	return 0;
}

static int share_take(ckpt *c, const struct ckpt_tensor *t, struct indexset *ret,
		      struct ckpt_err *err)
{
	const struct mesh *m = t->mesh == CKPT_ALONE ? NULL : &c->meshes.mesh[t->mesh];
	const struct layout l = layout_of(t);
	uint32_t coord[CKPT_DIMS_MAX];
	bool inside = !m || mesh_coord(m, c->rank, coord);
	int rc;

	if (t->mode == CKPT_BOXES && !inside && t->nlocal)
		return ckpt_error(err, -EINVAL,
				  "%s/%s: this rank, %u, has boxes on a mesh in which it is not: "
				  "for boxes that it holds alone, mesh is CKPT_ALONE",
				  t->component, t->name, c->rank);
	if (t->mode == CKPT_BOXES || !inside)
		return share_none(t, &c->arena, ret, err);
	rc = layout_share(m, &l, t->ndim, t->shape, coord, &c->arena, ret);
	if (rc < 0)
		return ckpt_error(err, rc, "%s/%s: its layout cannot be held in memory",
				  t->component, t->name);
	return 0;
}

/* CKPT_TORCH_ORDER is of the declaration alone: from here on it is CKPT_CHUNK. */
static int torch_order_take(const struct mesh *m, struct ckpt_tensor *t,
			    struct ckpt_placement place[CKPT_DIMS_MAX], struct ckpt_err *err)
{
	struct ckpt_err why;
	int rc = layout_torch_order(m, t->place, t->nplace, place, &t->nplace, &why);

	t->place = place;
	return rc < 0 ? ckpt_error(err, rc,
				   "%s (CKPT_TORCH_ORDER reads split factors as an order, "
				   "CKPT_CHUNK reads them literally)",
				   why.msg)
		      : 0;
}

/* These bytes in the arena: where it has them already, those. */
static void *bytes_keep(struct arena *a, const void *had, size_t had_bytes, const void *p,
			size_t bytes)
{
	if (had && had_bytes == bytes && (!bytes || !memcmp(had, p, bytes)))
		return (void *)(uintptr_t)had;
	return arena_dup(a, p, bytes);
}

static char *str_keep(struct arena *a, const char *had, const char *s)
{
	return bytes_keep(a, had, had ? strlen(had) + 1 : 0, s, strlen(s) + 1);
}

/* Is the share of x that of y too? What both point to is in the arena, once. */
static bool shares_equal(const struct ckpt_tensor *x, const struct ckpt_tensor *y)
{
	return x->shape == y->shape && x->place == y->place && x->ndim == y->ndim &&
	       x->nplace == y->nplace && x->mesh == y->mesh && x->mode == y->mode;
}

/* ret has what a tensor of this name had that was dropped, if there was one, so
 * that a trainer may drop and add the same tensor any number of times. */
static int tensor_take(ckpt *c, const struct ckpt_tensor *given, struct declared *ret,
		       struct ckpt_err *err)
{
	const struct ckpt_tensor had = ret->t;
	static const struct mesh alone = { .nrank = 1 };
	struct ckpt_tensor mine = *given, *t = &mine;
	const struct mesh *m = t->mesh == CKPT_ALONE ? &alone : &c->meshes.mesh[t->mesh];
	bool torch = t->mode == CKPT_TORCH_ORDER;
	struct ckpt_placement place[CKPT_DIMS_MAX];
	struct arena *a = &c->arena;
	struct ckpt_err why;
	struct layout l;
	int rc;

	if (torch)
		t->mode = CKPT_CHUNK;
	l = layout_of(t);
	rc = layout_check(m, &l, t->ndim, &why);
	if (rc == 0)
		rc = layout_check_saved(m, &l, &why);
	if (rc == 0 && torch && !MUTANT(TORCH_ORDER_LITERAL))
		rc = torch_order_take(m, t, place, &why);
	if (rc < 0)
		return ckpt_error(err, rc, "%s/%s: %s", t->component, t->name, why.msg);
	ret->t = *t;
	ret->t.component = str_keep(a, had.component, t->component);
	ret->t.name = str_keep(a, had.name, t->name);
	ret->t.of = str_keep(a, had.of, t->of ? t->of : "");
	ret->t.shape = bytes_keep(a, had.shape, had.ndim * sizeof *had.shape, t->shape,
				  t->ndim * sizeof *t->shape);
	ret->t.place = bytes_keep(a, had.place, had.nplace * sizeof *had.place, t->place,
				  t->nplace * sizeof *t->place);
	ret->t.local = NULL;
	if (!ret->t.component || !ret->t.name || !ret->t.of || (t->ndim && !ret->t.shape) ||
	    (t->nplace && !ret->t.place))
		return ckpt_error(err, -ENOMEM, "no memory for a tensor");
	rc = had.name && t->mode != CKPT_BOXES && shares_equal(&had, &ret->t)
		     ? 0
		     : share_take(c, t, &ret->share, err);
	if (rc < 0)
		return rc;
	return locals_take(c, &ret->t, &ret->share, t->local, t->nlocal, ret, err);
}

/* --- which tensor has this name --- */
static uint64_t tensor_key(const char *component, size_t bytes, const char *name)
{
	return key_hash(key_hash(0, component, bytes), name, strlen(name));
}

static bool is_named(const struct declared *d, const char *component, size_t bytes,
		     const char *name)
{
	return !strcmp(d->t.name, name) && !strncmp(d->t.component, component, bytes) &&
	       !d->t.component[bytes];
}

/* The tensor of this name, also one that was dropped. */
static struct declared *named_ever(const ckpt *c, const char *component, size_t bytes,
				   const char *name)
{
	uint64_t hash = tensor_key(component, bytes, name);

	for (uint32_t at = 0, i; (i = keymap_next(&c->tensor_names, hash, &at)) != KEYMAP_NONE;)
		if (is_named(&c->tensor[i], component, bytes, name))
			return &c->tensor[i];
	return NULL;
}

const struct declared *named_find(const ckpt *c, const char *component, size_t bytes,
				  const char *name)
{
	const struct declared *d = named_ever(c, component, bytes, name);

	return d && !d->dropped ? d : NULL;
}

int ckpt_tensor_add(ckpt *c, const struct ckpt_tensor *t, uint32_t *ret_id, struct ckpt_err *err)
{
	struct ckpt_tensor mine = { 0 };
	struct declared to = { 0 }, *had;
	int rc = client_check(c, err);
	uint32_t id;

	if (rc < 0)
		return rc;
	rc = abi_take(ABI_TENSOR, &mine, t, err);
	if (rc < 0)
		return rc;
	rc = tensor_check(c, &mine, err);
	if (rc == 0 && (!ARRAY_GROW(c->tensor, c->ntensor, c->cap_tensor) ||
			keymap_reserve(&c->tensor_names, &c->arena, 1) < 0))
		rc = ckpt_error(err, -ENOMEM, "no memory for a tensor");
	if (rc < 0)
		return rc;
	had = named_ever(c, mine.component, strlen(mine.component), mine.name);
	if (had && !had->dropped)
		return ckpt_error(err, -EALREADY,
				  "%s/%s is declared twice: drop the first, or use another name",
				  mine.component, mine.name);
	if (had)
		to = *had;
	rc = tensor_take(c, &mine, &to, err);
	if (rc < 0)
		return rc;
	to.dropped = false;
	id = had ? (uint32_t)(had - c->tensor) : c->ntensor++;
	c->tensor[id] = to;
	if (!had)
		keymap_put(&c->tensor_names,
			   tensor_key(mine.component, strlen(mine.component), mine.name), id);
	if (ret_id)
		*ret_id = id;
	c->dirty = true;
	return 0;
}

static bool boxes_equal(const struct part_of *x, const struct part_of *y, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (x[i].boxed != y[i].boxed ||
		    memcmp(x[i].start, y[i].start, x[i].ndim * sizeof *x[i].start) != 0 ||
		    memcmp(x[i].extent, y[i].extent, x[i].ndim * sizeof *x[i].extent) != 0)
			return false;
	return true;
}

/* With the same boxes it is the same declaration but for where memory lies: a rev of the epoch. */
int ckpt_tensor_move(ckpt *c, uint32_t id, const struct ckpt_local *local, uint32_t nlocal,
		     struct ckpt_err *err)
{
	struct declared *d, to = { 0 };
	int rc = client_check(c, err);

	if (rc < 0)
		return rc;
	if (id >= c->ntensor || c->tensor[id].dropped)
		return ckpt_error(err, -EINVAL, "there is no tensor %u", id);
	d = &c->tensor[id];
	if (nlocal && !local)
		return ckpt_error(err, -EINVAL, "%s/%s: nlocal has no array", d->t.component,
				  d->t.name);
	canary_off(&c->canary);
	rc = locals_take(c, &d->t, &d->share, local, nlocal, &to, err);
	if (rc < 0)
		return rc;
	if (nlocal == d->nlocal && boxes_equal(to.local, d->local, nlocal))
		c->moved = true;
	else
		c->dirty = true;
	locals_retire(c, d);
	d->block = to.block;
	d->local = to.local;
	d->nlocal = nlocal;
	return 0;
}

int ckpt_tensor_drop(ckpt *c, uint32_t id)
{
	int rc = client_alive(c);

	if (rc < 0)
		return rc;
	if (id >= c->ntensor || c->tensor[id].dropped)
		return -EINVAL;
	canary_off(&c->canary);
	c->tensor[id].dropped = true;
	locals_retire(c, &c->tensor[id]);
	c->dirty = true;
	return 0;
}

static struct blob *blob_find(const ckpt *c, const char *name)
{
	uint64_t hash = key_hash(0, name, strlen(name));

	for (uint32_t at = 0, i; (i = keymap_next(&c->blob_names, hash, &at)) != KEYMAP_NONE;)
		if (!strcmp(c->blob[i].name, name))
			return &c->blob[i];
	return NULL;
}

int ckpt_blob_add(ckpt *c, const char *name, int how, const void *ptr, const uint64_t *len,
		  uint64_t cap, struct ckpt_err *err)
{
	uint32_t media = (uint32_t)how >> 8;
	int rc = client_check(c, err);
	char *mine;

	if (rc == 0)
		rc = name_check("blob name", name, false, err);
	if (rc < 0)
		return rc;
	if (!ptr || !len || !cap || cap > GIB)
		return ckpt_error(
			err, -EINVAL,
			"blob %s: ptr and len must not be NULL, and cap must be 1 byte to 1 GiB",
			name);
	if (how & 0xff & ~CKPT_PER_RANK || media > CKPT_MEDIA_NPY)
		return ckpt_error(err, -EOPNOTSUPP,
				  "blob %s: how is 0x%x; this version knows CKPT_PER_RANK with one "
				  "of CKPT_JSON, TEXT, PICKLE, TORCH and NPY",
				  name, (unsigned)how);
	if (!ARRAY_GROW(c->blob, c->nblob, c->cap_blob) ||
	    keymap_reserve(&c->blob_names, &c->arena, 1) < 0)
		return ckpt_error(err, -ENOMEM, "no memory for a blob");
	if (blob_find(c, name))
		return ckpt_error(err, -EALREADY, "blob %s is declared twice", name);
	mine = arena_str(&c->arena, name);
	if (!mine)
		return ckpt_error(err, -ENOMEM, "no memory for a blob");
	keymap_put(&c->blob_names, key_hash(0, mine, strlen(mine)), c->nblob);
	c->blob[c->nblob++] = (struct blob){ .name = mine,
					     .per_rank = how & CKPT_PER_RANK,
					     .media = media,
					     .ptr = ptr,
					     .len = len,
					     .cap = cap };
	c->dirty = true;
	return 0;
}

int ckpt_blob_resize(ckpt *c, const char *name, uint64_t cap, struct ckpt_err *err)
{
	int rc = client_check(c, err);
	struct blob *b;

	if (rc == 0)
		rc = name_check("blob name", name, false, err);
	if (rc < 0)
		return rc;
	b = blob_find(c, name);
	if (!b)
		return ckpt_error(err, -EINVAL,
				  "there is no blob %s: declare it with ckpt_blob_add", name);
	if (!cap || cap > GIB)
		return ckpt_error(err, -EINVAL, "blob %s: cap must be 1 byte to 1 GiB", name);
	if (b->cap == cap)
		return 0;
	b->cap = cap;
	if (b->per_rank)
		c->moved = c->resized = true;
	else
		c->dirty = true; /* all ranks have the same capacity */
	return 0;
}

/* --- memory that the daemon cannot read in place --- */
static void box_copy(uint8_t *to, const int64_t *to_stride, const uint8_t *from,
		     const int64_t *from_stride, const uint64_t *extent, uint32_t ndim,
		     uint32_t elem)
{
	uint64_t at[CKPT_DIMS_MAX] = { 0 };
	uint32_t inner = ndim ? ndim - 1 : 0;

	for (uint32_t d = 0; d < ndim; d++)
		if (extent[d] == 0)
			return;
	for (;;) {
		uint64_t n = ndim ? extent[inner] : 1;
		int64_t a = 0, b = 0;
		uint32_t d;

		for (d = 0; d < inner; d++) {
			a += (int64_t)at[d] * to_stride[d];
			b += (int64_t)at[d] * from_stride[d];
		}
		if (!ndim || (to_stride[inner] == 1 && from_stride[inner] == 1)) {
			memcpy(to + a * elem, from + b * elem, n * elem);
		} else {
			for (uint64_t i = 0; i < n; i++)
				memcpy(to + (a + (int64_t)i * to_stride[inner]) * elem,
				       from + (b + (int64_t)i * from_stride[inner]) * elem, elem);
		}
		for (d = inner; d-- > 0;) {
			if (++at[d] < extent[d])
				break;
			at[d] = 0;
		}
		if (d == UINT32_MAX)
			return;
	}
}

static void dense_strides(const struct part_of *p, int64_t *ret)
{
	int64_t n = 1;

	for (uint32_t d = p->ndim; d-- > 0; n *= (int64_t)p->extent[d])
		ret[d] = n;
}

static void shadow_one(ckpt *c, const struct part_of *p, uint32_t elem, bool out)
{
	uint8_t *shadow = (uint8_t *)c->seg[p->seg].base + p->off;
	int64_t dense[CKPT_DIMS_MAX];

	if (p->dense) {
		uint8_t *to = out ? p->ptr : shadow;
		const uint8_t *from = out ? shadow : p->ptr;

		memcpy(to, from, p->bytes);
		return;
	}
	dense_strides(p, dense);
	if (out)
		box_copy(p->ptr, p->stride, shadow, dense, p->extent, p->ndim, elem);
	else
		box_copy(shadow, dense, p->ptr, p->stride, p->extent, p->ndim, elem);
}

void shadow_copy(ckpt *c, bool out)
{
	for (uint32_t i = 0; i < c->nby_value; i++)
		shadow_one(c, c->by_value[i].part, c->by_value[i].elem, out);
}

const struct blob *blobs_look(ckpt *c)
{
	for (uint32_t i = 0; i < c->nblob; i++) {
		struct blob *b = &c->blob[i];

		b->now = *(const volatile uint64_t *)b->len;
		if (b->now > b->cap && MUTANT(BLOB_CUT))
			b->now = b->cap;
		if (b->now > b->cap)
			return b;
	}
	return NULL;
}

void blobs_by_value(ckpt *c)
{
	for (uint32_t i = 0; i < c->nblob; i++) {
		const struct blob *b = &c->blob[i];
		uint8_t *to = (uint8_t *)c->seg[c->shadow].base + b->off;
		le64 len = le64_of(b->now);

		memcpy(to, &len, sizeof len);
		memcpy(to + BLOB_HEAD, b->ptr, b->now);
	}
}

/* What shadow_copy copies at each snapshot, so that it need not look at what it does not copy. */
static int by_value_list(ckpt *c, struct ckpt_err *err)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < c->ntensor; i++)
		if (!c->tensor[i].dropped && c->tensor[i].t.cls == CKPT_VOLATILE)
			n += c->tensor[i].nlocal;
	free(c->by_value);
	c->nby_value = 0;
	c->by_value = calloc(n + 1, sizeof *c->by_value);
	if (!c->by_value)
		return ckpt_error(err, -ENOMEM, "no memory for the declarations");
	for (uint32_t i = 0; i < c->ntensor; i++) {
		const struct declared *d = &c->tensor[i];

		if (d->dropped || d->t.cls != CKPT_VOLATILE)
			continue;
		for (uint32_t k = 0; k < d->nlocal; k++)
			if (d->local[k].bytes && !d->local[k].device)
				c->by_value[c->nby_value++] =
					(struct by_value){ &d->local[k], dtype_bytes(d->t.dtype) };
	}
	return 0;
}

/* At least so many bytes, and half as many again as before: a shadow that grows often takes few
 * segments. */
static int shadow_grow(ckpt *c, uint64_t bytes, struct ckpt_err *err)
{
	uint64_t had = c->shadow == UINT32_MAX ? 0 : c->seg[c->shadow].bytes;

	return bytes <= had ? 0 : segment_new(c, MAX(bytes, had + had / 2), &c->shadow, err);
}

/* Give everything that is copied by value its place in the shadow. */
static int shadow_lay_out(ckpt *c, struct ckpt_err *err)
{
	uint64_t bytes = 0;
	int rc = 0;

	c->own = 0;
	devices_scratch_begin(c);
	for (uint32_t i = 0; i < c->ntensor && rc == 0; i++)
		for (uint32_t k = 0; !c->tensor[i].dropped && k < c->tensor[i].nlocal; k++) {
			struct part_of *p = &c->tensor[i].local[k];

			c->own += p->own && p->bytes;
			if (p->shadow && p->device && rc == 0)
				rc = devices_scratch_add(c, p, dtype_bytes(c->tensor[i].t.dtype),
							 err);
			if (!p->shadow || p->device)
				continue;
			p->off = bytes;
			bytes = align_up(bytes + p->bytes, 64);
		}
	for (uint32_t i = 0; i < c->nblob; i++) {
		c->blob[i].off = bytes;
		bytes = align_up(bytes + BLOB_HEAD + c->blob[i].cap, 64);
	}
	if (rc == 0)
		rc = devices_scratch_end(c, err);
	if (rc == 0)
		rc = shadow_grow(c, bytes, err);
	for (uint32_t i = 0; i < c->ntensor && rc == 0; i++)
		for (uint32_t k = 0; !c->tensor[i].dropped && k < c->tensor[i].nlocal; k++)
			if (c->tensor[i].local[k].shadow)
				c->tensor[i].local[k].seg = c->shadow;
	return rc;
}

/* --- the table of this rank's memory --- */
static int add_locals(ckpt *c, struct table *t, const struct declared *d, uint32_t id,
		      struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t k = 0; k < d->nlocal && rc == 0; k++) {
		const struct part_of *p = &d->local[k];
		struct table_piece piece = { .tensor = id,
					     .rank = c->rank,
					     .place = p->own ? c->nseg : p->seg,
					     .set = d->share,
					     .off = p->own ? part_address(c, p) : p->off,
					     .stride = p->dense || p->shadow ? NULL : p->stride };

		if (p->boxed)
			rc = indexset_box(p->ndim, p->start, p->extent, &t->arena, &piece.set);
		if (rc == 0 && piece.set.numel)
			rc = table_put_piece(t, &piece, err);
	}
	return rc;
}

static int add_tensors(ckpt *c, struct table *t, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->ntensor && rc == 0; i++) {
		const struct declared *d = &c->tensor[i];
		const struct layout l = layout_of(&d->t);
		struct table_tensor x = { .component = d->t.component,
					  .name = d->t.name,
					  .of = d->t.of,
					  .dtype = d->t.dtype,
					  .elem_bytes = dtype_bytes(d->t.dtype),
					  .role = d->t.role,
					  .cls = d->t.cls,
					  .layout = TABLE_NONE,
					  .rank = TABLE_NONE,
					  .ndim = d->t.ndim,
					  .shape = d->t.shape };
		uint32_t id;

		if (d->dropped)
			continue;
		if (l.mesh != CKPT_ALONE)
			rc = table_add_layout(t, &l, &x.layout, err);
		if (rc == 0)
			rc = table_put_tensor(t, &x, &id, err);
		if (rc == 0)
			rc = add_locals(c, t, d, id, err);
	}
	return rc;
}

static int add_blobs(ckpt *c, struct table *t, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->nblob && rc == 0; i++) {
		const struct blob *b = &c->blob[i];
		uint64_t zero = 0, bytes = BLOB_HEAD + b->cap;
		struct table_tensor x = { .component = "blob",
					  .name = b->name,
					  .of = "",
					  .dtype = CKPT_U8,
					  .elem_bytes = 1,
					  .cls = CKPT_VOLATILE,
					  .flags = TENSOR_BLOB,
					  .media = b->media,
					  .layout = TABLE_NONE,
					  .rank = b->per_rank ? c->rank : TABLE_NONE,
					  .ndim = 1,
					  .shape = &bytes };
		struct table_piece p = { .rank = c->rank, .place = c->shadow, .off = b->off };

		rc = table_put_tensor(t, &x, &p.tensor, err);
		if (rc == 0)
			rc = indexset_box(1, &zero, &bytes, &t->arena, &p.set);
		if (rc == 0)
			rc = table_put_piece(t, &p, err);
	}
	return rc;
}

static int derived_check(const struct table *t, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int rc;

	table_check_derived(t, &list);
	rc = ckpt_errlist_end(&list, err, "derived tensors need what they are derived of");
	ckpt_errlist_free(&list);
	return rc;
}

/* It goes before the declarations: their names, sets and strides are not copied. */
static int table_of_memory(ckpt *c, struct table *t, struct ckpt_err *err)
{
	uint64_t npiece = c->nblob;
	int rc;

	for (uint32_t i = 0; i < c->ntensor; i++)
		npiece += c->tensor[i].nlocal;
	rc = table_reserve(t, (uint64_t)c->ntensor + c->nblob, npiece);
	if (rc < 0)
		return ckpt_error(err, rc, "no memory for the declarations");

	for (uint32_t i = 0; i < c->meshes.nmesh && rc == 0; i++)
		rc = table_add_mesh(t, &c->meshes.mesh[i], NULL, err);
	for (uint32_t i = 0; i < c->nseg && rc == 0; i++)
		rc = table_add_place(t,
				     &(struct table_place){ .name = "segment",
							    .rank = c->rank,
							    .bytes = c->seg[i].bytes },
				     NULL, err);
	if (rc == 0 && c->own)
		rc = table_add_place(t,
				     &(struct table_place){ .name = "memory",
							    .rank = c->rank,
							    .bytes = WIRE_OWN_BYTES },
				     NULL, err);
	if (rc == 0)
		rc = add_tensors(c, t, err);
	if (rc == 0)
		rc = add_blobs(c, t, err);
	if (rc == 0)
		rc = declare_averages_add(c, t, err);
	if (rc == 0)
		rc = table_seal(t, err);
	return rc == 0 ? derived_check(t, err) : rc;
}

struct source_span span_copied(const ckpt *c, const struct part_of *p)
{
	uint64_t from = p->own ? part_address(c, p) : (uintptr_t)p->ptr;

	return (struct source_span){ from, from + (p->shadow ? p->bytes : p->span), p->device };
}

/* What sealed.c needs of the declarations, which change while the helper works. In the order in
 * which add_tensors goes. */
static int sources_make(ckpt *c, struct ckpt_err *err)
{
	struct sources *s = calloc(1, sizeof *s);
	uint32_t nspan = 0;

	for (uint32_t i = 0; i < c->ntensor; i++)
		nspan += c->tensor[i].nlocal;
	sources_unref(TAKE(c->sources));
	c->sources = s;
	if (s) {
		s->refs = 1;
		s->name = calloc((size_t)c->ntensor + 1, sizeof *s->name);
		s->span = calloc((size_t)nspan + 1, sizeof *s->span);
	}
	if (!s || !s->name || !s->span)
		return ckpt_error(err, -ENOMEM, "no memory for the declarations");
	nspan = 0;
	for (uint32_t i = 0; i < c->ntensor; i++) {
		const struct declared *t = &c->tensor[i];
		struct source_name *x = &s->name[s->nname];

		if (t->dropped)
			continue;
		*x = (struct source_name){ t->t.component, t->t.name, nspan, 0, t->nlocal };
		s->nname++;
		for (uint32_t k = 0; k < t->nlocal; k++) {
			const struct part_of *p = &t->local[k];

			if (p->own && p->bytes)
				s->span[nspan + x->nspan++] = span_copied(c, p);
			x->on_devices &= !p->bytes || (p->own && p->device);
		}
		x->nspan = sources_merge(s->span + nspan, x->nspan);
		nspan += x->nspan;
	}
	s->nspan = nspan;
	return 0;
}

/* A byte for each tensor, if any lies on devices. */
static int devices_section(const struct sources *s, struct arena *a, struct container_bytes *b,
			   uint32_t *n, struct ckpt_err *err)
{
	uint8_t *on = NULL;

	for (uint32_t i = 0; i < s->nname; i++) {
		if (!s->name[i].on_devices)
			continue;
		if (!on && !(on = arena_alloc(a, s->nname)))
			return ckpt_error(err, -ENOMEM, "no memory for the declarations");
		on[i] = 1;
	}
	if (on)
		b[(*n)++] = (struct container_bytes){
			.kind = WIRE_DEVICES, .rec_bytes = 1, .p = on, .len = s->nname
		};
	return 0;
}

int declare_encode(ckpt *c, struct ckpt_err *err)
{
	struct container_info info = { .kind = CONTAINER_DECLARATION,
				       .writer = c->rank,
				       .generation = c->generation };
	struct table_section s[TABLE_SECTIONS_MAX];
	struct container_bytes b[TABLE_SECTIONS_MAX + 2],
		attrs = { .kind = WIRE_ATTRIBUTES, .rec_bytes = 1 };
	struct table t = { 0 };
	struct arena a = { 0 };
	uint32_t n = 0;
	void *bytes;
	int rc;

	retired_free(c);
	c->nby_value = 0;
	rc = shadow_lay_out(c, err);
	if (rc == 0)
		rc = by_value_list(c, err);
	if (rc == 0)
		rc = sources_make(c, err);
	if (rc == 0)
		rc = table_of_memory(c, &t, err);
	if (rc == 0)
		rc = table_encode(&t, true, &a, s, &n, err);
	for (uint32_t i = 0; i < n; i++)
		b[i] = (struct container_bytes){ .kind = s[i].kind,
						 .rec_bytes = s[i].rec_bytes,
						 .p = s[i].bytes,
						 .len = s[i].len,
						 .count = s[i].count };
	if (rc == 0)
		rc = declare_attrs_section(c, &a, &attrs.p, &attrs.len, err);
	if (rc == 0 && attrs.len)
		b[n++] = attrs;
	if (rc == 0)
		rc = devices_section(c->sources, &a, b, &n, err);
	if (rc == 0 && getrandom(info.uuid, sizeof info.uuid, GRND_NONBLOCK) < 0)
		info.uuid[0] = 1;
	if (rc == 0)
		rc = container_encode(&info, b, n, &bytes, &c->decl_bytes, err);
	if (rc == 0) {
		free(c->decl);
		c->decl = bytes;
	}
	arena_free(&a);
	table_free(&t);
	return rc;
}
