/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_cli_faults.c - ckptctl on a disk that fails: of every command each call of the table of
 * system calls fails once, in every way that tests/lib/io_faults.h knows, until the command has no
 * call left to fail. It never lies: 0 means the same answer and the same files as on a good disk;
 * everything else has one of the documented exit codes and a sentence; checkpoints are what they
 * were; what it writes is whole or not there, and there when it is asked again on a good disk; no
 * descriptor leaks.
 *
 * FAULT_STEP=1 looks at every call (make torture); without it, at every call of some ways and at
 * every FAULT_STEP-th of the others.
 */
#include "tests/lib/cli_rig.h"
#include "tests/lib/scratch.h"
#include "tests/lib/io_faults.h"

/* The command's own table of system calls is the test's. */
static const struct io_ops *command_ops = &io_ops_posix;
#define io_ops_posix (*command_ops)
#include "ckpt/cli/cli.c"
#undef io_ops_posix

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define STEP 23
#else
#define STEP 5
#endif
#define WORDS_MAX 10

struct command {
	const char *name;
	const char *word[WORDS_MAX]; /* "@" is the directory of the run, "@/" a path in it */
	uint32_t every;		     /* in so many steps: it takes long */
	bool changes;		     /* labels or removes: the store is then a copy of its own */
	bool writes;		     /* below out/ */
};
static const struct command command[] = {
	{ "ls", { "ls", "--all", "@/store" }, 1, false, false },
	{ "show", { "show", "latest", "--tensors=*", "-C", "@/store/alpha" }, 1, false, false },
	{ "show files", { "show", "latest~1", "--files", "-C", "@/store/alpha" }, 1, false, false },
	{ "verify", { "verify", "step:20", "-C", "@/store/alpha" }, 1, false, false },
	{ "verify data", { "verify", "--data", "latest", "-C", "@/store/alpha" }, 7, true, false },
	{ "verify all", { "verify", "--data", "--all", "@/store" }, 40, true, false },
	{ "cat",
	  { "cat", "latest", "blob/rng", "--rank", "1", "-C", "@/store/alpha" },
	  1,
	  false,
	  false },
	{ "export",
	  { "export", "latest", "@/out/files", "--mesh", "fsdp=3", "-C", "@/store/plain" },
	  9,
	  false,
	  true },
	{ "convert",
	  { "convert", "latest", "@/out/on2", "--mesh", "fsdp=2", "-C", "@/store/alpha" },
	  13,
	  false,
	  true },
	{ "hold", { "hold", "step:10", "-C", "@/store/alpha" }, 3, true, false },
	{ "tag", { "tag", "step:20", "best", "-C", "@/store/alpha" }, 3, true, false },
	{ "prune dry", { "prune", "-n", "--keep-last", "1", "@/store/alpha" }, 1, false, false },
	{ "prune", { "prune", "--yes", "--keep-last", "1", "@/store/alpha" }, 3, true, false },
	{ "repair", { "repair", "--yes", "@/store/alpha" }, 2, true, false },
};

static char at[PATH_MAX]; /* the directory of a run */
static uint64_t runs, injections;

static uint64_t words_hash(const char *p, size_t len)
{
	return memfs_hash_bytes(p, len);
}

/* --- directories --- */

struct tree {
	uint64_t sum;
	size_t cut; /* of the path */
	bool bytes; /* else who a file is, and when it was written last */
};
static struct tree tree;

static int tree_add(const char *path, const struct stat *st, int type, struct FTW *f)
{
	const char *name = path + tree.cut;
	uint64_t h = words_hash(name, strlen(name));
	char *bytes;
	int fd;

	(void)f;
	/* claims, labels and what a run that failed left behind for the next one */
	if (strstr(name, "/.ckptd") || strstr(name, "/.trash-") || strstr(name, ".ckptctl"))
		return 0;
	if (type != FTW_F) {
		tree.sum += memfs_mix(h, 7);
		return 0;
	}
	h = memfs_mix(h, (uint64_t)st->st_size);
	if (!tree.bytes) {
		h = memfs_mix(h, st->st_ino);
		h = memfs_mix(h, (uint64_t)st->st_mtim.tv_sec);
		tree.sum += memfs_mix(h, (uint64_t)st->st_mtim.tv_nsec);
		return 0;
	}
	bytes = malloc((size_t)st->st_size + 1);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	assert_true(bytes && fd >= 0);
	assert_int_equal(pread(fd, bytes, (size_t)st->st_size, 0), st->st_size);
	tree.sum += memfs_mix(h, words_hash(bytes, (size_t)st->st_size));
	close(fd);
	free(bytes);
	return 0;
}

/* Of names and bytes below; 0: there is nothing. */
static uint64_t tree_of(const char *path, bool bytes)
{
	if (access(path, F_OK))
		return 0;
	tree = (struct tree){ .cut = strlen(path), .bytes = bytes };
	assert_int_equal(nftw(path, tree_add, 16, FTW_PHYS), 0);
	return tree.sum;
}

/* Files are links: nobody may write into what is committed. */
static void tree_copy(const char *from, const char *to)
{
	char f[512], t[512];
	DIR *d = opendir(from);

	assert_non_null(d);
	assert_int_equal(mkdir(to, 0700), 0);
	for (struct dirent *e; (e = readdir(d));) {
		if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
			continue;
		(void)snprintf(f, sizeof f, "%s/%s", from, e->d_name);
		(void)snprintf(t, sizeof t, "%s/%s", to, e->d_name);
		if (e->d_type == DT_DIR)
			tree_copy(f, t);
		else
			assert_int_equal(link(f, t), 0);
	}
	closedir(d);
}

/* --- a run --- */

struct answer {
	int code;
	uint64_t said, out, store; /* hashes of stdout, of what was written, of the store */
};

static void place_fresh(const struct command *c, bool all)
{
	if (access(path_of("%s/out", at), F_OK) == 0)
		remove_tree(path_of("%s/out", at));
	assert_int_equal(mkdir(path_of("%s/out", at), 0700), 0);
	if ((c->changes || all) && access(path_of("%s/store", at), F_OK) == 0)
		remove_tree(path_of("%s/store", at));
	if (access(path_of("%s/store", at), F_OK))
		tree_copy(work, path_of("%s/store", at));
}

static struct answer ask(const struct command *c, const struct io_ops *ops)
{
	char *argv[WORDS_MAX + 1] = { (char *)"ckptctl" };
	struct answer a;
	int argc = 1;

	for (uint32_t i = 0; i < WORDS_MAX && c->word[i]; i++)
		argv[argc++] = c->word[i][0] == '@' ? (char *)path_of("%s%s", at, c->word[i] + 1)
						    : (char *)c->word[i];
	command_ops = ops;
	run_argv(argc, argv);
	command_ops = &io_ops_posix;
	a.code = got.code;
	a.said = words_hash(got.out, got.out_len);
	a.out = tree_of(path_of("%s/out", at), true);
	a.store = tree_of(path_of("%s/store", at), false);
	return a;
}

static bool code_is_documented(int code)
{
	static const int codes[] = { 0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12, 13, 14, 15, 75 };

	for (uint32_t i = 0; i < ARRAY_LEN(codes); i++)
		if (codes[i] == code)
			return true;
	return false;
}

/* Does the answer say what it lacks? */
static bool says(const struct io_fault_kind *k)
{
	const char *why = strerror(-k->err);

	return k->err &&
	       (strstr(got.out, why) || strstr(got.err, why) ||
		strstr(got.out, "damaged: see ckptctl repair") || strstr(got.out, "left as it is"));
}

/* Latest is then an older one, and that is said. */
static bool says_passed_over(void)
{
	return strstr(got.err, "is passed over: ");
}

/* NULL: all holds. */
static const char *judge(const struct command *c, const struct answer *good, const struct answer *a,
			 const struct io_fault_kind *k, uint64_t empty_out, uint64_t store)
{
	if (!code_is_documented(a->code))
		return "an exit code that is none";
	if (a->code && got.err_len == 0 && !strstr(got.out, "FAULTY") && !says(k))
		return "it failed without a sentence";
	if (k->harmless && a->code != good->code)
		return "it should have gone on";
	if (a->code == 0 && a->said != good->said && !says(k))
		return "0, and another answer";
	if (a->code == 0 && (a->out != good->out || a->store != good->store) &&
	    !says_passed_over() && !says(k))
		return "0, and other files";
	if (a->code == CLI_CORRUPT && !says(k))
		return "it takes a disk that fails for a damaged checkpoint";
	if (!c->changes && a->store != store)
		return "the store has changed";
	if (strcmp(c->name, "convert") == 0 && a->out != good->out && a->out != empty_out &&
	    !says_passed_over())
		return "a part of the destination is there";
	return NULL;
}

/* On a good disk the same words lead to the same end. */
static const char *judge_again(const struct command *c, const struct answer *good,
			       const struct answer *first)
{
	struct answer again = ask(c, &io_ops_posix);

	if (again.out != good->out || again.store != good->store)
		return "asked again on a good disk it leaves other files";
	if (again.code == good->code || (c->changes && again.code == CLI_WARNINGS))
		return NULL;
	if (c->writes && first->out == good->out &&
	    (strstr(got.err, "exists already") || strstr(got.err, "exists and was not changed")))
		return NULL; /* whole, and perhaps not durable */
	return "asked again on a good disk it fails";
}

static bool fault_run(const struct command *c, const struct answer *good, uint64_t empty_out,
		      const struct io_fault_kind *k, uint64_t nth)
{
	uint64_t store;
	uint32_t files;
	struct answer a;
	struct io_faults f;
	const char *why;
	bool hit;

	place_fresh(c, false);
	store = tree_of(path_of("%s/store", at), false);
	io_faults_init(&f, &io_ops_posix);
	io_faults_plan(&f, k, nth);
	files = open_files();
	a = ask(c, &f.ops);
	hit = io_faults_hit(&f);
	runs++;
	injections += hit;
	why = judge(c, good, &a, k, empty_out, store);
	if (!why && open_files() != files)
		why = "descriptors leak";
	/* what restore has begun is in the way of the next, which says so; so is what was made of
	 * an older step */
	if (!why && a.code && !(a.code == CLI_WARNINGS && says_passed_over()) &&
	    (!c->writes || strcmp(c->name, "convert") == 0)) {
		char *said = strdup(got.err ? got.err : "");

		why = judge_again(c, good, &a);
		if (why)
			print_message("the first time: %s", said);
		free(said);
	}
	if (why)
		fail_msg("%s, %s at call %llu: %s (exit %d)\nstdout: %s\nstderr: %s", c->name,
			 k->name, (unsigned long long)nth, why, a.code, got.out, got.err);
	return hit;
}

static void command_survives(void **state)
{
	const struct command *c = *state;
	const char *step_given = getenv("FAULT_STEP");
	uint64_t step = step_given ? strtoull(step_given, NULL, 0) : STEP, begun = now_ns();
	struct answer good;
	uint64_t empty_out;

	if (!cli_verb_find(c->word[0])) {
		print_message("there is no verb %s\n", c->word[0]);
		skip();
	}
	runs = injections = 0;
	place_fresh(c, true);
	empty_out = tree_of(path_of("%s/out", at), true);
	good = ask(c, &io_ops_posix);
	if (good.code != CLI_OK)
		fail_msg("%s: %d, %s%s", c->name, good.code, got.out, got.err);
	for (uint32_t k = 0; k < io_fault_kinds_n; k++) {
		/* the first way goes through every call; the others begin at different ones */
		uint64_t by = step == 1 ? 1 : step * c->every, nth = 1;

		if (k == 0)
			by = MAX(by / 5, UINT64_C(1));
		nth += k % by;

		while (fault_run(c, &good, empty_out, &io_fault_kinds[k], nth))
			nth += by;
	}
	print_message("%-12s %llu runs, %llu injections, %llu ms\n", c->name,
		      (unsigned long long)runs, (unsigned long long)injections,
		      (unsigned long long)((now_ns() - begun) / NS_PER_MS));
	assert_true(injections > 0);
}

static int make_place(void **state)
{
	int r = make_all(state);

	if (!r) {
		declare = declare_plain;
		make_step(work,
			  &(struct how){ "plain", "fsdp=2", 7, 1, UINT64_MAX, UINT64_MAX, false });
		declare = NULL;
	}
	(void)snprintf(at, sizeof at, "%s/at", top);
	return r ? r : mkdir(at, 0700);
}

static const struct CMUnitTest *cases(void)
{
	static struct CMUnitTest tests[ARRAY_LEN(command) + 1];

	for (uint32_t i = 0; i < ARRAY_LEN(command); i++)
		tests[i] = (struct CMUnitTest){ .name = command[i].name,
						.test_func = command_survives,
						.initial_state = (void *)&command[i] };
	return tests;
}
UNIT(.cases = cases, .group_setup = make_place, .group_teardown = drop_all);
