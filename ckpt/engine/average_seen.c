/* SPDX-License-Identifier: Apache-2.0 */
/*
 * average_seen.c - see average_seen.h. Called by verb_ema.c, verb_show.c and verb_diff.c, and by the
 * daemon, which writes the attributes and goes on from them.
 * Invariant: what is not written in the checkpoint is none, never 0.
 */
#include "ckpt/engine/average_seen.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/util.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static int seen_compare(const void *va, const void *vb)
{
	const struct average_seen *a = va, *b = vb;

	return strcmp(a->a->name, b->a->name);
}

/* Is it the average of tensor i, or of its master? One whose source is not known is nobody
 * else's. */
static bool is_made_of(const struct table *t, const struct table_tensor *made, uint32_t i)
{
	uint32_t source = made->made ? table_find_key(t, made->of) : TABLE_NONE;
	char key[TABLE_KEY_BYTES];

	return made->made && (source == TABLE_NONE || source == i ||
			      !strcmp(t->tensor[source].of, table_key(&t->tensor[i], key)));
}

bool averages_is_master(const struct table_tensor *x)
{
	return x->role == CKPT_MASTER && x->dtype == CKPT_F32 && x->cls != CKPT_CONST &&
	       x->cls != CKPT_SINK && x->cls != CKPT_DERIVED && !(x->flags & TENSOR_BLOB);
}

struct ema_subject averages_subject(const struct table_tensor *x, bool master,
				    char component[CKPT_NAME_MAX + 1])
{
	const char *slash = master ? strchr(x->of, '/') : NULL;
	struct ema_subject s = { .component = x->component,
				 .name = x->name,
				 .dtype = x->dtype,
				 .role = master ? (uint32_t)CKPT_PARAM : x->role,
				 .cls = x->cls,
				 .blob = x->flags & TENSOR_BLOB };

	if (slash && slash[1] && slash - x->of <= CKPT_NAME_MAX) {
		memcpy(component, x->of, (size_t)(slash - x->of));
		component[slash - x->of] = 0;
		s.component = component;
		s.name = slash + 1;
	}
	return s;
}

enum average_part average_part_of(const struct table *t, const struct ema_spec *spec,
				  const char *component, uint32_t i, uint32_t *ret_made)
{
	const struct table_tensor *x = &t->tensor[i];
	/* Its parameter is no tensor of the step, so that a copy would have nobody's name. */
	uint32_t owner = averages_is_master(x) ? table_find_key(t, x->of) : i;
	bool alone = spec->source == EMA_MASTER && averages_is_master(x) &&
		     (owner == TABLE_NONE || owner == i);
	char of[CKPT_NAME_MAX + 1];
	const struct ema_subject subject = averages_subject(x, alone, of);
	enum ema_act act = ema_spec_judge(spec, &subject).act;

	*ret_made = TABLE_NONE;
	if (x->made || act == EMA_SKIP ||
	    !strncmp(x->component, AVERAGES_COMPONENT, strlen(AVERAGES_COMPONENT)))
		return AVERAGE_NOT;
	*ret_made = table_find(t, component, subject.name, TABLE_NONE);
	if (*ret_made != TABLE_NONE && is_made_of(t, &t->tensor[*ret_made], i))
		return AVERAGE_IS_MADE;
	if (subject.name != x->name && x->numel)
		return AVERAGE_MISSING;
	return act == EMA_COPY || !x->numel ? AVERAGE_COPIED : AVERAGE_MISSING;
}

static void count_copied(const struct checkpoint *k, struct average_seen *x)
{
	struct ema_spec *spec = NULL;
	char component[CKPT_NAME_MAX + 8];
	uint32_t made;

	x->ncopied = UINT32_MAX;
	if (ema_spec_parse(x->a->schedule, &spec, NULL))
		return;
	x->ncopied = 0;
	snprintf(component, sizeof component, AVERAGES_COMPONENT "%.1000s", x->a->name);
	for (uint32_t i = 0; i < k->table.ntensor; i++)
		x->ncopied +=
			average_part_of(&k->table, spec, component, i, &made) == AVERAGE_COPIED;
	ema_spec_free(spec);
}

/* The average that a record, or a MADE tensor, belongs to; NULL. */
static struct average_seen *seen_of(struct average_seen *x, uint32_t n, const char *name)
{
	const struct table_average a = { .name = name };
	const struct average_seen key = { .a = &a };

	return bsearch(&key, x, n, sizeof *x, seen_compare);
}

static void count_tensors(const struct checkpoint *k, struct average_seen *x, uint32_t n)
{
	for (uint32_t i = 0; i < k->table.ntensor; i++) {
		const struct table_tensor *t = &k->table.tensor[i];
		struct average_seen *of;

		if (!t->made)
			continue;
		of = seen_of(x, n, k->table.average[t->made - 1].name);
		if (of && t->role == CKPT_AVERAGE) {
			of->ntensor++;
			of->bytes += t->numel * t->elem_bytes;
		} else if (of) {
			of->carry_bytes += t->numel * t->elem_bytes;
		}
	}
}

int averages_see(const struct checkpoint *k, struct average_seen **ret, uint32_t *ret_n)
{
	const struct table *t = &k->table;
	struct average_seen *x = calloc((size_t)t->naverage + 1, sizeof *x);
	struct average_missed missed[TABLE_AVERAGES_MAX];
	size_t head = strlen(AVERAGES_HEALTH);
	uint32_t n = 0;

	*ret = x;
	*ret_n = 0;
	if (!x)
		return -ENOMEM;
	averages_missed_all(k, missed);
	for (uint32_t i = 0; i < t->naverage; i++)
		if (!t->average[i].rule)
			x[n++] = (struct average_seen){
				.a = &t->average[i],
				.missed = missed[MIN(i, TABLE_AVERAGES_MAX - 1)]
			};
	qsort(x, n, sizeof *x, seen_compare);
	for (uint32_t i = 0; i < t->naverage; i++) {
		struct average_seen *of = seen_of(x, n, t->average[i].name);

		if (!of)
			continue;
		of->nrule += t->average[i].rule != 0;
		of->mixed |= (t->average[i].flags & AVERAGE_MIXED) != 0;
	}
	for (uint32_t i = 0; i < k->nattr; i++) {
		struct average_seen *of = strncmp(k->attr[i].key, AVERAGES_HEALTH, head)
						  ? NULL
						  : seen_of(x, n, k->attr[i].key + head);

		if (of)
			of->health = k->attr[i].value;
	}
	count_tensors(k, x, n);
	for (uint32_t i = 0; i < n; i++)
		count_copied(k, &x[i]);
	*ret_n = n;
	return 0;
}

/* --- what was left out --- */
void averages_missed_key(const char *name, uint32_t rule, char *buf, size_t bytes)
{
	if (rule)
		snprintf(buf, bytes, AVERAGES_LEFT_OUT "%s/%" PRIu32, name, rule);
	else
		snprintf(buf, bytes, AVERAGES_LEFT_OUT "%s", name);
}

char *averages_missed_print(const struct average_missed *m, char *buf, size_t bytes)
{
	snprintf(buf, bytes, "%s%" PRIu64 " of %" PRIu64, m->least ? "at least " : "", m->left_out,
		 m->of);
	return buf;
}

bool averages_missed_many(const struct average_missed *m)
{
	return m->known && m->left_out > m->of / 100;
}

/* It is read only if it is what averages_missed_print would say of this record. */
static struct average_missed missed_read(const struct table_average *a, const char *text)
{
	static const char least[] = "at least ";
	struct average_missed m = { .known = true };
	char again[80];

	m.least = !strncmp(text, least, sizeof least - 1);
	m.left_out = strtoull(text + (m.least ? sizeof least - 1 : 0), NULL, 10);
	if (m.left_out > UINT32_MAX || ckpt_add(a->updates, m.left_out, &m.of) ||
	    strcmp(averages_missed_print(&m, again, sizeof again), text) != 0)
		return (struct average_missed){ 0 };
	return m;
}

void averages_missed_all(const struct checkpoint *k, struct average_missed ret[TABLE_AVERAGES_MAX])
{
	const size_t head = strlen(AVERAGES_LEFT_OUT);
	uint32_t n = MIN(k->table.naverage, TABLE_AVERAGES_MAX);
	char key[CKPT_NAME_MAX + 64];

	memset(ret, 0, TABLE_AVERAGES_MAX * sizeof *ret);
	for (uint32_t i = 0; i < k->nattr; i++) {
		if (strncmp(k->attr[i].key, AVERAGES_LEFT_OUT, head) != 0)
			continue;
		for (uint32_t a = 0; a < n; a++) {
			const struct table_average *x = &k->table.average[a];

			averages_missed_key(x->name, x->rule, key, sizeof key);
			if (!strcmp(key, k->attr[i].key))
				ret[a] = missed_read(x, k->attr[i].value);
		}
	}
}

uint64_t averages_marked(const struct checkpoint *k)
{
	for (uint32_t i = 0; i < k->nattr; i++)
		if (!strcmp(k->attr[i].key, AVERAGES_MARKED))
			return strtoull(k->attr[i].value, NULL, 10);
	return 0;
}

uint64_t averages_lag(const struct checkpoint *k, const struct table_average *a)
{
	return a->last_step == UINT64_MAX ? UINT64_MAX : k->step - MIN(a->last_step, k->step);
}

uint64_t averages_health_count(const char *health, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = health; p && *p; p = strchr(p, ',')) {
		uint64_t n;
		char *end;

		p += strspn(p, ", ");
		if (strncmp(p, word, len) || p[len] != ' ' || p[len + 1] < '0' || p[len + 1] > '9')
			continue;
		errno = 0;
		n = strtoull(p + len + 1, &end, 10);
		return errno || (*end && !strchr(", ", *end)) ? UINT64_MAX : n;
	}
	return UINT64_MAX;
}

bool averages_health_is_bad(const char *health)
{
	static const char *const word[] = { "far", "NaN", "Inf",
					    "larger than its weights ever were in" };

	for (uint32_t i = 0; i < ARRAY_LEN(word); i++) {
		uint64_t n = averages_health_count(health, word[i]);

		if (n && n != UINT64_MAX)
			return true;
	}
	return false;
}

bool averages_same_chain(const struct table_average *a, const struct table_average *b)
{
	return MUTANT(CHAINS_ALL_ALIKE) ||
	       (!strcmp(a->schedule, b->schedule) && a->updates == b->updates &&
		!memcmp(a->history, b->history, sizeof a->history) &&
		!((a->flags | b->flags) & AVERAGE_MIXED));
}

char *averages_chain(const struct checkpoint *k, const struct table_average *a, char *buf,
		     size_t bytes)
{
	uint64_t lag = averages_lag(k, a);

	if (lag == UINT64_MAX)
		snprintf(buf, bytes, "no step was taken in yet");
	else
		snprintf(buf, bytes,
			 "%" PRIu64 " update%s since step %" PRIu64 ", the newest at step %" PRIu64,
			 a->updates, a->updates == 1 ? "" : "s", a->since, a->last_step);
	if (lag && lag != UINT64_MAX)
		snprintf(buf + strlen(buf), bytes - strlen(buf), ", %" PRIu64 " step%s ago", lag,
			 lag == 1 ? "" : "s");
	return buf;
}
