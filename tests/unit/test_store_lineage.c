/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_store_lineage.c - seq, parent and what is set aside, for every situation in which a step can
 * meet a job's directory; then the same from a directory.
 */
#include "ckpt/store/lineage.h"
#include "tests/crash/job.h"

#define NONE UINT64_MAX
#define NEXT(g, c, ...)                                                                       \
	{                                                                                     \
		.how = LINEAGE_NEXT, .job = "j", .step = 50, .generation = g, .continues = c, \
		__VA_ARGS__                                                                   \
	}
#define ADD(n)                                            \
	{                                                 \
		.how = LINEAGE_ADD, .job = "j", .step = n \
	}
#define MEND(n)                                            \
	{                                                  \
		.how = LINEAGE_MEND, .job = "j", .step = n \
	}

/*
 * A scan in one line, newest first: STEP STATE SEQ GENERATION. States: c committed, a set aside, d
 * damaged, u damaged because it cannot be read, q quarantined, m misplaced, n newer, o older, t
 * collecting. What the scan does with an adopted step is seen in its seq: that of the one below.
 */
static const struct situation {
	const char *name, *scan;
	struct lineage_ask ask;
	int rc;
	uint64_t seq, parent, rewind;
	bool there;
} situation[] = {
	{ "nothing is there", "", NEXT(1, NONE, 0), 0, 1, NONE, NONE, 0 },
	{ "the launch's own", "20 c 2 1, 10 c 1 1", NEXT(1, NONE, 0), 0, 3, 20, 20, 0 },
	{ "what it has restored", "20 c 2 1, 10 c 1 1", NEXT(2, 20, 0), 0, 3, 20, 20, 0 },
	{ "it went back", "30 c 3 1, 20 c 2 1, 10 c 1 1", NEXT(2, 10, 0), 0, 4, 10, 10, 0 },
	{ "it went back and committed", "15 c 4 2, 10 c 1 1, 30 a 3 1", NEXT(2, 10, 0), 0, 5, 15,
	  15, 0 },
	{ "it begins anew", "20 c 2 1, 10 c 1 1", NEXT(2, NONE, 0), 0, 3, NONE, NONE, 0 },
	{ "a predecessor of the daemon committed it", "50 c 5 1, 40 c 4 1", NEXT(1, 40, 0), 0, 6,
	  50, 50, 1 },
	{ "another launch's step of the number", "50 c 5 1, 40 c 4 1", NEXT(2, 40, 0), 0, 6, 40, 40,
	  0 },
	{ "what it committed cannot be read", "20 u 0 0, 10 c 1 1", NEXT(1, 20, .seq_min = 2), 0, 4,
	  10, 20, 0 },
	{ "nothing can be read", "20 u 0 0, 10 u 0 0", NEXT(1, 20, .seq_min = 2), 0, 5, NONE, 20,
	  0 },
	{ "and the line is not known", "20 u 0 0, 10 u 0 0", NEXT(1, NONE, .again = true), -EIO, 0,
	  0, 0, 0 },
	{ "a newer one of a line that is not known", "20 n 0 0, 10 c 1 3",
	  NEXT(1, NONE, .again = true), -EIO, 0, 0, 0, 0 },
	{ "older ones are no launch's own", "20 o 0 0, 10 o 0 0", NEXT(1, NONE, .again = true), 0,
	  3, NONE, NONE, 0 },
	{ "but some of it is", "20 u 0 0, 10 c 1 1", NEXT(1, NONE, .again = true), 0, 3, 10, 10,
	  0 },
	{ "a first launch waits for nothing", "20 u 0 0", NEXT(1, NONE, 0), 0, 2, NONE, NONE, 0 },
	{ "what was set aside and cannot be read is no line", "20 a 2 0",
	  NEXT(1, NONE, .again = true), 0, 3, NONE, NONE, 0 },
	{ "each lost one may have a seq", "40 m 0 0, 30 d 0 0, 20 n 0 0, 10 c 1 1", NEXT(1, 10, 0),
	  0, 5, 10, 10, 0 },
	{ "damaged in between", "30 c 3 1, 20 d 0 0, 10 c 1 1", NEXT(1, 30, 0), 0, 5, 30, 30, 0 },
	{ "quarantine is no parent", "30 q 3 1, 20 c 2 1", NEXT(1, 30, 0), 0, 4, 20, 30, 0 },
	{ "quarantine is no line", "30 q 3 1, 20 c 2 1", NEXT(1, NONE, 0), 0, 4, 20, 20, 0 },
	{ "the highest seq is set aside", "10 c 1 1, 20 a 9 1", NEXT(1, 10, 0), 0, 10, 10, 10, 0 },
	{ "collecting counts for nothing", "60 t 0 7, 10 c 1 1", NEXT(1, 10, 0), 0, 2, 10, 10, 0 },
	{ "adopted", "20 c 1 9, 10 c 1 1", NEXT(2, 20, 0), 0, 2, 20, 20, 0 },
	{ "seq runs out", "10 c 18446744073709551614 1", NEXT(1, 10, 0), -ERANGE, 0, 0, 0, 0 },

	{ "a rescue into an empty directory", "", ADD(50), 0, 1, NONE, NONE, 0 },
	{ "a rescue after another", "40 c 1 1", ADD(50), 0, 2, 40, 40, 0 },
	{ "a rescue past what is set aside or begun", "60 t 0 2, 40 c 1 1, 70 a 2 1", ADD(50), 0, 3,
	  40, 40, 0 },
	{ "into a job that has it", "50 c 1 1", ADD(50), -EEXIST, 0, 0, 0, 0 },
	{ "into a job that is further", "60 d 0 0, 40 c 1 1", ADD(50), -EEXIST, 0, 0, 0, 0 },
	{ "into a job whose newest is damaged", "45 d 0 0, 40 c 3 1", ADD(50), 0, 5, 40, 45, 0 },
	{ "into a job whose newest is misplaced", "45 m 0 0, 40 c 3 1", ADD(50), 0, 5, 40, 45, 0 },
	{ "into a job whose newest a newer version wrote", "45 n 0 0, 40 c 3 1", ADD(50), 0, 5, 40,
	  45, 0 },
	{ "into a job whose newest an older version wrote", "45 o 0 0, 40 c 3 1", ADD(50), 0, 5, 40,
	  45, 0 },
	{ "into a job whose newest is in quarantine", "45 q 4 1, 40 c 3 1", ADD(50), 0, 5, 40, 45,
	  0 },

	{ "the only one is mended", "50 d 0 0", MEND(50), 0, 1, NONE, NONE, 0 },
	{ "a middle one", "30 c 3 1, 20 d 0 0, 10 c 1 1", MEND(20), 0, 2, 10, NONE, 0 },
	{ "the newest", "30 d 0 0, 20 c 2 1", MEND(30), 0, 3, 20, NONE, 0 },
	{ "the newest, lost ones below", "40 d 0 0, 30 m 0 0, 20 n 0 0, 10 c 1 1", MEND(40), 0, 4,
	  10, NONE, 0 },
	{ "the newest, a line set aside", "30 d 0 0, 20 c 2 1, 40 a 7 1", MEND(30), 0, 8, 20, NONE,
	  0 },
	{ "two neighbours that leave nothing", "30 c 3 1, 20 d 0 0, 10 c 2 1", MEND(20), -ERANGE, 0,
	  0, 0, 0 },
	{ "the oldest has nothing below", "30 c 1 1, 20 d 0 0", MEND(20), -ERANGE, 0, 0, 0, 0 },
	{ "the oldest", "30 c 2 1, 20 d 0 0", MEND(20), 0, 1, NONE, NONE, 0 },
	{ "a parent in quarantine", "30 c 4 1, 20 d 0 0, 10 q 1 1", MEND(20), 0, 3, 10, NONE, 0 },
	{ "the numbers run out", "30 d 0 0, 10 c 18446744073709551614 1", MEND(30), -ERANGE, 0, 0,
	  0, 0 },
};

static uint32_t scan_make(const char *text, struct store_step step[8])
{
	static const char letter[] = "ctadqmno";
	uint32_t n = 0;

	while (*text) {
		struct store_step *st = &step[n++];
		char state;
		int used = 0;

		*st = (struct store_step){ .parent_step = NONE };
		assert_int_equal(sscanf(text, "%" SCNu64 " %c %" SCNu64 " %" SCNu64 "%n", &st->step,
					&state, &st->seq, &st->generation, &used),
				 4);
		st->state = state == 'u' ? STORE_DAMAGED
					 : (enum store_state)(strchr(letter, state) - letter);
		st->code = state == 'u' ? -EIO : state == 'd' ? -EBADMSG : 0;
		if (st->state == STORE_NEWER || st->state == STORE_OLDER)
			st->code = -EPROTONOSUPPORT;
		st->older = st->state == STORE_OLDER;
		memset(st->id, (int)st->step, sizeof st->id);
		text += used;
		text += *text == ',' ? 2 : 0;
	}
	return n;
}

TEST(each_situation_has_its_seq_its_parent_and_its_line)
{
	for (uint32_t i = 0; i < ARRAY_LEN(situation); i++) {
		const struct situation *x = &situation[i];
		struct store_step step[8];
		struct lineage at;
		uint8_t id[16] = { 0 };
		uint32_t n = scan_make(x->scan, step);
		int r = lineage_find(&x->ask, step, n, &at, &err);

		if (r != x->rc)
			fail_msg("%s: %d instead of %d", x->name, r, x->rc);
		if (r) {
			assert_true(err.msg[0]);
			continue;
		}
		if (at.seq != x->seq || at.parent_step != x->parent || at.rewind != x->rewind ||
		    at.there_already != x->there)
			fail_msg("%s: seq %" PRIu64 ", parent %" PRIu64 ", rewind %" PRIu64 ", %d",
				 x->name, at.seq, at.parent_step, at.rewind, at.there_already);
		if (x->parent != NONE)
			memset(id, (int)x->parent, sizeof id);
		assert_memory_equal(at.parent_id, id, sizeof id);
	}
}

TEST(a_scan_says_the_same)
{
	struct lineage_ask ask = { .how = LINEAGE_NEXT,
				   .job = CRASH_JOB,
				   .step = 40,
				   .generation = s->generation,
				   .continues = 10 };
	struct lineage at;

	assert_int_equal(lineage_scan(s, &ask, &at, &err), 0);
	assert_true(at.seq == 4 && at.parent_step == 30 && at.rewind == 30);
	ask.generation++;
	assert_int_equal(lineage_scan(s, &ask, &at, &err), 0);
	assert_true(at.seq == 4 && at.parent_step == 10 && at.rewind == 10);
	save(15, 10); /* 20 and 30 are set aside */
	ask.how = LINEAGE_ADD;
	assert_int_equal(lineage_scan(s, &ask, &at, &err), 0);
	assert_true(at.seq == 5 && at.parent_step == 15 && at.rewind == 15);
	ask.step = 15;
	assert_int_equal(lineage_scan(s, &ask, &at, &err), -EEXIST);
	(void)close(TAKE_FD(s->job_fd));
	assert_int_equal(lineage_scan(s, &ask, &at, &err), -EBADF);
	s->job_fd = openat(place.fd, CRASH_JOB, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

/* --- what a launch knows --- */
static struct lineage_known K;

/* Step n of this launch: was all read for it? Its place is always the one that a scan finds. */
static bool next_reads(uint64_t n, bool commit)
{
	struct lineage_ask ask = { .how = LINEAGE_NEXT,
				   .job = CRASH_JOB,
				   .step = n,
				   .generation = s->generation,
				   .continues = K.set ? K.step : 30 };
	struct lineage at, scanned;
	bool reads;

	assert_int_equal(lineage_scan(s, &ask, &scanned, &err), 0);
	assert_int_equal(lineage_next(s, &ask, &K, &at, &reads, &err), 0);
	assert_int_equal(at.seq, scanned.seq);
	assert_int_equal(at.parent_step, scanned.parent_step);
	assert_memory_equal(at.parent_id, scanned.parent_id, 16);
	assert_int_equal(at.rewind, scanned.rewind);
	assert_int_equal(at.there_already, scanned.there_already);
	if (commit) {
		struct store_step *step;
		uint32_t count;

		assert_int_equal(try_save(s, n, at.seq, at.rewind), 0);
		assert_int_equal(store_scan(s, true, &step, &count, &err), 0);
		lineage_committed(s, &ask, &at, step[0].id, &K);
		assert_int_equal(step[0].step, n);
		free(step);
	}
	return reads;
}

TEST(a_launch_reads_its_line_once)
{
	assert_true(next_reads(40, true));
	for (uint64_t n = 50; n < 100; n += 10)
		assert_false(next_reads(n, true));
	/* What nobody continues may go. */
	move("step-000000000020", "elsewhere");
	assert_false(next_reads(100, true));
	lineage_forget(&K);
}

TEST(a_line_that_somebody_has_changed_is_read_again)
{
	static const char *const step = "step-000000000040";
	struct lineage_ask ask = { .how = LINEAGE_NEXT, .job = CRASH_JOB, .step = 70 };
	struct lineage at;
	bool reads;

	for (int how = 0; how < 8; how++) {
		AFRESH();
		assert_true(next_reads(40, true));
		switch (how) {
		case 0: /* a directory comes */
			put_dir(s->job_fd, "step-000000000035");
			break;
		case 1: /* one that was set aside does */
			put_dir(s->job_fd, ".old-000000000025-s9");
			break;
		case 2: /* the newest step goes */
			move(step, "elsewhere");
			break;
		case 3: /* ... and another one takes its place */
			move(step, "elsewhere");
			move("step-000000000030", step);
			break;
		case 4: /* it is found damaged */
			label(40, LABEL_BAD, NULL);
			break;
		case 5: /* its MANIFEST is made anew */
		{
			int fd = dir_open(s->job_fd, step);

			assert_int_equal(unlinkat(fd, "MANIFEST", 0), 0);
			put_file(fd, "MANIFEST");
			(void)close(fd);
			break;
		}
		case 6: /* another launch's */
			ask = (struct lineage_ask){ .how = LINEAGE_NEXT,
						    .job = CRASH_JOB,
						    .step = 70,
						    .generation = s->generation + 1,
						    .continues = 40 };
			assert_int_equal(lineage_next(s, &ask, &K, &at, &reads, &err), 0);
			assert_true(reads);
			lineage_forget(&K);
			continue;
		case 7: /* the launch goes back */
			ask = (struct lineage_ask){ .how = LINEAGE_NEXT,
						    .job = CRASH_JOB,
						    .step = 70,
						    .generation = s->generation,
						    .continues = 20 };
			assert_int_equal(lineage_next(s, &ask, &K, &at, &reads, &err), 0);
			assert_true(reads);
			lineage_forget(&K);
			continue;
		}
		assert_true(next_reads(70, false));
		lineage_forget(&K);
	}
}

TEST(where_files_cannot_be_told_apart_the_line_is_read_each_time)
{
	ops.stat_at = NULL;
	ops.stat = NULL;
	for (uint64_t n = 40; n < 70; n += 10)
		assert_true(next_reads(n, true));
	lineage_forget(&K);
}

UNIT(.setup = job_make_three, .teardown = job_remove);
