/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh_option.h - --mesh SPEC, --layout and --replicate, for the verbs that take them: the subject's
 * tensors on that mesh (engine/remesh.h), and what had to change on the way. --layout may be given
 * several times: each is a rule GLOB=PLACEMENTS, or a file of rules.
 */
#ifndef CKPT_CLI_MESH_OPTION_H
#define CKPT_CLI_MESH_OPTION_H
#include "ckpt/cli/cli.h"
#include "ckpt/cli/subject.h"
#include "ckpt/engine/remesh.h"

/*
 * Returns an exit code, after the error was printed: no --mesh, a mesh or rules that cannot be read
 * or followed, no such layout file (all 2: the command is wrong, the checkpoint is there), copies
 * that --replicate does not allow (3), ... ret is empty then. Call it before the document begins;
 * remesh_free in any case.
 */
int mesh_option(struct cli *c, const struct subject *s, struct remesh *ret);
/* For programs: from_mesh, mesh, world_size and layout_file. */
void mesh_option_put(struct cli *c, const struct remesh *m);
/* The notes: for programs the list "changes" of {tensor, text}; for people grouped, on stderr. In
 * the document, between begin and end. */
void mesh_option_print(struct cli *c, const struct remesh *m);

/* What stands for OPT_MESH and OPT_LAYOUT in a verb's own options. */
#define REMESH_OPTIONS \
	{ OPT_MESH, "the mesh to load onto: names and sizes, as in dp=2,fsdp=4" }, REMESH_LAYOUT
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
