/* SPDX-License-Identifier: Apache-2.0 */
/* convert_impl.h - what the files of engine_convert share. */
#ifndef CKPT_ENGINE_CONVERT_IMPL_H
#define CKPT_ENGINE_CONVERT_IMPL_H
#include "ckpt/engine/convert.h"
#include "ckpt/engine/journal.h"
#include "ckpt/engine/passing.h"
#include "ckpt/engine/sink.h"

struct convert {
	const struct engine *e;
	const struct engine_convert *c;
	struct converted *facts;

	/* The result. */
	struct arena arena;
	struct checkpoint said; /* want.facts with an attribute more */
	struct format_want want;
	struct table kept; /* the target, less what is dropped; empty: all of it */
	const struct table *target;
	struct sheet *sheet;
	struct passage_map map;
	uint32_t *piece_sum; /* [npiece] the sheet_sum of its bytes; TABLE_NONE. NULL: no sums */
	uint32_t *crc;	     /* [nsum] known for complete files */
	uint8_t uuid[16];    /* of the journal */

	/* How far it is. */
	struct publish *to;
	struct journal j;
	struct journal earlier; /* of the run that is continued; j points into it */
	void *earlier_bytes;
	struct sheet_done *done; /* [nfile] */
	uint64_t saved_ns, save_took_ns;
	uint64_t saved_bytes;	    /* converted, according to the newest journal on the disk */
	bool saved_finished;	    /* all files are, according to that journal */
	bool write_failed, reading; /* reading: the source is being read */

	/* The batch that is open. */
	uint32_t first, n;
	struct passing passing;
	struct sink *sink;
	uint8_t *cast; /* CAST_BYTES, once something is cast */
	struct ckpt_err *err;
};

/* Is the file one with chunks? */
static inline bool convert_has_chunks(const struct convert *v, uint32_t file)
{
	return v->sheet->file[file].chunk_log2 != 0;
}

static inline bool convert_is_stopped(const struct convert *v)
{
	return v->e->tick && v->e->tick(v->e->arg, 0);
}

/* Only files of some ranks: no checkpoint that a format can open. */
static inline bool convert_is_part(const struct convert *v)
{
	return v->want.by_rank && v->want.nrank;
}

/* convert_sheet.c: makes target, sheet and map, and the uuid in v->want. */
int convert_sheet_make(struct convert *v, struct ckpt_errlist *cannot, struct ckpt_err *err);
void convert_sheet_free(struct convert *v);

/* convert_resume.c: the journals of an earlier run. */
/* 1: v->j, v->done and the fingerprints are those of its journal; 0: there is nothing to continue. */
int convert_take_up(struct convert *v, struct ckpt_err *err);
int convert_journal_put(struct convert *v, struct ckpt_err *err);

/* convert_check.c: compares the new fingerprints with the source's, and the result, as its own
 * format reads it, with the sheet. */
int convert_prints_check(struct convert *v, struct ckpt_err *err);
int convert_result_check(struct convert *v, struct ckpt_err *err);
#endif
