/* SPDX-License-Identifier: Apache-2.0 */
/* native_impl.h - what the files of formats/native share and nobody else sees. */
#ifndef FORMATS_NATIVE_IMPL_H
#define FORMATS_NATIVE_IMPL_H
#include "formats/native/native.h"

_Static_assert(sizeof(struct ck_chunk) == 48, "ck_chunk");
_Static_assert(sizeof(struct ck_part) == 96, "ck_part");
_Static_assert(sizeof(struct ck_lineage) == 96, "ck_lineage");
_Static_assert(sizeof(struct ck_note) == 16, "ck_note");
_Static_assert(sizeof(struct ck_attr) == 8, "ck_attr");

/*
 * May a chunk be stored so? need: what chunk_map_make says of it: how far the pieces reach, and of
 * which elements. room: how much of the raw space there is from its start on. *at: the end of the
 * chunk before in the file; moves on. data_end: that of the file. 0; -EPROTO, -EPROTONOSUPPORT with
 * the reason.
 */
int native_chunk_check(const struct chunk *c, const struct chunk *need, uint64_t room,
		       uint64_t data_end, uint64_t *at, struct ckpt_err *err);

/* The order of PARTS: main ones by rank, then (writer, kind, step, group, uuid). */
int native_part_order(const struct native_part *a, const struct native_part *b);

/* Does a record of SOURCES say the same as one of PARTS? */
bool native_part_equal(const struct native_part *a, const struct native_part *b);

/* Is there a value, a flag or a record size in these sections that only a newer version knows? 0;
 * -EPROTONOSUPPORT names the first. Contradictions it does not see. */
int native_newer(const struct table_section *section, uint32_t n, struct ckpt_err *err);

/* A record of PARTS or SOURCES by itself: names, enums, zeros. string: STRINGS. -EPROTO,
 * -EPROTONOSUPPORT. What it says of its number and order is the caller's to check. */
int native_part_decode(const struct ck_part *rec, const char *string, uint64_t nstring,
		       struct native_part *ret, struct ckpt_err *err);

/* The lineage, notes and attributes of `facts`, and the name of the tool that writes: for
 * native_manifest. It lives in a, and as long as facts. A parent's id that is none of this format
 * is left out. -ENOMEM. */
int native_lineage_of(const struct checkpoint *facts, const char *tool, struct arena *a,
		      struct native_lineage *ret);

/* The ranges of a part (format_file.range) whose header, trailer, sections and chunks are right.
 * -ENOMEM. */
int native_ranges_make(const struct container_map *m, const struct chunk *chunk, uint64_t nchunk,
		       struct arena *a, struct format_file *f);

/* Upper bound of a file that has what t declares, and no pieces, parts, lineage, notes or
 * attributes. */
uint64_t native_declared_bytes_max(const struct table *t);

/* Writing: format.h says what they do. */
bool native_says(const struct checkpoint_attr *attr, char why[FORMAT_WHY]);
bool native_holds(const struct table *t, uint32_t tensor, char why[FORMAT_WHY]);
int native_sheet(const struct table *target, const struct format_want *want, struct sheet **ret,
		 struct ckpt_errlist *cannot, struct ckpt_err *err);
int native_fill(const struct sheet *s, uint32_t run, const struct sheet_state *state,
		struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		struct ckpt_err *err);
void native_sheet_end(struct sheet *s);

/* format_root: format.h and native.h say what they do. */
int native_summary(const struct source *manifest, struct checkpoint **ret, struct ckpt_err *err);
int native_rebuild(const struct source_dir *dir, const struct checkpoint *facts, const char *tool,
		   void **ret_bytes, uint64_t *ret_len, uint8_t ret_id[16], struct ckpt_err *err);

/* What a file in a step's directory is by its name: MANIFEST; what is to become one, or was one
 * (MANIFEST.%08x, MANIFEST.damaged-%08x); a part (w%04u-%08x-%03u.part); or another program's. */
enum native_entry { NATIVE_FOREIGN, NATIVE_IS_MANIFEST, NATIVE_SPENT, NATIVE_PART };
enum native_entry native_entry(const char *name);

/* May a part be called so? A single component that needs no quoting anywhere, and not MANIFEST. */
bool native_name_ok(const char *name);
#endif
