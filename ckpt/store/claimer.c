/* SPDX-License-Identifier: Apache-2.0 */
/*
 * claimer.c - see claimer.h. Invariant: a process counts as living only if its number and the time
 * of its start are those that the claim names.
 */
#include "ckpt/store/claimer.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "ckpt/store/store_impl.h"

#define READ_TRIES 10 /* of a file that is being written */
#define READ_NAP_NS (5 * NS_PER_MS)

/* --- this host --- */
static void line_read(const char *path, char *ret, size_t bytes)
{
	FILE *f = fopen(path, "re");

	ret[0] = 0;
	if (f && fgets(ret, (int)bytes, f))
		ret[strcspn(ret, " \t\r\n")] = 0;
	if (f)
		(void)fclose(f);
}

/* A word of the claim's line. */
static void word_make(char *s)
{
	if (!s[0])
		strcpy(s, "-");
	for (; *s; s++)
		if (*s <= ' ' || *s > '~')
			*s = '_';
}

void claimer_here(const char *alias, struct claimer_host *ret)
{
	struct stat st;

	*ret = (struct claimer_host){ 0 };
	if (alias) {
		snprintf(ret->host, sizeof ret->host, "%s", alias);
		snprintf(ret->boot, sizeof ret->boot, "boot-of-%.30s", alias);
	} else {
		(void)gethostname(ret->host, sizeof ret->host - 1);
		line_read("/proc/sys/kernel/random/boot_id", ret->boot, sizeof ret->boot);
	}
	word_make(ret->host);
	word_make(ret->boot);
	if (stat("/proc/self/ns/pid", &st) == 0)
		ret->space = st.st_ino;
}

struct claimer_process claimer_process(int64_t pid)
{
	struct claimer_process p = { .pid = pid > 0 ? pid : 0 };
	char path[64], line[1024], *at;
	FILE *f;

	snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", p.pid);
	f = p.pid ? fopen(path, "re") : NULL;
	if (f && fgets(line, sizeof line, f) && (at = strrchr(line, ')')) && at[1] == ' ' &&
	    at[2] != 'Z' && at[2] != 'X') {
		for (int field = 2; at && field < 22; field++)
			at = strchr(at + 1, ' ');
		p.start = at ? strtoull(at, NULL, 10) : 0;
	}
	if (f)
		(void)fclose(f);
	return p;
}

enum claimer_life claimer_life(const struct claimer_process *p, const struct claimer_host *at,
			       const struct claimer_host *here)
{
	if (strcmp(at->boot, here->boot) != 0 || strcmp(at->boot, "-") == 0)
		return strcmp(at->host, here->host) == 0 && strcmp(at->boot, "-") != 0
			       ? CLAIMER_DEAD
			       : CLAIMER_ELSEWHERE;
	if (at->space != here->space || !p->pid || !p->start)
		return CLAIMER_ELSEWHERE;
	return claimer_process(p->pid).start == p->start ? CLAIMER_LIVES : CLAIMER_DEAD;
}

/* --- the line --- */
int claimer_print(const struct claimer *c, char ret[CLAIMER_TEXT])
{
	return snprintf(ret, CLAIMER_TEXT,
			"claim 1 token %" PRIx64 " run %" PRIx64 " restart %" PRIu64
			" launch %" PRIx64 " world %u rank %u pid %" PRId64 " %" PRIu64
			" daemon %" PRId64 " %" PRIu64 " space %" PRIu64 " boot %s host %s end 1",
			c->token, c->run, c->restart, c->launch, c->world, c->rank, c->process.pid,
			c->process.start, c->daemon.pid, c->daemon.start, c->at.space, c->at.boot,
			c->at.host);
}

bool claimer_parse(const char *text, struct claimer *ret)
{
	struct claimer c = { 0 };
	int end = 0;
	int n = sscanf(text,
		       "%*8[0-9a-f] claim 1 token %" SCNx64 " run %" SCNx64 " restart %" SCNu64
		       " launch %" SCNx64 " world %" SCNu32 " rank %" SCNu32 " pid %" SCNd64
		       " %" SCNu64 " daemon %" SCNd64 " %" SCNu64 " space %" SCNu64
		       " boot %39s host %64s end 1%n",
		       &c.token, &c.run, &c.restart, &c.launch, &c.world, &c.rank, &c.process.pid,
		       &c.process.start, &c.daemon.pid, &c.daemon.start, &c.at.space, c.at.boot,
		       c.at.host, &end);

	if (n != 13 || !end)
		return false;
	*ret = c;
	return true;
}

/* --- the file --- */
static int text_read(const struct store *s, const char *path, char ret[CLAIMER_TEXT + 16],
		     struct io_stat *ret_stat)
{
	const struct io_ops *ops = s->ops;
	int fd = ops->open(ops->ctx, s->job_fd, path, O_RDONLY, 0);
	int64_t n = fd < 0 ? fd : ops->pread(ops->ctx, fd, ret, CLAIMER_TEXT + 15, 0);

	if (fd >= 0 && n >= 0 && io_stat(ops, fd, ret_stat) < 0)
		*ret_stat = (struct io_stat){ 0 };
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (n >= 0)
		ret[n] = 0;
	return n < 0 ? (int)n : 0;
}

int claimer_probe(const struct store *s, struct io_stat *ret)
{
	const struct io_ops *ops = s->ops;
	char path[STORE_DIR_MAX];
	uint32_t nonce;
	int fd, r = store_nonce(&nonce, NULL);

	if (r)
		return r;
	snprintf(path, sizeof path, STORE_CLAIMS "/probe-%08" PRIx32, nonce);
	fd = ops->open(ops->ctx, s->job_fd, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	if (fd < 0)
		return fd;
	r = io_stat(ops, fd, ret);
	(void)ops->close(ops->ctx, fd);
	(void)ops->unlink(ops->ctx, s->job_fd, path, false);
	return r;
}

/* -ENOENT, -ESTALE: another claim has come, and swept it away. */
static int line_await(const struct store *s, const struct store_claimed *c,
		      char ret[CLAIMER_TEXT + 16], struct io_stat *ret_stat)
{
	const struct timespec nap = { .tv_nsec = READ_NAP_NS };
	char path[STORE_DIR_MAX];
	int n = snprintf(path, sizeof path, STORE_CLAIMS "/gen-%08" PRIu64, c->generation), r = 0;

	if (c->takeover)
		(void)snprintf(path + n, sizeof path - (size_t)n, ".%" PRIu32, c->takeover);
	for (uint32_t i = 0; i < READ_TRIES; i++) {
		r = text_read(s, path, ret, ret_stat);
		if (r || strchr(ret, '\n'))
			break;
		(void)nanosleep(&nap, NULL);
	}
	return r;
}

int claimer_read(const struct store *s, uint64_t *ret_generation, struct claimer *ret,
		 uint64_t *ret_age_ns, struct ckpt_err *err)
{
	char text[CLAIMER_TEXT + 16];
	struct io_stat st = { 0 }, now;
	int r = -ENOENT;

	*ret_age_ns = UINT64_MAX;
	for (uint32_t i = 0; i < STORE_TRIES_MAX && (r == -ENOENT || r == -ESTALE); i++) {
		struct store_claimed top;

		r = store_claim_highest(s, &top, err);
		*ret_generation = r ? 0 : top.generation;
		if (r || !top.generation)
			return r;
		r = line_await(s, &top, text, &st);
	}
	if (r == -ENOENT || r == -ESTALE)
		return ckpt_error(err, -EBUSY, "job %s: its claims change all the time", s->job);
	if (r)
		return store_fail(err, r, "job %s: cannot read the claim of launch %" PRIu64,
				  s->job, *ret_generation);
	if (!claimer_parse(text, ret))
		return -ENODATA;
	if (claimer_probe(s, &now) == 0 && now.modified_ns && st.modified_ns)
		*ret_age_ns = now.modified_ns - MIN(st.modified_ns, now.modified_ns);
	return 0;
}
