/* SPDX-License-Identifier: Apache-2.0 */
/*
 * older.h - for tests: a store whose steps an older version wrote, format 0.0 of ckptd 0.1. That is the real one
 * of tests/vectors/v0-store: job demo, steps 10 (held by paper), 20 (tagged best) and 30.
 */
#ifndef CKPT_TESTS_LIB_OLDER_H
#define CKPT_TESTS_LIB_OLDER_H
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "ckpt/base/container.h"

/* A MANIFEST of this version becomes one that this version's reader refuses, with the header of format 0.0:
 * the sum's algorithm is none. false: it cannot be read or written. */
static inline bool older_make(const char *manifest)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	cleanup_close int fd = open(manifest, O_RDWR | O_CLOEXEC);
	struct hash128 self;

	if (!head || fd < 0 || pread(fd, head, sizeof *head, 0) != sizeof *head)
		return false;
	head->minor = le16_of(0);
	head->incompat = le64_of(0);
	head->hash = CONTAINER_HASH + 1;
	self = hash128(head, offsetof(struct ck_head, self));
	memcpy(head->self, self.b, sizeof head->self);
	return pwrite(fd, head, sizeof *head, 0) == sizeof *head;
}

/* The job of the vectors, as DIR/demo; DIR is there, demo is not, or is empty but for what it gets. */
static inline bool older_store(const char *dir)
{
	char text[600];

	(void)snprintf(text, sizeof text, "tar -xzf tests/vectors/v0-store/store.tar.gz -C '%s'",
		       dir);
	if (system(text) != 0)
		return false;
	/* As long as this version writes 0.0 itself, its reader has to be made to refuse it. */
	for (int step = 10; CONTAINER_MINOR < 2 && step <= 30; step += 10) {
		(void)snprintf(text, sizeof text, "%s/demo/step-%012d/MANIFEST", dir, step);
		if (!older_make(text))
			return false;
	}
	return true;
}
#endif
