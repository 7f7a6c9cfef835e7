/* SPDX-License-Identifier: Apache-2.0 */
/* verb_convert.h - what convert and export have in common. */
#ifndef CKPT_CLI_VERB_CONVERT_H
#define CKPT_CLI_VERB_CONVERT_H
#include "ckpt/base/error.h"
#include "ckpt/cli/cli.h"
#include "ckpt/engine/convert.h"
#include "ckpt/io/publish.h"
#include "formats/format.h"

#define CONVERT_PEAK "which --mem-limit bounds" /* of explicit_option_put */
#define CONVERT_MESH_BYTES (CKPT_NAME_MAX + 8)

/* The verb convert, with the options of c, also those that only export offers. Returns the exit
 * code. */
int convert_run(struct cli *c);
/* --mem-limit (without it 1 GiB; at least CONVERT_MEM_MIN) and --shard-size (0). Returns an exit
 * code, after an error was printed. */
int convert_sizes(struct cli *c, uint64_t *ret_mem_limit, uint64_t *ret_shard_bytes);
/* --tied, where tensors of that format have it; by_rank: its files are those of ranks. Returns an exit
 * code, after an error was printed. */
int convert_tied(struct cli *c, const struct format *f, bool by_rank, enum format_tied *ret);
#define CONVERT_TIED_HELP "tensors with several names: once, or copy, under each name"
/* Without --mesh: OPT_MESH becomes a mesh of one rank, in which a dimension of the checkpoint's own
 * mesh keeps its name, so that a layout file can name it. Returns whether --mesh was missing. */
bool convert_alone(struct cli *c, const struct table *t, char mesh[CONVERT_MESH_BYTES]);
/* Is it the name of one file of that format? */
bool convert_is_file(const char *path, const struct format *f);
/* The directory around dst, and the name in it: of whatever is made of a checkpoint, in any format.
 * own_step: of store_outside. Returns an exit code, after an error was printed: there is no such
 * directory, or nothing may be made there. Nothing is made. */
int convert_place(struct cli *c, const char *dst, uint64_t own_step, struct publish_path *ret);
/* Print the error -EMEDIUMTYPE of engine_convert, with all that the format cannot hold. path: of the
 * source. Returns the exit code. */
int convert_misfit(struct cli *c, const char *path, const struct converted *f,
		   const struct ckpt_errlist *cannot, const struct ckpt_err *err);
/* Print what was left out because the format cannot hold it, a line each. */
void convert_cannot_say(struct cli *c, const struct ckpt_errlist *cannot);
#endif
