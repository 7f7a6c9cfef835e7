/* SPDX-License-Identifier: Apache-2.0 */
/*
 * complete.c - candidates for the end of a command line. Called by ckptctl completion.
 * Invariant: silent on every error, and at most COMPLETE_MAX lines: a shell is waiting.
 */
#include "ckpt/cli/complete.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/manual.h"
#include "ckpt/table/shown.h"
#include "ckpt/cli/subject.h"
#include "ckpt/store/label.h"
#include "formats/registry/registry.h"
#include <limits.h>

#define WORD_BYTES (2 * CKPT_NAME_MAX + PATH_MAX)
#define JOBS_MAX 1000u

struct complete {
	FILE *f;
	const struct io_ops *ops;
	const char *where, *socket;
	const struct cli_verb *verb;
	const char *ckpt;   /* the first checkpoint on the line; NULL: none yet */
	const char *cur;    /* what is to be completed */
	const char *before; /* of it: "--map=", kept in every candidate */
	size_t before_len;
	uint32_t said;
	char dequoted[2][WORD_BYTES];
};

/* A candidate, if it begins like the word. Names come out of files: what would break the line, or
 * the terminal, is no candidate. */
static void offer_word(struct complete *x, const char *text, const char *what)
{
	if (strncmp(text, x->cur, strlen(x->cur)) || x->said >= COMPLETE_MAX)
		return;
	for (const char *p = text; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return;
	x->said++;
	fprintf(x->f, "%.*s%s", (int)x->before_len, x->before, text);
	if (what && *what)
		fprintf(x->f, "\t%s", what);
	fputc('\n', x->f);
}

/* The shells hand over what was typed: without its quotes, and ~ at its beginning being HOME. */
static const char *word_dequote(const char *word, char *buf)
{
	const char *home = getenv("HOME");
	size_t n = 0;

	if (word[0] == '~' && (word[1] == '/' || !word[1]) && home && strlen(home) < PATH_MAX) {
		n = strlen(strcpy(buf, home));
		word++;
	}
	for (; *word && n + 1 < WORD_BYTES; word++)
		if (*word == '\\' && word[1])
			buf[n++] = *++word;
		else if (*word != '"' && *word != '\'' && *word != '\\')
			buf[n++] = *word;
	buf[n] = 0;
	return buf;
}

/* --- from the tables --- */

static void offer_verbs(struct complete *x)
{
	for (const struct cli_verb *const *v = cli_verbs; *v; v++)
		offer_word(x, (*v)->name, (*v)->help);
}

static void offer_choices(struct complete *x, const char *choice)
{
	char word[64];

	while (choice && *choice) {
		size_t n = strcspn(choice, "|");

		snprintf(word, sizeof word, "%.*s", (int)n, choice);
		offer_word(x, word, NULL);
		choice += n + (choice[n] == '|');
	}
}

static void offer_option(struct complete *x, const struct cli_option *o, const char *help)
{
	char word[64], words[512];

	help = manual_option_help(o, help, words, sizeof words);
	snprintf(word, sizeof word, "--%s", o->name);
	offer_word(x, word, help);
	if (o->letter && !x->cur[1]) {
		snprintf(word, sizeof word, "-%c", o->letter);
		offer_word(x, word, help);
	}
}

static void offer_options(struct complete *x)
{
	for (const struct cli_verb_option *v = x->verb ? x->verb->option : NULL;
	     v && v->id != OPT_NONE; v++)
		if (manual_lists(v))
			offer_option(x, manual_option(v->id), v->help);
	for (uint32_t i = 0; i < cli_option_count; i++)
		if (cli_options[i].global)
			offer_option(x, &cli_options[i], cli_options[i].help);
}

/* --- from the store --- */

struct jobs {
	uint32_t n;
	struct {
		char name[CKPT_JOB_MAX + 1];
		char path[PATH_MAX];
	} * job;
};

static int job_add(void *arg, const char *name, int job_fd, const char *abs_path)
{
	struct jobs *j = arg;
	void *more = j->n < JOBS_MAX ? realloc(j->job, (j->n + 1) * sizeof *j->job) : NULL;

	(void)job_fd;
	if (!more)
		return -ENOMEM;
	j->job = more;
	snprintf(j->job[j->n].name, sizeof j->job->name, "%s", name);
	snprintf(j->job[j->n].path, sizeof j->job->path, "%s", abs_path);
	j->n++;
	return 0;
}

/* The daemon's job number i by a word that means it alone: STORE/NAME where two have its name. */
static void offer_live_job(struct complete *x, const struct wire_report *r, uint32_t i)
{
	const struct wire_report_job *j = &r->job[i];
	char word[sizeof j->name + sizeof j->store + 1], what[64];
	bool twice = false;

	for (uint32_t k = 0; k < r->head->njob; k++)
		twice |= k != i && !strcmp(r->job[k].name, j->name);
	snprintf(word, sizeof word, "%s%s%s", twice ? j->store : "", twice ? "/" : "", j->name);
	snprintf(what, sizeof what, "%u of %u ranks attached", j->attached, j->world);
	offer_word(x, word, what);
}

/* Those that the daemon knows; where none runs, those of the store. */
static void offer_jobs(struct complete *x)
{
	struct cli c = { .ops = x->ops, .where = x->where, .value[OPT_SOCKET] = x->socket };
	struct jobs j = { 0 };
	struct control k;

	if (!daemon_ask_open(&k, &c, 1,
			     NULL)) { /* the daemon has one second at most: the shell waits */
		if (!control_report(&k, NULL))
			for (uint32_t i = 0; i < k.report.head->njob; i++)
				offer_live_job(x, &k.report, i);
		control_close(&k);
		return;
	}
	if (!store_jobs(x->ops, x->where, job_add, &j, NULL) || j.n)
		for (uint32_t i = 0; i < j.n; i++)
			offer_word(x, j.job[i].name, NULL);
	free(j.job);
}

/* How steps are named: "step:30", as a bare number, or behind "JOB@" where jobs are several. */
struct steps {
	struct complete *x;
	const char *before; /* of the one job: "", "step:"; of several: NULL */
};

/* A word behind what says which job is meant. */
static void offer_address(struct steps *s, const char *job, const char *word, const char *what)
{
	char text[CKPT_JOB_MAX + STORE_LABEL_NAME_MAX + 16];

	snprintf(text, sizeof text, "%s%s%s", s->before ? "" : job, s->before ? "" : "@", word);
	offer_word(s->x, text, what);
}

static void offer_step(struct steps *s, const char *job, const struct store_step *e, bool latest)
{
	char word[32], what[256], size[HUMAN_BYTES], age[HUMAN_BYTES];

	human_bytes(e->bytes, size);
	human_age(e->wall_ns, wall_ns(), age);
	if (e->state == STORE_DAMAGED)
		snprintf(what, sizeof what, "DAMAGED");
	else if (e->state == STORE_QUARANTINED)
		snprintf(what, sizeof what, "QUARANTINED");
	else if (e->state == STORE_MISPLACED)
		snprintf(what, sizeof what, "MISPLACED");
	else if (e->state == STORE_NEWER)
		snprintf(what, sizeof what, "of a NEWER version");
	else if (e->state == STORE_OLDER)
		snprintf(what, sizeof what, "of an OLDER version");
	else
		snprintf(what, sizeof what, "%s%s, %s%s", strcmp(age, "now") ? age : "just now",
			 strcmp(age, "now") ? " ago" : "", size, latest ? ", the latest" : "");
	snprintf(word, sizeof word, "%s%llu", s->before ? s->before : "",
		 (unsigned long long)e->step);
	offer_address(s, job, word, what);
}

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct steps *s = arg;
	struct store store = subject_store(s->x->ops, job, job_fd);
	cleanup_free struct store_step *step = NULL;
	const struct store_step *latest;
	uint32_t n = 0;

	(void)abs_path;
	if (store_scan_latest(&store, false, 0, &step, &n, NULL))
		return 0;
	latest = store_latest(step, n, 0);
	offer_address(s, job, "latest", "the newest step");
	for (uint32_t i = 0; i < n && s->x->said < COMPLETE_MAX; i++)
		offer_step(s, job, &step[i],
			   &step[i] == latest && latest->state == STORE_COMMITTED);
	return 0;
}

/* --- what steps are called and held by --- */

struct names {
	struct complete *x;
	enum store_label_kind kind;
	const char *before; /* what stands in front of the name: "tag:" */
	bool job;	    /* and in front of that "JOB@" */
};

static int names_of(void *arg, const char *job, int job_fd, const char *abs_path)
{
	const struct names *s = arg;
	struct store store = subject_store(s->x->ops, job, job_fd);
	cleanup_free struct store_label *label = NULL;
	char word[CKPT_JOB_MAX + STORE_LABEL_NAME_MAX + 16], what[CKPT_JOB_MAX + 64];
	uint64_t now = wall_ns();
	uint32_t n = 0;

	(void)abs_path;
	if (store_labels(&store, &label, &n, NULL))
		return 0;
	for (uint32_t i = 0; i < n && s->x->said < COMPLETE_MAX; i++) {
		if (label[i].kind != s->kind || !store_label_counts(&label[i], now))
			continue;
		snprintf(word, sizeof word, "%s%s%s%s", s->job ? job : "", s->job ? "@" : "",
			 s->before, label[i].name);
		snprintf(what, sizeof what, "step %llu of %s", (unsigned long long)label[i].step,
			 job);
		offer_word(s->x, word, what);
	}
	return 0;
}

static void offer_names(struct complete *x, enum store_label_kind kind, const char *before,
			bool job)
{
	struct names s = { x, kind, before, job };

	store_jobs(x->ops, x->where, names_of, &s, NULL);
}

/* What ls sorts by: of notes those that the newest step of each job has. */
static int notes_of(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct complete *x = arg;
	struct store store = subject_store(x->ops, job, job_fd);
	cleanup_free struct store_step *step = NULL;
	uint32_t n = 0;

	(void)abs_path;
	if (store_scan(&store, false, &step, &n, NULL) == 0 && n)
		for (uint32_t i = 0; i < step[0].nnote; i++)
			offer_word(x, step[0].note[i].key, "a note");
	return 0;
}

static void offer_sorts(struct complete *x)
{
	offer_word(x, "step", "the highest first");
	offer_word(x, "age", "the newest first");
	offer_word(x, "size", "the largest first");
	store_jobs(x->ops, x->where, notes_of, x, NULL);
}

static int count_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	(void)job;
	(void)job_fd;
	(void)abs_path;
	++*(uint32_t *)arg;
	return 0;
}

static void offer_steps_below(struct complete *x, bool number)
{
	struct steps s = { .x = x, .before = number ? "" : "step:" };
	uint32_t njob = 0;

	if (store_jobs(x->ops, x->where, count_job, &njob, NULL) || !njob)
		return;
	if (njob > 1 || strchr(x->cur, '@'))
		s.before = NULL;
	store_jobs(x->ops, x->where, each_job, &s, NULL);
	offer_names(x, LABEL_TAG, "tag:", !s.before);
}

/* The addresses of checkpoint (ckpt/store/address.h), but paths: the shell knows those. */
static void offer_steps(struct complete *x, bool number)
{
	const char *cur = x->cur, *at = strrchr(cur, '@'), *where = x->where;
	cleanup_free char *path = NULL, *before = NULL;

	number |= *cur >= '0' && *cur <= '9';
	if (!at || !memchr(cur, '/', (size_t)(at - cur)) || x->before_len) {
		offer_steps_below(x, number);
		return;
	}
	path = strndup(cur, (size_t)(at - cur));
	before = strndup(cur, (size_t)(at - cur) + 1);
	if (!path || !before)
		return;
	x->where = path;
	x->before = before;
	x->before_len = strlen(before);
	x->cur = at + 1;
	offer_steps_below(x, true);
	x->where = where;
	x->before = "";
	x->before_len = 0;
	x->cur = cur;
}

static void offer_tensors(struct complete *x)
{
	const char *name = x->ckpt ? word_dequote(x->ckpt, x->dequoted[1]) : "latest";
	char full[2 * CKPT_NAME_MAX + 8], shape[256], what[320];
	uint64_t dims[CKPT_DIMS_MAX];
	struct subject s;

	if (!subject_find(&s, x->ops, x->where, name, NULL, NULL) &&
	    !subject_open(&s, NULL, NULL, NULL)) {
		const struct table *t = &s.ckpt->table;
		const char *last = "";

		for (uint32_t i = 0; i < t->ntensor && x->said < COMPLETE_MAX; i++) {
			const struct table_tensor *e = &t->tensor[i];
			bool again = !strcmp(e->name, last);

			last = e->name;
			if (again && i && !strcmp(e->component, t->tensor[i - 1].component))
				continue; /* a blob of each rank */
			snprintf(full, sizeof full, "%s/%s", e->component, e->name);
			human_shape(e->ndim, shown_shape(e, dims), shape, sizeof shape);
			snprintf(what, sizeof what, "%s %s", dtype_name(e->dtype), shape);
			offer_word(x, full, what);
			/* A name without its component is understood too: for what is typed
			 * one. */
			if (*x->cur && strncmp(full, x->cur, strlen(x->cur)))
				offer_word(x, e->name, what);
		}
	}
	subject_close(&s);
}

static void offer_components(struct complete *x)
{
	const char *name = x->ckpt ? word_dequote(x->ckpt, x->dequoted[1]) : "latest";
	struct subject s;

	if (!subject_find(&s, x->ops, x->where, name, NULL, NULL) &&
	    !subject_open(&s, NULL, NULL, NULL)) {
		const struct table *t = &s.ckpt->table;

		for (uint32_t i = 0; i < t->ntensor; i++) {
			bool known = false;

			for (uint32_t j = i; j-- > 0 && !known;)
				known = !strcmp(t->tensor[j].component, t->tensor[i].component);
			if (!known)
				offer_word(x, t->tensor[i].component, NULL);
		}
	}
	subject_close(&s);
}

/* --- what is wanted --- */

static void offer_kind(struct complete *x, enum cli_arg kind)
{
	switch (kind) {
	case ARG_NONE:
		break;
	case ARG_CKPT:
		offer_steps(x, false);
		fputs(":dir\n", x->f);
		break;
	case ARG_STEP:
		offer_steps(x, true);
		break;
	case ARG_TENSOR:
		offer_tensors(x);
		break;
	case ARG_COMPONENT:
		offer_components(x);
		break;
	case ARG_JOB:
		offer_jobs(x);
		break;
	case ARG_DIR:
		fputs(":dir\n", x->f);
		break;
	case ARG_FILE:
		fputs(":file\n", x->f);
		break;
	case ARG_VERB:
		offer_verbs(x);
		break;
	case ARG_SHELL:
		offer_choices(x, complete_shells);
		break;
	case ARG_TAG:
		offer_names(x, LABEL_TAG, "", false);
		break;
	case ARG_HOLD:
		offer_names(x, LABEL_HOLD, "", false);
		break;
	case ARG_SORT:
		offer_sorts(x);
		break;
	}
}

/* Of the verb's argument number n. More arguments than kinds are of the last kind. */
static enum cli_arg kind_of(const struct cli_verb *verb, uint32_t n)
{
	const enum cli_arg *k = verb->args;

	if (!k || n >= verb->narg_max)
		return ARG_NONE;
	while (n-- && k[0] != ARG_NONE && k[1] != ARG_NONE)
		k++;
	return *k;
}

/* The option that word is, and where its argument begins inside word; NULL: is the next word. */
static const struct cli_option *option_in(const struct complete *x, const char *word,
					  const char **ret_arg)
{
	*ret_arg = NULL;
	for (uint32_t i = 0; i < cli_option_count; i++) {
		const struct cli_option *o = &cli_options[i];
		size_t n = strlen(o->name);

		if (!strncmp(word, "--", 2) && !strncmp(word + 2, o->name, n) &&
		    (!word[2 + n] || word[2 + n] == '=')) {
			*ret_arg = word[2 + n] ? word + 3 + n : NULL;
			return o;
		}
		if (o->letter && word[0] == '-' && word[1] == o->letter &&
		    cli_verb_takes(x->verb, o)) {
			*ret_arg = word[2] ? word + 2 : NULL;
			return o;
		}
	}
	return NULL;
}

static void offer_argument(struct complete *x, const struct cli_option *o)
{
	if (cli_option_words(o))
		offer_choices(x, cli_option_words(o));
	else
		offer_kind(x, o->kind);
}

void complete_words(FILE *f, const struct io_ops *ops, const char *where, uint32_t nword,
		    char *const *word)
{
	struct complete *x = calloc(1, sizeof *x);
	const struct cli_option *pending = NULL;
	cleanup_free char *store = NULL, *socket = NULL;
	uint32_t narg = 0;
	bool only_args = false;
	const char *arg;

	if (!x || !nword)
		goto out;
	*x = (struct complete){ .f = f, .ops = ops, .where = where, .before = "" };
	for (uint32_t i = 0; i + 1 < nword; i++) {
		const struct cli_option *o = NULL;
		const char *value = NULL;

		if (pending) {
			value = word[i];
			o = TAKE(pending);
		} else if (!only_args && !strcmp(word[i], "--")) {
			only_args = true;
		} else if (!only_args && word[i][0] == '-' && word[i][1]) {
			o = option_in(x, word[i], &value);
			if (o && o->arg && !value)
				pending = o;
		} else if (!x->verb) {
			x->verb = cli_verb_find(word[i]);
			if (!x->verb)
				goto out;
		} else if (kind_of(x->verb, narg++) == ARG_CKPT && !x->ckpt) {
			x->ckpt = word[i];
		}
		if (o && o->id == OPT_STORE && value) {
			free(store);
			store = strdup(word_dequote(value, x->dequoted[0]));
			x->where = store ? store : where;
		}
		if (o && o->id == OPT_SOCKET && value) {
			free(socket);
			x->socket = socket = strdup(word_dequote(value, x->dequoted[0]));
		}
	}
	x->cur = word_dequote(word[nword - 1], x->dequoted[0]);
	if (pending) {
		offer_argument(x, pending);
	} else if (!only_args && x->cur[0] == '-') {
		const struct cli_option *o = option_in(x, x->cur, &arg);

		if (o && o->arg && arg && x->cur[1] == '-') {
			x->before = x->cur;
			x->before_len = (size_t)(arg - x->cur);
			x->cur = arg;
			offer_argument(x, o);
		} else {
			offer_options(x);
		}
	} else if (!x->verb) {
		offer_verbs(x);
	} else {
		offer_kind(x, kind_of(x->verb, narg));
	}
out:
	free(x);
}
