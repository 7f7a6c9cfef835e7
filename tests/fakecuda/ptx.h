/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ptx.h - runs kernels that are PTX text, thread by thread, with the arithmetic of the PTX ISA: so
 * the kernels that a GPU would run are what runs on the fake driver too. Called by fake_kernel.c.
 *
 * It takes the part of PTX that kernels of tests need: .entry with .param of numbers and addresses,
 * .reg, labels, predicates, integer and single-precision arithmetic, loads and stores of global
 * memory, one-dimensional grids. A sum or product of floats without ".rn" is refused:
 * there ptxas is free to fuse it, and results would differ. The blocks of a launch run one after
 * the other, the threads of a block in step.
 */
#ifndef TESTS_FAKECUDA_PTX_H
#define TESTS_FAKECUDA_PTX_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PTX_PARAMS_MAX 24
#define PTX_THREADS_MAX 1024
#define PTX_WHY_BYTES 200

struct ptx_module;
struct ptx_kernel;

/* Device memory that the host may touch: [at, at + bytes) lies at `host`. */
struct ptx_memory {
	uint64_t at, bytes;
	uint8_t *host;
};
/* Fills in what contains this address; false: nothing does. */
typedef bool ptx_memory_fn(uint64_t at, struct ptx_memory *ret);

enum ptx_end { PTX_DONE, PTX_NO_MEMORY_THERE, PTX_MISALIGNED };

/* NULL: why has a sentence with the line. */
struct ptx_module *ptx_load(const char *text, char why[PTX_WHY_BYTES]);
void ptx_unload(struct ptx_module *m);
const struct ptx_kernel *ptx_find(const struct ptx_module *m, const char *name);
/* Fills in their sizes; returns their number. */
unsigned ptx_params(const struct ptx_kernel *k, size_t ret_bytes[PTX_PARAMS_MAX]);
enum ptx_end ptx_run(const struct ptx_kernel *k, void *const *param, unsigned blocks,
		     unsigned threads, ptx_memory_fn *memory);
#endif
