/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_name.c - which names of directory entries, claims and jobs are ours, and listings of
 * them. */
#include <dirent.h>
#include "ckpt/store/store_impl.h"
#include "formats/native/native.h"
#include "tests/lib/row.h"
#include "tests/lib/libc.h"
#include "tests/lib/unit.h"

static struct ckpt_err err;

static const struct {
	const char *name;
	enum store_kind kind;
	uint64_t step, generation, seq;
	uint32_t nonce;
	uint64_t aside_s;
} good[] = {
	{ "step-000000000010", STORE_STEP, 10, 0, 0, 0, 0 },
	{ "step-18446744073709551615", STORE_STEP, UINT64_MAX, 0, 0, 0, 0 },
	{ ".tmp-000000000010-g00000003-0123abcd", STORE_TMP, 10, 3, 0, 0x0123abcd, 0 },
	{ ".old-000000000010-s7", STORE_OLD, 10, 0, 7, 0, STORE_ASIDE_UNKNOWN },
	{ ".old-000000000010-s7-0123abcd", STORE_OLD, 10, 0, 7, 0x0123abcd, STORE_ASIDE_UNKNOWN },
	{ ".old-000000000010-s7-t0", STORE_OLD, 10, 0, 7, 0, 0 },
	{ ".old-000000000010-s7-t1800000000", STORE_OLD, 10, 0, 7, 0, 1800000000 },
	{ ".old-000000000010-s7-t1800000000-0123abcd", STORE_OLD, 10, 0, 7, 0x0123abcd,
	  1800000000 },
	{ ".old-18446744073709551615-s18446744073709551615-t18446744073-0123abcd", STORE_OLD,
	  UINT64_MAX, 0, UINT64_MAX, 0x0123abcd, STORE_ASIDE_MAX },
	{ ".trash-0123abcd", STORE_TRASH, 0, 0, 0, 0x0123abcd, 0 },
};

TEST(an_entry_of_ours_is_read_with_its_numbers)
{
	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		struct store_name x;

		store_name_parse(good[i].name, &x);
		assert_int_equal(x.kind, good[i].kind);
		assert_string_equal(x.dir, good[i].name);
		assert_true(x.step == good[i].step && x.generation == good[i].generation);
		assert_true(x.seq == good[i].seq && x.nonce == good[i].nonce);
		assert_true(x.aside_s == good[i].aside_s);
	}
}

/* What is not FOREIGN prints as it was read. */
static enum store_kind kind_of(const char *name)
{
	struct store_name x;

	store_name_parse(name, &x);
	if (x.kind == STORE_FOREIGN)
		assert_int_equal(x.dir[0], 0);
	else
		assert_string_equal(x.dir, name);
	return x.kind;
}

TEST(an_entry_that_we_would_not_print_is_foreign)
{
	static const char *const bad[] = {
		"",
		"step",
		"step-",
		"step-10",
		"step-0000000000010",
		"step-00000000001x",
		"step-000000000010 ",
		"Step-000000000010",
		"step-18446744073709551616",  /* 2^64 */
		"step-184467440737095516150", /* ten times as many */
		"step-+00000000010",
		".tmp-",
		".tmp-x",
		".tmp-000000000010",
		".tmp-000000000010-s00000003-0123abcd",
		".tmp-000000000010-g",
		".tmp-000000000010-gx",
		".tmp-000000000010-g3-0123abcd",
		".tmp-000000000010-g00000003",
		".tmp-000000000010-g00000003.0123abcd",
		".tmp-000000000010-g00000003-",
		".tmp-000000000010-g00000003-0123ABCD",
		".tmp-000000000010-g00000003-0123abcg",
		".tmp-000000000010-g00000003-0123abc:",
		".tmp-000000000010-g00000003-0123abc`",
		".tmp-000000000010-g00000003-0123abc/",
		".old-",
		".old-x",
		".old-000000000010",
		".old-000000000010-7",
		".old-000000000010-s",
		".old-000000000010-sx",
		".old-000000000010-s07",
		".old-000000000010-s7-",
		".old-000000000010-s7-0123",
		".old-000000000010-s7-t",
		".old-000000000010-s7-t01",
		".old-000000000010-s7-tx",
		".old-000000000010-s7-t-1",
		".old-000000000010-s7-t18446744074", /* more nanoseconds than fit */
		".old-000000000010-s7-t1800000000-",
		".old-000000000010-s7-0123abcd-t1800000000",
		".trash-",
		".trash-0123abc",
		".trash-0123abcd0",
	};

	for (size_t i = 0; i < ARRAY_LEN(bad); i++)
		if (kind_of(bad[i]) != STORE_FOREIGN)
			fail_msg("%s is taken for one of ours", bad[i]);
}

/* Cut anywhere, and with any byte put at any place. */
TEST(an_entry_is_ours_only_if_we_would_print_it_as_it_is)
{
	char name[STORE_DIR_MAX];

	for (size_t i = 0; i < ARRAY_LEN(good); i++) {
		size_t n = strlen(good[i].name);

		for (size_t at = 0; at < n; at++) {
			memcpy(name, good[i].name, n + 1);
			for (uint32_t byte = 0; byte < 256; byte++) {
				name[at] = (char)byte;
				(void)kind_of(name);
			}
		}
	}
}

TEST(what_the_store_puts_into_a_step_is_known_by_its_name)
{
	static const char *const ours[] = { "MANIFEST", "MANIFEST.0123abcd",
					    "MANIFEST.damaged-0123abcd", "w0000-0123abcd-000.part",
					    "w12345-0123abcd-1000.part" };
	static const char *const not_ours[] =
		ROW("", "MANIFESTO", "MANIFEST~", "MANIFEST.", "MANIFEST.bak", "MANIFEST.0123abcde",
		    "MANIFEST.0123abc", "MANIFEST.0123abcd.part", "MANIFEST.damaged-",
		    "MANIFEST.damaged-0123ABCD", "w.part", "w0000-0123abcd-000.part~",
		    ".w0000-0123abcd-000.part.swp", "w000-0123abcd-000.part",
		    "w0000-0123abc-000.part", "w0000-0123abcde-000.part", "w0000-0123abcd-00.part",
		    "w0000-0123abcd-000", "weights.part", ".nfs0001", "lost+found");

	for (size_t i = 0; i < ARRAY_LEN(ours); i++)
		assert_true(format_native.root->owns(ours[i]));
	for (size_t i = 0; i < ARRAY_LEN(not_ours); i++)
		if (format_native.root->owns(not_ours[i]))
			fail_msg("%s is taken for one of ours", not_ours[i]);
}

TEST(a_claim_is_ours_only_if_we_would_print_it)
{
	static const struct {
		const char *name;
		uint64_t generation;
		uint32_t takeover;
	} yes[] = {
		{ "gen-00000003", 3, 0 },
		{ "gen-123456789012", 123456789012, 0 },
		{ "gen-00000003.1", 3, 1 },
		{ "gen-00000003.4294967295", 3, UINT32_MAX },
		{ "gen-18446744073709551615.4294967295", UINT64_MAX, UINT32_MAX },
	};
	static const char *const no[] =
		ROW("", "gen", "gen-", "gen-x", "gen-3", "gen-000000003", "gen-00000003.",
		    "gen-00000003.0", "gen-00000003.x", "gen-00000003.01", "gen-00000003x",
		    "gen-00000003.4294967296", "gen-00000003.18446744073709551616",
		    "gen-18446744073709551616");
	struct store_claimed c;

	for (size_t i = 0; i < ARRAY_LEN(yes); i++) {
		assert_true(store_claimed_parse(yes[i].name, &c));
		assert_true(c.generation == yes[i].generation && c.takeover == yes[i].takeover);
	}
	for (size_t i = 0; i < ARRAY_LEN(no); i++)
		if (store_claimed_parse(no[i], &c))
			fail_msg("%s is taken for a claim", no[i]);
}

TEST(a_job_is_not_called_as_a_step_is_and_not_without_a_name)
{
	assert_int_equal(store_job_check(NULL, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "no name"));
	assert_int_equal(store_job_check("step-000000000010", &err), -EINVAL);
	assert_non_null(strstr(err.msg, "what a step's directory is called"));
	assert_int_equal(store_job_check("step-10", &err), 0); /* no step of ours is called so */
}

/* --- listings --- */

static struct {
	uint32_t n;
	unsigned char d_type;
} listed;

/* n steps, then something that is none. */
static int list_made_up(void *ctx, int dirfd,
			int (*each)(void *arg, const char *name, unsigned char d_type), void *arg)
{
	char name[STORE_DIR_MAX];
	int r = 0;

	(void)ctx;
	(void)dirfd;
	for (uint32_t i = 0; !r && i < listed.n; i++) {
		store_name_step(i, name);
		r = each(arg, name, listed.d_type);
	}
	return r ? r : each(arg, "lost+found", DT_DIR);
}

static const struct io_ops made_up = { .list = list_made_up };

TEST(directories_are_listed_also_where_entries_have_no_type_and_files_are_not)
{
	static const struct {
		unsigned char d_type;
		uint32_t n;
	} type[] = { { DT_DIR, 100 }, { DT_UNKNOWN, 100 }, { DT_REG, 0 }, { DT_LNK, 0 } };
	struct store_name *name;
	uint32_t n;

	listed.n = 100;
	for (size_t i = 0; i < ARRAY_LEN(type); i++) {
		listed.d_type = type[i].d_type;
		assert_int_equal(store_list(&made_up, -1, STORE_STEP, &name, &n), 0);
		assert_int_equal(n, type[i].n);
		for (uint32_t k = 0; k < n; k++)
			assert_int_equal(name[k].step, k);
		free(name);
		assert_int_equal(store_list(&made_up, -1, STORE_OLD, &name, &n), 0);
		assert_int_equal(n, 0);
		free(name);
	}
}

TEST(more_entries_than_a_job_may_have_are_refused_and_none_is_given)
{
	struct store_name *name;
	uint32_t n;

	listed.d_type = DT_DIR;
	listed.n = STORE_ENTRIES_MAX;
	assert_int_equal(store_list(&made_up, -1, STORE_STEP, &name, &n), 0);
	assert_int_equal(n, STORE_ENTRIES_MAX);
	free(name);
	listed.n = STORE_ENTRIES_MAX + 1;
	assert_int_equal(store_list(&made_up, -1, STORE_STEP, &name, &n), -E2BIG);
	assert_null(name);
	assert_int_equal(n, 0);
}

TEST(a_listing_without_memory_says_so_and_gives_none)
{
	struct store_name *name;
	uint64_t failed, nth = 0;
	uint32_t n;
	int r;

	listed.d_type = DT_DIR;
	listed.n = 1000;
	do {
		no_memory_from(nth++, false);
		r = store_list(&made_up, -1, STORE_STEP, &name, &n);
		failed = no_memory_end();
		assert_int_equal(r, failed ? -ENOMEM : 0);
		assert_int_equal(n, failed ? 0 : listed.n);
		assert_true(failed ? !name : name != NULL);
		free(name);
	} while (failed);
	assert_true(nth > 4);
}
