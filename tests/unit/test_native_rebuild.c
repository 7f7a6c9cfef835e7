/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_rebuild.c - a MANIFEST is made again of all parts of one checkpoint, each of them
 * whole, or not at all: then the sentence names the part, and what is wrong with it.
 */
#include "tests/unit/test_native_rig.h"

static int rebuild_of(const struct source_dir *dir, const char *job, uint64_t step,
		      struct ckpt_err *err)
{
	const struct native_lineage line = { .seq = 9, .parent_step = UINT64_MAX, .tool = "test" };
	cleanup_free void *bytes = NULL;
	uint8_t id[16];
	uint64_t len;
	int r;

	*err = (struct ckpt_err){ 0 };
	r = memdir_rebuild(dir, job, step, &line, &bytes, &len, id, err);
	assert_int_equal(r < 0, bytes == NULL);
	assert_int_equal(err->code, r);
	return r;
}

static int rebuild(struct ckpt_err *err)
{
	struct source_dir dir = memdir_source(&bad);

	return rebuild_of(&dir, "demo", 12, err);
}

static struct ckpt_err err; /* of the call that failed last */

/* It is refused, in a sentence that has these words. Then all is made afresh. */
static void refused(int code, const char *name, const char *words)
{
	int r = rebuild(&err);

	if (r != code || !strstr(err.msg, name) || !strstr(err.msg, words))
		fail_msg("%d, \"%s\"; should be %d, with \"%s\" and \"%s\"", r, err.msg, code, name,
			 words);
	afresh();
}

#define W1 "w0001-00000005-000.part"

static void world_set(uint32_t rank, uint32_t world)
{
	head_of_file(part(rank))->world = le32_of(world);
	memdir_sign(&bad, part(rank));
}

/* Ranks of a pipeline declare a mesh of their own stage: it does not say how many others there
 * were. */
TEST(a_manifest_is_made_again_of_all_parts_or_not_at_all)
{
	static const struct {
		uint32_t world[2];
		const char *words;
		int code;
	} wrong[] = {
		{ { 4, 4 }, "2 of 4 parts are missing", -EUCLEAN },
		{ { 4, 2 }, "its number of ranks is not that of the other parts", -EBADMSG },
		{ { 0, 0 }, "do not say how many there were", -EPROTO },
		{ { 1, 1 }, "2 parts, and 1 ranks", -EPROTO },
	};

	afresh();
	assert_int_equal(rebuild(&err), 0);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		for (uint32_t r = 0; r < 2; r++)
			world_set(r, wrong[i].world[r]);
		refused(wrong[i].code, "", wrong[i].words);
	}
	memdir_remove(&bad, W1);
	refused(-EUCLEAN, "", "1 of 2 parts are missing");
	memdir_clear(&bad);
	refused(-EBADMSG, "", "it has no parts");
}

/* More than there was room for at first; its lineage aside it is what had been there. */
TEST(a_manifest_of_many_parts_is_made_again_as_it_was)
{
	const struct memdir_opts o = {
		.mesh = "fsdp=35", .job = "demo", .seed = 5, .scale = 1, .step = 12, .seq = 7
	};
	const struct native_lineage line = { .seq = 7, .parent_step = 11, .tool = "memdir 1" };
	struct memdir d = { .n = 0 };
	struct source_dir dir = memdir_source(&d);
	struct memdir_file *was;
	uint8_t id[16];
	uint64_t len;
	void *bytes;

	memdir_checkpoint(&d, &o);
	was = memdir_find(&d, NATIVE_MANIFEST);
	assert_ok_err(memdir_rebuild(&dir, "demo", 12, &line, &bytes, &len, id, &err), &err);
	assert_int_equal(len, was->len);
	assert_memory_equal(bytes, was->bytes, len);
	assert_memory_equal(id, was->bytes + was->len - 16, 16);
	free(bytes);
	memdir_clear(&d);
}

TEST(what_is_no_part_and_no_manifest_is_ignored)
{
	static const char *const mine[] = { NATIVE_MANIFEST ".0badcafe",
					    NATIVE_MANIFEST ".damaged-0123abcd" };
	static const char *const strange[] = { "core",	       "core.1234",
					       "part",	       "w0002.parts",
					       "a b.part",     NATIVE_MANIFEST "2",
					       "w.part.gz",    ".w0000-00000005-000.part",
					       "weights.part", ".nfs0001" };

	afresh();
	for (size_t i = 0; i < ARRAY_LEN(mine); i++)
		(void)memdir_add(&bad, mine[i], "x", 1);
	assert_int_equal(rebuild(&err), 0);
	memdir_remove(&bad, NATIVE_MANIFEST);
	assert_int_equal(rebuild(&err), 0);
	afresh();
	for (size_t i = 0; i < ARRAY_LEN(strange); i++) {
		(void)memdir_add(&bad, strange[i], "x", 1);
		assert_int_equal(rebuild(&err), 0);
	}
	part(1)->folder = true;
	refused(-EUCLEAN, W1, "is not a regular file");
	/* One more than there were. */
	(void)memdir_add(&bad, "w0002-00000005-000.part", part(1)->bytes, part(1)->len);
	refused(-EPROTO, "", "3 parts, and 2 ranks");
}

TEST(a_part_of_another_checkpoint_is_named)
{
	static const char *const what[] = { "checkpoint", "job", "step", "launch" };
	struct source_dir dir = memdir_source(&bad);
	char words[80];

	afresh();
	for (size_t i = 0; i < ARRAY_LEN(what); i++) {
		struct ck_head *h = head_of_file(part(1));

		switch (i) {
		case 0:
			h->checkpoint[0] ^= 1;
			break;
		case 1:
			h->job[0] ^= 1;
			break;
		case 2:
			h->step = le64_of(13);
			break;
		default:
			h->generation = le64_of(4);
			break;
		}
		memdir_sign(&bad, part(1));
		snprintf(words, sizeof words, "its %s is not that of the other parts", what[i]);
		refused(-EBADMSG, W1, words);
	}
	/* Its header is of this checkpoint, its trailer of another. */
	tail_of_file(part(1))->uuid[0] ^= 1;
	memdir_sign(&bad, part(1));
	refused(-EBADMSG, W1, "uuid");
	/* All of them, of what the directory is not called. */
	assert_int_equal(rebuild_of(&dir, "demo", 11, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "its parts are of step 12 of this job"));
	assert_int_equal(rebuild_of(&dir, "other", 12, &err), -EBADMSG);
	assert_non_null(strstr(err.msg, "its parts are of step 12 of another job"));
	/* Two of one rank. */
	head_of_file(part(1))->writer = le32_of(0);
	memdir_sign(&bad, part(1));
	refused(-EINVAL, W1, "rank 0 is in two parts");
}

TEST(a_part_whose_metadata_are_damaged_is_named)
{
	struct ck_tail *t;

	afresh();
	part(1)->len--;
	refused(-EBADMSG, W1, "bytes are not a complete file");
	part(1)->len = CONTAINER_BLOCK;
	refused(-EBADMSG, W1, "its 4096 bytes are not a complete file");
	part(1)->len = 0;
	refused(-EBADMSG, W1, "its 0 bytes are not a complete file");
	part(1)->len -= CONTAINER_BLOCK;
	refused(-EBADMSG, W1, "trailer at offset");
	part(1)->bytes[100] ^= 1;
	refused(-EBADMSG, W1, "header at offset 0");
	part(1)->bytes[part(1)->len - 1] ^= 1;
	refused(-EBADMSG, W1, "trailer at offset");
	t = tail_of_file(part(1));
	for (uint32_t i = 0; i < le32_get(t->nsect); i++) {
		char words[80];

		if (!le64_get(t->sect[i].len))
			continue;
		part(1)->bytes[le64_get(t->sect[i].off) + le64_get(t->sect[i].len) - 1] ^= 1;
		snprintf(words, sizeof words, "at offset %llu",
			 (unsigned long long)le64_get(t->sect[i].off));
		refused(-EBADMSG, W1, words);
		t = tail_of_file(part(1));
	}
	head_of_file(part(1))->major = le16_of(1);
	memdir_sign(&bad, part(1));
	refused(-EPROTONOSUPPORT, W1, "format 1.2");
	/* Right sums over what makes no sense. */
	((struct ck_tensor *)memdir_section(part(1), CK_TENSORS))->dtype = le16_of(999);
	memdir_sign(&bad, part(1));
	refused(-EPROTONOSUPPORT, W1, "dtype");
	((struct ck_piece *)memdir_section(part(1), CK_PIECES))->rank = le32_of(0);
	memdir_sign(&bad, part(1));
	refused(-EINVAL, W1, "has a piece of rank 0");
	/* The data are not looked at: MANIFEST does not know them. */
	part(1)->bytes[CONTAINER_BLOCK + 1] ^= 1;
	{
		assert_int_equal(rebuild(&err), 0);
	}
}

static int huge_open(void *ctx, const char *name, struct source *ret)
{
	(void)name;
	*ret = *(struct source *)ctx;
	return 0;
}

static int huge_list(void *ctx, const char *sub, source_entry_fn *each, void *arg)
{
	(void)sub;
	(void)ctx;
	return each(arg, W1, SOURCE_FILE);
}

TEST(sections_that_no_memory_holds_are_refused_unread)
{
	struct huge h;
	struct source src;
	struct source_dir dir = { .ctx = &src, .open = huge_open, .list = huge_list };

	afresh();
	src = huge_of(part(1), CK_STRINGS, 1, NATIVE_META_BYTES_MAX + 1, &h);
	assert_int_equal(rebuild_of(&dir, "demo", 12, &err), -EPROTO);
	assert_non_null(strstr(err.msg, W1));
	assert_non_null(strstr(err.msg, "more than 1073741824 bytes of sections"));
}

TEST(what_cannot_be_read_is_not_called_damaged)
{
	static const int error[] = { -EIO, -EACCES, -ENOMEM };

	afresh();
	for (size_t e = 0; e < ARRAY_LEN(error); e++)
		for (uint64_t n = 0;; n++) {
			struct source_dir dir = failing_source(&bad, n, error[e]);
			int r = rebuild_of(&dir, "demo", 12, &err);

			assert_int_equal(failing.open, 0);
			if (!failing.did) {
				assert_int_equal(r, 0);
				/* the listing; of two parts the opening, two blocks, sections */
				assert_true(n > 1 + 2 * 4);
				break;
			}
			if (r != error[e] || !strstr(err.msg, strerrordesc_np(-r)))
				fail_msg("call %llu failed with %d, rebuilding with %d: %s",
					 (unsigned long long)n, error[e], r, err.msg);
		}
}

UNIT(.group_setup = setup, .group_teardown = teardown);
