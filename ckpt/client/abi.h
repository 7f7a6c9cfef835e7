/* SPDX-License-Identifier: Apache-2.0 */
/*
 * abi.h - how structures of ckpt.h come in and go out, whichever version of the header the caller
 * was compiled with. This header is its specification; every call that takes such a structure uses
 * it.
 *
 * New fields are appended. The library reads the fields that the caller's structure has, and takes
 * zero for the others. It refuses flags that it does not know. It writes only as many bytes as the
 * caller's structure has.
 */
#ifndef CKPT_CLIENT_ABI_H
#define CKPT_CLIENT_ABI_H
#include "ckpt/ckpt.h"
#include <stddef.h>

enum abi_struct { ABI_OPTS, ABI_TENSOR, ABI_MARK, ABI_WANT, ABI_GOT, ABI_STATS };

/* Copy a structure that the library reads; from begins with its .size. -EINVAL: from is NULL, or
 * shorter than in ABI 2. -EOPNOTSUPP: it is longer than ours, and not zero there. */
int abi_take(enum abi_struct which, void *to, const void *from, struct ckpt_err *err);
/* May *to, which begins with its .size, be written? 0; -EINVAL: it has no space for .size and the
 * word behind it. Asked before anything is done. */
int abi_size(enum abi_struct which, const void *to, struct ckpt_err *err);
/* Write at most .size bytes of *from to *to; .size stays as it is. */
void abi_give(enum abi_struct which, void *to, const void *from);
/* Flags that this version does not know: -EOPNOTSUPP. field: "ckpt_opts.flags" */
int abi_flags(const char *field, uint32_t flags, uint32_t known, struct ckpt_err *err);
#endif
