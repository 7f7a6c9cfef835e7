/* SPDX-License-Identifier: Apache-2.0 */
/* average_put.c - see average_put.h. Invariant: what is not written in the checkpoint is null,
 * never 0. */
#include "ckpt/cli/average_put.h"
#include "ckpt/base/util.h"

static void put_record(struct output *o, const struct checkpoint *k, const struct table_average *a,
		       const struct average_missed *m)
{
	output_key(o, "schedule", cell_text(a->schedule));
	output_key(o, "updates", cell_number(a->updates));
	output_key(o, "since_step", cell_unless(CELL_NUMBER, a->since, UINT64_MAX));
	output_key(o, "last_step", cell_unless(CELL_NUMBER, a->last_step, UINT64_MAX));
	output_key(o, "lag_steps", cell_unless(CELL_NUMBER, averages_lag(k, a), UINT64_MAX));
	output_key(o, "left_out_count", cell_if(m->known, cell_number(m->left_out)));
	output_key(o, "left_out_complete", cell_if(m->known, cell_flag(!m->least)));
	output_key(o, "product", cell_real(a->product));
	output_key(o, "history", cell_id(a->history));
	output_key(o, "mixed", cell_flag((a->flags & AVERAGE_MIXED) != 0));
	output_key(o, "seeded", cell_flag((a->flags & AVERAGE_SEEDED) != 0));
}

/* The tensors of the step that the average copies, and how many its model should have and lacks. */
static void put_copied(struct output *o, const struct checkpoint *k, const struct table_average *a,
		       const char *component)
{
	struct ema_spec *spec = NULL;
	uint64_t missing = 0;
	uint32_t made;

	if (ema_spec_parse(a->schedule, &spec, NULL)) {
		output_key(o, "copied", cell_none());
		output_key(o, "missing_count", cell_none());
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
		output_key(o, "component", cell_text(x->component));
		output_key(o, "name", cell_text(x->name));
		output_close(o);
	}
	output_close(o);
	output_key(o, "missing_count", cell_number(missing));
	ema_spec_free(spec);
}

void averages_put(struct output *o, const struct checkpoint *k, const struct average_seen *x,
		  uint32_t n)
{
	struct average_missed missed[TABLE_AVERAGES_MAX];
	char component[CKPT_NAME_MAX + 8];

	averages_missed_all(k, missed);
	output_list(o, "averages", NULL, 0);
	for (uint32_t i = 0; i < n && o->machine; i++) {
		const struct table *t = &k->table;

		snprintf(component, sizeof component, AVERAGES_COMPONENT "%.1000s", x[i].a->name);
		output_row(o);
		output_key(o, "name", cell_text(x[i].a->name));
		output_key(o, "component", cell_text(component));
		put_record(o, k, x[i].a, &x[i].missed);
		output_key(o, "kahan", cell_flag(x[i].a->flags & AVERAGE_KAHAN));
		output_key(o, "tensor_count", cell_number(x[i].ntensor));
		output_key(o, "copied_count", cell_unless(CELL_NUMBER, x[i].ncopied, UINT32_MAX));
		output_key(o, "bytes", cell_bytes(x[i].bytes));
		output_key(o, "carry_bytes", cell_bytes(x[i].carry_bytes));
		output_key(o, "health", cell_word(x[i].health));
		put_copied(o, k, x[i].a, component);
		output_list(o, "rules", NULL, 0);
		for (uint32_t r = 0; r < t->naverage; r++) {
			if (!t->average[r].rule || strcmp(t->average[r].name, x[i].a->name) != 0)
				continue;
			output_row(o);
			output_key(o, "rule", cell_number(t->average[r].rule));
			put_record(o, k, &t->average[r], &missed[MIN(r, TABLE_AVERAGES_MAX - 1)]);
			output_close(o);
		}
		output_close(o);
		output_close(o);
	}
	output_close(o);
}
