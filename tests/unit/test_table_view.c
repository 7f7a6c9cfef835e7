/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_table_view.c - views on tables: every element through random views against a model that
 * counts coordinates, there and back again, names by patterns, what stays of a tensor, and what is
 * refused with which words.
 */
#include "tests/unit/test_view_model.h"
#include "ckpt/table/target.h"
#include "ckpt/table/view_parse.h"
#include "tests/lib/row.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CASES 6000
#else
#define CASES 30000
#endif

/* --- random views --- */

/* The pieces of each rank are the share that the layout says. */
static void check_layout(const struct table *t, uint32_t id)
{
	const struct table_tensor *x = &t->tensor[id];
	const struct layout *l = &t->layout[x->layout];
	cleanup_arena struct arena a = { 0 };

	assert_int_equal(layout_check(&t->mesh[l->mesh], l, x->ndim, NULL), 0);
	for (uint32_t r = 0; r < t->mesh[0].nrank; r++) {
		uint8_t held[CELLS] = { 0 };
		uint32_t coord[DIMS];
		struct table_piece whole = { .tensor = id };

		for (uint32_t i = t->first[id]; i < t->first[id + 1]; i++) {
			struct walk at = { .t = t, .p = &t->piece[i] };

			while (t->piece[i].rank == r && walk_next(&at))
				held[at.g]++;
		}
		assert_true(mesh_coord(&t->mesh[0], r, coord));
		assert_int_equal(
			layout_share(&t->mesh[0], l, x->ndim, x->shape, coord, &a, &whole.set), 0);
		for (struct walk at = { .t = t, .p = &whole }; whole.set.numel && walk_next(&at);)
			assert_int_equal(held[at.g]--, 1);
		for (uint64_t g = 0; g < x->numel; g++)
			assert_int_equal(held[g], 0);
	}
}

static void check_elements(const struct world *w, const struct model *m, const struct table *t,
			   uint32_t id)
{
	const struct table_tensor *x = &t->tensor[id];
	uint8_t seen[CELLS] = { 0 };
	uint64_t fp = 0;

	assert_int_equal(x->dtype, m->dtype);
	assert_int_equal(x->ndim, m->ndim);
	for (uint32_t d = 0; d < m->ndim; d++)
		assert_int_equal(x->shape[d], m->shape[d]);
	assert_true(x->numel <= CELLS);
	for (uint32_t i = t->first[id]; i < t->first[id + 1]; i++) {
		struct walk at = { .t = t, .p = &t->piece[i] };

		assert_int_equal(t->piece[i].place < PLACES, 1);
		while (walk_next(&at)) {
			if (load(w, &at, x->elem_bytes) != m->v[at.g])
				fail_msg("%s\n%s, element %" PRIu64, w->text, m->name, at.g);
			seen[at.g] = 1;
		}
	}
	for (uint64_t g = 0; g < x->numel; g++) {
		uint64_t v = m->v[g];

		if (!seen[g])
			fail_msg("%s\n%s: element %" PRIu64 " is lost", w->text, m->name, g);
		fp += fingerprint(&v, 1, x->elem_bytes, g);
	}
	assert_true(!x->fp || x->fp == fp);
	if (x->layout != TABLE_NONE)
		check_layout(t, id);
}

static void check_all(const struct world *w, const struct table *t)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < w->n; i++) {
		uint32_t id;

		if (w->m[i].gone)
			continue;
		id = tensor_of(t, w->m[i].name);
		if (id == TABLE_NONE)
			fail_msg("%s\nthere is no %s", w->text, w->m[i].name);
		check_elements(w, &w->m[i], t, id);
		n++;
	}
	assert_int_equal(t->ntensor, n);
}

TEST(a_view_shows_the_elements_that_a_model_by_coordinates_has)
{
	uint32_t kept = 0, lost = 0, layouts = 0;

	naive_seed(__func__);
	for (uint32_t k = 0; k < CASES; k++) {
		struct world *w = world_make();
		cleanup_table struct table t = { 0 };

		for (uint32_t n = naive_below(4) + 1; n > 0; n--)
			apply_random(w);
		view_of(&w->t, w->text, &t);
		check_all(w, &t);
		for (uint32_t i = 0; i < t.ntensor; i++) {
			kept += t.tensor[i].fp != 0;
			lost += t.tensor[i].fp == 0;
			layouts += t.tensor[i].layout != TABLE_NONE;
		}
		world_free(w);
	}
	assert_true(kept > CASES / 2 && lost > CASES / 2 && layouts > CASES);
}

TEST(a_view_of_a_view_is_the_view_of_both_and_one_undone_is_what_was)
{
	naive_seed(__func__);
	for (uint32_t k = 0; k < CASES / 3; k++) {
		struct world *w = world_make();
		uint32_t n = w->n, first;
		cleanup_table struct table a = { 0 }, b = { 0 }, c = { 0 };

		for (uint32_t i = naive_below(3); i > 0; i--)
			apply_random(w);
		first = (uint32_t)strlen(w->text);
		for (uint32_t i = naive_below(3); i > 0; i--)
			apply_random(w);
		/* Two views, the second one a view of the first. */
		view_of(&w->t, w->text, &c);
		check_all(w, &c);
		{
			char head[TEXT_BYTES];

			memcpy(head, w->text, first);
			head[first] = 0;
			view_of(&w->t, head, &a);
			view_of(&a, w->text + first, &b);
		}
		check_all(w, &b);
		assert_int_equal(b.npiece, c.npiece);
		table_free(&b);
		/* And back to what was. */
		for (uint32_t i = 0; i < w->n; i++)
			w->m[i].gone = i >= n;
		for (uint32_t i = 0; i < n; i++) {
			const struct table_tensor *x = &w->t.tensor[i];

			snprintf(w->m[i].name, sizeof w->m[i].name, "%s/%s", x->component, x->name);
			w->m[i].ndim = x->ndim;
			memcpy(w->m[i].shape, x->shape, x->ndim * sizeof *x->shape);
		}
		view_of(&c, w->back, &b);
		check_all(w, &b);
		world_free(w);
	}
}

/* --- patterns --- */

/* Recursive; stars as short as they can be, the first one first. */
static bool naive_match(const char *p, const char *s, const char *begin)
{
	if (!*p)
		return !*s;
	if (*p == '*') {
		for (;; s++) {
			if (naive_match(p + 1, s, begin))
				return true;
			if (!*s)
				return false;
		}
	}
	if (*p == '#') {
		if (!(*s >= '0' && *s <= '9') || (s > begin && s[-1] >= '0' && s[-1] <= '9'))
			return false;
		while (*s >= '0' && *s <= '9')
			s++;
		return naive_match(p + 1, s, begin);
	}
	return *s && (*p == '?' || *p == *s) && naive_match(p + 1, s + 1, begin);
}

TEST(patterns_match_as_a_recursive_matcher_says_and_stars_fill_the_gaps)
{
	uint32_t hits = 0;

	naive_seed(__func__);
	for (uint32_t k = 0; k < 10 * CASES; k++) {
		char p[10] = "", s[12] = "", back[64] = "";
		bool number = false;
		struct view_match m;
		uint32_t star = 0;

		for (uint32_t i = naive_below(8); i > 0; i--) {
			char c = "ab1**?#."[naive_below(number ? 6 : 8)];

			number = number || c == '#';
			p[strlen(p)] = c;
		}
		for (uint32_t i = naive_below(10); i > 0; i--)
			s[strlen(s)] = "ab12."[naive_below(5)];
		if (view_match(p, s, &m) != naive_match(p, s, s))
			fail_msg("%s, %s", p, s);
		if (!naive_match(p, s, s))
			continue;
		hits++;
		/* What the stars took, put where they were, is the name again. */
		for (const char *q = p, *at = s; *q; q++) {
			size_t n = 1;

			if (*q == '*') {
				assert_ptr_equal(m.star[star].at, at);
				n = m.star[star++].len;
			} else if (*q == '#') {
				n = strspn(at, "0123456789");
				assert_int_equal(m.number, strtoull(at, NULL, 10));
			}
			strncat(back, at, n);
			at += n;
		}
		assert_string_equal(back, s);
	}
	assert_true(hits > CASES / 2);
}

/* --- by example --- */

struct given {
	const char *component, *name, *of;
	uint32_t dtype, role;
	const char *placements;
	uint32_t ndim;
	uint64_t shape[3];
	uint32_t rank; /* blobs: + 1 */
};

/* Tensors without pieces. */
static void table_of(const struct given *g, uint32_t n, struct table *t)
{
	cleanup_arena struct arena a = { 0 };
	struct mesh m;
	struct layout l;

	*t = (struct table){ 0 };
	assert_int_equal(mesh_parse("fsdp=2,tp=2", &a, &m, NULL), 0);
	assert_int_equal(table_add_mesh(t, &m, NULL, NULL), 0);
	for (uint32_t i = 0; i < n; i++) {
		struct table_tensor x =
			ROW(.component = g[i].component, .name = g[i].name, .of = g[i].of,
			    .dtype = g[i].dtype ? g[i].dtype : CKPT_BF16, .role = g[i].role,
			    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = g[i].ndim,
			    .shape = g[i].shape, .fp = 100 + i, .fp_known = true);

		if (g[i].placements) {
			assert_int_equal(layout_parse(g[i].placements, &m, &a, &l, NULL), 0);
			assert_int_equal(table_add_layout(t, &l, &x.layout, NULL), 0);
		}
		if (g[i].rank) {
			x.rank = g[i].rank - 1;
			x.flags = TENSOR_BLOB;
		}
		assert_int_equal(table_add_tensor(t, &x, NULL, NULL), 0);
	}
	assert_int_equal(table_seal(t, NULL), 0);
}

/* "name shape placements fp of" of each tensor, a line each. */
static const char *list_of(const struct table *t)
{
	static char buf[4096];
	char text[256];
	size_t n = 0;

	buf[0] = 0;
	for (uint32_t i = 0; i < t->ntensor; i++) {
		const struct table_tensor *x = &t->tensor[i];

		n += (size_t)snprintf(buf + n, sizeof buf - n, "%s [",
				      table_tensor_print(x, text, sizeof text));
		for (uint32_t d = 0; d < x->ndim; d++)
			n += (size_t)snprintf(buf + n, sizeof buf - n, "%s%" PRIu64, d ? "," : "",
					      x->shape[d]);
		n += (size_t)snprintf(buf + n, sizeof buf - n, "] %s %" PRIu64 " %s\n",
				      table_layout_print(t, x->layout, text, sizeof text), x->fp,
				      x->of);
	}
	return buf;
}

static void becomes(const struct given *g, uint32_t n, const char *rules, const char *want)
{
	cleanup_table struct table t = { 0 }, y = { 0 };

	table_of(g, n, &t);
	view_of(&t, rules, &y);
	assert_string_equal(list_of(&y), want);
}

TEST(what_still_says_what_the_pieces_are_stays)
{
	static const struct given g[] = {
		ROW(.component = "model", .name = "w", .role = CKPT_PARAM,
		    .placements = "Shard(0)@fsdp, Replicate@tp", .ndim = 2, .shape = { 6, 4 }),
		ROW(.component = "optim", .name = "w.m", .of = "model/w", .role = CKPT_MOMENT1,
		    .placements = "Shard(0)@fsdp, Partial(sum, keep)@tp", .ndim = 2,
		    .shape = { 6, 1 }),
	};

	becomes(g, 2, "",
		"model/w [6,4] Shard(0)@fsdp, Replicate@tp 100 \n"
		"optim/w.m [6,1] Shard(0)@fsdp, Partial(sum, keep)@tp 101 model/w\n");
	becomes(g, 2, "rename model/w -> net/layer.w",
		"net/layer.w [6,4] Shard(0)@fsdp, Replicate@tp 100 \n"
		"optim/w.m [6,1] Shard(0)@fsdp, Partial(sum, keep)@tp 101 net/layer.w\n");
	becomes(g, 2, "transpose */w* dims 1,0",
		"model/w [4,6] Shard(1)@fsdp, Replicate@tp 0 \n"
		"optim/w.m [1,6] Shard(1)@fsdp, Partial(sum, keep)@tp 101 model/w\n");
	becomes(g, 1, "split model/w dim 1 -> model/a model/b",
		"model/a [6,2] Shard(0)@fsdp, Replicate@tp 0 \n"
		"model/b [6,2] Shard(0)@fsdp, Replicate@tp 0 \n");
	becomes(g, 1, "split model/w dim 0 sizes 4,2 -> model/w.#",
		"model/w.0 [4,4] - 0 \nmodel/w.1 [2,4] - 0 \n");
	/* Without its PARTIAL an operand would be taken for the tensor. */
	becomes(g + 1, 1, "split optim/* dim 0 -> optim/{1}.a optim/{1}.b",
		"optim/w.m.a [3,1] Partial(sum, keep)@tp, Replicate@fsdp 0 \n"
		"optim/w.m.b [3,1] Partial(sum, keep)@tp, Replicate@fsdp 0 \n");
	becomes(g + 1, 1, "split optim/* dim 0 -> one",
		"one [6,1] Partial(sum, keep)@tp, Replicate@fsdp 100 \n");
	becomes(g, 1, "unstack model/w dim -1 -> model/w.#\nstack model/w.# dim 0 -> model/w",
		"model/w [4,6] Shard(1)@fsdp, Replicate@tp 0 \n");
}

TEST(a_reshape_keeps_fingerprints_and_layouts_that_are_still_true)
{
	static const struct given g[] = {
		ROW(.component = "model", .name = "w", .role = CKPT_PARAM,
		    .placements = "Shard(0)@fsdp, Replicate@tp", .ndim = 2, .shape = { 6, 4 }),
		ROW(.component = "optim", .name = "w.m", .of = "model/w", .role = CKPT_MOMENT1,
		    .placements = "Shard(0)@fsdp, Partial(sum, keep)@tp", .ndim = 2,
		    .shape = { 6, 1 }),
		{ .component = "", .name = "step", .ndim = 0 },
		{ .component = "", .name = "none", .ndim = 2, .shape = { 0, 4 } },
		ROW(.component = "m", .name = "q", .ndim = 2, .shape = { 6, 4 }, .dtype = CKPT_F4,
		    .placements = "Shard(0)@fsdp, Replicate@tp"),
	};

	/* Equal blocks of the first of several dimensions: three are not cut in two. */
	becomes(g, 1, "reshape model/w 2,3,-1",
		"model/w [2,3,4] Shard(0)@fsdp, Replicate@tp 100 \n");
	becomes(g, 1, "reshape model/w 3,2,4", "model/w [3,2,4] - 100 \n");
	becomes(g, 1, "reshape model/w -1", "model/w [24] Shard(0)@fsdp, Replicate@tp 100 \n");
	becomes(g, 1, "reshape model/w 6,1,2,2",
		"model/w [6,1,2,2] Shard(0)@fsdp, Replicate@tp 100 \n");
	becomes(g, 1, "transpose model/w dims 1,0\nreshape model/w 2,-1", "model/w [2,12] - 0 \n");
	/* What the pieces are stays said. */
	becomes(g + 1, 1, "reshape optim/* 1,3,2",
		"optim/w.m [1,3,2] Partial(sum, keep)@tp, Replicate@fsdp 100 model/w\n");
	becomes(g + 2, 2, "reshape step 1,1\nreshape none 7,0,2\n",
		"step [1,1] - 100 \nnone [7,0,2] - 101 \n");
	becomes(g + 2, 1, "reshape step -1\nreshape step scalar\n", "step [] - 100 \n");
	becomes(g + 4, 1, "reshape m/q 3,-1", "m/q [3,8] - 100 \n");
	becomes(g + 4, 1, "reshape m/q 6,2,4", "m/q [6,2,2] Shard(0)@fsdp, Replicate@tp 100 \n");
}

/* "name dtype line" of each tensor that is cast. */
static void casts_to(const struct given *g, uint32_t n, const char *rules, const char *want)
{
	cleanup_table struct table t = { 0 }, y = { 0 };
	cleanup_arena struct arena a = { 0 };
	const struct view_cast *cast;
	struct ckpt_err err = { 0 };
	struct view v;
	char got[1024] = "";

	table_of(g, n, &t);
	assert_ok_err(view_parse(rules, "v", &a, &v, &err), &err);
	assert_ok_err(view_make(&t, &v, &y, &cast, &err), &err);
	for (uint32_t i = 0; i < y.ntensor; i++)
		if (cast[i].dtype)
			snprintf(got + strlen(got), sizeof got - strlen(got), "%s %s %s\n",
				 y.tensor[i].name, dtype_name(cast[i].dtype), cast[i].where);
	assert_string_equal(got, want);
	/* The bytes of the checkpoint are what they were. */
	for (uint32_t i = 0; i < y.ntensor; i++)
		if (!strcmp(y.tensor[i].name, "a"))
			assert_int_equal(y.tensor[i].dtype, CKPT_F32);
}

TEST(a_cast_follows_a_tensor_and_the_last_one_counts)
{
	static const struct given g[] = {
		ROW(.component = "m", .name = "a", .dtype = CKPT_F32, .ndim = 2, .shape = { 6, 4 }),
		ROW(.component = "m", .name = "b", .dtype = CKPT_F32, .ndim = 2, .shape = { 6, 4 }),
		ROW(.component = "m", .name = "ids", .dtype = CKPT_I64, .ndim = 1, .shape = { 3 }),
		ROW(.component = "m", .name = "f8", .dtype = CKPT_F8_E4M3, .ndim = 1,
		    .shape = { 3 }),
		ROW(.component = "m", .name = "rng", .ndim = 1, .shape = { 4 }, .dtype = CKPT_U8,
		    .rank = 1),
	};

	casts_to(g, 3, "cast m/* BF16", "a BF16 v:1\nb BF16 v:1\n");
	casts_to(g, 3, "cast m/* BF16\ncast m/b F32", "a BF16 v:1\nb F32 v:2\n");
	casts_to(g, 3, "cast m/* F16\ncast m/* F64", "a F64 v:2\nb F64 v:2\n");
	casts_to(g, 5, "cast m/* F64\ncast m/f8 F8_E4M3", "a F64 v:1\nb F64 v:1\nf8 F8_E4M3 v:2\n");
	casts_to(g, 4, "cast m/* F64\ndrop m/f8\ndrop m/a", "b F64 v:1\n");
	casts_to(g, 3,
		 "cast m/a BF16\ncopy m/a -> m/c\nrename m/a -> m/d\nreshape m/c 2,-1\n"
		 "split m/d dim 0 -> m/e m/f\nstack m/e m/f dim 0 -> m/g",
		 "c BF16 v:1\ng BF16 v:1\n");
}

TEST(the_experts_of_every_layer_are_stacked_in_the_order_of_their_numbers)
{
	struct given g[26];
	char name[26][32];
	cleanup_table struct table t = { 0 }, y = { 0 };

	for (uint32_t i = 0; i < 26; i++) {
		snprintf(name[i], sizeof name[i], "l%u.e.%u.up", i % 2, (i / 2 * 5) % 13);
		g[i] = (struct given){
			.component = "model", .name = name[i], .ndim = 2, .shape = { 3, 2 }
		};
	}
	becomes(g, 26, "stack model/l*.e.#.up dim 0 -> model/l{1}.up",
		"model/l0.up [13,3,2] - 0 \nmodel/l1.up [13,3,2] - 0 \n");
	becomes(g, 26, "concat model/l*.e.#.up dim 1 -> model/l{1}.up # side by side",
		"model/l0.up [3,26] - 0 \nmodel/l1.up [3,26] - 0 \n");
	table_of(g, 26, &t);
	view_of(&t,
		"stack model/l*.e.#.up dim 0 -> model/l{1}.up\n"
		"unstack model/l*.up dim 0 -> model/l{1}.e.#.up",
		&y);
	assert_int_equal(y.ntensor, 26);
	for (uint32_t i = 0; i < 26; i++)
		assert_int_not_equal(table_find(&y, "model", name[i], TABLE_NONE), TABLE_NONE);
}

TEST(names_with_anything_in_them_can_be_said)
{
	static const struct given g[] = {
		{ .component = "", .name = "a b*#{1}\\->" },
		{ .component = "", .name = "x/y" },
		{ .component = "a", .name = "b/c" },
		ROW(.component = "blob", .name = "rng", .ndim = 1, .shape = { 3 }, .dtype = CKPT_U8,
		    .rank = 1),
		ROW(.component = "blob", .name = "rng", .ndim = 1, .shape = { 4 }, .dtype = CKPT_U8,
		    .rank = 2),
	};

	becomes(g, 5,
		"rename a\\ b\\*\\#\\{1}\\\\-> -> \\#dim\n"
		"\t# comments, \n\n rename /x/y -> dim  # and more\n"
		"rename a/b/c -> a/b/d\n rename blob/* -> state/{1}.{1}",
		"#dim [] - 100 \ndim [] - 101 \na/b/d [] - 102 \n"
		"state/rng.rng of rank 0 [3] - 103 \nstate/rng.rng of rank 1 [4] - 104 \n");
	becomes(g + 2, 1, "rename a/b/c -> e/f/g", "e/f/g [] - 100 \n");
	/* Names move up one place, and change places. */
	becomes(g + 1, 2, "rename /x/y -> t\nrename a/b/c -> /x/y\nrename t -> a/b/c",
		"a/b/c [] - 100 \nx/y [] - 101 \n");
}

/* The rules of docs/LAYOUTS.md: what begins with four blanks behind "## Views". */
TEST(the_rules_in_the_documentation_can_be_read)
{
	char path[512], line[512], text[TEXT_BYTES] = "";
	char here[] = __FILE__;
	struct ckpt_err err = { 0 };
	cleanup_arena struct arena a = { 0 };
	bool views = false;
	struct view v;
	FILE *f;

	*strrchr(here, '/') = '\0';
	snprintf(path, sizeof path, "%s/../../docs/LAYOUTS.md", here);
	f = fopen(path, "re");
	if (!f)
		fail_msg("%s: %s (run from the root of the tree)", path, strerror(errno));
	while (fgets(line, sizeof line, f)) {
		views = views || !strncmp(line, "## Views", 8);
		if (views && !strncmp(line, "    ", 4))
			say(text, "%s", line);
	}
	fclose(f);
	if (view_parse(text, path, &a, &v, &err))
		fail_msg("%s", err.msg);
	assert_int_equal(v.nrule, 13);
}

/* --- what is refused --- */

static void reads_not(const char *text, const char *why)
{
	cleanup_arena struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct view v;

	if (view_parse(text, "v.txt", &a, &v, &err) != -EINVAL || !strstr(err.msg, why))
		fail_msg("\"%s\": want \"%s\", got \"%s\"", text, why, err.msg);
	assert_int_equal(v.nrule, 0);
}

TEST(a_line_that_cannot_be_read_is_named_with_the_character_and_what_to_write)
{
	reads_not("\n  renam a -> b",
		  "v.txt:2: character 3: \"renam\" is not a rule; write rename");
	reads_not("rename", "v.txt:1: character 7: a name is missing; write rename NAME -> NEW");
	reads_not("rename a b -> c", "character 10: rename takes one name");
	reads_not("rename a", "character 9: expected \"->\"");
	reads_not("rename a ->", "character 12: expected a new name");
	reads_not("drop", "character 5: a name is missing; write drop NAME");
	reads_not("drop a -> b", "character 8: expected the end of the line: drop NAME");
	reads_not("drop a b", "character 8: drop takes one name");
	reads_not("copy a", "character 7: expected \"->\": copy NAME -> NEW");
	reads_not("copy a -> b c", "character 13: copy makes one tensor");
	reads_not("rename a -> b c", "character 15: rename makes one tensor");
	reads_not("rename a.* -> b.{2}", "character 17: {2}, but the first name has 1 '*'");
	reads_not("rename a.* -> b.{x}", "character 17: expected {1}, {2}, ..");
	reads_not("rename a.* -> b.*", "character 17: only the first name is a pattern");
	reads_not("rename a.# -> b", "character 8: '#' is for the parts of concat and stack");
	reads_not("rename a{1} -> b", "character 9: {1} has nothing before it");
	reads_not("rename a -> b.#", "'#' numbers the parts of split and unstack");
	reads_not("rename a\\", "character 9: nothing follows the backslash");
	reads_not("rename ***************** -> b", "more than 16 '*'");
	reads_not("transpose a 1,0", "transpose takes one name");
	reads_not("transpose a -> b", "expected \"dims\"");
	reads_not("transpose a dims 1,,0", "character 20: expected a number; write dims 1,0");
	reads_not("transpose a dims", "character 17: expected a number");
	reads_not("transpose a dims 1,0 2", "expected \"->\"");
	reads_not("transpose a dims 1,1", "each dimension may appear once");
	reads_not("transpose a dims 1,2", "each dimension may appear once");
	reads_not("split a -> b c", "character 9: expected \"dim\": split NAME dim 0");
	reads_not("split a dim x -> b c", "character 13: which dimension? write 0");
	reads_not("split a dim -17 -> b", "which dimension?");
	reads_not("split a dim", "character 12: which dimension?");
	reads_not("split a dim - -> b", "which dimension?");
	reads_not("split a dim 0 sizes 1,2 -> b", "2 sizes, but 1 names");
	reads_not("split a dim 0 sizes 1,0 -> b c", "size 2 of these is 0");
	reads_not("split a dim 0 sizes 99999999999999999999 -> b", "no tensor is so large");
	reads_not("split a dim 0 -> b.#", "the number of parts is missing; write sizes");
	reads_not("split a dim 0 sizes 1,2 -> b.# c", "a name with '#' must be the only name");
	reads_not("concat a.# b dim 0 -> c", "character 12: a name with '#' must be the only name");
	reads_not("concat a b.# dim 0 -> c", "a '#' among several names");
	reads_not("concat a.#.# dim 0 -> c", "a second '#'");
	reads_not("reshape a", "character 10: expected a number; write a shape, as in 32,-1,128");
	reads_not("reshape a 2,,3", "character 13: expected a number");
	reads_not("reshape a 2,-3", "character 13: expected a number");
	reads_not("reshape a -1,2,-1", "character 11: only one size may be -1");
	reads_not("reshape a -12", "character 13: expected a ',' or a blank");
	reads_not("reshape a 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "at most 16 dimensions");
	reads_not("reshape a 2 -> b", "character 13: expected the end of the line: reshape NAME");
	reads_not("reshape a b 2", "character 11: expected a number");
	reads_not("cast", "character 5: a name is missing; write cast NAME BF16");
	reads_not("cast a", "character 7: expected a dtype: F32, BF16, F16 or F64");
	reads_not("cast a bfloat16", "character 8: expected a dtype");
	reads_not("cast a BF16 F32", "character 13: expected the end of the line: cast NAME BF16");
	reads_not("cast a.# BF16", "'#' is for the parts of concat and stack");
	reads_not("renam a\nrename b\n", "v.txt:2: character 9");
}

static void follows_not(const struct given *g, uint32_t n, const char *text, const char *why)
{
	cleanup_arena struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	cleanup_table struct table t = { 0 };
	const struct view_cast *cast;
	struct table y;
	struct view v;
	int rc;

	table_of(g, n, &t);
	if (view_parse(text, "v.txt", &a, &v, &err))
		fail_msg("%s", err.msg);
	rc = view_make(&t, &v, &y, &cast, &err);
	if (rc != -EINVAL || !strstr(err.msg, why))
		fail_msg("\"%s\": want \"%s\", got %d \"%s\"", text, why, rc, err.msg);
	assert_int_equal(y.ntensor, 0);
}

TEST(a_rule_that_cannot_be_followed_names_every_tensor_and_why)
{
	static const struct given g[] = {
		{ .component = "m", .name = "a", .ndim = 2, .shape = { 6, 4 } },
		{ .component = "m", .name = "b", .ndim = 2, .shape = { 6, 3 } },
		{ .component = "m", .name = "c", .ndim = 1, .shape = { 6 } },
		{ .component = "m", .name = "d", .ndim = 2, .shape = { 6, 4 }, .dtype = CKPT_F32 },
		{ .component = "m", .name = "e.0", .ndim = 2, .shape = { 6, 4 } },
		{ .component = "m", .name = "e.2", .ndim = 2, .shape = { 6, 4 } },
		{ .component = "m", .name = "e.02", .ndim = 2, .shape = { 6, 4 } },
		ROW(.component = "m", .name = "p", .ndim = 2, .shape = { 6, 4 },
		    .placements = "Partial(sum, keep)@tp"),
		ROW(.component = "m", .name = "moment", .ndim = 2, .shape = { 6, 4 },
		    .role = CKPT_MOMENT1),
		ROW(.component = "m", .name = "rng", .ndim = 1, .shape = { 4 }, .dtype = CKPT_U8,
		    .rank = 1),
		{ .component = "m", .name = "z", .ndim = 2, .shape = { 6, 0 } },
	};
	static const struct given packed[] = {
		ROW(.component = "m", .name = "q", .ndim = 2, .shape = { 6, 4 }, .dtype = CKPT_F4,
		    .placements = "Shard(0)@fsdp, Replicate@tp"),
		ROW(.component = "m", .name = "r", .ndim = 2, .shape = { 6, 4 }, .dtype = CKPT_F4,
		    .placements = "Shard(0)@fsdp, Replicate@tp"),
	};
	const uint32_t n = ARRAY_LEN(g);

	/* Two values of the last dimension are a byte: rules count values, and cut none of them. */
	follows_not(packed, 2, "transpose m/q dims 1,0", "m/q is F4, of which a byte is 2 values");
	follows_not(packed, 2, "stack m/q m/r dim -1 -> m/x", "that one must stay the last");
	follows_not(packed, 2, "unstack m/q dim 1 -> m/x.#", "that one must stay the last");
	follows_not(packed, 2, "split m/q dim 1 sizes 3,5 -> m/x m/y",
		    "size 3 of dim 1 ends inside of a byte of 2 values; F4 needs multiples of 2");
	follows_not(packed, 2, "split m/q dim 1 sizes 2,2 -> m/x m/y",
		    "m/q has 8 indices in dim 1, the sizes are 4 together");
	follows_not(packed, 2, "split m/q dim 1 -> m/1 m/2 m/3 m/4 m/5 m/6 m/7 m/8",
		    "8 equal parts of dim 1 would end inside of a byte");
	becomes(packed, 2, "split m/q dim 1 sizes 6,2 -> m/x m/y",
		"m/r [6,4] Shard(0)@fsdp, Replicate@tp 101 \n"
		"m/x [6,3] Shard(0)@fsdp, Replicate@tp 0 \n"
		"m/y [6,1] Shard(0)@fsdp, Replicate@tp 0 \n");
	becomes(packed, 2, "stack m/q m/r dim 1 -> m/x",
		"m/x [6,2,4] Shard(0)@fsdp, Replicate@tp 0 \n");
	becomes(packed, 2, "concat m/q m/r dim 1 -> m/x",
		"m/x [6,8] Shard(0)@fsdp, Replicate@tp 0 \n");

	follows_not(packed, 2, "reshape m/q 2,3,8,1",
		    "its last size in 2,3,8,1 must be a multiple");
	follows_not(packed, 2, "reshape m/q 4,11", "m/q has 48 elements (6,8), 4,11 has 44");
	follows_not(g, n, "\nreshape m/a 5,5", "v.txt:2: m/a has 24 elements (6,4), 5,5 has 25");
	follows_not(g, n, "reshape m/? scalar", "m/c has 6 elements (6), scalar has 1");
	follows_not(g, n, "reshape m/a 5,-1", "of which -1 in 5,-1 cannot make a whole number");
	follows_not(g, n, "reshape m/z 0,-1", "of which -1 in 0,-1 cannot make one size: write it");
	follows_not(g, n, "reshape m/a 4294967296,4294967296,4294967296", "m/a has 24 elements");
	follows_not(g, n, "reshape m/rng 2,2", "matches blobs only");
	follows_not(g, n, "reshape m/none 2,2", "no tensor matches \"m/none\"");
	follows_not(g, n, "cast m/rng BF16", "matches blobs only");
	follows_not(g, n, "cast m/none BF16", "no tensor matches");
	follows_not(g, n, "cast m/a I32", "v.txt:1: m/a is BF16, which cannot become I32");
	follows_not(packed, 2, "drop m/r\ncast m/* BF16\n",
		    "v.txt:2: m/q is F4, which cannot become BF16: F16, BF16, F32 and F64 are cast "
		    "to one another; a later rule \"cast NAME F4\" keeps it");
	follows_not(g, n, "cast m/a F32\nconcat m/a m/e.0 dim 0 -> m/x",
		    "m/a and m/e.0 are cast otherwise: cast what they are joined to");
	follows_not(g, n, "cast m/a F32\nconcat m/a m/d dim 0 -> m/x",
		    "m/a and m/d have different dtypes: what is joined lies in one dtype in the "
		    "checkpoint, and casts come behind");

	follows_not(g, n, "# x\nrename m/x* -> m/y", "v.txt:2: no tensor matches \"m/x*\"");
	follows_not(g, n, "rename m/a -> m/b", "v.txt:1: there is already a tensor called m/b");
	follows_not(g, n, "rename m/? -> m/one", "there is already a tensor called m/one");
	follows_not(g, n, "rename m/a -> m/", "\"m/\" has no name after its component");
	follows_not(g, n, "transpose m/? dims 1,0", "m/c has 1 dimensions, the rule has 2");
	follows_not(g, n, "split m/? dim 1 sizes 2,2 -> m/x m/y",
		    "m/b has 3 indices in dim 1, the sizes are 4 together");
	follows_not(g, n, "split m/? dim 1 sizes 2,2 -> m/x m/y",
		    "m/c has 1 dimensions, and so no dim 1");
	follows_not(g, n, "split m/b dim 1 -> m/x m/y", "3 indices in dim 1 are not 2 equal parts");
	follows_not(g, n, "split m/a dim 1 -> m/b m/y", "there is already a tensor called m/b");
	follows_not(g, n, "split m/rng dim 0 -> m/x m/y", "matches blobs only");
	follows_not(g, n, "unstack m/a dim 1 -> m/x m/y",
		    "has 4 indices in dim 1, but there are 2");
	follows_not(g, n, "unstack m/z dim 1 -> m/x.#", "1 to 65536 parts are possible");
	follows_not(g, n, "concat m/a m/b dim 0 -> m/x", "m/a and m/b have shapes that do not fit");
	follows_not(g, n, "stack m/a m/b dim 0 -> m/x", "m/a and m/b have shapes that do not fit");
	follows_not(g, n, "concat m/a m/b m/d dim 0 -> m/x", "m/a and m/d have different dtypes");
	follows_not(g, n, "concat m/a m/moment dim 0 -> m/x", "different roles or classes");
	follows_not(g, n, "concat m/a m/p dim 0 -> m/x", "have pending reductions");
	follows_not(g, n, "concat m/a m/q m/r dim 0 -> m/x", "there is no tensor m/r");
	follows_not(g, n, "concat m/a m/a dim 0 -> m/x", "m/a is a part twice");
	follows_not(g, n, "concat m/* m/b dim 0 -> m/{1}x", "m/b is a part twice");
	follows_not(g, n, "concat m/a m/b dim 2 -> m/x", "m/a has 2 dimensions, and so no dim 2");
	follows_not(g, n, "concat m/e.# dim 0 -> m/e", "m/e: number 1 of its parts is missing");
	follows_not(g + 5, 2,
		    "rename m/e.2 -> m/e.0\nrename m/e.02 -> m/e.00\n"
		    "stack m/e.# dim 0 -> m/e",
		    "v.txt:3: m/e: number 0 of its parts is there twice");
}
