/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_ls.c - ckptctl ls: the checkpoints of a store, newest first, and what the daemon holds of
 * its jobs in memory. Reads one small file per step.
 * Invariant: the order inside a job is the store's (lineage), whatever the clocks said, unless
 * --sort asks for another; jobs are merged by the time of their newest step. The daemon's absence
 * or silence is no error, and costs a second at most.
 */
#include "ckpt/base/container.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/leftovers.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/policy_show.h"
#include "ckpt/cli/subject.h"
#include "formats/registry/registry.h"

#define NOTE_NAME 18 /* characters of a name that a table of 80 columns has room for */

/* A line of the list: a step of the store, or one that is only in memory. */
struct ls_row {
	const struct ls_job *job;
	const struct store_step *step;
	const struct wire_report_step *memory; /* NULL: it is not in memory */
	bool on_disk;
	uint32_t number; /* in the order without --sort */
};

struct ls_job {
	char job[CKPT_JOB_MAX + 1];
	char *path;
	struct store_step *step;
	struct store_label *label;
	uint32_t n, nlabel, at, nrow;
	struct ls_row *row;
	struct store_step *staged; /* [..] for the steps that are only in memory */
	uint32_t latest;	   /* "latest" among step[]; UINT32_MAX: there is none */
	/* what was set aside: how much, and which of it can be gone back to */
	uint32_t naside;
	uint64_t aside_bytes;
	struct store_step aside; /* dir "": none can */
	bool aside_alone;	 /* no other step has its number */
	struct store_policy policy;
};

struct ls {
	struct cli *c;
	struct ls_job *job;
	uint32_t njob, cap;
	uint32_t listed; /* that are committed */
	uint32_t damaged, quarantined, misplaced, newer, older;
	uint64_t bytes, now_ns;
	int code;
	struct control k;   /* with a report while a daemon answers */
	struct ls_row *row; /* of all jobs, as they are listed */
	uint32_t nrow, nshown;
	struct file_links links; /* of all jobs: parts that have several names */
	uint64_t repeated;	 /* of bytes: counted before, for another step */
	bool passes;		 /* latest of a job passes over newer steps */
	bool any_memory;	 /* a step is in memory and not in the store */
	const char *note;	 /* the note that has a column; NULL: none */
};

enum {
	COL_JOB,
	COL_STEP,
	COL_STATE,
	COL_AGE,
	COL_BYTES,
	COL_SHARED,
	COL_MESH,
	COL_WORLD,
	COL_VALUE,
	COL_PARENT,
	COL_NOTE,
	COL_ASIDE_AT,
	COL_PATH,
	COL_SEQ,
	COL_CREATED_NS,
	COL_GENERATION,
	COL_ID,
	COL_FORMAT,
	COL_WHY,
	COL_OWN,
	COL_IN_MEMORY,
	COL_ON_DISK,
	COL_COUNT,
};

static const struct column columns[COL_COUNT] = {
	[COL_JOB] = { "job", "JOB", false, FIT_LAST },
	[COL_STEP] = { "step", "STEP", true, FIT_WHOLE },
	[COL_STATE] = { "state", "STATE", false, FIT_WHOLE },
	[COL_AGE] = { "created", "AGE", true, FIT_WHOLE },
	[COL_BYTES] = { "bytes", "SIZE", true, FIT_WHOLE },
	[COL_SHARED] = { "shared_bytes", NULL, true, FIT_WHOLE }, /* head: where any step shares */
	[COL_MESH] = { "mesh", "MESH", false, FIT_LAST },
	[COL_WORLD] = { "world_size", "RANKS", true, FIT_WHOLE },
	[COL_VALUE] = { NULL, NULL, true, FIT_DROP }, /* head: the note that is shown */
	[COL_PARENT] = { "parent", "PARENT", true, FIT_DROP },
	[COL_NOTE] = { NULL, "NOTE", false, FIT_WRAP },
	[COL_ASIDE_AT] = { "aside_at", NULL, false, FIT_WHOLE },
	[COL_PATH] = { "path", NULL, false, FIT_WHOLE },
	[COL_SEQ] = { "seq", NULL, false, FIT_WHOLE },
	[COL_CREATED_NS] = { "created_ns", NULL, false, FIT_WHOLE },
	[COL_GENERATION] = { "generation", NULL, false, FIT_WHOLE },
	[COL_ID] = { "id", NULL, false, FIT_WHOLE },
	[COL_FORMAT] = { "format", NULL, false, FIT_WHOLE },
	[COL_WHY] = { "why", NULL, false, FIT_WHOLE },
	[COL_OWN] = { "own_bytes", NULL, false, FIT_WHOLE },
	[COL_IN_MEMORY] = { "in_memory", NULL, false, FIT_WHOLE },
	[COL_ON_DISK] = { "on_disk", NULL, false, FIT_WHOLE },
};

static enum cell_style state_style(enum store_state state)
{
	switch (state) {
	case STORE_COMMITTED:
		return STYLE_GOOD;
	case STORE_COLLECTING:
		return STYLE_WARN;
	case STORE_SET_ASIDE:
		return STYLE_DIM;
	case STORE_DAMAGED:
	case STORE_QUARANTINED:
	case STORE_MISPLACED:
	case STORE_NEWER:
	case STORE_OLDER:
		return STYLE_BAD;
	}
	return STYLE_PLAIN;
}

static int job_add(struct ls *l, const struct ls_job *add, const char *job, const char *path)
{
	struct ls_job *j;

	if (!ARRAY_GROW(l->job, l->njob, l->cap))
		return -ENOMEM;
	j = &l->job[l->njob];
	*j = *add;
	j->path = strdup(path);
	if (!j->path)
		return -ENOMEM;
	snprintf(j->job, sizeof j->job, "%s", job);
	l->njob++;
	return 0;
}

static bool is_bad(const struct ls_job *j, const struct store_step *st)
{
	for (uint32_t i = 0; i < j->nlabel; i++)
		if (j->label[i].kind == LABEL_BAD && store_label_is(&j->label[i], st))
			return true;
	return false;
}

/* The highest of those that were set aside and can be loaded, the newest of equal ones. */
static void aside_find(struct ls_job *j)
{
	uint32_t same = 0;

	for (uint32_t i = 0; i < j->n; i++) {
		const struct store_step *st = &j->step[i];

		if (st->state != STORE_SET_ASIDE)
			continue;
		j->naside++;
		if (!st->code && !is_bad(j, st) && (!j->aside.dir[0] || st->step > j->aside.step))
			j->aside = *st;
	}
	for (uint32_t i = 0; i < j->n; i++)
		same += j->step[i].state != STORE_COLLECTING && j->step[i].step == j->aside.step;
	j->aside_alone = same == 1;
}

/* Each file once: those of the line, then what steps set aside have besides. */
static void bytes_count(struct ls *l, struct ls_job *j)
{
	for (uint32_t i = 0; i < j->n; i++) {
		const struct store_step *st = &j->step[i];
		uint64_t again;

		if (st->state != STORE_COMMITTED)
			continue;
		again = MIN(file_links_repeated(&l->links, st->link_first, st->nlink), st->bytes);
		l->bytes += st->bytes - again;
		l->repeated += again;
	}
	for (uint32_t i = 0; i < j->n; i++) {
		const struct store_step *st = &j->step[i];

		if (st->state == STORE_SET_ASIDE)
			j->aside_bytes +=
				st->bytes -
				MIN(file_links_repeated(&l->links, st->link_first, st->nlink),
				    st->bytes);
	}
}

/* Would latest stand here if it were sound? */
static bool is_passed(const struct store_step *st)
{
	return st->state == STORE_DAMAGED || st->state == STORE_QUARANTINED ||
	       st->state == STORE_MISPLACED;
}

/* Without --all the line is kept: what is committed, and what is damaged or quarantined. */
static void line_keep(struct ls *l, struct ls_job *j)
{
	struct store_step *step = j->step;
	const struct store_step *latest = store_latest(step, j->n, 0);
	uint32_t kept = 0;

	aside_find(j);
	bytes_count(l, j);
	j->latest = UINT32_MAX;
	for (uint32_t i = 0; i < j->n; i++) {
		bool aside = step[i].state == STORE_SET_ASIDE || step[i].state == STORE_COLLECTING;

		if (&step[i] == latest && latest->state == STORE_COMMITTED)
			j->latest = kept;
		l->passes |= j->latest == UINT32_MAX && is_passed(&step[i]);
		l->damaged += step[i].state == STORE_DAMAGED;
		l->quarantined += step[i].state == STORE_QUARANTINED;
		l->misplaced += step[i].state == STORE_MISPLACED;
		l->newer += step[i].state == STORE_NEWER;
		l->older += step[i].state == STORE_OLDER;
		if (!aside || l->c->value[OPT_ALL])
			step[kept++] = step[i];
	}
	j->n = kept;
}

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct ls *l = arg;
	struct store s = subject_store(l->c->ops, job, job_fd);
	struct ls_job j = { 0 };
	struct ckpt_err err = { 0 };
	char home[CKPT_JOB_MAX + 1];
	int rc;

	rc = store_scan_parts(&s, true, &l->links, &j.step, &j.n, &err);
	if (rc) {
		/* The other jobs are still worth listing. */
		l->code = cli_worse(l->code, cli_fail(l->c, rc, &err, NULL));
		return 0;
	}
	/* And the steps, where what was said about them cannot be read. */
	rc = store_labels(&s, &j.label, &j.nlabel, &err);
	if (rc) {
		ckpt_error_prefix(&err, rc, "holds, tags and other labels of %s are not shown",
				  job);
		l->code = cli_worse(l->code, cli_fail(l->c, rc, &err, NULL));
	}
	if (!store_home(&s, home, NULL) && strcmp(home, job))
		cli_hint(l->c,
			 "%s holds the steps of job %s: it was renamed or copied; ckptctl adopt %s "
			 "makes it job %s's",
			 abs_path, home, abs_path, job);
	store_policy_read(&s, &j.policy);
	line_keep(l, &j);
	rc = job_add(l, &j, job, abs_path);
	if (rc) {
		free(j.step);
		free(j.label);
	}
	return rc;
}

/* --- what is in memory --- */

/* Silence is no error: without a daemon there is nothing in memory, and a stopped one is not waited
 * for. */
static void ask_daemon(struct ls *l)
{
	if (!l->njob || daemon_ask_open(&l->k, l->c, 1, NULL))
		return;
	if (control_report(&l->k, NULL))
		control_close(&l->k);
}

static uint32_t served_as(const struct ls *l, const struct ls_job *j)
{
	return daemon_ask_serves(&l->k, j->path);
}

static bool is_same(const struct ls_row *x, const struct wire_report_step *m)
{
	return x->on_disk && x->step->step == m->step && x->step->generation == m->generation;
}

/* Is the step of the line that is in memory newer than this one? */
static bool is_newer(const struct wire_report_step *m, const struct store_step *x)
{
	return m->generation != x->generation ? m->generation > x->generation : m->step > x->step;
}

static void row_insert(struct ls_job *j, uint32_t at, const struct ls_row *x)
{
	memmove(&j->row[at + 1], &j->row[at], (j->nrow - at) * sizeof *j->row);
	j->row[at] = *x;
	j->nrow++;
}

/* A step that is in memory: with the store's, or a row of its own before those it is newer than. */
static void row_memory(struct ls *l, struct ls_job *j, const struct wire_report_step *m,
		       uint32_t world, struct store_step *room)
{
	uint32_t at = 0;

	for (uint32_t i = 0; i < j->nrow; i++)
		if (is_same(&j->row[i], m)) {
			j->row[i].memory = m;
			return;
		}
	if (l->c->o->machine)
		return; /* programs have a list of their own: put_staged */
	while (at < j->nrow && !is_newer(m, j->row[at].step))
		at++;
	*room = (struct store_step){ .step = m->step,
				     .generation = m->generation,
				     .wall_ns = control_wall(&l->k.report, m->mark_ns),
				     .bytes = m->total,
				     .world = world,
				     .parent_step = UINT64_MAX,
				     .state = STORE_COLLECTING };
	row_insert(j, at, &(struct ls_row){ .job = j, .step = room, .memory = m });
	l->any_memory = true;
}

static int job_rows(struct ls *l, struct ls_job *j)
{
	const struct wire_report *r = &l->k.report;
	uint32_t job = served_as(l, j), n = 0;

	for (uint32_t i = 0; job != UINT32_MAX && i < r->head->nstep; i++)
		n += r->step[i].job == job && control_is_staged(&r->step[i]);
	j->row = calloc((size_t)j->n + n + 1, sizeof *j->row);
	j->staged = calloc((size_t)n + 1, sizeof *j->staged);
	if (!j->row || !j->staged)
		return -ENOMEM;
	for (uint32_t i = 0; i < j->n; i++) {
		j->row[j->nrow++] =
			(struct ls_row){ .job = j, .step = &j->step[i], .on_disk = true };
		l->listed += j->step[i].state == STORE_COMMITTED;
	}
	for (uint32_t i = 0; n && i < r->head->nstep; i++)
		if (r->step[i].job == job && control_is_staged(&r->step[i]))
			row_memory(l, j, &r->step[i], r->job[job].world, &j->staged[--n]);
	return 0;
}

/* --- in which order --- */

/* The job whose next step is the newest; what is being collected has no time yet, and is newer
 * than all. */
static struct ls_job *job_newest(struct ls *l)
{
	struct ls_job *best = NULL;
	uint64_t when = 0;

	for (uint32_t i = 0; i < l->njob; i++) {
		struct ls_job *j = &l->job[i];
		uint64_t w;

		if (j->at == j->nrow)
			continue;
		w = j->row[j->at].step->wall_ns ? j->row[j->at].step->wall_ns : UINT64_MAX;
		if (!best || w > when) {
			best = j;
			when = w;
		}
	}
	return best;
}

static int rows_make(struct ls *l)
{
	uint32_t n = 0;
	struct ls_job *j;

	for (uint32_t i = 0; i < l->njob; i++) {
		if (job_rows(l, &l->job[i]))
			return -ENOMEM;
		n += l->job[i].nrow;
	}
	l->row = calloc((size_t)n + 1, sizeof *l->row);
	if (!l->row)
		return -ENOMEM;
	while ((j = job_newest(l))) {
		l->row[l->nrow] = j->row[j->at++];
		l->row[l->nrow].number = l->nrow;
		l->nrow++;
	}
	l->nshown = l->nrow;
	return 0;
}

static const struct ckpt_note *note_of(const struct store_step *x, const char *key)
{
	for (uint32_t i = 0; i < x->nnote; i++)
		if (!strcmp(x->note[i].key, key))
			return &x->note[i];
	return NULL;
}

static bool any_note(const struct ls *l, const char *key)
{
	for (uint32_t i = 0; i < l->nrow; i++)
		if (note_of(l->row[i].step, key))
			return true;
	return false;
}

enum sort_by { SORT_STEP, SORT_AGE, SORT_SIZE, SORT_NOTE };
struct sorting {
	enum sort_by by;
	bool back; /* from the other end */
	const char *note;
};

/* What is sorted by; false: the row has none of it, and stands last. */
static bool sort_value(const struct sorting *s, const struct ls_row *x, double *ret)
{
	const struct ckpt_note *note;

	switch (s->by) {
	case SORT_STEP:
		*ret = -(double)x->step->step;
		return true;
	case SORT_AGE:
		*ret = -(double)x->step->wall_ns;
		return x->step->wall_ns != 0;
	case SORT_SIZE:
		*ret = -(double)x->step->bytes;
		return true;
	case SORT_NOTE:
		note = note_of(x->step, s->note);
		*ret = note ? note->value : 0;
		return note && note->value == note->value; /* a NaN is no number to be sorted by */
	}
	return false;
}

static int row_compare(const void *va, const void *vb, void *arg)
{
	const struct ls_row *a = va, *b = vb;
	const struct sorting *s = arg;
	double x = 0, y = 0;
	bool has_x = sort_value(s, a, &x), has_y = sort_value(s, b, &y);

	if (has_x != has_y)
		return has_x ? -1 : 1;
	if (has_x && x != y)
		return (x < y) != s->back ? -1 : 1;
	return (a->number > b->number) - (a->number < b->number);
}

/* "step, age, size, loss, lr": what these rows can be sorted by. */
static void say_keys(const struct ls *l, char *buf, size_t bytes)
{
	size_t n = (size_t)snprintf(buf, bytes, "step, age, size");

	for (uint32_t i = 0; i < l->nrow; i++)
		for (uint32_t k = 0; k < l->row[i].step->nnote; k++) {
			const char *key = l->row[i].step->note[k].key;
			bool said = false;

			for (uint32_t before = 0; before < i && !said; before++)
				said = note_of(l->row[before].step, key);
			if (!said && n < bytes)
				n += (size_t)snprintf(buf + n, bytes - n, ", %.60s", key);
		}
}

static int sort_rows(struct ls *l, struct ckpt_err *err)
{
	static const char *const fixed[] = { "step", "age", "size" };
	const char *key = l->c->value[OPT_SORT];
	struct sorting s = { .by = SORT_NOTE };
	char keys[512];

	if (!key)
		return 0;
	s.back = *key == '-';
	s.note = key + s.back;
	for (uint32_t i = 0; i < ARRAY_LEN(fixed); i++)
		if (!strcmp(s.note, fixed[i]))
			s.by = (enum sort_by)i;
	if (s.by == SORT_NOTE && l->nrow && !any_note(l, s.note)) {
		say_keys(l, keys, sizeof keys);
		return ckpt_error(err, -EINVAL,
				  "--sort %.60s: no checkpoint here has such a note; there is %s",
				  key, keys);
	}
	if (s.by == SORT_NOTE && l->nrow)
		l->note = s.note;
	qsort_r(l->row, l->nrow, sizeof *l->row, row_compare, &s);
	return 0;
}

static int take_count(struct ls *l, struct ckpt_err *err)
{
	const char *s = l->c->value[OPT_FIRST];
	unsigned long n;
	char *end;

	if (!s)
		return 0;
	errno = 0;
	n = strtoul(s, &end, 10);
	if (*s < '0' || *s > '9' || *end || !n)
		return ckpt_error(err, -EINVAL, "-n %.60s is no count: write a number from 1 on",
				  s);
	if (!errno && n < l->nrow)
		l->nshown = (uint32_t)n;
	return 0;
}

/* --- the list --- */

static void put_notes(struct output *o, const struct store_step *x)
{
	output_object(o, "notes");
	for (uint32_t i = 0; i < x->nnote; i++)
		output_put(o, &(struct column){ x->note[i].key, NULL, false, FIT_WHOLE },
			   cell_real(x->note[i].value));
	output_close(o);
}

/* What stands about the row under NOTE. */
static void note_print(const struct ls *l, const struct ls_row *row, char *buf, size_t bytes)
{
	const struct ls_job *j = row->job;
	const char *more = NULL;
	size_t n;

	*buf = 0;
	if (row->on_disk)
		store_label_sentence(row->step, j->label, j->nlabel, l->now_ns,
				     j->latest < j->n && row->step == &j->step[j->latest],
				     NOTE_NAME, buf, bytes);
	if (!row->memory)
		return;
	if (row->on_disk)
		more = "in memory too";
	else if (row->memory->state == WIRE_FAILED)
		more = "only in memory: it could not be written";
	else if (row->memory->state == WIRE_STAGED || row->memory->state == WIRE_THINNED)
		more = "only in memory";
	else
		more = "in memory, on its way to the disk";
	n = strlen(buf);
	snprintf(buf + n, bytes - n, "%s%s", n ? ", " : "", more);
}

static void step_put(struct ls *l, const struct ls_row *row, const struct column *col)
{
	const struct ls_job *j = row->job;
	const struct store_step *x = row->step;
	const struct ckpt_note *value = l->note ? note_of(x, l->note) : NULL;
	struct output *o = l->c->o;
	/* its MANIFEST was read, and is its own */
	bool known = row->on_disk && x->world != 0 && x->code != -EUCLEAN,
	     there = known || !row->on_disk, /* in memory: what the daemon knows of it */
		counted =
			row->on_disk && x->state != STORE_COLLECTING; /* its parts were looked at */
	uint64_t shared = counted ? file_links_shared(&l->links, x->link_first, x->nlink) : 0;
	char path[4096 + STORE_DIR_MAX], note[1024];

	snprintf(path, sizeof path, "%s/%s", j->path, x->dir);
	output_row(o);
	output_put(o, &col[COL_PATH], cell_if(row->on_disk, cell_text(path)));
	output_put(o, &col[COL_JOB], cell_text(j->job));
	output_put(o, &col[COL_STEP], cell_styled(cell_number(x->step), STYLE_STRONG));
	output_put(o, &col[COL_STATE],
		   row->on_disk ? cell_styled(cell_text(store_state_word(x->state)),
					      state_style(x->state))
				: cell_styled(cell_text("staged"), STYLE_WARN));
	output_put(o, &col[COL_BYTES], cell_bytes(x->bytes));
	output_put(o, &col[COL_SHARED], cell_if(counted, cell_bytes(shared)));
	output_put(o, &col[COL_OWN],
		   cell_if(counted, cell_bytes(x->bytes - MIN(shared, x->bytes))));
	output_put(o, &col[COL_SEQ], cell_if(known, cell_number(x->seq)));
	output_put(o, &col[COL_PARENT],
		   cell_if(known, cell_unless(CELL_NUMBER, x->parent_step, UINT64_MAX)));
	output_put(o, &col[COL_WORLD], cell_if(there, cell_count(x->world)));
	output_put(o, &col[COL_MESH], cell_if(known, cell_text(x->mesh)));
	output_put(o, &col[COL_FORMAT], cell_word(x->format));
	output_put(o, &col[COL_AGE], cell_if(there, cell_of(CELL_AGE, x->wall_ns)));
	output_put(o, &col[COL_ASIDE_AT], cell_if(x->aside_ns, cell_of(CELL_TIME, x->aside_ns)));
	output_put(o, &col[COL_CREATED_NS], cell_unless(CELL_NUMBER, x->wall_ns, 0));
	output_put(o, &col[COL_GENERATION], cell_unless(CELL_NUMBER, x->generation, 0));
	output_put(o, &col[COL_ID], cell_if(known, cell_id(x->id)));
	output_put(o, &col[COL_VALUE], cell_if(value, cell_real(value->value)));
	note_print(l, row, note, sizeof note);
	output_put(o, &col[COL_NOTE], cell_text(note));
	if (o->machine) {
		labels_put(o, x, j->label, row->on_disk ? j->nlabel : 0, l->now_ns);
		put_notes(o, x);
	}
	output_put(o, &col[COL_IN_MEMORY], cell_flag(row->memory != NULL));
	output_put(o, &col[COL_WHY], cell_word(x->why));
	output_close(o);
}

/* For programs: what is in memory, newest mark first. "checkpoints" has what is on disk alone. */
static void put_staged(struct ls *l)
{
	const struct wire_report *r = &l->k.report;
	struct output *o = l->c->o;

	output_list(o, "staged", NULL, 0);
	for (uint32_t i = 0; i < l->njob && o->machine; i++) {
		const struct ls_job *j = &l->job[i];
		uint32_t job = served_as(l, j);

		for (uint32_t k = 0; job != UINT32_MAX && k < r->head->nstep; k++) {
			const struct wire_report_step *m = &r->step[k];
			uint64_t wall = control_wall(r, m->mark_ns);
			bool on_disk = false;

			if (m->job != job || !control_is_staged(m))
				continue;
			for (uint32_t x = 0; x < j->nrow; x++)
				on_disk |= j->row[x].memory == m;
			output_row(o);
			output_put(o, &columns[COL_JOB], cell_text(j->job));
			output_put(o, &columns[COL_STEP], cell_number(m->step));
			output_put(o, &columns[COL_GENERATION],
				   cell_unless(CELL_NUMBER, m->generation, 0));
			output_put(o, &columns[COL_WORLD], cell_count(r->job[job].world));
			output_put(o, &columns[COL_BYTES], cell_bytes(m->total));
			output_put(o, &columns[COL_AGE], cell_of(CELL_AGE, wall));
			output_put(o, &columns[COL_CREATED_NS], cell_unless(CELL_NUMBER, wall, 0));
			output_put(o, &columns[COL_ON_DISK], cell_flag(on_disk));
			output_close(o);
		}
	}
	output_close(o);
}

static bool any_unusable(const struct ls *l)
{
	return l->damaged || l->quarantined || l->misplaced || l->newer || l->older;
}

static bool any_shared(const struct ls *l)
{
	for (uint32_t i = 0; i < l->nrow; i++)
		if (l->row[i].on_disk &&
		    file_links_shared(&l->links, l->row[i].step->link_first, l->row[i].step->nlink))
			return true;
	return false;
}

static void steps_list(struct ls *l)
{
	struct column col[COL_COUNT];

	memcpy(col, columns, sizeof col);
	if (any_shared(l))
		col[COL_SHARED].head = "SHARED";
	if (l->njob < 2)
		col[COL_JOB].head = NULL;
	if (!l->c->value[OPT_ALL] && !l->any_memory && !any_unusable(l))
		col[COL_STATE].head = NULL;
	if (l->note)
		col[COL_VALUE].fit = FIT_WHOLE;
	else if (any_note(l, "loss"))
		l->note = "loss";
	if (l->note)
		col[COL_VALUE].head = strcmp(l->note, "loss") ? l->note : "LOSS";
	output_list(l->c->o, "checkpoints", col, COL_COUNT);
	for (uint32_t i = 0; i < l->nshown; i++)
		step_put(l, &l->row[i], col);
	output_close(l->c->o);
	if (l->nshown < l->nrow)
		cli_say(l->c, STYLE_DIM, "... and %u more, without -n", l->nrow - l->nshown);
}

/* What is wrong with the damaged steps that were listed. */
static void reasons_say(struct ls *l)
{
	char label[64];

	for (uint32_t i = 0; i < l->njob; i++)
		for (uint32_t k = 0; k < l->job[i].n; k++) {
			const struct store_step *x = &l->job[i].step[k];

			if (!x->why[0])
				continue;
			snprintf(label, sizeof label, "step %llu", (unsigned long long)x->step);
			cli_mark(l->c, STYLE_BAD, label, 2, " of %s: %s", l->job[i].job, x->why);
		}
}

/* "4 steps up to 200 were set aside at 2026-11-21 12:37; to go back: ckptctl rewind step:200" */
static void aside_say(struct ls *l, const struct ls_job *j)
{
	const struct store_step *st = &j->aside;
	const char *where = l->c->narg ? l->c->arg[0] : l->c->value[OPT_STORE];
	char of[CKPT_JOB_MAX + 8] = "", at[HUMAN_BYTES] = "", name[STORE_DIR_MAX + 8],
			       in[4200] = "";

	if (!j->naside)
		return;
	if (l->njob > 1)
		snprintf(of, sizeof of, " of %s", j->job);
	if (!st->dir[0]) {
		cli_say(l->c, STYLE_PLAIN,
			"%u step%s%s %s set aside, and none of them can be loaded; ckptctl ls --all "
			"lists them",
			j->naside, j->naside == 1 ? "" : "s", of, j->naside == 1 ? "was" : "were");
		return;
	}
	if (l->njob > 1 || where)
		snprintf(in, sizeof in, " -C %s", l->njob > 1 ? j->path : where);
	if (j->aside_alone)
		snprintf(name, sizeof name, "step:%llu", (unsigned long long)st->step);
	else
		snprintf(name, sizeof name, "%s", st->dir);
	if (st->aside_ns)
		human_time(st->aside_ns, at);
	cli_say(l->c, STYLE_PLAIN,
		"%u step%s up to %llu%s %s set aside%s%s; to go back: ckptctl rewind %s%s",
		j->naside, j->naside == 1 ? "" : "s", (unsigned long long)st->step, of,
		j->naside == 1 ? "was" : "were", *at ? " at " : "", at, name, in);
}

/* The same for programs. */
static void asides_put(struct ls *l)
{
	struct output *o = l->c->o;

	output_list(o, "set_aside", NULL, 0);
	for (uint32_t i = 0; i < l->njob; i++) {
		const struct ls_job *j = &l->job[i];
		char at[4096 + STORE_DIR_MAX];

		if (!j->naside)
			continue;
		snprintf(at, sizeof at, "%s/%s", j->path, j->aside.dir);
		output_row(o);
		output_key(o, "job", cell_text(j->job));
		output_key(o, "step_count", cell_number(j->naside));
		output_key(o, "bytes", cell_bytes(j->aside_bytes));
		output_key(o, "up_to", cell_if(j->aside.dir[0], cell_number(j->aside.step)));
		output_key(o, "path", cell_if(j->aside.dir[0], cell_text(at)));
		output_put(o, &columns[COL_ASIDE_AT],
			   cell_if(j->aside.aside_ns, cell_of(CELL_TIME, j->aside.aside_ns)));
		output_close(o);
	}
	output_close(o);
}

static void policy_of(const struct ls *l, const struct ls_job *j, struct policy_shown *ret)
{
	uint32_t job = served_as(l, j);

	policy_shown_of(&j->policy, job == UINT32_MAX ? NULL : &l->k.report.job[job], ret);
}

static void policies_put(struct ls *l)
{
	struct output *o = l->c->o;
	struct policy_shown p;

	output_list(o, "policies", NULL, 0);
	for (uint32_t i = 0; i < l->njob && o->machine; i++) {
		policy_of(l, &l->job[i], &p);
		output_row(o);
		output_key(o, "job", cell_text(l->job[i].job));
		policy_put(o, &p);
		output_close(o);
	}
	output_close(o);
}

/* "demo keeps --keep-last 3; set by ..." */
static void policy_say(struct ls *l, const struct ls_job *j)
{
	struct policy_shown p;
	char words[POLICY_WORDS];

	policy_of(l, j, &p);
	if (p.from != WIRE_POLICY_NONE)
		cli_say(l->c, p.from == WIRE_POLICY_UNREAD ? STYLE_WARN : STYLE_DIM, "%s keeps %s",
			j->job, policy_words(&p, l->now_ns, words));
}

static void summary_say(struct ls *l, const char *where)
{
	char bytes[HUMAN_BYTES], again[HUMAN_BYTES], once[HUMAN_BYTES + 64] = "";

	if (l->repeated)
		snprintf(once, sizeof once, " (%s that steps share are counted once)",
			 human_bytes(l->repeated, again));
	if (!l->njob)
		cli_say(l->c, STYLE_PLAIN, "No job has written to %s yet.", where);
	else if (!l->listed && any_unusable(l))
		cli_say(l->c, STYLE_PLAIN, "No checkpoint in %s can be used.", where);
	else if (!l->listed)
		cli_say(l->c, STYLE_PLAIN, "No committed checkpoint in %s yet.", where);
	else if (l->njob == 1)
		cli_say(l->c, STYLE_DIM, "%u checkpoint%s of %s, %s%s", l->listed,
			l->listed == 1 ? "" : "s", l->job[0].job, human_bytes(l->bytes, bytes),
			once);
	else
		cli_say(l->c, STYLE_DIM, "%u checkpoint%s of %u jobs, %s%s", l->listed,
			l->listed == 1 ? "" : "s", l->njob, human_bytes(l->bytes, bytes), once);
	for (uint32_t i = 0; i < l->njob; i++)
		policy_say(l, &l->job[i]);
	for (uint32_t i = 0; i < l->njob; i++)
		aside_say(l, &l->job[i]);
	if (l->quarantined)
		cli_hint(l->c,
			 "latest passes over %u quarantined step%s; ckptctl repair checks %s again",
			 l->quarantined, l->quarantined == 1 ? "" : "s",
			 l->quarantined == 1 ? "it" : "them");
	if (l->misplaced)
		cli_hint(
			l->c,
			"latest passes over %u misplaced step%s: move each to the job and the step that "
			"it belongs to, or, if it has the right number, ckptctl adopt makes it this job's",
			l->misplaced, l->misplaced == 1 ? "" : "s");
	if (l->newer)
		cli_hint(l->c,
			 "a newer version wrote %u step%s: latest stops there; use that version's "
			 "ckptctl",
			 l->newer, l->newer == 1 ? "" : "s");
	if (l->older)
		cli_hint(l->c,
			 "%u step%s %s " CONTAINER_OLDER_TEXT
			 ": latest stops there; ckptd 0.1 reads "
			 "%s, ckpt_fresh sets %s aside, ckptctl rm removes one",
			 l->older, l->older == 1 ? "" : "s", l->older == 1 ? "has" : "have",
			 l->older == 1 ? "it" : "them", l->older == 1 ? "it" : "them");
	if (l->damaged)
		cli_hint(l->c,
			 "%u damaged step%s cannot be loaded; ckptctl repair -n says what can be "
			 "mended",
			 l->damaged, l->damaged == 1 ? "" : "s");
}

static int ls_run(struct cli *c)
{
	const char *where = c->narg ? c->arg[0] : c->where;
	struct ls l = { .c = c, .now_ns = wall_ns(), .k.sock = -1 };
	struct ckpt_err err = { 0 };
	struct leftovers left;
	int rc, closed = 0, none = 0;

	if (!*where)
		return cli_usage(c, NULL, "PATH is empty: a variable that is not set?");
	leftovers_open(c, where, &left);
	rc = store_jobs(c->ops, where, each_job, &l, &err);
	if (!rc && !l.njob && !left.n && subject_is_checkpoint(c, where))
		rc = ckpt_error(&err, -EINVAL, "%s is a checkpoint, not a store", where);
	if (!rc)
		closed = store_jobs_closed(c->ops, where, &err);
	if (closed && !l.njob)
		rc = closed;
	else if (!rc && !l.njob)
		rc = none = left.n ? 0 : store_none(c->ops, where, &err);
	if (rc == -EINVAL)
		l.code = cli_fail(c, rc, &err, "ckptctl show %s", where);
	else if (rc)
		l.code = cli_fail(
			c, rc, &err,
			none ? "ckptctl ls STORE"
			: rc == -ENOENT
				? "check the path; a job makes its store with its first checkpoint"
			: rc == -ENOTDIR		? "ckptctl ls DIRECTORY"
			: rc == -EACCES || rc == -EPERM ? CLI_NEXT_USER
							: NULL);
	if (!rc) {
		ask_daemon(&l);
		rc = rows_make(&l);
		rc = rc ? ckpt_error(&err, rc, "no memory for the list") : sort_rows(&l, &err);
		rc = rc ? rc : take_count(&l, &err);
		if (rc)
			l.code = cli_fail(c, rc, &err, "ckptctl ls -h");
	}
	if (!rc) {
		output_begin(c->o, "ckptd.ls/1");
		output_key(c->o, "stored_bytes", cell_bytes(l.bytes));
		steps_list(&l);
		put_staged(&l);
		asides_put(&l);
		policies_put(&l);
		reasons_say(&l);
		summary_say(&l, where);
		leftovers_print(&left, NULL);
		output_end(c->o);
		if (l.passes)
			l.code = cli_worse(l.code, CLI_WARNINGS);
		if (closed)
			cli_hint(c, "not listed: %s", err.msg);
	}
	leftovers_close(&left);
	control_close(&l.k);
	for (uint32_t i = 0; i < l.njob; i++) {
		free(l.job[i].row);
		free(l.job[i].staged);
		free(l.job[i].path);
		free(l.job[i].step);
		free(l.job[i].label);
	}
	free(l.job);
	free(l.row);
	file_links_free(&l.links);
	return l.code;
}

const struct cli_verb verb_ls = {
	.name = "ls",
	.synonyms = (const char *const[]){ "list", NULL },
	.help = "the checkpoints of a store or job, newest first",
	.synopsis = (const char *const[]){ "[--all] [--sort KEY] [-n COUNT] [PATH]", NULL },
	.about =
		"PATH is a store (the directory that jobs write to) or the directory of one job "
		"in it. The steps of the job's line are listed. STATE is committed, or it says why a "
		"step cannot be loaded. damaged: a part is missing or has another length, or the "
		"header or the end of MANIFEST is damaged. quarantined: a check found damage. "
		"misplaced: it belongs to another job or has another number. newer: a newer version "
		"wrote it. format 0.0: ckptd 0.1 wrote it, and reads it. ls does not read the data, nor all of MANIFEST: ckptctl verify does, and "
		"with --data it reads every byte. PARENT is the step that the job had resumed from or "
		"committed before. If the job has a policy, ls says which steps it keeps, and who set "
		"it (ckptctl keep). NOTE says which step latest is, the names of its holds and for how "
		"long they last, its tags, and whether every byte of it was checked since it was "
		"written. LOSS is the note of this name that the job gave with the step.\n"
		"If a daemon answers, the steps that it holds in memory are listed too: a staged step "
		"outlives the trainer, and ckptctl export --from-memory reads it.\n"
		"If ckptctl convert or export was killed in PATH, ls says what it has left there, how "
		"large it is, and whether it can be continued.\n"
		"KEY is step (the highest first), age (the newest), size (the largest), or any note "
		"(the smallest first); -KEY is the other way round. A step without the note is last.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl ls runs/", "all jobs of the store runs/" },
			{ "ckptctl ls runs/demo --all", "also unfinished and set aside" },
			{ "ckptctl ls --sort loss -n 3", "the three with the smallest loss" },
			{ "ckptctl show --json | jq .step", "the newest step, for a script" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_ALL, "also steps that are being collected or were set aside" },
			{ OPT_SORT, "sort by step, age, size, or a note such as loss" },
			{ OPT_FIRST, "list the first COUNT only" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0 also when there is none yet, or an older one cannot be loaded; 3 latest passes over "
		"newer steps, because they are damaged, quarantined or misplaced; 2 PATH is a checkpoint, or no "
		"checkpoint has the note KEY; 10 PATH does not exist, or is no store; "
		"12 it cannot be read, or none of the jobs in it can.",
	.args = (const enum cli_arg[]){ ARG_DIR, ARG_NONE },
	.narg_max = 1,
	.run = ls_run,
};
