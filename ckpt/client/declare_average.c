// SPDX-License-Identifier: Apache-2.0
// declare_average.c - averages of the weights that a handle declares: ckpt_average keeps the spec,
// ckpt_seal judges all of them, and the declaration has one record of AVERAGES each. Called by
// client.c, declare.c and attach.c.
// Invariant: what is declared does not depend on the order in which ckpt_average was called.
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include <fcntl.h>
#include <stdio.h>

static void average_free(struct average *x)
{
	if (!x)
		return;
	if (x->seed_fd >= 0)
		(void)close(x->seed_fd);
	ema_spec_free(x->spec);
	free(x->declared);
	free(x->name);
	free(x);
}

void declare_averages_free(ckpt *c)
{
	while (c->naverage)
		average_free(c->average[--c->naverage]);
}

/* Its place, or where it would be. */
static uint32_t average_at(const ckpt *c, const char *name, bool *ret_there)
{
	uint32_t i = 0;
	int order = 1;

	while (i < c->naverage && ((order = strcmp(c->average[i]->name, name)) < 0 ||
				   (order > 0 && MUTANT(AVERAGES_AS_CALLED))))
		i++;
	*ret_there = i < c->naverage && order == 0;
	return i;
}

/* Records of AVERAGES: its own, and one for each rule with a schedule of its own. */
static uint32_t records_of(const struct ema_spec *s)
{
	uint32_t n = 1;

	for (uint32_t i = 0; i < s->nrule; i++)
		n += s->rule[i].own;
	return n;
}

static int count_check(const ckpt *c, const char *name, const struct ema_spec *s,
		       struct ckpt_err *err)
{
	uint32_t mine = records_of(s), n = mine;

	for (uint32_t i = 0; i < c->naverage; i++)
		n += records_of(c->average[i]->spec);
	return n <= TABLE_AVERAGES_MAX
		       ? 0
		       : ckpt_error(
				 err, -E2BIG,
				 "average %s: it has %u schedules (its own, and one for each rule "
				 "that has one), and with it the job has %u; at most %u are "
				 "possible",
				 name, mine, n, TABLE_AVERAGES_MAX);
}

/* NULL: no memory. That it fits is ema_spec_parse's. */
static char *declared_of(const struct ema_spec *s)
{
	char text[EMA_SPEC_BYTES];

	return ema_spec_print(s, EMA_DECLARED, text) < 0 ? NULL : strdup(text);
}

static int average_add(ckpt *c, const char *name, uint32_t at, const char *text,
		       struct ckpt_err *err)
{
	struct average *x = calloc(1, sizeof *x);
	int rc = x ? 0 : ckpt_error(err, -ENOMEM, "no memory for average %s", name);

	if (rc < 0)
		return rc;
	x->seed_fd = -1;
	x->name = strdup(name);
	rc = x->name ? ema_spec_parse(text, &x->spec, err)
		     : ckpt_error(err, -ENOMEM, "no memory for average %s", name);
	if (rc < 0)
		(void)ckpt_error_prefix(err, rc, "average %s", name);
	else
		rc = count_check(c, name, x->spec, err);
	if (rc == 0 && !(x->declared = declared_of(x->spec)))
		rc = ckpt_error(err, -ENOMEM, "no memory for average %s", name);
	if (rc < 0) {
		average_free(x);
		return rc;
	}
	memmove(&c->average[at + 1], &c->average[at],
		(c->naverage - at) * sizeof(struct average *));
	c->average[at] = x;
	c->naverage++;
	return 0;
}

static void average_drop(ckpt *c, uint32_t at)
{
	average_free(c->average[at]);
	c->naverage--;
	memmove(&c->average[at], &c->average[at + 1],
		(c->naverage - at) * sizeof(struct average *));
}

int ckpt_average(ckpt *c, const char *name, const char *spec, struct ckpt_err *err)
{
	int rc = client_check(c, err);
	uint32_t at;
	bool there;

	if (rc < 0)
		return rc;
	if (!name || strnlen(name, CKPT_NAME_MAX + 1) > CKPT_NAME_MAX)
		return ckpt_error(err, -EINVAL,
				  "an average needs a name, such as \"fast\", of 1 to %u bytes",
				  EMA_NAME_BYTES - 1);
	at = average_at(c, name, &there);
	if (!spec && !there)
		return ckpt_error(
			err, -EINVAL,
			"there is no average %s to remove: a spec that is NULL removes it", name);
	if (spec && there)
		return ckpt_error(err, -EALREADY,
				  "average %s is declared twice: remove it first, with a spec that "
				  "is NULL, or use another name",
				  name);
	if (!spec)
		average_drop(c, at);
	else
		rc = average_add(c, name, at, spec, err);
	if (rc == 0)
		c->dirty = true;
	return rc;
}

/* --- at the seal --- */
/* One that cannot be opened is not refused here: where the job goes on from its own averages,
 * it is not needed. */
static void seed_open(struct average *x)
{
	if (!x->spec->seed || x->seed_fd >= 0)
		return;
	x->seed_fd = open(x->spec->seed, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	x->seed_error = x->seed_fd < 0 ? errno : 0;
}

static void average_advise(ckpt *c, struct average *x)
{
	struct ckpt_errlist list = { 0 };
	int level = c->rank == 0 ? LOG_WARNING : LOG_INFO;

	if (!x->advised)
		ema_spec_advise(x->spec, x->name, &list);
	x->advised = true;
	for (const char *p = list.text ? list.text : ""; *p; p += *p == '\n') {
		size_t n = strcspn(p, "\n");

		log_line(&c->log, level, "client: job %s: %.*s", c->job, (int)n, p);
		p += n;
	}
	ckpt_errlist_free(&list);
}

int declare_averages_check(ckpt *c, struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	int rc;

	for (uint32_t i = 0; i < c->naverage; i++) {
		ema_spec_check(c->average[i]->spec, c->average[i]->name, &list);
		seed_open(c->average[i]);
	}
	if (MUTANT(AVERAGES_UNJUDGED))
		list.n = 0;
	rc = ckpt_errlist_end(&list, err, "averages cannot be made as they are declared");
	ckpt_errlist_free(&list);
	for (uint32_t i = 0; i < c->naverage && rc == 0; i++)
		average_advise(c, c->average[i]);
	return rc;
}

/* --- seeds --- */
struct seeds *seeds_ref(struct seeds *s)
{
	if (s)
		add_relaxed(&s->refs, 1);
	return s;
}

void seeds_unref(struct seeds *s)
{
	if (!s || atomic_fetch_sub_explicit(&s->refs, 1, memory_order_acq_rel) != 1)
		return;
	for (uint32_t i = 0; i < s->n; i++)
		if (s->at[i].fd >= 0)
			(void)close(s->at[i].fd);
	free(s);
}

/* Descriptors of its own: an average may be removed while the helper sends them. */
static int seeds_make(ckpt *c, struct ckpt_err *err)
{
	struct seeds *s;
	uint32_t n = 0;

	seeds_unref(TAKE(c->seeds));
	for (uint32_t i = 0; i < c->naverage; i++)
		n += c->average[i]->spec->seed != NULL;
	if (!n)
		return 0;
	s = calloc(1, sizeof *s + n * sizeof *s->at);
	if (!s)
		return ckpt_error(err, -ENOMEM, "no memory for the seeds of averages");
	s->refs = 1;
	for (uint32_t i = 0; i < c->naverage; i++) {
		const struct average *x = c->average[i];
		struct seed_dir *to = &s->at[s->n];

		if (!x->spec->seed)
			continue;
		to->fd = x->seed_fd < 0 ? -1 : fcntl(x->seed_fd, F_DUPFD_CLOEXEC, 0);
		if (to->fd < 0 && x->seed_fd >= 0) {
			int eno = errno;

			seeds_unref(s);
			return ckpt_error_errno(err, eno, "average %s: cannot hold its seed %s",
						x->name, x->spec->seed);
		}
		to->message.average = i;
		to->message.error = (uint32_t)x->seed_error;
		snprintf(to->message.path, sizeof to->message.path, "%s", x->spec->seed);
		s->n++;
	}
	c->seeds = s;
	return 0;
}

int seeds_send(ckpt *c, struct seeds *s, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < s->n && rc == 0; i++) {
		struct wire_seed m = s->at[i].message;

		rc = rpc_call(c, &m, WIRE_SEED, s->at[i].fd, NULL, NULL, RPC_NS, err);
	}
	return rc;
}

/* --- the declaration --- */
int declare_averages_add(ckpt *c, struct table *t, struct ckpt_err *err)
{
	int rc = seeds_make(c, err);

	c->every.on = false;
	for (uint32_t i = 0; i < c->naverage && rc == 0; i++) {
		const struct table_average x = { .name = c->average[i]->name,
						 .schedule = c->average[i]->declared,
						 .last_step = EMA_NO_STEP };

		c->every.on |= c->average[i]->spec->every;
		rc = table_add_average(t, &x, NULL, err);
	}
	return rc;
}
