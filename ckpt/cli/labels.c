/* SPDX-License-Identifier: Apache-2.0 */
/* labels.c - see labels.h. Invariant: every failure is printed once, with what to do. */
#include "ckpt/cli/labels.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/subject.h"
#include "formats/registry/registry.h"

int labels_get(struct cli *c, const char *name, struct store_ref *ref, struct store_home *ret)
{
	struct ckpt_err err = { 0 };
	int rc = store_resolve(c->ops, formats[0], c->where, name, ref, &err);

	if (rc > 0 && store_path_job(c->ops, ref->path, &err))
		rc = err.code;
	if (rc < 0)
		return subject_tell(c, rc, &err, name);
	subject_note(c, ref);
	rc = rc ? rc : store_home_find(c->ops, formats[0], ref, ret, &err);
	if (!rc)
		return CLI_OK;
	store_step_close(TAKE_FD(ref->step_fd));
	if (rc < 0)
		return subject_tell(c, rc, &err, name);
	ckpt_error(&err, -EINVAL,
		   "%.300s is not in a store: the labels of a checkpoint are kept in the directory "
		   "of its job",
		   ref->path);
	return cli_fail(c, -EINVAL, &err, "ckptctl %s -C STORE step:N", c->verb->name);
}

int labels_tell(struct cli *c, int rc, const struct ckpt_err *err)
{
	if (rc == -EBADMSG)
		return cli_fail(
			c, rc, err,
			"ckptctl repair -n shows what can be repaired; ckptctl ls lists the "
			"other checkpoints");
	if (rc == -EPERM)
		return cli_fail(c, rc, err, LABELS_NEXT_OWNER);
	if (rc == -EACCES)
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	if (rc == -EINVAL)
		return cli_fail(c, rc, err, "ckptctl %s -h", c->verb->name);
	if (rc == -EROFS)
		return cli_fail(c, rc, err, "mount it for writing, or run it where it is");
	if (rc == -EAGAIN)
		rc = -EBUSY;
	return cli_fail(c, rc, err, NULL);
}

static struct cell time_cell(uint64_t ns)
{
	return cell_unless(CELL_TIME, ns, 0);
}

void labels_put(struct output *o, const struct store_step *st, const struct store_label *label,
		uint32_t n, uint64_t now_ns)
{
	const struct store_label *good = NULL, *broken = NULL, *here = NULL;

	output_list(o, "holds", NULL, 0);
	for (uint32_t i = 0; i < n; i++) {
		if (!store_label_is(&label[i], st))
			continue;
		if (label[i].kind == LABEL_VERIFIED && !label[i].unread)
			good = &label[i];
		if (label[i].kind == LABEL_BAD)
			broken = &label[i];
		if (label[i].kind == LABEL_ADOPTED && !label[i].unread)
			here = &label[i];
		if (label[i].kind != LABEL_HOLD || !store_label_counts(&label[i], now_ns))
			continue;
		output_row(o);
		output_key(o, "name", cell_text(label[i].name));
		output_key(o, "created", time_cell(label[i].made_ns));
		output_key(o, "until", time_cell(label[i].until_ns));
		output_key(o, "by", cell_word(label[i].by));
		output_key(o, "why", cell_word(label[i].why));
		output_close(o);
	}
	output_close(o);
	output_list(o, "tags", NULL, 0);
	for (uint32_t i = 0; i < n; i++) {
		if (label[i].kind != LABEL_TAG || !store_label_is(&label[i], st))
			continue;
		output_row(o);
		output_key(o, "name", cell_text(label[i].name));
		output_key(o, "created", time_cell(label[i].made_ns));
		output_key(o, "by", cell_word(label[i].by));
		output_close(o);
	}
	output_close(o);
	output_key(o, "verified", good && !broken ? time_cell(good->made_ns) : cell_none());
	output_key(o, "bad",
		   cell_if(broken, cell_text(*broken->why ? broken->why : "no reason was given")));
	output_key(o, "adopted", here ? time_cell(here->made_ns) : cell_none());
}
