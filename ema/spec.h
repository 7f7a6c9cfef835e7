/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec.h - what the spec of ckpt_average says: a schedule, gates, and rules by name. ckpt.h has the
 * grammar and the meaning of every word. Pure: no I/O, no threads.
 *
 * Used by the library (does it parse?), the daemon (what is averaged, and how?) and ckptctl (which
 * tensors belong to an average that is read?).
 *
 * The canonical form names the preset, then each parameter that the preset has, with its value
 * written with the fewest digits that read back as the same double, in the order of enum ema_param,
 * then warmup (if the preset has it) and start; then gate_loss, source, kahan (those that were
 * given, and source always); then the rules in their order. Of sigma_rel it has gamma. Two specs
 * make the same of every step exactly when their canonical forms are equal. It is what files keep
 * (docs/FORMAT.md, AVERAGES), so it never changes for a spec of today.
 *
 * The canonical form has neither seed nor every: they say where an average begins, and that the
 * trainer waits for it, and nothing of how it goes on. So a job may leave them out, or name another
 * seed, and its averages have the same history. Ranks must agree on these words too: what they
 * declare is the form with `seed` and `every` before kahan.
 */
#ifndef EMA_SPEC_H
#define EMA_SPEC_H
#include "ckpt/ckpt.h"
#include "ema/schedule.h"
#include <stdbool.h>

struct ckpt_errlist;

#define EMA_SPEC_BYTES 4096u /* of a spec, canonical, at most */
#define EMA_RULES_MAX 63u
#define EMA_NAME_BYTES 64u /* of an average, with the final 0 */

enum ema_source { EMA_MASTER, EMA_PARAM };
enum ema_act { EMA_AVERAGE, EMA_COPY, EMA_SKIP };

struct ema_rule {
	const char *pattern; /* * and ?: of the name; one with a '/': of "component/name" */
	enum ema_act act;
	bool own; /* "(...)": averaged by `schedule` */
	struct ema_schedule schedule;
};

struct ema_spec {
	struct ema_schedule schedule;
	enum ema_source source; /* default EMA_MASTER */
	bool kahan;
	bool every;	  /* ckpt_guard waits for averages, so that no guarded step misses them */
	bool has_gate;	  /* gate_loss was given */
	double gate_loss; /* a step whose note `loss` is this, above it, or NaN is kept out */
	const char *seed; /* NULL, or what `seed=` says */
	uint32_t nrule;
	struct ema_rule *rule; /* [nrule] the first one that matches counts */
};

/* -EINVAL: it is not of the grammar: the sentence has the word, where it is, and what may stand
 * there; or it is longer than EMA_SPEC_BYTES - 1, as it is or in canonical form. -ENOMEM. All of
 * *ret is one allocation: ema_spec_free. Values and rules are not judged. */
int ema_spec_parse(const char *text, struct ema_spec **ret, struct ckpt_err *err);
void ema_spec_free(struct ema_spec *s); /* NULL is fine */

/* Everything that is wrong with its values and rules, a line each, beginning "average NAME: ": a
 * decay outside [0, 1), a parameter outside its range, two rules of one pattern with different
 * acts, a rule that an earlier one hides. The name too: empty, too long, with a '/', or ending in
 * ".carry". What rules match nothing is not known here. */
void ema_spec_check(const struct ema_spec *s, const char *name, struct ckpt_errlist *list);
/* What is allowed and not advised, a line each: decay > .99999 without kahan. */
void ema_spec_advise(const struct ema_spec *s, const char *name, struct ckpt_errlist *list);

/* The canonical form; rule 0: of the whole; EMA_DECLARED: of the whole, with seed and every; n: of the
 * n-th rule that has a schedule of its own (counted from 1), of that schedule alone. -ENOENT: there
 * is no such one. -ENOMEM; -E2BIG, which what ema_spec_parse has read never is. */
#define EMA_DECLARED UINT32_MAX
int ema_spec_print(const struct ema_spec *s, uint32_t rule, char ret[EMA_SPEC_BYTES]);

/* A tensor that may be averaged, as declared. */
struct ema_subject {
	const char *component, *name;
	uint32_t dtype, role, cls; /* enum ckpt_dtype, ckpt_role, ckpt_class */
	bool blob;
};
struct ema_verdict {
	enum ema_act act;
	uint32_t rule; /* 1 + number of the rule that says so; 0: none does, this is the default */
	uint32_t own;  /* as ema_spec_print's rule; 0: the average's own schedule */
};
/*
 * What becomes of a tensor. Rules are asked for those of role parameter, buffer and other; without
 * one a parameter of F32, BF16 or F16 is averaged, unless its class is const (frozen): then it is
 * copied; any other parameter and every buffer is copied; every other tensor is skipped. All other
 * roles, blobs, class sink, and components that begin with "ema." are skipped whatever rules say.
 * (A master whose parameter no rank declares stands for it: the caller asks for it as a parameter.)
 * Where a rule says `average` of what cannot be averaged (ema_can_average), the verdict is AVERAGE
 * and the caller refuses it.
 */
struct ema_verdict ema_spec_judge(const struct ema_spec *s, const struct ema_subject *x);
bool ema_can_average(uint32_t dtype); /* F32, BF16, F16 */
bool ema_pattern_matches(const char *pattern, const char *component, const char *name);
#endif
