/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train_args.c - the command line. Called once, by main. Invariant: every refusal names the
 * option, what was given, and what may be given.
 */
#include "train_args.h"
#include "ckpt/ckpt.h"
#include "model.h"
#include "ranks.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
	"usage: trainer --mesh SPEC --steps N --root DIR --job NAME [options]\n"
	"       trainer --mesh SPEC --steps N --no-checkpoint [options]\n"
	"       trainer --evaluate FILE [--params N] [--seed N] [--text DIR]\n"
	"\n"
	"Trains a byte-level language model in N processes, with snapshots by ckptd.\n"
	"\n"
	"  --mesh SPEC            fsdp=4, dp=2,fsdp=2, ...: fsdp shards the state, dp replicates it\n"
	"  --steps N              the last step (not a count); it is committed before the trainer ends\n"
	"  --params N             about so many parameters, 5K to 16G (2M)\n"
	"  --seed N               of the weights and of the order of the text (7)\n"
	"  --snapshot-every K     steps between snapshots (10)\n"
	"  --persist-every M      write every M-th snapshot to the store (1)\n"
	"  --root DIR             the store; made when missing\n"
	"  --job NAME             the job inside the store\n"
	"  --takeover             if another launch of the job lives, the first step that this one marks ends it\n"
	"  --foreign-owner        attach also if the job's directory belongs to another user\n"
	"  --restart-wait MS      how long to wait for a ckptd that somebody else started, before it starts one (15000)\n"
	"  --socket PATH          where ckptd listens (one per user); started when nobody does\n"
	"  --resume FROM          latest, memory, disk, step:N or none (none)\n"
	"  --no-checkpoint        train without ckptd\n"
	"  --losses FILE          append a line per step: step, bits of the loss in hex, loss\n"
	"  --average NAME=SPEC    let ckptd keep an average of the weights, as in 'fast=constant decay=.99'\n"
	"  --evaluate FILE        print the loss of the model in a safetensors file, on text in another order\n"
	"\n"
	"For tests and measurements:\n"
	"  --guard POLICY         bounded, never or finish: how long the optimizer may wait for a copy\n"
	"  --wait-ready           do not train before snapshots can be taken\n"
	"  --layout HOW           shards: rows of each tensor; boxes: a stretch of all elements (shards)\n"
	"  --memory WHERE         the state lies in memory of ckpt_alloc (alloc), of the trainer's own (own), or\n"
	"                         every second tensor there (mixed) (alloc)\n"
	"  --device WHICH         the state lies on a GPU and is changed by kernels there: cuda, cuda:1, cuda:0,1 (then\n"
	"                         parameters take turns); fake is the driver without a GPU that lies in fakecuda/ beside\n"
	"                         the trainer; losses and checkpoints have the bits of those of the host. With --memory\n"
	"                         mixed every second parameter stays on the host\n"
	"  --stream WHICH         of the kernels: own (one that the trainer makes) or legacy (the default stream) (own)\n"
	"  --ahead N              the host waits for the devices in every (N+1)-th step alone, and forward reads the parameters\n"
	"                         of the step before that: so it is up to N steps ahead of them (0)\n"
	"  --copy-rate N          ckptd copies at most N bytes per second out of a GPU (no bound but the time until the next step)\n"
	"  --nccl                 with --device: what several ranks hold is read once, and goes on to the others over NCCL, each\n"
	"                         time that the state is restored. Rank 0 begins with the first device, rank 1 with the second:\n"
	"                         NCCL needs as many devices as ranks. fake: NCCL without GPUs lies in fakenccl/\n"
	"  --mistake WHICH        with --device: no-guard, late-guard (behind the optimizer's kernels), or stream (ckptd is\n"
	"                         told another one): what a trainer may do wrong, so that tests see it found, or snapshots torn\n"
	"  --counters             declare what forward counts on each parameter as CKPT_VOLATILE\n"
	"  --derived              declare the BF16 parameters as the rounding of their masters\n"
	"  --go-back-every N      before each N-th step, once, restore the newest step that there is\n"
	"  --go-back-to WHICH     newest, or older: to one of the newest eight steps, and from there every second time to\n"
	"                         the newest again (newest)\n"
	"  --move-every N         before each N-th step of a rank all of its state goes to other memory; what it leaves is\n"
	"                         overwritten, or unmapped\n"
	"  --nan-every N          behind each N-th step some of the state is NaN or infinite, and so is the note loss; the\n"
	"                         next step goes on as if these elements were those of step 0 (never)\n"
	"  --thaw-every N         the base of --frozen is trained and frozen again, each for N steps (never trained)\n"
	"  --wrong                commit each of the last 5 steps: the first 4 with one wrong bit, of a second moment after a\n"
	"                         move, of the base, of a parameter, of a master and what is derived of it\n"
	"  --step-ms N            a step takes at least N milliseconds\n"
	"  --frozen P             P percent of the state are a base that never changes (0)\n"
	"  --masters FILE         write all FP32 masters behind step S to FILE, from byte S * parameters * 4 on\n"
	"  --print-stats FILE     append one line of JSON with the checkpoint statistics of rank 0\n"
	"  --text DIR             train on the regular files of DIR (" CORPUS_DIR ")\n";

enum {
	OPT_MESH = 256,
	OPT_STEPS,
	OPT_PARAMS,
	OPT_SEED,
	OPT_SNAPSHOT_EVERY,
	OPT_PERSIST_EVERY,
	OPT_RESTART_WAIT,
	OPT_ROOT,
	OPT_JOB,
	OPT_SOCKET,
	OPT_RESUME,
	OPT_NO_CHECKPOINT,
	OPT_LOSSES,
	OPT_GUARD,
	OPT_WAIT_READY,
	OPT_LAYOUT,
	OPT_MEMORY,
	OPT_DEVICE,
	OPT_STREAM,
	OPT_AHEAD,
	OPT_COPY_RATE,
	OPT_NCCL,
	OPT_TAKEOVER,
	OPT_FOREIGN_OWNER,
	OPT_MISTAKE,
	OPT_COUNTERS,
	OPT_DERIVED,
	OPT_GO_BACK_EVERY,
	OPT_GO_BACK_TO,
	OPT_MOVE_EVERY,
	OPT_NAN_EVERY,
	OPT_THAW_EVERY,
	OPT_WRONG,
	OPT_STEP_MS,
	OPT_FROZEN,
	OPT_PRINT_STATS,
	OPT_TEXT,
	OPT_AVERAGE,
	OPT_MASTERS,
	OPT_EVALUATE,
	OPT_HELP,
};

static const struct option option[] = {
	{ "mesh", required_argument, NULL, OPT_MESH },
	{ "steps", required_argument, NULL, OPT_STEPS },
	{ "params", required_argument, NULL, OPT_PARAMS },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "snapshot-every", required_argument, NULL, OPT_SNAPSHOT_EVERY },
	{ "persist-every", required_argument, NULL, OPT_PERSIST_EVERY },
	{ "restart-wait", required_argument, NULL, OPT_RESTART_WAIT },
	{ "root", required_argument, NULL, OPT_ROOT },
	{ "job", required_argument, NULL, OPT_JOB },
	{ "socket", required_argument, NULL, OPT_SOCKET },
	{ "resume", required_argument, NULL, OPT_RESUME },
	{ "no-checkpoint", no_argument, NULL, OPT_NO_CHECKPOINT },
	{ "losses", required_argument, NULL, OPT_LOSSES },
	{ "guard", required_argument, NULL, OPT_GUARD },
	{ "wait-ready", no_argument, NULL, OPT_WAIT_READY },
	{ "layout", required_argument, NULL, OPT_LAYOUT },
	{ "memory", required_argument, NULL, OPT_MEMORY },
	{ "device", required_argument, NULL, OPT_DEVICE },
	{ "stream", required_argument, NULL, OPT_STREAM },
	{ "ahead", required_argument, NULL, OPT_AHEAD },
	{ "copy-rate", required_argument, NULL, OPT_COPY_RATE },
	{ "nccl", no_argument, NULL, OPT_NCCL },
	{ "takeover", no_argument, NULL, OPT_TAKEOVER },
	{ "foreign-owner", no_argument, NULL, OPT_FOREIGN_OWNER },
	{ "mistake", required_argument, NULL, OPT_MISTAKE },
	{ "counters", no_argument, NULL, OPT_COUNTERS },
	{ "derived", no_argument, NULL, OPT_DERIVED },
	{ "go-back-every", required_argument, NULL, OPT_GO_BACK_EVERY },
	{ "go-back-to", required_argument, NULL, OPT_GO_BACK_TO },
	{ "move-every", required_argument, NULL, OPT_MOVE_EVERY },
	{ "nan-every", required_argument, NULL, OPT_NAN_EVERY },
	{ "thaw-every", required_argument, NULL, OPT_THAW_EVERY },
	{ "wrong", no_argument, NULL, OPT_WRONG },
	{ "step-ms", required_argument, NULL, OPT_STEP_MS },
	{ "frozen", required_argument, NULL, OPT_FROZEN },
	{ "print-stats", required_argument, NULL, OPT_PRINT_STATS },
	{ "text", required_argument, NULL, OPT_TEXT },
	{ "average", required_argument, NULL, OPT_AVERAGE },
	{ "masters", required_argument, NULL, OPT_MASTERS },
	{ "evaluate", required_argument, NULL, OPT_EVALUATE },
	{ "help", no_argument, NULL, OPT_HELP },
	{ 0 },
};

__attribute__((format(printf, 1, 2))) static int refuse(const char *fmt, ...)
{
	va_list ap;

	fputs("trainer: ", stderr);
	va_start(ap, fmt);
	vfprintf(stderr, fmt, ap);
	va_end(ap);
	fputs("; trainer --help lists the options\n", stderr);
	return -EINVAL;
}

/* Digits only, so that "-1", " 1" and "" are refused too. Returns what follows them, or NULL. */
static const char *parse_digits(const char *s, uint64_t *ret)
{
	char *end;

	if (!isdigit((unsigned char)*s))
		return NULL;
	errno = 0;
	*ret = strtoull(s, &end, 10);
	return errno ? NULL : end;
}

static int parse_number(const char *name, const char *s, uint64_t min, uint64_t max, uint64_t *ret)
{
	const char *end = parse_digits(s, ret);

	if (!end || *end || *ret < min || *ret > max)
		return refuse("--%s '%s': a whole number from %llu to %llu is needed", name, s,
			      (unsigned long long)min, (unsigned long long)max);
	return 0;
}

/* 1500000, 1500K, 1.5M, 1G: decimal, as parameter counts are given. */
static int parse_params(const char *s, uint64_t *ret)
{
	uint64_t whole = 0, tenths = 0, unit = 1, scaled = 0;
	const char *end = parse_digits(s, &whole);

	if (end && end[0] == '.' && isdigit((unsigned char)end[1])) {
		tenths = (uint64_t)(end[1] - '0');
		end += 2;
	}
	if (end && *end) {
		unit = *end == 'K' ? 1000 : *end == 'M' ? 1000000 : *end == 'G' ? 1000000000 : 0;
		end++;
	}
	if (!end || *end || !unit || __builtin_mul_overflow(whole, unit, &scaled) ||
	    __builtin_add_overflow(scaled, tenths * unit / 10, ret) || *ret < MODEL_PARAMS_MIN ||
	    *ret > MODEL_PARAMS_MAX)
		return refuse("--params '%s': a number from 5K to 16G is needed, as in 2M", s);
	return 0;
}

static int parse_mesh(const char *s, struct train_args *a)
{
	static const char *const known[] = { "dp", "fsdp" };
	const char *at = s;

	a->mesh = s;
	a->ndim = 0;
	a->world = 1;
	for (;;) {
		size_t n = strcspn(at, "=,");
		const char *name = NULL;
		uint64_t size;

		for (size_t i = 0; i < 2; i++)
			if (strlen(known[i]) == n && !strncmp(at, known[i], n))
				name = known[i];
		if (at[n] != '=')
			return refuse("--mesh '%s': name=size is needed at '%s', as in fsdp=4 or "
				      "dp=2,fsdp=2",
				      s, at);
		if (!name)
			return refuse(
				"--mesh '%s': there is no mesh dimension '%.*s' here, only dp, "
				"which replicates, and fsdp, which shards",
				s, (int)n, at);
		if (train_args_dim(a, name) >= 0)
			return refuse("--mesh '%s': dimension %s is named twice", s, name);
		at = parse_digits(at + n + 1, &size);
		if (!at || (*at && *at != ',') || size < 1 || size > RANKS_MAX ||
		    size * a->world > RANKS_MAX)
			return refuse("--mesh '%s': the size of %s must be a whole number, and all "
				      "sizes together make 1 to %d ranks",
				      s, name, RANKS_MAX);
		a->dim_name[a->ndim] = name;
		a->dim_size[a->ndim++] = (uint32_t)size;
		a->world *= (uint32_t)size;
		if (!*at)
			return 0;
		at++;
	}
}

static int parse_resume(const char *s, struct train_args *a)
{
	static const char *const name[] = { "none", "latest", "memory", "disk" };

	for (uint32_t i = 0; i < 4; i++) {
		if (!strcmp(s, name[i])) {
			a->resume = (enum resume)i;
			return 0;
		}
	}
	const char *end = strncmp(s, "step:", 5) ? NULL : parse_digits(s + 5, &a->resume_step);

	if (!end || *end || a->resume_step == CKPT_LATEST)
		return refuse("--resume '%s': latest, memory, disk, step:N or none is needed", s);
	a->resume = RESUME_STEP;
	return 0;
}

static int parse_guard(const char *s, uint32_t *ret)
{
	static const struct {
		const char *name;
		uint32_t policy;
	} known[] = {
		{ "bounded", CKPT_BOUNDED },
		{ "never", CKPT_NEVER },
		{ "finish", CKPT_FINISH },
	};

	for (size_t i = 0; i < 3; i++) {
		if (!strcmp(s, known[i].name)) {
			*ret = known[i].policy;
			return 0;
		}
	}
	return refuse("--guard '%s': bounded, never or finish is needed", s);
}

/* cuda, fake, cuda:1, fake:0,1 */
static int parse_device(const char *s, struct train_args *a)
{
	const char *at = strchr(s, ':');
	size_t n = at ? (size_t)(at - s) : strlen(s);
	uint64_t number;

	a->fake_gpu = n == 4 && !strncmp(s, "fake", 4);
	if (!a->fake_gpu && (n != 4 || strncmp(s, "cuda", 4)))
		return refuse("--device '%s': cuda, fake, or one of them with numbers, as in "
			      "cuda:1 or fake:0,1, is needed",
			      s);
	a->ngpu = 0;
	do {
		number = 0;
		if (at && (!(at = parse_digits(at + 1, &number)) || (*at && *at != ',') ||
			   number > INT32_MAX))
			return refuse("--device '%s': a device has a number, as in cuda:1 or "
				      "cuda:0,1",
				      s);
		if (a->ngpu == GPUS_MAX)
			return refuse("--device '%s': there are more than %d devices", s, GPUS_MAX);
		for (uint32_t i = 0; i < a->ngpu; i++)
			if (a->gpu[i] == number)
				return refuse("--device '%s': device %u is named twice", s,
					      a->gpu[i]);
		a->gpu[a->ngpu++] = (uint32_t)number;
	} while (at && *at);
	return 0;
}

static int parse_mistake(const char *s, enum mistake *ret)
{
	static const char *const name[] = { "", "no-guard", "late-guard", "stream" };

	for (uint32_t i = 1; i < sizeof name / sizeof *name; i++) {
		if (!strcmp(s, name[i])) {
			*ret = (enum mistake)i;
			return 0;
		}
	}
	return refuse("--mistake '%s': no-guard, late-guard or stream is needed", s);
}

static int parse_average(char *s, struct train_args *a)
{
	char *spec = strchr(s, '=');

	if (!spec || spec == s)
		return refuse("--average '%s': NAME=SPEC is needed, as in 'fast=constant "
			      "decay=.99'",
			      s);
	if (a->naverage == AVERAGES_MAX)
		return refuse("--average '%s': there are %d already, which is the maximum", s,
			      AVERAGES_MAX);
	*spec++ = 0;
	a->average[a->naverage].name = s;
	a->average[a->naverage++].spec = spec;
	return 0;
}

static int parse_option(int opt, char *value, struct train_args *a)
{
	uint64_t n;
	int r = 0;

	switch (opt) {
	case OPT_MESH:
		return parse_mesh(value, a);
	case OPT_STEPS:
		return parse_number("steps", value, 0, CKPT_LATEST - 1, &a->steps);
	case OPT_PARAMS:
		return parse_params(value, &a->params);
	case OPT_SEED:
		return parse_number("seed", value, 0, UINT64_MAX, &a->seed);
	case OPT_SNAPSHOT_EVERY:
		return parse_number("snapshot-every", value, 1, UINT64_MAX, &a->snapshot_every);
	case OPT_PERSIST_EVERY:
		r = parse_number("persist-every", value, 1, UINT32_MAX, &n);
		a->persist_every = r ? 1 : (uint32_t)n;
		return r;
	case OPT_RESTART_WAIT:
		r = parse_number("restart-wait", value, 1, UINT32_MAX, &n);
		a->restart_wait_ns = r ? 0 : n * 1000000;
		return r;
	case OPT_ROOT:
		a->root = value;
		return 0;
	case OPT_JOB:
		a->job = value;
		return 0;
	case OPT_SOCKET:
		a->socket = value;
		return 0;
	case OPT_RESUME:
		return parse_resume(value, a);
	case OPT_NO_CHECKPOINT:
		a->no_checkpoint = true;
		return 0;
	case OPT_LOSSES:
		a->losses = value;
		return 0;
	case OPT_GUARD:
		return parse_guard(value, &a->guard);
	case OPT_WAIT_READY:
		a->wait_ready = true;
		return 0;
	case OPT_LAYOUT:
		if (strcmp(value, "shards") && strcmp(value, "boxes"))
			return refuse("--layout '%s': shards or boxes is needed", value);
		a->layout = value[0] == 'b' ? LAYOUT_BOXES : LAYOUT_SHARDS;
		return 0;
	case OPT_MEMORY:
		if (strcmp(value, "alloc") && strcmp(value, "own") && strcmp(value, "mixed"))
			return refuse("--memory '%s': alloc, own or mixed is needed", value);
		a->memory = value[0] == 'a'   ? MEMORY_ALLOC
			    : value[0] == 'o' ? MEMORY_OWN
					      : MEMORY_MIXED;
		return 0;
	case OPT_DEVICE:
		return parse_device(value, a);
	case OPT_STREAM:
		if (strcmp(value, "own") && strcmp(value, "legacy"))
			return refuse("--stream '%s': own or legacy is needed", value);
		a->legacy_stream = value[0] == 'l';
		return 0;
	case OPT_AHEAD:
		r = parse_number("ahead", value, 0, AHEAD_MAX, &n);
		a->ahead = r ? 0 : (uint32_t)n;
		return r;
	case OPT_COPY_RATE:
		return parse_number("copy-rate", value, 1, UINT64_MAX, &a->copy_rate);
	case OPT_NCCL:
		a->nccl = true;
		return 0;
	case OPT_TAKEOVER:
		a->attach |= CKPT_TAKEOVER;
		return 0;
	case OPT_FOREIGN_OWNER:
		a->attach |= CKPT_FOREIGN_OWNER;
		return 0;
	case OPT_MISTAKE:
		return parse_mistake(value, &a->mistake);
	case OPT_COUNTERS:
		a->counters = true;
		return 0;
	case OPT_DERIVED:
		a->derived = true;
		return 0;
	case OPT_GO_BACK_EVERY:
		return parse_number("go-back-every", value, 1, UINT64_MAX, &a->go_back_every);
	case OPT_GO_BACK_TO:
		if (strcmp(value, "newest") && strcmp(value, "older"))
			return refuse("--go-back-to '%s': newest or older is needed", value);
		a->go_back_older = value[0] == 'o';
		return 0;
	case OPT_MOVE_EVERY:
		return parse_number("move-every", value, 1, UINT64_MAX, &a->move_every);
	case OPT_NAN_EVERY:
		return parse_number("nan-every", value, 1, UINT64_MAX, &a->nan_every);
	case OPT_THAW_EVERY:
		return parse_number("thaw-every", value, 1, UINT64_MAX, &a->thaw_every);
	case OPT_WRONG:
		a->wrong = true;
		return 0;
	case OPT_STEP_MS:
		return parse_number("step-ms", value, 0, 3600000, &a->step_ms);
	case OPT_FROZEN:
		r = parse_number("frozen", value, 0, 99, &n);
		a->frozen = r ? 0 : (uint32_t)n;
		return r;
	case OPT_PRINT_STATS:
		a->print_stats = value;
		return 0;
	case OPT_TEXT:
		a->text = value;
		return 0;
	case OPT_AVERAGE:
		return parse_average(value, a);
	case OPT_MASTERS:
		a->masters = value;
		return 0;
	case OPT_EVALUATE:
		a->evaluate = value;
		return 0;
	case OPT_HELP:
		fputs(usage, stdout);
		return 1;
	}
	return -EINVAL; /* unknown option or no value: getopt has said so */
}

int train_args_parse(int argc, char **argv, struct train_args *ret_args)
{
	struct train_args a = {
		.steps = CKPT_LATEST,
		.params = 2000000,
		.seed = 7,
		.snapshot_every = 10,
		.persist_every = 1,
		.text = CORPUS_DIR,
		.guard = CKPT_BOUNDED,
	};
	int opt, r;

	while ((opt = getopt_long(argc, argv, "", option, NULL)) != -1)
		if ((r = parse_option(opt, optarg, &a)) != 0)
			return r;
	if (optind < argc)
		return refuse("'%s' is not an option", argv[optind]);
	if (a.evaluate) {
		a.world = 1;
		*ret_args = a;
		return 0;
	}
	if (!a.mesh)
		return refuse("--mesh is missing, as in --mesh fsdp=4");
	if (a.steps == CKPT_LATEST)
		return refuse("--steps is missing, as in --steps 100");
	if (!a.no_checkpoint && (!a.root || !*a.root))
		return refuse("--root is missing: name the store, or train with --no-checkpoint");
	if (!a.no_checkpoint && (!a.job || !*a.job))
		return refuse("--job is missing: name the job inside the store");
	if (!a.ngpu && (a.legacy_stream || a.mistake || a.copy_rate || a.nccl))
		return refuse("--stream, --copy-rate, --nccl and --mistake need --device");
	if (a.no_checkpoint && a.nccl)
		return refuse("--nccl and --no-checkpoint contradict each other: nothing is "
			      "restored");
	if (a.ahead && a.masters)
		return refuse(
			"--ahead and --masters contradict each other: the host waits for what "
			"it writes there");
	if (a.ahead && (a.nan_every || a.thaw_every || a.move_every))
		return refuse("--ahead contradicts --nan-every, --thaw-every and --move-every: the "
			      "host writes to its devices there");
	if (a.wrong && (a.no_checkpoint || !a.move_every))
		return refuse("--wrong needs checkpoints, and --move-every");
	if (a.legacy_stream && a.mistake == MISTAKE_STREAM)
		return refuse("--mistake stream needs --stream own: it tells ckptd of the default "
			      "stream");
	if (a.no_checkpoint && a.naverage)
		return refuse("--average and --no-checkpoint contradict each other: it is ckptd "
			      "that keeps averages");
	if (a.no_checkpoint && a.resume != RESUME_NONE)
		return refuse("--resume and --no-checkpoint contradict each other");
	*ret_args = a;
	return 0;
}

int train_args_dim(const struct train_args *a, const char *name)
{
	for (uint32_t i = 0; i < a->ndim; i++)
		if (!strcmp(a->dim_name[i], name))
			return (int)i;
	return -1;
}
