/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_move_rot.c - bit rot in a committed checkpoint: every region of every file (header, chunks,
 * the zeros between and behind them, sections, the zeros between those, trailer) is flipped,
 * zeroed, overwritten, exchanged for another like it and cut, and whole files are exchanged for
 * those of another rank, step, launch and job. Each time three things must hold:
 *
 *	found	 reading all metadata (open_partial) and then all data (move_verify) has faults
 *	located	 one of them names the file and lies on the changed bytes, and where the bytes are a
 *		 tensor's, names one of that chunk
 *	kept out a restore fails, and its memory holds no byte of a chunk that was changed, nor any
 *		 byte that is not the checkpoint's
 *
 * All in memory, so that every region can have its turn.
 */
#include "ckpt/move/move.h"
#include "tests/lib/part_data.h"
#include "tests/lib/row.h"
#include "tests/lib/draw.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/memdir_io.h"
#include "tests/lib/unit.h"

#define PATTERN 0xa5
/* Under a sanitizer, which costs ten times as much, every so-manieth region; release looks at all,
 * unless SCALE says else. */
#if defined(__SANITIZE_THREAD__)
#define BY 41
#elif defined(__SANITIZE_ADDRESS__)
#define BY 7
#else
#define BY 1
#endif

static uint32_t every(void)
{
	return BY * (uint32_t)(1000 / unit_scaled(1000));
}

/* --- the regions of a file --- */

enum kind { HEADER, CHUNK, PADDING, SECTION, GAP, TRAILER };
static const char *const kind_name[] = {
	"header", "chunk", "padding", "section", "gap", "trailer"
};

struct region {
	uint32_t file; /* of the directory */
	enum kind kind;
	uint64_t off, len;
	uint32_t place; /* of the table; CHUNK only, as is the next */
	uint64_t raw, raw_len;
};

#define REGIONS_MAX 512

struct scene {
	uint64_t rng;
	struct memdir good, bad, step, launch, job; /* step, launch, job: another one each */
	struct io_ops ops;
	struct checkpoint *c; /* of good */
	struct region region[REGIONS_MAX];
	uint32_t nregion;
	struct plan plan;	   /* from the checkpoint into raw spaces like its own */
	uint8_t **memory, **truth; /* [c->nfile] */
	uint32_t by_kind[TRAILER + 1], kept_out;
};

static void region_add(struct scene *s, struct region r)
{
	assert_true(s->nregion < REGIONS_MAX);
	if (r.len)
		s->region[s->nregion++] = r;
}

static const struct format_file *part_of(const struct scene *s, const char *name, uint32_t *ret)
{
	for (uint32_t i = 0; i < s->c->nfile; i++)
		if (!strcmp(s->c->file[i].name, name)) {
			*ret = i;
			return &s->c->file[i];
		}
	return NULL;
}

static void regions_of(struct scene *s, uint32_t file)
{
	const struct memdir_file *f = &s->good.file[file];
	const struct ck_tail *t = (const struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);
	uint64_t at = CONTAINER_BLOCK;
	uint32_t place;
	const struct format_file *p = part_of(s, f->name, &place);

	region_add(s, (struct region){ .file = file, .kind = HEADER, .len = CONTAINER_BLOCK });
	for (uint64_t i = 0; p && i < p->nchunk; i++) {
		const struct chunk *c = &p->chunk[i];

		if (!c->raw_len)
			continue;
		region_add(s, (struct region){ file, PADDING, at, c->off - at, 0, 0, 0 });
		region_add(s, (struct region){ file, CHUNK, c->off, c->stored_len, place,
					       i << p->chunk_log2, c->raw_len });
		at = c->off + c->stored_len;
	}
	if (p)
		region_add(s, (struct region){ file, PADDING, at, data_to(p) - at, 0, 0, 0 });
	at = le64_get(t->data_end);
	for (uint32_t i = 0; i < le32_get(t->nsect); i++) {
		uint64_t off = le64_get(t->sect[i].off), len = le64_get(t->sect[i].len);

		region_add(s, (struct region){ file, GAP, at, off - at, 0, 0, 0 });
		region_add(s, (struct region){ file, SECTION, off, len, 0, 0, 0 });
		at = off + len;
	}
	region_add(s, (struct region){ file, GAP, at, f->len - CONTAINER_BLOCK - at, 0, 0, 0 });
	region_add(s, (struct region){ file, TRAILER, f->len - CONTAINER_BLOCK, CONTAINER_BLOCK, 0,
				       0, 0 });
}

static void dir_copy(struct memdir *to, const struct memdir *from)
{
	memdir_clear(to);
	for (uint32_t i = 0; i < from->n; i++)
		(void)memdir_add(to, from->file[i].name, from->file[i].bytes, from->file[i].len);
}

static void scene_make(struct scene *s, const char *test)
{
	struct memdir_opts o = ROW(.mesh = "fsdp=2", .job = "demo", .seed = 5, .scale = 1,
				   .step = 12, .generation = 3, .seq = 7);
	struct ckpt_err err = { 0 };
	struct source_dir dir;
	uint64_t covered = 0, all = 0;

	*s = (struct scene){ .rng = draw_seed(test) };
	memdir_checkpoint(&s->good, &o);
	o.generation = 2;
	memdir_checkpoint(&s->launch, &o);
	o.generation = 3;
	o.job = "other";
	memdir_checkpoint(&s->job, &o);
	o.job = "demo";
	o.step = 13;
	memdir_checkpoint(&s->step, &o);
	dir_copy(&s->bad, &s->good);
	s->ops = memdir_io(&s->bad);
	dir = memdir_source(&s->good);
	assert_ok_err(format_native.open(&(struct format_open){ .dir = &dir }, &s->c, &err), &err);
	for (uint32_t i = 0; i < s->good.n; i++) {
		regions_of(s, i);
		all += s->good.file[i].len;
	}
	for (uint32_t i = 0; i < s->nregion; i++)
		covered += s->region[i].len;
	assert_int_equal(covered, all); /* no byte of any file is in none */
	assert_ok_err(plan_make(&s->c->table, &s->c->table,
				&(struct plan_opts){ .memory_blobs = true }, &s->plan, NULL, &err),
		      &err);
	s->memory = calloc(s->c->nfile, sizeof *s->memory);
	s->truth = calloc(s->c->nfile, sizeof *s->truth);
	assert_true(s->memory && s->truth);
	for (uint32_t i = 0; i < s->c->nfile; i++) {
		const struct format_file *f = &s->c->file[i];

		s->memory[i] = malloc(f->raw_bytes + 1);
		s->truth[i] = malloc(f->raw_bytes + 1);
		assert_true(s->memory[i] && s->truth[i]);
		memset(s->truth[i], PATTERN, f->raw_bytes);
	}
	for (uint32_t i = 0; i < s->c->table.npiece; i++) {
		const struct table_piece *p = &s->c->table.piece[i];

		sample_piece(5, &s->c->table, p, 12, s->truth[p->place] + p->off);
	}
}

static void scene_free(struct scene *s)
{
	for (uint32_t i = 0; i < s->c->nfile; i++) {
		free(s->memory[i]);
		free(s->truth[i]);
	}
	free(s->memory);
	free(s->truth);
	plan_free(&s->plan);
	checkpoint_free(s->c);
	memdir_clear(&s->good);
	memdir_clear(&s->bad);
	memdir_clear(&s->step);
	memdir_clear(&s->launch);
	memdir_clear(&s->job);
}

static void heal(struct scene *s, uint32_t file)
{
	struct memdir_file *b = &s->bad.file[file];
	const struct memdir_file *g = &s->good.file[file];

	if (b->len != g->len) {
		free(b->bytes);
		b->bytes = malloc(g->len + 1);
		assert_non_null(b->bytes);
		b->len = g->len;
	}
	memcpy(b->bytes, g->bytes, g->len);
}

/* --- found, located --- */

struct look {
	const struct scene *s;
	const struct region *r; /* NULL: any place of the file will do */
	const char *file;
	uint64_t lo, hi;  /* bytes that were changed */
	uint32_t n, nodd; /* faults; of these no more than odd */
	bool located, named;
	char text[400]; /* of the first */
};

/* Is it a tensor of that chunk? */
static bool tensor_is_in(const struct scene *s, const struct region *r, const char *tensor)
{
	char label[200];

	for (uint32_t i = 0; i < s->c->table.npiece; i++) {
		const struct table_piece *p = &s->c->table.piece[i];

		if (p->place == r->place && p->off < r->raw + r->raw_len &&
		    p->off + p->len > r->raw &&
		    !strcmp(table_tensor_print(&s->c->table.tensor[p->tensor], label, sizeof label),
			    tensor))
			return true;
	}
	return false;
}

static void on_fault(void *arg, const struct format_fault *f)
{
	struct look *k = arg;

	k->nodd += format_fault_is_odd(f);
	if (!k->n++)
		snprintf(k->text, sizeof k->text, "%s %s %s at %llu + %llu: %s", f->file, f->kind,
			 f->tensor, (unsigned long long)f->offset, (unsigned long long)f->length,
			 f->text);
	if (strcmp(f->file, k->file) != 0)
		return;
	/* Of MANIFEST's two ends nothing says which is the stranger. */
	if (k->r && k->r->kind == HEADER && !strcmp(f->file, NATIVE_MANIFEST) &&
	    strstr(f->text, "two files were mixed"))
		k->located = true;
	if (k->r && (f->offset >= k->hi || f->offset + MAX(f->length, UINT64_C(1)) <= k->lo))
		return;
	k->located = true;
	if (k->r && k->r->kind == CHUNK && tensor_is_in(k->s, k->r, f->tensor))
		k->named = true;
	if (k->r && (k->r->kind == PADDING || k->r->kind == GAP) && !strcmp(f->kind, "padding"))
		k->named = true;
}

/* As `verify --data` reads: what the metadata say, then all data. data false: only the first. */
static void look(struct scene *s, struct look *k, bool data)
{
	struct source_dir dir = memdir_source(&s->bad);
	struct checkpoint *c;
	struct ckpt_err err = { 0 };
	struct move_files f;
	uint64_t bytes;
	int e;

	k->s = s;
	e = format_native.open(
		&(struct format_open){
			.dir = &dir, .partial = true, .fault = on_fault, .fault_arg = k },
		&c, &err);
	assert_int_equal(e<0, k->n> k->nodd);
	if (c && data) {
		uint32_t before = k->n - k->nodd;

		assert_ok_err(move_open(&s->ops, 0, c, false, IO_INLINE, &f, &err), &err);
		e = move_verify(&f, NULL, NULL, on_fault, k, &bytes, &err);
		assert_int_equal(e<0, k->n - k->nodd> before);
		move_close(&f);
	}
	checkpoint_free(c);
}

/* --- kept out --- */

static bool is_all(const uint8_t *p, uint8_t v, uint64_t n)
{
	return n == 0 || (p[0] == v && memcmp(p, p + 1, n - 1) == 0);
}

/* Restore into clean memory. Whatever comes of it: no byte there that the checkpoint did not
 * have. */
static int restore(struct scene *s)
{
	struct source_dir dir = memdir_source(&s->bad);
	struct checkpoint *c;
	struct ckpt_err err = { 0 };
	struct move_files f;
	int e = format_native.open(&(struct format_open){ .dir = &dir }, &c, &err);

	for (uint32_t i = 0; i < s->c->nfile; i++)
		memset(s->memory[i], PATTERN, s->c->file[i].raw_bytes);
	if (e < 0)
		return e;
	assert_ok_err(move_open(&s->ops, 0, c, false, IO_INLINE, &f, &err), &err);
	e = move_read(&s->plan, &f, (void *const *)s->memory, NULL, NULL, &err);
	move_close(&f);
	checkpoint_free(c);
	for (uint32_t i = 0; i < s->c->nfile; i++) {
		const uint8_t *m = s->memory[i], *t = s->truth[i];

		if (!memcmp(m, t, s->c->file[i].raw_bytes))
			continue;
		for (uint64_t b = 0, n; b < s->c->file[i].raw_bytes; b += n) {
			n = MIN(s->c->file[i].raw_bytes - b, UINT64_C(4096));
			if (!memcmp(m + b, t + b, n) || is_all(m + b, PATTERN, n))
				continue;
			for (uint64_t k = b; k < b + n; k++)
				if (m[k] != t[k] && m[k] != PATTERN)
					fail_msg("byte %llu of file %u is not the checkpoint's: %s",
						 (unsigned long long)k, i, err.msg);
		}
	}
	return e;
}

/* --- one change --- */

static void must(struct scene *s, const struct region *r, uint64_t lo, uint64_t hi,
		 const char *what)
{
	struct look k = { .r = r, .file = s->good.file[r->file].name, .lo = lo, .hi = hi };
	bool zeros = r->kind == PADDING || r->kind == GAP;
	int e;

	s->by_kind[r->kind]++;
	look(s, &k, true);
	if (!k.n || !k.located || ((r->kind == CHUNK || zeros) && !k.named && strcmp(what, "cut")))
		fail_msg("%s: %s at [%llu, %llu) %s: %u faults, %slocated, %snamed; %s",
			 s->good.file[r->file].name, kind_name[r->kind], (unsigned long long)lo,
			 (unsigned long long)hi, what, k.n, k.located ? "" : "not ",
			 k.named ? "" : "not ", k.text);
	e = restore(s);
	if (zeros && strcmp(what, "cut") != 0) { /* no tensor lies there */
		assert_int_equal(e, 0);
		return;
	}
	if (e >= 0)
		fail_msg("%s: %s at [%llu, %llu) %s: restored", s->good.file[r->file].name,
			 kind_name[r->kind], (unsigned long long)lo, (unsigned long long)hi, what);
	if (r->kind == CHUNK) {
		assert_true(is_all(s->memory[r->place] + r->raw, PATTERN, r->raw_len));
		s->kept_out++;
	}
}

/* What was written over [lo, hi) of the region, if it is a change at all. */
static void wrote(struct scene *s, const struct region *r, uint64_t lo, uint64_t hi,
		  const char *what)
{
	const uint8_t *b = s->bad.file[r->file].bytes, *g = s->good.file[r->file].bytes;

	while (lo < hi && b[lo] == g[lo])
		lo++;
	while (hi > lo && b[hi - 1] == g[hi - 1])
		hi--;
	if (lo == hi)
		return;
	must(s, r, lo, hi, what);
	memcpy(s->bad.file[r->file].bytes + lo, g + lo, hi - lo);
}

static void flips(struct scene *s, const struct region *r)
{
	uint64_t at[3] = { 0, r->len - 1, draw(&s->rng) % r->len };

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		s->bad.file[r->file].bytes[r->off + at[i]] ^= (uint8_t)(1u << draw(&s->rng) % 8);
		wrote(s, r, r->off + at[i], r->off + at[i] + 1, "flipped");
	}
}

static void zeroes(struct scene *s, const struct region *r)
{
	uint8_t *p = s->bad.file[r->file].bytes + r->off;
	uint64_t from = draw(&s->rng) % r->len, n = 1 + draw(&s->rng) % (r->len - from);

	memset(p, 0, r->len);
	wrote(s, r, r->off, r->off + r->len, "zeroed");
	memset(p + from, 0, n);
	wrote(s, r, r->off, r->off + r->len, "zeroed in part");
	memset(p + from, 0xff, n);
	wrote(s, r, r->off, r->off + r->len, "set");
	for (uint64_t i = 0; i < n; i++)
		p[from + i] = (uint8_t)draw(&s->rng);
	wrote(s, r, r->off, r->off + r->len, "overwritten");
}

static void cuts(struct scene *s, const struct region *r)
{
	uint64_t at[] = { r->off, r->off + r->len / 2, r->off + draw(&s->rng) % r->len };

	for (size_t i = 0; i < ARRAY_LEN(at); i++) {
		struct memdir_file *f = &s->bad.file[r->file];
		struct region whole = *r;

		f->len = at[i];
		/* The fault may lie anywhere from the new end on, or on what is the trailer now. */
		must(s, &whole, at[i] > CONTAINER_BLOCK ? at[i] - CONTAINER_BLOCK : 0, UINT64_MAX,
		     "cut");
		heal(s, r->file);
	}
}

static void each_region(struct scene *s, void (*change)(struct scene *, const struct region *))
{
	for (uint32_t i = (uint32_t)(draw(&s->rng) % every()); i < s->nregion; i += every())
		change(s, &s->region[i]);
	for (int k = 0; k <= TRAILER; k++)
		printf("# %s: %u\n", kind_name[k], s->by_kind[k]);
	printf("# chunks kept out of memory: %u\n", s->kept_out);
	if (every() == 1) {
		for (int k = 0; k <= TRAILER; k++)
			assert_true(s->by_kind[k] >= 3);
		assert_true(s->kept_out > 10);
	}
}

TEST(any_flipped_bit_of_any_region_is_found_and_kept_out)
{
	struct scene s;

	scene_make(&s, __func__);
	each_region(&s, flips);
	scene_free(&s);
}

TEST(any_region_zeroed_or_overwritten_is_found_and_kept_out)
{
	struct scene s;

	scene_make(&s, __func__);
	each_region(&s, zeroes);
	scene_free(&s);
}

TEST(a_file_cut_at_or_inside_any_region_is_found_and_kept_out)
{
	struct scene s;

	scene_make(&s, __func__);
	each_region(&s, cuts);
	scene_free(&s);
}

/* --- exchanged --- */

/* Put bytes of a region of some other file over this one's. false: they are the same. */
static bool put(struct scene *s, const struct region *r, const uint8_t *from)
{
	uint8_t *to = s->bad.file[r->file].bytes + r->off;

	if (!memcmp(to, from, r->len))
		return false;
	memcpy(to, from, r->len);
	return true;
}

static void good_again(struct scene *s, const struct region *r)
{
	memcpy(s->bad.file[r->file].bytes + r->off, s->good.file[r->file].bytes + r->off, r->len);
}

TEST(regions_exchanged_within_and_between_files_and_steps_are_found)
{
	uint32_t within = 0, between = 0, steps = 0, seen = 0;
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < s.nregion; i++)
		for (uint32_t k = i + 1; k < s.nregion; k++) {
			const struct region *a = &s.region[i], *b = &s.region[k];

			if (a->len != b->len || a->kind != b->kind || seen++ % every())
				continue;
			if (!put(&s, a, s.good.file[b->file].bytes + b->off))
				continue;
			(void)put(&s, b, s.good.file[a->file].bytes + a->off);
			/* Where MANIFEST is not believed, it is all that can be told of. */
			if (strcmp(s.good.file[b->file].name, NATIVE_MANIFEST) != 0 ||
			    a->file == b->file)
				must(&s, a, a->off, a->off + a->len, "exchanged");
			if (strcmp(s.good.file[a->file].name, NATIVE_MANIFEST) != 0 ||
			    a->file == b->file)
				must(&s, b, b->off, b->off + b->len, "exchanged");
			good_again(&s, a);
			good_again(&s, b);
			*(a->file == b->file ? &within : &between) += 1;
		}
	for (uint32_t i = 0; i < s.nregion; i += every()) { /* the same place, another step */
		const struct region *r = &s.region[i];
		const struct memdir_file *f = memdir_find(&s.step, s.good.file[r->file].name);

		if (r->off + r->len > f->len || !put(&s, r, f->bytes + r->off))
			continue;
		steps++;
		must(&s, r, r->off, r->off + r->len, "from another step");
		good_again(&s, r);
	}
	printf("# within files %u, between files %u, between steps %u\n", within, between, steps);
	if (every() == 1)
		assert_true(within >= 2 && between >= 10 && steps >= 20);
	scene_free(&s);
}

static void file_put(struct scene *s, const char *name, const struct memdir_file *from)
{
	struct memdir_file *f = memdir_find(&s->bad, name);

	free(f->bytes);
	f->bytes = malloc(from->len + 1);
	assert_non_null(f->bytes);
	memcpy(f->bytes, from->bytes, from->len);
	f->len = from->len;
}

static void file_must(struct scene *s, const char *name, const char *what)
{
	struct look k = { .file = name };

	look(s, &k, true);
	if (!k.n || !k.located)
		fail_msg("%s of %s: %s", name, what, k.n ? k.text : "not found");
	assert_true(restore(s) < 0);
	for (uint32_t i = 0; i < s->c->nfile; i++)
		assert_true(is_all(s->memory[i], PATTERN, s->c->file[i].raw_bytes));
}

TEST(whole_files_of_another_rank_step_launch_or_job_are_found)
{
	struct scene s;
	struct memdir *other[3];
	static const char *const what[] = { "another step", "another launch", "another job" };

	scene_make(&s, __func__);
	other[0] = &s.step;
	other[1] = &s.launch;
	other[2] = &s.job;
	for (uint32_t i = 0; i < s.good.n; i++) {
		const char *name = s.good.file[i].name;

		for (size_t k = 0; k < ARRAY_LEN(other); k++) {
			const struct memdir_file *f = memdir_find(other[k], name);
			struct look x = { .file = s.good.file[0].name };

			assert_non_null(f); /* the names are the same */
			file_put(&s, name, f);
			if (strcmp(name, NATIVE_MANIFEST) != 0) {
				file_must(&s, name, what[k]);
			} else { /* then it is the parts that are not those it names */
				look(&s, &x, true);
				assert_true(x.n >= s.c->nfile && x.located);
				file_must(&s, s.good.file[0].name, what[k]);
			}
			heal(&s, i);
		}
		for (uint32_t k = 0; k < s.good.n; k++) { /* another rank's, or another kind */
			if (k == i)
				continue;
			file_put(&s, name, &s.good.file[k]);
			file_must(&s, name, "another file");
			heal(&s, i);
		}
	}
	/* Every part of another step, under this step's MANIFEST; and every part of this one
	 * twice. */
	for (uint32_t i = 0; i < s.good.n; i++)
		if (strcmp(s.good.file[i].name, NATIVE_MANIFEST) != 0)
			file_put(&s, s.good.file[i].name,
				 memdir_find(&s.step, s.good.file[i].name));
	for (uint32_t i = 0; i < s.c->nfile; i++)
		file_must(&s, s.c->file[i].name, "another step, all");
	scene_free(&s);
}

/* --- what must be seen to be quiet, and to fail --- */

TEST(an_undamaged_checkpoint_has_no_faults_and_restores)
{
	struct look k = { .file = "" };
	struct scene s;

	scene_make(&s, __func__);
	look(&s, &k, true);
	assert_int_equal(k.n, 0);
	assert_int_equal(restore(&s), 0);
	for (uint32_t i = 0; i < s.c->nfile; i++)
		assert_memory_equal(s.memory[i], s.truth[i], s.c->file[i].raw_bytes);
	scene_free(&s);
}

/* The negative control: without the reading of data this rig sees no damage in data, and sees bytes
 * that are not the checkpoint's when they are let through. */
TEST(a_reader_of_metadata_alone_is_caught_by_this_rig)
{
	uint32_t missed = 0;
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < s.nregion; i++) {
		const struct region *r = &s.region[i];
		struct look k = { .r = r, .file = s.good.file[r->file].name };

		if (r->kind != CHUNK && r->kind != PADDING)
			continue;
		s.bad.file[r->file].bytes[r->off] ^= 1;
		look(&s, &k, false);
		missed += !k.n;
		good_again(&s, r);
	}
	assert_true(missed > 10);
	scene_free(&s);
}
