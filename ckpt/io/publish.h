/* SPDX-License-Identifier: Apache-2.0 */
/*
 * publish.h - makes a file or a directory at a path of the command line. It appears complete, or
 * not at all. It replaces nothing, except what the caller allows: a file that begins with `over`,
 * an empty directory. Called by the engine, and by the verbs that write a file. One thread. All
 * calls go through io_ops.
 *
 * While NAME is made, these lie beside it:
 *	.NAME.ckptctl		a directory, locked: journal-0, journal-1
 *	.NAME.ckptctl-new	what becomes NAME
 * Without `resume`, no other run can continue: then there is only .NAME.XXXXXXXX.ckptctl-new. The
 * caller makes the contents of the journals. publish_note first syncs the names of all files that
 * the journal may name; then it writes the older of the two journal files and syncs it.
 *
 * With `resume`, a killed run or a power loss may leave this. The next run does the following:
 *	lock directory, no journal	   publish_journal: -ENOENT. publish_clear, then begin anew
 *	journal k, files in part	   continue from k. Journal k + 1 may be torn: the caller's
 *					   journal contains its own hash
 *	all files, not renamed		   the journal records that: publish_commit
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

/* A path's directory and last component, without slashes at its end. */
struct publish_path {
	char parent[PATH_MAX];	 /* "." where the path has no slash */
	char base[NAME_MAX + 1]; /* never "", ".", ".." */
};
/* -EINVAL: its last component is no name of a new file. */
int publish_split(const char *path, struct publish_path *ret, struct ckpt_err *err);

struct publish_opts {
	const struct io_ops *ops;
	const char *path;
	bool dir;    /* a directory; else one file */
	bool resume; /* another run may continue: lock and journals */
	/* Of new files, less the umask. A directory also gets an execute bit for each read bit. */
	uint32_t mode;
	/* A file that begins with this text is replaced; NULL: no file is. An empty directory is
	 * always replaced by a directory */
	const char *over;
	/* May something be made in this open directory? left: what an earlier run may have left
	 * there, and this run writes over; "": nothing. A result < 0 ends publish_begin, and err has
	 * the reason. NULL: in every directory */
	int (*allow)(void *arg, int dirfd, const char *left, struct ckpt_err *err);
	void *arg;
};

struct publish;
/*
 * need: the most bytes that will be written, less what an earlier run has written; 0: not checked.
 * -EINVAL: the path has no last component, or the path of a file ends with a slash, or the path is
 * a mount point, or a file or directory that ckptctl did not make has the name of the lock or of
 * the new files; -ENOENT: there is no parent directory; -EEXIST: the name is taken, and nothing
 * was changed; -EBUSY: another run has the lock; -ENOSPC; the result of allow; errors of the file
 * system. After an error the caller does not call publish_end, and everything is as it was before.
 */
int publish_begin(const struct publish_opts *o, uint64_t need, struct publish **ret,
		  struct ckpt_err *err);
/* "DIR/.NAME.ckptctl-new", for messages */
const char *publish_path(const struct publish *p);

/* Reads journal file `which` (0, 1) into malloc'ed memory. -ENOENT, without a message: there is
 * none. */
int publish_journal(struct publish *p, uint32_t which, uint64_t max, void **ret, uint64_t *ret_len,
		    struct ckpt_err *err);
/* Replaces journal file `which` and syncs it, and before that all names. The caller alternates: it
 * always gives the older one. */
int publish_note(struct publish *p, uint32_t which, const void *bytes, uint64_t len,
		 struct ckpt_err *err);

/*
 * Opens a file for reading and writing. Makes the file and its directories if they are missing.
 * name: "a/b" in a directory; "" if NAME is one file. reserve: bytes to allocate if the file system
 * can do that; 0: none. *direct: open it with O_DIRECT; cleared if the file system refuses that.
 * NULL: without O_DIRECT. A file may be opened twice.
 */
int publish_file(struct publish *p, const char *name, uint64_t reserve, bool *direct, int *ret_fd,
		 struct ckpt_err *err);
/* Truncates to `bytes`, syncs, closes. fd is closed also after an error. Then the file's content is
 * not known, so the caller calls publish_end without keep. */
int publish_file_end(struct publish *p, const char *name, int fd, uint64_t bytes,
		     struct ckpt_err *err);
/* Removes all files and journals, to begin anew. */
int publish_clear(struct publish *p, struct ckpt_err *err);
/* The files as they are now, for reading; source_end (io/io_source.h) ends it. */
int publish_source(struct publish *p, struct source_dir *ret);
/* The directory that contains the files before the commit, borrowed. If NAME is one file, this is
 * its parent. */
int publish_fd(const struct publish *p);
/* The name of the one file there before the commit; "": NAME is a directory. */
const char *publish_entry(const struct publish *p);
/* Gives it the name NAME, by one rename, after publish_file_end of every file. -EEXIST: the name
 * was taken meanwhile, and nothing was moved. */
int publish_commit(struct publish *p, struct ckpt_err *err);
/* keep (counts only with `resume`): all stays, so that another run can continue. Otherwise only
 * NAME stays, if publish_commit has made it. NULL is allowed. */
void publish_end(struct publish *p, bool keep);

/* "journal-0", "journal-1". */
void publish_journal_name(uint32_t which, char ret[16]);
/* Makes a small new file: O_EXCL, mode 0600, written, synced, closed. The name is not synced. After
 * an error the file may exist. */
int publish_put(const struct io_ops *ops, int dirfd, const char *name, const void *bytes,
		uint64_t len);
#endif
