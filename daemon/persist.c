// SPDX-License-Identifier: Apache-2.0
// persist.c - a staged snap becomes a committed step: parts, then MANIFEST and commit. Called
// by snap; runs in the io pool.
// Invariant: nothing is written from memory that can still change; a file whose write or sync
// failed is never used again, its bytes are written anew from the slot; the step is reported
// committed only after store_commit said so.
#include "daemon/state.h"
#include "ckpt/base/mutant.h"
#include "ckpt/store/lineage.h"
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <sys/random.h>

#define WRITERS_MAX 8u /* some 60 GB/s of sums */

const char ckptd_version[] = "ckptd " CKPT_VERSION;

/* A part that is being written, or whose file is made and allocated already. */
struct part_file {
	char name[sizeof((struct native_part *)0)->name];
	int fd; /* -1: none yet */
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
	uint64_t base; /* of the launch */
	struct store_txn *txn;
	uint32_t world;
	struct table *table;	  /* [world] */
	struct native_part *part; /* [world] */
	struct part_file *file;	  /* [world] */
	struct part_derived *derived; /* [world] */
	atomic_uint next;	  /* rank whose part nobody writes yet */
	atomic_int failed;	  /* the first part that was lost: its result, and err */
	int rc;
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
	atomic_fetch_add_explicit(p->written, done, memory_order_relaxed);
	return atomic_load_explicit(&p->d->stops, memory_order_relaxed) > 1 ||
	       atomic_load_explicit(&p->failed, memory_order_relaxed);
}

static int part_reserve(struct persist *p, uint32_t r, struct ckpt_err *err)
{
	struct part_file *f = &p->file[r];
	bool direct = true;

	return store_part_create(p->txn, r, move_part_bytes_max(&p->table[r], 0), &direct, f->name,
				 &f->fd, err);
}

static int part_try(struct persist *p, uint32_t r, struct ckpt_err *err)
{
	struct native_part *part = &p->part[r];
	struct part_file *f = &p->file[r];
	struct part_attempt x = { .p = p };
	const struct move_write how = {
		.ops = p->d->opts.ops, .engine = p->d->opts.engine, .tick = persist_tick, .arg = &x,
		.ret_derived = &p->derived[r]
	};
	int rc = f->fd < 0 ? part_reserve(p, r, err) : 0, fd;

	if (rc < 0)
		return rc;
	fd = TAKE_FD(f->fd);
	rc = move_write_part(&how, fd, p->snap->rank[r].mem->base, &p->table[r], &p->info, r, part,
			     err);
	if (rc < 0) {
		store_part_drop(p->txn, f->name, fd);
	} else {
		memcpy(part->name, f->name, sizeof part->name);
		part->table = &p->table[r];
		rc = store_part_finish(p->txn, f->name, fd, part->file_bytes, NULL, err);
	}
	if (rc < 0)
		atomic_fetch_sub_explicit(p->written, x.done, memory_order_relaxed);
	return rc;
}

static bool worth_another_try(int rc)
{
	/* a full disk, a lost claim or an order to stop does not get better by itself */
	return rc == -EIO;
}

/* Takes one rank's part after the other until none is left or one of them is lost. */
static void *parts_write(void *arg)
{
	struct persist *p = arg;
	struct ckpt_err err;
	int rc, none = 0;
	uint32_t r;

	while (!atomic_load(&p->failed) && (r = atomic_fetch_add(&p->next, 1u)) < p->world) {
		rc = -EIO;
		for (int tries = 0; worth_another_try(rc) && tries <= REWRITES_MAX; tries++) {
			err = (struct ckpt_err){ 0 };
			rc = part_try(p, r, &err);
		}
		none = 0;
		if (rc < 0 && atomic_compare_exchange_strong(&p->failed, &none, rc))
			p->err = err;
	}
	return NULL;
}

static void parts_drop(struct persist *p, uint32_t from)
{
	for (uint32_t r = from; r < p->world; r++)
		if (p->file[r].fd >= 0)
			store_part_drop(p->txn, p->file[r].name, TAKE_FD(p->file[r].fd));
}

/* All of the space before the first byte. Short of descriptors it gives half of them back, for who
 * attaches or restores meanwhile needs some: what was not reserved is when it is written. */
static int parts_reserve(struct persist *p)
{
	uint32_t made = 0;
	int rc = 0;

	for (uint32_t r = 0; r < p->world; r++)
		p->file[r].fd = -1;
	for (uint32_t r = 0; r < p->world && rc == 0; r++)
		rc = decl_part_now(p->snap->rank[r].decl, p->snap->rank[r].mem->base, &p->table[r],
				   &p->err);
	for (; made < p->world && rc == 0; made += rc == 0)
		rc = part_reserve(p, made, &p->err);
	if (rc != -EMFILE && rc != -ENFILE)
		return rc;
	parts_drop(p, made / 2);
	p->err = (struct ckpt_err){ 0 };
	return 0;
}

/* Sums are made by the threads that write: one keeps several GB/s of disk busy, and all of them
 * together may not take more than a quarter of what the trainer computes on. */
static uint32_t writers_wanted(const struct persist *p)
{
	cpu_set_t cpus;
	int n = sched_getaffinity(0, sizeof cpus, &cpus) < 0 ? 1 : CPU_COUNT(&cpus);

	n = MIN(n / 4, (int)WRITERS_MAX);
	return MIN((uint32_t)n, p->world);
}

static void parts_run(struct task *t)
{
	struct persist *p = (struct persist *)t;
	uint32_t want = writers_wanted(p), n = 0;
	pthread_t writer[WRITERS_MAX];

	p->worker = worker_me();
	atomic_store(&p->next, 0u);
	atomic_store(&p->failed, 0);
	p->rc = store_begin(p->store, p->info.step, &p->txn, &p->err);
	if (p->rc < 0)
		return;
	p->rc = parts_reserve(p);
	if (p->rc == 0) {
		while (n + 1 < want &&
		       thread_start(&writer[n], "ckptd-write", true, parts_write, p) == 0)
			n++;
		(void)parts_write(p);
		while (n > 0)
			(void)pthread_join(writer[--n], NULL);
		p->rc = atomic_load(&p->failed);
	}
	parts_drop(p, 0);
	if (p->rc < 0)
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

/* Room first: no disk is filled to learn that a step does not fit. What the file system does not
 * tell, quotas among it, is learned when the space is reserved. */
static void room_run(struct task *t)
{
	struct persist *p = (struct persist *)t;
	uint64_t need = KEEP_SPARE;

	for (uint32_t r = 0; r < p->world; r++)
		need += move_part_bytes_max(&p->snap->rank[r].decl->part, 0);
	p->rc = keep_room(p->d, p->store, p->info.step, need, &p->err);
	if (p->rc < 0)
		return;
	parts_run(t);
	if (p->rc == -ENOSPC && keep_free(p->d, p->store, need)) {
		for (uint32_t r = 0; r < p->world; r++)
			table_free(&p->table[r]);
		p->err = (struct ckpt_err){ 0 };
		atomic_store_explicit(p->written, 0, memory_order_relaxed);
		parts_run(t);
	}
	if (p->rc == -ENOSPC)
		keep_advise(p->store, &p->err);
}

static void write_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	if (p->rescue) /* there nothing is removed to make room */
		parts_run(t);
	else
		room_run(t);
	blame_place(p);
}

/* Where the step stands in the job's line: what it follows, what it leaves behind. */
static int line_find(struct persist *p, struct lineage *ret)
{
	const struct launch *l = p->snap->launch;
	/* what this launch has committed belongs to its line, also when it cannot be read just now */
	uint64_t line = MUTANT(LINE_FORGOTTEN) ? p->base : MAX(p->base, atomic_load(&l->line));
	struct lineage_ask ask = { .how = p->rescue ? LINEAGE_ADD : LINEAGE_NEXT,
				   .job = p->info.job,
				   .step = p->info.step,
				   .generation = p->info.generation,
				   .continues = line ? line - 1 : UINT64_MAX,
				   .seq_min = atomic_load(&l->seq),
				   .again = l->again };

	return lineage_scan(p->store, &ask, ret, &p->err);
}

static void commit_step(struct persist *p)
{
	struct lineage at;
	cleanup_free void *bytes = NULL;
	uint64_t len;
	uint8_t id[16];

	p->rc = line_find(p, &at);
	if (p->rc == 0 && at.there_already) {
		/* an earlier daemon of this launch committed it and died before it could say so */
		store_abort(TAKE(p->txn));
		atomic_store(&p->snap->launch->line, p->info.step + 1);
		return;
	}
	at.line.tool = ckptd_version;
	at.line.nnote = p->snap->nnote;
	at.line.note = p->snap->note;
	if (p->rc == 0)
		p->rc = native_manifest(&p->info, p->part, p->world, &at.line, &bytes, &len, id,
					&p->err);
	if (p->rc == 0)
		p->rc = store_commit(TAKE(p->txn), bytes, len, at.rewind, &p->err);
	else
		store_abort(TAKE(p->txn));
	if (p->rc == 0 && !p->rescue) {
		atomic_store(&p->snap->launch->line, p->info.step + 1);
		atomic_store(&p->snap->launch->seq, at.line.seq);
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
	for (uint32_t r = 0; r < p->world; r++)
		table_free(&p->table[r]);
	free(p->table);
	free(p->part);
	free(p->file);
	free(p->derived);
	place_unref(p->place);
	free(p);
}

static void abort_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	store_abort(TAKE(p->txn));
	p->rc = ckpt_error(&p->err, -ECANCELED, "the step was discarded before its commit");
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
		if (p->derived[r].unequal && !first) {
			first = &p->derived[r];
			rank = r;
		}
		pieces += p->derived[r].unequal;
		elements += p->derived[r].elements;
	}
	if (!first || l->derived_said == l->epoch + 1)
		return;
	l->derived_said = l->epoch + 1;
	snprintf(text, sizeof text,
		 "%" PRIu64 " elements of derived tensors are not the rounding of their masters, or "
		 "are NaN; so %" PRIu64 " pieces are written as they are: %s first, element %" PRIu64
		 " of rank %" PRIu32 "'s piece",
		 elements, pieces,
		 table_tensor_print(&p->table[rank].tensor[first->tensor], name, sizeof name),
		 first->element, rank);
	log_line(&p->d->opts.log, LOG_WARNING, "snap: job %s step %" PRIu64 ": %s",
		 p->snap->job->name, p->snap->step, text);
	job_error(p->snap->job, p->snap->step + 1, text);
}

static void commit_done(struct daemon *d, struct task *t)
{
	struct persist *p = (struct persist *)t;
	struct snap *s = p->snap;
	struct job *j = s->job;
	bool committed = p->rc == 0, kept = committed && place_same(p->place, j->place);

	(void)d;
	s->phase_ns[2] = now_ns() - s->mark_ns;
	p->place->away |= p->away;
	if (committed) {
		launch_let_go(s->launch);
		derived_say(p);
	}
	snap_written(s, p->rc, p->err.msg);
	persist_end(p);
	if (kept)
		keep_after(j);
}

void persist_resume(struct snap *s)
{
	int guarded = snap_guarded(s);
	struct persist *p = s->parked;

	if (!guarded)
		return;
	s->parked = NULL;
	p->task = (struct task){ guarded > 0 ? commit_run : abort_run, commit_done, NULL };
	device_task(p->place->device, LANE_WRITE, &p->task);
}

static void parts_done(struct daemon *d, struct task *t)
{
	struct persist *p = (struct persist *)t;
	struct snap *s = p->snap;

	if (p->rc == 0 && atomic_load(&d->stops) >= 1000) {
		store_abort(TAKE(p->txn));
		p->rc = -ECANCELED;
	}
	if (p->rc < 0) {
		s->job->room.looked_ns = 0; /* what status says of it is old */
		p->place->away |= p->away;
		snap_written(s, p->rc, p->err.msg);
		persist_end(p);
		return;
	}
	s->phase_ns[1] = now_ns() - s->mark_ns;
	snap_tell(s, MUTANT(COMMITTED_TOO_EARLY) ? OUTCOME_COMMITTED : OUTCOME_PERSISTED, 0, NULL);
	s->parked = p;
	persist_resume(s);
}

void persist_drop(struct snap *s)
{
	struct persist *p = TAKE(s->parked);

	store_abort(TAKE(p->txn));
	persist_end(p);
	s->phase = PHASE_STAGED;
}

static struct persist *persist_new(struct snap *s, struct place *place)
{
	struct persist *p = calloc(1, sizeof *p);

	if (!p)
		return NULL;
	p->snap = s;
	p->place = place_ref(place);
	p->store = place->store;
	p->d = s->job->d;
	p->base = s->launch->base;
	p->world = s->world;
	p->written = &s->written;
	p->table = calloc(s->world, sizeof *p->table);
	p->part = calloc(s->world, sizeof *p->part);
	p->file = calloc(s->world, sizeof *p->file);
	p->derived = calloc(s->world, sizeof *p->derived);
	if (!p->table || !p->part || !p->file || !p->derived) {
		p->world = 0;
		persist_end(p);
		return NULL;
	}
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
	struct persist *p = persist_new(s, s->launch->place);

	if (!p) {
		snap_written(s, -ENOMEM, "no memory to write the step");
		return;
	}
	s->write_ns = now_ns();
	s->total = 0;
	for (uint32_t r = 0; r < s->world; r++)
		s->total += s->rank[r].decl->part.place[0].bytes;
	atomic_store_explicit(&s->written, 0, memory_order_relaxed);
	p->task = (struct task){ write_run, parts_done, NULL };
	device_task(p->place->device, LANE_WRITE, &p->task);
}

/* --- to another place: at once, for only what is guarded is rescued --- */
static void rescue_run(struct task *t)
{
	struct persist *p = (struct persist *)t;

	write_run(t);
	if (p->rc == 0)
		commit_run(t);
}

static void rescue_done(struct daemon *d, struct task *t)
{
	struct persist *p = (struct persist *)t;

	(void)d;
	rescue_written(p->snap, p->rc, p->err.msg);
	persist_end(p);
}

void persist_rescue(struct snap *s, struct place *to)
{
	struct persist *p = persist_new(s, to);

	if (!p) {
		rescue_written(s, -ENOMEM, "no memory to write the step");
		return;
	}
	p->rescue = true;
	p->written = &p->rescued;
	p->info.generation = to->store->generation;
	p->task = (struct task){ rescue_run, rescue_done, NULL };
	device_task(to->device, LANE_WRITE, &p->task);
}
