// SPDX-License-Identifier: Apache-2.0
// ckptd.c - the program ckptd: options, signals, going to the background. Everything else is
// daemon.h.
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "daemon/daemon.h"
#include <fcntl.h>
#include <getopt.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct daemon *running;

static const char usage[] =
	"usage: ckptd [options]\n"
	"The checkpoint daemon: one per user and host. Trainers that use libckpt find it\n"
	"by its socket. If a trainer with CKPT_AUTOSTART finds no ckptd, it starts one\n"
	"with --background --idle-exit 600 and no --keep option: that ckptd exits after\n"
	"ten minutes without a trainer. If you need other options, start ckptd yourself:\n"
	"if it exits, trainers wait 15 s for it before they start one. SIGHUP does not\n"
	"end it.\n"
	"\n"
	"  --socket PATH        listen on PATH; default: $CKPTD_SOCKET, or, if it is not\n"
	"                       set, /run/user/UID/ckptd/socket or /tmp/ckptd-UID/socket\n"
	"  --idle-exit SECONDS  exit after SECONDS without a trainer; default: never\n"
	"  --drain SECONDS      after SIGTERM, the longest time for writing the staged\n"
	"                       steps; default 300\n"
	"  --engine NAME        auto (default), uring or threads\n"
	"The --keep options are for jobs that have no policy of their own: that of a job\n"
	"(ckptctl keep; attach(keep_last=3)) counts instead of all of them.\n"
	"  --keep-last N        keep the newest N steps. With a --keep option, ckptd\n"
	"                       removes the steps that no --keep option keeps: after\n"
	"                       each commit, and if a step does not fit. It never\n"
	"                       removes the newest step, the newest one that it has\n"
	"                       read back and verified, nor one that is held, tagged,\n"
	"                       damaged or being read. Without a --keep option it\n"
	"                       removes no step\n"
	"  --keep-every N       keep steps that are multiples of N\n"
	"  --keep-within TIME   keep steps younger than TIME: 90m, 36h, 7d, 2w\n"
	"  --keep-best KEY      keep the step with the lowest note KEY; KEY:max keeps\n"
	"                       the one with the highest, KEY:min:3 the three lowest;\n"
	"                       for up to four notes\n"
	"  --set-aside-for TIME keep steps that were set aside, because the job went\n"
	"                       back to an older one, for TIME, whatever the options\n"
	"                       above say, so that ckptctl rewind can bring them back;\n"
	"                       default 7d. If a step does not fit, ckptd removes them\n"
	"                       first, the oldest first\n"
	"  --background         run in the background: the command returns when ckptd\n"
	"                       listens, and ckptd logs to SOCKET.log. At 16 MiB that\n"
	"                       becomes SOCKET.log.1, which replaces an older one\n"
	"  --quiet, --verbose   log warnings only; log everything\n"
	"  --version, --help\n"
	"\n"
	"Exit: 0 stopped, 2 usage, 11 another ckptd serves the socket, 12 the socket\n"
	"belongs to another user, 13 no space, 1 another error.\n";

static void on_signal(int sig)
{
	(void)sig;
	if (running)
		daemon_stop(running);
}

static int seconds_parse(const char *s, uint64_t *ret_ns)
{
	char *end;
	double x = strtod(s, &end);

	if (end == s || *end || !(x >= 0) || x > 1e9) {
		fprintf(stderr, "ckptd: '%s' is not a number of seconds\n", s);
		return -EINVAL;
	}
	*ret_ns = (uint64_t)(x * 1e9);
	return 0;
}

static int options_parse(int argc, char **argv, struct daemon_opts *o, bool *background)
{
	static const struct option known[] = {
		{ "socket", 1, NULL, 's' },
		{ "idle-exit", 1, NULL, 'i' },
		{ "drain", 1, NULL, 'd' },
		{ "engine", 1, NULL, 'e' },
		{ "background", 0, NULL, 'b' },
		{ "quiet", 0, NULL, 'q' },
		{ "verbose", 0, NULL, 'v' },
		{ "version", 0, NULL, 'V' },
		{ "help", 0, NULL, 'h' },
		{ "keep-last", 1, NULL, 'k' },
		{ "keep-every", 1, NULL, 'k' },
		{ "keep-within", 1, NULL, 'k' },
		{ "keep-best", 1, NULL, 'k' },
		{ "set-aside-for", 1, NULL, 'k' },
		{ 0 },
	};
	struct ckpt_err err = { 0 };
	int c, at = 0, rc = 0;

	while (rc == 0 && (c = getopt_long(argc, argv, "h", known, &at)) != -1) {
		switch (c) {
		case 's':
			o->socket = optarg;
			break;
		case 'i':
			rc = seconds_parse(optarg, &o->idle_exit_ns);
			break;
		case 'd':
			rc = seconds_parse(optarg, &o->drain_ns);
			break;
		case 'e':
			o->engine = strcmp(optarg, "uring") == 0     ? IO_URING
				    : strcmp(optarg, "threads") == 0 ? IO_THREADS
								     : IO_AUTO;
			if (o->engine == IO_AUTO && strcmp(optarg, "auto") != 0) {
				fprintf(stderr,
					"ckptd: engine '%s' is none of auto, uring, threads\n",
					optarg);
				rc = -EINVAL;
			}
			break;
		case 'k':
			rc = retain_parse(&o->policy, known[at].name, optarg, &err);
			if (rc < 0)
				fprintf(stderr, "ckptd: %s\n", err.msg);
			break;
		case 'b':
			*background = true;
			break;
		case 'q':
			o->log.level_max = LOG_WARNING;
			break;
		case 'v':
			o->log.level_max = LOG_DEBUG;
			break;
		case 'V':
			printf("%s\n", ckptd_version);
			exit(0);
		case 'h':
			fputs(usage, stdout);
			exit(0);
		default:
			rc = -EINVAL;
		}
	}
	if (rc == 0 && optind < argc) {
		fprintf(stderr, "ckptd: unexpected argument '%s'\n", argv[optind]);
		rc = -EINVAL;
	}
	if (rc < 0)
		fputs("ckptd: see ckptd --help\n", stderr);
	return rc;
}

static int exit_code(int rc)
{
	return rc == 0			       ? 0
	       : rc == -EADDRINUSE	       ? 11
	       : rc == -EACCES || rc == -EPERM ? 12
	       : rc == -EINVAL		       ? 2
	       : rc == -ENOSPC		       ? 13
					       : 1;
}

/* In a session of its own, without a parent; the first process leaves with the exit code when the
 * second one listens or has failed. */
static int background_enter(void)
{
	int ready[2];
	pid_t pid;

	if (pipe2(ready, O_CLOEXEC) < 0 || (pid = fork()) < 0) {
		perror("ckptd: cannot go to the background");
		exit(1);
	}
	if (pid > 0) {
		uint8_t code = 1;

		(void)close(ready[1]);
		if (read(ready[0], &code, 1) != 1)
			code = 1;
		_exit(code);
	}
	/* Whatever the starting program left open, a pipe that its reader waits on among them, is
	 * not ours to hold. */
	if (dup2(ready[1], 3) == 3)
		close_range(4, ~0u, 0);
	setsid();
	return fcntl(3, F_SETFD, FD_CLOEXEC) < 0 ? 1 : 3;
}

/* The log of the background: standard error is this file. */
#define LOG_BYTES_MAX ((off_t)(16 * MIB))
static struct {
	pthread_mutex_t lock; /* of the file's change */
	char path[256];
} log_file = { .lock = PTHREAD_MUTEX_INITIALIZER };

static int log_open(void)
{
	return open(log_file.path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

static bool log_is_full(void)
{
	struct stat st;

	return fstat(STDERR_FILENO, &st) == 0 && S_ISREG(st.st_mode) && st.st_size >= LOG_BYTES_MAX;
}

/* One older file stays, as PATH.1. If there is no new one, the log goes on in the old one. */
static void log_rotate(void)
{
	char older[sizeof log_file.path + 2];
	int fd;

	snprintf(older, sizeof older, "%s.1", log_file.path);
	if (rename(log_file.path, older) < 0)
		return;
	fd = log_open();
	if (fd < 0)
		return;
	(void)dup2(fd, STDERR_FILENO);
	(void)close(fd);
}

/* Any thread. */
static void log_to_file(void *ctx, int level, const char *line)
{
	log_to_stderr(ctx, level, line);
	if (!log_is_full() || pthread_mutex_trylock(&log_file.lock))
		return;
	if (log_is_full()) /* nobody has changed it meanwhile */
		log_rotate();
	pthread_mutex_unlock(&log_file.lock);
}

static void detach_stdio(const char *socket)
{
	int null = open("/dev/null", O_RDWR | O_CLOEXEC), log;

	snprintf(log_file.path, sizeof log_file.path, "%s.log", socket);
	log = log_open();
	if (null >= 0) {
		dup2(null, 0);
		dup2(null, 1);
		dup2(log >= 0 ? log : null, 2);
	}
	if (chdir("/") < 0)
		return; /* holds a directory busy, nothing more */
}

int main(int argc, char **argv)
{
	struct daemon_opts o = { .log = { .sink = log_to_stderr, .level_max = LOG_INFO } };
	struct sigaction sa = { .sa_handler = on_signal };
	struct ckpt_err err = { 0 };
	struct rlimit files;
	bool to_background = false;
	int ready = -1, rc;
	char socket[512], policy[512];

	if (options_parse(argc, argv, &o, &to_background) < 0)
		return 2;
	if (!o.socket && getenv("CKPTD_SOCKET") && *getenv("CKPTD_SOCKET"))
		o.socket = getenv("CKPTD_SOCKET");
	/* What a declaration or a commit needed for a moment goes back to the host, and is not kept
	 * for the next one by every thread that had a part in it. */
	(void)mallopt(M_MMAP_THRESHOLD, 128 << 10);
	(void)mallopt(M_TRIM_THRESHOLD, 128 << 10);
	(void)mallopt(M_ARENA_MAX, 2);
	umask(077); /* files are this user's alone, whatever the caller's mask was */
	if (o.socket && o.socket[0] != '/') { /* the background changes its directory */
		char cwd[256];

		if (getcwd(cwd, sizeof cwd) &&
		    snprintf(socket, sizeof socket, "%s/%s", cwd, o.socket) < (int)sizeof socket)
			o.socket = socket;
	}
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error of the write, not a death */
	signal(SIGHUP, SIG_IGN);  /* the end of a terminal is not the end of the jobs */
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* a rank costs about ten descriptors */
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	prctl(PR_SET_DUMPABLE, 0); /* weights do not belong into core files */
	if (to_background) {
		o.log.sink = log_to_file;
		ready = background_enter();
	}
	rc = daemon_open(&o, &running, &err);
	if (rc < 0)
		fprintf(stderr, "ckptd: %s\n", err.msg);
	if (rc == 0) {
		if (to_background)
			detach_stdio(daemon_socket(running));
		sigaction(SIGTERM, &sa, NULL);
		sigaction(SIGINT, &sa, NULL);
		log_line(&o.log, LOG_NOTICE, "ckptd: %s, pid %d, listens on %s", ckptd_version,
			 (int)getpid(), daemon_socket(running));
		retain_print(&o.policy, policy, sizeof policy);
		if (retain_is_policy(&o.policy))
			log_line(&o.log, LOG_NOTICE,
				 "ckptd: removes the steps that are not kept by %s", policy);
		else if (*policy)
			log_line(&o.log, LOG_WARNING,
				 "ckptd: %s does nothing without --keep-...: no step is removed",
				 policy);
	}
	if (ready >= 0) {
		uint8_t code = (uint8_t)exit_code(rc);

		if (write(ready, &code, 1) < 0)
			return 1;
		(void)close(ready);
	}
	if (rc == 0) {
		rc = daemon_run(running);
		daemon_close(TAKE(running));
	}
	return exit_code(rc);
}
