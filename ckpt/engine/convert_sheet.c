/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert_sheet.c - what a conversion will make: the target less what the format cannot hold, its
 * sheet, and the numbers that name it. Called by convert.c. Invariant: equal sources, targets and
 * wishes give equal uuids, and so equal files.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/engine/convert_impl.h"
#include "ckpt/move/cast.h"
#include "ckpt/table/encode.h"
#include <stdio.h>

#define ATTR_FROM "ckpt.from"	  /* what it was converted from */
#define ATTR_SOURCE "ckpt.source" /* in files of ranks: which source, of one without an id */
#define WISHES 8u

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for a conversion");
}

/* --- what the format can hold --- */

static int tensor_check(struct convert *v, uint32_t tensor, char why[FORMAT_WHY])
{
	const struct table_tensor *x = &v->target->tensor[tensor];
	const struct table *src = &v->c->src->ckpt->table;
	uint32_t from = table_find(src, x->component, x->name, x->rank);

	if (from != TABLE_NONE && src->tensor[from].dtype != x->dtype &&
	    !cast_known(src->tensor[from].dtype, x->dtype)) {
		snprintf(why, FORMAT_WHY, "its elements cannot become those of the other type");
		return -EMEDIUMTYPE;
	}
	return v->c->to->holds(v->target, tensor, why) ? 0 : -EMEDIUMTYPE;
}

/* What it cannot hold is a line, and left out. */
static int target_keep(struct convert *v, struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	char name[TABLE_KEY_BYTES + 32], why[FORMAT_WHY];

	for (uint32_t i = 0; i < v->target->ntensor; i++) {
		if (v->target->tensor[i].cls == CKPT_SINK || !tensor_check(v, i, why))
			continue;
		ckpt_errlist_add(cannot, "%s: %s",
				 table_tensor_print(&v->target->tensor[i], name, sizeof name), why);
		v->facts->ndropped++;
		if (!v->c->drop)
			continue;
		if (!v->kept.sealed && table_twin(v->c->target, &v->kept))
			return no_memory(err);
		v->kept.tensor[i].cls = CKPT_SINK;
	}
	if (v->kept.sealed)
		v->target = &v->kept;
	return 0;
}

/* --- what it says of itself --- */

/* format_want.stopped */
static bool sheet_stopped(void *arg)
{
	return convert_is_stopped(arg);
}

/* The facts, and what they were converted from. */
static int facts_make(struct convert *v, struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	const struct checkpoint *k = v->c->want.facts, *src = v->c->src->ckpt;
	struct checkpoint_attr *attr = arena_array(&v->arena, (size_t)k->nattr + 2, sizeof *attr);
	const uint8_t *is = v->c->src->identity.b;
	char from[CKPT_JOB_MAX + 128], source[2 * sizeof v->c->src->identity.b + 1],
		why[FORMAT_WHY];
	uint32_t n = 0;

	snprintf(from, sizeof from, "%s", src->format->name);
	if (src->has & HAS_STEP)
		snprintf(from, sizeof from, "%s, job %s, step %llu%s%s", src->format->name,
			 src->job, (unsigned long long)src->step, src->id[0] ? ", id " : "",
			 src->id);
	v->said = *k;
	v->said.attr = attr;
	if (!attr)
		return no_memory(err);
	for (uint32_t i = 0; i < k->nattr; i++) {
		if (!strcmp(k->attr[i].key, ATTR_FROM) || !strcmp(k->attr[i].key, ATTR_SOURCE))
			continue;
		if (v->c->to->says && !v->c->to->says(&k->attr[i], why)) {
			ckpt_errlist_add(cannot, "attribute %.200s: %s", k->attr[i].key, why);
			v->facts->nunsaid++;
		} else {
			attr[n++] = k->attr[i];
		}
	}
	attr[n] = (struct checkpoint_attr){ ATTR_FROM, arena_str(&v->arena, from) };
	if (!attr[n++].value)
		return no_memory(err);
	/* Files of ranks come from several runs, and nothing else tells apart what these have read. */
	for (uint32_t i = 0; i < sizeof v->c->src->identity.b; i++)
		(void)snprintf(source + (size_t)2 * i, 3, "%02x", is[i]);
	if (v->c->want.by_rank && !(src->has & HAS_SUMS) && !MUTANT(RANKS_SOURCE_UNSAID)) {
		attr[n] = (struct checkpoint_attr){ ATTR_SOURCE, arena_str(&v->arena, source) };
		if (!attr[n++].value)
			return no_memory(err);
	}
	v->said.nattr = n;
	v->want = v->c->want;
	v->want.facts = &v->said;
	v->want.stopped = sheet_stopped;
	v->want.stopped_arg = v;
	return 0;
}

/* Two conversions with other wishes are not each other's. */
static uint32_t wishes_hash(const struct convert *v, struct hash128 *ret)
{
	const struct engine_convert *c = v->c;
	const struct {
		uint64_t shard_bytes;
		uint32_t by_rank, file;
	} numbers = { c->want.shard_bytes, c->want.by_rank, c->file };
	const char *const text[] = { c->options, c->want.stem, c->want.strip };
	uint32_t n = 0;

	if (c->to != c->src->ckpt->format)
		ret[n++] = hash128(c->to->name, strlen(c->to->name));
	for (uint32_t i = 0; i < ARRAY_LEN(text); i++)
		if (text[i] && *text[i]) {
			ret[n] = hash128(text[i], strlen(text[i]));
			ret[n++].b[0] ^= (uint8_t)i;
		}
	if (numbers.shard_bytes || numbers.by_rank || numbers.file)
		ret[n++] = hash128(&numbers, sizeof numbers);
	return n;
}

/* want.uuid: of what is made. v->uuid: of that, and of the bytes from which it is made. */
static int uuids_make(struct convert *v, struct ckpt_err *err)
{
	struct table_section section[TABLE_SECTIONS_MAX];
	struct hash128 hash[TABLE_SECTIONS_MAX + WISHES], all;
	const struct checkpoint *src = v->c->src->ckpt;
	struct arena a = { 0 };
	uint32_t n;
	int rc = table_encode(v->target, false, &a, section, &n, err);

	for (uint32_t i = 0; !rc && i < n; i++)
		hash[i] = hash128(section[i].bytes, section[i].len);
	arena_free(&a);
	if (rc)
		return rc;
	hash[n++] = hash128(src->id, strlen(src->id));
	hash[n++] = hash128(v->want.tool, strlen(v->want.tool) + 1);
	n += wishes_hash(v, &hash[n]);
	all = hash128(hash, n * sizeof *hash);
	memcpy(v->want.uuid, all.b, sizeof v->want.uuid);
	hash[0] = all;
	hash[1] = v->c->src->identity;
	all = hash128(hash, 2 * sizeof *hash);
	memcpy(v->uuid, all.b, sizeof v->uuid);
	return 0;
}

/* --- the sheet --- */

static void sizes_count(struct convert *v)
{
	const struct sheet *s = v->sheet;
	const struct table *src = &v->c->src->ckpt->table;

	v->facts->nfile = s->nfile;
	v->facts->ntensor = s->table.ntensor;
	for (uint32_t i = 0; i < s->nfile; i++)
		v->facts->stored_bytes += s->file[i].bytes;
	for (uint32_t k = 0; k < s->table.npiece; k++) {
		const struct table_piece *p = &s->table.piece[k];

		v->facts->bytes += p->set.numel * src->tensor[v->map.from[p->tensor]].elem_bytes;
		v->facts->made_bytes += p->set.numel * s->table.tensor[p->tensor].elem_bytes;
	}
}

static int piece_compare(const void *va, const void *vb, void *arg)
{
	const struct table_piece *a = (const struct table_piece *)arg + *(const uint32_t *)va,
				 *b = (const struct table_piece *)arg + *(const uint32_t *)vb;

	if (a->place != b->place)
		return a->place < b->place ? -1 : 1;
	return a->off < b->off ? -1 : a->off > b->off;
}

/* The piece of which that is a sum, of these that are sorted by place and offset; TABLE_NONE. */
static uint32_t piece_of(const struct table *t, const uint32_t *sorted, const struct sheet_sum *sum)
{
	uint32_t low = SEARCH(i, 0u, t->npiece,
			      t->piece[sorted[i]].place < sum->file ||
				      (t->piece[sorted[i]].place == sum->file &&
				       t->piece[sorted[i]].off < sum->off));

	if (low < t->npiece && t->piece[sorted[low]].place == sum->file &&
	    t->piece[sorted[low]].off == sum->off && t->piece[sorted[low]].len == sum->len)
		return sorted[low];
	return TABLE_NONE;
}

/* Which piece's bytes make which sum. */
static int sums_find(struct convert *v, struct ckpt_err *err)
{
	const struct sheet *s = v->sheet;
	const struct table *t = &s->table;
	cleanup_free uint32_t *sorted = calloc((size_t)t->npiece + 1, sizeof *sorted);

	if (!s->nsum)
		return 0;
	v->piece_sum = arena_array(&v->arena, (size_t)t->npiece + 1, sizeof *v->piece_sum);
	v->crc = arena_array(&v->arena, s->nsum, sizeof *v->crc);
	if (!sorted || !v->piece_sum || !v->crc)
		return no_memory(err);
	for (uint32_t k = 0; k < t->npiece; k++) {
		v->piece_sum[k] = TABLE_NONE;
		sorted[k] = k;
	}
	qsort_r(sorted, t->npiece, sizeof *sorted, piece_compare, t->piece);
	for (uint32_t i = 0; i < s->nsum; i++) {
		const struct sheet_sum *x = &s->sum[i];
		uint32_t k = x->len ? piece_of(t, sorted, x) : TABLE_NONE;

		if (x->len && (k == TABLE_NONE || convert_has_chunks(v, x->file)))
			return ckpt_error(err, -EPROTO, "%s: a sum is wanted of what is no piece",
					  s->file[x->file].name);
		if (k != TABLE_NONE)
			v->piece_sum[k] = i;
	}
	return 0;
}

int convert_sheet_make(struct convert *v, struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	int rc;

	v->target = v->c->target;
	rc = target_keep(v, cannot, err);
	if (!rc)
		rc = facts_make(v, cannot, err);
	if (!rc && !v->c->drop && v->facts->ndropped)
		rc = ckpt_error(err, -EMEDIUMTYPE, "%s cannot hold %u of %u tensors",
				v->c->to->name, v->facts->ndropped, v->target->ntensor);
	else if (!rc && !v->c->drop && v->facts->nunsaid)
		rc = ckpt_error(err, -EMEDIUMTYPE, "%s cannot hold %u of %u attributes",
				v->c->to->name, v->facts->nunsaid, v->c->want.facts->nattr);
	if (!rc)
		rc = uuids_make(v, err);
	if (!rc)
		rc = v->c->to->sheet(v->target, &v->want, &v->sheet, cannot, err);
	if (!rc)
		rc = sums_find(v, err);
	if (!rc)
		rc = passage_map_make(v->sheet, &v->c->src->ckpt->table, v->target, &v->map, err);
	if (!rc)
		sizes_count(v);
	return rc;
}

void convert_sheet_free(struct convert *v)
{
	passage_map_free(&v->map);
	sheet_free(v->sheet);
	table_free(&v->kept);
	arena_free(&v->arena);
}
