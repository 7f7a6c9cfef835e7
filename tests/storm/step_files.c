/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step_files.c - see step_files.h. Offsets and numbers are those of docs/FORMAT.md; only integers
 * and raw chunks, which is all that there is.
 */
#include "tests/storm/step_files.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	STRINGS = 1,
	SHAPES = 2,
	TENSORS = 7,
	INDEXSETS = 8,
	PIECES = 9,
	CHUNKS = 16,
	NOTES = 17,
	PARTS = 18,
	AVERAGES = 34,
	KINDS
};
enum { DERIVED = 2, TRUSTED = 4, BF16 = 10 };
#define NONE UINT32_MAX
#define BLOCK 4096u
#define CHUNK ((uint64_t)1 << 20)
#define DIMS_MAX 16

struct step_file {
	const char *name;
	const uint8_t *p;
	uint64_t bytes;
	const uint8_t *at[KINDS]; /* of each section; count records */
	uint64_t count[KINDS];
	uint32_t *tensor; /* of a part: which record of MANIFEST each of its tensors is */
};

static uint32_t le16(const uint8_t *p)
{
	return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t le32(const uint8_t *p)
{
	return le16(p) | le16(p + 2) << 16;
}

static uint64_t le64(const uint8_t *p)
{
	return le32(p) | (uint64_t)le32(p + 4) << 32;
}

static _Noreturn void refuse(const struct step_files *s, const struct step_file *f,
			     const char *what)
{
	fprintf(stderr, "%s/%s: %s\n", s->path, f->name, what);
	exit(2);
}

static void must(const struct step_files *s, const struct step_file *f, bool fine, const char *what)
{
	if (!fine)
		refuse(s, f, what);
}

static bool file_open(struct step_files *s, const char *name, struct step_file *f)
{
	char path[600];
	struct stat st = { 0 };
	const uint8_t *tail;
	void *p;
	int fd;

	f->name = name;
	snprintf(path, sizeof path, "%s/%s", s->path, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	must(s, f, fstat(fd, &st) == 0 && st.st_size >= 2 * BLOCK, "no container");
	f->bytes = (uint64_t)st.st_size;
	p = mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
	close(fd);
	must(s, f, p != MAP_FAILED, "cannot be mapped");
	f->p = p;
	tail = f->p + f->bytes - BLOCK;
	must(s, f,
	     memcmp(f->p,
		    "\x89"
		    "CKPTD\r\n",
		    8) == 0 &&
		     memcmp(tail,
			    "\x89"
			    "CKPTE\r\n",
			    8) == 0,
	     "no magic");
	for (uint32_t i = 0; i < le32(tail + 24); i++) {
		const uint8_t *x = tail + 48 + 56 * (uint64_t)i;
		uint32_t kind = le32(x);

		must(s, f,
		     i < 64 && le64(x + 16) <= f->bytes && le64(x + 24) <= f->bytes - le64(x + 16),
		     "a section outside");
		if (kind >= KINDS)
			continue;
		f->at[kind] = f->p + le64(x + 16);
		f->count[kind] = le64(x + 32);
	}
	return true;
}

static const uint8_t *record(const struct step_files *s, const struct step_file *f, uint32_t kind,
			     uint64_t i, uint64_t bytes)
{
	must(s, f, i < f->count[kind], "a record that is not there");
	return f->at[kind] + i * bytes;
}

static const char *string(const struct step_files *s, const struct step_file *f, const uint8_t *at)
{
	return (const char *)record(s, f, STRINGS, le32(at), 1);
}

static struct step_tensor tensor_at(const struct step_files *s, const struct step_file *f,
				    uint64_t i)
{
	const uint8_t *x = record(s, f, TENSORS, i, 56);
	uint32_t average = le32(x + 20);

	must(s, f, average == NONE || f != s->manifest || average < s->naverage,
	     "an average that is not there");
	return (struct step_tensor){
		.component = string(s, f, x),
		.name = string(s, f, x + 4),
		.of = string(s, f, x + 8),
		.average = average == NONE || f != s->manifest ? NULL : &s->average[average],
		.dtype = le16(x + 24),
		.elem_bytes = le16(x + 26) / 8,
		.ndim = x[28],
		.cls = x[30],
		.blob = x[31] & 1,
		.shape = x[28] ? record(s, f, SHAPES, le32(x + 16), 8) : NULL,
		.numel = le64(x + 32),
		.rank = le32(x + 48),
	};
}

static bool same(const struct step_tensor *a, const struct step_tensor *b)
{
	return !strcmp(a->component, b->component) && !strcmp(a->name, b->name) &&
	       a->rank == b->rank;
}

static void *zeroed(size_t n, size_t size)
{
	void *p = calloc(n + 1, size);

	if (!p) {
		fputs("no memory\n", stderr);
		exit(2);
	}
	return p;
}

static void averages_open(struct step_files *s, const struct step_file *f)
{
	s->naverage = (uint32_t)f->count[AVERAGES];
	s->average = zeroed(s->naverage, sizeof *s->average);
	for (uint32_t i = 0; i < s->naverage; i++) {
		const uint8_t *x = record(s, f, AVERAGES, i, 64);
		struct step_average *a = &s->average[i];

		a->name = string(s, f, x);
		a->schedule = string(s, f, x + 4);
		a->updates = le64(x + 16);
		a->last_step = le64(x + 24);
		a->since = le64(x + 32);
		memcpy(a->history, x + 40, 16);
		a->rule = le32(x + 60);
	}
}

static void part_open(struct step_files *s, uint32_t i)
{
	struct step_file *f = &s->part[i];
	const uint8_t *x = record(s, s->manifest, PARTS, i, 96);

	if (!file_open(s, string(s, s->manifest, x + 64), f))
		refuse(s, f, "is not there");
	s->nlinked += le64(x + 48) != s->step;
	f->tensor = zeroed(f->count[TENSORS], sizeof *f->tensor);
	for (uint64_t k = 0; k < f->count[TENSORS]; k++) {
		struct step_tensor t = tensor_at(s, f, k);

		while (f->tensor[k] < s->ntensor && !same(&t, &s->tensor[f->tensor[k]]))
			f->tensor[k]++;
		must(s, f, f->tensor[k] < s->ntensor, "a tensor that MANIFEST does not have");
	}
}

bool step_open(const char *path, struct step_files *s)
{
	*s = (struct step_files){ .manifest = zeroed(1, sizeof *s->manifest) };
	snprintf(s->path, sizeof s->path, "%s", path);
	if (!file_open(s, "MANIFEST", s->manifest)) {
		free(s->manifest);
		return false;
	}
	s->step = le64(s->manifest->p + 72);
	s->world = le32(s->manifest->p + 104);
	averages_open(s, s->manifest);
	s->ntensor = (uint32_t)s->manifest->count[TENSORS];
	s->tensor = zeroed(s->ntensor, sizeof *s->tensor);
	for (uint32_t i = 0; i < s->ntensor; i++)
		s->tensor[i] = tensor_at(s, s->manifest, i);
	s->npart = (uint32_t)s->manifest->count[PARTS];
	s->part = zeroed(s->npart, sizeof *s->part);
	for (uint32_t i = 0; i < s->npart; i++)
		part_open(s, i);
	return true;
}

static void file_close(struct step_file *f)
{
	munmap((void *)(uintptr_t)f->p, f->bytes);
	free(f->tensor);
}

void step_close(struct step_files *s)
{
	for (uint32_t i = 0; i < s->npart; i++)
		file_close(&s->part[i]);
	file_close(s->manifest);
	free(s->manifest);
	free(s->part);
	free(s->tensor);
	free(s->average);
}

const uint8_t *step_note(const struct step_files *s, const char *key)
{
	const struct step_file *f = s->manifest;

	for (uint64_t i = 0; i < f->count[NOTES]; i++) {
		const uint8_t *x = record(s, f, NOTES, i, 16);

		if (!strcmp(string(s, f, x), key))
			return x + 8;
	}
	return NULL;
}

/* ---- pieces ---- */

/* An index set: of each dimension the indices, one by one. */
struct set {
	uint32_t ndim;
	uint64_t n[DIMS_MAX], *index[DIMS_MAX];
	const uint8_t *at;
	uint64_t bytes; /* as it lies in the file */
};

static void set_free(struct set *x)
{
	for (uint32_t d = 0; d < x->ndim; d++)
		free(x->index[d]);
}

static struct set set_at(const struct step_files *s, const struct step_file *f, uint32_t first)
{
	struct set x = { .at = record(s, f, INDEXSETS, first, 8) };
	uint64_t at = first;

#define NEXT le64(record(s, f, INDEXSETS, at++, 8))
	x.ndim = (uint32_t)NEXT;
	must(s, f, x.ndim <= DIMS_MAX, "too many dimensions");
	for (uint32_t d = 0; d < x.ndim; d++) {
		uint64_t runs = NEXT;

		for (uint64_t r = 0; r < runs; r++) {
			uint64_t start = NEXT, len = NEXT, stride = NEXT, count = NEXT, n = x.n[d];

			must(s, f, len <= f->bytes && count <= f->bytes,
			     "an index set that is too long");
			x.n[d] += len * count;
			x.index[d] = reallocarray(x.index[d], x.n[d] + 1, sizeof *x.index[d]);
			must(s, f, x.index[d] != NULL, "no memory");
			for (uint64_t i = 0; i < count; i++)
				for (uint64_t k = 0; k < len; k++)
					x.index[d][n++] = start + i * stride + k;
		}
	}
#undef NEXT
	x.bytes = (at - first) * 8;
	return x;
}

/* Bytes of the raw space. */
static void raw_get(const struct step_files *s, const struct step_file *f, uint64_t at, void *to,
		    uint64_t bytes)
{
	uint8_t *out = to;

	while (bytes > 0) {
		const uint8_t *c = record(s, f, CHUNKS, at / CHUNK, 48);
		uint64_t in = at % CHUNK, n = CHUNK - in < bytes ? CHUNK - in : bytes;

		must(s, f, in + n <= le32(c + 12) && c[16] == 0 && le64(c) + in + n <= f->bytes,
		     "bytes that no chunk has");
		memcpy(out, f->p + le64(c) + in, n);
		at += n;
		out += n;
		bytes -= n;
	}
}

/* To nearest, ties to even; of a NaN the upper half, quiet. */
static uint16_t rounded(uint32_t u)
{
	if ((u & 0x7fffffff) > 0x7f800000)
		return (uint16_t)(u >> 16 | 0x40);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Where the bytes of a piece's elements are: its own, or those of its twin. */
static uint64_t raw_of(const struct step_files *s, const struct step_file *f, const uint8_t *piece,
		       const struct step_tensor *t, const struct set *set)
{
	if (!(le32(piece + 40) & DERIVED))
		return le64(piece + 16);
	must(s, f, t->dtype == BF16, "a derived piece that is not BF16");
	for (uint64_t i = 0; i < f->count[PIECES]; i++) {
		const uint8_t *x = record(s, f, PIECES, i, 48);
		struct step_tensor of = tensor_at(s, f, le32(x));
		size_t n = strlen(of.component);
		struct set twin;
		bool equal;

		if (strncmp(t->of, of.component, n) != 0 || t->of[n] != '/' ||
		    strcmp(t->of + n + 1, of.name) != 0)
			continue;
		twin = set_at(s, f, le32(x + 4));
		equal = twin.bytes == set->bytes && memcmp(twin.at, set->at, set->bytes) == 0;
		set_free(&twin);
		if (equal)
			return le64(x + 16);
	}
	refuse(s, f, "a derived piece without its twin");
}

/* One row of a piece, which is consecutive in the raw space: `n` elements whose last indices are
 * index[]. */
static void row_get(const struct step_files *s, const struct step_file *f, uint64_t raw,
		    uint32_t flags, uint32_t elem, uint64_t base, const uint64_t *index, uint64_t n,
		    uint8_t *values, uint8_t *seen)
{
	for (uint64_t i = 0, run; i < n; i += run) {
		uint64_t to = base + index[i];

		for (run = 1; i + run < n && index[i + run] == index[i] + run;)
			run++;
		if (!(flags & DERIVED))
			raw_get(s, f, raw + i * elem, values + to * elem, run * elem);
		for (uint64_t k = 0; k < run; k++) {
			uint32_t u;
			uint16_t h;

			seen[to + k]++;
			if (!(flags & DERIVED))
				continue;
			raw_get(s, f, raw + (i + k) * sizeof u, &u, sizeof u);
			must(s, f, flags & TRUSTED || (u & 0x7fffffff) <= 0x7f800000,
			     "a NaN that is derived");
			h = rounded(u);
			memcpy(values + (to + k) * sizeof h, &h, sizeof h);
		}
	}
}

static void piece_get(struct step_files *s, const struct step_file *f, const uint8_t *piece,
		      uint8_t *values, uint8_t *seen)
{
	struct step_tensor t = tensor_at(s, f, le32(piece));
	struct set set = set_at(s, f, le32(piece + 4));
	uint32_t flags = le32(piece + 40);
	bool derived = flags & DERIVED;
	uint64_t raw = raw_of(s, f, piece, &t, &set), at[DIMS_MAX] = { 0 }, zero = 0;
	uint32_t last = t.ndim ? t.ndim - 1 : 0, elem = derived ? 4 : t.elem_bytes;
	uint64_t n = t.ndim ? set.n[last] : 1;

	s->nderived += derived;
	must(s, f, set.ndim == t.ndim, "an index set of other dimensions");
	for (;;) {
		uint64_t base = 0, local = 0;
		uint32_t d = last;

		for (uint32_t i = 0; i < t.ndim; i++) {
			uint64_t index = i < last ? set.index[i][at[i]] : 0;

			base = base * le64(t.shape + 8 * i) + index;
			if (le32(piece + 12) != NONE)
				local += at[i] * le64(record(s, f, SHAPES,
							     le32(piece + 12) + (uint64_t)i, 8));
			else
				local = local * set.n[i] + (i < last ? at[i] : 0);
		}
		must(s, f,
		     le32(piece + 12) == NONE ||
			     le64(record(s, f, SHAPES, le32(piece + 12) + (uint64_t)last, 8)) == 1,
		     "rows with gaps between elements: this reader cannot");
		must(s, f, base + (t.ndim ? set.index[last][n - 1] : 0) < t.numel,
		     "an index outside of the shape");
		row_get(s, f, raw + local * elem, flags, t.elem_bytes, base,
			t.ndim ? set.index[last] : &zero, n, values, seen);
		while (d > 0 && ++at[d - 1] == set.n[d - 1])
			at[--d] = 0;
		if (d == 0)
			break;
	}
	set_free(&set);
}

void *step_read(struct step_files *s, const struct step_tensor *t, char why[200])
{
	uint8_t *values = zeroed(t->numel, t->elem_bytes), *seen = zeroed(t->numel, 1);
	uint32_t which = (uint32_t)(t - s->tensor);
	uint64_t wrong = 0;

	for (uint32_t p = 0; p < s->npart; p++) {
		const struct step_file *f = &s->part[p];

		for (uint64_t i = 0; i < f->count[PIECES]; i++) {
			const uint8_t *x = record(s, f, PIECES, i, 48);

			must(s, f, le32(x) < f->count[TENSORS], "a tensor that is not there");
			if (f->tensor[le32(x)] == which)
				piece_get(s, f, x, values, seen);
		}
	}
	while (wrong < t->numel && seen[wrong] == 1)
		wrong++;
	if (wrong < t->numel) {
		snprintf(why, 200, "element %llu is in %u pieces", (unsigned long long)wrong,
			 seen[wrong]);
		free(values);
		values = NULL;
	}
	free(seen);
	return values;
}
