// SPDX-License-Identifier: Apache-2.0
// client.c - a handle from attach to detach: options, memory, seal, restore, blobs. What ckpt.h
// promises is kept here and in declare.c and mark.c.
// Invariant: a call either returns with its effect or with a sentence; nothing here ends the
// process or prints.
#include "ckpt/base/hash.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
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
	return *(volatile const uint32_t *)c->alive ? 0 : -ECHILD;
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
			"the job name '%s' must be 1 to %d of [A-Za-z0-9._-] and not start with a dot",
			job, CKPT_JOB_MAX);
	if (!o->world || o->rank >= o->world || o->world > WIRE_WORLD_MAX)
		return ckpt_error(
			err, -EINVAL,
			"rank %u of a world of %u: rank must be below world, world at most %u",
			o->rank, o->world, WIRE_WORLD_MAX);
	if (o->slots == 1 || o->slots > WIRE_SLOTS_MAX)
		return ckpt_error(err, -EINVAL, "%u slots: 2 to %d", o->slots, WIRE_SLOTS_MAX);
	if (o->guard > CKPT_FINISH)
		return ckpt_error(err, -EINVAL, "guard policy %u is unknown; see enum ckpt_policy",
				  o->guard);
	if (o->flags & ~(uint32_t)(CKPT_REQUIRE | CKPT_AUTOSTART | CKPT_USE_ENV))
		return ckpt_error(err, -EINVAL, "ckpt_opts.flags 0x%x: unknown bits", o->flags);
	if (o->device)
		return ckpt_error(
			err, -EOPNOTSUPP,
			"CUDA devices come in a later version: give device 0 and host memory");
	return 0;
}

static int store_dir_open(ckpt *c, struct ckpt_err *err)
{
	if (mkdir(c->store, 0700) < 0 && errno != EEXIST)
		return ckpt_error_errno(err, errno, "cannot make the store %s", c->store);
	c->store_fd = open(c->store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (c->store_fd < 0)
		return ckpt_error_errno(err, errno, "cannot open the store %s", c->store);
	if (faccessat(c->store_fd, ".", W_OK | X_OK, AT_EACCESS) < 0)
		return ckpt_error_errno(err, errno, "cannot write into the store %s", c->store);
	return 0;
}

static int handle_init(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err)
{
	const char *job = from_env(o, o->job, "CKPTD_JOB"),
		   *store = from_env(o, o->store, "CKPTD_STORE");
	const char *socket = from_env(o, o->socket, "CKPTD_SOCKET");
	char path[108];
	int rc = options_check(o, job, store, err);

	if (rc == 0 && !socket)
		rc = wire_socket_path(path, o->flags & CKPT_AUTOSTART, err);
	if (rc < 0)
		return rc;
	c->job = strdup(job);
	c->store = strdup(store);
	c->socket = strdup(socket ? socket : path);
	c->alive = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (c->alive == MAP_FAILED)
		c->alive = NULL;
	c->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!c->job || !c->store || !c->socket || !c->alive || c->wake < 0)
		return ckpt_error(err, -ENOMEM, "no memory for a handle");
	madvise(c->alive, 4096, MADV_WIPEONFORK);
	*c->alive = 1;
	c->rank = o->rank;
	c->world = o->world;
	c->flags = o->flags;
	c->nslot = o->slots ? o->slots : 2;
	c->persist_every = o->persist_every ? o->persist_every : 1;
	c->guard = o->guard;
	c->generation = o->generation;
	c->generation_given = o->generation != 0;
	c->guard_ns = o->guard_ns;
	c->memory_max = o->memory_max;
	c->agree = o->agree;
	c->agree_ctx = o->agree_ctx;
	c->log = (struct log){ o->log, o->log_ctx, LOG_DEBUG };
	return store_dir_open(c, err);
}

static void handle_free(ckpt *c)
{
	helper_stop(c);
	if (c->sock >= 0)
		(void)close(c->sock);
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
	free(c->tensor);
	free(c->blob);
	free(c->decl);
	free(c->job);
	free(c->store);
	free(c->socket);
	pthread_mutex_destroy(&c->rpc);
	pthread_mutex_destroy(&c->why_lock);
	free(c);
}

int ckpt_attach(const struct ckpt_opts *opts, ckpt **ret, struct ckpt_err *err)
{
	struct ckpt_opts o = { 0 };
	ckpt *c;
	bool disabled;
	int rc;

	if (ret)
		*ret = NULL;
	if (!opts || !ret || opts->size < 2 * sizeof(uint32_t))
		return ckpt_error(
			err, -EINVAL,
			"ckpt_opts.size must be sizeof(struct ckpt_opts), and ret_ckpt given");
	memcpy(&o, opts, MIN((size_t)opts->size, sizeof o));
	c = calloc(1, sizeof *c);
	if (!c)
		return ckpt_error(err, -ENOMEM, "no memory for a handle");
	pthread_mutex_init(&c->rpc, NULL);
	pthread_mutex_init(&c->why_lock, NULL);
	c->sock = c->store_fd = c->wake = -1;
	c->shadow = UINT32_MAX;
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		c->held[i].step = UINT64_MAX;
	rc = handle_init(c, &o, err);
	disabled = o.flags & CKPT_USE_ENV && getenv("CKPTD_DISABLE") &&
		   strcmp(getenv("CKPTD_DISABLE"), "1") == 0;
	if (rc == 0 && !disabled) {
		rc = connect_first(c, err);
		if ((rc == -ECONNREFUSED || rc == -ETIMEDOUT || rc == -EAGAIN) &&
		    !(o.flags & CKPT_REQUIRE))
			rc = 0;
		if (rc == 0)
			rc = helper_start(c, err);
	}
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
	int rc = client_alive(c);

	if (rc < 0)
		return ckpt_error(err, rc, "the handle belongs to the parent process");
	if (!bytes || bytes > INT64_MAX / 2 || !ret)
		return ckpt_error(err, -EINVAL, "%" PRIu64 " bytes cannot be allocated", bytes);
	fill_quiesce(c);
	pthread_mutex_lock(&c->rpc);
	rc = segment_new(c, bytes, &seg, err);
	if (rc == 0)
		*ret = c->seg[seg].base;
	pthread_mutex_unlock(&c->rpc);
	return rc;
}

int ckpt_average(ckpt *c, const char *name, const char *spec, struct ckpt_err *err)
{
	(void)c, (void)name, (void)spec;
	return ckpt_error(err, -EOPNOTSUPP, "averages of the weights come in a later version");
}

/* --- seal --- */
static int seal_send(ckpt *c, struct ckpt_err *err)
{
	int rc;

	pthread_mutex_lock(&c->rpc);
	rc = declare_encode(c, err);
	if (rc == 0) {
		atomic_fetch_add(&c->epoch, 1);
		for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
			atomic_store(&c->held[i].step, UINT64_MAX);
		c->dirty = false;
		c->sealed_once = true;
		if (atomic_load(&c->state) == LINK_UP) {
			rc = send_segments(c, err);
			if (rc == 0)
				rc = send_declaration(c, err);
			if (rc < 0 && rc != -ECONNRESET && rc != -ETIMEDOUT) {
				atomic_fetch_sub(&c->epoch, 1);
				c->dirty = true;
				c->decl_bytes = 0;
				free(TAKE(c->decl));
			} else {
				/* the daemon went away: the helper hands the declaration to the
				 * next one */
				rc = 0;
			}
		}
	}
	pthread_mutex_unlock(&c->rpc);
	return rc;
}

/* Asked again, a seal that is not ready goes on waiting; any other one begins a new epoch. */
static int seal_unready(ckpt *c, const struct link *l, struct ckpt_err *err)
{
	char text[SHARED_TEXT];

	c->redeclare = false;
	if (!l || atomic_load(&c->state) != LINK_UP)
		(void)ckpt_error(
			err, -ETIMEDOUT,
			"job %s: no daemon listens on %s: snapshots are skipped until one does",
			c->job, c->socket);
	else if (shared_text_get(&l->job->waits, text))
		(void)ckpt_error(err, -ETIMEDOUT, "job %s: %s", c->job, text);
	else
		(void)ckpt_error(
			err, -ETIMEDOUT,
			"job %s: not every rank has called ckpt_seal, or the slots are not in memory yet",
			c->job);
	return CKPT_SKIPPED;
}

static int seal_wait(ckpt *c, uint64_t wait_ns, struct ckpt_err *err)
{
	uint64_t start = now_ns(), now = start;

	for (;;) {
		struct link *l = atomic_load(&c->link);
		uint32_t changed = atomic_load(&c->changed),
			 seen = l ? atomic_load(&l->job->event) : 0, refused;

		if (atomic_load(&c->state) == LINK_FENCED)
			return ckpt_error(err, -ESTALE,
					  "a newer launch of job %s has taken over: stop this one",
					  c->job);
		refused = l ? atomic_load(&l->job->refused) : 0;
		if (refused)
			return ckpt_error(err, -(int)refused, "%.*s",
					  (int)sizeof l->job->trouble - 1, l->job->trouble);
		if (l && atomic_load(&l->job->ready_epoch) == atomic_load(&c->epoch))
			return 0;
		if (now - start >= wait_ns)
			return seal_unready(c, l, err);
		if (l)
			shared_futex_wait(&l->job->event, seen,
					  MIN(wait_ns - (now - start), 100 * NS_PER_MS));
		else
			shared_futex_wait(&c->changed, changed,
					  MIN(wait_ns - (now - start), 100 * NS_PER_MS));
		now = now_ns();
	}
}

int ckpt_seal(ckpt *c, uint64_t wait_ns, struct ckpt_err *err)
{
	int rc = client_alive(c);

	if (rc < 0)
		return ckpt_error(err, rc, "the handle belongs to the parent process");
	fill_quiesce(c);
	if (c->dirty || !c->sealed_once || c->redeclare)
		rc = seal_send(c, err);
	c->redeclare = true;
	if (rc < 0)
		return rc;
	atomic_store(&c->waits, true);
	rc = seal_wait(c, wait_ns, err);
	atomic_store(&c->waits, false);
	return rc;
}

/* --- restore --- */
static int restore_call(ckpt *c, const struct ckpt_want *w, struct wire_restored *r,
			struct ckpt_err *err)
{
	struct wire_restore m = { .flags = w->flags,
				  .epoch = atomic_load(&c->epoch),
				  .step = w->step,
				  .deadline_ns = w->deadline_ns };
	/* reading a large checkpoint takes its time */
	uint64_t wait_ns = (w->deadline_ns ? w->deadline_ns : RPC_NS) + 3600 * NS_PER_S;
	int fd[WIRE_FDS_MAX], rc;
	void *blobs;

	snprintf(m.only, sizeof m.only, "%s", w->only ? w->only : "");
	pthread_mutex_lock(&c->rpc);
	rc = rpc_call(c, &m, WIRE_RESTORE, sizeof m, NULL, 0, WIRE_RESTORED, r, sizeof *r, fd,
		      wait_ns, err);
	if (rc == 0) {
		rc = fd[0] >= 0 ? wire_map(fd[0], r->blob_bytes, 0, &blobs, err)
				: ckpt_error(err, -EPROTO, "the daemon's answer lacks the blobs");
		wire_close_fds(fd, WIRE_FDS_MAX);
	}
	if (rc == 0) {
		if (c->blobs)
			munmap(c->blobs, c->blobs_bytes);
		c->blobs = blobs;
		c->blobs_bytes = r->blob_bytes;
		if (!(w->flags & CKPT_DRY_RUN))
			/* before the agreement: should the daemon die meanwhile, the next one must
			 * know */
			c->base = r->step + 1;
	}
	pthread_mutex_unlock(&c->rpc);
	return rc;
}

/* Every rank must have got the step, or none may use it. */
static int agree_on(ckpt *c, int rc, uint64_t step, struct ckpt_err *err)
{
	uint64_t mine = rc == 0 ? step + 1 : 0, all = mine;

	if (!c->agree)
		return rc;
	if (c->agree(c->agree_ctx, mine, &all) != 0)
		return ckpt_error(err, -ECONNRESET,
				  "the job's own agreement failed: start all ranks again");
	if (rc == 0 && all != mine)
		return ckpt_error(err, -EBADMSG,
				  "another rank could not restore step %" PRIu64
				  ": memory is undefined, call again",
				  step);
	return rc;
}

static int want_check(const ckpt *c, const struct ckpt_want *w, struct ckpt_err *err)
{
	const uint32_t known =
		CKPT_LENIENT | CKPT_FROM_DISK | CKPT_DRY_RUN | CKPT_FROM_MEMORY | CKPT_EXACT;

	if (w->flags & ~known || (w->flags & CKPT_FROM_DISK && w->flags & CKPT_FROM_MEMORY) ||
	    (w->only && strlen(w->only) > CKPT_NAME_MAX))
		return ckpt_error(
			err, -EINVAL,
			"ckpt_want: unknown flags, or both FROM_DISK and FROM_MEMORY, or .only too long");
	if (!c->sealed_once || c->dirty)
		return ckpt_error(err, -EINVAL, "ckpt_seal comes before ckpt_restore");
	if (c->snapped)
		return ckpt_error(err, -EALREADY,
				  "ckpt_restore comes before the first ckpt_snapshot");
	return 0;
}

/* May ckpt_snapshot begin after this? That nothing was found decides it only for who asked for
 * everything. */
static void start_judge(ckpt *c, const struct ckpt_want *w, int rc, const struct ckpt_err *why)
{
	bool all = w->step == CKPT_LATEST && !(w->flags & (CKPT_FROM_DISK | CKPT_FROM_MEMORY));

	if (w->flags & CKPT_DRY_RUN || c->snapped || (rc == -ENOENT && !all))
		return;
	pthread_mutex_lock(&c->why_lock);
	snprintf(c->unrestored_why, sizeof c->unrestored_why, "%.*s", SHARED_TEXT - 1, why->msg);
	pthread_mutex_unlock(&c->why_lock);
	atomic_store(&c->unrestored, rc != 0 && rc != -ENOENT);
	atomic_store(&c->unclean_said, false);
}

/* One line of the log each. */
static void passed_say(ckpt *c, const struct wire_restored *r)
{
	for (const char *p = r->passed; *p; p += strcspn(p, "\n"), p += *p == '\n')
		log_line(&c->log, c->rank == 0 ? LOG_WARNING : LOG_INFO,
			 "client: job %s: step %" PRIu64 " is restored; passed over: %.*s", c->job,
			 r->step, (int)strcspn(p, "\n"), p);
}

int ckpt_restore(ckpt *c, const struct ckpt_want *want, struct ckpt_got *ret, struct ckpt_err *err)
{
	struct ckpt_want w = { 0 };
	struct wire_restored r = { 0 };
	struct ckpt_err why = { 0 };
	int rc = client_alive(c);

	if (rc < 0)
		return ckpt_error(err, rc, "the handle belongs to the parent process");
	if (!want || want->size < 2 * sizeof(uint32_t))
		return ckpt_error(err, -EINVAL, "ckpt_want.size must be sizeof(struct ckpt_want)");
	memcpy(&w, want, MIN((size_t)want->size, sizeof w));
	rc = want_check(c, &w, &why);
	if (rc == 0) {
		shadow_prepare(c);
		atomic_store(&c->waits, true);
		rc = restore_call(c, &w, &r, &why);
		atomic_store(&c->waits, false);
	}
	rc = agree_on(c, rc, r.step, &why);
	start_judge(c, &w, rc, &why);
	if (rc < 0) {
		if (err)
			*err = why;
		return rc;
	}
	r.passed[sizeof r.passed - 1] = 0;
	passed_say(c, &r);
	if (!(w.flags & CKPT_DRY_RUN)) {
		shadow_drain(c);
		c->restored = true;
		c->restored_step = r.step;
		c->last_step = r.step + 1;
	}
	if (ret) {
		*ret = (struct ckpt_got){ .size = sizeof *ret,
					  .step = r.step,
					  .where = r.where,
					  .world_saved = r.world_saved,
					  .ntensor = r.ntensor,
					  .nmissing = r.nmissing,
					  .nunused = r.nunused,
					  .npassed = r.npassed };
		memcpy(ret->id, r.id, sizeof ret->id - 1);
		memcpy(ret->passed, r.passed, sizeof ret->passed);
	}
	return 0;
}

/* --- starting over --- */
int ckpt_fresh(ckpt *c)
{
	int rc = c ? client_alive(c) : -EINVAL;

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&c->rpc);
	/* before the request: should the daemon die meanwhile, the next one must know */
	atomic_store(&c->fresh, true);
	if (atomic_load(&c->state) == LINK_FENCED) {
		rc = -ESTALE;
	} else if (atomic_load(&c->state) == LINK_UP) {
		struct wire_fresh m = { 0 };
		struct wire_ok ok;

		(void)rpc_call(c, &m, WIRE_FRESH, sizeof m, NULL, 0, WIRE_OK, &ok, sizeof ok, NULL,
			       RPC_NS, NULL);
	}
	pthread_mutex_unlock(&c->rpc);
	return rc;
}

int ckpt_blob_read(ckpt *c, const char *name, uint32_t old_rank, void *buf, uint64_t cap,
		   uint64_t *ret_len)
{
	const uint8_t *base = c->blobs;
	uint64_t n;

	if (client_alive(c) < 0)
		return -ECHILD;
	if (!base || !name || c->blobs_bytes < sizeof n)
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
	int rc = client_alive(c);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&c->rpc);
	rc = rpc_call(c, &m, WIRE_STEPS, sizeof m, NULL, 0, WIRE_STEPS_ARE, &are, sizeof are, NULL,
		      RPC_NS, NULL);
	pthread_mutex_unlock(&c->rpc);
	if (rc < 0)
		return rc;
	n = MIN(n, are.n);
	n = MIN(n, (uint32_t)WIRE_STEPS_MAX);
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
static void walk(struct owned_walk *w, uint32_t d, uint64_t first, uint64_t off)
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
			walk(w, d + 1, g + i, o + i * (uint64_t)w->p->stride[d]);
	}
}

int ckpt_fingerprint(ckpt *c, uint32_t id, uint64_t *ret_local)
{
	const struct declared *d = id < c->ntensor ? &c->tensor[id] : NULL;
	struct layout l;
	struct indexset owned;
	struct arena a = { 0 };
	uint32_t coord[CKPT_DIMS_MAX];
	int rc = client_alive(c);

	if (rc < 0 || !d || d->dropped || !ret_local)
		return rc < 0 ? rc : -EINVAL;
	*ret_local = 0;
	l = (struct layout){
		.mesh = d->t.mesh, .mode = d->t.mode, .nplace = d->t.nplace, .place = d->t.place
	};
	if (!mesh_coord(&c->meshes.mesh[d->t.mesh], c->rank, coord))
		return 0;
	rc = layout_owned(&c->meshes.mesh[d->t.mesh], &l, d->t.ndim, d->t.shape, coord,
			  dtype_bytes(d->t.dtype), d->t.component, d->t.name, &a, &owned);
	for (uint32_t k = 0; rc == 0 && owned.numel && k < d->nlocal; k++) {
		const struct part_of *p = &d->local[k];
		struct owned_walk w = { .d = d,
					.owned = &owned,
					.base = p->ptr,
					.p = p,
					.elem = dtype_bytes(d->t.dtype) };

		for (uint32_t i = 0; i < p->ndim && rc == 0; i++) {
			if (p->boxed)
				rc = indices_range(p->start[i], p->start[i] + p->extent[i], &a,
						   &w.box[i]);
			else
				w.box[i] = d->share.dim[i];
		}
		if (rc == 0 && p->bytes)
			walk(&w, 0, 0, 0);
		*ret_local += w.sum;
	}
	arena_free(&a);
	return rc;
}

/* --- detach --- */
int ckpt_detach(ckpt *c, uint64_t drain_ns)
{
	int rc = 0;

	if (!c)
		return 0;
	if (client_alive(c) < 0)
		return -ECHILD;
	if (drain_ns && c->snapped)
		rc = ckpt_wait(c, c->last_step - 1, CKPT_COMMITTED, drain_ns, NULL);
	(void)ckpt_guard(c, NULL); /* from here on the state may change */
	fill_quiesce(c);
	helper_stop(c);
	atomic_store(&c->stop, 0);
	if (c->sock >= 0) {
		struct wire_bye m = { 0 };
		struct wire_ok ok;

		(void)rpc_call(c, &m, WIRE_BYE, sizeof m, NULL, 0, WIRE_OK, &ok, sizeof ok, NULL,
			       NS_PER_S, NULL);
	}
	handle_free(c);
	return rc;
}
