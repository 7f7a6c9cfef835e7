// SPDX-License-Identifier: Apache-2.0
// mending.c - see mending.h. Called by fill, in a worker.
// Invariant: no step is read that is not locked against removal.
#include "daemon/mending.h"
#include "formats/native/native.h"

struct others {
	const struct store *s;
	const char * not ; /* the damaged one's entry */
	struct store_step *step;
	uint32_t n, i;
	int fd; /* of the one that was given last; -1: none */
};

static void others_let_go(struct others *x)
{
	store_step_close(TAKE_FD(x->fd));
}

/* May its files be read as they stand? */
static bool is_readable(const struct store_step *st)
{
	return st->state == STORE_COMMITTED || st->state == STORE_QUARANTINED ||
	       st->state == STORE_SET_ASIDE;
}

/* A mend_next_fn. A step that has gone meanwhile is passed over. */
static int others_next(void *arg, struct engine_subject *ret, struct ckpt_err *err)
{
	struct others *x = arg;

	(void)err;
	others_let_go(x);
	for (; x->i < x->n; x->i++) {
		const struct store_step *st = &x->step[x->i];

		if (!is_readable(st) || strcmp(st->dir, x->not ) == 0 ||
		    store_step_open(x->s, st->dir, &x->fd, NULL) < 0)
			continue;
		*ret = (struct engine_subject){
			.fd = x->fd, .path = st->dir, .force = &format_native, .id = st->id
		};
		x->i++;
		return 1;
	}
	return 0;
}

int mending_open(const struct store *s, const struct engine *e,
		 const struct engine_subject *damaged, struct mended *ret, struct ckpt_err *err)
{
	struct others x = { .s = s, .not = damaged->path, .fd = -1 };
	int rc = store_scan(s, true, &x.step, &x.n, err);

	if (rc < 0) {
		*ret = (struct mended){ 0 };
		return rc;
	}
	rc = mend_open(e, damaged, others_next, &x, ret, err);
	others_let_go(&x);
	free(x.step);
	return rc;
}
