/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert.c - see convert.h. Called by the verbs that write checkpoints in any format. Invariant:
 * what the journal says was synced before, and nothing else of an earlier run is ever believed; the
 * result appears by one rename of what is durable, and was opened by its own format before.
 */
#include "ckpt/engine/convert.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/mutant.h"
#include "ckpt/engine/convert_impl.h"
#include "ckpt/engine/identity.h"
#include "ckpt/engine/open.h"
#include "ckpt/io/io_source.h"
#include "ckpt/layout/human.h"
#include "ckpt/move/cast.h"
#include <stdio.h>
#include <sys/resource.h>

#define BATCH_MAX 512u	      /* files that are open at once */
#define FILES_SPARE 32u	      /* descriptors of everything but files */
#define BUFFERS_SHARE 4u      /* of the memory, the share for the buffers of files with chunks */
#define TENSOR_BYTES 64u      /* of memory for a tensor and a file that is open, about */
#define SYNC_SHARE 20u	      /* a journal takes at most this part of the time */
#define SPACE_SPARE MIB	      /* of directory entries, journals and the like */
#define CAST_BYTES (4u << 20) /* of cast elements, at once */
#define MESH_BYTES 512

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for a conversion");
}

/* --- before anything is written --- */

/* As many files as their buffers and tables have room for, and as may be open besides the
 * source's. */
static uint32_t batch_size(const struct convert *v)
{
	uint64_t buffers = v->e->mem_limit / BUFFERS_SHARE / MIB - MOVE_DEPTH;
	uint64_t tables = ((uint64_t)v->sheet->table.ntensor + 1) * TENSOR_BYTES;
	uint64_t used = (uint64_t)v->c->src->ckpt->nfile + FILES_SPARE;
	uint64_t n = MIN(buffers, (uint64_t)BATCH_MAX);
	struct rlimit files;

	tables = v->e->mem_limit / BUFFERS_SHARE / tables;
	n = MIN(n, tables ? tables : 1);
	/* A file without chunks has two descriptors. */
	if (!getrlimit(RLIMIT_NOFILE, &files))
		n = MIN(n, files.rlim_cur > used + 2 ? ((uint64_t)files.rlim_cur - used) / 2 : 1);
	n = MAX(n, UINT64_C(1));
	return (uint32_t)MIN(n, (uint64_t)v->sheet->nfile);
}

/* Room for a decoder, too? */
static int memory_check(const struct convert *v, struct ckpt_err *err)
{
	uint64_t least = CONVERT_MEM_MIN + move_decoder_bytes(v->c->src->ckpt);
	char has[HUMAN_BYTES];

	if (v->e->mem_limit >= least)
		return 0;
	return ckpt_error(
		err, -ENOMEM,
		"a memory limit of %s is too small for tensors that are compressed in this "
		"way: --mem-limit %lluM, or more",
		human_bytes(v->e->mem_limit, has), (unsigned long long)div_up(least, MIB));
}

static int journal_make(struct convert *v, struct ckpt_err *err)
{
	char mesh[MESH_BYTES] = "";
	uint32_t n = v->sheet->nfile;

	if (v->target->nmesh)
		mesh_print(&v->target->mesh[0], mesh, sizeof mesh);
	v->done = arena_array(&v->arena, (size_t)n + 1, sizeof *v->done);
	v->j = (struct journal){ .mem_limit = v->e->mem_limit,
				 .batch = batch_size(v),
				 .nfile = n,
				 .source = v->c->source,
				 .from = v->c->src->ckpt->format->name,
				 .to = v->c->to->name,
				 .mesh = arena_str(&v->arena, mesh),
				 .tool = v->want.tool,
				 .options = v->c->options ? v->c->options : "",
				 .file = arena_array(&v->arena, (size_t)n + 1, sizeof *v->j.file),
				 .nsum = v->sheet->nsum,
				 .sum = arena_array(&v->arena, (size_t)v->sheet->nsum + 1,
						    sizeof *v->j.sum) };
	memcpy(v->j.uuid, v->uuid, sizeof v->j.uuid);
	v->facts->batch = v->j.batch;
	return v->done && v->j.mesh && v->j.file && v->j.sum ? 0 : no_memory(err);
}

/* --- beginning anew --- */

static const char *file_name(const struct convert *v, uint32_t file)
{
	return v->c->file ? "" : v->sheet->file[file].name;
}

/* Every file gets its room: a full disk is found before the work. */
static int files_create(struct convert *v, struct ckpt_err *err)
{
	const struct io_ops *ops = v->e->ops;
	int rc = 0;

	for (uint32_t i = 0; i < v->sheet->nfile && !rc; i++) {
		int fd, closed;

		if (convert_is_stopped(v))
			return ckpt_error(err, -ECANCELED, "interrupted");
		rc = publish_file(v->to, file_name(v, i), v->sheet->file[i].bytes, NULL, &fd, err);
		if (rc)
			break;
		closed = ops->close(ops->ctx, fd);
		if (closed)
			rc = ckpt_error_errno(err, -closed, "%s/%s cannot be closed",
					      publish_path(v->to), v->sheet->file[i].name);
	}
	return rc;
}

static int begin_anew(struct convert *v, struct ckpt_err *err)
{
	int rc = v->c->once ? 0 : publish_clear(v->to, err);

	if (!rc && !v->c->once)
		rc = convert_journal_put(v, err);
	return rc ? rc : files_create(v, err);
}

struct leftover_check {
	const struct convert *v;
	const struct source_dir *dir;
	const char *under; /* the directory that is listed */
	bool found;
	char foreign[PATH_MAX]; /* "": none */
};

/* Is it one of the sheet's files, or a directory around one? Or what another conversion to the
 * format has begun, which is no obstacle where it did nothing? */
static bool sheet_has(const struct convert *v, const char *name, enum source_kind kind)
{
	const struct format_root *root = v->c->to->root;
	size_t n = strlen(name);

	if (kind == SOURCE_FILE && root && root->owns(name))
		return true;

	for (uint32_t i = 0; i < v->sheet->nfile; i++) {
		const char *file = v->sheet->file[i].name;

		if (!strncmp(file, name, n) && file[n] == (kind == SOURCE_DIR ? '/' : 0))
			return true;
	}
	return false;
}

/* source_entry_fn. As deep as the names of the sheet's files. */
static int entry_check(void *arg, const char *name, enum source_kind kind)
{
	struct leftover_check *x = arg;
	const char *under = x->under;
	char path[PATH_MAX];
	int rc;

	x->found = true;
	snprintf(path, sizeof path, "%s%s%s", under, *under ? "/" : "", name);
	if (!sheet_has(x->v, path, kind)) {
		memcpy(x->foreign, path, sizeof path);
		return 1;
	}
	if (kind != SOURCE_DIR)
		return 0;
	x->under = path;
	rc = x->dir->list(x->dir->ctx, path, entry_check, x);
	x->under = under;
	return rc;
}

/* Has an earlier run left any files? Where that cannot be known, it may have. */
static void leftover_look(const struct convert *v, struct leftover_check *ret)
{
	struct source f = { 0 };
	struct source_dir d;

	*ret = (struct leftover_check){ .v = v, .dir = &d, .under = "", .found = true };
	if (publish_source(v->to, &d))
		return;
	if (v->c->file) {
		ret->found = d.open(d.ctx, d.entry, &f) || f.bytes;
		source_close(&f);
	} else {
		ret->found = false;
		if (d.list(d.ctx, "", entry_check, ret))
			ret->found = true;
	}
	ret->dir = NULL;
	source_end(&d);
}

static int outside_check(void *arg, int dirfd, const char *left, struct ckpt_err *err)
{
	const struct convert *v = arg;

	return engine_outside(v->e, v->c->src, v->c->dst, dirfd, left, err);
}

/* 0: v->to is open, and what is to do begins at v->j. */
static int convert_begin(struct convert *v, struct ckpt_err *err)
{
	const struct publish_opts o = { .ops = v->e->ops,
					.path = v->c->dst,
					.dir = !v->c->file,
					.resume = !v->c->once,
					/* Like those of a store: what is in them is its owner's. */
					.mode = v->c->to->root ? 0600 : 0666,
					.allow = outside_check,
					.arg = v };
	int rc = publish_begin(&o, v->facts->stored_bytes + SPACE_SPARE, &v->to, err);
	struct leftover_check left;

	if (rc)
		return rc;
	snprintf(v->facts->unfinished, sizeof v->facts->unfinished, "%s", publish_path(v->to));
	if (v->c->once)
		return begin_anew(v, err);
	leftover_look(v, &left);
	rc = left.found ? convert_take_up(v, err) : 0; /* a journal alone says nothing */
	if (rc >= 0 && left.foreign[0])
		rc = ckpt_error(err, -EINVAL,
				"%s holds %s, which this conversion did not make: check it, then "
				"remove it",
				publish_path(v->to), left.foreign);
	if (rc < 0) {
		publish_end(TAKE(v->to), true); /* it is another conversion's, or cannot be read */
		return rc;
	}
	v->facts->resumed = rc > 0;
	if (rc > 0)
		return 0;
	v->facts->restarted = left.found;
	return begin_anew(v, err);
}

/* --- a batch --- */

static uint64_t buffer_bytes(const struct convert *v, bool chunks)
{
	return (chunks ? (uint64_t)v->j.batch + MOVE_DEPTH : SINK_PLAIN_BUFFERS) * MIB;
}

static int failed(struct convert *v, int rc)
{
	v->write_failed |= rc < 0;
	return rc;
}

static int save(struct convert *v, struct ckpt_err *err)
{
	uint64_t begin = now_ns();
	int rc = v->sink ? failed(v, v->sink->save(v->sink, &v->j, err)) : 0;

	if (!rc)
		rc = convert_journal_put(v, err);
	v->saved_ns = now_ns();
	v->save_took_ns = v->saved_ns - begin;
	return rc;
}

static bool save_is_due(const struct convert *v)
{
	uint64_t since = elapsed_ns(v->saved_ns, now_ns());

	if (v->c->once)
		return false;
	return since >= v->c->journal_ns && since >= SYNC_SHARE * v->save_took_ns;
}

/* Elements that change their type; they stay in the buffer until they are written. */
static int take_cast(struct convert *v, const struct sink_bytes *b, uint32_t from, uint32_t to)
{
	uint32_t had = dtype_bytes(from), has = dtype_bytes(to);
	uint32_t tensor = v->sheet->origin[v->sheet->table.piece[b->piece].tensor];
	uint64_t n = b->len / had, over;
	int rc = 0;

	if (!v->cast)
		v->cast = malloc(CAST_BYTES);
	if (!v->cast)
		return no_memory(v->err);
	for (uint64_t at = 0, now; at < n && !rc; at += now) {
		const uint8_t *p = b->p + at * had;

		now = MIN(n - at, (uint64_t)CAST_BYTES / has);
		cast(from, p, to, v->cast, now);
		over = cast_overflows(from, p, to, v->cast, now);
		v->facts->noverflow += over;
		if (v->c->overflow)
			v->c->overflow[tensor] += over;
		rc = v->sink->take(v->sink,
				   &(struct sink_bytes){ .piece = b->piece,
							 .off = b->off + at * has,
							 .p = v->cast,
							 .len = now * has },
				   v->err);
		if (!rc)
			rc = v->sink->drain(v->sink, v->err);
	}
	return rc;
}

static int take_cut(struct convert *v, const struct window_cut *x, const uint8_t *buf)
{
	const struct table *s = &v->sheet->table;
	uint32_t k = v->passing.piece[x->piece];
	const struct table_piece *p = &s->piece[k];
	const struct table_piece *q = &v->passing.table.piece[x->piece];
	uint32_t from = v->passing.table.tensor[q->tensor].dtype, to = s->tensor[p->tensor].dtype;
	uint64_t in = x->dst_off - q->off;
	struct sink_bytes b = { .piece = k, .p = buf + x->buf_off, .len = x->len };

	if (from == to) {
		b.off = p->off + in;
		return v->sink->take(v->sink, &b, v->err);
	}
	b.off = p->off + in / dtype_bytes(from) * dtype_bytes(to);
	return take_cast(v, &b, from, to);
}

static int on_window(void *arg, const struct window *w, const uint8_t *buf)
{
	struct convert *v = arg;
	uint64_t bytes = 0;
	int rc = 0, drained;

	for (uint32_t i = 0; i < w->ncut && !rc; i++) {
		rc = take_cut(v, &w->cut[i], buf);
		bytes += w->cut[i].len;
	}
	drained = v->sink->drain(v->sink, rc ? NULL : v->err);
	rc = failed(v, rc ? rc : drained);
	if (rc)
		return rc;
	v->j.windows++;
	v->j.bytes += bytes;
	return save_is_due(v) ? save(v, v->err) : 0;
}

static int batch_open(struct convert *v, bool chunks, struct ckpt_err *err)
{
	const struct sink_env env = { .e = v->e,
				      .sheet = v->sheet,
				      .to = v->to,
				      .file = v->c->file,
				      .nbuffer = v->j.batch + MOVE_DEPTH,
				      .piece = v->map.piece,
				      .first = v->map.first,
				      .sum = v->j.sum,
				      .piece_sum = v->piece_sum };
	const struct journal_file *from = &v->j.file[v->first];
	int rc = passing_make(v->sheet, &v->map, &v->c->src->ckpt->table, v->first, v->n,
			      &v->passing, err);

	if (!rc)
		rc = chunks ? sink_chunks(&env, &v->sink, err) : sink_plain(&env, &v->sink, err);
	if (rc)
		return rc;
	rc = v->sink->open(v->sink, v->first, v->n, from, err);
	if (rc == -EBADMSG)
		rc = ckpt_error(
			err, -EIO,
			"%s: a file differs from what an earlier run synced, and all of it was "
			"discarded: run the same command again; it starts from the beginning",
			publish_path(v->to));
	return failed(v, rc);
}

/* --- the end of a file: what belongs to no tensor --- */

static int run_put(struct convert *v, uint32_t run, uint64_t *end, struct ckpt_err *err)
{
	const struct sheet_run *r = &v->sheet->run[run];
	const struct sheet_state state = { .file = v->done, .crc = v->crc };
	struct sheet_done *done = &v->done[r->file];
	struct hash128 seal;
	struct arena a = { 0 };
	const void *bytes;
	uint64_t len, off = r->off == SHEET_END ? done->data_end : r->off;
	int rc = v->c->to->fill(v->sheet, run, &state, &a, &bytes, &len, &seal, err);

	if (!rc && r->len && r->len != len)
		rc = ckpt_error(err, -EPROTO, "%s: the format made %llu bytes of %llu",
				v->sheet->file[r->file].name, (unsigned long long)len,
				(unsigned long long)r->len);
	if (!rc)
		rc = failed(v, v->sink->put(v->sink, r->file, bytes, len, off, err));
	arena_free(&a);
	done->seal = seal;
	*end = MAX(*end, off + len);
	return rc;
}

/* The first run of a file; they are sorted by files. */
static uint32_t run_first(const struct sheet *s, uint32_t file)
{
	return SEARCH(i, 0u, s->nrun, s->run[i].file < file);
}

static int file_finish(struct convert *v, uint32_t file, struct ckpt_err *err)
{
	const struct sheet *s = v->sheet;
	struct sheet_done *done = &v->done[file];
	uint64_t end = 0;
	bool exact = !convert_has_chunks(v, file);
	int rc = failed(v, v->sink->end(v->sink, file, done, err));

	for (uint32_t i = run_first(s, file); i < s->nrun && s->run[i].file == file && !rc; i++) {
		exact &= s->run[i].len != 0;
		rc = run_put(v, i, &end, err);
	}
	if (rc)
		return rc;
	done->bytes = exact ? s->file[file].bytes : end;
	done->chunk = NULL; /* the sink's */
	rc = failed(v, v->sink->finish(v->sink, file, done->bytes, err));
	if (!rc)
		v->j.file[file] = (struct journal_file){ .state = JOURNAL_DONE,
							 .bytes = done->bytes,
							 .data_end = done->data_end,
							 .seal = done->seal };
	return rc;
}

static int batch_finish(struct convert *v, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < v->sheet->nsum; i++)
		v->crc[i] = v->j.sum[i].crc;
	for (uint32_t i = 0; i < v->n && !rc; i++)
		rc = file_finish(v, v->first + i, err);
	return rc;
}

static void batch_close(struct convert *v)
{
	if (v->sink)
		v->sink->close(TAKE(v->sink));
	passing_free(&v->passing);
}

/* Files of one kind, from v->j.first on. */
static int batch_run(struct convert *v, const struct move_files *from, struct ckpt_err *err)
{
	bool chunks = convert_has_chunks(v, v->j.first);
	struct ckpt_err save_err;
	int rc;

	v->first = v->j.first;
	for (v->n = 0; v->n < v->j.batch && v->first + v->n < v->sheet->nfile &&
		       convert_has_chunks(v, v->first + v->n) == chunks;)
		v->n++;
	v->err = err;
	rc = batch_open(v, chunks, err);
	if (!rc && v->passing.table.npiece)
		rc = move_windows(from, &v->passing.table, v->j.mem_limit - buffer_bytes(v, chunks),
				  v->j.windows, on_window, v, v->e->tick, v->e->arg, err);
	if (rc == -ECANCELED && v->sink && !v->write_failed && !v->c->once && save(v, &save_err)) {
		rc = save_err.code;
		if (err)
			*err = save_err;
	}
	if (!rc)
		rc = batch_finish(v, err);
	batch_close(v);
	if (rc)
		return rc;
	v->j.first = v->first + v->n;
	v->j.windows = 0;
	/* Nothing is open: the journal alone. */
	return save_is_due(v) && v->j.first < v->sheet->nfile ? save(v, err) : 0;
}

/* --- the whole --- */

/* Also of what was read in part, or by an earlier run. */
static int source_sums_check(struct convert *v, const struct move_files *from, struct ckpt_err *err)
{
	cleanup_free bool *tensor = calloc((size_t)from->ckpt->table.ntensor + 1, sizeof *tensor);

	if (!tensor)
		return no_memory(err);
	for (uint32_t i = 0; i < v->sheet->table.ntensor; i++)
		tensor[v->map.from[i]] = true;
	return move_sums_finish(from, tensor, v->e->tick, v->e->arg, err);
}

static int files_write(struct convert *v, struct ckpt_err *err)
{
	const struct opened *src = v->c->src;
	struct move_files from;
	int rc = move_open(v->e->ops, src->fd, src->ckpt, true, v->e->io, &from, err);

	if (rc)
		return rc;
	while (!rc && v->j.first < v->sheet->nfile)
		rc = batch_run(v, &from, err);
	if (!rc)
		rc = source_sums_check(v, &from, err);
	move_close(&from);
	return rc;
}

static int convert_run(struct convert *v, struct ckpt_err *err)
{
	int rc = 0;

	v->saved_ns = now_ns();
	if (!v->j.finished) {
		v->reading = true;
		rc = files_write(v, err);
		if (!rc)
			rc = convert_prints_check(v, err);
		if (!rc)
			rc = identity_check(v->c->src, v->c->source, err);
		if (rc)
			return rc;
		v->reading = false;
		v->j.finished = true;
		rc = v->c->once ? 0 : convert_journal_put(v, err);
	} else {
		rc = convert_prints_check(v, err);
	}
	if (!rc)
		rc = convert_result_check(v, err);
	if (!rc && v->c->once && convert_is_stopped(v))
		rc = ckpt_error(err, -ECANCELED, "interrupted");
	if (!rc && v->c->ready)
		rc = v->c->ready(v->c->begun_arg, err);
	return rc ? rc : publish_commit(v->to, err);
}

/* After these another run finds what was done as good as it is. */
static bool worth_keeping(const struct convert *v, int rc)
{
	if (v->c->once || rc == -ESTALE || rc == -EBADMSG || rc == -EPROTO ||
	    (!v->saved_bytes && !v->saved_finished))
		return false;
	if (v->saved_finished || rc == -ECANCELED || rc == -ENOSPC || rc == -EDQUOT ||
	    rc == -ENOMEM)
		return true;
	return !v->write_failed || MUTANT(KEPT_AFTER_FAILED_WRITE);
}

static void convert_free(struct convert *v)
{
	free(v->cast);
	journal_free(&v->earlier);
	free(v->earlier_bytes);
	convert_sheet_free(v);
}

int engine_convert(const struct engine *e, const struct engine_convert *c, struct converted *ret,
		   struct ckpt_errlist *cannot, struct ckpt_err *err)
{
	struct convert v = { .e = e, .c = c, .facts = ret };
	int rc;

	assert(!c->want.nrank || c->once);
	*ret = (struct converted){ 0 };
	if (err)
		*err = (struct ckpt_err){ 0 };
	assert(e->mem_limit >= CONVERT_MEM_MIN);
	rc = convert_sheet_make(&v, cannot, err);
	if (!rc)
		rc = memory_check(&v, err);
	if (!rc)
		rc = journal_make(&v, err);
	if (!rc && c->planned)
		rc = c->planned(c->begun_arg, v.sheet, err);
	if (!rc && !c->dry) {
		rc = convert_begin(&v, err);
		if (!rc && c->begun)
			c->begun(c->begun_arg);
		if (!rc)
			rc = convert_run(&v, err);
		ret->kept = rc && v.to && worth_keeping(&v, rc);
		ret->source_failed = rc && v.reading && !v.write_failed;
		publish_end(v.to, ret->kept);
	}
	convert_free(&v);
	return rc;
}
