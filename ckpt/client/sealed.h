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
		bool on_devices; /* all of it */
	} * name;
	struct source_span { /* of each tensor ascending and apart */
		uint64_t from, to;
		uint32_t device; /* 0: in host memory; 1 + the number of the device */
	} * span;
};
struct sources *sources_ref(struct sources *s);
void sources_unref(struct sources *s); /* NULL is fine */
/* Sorts spans, and makes one of those that touch, on one device. Returns how many are left. */
uint32_t sources_merge(struct source_span *span, uint32_t n);
/* The one of them, merged, that has all of [from, to); NULL: there is none. */
const struct source_span *sources_in(const struct source_span *span, uint32_t n, uint64_t from,
				     uint64_t to);

/* Rows are copied in units of about this many bytes: between two of them the copier looks whether
 * the snapshot still goes on. A row counts as SEALED_ROW_COST bytes more, because a call of its own
 * takes as long. */
#define SEALED_UNIT ((uint64_t)1 << 20)
#define SEALED_ROW_COST ((uint64_t)1 << 10)

struct sealed_slot {
	_Atomic uint32_t refs;
	uint64_t dev, ino;
	struct device_handle *device; /* that knows it as a target; NULL: none does */
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
	struct sealed_at *unit; /* [nunit + 1] of host memory */
	uint8_t *on;		/* [nrow] as source_span.device; NULL: all are in host memory */
	/* [nrow] the copier's: in snapshots with a turn it is copied in turns; NULL: none is */
	bool *in_turns;
	uint32_t nwhole; /* the copier's: so many of whole[] (turns.h) are not any more */
	uint32_t nqueue;
	struct sealed_queue { /* the rows of a device */
		uint32_t device, nrow;
		/* [nrow], and behind them those of replicas: of turn k [first[k], first[k + 1]) */
		uint32_t *row;
		uint32_t first[WIRE_REPLICA_TURNS + 1];
		uint64_t bytes; /* without those of replicas */
	} * queue;		/* [nqueue] */
	/* The rows of replicas in host memory: nrow is 0 */
	struct sealed_queue replicas;
};

/* Maps what SEALED brought: fd[0..nslot) slots, then the rows if there are any; they stay the
 * caller's.
 * before: may be NULL; slots that it has are shared. segment_bytes: of the rank's segments.
 * -EPROTO: a row leaves its bounds; -ENOMEM, ... */
int sealed_make(const struct wire_sealed *m, const int *fd, const struct sealed *before,
		struct sources *sources, const uint64_t *segment_bytes, uint32_t nsegment,
		struct sealed **ret, struct ckpt_err *err);
/* Devices may copy to this slot from now on. */
int sealed_slot_register(struct sealed_slot *s, struct device_handle *device, struct ckpt_err *err);
struct sealed *sealed_ref(struct sealed *s);
void sealed_unref(struct sealed *s); /* NULL is fine */

/* The next piece of a unit, which goes from *at to `end`: a row for a device, of at most
 * SEALED_UNIT bytes (or one line). False: it is at the end. Of which row of the sealed: at->row as
 * it was before. */
bool sealed_next(const struct sealed *s, uint32_t slot, struct sealed_at *at,
		 const struct sealed_at *end, struct device_row *ret);
/* Of the rows of a device, what a snapshot copies into this slot. turn: as shared_record.turn.
 * replicas: 1 + their turn; 0: none are copied. */
struct sealed_some {
	const struct sealed_queue *rows;
	uint32_t slot, turn, replicas;
};
/* The next piece, of at most `most` bytes (or one byte more than none). at->row: an index of
 * x->rows->row; from nrow on they are replicas. False: it is at the end. */
bool sealed_queue_next(const struct sealed *s, const struct sealed_some *x, struct sealed_at *at,
		       uint64_t most, struct device_row *ret);
uint64_t sealed_queue_bytes(const struct sealed *s, const struct sealed_some *x);
/* The first n tensors of whole[] are copied whole from now on. n never shrinks. Copier. */
void sealed_whole(struct sealed *s, const _Atomic uint32_t *whole, uint32_t n);
/* Is it brought with some snapshots, to be compared, and none of what is saved? */
static inline bool sealed_replica(const struct sealed *s, uint32_t row)
{
	return s->row[row].flags & WIRE_ROW_REPLICA;
}
/* Does the library copy this row, from host memory, with each snapshot? */
static inline bool sealed_host_row(const struct sealed *s, uint32_t row)
{
	return s->row[row].flags & WIRE_ROW_CLIENT && !sealed_replica(s, row) &&
	       !(s->on && s->on[row]);
}
/* Has the library anything to copy? */
static inline bool sealed_copies(const struct sealed *s)
{
	return s->own_bytes || s->nqueue || s->replicas.row;
}
#endif
