/* SPDX-License-Identifier: Apache-2.0 */
/*
 * damage.h - which tensors of a damaged checkpoint can still be had: all of whose bytes are there
 * and right. For restore --keep-going.
 *
 * It is a damage_fault for subject_open (with subject.partial) and for move_verify; after both, or
 * one of them, damage_settle, and then damage_of each tensor of the checkpoint's table or of a view
 * of it: both have the same places.
 */
#ifndef CKPT_MOVE_DAMAGE_H
#define CKPT_MOVE_DAMAGE_H
#include "formats/format.h"

struct damage_range;
struct damage {
	uint32_t n, cap;
	struct damage_range
		*range; /* raw bytes of places; sorted and disjoint after damage_settle */
	struct arena arena;
	const char *
		lost; /* what was said of the first file that is lost with its pieces; NULL: none */
	bool failed;  /* out of memory */
};

/* A format_fault_fn: arg is the struct damage. */
void damage_fault(void *arg, const struct format_fault *fault);
/* From bytes of files to pieces of tables: k is what was opened, without a view. May be called
 * again after more faults. -ENOMEM. */
int damage_settle(struct damage *d, const struct checkpoint *k, struct ckpt_err *err);
/* Is some of the tensor damaged or missing? Where and why is then in buf. */
bool damage_of(const struct damage *d, const struct table *t, uint32_t tensor, char *buf,
	       size_t bytes);
void damage_free(struct damage *d);
#endif
