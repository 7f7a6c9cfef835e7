// SPDX-License-Identifier: Apache-2.0
// exchange_main.c - build/exchange: see USAGE. Invariant: no process is left when this one ends,
// however it ends: each rank dies with its parent.
#include "ckpt/base/util.h"
#include "ckpt/spread/spread.h"
#include "tests/exchange/exchange.h"
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

static const char USAGE[] =
	"usage: exchange [OPTION...] --mesh MESH CHECKPOINT\n"
	"       exchange [OPTION...] --layouts FILE...\n"
	"\n"
	"The ranks of a checkpoint, a process each, hold its tensors as it declares them, and exchange them\n"
	"over local sockets until they hold them as they lie on another mesh. Each rank compares its\n"
	"memory with what a restore from disk reads onto that mesh. With --layouts: tensors made up for the\n"
	"layouts in FILE, each line of which is a question of `ckptctl layout --batch`.\n"
	"\n"
	"  --mesh MESH           the other mesh: dp=2,tp=4\n"
	"  --layout GLOB=PLACEMENTS  placements of these tensors on it, in place of the checkpoint's\n"
	"  --replicate DIMS      dimensions of it that may hold copies\n"
	"  --round BYTES         that a rank sends, or receives, in a round at most (4096 or more; default 1048576)\n"
	"  --deadline MS         how long a round may take (default 60000)\n"
	"  --mistake KIND@RANK:ROUND  this rank makes a mistake in this round: dies, stops, gives-up,\n"
	"                        truncates (its stream), foreign (it sends bytes that are no message); or from\n"
	"                        the beginning: other (its rounds are longer)\n"
	"  --staged              all bytes pass through staging memory, as those of a GPU do\n"
	"  --share               ranks share their memory: sockets carry where bytes lie, not the bytes\n"
	"  --copy                all bytes pass through the sockets (the default)\n"
	"  --elements N          with --layouts: shapes of more elements are halved until they have fewer\n"
	"                        (default 16384)\n"
	"  --pairs N             measure N exchanges and N copies of as many bytes, in turn (at most 64)\n"
	"  --all                 print what each rank did\n"
	"\n"
	"Exit status: 0 all bytes are equal; 2 usage, also a mistake that never happened; 3 there is nothing to\n"
	"exchange; 6 bytes differ; 10 the checkpoint does not exist; 15 a round took too long; 75 a rank died or\n"
	"was stopped; 1 any other error.\n";

struct options {
	struct exchange_how how;
	struct remesh_ask ask;
	struct remesh_text text[16];
	const char *replicate[16];
	uint64_t numel_max;
	bool layouts, all;
};

static int usage(const char *what, const char *word)
{
	fprintf(stderr, "exchange: %s%s%s\n%s", what, *word ? ": " : "", word, USAGE);
	return CLI_USAGE;
}

/* 0, or what usage returns. */
static int number_take(const char *text, uint64_t least, uint64_t most, const char *range,
		       uint64_t *ret)
{
	char *end;

	errno = 0;
	*ret = strtoull(text, &end, 10);
	if (text[0] >= '0' && text[0] <= '9' && !*end && !errno && *ret >= least && *ret <= most)
		return 0;
	*ret = least;
	return usage(range, text);
}

static bool mistake_read(const char *text, struct exchange_how *how)
{
	static const char *const name[] = {
		[MISTAKE_DIES] = "dies",	 [MISTAKE_STOPS] = "stops",
		[MISTAKE_GIVES_UP] = "gives-up", [MISTAKE_TRUNCATES] = "truncates",
		[MISTAKE_FOREIGN] = "foreign",	 [MISTAKE_OTHER] = "other",
	};
	char kind[16], more;
	unsigned rank, round;

	if (sscanf(text, "%15[a-z-]@%u:%u%c", kind, &rank, &round, &more) != 3)
		return false;
	for (uint32_t i = 1; i < ARRAY_LEN(name); i++)
		if (!strcmp(kind, name[i]))
			how->mistake = (enum exchange_mistake)i;
	how->rank = rank;
	how->round = round;
	return how->mistake != MISTAKE_NONE;
}

enum {
	MESH = 1,
	LAYOUT,
	REPLICATE,
	ROUND,
	DEADLINE,
	MISTAKE,
	LAYOUTS,
	STAGED,
	SHARE,
	COPY,
	ELEMENTS,
	PAIRS,
	ALL,
	HELP
};

static int option_take(struct options *o, int option, const char *word)
{
	uint64_t n;
	int rc;

	switch (option) {
	case MESH:
		o->ask.mesh = word;
		return 0;
	case LAYOUT:
		if (o->ask.ntext == ARRAY_LEN(o->text))
			return usage("too many --layout", "");
		o->text[o->ask.ntext++] = (struct remesh_text){ .text = word };
		return 0;
	case REPLICATE:
		if (o->ask.nreplicate == ARRAY_LEN(o->replicate))
			return usage("too many --replicate", "");
		o->replicate[o->ask.nreplicate++] = word;
		return 0;
	case ROUND:
		return number_take(word, 4096, GIB, "--round is 4096 to 1073741824 bytes",
				   &o->how.round_bytes);
	case DEADLINE:
		rc = number_take(word, 1, 86400000, "--deadline is 1 to 86400000 ms", &n);
		o->how.round_ns = n * NS_PER_MS;
		return rc;
	case MISTAKE:
		return mistake_read(word, &o->how) ? 0
						   : usage("--mistake is KIND@RANK:ROUND", word);
	case LAYOUTS:
		o->layouts = true;
		return 0;
	case STAGED:
		o->how.staged = true;
		return 0;
	case SHARE:
	case COPY:
		o->how.share = option == SHARE;
		return 0;
	case ELEMENTS:
		return number_take(word, 1, UINT64_C(1) << 40, "--elements is 1 to 2^40",
				   &o->numel_max);
	case PAIRS:
		rc = number_take(word, 1, EXCHANGE_PAIRS_MAX, "--pairs is 1 to 64", &n);
		o->how.pairs = (uint32_t)n;
		return rc;
	case ALL:
		o->all = true;
		return 0;
	default:
		return option == HELP ? (fputs(USAGE, stdout), -1) : usage("no such option", "");
	}
}

/* 0; -1: help was printed; else an exit code. */
static int options_read(int argc, char **argv, struct options *o)
{
	static const struct option option[] = { { "mesh", 1, NULL, MESH },
						{ "layout", 1, NULL, LAYOUT },
						{ "replicate", 1, NULL, REPLICATE },
						{ "round", 1, NULL, ROUND },
						{ "deadline", 1, NULL, DEADLINE },
						{ "mistake", 1, NULL, MISTAKE },
						{ "layouts", 0, NULL, LAYOUTS },
						{ "staged", 0, NULL, STAGED },
						{ "share", 0, NULL, SHARE },
						{ "copy", 0, NULL, COPY },
						{ "elements", 1, NULL, ELEMENTS },
						{ "pairs", 1, NULL, PAIRS },
						{ "all", 0, NULL, ALL },
						{ "help", 0, NULL, HELP },
						{ NULL, 0, NULL, 0 } };
	int c, rc = 0;

	o->how = (struct exchange_how){ .round_bytes = MIB, .round_ns = 60 * NS_PER_S };
	o->numel_max = 16384;
	o->ask.text = o->text;
	o->ask.replicate = o->replicate;
	while (rc == 0 && (c = getopt_long(argc, argv, "", option, NULL)) != -1)
		rc = option_take(o, c, optarg);
	if (rc)
		return rc;
	if (o->layouts && (o->ask.mesh || o->ask.ntext || o->ask.nreplicate))
		return usage("--layouts goes without --mesh, --layout and --replicate", "");
	if (!o->layouts && !o->ask.mesh)
		return usage("--mesh is missing", "");
	if (optind == argc || (!o->layouts && optind + 1 < argc))
		return usage(o->layouts ? "a FILE is missing" : "one CHECKPOINT is needed", "");
	return 0;
}

/* --- processes --- */

struct ranks {
	uint32_t world;
	int *fd; /* [world * world]: of rank i to rank k */
	pid_t *pid;
	struct exchange_outcome *outcome; /* shared */
};

static int sockets_make(struct ranks *k, struct ckpt_err *err)
{
	struct rlimit r;

	/* Two for each pair, and some for the rest. */
	if (getrlimit(RLIMIT_NOFILE, &r) == 0) {
		r.rlim_cur = r.rlim_max;
		(void)setrlimit(RLIMIT_NOFILE, &r);
	}
	for (uint32_t i = 0; i < k->world; i++)
		for (uint32_t j = 0; j < i; j++) {
			int pair[2];

			if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) < 0)
				return ckpt_error_errno(
					err, errno, "no sockets between %u ranks (ulimit -n: %llu)",
					k->world, (unsigned long long)r.rlim_cur);
			k->fd[i * k->world + j] = pair[0];
			k->fd[j * k->world + i] = pair[1];
		}
	return 0;
}

static void sockets_close(struct ranks *k, uint32_t but)
{
	for (uint32_t i = 0; i < k->world; i++)
		for (uint32_t j = 0; j < k->world && i != but; j++)
			if (k->fd[i * k->world + j] >= 0)
				(void)close(TAKE_FD(k->fd[i * k->world + j]));
}

static int ranks_make(uint32_t world, struct ranks *ret, struct ckpt_err *err)
{
	*ret = (struct ranks){ .world = world,
			       .fd = malloc((size_t)world * world * sizeof *ret->fd),
			       .pid = calloc(world, sizeof *ret->pid),
			       .outcome = mmap(NULL, world * sizeof *ret->outcome,
					       PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
					       -1, 0) };
	if (!ret->fd || !ret->pid || ret->outcome == MAP_FAILED)
		return ckpt_error(err, -ENOMEM, "no memory for %u ranks", world);
	memset(ret->fd, -1, (size_t)world * world * sizeof *ret->fd);
	return sockets_make(ret, err);
}

static void ranks_free(struct ranks *k)
{
	if (k->fd)
		sockets_close(k, UINT32_MAX);
	free(k->fd);
	free(k->pid);
	if (k->outcome && k->outcome != MAP_FAILED)
		(void)munmap(k->outcome, k->world * sizeof *k->outcome);
}

static void rank_start(struct ranks *k, uint32_t rank, const struct exchange_job *j,
		       const struct exchange_how *how)
{
	pid_t parent = getpid();

	k->pid[rank] = fork();
	if (k->pid[rank])
		return;
	(void)prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(CLI_FAILED);
	sockets_close(k, rank);
	exchange_rank_run(j, how, rank, &k->fd[rank * k->world], k->outcome);
	_exit(k->outcome[rank].rc ? CLI_FAILED : CLI_OK);
}

static void rank_ended(struct ranks *k, pid_t pid, int status)
{
	for (uint32_t i = 0; i < k->world; i++) {
		struct exchange_outcome *o = &k->outcome[i];

		if (k->pid[i] != pid)
			continue;
		k->pid[i] = WIFSTOPPED(status) ? pid : 0;
		if (WIFSTOPPED(status) || !o->ended)
			o->rc = ckpt_error(&o->err, -ESRCH, "rank %u %s, in round %" PRIu64, i,
					   WIFSTOPPED(status)	 ? "was stopped"
					   : WIFSIGNALED(status) ? "was killed"
								 : "ended too early",
					   o->rounds);
		__atomic_store_n(&o->ended, 1, __ATOMIC_RELEASE);
	}
}

/* Until each has ended or was stopped. Those that were stopped are ended then. */
static void ranks_wait(struct ranks *k)
{
	uint32_t left = 0;

	for (uint32_t i = 0; i < k->world; i++)
		left += k->pid[i] > 0;
	while (left > 0) {
		int status;
		pid_t pid = waitpid(-1, &status, WUNTRACED);

		if (pid < 0 && errno != EINTR)
			break;
		if (pid > 0) {
			rank_ended(k, pid, status);
			left--;
		}
	}
	for (uint32_t i = 0; i < k->world; i++)
		if (k->pid[i] > 0) {
			(void)kill(k->pid[i], SIGKILL);
			(void)waitpid(k->pid[i], NULL, 0);
		}
}

static int ranks_run(struct ranks *k, const struct exchange_job *j, const struct exchange_how *how,
		     struct ckpt_err *err)
{
	int rc = 0;

	fflush(NULL);
	for (uint32_t i = 0; i < k->world && rc == 0; i++) {
		rank_start(k, i, j, how);
		if (k->pid[i] < 0)
			rc = ckpt_error_errno(err, errno, "cannot start rank %u of %u", i,
					      k->world);
	}
	for (uint32_t i = 0; i < k->world && rc < 0; i++)
		if (k->pid[i] > 0)
			(void)kill(k->pid[i], SIGKILL);
	sockets_close(k, UINT32_MAX);
	ranks_wait(k);
	return rc;
}

/* --- what is printed --- */

static void rank_print(const struct exchange_outcome *o, uint32_t rank)
{
	if (o->rc)
		printf("%s\n", o->err.msg);
	else
		printf("rank %u: %" PRIu64 " bytes sent, %" PRIu64 " received, %" PRIu64
		       " kept, in %" PRIu64 " rounds; equal to a restore from disk\n",
		       rank, o->out_bytes, o->in_bytes, o->self_bytes, o->rounds);
}

static void job_print(const struct exchange_job *j)
{
	printf("%u ranks, %u tensors", j->world, j->nmoves);
	if (j->nmoves < j->from->ntensor)
		printf("; %u without placements, or by value, are left out",
		       j->from->ntensor - j->nmoves);
	if (j->nrefused)
		printf("; %u lines are no layouts", j->nrefused);
	if (j->nreplicas)
		printf("; %u layouts with pending reductions as replicas", j->nreplicas);
	if (j->nsmaller)
		printf("; %u shapes made smaller", j->nsmaller);
	puts("");
}

/* The exit code of several errors: a difference counts most; what other ranks see of an error
 * counts less than the error. */
static const struct {
	int rc, code;
} codes[] = {
	{ -EILSEQ, CLI_DIFFERS },  { -EPROTO, CLI_FAILED },	   { -ETIMEDOUT, CLI_TIMEOUT },
	{ -ESRCH, CLI_TEMPORARY }, { -ECONNRESET, CLI_TEMPORARY },
};

/* Its place in that list; an error that is not in it comes behind a difference. */
static uint32_t code_place(int rc)
{
	for (uint32_t i = 0; i < ARRAY_LEN(codes); i++)
		if (codes[i].rc == rc)
			return 2 * i;
	return rc ? 1 : UINT32_MAX;
}

static int ranks_print(const struct ranks *k, bool all)
{
	uint64_t bytes = 0, kept = 0, rounds = 0;
	uint32_t worst = UINT32_MAX;

	for (uint32_t i = 0; i < k->world; i++) {
		const struct exchange_outcome *o = &k->outcome[i];

		if (all || o->rc)
			rank_print(o, i);
		bytes += o->in_bytes;
		kept += o->self_bytes;
		rounds = MAX(rounds, o->rounds);
		worst = MIN(worst, code_place(o->rc));
	}
	if (worst != UINT32_MAX)
		return worst == 1 ? CLI_FAILED : codes[worst / 2].code;
	printf("%" PRIu64 " bytes went from rank to rank in %" PRIu64 " rounds, %" PRIu64
	       " stayed; all memory is equal to a restore from disk\n",
	       bytes, rounds, kept);
	return CLI_OK;
}

/* Longer rounds show only by the failure that they cause. */
static bool mistake_happened(const struct ranks *k, const struct exchange_how *how)
{
	bool failed = false;

	for (uint32_t i = 0; i < k->world; i++)
		failed |= k->outcome[i].rc != 0;
	return failed || k->outcome[how->rank].mistaken;
}

static int mistake_refuse(const struct ranks *k, const struct exchange_how *how,
			  struct ckpt_err *err)
{
	const struct exchange_outcome *o = &k->outcome[how->rank];

	if (how->mistake == MISTAKE_OTHER)
		return ckpt_error(
			err, -EINVAL,
			"--mistake: longer rounds of rank %u make no difference: choose a "
			"smaller --round",
			how->rank);
	return ckpt_error(err, -EINVAL,
			  "--mistake: rank %u sends and receives nothing in round %" PRIu64
			  ": choose one of its rounds; this exchange has %" PRIu64,
			  how->rank, how->round, o->rounds);
}

static int ratio_order(const void *va, const void *vb)
{
	const double *a = va, *b = vb;

	return COMPARE(*a, *b);
}

/* Of each pair what the slowest rank took; the median of the ratios. */
static void pairs_print(const struct ranks *k, uint32_t pairs)
{
	double ratio[EXCHANGE_PAIRS_MAX];
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < k->world; i++)
		bytes += k->outcome[i].in_bytes + k->outcome[i].self_bytes;
	for (uint32_t p = 0; p < pairs; p++) {
		uint64_t exchange = 0, copy = 0;

		for (uint32_t i = 0; i < k->world; i++) {
			exchange = MAX(exchange, k->outcome[i].exchange_ns[p]);
			copy = MAX(copy, k->outcome[i].copy_ns[p]);
		}
		printf("pair %u: exchange %.1f ms, copy %.1f ms\n", p, (double)exchange / 1e6,
		       (double)copy / 1e6);
		ratio[p] = (double)copy / (double)exchange;
	}
	qsort(ratio, pairs, sizeof *ratio, ratio_order);
	printf("%" PRIu64 " bytes; exchange / copy, bytes per second, median of %u pairs: %.3f\n",
	       bytes, pairs, ratio[pairs / 2]);
}

static int job_run(const struct exchange_job *j, const struct options *o, struct ckpt_err *err)
{
	struct ranks k;
	int rc, code = 0;

	job_print(j);
	if (!j->nmoves) {
		fputs("exchange: no tensor has placements on both sides\n", stderr);
		return CLI_WARNINGS;
	}
	if (o->how.mistake && o->how.rank >= j->world)
		return usage("the rank of --mistake does not exist", "");
	rc = ranks_make(j->world, &k, err);
	if (rc == 0)
		rc = ranks_run(&k, j, &o->how, err);
	if (rc == 0 && o->how.mistake && !mistake_happened(&k, &o->how))
		rc = mistake_refuse(&k, &o->how, err);
	if (rc == 0)
		code = ranks_print(&k, o->all);
	if (rc == 0 && code == 0 && o->how.pairs)
		pairs_print(&k, o->how.pairs);
	ranks_free(&k);
	return rc < 0 ? rc : code;
}

int main(int argc, char **argv)
{
	struct exchange_job j = { .disk.ref.step_fd = -1 };
	struct ckpt_err err = { 0 };
	struct options o = { 0 };
	int rc = options_read(argc, argv, &o);

	if (rc)
		return rc < 0 ? CLI_OK : rc;
	rc = o.layouts ? exchange_job_layouts(argv + optind, (uint32_t)(argc - optind), o.numel_max,
					      &j, &err)
		       : exchange_job_checkpoint(argv[optind], &o.ask, &j, &err);
	if (rc == 0 && j.remesh.copies)
		rc = ckpt_error(&err, -EINVAL,
				"this mesh would hold copies: allow them with --replicate");
	if (rc == 0)
		rc = job_run(&j, &o, &err);
	if (rc < 0)
		fprintf(stderr, "exchange: %s\n", err.msg);
	exchange_job_free(&j);
	return rc < 0 ? cli_exit(rc) : rc;
}
