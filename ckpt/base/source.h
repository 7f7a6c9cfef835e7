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

struct source_dir {
	void *ctx;
	/* -ENOENT, -EISDIR, ... ; names are single components */
	int (*open)(void *ctx, const char *name, struct source *ret);
	/* every entry but . and .. ; is_file: a regular file. each != 0 ends it and is returned */
	int (*list)(void *ctx, int (*each)(void *arg, const char *name, int is_file), void *arg);
};
#endif
