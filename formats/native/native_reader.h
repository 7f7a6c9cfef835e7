/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_reader.h - what the files of formats/native that read share: one file as its sections,
 * MANIFEST, a part, and the list of faults. Functions return 0, 1 after faults, or -ENOMEM.
 */
#ifndef FORMATS_NATIVE_READER_H
#define FORMATS_NATIVE_READER_H
#include "formats/native/native_impl.h"

/* --- faults --- */

struct envelope;

struct reader {
	/*
	 * The file that is being read, once its sections are, and the kinds of sections that this
	 * program knows in it. Then what contradicts itself may be what a newer version means.
	 */
	struct envelope *now;
	uint64_t now_known;
	const struct source *now_src; /* NULL: all its sections are loaded */
	bool now_newer;		      /* it is newer, and a fault says so */
	bool no_memory;		      /* to find out whether it is newer */
	format_fault_fn *fault;	      /* may be NULL */
	void *arg;
	/* The same as sentences; .code: that of the gravest. */
	struct ckpt_errlist list;
	bool manifest;	   /* it was there */
	struct arena room; /* for the sections of one part after another */
	uint8_t *spare;	   /* in it, of spare_bytes */
	uint64_t spare_bytes;
};

/* One fault. -EPROTO in a file with something that only a newer version knows is that instead. */
__attribute__((format(printf, 8, 9))) void reader_fault(struct reader *rd, int code,
							const char *kind, const char *file,
							const char *tensor, uint64_t off,
							uint64_t len, const char *fmt, ...);
/* What is right, and this program does not know. */
__attribute__((format(printf, 5, 6))) void
reader_newer(struct reader *rd, const char *file, uint64_t off, uint64_t len, const char *fmt, ...);
/* Every line of a list is a fault; frees it. In lines of the table's checks the tensor comes
 * first. */
void reader_faults(struct reader *rd, int code, const char *kind, const char *file,
		   struct ckpt_errlist *l);
const char *reader_error_text(int r); /* of an -errno */
/* Between these two a contradiction in the file may be a newer version's. known: kinds of
 * sections. */
void reader_file_begin(struct reader *rd, struct envelope *e, uint64_t known);
void reader_file_end(struct reader *rd);
/* The result of reading, and the sentence. r: 0, 1, -ENOMEM. */
int reader_outcome(struct reader *rd, int r, struct ckpt_err *err);

/* --- one file --- */

struct envelope {
	struct container_info info;
	struct container_map map;
	struct arena mem;
	const uint8_t *sect[CONTAINER_SECT_MAX]; /* [map.nsect]; NULL: not loaded */
};

/* Sets of section kinds are masks of 64 bits. */
#define KINDS(...)                                    \
	kinds_mask((const uint32_t[]){ __VA_ARGS__ }, \
		   sizeof((const uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t))
static inline uint64_t kinds_mask(const uint32_t *kind, size_t n)
{
	uint64_t mask = 0;

	for (size_t i = 0; i < n; i++)
		mask |= UINT64_C(1) << kind[i];
	return mask;
}
static inline bool in_mask(uint64_t mask, uint32_t kind)
{
	return kind < 64 && mask >> kind & 1;
}

#define TABLE_KINDS                                                                           \
	CK_STRINGS, CK_SHAPES, CK_MESHES, CK_MESHDATA, CK_LAYOUTS, CK_PLACEMENTS, CK_TENSORS, \
		CK_AVERAGES
#define MANIFEST_KINDS KINDS(TABLE_KINDS, CK_NOTES, CK_PARTS, CK_LINEAGE, CK_ATTRS)
/* All but what is left out where it makes no sense. */
#define REQUIRED_KINDS KINDS(TABLE_KINDS, CK_PARTS, CK_LINEAGE)

/*
 * Header, trailer and the sections of these kinds; 0: all. root: the hash that the trailer's block
 * must have; NULL: any. spare: the sections lie in the reader's spare memory, until the next such
 * file.
 */
int envelope_read(struct reader *rd, const struct source *src, const char *file, uint32_t kind,
		  const uint8_t *root, uint64_t kinds, bool spare, struct envelope *e);
void envelope_free(struct envelope *e);
/* Is there a section that this program must understand but does not, or that it does not know in
 * such a file? known: those that it does. */
int envelope_kinds_check(struct reader *rd, const char *file, const struct envelope *e,
			 uint64_t known);
/* The sections that were loaded, as table_decode takes them: ret[CONTAINER_SECT_MAX]. Their
 * number. */
uint32_t envelope_sections(const struct envelope *e, uint64_t kinds, struct table_section *ret);

/* The records of a section; none when it is missing. */
struct records {
	const void *rec;
	uint64_t n, off; /* off: in the file */
};
int envelope_records(struct reader *rd, const char *file, const struct envelope *e, uint32_t kind,
		     uint32_t rec_bytes, struct records *ret);

/* The fields of a header that only a newer version uses so. manifest: MANIFEST's header, NULL for
 * its own. */
int reader_head_known(struct reader *rd, const char *file, const struct container_info *h,
		      const struct container_info *manifest);
/* What table_decode said about the sections of a file, r and err, as a fault. */
int reader_decoded(struct reader *rd, const char *file, const struct envelope *e, int r,
		   const struct ckpt_err *err);

static inline bool all_zero(const void *p, size_t n)
{
	const uint8_t *b = p;

	for (size_t i = 0; i < n; i++)
		if (b[i])
			return false;
	return true;
}

/* --- MANIFEST --- */

/* Each tensor says of its own fingerprint whether it is known. */
#define NATIVE_HAS ((uint32_t)(HAS_PRINTS | HAS_SUMS | HAS_LAYOUTS | HAS_STEP))

struct manifest {
	struct reader *rd;
	struct envelope env;
	const char *string;
	uint64_t nstring;
	/* [npart] as PARTS has them, without tables; in the table's arena */
	struct native_part *part;
	uint32_t npart;
	struct checkpoint *c;
};

#define MALFORMED(m, off, len, ...) \
	(reader_fault((m)->rd, -EPROTO, "malformed", NATIVE_MANIFEST, "", off, len, __VA_ARGS__), 1)

/* Lineage, notes, attributes and parts: what a summary says. */
int manifest_facts(struct manifest *m);
/* The tensors that MANIFEST declares, or of these kinds what it has. */
int manifest_declarations(struct reader *rd, const struct envelope *e, uint64_t kinds,
			  struct table *ret);
/* What MANIFEST says of a part. */
struct format_file manifest_file(const struct native_part *p);

/* --- parts --- */

struct opening {
	struct reader rd;
	const struct source_dir *dir;
	struct manifest m;
	const char **sorted;	  /* [npart] names */
	format_choose_fn *choose; /* NULL: all */
	void *choose_arg;
	struct ckpt_err *err; /* of the choice */
	bool names;	      /* no part is needed */
	bool some;	      /* not all parts are read */
	bool *needed;	      /* [world] */
	bool no_averages;     /* what the parts of averages hold is not needed */
	bool *named;	      /* [npart] the further parts that a main part names */
	int refusal;
	/* Ranks mostly declare the same: what the newest part did. Without an id: none has yet. */
	struct table declared;
	struct hash128 declared_id;
};

/* Part i as file i and place i of the checkpoint, with its pieces if it is needed. */
int opening_part(struct opening *o, uint32_t i, struct format_file *f);
#endif
