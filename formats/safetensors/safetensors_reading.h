/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors_reading.h - one opening of safetensors files, while it lasts. */
#ifndef CKPT_SAFETENSORS_READING_H
#define CKPT_SAFETENSORS_READING_H
#include "formats/safetensors/safetensors_format.h"
#include "formats/safetensors/safetensors_impl.h"
#include "formats/safetensors/safetensors_origin.h"

/* A set of elements that several pieces have: its bounds are the key. */
struct sets {
	struct strmap map;
	struct indexset *set;
	uint32_t cap;
};

struct texts {
	struct strmap map;
	const char **value; /* [map.map.n] */
	uint32_t cap;
};

struct reading {
	const struct format_open *how;
	struct checkpoint *c;
	struct table *t;
	struct ckpt_err *err;
	struct arena tmp;
	struct sets sets;
	struct strmap components;
	struct strmap replicas; /* (tensor, set) of each piece of tensors in several files */
	struct weight_index index;
	bool *seen;			   /* [index.tensor.map.n] it was in its file */
	bool has_index, boxed;		   /* boxed: a file has sharding info */
	struct safetensors_origin *origin; /* [c->nfile] */
	/* of the file that is being read */
	struct arena file_tmp;
	const char *name;
	uint32_t file;
	uint64_t data_off;
	struct sharding sharding;
	struct texts blobs; /* SAFETENSORS_BLOB, by their names in the file */
	bool sharded, ours, slashed;
	bool prefixed;	  /* a file has names with components in front */
	const char *mesh; /* an export's; NULL */
	uint64_t rank;
	/* [ntensor] the file that had the tensor last */
	uint32_t *last;
	uint32_t last_cap;
	struct texts meta;
};

/* header_sink.tensor; arg: the reading. */
int reading_tensor(void *arg, const struct header_tensor *x, struct json *j,
		   const struct json_token *at);
#endif
