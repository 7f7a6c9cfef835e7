/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file_links.h - files with more than one name: a part that several steps share is on the disk
 * once, and its bytes go with its last name. Called by store_scan_parts, removal, and ckptctl's ls
 * and verify.
 *
 * A set has each such file once, by device and inode, found in constant time; files with one name
 * are not in it. Zero-initialised it is empty. One thread at a time.
 */
#ifndef CKPT_STORE_FILE_LINKS_H
#define CKPT_STORE_FILE_LINKS_H
#include "ckpt/base/strmap.h"
#include "ckpt/io/io.h"

struct link_file {
	uint64_t dev, ino, bytes;
	uint32_t nlink; /* names that it had when it was seen first */
	uint32_t uses;	/* names that were seen and not taken back */
	bool counted;	/* by file_links_repeated */
};

struct file_links {
	struct link_file *file; /* [nfile] */
	struct keymap found;	/* files by device and inode */
	struct arena arena;	/* of `found` */
	uint32_t *use;		/* [nuse] index of a file, in the order in which names were seen */
	uint32_t nfile, cap, nuse, use_cap;
	bool unseen; /* the state of a name is unknown (store_bytes_stay), so the sums may be wrong */
};

/* Count a name of this file. A file without another name is not kept. 0, -ENOMEM. */
int file_links_add(struct file_links *l, const struct io_stat *st);
/* Take the names from number `first` on back. */
void file_links_cut(struct file_links *l, uint32_t first);
/* Of n names from the first-th on. Bytes of files that were seen under another name too */
uint64_t file_links_shared(const struct file_links *l, uint32_t first, uint32_t n);
/* ... that have names which were not seen: removing all that were seen would not free them */
uint64_t file_links_kept(const struct file_links *l, uint32_t first, uint32_t n);
/* ... that an earlier call has counted, or this one: what is too much in a sum of all */
uint64_t file_links_repeated(struct file_links *l, uint32_t first, uint32_t n);
/* Of all files, each once: as file_links_kept. */
uint64_t file_links_kept_once(const struct file_links *l);
void file_links_free(struct file_links *l);
#endif
