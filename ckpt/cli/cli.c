/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cli.c - from a command line to a verb and an exit code. main() and the tests call cli_run.
 * Invariant: whatever happens, either the exit code is 0 or one sentence on stderr says why not.
 */
#include "ckpt/cli/cli.h"
#include "ckpt/base/error.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/daemon_ask.h"
#include <stdarg.h>

#define LINE_BYTES 8192

volatile sig_atomic_t cli_stops, cli_stop_signal, cli_asked;

static const struct {
	int rc, code;
} exits[] = {
	{ -EBADMSG, CLI_CORRUPT },	  { -EPROTO, CLI_CORRUPT },
	{ -EUCLEAN, CLI_UNCOMMITTED },	  { -EMEDIUMTYPE, CLI_MISFIT },
	{ -ENOENT, CLI_MISSING },	  { -ENOMSG, CLI_MISSING },
	{ -ENOTDIR, CLI_MISSING },	  { -EBUSY, CLI_LOCKED },
	{ -ESTALE, CLI_LOCKED },	  { -EACCES, CLI_PERMISSION },
	{ -EPERM, CLI_PERMISSION },	  { -ENOSPC, CLI_NO_SPACE },
	{ -EDQUOT, CLI_NO_SPACE },	  { -ENOMEM, CLI_NO_SPACE },
	{ -ECONNREFUSED, CLI_NO_DAEMON }, { -ECONNRESET, CLI_NO_DAEMON },
	{ -ETIMEDOUT, CLI_TIMEOUT },	  { -ECANCELED, CLI_INTERRUPTED },
	{ -EINVAL, CLI_USAGE },		  { -EAGAIN, CLI_TEMPORARY },
	{ -ENOTUNIQ, CLI_USAGE },	  { -ENAMETOOLONG, CLI_USAGE },
	{ -EROFS, CLI_PERMISSION },	  { -EPROTONOSUPPORT, CLI_NEWER },
};

int cli_exit(int rc)
{
	if (rc >= 0)
		return CLI_OK;
	if (rc == -ECANCELED && cli_stop_signal == SIGTERM)
		return CLI_TERMINATED;
	for (uint32_t i = 0; i < ARRAY_LEN(exits); i++)
		if (exits[i].rc == rc)
			return exits[i].code;
	return CLI_FAILED;
}

int cli_worse(int a, int b)
{
	static const int order[] = { CLI_CORRUPT, CLI_PERMISSION };

	for (uint32_t i = 0; i < ARRAY_LEN(order); i++)
		if (a == order[i] || b == order[i])
			return order[i];
	return a && (a != CLI_WARNINGS || !b) ? a : b;
}

char *cli_word(const char *name, char *buf, size_t bytes)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "@%+=:,./_-~^";
	struct text t = text_in(buf, bytes);

	if (*name && *name != '~' && !name[strspn(name, plain)]) {
		text_add(&t, "%s", name);
		return buf;
	}
	text_add(&t, "'");
	for (const char *p = name, *end; *p; p = end) {
		end = p + strcspn(p, "'");
		text_add(&t, "%.*s", (int)(end - p), p);
		if (*end)
			text_add(&t, "'\\''");
		end += *end == '\'';
	}
	text_add(&t, "'");
	return buf;
}

int cli_fail(struct cli *c, int rc, const struct ckpt_err *err, const char *next, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	if (next) {
		va_start(ap, next);
		vsnprintf(line, sizeof line, next, ap);
		va_end(ap);
	}
	c->o->ops->error(c->o, cli_exit(rc), err && err->msg[0] ? err->msg : strerror(-rc),
			 next ? line : NULL);
	return cli_exit(rc);
}

int cli_usage(struct cli *c, const char *next, const char *fmt, ...)
{
	char line[LINE_BYTES], help[64];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	snprintf(help, sizeof help, "ckptctl %s -h", c->verb->name);
	c->o->ops->error(c->o, CLI_USAGE, line, next ? next : help);
	return CLI_USAGE;
}

void cli_hint(struct cli *c, const char *fmt, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	if (c->json || c->quiet)
		return;
	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	fflush(c->out);
	screen_wrap(c->err, screen_ascii(&c->err_screen, line, line, sizeof line),
		    c->err_screen.width, 0, 0);
}

void cli_say(struct cli *c, enum cell_style style, const char *fmt, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	c->o->ops->say(c->o, style, NULL, 0, line);
}

void cli_mark(struct cli *c, enum cell_style style, const char *mark, uint32_t indent,
	      const char *fmt, ...)
{
	char line[LINE_BYTES];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(line, sizeof line, fmt, ap);
	va_end(ap);
	c->o->ops->say(c->o, style, mark, indent, line);
}

/* Errors in the command line are JSON too when --json stands anywhere in it. */
static bool wants_json(int argc, char **argv)
{
	for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
		if (!strcmp(argv[i], "--json"))
			return true;
	return false;
}

/* Fills c->verb (NULL: none was given), options and arguments. */
static int line_parse(struct cli *c, int argc, char **argv, struct ckpt_err *err)
{
	int at = cli_options_parse(c, NULL, argc, argv, err), rest;

	if (at < 0 || at >= argc)
		return at < 0 ? at : 0;
	c->verb = cli_verb_find(argv[at]);
	if (!c->verb)
		return cli_verb_unknown(argv[at], err);
	c->word = argv[at];
	rest = cli_options_parse(c, c->verb, argc - at, argv + at, err);
	if (rest < 0)
		return rest;
	c->arg = argv + at + rest;
	c->narg = (uint32_t)(argc - at - rest);
	if (c->narg > c->verb->narg_max && !c->value[OPT_HELP])
		return ckpt_error(err, -EINVAL, "ckptctl %s does not take the argument \"%.200s\"",
				  c->verb->name, c->arg[c->verb->narg_max]);
	return 0;
}

static int output_make(struct cli *c)
{
	screen_probe(c->out, c->value[OPT_COLOR], c->value[OPT_ASCII], &c->out_screen);
	screen_probe(c->err, c->value[OPT_COLOR], c->value[OPT_ASCII], &c->err_screen);
	c->o = c->json ? output_json_new(c->out, c->err, c->out_screen.terminal)
		       : output_text_new(c->out, &c->out_screen, c->err, &c->err_screen);
	if (!c->o)
		return -ENOMEM;
	c->o->ascii = c->value[OPT_ASCII] != NULL;
	return 0;
}

/* Status, where there is a daemon, or something wrong with it; else what to do first. */
static int run_alone(struct cli *c)
{
	struct ckpt_err err = { 0 };
	struct control k;
	int rc = daemon_ask_open(&k, c, 0, &err);

	control_close(&k);
	if (rc == -ECONNREFUSED && c->json)
		return cli_fail(c, ckpt_error(&err, -EINVAL, "no verb was given"), &err,
				"ckptctl -h");
	if (rc == -ECONNREFUSED) {
		cli_help_first(c);
		return CLI_OK;
	}
	if (rc < 0)
		return daemon_ask_fail(c, &k, rc, &err);
	c->verb = &verb_status;
	return verb_status.run(c);
}

static int verb_run(struct cli *c)
{
	if (c->value[OPT_VERSION])
		return verb_version.run(c);
	if (c->value[OPT_HELP]) {
		if (c->verb)
			cli_help_verb(c, c->verb);
		else
			cli_help(c);
		return CLI_OK;
	}
	if (!c->verb)
		return run_alone(c);
	if (strcmp(c->word, c->verb->name) && c->err_screen.terminal)
		cli_hint(c, "%s is another word for ckptctl %s", c->word, c->verb->name);
	return c->verb->run(c);
}

/* What was printed must have arrived. */
static int output_finish(struct cli *c, int code)
{
	struct ckpt_err err;
	int rc;

	if (c->o->failed && !code)
		code = cli_fail(
			c, ckpt_error(&err, -ENOMEM, "the output could not be made: out of memory"),
			&err, NULL);
	if (fflush(c->out) || ferror(c->out)) {
		rc = errno ? -errno : -EIO;
		ckpt_error_errno(&err, -rc, "the output could not be written");
		rc = cli_fail(c, rc, &err, NULL);
		code = code ? code : rc;
	}
	return code;
}

int cli_run(int argc, char **argv, FILE *out, FILE *err)
{
	struct cli c = { .ops = &io_ops_posix,
			 .out = out,
			 .err = err,
			 .where = ".",
			 .json = wants_json(argc, argv) };
	const char *env = getenv("CKPTD_STORE");
	struct ckpt_err why = { 0 };
	int rc = line_parse(&c, argc, argv, &why), code;

	c.json |= c.value[OPT_JSON] != NULL;
	c.quiet = c.value[OPT_QUIET] != NULL;
	if (env && *env)
		c.where = env;
	if (c.value[OPT_STORE])
		c.where = c.value[OPT_STORE];
	if (output_make(&c)) {
		fputs("ckptctl: out of memory\n", err);
		return CLI_NO_SPACE;
	}
	if (!rc)
		code = verb_run(&c);
	else if (c.verb)
		code = cli_fail(&c, rc, &why, "ckptctl %s -h", c.verb->name);
	else
		code = cli_fail(&c, rc, &why, "ckptctl -h");
	if (!code && c.passed)
		code = CLI_WARNINGS;
	code = output_finish(&c, code);
	c.o->ops->free(c.o);
	return code;
}
