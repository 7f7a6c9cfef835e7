/* SPDX-License-Identifier: Apache-2.0 */
/*
 * plan_exchange.c - see plan_exchange.h. Called by verb_plan.c.
 * Invariant: what is printed is what the ranks' own schedules add up to.
 */
#include "ckpt/cli/plan_exchange.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/links_option.h"
#include "ckpt/layout/human.h"

#define ROWS_MAX 8u /* of the table of rounds: neighbours are put together */
#define LINE_BYTES 512
#define ROUND_MIN 4096u /* the time of a smaller round is latency alone */
#define ROUND_MOST (UINT64_C(1) << 60)

static int exchange_tick(void *arg, uint32_t ranks_done)
{
	(void)arg;
	(void)ranks_done;
	return cli_stopped() ? -ECANCELED : 0;
}

static int round_take(struct cli *c, uint64_t *ret)
{
	const char *word = c->value[OPT_ROUND];

	if (!c->value[OPT_LINKS])
		return cli_usage(c, NULL, "only --links takes --round");
	if (human_parse_bytes(word, ret))
		return cli_usage(c, NULL,
				 "--round %.40s is no size: write 64M, 1G or a number of bytes",
				 word);
	return *ret < ROUND_MIN
		       ? cli_usage(c, NULL, "--round %.40s is too small: %u bytes is the least",
				   word, ROUND_MIN)
		       : CLI_OK;
}

int plan_exchange_take(struct cli *c, struct plan_exchange *ret)
{
	int code;

	*ret = (struct plan_exchange){ .asked = c->value[OPT_LINKS] != NULL };
	code = c->value[OPT_ROUND] ? round_take(c, &ret->round_bytes) : CLI_OK;
	return code || !ret->asked ? code : links_option(c, &ret->links, &ret->links_name);
}

static bool is_long(const struct schedule_total *t, double us)
{
	return us > PLAN_EXCHANGE_LONG * t->bound_us;
}

/* Bytes of a round, a power of two and more than now, with which the latency of all rounds is about
 * a tenth of what the busiest link needs. */
static uint64_t round_guess(const struct plan_exchange *x)
{
	const struct schedule_total *t = &x->total;
	double most = (double)MAX(t->most_out, t->most_in), latency = 0;
	uint64_t now = x->round_bytes ? x->round_bytes : SCHEDULE_ROUND_BYTES, bytes = ROUND_MIN;

	for (uint64_t i = 0; i < t->rounds; i++)
		latency += x->links.tier[t->round[i].slowest.tier].latency_us / (double)t->rounds;
	while (bytes < ROUND_MOST &&
	       (bytes <= now || (most / (double)bytes - 1) * latency > t->bound_us / 10))
		bytes *= 2;
	return bytes;
}

/* The search ends: one round takes what its slowest link needs. */
static int better_find(const struct table *from, const struct table *to, struct plan_exchange *x,
		       struct schedule_opts opts, struct ckpt_err *err)
{
	double us = x->total.us;

	for (uint64_t bytes = round_guess(x); is_long(&x->total, us) && bytes < ROUND_MOST;
	     bytes *= 2) {
		struct schedule_total t;
		struct schedule *s;
		int rc;

		opts.round_bytes = bytes;
		rc = schedule_open(from, to, &opts, &s, err);
		if (rc)
			return rc;
		rc = schedule_total(s, &x->links, exchange_tick, NULL, &t, err);
		schedule_close(s);
		if (rc)
			return rc;
		x->better_bytes = bytes;
		x->better_rounds = t.rounds;
		x->better_us = us = t.us;
		schedule_total_free(&t);
	}
	return 0;
}

int plan_exchange_find(struct cli *c, const struct table *from, const struct table *to,
		       struct plan_exchange *x)
{
	struct schedule_opts opts = { .who = HOLDERS_ONE,
				      .links = &x->links,
				      .round_bytes = x->round_bytes };
	struct ckpt_err err = { 0 };
	struct schedule *s;
	int rc;

	if (!x->asked)
		return CLI_OK;
	rc = schedule_open(from, to, &opts, &s, &err);
	if (rc)
		return cli_fail(c, rc, &err, NULL);
	x->left_out = schedule_left_out(s);
	rc = schedule_total(s, &x->links, exchange_tick, NULL, &x->total, &err);
	if (!rc)
		rc = better_find(from, to, x, opts, &err);
	if (!rc && x->total.rounds)
		rc = rounds_make(s, &x->links, &x->total, &x->rounds, &x->why);
	if (rc == -E2BIG && x->why.msg[0])
		rc = 0; /* its totals are an answer, too */
	else if (x->why.msg[0])
		err = x->why;
	else if (rc == -ECANCELED)
		ckpt_error(&err, rc, "stopped");
	schedule_close(s);
	return rc ? cli_fail(c, rc, &err, NULL) : CLI_OK;
}

void plan_exchange_free(struct plan_exchange *x)
{
	schedule_total_free(&x->total);
	rounds_free(x->rounds);
}

/* "rank 3 receives 64.0 MiB (network)" */
static char *link_print(const struct schedule_link *l, char buf[static LINE_BYTES])
{
	snprintf(buf, LINE_BYTES, "rank %u %s %s (%s)", l->rank,
		 l->tier == LINKS_MEMORY ? "keeps"
		 : l->sends		 ? "sends"
					 : "receives",
		 BYTES_TEXT(l->bytes), links_tier_name(l->tier));
	return buf;
}

static void put_link(struct output *o, const char *key, const struct schedule_link *l)
{
	output_object(o, key);
	output_key(o, "rank", cell_number(l->rank));
	output_key(o, "tier", cell_text(links_tier_name(l->tier)));
	output_key(o, "sends", cell_flag(l->sends));
	output_key(o, "bytes", cell_bytes(l->bytes));
	output_close(o);
}

static void put_round(struct output *o, const struct schedule_round *r)
{
	output_row(o);
	output_key(o, "bytes", cell_bytes(r->bytes));
	output_key(o, "us", cell_real(r->us));
	put_link(o, "slowest", &r->slowest);
	output_close(o);
}

static void put_better(struct output *o, const struct plan_exchange *x)
{
	if (!x->better_bytes) {
		output_key(o, "better", cell_none());
		return;
	}
	output_object(o, "better");
	output_key(o, "round_bytes", cell_bytes(x->better_bytes));
	output_key(o, "round_count", cell_count(x->better_rounds));
	output_key(o, "us", cell_real(x->better_us));
	output_close(o);
}

static void put_keys(struct output *o, const struct plan_exchange *x)
{
	const struct schedule_total *t = &x->total;

	output_object(o, "exchange");
	output_key(o, "links", cell_text(x->links_name));
	output_key(o, "left_out_tensor_count", cell_count(x->left_out));
	output_key(o, "rank_count", cell_count(t->ranks));
	output_key(o, "stream_count", cell_count(t->streams));
	output_key(o, "message_count", cell_count(t->messages));
	output_list(o, "tiers", NULL, 0);
	for (uint32_t i = 0; i <= LINKS_NETWORK && o->machine; i++) {
		output_row(o);
		output_key(o, "tier", cell_text(links_tier_name(i)));
		output_key(o, "bytes", cell_bytes(t->bytes[i]));
		output_close(o);
	}
	output_close(o);
	output_key(o, "most_sent_bytes", cell_bytes(t->most_out));
	output_key(o, "most_received_bytes", cell_bytes(t->most_in));
	output_key(o, "us", cell_real(t->us));
	output_key(o, "bound_us", cell_real(t->bound_us));
	if (t->rounds)
		put_link(o, "busiest", &t->busiest);
	else
		output_key(o, "busiest", cell_none());
	put_better(o, x);
	output_list(o, "rounds", NULL, 0);
	for (uint64_t i = 0; i < t->rounds && o->machine; i++)
		put_round(o, &t->round[i]);
	output_close(o);
	output_close(o);
}

/* Several neighbouring rounds are one row, with the link that is the slowest in any of them. */
static void put_rounds(struct output *o, const struct schedule_total *t)
{
	static const struct column col[] = { { NULL, "ROUNDS", true, FIT_WHOLE },
					     { NULL, "TIME", true, FIT_WHOLE },
					     { NULL, "BYTES", true, FIT_WHOLE },
					     { NULL, "SLOWEST LINK", false, FIT_LAST } };
	uint64_t each = div_up(t->rounds, ROWS_MAX);

	output_list(o, NULL, col, ARRAY_LEN(col));
	for (uint64_t i = 0; i < t->rounds; i += each) {
		uint64_t end = MIN(i + each, t->rounds), bytes = 0;
		const struct schedule_round *slowest = &t->round[i];
		char which[64], link[LINE_BYTES];
		double us = 0;

		for (uint64_t k = i; k < end; k++) {
			us += t->round[k].us;
			bytes += t->round[k].bytes;
			if (t->round[k].us > slowest->us)
				slowest = &t->round[k];
		}
		snprintf(which, sizeof which, end - i > 1 ? "%llu-%llu" : "%llu",
			 (unsigned long long)i, (unsigned long long)end - 1);
		OUTPUT_ROW(o, col, cell_text(which), cell_text(US_TEXT(us)), cell_bytes(bytes),
			   cell_text(link_print(&slowest->slowest, link)));
	}
	output_close(o);
}

/* A power of two as --round takes it: "4M". */
static char *option_bytes(uint64_t bytes, char buf[static HUMAN_BYTES])
{
	static const char unit[] = "BKMGTPE";
	uint32_t i = 0;

	for (; bytes >= KIB; bytes /= KIB)
		i++;
	snprintf(buf, HUMAN_BYTES, "%llu%c", (unsigned long long)bytes, unit[i]);
	return buf;
}

static void put_summary(struct output *o, const struct plan_exchange *x)
{
	const struct schedule_total *t = &x->total;
	char link[LINE_BYTES], over[LINE_BYTES] = "", option[HUMAN_BYTES];

	for (uint32_t i = 0; i <= LINKS_NETWORK; i++)
		if (t->bytes[i])
			human_add(over, sizeof over, ", ", "%s %s", BYTES_TEXT(t->bytes[i]),
				  i == LINKS_MEMORY ? "stays" : links_tier_name(i));
	output_label(o, "exchange", STYLE_PLAIN,
		     "%s in %s round%s over %s: %.2f times what its busiest link needs",
		     US_TEXT(t->us), COUNT_TEXT(t->rounds), t->rounds == 1 ? "" : "s",
		     x->links_name, t->bound_us > 0 ? t->us / t->bound_us : 1);
	if (x->better_bytes)
		output_label(o, "too long", STYLE_WARN,
			     "--round %s takes %s in %s round%s: %.2f times what that link needs",
			     option_bytes(x->better_bytes, option), US_TEXT(x->better_us),
			     COUNT_TEXT(x->better_rounds), x->better_rounds == 1 ? "" : "s",
			     x->better_us / t->bound_us);
	output_label(o, "busiest", STYLE_PLAIN, "%s", link_print(&t->busiest, link));
	output_label(o, "bytes", STYLE_PLAIN, "%s; %s stream%s", over, COUNT_TEXT(t->streams),
		     t->streams == 1 ? "" : "s");
}

void plan_exchange_put(struct cli *c, const struct plan_exchange *x)
{
	struct output *o = c->o;

	if (!x->asked) {
		output_key(o, "exchange", cell_none());
		return;
	}
	put_keys(o, x);
	if (x->total.rounds)
		put_summary(o, x);
	else if (!x->left_out)
		output_label(o, "exchange", STYLE_PLAIN, "nothing goes from rank to rank");
	if (x->left_out)
		output_label(o, x->total.rounds ? "without" : "exchange", STYLE_WARN,
			     "%s tensor%s: the checkpoint does not say which rank held what of %s",
			     COUNT_TEXT(x->left_out), x->left_out == 1 ? "" : "s",
			     x->left_out == 1 ? "it" : "them");
	if (x->total.rounds > 1)
		put_rounds(o, &x->total);
}

void plan_exchange_print(struct cli *c, const struct plan_exchange *x)
{
	if (!x->asked || c->json || !x->total.streams)
		return;
	cli_say(c, STYLE_PLAIN, "%s", "");
	if (x->rounds)
		rounds_print(x->rounds, c->out, &c->out_screen);
	else
		cli_say(c, STYLE_DIM, "%s", x->why.msg);
}
