/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h - a file or a directory that a person asked for by its path: it appears complete, or
 * not at all. Nothing that exists is replaced, but what the caller names (over, an empty
 * directory). Called by the engine, and by the verbs that write a file. One thread; all through
 * io_ops.
 *
 * Beside the path .../NAME lie, while it is made,
 *	.NAME.ckptctl		a directory, locked: journal-0, journal-1
 *	.NAME.ckptctl-new	what becomes NAME
 * if another run may continue (resume); else .NAME.XXXXXXXX.ckptctl-new alone. The caller writes
 * the journals' contents: each is written to the older of the two files and synced, after the names
 * of all files that it may mention are synced.
 *
 * What a killed run, or a power loss, may leave (resume), and what the next run finds:
 *	lock directory, no journal	   publish_journal: -ENOENT. publish_clear, then begin anew
 *	journal k, files in part	   continue from k. Journal k + 1 may be torn: the caller's
 *					   journal carries its own hash
 *	all files, not renamed		   the journal says so: publish_commit
 *	renamed, the parent not synced	   as the line above, or as the line below
 *	NAME, and .NAME.ckptctl alone	   publish_begin removes the latter: -EEXIST
 * .NAME.ckptctl-new without the lock is empty, or somebody else's: the former is made after the
 * latter, gets its first byte behind the first journal, and is removed, and that synced, before it.
 */
#ifndef CKPT_IO_PUBLISH_H
#define CKPT_IO_PUBLISH_H
#include "ckpt/base/source.h"
#include "ckpt/io/io.h"
#include <limits.h>

#define PUBLISH_SUFFIX ".ckptctl"
#define PUBLISH_JOURNALS 2u
#define PUBLISH_OVER_MAX 64u /* bytes of `over` */
#define PUBLISH_DEPTH_MAX 8u /* components of a name beneath NAME */

/* A path's directory and last component. Slashes at its end do not count. */
struct publish_place {
	char parent[PATH_MAX];	 /* "." where the path has no slash */
	char base[NAME_MAX + 1]; /* never "", ".", ".." */
};
/* -EINVAL: it has no name that can be made. */
int publish_split(const char *path, struct publish_place *ret, struct ckpt_err *err);

struct publish_opts {
	const struct io_ops *ops;
	const char *path;
	bool dir;    /* a directory; else one file */
	bool resume; /* another run may continue: lock and journals */
	uint32_t
		mode; /* of new files, less the umask; directories can be searched by whom they admit */
	const char *over; /* a file that begins so gives way; NULL: none. An empty directory gives
			   * way to a directory */
	/* May something be made in this directory, which is open? left: what an earlier run may
	 * have left there, and this one writes over; "": nothing (resume). A result < 0 ends
	 * publish_begin, and err has the sentence. NULL: anywhere */
	int (*allow)(void *arg, int dirfd, const char *left, struct ckpt_err *err);
	void *arg;
};

struct publish;
/*
 * room: bytes that will be written at most, less what an earlier run has written; 0: not checked.
 * -EINVAL: the path has no name, or a file's ends in a slash, or it is a mount point, or what is
 * not ours lies where the lock or the files go (something with bytes or entries, and no lock);
 * -ENOENT: there is no directory around it; -EEXIST: something has the name,
 * and was not changed; -EBUSY: another run has the lock; -ENOSPC; what allow said; errors of the
 * file system. After an error there is nothing to end, and nothing is left that was not there.
 */
int publish_begin(const struct publish_opts *o, uint64_t room, struct publish **ret,
		  struct ckpt_err *err);
/* "DIR/.NAME.ckptctl-new", for sentences */
const char *publish_path(const struct publish *p);

/* Journal file `which` (0, 1), malloc'ed. -ENOENT without a sentence: there is none. */
int publish_journal(struct publish *p, uint32_t which, uint64_t max, void **ret, uint64_t *ret_len,
		    struct ckpt_err *err);
/* Replace journal file `which` (the older one: the caller alternates). Synced, and all names before
 * it. */
int publish_note(struct publish *p, uint32_t which, const void *bytes, uint64_t len,
		 struct ckpt_err *err);

/*
 * Open a file for reading and writing; made where it is missing, with the directories around it.
 * name: "a/b" of a directory, "" of a file. room: bytes to reserve where the file system can; 0:
 * none.
 * *direct: is O_DIRECT wanted? Cleared where it is refused. NULL: no. A file may be opened twice.
 */
int publish_file(struct publish *p, const char *name, uint64_t room, bool *direct, int *ret_fd,
		 struct ckpt_err *err);
/* Cut to `bytes`, sync, close. fd is closed in any case. After an error the file's bytes are not
 * known: publish_end without keep. */
int publish_file_end(struct publish *p, const char *name, int fd, uint64_t bytes,
		     struct ckpt_err *err);
/* Remove all files and journals: to begin anew. */
int publish_clear(struct publish *p, struct ckpt_err *err);
/* Read what is written so far; source_end (io/io_source.h) ends it. */
int publish_source(struct publish *p, struct source_dir *ret);
/* The directory in which its files lie until then, borrowed: of one file, the one around it. */
int publish_fd(const struct publish *p);
/* What the one file is called there until then; "": it is a directory with files. */
const char *publish_entry(const struct publish *p);
/* Every file was ended: it becomes NAME, by one rename. -EEXIST: the name was taken meanwhile, all
 * stays where it is. */
int publish_commit(struct publish *p, struct ckpt_err *err);
/* keep: another run continues (resume; else as without). Without: nothing is left, but NAME after
 * publish_commit. NULL is fine. */
void publish_end(struct publish *p, bool keep);

/* "journal-0", "journal-1". */
void publish_journal_name(uint32_t which, char ret[16]);
/* A small new file: O_EXCL, mode 0600, written, synced, closed. The name is not synced. After an
 * error it may be there. */
int publish_put(const struct io_ops *ops, int dirfd, const char *name, const void *bytes,
		uint64_t len);
#endif
