/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names.h - what many tables have in common, kept once: names, shapes, index sets, and whole lists
 * of tensors, if they are the same to the byte. For the declarations of a launch, whose ranks
 * mostly say the same. Any thread; it lives as long as there is a reference, and so do all
 * tables that were packed with it.
 */
#ifndef CKPT_TABLE_NAMES_H
#define CKPT_TABLE_NAMES_H
#include "ckpt/table/table.h"

struct names;
struct names *names_new(void); /* a reference; NULL: no memory */
struct names *names_ref(struct names *n);
void names_unref(struct names *n); /* NULL is fine */
/* No more is expected: what finds equal ones is given back. What comes all the same is kept,
 * too. */
void names_settle(struct names *n);

/*
 * *ret: a sealed table that says what x does, which is sealed: in as little memory as can be, with
 * all that may be equal elsewhere in n. It does not need x any more. -ENOMEM.
 */
int table_pack(const struct table *x, struct names *n, struct table *ret);

/* For table_pack. Between these two calls: */
void names_lock(struct names *n);
void names_unlock(struct names *n);
/* the one that is equal to it; NULL: no memory. For a list of nothing some pointer that is not
 * NULL. */
const char *names_str(struct names *n, const char *s);
const void *names_bytes(struct names *n, const void *p, size_t bytes);
#endif
