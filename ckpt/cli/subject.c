/* SPDX-License-Identifier: Apache-2.0 */
/*
 * subject.c - from what a person typed to an open checkpoint and to tensors in it. Called by every
 * verb that has a CKPT argument.
 * Invariant: after subject_close nothing is left open, however far the opening got.
 */
#include "ckpt/cli/subject.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/store/address.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <fnmatch.h>

#define NEAR_SHOWN 3
#define NEAR_MAX 8 /* edits, of a long name: a third of its length at most */
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

/* The best of the formats that may be it; 0: none, and tried lists what each looked for; -errno. */
static int format_find(const struct source_dir *dir, const struct format **ret, char tried[400])
{
	char looked[FORMAT_LOOKED];
	int best = 0, at = 0;

	tried[0] = 0;
	for (uint32_t i = 0; formats[i]; i++) {
		int rc = formats[i]->probe(dir, looked);

		if (rc < 0)
			return rc;
		if (rc > best) {
			best = rc;
			*ret = formats[i];
		}
		at += snprintf(tried + at, 400 - (size_t)MIN(at, 399), "%s%s: %s", at ? "; " : "",
			       formats[i]->name, looked);
		at = MIN(at, 399);
	}
	return best;
}

/* What is no step of a store, at a path that is there. */
static int path_open(struct subject *s, struct ckpt_err *err)
{
	const struct format *format;
	struct source_dir dir;
	char tried[400];
	int rc;

	s->ref.step_fd = open(s->ref.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (s->ref.step_fd < 0)
		return errno == ENOTDIR
			       ? ckpt_error(err, -ENOTDIR, "%.200s is a file: give the directory",
					    s->ref.path)
			       : ckpt_error_errno(err, errno, "cannot open %.200s", s->ref.path);
	rc = source_make(s->ops, s->ref.step_fd, "", 0, &dir);
	if (!rc) {
		rc = format_find(&dir, &format, tried);
		source_end(&dir);
	}
	if (rc < 0)
		ckpt_error_errno(err, -rc, "%.300s cannot be read", s->ref.path);
	else if (!rc && !(rc = store_path_job(s->ops, s->ref.path, err)))
		rc = ckpt_error(err, -ENOENT, "%.300s is no checkpoint: %s", s->ref.path, tried);
	if (rc < 0)
		close(TAKE_FD(s->ref.step_fd));
	return MIN(rc, 0);
}

int subject_find(struct subject *s, const struct io_ops *ops, const char *where, const char *name,
		 struct ckpt_err *err)
{
	int rc;

	*s = (struct subject){ .ops = ops };
	rc = store_resolve(ops, formats[0], where, name, &s->ref, err);
	if (rc > 0)
		rc = path_open(s, err);
	if (rc)
		return rc;
	rc = source_make(ops, s->ref.step_fd, NULL, 0, &s->dir);
	if (rc)
		return ckpt_error_errno(err, -rc, "%s cannot be read", s->ref.path);
	s->has_dir = true;
	return 0;
}

int subject_take(struct subject *s, const struct io_ops *ops, int step_fd, const char *path,
		 struct ckpt_err *err)
{
	int rc;

	*s = (struct subject){ .ops = ops, .ref.step_fd = step_fd };
	snprintf(s->ref.path, sizeof s->ref.path, "%s", path);
	rc = source_make(ops, step_fd, NULL, 0, &s->dir);
	if (rc)
		return ckpt_error_errno(err, -rc, "%s cannot be read", path);
	s->has_dir = true;
	return 0;
}

int subject_fresh(struct subject *s, struct ckpt_err *err)
{
	int rc;

	source_end(&s->dir);
	rc = source_make(s->ops, s->ref.step_fd, NULL, SOURCE_FRESH, &s->dir);
	s->has_dir = !rc;
	return rc ? ckpt_error_errno(err, -rc, "%s cannot be read", s->ref.path) : 0;
}

int subject_damage(int rc)
{
	switch (rc) {
	case -EACCES:
	case -EPERM:
	case -EPROTONOSUPPORT:
	case -ENOMEM:
	case -EMFILE:
	case -ENFILE:
	case -ECANCELED:
		return rc;
	default:
		return rc < 0 ? -EBADMSG : rc;
	}
}

int subject_open(struct subject *s, format_fault_fn *fault, void *arg, struct ckpt_err *err)
{
	char tried[400];
	int rc;

	s->format = formats[0];
	rc = format_find(&s->dir, &s->format, tried);
	if (rc == -EACCES || rc == -EPERM)
		return ckpt_error_errno(err, -rc, "%s cannot be read", s->ref.path);
	rc = s->format->open(&(struct format_open){ .dir = &s->dir,
						    .partial = s->partial,
						    .choose = s->choose,
						    .choose_arg = s->choose_arg,
						    .fault = fault,
						    .fault_arg = arg },
			     &s->ckpt, err);
	if (rc)
		return subject_damage(rc);
	return s->ref.dir[0] ? store_step_same(s->ref.dir, s->ref.id, s->ckpt, err) : 0;
}

bool subject_brief(const struct subject *s, struct subject_brief *ret)
{
	struct checkpoint *k = NULL;
	struct source src = { 0 };
	int rc;

	if (!s->format->root || s->dir.open(s->dir.ctx, s->format->root->name, &src))
		return false;
	rc = s->format->root->summary(&src, &k, NULL);
	if (src.close)
		src.close(src.ctx);
	if (rc)
		return false;
	*ret = (struct subject_brief){ .step = k->step, .stored_bytes = k->stored_bytes };
	memcpy(ret->job, k->job, sizeof ret->job);
	checkpoint_free(k);
	return true;
}

/* Where nothing was found: where to look. */
static int tell_missing(struct cli *c, int rc, const struct ckpt_err *err, const char *name)
{
	struct address a;
	bool path = address_parse(name, &a, NULL) || a.kind == ADDRESS_PATH;

	if (strchr(a.job, '/'))
		return cli_fail(c, rc, err, "check the path before the @: ckptctl ls %s", a.job);
	if (path && (strchr(name, '/') || !access(name, F_OK)))
		return cli_fail(c, rc, err,
				"check the path; ckptctl ls STORE lists a store's checkpoints");
	if (access(c->where, F_OK))
		return cli_fail(c, rc, err, "check -C PATH and CKPTD_STORE");
	if (subject_is_checkpoint(c, c->where))
		return cli_fail(c, rc, err, "ckptctl %s %s: this directory is itself a checkpoint",
				c->verb->name, c->where);
	return cli_fail(c, rc, err, "ckptctl ls %s", c->where);
}

void subject_note(struct cli *c, const struct store_ref *ref)
{
	if (ref->note[0] && c->json)
		c->o->ops->error(c->o, CLI_OK, ref->note, NULL);
	else if (ref->note[0])
		cli_hint(c, "%s", ref->note);
}

int subject_tell(struct cli *c, int rc, const struct ckpt_err *err, const char *name)
{
	switch (rc) {
	case -ENOENT:
	case -ENOTDIR:
		return tell_missing(c, rc, err, name);
	case -ENOTUNIQ:
		return cli_fail(c, rc, err, "ckptctl %s JOB@%s", c->verb->name, name);
	case -EUCLEAN:
		if (!strncmp(name, "latest", 6))
			return cli_fail(
				c, rc, err,
				"ckptctl ls --all %s shows what is wrong; ckptctl repair -n %s "
				"shows what can be repaired",
				c->where, c->where);
		return cli_fail(c, rc, err, "wait for it, or use latest: ckptctl %s latest",
				c->verb->name);
	case -EACCES:
	case -EPERM:
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	case -EINVAL:
		return cli_fail(c, rc, err, "ckptctl %s -h", c->verb->name);
	case -EPROTONOSUPPORT:
		return cli_fail(
			c, rc, err,
			"run the ckptctl of the version that wrote it; ckptctl ls lists the "
			"steps that this version can read");
	case -ESTALE:
		return cli_fail(c, rc, err, "run it again");
	default:
		return cli_fail(c, rc, err, NULL);
	}
}

int subject_get(struct cli *c, const char *name, struct subject *s)
{
	return subject_get_some(c, name, NULL, NULL, s);
}

int subject_get_some(struct cli *c, const char *name, format_choose_fn *choose, void *arg,
		     struct subject *s)
{
	struct ckpt_err err = { 0 };
	int rc = subject_find(s, c->ops, c->where, name, &err);

	if (rc)
		return subject_tell(c, rc, &err, name);
	subject_note(c, &s->ref);
	s->choose = choose;
	s->choose_arg = arg;
	rc = subject_open(s, NULL, NULL, &err);
	if (choose && rc == -ECANCELED)
		return -1;
	if (rc == -EBADMSG)
		return cli_fail(
			c, rc, &err,
			"ckptctl verify %s lists every fault; ckptctl repair -n shows what can "
			"be repaired; ckptctl ls lists the other checkpoints",
			s->ref.path);
	return rc ? subject_tell(c, rc, &err, name) : CLI_OK;
}

void subject_close(struct subject *s)
{
	if (s->ckpt)
		checkpoint_free(s->ckpt);
	if (s->has_dir)
		source_end(&s->dir);
	if (s->ref.step_fd >= 0)
		close(s->ref.step_fd);
	*s = (struct subject){ .ref.step_fd = -1 };
}

bool subject_is_checkpoint(struct cli *c, const char *path)
{
	char looked[FORMAT_LOOKED];
	struct subject s;
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	bool yes = false;

	if (fd < 0)
		return false;
	if (!subject_take(&s, c->ops, fd, path, NULL))
		for (uint32_t i = 0; formats[i] && !yes; i++)
			yes = formats[i]->probe(&s.dir, looked) > 0;
	subject_close(&s);
	return yes;
}

/* Is word the tensor's name, or component/name? */
static bool is_called(const struct table_tensor *x, const char *word)
{
	size_t n = strlen(x->component);

	return !strcmp(x->name, word) || (!strncmp(x->component, word, n) && word[n] == '/' &&
					  !strcmp(x->name, word + n + 1));
}

static bool matches(const struct table_tensor *x, const char *glob)
{
	char full[NAME_BYTES];

	snprintf(full, sizeof full, "%s/%s", x->component, x->name);
	return !fnmatch(glob, full, 0) || !fnmatch(glob, x->name, 0);
}

/* Edits from what was typed to the tensor's name; UINT32_MAX: too many. What is a part of the name is
 * as far as the farthest. */
static uint32_t edits(const struct table_tensor *x, const char *word)
{
	const char *slash = strchr(word, '/'), *name = word;
	uint32_t max, d;

	if (slash && !strncmp(x->component, word, (size_t)(slash - word)) &&
	    !x->component[slash - word])
		name = slash + 1;
	max = MAX(2u, (uint32_t)strlen(name) / 3);
	max = MIN(max, (uint32_t)NEAR_MAX);
	d = human_distance(name, x->name, max);
	return d == UINT32_MAX && *name && strstr(x->name, name) ? NEAR_MAX : d;
}

static bool same_name(const struct table_tensor *x, const struct table_tensor *y)
{
	return !strcmp(x->name, y->name) && !strcmp(x->component, y->component);
}

/* The names that lie nearest to word, as a sentence's end: ", ...". */
static void near_names(const struct table *t, const char *word, char *buf, size_t bytes)
{
	uint32_t id[NEAR_SHOWN], far[NEAR_SHOWN], n = 0;

	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint32_t d = edits(&t->tensor[i], word), at;
		bool told = d == UINT32_MAX;

		/* Blobs of the ranks share a name. */
		for (at = 0; at < n && !told; at++)
			told = same_name(&t->tensor[id[at]], &t->tensor[i]);
		if (told)
			continue;
		for (at = n; at && d < far[at - 1]; at--)
			if (at < NEAR_SHOWN) {
				id[at] = id[at - 1];
				far[at] = far[at - 1];
			}
		if (at < NEAR_SHOWN) {
			id[at] = i;
			far[at] = d;
			n = MIN(n + 1, (uint32_t)NEAR_SHOWN);
		}
	}
	buf[0] = 0;
	for (uint32_t i = 0; i < n; i++) {
		const struct table_tensor *x = &t->tensor[id[i]];
		size_t len = strlen(buf);

		snprintf(buf + len, bytes - len, "%s%.200s/%.200s",
			 i ? ", " : "; near it: ", x->component, x->name);
	}
}

/* Collect the tensors that `is` says yes to. */
static int collect(const struct table *t, const char *word,
		   bool (*is)(const struct table_tensor *, const char *), uint32_t **ret_id,
		   uint32_t *ret_n)
{
	uint32_t *id = calloc((size_t)t->ntensor + 1, sizeof *id), n = 0;

	if (!id)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (is(&t->tensor[i], word))
			id[n++] = i;
	*ret_id = id;
	*ret_n = n;
	return 0;
}

/* A name without a component means the weights, never their averages, which have it too. Returns how many
 * are left. */
static uint32_t leave_averages(const struct table *t, const char *word, uint32_t *id, uint32_t n)
{
	uint32_t raw = 0, left = 0;

	for (uint32_t i = 0; i < n; i++)
		raw += !t->tensor[id[i]].made;
	for (uint32_t i = 0; i < n && raw; i++)
		if (!t->tensor[id[i]].made || strcmp(t->tensor[id[i]].name, word) != 0)
			id[left++] = id[i];
	return raw ? left : n;
}

int subject_tensors(const struct checkpoint *k, const char *word, uint32_t **ret_id,
		    uint32_t *ret_n, struct ckpt_err *err)
{
	char near[1400];
	int rc = collect(&k->table, word, is_called, ret_id, ret_n);

	if (!rc)
		*ret_n = leave_averages(&k->table, word, *ret_id, *ret_n);
	if (rc || *ret_n)
		return rc;
	near_names(&k->table, word, near, sizeof near);
	return ckpt_error(err, -ENOENT, "there is no tensor \"%.200s\" in step %llu%s", word,
			  (unsigned long long)k->step, near);
}

int subject_glob(const struct checkpoint *k, const char *glob, uint32_t **ret_id, uint32_t *ret_n,
		 struct ckpt_err *err)
{
	int rc = collect(&k->table, glob, matches, ret_id, ret_n);

	if (rc || *ret_n)
		return rc;
	return ckpt_error(err, -ENOENT, "none of the %u tensors in step %llu matches \"%.200s\"",
			  k->table.ntensor, (unsigned long long)k->step, glob);
}

char *subject_mesh(const struct table *t, char *buf, size_t bytes)
{
	uint32_t best = 0;

	buf[0] = 0;
	for (uint32_t i = 1; i < t->nmesh; i++)
		if (t->mesh[i].nrank > t->mesh[best].nrank)
			best = i;
	return t->nmesh ? mesh_print(&t->mesh[best], buf, bytes) : buf;
}
