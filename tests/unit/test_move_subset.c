/* SPDX-License-Identifier: Apache-2.0 */
/* test_move_subset.c - some of a checkpoint verified: which chunks, what is said of it; files that
 * are lost or no files any more; and what a hostile part may cost. */
#include <unistd.h>
#include "tests/unit/test_move_disk.h"
#include "ckpt/base/hash.h"
#include "ckpt/move/place_pieces.h"

struct scene {
	struct disk d;
	struct job from;
	struct checkpoint *c;
	uint64_t rng;
};

static const struct disk_how inline_how = { .ops = &io_ops_posix, .engine = IO_INLINE };

static void scene_make(struct scene *s, const char *test)
{
	s->rng = draw_seed(test);
	disk_make(&s->d);
	job_make(&s->from, "fsdp=4", s->rng, 6);
	job_stage(&s->from, 9, 0);
	job_write(&s->from, &s->d, &inline_how);
	s->c = disk_open(&s->d);
}

static void scene_free(struct scene *s)
{
	checkpoint_free(s->c);
	job_free(&s->from);
	disk_free(&s->d);
}

/* Faults by kind; bytes read of each file, through a table of system calls that counts. */
struct seen {
	uint32_t checksum, padding, mismatch, other;
};

static void on_fault(void *arg, const struct format_fault *f)
{
	struct seen *x = arg;

	x->checksum += !strcmp(f->kind, "checksum");
	x->padding += !strcmp(f->kind, "padding");
	x->mismatch += !strcmp(f->kind, "mismatch");
	x->other += strcmp(f->kind, "checksum") && strcmp(f->kind, "padding") &&
		    strcmp(f->kind, "mismatch");
}

static int verify(struct scene *s, const struct move_subset *subset, struct seen *seen,
		  struct move_verified *ret)
{
	struct move_verified want;
	struct ckpt_err err = { 0 };
	struct move_files f;
	int e;

	*seen = (struct seen){ 0 };
	assert_ok_err(move_open(&io_ops_posix, s->d.fd, s->c, false, IO_INLINE, &f, &err), &err);
	e = move_verify_some(&f, subset, NULL, NULL, on_fault, seen, ret, &err);
	move_close(&f);
	move_subset_size(s->c, subset, &want);
	assert_int_equal(want.bytes, ret->bytes);
	assert_int_equal(want.chunks, ret->chunks);
	assert_int_equal(want.all_bytes, ret->all_bytes);
	assert_int_equal(want.all_chunks, ret->all_chunks);
	return e;
}

static void flip(struct scene *s, uint32_t file, uint64_t off)
{
	int fd = openat(s->d.fd, s->c->file[file].name, O_RDWR | O_CLOEXEC);
	uint8_t b;

	assert_int_equal(pread(fd, &b, 1, (off_t)off), 1);
	b ^= 1;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)off), 1);
	close(fd);
}

TEST(all_is_every_byte_and_every_piece)
{
	struct move_subset all = { 0 };
	struct move_verified got;
	uint64_t bytes = 0;
	struct seen seen;
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < s.c->nfile; i++)
		bytes += data_to(&s.c->file[i]) - data_from(&s.c->file[i]);
	assert_int_equal(verify(&s, &all, &seen, &got), 0);
	assert_int_equal(got.bytes, bytes);
	assert_int_equal(got.all_bytes, bytes);
	assert_int_equal(got.chunks, got.all_chunks);
	assert_int_equal(got.pieces, s.c->table.npiece);
	assert_int_equal(got.all_pieces, s.c->table.npiece);
	scene_free(&s);
}

TEST(the_n_parts_are_every_byte_once_and_find_every_flipped_one)
{
	static const uint32_t parts[] = { 1, 2, 3, 7, 1000 };
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < ARRAY_LEN(parts); i++) {
		uint64_t bytes = 0, chunks = 0;
		struct move_verified got = { 0 };
		struct seen seen;

		for (uint32_t k = 1; k <= parts[i]; k++) {
			struct move_subset x = { .how = SUBSET_NTH, .k = k, .n = parts[i] };

			assert_int_equal(verify(&s, &x, &seen, &got), 0);
			bytes += got.bytes;
			chunks += got.chunks;
			assert_in_range(got.chunks, got.all_chunks / parts[i],
					got.all_chunks / parts[i] + 1);
		}
		assert_int_equal(bytes, got.all_bytes);
		assert_int_equal(chunks, got.all_chunks);
	}
	for (uint32_t i = 0; i < 16; i++) {
		uint32_t file = (uint32_t)(draw(&s.rng) % s.c->nfile);
		const struct format_file *f = &s.c->file[file];
		uint64_t off = data_from(f) + draw(&s.rng) % (data_to(f) - data_from(f));
		uint32_t found = 0;

		if (i < 4) /* what lies behind the last chunk */
			off = data_to(&s.c->file[file = i]) - 1;
		flip(&s, file, off);
		for (uint32_t k = 1; k <= 3; k++) {
			struct move_subset x = { .how = SUBSET_NTH, .k = k, .n = 3 };
			struct move_verified got;
			struct seen seen;
			int e = verify(&s, &x, &seen, &got);

			assert_int_equal(e, seen.checksum ? -EBADMSG : 0);
			assert_int_equal(seen.mismatch + seen.other, 0);
			found += seen.checksum + seen.padding;
		}
		assert_int_equal(found, 1);
		flip(&s, file, off);
	}
	scene_free(&s);
}

TEST(a_random_part_is_its_seeds_and_asks_every_file_for_its_share)
{
	struct move_subset x = { .how = SUBSET_RANDOM, .seed = 12345 }, y;
	struct move_verified all, a, b;
	uint64_t sets[3] = { 0 };
	struct seen seen;
	struct scene s;

	scene_make(&s, __func__);
	move_subset_size(s.c, &(struct move_subset){ 0 }, &all);
	for (uint32_t percent = 0; percent <= 120; percent += 20) {
		x.bytes = all.bytes * percent / 100;
		assert_int_equal(verify(&s, &x, &seen, &a), 0);
		/* A chunk of each file at least, and half a chunk more or less of each. */
		if (percent >= 100)
			assert_int_equal(a.bytes, all.bytes);
		else if (percent)
			assert_in_range(a.bytes, x.bytes - MIN(x.bytes, (uint64_t)s.c->nfile << 20),
					x.bytes + ((uint64_t)s.c->nfile << 20));
		else
			assert_int_equal(a.chunks, s.c->nfile);
	}
	x.bytes = all.bytes / 3;
	move_subset_size(s.c, &x, &a);
	for (uint32_t i = 0; i < 3; i++) {
		uint32_t told = 0;

		y = x;
		y.seed += i;
		/* Which chunks: a byte of each is wrong, one after the other. */
		for (uint32_t file = 0; file < s.c->nfile; file++) {
			const struct format_file *f = &s.c->file[file];
			uint32_t of_file = 0;
			int e;

			for (uint64_t k = 0; k < f->nchunk; k++) {
				if (!f->chunk[k].raw_len)
					continue;
				flip(&s, file, f->chunk[k].off);
				e = verify(&s, &y, &seen, &b);
				assert_int_equal(e, seen.checksum ? -EBADMSG : 0);
				flip(&s, file, f->chunk[k].off);
				of_file += seen.checksum;
				sets[i] = sets[i] * 3 + seen.checksum;
			}
			assert_true(of_file > 0);
			told += of_file;
		}
		assert_int_equal(told, b.chunks);
		assert_int_equal(b.chunks, a.chunks); /* as many for every seed */
	}
	for (uint32_t i = 1; i < 3; i++)
		if (sets[i] != sets[0])
			sets[0] = 0; /* two seeds, two parts */
	assert_int_equal(sets[0], 0);
	scene_free(&s);
}

TEST(fingerprints_are_compared_only_where_every_byte_was_asked_for)
{
	uint32_t whole = 0, never = 0;
	struct scene s;

	scene_make(&s, __func__);
	for (uint32_t i = 0; i < s.c->table.npiece; i++)
		s.c->table.piece[i].fp ^= 1; /* all are wrong: each that is compared is told */
	for (uint32_t k = 0; k <= 3; k++) {
		struct move_subset x = { .how = k ? SUBSET_NTH : SUBSET_ALL, .k = k, .n = 3 };
		struct move_verified got;
		struct seen seen;

		assert_int_equal(verify(&s, &x, &seen, &got), -EBADMSG);
		assert_int_equal(seen.mismatch, got.pieces);
		assert_int_equal(got.all_pieces, s.c->table.npiece);
		if (k)
			whole += (uint32_t)got.pieces;
		else
			assert_int_equal(got.pieces, got.all_pieces);
	}
	for (uint32_t i = 0; i < s.c->table.npiece; i++) {
		const struct table_piece *p = &s.c->table.piece[i];

		never += p->off >> 20 != (p->off + p->len - 1) >> 20;
	}
	/* Pieces of one chunk lie in one part; those of many chunks in none of three. */
	assert_true(never > 0);
	assert_int_equal(whole, s.c->table.npiece - never);
	scene_free(&s);
}

TEST(a_lost_file_is_passed_by_and_the_others_are_read)
{
	struct move_subset all = { 0 };
	struct move_verified got;
	uint64_t bytes = 0;
	struct seen seen;
	struct scene s;

	scene_make(&s, __func__);
	s.c->file[1].lost = true;
	for (uint32_t i = 0; i < s.c->nfile; i++)
		if (i != 1)
			bytes += data_to(&s.c->file[i]) - data_from(&s.c->file[i]);
	assert_int_equal(unlinkat(s.d.fd, s.c->file[1].name, 0), 0);
	for (uint32_t i = 0; i < s.c->table.npiece; i++)
		if (s.c->table.piece[i].place == 1)
			s.c->table.piece[i].fp = 0; /* open_partial has none of them at all */
	flip(&s, 2, data_from(&s.c->file[2]));
	assert_int_equal(verify(&s, &all, &seen, &got), -EBADMSG);
	assert_int_equal(seen.checksum, 1);
	assert_int_equal(seen.other, 0);
	assert_int_equal(got.bytes, bytes);
	scene_free(&s);
}

TEST(a_pipe_in_place_of_a_part_is_no_file_and_nobody_waits_for_it)
{
	struct ckpt_err err = { 0 };
	struct move_files f;
	struct scene s;

	scene_make(&s, __func__);
	assert_int_equal(unlinkat(s.d.fd, s.c->file[1].name, 0), 0);
	assert_int_equal(mkfifoat(s.d.fd, s.c->file[1].name, 0600), 0);
	alarm(20);
	for (int direct = 0; direct < 2; direct++) {
		uint64_t bytes;

		assert_int_equal(move_open(&io_ops_posix, s.d.fd, s.c, direct, IO_INLINE, &f, &err),
				 0);
		assert_int_equal(move_verify(&f, NULL, NULL, NULL, NULL, &bytes, &err), -EINVAL);
		move_close(&f);
	}
	alarm(0);
	assert_non_null(strstr(err.msg, s.c->file[1].name));
	scene_free(&s);
}

/* --- place_pieces --- */

#define RUNS 65536u
#define ROWS 64u

TEST(a_fingerprint_costs_its_rows_not_its_rows_times_its_progressions)
{
	static struct run cols[RUNS], rows[ROWS];
	const struct indices dim[] = { { ROWS, ROWS, rows }, { RUNS, RUNS, cols } };
	const uint64_t shape[] = { 3 * ROWS, 3 * RUNS };
	struct table_tensor x = { .dtype = CKPT_U8, .elem_bytes = 1, .ndim = 2, .shape = shape };
	struct table_piece p = { .set = { 2, (uint64_t)ROWS * RUNS, dim },
				 .len = (uint64_t)ROWS * RUNS };
	struct table t = { .ntensor = 1, .npiece = 1, .tensor = &x, .piece = &p };
	uint64_t n = p.len, rng = draw_seed(__func__), want = 0;
	uint8_t *bytes = malloc(n);

	assert_non_null(bytes);
	for (uint32_t i = 0; i < RUNS; i++)
		cols[i] = (struct run){ 3 * (uint64_t)i + (i * i) % 2, 1, 1, 1 };
	for (uint32_t i = 0; i < ROWS; i++)
		rows[i] = (struct run){ 3 * (uint64_t)i + i % 3, 1, 1, 1 };
	for (uint64_t i = 0; i < n; i++) {
		bytes[i] = (uint8_t)draw(&rng);
		want += fingerprint(&bytes[i], 1, 1,
				    rows[i / RUNS].start * shape[1] + cols[i % RUNS].start);
	}
	alarm(60); /* step by step through the list for each element: a hundred seconds */
	assert_int_equal(piece_fingerprint(&t, &p, 0, n, bytes), want);
	alarm(0);
	/* In any cuts. */
	for (uint32_t i = 0; i < 5; i++) {
		uint64_t cut = draw(&rng) % (n + 1);

		assert_int_equal(piece_fingerprint(&t, &p, 0, cut, bytes) +
					 piece_fingerprint(&t, &p, cut, n, bytes + cut),
				 want);
	}
	free(bytes);
}

TEST(the_first_piece_of_a_range_is_the_same_however_it_is_looked_for)
{
	struct place_pieces pieces;
	struct scene s;

	scene_make(&s, __func__);
	assert_int_equal(place_pieces_make(&s.c->table, &pieces), 0);
	for (uint32_t i = 0; i < 2000; i++) {
		uint32_t place = (uint32_t)(draw(&s.rng) % s.c->nfile);
		uint64_t lo = draw(&s.rng) % (s.c->file[place].raw_bytes + 100);
		uint64_t hi = lo + draw(&s.rng) % 300;
		char a[160], b[160];

		assert_string_equal(place_pieces_label(&s.c->table, place, lo, hi, a, sizeof a),
				    place_pieces_name(&pieces, place, lo, hi, b, sizeof b));
	}
	place_pieces_free(&pieces);
	scene_free(&s);
}
