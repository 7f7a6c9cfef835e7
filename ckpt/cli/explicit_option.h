/* SPDX-License-Identifier: Apache-2.0 */
/*
 * explicit_option.h - --explicit, --allow and --explain, for the verbs that load a checkpoint onto
 * a mesh: what is done to tensors besides copying (ckpt/plan/explicit.h), refused if nobody asked
 * for it, or explained.
 */
#ifndef CKPT_CLI_EXPLICIT_OPTION_H
#define CKPT_CLI_EXPLICIT_OPTION_H
#include "ckpt/cli/cli.h"
#include "ckpt/cli/links_option.h"
#include "ckpt/engine/remesh.h"
#include "ckpt/plan/explicit.h"

struct explicit_option {
	uint32_t allow; /* bit per kind */
	bool made;	/* one of the options was given: found is there */
	struct explicit_found found;
	/* With links, of each group: how long it takes to send what ranks lack (explicit_time.h),
	 * of one tensor in a refusal, of all in an explanation. */
	double *us;
};

/* --links of a verb that prices nothing else by it. *ret: buf, or NULL without the option. Returns
 * an exit code, after the error was printed: 2 if the file is wrong, or the option stands alone. */
int explicit_links(struct cli *c, struct links *buf, const struct links **ret);

/*
 * What the target of m, with its casts and without what it leaves out, makes of m->from, which has
 * its pieces. Returns an exit code, after the error was printed: 2 if --allow names an unknown
 * kind, or is given without --explicit; 7 if nobody asked for some changes, each with its tensor
 * and price. links: those of --links, by which prices have times, too; NULL: bytes alone.
 * explicit_option_end in any case; ret may be zeroed.
 */
int explicit_option(struct cli *c, const struct remesh *m, const struct links *links,
		    struct explicit_option *ret);
/*
 * In the document, after the rest: with --explain the groups of equal tensors, and the most memory
 * that this takes: peak bytes; what: which these are, in words. Without it programs see none of
 * these.
 */
void explicit_option_put(struct cli *c, const struct remesh *m, const struct explicit_option *x,
			 uint64_t peak, const char *what);
void explicit_option_end(struct explicit_option *x);

/* What stands for the three in a verb's own options, and in its text. */
#define EXPLICIT_OPTIONS                                                                          \
	{ OPT_EXPLICIT, "refuse every change that no option asks for" },                          \
		{ OPT_ALLOW,                                                                      \
		  "with --explicit, permit these kinds: reshard, cast, reduce, replicate, drop, " \
		  "cut; can be repeated" },                                                       \
	{                                                                                         \
		OPT_EXPLAIN, "print what is done to which tensors, why, and what it costs"        \
	}
#define EXPLICIT_SYNOPSIS "[--explicit [--allow=KINDS]...] [--explain]"
#define EXPLICIT_LINKS_SYNOPSIS EXPLICIT_SYNOPSIS " [--links=FILE|PRESET]"
#define EXPLICIT_LINKS_OPTION                                                                     \
	{                                                                                         \
		OPT_LINKS,                                                                        \
			"with --explicit or --explain: price in time, too, what ranks send each " \
			"other; " LINKS_FORM                                                      \
	}
/* The words of ckpt/plan/explicit.c. */
/* clang-format off */
#define EXPLICIT_ABOUT(verb) \
	"With --explicit, " verb " refuses every change that no option asks for. It lists all of " \
	"them, each with its tensor and its price in bytes; --allow permits them by kind. The " \
	"kinds, and what asks for them: reshard (ranks hold other elements than they did): a " \
	"--layout rule that matches the tensor. cast (it has another dtype): --dtype, or a cast " \
	"rule of --view. reduce (a pending reduction is carried out): a --layout rule that " \
	"matches the tensor. replicate (more ranks hold the same elements): --replicate with " \
	"that mesh dimension, or a --layout rule that matches the tensor and that can apply to " \
	"it. drop (the result does not have it): --only, a drop rule of --view, " \
	"--drop-unsupported, --keep-going. cut (it has no placements and is cut by default): a " \
	"--layout rule that matches the tensor. With --explain, " verb " prints what is done, in " \
	"groups of tensors that are alike, with the bytes that ranks hold and read, and how many " \
	"of these their rank did not hold. With --links both also print how long it takes the " \
	"ranks that held these bytes to send them to the ranks of the mesh, if nothing else is " \
	"sent."
/* clang-format on */
#endif
