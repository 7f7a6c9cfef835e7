/* SPDX-License-Identifier: Apache-2.0 */
/*
 * policy_show.c - see policy_show.h. Called by prune, keep, ls and status.
 * Invariant: a policy is printed as the options that would set it again.
 */
#include "ckpt/cli/policy_show.h"
#include "ckpt/layout/human.h"

int policy_options(const struct cli *c, struct retain_policy *ret, struct ckpt_err *err)
{
	static const struct {
		enum cli_option_id id;
		const char *rule;
	} rules[] = { { OPT_KEEP_LAST, "keep-last" },
		      { OPT_KEEP_EVERY, "keep-every" },
		      { OPT_KEEP_WITHIN, "keep-within" },
		      { OPT_KEEP_BEST, "keep-best" },
		      { OPT_LAST, "keep-last" },
		      { OPT_EVERY, "keep-every" },
		      { OPT_WITHIN, "keep-within" },
		      { OPT_BEST, "keep-best" },
		      { OPT_SET_ASIDE_FOR, "set-aside-for" } };
	int rc = 0;

	for (uint32_t i = 0; i < c->ngiven && !rc; i++)
		for (uint32_t k = 0; k < ARRAY_LEN(rules) && !rc; k++)
			if (c->given[i].id == rules[k].id)
				rc = retain_parse(ret, rules[k].rule, c->given[i].value, err);
	return rc;
}

void policy_shown_report(const struct wire_report_job *j, struct policy_shown *ret)
{
	*ret = (struct policy_shown){ .from = (enum wire_policy_from)j->policy_from,
				      .wall_ns = j->policy_wall_ns };
	snprintf(ret->rules, sizeof ret->rules, "%s", j->policy);
	snprintf(ret->by, sizeof ret->by, "%s", j->policy_by);
}

void policy_shown_of(const struct store_policy *p, const struct wire_report_job *served,
		     struct policy_shown *ret)
{
	static const enum wire_policy_from from[] = { [STORE_POLICY_NONE] = WIRE_POLICY_NONE,
						      [STORE_POLICY_SET] = WIRE_POLICY_JOB,
						      [STORE_POLICY_UNREAD] = WIRE_POLICY_UNREAD };

	*ret = (struct policy_shown){ .from = from[p->state], .wall_ns = p->set_ns };
	if (p->state == STORE_POLICY_NONE && served && served->policy_from == WIRE_POLICY_OPTIONS)
		policy_shown_report(served, ret);
	else if (retain_is_policy(&p->rules))
		retain_print(&p->rules, ret->rules, sizeof ret->rules);
	if (p->state != STORE_POLICY_NONE)
		snprintf(ret->by, sizeof ret->by, "%s",
			 p->state == STORE_POLICY_UNREAD ? p->why : p->by);
}

void policy_put(struct output *o, const struct policy_shown *p)
{
	static const char *const from[] = { [WIRE_POLICY_NONE] = "none",
					    [WIRE_POLICY_OPTIONS] = "ckptd",
					    [WIRE_POLICY_JOB] = "job",
					    [WIRE_POLICY_UNREAD] = "unreadable" };

	output_key(o, "options", cell_word(p->rules));
	output_key(o, "source", cell_text(from[p->from]));
	output_key(o, "by", cell_word(p->by));
	output_key(o, "at", cell_unless(CELL_TIME, p->wall_ns, 0));
}

char *policy_words(const struct policy_shown *p, uint64_t now_ns, char buf[POLICY_WORDS])
{
	const char *rules = p->rules[0] ? p->rules : "every step";
	char age[HUMAN_BYTES];

	switch (p->from) {
	case WIRE_POLICY_NONE:
		snprintf(buf, POLICY_WORDS, "every step: the job has no policy (ckptctl keep)");
		break;
	case WIRE_POLICY_OPTIONS:
		snprintf(buf, POLICY_WORDS, "%s; options of its ckptd", rules);
		break;
	case WIRE_POLICY_JOB:
		snprintf(buf, POLICY_WORDS, "%s; set by %s%s%s", rules, p->by,
			 p->wall_ns ? ", " : "",
			 p->wall_ns ? human_ago(p->wall_ns, now_ns, age) : "");
		break;
	case WIRE_POLICY_UNREAD:
		snprintf(buf, POLICY_WORDS,
			 "every step, because its policy cannot be read: %s; ckptctl keep sets "
			 "another one",
			 p->by);
		break;
	}
	return buf;
}
