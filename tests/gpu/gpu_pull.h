/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_pull.h - memory of one process on the device, copied out by another one (CUDA IPC), as E5
 * does it. ckptd has no such process.
 *
 * The owner of the memory changes it, marks it (pull_mark), and calls the guard (pull_guard) before
 * it changes it again. The second process copies what was marked. One word, which both change by
 * compare-and-swap, decides: of a snapshot that the guard has given up no copy is accepted. No
 * stream waits for the other process. The owner holds a robust mutex of the page while it lives:
 * the kernel marks it before anything of a process that dies is released, so memory whose owner
 * still had it behind the copy was there during all of the copy; other copies are not accepted.
 */
#ifndef TESTS_GPU_PULL_H
#define TESTS_GPU_PULL_H
#include "tests/gpu/gpu_device.h"
#include <pthread.h>
#include <stdatomic.h>

#define PULL_TENSORS 3u
#define PULL_SEED 23u /* of gpu_fill: of the i-th tensor PULL_SEED + i, and the number as step */
#define PULL_ENV "GPUBENCH_PULL" /* the descriptor of the page, for both processes */

/* When the second process kills the owner: before it queues a chunk, or behind the last one. */
enum pull_moment {
	PULL_AT_ONCE, /* and goes on while the owner dies */
	PULL_DEAD,    /* and goes on when it is dead */
	PULL_CHANGED, /* when the guard has given the snapshot up and the memory was changed */
	PULL_SPARED,  /* the same, and it kills nobody: this copy is the last one */
	PULL_KILLS = PULL_SPARED
};
struct pull_kill {
	uint32_t number, chunk; /* number 0: no copy has such a moment */
	enum pull_moment moment;
	/* What it then does not regard, so that a test sees what comes of that: the guard's word;
	 * the owner's death. */
	bool blind_guard, blind_death;
};

/* How the newest copy ended. */
enum pull_end { PULL_NONE, PULL_ACCEPTED, PULL_GIVEN_UP, PULL_ORPHAN };

/* What both processes map. */
struct pull_page {
	/* The owner's stream writes the number of a snapshot here, behind what changed the state:
	 * from then on it may be copied. */
	_Atomic uint32_t stable;
	/* number << 2 | state. OPEN -> DONE by the second process, OPEN -> TORN by the guard */
	_Atomic uint64_t word;
	pthread_mutex_t owner; /* robust: see above */
	_Atomic int pid;       /* of the owner; 0: it has not given its memory yet */
	_Atomic bool ready, stop;
	_Atomic bool check; /* the state is that of gpu_fill: compare it */
	struct gpu_ipc handle[PULL_TENSORS];
	uint64_t bytes[PULL_TENSORS], chunk_bytes;
	struct pull_kill kill;
	_Atomic bool give_up;	  /* the guard waits no longer */
	_Atomic uint32_t changed; /* the owner's memory is all of this number */
	/* the second process's, until it ends */
	_Atomic uint64_t wrong, copied, copy_ns, open_ns, killed_ns;
	_Atomic uint32_t accepted, torn; /* copies; of them those with wrong words */
	_Atomic int end;		 /* enum pull_end */
	char why[300];			 /* ready is set, and it does not pull */
};

/* A page that both processes inherit: its descriptor. */
int pull_page_make(struct pull_page **ret);
/* The page of PULL_ENV. */
struct pull_page *pull_page_find(void);

/* The owner, from now on in the thread that calls this. bytes of each tensor. ret_page: the page's
 * address on the device. false: there is no IPC here, and why. */
bool pull_give(struct pull_page *page, const cuda_ptr at[PULL_TENSORS], uint64_t bytes,
	       cuda_ptr *ret_page, char why[300]);
/* Whatever is queued on the stream by now is done when the second process sees the number. */
void pull_mark(struct pull_page *page, cuda_ptr page_at, uint32_t number, cuda_stream s);
/* Was it copied in this time, and before give_up? If not it is given up. */
bool pull_guard(struct pull_page *page, uint32_t number, uint64_t ns);

/* The second process: copies what is marked, until `stop` or the owner's death. It ends by gpu_die
 * if the driver refuses a copy. */
void pull_run(struct pull_page *page);

void pull_nap(void);
#endif
