/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal.c - see journal.h. Called by convert.c. Invariant: what is decoded was encoded by us:
 * every section has its hash, and every count is held against the others.
 */
#include "ckpt/engine/journal.h"
#include "ckpt/base/container.h"

enum { CJ_WHO = 1, CJ_STATE, CJ_FILES, CJ_CHUNKS, CJ_SUMS, CJ_PRINTS, CJ_END };
#define WORDS 6u /* of WHO */

_Static_assert(sizeof(struct cj_state) == 48, "cj_state");
_Static_assert(sizeof(struct cj_file) == 64, "cj_file");
_Static_assert(sizeof(struct cj_chunk) == 16, "cj_chunk");
_Static_assert(sizeof(struct cj_sum) == 16, "cj_sum");

/* --- writing --- */

static uint64_t chunks_of(const struct journal_file *f)
{
	return f->state == JOURNAL_OPEN ? f->nchunk : 0;
}

/* How many fingerprints there are. */
static uint64_t prints_of(const struct journal *j, const struct table *t)
{
	uint64_t n = 0;

	for (uint32_t k = 0; k < t->npiece; k++)
		n += j->file[t->piece[k].place].state != JOURNAL_NONE;
	return n;
}

static void file_encode(const struct journal_file *f, struct cj_file *rec, struct cj_chunk *chunk)
{
	*rec = (struct cj_file){ .state = le32_of(f->state) };
	if (f->state == JOURNAL_DONE) {
		rec->bytes = le64_of(f->bytes);
		rec->data_end = le64_of(f->data_end);
		memcpy(rec->seal, f->seal.b, sizeof rec->seal);
	} else if (f->state == JOURNAL_OPEN) {
		rec->fill = le32_of(f->fill);
		rec->nchunk = le64_of(f->nchunk);
		memcpy(rec->fill_hash, f->fill_hash.b, sizeof rec->fill_hash);
	}
	for (uint64_t i = 0; i < chunks_of(f); i++)
		memcpy(chunk[i].hash, f->chunk[i].raw_hash.b, sizeof chunk[i].hash);
}

static char *who_encode(const struct journal *j, struct arena *a, uint64_t *ret_len)
{
	const char *word[WORDS] = { j->source, j->from, j->to, j->mesh, j->tool, j->options };
	uint64_t len = 0, at = 0;
	char *p;

	for (uint32_t i = 0; i < WORDS; i++)
		len += strlen(word[i]) + 1;
	p = arena_alloc(a, len);
	for (uint32_t i = 0; i < WORDS && p; i++) {
		size_t n = strlen(word[i]) + 1;

		memcpy(p + at, word[i], n);
		at += n;
	}
	*ret_len = len;
	return p;
}

struct sections {
	struct cj_state state;
	char *who;
	uint64_t who_len, nchunk, nprint;
	struct cj_file *file;
	struct cj_chunk *chunk;
	struct cj_sum *sum;
	le64 *print;
};

static int sections_encode(const struct journal *j, const struct table *t, struct arena *a,
			   struct sections *s)
{
	s->state = (struct cj_state){ .seq = le64_of(j->seq),
				      .mem_limit = le64_of(j->mem_limit),
				      .windows = le64_of(j->windows),
				      .bytes = le64_of(j->bytes),
				      .first = le32_of(j->first),
				      .batch = le32_of(j->batch),
				      .nfile = le32_of(j->nfile),
				      .finished = le32_of(j->finished) };
	for (uint32_t i = 0; i < j->nfile; i++)
		s->nchunk += chunks_of(&j->file[i]);
	s->who = who_encode(j, a, &s->who_len);
	s->file = arena_array(a, (size_t)j->nfile + 1, sizeof *s->file);
	s->chunk = arena_array(a, s->nchunk + 1, sizeof *s->chunk);
	s->sum = arena_array(a, j->nsum + 1, sizeof *s->sum);
	s->print = arena_array(a, prints_of(j, t) + 1, sizeof *s->print);
	if (!s->who || !s->file || !s->chunk || !s->sum || !s->print)
		return -ENOMEM;
	s->nchunk = 0;
	for (uint32_t i = 0; i < j->nfile; i++) {
		file_encode(&j->file[i], &s->file[i], s->chunk + s->nchunk);
		s->nchunk += chunks_of(&j->file[i]);
	}
	for (uint64_t i = 0; i < j->nsum; i++)
		s->sum[i] = (struct cj_sum){ .crc = le32_of(j->sum[i].crc),
					     .at = le64_of(j->sum[i].at) };
	for (uint32_t k = 0; k < t->npiece; k++)
		if (j->file[t->piece[k].place].state != JOURNAL_NONE)
			s->print[s->nprint++] = le64_of(t->piece[k].fp);
	return 0;
}

static struct container_bytes section_of(uint32_t kind, const void *p, uint64_t n,
					 uint32_t rec_bytes)
{
	return (struct container_bytes){
		.kind = kind, .p = p, .len = n * rec_bytes, .rec_bytes = rec_bytes
	};
}

int journal_encode(const struct journal *j, const struct table *t, void **ret_bytes,
		   uint64_t *ret_len, struct ckpt_err *err)
{
	struct container_info info = { .kind = CONTAINER_JOURNAL,
				       .chunk_log2 = 20,
				       .align_log2 = 12 };
	struct sections s = { 0 };
	struct arena a = { 0 };
	int rc = sections_encode(j, t, &a, &s);

	memcpy(info.uuid, j->uuid, sizeof info.uuid);
	if (rc)
		ckpt_error(err, rc, "out of memory for the journal of a conversion");
	else
		rc = container_encode(
			&info,
			(struct container_bytes[]){
				section_of(CJ_WHO, s.who, s.who_len, 1),
				section_of(CJ_STATE, &s.state, 1, sizeof s.state),
				section_of(CJ_FILES, s.file, j->nfile, sizeof *s.file),
				section_of(CJ_CHUNKS, s.chunk, s.nchunk, sizeof *s.chunk),
				section_of(CJ_SUMS, s.sum, j->nsum, sizeof *s.sum),
				section_of(CJ_PRINTS, s.print, s.nprint, sizeof *s.print),
			},
			CJ_END - 1, ret_bytes, ret_len, err);
	arena_free(&a);
	return rc;
}

/* --- reading --- */

static int file_decode(const struct cj_file *rec, const struct cj_chunk *c, uint64_t nchunk,
		       struct arena *a, struct journal_file *ret)
{
	uint64_t n = le64_get(rec->nchunk);
	struct chunk *chunk;

	*ret = (struct journal_file){ .state = le32_get(rec->state),
				      .fill = le32_get(rec->fill),
				      .nchunk = n,
				      .bytes = le64_get(rec->bytes),
				      .data_end = le64_get(rec->data_end) };
	if (ret->state > JOURNAL_DONE || (ret->state != JOURNAL_OPEN && n) || n > nchunk)
		return -EBADMSG;
	memcpy(ret->fill_hash.b, rec->fill_hash, sizeof ret->fill_hash.b);
	memcpy(ret->seal.b, rec->seal, sizeof ret->seal.b);
	if (ret->state != JOURNAL_OPEN)
		return 0;
	chunk = arena_array(a, n + 1, sizeof *chunk);
	if (!chunk)
		return -ENOMEM;
	for (uint64_t i = 0; i < n; i++)
		memcpy(chunk[i].raw_hash.b, c[i].hash, sizeof chunk[i].raw_hash.b);
	ret->chunk = chunk;
	return 0;
}

/* The strings of WHO. */
static bool who_decode(const char *p, uint64_t len, struct journal *j)
{
	const char **to[WORDS] = { &j->source, &j->from, &j->to, &j->mesh, &j->tool, &j->options };

	for (uint32_t i = 0; i < WORDS; i++) {
		const char *end = len ? memchr(p, 0, len) : NULL;

		if (!end)
			return false;
		*to[i] = p;
		len -= (uint64_t)(end + 1 - p);
		p = end + 1;
	}
	return !len;
}

static int files_decode(const struct cj_file *rec, const struct cj_chunk *chunk, uint64_t nchunk,
			struct journal *j)
{
	j->file = arena_array(&j->arena, (size_t)j->nfile + 1, sizeof *j->file);
	if (!j->file)
		return -ENOMEM;
	for (uint32_t i = 0; i < j->nfile; i++) {
		int rc = file_decode(&rec[i], chunk, nchunk, &j->arena, &j->file[i]);

		if (rc)
			return rc;
		if (nchunk) /* there may be no section of them */
			chunk += j->file[i].nchunk;
		nchunk -= j->file[i].nchunk;
	}
	return nchunk ? -EBADMSG : 0;
}

static int sums_decode(const struct cj_sum *rec, struct journal *j)
{
	j->sum = arena_array(&j->arena, j->nsum + 1, sizeof *j->sum);
	if (!j->sum)
		return -ENOMEM;
	for (uint64_t i = 0; i < j->nsum; i++)
		j->sum[i] = (struct journal_sum){ .crc = le32_get(rec[i].crc),
						  .at = le64_get(rec[i].at) };
	return 0;
}

static int sections_decode(const struct container_view *v, struct journal *j)
{
	const void *who, *state, *file, *chunk, *sum, *print;
	uint64_t nwho, nstate, nfile, nchunk;
	const struct cj_state *s;
	int rc;

	if (container_view_records(v, CJ_WHO, 1, &who, &nwho, NULL) ||
	    container_view_records(v, CJ_STATE, sizeof *s, &state, &nstate, NULL) ||
	    container_view_records(v, CJ_FILES, sizeof(struct cj_file), &file, &nfile, NULL) ||
	    container_view_records(v, CJ_CHUNKS, sizeof(struct cj_chunk), &chunk, &nchunk, NULL) ||
	    container_view_records(v, CJ_SUMS, sizeof(struct cj_sum), &sum, &j->nsum, NULL) ||
	    container_view_records(v, CJ_PRINTS, sizeof(le64), &print, &j->nprint, NULL))
		return -EBADMSG;
	s = state;
	if (nstate != 1 || !who_decode(who, nwho, j) || nfile != le32_get(s->nfile))
		return -EBADMSG;
	memcpy(j->uuid, v->info.uuid, sizeof j->uuid);
	j->seq = le64_get(s->seq);
	j->mem_limit = le64_get(s->mem_limit);
	j->windows = le64_get(s->windows);
	j->bytes = le64_get(s->bytes);
	j->first = le32_get(s->first);
	j->batch = le32_get(s->batch);
	j->nfile = le32_get(s->nfile);
	j->finished = le32_get(s->finished) != 0;
	j->print = print;
	if (j->first > j->nfile || !j->batch)
		return -EBADMSG;
	rc = files_decode(file, chunk, nchunk, j);
	return rc ? rc : sums_decode(sum, j);
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

int journal_prints(const struct journal *j, struct table *t, struct ckpt_err *err)
{
	uint64_t n = prints_of(j, t);

	if (n != j->nprint)
		return ckpt_error(
			err, -EBADMSG,
			"the journal of a conversion has %llu fingerprints for %llu pieces",
			(unsigned long long)j->nprint, (unsigned long long)n);
	n = 0;
	for (uint32_t k = 0; k < t->npiece; k++)
		if (j->file[t->piece[k].place].state != JOURNAL_NONE) {
			t->piece[k].fp = le64_get(j->print[n++]);
			t->piece[k].fp_known = true;
		}
	return 0;
}

void journal_free(struct journal *j)
{
	arena_free(&j->arena);
	*j = (struct journal){ 0 };
}
