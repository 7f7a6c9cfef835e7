/* SPDX-License-Identifier: Apache-2.0 */
/*
 * waiting.h - the states of a step in the daemon, and which of the steps that wait is written.
 * Called by snap.
 *
 *	COLLECTING	its ranks mark it, and copiers fill its slot
 *	STAGED		all of it is in memory; it stays until a newer step is staged
 *	QUEUED		staged, and it waits to be written: for its guard, its walk, or the step
 *			that is written before it
 *	WRITING		one step of a job at a time
 *	released	its slot is the gate's again
 *
 *	change			| when
 *	COLLECTING -> released	| torn: a rank changed it, gave its copy up, left, or did not mark it
 *	COLLECTING -> STAGED	| all ranks' copies have ended, and may be trusted (GUARDS, shared.h)
 *	COLLECTING -> QUEUED	| the same, and its ticket says PERSIST or FINAL, no rank is left, or
 *				| the daemon ends
 *	STAGED -> QUEUED	| it is the newest, and the last rank leaves, a DRAIN comes, its
 *				| directory is back; or it is an heir (below)
 *	QUEUED -> WRITING	| it is guarded, no other step of the job is written, and no older one
 *				| waits that can be written
 *	WRITING -> STAGED	| committed; or failed: the library asks for another one (due.c)
 *	QUEUED -> STAGED	| thinned (below)
 *	any but WRITING		| its guard finds a change, or the launch goes back to an older step:
 *	  -> released		| torn
 *	STAGED -> released	| a newer one of its place is staged, and nothing reads its slot: no
 *				| walk, no rescue, no average that goes on from it
 *
 * Thinned. A disk that is slower than the steps which are to be written must not fill the slots
 * with old ones: the newest step in memory would be as old as the disk is slow. So beside the step
 * that is written one waits, the newest. A step that waits gives its turn to an heir, and is
 * staged only:
 *
 *	the heir is				| if
 *	the newest QUEUED step of its launch	| there is one
 *	the newest STAGED step of its launch	| else, if no slot is free and no copy is under way:
 *						| then the next mark gets the slot that becomes free
 *
 * What it keeps: the step that an heir is written for may be thinned any number of times, and an
 * heir, too: one of them is written. The library watches the heir as it watched the step that was
 * due: if it is torn or fails, the library asks for another one. So between two commits at most one
 * step is written for all that were due, and at least one if any was. Const parts are written or
 * linked by the step that is written, whichever it is; the averages take a step in before it is
 * thinned.
 *
 * A step keeps its turn, and several of these may wait, if it is FINAL; if its mark says
 * CKPT_PERSIST; if an operator's TRIGGER or DRAIN wants it, or a rescue reads it; while averages
 * have not taken it in and can; when its launch has ended, or the daemon ends. A step whose mark
 * says CKPT_STAGE_ONLY is no heir, nor is one that could not be written.
 *
 * With three slots one step is written, one is the newest and waits, and one is free for the next
 * mark: whatever the disk does, the newest step in memory is at most two marks old. With two there
 * is none to spare, and marks are skipped until the disk has caught up.
 */
#ifndef DAEMON_WAITING_H
#define DAEMON_WAITING_H
#include "daemon/state.h"

/* Some step gave its turn away: what is superseded now can be released. */
bool waiting_thin(struct job *j);
#endif
