/* SPDX-License-Identifier: Apache-2.0 */
/* export.h - what the files of ckptctl export share. */
#ifndef CKPT_CLI_EXPORT_H
#define CKPT_CLI_EXPORT_H
#include "ckpt/cli/cli.h"
#include "ckpt/cli/explicit_option.h"
#include "ckpt/cli/from_memory.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/mesh_option.h"
#include "ckpt/cli/only.h"
#include "ckpt/cli/subject.h"
#include "ckpt/cli/verb_convert.h"
#include "ckpt/cli/view_file.h"
#include "ckpt/engine/convert.h"
#include "ckpt/base/strmap.h"
#include "ckpt/move/damage.h"
#include "formats/safetensors/safetensors_origin.h"
#include <limits.h>

#define EXPORT_AGAIN (-1) /* in place of an exit code: nothing is printed yet; look for damage */

/* One that was made, or would be. */
struct export_file {
	char name[64];
	uint32_t rank, ntensor, nblob_other; /* blobs of other ranks that it carries */
	uint64_t bytes, data_bytes;
};

/* --rank: what DIR has besides. */
struct export_beside {
	struct arena arena;
	struct safetensors_origin own; /* of the file that is to be made */
	struct strmap seen;	       /* names of files that were compared */
	const char *other_step;	       /* of the first one of another checkpoint; NULL */
	bool mixed;		       /* there is one */
	bool open;		       /* fd is DIR, locked */
	int fd;
};

struct export
{
	struct cli *c;
	const char *name; /* of the checkpoint: the first argument, or the path of memory's step */
	struct memory_step memory;
	struct subject s;
	struct only only; /* stands below the view */
	struct view_file view;
	const struct format *format;   /* safetensors */
	bool alone;		       /* without --mesh: complete tensors */
	char mesh[CONVERT_MESH_BYTES]; /* that they have then */
	struct remesh to;
	struct explicit_option explicit;
	struct links links_read;
	const struct links *links; /* NULL: no --links */
	uint64_t mem_limit, shard_bytes;
	enum format_tied tied;
	uint32_t first, n; /* ranks */
	bool one;	   /* --rank */
	int refused;	   /* the exit code, told while the parts were chosen */
	struct export_beside beside;
	/* What is made. dst: DST, or of one rank the file in it; file: it is one file. */
	const char *path;
	char dst[PATH_MAX];
	bool file, made_dir;
	struct checkpoint said;
	struct arena arena;
	uint64_t *overflow; /* [ntensor] elements that became infinite; NULL: nothing is cast */
	uint32_t nfile;
	struct export_file *made_file; /* [nfile] */
	struct converted made;
	struct ckpt_errlist cannot;
	bool begun, told; /* begun: the progress; told: the document has begun */
	struct progress progress;
	uint64_t begin_ns;
	double speed;
	/* --keep-going */
	bool keep_going, scanned; /* scanned: every byte was looked at */
	struct damage damage;
	uint32_t nleft;
	bool *left; /* [ntensor] that are damaged, and left out */
};

/* export_write.c. Each returns an exit code, after the error was printed. */
/* Is there a directory for it? Nothing is made. */
int export_find(struct export *r);
/* All files, or EXPORT_AGAIN. */
int export_write(struct export *r);
/* The exit code of an error; source: reading the source failed; or EXPORT_AGAIN. */
int export_fail(struct export *r, int rc, bool source, const struct ckpt_err *err);

/* export_beside.c: for --rank. -EMEDIUMTYPE: DIR has files of another checkpoint or mesh, or some that
 * cannot be read; each is a line of err. export_beside_end in any case. */
int export_beside(struct export *r, const struct sheet *s, struct ckpt_err *err);
/* The same once more, before the file gets its name, of those that are new; DIR stays locked. */
int export_beside_again(struct export *r, struct ckpt_err *err);
void export_beside_end(struct export *r);
/* Print that error, and what to do. Returns the exit code. */
int export_mixed(struct export *r, const struct ckpt_err *err);
/* Print how to name the step for the other ranks, if CKPT may mean another one by then. */
void export_others_say(struct export *r);

/* export_result.c */
/* The document, once; without --mesh nobody asked how tensors are placed. */
void export_document(struct export *r);
/* What was done. Returns the exit code. */
int export_put(struct export *r);
#endif
