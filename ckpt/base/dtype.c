/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.c - the tables behind dtype.h, indexed by the numbers that are on disk. */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/ckpt.h"

static const struct {
	const char *name;
	uint32_t bytes;
} dtypes[] = {
	[CKPT_BOOL] = { "BOOL", 1 },	   [CKPT_U8] = { "U8", 1 },
	[CKPT_I8] = { "I8", 1 },	   [CKPT_F8_E4M3] = { "F8_E4M3", 1 },
	[CKPT_F8_E5M2] = { "F8_E5M2", 1 }, [CKPT_F8_E8M0] = { "F8_E8M0", 1 },
	[CKPT_U16] = { "U16", 2 },	   [CKPT_I16] = { "I16", 2 },
	[CKPT_F16] = { "F16", 2 },	   [CKPT_BF16] = { "BF16", 2 },
	[CKPT_U32] = { "U32", 4 },	   [CKPT_I32] = { "I32", 4 },
	[CKPT_F32] = { "F32", 4 },	   [CKPT_U64] = { "U64", 8 },
	[CKPT_I64] = { "I64", 8 },	   [CKPT_F64] = { "F64", 8 },
	[CKPT_C64] = { "C64", 8 },	   [CKPT_C128] = { "C128", 16 },
	[CKPT_C32] = { "C32", 4 },	   [CKPT_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 1 },
	[CKPT_F4] = { "F4", 1 },	   [CKPT_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 1 },
};

static const char *const roles[] = {
	[CKPT_OTHER] = "other",	    [CKPT_PARAM] = "param",	[CKPT_MASTER] = "master",
	[CKPT_MOMENT1] = "moment1", [CKPT_MOMENT2] = "moment2", [CKPT_BUFFER] = "buffer",
	[CKPT_AVERAGE] = "average", [CKPT_COUNTER] = "counter",
};

static const char *const classes[] = {
	[CKPT_STABLE] = "stable",   [CKPT_VOLATILE] = "volatile", [CKPT_CONST] = "const",
	[CKPT_DERIVED] = "derived", [CKPT_SINK] = "sink",
};

static const char *const medias[] = {
	[CKPT_RAW] = "raw",	      [CKPT_MEDIA_JSON] = "json",
	[CKPT_MEDIA_TEXT] = "text",   [CKPT_MEDIA_PICKLE] = "pickle",
	[CKPT_MEDIA_TORCH] = "torch", [CKPT_MEDIA_NPY] = "npy",
};

uint32_t dtype_bytes(uint32_t dtype)
{
	return dtype < ARRAY_LEN(dtypes) ? dtypes[dtype].bytes : 0;
}

uint32_t dtype_values(uint32_t dtype)
{
	return dtype == CKPT_F4 ? 2 : 1;
}

const char *dtype_name(uint32_t dtype)
{
	return dtype_bytes(dtype) ? dtypes[dtype].name : "?";
}

uint32_t dtype_of_name(const char *name)
{
	for (uint32_t i = 1; i < ARRAY_LEN(dtypes); i++)
		if (!strcmp(dtypes[i].name, name))
			return i;
	return 0;
}

enum dtype_kind dtype_kind(uint32_t dtype)
{
	if (dtype == CKPT_F16 || dtype == CKPT_BF16 || dtype == CKPT_F32 || dtype == CKPT_F64)
		return DTYPE_FLOAT;
	return *dtype_name(dtype) == 'F' ? DTYPE_SMALL_FLOAT : DTYPE_OTHER;
}

const char *role_name(uint32_t role)
{
	return role < ARRAY_LEN(roles) ? roles[role] : "?";
}

const char *class_name(uint32_t cls)
{
	return cls < ARRAY_LEN(classes) ? classes[cls] : "?";
}

const char *media_name(uint32_t media)
{
	return media < ARRAY_LEN(medias) ? medias[media] : "?";
}
