/* SPDX-License-Identifier: Apache-2.0 */
/*
 * remesh.c - see remesh.h. Called by plan, export and convert.
 * Invariant: a tensor that is not cut on the new mesh as it was on the old one has a note.
 */
#include "ckpt/engine/remesh.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include "ckpt/table/shown.h"
#include <stdio.h>

#define RULES_MAX 65536u
#define NEAR_MAX 2

/* --- rules --- */

/* The rules of all texts, in their order. */
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
	size_t bytes = strlen(path) + 16;
	struct target_rule rule;
	char *where;

	while (is_blank(*line))
		line++;
	line_trim(line);
	if (!*line)
		return 0;
	where = arena_alloc(a, bytes);
	if (!where)
		return ckpt_error(err, -ENOMEM, "out of memory for the rules of %s", path);
	snprintf(where, bytes, "%s:%u", path, number);
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

static int rules_of_file(struct rules *f, const struct remesh_text *x, struct arena *a,
			 struct ckpt_err *err)
{
	char *text = arena_str(a, x->text);
	uint32_t number = 0;
	int rc = text ? 0 : ckpt_error(err, -ENOMEM, "out of memory for the rules of %s", x->path);

	for (char *p = text, *next; p && !rc; p = next) {
		next = strchr(p, '\n');
		if (next)
			*next++ = 0;
		rc = rule_of_line(f, x->path, ++number, p, a, err);
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

/* --- copies that are not allowed --- */

static bool has_name(const struct mesh *m, const char *name, size_t len, uint32_t *ret)
{
	for (*ret = 0; *ret < m->ndim; ++*ret)
		if (strlen(m->name[*ret]) == len && !memcmp(m->name[*ret], name, len))
			return true;
	return false;
}

/* The dimensions that the words name, as bits. */
static int replicate_parse(const struct remesh_ask *q, const struct mesh *m, uint32_t *ret,
			   struct ckpt_err *err)
{
	char mesh[512];
	uint32_t d;

	*ret = 0;
	for (uint32_t i = 0; i < q->nreplicate; i++)
		for (const char *p = q->replicate[i]; p;) {
			size_t n = strcspn(p, ",");

			if (!has_name(m, p, n, &d))
				return ckpt_error(
					err, -EINVAL,
					"--replicate %.100s: the mesh %s has no dimension "
					"\"%.*s\"; give names of its dimensions, as in %s",
					q->replicate[i], mesh_print(m, mesh, sizeof mesh), (int)n,
					p, m->ndim ? m->name[0] : "dp");
			*ret |= 1u << d;
			p = p[n] ? p + n + 1 : NULL;
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
static bool fills_ranks(const struct table *t, uint64_t ranks)
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
	if (!*name && (at == to->ndim || !fills_ranks(&m->target, (uint64_t)to->dim[at] * ranks)))
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

void remesh_refuse(const struct remesh *m, const char *spec, struct ckpt_err *err, char *next,
		   size_t bytes)
{
	const struct target_settled *k = &m->settled;
	const struct mesh *to = m->target.mesh;
	char own[512], dims[512], better[600], what[64];
	uint32_t first = (uint32_t)__builtin_ctz(m->copies);
	const char *near = near_dim(m, to->name[first]);

	shown_mesh(m->from, own, sizeof own);
	dims_print(to, m->copies, dims, sizeof dims);
	better_mesh(m, m->copies, better, sizeof better);
	snprintf(what, sizeof what, "%u tensor%s that no rule names", k->nlost,
		 k->nlost == 1 ? "" : "s");
	ckpt_error(
		err, -EINVAL,
		"--mesh %s would make copies: %s%s has no %s, and nothing says how it cuts %s. The %u ranks would hold %s each and %s in all; the tensors have %s%s%s%s",
		spec, *own ? "the checkpoint's mesh " : "the checkpoint", own, dims,
		k->uncut & m->copies ? "the tensors" : what, to->nrank,
		BYTES_TEXT(k->held_bytes / to->nrank), BYTES_TEXT(k->held_bytes),
		BYTES_TEXT(k->bytes), near ? ". Did you mean " : "", near ? near : "",
		near ? "?" : "");
	snprintf(
		next, bytes,
		"%s%s%s--layout '*=Shard(0)@%s' cuts over %s what no other rule names; --replicate %s "
		"makes the copies",
		*better ? "--mesh " : "", better, *better ? " cuts; " : "", to->name[first],
		to->name[first], dims);
}

static int placed_make(struct remesh *m, const struct rules *f, struct ckpt_err *err)
{
	m->placed = arena_array(&m->arena, (size_t)m->from->ntensor + 1, sizeof *m->placed);
	if (!m->placed)
		return ckpt_error(err, -ENOMEM, "out of memory for %u tensors", m->from->ntensor);
	return target_placed(m->from, m->target.mesh, f->rule, f->nrule, m->placed, err);
}

int remesh_make(const struct checkpoint *k, const struct remesh_ask *q, struct remesh *ret,
		struct ckpt_err *err)
{
	struct notes notes = { .m = ret };
	struct rules f = { 0 };
	int rc = 0;

	*ret = (struct remesh){ .from = &k->table };
	for (uint32_t i = 0; i < q->ntext && !rc; i++)
		rc = q->text[i].path ? rules_of_file(&f, &q->text[i], &ret->arena, err)
				     : rule_of_text(&f, q->text[i].text, &ret->arena, err);
	if (!rc)
		rc = target_make(ret->from, q->mesh, f.rule, f.nrule, &ret->target, on_note, &notes,
				 err);
	ret->mesh_wrong = rc == -EINVAL && !q->ntext;
	if (!rc)
		rc = replicate_parse(q, ret->target.mesh, &ret->replicate, err);
	/* Pieces that were not opened would be missed in a grid. */
	if (!rc)
		rc = target_settle(ret->from, !(k->has & HAS_LAYOUTS), f.rule, f.nrule,
				   &ret->target, &ret->settled, err);
	if (!rc && notes.failed)
		rc = ckpt_error(err, -ENOMEM, "out of memory for the notes on %s", q->mesh);
	if (!rc && q->placed)
		rc = placed_make(ret, &f, err);
	free(f.rule);
	ret->copies =
		(ret->settled.nlost ? ret->settled.fresh : ret->settled.uncut) & ~ret->replicate;
	return rc;
}

void remesh_free(struct remesh *m)
{
	table_free(&m->target);
	free(m->note);
	arena_free(&m->arena);
	*m = (struct remesh){ 0 };
}
