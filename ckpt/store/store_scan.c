/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_scan.c - what a job directory holds. Called by the daemon, by ckptctl, and by commit when a
 * job goes back. Invariant: a step is COMMITTED only if its MANIFEST can be read and says that it
 * is this job's step of this number (store_identity), and nobody has said that it is bad.
 */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/base/container.h"
#include "ckpt/store/label_words.h"
#include "ckpt/store/store_impl.h"

/* --- one step --- */

const char *store_root(const struct store *s)
{
	return s->format->root->name;
}

struct sizing {
	const struct io_ops *ops;
	int fd;
	uint64_t bytes;
};

static int sizing_add(void *arg, const char *name, unsigned char d_type)
{
	struct sizing *z = arg;
	uint64_t bytes;
	int fd;

	if (d_type != DT_REG && d_type != DT_UNKNOWN)
		return 0;
	fd = z->ops->open(z->ops->ctx, z->fd, name, O_RDONLY | O_NONBLOCK, 0);
	if (fd < 0)
		return 0;
	if (z->ops->size(z->ops->ctx, fd, &bytes) == 0 && ckpt_add(z->bytes, bytes, &bytes) == 0)
		z->bytes = bytes;
	(void)z->ops->close(z->ops->ctx, fd);
	return 0;
}

int store_bytes_of(const struct store *s, const char *dir, uint64_t *ret)
{
	struct sizing z = { .ops = s->ops };

	z.fd = s->ops->open(s->ops->ctx, s->job_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	if (z.fd < 0)
		return z.fd;
	(void)s->ops->list(s->ops->ctx, z.fd, sizing_add, &z);
	(void)s->ops->close(s->ops->ctx, z.fd);
	*ret = z.bytes;
	return 0;
}

void store_id_print(const uint8_t id[16], char ret_hex[33])
{
	for (uint32_t i = 0; i < 16; i++)
		(void)snprintf(ret_hex + (size_t)2 * i, 3, "%02x", id[i]);
}

bool store_step_has_id(const struct store_step *st)
{
	static const uint8_t none[sizeof st->id];

	return memcmp(st->id, none, sizeof none) != 0;
}

/* One block: the notes, then their keys. Without memory there are none. */
static void step_notes(struct store_step *st, const struct checkpoint *c)
{
	uint64_t bytes = c->nnote * sizeof *st->note;
	struct ckpt_note *note;
	char *key;

	for (uint32_t i = 0; i < c->nnote; i++)
		bytes += strlen(c->note[i].key) + 1;
	note = c->nnote ? malloc(bytes) : NULL;
	if (!note)
		return;
	key = (char *)(note + c->nnote);
	for (uint32_t i = 0; i < c->nnote; i++) {
		note[i] = (struct ckpt_note){ .key = key, .value = c->note[i].value };
		key = stpcpy(key, c->note[i].key) + 1;
	}
	st->note = note;
	st->nnote = c->nnote;
}

static void notes_free(struct store_step *step, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		free((void *)(uintptr_t)step[i].note);
}

static void step_take(struct store_step *st, const struct checkpoint *c)
{
	const struct mesh *m = NULL;

	for (uint32_t i = 0; i < c->table.nmesh; i++)
		if (!m || c->table.mesh[i].nrank > m->nrank)
			m = &c->table.mesh[i];
	if (m)
		(void)mesh_print(m, st->mesh, sizeof st->mesh);
	st->seq = c->seq;
	st->generation = c->generation;
	st->wall_ns = c->wall_ns;
	st->bytes = c->stored_bytes;
	st->parent_step = c->parent_step;
	st->world = c->world;
	st->format = c->format->name;
	store_id_parse(c->id, st->id);
	st->said.step = c->step;
	(void)snprintf(st->said.job, sizeof st->said.job, "%s", c->job);
	if (c->parent_id[0])
		store_id_parse(c->parent_id, st->said.parent_id);
	st->said.rebuilt = strcmp(c->tool, STORE_REPAIR_TOOL) == 0;
	step_notes(st, c);
}

/* Faults of this process, not of the step. */
static bool is_shortage(int r)
{
	return r == -ENOMEM || r == -EMFILE || r == -ENFILE;
}

/* One line of it. */
static void step_why(struct store_step *st, const char *msg)
{
	(void)snprintf(st->why, sizeof st->why, "%.*s", (int)sizeof st->why - 1, msg);
	for (char *p = st->why; *p; p++)
		if (*p == '\n')
			*p = ' ';
}

/* Are its parts there, and as long as they must be? */
struct parts_check {
	const struct store *s;
	int fd;			  /* of the step's directory */
	char why[200];		  /* the first fault; "": none */
	bool lacks;		  /* it is that a part is missing, or no regular file */
	struct file_links *links; /* NULL */
	bool no_memory;
};

static void part_look(struct parts_check *x, const struct format_file *part)
{
	const char *name = part->name;
	struct io_stat st;
	int r = io_stat_at(x->s->ops, x->fd, name, &st);

	if (r == -ENOENT)
		(void)snprintf(x->why, sizeof x->why, "part %s is missing", name);
	else if (r == -EISDIR || r == -EINVAL || r == -ELOOP)
		(void)snprintf(x->why, sizeof x->why, "part %s is not a regular file", name);
	else if (!r && st.bytes != part->file_bytes)
		(void)snprintf(x->why, sizeof x->why,
			       "part %s has %" PRIu64 " bytes; %s says %" PRIu64, name, st.bytes,
			       store_root(x->s), part->file_bytes);
	else if (!r && x->links)
		x->no_memory |= file_links_add(x->links, &st) != 0;
	x->lacks = x->why[0] && r; /* what cannot be looked at is nothing that is known */
}

static void parts_look(struct parts_check *x, const struct store_step *st,
		       const struct checkpoint *c)
{
	x->fd = x->s->ops->open(x->s->ops->ctx, x->s->job_fd, st->dir, O_RDONLY | O_DIRECTORY, 0);
	if (x->fd < 0)
		return;
	for (uint32_t i = 0; i < c->nfile && !x->why[0]; i++)
		part_look(x, &c->file[i]);
	(void)x->s->ops->close(x->s->ops->ctx, x->fd);
}

/* Of what the format's reader refuses as another version's. */
static bool is_older(const struct source *src)
{
	uint8_t head[CONTAINER_BLOCK];

	return src->bytes >= sizeof head && src->read(src->ctx, head, sizeof head, 0) == 0 &&
	       container_is_older(head);
}

/* Reads MANIFEST into st. Negative: st->why says what is wrong with it. parts: NULL, or looked at
 * too. */
static int step_manifest(const struct store *s, struct store_step *st, struct parts_check *parts)
{
	struct checkpoint *c = NULL;
	struct ckpt_err err = { 0 };
	const char *root = store_root(s);
	char path[STORE_DIR_MAX + STORE_ROOT_MAX];
	struct source src;
	int r;

	st->older = false;
	if (parts && parts->links) {
		file_links_cut(parts->links, st->link_first);
		parts->no_memory = false;
	}
	(void)snprintf(path, sizeof path, "%s/%s", st->dir, root);
	r = source_open(s->ops, s->job_fd, path, 0, &src);
	if (r) {
		if (r == -ENOENT)
			(void)ckpt_error(&err, r, "its %s is missing", root);
		else if (r == -EINVAL || r == -EISDIR)
			(void)ckpt_error(&err, r, "its %s is not a regular file", root);
		else
			(void)store_fail(&err, r, "its %s cannot be opened", root);
		step_why(st, err.msg);
		return r;
	}
	r = s->format->root->summary(&src, &c, &err);
	if (!r && parts)
		parts_look(parts, st, c);
	if (parts && parts->links)
		st->nlink = parts->links->nuse - st->link_first;
	if (!r && parts && parts->no_memory) {
		checkpoint_free(c);
		r = -ENOMEM;
	}
	st->older = r == -EPROTONOSUPPORT && is_older(&src);
	src.close(src.ctx);
	if (r) {
		step_why(st, st->older ? CONTAINER_OLDER_TEXT : err.msg);
		return r;
	}
	step_take(st, c);
	checkpoint_free(c);
	return 0;
}

/* When a step was set aside: as its name says, else as the directory does, whose name was changed
 * then. Never before it was written, by a clock that was wrong. */
static uint64_t step_aside_ns(const struct store *s, const struct store_name *name,
			      uint64_t wall_ns)
{
	struct io_stat x = { 0 };
	int fd;

	if (name->aside_s != STORE_ASIDE_UNKNOWN)
		return MAX(name->aside_s * NS_PER_S, wall_ns);
	fd = s->ops->open(s->ops->ctx, s->job_fd, name->dir, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return 0;
	if (io_stat(s->ops, fd, &x))
		x.changed_ns = 0;
	(void)s->ops->close(s->ops->ctx, fd);
	return x.changed_ns ? MAX(x.changed_ns, wall_ns) : 0;
}

/* 0; 1: it has gone meanwhile; -errno: cannot go on. */
static int step_read(const struct store *s, const struct store_name *name, bool parts,
		     struct file_links *links, struct store_step *st)
{
	struct parts_check check = { .s = s, .links = links };
	uint64_t there;
	bool missing;
	int r, damage = 0;

	*st = (struct store_step){ .step = name->step,
				   .seq = name->seq,
				   .generation = name->generation,
				   .parent_step = UINT64_MAX,
				   .format = s->format->name,
				   .link_first = links ? links->nuse : 0 };
	memcpy(st->dir, name->dir, sizeof st->dir);
	if (name->kind == STORE_TMP) {
		st->state = STORE_COLLECTING;
		r = store_bytes_of(s, st->dir, &st->bytes);
		return r == -ENOENT ? 1 : is_shortage(r) ? r : 0;
	}
	st->state = name->kind == STORE_OLD ? STORE_SET_ASIDE : STORE_COMMITTED;
	/* Twice: between the two looks one step may have been set aside and another one
	 * committed. */
	for (uint32_t i = 0; i < (MUTANT(LOOKED_ONCE) ? 1 : 2); i++) {
		r = step_manifest(s, st, parts ? &check : NULL);
		if (!r && name->kind == STORE_OLD)
			st->aside_ns = step_aside_ns(s, name, st->wall_ns);
		if (!r && check.why[0] && store_bytes_of(s, st->dir, &there) == -ENOENT)
			return 1;	  /* being removed: its name went first */
		if (!r && check.why[0]) { /* its state: parts_apply */
			st->code = -EBADMSG;
			st->lacks = check.lacks;
			step_why(st, check.why);
		}
		if (!r || is_shortage(r))
			return r;
		missing = r == -ENOENT;
		damage = r;
		r = store_bytes_of(s, st->dir, &st->bytes);
		if (r == -ENOENT || is_shortage(r))
			return r == -ENOENT ? 1 : r;
		if (!missing)
			break;
	}
	st->code = damage;
	if (name->kind == STORE_OLD)
		st->aside_ns = step_aside_ns(s, name, 0);
	if (st->state == STORE_COMMITTED && !MUTANT(TORN_LISTED))
		st->state = st->older			 ? STORE_OLDER
			    : damage == -EPROTONOSUPPORT ? STORE_NEWER
							 : STORE_DAMAGED;
	return 0;
}

bool store_step_unread(const struct store_step *st)
{
	return st->code < 0 && !st->older && st->code != -ENOENT && st->code != -EBADMSG &&
	       st->code != -EPROTO && st->code != -EUCLEAN && st->code != -EINVAL &&
	       st->code != -EISDIR && st->code != -ELOOP && st->code != -ENODATA;
}

/* --- what it is compared with --- */

/* The job that a directory belongs to, and what somebody has said of its steps. */
struct home {
	char job[CKPT_JOB_MAX + 1];
	struct store_label *label;
	uint32_t nlabel;
};

static int home_read(const struct store *s, struct home *ret, struct ckpt_err *err)
{
	int r = store_home(s, ret->job, err);

	if (!r)
		r = store_labels_of(s, 1u << LABEL_BAD | 1u << LABEL_ADOPTED, &ret->label,
				    &ret->nlabel, err);
	/* Who may read the steps but not what is said of them is no one to be stopped by it. */
	return r == -EACCES || r == -EPERM ? 0 : r;
}

static void step_misplace(struct store_step *st)
{
	st->code = -EUCLEAN;
	if (st->state == STORE_COMMITTED)
		st->state = STORE_MISPLACED;
}

/* By number and job. What could not be read has said nothing. */
static void step_judge(struct store_step *st, const struct home *h)
{
	if (store_step_has_id(st) && store_identity(st, h->job, NULL, st->why))
		step_misplace(st);
}

/* By parent, which is judged. */
static void parent_judge(struct store_step *st, const struct home *h,
			 const struct store_step *parent)
{
	if (st->state == STORE_COMMITTED && store_identity(st, h->job, parent, st->why))
		step_misplace(st);
}

/* --- all steps --- */

static int by_step(const void *a, const void *b)
{
	const struct store_step *x = a, *y = b;

	return (x->step > y->step) - (x->step < y->step);
}

/* Of steps by number: the first with this one or a higher one. */
static uint32_t step_first(const struct store_step *step, uint32_t n, uint64_t number)
{
	uint32_t from = 0, to = n;

	while (from < to) {
		uint32_t mid = from + (to - from) / 2;

		if (step[mid].step < number)
			from = mid + 1;
		else
			to = mid;
	}
	return from;
}

static int by_age(const void *a, const void *b) /* newest first */
{
	const struct store_step *x = a, *y = b;
	int later = (x->step < y->step) - (x->step > y->step);

	if (x->seq != y->seq)
		return x->seq < y->seq ? 1 : -1;
	return later ? later : strcmp(y->dir, x->dir);
}

static bool is_of_line(const struct store_step *st)
{
	return st->state == STORE_COMMITTED || st->state == STORE_QUARANTINED;
}

bool store_step_lost(const struct store_step *st)
{
	return st->state == STORE_DAMAGED || st->state == STORE_MISPLACED ||
	       st->state == STORE_NEWER || st->state == STORE_OLDER;
}

/* Adopted steps say the seq of another line: one that does not fit between its neighbours by
 * number, which are in the order of their seq, is that of the one below. */
static void adopted_fit(struct store_step *step, uint32_t n)
{
	uint64_t above = UINT64_MAX, below = 0;

	for (uint32_t i = n; i-- > 0;)
		if (is_of_line(&step[i]) && !step[i].adopted)
			above = MIN(above, step[i].seq);
		else if (is_of_line(&step[i]) && step[i].seq >= above)
			step[i].seq = 0;
	for (uint32_t i = 0; i < n; i++)
		if (is_of_line(&step[i])) {
			if (step[i].adopted && step[i].seq <= below)
				step[i].seq = below;
			below = MAX(below, step[i].seq);
		}
}

/* Steps by number. Collecting: newer than all. Lost: as old as the newest committed step with a
 * lower number, and by_age puts the higher number of the two first. */
static void sort_by_age(struct store_step *step, uint32_t n)
{
	uint64_t below = 0;

	adopted_fit(step, n);
	for (uint32_t i = 0; i < n; i++) {
		if (is_of_line(&step[i]))
			below = MAX(below, step[i].seq);
		else if (store_step_lost(&step[i]))
			step[i].seq = below;
		else if (step[i].state == STORE_COLLECTING)
			step[i].seq = UINT64_MAX;
	}
	qsort(step, n, sizeof *step, by_age);
	for (uint32_t i = 0; i < n; i++)
		if (store_step_lost(&step[i]) || step[i].state == STORE_COLLECTING)
			step[i].seq = 0;
}

/* --- the whole --- */

static void step_adopt(struct store_step *st, const struct store_label *m)
{
	st->adopted |= m->kind == LABEL_ADOPTED && store_label_is(m, st);
}

/* What somebody has found to be damaged is no longer a checkpoint to start from. */
static void step_quarantine(struct store_step *st, const struct store_label *m)
{
	if (m->kind != LABEL_BAD || st->state != STORE_COMMITTED || !store_label_is(m, st) ||
	    MUTANT(QUARANTINE_IGNORED))
		return;
	st->state = STORE_QUARANTINED;
	step_why(st, m->why[0] ? m->why : "it was found damaged");
}

/* MANIFEST is right, what it names is not all there, and nothing else is known against it. Of a
 * step that stands where it would if all were. */
static void parts_apply(struct store_step *step, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		if (step[i].state == STORE_COMMITTED && step[i].code)
			step[i].state = STORE_DAMAGED;
}

/* For each label the steps of its number: they are ordered by it. */
static void labels_apply(struct store_step *step, uint32_t n, const struct home *h,
			 void (*apply)(struct store_step *st, const struct store_label *m))
{
	for (uint32_t k = 0; k < h->nlabel; k++)
		for (uint32_t i = step_first(step, n, h->label[k].step);
		     i < n && step[i].step == h->label[k].step; i++)
			apply(&step[i], &h->label[k]);
}

/* Is each of them what its name and place say? Lowest number first: a parent is judged before its
 * children. */
static void steps_judge(struct store_step *step, uint32_t n, const struct home *h)
{
	qsort(step, n, sizeof *step, by_step);
	labels_apply(step, n, h, step_adopt);
	for (uint32_t i = 0; i < n; i++)
		step_judge(&step[i], h);
	labels_apply(step, n, h, step_quarantine);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t number = step[i].parent_step;

		for (uint32_t k = step_first(step, n, number); k < n && step[k].step == number; k++)
			if (step[k].state == STORE_COMMITTED)
				parent_judge(&step[i], h, &step[k]);
	}
}

/* Array and notes in one block, so that one free is enough. The array is freed. */
static struct store_step *steps_pack(struct store_step *step, uint32_t n)
{
	struct store_step *ret;
	struct ckpt_note *note;
	uint64_t nnote = 0, bytes = 0;
	char *key;

	for (uint32_t i = 0; i < n; i++) {
		nnote += step[i].nnote;
		for (uint32_t k = 0; k < step[i].nnote; k++)
			bytes += strlen(step[i].note[k].key) + 1;
	}
	ret = malloc(((size_t)n + 1) * sizeof *ret + nnote * sizeof *note + bytes);
	if (!ret)
		return NULL;
	memcpy(ret, step, n * sizeof *ret);
	note = (struct ckpt_note *)(void *)(ret + n + 1);
	key = (char *)(note + nnote);
	for (uint32_t i = 0; i < n; i++) {
		ret[i].note = ret[i].nnote ? note : NULL;
		for (uint32_t k = 0; k < ret[i].nnote; k++) {
			*note++ = (struct ckpt_note){ .key = key, .value = step[i].note[k].value };
			key = stpcpy(key, step[i].note[k].key) + 1;
		}
	}
	return ret;
}

const struct store_step *store_latest(const struct store_step *step, uint32_t n, uint64_t back)
{
	for (uint32_t i = 0; i < n; i++) {
		if (step[i].state == STORE_COMMITTED && back-- == 0)
			return &step[i];
		if ((step[i].state == STORE_NEWER || step[i].state == STORE_OLDER) &&
		    !MUTANT(NEWER_PASSED_OVER))
			return &step[i];
	}
	return NULL;
}

/* Looks at the parts of latest~0 to latest~back alone: all others may be damaged, too. Another step
 * is latest for each of them that is. */
static int latest_look(const struct store *s, struct store_step *step, uint32_t n, uint64_t back)
{
	uint64_t sound = 0;
	uint32_t i = 0;

	while (i < n && sound <= back) {
		const struct store_step *at = store_latest(&step[i], n - i, 0);
		struct store_step now;
		int r;

		if (!at || at->state != STORE_COMMITTED || MUTANT(LATEST_NOT_LOOKED_AT))
			break;
		i = (uint32_t)(at - step);
		r = store_step_look_parts(s, at->dir, &now);
		if (r && r != -ENOENT)
			return r;
		if (!r && now.code && memcmp(now.id, at->id, sizeof now.id) == 0) {
			step[i].state = STORE_DAMAGED;
			step[i].code = now.code;
			step[i].lacks = now.lacks;
			memcpy(step[i].why, now.why, sizeof now.why);
		} else {
			sound++;
		}
		i++;
	}
	return 0;
}

static int steps_scan(const struct store *s, bool all, bool parts, struct file_links *links,
		      struct store_step **ret, uint32_t *ret_n, struct ckpt_err *err)
{
	cleanup_free struct store_name *found = NULL;
	cleanup_free struct store_step *step = NULL;
	struct home home = { .nlabel = 0 };
	uint32_t nfound, n = 0;
	int r;

	*ret = NULL;
	*ret_n = 0;
	r = store_list(s->ops, s->job_fd, STORE_STEP | (all ? STORE_TMP | STORE_OLD : 0), &found,
		       &nfound);
	if (r)
		return store_fail(err, r, "job %s: cannot list its directory", s->job);
	step = calloc((size_t)nfound + 1, sizeof *step);
	if (!step)
		return ckpt_error(err, -ENOMEM, "job %s: no memory to list %" PRIu32 " steps",
				  s->job, nfound);
	for (uint32_t i = 0; r >= 0 && i < nfound; i++) {
		r = step_read(s, &found[i], parts, links, &step[n]);
		if (r && links)
			file_links_cut(links, step[n].link_first);
		n += r == 0;
		if (r < 0)
			r = store_fail(err, r, "job %s: cannot read %s", s->job, found[i].dir);
	}
	if (r >= 0)
		r = home_read(s, &home, err);
	if (r >= 0) {
		steps_judge(step, n, &home);
		sort_by_age(step, n);
		if (parts)
			parts_apply(step, n);
		*ret = steps_pack(step, n);
		r = *ret ? 0
			 : ckpt_error(err, -ENOMEM, "job %s: no memory to list %" PRIu32 " steps",
				      s->job, n);
	}
	*ret_n = r < 0 ? 0 : n;
	notes_free(step, n);
	free(home.label);
	return r;
}

int store_scan(const struct store *s, bool all, struct store_step **ret, uint32_t *ret_n,
	       struct ckpt_err *err)
{
	return steps_scan(s, all, false, NULL, ret, ret_n, err);
}

int store_scan_parts(const struct store *s, bool all, struct file_links *links,
		     struct store_step **ret, uint32_t *ret_n, struct ckpt_err *err)
{
	return steps_scan(s, all, true, links, ret, ret_n, err);
}

int store_scan_latest(const struct store *s, bool all, uint64_t back, struct store_step **ret,
		      uint32_t *ret_n, struct ckpt_err *err)
{
	int r = steps_scan(s, all, false, NULL, ret, ret_n, err);

	if (!r)
		r = latest_look(s, *ret, *ret_n, back);
	if (r < 0 && *ret) {
		free(TAKE(*ret));
		*ret_n = 0;
		return store_fail(err, r, "job %s: cannot look at the parts of its newest step",
				  s->job);
	}
	return r;
}

bool store_has_steps(const struct store *s)
{
	cleanup_free struct store_name *found = NULL;
	uint32_t n;

	return store_list(s->ops, s->job_fd, STORE_STEP, &found, &n) || n > 0;
}

void store_older_newest(const struct store *s, char ret_dir[STORE_DIR_MAX])
{
	cleanup_free struct store_name *found = NULL;
	struct store_step st;
	uint32_t n, at = 0;

	ret_dir[0] = 0;
	if (store_list(s->ops, s->job_fd, STORE_STEP, &found, &n) || !n)
		return;
	for (uint32_t i = 1; i < n; i++)
		at = found[i].step > found[at].step ? i : at;
	if (store_step_look(s, found[at].dir, &st) == 0 && st.state == STORE_OLDER)
		memcpy(ret_dir, st.dir, sizeof st.dir);
}

static int step_look(const struct store *s, const char *dir, bool parts, struct store_step *ret)
{
	struct store_name name;
	int r;

	store_name_parse(dir, &name);
	if (!(name.kind & (STORE_STEP | STORE_OLD)))
		return -EINVAL;
	r = step_read(s, &name, parts, NULL, ret);
	if (r == 0) {
		notes_free(ret, 1);
		ret->note = NULL;
		ret->nnote = 0;
	}
	return r > 0 ? -ENOENT : r;
}

int store_step_look(const struct store *s, const char *dir, struct store_step *ret)
{
	return step_look(s, dir, false, ret);
}

int store_step_look_parts(const struct store *s, const char *dir, struct store_step *ret)
{
	return step_look(s, dir, true, ret);
}

const char *store_step_fault(const struct store_step *st)
{
	return st->lacks	     ? "it lacks a part"
	       : st->code == -EPROTO ? "it contradicts itself"
				     : "damaged";
}

/* The step that st continues, as far as it can be known without the line: UINT64_MAX: there is
 * none. */
static void parent_look(const struct store *s, const struct store_step *st, const struct home *h,
			struct store_step *ret)
{
	char dir[STORE_DIR_MAX];

	store_name_step(st->parent_step, dir);
	if (st->parent_step == UINT64_MAX || store_step_look(s, dir, ret) < 0) {
		*ret = (struct store_step){ .step = UINT64_MAX, .state = STORE_DAMAGED };
		return;
	}
	labels_apply(ret, 1, h, step_adopt);
	step_judge(ret, h);
	labels_apply(ret, 1, h, step_quarantine);
}

int store_step_judge(const struct store *s, const char *dir, struct store_step *ret,
		     struct ckpt_err *err)
{
	struct home home = { .nlabel = 0 };
	struct store_step parent;
	int r = store_step_look(s, dir, ret);

	if (r)
		return store_fail(err, r, "job %s: cannot look at %s", s->job, dir);
	r = home_read(s, &home, err);
	if (!r) {
		labels_apply(ret, 1, &home, step_adopt);
		step_judge(ret, &home);
		labels_apply(ret, 1, &home, step_quarantine);
		parent_look(s, ret, &home, &parent);
		parent_judge(ret, &home, &parent);
	}
	free(home.label);
	return r;
}

int store_step_open(const struct store *s, const char *dir, int *ret_fd, struct ckpt_err *err)
{
	struct store_name name;
	int r;

	*ret_fd = -1;
	store_name_parse(dir, &name);
	if (!(name.kind & (STORE_STEP | STORE_TMP | STORE_OLD)))
		return ckpt_error(err, -EINVAL, "job %s: \"%.64s\" is no name of a step directory",
				  s->job, dir);
	r = store_hold(s, dir, false, ret_fd);
	if (r == -EAGAIN || r == -ESTALE)
		return ckpt_error(err, -ENOENT,
				  "job %s: %s is being removed; ckptctl ls lists what stays",
				  s->job, dir);
	return r ? store_fail(err, r, "job %s: cannot open %s", s->job, dir) : 0;
}
