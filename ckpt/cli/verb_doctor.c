/* SPDX-License-Identifier: Apache-2.0 */
/* verb_doctor.c - ckptctl doctor: can ckptd work well here? ckpt/host/host_facts.h says what is
 * examined. */
#include "ckpt/base/error.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/cli.h"
#include "ckpt/cli/daemon_ask.h"
#include "ckpt/cli/doctor_links.h"
#include "ckpt/host/host_facts.h"
#include "ckpt/layout/human.h"
#include "formats/registry/registry.h"

#define INDENT 20 /* of what was found */

struct doctor {
	struct cli *c;
	uint32_t n[HOST_FAIL + 1];
};

static void finding_print(void *arg, const struct host_finding *f)
{
	static const struct {
		const char *key, *mark;
		enum cell_style style;
	} level[] = {
		[HOST_OK] = { "ok", "ok  ", STYLE_GOOD },
		[HOST_WARN] = { "warn", "warn", STYLE_WARN },
		[HOST_FAIL] = { "fail", "FAIL", STYLE_BAD },
	};
	struct doctor *d = arg;
	struct output *o = d->c->o;

	d->n[f->level]++;
	output_row(o);
	output_key(o, "check", cell_text(f->check));
	output_key(o, "result", cell_text(level[f->level].key));
	output_key(o, "found", cell_text(f->found));
	output_key(o, "next", cell_word(f->next));
	output_close(o);
	cli_mark(d->c, level[f->level].style, level[f->level].mark, INDENT, "  %-13s %s", f->check,
		 f->found);
	if (*f->next)
		cli_mark(d->c, STYLE_DIM, "                    ->", INDENT + 3, " %s", f->next);
}

static bool unit_is_apart(const char *size, const char *path)
{
	char text[32] = "1";
	uint64_t bytes;

	return !size[strspn(size, "0123456789.")] && strlen(path) < sizeof text - 1 &&
	       !human_parse_bytes(strcat(text, path), &bytes) && strspn(path, "0123456789.") == 0 &&
	       access(path, F_OK) < 0;
}

static int doctor_run(struct cli *c)
{
	struct host_ask ask = { .ops = c->ops,
				.format = formats[0],
				.path = c->narg ? c->arg[0] : c->where,
				.socket = c->value[OPT_SOCKET] };
	struct doctor d = { .c = c };
	struct host_links links;
	struct host_facts *f;
	struct ckpt_err err;
	const char *env = getenv("CKPTD_SOCKET");
	char job[HUMAN_BYTES];

	if (!ask.socket && env && *env)
		ask.socket = env;
	if (c->value[OPT_JOB_SIZE] && human_parse_bytes(c->value[OPT_JOB_SIZE], &ask.job_bytes))
		return cli_usage(c, "--job-size=1.2T, 149G, ...: the bytes of one checkpoint",
				 "--job-size=%.80s is no number of bytes", c->value[OPT_JOB_SIZE]);
	/* "10 GB" without quotes is ten bytes, and a directory. */
	if (c->value[OPT_JOB_SIZE] && c->narg && unit_is_apart(c->value[OPT_JOB_SIZE], c->arg[0]))
		return cli_usage(c, "ckptctl doctor --job-size=1.2T DIR",
				 "--job-size=%.40s %.20s is two words: write --job-size=%.40s%.20s",
				 c->value[OPT_JOB_SIZE], c->arg[0], c->value[OPT_JOB_SIZE],
				 c->arg[0]);
	f = malloc(sizeof *f);
	if (!f)
		return cli_fail(c, ckpt_error(&err, -ENOMEM, "no memory to look at it"), &err,
				NULL);
	host_examine(&ask, f);
	if (c->value[OPT_LINKS_FILE]) {
		int code = doctor_links_write(c, f->missing ? f->parent : f->path, &links);

		if (code) {
			free(f);
			return code;
		}
	}
	output_begin(c->o, "ckptd.doctor/1");
	output_key(c->o, "path", cell_text(f->path));
	output_key(c->o, "job_bytes", cell_unless(CELL_BYTES, f->job_bytes, 0));
	output_key(c->o, "job_bytes_from",
		   cell_word(f->job_guessed ? "newest step"
			     : f->job_bytes ? "--job-size"
					    : NULL));
	output_list(c->o, "checks", NULL, 0);
	host_judge(f, finding_print, &d);
	output_close(c->o);
	output_key(c->o, "warning_count", cell_number(d.n[HOST_WARN]));
	output_key(c->o, "failure_count", cell_number(d.n[HOST_FAIL]));
	doctor_links_put(c, c->value[OPT_LINKS_FILE] ? &links : NULL);
	if (f->job_guessed)
		cli_say(c, STYLE_DIM,
			"A job of %s, as the newest step here; for another size: --job-size.",
			human_bytes(f->job_bytes, job));
	if (d.n[HOST_FAIL])
		cli_say(c, STYLE_BAD, "%u of %u checks failed: ckptd would not work properly here.",
			d.n[HOST_FAIL], d.n[HOST_OK] + d.n[HOST_WARN] + d.n[HOST_FAIL]);
	else if (d.n[HOST_WARN])
		cli_say(c, STYLE_WARN, "ckptd works here, with %u warning%s.", d.n[HOST_WARN],
			d.n[HOST_WARN] == 1 ? "" : "s");
	else
		cli_say(c, STYLE_GOOD, "ckptd works here.");
	output_end(c->o);
	free(f);
	return d.n[HOST_FAIL] ? CLI_FAILED : d.n[HOST_WARN] ? CLI_WARNINGS : CLI_OK;
}

const struct cli_verb verb_doctor = {
	.name = "doctor",
	.help = "check this machine and a directory for ckptd",
	.synopsis = (const char *const[]){ "[--job-size=BYTES] [--links=FILE] [DIR]", NULL },
	.about =
		"Checks what ckptd needs: the directory DIR (a store, or a directory that will "
		"become one; without DIR, the default store), its file system and its space; the "
		"kernel, io_uring and limits; memory for two copies of the job; the daemon and "
		"what may end it. Each line shows what doctor found and, if something should be "
		"changed, what to do. doctor also lists what ckptctl convert or export left in DIR "
		"when it was killed. doctor makes some small scratch files in DIR, syncs them "
		"and removes them.\n"
		"With --links doctor also measures what messages cost on this host: a copy in "
		"memory, messages between two processes through a socket, and writing 64 MiB to "
		"DIR. It writes them into FILE, for --links of plan. It measures no links to other "
		"hosts and none between GPUs; FILE says what is missing.",
	.example =
		(const struct cli_example[]){
			{ "ckptctl doctor /ckpt", "is this a good place?" },
			{ "ckptctl doctor /ckpt --job-size=1.2T", "and is it large enough?" },
			{ "ckptctl doctor --links links.txt /ckpt", "what do messages cost here?" },
			{ "ckptctl doctor --json | jq .failure_count", "in the prologue of a job" },
			{ NULL, NULL },
		},
	.option =
		(const struct cli_verb_option[]){
			{ OPT_JOB_SIZE,
			  "the bytes of one checkpoint (1.2T, 149G); the default is the size of "
			  "the newest step in DIR" },
			{ OPT_LINKS_FILE,
			  "also measure what messages cost, and write that into this file; an "
			  "existing file is replaced only if doctor wrote it" },
			{ OPT_SOCKET, CONTROL_SOCKET_HELP },
			{ OPT_NONE, NULL },
		},
	.exits = "0 ckptd works here; 1 something must be changed first; 2 the command line is "
		 "wrong; 3 it works, with warnings; 11 --links names a file that doctor did not "
		 "write.",
	.args = (const enum cli_arg[]){ ARG_DIR, ARG_NONE },
	.narg_max = 1,
	.run = doctor_run,
};
