/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_label.c - see label.h. Called by ckptctl, by the daemon, by scans (quarantine) and by
 * removal.
 * Invariant: a label that was acknowledged is on disk, complete, under a name, before the label that
 * it replaces is removed. Of two processes that set the same label at the same time, neither removes
 * the label of the other.
 */
#include "ckpt/store/label.h"
#include <fcntl.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include "ckpt/store/store_impl.h"

#define LABEL_FILE_MAX 160    /* bytes of its name, with its zero */
#define LABELS_MAX (1u << 20) /* of a job; more is somebody's mistake */
#define PATH_BYTES (LABEL_FILE_MAX + sizeof STORE_CLAIMS)

static const char *const words[] = {
	[LABEL_HOLD] = "hold", [LABEL_TAG] = "tag",	    [LABEL_VERIFIED] = "verified",
	[LABEL_BAD] = "bad",   [LABEL_ADOPTED] = "adopted",
};

static bool is_named(enum store_label_kind kind)
{
	return kind == LABEL_HOLD || kind == LABEL_TAG;
}

/* It is of one checkpoint, whose id must be known, and says nothing where it cannot be read. */
static bool is_exact(enum store_label_kind kind)
{
	return kind == LABEL_VERIFIED || kind == LABEL_ADOPTED;
}

int store_label_name_check(const char *name, struct ckpt_err *err)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				      "0123456789._-";
	size_t n = name ? strspn(name, allowed) : 0;

	if (!name || !*name)
		return ckpt_error(err, -EINVAL, "it needs a name, such as eval-17");
	if (name[n])
		return ckpt_error(err, -EINVAL,
				  "name \"%.80s\": byte %zu (0x%02x) is not allowed; use letters, "
				  "digits, '.', '_' and '-'",
				  name, n + 1, (unsigned char)name[n]);
	if (name[0] == '.')
		return ckpt_error(err, -EINVAL, "name \"%.80s\" starts with a dot: leave it out",
				  name);
	if (n > STORE_LABEL_NAME_MAX)
		return ckpt_error(err, -EINVAL, "name \"%.80s\" has %zu bytes; at most %d fit",
				  name, n, STORE_LABEL_NAME_MAX);
	return 0;
}

/* --- times --- */

#define TIME_BYTES 40

/* "2026-11-21T19:30:00Z" */
static void time_print(uint64_t ns, bool fraction, char ret[TIME_BYTES])
{
	time_t s = (time_t)(ns / NS_PER_S);
	struct tm tm;
	size_t n;

	(void)gmtime_r(&s, &tm);
	n = strftime(ret, TIME_BYTES, "%Y-%m-%dT%H:%M:%S", &tm);
	if (fraction)
		n += (size_t)snprintf(ret + n, TIME_BYTES - n, ".%09u", (unsigned)(ns % NS_PER_S));
	(void)snprintf(ret + n, TIME_BYTES - n, "Z");
}

static bool digits_take(const char **p, uint32_t n, uint64_t *ret)
{
	for (*ret = 0; n > 0; n--, (*p)++) {
		if (**p < '0' || **p > '9')
			return false;
		*ret = *ret * 10 + (uint64_t)(**p - '0');
	}
	return true;
}

/* RFC 3339 in UTC, what time_print prints: what is no date prints as another one. */
static bool time_parse(const char *text, uint64_t *ret)
{
	uint64_t year, month, day, hour, minute, second, part = 0, seconds;
	const char *p = text;
	char again[TIME_BYTES];
	size_t whole;
	struct tm tm;

	if (!digits_take(&p, 4, &year) || *p++ != '-' || !digits_take(&p, 2, &month) ||
	    *p++ != '-' || !digits_take(&p, 2, &day) || *p++ != 'T' || !digits_take(&p, 2, &hour) ||
	    *p++ != ':' || !digits_take(&p, 2, &minute) || *p++ != ':' ||
	    !digits_take(&p, 2, &second))
		return false;
	whole = (size_t)(p - text);
	if (*p == '.') {
		uint32_t n = (uint32_t)strspn(++p, "0123456789");

		if (n == 0 || n > 9)
			return false;
		(void)digits_take(&p, n, &part);
		for (; n < 9; n++)
			part *= 10;
	}
	if (strcmp(p, "Z") != 0 || year < 1970 || month < 1 || month > 12)
		return false;
	tm = (struct tm){ .tm_year = (int)year - 1900,
			  .tm_mon = (int)month - 1,
			  .tm_mday = (int)day,
			  .tm_hour = (int)hour,
			  .tm_min = (int)minute,
			  .tm_sec = (int)second };
	seconds = (uint64_t)timegm(&tm);
	if (ckpt_mul(seconds, NS_PER_S, ret))
		return false;
	time_print(*ret, false, again);
	return strncmp(text, again, whole) == 0 && ckpt_add(*ret, part, ret) == 0;
}

/* --- content --- */

/* Bytes of the character at p, if it is well-formed UTF-8 and seen; 0 if not. */
static uint32_t char_bytes(const uint8_t *p, uint64_t left)
{
	uint32_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : 4;

	if (n == 0 || p[0] > 0xf4 || n > left)
		return 0;
	if (n == 1)
		return p[0] >= 0x20 && p[0] != 0x7f;
	for (uint32_t i = 1; i < n; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	if ((p[0] == 0xc2 && p[1] < 0xa0) || (p[0] == 0xe0 && p[1] < 0xa0) ||
	    (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
	    (p[0] == 0xf4 && p[1] > 0x8f))
		return 0;
	return n;
}

void store_text_take(char *to, size_t bytes, const char *from)
{
	size_t at = 0, left = from ? strlen(from) : 0;

	while (left > 0) {
		uint32_t n = char_bytes((const uint8_t *)from, left);

		if (at + MAX(n, 1u) >= bytes)
			break;
		if (n)
			memcpy(to + at, from, n);
		else
			to[at] = *from == '\n' || *from == '\t' ? ' ' : '?';
		n = MAX(n, 1u);
		at += n;
		from += n;
		left -= n;
	}
	to[at] = 0;
}

static bool text_parse(const char *value, char *to, size_t bytes)
{
	size_t n = strlen(value);

	if (n >= bytes || *to)
		return false;
	for (size_t at = 0; at < n;) {
		uint32_t step = char_bytes((const uint8_t *)value + at, n - at);

		if (!step)
			return false;
		at += step;
	}
	memcpy(to, value, n + 1);
	return true;
}

/* 1 the line is one of ours, 0 of a later version, -EPROTO. */
static int line_parse(char *line, struct store_label *m, bool *ret_made)
{
	char *value = strchr(line, '=');
	uint64_t at;

	if (!value || value == line ||
	    strspn(line, "abcdefghijklmnopqrstuvwxyz_") != (size_t)(value - line))
		return -EPROTO;
	*value++ = 0;
	if (strcmp(line, "made") == 0 || strcmp(line, "until") == 0) {
		bool is_made = line[0] == 'm';

		if ((is_made ? *ret_made : m->until_ns != 0) || !time_parse(value, &at) ||
		    (!is_made && m->kind != LABEL_HOLD))
			return -EPROTO;
		if (is_made)
			m->made_ns = at;
		else
			m->until_ns = MAX(at, UINT64_C(1));
		*ret_made |= is_made;
		return 1;
	}
	if (strcmp(line, "by") == 0)
		return text_parse(value, m->by, sizeof m->by) ? 1 : -EPROTO;
	if (strcmp(line, "why") == 0)
		return text_parse(value, m->why, sizeof m->why) ? 1 : -EPROTO;
	return 0;
}

static int content_parse(const char *text, uint64_t bytes, struct store_label *m)
{
	char copy[STORE_LABEL_BYTES_MAX + 1], *line = copy, *end;
	bool made = false;

	if (!text || bytes == 0 || bytes > STORE_LABEL_BYTES_MAX || text[bytes - 1] != '\n' ||
	    memchr(text, 0, bytes))
		return -EPROTO;
	memcpy(copy, text, bytes);
	copy[bytes] = 0;
	for (; *line; line = end + 1) {
		end = strchr(line, '\n');
		*end = 0;
		if (line_parse(line, m, &made) < 0)
			return -EPROTO;
	}
	return made ? 0 : -EPROTO;
}

uint32_t store_label_print(const struct store_label *m, char *ret)
{
	char at[TIME_BYTES];
	int n;

	time_print(m->made_ns, true, at);
	n = snprintf(ret, STORE_LABEL_BYTES_MAX, "made=%s\n", at);
	if (m->by[0])
		n += snprintf(ret + n, STORE_LABEL_BYTES_MAX - (size_t)n, "by=%s\n", m->by);
	if (m->until_ns) {
		time_print(m->until_ns, true, at);
		n += snprintf(ret + n, STORE_LABEL_BYTES_MAX - (size_t)n, "until=%s\n", at);
	}
	if (m->why[0])
		n += snprintf(ret + n, STORE_LABEL_BYTES_MAX - (size_t)n, "why=%s\n", m->why);
	return (uint32_t)n;
}

/* --- names --- */

static void file_print(const struct store_label *m, const uint32_t *nonce, char ret[LABEL_FILE_MAX])
{
	int n = snprintf(ret, LABEL_FILE_MAX, "%s-%012" PRIu64 "-", words[m->kind], m->step);

	for (uint32_t i = 0; i < 8; i++)
		n += snprintf(ret + n, LABEL_FILE_MAX - (size_t)n, "%02x", m->id8[i]);
	if (m->name[0])
		n += snprintf(ret + n, LABEL_FILE_MAX - (size_t)n, "-%s", m->name);
	if (nonce)
		(void)snprintf(ret + n, LABEL_FILE_MAX - (size_t)n, "~%08" PRIx32, *nonce);
}

/* Only a name that we print ourselves is ours. */
static bool file_parse(const char *file, struct store_label *m)
{
	char again[LABEL_FILE_MAX];
	uint32_t word[2], kind = 0, nonce;
	const char *p = file;
	bool has_nonce;
	size_t n;

	*m = (struct store_label){ .kind = LABEL_HOLD };
	while (kind < ARRAY_LEN(words) &&
	       !(store_take_text(&p, words[kind]) && store_take_text(&p, "-"))) {
		p = file;
		kind++;
	}
	if (kind == ARRAY_LEN(words) || !store_take_decimal(&p, &m->step) ||
	    !store_take_text(&p, "-") || !store_take_hex(&p, &word[0]) ||
	    !store_take_hex(&p, &word[1]))
		return false;
	m->kind = (enum store_label_kind)kind;
	for (uint32_t i = 0; i < 8; i++)
		m->id8[i] = (uint8_t)(word[i / 4] >> (24 - 8 * (i % 4)));
	if (store_take_text(&p, "-")) {
		n = strcspn(p, "~");
		if (!is_named(m->kind) || n > STORE_LABEL_NAME_MAX)
			return false;
		memcpy(m->name, p, n);
		p += n;
	}
	if (is_named(m->kind) && store_label_name_check(m->name, NULL))
		return false;
	has_nonce = store_take_text(&p, "~");
	if (has_nonce && !store_take_hex(&p, &nonce))
		return false;
	file_print(m, has_nonce ? &nonce : NULL, again);
	return strcmp(again, file) == 0;
}

int store_label_parse(const char *file, const char *text, uint64_t bytes, struct store_label *ret)
{
	struct store_label m;
	int r;

	if (!file_parse(file, ret))
		return 0;
	m = *ret;
	r = content_parse(text, bytes, &m);
	if (r)
		ret->unread = true;
	else
		*ret = m;
	return r ? r : 1;
}

/* --- reading --- */

struct label_file {
	struct store_label m;
	char file[LABEL_FILE_MAX];
};

struct label_files {
	uint32_t kinds, n, cap;
	struct label_file *at;
};

static int files_add(void *arg, const char *file, unsigned char d_type)
{
	struct label_files *f = arg;
	struct store_label m;

	(void)d_type;
	if (!file_parse(file, &m) || !(f->kinds & (1u << m.kind)))
		return 0;
	if (f->n == LABELS_MAX)
		return -E2BIG;
	if (!ARRAY_GROW(f->at, f->n, f->cap))
		return -ENOMEM;
	f->at[f->n].m = m;
	(void)snprintf(f->at[f->n++].file, LABEL_FILE_MAX, "%s", file);
	return 0;
}

/* 0; 1: it has gone; -errno: a shortage of this process. What cannot be read is `unread`. */
static int file_read(const struct io_ops *ops, int fd, struct label_file *f)
{
	char text[STORE_LABEL_BYTES_MAX];
	struct source src;
	int r = source_open(ops, fd, f->file, 0, &src);

	if (r == -ENOENT)
		return 1;
	if (r == -ENOMEM || r == -EMFILE || r == -ENFILE)
		return r;
	if (!r) {
		r = src.bytes > sizeof text ? -EFBIG : src.read(src.ctx, text, src.bytes, 0);
		(void)store_label_parse(f->file, r < 0 ? NULL : text, src.bytes, &f->m);
		src.close(src.ctx);
	} else {
		f->m.unread = true;
	}
	return 0;
}

/* Every file, those that say the same thing again too. */
static int files_read(const struct store *s, uint32_t kinds, struct label_files *ret,
		      struct ckpt_err *err)
{
	const struct io_ops *ops = s->ops;
	int r, fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);
	uint32_t n = 0;

	*ret = (struct label_files){ .kinds = kinds };
	if (fd == -ENOENT)
		return 0;
	r = fd < 0 ? fd : ops->list(ops->ctx, fd, files_add, ret);
	for (uint32_t i = 0; !r && i < ret->n; i++) {
		r = file_read(ops, fd, &ret->at[i]);
		if (!r && n != i)
			ret->at[n] = ret->at[i];
		n += r == 0;
		r = MIN(r, 0);
	}
	ret->n = n;
	if (fd >= 0)
		(void)ops->close(ops->ctx, fd);
	if (r) {
		free(TAKE(ret->at));
		ret->n = 0;
		return store_fail(err, r, "job %s: cannot read the labels in " STORE_CLAIMS,
				  s->job);
	}
	return 0;
}

/* One label, whatever its times say? Of a tag there is one in a job. */
static int by_label(const struct store_label *x, const struct store_label *y)
{
	int r;

	if (x->kind != y->kind)
		return x->kind < y->kind ? -1 : 1;
	r = strcmp(x->name, y->name);
	if (r || x->kind == LABEL_TAG)
		return r;
	if (x->step != y->step)
		return x->step < y->step ? -1 : 1;
	return memcmp(x->id8, y->id8, sizeof x->id8);
}

static uint64_t lasts_until(const struct store_label *m)
{
	return m->until_ns ? m->until_ns : UINT64_MAX;
}

/* The one of several that counts comes first. */
static int by_label_and_weight(const void *a, const void *b)
{
	const struct label_file *f = a, *g = b;
	const struct store_label *x = &f->m, *y = &g->m;
	int r = by_label(x, y);

	if (r)
		return r;
	if (x->kind == LABEL_HOLD && lasts_until(x) != lasts_until(y))
		return lasts_until(x) > lasts_until(y) ? -1 : 1;
	if (x->made_ns != y->made_ns)
		return x->made_ns > y->made_ns ? -1 : 1;
	return strcmp(g->file, f->file);
}

int store_labels_of(const struct store *s, uint32_t kinds, struct store_label **ret,
		    uint32_t *ret_n, struct ckpt_err *err)
{
	struct label_files f;
	struct store_label *m;
	uint32_t n = 0;
	int r;

	*ret = NULL;
	*ret_n = 0;
	r = files_read(s, kinds, &f, err);
	if (r || f.n == 0) {
		free(f.at);
		return r;
	}
	m = malloc(f.n * sizeof *m);
	if (!m) {
		free(f.at);
		return ckpt_error(err, -ENOMEM, "job %s: no memory for %" PRIu32 " labels", s->job,
				  f.n);
	}
	qsort(f.at, f.n, sizeof *f.at, by_label_and_weight);
	for (uint32_t i = 0; i < f.n; i++) {
		const struct store_label *x = &f.at[i].m;

		if (is_exact(x->kind) && x->unread && !MUTANT(LABEL_UNREAD_TRUSTED))
			continue;
		if (n == 0 || by_label(&m[n - 1], x) != 0)
			m[n++] = *x;
	}
	free(f.at);
	*ret = m;
	*ret_n = n;
	return 0;
}

int store_labels(const struct store *s, struct store_label **ret, uint32_t *ret_n,
		 struct ckpt_err *err)
{
	return store_labels_of(s, UINT32_MAX, ret, ret_n, err);
}

bool store_label_is(const struct store_label *m, const struct store_step *st)
{
	if (m->step != st->step || st->state == STORE_COLLECTING)
		return false;
	if (!store_step_has_id(st))
		return !is_exact(m->kind);
	/* set while the MANIFEST could not be read: rather keep one too many than lose what was
	 * held */
	if ((m->kind == LABEL_HOLD || m->kind == LABEL_TAG) &&
	    memcmp(m->id8, (const uint8_t[sizeof m->id8]){ 0 }, sizeof m->id8) == 0)
		return true;
	return memcmp(m->id8, st->id, sizeof m->id8) == 0 || MUTANT(LABEL_OF_ANOTHER);
}

bool store_label_counts(const struct store_label *m, uint64_t now)
{
	return m->kind != LABEL_HOLD || lasts_until(m) > now;
}

/* --- setting --- */

void store_maker_print(char *ret, size_t bytes)
{
	char host[65] = "", room[4096], name[80];
	struct passwd pw, *found = NULL;

	(void)gethostname(host, sizeof host - 1);
	if (getpwuid_r(geteuid(), &pw, room, sizeof room, &found) == 0 && found)
		(void)snprintf(name, sizeof name, "%.60s@", found->pw_name);
	else
		(void)snprintf(name, sizeof name, "uid-%u@", (unsigned)geteuid());
	(void)snprintf(room, sizeof room, "%s%s", name, host);
	store_text_take(ret, bytes, room);
}

static void file_path(const char *file, char ret[PATH_BYTES])
{
	(void)snprintf(ret, PATH_BYTES, STORE_CLAIMS "/%s", file);
}

static int claims_sync(const struct store *s)
{
	const struct io_ops *ops = s->ops;
	int r, fd = ops->open(ops->ctx, s->job_fd, STORE_CLAIMS, O_RDONLY | O_DIRECTORY, 0);

	if (fd < 0)
		return fd;
	r = store_sync(ops, fd);
	(void)ops->close(ops->ctx, fd);
	return r;
}

/* A job that was copied without .ckptd gets one. */
int store_claims_make(const struct store *s)
{
	int r = s->ops->mkdir(s->ops->ctx, s->job_fd, STORE_CLAIMS, 0700);

	return r && r != -EEXIST ? r : store_sync(s->ops, s->job_fd);
}

static int label_create(const struct store *s, const struct store_label *m, char path[PATH_BYTES])
{
	const struct io_ops *ops = s->ops;
	char file[LABEL_FILE_MAX];
	int fd = -EEXIST;

	for (uint32_t i = 0; (fd == -EEXIST || fd == -ENOENT) && i < STORE_TRIES_MAX; i++) {
		uint32_t nonce;
		int r = fd == -ENOENT ? store_claims_make(s) : store_nonce(&nonce, NULL);

		if (r)
			return r;
		if (fd != -ENOENT) {
			file_print(m, i ? &nonce : NULL, file);
			file_path(file, path);
		}
		fd = ops->open(ops->ctx, s->job_fd, path, O_WRONLY | O_CREAT | O_EXCL, 0600);
	}
	return fd;
}

/* Whole and durable, or gone. */
static int label_write(const struct store *s, const struct store_label *m)
{
	const struct io_ops *ops = s->ops;
	char text[STORE_LABEL_BYTES_MAX], path[PATH_BYTES];
	uint32_t n = store_label_print(m, text);
	int r, closed, fd = label_create(s, m, path);

	if (fd < 0)
		return fd;
	io_point(ops, POINT_LABEL_MADE);
	r = io_pwrite_all(ops, fd, text, n, 0);
	if (!r) {
		io_point(ops, POINT_LABEL_WRITTEN);
		r = MUTANT(LABEL_NOT_SYNCED) ? 0 : store_sync(ops, fd);
	}
	closed = ops->close(ops->ctx, fd);
	r = r ? r : closed;
	if (!r) {
		io_point(ops, POINT_LABEL_SYNCED);
		r = MUTANT(LABEL_NAME_NOT_SYNCED) ? 0 : claims_sync(s);
	}
	if (r)
		(void)ops->unlink(ops->ctx, s->job_fd, path, false);
	else
		io_point(ops, POINT_LABEL_DURABLE);
	return r;
}

/* Those files that a label replaces. */
static uint32_t files_of(const struct label_files *f, const struct store_label *m,
			 struct label_file *ret)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < f->n; i++)
		if (by_label(&f->at[i].m, m) == 0)
			ret[n++] = f->at[i];
	return n;
}

/* Is the step that was scanned what the name leads to? Who cannot tell labels what was scanned; a
 * MANIFEST of another number does not tell. */
static int step_check(const struct store *s, const struct store_step *st)
{
	struct store_step now;
	int r = store_step_look(s, st->dir, &now);

	if (r || !store_step_has_id(st) || !store_step_has_id(&now) || now.said.step != now.step)
		return r;
	return memcmp(st->id, now.id, sizeof now.id) == 0 ? 0 : -ENOENT;
}

static int label_replace(const struct store *s, struct store_label *m, struct ckpt_err *err)
{
	struct label_files f;
	uint32_t n, gone = 0;
	char path[PATH_BYTES];
	int r = files_read(s, 1u << m->kind, &f, err);

	if (r)
		return r;
	n = files_of(&f, m, f.at);
	for (uint32_t i = 0; i < n; i++)
		if (f.at[i].m.made_ns >= m->made_ns && f.at[i].m.made_ns != UINT64_MAX)
			m->made_ns = f.at[i].m.made_ns + 1;
	r = label_write(s, m);
	for (uint32_t i = 0; !r && i < n; i++) {
		file_path(f.at[i].file, path);
		gone += s->ops->unlink(s->ops->ctx, s->job_fd, path, false) == 0;
		io_point(s->ops, POINT_LABEL_GONE);
	}
	if (gone && claims_sync(s) == 0)
		io_point(s->ops, POINT_LABEL_GONE_SYNCED);
	free(f.at);
	return r ? store_fail(err, r, "job %s, step %" PRIu64 ": cannot make its %s label durable",
			      s->job, m->step, words[m->kind])
		 : 0;
}

int store_label_set(const struct store *s, const struct store_step *st, enum store_label_kind kind,
		    const char *name, uint64_t until_ns, const char *why, struct ckpt_err *err)
{
	struct store_label m = { .kind = kind, .step = st->step };
	int r, fd;

	if (is_named(kind) && store_label_name_check(name, err))
		return -EINVAL;
	if ((!is_named(kind) && name) || (kind != LABEL_HOLD && until_ns) ||
	    st->state == STORE_COLLECTING)
		return ckpt_error(err, -EINVAL,
				  "job %s, step %" PRIu64 ": a %s label cannot be set like this",
				  s->job, st->step, words[kind]);
	if (name)
		memcpy(m.name, name, strlen(name) + 1);
	memcpy(m.id8, st->id, sizeof m.id8);
	m.made_ns = wall_ns();
	m.until_ns = until_ns;
	store_text_take(m.why, sizeof m.why, why);
	store_maker_print(m.by, sizeof m.by);
	r = store_hold(s, st->dir, false, &fd);
	if (!r)
		r = step_check(s, st);
	if (r == -ENOENT || r == -EAGAIN || r == -ESTALE)
		r = ckpt_error(err, -ENOENT,
			       "job %s: %s has gone or is being removed, so it gets no %s label",
			       s->job, st->dir, words[kind]);
	else if (r)
		r = store_fail(err, r, "job %s: cannot label %s", s->job, st->dir);
	else
		r = label_replace(s, &m, err);
	store_unlock(s->ops, fd);
	return r;
}

/* --- clearing --- */

/* Which files go. */
typedef bool choose_fn(const void *arg, const struct store_label *m);

/* *ret_n: how many went. An error: some may be left. */
static int files_clear(const struct store *s, uint32_t kinds, choose_fn *choose, const void *arg,
		       uint32_t *ret_n, struct ckpt_err *err)
{
	struct label_files f;
	char path[PATH_BYTES];
	int gone, r = files_read(s, kinds, &f, err);

	*ret_n = 0;
	if (r)
		return r;
	for (uint32_t i = 0; i < f.n; i++) {
		if (!choose(arg, &f.at[i].m))
			continue;
		file_path(f.at[i].file, path);
		gone = s->ops->unlink(s->ops->ctx, s->job_fd, path, false);
		io_point(s->ops, POINT_LABEL_GONE);
		if (gone == 0)
			++*ret_n;
		else if (gone != -ENOENT && !r)
			r = gone;
	}
	free(f.at);
	if (*ret_n) {
		gone = claims_sync(s);
		io_point(s->ops, POINT_LABEL_GONE_SYNCED);
		r = r ? r : gone;
	}
	return r ? store_fail(err, r, "job %s: cannot remove labels in " STORE_CLAIMS, s->job) : 0;
}

struct clearing {
	const struct store_step *st;
	const char *name;
	const struct store_step *other; /* steps whose labels these are for sure */
	uint32_t nother;
};

static bool clearing_choose(const void *arg, const struct store_label *m)
{
	const struct clearing *c = arg;

	if (!store_label_is(m, c->st) || (c->name && strcmp(c->name, m->name) != 0))
		return false;
	for (uint32_t i = 0; i < c->nother; i++)
		if (store_step_has_id(&c->other[i]) && store_label_is(m, &c->other[i]))
			return store_step_has_id(c->st);
	return true;
}

int store_label_clear(const struct store *s, const struct store_step *st,
		      enum store_label_kind kind, const char *name, uint32_t *ret_n,
		      struct ckpt_err *err)
{
	cleanup_free struct store_step *all = NULL;
	struct clearing c = { .st = st, .name = name };
	uint32_t n;
	int r = 0;

	if (!store_step_has_id(st))
		r = store_scan(s, true, &all, &c.nother, err);
	c.other = all;
	if (!r)
		r = files_clear(s, 1u << kind, clearing_choose, &c, &n, err);
	if (ret_n)
		*ret_n = r ? 0 : n;
	return r;
}

struct forgetting {
	uint64_t step;
	const uint8_t *id;
};

static bool forgetting_choose(const void *arg, const struct store_label *m)
{
	const struct forgetting *f = arg;

	return m->step == f->step && memcmp(m->id8, f->id, sizeof m->id8) == 0;
}

void store_labels_forget(const struct store *s, uint64_t step, const uint8_t id[16])
{
	struct forgetting f = { .step = step, .id = id };
	uint32_t n;

	(void)files_clear(s, UINT32_MAX, forgetting_choose, &f, &n, NULL);
}
