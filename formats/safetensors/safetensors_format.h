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
 * Directories in it are ignored: sharded/ beneath a consolidated checkpoint has the same again.
 *
 * Places: the files in the order of their names, or of the index, which is then the last. Component
 * is "". Metadata strings become attributes, but for "format"; a key that is no tensor with a
 * tensor's name as value (save_model's word for tied weights) becomes "ckpt.alias:/KEY" = "/NAME".
 * `has`: HAS_STEP of exports that say their step; no fingerprints, no sums, no layouts.
 */
#ifndef CKPT_SAFETENSORS_FORMAT_H
#define CKPT_SAFETENSORS_FORMAT_H
#include "formats/format.h"

#define SAFETENSORS_ALIAS "ckpt.alias:" /* docs/FORMAT.md */

extern const struct format format_safetensors;
#endif
