/* SPDX-License-Identifier: Apache-2.0 */
/*
 * events.h - what a trainer's state is at a step, apart from what AdamW makes of it (model.h): the
 * base that nothing trains, or that is trained now and then, what a step of NaNs leaves, and the
 * blobs. Called by train.c on each rank, and by tests/storm, which compares checkpoints with it.
 *
 * Invariant: all of it is a function of seed and step. So the state of a step is the same however
 * often the job died, went back or moved its memory before it.
 */
#ifndef TRAINER_EVENTS_H
#define TRAINER_EVENTS_H
#include "model.h"

#include <stdbool.h>

#define BASE_COLS 1024 /* of BF16 */
#define BASE_WORDS (BASE_COLS / 4)
#define BASE_TURNS \
	8 /* a step that trains the base changes each row whose number has this remainder */
#define RNG_WORDS 4
#define COUNTS_MIN 32 /* of the first parameter; of each further one 8 more */
#define COUNTS_MAX (COUNTS_MIN + 8 * MODEL_TENSORS)

struct events {
	uint64_t seed;
	uint64_t nan_every;  /* 0: never */
	uint64_t thaw_every; /* 0: never */
};

struct train_cursor {
	uint64_t step, seed, micro, positions; /* what the order of the text is a function of */
	uint64_t text_bytes, text_hash;
};
void event_cursor(const struct events *e, const struct corpus *c, uint64_t step,
		  struct train_cursor *ret);
void event_rng(const struct events *e, uint32_t rank, uint64_t step, uint64_t ret_words[RNG_WORDS]);

/* How many numbers forward counts on a parameter; number i is step * (2i + 1). */
static inline uint64_t event_counts(uint32_t tensor)
{
	return COUNTS_MIN + 8 * tensor;
}

/* ---- the base: rows of BASE_WORDS words ---- */

/* So many rows that they are this percentage of the whole state. */
uint64_t base_rows(const struct model_shape *s, uint64_t percent);
/* thaw_every N: it is frozen for steps 0 .. N - 1, trained for the next N, frozen for N, ... Both
 * ways the rows keep what they have. */
bool base_is_trained(const struct events *e, uint64_t step);
bool base_row_changes(const struct events *e, uint64_t row, uint64_t step);
/* The row behind a step: any bits, also those of NaNs. */
void base_row(const struct events *e, uint64_t row, uint64_t step, uint64_t ret_words[BASE_WORDS]);

/* ---- steps of NaNs ---- */

/*
 * Behind step N, 2N, ... of nan_every some elements of some parameters are NaN or infinite, with
 * any sign and payload: of some parameters both moments alone, of others the master and the BF16
 * parameter too. The next step goes on as if these elements had their values of step 0: forward
 * reads them so (nan_forget), and the optimizer begins with them (nan_mend).
 */
bool nan_step(const struct events *e, uint64_t step);
/* Is a master of that step not finite? */
bool nan_in_weights(const struct events *e, uint64_t step);
void nan_plant(const struct model_shape *s, uint32_t tensor, const struct events *e, uint64_t step,
	       struct model_part *p);
/* Elements of this part that are not what nan_plant leaves. */
uint64_t nan_wrong(const struct model_shape *s, uint32_t tensor, const struct events *e,
		   uint64_t step, const struct model_part *p);
void nan_mend(const struct model_shape *s, uint32_t tensor, const struct events *e, uint64_t step,
	      struct model_part *p);
/* In the gathered copy, those of the rows [p->first, p->first + p->rows). */
void nan_forget(const struct model_shape *s, uint32_t tensor, const struct events *e, uint64_t step,
		const struct model_part *p, uint16_t *gathered);
#endif
