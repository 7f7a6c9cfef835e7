/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shared_files.c - see shared_files.h. Called by verify.c.
 * Invariant: a file is passed by only if all of it was read, and every fault that was found then is
 * told again for each checkpoint that has it.
 */
#include "ckpt/engine/shared_files.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"

struct shared_file {
	const char *name;     /* that it has in the checkpoint with which it was read */
	uint64_t modified_ns; /* then */
	uint32_t first, end;  /* of s->fault: those of that checkpoint */
	bool done;	      /* read, and all of its faults are known */
};

/* The record of an open file that has other names; NULL: it has none, or nothing can be kept of
 * it. */
static struct shared_file *file_of(struct engine_shared *s, const struct io_ops *ops, int fd,
				   struct io_stat *ret)
{
	const uint64_t *kept;
	uint64_t key[2];
	uint32_t at;
	int rc;

	if (io_stat(ops, fd, ret) || ret->nlink < 2 || !ret->ino)
		return NULL;
	key[0] = ret->dev;
	key[1] = ret->ino;
	at = strmap_find(&s->found, key, sizeof key);
	if (at != KEYMAP_NONE)
		return &s->file[at];
	if (!ARRAY_GROW(s->file, s->nfile, s->cap))
		return NULL;
	kept = arena_dup(&s->arena, key, sizeof key);
	rc = kept ? strmap_add(&s->found, &s->arena, kept, sizeof key, &at) : -ENOMEM;
	if (rc != 1)
		return NULL;
	s->file[at] = (struct shared_file){ 0 };
	s->nfile = at + 1;
	return &s->file[at];
}

/* NULL also for a file that cannot be opened: reading it says why. */
static struct shared_file *file_at(struct engine_shared *s, const struct move_files *files,
				   uint32_t i, struct io_stat *st)
{
	int fd = io_files_take(files->files, i);
	struct shared_file *f;

	if (fd < 0)
		return NULL;
	f = file_of(s, files->ops, fd, st);
	io_files_give(files->files, i);
	return f;
}

void shared_find(struct engine_shared *s, const struct move_files *files, bool *skip)
{
	for (uint32_t i = 0; i < files->ckpt->nfile; i++) {
		struct io_stat st;
		const struct shared_file *f = file_at(s, files, i, &st);

		skip[i] = f && f->done && f->modified_ns == st.modified_ns &&
			  !MUTANT(SHARED_READ_TWICE);
	}
}

void shared_fault(struct engine_shared *s, const struct format_fault *fault)
{
	struct format_fault *f;

	if (!ARRAY_GROW(s->fault, s->nfault, s->fault_cap)) {
		s->failed = true;
		return;
	}
	f = &s->fault[s->nfault];
	*f = *fault;
	f->kind = arena_str(&s->arena, fault->kind ? fault->kind : "");
	f->file = arena_str(&s->arena, fault->file ? fault->file : "");
	f->tensor = arena_str(&s->arena, fault->tensor ? fault->tensor : "");
	f->text = arena_str(&s->arena, fault->text ? fault->text : "");
	if (f->kind && f->file && f->tensor && f->text)
		s->nfault++;
	else
		s->failed = true;
}

void shared_keep(struct engine_shared *s, const struct move_files *files, const bool *skip,
		 uint32_t first)
{
	for (uint32_t i = 0; i < files->ckpt->nfile && !s->failed; i++) {
		struct io_stat st;
		struct shared_file *f = skip[i] ? NULL : file_at(s, files, i, &st);

		if (!f)
			continue;
		*f = (struct shared_file){ .name = arena_str(&s->arena, files->ckpt->file[i].name),
					   .modified_ns = st.modified_ns,
					   .first = first,
					   .end = s->nfault };
		f->done = f->name != NULL;
	}
}

void shared_tell(struct engine_shared *s, const struct move_files *files, const bool *skip,
		 format_fault_fn *fault, void *arg)
{
	for (uint32_t i = 0; i < files->ckpt->nfile && !MUTANT(SHARED_VERDICT_LOST); i++) {
		struct io_stat st;
		const struct shared_file *f = skip[i] ? file_at(s, files, i, &st) : NULL;

		for (uint32_t k = f ? f->first : 0; f && k < f->end; k++) {
			struct format_fault x = s->fault[k];

			if (strcmp(x.file, f->name) != 0)
				continue;
			x.file = files->ckpt->file[i].name;
			fault(arg, &x);
		}
	}
}

void engine_shared_free(struct engine_shared *s)
{
	free(s->file);
	free(s->fault);
	arena_free(&s->arena);
	*s = (struct engine_shared){ 0 };
}
