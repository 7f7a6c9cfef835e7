/* SPDX-License-Identifier: Apache-2.0 */
/*
 * marked.c - from a step that was named to its place in a store, and its marks in words. Called by
 * every verb that sets marks or shows them.
 * Invariant: a step is found in its job's directory only if the directory of that name there is the
 * one that was opened; a copy elsewhere never gets a mark that the original would.
 */
#include "ckpt/cli/marked.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/subject.h"
#include "formats/registry/registry.h"
#include <fcntl.h>
#include <pwd.h>
#include <stdarg.h>
#include <sys/stat.h>

#define CLAIMS ".ckptd"

static bool same_file(int a, int b)
{
	struct stat x, y;

	return !fstat(a, &x) && !fstat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* 1: yes, and what is called `dir` in it is the directory behind fd. */
static int is_home(const struct io_ops *ops, int job_fd, const char *dir, int step_fd)
{
	int fd = ops->open(ops->ctx, job_fd, CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	bool same;

	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
	(void)ops->close(ops->ctx, fd);
	fd = ops->open(ops->ctx, job_fd, dir, O_RDONLY | O_DIRECTORY, 0);
	if (fd < 0)
		return fd == -ENOENT || fd == -ENOTDIR || fd == -ELOOP ? 0 : fd;
	same = same_file(fd, step_fd);
	(void)ops->close(ops->ctx, fd);
	return same;
}

int marked_home(const struct io_ops *ops, const struct store_ref *ref, struct marked *ret,
		struct ckpt_err *err)
{
	const char *base = strrchr(ref->path, '/'), *job;
	int rc, fd;

	*ret = (struct marked){
		.s = { .ops = ops, .format = formats[0], .root_fd = -1, .job_fd = -1 }
	};
	if (!base || base == ref->path || strlen(base + 1) >= sizeof ret->step.dir)
		return 1;
	snprintf(ret->dir, sizeof ret->dir, "%.*s", (int)(base - ref->path), ref->path);
	snprintf(ret->step.dir, sizeof ret->step.dir, "%s", base + 1);
	job = strrchr(ret->dir, '/');
	if (!job || store_job_check(job + 1, NULL))
		return 1;
	snprintf(ret->s.job, sizeof ret->s.job, "%s", job + 1);
	fd = open(ret->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES
			       ? 1
			       : ckpt_error_errno(err, errno, "cannot open %.300s", ret->dir);
	ret->s.job_fd = fd;
	rc = is_home(ops, fd, ret->step.dir, ref->step_fd);
	if (rc < 0)
		rc = ckpt_error_errno(err, -rc, "cannot read %.300s", ret->dir);
	if (rc <= 0)
		marked_close(ret);
	return rc < 0 ? rc : !rc;
}

int marked_find(const struct io_ops *ops, const struct store_ref *ref, struct marked *ret,
		struct ckpt_err *err)
{
	struct store_step *step = NULL;
	uint32_t n = 0;
	int rc = marked_home(ops, ref, ret, err);

	if (rc)
		return rc;
	rc = store_scan(&ret->s, true, &step, &n, err);
	ret->steps = step;
	for (uint32_t i = 0; !rc && i < n; i++)
		if (!strcmp(step[i].dir, ret->step.dir)) {
			ret->step = step[i];
			return 0;
		}
	marked_close(ret);
	return rc ? rc : 1;
}

void marked_close(struct marked *m)
{
	if (m->s.job_fd >= 0)
		close(m->s.job_fd);
	free(m->steps);
	*m = (struct marked){ .s = { .root_fd = -1, .job_fd = -1 } };
}

void marked_id(const char *hex, uint8_t ret[16])
{
	memset(ret, 0, 16);
	for (uint32_t i = 0; i < 32 && hex[i]; i++) {
		static const char digit[] = "0123456789abcdef";
		const char *at = strchr(digit, hex[i]);

		ret[i / 2] = (uint8_t)(ret[i / 2] << 4 | (at ? at - digit : 0));
	}
}

int marked_get(struct cli *c, const char *name, struct store_ref *ref, struct marked *ret)
{
	struct ckpt_err err = { 0 };
	int rc = store_resolve(c->ops, formats[0], c->where, name, ref, &err);

	if (rc > 0 && store_path_job(c->ops, ref->path, &err))
		rc = err.code;
	if (rc < 0)
		return subject_tell(c, rc, &err, name);
	subject_note(c, ref);
	rc = rc ? rc : marked_find(c->ops, ref, ret, &err);
	if (!rc)
		return CLI_OK;
	if (ref->step_fd >= 0)
		close(TAKE_FD(ref->step_fd));
	if (rc < 0)
		return subject_tell(c, rc, &err, name);
	ckpt_error(&err, -EINVAL,
		   "%.300s is not in a store: the marks of a checkpoint are kept in the directory "
		   "of its job",
		   ref->path);
	return cli_fail(c, -EINVAL, &err, "ckptctl %s -C STORE step:N", c->verb->name);
}

int marked_owner(int job_fd, const char *path, struct ckpt_err *err)
{
	struct passwd *pw;
	struct stat st;

	if (geteuid() != 0 || fstat(job_fd, &st) || st.st_uid == 0)
		return 0;
	pw = getpwuid(st.st_uid);
	return ckpt_error(
		err, -EPERM,
		"%.300s belongs to %s (user %u), and that user could not read files that root "
		"writes there",
		path, pw ? pw->pw_name : "another", (unsigned)st.st_uid);
}

int marked_tell(struct cli *c, int rc, const struct ckpt_err *err)
{
	if (rc == -EPERM)
		return cli_fail(c, rc, err, MARKED_NEXT_OWNER);
	if (rc == -EACCES)
		return cli_fail(c, rc, err, CLI_NEXT_USER);
	if (rc == -EINVAL)
		return cli_fail(c, rc, err, "ckptctl %s -h", c->verb->name);
	if (rc == -EROFS)
		return cli_fail(c, rc, err, "mount it for writing, or run it where it is");
	if (rc == -EAGAIN)
		rc = -EBUSY;
	return cli_fail(c, rc, err, NULL);
}

void marked_name(char ret[STORE_MARK_NAME_MAX + 1])
{
	struct passwd *pw = getpwuid(geteuid());
	char host[128] = "", name[65];
	size_t n = 0;

	(void)gethostname(host, sizeof host - 1);
	if (pw && *pw->pw_name)
		snprintf(name, sizeof name, "%.40s-%.23s", pw->pw_name, host);
	else
		snprintf(name, sizeof name, "uid%u-%.23s", (unsigned)geteuid(), host);
	for (const char *p = name; *p; p++) {
		bool fine = (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') ||
			    (*p >= 'a' && *p <= 'z') || *p == '_' || *p == '-' || (*p == '.' && n);

		ret[n++] = fine ? *p : '-';
	}
	while (n && ret[n - 1] == '-')
		n--;
	ret[n] = 0;
}

/* Digits, exactly n of them. */
static bool digits(const char **p, uint32_t n, uint32_t *ret)
{
	for (*ret = 0; n; n--, ++*p) {
		if (**p < '0' || **p > '9')
			return false;
		*ret = *ret * 10 + (uint32_t)(**p - '0');
	}
	return true;
}

static bool sign(const char **p, const char *any)
{
	return **p && strchr(any, **p) ? ++*p, true : false;
}

/* RFC 3339, to the second: parts of one do not count. */
static bool date_parse(const char *p, uint64_t *ret_ns)
{
	uint32_t year, month, day, h, m, s, zh = 0, zm = 0;
	struct tm tm = { 0 };
	bool west = false;
	int64_t t;

	if (!digits(&p, 4, &year) || !sign(&p, "-") || !digits(&p, 2, &month) || !sign(&p, "-") ||
	    !digits(&p, 2, &day) || !sign(&p, "Tt ") || !digits(&p, 2, &h) || !sign(&p, ":") ||
	    !digits(&p, 2, &m) || !sign(&p, ":") || !digits(&p, 2, &s))
		return false;
	if (sign(&p, ".")) {
		if (*p < '0' || *p > '9')
			return false;
		p += strspn(p, "0123456789");
	}
	if (!sign(&p, "Zz")) {
		west = *p == '-';
		if (!sign(&p, "+-") || !digits(&p, 2, &zh) || !sign(&p, ":") || !digits(&p, 2, &zm))
			return false;
	}
	if (*p || year < 1970 || !month || month > 12 || !day || day > 31 || h > 23 || m > 59 ||
	    s > 60 || zh > 23 || zm > 59)
		return false;
	tm.tm_year = (int)year - 1900;
	tm.tm_mon = (int)month - 1;
	tm.tm_mday = (int)day;
	tm.tm_hour = (int)h;
	tm.tm_min = (int)m;
	tm.tm_sec = (int)s;
	t = timegm(&tm);
	if (tm.tm_mon != (int)month - 1) /* the 31st of a month that has 30 */
		return false;
	t -= (west ? -1 : 1) * (int64_t)(zh * 3600 + zm * 60);
	return t > 0 && !ckpt_mul((uint64_t)t, NS_PER_S, ret_ns);
}

int marked_until(const char *text, uint64_t now_ns, uint64_t *ret_ns, struct ckpt_err *err)
{
	size_t n = strlen(text);
	char word[32];
	uint64_t span;

	if (date_parse(text, ret_ns)) {
		if (*ret_ns <= now_ns)
			return ckpt_error(err, -EINVAL, "--until=%.60s is in the past", text);
		return 0;
	}
	/* Weeks are seven days; without a unit it could mean anything. */
	if (n > 1 && n < sizeof word && text[0] >= '0' && text[0] <= '9' &&
	    !(text[n - 1] >= '0' && text[n - 1] <= '9')) {
		memcpy(word, text, n + 1);
		if (word[n - 1] == 'w')
			word[n - 1] = 'd';
		if (!human_parse_time(word, &span) && span &&
		    !ckpt_mul(span, text[n - 1] == 'w' ? 7 : 1, &span) &&
		    !ckpt_add(now_ns, span, ret_ns))
			return 0;
	}
	return ckpt_error(
		err, -EINVAL,
		"--until=%.60s is not a time: give a duration from now (90m, 6h, 7d, 2w) or a "
		"date (2026-11-22T18:00:00Z)",
		text);
}

const char *marked_state(enum store_state state)
{
	switch (state) {
	case STORE_COMMITTED:
		return "committed";
	case STORE_COLLECTING:
		return "collecting";
	case STORE_SET_ASIDE:
		return "set-aside";
	case STORE_DAMAGED:
		return "damaged";
	case STORE_QUARANTINED:
		return "quarantined";
	case STORE_MISPLACED:
		return "misplaced";
	case STORE_NEWER:
		return "newer";
	case STORE_OLDER:
		return "format 0.0";
	}
	return "?";
}

struct line {
	char *buf;
	size_t bytes, len;
};

__attribute__((format(printf, 2, 3))) static void say(struct line *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (l->len + 3 >= l->bytes)
		return;
	if (l->len)
		l->len += (size_t)snprintf(l->buf + l->len, l->bytes - l->len, ", ");
	va_start(ap, fmt);
	n = vsnprintf(l->buf + l->len, l->bytes - l->len, fmt, ap);
	va_end(ap);
	n = MAX(n, 0);
	l->len = MIN(l->len + (size_t)n, l->bytes - 1);
}

void marked_print(const struct store_step *st, const struct store_mark *mark, uint32_t n,
		  uint64_t now_ns, bool latest, uint32_t name_max, char *buf, size_t bytes)
{
	static const enum store_mark_kind order[] = { MARK_BAD, MARK_TAG, MARK_HOLD, MARK_ADOPTED,
						      MARK_VERIFIED };
	struct line l = { buf, bytes, 0 };
	bool bad = false;
	char left[HUMAN_BYTES], name[STORE_MARK_NAME_MAX + 1];

	buf[0] = 0;
	if (latest)
		say(&l, "latest");
	for (uint32_t k = 0; k < ARRAY_LEN(order); k++)
		for (uint32_t i = 0; i < n; i++) {
			const struct store_mark *m = &mark[i];

			if (m->kind != order[k] || !store_mark_is(m, st) ||
			    (m->unread && (m->kind == MARK_VERIFIED || m->kind == MARK_ADOPTED)))
				continue;
			snprintf(name, sizeof name, "%s", m->name);
			if (name_max && strlen(name) > name_max)
				snprintf(name + name_max - 2, 3, "..");
			switch (m->kind) {
			case MARK_BAD:
				if (m->why[0] && !name_max)
					say(&l, "quarantined (%s)", m->why);
				else
					say(&l, "quarantined");
				bad = true;
				break;
			case MARK_TAG:
				say(&l, "tag %s", name);
				break;
			case MARK_HOLD:
				if (!store_mark_counts(m, now_ns))
					break;
				if (m->until_ns)
					say(&l, "held by %s (%s left)", name,
					    human_age(now_ns, m->until_ns, left));
				else
					say(&l, "held by %s", name);
				break;
			case MARK_ADOPTED:
				say(&l, "adopted");
				break;
			case MARK_VERIFIED:
				/* Once, before the damage came or was seen. */
				if (!bad)
					say(&l, "verified");
				break;
			}
		}
}

static struct cell time_cell(uint64_t ns)
{
	return cell_unless(CELL_TIME, ns, 0);
}

void marked_put(struct output *o, const struct store_step *st, const struct store_mark *mark,
		uint32_t n, uint64_t now_ns)
{
	static const struct column name = { "name", NULL, false, FIT_WHOLE },
				   made = { "created", NULL, false, FIT_WHOLE },
				   until = { "until", NULL, false, FIT_WHOLE },
				   by = { "by", NULL, false, FIT_WHOLE },
				   why = { "why", NULL, false, FIT_WHOLE },
				   verified = { "verified", NULL, false, FIT_WHOLE },
				   bad = { "bad", NULL, false, FIT_WHOLE },
				   adopted = { "adopted", NULL, false, FIT_WHOLE };
	const struct store_mark *good = NULL, *broken = NULL, *here = NULL;

	output_list(o, "holds", NULL, 0);
	for (uint32_t i = 0; i < n; i++) {
		if (!store_mark_is(&mark[i], st))
			continue;
		if (mark[i].kind == MARK_VERIFIED && !mark[i].unread)
			good = &mark[i];
		if (mark[i].kind == MARK_BAD)
			broken = &mark[i];
		if (mark[i].kind == MARK_ADOPTED && !mark[i].unread)
			here = &mark[i];
		if (mark[i].kind != MARK_HOLD || !store_mark_counts(&mark[i], now_ns))
			continue;
		output_row(o);
		output_put(o, &name, cell_text(mark[i].name));
		output_put(o, &made, time_cell(mark[i].made_ns));
		output_put(o, &until, time_cell(mark[i].until_ns));
		output_put(o, &by, cell_word(mark[i].by));
		output_put(o, &why, cell_word(mark[i].why));
		output_close(o);
	}
	output_close(o);
	output_list(o, "tags", NULL, 0);
	for (uint32_t i = 0; i < n; i++) {
		if (mark[i].kind != MARK_TAG || !store_mark_is(&mark[i], st))
			continue;
		output_row(o);
		output_put(o, &name, cell_text(mark[i].name));
		output_put(o, &made, time_cell(mark[i].made_ns));
		output_put(o, &by, cell_word(mark[i].by));
		output_close(o);
	}
	output_close(o);
	output_put(o, &verified, good && !broken ? time_cell(good->made_ns) : cell_none());
	output_put(o, &bad,
		   broken ? cell_text(*broken->why ? broken->why : "no reason was given")
			  : cell_none());
	output_put(o, &adopted, here ? time_cell(here->made_ns) : cell_none());
}
