/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_seen.h - the averages of the weights that a checkpoint has, as ema, show and diff tell of
 * them. They are the records of AVERAGES (docs/FORMAT.md), the MADE tensors that name them, and the
 * attributes "ckpt.health:ema.NAME" that the daemon wrote.
 */
#ifndef CKPT_CLI_AVERAGE_SEEN_H
#define CKPT_CLI_AVERAGE_SEEN_H
#include "ckpt/cli/cli.h"
#include "ckpt/table/format.h"

#define AVERAGES_HEALTH "ckpt.health:ema." /* of an attribute; the name of the average follows */
#define AVERAGES_COMPONENT "ema."

/* One average: its record of rule 0, and what there is of it. */
struct average_seen {
	const struct table_average *a;
	uint32_t ntensor, nrule;     /* nrule: records of rules with a schedule of their own */
	uint64_t bytes, carry_bytes; /* of its tensors; of its Kahan carries */
	bool mixed;		     /* its chain, or that of one of its rules */
	/* Of k's tensors, how many the average copies: they are not stored again. UINT32_MAX: its
	 * schedule cannot be read (a newer version's) */
	uint32_t ncopied;
	const char *health; /* the attribute's value; NULL: there is none */
};

/* Those of k, in the order of their names: *ret malloc'ed. -ENOMEM. */
int averages_see(const struct checkpoint *k, struct average_seen **ret, uint32_t *ret_n);
/* Steps that its newest update is behind the checkpoint; 0: it has the step itself. UINT64_MAX: it
 * has had no update and no copy. */
uint64_t averages_lag(const struct checkpoint *k, const struct table_average *a);
/*
 * The daemon writes a health as sentences' ends between commas: "updates 3, lag 0, |p-e|/|e| 0.01
 * at most (model/w), far 0, NaN 0". Does it say that someone must look: NaN or infinite values,
 * elements larger than the weights ever were, tensors that are too far off? What is not known is
 * not judged.
 */
bool averages_health_is_bad(const char *health);
/* The number behind these words, "far"; UINT64_MAX: it does not say. */
uint64_t averages_health_count(const char *health, const char *word);

/* Are the chains of the two the same: schedule, updates, history? */
bool averages_same_chain(const struct table_average *a, const struct table_average *b);

/* For programs: the list "averages" of them, with a list "rules" in each row. People get
 * nothing. */
void averages_put(struct output *o, const struct checkpoint *k, const struct average_seen *x,
		  uint32_t n);
/* "120 updates since step 0, the newest at step 30"; returns buf. */
char *averages_chain(const struct checkpoint *k, const struct table_average *a, char *buf,
		     size_t bytes);

#define AVERAGES_MIXED_TEXT                                                                         \
	"parts with different chains: the ranks' parts have not taken in the same steps, so it is " \
	"not the average of one series of weights"
#endif
