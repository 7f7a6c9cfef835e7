/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.h - ckptctl as a library: the program's entry point, its table of verbs, and what a verb is
 * given to work with.
 *
 * A verb is one file (verb_NAME.c) and one line in the table of verbs.c. It works on struct
 * checkpoint, struct store_step and tables, never on the records of a format; it prints through
 * struct output only, so that text and JSON (and what comes later) are the same program; it returns
 * an exit code. Options live in one table (options.c): it drives parsing, -h, and whatever is
 * generated from it later.
 *
 * stdout carries data, stderr talk: errors, hints, progress. Nothing here exits the process.
 */
#ifndef CKPT_CLI_CLI_H
#define CKPT_CLI_CLI_H
#include "ckpt/output/output.h"
#include "ckpt/draw/screen.h"
#include "ckpt/io/io.h"
#include <signal.h>
#include <stdio.h>

#define CLI_VERSION CKPT_VERSION
#define CLI_GIVEN_MAX 64 /* options of one command line: more is a mistake in a script */

/* The whole program: argv as main() gets it (it may be permuted), data to out, talk to err.
 * Returns the exit code. Reads CKPTD_STORE, NO_COLOR, TERM, COLUMNS and the locale's name from
 * the environment. Not reentrant: getopt(3) is not. */
int cli_run(int argc, char **argv, FILE *out, FILE *err);

/* What the caller should do, not what went wrong: 2 fix the command, 4 use another checkpoint, 5
 * wait or fall back, 10 start fresh, ... */
enum cli_exit {
	CLI_OK = 0,
	CLI_FAILED = 1,
	CLI_USAGE = 2,
	CLI_WARNINGS = 3,
	CLI_CORRUPT = 4,
	CLI_UNCOMMITTED = 5,
	CLI_DIFFERS = 6,
	CLI_MISFIT = 7,
	CLI_NEWER = 8, /* written by another version: use that one, nothing is damaged */
	CLI_MISSING = 10,
	CLI_LOCKED = 11,
	CLI_PERMISSION = 12,
	CLI_NO_SPACE = 13,
	CLI_NO_DAEMON = 14,
	CLI_TIMEOUT = 15,
	CLI_TEMPORARY = 75,
	CLI_INTERRUPTED = 130,
	CLI_TERMINATED = 143,
};
/* A negative errno of any room; 0 for 0 and above. -ECANCELED: 130, or 143 after SIGTERM. */
int cli_exit(int rc);
/* What publish (io/publish.h) says of a file that an option names, for cli_exit: a
 * name that is taken is -EBUSY, a directory that does not exist -EINVAL. Others as they are. */
static inline int cli_new_file(int rc)
{
	return rc == -EEXIST ? -EBUSY : rc == -ENOENT ? -EINVAL : rc;
}

/* Signals so far that ask to stop (SIGINT, SIGTERM), and the last of them: main's handler counts.
 * Whatever takes long asks cli_stopped() and ends with -ECANCELED; progress_tick does. */
extern volatile sig_atomic_t cli_stops, cli_stop_signal;
/* SIGUSR1 has come: whatever shows progress says how far it is, and takes the flag back. */
extern volatile sig_atomic_t cli_asked;
static inline bool cli_stopped(void)
{
	return cli_stops > 0;
}

/* --- options --- */
enum cli_option_id {
	OPT_NONE, /* ends a verb's list */
	OPT_STORE,
	OPT_JSON,
	OPT_ASCII,
	OPT_COLOR,
	OPT_HELP,
	OPT_VERSION,
	OPT_QUIET,
	OPT_SOCKET,
	OPT_ALL,
	OPT_DATA,
	OPT_DATA_SUBSET,
	OPT_TENSORS,
	OPT_FILES,
	OPT_MAP,
	OPT_SVG,
	OPT_DEPTH,
	OPT_LAYOUTS,
	OPT_LINKS,
	OPT_LINKS_FILE,
	OPT_VALUES,
	OPT_NO_READ,
	OPT_SLICE,
	OPT_NPY,
	OPT_OUTPUT,
	OPT_STATS,
	OPT_MESH,
	OPT_LAYOUT,
	OPT_REPLICATE,
	OPT_VIEW,
	OPT_RANK,
	OPT_ONLY,
	OPT_DTYPE,
	OPT_AVERAGE,
	OPT_MEM_LIMIT,
	OPT_ROUND,
	OPT_WATCH,
	OPT_JOB,
	OPT_STATE,
	OPT_TIMEOUT,
	OPT_FINAL,
	OPT_WAIT,
	OPT_TO,
	OPT_JOB_SIZE,
	OPT_SHAPE,
	OPT_PLACEMENTS,
	OPT_MODE,
	OPT_SUMMARY,
	OPT_BATCH,
	OPT_DRY_RUN,
	OPT_YES,
	OPT_KEEP_LAST,
	OPT_KEEP_EVERY,
	OPT_KEEP_WITHIN,
	OPT_KEEP_BEST,
	OPT_LAST, /* as KEEP_LAST, of ckptctl keep */
	OPT_EVERY,
	OPT_WITHIN,
	OPT_BEST,
	OPT_FREE,
	OPT_BAD,
	OPT_SET_ASIDE,
	OPT_SET_ASIDE_FOR,
	OPT_UNFINISHED,
	OPT_BY,
	OPT_UNTIL,
	OPT_WHY,
	OPT_DELETE,
	OPT_ABANDONED,
	OPT_NO_MARK,
	OPT_KEEP_GOING,
	OPT_FROM_MEMORY,
	OPT_FROM,
	OPT_SORT,
	OPT_FIRST,
	OPT_TO_FORMAT,
	OPT_ONLY_GLOB,
	OPT_STEP,
	OPT_NEW_JOB,
	OPT_SHARD_SIZE,
	OPT_DROP_UNSUPPORTED,
	OPT_CHECK,
	OPT_STRIP,
	OPT_EXPLICIT,
	OPT_ALLOW,
	OPT_STEPS,
	OPT_ANY_DTYPE,
	OPT_EXPLAIN,
	OPT_TIED,
	OPT_COUNT,
};

/* What an argument is: completion offers what there is of it. */
enum cli_arg {
	ARG_NONE, /* nothing can be offered; ends a verb's list */
	ARG_CKPT,
	ARG_STEP, /* a step's number, latest */
	ARG_TENSOR,
	ARG_COMPONENT, /* what stands before the slash of its tensors */
	ARG_JOB,
	ARG_DIR,
	ARG_FILE,
	ARG_VERB,
	ARG_SHELL,
	ARG_TAG,  /* a tag that a step has */
	ARG_HOLD, /* a name that a step is held by */
	ARG_SORT, /* what ls sorts by */
};

struct cli_option {
	enum cli_option_id id;
	char letter;	    /* 0: none */
	const char *name;   /* without the dashes */
	const char *arg;    /* what the argument is called; NULL: takes none */
	const char *choice; /* "auto|always|never": the arguments there are; NULL: any */
	const char *help; /* global options; the others are described by the verb that takes them */
	bool global;	  /* taken before and after every verb */
	enum cli_arg kind; /* of its argument */
};
extern const struct cli_option cli_options[];
extern const uint32_t cli_option_count;
/* The arguments that help and completion name, "auto|always|never": its choice, or the formats that
 * can be read, or written. NULL: any. */
const char *cli_option_words(const struct cli_option *o);

/* --- verbs --- */
struct cli;

struct cli_verb_option {
	enum cli_option_id id;
	const char *help;
};
struct cli_example {
	const char *command, *what;
};
struct cli_verb {
	const char *name;
	const char *const *synonyms; /* other words for it, all lower case; NULL ends; NULL: none */
	const char *help;	     /* one line, without a full stop */
	const char *const *synopsis; /* what follows the name; NULL ends */
	const char *about;	     /* paragraphs, separated by '\n' */
	const struct cli_example *example;    /* ends with a NULL command */
	const struct cli_verb_option *option; /* of its own; ends with OPT_NONE; NULL: none */
	const char *exits;		      /* its exit codes in words */
	const enum cli_arg
		*args; /* ends with ARG_NONE; more arguments are of the last kind; NULL */
	uint32_t narg_max;
	int (*run)(struct cli *c); /* returns an exit code; begins and ends the document */
};
extern const struct cli_verb *const cli_verbs[]; /* in the order of -h; NULL ends */
extern const struct cli_verb verb_adopt, verb_cat, verb_completion, verb_convert, verb_diff,
	verb_doctor, verb_drain, verb_ema, verb_forget, verb_help, verb_hold, verb_keep,
	verb_layout, verb_ls, verb_man, verb_plan, verb_prune, verb_release, verb_repair,
	verb_export, verb_rewind, verb_rm, verb_show, verb_stats, verb_status, verb_tag,
	verb_trigger, verb_verify, verb_version, verb_wait;
/* By its name or by another word for it; NULL. */
const struct cli_verb *cli_verb_find(const char *word);
/* -EINVAL: there is no such verb; the sentence has the nearest one. */
int cli_verb_unknown(const char *word, struct ckpt_err *err);

/* What a verb gets. */
struct cli {
	const struct io_ops *ops;
	const struct cli_verb *verb;
	const char *word;	      /* what was typed for it: its name, or another word */
	const char *value[OPT_COUNT]; /* the argument; "" for an option without; NULL: not given */
	/* All that were given, in the order of the command line: of some, several count. */
	struct {
		enum cli_option_id id;
		const char *value;
	} given[CLI_GIVEN_MAX];
	uint32_t ngiven;
	uint32_t narg;
	char **arg;	   /* what is left besides options */
	const char *where; /* -C, else CKPTD_STORE, else ".": the default store or job directory */
	bool json, quiet;
	bool passed; /* "latest" passed over newer steps: 0 becomes CLI_WARNINGS */
	struct screen out_screen, err_screen;
	struct output *o;
	FILE *out, *err;
};

/* Parse one part of the command line. verb NULL: global options up to the first word that is
 * none. Returns the index of the first argument that is left (they are moved to the end), or
 * -EINVAL with the sentence. */
int cli_options_parse(struct cli *c, const struct cli_verb *verb, int argc, char **argv,
		      struct ckpt_err *err);

/* Is it an option of this verb, or of all? verb NULL: of all. */
bool cli_verb_takes(const struct cli_verb *verb, const struct cli_option *o);

/* "ckptctl", "ckptctl -h" and "ckptctl VERB -h". */
void cli_help_first(struct cli *c);
void cli_help(struct cli *c);
void cli_help_verb(struct cli *c, const struct cli_verb *verb);

/* Print a failure on stderr: the sentence in err (or strerror), then the next command where next
 * is not NULL. Returns the exit code of rc. */
int cli_fail(struct cli *c, int rc, const struct ckpt_err *err, const char *next, ...)
	__attribute__((format(printf, 4, 5)));
/* A name of a command to copy, as a shell takes it for one word: in single quotes where it has
 * blanks or what shells replace. Returns buf; what does not fit is cut. CLI_WORD: as BYTES_TEXT. */
char *cli_word(const char *name, char *buf, size_t bytes);
#define CLI_WORD_BYTES 5000u /* PATH_MAX, and some quotes */
#define CLI_WORD(name) cli_word(name, (char[CLI_WORD_BYTES]){ 0 }, CLI_WORD_BYTES)
/* The same for a command that is wrong: -EINVAL. next NULL: the verb's help. */
int cli_usage(struct cli *c, const char *next, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* A line on stderr for people: nothing with --json. */
void cli_hint(struct cli *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line of text between tables, on stdout: nothing with --json. */
void cli_say(struct cli *c, enum cell_style style, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* The same with a styled mark in front, continued behind `indent` blanks. */
void cli_mark(struct cli *c, enum cell_style style, const char *mark, uint32_t indent,
	      const char *fmt, ...) __attribute__((format(printf, 5, 6)));

/* Of two exit codes the one that matters more: corruption before everything, then permission, then
 * the rest as it came first, and warnings last. */
int cli_worse(int a, int b);
#endif
