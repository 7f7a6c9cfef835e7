/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_journal.c - see conversion_journal.h. Called by conversion.c. Invariant: what is
 * decoded was encoded by us: every section has its hash, and every count is held against the others.
 */
#include "ckpt/cli/conversion_journal.h"

enum { CJ_WHO = 1, CJ_STATE, CJ_PARTS, CJ_SUMS, CJ_PRINTS, CJ_END };

_Static_assert(sizeof(struct cj_state) == 48, "cj_state");
_Static_assert(sizeof(struct cj_part) == 40, "cj_part");
_Static_assert(sizeof(struct cj_sum) == 16, "cj_sum");

/* --- writing --- */

static uint64_t sums_of(const struct journal_part *p)
{
	return p->state == JOURNAL_OPEN ? p->at.nchunk : 0;
}

/* How many fingerprints there are to tell. */
static uint64_t prints_of(const struct journal *j, const struct table *all)
{
	uint64_t n = 0;

	for (uint32_t k = 0; k < all->npiece; k++)
		n += j->part[all->piece[k].place].state != JOURNAL_NONE;
	return n;
}

static void part_encode(const struct journal_part *p, struct cj_part *rec, struct cj_sum *sum)
{
	*rec = (struct cj_part){ .state = le32_of(p->state) };
	if (p->state == JOURNAL_DONE) {
		rec->file_bytes = le64_of(p->file_bytes);
		memcpy(rec->hash, p->root.b, sizeof rec->hash);
	} else if (p->state == JOURNAL_OPEN) {
		rec->fill = le32_of(p->at.fill);
		rec->nchunk = le64_of(p->at.nchunk);
		memcpy(rec->hash, p->at.hash.b, sizeof rec->hash);
	}
	for (uint64_t i = 0; i < sums_of(p); i++)
		memcpy(sum[i].hash, p->at.sum[i].raw_hash.b, sizeof sum[i].hash);
}

static char *who_encode(const struct journal *j, struct arena *a, uint64_t *ret_len)
{
	size_t source = strlen(j->source) + 1, tool = strlen(j->tool) + 1,
	       mesh = strlen(j->mesh) + 1;
	char *p = arena_alloc(a, source + tool + mesh);

	if (p) {
		memcpy(p, j->source, source);
		memcpy(p + source, j->tool, tool);
		memcpy(p + source + tool, j->mesh, mesh);
	}
	*ret_len = source + tool + mesh;
	return p;
}

int journal_encode(const struct journal *j, const struct table *all, void **ret_bytes,
		   uint64_t *ret_len, struct ckpt_err *err)
{
	struct cj_state state = { .seq = le64_of(j->seq),
				  .mem_limit = le64_of(j->mem_limit),
				  .windows = le64_of(j->windows),
				  .bytes = le64_of(j->bytes),
				  .first = le32_of(j->first),
				  .batch = le32_of(j->batch),
				  .world = le32_of(j->world) };
	struct container_info info = { .kind = CONTAINER_JOURNAL,
				       .step = j->step,
				       .chunk_log2 = CHUNK_LOG2,
				       .align_log2 = NATIVE_ALIGN_LOG2 };
	uint64_t nsum = 0, nprint = 0, who_len;
	struct arena a = { 0 };
	struct cj_part *part;
	struct cj_sum *sum;
	le64 *print;
	char *who;
	int rc;

	memcpy(info.uuid, j->uuid, sizeof info.uuid);
	for (uint32_t i = 0; i < j->world; i++)
		nsum += sums_of(&j->part[i]);
	nprint = prints_of(j, all);
	who = who_encode(j, &a, &who_len);
	part = arena_array(&a, (size_t)j->world + 1, sizeof *part);
	sum = arena_array(&a, nsum + 1, sizeof *sum);
	print = arena_array(&a, nprint + 1, sizeof *print);
	if (!who || !part || !sum || !print) {
		arena_free(&a);
		return ckpt_error(err, -ENOMEM, "out of memory for the journal of a conversion");
	}
	nsum = nprint = 0;
	for (uint32_t i = 0; i < j->world; i++) {
		part_encode(&j->part[i], &part[i], sum + nsum);
		nsum += sums_of(&j->part[i]);
	}
	for (uint32_t k = 0; k < all->npiece; k++)
		if (j->part[all->piece[k].place].state != JOURNAL_NONE)
			print[nprint++] = le64_of(all->piece[k].fp);
	rc = container_encode(&info,
			      (struct container_bytes[]){
				      { .kind = CJ_WHO, .p = who, .len = who_len, .rec_bytes = 1 },
				      { .kind = CJ_STATE,
					.p = &state,
					.len = sizeof state,
					.rec_bytes = sizeof state },
				      { .kind = CJ_PARTS,
					.p = part,
					.len = j->world * sizeof *part,
					.rec_bytes = sizeof *part },
				      { .kind = CJ_SUMS,
					.p = sum,
					.len = nsum * sizeof *sum,
					.rec_bytes = sizeof *sum },
				      { .kind = CJ_PRINTS,
					.p = print,
					.len = nprint * sizeof *print,
					.rec_bytes = sizeof *print },
			      },
			      CJ_END - 1, ret_bytes, ret_len, err);
	arena_free(&a);
	return rc;
}

/* --- reading --- */

static int part_decode(const struct cj_part *rec, const struct cj_sum *sum, uint64_t nsum,
		       struct arena *a, struct journal_part *ret)
{
	uint64_t n = le64_get(rec->nchunk);
	struct chunk *chunk;

	*ret = (struct journal_part){ .state = le32_get(rec->state),
				      .file_bytes = le64_get(rec->file_bytes) };
	if (ret->state > JOURNAL_DONE || (ret->state != JOURNAL_OPEN && n) || n > nsum)
		return -EBADMSG;
	memcpy(ret->root.b, rec->hash, sizeof ret->root.b);
	if (ret->state != JOURNAL_OPEN)
		return 0;
	chunk = arena_array(a, n + 1, sizeof *chunk);
	if (!chunk)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++)
		memcpy(chunk[i].raw_hash.b, sum[i].hash, sizeof chunk[i].raw_hash.b);
	ret->at = (struct chunk_state){
		.nchunk = n, .fill = le32_get(rec->fill), .hash = ret->root, .sum = chunk
	};
	return 0;
}

/* The three strings of WHO. */
static bool who_decode(const char *p, uint64_t len, struct journal *j)
{
	const char **to[] = { &j->source, &j->tool, &j->mesh };

	for (uint32_t i = 0; i < ARRAY_LEN(to); i++) {
		const char *end = len ? memchr(p, 0, len) : NULL;

		if (!end)
			return false;
		*to[i] = p;
		len -= (uint64_t)(end + 1 - p);
		p = end + 1;
	}
	return !len;
}

static int sections_decode(const struct container_view *v, struct journal *j)
{
	const void *who, *state, *part, *sum, *print;
	uint64_t nwho, nstate, npart, nsum;
	const struct cj_state *s;
	int rc;

	if (container_view_records(v, CJ_WHO, 1, &who, &nwho, NULL) ||
	    container_view_records(v, CJ_STATE, sizeof *s, &state, &nstate, NULL) ||
	    container_view_records(v, CJ_PARTS, sizeof(struct cj_part), &part, &npart, NULL) ||
	    container_view_records(v, CJ_SUMS, sizeof(struct cj_sum), &sum, &nsum, NULL) ||
	    container_view_records(v, CJ_PRINTS, sizeof(le64), &print, &j->nprint, NULL))
		return -EBADMSG;
	s = state;
	if (nstate != 1 || !who_decode(who, nwho, j) || npart != le32_get(s->world))
		return -EBADMSG;
	memcpy(j->uuid, v->info.uuid, sizeof j->uuid);
	j->step = v->info.step;
	j->seq = le64_get(s->seq);
	j->mem_limit = le64_get(s->mem_limit);
	j->windows = le64_get(s->windows);
	j->bytes = le64_get(s->bytes);
	j->first = le32_get(s->first);
	j->batch = le32_get(s->batch);
	j->world = le32_get(s->world);
	j->print = print;
	j->part = arena_array(&j->arena, npart + 1, sizeof *j->part);
	if (!j->part)
		return -ENOMEM;
	for (uint64_t i = 0; i < npart; i++) {
		rc = part_decode((const struct cj_part *)part + i, sum, nsum, &j->arena,
				 &j->part[i]);
		if (rc)
			return rc;
		if (nsum) /* there may be no section of them */
			sum = (const struct cj_sum *)sum + j->part[i].at.nchunk;
		nsum -= j->part[i].at.nchunk;
	}
	return nsum || j->first > j->world || !j->batch ? -EBADMSG : 0;
}

int journal_decode(const void *bytes, uint64_t len, struct journal *ret, struct ckpt_err *err)
{
	struct container_view v;
	int rc = container_decode(bytes, len, CONTAINER_JOURNAL, &v, err);

	*ret = (struct journal){ 0 };
	if (rc < 0)
		return rc;
	rc = sections_decode(&v, ret);
	if (rc < 0)
		journal_free(ret);
	return rc < 0 ? ckpt_error(err, rc, "the journal of a conversion contradicts itself") : 0;
}

int journal_prints(const struct journal *j, struct table *all, struct ckpt_err *err)
{
	uint64_t n = prints_of(j, all);

	if (n != j->nprint)
		return ckpt_error(
			err, -EBADMSG,
			"the journal of a conversion has %llu fingerprints for %llu pieces",
			(unsigned long long)j->nprint, (unsigned long long)n);
	n = 0;
	for (uint32_t k = 0; k < all->npiece; k++)
		if (j->part[all->piece[k].place].state != JOURNAL_NONE) {
			all->piece[k].fp = le64_get(j->print[n++]);
			all->piece[k].fp_known = true;
		}
	return 0;
}

void journal_free(struct journal *j)
{
	arena_free(&j->arena);
	*j = (struct journal){ 0 };
}
