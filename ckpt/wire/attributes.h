/* SPDX-License-Identifier: Apache-2.0 */
/*
 * attributes.h - the attributes that ckpt_attr declares: what one may be, and the section
 * ATTRIBUTES of a declaration that carries them. The library writes it, the daemon reads it.
 *
 * The section has rec_bytes 1: for each attribute its key and its value, both zero-terminated, in
 * the order of the keys' bytes. Keys are distinct. Only rank 0 sends it.
 */
#ifndef CKPT_WIRE_ATTRIBUTES_H
#define CKPT_WIRE_ATTRIBUTES_H
#include "ckpt/base/error.h"
#include <stdbool.h>

#define ATTRIBUTES_MAX 65000u /* ckptd adds a few to a step: at most 65,536 */
#define ATTRIBUTE_KEY_MAX (11u + 2u * CKPT_NAME_MAX + 1u) /* ckpt.alias: and a tensor's key */
#define ATTRIBUTE_VALUE_MAX 4096u
#define ATTRIBUTE_ALIAS "ckpt.alias:"

/* May a program give this attribute? 0, or -EINVAL and why. */
int attribute_check(const char *key, const char *value, struct ckpt_err *err);

/* The section's bytes: its attributes are counted and each is checked. 0; -EPROTO. Pure: fuzzed. */
int attributes_check(const void *bytes, uint64_t len, uint32_t *ret_n, struct ckpt_err *err);

/* One after the other of a section that was checked: *at is 0 first. False: there is none left. */
bool attributes_next(const char *bytes, uint64_t len, uint64_t *at, const char **ret_key,
		     const char **ret_value);
#endif
