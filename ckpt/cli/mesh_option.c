/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mesh_option.c - see mesh_option.h. Called by plan, export and convert.
 * Invariant: a tensor that is not cut on the new mesh as it was on the old one is printed, once, for
 * people and for programs.
 */
#include "ckpt/cli/mesh_option.h"
#include "ckpt/base/util.h"
#include "ckpt/cli/text_file.h"
#include "ckpt/layout/human.h"
#include "ckpt/table/shown.h"

#define GROUPS_SAID 8u /* kinds of notes that people see */
#define NAMES_SAID 3u  /* tensors that are named of each */

/* The command as it was given, with a mesh that the checkpoint knows. */
static int mesh_fail(struct cli *c, const struct subject *s, int rc, const struct ckpt_err *err)
{
	char own[512], words[2 * CLI_WORD_BYTES] = "";

	shown_mesh(&s->ckpt->table, own, sizeof own);
	for (uint32_t i = 0; i < c->narg; i++)
		human_add(words, sizeof words, " ", "%s", CLI_WORD(c->arg[i]));
	return cli_fail(c, rc, err, "ckptctl %s %s%s--mesh %s", c->verb->name, words,
			*words ? " " : "", *own ? own : "fsdp=4");
}

static int mesh_missing(struct cli *c, const struct subject *s)
{
	char own[512];
	struct ckpt_err err = { 0 };

	shown_mesh(&s->ckpt->table, own, sizeof own);
	if (*own)
		ckpt_error(&err, -EINVAL,
			   "--mesh is missing: which mesh to load onto? This checkpoint was saved "
			   "on %s",
			   own);
	else
		ckpt_error(&err, -EINVAL, "--mesh is missing: which mesh to load onto?");
	return mesh_fail(c, s, -EINVAL, &err);
}

/* What has no '=', and any name that exists, is a file. */
static bool is_file(const char *layout)
{
	return !strchr(layout, '=') || !access(layout, F_OK);
}

static int ask_take(struct cli *c, struct remesh_text *text, const char **replicate,
		    struct arena *a, struct remesh_ask *ret, struct ckpt_err *err)
{
	int rc = 0;

	*ret = (struct remesh_ask){ .mesh = c->value[OPT_MESH],
				    .text = text,
				    .replicate = replicate,
				    .placed = c->value[OPT_EXPLICIT] || c->value[OPT_EXPLAIN] };
	for (uint32_t i = 0; i < c->ngiven && !rc; i++) {
		const char *word = c->given[i].value;
		struct remesh_text *x = &text[ret->ntext];
		char *of_file;

		if (c->given[i].id == OPT_REPLICATE)
			replicate[ret->nreplicate++] = word;
		if (c->given[i].id != OPT_LAYOUT)
			continue;
		*x = (struct remesh_text){ .text = word };
		ret->ntext++;
		if (!is_file(word))
			continue;
		rc = text_file_read(word, "layout file",
				    "one \"GLOB  PLACEMENTS\" a line, or give GLOB=PLACEMENTS", a,
				    &of_file, err);
		*x = (struct remesh_text){ .path = word, .text = rc ? "" : of_file };
	}
	return rc;
}

int mesh_option(struct cli *c, const struct subject *s, struct remesh *ret)
{
	struct remesh_text text[CLI_GIVEN_MAX];
	const char *replicate[CLI_GIVEN_MAX];
	struct remesh_ask ask;
	struct ckpt_err err = { 0 };
	struct arena a = { 0 };
	char next[1600];
	int rc;

	*ret = (struct remesh){ 0 };
	if (!c->value[OPT_MESH])
		return mesh_missing(c, s);
	rc = ask_take(c, text, replicate, &a, &ask, &err);
	if (!rc)
		rc = remesh_make(s->ckpt, &ask, ret, &err);
	arena_free(&a);
	/* --explicit lists them, with all else that nobody asked for. */
	if (!rc && (!ret->copies || c->value[OPT_EXPLICIT]))
		return CLI_OK;
	if (ret->mesh_wrong) {
		rc = mesh_fail(c, s, rc, &err);
	} else if (rc) {
		rc = cli_fail(c, rc, &err, NULL);
	} else {
		remesh_refuse(ret, ask.mesh, &err, next, sizeof next);
		c->o->ops->error(c->o, CLI_WARNINGS, err.msg, next);
		rc = CLI_WARNINGS;
	}
	remesh_free(ret);
	return rc;
}

/* --- what is printed --- */

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
	char names[1024] = "", line[1100], name[300];

	for (uint32_t i = 0; i < n && i < NAMES_SAID; i++)
		human_add(names, sizeof names, ", ", "%s",
			  table_tensor_print(&m->target.tensor[note[i].tensor], name, sizeof name));
	cli_hint(c, "  %s tensor%s: %s", COUNT_TEXT(n), n == 1 ? "" : "s", note->text);
	snprintf(line, sizeof line, "    %s%s", names, n > NAMES_SAID ? ", ..." : "");
	screen_wrap(c->err, line, c->err_screen.width, 0, 4);
}

/* What --replicate has allowed. */
static void say_copies(struct cli *c, const struct remesh *m)
{
	for (uint32_t d = 0; d < m->target.mesh->ndim; d++)
		if (m->settled.uncut >> d & 1)
			cli_hint(c, "%s is new to this checkpoint: tensors are replicated over it",
				 m->target.mesh->name[d]);
}

/* Tensors without placements. */
static void say_settled(struct cli *c, const struct remesh *m)
{
	const struct target_settled *k = &m->settled;
	uint32_t n = k->ngrid + k->nspread + k->nwhole;
	char text[400] = "";

	if (!n || target_world(&m->target) == 1)
		return;
	if (k->ngrid)
		human_add(text, sizeof text, "; ", "%u %s cut as the chunks are", k->ngrid,
			  k->ngrid == 1 ? "is" : "are");
	if (k->nspread)
		human_add(text, sizeof text, "; ",
			  "%u %s cut along dimension 0, over the largest mesh dimension that each "
			  "fills",
			  k->nspread, k->nspread == 1 ? "is" : "are");
	if (k->nwhole)
		human_add(text, sizeof text, "; ", "%u %s none and %s complete on every rank",
			  k->nwhole, k->nwhole == 1 ? "fills" : "fill",
			  k->nwhole == 1 ? "is" : "are");
	cli_hint(c, "%u of %u tensors have no placements: %s. --layout places them otherwise.", n,
		 m->target.ntensor, text);
}

static void say_changes(struct cli *c, const struct remesh *m)
{
	cleanup_free struct remesh_note *note = calloc((size_t)m->nnote + 1, sizeof *note);
	cleanup_free struct group *group = calloc((size_t)m->nnote + 1, sizeof *group);
	char mesh[512], all[HUMAN_BYTES];
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
		 mesh_print(m->target.mesh, mesh, sizeof mesh), COUNT_TEXT(m->nnote),
		 human_count(m->target.ntensor, all));
	for (uint32_t i = 0; i < n && i < GROUPS_SAID; i++)
		group_say(c, m, &note[group[i].at], group[i].n);
	if (n > GROUPS_SAID)
		cli_hint(c, "  and %u more kinds; --json lists them all", n - GROUPS_SAID);
}

/* Each --layout. The last file alone, as programs had it before there could be several. */
static void layouts_put(struct cli *c)
{
	const char *last = NULL;

	output_list(c->o, "layouts", NULL, 0);
	for (uint32_t i = 0; i < c->ngiven; i++) {
		const char *word = c->given[i].value;
		bool file;

		if (c->given[i].id != OPT_LAYOUT)
			continue;
		file = is_file(word);
		last = file ? word : last;
		output_row(c->o);
		output_key(c->o, "file", cell_word(file ? word : NULL));
		output_key(c->o, "text", cell_word(file ? NULL : word));
		output_close(c->o);
	}
	output_close(c->o);
	output_key(c->o, "layout_file", cell_word(last));
}

void mesh_option_put(struct cli *c, const struct remesh *m)
{
	char text[512];

	output_key(c->o, "from_mesh", cell_word(shown_mesh(m->from, text, sizeof text)));
	output_key(c->o, "mesh", cell_text(mesh_print(m->target.mesh, text, sizeof text)));
	output_key(c->o, "world_size", cell_number(target_world(&m->target)));
	layouts_put(c);
}

void mesh_option_print(struct cli *c, const struct remesh *m)
{
	char name[2 * CKPT_NAME_MAX + 64];

	output_list(c->o, "changes", NULL, 0);
	for (uint32_t i = 0; i < m->nnote && c->o->machine; i++) {
		output_row(c->o);
		output_key(c->o, "tensor",
			   cell_text(table_tensor_print(&m->target.tensor[m->note[i].tensor], name,
							sizeof name)));
		output_key(c->o, "text", cell_text(m->note[i].text));
		output_close(c->o);
	}
	output_close(c->o);
	if (c->json || c->quiet)
		return;
	say_settled(c, m);
	say_copies(c, m);
	say_changes(c, m);
}
