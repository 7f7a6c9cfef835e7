/* SPDX-License-Identifier: Apache-2.0 */
/*
 * label.h - labels of a committed step: people and programs record that it is held, tagged,
 * verified, bad or adopted.
 *
 * A label is one small file in JOB/.ckptd/:
 *
 *	KIND-%012u-%016x[-NAME][~%08x]
 *
 * with KIND hold, tag, verified, bad or adopted; the step's number; the first 8 bytes of the
 * checkpoint's id in hex (0: the MANIFEST could not be read when the label was set); NAME for hold
 * and tag only; and a random number if the same label was set again while the old one stood. Lines
 * "key=value", each ended by a newline, at most 4 KiB: made= (RFC 3339 UTC, required), by=
 * (user@host), until= (RFC 3339 UTC, hold only), why= (one line). Other keys are for later
 * versions; text is printable UTF-8.
 *
 * A label belongs to one checkpoint: a later checkpoint of the same step has another id and none of
 * its labels. If a step's MANIFEST cannot be read, its id is unknown. Then every hold, tag and bad
 * label of its number counts, and no verified or adopted label. A hold or tag that is set in this
 * state counts for the step of that number also after its MANIFEST can be read again.
 * If the content of a label cannot be read (torn, damaged), hold, tag and bad count without an end;
 * verified and adopted do not count. An expired hold does not count (store_label_counts). The bad
 * label is the quarantine: store_scan gives such a step the state STORE_QUARANTINED. The adopted
 * label means that a step of another job, or one that continues another step, is here on purpose
 * (store.h).
 *
 * To set a label, the store creates the file O_EXCL, writes and syncs it, and syncs .ckptd. Only
 * then it removes older files of the same label (of a tag: of the same name on any step). A reader
 * that sees two takes the newest tag, verified or bad label, and the hold that lasts longest. The
 * store locks the step (shared) meanwhile. Removal reads the labels under its own lock, so it sees
 * the label, or waits.
 *
 * A store that was opened without a claim, or made by hand from {.ops, .job_fd, .job}, is enough.
 */
#ifndef CKPT_STORE_LABEL_H
#define CKPT_STORE_LABEL_H
#include "ckpt/store/store.h"

#define STORE_LABEL_BYTES_MAX 4096 /* of a file */
#define STORE_LABEL_NAME_MAX 64	   /* [A-Za-z0-9._-], no leading dot */

enum store_label_kind { LABEL_HOLD, LABEL_TAG, LABEL_VERIFIED, LABEL_BAD, LABEL_ADOPTED };

struct store_label {
	enum store_label_kind kind;
	bool unread; /* its content could not be read: times are 0, texts empty */
	uint64_t step;
	uint8_t id8[8];
	char name[STORE_LABEL_NAME_MAX + 1]; /* "" for the others */
	uint64_t made_ns, until_ns;	     /* since 1970; until 0: for ever */
	char by[96], why[200];
};

/* All labels of a job, each once, in no order. *ret is malloc'ed. */
int store_labels(const struct store *s, struct store_label **ret, uint32_t *ret_n,
		 struct ckpt_err *err);
/* Those of these kinds alone (bits 1 << kind): the files of the others are not opened. */
int store_labels_of(const struct store *s, uint32_t kinds, struct store_label **ret,
		    uint32_t *ret_n, struct ckpt_err *err);
/* Is it a label of this very checkpoint? */
bool store_label_is(const struct store_label *m, const struct store_step *st);
/* False for a hold that has expired at this time. */
bool store_label_counts(const struct store_label *m, uint64_t now_ns);

/* A name for a hold or a tag. -EINVAL says what is wrong. */
int store_label_name_check(const char *name, struct ckpt_err *err);
/*
 * name: hold and tag; NULL otherwise. until_ns: hold; else 0. why: NULL or text, cut to what fits,
 * its control characters replaced. A label that is set again replaces the old one; a tag moves from
 * another step. After 0 the label is durable. -ENOENT: there is no such step, or it is being
 * removed. -EINVAL: a bad name, or a step that is being collected. -EROFS, -EACCES, ...: it cannot
 * be written.
 */
int store_label_set(const struct store *s, const struct store_step *st, enum store_label_kind kind,
		    const char *name, uint64_t until_ns, const char *why, struct ckpt_err *err);
/* name NULL: all of the kind. *ret_n (may be NULL): how many there were; 0 is no error. */
int store_label_clear(const struct store *s, const struct store_step *st,
		      enum store_label_kind kind, const char *name, uint32_t *ret_n,
		      struct ckpt_err *err);

/* The format of a label, pure. parse: file is the entry in .ckptd, text its content (NULL: it could
 * not be read). 1: a label; 0: some other file; -EPROTO: a label with a malformed content, which is
 * `unread`.
 * print: ret has space for STORE_LABEL_BYTES_MAX; returns the length. */
int store_label_parse(const char *file, const char *text, uint64_t bytes, struct store_label *ret);
uint32_t store_label_print(const struct store_label *m, char *ret);
#endif
