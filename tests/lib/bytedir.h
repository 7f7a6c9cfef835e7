/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bytedir.h - a directory of byte strings as a struct source_dir, for readers of formats that need
 * no native checkpoint (memdir.h makes those). Names may be "a/b": then "a" is listed as a
 * directory. Files made by bytedir_safetensors have the header that is given and so many bytes of
 * data 0, 1, 2, ....
 */
#ifndef TESTS_BYTEDIR_H
#define TESTS_BYTEDIR_H
#include "ckpt/base/source.h"
#include "ckpt/base/util.h"

#define BYTEDIR_FILES_MAX 64

struct bytedir {
	struct bytedir_file {
		char name[128];
		uint8_t *bytes;
		uint64_t len;
		int error; /* opening fails with it; 0 */
	} file[BYTEDIR_FILES_MAX];
	uint32_t n, nopen; /* nopen: sources that are open */
};

static inline struct bytedir_file *bytedir_add(struct bytedir *d, const char *name,
					       const void *bytes, uint64_t len)
{
	struct bytedir_file *f = &d->file[d->n++];

	assert(d->n <= BYTEDIR_FILES_MAX && strlen(name) < sizeof f->name);
	*f = (struct bytedir_file){ .bytes = malloc(len ? len : 1), .len = len };
	strcpy(f->name, name);
	if (len)
		memcpy(f->bytes, bytes, len);
	return f;
}

static inline struct bytedir_file *bytedir_safetensors(struct bytedir *d, const char *name,
						       const char *header, uint64_t data_bytes)
{
	uint64_t n = strlen(header);
	cleanup_free uint8_t *bytes = malloc(8 + n + data_bytes);
	le64 first = le64_of(n);

	memcpy(bytes, &first, sizeof first);
	memcpy(bytes + 8, header, n);
	for (uint64_t i = 0; i < data_bytes; i++)
		bytes[8 + n + i] = (uint8_t)i;
	return bytedir_add(d, name, bytes, 8 + n + data_bytes);
}

static inline void bytedir_clear(struct bytedir *d)
{
	for (uint32_t i = 0; i < d->n; i++)
		free(d->file[i].bytes);
	*d = (struct bytedir){ 0 };
}

struct bytedir_open {
	struct bytedir *d;
	const struct bytedir_file *file;
};

static inline int bytedir_read(void *ctx, void *buf, uint64_t len, uint64_t off)
{
	const struct bytedir_file *f = ((struct bytedir_open *)ctx)->file;

	if (off > f->len || len > f->len - off)
		return -EIO;
	memcpy(buf, f->bytes + off, len);
	return 0;
}

static inline void bytedir_close(void *ctx)
{
	((struct bytedir_open *)ctx)->d->nopen--;
	free(ctx);
}

static inline int bytedir_open_at(void *ctx, const char *name, struct source *ret)
{
	struct bytedir *d = ctx;
	struct bytedir_open *o;

	if (!*name || *name == '/' || strstr(name, ".."))
		return -EINVAL;
	for (uint32_t i = 0; i < d->n; i++) {
		if (strcmp(d->file[i].name, name) != 0)
			continue;
		if (d->file[i].error)
			return d->file[i].error;
		o = malloc(sizeof *o);
		*o = (struct bytedir_open){ d, &d->file[i] };
		d->nopen++;
		*ret = (struct source){ .ctx = o,
					.bytes = d->file[i].len,
					.read = bytedir_read,
					.close = bytedir_close };
		return 0;
	}
	return -ENOENT;
}

static inline int bytedir_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	struct bytedir *d = ctx;
	size_t under = *sub ? strlen(sub) + 1 : 0;
	int rc = 0;

	for (uint32_t i = 0; i < d->n && !rc; i++) {
		const char *name = d->file[i].name + under, *slash;
		char dir[128];
		bool told = false;

		if (under && (strncmp(d->file[i].name, sub, under - 1) != 0 || name[-1] != '/'))
			continue;
		slash = strchr(name, '/');
		if (!slash) {
			rc = each(arg, name, SOURCE_FILE);
			continue;
		}
		memcpy(dir, name, (size_t)(slash - name));
		dir[slash - name] = 0;
		for (uint32_t k = 0; k < i; k++)
			told |= !strncmp(d->file[k].name, d->file[i].name, under + strlen(dir) + 1);
		if (!told)
			rc = each(arg, dir, SOURCE_DIR);
	}
	return rc;
}

static inline struct source_dir bytedir_source(struct bytedir *d, const char *entry)
{
	return (struct source_dir){
		.ctx = d, .entry = entry, .open = bytedir_open_at, .list = bytedir_list
	};
}
#endif
