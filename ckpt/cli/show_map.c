/* SPDX-License-Identifier: Apache-2.0 */
/*
 * show_map.c - show --map: which rank holds which elements of a tensor. Called by verb_show.c.
 * Invariant: what is drawn are the shares that the layout declares, or, without a layout, the
 * pieces; never a mixture.
 */
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/draw/map.h"
#include "ckpt/cli/show.h"
#include "ckpt/cli/picture.h"
#include "ckpt/table/shown.h"
#include "ckpt/table/operand.h"

#define LINE_BYTES 1024
#define NAME_BYTES (2 * CKPT_NAME_MAX + 64)

struct job {
	const struct checkpoint *k;
	const struct table_tensor *x;
	uint32_t id;
	const uint64_t *shape; /* as it is shown, like the sets of `in` */
	uint64_t doubled[CKPT_DIMS_MAX];
	struct arena arena;
	struct map_in *in;
	uint32_t nin;
	struct map *m;
	uint32_t nwriter; /* ranks that wrote pieces, ascending */
	uint32_t *writer;
};

/* --- which rank holds what --- */

static int take_shares(struct job *j)
{
	const struct table *t = &j->k->table;
	const struct layout *l = &t->layout[j->x->layout];
	const struct mesh *mesh = &t->mesh[l->mesh];
	uint32_t coord[CKPT_DIMS_MAX] = { 0 };
	struct indexset *set = arena_array(&j->arena, mesh->nrank, sizeof *set);
	const struct indexset *shown;
	int rc = 0;

	j->in = arena_array(&j->arena, mesh->nrank, sizeof *j->in);
	if (!set || !j->in)
		return -ENOMEM;
	for (uint32_t i = 0; i < mesh->nrank && !rc; i++) {
		rc = layout_share(mesh, l, j->x->ndim, j->x->shape, coord, &j->arena, &set[i]);
		shown = rc ? NULL : shown_set(j->x, &set[i], &j->arena);
		if (!rc && !shown)
			rc = -ENOMEM;
		j->in[j->nin++] = (struct map_in){ mesh->rank[i], shown };
		/* The next coordinate, row-major. */
		for (uint32_t d = mesh->ndim; d-- > 0 && ++coord[d] == mesh->dim[d];)
			coord[d] = 0;
	}
	return rc;
}

static int take_pieces(struct job *j)
{
	const struct table *t = &j->k->table;
	uint32_t first = t->first[j->id], n = t->first[j->id + 1] - first;

	j->in = arena_array(&j->arena, (size_t)n + 1, sizeof *j->in);
	if (!j->in)
		return -ENOMEM;
	for (uint32_t i = 0; i < n; i++) {
		const struct table_piece *p = &t->piece[first + i];

		j->in[i] = (struct map_in){ p->rank, shown_set(j->x, &p->set, &j->arena) };
		if (!j->in[i].set)
			return -ENOMEM;
	}
	j->nin = n;
	return 0;
}

static int take_writers(struct job *j)
{
	const struct table *t = &j->k->table;
	uint32_t first = t->first[j->id], end = t->first[j->id + 1];

	j->writer = arena_array(&j->arena, (size_t)(end - first) + 1, sizeof *j->writer);
	if (!j->writer)
		return -ENOMEM;
	/* Pieces stand in the order of their ranks. */
	for (uint32_t i = first; i < end; i++)
		if (!j->nwriter || j->writer[j->nwriter - 1] != t->piece[i].rank)
			j->writer[j->nwriter++] = t->piece[i].rank;
	return 0;
}

/* --- telling --- */

static void put_ranks(struct output *o, const char *key, uint32_t n, const uint32_t *rank)
{
	output_list(o, key, NULL, 0);
	for (uint32_t i = 0; i < n; i++)
		output_key(o, "rank", cell_number(rank[i]));
	output_close(o);
}

static void put_shares(struct output *o, const struct job *j)
{
	const struct map_facts *f = map_facts(j->m);

	output_list(o, "shares", NULL, 0);
	for (uint32_t i = 0; i < f->nshare && o->machine; i++) {
		output_row(o);
		put_ranks(o, "holder_ranks", f->share[i].nrank, f->share[i].rank);
		output_key(o, "elements", cell_count(f->share[i].set->numel));
		output_key(o, "index", cell_set(f->share[i].set, j->shape));
		output_close(o);
	}
	output_close(o);
}

/* What stands below the drawing. */
static char *map_caption(const struct job *j, char *buf, size_t bytes)
{
	const struct map_facts *f = map_facts(j->m);
	uint32_t world = j->k->world, pieces, known = j->x->layout != TABLE_NONE ? j->nin : world;
	uint32_t operands = operands_of(&j->k->table, j->x);
	char ranks[64], written[64] = "written once";

	if (operands > 1)
		snprintf(written, sizeof written, "each of its %u operands written once", operands);
	map_sentence(j->m, 8 * j->x->elem_bytes / dtype_values(j->x->dtype), buf, bytes);
	if (!f->numel)
		return buf;
	pieces = j->k->table.first[j->id + 1] - j->k->table.first[j->id];
	if (!j->nwriter)
		human_add(buf, bytes, "; ", "not written");
	else
		human_add(buf, bytes, "; ", "%s, in %u piece%s by %s", written, pieces,
			  pieces == 1 ? "" : "s",
			  map_ranks(j->nwriter, j->writer, ranks, sizeof ranks));
	if (known < world)
		human_add(buf, bytes, "; ", "%u of %u ranks are not in its mesh", world - known,
			  world);
	return buf;
}

static void put_map(struct cli *c, const struct subject *s, const struct job *j, const char *svg)
{
	const struct checkpoint *k = j->k;
	const struct table_tensor *x = j->x;
	const struct map_facts *f = map_facts(j->m);
	bool declared = x->layout != TABLE_NONE;
	struct output *o = c->o;
	char line[LINE_BYTES];

	subject_put(o, s->ref.path, k);
	output_object(o, "map");
	output_key(o, "component", cell_text(x->component));
	output_key(o, "name", cell_text(x->name));
	output_field(o, "dtype", "dtype", cell_text(dtype_name(x->dtype)));
	output_field(o, "shape", "shape", cell_shape(x->ndim, j->shape));
	output_field(o, "bytes", "size", cell_bytes(x->numel * x->elem_bytes));
	if (declared) {
		const struct table *t = &k->table;

		output_field(o, "layout", "layout",
			     cell_text(table_layout_print(t, x->layout, line, sizeof line)));
		output_field(o, "mesh", "mesh",
			     cell_text(mesh_print(&t->mesh[t->layout[x->layout].mesh], line,
						  sizeof line)));
	} else {
		output_field(o, "layout", "layout", cell_none());
		output_key(o, "mesh", cell_none());
	}
	output_key(o, "source", cell_text(declared ? "layout" : "pieces"));
	output_key(o, "copies_min", cell_if(f->copies_known, cell_number(f->copies_min)));
	output_key(o, "copies_max", cell_if(f->copies_known, cell_number(f->copies_max)));
	put_shares(o, j);
	put_ranks(o, "empty_ranks", f->nempty, f->empty);
	put_ranks(o, "writer_ranks", j->nwriter, j->writer);
	output_key(o, "svg", cell_word(svg));
	output_close(o);
}

static int map_document(struct cli *c, const struct subject *s, const struct job *j,
			const char *svg)
{
	char full[NAME_BYTES], line[LINE_BYTES], title[SUBJECT_TITLE];
	int rc = 0;

	output_begin(c->o, "ckptd.show/1");
	cli_say(c, STYLE_STRONG, "%s in %s", table_tensor_print(j->x, full, sizeof full),
		subject_title(j->k, s->ref.path, title));
	put_map(c, s, j, svg);
	if (!c->json) {
		cli_say(c, STYLE_PLAIN, "%s", "");
		if (map_axes(j->m, line, sizeof line)[0])
			cli_say(c, STYLE_DIM, "  %s", line);
		rc = map_print(j->m, c->out, &c->out_screen);
		if (!rc) {
			if (j->x->layout == TABLE_NONE)
				cli_say(c, STYLE_PLAIN, "%s",
					"no layout was declared: these are the pieces");
			cli_say(c, STYLE_PLAIN, "%s", map_caption(j, line, sizeof line));
			if (svg)
				cli_say(c, STYLE_PLAIN, "the picture is in %s", svg);
		}
	}
	output_end(c->o);
	return rc;
}

static int map_picture(struct cli *c, const struct job *j, const char *path, struct ckpt_err *err)
{
	char full[NAME_BYTES], where[SUBJECT_TITLE], title[NAME_BYTES + SUBJECT_TITLE],
		what[LINE_BYTES], layout[512], shape[256], words[LINE_BYTES];
	const char *line[] = { what, words, NULL };
	struct picture svg;
	int rc = picture_begin(&svg, err);

	if (rc)
		return rc;
	snprintf(title, sizeof title, "%s in %s", table_tensor_print(j->x, full, sizeof full),
		 subject_title(j->k, "this checkpoint", where));
	snprintf(what, sizeof what, "%s %s, %s, %s", dtype_name(j->x->dtype),
		 human_shape(j->x->ndim, j->shape, shape, sizeof shape),
		 BYTES_TEXT(j->x->numel * j->x->elem_bytes),
		 j->x->layout == TABLE_NONE
			 ? "no layout"
			 : table_layout_print(&j->k->table, j->x->layout, layout, sizeof layout));
	map_caption(j, words, sizeof words);
	return picture_end(&svg, map_svg(j->m, title, line, svg.out), c->ops, path, err);
}

static int map_compute(struct job *j)
{
	int rc;

	j->shape = shown_shape(j->x, j->doubled);
	rc = j->x->layout != TABLE_NONE ? take_shares(j) : take_pieces(j);
	if (!rc)
		rc = take_writers(j);
	return rc ? rc : map_make(j->x->ndim, j->shape, j->in, j->nin, &j->m);
}

int show_map(struct cli *c, const struct subject *s, uint32_t tensor, const char *svg)
{
	struct job j = { .k = s->ckpt, .x = &s->ckpt->table.tensor[tensor], .id = tensor };
	struct ckpt_err err = { 0 };
	const char *next = NULL;
	int rc = map_compute(&j);

	if (!rc && svg) {
		rc = map_picture(c, &j, svg, &err);
		next = rc ? "choose another FILE" : NULL;
	}
	if (!rc)
		rc = map_document(c, s, &j, svg);
	map_free(j.m);
	arena_free(&j.arena);
	if (rc == -E2BIG)
		ckpt_error(&err, rc, "its blocks are too many, and overlap too much, to be drawn");
	if (rc && next)
		return cli_fail(c, rc, &err, "%s", next);
	return rc ? cli_fail(c, rc, &err, NULL) : CLI_OK;
}
