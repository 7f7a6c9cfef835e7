/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion.c - see conversion.h. Called by ckptctl convert. Invariant: what the journal tells was
 * synced before, and nothing else of an earlier run is ever believed; the destination appears by one
 * rename of a directory whose every file and name is durable.
 */
#include "ckpt/cli/conversion.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/conversion_dir.h"
#include "ckpt/cli/conversion_journal.h"
#include "ckpt/cli/conversion_parts.h"
#include "ckpt/layout/human.h"
#include "ckpt/store/lineage.h"
#include "ckpt/store/store.h"
#include "ckpt/table/encode.h"
#include "ckpt/table/operand.h"
#include "ckpt/table/target.h"
#include <assert.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#define TOOL "ckptctl " CKPT_VERSION
#define ATTR_FROM "ckpt.from" /* what it was converted from */
#define BATCH_MAX 512u	      /* parts that are open at once */
#define FILES_SPARE 32u	      /* descriptors of everything but parts */
#define BUFFERS_SHARE 4u      /* of the memory, the share for the parts' buffers */
#define SYNC_SHARE 20u	      /* a journal takes at most this part of the time */
#define SPACE_SPARE MIB	      /* of directory entries, the journal and the like */
#define JOURNAL_BYTES_MAX GIB
#define MESH_BYTES 512

struct conversion {
	struct conversion_opts o;
	struct conversion_facts facts;
	struct partial dir;
	struct native_info info;
	struct journal j;
	char mesh[MESH_BYTES];
	struct parts parts;
	struct native_part *part; /* [parts.npart] */
	struct journal read;	  /* an earlier run's */
	void *read_bytes;
	uint32_t *raw_number; /* [tensors of target] in the order of the raw spaces */
	bool locked;	      /* dir is ours to remove */
	bool whole;	      /* only the rename is left */
	bool write_failed;
	uint64_t saved_ns, save_took_ns;
	uint64_t saved_bytes; /* that the newest journal on the disk tells of */

	/* The batch that is open. */
	uint32_t first, n;
	struct table *table; /* [n] of the parts */
	struct table all;    /* their raw spaces, tensors in their order */
	struct chunk_queue *io;
	struct chunk_stream **writer;	 /* [n] */
	struct native_info *writer_info; /* [n] with its role: kind, and what it names */
	struct native_role *role;	 /* [n] */
	int *fd;			 /* [n] */
	struct ckpt_err *err;
};

const struct conversion_facts *conversion_facts(const struct conversion *c)
{
	return &c->facts;
}

/* --- the parts --- */

/* As many as their buffers and tables have room for, and as may be open besides the source's files. */
static uint32_t batch_size(const struct conversion *c)
{
	uint64_t parts = c->o.mem_limit / BUFFERS_SHARE / CHUNK_BUFFER - MOVE_DEPTH;
	uint64_t tables = ((uint64_t)c->o.target->ntensor + 1) * PARTS_TENSOR_BYTES;
	uint64_t used = (uint64_t)c->o.src->nfile + FILES_SPARE;
	struct rlimit files;

	parts = MIN(parts, (uint64_t)BATCH_MAX);
	tables = c->o.mem_limit / BUFFERS_SHARE / tables;
	parts = MIN(parts, tables ? tables : 1);
	if (!getrlimit(RLIMIT_NOFILE, &files))
		parts = MIN(parts, files.rlim_cur > used ? (uint64_t)files.rlim_cur - used : 1);
	return (uint32_t)MIN(parts, (uint64_t)c->parts.npart);
}

/* What is made, as 16 bytes. */
static int identity_make(struct conversion *c, struct ckpt_err *err)
{
	struct table_section section[TABLE_SECTIONS_MAX];
	struct hash128 hash[TABLE_SECTIONS_MAX + 2], all;
	struct arena a = { 0 };
	uint32_t n;
	int rc = table_encode(c->o.target, false, &a, section, &n, err);

	for (uint32_t i = 0; !rc && i < n; i++)
		hash[i] = hash128(section[i].bytes, section[i].len);
	arena_free(&a);
	if (rc)
		return rc;
	hash[n++] = hash128(c->o.src->id, strlen(c->o.src->id));
	hash[n++] = hash128(TOOL, sizeof TOOL);
	all = hash128(hash, n * sizeof *hash);
	memcpy(c->info.uuid, all.b, sizeof c->info.uuid);
	return 0;
}

static void part_names_make(struct conversion *c)
{
	const uint8_t *u = c->info.uuid;

	for (uint32_t i = 0; i < c->parts.npart; i++) {
		const struct native_role role = { .kind = c->parts.of[i].kind };
		struct native_info info = c->info;
		uint32_t rank = c->parts.of[i].rank;

		info.role = &role;
		c->part[i].rank = rank;
		c->part[i].kind = role.kind;
		c->part[i].step = c->info.step;
		c->part[i].generation = c->info.generation;
		native_part_uuid(&info, rank, c->part[i].uuid);
		c->part[i].raw_bytes = c->parts.all.place[i].bytes;
		snprintf(c->part[i].name, sizeof c->part[i].name,
			 "w%04u-%02x%02x%02x%02x-%03u.part", rank, u[0], u[1], u[2], u[3],
			 role.kind == PART_AVERAGE ? 1 : 0);
	}
}

static int no_memory(struct ckpt_err *err)
{
	return ckpt_error(err, -ENOMEM, "out of memory for a conversion");
}

static int prepare(struct conversion *c, struct ckpt_err *err)
{
	const struct checkpoint *src = c->o.src;
	uint32_t world = target_world(c->o.target);
	int rc;

	assert(c->o.mem_limit >= CONVERSION_MEM_MIN);
	c->facts.world = world;
	rc = parts_make(c->o.target, &c->parts, err);
	if (rc)
		return rc;
	c->facts.batch = batch_size(c);
	c->part = calloc(c->parts.npart, sizeof *c->part);
	c->j.part = calloc(c->parts.npart, sizeof *c->j.part);
	c->raw_number = calloc((size_t)src->table.ntensor + 1, sizeof *c->raw_number);
	if (!c->part || !c->j.part || !c->raw_number)
		return no_memory(err);
	c->info = (struct native_info){ .job = src->job,
					.step = src->step,
					.generation = src->generation,
					.wall_ns = src->wall_ns,
					.world = world };
	mesh_print(c->o.target->mesh, c->mesh, sizeof c->mesh);
	rc = identity_make(c, err);
	if (rc)
		return rc;
	c->facts.bytes = c->parts.bytes;
	part_names_make(c);
	c->j.step = src->step;
	c->j.mem_limit = c->o.mem_limit;
	c->j.batch = c->facts.batch;
	c->j.world = c->parts.npart;
	c->j.source = src->id;
	c->j.tool = TOOL;
	c->j.mesh = c->mesh;
	memcpy(c->j.uuid, c->info.uuid, sizeof c->j.uuid);
	return native_raw_order(c->o.target, c->raw_number) ? no_memory(err) : 0;
}

/* --- the journal --- */

static int journal_put(struct conversion *c, struct ckpt_err *err)
{
	cleanup_free void *bytes = NULL;
	char name[16];
	uint64_t len;
	int rc;

	c->j.seq++;
	partial_journal_name(c->j.seq, name);
	rc = journal_encode(&c->j, &c->parts.all, &bytes, &len, err);
	if (!rc)
		rc = partial_put(&c->dir, name, bytes, len, err);
	if (!rc)
		c->saved_bytes = c->j.bytes;
	return rc;
}

/* The writers know whose part it is; we know where. */
static int part_failed(struct conversion *c, int rc, struct ckpt_err *err)
{
	c->write_failed |= rc < 0;
	return rc < 0 ? ckpt_error_prefix(err, rc, "%s", c->dir.path) : rc;
}

/* All open parts as they are now, synced, and then the journal that tells it. */
static int save(struct conversion *c, struct ckpt_err *err)
{
	const struct io_ops *ops = c->o.ops;
	uint64_t begin = now_ns();
	int rc = 0;

	for (uint32_t i = 0; i < c->n && !rc; i++) {
		struct journal_part *p = &c->j.part[c->first + i];

		p->state = JOURNAL_OPEN;
		rc = part_failed(c, chunk_stream_save(c->writer[i], &p->at, err), err);
		parts_keep(&c->parts, c->first + i, &c->table[i]);
	}
	for (uint32_t i = 0; i < c->n && !rc; i++) {
		rc = MUTANT(JOURNAL_BEFORE_PARTS) ? 0 : ops->sync(ops->ctx, c->fd[i]);
		c->write_failed |= rc < 0;
		if (rc)
			ckpt_error_errno(err, -rc, "%s/%s cannot be synced to the disk",
					 c->dir.path, c->part[c->first + i].name);
	}
	if (!rc)
		rc = journal_put(c, err);
	c->saved_ns = now_ns();
	c->save_took_ns = c->saved_ns - begin;
	return rc;
}

/* The newest journal that is whole. 1, 0 none. Another conversion's: -EINVAL. */
static int journal_find(struct conversion *c, struct ckpt_err *err)
{
	for (uint32_t i = 0; i < PARTIAL_JOURNALS; i++) {
		cleanup_free void *bytes = NULL;
		struct journal j;
		char name[16];
		uint64_t len;
		int rc;

		partial_journal_name(i, name);
		rc = partial_get(&c->dir, name, JOURNAL_BYTES_MAX, &bytes, &len, err);
		if (rc == -ENOENT)
			continue;
		if (rc)
			return rc;
		rc = journal_decode(bytes, len, &j, NULL);
		if (rc == -ENOMEM)
			return no_memory(err);
		if (rc)
			continue;
		if (c->read_bytes && j.seq < c->read.seq) {
			journal_free(&j);
			continue;
		}
		journal_free(&c->read);
		free(c->read_bytes);
		c->read = j;
		c->read_bytes = TAKE(bytes);
	}
	return c->read_bytes != NULL;
}

static int journal_check(struct conversion *c, struct ckpt_err *err)
{
	struct ckpt_errlist l = { .code = -EINVAL };
	const struct journal *j = &c->read;
	char was[HUMAN_BYTES], is[HUMAN_BYTES];
	int rc;

	if (strcmp(j->source, c->j.source))
		ckpt_errlist_add(&l, "of another checkpoint: id %s, not %s", j->source,
				 c->j.source);
	if (strcmp(j->mesh, c->j.mesh))
		ckpt_errlist_add(&l, "onto the mesh %s, not %s", j->mesh, c->j.mesh);
	if (strcmp(j->tool, c->j.tool))
		ckpt_errlist_add(&l, "by %s, not %s", j->tool, c->j.tool);
	if (!l.n && (memcmp(j->uuid, c->j.uuid, sizeof j->uuid) || j->world != c->j.world))
		ckpt_errlist_add(&l, "with other placements (--layout)");
	if (!l.n && j->mem_limit > c->j.mem_limit)
		ckpt_errlist_add(&l, "with more memory, %s, and this run has %s: --mem-limit %llu",
				 human_bytes(j->mem_limit, was), human_bytes(c->j.mem_limit, is),
				 (unsigned long long)j->mem_limit);
	rc = ckpt_errlist_end(
		&l, err,
		"%s holds another conversion, which is not finished; run that one again, or "
		"remove the directory. It is",
		c->dir.path);
	ckpt_errlist_free(&l);
	return rc;
}

/* Do the files of the parts that are done still look so? */
static int parts_check(struct conversion *c, struct ckpt_err *err)
{
	const struct io_ops *ops = c->o.ops;

	for (uint32_t i = 0; i < c->parts.npart; i++) {
		const struct journal_part *p = &c->read.part[i];
		uint64_t bytes = 0;
		int fd, rc;

		if (p->state == JOURNAL_NONE)
			continue;
		fd = partial_part_open(&c->dir, c->part[i].name, false, err);
		if (fd < 0)
			return fd;
		rc = ops->size(ops->ctx, fd, &bytes);
		(void)ops->close(ops->ctx, fd);
		if (rc)
			return ckpt_error_errno(err, -rc, "%s/%s cannot be examined", c->dir.path,
						c->part[i].name);
		if (p->state == JOURNAL_DONE && bytes != p->file_bytes)
			return ckpt_error(err, -EBADMSG, "%s/%s has changed", c->dir.path,
					  c->part[i].name);
	}
	return 0;
}

/* 1 it is taken up, 0 there is nothing in it. */
static int journal_take(struct conversion *c, struct ckpt_err *err)
{
	struct journal *r = &c->read;
	int rc = r->bytes ? journal_check(c, err) : 0;

	if (rc)
		return rc;
	c->j.seq = r->seq;
	if (!r->bytes)
		return 0;
	rc = MUTANT(JOURNAL_PARTS_TRUSTED) ? 0 : parts_check(c, NULL);
	if (!rc)
		rc = journal_prints(r, &c->parts.all, NULL);
	/* Somebody was at it. Nothing is lost but the time that it took. */
	if (rc == -ENOENT || rc == -EBADMSG)
		return 0;
	if (rc)
		return ckpt_error_errno(err, -rc, "the contents of %s cannot be read", c->dir.path);
	c->j.mem_limit = r->mem_limit;
	c->o.mem_limit = r->mem_limit;
	c->j.batch = c->facts.batch = r->batch;
	c->j.first = r->first;
	c->j.windows = r->windows;
	c->j.bytes = c->facts.before = c->saved_bytes = r->bytes;
	memcpy(c->j.part, r->part, c->parts.npart * sizeof *c->j.part);
	for (uint32_t i = 0; i < c->parts.npart; i++) {
		c->part[i].file_bytes = r->part[i].file_bytes;
		c->part[i].root = r->part[i].root;
	}
	return 1;
}

/* --- what an earlier run has left --- */

/* Does what is collected open, and hold what the source holds? Nothing but the checkpoint may be in
 * the directory. */
static int whole_check(struct conversion *c, struct ckpt_err *err)
{
	const struct table *t = &c->o.src->table;
	struct checkpoint *k = NULL;
	struct source_dir dir;
	uint32_t nprint = 0;
	int rc = source_make(c->o.ops, c->dir.fd, NULL, 0, &dir);

	if (rc)
		return ckpt_error_errno(err, -rc, "%s cannot be read", c->dir.path);
	rc = format_native.open(&(struct format_open){ .dir = &dir }, &k, err);
	source_end(&dir);
	if (rc)
		return rc;
	if (k->world != c->facts.world || k->table.ntensor != t->ntensor)
		rc = -EBADMSG;
	for (uint32_t i = 0; i < t->ntensor && !rc; i++) {
		const struct table_tensor *x = &t->tensor[i];
		uint32_t at = table_find(&k->table, x->component, x->name, x->rank);
		bool reduced = operand_dims(t, x) != 0;

		if (at == TABLE_NONE ||
		    (!reduced && x->fp_known &&
		     (!k->table.tensor[at].fp_known || k->table.tensor[at].fp != x->fp)))
			rc = -EBADMSG;
		nprint += !reduced && x->fp_known;
	}
	c->facts.nprint = nprint;
	c->facts.stored_bytes = k->stored_bytes;
	snprintf(c->facts.id, sizeof c->facts.id, "%.32s", k->id);
	checkpoint_free(k);
	return rc ? ckpt_error(err, rc, "%s does not hold what the source holds", c->dir.path) : 0;
}

/* Without a journal: is it complete, and this conversion's? 1, 0. */
static int is_whole(struct conversion *c, struct ckpt_err *err)
{
	struct container_info info;
	cleanup_free void *bytes = NULL;
	uint64_t len;
	int rc = partial_get(&c->dir, NATIVE_MANIFEST, NATIVE_META_BYTES_MAX, &bytes, &len, err);

	if (rc == -ENOENT)
		return 0;
	if (rc)
		return rc;
	if (len < 2 * CONTAINER_BLOCK ||
	    container_head_check(bytes, CONTAINER_MANIFEST, &info, NULL))
		return 0;
	if (memcmp(info.uuid, c->info.uuid, sizeof info.uuid) != 0)
		return ckpt_error(
			err, -EINVAL,
			"%s holds another conversion, which is complete but not renamed yet; run "
			"that one again, or remove the directory",
			c->dir.path);
	rc = whole_check(c, err);
	return rc == -EBADMSG || rc == -EPROTO ? 0 : rc ? rc : 1;
}

static int space_check(struct conversion *c, struct ckpt_err *err)
{
	char need[HUMAN_BYTES], room[HUMAN_BYTES];
	uint64_t bytes = SPACE_SPARE, avail;
	struct statvfs fs;

	for (uint32_t i = 0; i < c->parts.npart; i++)
		bytes += c->parts.of[i].room;
	/* Where it cannot be asked, the files find out. */
	if (fstatvfs(c->dir.fd, &fs) || ckpt_mul(fs.f_bavail, fs.f_frsize, &avail) ||
	    bytes <= avail)
		return 0;
	return ckpt_error(
		err, -ENOSPC,
		"the destination needs up to %s, but only %s are free there: nothing was written",
		human_bytes(bytes, need), human_bytes(avail, room));
}

/* Every part gets its file and its room. */
static int parts_create(struct conversion *c, struct ckpt_err *err)
{
	const struct io_ops *ops = c->o.ops;

	for (uint32_t i = 0; i < c->parts.npart; i++) {
		uint64_t most = c->parts.of[i].room;
		int fd = partial_part_open(&c->dir, c->part[i].name, true, err), rc;

		if (fd < 0)
			return fd;
		rc = ops->fallocate(ops->ctx, fd, most);
		(void)ops->close(ops->ctx, fd);
		if (rc && rc != -EOPNOTSUPP)
			return ckpt_error_errno(err, -rc, "%s/%s cannot have %llu bytes",
						c->dir.path, c->part[i].name,
						(unsigned long long)most);
	}
	return partial_sync(&c->dir, err);
}

static int begin_anew(struct conversion *c, struct ckpt_err *err)
{
	int rc = partial_clear(&c->dir, err);

	if (!rc)
		rc = space_check(c, err);
	if (!rc)
		rc = journal_put(c, err);
	return rc ? rc : parts_create(c, err);
}

static int take_up(struct conversion *c, struct ckpt_err *err)
{
	int rc = journal_find(c, err);

	if (rc > 0) {
		rc = journal_take(c, err);
		c->facts.resumed = rc > 0;
		if (rc > 0)
			return partial_drop(&c->dir, NATIVE_MANIFEST, err);
	} else if (!rc) {
		rc = is_whole(c, err);
		c->whole = c->facts.resumed = rc > 0;
		if (c->whole)
			c->facts.before = c->facts.bytes;
	}
	if (rc)
		return MIN(rc, 0);
	c->locked = true; /* nothing of worth is in it */
	c->facts.restarted = !c->dir.made;
	return begin_anew(c, err);
}

int conversion_open(const struct conversion_opts *opts, struct conversion **ret,
		    struct ckpt_err *err)
{
	struct conversion *c = calloc(1, sizeof *c);
	int rc;

	*ret = NULL;
	if (!c)
		return no_memory(err);
	c->o = *opts;
	c->dir.fd = c->dir.parent_fd = -1;
	rc = prepare(c, err);
	if (!rc)
		rc = partial_open(opts->ops, opts->dst, opts->src_fd, opts->src->step, &c->dir,
				  err);
	if (!rc)
		rc = take_up(c, err);
	if (rc < 0) {
		if (c->locked || c->dir.made)
			partial_remove(&c->dir);
		conversion_close(c);
		return rc;
	}
	c->locked = true;
	c->facts.partial = c->dir.path;
	*ret = c;
	return 0;
}

void conversion_close(struct conversion *c)
{
	if (!c)
		return;
	partial_close(&c->dir);
	conversion_parts_free(&c->parts);
	free(c->part);
	free(c->j.part);
	free(c->raw_number);
	journal_free(&c->read);
	free(c->read_bytes);
	free(c);
}

/* --- a batch --- */

/* The raw spaces of the batch as one table: tensors in the order of the raw spaces, so that the
 * bytes of each part come in theirs. */
static int batch_table(struct conversion *c, struct ckpt_err *err)
{
	const struct table *t = c->o.target;
	struct table *all = &c->all;
	int rc = 0;

	for (uint32_t i = 0; i < t->ntensor && !rc; i++) {
		struct table_tensor x = t->tensor[c->raw_number[i]];

		x.layout = TABLE_NONE;
		x.made = 0;
		rc = table_add_tensor(all, &x, NULL, err);
	}
	for (uint32_t i = 0; i < c->n && !rc; i++)
		rc = table_add_place(all, &c->table[i].place[0], NULL, err);
	for (uint32_t i = 0; i < c->n && !rc; i++) {
		const struct table *from = &c->table[i];

		for (uint32_t k = 0; k < from->npiece && !rc; k++) {
			struct table_piece p = from->piece[k];
			const struct table_tensor *x = &from->tensor[p.tensor];

			p.tensor = table_find(all, x->component, x->name, x->rank);
			p.place = i;
			rc = table_put_piece(all, &p, err);
		}
	}
	return rc ? rc : table_seal(all, err);
}

static int head_put(struct conversion *c, uint32_t i, struct ckpt_err *err)
{
	cleanup_free struct ck_head *head = malloc(sizeof *head);
	uint32_t rank = c->parts.of[c->first + i].rank;

	if (!head)
		return no_memory(err);
	native_part_head(&c->writer_info[i], rank, head);
	return chunk_queue_put(c->io, c->fd[i], rank, head, sizeof *head, 0, err);
}

static int tail_put(struct conversion *c, uint32_t i, struct ckpt_err *err)
{
	struct native_part *p = &c->part[c->first + i];
	cleanup_free void *tail = NULL;
	struct chunk_written w;
	uint64_t len;
	int rc = chunk_stream_end(c->writer[i], &w, err);

	if (!rc)
		rc = native_part_tail(&c->writer_info[i], p->rank, &c->table[i], w.chunk, w.nchunk,
				      w.data_end, &tail, &len, &p->root, err);
	if (!rc)
		rc = chunk_queue_put(c->io, c->fd[i], p->rank, tail, len, w.data_end, err);
	if (!rc)
		p->file_bytes = w.data_end + len;
	return rc;
}

static int batch_open(struct conversion *c, struct ckpt_err *err)
{
	int rc = 0;

	c->first = c->j.first;
	c->n = MIN(c->facts.batch, c->parts.npart - c->first);
	c->writer = calloc(c->n, sizeof *c->writer);
	c->table = calloc(c->n, sizeof *c->table);
	c->fd = calloc(c->n, sizeof *c->fd);
	c->writer_info = calloc(c->n, sizeof *c->writer_info);
	c->role = calloc(c->n, sizeof *c->role);
	if (!c->writer || !c->table || !c->fd || !c->writer_info || !c->role)
		return no_memory(err);
	for (uint32_t i = 0; i < c->n; i++) {
		const struct part_of *of = &c->parts.of[c->first + i];

		/* What a main part names comes before it, and is described when it is finished. */
		c->role[i] = (struct native_role){ .kind = of->kind };
		if (of->kind == PART_MAIN && of->source != TABLE_NONE) {
			c->role[i].source = &c->part[of->source];
			c->role[i].nsource = 1;
		}
		c->writer_info[i] = c->info;
		c->writer_info[i].role = &c->role[i];
	}
	for (uint32_t i = 0; i < c->n; i++)
		c->fd[i] = -1;
	for (uint32_t i = 0; i < c->n && !rc; i++)
		rc = cli_stopped()
			     ? ckpt_error(err, -ECANCELED, "interrupted")
			     : conversion_part_table(&c->parts, c->first + i, &c->table[i], err);
	if (!rc)
		rc = batch_table(c, err);
	if (!rc)
		rc = chunk_queue_open(
			&(struct chunk_queue_opts){ .ops = c->o.ops,
						    .engine = c->o.engine,
						    .nbuffer = c->facts.batch + MOVE_DEPTH },
			&c->io, err);
	for (uint32_t i = 0; i < c->n && !rc; i++) {
		uint32_t r = c->first + i;
		const struct journal_part *p = &c->j.part[r];

		rc = partial_part_open(&c->dir, c->part[r].name, true, err);
		if (rc < 0)
			break;
		c->fd[i] = rc;
		rc = chunk_stream_open(
			c->io, c->fd[i], &c->table[i], NATIVE_DATA_OFF, c->parts.of[r].rank,
			p->state == JOURNAL_OPEN ? &p->at : NULL, &c->writer[i], err);
		if (!rc)
			rc = head_put(c, i, err);
		if (rc == -EBADMSG)
			rc = ckpt_error(err, -EIO,
					"%s/%s differs from what an earlier run synced, and was "
					"discarded: run the same command again; it starts from the "
					"beginning",
					c->dir.path, c->part[r].name);
		else
			rc = part_failed(c, rc, err);
		c->write_failed |= rc < 0;
	}
	return rc < 0 ? rc : 0;
}

static int batch_close(struct conversion *c, int rc, struct ckpt_err *err)
{
	const struct io_ops *ops = c->o.ops;

	for (uint32_t i = 0; i < c->n; i++) {
		int closed;

		if (c->writer)
			chunk_stream_close(c->writer[i]);
		if (!c->fd || c->fd[i] < 0)
			continue;
		closed = ops->close(ops->ctx, c->fd[i]);
		if (closed && !rc) {
			c->write_failed = true;
			rc = ckpt_error_errno(err, -closed, "%s/%s cannot be closed", c->dir.path,
					      c->part[c->first + i].name);
		}
	}
	chunk_queue_close(TAKE(c->io));
	table_free(&c->all);
	for (uint32_t i = 0; c->table && i < c->n; i++)
		table_free(&c->table[i]);
	free(TAKE(c->table));
	free(TAKE(c->writer));
	free(TAKE(c->writer_info));
	free(TAKE(c->role));
	free(TAKE(c->fd));
	c->n = 0;
	return rc;
}

static bool save_is_due(const struct conversion *c)
{
	uint64_t since = elapsed_ns(c->saved_ns, now_ns());

	return since >= c->o.journal_ns && since >= SYNC_SHARE * c->save_took_ns;
}

static int on_window(void *arg, const struct window *w, const uint8_t *buf)
{
	struct conversion *c = arg;
	uint64_t bytes = 0;
	int rc = 0, drained;

	for (uint32_t i = 0; i < w->ncut && !rc; i++) {
		const struct window_cut *x = &w->cut[i];

		rc = chunk_stream_write(c->writer[x->place], x->dst_off, buf + x->buf_off, x->len,
					c->err);
		bytes += x->len;
	}
	drained = chunk_queue_drain(c->io, rc ? NULL : c->err);
	rc = part_failed(c, rc ? rc : drained, c->err);
	if (rc)
		return rc;
	c->j.windows++;
	c->j.bytes += bytes;
	return save_is_due(c) ? save(c, c->err) : 0;
}

/* The last bytes of every part of the batch. */
static int batch_finish(struct conversion *c, struct ckpt_err *err)
{
	const struct io_ops *ops = c->o.ops;
	int rc = 0;

	for (uint32_t i = 0; i < c->n && !rc; i++) {
		struct native_part *p = &c->part[c->first + i];

		rc = part_failed(c, tail_put(c, i, err), err);
		if (rc)
			break;
		rc = ops->truncate(ops->ctx, c->fd[i], p->file_bytes);
		if (!rc && !MUTANT(CONVERTED_NOT_SYNCED))
			rc = ops->sync(ops->ctx, c->fd[i]);
		if (rc)
			ckpt_error_errno(err, -rc, "%s/%s cannot be cut to its length and synced",
					 c->dir.path, p->name);
	}
	c->write_failed |= rc < 0;
	for (uint32_t i = 0; i < c->n && !rc; i++) {
		const struct native_part *p = &c->part[c->first + i];

		c->j.part[c->first + i] = (struct journal_part){ .state = JOURNAL_DONE,
								 .file_bytes = p->file_bytes,
								 .root = p->root };
		parts_keep(&c->parts, c->first + i, &c->table[i]);
	}
	return rc;
}

static int batch_run(struct conversion *c, const struct move_files *from, move_tick_fn *tick,
		     void *arg, struct ckpt_err *err)
{
	uint64_t buffers = (uint64_t)(c->facts.batch + MOVE_DEPTH) * CHUNK_BUFFER;
	struct ckpt_err save_err;
	uint32_t next;
	int rc = batch_open(c, err);

	c->err = err;
	if (!rc)
		rc = move_windows(from, &c->all, c->o.mem_limit - buffers, c->j.windows, on_window,
				  c, tick, arg, err);
	if (rc == -ECANCELED && save(c, &save_err)) {
		rc = save_err.code;
		if (err)
			*err = save_err;
	}
	if (!rc)
		rc = batch_finish(c, err);
	next = c->first + c->n;
	rc = batch_close(c, rc, err);
	if (rc)
		return rc;
	c->j.first = next;
	c->j.windows = 0;
	/* Nothing is open: the journal alone. */
	return save_is_due(c) ? save(c, err) : 0;
}

/* --- the end --- */

/* What src says of its place, so that the same copy is the same checkpoint. */
static void lineage_copy(const struct checkpoint *src, struct native_lineage *ret)
{
	*ret = (struct native_lineage){ .seq = src->seq, .parent_step = src->parent_step };
	for (uint32_t i = 0; src->parent_id[0] && i < sizeof ret->parent_id; i++) {
		char byte[3] = { src->parent_id[2 * i], src->parent_id[2 * i + 1] };

		ret->parent_id[i] = (uint8_t)strtoul(byte, NULL, 16);
	}
}

static int manifest_put(struct conversion *c, struct ckpt_err *err)
{
	const struct checkpoint *src = c->o.src;
	cleanup_free struct ckpt_note *note = calloc((size_t)src->nnote + 1, sizeof *note);
	cleanup_free struct checkpoint_attr *attr = calloc((size_t)src->nattr + 1, sizeof *attr);
	struct native_lineage line;
	cleanup_free void *bytes = NULL;
	char from[CKPT_JOB_MAX + 128];
	uint8_t id[16];
	uint32_t nattr = 0;
	uint64_t len;
	int rc;

	if (!note || !attr)
		return no_memory(err);
	for (uint32_t i = 0; i < src->nattr; i++)
		if (strcmp(src->attr[i].key, ATTR_FROM) != 0 && nattr < NATIVE_ATTRS_MAX - 1)
			attr[nattr++] = src->attr[i];
	snprintf(from, sizeof from, "%s, job %s, step %llu%s%s", src->format->name, src->job,
		 (unsigned long long)src->step, src->id[0] ? ", id " : "", src->id);
	attr[nattr++] = (struct checkpoint_attr){ ATTR_FROM, from };
	for (uint32_t i = 0; i < src->nnote; i++)
		note[i] =
			(struct ckpt_note){ .key = src->note[i].key, .value = src->note[i].value };
	lineage_copy(src, &line);
	line.tool = TOOL;
	line.nnote = src->nnote;
	line.note = note;
	line.nattr = nattr;
	line.attr = attr;
	rc = native_manifest_united(&c->info, c->part, c->parts.npart, &c->parts.all, &line, &bytes,
				    &len, id, err);
	/* They are on the disk; what opens it to see whether it is whole has them again. */
	conversion_parts_free(&c->parts);
	return rc ? rc : partial_put(&c->dir, NATIVE_MANIFEST, bytes, len, err);
}

/* MANIFEST is there and synced: the journals go, so that nothing but the checkpoint is left. */
static int publish(struct conversion *c, struct ckpt_err *err)
{
	char name[16];
	int rc = 0;

	for (uint32_t i = 0; i < PARTIAL_JOURNALS && !rc; i++) {
		partial_journal_name(i, name);
		rc = partial_drop(&c->dir, name, err);
	}
	if (!rc)
		rc = partial_sync(&c->dir, err);
	if (!rc && !MUTANT(CONVERTED_NOT_COMPARED))
		rc = whole_check(c, err);
	c->whole = !rc;
	return rc ? rc : partial_publish(&c->dir, err);
}

static int run(struct conversion *c, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	struct move_files from;
	int rc;

	c->saved_ns = now_ns();
	if (!c->whole) {
		rc = move_open(c->o.ops, c->o.src_fd, c->o.src, true, c->o.engine, &from, err);
		if (rc)
			return rc;
		while (!rc && c->j.first < c->parts.npart)
			rc = batch_run(c, &from, tick, arg, err);
		move_close(&from);
		if (!rc)
			rc = manifest_put(c, err);
		if (rc)
			return rc;
	}
	return publish(c, err);
}

/* After these another run finds the same parts as good as they are. */
static bool worth_keeping(const struct conversion *c, int rc)
{
	if (!c->saved_bytes && !c->whole)
		return false;
	if (c->whole || rc == -ECANCELED || rc == -ENOSPC || rc == -EDQUOT || rc == -ENOMEM)
		return true;
	return !c->write_failed && rc != -EBADMSG && rc != -EPROTO;
}

int conversion_run(struct conversion *c, move_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	int rc = run(c, tick, arg, err);

	if (!rc)
		return 0;
	c->facts.kept = worth_keeping(c, rc);
	if (!c->facts.kept)
		partial_remove(&c->dir);
	return rc;
}
