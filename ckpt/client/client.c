// SPDX-License-Identifier: Apache-2.0
// client.c - a handle from attach to detach: options, memory, seal, restore, blobs. What ckpt.h
// promises is kept here and in declare.c and mark.c.
// Invariant: a call either returns with its effect or with a sentence; nothing here ends the
// process or prints.
#include "ckpt/base/hash.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/abi.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/nccl_share.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

int client_alive(const ckpt *c)
{
	return !c ? -EINVAL : *(volatile const uint32_t *)c->alive ? 0 : -ECHILD;
}

int client_check(const ckpt *c, struct ckpt_err *err)
{
	int rc = client_alive(c);

	if (rc == -EINVAL)
		return ckpt_error(err, rc,
				  "the handle is NULL: ckpt_attach failed, or was not called");
	return rc < 0 ? ckpt_error(err, rc, "the handle belongs to the parent process") : 0;
}

const char *ckpt_version(void)
{
	return CKPT_VERSION;
}

/* --- attach --- */
static const char *from_env(const struct ckpt_opts *o, const char *given, const char *name)
{
	const char *s = given || !(o->flags & CKPT_USE_ENV) ? given : getenv(name);

	return s && *s ? s : NULL;
}

static int options_check(const struct ckpt_opts *o, const char *job, const char *store,
			 struct ckpt_err *err)
{
	if (!job || !store)
		return ckpt_error(err, -EINVAL, "ckpt_opts.%s is missing", job ? "store" : "job");
	if (strlen(job) > CKPT_JOB_MAX || job[0] == '.' ||
	    strspn(job, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") !=
		    strlen(job))
		return ckpt_error(
			err, -EINVAL,
			"the job name '%s' must have 1 to %d characters of [A-Za-z0-9._-] and not start with a dot",
			job, CKPT_JOB_MAX);
	if (!o->world || o->rank >= o->world || o->world > WIRE_WORLD_MAX)
		return ckpt_error(
			err, -EINVAL,
			"rank is %u and world is %u: rank must be below world, and world at most %u",
			o->rank, o->world, WIRE_WORLD_MAX);
	if (o->slots == 1 || o->slots > WIRE_SLOTS_MAX)
		return ckpt_error(err, -EINVAL,
				  "slots is %u: it must be 2 to %d, or 0 for the default", o->slots,
				  WIRE_SLOTS_MAX);
	if (o->guard > CKPT_FINISH)
		return ckpt_error(err, -EINVAL, "guard policy %u is unknown; see enum ckpt_policy",
				  o->guard);
	if (o->pad)
		return ckpt_error(err, -EOPNOTSUPP, "ckpt_opts.pad must be 0");
	if (o->device > SHARED_DEVICES)
		return ckpt_error(
			err, -EINVAL,
			"device is %u: it is 0 for host memory, or 1 + the number of a CUDA "
			"device, at most %d",
			o->device, SHARED_DEVICES);
	return 0;
}

/* The process may change its directory before the library tries again. */
static char *path_absolute(const char *path)
{
	cleanup_free char *cwd = path[0] == '/' ? NULL : getcwd(NULL, 0);
	char *ret = NULL;

	if (!cwd)
		return strdup(path);
	return asprintf(&ret, "%s/%s", cwd, path) < 0 ? NULL : ret;
}

static int socket_take(ckpt *c, const char *given, struct ckpt_err *err)
{
	cleanup_free char *whole = given ? path_absolute(given) : NULL;

	c->socket_default = !given;
	if (!given)
		return 0;
	if (whole && strlen(whole) < sizeof c->socket)
		given = whole;
	if (strlen(given) >= sizeof c->socket)
		return ckpt_error(err, -EINVAL, "the socket path %s is longer than %zu bytes",
				  given, sizeof c->socket - 1);
	strcpy(c->socket, given);
	return 0;
}

/* "loss,accuracy:max:2" */
static int keep_best_take(struct retain_policy *p, const char *keys, struct ckpt_err *err)
{
	char key[2 * RETAIN_KEY_MAX];
	int rc = 0;

	for (size_t n; !rc; keys += n + 1) {
		n = strcspn(keys, ",");
		snprintf(key, sizeof key, "%.*s", (int)MIN(n, sizeof key - 1), keys);
		rc = retain_parse(p, "keep-best", key, err);
		if (!keys[n])
			break;
	}
	return rc;
}

static int keep_take(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err)
{
	struct retain_policy p = { .keep_last = o->keep_last, .keep_every = o->keep_every };
	int rc = 0;

	if (o->pad_keep)
		return ckpt_error(err, -EOPNOTSUPP, "ckpt_opts.pad_keep must be 0");
	if (o->keep_within)
		rc = retain_parse(&p, "keep-within", o->keep_within, err);
	if (!rc && o->keep_best)
		rc = keep_best_take(&p, o->keep_best, err);
	if (rc)
		return ckpt_error_prefix(err, rc, "ckpt_opts");
	if (o->rank == 0)
		retain_lines_print(&p, c->keep, sizeof c->keep);
	return 0;
}

static int handle_init(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err)
{
	const char *job = from_env(o, o->job, "CKPTD_JOB"),
		   *store = from_env(o, o->store, "CKPTD_STORE");
	int rc = options_check(o, job, store, err);

	if (rc == 0)
		rc = socket_take(c, from_env(o, o->socket, "CKPTD_SOCKET"), err);
	if (rc < 0)
		return rc;
	c->job = strdup(job);
	c->store = path_absolute(store);
	c->alive = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c->alive == MAP_FAILED)
		c->alive = NULL;
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!c->job || !c->store || !c->alive || c->wake < 0)
		return ckpt_error(err, -ENOMEM, "no memory for a handle");
	madvise(c->alive, 4096, MADV_WIPEONFORK);
	*c->alive = 1;
	c->rank = o->rank;
	c->world = o->world;
	c->flags = o->flags;
	c->slots = o->slots;
	c->nslot = o->slots;
	c->persist_every = o->persist_every ? o->persist_every : 1;
	c->guard = o->guard;
	c->every.max_ns = FINISH_MAX_NS;
	c->generation = o->generation;
	c->generation_given = o->generation != 0;
	c->launch = o->launch;
	c->run = o->run;
	c->restart = o->restart;
	c->guard_ns = o->guard_ns;
	c->memory_max = o->memory_max;
	c->agree = o->agree;
	c->agree_ctx = o->agree_ctx;
	rc = nccl_share_options(c, o, err);
	if (rc < 0)
		return rc;
	rc = keep_take(c, o, err);
	if (rc < 0)
		return rc;
	c->wait_ns = o->wait_ns ? o->wait_ns : HELLO_NS;
	c->restart_wait_ns = o->restart_wait_ns ? o->restart_wait_ns : RESTART_WAIT_NS;
	c->log = (struct log){ o->log, o->log_ctx, LOG_DEBUG };
	c->canary.check = o->check;
	c->copier.queued.limit = o->copy_rate;
	return 0;
}

/* Handles that could not be freed, so that they are seen to be in use. */
static _Atomic(ckpt *) kept;

static void handle_free(ckpt *c)
{
	if (!helper_stop(c)) {
		/* A device may still write to what this would free. */
		log_line(
			&c->log, LOG_ERROR,
			"client: rank %u of job %s: a CUDA device does not end its copies: what they "
			"use stays in memory until this process ends",
			c->rank, c->job);
		c->kept = atomic_exchange(&kept, c);
		return;
	}
	canary_destroy(&c->canary);
	sealed_unref(c->sealed);
	for (struct link *l = atomic_load(&c->link); l; l = l->older)
		if (l->done_device)
			l->done_device->ops->forget(l->done_device, &l->done);
	copier_close(c);
	devices_close(c);
	sources_unref(c->sources);
	seeds_unref(c->seeds);
	declare_averages_free(c);
	declare_attrs_free(c);
	drop_socket(c);
	for (struct link *l = atomic_load(&c->link), *older; l; l = older) {
		older = l->older;
		munmap(l->rank, sizeof *l->rank);
		munmap(l->job, sizeof *l->job);
		(void)close(l->bell);
		free(l);
	}
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		if (c->slot[i].bytes)
			(void)close(c->slot[i].fd);
	for (uint32_t i = 0; i < c->nseg; i++) {
		if (!(c->flags & CKPT_KEEP_MEMORY) || !c->seg[i].given)
			munmap(c->seg[i].base, c->seg[i].bytes);
		(void)close(c->seg[i].fd);
	}
	if (c->blobs)
		munmap(c->blobs, c->blobs_bytes);
	if (c->store_fd >= 0)
		(void)close(c->store_fd);
	if (c->wake >= 0)
		(void)close(c->wake);
	if (c->alive)
		munmap(c->alive, 4096);
	table_free(&c->meshes);
	arena_free(&c->arena);
	free(c->seg);
	free(c->seg_by_base);
	declare_free(c);
	free(c->decl);
	free(c->job);
	free(c->store);
	pthread_mutex_destroy(&c->mem);
	pthread_mutex_destroy(&c->why_lock);
	free(c);
}

/* Without CKPT_REQUIRE a rank trains on whatever keeps it from its daemon, but for a mistake of its
 * own, and where another process is this rank or this job by now. */
static int attach_outcome(ckpt *c, int rc, struct ckpt_err *err)
{
	if (rc == 0 || c->flags & CKPT_REQUIRE || rc == -EINVAL || rc == -EBUSY || rc == -ESTALE ||
	    rc == -EPERM)
		return rc;
	c->said = rc;
	log_line(&c->log, LOG_WARNING,
		 "client: rank %u of job %s trains without a daemon; the library tries again: %s",
		 c->rank, c->job, err->msg);
	return 0;
}

int ckpt_attach(const struct ckpt_opts *opts, ckpt **ret, struct ckpt_err *err)
{
	struct ckpt_err mine, *why = err ? err : &mine;
	struct ckpt_opts o;
	ckpt *c;
	bool disabled;
	int rc;

	if (!ret)
		return ckpt_error(err, -EINVAL, "ckpt_attach: ret_ckpt is NULL");
	*ret = NULL;
	rc = abi_take(ABI_OPTS, &o, opts, err);
	if (rc == 0)
		rc = abi_flags("ckpt_opts.flags", o.flags,
			       CKPT_REQUIRE | CKPT_AUTOSTART | CKPT_USE_ENV | CKPT_KEEP_MEMORY |
				       CKPT_NCCL | CKPT_TAKEOVER | CKPT_FOREIGN_OWNER,
			       err);
	if (rc < 0)
		return rc;
	c = calloc(1, sizeof *c);
	if (!c)
		return ckpt_error(err, -ENOMEM, "no memory for a handle");
	pthread_mutex_init(&c->mem, NULL);
	(void)canary_init(&c->canary, 0);
	pthread_mutex_init(&c->why_lock, NULL);
	c->sock = c->store_fd = c->wake = -1;
	c->shadow = UINT32_MAX;
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		c->held[i].step = UINT64_MAX;
	rc = handle_init(c, &o, why);
	if (rc == 0)
		rc = token_find(c, &o, why);
	disabled = o.flags & CKPT_USE_ENV && getenv("CKPTD_DISABLE") &&
		   strcmp(getenv("CKPTD_DISABLE"), "1") == 0;
	if (rc == 0 && !disabled) {
		rc = attach_outcome(c, connect_first(c, why), why);
		if (rc == 0)
			rc = copier_open(c, err);
		if (rc == 0)
			rc = helper_start(c, err);
	}
	if (rc == 0)
		devices_open(c, o.device);
	if (rc < 0) {
		handle_free(c);
		return rc;
	}
	*ret = c;
	return 0;
}

int ckpt_alloc(ckpt *c, uint64_t bytes, void **ret, struct ckpt_err *err)
{
	uint32_t seg;
	int rc = client_check(c, err);

	if (rc < 0)
		return rc;
	if (!bytes || bytes > INT64_MAX / 2 || !ret)
		return ckpt_error(err, -EINVAL, "%" PRIu64 " bytes cannot be allocated", bytes);
	pthread_mutex_lock(&c->mem);
	rc = segment_new(c, bytes, &seg, err);
	if (rc == 0) {
		c->seg[seg].given = true;
		*ret = c->seg[seg].base;
	}
	pthread_mutex_unlock(&c->mem);
	return rc;
}

/* --- seal --- */
/* Encoded here, handed over by the helper: however long the daemon takes, only as long as the
 * caller says is it waited for. rev: of the same epoch, with memory elsewhere. */
static int seal_begin(ckpt *c, bool rev, struct ckpt_err *err)
{
	int rc = declare_averages_check(c, err);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&c->mem);
	canary_undeclare(c);
	rc = declare_encode(c, err);
	if (rc < 0 && !rev) /* what is copied by value is listed by the next one that succeeds */
		c->dirty = true;
	if (rc == 0 && rev) {
		atomic_fetch_add(&c->rev, 1);
	} else if (rc == 0) {
		atomic_store(&c->rev, 0);
		atomic_fetch_add(&c->epoch, 1);
	}
	if (rc == 0 && (!rev || c->resized)) {
		c->slots_rev = atomic_load(&c->rev);
		for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
			atomic_store(&c->held[i].step, UINT64_MAX);
	}
	if (rc == 0) {
		c->refused_epoch = 0;
		c->dirty = c->moved = c->resized = false;
		c->sealed_once = true;
	}
	pthread_mutex_unlock(&c->mem);
	if (rc == 0)
		helper_wake(c);
	return rc;
}

/* Has the daemon refused what was declared? Then that epoch is the next one's again, as it is on
 * ranks whose declaration was good. Of a later rev the epoch stays: the tensors are to be moved
 * again, or all ranks are to seal. */
static int seal_refused(ckpt *c, struct ckpt_err *err)
{
	uint32_t epoch = atomic_load(&c->epoch);
	int rc = 0;

	pthread_mutex_lock(&c->mem);
	if (epoch && c->refused_epoch == epoch && c->refused_rev == atomic_load(&c->rev)) {
		rc = ckpt_error(err, c->refusal.code, "%s", c->refusal.msg);
		if (atomic_load(&c->rev)) {
			c->moved = true;
		} else {
			atomic_store(&c->epoch, epoch - 1);
			c->dirty = true;
		}
		c->refused_epoch = 0;
		c->decl_bytes = 0;
		free(TAKE(c->decl));
	}
	pthread_mutex_unlock(&c->mem);
	return rc;
}

/* 0: ready, or it has been: another rank may seal anew before this one sees it, and then waits for
 * this one's next seal; 1: not yet */
static int seal_state(ckpt *c, const struct link *l, struct ckpt_err *err)
{
	uint32_t epoch = atomic_load(&c->epoch), refused;
	int rc = seal_refused(c, err);

	if (rc < 0)
		return rc;
	if (atomic_load(&c->state) == LINK_FENCED)
		return ckpt_error(err, -ESTALE,
				  "a newer launch of job %s has taken over: stop this one", c->job);
	if (!l || !declared_now(c))
		return 1;
	refused = atomic_load(&l->job->refused);
	if (refused)
		return ckpt_error(err, -(int)refused, "%.*s", (int)sizeof l->job->trouble - 1,
				  l->job->trouble);
	if (atomic_load(&l->job->ready_epoch) != epoch)
		return atomic_load(&l->job->joined) >= epoch && !MUTANT(SEAL_MISSED) ? 0 : 1;
	return copier_ready(c) ? 0 : 1;
}

/* Asked again, a seal that is not ready goes on waiting; any other one begins a new epoch. */
static int seal_unready(ckpt *c, const struct link *l, struct ckpt_err *err)
{
	char text[SHARED_TEXT];

	c->redeclare = false;
	if (!l || atomic_load(&c->state) != LINK_UP)
		(void)ckpt_error(
			err, -ETIMEDOUT,
			"job %s: no daemon listens on %s: snapshots are skipped until one listens",
			c->job, c->socket[0] ? c->socket : "the default socket");
	else if (shared_text_get(&l->job->waits, text))
		(void)ckpt_error(err, -ETIMEDOUT, "job %s: %s", c->job, text);
	else
		(void)ckpt_error(
			err, -ETIMEDOUT,
			"job %s: not every rank has called ckpt_seal, or the slots are not in memory yet%s",
			c->job, c->which ? ", or not pinned for the devices" : "");
	return CKPT_SKIPPED;
}

static int seal_wait(ckpt *c, uint64_t until, struct ckpt_err *err)
{
	uint64_t now;
	int rc;

	for (;;) {
		struct link *l = atomic_load(&c->link);
		uint32_t changed = atomic_load(&c->changed),
			 seen = l ? atomic_load(&l->job->event) : 0;

		rc = seal_state(c, l, err);
		if (rc == 0)
			canary_seal(c);
		if (rc <= 0)
			return rc;
		now = now_ns();
		if (now >= until || !c->helper_runs)
			return seal_unready(c, l, err);
		if (l && declared_now(c) &&
		    atomic_load(&l->job->ready_epoch) != atomic_load(&c->epoch))
			shared_futex_wait(&l->job->event, seen, MIN(until - now, 100 * NS_PER_MS));
		else
			shared_futex_wait(&c->changed, changed, MIN(until - now, 100 * NS_PER_MS));
	}
}

int ckpt_seal(ckpt *c, uint64_t wait_ns, struct ckpt_err *err)
{
	int rc = client_check(c, err);
	uint64_t until;

	if (rc < 0)
		return rc;
	until = client_until(wait_ns);
	if (c->moved && !c->dirty && c->sealed_once)
		rc = seal_begin(c, true, err);
	else if (c->dirty || !c->sealed_once || c->redeclare)
		rc = seal_begin(c, false, err);
	c->redeclare = true;
	if (rc < 0)
		return rc;
	atomic_store(&c->waits, true);
	rc = seal_wait(c, until, err);
	atomic_store(&c->waits, false);
	return rc;
}

/* --- starting over --- */
int ckpt_fresh(ckpt *c)
{
	int rc = client_check(c, NULL);

	if (rc < 0)
		return rc;
	/* before the request: should the daemon die meanwhile, the next one must know */
	atomic_store(&c->fresh, true);
	atomic_store(&c->undefined, false);
	if (!rpc_take(c, client_until(c->wait_ns)))
		return -ETIMEDOUT;
	if (atomic_load(&c->state) == LINK_FENCED) {
		rc = -ESTALE;
	} else if (atomic_load(&c->state) == LINK_UP) {
		struct wire_plain m = { 0 };

		rc = rpc_call(c, &m, WIRE_FRESH, -1, NULL, NULL, c->wait_ns, NULL);
		if (rc == -ECONNRESET) /* the next daemon gets it with HELLO */
			rc = 0;
	}
	rpc_give(c);
	return rc;
}

int ckpt_blob_read(ckpt *c, const char *name, uint32_t old_rank, void *buf, uint64_t cap,
		   uint64_t *ret_len)
{
	int rc = client_alive(c);
	const uint8_t *base = rc == 0 ? c->blobs : NULL;
	uint64_t n;

	if (rc < 0 || !name)
		return rc < 0 ? rc : -EINVAL;
	if (!base || c->blobs_bytes < sizeof n)
		return -ENOENT;
	memcpy(&n, base, sizeof n);
	for (uint64_t i = 0; i < n && i < (c->blobs_bytes - 8) / sizeof(struct wire_blob); i++) {
		struct wire_blob b;

		memcpy(&b, base + 8 + i * sizeof b, sizeof b);
		if (b.name_at >= c->blobs_bytes || b.at > c->blobs_bytes ||
		    b.len > c->blobs_bytes - b.at ||
		    !memchr(base + b.name_at, 0, c->blobs_bytes - b.name_at))
			return -EPROTO;
		if ((b.rank != TABLE_NONE && b.rank != old_rank) ||
		    strcmp((const char *)base + b.name_at, name) != 0)
			continue;
		if (buf)
			memcpy(buf, base + b.at, MIN(cap, b.len));
		if (ret_len)
			*ret_len = b.len;
		return 0;
	}
	return -ENOENT;
}

int ckpt_steps(ckpt *c, struct ckpt_step *ret, uint32_t n)
{
	struct wire_steps m = { 0 };
	struct wire_steps_are are;
	uint64_t until, now;
	int rc = client_alive(c);

	if (rc < 0)
		return rc;
	if (n && !ret)
		return -EINVAL;
	until = client_until(c->wait_ns);
	if (!rpc_take(c, until))
		return -ETIMEDOUT;
	now = now_ns();
	rc = rpc_call(c, &m, WIRE_STEPS, -1, &are, NULL, until - MIN(until, now), NULL);
	rpc_give(c);
	if (rc < 0)
		return rc;
	n = MIN(n, are.n);
	n = MIN(n, (uint32_t)WIRE_STEPS_MAX);
	if (n)
		memcpy(ret, are.step, n * sizeof *ret);
	return (int)n;
}

/* --- fingerprint --- */
struct owned_walk {
	const struct declared *d;
	const struct indexset *owned;
	struct indices box[CKPT_DIMS_MAX]; /* what the local holds */
	const uint8_t *base;
	const struct part_of *p;
	uint32_t elem;
	uint64_t sum;
};

/* All elements that are in both, innermost dimension by stretches. first, off: global index and
 * offset (elements) by the dimensions before d. */
static void owned_dims_walk(struct owned_walk *w, uint32_t d, uint64_t first, uint64_t off)
{
	struct indices_cursor at = { 0 };
	struct stretch s;

	if (d == w->p->ndim) {
		w->sum += fingerprint(w->base + off * w->elem, 1, w->elem, first);
		return;
	}
	while (indices_next(&w->box[d], &w->owned->dim[d], &at, &s)) {
		uint64_t g = first * w->d->t.shape[d] + s.index,
			 o = off + s.x_pos * (uint64_t)w->p->stride[d];

		if (d + 1 == w->p->ndim && (w->p->stride[d] == 1 || s.len == 1)) {
			w->sum += fingerprint(w->base + o * w->elem, s.len, w->elem, g);
			continue;
		}
		for (uint64_t i = 0; i < s.len; i++)
			owned_dims_walk(w, d + 1, g + i, o + i * (uint64_t)w->p->stride[d]);
	}
}

/* A derived tensor is owned as its master is (docs/FORMAT.md, Who owns what). */
static const struct declared *owned_as(const ckpt *c, const struct declared *d)
{
	const char *slash = strchr(d->t.of, '/'); /* tensor_check: there is one */
	const struct declared *m = NULL;

	if (d->t.cls == CKPT_DERIVED)
		m = named_find(c, d->t.of, (size_t)(slash - d->t.of), slash + 1);
	return m && m->t.dtype == CKPT_F32 ? m : d;
}

/* Of a local: what is in it and owned. */
static int local_sum(const ckpt *c, const struct declared *d, const struct part_of *p,
		     const struct indexset *owned, struct arena *a, uint64_t *sum)
{
	cleanup_free uint8_t *copy = NULL;
	struct owned_walk w = {
		.d = d, .owned = owned, .base = p->ptr, .p = p, .elem = dtype_bytes(d->t.dtype)
	};

	if (!p->bytes || !owned->numel)
		return 0;
	for (uint32_t i = 0; i < p->ndim; i++) {
		int rc = 0;

		if (p->boxed)
			rc = indices_range(p->start[i], p->start[i] + p->extent[i], a, &w.box[i]);
		else
			w.box[i] = d->share.dim[i];
		if (rc < 0)
			return rc;
	}
	if (p->device) {
		struct device_handle *dev = devices_handle(c, p->device - 1);
		int rc;

		w.base = copy = malloc(p->span);
		rc = copy ? devices_settle_state(c, p->device - 1) : -ENOMEM;
		if (rc == 0)
			rc = dev->ops->fetch(dev, (uintptr_t)p->ptr, p->span, copy);
		if (rc < 0)
			return rc;
	}
	owned_dims_walk(&w, 0, 0, 0);
	*sum += w.sum;
	return 0;
}

static int shares_sum(const ckpt *c, const struct declared *d, uint64_t *sum)
{
	const struct mesh *m = &c->meshes.mesh[d->t.mesh];
	const struct layout l = {
		.mesh = d->t.mesh, .mode = d->t.mode, .nplace = d->t.nplace, .place = d->t.place
	};
	const struct declared *as = owned_as(c, d);
	uint32_t coord[CKPT_DIMS_MAX];
	struct indexset owned;
	struct arena a = { 0 };
	int rc;

	if (!mesh_coord(m, c->rank, coord))
		return 0;
	rc = layout_owned(m, &l, d->t.ndim, d->t.shape, coord, dtype_bytes(as->t.dtype),
			  as->t.component, as->t.name, &a, &owned);
	for (uint32_t k = 0; rc == 0 && k < d->nlocal; k++)
		rc = local_sum(c, d, &d->local[k], &owned, &a, sum);
	arena_free(&a);
	return rc;
}

static int boxes_sum(const ckpt *c, const struct declared *d, uint64_t *sum)
{
	const struct mesh *m = d->t.mesh == CKPT_ALONE ? NULL : &c->meshes.mesh[d->t.mesh];
	const struct declared *as = owned_as(c, d);
	uint32_t coord[CKPT_DIMS_MAX];
	int rc = 0;

	if (m && !mesh_coord(m, c->rank, coord))
		return 0;
	for (uint32_t k = 0; rc == 0 && k < d->nlocal; k++) {
		const struct part_of *p = &d->local[k];
		struct indexset box, owned;
		struct arena a = { 0 };

		rc = indexset_box(p->ndim, p->start, p->extent, &a, &box);
		owned = box;
		if (rc == 0 && m && box.numel)
			rc = layout_owned_box(m, &box, d->t.shape, coord, dtype_bytes(as->t.dtype),
					      as->t.component, as->t.name, &a, &owned);
		if (rc == 0)
			rc = local_sum(c, d, p, &owned, &a, sum);
		arena_free(&a);
	}
	return rc;
}

int ckpt_fingerprint(ckpt *c, uint32_t id, uint64_t *ret_local)
{
	int rc = client_alive(c);
	const struct declared *d = rc == 0 && id < c->ntensor ? &c->tensor[id] : NULL;

	if (rc < 0 || !d || d->dropped || !ret_local)
		return rc < 0 ? rc : -EINVAL;
	*ret_local = 0;
	return d->t.mode == CKPT_BOXES ? boxes_sum(c, d, ret_local) : shares_sum(c, d, ret_local);
}

/* --- detach --- */
int ckpt_detach(ckpt *c, uint64_t drain_ns)
{
	int rc = client_alive(c);
	bool ended;

	if (rc < 0)
		return rc;
	if (drain_ns && c->snapped)
		rc = ckpt_wait(c, c->last_step - 1, CKPT_COMMITTED, drain_ns, NULL);
	canary_off(&c->canary); /* its memory may have been given back */
	c->every.last = true;
	(void)ckpt_guard(c, NULL); /* from here on the state may change */
	copier_quiesce(c);
	ended = helper_stop(c);
	if (ended)
		atomic_store(&c->stop, 0);
	if (ended && c->sock >= 0) {
		struct wire_plain m = { 0 };

		(void)rpc_call(c, &m, WIRE_BYE, -1, NULL, NULL, NS_PER_S, NULL);
	}
	handle_free(c);
	return rc;
}
