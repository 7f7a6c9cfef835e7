/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_sheet.c - a native checkpoint as a sheet (formats/format.h): which parts a target has,
 * what lies in them, and the bytes of their heads, tails and of MANIFEST. The engine calls it to
 * convert. Invariant: the sheet and its runs follow from target and want alone, so a conversion
 * that is continued makes the same files; the own table of a part, which lists all tensors again,
 * lives only as long as one call for this part.
 *
 * A rank has a main part, and one of averages if it owns something of one. The parts of averages
 * come first, because a main part names the other parts of its rank by the hashes of what they
 * hold. The last file is MANIFEST. A SINK is in no file, nor an average whose tensors all are.
 */
#include "formats/native/native_impl.h"
#include "ckpt/base/mutant.h"
#include "ckpt/table/target.h"
#include <stdio.h>

#define CHUNK_BYTES (UINT64_C(1) << CHUNK_LOG2)
#define MEMO 1024u /* sets that are remembered; a power of two */

/* A model has few shapes: one set serves all pieces that are cut alike. */
struct memo {
	struct indexset set[MEMO];
};

struct part_of {
	uint32_t rank, kind; /* enum part_kind: main or average */
	uint32_t source;     /* of a main part: that of the rank's averages; TABLE_NONE */
	char name[NATIVE_NAME_MAX + 1];
};

struct parts {
	const struct table *target; /* the caller's, or the one below */
	struct table trimmed;	    /* without averages of which no tensor is left; or empty */
	const struct format_want *want;
	struct native_info info;
	uint32_t npart;
	struct part_of *of; /* [npart] */
	uint32_t *made;	    /* [nmade] the target's MADE tensors, in the order of the raw spaces */
	uint32_t nmade;
	struct table plain; /* the target without them; empty where nmade is 0 */
};

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for the parts of a checkpoint");
}

/* --- the table of one part --- */

static int main_table(const struct parts *p, uint32_t rank, struct table *ret, struct ckpt_err *err)
{
	struct table holds;
	int r = target_rank(p->nmade ? &p->plain : p->target, rank, &holds, err);

	if (r)
		return r;
	r = native_part_table(&holds, rank, ret, NULL, err);
	table_free(&holds);
	return r;
}

/* What the rank owns of a MADE tensor: as of the one that it averages. */
static int made_owned(const struct parts *p, uint32_t tensor, const uint32_t *coord,
		      struct arena *a, struct indexset *ret)
{
	static const struct layout whole;
	const struct table *t = p->target;
	const struct table_tensor *x = &t->tensor[tensor], *as = table_owned_as(t, x);

	return layout_owned(&t->mesh[0], x->layout == TABLE_NONE ? &whole : &t->layout[x->layout],
			    x->ndim, x->shape, coord, as->elem_bytes, as->component, as->name, a,
			    ret);
}

/* The piece behind those before, where docs/FORMAT.md has it. */
static int made_add(const struct parts *p, uint32_t rank, uint32_t tensor,
		    const struct indexset *set, bool group, struct table *ret, struct ckpt_err *err)
{
	const struct table_tensor *x = &p->target->tensor[tensor];
	struct table_piece piece = { .rank = rank, .set = *set };
	uint64_t bytes = set->numel * x->elem_bytes, end = ret->place[0].bytes;
	struct table_tensor y = *x;
	int r;

	y.fp = 0;
	y.fp_known = false;
	r = table_add_tensor(ret, &y, &piece.tensor, err);
	if (r)
		return r;
	end = group ? align_up(end, CHUNK_BYTES) : end;
	piece.off = align_up(end, bytes >= NATIVE_BIG ? CHUNK_BYTES : NATIVE_PACK);
	if (bytes > NATIVE_PART_BYTES_MAX || piece.off + bytes > NATIVE_PART_BYTES_MAX)
		return ckpt_error(err, -EFBIG,
				  "rank %u owns more than %llu bytes of averages: use more ranks",
				  rank, (unsigned long long)NATIVE_PART_BYTES_MAX);
	ret->place[0].bytes = piece.off + bytes;
	return table_add_piece(ret, &piece, err);
}

/* Mesh, layouts and averages of the target. */
static int context_add(const struct table *target, struct table *ret, struct ckpt_err *err)
{
	int r = table_add_mesh(ret, &target->mesh[0], NULL, err);

	for (uint32_t i = 0; i < target->nlayout && !r; i++)
		r = table_add_layout(ret, &target->layout[i], NULL, err);
	for (uint32_t i = 0; i < target->naverage && !r; i++) {
		struct table_average x = target->average[i];

		if (MUTANT(CONVERTED_WITHOUT_CHAIN))
			x.updates = 0;
		r = table_add_average(ret, &x, NULL, err);
	}
	return r;
}

static int made_pieces(const struct parts *p, uint32_t rank, struct table *ret,
		       struct ckpt_err *err)
{
	const struct table_tensor *last = NULL;
	uint32_t coord[CKPT_DIMS_MAX];
	struct arena a = { 0 };
	int r = mesh_coord(&p->target->mesh[0], rank, coord)
			? 0
			: ckpt_error(err, -EINVAL, "the mesh has no rank %u", rank);

	for (uint32_t i = 0; i < p->nmade && !r; i++) {
		const struct table_tensor *x = &p->target->tensor[p->made[i]];
		struct indexset set;

		r = made_owned(p, p->made[i], coord, &a, &set);
		if (r == -ENOMEM) {
			r = no_memory(err);
		} else if (r) {
			r = ckpt_error(err, r, "%s/%s: its share cannot be computed", x->component,
				       x->name);
		} else if (set.numel) {
			/* The first of a group goes to 0 as it is. */
			bool group = last && (last->dtype != x->dtype ||
					      strcmp(last->component, x->component) != 0);

			r = made_add(p, rank, p->made[i], &set, group, ret, err);
			last = x;
		}
	}
	arena_free(&a);
	return r;
}

/* A sealed table; without tensors where the rank owns nothing of an average. */
static int average_table(const struct parts *p, uint32_t rank, struct table *ret,
			 struct ckpt_err *err)
{
	char name[32];
	int r;

	*ret = (struct table){ 0 };
	snprintf(name, sizeof name, "rank %u", rank);
	r = context_add(p->target, ret, err);
	if (!r)
		r = table_add_place(ret, &(struct table_place){ name, rank, 0 }, NULL, err);
	if (!r)
		r = made_pieces(p, rank, ret, err);
	if (!r)
		r = table_seal(ret, err);
	if (r)
		table_free(ret);
	return r;
}

static int own_table(const struct parts *p, uint32_t part, struct table *ret, struct ckpt_err *err)
{
	const struct part_of *of = &p->of[part];

	return of->kind == PART_AVERAGE ? average_table(p, of->rank, ret, err)
					: main_table(p, of->rank, ret, err);
}

/* --- which parts there are --- */

/* Which records have a tensor; those of one average belong together. */
static uint32_t averages_left(const struct table *t, bool left[])
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < t->ntensor; i++)
		for (uint32_t k = 0; k < t->naverage; k++)
			left[k] |=
				t->tensor[i].cls != CKPT_SINK && t->tensor[i].made &&
				!strcmp(t->average[t->tensor[i].made - 1].name, t->average[k].name);
	for (uint32_t k = 0; k < t->naverage; k++)
		n += left[k];
	return n;
}

static int averages_trim(struct parts *p, struct ckpt_err *err)
{
	const struct table *t = p->target;
	cleanup_free bool *left = calloc((size_t)t->naverage + 1, sizeof *left);
	cleanup_free uint32_t *record = calloc((size_t)t->naverage + 1, sizeof *record);
	struct table *to = &p->trimmed;

	if (!left || !record)
		return no_memory(err);
	if (averages_left(t, left) == t->naverage)
		return 0;
	if (table_twin(t, to))
		return no_memory(err);
	to->naverage = 0;
	for (uint32_t k = 0; k < t->naverage; k++) {
		if (!left[k])
			continue;
		to->average[to->naverage] = t->average[k];
		record[k] = ++to->naverage;
	}
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].made)
			to->tensor[i].made = record[t->tensor[i].made - 1];
	p->target = to;
	return 0;
}

/* The MADE tensors that the target holds, and the target without them. */
static int made_find(struct parts *p, const uint32_t *order, struct ckpt_err *err)
{
	const struct table *t = p->target;

	p->made = calloc((size_t)t->ntensor + 1, sizeof *p->made);
	if (!p->made)
		return no_memory(err);
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[order[i]].made && t->tensor[order[i]].cls != CKPT_SINK)
			p->made[p->nmade++] = order[i];
	if (p->nmade && table_twin(t, &p->plain))
		return no_memory(err);
	for (uint32_t i = 0; i < p->nmade; i++)
		p->plain.tensor[p->made[i]].cls = CKPT_SINK;
	return 0;
}

static void part_add(struct parts *p, uint32_t rank, uint32_t kind, uint32_t source)
{
	struct part_of *of = &p->of[p->npart++];
	const uint8_t *u = p->info.uuid;

	*of = (struct part_of){ .rank = rank, .kind = kind, .source = source };
	snprintf(of->name, sizeof of->name, "w%04u-%02x%02x%02x%02x-%03u.part", rank, u[0], u[1],
		 u[2], u[3], kind == PART_AVERAGE ? 1 : 0);
}

/* A rank that owns something of an average has a part of averages. */
static int parts_list(struct parts *p, struct ckpt_err *err)
{
	uint32_t world = p->info.world, naverage;

	p->of = calloc(2 * (size_t)world, sizeof *p->of);
	if (!p->of)
		return no_memory(err);
	for (uint32_t r = 0; r < world && p->nmade; r++) {
		struct table t;
		int rc = format_stopped(p->want, err);

		if (!rc)
			rc = average_table(p, r, &t, err);
		if (rc)
			return rc;
		if (t.ntensor)
			part_add(p, r, PART_AVERAGE, TABLE_NONE);
		table_free(&t);
	}
	naverage = p->npart;
	for (uint32_t r = 0, a = 0; r < world; r++) {
		bool has = a < naverage && p->of[a].rank == r;

		part_add(p, r, PART_MAIN, has ? a : TABLE_NONE);
		a += has;
	}
	return 0;
}

/* --- the sheet --- */

static int set_share(struct memo *m, const struct indexset *x, struct arena *a,
		     struct indexset *ret)
{
	uint64_t key = x->numel;
	struct indexset *s;
	int r = 0;

	for (uint32_t d = 0; d < x->ndim; d++)
		key = (key ^ x->dim[d].run[0].start ^ x->dim[d].total << 32) *
		      UINT64_C(0xff51afd7ed558ccd);
	s = &m->set[(key ^ key >> 33) & (MEMO - 1)];
	if (!s->numel || s->ndim != x->ndim || !indexset_equal(s, x))
		r = indexset_copy(x, a, s);
	*ret = *s;
	return r;
}

/* All tensors, in the order in which their bytes lie in every part. A part's own table says how
 * they are cut, and what made them. */
static int tensors_add(struct sheet *s, const struct table *target, const uint32_t *order,
		       struct ckpt_err *err)
{
	uint32_t *origin =
		arena_array(&s->table.arena, (size_t)target->ntensor + 1, sizeof *origin);
	int r = 0;

	if (!origin || table_reserve(&s->table, target->ntensor, 0))
		return no_memory(err);
	s->origin = origin;
	for (uint32_t i = 0; i < target->ntensor && !r; i++) {
		struct table_tensor x = target->tensor[order[i]];

		if (x.cls == CKPT_SINK)
			continue;
		x.layout = TABLE_NONE;
		x.made = 0;
		*origin++ = order[i];
		r = table_add_tensor(&s->table, &x, NULL, err);
	}
	return r;
}

/* Its place, its pieces, and how long its file can be. */
static int part_place(struct sheet *s, uint32_t part, struct memo *memo, uint64_t *ret_bytes,
		      struct ckpt_err *err)
{
	const struct parts *p = s->priv;
	struct table_place place;
	struct table t;
	int r = own_table(p, part, &t, err);

	if (r)
		return r;
	place = (struct table_place){ p->of[part].name, p->of[part].rank, t.place[0].bytes };
	r = table_add_place(&s->table, &place, NULL, err);
	for (uint32_t k = 0; k < t.npiece && !r; k++) {
		const struct table_tensor *x = &t.tensor[t.piece[k].tensor];
		struct table_piece y = t.piece[k];

		y.tensor = table_find(&s->table, x->component, x->name, x->rank);
		y.place = part;
		r = set_share(memo, &t.piece[k].set, &s->table.arena, &y.set);
		r = r ? no_memory(err) : table_put_piece(&s->table, &y, err);
	}
	*ret_bytes = native_part_bytes_max(&t, p->of[part].source != TABLE_NONE);
	table_free(&t);
	return r;
}

static uint64_t manifest_bytes_max(const struct parts *p)
{
	const struct checkpoint *k = p->want->facts;
	uint64_t bytes = native_declared_bytes_max(p->target) + sizeof(struct ck_lineage) +
			 NATIVE_TOOL_MAX + CKPT_JOB_MAX + 2;

	bytes += p->npart * (sizeof(struct ck_part) + NATIVE_NAME_MAX + 1);
	for (uint32_t i = 0; i < k->nnote; i++)
		bytes += sizeof(struct ck_note) + strlen(k->note[i].key) + 1;
	for (uint32_t i = 0; i < k->nattr; i++)
		bytes += sizeof(struct ck_attr) + strlen(k->attr[i].key) +
			 strlen(k->attr[i].value) + 2;
	return bytes;
}

/* The files, and a head and an end for each part. */
static int files_make(struct sheet *s, struct memo *memo, struct ckpt_err *err)
{
	const struct parts *p = s->priv;
	struct arena *a = &s->table.arena;
	struct sheet_file *file = arena_array(a, (size_t)p->npart + 1, sizeof *file);
	struct sheet_run *run = arena_array(a, 2 * (size_t)p->npart + 1, sizeof *run);
	int r = 0;

	if (!file || !run)
		return no_memory(err);
	for (uint32_t i = 0; i < p->npart && !r; i++) {
		file[i] = (struct sheet_file){ .name = p->of[i].name,
					       .data_off = CONTAINER_BLOCK,
					       .chunk_log2 = CHUNK_LOG2 };
		run[2 * i] = (struct sheet_run){ i, 0, CONTAINER_BLOCK };
		run[2 * i + 1] = (struct sheet_run){ i, SHEET_END, 0 };
		r = format_stopped(p->want, err);
		if (!r)
			r = part_place(s, i, memo, &file[i].bytes, err);
	}
	if (r)
		return r;
	file[p->npart] =
		(struct sheet_file){ .name = NATIVE_MANIFEST, .bytes = manifest_bytes_max(p) };
	run[2 * p->npart] = (struct sheet_run){ p->npart, 0, 0 };
	s->file = file;
	s->nfile = p->npart + 1;
	s->run = run;
	s->nrun = 2 * p->npart + 1;
	return table_add_place(&s->table, &(struct table_place){ NATIVE_MANIFEST, TABLE_NONE, 0 },
			       NULL, err);
}

static int sheet_fill_in(struct sheet *s, struct ckpt_err *err)
{
	struct parts *p = s->priv;
	uint32_t ntensor = p->target->ntensor;
	cleanup_free uint32_t *order = calloc((size_t)ntensor + 1, sizeof *order);
	cleanup_free struct memo *memo = calloc(1, sizeof *memo);
	int r;

	if (!order || !memo)
		return no_memory(err);
	r = averages_trim(p, err);
	if (!r && native_raw_order(p->target, order))
		r = no_memory(err);
	if (!r)
		r = made_find(p, order, err);
	if (!r)
		r = parts_list(p, err);
	if (!r)
		r = tensors_add(s, p->target, order, err);
	if (!r)
		r = files_make(s, memo, err);
	return r ? r : table_seal(&s->table, err);
}

/* What makes no sense of this format is refused, not passed over. */
static int want_check(const struct table *target, const struct format_want *w, struct ckpt_err *err)
{
	if (w->stem)
		return ckpt_error(err, -EINVAL,
				  "a native checkpoint is a directory, not the file %s", w->stem);
	if (w->strip)
		return ckpt_error(
			err, -EINVAL,
			"a native checkpoint keeps components, also %s: a view can rename "
			"its tensors",
			w->strip);
	if (w->shard_bytes)
		return ckpt_error(err, -EINVAL,
				  "a native checkpoint has a part for each rank: the mesh decides "
				  "how large they are");
	if (target_world(target) > NATIVE_WORLD_MAX)
		return ckpt_error(err, -EINVAL, "a mesh of %u ranks; a checkpoint has at most %u",
				  target_world(target), NATIVE_WORLD_MAX);
	return 0;
}

bool native_says(const struct checkpoint_attr *attr, char why[FORMAT_WHY])
{
	snprintf(why, FORMAT_WHY, "a key has 1 to %d bytes, a value at most %d",
		 NATIVE_ATTR_KEY_MAX, NATIVE_ATTR_VALUE_MAX);
	return *attr->key && strlen(attr->key) <= NATIVE_ATTR_KEY_MAX &&
	       strlen(attr->value) <= NATIVE_ATTR_VALUE_MAX;
}

int native_sheet(const struct table *target, const struct format_want *want, struct sheet **ret,
		 struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	const struct checkpoint *k = want->facts;
	struct sheet *s;
	struct parts *p;
	int r = want_check(target, want, err);

	(void)cannot; /* it holds every table */
	*ret = NULL;
	if (r)
		return r;
	s = calloc(1, sizeof *s);
	p = calloc(1, sizeof *p);
	if (!s || !p) {
		free(s);
		free(p);
		return no_memory(err);
	}
	p->target = target;
	p->want = want;
	p->info = (struct native_info){ .job = k->job,
					.step = k->step,
					.generation = k->generation,
					.wall_ns = k->wall_ns,
					.world = target_world(target) };
	memcpy(p->info.uuid, want->uuid, sizeof p->info.uuid);
	s->format = &format_native;
	s->priv = p;
	r = sheet_fill_in(s, err);
	if (r)
		sheet_free(s);
	else
		*ret = s;
	return r;
}

void native_sheet_end(struct sheet *s)
{
	struct parts *p = s->priv;

	table_free(&p->plain);
	table_free(&p->trimmed);
	free(p->of);
	free(p->made);
	free(p);
}

/* --- its runs --- */

/* A part that is written, as the main part of its rank and MANIFEST describe it. */
static struct native_part part_written(const struct sheet *s, uint32_t part,
				       const struct sheet_state *state)
{
	const struct parts *p = s->priv;
	const struct part_of *of = &p->of[part];
	const struct native_role role = { .kind = of->kind };
	struct native_info info = p->info;
	struct native_part x = { .rank = of->rank,
				 .kind = of->kind,
				 .step = info.step,
				 .generation = info.generation,
				 .file_bytes = state->file[part].bytes,
				 .raw_bytes = s->table.place[part].bytes,
				 .root = state->file[part].seal };

	info.role = &role;
	native_part_uuid(&info, of->rank, x.uuid);
	memcpy(x.name, of->name, sizeof of->name);
	return x;
}

/* The piece of the sheet's table that a part has of a tensor of its own table t: there is one for
 * each rank that owns something of the tensor. */
static const struct table_piece *piece_of(const struct sheet *s, uint32_t part,
					  const struct table *t, uint32_t tensor)
{
	const struct table_tensor *x = &t->tensor[tensor];
	const struct parts *p = s->priv;
	uint32_t at = table_find(&s->table, x->component, x->name, x->rank);
	uint32_t low = s->table.first[at], high = s->table.first[at + 1];

	while (high - low > 1) {
		uint32_t mid = low + (high - low) / 2;

		if (s->table.piece[mid].rank > p->of[part].rank)
			high = mid;
		else
			low = mid;
	}
	assert(s->table.piece[low].rank == p->of[part].rank && s->table.piece[low].place == part);
	return &s->table.piece[low];
}

static int bytes_keep(struct arena *a, void *bytes, uint64_t len, const void **ret,
		      uint64_t *ret_len, struct ckpt_err *err)
{
	*ret = arena_dup(a, bytes, len);
	*ret_len = len;
	free(bytes);
	return *ret ? 0 : no_memory(err);
}

static int part_tail(const struct sheet *s, uint32_t part, const struct sheet_state *state,
		     struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		     struct ckpt_err *err)
{
	const struct parts *p = s->priv;
	const struct part_of *of = &p->of[part];
	const struct sheet_done *done = &state->file[part];
	struct native_role role = { .kind = of->kind };
	struct native_info info = p->info;
	struct native_part source;
	struct table t;
	void *bytes = NULL;
	uint64_t len = 0;
	int r = own_table(p, part, &t, err);

	if (r)
		return r;
	for (uint32_t k = 0; k < t.npiece; k++) {
		const struct table_piece *x = piece_of(s, part, &t, t.piece[k].tensor);

		t.piece[k].fp = x->fp;
		t.piece[k].fp_known = x->fp_known;
	}
	if (of->source != TABLE_NONE) {
		source = part_written(s, of->source, state);
		role.source = &source;
		role.nsource = 1;
	}
	info.role = &role;
	r = native_part_tail(&info, of->rank, &t, done->chunk, done->nchunk, done->data_end, &bytes,
			     &len, ret_seal, err);
	table_free(&t);
	return r ? r : bytes_keep(a, bytes, len, ret, ret_len, err);
}

/* The tensors as MANIFEST has them: in the target's order, each with the sum of its pieces'
 * fingerprints, which is known where all of those are. */
static int declared_make(const struct sheet *s, struct table *ret, struct ckpt_err *err)
{
	const struct parts *p = s->priv;
	const struct table *from = p->target;
	int r = context_add(from, ret, err);

	if (!r && table_reserve(ret, from->ntensor, 0))
		r = no_memory(err);
	for (uint32_t i = 0; i < from->ntensor && !r; i++)
		if (from->tensor[i].cls != CKPT_SINK)
			r = table_add_tensor(ret, &from->tensor[i], NULL, err);
	if (!r)
		r = table_seal(ret, err);
	for (uint32_t i = 0; i < s->table.ntensor && !r; i++) {
		const struct table_tensor *x = &s->table.tensor[i];
		struct table_tensor *y =
			&ret->tensor[table_find(ret, x->component, x->name, x->rank)];

		y->fp = 0;
		y->fp_known = true;
		for (uint32_t k = s->table.first[i]; k < s->table.first[i + 1]; k++) {
			y->fp += s->table.piece[k].fp;
			y->fp_known &= s->table.piece[k].fp_known;
		}
		if (!y->fp_known)
			y->fp = 0;
	}
	return r;
}

static int cover_check(const struct sheet *s, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int r;

	table_cover(&s->table, &list);
	r = list.code == -ENOMEM
		    ? no_memory(err) /* what was not checked is not wrong */
		    : ckpt_errlist_end(&list, err, "the parts do not make up the tensors");
	ckpt_errlist_free(&list);
	return r;
}

static int manifest_run(const struct sheet *s, const struct sheet_state *state, struct arena *a,
			const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
			struct ckpt_err *err)
{
	const struct parts *p = s->priv;
	cleanup_free struct native_part *part = calloc(p->npart, sizeof *part);
	struct table declared = { 0 };
	struct native_lineage line;
	void *bytes = NULL;
	uint64_t len = 0;
	int r;

	if (!part || native_lineage_of(p->want->facts, p->want->tool, a, &line))
		return no_memory(err);
	for (uint32_t i = 0; i < p->npart; i++)
		part[i] = part_written(s, i, state);
	r = cover_check(s, err);
	if (!r)
		r = declared_make(s, &declared, err);
	if (!r)
		r = native_manifest_declared(&p->info, &declared, part, p->npart, &line, &bytes,
					     &len, ret_seal->b, err);
	table_free(&declared);
	return r ? r : bytes_keep(a, bytes, len, ret, ret_len, err);
}

static int part_head(const struct sheet *s, uint32_t part, struct arena *a, const void **ret,
		     uint64_t *ret_len, struct ckpt_err *err)
{
	const struct parts *p = s->priv;
	const struct native_role role = { .kind = p->of[part].kind };
	struct ck_head *head = arena_alloc(a, sizeof *head);
	struct native_info info = p->info;

	if (!head)
		return no_memory(err);
	info.role = &role;
	native_part_head(&info, p->of[part].rank, head);
	*ret = head;
	*ret_len = sizeof *head;
	return 0;
}

int native_fill(const struct sheet *s, uint32_t run, const struct sheet_state *state,
		struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		struct ckpt_err *err)
{
	const struct sheet_run *x = &s->run[run];
	const struct parts *p = s->priv;

	*ret_seal = (struct hash128){ 0 };
	if (x->file == p->npart)
		return manifest_run(s, state, a, ret, ret_len, ret_seal, err);
	if (x->off == SHEET_END)
		return part_tail(s, x->file, state, a, ret, ret_len, ret_seal, err);
	return part_head(s, x->file, a, ret, ret_len, err);
}

bool native_holds(const struct table *t, uint32_t tensor, char why[FORMAT_WHY])
{
	(void)t;
	(void)tensor;
	*why = 0;
	return true; /* what a table can say, this format can */
}
