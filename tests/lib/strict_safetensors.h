/* SPDX-License-Identifier: Apache-2.0 */
/*
 * strict_safetensors.h - a reader of safetensors files for tests, as strict as the format's own
 * description and written without a look at our writer: so that "anybody can load it" is checked by
 * somebody else. It refuses what the reference reader refuses, duplicate names, and members that
 * the format does not know. Include strict_safetensors.c into the test.
 */
#ifndef TESTS_STRICT_SAFETENSORS_H
#define TESTS_STRICT_SAFETENSORS_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct strict_tensor {
	char *name, *dtype;
	uint32_t ndim;
	uint64_t shape[16];
	uint64_t begin, end; /* of the data */
};

struct strict_meta {
	char *key, *value;
};

struct strict_file {
	uint8_t *bytes;	    /* the whole file */
	uint64_t len, data; /* data: where it begins */
	uint32_t ntensor, nmeta;
	struct strict_tensor *tensor; /* in the header's order */
	struct strict_meta *meta;
};

/* true, or false with the reason. bytes are copied. Free it in either case. */
bool strict_parse(const void *bytes, uint64_t len, struct strict_file *ret, char why[200]);
bool strict_load(const char *path, struct strict_file *ret, char why[200]);
void strict_free(struct strict_file *f);
/* NULL: there is none */
const struct strict_tensor *strict_find(const struct strict_file *f, const char *name);
const char *strict_meta(const struct strict_file *f, const char *key);
#endif
