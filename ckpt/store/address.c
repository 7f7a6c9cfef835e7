/* SPDX-License-Identifier: Apache-2.0 */
/* address.c - see address.h. Called by store_resolve, and by the verbs that ask the daemon.
 * Invariant: the text alone decides what it means; nothing is looked up. */
#include "ckpt/store/address.h"
#include "ckpt/store/store_impl.h"

static bool is_number(const char *text, uint64_t *ret)
{
	return store_take_decimal(&text, ret) && !*text;
}

static int number_wrong(const char *text, struct ckpt_err *err)
{
	return ckpt_error(err, -EINVAL,
			  "\"%.80s\" needs a number of at most 64 bits, as in latest~1, step:1000 "
			  "or 1000",
			  text);
}

/* What names a step inside a job: 1; 0: it is something else; -EINVAL: meant as one. */
static int step_parse(const char *text, struct address *ret, struct ckpt_err *err)
{
	struct store_name x;

	ret->what = text;
	ret->n = 0;
	store_name_parse(text, &x);
	if (x.kind == STORE_STEP) {
		ret->kind = ADDRESS_STEP;
		ret->n = x.step;
		return 1;
	}
	if (x.kind == STORE_OLD) {
		ret->kind = ADDRESS_ENTRY;
		return 1;
	}
	if (strcmp(text, "latest") == 0) {
		ret->kind = ADDRESS_LATEST;
		return 1;
	}
	if (strncmp(text, "tag:", 4) == 0) {
		ret->kind = ADDRESS_TAG;
		ret->tag = text + 4;
		return store_label_name_check(ret->tag, err) ? -EINVAL : 1;
	}
	if (strncmp(text, "latest~", 7) == 0) {
		ret->kind = ADDRESS_LATEST;
		return is_number(text + 7, &ret->n) ? 1 : number_wrong(text, err);
	}
	if (strncmp(text, "step:", 5) == 0) {
		ret->kind = ADDRESS_STEP;
		return is_number(text + 5, &ret->n) ? 1 : number_wrong(text, err);
	}
	if (*text && !text[strspn(text, "0123456789")]) {
		ret->kind = ADDRESS_STEP;
		ret->bare = true;
		return is_number(text, &ret->n) ? 1 : number_wrong(text, err);
	}
	return 0;
}

int address_parse(const char *text, struct address *ret, struct ckpt_err *err)
{
	const char *at = strrchr(text, '@');
	size_t n;
	int r;

	*ret = (struct address){ 0 };
	r = strchr(text, '/') ? 0 : step_parse(text, ret, err);
	if (r)
		return r < 0 ? r : 0;
	r = at && !strchr(at, '/') ? step_parse(at + 1, ret, err) : 0;
	if (r < 0)
		return r;
	if (!r) {
		*ret = (struct address){ .kind = ADDRESS_PATH, .what = text };
		return 0;
	}
	n = (size_t)(at - text);
	ret->bare = false;
	if (!n)
		return ckpt_error(
			err, -EINVAL,
			"\"%.80s\" has no job in front of its @: write JOB@%.60s, or only "
			"%.60s",
			text, at + 1, at + 1);
	if (n >= sizeof ret->job)
		return ckpt_error(err, -ENAMETOOLONG, "the path in front of @%.60s is too long",
				  at + 1);
	memcpy(ret->job, text, n);
	ret->job[n] = 0;
	/* A name that no job can have is an error of its own, not a missing job. */
	return strchr(ret->job, '/') ? 0 : store_job_check(ret->job, err);
}
