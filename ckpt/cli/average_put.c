/* SPDX-License-Identifier: Apache-2.0 */
/* average_put.c - see average_put.h. Invariant: what is not written in the checkpoint is null,
 * never 0. */
#include "ckpt/cli/average_put.h"
#include "ckpt/base/util.h"

static void put(struct output *o, const char *key, struct cell c)
{
	const struct column col = { key, NULL, false, FIT_WHOLE };

	output_put(o, &col, c);
}

static void put_record(struct output *o, const struct checkpoint *k, const struct table_average *a)
{
	put(o, "schedule", cell_text(a->schedule));
	put(o, "updates", cell_of(CELL_NUMBER, a->updates));
	put(o, "since_step", cell_unless(CELL_NUMBER, a->since, UINT64_MAX));
	put(o, "last_step", cell_unless(CELL_NUMBER, a->last_step, UINT64_MAX));
	put(o, "lag_steps", cell_unless(CELL_NUMBER, averages_lag(k, a), UINT64_MAX));
	put(o, "product", cell_real(a->product));
	put(o, "history", cell_id(a->history));
	put(o, "mixed", cell_of(CELL_FLAG, (a->flags & AVERAGE_MIXED) != 0));
	put(o, "seeded", cell_of(CELL_FLAG, (a->flags & AVERAGE_SEEDED) != 0));
}

/* The tensors of the step that the average copies, and how many its model should have and lacks. */
static void put_copied(struct output *o, const struct checkpoint *k, const struct table_average *a,
		       const char *component)
{
	struct ema_spec *spec = NULL;
	uint64_t missing = 0;
	uint32_t made;

	if (ema_spec_parse(a->schedule, &spec, NULL)) {
		put(o, "copied", cell_none());
		put(o, "missing_count", cell_none());
		return;
	}
	output_list(o, "copied", NULL, 0);
	for (uint32_t i = 0; i < k->table.ntensor; i++) {
		const struct table_tensor *x = &k->table.tensor[i];
		enum average_part part = average_part_of(&k->table, spec, component, i, &made);

		missing += part == AVERAGE_MISSING;
		if (part != AVERAGE_COPIED)
			continue;
		output_row(o);
		put(o, "component", cell_text(x->component));
		put(o, "name", cell_text(x->name));
		output_close(o);
	}
	output_close(o);
	put(o, "missing_count", cell_of(CELL_NUMBER, missing));
	ema_spec_free(spec);
}

void averages_put(struct output *o, const struct checkpoint *k, const struct average_seen *x,
		  uint32_t n)
{
	char component[CKPT_NAME_MAX + 8];

	output_list(o, "averages", NULL, 0);
	for (uint32_t i = 0; i < n && o->machine; i++) {
		const struct table *t = &k->table;

		snprintf(component, sizeof component, AVERAGES_COMPONENT "%.1000s", x[i].a->name);
		output_row(o);
		put(o, "name", cell_text(x[i].a->name));
		put(o, "component", cell_text(component));
		put_record(o, k, x[i].a);
		put(o, "kahan", cell_of(CELL_FLAG, (x[i].a->flags & AVERAGE_KAHAN) != 0));
		put(o, "tensor_count", cell_of(CELL_NUMBER, x[i].ntensor));
		put(o, "copied_count", cell_unless(CELL_NUMBER, x[i].ncopied, UINT32_MAX));
		put(o, "bytes", cell_of(CELL_BYTES, x[i].bytes));
		put(o, "carry_bytes", cell_of(CELL_BYTES, x[i].carry_bytes));
		put(o, "health", cell_word(x[i].health));
		put_copied(o, k, x[i].a, component);
		output_list(o, "rules", NULL, 0);
		for (uint32_t r = 0; r < t->naverage; r++) {
			if (!t->average[r].rule || strcmp(t->average[r].name, x[i].a->name) != 0)
				continue;
			output_row(o);
			put(o, "rule", cell_of(CELL_NUMBER, t->average[r].rule));
			put_record(o, k, &t->average[r]);
			output_close(o);
		}
		output_close(o);
		output_close(o);
	}
	output_close(o);
}
