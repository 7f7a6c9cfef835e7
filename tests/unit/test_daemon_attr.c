/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_attr.c - ckpt_attr: which attributes a step has, when they change, what is refused,
 * and that thousands of them cost nothing that a person notices.
 */
#include "ckpt/client/handle.h"
#include "ckpt/wire/attributes.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

static struct ckpt_err err;

static void must_attr(struct rank *k, const char *key, const char *value)
{
	MUST_OK(ckpt_attr(k->c, key, value, &err), &err);
}

/* "key=value key=value", of a committed step */
static const char *attrs_of(const char *job, uint64_t step)
{
	static char text[4096];
	struct checkpoint *c = host_open(&H, job, step);
	size_t n = 0;

	text[0] = 0;
	for (uint32_t i = 0; i < c->nattr; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%s=%s", i ? " " : "",
				      c->attr[i].key, c->attr[i].value);
	checkpoint_free(c);
	return text;
}

TEST(a_step_has_the_attributes_of_the_newest_seal_before_it)
{
	open_one(&K, "attr", "fsdp=1");
	save(&K, 1);
	must_attr(&K, "torch", "2.6");
	must_attr(&K, "git", "cafe");
	must_attr(&K, "empty", "");
	must_attr(&K, "utf-8",
		  "\xc3\xa9 \xe2\x82\xac \xed\x9f\xbf \xf0\x9f\x98\x80\n\xf4\x8f\xbf\xbf");
	must_attr(&K, "utf-8", "\xc3\xa9 \xf0\x9f\x98\x80");
	must_seal(&K);
	save(&K, 2);
	must_attr(&K, "git", "beef");
	must_attr(&K, "torch", NULL);
	must_attr(&K, "ckpt.alias:model/head.weight", "model/wte.weight");
	must_seal(&K);
	save(&K, 3);
	assert_string_equal(attrs_of("attr", 1), "");
	assert_string_equal(attrs_of("attr", 2),
			    "empty= git=cafe torch=2.6 utf-8=\xc3\xa9 \xf0\x9f\x98\x80");
	assert_string_equal(attrs_of("attr", 3),
			    "ckpt.alias:model/head.weight=model/wte.weight empty= git=beef "
			    "utf-8=\xc3\xa9 \xf0\x9f\x98\x80");
	rank_close(&K, 0);
}

/* A step that the next daemon takes over has them from the declaration that it gets. */
TEST(attributes_outlive_their_daemon)
{
	open_one(&K, "outlive", "fsdp=1", .fresh = true);
	must_attr(&K, "git", "cafe");
	must_seal(&K);
	save(&K, 1);
	host_kill(&H);
	host_start(&H, NULL);
	must_reattach(&K, 1);
	must_seal(&K);
	save(&K, 2);
	assert_string_equal(attrs_of("outlive", 2), "git=cafe");
	rank_close(&K, 0);
}

/* What is staged when the daemon dies; and what was given since is of the next seal. */
TEST(a_step_that_is_taken_over_has_those_of_the_seal_before_it)
{
	open_one(&K, "over", "fsdp=1", .fresh = true, .slots = 3);
	must_attr(&K, "git", "cafe");
	must_seal(&K);
	stage(&K, 1, CKPT_STAGE_ONLY);
	must_attr(&K, "git", "beef");
	must_attr(&K, "more", "x");
	host_kill(&H);
	host_start(&H, NULL);
	must_reattach(&K, 1);
	assert_soon(in_memory(&K, 1));
	host_restart(&H); /* drains: what is staged is written */
	assert_string_equal(attrs_of("over", 1), "git=cafe");
	must_reattach(&K, 2);
	must_seal(&K);
	save(&K, 2);
	assert_string_equal(attrs_of("over", 2), "git=beef more=x");
	rank_close(&K, 0);
}

static void each_its_own(struct rank *k)
{
	char value[16];

	snprintf(value, sizeof value, "of %u", k->rank);
	must_attr(k, "whose", value);
	must_attr(k, value, "");
	must_seal(k);
	step_to(k, 1, CKPT_PERSIST, CKPT_COMMITTED);
}

TEST(the_attributes_of_rank_0_are_stored)
{
	launch_of(plan("whose", "fsdp=3"), each_its_own, NULL);
	assert_string_equal(attrs_of("whose", 1), "of 0= whose=of 0");
}

/* The slower rank still waits for the epoch that the faster one has already left. */
TEST(a_rank_that_seals_anew_at_once_leaves_none_behind)
{
	struct plan_of_job p = plan("anew", "fsdp=2");
	struct rank r[2] = { 0 };

	for (uint32_t i = 0; i < 2; i++) {
		must_attach(&r[i], &p, i);
		must_declare(&r[i]);
		MUST(rank_seal(&r[i], 0) >= 0);
	}
	must_seal(&r[0]);
	must_attr(&r[0], "git", "cafe");
	assert_int_equal(rank_seal(&r[0], 0), CKPT_SKIPPED);
	assert_soon(atomic_load(&atomic_load(&r[0].c->link)->job->ready_epoch) == 0);
	must_seal(&r[1]); /* the first epoch */
	must_attr(&r[1], "git", "cafe");
	must_seal(&r[1]);
	must_seal(&r[0]);
	assert_int_equal(atomic_load(&atomic_load(&r[1].c->link)->job->ready_epoch), 2);
	ranks_close(r, 2);
}

TEST(thousands_of_aliases_are_kept)
{
	enum { N = 5000 };
	struct checkpoint *c;
	char key[64], value[64];

	open_one(&K, "many", "fsdp=1");
	for (uint32_t i = 0; i < N; i++) {
		snprintf(key, sizeof key, "ckpt.alias:model/tied.%u", i * 7919 % N);
		snprintf(value, sizeof value, "model/w.%u", i * 7919 % N);
		must_attr(&K, key, value);
	}
	must_seal(&K);
	save(&K, 1);
	c = host_open(&H, "many", 1);
	assert_int_equal(c->nattr, N);
	for (uint32_t i = 0; i < N; i++)
		assert_string_equal(c->attr[i].key + strlen("ckpt.alias:model/tied."),
				    c->attr[i].value + strlen("model/w."));
	checkpoint_free(c);
	rank_close(&K, 0);
}

#define refused(key, value, want, word)                                   \
	do {                                                              \
		assert_int_equal(ckpt_attr(K.c, key, value, &err), want); \
		assert_non_null(strstr(err.msg, word));                   \
	} while (0)

TEST(what_is_no_attribute_is_refused_with_a_sentence)
{
	char longest[ATTRIBUTE_VALUE_MAX + 2];

	open_one(&K, "bad", "fsdp=1");
	memset(longest, 'x', sizeof longest);
	longest[sizeof longest - 1] = 0;
	refused(NULL, "x", -EINVAL, "NULL");
	refused("", "x", -EINVAL, "1 to");
	refused("a\tb", "x", -EINVAL, "control");
	refused(longest, "x", -EINVAL, "1 to");
	refused("long", longest, -EINVAL, "longer");
	refused("k\xff", "x", -EINVAL, "its key is not UTF-8");
	refused("k", "a\xc3", -EINVAL, "its value is not UTF-8");
	refused("k", "\xc0\x80", -EINVAL, "UTF-8");	    /* overlong */
	refused("k", "\xe0\x9f\xbf", -EINVAL, "UTF-8");	    /* overlong */
	refused("k", "\xf0\x8f\xbf\xbf", -EINVAL, "UTF-8"); /* overlong */
	refused("k", "\xed\xa0\x80", -EINVAL, "UTF-8");	    /* a surrogate */
	refused("k", "\xf4\x90\x80\x80", -EINVAL, "UTF-8"); /* beyond the last character */
	refused("ckpt.from", "x", -EINVAL, "belong to ckptd");
	refused("ckpt.", "x", -EINVAL, "belong to ckptd");
	refused("ckpt.alias:", "m/w", -EINVAL, "COMPONENT/NAME");
	refused("ckpt.alias:w", "m/w", -EINVAL, "COMPONENT/NAME");
	refused("ckpt.alias:m/v", "w", -EINVAL, "COMPONENT/NAME");
	refused("ckpt.alias:m/w", "m/w", -EINVAL, "itself");
	refused("never", NULL, -ENOENT, "never");
	assert_int_equal(ckpt_attr(NULL, "a", "b", &err), -EINVAL);
	assert_int_equal(rank_step(&K, 1, 0), 0); /* nothing has changed: no seal is due */
	must_attr(&K, "a", "b");
	must_guard(&K);
	assert_int_equal(rank_step(&K, 2, 0), CKPT_SKIPPED);
	must_seal(&K);
	must_attr(&K, "a", "b"); /* the same again */
	assert_int_equal(rank_step(&K, 3, 0), 0);
	rank_close(&K, 0);
}

TEST(a_section_that_makes_no_sense_is_refused)
{
	static const struct {
		const char *bytes;
		uint64_t len;
		int want;
		uint32_t n;
	} s[] = {
		{ "", 0, 0, 0 },
		{ "a\0b", 4, 0, 1 },
		{ "a\0b\0c\0", 7, 0, 2 },
		{ "a\0b", 3, -EPROTO, 0 },
		{ "a", 2, -EPROTO, 0 },
		{ "b\0\0a\0", 6, -EPROTO, 0 },
		{ "a\0x\0a\0y", 8, -EPROTO, 0 },
		{ "\0x", 3, -EPROTO, 0 },
		{ "ckpt.from\0x", 12, -EPROTO, 0 },
	};
	uint32_t n;

	for (uint32_t i = 0; i < ARRAY_LEN(s); i++) {
		n = 0;
		assert_int_equal(attributes_check(s[i].bytes, s[i].len, &n, &err), s[i].want);
		assert_int_equal(n, s[i].n);
	}
}

UNIT(.setup = host_setup_started, .teardown = host_teardown);
