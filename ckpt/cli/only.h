/* SPDX-License-Identifier: Apache-2.0 */
/* only.h - --only COMPONENT of a command: the subject's checkpoint becomes what is selected of it
 * (engine/selection.h). For export. */
#ifndef CKPT_CLI_ONLY_H
#define CKPT_CLI_ONLY_H
#include "ckpt/cli/subject.h"
#include "ckpt/engine/selection.h"

struct only {
	struct selection selection;
	struct checkpoint *whole; /* the subject's own while the selection stands in; NULL: all */
};

/* All of it without the option. Returns an exit code, after the error was printed: 2 there is no
 * such component, 7 the average is not complete, 8 its spec is of a newer version. only_end gives
 * the subject its checkpoint back, in any case. */
int only_begin(struct cli *c, struct subject *s, bool as_model, struct only *ret);
void only_end(struct subject *s, struct only *x);
/* Which tensors of k, as only_begin would take them: ret[ntensor]. k may have no pieces. */
int only_take(struct cli *c, const struct checkpoint *k, bool *ret);
#endif
