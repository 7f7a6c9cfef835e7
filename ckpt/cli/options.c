/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options.c - the one table of options, and the parsing that it drives. Called by cli_run, twice:
 * before the verb and behind it.
 * Invariant: getopt_long(3) gets exactly the options that -h prints.
 */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/layout/human.h"
#include "formats/registry/registry.h"
#include <getopt.h>

#define LONG_BASE 256 /* getopt's val of an option: this + its id, so that it is never a letter */
#define NEAR_MAX 2    /* edits between what was typed and what is suggested */

const struct cli_option cli_options[] = {
	{ OPT_STORE, 'C', "store", "PATH", NULL,
	  "store or job directory (default: $CKPTD_STORE, else the current directory)", true,
	  ARG_DIR },
	{ OPT_JSON, 0, "json", NULL, NULL, "print JSON (docs/JSON.md); errors are JSON on stderr",
	  true, ARG_NONE },
	{ OPT_ASCII, 0, "ascii", NULL, NULL, "print only ASCII characters", true, ARG_NONE },
	{ OPT_COLOR, 0, "color", "WHEN", "auto|always|never",
	  "colour: auto (on a terminal, unless NO_COLOR is set), always, never", true, ARG_NONE },
	{ OPT_HELP, 'h', "help", NULL, NULL, "this help; after a verb, the help of the verb", true,
	  ARG_NONE },
	{ OPT_VERSION, 0, "version", NULL, NULL, "print the version", true, ARG_NONE },
	{ OPT_QUIET, 'q', "quiet", NULL, NULL, "no progress and no hints on stderr", true,
	  ARG_NONE },
	{ OPT_SOCKET, 'S', "socket", "PATH", NULL, NULL, false, ARG_FILE },
	{ OPT_ALL, 0, "all", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_DATA, 0, "data", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_DATA_SUBSET, 0, "data-subset", "PART", NULL, NULL, false, ARG_NONE },
	{ OPT_TENSORS, 0, "tensors", "GLOB", NULL, NULL, false, ARG_TENSOR },
	{ OPT_FILES, 0, "files", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_MAP, 0, "map", "TENSOR", NULL, NULL, false, ARG_TENSOR },
	{ OPT_SVG, 0, "svg", "FILE", NULL, NULL, false, ARG_FILE },
	{ OPT_DEPTH, 0, "depth", "N", NULL, NULL, false, ARG_NONE },
	{ OPT_LAYOUTS, 0, "layouts", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_LINKS, 0, "links", "FILE|PRESET", NULL, NULL, false, ARG_FILE },
	{ OPT_LINKS_FILE, 0, "links", "FILE", NULL, NULL, false, ARG_FILE },
	{ OPT_VALUES, 0, "values", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_NO_READ, 0, "no-read", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_SLICE, 0, "slice", "RANGES", NULL, NULL, false, ARG_NONE },
	{ OPT_NPY, 0, "npy", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_OUTPUT, 'o', "output", "FILE", NULL, NULL, false, ARG_FILE },
	{ OPT_STATS, 0, "stats", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_MESH, 0, "mesh", "SPEC", NULL, NULL, false, ARG_NONE },
	{ OPT_LAYOUT, 0, "layout", "RULE|FILE", NULL, NULL, false, ARG_FILE },
	{ OPT_REPLICATE, 0, "replicate", "DIMS", NULL, NULL, false, ARG_NONE },
	{ OPT_VIEW, 0, "view", "FILE", NULL, NULL, false, ARG_FILE },
	{ OPT_RANK, 0, "rank", "R", NULL, NULL, false, ARG_NONE },
	{ OPT_ONLY, 0, "only", "COMPONENT", NULL, NULL, false, ARG_COMPONENT },
	{ OPT_DTYPE, 0, "dtype", "DTYPE", "F32|BF16|F16", NULL, false, ARG_NONE },
	{ OPT_AVERAGE, 0, "average", "SPEC", NULL, NULL, false, ARG_NONE },
	{ OPT_MEM_LIMIT, 0, "mem-limit", "BYTES", NULL, NULL, false, ARG_NONE },
	{ OPT_ROUND, 0, "round", "BYTES", NULL, NULL, false, ARG_NONE },
	{ OPT_WATCH, 'w', "watch", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_JOB, 'J', "job", "JOB", NULL, NULL, false, ARG_JOB },
	{ OPT_STATE, 0, "state", "STATE", "staged|persisted|committed", NULL, false, ARG_NONE },
	{ OPT_TIMEOUT, 0, "timeout", "TIME", NULL, NULL, false, ARG_NONE },
	{ OPT_FINAL, 0, "final", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_WAIT, 0, "wait", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_TO, 0, "to", "DIR", NULL, NULL, false, ARG_FILE },
	{ OPT_JOB_SIZE, 0, "job-size", "BYTES", NULL, NULL, false, ARG_NONE },
	{ OPT_SHAPE, 0, "shape", "SHAPE", NULL, NULL, false, ARG_NONE },
	{ OPT_PLACEMENTS, 0, "placements", "TEXT", NULL, NULL, false, ARG_NONE },
	{ OPT_MODE, 0, "mode", "MODE", "literal|order|flat|unflatten_pad", NULL, false, ARG_NONE },
	{ OPT_SUMMARY, 0, "summary", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_BATCH, 0, "batch", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_DRY_RUN, 'n', "dry-run", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_YES, 'y', "yes", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_KEEP_LAST, 0, "keep-last", "N", NULL, NULL, false, ARG_NONE },
	{ OPT_KEEP_EVERY, 0, "keep-every", "N", NULL, NULL, false, ARG_NONE },
	{ OPT_KEEP_WITHIN, 0, "keep-within", "TIME", NULL, NULL, false, ARG_NONE },
	{ OPT_KEEP_BEST, 0, "keep-best", "NOTE", NULL, NULL, false, ARG_NONE },
	{ OPT_LAST, 0, "last", "N", NULL, NULL, false, ARG_NONE },
	{ OPT_EVERY, 0, "every", "N", NULL, NULL, false, ARG_NONE },
	{ OPT_WITHIN, 0, "within", "TIME", NULL, NULL, false, ARG_NONE },
	{ OPT_BEST, 0, "best", "NOTE", NULL, NULL, false, ARG_NONE },
	{ OPT_FREE, 0, "free", "BYTES", NULL, NULL, false, ARG_NONE },
	{ OPT_BAD, 0, "bad", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_SET_ASIDE, 0, "set-aside", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_SET_ASIDE_FOR, 0, "set-aside-for", "TIME", NULL, NULL, false, ARG_NONE },
	{ OPT_UNFINISHED, 0, "unfinished", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_BY, 0, "by", "NAME", NULL, NULL, false, ARG_HOLD },
	{ OPT_UNTIL, 0, "until", "TIME", NULL, NULL, false, ARG_NONE },
	{ OPT_WHY, 0, "why", "TEXT", NULL, NULL, false, ARG_NONE },
	{ OPT_DELETE, 0, "delete", "NAME", NULL, NULL, false, ARG_TAG },
	{ OPT_ABANDONED, 0, "abandoned", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_NO_MARK, 0, "no-mark", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_KEEP_GOING, 0, "keep-going", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_FROM_MEMORY, 0, "from-memory", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_FROM, 0, "from", "FORMAT", NULL, NULL, false, ARG_NONE },
	{ OPT_SORT, 0, "sort", "KEY", NULL, NULL, false, ARG_SORT },
	{ OPT_FIRST, 'n', "count", "COUNT", NULL, NULL, false, ARG_NONE },
	/* Of some verbs an option of the same name takes something else. */
	{ OPT_TO_FORMAT, 0, "to", "FORMAT", NULL, NULL, false, ARG_NONE },
	{ OPT_ONLY_GLOB, 0, "only", "GLOB", NULL, NULL, false, ARG_TENSOR },
	{ OPT_STEP, 0, "step", "N", NULL, NULL, false, ARG_NONE },
	{ OPT_NEW_JOB, 0, "job", "NAME", NULL, NULL, false, ARG_NONE },
	{ OPT_SHARD_SIZE, 0, "shard-size", "BYTES", NULL, NULL, false, ARG_NONE },
	{ OPT_DROP_UNSUPPORTED, 0, "drop-unsupported", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_STRIP, 0, "strip", "COMPONENT", NULL, NULL, false, ARG_NONE },
	{ OPT_CHECK, 0, "check", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_EXPLICIT, 0, "explicit", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_ALLOW, 0, "allow", "KINDS", NULL, NULL, false, ARG_NONE },
	{ OPT_STEPS, 0, "steps", "STATES", NULL, NULL, false, ARG_NONE },
	{ OPT_ANY_DTYPE, 0, "dtype", "DTYPE", NULL, NULL, false, ARG_NONE },
	{ OPT_EXPLAIN, 0, "explain", NULL, NULL, NULL, false, ARG_NONE },
	{ OPT_TIED, 0, "tied", "HOW", "once|copy", NULL, false, ARG_NONE },
};
const uint32_t cli_option_count = ARRAY_LEN(cli_options);

static const struct cli_option *option_of(enum cli_option_id id)
{
	for (uint32_t i = 0; i < cli_option_count; i++)
		if (cli_options[i].id == id)
			return &cli_options[i];
	return NULL;
}

const char *cli_option_words(const struct cli_option *o)
{
	static char words[256];
	size_t n = 0;

	if (o->id != OPT_FROM && o->id != OPT_TO_FORMAT)
		return o->choice;
	for (uint32_t i = 0; formats[i] && n < sizeof words; i++)
		if (o->id == OPT_FROM || formats[i]->sheet)
			n += (size_t)snprintf(words + n, sizeof words - n, "%s%s", n ? "|" : "",
					      formats[i]->name);
	return words;
}

bool cli_verb_takes(const struct cli_verb *verb, const struct cli_option *o)
{
	if (o->global)
		return true;
	for (const struct cli_verb_option *v = verb ? verb->option : NULL; v && v->id != OPT_NONE;
	     v++)
		if (v->id == o->id)
			return true;
	return false;
}

static bool choice_has(const char *choice, const char *s)
{
	size_t n = strlen(s);

	for (const char *p = choice; p; p = strchr(p, '|')) {
		p += *p == '|';
		if (n && !strncmp(p, s, n) && (p[n] == '|' || !p[n]))
			return true;
	}
	return false;
}

/* The error says why getopt stopped at `word`, and what to write instead. */
static int option_unknown(const struct cli_verb *verb, const char *word, struct ckpt_err *err)
{
	const char *name = word + strspn(word, "-");
	const struct cli_option *near = NULL;
	uint32_t best = NEAR_MAX + 1;

	for (uint32_t i = 0; i < cli_option_count; i++) {
		const struct cli_option *o = &cli_options[i];
		uint32_t d = human_distance(name, o->name, NEAR_MAX);

		if (!d && !cli_verb_takes(verb, o))
			return verb ? ckpt_error(err, -EINVAL, "%s is not an option of ckptctl %s",
						 word, verb->name)
				    : ckpt_error(err, -EINVAL,
						 "%s must follow a verb: ckptctl VERB %s", word,
						 word);
		if (d < best && cli_verb_takes(verb, o) && strlen(name) > NEAR_MAX) {
			best = d;
			near = o;
		}
	}
	if (near)
		return ckpt_error(err, -EINVAL, "unknown option %s; did you mean --%s?", word,
				  near->name);
	return ckpt_error(err, -EINVAL, "unknown option %s", word);
}

/* May it be given several times? Each of some options adds something (cli.given); a repeated flag
 * changes nothing. */
static bool option_repeats(enum cli_option_id id)
{
	switch ((int)id) {
	case OPT_LAYOUT:
	case OPT_REPLICATE:
	case OPT_ONLY:
	case OPT_ONLY_GLOB:
	case OPT_AVERAGE:
	case OPT_ALLOW:
	case OPT_KEEP_BEST:
	case OPT_DROP_UNSUPPORTED:
	case OPT_STRIP:
		return true;
	default:
		return false;
	}
}

static int option_take(struct cli *c, const struct cli_option *o, const char *arg,
		       struct ckpt_err *err)
{
	if (o->choice && !choice_has(o->choice, arg))
		return ckpt_error(err, -EINVAL, "--%s=%s is not valid: choose from %s", o->name,
				  arg, o->choice);
	if (c->value[o->id] && o->arg && !option_repeats(o->id))
		return ckpt_error(err, -EINVAL,
				  "--%s is given twice, as %.60s and as %.60s: give it once",
				  o->name, c->value[o->id], arg);
	if (o->arg && !*arg)
		return ckpt_error(err, -EINVAL, "--%s needs a %s that is not empty", o->name,
				  o->arg);
	c->value[o->id] = arg ? arg : "";
	if (c->ngiven == CLI_GIVEN_MAX)
		return ckpt_error(err, -EINVAL, "more than %u options were given", CLI_GIVEN_MAX);
	c->given[c->ngiven].id = o->id;
	c->given[c->ngiven++].value = c->value[o->id];
	return 0;
}

int cli_options_parse(struct cli *c, const struct cli_verb *verb, int argc, char **argv,
		      struct ckpt_err *err)
{
	struct option longs[OPT_COUNT + 1] = { 0 };
	char shorts[2 * OPT_COUNT + 3] = ":", word[64];
	size_t ns = 1, nl = 0;
	int val, rc;

	/* Before the verb, parsing ends at the first word; behind it, words and options mix. */
	if (!verb) {
		memcpy(shorts, "+:", 3);
		ns = 2;
	}
	for (uint32_t i = 0; i < cli_option_count; i++) {
		const struct cli_option *o = &cli_options[i];

		if (!cli_verb_takes(verb, o))
			continue;
		longs[nl++] = (struct option){ o->name, o->arg ? required_argument : no_argument,
					       NULL, LONG_BASE + (int)o->id };
		if (o->letter) {
			shorts[ns++] = o->letter;
			if (o->arg)
				shorts[ns++] = ':';
		}
	}
	shorts[ns] = 0;
	opterr = 0;
	optind = 0;
	while ((val = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
		const struct cli_option *o = NULL;

		for (uint32_t i = 0; i < cli_option_count; i++)
			if (val == LONG_BASE + (int)cli_options[i].id ||
			    (cli_options[i].letter && val == cli_options[i].letter &&
			     cli_verb_takes(verb, &cli_options[i])))
				o = &cli_options[i];
		if (o) {
			rc = option_take(c, o, optarg, err);
			if (rc)
				return rc;
			continue;
		}
		if (optopt > 0 && optopt < LONG_BASE)
			snprintf(word, sizeof word, "-%c", optopt);
		else
			snprintf(word, sizeof word, "%.60s", argv[optind - 1]);
		if (val == ':')
			return ckpt_error(err, -EINVAL, "%s needs an argument", word);
		if (optopt >= LONG_BASE)
			return ckpt_error(
				err, -EINVAL, "--%s takes no argument",
				option_of((enum cli_option_id)(optopt - LONG_BASE))->name);
		return option_unknown(verb, word, err);
	}
	return optind;
}
