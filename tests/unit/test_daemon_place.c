/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_place.c - the job's directory is moved, removed or replaced, between launches and in
 * mid-training, while ckptd lives and while it is dead: nothing is written to, set aside in or
 * removed from what was taken away, training goes on, what is staged stays, and ckptd goes on when
 * the directory comes back. CKPT_TEST_LOG=1 shows the daemon's log.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include <dirent.h>

static char job_dir[160], kept_dir[160], root_kept[160], to_dir[160];

enum way {
	MOVED,
	MADE_ANEW,
	SWAPPED, /* with another job's directory that has steps */
	REMOVED,
	LINKED,
	A_FILE,
	ROOT_MOVED,
	ROOT_MADE_ANEW,
	WAYS,
};
static const char *const way_name[WAYS] = {
	"moved",  "made anew", "swapped",    "removed",
	"linked", "a file",    "root moved", "root made anew",
};

static struct plan_of_job P;

/* As ckptd --keep-last 2. */
static int setup(void **state)
{
	(void)host_setup(state);
	H.opts.policy.keep_last = 2;
	P = plan("j", "fsdp=1", .shared_only = true, .persist_every = 1000);
	snprintf(job_dir, sizeof job_dir, "%s/j", H.store);
	snprintf(kept_dir, sizeof kept_dir, "%s/kept", H.store);
	snprintf(root_kept, sizeof root_kept, "%s.kept", H.store);
	snprintf(to_dir, sizeof to_dir, "%s/to", H.dir);
	host_start(&H, NULL);
	return mkdir(to_dir, 0700);
}

static void remove_tree(const char *path)
{
	MUST(io_tree_remove(AT_FDCWD, path) == 0);
}

static void put_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);

	MUST(fd >= 0);
	(void)close(fd);
}

static void take_away(enum way way)
{
	if (way == REMOVED)
		remove_tree(job_dir);
	else if (way < ROOT_MOVED)
		MUST(rename(job_dir, kept_dir) == 0);
	else
		MUST(rename(H.store, root_kept) == 0);
	if (way == MADE_ANEW)
		MUST(mkdir(job_dir, 0700) == 0);
	else if (way == LINKED)
		MUST(symlink("kept", job_dir) == 0);
	else if (way == A_FILE)
		put_file(job_dir);
	else if (way == ROOT_MADE_ANEW)
		MUST(mkdir(H.store, 0700) == 0);
}

static void bring_back(enum way way)
{
	if (way == LINKED || way == A_FILE)
		MUST(unlink(job_dir) == 0);
	else if (way < ROOT_MOVED && access(job_dir, F_OK) == 0)
		remove_tree(job_dir);
	else if (way >= ROOT_MOVED && access(H.store, F_OK) == 0)
		remove_tree(H.store);
	MUST(rename(way < ROOT_MOVED ? kept_dir : root_kept,
		    way < ROOT_MOVED ? job_dir : H.store) == 0);
}

/* Every name below a directory, in order: what is in it is as it was, or not. */
static void names_of(const char *dir, char *ret, size_t bytes)
{
	struct dirent **name;
	int n = scandir(dir, &name, NULL, alphasort);

	for (int i = 0; i < n; i++) {
		char path[512];
		size_t len = strlen(ret);

		if (name[i]->d_name[0] != '.' || name[i]->d_name[1] > '.') {
			snprintf(ret + len, bytes - len, "%s ", name[i]->d_name);
			snprintf(path, sizeof path, "%.200s/%.200s", dir, name[i]->d_name);
			if (name[i]->d_type == DT_DIR)
				names_of(path, ret, bytes);
		}
		free(name[i]);
	}
	if (n >= 0)
		free(name);
}

static char before[8192], after[8192];

static const char *archive_of(enum way way)
{
	static char path[200];

	if (way < ROOT_MOVED)
		return kept_dir;
	snprintf(path, sizeof path, "%s/j", root_kept);
	return path;
}

static const char *names_in(const char *dir, char *ret, size_t bytes)
{
	ret[0] = 0;
	names_of(dir, ret, bytes);
	return ret;
}

static void note_archive(enum way way)
{
	assert_non_null(strstr(names_in(archive_of(way), before, sizeof before), "step-"));
}

static void assert_archive_untouched(enum way way)
{
	if (strcmp(before, names_in(archive_of(way), after, sizeof after)) != 0)
		fail_msg("%s: the archive was %s, and is %s", way_name[way], before, after);
}

static void step_held(struct rank *k, uint64_t step, uint32_t flags)
{
	int rc = rank_step(k, step, flags);

	MUST(rc == 0 || rc == CKPT_FAILING);
	must_wait(k, step, CKPT_STAGED);
	(void)ckpt_guard(k->c, NULL);
}

static void step_written(struct rank *k, uint64_t step)
{
	step_held(k, step, CKPT_PERSIST);
	must_wait(k, step, CKPT_COMMITTED);
}

/* And the policy has done its work: two steps are left. */
static void three_written(struct rank *k, uint64_t from)
{
	struct asker a;

	for (uint64_t i = 1; i <= 3; i++)
		step_written(k, from + i);
	ask_open(&a, H.socket);
	ask_until(host_count(&H, "j", STORE_COMMITTED) == 2 && host_has(&H, "j", from + 3) &&
		  !strstr(names_in(job_dir, after, sizeof after), ".trash"));
	ask_close(&a);
}

static void open_rank(struct rank *k)
{
	*k = (struct rank){ 0 };
	rank_open(k, &P, 0);
}

static int restored(struct rank *k, uint64_t *ret)
{
	int rc = rank_restore(k, CKPT_LATEST, 0);

	*ret = k->got.step;
	return rc;
}

/* --- between launches --- */
TEST(the_next_launch_belongs_to_what_the_name_leads_to)
{
	for (enum way way = 0; way < WAYS; way++) {
		uint64_t step;

		open_rank(&K);
		three_written(&K, 0);
		rank_close(&K, 0);
		take_away(way);
		if (way == SWAPPED) {
			char spare[160], path[200];

			snprintf(spare, sizeof spare, "%s/spare", H.store);
			snprintf(path, sizeof path, "%s/j", spare);
			P.store = spare;
			open_rank(&K);
			step_written(&K, 100);
			rank_close(&K, 0);
			MUST(rename(path, job_dir) == 0 && rmdir(spare) == 0);
			P.store = H.store;
		}
		if (way != REMOVED)
			note_archive(way);
		K = (struct rank){ 0 };
		if (way == LINKED || way == A_FILE) {
			assert_true(rank_attach(&K, &P, 0) < 0);
			assert_non_null(strstr(K.err.msg, "job j"));
			rank_free(&K);
		} else {
			open_rank(&K);
			/* what is staged in memory is the other directory's */
			assert_int_equal(restored(&K, &step), way == SWAPPED ? 0 : -ENOENT);
			assert_true(way != SWAPPED || step == 100);
			three_written(&K, 100);
			rank_close(&K, 0);
			assert_int_equal(host_count(&H, "j", STORE_SET_ASIDE), 0);
		}
		if (way != REMOVED) {
			assert_archive_untouched(way);
			bring_back(way);
			open_rank(&K);
			assert_int_equal(restored(&K, &step), 0);
			assert_int_equal(step, 3);
			step_written(&K, 4);
			assert_int_equal(host_count(&H, "j", STORE_SET_ASIDE), 0);
			rank_close(&K, 0);
		}
		(void)host_teardown(state);
		(void)setup(state);
	}
}

TEST(what_was_staged_for_a_directory_is_restored_when_it_is_back)
{
	uint64_t step;

	open_rank(&K);
	step_written(&K, 1);
	step_held(&K, 7, 0);
	take_away(MOVED);
	rank_close(&K, 0);
	open_rank(&K); /* into a new directory: nothing of that is its own */
	assert_int_equal(restored(&K, &step), -ENOENT);
	step_written(&K, 100);
	rank_close(&K, 0);
	bring_back(MOVED);
	open_rank(&K); /* before ckptd has looked, or after: from memory, or from disk */
	assert_int_equal(restored(&K, &step), 0);
	assert_int_equal(step, 7);
	step_written(&K, 8);
}

TEST(a_number_that_was_there_begins_anew_in_another_directory_alone)
{
	P.generation = 7;
	open_rank(&K);
	step_written(&K, 1);
	rank_close(&K, 0);
	for (P.generation = 6; P.generation <= 7; P.generation++) {
		K = (struct rank){ 0 };
		assert_int_equal(rank_attach(&K, &P, 0), -ESTALE);
		assert_non_null(strstr(K.err.msg, "higher"));
		rank_free(&K);
	}
	P.generation = 6;
	take_away(REMOVED);
	open_rank(&K);
	step_written(&K, 2);
	assert_true(host_has(&H, "j", 2));
}

/* --- in mid-training --- */
TEST(a_commit_fails_training_goes_on_and_what_comes_back_is_gone_on_with)
{
	for (enum way way = 0; way < WAYS; way++) {
		const struct wire_report_job *j;
		struct asker a;
		uint64_t step;

		if (way == SWAPPED || way == REMOVED)
			continue;
		ask_open(&a, H.socket);
		open_rank(&K);
		three_written(&K, 0);
		take_away(way);
		note_archive(way);
		for (uint64_t i = 4; i <= 6; i++) {
			step_held(&K, i, CKPT_PERSIST);
			assert_int_equal(rank_wait(&K, i, CKPT_COMMITTED), -EIO);
			assert_non_null(
				strstr(K.err.msg, "the directory of job j was moved or replaced"));
		}
		ask_until((j = ask_job(&a, "j"))->failing_wall_ns);
		assert_non_null(strstr(j->failing, "was moved or replaced"));
		assert_true(j->attached == 1 && j->failed >= 3);
		step_held(&K, 7, 0); /* which persist_every does not ask for */
		assert_archive_untouched(way);
		if (way == MADE_ANEW || way == ROOT_MADE_ANEW)
			assert_int_equal(rmdir(way == MADE_ANEW ? job_dir : H.store), 0);
		if (way == ROOT_MADE_ANEW)
			MUST(mkdir(H.store, 0700) == 0);
		bring_back(way);
		ask_until(host_has(&H, "j", 7));
		ask_until(!(j = ask_job(&a, "j"))->failing_wall_ns && !j->failing[0]);
		step_written(&K, 8);
		assert_int_equal(host_count(&H, "j", STORE_SET_ASIDE), 0);
		rank_close(&K, 0);
		ask_close(&a);
		open_rank(&K);
		assert_int_equal(restored(&K, &step), 0);
		assert_true(step == 8 && rank_check(&K, 8));
		rank_close(&K, 0);
		(void)host_teardown(state);
		(void)setup(state);
	}
}

/* A host's view of what was drained elsewhere. */
static struct host elsewhere(void)
{
	struct host h = H;

	snprintf(h.store, sizeof h.store, "%.107s", to_dir);
	return h;
}

TEST(what_is_staged_outlives_its_directory_and_is_rescued_to_another)
{
	struct wire_drained d = { 0 };
	struct rank next;
	struct host e;
	uint64_t step;

	ask_open(&A, H.socket);
	open_rank(&K);
	step_written(&K, 1);
	take_away(REMOVED);
	step_held(&K, 2, CKPT_PERSIST);
	assert_int_equal(rank_wait(&K, 2, CKPT_COMMITTED), -EIO);
	rank_close(&K, 0); /* what is staged is tried once more, in vain */
	ask_until(ask_job(&A, "j")->failed == 2 && ask_job(&A, "j")->attached == 0);
	/* the next launch begins anew, and does not replace it */
	open_rank(&next);
	assert_int_equal(restored(&next, &step), -ENOENT);
	step_written(&next, 1);
	step_written(&next, 2);
	assert_int_equal(ask_drain(&A, "j", to_dir, WIRE_TO, &d), WIRE_DRAINED);
	assert_true(d.failed == 0 && d.written == 1);
	e = elsewhere();
	assert_true(host_has(&e, "j", 2));
	assert_int_equal(host_count(&e, "j", STORE_SET_ASIDE), 0);
	assert_int_equal(host_committed(&H, "j", &step, 1), 2);
	rank_close(&next, 0);
	/* it is whole: a job that is given that directory goes on from it */
	P.store = to_dir;
	open_rank(&K);
	assert_int_equal(restored(&K, &step), 0);
	assert_true(step == 2 && rank_check(&K, 2));
	step_written(&K, 3);
	rank_close(&K, 0);
}

TEST(a_copy_of_what_is_staged_is_not_counted_as_kept)
{
	struct wire_forget m = { 0 };
	struct wire_forgotten f = { 0 };
	struct wire_drained d = { 0 };
	struct host e = elsewhere();

	ask_open(&A, H.socket);
	open_rank(&K);
	step_written(&K, 1);
	take_away(REMOVED);
	step_held(&K, 2, 0);
	rank_close(&K, 0); /* it cannot be written */
	ask_until(ask_job(&A, "j")->attached == 0 && ask_job(&A, "j")->failed == 1);
	assert_int_equal(ask_drain(&A, "j", to_dir, WIRE_TO | WIRE_COPY, &d), WIRE_DRAINED);
	assert_true(d.failed == 0 && d.written == 1);
	assert_int_equal(said_times(&daemon_said, "rescue: step 2 of job j is in"), 0); /* a copy */
	assert_true(host_has(&e, "j", 2));
	m.job = ask_job(&A, "j")->id;
	assert_int_equal(ask(&A, &m, WIRE_FORGET, sizeof m, &f, sizeof f), WIRE_REFUSE);
	assert_int_equal(A.refused.code, -EBUSY);
	assert_non_null(strstr(A.refused.text, "not on disk"));
	/* it can be had again, and be rescued for good */
	remove_tree(to_dir);
	MUST(mkdir(to_dir, 0700) == 0);
	assert_int_equal(ask_drain(&A, "j", to_dir, WIRE_TO, &d), WIRE_DRAINED);
	assert_true(d.failed == 0 && d.written == 1);
	assert_soon(said_times(&daemon_said, "rescue: step 2 of job j is in") == 1);
	assert_int_equal(ask(&A, &m, WIRE_FORGET, sizeof m, &f, sizeof f), WIRE_FORGOTTEN);
	assert_int_equal(f.lost, 0);
}

TEST(a_drain_to_a_directory_continues_what_is_there_and_takes_nothing_away)
{
	struct wire_drained d = { 0 };
	struct host e = elsewhere();
	char path[200];

	ask_open(&A, H.socket);
	open_rank(&K);
	snprintf(path, sizeof path, "%s/j", to_dir);
	assert_int_equal(ask_drain(&A, "j", to_dir, WIRE_TO, &d),
			 WIRE_DRAINED); /* nothing is staged */
	assert_true(d.written == 0 && d.failed == 0 && access(path, F_OK) < 0);
	for (uint64_t i = 10; i <= 30; i += 10) {
		step_held(&K, i, 0);
		assert_int_equal(ask_drain(&A, "j", to_dir, WIRE_TO, &d), WIRE_DRAINED);
		assert_true(d.written == 1 && d.failed == 0);
		assert_true(host_has(&e, "j", i) && !host_has(&H, "j", i));
	}
	assert_int_equal(host_count(&e, "j", STORE_COMMITTED), 3);
	assert_int_equal(host_count(&e, "j", STORE_SET_ASIDE), 0);
	assert_int_equal(ask_drain(&A, "j", to_dir, WIRE_TO, &d), WIRE_DRAINED);
	assert_true(d.written == 0 && d.failed == 1 && d.code == -EEXIST);
	assert_non_null(strstr(d.text, "step 30 exists already"));
	assert_int_equal(host_count(&e, "j", STORE_COMMITTED), 3);
	/* the job's own store: the launch would lose its claim */
	assert_int_equal(ask_drain(&A, "j", H.store, WIRE_TO, &d), WIRE_DRAINED);
	assert_true(d.failed == 1 && d.code == -EINVAL);
	step_written(&K, 40);
	/* its line has only what it committed itself */
	assert_int_equal(host_count(&H, "j", STORE_COMMITTED), 1);
}

TEST(a_drain_of_one_job_leaves_the_others_and_a_failed_step_is_written_again)
{
	struct plan_of_job other = P;
	struct wire_drain m = { 0 };
	struct wire_drained d = { 0 };
	struct rank k, l = { 0 };

	other.job = "other";
	ask_open(&A, H.socket);
	open_rank(&k);
	rank_open(&l, &other, 0);
	step_held(&k, 1, 0);
	step_held(&l, 1, 0);
	assert_int_equal(ask_drain(&A, "other", NULL, 0, &d), WIRE_DRAINED);
	assert_true(d.written == 1 && d.failed == 0);
	assert_true(host_has(&H, "other", 1) && !host_has(&H, "j", 1));
	take_away(MOVED);
	assert_int_equal(ask_drain(&A, "j", NULL, 0, &d), WIRE_DRAINED);
	assert_true(d.failed == 1 && d.code == -EIO);
	assert_non_null(strstr(d.text, "drain j --to DIR"));
	bring_back(MOVED);
	assert_int_equal(ask_drain(&A, "j", NULL, 0, &d), WIRE_DRAINED);
	assert_true(d.failed == 0 && host_has(&H, "j", 1));
	m.job = 99;
	assert_int_equal(ask(&A, &m, WIRE_DRAIN, sizeof m, &d, sizeof d), WIRE_REFUSE);
	assert_int_equal(A.refused.code, -ENOENT);
	rank_close(&k, 0);
	rank_close(&l, 0);
}

/* --- while no daemon lives --- */
TEST(one_that_comes_back_to_another_daemon_comes_back_to_its_directory_or_waits)
{
	for (enum way way = 0; way <= WAYS; way++) {
		char claims[200], hidden[200];
		struct asker a;
		uint64_t step = 3;

		if (way == SWAPPED || way == REMOVED)
			continue;
		open_rank(&K);
		step_written(&K, 1);
		step_held(&K, 2, 0);
		host_kill(&H);
		/* or the directory's number was given away again: the launch's claim is not in
		 * it */
		snprintf(claims, sizeof claims, "%s/.ckptd", job_dir);
		snprintf(hidden, sizeof hidden, "%s/hidden", H.dir);
		if (way == WAYS)
			MUST(rename(claims, hidden) == 0);
		else
			take_away(way);
		if (way < WAYS)
			note_archive(way);
		/* The rank brings the root that it had: it must be back before the rank comes,
		 * which may be at once. */
		if (way == ROOT_MOVED || way == ROOT_MADE_ANEW)
			bring_back(way);
		host_start(&H, NULL);
		ask_open(&a, H.socket);
		if (way < ROOT_MOVED || way == WAYS) {
			ask_until(ask_job(&a, "j") &&
				  strstr(ask_job(&a, "j")->error, "moved or replaced"));
			assert_int_equal(rank_step(&K, step, CKPT_PERSIST), CKPT_DETACHED);
			(void)ckpt_guard(K.c, NULL);
			if (way < WAYS)
				assert_archive_untouched(way);
			if (way == MADE_ANEW)
				assert_int_equal(rmdir(job_dir), 0); /* nothing was put there */
		}
		if (way == WAYS) {
			if (access(claims, F_OK) == 0)
				remove_tree(claims);
			MUST(rename(hidden, claims) == 0);
		} else if (way < ROOT_MOVED) {
			bring_back(way);
		}
		ask_until(ask_job(&a, "j") && ask_job(&a, "j")->launch == WIRE_READY);
		ask_until(rank_step(&K, ++step, CKPT_PERSIST) == 0);
		(void)ckpt_guard(K.c, NULL);
		must_wait(&K, step, CKPT_COMMITTED);
		assert_true(host_has(&H, "j", 1) && host_has(&H, "j", step));
		assert_int_equal(host_count(&H, "j", STORE_SET_ASIDE), 0);
		rank_close(&K, 0);
		ask_close(&a);
		(void)host_teardown(state);
		(void)setup(state);
	}
}

UNIT(.setup = setup, .teardown = host_teardown);
