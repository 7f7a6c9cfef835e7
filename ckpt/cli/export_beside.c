/* SPDX-License-Identifier: Apache-2.0 */
/*
 * export_beside.c - export --rank: the files that lie in DIR already. Called by export_write.c.
 * Invariant: no run adds its file to files of another checkpoint or mesh, however many runs write
 * into DIR at the same time: each compares all of them before it writes anything, and those that
 * came meanwhile once more, under a lock on DIR that it keeps until its file has its name.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/export.h"
#include "ckpt/io/io_source.h"
#include "ckpt/store/address.h"
#include <fcntl.h>
#include <time.h>

#define LOCK_WAIT_NS (60 * NS_PER_S) /* others keep it for a rename and a sync */
#define LOCK_PAUSE_NS (5 * NS_PER_MS)

struct looking {
	struct export *r;
	struct source_dir dir;
	struct ckpt_errlist list;
};

/* The other's origin, or why it is not known. */
static int other_look(struct looking *l, const char *name)
{
	struct export_beside *b = &l->r->beside;
	struct safetensors_origin o;
	struct ckpt_err why = { 0 };
	struct source src = { 0 };
	char said[ORIGIN_TEXT];
	int rc = l->dir.open(l->dir.ctx, name, &src);

	if (rc == -ENOENT)
		return 0;
	if (rc)
		ckpt_error_errno(&why, -rc, "%.300s cannot be read", name);
	else
		rc = safetensors_origin_read(&src, name, &b->arena, &o, &why);
	source_close(&src);
	if (rc == -ENOMEM)
		return rc;
	if (!rc && safetensors_origin_fits(&b->own, &o, false))
		return 0;
	if (!rc && !b->other_step && o.ours)
		b->other_step = o.word[ORIGIN_STEP];
	if (rc) /* which names the file */
		ckpt_errlist_add(&l->list, "%s", why.msg);
	else
		ckpt_errlist_add(&l->list, "%s: %s", name, safetensors_origin_print(&o, said));
	return 0;
}

/* source_entry_fn. A file is compared once. */
static int on_entry(void *arg, const char *name, enum source_kind kind)
{
	struct looking *l = arg;
	struct export_beside *b = &l->r->beside;
	char *copy;
	int rc;

	if (kind == SOURCE_DIR || !convert_is_file(name, l->r->format))
		return 0;
	copy = arena_str(&b->arena, name);
	rc = copy ? strmap_add(&b->seen, &b->arena, copy, strlen(copy), &(uint32_t){ 0 }) : -ENOMEM;
	return MIN(rc, 0);
}

static int name_compare(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Those from number `first` on, by their names. */
static int others_look(struct looking *l, uint32_t first)
{
	const struct strmap *seen = &l->r->beside.seen;
	uint32_t n = seen->map.n - first;
	cleanup_free const char **name = calloc((size_t)n + 1, sizeof *name);
	int rc = name ? 0 : -ENOMEM;

	for (uint32_t i = 0; i < n && name; i++)
		name[i] = seen->key[first + i].bytes;
	if (name)
		qsort(name, n, sizeof *name, name_compare);
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = other_look(l, name[i]);
	return rc;
}

/* All files of DIR that were not there before. */
static int files_compare(struct export *r, int fd, struct ckpt_err *err)
{
	struct looking l = { .r = r, .list = { .code = -EMEDIUMTYPE } };
	uint32_t before = r->beside.seen.map.n;
	char said[ORIGIN_TEXT];
	int rc = source_make(r->c->ops, fd, NULL, SOURCE_LINKS, &l.dir);

	if (!rc)
		rc = l.dir.list(l.dir.ctx, "", on_entry, &l);
	if (!rc)
		rc = others_look(&l, before);
	source_end(&l.dir);
	if (rc)
		rc = ckpt_error_errno(err, -rc, "%.1000s cannot be listed", r->path);
	else
		rc = ckpt_errlist_end(
			&l.list, err,
			"%.1000s has files of another checkpoint or mesh, to which none is added; the "
			"file of rank %u would be of %s",
			r->path, r->first, safetensors_origin_print(&r->beside.own, said));
	r->beside.mixed |= l.list.n != 0;
	ckpt_errlist_free(&l.list);
	return rc;
}

/* -1: there is no such directory yet. */
static int dir_open(const struct export *r, struct ckpt_err *err, int *ret_fd)
{
	*ret_fd = io_open_path(r->c->ops, AT_FDCWD, r->path, O_RDONLY | O_DIRECTORY);
	if (*ret_fd >= 0 || *ret_fd == -ENOENT)
		return 0;
	return ckpt_error_errno(err, -*ret_fd, "%.1000s cannot be opened", r->path);
}

int export_beside(struct export *r, const struct sheet *s, struct ckpt_err *err)
{
	struct export_beside *b = &r->beside;
	struct hash128 seal;
	const void *head;
	uint64_t len;
	int rc, fd;

	export_beside_end(r);
	rc = r->format->fill(s, 0, &(struct sheet_state){ 0 }, &b->arena, &head, &len, &seal, err);
	if (!rc)
		rc = safetensors_origin_parse((void *)(uintptr_t)head, len, r->dst, &b->arena,
					      &b->own, err);
	if (!rc)
		rc = dir_open(r, err, &fd);
	if (rc || fd < 0)
		return rc;
	rc = files_compare(r, fd, err);
	(void)r->c->ops->close(r->c->ops->ctx, fd);
	return rc;
}

static int lock_wait(struct export *r, struct ckpt_err *err)
{
	const struct io_ops *ops = r->c->ops;
	const struct timespec pause = { .tv_nsec = LOCK_PAUSE_NS };
	uint64_t begin = now_ns();
	int rc;

	while ((rc = ops->lock(ops->ctx, r->beside.fd, true)) == -EAGAIN) {
		if (cli_stopped())
			return ckpt_error(err, -ECANCELED, "interrupted");
		if (elapsed_ns(begin, now_ns()) > LOCK_WAIT_NS)
			return ckpt_error(err, -EBUSY,
					  "another process has locked %.1000s, and does not end",
					  r->path);
		(void)nanosleep(&pause, NULL);
	}
	/* Without locks two runs may pass each other here; then no verb opens what they made. */
	return rc == -EOPNOTSUPP || rc == -ENOLCK ? 0
	       : rc ? ckpt_error_errno(err, -rc, "%.1000s cannot be locked", r->path)
		    : 0;
}

int export_beside_again(struct export *r, struct ckpt_err *err)
{
	int rc = dir_open(r, err, &r->beside.fd);

	if (rc || r->beside.fd < 0 || MUTANT(EXPORT_COMPARES_ONCE))
		return rc;
	r->beside.open = true;
	rc = lock_wait(r, err);
	return rc ? rc : files_compare(r, r->beside.fd, err);
}

void export_beside_end(struct export *r)
{
	struct export_beside *b = &r->beside;

	if (b->open)
		(void)r->c->ops->close(r->c->ops->ctx, b->fd);
	arena_free(&b->arena);
	*b = (struct export_beside){ 0 };
}

/* --- what to do instead --- */

/* Does CKPT mean another step when the next one is committed? *ret_job: in front of it, or "". */
static bool is_moving(const struct export *r, char ret_job[PATH_MAX + 1])
{
	struct address a;

	if (address_parse(r->c->arg[0], &a, NULL) ||
	    (a.kind != ADDRESS_LATEST && a.kind != ADDRESS_TAG))
		return false;
	snprintf(ret_job, PATH_MAX + 1, "%s%s", a.job, a.job[0] ? "@" : "");
	return true;
}

int export_mixed(struct export *r, const struct ckpt_err *err)
{
	const char *step = r->beside.other_step;
	char job[PATH_MAX + 1], name[PATH_MAX + 64];

	if (!step || !is_moving(r, job))
		return cli_fail(r->c, -EMEDIUMTYPE, err, "give another DIR");
	snprintf(name, sizeof name, "%s%s%.30s", job, job[0] ? "" : "step:", step);
	return cli_fail(
		r->c, -EMEDIUMTYPE, err,
		"%s is another step now: ckptctl export %s %s, with the same options, for each "
		"rank; or give another DIR",
		r->c->arg[0], CLI_WORD(name), CLI_WORD(r->path));
}

void export_others_say(struct export *r)
{
	const struct checkpoint *k = r->s.ckpt;
	char job[PATH_MAX + 1], name[PATH_MAX + 64];

	if (!r->one || target_world(&r->to.target) == 1 || !(k->has & HAS_STEP) ||
	    !is_moving(r, job))
		return;
	snprintf(name, sizeof name, "%s%s%llu", job,
		 job[0] ? "" : "step:", (unsigned long long)k->step);
	cli_hint(r->c, "For the other ranks write %s: %s may be another step by then.",
		 CLI_WORD(name), r->c->arg[0]);
}
