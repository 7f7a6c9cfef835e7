/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - element types: their sizes and the names that safetensors gives them; names of other
 * enums of ckpt.h. */
#ifndef CKPT_BASE_DTYPE_H
#define CKPT_BASE_DTYPE_H
#include <stdint.h>

uint32_t dtype_bytes(uint32_t dtype); /* 1..16; 0: unknown dtype */
/* Values that people count in an element: 2 of F4, whose element is a byte of two, the low half
 * first, side by side in the last dimension; else 1. */
uint32_t dtype_values(uint32_t dtype);
const char *dtype_name(uint32_t dtype);	  /* "BF16"; "?" for an unknown one */
uint32_t dtype_of_name(const char *name); /* 0: unknown */
/* Floats that are cast to one another (ckpt/move/cast.h), floats that are not, and all others. */
enum dtype_kind { DTYPE_OTHER, DTYPE_FLOAT, DTYPE_SMALL_FLOAT };
enum dtype_kind dtype_kind(uint32_t dtype);
const char *role_name(uint32_t role);	/* "param", "master", ... */
const char *class_name(uint32_t cls);	/* "stable", ... */
const char *media_name(uint32_t media); /* "raw", "json", ...; "?" for an unknown one */
#endif
