/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_retain.c - the policy's options, its reasons, and its decisions against rules written
 * down a second time. */
#include <math.h>
#include "ckpt/base/error.h"
#include "ckpt/store/retain.h"
#include "tests/lib/row.h"
#include "tests/lib/unit.h"

#define HOUR (3600 * NS_PER_S)
#define STEPS_MAX 24
#define LABELS_MAX 12

static struct ckpt_err err;

/* --- options --- */

static void assert_policy(const char *option, const char *value, const char *printed)
{
	struct retain_policy p = { 0 }, again = { 0 };
	char text[200], word[3][100];

	if (retain_parse(&p, option, value, &err))
		fail_msg("%s", err.msg);
	assert_int_equal(retain_is_policy(&p), strcmp(option, "set-aside-for") != 0);
	retain_print(&p, text, sizeof text);
	assert_string_equal(text, printed);
	assert_int_equal(sscanf(text, "--%99s %99s", word[0], word[1]), 2);
	assert_int_equal(retain_parse(&again, word[0], word[1], &err), 0);
	assert_memory_equal(&p, &again, sizeof p);
}

TEST(an_option_is_read_and_printed)
{
	assert_policy("keep-last", "3", "--keep-last 3");
	assert_policy("keep-every", "5000", "--keep-every 5000");
	assert_policy("keep-within", "36h", "--keep-within 36h");
	assert_policy("keep-within", "90m", "--keep-within 90m");
	assert_policy("keep-within", "7d", "--keep-within 1w");
	assert_policy("keep-within", "90s", "--keep-within 90s");
	assert_policy("set-aside-for", "36h", "--set-aside-for 36h");
	assert_policy("keep-best", "loss", "--keep-best loss:min:1");
	assert_policy("keep-best", "eval/acc:max", "--keep-best eval/acc:max:1");
	assert_policy("keep-best", "acc:max:3", "--keep-best acc:max:3");
}

TEST(a_wrong_option_is_refused_and_changes_nothing)
{
	static const char *const wrong[][2] = ROW(
		{ "keep-last", "0" }, { "keep-last", "" }, { "keep-last", "-1" },
		{ "keep-last", "3x" }, { "keep-last", "4294967296" }, { "keep-every", "0" },
		{ "keep-every", "1.5" }, { "keep-within", "5" }, { "keep-within", "h" },
		{ "keep-within", "0d" }, { "keep-within", "7y" }, { "keep-within", "" },
		{ "keep-within", "99999999999999d" }, { "keep-within", "18446744073709551615w" },
		{ "set-aside-for", "0s" }, { "set-aside-for", "7" }, { "set-aside-for", "" },
		{ "keep-best", "" }, { "keep-best", ":max" }, { "keep-best", "a:" },
		{ "keep-best", "a:mean" }, { "keep-best", "a:max:" }, { "keep-best", "a:max:0" },
		{ "keep-best", "a:maxi" }, { "keep-best", "a:3" }, { "keep-first", "3" },
		{ "keep-best",
		  "12345678901234567890123456789012345678901234567890123456789012345" });
	struct retain_policy p = { .keep_last = 7 }, was = p;

	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		err.msg[0] = 0;
		assert_int_equal(retain_parse(&p, wrong[i][0], wrong[i][1], &err), -EINVAL);
		assert_true(err.msg[0]);
		assert_memory_equal(&p, &was, sizeof p);
	}
}

TEST(a_key_again_replaces_and_a_fifth_is_refused)
{
	struct retain_policy p = { 0 };
	char text[60];

	assert_int_equal(retain_parse(&p, "keep-best", "a", &err), 0);
	assert_int_equal(retain_parse(&p, "keep-best", "b", &err), 0);
	assert_int_equal(retain_parse(&p, "keep-best", "a:max:2", &err), 0);
	retain_print(&p, text, sizeof text);
	assert_string_equal(text, "--keep-best a:max:2 --keep-best b:min:1");
	assert_int_equal(retain_parse(&p, "keep-best", "c", &err), 0);
	assert_int_equal(retain_parse(&p, "keep-best", "d", &err), 0);
	assert_int_equal(retain_parse(&p, "keep-best", "e", &err), -EINVAL);
	retain_print(&p, text, 20);
	assert_int_equal(strlen(text), 18);
}

TEST(a_policy_is_cut_to_the_room_that_there_is)
{
	struct retain_policy none = { 0 }, p = { .keep_last = 3 };
	char text[60] = "untouched";

	retain_print(&p, text, 1);
	assert_string_equal(text, "");
	assert_string_equal(text + 1, "ntouched");
	memcpy(text, "old", 4);
	retain_print(&none, text, sizeof text);
	assert_string_equal(text, "");
	assert_false(retain_is_policy(&none));
}

/* --- reasons --- */

/* Newest first; committed, an hour apart, the newest at hour 100. */
static uint32_t line(struct store_step *st, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		st[i] = (struct store_step)ROW(.step = 1000 * (uint64_t)(n - i), .seq = n - i,
					       .wall_ns = (100 - (uint64_t)i) * HOUR,
					       .state = STORE_COMMITTED);
		st[i].id[0] = (uint8_t)(i + 1);
	}
	return n;
}

static void assert_row(const struct retain_row *row, bool remove, const char *reason)
{
	assert_string_equal(row->reason, reason);
	assert_int_equal(row->remove, remove);
}

TEST(every_row_says_why)
{
	static const struct ckpt_note loss[] = { { "loss", 0.5 }, { "loss", 0.25 } };
	struct retain_policy p = { .keep_last = 2, .keep_every = 3000, .keep_within_ns = 2 * HOUR };
	struct store_label m[3] = { { .kind = LABEL_HOLD, .name = "eval-17", .step = 1000 },
				    { .kind = LABEL_TAG, .name = "best", .step = 2000 },
				    { .kind = LABEL_HOLD, .name = "old", .step = 4000 } };
	struct store_step st[9];
	struct retain_row row[9];
	uint32_t n = line(st, 6); /* 6000 ... 1000 */

	memcpy(m[0].id8, st[5].id, 8);
	memcpy(m[1].id8, st[4].id, 8);
	memcpy(m[2].id8, st[2].id, 8);
	m[0].until_ns = 105 * HOUR;
	m[2].until_ns = 50 * HOUR;
	assert_int_equal(retain_parse(&p, "keep-best", "loss", &err), 0);
	st[4].nnote = st[3].nnote = 1;
	st[4].note = &loss[0];
	st[3].note = &loss[1];
	st[n++] = (struct store_step){ .step = 7000, .state = STORE_COLLECTING };
	st[n] = st[0];
	st[n].state = STORE_QUARANTINED;
	st[n].step = 77;
	st[n++].wall_ns = 0;
	st[n] = (struct store_step){ .step = 78, .state = STORE_DAMAGED };
	n++;
	assert_int_equal(retain_decide(&p, st, n, m, 3, 100 * HOUR, row), 0);
	assert_row(&row[0], false, "last 1/2, newest committed, every 3000, within 2h");
	assert_row(&row[1], false, "last 2/2, within 2h");
	assert_row(&row[2], true, "no rule matches");
	assert_row(&row[3], false, "every 3000, best loss 1/1");
	assert_row(&row[4], false, "tagged best");
	assert_row(&row[5], false, "held by eval-17 (5h left)");
	assert_row(&row[6], false, "being written, or its writer died");
	assert_row(&row[7], false, "quarantined: see ckptctl repair");
	assert_row(&row[8], false, "damaged: see ckptctl repair");
}

TEST(how_long_a_hold_lasts_is_told_in_days_hours_or_minutes)
{
	static const struct {
		uint64_t ns;
		const char *reason;
	} left[] = { { 48 * HOUR, "held by me (2d left)" },
		     { 48 * HOUR - 1, "held by me (47h left)" },
		     { 2 * HOUR, "held by me (2h left)" },
		     { 2 * HOUR - 1, "held by me (119m left)" } };
	struct store_label m = { .kind = LABEL_HOLD, .name = "me", .step = 1000 };
	struct retain_policy p = { .keep_last = 1 };
	struct store_step st[2];
	struct retain_row row[2];

	line(st, 2);
	memcpy(m.id8, st[1].id, 8);
	for (size_t i = 0; i < ARRAY_LEN(left); i++) {
		m.until_ns = 100 * HOUR + left[i].ns;
		assert_int_equal(retain_decide(&p, st, 2, &m, 1, 100 * HOUR, row), 0);
		assert_row(&row[1], false, left[i].reason);
	}
	m.until_ns = 100 * HOUR;
	assert_int_equal(retain_decide(&p, st, 2, &m, 1, 100 * HOUR, row), 0);
	assert_row(&row[1], true, "no rule matches");
}

TEST(of_equal_notes_the_newer_is_the_best)
{
	static const struct ckpt_note loss = { "loss", 0.5 };
	struct retain_policy p = { .keep_last = 1 };
	struct store_step st[4];
	struct retain_row row[4];

	line(st, 4);
	for (uint32_t i = 1; i < 4; i++) {
		st[i].nnote = 1;
		st[i].note = &loss;
	}
	assert_int_equal(retain_parse(&p, "keep-best", "loss:min:2", &err), 0);
	assert_int_equal(retain_decide(&p, st, 4, NULL, 0, 100 * HOUR, row), 0);
	assert_row(&row[1], false, "best loss 1/2");
	assert_row(&row[2], false, "best loss 2/2");
	assert_row(&row[3], true, "no rule matches");
}

TEST(without_a_policy_nothing_goes)
{
	struct retain_policy none = { 0 };
	struct store_step st[6];
	struct retain_row row[6];

	line(st, 6);
	st[4].state = STORE_SET_ASIDE;
	for (uint32_t k = 0; k < 2; k++) {
		assert_int_equal(retain_decide(k ? &none : NULL, st, 6, NULL, 0, 100 * HOUR, row),
				 0);
		assert_row(&row[0], false, "newest committed");
		for (uint32_t i = 1; i < 6; i++)
			assert_row(&row[i], false, "no policy");
	}
}

/* A job that began anew, by mistake perhaps, and has committed one step since. */
TEST(what_was_set_aside_goes_as_newer_steps_come_and_not_before)
{
	struct retain_policy p = { .keep_last = 3, .set_aside_for_ns = HOUR };
	struct store_step st[6];
	struct retain_row row[6];

	for (uint32_t committed = 1; committed <= 4; committed++) {
		line(st, 6);
		for (uint32_t i = committed; i < 6; i++) {
			st[i].state = STORE_SET_ASIDE;
			st[i].aside_ns = st[i].wall_ns;
		}
		assert_int_equal(retain_decide(&p, st, 6, NULL, 0, 100 * HOUR, row), 0);
		for (uint32_t i = 0; i < 6; i++)
			assert_int_equal(row[i].remove, i >= 3);
	}
	assert_row(&row[0], false, "last 1/3, newest committed");
	line(st, 6);
	st[1].state = STORE_SET_ASIDE; /* takes nobody's place */
	st[1].aside_ns = 1;
	assert_int_equal(retain_decide(&p, st, 6, NULL, 0, 100 * HOUR, row), 0);
	assert_row(&row[1], false, "last 2/3");
	assert_row(&row[3], false, "last 3/3");
	assert_row(&row[4], true, "no rule matches");
}

/* For a week, or as long as was said, whatever the policy; then the policy decides. */
TEST(what_was_set_aside_stays_for_its_time)
{
	static const struct {
		uint64_t stays, age; /* hours; 0: the default */
		const char *reason;
	} is[] = ROW({ 0, 0, "set aside: stays for 1w (7d left)" },
		     { 0, 1, "set aside: stays for 1w (6d left)" },
		     { 0, 7 * 24 - 1, "set aside: stays for 1w (60m left)" }, { 0, 7 * 24, NULL },
		     { 48, 47, "set aside: stays for 2d (60m left)" }, { 48, 48, NULL },
		     { 10 * 24, 8 * 24, "set aside: stays for 10d (2d left)" },
		     { 1, 0, "set aside: stays for 1h (60m left)" });
	struct retain_policy p = { .keep_last = 1 };
	struct store_step st[2];
	struct retain_row row[2];
	uint64_t now = 10000 * HOUR;

	for (size_t i = 0; i < ARRAY_LEN(is); i++) {
		line(st, 2);
		st[0].wall_ns = now;
		st[1].state = STORE_SET_ASIDE;
		st[1].aside_ns = now - is[i].age * HOUR;
		p.set_aside_for_ns = is[i].stays * HOUR;
		assert_int_equal(retain_decide(&p, st, 2, NULL, 0, now, row), 0);
		assert_row(&row[1], !is[i].reason,
			   is[i].reason ? is[i].reason : "set aside, no rule matches");
	}
	/* It does not say when, or will be set aside: it is so at this moment. */
	for (uint32_t i = 0; i < 2; i++) {
		st[1].aside_ns = i ? now + 1000 * HOUR : 0;
		assert_int_equal(retain_decide(&p, st, 2, NULL, 0, now, row), 0);
		assert_false(row[1].remove);
	}
	/* A clock that runs ahead makes nothing old: ages count from the newest step. */
	st[1].aside_ns = st[0].wall_ns - HOUR / 2;
	assert_int_equal(retain_decide(&p, st, 2, NULL, 0, now + 100000 * HOUR, row), 0);
	assert_row(&row[1], false, "set aside: stays for 1h (30m left)");
}

/* A clock that runs ahead, or was set back, makes nothing old. */
TEST(a_clock_that_jumps_removes_nothing_that_was_young)
{
	struct retain_policy p = { .keep_within_ns = 3 * HOUR };
	static const uint64_t now[] = { 0,	    50 * HOUR,	   98 * HOUR,
					100 * HOUR, 100000 * HOUR, UINT64_MAX };
	static const uint32_t stay[] = { 6, 6, 5, 3, 3, 3 };
	struct store_step st[6];
	struct retain_row row[6];

	line(st, 6);
	for (size_t k = 0; k < ARRAY_LEN(now); k++) {
		assert_int_equal(retain_decide(&p, st, 6, NULL, 0, now[k], row), 0);
		for (uint32_t i = 0; i < 6; i++)
			assert_int_equal(row[i].remove, i >= stay[k]);
	}
}

/* --- the rules a second time --- */

static uint64_t rng;

static uint32_t draw(uint32_t n)
{
	rng = rng * UINT64_C(6364136223846793005) + 1442695040888963407;
	return (uint32_t)(rng >> 33) % n;
}

struct random_job {
	struct store_step st[STEPS_MAX];
	struct ckpt_note note[STEPS_MAX][2];
	struct store_label label[LABELS_MAX];
	uint32_t n, nlabel;
	struct retain_policy p;
	uint64_t now;
};

static void job_make(struct random_job *j)
{
	static const char *const key[] = { "loss", "acc" };

	memset(j, 0, sizeof *j);
	j->n = draw(STEPS_MAX + 1);
	j->now = (90 + draw(30)) * HOUR;
	for (uint32_t i = 0; i < j->n; i++) {
		struct store_step *st = &j->st[i];

		*st = (struct store_step)ROW(.step = 5 * (uint64_t)draw(30), .seq = STEPS_MAX - i,
					     .wall_ns = (80 + draw(30)) * HOUR,
					     .aside_ns = draw(8) ? (60 + draw(60)) * HOUR : 0,
					     .state = (enum store_state)draw(5));
		if (draw(2))
			st->state = STORE_COMMITTED;
		if (st->state != STORE_DAMAGED && st->state != STORE_COLLECTING && draw(8))
			st->id[0] = (uint8_t)(i + 1);
		if (st->state == STORE_COMMITTED || st->state == STORE_QUARANTINED)
			st->id[0] = (uint8_t)(i + 1);
		st->note = j->note[i];
		for (uint32_t k = 0; k < 2; k++)
			if (draw(3))
				j->note[i][st->nnote++] =
					(struct ckpt_note){ key[k], draw(10) ? (double)draw(5)
									     : (double)NAN };
	}
	j->nlabel = j->n ? draw(LABELS_MAX) : 0;
	for (uint32_t i = 0; i < j->nlabel; i++) {
		const struct store_step *st = &j->st[draw(j->n)];

		j->label[i] = (struct store_label)ROW(.kind = (enum store_label_kind)draw(4),
						      .step = st->step, .name = "x");
		memcpy(j->label[i].id8, j->st[draw(3) ? (uint32_t)(st - j->st) : draw(j->n)].id, 8);
		if (j->label[i].kind == LABEL_HOLD && draw(2))
			j->label[i].until_ns = j->now - HOUR + draw(3) * HOUR;
	}
	/* A scan would have seen it. */
	for (uint32_t i = 0; i < j->nlabel; i++)
		for (uint32_t k = 0; k < j->n; k++)
			if (j->label[i].kind == LABEL_BAD && j->st[k].state == STORE_COMMITTED &&
			    store_label_is(&j->label[i], &j->st[k]) && draw(4))
				j->st[k].state = STORE_QUARANTINED;
	j->p.keep_last = draw(3);
	j->p.keep_every = draw(2) ? 5 * (uint64_t)(1 + draw(5)) : 0;
	j->p.keep_within_ns = draw(2) * (uint64_t)draw(12) * HOUR;
	j->p.set_aside_for_ns = draw(40) * HOUR;
	j->p.nbest = draw(3);
	for (uint32_t k = 0; k < j->p.nbest; k++) {
		(void)snprintf(j->p.best[k].key, sizeof j->p.best[k].key, "%s", key[k]);
		j->p.best[k].max = draw(2);
		j->p.best[k].n = 1 + draw(3);
	}
}

static bool no_id(const struct store_step *st)
{
	for (uint32_t i = 0; i < 16; i++)
		if (st->id[i])
			return false;
	return true;
}

/* Set while the id was not known: of whatever has that number. */
static bool of_any_id(const struct store_label *m)
{
	static const uint8_t none[8];

	return (m->kind == LABEL_HOLD || m->kind == LABEL_TAG) && memcmp(m->id8, none, 8) == 0;
}

static bool says(const struct random_job *j, uint32_t i, enum store_label_kind kind)
{
	for (uint32_t k = 0; k < j->nlabel; k++) {
		const struct store_label *m = &j->label[k];

		if (m->kind == kind && m->step == j->st[i].step &&
		    (no_id(&j->st[i]) || of_any_id(m) || memcmp(m->id8, j->st[i].id, 8) == 0) &&
		    (!m->until_ns || m->until_ns > j->now))
			return true;
	}
	return false;
}

static double value(const struct random_job *j, uint32_t i, const char *key)
{
	for (uint32_t k = 0; k < j->st[i].nnote; k++)
		if (strcmp(j->st[i].note[k].key, key) == 0)
			return j->st[i].note[k].value;
	return (double)NAN;
}

static bool sound(const struct random_job *j, uint32_t i)
{
	return j->st[i].state == STORE_COMMITTED && !says(j, i, LABEL_BAD);
}

static bool sound_aside(const struct random_job *j, uint32_t i)
{
	return j->st[i].state == STORE_SET_ASIDE && !no_id(&j->st[i]) && !says(j, i, LABEL_BAD);
}

/* Kept by its note: fewer than n are better. Seqs fall with the index here. */
static bool naive_best(const struct random_job *j, uint32_t i, const struct retain_best *b)
{
	double mine = value(j, i, b->key);
	uint32_t better = 0;

	for (uint32_t k = 0; k < j->n; k++) {
		double v = value(j, k, b->key);
		bool counts =
			sound(j, k) || (sound_aside(j, k) && j->st[i].state == STORE_SET_ASIDE);

		if (k != i && counts && !isnan(v))
			better += b->max ? v > mine || (v == mine && k < i)
					 : v < mine || (v == mine && k < i);
	}
	return !isnan(mine) && better < b->n;
}

static bool naive_young(const struct random_job *j, uint32_t i, uint64_t from)
{
	uint64_t at = j->st[i].wall_ns;

	return at > from || from - at < j->p.keep_within_ns;
}

static bool naive_keeps(const struct random_job *j, uint32_t i)
{
	const struct store_step *st = &j->st[i];
	uint32_t newer = 0, newer_all = 0, newest = j->n;
	uint64_t from = j->now;
	bool best = false;

	for (uint32_t k = j->n; k-- > 0;)
		if (sound(j, k))
			newest = k;
	if (newest < j->n && j->st[newest].wall_ns < from)
		from = j->st[newest].wall_ns;
	for (uint32_t k = 0; k < i; k++) {
		newer += sound(j, k);
		newer_all += sound(j, k) || sound_aside(j, k);
	}
	for (uint32_t k = 0; k < j->p.nbest; k++)
		best |= naive_best(j, i, &j->p.best[k]);
	if (!j->p.keep_last && !j->p.keep_every && !j->p.keep_within_ns && !j->p.nbest)
		return true;
	if (st->state == STORE_COLLECTING || st->state == STORE_DAMAGED ||
	    st->state == STORE_QUARANTINED || says(j, i, LABEL_HOLD) || says(j, i, LABEL_TAG) ||
	    i == newest)
		return true;
	if (says(j, i, LABEL_BAD) || (st->state == STORE_SET_ASIDE && no_id(st)))
		return true;
	if (st->state == STORE_SET_ASIDE &&
	    (!st->aside_ns || st->aside_ns >= from ||
	     from - st->aside_ns < (j->p.set_aside_for_ns ? j->p.set_aside_for_ns : 7 * 24 * HOUR)))
		return true;
	if (best || (j->p.keep_within_ns && naive_young(j, i, from)))
		return true;
	for (uint32_t k = i; j->p.keep_within_ns && k < j->n; k++)
		if (st->state == STORE_COMMITTED && j->st[k].state == STORE_COMMITTED &&
		    naive_young(j, k, from))
			return true;
	if (st->state == STORE_SET_ASIDE)
		return newer_all < j->p.keep_last;
	return st->state == STORE_COMMITTED &&
	       (newer < j->p.keep_last || (j->p.keep_every && st->step % j->p.keep_every == 0));
}

TEST(the_decisions_are_those_of_the_rules_written_down_again)
{
	uint64_t seed = 20261121, removed = 0, kept = 0;
	struct retain_row row[STEPS_MAX + 1];
	struct random_job j;

	print_message("seed %" PRIu64 "\n", seed);
	rng = seed;
	for (uint32_t round = 0; round < 20000; round++) {
		job_make(&j);
		assert_int_equal(retain_decide(&j.p, j.st, j.n, j.label, j.nlabel, j.now, row), 0);
		for (uint32_t i = 0; i < j.n; i++) {
			if (row[i].remove == naive_keeps(&j, i))
				fail_msg("round %u, row %u, state %d: %s", round, i,
					 (int)j.st[i].state, row[i].reason);
			assert_true(row[i].reason[0]);
			assert_int_equal(row[i].step, i);
			removed += row[i].remove;
			kept += !row[i].remove;
		}
	}
	print_message("%" PRIu64 " kept, %" PRIu64 " removed\n", kept, removed);
	assert_true(removed > 10000 && kept > 10000);
}
