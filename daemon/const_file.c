// SPDX-License-Identifier: Apache-2.0
// const_file.c - see const_file.h. Called by persist.
// Invariant: a file of which a byte was read wrong is linked by no later step.
#include "daemon/const_file.h"
#include "ckpt/base/mutant.h"
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>

/* --- what was written --- */

static void unit_add(struct const_file *f, uint64_t off, uint64_t len, uint32_t chunk,
		     struct hash128 sum)
{
	f->unit[f->nunit++] =
		(struct const_unit){ .off = off, .len = (uint32_t)len, .chunk = chunk, .sum = sum };
}

static void units_fill(struct const_file *f, const struct ck_head *head, const struct chunk *chunk,
		       uint64_t nchunk, uint64_t tail_at, const uint8_t *tail, uint64_t tail_len)
{
	unit_add(f, 0, sizeof *head, TABLE_NONE, hash128(head, sizeof *head));
	for (uint64_t i = 0; i < nchunk; i++)
		if (chunk[i].raw_len)
			unit_add(f, chunk[i].off, chunk[i].stored_len, (uint32_t)i,
				 chunk[i].raw_hash);
	for (uint64_t at = 0; at < tail_len; at += CONST_READ_BYTES) {
		uint64_t len = MIN(tail_len - at, CONST_READ_BYTES);

		unit_add(f, tail_at + at, len, TABLE_NONE, hash128(tail + at, len));
	}
}

int const_file_take(struct const_file *f, const struct native_info *info, uint32_t rank,
		    const struct table *t, const struct chunk *chunk, uint64_t nchunk,
		    uint64_t data_end, const struct native_part *part)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	cleanup_free void *tail = NULL;
	struct hash128 root;
	uint64_t tail_len;
	int rc;

	const_file_free(f);
	rc = native_part_tail(info, rank, t, chunk, nchunk, data_end, &tail, &tail_len, &root,
			      NULL);
	if (rc < 0)
		return rc;
	if (memcmp(&root, &part->root, sizeof root) != 0 || data_end + tail_len != part->file_bytes)
		return -EPROTO;
	f->unit = calloc(nchunk + div_up(tail_len, CONST_READ_BYTES) + 1, sizeof *f->unit);
	if (!f->unit || !head)
		return -ENOMEM;
	native_part_head(info, rank, head);
	units_fill(f, head, chunk, nchunk, data_end, tail, tail_len);
	f->old_ns = now_ns() + CONST_AGE_NS;
	return 0;
}

void const_file_free(struct const_file *f)
{
	free(f->unit);
	*f = (struct const_file){ 0 };
}

void const_file_shared(struct const_file *f, uint64_t step, const uint8_t id[16])
{
	struct const_step *x = &f->step[f->nstep];

	if (f->nstep == CONST_STEPS_MAX)
		return;
	x->step = step;
	memcpy(x->id, id, sizeof x->id);
	f->nstep++;
}

bool const_file_may_share(const struct const_file *f, uint64_t now)
{
	return (f->nstep < CONST_STEPS_MAX && now < f->old_ns) || MUTANT(CONST_SHARED_FOR_EVER);
}

uint32_t const_file_rotation(const struct const_file *f)
{
	return f->nunit;
}

/* --- what is there --- */

/* As many units as lie within what one commit reads; at least one. */
static uint32_t units_next(const struct const_file *f, uint64_t *ret_len)
{
	uint64_t from = f->unit[f->next].off;
	uint32_t n = 0;

	*ret_len = 0;
	for (uint32_t i = f->next; i < f->nunit; i++, n++) {
		uint64_t len = align_up(f->unit[i].off + f->unit[i].len, CHUNK_ALIGN) - from;

		if (len > CONST_READ_BYTES)
			break;
		*ret_len = len;
	}
	return n;
}

/* Past the page cache, or else from what the disk gives after the cache has forgotten it. */
static int file_open(const struct io_ops *ops, int dirfd, const char *name)
{
	int fd = ops->open(ops->ctx, dirfd, name, O_RDONLY | O_DIRECT, 0);

	if (fd == -EINVAL || fd == -EOPNOTSUPP)
		fd = ops->open(ops->ctx, dirfd, name, O_RDONLY, 0);
	return fd;
}

static int file_read(struct const_file *f, const struct io_ops *ops, int fd, void *buf,
		     uint64_t len, uint64_t off)
{
	int rc;

	if (!io_fd_direct(fd))
		io_forget(fd); /* all of it: of a range, large folios at its ends stay */
	rc = io_pread_all(ops, fd, buf, len, off);
	f->cached = !io_fd_direct(fd); /* it may be refused by the read alone */
	return rc;
}

/* The first byte of a unit that is not what the trainer has. */
static uint64_t first_other(const struct const_unit *u, const uint8_t *is, const uint8_t *raw)
{
	const uint8_t *was = raw + ((uint64_t)u->chunk << CHUNK_LOG2);
	uint32_t i = 0;

	while (i < u->len && is[i] == was[i])
		i++;
	return i < u->len ? i : 0;
}

static int rot_found(const struct const_file *f, const struct const_unit *u, int code,
		     const uint8_t *is, const void *raw, struct const_rot *ret)
{
	uint64_t at = is && u->chunk != TABLE_NONE ? first_other(u, is, raw) : 0;

	*ret = (struct const_rot){ .code = code,
				   .off = u->off + at,
				   .len = u->len,
				   .never = !u->read,
				   .right = u->read ? u->right : f->step[0].step,
				   .chunk = u->chunk,
				   .raw = ((uint64_t)u->chunk << CHUNK_LOG2) + at };
	return -EBADMSG;
}

static int units_compare(struct const_file *f, uint32_t n, const uint8_t *buf, const void *raw,
			 uint64_t step, struct const_rot *ret)
{
	struct const_unit *first = &f->unit[f->next];

	for (struct const_unit *u = first; u < first + n; u++) {
		const uint8_t *is = buf + (u->off - first->off);
		struct hash128 h = hash128(is, u->len);

		if (memcmp(&h, &u->sum, sizeof h) != 0)
			return rot_found(f, u, -EBADMSG, is, raw, ret);
		u->right = step;
		u->read = true;
	}
	f->next = f->next + n < f->nunit ? f->next + n : 0;
	return 0;
}

/* Is it this process that has too few of something? */
static bool is_short(int rc)
{
	return rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM;
}

int const_file_read(struct const_file *f, const struct io_ops *ops, int dirfd, const char *name,
		    const struct store_part_id *id, const void *raw, uint64_t step,
		    struct const_rot *ret)
{
	cleanup_free uint8_t *buf = NULL;
	uint64_t len;
	uint32_t n;
	int fd, rc;

	if (!f->nunit || MUTANT(CONST_NEVER_READ))
		return 0;
	n = units_next(f, &len);
	buf = aligned_alloc(CHUNK_ALIGN, len);
	if (!buf)
		return -ENOMEM;
	fd = file_open(ops, dirfd, name);
	if (fd == -ENOENT || is_short(fd))
		return fd == -ENOENT ? 0 : fd;
	if (fd < 0)
		return rot_found(f, &f->unit[f->next], fd, NULL, NULL, ret);
	if (!store_part_is(ops, fd, id)) {
		(void)ops->close(ops->ctx, fd);
		return 0;
	}
	rc = file_read(f, ops, fd, buf, len, f->unit[f->next].off);
	(void)ops->close(ops->ctx, fd);
	if (is_short(rc))
		return rc;
	return rc < 0 ? rot_found(f, &f->unit[f->next], rc, NULL, NULL, ret)
		      : units_compare(f, n, buf, raw, step, ret);
}

/* --- labels --- */

static uint64_t bad_word(uint64_t step, const uint8_t *id8)
{
	uint8_t key[8 + sizeof((struct store_label *)0)->id8];

	memcpy(key, &step, 8);
	memcpy(key + 8, id8, sizeof key - 8);
	return hash_word(hash128(key, sizeof key));
}

int const_bad_sum(const struct store *s, uint64_t *ret)
{
	struct store_label *label = NULL;
	uint32_t n = 0;
	int rc = store_labels_of(s, 1u << LABEL_BAD, &label, &n, NULL);

	*ret = 0;
	for (uint32_t i = 0; i < n && rc == 0; i++)
		*ret += bad_word(label[i].step, label[i].id8);
	free(label);
	return rc;
}

/* -ENOENT: it is not there any more, or another one has its number, or somebody has labelled it. */
static int step_label(const struct store *s, const struct const_step *x, enum store_label_kind kind,
		      const char *name, const char *why, struct store_step *ret,
		      struct ckpt_err *err)
{
	char dir[STORE_DIR_MAX];
	int rc;

	store_name_step(x->step, dir);
	rc = store_step_judge(s, dir, ret, err);
	if (rc == 0 && (ret->state != STORE_COMMITTED || memcmp(ret->id, x->id, sizeof x->id) != 0))
		rc = -ENOENT;
	return rc == 0 ? store_label_set(s, ret, kind, name, 0, why, err) : rc;
}

int const_lost_label(const struct store *s, struct const_lost *x, const struct const_step *good,
		     uint32_t *ret_n, uint64_t *ret_sum, struct ckpt_err *err)
{
	struct const_lost lost = *x;
	struct store_step st;
	struct ckpt_err why;
	char text[sizeof lost.why];
	int rc = 0;

	*x = (struct const_lost){ 0 };
	*ret_n = 0;
	*ret_sum = 0;
	for (uint32_t i = 0; i < lost.n; i++) {
		int one = step_label(s, &lost.step[i], LABEL_BAD, NULL, lost.why, &st, &why);

		if (one == 0) {
			++*ret_n;
			*ret_sum += bad_word(st.step, st.id);
		} else if (one != -ENOENT && rc == 0) {
			rc = one;
			*err = why;
		}
	}
	if (!*ret_n)
		return rc;
	snprintf(text, sizeof text,
		 "steps from %" PRIu64 " to %" PRIu64
		 " have a damaged file of frozen weights; a restore of them takes these from here",
		 lost.step[0].step, lost.step[lost.n - 1].step);
	if (step_label(s, good, LABEL_HOLD, CONST_HOLD_NAME, text, &st, &why) < 0 && rc == 0) {
		rc = why.code;
		*err = why;
	}
	return rc;
}
