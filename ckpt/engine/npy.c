/* SPDX-License-Identifier: Apache-2.0 */
/* npy.c - see npy.h. Called by cat. */
#include "ckpt/engine/npy.h"
#include "ckpt/base/util.h"
#include "ckpt/ckpt.h"
#include <stdio.h>

#define MAGIC 10 /* bytes before the text: magic, version, its length */

static const struct {
	const char *descr, *view;
} dtypes[] = {
	[CKPT_BOOL] = { "|b1", NULL },
	[CKPT_U8] = { "|u1", NULL },
	[CKPT_I8] = { "|i1", NULL },
	[CKPT_F8_E4M3] = { "|u1", "float8_e4m3fn" },
	[CKPT_F8_E5M2] = { "|u1", "float8_e5m2" },
	[CKPT_F8_E8M0] = { "|u1", "float8_e8m0fnu" },
	[CKPT_U16] = { "<u2", NULL },
	[CKPT_I16] = { "<i2", NULL },
	[CKPT_F16] = { "<f2", NULL },
	[CKPT_BF16] = { "<u2", "bfloat16" },
	[CKPT_U32] = { "<u4", NULL },
	[CKPT_I32] = { "<i4", NULL },
	[CKPT_F32] = { "<f4", NULL },
	[CKPT_U64] = { "<u8", NULL },
	[CKPT_I64] = { "<i8", NULL },
	[CKPT_F64] = { "<f8", NULL },
	[CKPT_C64] = { "<c8", NULL },
	[CKPT_C128] = { "<c16", NULL },
	[CKPT_C32] = { "<u4", "float16" },
	[CKPT_F8_E4M3FNUZ] = { "|u1", "float8_e4m3fnuz" },
	[CKPT_F8_E5M2FNUZ] = { "|u1", "float8_e5m2fnuz" },
	[CKPT_F4] = { "|u1", NULL },
};

const char *npy_descr(uint32_t dtype)
{
	return dtype < ARRAY_LEN(dtypes) ? dtypes[dtype].descr : NULL;
}

const char *npy_view(uint32_t dtype)
{
	return dtype < ARRAY_LEN(dtypes) ? dtypes[dtype].view : NULL;
}

uint32_t npy_header(uint32_t dtype, uint32_t ndim, const uint64_t *shape,
		    uint8_t ret[NPY_HEADER_MAX])
{
	char text[NPY_HEADER_MAX];
	size_t len, all;

	if (!npy_descr(dtype) || ndim > CKPT_DIMS_MAX)
		return 0;
	len = (size_t)snprintf(text, sizeof text,
			       "{'descr': '%s', 'fortran_order': False, 'shape': (",
			       npy_descr(dtype));
	for (uint32_t d = 0; d < ndim; d++)
		len += (size_t)snprintf(text + len, sizeof text - len, "%s%llu%s", d ? " " : "",
					(unsigned long long)shape[d],
					d + 1 < ndim || ndim == 1 ? "," : "");
	len += (size_t)snprintf(text + len, sizeof text - len, "), }");
	all = align_up(MAGIC + len + 1, 64);
	memset(ret, ' ', all);
	memcpy(ret, "\x93NUMPY\x01\x00", 8);
	ret[8] = (uint8_t)((all - MAGIC) & 0xff);
	ret[9] = (uint8_t)((all - MAGIC) >> 8);
	memcpy(ret + MAGIC, text, len);
	ret[all - 1] = '\n';
	return (uint32_t)all;
}
