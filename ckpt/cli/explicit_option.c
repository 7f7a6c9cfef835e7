/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit_option.c - see explicit_option.h. Called by plan, export and convert.
 * Invariant: with --explicit nothing is written before every change was either asked for or
 * allowed, and each one that was neither is printed.
 */
#include "ckpt/cli/explicit_option.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/plan/explicit_time.h"
#include <stdio.h>

#define LINE_BYTES 3072
#define NAMES_SAID 3u /* tensors of a group that are named to people */
#define KINDS_BYTES 128
#define TIME_BYTES 200

/* --- what was asked for --- */

static int allow_take(struct cli *c, uint32_t *ret)
{
	struct ckpt_err err = { 0 };
	int rc = 0;

	for (uint32_t i = 0; i < c->ngiven && !rc; i++)
		if (c->given[i].id == OPT_ALLOW)
			rc = explicit_parse(c->given[i].value, "--allow", ret, &err);
	if (rc)
		return cli_fail(c, rc, &err, NULL);
	if (!c->value[OPT_ALLOW] || c->value[OPT_EXPLICIT])
		return CLI_OK;
	ckpt_error(&err, -EINVAL, "--allow %s: without --explicit everything is allowed",
		   c->value[OPT_ALLOW]);
	return cli_fail(c, -EINVAL, &err, "add --explicit, or leave out --allow");
}

/* What a rule asks of its tensor. Where it cannot apply, nobody asked for the copies. */
static uint8_t asked_of(uint8_t placed)
{
	return placed == TARGET_PLACED		 ? EXPLICIT_PLACED
	       : placed == TARGET_PLACED_IN_PART ? EXPLICIT_PLACED & ~EXPLICIT_BIT(REPLICATE)
						 : 0;
}

/* Casts and what is left out are only ever what these options ask for. */
static uint32_t asked_all(const struct cli *c)
{
	uint32_t bits = 0;

	if (c->value[OPT_DTYPE] || c->value[OPT_VIEW])
		bits |= EXPLICIT_BIT(CAST);
	if (c->value[OPT_ONLY] || c->value[OPT_ONLY_GLOB] || c->value[OPT_KEEP_GOING] ||
	    c->value[OPT_DROP_UNSUPPORTED])
		bits |= EXPLICIT_BIT(DROP);
	return bits;
}

static int find(struct cli *c, const struct remesh *m, struct explicit_option *x,
		struct ckpt_err *err)
{
	cleanup_free uint8_t *asked = calloc((size_t)m->target.ntensor + 1, 1);
	const struct explicit_opts opts = {
		.target = true, .asked = asked, .asked_all = asked_all(c), .replicate = m->replicate
	};

	if (!asked)
		return ckpt_error(err, -ENOMEM, "out of memory for %u tensors", m->target.ntensor);
	for (uint32_t i = 0; i < m->target.ntensor; i++)
		asked[i] = asked_of(m->placed[i]);
	x->made = true;
	return explicit_find(m->from, &m->target, &opts, &x->found, err);
}

/* --- the price in time --- */

static int time_tick(void *arg, uint32_t ranks_done)
{
	(void)arg;
	(void)ranks_done;
	return cli_stopped() ? -ECANCELED : 0;
}

/* Of the groups that are printed. one: of one tensor of each. */
static int times_find(struct explicit_option *x, const struct links *links, bool one,
		      struct ckpt_err *err)
{
	const struct explicit_found *f = &x->found;
	int rc = 0;

	if (!links)
		return 0;
	x->us = calloc((size_t)f->ngroup + 1, sizeof *x->us);
	if (!x->us)
		return ckpt_error(err, -ENOMEM, "out of memory for kinds of tensors");
	for (uint32_t i = 0; i < f->ngroup && !rc; i++)
		if (!one || explicit_unasked(&f->group[i], x->allow))
			rc = explicit_time(f, i, one, links, time_tick, NULL, &x->us[i], err);
	return rc == -ECANCELED ? ckpt_error(err, rc, "stopped") : rc;
}

/* The kind whose price is what ranks send each other; EXPLICIT_KINDS: nothing is, or the bytes are
 * no kind's price. */
static enum explicit_kind kind_sent(const struct explicit_group *g)
{
	return g->found & EXPLICIT_BIT(RESHARD)	    ? EXPLICIT_RESHARD
	       : g->found & EXPLICIT_BIT(CUT)	    ? EXPLICIT_CUT
	       : g->found & EXPLICIT_BIT(REPLICATE) ? EXPLICIT_REPLICATE
						    : EXPLICIT_KINDS;
}

/* ", 12.5 us over h100"; "" without --links, or if nothing is sent. Returns buf. */
static char *time_print(const struct cli *c, const struct explicit_option *x,
			const struct explicit_group *g, char buf[static TIME_BYTES])
{
	double us = x->us ? x->us[g - x->found.group] : 0;

	*buf = 0;
	if (x->us && us == EXPLICIT_NO_TIME)
		snprintf(buf, TIME_BYTES, ", in an unknown time");
	else if (us > 0)
		snprintf(buf, TIME_BYTES, ", %s over %.100s", US_TEXT(us), c->value[OPT_LINKS]);
	return buf;
}

/* --- the refusal --- */

/* "reshard,cut": the kinds of which bits are set. Returns buf. */
static char *kinds_print(uint32_t bits, char buf[static KINDS_BYTES])
{
	*buf = 0;
	for (uint32_t k = 0; k < EXPLICIT_KINDS; k++)
		if (bits >> k & 1)
			human_add(buf, KINDS_BYTES, ",", "%s",
				  explicit_words((enum explicit_kind)k)->name);
	return buf;
}

struct refusal {
	struct cli *c;
	const struct explicit_option *x;
	FILE *lines; /* of the message, for programs; NULL: people read them on stderr */
	uint32_t kinds;
};

static void line_put(void *arg, const struct explicit_group *g, enum explicit_kind kind,
		     const struct table_tensor *tensor)
{
	struct refusal *x = arg;
	char line[LINE_BYTES], ascii[LINE_BYTES + 2], time[TIME_BYTES];

	x->kinds |= UINT32_C(1) << kind;
	explicit_line_print(&x->x->found, g, kind, tensor, line, sizeof line);
	if (kind == kind_sent(g))
		human_add(line, sizeof line, "", "%s", time_print(x->c, x->x, g, time));
	if (x->lines)
		fprintf(x->lines, "\n%s", line);
	else
		screen_wrap(x->c->err, screen_ascii(&x->c->err_screen, line, ascii, sizeof ascii),
			    x->c->err_screen.width, 0, 2);
}

/* Each of them is printed, however many they are. Returns the exit code. */
static int refuse(struct cli *c, const struct explicit_option *x, uint64_t n, uint32_t ntensor)
{
	struct refusal r = { .c = c, .x = x };
	cleanup_free char *text = NULL;
	char next[KINDS_BYTES + 200], kinds[KINDS_BYTES];
	size_t len = 0;

	if (c->json && !(r.lines = open_memstream(&text, &len)))
		return cli_fail(c, -ENOMEM, NULL, NULL);
	if (r.lines)
		fprintf(r.lines,
			"%s change%s of %s tensor%s, which nobody asked for:", COUNT_TEXT(n),
			n == 1 ? "" : "s", COUNT_TEXT(ntensor), ntensor == 1 ? "" : "s");
	explicit_each(&x->found, x->allow, line_put, &r);
	if (r.lines && fclose(r.lines))
		return cli_fail(c, -ENOMEM, NULL, NULL);
	if (!c->json &&
	    asprintf(&text, "%s change%s of %s tensor%s, which nobody asked for", COUNT_TEXT(n),
		     n == 1 ? "" : "s", COUNT_TEXT(ntensor), ntensor == 1 ? "" : "s") < 0)
		return cli_fail(c, -ENOMEM, NULL, NULL);
	snprintf(next, sizeof next,
		 "--allow %s permits %s; ckptctl %s -h names the options that ask for a kind",
		 kinds_print(r.kinds, kinds), n == 1 ? "it" : "them", c->verb->name);
	c->o->ops->error(c->o, CLI_MISFIT, text, next);
	return CLI_MISFIT;
}

int explicit_links(struct cli *c, struct links *buf, const struct links **ret)
{
	const char *name;

	*ret = NULL;
	if (!c->value[OPT_LINKS])
		return CLI_OK;
	if (!c->value[OPT_EXPLICIT] && !c->value[OPT_EXPLAIN])
		return cli_usage(c, NULL, "only --explicit and --explain take --links");
	*ret = buf;
	return links_option(c, buf, &name);
}

int explicit_option(struct cli *c, const struct remesh *m, const struct links *links,
		    struct explicit_option *ret)
{
	struct ckpt_err err = { 0 };
	uint32_t ntensor = 0;
	uint64_t n;
	int code, rc;

	*ret = (struct explicit_option){ 0 };
	code = allow_take(c, &ret->allow);
	if (code || (!c->value[OPT_EXPLICIT] && !c->value[OPT_EXPLAIN]))
		return code;
	rc = find(c, m, ret, &err);
	if (rc)
		return cli_fail(c, rc, &err, NULL);
	n = c->value[OPT_EXPLICIT] ? explicit_count(&ret->found, ret->allow, &ntensor) : 0;
	if (n || c->value[OPT_EXPLAIN])
		rc = times_find(ret, links, n > 0, &err);
	if (rc)
		return cli_fail(c, rc, &err, NULL);
	return n ? refuse(c, ret, n, ntensor) : CLI_OK;
}

void explicit_option_end(struct explicit_option *x)
{
	explicit_free(&x->found);
	free(x->us);
}

/* --- the explanation --- */

static uint64_t times(uint64_t bytes, uint32_t n)
{
	uint64_t all;

	return ckpt_mul(bytes, n, &all) ? UINT64_MAX : all;
}

static const struct table_tensor *first_of(const struct explicit_found *f,
					   const struct explicit_group *g)
{
	return g->dst == TABLE_NONE ? &f->src->tensor[g->src] : &f->dst->tensor[g->dst];
}

/* Why it is placed so, if the target has a reason. */
static const char *note_of(const struct remesh *m, const struct explicit_group *g)
{
	uint32_t at = SEARCH(i, 0u, m->nnote, m->note[i].tensor < g->dst);

	return at < m->nnote && m->note[at].tensor == g->dst ? m->note[at].text : NULL;
}

static const char *verdict(const struct explicit_option *x, const struct explicit_group *g,
			   uint32_t kind)
{
	return g->asked >> kind & 1   ? "asked for"
	       : x->allow >> kind & 1 ? "allowed"
				      : "not asked for";
}

struct naming {
	const struct explicit_option *x;
	struct cli *c;
	uint32_t *first, *next; /* tensors of each group: the first, and the one behind each */
};

/* Which tensors are in which group, in their order. */
static bool naming_make(const struct explicit_option *x, struct naming *ret)
{
	const struct explicit_found *f = &x->found;
	cleanup_free uint32_t *last = calloc((size_t)f->ngroup + 1, sizeof *last);

	ret->first = calloc((size_t)f->ngroup + 1, sizeof *ret->first);
	ret->next = calloc((size_t)f->dst->ntensor + 1, sizeof *ret->next);
	if (!last || !ret->first || !ret->next)
		return false;
	for (uint32_t i = 0; i < f->ngroup; i++)
		ret->first[i] = TABLE_NONE;
	for (uint32_t i = 0; i < f->dst->ntensor; i++) {
		uint32_t g = f->of_dst[i];

		ret->next[i] = TABLE_NONE;
		if (g == TABLE_NONE)
			continue;
		if (ret->first[g] == TABLE_NONE)
			ret->first[g] = i;
		else
			ret->next[last[g]] = i;
		last[g] = i;
	}
	return true;
}

static void group_say(const struct naming *k, const struct remesh *m, uint32_t group)
{
	const struct explicit_group *g = &k->x->found.group[group];
	const struct table_tensor *t = first_of(&k->x->found, g);
	char change[LINE_BYTES], names[1024] = "", name[300], shape[400], time[TIME_BYTES],
				 moved[TIME_BYTES + 128] = "";
	const char *note = note_of(m, g);
	enum explicit_kind sent = kind_sent(g);
	uint32_t n = 0;

	time_print(k->c, k->x, g, time);
	for (uint32_t i = k->first[group]; i != TABLE_NONE && n < NAMES_SAID; i = k->next[i], n++)
		human_add(names, sizeof names, ", ", "%s",
			  table_tensor_print(&k->x->found.dst->tensor[i], name, sizeof name));
	cli_mark(k->c, STYLE_STRONG, COUNT_TEXT(g->ntensor), 2, " tensor%s %s %s: %s%s",
		 g->ntensor == 1 ? "" : "s", human_shape(t->ndim, t->shape, shape, sizeof shape),
		 dtype_name(t->dtype), names, g->ntensor > n ? ", ..." : "");
	cli_mark(k->c, STYLE_PLAIN, "  ", 4, "%s%s%s%s",
		 explicit_change_print(&k->x->found, g, change, sizeof change), note ? " (" : "",
		 note ? note : "", note ? ")" : "");
	for (uint32_t i = 0; i < EXPLICIT_KINDS; i++)
		if (g->found >> i & 1)
			cli_mark(k->c, STYLE_PLAIN, "  ", 4, "%s, %s: %s; %s %s%s",
				 explicit_words((enum explicit_kind)i)->name, verdict(k->x, g, i),
				 explicit_words((enum explicit_kind)i)->what,
				 BYTES_TEXT(times(g->price[i], g->ntensor)),
				 explicit_words((enum explicit_kind)i)->price,
				 i == sent ? time : "");
	if (sent != EXPLICIT_RESHARD && sent != EXPLICIT_CUT) /* it is their price */
		snprintf(moved, sizeof moved, "; their rank did not hold %s of it%s",
			 BYTES_TEXT(times(g->moved, g->ntensor)),
			 sent == EXPLICIT_KINDS && g->moved ? time : "");
	if (g->held)
		cli_mark(k->c, STYLE_DIM, "  ", 4,
			 "ranks hold %s; they take %s of what is stored (%.2f times the tensors)%s",
			 BYTES_TEXT(times(g->held, g->ntensor)),
			 BYTES_TEXT(times(g->read, g->ntensor)),
			 g->bytes ? (double)g->read / (double)g->bytes : 0, moved);
}

static void kinds_put(struct output *o, const struct explicit_option *x,
		      const struct explicit_group *g)
{
	output_list(o, "kinds", NULL, 0);
	for (uint32_t i = 0; i < EXPLICIT_KINDS; i++) {
		if (!(g->found >> i & 1))
			continue;
		output_row(o);
		output_key(o, "kind", cell_text(explicit_words((enum explicit_kind)i)->name));
		output_key(o, "asked", cell_flag(g->asked >> i & 1));
		output_key(o, "allowed", cell_flag(x->allow >> i & 1));
		output_key(o, "bytes", cell_bytes(times(g->price[i], g->ntensor)));
		output_close(o);
	}
	output_close(o);
}

static void group_put(const struct naming *k, const struct remesh *m, uint32_t group)
{
	const struct explicit_group *g = &k->x->found.group[group];
	const struct table_tensor *t = first_of(&k->x->found, g);
	char text[LINE_BYTES];
	struct output *o = k->c->o;

	output_row(o);
	output_key(o, "tensor_count", cell_count(g->ntensor));
	output_key(o, "shape", cell_shape(t->ndim, t->shape));
	output_key(o, "from_dtype", cell_text(dtype_name(k->x->found.src->tensor[g->src].dtype)));
	output_key(o, "dtype", cell_text(dtype_name(t->dtype)));
	output_key(o, "change",
		   cell_text(explicit_change_print(&k->x->found, g, text, sizeof text)));
	output_key(o, "why", cell_word(note_of(m, g)));
	kinds_put(o, k->x, g);
	output_key(o, "tensor_bytes", cell_bytes(times(g->bytes, g->ntensor)));
	output_key(o, "held_bytes", cell_bytes(times(g->held, g->ntensor)));
	output_key(o, "read_bytes", cell_bytes(times(g->read, g->ntensor)));
	output_key(o, "moved_bytes", cell_bytes(times(g->moved, g->ntensor)));
	output_key(o, "exchange_us",
		   cell_if(k->x->us && k->x->us[group] != EXPLICIT_NO_TIME,
			   cell_real(k->x->us ? k->x->us[group] : 0)));
	output_key(o, "amplification",
		   g->bytes ? cell_real((double)g->read / (double)g->bytes) : cell_none());
	output_list(o, "tensors", NULL, 0);
	for (uint32_t i = k->first[group]; i != TABLE_NONE; i = k->next[i]) {
		output_row(o);
		output_key(o, "tensor",
			   cell_text(table_tensor_print(&k->x->found.dst->tensor[i], text,
							sizeof text)));
		output_close(o);
	}
	output_close(o);
	output_close(o);
}

static void groups_say(const struct naming *k, const struct remesh *m, uint64_t peak,
		       const char *what)
{
	const struct explicit_found *f = &k->x->found;
	uint32_t same = 0;

	cli_say(k->c, STYLE_PLAIN, "%s", "");
	for (uint32_t i = 0; i < f->ngroup; i++) {
		if (f->group[i].found)
			group_say(k, m, i);
		else
			same += f->group[i].ntensor;
	}
	if (same)
		cli_say(k->c, STYLE_PLAIN,
			"%s tensor%s on every rank what %s there: nothing is done but copying.",
			COUNT_TEXT(same), same == 1 ? " is" : "s are",
			same == 1 ? "it was" : "they were");
	cli_say(k->c, STYLE_PLAIN, "Peak memory: %s, %s.", BYTES_TEXT(peak), what);
}

void explicit_option_put(struct cli *c, const struct remesh *m, const struct explicit_option *x,
			 uint64_t peak, const char *what)
{
	struct naming k = { .x = x, .c = c };
	const struct explicit_found *f = &x->found;
	bool explain = c->value[OPT_EXPLAIN];

	output_list(c->o, "explained", NULL, 0);
	if (explain && !naming_make(x, &k))
		c->o->failed = true;
	for (uint32_t i = 0; explain && !c->o->failed && i < f->ngroup && c->o->machine; i++)
		group_put(&k, m, i);
	output_close(c->o);
	output_key(c->o, "peak_memory_bytes", cell_if(explain, cell_bytes(peak)));
	if (explain && !c->o->failed && !c->json)
		groups_say(&k, m, peak, what);
	free(k.first);
	free(k.next);
}
