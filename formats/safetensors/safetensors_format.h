/* SPDX-License-Identifier: Apache-2.0 */
/*
 * safetensors_format.h - safetensors as a format (formats/format.h). A checkpoint is
 *   - one file;
 *   - a directory with an index (model.safetensors.index.json, or the only *.safetensors.index.json), as
 *     Hugging Face has it: the files that the index names, in which exactly its tensors lie;
 *   - a directory without: all its *.safetensors. A tensor that is in two of them is refused, unless
 *     DCP_SHARDING_INFO (torch.distributed.checkpoint) says which box of it each file has: then it is as large
 *     as its boxes reach, and a box that is there again is a copy, of which the first is read;
 *   - what ckptctl wrote. By rank: DCP_SHARDING_INFO as above, metadata mesh and rank, and with
 *     "keys": "component/name" names that have the component in front. A blob is a tensor of bytes; metadata
 *     "ckpt.blob:NAME" says what they are, and whose: "json", "pickle, rank 3". In a file that is not
 *     this rank's (complete tensors: not rank 0's) NAME ends in "/rank-00003", which is not the blob's.
 * Files that say that they are of different checkpoints, or of which some say it and others do not, are
 * refused together (safetensors_origin.h): -EPROTO, each file a fault "mismatch".
 * Directories in it are ignored: sharded/ beneath a consolidated checkpoint has the same again.
 *
 * Places: the files in the order of their names, or of the index, which is then the last. Component
 * is "". Metadata strings become attributes, but for "format".
 *
 * Ties: a key that is no tensor of the checkpoint, with the name of one as value, is save_model's word
 * for a second name of that tensor. It becomes "ckpt.alias:/KEY" = "/NAME", of files of ranks
 * "ckpt.alias:COMPONENT/KEY" = "COMPONENT/NAME". All else is an attribute: a value that names no
 * tensor, names that lead to each other, a key that a tensor has.
 *   A tie is written as format_want.tied says: as metadata of the file that has the tensor (of files of
 * ranks: of each, and there is no copy), or as one more tensor. It is left out if its tensor is not
 * written, or its key is a tensor's. If its name is a word that ckptctl itself writes ("step"), it
 * becomes a tensor, and files of ranks do not have it. An attribute that would read as a tie, or has a
 * tie's name, is "ckpt.attr:KEY" in the files. An index lists no tie.
 *
 * `has`: HAS_STEP of exports that say their step; no fingerprints, no sums, no layouts.
 */
#ifndef CKPT_SAFETENSORS_FORMAT_H
#define CKPT_SAFETENSORS_FORMAT_H
#include "formats/format.h"

#define SAFETENSORS_ALIAS "ckpt.alias:" /* docs/FORMAT.md */

extern const struct format format_safetensors;
#endif
