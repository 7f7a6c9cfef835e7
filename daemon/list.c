// SPDX-License-Identifier: Apache-2.0
// list.c - what a step holds, and what a restore did not match: the answers to LIST (wire.h). The
// session requests them; restore.c chooses the step and records what its plan did not match.
// Invariant: the owner's thread does nothing that grows with the number of tensors. A thread of the
// device makes the list of a step, anew for each request. The restore lists once what did not
// match, and each rank gets the same memfd.
#include "daemon/state.h"
#include "ckpt/base/container.h"
#include "ckpt/table/encode.h"
#include <sys/random.h>

/* --- a list --- */

/* Of a tensor only what a list has: its layout and its pieces are not listed, and what made an
 * average is not. */
static int tensor_list(struct table *to, const struct table_tensor *x, struct ckpt_err *err)
{
	struct table_tensor t = *x;

	t.layout = TABLE_NONE;
	t.made = 0;
	return table_add_tensor(to, &t, NULL, err);
}

/* As a memfd, with these sections more. */
static int list_end(struct table *t, const struct container_bytes *more, uint32_t nmore,
		    struct listed *ret, struct ckpt_err *err)
{
	struct container_info info = { .kind = CONTAINER_DECLARATION };
	struct table_section s[TABLE_SECTIONS_MAX];
	struct container_bytes b[TABLE_SECTIONS_MAX + 2];
	struct arena a = { 0 };
	uint32_t n = 0;
	void *bytes = NULL;
	int rc = table_seal(t, err);

	assert(nmore <= 2);
	if (rc == 0)
		rc = table_encode(t, false, &a, s, &n, err);
	for (uint32_t i = 0; i < n; i++)
		b[i] = (struct container_bytes){ .kind = s[i].kind,
						 .rec_bytes = s[i].rec_bytes,
						 .p = s[i].bytes,
						 .len = s[i].len,
						 .count = s[i].count };
	for (uint32_t i = 0; i < nmore; i++)
		b[n + i] = more[i];
	if (rc == 0 && getrandom(info.uuid, sizeof info.uuid, GRND_NONBLOCK) < 0)
		info.uuid[0] = 1;
	if (rc == 0)
		rc = container_encode(&info, b, n + nmore, &bytes, &ret->bytes, err);
	if (rc == 0)
		rc = wire_memfd_of("ckptd-list", bytes, ret->bytes, &ret->fd, err);
	ret->set = rc == 0;
	free(bytes);
	arena_free(&a);
	return rc;
}

void listed_free(struct listed *x)
{
	if (x->set)
		(void)close(x->fd);
	x->set = false;
}

static void list_answer(struct session *s, const struct listed *x)
{
	struct wire_listed m = { .step = x->step, .bytes = x->bytes, .where = x->where };

	session_reply(s, &m, WIRE_LISTED, &x->fd, 1);
}

/* --- what a restore did not match --- */
void list_differs(void *arg, uint32_t dst_tensor, const char *text)
{
	struct list_notes *n = arg;

	if (!ARRAY_GROW(n->note, n->n, n->cap)) {
		n->failed = true;
		return;
	}
	n->note[n->n] = (struct list_note){ dst_tensor, text ? strdup(text) : NULL };
	n->failed |= text && !n->note[n->n].text;
	n->n++;
}

void list_notes_free(struct list_notes *n)
{
	for (uint32_t i = 0; i < n->n; i++)
		free(n->note[i].text);
	free(TAKE(n->note));
	n->n = n->cap = 0;
}

bool list_asked(const struct table_tensor *x, const char *only)
{
	return !(x->flags & TENSOR_BLOB) && (!only || strcmp(only, x->component) == 0);
}

struct verdicts {
	struct table table;
	struct wire_verdict *verdict; /* [table.ntensor] */
	char *text;
	uint64_t used, bytes;
};

/* What a text takes; "" is at 0. */
static uint64_t text_bytes(const char *s)
{
	return s && *s ? strlen(s) + 1 : 0;
}

static uint32_t text_put(struct verdicts *v, const char *s)
{
	uint64_t n = text_bytes(s), at = v->used;

	/* 4 GiB of texts are longer than a declaration can make them */
	if (!n || n > v->bytes - v->used || at > UINT32_MAX)
		return 0;
	memcpy(v->text + at, s, n);
	v->used += n;
	return (uint32_t)at;
}

static int verdict_add(struct verdicts *v, const struct table_tensor *x, enum ckpt_what what,
		       const char *text)
{
	int rc = tensor_list(&v->table, x, NULL);

	if (rc == 0)
		v->verdict[v->table.ntensor - 1] =
			(struct wire_verdict){ (uint32_t)what, text_put(v, text) };
	return rc;
}

static int differing_add(struct verdicts *v, const struct list_note *n, const struct table *src,
			 const struct table *dst)
{
	const struct table_tensor *x = &dst->tensor[n->tensor];
	uint32_t saved = table_find(src, x->component, x->name, x->rank);

	if (saved == TABLE_NONE)
		return verdict_add(v, x, CKPT_MISSING, NULL);
	return verdict_add(v, &src->tensor[saved], CKPT_MISMATCH, n->text);
}

void list_unmatched(const struct list_notes *n, const struct table *src, const struct table *dst,
		    const char *only, struct listed *ret)
{
	struct verdicts v = { .used = 1, .bytes = 1 };
	int rc = n->failed ? -ENOMEM : 0;

	for (uint32_t i = 0; i < n->n; i++)
		v.bytes += text_bytes(n->note[i].text);
	v.verdict = calloc((uint64_t)n->n + src->ntensor + 1, sizeof *v.verdict);
	v.text = calloc(v.bytes, 1);
	if (!v.verdict || !v.text)
		rc = -ENOMEM;
	for (uint32_t i = 0; i < n->n && rc == 0; i++)
		rc = differing_add(&v, &n->note[i], src, dst);
	for (uint32_t i = 0; i < src->ntensor && rc == 0; i++) {
		const struct table_tensor *x = &src->tensor[i];

		if (list_asked(x, only) && !x->made &&
		    table_find(dst, x->component, x->name, x->rank) == TABLE_NONE)
			rc = verdict_add(&v, x, CKPT_UNUSED, NULL);
	}
	if (rc == 0) {
		const struct container_bytes more[] = {
			{ .kind = WIRE_VERDICTS,
			  .rec_bytes = sizeof *v.verdict,
			  .p = v.verdict,
			  .len = v.table.ntensor * sizeof *v.verdict,
			  .count = v.table.ntensor },
			{ .kind = WIRE_TEXTS,
			  .rec_bytes = 1,
			  .p = v.text,
			  .len = v.used,
			  .count = v.used },
		};

		(void)list_end(&v.table, more, ARRAY_LEN(more), ret, NULL);
	}
	table_free(&v.table);
	free(v.verdict);
	free(v.text);
}

/* --- what a step holds --- */
struct listing {
	struct task task;
	struct session *s;
	struct restore *look;
	uint32_t nsrc;
	struct snap_rank *src; /* [nsrc] references: what is in memory */
	bool averaged;	       /* as snap.averaged, of that */
	struct listed listed;
	int rc;
	struct ckpt_err err;
};

static void listing_free(struct listing *x)
{
	for (uint32_t i = 0; i < x->nsrc; i++) {
		decl_slot_unref(x->src[i].decl);
		slotmem_unref(x->src[i].mem);
	}
	free(x->src);
	if (x->look)
		restore_free(x->look);
	listed_free(&x->listed);
	free(x);
}

/* Each rank's slot has what the rank declares; most of it others declare, too. */
static int memory_list(const struct listing *x, struct table *to, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t r = 0; r < x->nsrc && rc == 0; r++) {
		struct table one;

		rc = decl_slot_now(x->src[r].decl, x->src[r].mem->base, x->averaged, &one, err);
		if (rc < 0)
			break;
		for (uint32_t i = 0; i < one.ntensor && rc == 0; i++) {
			const struct table_tensor *t = &one.tensor[i];

			if (table_find(to, t->component, t->name, t->rank) == TABLE_NONE)
				rc = tensor_list(to, t, err);
		}
		table_free(&one);
	}
	return rc;
}

static int disk_list(const struct listing *x, const struct pin *pin, int fd, struct table *to,
		     struct ckpt_err *err)
{
	const struct engine e = daemon_engine(x->s->d);
	const struct engine_subject step = { .fd = fd,
					     .path = pin->dir,
					     .force = &format_native,
					     .id = pin->id,
					     .how.depth = FORMAT_NAMES };
	struct opened o;
	int rc = engine_open(&e, &step, &o, err);

	for (uint32_t i = 0; rc == 0 && i < o.ckpt->table.ntensor; i++)
		rc = tensor_list(to, &o.ckpt->table.tensor[i], err);
	engine_close(&o);
	return rc;
}

static void listing_run(struct task *t)
{
	struct listing *x = (struct listing *)t;
	const struct pin *pin;
	int fd;

	do {
		struct table list = { 0 };

		x->rc = restore_look_choose(x->look, &pin, &fd, &x->err);
		if (x->rc < 0)
			return;
		x->rc = pin->where == 1 ? memory_list(x, &list, &x->err)
					: disk_list(x, pin, fd, &list, &x->err);
		if (x->rc == 0)
			x->rc = list_end(&list, NULL, 0, &x->listed, &x->err);
		table_free(&list);
		x->listed.step = pin->step;
		x->listed.where = pin->where;
	} while (x->rc < 0 && restore_look_pass(x->look, &x->err));
}

static void listing_done(struct task *t)
{
	struct listing *x = (struct listing *)t;
	struct session *s = x->s;

	if (x->rc < 0)
		session_refuse(s, x->rc, x->err.msg);
	else
		list_answer(s, &x->listed);
	listing_free(x);
	session_unbusy(s);
}

static struct listing *listing_new(struct session *s, const struct wire_list *m)
{
	const struct wire_restore want = { .flags = m->flags | CKPT_DRY_RUN, .step = m->step };
	struct listing *x = calloc(1, sizeof *x);
	const struct snap *mem;

	if (!x)
		return NULL;
	x->s = s;
	x->look = restore_look(s->launch, &want, &mem);
	x->src = calloc(mem ? mem->world : 1, sizeof *x->src);
	if (!x->look || !x->src) {
		listing_free(x);
		return NULL;
	}
	x->averaged = mem && mem->averaged;
	for (uint32_t r = 0; mem && r < mem->world; r++)
		x->src[x->nsrc++] = (struct snap_rank){ .decl = decl_slot_ref(mem->rank[r].decl),
							.mem = slotmem_ref(mem->rank[r].mem) };
	return x;
}

void list_ask(struct session *s, const struct wire_list *m)
{
	struct listing *x;

	if (m->flags == WIRE_LIST_TRIED) {
		if (s->launch->tried.set)
			list_answer(s, &s->launch->tried);
		else
			session_refuse(
				s, -ENOENT,
				"no ckpt_restore of this launch has compared a step with the "
				"declarations");
		return;
	}
	if (m->flags & ~(uint32_t)(CKPT_FROM_DISK | CKPT_FROM_MEMORY | CKPT_EXACT)) {
		session_refuse(s, -EPROTO, "the request has flags that this ckptd does not know");
		return;
	}
	x = listing_new(s, m);
	if (!x) {
		session_refuse(s, -ENOMEM, "no memory in the daemon");
		return;
	}
	session_busy(s);
	device_task(s->launch->place->device, LANE_ASK, &x->task, listing_run, listing_done);
}
