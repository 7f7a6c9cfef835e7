// SPDX-License-Identifier: Apache-2.0
// exp_pull_kill.c - E5's kills: SIGKILL of a process while a second one copies its memory
// (gpu_pull.h). Invariant: the moments are drawn from SEED, and the second process itself kills its
// owner there, so each run has the same.
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_pull.h"
#include "tests/gpu/gpubench.h"
#include "tests/lib/draw.h"
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#define NUMBERS 3u	      /* the owner dies at one of the first snapshots */
#define CHUNKS 16u	      /* of a tensor */
#define STATE_MAX (256 * MIB) /* bytes that are copied */
#define LIFE_SECONDS 60u
#define WAIT_NS (LIFE_SECONDS * NS_PER_S)
#define END_S_MAX 10. /* from the kill to the end of the second process */

/* --- the owner --- */
int again_owner(void)
{
	struct pull_page *page = pull_page_find();
	uint64_t bytes = page->bytes[0];
	cuda_stream s = gpu_stream();
	cuda_ptr at[PULL_TENSORS], page_at;

	for (uint32_t i = 0; i < PULL_TENSORS; i++)
		at[i] = gpu_alloc(bytes);
	if (!pull_give(page, at, bytes, &page_at, page->why))
		return 1;
	for (uint32_t number = 1; !atomic_load(&page->stop); number++) {
		for (uint32_t i = 0; i < PULL_TENSORS; i++)
			gpu_fill(at[i], bytes / 8, PULL_SEED + i, number, s);
		pull_mark(page, page_at, number, s);
		GPU(gpu.cu->stream_sync(s));
		atomic_store(&page->changed, number);
		(void)pull_guard(page, number, WAIT_NS);
	}
	return 0;
}

/* --- a life --- */
struct life {
	struct pull_page *page;
	char fd[16];
	pthread_t thread; /* waits for the owner */
	_Atomic bool ended;
	int status, owner_status;   /* of the second process; of the owner */
	char out[1024], owner[512]; /* what they print */
	uint64_t end_ns;	    /* from the kill to the end of the second process */
};

static void *owner_run(void *arg)
{
	struct life *l = arg;

	if (again_run("owner", PULL_ENV, l->fd, LIFE_SECONDS, l->owner, sizeof l->owner,
		      &l->owner_status) < 0)
		l->owner_status = -1;
	atomic_store(&l->ended, true);
	return NULL;
}

/* The owner gives its memory, the second process copies it until the kill, and both end. false: the
 * driver does not allow it, and why. */
static bool life_run(struct life *l, const struct pull_kill *k, char why[300])
{
	uint64_t state = MIN(bench.state_bytes, STATE_MAX);
	int fd = pull_page_make(&l->page);

	l->page->bytes[0] = align_up(state / PULL_TENSORS, UINT64_C(4096) * CHUNKS);
	l->page->chunk_bytes = l->page->bytes[0] / CHUNKS;
	l->page->kill = *k;
	atomic_store(&l->page->check, true);
	snprintf(l->fd, sizeof l->fd, "%d", fd);
	if (pthread_create(&l->thread, NULL, owner_run, l))
		gpu_die("no thread");
	while (!atomic_load(&l->page->pid) && !atomic_load(&l->ended))
		pull_nap();
	if (!atomic_load(&l->page->pid) && !l->page->why[0])
		gpu_die("the owner of the memory ended with status %d: %s", l->owner_status,
			l->owner);
	if (atomic_load(&l->page->pid) &&
	    again_run("pull", PULL_ENV, l->fd, LIFE_SECONDS, l->out, sizeof l->out, &l->status) < 0)
		gpu_die("no second process");
	snprintf(why, 300, "%s", l->page->why);
	if (atomic_load(&l->page->killed_ns))
		l->end_ns = now_ns() - atomic_load(&l->page->killed_ns);
	atomic_store(&l->page->stop, true);
	atomic_store(&l->page->give_up, true);
	(void)pthread_join(l->thread, NULL);
	(void)close(fd);
	return !why[0];
}

static void life_end(struct life *l)
{
	munmap(l->page, 4096);
}

/* --- what has come of all of them --- */
struct lives {
	uint32_t n, accepted, torn;
	uint32_t end[PULL_ORPHAN + 1]; /* how the copy ended at which the owner was killed */
	uint32_t errors;	       /* the driver refused it */
	uint32_t no_end;	       /* none of these */
	uint64_t end_ns;	       /* the longest */
	char first[300];	       /* of no_end */
};

static void lives_add(struct lives *all, const struct life *l)
{
	struct pull_page *page = l->page;
	bool killed = atomic_load(&page->killed_ns) && l->owner_status == 128;

	all->n++;
	all->accepted += atomic_load(&page->accepted);
	all->torn += atomic_load(&page->torn);
	all->end_ns = MAX(all->end_ns, l->end_ns);
	if (killed && l->status == 0)
		all->end[atomic_load(&page->end)]++;
	else if (killed && l->status == 1 && strstr(l->out, "CUDA_ERROR"))
		all->errors++;
	else if (!all->no_end++ && l->status < 0)
		snprintf(all->first, sizeof all->first,
			 "the second process has not ended %u seconds after it began, in life %u",
			 LIFE_SECONDS, all->n);
	else if (all->no_end == 1)
		snprintf(all->first, sizeof all->first,
			 "life %u: the second process ended with status %d, its owner with %d: "
			 "%.100s%.100s",
			 all->n, l->status, l->owner_status, l->out, l->owner);
}

static void rows_of(const struct lives *all, uint64_t hbm)
{
	char what[400];

	snprintf(what, sizeof what,
		 "%u kills of the owner of the memory, at moments of a copy that SEED=%s draws: "
		 "copies that were accepted and are of two steps; denominator: accepted copies",
		 all->n, getenv("SEED"));
	row_put(&(struct row){ .name = "kill_torn",
			       .what = what,
			       .value = all->torn,
			       .numerator = all->torn,
			       .denominator = MAX(all->accepted, 1u),
			       .bound = ROW_AT_MOST,
			       .n = all->n,
			       .failed = all->accepted ? NULL : "no copy was accepted" });
	snprintf(what, sizeof what,
		 "kills after which the second process did not end with a result or a reason; the "
		 "others: %u accepted, %u given up by the guard, %u refused because the owner was "
		 "dead, %u errors of the driver",
		 all->end[PULL_ACCEPTED], all->end[PULL_GIVEN_UP], all->end[PULL_ORPHAN],
		 all->errors);
	row_put(&(struct row){ .name = "kill_no_end",
			       .what = what,
			       .value = all->no_end,
			       .numerator = all->no_end,
			       .denominator = all->n,
			       .bound = ROW_AT_MOST,
			       .n = all->n,
			       .failed = all->no_end ? all->first : NULL });
	row_put(&(struct row){ .name = "kill_end",
			       .what = "the longest time from a kill to the end of the second "
				       "process",
			       .unit = "s",
			       .value = (double)all->end_ns / 1e9,
			       .bound = ROW_AT_MOST,
			       .limit = END_S_MAX,
			       .n = all->n,
			       .time = true });
	row_put(&(struct row){ .name = "kill_hbm_kept",
			       .what = "device memory that is not free again when both are dead",
			       .unit = "MiB",
			       .value = ((double)hbm - (double)gpu_free_bytes()) / (double)MIB,
			       .bound = ROW_AT_MOST,
			       .limit = 2,
			       .n = all->n,
			       .time = true });
}

/* Of one more life: the wrong words of what was accepted. */
static void words_put(const char *name, const char *what, enum row_bound bound,
		      const struct pull_kill *k)
{
	struct life l = { 0 };
	char why[300] = "";

	if (!life_run(&l, k, why))
		row_fail(name, "%s", why);
	else if (l.status)
		row_skip(name, "the second process ended with status %d: %.*s", l.status,
			 (int)strcspn(l.out, "\n"), l.out);
	else
		row_put(&(struct row){ .name = name,
				       .what = what,
				       .value = (double)atomic_load(&l.page->wrong),
				       .bound = bound,
				       .limit = bound == ROW_AT_LEAST });
	life_end(&l);
}

static void controls(void)
{
	struct pull_kill k = { .number = 1, .chunk = CHUNKS, .moment = PULL_SPARED };

	words_put(
		"kill_guard",
		"wrong words that are accepted if the guard gives up a copy whose owner lives, and "
		"the memory changes meanwhile",
		ROW_AT_MOST, &k);
	k.blind_guard = true;
	words_put("kill_control",
		  "the same by a process that does not regard the guard: this experiment sees them",
		  ROW_AT_LEAST, &k);
	k = (struct pull_kill){
		.number = 1, .chunk = CHUNKS, .moment = PULL_DEAD, .blind_death = true
	};
	words_put(
		"kill_memory",
		"wrong words that are accepted by a process that does not regard the death of the "
		"owner; 0: this driver keeps the memory of the dead",
		ROW_INFO, &k);
}

void e5_kills(void)
{
	uint32_t kills = bench.small ? 2 * PULL_KILLS : 20;
	uint64_t state, hbm = gpu_free_bytes();
	struct lives all = { 0 };
	char why[300] = "";

	(void)setenv("SEED", "1", 0); /* a row says what it was */
	state = draw_seed("E5");
	fflush(stdout);

	for (uint32_t i = 0; i < kills && !why[0] && !all.no_end; i++) {
		struct pull_kill k = { .number = 1 + (uint32_t)draw_below(&state, NUMBERS),
				       .chunk = (uint32_t)draw_below(&state,
								     CHUNKS * PULL_TENSORS + 1),
				       .moment = i % PULL_KILLS };
		struct life l = { 0 };

		if (life_run(&l, &k, why))
			lives_add(&all, &l);
		life_end(&l);
	}
	if (why[0]) {
		row_skip("kill", "%s", why);
		return;
	}
	rows_of(&all, hbm);
	controls();
}
