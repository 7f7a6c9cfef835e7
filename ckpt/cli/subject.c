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
#include <fnmatch.h>

#define NEAR_SHOWN 3
#define NEAR_MAX 8 /* edits, of a long name: a third of its length at most */
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

static struct engine engine_of(const struct io_ops *ops)
{
	return (struct engine){ .ops = ops, .io = IO_AUTO, .format = formats };
}

/* What lies at a path and is no step of a store. */
static int path_find(struct subject *s, const struct format *force, struct ckpt_err *err)
{
	const struct engine e = engine_of(s->ops);
	struct ckpt_err tried;
	int rc = engine_find(&e, s->ref.path, force, &s->opened, err);

	if (rc == -ENOMSG && err)
		tried = *err;
	if (rc == -ENOMSG && !(rc = store_path_job(s->ops, s->ref.path, err)))
		rc = err ? ckpt_error(err, -ENOMSG, "%s", tried.msg) : -ENOMSG;
	s->ref.step_fd = s->opened.fd;
	return rc;
}

static int step_take(struct subject *s, struct ckpt_err *err)
{
	const struct engine e = engine_of(s->ops);

	return engine_take(&e, s->ref.step_fd, s->ref.path, &s->opened, err);
}

int subject_find(struct subject *s, const struct io_ops *ops, const char *where, const char *name,
		 const struct format *force, struct ckpt_err *err)
{
	int rc;

	*s = (struct subject){ .ops = ops, .opened.fd = -1 };
	rc = store_resolve(ops, formats[0], where, name, &s->ref, err);
	if (rc > 0)
		return path_find(s, force, err);
	if (!rc && force && force != formats[0])
		return ckpt_error(err, -EINVAL,
				  "%.300s is a step of a store, and steps are %s, not %s",
				  s->ref.path, formats[0]->name, force->name);
	return rc ? rc : step_take(s, err);
}

int subject_take(struct subject *s, const struct io_ops *ops, int step_fd, const char *path,
		 struct ckpt_err *err)
{
	*s = (struct subject){ .ops = ops, .ref.step_fd = step_fd, .opened.fd = -1 };
	snprintf(s->ref.path, sizeof s->ref.path, "%s", path);
	return step_take(s, err);
}

int subject_fresh(struct subject *s, struct ckpt_err *err)
{
	const struct engine e = engine_of(s->ops);
	int rc = engine_fresh(&e, &s->opened);

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
	int rc;

	s->opened.path = s->ref.path;
	rc = engine_open(&(struct format_open){ .partial = s->partial,
						.choose = s->choose,
						.choose_arg = s->choose_arg,
						.fault = fault,
						.fault_arg = arg },
			 &s->opened, err);
	s->ckpt = s->opened.ckpt;
	if (rc)
		return subject_damage(rc);
	return s->ref.dir[0] ? store_step_same(s->ref.dir, s->ref.id, s->ckpt, err) : 0;
}

bool subject_brief(const struct subject *s, struct subject_brief *ret)
{
	const struct format *format = s->opened.format;
	const struct source_dir *dir = &s->opened.dir;
	struct checkpoint *k = NULL;
	struct source src = { 0 };
	int rc;

	if (!format || !format->root || dir->open(dir->ctx, format->root->name, &src))
		return false;
	rc = format->root->summary(&src, &k, NULL);
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
	struct address a;

	switch (rc) {
	case -ENOENT:
	case -ENOTDIR:
		return tell_missing(c, rc, err, name);
	case -ENOMSG:
		return cli_fail(c, rc, err,
				"check the path; ckptctl version lists the formats, and --from "
				"FORMAT forces one");
	case -ENOTUNIQ:
		if (!address_parse(name, &a, NULL) && a.kind == ADDRESS_PATH)
			return cli_fail(c, rc, err, "ckptctl %s --from FORMAT %s", c->verb->name,
					name);
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

int subject_from(struct cli *c, const struct format **ret, struct ckpt_err *err)
{
	const struct engine e = engine_of(c->ops);
	const char *word = c->value[OPT_FROM];
	char list[400];

	*ret = word ? engine_format(&e, word) : NULL;
	if (!word || *ret)
		return 0;
	return ckpt_error(err, -EINVAL, "--from %.60s is no format that is known here: %s", word,
			  engine_formats_print(&e, list, sizeof list));
}

int subject_get(struct cli *c, const char *name, struct subject *s)
{
	return subject_get_some(c, name, NULL, NULL, s);
}

int subject_get_some(struct cli *c, const char *name, format_choose_fn *choose, void *arg,
		     struct subject *s)
{
	const struct format *force = NULL;
	struct ckpt_err err = { 0 };
	int rc;

	*s = (struct subject){ .ref.step_fd = -1, .opened.fd = -1 };
	rc = subject_from(c, &force, &err);
	if (!rc)
		rc = subject_find(s, c->ops, c->where, name, force, &err);
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
	if (s->opened.format || s->opened.dir.ctx)
		engine_close(&s->opened);
	else if (s->ref.step_fd >= 0)
		close(s->ref.step_fd);
	*s = (struct subject){ .ref.step_fd = -1, .opened.fd = -1 };
}

bool subject_is_checkpoint(struct cli *c, const char *path)
{
	const struct engine e = engine_of(c->ops);
	struct opened o;
	int rc = engine_find(&e, path, NULL, &o, NULL);

	engine_close(&o);
	return !rc || rc == -ENOTUNIQ;
}

char *subject_title(const struct checkpoint *k, const char *path, char *buf)
{
	const char *base = strrchr(path, '/');

	if (!(k->has & HAS_STEP))
		snprintf(buf, SUBJECT_TITLE, "%s", base && base[1] ? base + 1 : path);
	else
		snprintf(buf, SUBJECT_TITLE, "step %llu%s%s", (unsigned long long)k->step,
			 *k->job ? " of " : "", k->job);
	return buf;
}

char *subject_short(const struct checkpoint *k, const char *path, char *buf)
{
	if (!(k->has & HAS_STEP))
		return subject_title(k, path, buf);
	snprintf(buf, SUBJECT_TITLE, "step %llu", (unsigned long long)k->step);
	return buf;
}

struct cell subject_step(const struct checkpoint *k)
{
	return k->has & HAS_STEP ? cell_of(CELL_NUMBER, k->step) : cell_none();
}

struct cell subject_world(const struct checkpoint *k)
{
	return k->has & HAS_STEP ? cell_of(CELL_COUNT, k->world) : cell_none();
}

struct cell subject_job(const struct checkpoint *k)
{
	return k->has & HAS_STEP ? cell_word(k->job) : cell_none();
}

const char *subject_foreign_name(const struct checkpoint *k, uint32_t tensor)
{
	if (k->format == formats[0])
		return NULL;
	return k->foreign_name ? k->foreign_name[tensor] : k->table.tensor[tensor].name;
}

/* Is word the tensor's name, or component/name? */
static bool is_called(const struct table_tensor *x, const char *foreign, const char *word)
{
	size_t n = strlen(x->component);

	if (foreign && !strcmp(foreign, word))
		return true;

	return !strcmp(x->name, word) || (!strncmp(x->component, word, n) && word[n] == '/' &&
					  !strcmp(x->name, word + n + 1));
}

static bool matches(const struct table_tensor *x, const char *foreign, const char *glob)
{
	char full[NAME_BYTES];

	snprintf(full, sizeof full, "%s%s%s", x->component, *x->component ? "/" : "", x->name);
	return !fnmatch(glob, full, 0) || !fnmatch(glob, x->name, 0) ||
	       (foreign && !fnmatch(glob, foreign, 0));
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

		snprintf(buf + len, bytes - len, "%s%.200s%s%.200s",
			 i ? ", " : "; near it: ", x->component, *x->component ? "/" : "", x->name);
	}
}

/* Collect the tensors that `is` says yes to. */
static int collect(const struct checkpoint *k, const char *word,
		   bool (*is)(const struct table_tensor *, const char *, const char *),
		   uint32_t **ret_id, uint32_t *ret_n)
{
	const struct table *t = &k->table;
	uint32_t *id = calloc((size_t)t->ntensor + 1, sizeof *id), n = 0;

	if (!id)
		return -ENOMEM;
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (is(&t->tensor[i], subject_foreign_name(k, i), word))
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
	char near[1400], title[SUBJECT_TITLE];
	int rc = collect(k, word, is_called, ret_id, ret_n);

	if (!rc)
		*ret_n = leave_averages(&k->table, word, *ret_id, *ret_n);
	if (rc || *ret_n)
		return rc;
	near_names(&k->table, word, near, sizeof near);
	return ckpt_error(err, -ENOENT, "there is no tensor \"%.200s\" in %s%s", word,
			  subject_short(k, "the checkpoint", title), near);
}

int subject_glob(const struct checkpoint *k, const char *glob, uint32_t **ret_id, uint32_t *ret_n,
		 struct ckpt_err *err)
{
	char title[SUBJECT_TITLE];
	int rc = collect(k, glob, matches, ret_id, ret_n);

	if (rc || *ret_n)
		return rc;
	return ckpt_error(err, -ENOENT, "none of the %u tensors in %s matches \"%.200s\"",
			  k->table.ntensor, subject_short(k, "the checkpoint", title), glob);
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
