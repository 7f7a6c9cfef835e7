/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average.h - averages of the weights (ckpt_average), between the files that make them:
 *
 *	averages.c      of a declaration: what is averaged and where it lies in the slot
 *	average.c       of a step: its update in the walk over its slots, gates, health, the slot's seal
 *	average_base.c  what the next step goes on from where no slot in memory has it
 *	average_reading.c  reads that, from a step in memory or on disk, of any mesh, or from a seed
 *
 * A slot: main raw space | const | from the next 2 MiB on: averages | last page: struct slot_seal.
 * The averages' raw space is laid out like that of any part, and is written as a part of kind
 * PART_AVERAGE. Each owned piece of an averaged tensor (the source) has one MADE piece per average,
 * with the same set of elements: so no element is averaged twice on a host, and nothing is sent.
 *
 * Invariants: an average is made of GUARDED steps alone, out of place, from the average of the
 * newest guarded step before it; it is used, written or reported only when all of it, for all ranks
 * of the host, is made (snap.averaged), and before that the slot's seal is open. Weights and
 * averages of a step are one thing: a step that wants averages is not committed without them.
 */
#ifndef DAEMON_AVERAGE_H
#define DAEMON_AVERAGE_H
#include "ckpt/move/walk.h"
#include "daemon/state.h"
#include "ema/kernel.h"
#include "ema/spec.h"

/* --- of a declaration (averages.c) --- */

/* One source piece, or one of its runs of consecutive elements, that is averaged. */
struct average_run {
	/* Raw offsets in the main part: of the bytes that bring the walk here, and of the source.
	 * They are the same but for a derived tensor that is averaged itself (source=param): what
	 * is derived and equal is in no chunk, so its master's bytes bring the walk here. at_bytes:
	 * of one element at `at`. */
	uint64_t at, src, n;	  /* n: elements */
	uint32_t at_bytes, dtype; /* dtype: of the source */
	uint32_t target, ntarget; /* in averages.target */
};
#define AVERAGE_NO_CARRY UINT64_MAX
struct average_target {
	uint32_t row;	     /* of averages.row */
	uint32_t tensor;     /* of averages.made */
	uint64_t off, carry; /* in the averages' raw space; carry: AVERAGE_NO_CARRY: no Kahan */
};
/* A tensor that is averaged, whether the rank has pieces of it or not. */
struct average_source {
	uint32_t tensor; /* of the declaration's table */
	uint32_t row;	 /* of averages.row */
	bool master;	 /* its average has the name of what its `of` names */
	bool twice;	 /* another one has that name: it has no pieces */
};
/* One row of AVERAGES: (name, rule). */
struct average_row {
	const char *name, *canonical;
	uint32_t rule, average; /* average: of averages.spec */
	const struct ema_schedule *schedule;
	bool kahan;
};
struct averages {
	uint32_t nspec, nrow, nrun, ntarget;
	struct ema_spec **spec;	 /* [nspec] one per ckpt_average, in the order of their names */
	const char **name;	 /* [nspec] */
	struct average_row *row; /* [nrow] the same on all ranks, whatever they hold */
	struct average_run *run; /* [nrun] ascending by `at` */
	struct average_target *target;
	/* The MADE tensors of which the rank has pieces, and these (with carries), one place;
	 * `made.average[i]` is row i, with the state of no step. Tensors and pieces are in the
	 * order of the raw space. */
	struct table made;
	uint64_t bytes; /* of its raw space; a multiple of 4096 */
	/* hash128 over the rows' names, rules and canonical schedules, and the names and places of
	 * all pieces: slot_seal.declared */
	uint8_t declared[16];
	/* For averages_judge: of each average, by rows; and of each spec, bit i: rule i matches
	 * some tensor that this rank declares */
	uint32_t nsource;
	struct average_source *source;
	uint64_t *hit; /* [nspec] */
	struct ckpt_errlist wrong;
};

/*
 * What a declaration's averages are. t: as declared (its averages: name and spec, rule 0); main:
 * the rank's main part, sealed; its index sets live as long as *ret does. *ret NULL: it declares
 * none. (*ret)->wrong lists what is wrong with them, a line each; such averages have no pieces.
 * averages_judge refuses them later, so that every rank gets the same list, with the mistakes of
 * all ranks. names: the made table's strings. Worker.
 * -EPROTO: a row is no canonical spec; -ENOMEM, -E2BIG, -EFBIG.
 */
int averages_make(const struct table *t, const struct table *main, uint32_t rank,
		  struct names *names, struct averages **ret, struct ckpt_err *err);
void averages_free(struct averages *a); /* NULL is fine */
/* Of all ranks' declarations, which agree: what each of them has wrong; rules that match nothing
 * anywhere; averages of nothing; names that two averaged tensors would share; a parameter that a
 * rank declares without the master that another rank has. A line each. Worker. */
void averages_judge(struct decl *const *decl, uint32_t world, struct ckpt_errlist *list);
/* Do two declarations average alike? Every average that is missing or another one is a line. */
void averages_compare(const struct decl *x, const char *x_who, const struct decl *y,
		      const char *y_who, struct ckpt_errlist *list);
/* Bytes that averages add to one slot of this declaration, the seal included; 0: it has none. */
uint64_t averages_slot_bytes(const struct decl *d);

/* --- the slot's last page: at decl.raw_bytes - SLOT_SEAL_BYTES --- */
#define SLOT_SEAL_BYTES 4096u
#define SLOT_SEAL_MAGIC 0x326c6173u /* "sal2" */
enum slot_seal_state { SLOT_SEAL_OPEN, SLOT_SEAL_COMPLETE };
/*
 * Which step's averages the slot holds: for a daemon that takes the slot over after another one's
 * death. Opened before a pass writes the first byte, completed (release) when all ranks' averages
 * of the step are made. Little endian, this host's memory only; what does not check is open.
 */
struct slot_seal {
	uint32_t magic;
	_Atomic uint32_t state;
	uint64_t step;
	uint32_t epoch, rev, nrow, flags;
	uint8_t declared
		[16]; /* hash128 over the rows' names, rules and canonical schedules, and the
				 places of all pieces: of other declarations it is open */
	struct slot_seal_row {
		struct ema_state state;
		uint32_t flags, left_out; /* AVERAGE_*; as average_result */
	} row[TABLE_AVERAGES_MAX];
	uint8_t self[16]; /* hash128 of everything before it, with state COMPLETE */
};
_Static_assert(sizeof(struct slot_seal) <= SLOT_SEAL_BYTES, "a page");

/* --- of a step (average.c) --- */

/*
 * How many steps an average has left out since its copy or seed: marked by the trainer, and neither
 * taken in nor kept out by a gate (docs/AVERAGES.md). A record of the trainer says how many steps
 * were marked so far, so what came to nothing between two averaged steps is known by subtraction,
 * whatever became of it. AT_LEAST: it goes on from a step whose writer did not count, and these are
 * those since then.
 */
#define AVERAGE_AT_LEAST (UINT32_C(1) << 31)
uint32_t average_left_out_add(uint32_t was, uint64_t n);

/* The result of a step's averages once they are made: the snap's, one reference. */
struct average_result {
	_Atomic uint32_t refs;
	uint64_t step, marked; /* marked: as snap.marked */
	uint32_t nrow;
	struct ema_state *row; /* [nrow] */
	uint32_t *flags;       /* [nrow] AVERAGE_MIXED, SEEDED, KAHAN */
	uint32_t *left_out;    /* [nrow] */
	/* [nrow] why the row did not take the step in, by enum wire_gate; 0: it did. gate: that
	 * of the first row that did not; 0: all did */
	uint32_t *row_gate, gate;
	/* Of this host's elements, by row */
	struct average_row_health {
		struct ema_health sum;
		uint64_t nan_sources, inf_sources;
		double worst; /* the largest ‖p-e‖/‖e‖ of a tensor; < 0: not known */
		char worst_name[160]; /* of that tensor */
		uint64_t
			far; /* tensors with ‖p-e‖ > ‖e‖, of an average whose product of decays is below 1/64: it
				 should have forgotten where it began. A sign that was flipped, tensors that were swapped */
		uint64_t convex_broken; /* tensors in which max|e| is above the running max|p| */
		char convex_name[160];	/* the first of them */
		uint64_t lag; /* steps since the newest update: 0 when this one was taken in */
	} * health;	      /* [nrow] */
	/* The largest |p| so far, by tensor of `whole` (a reference), which has those of all ranks;
	 * < 0: not known. NULL, 0: nothing is */
	float *running_max;
	uint32_t nrunning;
	struct whole *whole;
	/* One for each average, with its storage, one for each row, and one for the step: for
	 * MANIFEST */
	struct average_line {
		char key[96], text[640];
	} * line;
	uint32_t nline;
};
struct average_result *average_result_ref(struct average_result *x);
void average_result_unref(struct average_result *x); /* NULL is fine */

/* The update of one step, from the walk's beginning to its end. passes.c owns it. */
struct averaging;
struct average_base;
/* Does an average of the step say `every`? It gives its averages up only when it has waited for
 * them for EVERY_MAX_NS, which is as long as a guard waits. Owner. */
bool average_every(const struct snap *s);
#define EVERY_MAX_NS (60 * NS_PER_S)
/* Does this step want averages, and has none? Owner. */
bool average_wanted(const struct snap *s);
/* Can the step go on from the averages of that one? It is averaged, older, of the same launch and
 * not left behind, and its declarations say the same of averages. */
bool average_follows(const struct snap *s, const struct snap *before);
/* Owner. before: the snap whose slots it goes on from, pinned; or base; or neither: it begins anew.
 * Opens the seals. NULL: no memory. */
struct averaging *averaging_new(struct snap *s, struct snap *before, struct average_base *base);
/* walk_pass.span of rank r's main part. Any thread, one a rank. */
int averaging_span(struct averaging *x, uint32_t r, const struct walk_span *s);
/* All main parts were seen: was everything finite? If not, what was made is dropped and the
 * predecessor's is copied. Completes the seals. Worker, one thread, once. -ECANCELED: the daemon is
 * to stop. */
int averaging_settle(struct averaging *x, struct ckpt_err *err);
/* Owner. rc 0 after averaging_settle: the snap is averaged, and has the result. Else the seals
 * stay open. Frees x. */
void averaging_end(struct averaging *x, int rc);
/* The part table of a rank's averages, of which it has some, as the files of that step say it: the
 * rows' states. raw: its slot. Worker. */
int average_part_now(const struct average_result *of, const struct decl *d, const void *raw,
		     struct table *ret, struct ckpt_err *err);
void average_row_set(struct table_average *to, const struct ema_state *state, uint32_t flags);
struct ema_state average_row_state(const struct table_average *x);
/* row[n], of a table with averages of this declaration: their states behind that step. */
void average_rows_now(const struct average_result *of, const struct decl *d, uint32_t n,
		      struct table_average *row);
/* An adopted step whose slots are all sealed complete for it is averaged; else not. Owner. */
void average_adopt(struct snap *s);
/* Of a slot that a rank brings along, of a declaration with averages: may a step of the launch have
 * had averages, in this slot or before the launch was given it? Its last page is all zero as long
 * as none had. */
bool average_slot_used(const struct slotmem *m);
/* The slot is to hold another step: whatever seal it has is open. Owner. */
void average_seals_open(const struct launch *l, uint32_t slot);
/* Attribute lines for MANIFEST: what was measured, and what averages have left out
 * (ckpt/engine/average_seen.h); they live as long as x. How many; x may be NULL. Any thread. */
#define AVERAGE_ATTRS_MAX (2 * TABLE_AVERAGES_MAX + 1)
uint32_t average_attrs(const struct average_result *x, struct checkpoint_attr *ret, uint32_t max);

/* --- what it goes on from (average_base.c) --- */
struct average_base {
	_Atomic uint32_t refs;
	uint32_t epoch, world, nrow;
	struct slotmem *
		*mem; /* [world] rank r's averages' raw space, from byte 0; NULL: it owns nothing */
	struct decl **decl;    /* [world] decl_slot_ref: the places are theirs */
	struct ema_state *row; /* [nrow] last_step EMA_NO_STEP: not there, it begins anew */
	uint32_t *flags;       /* [nrow] */
	uint32_t *left_out;    /* [nrow] as average_result */
	uint64_t step, marked; /* the step that it was read from; as snap.marked */
	char from[160];	       /* "step 100 on disk", "the weights of /ckpts/a/step-7" */
};
struct average_base *average_base_ref(struct average_base *b);
void average_base_unref(struct average_base *b); /* NULL is fine */
/*
 * Where the launch's next step finds its averages. READY: *ret is a reference, or NULL: nowhere,
 * they begin anew. LOADING: a task is under way, job_settle comes again.
 */
enum average_base_is { AVERAGE_BASE_READY, AVERAGE_BASE_LOADING };
enum average_base_is average_base_get(struct launch *l, struct average_base **ret);
/* The slots of a newer step have it now. Owner. */
void average_base_drop(struct launch *l);
/* The launch is freed. */
void average_base_forget(struct launch *l);
/* It has restored that step, and these are its averages: a reference, taken; NULL: they begin anew.
 * What the passes have pinned does not count any more. marked: what its ranks count on from.
 * -ENOMEM. Owner. */
int average_base_restored(struct launch *l, struct average_base *b, uint64_t step, uint64_t marked);
/*
 * Seeds that the session has brought for this declaration: they are the launch's. When all ranks
 * have declared, and there is nothing that the launch may continue from, they are checked: true: a
 * task does, and ends in launch_seeds_checked; meanwhile they are pending. So ckpt_seal reports
 * what is wrong with one. Elsewhere an average whose seed cannot be used begins anew, and the log
 * says so. Owner.
 */
void average_seeds_take(struct launch *l, const struct decl *decl, struct session *s);
bool average_seeds_check(struct launch *l);
bool average_seeds_pending(const struct launch *l);
/* The averaged step that passes have pinned is still needed, although its launch has other
 * declarations now: by their first step. Owner. */
bool average_base_keeps(const struct snap *s);
/* A restore of this step out of memory waits: its averages are about to be made. Owner. */
bool average_base_waits(struct snap *s);
/* Bytes of memory that a launch's base takes, beside the slots; 0: none. Owner. */
uint64_t average_base_held(const struct launch *l);
#endif
