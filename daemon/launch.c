// SPDX-License-Identifier: Apache-2.0
// launch.c - one incarnation of a job's ranks: joining, declaring, becoming ready, losing
// members. Called by session and loop.
// Invariant: all members of a launch share one generation; a newer launch fences the older one
// before its first member is welcomed.
#include "ckpt/base/container.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/pages.h"
#include "daemon/average.h"
#include "daemon/holder.h"
#include "formats/native/native.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* --- jobs --- */
static struct job *job_of(struct session *s, struct ckpt_err *err)
{
	struct daemon *d = s->d;
	uint64_t dev, ino;
	struct job *j;
	int rc = dir_look(s->root_fd, &dev, &ino);

	if (rc < 0) {
		ckpt_error_errno(err, -rc, "cannot read the store");
		return NULL;
	}
	for (j = d->jobs; j; j = j->next)
		if (!j->beside && j->dev == dev && j->ino == ino &&
		    strcmp(j->name, s->hello.job) == 0)
			return j;
	j = calloc(1, sizeof *j);
	if (!j) {
		ckpt_error(err, -ENOMEM, "no memory for a job");
		return NULL;
	}
	j->d = d;
	j->id = ++d->jobs_seen;
	j->dev = dev;
	j->ino = ino;
	snprintf(j->name, sizeof j->name, "%s", s->hello.job);
	j->next = d->jobs;
	d->jobs = j;
	return j;
}

void job_free(struct job *j)
{
	struct job **at = &j->d->jobs, *heir = NULL;

	while (*at != j)
		at = &(*at)->next;
	*at = j->next;
	for (struct job *k = j->d->jobs; k; k = k->next) /* the first of them is the job now */
		if (k->beside == j) {
			k->beside = heir;
			heir = heir ? heir : k;
		}
	while (j->snaps) {
		j->snaps->pins = 0;
		j->snaps->dropped = true;
		snap_release(j->snaps);
	}
	rescue_free(j);
	spares_drop(j, TABLE_NONE);
	if (j->launch)
		launch_unref(j->launch);
	place_unref(j->place);
	device_unref(j->device);
	free(j->bad);
	free(j);
}

bool job_idle(const struct job *j)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		if (s->phase == PHASE_QUEUED || s->phase == PHASE_WRITING ||
		    (s->phase == PHASE_COLLECTING && s->tasks))
			return false;
	return !j->claiming && !j->passing;
}

bool job_forgotten(struct job *j, uint64_t now)
{
	bool used = j->snaps || j->claiming || j->keeping ||
		    (j->launch && (j->launch->refs > 1 || j->launch->state != LAUNCH_ENDED));

	for (const struct session *s = j->d->sessions; s && !used; s = s->next)
		used = s->state == SESSION_WAITING;
	if (used || !j->idle_since)
		j->idle_since = now;
	if (j->snaps || (j->launch && j->launch->state != LAUNCH_ENDED))
		j->given_back = false; /* it has begun again */
	return !used &&
	       (j->given_back || j->beside || elapsed_ns(j->idle_since, now) > KEEP_COMMITTED_NS);
}

/* --- launches --- */
void launch_let_go(struct launch *l)
{
	store_step_leave(TAKE_FD(l->step_fd));
}

static void member_release(struct member *m)
{
	for (uint32_t k = 0; k < m->nseg; k++)
		segment_unref(m->seg[k]);
	free(TAKE(m->seg));
	m->nseg = 0;
	m->seg_bytes = 0;
	decl_unref(TAKE(m->decl));
	for (uint32_t k = 0; k < WIRE_SLOTS_MAX; k++) {
		slotmem_unref(TAKE(m->slot[k]));
		slotmem_unref(TAKE(m->adopt[k].mem));
	}
	m->touched = false;
	m->touch_again_ns = 0;
}

void launch_unref(struct launch *l)
{
	if (--l->refs)
		return;
	launch_let_go(l);
	retreat_free(&l->retreat);
	agreed_free(l->agreed);
	whole_unref(l->whole);
	names_unref(l->names);
	listed_free(&l->tried);
	average_base_forget(l);
	drift_free(l->drift);
	for (uint32_t i = 0; i < l->world; i++) {
		struct member *m = &l->member[i];

		landing_free(m->landing);
		free(m->owed);
		member_release(m);
		if (m->page) {
			munmap(m->page, sizeof *m->page);
			(void)close(m->page_fd);
		}
		if (m->pidfd >= 0)
			(void)close(m->pidfd);
	}
	free(l->member);
	for (uint32_t i = 0; l->constant && i < l->world; i++)
		const_part_free(&l->constant[i]);
	free(l->constant);
	lineage_forget(&l->known);
	store_step_leave(l->peek_fd);
	if (l->page) {
		munmap(l->page, sizeof *l->page);
		(void)close(l->page_fd);
	}
	if (l->bell >= 0) {
		daemon_unwatch(l->job->d, l->bell);
		(void)close(l->bell);
	}
	place_unref(l->place);
	free(l);
}

static int launch_new(struct job *j, const struct wire_hello *h, uint64_t generation,
		      struct launch **ret, struct ckpt_err *err)
{
	struct launch *l = calloc(1, sizeof *l);
	void *page;
	int rc;

	if (!l)
		return ckpt_error(err, -ENOMEM, "no memory for a launch");
	*l = (struct launch){ .job = j,
			      .place = place_ref(j->place),
			      .refs = 1,
			      .generation = generation,
			      .launched_by = h->launch,
			      .token = h->token,
			      .run = h->run,
			      .restart = h->restart,
			      .takeover = h->flags & WIRE_TAKEOVER,
			      .base = h->base,
			      .back = h->back,
			      .world = h->world,
			      .slots = h->nslot,
			      .nslot = h->nslot ? h->nslot : 2,
			      .step_fd = -1,
			      .peek_fd = -1,
			      .bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	l->member = calloc(h->world, sizeof *l->member);
	l->constant = calloc(h->world, sizeof *l->constant);
	rc = l->bell < 0 ? -errno : !l->member || !l->constant ? -ENOMEM : 0;
	if (rc < 0)
		l->world = 0;
	rc = rc < 0 ? ckpt_error_errno(err, -rc, "cannot set up a launch")
		    : wire_memfd_map("ckptd-job", sizeof *l->page, &l->page_fd, &page, err);
	if (rc < 0) {
		launch_unref(l);
		return rc;
	}
	l->page = page;
	l->page->magic = SHARED_MAGIC;
	l->page->world = l->world;
	l->page->nslot = l->nslot;
	l->page->generation = generation;
	atomic_store(&l->page->beat_ns, now_ns());
	for (uint32_t i = 0; i < l->world; i++) {
		l->member[i].rank = i;
		l->member[i].pidfd = -1;
	}
	daemon_watch(j->d, l->bell, (void *)((uintptr_t)l | WATCH_BELL), EPOLLIN);
	*ret = l;
	return 0;
}

static void launch_unready(struct launch *l)
{
	gate_close(l);
	atomic_store(&l->page->ready_epoch, 0);
	shared_event(l->page);
}

/* What ckpt_seal returns; 0: it goes on waiting. Without all of its ranks a launch comes to
 * nothing. */
static void launch_judge(struct launch *l, int code, const char *text)
{
	if (atomic_load(&l->page->refused) == ECONNRESET)
		return;
	if (code)
		snprintf(l->page->trouble, sizeof l->page->trouble, "%s", text);
	atomic_store(&l->page->refused, (uint32_t)-code);
}

/* What all ranks declare together cannot be saved. */
static void launch_refuse(struct launch *l, int code, const char *text)
{
	launch_judge(l, code, text);
	shared_event(l->page);
	job_error(l->job, 0, text);
	job_log(l->job, LOG_WARNING, "launch", ": %s", text);
}

void launch_fence(struct launch *l, bool for_good)
{
	atomic_store(&l->page->fenced, for_good);
	l->state = LAUNCH_ENDED;
	launch_unready(l);
	for (uint32_t i = 0; i < l->world; i++) {
		struct session *s = l->member[i].session;

		if (!s)
			continue;
		s->closed_ns = 1; /* alive or not: its memory is not read again */
		session_end(s);
	}
}

/* --- joining --- */
void launch_start(struct launch *l, enum shared_start start)
{
	if (atomic_load(&l->page->start) != START_FRESH)
		atomic_store(&l->page->start, start);
}

/* For the launch's own directory. */
static bool job_stages(const struct job *j, const struct launch *l)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		if (place_same(s->launch->place, l->place) && s->phase != PHASE_COLLECTING &&
		    !s->dropped)
			return true;
	return false;
}

static void welcome_send(struct session *s, struct launch *l)
{
	struct member *m = &l->member[s->hello.rank];
	struct wire_welcome w = { .generation = l->generation,
				  .dev = l->place->dev,
				  .ino = l->place->ino,
				  .nslot = l->nslot };
	struct ckpt_err err = { 0 };
	void *page;

	if (!m->page) {
		if (wire_memfd_map("ckptd-rank", sizeof *m->page, &m->page_fd, &page, &err) < 0) {
			session_refuse(s, err.code, err.msg);
			session_end(s);
			return;
		}
		m->page = page;
		m->page->magic = SHARED_MAGIC;
		m->page->rank = m->rank;
	}
	m->session = s;
	m->uid = s->uid;
	m->pid = s->pid;
	m->attached = true;
	l->nattached++;
	if (s->hello.back > l->back || (s->hello.back == l->back && s->hello.base > l->base)) {
		l->base = s->hello.base;
		l->back = s->hello.back;
	}
	if (s->hello.flags & WIRE_AFRESH)
		launch_start(l, START_FRESH);
	else if (s->hello.flags & WIRE_ASKED)
		launch_start(l, START_CLEAR);
	l->refs++;
	s->launch = l;
	s->member = m;
	s->state = SESSION_ATTACHED;
	session_reply(s, &w, WIRE_WELCOME, (int[]){ m->page_fd, l->page_fd, l->bell }, 3);
	if (l->nattached == l->world && !l->unclaimed)
		job_log(l->job, LOG_NOTICE, "launch",
			", all %u ranks attached, generation %" PRIu64, l->world, l->generation);
}

static void refuse_and_end(struct session *s, int code, const char *text)
{
	session_refuse(s, code, text);
	session_end(s);
}

uint32_t launch_attached(const struct launch *l)
{
	uint32_t n = 0;

	for (uint32_t r = 0; l && r < l->world; r++)
		n += l->member[r].session != NULL;
	return n;
}

struct claim {
	struct task task;
	struct session *s; /* busy until the claim is done */
	struct job *job;
	struct place *place; /* the job's so far: a reference; NULL */
	struct store *store; /* that is claimed: the place's, or opened here */
	bool opened, tried;  /* tried: it may have been claimed, whatever came of it */
	int root_fd;
	uint64_t dev, ino; /* again: the directory that the launch belongs to; ino 0: not known */
	uint64_t ended;	   /* the launch of this number is over, and is not begun again there */
	bool again, there; /* there: it has steps on disk */
	enum stand stand;
	uint64_t seq; /* BESIDE: the highest on disk */
	char who[CLAIMER_TEXT];
	char older[STORE_DIR_MAX]; /* the newest of them, where an older version wrote it */
	uint64_t generation, base;
	int step_fd; /* of base */
	int rc;
	struct ckpt_err err;
};

/* A launch that comes back belongs to one directory, which has its claim: an inode's number alone
 * may have been given away again since. */
static int claim_same(struct claim *c)
{
	struct io_stat now = { 0 };
	uint64_t top;
	int rc = store_claimed(c->store, &top, &c->err);

	if (rc < 0 || MUTANT(DIRECTORY_REMEMBERED))
		return rc;
	if (io_stat(c->store->ops, c->store->job_fd, &now) < 0)
		return 0;
	if (now.dev != c->dev || now.ino != c->ino || top < c->generation)
		rc = -ENOENT;
	return rc;
}

/* The directory that the job's name leads to now: the one that is open, or another one. */
static int claim_open(struct claim *c)
{
	bool back = c->again && c->ino;
	int rc = 0;

	if (c->place && store_here(c->place->store, NULL) == 0) {
		c->store = c->place->store;
	} else {
		rc = store_open(c->job->d->opts.ops, &format_native, c->root_fd, c->job->name,
				!back, &c->store, &c->err);
		c->opened = rc == 0;
	}
	if (rc == 0 && back)
		rc = claim_same(c);
	if (back && (rc == -ENOENT || rc == -ENOTDIR || rc == -ELOOP))
		return ckpt_error(
			&c->err, -EIO,
			"the directory of job %s was moved or replaced: its name does not lead to the "
			"directory that launch %" PRIu64
			" writes to; the launch trains on detached; move the directory back, "
			"or start the job again: it then writes to the directory of that name",
			c->job->name, c->generation);
	if (rc == 0 && !c->opened && c->ended && c->ended == c->generation)
		return ckpt_error(
			&c->err, -ESTALE,
			"a rank of this launch has ended: start all ranks again with a higher generation");
	return rc;
}

/* Whose directory is it? */
static int claim_owner(const struct claim *c, struct ckpt_err *err)
{
	const struct session *s = c->s;
	struct io_stat st, mine;

	if (s->hello.flags & WIRE_FOREIGN_OWNER ||
	    io_stat(c->store->ops, c->store->job_fd, &st) < 0 || st.uid == s->uid ||
	    st.uid == geteuid() || MUTANT(FOREIGN_OWNER_TRUSTED))
		return 0;
	/* A file server may give all that root makes to another user. */
	if (claimer_probe(c->store, &mine) == 0 && mine.uid == st.uid)
		return 0;
	return ckpt_error(
		err, -EPERM,
		"the directory of job %s belongs to user %u, not to user %u: that user can "
		"change what is saved there; use a store or a job of your own, or attach with "
		"CKPT_FOREIGN_OWNER (foreign_owner=True, --foreign-owner)",
		c->job->name, st.uid, (unsigned)s->uid);
}

static int highest_seq(const struct store *s, uint64_t *ret, struct ckpt_err *err)
{
	cleanup_free struct store_step *step = NULL;
	uint32_t n = 0;
	int rc = store_scan(s, false, &step, &n, err);

	*ret = 0;
	for (uint32_t i = 0; i < n; i++)
		*ret = MAX(*ret, step[i].seq);
	return rc;
}

/* Or it attaches beside the launch that has the job. */
static int claim_or_not(struct claim *c)
{
	int rc;

	if (c->stand == STAND_CLAIM && !c->again) {
		rc = holder_look(c->job->d, c->store, &c->s->hello, c->s->pid, &c->stand, &c->err);
		if (rc < 0)
			return rc;
	}
	if (c->stand == STAND_BESIDE) {
		c->generation = 0;
		return highest_seq(c->store, &c->seq, &c->err);
	}
	holder_name(c->job->d, &c->s->hello, c->s->pid, c->who);
	c->store->claimer = c->who;
	rc = store_claim(c->store, c->generation, c->again, &c->generation, &c->err);
	c->store->claimer = NULL;
	return rc < 0 ? rc : store_claim_wait(c->store, &c->err);
}

static void claim_run(struct task *t)
{
	struct claim *c = (struct claim *)t;
	struct ckpt_err none;

	c->rc = claim_open(c);
	if (c->rc == 0)
		c->rc = claim_owner(c, &c->err);
	c->tried = c->rc == 0;
	if (c->rc == 0)
		c->rc = claim_or_not(c);
	if (c->rc == 0)
		c->there = store_has_steps(c->store);
	if (c->rc == 0 && c->there && !c->again)
		store_older_newest(c->store, c->older);
	if (c->rc == 0 && c->base) {
		char dir[STORE_DIR_MAX];

		/* if it was removed, it is not needed */
		snprintf(dir, sizeof dir, "step-%012" PRIu64, c->base - 1);
		(void)store_step_open(c->store, dir, &c->step_fd, &none);
	}
	if (c->rc == 0 && c->opened)
		keep_describe(c->job->d, c->store);
}

/* What was opened is the job's place from now on; its older launches keep theirs. */
static void claim_place(struct claim *c)
{
	struct job *j = c->job;
	struct place *p;

	place_unref(TAKE(c->place));
	if (!c->opened)
		return;
	if (!c->tried) {
		store_close(c->store);
		return;
	}
	p = place_new(j->d, c->store);
	if (!p) {
		c->rc = ckpt_error(&c->err, -ENOMEM, "no memory for a launch");
		return;
	}
	place_unref(j->place);
	j->place = p;
	device_unref(j->device);
	j->device = p->device;
	j->device->refs++;
	j->space = (struct space){ 0 };
	keep_forget(j);
}

/* The launch does not restore what memory holds for another directory: the log says how to keep
 * it. */
static void elsewhere_say(const struct job *j, const struct launch *l)
{
	for (const struct snap *s = j->snaps; s; s = s->next)
		if (!place_same(s->launch->place, l->place) && s->phase != PHASE_COLLECTING &&
		    !s->dropped && !s->rescued)
			job_log(j, LOG_WARNING, "launch",
				": memory holds step %" PRIu64
				", which was staged for another directory than the one that the job's "
				"name leads to now: this launch does not restore it; ckptctl drain %s "
				"--to DIR writes it, before this launch takes its first snapshot",
				s->step, j->name);
}

/* What its ckpt_restore will report, now, in the log. */
static void older_say(struct job *j, const char *dir)
{
	char text[300];

	snprintf(text, sizeof text,
		 "%s has " CONTAINER_OLDER_TEXT
		 ": ckpt_restore refuses it; use ckptd 0.1, or begin anew "
		 "(ckpt_fresh sets it aside)",
		 dir);
	job_log(j, LOG_WARNING, "launch", ": %s", text);
	job_error(j, 0, text);
}

static void touch_start(struct launch *l, struct member *m);
static void maybe_ready(struct launch *l);

/* l is the job's newest launch from now on; the one before it is over. */
static void launch_succeed(struct job *j, struct launch *l)
{
	struct launch *old = j->launch;

	j->launch = l;
	j->nbad = 0;
	j->failing = (struct failing){ 0 }; /* it has not tried */
	j->trigger = 0;			    /* it was for the ranks that were there */
	j->tally.newest = 0;
	if (!old)
		return;
	if (old->generation != l->generation) /* else its ranks bring it along */
		launch_skips(old, j->tally.skipped_by);
	if (launch_marked(old)) {
		j->run = old->run;
		j->restart = old->restart;
	}
	launch_fence(old, old->generation != l->generation || old->place != l->place);
	launch_unref(old);
}

void launch_claimed(struct launch *l, struct job *j, uint64_t generation)
{
	struct job *was = l->job;

	l->unclaimed = false;
	l->generation = generation;
	atomic_store(&l->page->generation, generation);
	if (was != j) {
		was->launch = NULL;
		l->job = j;
		place_unref(j->place);
		j->place = place_ref(l->place);
		device_unref(j->device);
		j->device = l->place->device;
		j->device->refs++;
		j->space = was->space;
		launch_succeed(j, l);
		/* Its slots get their memory now. */
		l->state = l->state == LAUNCH_READY ? LAUNCH_FORMING : l->state;
		for (uint32_t r = 0; r < l->world; r++)
			if (l->member[r].decl && !l->member[r].touched)
				touch_start(l, &l->member[r]);
		maybe_ready(l);
	} else if (l->state == LAUNCH_READY) {
		for (uint32_t i = 0; i < l->nslot; i++)
			slot_give(l, i);
	}
	keep_claimed(l);
	job_log(j, LOG_NOTICE, "launch",
		": a launch marks its first step and takes the job over, generation %" PRIu64,
		generation);
}

void sessions_retry(struct daemon *d)
{
	for (struct session *w = d->sessions, *next; w; w = next) {
		next = w->next;
		if (w->state == SESSION_WAITING && !w->busy && !w->closed)
			hello_try(w);
	}
}

static void claim_done(struct task *t)
{
	struct claim *c = (struct claim *)t;
	struct session *s = c->s;
	struct job *j = c->job;
	struct launch *l = NULL;

	j->claiming = false;
	claim_place(c);
	if (c->rc == 0)
		c->rc = launch_new(j, &s->hello, c->generation, &l, &c->err);
	if (c->rc == 0 && c->older[0])
		older_say(j, c->older);
	if (c->rc == 0) {
		struct launch *old = j->launch;

		l->step_fd = TAKE_FD(c->step_fd);
		l->again = c->again;
		if (old && old->generation == l->generation && old->place == l->place) {
			atomic_store(&l->line, atomic_load(&old->line));
			atomic_store(&l->seq, atomic_load(&old->seq));
			l->back = MAX(l->back, old->back);
		}
		if (c->stand == STAND_BESIDE) {
			l->unclaimed = true;
			atomic_store(&l->seq, c->seq);
			atomic_store(&l->page->unclaimed, 1);
			job_log(j, LOG_NOTICE, "launch",
				": process %d (rank %u of %u) has attached beside the launch that "
				"has the job; its first mark would take it over",
				(int)s->pid, s->hello.rank, l->world);
		}
		elsewhere_say(j, l);
		if (c->there || job_stages(j, l))
			launch_start(l, START_UNASKED);
		launch_succeed(j, l);
		if (!s->closed)
			welcome_send(s, l);
		else
			l->nlost++;
	} else {
		if (c->rc != -ESTALE || !j->launch || j->launch->state == LAUNCH_ENDED)
			job_error(j, 0, c->err.msg);
		if (!s->closed) {
			session_refuse(s, c->rc, c->err.msg);
			s->closed = true;
		}
	}
	session_unbusy(s);
	sessions_retry(j->d);
	store_step_leave(c->step_fd);
	free(c);
}

static void launch_begin(struct session *s, struct job *j, enum stand stand)
{
	struct claim *c = calloc(1, sizeof *c);

	if (!j->device)
		j->device = device_get(s->d, s->root_fd);
	if (!c || !j->device) {
		free(c);
		refuse_and_end(s, -ENOMEM, "no memory");
		return;
	}
	*c = (struct claim){ .s = s,
			     .job = j,
			     .stand = stand,
			     .place = j->place ? place_ref(j->place) : NULL,
			     .root_fd = s->root_fd,
			     .again = s->hello.flags & WIRE_REATTACH,
			     .dev = s->hello.dev,
			     .ino = s->hello.ino,
			     .ended = j->launch && !(s->hello.flags & WIRE_REATTACH)
					      ? j->launch->generation
					      : 0,
			     .base = s->hello.base,
			     .step_fd = -1,
			     .generation = s->hello.generation };
	j->claiming = true;
	session_busy(s);
	device_task(j->device, LANE_ASK, &c->task, claim_run, claim_done);
}

/* Does it come back to a directory, and is that another one than the newest launch's? */
static bool is_of_another_place(const struct wire_hello *h, const struct launch *l)
{
	return h->flags & WIRE_REATTACH && h->ino &&
	       (h->dev != l->place->dev || h->ino != l->place->ino);
}

/* A launch that is not the job's newest. back: or that one, come back. */
static void launch_stand(struct session *s, struct job *j, bool back)
{
	enum stand stand = back ? STAND_CLAIM : holder_stand(j, &s->hello);
	char text[512];

	if (back && j->beside)
		stand = STAND_BESIDE;
	if (stand == STAND_REFUSE) {
		holder_say(j, text, sizeof text);
		refuse_and_end(s, -EBUSY, text);
		return;
	}
	if (stand == STAND_BESIDE && !j->beside)
		j = holder_beside(j, &s->hello, true);
	if (j)
		launch_begin(s, j, stand);
	else
		refuse_and_end(s, -ENOMEM, "no memory for a job");
}

void hello_try(struct session *s)
{
	const struct wire_hello *h = &s->hello;
	struct ckpt_err err = { 0 };
	struct job *j = job_of(s, &err);
	struct job *beside;
	struct launch *l;
	bool same, elsewhere;

	if (atomic_load(&s->d->stops) >= 1000)
		return;
	if (!j) {
		refuse_and_end(s, err.code, err.msg);
		return;
	}
	if (j->claiming)
		return; /* asked again when the claim is done */
	beside = h->generation ? NULL : holder_beside(j, h, false);
	j = beside ? beside : j;
	if (j->claiming)
		return;
	l = j->launch;
	if (!l) {
		launch_begin(s, j, beside ? STAND_BESIDE : STAND_CLAIM);
		return;
	}
	elsewhere = is_of_another_place(h, l);
	if (elsewhere && l->state != LAUNCH_ENDED) {
		refuse_and_end(
			s, -EIO,
			"the directory of the job was moved or replaced: another launch writes to the "
			"directory of that name now, and this launch trains on detached");
		return;
	}
	if ((h->generation && h->generation < l->generation && h->flags & WIRE_REATTACH &&
	     !elsewhere) ||
	    (h->run && h->run == l->run && h->restart < l->restart && launch_lives(l))) {
		refuse_and_end(s, -ESTALE,
			       "a newer launch of this job has taken over: stop this one");
		return;
	}
	same = h->generation ? h->generation == l->generation : launch_is_of(l, h);
	if (!same || elsewhere || (l->nlost && (!h->generation || h->flags & WIRE_REATTACH)) ||
	    (l->state == LAUNCH_ENDED && !(h->flags & WIRE_REATTACH))) {
		/* A live rank that lost its connection begins the launch anew, and the others, sent
		 * away, come after it. Whether a number is too low or was there already is for the
		 * directory to say that the job's name leads to now. */
		launch_stand(s, j, same || h->flags & WIRE_REATTACH);
	} else if (l->nlost || l->state == LAUNCH_ENDED) {
		refuse_and_end(
			s, -ESTALE,
			"a rank of this launch has ended: start all ranks again with a higher generation");
	} else if (h->world != l->world || h->nslot != l->slots) {
		char text[160];

		snprintf(
			text, sizeof text,
			"rank %u has world %u and %u slots, other ranks of the launch have %u and %u",
			h->rank, h->world, h->nslot, l->world, l->slots);
		refuse_and_end(s, -EINVAL, text);
	} else if (l->member[h->rank].attached) {
		refuse_and_end(s, -EBUSY, "this rank is attached already in this launch");
	} else {
		welcome_send(s, l);
	}
}

/* --- declaring --- */
struct declare {
	struct task task;
	struct session *s; /* busy */
	struct launch *l;
	void *bytes;
	uint64_t len;
	uint32_t epoch, rev;
	uint32_t nseg;
	struct segment **seg; /* the member's; it adds none while busy */
	/* Of a later rev: the one before it, and larger slots, in memory, where it needs them */
	struct decl *before;
	uint32_t nslot, nsure; /* as slots_sure */
	struct slotmem *slot[WIRE_SLOTS_MAX];
	uint64_t slot_bytes, memory_max; /* slot_bytes: of those that it has */
	struct decl *decl;
	struct decl **other;   /* [world] of the other ranks, in this epoch: references */
	struct agreed *agreed; /* the launch's, for so long */
	struct declare *next;
	struct names *names; /* reference */
	int rc;
	struct ckpt_err err;
};

static int slots_fit(const struct member *m, uint32_t nslot, const struct decl *d,
		     uint64_t memory_max, struct ckpt_err *err)
{
	uint64_t all = d->raw_bytes * nslot, average = averages_slot_bytes(d) * nslot;
	char of[160] = "";

	if (!memory_max || all <= memory_max)
		return 0;
	if (average)
		snprintf(of, sizeof of,
			 ", %" PRIu64 " of them for averages (%u of them, in each slot)", average,
			 d->averages->nspec);
	return ckpt_error(err, -ENOMEM,
			  "%u slots of rank %u need %" PRIu64
			  " bytes%s, but memory_max allows %" PRIu64,
			  nslot, m->rank, all, of, memory_max);
}

/* Those that are had in any case. */
static uint32_t slots_sure(const struct launch *l)
{
	return l->third == THIRD_ASKED ? l->nslot - 1 : l->nslot;
}

/* Those that the ranks map. */
static uint32_t slots_mapped(const struct launch *l)
{
	return l->nslot + (l->third == THIRD_LATER || l->third == THIRD_GROWING);
}

/* In memory before the library maps them: its next snapshot is not skipped. */
static int other_slots(struct declare *d)
{
	int rc = slots_fit(d->s->member, d->nsure, d->decl, d->memory_max, &d->err);

	for (uint32_t i = 0; i < d->nslot && rc == 0; i++) {
		rc = slotmem_new(&d->l->job->d->reaper, d->decl->raw_bytes, &d->slot[i], &d->err);
		if (rc == 0 && i < d->nsure && (rc = slotmem_touch(d->slot[i])) < 0)
			ckpt_error_errno(&d->err, -rc, "no memory for the slots of rank %u",
					 d->s->hello.rank);
	}
	return rc;
}

static void declare_run(struct task *t)
{
	struct declare *d = (struct declare *)t;

	d->rc = decl_make(d->bytes, d->len, d->epoch, d->rev, d->s->hello.rank, d->seg, d->nseg,
			  d->names, &d->decl, &d->err);
	if (d->rc == 0 && d->before)
		d->rc = decl_moves_only(d->before, d->decl, &d->err);
	/* A slot in which pieces lay elsewhere has bytes between them that are not zero. */
	if (d->rc == 0 && d->before &&
	    (d->decl->raw_bytes > d->slot_bytes || d->decl->slot_sum != d->before->slot_sum))
		d->rc = other_slots(d);
}

/* Does the rank bring slots along? */
static bool member_adopts(const struct launch *l, const struct member *m)
{
	for (uint32_t i = 0; i < l->nslot; i++)
		if (m->adopt[i].mem)
			return true;
	return false;
}

/* The first declaration of an epoch, if no rank asks for a number: the others average alike. With
 * averages, or where the disk is slow, there is a third slot, if there is memory for it: see
 * third_decide, third_grow. */
static void slots_count(struct launch *l, const struct member *m, const struct decl *decl)
{
	bool third = decl->averages || l->job->slow_disk ||
		     (m->adopt[2].mem && m->adopt[2].step != UINT64_MAX);

	if (l->slots || l->slots_epoch == decl->epoch)
		return;
	launch_ring(l); /* what was marked before was in the slots of then */
	gate_close(l);
	l->nslot = third ? 3 : 2;
	l->third = third ? THIRD_ASKED : THIRD_LATER;
	l->slots_epoch = decl->epoch;
}

/* What a rank brings along: has this launch averaged? Where that cannot be seen it may have. */
static void averaged_note(struct launch *l, const struct member *m, const struct decl *decl)
{
	for (uint32_t i = 0; decl->averages && i < WIRE_SLOTS_MAX; i++) {
		const struct slotmem *mem = m->adopt[i].mem;

		if (mem &&
		    (decl->epoch != 1 || mem->bytes != decl->raw_bytes || average_slot_used(mem)))
			l->averaged = true;
	}
}

static uint32_t lent_to_others(const struct launch *l, const struct member *m)
{
	uint32_t lent = 0;

	for (uint32_t r = 0; r < l->world; r++)
		if (r != m->rank)
			lent |= slots_lent(l, l->member[r].slot);
	return lent;
}

/* Is what it brings along in this slot no step, because another rank does not bring it? */
static bool adopt_failed(const struct launch *l, const struct member *m, uint32_t slot)
{
	for (uint32_t r = 0; r < l->world; r++) {
		const struct adopt *a = &l->member[r].adopt[slot];

		if (r != m->rank && l->member[r].decl &&
		    (!a->bytes_held || a->step != m->adopt[slot].step))
			return true;
	}
	return false;
}

/* One slot at least can be marked into at once on all ranks. If those that m brings along are the
 * last of them, it gets memory for one anew. lent: to the others. */
static int slot_free_up(struct launch *l, struct member *m, struct slotmem **slot, uint32_t lent,
			struct ckpt_err *err)
{
	uint32_t all = (1u << l->nslot) - 1, mine = slots_lent(l, slot) & ~lent;
	uint64_t bytes;

	if (!mine || lent == all || (lent | mine) != all)
		return 0;
	for (uint32_t i = 0; i < l->nslot; i++) {
		if (!(mine >> i & 1) || !adopt_failed(l, m, i))
			continue;
		m->adopt[i].step = UINT64_MAX;
		m->adopt[i].bytes_held = false;
		bytes = slot[i]->bytes;
		slotmem_unref(TAKE(slot[i]));
		return slotmem_new(&l->job->d->reaper, bytes, &slot[i], err);
	}
	return 0;
}

static int give_slots(struct launch *l, struct member *m, struct decl *decl, struct ckpt_err *err)
{
	struct slotmem *slot[WIRE_SLOTS_MAX] = { 0 };
	uint32_t lent, at;
	int rc;

	slots_count(l, m, decl);
	rc = slots_fit(m, slots_sure(l), decl, m->session->hello.memory_max, err);
	if (rc < 0)
		return rc;
	averaged_note(l, m, decl);
	for (uint32_t i = slots_mapped(l); i < WIRE_SLOTS_MAX; i++)
		slotmem_unref(TAKE(m->adopt[i].mem));
	/* Those that hold a step of the launch before */
	lent = lent_to_others(l, m);
	while (!member_adopts(l, m) && (at = spare_at(l, lent, slot)) != TABLE_NONE &&
	       (slot[at] = spare_take(l, m, decl, true)))
		;
	for (uint32_t i = 0; i < l->nslot && rc == 0; i++) {
		if (!slot[i] && !member_adopts(l, m))
			slot[i] = spare_take(l, m, decl, false);
	}
	spares_drop(l->job, m->rank); /* before more is asked of the host */
	for (uint32_t i = 0; i < slots_mapped(l) && rc == 0; i++) {
		struct adopt *a = &m->adopt[i];

		if (a->mem && a->mem->bytes == decl->raw_bytes &&
		    (a->step == UINT64_MAX ? spare_brought(l, m->rank, a->mem, decl)
					   : a->epoch == decl->epoch)) {
			slot[i] = TAKE(a->mem);
			a->bytes_held = true;
		} else {
			a->step = UINT64_MAX;
			slotmem_unref(TAKE(a->mem));
			if (slot[i])
				continue;
			rc = slotmem_new(&l->job->d->reaper, decl->raw_bytes, &slot[i], err);
		}
	}
	if (rc == 0)
		rc = slot_free_up(l, m, slot, lent, err);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++) {
		struct slotmem *old = rc == 0 ? m->slot[i] : slot[i];

		if (rc == 0)
			m->slot[i] = slot[i];
		slotmem_unref(old);
	}
	launch_lent(l);
	return rc;
}

static void third_touch(struct launch *l, struct member *m);
static void cover_start(struct launch *l);

static void declare_answer(const struct declare *c, const struct member *m)
{
	struct wire_sealed w = { .epoch = c->epoch,
				 .rev = c->rev,
				 .nslot = slots_mapped(c->l),
				 .slot_bytes = m->slot[0]->bytes,
				 .nrow = m->decl->nrow };
	int fd[WIRE_SLOTS_MAX + 1], nfd = (int)w.nslot;

	for (uint32_t i = 0; i < w.nslot; i++)
		fd[i] = m->slot[i]->fd;
	if (w.nrow)
		fd[nfd++] = m->decl->rows_fd;
	session_reply(c->s, &w, WIRE_SEALED, fd, nfd);
}

/* What was marked before is copied by the rows of then; and what the rank has passed before it
 * sealed tears nothing that is marked from now on. */
static void declare_ring(struct launch *l, struct member *m)
{
	launch_ring(l);
	m->passed = m->page ? load_acquire(&m->page->passed_step) : 0;
}

static void declare_sealed(struct declare *c, struct member *m)
{
	struct launch *l = c->l;

	declare_ring(l, m);
	decl_unref(m->decl);
	m->decl = TAKE(c->decl);
	m->touched = false;
	if (l->covered_epoch == c->epoch) /* that was another declaration */
		l->covered_epoch = 0;
	launch_judge(l, 0, NULL); /* a new declaration, a new judgement */
	launch_unready(l);
	l->state = LAUNCH_FORMING;
	l->forming_ns = l->forming_ns ? l->forming_ns : now_ns();
	declare_answer(c, m);
	average_seeds_take(l, m->decl, c->s);
	if (!l->job->beside)
		touch_start(l, m);
	cover_start(l);
}

/* A later rev of this rank alone. What was marked before it is copied into the slots of then: these
 * snaps hold them. The rank marks nothing more before it has the answer. */
static void declare_revised(struct declare *c, struct member *m)
{
	bool others = c->slot[0] != NULL;

	declare_ring(c->l, m);
	decl_unref(m->decl);
	m->decl = TAKE(c->decl);
	for (uint32_t i = 0; i < c->nslot && others; i++) {
		slotmem_unref(m->slot[i]);
		m->slot[i] = TAKE(c->slot[i]);
	}
	declare_answer(c, m);
	if (others && c->l->third == THIRD_GROWING)
		third_touch(c->l, m);
	/* A third one that was granted meanwhile */
	if (others && !m->slot[slots_sure(c->l) - 1]->touched) {
		m->touched = c->l->state != LAUNCH_FORMING;
		touch_start(c->l, m);
	}
}

static void declare_end(struct declare *c)
{
	struct session *s = c->s;
	struct launch *l = c->l;
	struct member *m = s->member;

	if (c->rc == 0 && !s->closed && !c->before)
		c->rc = give_slots(l, m, c->decl, &c->err);
	if (c->rc < 0 && !s->closed)
		session_refuse(s, c->rc, c->err.msg);
	else if (!s->closed && c->before)
		declare_revised(c, m);
	else if (!s->closed)
		declare_sealed(c, m);
	decl_unref(c->decl);
	names_unref(c->names);
	decl_unref(c->before);
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		slotmem_unref(c->slot[i]);
	munmap(c->bytes, c->len);
	free(c);
	session_unbusy(s);
}

static void agree_next(struct launch *l);

static void agree_run(struct task *t)
{
	struct declare *c = (struct declare *)t;

	c->rc = agree(&c->agreed, c->decl, c->other, c->l->world, &c->err);
}

static void agree_done(struct task *t)
{
	struct declare *c = (struct declare *)t;
	struct launch *l = c->l;

	l->agreed = TAKE(c->agreed);
	l->agreeing = false;
	for (uint32_t r = 0; r < l->world; r++)
		decl_unref(c->other[r]);
	free(c->other);
	declare_end(c);
	agree_next(l);
	launch_unref(l);
}

/* The next one that waits is held against all that were accepted. */
static void agree_next(struct launch *l)
{
	struct declare *c = l->waiting;

	if (l->agreeing || !c)
		return;
	l->waiting = c->next;
	c->other = calloc(l->world, sizeof(struct decl *));
	if (!c->other) {
		c->rc = ckpt_error(&c->err, -ENOMEM, "no memory for a declaration");
		declare_end(c);
		agree_next(l);
		launch_unref(l);
		return;
	}
	for (uint32_t r = 0; r < l->world; r++)
		if (r != c->decl->rank && l->member[r].decl && l->member[r].decl->epoch == c->epoch)
			c->other[r] = decl_ref(l->member[r].decl);
	c->agreed = TAKE(l->agreed);
	l->agreeing = true;
	daemon_task(&l->job->d->work, &c->task, agree_run, agree_done);
}

static void declare_done(struct task *t)
{
	struct declare *c = (struct declare *)t, **last = &c->l->waiting;
	struct launch *l = c->l;

	/* Of a later rev all others agree to what was compared with the rev before it. */
	if (c->rc < 0 || c->s->closed || c->before) {
		declare_end(c);
		launch_unref(l);
		return;
	}
	while (*last)
		last = &(*last)->next;
	*last = c;
	agree_next(l);
}

/* Those of the epoch: a reference, or NULL. */
static struct names *launch_names(struct launch *l, uint32_t epoch)
{
	if (!l->names || l->names_epoch != epoch) {
		names_unref(l->names);
		l->names = names_new();
		l->names_epoch = epoch;
	}
	return l->names ? names_ref(l->names) : NULL;
}

void launch_declare(struct session *s, const struct wire_declare *m, int fd)
{
	struct declare *c = calloc(1, sizeof *c);
	struct ckpt_err err = { 0 };

	if (c)
		c->names = launch_names(s->launch, m->epoch);
	if (!c || !c->names || m->epoch == 0 || wire_map(fd, m->bytes, 1, &c->bytes, &err) < 0) {
		session_refuse(
			s,
			err.code	? err.code
			: c && c->names ? -EPROTO
					: -ENOMEM,
			err.code ? err.msg
				 : "the declaration is malformed, or ckptd has no memory for it");
		if (c)
			names_unref(c->names);
		free(c);
		return;
	}
	c->s = s;
	c->l = s->launch;
	c->l->refs++;
	c->len = m->bytes;
	c->epoch = m->epoch;
	c->rev = m->rev;
	c->nslot = slots_mapped(s->launch);
	c->nsure = slots_sure(s->launch);
	c->memory_max = s->hello.memory_max;
	if (s->member->decl && s->member->decl->epoch == m->epoch &&
	    s->member->decl->rev < m->rev) {
		c->before = decl_ref(s->member->decl);
		c->slot_bytes = s->member->slot[0]->bytes;
	}
	c->seg = s->member->seg;
	c->nseg = s->member->nseg;
	session_busy(s);
	daemon_task(&s->d->work, &c->task, declare_run, declare_done);
}

/* --- becoming ready: every declaration is there, together they cover every tensor, every slot is
 * in memory --- */
static bool all_declared(const struct launch *l, uint32_t *ret_epoch)
{
	for (uint32_t r = 0; r < l->world; r++)
		if (!l->member[r].decl || l->member[r].decl->epoch != l->member[0].decl->epoch)
			return false;
	*ret_epoch = l->member[0].decl->epoch;
	return true;
}

/* The slot with the lowest step at or above *above, which becomes one more than that. */
static uint32_t adopt_lowest(const struct launch *l, uint64_t *above)
{
	uint64_t low = UINT64_MAX;
	uint32_t best = 0;

	for (uint32_t i = 0; i < l->nslot; i++)
		if (l->member[0].adopt[i].step >= *above && l->member[0].adopt[i].step < low) {
			low = l->member[0].adopt[i].step;
			best = i;
		}
	*above = low == UINT64_MAX ? low : low + 1;
	return best;
}

/* A step that every rank brings along in the same slot under the same epoch is staged again (after
 * a daemon's death). */
static void adopt_staged(struct launch *l)
{
	uint64_t above = 0;

	/* lowest step first: the last one is the newest */
	for (uint32_t n = 0; n < l->nslot; n++) {
		uint32_t i = adopt_lowest(l, &above);
		struct adopt *a = &l->member[0].adopt[i];
		bool all = a->step != UINT64_MAX && a->epoch == l->epoch && a->bytes_held;
		uint32_t flags = a->flags;

		all = all && turned_fits(a->turn, a->rev, l->member[0].decl);
		for (uint32_t r = 1; r < l->world && all; r++) {
			const struct adopt *b = &l->member[r].adopt[i];

			all = MUTANT(ADOPTED_FROM_ONE) ||
			      (b->step == a->step && b->epoch == a->epoch && b->bytes_held &&
			       turned_fits(b->turn, b->rev, l->member[r].decl));
			flags |= b->flags & (RECORD_NO_AVERAGE | RECORD_BY_HAND);
		}
		if (all)
			snap_adopt(l, i, a->step, flags, a->mark_ns);
		a->bytes_held = false;
	}
	for (uint32_t r = 0; r < l->world; r++)
		for (uint32_t i = 0; i < l->nslot; i++)
			l->member[r].adopt[i] = (struct adopt){ .step = UINT64_MAX };
}

/* Do all ranks that have declared bring the same step along in this slot? */
static bool slot_brings(const struct launch *l, uint32_t i)
{
	uint64_t step = UINT64_MAX;

	for (uint32_t r = 0; r < l->world; r++) {
		const struct adopt *a = &l->member[r].adopt[i];

		if (!l->member[r].decl)
			continue;
		if (!a->bytes_held || a->step == UINT64_MAX ||
		    (step != UINT64_MAX && a->step != step))
			return false;
		step = a->step;
	}
	return step != UINT64_MAX;
}

bool launch_brings(const struct launch *l)
{
	for (uint32_t i = 0; i < l->nslot && l->state == LAUNCH_FORMING; i++)
		if (slot_brings(l, i))
			return true;
	return false;
}

/* --- the third slot (slots 0) --- */

/* Two are left. Ranks keep the third one mapped, without memory: the gate does not offer it. */
static void third_drop(struct launch *l, const char *why)
{
	l->third = THIRD_SETTLED;
	l->nslot--;
	for (uint32_t r = 0; r < l->world; r++) {
		slotmem_unref(TAKE(l->member[r].slot[l->nslot]));
		l->member[r].touched = l->member[r].decl != NULL;
	}
	launch_lent(l);
	job_log(l->job, LOG_NOTICE, "launch", ": two slots instead of three: %s", why);
}

/* Does a rank bring it along with a step in it? Then it was decided before. */
static bool third_held(const struct member *m, uint32_t third)
{
	const struct adopt *a = &m->adopt[third];

	return a->bytes_held && a->step != UINT64_MAX;
}

/* Why there is no memory for it; "": there is. */
static void third_refused(const struct launch *l, uint32_t third, char why[160])
{
	uint64_t (*available)(void) = l->job->d->opts.available;
	uint64_t need = 0, there = available ? available() : pages_available();

	why[0] = 0;
	for (uint32_t r = 0; r < l->world; r++) {
		const struct member *m = &l->member[r];
		struct ckpt_err err;

		if (!m->slot[third]->touched && !third_held(m, third))
			need += m->slot[third]->bytes;
		if (!why[0] && slots_fit(m, third + 1, m->decl,
					 m->session ? m->session->hello.memory_max : 0, &err) < 0)
			snprintf(why, 160,
				 "memory_max of rank %u allows no third one of %" PRIu64 " MiB", r,
				 m->decl->raw_bytes / MIB);
	}
	if (!why[0] && need && there < need + 64 * MIB)
		snprintf(why, 160,
			 "a third one of each rank needs %" PRIu64
			 " MiB, and the host has %" PRIu64,
			 need / MIB, there / MIB);
}

/*
 * All ranks have declared, and what they have in any case is in memory: may each have a slot more?
 * Asked once in an epoch. Its memory is counted for all of them before any is taken.
 */
static void third_decide(struct launch *l)
{
	uint32_t third = l->nslot - 1;
	bool held = false;
	char why[160];

	for (uint32_t r = 0; r < l->world; r++)
		held |= third_held(&l->member[r], third);
	third_refused(l, third, why);
	if (why[0] && !held) {
		third_drop(l, why);
		return;
	}
	l->third = THIRD_TOUCHED;
	for (uint32_t r = 0; r < l->world; r++) {
		l->member[r].touched = false;
		touch_start(l, &l->member[r]);
	}
}

/* What averages take, beside what the snapshots would without them. */
static void averages_say(const struct launch *l)
{
	const struct averages *a = l->member[0].decl->averages;
	uint64_t bytes = 0, slot = 0, all = 0;

	if (!a)
		return;
	for (uint32_t r = 0; r < l->world; r++) {
		const struct decl *d = l->member[r].decl;

		for (uint32_t i = 0; i < d->averages->made.npiece; i++)
			bytes += d->averages->made.piece[i].len;
		slot += averages_slot_bytes(d);
		all += d->raw_bytes;
	}
	job_log(l->job, LOG_NOTICE, "launch",
		": averages (%u) have %" PRIu64 " elements of 4 bytes on this host: %" PRIu64
		" MiB in each of %u slots, %" PRIu64 " MiB of memory beside the %" PRIu64
		" MiB of the snapshots",
		a->nspec, bytes / 4, div_up(slot, MIB), l->nslot, div_up(slot, MIB) * l->nslot,
		(all - slot) / MIB * l->nslot);
	if (l->nslot < 3)
		job_log(l->job, LOG_NOTICE, "launch",
			": with averages and two slots every second step is averaged; "
			"slots 3 averages each");
}

static void maybe_ready(struct launch *l)
{
	uint32_t epoch;

	if (l->state != LAUNCH_FORMING || l->covering || !all_declared(l, &epoch) ||
	    l->covered_epoch != epoch || l->nlost || average_seeds_pending(l))
		return;
	for (uint32_t r = 0; r < l->world; r++)
		if (!l->member[r].touched && !l->job->beside)
			return;
	if (l->third == THIRD_ASKED && !l->job->beside) {
		third_decide(l);
		if (l->third == THIRD_TOUCHED)
			return; /* touch_done comes again */
	}
	if (!l->job->beside && l->third != THIRD_LATER)
		l->third = THIRD_SETTLED;
	atomic_store(&l->page->nslot, l->nslot); /* before the epoch is ready */
	l->epoch = epoch;
	l->state = LAUNCH_READY;
	l->forming_ns = 0;
	spares_drop(l->job, TABLE_NONE);
	adopt_staged(l);
	for (uint32_t i = 0; i < l->nslot; i++)
		if (!snap_in_slot(l, i))
			slot_give(l, i);
	job_settle(l->job);	 /* reports what was taken over before the launch is ready */
	waits_tick(l, now_ns()); /* what it waited for is no reason for what is skipped later */
	atomic_store(&l->page->joined, epoch); /* before a rank may know that it is ready */
	atomic_store(&l->page->ready_epoch, epoch);
	shared_event(l->page);
	holder_answer(l);
	restore_try(l);
	job_log(l->job, LOG_INFO, "launch",
		" ready, epoch %u, %u slots of %" PRIu64 " MiB for rank 0", epoch, l->nslot,
		l->member[0].decl->raw_bytes / MIB);
	averages_say(l);
}

struct touch {
	struct task task;
	struct launch *l;
	struct member *m;
	uint32_t epoch, n;
	bool third; /* third_touch */
	struct slotmem *slot[WIRE_SLOTS_MAX];
	struct decl *decl;
	int rc;
};

static void touch_run(struct task *t)
{
	struct touch *c = (struct touch *)t;
	uint64_t need = 0;

	for (uint32_t i = 0; i < c->n; i++)
		need += c->slot[i]->touched ? 0 : c->slot[i]->bytes;
	/* An overcommitted host kills some process; not starting is better. */
	if (need && pages_available() < need + 64 * MIB)
		c->rc = -ENOMEM;
	for (uint32_t i = 0; i < c->n && c->rc == 0; i++)
		if (!c->slot[i]->touched)
			c->rc = slotmem_touch(c->slot[i]);
	for (uint32_t i = 0; i < c->n && c->rc == 0; i++)
		if (c->slot[i]->dirty)
			c->rc = slotmem_clean(c->slot[i], c->decl);
}

static void touch_done(struct task *t);

/* Every rank has it in memory, and its copier is prepared for it: the gate gets it. */
static void third_give(struct launch *l)
{
	uint32_t third = l->nslot;

	if (l->third != THIRD_GROWING || l->state != LAUNCH_READY)
		return;
	for (uint32_t r = 0; r < l->world; r++)
		if (!l->member[r].slot[third] || !l->member[r].slot[third]->touched)
			return;
	if (atomic_load(&l->page->nslot) == third) {
		atomic_store(&l->page->nslot, third + 1);
		shared_event(l->page);
	}
	for (uint32_t r = 0; r < l->world; r++)
		if (load_acquire(&l->member[r].page->prepared) <
		    ((uint64_t)l->epoch << 8 | (third + 1)))
			return; /* launch_ring comes again */
	l->third = THIRD_SETTLED;
	l->nslot++;
	slot_give(l, third);
	job_log(l->job, LOG_NOTICE, "launch",
		": a third slot, for writing takes more than 5 %% of the time between the steps that "
		"are written");
}

static void third_touched(struct touch *c)
{
	struct launch *l = c->l;
	bool now = l->third == THIRD_GROWING && c->epoch == l->slots_epoch &&
		   c->m->slot[l->nslot] == c->slot[0];

	if (now && c->rc < 0) {
		l->third = THIRD_LATER;
		l->slow = 0; /* asked again some commits later */
	} else if (now) {
		third_give(l);
	}
	slotmem_unref(c->slot[0]);
	decl_slot_unref(c->decl);
	free(c);
	launch_unref(l);
}

static void third_touch(struct launch *l, struct member *m)
{
	struct touch *c = calloc(1, sizeof *c);

	if (!c)
		return; /* there is no third one then */
	*c = (struct touch){ .l = l,
			     .m = m,
			     .epoch = m->decl->epoch,
			     .n = 1,
			     .third = true,
			     .slot = { slotmem_ref(m->slot[l->nslot]) },
			     .decl = decl_slot_ref(m->decl) };
	l->refs++;
	daemon_task(&l->job->d->work, &c->task, touch_run, touch_done);
}

/* Writing is slow: each rank gets the third slot that it has mapped, if there is memory. */
static void third_grow(struct launch *l)
{
	char why[160];

	if (l->third != THIRD_LATER || l->state != LAUNCH_READY || l->nlost || l != l->job->launch)
		return;
	for (uint32_t r = 0; r < l->world; r++)
		if (!l->member[r].decl || !l->member[r].slot[l->nslot])
			return; /* it has declared anew meanwhile */
	third_refused(l, l->nslot, why);
	if (why[0]) {
		job_log(l->job, LOG_NOTICE, "launch",
			": writing is slow, and there is no third slot: %s", why);
		l->third = THIRD_SETTLED;
		return;
	}
	l->third = THIRD_GROWING;
	for (uint32_t r = 0; r < l->world; r++)
		third_touch(l, &l->member[r]);
}

#define SLOW_MIN 3u /* in a row: one may be slow by chance */

void launch_wrote(struct launch *l, uint64_t took_ns)
{
	bool slow = l->persist_ns && took_ns > l->persist_ns / 20;

	l->slow = slow ? l->slow + 1 : 0;
	if (l->slow < SLOW_MIN || MUTANT(THIRD_NEVER))
		return;
	l->job->slow_disk = true;
	third_grow(l);
}

static void touch_done(struct task *t)
{
	struct touch *c = (struct touch *)t;
	struct launch *l = c->l;

	if (c->third) {
		third_touched(c);
		return;
	}
	if (c->rc < 0 && l->third == THIRD_TOUCHED && c->epoch == l->slots_epoch) {
		third_drop(l, "the host has no memory for a third");
		c->rc = 0;
	}
	if (c->m->decl && c->m->decl->epoch == c->epoch) {
		c->m->touched = c->rc == 0;
		c->m->touch_again_ns = c->rc < 0 ? now_ns() + NS_PER_S : 0;
	}
	if (c->rc < 0) {
		char text[160];

		snprintf(
			text, sizeof text,
			"rank %u: no memory for its slots (%s); snapshots are skipped until there is",
			c->m->rank, strerror(-c->rc));
		job_error(l->job, 0, text);
		job_log(l->job, LOG_WARNING, "launch",
			", rank %u: no memory for its slots yet (%s); snapshots are skipped until there is",
			c->m->rank, strerror(-c->rc));
		for (struct snap *s = l->job->snaps, *next; s; s = next) {
			next = s->next;
			if (s->launch != l && s->phase == PHASE_STAGED && s->committed)
				snap_release(s);
		}
		for (struct job *j = l->job->d->jobs; j; j = j->next)
			spares_drop(j, TABLE_NONE);
	}
	for (uint32_t i = 0; i < c->n; i++)
		slotmem_unref(c->slot[i]);
	decl_slot_unref(c->decl);
	free(c);
	maybe_ready(l);
	launch_unref(l);
}

static void touch_start(struct launch *l, struct member *m)
{
	struct touch *c = calloc(1, sizeof *c);

	m->touch_again_ns = 0;
	if (!c) {
		m->touch_again_ns = now_ns() + NS_PER_S;
		return;
	}
	*c = (struct touch){ .l = l,
			     .m = m,
			     .epoch = m->decl->epoch,
			     .n = slots_sure(l),
			     .decl = decl_slot_ref(m->decl) };
	for (uint32_t i = 0; i < c->n; i++)
		c->slot[i] = slotmem_ref(m->slot[i]);
	l->refs++;
	daemon_task(&l->job->d->work, &c->task, touch_run, touch_done);
}

struct cover {
	struct task task;
	struct launch *l;
	uint32_t epoch, n;
	struct decl **decl;
	struct whole *whole;
	uint64_t need; /* on disk */
	int rc;
	struct ckpt_err err;
};

static void cover_run(struct task *t)
{
	struct cover *c = (struct cover *)t;

	for (uint32_t r = 0; r < c->n; r++)
		c->need += decl_bytes_max(c->decl[r], true);
	c->rc = whole_make(c->decl, c->n, &c->whole, &c->err);
}

/* Of the declarations that the launch has? */
static bool cover_is_new(const struct cover *c)
{
	for (uint32_t r = 0; r < c->n; r++)
		if (c->l->member[r].decl != c->decl[r])
			return false;
	return true;
}

static void cover_done(struct task *t)
{
	struct cover *c = (struct cover *)t;
	struct launch *l = c->l;
	uint32_t epoch;

	l->covering = false;
	if (!all_declared(l, &epoch) || epoch != c->epoch || !cover_is_new(c)) {
		cover_start(l);
	} else if (c->rc < 0) {
		launch_refuse(l, c->rc, c->err.msg);
	} else {
		launch_judge(l, 0, NULL);
		l->covered_epoch = epoch;
		whole_unref(l->whole);
		l->whole = TAKE(c->whole);
		agreed_free(TAKE(l->agreed));
		names_unref(TAKE(l->names));
		if (l == l->job->launch)
			l->job->space.need_bytes = c->need + KEEP_SPARE;
		if (!average_seeds_check(l))
			maybe_ready(l);
	}
	for (uint32_t r = 0; r < c->n; r++)
		decl_unref(c->decl[r]);
	whole_unref(c->whole);
	free(c->decl);
	free(c);
	launch_unref(l);
}

void launch_seeds_checked(struct launch *l, uint32_t epoch, int rc, const char *text)
{
	if (l->covered_epoch != epoch)
		return; /* it was declared anew */
	if (rc < 0) {
		l->covered_epoch = 0;
		launch_refuse(l, rc, text);
	}
	maybe_ready(l);
}

static void cover_start(struct launch *l)
{
	struct cover *c;
	uint32_t epoch;

	if (l->covering || !all_declared(l, &epoch) || l->covered_epoch == epoch)
		return;
	c = calloc(1, sizeof *c);
	if (!c || !(c->decl = calloc(l->world, sizeof(struct decl *)))) {
		free(c);
		return;
	}
	c->l = l;
	c->epoch = epoch;
	c->n = l->world;
	for (uint32_t r = 0; r < l->world; r++)
		c->decl[r] = decl_ref(l->member[r].decl);
	l->covering = true;
	l->refs++;
	daemon_task(&l->job->d->work, &c->task, cover_run, cover_done);
}

/* --- losing members --- */
void launch_member_gone(struct launch *l, struct member *m, bool dead)
{
	uint32_t attached;
	char text[128];

	l->nlost++;
	m->lost = dead;
	m->left = !dead;
	if (dead) {
		l->ndied++;
		l->died_wall_ns = wall_ns();
	}
	snprintf(text, sizeof text, "rank %u %s: start all ranks of the job again", m->rank,
		 dead ? "has ended" : "has detached");
	launch_judge(l, -ECONNRESET, text);
	launch_unready(l);
	launch_ring(l);
	snap_member_gone(l, m, dead);
	attached = launch_attached(l);
	job_log(l->job, dead && l == l->job->launch ? LOG_WARNING : LOG_INFO, "launch",
		": rank %u %s, %u of %u left", m->rank,
		dead ? "has died (it ended and had not detached)" : "detached", attached, l->world);
	holder_answer(l);
	restore_try(l);
	if (attached == 0) {
		l->state = LAUNCH_ENDED;
		if (l == l->job->launch)
			l->job->trigger = 0;
		snap_salvage(l);
		spares_keep(l);
		/* What snaps and tasks need, they hold themselves. */
		agreed_free(TAKE(l->agreed));
		for (uint32_t r = 0; r < l->world; r++)
			member_release(&l->member[r]);
	}
	job_settle(l->job);
}

void launch_skips(const struct launch *l, uint64_t ret[WIRE_SKIPS])
{
	uint64_t most[WIRE_SKIPS] = { 0 }, most_sum = 0;

	for (uint32_t r = 0; l && r < l->world; r++) {
		const struct shared_rank *p = l->member[r].page;
		uint64_t of[WIRE_SKIPS], sum = 0;

		for (uint32_t i = 0; p && i < WIRE_SKIPS; i++)
			sum += of[i] = load_relaxed(&p->skipped[i]);
		if (sum <= most_sum)
			continue;
		memcpy(most, of, sizeof most);
		most_sum = sum;
	}
	for (uint32_t i = 0; i < WIRE_SKIPS; i++)
		ret[i] += most[i];
}

static void skipping_log(struct launch *l)
{
	uint32_t now = 0, rank = 0;

	for (uint32_t r = 0; r < l->world && !now; r++) {
		const struct member *m = &l->member[r];

		now = m->session ? load_relaxed(&m->page->skipping) : 0;
		rank = r;
	}
	if (!now != !l->skipping && now)
		job_log(l->job, LOG_WARNING, "launch",
			": more than half of the newest 32 snapshots of rank %u were "
			"skipped: %s",
			rank, wire_skip_text(now - 1));
	else if (!now != !l->skipping)
		job_log(l->job, LOG_NOTICE, "launch", ": snapshots are taken again");
	l->skipping = now;
}

void launch_tick(struct launch *l, uint64_t now)
{
	atomic_store(&l->page->beat_ns, now);
	for (uint32_t r = 0; r < l->world; r++)
		if (l->member[r].touch_again_ns && now > l->member[r].touch_again_ns)
			touch_start(l, &l->member[r]);
	launch_ring(l);
	holder_tick(l);
	third_give(l);
	skipping_log(l);
	restore_tick(l, now);
	waits_tick(l, now);
}
