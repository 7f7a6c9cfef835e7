/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_open.c - the directory of a step as one table, and the description of the format. Called
 * by the store, the engine and the daemon. Invariant: a checkpoint without faults has all parts
 * that MANIFEST names, their pieces cover every tensor once, and the sums of their fingerprints are
 * MANIFEST's.
 */
#include "formats/native/native_reader.h"
#include "ckpt/base/mutant.h"
#include "ckpt/table/operand.h"
#include <stdio.h>

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int by_uuid(const void *a, const void *b)
{
	return memcmp(*(const uint8_t *const *)a, *(const uint8_t *const *)b, 16);
}

static int uuids_check(struct opening *o)
{
	cleanup_free const uint8_t **sorted = calloc(o->m.npart, sizeof *sorted);

	if (!sorted)
		return -ENOMEM;
	for (uint64_t i = 0; i < o->m.npart; i++)
		sorted[i] = o->m.part[i].uuid;
	qsort(sorted, o->m.npart, sizeof *sorted, by_uuid);
	for (uint64_t i = 1; i < o->m.npart; i++)
		if (!by_uuid(&sorted[i - 1], &sorted[i]))
			return MALFORMED(&o->m, 0, 0, "two parts have one uuid");
	return 0;
}

static int names_sort(struct opening *o)
{
	o->sorted = calloc(o->m.npart, sizeof *o->sorted);
	o->named = calloc(o->m.npart, sizeof *o->named);
	if (!o->sorted || !o->named)
		return -ENOMEM;
	for (uint64_t i = 0; i < o->m.npart; i++)
		o->sorted[i] = o->m.part[i].name;
	qsort(o->sorted, o->m.npart, sizeof *o->sorted, by_name);
	for (uint64_t i = 1; i < o->m.npart; i++)
		if (!strcmp(o->sorted[i - 1], o->sorted[i]))
			return MALFORMED(&o->m, 0, 0, "two parts are called %s", o->sorted[i]);
	return uuids_check(o);
}

/* n of these digits, or more where any. */
static bool take_digits(const char **p, const char *digits, size_t n, bool any)
{
	size_t have = strspn(*p, digits);

	if (have < n || (have > n && !any))
		return false;
	*p += have;
	return true;
}

static bool take_text(const char **p, const char *text)
{
	size_t n = strlen(text);

	if (strncmp(*p, text, n) != 0)
		return false;
	*p += n;
	return true;
}

enum native_entry native_entry(const char *name)
{
	static const char dec[] = "0123456789", hexa[] = "0123456789abcdef";

	if (take_text(&name, "w"))
		return take_digits(&name, dec, 4, true) && take_text(&name, "-") &&
				       take_digits(&name, hexa, 8, false) &&
				       take_text(&name, "-") && take_digits(&name, dec, 3, true) &&
				       !strcmp(name, ".part")
			       ? NATIVE_PART
			       : NATIVE_FOREIGN;
	if (!take_text(&name, NATIVE_MANIFEST))
		return NATIVE_FOREIGN;
	if (!*name)
		return NATIVE_IS_MANIFEST;
	return (take_text(&name, ".damaged-") || take_text(&name, ".")) &&
			       take_digits(&name, hexa, 8, false) && !*name
		       ? NATIVE_SPENT
		       : NATIVE_FOREIGN;
}

static int foreign_add(struct checkpoint *c, const char *name)
{
	const char *copy;

	if (c->nforeign++ >= CHECKPOINT_FOREIGN)
		return 0;
	copy = arena_str(&c->table.arena, name);
	c->foreign[c->nforeign - 1] = copy;
	return copy ? 0 : -ENOMEM;
}

/* What nobody here made is no damage: an editor's backup, what a file server keeps, a
 * lost+found. */
static int entry_check(void *arg, const char *name, enum source_kind kind)
{
	struct opening *o = arg;
	bool known = !strcmp(name, NATIVE_MANIFEST) ||
		     bsearch(&name, o->sorted, o->m.npart, sizeof *o->sorted, by_name);

	if (kind == SOURCE_FILE && native_entry(name) == NATIVE_SPENT)
		return 0;
	if (!known && MUTANT(FOREIGN_IS_DAMAGE))
		reader_fault(&o->rd, -EBADMSG, "unexpected", name, "", 0, 0,
			     "it does not belong here");
	if (!known)
		return foreign_add(o->m.c, name);
	if (kind != SOURCE_FILE)
		reader_fault(&o->rd, -EUCLEAN, "unexpected", name, "", 0, 0,
			     "it is not a regular file");
	return 0;
}

static int sinks_check(struct opening *o)
{
	const struct table *t = &o->m.c->table;

	for (uint32_t i = 0; i < t->ntensor; i++)
		if (t->tensor[i].cls == CKPT_SINK)
			return MALFORMED(&o->m, 0, 0, "tensor %u is a sink, which is in no file",
					 i);
	return 0;
}

static int manifest_read(struct opening *o)
{
	struct manifest *m = &o->m;
	struct source src = { 0 };
	int r = o->dir->open(o->dir->ctx, NATIVE_MANIFEST, &src);

	if (r == -ENOENT) {
		reader_fault(
			&o->rd, -EUCLEAN, "missing", NATIVE_MANIFEST, "", 0, 0,
			"there is none: this checkpoint was never committed, or is something else");
		return 1;
	}
	if (r < 0 && r != -ENOMEM) {
		reader_fault(&o->rd, r, "unreadable", NATIVE_MANIFEST, "", 0, 0,
			     "it cannot be opened: %s", reader_error_text(r));
		return 1;
	}
	if (r < 0)
		return r;
	o->rd.manifest = true;
	r = envelope_read(&o->rd, &src, NATIVE_MANIFEST, CONTAINER_MANIFEST, NULL, 0, false,
			  &m->env);
	source_close(&src);
	if (!r)
		r = reader_head_known(&o->rd, NATIVE_MANIFEST, &m->env.info, NULL);
	if (!r)
		r = envelope_kinds_check(&o->rd, NATIVE_MANIFEST, &m->env, MANIFEST_KINDS);
	reader_file_begin(&o->rd, &m->env, REQUIRED_KINDS);
	/* The checkpoint's tensors are MANIFEST's, in its order; the parts bring the pieces. */
	if (!r)
		r = manifest_declarations(&o->rd, &m->env, MANIFEST_KINDS, &m->c->table);
	if (!r)
		r = manifest_facts(m);
	if (!r)
		r = sinks_check(o);
	if (!r)
		r = names_sort(o);
	reader_file_end(&o->rd);
	return r;
}

/* 0, 1 after a refusal, -ENOMEM. */
static int parts_choose(struct opening *o)
{
	int r;

	o->needed = calloc(o->m.c->world, sizeof *o->needed);
	if (!o->needed)
		return -ENOMEM;
	r = o->choose(o->choose_arg, o->m.c, o->needed, o->err);
	o->no_averages = r == FORMAT_NO_AVERAGES;
	if (r < 0)
		o->refusal = r;
	return r < 0 ? 1 : 0;
}

/* Of pieces that do not overlap: are all there? */
static bool is_all_there(const struct table *t, uint32_t tensor)
{
	const struct table_tensor *x = &t->tensor[tensor];
	uint64_t want = x->numel * operands_of(t, x), have = 0;

	for (uint32_t k = t->first[tensor]; k < t->first[tensor + 1]; k++)
		have += t->piece[k].set.numel;
	return have == want;
}

/* some: of the tensors all of whose pieces were opened. */
static void sums_check(struct opening *o, bool some)
{
	const struct table *t = &o->m.c->table;
	char label[160];

	for (uint32_t i = 0; i < t->ntensor; i++) {
		uint64_t fp = 0;
		bool known = true;

		for (uint32_t k = t->first[i]; k < t->first[i + 1]; k++) {
			fp += t->piece[k].fp;
			known &= t->piece[k].fp_known || MUTANT(FP_ZERO_KNOWN);
		}
		if (MUTANT(FINGERPRINTS_NOT_SUMMED) || (some && !is_all_there(t, i)))
			continue;
		table_tensor_print(&t->tensor[i], label, sizeof label);
		if (known != t->tensor[i].fp_known) {
			reader_fault(
				&o->rd, -EPROTO, "mismatch", NATIVE_MANIFEST, label, 0, 0,
				"%s: its fingerprint is known, or those of all its pieces are, but not "
				"both",
				label);
			continue;
		}
		if (!known || fp == t->tensor[i].fp)
			continue;
		reader_fault(
			&o->rd, -EPROTO, "mismatch", NATIVE_MANIFEST, label, 0, 0,
			"%s: the fingerprints of its pieces add up to %016llx, MANIFEST says %016llx",
			label, (unsigned long long)fp, (unsigned long long)t->tensor[i].fp);
	}
}

static int directory_read(struct opening *o)
{
	struct checkpoint *c = o->m.c;
	struct ckpt_errlist cover = { 0 };
	int r = manifest_read(o), bad = 0;
	bool overlaps;

	if (!r && o->choose && !o->names)
		r = parts_choose(o);
	if (r)
		return r;
	table_reopen(&c->table);
	c->file = arena_array(&c->table.arena, o->m.npart, sizeof *c->file);
	if (!c->file)
		return -ENOMEM;
	c->nfile = o->m.npart;
	for (uint32_t i = 0; i < c->nfile; i++) {
		r = opening_part(o, i, &c->file[i]);
		if (r < 0)
			return r;
		bad |= r;
	}
	r = o->some ? 0 : o->dir->list(o->dir->ctx, "", entry_check, o);
	if (r == -ENOMEM)
		return r;
	if (r < 0)
		reader_fault(&o->rd, r, "unreadable", "", "", 0, 0,
			     "the directory cannot be listed: %s", reader_error_text(r));
	r = table_seal(&c->table, NULL);
	if (r < 0)
		return r;
	for (uint32_t i = c->world; i < c->nfile && !o->some && !bad; i++) {
		if (o->named[i])
			continue;
		reader_fault(&o->rd, -EPROTO, "mismatch", NATIVE_MANIFEST, "", 0, 0,
			     "it names %s, which no main part names", c->file[i].name);
		bad = 1;
	}
	c->partial = bad;
	c->some = o->some;
	if (bad)
		return 1; /* without all pieces, coverage and sums are known to be wrong */
	if (o->some)
		table_disjoint(&c->table, &cover);
	else
		table_cover(&c->table, &cover);
	if (cover.code == -ENOMEM) { /* nothing is known to be wrong */
		ckpt_errlist_free(&cover);
		return -ENOMEM;
	}
	overlaps = cover.n > 0;
	reader_faults(&o->rd, -EPROTO, "coverage", "", &cover);
	if (!o->some || !overlaps)
		sums_check(o, o->some);
	return 0;
}

static int native_open(const struct format_open *how, struct checkpoint **ret, struct ckpt_err *err)
{
	struct opening o = { .rd = { .fault = how->fault, .arg = how->fault_arg },
			     .dir = how->dir,
			     .choose = how->choose,
			     .choose_arg = how->choose_arg,
			     .names = how->depth == FORMAT_NAMES,
			     .some = how->choose || how->depth == FORMAT_NAMES,
			     .err = err };
	struct checkpoint *c = calloc(1, sizeof *c);
	int r;

	*ret = NULL;
	if (!c)
		return ckpt_error(err, -ENOMEM, "out of memory while reading a checkpoint");
	c->format = &format_native;
	c->has = NATIVE_HAS;
	c->depth = how->depth;
	o.m.rd = &o.rd;
	o.m.c = c;
	r = directory_read(&o);
	r = o.refusal ? o.refusal : reader_outcome(&o.rd, r, err);
	envelope_free(&o.m.env);
	arena_free(&o.rd.room);
	table_free(&o.declared);
	free(o.sorted);
	free(o.needed);
	free(o.named);
	ckpt_errlist_free(&o.rd.list);
	if (r < 0 && !(how->partial && r != -ENOMEM && c->table.sealed && c->nfile))
		checkpoint_free(c);
	else
		*ret = c;
	return r;
}

static int is_part(void *arg, const char *name, enum source_kind kind)
{
	size_t n = strlen(name);

	(void)arg;
	return kind == SOURCE_FILE && n > 5 && name[0] == 'w' && !strcmp(name + n - 5, ".part");
}

/* 1, 0, -errno. */
static int magic_read(const struct source *src)
{
	char magic[sizeof CONTAINER_HEAD_MAGIC - 1];
	int r = src->bytes < sizeof magic ? 1 : src->read(src->ctx, magic, sizeof magic, 0);

	return r < 0 ? r : !r && !memcmp(magic, CONTAINER_HEAD_MAGIC, sizeof magic);
}

/* Parts without a MANIFEST, or beside a damaged one, are ours to complain about; a file called
 * MANIFEST is not, if it is something else. */
static int native_probe(const struct source_dir *dir, char looked[FORMAT_LOOKED])
{
	struct source src = { 0 };
	bool there;
	int r;

	if (dir->entry) {
		snprintf(looked, FORMAT_LOOKED, "it has directories alone");
		return 0;
	}
	r = dir->open(dir->ctx, NATIVE_MANIFEST, &src);
	there = r == 0;
	if (there) {
		r = magic_read(&src);
		source_close(&src);
	}
	snprintf(looked, FORMAT_LOOKED, "%s",
		 there ? NATIVE_MANIFEST " is another program's, and no part (w*.part)"
		       : "no " NATIVE_MANIFEST " and no part (w*.part)");
	if (r > 0)
		return 75;
	if (r < 0 && r != -ENOENT && r != -EISDIR)
		return r;
	r = dir->list(dir->ctx, "", is_part, NULL);
	return r > 0 ? 25 : r;
}

static bool is_ours(const char *name)
{
	return native_entry(name) != NATIVE_FOREIGN;
}

const struct format format_native = {
	.name = "native",
	.about = "ckptd's own: a directory of parts and a MANIFEST",
	.probe = native_probe,
	.open = native_open,
	.holds = native_holds,
	.says = native_says,
	.sheet = native_sheet,
	.fill = native_fill,
	.sheet_end = native_sheet_end,
	.root =
		&(const struct format_root){
			.name = NATIVE_MANIFEST,
			.summary = native_summary,
			.rebuild = native_rebuild,
			.owns = is_ours,
		},
};
