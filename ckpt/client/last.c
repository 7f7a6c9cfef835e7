// SPDX-License-Identifier: Apache-2.0
// last.c - ckpt_stop and ckpt_last: after which step the launch stops. Called by the trainer, and
// by its signal handlers.
// Invariant: every function here is lock-free and async-signal-safe; the handle keeps what the
// functions have returned (c->last), and carries it to the page on which all ranks meet.
#include "ckpt/base/mutant.h"
#include "ckpt/client/handle.h"
#include <errno.h>

/* LAST in shared.h: the oldest page on which all ranks have met; else the oldest one, else its own
 * word. */
static _Atomic uint64_t *last_word(ckpt *c)
{
	struct link *l = load_acquire(&c->link), *met = NULL, *oldest = l;

	if (MUTANT(LAST_NEWEST_PAGE))
		return l ? &l->job->last : &c->last;
	for (; l; oldest = l, l = l->older)
		if (load_acquire(&l->job->joined))
			met = l;
	return met ? &met->job->last : oldest ? &oldest->job->last : &c->last;
}

int ckpt_last(ckpt *c, uint64_t step)
{
	int rc = client_alive(c);
	_Atomic uint64_t *word;
	bool last;

	if (rc < 0)
		return rc;
	if (step > SHARED_LAST_STEP_MAX)
		return -EINVAL;
	word = last_word(c);
	if (word != &c->last)
		shared_last_bring(word, load_acquire(&c->last));
	last = shared_last_ask(word, step);
	if (word != &c->last && !last)
		(void)shared_last_ask(&c->last, step);
	return last;
}

int ckpt_stop(ckpt *c)
{
	int rc = client_alive(c);
	_Atomic uint64_t *word;

	if (rc < 0)
		return rc;
	word = last_word(c);
	if (word != &c->last)
		shared_last_bring(word, load_acquire(&c->last));
	shared_last_stop(word);
	if (word != &c->last) /* if all meet elsewhere later, the stop goes along */
		shared_last_bring(&c->last, load_acquire(word));
	return 0;
}

uint32_t last_line(ckpt *c)
{
	return shared_last_line(last_word(c));
}

void last_anew(ckpt *c, uint32_t line)
{
	_Atomic uint64_t *word = last_word(c);

	if (word != &c->last)
		shared_last_anew(word, line);
	shared_last_anew(&c->last, shared_last_line(&c->last));
}
