/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_rig.h - what the tests of reading and rebuilding share: a checkpoint of two ranks in
 * memory to be spoilt and made afresh, a directory whose n-th call fails, a file too long for any
 * memory, and checkpoints of declarations that the sample does not make.
 */
#ifndef TESTS_UNIT_NATIVE_RIG_H
#define TESTS_UNIT_NATIVE_RIG_H
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/unit.h"

/* --- spoilt, and made afresh --- */

static struct memdir good, bad;

static inline int setup(void **state)
{
	static const struct ckpt_note note[2] = { { "loss", 1.5 }, { "lr", 0.1 } };
	const struct memdir_opts o =
		ROW(.mesh = "fsdp=2", .job = "demo", .seed = 5, .scale = 1, .step = 12,
		    .generation = 3, .seq = 7, .note = note, .nnote = 2);

	(void)state;
	memdir_checkpoint(&good, &o);
	return 0;
}

static inline int teardown(void **state)
{
	(void)state;
	memdir_clear(&good);
	memdir_clear(&bad);
	return 0;
}

static inline void afresh(void)
{
	memdir_clear(&bad);
	for (uint32_t i = 0; i < good.n; i++)
		(void)memdir_add(&bad, good.file[i].name, good.file[i].bytes, good.file[i].len);
}

static inline struct memdir_file *manifest(void)
{
	return memdir_find(&bad, NATIVE_MANIFEST);
}

static inline struct memdir_file *part(uint32_t rank)
{
	char name[40];

	snprintf(name, sizeof name, "w%04u-00000005-000.part", rank);
	return memdir_find(&bad, name);
}

static inline struct ck_head *head_of_file(struct memdir_file *f)
{
	return (struct ck_head *)f->bytes;
}

static inline struct ck_tail *tail_of_file(struct memdir_file *f)
{
	return (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);
}

static inline struct ck_sect *row(struct memdir_file *f, uint32_t kind)
{
	struct ck_tail *t = tail_of_file(f);

	for (uint32_t i = 0; i < le32_get(t->nsect); i++)
		if (le32_get(t->sect[i].kind) == kind)
			return &t->sect[i];
	fail_msg("no section of kind %u", kind);
	return NULL;
}

/* --- reading that fails --- */

static struct {
	uint64_t n; /* reads, openings and listings until one fails */
	int error;
	bool did;
	uint32_t open; /* now */
} failing;

static inline bool fails(void)
{
	if (failing.n-- != 0)
		return false;
	failing.did = true;
	return true;
}

static inline int failing_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct source *s = ctx;

	return fails() ? failing.error : s->read(s->ctx, buf, len, off);
}

static inline void failing_close(void *ctx)
{
	assert_true(failing.open > 0);
	failing.open--;
	free(ctx);
}

/* Of a struct memdir. What is opened is closed, or failing.open and a leak tell. */
static inline int failing_open(void *ctx, const char *name, struct source *ret)
{
	struct source_dir dir = memdir_source(ctx);
	struct source *s;
	int r;

	if (fails())
		return failing.error;
	s = malloc(sizeof *s);
	assert_non_null(s);
	r = dir.open(dir.ctx, name, s);
	if (r) {
		free(s);
		return r;
	}
	failing.open++;
	*ret = (struct source)ROW(.ctx = s, .bytes = s->bytes, .read = failing_read,
				  .close = failing_close);
	return 0;
}

static inline int failing_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	struct source_dir dir = memdir_source(ctx);

	return fails() ? failing.error : dir.list(dir.ctx, sub, each, arg);
}

static inline struct source_dir failing_source(struct memdir *d, uint64_t n, int error)
{
	failing.n = n;
	failing.error = error;
	failing.did = false;
	assert_int_equal(failing.open, 0);
	return (struct source_dir){ .ctx = d, .open = failing_open, .list = failing_list };
}

/* --- a file that no memory could hold: header, trailer, and in between what nobody may read --- */

struct huge {
	struct ck_head head;
	struct ck_tail tail;
	uint64_t bytes;
};

static inline int huge_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct huge *h = ctx;

	if (off == 0 && len == sizeof h->head)
		memcpy(buf, &h->head, len);
	else if (off == h->bytes - sizeof h->tail && len == sizeof h->tail)
		memcpy(buf, &h->tail, len);
	else
		fail_msg("%llu bytes at %llu were read", (unsigned long long)len,
			 (unsigned long long)off);
	return 0;
}

/* f, with a section of this kind and so many records in the place of its own. */
static inline struct source huge_of(struct memdir_file *f, uint32_t kind, uint32_t rec_bytes,
				    uint64_t count, struct huge *ret)
{
	struct container_info info;
	struct container_map m;
	struct container_bytes s =
		ROW(.kind = kind, .rec_bytes = rec_bytes, .p = "", .len = 0, .count = count);

	memcpy(&ret->head, f->bytes, sizeof ret->head);
	assert_int_equal(container_head_check(&ret->head, 0, &info, NULL), 0);
	container_map_start(&m, info.uuid, CONTAINER_BLOCK);
	(void)container_map_add(&m, &s);
	m.sect[0].len = rec_bytes * count;
	m.sect[0].count = count;
	m.file_bytes += align_up(m.sect[0].len, CONTAINER_BLOCK);
	container_tail_build(&ret->tail, &m);
	ret->bytes = m.file_bytes;
	return (struct source){ .ctx = ret, .bytes = ret->bytes, .read = huge_read };
}

/* --- checkpoints of other declarations --- */

/* The part file of a sealed part table, its data zeros and its pieces' fingerprints as they are. */
static inline void made_part(struct memdir *d, const struct native_info *info, uint32_t rank,
			     const struct table *t, struct native_part *ret)
{
	struct chunk *chunk;
	struct ck_head head;
	uint64_t n, data_end, len = 0;
	struct ckpt_err err;
	uint8_t *file;
	void *tail = NULL;

	*ret = (struct native_part)ROW(.rank = rank, .step = info->step,
				       .generation = info->generation,
				       .raw_bytes = t->place[0].bytes, .table = t);
	native_part_uuid(info, rank, ret->uuid);
	snprintf(ret->name, sizeof ret->name, "w%04u-00000005-000.part", rank);
	assert_ok_err(chunk_map_make(t, NATIVE_DATA_OFF, &chunk, &n, &data_end, &err), &err);
	assert_ok_err(
		native_part_tail(info, rank, t, chunk, n, data_end, &tail, &len, &ret->root, &err),
		&err);
	native_part_head(info, rank, &head);
	ret->file_bytes = data_end + len;
	file = calloc(1, ret->file_bytes);
	assert_non_null(file);
	memcpy(file, &head, sizeof head);
	memcpy(file + data_end, tail, len);
	(void)memdir_add(d, ret->name, file, ret->file_bytes);
	free(file);
	free(tail);
	free(chunk);
}
#endif
