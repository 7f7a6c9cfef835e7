/* SPDX-License-Identifier: Apache-2.0 */
/* verb_tag.c - ckptctl tag: a name for a step, which finds it (tag:NAME) and keeps it. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/labels.h"
#include "ckpt/cli/subject.h"
#include "formats/registry/registry.h"
#include <fcntl.h>

static void tag_print(struct cli *c, const char *path, const char *job, uint64_t step,
		      const char *tag, bool deleted, uint64_t from)
{
	struct output *o = c->o;
	unsigned long long n = step;

	output_begin(o, "ckptd.tag/1");
	output_key(o, "path", cell_text(path));
	output_key(o, "job", cell_text(job));
	output_key(o, "step", cell_number(step));
	output_key(o, "tag", cell_text(tag));
	output_key(o, "deleted", cell_flag(deleted));
	output_key(o, "moved_from", cell_unless(CELL_NUMBER, from, UINT64_MAX));
	if (deleted)
		cli_say(c, STYLE_PLAIN, "step %llu of %s is no longer tagged %s", n, job, tag);
	else if (from != UINT64_MAX)
		cli_say(c, STYLE_PLAIN,
			"step %llu of %s is tagged %s; step %llu had the tag before", n, job, tag,
			(unsigned long long)from);
	else
		cli_say(c, STYLE_PLAIN, "step %llu of %s is tagged %s", n, job, tag);
	output_end(o);
}

/* The step that has the tag now; UINT64_MAX: none. */
static uint64_t tagged_step(const struct store *s, const char *tag)
{
	cleanup_free struct store_label *label = NULL;
	const struct store_label *best = NULL;
	uint32_t n = 0;

	if (store_labels(s, &label, &n, NULL))
		return UINT64_MAX;
	for (uint32_t i = 0; i < n; i++)
		if (label[i].kind == LABEL_TAG && !strcmp(label[i].name, tag) &&
		    (!best || label[i].made_ns > best->made_ns))
			best = &label[i];
	return best ? best->step : UINT64_MAX;
}

static int tag_set(struct cli *c)
{
	const char *tag = c->arg[1];
	struct store_ref ref = { .step_fd = -1 };
	struct store_home m;
	struct ckpt_err err = { 0 };
	uint64_t from;
	int rc = store_label_name_check(tag, &err), code;

	if (rc)
		return cli_fail(c, rc, &err, "ckptctl tag -h");
	code = labels_get(c, c->arg[0], &ref, &m);
	if (code)
		return code;
	from = tagged_step(&m.s, tag);
	rc = store_home_sound(&m, &err);
	if (!rc)
		rc = store_home_owner(m.s.job_fd, m.dir, &err);
	if (!rc)
		rc = store_label_set(&m.s, &m.step, LABEL_TAG, tag, 0, NULL, &err);
	if (rc)
		code = labels_tell(c, rc, &err);
	else
		tag_print(c, ref.path, m.s.job, m.step.step, tag, false,
			  from == m.step.step ? UINT64_MAX : from);
	store_home_close(&m);
	store_step_close(ref.step_fd);
	return code;
}

/* The jobs of a path, and the one of them whose step has the tag. */
struct search {
	struct cli *c;
	const char *tag;
	uint32_t njob, nfound;
	char job[CKPT_JOB_MAX + 1], path[4096];
	char first[4096]; /* of several */
};

static int each_job(void *arg, const char *job, int job_fd, const char *abs_path)
{
	struct search *f = arg;
	struct store s = subject_store(f->c->ops, job, job_fd);

	f->njob++;
	if (tagged_step(&s, f->tag) == UINT64_MAX)
		return 0;
	if (!f->nfound++)
		snprintf(f->first, sizeof f->first, "%s", abs_path);
	snprintf(f->job, sizeof f->job, "%s", job);
	snprintf(f->path, sizeof f->path, "%s", abs_path);
	return 0;
}

/* Where the step of a label lies; the job's directory where it was removed. */
static void find_path(const struct store *s, const struct store_label *m, const char *job_path,
		      char *ret, size_t bytes)
{
	cleanup_free struct store_step *step = NULL;
	uint32_t n = 0;

	snprintf(ret, bytes, "%s", job_path);
	if (store_scan(s, true, &step, &n, NULL))
		return;
	for (uint32_t i = 0; i < n; i++)
		if (store_label_is(m, &step[i]))
			snprintf(ret, bytes, "%s/%s", job_path, step[i].dir);
}

/* Wherever it stands: where a move was cut short, both go. */
static int delete_in(struct cli *c, const struct search *f, int job_fd)
{
	struct store s = subject_store(c->ops, f->job, job_fd);
	cleanup_free struct store_label *label = NULL;
	const struct store_label *best = NULL;
	struct ckpt_err err = { 0 };
	uint32_t n = 0, one;
	char path[4096 + STORE_DIR_MAX];
	int rc;

	rc = store_labels(&s, &label, &n, &err);
	for (uint32_t i = 0; !rc && i < n; i++) {
		struct store_step st = { .step = label[i].step };

		if (label[i].kind != LABEL_TAG || strcmp(label[i].name, f->tag))
			continue;
		memcpy(st.id, label[i].id8, sizeof label[i].id8);
		rc = store_label_clear(&s, &st, LABEL_TAG, f->tag, &one, &err);
		if (!best || label[i].made_ns > best->made_ns)
			best = &label[i];
	}
	if (!rc && !best)
		rc = ckpt_error(&err, -ENOENT, "job %s: no step is tagged %.64s any longer", s.job,
				f->tag);
	if (rc)
		return labels_tell(c, rc, &err);
	find_path(&s, best, f->path, path, sizeof path);
	tag_print(c, path, s.job, best->step, f->tag, true, UINT64_MAX);
	return CLI_OK;
}

static int tag_delete(struct cli *c)
{
	const char *where = c->narg ? c->arg[0] : c->where;
	struct search f = { .c = c, .tag = c->value[OPT_DELETE] };
	struct ckpt_err err = { 0 };
	int rc = store_jobs(c->ops, where, each_job, &f, &err), fd, code;

	if (!rc && f.nfound > 1)
		rc = ckpt_error(&err, -ENOTUNIQ, "%u jobs in %.300s have a tag %.64s: %s and %s",
				f.nfound, where, f.tag, f.first, f.path);
	if (rc == -ENOTUNIQ)
		return cli_fail(c, rc, &err, "ckptctl tag --delete=%s %s", f.tag, f.path);
	if (!rc && !f.nfound)
		rc = ckpt_error(&err, -ENOENT, "no step in %.300s is tagged %.64s", where, f.tag);
	if (rc == -ENOENT)
		return cli_fail(c, rc, &err, "ckptctl ls %s shows the tags",
				f.njob ? where : "STORE");
	if (rc)
		return labels_tell(c, rc, &err);
	fd = open(f.path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return labels_tell(c, ckpt_error_errno(&err, errno, "cannot open %.300s", f.path),
				   &err);
	code = delete_in(c, &f, fd);
	close(fd);
	return code;
}

static int tag_run(struct cli *c)
{
	struct ckpt_err err = { 0 };

	if (c->value[OPT_DELETE] && c->narg < 2)
		return tag_delete(c);
	if (c->value[OPT_DELETE])
		ckpt_error(&err, -EINVAL, "--delete=NAME takes at most one PATH, a store or a job");
	else if (c->narg < 2)
		ckpt_error(&err, -EINVAL, "ckptctl tag needs a checkpoint and a name for it");
	else
		return tag_set(c);
	return cli_fail(c, -EINVAL, &err, "ckptctl tag -h");
}

const struct cli_verb verb_tag = {
	.name = "tag",
	.help = "give a checkpoint a name; a tagged step is not pruned",
	.synopsis = (const char *const[]){ "CKPT NAME", "--delete=NAME [PATH]", NULL },
	.about = "A tagged step is called tag:NAME. Neither ckptctl prune nor ckptd removes it. "
		 "In a job, one step has a tag: if you give the tag to another step, it moves "
		 "there. PATH is the job's directory or its store (default: -C). Deleting a tag "
		 "removes no step.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl tag step:12000 best", "name it" },
			{ "ckptctl show tag:best", "and use the name" },
			{ "ckptctl tag --delete=best", "the step may be pruned again" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_DELETE, "remove this tag from the step that has it" },
			{ OPT_NONE, NULL },
		},
	.exits =
		"0; 2 NAME is not valid, several jobs have it, or the checkpoint is not in a "
		"store; 4 it is damaged; 5 it is not committed; 10 there is no such store, checkpoint or tag, or "
		"it is being removed; 12 the store cannot be written, or belongs to another "
		"user.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_TAG, ARG_NONE },
	.narg_max = 2,
	.run = tag_run,
};
