// SPDX-License-Identifier: Apache-2.0
// nccl_share.c - see nccl_share.h. Called by ckpt_attach and ckpt_restore. Invariant: whatever is
// missing, a restore without NCCL follows, on all ranks; nothing of it is used outside of a
// ckpt_restore.
#include "ckpt/client/nccl_share.h"
#include "ckpt/base/util.h"
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>

/* As long as a restore waits for the other ranks, and no longer than this. */
#define WAIT_NS (60 * NS_PER_S)
#define WAIT_MAX_NS (600 * NS_PER_S)
#define STAGING_BYTES (256 * MIB)

struct nccl_share {
	const struct nccl_entry *entry;
	void *handle;
};

int nccl_share_options(ckpt *c, const struct ckpt_opts *o, struct ckpt_err *err)
{
	c->nccl.on = o->nccl || o->flags & CKPT_NCCL;
	c->nccl.comm = o->nccl;
	c->nccl.device = o->device - 1;
	c->nccl.staging_bytes = STAGING_BYTES;
	if (!c->nccl.on)
		return 0;
	if (!o->device)
		return ckpt_error(
			err, -EINVAL,
			"ckpt_opts.nccl and CKPT_NCCL need ckpt_opts.device: 1 + the number "
			"of this rank's CUDA device");
	if (!o->agree)
		return ckpt_error(
			err, -EINVAL,
			"ckpt_opts.nccl and CKPT_NCCL need ckpt_opts.agree: the ranks find "
			"each other through it");
	return 0;
}

/* Beside the library that this function is in. */
static int library_path(char *buf, size_t bytes)
{
	Dl_info me;
	const char *slash;

	if (!dladdr((void *)(uintptr_t)&nccl_share_open, &me) || !me.dli_fname ||
	    !(slash = strrchr(me.dli_fname, '/')))
		return snprintf(buf, bytes, "%s", NCCL_LIBRARY) < 0 ? -1 : 0;
	return (size_t)snprintf(buf, bytes, "%.*s/%s", (int)(slash - me.dli_fname), me.dli_fname,
				NCCL_LIBRARY) < bytes
		       ? 0
		       : -1;
}

static const struct nccl_entry *entry_find(struct ckpt_err *err)
{
	char path[PATH_MAX];
	const struct nccl_entry *e;
	void *lib;

	if (library_path(path, sizeof path) < 0)
		return ckpt_error(err, -ENAMETOOLONG, "the path of %s is too long", NCCL_LIBRARY),
		       NULL;
	lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	if (!lib)
		return ckpt_error(err, -ENOENT, "%s is not beside libckpt.so: %s", NCCL_LIBRARY,
				  dlerror()),
		       NULL;
	e = dlsym(lib, NCCL_ENTRY);
	if (!e || e->bytes != NCCL_ENTRY_BYTES || strcmp(e->version, CKPT_VERSION) != 0) {
		ckpt_error(err, -ENOTSUP,
			   "%s is of another version than libckpt.so (%s): install "
			   "both together",
			   path, CKPT_VERSION);
		e = NULL;
	}
	return e;
}

static struct nccl_share *share_try(ckpt *c, uint64_t wait_ns, struct ckpt_err *err)
{
	const struct nccl_job j = { .rank = c->rank,
				    .world = c->world,
				    .device = c->nccl.device,
				    .comm = c->nccl.comm,
				    .agree = c->agree,
				    .agree_ctx = c->agree_ctx,
				    .init_ns = wait_ns,
				    .round_ns = wait_ns,
				    .staging_bytes = c->nccl.staging_bytes };
	struct nccl_share *s = calloc(1, sizeof *s);
	uint64_t all;

	if (!s)
		ckpt_error(err, -ENOMEM, "no memory");
	else
		s->entry = entry_find(err);
	if (!s || !s->entry) {
		(void)c->agree(c->agree_ctx, 0, &all); /* the others ask who can */
		free(s);
		return NULL;
	}
	if (s->entry->open(&j, &s->handle, err) < 0) {
		free(s);
		return NULL;
	}
	return s;
}

struct nccl_share *nccl_share_open(ckpt *c, const struct ckpt_want *w, bool usable)
{
	struct ckpt_err err = { 0 };
	struct nccl_share *s;
	uint64_t all;

	if (!c->nccl.on || c->world < 2 ||
	    w->flags & (CKPT_DRY_RUN | CKPT_PEEK | CKPT_LENIENT)) /* what comes is not known */
		return NULL;
	if (!usable) {
		(void)c->agree(c->agree_ctx, 0, &all);
		return NULL;
	}
	s = share_try(c, MIN(w->deadline_ns ? w->deadline_ns : WAIT_NS, WAIT_MAX_NS), &err);
	if (!s)
		log_line(
			&c->log, LOG_WARNING,
			"client: job %s: restores without NCCL, each rank reads all of its memory: "
			"%s",
			c->job, err.msg);
	return s;
}

int nccl_share_run(ckpt *c, struct nccl_share *s, const char *only, struct nccl_done *ret,
		   struct ckpt_err *err)
{
	cleanup_free uint64_t *base = calloc((size_t)c->nseg + 1, sizeof *base);
	const struct nccl_state state = { .declaration = c->decl,
					  .bytes = c->decl_bytes,
					  .base = base,
					  .nbase = base ? c->nseg : 0,
					  .only = only };
	int rc;

	for (uint32_t i = 0; base && i < c->nseg; i++)
		base[i] = (uintptr_t)c->seg[i].base;
	/* Without it the plan has no addresses: an empty declaration is an error on all ranks. */
	rc = s->entry->run(s->handle, base ? &state : &(struct nccl_state){ 0 }, ret, err);
	if (rc == 0)
		log_line(&c->log, c->rank == 0 ? LOG_NOTICE : LOG_DEBUG,
			 "client: job %s: rank %u has got %" PRIu64
			 " MiB from other ranks over NCCL",
			 c->job, c->rank, ret->bytes / MIB);
	else
		log_line(
			&c->log, LOG_WARNING,
			"client: job %s: the exchange over NCCL has failed%s, each rank reads what "
			"has not arrived (%" PRIu64 " rounds have): %s",
			c->job, c->nccl.comm ? " and ckpt_opts.nccl is aborted" : "", ret->rounds,
			err->msg);
	if (rc < 0)
		c->nccl.comm = NULL;
	return rc;
}

void nccl_share_close(struct nccl_share *s)
{
	if (!s)
		return;
	s->entry->close(s->handle);
	free(s);
}
