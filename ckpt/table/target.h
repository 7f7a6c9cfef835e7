/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target.h - the tensors of a checkpoint on another mesh: a table whose places are still empty.
 *
 * Placements follow the *names* of mesh dimensions:
 *   - a dimension that both meshes name keeps its placements, on the tensor dimension they were on
 *     and in the order in which they were applied;
 *   - one that the checkpoint does not know replicates, one that the new mesh lacks unshards;
 *   - uneven and empty shards are taken as they come; what is cut flat or padded stays so;
 *   - where several mesh dimensions (of size 1: none) would cut one tensor dimension that has fewer
 *     elements than their product, the largest of them (of equals the first in the mesh) cuts
 *     alone, and the others replicate;
 *   - a placement that cannot apply (a tensor without that dimension) replicates;
 *   - a pending reduction (PARTIAL) is carried out: over that mesh dimension it replicates, and the
 *     tensor's fingerprint is not known;
 *   - ONLY (a pipeline stage) at coordinate c of n goes to coordinate c * m / n of m;
 *   - a strided shard's factor that was the number of the shards which cut inside it is that number
 *     on the new mesh; any other factor stays. Which shards cut inside it is read as torch reads a
 *     shard order out of strided shards: from the last placement of a tensor dimension to the
 *     first, each goes to the first place whose product before it is its factor.
 * A tensor that has no placements is whole on every rank; the per-rank blobs, and a blob of all
 * ranks, have none on any mesh.
 *
 * Rules override: the first whose glob matches "component/name" (or the name) gives the tensor's
 * placements in the notation of table_layout_print, "Shard(0)@fsdp, Replicate@dp" (layout_parse).
 * They are taken as they stand, also where many ranks get nothing; only what cannot apply
 * replicates. Blobs are no tensors: no rule matches them.
 *
 * Every tensor that comes out cut otherwise than it was (other SHARDs or ONLYs, by name, tensor
 * dimension, factor or coordinate), and every one without placements, gets a note with the reason.
 *
 * Per-rank blobs keep their ranks: they are data of the ranks that wrote them. Rank r of the new
 * mesh carries those of the old ranks r, r + world, r + 2 world, ...
 */
#ifndef CKPT_TABLE_TARGET_H
#define CKPT_TABLE_TARGET_H
#include "ckpt/table/table.h"

struct target_rule {
	const char *glob, *placements;
	const char *where; /* "layouts.txt:3", for messages */
};

/* The note of a tensor without placements that no rule names. */
#define TARGET_UNPLACED "it has no placements: complete on every rank"

/* tensor: in src. text: what was done and why, a few words, without the tensor's name. */
typedef void target_note_fn(void *arg, uint32_t tensor, const char *text);

/*
 * ret_target is sealed, has the mesh as mesh 0, the tensors of src in their order (their numbers
 * are the same) with fingerprints (but for what is reduced), and no places or pieces. note may be
 * NULL. -EINVAL: the mesh or a rule cannot be read (which, where in it, what to write there), a
 * rule matches nothing or names what is not there: all of them in the error; -ENOMEM.
 */
int target_make(const struct table *src, const char *mesh, const struct target_rule *rule,
		uint32_t nrule, struct table *ret_target, target_note_fn *note, void *arg,
		struct ckpt_err *err);

/*
 * Of the tensors that have no placements and that no rule names, how they are placed, and what the
 * mesh costs. If grid is set and a tensor's pieces in src are the grid that torch.chunk makes, each
 * dimension that the grid cuts is a Shard: the one with most chunks first, over the mesh dimension
 * of as many ranks, else the largest that it can fill (of equals the first). Any other tensor is
 * cut along dimension 0 over the largest mesh dimension that has at most as many ranks as it has
 * indices there. Blobs, and tensors that fill none, stay complete on every rank.
 *
 * target: of target_make with the same src and rules; it is sealed again. grid needs the pieces of
 * src.
 * -ENOMEM, -E2BIG.
 */
struct target_settled {
	uint32_t ngrid, nspread,
		nwhole; /* tensors: by their chunks, along dimension 0, on every rank */
	/* Bit per dimension of the mesh, larger than 1, that no mesh of src has; uncut: and that
	 * cuts less (in bytes) than it leaves uncut of what no rule names, so that its ranks hold
	 * copies. */
	uint32_t fresh, uncut;
	uint32_t nlost; /* tensors that were cut, that no rule names, and that nothing cuts now */
	uint64_t bytes,
		held_bytes; /* of tensors and blobs of all ranks; what the ranks hold together.
				     * UINT64_MAX: more than can be counted */
};
int target_settle(const struct table *src, bool grid, const struct target_rule *rule,
		  uint32_t nrule, struct table *target, struct target_settled *ret,
		  struct ckpt_err *err);

/* Which tensors the rules place, ret[src->ntensor]. IN_PART: a Shard of the rule is along a
 * dimension that the tensor does not have. Rules and mesh are those of target_make, which has taken
 * them. -ENOMEM. */
enum target_placed { TARGET_FREE, TARGET_PLACED, TARGET_PLACED_IN_PART };
int target_placed(const struct table *src, const struct mesh *m, const struct target_rule *rule,
		  uint32_t nrule, uint8_t *ret, struct ckpt_err *err);

/*
 * What a rank of it holds: the same tensors (same numbers) and one place, "rank R", in which the
 * rank's shares, and the blobs that it carries, lie row-major one behind the other, each on a
 * multiple of 64 bytes, in the order of the tensors. Nothing of a SINK: no checkpoint has any.
 * Sealed. -EINVAL: there is no such rank; -EOVERFLOW: its bytes cannot be counted; -ENOMEM.
 */
int target_rank(const struct table *target, uint32_t rank, struct table *ret_table,
		struct ckpt_err *err);
/* The same for the ranks first .. first + n - 1 at once, a place each. */
int target_ranks(const struct table *target, uint32_t first, uint32_t n, struct table *ret_table,
		 struct ckpt_err *err);
uint32_t target_world(const struct table *target); /* ranks of its mesh */
#endif
