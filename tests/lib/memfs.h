/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memfs.h - a file system in memory behind struct io_ops: a crash test makes and looks at ten
 * states in the time that a real directory takes for one. It behaves as io_ops_posix does on ext4
 * (renames do not replace, a directory that is not empty stays, locks belong to an open file);
 * nothing is lost by itself, sync does nothing. One thread. Symbolic links do not exist. Include
 * memfs.c into the test.
 *
 * Bytes of files are shared until they are written, so that a state costs what is different in it.
 */
#ifndef CKPT_TESTS_LIB_MEMFS_H
#define CKPT_TESTS_LIB_MEMFS_H
#include "ckpt/io/io.h"

#define MEMFS_NAME_MAX 120 /* bytes of a name with its zero; a longer one is -ENAMETOOLONG */
#define MEMFS_FD 1000000   /* descriptors begin here: none of the kernel's is one by accident */
#define MEMFS_ROOT 0

/* A file's bytes. */
struct memfs_bytes {
	uint32_t refs;
	bool hashed;
	uint64_t hash, len, cap;
	uint8_t *p;
};
struct memfs_bytes *memfs_bytes_new(const void *p, uint64_t len); /* copies; refs 1 */
void memfs_bytes_drop(struct memfs_bytes *b);			  /* NULL is fine */

struct memfs_node {
	bool is_dir;
	uint32_t nlink, nopen, shared, exclusive; /* names, descriptors, locks on them */
	struct memfs_bytes *bytes;
	struct memfs_entry {
		uint32_t node;
		uint64_t hash; /* of the name */
		char name[MEMFS_NAME_MAX];
	} * entry;
	uint32_t nentry, room;
};

struct memfs {
	struct io_ops ops; /* give &fs.ops to the code under test */
	struct memfs_node *node;
	uint32_t nnode, node_room;
	struct memfs_fd {
		uint32_t node; /* UINT32_MAX: closed */
		int lock;      /* 0, 1 shared, 2 exclusive */
	} * fd;
	uint32_t nfd;
};

void memfs_init(struct memfs *fs);
void memfs_reset(struct memfs *fs); /* an empty root; every descriptor is closed */
void memfs_free(struct memfs *fs);
/* Make an entry: a directory (bytes NULL) or a file that shares bytes. The node. */
uint32_t memfs_add(struct memfs *fs, uint32_t dir, const char *name, struct memfs_bytes *bytes);
void memfs_add_link(struct memfs *fs, uint32_t dir, const char *name, uint32_t node);
int memfs_open_root(struct memfs *fs);
uint32_t memfs_open_fds(const struct memfs *fs);
/* Of every name with its bytes or its directory, in whatever order they were made. */
uint64_t memfs_hash(struct memfs *fs);
/* A hash for the states of a disk: one more value, some bytes. */
uint64_t memfs_mix(uint64_t h, uint64_t v);
uint64_t memfs_hash_bytes(const void *p, uint64_t len);
#endif
