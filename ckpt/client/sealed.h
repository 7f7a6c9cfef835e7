/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sealed.h - the contents of one SEALED, for copier and canary: the slots, mapped once for all
 * of them, and the rows of the copy (wire.h). The canary looks at slots, the copier writes to them.
 *
 * A sealed is immutable and counted: the handle has one, a copy under way and a canary's map one
 * each. The slots are counted too, because a later rev has other rows and the same slots. So
 * nothing is unmapped while a thread may touch it.
 *
 * What is checked here and nowhere later: every row stays in the slot; its source stays in a
 * segment, or, if the library is to copy it, in memory that this rank has declared for that tensor.
 * Whatever a daemon sends, nothing else is read or written.
 */
#ifndef CKPT_CLIENT_SEALED_H
#define CKPT_CLIENT_SEALED_H
#include "ckpt/device/device.h"
#include "ckpt/wire/wire.h"

/* What tensors are called, and where their own memory lies: of one declaration, by the numbers that
 * tensors have there. Names are of the handle's arena. Counted. */
struct sources {
	_Atomic uint32_t refs;
	uint32_t nname, nspan;
	struct source_name {
		const char *component, *name;
		uint32_t first, nspan;
	} * name;
	struct source_span { /* of each tensor ascending and apart */
		uint64_t from, to;
	} * span;
};
struct sources *sources_ref(struct sources *s);
void sources_unref(struct sources *s); /* NULL is fine */
/* Sorts spans, and makes one of those that touch. Returns how many are left. */
uint32_t sources_merge(struct source_span *span, uint32_t n);
/* Does one of them, merged, have all of [from, to)? */
bool sources_in(const struct source_span *span, uint32_t n, uint64_t from, uint64_t to);

/* Rows are copied in units of about this many bytes: between two of them the copier looks whether
 * the snapshot still goes on. A row counts as SEALED_ROW_COST bytes more, because a call of its own
 * takes as long. */
#define SEALED_UNIT ((uint64_t)1 << 20)
#define SEALED_ROW_COST ((uint64_t)1 << 10)

struct sealed_slot {
	_Atomic uint32_t refs;
	uint64_t dev, ino;
	const struct device_ops *ops; /* that know it as a target; NULL: none */
	struct device_handle *device;
	struct device_target at;
	uint64_t prepared; /* the helper's: so much of it is mapped for writing */
};

struct sealed_at { /* a place in the rows: byte `in` of a line */
	uint32_t row;
	uint64_t line, in;
};

struct sealed {
	_Atomic uint32_t refs;
	uint32_t epoch, rev, nslot, nrow;
	uint64_t slot_bytes;
	struct sealed_slot *slot[WIRE_SLOTS_MAX];
	const struct wire_row *row;
	struct sources *sources;
	uint64_t own_bytes; /* of the rows that the library copies */
	uint64_t own_end;   /* they lie before this byte of the slot; averages behind it */
	uint32_t others;    /* rows that the daemon copies */
	uint32_t nunit;
	struct sealed_at *unit; /* [nunit + 1] */
};

/* Maps what SEALED brought: fd[0..nslot) slots, then the rows if there are any; they stay the
 * caller's.
 * before: may be NULL; slots that it has are shared. segment_bytes: of the rank's segments.
 * -EPROTO: a row leaves its bounds; -ENOMEM, ... */
int sealed_make(const struct wire_sealed *m, const int *fd, const struct sealed *before,
		struct sources *sources, struct device_handle *device,
		const uint64_t *segment_bytes, uint32_t nsegment, struct sealed **ret,
		struct ckpt_err *err);
struct sealed *sealed_ref(struct sealed *s);
void sealed_unref(struct sealed *s); /* NULL is fine */

/* The next piece of a unit, which goes from *at to `end`: a row for a device, of at most
 * SEALED_UNIT bytes (or one line). False: it is at the end. Of which row of the sealed: at->row as
 * it was before. */
bool sealed_next(const struct sealed *s, uint32_t slot, struct sealed_at *at,
		 const struct sealed_at *end, struct device_row *ret);
#endif
