/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_native_read.c - native checkpoints in memory: what is written is read back, on every mesh;
 * and no change of any byte of metadata, no file that is missing, cut, exchanged or too many goes
 * unseen.
 */
#include "tests/lib/part_data.h"
#include "tests/lib/row.h"
#include "tests/lib/sample.h"
#include "tests/lib/memdir.h"
#include "tests/lib/tiles.h"
#include "tests/lib/unit.h"

/* Under a sanitizer, which costs ten times as much, not every byte but every ninth. */
#ifdef __SANITIZE_ADDRESS__
#define STRIDE 9
#else
#define STRIDE 1
#endif

static const struct memdir_opts plain = ROW(.mesh = "fsdp=2", .job = "demo", .seed = 5, .scale = 1,
					    .step = 12, .generation = 3, .seq = 7);

static struct memdir D; /* of the case that runs */

static int teardown(void **state)
{
	(void)state;
	memdir_clear(&D);
	return 0;
}

/* --- collecting faults --- */

struct found {
	uint32_t n;
	char kind[16], file[64], tensor[64], text[600]; /* of the first */
	uint64_t offset, length;
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct found *x = arg;

	assert_non_null(f->kind);
	assert_non_null(f->text);
	assert_true(*f->text);
	if (x->n++)
		return;
	snprintf(x->kind, sizeof x->kind, "%s", f->kind);
	snprintf(x->file, sizeof x->file, "%s", f->file);
	snprintf(x->tensor, sizeof x->tensor, "%s", f->tensor);
	snprintf(x->text, sizeof x->text, "%s", f->text);
	x->offset = f->offset;
	x->length = f->length;
}

/* Open it; the result, the faults and the error in memory agree with each other. */
static int try_open(struct memdir *d, struct found *x, struct ckpt_err *err,
		    struct checkpoint **ret)
{
	struct source_dir dir = memdir_source(d);
	int r;

	*x = (struct found){ .n = 0 };
	*err = (struct ckpt_err){ 0 };
	r = format_native.open(
		&(struct format_open){ .dir = &dir, .fault = on_fault, .fault_arg = x }, ret, err);
	assert_true(r == 0 || x->n > 0);
	assert_int_equal(r < 0, *ret == NULL);
	assert_int_equal(err->code, r);
	return r;
}

static struct ckpt_err err; /* of the call that failed last */

static void must_fault(struct memdir *d, int code, const char *kind, const char *file)
{
	struct checkpoint *c;
	struct found x;
	int r = try_open(d, &x, &err, &c);

	checkpoint_free(c);
	if (r != code || strcmp(x.kind, kind) != 0 || strcmp(x.file, file) != 0)
		fail_msg("%d %s %s: %s; should be %d %s %s", r, x.kind, x.file, x.text, code, kind,
			 file);
	assert_non_null(strstr(err.msg, x.text));
}

static void zeros_check(const struct format_file *f, const uint8_t *bytes)
{
	uint64_t zeros = 0;

	assert_int_equal(f->range[0].kind, RANGE_META);
	assert_int_equal(f->range[0].len, 4096);
	assert_int_equal(f->range[f->nrange - 1].kind, RANGE_META);
	for (uint64_t i = 0; i < f->nrange; i++) {
		const struct format_range *x = &f->range[i];

		assert_int_equal(x->sum, x->kind == RANGE_META	 ? SUM_OPEN
					 : x->kind == RANGE_DATA ? SUM_CHUNKS
					 : x->off < data_to(f)	 ? SUM_NONE
								 : SUM_OPEN);
		for (uint64_t k = 0; k < x->len && x->kind == RANGE_ZERO; k++)
			if (bytes[x->off + k])
				fail_msg("%s: byte %llu is not zero", f->name,
					 (unsigned long long)(x->off + k));
		zeros += x->kind == RANGE_ZERO;
	}
	assert_true(zeros > 0);
}

static struct checkpoint *must_open(struct memdir *d)
{
	struct checkpoint *c;
	struct found x;

	assert_ok_err(try_open(d, &x, &err, &c), &err);
	assert_null(tiles_all_wrong(c));
	for (uint32_t i = 0; i < c->nfile; i++)
		zeros_check(&c->file[i], memdir_find(d, c->file[i].name)->bytes);
	return c;
}

/* --- reading back --- */

/* Every byte of every piece of an opened checkpoint, where its tables say that it lies. */
static void check_contents(struct memdir *d, const struct checkpoint *c,
			   const struct memdir_opts *o)
{
	for (uint32_t i = 0; i < c->table.npiece; i++) {
		const struct table_piece *p = &c->table.piece[i];
		const struct format_file *f = &c->file[p->place];
		const uint8_t *file = memdir_find(d, f->name)->bytes;
		uint8_t *want = malloc(p->len), *have = malloc(p->len);

		assert_true(want && have);
		sample_piece(o->seed, &c->table, p, o->step, want);
		for (uint64_t at = 0, n; at < p->len; at += n) { /* chunk by chunk */
			uint64_t raw = p->off + at, k = raw >> f->chunk_log2,
				 in = raw & ((1u << f->chunk_log2) - 1);

			n = MIN(p->len - at, (UINT64_C(1) << f->chunk_log2) - in);
			assert_true(k < f->nchunk && in + n <= f->chunk[k].raw_len);
			assert_true(f->chunk[k].off >= data_from(f) &&
				    f->chunk[k].off + f->chunk[k].stored_len <= data_to(f));
			assert_int_equal(f->chunk[k].off % 4096, 0);
			memcpy(have + at, file + f->chunk[k].off + in, n);
		}
		assert_memory_equal(have, want, p->len);
		assert_int_equal(p->fp, memdir_fingerprint(&c->table, p, have));
		free(want);
		free(have);
	}
}

TEST(what_is_written_is_read_back_on_every_mesh)
{
	static const char *const mesh[] = { "fsdp=1", "fsdp=3",		  "dp=2,fsdp=2",
					    "dp=3",   "pp=2,tp=2,fsdp=2", "tp=5" };
	uint64_t sum[ARRAY_LEN(sample_specs)];

	for (size_t i = 0; i < ARRAY_LEN(mesh); i++) {
		struct memdir_opts o = plain;
		struct memdir d = { .n = 0 };
		struct checkpoint *c;
		uint64_t bytes = 0;

		o.mesh = mesh[i];
		memdir_checkpoint(&d, &o);
		c = must_open(&d);
		check_contents(&d, c, &o);
		assert_int_equal(c->nfile, c->world);
		assert_int_equal(c->table.nplace, c->world);
		for (uint32_t k = 0; k < c->nfile; k++) {
			assert_string_equal(c->table.place[k].name, c->file[k].name);
			assert_int_equal(c->table.place[k].rank, k);
			assert_int_equal(c->file[k].rank, k);
			assert_int_equal(c->table.place[k].bytes, c->file[k].raw_bytes);
			assert_int_equal(c->file[k].file_bytes,
					 memdir_find(&d, c->file[k].name)->len);
		}
		for (uint32_t k = 0; k < d.n; k++)
			bytes += d.file[k].len;
		assert_int_equal(c->stored_bytes, bytes);
		assert_int_equal(c->step, 12);
		assert_int_equal(c->seq, 7);
		assert_int_equal(c->generation, 3);
		assert_int_equal(c->parent_step, 11);
		assert_int_equal(strlen(c->id), 32);
		assert_string_equal(c->parent_id, "");
		assert_string_equal(c->job, "demo");
		assert_string_equal(c->tool, "memdir 1");
		assert_ptr_equal(c->format, &format_native);
		/* Fingerprints do not know the mesh. */
		for (size_t k = 0; k < ARRAY_LEN(sample_specs); k++) {
			uint32_t x = table_find(&c->table, sample_specs[k].component,
						sample_specs[k].name, TABLE_NONE);

			assert_int_not_equal(x, TABLE_NONE);
			assert_true(c->table.tensor[x].numel == 0 || c->table.tensor[x].fp != 0);
			if (i)
				assert_int_equal(c->table.tensor[x].fp, sum[k]);
			sum[k] = c->table.tensor[x].fp;
		}
		for (uint32_t r = 0; r < c->world; r++)
			assert_int_not_equal(table_find(&c->table, "blob", "rng", r), TABLE_NONE);
		assert_int_not_equal(table_find(&c->table, "blob", "cursor", TABLE_NONE),
				     TABLE_NONE);
		checkpoint_free(c);
		memdir_clear(&d);
	}
}

TEST(the_summary_says_what_the_whole_says)
{
	struct ckpt_note note[2] = { { "loss", 2.25 }, { "lr", 3e-4 } };
	struct memdir_opts o = plain;
	struct checkpoint *c, *s;
	struct source m;
	char a[64], b[64];

	o.note = note;
	o.nnote = 2;
	o.mesh = "dp=2,fsdp=2";
	memset(o.parent_id, 0xab, sizeof o.parent_id);
	memdir_checkpoint(&D, &o);
	c = must_open(&D);
	m = memdir_open(&D, NATIVE_MANIFEST);
	assert_int_equal(format_native.root->summary(&m, &s, &err), 0);
	assert_int_equal(s->step, c->step);
	assert_int_equal(s->seq, c->seq);
	assert_int_equal(s->generation, c->generation);
	assert_int_equal(s->wall_ns, c->wall_ns);
	assert_int_equal(s->parent_step, c->parent_step);
	assert_int_equal(s->world, 4);
	assert_int_equal(s->stored_bytes, c->stored_bytes);
	assert_string_equal(s->id, c->id);
	assert_string_equal(s->parent_id, "abababababababababababababababab");
	assert_string_equal(s->job, c->job);
	assert_string_equal(s->tool, c->tool);
	assert_int_equal(s->table.ntensor, 0);
	assert_int_equal(s->nfile, c->nfile);
	assert_int_equal(s->table.nplace, 0);
	assert_int_equal(s->table.nmesh, 1);
	assert_string_equal(mesh_print(&s->table.mesh[0], a, sizeof a),
			    mesh_print(&c->table.mesh[0], b, sizeof b));
	for (int i = 0; i < 2; i++) {
		const struct checkpoint *x = i ? s : c;

		assert_int_equal(x->nnote, 2);
		assert_string_equal(x->note[0].key, "loss");
		assert_true(x->note[0].value == 2.25);
		assert_string_equal(x->note[1].key, "lr");
		assert_true(x->note[1].value == 3e-4);
	}
	checkpoint_free(c);
	checkpoint_free(s);
	memdir_find(&D, NATIVE_MANIFEST)->bytes[100] ^= 1;
	assert_int_equal(format_native.root->summary(&m, &s, &err), -EBADMSG);
	assert_null(s);
}

TEST(probe_knows_a_checkpoint_a_torn_one_and_a_stranger)
{
	struct source_dir dir = memdir_source(&D);
	char looked[FORMAT_LOOKED];

	assert_int_equal(format_native.probe(&dir, looked), 0);
	assert_string_equal(looked, "no MANIFEST and no part (w*.part)");
	memdir_add(&D, "model.safetensors", "x", 1);
	memdir_add(&D, NATIVE_MANIFEST, "something else", 14);
	assert_int_equal(format_native.probe(&dir, looked), 0);
	assert_non_null(strstr(looked, "another program's"));
	memdir_clear(&D);
	memdir_checkpoint(&D, &plain);
	assert_int_equal(format_native.probe(&dir, looked), 75);
	memdir_remove(&D, NATIVE_MANIFEST);
	assert_int_equal(format_native.probe(&dir, looked), 25);
	must_fault(&D, -EUCLEAN, "missing", NATIVE_MANIFEST);
}

/* --- damage --- */

TEST(every_changed_byte_of_metadata_is_a_fault)
{
	struct memdir_opts o = plain;
	struct checkpoint *c;
	uint64_t tried = 0;

	o.mesh = "fsdp=1";
	memdir_checkpoint(&D, &o);
	c = must_open(&D);
	for (uint32_t i = 0; i < D.n; i++) {
		struct memdir_file *f = &D.file[i];
		bool part = strcmp(f->name, NATIVE_MANIFEST) != 0;
		uint64_t data_end = part ? data_to(&c->file[0]) : CONTAINER_BLOCK;

		for (uint64_t k = 0; k < f->len; k++) {
			struct checkpoint *again;
			struct found x;
			int r;

			if (k >= CONTAINER_BLOCK && k < data_end)
				k = data_end;
			f->bytes[k] ^= (uint8_t)(1u << k % 8);
			r = try_open(&D, &x, &err, &again);
			checkpoint_free(again);
			/* No sum covers padding: it is told, and keeps nobody from restoring. */
			if (!x.n || r != (strcmp(x.kind, "padding") ? -EBADMSG : 0) ||
			    strcmp(x.file, f->name) != 0)
				fail_msg("byte %llu of %s: %s", (unsigned long long)k, f->name,
					 x.n ? x.text : "not seen");
			/* It is told where, at most a section or a gap around it. */
			if (k < x.offset || k >= x.offset + x.length)
				fail_msg("byte %llu of %s is told at %llu, %llu bytes: %s",
					 (unsigned long long)k, f->name,
					 (unsigned long long)x.offset, (unsigned long long)x.length,
					 x.text);
			f->bytes[k] ^= (uint8_t)(1u << k % 8);
			tried++;
			k += STRIDE - 1;
		}
	}
	checkpoint_free(c);
	checkpoint_free(must_open(&D));
	assert_true(tried > 80000 / STRIDE);
}

/* Files, directories and links of others: all that is read is what MANIFEST names. */
TEST(foreign_entries_are_counted_and_are_no_faults)
{
	static const char *const name[] =
		ROW(".nfs0001", "lost+found", "MANIFEST~", "MANIFEST.bak", "weights.part",
		    "core.1234", "w0009-0000000a-000.part", "w0000", "notes.txt");
	struct checkpoint *c;

	memdir_checkpoint(&D, &plain);
	c = must_open(&D);
	assert_int_equal(c->nforeign, 0);
	checkpoint_free(c);
	(void)memdir_add(&D, "MANIFEST.0123abcd", "x", 1); /* of a repair that died */
	(void)memdir_add(&D, "MANIFEST.damaged-0123abcd", "x", 1);
	for (uint32_t i = 0; i < ARRAY_LEN(name); i++) {
		memdir_add(&D, name[i], "x", 1)->folder = i % 2;
		c = must_open(&D);
		assert_int_equal(c->nforeign, i + 1);
		for (uint32_t k = 0; k < MIN(i + 1, (uint32_t)CHECKPOINT_FOREIGN); k++)
			assert_string_equal(c->foreign[k], name[k]);
		checkpoint_free(c);
	}
}

TEST(missing_cut_and_longer_files_are_faults)
{
	struct memdir_file *f;
	char name[64];
	uint8_t *bytes;
	uint64_t len;

	memdir_checkpoint(&D, &plain);
	f = &D.file[1];
	snprintf(name, sizeof name, "%s", f->name);
	len = f->len;
	bytes = malloc(len + 4096);
	assert_non_null(bytes);
	memset(bytes, 0, len + 4096);
	memcpy(bytes, f->bytes, len);
	for (uint64_t cut = 1; cut <= len; cut = cut * 5 + 1) {
		f->len = len - cut;
		must_fault(&D, -EBADMSG, "truncated", name);
	}
	for (uint64_t cut = 4096; cut <= len; cut += 4096 * 37) {
		f->len = len - cut;
		must_fault(&D, -EBADMSG, "truncated", name);
	}
	f->len = 0;
	must_fault(&D, -EBADMSG, "truncated", name);
	memdir_remove(&D, name);
	must_fault(&D, -EUCLEAN, "missing", name);
	memdir_add(&D, name, bytes, len + 4096);
	must_fault(&D, -EBADMSG, "unexpected", name);
	memdir_remove(&D, name);
	f = memdir_add(&D, name, bytes, len);
	checkpoint_free(must_open(&D));
	f->error = -EIO;
	must_fault(&D, -EIO, "unreadable", name);
	f->error = 0;
	f->folder = true;
	must_fault(&D, -EUCLEAN, "unexpected", name);
	f->folder = false;
	f = memdir_find(&D, NATIVE_MANIFEST);
	for (uint64_t m = f->len, cut = 1; cut <= m; cut = cut * 3 + 1) {
		f->len = m - cut;
		struct checkpoint *c;
		struct found x;

		assert_int_equal(try_open(&D, &x, &err, &c), -EBADMSG);
		assert_string_equal(x.file, NATIVE_MANIFEST);
		f->len = m;
	}
	f->error = -EACCES;
	must_fault(&D, -EACCES, "unreadable", NATIVE_MANIFEST);
	f->error = 0;
	checkpoint_free(must_open(&D));
	free(bytes);
}

/* Put b's bytes where a's were. */
static void file_exchange(struct memdir_file *a, const struct memdir_file *b)
{
	a->bytes = realloc(a->bytes, b->len + 1);
	assert_non_null(a->bytes);
	memcpy(a->bytes, b->bytes, b->len);
	a->len = b->len;
}

TEST(exchanged_parts_and_parts_of_another_step_or_job_are_faults)
{
	struct memdir_opts o = plain;
	struct memdir other = { .n = 0 };
	struct memdir_file *f, keep;

	o.mesh = "dp=2"; /* ranks 0 and 1 could be exchanged without a change of size? their blobs
			    differ: no */
	memdir_checkpoint(&D, &o);
	o.step++;
	memdir_checkpoint(&other, &o);
	f = &D.file[1];
	keep = (struct memdir_file){ .bytes = malloc(f->len), .len = f->len };
	assert_non_null(keep.bytes);
	memcpy(keep.bytes, f->bytes, f->len);
	file_exchange(f, memdir_find(&other, f->name));
	must_fault(&D, -EBADMSG, "mismatch", f->name); /* the same size, whole, of the next step */
	file_exchange(f, &keep);
	checkpoint_free(must_open(&D));
	/* Only the header of the other step: with the trailer's uuid it would be that of another
	 * checkpoint. */
	memcpy(f->bytes, memdir_find(&other, f->name)->bytes, CONTAINER_BLOCK);
	must_fault(&D, -EBADMSG, "mismatch", f->name);
	file_exchange(f, &keep);
	/* The two files of the step under each other's names. */
	file_exchange(&D.file[1], &D.file[0]);
	file_exchange(&D.file[0], &keep);
	struct checkpoint *c;
	struct found x;

	assert_int_equal(try_open(&D, &x, &err, &c), -EBADMSG);
	assert_true(x.n >= 2);
	file_exchange(&D.file[0], &D.file[1]);
	file_exchange(&D.file[1], &keep);
	checkpoint_free(must_open(&D));
	/* A part that was written again, whole and with the same names, but not what was
	 * committed. */
	struct memdir_file *m = memdir_find(&D, NATIVE_MANIFEST);
	uint8_t *committed = malloc(m->len);

	assert_non_null(committed);
	memcpy(committed, m->bytes, m->len);
	((struct ck_chunk *)memdir_section(f, CK_CHUNKS))->raw_hash[0] ^= 1;
	memdir_sign(&D, f);
	checkpoint_free(must_open(&D)); /* its MANIFEST would have said so */
	memcpy(m->bytes, committed, m->len);
	must_fault(&D, -EBADMSG, "mismatch", f->name);
	file_exchange(f, &keep);
	free(committed);
	/* MANIFEST of the other step. */
	file_exchange(memdir_find(&D, NATIVE_MANIFEST), memdir_find(&other, NATIVE_MANIFEST));
	must_fault(&D, -EBADMSG, "mismatch", D.file[0].name);
	/* A part where MANIFEST belongs. */
	file_exchange(memdir_find(&D, NATIVE_MANIFEST), &D.file[0]);
	must_fault(&D, -EPROTO, "malformed", NATIVE_MANIFEST);
	free(keep.bytes);
	memdir_clear(&other);
}

/* --- changes with right checksums: what a newer writer, or somebody with a hex editor, would leave
 * --- */

#define CHANGED(file_, field, value_, code_, kind_, why_)                                      \
	do {                                                                                   \
		__typeof__(field) was_ = (field);                                              \
		struct memdir_file *file__ = (file_);                                          \
		struct checkpoint *c_;                                                         \
		struct ckpt_err err_;                                                          \
		struct found x_;                                                               \
                                                                                               \
		(field) = (value_);                                                            \
		memdir_sign(&D, file__);                                                       \
		int r_ = try_open(&D, &x_, &err_, &c_);                                        \
		checkpoint_free(c_);                                                           \
		if (r_ != (code_) || strcmp(x_.kind, kind_) != 0 || !strstr(err_.msg, why_) || \
		    strcmp(x_.file, file__->name) != 0)                                        \
			fail_msg("line %d: %d %s %s: %s", __LINE__, r_, x_.kind, x_.file,      \
				 err_.msg);                                                    \
		(field) = was_;                                                                \
		memdir_sign(&D, file__);                                                       \
	} while (0)

static struct ck_head *head_of(struct memdir_file *f)
{
	return (struct ck_head *)f->bytes;
}

TEST(newer_versions_and_unknown_features_are_refused_in_clear_words)
{
	struct memdir_opts o = plain;

	o.mesh = "fsdp=1";
	memdir_checkpoint(&D, &o);
	for (uint32_t i = 0; i < D.n; i++) {
		struct memdir_file *f = &D.file[i];
		struct ck_head *h = (struct ck_head *)f->bytes;
		struct ck_tail *t = (struct ck_tail *)(f->bytes + f->len - CONTAINER_BLOCK);

		CHANGED(f, h->major, le16_of(1), -EPROTONOSUPPORT, "newer", "format 1.2");
		CHANGED(f, h->major, le16_of(1), -EPROTONOSUPPORT, "newer",
			"written by a newer version");
		CHANGED(f, h->incompat, le64_of(5), -EPROTONOSUPPORT, "newer", "newer");
		CHANGED(f, h->hash, 9, -EPROTONOSUPPORT, "newer", "checksum algorithm 9");
		CHANGED(f, t->sect[1].kind, le32_of(60), -EPROTONOSUPPORT, "newer",
			"a section of kind 60");
		/* minor, compat and ro_compat bits, and optional sections, are no reason not to
		 * read. */
		h->minor = le16_of(7);
		h->compat = le64_of(1);
		h->ro_compat = head_of(memdir_find(&D, NATIVE_MANIFEST))->ro_compat = le64_of(2);
		memdir_sign(&D, f);
		checkpoint_free(must_open(&D));
	}
	struct memdir_file *m = memdir_find(&D, NATIVE_MANIFEST);
	struct ck_tail *t = (struct ck_tail *)(m->bytes + m->len - CONTAINER_BLOCK);

	for (uint32_t i = 0; i < le32_get(t->nsect); i++)
		if (le32_get(t->sect[i].kind) == CK_NOTES)
			t->sect[i].kind = le32_of(60); /* it carries the flag */
	memdir_sign(&D, m);
	checkpoint_free(must_open(&D));
	struct ck_chunk *c = memdir_section(&D.file[0], CK_CHUNKS);

	CHANGED(&D.file[0], c->codec, 2, -EPROTONOSUPPORT, "newer", "codec 2");
}

TEST(wrong_numbers_under_right_checksums_are_refused)
{
	struct memdir_opts o = plain;
	struct memdir_file *m, *p;

	o.mesh = "fsdp=1";
	memdir_checkpoint(&D, &o);
	m = memdir_find(&D, NATIVE_MANIFEST);
	p = &D.file[0];

	struct ck_head *ph = (struct ck_head *)p->bytes;
	struct ck_lineage *l = memdir_section(m, CK_LINEAGE);
	struct ck_part *part = memdir_section(m, CK_PARTS);
	struct ck_tensor *mt = memdir_section(m, CK_TENSORS), *pt = memdir_section(p, CK_TENSORS);
	struct ck_piece *piece = memdir_section(p, CK_PIECES);
	struct ck_chunk *chunk = memdir_section(p, CK_CHUNKS);
	struct ck_tail *tail = (struct ck_tail *)(p->bytes + p->len - CONTAINER_BLOCK);
	le64 *set = memdir_section(p, CK_INDEXSETS);

	CHANGED(m, l->world, le32_of(0), -EPROTO, "malformed", "world of 0 ranks");
	CHANGED(m, l->world, le32_of(2), -EPROTO, "malformed", "world of 2 ranks");
	CHANGED(m, l->world, le32_of(UINT32_MAX), -EPROTO, "malformed", "world of 4294967295");
	CHANGED(m, l->job, le32_of(0), -EPROTO, "malformed", "contradicts the header");
	CHANGED(m, l->job, le32_of(UINT32_MAX), -EPROTO, "malformed", "impossible name");
	CHANGED(m, l->generation, le64_of(9), -EPROTO, "malformed", "generation 9");
	CHANGED(m, part->name, le32_of(UINT32_MAX), -EPROTO, "malformed", "impossible name");
	CHANGED(m, part->name, le32_of(0), -EPROTO, "malformed", "impossible name");
	CHANGED(m, part->writer, le32_of(1), -EPROTO, "malformed", "of rank 1,");
	CHANGED(m, part->kind, le32_of(1), -EPROTO, "malformed", "kind 1");
	CHANGED(m, part->file_bytes, le64_of(UINT64_MAX), -EPROTO, "malformed", "too long");
	CHANGED(m, mt->fp, le64_of(1), -EPROTO, "mismatch", "add up to");
	CHANGED(p, pt->flags, CK_TENSOR_FP, -EPROTO, "malformed", "fingerprint in a part");
	CHANGED(p, pt->role, 0, -EPROTO, "mismatch", "role param on MANIFEST, other on");
	le64 was = piece->fp; /* MANIFEST's sum is what it contradicts */

	piece->fp = le64_of(1);
	memdir_sign(&D, p);
	must_fault(&D, -EPROTO, "mismatch", NATIVE_MANIFEST);
	piece->fp = was;
	CHANGED(p, piece->rank, le32_of(1), -EPROTO, "malformed",
		"a piece of rank 1 in the part of rank 0");
	CHANGED(p, piece[1].raw_off, piece[0].raw_off, -EPROTO, "malformed", "overlap");
	CHANGED(p, piece[1].raw_off, le64_of(le64_get(piece[1].raw_off) + 64), -EPROTO, "malformed",
		"");
	CHANGED(p, chunk->off, le64_of(4095), -EPROTO, "malformed", "chunk 0");
	CHANGED(p, chunk->off, le64_of(0), -EPROTO, "malformed", "chunk 0");
	CHANGED(p, chunk[1].off, chunk[0].off, -EPROTO, "malformed", "chunk 1");
	CHANGED(p, chunk[1].off, le64_of(UINT64_MAX - 4095), -EPROTO, "malformed", "chunk 1");
	CHANGED(p, chunk->raw_len, le32_of(5), -EPROTO, "malformed", "chunk 0");
	CHANGED(p, chunk->stored_len, le32_of(5), -EPROTO, "malformed", "chunk 0");
	CHANGED(p, chunk->elem_bytes, 4, -EPROTO, "malformed", "elements of 4 bytes");
	CHANGED(p, set[3], le64_of(7), -EPROTO, "malformed", "");
	CHANGED(p, ph->step, le64_of(99), -EPROTO, "mismatch", "step");
	CHANGED(p, ph->generation, le64_of(99), -EPROTO, "mismatch", "generation");
	CHANGED(p, ph->writer, le32_of(99), -EPROTO, "mismatch", "writer");
	CHANGED(p, ph->job[3], 99, -EPROTO, "mismatch", "job");
	CHANGED(p, ph->checkpoint[3], 99, -EPROTO, "mismatch", "checkpoint");
	CHANGED(p, ph->uuid[3], 99, -EBADMSG, "mismatch", "uuid");
	le64 end = tail->data_end; /* now there is a gap before the sections, which is not zero */

	tail->data_end = le64_of(CONTAINER_BLOCK);
	memdir_sign(&D, p);
	struct checkpoint *c;
	struct found x;

	assert_int_equal(try_open(&D, &x, &err, &c), -EPROTO);
	assert_string_equal(x.kind, "padding");
	assert_non_null(strstr(err.msg, "chunk 0"));
	tail->data_end = end;
	memdir_sign(&D, p);
	checkpoint_free(must_open(&D));
}

TEST(a_piece_that_is_missing_or_doubled_is_a_coverage_fault_of_its_tensor)
{
	struct memdir_file *p;
	struct checkpoint *c;
	struct found x;

	memdir_checkpoint(&D, &plain);
	p = &D.file[1];

	/* Rank 1 claims the rows of rank 0 in its first tensor: 502 rows each but for one. */
	le64 *set = memdir_section(p, CK_INDEXSETS);
	struct ck_piece *piece = memdir_section(p, CK_PIECES);

	assert_int_equal(le64_get(set[0]), 2);
	assert_int_equal(le32_get(piece->indexset), 0);
	set[2] = le64_of(le64_get(set[2]) - 1); /* start */
	memdir_sign(&D, p);
	assert_int_equal(try_open(&D, &x, &err, &c), -EPROTO);
	assert_string_equal(x.kind, "coverage");
	assert_string_equal(x.tensor, "model/embed.weight");
	assert_non_null(strstr(x.text, "is in two pieces"));
	assert_non_null(strstr(err.msg, "model/embed.weight: element"));
}

TEST(all_damage_is_told_and_not_only_the_first)
{
	struct memdir_opts o = plain;
	struct checkpoint *c;
	struct found x;
	uint64_t end;

	o.mesh = "fsdp=4";
	memdir_checkpoint(&D, &o);
	c = must_open(&D);
	end = data_to(&c->file[3]);
	checkpoint_free(c);
	D.file[1].bytes[0] ^= 1;				   /* its header */
	D.file[2].bytes[D.file[2].len - 1] ^= 1;		   /* its trailer */
	D.file[3].bytes[D.file[3].len - CONTAINER_BLOCK - 1] ^= 1; /* padding */
	D.file[3].bytes[end + 1] ^= 1;				   /* and a section */
	memdir_remove(&D, D.file[0].name);			   /* moves MANIFEST to its row */
	assert_int_equal(try_open(&D, &x, &err, &c), -EBADMSG);
	assert_int_equal(x.n, 5);
	assert_string_equal(x.kind, "missing");
	assert_non_null(strstr(err.msg, "header at offset 0"));
	assert_non_null(strstr(err.msg, "trailer at offset"));
}

UNIT(.teardown = teardown);
