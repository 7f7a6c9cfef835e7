// SPDX-License-Identifier: Apache-2.0
// abi.c - see abi.h. Called by whatever takes or fills a structure of ckpt.h.
// Invariant: no byte beyond the caller's .size is read or written.
#include "ckpt/client/abi.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"

#define SIZE_MAX_SANE 65536u /* a .size beyond that was never set */

/* least: the size in ABI 2, which stays when fields are appended. */
static const struct {
	const char *name;
	uint32_t bytes, least;
} known[] = {
	[ABI_OPTS] = { "ckpt_opts", sizeof(struct ckpt_opts), 128 },
	[ABI_TENSOR] = { "ckpt_tensor", sizeof(struct ckpt_tensor), 88 },
	[ABI_MARK] = { "ckpt_mark", sizeof(struct ckpt_mark), 40 },
	[ABI_WANT] = { "ckpt_want", sizeof(struct ckpt_want), 32 },
	[ABI_GOT] = { "ckpt_got", sizeof(struct ckpt_got), 8 },
	[ABI_STATS] = { "ckpt_stats", sizeof(struct ckpt_stats), 8 },
};
_Static_assert(sizeof(struct ckpt_opts) >= 128 && sizeof(struct ckpt_tensor) >= 88 &&
		       sizeof(struct ckpt_mark) >= 40 && sizeof(struct ckpt_want) >= 32,
	       "structures only grow");

/* Without .size, by which these never grow; to be filled by the caller; or the library's own. */
static const struct {
	const char *name;
	uint32_t bytes;
} others[] = {
	{ "ckpt_err", sizeof(struct ckpt_err) },
	{ "ckpt_placement", sizeof(struct ckpt_placement) },
	{ "ckpt_local", sizeof(struct ckpt_local) },
	{ "ckpt_note", sizeof(struct ckpt_note) },
	{ "ckpt_step", sizeof(struct ckpt_step) },
	{ "ckpt_stream", sizeof(struct ckpt_stream) },
	{ "ckpt_tensor_info", sizeof(struct ckpt_tensor_info) },
};

static uint32_t size_of(const void *p)
{
	uint32_t size;

	memcpy(&size, p, sizeof size);
	return size;
}

static int too_small(enum abi_struct which, const void *p, struct ckpt_err *err)
{
	return ckpt_error(err, -EINVAL, "%s.size is %u: it must be sizeof(struct %s)",
			  known[which].name, size_of(p), known[which].name);
}

int abi_take(enum abi_struct which, void *to, const void *from, struct ckpt_err *err)
{
	uint32_t ours = known[which].bytes, size;
	const uint8_t *byte = from;

	if (!from)
		return ckpt_error(err, -EINVAL, "the pointer to struct %s is NULL",
				  known[which].name);
	size = size_of(from);
	if (size < known[which].least || size > SIZE_MAX_SANE)
		return too_small(which, from, err);
	for (uint32_t i = ours; i < size; i++)
		if (byte[i])
			return ckpt_error(
				err, -EOPNOTSUPP,
				"%s has fields after byte %u that this library (%s) does not "
				"know: set them to zero, or use a newer library",
				known[which].name, ours, CKPT_VERSION);
	memset(to, 0, ours);
	memcpy(to, from, MIN(ours, size));
	return 0;
}

int abi_size(enum abi_struct which, const void *to, struct ckpt_err *err)
{
	return size_of(to) < known[which].least ? too_small(which, to, err) : 0;
}

void abi_give(enum abi_struct which, void *to, const void *from)
{
	const uint32_t head = sizeof(uint32_t), bytes = MIN(known[which].bytes, size_of(to));

	memcpy((uint8_t *)to + head, (const uint8_t *)from + head, bytes - head);
}

int abi_flags(const char *field, uint32_t flags, uint32_t all, struct ckpt_err *err)
{
	if (!(flags & ~all))
		return 0;
	return ckpt_error(err, -EOPNOTSUPP,
			  "%s 0x%x: this library (%s) does not know the bits 0x%x", field, flags,
			  CKPT_VERSION, flags & ~all);
}

uint32_t ckpt_sizeof(const char *structure)
{
	for (size_t i = 0; structure && i < ARRAY_LEN(known); i++)
		if (strcmp(structure, known[i].name) == 0)
			return known[i].bytes;
	for (size_t i = 0; structure && i < ARRAY_LEN(others); i++)
		if (strcmp(structure, others[i].name) == 0)
			return others[i].bytes;
	return 0;
}
