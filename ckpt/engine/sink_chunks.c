/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sink_chunks.c - files with chunks: a stream (ckpt/move/chunk_stream.h) each, of a table that has
 * the file's pieces alone. Called by convert.c. Invariant: piece i of a stream's table is the i-th
 * piece of the file in the sheet's table, so that fingerprints go back and forth by their numbers.
 */
#include "ckpt/base/mutant.h"
#include "ckpt/engine/sink.h"
#include "ckpt/move/chunk_stream.h"

struct chunks_file {
	int fd;
	struct table t;
	struct chunk_stream *stream;
};

struct chunks {
	struct sink sink;
	struct sink_env env;
	struct chunk_queue *queue;
	uint32_t first, n;
	struct chunks_file *file; /* [n] */
};

static struct chunks_file *file_of(const struct chunks *s, uint32_t file)
{
	return &s->file[file - s->first];
}

static const char *name_of(const struct chunks *s, uint32_t file)
{
	return s->env.sheet->file[file].name;
}

/* The sheet knows which file it is; publish knows where it lies. */
static int file_failed(const struct chunks *s, int rc, struct ckpt_err *err)
{
	return rc < 0 ? ckpt_error_prefix(err, rc, "%s", publish_path(s->env.to)) : rc;
}

/* --- a file's own table --- */

static int table_of_file(struct chunks *s, uint32_t file, struct table *ret, struct ckpt_err *err)
{
	const struct table *all = &s->env.sheet->table;
	int rc;

	*ret = table_borrow(all);
	rc = table_add_place(ret, &all->place[file], NULL, err);
	for (uint32_t i = s->env.first[file]; i < s->env.first[file + 1] && !rc; i++) {
		struct table_piece p = all->piece[s->env.piece[i]];

		p.place = 0;
		rc = table_put_piece(ret, &p, err);
	}
	return rc ? rc : table_seal(ret, err);
}

/* The sheet's pieces take the fingerprints of the stream's. */
static void prints_keep(struct chunks *s, uint32_t file)
{
	const struct table *t = &file_of(s, file)->t;
	struct table_piece *all = s->env.sheet->table.piece;

	for (uint32_t i = 0; i < t->npiece; i++) {
		struct table_piece *p = &all[s->env.piece[s->env.first[file] + i]];

		p->fp = t->piece[i].fp;
		p->fp_known = t->piece[i].fp_known;
	}
}

/* --- opening --- */

static int stream_open(struct chunks *s, uint32_t file, const struct journal_file *from,
		       struct ckpt_err *err)
{
	const struct sheet_file *sf = &s->env.sheet->file[file];
	struct chunks_file *f = file_of(s, file);
	struct chunk_state state;
	bool direct = true;
	int rc = table_of_file(s, file, &f->t, err);

	if (!rc)
		rc = publish_file(s->env.to, sink_name(&s->env, file), 0, &direct, &f->fd, err);
	if (rc)
		return rc;
	if (from && from->state == JOURNAL_OPEN)
		state = (struct chunk_state){ .nchunk = from->nchunk,
					      .fill = from->fill,
					      .hash = from->fill_hash,
					      .sum = from->chunk };
	else
		from = NULL;
	rc = chunk_stream_open(s->queue, f->fd, &f->t, sf->data_off,
			       s->env.sheet->table.place[file].rank, from ? &state : NULL,
			       &f->stream, err);
	return file_failed(s, rc, err);
}

static int chunks_open(struct sink *sink, uint32_t first, uint32_t n,
		       const struct journal_file *from, struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;
	const struct engine *e = s->env.e;
	int rc;

	s->file = calloc((size_t)n + 1, sizeof *s->file);
	if (!s->file)
		return ckpt_error(err, -ENOMEM, "out of memory for %u files", n);
	s->first = first;
	s->n = n;
	for (uint32_t i = 0; i < n; i++)
		s->file[i].fd = -1;
	rc = chunk_queue_open(&(struct chunk_queue_opts){ .ops = e->ops,
							  .engine = e->io,
							  .nbuffer = s->env.nbuffer },
			      &s->queue, err);
	for (uint32_t i = 0; i < n && !rc; i++)
		rc = stream_open(s, first + i, from ? &from[i] : NULL, err);
	return rc;
}

/* --- bytes --- */

static int chunks_take(struct sink *sink, const struct sink_bytes *b, struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;
	uint32_t file = s->env.sheet->table.piece[b->piece].place;

	return file_failed(
		s, chunk_stream_write(file_of(s, file)->stream, b->off, b->p, b->len, err), err);
}

static int chunks_drain(struct sink *sink, struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;

	return file_failed(s, chunk_queue_drain(s->queue, err), err);
}

static int chunks_save(struct sink *sink, struct journal *j, struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;
	const struct io_ops *ops = s->env.e->ops;
	int rc = 0;

	for (uint32_t i = 0; i < s->n && !rc; i++) {
		struct journal_file *f = &j->file[s->first + i];
		struct chunk_state at;

		rc = file_failed(s, chunk_stream_save(s->file[i].stream, &at, err), err);
		if (rc)
			break;
		*f = (struct journal_file){ .state = JOURNAL_OPEN,
					    .fill = at.fill,
					    .fill_hash = at.hash,
					    .nchunk = at.nchunk,
					    .chunk = at.sum };
		prints_keep(s, s->first + i);
	}
	for (uint32_t i = 0; i < s->n && !rc; i++) {
		rc = MUTANT(JOURNAL_BEFORE_PARTS) ? 0 : ops->sync(ops->ctx, s->file[i].fd);
		if (rc)
			ckpt_error_errno(err, -rc, "%s/%s cannot be synced to the disk",
					 publish_path(s->env.to), name_of(s, s->first + i));
	}
	return rc;
}

/* --- the end --- */

static int chunks_end(struct sink *sink, uint32_t file, struct sheet_done *ret,
		      struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;
	struct chunk_written w;
	int rc = file_failed(s, chunk_stream_end(file_of(s, file)->stream, &w, err), err);

	if (rc)
		return rc;
	*ret = (struct sheet_done){ .data_end = w.data_end, .chunk = w.chunk, .nchunk = w.nchunk };
	prints_keep(s, file);
	return 0;
}

static int chunks_put(struct sink *sink, uint32_t file, const void *p, uint64_t len, uint64_t off,
		      struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;

	return file_failed(s,
			   chunk_queue_put(s->queue, file_of(s, file)->fd,
					   s->env.sheet->table.place[file].rank, p, len, off, err),
			   err);
}

static int chunks_finish(struct sink *sink, uint32_t file, uint64_t bytes, struct ckpt_err *err)
{
	struct chunks *s = (struct chunks *)sink;

	return publish_file_end(s->env.to, sink_name(&s->env, file), TAKE_FD(file_of(s, file)->fd),
				bytes, err);
}

static void chunks_close(struct sink *sink)
{
	struct chunks *s = (struct chunks *)sink;
	const struct io_ops *ops = s->env.e->ops;

	if (s->queue)
		(void)chunk_queue_drain(s->queue, NULL);
	for (uint32_t i = 0; i < s->n; i++) {
		chunk_stream_close(s->file[i].stream);
		if (s->file[i].fd >= 0)
			(void)ops->close(ops->ctx, s->file[i].fd);
		table_free(&s->file[i].t);
	}
	chunk_queue_close(s->queue);
	free(s->file);
	free(s);
}

int sink_chunks(const struct sink_env *env, struct sink **ret, struct ckpt_err *err)
{
	struct chunks *s = calloc(1, sizeof *s);

	if (!s)
		return ckpt_error(err, -ENOMEM, "out of memory for a conversion");
	s->env = *env;
	s->sink = (struct sink){ .open = chunks_open,
				 .take = chunks_take,
				 .drain = chunks_drain,
				 .save = chunks_save,
				 .end = chunks_end,
				 .put = chunks_put,
				 .finish = chunks_finish,
				 .close = chunks_close };
	*ret = &s->sink;
	return 0;
}
