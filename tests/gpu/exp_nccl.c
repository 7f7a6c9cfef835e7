// SPDX-License-Identifier: Apache-2.0
// exp_nccl.c - E12's exchange: two ranks, each a process on the same device, restore over NCCL.
// Invariant: a rank that gets no NCCL still restores; then the row is not judged, and says why.
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_job.h"
#include "tests/gpu/gpubench.h"
#include <inttypes.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#define SEED 0x6e63636cu
#define COLS 8192u
#define SECONDS 150u
#define WAIT_NS (60 * NS_PER_S)

/* --- a rank --- */

/* The other rank, and what the library has said of NCCL. */
static int other = -1;
static char said[512];

static void log_take(void *ctx, int level, const char *line)
{
	(void)ctx;
	(void)level;
	if (strstr(line, "NCCL"))
		snprintf(said, sizeof said, "%s", line);
}

static int agree(void *ctx, uint64_t mine, uint64_t *ret)
{
	uint64_t its;

	(void)ctx;
	if (send(other, &mine, sizeof mine, MSG_NOSIGNAL) != sizeof mine ||
	    recv(other, &its, sizeof its, MSG_WAITALL) != sizeof its)
		return -1;
	*ret = MIN(mine, its);
	return 0;
}

/* Rank 0 listens. */
static int other_find(uint32_t rank)
{
	const struct timeval patience = { SECONDS, 0 };
	struct sockaddr_un at = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), one = -1;

	snprintf(at.sun_path, sizeof at.sun_path, "%s/agree", bench.dir);
	if (rank == 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0)
		one = accept(fd, NULL, NULL);
	for (uint32_t i = 0; rank && one < 0 && i < SECONDS * 10; i++) {
		const struct timespec t = { 0, 100 * NS_PER_MS };

		one = connect(fd, (struct sockaddr *)&at, sizeof at) == 0 ? fd : -1;
		if (one < 0)
			nanosleep(&t, NULL);
	}
	if (one < 0)
		gpu_die("rank %u does not find the other one", rank);
	(void)setsockopt(one, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	return one;
}

/* NCCL refuses two ranks on one device of one host; with these names they are two hosts. */
static void hosts_differ(const char *rank)
{
	static const char *const only[][2] = {
		{ "NCCL_P2P_DISABLE", "1" },	{ "NCCL_SHM_DISABLE", "1" },
		{ "NCCL_IB_DISABLE", "1" },	{ "NCCL_MAX_CTAS", "1" },
		{ "NCCL_SOCKET_IFNAME", "lo" },
	};

	setenv("NCCL_HOSTID", rank, 1);
	for (size_t i = 0; i < ARRAY_LEN(only); i++)
		setenv(only[i][0], only[i][1], 0);
}

static void step_save(ckpt *c, cuda_stream s)
{
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST, .stream = s };
	struct ckpt_err err = { 0 };

	if (ckpt_fresh(c) < 0)
		gpu_die("ckpt_fresh");
	if (ckpt_snapshot(c, 1, &mark) != 0 || ckpt_guard(c, &mark) != 0 ||
	    ckpt_wait(c, 1, CKPT_COMMITTED, WAIT_NS, &err) < 0)
		gpu_die("the step was not committed: %s", err.msg);
}

int again_nccl(void)
{
	const char *number = getenv("GPUBENCH_RANK");
	uint32_t rank = number && *number == '1';
	const struct ckpt_opts o = { .flags = CKPT_NCCL,
				     .job = "nccl",
				     .rank = rank,
				     .world = 2,
				     .generation = 1,
				     .guard = CKPT_FINISH,
				     .copy_rate = UINT64_MAX,
				     .agree = agree,
				     .log = log_take };
	struct ckpt_want want = {
		.size = sizeof want, .flags = CKPT_FROM_MEMORY, .step = 1, .deadline_ns = WAIT_NS
	};
	uint64_t words = align_up(MIN(bench.state_bytes, GIB), COLS * 4) / 8, begin, bad;
	cuda_ptr at = gpu_alloc(words * 8);
	cuda_stream s = gpu_stream();
	struct ckpt_err err;
	ckpt *c;

	hosts_differ(rank ? "1" : "0");
	other = other_find(rank);
	c = job_attach_as(bench.dir, &o);
	job_add(c, &(struct job_at){ .component = "model",
				     .name = "w",
				     .role = CKPT_PARAM,
				     .at = at,
				     .rows = words * 2 / COLS,
				     .cols = COLS });
	job_seal(c);
	gpu_fill(at, words, SEED, 1, s);
	step_save(c, s);
	gpu_fill(at, words, SEED + 1, 99, s); /* nothing of step 1 is left */
	GPU(gpu.cu->stream_sync(s));
	begin = now_ns();
	if (ckpt_restore(c, &want, NULL, &err) < 0)
		gpu_die("ckpt_restore: %s", err.msg);
	begin = now_ns() - begin;
	bad = gpu_check(at, words, SEED, 1, s);
	printf("restored %" PRIu64 " %" PRIu64 " %" PRIu64 " %.400s\n", words, bad, begin, said);
	(void)ckpt_detach(c, 0);
	return 0;
}

/* --- both --- */

struct ended {
	int rc, status;
	char out[2048];
};

static void rank_run(uint32_t rank, struct ended *ret)
{
	ret->rc = again_run("nccl", "GPUBENCH_RANK", rank ? "1" : "0", SECONDS, ret->out,
			    sizeof ret->out, &ret->status);
}

/* Rank 1 in a process of its own: its words that are wrong, or UINT64_MAX. */
static uint64_t ranks_run(struct ended *ret)
{
	uint64_t words, bad = UINT64_MAX;
	int fd[2];
	pid_t pid;

	if (pipe(fd) < 0 || (pid = fork()) < 0)
		gpu_die("no process for rank 1: %s", strerror(errno));
	if (pid == 0) {
		rank_run(1, ret);
		if (ret->rc < 0 || ret->status != 0 ||
		    sscanf(ret->out, "restored %" SCNu64 " %" SCNu64, &words, &bad) != 2)
			bad = UINT64_MAX;
		_exit(write(fd[1], &bad, sizeof bad) != sizeof bad);
	}
	rank_run(0, ret);
	(void)close(fd[1]);
	if (read(fd[0], &bad, sizeof bad) != sizeof bad)
		bad = UINT64_MAX;
	(void)close(fd[0]);
	(void)waitpid(pid, NULL, 0);
	return bad;
}

void e12_nccl(void)
{
	uint64_t words, bad, ns, of_other;
	struct ended zero;
	int at = 0;

	of_other = ranks_run(&zero);
	if (zero.rc < 0 || zero.status != 0 || of_other == UINT64_MAX ||
	    sscanf(zero.out, "restored %" SCNu64 " %" SCNu64 " %" SCNu64 "%n", &words, &bad, &ns,
		   &at) != 3) {
		row_fail("nccl", "rank 0 ended with status %d, rank 1 %s: %.500s", zero.status,
			 of_other == UINT64_MAX ? "has failed" : "is well", zero.out);
		return;
	}
	if (!strstr(zero.out + at, "from other ranks over NCCL")) {
		row_skip("nccl", "two ranks on one device:%.400s", zero.out + at);
		return;
	}
	row_put(&(struct row){ .name = "nccl",
			       .what = "words of two ranks that are not those that were saved",
			       .value = (double)(bad + of_other),
			       .bound = ROW_AT_MOST,
			       .numerator = (double)(bad + of_other),
			       .denominator = (double)(2 * words) });
	row_put(&(struct row){ .name = "nccl_rate",
			       .what = "two ranks on one device, over the loopback network: it "
				       "says nothing of two devices",
			       .unit = "GB/s",
			       .value = (double)(words * 8) / (double)ns,
			       .time = true });
}
