/* SPDX-License-Identifier: Apache-2.0 */
/*
 * subject.c - from the name of a checkpoint on the command line to an open one. Called by every
 * verb that has a CKPT argument.
 * Invariant: after subject_close nothing is left open, however far the opening got.
 */
#include "ckpt/cli/subject.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/store/address.h"
#include "formats/registry/registry.h"
#include <fcntl.h>

static struct engine engine_of(const struct subject *s)
{
	return (struct engine){ .ops = s->ops, .format = formats };
}

static struct engine_subject engine_subject_of(const struct subject *s)
{
	return (struct engine_subject){
		.fd = s->ref.step_fd, .entry = s->entry, .path = s->ref.path, .flags = s->flags
	};
}

/* Files of a format that commits with one of them, and that one is not there: a writer died, or
 * still writes. A step that lacks it is damaged, and its reader says so. */
static int path_committed(const struct subject *s, const struct format *format,
			  struct ckpt_err *err)
{
	const char *name = format->root && !s->entry[0] ? format->root->name : NULL;
	int fd = name ? s->ops->open(s->ops->ctx, s->ref.step_fd, name, O_PATH, 0) : -1;

	if (fd >= 0)
		(void)s->ops->close(s->ops->ctx, fd);
	return name && fd == -ENOENT
		       ? ckpt_error(err, -EUCLEAN, "%.300s is no complete checkpoint: it has no %s",
				    s->ref.path, name)
		       : 0;
}

/* What is no step of a store, at a path that is there. */
static int path_open(struct subject *s, struct ckpt_err *err)
{
	const struct engine e = engine_of(s);
	const struct format *format = s->force;
	struct engine_subject x;
	int rc = source_path(s->ops, s->ref.path, &s->ref.step_fd, s->entry, err);

	if (rc)
		return rc;
	s->flags = SOURCE_LINKS;
	x = engine_subject_of(s);
	rc = s->force ? 0 : engine_probe(&e, &x, &format, err);
	if (rc == -ENOMSG) {
		rc = store_path_job(s->ops, s->ref.path, err);
		rc = rc ? rc : -ENOMSG;
	}
	if (!rc)
		rc = path_committed(s, format, err);
	if (rc)
		store_step_close(TAKE_FD(s->ref.step_fd));
	return rc;
}

int subject_find(struct subject *s, const struct io_ops *ops, const char *where, const char *name,
		 const struct format *force, struct ckpt_err *err)
{
	int rc;

	*s = (struct subject){ .ops = ops, .force = force };
	rc = store_resolve(ops, formats[0], where, name, &s->ref, err);
	if (rc > 0)
		return path_open(s, err);
	s->is_step = !rc;
	if (!rc && force && force != formats[0])
		return ckpt_error(err, -EINVAL,
				  "%.300s is a step of a store, and steps are %s, not %s",
				  s->ref.path, formats[0]->name, force->name);
	return rc;
}

void subject_take(struct subject *s, const struct io_ops *ops, int step_fd, const char *path)
{
	*s = (struct subject){ .ops = ops, .is_step = true, .ref.step_fd = step_fd };
	snprintf(s->ref.path, sizeof s->ref.path, "%s", path);
}

/* How it is opened, and by which format. */
static struct engine_subject opening_of(const struct subject *s, format_fault_fn *fault, void *arg)
{
	struct engine_subject x = engine_subject_of(s);

	x.force = s->is_step ? formats[0] : s->force;
	x.id = s->ref.dir[0] ? s->ref.id : NULL;
	x.how = (struct format_open){ .partial = s->partial,
				      .choose = s->choose,
				      .choose_arg = s->choose_arg,
				      .fault = fault,
				      .fault_arg = arg };
	return x;
}

static void subject_opened(struct subject *s)
{
	s->format = s->o.format;
	s->ckpt = s->o.ckpt;
}

int subject_open(struct subject *s, format_fault_fn *fault, void *arg, struct ckpt_err *err)
{
	const struct engine e = engine_of(s);
	const struct engine_subject x = opening_of(s, fault, arg);
	int rc = engine_open(&e, &x, &s->o, err);

	subject_opened(s);
	return rc == -ESTALE ? rc : engine_damage(rc);
}

int subject_verify(struct subject *s, const struct engine *e, const struct engine_verify *v,
		   format_fault_fn *fault, void *arg, struct engine_verified *ret,
		   struct ckpt_err *err)
{
	const struct engine_subject x = opening_of(s, fault, arg);
	int rc = engine_verify(e, &x, v, &s->o, ret, err);

	subject_opened(s);
	return rc;
}

bool subject_brief(const struct subject *s, struct subject_brief *ret)
{
	const struct format_root *root = s->format ? s->format->root : NULL;
	struct checkpoint *k = NULL;
	struct source src = { 0 };
	int rc;

	if (!root || source_open(s->ops, s->ref.step_fd, root->name, 0, &src))
		return false;
	rc = root->summary(&src, &k, NULL);
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
		return cli_fail(c, rc, err, "check the path before the @: ckptctl ls %s",
				CLI_WORD(a.job));
	if (path && (strchr(name, '/') || !access(name, F_OK)))
		return cli_fail(c, rc, err,
				"check the path; ckptctl ls STORE lists a store's checkpoints");
	if (access(c->where, F_OK))
		return cli_fail(c, rc, err, "check -C PATH and CKPTD_STORE");
	if (subject_is_checkpoint(c, c->where))
		return cli_fail(c, rc, err, "ckptctl %s %s: this directory is itself a checkpoint",
				c->verb->name, CLI_WORD(c->where));
	return cli_fail(c, rc, err, "ckptctl ls %s", CLI_WORD(c->where));
}

void subject_note(struct cli *c, const struct store_ref *ref)
{
	c->passed |= ref->passed;
	if (ref->note[0] && c->json)
		c->o->ops->error(c->o, ref->passed ? CLI_WARNINGS : CLI_OK, ref->note, NULL);
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
					CLI_WORD(name));
		return cli_fail(c, rc, err, "ckptctl %s JOB@%s", c->verb->name, name);
	case -EUCLEAN:
		if (!strncmp(name, "latest", 6))
			return cli_fail(
				c, rc, err,
				"ckptctl ls --all %s shows what is wrong; ckptctl repair -n %s "
				"shows what can be repaired",
				CLI_WORD(c->where), CLI_WORD(c->where));
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

int subject_tell_read(const struct subject *s, struct cli *c, int rc, const struct ckpt_err *err,
		      const char *name)
{
	/* Another program's: no ckptctl has written it. */
	if (rc == -EPROTONOSUPPORT && s->format && !s->format->root)
		return cli_fail(c, rc, err,
				"nothing is known to be wrong with it; a newer ckptctl may read it "
				"(ckptctl version)");
	return subject_tell(c, rc, err, name);
}

int subject_from(struct cli *c, const struct format **ret, struct ckpt_err *err)
{
	const struct engine e = { .ops = c->ops, .format = formats };
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

	*s = (struct subject){ .ref.step_fd = -1 };
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
			CLI_WORD(s->ref.path));
	return rc ? subject_tell_read(s, c, rc, &err, name) : CLI_OK;
}

void subject_close(struct subject *s)
{
	engine_close(&s->o);
	store_step_close(s->ref.step_fd);
	*s = (struct subject){ .ref.step_fd = -1 };
}

struct store subject_store(const struct io_ops *ops, const char *job, int job_fd)
{
	struct store s = { .ops = ops,
			   .format = formats[0],
			   .root_fd = -1,
			   .job_fd = job_fd,
			   .lock = PTHREAD_MUTEX_INITIALIZER };

	snprintf(s.job, sizeof s.job, "%s", job);
	return s;
}

bool subject_is_checkpoint(struct cli *c, const char *path)
{
	const struct engine e = { .ops = c->ops, .format = formats };
	cleanup_close int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	const struct engine_subject x = { .fd = fd, .path = path };
	const struct format *format;
	int rc = fd < 0 ? -ENOMSG : engine_probe(&e, &x, &format, NULL);

	return rc == 0 || rc == -ENOTUNIQ;
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
	return k->has & HAS_STEP ? cell_number(k->step) : cell_none();
}

struct cell subject_world(const struct checkpoint *k)
{
	return k->has & HAS_STEP ? cell_count(k->world) : cell_none();
}

struct cell subject_job(const struct checkpoint *k)
{
	return k->has & HAS_STEP ? cell_word(k->job) : cell_none();
}

void subject_put(struct output *o, const char *path, const struct checkpoint *k)
{
	output_key(o, "path", cell_text(path));
	output_key(o, "job", subject_job(k));
	output_key(o, "step", subject_step(k));
}
