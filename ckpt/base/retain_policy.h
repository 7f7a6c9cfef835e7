/* SPDX-License-Identifier: Apache-2.0 */
/*
 * retain_policy.h - a retention policy as a value: its rules, and their two texts. One reader and
 * one printer serve the options of ckptd, ckptctl prune and ckptctl keep, the policy of a job on
 * disk (store_policy.h), ckpt_opts, and the message KEEP. What the rules mean: store/retain.h.
 */
#ifndef CKPT_BASE_RETAIN_POLICY_H
#define CKPT_BASE_RETAIN_POLICY_H
#include "ckpt/ckpt.h"
#include "ckpt/base/util.h"

#define RETAIN_BEST_MAX 4
#define RETAIN_KEY_MAX 64
#define RETAIN_SET_ASIDE_NS (7 * 86400 * NS_PER_S) /* as long as a person may be away */
#define RETAIN_TEXT_MAX 768			   /* either text of any policy, with its zero */

struct retain_policy { /* all zero: none */
	uint32_t keep_last;
	uint32_t nbest;
	uint64_t keep_every, keep_within_ns;
	uint64_t set_aside_for_ns; /* 0: RETAIN_SET_ASIDE_NS. No policy by itself */
	struct retain_best {
		char key[RETAIN_KEY_MAX + 1];
		bool max; /* the largest is best */
		uint32_t n;
	} best[RETAIN_BEST_MAX];
};

/*
 * option: keep-last N, keep-every N, keep-within TIME (90s, 90m, 36h, 7d, 2w), keep-best
 * KEY[:min|:max[:N]] (min and 1 when left out; up to 4 keys, one again replaces it), set-aside-for
 * TIME.
 * -EINVAL says what is wrong, or that there is no such option, and p is unchanged.
 */
int retain_parse(struct retain_policy *p, const char *option, const char *value,
		 struct ckpt_err *err);
/* Has it a rule? Then the steps that no rule keeps may be removed. */
bool retain_is_policy(const struct retain_policy *p);
/* "--keep-last 3 --keep-every 5000": what retain_parse takes again; "" for none. Cut to bytes, of
 * which there is one at least. */
void retain_print(const struct retain_policy *p, char *buf, size_t bytes);
/* A time of a rule: "36h", "1w". */
void retain_time_print(uint64_t ns, char ret[32]);

/*
 * The same as lines, for files and messages: "keep-last=3\nkeep-every=5000\n"; "" for none.
 * retain_line takes one of them, without its end. 0; -EOPNOTSUPP: a rule of a newer version; -EINVAL:
 * it is malformed, or a rule but keep-best is given twice. After an error p is of no use.
 * retain_lines takes all of them.
 */
void retain_lines_print(const struct retain_policy *p, char *buf, size_t bytes);
int retain_line(struct retain_policy *p, const char *line, struct ckpt_err *err);
int retain_lines(struct retain_policy *p, const char *text, struct ckpt_err *err);
#endif
