/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_show.h - retention policies on the command line: the options of prune and keep, and the
 * policy in force as ls, status and keep print it.
 */
#ifndef CKPT_CLI_POLICY_SHOW_H
#define CKPT_CLI_POLICY_SHOW_H
#include "ckpt/cli/cli.h"
#include "ckpt/store/store_policy.h"
#include "ckpt/wire/wire.h"

/* The rules that were given as options, whatever the verb calls them. -EINVAL. */
int policy_options(const struct cli *c, struct retain_policy *ret, struct ckpt_err *err);

struct policy_shown {
	enum wire_policy_from from;
	char rules[RETAIN_TEXT_MAX]; /* as options; "": every step is kept */
	char by[256];		     /* JOB: who has set it; UNREAD: why */
	uint64_t wall_ns;	     /* JOB: when; 0: not known */
};
/* That of the job's directory; if it has none, that of the ckptd that serves it. served NULL: no
 * ckptd is known to serve it. */
void policy_shown_of(const struct store_policy *p, const struct wire_report_job *served,
		     struct policy_shown *ret);
void policy_shown_report(const struct wire_report_job *j, struct policy_shown *ret);
/* The members rules, from, by and at of the open object. */
void policy_put(struct output *o, const struct policy_shown *p);
#define POLICY_WORDS 1400
/* "--keep-last 3; set by ann@host, ckptctl keep, 2h ago". Returns buf. */
char *policy_words(const struct policy_shown *p, uint64_t now_ns, char buf[POLICY_WORDS]);
#endif
