/* SPDX-License-Identifier: Apache-2.0 */
/*
 * source.h - where a format's bytes come from: a directory of named byte strings. Formats parse
 * through it and never see a descriptor, so that a test, a fuzzer and an object store look alike.
 */
#ifndef CKPT_BASE_SOURCE_H
#define CKPT_BASE_SOURCE_H
#include <stdint.h>

struct source {
	void *ctx;
	uint64_t bytes;
	int (*read)(void *ctx, void *buf, uint64_t len, uint64_t off); /* all of it or -errno */
	void (*close)(void *ctx);				       /* may be NULL */
};

static inline void source_close(struct source *s)
{
	if (s->close)
		s->close(s->ctx);
}

enum source_kind { SOURCE_FILE, SOURCE_DIR, SOURCE_OTHER };
/* != 0 ends the listing and is returned */
typedef int source_entry_fn(void *arg, const char *name, enum source_kind kind);

/* Names are "a", or "a/b" beneath the directory; they neither begin with '/' nor have "." or ".."
 * in them (-EINVAL). open, read and list: any thread. */
struct source_dir {
	void *ctx;
	const char *entry; /* the file in it that a person named; NULL: the directory */
	int (*open)(void *ctx, const char *name, struct source *ret); /* -ENOENT, -EISDIR, ... */
	/* every entry but . and .. of sub, "" for the directory itself */
	int (*list)(void *ctx, const char *sub, source_entry_fn *each, void *arg);
};
#endif
