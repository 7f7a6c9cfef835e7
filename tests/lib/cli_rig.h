/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli_rig.h - for the tests of ckptctl's verbs: stores that are made of the sample model, the
 * command run in this process through cli_run, and what it shows to a person, held by the files of
 * tests/golden.
 */
#ifndef TESTS_LIB_CLI_RIG_H
#define TESTS_LIB_CLI_RIG_H
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <jansson.h>
#include <pty.h>
#include "ckpt/base/dtype.h"
#include "ckpt/cli/cli.h"
#include "ckpt/move/move.h"
#include "ckpt/store/label.h"
#include "ckpt/store/store.h"
#include "tests/lib/scratch.h"
#include "tests/lib/sample.h"
#include "tests/lib/says.h"
#include "tests/lib/unit.h"

#define SEED 7
#define RANKS_MAX 8
#define WALL_NS (UINT64_C(1700000000) * NS_PER_S) /* of step 0; a step is a second later */
#define RIG_NOW_NS (WALL_NS + 3600 * NS_PER_S)	  /* what every clock on a wall shows */

/* Everything lies below top. work is a store: job alpha with the steps 10, 20 and 30 (fsdp=4), job
 * beta with step 25 (dp=2,fsdp=2). */
extern char top[SCRATCH_MAX], work[PATH_MAX];
/* For UNIT: top with work, top without it, and the end of both. */
int make_all(void **state);
int make_top(void **state);
int drop_all(void **state);

/* --- files --- */

/* The next 63 calls leave it as it is. */
const char *path_of(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* A path below top that stays what it is. */
char *place(const char *name);
bool exists(const char *path);
uint32_t entries(const char *dir);
void spill(const char *path, const char *text); /* makes or replaces a file */
char *slurp(const char *path);			/* for as long as the process lives */
void flip(const char *path, int64_t at);	/* a bit of this byte; < 0: from the end */
void remove_tree(const char *path);
void copy_file(const char *from, const char *to);
void copy_step(const char *from, const char *to);
bool same_files(const char *a,
		const char *b); /* of two directories, byte by byte; hidden ones do not count */
/* Where the tests run as root: another user, or root again. Else nothing. */
void become_nobody(bool yes);
bool only_root(void); /* else it says why it skips */
/* Readable by everybody: top and all in this directory. */
void open_to_all(const char *dir);
void give_away(const char *tree); /* it becomes nobody's */

/* --- stores --- */

/* Without fsync(2): what a test makes need not survive a power loss. */
const struct io_ops *quick_ops(void);

struct how {
	const char *job, *mesh;
	uint64_t step, seq, parent, rewind; /* UINT64_MAX: none */
	bool leave;			    /* do not commit: it stays collecting */
};
void make_step(const char *root, const struct how *h);
/* Where it is set, the ranks of make_step declare what it leaves of the sample's table. */
extern void (*declare)(struct table *decl);
/* Leaves only what is in the table. */
void declare_some(struct table *t, bool (*is)(const struct table *, const struct table_tensor *));
void declare_plain(struct table *t); /* what safetensors has: no complex numbers of 16 bytes */
/* Where it is set, the parts say what it makes of their tables; what they hold stays. */
extern void (*lie)(struct table *part);
extern uint64_t rig_scale; /* of the sample: 1 */
extern double rig_loss;	   /* the note of the steps that are made: 2.5 */

/* ROOT/JOB with the steps 10, 20, ..., 10 * n, two ranks each, whose tensors are not the sample's.
 * Returns the job's directory. */
const char *line(const char *root, const char *job, uint64_t n);
const char *step_path(const char *job, uint64_t step);
bool there(const char *job, uint64_t step);
const char *part(const char *step, uint32_t n); /* a part file of a step directory, by its name */
/* What a reader does. The caller closes the descriptor. */
int reading(const char *job, uint64_t step);

#define MADE_BLOB(media) (0x100u + (media))
/* A checkpoint of one rank with tensors that the test makes up, values included. */
struct made {
	const char *component, *name;
	uint32_t dtype, ndim;
	uint64_t shape[4];
	const void *bytes; /* row-major */
	uint32_t role;	   /* 0: OTHER; or MADE_BLOB(media) */
};
/* A committed step of a job below root, which is made if need be. The job has no other step before
 * it. Returns its path. */
const char *make_made(const char *root, const char *job, uint64_t step, const struct made *made,
		      uint32_t n);

/* --- running the command --- */

extern struct got {
	int code;
	char *out, *err;
	size_t out_len, err_len;
} got;

void run_argv(int argc, char **argv);
int run(const char *word, ...) __attribute__((sentinel)); /* words up to a NULL */
#define RUN(...) run(__VA_ARGS__, NULL)
/* "dp,fsdp" of "dp=2,fsdp=3", for --replicate. Valid until it is called again. */
const char *dims_of(const char *mesh);
/* It must end with this code. */
#define RUN_IS(code, ...) exit_is(RUN(__VA_ARGS__), code, __FILE__, __LINE__)
void exit_is(int have, int want, const char *file, int line);
/* The verb alone, with a table of system calls. options: which have what arguments, up to
 * OPT_NONE. */
struct verb_option {
	enum cli_option_id id;
	const char *value;
};
int run_verb(const struct io_ops *ops, const struct cli_verb *verb, const char *const *arg,
	     const struct verb_option *option);

/*
 * The command as a person sees it, on a terminal of 80 columns without colour that knows ASCII
 * only. What appears is compared with the next entry of tests/golden/VERB/CASE.txt; `make golden`
 * writes these files, which are to be read as a diff. The wall's clock stands at RIG_NOW_NS, the
 * clock of progress stands too, and top is called /data/training; what differs by run has one
 * spelling (masked in cli_rig.c). Of a long text the middle is left out.
 */
int shown(const char *test, const char *typed, const char *word, ...) __attribute__((sentinel));
#define SHOWN(...) shown(__func__, NULL, __VA_ARGS__, NULL)
#define SHOWN_IS(code, ...) exit_is(SHOWN(__VA_ARGS__), code, __FILE__, __LINE__)
/* And `typed` has been typed. */
#define TYPED_IS(code, typed, ...) \
	exit_is(shown(__func__, typed, __VA_ARGS__, NULL), code, __FILE__, __LINE__)
/* The same, but what appears is in got.out, whatever it is, colours included. */
int at_terminal(const char *typed, const char *word, ...) __attribute__((sentinel));
#define TERMINAL(...) at_terminal(NULL, __VA_ARGS__, NULL)
/* How SHOWN's paths get short: what realpath(3) of the program begins with while it is set. */
extern const char *rig_here;
#define RIG_HERE "/proc/self/cwd"

/* No line of it is wider. Colours take no column; a path is as long as it is. */
void assert_narrow(const char *text, uint32_t width);

/* --- JSON --- */

/* The document on stdout: of lines the last, the summary. */
json_t *json_out(const char *schema);
/* The same of a run that must succeed; the rig frees it, some runs later or at the end. */
#define json_run(schema, ...)                \
	({                                   \
		RUN_IS(0, __VA_ARGS__);      \
		json_kept(json_out(schema)); \
	})
json_t *json_kept(json_t *j);
/* The one line of stderr is an error object with this code. */
void assert_json_error(int code);
const json_t *member(const json_t *j, const char *key, json_type type);
uint64_t number(const json_t *j, const char *key);
double real(const json_t *j, const char *key);
const char *string(const json_t *j, const char *key);
size_t count(const json_t *j, const char *list);
json_t *item(const json_t *j, const char *list, size_t i);
/* It has these values: JSON with ' for ". An object must have the members that are named, a list
 * exactly the items. */
void assert_json_has(const json_t *have, const char *text);
/* The command ended with this code, and its document has these values. */
void assert_json(int code, const char *schema, const char *text);

/* The numbers of the committed steps, newest first: "30 20 10 ". */
const char *steps_of(const char *job);
/* The one entry of a list whose step that is. */
json_t *of_step(json_t *list, uint64_t step);
/* The entry of a step in ls --all --json. The caller drops *ret_doc. */
json_t *listed(const char *job, uint64_t step, json_t **ret_doc);

/* All of a file, with a 0 behind; to be freed. */
char *file_bytes(const char *path, size_t *ret_len);
#endif
