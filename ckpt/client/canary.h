/* SPDX-License-Identifier: Apache-2.0 */
/*
 * canary.h - finds a state that is changed between ckpt_snapshot and ckpt_guard, when the daemon's
 * copy of it may still be under way. What is found is dropped (shared.h, CHANGED).
 *
 * At the mark CANARY_WORDS words are read at random places and noted. The daemon compares them with
 * the slot when its copy has ended: so a change is found that the copy has seen. The guard then
 * reads the same words from memory again, and compares CANARY_PAGES other places, of up to
 * CANARY_PAGE bytes each, between memory and slot: so one is found that the copy has not seen.
 * opts.check = n: at each n-th mark there are CANARY_WORDS_ALL words, and the guard compares
 * everything.
 *
 * Places are drawn among all in host memory that this rank saves and that can change (not CONST,
 * VOLATILE, blobs; SINKs are not saved), every byte with the same probability, but one in each
 * CANARY_WORDS-th of it: the product of the probabilities to miss a change is greatest when the
 * change is spread evenly (the arithmetic mean is not below the geometric one). So a change of the
 * fraction f is missed by n words with at most (1 - f)^n: 2^-32 of a half, 0.72 of 1 %, and 0.006 of
 * 1 % by CANARY_WORDS_ALL. Half a state that is changed in a regular pattern is no exception, for
 * the place inside of a part is random.
 *
 * On devices CANARY_FAR more words are drawn in the same way, among what the devices copy with each
 * snapshot (not DERIVED). The host does not read them. On the copies' own stream of each device the
 * copier (copier.h) brings them to the host twice: before the first copy, and behind the last one.
 * Before COPIED it compares both with the slot; where one differs it sets `why` and tears the
 * snapshot (shared.h, 8). A guard that was let go by (c) counts and logs that later. So a change
 * that a kernel makes between the two reads is missed by n words as above, whether a word was
 * copied before it or after it. What a kernel has changed before the first read is not found: the
 * slot holds it. What it changes behind the second does no harm. There is no false alarm: the first
 * read comes after the mark's streams on all devices, and what the trainer queues behind its guard
 * waits for the end of all copies, which is behind the second. opts.check adds neither words nor
 * pages. Nothing is compared in the first snapshot behind a takeover, if the helper has
 * not drawn for its map; if the process dies, and the devices finish without it; or if the words'
 * page cannot be pinned.
 *
 * The helper draws ahead, into rings, and touches what the guard will read of the slots. A place is
 * used once; where the helper has not come by in time, the newest are used again. Snapshot and
 * guard take places, read and compare: no lock, no allocation. A snapshot wakes the helper, by a
 * system call, when the ring runs low, which is after 32 marks at the earliest. Snapshot and guard
 * make one system call each where memory is not from ckpt_alloc: it writes one byte of each page
 * that they will read to a scratch file. If the owner has unmapped that page by mistake, the call
 * says so, and the trainer does not crash.
 *
 * Threads: the trainer's calls canary_mark, canary_guard, canary_off, canary_seal; the helper calls
 * canary_help. The map is replaced under `draw`, which a mark and a guard never take: they set
 * `busy`, then load the map; the helper takes the map away, then waits until `busy` is clear.
 * Both pairs are sequentially consistent, so one side sees the other.
 */
#ifndef CKPT_CLIENT_CANARY_H
#define CKPT_CLIENT_CANARY_H
#include "ckpt/client/sealed.h"
#include "ckpt/wire/shared.h"
#include "ckpt/wire/wire.h"
#include <pthread.h>

#define CANARY_WORDS 32u
#define CANARY_WORDS_ALL 512u /* SHARED_CANARY_MAX */
#define CANARY_FAR 32u	      /* words on devices */
#define CANARY_PAGES 16u
#define CANARY_PAGE 4096u
#define CANARY_RING 2048u /* places, used and ahead */
#define CANARY_AHEAD (CANARY_RING - CANARY_WORDS_ALL)

#define CANARY_SCRATCH CANARY_PAGE

/* Bytes that are contiguous in memory and in the slot. */
struct canary_place {
	const uint8_t *src;
	uint64_t dst;
	uint32_t len;
	bool own;	/* memory that is not the library's: it may be unmapped */
	uint8_t device; /* 0: in host memory; 1 + the number of the device */
};
/* One thread makes, one uses; both count on. */
struct canary_ring {
	_Atomic uint32_t made, used;
	struct canary_place at[CANARY_RING];
};

/* Rows that can change; of very many some. */
struct canary_live {
	uint32_t n, *row;
	uint64_t *upto; /* [n] bytes of them up to the end of this one */
};

/* What there is to look at, from one SEALED until the next. */
struct canary_map {
	uint64_t serial;
	uint32_t epoch, nslot, nrow, nsegment;
	/* (draw) so many of the slots are in memory. What lies behind is mapped, and a touch would
	 * take memory that nobody has allowed */
	uint32_t nthere;
	const uint8_t *slot[WIRE_SLOTS_MAX];
	uint64_t slot_bytes;
	const struct wire_row *row;
	const uint8_t *on; /* as sealed.on */
	uint8_t **segment; /* [nsegment] */
	const struct sources *sources;
	struct sealed *sealed;	      /* a reference: the slots and rows are its; NULL in a test */
	struct canary_live near, far; /* in host memory; on devices */
	uint64_t rng;
	struct canary_ring word, page, far_word;
};

struct canary {
	uint32_t check; /* as ckpt_opts.check */
	int scratch_fd; /* -1: none. Bytes of own memory are written there, to see that it is there */
	_Atomic uint32_t busy, wanted; /* wanted: the helper has been woken for more places */
	_Atomic(struct canary_map *) map;
	pthread_mutex_t draw;
	uint64_t serials; /* (draw) */

	/* the trainer's: the newest mark */
	bool armed, all;
	uint32_t slot, n;
	uint64_t serial, taken;
	struct canary_place word[CANARY_WORDS_ALL];
	struct shared_canary_word note[CANARY_WORDS_ALL];
	/* on devices, for the copier: places of this epoch, and rev of the declarations */
	uint32_t nfar, far_epoch, far_rev;
	struct canary_place far[CANARY_FAR];

	/* 1 + step of the newest mark that was found to be changed; 0 from the next mark on */
	_Atomic uint64_t changed_step;
	/* for the helper's log: 1 + step of what was found last; where */
	_Atomic uint64_t found_step, found_at;
};

#define CANARY_SAME UINT64_MAX

int canary_init(struct canary *x, uint32_t check);
void canary_destroy(struct canary *x);

/* A map of these rows, slots and segments: 0, or -EPROTO (a row leaves them), -ENOMEM. Pointers are
 * the caller's, which fills epoch, nslot, slot, slot_bytes, row, nrow, nsegment, segment, sources,
 * rng; and nthere whenever it changes. */
int canary_map_make(const struct canary_map *parts, const uint64_t *segment_bytes,
		    struct canary_map **ret);
void canary_map_free(struct canary_map *m);
/* From now on this map, or none. Any thread but one that is busy; waits for the trainer. */
void canary_replace(struct canary *x, struct canary_map *m);
/* Draw so many places ahead at least (at most what the rings hold; words on devices, too); touch
 * what is read of the slots. Under draw. */
void canary_draw(struct canary_map *m, uint32_t words, uint32_t pages);
/* The name of what lies at this offset of the slot; NULL: not known. */
const struct source_name *canary_name_at(const struct canary_map *m, uint64_t off);

/* At a mark: the words that are noted, x->note[0..n). 0: there is no map, or nothing can change.
 * True in
 * *ret_low: the helper should draw more. */
uint32_t canary_mark(struct canary *x, uint32_t epoch, uint32_t slot, bool *ret_low);
/* Nothing is compared at the next guard: what was noted need no longer be there. */
void canary_off(struct canary *x);
/* At the guard, after the copy has ended: CANARY_SAME, or the offset in the slot of something that
 * was changed. Once for each mark. */
uint64_t canary_guard(struct canary *x);

/* --- of a handle: canary_link.c --- */
struct ckpt;
/* New declarations are coming (mem): the map goes. */
void canary_undeclare(struct ckpt *c);
/* SEALED of the present declarations has come (rpc, mem): a new map. Without memory for it nothing
 * is looked for: the negative errno and the sentence. s may be NULL. */
int canary_sealed(struct ckpt *c, struct sealed *s, struct ckpt_err *err);
/* ckpt_seal is done: the first mark has places, before the helper has come by. */
void canary_seal(struct ckpt *c);
/* The helper: draw, log. */
void canary_help(struct ckpt *c);
/* The guard, or a copier, has found a change: for the log. */
void canary_found(struct ckpt *c, uint64_t step, uint64_t at);
/* The helper: the log has what was found last, if it has not yet. */
void canary_log(struct ckpt *c);
/* The same as a sentence: at as shared_why_get has it. Returns ret. Any thread. */
#define CANARY_WHY 400
char *canary_why(struct ckpt *c, uint64_t at, char *ret, size_t bytes);
#endif
