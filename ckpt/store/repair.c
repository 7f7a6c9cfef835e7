/* SPDX-License-Identifier: Apache-2.0 */
/*
 * repair.c - a job's directory in order: see repair.h. Called by ckptctl repair.
 * Invariant: a step that was quarantined or damaged is listed as committed only after every byte of
 * it was checked. A new MANIFEST appears under quarantine: a crash before the check leaves it
 * there.
 */
#include "ckpt/store/repair.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include "ckpt/io/publish.h"
#include "ckpt/store/lineage.h"
#include "ckpt/store/store_impl.h"

struct repairing {
	struct store *s;
	const struct repair_opts *o;
	struct repair_result *ret;
	struct ckpt_err *err;
	struct store_step *step; /* newest first, kept up to date by what is repaired */
	struct store_label *label;
	uint32_t n, nlabel;
	char home[CKPT_JOB_MAX + 1]; /* the job that the directory belongs to */
};

__attribute__((format(printf, 7, 8))) static void row_put(struct repairing *x, enum repair_act act,
							  int rc, const char *dir, uint64_t step,
							  uint64_t bytes, const char *fmt, ...)
{
	struct repair_row row = { .act = act, .rc = rc, .step = step, .bytes = bytes };
	va_list ap;

	(void)snprintf(row.dir, sizeof row.dir, "%s", dir);
	va_start(ap, fmt);
	(void)vsnprintf(row.text, sizeof row.text, fmt, ap);
	va_end(ap);
	x->ret->removed += act == REPAIR_REMOVED;
	x->ret->released += act == REPAIR_RELEASED;
	x->ret->rebuilt += act == REPAIR_REBUILT;
	x->ret->left += act == REPAIR_LEFT;
	if (act == REPAIR_REMOVED)
		x->ret->freed += bytes;
	if (x->o->row)
		x->o->row(x->o->arg, &row);
}

static bool is_asked(const struct repairing *x, const char *dir)
{
	return !x->o->dir || strcmp(x->o->dir, dir) == 0;
}

static bool is_damage(int r)
{
	return r == -EBADMSG || r == -EPROTO || r == -EUCLEAN;
}

/* --- what dead launches left --- */

struct leftover {
	struct store_name name;
	uint64_t bytes;
	struct store_foreign foreign; /* what others have put into it */
	bool goes;
	char now[STORE_DIR_MAX]; /* what it is called by now */
};

static void leftover_report(struct repairing *x, const struct leftover *l)
{
	uint64_t step = l->name.kind == STORE_TMP ? l->name.step : UINT64_MAX, bytes;
	int there = x->o->dry ? -ENOENT : store_bytes_of(x->s, l->now, &bytes);

	if (!l->goes)
		row_put(x, REPAIR_LEFT, 0, l->name.dir, step, l->bytes,
			"launch %" PRIu64 " is the newest: it may be writing this now; --abandoned "
			"removes it, and ends that launch's commits",
			l->name.generation);
	else if (l->foreign.n && (x->o->dry || there != -ENOENT))
		row_put(x, REPAIR_LEFT, -ENOTEMPTY, l->name.dir, step, l->bytes,
			"%s, and %" PRIu32
			" %s in it that ckptd did not make: %.200s%s; move %s away, or "
			"remove the directory yourself",
			l->name.kind == STORE_TRASH ? "it was being deleted" : "its launch is over",
			l->foreign.n, l->foreign.n == 1 ? "file is" : "files are", l->foreign.first,
			l->foreign.n > 1 ? ", ..." : "", l->foreign.n == 1 ? "it" : "them");
	else if (there == -ENOENT)
		row_put(x, REPAIR_REMOVED, 0, l->name.dir, step, l->bytes, "%s",
			l->name.kind == STORE_TRASH ? "was being deleted"
						    : "its launch is over, it was never committed");
	else
		row_put(x, REPAIR_LEFT, there ? there : -EBUSY, l->name.dir, step, l->bytes,
			"it cannot be removed: it is in use");
}

static int leftovers_remove(struct repairing *x, struct leftover *l, uint32_t n)
{
	uint64_t generation;
	int r = 0;

	if (x->o->abandoned)
		return store_claim(x->s, 0, false, &generation, x->err);
	for (uint32_t i = 0; !r && i < n; i++) {
		if (!l[i].goes || l[i].name.kind != STORE_TMP)
			continue;
		r = store_trash(x->s, l[i].name.dir, l[i].now);
		if (!r)
			io_point(x->s->ops, POINT_SWEEP_TRASHED);
		r = r == -ENOENT ? 0 : r;
	}
	if (!r)
		r = store_trash_sweep(x->s, true);
	return r ? store_fail(x->err, r, "job %s: cannot remove what dead launches left", x->s->job)
		 : 0;
}

static int leftovers_sweep(struct repairing *x)
{
	cleanup_free struct store_name *found = NULL;
	cleanup_free struct leftover *l = NULL;
	struct file_links links = { 0 };
	struct store_claimed top;
	uint32_t n, first;
	int r = store_claim_highest(x->s, &top, x->err);

	if (r)
		return r;
	r = store_list(x->s->ops, x->s->job_fd, STORE_TMP | STORE_TRASH, &found, &n);
	l = r ? NULL : calloc((size_t)n + 1, sizeof *l);
	if (!l)
		return store_fail(x->err, r ? r : -ENOMEM, "job %s: cannot list its directory",
				  x->s->job);
	for (uint32_t i = 0; i < n; i++) {
		l[i].name = found[i];
		l[i].goes = found[i].kind == STORE_TRASH || x->o->abandoned ||
			    found[i].generation < top.generation + MUTANT(LIVE_LAUNCH_REPAIRED);
		memcpy(l[i].now, found[i].dir, sizeof l[i].now);
		(void)store_bytes_of(x->s, found[i].dir, &l[i].bytes);
		if (l[i].goes)
			l[i].bytes -= MIN(store_bytes_stay(x->s, found[i].dir, &links, &first),
					  l[i].bytes);
		(void)store_foreign_look(x->s, found[i].dir, &l[i].foreign);
	}
	if (!x->o->dry)
		r = leftovers_remove(x, l, n);
	for (uint32_t i = 0; !r && i < n; i++)
		leftover_report(x, &l[i]);
	x->ret->shared = file_links_kept_once(&links);
	x->ret->unseen = links.unseen;
	file_links_free(&links);
	return r;
}

/* --- quarantine --- */

static int quarantine_release(struct repairing *x, struct store_step *st,
			      const struct store_label *bad)
{
	struct ckpt_err why = { .msg = "" };
	int fd, r;

	if (x->o->dry) {
		row_put(x, REPAIR_RELEASED, 0, st->dir, st->step, st->bytes,
			"would be checked in full, and released if it is whole: %.200s",
			bad->why[0] ? bad->why : "it was found damaged");
		return 0;
	}
	r = store_step_open(x->s, st->dir, &fd, &why);
	if (!r) {
		r = MUTANT(RELEASED_UNVERIFIED) ? 0 : x->o->verify(x->o->arg, st, fd, &why);
		if (!r)
			r = store_label_clear(x->s, st, LABEL_BAD, NULL, NULL, &why);
		store_unlock(x->s->ops, fd);
	}
	if (r) {
		row_put(x, REPAIR_LEFT, r, st->dir, st->step, st->bytes, "%s%.300s",
			is_damage(r) ? "it is damaged, and stays in quarantine: " : "", why.msg);
		return 0;
	}
	(void)store_label_set(x->s, st, LABEL_VERIFIED, NULL, 0, NULL, NULL);
	if (st->state == STORE_QUARANTINED)
		st->state = STORE_COMMITTED;
	row_put(x, REPAIR_RELEASED, 0, st->dir, st->step, st->bytes,
		"every byte was checked, it is released from quarantine");
	return 0;
}

/* Who said so; NULL: nobody. */
static const struct store_label *quarantine_of(const struct repairing *x,
					       const struct store_step *st)
{
	if (st->state == STORE_COLLECTING || !store_step_has_id(st))
		return NULL;
	for (uint32_t i = 0; i < x->nlabel; i++)
		if (x->label[i].kind == LABEL_BAD && store_label_is(&x->label[i], st))
			return &x->label[i];
	return NULL;
}

/* --- a new MANIFEST --- */

/* A directory as it will be: its root is in memory. */
struct overlay {
	const char *root; /* its name */
	const struct source_dir *under;
	const uint8_t *bytes;
	uint64_t len;
	source_entry_fn *each;
	void *arg;
};

static int overlay_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct overlay *o = ctx;

	if (off > o->len || len > o->len - off)
		return -ENODATA;
	memcpy(buf, o->bytes + off, len);
	return 0;
}

static int overlay_open(void *ctx, const char *name, struct source *ret)
{
	struct overlay *o = ctx;

	if (strcmp(name, o->root) != 0)
		return o->under->open(o->under->ctx, name, ret);
	*ret = (struct source){ .ctx = o, .bytes = o->len, .read = overlay_read };
	return 0;
}

static int overlay_entry(void *arg, const char *name, enum source_kind kind)
{
	const struct overlay *o = arg;

	if (strncmp(name, o->root, strlen(o->root)) == 0)
		return 0; /* the damaged one, and what earlier repairs left */
	return o->each(o->arg, name, kind);
}

static int overlay_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	struct overlay *o = ctx;

	o->each = each;
	o->arg = arg;
	return o->under->list(o->under->ctx, sub, overlay_entry, o);
}

/* All of the directory but its data, read with the new MANIFEST as any reader would. */
static int overlay_check(const struct format *format, const struct source_dir *under,
			 const void *bytes, uint64_t len, struct ckpt_err *err)
{
	struct overlay o = {
		.root = format->root->name, .under = under, .bytes = bytes, .len = len
	};
	struct source_dir dir = { .ctx = &o, .open = overlay_open, .list = overlay_list };
	struct checkpoint *c = NULL;
	int r = format->open(&(struct format_open){ .dir = &dir }, &c, err);

	checkpoint_free(c);
	return r;
}

struct spent {
	const struct store *s;
	int fd;
};

/* MANIFEST.%08x: of a repair that did not end. */
static int spent_unlink(void *arg, const char *name, unsigned char d_type)
{
	const struct spent *e = arg;
	const char *root = store_root(e->s);
	size_t n = strlen(root);

	(void)d_type;
	if (strncmp(name, root, n) == 0 && name[n] == '.' && strlen(name + n + 1) == 8 &&
	    strspn(name + n + 1, "0123456789abcdef") == 8)
		(void)e->s->ops->unlink(e->s->ops->ctx, e->fd, name, false);
	return 0;
}

/* Is it a label of a step that is known by its id? */
static bool is_of_another(const struct repairing *x, const struct store_label *m)
{
	for (uint32_t i = 0; i < x->n; i++)
		if (m->step == x->step[i].step && store_step_has_id(&x->step[i]) &&
		    memcmp(m->id8, x->step[i].id, sizeof m->id8) == 0)
			return true;
	return false;
}

/* The one that is to be is in quarantine, and held and tagged as what it was. */
static int labels_move(struct repairing *x, const struct store_step *was,
		       const struct store_step *is, struct ckpt_err *err)
{
	int r = 0;

	if (!MUTANT(REBUILT_TRUSTED))
		r = store_label_set(x->s, is, LABEL_BAD, NULL, 0,
				    "its MANIFEST was made again, its data are not checked yet",
				    err);
	for (uint32_t i = 0; !r && i < x->nlabel; i++) {
		const struct store_label *m = &x->label[i];

		if ((m->kind == LABEL_HOLD || m->kind == LABEL_TAG) && store_label_is(m, was) &&
		    !is_of_another(x, m))
			r = store_label_set(x->s, is, m->kind, m->name, m->until_ns, m->why, err);
	}
	if (!r)
		io_point(x->s->ops, POINT_REPAIR_LABELLED);
	return r;
}

/* From here on the step is listed: as quarantined. */
static int manifest_place(const struct store *s, int fd, const char *name, uint32_t nonce,
			  struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	const char *root = store_root(s);
	char spent[STORE_ROOT_MAX + 32];
	int r;

	(void)snprintf(spent, sizeof spent, "%s.damaged-%08" PRIx32, root, nonce);
	r = ops->rename(ops->ctx, fd, root, spent);
	if (r && r != -ENOENT)
		return store_fail(err, r, "cannot rename the damaged %s", root);
	io_point(ops, POINT_REPAIR_ASIDE);
	r = ops->rename(ops->ctx, fd, name, root);
	if (r)
		return store_fail(err, r, "cannot give the new %s its name", root);
	io_point(ops, POINT_REPAIR_RENAMED);
	r = store_sync(ops, fd);
	if (r)
		return store_fail(err, r, "cannot sync the directory");
	io_point(ops, POINT_REPAIR_DURABLE);
	return 0;
}

static int manifest_put(struct repairing *x, struct store_step *st, int fd, const void *bytes,
			uint64_t len, const uint8_t *id, struct ckpt_err *err)
{
	const struct io_ops *ops = x->s->ops;
	struct spent spent = { .s = x->s, .fd = fd };
	char name[STORE_ROOT_MAX + 16];
	struct store_step is = *st;
	uint32_t nonce;
	int r = store_nonce(&nonce, err);

	if (r)
		return r;
	(void)ops->list(ops->ctx, fd, spent_unlink, &spent);
	(void)snprintf(name, sizeof name, "%s.%08" PRIx32, store_root(x->s), nonce);
	r = publish_put(ops, fd, name, bytes, len);
	if (!r)
		io_point(ops, POINT_REPAIR_SYNCED);
	else
		r = store_fail(err, r, "cannot write a new %s", store_root(x->s));
	is.state = STORE_QUARANTINED;
	memcpy(is.id, id, sizeof is.id);
	if (!r)
		r = labels_move(x, st, &is, err);
	if (!r)
		r = manifest_place(x->s, fd, name, nonce, err);
	if (r)
		(void)ops->unlink(ops->ctx, fd, name, false);
	else
		*st = is;
	return r;
}

/* Labels of the ids that it no longer has, the new one having all that counts. */
static void labels_drop(struct repairing *x, const struct store_step *st)
{
	for (uint32_t i = 0; i < x->nlabel; i++) {
		uint8_t id[16] = { 0 };

		memcpy(id, x->label[i].id8, sizeof x->label[i].id8);
		if (x->label[i].step == st->step && !is_of_another(x, &x->label[i]))
			store_labels_forget(x->s, st->step, id);
	}
}

/* What its MANIFEST alone knew, as far as its name and its place in the line say it. */
static void facts_of(const struct repairing *x, const struct store_step *st,
		     const struct lineage *at, struct checkpoint *ret)
{
	static const uint8_t none[sizeof at->parent_id];

	*ret = (struct checkpoint){ .step = st->step,
				    .seq = at->seq,
				    .parent_step = at->parent_step };
	memcpy(ret->job, x->home, sizeof x->home);
	if (memcmp(at->parent_id, none, sizeof none) != 0)
		store_id_print(at->parent_id, ret->parent_id);
}

static int rebuild_locked(struct repairing *x, struct store_step *st, int fd, struct ckpt_err *err)
{
	const struct format *format = x->s->format;
	cleanup_free void *bytes = NULL;
	const struct lineage_ask ask = { .how = LINEAGE_MEND, .job = x->s->job, .step = st->step };
	struct checkpoint facts;
	struct lineage at;
	struct source_dir dir;
	uint8_t id[16];
	uint64_t len;
	int r = lineage_find(&ask, x->step, x->n, &at, err);

	if (r)
		return r;
	facts_of(x, st, &at, &facts);
	r = source_make(x->s->ops, fd, NULL, 0, &dir);
	if (r)
		return ckpt_error(err, r, "no memory to read it");
	r = format->root->rebuild(&dir, &facts, STORE_REPAIR_TOOL, &bytes, &len, id, err);
	if (!r)
		r = overlay_check(format, &dir, bytes, len, err);
	source_end(&dir);
	if (r || x->o->dry)
		return r;
	r = manifest_put(x, st, fd, bytes, len, id, err);
	if (r)
		return r;
	st->seq = at.seq;
	labels_drop(x, st);
	r = x->o->verify(x->o->arg, st, fd, err);
	if (r == -EBADMSG)
		(void)store_label_set(x->s, st, LABEL_BAD, NULL, 0, err->msg, NULL);
	if (r)
		return ckpt_error_prefix(err, r, "it has a MANIFEST again, and is in quarantine");
	io_point(x->s->ops, POINT_REPAIR_VERIFIED);
	r = store_label_clear(x->s, st, LABEL_BAD, NULL, NULL, err);
	if (r)
		return r;
	(void)store_label_set(x->s, st, LABEL_VERIFIED, NULL, 0, NULL, NULL);
	st->state = STORE_COMMITTED;
	return 0;
}

/* All of it but its data, as any reader would. */
static int step_open(struct repairing *x, const struct store_step *st, struct ckpt_err *err)
{
	struct checkpoint *c = NULL;
	struct source_dir dir;
	int fd, r = store_step_open(x->s, st->dir, &fd, err);

	if (r)
		return r;
	r = source_make(x->s->ops, fd, NULL, 0, &dir);
	if (!r) {
		r = x->s->format->open(&(struct format_open){ .dir = &dir }, &c, err);
		source_end(&dir);
	}
	checkpoint_free(c);
	store_unlock(x->s->ops, fd);
	return r;
}

/* Nobody has said that it is bad: but what is no file's damage nobody labels. */
static void whole_check(struct repairing *x, struct store_step *st)
{
	struct ckpt_err why = { .msg = "" };
	int r = MUTANT(FAULTY_UNSAID) ? 0 : step_open(x, st, &why);

	if (!is_damage(r))
		return;
	for (char *p = why.msg; *p; p++)
		*p = (char)(*p == '\n' ? ' ' : *p);
	row_put(x, REPAIR_LEFT, r, st->dir, st->step, st->bytes,
		"%.300s; ckptctl verify --data lists every fault", why.msg);
}

static void misplaced_report(struct repairing *x, const struct store_step *st)
{
	char dir[STORE_DIR_MAX];

	store_name_step(st->said.step, dir);
	if (st->said.step != st->step)
		row_put(x, REPAIR_LEFT, -EBADMSG, st->dir, st->step, st->bytes,
			"misplaced: %.180s; call it %s in the directory of job %s", st->why, dir,
			st->said.job);
	else
		row_put(x, REPAIR_LEFT, -EBADMSG, st->dir, st->step, st->bytes,
			"misplaced: %.190s; move it where it belongs, or, if it is here on purpose: "
			"ckptctl adopt",
			st->why);
}

static int root_rebuild(struct repairing *x, struct store_step *st)
{
	const struct store_step was = *st;
	struct ckpt_err why = { .msg = "" };
	int fd, r = store_step_open(x->s, st->dir, &fd, &why);

	/* What a MANIFEST says that is another step's is nothing about this one. */
	if (st->state == STORE_MISPLACED)
		*st = (struct store_step){ .step = st->step,
					   .bytes = st->bytes,
					   .parent_step = UINT64_MAX,
					   .format = st->format,
					   .state = STORE_DAMAGED };
	memcpy(st->dir, was.dir, sizeof st->dir);
	if (!r) {
		r = rebuild_locked(x, st, fd, &why);
		store_unlock(x->s->ops, fd);
	}
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return ckpt_error(x->err, r, "%s", why.msg);
	if (r && was.state == STORE_MISPLACED && st->state == STORE_DAMAGED) {
		*st = was;
		misplaced_report(x, st);
	} else if (r)
		row_put(x, REPAIR_LEFT, r, st->dir, st->step, st->bytes, "%.380s", why.msg);
	else
		row_put(x, REPAIR_REBUILT, 0, st->dir, st->step, st->bytes, "%s",
			x->o->dry ? "all its parts are there: it would get a new MANIFEST, without "
				    "its notes, and be checked in full"
				  : "all its parts are there: it has a new MANIFEST, without its "
				    "notes, and every byte was checked");
	return 0;
}

/* --- the whole --- */

/* Newest first: a step that is rebuilt is the next one's neighbour. */
static int steps_repair(struct repairing *x)
{
	const struct store_label *bad;
	bool found = false;
	int r = store_home(x->s, x->home, x->err);

	if (!r)
		r = store_scan(x->s, true, &x->step, &x->n, x->err);
	if (!r)
		r = store_labels(x->s, &x->label, &x->nlabel, x->err);
	for (uint32_t i = 0; !r && i < x->n; i++) {
		struct store_step *st = &x->step[i];

		if (!is_asked(x, st->dir))
			continue;
		found = true;
		if (st->state == STORE_DAMAGED && store_step_unread(st))
			row_put(x, REPAIR_LEFT, st->code, st->dir, st->step, st->bytes,
				"%.200s: it may be whole, so repair it when it can be read; if it "
				"never can, move it away first",
				st->why);
		else if (st->state == STORE_NEWER)
			row_put(x, REPAIR_LEFT, st->code, st->dir, st->step, st->bytes,
				"it was written by a newer version, which can look at it: %.200s",
				st->why);
		else if (st->state == STORE_OLDER)
			row_put(x, REPAIR_LEFT, st->code, st->dir, st->step, st->bytes,
				"it has %.200s: ckptd 0.1 can check it", st->why);
		else if (st->state == STORE_MISPLACED && st->said.step == st->step)
			misplaced_report(x, st);
		else if (st->state == STORE_DAMAGED || st->state == STORE_MISPLACED)
			r = root_rebuild(x, st);
		else if ((bad = quarantine_of(x, st)))
			r = quarantine_release(x, st, bad);
		else if (st->state == STORE_COMMITTED ||
			 (st->state == STORE_SET_ASIDE && !st->code))
			whole_check(x, st);
	}
	if (!r && x->o->dir && !found)
		r = ckpt_error(x->err, -ENOENT, "job %s: there is no %s", x->s->job, x->o->dir);
	return r;
}

int store_repair(struct store *s, const struct repair_opts *o, struct repair_result *ret,
		 struct ckpt_err *err)
{
	struct repairing x = { .s = s, .o = o, .ret = ret, .err = err };
	struct store_name name;
	int r = 0;

	assert(o->dry || o->verify);
	*ret = (struct repair_result){ 0 };
	if (o->dir) {
		store_name_parse(o->dir, &name);
		if (name.kind != STORE_STEP && name.kind != STORE_OLD)
			return ckpt_error(err, -EINVAL,
					  "job %s: \"%.64s\" is no name of a step directory",
					  s->job, o->dir);
	} else {
		r = leftovers_sweep(&x);
	}
	if (!r)
		r = steps_repair(&x);
	free(x.label);
	free(x.step);
	return r;
}
