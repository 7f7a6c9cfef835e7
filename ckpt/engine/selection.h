/* SPDX-License-Identifier: Apache-2.0 */
/*
 * selection.h - a checkpoint of which some components are left: --only COMPONENT of ckptctl export.
 * A name that is no component is a glob over the names of tensors, as convert's --only (named.h).
 *
 * A component that is the average of a name ("ema.fast") stands for the whole averaged model: its
 * own tensors, and those that the average's rules copy (buffers, frozen ones, ...). Nothing of the
 * latter is stored twice: they are the step's own, and the spec in AVERAGES says which they are
 * (ema_spec_judge, docs/FORMAT.md). Where the spec cannot be read, or a tensor is missing that it
 * averages, nothing is selected: a model with gaps would look like a model.
 */
#ifndef CKPT_ENGINE_SELECTION_H
#define CKPT_ENGINE_SELECTION_H
#include "ckpt/base/arena.h"
#include "ckpt/base/error.h"
#include "formats/format.h"

#define SELECTION_MAX 16u /* components of one command */
#define SELECTION_META 8u /* pairs that a file says of its selection */

struct selection_of {
	const char *component; /* or the glob */
	bool glob;
	const struct table_average *average; /* rule 0; NULL: it is none */
	uint32_t ntensor, ncopied;	     /* ncopied: of other components */
	const char *copied;		     /* one of them, as people read it; NULL */
};
struct selection {
	struct checkpoint
		seen; /* the checkpoint, of which the selected tensors are left; not freed */
	uint32_t n;
	struct selection_of of[SELECTION_MAX];
	struct arena arena;
};

/*
 * ret->seen: what these names leave of k, which outlives it. as_model: averaged tensors get the
 * components of those that they average, so that the rules of a view that was written for the model
 * find them. -EINVAL: there is no such component, and the sentence lists those that there are;
 * -EMEDIUMTYPE: the average is not complete; -EPROTONOSUPPORT: its spec is of a newer version;
 * -ENOMEM. selection_free in any case.
 */
int selection_make(const struct checkpoint *k, const char *const *name, uint32_t n, bool as_model,
		   struct selection *ret, struct ckpt_err *err);
void selection_free(struct selection *x);

/* Which tensors of k, as selection_make would take them: ret[ntensor]. k may have no pieces. */
int selection_take(const struct checkpoint *k, const char *const *name, uint32_t n, bool *ret,
		   struct ckpt_err *err);

/*
 * Do any two tensors have one name, without their components? Each such name is a line of the list.
 * SINKs do not count, nor do blobs of several ranks that have one key.
 */
int selection_clashes(const struct table *t, struct ckpt_errlist *list, struct ckpt_err *err);

/* What a file says of it: key and value, `n` pairs of [SELECTION_META]; the texts live in the
 * arena. */
struct selection_meta {
	const char *key, *value;
};
int selection_meta(struct selection *x, struct selection_meta *ret, uint32_t *ret_n);
#endif
