/* SPDX-License-Identifier: Apache-2.0 */
/*
 * npy.h - the header of numpy's .npy files, version 1.0: behind it the elements follow row-major,
 * little-endian. Source: NEP 1 and numpy/lib/format.py. (2.0 is for headers above 64 KiB; a shape
 * of 16 dimensions is far from it.)
 *
 * numpy has no bfloat16 and no 8-bit floats. They are written as the unsigned integers of their
 * size, which every numpy reads, and viewed as what they are behind that:
 *	BF16	<u2	np.load(f).view(ml_dtypes.bfloat16)
 *	F8_*	|u1	np.load(f).view(ml_dtypes.float8_e4m3fn), float8_e5m2, float8_e8m0fnu,
 *			float8_e4m3fnuz, float8_e5m2fnuz
 *	C32	<u4	np.load(f).view(np.float16): real, imaginary, real, ...
 *	F4	|u1	bytes of two values, the low half first; the shape counts bytes
 */
#ifndef CKPT_ENGINE_NPY_H
#define CKPT_ENGINE_NPY_H
#include <stdint.h>

#define NPY_HEADER_MAX 1024

const char *npy_descr(uint32_t dtype); /* "<f4"; NULL: unknown dtype */
/* "bfloat16", of ml_dtypes; of C32 "float16", of numpy; NULL: numpy has the dtype, or (F4) there is
 * nothing to view it as. */
const char *npy_view(uint32_t dtype);
/* Returns its length, a multiple of 64; 0: unknown dtype, or more than CKPT_DIMS_MAX dimensions. */
uint32_t npy_header(uint32_t dtype, uint32_t ndim, const uint64_t *shape,
		    uint8_t ret[NPY_HEADER_MAX]);
#endif
