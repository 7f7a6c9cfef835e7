/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remesh.h - --mesh SPEC, --layout and --replicate, for the verbs that take them: the subject's
 * tensors on that mesh (ckpt/table/target.h), and what had to change on the way.
 *
 * A mesh dimension that the checkpoint does not know and that would cut little is refused (exit 3),
 * with what the copies would cost, unless --replicate names it; so is one that leaves tensors
 * complete on every rank that were cut and that no rule names.
 *
 * --layout may be given several times: each is a rule GLOB=PLACEMENTS, or a file of rules (what has
 * no
 * '=', and any name that exists). A layout file has one rule a line, "GLOB  PLACEMENTS", as in
 *	# the embedding is cut by columns
 *	model/embed.*	Shard(1)@fsdp, Replicate@dp
 * Blank lines and what follows a '#' at a line's beginning or behind a blank are left out. The
 * first rule that matches a tensor's component/name, or its name, counts.
 */
#ifndef CKPT_CLI_REMESH_H
#define CKPT_CLI_REMESH_H
#include "ckpt/cli/cli.h"
#include "ckpt/cli/subject.h"
#include "ckpt/table/target.h"

struct remesh_note {
	uint32_t tensor; /* in the subject's table, and in target */
	const char *text;
};

struct remesh {
	const struct table *from; /* the subject's */
	struct table target;	  /* as target_make made it */
	struct target_settled settled;
	uint32_t nnote;
	struct remesh_note *note; /* in the order of the tensors */
	struct arena arena;
};

/*
 * Returns an exit code. What went wrong has been told: no --mesh, a mesh or rules that cannot be
 * read or followed, no such layout file (all 2: the command must be mended, the checkpoint is
 * there), copies that nobody asked for (3), ...
 * ret is empty then. Call it before the document begins; remesh_free in any case.
 */
int remesh(struct cli *c, const struct subject *s, struct remesh *ret);
/* For programs: from_mesh, mesh, world_size and layout_file. */
void remesh_put(struct cli *c, const struct remesh *m);
/* Tell the notes: for programs the list "changes" of {tensor, text}; for people grouped, on stderr.
 * In the document, between begin and end. */
void remesh_tell(struct cli *c, const struct remesh *m);
void remesh_free(struct remesh *m);

/* What stands for OPT_MESH and OPT_LAYOUT in a verb's own options. */
#define REMESH_OPTIONS                                                                        \
	{ OPT_MESH, "the mesh to load onto: names and sizes, as in dp=2,fsdp=4 (required)" }, \
		REMESH_LAYOUT
#define REMESH_LAYOUT                                                                                 \
	{ OPT_LAYOUT,                                                                                 \
	  "placements that differ: \"GLOB=PLACEMENTS\", as in \"model/embed.*=Shard(1)@fsdp\", or a " \
	  "file with one \"GLOB PLACEMENTS\" a line, or as PyTorch prints them, "                     \
	  "\"(Replicate(), Shard(dim=1))\"; can be repeated" },                                       \
	{                                                                                             \
		OPT_REPLICATE,                                                                        \
			"these dimensions of the mesh, as in dp or dp,tp, hold copies of what "       \
			"nothing cuts over them; can be repeated"                                     \
	}
#endif
