// SPDX-License-Identifier: Apache-2.0
// holder.c - see holder.h. Called by launch, session and restore.
// Invariant: a launch without a claim is in no gate, and changes nothing of the holder's.
#include "daemon/holder.h"
#include "ckpt/base/mutant.h"
#include <inttypes.h>
#include <stdio.h>

#define SAME_LAUNCH_NS (120 * NS_PER_S) /* from its first rank's attach to its last one's */
#define OVERTAKEN_NS NS_PER_S

/* --- of this daemon --- */
static bool member_lives(const struct member *m)
{
	if (m->session)
		return !m->session->said_bye && !member_dead(m);
	return m->pidfd >= 0 && !member_dead(m);
}

bool launch_lives(const struct launch *l)
{
	bool lives = false;

	for (uint32_t r = 0; l && r < l->world; r++) {
		const struct member *m = &l->member[r];

		if (m->lost ||
		    (m->session && m->attached && !m->session->said_bye && member_dead(m)))
			return false;
		lives |= m->attached && member_lives(m);
	}
	return lives;
}

bool launch_is_of(const struct launch *l, const struct wire_hello *h)
{
	if (h->launch && h->launch == l->launched_by)
		return true;
	return h->token && h->token == l->token && h->world == l->world && !l->nlost &&
	       !l->member[h->rank].attached && !MUTANT(TOKEN_JOINS_NOTHING);
}

bool launch_marked(const struct launch *l)
{
	bool marked = l->marked;

	for (uint32_t r = 0; r < l->world && !marked; r++)
		marked = l->member[r].page && load_acquire(&l->member[r].page->marks);
	return marked;
}

bool launch_lives_and_marks(const struct launch *l)
{
	return l && !l->unclaimed && launch_lives(l) && launch_marked(l);
}

static bool is_restart(uint64_t run, uint64_t restart, const struct wire_hello *h)
{
	return run && h->run == run && h->restart > restart;
}

enum stand holder_stand(const struct job *j, const struct wire_hello *h)
{
	const struct launch *l = j->launch;

	/* Of a number that is given the store says whether it is high enough. */
	if (!launch_lives(l) || h->generation || is_restart(l->run, l->restart, h) ||
	    is_restart(j->run, j->restart, h))
		return STAND_CLAIM;
	if (MUTANT(LIVING_SUPERSEDED))
		return STAND_CLAIM;
	return l->unclaimed || !launch_marked(l) || h->flags & WIRE_TAKEOVER ? STAND_BESIDE
									     : STAND_REFUSE;
}

/* 1 + the newest step that a rank of it has marked, and when; 0: none on its pages. */
static uint64_t newest_marked(const struct launch *l, uint64_t *ret_ns)
{
	uint64_t newest = 0;

	*ret_ns = 0;
	for (uint32_t r = 0; r < l->world; r++)
		for (uint32_t i = 0; l->member[r].page && i < SHARED_SNAPS; i++) {
			struct shared_record rec;
			enum snap_state state;
			uint64_t mark;

			if (shared_snap_read(&l->member[r].page->snap[i], &mark, &state, &rec) <
				    0 ||
			    rec.step + 1 <= newest)
				continue;
			newest = rec.step + 1;
			*ret_ns = rec.mark_ns;
		}
	return newest;
}

#define WHAT_TO_DO                                                                                   \
	"end it first; or attach with takeover (CKPT_TAKEOVER, takeover=True, --takeover): then it " \
	"ends when this one marks its first step"

void holder_say(const struct job *j, char *ret, size_t bytes)
{
	const struct launch *l = j->launch;
	uint64_t at, now = now_ns(), step = newest_marked(l, &at);
	char newest[120] = "it has attached, and marked no step of its own yet";
	const struct member *m = &l->member[0];

	for (uint32_t r = 0; r < l->world; r++)
		if (member_lives(&l->member[r])) {
			m = &l->member[r];
			break;
		}
	if (step)
		snprintf(newest, sizeof newest, "its newest step is %" PRIu64 ", marked %.1f s ago",
			 step - 1, (double)elapsed_ns(at, now) / 1e9);
	else if (j->tally.last_committed)
		snprintf(newest, sizeof newest,
			 "its newest step is %" PRIu64 ", committed %.1f s ago",
			 j->tally.last_committed - 1,
			 (double)elapsed_ns(j->tally.last_committed_wall_ns, wall_ns()) / 1e9);
	snprintf(ret, bytes,
		 "job %s is in use: process %d (rank %u of %u) is attached, and %s; " WHAT_TO_DO,
		 j->name, (int)m->pid, m->rank, l->world, newest);
}

/* --- of another daemon --- */
void holder_name(const struct daemon *d, const struct wire_hello *h, pid_t pid,
		 char ret[CLAIMER_TEXT])
{
	struct claimer c = { .token = h->token,
			     .run = h->run,
			     .restart = h->restart,
			     .launch = h->launch,
			     .world = h->world,
			     .rank = h->rank,
			     .process = claimer_process(pid),
			     .daemon = claimer_process(getpid()) };

	claimer_here(d->opts.host, &c.at);
	(void)claimer_print(&c, ret);
}

/* 1 + its newest step, and when that was committed; 0: none. */
static uint64_t newest_of(const struct store *s, uint64_t generation, uint64_t *ret_wall_ns)
{
	cleanup_free struct store_step *step = NULL;
	struct ckpt_err none;
	uint64_t newest = 0;
	uint32_t n = 0;

	*ret_wall_ns = 0;
	if (store_scan(s, false, &step, &n, &none) < 0)
		return 0;
	for (uint32_t i = 0; i < n && !newest; i++)
		if (step[i].generation == generation && step[i].state != STORE_DAMAGED) {
			newest = step[i].step + 1;
			*ret_wall_ns = step[i].wall_ns;
		}
	return newest;
}

struct seen {
	struct claimer c;
	struct claimer_host here;
	uint64_t generation, age_ns, newest, newest_wall_ns;
	enum claimer_life life; /* of the rank */
	bool served;		/* its daemon is not known to be dead */
};

static bool same_launch(const struct seen *x, const struct wire_hello *h)
{
	bool here = x->life != CLAIMER_ELSEWHERE;

	return (h->token && h->token == x->c.token) ||
	       (here && h->launch && h->launch == x->c.launch);
}

static bool seen_same_launch(const struct seen *x, const struct wire_hello *h)
{
	if (x->newest || x->life == CLAIMER_DEAD || !x->served || x->age_ns > SAME_LAUNCH_NS ||
	    MUTANT(OWN_TOKEN_UNSEEN))
		return false;
	if (same_launch(x, h))
		return true;
	return !(h->token && x->c.token) && x->life == CLAIMER_ELSEWHERE && h->world > 1 &&
	       h->world == x->c.world && h->rank != x->c.rank && x->age_ns < OVERTAKEN_NS;
}

static int seen_refuse(const struct store *s, const struct seen *x, struct ckpt_err *err)
{
	char newest[96] = "";

	if (x->newest)
		snprintf(newest, sizeof newest,
			 ", and its newest step is %" PRIu64 ", committed %.1f s ago",
			 x->newest - 1, (double)elapsed_ns(x->newest_wall_ns, wall_ns()) / 1e9);
	return ckpt_error(err, -EBUSY,
			  "job %s is in use: process %" PRId64
			  " (rank %u of %u) on host %s is attached to "
			  "another ckptd (process %" PRId64 ")%s; " WHAT_TO_DO,
			  s->job, x->c.process.pid, x->c.rank, x->c.world, x->c.at.host,
			  x->c.daemon.pid, newest);
}

/* 1: it is another daemon's. 0: it says nothing, or it is this daemon's own. Of a claim that another
 * user alone may read nobody here can know anything. */
static int claim_seen(const struct daemon *d, struct store *s, struct seen *x, struct ckpt_err *err)
{
	const struct claimer_process me = claimer_process(getpid());
	int rc;

	*x = (struct seen){ .life = CLAIMER_ELSEWHERE };
	rc = claimer_read(s, &x->generation, &x->c, &x->age_ns, err);
	if (rc == -EACCES && x->generation)
		return 1;
	if (rc < 0)
		return rc == -ENODATA || MUTANT(UNREAD_CLAIM_IS_DEAD) ? 0 : rc;
	if (!x->generation)
		return 0;
	claimer_here(d->opts.host, &x->here);
	if (strcmp(x->c.at.boot, x->here.boot) == 0 && x->c.at.space == x->here.space &&
	    x->c.daemon.pid == me.pid && x->c.daemon.start == me.start)
		return 0;
	x->life = claimer_life(&x->c.process, &x->c.at, &x->here);
	x->served = claimer_life(&x->c.daemon, &x->c.at, &x->here) != CLAIMER_DEAD;
	if (x->life != CLAIMER_DEAD)
		x->newest = newest_of(s, x->generation, &x->newest_wall_ns);
	return 1;
}

int holder_look(const struct daemon *d, struct store *s, const struct wire_hello *h, pid_t pid,
		enum stand *ret, struct ckpt_err *err)
{
	const struct claimer_process asks = claimer_process(pid);
	struct seen x;
	int rc = claim_seen(d, s, &x, err);

	*ret = rc < 0 ? STAND_REFUSE : STAND_CLAIM;
	if (rc <= 0)
		return rc;
	if (seen_same_launch(&x, h)) {
		*ret = STAND_REFUSE;
		return ckpt_error(
			err, -EINVAL,
			"rank %u of this launch is attached to the ckptd of host %s (process %" PRId64
			"): all ranks of a job run on one host, and attach to one ckptd (CKPTD_SOCKET)",
			x.c.rank, x.c.at.host, x.c.daemon.pid);
	}
	if (x.life == CLAIMER_LIVES && asks.start && x.c.process.pid == asks.pid &&
	    x.c.process.start == asks.start)
		return 0;
	if (x.life == CLAIMER_DEAD || (!x.served && same_launch(&x, h)) ||
	    is_restart(x.c.run, x.c.restart, h) || (h->generation && h->generation > x.generation))
		return 0;
	if (x.life == CLAIMER_ELSEWHERE || !x.served || !x.newest || h->flags & WIRE_TAKEOVER) {
		*ret = STAND_BESIDE;
		return 0;
	}
	*ret = STAND_REFUSE;
	return seen_refuse(s, &x, err);
}

/* --- jobs beside another one --- */
static bool beside_is_of(const struct job *k, const struct wire_hello *h)
{
	if (k->claiming)
		return (h->launch && h->launch == k->launched_by) ||
		       (h->token && h->token == k->token);
	return launch_attached(k->launch) && launch_is_of(k->launch, h);
}

struct job *holder_beside(struct job *j, const struct wire_hello *h, bool make)
{
	struct job *k = j->d->jobs;

	for (; k; k = k->next)
		if (k->beside == j && beside_is_of(k, h))
			return k;
	if (!make || !(k = calloc(1, sizeof *k)))
		return NULL;
	k->d = j->d;
	k->id = ++j->d->jobs_seen;
	k->dev = j->dev;
	k->ino = j->ino;
	memcpy(k->name, j->name, sizeof k->name);
	k->beside = j;
	k->launched_by = h->launch;
	k->token = h->token;
	k->next = j->d->jobs;
	j->d->jobs = k;
	return k;
}

/* --- the first mark --- */
struct first {
	struct task task;
	struct launch *l; /* reference */
	struct job *job;  /* whose holder it would be: claiming */
	struct wire_hello h;
	char who[CLAIMER_TEXT];
	pid_t pid;
	uint64_t seq, generation;
	int rc;
	struct ckpt_err err;
};

static void first_run(struct task *t)
{
	struct first *x = (struct first *)t;
	struct store *s = x->l->place->store;
	enum stand stand;

	x->rc = holder_look(x->job->d, s, &x->h, x->pid, &stand, &x->err);
	if (x->rc == -EBUSY)
		x->rc = x->err.code = -ESTALE;
	s->claimer = x->who;
	if (x->rc == 0)
		x->rc = store_claim_first(s, x->seq, &x->generation, &x->err);
	s->claimer = NULL;
}

static void claims_refuse(struct launch *l, int code, const char *text)
{
	for (uint32_t r = 0; r < l->world; r++) {
		struct session *s = l->member[r].session;

		if (!s || !s->claims)
			continue;
		s->claims = false;
		session_refuse(s, code, text);
	}
}

void holder_answer(struct launch *l)
{
	struct wire_claimed w = { .generation = l->generation };

	if (l->nlost) {
		claims_refuse(l, -ECONNRESET,
			      "a rank of this launch has ended: start all ranks again");
		return;
	}
	if (l->unclaimed)
		return;
	for (uint32_t r = 0; r < l->world; r++)
		if (l->member[r].decl && l->state != LAUNCH_READY)
			return; /* its slots get their memory */
	if (atomic_exchange(&l->page->unclaimed, 0))
		shared_event(l->page);
	for (uint32_t r = 0; r < l->world; r++) {
		struct session *s = l->member[r].session;

		if (!s || !s->claims)
			continue;
		s->claims = false;
		session_reply(s, &w, WIRE_CLAIMED, NULL, 0);
	}
}

static void first_done(struct task *t)
{
	struct first *x = (struct first *)t;
	struct launch *l = x->l;
	struct job *j = x->job;

	j->claiming = false;
	l->claims = false;
	l->refused = x->rc == -ESTALE && x->seq != UINT64_MAX;
	if (x->rc == 0)
		launch_claimed(l, j, x->generation);
	else
		claims_refuse(l, x->rc, x->err.msg);
	holder_answer(l);
	sessions_retry(j->d);
	restore_try(l);
	launch_unref(l);
	free(x);
}

static void first_start(struct launch *l, uint64_t seq)
{
	struct job *j = l->job->beside ? l->job->beside : l->job;
	struct first *x;
	struct member *m = &l->member[0];

	if (j->claiming || !m->session)
		return; /* holder_tick comes again */
	x = calloc(1, sizeof *x);
	if (!x) {
		claims_refuse(l, -ENOMEM, "ckptd has no memory to claim the job");
		return;
	}
	l->refs++;
	l->claims = true;
	j->claiming = true;
	*x = (struct first){ .l = l, .job = j, .pid = m->pid, .seq = seq, .h = m->session->hello };
	holder_name(j->d, &x->h, m->pid, x->who);
	device_task(l->place->device, LANE_ASK, &x->task, first_run, first_done);
}

/* Another launch of this daemon that lives, and has marked. */
static bool other_marks(const struct launch *l)
{
	const struct job *j = l->job->beside;

	return j && launch_lives_and_marks(j->launch) && !MUTANT(FIRST_MARK_WINS);
}

static void claim_try(struct launch *l)
{
	char text[512];

	if (!l->unclaimed || l->claims)
		return;
	if (!l->takeover && other_marks(l)) {
		holder_say(l->job->beside, text, sizeof text);
		claims_refuse(l, -ESTALE, text);
		return;
	}
	first_start(l, atomic_load(&l->seq));
}

void holder_ask(struct session *s)
{
	struct launch *l = s->launch;

	s->claims = true;
	l->marked = true;
	claim_try(l);
	holder_answer(l);
}

bool holder_takes(struct launch *l)
{
	if (l->unclaimed && l->takeover && l->refused && !l->claims && l->member[0].session &&
	    !(l->job->beside ? l->job->beside : l->job)->claiming)
		first_start(l, UINT64_MAX);
	return l->claims || (!l->unclaimed && atomic_load(&l->page->unclaimed) && !l->nlost);
}

void holder_tick(struct launch *l)
{
	for (uint32_t r = 0; r < l->world; r++)
		if (l->member[r].session && l->member[r].session->claims) {
			claim_try(l);
			return;
		}
}
