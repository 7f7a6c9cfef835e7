/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mark.h - marks of a committed step: people and programs mark it as held, tagged, verified, bad or
 * adopted.
 *
 * A mark is one small file in JOB/.ckptd/:
 *
 *	KIND-%012u-%016x[-NAME][~%08x]
 *
 * with KIND hold, tag, verified, bad or adopted; the step's number; the first 8 bytes of the
 * checkpoint's id in hex (0: the MANIFEST could not be read when the mark was set); NAME for hold
 * and tag only; and a random number if the same mark was set again while the old one stood. Lines
 * "key=value", each ended by a newline, at most 4 KiB: made= (RFC 3339 UTC, required), by=
 * (user@host), until= (RFC 3339 UTC, hold only), why= (one line). Other keys are for later
 * versions; text is printable UTF-8.
 *
 * A mark belongs to one checkpoint: a later checkpoint of the same step has another id and none of
 * its marks. If a step's MANIFEST cannot be read, its id is unknown. Then every hold, tag and bad
 * mark of its number counts, and no verified or adopted mark. A hold or tag that is set in this
 * state counts for the step of that number also after its MANIFEST can be read again.
 * If the content of a mark cannot be read (torn, damaged), hold, tag and bad count without an end;
 * verified and adopted do not count. An expired hold does not count (store_mark_counts). The bad
 * mark is the quarantine: store_scan gives such a step the state STORE_QUARANTINED. The adopted
 * mark means that a step of another job, or one that continues another step, is here on purpose
 * (store.h).
 *
 * To set a mark, the store creates the file O_EXCL, writes and syncs it, and syncs .ckptd. Only
 * then it removes older files of the same mark (of a tag: of the same name on any step). A reader
 * that sees two takes the newest tag, verified or bad mark, and the hold that lasts longest. The
 * store locks the step (shared) meanwhile. Removal reads the marks under its own lock, so it sees
 * the mark, or waits.
 *
 * A store that was opened without a claim, or made by hand from {.ops, .job_fd, .job}, is enough.
 */
#ifndef CKPT_STORE_MARK_H
#define CKPT_STORE_MARK_H
#include "ckpt/store/store.h"

#define STORE_MARK_BYTES_MAX 4096 /* of a file */
#define STORE_MARK_NAME_MAX 64	  /* [A-Za-z0-9._-], no leading dot */

enum store_mark_kind { MARK_HOLD, MARK_TAG, MARK_VERIFIED, MARK_BAD, MARK_ADOPTED };

struct store_mark {
	enum store_mark_kind kind;
	bool unread; /* its content could not be read: times are 0, texts empty */
	uint64_t step;
	uint8_t id8[8];
	char name[STORE_MARK_NAME_MAX + 1]; /* "" for the others */
	uint64_t made_ns, until_ns;	    /* since 1970; until 0: for ever */
	char by[96], why[200];
};

/* All marks of a job, each once, in no order. *ret is malloc'ed. */
int store_marks(const struct store *s, struct store_mark **ret, uint32_t *ret_n,
		struct ckpt_err *err);
/* Those of these kinds alone (bits 1 << kind): the files of the others are not opened. */
int store_marks_of(const struct store *s, uint32_t kinds, struct store_mark **ret, uint32_t *ret_n,
		   struct ckpt_err *err);
/* Is it a mark of this very checkpoint? */
bool store_mark_is(const struct store_mark *m, const struct store_step *st);
/* False for a hold that has expired at this time. */
bool store_mark_counts(const struct store_mark *m, uint64_t now_ns);
const char *store_mark_word(enum store_mark_kind kind); /* "hold", ... */

/* A name for a hold or a tag. -EINVAL says what is wrong. */
int store_mark_name_check(const char *name, struct ckpt_err *err);
/*
 * name: hold and tag; NULL otherwise. until_ns: hold; else 0. why: NULL or text, cut to what fits,
 * its control characters replaced. A mark that is set again replaces the old one; a tag moves from
 * another step. After 0 the mark is durable. -ENOENT: there is no such step, or it is being
 * removed. -EINVAL: a bad name, or a step that is being collected. -EROFS, -EACCES, ...: it cannot
 * be written.
 */
int store_mark_set(const struct store *s, const struct store_step *st, enum store_mark_kind kind,
		   const char *name, uint64_t until_ns, const char *why, struct ckpt_err *err);
/* name NULL: all of the kind. *ret_n (may be NULL): how many there were; 0 is no error. */
int store_mark_clear(const struct store *s, const struct store_step *st, enum store_mark_kind kind,
		     const char *name, uint32_t *ret_n, struct ckpt_err *err);

/* The format of a mark, pure. parse: file is the entry in .ckptd, text its content (NULL: it could
 * not be read). 1: a mark; 0: some other file; -EPROTO: a mark with a malformed content, which is
 * `unread`.
 * print: ret has space for STORE_MARK_BYTES_MAX; returns the length. */
int store_mark_parse(const char *file, const char *text, uint64_t bytes, struct store_mark *ret);
uint32_t store_mark_print(const struct store_mark *m, char *ret);
#endif
