/* SPDX-License-Identifier: Apache-2.0 */
/*
 * container.h - the envelope of every file that ckptd writes: part files, MANIFEST, the
 * declarations that a client hands to the daemon, journals. This header is its specification.
 *
 *	header, 4096 bytes | data | sections | trailer, the last 4096 bytes of the file
 *
 * All integers are little-endian. The file is written once, front to back; its length is a
 * multiple of 4096. The data area [4096, data_end) belongs to the format that uses the container;
 * it is empty except in parts. Every section starts on a multiple of 4096, at or behind data_end,
 * in the order of the trailer's table and without overlap; an empty one takes no space. What lies
 * between them (from data_end, or from a section's end, to the next section or the trailer) is
 * zero, and so is every field named zero or pad and every unused row of the table; all of it is
 * checked on reading.
 *
 * hash, self: hash128. `self` covers the other 4080 bytes of its block, a section's hash its bytes.
 * A block is believed only when its self is right; then its magic, its version, the rest. The
 * trailer's self stands for the whole file except the data area and the header, which repeats the
 * trailer's uuid. compat and minor versions above ours: ignored. ro_compat: may be read.
 *
 * Results:
 *	-EBADMSG	damaged or truncated: a sum is wrong
 *	-EPROTO		the sums are right, but the fields contradict each other, or the file is of
 *			another kind
 *	-EPROTONOSUPPORT "written by a newer version": the sums are right, and this program does not
 *			know a value, a flag or a feature, or a reserved field is not zero; or
 *			"format 0.0 of ckptd 0.1": a version before 0.2 wrote it
 * Messages name the offset in the file and the reason.
 * Everything here is pure: no I/O, no state, any thread. Decoded bytes must not change meanwhile.
 */
#ifndef CKPT_BASE_CONTAINER_H
#define CKPT_BASE_CONTAINER_H
#include "ckpt/base/error.h"
#include "ckpt/base/hash.h"
#include "ckpt/base/util.h"

#define CONTAINER_BLOCK 4096  /* bytes of header and trailer, and the alignment of sections */
#define CONTAINER_SECT_MAX 64 /* rows in the trailer's table */
#define CONTAINER_MAJOR 0     /* 0: no promise that the next version reads it */
#define CONTAINER_MINOR 2
#define CONTAINER_V02 UINT64_C(1) /* ck_head.incompat: every file since format 0.2 has this bit */
#define CONTAINER_TESTED \
	(UINT64_C(1) << 63) /* a bit of incompat that is never assigned: for tests */
#define CONTAINER_OLDER_TEXT "format 0.0 of ckptd 0.1; this program reads 0.2"
#define CONTAINER_HASH 1 /* ck_head.hash: XXH3-128 */
#define CONTAINER_HEAD_MAGIC "\211CKPTD\r\n"
#define CONTAINER_TAIL_MAGIC "\211CKPTE\r\n"

enum container_kind {
	CONTAINER_PART = 1,
	CONTAINER_MANIFEST,
	CONTAINER_DECLARATION,
	CONTAINER_JOURNAL, /* of a conversion under way */
};

struct ck_head {
	uint8_t magic[8];
	le16 major, minor;
	le32 kind; /* enum container_kind */
	le64 incompat, ro_compat, compat;
	uint8_t uuid[16]; /* of this file */
	uint8_t job[16];  /* hash128 of the job's name */
	le64 step, generation, wall_ns;
	le32 writer;
	uint8_t chunk_log2, align_log2; /* of the data area */
	uint8_t hash;			/* CONTAINER_HASH */
	uint8_t pad;			/* zero */
	le32 world;			/* ranks of which each has a part; 0: not said */
	le32 part_kind;			/* of a part: the using format's; else 0 */
	uint8_t checkpoint[16];		/* of a part: MANIFEST's uuid; else zero */
	uint8_t zero[3952];
	uint8_t self[16];
};
_Static_assert(sizeof(struct ck_head) == CONTAINER_BLOCK, "ck_head");
_Static_assert(offsetof(struct ck_head, incompat) == 16, "ck_head");
_Static_assert(offsetof(struct ck_head, uuid) == 40, "ck_head");
_Static_assert(offsetof(struct ck_head, step) == 72, "ck_head");
_Static_assert(offsetof(struct ck_head, writer) == 96, "ck_head");
_Static_assert(offsetof(struct ck_head, world) == 104, "ck_head");
_Static_assert(offsetof(struct ck_head, zero) == 128, "ck_head");
_Static_assert(offsetof(struct ck_head, self) == 4080, "ck_head");

struct ck_sect {
	le32 kind;	/* the using format's; not 0, and once per file */
	le32 flags;	/* the using format's */
	le32 rec_bytes; /* len == count * rec_bytes; 0: no fixed records */
	le32 zero;
	le64 off, len, count;
	uint8_t hash[16];
};
_Static_assert(sizeof(struct ck_sect) == 56, "ck_sect");
_Static_assert(offsetof(struct ck_sect, off) == 16, "ck_sect");
_Static_assert(offsetof(struct ck_sect, hash) == 40, "ck_sect");

struct ck_tail {
	uint8_t magic[8];
	le64 file_bytes, data_end;
	le32 nsect, zero;
	uint8_t uuid[16];
	struct ck_sect sect[CONTAINER_SECT_MAX];
	uint8_t pad[448];
	uint8_t self[16];
};
_Static_assert(sizeof(struct ck_tail) == CONTAINER_BLOCK, "ck_tail");
_Static_assert(offsetof(struct ck_tail, nsect) == 24, "ck_tail");
_Static_assert(offsetof(struct ck_tail, uuid) == 32, "ck_tail");
_Static_assert(offsetof(struct ck_tail, sect) == 48, "ck_tail");
_Static_assert(offsetof(struct ck_tail, pad) == 3632, "ck_tail");
_Static_assert(offsetof(struct ck_tail, self) == 4080, "ck_tail");

/* What a header says. */
struct container_info {
	uint32_t kind;		    /* enum container_kind */
	uint16_t major, minor;	    /* read only; written as CONTAINER_MAJOR, CONTAINER_MINOR */
	uint64_t ro_compat, compat; /* with ro_compat set by a newer version: do not rewrite */
	uint8_t uuid[16], job[16];  /* job: container_job() */
	uint8_t checkpoint[16];	    /* that a part was written for */
	uint64_t step, generation, wall_ns;
	uint32_t writer, world, part_kind;
	uint8_t chunk_log2, align_log2;
};

struct container_sect {
	uint32_t kind, flags, rec_bytes;
	uint64_t off, len, count;
	struct hash128 hash;
};

/* What a trailer says. */
struct container_map {
	uint64_t file_bytes, data_end;
	uint32_t nsect;
	uint8_t uuid[16];
	struct container_sect sect[CONTAINER_SECT_MAX];
	struct hash128 self; /* of the trailer: names the whole file */
};

/* A section in memory. To write one, count matters only where rec_bytes is 0. */
struct container_bytes {
	uint32_t kind, flags, rec_bytes;
	const void *p; /* NULL: there is no such section */
	uint64_t len, count;
};

/* The first 16 bytes that name a job in a header. */
struct hash128 container_job(const char *name);

/*
 * Writing. A part's writer writes a header built by container_head_build, its data, then calls
 * container_map_start and container_map_add for one section after the other, writes each at the
 * offset that it was given with zeros in between, and ends with the trailer at file_bytes - 4096;
 * container_tail_build fills m->self too.
 * container_encode does all that in memory for a container without data; the result is aligned to
 * 4096 and the caller's to free.
 */
void container_head_build(struct ck_head *ret_head, const struct container_info *info);
void container_map_start(struct container_map *ret_map, const uint8_t uuid[16], uint64_t data_end);
const struct container_sect *container_map_add(struct container_map *m,
					       const struct container_bytes *s);
void container_tail_build(struct ck_tail *ret_tail, struct container_map *m);
int container_encode(const struct container_info *info, const struct container_bytes *sect,
		     uint32_t nsect, void **ret_bytes, uint64_t *ret_len, struct ckpt_err *err);

/*
 * Reading. A part's reader checks header and trailer, each read from its place, with
 * container_check that they belong together, every section that it uses with container_sect_check,
 * and bytes read at offset off between the sections with container_gap_check. container_decode does
 * it all for a file in memory and leaves only a part's data area unread; the view points into the
 * bytes. want_kind 0: any.
 * If container_tail_check finds that a newer version wrote the trailer, it fills the map all the
 * same; file_bytes is 0 if the map is wrong.
 */
/* Is it an intact header of a format before 0.2? A header with another feature bit is newer, not
 * older. */
bool container_is_older(const void *head_block);
int container_head_check(const void *block, uint32_t want_kind, struct container_info *ret_info,
			 struct ckpt_err *err);
int container_tail_check(const void *block, uint64_t file_bytes, struct container_map *ret_map,
			 struct ckpt_err *err);
int container_check(const struct container_info *info, const struct container_map *m,
		    struct ckpt_err *err);
int container_sect_check(const struct container_sect *s, const void *bytes, struct ckpt_err *err);
int container_gap_check(const void *p, uint64_t bytes, uint64_t off, struct ckpt_err *err);

struct container_view {
	struct container_info info;
	struct container_map map;
	const uint8_t *bytes;
};
int container_decode(const void *bytes, uint64_t len, uint32_t want_kind,
		     struct container_view *ret_view, struct ckpt_err *err);
struct container_bytes container_view_get(const struct container_view *v, uint32_t kind);

/* The records of a section: -EBADMSG when it exists with records of another size. A missing one has
 * no records: 0, NULL, 0. Records have no alignment beyond le32's, which is 1. */
int container_view_records(const struct container_view *v, uint32_t kind, uint32_t rec_bytes,
			   const void **ret_rec, uint64_t *ret_count, struct ckpt_err *err);
#endif
