/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_show.c - show --files and show --map as their users meet them: what is told about a
 * store's checkpoints is compared with the files themselves, and with layouts computed here.
 */
#include "tests/lib/cli_rig.h"
#include "tests/lib/handmade.h"
#include "tests/lib/row.h"

static const char *alpha(void)
{
	return path_of("%s/alpha", work);
}

/* --- files --- */

TEST(every_byte_of_every_file_is_accounted_for)
{
	const char *path = path_of("%s/alpha/step-000000000030", work);
	uint64_t sum[4] = { 0 }, pieces = 0;
	const json_t *list, *total;
	json_t *j;

	RUN_IS(0, "show", "--files", "--json", "-C", alpha());
	j = json_out("ckptd.show/1");
	assert_string_equal(string(j, "path"), path);
	assert_int_equal(number(j, "step"), 30);
	list = member(j, "files", JSON_ARRAY);
	assert_int_equal(json_array_size(list), entries(path));
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *x = json_array_get(list, i);
		struct stat st;

		assert_int_equal(stat(path_of("%s/%s", path, string(x, "file")), &st), 0);
		assert_int_equal(number(x, "bytes"), st.st_size);
		assert_int_equal(number(x, "data_bytes") + number(x, "padding_bytes") +
					 number(x, "metadata_bytes"),
				 st.st_size);
		if (json_is_null(json_object_get(x, "rank")))
			assert_int_equal(number(x, "metadata_bytes"), st.st_size);
		else
			assert_true(number(x, "data_bytes") > 0 && number(x, "piece_count") > 0);
		assert_true(number(x, "tensor_count") <= number(x, "piece_count"));
		sum[0] += number(x, "bytes");
		sum[1] += number(x, "data_bytes");
		sum[2] += number(x, "padding_bytes");
		sum[3] += number(x, "metadata_bytes");
		pieces += number(x, "piece_count");
	}
	total = member(j, "total", JSON_OBJECT);
	assert_int_equal(number(total, "file_count"), json_array_size(list));
	assert_int_equal(number(total, "bytes"), sum[0]);
	assert_int_equal(number(total, "data_bytes"), sum[1]);
	assert_int_equal(number(total, "padding_bytes"), sum[2]);
	assert_int_equal(number(total, "metadata_bytes"), sum[3]);
	json_decref(j);
	/* What is called data are the tensors' bytes, exactly: nothing is coded here. */
	RUN_IS(0, "show", "--json", "-C", alpha());
	j = json_out("ckptd.show/1");
	assert_int_equal(number(j, "tensor_bytes"), sum[1]);
	assert_int_equal(number(j, "bytes"), sum[0]);
	list = member(j, "tensors", JSON_ARRAY);
	for (size_t i = 0; i < json_array_size(list); i++)
		pieces -= json_array_size(json_object_get(json_array_get(list, i), "pieces"));
	assert_int_equal(pieces, 0);
	json_decref(j);
}

TEST(files_are_a_table_for_people)
{
	SHOWN_IS(0, "show", "--files", "-C", alpha());
	assert_string_equal(got.err, "");
}

/* --- maps --- */

/* The shares that a map names are those of the layout, rank by rank. */
static void check_map(const char *job, const char *tensor, uint32_t world, bool cut)
{
	const json_t *map, *shares;
	uint32_t seen = 0;
	uint64_t elements = 0, numel = 1;
	json_t *j;

	RUN_IS(0, "show", path_of("--map=%s", tensor), "--json", "-C", path_of("%s/%s", work, job));
	j = json_out("ckptd.show/1");
	map = member(j, "map", JSON_OBJECT);
	assert_string_equal(string(map, "source"), "layout");
	shares = member(map, "shares", JSON_ARRAY);
	for (size_t i = 0; i < count(map, "shape"); i++)
		numel *= (uint64_t)json_integer_value(item(map, "shape", i));
	for (size_t i = 0; i < json_array_size(shares); i++) {
		const json_t *x = json_array_get(shares, i),
			     *ranks = member(x, "holder_ranks", JSON_ARRAY);

		elements += number(x, "elements");
		for (size_t k = 0; k < json_array_size(ranks); k++)
			seen |= 1u << json_integer_value(json_array_get(ranks, k));
	}
	for (size_t i = 0; i < count(map, "empty_ranks"); i++)
		seen |= 1u << json_integer_value(item(map, "empty_ranks", i));
	assert_int_equal(seen, (1u << world) - 1);
	assert_int_equal(elements, numel);
	assert_int_equal(json_array_size(shares) > 1, cut);
	assert_int_equal(number(map, "copies_min"), number(map, "copies_max"));
	json_decref(j);
}

/* --- attributes --- */

#define ALIASES 3000

/* A step of one tensor and many names for it; returns its path. */
static const char *aliased(void)
{
	static char key[ALIASES][64];
	static struct checkpoint_attr attr[ALIASES];
	static const uint64_t origin[1];
	struct ckpt_err err = { 0 };
	const char *dir = place("aliased");
	struct handmade p;
	struct table t;
	uint32_t k;

	for (uint32_t i = 0; i < ALIASES; i++) {
		snprintf(key[i], sizeof key[i], "ckpt.alias:model/w.%04u", i);
		attr[i] = (struct checkpoint_attr){ key[i], "model/w" };
	}
	handmade_begin(&p, "demo", 12, 1, 0);
	handmade_table(&t, NULL);
	k = handmade_tensor(&t, &(struct handmade_tensor)ROW(.component = "model", .name = "w",
							     .dtype = CKPT_U8, .layout = TABLE_NONE,
							     .ndim = 1, .shape = { 70 }));
	handmade_piece(&t, 0, k, 0, 0, origin, (const uint64_t[]){ 70 });
	(void)handmade_add(&p, 0, PART_MAIN, 0, &t, NULL, 0);
	p.line.attr = attr;
	p.line.nattr = ALIASES;
	if (handmade_commit(&p, &err))
		fail_msg("%s", err.msg);
	handmade_spill(&p, dir);
	handmade_free(&p);
	return dir;
}

TEST(json_has_thousands_of_attributes_and_a_person_sees_the_first)
{
	const char *path = aliased();
	const json_t *attrs;
	json_t *j;

	RUN_IS(0, "show", "--json", path);
	j = json_out("ckptd.show/1");
	attrs = member(j, "attributes", JSON_OBJECT);
	assert_int_equal(json_object_size(attrs), ALIASES);
	assert_string_equal(string(attrs, "ckpt.alias:model/w.2999"), "model/w");
	json_decref(j);
	RUN_IS(0, "show", path);
	assert_non_null(strstr(got.out, "ckpt.alias:model/w.0019"));
	assert_null(strstr(got.out, "ckpt.alias:model/w.0020"));
	assert_non_null(strstr(got.out, "and 2980 more"));
	RUN_IS(0, "convert", path, place("converted"), "--mesh", "fsdp=1");
	RUN_IS(0, "show", "--json", place("converted"));
	j = json_out("ckptd.show/1");
	attrs = member(j, "attributes", JSON_OBJECT);
	assert_int_equal(json_object_size(attrs), ALIASES + 1); /* ckpt.from */
	json_decref(j);
}

TEST(a_map_names_every_rank_and_every_element_once)
{
	check_map("alpha", "embed.weight", 4, true);
	check_map("alpha", "layers.3.fused", 4, true);
	check_map("alpha", "head.bias", 4, true);
	check_map("alpha", "norm.weight", 4, false);
	check_map("alpha", "optim/step", 4, false);
	check_map("beta", "embed.weight", 4, true);
}

TEST(a_map_is_drawn_with_its_facts_below)
{
	SHOWN_IS(0, "show", "--map", "head.bias", "-C", alpha());
	assert_string_equal(got.err, "");
	SHOWN_IS(0, "show", "step:25", "--map", "embed.weight", "-C", path_of("%s/beta", work));
	SHOWN_IS(0, "show", "--map", "nothing", "-C", alpha());
	SHOWN_IS(0, "show", "--map", "blob/cursor", "-C", alpha());
	RUN_IS(0, "show", "--map", "head.bias", "-C", alpha(), "--color=always");
	assert_says(got.out, "\033[30;48;5;");
}

TEST(a_map_of_what_cannot_be_drawn_says_why)
{
	SHOWN_IS(10, "show", "--map", "head.bia", "-C", alpha());
	SHOWN_IS(2, "show", "--map", "blob/rng", "-C", alpha());
	RUN_IS(2, "show", "--map", "head.bias", "--files", "-C", alpha());
	RUN_IS(2, "show", "--map", "head.bias", "--tensors=*", "-C", alpha());
	RUN_IS(2, "show", "latest", "mask", "--map", "head.bias", "-C", alpha());
	RUN_IS(2, "show", "latest", "mask", "--files", "-C", alpha(), "--json");
	assert_json_error(2);
	SHOWN_IS(2, "show", "--svg", "x.svg", "-C", alpha());
}

/* --- pictures --- */

TEST(a_picture_is_whole_and_replaces_only_pictures)
{
	const char *dir = path_of("%s/pictures", top), *file = path_of("%s/a.svg", dir);
	cleanup_free char *first = NULL;
	cleanup_free char *second = NULL;
	cleanup_free char *kept = NULL;
	json_t *j;

	assert_int_equal(mkdir(dir, 0700), 0);
	SHOWN_IS(0, "show", "--map=layers.3.fused", path_of("--svg=%s", file), "-C", alpha());
	first = slurp(file);
	assert_says(first, "<svg xmlns=\"http://www.w3.org/2000/svg\"");
	assert_says(first, "<title>model/layers.3.fused in step 30 of alpha</title>");
	assert_says(first, ">r2</text>");
	assert_says(first, "prefers-color-scheme:dark");
	assert_string_equal(first + strlen(first) - 7, "</svg>\n");
	RUN_IS(0, "show", "--map=head.bias", path_of("--svg=%s", file), "-C", alpha(), "--json");
	j = json_out("ckptd.show/1");
	assert_string_equal(string(member(j, "map", JSON_OBJECT), "svg"), file);
	json_decref(j);
	second = slurp(file);
	assert_says(second, "model/head.bias");
	assert_int_equal(entries(dir), 1);

	spill(path_of("%s/notes", dir), "what I wrote all night");
	spill(path_of("%s/empty", dir), "");
	assert_int_equal(symlink(file, path_of("%s/link", dir)), 0);
	assert_int_equal(mkdir(path_of("%s/sub", dir), 0700), 0);
	for (int i = 0; i < 4; i++) {
		static const char *const name[] = { "notes", "empty", "link", "sub" };

		SHOWN_IS(11, "show", "--map=head.bias", path_of("--svg=%s/%s", dir, name[i]), "-C",
			 alpha());
		assert_string_equal(got.out, "");
	}
	kept = slurp(path_of("%s/notes", dir));
	assert_string_equal(kept, "what I wrote all night");
	assert_int_equal(entries(dir), 5);
	RUN_IS(2, "show", "--map=head.bias", path_of("--svg=%s/none/a.svg", dir), "-C", alpha());
	RUN_IS(2, "show", "--map=head.bias", path_of("--svg=%s/", dir), "-C", alpha());
}

UNIT(.group_setup = make_all, .group_teardown = drop_all);
