/* SPDX-License-Identifier: Apache-2.0 */
/*
 * format.h - what a checkpoint format is: a translation of its own metadata into a table, and a map
 * from each place's raw bytes to stored bytes. A format never plans, reshards or schedules I/O.
 */
#ifndef CKPT_TABLE_FORMAT_H
#define CKPT_TABLE_FORMAT_H
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

/* One file, which is also one place of the table, with the same number. */
struct format_file {
	const char *name;
	uint64_t file_bytes, raw_bytes;
	uint32_t chunk_log2;
	uint64_t nchunk;
	const struct chunk *chunk;   /* [nchunk]; NULL: raw bytes are the file's bytes and
					 * carry no checksum */
	uint64_t data_off, data_end; /* the part of the file that chunks may occupy; gaps in it
					 * are zero */
	uint32_t rank;		     /* writer */
	uint32_t kind, group; /* enum part_kind; which of those of one writer, kind and step */
	/* When it was written: the checkpoint's, or older (then it is a link to that step's file). */
	uint64_t step, generation;
	uint8_t uuid[16]; /* of this file: two with the same are one; zero: it has none */
	bool lost;   /* its metadata could not be believed: name and rank are all that is known */
	bool unread; /* open_some did not read its metadata: it has no pieces and chunks here */
};

#define CHECKPOINT_FOREIGN 8 /* names that somebody reads; of more the number will do */

/* All that it points to lives in the table's arena. */
struct checkpoint {
	const struct format *format;
	struct table table; /* sealed */
	uint32_t nfile;
	struct format_file *file;
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
	uint32_t npart;	       /* files with data; of a summary, too */
	/* Entries of the directory that are none of the checkpoint's, which are ignored: how many, and the names of
	 * the first CHECKPOINT_FOREIGN. Not known where `some`, and of a summary */
	uint32_t nforeign;
	const char *foreign[CHECKPOINT_FOREIGN];
	bool partial; /* some files are lost, and their pieces with them: open_partial */
	bool newer;   /* notes or attributes make no sense to this program: left out */
	bool some;    /* some files are unread, and their pieces are missing: open_some */
};

/*
 * What verify found. kind: "checksum", "truncated", "missing", "unexpected" (more bytes than there should be, or
 * no regular file), "padding",
 * "malformed", "newer" (a newer version wrote it: nothing is known to be wrong), "mismatch", "coverage",
 * "unreadable" (the device or the permissions, not the bytes). "padding" (bytes that nothing uses are not
 * zero) concerns no tensor: opening succeeds.
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
 * Which ranks' files are needed? k: what all files share, without pieces (the table is sealed); needed:
 * [k->world], by rank, all false. < 0 ends the opening with that result and err. All files of a chosen
 * rank are read, but for those of averages if the result is FORMAT_NO_AVERAGES.
 */
enum { FORMAT_NO_AVERAGES = 1 };
typedef int format_choose_fn(void *arg, const struct checkpoint *k, bool *needed,
			     struct ckpt_err *err);

struct format {
	const char *name;
	/* Is this directory in this format? 1 yes, 0 no, -errno. Cheap. */
	int (*probe)(const struct source_dir *dir);
	/*
	 * Read all metadata, check everything that does not need the data. -EUCLEAN incomplete,
	 * -EBADMSG damaged, -EPROTO malformed, -EPROTONOSUPPORT written by a newer version; what
	 * reading said (-EIO, -EACCES, ...); -ENOMEM. Faults are reported one by one as well, with
	 * fault != NULL, and reading goes on as far as it can.
	 */
	int (*open)(const struct source_dir *dir, struct checkpoint **ret, format_fault_fn *fault,
		    void *arg, struct ckpt_err *err);
	/*
	 * The same, for whoever looks for damage: where what all files share could be read, *ret is
	 * set although the result is an error. Then it may be `partial`: good for move_verify, which
	 * passes lost files by, and for tensors that damage_of (move/damage.h) says are complete.
	 */
	int (*open_partial)(const struct source_dir *dir, struct checkpoint **ret,
			    format_fault_fn *fault, void *arg, struct ckpt_err *err);
	/*
	 * Read only what is needed for some of the data; NULL: this format cannot. A file that is not
	 * chosen is `unread`, and nothing is known of whether it is there. The pieces of the others
	 * do not overlap. That they are enough is for plan_make to say: where it misses elements,
	 * open all.
	 */
	int (*open_some)(const struct source_dir *dir, format_choose_fn *choose, void *choose_arg,
			 struct checkpoint **ret, struct ckpt_err *err);
};
void checkpoint_free(struct checkpoint *c);
#endif
