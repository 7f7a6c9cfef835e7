// SPDX-License-Identifier: Apache-2.0
// persist.c - a guarded snap becomes a committed step: one walk over its slots (passes.h) with the
// writer of its parts behind it, then MANIFEST and commit. Called by snap; runs on the threads of
// the store's device. Invariants: nothing is written from memory that can still change; a file
// whose write or sync failed is never used again, and its bytes are written anew from the slot;
// MANIFEST is written when the walk has ended; the step is reported as committed only after
// store_commit has succeeded.
//
// A main part names the rank's other parts, so it ends last: those of all ranks are written and
// synced before, several at a time. If the step's averages are still to be made, a task of its own
// walks the main parts (passing_ahead), and two tasks write. The first one runs beside that walk:
// it writes the const parts, and of the main parts the bytes that do not depend on the walk. The
// second one runs when both have ended: it writes the average parts, and the rest of the main ones.
#include "daemon/passes.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/wire/attributes.h"
#include "daemon/average.h"
#include "daemon/part_file.h"
#include "ckpt/store/lineage.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/random.h>

#define WRITERS_MAX 8u
/* Threads that wait for files to be synced, several at a time: of many small parts each waits some
 * ms, in which the next one is written. They are no load. */
#define SYNCERS_MAX 7u

const char ckptd_version[] = "ckptd " CKPT_VERSION;

/* A part that is being written, or whose file is made and allocated already. */
struct part_out {
	char name[sizeof((struct native_part *)0)->name];
	int fd;	   /* -1: none yet, or it is finished */
	bool data; /* of a main part: what part_file_data writes is in the file */
	/* The part's table, to write it beside a walk; no place: not made yet */
	struct table beside;
	uint64_t done; /* bytes that were written to it */
	bool linked;   /* it is an older step's: there is nothing to write */
	struct store_part_id id;
};

struct persist {
	struct task task;
	struct snap *snap;   /* WRITING, or with a task more: not freed, not changed meanwhile */
	struct place *place; /* reference */
	struct store *store; /* the place's */
	bool rescue;	     /* to a directory that is not its launch's */
	bool away;	     /* it failed, and the place is not where its name leads */
	struct worker *worker;
	_Atomic uint64_t *written, rescued; /* bytes: the snap's, or these */
	struct daemon *d;
	struct native_info info;
	uint64_t base, back; /* of the snap */
	uint64_t line;	     /* of the launch, when this began */
	uint64_t seq;	     /* the highest that is known; that of the step, once it is committed */
	struct store_txn *txn;
	uint32_t world;
	uint32_t npart; /* by part_kind and part_rank; not each rank has one of each kind */
	bool *has;	/* [npart] */
	/* What is written now: all; beside the walk, the const parts and data of the main ones; or
	 * what is left then */
	enum { WRITE_ALL, WRITE_DATA, WRITE_REST } half;
	/* First the const and average parts of all ranks are written, and synced several at a time;
	 * then the main ones, which name them */
	enum { ROUND_SOURCES, ROUND_MAIN } round;
	bool walking,
		data_over; /* the owner's: neither of these two tasks has ended; the second has */
	atomic_bool walk_lost;
	struct ckpt_err walk_err;
	struct passing *passing;
	struct native_part *part;
	struct part_out *file;
	struct const_state now;	   /* but for the epoch */
	char changed[SHARED_TEXT]; /* const tensors are not what was written; "": no */
	char rotten[SHARED_TEXT];  /* the same of the file that steps share */
	atomic_uint next;	   /* the next rank whose parts are to be written */
	struct queue
		written_parts; /* struct part_out: to be synced; item NULL: each writer does that */
	bool few_files;	       /* there are too few descriptors for all parts at once */
	atomic_int failed;     /* the first part that was lost: its result, and err */
	int rc, passed;	       /* passed: of the walk alone */
	struct ckpt_err err;
};

struct part_attempt {
	struct persist *p;
	uint64_t done; /* bytes */
};

static int persist_tick(void *arg, uint64_t done)
{
	struct part_attempt *x = arg;
	struct persist *p = x->p;

	x->done += done;
	worker_sign(p->worker);
	add_relaxed(p->written, done);
	return load_relaxed(&p->d->stops) > 1 || load_relaxed(&p->snap->left) ||
	       load_relaxed(&p->walk_lost) || load_relaxed(&p->failed);
}

/* --- const parts: written once, then linked --- */

/* As far as is known before the link is tried: its bytes are those of this snap, no damage was
 * found since they were written, and not too many steps have the file. */
static bool const_may_link(const struct persist *p, uint32_t r)
{
	const struct const_part *c = &p->snap->launch->constant[r];

	/* A rank that has declared its tensors again, where they lie now, may have changed them. */
	return !p->rescue && c->set && const_file_may_share(&c->file, now_ns()) &&
	       (c->decl == p->snap->rank[r].decl || MUTANT(CONST_OTHER_DECLARATION)) &&
	       c->state.rev == p->now.rev && p->now.rev != CONST_REV_NONE &&
	       ((c->state.damages == p->now.damages && c->state.bad == p->now.bad) ||
		MUTANT(CONST_DAMAGED_LINKED));
}

/* It is not what the older steps have: what the trainer has now is right, and is written. */
static void const_compare(struct persist *p, uint32_t r)
{
	struct const_part *c = &p->snap->launch->constant[r];
	const struct snap_rank *from = &p->snap->rank[r];
	char name[160];
	uint64_t right = 0;
	uint32_t tensor = const_part_changed(
		c, decl_part_raw(from->decl, PART_CONST, from->mem->base), p->info.step, &right);

	if (tensor == TABLE_NONE)
		return;
	c->set = false;
	if (!*p->changed)
		snprintf(
			p->changed, sizeof p->changed,
			"const tensors have changed: %s of rank %" PRIu32
			" was last seen right in step %" PRIu64
			", so the steps between that one and this one may have an older value; "
			"from this step on it is written as it is; declare it CKPT_STABLE, or seal "
			"again when it changes",
			table_tensor_print(&c->table.tensor[tensor], name, sizeof name), r, right);
}

/* What lies there: the tensor of that byte, or what else the bytes are. */
static void rot_place(const struct const_part *c, const struct const_rot *rot, char ret[200])
{
	char name[160];
	uint32_t i = 0;

	while (i < c->table.npiece && (rot->raw < c->table.piece[i].off ||
				       rot->raw >= c->table.piece[i].off + c->table.piece[i].len))
		i++;
	if (rot->chunk == TABLE_NONE)
		snprintf(ret, 200, "%s", rot->off ? "its sections" : "its header");
	else if (i == c->table.npiece)
		snprintf(ret, 200, "between its tensors");
	else
		snprintf(ret, 200, "%s",
			 table_tensor_print(&c->table.tensor[c->table.piece[i].tensor], name,
					    sizeof name));
}

/* The file is another one now than that which was written. Its steps are labelled when there is a
 * newer one; but what cannot be read now may be right. */
static void rot_say(struct persist *p, uint32_t r, const struct const_rot *rot)
{
	struct const_part *c = &p->snap->launch->constant[r];
	const struct const_file *f = &c->file;
	char place[200], what_is[96], text[SHARED_TEXT];
	struct text what = text_in(what_is, sizeof what_is), t = text_in(text, sizeof text), why;

	rot_place(c, rot, place);
	if (rot->code == -EBADMSG)
		text_add(&what, "is not what was written");
	else
		text_add(&what, "cannot be read (%s)",
			 rot->code == -ENODATA ? "the file is cut short" : strerror(-rot->code));
	text_add(&t,
		 "damaged file of frozen weights: byte %" PRIu64 " of %s/%s (%s, rank %" PRIu32
		 ") %s; ",
		 rot->off, c->dir, c->part.name, place, r, what_is);
	text_add(&t,
		 rot->never ? "no commit has read it since step %" PRIu64 " wrote it"
			    : "the commit of step %" PRIu64 " read it right",
		 rot->right);
	text_add(&t,
		 "; %" PRIu32 " steps have the file, from %" PRIu64 " to %" PRIu64
		 "; it is written again from memory: check the disk",
		 f->nstep, f->step[0].step, f->step[f->nstep - 1].step);
	snap_log(p->snap, LOG_ERROR, "persist", ": %s", text);
	if (!*p->rotten)
		memcpy(p->rotten, text, sizeof text);
	if (rot->code != -EBADMSG && rot->code != -ENODATA)
		return;
	c->lost = (struct const_lost){ .n = f->nstep };
	memcpy(c->lost.step, f->step, f->nstep * sizeof *f->step);
	why = text_in(c->lost.why, sizeof c->lost.why);
	text_add(&why, "%s: byte %" PRIu64 " (%.60s) %s, found by step %" PRIu64, c->part.name,
		 rot->off, place, what_is, p->info.step);
}

/* The next bytes of the file, from the disk. */
static void const_read(struct persist *p, uint32_t r)
{
	struct launch *l = p->snap->launch;
	struct const_part *c = &l->constant[r];
	const struct snap_rank *from = &p->snap->rank[r];
	cleanup_step_close int fd = -1;
	struct const_rot rot;
	int rc;

	if (store_step_open(p->store, c->dir, &fd, NULL) < 0)
		return; /* const_link has the reason */
	rc = const_file_read(&c->file, p->d->opts.ops, fd, c->part.name, &c->id,
			     decl_part_raw(from->decl, PART_CONST, from->mem->base), p->info.step,
			     &rot);
	worker_sign(worker_me());
	if (rc == -EBADMSG) {
		rot_say(p, r, &rot);
		c->set = false;
	}
	if (c->file.cached && !l->cached_said) {
		l->cached_said = true;
		snap_log(p->snap, LOG_NOTICE, "persist",
			 ": its file system refuses O_DIRECT, so parts that steps share are read "
			 "back through the page cache, which is asked to forget them before; where "
			 "it does not, damage of the disk below it is not seen");
	}
}

/* Marks that cannot be read may say anything: then all is written. */
static void const_look(struct persist *p)
{
	bool any = false;

	p->now = (struct const_state){ .rev = p->snap->const_rev,
				       .damages = atomic_load(&p->d->damages) };
	for (uint32_t r = 0; r < p->world; r++)
		any |= p->has[part_number(PART_CONST, r, p->world)];
	if (any && !p->rescue && const_bad_sum(p->store, &p->now.bad) < 0)
		p->now.rev = CONST_REV_NONE;
	for (uint32_t r = 0; r < p->world; r++)
		if (p->has[part_number(PART_CONST, r, p->world)] && const_may_link(p, r))
			const_compare(p, r);
	for (uint32_t r = 0; r < p->world; r++)
		if (p->has[part_number(PART_CONST, r, p->world)] && const_may_link(p, r))
			const_read(p, r);
}

/* 0: linked, or it is to be written. */
static int const_link(struct persist *p, uint32_t r)
{
	struct const_part *c = &p->snap->launch->constant[r];
	uint32_t i = part_number(PART_CONST, r, p->world);
	struct part_out *f = &p->file[i];
	struct ckpt_err err = { 0 };
	cleanup_step_close int fd = -1;
	int rc;

	if (!const_may_link(p, r))
		return 0;
	if (store_step_open(p->store, c->dir, &fd, &err) < 0)
		rc = -EXDEV; /* removed, set aside, or cannot be read */
	else
		rc = store_part_link(p->txn, r, fd, c->part.name, &c->id, f->name, &err);
	if (rc == -EXDEV) {
		c->set = false;
		if (const_refusal_new(p->snap->launch, c->part.name, &err))
			snap_log(p->snap, LOG_NOTICE, "persist",
				 ": the const part of rank %u is written again: %s (said once per "
				 "launch)",
				 r, err.msg);
		return 0;
	}
	if (rc < 0) {
		p->err = err;
		return rc;
	}
	f->linked = true;
	f->id = c->id;
	p->part[i] = c->part;
	memcpy(p->part[i].name, f->name, sizeof f->name);
	return 0;
}

/* -ENOMEM: no later change could be found. */
static int const_take(struct persist *p, uint32_t r)
{
	struct const_part *c = &p->snap->launch->constant[r];
	const struct snap_rank *from = &p->snap->rank[r];
	uint32_t i = part_number(PART_CONST, r, p->world);
	const struct native_role role = { .kind = PART_CONST };
	struct native_info info = p->info;
	uint64_t nchunk, data_end;
	const struct chunk *chunk = walk_chunks(passing_walk(p->passing, i), &nchunk, &data_end);
	int rc;

	const_part_free(c);
	c->nchunk = div_up(p->part[i].raw_bytes, UINT64_C(1) << CHUNK_LOG2);
	c->table = *passing_table(p->passing, i);
	*passing_table(p->passing, i) = (struct table){ 0 };
	c->decl = decl_slot_ref(from->decl);
	c->chunk = malloc(MAX(c->nchunk, 1u) * sizeof *c->chunk);
	for (uint64_t k = 0; c->chunk && k < c->nchunk; k++)
		c->chunk[k] = (struct const_chunk){ .sum = chunk[k].raw_hash,
						    .raw_len = chunk[k].raw_len };
	info.role = &role;
	rc = const_file_take(&c->file, &info, r, &c->table, chunk, nchunk, data_end, &p->part[i]);
	return rc < 0 ? rc
		      : const_part_take(c, decl_part_raw(from->decl, PART_CONST, from->mem->base),
					p->info.step);
}

/* The step is committed: the next one finds them there. */
static void const_remember(struct persist *p, const uint8_t id[16])
{
	for (uint32_t r = 0; r < p->world; r++) {
		struct const_part *c = &p->snap->launch->constant[r];
		uint32_t i = part_number(PART_CONST, r, p->world);

		if (!p->has[i] || (!p->file[i].linked && const_take(p, r) < 0))
			continue;
		if (!p->file[i].linked) {
			c->part = p->part[i];
			c->part.table = &c->table;
			c->id = p->file[i].id;
			c->state = p->now;
		}
		memcpy(c->part.name, p->file[i].name, sizeof c->part.name);
		store_name_step(p->info.step, c->dir);
		const_file_shared(&c->file, p->info.step, id);
		c->set = true;
	}
}

/* The steps of a file that was found damaged: a newer step is committed, so latest has one. */
static void const_quarantine(struct persist *p, const uint8_t id[16])
{
	struct const_step good = { .step = p->info.step };
	struct launch *l = p->snap->launch;

	memcpy(good.id, id, sizeof good.id);
	for (uint32_t r = 0; r < p->world; r++) {
		struct const_lost lost = l->constant[r].lost;
		struct ckpt_err err;
		uint64_t sum;
		uint32_t n;
		int rc;

		if (!lost.n)
			continue;
		rc = const_lost_label(p->store, &l->constant[r].lost, &good, &n, &sum, &err);
		for (uint32_t k = 0; k < p->world; k++) /* which are no news */
			l->constant[k].state.bad += sum;
		if (n)
			snap_log(p->snap, LOG_WARNING, "persist",
				 ": %" PRIu32 " steps from %" PRIu64 " to %" PRIu64
				 " have the damaged file of rank %" PRIu32
				 " and are quarantined: latest passes them over; a restore of one "
				 "of them takes its frozen weights from step %" PRIu64
				 ", which is held for that (ckptctl release lets it go)",
				 n, lost.step[0].step, lost.step[lost.n - 1].step, r, p->info.step);
		if (rc < 0)
			snap_log(p->snap, LOG_WARNING, "persist",
				 ": not all steps that have the damaged file of rank %" PRIu32
				 " could be labelled: %s",
				 r, err.msg);
	}
}

/* --- parts --- */

/* The parts that a main one names, which are complete. How many. */
static uint32_t sources_of(const struct persist *p, uint32_t i, struct native_part *ret)
{
	uint32_t n = 0, r = part_rank(i, p->world);

	for (uint32_t kind = PART_CONST; kind < PART_KINDS && i == r; kind++)
		if (p->has[part_number(kind, r, p->world)])
			ret[n++] = p->part[part_number(kind, r, p->world)];
	return n;
}

/* Of a part of which no walk has begun: averages that are still to be made have the places that
 * were declared. */
static const struct table *table_of(const struct persist *p, uint32_t i)
{
	if (part_kind(i, p->world) == PART_AVERAGE)
		return decl_part(p->snap->rank[part_rank(i, p->world)].decl, PART_AVERAGE);
	if (part_kind(i, p->world) == PART_MAIN && p->half == WRITE_DATA)
		return &p->file[i].beside;
	return passing_table(p->passing, i);
}

static int table_open(struct persist *p, uint32_t i, uint32_t nhelper, struct ckpt_err *err)
{
	const struct snap_rank *from = &p->snap->rank[part_rank(i, p->world)];
	struct table *t = &p->file[i].beside;

	if (part_kind(i, p->world) != PART_MAIN || p->half != WRITE_DATA)
		return passing_open(p->passing, i, nhelper, err);
	return t->nplace ? 0 : decl_part_now(from->decl, PART_MAIN, from->mem->base, t, err);
}

static int part_reserve(struct persist *p, uint32_t i, struct ckpt_err *err)
{
	struct native_part source[PART_KINDS];
	struct part_out *f = &p->file[i];
	bool direct = true;

	f->data = false;
	return store_part_create(p->txn, part_rank(i, p->world),
				 native_part_bytes_max(table_of(p, i), sources_of(p, i, source)),
				 &direct, f->name, &f->fd, err);
}

/* As much of the part as is written now. */
static int part_fill(struct persist *p, uint32_t i, const struct part_file_opts *how,
		     const struct native_info *info, struct ckpt_err *err)
{
	uint32_t r = part_rank(i, p->world);
	const struct snap_rank *from = &p->snap->rank[r];
	const void *raw = decl_part_raw(from->decl, part_kind(i, p->world), from->mem->base);
	struct part_out *f = &p->file[i];
	struct part_file_opts walked = *how;
	int rc;

	if (part_kind(i, p->world) == PART_MAIN && p->half == WRITE_DATA) {
		rc = part_file_data(how, f->fd, raw, &f->beside, info, r, err);
		f->data = rc == 0;
		return rc;
	}
	walked.walk = passing_walk(p->passing, i);
	rc = f->data ? part_file_rest(&walked, f->fd, raw, passing_table(p->passing, i), info, r,
				      &p->part[i], err)
		     : part_file_write(&walked, f->fd, raw, passing_table(p->passing, i), info, r,
				       &p->part[i], err);
	p->part[i].table = passing_table(p->passing, i);
	return rc;
}

/* Its bytes, not synced yet. */
static int part_put(struct persist *p, uint32_t i, struct chunk_queue **io, struct ckpt_err *err)
{
	struct part_out *f = &p->file[i];
	struct native_part source[PART_KINDS];
	struct part_attempt x = { .p = p };
	const struct part_file_opts how = { .ops = p->d->opts.ops,
					    .engine = p->d->opts.engine,
					    .queue = io,
					    .tick = persist_tick,
					    .arg = &x };
	struct native_role role = { .kind = part_kind(i, p->world), .source = source };
	struct native_info info = p->info;
	int rc = f->fd < 0 ? part_reserve(p, i, err) : 0;

	if (rc < 0)
		return rc;
	if (!MUTANT(SOURCES_NOT_WRITTEN) && p->half != WRITE_DATA)
		role.nsource = sources_of(p, i, source);
	info.role = &role;
	rc = part_fill(p, i, &how, &info, err);
	f->done += x.done;
	if (rc == 0) {
		memcpy(p->part[i].name, f->name, sizeof p->part[i].name);
		return 0;
	}
	store_part_drop(p->txn, f->name, TAKE_FD(f->fd));
	atomic_fetch_sub_explicit(p->written, TAKE(f->done), memory_order_relaxed);
	return rc;
}

static int part_sync(struct persist *p, uint32_t i, struct ckpt_err *err)
{
	struct part_out *f = &p->file[i];
	int rc = store_part_finish(p->txn, f->name, TAKE_FD(f->fd), p->part[i].file_bytes, &f->id,
				   err);

	if (rc < 0)
		atomic_fetch_sub_explicit(p->written, TAKE(f->done), memory_order_relaxed);
	return rc;
}

static bool worth_another_try(const struct persist *p, uint32_t i, int rc)
{
	/* A full disk, a lost claim or an order to stop does not get better by itself. Where a pass
	 * has failed it was no disk. */
	return rc == -EIO && ((part_kind(i, p->world) == PART_MAIN && p->half == WRITE_DATA) ||
			      !walk_failed(passing_walk(p->passing, i)));
}

/* synced: it has failed once, and rc says why. */
static int part_persist(struct persist *p, uint32_t i, int rc, struct chunk_queue **io, bool sync,
			struct ckpt_err *err)
{
	int tries = rc < 0;

	do {
		if (tries && !worth_another_try(p, i, rc))
			return rc;
		*err = (struct ckpt_err){ 0 };
		rc = part_put(p, i, io, err);
		if (rc == 0 && sync)
			rc = part_sync(p, i, err);
	} while (rc < 0 && tries++ < REWRITES_MAX);
	return rc;
}

static void part_lost(struct persist *p, int rc, const struct ckpt_err *err)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&p->failed, &none, rc))
		p->err = *err;
}

static void *parts_sync(void *arg)
{
	struct persist *p = arg;
	struct part_out *f;

	while ((f = queue_pop(&p->written_parts))) {
		uint32_t i = (uint32_t)(f - p->file);
		struct ckpt_err err = { 0 };
		int rc = part_sync(p, i, &err);

		if (rc < 0 && !atomic_load(&p->failed))
			rc = part_persist(p, i, rc, NULL, true, &err);
		if (rc < 0)
			part_lost(p, rc, &err);
	}
	return NULL;
}

/* Is there such a part to be written now? */
static bool is_written_now(const struct persist *p, uint32_t i)
{
	uint32_t kind = part_kind(i, p->world);

	if (!p->has[i] || p->file[i].linked || (kind == PART_MAIN) != (p->round == ROUND_MAIN))
		return false;
	return kind == PART_MAIN || p->half != (kind == PART_CONST ? WRITE_REST : WRITE_DATA);
}

/* Those of a rank that are written in this round. Of a main part's data nothing is synced yet. */
static int rank_write(struct persist *p, uint32_t r, struct chunk_queue **io, struct ckpt_err *err)
{
	bool hand_over = p->written_parts.item,
	     ends = p->round != ROUND_MAIN || p->half != WRITE_DATA;
	uint32_t helpers;
	int rc = 0;

	(void)passing_threads(p->world, &helpers);
	for (uint32_t i = r; i < p->npart && rc == 0; i += p->world) {
		if (!is_written_now(p, i))
			continue;
		if (part_kind(i, p->world) == PART_AVERAGE)
			rc = passing_open(p->passing, i, helpers, err);
		if (rc == 0)
			rc = part_persist(p, i, 0, io, ends && !hand_over, err);
		if (rc == 0 && ends && hand_over)
			(void)queue_push(&p->written_parts, &p->file[i]);
	}
	return rc;
}

/* Takes one rank after the other until none is left or one of their parts is lost. */
static void parts_write(struct persist *p, struct chunk_queue **io)
{
	struct ckpt_err err;
	uint32_t r;
	int rc;

	while (!atomic_load(&p->failed) && (r = atomic_fetch_add(&p->next, 1u)) < p->world) {
		rc = rank_write(p, r, io, &err);
		if (rc < 0)
			part_lost(p, rc, &err);
	}
}

static void *writer_run(void *arg)
{
	struct chunk_queue *io = NULL;

	parts_write(arg, &io);
	chunk_queue_close(io);
	return NULL;
}

static void parts_drop(struct persist *p, uint32_t from)
{
	for (uint32_t i = from; i < p->npart; i++)
		if (p->file[i].fd >= 0)
			store_part_drop(p->txn, p->file[i].name, TAKE_FD(p->file[i].fd));
}

/* What is to be written, and what is not, in raw bytes. */
static void parts_count(struct persist *p)
{
	uint64_t total = 0, linked = 0;

	for (uint32_t i = 0; i < p->npart; i++) {
		if (!p->has[i])
			continue;
		if (p->file[i].linked)
			linked += p->part[i].raw_bytes;
		else
			total += table_of(p, i)->place[0].bytes;
	}
	if (p->rescue)
		return;
	store_relaxed(&p->snap->total, total);
	store_relaxed(&p->snap->linked, linked);
}

/* All of the space before the first byte. If there are too few descriptors, half of them are given
 * back for ranks that attach or restore meanwhile; those files are reserved when they are written,
 * and none waits for its sync while another one is written. */
static int parts_reserve(struct persist *p)
{
	uint32_t made = 0, helpers;
	int rc = 0;

	(void)passing_threads(p->world, &helpers);
	for (uint32_t i = 0; i < p->npart; i++)
		p->file[i] = (struct part_out){ .fd = -1, .beside = p->file[i].beside };
	for (uint32_t i = 0; i < part_number(PART_AVERAGE, 0, p->world) && rc == 0; i++)
		if (p->has[i])
			rc = table_open(p, i, helpers, &p->err);
	for (uint32_t r = 0; r < p->world && rc == 0; r++)
		if (p->has[part_number(PART_CONST, r, p->world)])
			rc = const_link(p, r);
	if (rc < 0)
		return rc;
	parts_count(p);
	for (; made < p->npart && rc == 0; made += rc == 0)
		if (p->has[made] && !p->file[made].linked)
			rc = part_reserve(p, made, &p->err);
	if (rc != -EMFILE && rc != -ENFILE)
		return rc;
	parts_drop(p, made / 2);
	p->few_files = true;
	p->err = (struct ckpt_err){ 0 };
	return 0;
}

/* Those that write, this one among them, and those that sync behind them. */
static int parts_threads(struct persist *p)
{
	uint32_t helpers, want = passing_threads(p->world, &helpers), n = 0, nsync = 0;
	pthread_t writer[WRITERS_MAX], syncer[SYNCERS_MAX];
	struct chunk_queue *own = NULL, **io = p->worker ? &p->worker->io : &own;

	p->written_parts = (struct queue){ 0 };
	if (p->world > 1 && !p->few_files && (p->round == ROUND_SOURCES || p->half != WRITE_DATA) &&
	    queue_init(&p->written_parts, p->npart) == 0)
		while (nsync < MIN(p->world, SYNCERS_MAX) &&
		       thread_start(&syncer[nsync], "ckptd-sync", true, parts_sync, p) == 0)
			nsync++;
	if (p->written_parts.item && nsync == 0) {
		queue_destroy(&p->written_parts);
		p->written_parts = (struct queue){ 0 };
	}
	while (n + 1 < want && thread_start(&writer[n], "ckptd-write", true, writer_run, p) == 0)
		n++;
	parts_write(p, io);
	while (n > 0)
		(void)pthread_join(writer[--n], NULL);
	if (p->written_parts.item) {
		queue_close(&p->written_parts);
		while (nsync > 0)
			(void)pthread_join(syncer[--nsync], NULL);
		queue_destroy(&p->written_parts);
	}
	if (*io && (io == &own || chunk_queue_has_threads(*io)))
		chunk_queue_close(TAKE(*io));
	return atomic_load(&p->failed);
}

/* Has any rank parts in it? */
static bool round_has_parts(const struct persist *p)
{
	for (uint32_t i = 0; i < p->npart; i++)
		if (is_written_now(p, i))
			return true;
	return false;
}

/* What is left of the parts is written, or all goes. */
static void parts_end(struct persist *p)
{
	atomic_store(&p->failed, 0);
	p->rc = 0;
	for (p->round = ROUND_SOURCES; p->round <= ROUND_MAIN && p->rc == 0; p->round++) {
		atomic_store(&p->next, 0u);
		if (round_has_parts(p))
			p->rc = parts_threads(p);
	}
	if (p->rc == 0 && p->half == WRITE_DATA)
		return;
	parts_drop(p, 0);
	if (p->rc < 0)
		store_abort(TAKE(p->txn));
}

static void parts_run(struct persist *p)
{
	p->worker = worker_me();
	p->rc = store_begin(p->store, p->info.step, &p->txn, &p->err);
	if (p->rc < 0)
		return;
	p->half = p->half == WRITE_REST ? WRITE_ALL : p->half;
	p->rc = parts_reserve(p);
	if (p->rc == 0) {
		parts_end(p);
		return;
	}
	parts_drop(p, 0);
	store_abort(TAKE(p->txn));
}

/* Whatever call it was that failed: where the directory was moved or replaced, that is why. */
static void blame_place(struct persist *p)
{
	struct ckpt_err err = { 0 };

	if (p->rc >= 0 || store_here(p->store, &err) != -EIO)
		return;
	p->away = true;
	p->rc = err.code;
	p->err = err;
}

/* On disk, at most. What is linked takes none. */
static uint64_t space_needed(const struct persist *p)
{
	uint64_t bytes = KEEP_SPARE;

	for (uint32_t r = 0; r < p->world; r++)
		bytes += decl_bytes_max(p->snap->rank[r].decl, !const_may_link(p, r));
	return bytes;
}

/* What did not fit may, after something was removed: all is written from the beginning. */
static void space_again(struct persist *p)
{
	/* A link that was refused needs space, too. */
	if (p->rc == -ENOSPC && !p->rescue && keep_free(p->d, p->store, space_needed(p))) {
		p->err = (struct ckpt_err){ 0 };
		const_look(p);
		store_relaxed(p->written, 0);
		parts_run(p);
	}
	if (p->rc == -ENOSPC && !p->rescue)
		keep_advise(p->store, &p->err);
}

/* Space first: no disk is filled to learn that a step does not fit. What the file system does not
 * report, such as quotas, fails when the space is reserved. */
static void space_run(struct persist *p)
{
	p->rc = keep_space(p->d, p->store, p->info.step, space_needed(p), &p->err);
	if (p->rc < 0)
		return;
	parts_run(p);
	space_again(p);
}

static void write_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	const_look(p);
	if (p->rescue) /* there nothing is removed to make space */
		parts_run(p);
	else
		space_run(p);
	blame_place(p);
	if (p->half == WRITE_DATA)
		return;
	passing_sum(p->passing);
}

/* Behind both the walk and write_run. */
static void rest_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	p->worker = worker_me();
	p->half = WRITE_REST;
	parts_end(p);
	space_again(p);
	blame_place(p);
	passing_sum(p->passing);
}

/* Where the step stands in the job's line: what it follows, what it leaves behind. */
static struct lineage_ask line_ask(const struct persist *p)
{
	const struct launch *l = p->snap->launch;
	/* what this launch has committed belongs to its line, also when it cannot be read just
	 * now */
	uint64_t line = MUTANT(LINE_FORGOTTEN) ? p->base : MAX(p->base, p->line);

	return (struct lineage_ask){ .how = p->rescue ? LINEAGE_ADD : LINEAGE_NEXT,
				     .job = p->info.job,
				     .step = p->info.step,
				     .generation = p->info.generation,
				     .continues = line ? line - 1 : UINT64_MAX,
				     .seq_min = p->seq,
				     .left_seq = p->back,
				     .again = l->again };
}

static int manifest_make(struct persist *p, const struct native_lineage *line, void **ret_bytes,
			 uint64_t *ret_len, uint8_t *ret_id)
{
	const struct whole *w = p->snap->whole;
	cleanup_free struct native_part *part = calloc(p->npart, sizeof *part);
	cleanup_free const uint32_t **map = calloc(p->npart, sizeof(uint32_t *));
	cleanup_free uint32_t *map_n = calloc(p->npart, sizeof *map_n);
	struct native_whole whole = { .map = map, .map_n = map_n };
	struct table_average row[TABLE_AVERAGES_MAX];
	struct table all;
	uint32_t n = 0;

	if (!part || !map || !map_n)
		return ckpt_error(&p->err, -ENOMEM, "no memory to commit the step");
	for (uint32_t i = 0; i < p->npart; i++) {
		if (!p->has[i])
			continue;
		map[n] = w ? w->map[i] : NULL;
		map_n[n] = w ? w->map_n[i] : 0;
		part[n++] = p->part[i];
	}
	if (!w)
		return native_manifest(&p->info, part, n, line, ret_bytes, ret_len, ret_id,
				       &p->err);
	all = w->table; /* with the rows of this step, and all else as it is */
	memcpy(row, all.average, all.naverage * sizeof *row);
	all.average = row;
	average_rows_now(passing_average(p->passing), p->snap->rank[0].decl, all.naverage, row);
	whole.all = &all;
	return native_manifest_whole(&p->info, &whole, part, n, line, ret_bytes, ret_len, ret_id,
				     &p->err);
}

/* The program's, the averages' and the replicas'; NULL: no memory. */
static struct checkpoint_attr *attrs_make(struct persist *p, const char *health, uint32_t *ret_n)
{
	const struct decl *d = p->snap->rank[0].decl;
	struct checkpoint_attr *attr =
		calloc((size_t)d->nattribute + AVERAGE_ATTRS_MAX + 1, sizeof *attr);
	uint64_t at = 0;
	uint32_t n = 0;

	while (attr && attributes_next(d->attributes, d->attributes_bytes, &at, &attr[n].key,
				       &attr[n].value))
		n++;
	if (attr)
		n += average_attrs(passing_average(p->passing), attr + n, AVERAGE_ATTRS_MAX);
	if (attr && health[0])
		attr[n++] = (struct checkpoint_attr){ DRIFT_ATTR, health };
	*ret_n = n;
	return attr;
}

static void commit_step(struct persist *p)
{
	const struct lineage_ask ask = line_ask(p);
	struct lineage_known *known = &p->snap->launch->known;
	struct native_lineage line;
	struct lineage at;
	char health[DRIFT_TEXT];
	cleanup_free struct checkpoint_attr *attr = NULL;
	cleanup_free void *bytes = NULL;
	uint64_t len;
	uint8_t id[16];

	p->rc = p->rescue ? lineage_scan(p->store, &ask, &at, &p->err)
			  : lineage_next(p->store, &ask, known, &at, NULL, &p->err);
	if (p->rc == 0 && at.there_already) {
		/* an earlier daemon of this launch committed it and died before it could say so */
		store_abort(TAKE(p->txn));
		return;
	}
	line = (struct native_lineage){ .seq = at.seq,
					.parent_step = at.parent_step,
					.tool = ckptd_version,
					.nnote = p->snap->nnote,
					.note = p->snap->note };
	memcpy(line.parent_id, at.parent_id, sizeof line.parent_id);
	drift_text(p->snap->launch, health, sizeof health);
	attr = attrs_make(p, health, &line.nattr);
	line.attr = attr;
	if (p->rc == 0 && !attr)
		p->rc = ckpt_error(&p->err, -ENOMEM, "no memory to commit the step");
	if (p->rc == 0)
		p->rc = manifest_make(p, &line, &bytes, &len, id);
	if (p->rc == 0)
		p->rc = store_commit(TAKE(p->txn), bytes, len, at.rewind, &p->err);
	else
		store_abort(TAKE(p->txn));
	if (p->rc == 0 && !p->rescue) {
		p->seq = at.seq;
		lineage_committed(p->store, &ask, &at, id, known);
		const_remember(p, id);
		const_quarantine(p, id);
	}
}

static void commit_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	commit_step(p);
	blame_place(p);
}

static void persist_end(struct persist *p)
{
	if (p->passing)
		passing_end(p->passing, p->passed);
	for (uint32_t i = 0; p->file && i < p->npart; i++)
		table_free(&p->file[i].beside);
	free(p->has);
	free(p->part);
	free(p->file);
	atomic_fetch_sub(&p->place->device->writes, 1);
	place_unref(p->place);
	free(p);
}

/* Derived tensors that are not the rounding of their masters: said once per epoch. */
static void derived_say(struct persist *p)
{
	struct launch *l = p->snap->launch;
	const struct part_derived *first = NULL;
	char name[160], text[SHARED_TEXT];
	uint64_t pieces = 0, elements = 0;
	uint32_t rank = 0;

	for (uint32_t r = 0; r < p->world; r++) {
		const struct walk *w = passing_walk(p->passing, r);
		const struct part_derived *x = w ? walk_derived(w) : NULL;

		if (!x)
			continue;
		if (x->unequal && !first) {
			first = x;
			rank = r;
		}
		pieces += x->unequal;
		elements += x->elements;
	}
	if (!first || l->derived_said == l->epoch + 1)
		return;
	l->derived_said = l->epoch + 1;
	snprintf(text, sizeof text,
		 "derived tensors are not the rounding of their masters, or NaN, in %" PRIu64
		 " element%s; so they are written as they are, in %" PRIu64
		 " piece%s: %s first, element %" PRIu64 " of rank %" PRIu32 "'s piece",
		 elements, elements == 1 ? "" : "s", pieces, pieces == 1 ? "" : "s",
		 table_tensor_print(&passing_table(p->passing, rank)->tensor[first->tensor], name,
				    sizeof name),
		 first->element, rank);
	snap_log(p->snap, LOG_WARNING, "snap", ": %s", text);
	job_error(p->snap->job, p->snap->step + 1, text);
}

/* Const tensors that have changed, or a file that has: whatever becomes of the step. The former is
 * said once per epoch. */
static void changed_say(struct persist *p)
{
	struct launch *l = p->snap->launch;

	if (*p->rotten)
		job_error(p->snap->job, p->snap->step + 1, p->rotten);
	if (!*p->changed || l->const_said == p->snap->epoch + 1)
		return;
	l->const_said = p->snap->epoch + 1;
	snap_log(p->snap, LOG_WARNING, "snap", ": %s", p->changed);
	job_error(p->snap->job, p->snap->step + 1, p->changed);
}

/* Pins end before the job is settled, so that a mark that waits for a slot finds it. */
static void persist_over(struct persist *p)
{
	struct snap *s = p->snap;
	struct ckpt_err err = p->err;
	int rc = p->rc;

	s->durable = false;
	persist_end(p);
	snap_written(s, rc, err.msg);
}

static void commit_done(struct task *t)
{
	struct persist *p = (struct persist *)t;
	struct snap *s = p->snap;
	struct job *j = s->job;
	bool committed = p->rc == 0, kept = committed && place_same(p->place, j->place);

	s->phase_ns[2] = now_ns() - s->mark_ns;
	p->place->away |= p->away;
	if (committed) {
		atomic_store(&s->launch->seq, MAX(p->seq, atomic_load(&s->launch->seq)));
		derived_say(p);
	}
	if (committed && !atomic_load(&s->left)) {
		atomic_store(&s->launch->line,
			     MAX(p->info.step + 1, atomic_load(&s->launch->line)));
		launch_let_go(s->launch);
	}
	if (committed && s->launch == j->launch)
		j->space.need_bytes = space_needed(p);
	persist_over(p);
	if (kept)
		keep_committed(j);
}

static void persist_discard(struct persist *p)
{
	parts_drop(p, 0);
	store_abort(TAKE(p->txn));
	p->rc = ckpt_error(&p->err, -ECANCELED, "the step was discarded before its commit");
}

/* The daemon is killed, or the step is not what its ranks had (of one that was taken over a guard
 * may still say so): nothing of it is committed. */
static bool persist_discarded(struct persist *p)
{
	if (p->rc == 0 && (atomic_load(&p->d->stops) >= 1000 || snap_guarded(p->snap) < 0))
		persist_discard(p);
	return p->rc < 0;
}

static void parts_done(struct task *t)
{
	struct persist *p = (struct persist *)t;
	struct snap *s = p->snap;

	changed_say(p);
	if (persist_discarded(p)) {
		s->job->space.looked_ns = 0; /* what status says of it is old */
		p->place->away |= p->away;
		persist_over(p);
		return;
	}
	s->phase_ns[1] = now_ns() - s->mark_ns;
	s->durable = true;
	snap_tell(s, MUTANT(COMMITTED_TOO_EARLY) ? OUTCOME_COMMITTED : OUTCOME_PERSISTED, 0, NULL);
	device_task(p->place->device, LANE_WRITE, &p->task, commit_run, commit_done);
}

static void data_next(struct persist *p)
{
	if (p->walking || !p->data_over)
		return;
	if (p->rc == 0 && p->passed < 0)
		persist_discard(p);
	if (p->rc == -ECANCELED && p->passed < 0) { /* the writer ended because the walk did */
		p->rc = p->passed;
		p->err = p->walk_err;
	}
	if (persist_discarded(p)) {
		parts_done(&p->task);
		return;
	}
	device_task(p->place->device, LANE_WRITE, &p->task, rest_run, parts_done);
}

static void data_done(struct task *t)
{
	struct persist *p = (struct persist *)t;

	p->data_over = true;
	data_next(p);
}

/* passing_ahead's: the step has its averages, whatever becomes of its files. */
static void walk_done(void *arg, int rc, const struct ckpt_err *err)
{
	struct persist *p = arg;
	struct job *j = p->snap->job;

	p->walking = false;
	p->walk_err = *err;
	p->passed = passing_over(p->passing, rc);
	if (p->passed < 0 && !p->walk_err.code)
		(void)ckpt_error(&p->walk_err, p->passed, "the step was discarded");
	atomic_store(&p->walk_lost, p->passed < 0);
	j->writing_walked = true;
	data_next(p);
	job_settle(j);
}

static struct persist *persist_new(struct snap *s, struct place *place, bool rescue)
{
	struct persist *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->snap = s;
	p->place = place_ref(place);
	atomic_fetch_add(&place->device->writes, 1);
	p->store = place->store;
	p->d = s->job->d;
	p->base = s->base;
	p->back = s->back;
	p->line = atomic_load(&s->launch->line);
	p->seq = atomic_load(&s->launch->seq);
	p->world = s->world;
	p->written = &s->written;
	p->rescue = rescue;
	p->npart = PART_KINDS * s->world;
	p->part = calloc(p->npart, sizeof *p->part);
	p->file = calloc(p->npart, sizeof *p->file);
	p->has = calloc(p->npart, sizeof *p->has);
	p->passing = passing_new(s, rescue);
	p->passed = -ECANCELED;
	if (!p->passing || !p->part || !p->file || !p->has) {
		persist_end(p);
		return NULL;
	}
	for (uint32_t i = 0; i < p->npart; i++)
		p->has[i] = passing_has(p->passing, i);
	p->half = passing_averages(p->passing) ? WRITE_DATA : WRITE_ALL;
	p->info = (struct native_info){ .job = s->job->name,
					.step = s->step,
					.generation = s->launch->generation,
					.wall_ns = wall_ns(),
					.world = s->world };
	if (getrandom(p->info.uuid, sizeof p->info.uuid, 0) != sizeof p->info.uuid)
		memcpy(p->info.uuid, &p->info.wall_ns, sizeof p->info.wall_ns);
	return p;
}

void persist_start(struct snap *s)
{
	struct persist *p = persist_new(s, s->launch->place, false);

	if (!p) {
		snap_written(s, -ENOMEM, "no memory to write the step");
		return;
	}
	s->job->writing_walked = false;
	s->write_ns = now_ns();
	store_relaxed(&s->total, 0); /* until parts_count */
	store_relaxed(&s->linked, 0);
	store_relaxed(&s->written, 0);
	p->walking = p->half == WRITE_DATA;
	if (p->walking)
		passing_ahead(p->passing, walk_done, p);
	device_task(p->place->device, LANE_WRITE, &p->task, write_run,
		    p->walking ? data_done : parts_done);
}

/* --- to another place: at once, for only what is guarded is rescued --- */
static void rescue_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	write_run(t);
	if (p->rc == 0)
		commit_run(t);
}

static void rescue_done(struct task *t)
{
	struct persist *p = (struct persist *)t;

	struct snap *s = p->snap;
	struct ckpt_err err = p->err;
	int rc = p->rc;

	persist_end(p);
	rescue_written(s, rc, err.msg);
}

void persist_rescue(struct snap *s, struct place *to)
{
	struct persist *p = persist_new(s, to, true);

	if (!p) {
		rescue_written(s, -ENOMEM, "no memory to write the step");
		return;
	}
	p->written = &p->rescued;
	p->info.generation = to->store->generation;
	device_task(to->device, LANE_WRITE, &p->task, rescue_run, rescue_done);
}
