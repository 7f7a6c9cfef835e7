/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckpt.h - checkpoint a sharded training job through the ckptd daemon. ABI 2.
 *
 * This header is the whole interface of libckpt and is meant to be enough to integrate it. A
 * trainer does this, on every rank:
 *
 *	struct ckpt_opts o = { .size = sizeof o, .flags = CKPT_AUTOSTART, .job = "demo",
 *		.store = "ckpts/", .rank = me, .world = n, .log = to_stderr };
 *	ckpt_attach(&o, &c, &e);		// each call: if it is not 0, print e.msg and exit
 *	ckpt_mesh(c, 1, (const char *const[]){ "fsdp" }, &n, NULL, &mesh, &e);
 *	ckpt_alloc(c, bytes, &w, &e);		// memory that the daemon reads in place
 *	struct ckpt_placement s0 = { .how = CKPT_SHARD, .mesh_dim = 0, .tensor_dim = 0 };
 *	struct ckpt_local at = { .ptr = w };
 *	struct ckpt_tensor t = { .size = sizeof t, .role = CKPT_MASTER, .dtype = CKPT_F32,
 *		.component = "optim", .name = "w.master", .of = "model/w", .ndim = 2, .mesh = mesh,
 *		.nplace = 1, .nlocal = 1, .shape = shape, .place = &s0, .local = &at };
 *	ckpt_tensor_add(c, &t, &id, &e);
 *	ckpt_blob_add(c, "cursor", 0, &step, &len8, 8, &e);
 *	ckpt_seal(c, 30 * SEC, &e);
 *	struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST };
 *	struct ckpt_got got = { .size = sizeof got };
 *	rc = ckpt_restore(c, &want, &got, &e);	// skips damaged steps by itself
 *	if (rc < 0 && rc != -ENOENT)
 *		exit_with(e.msg);		// only -ENOENT means: no steps, start at 0
 *	step = got.step;
 *	while (step < last) {
 *		forward_backward();
 *		ckpt_guard(c, NULL);		// waits only if the last copy is late
 *		optimizer_step();
 *		if (ckpt_snapshot(c, ++step, NULL) < 0) // microseconds; the copy runs meanwhile
 *			exit_with(ckpt_why(c, &e) < 0 ? e.msg : "");
 *	}
 *	ckpt_wait(c, step, CKPT_COMMITTED, 60 * SEC, &e);	// -EIO, ...: it was not written
 *	ckpt_detach(c, 0);
 *
 * Words. A snapshot is *staged* when every local rank's copy is in host memory (it survives the
 * trainer), *persisted* when this host's part is durable, *committed* when every part is durable
 * and the checkpoint is visible. A snapshot is *torn* if its copy was given up, by a guard or
 * because it could not be right, and *skipped* if no slot was free or a blob was too long. Torn and
 * skipped snapshots are counted and never written.
 *
 * If the trainer changes the state after ckpt_snapshot and before ckpt_guard, a copy may hold old
 * and new values. The library and the daemon check for this. At each mark the library notes 32
 * words. The daemon compares them with its copy. ckpt_guard compares them with memory, and 16 pages
 * of memory with the copy. If something differs, ckpt_guard returns CKPT_TORN, both logs name the
 * tensor, and the step is discarded, even if it is staged. The check misses a change of at least
 * half of a rank's state in fewer than one of a million steps, and a change of one tensor of 1 % of
 * it in two of three. If ckpt_opts.check is n, every n-th step is compared in full, which misses
 * such a tensor in fewer than one of a hundred. CKPT_CONST, CKPT_VOLATILE, CKPT_SINK, blobs,
 * CKPT_DERIVED on devices, and elements that another rank saves are not checked. A change after the
 * copy that is undone before the guard is not found, and does no harm.
 *
 * In memory of CUDA devices the library notes 32 more words, as they are just before the device
 * copies and just behind that, and compares both with the copy. So it finds a change that a
 * kernel makes while the device copies, and misses one of a half as seldom as above, and one of
 * 1 % in three of four. If ckpt_guard has returned 0 by then, the step is discarded, counted and
 * logged all the same. Not found is a change between ckpt_snapshot and the beginning of the
 * copy: a kernel that the trainer queues there may come first, and then the step holds what it
 * has written. A change behind the end of the copy is not found, and does no harm.
 * ckpt_opts.check = n compares nothing there in full. If the process dies while devices copy, if
 * the words' memory cannot be pinned, and perhaps in the first snapshot after another daemon has
 * taken over, nothing is compared.
 *
 * Structs carry .size = sizeof first, fields are only ever appended, and zero means the default. If
 * the library reads a struct, a .size smaller than in ABI 2 is -EINVAL. If the struct has flags
 * that this version does not know, or bytes that are not zero after the fields that it knows, that
 * is -EOPNOTSUPP. If the library fills a struct, it writes at most .size bytes; less than 8 is
 * -EINVAL. Elements of arrays (ckpt_placement, ckpt_local, ckpt_note, ckpt_step) have no .size and
 * never grow. Sizes are in bytes, times in nanoseconds. A NULL handle is -EINVAL in every call.
 *
 * Results: 0 done; > 0 an outcome (enum ckpt_outcome); < 0 a negative errno. The vocabulary:
 *	-EINVAL        the call or declaration is malformed, or ranks disagree
 *	-EOPNOTSUPP    this version does not do that yet
 *	-EALREADY      declared twice, or too late in the life of the handle
 *	-ECHILD        the handle belongs to the parent process
 *	-ECONNREFUSED  no daemon listens
 *	-ECONNRESET    the daemon, or a rank, ended during the call, or a rank's ckpt_restore has
 *	               failed
 *	-EBUSY         the rank is attached already, or another launch has the job
 *	-ESTALE        a newer launch of the job took over; or (from ckpt_snapshot) another one has
 *	               it, or has committed since this one restored: ckpt_why
 *	-EACCES        the socket or the store belongs to another user
 *	-EPERM         the job's directory belongs to another user (CKPT_FOREIGN_OWNER)
 *	-EPROTO        the daemon speaks another protocol version; err names both
 *	-ENOENT        nothing to restore; the step was skipped, torn or never marked
 *	-ETIMEDOUT     the time given ran out
 *	-E2BIG         too many of one kind; err says how many are possible
 *	-EMEDIUMTYPE   the checkpoint does not fit the declarations; all mismatches are listed
 *	-EBADMSG       checkpoint bytes are damaged
 *	-EFAULT        memory that was declared is not mapped, or not writable (from ckpt_restore)
 *	-EPROTONOSUPPORT  another version wrote the step: it is not damaged, use that version
 *	-EUCLEAN       the job has steps, and none can be restored; or there is nothing to restore,
 *	               and an earlier ckpt_restore that failed has left memory undefined; or
 *	               no rank has called ckpt_restore (from ckpt_snapshot)
 *	-ENOSPC        no space in the store
 *	-ENOMEM        no memory here or in the daemon
 *	-EIO           the step could not be written
 * ckpt_attach fails with -EINVAL and -EOPNOTSUPP (the call), with -EBUSY and -ESTALE (another
 * process is this rank, or this job), with -EPERM, and if there is no memory for a handle. It fails
 * with another code, for example of the store directory, only with CKPT_REQUIRE. Without it the attach
 * succeeds detached, the log has the sentence once, and the library tries again, also to open the
 * directory. If the daemon has another protocol version, it tries once a minute.
 * struct ckpt_err says what, where, why and what to do next, in one or more lines. The caller owns
 * it; NULL is allowed everywhere.
 *
 * Threads: one thread at a time per handle, except for calls marked [any]. [fast] means: no lock,
 * no allocation, at most one system call. The library never prints, exits, throws or installs
 * handlers. It reads the environment only with CKPT_USE_ENV and starts a program only with
 * CKPT_AUTOSTART. One handle is one rank; a process may hold several. After fork() a handle works
 * in the parent only; memory from ckpt_alloc is shared with the child, as it is with the daemon.
 *
 * Time: no call waits longer than its argument, or than the time in its comment, even if the daemon
 * is stopped, full, or wrong. Only the store's file system can take longer.
 */
#ifndef CKPT_H
#define CKPT_H
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

#define CKPT_ABI 2
#define CKPT_VERSION "0.2.0"
#define CKPT_LATEST UINT64_MAX /* ckpt_want.step: the newest restorable step */
/* bytes of a component, tensor or blob name, without the terminating zero */
#define CKPT_NAME_MAX 1024
#define CKPT_DIMS_MAX 16      /* dimensions of a tensor, and of a mesh */
#define CKPT_ALONE UINT32_MAX /* ckpt_tensor.mesh with CKPT_BOXES: no other rank has the boxes */
#define CKPT_JOB_MAX 64	      /* bytes of a job name: [A-Za-z0-9._-], the first one not a dot */

typedef struct ckpt ckpt;

struct ckpt_err {
	int code;	/* the negative errno that was returned */
	char msg[4092]; /* zero-terminated; if there are several mismatches, one a line */
};

enum ckpt_outcome {
	/* no free slot, the slots are not ready yet, a blob is longer than its capacity, or a
	 * stream of the mark is being captured into a CUDA graph: nothing was copied; continue */
	CKPT_SKIPPED = 1,
	/* the copy was given up: it was late, and training need not wait, or it could not be right
	 * (ckpt_why): continue */
	CKPT_TORN = 2,
	CKPT_DETACHED = 3, /* no daemon at the moment; the library keeps trying: continue */
	/* this step was taken, but the daemon cannot write steps: the disk is full, the store was
	 * moved, ... ckpt_why has the sentence. Returned once for each change of it: continue, and
	 * notify a person */
	CKPT_FAILING = 4,
};

enum ckpt_state { CKPT_STAGED = 1, CKPT_PERSISTED, CKPT_COMMITTED };

enum ckpt_class {
	CKPT_STABLE,   /* changes only between ckpt_guard and ckpt_snapshot */
	CKPT_VOLATILE, /* small, may change at any time: copied by value inside ckpt_snapshot */
	/* the same bytes from ckpt_seal or ckpt_restore on: written once in 64 steps or 24 hours,
	 * and linked by the steps between. At each step the daemon reads a MiB of the linked file
	 * from the disk, and writes the tensors anew from memory if it has rotted. If they change
	 * all the same, the daemon warns once per ckpt_seal and writes them anew. At each step it
	 * compares with what it wrote: 512 words of the rank's const bytes, a word of each of its
	 * const tensors (of 512, if there are more), and one MiB, in turn. It misses a change of 1 %
	 * of the bytes in fewer than one of a hundred steps, and any change for at most as many
	 * steps as there are MiB; until then steps have the older value */
	CKPT_CONST,
	/* the BF16 or F16 rounding (to nearest even) of the FP32 tensor that .of names, which has
	 * the same shape and layout (or boxes) and may be declared later: where every element is
	 * that rounding, no bytes are written. Where one is not, and where the master is CONST or
	 * is held in other boxes, it is stored like STABLE. On a device another 1/16 of it is
	 * copied and compared at each snapshot: the snapshot that finds a difference is torn, and
	 * up to 15 before it have the rounding (docs/DURABILITY.md) */
	CKPT_DERIVED,
	CKPT_SINK, /* only ever restored into, never saved: for averages too (ckpt_average) */
};

enum ckpt_role {
	CKPT_OTHER,
	CKPT_PARAM,
	CKPT_MASTER,
	CKPT_MOMENT1,
	CKPT_MOMENT2,
	CKPT_BUFFER,
	CKPT_AVERAGE,
	CKPT_COUNTER,
};

/* Element types, with the names of safetensors. The numbers are on disk and never change. */
enum ckpt_dtype {
	CKPT_BOOL = 1,
	CKPT_U8,
	CKPT_I8,
	CKPT_F8_E4M3,
	CKPT_F8_E5M2,
	CKPT_F8_E8M0,
	CKPT_U16,
	CKPT_I16,
	CKPT_F16,
	CKPT_BF16,
	CKPT_U32,
	CKPT_I32,
	CKPT_F32,
	CKPT_U64,
	CKPT_I64,
	CKPT_F64,
	CKPT_C64,
	CKPT_C128,
	CKPT_C32,	  /* a complex number of two F16, the real part first: 4 bytes */
	CKPT_F8_E4M3FNUZ, /* bias 8, no infinity; 0x80 is the only NaN, there is no -0 */
	CKPT_F8_E5M2FNUZ, /* bias 16, otherwise the same */
	/* 4 bits, e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign. An element here is a byte of two,
	 * the low half first: shape, stride, start and extent count bytes. The two lie side by side
	 * in the last dimension, which ckptctl shows doubled; a tensor without dimensions cannot be
	 * F4 */
	CKPT_F4,
};

/* What a blob's bytes are. The numbers are on disk and never change. */
enum ckpt_media {
	CKPT_RAW,
	CKPT_MEDIA_JSON,
	CKPT_MEDIA_TEXT,   /* UTF-8 */
	CKPT_MEDIA_PICKLE, /* Python's */
	CKPT_MEDIA_TORCH,  /* torch.save */
	CKPT_MEDIA_NPY,	   /* numpy.save */
};
/* ckpt_blob_add: whose a blob is, and at most one word for what its bytes are: ckptctl show prints
 * the word, and ckptctl cat prints JSON and text as text on a terminal. Without a word they are
 * raw. */
enum {
	CKPT_PER_RANK = 1,
	CKPT_JSON = CKPT_MEDIA_JSON << 8,
	CKPT_TEXT = CKPT_MEDIA_TEXT << 8,
	CKPT_PICKLE = CKPT_MEDIA_PICKLE << 8,
	CKPT_TORCH = CKPT_MEDIA_TORCH << 8,
	CKPT_NPY = CKPT_MEDIA_NPY << 8,
};

/* What one mesh dimension does to a tensor. Mesh dimensions that no placement names replicate. */
enum ckpt_how {
	CKPT_REPLICATE, /* every coordinate holds the same elements */
	/* cut tensor_dim as torch.chunk does; split_factor > 1 is torch's _StridedShard, read
	 * literally */
	CKPT_SHARD,
	/* the tensor lives at one coordinate of this mesh dimension: split_factor is that
	 * coordinate */
	CKPT_ONLY,
	/* a pending reduction over this mesh dimension by `reduce`: coordinates hold operands of
	 * one result. It is refused with -EOPNOTSUPP (reduce before the snapshot) unless flags has
	 * CKPT_KEEP_PARTIAL: then the operands are stored, and reduced when they are loaded */
	CKPT_PARTIAL,
};

/* ckpt_placement.reduce. All of one tensor are the same, or SUM and AVG. */
enum ckpt_reduce { CKPT_SUM, CKPT_AVG, CKPT_MIN, CKPT_MAX, CKPT_PRODUCT };
/* ckpt_placement.flags */
enum { CKPT_KEEP_PARTIAL = 1 };

/* How the SHARDs of one tensor dimension cut it, or that boxes say what a rank holds. */
enum ckpt_mode {
	CKPT_CHUNK, /* one after the other; each cuts the result of the one before */
	/* all of them in one cut by the product of their sizes; the first one applied is the most
	 * significant (JAX); none may be strided */
	CKPT_FLAT,
	/* one after the other; a strided one pads to split_factor rows and cuts columns (PyTorch
	 * issue 168134) */
	CKPT_UNFLATTEN_PAD,
	/* Placements and split factors are torch's (DTensor, _StridedShard): one placement for each
	 * mesh dimension, in the order of the mesh. A dimension that is left out replicates. The
	 * split factors say in which order the mesh dimensions cut. Use it for FSDP2 over tensor
	 * parallelism. The library turns the placements into those of CKPT_CHUNK, and no file has
	 * this mode. If the factors say no order, ckpt_tensor_add returns -EINVAL: then they are
	 * meant literally, and the mode is CKPT_CHUNK */
	CKPT_TORCH_ORDER,
	/* No placements (nplace 0): this rank holds the boxes in .local, each with start and
	 * extent, which must not overlap. With mesh CKPT_ALONE it holds them alone; with a mesh,
	 * every rank of that mesh holds, and declares, the same boxes. The other ranks may hold
	 * other boxes on other meshes, or none (nlocal 0). All ranks use this mode for the tensor,
	 * and ckpt_seal checks that their boxes contain each element once */
	CKPT_BOXES,
};

/* How long ckpt_guard may hold the training thread for a copy that is not finished. */
enum ckpt_policy {
	/* at most guard_ns; then the guard ends the copy (torn). Of a CUDA device: if its stream
	 * would have to wait for longer, as far as the library can tell from the copies so far */
	CKPT_BOUNDED,
	CKPT_NEVER, /* not at all */
	/* until it is copied, but at most 60 s; not longer if the daemon has exited, or has been
	 * silent for 5 s. So it is also if an average says `every` (ckpt_average) */
	CKPT_FINISH,
};

/* ckpt_opts.flags */
enum {
	CKPT_REQUIRE = 1,
	CKPT_AUTOSTART = 2,
	CKPT_USE_ENV = 4,
	CKPT_KEEP_MEMORY = 8,
	CKPT_NCCL = 16,
	CKPT_TAKEOVER = 32,
	CKPT_FOREIGN_OWNER = 64,
};
/* ckpt_mark.flags; without one, persist_every decides */
enum {
	CKPT_PERSIST = 1,
	CKPT_STAGE_ONLY = 2,
	CKPT_NO_EMA = 4,
	CKPT_FINAL = 8,
	CKPT_REFUSE = 16,
};
/* ckpt_want.flags */
enum {
	CKPT_LENIENT = 1,
	CKPT_FROM_DISK = 2,
	CKPT_DRY_RUN = 4,
	CKPT_FROM_MEMORY = 8,
	CKPT_EXACT = 16, /* with CKPT_LATEST: the newest step or an error, never an older one */
	CKPT_PEEK = 32,	 /* fill CKPT_SINK tensors only, and go on where the launch is */
	/* Refuse what is not a plain copy: see ckpt_restore. ALLOW: but for these */
	CKPT_EXPLICIT = 64,
	CKPT_ALLOW_RESHARD = 128,
	CKPT_ALLOW_REDUCE = 256,
	CKPT_ALLOW_REPLICATE = 512,
	CKPT_ALLOW_DROP = 1024,
};

struct ckpt_opts {
	uint32_t size;
	/* REQUIRE: fail without a daemon. AUTOSTART: start ckptd if none listens. That ckptd exits
	 * after 10 minutes without trainers, and has no policy of its own: it keeps every step of a
	 * job that has none either (keep_last). USE_ENV: read CKPTD_SOCKET, CKPTD_STORE and
	 * CKPTD_JOB for the fields that are NULL here (CKPTD_SOCKET means the same to ckptd and
	 * ckptctl), and CKPTD_DISABLE=1 (stay detached); and the variables of a launcher, for
	 * `token`. KEEP_MEMORY: see ckpt_alloc. TAKEOVER: see ckpt_attach. FOREIGN_OWNER: attach
	 * also if the job's directory belongs to another user */
	uint32_t flags;
	const char *job; /* name of the job inside the store */
	/* directory; created if missing. The client opens it and hands the descriptor to the
	 * daemon */
	const char *store;
	/* NULL: /run/user/UID/ckptd/socket, or /tmp/ckptd-UID/socket if there is no
	 * /run/user/UID */
	const char *socket;
	uint32_t rank, world; /* in this version all ranks of a job run on one host */
	/* the same on every rank of one launch, and higher than that of the launch before: a higher
	 * one takes over at once. 0: the daemon counts, and treats ranks with a common parent
	 * process as one launch. If several launches without a number begin at once, exactly one
	 * survives: the first that marks a step (ckpt_attach) */
	uint64_t generation;
	/* the minimum over all ranks; ckpt_restore calls it, also after an error: so if the call of
	 * one rank fails, the others, which wait for it in ckpt_restore, get -ECONNRESET at once.
	 * If generation, launch and token are 0, ckpt_attach calls it once, first of all. NULL: all
	 * ranks are on this host, and each of them waits up to its own deadline */
	int (*agree)(void *ctx, uint64_t mine, uint64_t *ret_min);
	void *agree_ctx;
	/* Host copies per rank, 2..4; 0: 2, or 3 if averages are declared, or as soon as writing a
	 * step takes more than 5 % of the time between the steps that are written, and the host has
	 * the memory for it. With 2, averages take in every second step only, but for `every`
	 * (ckpt_average). When a job starts again soon after it was killed, one of them still
	 * holds its newest step, until the first step of this launch is staged. */
	uint32_t slots;
	/* the daemon writes every n-th snapshot to the store; 0: 1. If that one is skipped or torn,
	 * it writes the next one. If it cannot write one, it tries again after 1, 2, 4, ... n
	 * more snapshots. If the disk is slower than that, the steps do not queue up: while one is
	 * written, only the newest waits, and those before it are *thinned*: not written. With
	 * three slots or more it may be a step that n does not select, so that the next snapshot
	 * finds a slot. A step that its mark orders (CKPT_PERSIST, CKPT_FINAL), or an operator, is
	 * never thinned */
	uint32_t persist_every;
	/* 0: tensors lie in host memory. 1+n: ckpt_attach opens CUDA device n, and tensors may lie
	 * there, on other devices of the process, and in host memory: their addresses say where.
	 * Without a driver or this device the log says why, and host memory works as ever */
	uint32_t device;
	uint32_t guard; /* enum ckpt_policy */
	/* CKPT_BOUNDED; 0: the larger of 2 ms and 0.5 % of the mean time between snapshots */
	uint64_t guard_ns;
	/* bytes that all slots of this rank may take, averages included; 0: no limit. Exceeding it
	 * fails ckpt_seal with -ENOMEM */
	uint64_t memory_max;
	/* level as syslog's, 3 error .. 7 debug; from any thread; NULL: silent */
	void (*log)(void *ctx, int level, const char *line);
	void *log_ctx;
	/* How carefully ckpt_guard checks for a state that was changed after ckpt_snapshot. 0: the
	 * library notes 32 words at each mark; the guard compares them and 16 memory pages with the
	 * copy before it returns (at most 20 us, whatever the state's size). n: also, at each n-th
	 * mark it notes 512 words and compares all pages: this reads the state twice.
	 * UINT32_MAX: it compares nothing. Of devices: 32 more words whatever n is; none with
	 * UINT32_MAX. */
	uint32_t check;
	uint32_t pad;
	uint64_t wait_ns; /* how long ckpt_attach, and each ckpt_steps, may take; 0: 20 s */
	/* Used if generation is 0: ranks with the same number are one launch, and a rank with
	 * another number begins a newer launch. 0: ranks with a common parent process are one
	 * launch. Set it if a shell or a profiler stands between each rank and what started them,
	 * or if one parent starts the ranks again */
	uint64_t launch;
	/* How fast memory of devices is copied. 0: as fast as is needed to have it copied when
	 * ckpt_guard is expected, a quarter faster; n: besides, at most n bytes per second and
	 * device; UINT64_MAX: as fast as the link allows */
	uint64_t copy_rate;
	/* With this, or with CKPT_NCCL in flags, ckpt_restore reads from disk only once what
	 * several ranks hold: each rank reads a part and sends it to the others over NCCL
	 * (libnccl.so.2, from 2.14.3 on). Tensors in boxes and pending reductions are not divided:
	 * each rank reads all of its own. nccl: the job's ncclComm_t, of the same ranks under the
	 * same numbers, which nothing else uses meanwhile; if the exchange fails, the library
	 * aborts it (ncclCommAbort) and makes its own from then on.
	 * NULL: the library makes one for each ckpt_restore, by ckpt_opts.agree. All ranks give the
	 * same; device and agree must be set. A ckpt_restore with CKPT_LENIENT, CKPT_PEEK or
	 * CKPT_DRY_RUN does without NCCL. If NCCL is missing, too old, or does not come up, each
	 * rank reads all of its memory; if a round fails, each reads what has not arrived. The log
	 * says why */
	void *nccl;
	/* Which launcher made this launch, and which of its launches it is: run is the same for all
	 * launches of one launcher (one torchrun, one job of a queue), and no other's; restart is
	 * higher for each of them. So a restart takes over from the launch before it at once
	 * (ckpt_attach). 0: unknown */
	uint64_t run, restart;
	/* The same on all ranks of this launch, whatever host they are on, and no other launch's.
	 * If ranks of one launch come to different ckptds, they find out by it. 0: by agree; without
	 * that and with CKPT_USE_ENV by TORCHELASTIC_RUN_ID (if that is not "none"), SLURM_JOB_ID
	 * and SLURM_STEP_ID, or PMIX_NAMESPACE */
	uint64_t token;
	/* Which steps stay on disk. If any of these four is set, it is the policy of the job from
	 * then on, in the job's directory, as `ckptctl keep` would set it, and every ckptd that
	 * serves the job obeys it: after each commit it removes the steps that no rule keeps, but
	 * never the newest step, the newest one that it has verified, nor one that is held, tagged,
	 * damaged or being read. If none is set, the policy stays as it is; a job without one keeps
	 * the steps that the options of its ckptd say, or all. Rank 0's count; the library sets it
	 * once, when it has first attached, and logs a warning if it cannot be set; that of a launch
	 * beside another one (ckpt_attach) is set when it has the job. keep_last: the n newest.
	 * keep_every: steps that are multiples of it */
	uint32_t keep_last;
	uint32_t pad_keep;
	uint64_t keep_every;
	const char *keep_within; /* steps younger than this: "90m", "36h", "7d", "2w" */
	/* the step with the lowest note: "loss"; the highest: "accuracy:max"; the three lowest:
	 * "loss:min:3"; up to four, with commas between them */
	const char *keep_best;
	/* For how long the library waits for a ckptd that it did not start, after that has exited,
	 * before CKPT_AUTOSTART starts another one, which has none of its options. 0: 15 s */
	uint64_t restart_wait_ns;
};

struct ckpt_placement {
	uint8_t how;	/* enum ckpt_how */
	uint8_t reduce; /* CKPT_PARTIAL: enum ckpt_reduce; 0 otherwise */
	uint16_t mesh_dim;
	uint16_t tensor_dim; /* CKPT_SHARD */
	uint16_t flags;	     /* CKPT_PARTIAL: 0 or CKPT_KEEP_PARTIAL; 0 otherwise */
	/* CKPT_SHARD: 0 or 1 plain, > 1 strided. CKPT_ONLY: the coordinate */
	uint32_t split_factor;
};

/* Where this rank keeps its elements, or a box of them. */
struct ckpt_local {
	/* The daemon copies ckpt_alloc memory. Other memory is copied by threads of the library,
	 * memory of CUDA devices by these. Managed memory is -EOPNOTSUPP */
	void *ptr;
	const int64_t *stride; /* [ndim] in elements; NULL: row-major over the local extents */
	const uint64_t *start; /* [ndim] global index of the first element and */
	/* [ndim] size of the box; both NULL: the rank's whole share by the layout */
	const uint64_t *extent;
};

struct ckpt_tensor {
	uint32_t size;
	uint32_t cls;	/* enum ckpt_class */
	uint32_t role;	/* enum ckpt_role */
	uint32_t dtype; /* enum ckpt_dtype */
	/* "model", "optim", ...; (component, name) is the key in every table and file */
	const char *component;
	const char *name; /* the fully qualified name */
	/* COMPONENT/NAME of the parameter this is the master or moment of, of the master that it is
	 * derived of; NULL: none */
	const char *of;
	uint32_t ndim;
	uint32_t mesh; /* from ckpt_mesh; or CKPT_ALONE */
	uint32_t nplace, nlocal;
	const uint64_t *shape; /* [ndim] global */
	/* [nplace] in order of application, which is the shard order; with CKPT_TORCH_ORDER in the
	 * order of the mesh */
	const struct ckpt_placement *place;
	const struct ckpt_local *local; /* [nlocal]; 0 where this rank's share is empty */
	uint32_t group;			/* guard group; 0 */
	uint32_t mode;			/* enum ckpt_mode */
};

struct ckpt_note {
	const char *key;
	double value;
}; /* loss, lr, ...: shown by ckptctl show */

/* A stream (CUstream, cudaStream_t) of CUDA device `device` - 1, which is 1+n as in ckpt_opts. */
struct ckpt_stream {
	void *stream;
	uint32_t device, pad; /* pad: 0 */
};

struct ckpt_mark {
	uint32_t size;
	/* PERSIST: write this step, in any case. STAGE_ONLY: do not. FINAL: wait for a slot, write
	 * this step. NO_EMA: no average of the weights takes this step in; one rank's flag is
	 * enough.
	 * REFUSE: this rank has no state of this step, so no rank takes it: ckpt_snapshot returns
	 * CKPT_SKIPPED, and ranks that marked the step before give it up. The other flags then mean
	 * nothing. A rank that does not mark the step at all leaves the others with copies that
	 * wait for it */
	uint32_t flags;
	/* CUDA: the stream, on device ckpt_opts.device, that changes the state; NULL: the default
	 * stream, and for host memory. Everything that was given to it before ckpt_snapshot is in
	 * the snapshot, and what it is given after ckpt_guard comes after the copies. ckpt_guard
	 * without a mark, or with one that has no stream, takes those of the snapshot */
	void *stream;
	uint64_t groups;	      /* 0: all */
	const struct ckpt_note *note; /* [nnote], at most 16; rank 0's are kept */
	uint32_t nnote;
	/* the same of further devices, at most one stream for each; those that are not named have
	 * their default stream */
	uint32_t nstream;
	const struct ckpt_stream *more; /* [nstream] */
	/* How long ckpt_snapshot may wait for a slot, where it waits for one: with FINAL, and with
	 * `every`. 0: 60 s */
	uint64_t wait_ns;
};

/* where: 1 memory, 2 disk, 3 both; complete: 1 the whole job */
struct ckpt_step {
	uint64_t step, bytes;
	uint32_t where, complete;
};

struct ckpt_want {
	uint32_t size;
	/* LENIENT: declared tensors that the checkpoint lacks stay as they are. FROM_DISK: not from
	 * memory. FROM_MEMORY: not from disk. DRY_RUN: check only. EXACT: never an older step.
	 * PEEK, EXPLICIT, ALLOW: see ckpt_restore */
	uint32_t flags;
	uint64_t step;	  /* or CKPT_LATEST; 0 is a step, not a default */
	const char *only; /* restore this component only; NULL: all */
	/* How long to wait for the other ranks; 0: 60 s. Over NCCL also how long a communicator may
	 * take to come up, and each round of the exchange: at most 10 minutes */
	uint64_t deadline_ns;
	/* CUDA: for each device the stream on which the state may be in use until now (NULL: its
	 * default stream), for ckpt_opts.device too. ckpt_restore waits for these streams alone, so
	 * a capture on another one goes on. Of a device that is not named here it waits for all
	 * streams: if one of them is being captured into a graph, that fails (-EBUSY), and ends the
	 * capture */
	uint32_t nstream, pad;		/* pad: 0 */
	const struct ckpt_stream *more; /* [nstream] */
};

struct ckpt_got {
	uint32_t size;
	uint32_t where; /* 1 memory, 2 disk */
	uint64_t step;
	uint32_t world_saved; /* ranks of the job that wrote it */
	/* the numbers of tensors that were filled; that were declared and are not in the checkpoint
	 * (CKPT_LENIENT); that are in the checkpoint and were not declared. ckpt_unmatched has the
	 * names of the last two */
	uint32_t ntensor, nmissing, nunused;
	uint32_t npassed, pad; /* the number of newer steps that were skipped as damaged */
	char id[40];	       /* of the checkpoint; empty from memory */
	char passed[512];      /* which steps were skipped and why, one a line, cut to this size */
	/* from what each average of ckpt_average goes on, and which averages of the step are not
	 * declared any more, one a line, cut to this size; empty: none is declared, or it was a
	 * DRY_RUN */
	char averages[512];
};

struct ckpt_stats {
	uint32_t size, pad;
	uint64_t taken, skipped, torn, staged, persisted, committed, failed, last_committed_step;
	uint64_t stall_ns_sum, stall_ns_max; /* time spent inside ckpt_snapshot and ckpt_guard */
	/* what the daemon and the library have copied of this rank, and the time that each of them
	 * took, added up: they copy at the same time, so a snapshot's copy may end sooner */
	uint64_t copy_bytes, copy_ns;
	uint64_t unguarded, reattached;
	uint64_t stall_log2_ns[40]; /* [i]: calls that took [2^i, 2^(i+1)) ns */
	/* of the last step that reached the state, from its first mark */
	uint64_t staged_ns, persisted_ns, committed_ns;
	/* Averages (ckpt_average): how many steps have been taken in since the average was copied or
	 * seeded, and how many of those that were marked have been left out, because a snapshot was
	 * skipped or torn, or ckptd was late. Steps that a rule of the job keeps out (gate_loss,
	 * CKPT_NO_EMA, values that are not finite) are in neither. Both go on after a restore. They
	 * are those of the newest step that has its averages; if the job has several, of the one
	 * that has left out the largest share. More than 1 %: opts.log of rank 0 says so, once */
	uint64_t average_taken, average_left_out;
	/* if an average says `every`: calls of ckpt_guard and ckpt_snapshot that have waited for a
	 * copy or for averages, and for how long, which is in stall_ns_sum, too */
	uint64_t average_waits, average_wait_ns;
	/* steps that persist_every selected, and in whose place a newer one was written, because
	 * the disk was still busy with an older one */
	uint64_t thinned;
};

/* What ckpt_tensors and ckpt_unmatched list: a tensor, or a blob, whose component is "blob". All of
 * it is the library's, and valid until the function returns. */
enum ckpt_what {
	CKPT_SAVED,    /* ckpt_tensors: the step has it */
	CKPT_MISSING,  /* it is declared, and not in the step */
	CKPT_UNUSED,   /* it is in the step, and no rank declares it */
	CKPT_MISMATCH, /* it is in both, and what was saved does not fit what is declared */
};
struct ckpt_tensor_info {
	uint32_t size, what; /* size: of this structure; what: enum ckpt_what */
	/* of: "" where it belongs to no other tensor */
	const char *component, *name, *of;
	/* as saved; of a MISSING one as declared. The bytes of a blob are U8 in one dimension */
	uint32_t dtype, role, cls, ndim;
	const uint64_t *shape; /* [ndim] global */
	/* fp: the fingerprint that ckptctl show prints, where fp_known is 1. step: that it is in,
	 * or was looked for */
	uint64_t numel, fp, step;
	/* blob: 1 for a blob, media: its enum ckpt_media; rank: whose, of a blob per rank, else
	 * UINT32_MAX */
	uint32_t fp_known, blob, media, rank;
	const char *text; /* MISMATCH: in words, by lines; else "" */
};
/* Less than 0 ends the call, which returns it. It may call other functions of this handle, but not
 * ckpt_detach. */
typedef int ckpt_tensor_fn(void *arg, const struct ckpt_tensor_info *t);

/* Attach this rank to the daemon. If there is none, the call succeeds detached and the library
 * keeps trying, unless CKPT_REQUIRE is set (see the vocabulary). -ECONNREFUSED, -ETIMEDOUT, -EBUSY,
 * -ESTALE, -EACCES, -EPERM, -EPROTO, -EINVAL. *ret_ckpt is NULL on failure.
 *
 * Who has the job: one launch. Attaching and restoring never end a launch that runs.
 *	if the launch that has the job                 this launch
 *	- has ended, or a rank of it has died          has the job from now on
 *	- has an older `restart` of the same `run`,    has the job from now on
 *	  or a lower `generation` than is given here
 *	- runs, and has not marked a step yet          attaches beside it
 *	- runs, and has marked steps                   -EBUSY: the sentence names its process, its
 *	                                               newest step and the age of that; with
 *	                                               CKPT_TAKEOVER it attaches beside it
 *	- is on another host, so that nobody here      attaches beside it
 *	  can know whether it runs
 * A launch that attaches beside another one restores committed steps, and has the job from its
 * first ckpt_snapshot on, which waits for that. That one fails with -ESTALE, and takes nothing, if
 * the other launch has marked a step meanwhile (without CKPT_TAKEOVER), or has committed one since
 * this one restored: restore again, and mark. If this launch has CKPT_TAKEOVER, such a second
 * restore ends the other launch, so that the mark after it is taken.
 * Who had the job before gets -ESTALE from ckpt_snapshot, and commits nothing more. */
int ckpt_attach(const struct ckpt_opts *opts, ckpt **ret_ckpt, struct ckpt_err *err);

/* Declare a mesh: the names and sizes of its dimensions, and the rank at each coordinate
 * (row-major; NULL: 0, 1, 2, ...). Ranks must be distinct; the mesh may be a part of the world. A
 * rank outside a tensor's mesh holds nothing of it. */
int ckpt_mesh(ckpt *c, uint32_t ndim, const char *const *name, const uint32_t *dim,
	      const uint32_t *rank, uint32_t *ret_mesh, struct ckpt_err *err);

/* Shared memory, zeroed, 2 MiB-aligned, that the daemon can read: the zero-copy path for host
 * tensors. It stays mapped until ckpt_detach, whatever happens to the daemon. If there is no
 * daemon, the library makes it locally and shares it when it attaches. All of it is in memory when
 * the call returns, on huge pages where the kernel has some: allocate what will be used. -ENOMEM:
 * the host cannot give so much (/proc/meminfo, MemAvailable).
 * With CKPT_KEEP_MEMORY in ckpt_opts.flags it stays mapped until the process exits, with its
 * contents: use this if parameters may still be read or written after ckpt_detach. Nothing frees it
 * earlier. After ckpt_detach the daemon copies nothing from it. A later handle treats it as any
 * other memory of the process. */
int ckpt_alloc(ckpt *c, uint64_t bytes, void **ret_ptr, struct ckpt_err *err);

/* Declare a tensor. The library copies all arrays, but not the memory that .local points to. After
 * an add, move or drop that follows a seal, call ckpt_seal again; until then snapshots are
 * skipped.
 * ckpt_tensor_move: the tensor lies in other memory now, from ckpt_alloc or not, and may have other
 * strides. local and nlocal are as in ckpt_tensor. -EINVAL: there is no tensor of this id, or the
 * memory does not fit it; then nothing has changed. If only moves to the same boxes are pending,
 * ckpt_seal concerns this rank alone: no other rank seals. No step is skipped if ckpt_seal returns
 * before this rank's next ckpt_snapshot. If another rank begins a new epoch meanwhile, call
 * ckpt_seal once more. Call ckpt_guard before you free the old memory; then it may be freed at
 * once.
 * ckpt_tensor_drop: the tensor is no longer saved or restored. -EINVAL: there is no such tensor. */
int ckpt_tensor_add(ckpt *c, const struct ckpt_tensor *t, uint32_t *ret_id, struct ckpt_err *err);
int ckpt_tensor_move(ckpt *c, uint32_t id, const struct ckpt_local *local, uint32_t nlocal,
		     struct ckpt_err *err);
int ckpt_tensor_drop(ckpt *c, uint32_t id);

/* Declare bytes that are copied by value inside ckpt_snapshot: *len bytes at ptr, at most cap. The
 * snapshot reads *len once. If it is more than cap, the step is skipped: see ckpt_blob_resize.
 * how: CKPT_PER_RANK: each rank has its own, with any cap. Without it they are the same on all
 * ranks, with the same cap, and rank 0's are stored. It also says what they are: CKPT_JSON, ...
 * (-EOPNOTSUPP: bits that this version does not know). ckpt_restore does not write blobs back: read
 * them with ckpt_blob_read. */
int ckpt_blob_add(ckpt *c, const char *name, int how, const void *ptr, const uint64_t *len,
		  uint64_t cap, struct ckpt_err *err);

/* Another capacity for a blob: cap is 1 byte to 1 GiB. Call ckpt_seal afterwards: for a blob with
 * CKPT_PER_RANK on this rank alone, as after ckpt_tensor_move, for another one on all ranks, as
 * after ckpt_tensor_add; until then snapshots are skipped. -EINVAL: there is no blob of this name.
 * If a blob is longer than its capacity at a snapshot, nothing is cut: ckpt_snapshot returns
 * CKPT_SKIPPED, ckpt_why names the blob, its length and its capacity, and the next snapshot for
 * which it fits is taken. No rank saves that step. If this rank marks it first, all ranks skip it;
 * if others have marked it before, it is torn for them. */
int ckpt_blob_resize(ckpt *c, const char *name, uint64_t cap, struct ckpt_err *err);

/* Declare an average of the weights, which the daemon computes: it takes no memory of the trainer
 * and no time of it. Call it on all ranks, with the same averages in any order, before ckpt_seal.
 * Every written step then has the average beside the weights: for each averaged parameter an F32
 * tensor of component "ema.NAME" with the parameter's name, role CKPT_AVERAGE, and the parameter's
 * layout. Examples, by `name` and `spec`:
 *
 *	"fast"   "constant decay=.999"
 *	"slow"   "power sigma_rel=.10 *.bias=copy"
 *	"paper"  "diffusers decay=.9999 start=1000 gate_loss=20 head.*=(constant decay=.99)"
 *
 * At each step that is guarded, the daemon replaces the average e by e + (1 - d)(p - e), where p is
 * the weight. It computes in F32, with the bits of torch.lerp on a CPU. d is a function of the
 * schedule and of the step. If steps were skipped or torn since the last update, d is that of the
 * whole distance D. The first step is copied.
 *
 * spec is words with blanks between them. The first is the schedule. k counts steps from `start`.
 *	constant   decay=X: d = X to the power of D
 *	timm       decay=X: as ModelEmaV3 of timm
 *	diffusers  decay=X: as EMAModel of diffusers, where d is min(X, k/(9 + k)) without warmup=1
 *	halflife   fraction=X: the half-life is X times the steps so far (torchtitan)
 *	power      sigma_rel=X, or gamma=X: d = (1 - D/k) to the power of gamma + 1 (EDM2)
 *	uniform    the mean of all steps that were taken in (torch's AveragedModel, SWA)
 *	zero       decay=X: begins at zero, and is corrected for that as Adam's moments are
 * Then, in any order and each at most once:
 *	warmup=1   timm and diffusers: d rises as 1 - (1 + (k - 1)/gamma)^-power, and is
 *	           at most decay. gamma=X and power=X go with it, and are 1 and 2/3 without these words
 *	min_decay=X  timm with warmup=1, and diffusers: d is at least X; 0 without this word
 *	start=N    all steps up to N are copied; 0 without this word
 *	source=S   what is averaged where an F32 tensor of role CKPT_MASTER says with .of that it is
 *	           the parameter's master. master, as without this word: the master, which each rank
 *	           declares that declares the parameter (CKPT_BOXES with nlocal 0 where it holds
 *	           none of it). param: the parameter
 *	gate_loss=X  a step is kept out if its note "loss" is X or more, or not a number
 *	seed=PATH  the directory of a step, from whose average of this name, or else from whose
 *	           weights, the average begins if the job has none yet. ckpt_seal opens PATH; a
 *	           relative one begins at the working directory of the process. Once the job has
 *	           an average, PATH may be removed, and the word left out. If the job has steps,
 *	           and PATH is needed and cannot be used, the average begins with a copy, and the
 *	           logs say so
 *	kahan      sum with a correction term. It is advised, and the log says so, if decay is more
 *	           than .99999, because updates are then lost to rounding
 *	every      no guarded step is left out because averages are late. Whatever ckpt_opts.guard
 *	           says, ckpt_guard waits for its copy, and then until the next ckpt_snapshot has a
 *	           slot; a ckpt_snapshot without a guard before it waits for a slot. Each wait ends
 *	           after 60 s, and if the daemon exits, stops, or is silent for 5 s; then the step
 *	           is left out. After such a wait the calls do not wait again, until a guard finds
 *	           its copy complete and a slot free, or another daemon has taken over. If one
 *	           average of the job has this word, the calls wait for all of them
 * Then rules, of which the first that matches a parameter counts. PATTERN may have * (any
 * characters) and ? (one). It is compared with the tensor's name, or, if it has a '/', with
 * COMPONENT/NAME.
 *	PATTERN=average    also a buffer, or a tensor of role CKPT_OTHER, of F32, BF16 or F16
 *	PATTERN=copy       the average of this tensor is the tensor itself
 *	PATTERN=skip       the average does not have this tensor
 *	PATTERN=(SCHEDULE PARAM=X ...)  average it by this schedule
 * Without a rule, parameters of F32, BF16 and F16 are averaged, unless their class is CKPT_CONST.
 * These, other parameters, and buffers are copied; all other tensors are skipped. A master whose
 * parameter no rank declares counts as that parameter, with the name that is in .of. What is copied
 * is stored once, as the step's own tensor.
 *
 * A step is also kept out if a rank has marked it with CKPT_NO_EMA, or if an averaged tensor has a
 * value that is not finite. It then has the average of the step before it. A step that was marked,
 * and is neither taken in nor kept out, is left out: it was skipped or torn, or its averages were
 * late. ckpt_stats, `ckptctl ema` and attributes of the step count these.
 *
 * Memory: an average takes, in each slot of a rank, 4 bytes for each averaged element that the rank
 * saves, or 8 with kahan. ckpt_opts.memory_max includes it, and the log says it at ckpt_seal. With
 * 2 slots and without `every` only every second step is averaged (ckpt_opts.slots).
 *
 * spec NULL removes the average. To change one, remove it and declare it anew. After each of these
 * calls, call ckpt_seal on all ranks. Averages of the same names go on; one with another schedule
 * goes on with its values, and its history notes the change.
 *
 * For evaluation in the trainer, declare tensors of component "ema.NAME", class CKPT_SINK and dtype
 * CKPT_F32 with the parameters' names and layouts: ckpt_restore reads the average into them, and
 * with CKPT_PEEK it does that alone, at any time.
 * Tensors of such components cannot have another class.
 *
 * 0; -EINVAL: spec has a word that does not belong there (err says which and what may stand
 * there), name is NULL, or spec is NULL and there is no such average; -EALREADY: there is one of
 * this name; -E2BIG: all averages together have more than 64 schedules; -ENOMEM. All other
 * mistakes of all averages are listed by ckpt_seal, which returns -EINVAL on each rank alike: a
 * name that is empty, longer than 63 bytes, has a '/' or a blank, or ends in ".carry"; a decay
 * outside [0, 1), or another value outside its range; a rule that matches nothing, that an earlier
 * one hides or contradicts, or that says average of what cannot be averaged; a seed that cannot be
 * used, if the job has no steps yet; different averages on different ranks. */
int ckpt_average(ckpt *c, const char *name, const char *spec, struct ckpt_err *err);

/* Declare an attribute: a key and a text, which every later step has, and which ckptctl show and
 * ckptctl convert keep. Call it before ckpt_seal; to change one, call it again, and to remove one,
 * with value NULL; after each of these calls, call ckpt_seal on all ranks. Those of rank 0 are
 * stored; all ranks may make the same calls, and other ranks' attributes are not compared.
 *	ckpt_attr(c, "git", "4f1c2ab", &e);
 *	ckpt_attr(c, "ckpt.alias:model/head.weight", "model/wte.weight", &e);
 * key: 1 to 2060 bytes of UTF-8 without control characters. Keys that start with "ckpt." are
 * reserved, except "ckpt.alias:COMPONENT/NAME" with the value "COMPONENT/NAME": it says that the
 * program knows a tensor of the step, the second one, under the first name, too (tied weights).
 * value: at most 4096 bytes of UTF-8; it may be empty, and may have several lines.
 * 0; -EINVAL: key or value is not as above; -ENOENT: value is NULL, and there is no such attribute;
 * -E2BIG: there are 65000 already; -ENOMEM. */
int ckpt_attr(ckpt *c, const char *key, const char *value, struct ckpt_err *err);

/* Send the declarations to the daemon, and wait up to wait_ns until every rank has done so and the
 * slots are in memory. 0: ready. CKPT_SKIPPED: not yet. Then training may start, snapshots are
 * skipped until it is ready, and another call continues to wait; err names the ranks that are
 * missing (after 5 s opts.log does so too). -EINVAL: this declaration contradicts another rank's
 * (all contradictions are listed), no rank holds some of the elements, or averages cannot be made
 * as declared (all mistakes are listed): correct it and seal again. -ECONNRESET: a rank has ended:
 * start all ranks again. If one rank seals again, all ranks must: that is a new epoch. A rank may
 * do so at once: on the others, whose ckpt_seal has not returned yet, it still returns 0. */
int ckpt_seal(ckpt *c, uint64_t wait_ns, struct ckpt_err *err);

/* [fast] The state is consistent and stays so until the next ckpt_guard: the daemon may copy it.
 * Steps must grow from call to call, by less than 2^35 within a launch; the first may be any
 * number. A step that was skipped or torn may be marked again, by each rank as often as it likes:
 * it is taken when a slot is free and all ranks mark it. 0, CKPT_SKIPPED, CKPT_DETACHED,
 * CKPT_FAILING; -EINVAL (step, flags), -ESTALE, -ECHILD, -EUCLEAN. With CKPT_FINAL it waits up to
 * ckpt_mark.wait_ns for a slot, and so it does with `every` (ckpt_average) if no guard has done so.
 * -EUCLEAN: the newest ckpt_restore failed with another error than -ENOENT; or the job has steps,
 * on disk or staged, and no rank has called ckpt_restore. No snapshot is taken, because the first
 * commit would set these steps aside. This ends when a restore succeeds, or with ckpt_fresh; after
 * the first snapshot of a launch it begins again only if a later ckpt_restore fails. If that one
 * had begun to write, an earlier ckpt_fresh does not help.
 * The daemon writes a snapshot only when it knows that the trainer did not change the state during
 * the copy: the snapshot is FINAL, or ckpt_guard, ckpt_wait for this same step, or ckpt_detach has
 * followed it. If another snapshot follows without a guard in between, the first is counted as
 * unguarded and never written.
 * Memory that is not from ckpt_alloc costs two system calls more. A thread of the library copies it
 * into the daemon's slot. The kernel checks each page: if memory is no longer mapped, the snapshot
 * is torn, and ckpt_why and the logs name the tensor. Memory that was freed and is still mapped is
 * not noticed. Such a copy takes about 1.6 times the processor time of the daemon's, or 1.2 times
 * if the memory is on huge pages. A second thread copies, too, if there are at least three
 * processor cores for each rank. If the process is bound to some cores, the library counts these
 * for this rank alone.
 * Memory of CUDA devices: the call records an event on each stream of the mark, and copies
 * CKPT_VOLATILE tensors there by one more call for each device. It does not wait for a device. If
 * the host is ahead of the device by more than a step, the copy of the step before may still be
 * queued: then this one is skipped. */
int ckpt_snapshot(ckpt *c, uint64_t step, const struct ckpt_mark *mark);

/* [fast] unless the copy is late, ckpt_opts.check asks for a full comparison, or an average says
 * `every` (ckpt_average): then it waits up to 60 s. Call it before you
 * modify the state or unmap its memory. When it has returned, with any result, you may modify the
 * state. 0 or CKPT_TORN. */
int ckpt_guard(ckpt *c, const struct ckpt_mark *mark);

/* After which step does the launch stop? Ranks that are to stop, say because of SIGTERM, must stop
 * after the same step, or the others wait for them in their next collective for ever. Each rank
 * calls ckpt_last at the beginning of every step, before it changes the state, and whoever wants
 * the launch to stop calls ckpt_stop, on one rank or on several, whenever it likes:
 *
 *	void on_sigterm(int sig) { ckpt_stop(c); }
 *	...
 *	for (bool last = false; !last; ) {
 *		last = ckpt_last(c, step + 1) == 1;
 *		forward_backward();
 *		ckpt_guard(c, NULL);
 *		optimizer_step();
 *		ckpt_snapshot(c, ++step, last ? &final : NULL);
 *	}
 *
 * [any] ckpt_stop may be called from signal handlers, too: it takes no lock, makes no system call,
 * and does not wait. The last step is then one more than the highest step for which ckpt_last has
 * returned 0 to any rank. If it is called again, nothing changes. Like every other call, it must
 * not come after ckpt_detach has begun: take the signal handler away first. 0, -EINVAL, -ECHILD.
 * [fast] ckpt_last: 1: this step is the last one, or beyond it; 0: it is not, and no rank will be
 * told that it is. -EINVAL: step is 2^55 - 2 or more; -ECHILD. The steps of a rank must not shrink,
 * except after ckpt_restore: there all ranks begin anew with the restored step, and if ckpt_stop
 * was called before, the first step after the restored one is the last.
 *
 * The ranks of a launch agree from the moment that ckpt_seal has returned 0 on all of them, also
 * while their daemon is stopped, exits, or is replaced. Before that, and if they have never been
 * attached to one daemon together, each rank knows only of its own calls, or of those of the ranks
 * on the same daemon; what was asked of it counts for all ranks as soon as they agree. */
int ckpt_stop(ckpt *c);
int ckpt_last(ckpt *c, uint64_t step);

/* [any] Wait until a step has reached a state. -ETIMEDOUT; -ENOENT, at once: it was skipped or
 * torn, or is staged and will not be written, because persist_every does not select it or because it was
 * thinned (then err names the step that is written in its place, and CKPT_STAGED is reached all the
 * same); -EIO, -ENOSPC, ...: it could not be written, err says why. The
 * daemon takes the call as a promise that this rank does not modify the step's state meanwhile.
 * One rank may wait for CKPT_STAGED while the others wait in a barrier, if each of them has called
 * ckpt_guard at least once, before its first snapshot or later, and between every two snapshots. If
 * a rank has never called ckpt_guard, the daemon cannot know that it does not modify its state: it
 * must call ckpt_guard, or wait for the step too, before the barrier. For higher states every rank
 * must do so. */
int ckpt_wait(ckpt *c, uint64_t step, int state, uint64_t wait_ns, struct ckpt_err *err);

/* The restorable steps, newest first, at most n of them. Returns their number. -ETIMEDOUT after
 * ckpt_opts.wait_ns; -ECONNRESET: no daemon is attached. */
int ckpt_steps(ckpt *c, struct ckpt_step *ret_steps, uint32_t n);

/* List what a restorable step holds, before anything is declared or after. It calls fn for each
 * tensor and blob, in no particular order. want is as in ckpt_restore. With CKPT_LATEST it lists
 * the step that ckpt_restore would take now; newer ones whose MANIFEST is damaged are skipped. With
 * CKPT_FROM_DISK a step that is still being written does not count. LENIENT, DRY_RUN, EXPLICIT,
 * ALLOW and deadline_ns mean nothing here. It is not collective, and it holds no step: when it
 * returns, another step may be the newest, and this one may be removed. To restore the step that
 * was listed, give ckpt_restore the .step that fn got.
 * 0; -EINVAL: fn is NULL; what fn returned, if it is less than 0; -ENOENT: no such step, or none;
 * -EUCLEAN, -EBADMSG, -EPROTONOSUPPORT as ckpt_restore; -ETIMEDOUT after ckpt_opts.wait_ns;
 * -ECONNRESET: no daemon is attached. */
int ckpt_tensors(ckpt *c, const struct ckpt_want *want, ckpt_tensor_fn *fn, void *arg,
		 struct ckpt_err *err);

/* After ckpt_restore, also if it was a DRY_RUN or returned -EMEDIUMTYPE: list what did not match in
 * the newest step that it compared with the declarations of all ranks. It calls fn for each tensor
 * that is CKPT_MISSING, CKPT_UNUSED or CKPT_MISMATCH, with ckpt_want.only for those of that
 * component, and never for a blob. If everything matched, fn is not called. 0; -EINVAL: fn is NULL;
 * what fn returned, if it is less than 0; -ENOENT: the attached daemon has compared nothing for
 * this launch; -ETIMEDOUT, -ECONNRESET as ckpt_tensors. */
int ckpt_unmatched(ckpt *c, ckpt_tensor_fn *fn, void *arg);

/* Fill every declared tensor from a checkpoint, on the present mesh, whatever mesh wrote it. Call
 * it on all ranks, with the same want, after ckpt_seal. All ranks restore the same step. All
 * declarations are checked before the first byte is written. The daemon writes memory of
 * ckpt_alloc. The library writes other memory, from two windows of at most 64 MiB; if that is not
 * mapped, or not writable, all ranks get -EFAULT and memory is undefined. With CKPT_LATEST, if a
 * step is damaged, it is quarantined and the next older one is restored in the same call, on all
 * ranks; got.passed and the logs name each skipped step with its reason. With CKPT_EXACT no older
 * one is restored. Averages go on from the restored step too; got.averages and the logs say from
 * what each of them does. They are read into memory of the trainer only where it has declared them
 * (ckpt_average): the memory of weights gets the weights.
 * It may be called again after snapshots, on all ranks: to go back when the state has gone wrong.
 * It acts like a ckpt_guard that does not wait, so a copy that is not finished is torn. After it
 * has succeeded, steps count on from the restored one, and the numbers above it may be marked
 * again. The daemon gives up the newer steps of this launch in memory at once. It gives up one that
 * is being written, too, unless that is about to be committed. The first commit that follows sets
 * aside the steps on disk above the restored one. Until then another ckpt_restore can find them,
 * unless a newer snapshot is staged. With DRY_RUN nothing changes.
 *
 * With CKPT_PEEK in want.flags it fills the declared CKPT_SINK tensors alone (with .only those of
 * that component: "ema.NAME" for an average), and nothing else changes: the launch stays where it
 * is, no copy is torn, no step is given up or set aside, and snapshots go on. It may be called at
 * any time after ckpt_seal, on all ranks, for example between two snapshots to evaluate an average.
 * With CKPT_LATEST it takes the newest step, in memory or on disk, that has all of these tensors;
 * newer steps that lack one are not errors, and got.passed names only damaged ones. got.step says
 * which step it was. It does not combine with LENIENT and EXACT. Blobs are not read. -ENOENT: no
 * step has these tensors; -EINVAL: no rank has declared one; -EMEDIUMTYPE: the step has them in
 * another shape or type. After an error the memory of these tensors is undefined, and nothing else:
 * ckpt_snapshot goes on as before. If a step on disk proves damaged, it is quarantined, as by every
 * ckpt_restore.
 *
 * With CKPT_EXPLICIT in want.flags, a step that is not restored by copying alone is -EMEDIUMTYPE,
 * and nothing is written: the error lists each tensor and what would be done to it, with the bytes,
 * and ckpt_unmatched lists all of them. Kinds are reshard (a rank would hold other elements than
 * the rank of its number did, or none any more), reduce (a pending reduction is carried out),
 * replicate (more ranks would hold an element), and drop (a tensor or an average of the step is not
 * declared). With .only those of other components are not dropped, and with PEEK none is. A step
 * does not say which ranks had copies of a tensor in boxes, so copies of one are a replicate.
 * CKPT_ALLOW_RESHARD, REDUCE, REPLICATE and DROP permit a kind; without EXPLICIT they are -EINVAL.
 * EXPLICIT does not concern tensors that the step lacks (LENIENT), or blobs.
 *
 * -ENOENT: there is nothing to restore, and memory is as it was before; with CKPT_LATEST training
 * may start at step 0. If an earlier call had begun to write and failed - its daemon ended, say -
 * memory is undefined, and -EUCLEAN comes instead of -ENOENT, with every want but a DRY_RUN, until
 * a restore succeeds: end the process, or fill all memory anew and call ckpt_fresh. -EINVAL: the
 * call is malformed, ckpt_seal is due, or the ranks want different steps. After every other error
 * ckpt_snapshot returns -EUCLEAN, until a restore succeeds. -EUCLEAN: there are steps, and none can
 * be restored now (with EXACT: the newest cannot). -EBADMSG: the same, and memory is undefined,
 * because a damaged step was tried; with LENIENT also if a tensor that should stay as it is may
 * have been written from a damaged step. -EMEDIUMTYPE with all mismatches. -ETIMEDOUT: some ranks
 * did not call (err names them, and after 5 s opts.log does so too), or no daemon was attached
 * within deadline_ns, or the daemon was silent for 5 s, or the step was not read within an hour; in
 * the last two cases memory is undefined. */
int ckpt_restore(ckpt *c, const struct ckpt_want *want, struct ckpt_got *ret_got,
		 struct ckpt_err *err);

/* After ckpt_restore: a blob of the restored step, of any rank of the job that wrote it (0 for a
 * blob that is not per rank). It copies at most cap bytes and returns the full length. -ENOENT. */
int ckpt_blob_read(ckpt *c, const char *name, uint32_t old_rank, void *buf, uint64_t cap,
		   uint64_t *ret_len);

/* The sum over the elements that this rank owns. The sum over all ranks is the fingerprint that
 * ckptctl show prints. CUDA: between a ckpt_snapshot that returned 0 and its ckpt_guard it waits
 * for the streams of that snapshot alone, as ckpt_restore waits for those of ckpt_want.more. At
 * other times no stream is known that exists for certain, and it waits for all streams of the
 * device: if one of them is being captured into a graph, that fails (-EBUSY), and ends the
 * capture. */
int ckpt_fingerprint(ckpt *c, uint32_t id, uint64_t *ret_local);

int ckpt_stats(ckpt *c, struct ckpt_stats *ret_stats); /* [any] */

/* Start over although the job has committed steps: ckpt_snapshot no longer returns -EUCLEAN. One
 * rank's call is enough for the launch. The first commit sets the existing steps aside and removes
 * none. 0, -ESTALE, -ECHILD; -ETIMEDOUT: the daemon did not answer within ckpt_opts.wait_ns, so the
 * other ranks still get -EUCLEAN: call again. */
int ckpt_fresh(ckpt *c);

/* [any] Why the newest ckpt_snapshot took nothing or was torn later, or why the daemon cannot write
 * the steps that were taken: the negative errno and the sentence. 0: none of these is so. */
int ckpt_why(ckpt *c, struct ckpt_err *err);

/* For bindings: the library's sizeof of a structure of this header ("ckpt_opts"). 0: there is no
 * structure of that name. */
uint32_t ckpt_sizeof(const char *structure);

/* Detach this rank. drain_ns 0: return at once; the daemon writes the staged steps. Otherwise wait
 * at most drain_ns until the newest step is committed. In addition it takes at most a second, and
 * the time of ckpt_guard; and at most 5 s for copies of CUDA devices that the guard has let go on.
 * It always frees the handle, except in a child process, or if a CUDA device hangs: then it returns
 * after about 15 s, and what the device may still write to stays until the process ends. It unmaps
 * the memory from ckpt_alloc, unless CKPT_KEEP_MEMORY is set. */
int ckpt_detach(ckpt *c, uint64_t drain_ns);

const char *ckpt_version(void);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
