/* SPDX-License-Identifier: Apache-2.0 */
/*
 * verb_cat.c - ckptctl cat: the elements of one tensor, or of a slice of it, whatever ranks wrote
 * them: as bytes, as a .npy file, as statistics, or a few of them on a terminal.
 * Invariant: bytes leave in row-major order, checked against their checksums, in bounded memory;
 * stdout carries either bytes or a document, never both; a file appears when it is whole.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/engine/element.h"
#include "ckpt/layout/human.h"
#include "ckpt/engine/npy.h"
#include "ckpt/engine/preview.h"
#include "ckpt/cli/progress.h"
#include "ckpt/cli/subject.h"
#include "ckpt/engine/tally.h"
#include "ckpt/engine/values.h"
#include "ckpt/io/publish.h"
#include <limits.h>
#include <signal.h>
#include <stdarg.h>

#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)
#define LIST_BYTES 1000
#define TEXT_MAX (64 * KIB) /* of a blob of text, on a terminal */
#define TEXT_PIECE 1024	    /* of it, cleaned at a time */
#define SLICE_BYTES 800
#define NEXT_BYTES (PATH_MAX + NAME_BYTES + 64)
#define EXIT_PIPE (128 + SIGPIPE) /* as a shell has it for a process that SIGPIPE ended */

enum cat_mode { CAT_BYTES, CAT_STATS, CAT_PREVIEW, CAT_ABOUT };

struct cat {
	struct cli *c;
	enum cat_mode mode;
	bool npy;
	struct subject s;
	const struct table_tensor *x;
	struct values v; /* of x */
	struct publish *file;
	int file_fd; /* of it; -1 */
	uint64_t file_bytes;
	bool to_file;
	int fd; /* of stdout; -1: only through c->out */
	struct tally tally;
	struct ckpt_err err;
	char next[NEXT_BYTES]; /* what to do about err; "" nothing */
};

__attribute__((format(printf, 2, 3))) static void next_is(struct cat *k, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(k->next, sizeof k->next, fmt, ap);
	va_end(ap);
}

/* --- which tensor --- */

static int rank_parse(const char *s, uint32_t *ret, struct ckpt_err *err)
{
	char *end;
	unsigned long n = strtoul(s, &end, 10);

	if (*s < '0' || *s > '9' || *end || n >= TABLE_NONE)
		return ckpt_error(err, -EINVAL,
				  "--rank %.100s is not a rank: ranks are numbers from 0", s);
	*ret = (uint32_t)n;
	return 0;
}

/* "0-3, 7": the ranks of tensors that stand in ascending order. */
static void ranks_print(const struct table *t, const uint32_t *id, uint32_t n, char *buf,
			size_t bytes)
{
	size_t len = 0;

	buf[0] = 0;
	for (uint32_t i = 0, j; i < n; i = j) {
		uint32_t from = t->tensor[id[i]].rank, to = from;
		int k;

		for (j = i + 1; j < n && t->tensor[id[j]].rank == to + 1; j++)
			to++;
		k = snprintf(buf + len, bytes - len, to > from ? "%s%u-%u" : "%s%u", i ? ", " : "",
			     from, to);
		if (len + (size_t)k + sizeof ", ..." > bytes) {
			strcpy(buf + len, ", ...");
			return;
		}
		len += (size_t)k;
	}
}

static int tensor_ambiguous(const struct table *t, const uint32_t *id, uint32_t n, const char *word,
			    struct ckpt_err *err)
{
	char list[LIST_BYTES] = "";
	size_t len = 0;

	for (uint32_t i = 0; i < n; i++) {
		const struct table_tensor *x = &t->tensor[id[i]];
		bool again = false;

		for (uint32_t j = 0; j < i && !again; j++)
			again = !strcmp(x->component, t->tensor[id[j]].component);
		if (again || len > sizeof list / 2)
			continue;
		len += (size_t)snprintf(list + len, sizeof list - len, "%s%.200s/%.200s",
					len ? ", " : "", x->component, x->name);
	}
	return ckpt_error(err, -ENOTUNIQ, "\"%.200s\" is the name of several tensors: %s", word,
			  list);
}

static int tensor_choose(struct cat *k, const char *word, const char *rank)
{
	const struct table *t = &k->s.ckpt->table;
	cleanup_free uint32_t *id = NULL;
	char list[LIST_BYTES];
	uint32_t n = 0, want = TABLE_NONE;
	int rc = named_tensors(k->s.ckpt, word, &id, &n, &k->err);

	if (rc)
		next_is(k, "ckptctl show %s --tensors '*' lists them all", k->s.ref.path);
	if (!rc && rank)
		rc = rank_parse(rank, &want, &k->err);
	if (rc)
		return rc;
	k->x = &t->tensor[id[0]];
	next_is(k, "ckptctl cat %s %s/%s", k->s.ref.path, k->x->component, k->x->name);
	for (uint32_t i = 1; i < n; i++)
		if (strcmp(t->tensor[id[i]].component, k->x->component))
			return tensor_ambiguous(t, id, n, word, &k->err);
	if (rank && k->x->rank == TABLE_NONE)
		return ckpt_error(
			&k->err, -EINVAL,
			"%.200s/%.200s is one tensor of all ranks, not a blob of each rank: "
			"leave --rank out",
			k->x->component, k->x->name);
	if (n == 1 && !rank)
		return 0;
	for (uint32_t i = 0; i < n; i++)
		if (t->tensor[id[i]].rank == want) {
			k->x = &t->tensor[id[i]];
			return 0;
		}
	ranks_print(t, id, n, list, sizeof list);
	next_is(k, "ckptctl cat %s %s/%s --rank %u", k->s.ref.path, k->x->component, k->x->name,
		k->x->rank);
	if (!rank)
		return ckpt_error(
			&k->err, -EINVAL,
			"%.200s/%.200s is a blob that each rank has: choose a rank with --rank; "
			"the ranks are %s",
			k->x->component, k->x->name, list);
	return ckpt_error(&k->err, -ENOENT,
			  "there is no %.200s/%.200s of rank %u: the ranks are %s", k->x->component,
			  k->x->name, want, list);
}

/* --- reading --- */

/* To stdout. It bypasses stdio where it can: so that a reader that has closed the pipe is no error that stdio
 * remembers. */
static int put_out(struct cat *k, const uint8_t *p, uint64_t n)
{
	while (n && k->fd >= 0) {
		ssize_t got = write(k->fd, p, MIN(n, (uint64_t)MOVE_BLOCK));

		if (got < 0 && errno != EINTR)
			return errno == EPIPE ? -EPIPE
					      : ckpt_error_errno(&k->err, errno,
								 "the output cannot be written");
		if (cli_stopped())
			return ckpt_error(&k->err, -ECANCELED, "interrupted");
		p += MAX(got, 0);
		n -= (uint64_t)MAX(got, 0);
	}
	if (n && fwrite(p, 1, n, k->c->out) != n)
		return ckpt_error_errno(&k->err, errno ? errno : EIO,
					"the output cannot be written");
	return 0;
}

static int put_file_bytes(struct cat *k, const void *p, uint64_t n)
{
	int rc = io_pwrite_all(k->c->ops, k->file_fd, p, n, k->file_bytes);

	k->file_bytes += n;
	return rc ? ckpt_error_errno(&k->err, -rc, "%.3000s cannot be written",
				     k->c->value[OPT_OUTPUT])
		  : 0;
}

static int file_begin(struct cat *k)
{
	const struct publish_opts o = { .ops = k->c->ops,
					.path = k->c->value[OPT_OUTPUT],
					.mode = 0666 };
	int rc = publish_begin(&o, 0, &k->file, &k->err);

	if (!rc)
		rc = publish_file(k->file, "", 0, NULL, &k->file_fd, &k->err);
	return cli_new_file(rc);
}

static int file_commit(struct cat *k)
{
	int rc = publish_file_end(k->file, "", TAKE_FD(k->file_fd), k->file_bytes, &k->err);

	return cli_new_file(rc ? rc : publish_commit(k->file, &k->err));
}

static void file_end(struct cat *k)
{
	if (k->file_fd >= 0)
		(void)k->c->ops->close(k->c->ops->ctx, TAKE_FD(k->file_fd));
	publish_end(TAKE(k->file), false);
}

static int put_bytes(struct cat *k, const void *p, uint64_t n)
{
	if (k->to_file)
		return put_file_bytes(k, p, n);
	return k->mode == CAT_BYTES ? put_out(k, p, n) : 0;
}

/* values_fn */
static int on_values(void *arg, const uint8_t *p, uint64_t len, uint64_t done)
{
	struct cat *k = arg;

	(void)done;
	if (k->mode == CAT_STATS)
		tally_add(&k->tally, p, len / k->x->elem_bytes);
	return put_bytes(k, p, len);
}

/* The elements of `set`; NULL: all that were chosen. ret: where they go in memory; NULL: to
 * on_values. */
static int read_set(struct cat *k, const struct indexset *set, uint8_t **ret)
{
	struct progress progress;
	const struct engine e = {
		.ops = k->c->ops, .io = IO_AUTO, .tick = progress_tick, .arg = &progress
	};
	char name[NAME_BYTES];
	int rc;

	progress_begin(&progress, k->c, set ? set->numel * k->x->elem_bytes : k->v.bytes, "%s",
		       table_tensor_print(k->x, name, sizeof name));
	rc = ret ? engine_values_take(&e, &k->s.o, &k->v, set, ret, &k->err)
		 : engine_values_all(&e, &k->s.o, &k->v, on_values, k, &k->err);
	progress_end(&progress);
	return rc;
}

static int read_slice(struct cat *k)
{
	const struct slice *s = &k->v.stored;
	uint8_t head[NPY_HEADER_MAX];
	int rc = 0;

	if (k->npy)
		rc = put_bytes(k, head, npy_header(k->x->dtype, s->nshape, s->shape, head));
	if (!rc && k->v.bytes)
		rc = read_set(k, NULL, NULL);
	if (!rc && k->to_file)
		rc = file_commit(k);
	return rc;
}

/* --- telling --- */

static void put_about(struct cat *k)
{
	struct output *o = k->c->o;
	const struct table_tensor *x = k->x;
	char name[NAME_BYTES], slice[SLICE_BYTES], from[SUBJECT_TITLE];
	bool part = k->c->value[OPT_SLICE] != NULL;

	subject_title(k->s.ckpt, k->s.ref.path, from);
	slice_print(&k->v.slice, k->v.shape, slice, sizeof slice);
	output_head(o, "tensor",
		    cell_styled(cell_text(table_tensor_print(x, name, sizeof name)), STYLE_STRONG));
	subject_put(o, k->s.ref.path, k->s.ckpt);
	output_head(o, "in", cell_text(from));
	output_key(o, "component", cell_text(x->component));
	output_key(o, "name", cell_text(x->name));
	output_key(o, "rank", cell_unless(CELL_NUMBER, x->rank, TABLE_NONE));
	output_key(o, "media", cell_if(x->flags & TENSOR_BLOB, cell_text(media_name(x->media))));
	if (x->flags & TENSOR_BLOB)
		output_head(o, "content", cell_text(media_name(x->media)));
	output_field(o, "dtype", "dtype", cell_text(dtype_name(x->dtype)));
	output_field(o, "shape", "shape", cell_shape(x->ndim, k->v.shape));
	output_key(o, "slice", cell_if(part, cell_text(slice)));
	if (part)
		output_head(o, "slice", cell_text(slice));
	output_key(o, "result_shape", cell_shape(k->v.slice.nshape, k->v.slice.shape));
	output_field(o, "elements", "elements", cell_count(k->v.slice.numel));
	output_field(o, "bytes", "size", cell_bytes(k->v.bytes));
}

static void put_file(struct cat *k)
{
	struct output *o = k->c->o;
	bool npy = k->to_file && k->npy;

	if (k->to_file)
		output_field(o, "destination", "file", cell_text(k->c->value[OPT_OUTPUT]));
	else
		output_key(o, "destination", cell_none());
	output_key(o, "file_bytes", cell_if(k->to_file, cell_bytes(k->file_bytes)));
	output_key(o, "npy_descr", cell_if(npy, cell_text(npy_descr(k->x->dtype))));
	output_key(o, "npy_view", cell_if(npy, cell_word(npy_view(k->x->dtype))));
}

/* min or max: of integers all digits. */
static struct cell extreme_cell(const struct tally *t, uint64_t whole, double real, char *buf)
{
	uint8_t bytes[8];

	if (!t->finite)
		return cell_none();
	for (uint32_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(whole >> 8 * i);
	if (element_is_integer(t->dtype))
		element_print(t->dtype, bytes, 0, buf);
	else
		element_real_print(t->dtype, real, 0, buf);
	return cell_text(buf);
}

static void put_stats(struct cat *k)
{
	struct output *o = k->c->o;
	const struct tally *t = &k->tally;
	struct cell none = cell_none(), mean = none, std = none;
	char min[ELEMENT_BYTES], max[ELEMENT_BYTES], a[ELEMENT_BYTES], b[ELEMENT_BYTES];

	if (t->finite) {
		mean = cell_text(element_real_print(CKPT_F64, (double)t->mean, 7, a));
		std = cell_text(element_real_print(CKPT_F64, tally_std(t), 7, b));
	}
	output_object(o, "stats");
	output_key(o, "quantity", cell_text(tally_magnitude(t) ? "magnitude" : "value"));
	if (tally_magnitude(t))
		output_head(o, "of", cell_text("the absolute values"));
	output_key(o, "min", t->finite ? cell_real(t->min) : none);
	output_field(o, "min_text", "min", extreme_cell(t, t->whole_min, t->min, min));
	output_key(o, "max", t->finite ? cell_real(t->max) : none);
	output_field(o, "max_text", "max", extreme_cell(t, t->whole_max, t->max, max));
	output_key(o, "mean", t->finite ? cell_real((double)t->mean) : none);
	output_head(o, "mean", mean);
	output_key(o, "std", t->finite ? cell_real(tally_std(t)) : none);
	output_head(o, "std", std);
	output_key(o, "finite_count", cell_count(t->finite));
	output_field(o, "zero_count", "zeros", cell_count(t->zeros));
	output_field(o, "nan_count", "NaN",
		     cell_styled(cell_count(t->nan), t->nan ? STYLE_BAD : STYLE_PLAIN));
	output_field(o, "inf_count", "Inf",
		     cell_styled(cell_count(t->inf), t->inf ? STYLE_BAD : STYLE_PLAIN));
	output_field(o, "neg_inf_count", "-Inf",
		     cell_styled(cell_count(t->neg_inf), t->neg_inf ? STYLE_BAD : STYLE_PLAIN));
	output_close(o);
}

/* What is shown, as elements: slice_pack has seen to it that the last dimension is one of the
 * slice. */
static struct preview preview_pack(const struct preview *p, uint32_t values)
{
	struct preview ret = *p;

	if (values == 1 || !p->ndim)
		return ret;
	ret.shape[p->ndim - 1] /= values;
	ret.head[p->ndim - 1] /= values;
	ret.tail[p->ndim - 1] /= values;
	ret.numel /= values;
	return ret;
}

static void preview_say(void *arg, const char *line)
{
	cli_say(arg, STYLE_PLAIN, "%s", line);
}

static int values_preview(struct cat *k)
{
	struct arena a = { 0 };
	struct indices dim[CKPT_DIMS_MAX];
	struct indexset set = { .ndim = k->x->ndim, .dim = dim };
	struct preview p, stored;
	uint8_t *value = NULL;
	uint32_t at = 0, values = dtype_values(k->x->dtype);
	uint32_t width = k->c->out_screen.width;
	int rc = 0;

	preview_choose(k->v.slice.nshape, k->v.slice.shape, values, &p);
	stored = preview_pack(&p, values);
	for (uint32_t d = 0; !rc && d < set.ndim; d++) {
		uint64_t from = k->v.stored.start[d];

		rc = k->v.slice.single[d] ? indices_range(from, from + 1, &a, &dim[d])
					  : preview_indices(&stored, at++, from, &a, &dim[d]);
	}
	set.numel = stored.numel;
	if (!rc)
		rc = read_set(k, &set, &value);
	if (!rc) {
		put_about(k);
		cli_say(k->c, STYLE_PLAIN, "%s", "");
		rc = preview_print(&p, k->x->dtype, value, width ? width : 80, preview_say, k->c);
	}
	free(value);
	arena_free(&a);
	return rc;
}

/* n bytes without a line break or tab. A zero is a control character too, but would end the
 * piece. */
static void text_piece(struct cat *k, const uint8_t *p, size_t n)
{
	char raw[TEXT_PIECE + 1], clean[TEXT_PIECE + 1];

	for (size_t i = 0; i < n; i++)
		raw[i] = p[i] ? (char)p[i] : '\1';
	raw[n] = 0;
	screen_clean(raw, clean, sizeof clean);
	fputs(screen_ascii(&k->c->out_screen, clean, clean, sizeof clean), k->c->out);
}

static size_t utf8_trim(const uint8_t *p, size_t n, size_t most)
{
	size_t at = MIN(n, most);

	if (at == n)
		return n;
	while (at + 4 > MIN(n, most) && at && (p[at] & 0xc0) == 0x80)
		at--;
	return at ? at : MIN(n, most);
}

/* Lines and tabs stay; all else that a terminal obeys becomes '?', as in names. */
static void text_print(struct cat *k, const uint8_t *p, size_t n)
{
	bool open = false;

	for (size_t i = 0, len; i < n; i += len) {
		for (len = 0; i + len < n && p[i + len] != '\n' && p[i + len] != '\t';)
			len++;
		if (len) {
			len = utf8_trim(p + i, len, TEXT_PIECE);
			text_piece(k, p + i,
				   len - (p[i + len - 1] == '\r' && i + len < n &&
					  p[i + len] == '\n'));
			open = true;
			continue;
		}
		len = 1;
		fputc(p[i], k->c->out);
		open = p[i] != '\n';
	}
	if (open)
		fputc('\n', k->c->out);
}

/* JSON or text for people. */
static int blob_print(struct cat *k)
{
	uint64_t n = MIN(k->v.stored.numel, (uint64_t)TEXT_MAX), more = k->v.stored.numel - n;
	struct arena a = { 0 };
	struct indexset set;
	uint8_t *value = NULL;
	int rc = indexset_box(1, k->v.stored.start, &n, &a, &set);

	if (!rc)
		rc = read_set(k, &set, &value);
	if (!rc) {
		size_t len = more ? utf8_trim(value, n, n - 4) : n;

		more += n - len;
		put_about(k);
		cli_say(k->c, STYLE_PLAIN, "%s", "");
		text_print(k, value, len);
		if (more)
			cli_say(k->c, STYLE_DIM, "and %llu bytes more: redirect the output",
				(unsigned long long)more);
	}
	free(value);
	arena_free(&a);
	return rc;
}

static void hint_view(struct cat *k)
{
	const char *view = npy_view(k->x->dtype);

	if (k->npy && k->x->dtype == CKPT_C32)
		cli_hint(k->c,
			 "numpy has no C32: np.load(...).view(np.%s) is real, imaginary, real, ...",
			 view);
	else if (k->npy && dtype_values(k->x->dtype) > 1)
		cli_hint(k->c, "numpy has no %s: these are bytes of two values, the low half first",
			 dtype_name(k->x->dtype));
	else if (k->npy && view)
		cli_hint(k->c, "numpy has no %s: np.load(...).view(ml_dtypes.%s)",
			 dtype_name(k->x->dtype), view);
}

/* --- the verb --- */

/* What the options ask for; -EINVAL where they do not go together. */
static int output_decide(struct cat *k)
{
	struct cli *c = k->c;
	const char *file = c->value[OPT_OUTPUT];
	size_t len = file ? strlen(file) : 0;

	k->npy = c->value[OPT_NPY] || (len > 4 && !strcmp(file + len - 4, ".npy"));
	if (c->value[OPT_STATS])
		k->mode = CAT_STATS;
	else if (file)
		k->mode = c->json ? CAT_ABOUT : CAT_BYTES;
	else if (c->json)
		k->mode = CAT_ABOUT;
	else
		k->mode = c->out_screen.terminal && !k->npy ? CAT_PREVIEW : CAT_BYTES;
	if (c->value[OPT_NPY] && !file && k->mode != CAT_BYTES)
		return ckpt_error(
			&k->err, -EINVAL,
			"--npy writes the array: with --stats or --json it needs -o FILE");
	if (k->mode == CAT_BYTES && !file && c->out_screen.terminal)
		return ckpt_error(
			&k->err, -EINVAL,
			"a .npy file is binary and cannot go to a terminal: give -o FILE, or "
			"redirect the output");
	return 0;
}

static int bytes_deliver(struct cat *k)
{
	struct cli *c = k->c;
	bool reads = k->mode == CAT_STATS || k->to_file,
	     told = c->json || k->to_file || k->mode != CAT_BYTES;
	int rc = 0;

	if (told && reads)
		output_line(c->o, "ckptd.cat/1", "summary");
	else if (told)
		output_begin(c->o, "ckptd.cat/1");
	if (k->mode == CAT_PREVIEW &&
	    (k->x->media == CKPT_MEDIA_JSON || k->x->media == CKPT_MEDIA_TEXT))
		rc = blob_print(k);
	else if (k->mode == CAT_PREVIEW)
		rc = values_preview(k);
	else if (reads || k->mode == CAT_BYTES)
		rc = read_slice(k);
	if (rc)
		return rc;
	if (k->mode == CAT_STATS || k->mode == CAT_ABOUT || k->to_file) {
		put_about(k);
		put_file(k);
	}
	if (k->mode == CAT_STATS)
		put_stats(k);
	else if (told)
		output_key(c->o, "stats", cell_none());
	if (told)
		output_end(c->o);
	hint_view(k);
	return 0;
}

static int tensor_find(struct cat *k)
{
	struct cli *c = k->c;
	char name[NAME_BYTES];
	int rc = tensor_choose(k, c->arg[1], c->value[OPT_RANK]);

	if (rc)
		return rc;
	if (k->x->cls == CKPT_SINK)
		return ckpt_error(&k->err, -EINVAL,
				  "%s is only ever restored into: its elements were not saved",
				  table_tensor_print(k->x, name, sizeof name));
	next_is(k, "ckptctl show %s %s/%s", k->s.ref.path, k->x->component, k->x->name);
	rc = values_choose(&k->s.ckpt->table, (uint32_t)(k->x - k->s.ckpt->table.tensor),
			   c->value[OPT_SLICE], &k->v, &k->err);
	if (rc)
		return rc;
	tally_begin(&k->tally, k->x->dtype);
	next_is(k, "choose another FILE");
	k->to_file = c->value[OPT_OUTPUT] != NULL;
	if (k->to_file)
		rc = file_begin(k);
	if (!rc)
		k->next[0] = 0;
	return rc;
}

static int tensor_cat(struct cat *k)
{
	struct cli *c = k->c;
	int code = subject_get(c, c->arg[0], &k->s), rc;

	if (code)
		return code;
	rc = tensor_find(k);
	if (!rc) {
		fflush(c->out);
		k->fd = fileno(c->out);
		rc = bytes_deliver(k);
	}
	if (rc == -EPIPE)
		return EXIT_PIPE;
	if (rc == -EBADMSG || rc == -EPROTO)
		return cli_fail(c, rc, &k->err, "ckptctl verify --data %s lists every fault",
				k->s.ref.path);
	if (rc == -ECANCELED)
		ckpt_error(&k->err, rc, "interrupted%s", k->to_file ? ": no file was made" : "");
	if (rc == -ENOSPC || rc == -EDQUOT)
		next_is(k, "make room, or choose another FILE");
	if (rc && k->next[0])
		return cli_fail(c, rc, &k->err, "%s", k->next);
	return rc ? cli_fail(c, rc, &k->err, NULL) : CLI_OK;
}

static int cat_run(struct cli *c)
{
	struct cat k = { .c = c, .file_fd = -1, .s.ref.step_fd = -1 };
	int code, rc;

	if (c->narg < 2)
		return cli_fail(
			c, ckpt_error(&k.err, -EINVAL, "cat needs a checkpoint and a tensor in it"),
			&k.err, "ckptctl cat latest TENSOR; ckptctl show %s --tensors '*'",
			c->narg ? c->arg[0] : "latest");
	rc = output_decide(&k);
	if (rc)
		return cli_fail(c, rc, &k.err, "ckptctl cat -h");
	code = tensor_cat(&k);
	file_end(&k);
	subject_close(&k.s);
	return code;
}

const struct cli_verb verb_cat = {
	.name = "cat",
	.help = "the elements of a tensor: bytes, .npy, statistics",
	.synopsis = (const char *const[]){ "CKPT TENSOR [--slice=RANGES] [--npy] [-o FILE]",
					   "CKPT TENSOR [--slice=RANGES] --stats", NULL },
	.about = "Joins the elements of one tensor, whichever ranks wrote them, and checks them "
		 "against their checksums. If a checksum covers more than cat reads, "
		 "as it may for a slice of a foreign file, cat does not check it; verify --data "
		 "does. A pipe or a file gets the bytes, row-major and "
		 "little-endian; a terminal gets a few values, or the text of a blob that was "
		 "declared as JSON or text. TENSOR is a name or component/name.\n"
		 "RANGES has one range for each dimension, as in numpy: 0:4,:,-1. The step is "
		 "always 1; omitted dimensions are taken in full.\n"
		 "FILE must not exist; it appears when it is complete. If its name ends in .npy, "
		 "--npy is implied. numpy has no BF16 and no F8: cat writes them as uint16 and "
		 "uint8, to be viewed as ml_dtypes.bfloat16 or ml_dtypes.float8_e4m3fn; C32 as "
		 "uint32, to be viewed as float16.\n"
		 "F4 is stored as bytes of two values of the last dimension, the low half first. "
		 "Shapes and RANGES count values, so there a range of the last dimension has even "
		 "ends; the bytes, and a .npy file's shape, are those bytes.\n"
		 "--stats computes min, max, mean and standard deviation of the finite values; "
		 "complex numbers count by their absolute value. With --json, cat prints metadata "
		 "and statistics, never values.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl cat latest model/norm.weight --stats", "is there a NaN in it?" },
			{ "ckptctl cat latest model/embed --slice 0:4,: -o rows.npy",
			  "four rows for numpy" },
			{ "ckptctl cat step:90 blob/rng --rank 3 | sha256sum", "one rank's blob" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_SLICE, "only these: 0:4,:,-1" },
			{ OPT_STATS, "count, min, max, mean, deviation, zeros, NaN, Inf" },
			{ OPT_NPY, "write numpy's header before the bytes" },
			{ OPT_OUTPUT, "write a new file instead of stdout" },
			{ OPT_RANK, "the rank whose blob to print, if each rank has one" },
			{ OPT_FROM, FROM_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0; 2 several tensors have this name, or the slice does not fit; 4 the "
		 "checkpoint is damaged; 5 it is not committed; 10 there is no such store, "
		 "checkpoint or tensor; 11 FILE exists; 12 it cannot be read; 13 the disk is "
		 "full.",
	.args = (const enum cli_arg[]){ ARG_CKPT, ARG_TENSOR, ARG_NONE },
	.narg_max = 2,
	.run = cat_run,
};
