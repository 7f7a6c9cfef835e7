/* SPDX-License-Identifier: Apache-2.0 */
/*
 * holder.h - who has a job: which of several launches commits its steps. Called by launch, session
 * and restore. The whole of it:
 *
 * A job has at most one *holder*: the launch that made the highest claim in the store (store.h).
 * Only the holder commits. A launch *lives* if the process of one of its ranks does, has attached
 * and has not detached, and no rank of it has died: a launch with a dead rank takes no step any
 * more, and one that hangs or is stopped lives. A zombie is dead. A launch *has marked* if one of
 * its ranks has marked a step, or asked for the claim to do so. A launch is the *restart* of
 * another one if both have the same run and it has the higher restart (ckpt_opts), or if its
 * generation was given and is higher.
 *
 * A new launch attaches:
 *	the holder                               plain      with TAKEOVER
 *	is dead, or there is none                claims     claims
 *	is older by the same run or by number    claims     claims
 *	lives and has not marked                 beside     beside
 *	lives and has marked                     -EBUSY     beside
 *	is on another host (see below)           beside     beside
 *
 * A launch beside the holder has no claim: WELCOME says generation 0, job page `unclaimed` is 1, no
 * slot is in its gate, and it restores committed steps alone. Nothing that it does reaches the
 * holder. In the daemon that serves the holder it belongs to a job of its own (job.beside), which
 * no report shows, and its slots take no memory.
 *
 * Its first mark (CLAIM) judges the holder again, as it is by then, and claims if that is dead, has
 * not marked, is on another host, or if the launch has TAKEOVER; and if no step was committed since
 * the launch restored, or attached, if it has not restored. Else -ESTALE, and the mark takes
 * nothing. store_claim_first does it in one step for all daemons. From then on the launch is the
 * holder, and the ranks of the one before are fenced: their next mark is -ESTALE. If a TAKEOVER was
 * refused because of a newer step, its next restore claims before it chooses: so it takes over from
 * a holder that commits all the time.
 *
 * The holder may be another daemon's, on this host or another one: its claim says which process has
 * made it (claimer.h). That process lives, or is dead, or nobody here can know; nor if its daemon is
 * dead, because it may have detached before. It has marked if a step of its generation is committed.
 * A claim that says nothing counts as a dead one's, and so does one of the asking process itself: it
 * was attached to another daemon before. Of a claim that another user alone may read nobody here can
 * know; and whoever cannot read it for another reason is refused, and claims nothing.
 *
 * Ranks of one launch that come to two daemons: the second daemon finds its rank's own token in the
 * claim of the first; or, without tokens, a claim of a launch with as many ranks and another rank,
 * made on another host not a second ago. It refuses the rank (-EINVAL) and says where the other one
 * is. If a step of that claim is committed, or it is older than two minutes, it is another launch's
 * whose launcher gave it the same token.
 */
#ifndef DAEMON_HOLDER_H
#define DAEMON_HOLDER_H
#include "ckpt/store/claimer.h"
#include "daemon/state.h"

/* What this launch may do. */
enum stand { STAND_CLAIM, STAND_BESIDE, STAND_REFUSE };
enum stand holder_stand(const struct job *j, const struct wire_hello *h);
/* Who has it: for -EBUSY and -ESTALE. */
void holder_say(const struct job *j, char *ret, size_t bytes);
/* The same of the claim on disk: of a launch that asks for it by this message, of this process. err:
 * -EBUSY or -EINVAL, or what reading it has ended with, with STAND_REFUSE. Worker. */
int holder_look(const struct daemon *d, struct store *s, const struct wire_hello *h, pid_t pid,
		enum stand *ret, struct ckpt_err *err);
/* Who the claim that this rank makes says it is. */
void holder_name(const struct daemon *d, const struct wire_hello *h, pid_t pid,
		 char ret[CLAIMER_TEXT]);
/* Is this rank, which gives no generation, one of this launch? The process that started it says so, or
 * its token, if the place of the rank is free. */
bool launch_is_of(const struct launch *l, const struct wire_hello *h);
bool launch_lives(const struct launch *l);
bool launch_marked(const struct launch *l);
bool launch_lives_and_marks(const struct launch *l); /* NULL: no */

/* CLAIM of this rank: answered when the launch has the claim and slots, or is refused. */
void holder_ask(struct session *s);
/* Answers those that wait, if the launch is ready; refuses them, if it cannot become so. */
void holder_answer(struct launch *l);
/* The launch has TAKEOVER, and was refused because of a newer step: it claims, and restore_try
 * comes again. False: no. */
bool holder_takes(struct launch *l);
void holder_tick(struct launch *l);

/* The job beside j that this launch has, or a new one; NULL: no memory. */
struct job *holder_beside(struct job *j, const struct wire_hello *h, bool make);
#endif
