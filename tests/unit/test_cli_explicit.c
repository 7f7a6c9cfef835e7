/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_explicit.c - --explicit, --allow and --explain of plan, convert and export: what nobody
 * asked for is refused, all of it, before anything is written; what was asked for is not.
 */
#include "tests/lib/cli_rig.h"
#include "ckpt/cli/explicit_option.h"
#include "ckpt/cli/subject.h"
#include <math.h>

#define alpha path_of("%s/alpha", work)
#define DST path_of("%s/made", top)

/* --- refused --- */

TEST(a_checkpoint_on_its_own_mesh_needs_no_change)
{
	RUN_IS(0, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=4", "--explicit");
	assert_true(exists(DST));
	RUN_IS(0, "-C", DST, "plan", DST, "--mesh", "fsdp=4", "--explicit");
	RUN_IS(0, "-C", path_of("%s/beta", work), "plan", "--mesh", "dp=2,fsdp=2", "--explicit");
	remove_tree(DST);
}

TEST(what_nobody_asked_for_is_listed_and_nothing_is_written)
{
	SHOWN_IS(CLI_MISFIT, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3",
		 "--explicit");
	assert_false(exists(DST));
	RUN_IS(CLI_MISFIT, "-C", alpha, "export", "latest", DST, "--mesh", "fsdp=3", "--explicit");
	RUN_IS(CLI_MISFIT, "-C", alpha, "export", "latest", DST, "--mesh", "fsdp=3", "--rank", "1",
	       "--explicit");
	RUN_IS(CLI_MISFIT, "-C", alpha, "export", "latest", path_of("%s.safetensors", DST),
	       "--only", "model", "--drop-unsupported", "--explicit");
	assert_false(exists(DST));
	RUN_IS(CLI_MISFIT, "-C", alpha, "plan", "--mesh", "fsdp=3", "--explicit", "--json");
	assert_json_error(CLI_MISFIT);
	assert_says(got.err,
		    "model/embed.weight: reshard, Shard(0)@fsdp on fsdp=4 -> Shard(0)@fsdp "
		    "on fsdp=3: ");
	assert_says(got.err, "blob/rng of rank 3: reshard, blob of one rank");
	RUN_IS(0, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3", "--explicit",
	       "--allow", "reshard");
	assert_true(exists(DST));
	remove_tree(DST);
}

/* Copies over a new dimension are listed instead of refused by themselves (3). */
TEST(copies_are_listed_with_all_the_rest_unless_their_dimension_is_named)
{
	SHOWN_IS(CLI_MISFIT, "-C", alpha, "plan", "--mesh", "dp=2,fsdp=2", "--explicit");
	RUN_IS(CLI_MISFIT, "-C", alpha, "plan", "--mesh", "dp=2,fsdp=4", "--explicit", "--allow",
	       "reshard");
	RUN_IS(0, "-C", alpha, "plan", "--mesh", "dp=2,fsdp=4", "--explicit", "--allow", "reshard",
	       "--allow", "replicate");
	RUN_IS(0, "-C", alpha, "plan", "--mesh", "dp=2,fsdp=4", "--explicit", "--replicate", "dp",
	       "--allow", "reshard");
}

TEST(a_rule_asks_for_what_it_does_to_the_tensors_that_it_matches)
{
	RUN_IS(CLI_MISFIT, "-C", alpha, "plan", "--mesh", "fsdp=4", "--explicit", "--layout",
	       "model/rope.table=Shard(1)@fsdp", "--layout", "model/norm.weight=Shard(1)@fsdp",
	       "--layout", "model/mask=Shard(1)@fsdp");
	/* rope.table is cut as the rule says, norm.weight stays complete, and the mask, which has
	 * no dimension 1, would be copied. */
	assert_null(strstr(got.err, "rope"));
	assert_null(strstr(got.err, "norm"));
	assert_says(got.err, "model/mask: replicate");
	assert_null(strstr(got.err, "model/mask: reshard"));
	assert_says(got.err, "1 change of 1 tensor, which nobody asked for");
}

TEST(casts_and_what_is_left_out_are_asked_for_by_their_options)
{
	/* 3: some elements become infinite */
	RUN_IS(CLI_WARNINGS, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=4",
	       "--explicit", "--only", "optim/*", "--dtype", "BF16");
	assert_true(exists(DST));
	remove_tree(DST);
}

TEST(a_tensor_without_placements_is_cut_by_default)
{
	const char *file = place("whole.safetensors");

	RUN_IS(0, "-C", alpha, "convert", "latest", file, "--only", "optim/*");
	SHOWN_IS(CLI_MISFIT, "convert", file, DST, "--mesh", "x=2", "--explicit");
	assert_false(exists(DST));
	RUN_IS(0, "convert", file, DST, "--mesh", "x=2", "--explicit", "--layout", "*=Shard(0)@x",
	       "--replicate", "x");
	remove_tree(DST);
	RUN_IS(0, "convert", file, DST, "--mesh", "x=1", "--explicit");
	remove_tree(DST);
	RUN_IS(CLI_MISFIT, "convert", file, DST, "--mesh", "x=64", "--explicit", "--allow", "cut");
	assert_says(got.err, ": replicate, no placements, 1 piece -> ");
	RUN_IS(0, "convert", file, DST, "--mesh", "x=2", "--explicit", "--allow", "replicate,cut");
	remove_tree(DST);
}

/* What a view makes of a tensor is asked for; how the parts are cut is not. */
TEST(a_view_asks_for_its_drops_and_casts_and_for_no_default_cut)
{
	const char *view = place("names.txt");

	spill(view, "drop model/mask\n"
		    "cast model/norm.weight F32\n"
		    "rename model/embed.weight -> model/wte\n"
		    "transpose model/spectrum dims 1,0\n"
		    "split model/layers.2.wo dim 0 sizes 40,35 -> model/a model/b\n");
	RUN_IS(CLI_MISFIT, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=4", "--explicit",
	       "--view", view);
	assert_says(got.err, "model/a: cut, no placements, ");
	assert_says(got.err, "model/b: cut, no placements, ");
	assert_says(got.err, "2 changes of 2 tensors");
	RUN_IS(0, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=4", "--explicit", "--view",
	       view, "--layout", "model/[ab]=Shard(0)@fsdp");
	assert_true(exists(DST));
	remove_tree(DST);
}

/* What is left out because it is damaged was allowed by --keep-going. */
TEST(damaged_tensors_that_are_left_out_are_asked_for)
{
	const char *step = place("sick");

	copy_step(step_path(alpha, 30), step);
	flip(part(step, 0), 300000);
	RUN_IS(CLI_WARNINGS, "export", step, DST, "--mesh", "fsdp=4", "--keep-going",
	       "--drop-unsupported", "--explicit");
	assert_says(got.err, "tensors are damaged and were left out");
	assert_true(exists(DST));
	remove_tree(DST);
	remove_tree(step);
}

TEST(what_allow_does_not_know_is_an_error)
{
	RUN_IS(CLI_USAGE, "-C", alpha, "plan", "--mesh", "fsdp=3", "--explicit", "--allow",
	       "reshape,cut,casts");
	assert_says(got.err,
		    "there is no \"reshape\", \"casts\"; the kinds are reshard, cast, reduce, "
		    "replicate, drop, cut");
	RUN_IS(CLI_USAGE, "-C", alpha, "plan", "--mesh", "fsdp=3", "--allow", "cut");
	assert_says(got.err, "without --explicit everything is allowed");
	/* What is wrong with other options is an error of the command line, too, and comes
	 * first. */
	RUN_IS(CLI_USAGE, "-C", alpha, "plan", "--mesh", "fsdp=3", "--explicit", "--links",
	       "nowhere");
}

/* --- the oracle: what lies where, before and after --- */

static bool piece_there(const struct table *t, uint32_t tensor, const struct table_piece *p)
{
	for (uint32_t i = t->first[tensor]; i < t->first[tensor + 1]; i++)
		if (t->piece[i].rank == p->rank && indexset_equal(&t->piece[i].set, &p->set))
			return true;
	return false;
}

/* Do the same ranks own the same elements of it, and are they of the same type? */
static bool is_identical(const struct table *x, uint32_t a, const struct table *y, uint32_t b)
{
	if (x->first[a + 1] - x->first[a] != y->first[b + 1] - y->first[b] ||
	    x->tensor[a].dtype != y->tensor[b].dtype)
		return false;
	for (uint32_t i = x->first[a]; i < x->first[a + 1]; i++)
		if (!piece_there(y, b, &x->piece[i]))
			return false;
	return true;
}

static void open_step(struct subject *s, const char *where, const char *name)
{
	struct cli c = { .ops = quick_ops(), .where = where };
	struct ckpt_err err = { 0 };

	assert_ok_err(subject_find(s, c.ops, c.where, name, NULL, &err), &err);
	assert_ok_err(subject_open(s, NULL, NULL, &err), &err);
}

/* Every tensor whose pieces differ is in the list; those in it are many, and not all. */
static void compare_with_list(const char *mesh, uint32_t *nsame)
{
	struct subject from = { 0 }, to = { 0 };
	char *list, line[TABLE_KEY_BYTES + 32], name[TABLE_KEY_BYTES];

	RUN_IS(CLI_MISFIT, "-C", alpha, "convert", "latest", DST, "--mesh", mesh, "--explicit",
	       "--json");
	list = strdup(got.err);
	RUN_IS(0, "-C", alpha, "convert", "latest", DST, "--mesh", mesh, "--replicate",
	       dims_of(mesh));
	open_step(&from, alpha, "latest");
	open_step(&to, alpha, DST);
	for (uint32_t i = 0; i < from.ckpt->table.ntensor; i++) {
		const struct table_tensor *x = &from.ckpt->table.tensor[i];
		uint32_t at = table_find(&to.ckpt->table, x->component, x->name, x->rank);
		bool same = is_identical(&from.ckpt->table, i, &to.ckpt->table, at);

		snprintf(line, sizeof line, "\\n%s: ", table_tensor_print(x, name, sizeof name));
		if (!same && !strstr(list, line))
			fail_msg("%s: %s differs and is not in the list", mesh, name);
		*nsame += same;
	}
	subject_close(&from);
	subject_close(&to);
	free(list);
	remove_tree(DST);
}

TEST(whatever_lies_elsewhere_afterwards_is_in_the_list)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=2", "fsdp=3", "fsdp=7", "x=2,fsdp=4" };
	uint32_t nsame = 0;

	for (uint32_t i = 0; i < ARRAY_LEN(mesh); i++)
		compare_with_list(mesh[i], &nsame);
	assert_true(nsame > 0);
}

/* --- explained --- */

TEST(what_is_done_is_explained_in_groups_with_reasons_and_costs)
{
	json_t *j;

	SHOWN_IS(0, "-q", "-C", alpha, "plan", "--mesh", "fsdp=3", "--explain");
	SHOWN_IS(0, "-q", "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=4", "--dtype",
		 "BF16", "--only", "optim/*", "--only", "model/rope.table", "--layout",
		 "model/rope.table=Shard(1)@fsdp", "--explicit", "--explain", "-n");
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "--mesh", "fsdp=3", "--explain",
		     "--json");
	assert_true(count(j, "explained") > 3);
	assert_true(number(j, "peak_memory_bytes") > 0);
	for (size_t i = 0, n = count(j, "explained"); i < n; i++)
		assert_int_equal(count(item(j, "explained", i), "tensors"),
				 number(item(j, "explained", i), "tensor_count"));
	j = json_run("ckptd.plan/1", "-C", alpha, "plan", "--mesh", "fsdp=3", "--json");
	assert_json_has(j, "{'explained': [], 'peak_memory_bytes': null}");
}

/* The time of the group that has this tensor; NAN: null. */
static double time_of(const json_t *j, const char *tensor)
{
	for (size_t i = 0, n = count(j, "explained"); i < n; i++) {
		const json_t *g = item(j, "explained", i), *us = json_object_get(g, "exchange_us");

		for (size_t k = 0; k < count(g, "tensors"); k++)
			if (!strcmp(string(item(g, "tensors", k), "tensor"), tensor))
				return json_is_null(us) ? NAN : json_number_value(us);
	}
	fail_msg("%s is in no group", tensor);
	return 0;
}

TEST(with_links_what_ranks_send_has_a_price_in_time_as_well)
{
	static const char embed[] = "model/embed.weight", rope[] = "model/rope.table";
	const char *one = path_of("%s/one", top);
	double us;
	json_t *j;

	SHOWN_IS(0, "-q", "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3", "--only",
		 embed, "--only", rope, "--only", "blob/*", "--explain", "--links", "h100", "-n");
	SHOWN_IS(CLI_MISFIT, "-q", "-C", alpha, "export", "latest", DST, "--mesh", "fsdp=3",
		 "--only", embed, "--only", "optim/*", "--explicit", "--links", "h100");
	/* It is what plan prints of a checkpoint with nothing else, cast or not. */
	RUN_IS(0, "-C", alpha, "convert", "latest", one, "--mesh", "fsdp=4", "--only", embed);
	j = json_run("ckptd.plan/1", "plan", one, "--mesh", "fsdp=3", "--links", "h100",
		     "--explain", "--json");
	us = real(member(j, "exchange", JSON_OBJECT), "us");
	assert_true(us > 0 && time_of(j, embed) == us);
	remove_tree(one);
	j = json_run("ckptd.convert/1", "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3",
		     "--explain", "--links", "h100", "-n", "--json");
	assert_true(time_of(j, embed) == us);
	assert_true(time_of(j, rope) == 0);
	assert_true(isnan(time_of(j, "blob/rng of rank 3")));
	j = json_run("ckptd.convert/1", "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3",
		     "--explain", "--links", "h100", "-n", "--json", "--dtype", "F32", "--only",
		     embed);
	assert_true(time_of(j, embed) == us);
	j = json_run("ckptd.convert/1", "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3",
		     "--explain", "-n", "--json");
	assert_true(isnan(time_of(j, embed)));
	SHOWN_IS(2, "-C", alpha, "convert", "latest", DST, "--mesh", "fsdp=3", "--links", "h100");
	SHOWN_IS(2, "-C", alpha, "export", "latest", DST, "--mesh", "fsdp=3", "--links", "cheap",
		 "--explain");
	assert_false(exists(DST));
}

TEST(the_help_has_the_words_and_the_options_of_every_kind)
{
	for (uint32_t i = 0; i < EXPLICIT_KINDS; i++) {
		const struct explicit_words *w = explicit_words((enum explicit_kind)i);
		const char *text = path_of("%s (%s): %s.", w->name, w->what, w->asked);

		if (!strstr(EXPLICIT_ABOUT("plan"), text))
			fail_msg("the help lacks \"%s\"", text);
	}
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
