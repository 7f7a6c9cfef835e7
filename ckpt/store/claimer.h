/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claimer.h - who has claimed a job: what the file of a claim says, and whether that process lives.
 * The daemon calls it, before it claims a job that another daemon may hold.
 *
 * The file is one line of text: the claimer's nonce, as older versions wrote it alone, and behind
 * it `claim 1` and pairs of a name and a value, the last of which is `end 1`. A line without that
 * end (an older version's, one that is being written, one that a full disk cut short) says nothing.
 * A reader that does not know the number behind `claim` reads nothing either.
 */
#ifndef CKPT_STORE_CLAIMER_H
#define CKPT_STORE_CLAIMER_H
#include "ckpt/store/store.h"

/* host: as people call it; boot: of the kernel; space: of process numbers (an inode; 0: unknown) */
struct claimer_host {
	char host[65], boot[40];
	uint64_t space;
};
struct claimer_process {
	int64_t pid;	/* as the daemon of that host sees it; 0: it cannot */
	uint64_t start; /* in clock ticks since the boot; 0: unknown */
};
struct claimer {
	/* token: the same on all ranks of a launch, on every host. run, restart: as in ckpt_opts. 0:
	 * unknown */
	uint64_t token, run, restart;
	uint64_t launch;      /* the same on its ranks of one host, and another launch's never */
	uint32_t world, rank; /* rank: whose attach made the claim */
	struct claimer_process process, daemon; /* of this rank; and what serves it */
	struct claimer_host at;
};

/* This host. alias: what it is called instead, as another host with a kernel of its own (tests);
 * NULL: its name. */
void claimer_here(const char *alias, struct claimer_host *ret);
/* start 0: there is no such process, or it cannot be seen. */
struct claimer_process claimer_process(int64_t pid);

#define CLAIMER_TEXT 512
/* Without a newline. Returns its length, below CLAIMER_TEXT. */
int claimer_print(const struct claimer *c, char ret[CLAIMER_TEXT]);
/* False: it says nothing. Pure. */
bool claimer_parse(const char *text, struct claimer *ret);

enum claimer_life {
	CLAIMER_DEAD,  /* the process has ended, is a zombie, or its host has been booted again */
	CLAIMER_LIVES, /* on this host */
	CLAIMER_ELSEWHERE, /* on another host, or in another container: nobody here can know */
};
enum claimer_life claimer_life(const struct claimer_process *p, const struct claimer_host *at,
			       const struct claimer_host *here);

/* What the file system says of a file that this process makes in .ckptd now, and removes: the time
 * there, and whose it is. */
int claimer_probe(const struct store *s, struct io_stat *ret);
/*
 * The highest claim of the job. *ret_generation: 0: there is none. 0: *ret says who made it, and
 * *ret_age_ns, by the clock of the file system, how long ago (UINT64_MAX: unknown). -ENODATA: its
 * file says nothing. Any other error: it is not known. To read the clock it makes a file in .ckptd
 * and removes it.
 */
int claimer_read(const struct store *s, uint64_t *ret_generation, struct claimer *ret,
		 uint64_t *ret_age_ns, struct ckpt_err *err);
#endif
