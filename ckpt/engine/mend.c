/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mend.c - see mend.h. Called by the daemon.
 * Invariant: a piece of a donor joins only if all bytes of its tensor were read there and add up to
 * the fingerprint that the base has of the tensor.
 */
#include "ckpt/engine/mend.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/verify.h"
#include "ckpt/move/damage.h"
#include "ckpt/table/operand.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

/* A file that was read already, or need not be: it is the same under any name. */
struct file_seen {
	uint64_t dev, ino;
};

struct mending {
	const struct engine *e;
	struct mended *m;
	bool *missing;	/* [base tensors] damaged, and not found yet */
	uint32_t *from; /* [base tensors] the donor; TABLE_NONE: none */
	uint32_t nmissing, cap;
	struct file_seen *seen; /* [nseen] */
	uint32_t nseen, seen_cap;
};

static bool mendable(const struct table *t, uint32_t i)
{
	const struct table_tensor *x = &t->tensor[i];

	return x->cls == CKPT_CONST && x->fp_known && !operand_dims(t, x);
}

/* --- reading what is there --- */

/* Reads the files that have some of these tensors; what is wrong goes to d. */
static int files_verify(const struct engine *e, const struct opened *o, const bool *tensor,
			struct damage *d, struct ckpt_err *err)
{
	const struct table *t = &o->ckpt->table;
	cleanup_free bool *skip = malloc((size_t)o->ckpt->nfile + 1);
	struct move_verified got;
	struct move_subset some = { .skip = skip };
	struct move_files files;
	int rc;

	if (!skip)
		return ckpt_error(err, -ENOMEM, "no memory to check %.300s", o->path);
	memset(skip, true, o->ckpt->nfile);
	for (uint32_t i = 0; i < t->npiece; i++)
		if (tensor[t->piece[i].tensor])
			skip[t->piece[i].place] = false;
	rc = move_open(e->ops, o->fd, o->ckpt, true, e->io, &files, err);
	if (rc)
		return rc;
	rc = move_verify_some(&files, &some, e->tick, e->arg, damage_fault, d, &got, err);
	move_close(&files);
	return engine_damage(rc);
}

static int damage_find(const struct engine *e, const struct opened *o, const bool *tensor,
		       struct damage *d, struct ckpt_err *err)
{
	int rc = files_verify(e, o, tensor, d, err);

	return rc && rc != -EBADMSG ? rc : damage_settle(d, o->ckpt, err);
}

/* --- what is missing --- */

/* -EBADMSG: something is damaged that no other checkpoint can have. */
static int base_judge(struct mending *k, const struct damage *d, struct ckpt_err *err)
{
	const struct table *t = &k->m->base.ckpt->table;
	char why[400], name[160];

	for (uint32_t i = 0; i < t->ntensor; i++) {
		if (!damage_of(d, t, i, why, sizeof why))
			continue;
		if (!mendable(t, i))
			return ckpt_error(err, -EBADMSG, "%s: %s",
					  table_tensor_print(&t->tensor[i], name, sizeof name),
					  why);
		k->missing[i] = true;
		k->nmissing++;
	}
	return 0;
}

static int base_open(struct mending *k, const struct engine_subject *s, struct ckpt_err *err)
{
	struct mended *m = k->m;
	struct engine_subject subject = *s;
	struct damage d = { 0 };
	cleanup_free bool *all = NULL;
	const struct table *t;
	int rc, opened;

	subject.how.partial = true;
	subject.how.choose = NULL;
	subject.how.fault = damage_fault;
	subject.how.fault_arg = &d;
	opened = engine_open(k->e, &subject, &m->base, err);
	if (!m->base.ckpt || (opened && engine_damage(opened) != -EBADMSG) || opened == -ESTALE) {
		damage_free(&d);
		return opened;
	}
	t = &m->base.ckpt->table;
	k->missing = calloc((size_t)t->ntensor + 1, sizeof *k->missing);
	k->from = malloc(((size_t)t->ntensor + 1) * sizeof *k->from);
	all = calloc((size_t)t->ntensor + 1, sizeof *all);
	if (!k->missing || !k->from || !all) {
		damage_free(&d);
		return ckpt_error(err, -ENOMEM, "no memory to mend %.300s", s->path);
	}
	for (uint32_t i = 0; i < t->ntensor; i++) {
		k->from[i] = TABLE_NONE;
		all[i] = t->tensor[i].cls == CKPT_CONST;
	}
	rc = damage_find(k->e, &m->base, all, &d, opened ? NULL : err);
	if (!rc)
		rc = base_judge(k, &d, opened ? NULL : err);
	damage_free(&d);
	/* What is wrong with its metadata is something else than a file with const tensors. */
	return rc ? rc : k->nmissing ? 0 : opened;
}

/* --- who has it --- */

static bool seen_find(const struct mending *k, const struct io_stat *st)
{
	for (uint32_t i = 0; i < k->nseen; i++)
		if (k->seen[i].ino == st->ino && k->seen[i].dev == st->dev)
			return true;
	return false;
}

/* Has it any const part that was not looked at? Note all of them. */
static bool files_new(struct mending *k, const struct opened *o)
{
	bool any = false;

	for (uint32_t i = 0; i < o->ckpt->nfile; i++) {
		const struct format_file *f = &o->ckpt->file[i];
		struct io_stat st;

		if (f->kind != PART_CONST)
			continue;
		if (io_stat_at(k->e->ops, o->fd, f->name, &st) < 0)
			continue; /* it has lost this one */
		if (st.ino && seen_find(k, &st))
			continue;
		any = true;
		if (st.ino && ARRAY_GROW(k->seen, k->nseen, k->seen_cap))
			k->seen[k->nseen++] = (struct file_seen){ .dev = st.dev, .ino = st.ino };
	}
	return any;
}

/* The base's tensor as the other checkpoint has it; TABLE_NONE: not the same. */
static uint32_t same_find(const struct mending *k, uint32_t i, const struct table *t)
{
	const struct table_tensor *x = &k->m->base.ckpt->table.tensor[i], *y;
	uint32_t at = k->missing[i] ? table_find(t, x->component, x->name, x->rank) : TABLE_NONE;

	if (at == TABLE_NONE)
		return TABLE_NONE;
	y = &t->tensor[at];
	return y->dtype == x->dtype && table_shape_same(x, y) && y->fp_known &&
			       !operand_dims(t, y) && (y->fp == x->fp || MUTANT(MENDED_WITH_ANY))
		       ? at
		       : TABLE_NONE;
}

/* By MANIFEST alone: may something of it be of use? */
static bool may_have(struct mending *k, const struct engine_subject *s)
{
	const struct table *mine = &k->m->base.ckpt->table;
	struct engine_subject names = *s;
	struct opened o;
	bool shares = false, other = false;

	names.how.depth = FORMAT_NAMES;
	if (engine_open(k->e, &names, &o, NULL) == 0)
		for (uint32_t i = 0; i < mine->ntensor && !other; i++) {
			uint32_t at = same_find(k, i, &o.ckpt->table);

			shares |= at != TABLE_NONE;
			other = at != TABLE_NONE && o.ckpt->table.tensor[at].cls != CKPT_CONST;
		}
	if (o.ckpt && shares)
		other |= files_new(k, &o);
	engine_close(&o);
	return shares && other;
}

/* All of its elements lie here, as themselves, and their fingerprints are those of the tensor. */
static bool is_whole(const struct table *t, uint32_t tensor, uint64_t fp)
{
	uint64_t sum = 0, n = 0;

	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++) {
		const struct table_piece *p = &t->piece[i];

		if (p->flags & PIECE_DERIVED || !p->fp_known)
			return false;
		sum += p->fp;
		n += p->set.numel;
	}
	return n == t->tensor[tensor].numel && (sum == fp || MUTANT(MENDED_WITH_ANY));
}

/* What this one has, and what was read of it is right. */
static int donor_read(struct mending *k, struct mend_donor *donor, struct damage *d,
		      struct ckpt_err *err)
{
	const struct table *mine = &k->m->base.ckpt->table, *t = &donor->opened.ckpt->table;
	cleanup_free bool *want = calloc((size_t)t->ntensor + 1, sizeof *want);
	char why[400];
	uint32_t n = 0;
	int rc;

	if (!want)
		return ckpt_error(err, -ENOMEM, "no memory to mend a checkpoint");
	for (uint32_t i = 0; i < mine->ntensor; i++) {
		uint32_t at = same_find(k, i, t);

		if (at == TABLE_NONE || !is_whole(t, at, mine->tensor[i].fp))
			continue;
		want[at] = true;
		n++;
	}
	if (!n)
		return 0;
	rc = damage_find(k->e, &donor->opened, want, d, err);
	for (uint32_t i = 0; i < mine->ntensor && !rc; i++) {
		uint32_t at = same_find(k, i, t);

		if (at == TABLE_NONE || !want[at] || damage_of(d, t, at, why, sizeof why))
			continue;
		k->missing[i] = false;
		k->nmissing--;
		k->from[i] = k->m->ndonor;
		k->m->ntensor++;
	}
	return rc;
}

static void donor_close(struct mend_donor *x)
{
	engine_close(&x->opened);
	if (x->fd >= 0)
		(void)close(TAKE_FD(x->fd));
}

/* Only no memory, or an order to stop, is an error: what cannot be read is no donor. */
static int donor_try(struct mending *k, const struct engine_subject *s, struct ckpt_err *err)
{
	struct mended *m = k->m;
	uint32_t before = m->ntensor;
	struct damage d = { 0 };
	struct engine_subject subject = *s;
	struct mend_donor *x;
	int rc = 0;

	if (!ARRAY_GROW(m->donor, m->ndonor, k->cap))
		return ckpt_error(err, -ENOMEM, "no memory to mend a checkpoint");
	x = &m->donor[m->ndonor];
	*x = (struct mend_donor){ .fd = fcntl(s->fd, F_DUPFD_CLOEXEC, 0) };
	if (x->fd < 0)
		return 0;
	subject.fd = x->fd;
	subject.how.partial = true;
	subject.how.fault = damage_fault;
	subject.how.fault_arg = &d;
	(void)engine_open(k->e, &subject, &x->opened, NULL);
	if (x->opened.ckpt)
		rc = donor_read(k, x, &d, err);
	damage_free(&d);
	if (m->ntensor > before)
		m->ndonor++;
	else
		donor_close(x);
	return rc == -ENOMEM || rc == -ECANCELED ? rc : 0;
}

static int donors_find(struct mending *k, mend_next_fn *next, void *arg, struct ckpt_err *err)
{
	struct engine_subject s;
	int rc = 1;

	(void)files_new(k, &k->m->base); /* which are damaged, or lack what is wanted */
	while (k->nmissing && (rc = next(arg, &s, err)) > 0) {
		rc = may_have(k, &s) ? donor_try(k, &s, err) : 0;
		if (rc < 0)
			return rc;
	}
	return rc < 0 ? rc : 0;
}

/* --- one checkpoint of all of them --- */

/* Files and places of the donors, behind those of the base. */
static int files_join(struct mended *m)
{
	struct checkpoint *c = m->base.ckpt;
	uint32_t n = c->nfile;
	struct format_file *file;

	for (uint32_t i = 0; i < m->ndonor; i++)
		n += m->donor[i].opened.ckpt->nfile;
	file = arena_array(&c->table.arena, n, sizeof *file);
	if (!file)
		return -ENOMEM;
	memcpy(file, c->file, c->nfile * sizeof *file);
	n = c->nfile;
	for (uint32_t i = 0; i < m->ndonor; i++) {
		const struct checkpoint *from = m->donor[i].opened.ckpt;

		m->donor[i].first = n;
		for (uint32_t k = 0; k < from->nfile; k++) {
			file[n++] = from->file[k];
			if (table_add_place(&c->table, &from->table.place[k], NULL, NULL) < 0)
				return -ENOMEM;
		}
	}
	c->file = file;
	c->nfile = n;
	return 0;
}

static int pieces_join(struct mending *k, struct ckpt_err *err)
{
	struct table *t = &k->m->base.ckpt->table;
	int rc = 0;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct mend_donor *x;
		const struct table *from;
		uint32_t at;

		if (k->from[i] == TABLE_NONE)
			continue;
		x = &k->m->donor[k->from[i]];
		from = &x->opened.ckpt->table;
		at = table_find(from, t->tensor[i].component, t->tensor[i].name, t->tensor[i].rank);
		for (uint32_t p = from->first[at]; p < from->first[at + 1] && rc == 0; p++) {
			struct table_piece piece = from->piece[p];

			piece.tensor = i;
			piece.place += x->first;
			rc = table_add_piece(t, &piece, err);
		}
	}
	return rc;
}

/* What an opening compares only where no file is lost. */
static int sums_check(const struct table *t, struct ckpt_err *err)
{
	char name[160];

	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint64_t sum = 0;

		for (uint32_t p = t->first[i]; p < t->first[i + 1]; p++)
			sum += t->piece[p].fp;
		if (t->tensor[i].fp_known && sum != t->tensor[i].fp && !MUTANT(MENDED_WITH_ANY))
			return ckpt_error(
				err, -EPROTO,
				"%s: the fingerprints of its pieces do not add up to its own",
				table_tensor_print(&t->tensor[i], name, sizeof name));
	}
	return 0;
}

static int base_join(struct mending *k, struct ckpt_err *err)
{
	struct checkpoint *c = k->m->base.ckpt;
	cleanup_free bool *taken = calloc((size_t)c->table.ntensor + 1, sizeof *taken);
	struct ckpt_errlist list = { .code = -EPROTO };
	int rc;

	if (!taken)
		return ckpt_error(err, -ENOMEM, "no memory to mend a checkpoint");
	for (uint32_t i = 0; i < c->table.ntensor; i++)
		taken[i] = k->from[i] != TABLE_NONE;
	assert(c->nmade == 0 && c->nfile == c->table.nplace);
	table_reopen_without(&c->table, taken);
	rc = files_join(k->m);
	if (rc < 0)
		return ckpt_error(err, rc, "no memory to mend a checkpoint");
	rc = pieces_join(k, err);
	if (rc == 0)
		rc = table_seal(&c->table, err);
	if (rc == 0)
		table_cover(&c->table, &list);
	if (list.n)
		rc = ckpt_errlist_end(&list, err, "it cannot be mended");
	ckpt_errlist_free(&list);
	c->partial = false;
	return rc == 0 ? sums_check(&c->table, err) : rc;
}

static void mended_say(struct mending *k)
{
	struct mended *m = k->m;
	const struct table *t = &m->base.ckpt->table;
	struct text said = text_in(m->said, sizeof m->said);
	char name[160];

	for (uint32_t d = 0; d < m->ndonor; d++) {
		uint32_t n = 0, first = 0;

		for (uint32_t i = t->ntensor; i-- > 0;)
			if (k->from[i] == d) {
				first = i;
				n++;
			}
		text_add(&said, "%s%s", d ? ", " : "",
			 table_tensor_print(&t->tensor[first], name, sizeof name));
		if (n > 1)
			text_add(&said, " and %" PRIu32 " more", n - 1);
		text_add(&said, " from step %" PRIu64, m->donor[d].opened.ckpt->step);
	}
}

static int not_mended(const struct mending *k, struct ckpt_err *err)
{
	const struct table *t = &k->m->base.ckpt->table;
	char name[160];
	uint32_t i = 0;

	while (!k->missing[i])
		i++;
	return ckpt_error(
		err, -EBADMSG,
		"%s is damaged%s, and no other step of the job has it with the same "
		"fingerprint in a file that is right; ckptctl verify --data lists the damage",
		table_tensor_print(&t->tensor[i], name, sizeof name),
		k->nmissing > 1 ? " (one of several)" : "");
}

int mend_open(const struct engine *e, const struct engine_subject *s, mend_next_fn *next, void *arg,
	      struct mended *ret, struct ckpt_err *err)
{
	struct mending k = { .e = e, .m = ret };
	int rc;

	*ret = (struct mended){ 0 };
	rc = base_open(&k, s, err);
	if (rc == 0 && k.nmissing)
		rc = donors_find(&k, next, arg, err);
	if (rc == 0 && k.nmissing)
		rc = not_mended(&k, err);
	if (rc == 0 && ret->ndonor)
		rc = base_join(&k, err);
	if (rc == 0)
		mended_say(&k);
	free(k.missing);
	free(k.from);
	free(k.seen);
	if (rc < 0)
		mend_close(ret);
	return rc;
}

int mend_files(const struct engine *e, const struct mended *m, struct move_files *ret,
	       struct ckpt_err *err)
{
	int rc = move_open(e->ops, m->base.fd, m->base.ckpt, true, e->io, ret, err);

	for (uint32_t i = 0; i < m->ndonor && rc == 0; i++)
		for (uint32_t k = 0; k < m->donor[i].opened.ckpt->nfile; k++)
			io_files_in(ret->files, m->donor[i].first + k, m->donor[i].fd);
	return rc;
}

void mend_close(struct mended *m)
{
	engine_close(&m->base);
	for (uint32_t i = 0; i < m->ndonor; i++)
		donor_close(&m->donor[i]);
	free(TAKE(m->donor));
	m->ndonor = 0;
}
