/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_impl.h - what the files of this room say to each other: one header, one index. */
#ifndef CKPT_SAFETENSORS_IMPL_H
#define CKPT_SAFETENSORS_IMPL_H
#include "ckpt/base/strmap.h"
#include "formats/format.h"
#include "formats/json/json.h"
#include "formats/safetensors/safetensors.h"

#define SAFETENSORS_ENDING ".safetensors"
#define SAFETENSORS_INDEX_ENDING ".safetensors.index.json"
#define SAFETENSORS_INDEX "model.safetensors.index.json"
#define SAFETENSORS_SHARDING "DCP_SHARDING_INFO"
#define SAFETENSORS_BLOB "ckpt.blob:"	 /* and the name that a blob has in the file */
#define SAFETENSORS_BLOB_RANK ", rank "	 /* behind its media type, and the number, of one rank's */
#define SAFETENSORS_OURS "ckptd"	 /* in every file that ckptctl writes: its version */
#define SAFETENSORS_RANK "rank"		 /* of an export by rank */
#define SAFETENSORS_SOURCE "ckpt.source" /* of an export by rank whose source has no id */
#define SAFETENSORS_ATTR "ckpt.attr:"	 /* and the key of an attribute that would read as a tie */
#define SAFETENSORS_ATTRS_MAX \
	65000u /* strings that become attributes: what a program may declare */

/* One entry of a header. shape in elements (of F4: bytes). */
struct header_tensor {
	char *name; /* in the header's bytes, with a 0 behind it */
	uint32_t dtype, ndim;
	uint64_t shape[CKPT_DIMS_MAX];
	uint64_t begin, end; /* of the data */
};

/* Whom header_read gives what it finds; < 0 ends it. at: for json_fail. key and value lie in the header's
 * bytes, and may be changed. */
struct header_sink {
	int (*meta)(void *arg, char *key, char *value);
	int (*tensor)(void *arg, const struct header_tensor *x, struct json *j,
		      const struct json_token *at);
	void *arg;
};

/*
 * Read a header of len bytes, in front of data_bytes of data: first all of "__metadata__", then
 * every tensor, in the order of the header. The bytes are changed. Checks what the reference reader
 * checks, and that each byte of the data belongs to exactly one tensor. -EPROTO malformed; -EBADMSG
 * the file is shorter than its tensors; -EPROTONOSUPPORT a dtype, rank or name that this program
 * has not; -ENOMEM.
 */
int header_read(void *bytes, uint64_t len, uint64_t data_bytes, const char *what,
		const struct header_sink *to, struct ckpt_err *err);

/* The same of "__metadata__" alone: what lies behind it is not read. to->tensor may be NULL. */
int header_meta(void *bytes, uint64_t len, const char *what, const struct header_sink *to,
		struct ckpt_err *err);
/* The JSON text of a file, malloc'ed. -EBADMSG: the file is cut; -EPROTO: too long a header; what
 * reading said; -ENOMEM. */
int header_load(const struct source *src, const char *name, void **ret, uint64_t *ret_len,
		struct ckpt_err *err);

/* The weight_map of an index: tensor number i of `tensor` is in file of[i] of `file`. */
struct weight_index {
	struct strmap tensor, file;
	uint32_t *of;
};
/* The bytes are changed: names lie in them, each with a 0 behind it. All else lives in a. */
int weight_index_read(void *bytes, uint64_t len, const char *what, struct arena *a,
		      struct weight_index *ret, struct ckpt_err *err);

/*
 * DCP_SHARDING_INFO: which part of its tensor each tensor of a file is. DCP has the offsets alone;
 * an export by rank has instead of them, where the part is no box, "placements" on the mesh of the
 * metadata (layout_parse) and the shape of all of it.
 */
struct sharding {
	struct strmap tensor;
	struct shard {
		uint32_t n, nshape;
		const uint64_t *at;	/* [n] */
		const uint64_t *shape;	/* [nshape] */
		const char *placements; /* NULL: a box from `at` on */
	} * of;				/* [tensor.map.n], the caller frees it */
};
/* ret is empty. The text is changed: names lie in it. All else lives in a. */
int sharding_read(char *text, const char *what, struct arena *a, struct sharding *ret,
		  struct ckpt_err *err);

/* Text that is counted where at is NULL, else written. */
struct header_text {
	char *at;
	uint64_t len;
};
void header_put(struct header_text *t, const char *s, size_t n);
void header_put_text(struct header_text *t, const char *s);
void header_put_number(struct header_text *t, uint64_t x);
void header_put_string(struct header_text *t, const char *s); /* in quotes, escaped as JSON */

/* "w" behind 0, or -EPROTONOSUPPORT where the text has a 0 in it. The text ends in one
 * afterwards. */
int json_name_take(struct json *j, const struct json_token *t, char **ret);

/* Of format_safetensors. */
bool safetensors_says(const struct checkpoint_attr *attr, char why[FORMAT_WHY]);
bool safetensors_holds(const struct table *t, uint32_t tensor, char why[FORMAT_WHY]);
int safetensors_sheet(const struct table *target, const struct format_want *want,
		      struct sheet **ret, struct ckpt_errlist *cannot, struct ckpt_err *err);
int safetensors_fill(const struct sheet *s, uint32_t run, const struct sheet_state *state,
		     struct arena *a, const void **ret, uint64_t *ret_len, struct hash128 *ret_seal,
		     struct ckpt_err *err);
void safetensors_sheet_end(struct sheet *s);
#endif
