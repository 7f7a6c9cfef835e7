/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_plan.c - ckptctl plan, and what --mesh and --layout do for every verb that takes them:
 * the figures against a count of the table's own pieces, element by element, and the talk.
 */
#include "tests/lib/cli_rig.h"
#include "ckpt/cli/subject.h"
#include "ckpt/plan/coalesce.h"
#include "ckpt/engine/load_cost.h"
#include "ckpt/table/target.h"
#include <math.h>

#define alpha path_of("%s/alpha", work)
#define beta path_of("%s/beta", work)

/* --- the figures, counted in another way --- */

/* Row-major numbers of the elements of a set, ascending; *ret_n of them, malloc'ed. */
static uint64_t *elements(const struct indexset *s, const uint64_t *shape, uint64_t *ret_n)
{
	uint64_t *at = calloc(s->numel + 1, sizeof *at), n = 1;

	at[0] = 0;
	for (uint32_t d = 0; d < s->ndim; d++) {
		uint64_t *next = calloc(s->numel + 1, sizeof *next), m = 0;

		for (uint64_t i = 0; i < n; i++)
			for (uint32_t k = 0; k < s->dim[d].n; k++)
				for (uint64_t j = 0; j < s->dim[d].run[k].count; j++)
					for (uint64_t e = 0; e < s->dim[d].run[k].len; e++)
						next[m++] = at[i] * shape[d] +
							    s->dim[d].run[k].start +
							    j * s->dim[d].run[k].stride + e;
		free(at);
		at = next;
		n = m;
	}
	assert_int_equal(n, s->numel);
	*ret_n = n;
	return at;
}

/* Where each element of a tensor lies: its file and byte. */
struct where {
	uint32_t file;
	uint64_t off;
};

static struct where *find_elements(const struct table *t, uint32_t tensor)
{
	struct where *w = calloc(t->tensor[tensor].numel + 1, sizeof *w);

	for (uint32_t i = t->first[tensor + 1]; i-- > t->first[tensor];) {
		uint64_t n, *e = elements(&t->piece[i].set, t->tensor[tensor].shape, &n);

		for (uint64_t j = 0; j < n; j++)
			w[e[j]] = (struct where){ t->piece[i].place,
						  t->piece[i].off +
							  j * t->tensor[tensor].elem_bytes };
		free(e);
	}
	return w;
}

/* Who reads which chunks; a file without chunks is one, whose bytes are counted by the element. */
struct count {
	const struct checkpoint *k;
	uint64_t first[RANKS_MAX + 1];
	uint8_t *bits, *all;
	struct where **where; /* [ntensor]: filled as they are asked for */
	uint64_t *flow;	      /* [RANKS_MAX][ranks of the mesh] */
	uint32_t world;
};

static void count_rank(struct count *c, const struct table *r, uint32_t rank, struct load_rank *ret)
{
	memset(c->bits, 0, c->first[c->k->nfile]);
	for (uint32_t i = 0; i < r->npiece; i++) {
		const struct table_piece *p = &r->piece[i];
		uint32_t elem = r->tensor[p->tensor].elem_bytes;
		struct where *w = c->where[p->tensor];
		uint64_t n, *e = elements(&p->set, r->tensor[p->tensor].shape, &n);

		if (!w)
			w = c->where[p->tensor] = find_elements(&c->k->table, p->tensor);
		for (uint64_t j = 0; j < n; j++) {
			const struct where *x = &w[e[j]];
			const struct format_file *f = &c->k->file[x->file];

			c->flow[f->rank * c->world + rank] += elem;
			/* An element may lie across the end of a chunk. */
			for (uint64_t o = x->off; f->chunk && o < x->off + elem; o++)
				c->bits[c->first[x->file] + (o >> f->chunk_log2)] = 1;
			if (!f->chunk) {
				c->bits[c->first[x->file]] = 1;
				ret->read_bytes += elem;
			}
		}
		ret->bytes += n * elem;
		ret->tensors++;
		free(e);
	}
}

static void count_chunks(struct count *c, struct load_rank *ret)
{
	for (uint32_t i = 0; i < c->k->nfile; i++) {
		const struct format_file *f = &c->k->file[i];
		bool any = false;

		for (uint64_t b = c->first[i]; b < c->first[i + 1]; b++) {
			if (!c->bits[b])
				continue;
			any = true;
			c->all[b] = 1;
			ret->chunks += f->chunk != NULL;
			ret->read_bytes += f->chunk ? f->chunk[b - c->first[i]].stored_len : 0;
		}
		ret->files += any;
	}
}

/* How the chunks of all ranks would be read: small gaps are cheaper than one more request. */
static void count_requests(const struct count *c, uint64_t *ret_n, uint64_t *ret_bytes)
{
	uint64_t gap = READ_GAP;

	*ret_n = *ret_bytes = 0;
	for (uint32_t i = 0; i < c->k->nfile; i++) {
		const struct format_file *f = &c->k->file[i];
		uint64_t end = UINT64_MAX;

		if (!f->chunk && c->all[c->first[i]]) {
			*ret_n += div_up(f->raw_bytes, 8 * MIB);
			*ret_bytes += f->raw_bytes;
		}
		for (uint64_t b = 0; f->chunk && b < f->nchunk; b++) {
			const struct chunk *x = &f->chunk[b];

			if (!c->all[c->first[i] + b] || !x->stored_len)
				continue;
			if (end != UINT64_MAX && x->off - end <= gap) {
				*ret_bytes += x->off - end;
			} else {
				*ret_n += 1;
			}
			*ret_bytes += x->stored_len;
			end = x->off + x->stored_len;
		}
	}
}

static void check_flow(const struct count *c, const struct load_cost *cost, const char *mesh)
{
	assert_int_equal(cost->flow.from_block, 1);
	assert_int_equal(cost->flow.to_block, 1);
	for (uint32_t i = 0; i < cost->flow.nrow; i++)
		for (uint32_t j = 0; j < c->world; j++)
			if (flow_at(&cost->flow, i, j) != c->flow[i * c->world + j])
				fail_msg("%s: rank %u takes %llu bytes of rank %u's; counted %llu",
					 mesh, j, (unsigned long long)flow_at(&cost->flow, i, j), i,
					 (unsigned long long)c->flow[i * c->world + j]);
	assert_int_equal(flow_all(&cost->flow), cost->held_bytes);
}

static void must_be(const char *mesh, uint32_t rank, const struct load_rank *said,
		    const struct load_rank *want)
{
	if (said->bytes != want->bytes || said->read_bytes != want->read_bytes ||
	    said->chunks != want->chunks || said->files != want->files ||
	    said->tensors != want->tensors)
		fail_msg("%s, rank %u: %llu bytes, %llu read, %llu chunks, %u files, %u tensors; "
			 "counted %llu, %llu, %llu, %u, %u",
			 mesh, rank, (unsigned long long)said->bytes,
			 (unsigned long long)said->read_bytes, (unsigned long long)said->chunks,
			 said->files, said->tensors, (unsigned long long)want->bytes,
			 (unsigned long long)want->read_bytes, (unsigned long long)want->chunks,
			 want->files, want->tensors);
}

/* What is said of a mesh is what counting says. */
static void check_loading(const struct checkpoint *k, const char *mesh,
			  const struct target_rule *rule, uint32_t nrule)
{
	struct count c = { .k = k };
	struct table g, r;
	struct load_cost cost;
	struct load_rank host = { 0 };
	struct ckpt_err err = { 0 };
	uint64_t held = 0, read = 0, requests, request_bytes;

	if (target_make(&k->table, mesh, rule, nrule, &g, NULL, NULL, &err) ||
	    load_cost(k, &g, &cost, NULL, NULL, &err))
		fail_msg("%s: %s", mesh, err.msg);
	assert_int_equal(cost.world, target_world(&g));
	for (uint32_t i = 0; i < k->nfile; i++)
		c.first[i + 1] = c.first[i] + (k->file[i].chunk ? k->file[i].nchunk : 1);
	c.bits = malloc(c.first[k->nfile]);
	c.all = calloc(c.first[k->nfile], 1);
	c.where = calloc(k->table.ntensor, sizeof *c.where);
	c.world = cost.world;
	c.flow = calloc((size_t)RANKS_MAX * c.world, sizeof *c.flow);
	for (uint32_t i = 0; i < cost.world; i++) {
		struct load_rank want = { 0 };

		assert_int_equal(target_rank(&g, i, &r, &err), 0);
		count_rank(&c, &r, i, &want);
		count_chunks(&c, &want);
		must_be(mesh, i, &cost.rank[i], &want);
		held += want.bytes;
		read += want.read_bytes;
		table_free(&r);
	}
	assert_int_equal(cost.held_bytes, held);
	assert_int_equal(cost.read_bytes, read);
	for (uint32_t i = 0; i < k->table.ntensor; i++) {
		host.bytes += k->table.tensor[i].numel * k->table.tensor[i].elem_bytes;
		host.tensors += k->table.tensor[i].numel > 0;
	}
	memcpy(c.bits, c.all, c.first[k->nfile]);
	count_chunks(&c, &host);
	for (uint32_t i = 0; i < k->nfile; i++)
		if (!k->file[i].chunk && c.all[c.first[i]])
			host.read_bytes += k->file[i].raw_bytes;
	must_be(mesh, UINT32_MAX, &cost.host, &host);
	check_flow(&c, &cost, mesh);
	count_requests(&c, &requests, &request_bytes);
	assert_int_equal(cost.requests, requests);
	assert_int_equal(cost.request_bytes, request_bytes);
	free(c.flow);
	for (uint32_t i = 0; i < k->table.ntensor; i++)
		free(c.where[i]);
	free(c.where);
	free(c.bits);
	free(c.all);
	load_cost_free(&cost);
	table_free(&g);
}

/* chunk_log2 0: the checkpoint as it is. Else as if its files were cut into chunks of that size;
 * the file number `bare` has none at all. */
static void check_cost(const char *where, const char *mesh, uint32_t chunk_log2, uint32_t bare)
{
	struct subject s = { 0 };
	struct ckpt_err err = { 0 };
	struct checkpoint k;
	uint64_t gap = READ_GAP;
	struct format_file file[RANKS_MAX];
	struct chunk *chunk[RANKS_MAX] = { 0 };
	const struct target_rule columns[] = { { "*.experts", "Shard(2)@tp", "f:1" },
					       { "*", "Shard(1)@tp", "f:2" } };

	assert_int_equal(subject_find(&s, &io_ops_posix, where, "latest", NULL, &err), 0);
	assert_int_equal(subject_open(&s, NULL, NULL, &err), 0);
	k = *s.ckpt;
	memcpy(file, k.file, k.nfile * sizeof *file);
	for (uint32_t i = 0; i < k.nfile && chunk_log2; i++) {
		uint64_t n = div_up(file[i].raw_bytes, UINT64_C(1) << chunk_log2);

		chunk[i] = calloc(n + 1, sizeof *chunk[i]);
		for (uint64_t j = 0, off = 8192; j < n; j++) {
			chunk[i][j].stored_len = (1u << chunk_log2) + (uint32_t)(j % 7);
			chunk[i][j].off = off;
			/* Some lie too far apart to be read at once. */
			off += chunk[i][j].stored_len + (j % 3 ? 0 : gap - 2 + j % 4);
		}
		file[i].chunk_log2 = chunk_log2;
		file[i].nchunk = i == bare ? 0 : n;
		file[i].chunk = i == bare ? NULL : chunk[i];
	}
	k.file = file;
	check_loading(&k, mesh, NULL, 0);
	if (chunk_log2) /* and by columns, whose rows are short and far apart */
		check_loading(&k, "tp=3", columns, ARRAY_LEN(columns));
	for (uint32_t i = 0; i < k.nfile; i++)
		free(chunk[i]);
	subject_close(&s);
}

TEST(the_figures_are_those_of_counting_every_element)
{
	check_cost(alpha, "fsdp=4", 0, 0);
	check_cost(alpha, "fsdp=3", 0, 0);
	check_cost(alpha, "fsdp=1", 0, 0);
	check_cost(alpha, "dp=2,fsdp=7", 0, 0);
	check_cost(beta, "tp=3,fsdp=2", 0, 0);
	check_cost(beta, "x=2", 0, 0);
}

TEST(chunks_that_rows_step_over_are_not_read)
{
	check_cost(alpha, "fsdp=3", 6, UINT32_MAX);
	check_cost(alpha, "fsdp=5", 9, 2);
	check_cost(beta, "tp=3,fsdp=2", 8, 0);
}

TEST(ranks_that_are_planned_apart_add_up)
{
	/* More than are planned at once, most of them with nothing of most tensors. */
	check_cost(beta, "fsdp=70", 0, 0);
}

/* --- the document --- */

TEST(a_program_gets_every_rank_and_every_figure)
{
	const json_t *rank;
	uint64_t held = 0, read = 0, most = 0;
	json_t *j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=3",
			     "--json");

	assert_json_has(j, "{'mesh':'fsdp=3', 'from_mesh':'fsdp=4', 'world_size':3, 'step':30}");
	rank = member(j, "ranks", JSON_ARRAY);
	assert_int_equal(json_array_size(rank), 3);
	for (size_t i = 0; i < 3; i++) {
		const json_t *r = json_array_get(rank, i);

		assert_int_equal(number(r, "rank"), i);
		held += number(r, "held_bytes");
		read += number(r, "read_bytes");
		most = MAX(most, number(r, "held_bytes"));
		assert_true(number(r, "file_count") > 0);
		assert_true(number(r, "chunk_count") >= number(r, "file_count"));
		assert_true(real(r, "amplification") >= 1);
	}
	assert_int_equal(number(j, "held_bytes"), held);
	assert_int_equal(number(j, "read_bytes"), read);
	assert_true(fabs(real(j, "imbalance") - (double)most * 3 / (double)held) < 1e-9);
	assert_true(fabs(real(j, "replication") -
			 (double)held / (double)number(j, "tensor_bytes")) < 1e-9);
	assert_int_equal(number(member(j, "one_reader", JSON_OBJECT), "file_count"), 4);
	assert_int_equal(number(member(j, "one_reader", JSON_OBJECT), "request_count"), 4);
	assert_json_has(j, "{'svg':null, 'layout_file':null}");
}

TEST(with_links_an_exchange_between_the_ranks_of_both_meshes_is_planned)
{
	const json_t *x, *round, *better;
	uint64_t sum = 0, rounds = 0;
	char bytes[32];
	json_t *j;
	double us;

	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--links", "h100");
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--links", "h100", "--round",
		 "128K");
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--links",
		     "h100", "--round", "128K", "--json");
	x = member(j, "exchange", JSON_OBJECT);
	round = member(x, "tiers", JSON_ARRAY);
	assert_int_equal(json_array_size(round), 4);
	for (size_t i = 0; i < 4; i++)
		sum += number(json_array_get(round, i), "bytes");
	round = member(x, "rounds", JSON_ARRAY);
	assert_true(json_array_size(round) > 5);
	for (size_t i = 0; i < json_array_size(round); i++)
		rounds += number(json_array_get(round, i), "bytes");
	assert_int_equal(sum, rounds);
	/* All but the blobs, which are no rank's to divide. */
	assert_true(sum > number(j, "held_bytes") / 2 && sum <= number(j, "held_bytes"));
	assert_true(number(x, "most_received_bytes") > 0);
	assert_true(real(x, "us") >= real(x, "bound_us") && real(x, "bound_us") > 0);
	assert_true(real(x, "us") > 1.15 * real(x, "bound_us"));
	better = member(x, "better", JSON_OBJECT);
	assert_true(real(better, "us") <= 1.15 * real(x, "bound_us"));
	assert_true(number(better, "round_count") < json_array_size(round));
	snprintf(bytes, sizeof bytes, "%llu", (unsigned long long)number(better, "round_bytes"));
	us = real(better, "us");
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--links",
		     "h100", "--round", bytes, "--json");
	assert_true(real(member(j, "exchange", JSON_OBJECT), "us") == us);
	assert_json_has(j, "{'exchange': {'better': null}}");
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--json");
	assert_json_has(j, "{'exchange': null}");
	SHOWN_IS(2, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--links",
		 "no-such-machine");
	SHOWN_IS(2, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--links", "h100", "--round",
		 "12");
	SHOWN_IS(2, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--round", "1M");
}

TEST(many_ranks_are_told_as_three_rows_and_given_whole_to_programs)
{
	json_t *j;

	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=40");
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=40", "--json");
	assert_int_equal(count(j, "ranks"), 40);
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=16");
}

TEST(the_text_fits_80_columns)
{
	static const char *const mesh[] = { "dp=2,fsdp=2,tp=3", "fsdp=1", "fsdp=16", "fsdp=31",
					    "fsdp=9000" };

	for (size_t i = 0; i < ARRAY_LEN(mesh); i++) {
		RUN_IS(0, "-C", beta, "plan", "latest", "--mesh", mesh[i], "--replicate",
		       dims_of(mesh[i]));
		for (const char *p = strstr(got.out, "ranks hold"), *q; p && *p; p = q + 1) {
			q = strchr(p, '\n');
			assert_non_null(q);
			if (screen_columns(strndupa(p, (size_t)(q - p))) > 80)
				fail_msg("%s: %.*s", mesh[i], (int)(q - p), p);
		}
	}
}

/* --- from rank to rank --- */

/* All that new ranks take is all that they hold, pair by pair. */
TEST(a_program_gets_the_bytes_between_each_two_ranks)
{
	uint64_t takes[6] = { 0 };
	const json_t *flow, *cells, *ranks;
	json_t *j = json_run("ckptd.plan/1", "-C", beta, "plan", "latest", "--mesh", "fsdp=6",
			     "--json");

	flow = member(j, "flow", JSON_OBJECT);
	assert_json_has(flow, "{'from_block':1, 'to_block':1}");
	cells = member(flow, "cells", JSON_ARRAY);
	assert_true(json_array_size(cells) > 6);
	for (size_t i = 0; i < json_array_size(cells); i++) {
		const json_t *x = json_array_get(cells, i);

		assert_true(number(x, "from") < 4);
		assert_true(number(x, "to") < 6);
		assert_true(number(x, "bytes") > 0);
		takes[number(x, "to")] += number(x, "bytes");
	}
	ranks = member(j, "ranks", JSON_ARRAY);
	for (size_t i = 0; i < 6; i++)
		assert_int_equal(number(json_array_get(ranks, i), "held_bytes"), takes[i]);
}

TEST(more_pairs_than_65536_are_given_in_blocks)
{
	const json_t *flow, *cells;
	uint64_t sum = 0;
	json_t *j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=16500",
			     "--json");

	flow = member(j, "flow", JSON_OBJECT);
	assert_json_has(flow, "{'from_block':1, 'to_block':2}");
	cells = member(flow, "cells", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(cells); i++) {
		assert_int_equal(number(json_array_get(cells, i), "to") % 2, 0);
		sum += number(json_array_get(cells, i), "bytes");
	}
	assert_int_equal(sum, number(j, "held_bytes"));
}

/* The matrix of the text: rows of numbers behind its head. */
TEST(the_text_has_a_matrix_of_old_and_new_ranks)
{
	char copy[8192], *p, *line[8] = { 0 };

	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3");
	snprintf(copy, sizeof copy, "%s", strstr(got.out, "bytes that each new rank"));
	p = copy;
	for (size_t i = 0; i < 8; i++)
		line[i] = strsep(&p, "\n");
	assert_says(line[0], "(column)");
	assert_string_equal(line[1], "         0    1    2   total");
	assert_int_equal(strtol(line[2], NULL, 10), 0);
	assert_int_equal(strtol(line[5], NULL, 10), 3);
	assert_true(strncmp(line[6], "total", 5) == 0);
	assert_string_equal(line[7], "");
}

TEST(many_ranks_are_drawn_in_blocks_and_shades)
{
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=16");
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=60");
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=9000");
}

TEST(a_picture_is_written_and_nothing_of_others_replaced)
{
	const char *svg = path_of("%s/flow.svg", top), *other = path_of("%s/precious", top);
	char text[32768] = "", *head = text;
	json_t *j;
	FILE *f;

	for (int i = 0; i < 2; i++) { /* ours is replaced */
		SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--svg", svg);
	}
	f = fopen(svg, "r");
	assert_non_null(f);
	assert_true(fread(text, 1, sizeof text - 1, f) > 0);
	assert_int_equal(fclose(f), 0);
	assert_says(head, "<title>loading step 30 of alpha</title>");
	assert_says(head, "fsdp=4, 4 ranks -&gt; fsdp=3, 3 ranks");
	assert_says(head, "<title>old rank 3 to new rank 2: ");
	assert_says(head, "</svg>\n");
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=300", "--svg",
		     svg, "--json");
	assert_string_equal(string(j, "svg"), svg);
	spill(other, "mine");
	SHOWN_IS(CLI_LOCKED, "-C", alpha, "plan", "latest", "--mesh", "fsdp=3", "--svg", other);
	assert_string_equal(got.out, "");
}

/* --- --mesh --- */

TEST(without_a_mesh_the_checkpoints_own_is_the_example)
{
	SHOWN_IS(CLI_USAGE, "-C", beta, "plan", "latest");
	assert_string_equal(got.out, "");
	RUN_IS(CLI_USAGE, "-C", beta, "plan", "latest", "--json");
	assert_json_error(CLI_USAGE);
}

TEST(a_mesh_that_cannot_be_read_says_where)
{
	SHOWN_IS(CLI_USAGE, "-C", beta, "plan", "latest", "--mesh", "dp=2,fsdp");
	RUN_IS(CLI_USAGE, "-C", beta, "plan", "latest", "--mesh", "dp=0");
	RUN_IS(CLI_USAGE, "-C", beta, "plan", "latest", "--mesh=");
	assert_string_equal(got.out, "");
}

TEST(a_checkpoint_that_is_not_there_is_missing)
{
	RUN_IS(CLI_MISSING, "-C", alpha, "plan", "step:11", "--mesh", "dp=1");
	RUN_IS(CLI_USAGE, "-C", work, "plan", "latest", "--mesh", "dp=1");
}

TEST(what_changed_is_told_to_people_in_groups_and_to_programs_one_by_one)
{
	json_t *j;
	const json_t *notes;

	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=4");
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "dp=4", "--replicate", "dp");
	RUN_IS(0, "-C", alpha, "-q", "plan", "latest", "--mesh", "dp=4", "--replicate", "dp");
	assert_string_equal(got.err, "");
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "dp=4", "--replicate", "dp", "--json");
	assert_string_equal(got.err, "");
	j = json_out("ckptd.plan/1");
	notes = member(j, "changes", JSON_ARRAY);
	assert_true(json_array_size(notes) > 3);
	assert_says(string(json_array_get(notes, 0), "text"), "fsdp is not in the new mesh");
	assert_says(string(json_array_get(notes, 0), "tensor"), "/");
	json_decref(j);
}

TEST(a_slip_in_a_name_is_suspected)
{
	SHOWN_IS(CLI_WARNINGS, "-C", alpha, "plan", "latest", "--mesh", "fdsp=4");
	assert_string_equal(got.out, "");
}

TEST(copies_that_nobody_asked_for_are_refused_with_their_cost)
{
	SHOWN_IS(CLI_WARNINGS, "-C", alpha, "plan", "latest", "--mesh", "tp=4");
	assert_string_equal(got.out, "");
	RUN_IS(CLI_WARNINGS, "-C", alpha, "plan", "latest", "--mesh", "tp=4", "--json");
	assert_json_error(CLI_WARNINGS);
	RUN_IS(CLI_WARNINGS, "-C", alpha, "restore", "latest", path_of("%s/none", top), "--mesh",
	       "tp=4");
	RUN_IS(CLI_WARNINGS, "-C", alpha, "convert", "latest", path_of("%s/none", top), "--mesh",
	       "tp=4");
	assert_false(exists(path_of("%s/none", top)));
	/* What it suggests, and what was meant. */
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=4");
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "tp=4", "--replicate", "tp");
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "tp=1");
	SHOWN_IS(CLI_WARNINGS, "-C", alpha, "plan", "latest", "--mesh", "dp=2,fsdp=3");
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "dp=2,fsdp=3", "--replicate", "dp");
	SHOWN_IS(CLI_WARNINGS, "-C", alpha, "plan", "latest", "--mesh", "dp=2,tp=2", "--replicate",
		 "dp");
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "dp=2,tp=2", "--replicate", "dp",
	       "--replicate", "tp");
	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "tp=2", "--replicate", "dp");
}

TEST(a_rule_of_the_command_line_cuts_and_leaves_no_other_tensor_to_copies)
{
	json_t *j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "tp=2",
			     "--layout", "*=Shard(0)@tp", "--json");

	assert_true(real(j, "replication") < 1.2);
	/* The first rule that matches counts. */
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "tp=2", "--layout",
		     "model/* = Replicate", "--layout", "*=Shard(0)@tp", "--json");
	assert_true(real(j, "replication") > 1.2);
	/* What no rule names was cut. */
	SHOWN_IS(CLI_WARNINGS, "-C", alpha, "plan", "latest", "--mesh", "tp=2", "--layout",
		 "model/*=Shard(0)@tp");
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "tp=2", "--layout",
	       "model/*=Shard(0)@tp", "--replicate", "tp");
	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "tp=2", "--layout",
		 "none*=Shard(0)", "--layout", "model/*=Shard(0)@dp");
}

/* --- --layout --- */

TEST(rules_are_read_from_a_file)
{
	const char *path = path_of("%s/rules.txt", top);
	json_t *j;

	spill(path, "# of our own\n\n  model/*\tReplicate@fsdp   # every rank has it\r\n"
		    "*.nothing#special  Replicate\n");
	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout", path);
	spill(path, "model/*  Replicate@fsdp   # every rank has it");
	SHOWN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout", path);
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout",
		     path, "--json");
	assert_string_equal(string(j, "layout_file"), path);
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout",
		     path, "--layout", "model/*=Replicate@fsdp", "--json");
	assert_json_has(
		j, "{'layouts':[{'text':null}, {'file':null, 'text':'model/*=Replicate@fsdp'}]}");
	assert_string_equal(string(j, "layout_file"), path);
	assert_true(real(j, "replication") > 1.2);
}

TEST(everything_wrong_in_a_layout_file_is_said_at_once)
{
	const char *path = path_of("%s/bad.txt", top);

	spill(path, "model/*\n*  Shard(0)@dp\nx y z\n# Shard\n   \nzzz* Replicate\n");
	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout", path);
	assert_string_equal(got.out, "");
}

TEST(a_layout_file_that_cannot_be_read_is_the_commands_fault)
{
	const char *path = path_of("%s/odd", top);
	FILE *f = fopen(path, "w");

	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout",
		 path_of("%s/none", top));
	RUN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout", top);
	assert_non_null(f);
	assert_int_equal(fwrite("a\0b", 1, 3, f), 3);
	assert_int_equal(fclose(f), 0);
	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout", path);
	SHOWN_IS(CLI_USAGE, "-C", alpha, "plan", "latest", "--mesh", "fsdp=2", "--layout",
		 "/dev/zero");
}

/* --- what cannot be --- */

TEST(a_checkpoint_that_lacks_elements_does_not_fit)
{
	struct subject s = { 0 };
	struct checkpoint k;
	struct table g, holes = { 0 };
	struct load_cost cost;
	struct ckpt_err err = { 0 };
	uint32_t left = 0;

	assert_int_equal(subject_find(&s, &io_ops_posix, alpha, "latest", NULL, &err), 0);
	assert_int_equal(subject_open(&s, NULL, NULL, &err), 0);
	k = *s.ckpt;
	assert_int_equal(target_make(&k.table, "fsdp=2", NULL, 0, &g, NULL, NULL, &err), 0);
	/* No reader gives such a table; a later format might. */
	for (uint32_t i = 0; i < k.table.ntensor; i++) {
		struct table_tensor x = k.table.tensor[i];

		x.layout = TABLE_NONE;
		assert_int_equal(table_add_tensor(&holes, &x, NULL, NULL), 0);
	}
	for (uint32_t i = 0; i < k.table.nplace; i++)
		assert_int_equal(table_add_place(&holes, &k.table.place[i], NULL, NULL), 0);
	for (uint32_t i = 0; i < k.table.npiece; i++)
		if (k.table.piece[i].rank != 1)
			assert_int_equal(table_add_piece(&holes, &k.table.piece[i], NULL), 0);
		else
			left++;
	assert_true(left > 1);
	assert_int_equal(table_seal(&holes, NULL), 0);
	k.table = holes;
	assert_int_equal(load_cost(&k, &g, &cost, NULL, NULL, &err), -EMEDIUMTYPE);
	assert_int_equal(cli_exit(-EMEDIUMTYPE), CLI_MISFIT);
	assert_says(err.msg, "are in no piece of the checkpoint");
	assert_null(cost.rank);
	table_free(&holes);
	table_free(&g);
	subject_close(&s);
}

/* The store has a tensor without elements, "model/nothing": what no rank holds is not unknown. */
TEST(a_tensor_without_elements_is_not_left_out_of_an_exchange)
{
	const char *file = place("empty.safetensors");

	RUN_IS(0, "-C", alpha, "convert", "latest", file, "--only", "model/nothing");
	RUN_IS(0, "plan", file, "--mesh", "x=2", "--links", "h100");
	assert_says(got.out, "nothing goes from rank to rank");
	assert_null(strstr(got.out, "does not say"));
}

TEST(an_exchange_in_which_nothing_is_sent_is_not_drawn)
{
	RUN_IS(0, "-C", alpha, "plan", "latest", "--mesh", "fsdp=4", "--links", "h100");
	assert_says(got.out, "0 streams");
	assert_null(strstr(got.out, "how busy links are"));
}

TEST(an_interrupt_ends_it)
{
	cli_stops = 1;
	cli_stop_signal = SIGINT;
	RUN_IS(CLI_INTERRUPTED, "-C", alpha, "plan", "latest", "--mesh", "fsdp=200");
	assert_string_equal(got.out, "");
	RUN_IS(CLI_INTERRUPTED, "-C", alpha, "plan", "latest", "--mesh", "fsdp=200", "--links",
	       "h100");
	cli_stops = 0;
	cli_stop_signal = 0;
	assert_string_equal(got.out, "");
	assert_string_equal(got.err, "ckptctl: stopped\n");
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
