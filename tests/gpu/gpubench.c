// SPDX-License-Identifier: Apache-2.0
// gpubench.c - `make bench-gpu`, build/gpu/run.sh bench: experiments on a GPU, each in a process of
// its own. Prints a row a line, and merges the rows into one document (gpu_rows.h).
// Invariant: an experiment that dies, hangs or writes nothing is a failed row.
#include "tests/gpu/gpubench.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include <fcntl.h>
#include <ftw.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>

#define SECONDS_MAX 360 /* of an experiment */

struct bench bench;

static const struct experiment {
	const char *name, *about;
	void (*run)(void);
} experiments[] = {
	{ "E0", "what this machine is", e0_machine },
	{ "E1", "copies out of the device, by kind of memory, size and depth", e1_link },
	{ "E2", "registering host memory", e2_register },
	{ "E3", "a training loop without ckptd, beside itself", e3_noise },
	{ "E4", "the loop with snapshots", e4_snapshots },
	{ "E5", "copies by a second process, and kills of the owner of the memory", e5_pull },
	{ "E6", "small copies of the trainer during snapshots", e6_latency },
	{ "E7", "what each call costs the host", e7_calls },
	{ "E8", "one connection to the device", e8_connections },
	{ "E9", "SIGKILL", e9_deaths },
	{ "E10", "torch, FSDP2, beside dcp.async_save", e10_torch },
	{ "E11", "copying what is late aside, on the device", e11_spill },
	{ "E12", "reading back into the device", e12_reload },
	{ "E13", "the loop with averages and sums", e13_averages },
};

static void usage(FILE *f)
{
	fprintf(f,
		"usage: gpubench [options] [E=E1,E4]\n"
		"       gpubench [options] merge FILE    judge and merge rows (tests/gpu/gpu_rows.h)\n"
		"Experiments on a CUDA device; without E= all of them, in less than 25 minutes.\n\n"
		"  --out FILE       merge the rows into this document\n"
		"  --device N       the device; 0\n"
		"  --state-mib N    state of the loops that train; 2048\n"
		"  --dir DIR        where stores go, on the disk that is measured; $TMPDIR or /tmp\n"
		"  --small          small sizes and few rounds, for a look\n\n"
		"Exit: 0, 1 a row failed, 2 usage, or there is no device here.\n\n");
	for (size_t i = 0; i < ARRAY_LEN(experiments); i++)
		fprintf(f, "  %-4s %s\n", experiments[i].name, experiments[i].about);
}

/* --- processes --- */
static int machine_number; /* of the device */

static void dying(const char *sentence)
{
	row_fail("ended", "%s", sentence);
}

/* In the process of an experiment. */
static _Noreturn void experiment_process(const struct experiment *e, FILE *rows)
{
	struct ckpt_err err;

	(void)setpgid(0, 0);
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	rows_to(rows, e->name);
	gpu_dying = dying;
	if (gpu_open(machine_number, &err) < 0)
		gpu_die("%s", err.msg);
	e->run();
	fflush(rows);
	_exit(0);
}

/* Until its end, or for so many seconds; then it and what it started are killed: -1. */
static int process_wait(pid_t pid, unsigned seconds)
{
	uint64_t until = now_ns() + seconds * NS_PER_S;
	struct timespec t = { 0, 5 * NS_PER_MS };
	int status;

	for (;;) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got == pid) {
			(void)kill(-pid, SIGKILL); /* a daemon of it, say */
			return status;
		}
		if (now_ns() > until)
			break;
		nanosleep(&t, NULL);
	}
	(void)kill(-pid, SIGKILL);
	(void)kill(pid, SIGKILL);
	(void)waitpid(pid, &status, 0);
	return -1;
}

static void experiment_run(const struct experiment *e, FILE *rows)
{
	unsigned seconds = bench.small ? 200 : SECONDS_MAX;
	long before = ftell(rows), after;
	int status;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid < 0)
		gpu_die("no process for %s: %s", e->name, strerror(errno));
	if (pid == 0)
		experiment_process(e, rows);
	(void)setpgid(pid, pid);
	status = process_wait(pid, seconds);
	fseek(rows, 0, SEEK_END);
	after = ftell(rows);
	rows_to(rows, e->name);
	if (status == -1)
		row_fail("ended", "it was killed after %u seconds", seconds);
	else if (WIFSIGNALED(status))
		row_fail("ended", "signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
	else if (after == before)
		row_fail("ended", "it wrote no row, and ended with status %d", WEXITSTATUS(status));
	fseek(rows, before, SEEK_SET);
}

/* What the device is, asked in a process of its own: this one never opens it. */
struct asked {
	int rc;
	struct ckpt_err err;
	struct rows_from from;
};

static void machine_text(char *buf, size_t bytes)
{
	struct text t = text_in(buf, bytes);
	char line[256], *name;
	long kib = sysconf(_SC_PHYS_PAGES) / 1024 * (sysconf(_SC_PAGESIZE) / 1024);
	struct utsname u;
	FILE *f = fopen("/proc/cpuinfo", "re");

	text_add(&t, "%ld cores", sysconf(_SC_NPROCESSORS_ONLN));
	while (f && fgets(line, sizeof line, f))
		if (strncmp(line, "model name", 10) == 0 && (name = strchr(line, ':'))) {
			name[strcspn(name, "\n")] = 0;
			text_add(&t, " (%s)", name + 2);
			break;
		}
	if (f)
		(void)fclose(f);
	uname(&u);
	text_add(&t, ", %ld GiB, Linux %s", kib >> 10, u.release);
}

static void device_ask(struct asked *a)
{
	struct asked *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
				    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid;
	int status;

	if (shared == MAP_FAILED)
		abort();
	pid = fork();
	if (pid == 0) {
		shared->rc = gpu_open(machine_number, &shared->err);
		snprintf(shared->from.device, sizeof shared->from.device, "%s",
			 gpu.fake ? "fake" : gpu.name);
		snprintf(shared->from.driver, sizeof shared->from.driver, "CUDA %d.%d",
			 gpu.version / 1000, gpu.version % 1000 / 10);
		shared->from.fake = gpu.fake;
		_exit(0);
	}
	status = pid < 0 ? -1 : process_wait(pid, 60);
	*a = *shared;
	munmap(shared, sizeof *shared);
	if (status)
		a->rc = ckpt_error(&a->err, -EIO,
				   "the device did not open within a minute, or its driver ended "
				   "the process (status %d)",
				   status);
	machine_text(a->from.machine, sizeof a->from.machine);
}

/* --- gpubench again --- */
static char self[4096];

static _Noreturn void again(const char *what)
{
	int (*run)(void) = strcmp(what, "connections") == 0 ? again_connections
			   : strcmp(what, "trainer") == 0   ? again_trainer
			   : strcmp(what, "nccl") == 0	    ? again_nccl
			   : strcmp(what, "pull") == 0	    ? again_pull
			   : strcmp(what, "owner") == 0	    ? again_owner
							    : NULL;
	struct ckpt_err err;

	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (!run)
		gpu_die("gpubench again %s: there is no such part", what);
	if (gpu_open(machine_number, &err) < 0)
		gpu_die("%s", err.msg);
	exit(run());
}

static _Noreturn void again_exec(const char *what, const char *name, const char *value, int out)
{
	char device[16], state[32];
	char *argv[] = {
		self,	 "--device",	    device,  "--state-mib", state,
		"--dir", (char *)bench.dir, "again", (char *)what,  bench.small ? "--small" : NULL,
		NULL
	};

	snprintf(device, sizeof device, "%d", machine_number);
	snprintf(state, sizeof state, "%llu", (unsigned long long)(bench.state_bytes >> 20));
	if (name)
		setenv(name, value, 1);
	(void)dup2(out, 1);
	(void)dup2(out, 2);
	execv(self, argv);
	_exit(127);
}

int again_run(const char *what, const char *name, const char *value, unsigned seconds, char *out,
	      size_t bytes, int *ret_status)
{
	int fd = memfd_create("out", MFD_CLOEXEC), status;
	ssize_t n;
	pid_t pid = fd < 0 ? -1 : fork();

	if (pid < 0)
		return -errno;
	if (pid == 0)
		again_exec(what, name, value, fd);
	status = process_wait(pid, seconds);
	n = pread(fd, out, bytes - 1, 0);
	out[MAX(n, (ssize_t)0)] = 0;
	(void)close(fd);
	*ret_status = status == -1 ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128;
	return 0;
}

/* --- the command line --- */
static bool selected[ARRAY_LEN(experiments)];

static int select_named(const char *names)
{
	cleanup_free char *list = strdup(names);
	char *save = NULL;

	for (char *name = strtok_r(list, ", ", &save); name; name = strtok_r(NULL, ", ", &save)) {
		size_t i = 0;

		while (i < ARRAY_LEN(experiments) && strcasecmp(experiments[i].name, name) != 0)
			i++;
		if (i == ARRAY_LEN(experiments)) {
			fprintf(stderr,
				"gpubench: there is no experiment '%s'; there are E0 to E%zu\n",
				name, ARRAY_LEN(experiments) - 1);
			return -1;
		}
		selected[i] = true;
	}
	return 0;
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *f)
{
	(void)st;
	(void)type;
	(void)f;
	return remove(path);
}

static uint64_t number_or_die(const char *option, const char *s, uint64_t max)
{
	char *end;
	uint64_t n;

	errno = 0;
	n = strtoull(s, &end, 10);
	if (end == s || *end || *s == '-' || errno || n > max) {
		fprintf(stderr, "gpubench: --%s '%s': it is a number, at most %llu\n", option, s,
			(unsigned long long)max);
		exit(2);
	}
	return n;
}

static int run_all(const struct rows_from *from, const char *out)
{
	struct rows_count count = { 0 };
	struct ckpt_err err;
	FILE *rows = tmpfile();
	int rc = 0;

	if (!rows)
		gpu_die("no temporary file: %s", strerror(errno));
	printf("%s, driver %s; %s\n", from->device, from->driver, from->machine);
	for (size_t i = 0; i < ARRAY_LEN(experiments) && rc == 0; i++)
		if (selected[i]) {
			uint64_t begin = now_ns();

			experiment_run(&experiments[i], rows);
			rc = rows_merge(rows, from, out, &count, &err);
			printf("    %s: %s: %.1f s\n", experiments[i].name, experiments[i].about,
			       (double)(now_ns() - begin) / 1e9);
			fseek(rows, 0, SEEK_END);
		}
	(void)fclose(rows);
	if (rc < 0) {
		fprintf(stderr, "gpubench: %s\n", err.msg);
		return 2;
	}
	printf("%u passed, %u failed, %u not judged, %u informational%s%s%s\n", count.passed,
	       count.failed, count.unjudged, count.info, out ? "; in " : "", out ? out : "",
	       out ? ", with what each row is" : "");
	return count.failed ? 1 : 0;
}

static int merge_file(const struct rows_from *from, const char *out, const char *file)
{
	struct rows_count count = { 0 };
	struct ckpt_err err;
	FILE *f = fopen(file, "re");
	int rc;

	if (!f) {
		fprintf(stderr, "gpubench: %s cannot be read: %s\n", file, strerror(errno));
		return 2;
	}
	rc = rows_merge(f, from, out, &count, &err);
	(void)fclose(f);
	if (rc < 0) {
		fprintf(stderr, "gpubench: %s\n", err.msg);
		return 2;
	}
	printf("%u passed, %u failed, %u not judged, %u informational\n", count.passed,
	       count.failed, count.unjudged, count.info);
	return count.failed ? 1 : 0;
}

static void sizes_choose(uint64_t state_mib)
{
	bench.state_bytes = (state_mib ? state_mib : bench.small ? 8 : 2048) << 20;
	bench.blocks = bench.small ? 2 : 6;
	bench.steps = bench.small ? 5 : 100;
	bench.seconds = bench.small ? 3 : 75;
}

static void self_find(void)
{
	static char programs[4096];
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	if (n < 0)
		gpu_die("/proc/self/exe cannot be read: %s", strerror(errno));
	memcpy(programs, self, sizeof self);
	*strrchr(programs, '/') = 0;
	bench.programs = programs;
}

static char *scratch_make(const char *dir)
{
	static char path[512];

	if (!dir)
		dir = getenv("TMPDIR");
	snprintf(path, sizeof path, "%s/gpubench.XXXXXX", dir && *dir ? dir : "/tmp");
	if (!mkdtemp(path)) {
		fprintf(stderr, "gpubench: no directory in %s: %s\n", dir, strerror(errno));
		exit(2);
	}
	return path;
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{ "out", 1, NULL, 'o' }, { "device", 1, NULL, 'd' }, { "state-mib", 1, NULL, 's' },
		{ "dir", 1, NULL, 'D' }, { "small", 0, NULL, 'S' },  { "help", 0, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char *out = NULL, *dir = NULL, *verb = NULL, *operand = NULL;
	uint64_t state_mib = 0;
	struct asked asked;
	struct ckpt_err err;
	bool any = false;
	int c, rc;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1)
		switch (c) {
		case 'o':
			out = optarg;
			break;
		case 'd':
			machine_number = (int)number_or_die("device", optarg, 1023);
			break;
		case 's':
			state_mib = number_or_die("state-mib", optarg, 1 << 20);
			break;
		case 'D':
			dir = optarg;
			break;
		case 'S':
			bench.small = true;
			break;
		case 'h':
			usage(stdout);
			return 0;
		default:
			usage(stderr);
			return 2;
		}
	for (int i = optind; i < argc; i++)
		if (strncmp(argv[i], "E=", 2) == 0) {
			if (select_named(argv[i] + 2) < 0)
				return 2;
		} else if (!verb) {
			verb = argv[i];
		} else if (!operand) {
			operand = argv[i];
		}
	self_find();
	sizes_choose(state_mib);
	if (verb && strcmp(verb, "again") == 0 && operand) {
		bench.dir = dir;
		again(operand);
	}
	if (verb && (strcmp(verb, "merge") != 0 || !operand)) {
		usage(stderr);
		return 2;
	}
	device_ask(&asked);
	rc = asked.rc < 0 ? asked.rc : rows_may(&asked.from, out, &err);
	if (rc < 0) {
		fprintf(stderr, "gpubench: %s\n", asked.rc < 0 ? asked.err.msg : err.msg);
		return 2;
	}
	if (verb)
		return merge_file(&asked.from, out, operand);
	for (size_t i = 0; i < ARRAY_LEN(experiments); i++)
		any |= selected[i];
	for (size_t i = 0; i < ARRAY_LEN(experiments); i++)
		selected[i] |= !any;
	bench.dir = scratch_make(dir);
	rc = run_all(&asked.from, out);
	(void)nftw(bench.dir, remove_one, 16, FTW_DEPTH | FTW_PHYS);
	return rc;
}
