/* SPDX-License-Identifier: Apache-2.0 */
/*
 * load_cost.c - counts what plans would read. Called by ckptctl plan.
 * Invariant: a chunk counts for a rank exactly where move_read would read it for that rank. Ranks
 * are planned a few at a time, so that memory does not grow with the mesh, and chunks are stepped
 * over one by one, so that time does not grow with the rows in them.
 */
#include "ckpt/engine/load_cost.h"
#include "ckpt/base/util.h"
#include "ckpt/plan/coalesce.h"
#include "ckpt/plan/plan_reduce.h"
#include "ckpt/table/target.h"

#define PIECES_AT_ONCE (1u << 20) /* of the ranks that are planned together, about 200 MB */
#define RANKS_AT_ONCE 64u

struct counting {
	const struct checkpoint *k;
	/* [nplace+1]: bit of a place's first chunk; a file without, and what is made, has one
	 * bit */
	uint64_t *first;
	uint64_t words;	  /* of a set of bits */
	uint64_t *bits;	  /* [RANKS_AT_ONCE][words] */
	uint64_t *all;	  /* [words]: of all ranks */
	uint32_t *writer; /* [nplace] */
	struct load_cost *cost;
};

static void bits_mark(uint64_t *bits, uint64_t from, uint64_t to)
{
	for (uint64_t i = from; i < to; i++)
		bits[i / 64] |= UINT64_C(1) << i % 64;
}

/* Of a tensor that is derived the F32 elements are read. */
static uint64_t op_src_bytes(const struct plan_op *op)
{
	return op->round ? 2 * op->bytes : op->bytes;
}

static uint32_t place_count(const struct checkpoint *k)
{
	return k->nfile + k->nmade;
}

/* A made place, and the file that is read for it, which has no chunks. */
static void mark_made(const struct counting *c, uint32_t place, uint64_t *bits)
{
	uint32_t file = checkpoint_file_of(c->k, place);

	bits_mark(bits, c->first[place], c->first[place + 1]);
	if (file != TABLE_NONE)
		bits_mark(bits, c->first[file], c->first[file] + 1);
}

/* Mark the chunks with bytes that the operation reads. */
static void mark_op(const struct counting *c, const struct plan *p, const struct plan_op *op,
		    uint64_t *bits)
{
	uint64_t first = c->first[op->src_place];
	bool ascend = plan_rows_ascend(p, op);
	const struct format_file *f;
	struct plan_cursor at;
	struct plan_row row;

	if (op->src_place >= c->k->nfile) {
		mark_made(c, op->src_place, bits);
		return;
	}
	f = &c->k->file[op->src_place];
	if (!f->chunk) {
		bits_mark(bits, first, first + 1);
		return;
	}
	/* All of its bytes, or all in one chunk. */
	if (op_src_bytes(op) == op->src_hi - op->src_lo ||
	    op->src_lo >> f->chunk_log2 == (op->src_hi - 1) >> f->chunk_log2) {
		bits_mark(bits, first + (op->src_lo >> f->chunk_log2),
			  first + ((op->src_hi - 1) >> f->chunk_log2) + 1);
		return;
	}
	plan_rows(p, op, &at);
	while (plan_row_next(&at, &row)) {
		/* Elements that lie apart, where the source is not row-major, are rows of their
		 * own. */
		bool apart = row.elem && row.src_stride != plan_row_src_elem(&row);
		uint64_t n = apart ? row.n : 1, end = 0;
		uint64_t len = apart ? plan_row_src_elem(&row) : plan_row_src_bytes(&row);

		for (uint64_t i = 0; i < n; i++) {
			uint64_t off = row.src_off + i * row.src_stride;

			end = ((off + len - 1) >> f->chunk_log2) + 1;
			bits_mark(bits, first + (off >> f->chunk_log2), first + end);
		}
		if (ascend && plan_row_src_bytes(&row) < UINT64_C(1) << f->chunk_log2)
			plan_rows_from(p, op, end << f->chunk_log2, &at);
	}
}

/* Add up what the bits of one reader say. Files without chunks have their bytes counted already. */
static void count_bits(const struct counting *c, const uint64_t *bits, struct load_rank *ret)
{
	for (uint32_t i = 0; i < c->k->nfile; i++) {
		const struct format_file *f = &c->k->file[i];
		uint64_t chunks = 0, at = c->first[i], end = c->first[i + 1];
		bool any = false;

		while (at < end) {
			uint64_t word = bits[at / 64] >> at % 64;

			if (!word) {
				at = (at / 64 + 1) * 64;
				continue;
			}
			at += (uint64_t)__builtin_ctzll(word);
			if (at >= end)
				break;
			any = true;
			if (f->chunk) {
				chunks++;
				ret->read_bytes += f->chunk[at - c->first[i]].stored_len;
			}
			at++;
		}
		ret->chunks += chunks;
		ret->files += any;
	}
}

/* What a rank decodes it reads from the beginning: the bytes in the file of all such places. */
static uint64_t made_bytes(const struct counting *c, const uint64_t *bits)
{
	const struct checkpoint *k = c->k;
	uint64_t bytes = 0;

	for (uint32_t place = k->nfile; place < place_count(k); place++) {
		const struct format_made *m = &k->made[place - k->nfile];

		if (!(bits[c->first[place] / 64] >> c->first[place] % 64 & 1) ||
		    checkpoint_file_of(k, place) == TABLE_NONE)
			continue;
		while (m->from >= k->nfile)
			m = &k->made[m->from - k->nfile];
		bytes += m->len;
	}
	return bytes;
}

/* Operations on the ranks from `first` on. held: they are what the rank holds, too. */
static void count_ops(struct counting *c, const struct plan *p, const struct plan_op *op,
		      uint64_t nop, uint32_t first, bool held)
{
	for (uint64_t i = 0; i < nop; i++) {
		struct load_rank *r = &c->cost->rank[first + op[i].dst_place];

		r->bytes += held ? op[i].bytes : 0;
		if (op[i].src_place < c->k->nfile && !c->k->file[op[i].src_place].chunk)
			r->read_bytes += op_src_bytes(&op[i]);
		mark_op(c, p, &op[i], c->bits + op[i].dst_place * c->words);
	}
}

/* What is made of operands: all of them are read for what is held once. */
static void count_reduced(struct counting *c, const struct plan *p, uint32_t first)
{
	const struct plan_reduced *x = p->reduced;

	if (!x)
		return;
	count_ops(c, p, x->op, x->nop, first, false);
	for (uint32_t i = 0; i < x->nsum; i++)
		for (uint32_t k = 0; k < x->sum[i].npiece; k++) {
			const struct table_piece *q = &p->dst->piece[x->sum[i].piece[k]];

			c->cost->rank[first + q->place].bytes += q->len;
		}
}

/* The ranks of one table of target_ranks. */
static int count_ranks(struct counting *c, const struct table *t, uint32_t first,
		       struct ckpt_err *err)
{
	struct plan p;
	int rc = plan_make(&c->k->table, t, &(struct plan_opts){ .memory_blobs = true }, &p, NULL,
			   err);

	if (rc)
		return rc;
	memset(c->bits, 0, t->nplace * c->words * sizeof *c->bits);
	for (uint32_t i = 0; i < t->npiece; i++)
		c->cost->rank[first + t->piece[i].place].tensors++;
	count_ops(c, &p, p.op, p.nop, first, true);
	count_reduced(c, &p, first);
	flow_add_plan(&c->cost->flow, &p, c->writer, first);
	plan_free(&p);
	for (uint32_t i = 0; i < t->nplace; i++) {
		struct load_rank *r = &c->cost->rank[first + i];
		const uint64_t *bits = c->bits + i * c->words;

		count_bits(c, bits, r);
		r->read_bytes += made_bytes(c, bits);
		for (uint64_t w = 0; w < c->words; w++)
			c->all[w] |= bits[w];
		c->cost->held_bytes += r->bytes;
		c->cost->read_bytes += r->read_bytes;
	}
	return 0;
}

/* Every element that any rank holds is held by some rank: together they want each tensor once. */
static void count_host(struct counting *c, const struct table *target)
{
	struct load_rank *h = &c->cost->host;

	for (uint32_t i = 0; i < target->ntensor; i++) {
		const struct table_tensor *x = &target->tensor[i];

		if (x->cls == CKPT_SINK || !x->numel)
			continue;
		h->tensors++;
		h->bytes += x->numel * x->elem_bytes;
	}
	for (uint32_t i = 0; i < c->k->nfile; i++)
		if (!c->k->file[i].chunk && c->all[c->first[i] / 64] >> c->first[i] % 64 & 1)
			h->read_bytes += c->k->file[i].raw_bytes;
	count_bits(c, c->all, h);
}

/* The host's chunks in few large reads, as they lie in the files. */
static int count_requests(struct counting *c, struct ckpt_err *err)
{
	struct reads r = { .n = 0 };
	int e = 0;

	for (uint32_t i = 0; i < c->k->nfile; i++) {
		const struct format_file *f = &c->k->file[i];

		for (uint64_t at = c->first[i]; at < c->first[i + 1] && !e; at++) {
			const struct chunk *x = f->chunk ? &f->chunk[at - c->first[i]] : NULL;

			if (c->all[at / 64] >> at % 64 & 1)
				e = reads_add(&r, i, x ? x->off : 0,
					      x ? x->stored_len : f->raw_bytes);
		}
	}
	reads_unite(&r);
	c->cost->requests = r.requests;
	c->cost->request_bytes = r.bytes;
	reads_free(&r);
	return e ? ckpt_error(err, e, "out of memory for the reads of %u files", c->k->nfile) : 0;
}

static int flow_of_files(struct counting *c)
{
	uint32_t n = MAX(c->k->world, 1u);

	c->writer = calloc((size_t)place_count(c->k) + 1, sizeof *c->writer);
	if (!c->writer)
		return -ENOMEM;
	for (uint32_t i = 0; i < place_count(c->k); i++) {
		uint32_t file = checkpoint_file_of(c->k, i);

		if (file == TABLE_NONE) /* at hand: it counts as the first rank's */
			continue;
		c->writer[i] = c->k->file[file].rank == TABLE_NONE ? file : c->k->file[file].rank;
		n = MAX(n, c->writer[i] + 1);
	}
	return flow_begin(&c->cost->flow, n, c->cost->world);
}

static int count_begin(struct counting *c, struct ckpt_err *err)
{
	uint32_t n = place_count(c->k);
	uint64_t bit = 0;

	c->first = calloc((size_t)n + 1, sizeof *c->first);
	for (uint32_t i = 0; c->first && i < n; i++) {
		c->first[i] = bit;
		bit += i < c->k->nfile && c->k->file[i].chunk ? c->k->file[i].nchunk : 1;
	}
	if (c->first)
		c->first[n] = bit;
	c->words = bit / 64 + 1;
	c->bits = calloc(RANKS_AT_ONCE * c->words, sizeof *c->bits);
	c->all = calloc(c->words, sizeof *c->all);
	c->cost->rank = calloc(c->cost->world, sizeof *c->cost->rank);
	if (!c->first || !c->bits || !c->all || !c->cost->rank || flow_of_files(c))
		return ckpt_error(err, -ENOMEM, "out of memory for the cost of %u ranks",
				  c->cost->world);
	return 0;
}

int load_cost(const struct checkpoint *k, const struct table *target, struct load_cost *ret,
	      load_tick_fn *tick, void *arg, struct ckpt_err *err)
{
	struct counting c = { .k = k, .cost = ret };
	uint32_t n = PIECES_AT_ONCE / MAX(target->ntensor, 1u);
	int rc;

	*ret = (struct load_cost){ .world = target_world(target) };
	n = MIN(n, RANKS_AT_ONCE);
	n = MAX(n, 1u);
	rc = count_begin(&c, err);
	for (uint32_t r = 0; r < ret->world && !rc; r += n) {
		struct table t = { 0 };

		rc = target_ranks(target, r, MIN(n, ret->world - r), &t, err);
		if (!rc)
			rc = count_ranks(&c, &t, r, err);
		table_free(&t);
		if (!rc && tick && tick(arg, MIN(r + n, ret->world)))
			rc = ckpt_error(err, -ECANCELED, "stopped");
	}
	if (!rc) {
		count_host(&c, target);
		rc = count_requests(&c, err);
	}
	free(c.writer);
	free(c.first);
	free(c.bits);
	free(c.all);
	if (rc)
		load_cost_free(ret);
	return rc;
}

void load_cost_free(struct load_cost *c)
{
	free(c->rank);
	flow_free(&c->flow);
	*c = (struct load_cost){ 0 };
}
