// SPDX-License-Identifier: Apache-2.0
// tensors.c - ckpt_tensors and ckpt_unmatched: call the trainer's function for each tensor that
// the daemon lists. The daemon chooses the step, and says what did not match (wire.h, LIST).
// Invariant: the list is checked whole before the first call of the trainer's function, which is
// called without a lock of the handle.
#include "ckpt/base/container.h"
#include "ckpt/client/abi.h"
#include "ckpt/client/handle.h"
#include "ckpt/table/encode.h"
#include <inttypes.h>
#include <sys/mman.h>

struct list {
	struct table table;
	const struct wire_verdict *verdict; /* [table.ntensor]; NULL: all are SAVED */
	const char *text;
	uint64_t step;
};

static int list_contradicts(struct ckpt_err *err, const char *what)
{
	return ckpt_error(err, -EPROTO, "the daemon's list of tensors contradicts itself: %s",
			  what);
}

/* text: [ntext] bytes. */
static int verdicts_check(const struct container_view *v, struct list *l, struct ckpt_err *err)
{
	const void *rec;
	struct container_bytes texts = container_view_get(v, WIRE_TEXTS);
	uint64_t n;
	int rc = container_view_records(v, WIRE_VERDICTS, sizeof(struct wire_verdict), &rec, &n,
					err);

	if (rc < 0)
		return rc;
	if (n != l->table.ntensor)
		return list_contradicts(err, "it does not have one verdict for each tensor");
	if (!texts.p || !texts.len || ((const char *)texts.p)[texts.len - 1])
		return list_contradicts(err, "its texts do not end");
	l->verdict = rec;
	l->text = texts.p;
	for (uint64_t i = 0; i < n; i++) {
		struct wire_verdict x;

		memcpy(&x, &l->verdict[i], sizeof x);
		if (x.what < CKPT_MISSING || x.what > CKPT_MISMATCH || x.text >= texts.len)
			return list_contradicts(err, "a verdict is unknown, or has no text");
	}
	return 0;
}

static int list_tell(const struct list *l, const char *only, ckpt_tensor_fn *fn, void *arg)
{
	for (uint32_t i = 0; i < l->table.ntensor; i++) {
		const struct table_tensor *x = &l->table.tensor[i];
		struct wire_verdict v = { .what = CKPT_SAVED };
		struct ckpt_tensor_info t = {
			.size = sizeof t,
			.component = x->component,
			.name = x->name,
			.of = x->of,
			.dtype = x->dtype,
			.role = x->role,
			.cls = x->cls,
			.ndim = x->ndim,
			.shape = x->shape,
			.numel = x->numel,
			.fp = x->fp,
			.step = l->step,
			.fp_known = x->fp_known,
			.blob = (x->flags & TENSOR_BLOB) != 0,
			.media = x->media,
			.rank = x->rank,
		};
		int rc;

		if (only && strcmp(only, x->component) != 0)
			continue;
		if (l->verdict)
			memcpy(&v, &l->verdict[i], sizeof v);
		t.what = v.what;
		t.text = l->verdict ? l->text + v.text : "";
		rc = fn(arg, &t);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int list_each(const void *bytes, uint64_t len, bool verdicts, uint64_t step, const char *only,
	      ckpt_tensor_fn *fn, void *arg, struct ckpt_err *err)
{
	struct table_section section[CONTAINER_SECT_MAX];
	struct list l = { .step = step };
	struct container_view v;
	int rc = container_decode(bytes, len, CONTAINER_DECLARATION, &v, err);

	if (rc < 0)
		return rc;
	for (uint32_t i = 0; i < v.map.nsect; i++) {
		const struct container_bytes b = container_view_get(&v, v.map.sect[i].kind);

		section[i] = (struct table_section){ .kind = b.kind,
						     .rec_bytes = b.rec_bytes,
						     .len = b.len,
						     .count = b.count,
						     .bytes = b.p };
	}
	rc = table_decode_tensors(section, v.map.nsect, &l.table, err);
	if (rc < 0)
		return rc;
	if (verdicts)
		rc = verdicts_check(&v, &l, err);
	if (rc == 0)
		rc = list_tell(&l, only, fn, arg);
	table_free(&l.table);
	return rc;
}

/* The list's memfd, mapped. */
static int list_call(ckpt *c, uint32_t flags, uint64_t step, struct wire_listed *ret,
		     void **ret_map, struct ckpt_err *err)
{
	struct wire_list m = { .flags = flags, .step = step };
	uint64_t until = client_until(c->wait_ns), now;
	int fd[WIRE_FDS_MAX], rc;

	if (!rpc_take(c, until))
		return ckpt_error(err, -ETIMEDOUT,
				  "no daemon is attached: the one on %s does not answer",
				  c->socket);
	now = now_ns();
	rc = rpc_call(c, &m, WIRE_LIST, -1, ret, fd, until - MIN(until, now), err);
	rpc_give(c);
	if (rc < 0)
		return rc;
	rc = wire_map(fd[0], ret->bytes, 1, ret_map, err);
	wire_close_fds(fd, WIRE_FDS_MAX);
	return rc;
}

static int list_run(ckpt *c, uint32_t flags, uint64_t step, const char *only, ckpt_tensor_fn *fn,
		    void *arg, struct ckpt_err *err)
{
	struct wire_listed r;
	void *map;
	int rc = list_call(c, flags, step, &r, &map, err);

	if (rc < 0)
		return rc;
	rc = list_each(map, r.bytes, flags & WIRE_LIST_TRIED, r.step, only, fn, arg, err);
	munmap(map, r.bytes);
	return rc;
}

int ckpt_tensors(ckpt *c, const struct ckpt_want *want, ckpt_tensor_fn *fn, void *arg,
		 struct ckpt_err *err)
{
	struct ckpt_want w;
	int rc = client_check(c, err);

	if (rc == 0)
		rc = abi_take(ABI_WANT, &w, want, err);
	if (rc == 0)
		rc = abi_flags("ckpt_want.flags", w.flags,
			       CKPT_LENIENT | CKPT_FROM_DISK | CKPT_DRY_RUN | CKPT_FROM_MEMORY |
				       CKPT_EXACT | CKPT_EXPLICIT | CKPT_ALLOW_RESHARD |
				       CKPT_ALLOW_REDUCE | CKPT_ALLOW_REPLICATE | CKPT_ALLOW_DROP,
			       err);
	if (rc < 0)
		return rc;
	if (!fn || (w.flags & CKPT_FROM_DISK && w.flags & CKPT_FROM_MEMORY))
		return ckpt_error(err, -EINVAL, "%s",
				  fn ? "ckpt_want has both FROM_DISK and FROM_MEMORY"
				     : "ckpt_tensors: the function is NULL");
	return list_run(c, w.flags & (CKPT_FROM_DISK | CKPT_FROM_MEMORY | CKPT_EXACT), w.step,
			w.only, fn, arg, err);
}

int ckpt_unmatched(ckpt *c, ckpt_tensor_fn *fn, void *arg)
{
	int rc = client_alive(c);

	if (rc < 0)
		return rc;
	return fn ? list_run(c, WIRE_LIST_TRIED, 0, NULL, fn, arg, NULL) : -EINVAL;
}
