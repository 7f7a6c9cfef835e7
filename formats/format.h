/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h - what a checkpoint format is: a translation of its own metadata into a table, and of a
 * table into files. A format reads through a source (base/source.h). It writes nothing, starts no
 * thread, plans nothing and keeps no state: any thread may call it, and equal questions get equal
 * answers. What it returns lives in the arena of its table. Functions return 0, or -errno and a
 * sentence.
 */
#ifndef CKPT_FORMAT_H
#define CKPT_FORMAT_H
#include "ckpt/base/hash.h"
#include "ckpt/base/source.h"
#include "ckpt/table/table.h"
#include <string.h>

enum { CODEC_RAW = 0 }; /* chunk codecs; others come with coding */

/*
 * Chunk i of a file holds raw bytes [i << chunk_log2, + raw_len). raw_len 0: a hole, nothing
 * stored. Chunks ascend in the file and do not overlap; what lies between them is zero.
 */
struct chunk {
	uint64_t off; /* in the file */
	uint32_t stored_len, raw_len;
	uint8_t codec, codec_ver;
	uint8_t elem_bytes;	 /* of all pieces in it; 0 for a hole */
	uint32_t source, base;	 /* UINT32_MAX: none */
	uint32_t stored_crc;	 /* CRC-32C of the stored bytes where they are coded; else 0 */
	struct hash128 raw_hash; /* of the raw bytes */
};

/* What a file of a checkpoint holds. The numbers are on disk. */
enum part_kind { PART_MAIN, PART_CONST, PART_AVERAGE };

/*
 * What the bytes of a file are: each byte is in exactly one range. Ranges ascend.
 *   DATA   of tensors
 *   META   of the format itself: headers, indexes
 *   ZERO   padding that is zero in every good file: verify reads it
 *   SLACK  padding that may have any value
 */
enum range_kind { RANGE_DATA, RANGE_META, RANGE_ZERO, RANGE_SLACK };
enum range_sum {
	SUM_NONE,
	SUM_OPEN,  /* `open` has compared it */
	SUM_CRC32, /* of all bytes of the range: crc (the CRC-32 of zip and gzip) */
	SUM_CHUNKS /* the chunks in it have theirs */
};
struct format_range {
	uint64_t off, len;
	uint32_t crc;
	uint8_t kind, sum;
};

/* One file, which is also one place of the table, with the same number. */
struct format_file {
	const char *name; /* "a", or "a/b" beneath the directory */
	uint64_t file_bytes, raw_bytes;
	uint32_t chunk_log2;
	uint64_t nchunk;
	const struct chunk *chunk; /* [nchunk]; NULL: raw bytes are the file's bytes and
					 * carry no checksum */
	/* None of a file that is lost or unread, or at depth NAMES. Of a file with chunks the DATA
	 * and ZERO ranges that `open` has not read lie side by side. */
	uint64_t nrange;
	const struct format_range *range; /* [nrange] */
	uint32_t rank;			  /* writer */
	uint32_t kind, group; /* enum part_kind; which of those of one writer, kind and step */
	/* When it was written: the checkpoint's, or older (then it is a link to that step's
	 * file). */
	uint64_t step, generation;
	uint8_t uuid[16]; /* of this file: two with the same are one; zero: it has none */
	bool lost;	  /* its metadata are damaged: only name and rank are known */
	bool unread; /* its metadata were not read (format_open.choose, a summary): it has no pieces
		      * and chunks here */
};

#define FORMAT_LOOKED 96
#define FORMAT_WHY 160
#define CHECKPOINT_FOREIGN 8 /* names for a message; of more than these, only the number */

/*
 * Place nfile + i of the table: its bytes are made of bytes [off, off + len) of an earlier place,
 * which are read front to back (ckpt/coding). table.place[].bytes says how many there are. move
 * makes them.
 *   GIVEN    of nothing: they are at hand, at most FORMAT_GIVEN_MAX of all places together
 *   SWAPPED  the bytes of each element of `elem` bytes in reverse order
 *   DEFLATE  a raw deflate stream
 *   ZSTD     one or more zstd frames
 */
enum made_how { MADE_GIVEN, MADE_SWAPPED, MADE_DEFLATE, MADE_ZSTD };
#define FORMAT_GIVEN_MAX ((uint64_t)64 << 20)
struct format_made {
	uint32_t from;
	uint8_t how, elem;
	uint64_t off, len;
	const void *given;
	bool has_crc; /* of the made bytes */
	uint32_t crc; /* CRC-32 */
};

/* What a format can know of a checkpoint (checkpoint.has). */
enum {
	HAS_PRINTS = 1,	 /* fingerprints of the tensors, and of their pieces */
	HAS_SUMS = 2,	 /* a chain of sums from its id to every byte */
	HAS_LAYOUTS = 4, /* which mesh, which placements */
	HAS_STEP = 8	 /* step, seq, generation, world and times mean something */
};
enum format_depth {
	FORMAT_EXTENTS, /* all of it */
	FORMAT_NAMES	/* tensors, no pieces, of files the names: a format may give more */
};

/* All that it points to lives in the table's arena. */
struct checkpoint {
	const struct format *format;
	struct table table; /* sealed */
	uint32_t nfile, nmade;
	struct format_file *file; /* [nfile]; of a summary they are no places of the table */
	struct format_made *made; /* [nmade] */
	uint32_t has;		  /* HAS_* */
	enum format_depth depth;
	/* [table.ntensor] what the format itself calls them; NULL: as the table does */
	const char *const *foreign_name;
	uint64_t step, seq, generation, wall_ns;
	uint64_t parent_step; /* UINT64_MAX: none */
	uint32_t world;
	char id[40], parent_id[40]; /* hex; "" for none */
	char job[65], tool[64];
	uint32_t nnote;
	struct {
		const char *key;
		double value;
	} * note;
	uint32_t nattr;
	struct checkpoint_attr {
		const char *key, *value;
	} * attr;	       /* by key */
	uint64_t stored_bytes; /* of all files, metadata included */
	uint64_t linked_bytes; /* of these: in files that an older step wrote */
	/* Entries of the directory that are none of the checkpoint's, which are ignored: how many,
	 * and the names of the first CHECKPOINT_FOREIGN. Not known where `some`, and of a
	 * summary */
	uint32_t nforeign;
	const char *foreign[CHECKPOINT_FOREIGN];
	bool partial; /* some files are lost, and their pieces with them: open_partial */
	bool newer;   /* notes or attributes make no sense to this program: left out */
	bool some;    /* some files are unread, and their pieces are missing: open_some */
	bool links; /* an entry of its directory may be a link to a file (SOURCE_LINKS): engine_open */
};

/*
 * What verify found. kind: "checksum", "truncated", "missing", "unexpected" (more bytes than there
 * should be, or no regular file), "padding",
 * "malformed", "newer" (a newer version wrote it: nothing is known to be wrong), "mismatch",
 * "coverage", "unreadable" (the device or the permissions, not the bytes). "padding" (bytes that
 * nothing uses are not zero) concerns no tensor: opening succeeds.
 * file "" and offset 0 where it does not apply; tensor "" likewise.
 */
struct format_fault {
	const char *kind, *file, *tensor, *text;
	uint64_t offset, length;
};
typedef void format_fault_fn(void *arg, const struct format_fault *fault);
/* Is it a fault that harms nothing: bytes between chunks or sections that should be zero? */
static inline bool format_fault_is_odd(const struct format_fault *f)
{
	return f->kind && !strcmp(f->kind, "padding");
}

/*
 * Which ranks' files are needed? k: what all files share, without pieces (the table is sealed);
 * needed: [k->world], by rank, all false. < 0 ends the opening with that result and err. All files
 * of a chosen rank are read, but for those of averages if the result is FORMAT_NO_AVERAGES.
 */
enum { FORMAT_NO_AVERAGES = 1 };
typedef int format_choose_fn(void *arg, const struct checkpoint *k, bool *needed,
			     struct ckpt_err *err);

/* How a checkpoint is opened. What is zero: all of it. */
struct format_open {
	const struct source_dir *dir;
	enum format_depth depth; /* at least this much */
	/*
	 * For a search for damage: if the metadata that all files share could be read, a checkpoint
	 * is returned although the result is an error. Then it may be `partial`. It may be given to
	 * move_verify, which skips lost files, and its complete tensors (damage_of, move/damage.h)
	 * may be read.
	 */
	bool partial;
	/*
	 * Read only what is needed for some of the data. A format may read all. A file that is not
	 * chosen is `unread`, and may be missing. The pieces of the others do not overlap. plan_make
	 * finds out whether they are enough: if it misses elements, open all files.
	 */
	format_choose_fn *choose; /* not called at depth NAMES */
	void *choose_arg;
	format_fault_fn *fault; /* each fault, one by one; reading goes on as far as it can */
	void *fault_arg;
};

/* --- writing --- */

/*
 * A tensor with several names (attribute ckpt.alias:KEY, docs/FORMAT.md), where a format can store it
 * once and name it twice.
 *   AS_SAID  once, if its second name has no component: a file said so, which stored it once; else a
 *	      job declared it, whose program asks for each of the names: a copy under each
 *   ONCE     each is stored once
 *   COPY     each is stored under all of its names
 */
enum format_tied { TIED_AS_SAID, TIED_ONCE, TIED_COPY };

/* What a conversion is to write, beside the table. */
struct format_want {
	const struct checkpoint
		*facts;	  /* job, step, times, notes, attributes, lineage; not its table */
	const char *tool; /* "ckptctl 0.2.0" */
	/* Names what is made: it follows from source, target and all that is wanted. Equal ones get
	 * equal bytes; files may be named after it. */
	uint8_t uuid[16];
	const char *stem;     /* name of the one file; NULL: a directory */
	uint64_t shard_bytes; /* of a file at most, where tensors allow it; 0: no limit */
	bool by_rank; /* a file of each rank's shares; else each element once, in whole tensors */
	uint32_t rank_first,
		nrank; /* by_rank: of these alone, which make no checkpoint; nrank 0: of all */
	bool bare;     /* no component is in any name */
	enum format_tied tied;
	const char *strip; /* a component whose name is left out of tensors' names; NULL: none */
	bool (*stopped)(void *arg); /* of format_stopped; NULL: nothing ends it early */
	void *stopped_arg;
};

#define SHEET_END UINT64_MAX
struct sheet_file {
	const char *name;
	uint64_t bytes; /* exact; an upper bound if it is chunked or is one run of unknown length */
	uint64_t data_off;  /* chunked: the place is raw space, and its chunks lie from here on */
	uint8_t chunk_log2; /* 0: not chunked: the place is the file */
	uint32_t ntensor; /* in it, with those that are empty there; 0: the format does not count */
};
/*
 * Bytes that belong to no tensor. The engine asks for them (format.fill) when the data of their
 * file are written, file by file: so a run knows the sums and seals of all files up to its own. The
 * last file makes the others a checkpoint.
 */
struct sheet_run {
	uint32_t file;
	uint64_t off; /* SHEET_END: behind the chunks */
	uint64_t len; /* 0: not known before */
};
/* Bytes of one piece whose CRC-32 a run needs. */
struct sheet_sum {
	uint32_t file;
	uint64_t off, len;
};
struct sheet {
	const struct format *format;
	/* Sealed. Place i is file i (files without tensors have places of 0 bytes), and the tensors
	 * are as the files hold them. Pieces are row-major. The engine sets the pieces'
	 * fingerprints. */
	struct table table;
	uint32_t *origin; /* [table.ntensor] its number in the target */
	uint32_t nfile, nrun, nsum;
	struct sheet_file *file;
	/* by (file, off): with the pieces they make up a file that is not chunked, byte by byte */
	struct sheet_run *run;
	struct sheet_sum *sum;
	void *priv; /* the format's */
};
void sheet_free(struct sheet *s); /* NULL is fine */
/* What the engine has written so far. */
struct sheet_state {
	const struct sheet_done {
		uint64_t bytes, data_end, nchunk;
		const struct chunk *chunk;
		struct hash128 seal;
	} * file;	     /* [nfile] */
	const uint32_t *crc; /* [nsum] */
};

/*
 * A format that stores are made of: a step is a directory, which a file with a fixed name makes a
 * checkpoint (the root).
 */
struct format_root {
	const char *name; /* of that file: "MANIFEST" */
	/*
	 * The checkpoint as this file alone describes it: no tensors. Its files are listed in the
	 * order of the checkpoint's, all `unread`, with name, length, rank, kind, group, step, generation
	 * (an older one's: a link) and uuid. Errors as of open.
	 */
	int (*summary)(const struct source *root, struct checkpoint **ret, struct ckpt_err *err);
	/*
	 * If it is lost: makes a new one from the other files. facts: what only the lost one had
	 * (job, step, seq, parent, notes, attributes). *ret_bytes is malloc'ed. -EUCLEAN: files are
	 * missing; -EBADMSG, -EPROTO, -EPROTONOSUPPORT, -EINVAL: the other files do not allow it;
	 * errors of reading; -ENOMEM.
	 */
	int (*rebuild)(const struct source_dir *dir, const struct checkpoint *facts,
		       const char *tool, void **ret_bytes, uint64_t *ret_len, uint8_t ret_id[16],
		       struct ckpt_err *err);
	/*
	 * Does the format make files of this name in a step's directory? The root, the others, and
	 * files that were or will become a root (NAME.%08x, NAME.damaged-%08x). All other files are
	 * foreign.
	 */
	bool (*owns)(const char *name);
};

struct format {
	const char *name;   /* "safetensors": of --from and --to */
	const char *about;  /* one line, for help */
	const char *ending; /* of its one file, ".safetensors"; NULL: it has directories alone */
	/*
	 * Is it this format? 0 no; 25 by names alone; 75 its magic was read; 100 that, and it is a
	 * special case of another format; -errno. Cheap. looked: what it looked for, a few words
	 * ("no MANIFEST, no *.part").
	 */
	int (*probe)(const struct source_dir *dir, char looked[FORMAT_LOOKED]);
	/*
	 * Read all metadata, check everything that does not need the data. -EUCLEAN incomplete,
	 * -EBADMSG damaged, -EPROTO malformed, -EPROTONOSUPPORT written by a newer version, or what
	 * this program does not know, by its name; what reading said (-EIO, -EACCES, ...); -ENOMEM.
	 */
	int (*open)(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err);

	/* Writing; NULL: it is read only. */
	/* Can it hold this tensor? If not, why: a few words. */
	bool (*holds)(const struct table *t, uint32_t tensor, char why[FORMAT_WHY]);
	/* The same of an attribute; NULL: of all of them. */
	bool (*says)(const struct checkpoint_attr *attr, char why[FORMAT_WHY]);
	/*
	 * target: of target_make, less what is left out. It and want outlive the sheet.
	 * -EMEDIUMTYPE: the format cannot hold it as a whole; every reason is a line of `cannot`.
	 * -ECANCELED: format_stopped returned it. -ENOMEM.
	 */
	int (*sheet)(const struct table *target, const struct format_want *want, struct sheet **ret,
		     struct ckpt_errlist *cannot, struct ckpt_err *err);
	/* The bytes of a run, in the arena a. ret_seal: 16 bytes that later runs find in
	 * sheet_done.seal: those of the file's last run. */
	int (*fill)(const struct sheet *s, uint32_t run, const struct sheet_state *state,
		    struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		    struct ckpt_err *err);
	void (*sheet_end)(struct sheet *s); /* frees priv; NULL: there is nothing to free */
	const struct format_root *root;	    /* NULL: no store is made of it */
};
void checkpoint_free(struct checkpoint *c);
/* The number of the file in which a place's bytes lie, or those of which they are made; TABLE_NONE:
 * they are GIVEN. */
uint32_t checkpoint_file_of(const struct checkpoint *c, uint32_t place);

/* --- for code of a format --- */

/* An empty checkpoint of one rank, without a parent and with space for nfile files. Only
 * checkpoint_free frees it. NULL: no memory. */
struct checkpoint *checkpoint_new(const struct format *f, uint32_t nfile);
/* An empty sheet with space for so many; nfile, nrun and nsum are set. NULL: no memory. */
struct sheet *sheet_new(const struct format *f, uint32_t ntensor, uint32_t nfile, uint32_t nrun,
			uint32_t nsum);
/*
 * A tensor as most formats have it: a name, no component, no layout, and all of it row-major in one
 * place from byte `off` on. *ret_bytes: how many. -EALREADY: the name is there; -EPROTO: an
 * impossible name or shape, or more than the place has; -EPROTONOSUPPORT: an unknown dtype;
 * -ENOMEM.
 */
int format_tensor_add(struct table *t, const char *name, uint32_t dtype, uint32_t ndim,
		      const uint64_t *shape, uint32_t place, uint64_t off, uint64_t *ret_bytes,
		      struct ckpt_err *err);
/* -ECANCELED: the user has stopped it. To be called for each file of a sheet whose making takes long. */
int format_stopped(const struct format_want *w, struct ckpt_err *err);
/* A tensor's name in a format that has no components: "component.name", but "name" of the component
 * `strip` (NULL: none) and of "". Returns buf. */
char *format_flat_name(const struct table_tensor *x, const char *strip,
		       char buf[2 * CKPT_NAME_MAX + 2]);
/*
 * For readers: sorts the ranges of a file, leaves out empty ones, makes one of neighbours that are
 * alike (not of those with a CRC-32), and gives them to f. They live as long as `range` does.
 * -EPROTO names the first byte that is in two of them or in none, or is none of the file's.
 */
int format_ranges_check(struct format_file *f, struct format_range *range, uint64_t n,
			struct ckpt_err *err);
#endif
