/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu.h - a GPU of one rank: memory for a part of the state, a stream, and the kernels that change
 * it (kernels.ptx). Called by train.c.
 *
 * It is the CUDA driver's interface, opened at run time: libcuda.so.1 of the system, or that of
 * tests/fakecuda, which a trainer finds beside itself. Like most trainers it uses the device's
 * primary context, and tells ckptd only addresses and the stream.
 *
 * All but gpu_sync is queued on the stream and returns at once; the bytes that gpu_put reads and
 * gpu_get writes belong to the device until gpu_sync has returned. 0, or a negative errno; then
 * gpu_why has the sentence.
 */
#ifndef TRAINER_GPU_H
#define TRAINER_GPU_H
#include "model.h"

#include <stdbool.h>

#define GPUS_MAX 4

struct gpu;

/* Rows [0, rows) of a tensor and all that belongs to it. Rows of both moments are `pitch` elements
 * apart, the others lie one behind the other. All are addresses of the device. */
struct gpu_part {
	uint64_t rows, cols, pitch;
	uint64_t param, master, moment1, moment2, grad;
	uint64_t count, ncount; /* of what forward has counted: see gpu_forward */
};

/* fake: the path of tests/fakecuda's library, or NULL for the system's. legacy: the stream is the
 * legacy default stream (NULL), instead of one of the trainer's own that does not wait for it. */
int gpu_open(const char *fake, uint32_t number, bool legacy, struct gpu **ret_gpu);
const char *gpu_why(const struct gpu *g);
const char *gpu_name(const struct gpu *g);
void *gpu_stream(const struct gpu *g); /* as ckpt_mark.stream has it */

/* An allocation of its own; the address is `skew` bytes behind its beginning. */
int gpu_alloc(struct gpu *g, uint64_t bytes, uint64_t skew, uint64_t *ret_at);
/* The device may copy to and from this memory of the host by itself. */
int gpu_pin(struct gpu *g, void *p, uint64_t bytes);
/* Rows of the host lie one behind the other, those of the device to_pitch or from_pitch apart. */
int gpu_put(struct gpu *g, uint64_t to, uint64_t to_pitch, const void *from, uint64_t row_bytes,
	    uint64_t rows);
int gpu_get(struct gpu *g, void *to, uint64_t from, uint64_t from_pitch, uint64_t row_bytes,
	    uint64_t rows);
int gpu_sync(struct gpu *g);

/* A forward pass: reads the masters, adds 2i + 1 to count[i], and takes at least so long. */
int gpu_forward(struct gpu *g, const struct gpu_part *p, uint64_t wait_ns);
/* The optimizer: the bits of model_update. */
int gpu_update(struct gpu *g, const struct gpu_part *p, const struct model_adam *a);
#endif
