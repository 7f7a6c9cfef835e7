/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_name.c - names of jobs, of the entries of a job directory and of claims. Used by the whole
 * room. An entry is ours only if printing what was parsed gives the same name again.
 */
#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

int store_job_check(const char *job, struct ckpt_err *err)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789._-";
	struct store_name x;
	size_t n;

	if (!job || !*job)
		return ckpt_error(err, -EINVAL, "the job has no name: give it one, such as demo");
	n = strspn(job, allowed);
	if (job[n])
		return ckpt_error(
			err, -EINVAL,
			"job name \"%.80s\": byte %zu (0x%02x) is not allowed; use letters, "
			"digits, '.', '_' and '-'",
			job, n + 1, (unsigned char)job[n]);
	if (job[0] == '.')
		return ckpt_error(err, -EINVAL,
				  "job name \"%.80s\" starts with a dot: leave it out", job);
	store_name_parse(job, &x);
	if (x.kind != STORE_FOREIGN)
		return ckpt_error(
			err, -EINVAL,
			"job name \"%.80s\" is what a step's directory is called: give it another",
			job);
	if (n > CKPT_JOB_MAX)
		return ckpt_error(err, -EINVAL,
				  "job name \"%.80s...\" has %zu bytes; at most %d fit", job, n,
				  CKPT_JOB_MAX);
	return 0;
}

bool store_take_text(const char **p, const char *text)
{
	size_t n = strlen(text);

	if (strncmp(*p, text, n) != 0)
		return false;
	*p += n;
	return true;
}

bool store_take_decimal(const char **p, uint64_t *ret)
{
	const char *at = *p;

	for (*ret = 0; *at >= '0' && *at <= '9'; at++) {
		if (ckpt_mul(*ret, 10, ret) || ckpt_add(*ret, (uint64_t)(*at - '0'), ret))
			return false;
	}
	if (at == *p)
		return false;
	*p = at;
	return true;
}

bool store_take_hex(const char **p, uint32_t *ret)
{
	const char *at = *p;

	for (*ret = 0; at < *p + 8; at++) {
		if (*at >= '0' && *at <= '9')
			*ret = *ret << 4 | (uint32_t)(*at - '0');
		else if (*at >= 'a' && *at <= 'f')
			*ret = *ret << 4 | (uint32_t)(*at - 'a' + 10);
		else
			return false;
	}
	*p = at;
	return true;
}

void store_name_step(uint64_t step, char ret[STORE_DIR_MAX])
{
	(void)snprintf(ret, STORE_DIR_MAX, "step-%012" PRIu64, step);
}

void store_name_tmp(uint64_t step, uint64_t generation, uint32_t nonce, char ret[STORE_DIR_MAX])
{
	(void)snprintf(ret, STORE_DIR_MAX, ".tmp-%012" PRIu64 "-g%08" PRIu64 "-%08" PRIx32, step,
		       generation, nonce);
}

void store_name_old(uint64_t step, uint64_t seq, uint64_t aside_s, char ret[STORE_DIR_MAX])
{
	int n = snprintf(ret, STORE_DIR_MAX, ".old-%012" PRIu64 "-s%" PRIu64, step, seq);

	if (aside_s != STORE_ASIDE_UNKNOWN)
		n += snprintf(ret + n, STORE_DIR_MAX - (size_t)n, "-t%" PRIu64, aside_s);
	assert(n < STORE_DIR_MAX);
}

void store_name_old_again(uint64_t step, uint64_t seq, uint64_t aside_s, uint32_t nonce,
			  char ret[STORE_DIR_MAX])
{
	size_t n;

	store_name_old(step, seq, aside_s, ret);
	n = strlen(ret);
	(void)snprintf(ret + n, STORE_DIR_MAX - n, "-%08" PRIx32, nonce);
}

void store_name_trash(uint32_t nonce, char ret[STORE_DIR_MAX])
{
	(void)snprintf(ret, STORE_DIR_MAX, ".trash-%08" PRIx32, nonce);
}

/* Reads ret->kind and its numbers from an entry, and prints them again. */
static bool name_read(const char *p, struct store_name *ret)
{
	if (store_take_text(&p, "step-") && store_take_decimal(&p, &ret->step)) {
		ret->kind = STORE_STEP;
		store_name_step(ret->step, ret->dir);
	} else if (store_take_text(&p, ".tmp-") && store_take_decimal(&p, &ret->step) &&
		   store_take_text(&p, "-g") && store_take_decimal(&p, &ret->generation) &&
		   store_take_text(&p, "-") && store_take_hex(&p, &ret->nonce)) {
		ret->kind = STORE_TMP;
		store_name_tmp(ret->step, ret->generation, ret->nonce, ret->dir);
	} else if (store_take_text(&p, ".old-") && store_take_decimal(&p, &ret->step) &&
		   store_take_text(&p, "-s") && store_take_decimal(&p, &ret->seq)) {
		ret->kind = STORE_OLD;
		ret->aside_s = STORE_ASIDE_UNKNOWN;
		if (store_take_text(&p, "-t") &&
		    (!store_take_decimal(&p, &ret->aside_s) || ret->aside_s > STORE_ASIDE_MAX))
			return false;
		if (store_take_text(&p, "-") && store_take_hex(&p, &ret->nonce))
			store_name_old_again(ret->step, ret->seq, ret->aside_s, ret->nonce,
					     ret->dir);
		else
			store_name_old(ret->step, ret->seq, ret->aside_s, ret->dir);
	} else if (store_take_text(&p, ".trash-") && store_take_hex(&p, &ret->nonce)) {
		ret->kind = STORE_TRASH;
		store_name_trash(ret->nonce, ret->dir);
	}
	return ret->kind != STORE_FOREIGN;
}

void store_name_parse(const char *entry, struct store_name *ret)
{
	*ret = (struct store_name){ .kind = STORE_FOREIGN };
	if (!name_read(entry, ret) || strcmp(entry, ret->dir) != 0)
		*ret = (struct store_name){ .kind = STORE_FOREIGN };
}

bool store_claimed_parse(const char *entry, struct store_claimed *ret)
{
	const char *p = entry;
	uint64_t takeover = 0;
	char again[STORE_DIR_MAX];
	int n;

	if (!store_take_text(&p, "gen-") || !store_take_decimal(&p, &ret->generation))
		return false;
	n = snprintf(again, sizeof again, "gen-%08" PRIu64, ret->generation);
	if (store_take_text(&p, ".")) {
		if (!store_take_decimal(&p, &takeover) || takeover == 0 || takeover > UINT32_MAX)
			return false;
		(void)snprintf(again + n, sizeof again - (size_t)n, ".%" PRIu64, takeover);
	}
	ret->takeover = (uint32_t)takeover;
	return strcmp(again, entry) == 0;
}

struct listing {
	uint32_t kinds, n, cap;
	struct store_name *name;
};

static int listing_add(void *arg, const char *entry, unsigned char d_type)
{
	struct listing *l = arg;
	struct store_name x;

	if (d_type != DT_DIR && d_type != DT_UNKNOWN)
		return 0;
	store_name_parse(entry, &x);
	if (!(x.kind & l->kinds))
		return 0;
	if (l->n == STORE_ENTRIES_MAX)
		return -E2BIG;
	if (!ARRAY_GROW(l->name, l->n, l->cap))
		return -ENOMEM;
	l->name[l->n++] = x;
	return 0;
}

int store_list(const struct io_ops *ops, int job_fd, uint32_t kinds, struct store_name **ret,
	       uint32_t *ret_n)
{
	struct listing l = { .kinds = kinds };
	int r = ops->list(ops->ctx, job_fd, listing_add, &l);

	if (r) {
		free(l.name);
		l = (struct listing){ .kinds = kinds };
	}
	*ret = l.name;
	*ret_n = l.n;
	return r;
}
