/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remesh.c - --mesh and --layout. Called by plan, export and convert.
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

/* The rules of all --layout, in the order of the command line. */
struct rules {
	struct target_rule *rule;
	uint32_t nrule, cap;
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
static int rule_add(struct rules *f, struct target_rule rule, struct ckpt_err *err)
{
	if (f->nrule == RULES_MAX)
		return ckpt_error(err, -EINVAL, "%s: more than %u layout rules", rule.where,
				  RULES_MAX);
	if (!ARRAY_GROW(f->rule, f->nrule, f->cap))
		return ckpt_error(err, -ENOMEM, "out of memory for layout rules");
	f->rule[f->nrule++] = rule;
	return 0;
}

static int rule_of_line(struct rules *f, const char *path, uint32_t number, char *line,
			struct arena *a, struct ckpt_err *err)
{
	size_t room = strlen(path) + 16;
	struct target_rule rule;
	char *where;

	while (is_blank(*line))
		line++;
	line_trim(line);
	if (!*line)
		return 0;
	where = arena_alloc(a, room);
	if (!where)
		return ckpt_error(err, -ENOMEM, "out of memory for the rules of %s", path);
	snprintf(where, room, "%s:%u", path, number);
	rule = (struct target_rule){ .glob = line, .where = where };
	while (*line && !is_blank(*line))
		line++;
	if (*line)
		*line++ = 0;
	while (is_blank(*line))
		line++;
	rule.placements = line;
	return rule_add(f, rule, err);
}

static int rules_of_file(struct rules *f, const char *path, struct arena *a, struct ckpt_err *err)
{
	uint32_t number = 0;
	char *text;
	int rc = text_file_read(path, "layout file",
				"one \"GLOB  PLACEMENTS\" a line, or give GLOB=PLACEMENTS", a,
				&text, err);

	if (rc)
		return rc;
	for (char *p = text, *next; p && !rc; p = next) {
		next = strchr(p, '\n');
		if (next)
			*next++ = 0;
		rc = rule_of_line(f, path, ++number, p, a, err);
	}
	return rc;
}

/* "GLOB=PLACEMENTS": PyTorch's placements have a '=' too, globs of tensors do not. */
static int rule_of_text(struct rules *f, const char *text, struct arena *a, struct ckpt_err *err)
{
	struct target_rule rule = { .where = "--layout" };
	char *glob = arena_str(a, text), *cut;

	if (!glob)
		return ckpt_error(err, -ENOMEM, "out of memory for layout rules");
	cut = strchr(glob, '=');
	rule.glob = glob;
	rule.placements = cut + 1 + strspn(cut + 1, " \t");
	while (cut > glob && is_blank(cut[-1]))
		cut--;
	*cut = 0;
	return rule_add(f, rule, err);
}

static int rules_take(struct cli *c, struct rules *f, struct arena *a, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < c->ngiven && !rc; i++) {
		const char *text = c->given[i].value;

		if (c->given[i].id != OPT_LAYOUT)
			continue;
		rc = !strchr(text, '=') || !access(text, F_OK) ? rules_of_file(f, text, a, err)
							       : rule_of_text(f, text, a, err);
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

	if (!strcmp(text, TARGET_UNPLACED))
		return; /* target_settle places it */
	/* Neighbours often have the same reason: it is kept once. */
	if (!copy || strcmp(copy, text) != 0)
		copy = arena_str(&m->arena, text);
	if (!copy || !ARRAY_GROW(m->note, m->nnote, x->cap)) {
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

/* --- copies that nobody asked for --- */

static bool has_name(const struct mesh *m, const char *name, size_t len, uint32_t *ret)
{
	for (*ret = 0; *ret < m->ndim; ++*ret)
		if (strlen(m->name[*ret]) == len && !memcmp(m->name[*ret], name, len))
			return true;
	return false;
}

/* --replicate: bit per dimension of the mesh. */
static int replicate_take(struct cli *c, const struct mesh *m, uint32_t *ret, struct ckpt_err *err)
{
	char mesh[512];
	uint32_t d;

	*ret = 0;
	for (uint32_t i = 0; i < c->ngiven; i++) {
		const char *p = c->given[i].value;

		if (c->given[i].id != OPT_REPLICATE)
			continue;
		for (size_t n; n = strcspn(p, ","), true; p += n + 1) {
			if (!has_name(m, p, n, &d))
				return ckpt_error(
					err, -EINVAL,
					"--replicate %.100s: the mesh %s has no dimension "
					"\"%.*s\"; give names of its dimensions, as in %s",
					c->given[i].value, mesh_print(m, mesh, sizeof mesh), (int)n,
					p, m->ndim ? m->name[0] : "dp");
			*ret |= 1u << d;
			if (!p[n])
				break;
		}
	}
	return 0;
}

/* The dimension of the saved mesh that cut most tensors, "" if none cut. */
static const char *cutting_dim(const struct table *t)
{
	const char *best = "";
	uint64_t most = 0;

	for (uint32_t i = 0; i < t->nmesh; i++)
		for (uint32_t d = 0; d < t->mesh[i].ndim; d++) {
			uint64_t n = 0;

			for (uint32_t l = 0; l < t->nlayout; l++)
				for (uint32_t p = 0; p < t->layout[l].nplace; p++)
					n += t->layout[l].mesh == i &&
					     t->layout[l].place[p].how == CKPT_SHARD &&
					     t->layout[l].place[p].mesh_dim == d;
			if (n > most) {
				most = n;
				best = t->mesh[i].name[d];
			}
		}
	return best;
}

/* Has a tensor so many indices in dimension 0? */
static bool fills(const struct table *t, uint64_t ranks)
{
	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].ndim && t->tensor[i].shape[0] >= ranks &&
		    !(t->tensor[i].flags & TENSOR_BLOB))
			return true;
	return false;
}

/* A mesh of as many ranks whose dimensions cut: that of the command without those of which bits are
 * set, the ranks of which another one has. Returns buf; "": there is none. */
static char *better_mesh(const struct remesh *m, uint32_t bits, char *buf, size_t bytes)
{
	const struct mesh *to = m->target.mesh;
	const char *name = cutting_dim(m->from);
	uint32_t at = to->ndim, ranks = 1;
	size_t n = 0;

	for (uint32_t d = 0; d < to->ndim; d++) {
		if (bits >> d & 1)
			ranks *= to->dim[d];
		else if (*name ? !strcmp(to->name[d], name)
			       : to->dim[d] > 1 && (at == to->ndim || to->dim[d] > to->dim[at]))
			at = d;
	}
	buf[0] = 0;
	if (!*name && (at == to->ndim || !fills(&m->target, (uint64_t)to->dim[at] * ranks)))
		return buf;
	for (uint32_t d = 0; d < to->ndim && n < bytes; d++)
		if (!(bits >> d & 1))
			n += (size_t)snprintf(buf + n, bytes - n, "%s%s=%u", n ? "," : "",
					      to->name[d],
					      d == at ? to->dim[d] * ranks : to->dim[d]);
	if (at == to->ndim && n < bytes)
		n += (size_t)snprintf(buf + n, bytes - n, "%s%s=%u", n ? "," : "", name, ranks);
	return buf;
}

/* "dp,tp": the dimensions of which bits are set. Returns buf. */
static char *dims_print(const struct mesh *m, uint32_t bits, char *buf, size_t bytes)
{
	size_t n = 0;

	buf[0] = 0;
	for (uint32_t d = 0; d < m->ndim && n < bytes; d++)
		if (bits >> d & 1)
			n += (size_t)snprintf(buf + n, bytes - n, "%s%s", n ? "," : "", m->name[d]);
	return buf;
}

/* A name that the checkpoint does not know may be a new one, or a slip: the nearest that is left
 * out. */
static const char *near_dim(const struct remesh *m, const char *name)
{
	const struct table *t = m->from;
	uint32_t at;

	for (uint32_t i = 0; i < t->nmesh; i++)
		for (uint32_t d = 0; d < t->mesh[i].ndim; d++) {
			const char *old = t->mesh[i].name[d];
			uint32_t far = human_distance(name, old, NEAR_MAX);

			/* Short names are all near each other. */
			if (far <= NEAR_MAX && 2 * far < strlen(old) &&
			    !has_name(m->target.mesh, old, strlen(old), &at))
				return old;
		}
	return NULL;
}

/* bits: the mesh dimensions that nobody allowed to hold copies. */
static int refuse_copies(struct cli *c, const struct remesh *m, uint32_t bits)
{
	const struct target_settled *k = &m->settled;
	const struct mesh *to = m->target.mesh;
	char own[512], dims[512], better[600], what[64], next[1600];
	uint32_t first = (uint32_t)__builtin_ctz(bits);
	const char *near = near_dim(m, to->name[first]);
	struct ckpt_err err = { 0 };

	subject_mesh(m->from, own, sizeof own);
	dims_print(to, bits, dims, sizeof dims);
	better_mesh(m, bits, better, sizeof better);
	snprintf(what, sizeof what, "%u tensor%s that no rule names", k->nlost,
		 k->nlost == 1 ? "" : "s");
	ckpt_error(
		&err, -EINVAL,
		"--mesh %s would make copies: %s%s has no %s, and nothing says how it cuts %s. The %u ranks would hold %s each and %s in all; the tensors have %s%s%s%s",
		c->value[OPT_MESH], *own ? "the checkpoint's mesh " : "the checkpoint", own, dims,
		k->uncut & bits ? "the tensors" : what, to->nrank,
		BYTES_TEXT(k->held_bytes / to->nrank), BYTES_TEXT(k->held_bytes),
		BYTES_TEXT(k->bytes), near ? ". Did you mean " : "", near ? near : "",
		near ? "?" : "");
	snprintf(
		next, sizeof next,
		"%s%s%s--layout '*=Shard(0)@%s' cuts over %s what no other rule names; --replicate %s "
		"makes the copies",
		*better ? "--mesh " : "", better, *better ? " cuts; " : "", to->name[first],
		to->name[first], dims);
	c->o->ops->error(c->o, CLI_WARNINGS, err.msg, next);
	return CLI_WARNINGS;
}

int remesh(struct cli *c, const struct subject *s, struct remesh *ret)
{
	struct notes notes = { .m = ret };
	struct rules f = { 0 };
	struct ckpt_err err = { 0 };
	uint32_t allowed = 0, copies;
	bool mesh_wrong;
	int rc;

	*ret = (struct remesh){ .from = &s->ckpt->table };
	if (!c->value[OPT_MESH])
		return no_mesh(c, s);
	rc = rules_take(c, &f, &ret->arena, &err);
	if (!rc)
		rc = target_make(ret->from, c->value[OPT_MESH], f.rule, f.nrule, &ret->target,
				 on_note, &notes, &err);
	mesh_wrong = rc == -EINVAL && !f.nrule && !c->value[OPT_LAYOUT];
	if (!rc)
		rc = replicate_take(c, ret->target.mesh, &allowed, &err);
	/* Pieces that were not opened would be missed in a grid. */
	if (!rc)
		rc = target_settle(ret->from, !(s->ckpt->has & HAS_LAYOUTS), f.rule, f.nrule,
				   &ret->target, &ret->settled, &err);
	if (!rc && notes.failed)
		rc = ckpt_error(&err, -ENOMEM, "out of memory for the notes on %s",
				c->value[OPT_MESH]);
	free(f.rule);
	copies = (ret->settled.nlost ? ret->settled.fresh : ret->settled.uncut) & ~allowed;
	if (!rc && !copies)
		return CLI_OK;
	rc = mesh_wrong ? fail_mesh(c, s, rc, &err)
	     : rc	? cli_fail(c, rc, &err, NULL)
			: refuse_copies(c, ret, copies);
	remesh_free(ret);
	return rc;
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
	char names[1024] = "", line[1100], name[300];

	for (uint32_t i = 0; i < n && i < NAMES_SAID; i++)
		snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "",
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
	char text[400];
	size_t at;

	if (!n || target_world(&m->target) == 1)
		return;
	at = (size_t)snprintf(text, sizeof text, "%u of %u tensors have no placements: ", n,
			      m->target.ntensor);
	if (k->ngrid)
		at += (size_t)snprintf(text + at, sizeof text - at, "%u %s cut as the chunks are; ",
				       k->ngrid, k->ngrid == 1 ? "is" : "are");
	if (k->nspread)
		at += (size_t)snprintf(
			text + at, sizeof text - at,
			"%u %s cut along dimension 0, over the largest mesh dimension "
			"that each fills; ",
			k->nspread, k->nspread == 1 ? "is" : "are");
	if (k->nwhole)
		at += (size_t)snprintf(text + at, sizeof text - at,
				       "%u %s none and %s complete on every rank; ", k->nwhole,
				       k->nwhole == 1 ? "fills" : "fill",
				       k->nwhole == 1 ? "is" : "are");
	snprintf(text + at - 2, sizeof text - at + 2, ". --layout places them otherwise.");
	cli_hint(c, "%s", text);
}

static void tell_people(struct cli *c, const struct remesh *m)
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

void remesh_put(struct cli *c, const struct remesh *m)
{
	char text[512];

	output_key(c->o, "from_mesh", cell_word(subject_mesh(m->from, text, sizeof text)));
	output_key(c->o, "mesh", cell_text(mesh_print(m->target.mesh, text, sizeof text)));
	output_key(c->o, "world_size", cell_of(CELL_NUMBER, target_world(&m->target)));
	output_key(c->o, "layout_file", cell_word(c->value[OPT_LAYOUT]));
}

void remesh_tell(struct cli *c, const struct remesh *m)
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
	tell_people(c, m);
}
