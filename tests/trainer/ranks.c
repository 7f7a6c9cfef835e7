/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks.c - forks, watches and ends the ranks; barrier, share and agree among them. Called by
 * trainer.c (parent) and train.c (ranks). Invariant: only the parent decides that the job is over.
 */
#include "ranks.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define MESSAGE_BYTES 4608 /* a struct ckpt_err, so that a list of mismatches is told whole */

int exit_code_of(int r)
{
	switch (-r) {
	case 0:
		return EXIT_SUCCESS;
	case EINVAL:
	case ENAMETOOLONG:
		return EXIT_USAGE;
	case EBADMSG:
		return EXIT_DAMAGED;
	case EUCLEAN:
		return EXIT_INCOMPLETE;
	case EMEDIUMTYPE:
		return EXIT_MISFIT;
	case ENOENT:
	case ENOTDIR:
		return EXIT_ABSENT;
	case EBUSY:
	case ESTALE:
		return EXIT_HELD;
	case EACCES:
	case EPERM:
	case EROFS:
		return EXIT_PERMISSION;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
	case ENOMEM:
		return EXIT_SPACE;
	case ECONNREFUSED:
	case ECONNRESET:
		return EXIT_NO_DAEMON;
	case ETIMEDOUT:
		return EXIT_TIMED_OUT;
	default:
		return EXIT_FAILURE;
	}
}

static size_t page_bytes(void)
{
	return (sizeof(struct ranks_page) + 63) & ~(size_t)63;
}

int ranks_create(uint32_t world, size_t shared_bytes, struct ranks *ret_ranks)
{
	pthread_barrierattr_t attr;
	struct ranks_page *page = mmap(NULL, page_bytes() + shared_bytes, PROT_READ | PROT_WRITE,
				       MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (page == MAP_FAILED) {
		int r = -errno;

		fprintf(stderr,
			"trainer: cannot map %zu bytes that the ranks share: %s; ask for a smaller "
			"model with --params\n",
			page_bytes() + shared_bytes, strerror(errno));
		return r;
	}
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&page->barrier, &attr, world);
	pthread_barrierattr_destroy(&attr);
	*ret_ranks = (struct ranks){
		.page = page,
		.shared = (char *)page + page_bytes(),
		.world = world,
	};
	return 0;
}

static _Noreturn void rank_main(struct ranks *r, uint32_t me, pid_t parent, const sigset_t *mask,
				int (*body)(struct ranks *, void *), void *arg)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent) /* it died before the line above */
		_exit(128 + SIGKILL);
	sigprocmask(SIG_SETMASK, mask, NULL);
	r->me = me;
	int code = body(r, arg);

	fflush(stdout);
	_exit(code);
}

static void kill_all(const pid_t *pid, uint32_t n, int sig)
{
	for (uint32_t i = 0; i < n; i++)
		if (pid[i] > 0)
			kill(pid[i], sig);
}

/* Takes in every rank that has ended. The first that did not end well decides the job's status. */
static uint32_t reap(struct ranks *r, pid_t *pid, int *status)
{
	uint32_t ended = 0;
	int ws;
	pid_t p;

	while ((p = waitpid(-1, &ws, WNOHANG)) > 0) {
		for (uint32_t i = 0; i < r->world; i++) {
			if (pid[i] != p)
				continue;
			pid[i] = 0;
			ended++;
		}
		int code = WIFSIGNALED(ws) ? 128 + WTERMSIG(ws) : WEXITSTATUS(ws);
		int first = atomic_load(&r->page->first_failed);

		if (code == 0 || *status != 0)
			continue;
		*status = first > 1 ? first - 1 : code;
		if (WIFSIGNALED(ws))
			fprintf(stderr,
				"trainer: a rank (process %d) was ended by signal %d; "
				"run again with --resume latest\n",
				(int)p, WTERMSIG(ws));
		kill_all(pid, r->world, SIGKILL);
	}
	return ended;
}

int ranks_run(struct ranks *r, int (*body)(struct ranks *r, void *arg), void *arg)
{
	pid_t pid[RANKS_MAX] = { 0 }, parent = getpid();
	uint32_t started = 0, ended = 0;
	int status = 0, asked = 0;
	sigset_t watch, before;

	sigemptyset(&watch);
	sigaddset(&watch, SIGCHLD);
	sigaddset(&watch, SIGTERM);
	sigaddset(&watch, SIGINT);
	sigprocmask(SIG_BLOCK, &watch, &before);
	fflush(NULL);
	for (; started < r->world; started++) {
		pid[started] = fork();
		if (pid[started] == 0)
			rank_main(r, started, parent, &before, body, arg);
		if (pid[started] < 0) {
			fprintf(stderr,
				"trainer: cannot start rank %u of %u: %s; use a smaller mesh\n",
				started, r->world, strerror(errno));
			pid[started] = 0;
			status = EXIT_FAILURE;
			kill_all(pid, started, SIGKILL);
			break;
		}
	}
	while (ended < started) {
		int sig = sigwaitinfo(&watch, NULL);

		if (sig == SIGTERM || sig == SIGINT) {
			asked = asked ? asked : sig;
			status = 128 + asked;
			kill_all(pid, r->world, SIGKILL);
		}
		ended += reap(r, pid, &status);
	}
	sigprocmask(SIG_SETMASK, &before, NULL);
	return status;
}

void ranks_barrier(struct ranks *r)
{
	pthread_barrier_wait(&r->page->barrier);
}

const int64_t *ranks_share(struct ranks *r, int64_t mine)
{
	ranks_barrier(r); /* nobody reads the last round any more */
	r->page->value[r->me] = mine;
	ranks_barrier(r);
	return r->page->value;
}

int ranks_agree(void *ctx, uint64_t mine, uint64_t *ret_min)
{
	struct ranks *r = ctx;
	const int64_t *all = ranks_share(r, (int64_t)mine);

	*ret_min = mine;
	for (uint32_t i = 0; i < r->world; i++)
		if ((uint64_t)all[i] < *ret_min)
			*ret_min = (uint64_t)all[i];
	return 0;
}

void ranks_yield(void)
{
	for (;;)
		pause();
}

void ranks_fail(struct ranks *r, int code, const char *fmt, ...)
{
	char text[MESSAGE_BYTES];
	int nobody = 0;
	va_list ap;

	if (!atomic_compare_exchange_strong(&r->page->first_failed, &nobody, 1 + code))
		ranks_yield();
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	fprintf(stderr, "trainer: rank %u: %s\n", r->me, text);
	fflush(stdout);
	_exit(code);
}
