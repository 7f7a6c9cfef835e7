/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_origin.c - see safetensors_origin.h. Called by safetensors_read.c and by ckptctl
 * export. Invariant: what a file does not say is a difference from one that says it.
 */
#include "formats/safetensors/safetensors_origin.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "formats/safetensors/safetensors_impl.h"
#include <stdio.h>

static const struct {
	const char *key, *said; /* how people read it */
} words[ORIGIN_WORDS] = {
	[ORIGIN_CHECKPOINT] = { "checkpoint", "checkpoint " },
	[ORIGIN_JOB] = { "job", "job " },
	[ORIGIN_STEP] = { "step", "step " },
	[ORIGIN_MESH] = { "mesh", "mesh " },
	[ORIGIN_SOURCE] = { SAFETENSORS_SOURCE, "source files with the sum " },
	[ORIGIN_KEYS] = { "keys", "keys " },
	[ORIGIN_ONLY] = { "only", "--only " },
	[ORIGIN_DTYPE] = { "dtype", "--dtype " },
	[ORIGIN_VIEW] = { "view", "--view with the sum " },
};

int safetensors_origin_note(struct safetensors_origin *o, struct arena *a, const char *key,
			    const char *value)
{
	o->ours |= !strcmp(key, SAFETENSORS_OURS);
	o->rank |= !strcmp(key, SAFETENSORS_RANK);
	for (uint32_t i = 0; i < ORIGIN_WORDS; i++) {
		if (strcmp(key, words[i].key) != 0)
			continue;
		o->word[i] = arena_str(a, value);
		return o->word[i] ? 0 : -ENOMEM;
	}
	return 0;
}

/* --- of a file --- */

struct noting {
	struct safetensors_origin *o;
	struct arena *a;
	struct ckpt_err *err;
};

static int on_meta(void *arg, char *key, char *value)
{
	struct noting *n = arg;

	return safetensors_origin_note(n->o, n->a, key, value)
		       ? ckpt_error(n->err, -ENOMEM, "no memory for the metadata")
		       : 0;
}

static int header_note(void *text, uint64_t len, const char *name, struct arena *a,
		       struct safetensors_origin *ret, struct ckpt_err *err)
{
	struct noting n = { ret, a, err };
	const struct header_sink to = { .meta = on_meta, .arg = &n };
	char what[400];
	int rc;

	*ret = (struct safetensors_origin){ 0 };
	snprintf(what, sizeof what, "the header of %.300s", name);
	rc = header_meta(text, len, what, &to, err);
	ret->known = !rc;
	return rc;
}

int safetensors_origin_parse(void *head, uint64_t len, const char *name, struct arena *a,
			     struct safetensors_origin *ret, struct ckpt_err *err)
{
	return header_note((char *)head + sizeof(le64), len - sizeof(le64), name, a, ret, err);
}

int safetensors_origin_read(const struct source *src, const char *name, struct arena *a,
			    struct safetensors_origin *ret, struct ckpt_err *err)
{
	cleanup_free void *text = NULL;
	uint64_t len = 0;
	int rc = header_load(src, name, &text, &len, err);

	*ret = (struct safetensors_origin){ 0 };
	return rc ? rc : header_note(text, len, name, a, ret, err);
}

/* --- compared --- */

static bool is_same(const char *a, const char *b)
{
	return a && b ? !strcmp(a, b) : a == b;
}

bool safetensors_origin_fits(const struct safetensors_origin *a, const struct safetensors_origin *b,
			     bool indexed)
{
	uint32_t n = indexed || (a->rank && b->rank) ? ORIGIN_WORDS : ORIGIN_ALWAYS;

	if (!a->ours && !b->ours)
		return true;
	if (a->ours != b->ours)
		return MUTANT(ORIGIN_NONE_FITS_ALL);
	for (uint32_t i = 0; i < n; i++)
		if (!is_same(a->word[i], b->word[i]))
			return false;
	return true;
}

char *safetensors_origin_print(const struct safetensors_origin *o, char buf[ORIGIN_TEXT])
{
	size_t n = 0;

	buf[0] = 0;
	for (uint32_t i = 0; i < ORIGIN_WORDS && o->ours; i++)
		if (o->word[i] && i != ORIGIN_KEYS && n < ORIGIN_TEXT)
			n += (size_t)snprintf(buf + n, ORIGIN_TEXT - n, "%s%s%.70s", n ? ", " : "",
					      words[i].said, o->word[i]);
	if (!n)
		snprintf(buf, ORIGIN_TEXT, "%s",
			 o->ours ? "no step and no id: its source had none"
				 : "no checkpoint: ckptctl did not write it");
	return buf;
}
