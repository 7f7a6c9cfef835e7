/* SPDX-License-Identifier: Apache-2.0 */
/*
 * leftovers.c - see leftovers.h. Invariant: what a process may still be writing is never removed,
 * and what can be continued only by leftovers_remove.
 */
#include "ckpt/cli/leftovers.h"
#include "ckpt/base/util.h"
#include "ckpt/engine/journal.h"
#include "ckpt/io/publish.h"
#include "ckpt/layout/human.h"
#include <fcntl.h>

static const char *const state_word[] = { [LEFTOVER_WRITTEN] = "written",
					  [LEFTOVER_UNFINISHED] = "unfinished",
					  [LEFTOVER_DEAD] = "dead" };

/* leftover_fn */
static int leftover_add(void *arg, const struct leftover *x)
{
	struct leftovers *l = arg;

	if (l->n == l->cap) {
		uint32_t cap = l->cap ? 2 * l->cap : 8;
		struct leftover *p = reallocarray(l->x, cap, sizeof *p);

		if (!p)
			return -ENOMEM;
		l->x = p;
		l->cap = cap;
	}
	l->x[l->n++] = *x;
	return 0;
}

static int leftover_compare(const void *a, const void *b)
{
	return strcmp(((const struct leftover *)a)->at, ((const struct leftover *)b)->at);
}

/* The newest journal of a conversion; false: none can be read. */
static bool journal_find(const struct leftovers *l, const struct leftover *x, struct journal *ret,
			 void **ret_bytes)
{
	const struct io_ops *ops = l->c->ops;
	int dir = ops->open(ops->ctx, l->fd, x->lock, O_RDONLY | O_DIRECTORY, 0);

	*ret_bytes = NULL;
	for (uint32_t i = 0; dir >= 0 && i < PUBLISH_JOURNALS; i++) {
		struct journal j = { 0 };
		char name[16];
		uint64_t len;
		void *bytes = NULL;
		int fd;

		publish_journal_name(i, name);
		fd = ops->open(ops->ctx, dir, name, O_RDONLY | O_NONBLOCK, 0);
		if (fd < 0)
			continue;
		if (!ops->size(ops->ctx, fd, &len) && len && len <= JOURNAL_BYTES_MAX)
			bytes = malloc(len);
		if (bytes && !io_pread_all(ops, fd, bytes, len, 0) &&
		    !journal_decode(bytes, len, &j, NULL) && (!*ret_bytes || j.seq > ret->seq)) {
			if (*ret_bytes)
				journal_free(ret);
			free(*ret_bytes);
			*ret = j;
			*ret_bytes = TAKE(bytes);
		} else {
			journal_free(&j);
		}
		free(bytes);
		(void)ops->close(ops->ctx, fd);
	}
	if (dir >= 0)
		(void)ops->close(ops->ctx, dir);
	return *ret_bytes != NULL;
}

/* "a conversion of /models/a (safetensors) to native on fsdp=4"; NULL: no memory. */
static char *conversion_words(const struct leftovers *l, const struct leftover *x)
{
	struct journal j = { 0 };
	char *words = NULL;
	void *p;

	if (!journal_find(l, x, &j, &p))
		return strdup("a conversion");
	if (asprintf(&words, "a conversion of %.300s (%.40s) to %.40s%s%.200s", j.source, j.from,
		     j.to, *j.mesh ? " on " : "", j.mesh) < 0)
		words = NULL;
	journal_free(&j);
	free(p);
	return words;
}

void leftovers_open(struct cli *c, const char *where, struct leftovers *ret)
{
	*ret = (struct leftovers){ .c = c, .where = where };
	ret->fd = io_open_path(c->ops, AT_FDCWD, where, O_RDONLY | O_DIRECTORY);
	if (ret->fd < 0)
		return;
	ret->failed = leftovers_find(c->ops, ret->fd, wall_ns(), leftover_add, ret) != 0;
	if (ret->n)
		qsort(ret->x, ret->n, sizeof *ret->x, leftover_compare);
	ret->words = calloc((size_t)ret->n + 1, sizeof(char *));
	for (uint32_t i = 0; i < ret->n && ret->words; i++)
		if (ret->x[i].is == LEFTOVER_UNFINISHED)
			ret->words[i] = conversion_words(ret, &ret->x[i]);
}

void leftovers_close(struct leftovers *l)
{
	if (l->fd >= 0)
		(void)l->c->ops->close(l->c->ops->ctx, l->fd);
	for (uint32_t i = 0; i < l->n && l->words; i++)
		free(l->words[i]);
	free(l->words);
	free(l->x);
}

static void leftover_print(const struct leftovers *l, uint32_t i, const char *verdict)
{
	const struct leftover *x = &l->x[i];
	char path[PATH_MAX + NAME_MAX], size[HUMAN_BYTES];
	struct output *o = l->c->o;

	snprintf(path, sizeof path, "%s/%s", l->where, x->at);
	human_bytes(x->bytes, size);
	output_row(o);
	output_key(o, "path", cell_text(path));
	output_key(o, "becomes", cell_text(x->becomes));
	output_key(o, "state", cell_text(state_word[x->is]));
	output_key(o, "bytes", cell_of(CELL_BYTES, x->bytes));
	output_close(o);
	switch (x->is) {
	case LEFTOVER_WRITTEN:
		cli_say(l->c, STYLE_DIM,
			"%s, %s: ckptctl writes %s there now, or did until a moment ago", x->at,
			size, x->becomes);
		break;
	case LEFTOVER_UNFINISHED:
		cli_say(l->c, STYLE_WARN, "%s, %s: %s was interrupted; %s", x->at, size,
			l->words && l->words[i] ? l->words[i] : "a conversion",
			verdict ? verdict
				: "the same command continues it, ckptctl prune --unfinished "
				  "removes it");
		break;
	case LEFTOVER_DEAD:
		cli_say(l->c, STYLE_WARN, "%s, %s: ckptctl was killed while it wrote %s; %s", x->at,
			size, x->becomes,
			verdict ? verdict
				: "nothing continues it, ckptctl prune --unfinished removes it");
		break;
	}
}

void leftovers_print(const struct leftovers *l, const char *verdict)
{
	output_list(l->c->o, "unfinished", NULL, 0);
	for (uint32_t i = 0; i < l->n; i++)
		leftover_print(l, i, verdict);
	output_close(l->c->o);
	if (l->failed)
		cli_hint(l->c, "what convert and export may have left in %s cannot be listed",
			 l->where);
}

uint32_t leftovers_removable(const struct leftovers *l, uint64_t *ret_bytes)
{
	uint32_t n = 0;

	*ret_bytes = 0;
	for (uint32_t i = 0; i < l->n; i++) {
		n += l->x[i].is != LEFTOVER_WRITTEN;
		*ret_bytes += l->x[i].is != LEFTOVER_WRITTEN ? l->x[i].bytes : 0;
	}
	return n;
}

int leftovers_remove(struct leftovers *l, uint32_t *ret_n, uint64_t *ret_bytes,
		     struct ckpt_err *err)
{
	int first = 0;

	*ret_n = 0;
	*ret_bytes = 0;
	for (uint32_t i = 0; i < l->n; i++) {
		int rc = l->x[i].is == LEFTOVER_WRITTEN
				 ? 0
				 : leftover_remove(l->c->ops, l->fd, &l->x[i]);

		if (rc && !first)
			first = rc == -EBUSY
					? ckpt_error(err, rc,
						     "%s/%s: a ckptctl has begun to write it again",
						     l->where, l->x[i].at)
					: ckpt_error_errno(err, -rc, "%s/%s cannot be removed",
							   l->where, l->x[i].at);
		if (rc || l->x[i].is == LEFTOVER_WRITTEN)
			continue;
		++*ret_n;
		*ret_bytes += l->x[i].bytes;
	}
	return first;
}
