/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memdir.h - a directory in memory as a struct source_dir, and a native checkpoint of the sample
 * model in it, made with the pure functions of formats/native alone. For tests of readers and for
 * fuzzing: files can be changed, cut, added and taken away without a file system. Include sample.c,
 * then memdir.c.
 */
#ifndef TESTS_MEMDIR_H
#define TESTS_MEMDIR_H
#include "ckpt/base/source.h"
#include "formats/native/native.h"

#define MEMDIR_FILES_MAX 40

struct memdir_file {
	char name[64];
	uint8_t *bytes; /* malloc'ed */
	uint64_t len;
	int error;   /* opening fails with it; 0 */
	bool folder; /* listed as no regular file */
};

struct memdir {
	struct memdir_file file[MEMDIR_FILES_MAX];
	uint32_t n;
};

struct memdir_file *memdir_add(struct memdir *d, const char *name, const void *bytes,
			       uint64_t len); /* copies */
struct memdir_file *memdir_find(struct memdir *d, const char *name);
void memdir_remove(struct memdir *d, const char *name);
void memdir_clear(struct memdir *d);
struct source_dir memdir_source(struct memdir *d); /* lives as long as d */
struct source memdir_open(struct memdir *d, const char *name);

/* What a committed checkpoint of the sample on this mesh holds. Deterministic: uuid and nonces come
 * from seed and step. */
struct memdir_opts {
	const char *mesh, *job;
	uint64_t seed, scale, step, generation, seq;
	uint8_t parent_id[16];
	const struct ckpt_note *note;
	uint32_t nnote;
};
void memdir_checkpoint(struct memdir *d, const struct memdir_opts *opts);

/* One part of it: bytes of the whole file, malloc'ed, and its description with the table to be
 * freed. */
void memdir_part(const struct memdir_opts *opts, const struct native_info *info, uint32_t rank,
		 struct native_part *ret_part, struct table *ret_table, uint8_t **ret_bytes);

/* format_native.root->rebuild, of a checkpoint of this job, step and lineage. */
int memdir_rebuild(const struct source_dir *dir, const char *job, uint64_t step,
		   const struct native_lineage *line, void **ret_bytes, uint64_t *ret_len,
		   uint8_t ret_id[16], struct ckpt_err *err);

/* The fingerprint of a piece, element by element. p: its bytes, row-major. */
uint64_t memdir_fingerprint(const struct table *t, const struct table_piece *piece,
			    const uint8_t *p);

/* Make all checksums of a file right again, and with a part also MANIFEST's hash of it: what a
 * newer writer, or somebody with a hex editor, would leave. */
void memdir_sign(struct memdir *d, struct memdir_file *f);
/* The first byte of a section; NULL: there is none. */
void *memdir_section(struct memdir_file *f, uint32_t kind);
#endif
