/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remesh.c - --mesh and --layout. Called by plan, restore and convert.
 * Invariant: a tensor that is not cut on the new mesh as it was on the old one is told, once, to
 * people and to programs.
 */
#include "ckpt/cli/remesh.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/cli/text_file.h"

#define RULES_MAX 65536u
#define GROUPS_SAID 8u /* kinds of notes that a person is told */
#define NAMES_SAID 3u  /* tensors that are named of each */
#define NEAR_MAX 2

/* --- the layout file --- */

struct layout_file {
	const char *path;
	char *text;
	struct target_rule *rule;
	uint32_t nrule;
};

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* Ends the line where its comment or its last blanks begin. */
static void line_trim(char *line)
{
	size_t n = 0;

	while (line[n] && !(line[n] == '#' && (!n || is_blank(line[n - 1]))))
		n++;
	while (n && is_blank(line[n - 1]))
		n--;
	line[n] = 0;
}

/* A rule without placements is one too: target_make says what is wrong with it, with all others. */
static int rule_add(struct layout_file *f, char *line, uint32_t number, struct arena *a,
		    struct ckpt_err *err)
{
	size_t room = strlen(f->path) + 16;
	char *where;

	while (is_blank(*line))
		line++;
	line_trim(line);
	if (!*line)
		return 0;
	if (f->nrule == RULES_MAX)
		return ckpt_error(err, -EINVAL, "%s: more than %u rules", f->path, RULES_MAX);
	where = arena_alloc(a, room);
	if (!where)
		return ckpt_error(err, -ENOMEM, "out of memory for the rules of %s", f->path);
	snprintf(where, room, "%s:%u", f->path, number);
	f->rule[f->nrule] = (struct target_rule){ .glob = line, .where = where };
	while (*line && !is_blank(*line))
		line++;
	if (*line)
		*line++ = 0;
	while (is_blank(*line))
		line++;
	f->rule[f->nrule++].placements = line;
	return 0;
}

static int file_rules(struct layout_file *f, struct arena *a, struct ckpt_err *err)
{
	uint32_t lines = 1, number = 0;
	int rc = text_file_read(f->path, "layout file", "one \"GLOB  PLACEMENTS\" a line", a,
				&f->text, err);

	if (rc)
		return rc;
	for (const char *p = f->text; (p = strchr(p, '\n')); p++)
		lines++;
	f->rule = arena_array(a, MIN(lines, RULES_MAX), sizeof *f->rule);
	if (!f->rule)
		return ckpt_error(err, -ENOMEM, "out of memory for the rules of %s", f->path);
	for (char *p = f->text, *next; p && !rc; p = next) {
		next = strchr(p, '\n');
		if (next)
			*next++ = 0;
		rc = rule_add(f, p, ++number, a, err);
	}
	return rc;
}

/* --- the target --- */

struct notes {
	struct remesh *m;
	uint32_t cap;
	bool failed;
};

static void on_note(void *arg, uint32_t tensor, const char *text)
{
	struct notes *x = arg;
	struct remesh *m = x->m;
	const char *copy = m->nnote ? m->note[m->nnote - 1].text : NULL;

	if (m->nnote == x->cap) {
		uint32_t cap = x->cap ? 2 * x->cap : 64;
		struct remesh_note *p = reallocarray(m->note, cap, sizeof *p);

		if (!p) {
			x->failed = true;
			return;
		}
		m->note = p;
		x->cap = cap;
	}
	/* Neighbours often have the same reason: it is kept once. */
	if (!copy || strcmp(copy, text) != 0)
		copy = arena_str(&m->arena, text);
	if (!copy) {
		x->failed = true;
		return;
	}
	m->note[m->nnote++] = (struct remesh_note){ tensor, copy };
}

/* The command as it was given, with a mesh that the checkpoint knows. */
static int fail_mesh(struct cli *c, const struct subject *s, int rc, const struct ckpt_err *err)
{
	char own[512], words[1024] = "";

	subject_mesh(&s->ckpt->table, own, sizeof own);
	for (uint32_t i = 0; i < c->narg; i++)
		snprintf(words + strlen(words), sizeof words - strlen(words), " %s", c->arg[i]);
	return cli_fail(c, rc, err, "ckptctl %s%s --mesh %s", c->verb->name, words,
			*own ? own : "fsdp=4");
}

static int no_mesh(struct cli *c, const struct subject *s)
{
	char own[512];
	struct ckpt_err err = { 0 };

	subject_mesh(&s->ckpt->table, own, sizeof own);
	if (*own)
		ckpt_error(&err, -EINVAL,
			   "--mesh is missing: which mesh to load onto? This checkpoint was saved "
			   "on %s",
			   own);
	else
		ckpt_error(&err, -EINVAL, "--mesh is missing: which mesh to load onto?");
	return fail_mesh(c, s, -EINVAL, &err);
}

int remesh(struct cli *c, const struct subject *s, struct remesh *ret)
{
	struct notes notes = { .m = ret };
	struct layout_file f = { .path = c->value[OPT_LAYOUT] };
	struct ckpt_err err = { 0 };
	int rc = 0;

	*ret = (struct remesh){ .from = &s->ckpt->table };
	if (!c->value[OPT_MESH])
		return no_mesh(c, s);
	if (f.path)
		rc = file_rules(&f, &ret->arena, &err);
	if (!rc)
		rc = target_make(&s->ckpt->table, c->value[OPT_MESH], f.rule, f.nrule, &ret->target,
				 on_note, &notes, &err);
	/* A rule of --layout is taken as it stands, and so is what no rule names. */
	if (!rc && !f.path && !(s->ckpt->has & HAS_LAYOUTS)) {
		ret->spread = true;
		ret->nnote = 0;
		rc = target_spread(&ret->target, &ret->nspread, &err);
	}
	if (!rc && notes.failed)
		rc = ckpt_error(&err, -ENOMEM, "out of memory for the notes on %s",
				c->value[OPT_MESH]);
	if (!rc)
		return CLI_OK;
	remesh_free(ret);
	if (rc == -EINVAL && !f.path)
		return fail_mesh(c, s, rc, &err);
	return cli_fail(c, rc, &err, NULL);
}

void remesh_free(struct remesh *m)
{
	table_free(&m->target);
	free(m->note);
	arena_free(&m->arena);
	*m = (struct remesh){ 0 };
}

/* --- what is told --- */

static int note_compare(const void *va, const void *vb)
{
	const struct remesh_note *a = va, *b = vb;
	int d = a->text == b->text ? 0 : strcmp(a->text, b->text);

	return d ? d : (a->tensor > b->tensor) - (a->tensor < b->tensor);
}

/* Notes of one text: n of them, the first at `at`. */
struct group {
	uint32_t at, n;
};

static int group_compare(const void *va, const void *vb)
{
	const struct group *a = va, *b = vb;

	if (a->n != b->n)
		return a->n > b->n ? -1 : 1;
	return (a->at > b->at) - (a->at < b->at);
}

static void group_say(struct cli *c, const struct remesh *m, const struct remesh_note *note,
		      uint32_t n)
{
	char names[1024] = "", line[1100], name[300], count[HUMAN_BYTES];

	for (uint32_t i = 0; i < n && i < NAMES_SAID; i++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
			 table_tensor_print(&m->target.tensor[note[i].tensor], name, sizeof name));
	cli_hint(c, "  %s tensor%s: %s", human_count(n, count), n == 1 ? "" : "s", note->text);
	snprintf(line, sizeof line, "    %s%s", names, n > NAMES_SAID ? ", ..." : "");
	screen_wrap(c->err, line, c->err_screen.width, 0, 4);
}

static bool has_dim(const struct table *t, const char *name)
{
	for (uint32_t i = 0; i < t->nmesh; i++)
		for (uint32_t d = 0; d < t->mesh[i].ndim; d++)
			if (!strcmp(t->mesh[i].name[d], name))
				return true;
	return false;
}

/* A name that the checkpoint does not know may be a new one, or a slip. */
static void say_new_dims(struct cli *c, const struct remesh *m)
{
	const struct mesh *to = m->target.mesh;

	for (uint32_t i = 0; i < to->ndim; i++) {
		const char *near = NULL;

		if (has_dim(m->from, to->name[i]))
			continue;
		for (uint32_t j = 0; j < m->from->nmesh; j++)
			for (uint32_t d = 0; d < m->from->mesh[j].ndim; d++) {
				const char *old = m->from->mesh[j].name[d];
				uint32_t far = human_distance(to->name[i], old, NEAR_MAX);

				/* Short names are all near each other. */
				if (far <= NEAR_MAX && 2 * far < strlen(old) &&
				    !has_dim(&m->target, old))
					near = old;
			}
		cli_hint(c, "%s is new to this checkpoint: tensors are replicated over it%s%s%s",
			 to->name[i], near ? "; did you mean " : "", near ? near : "",
			 near ? "?" : "");
	}
}

static void tell_people(struct cli *c, const struct remesh *m)
{
	cleanup_free struct remesh_note *note = calloc((size_t)m->nnote + 1, sizeof *note);
	cleanup_free struct group *group = calloc((size_t)m->nnote + 1, sizeof *group);
	char mesh[512], count[HUMAN_BYTES], all[HUMAN_BYTES];
	uint32_t n = 0;

	if (!note || !group || !m->nnote)
		return;
	memcpy(note, m->note, m->nnote * sizeof *note);
	qsort(note, m->nnote, sizeof *note, note_compare);
	for (uint32_t i = 0; i < m->nnote; i++) {
		if (i && strcmp(note[i].text, note[i - 1].text) != 0)
			n++;
		if (!group[n].n++)
			group[n].at = i;
	}
	n++;
	qsort(group, n, sizeof *group, group_compare);
	cli_hint(c, "On %s, %s of %s tensors are placed differently than they were saved:",
		 mesh_print(m->target.mesh, mesh, sizeof mesh), human_count(m->nnote, count),
		 human_count(m->target.ntensor, all));
	for (uint32_t i = 0; i < n && i < GROUPS_SAID; i++)
		group_say(c, m, &note[group[i].at], group[i].n);
	if (n > GROUPS_SAID)
		cli_hint(c, "  and %u more kinds; --json lists them all", n - GROUPS_SAID);
}

void remesh_put(struct cli *c, const struct remesh *m)
{
	static const struct column from = { "from_mesh", NULL, false, FIT_WHOLE },
				   mesh = { "mesh", NULL, false, FIT_WHOLE },
				   world = { "world_size", NULL, false, FIT_WHOLE },
				   layout = { "layout_file", NULL, false, FIT_WHOLE };
	char text[512];

	output_put(c->o, &from, cell_word(subject_mesh(m->from, text, sizeof text)));
	output_put(c->o, &mesh, cell_text(mesh_print(m->target.mesh, text, sizeof text)));
	output_put(c->o, &world, cell_of(CELL_NUMBER, target_world(&m->target)));
	output_put(c->o, &layout, cell_word(c->value[OPT_LAYOUT]));
}

void remesh_tell(struct cli *c, const struct remesh *m)
{
	static const struct column tensor = { "tensor", NULL, false, FIT_WHOLE },
				   text = { "text", NULL, false, FIT_WHOLE };
	char name[2 * CKPT_NAME_MAX + 64];

	output_list(c->o, "changes", NULL, 0);
	for (uint32_t i = 0; i < m->nnote && c->o->machine; i++) {
		output_row(c->o);
		output_put(c->o, &tensor,
			   cell_text(table_tensor_print(&m->target.tensor[m->note[i].tensor], name,
							sizeof name)));
		output_put(c->o, &text, cell_text(m->note[i].text));
		output_close(c->o);
	}
	output_close(c->o);
	if (c->json || c->quiet)
		return;
	if (m->spread && target_world(&m->target) > 1)
		cli_hint(
			c,
			"This checkpoint says no placements: %u of %u tensors are cut along dimension 0, "
			"over the largest mesh dimension that it fills; the others are complete on every "
			"rank. --layout places them otherwise.",
			m->nspread, m->target.ntensor);
	if (m->spread)
		return;
	say_new_dims(c, m);
	tell_people(c, m);
}
