/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_seen.h - the averages of the weights that a checkpoint has, for ema, show, diff and
 * export. They are the records of AVERAGES (docs/FORMAT.md), the MADE tensors that name them, and
 * the attributes "ckpt.health:ema.NAME" that the daemon wrote. All of it is pure; any thread may
 * call.
 */
#ifndef CKPT_ENGINE_AVERAGE_SEEN_H
#define CKPT_ENGINE_AVERAGE_SEEN_H
#include "formats/format.h"
#include "ema/spec.h"

#define AVERAGES_HEALTH "ckpt.health:ema." /* of an attribute; the name of the average follows */
#define AVERAGES_COMPONENT "ema."
/* The same: behind the name of a rule's average comes "/RULE". What averages_missed_print says. */
#define AVERAGES_LEFT_OUT "ckpt.left_out:ema."
/* How many steps the trainer had marked in this line of steps, the checkpoint's among them. */
#define AVERAGES_MARKED "ckpt.marked"

/* Steps that an average has left out since its copy or seed, of those that it should have. */
struct average_missed {
	bool known; /* false: the writer did not say so, or contradicts its record */
	bool least; /* the writer of an older step did not count: these are those since then */
	uint64_t left_out, of; /* of: those, and its updates */
};

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
	struct average_missed missed;
};

/* As the daemon decides it (daemon/averages.c): may the tensor speak for what its `of` names? */
bool averages_is_master(const struct table_tensor *x);
/* The subject of an average's rules. master: it stands for what its `of` names, whose
 * component is put into the buffer; a master of nothing stands for itself. */
struct ema_subject averages_subject(const struct table_tensor *x, bool master,
				    char component[CKPT_NAME_MAX + 1]);

/* What is tensor i in the model of an average? */
enum average_part {
	AVERAGE_NOT,	 /* the model lacks it: MADE itself, skipped, optimizer state, ... */
	AVERAGE_IS_MADE, /* *ret_made is its average */
	AVERAGE_COPIED,	 /* it is in the model as it is */
	AVERAGE_MISSING	 /* it is to be in the model, and cannot be */
};
/*
 * component: "ema.NAME"; spec: of its record of rule 0. The rules say what becomes of a tensor, but
 * where its average is there, that counts: with an FP32 master a frozen parameter is averaged, too,
 * and so is one of another dtype (daemon/averages.c). What has no elements has no MADE tensor.
 */
enum average_part average_part_of(const struct table *t, const struct ema_spec *spec,
				  const char *component, uint32_t i, uint32_t *ret_made);

/* Those of k, in the order of their names: *ret malloc'ed. -ENOMEM. */
int averages_see(const struct checkpoint *k, struct average_seen **ret, uint32_t *ret_n);
/* Steps that its newest update is behind the checkpoint; 0: it has the step itself. UINT64_MAX: it
 * has had no update and no copy. */
uint64_t averages_lag(const struct checkpoint *k, const struct table_average *a);
/*
 * The daemon writes a health as items between commas: "updates 3, lag 0, |p-e|/|e| 0.01 at most
 * (model/w), far 0, NaN 0". Is the average wrong: are there NaN or infinite values, elements larger
 * than the weights ever were, tensors that are too far from the weights? A missing item counts as
 * good.
 */
bool averages_health_is_bad(const char *health);
/* The number after this word, as in "far 0"; UINT64_MAX: the word is missing. */
uint64_t averages_health_count(const char *health, const char *word);

/* Of each record of k's table. */
void averages_missed_all(const struct checkpoint *k, struct average_missed ret[TABLE_AVERAGES_MAX]);
/* More than one of 100: the library and ckptctl warn. */
bool averages_missed_many(const struct average_missed *m);
/* "2 of 99", "at least 2 of 99"; returns buf. */
char *averages_missed_print(const struct average_missed *m, char *buf, size_t bytes);
void averages_missed_key(const char *name, uint32_t rule, char *buf, size_t bytes);
uint64_t averages_marked(const struct checkpoint *k); /* 0: it does not say so */
/* Are the chains of the two the same: schedule, updates, history? */
bool averages_same_chain(const struct table_average *a, const struct table_average *b);

/* "120 updates since step 0, the newest at step 30"; returns buf. */
char *averages_chain(const struct checkpoint *k, const struct table_average *a, char *buf,
		     size_t bytes);

#define AVERAGES_MIXED_TEXT                                                                         \
	"parts with different chains: the ranks' parts have not taken in the same steps, so it is " \
	"not the average of one series of weights"
#endif
