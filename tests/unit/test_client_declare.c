/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_declare.c - what a handle keeps of its declarations: which tensor and blob has a
 * name, in which segment memory lies, what ckpt_snapshot copies by value. Without a daemon.
 */
#include "ckpt/base/pages.h"
#include "ckpt/base/util.h"
#include "ckpt/client/handle.h"
#include "tests/lib/row.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#define MANY 100000u
/* Of processor time, for which a search through all would need more than a minute. */
#define CEILING_S 20.0

static char dir[SCRATCH_MAX];
static ckpt *c;
static struct ckpt_err err;
static uint32_t mesh;
static float memory[4];

static int setup(void **state)
{
	uint32_t one = 1;
	char socket[96];
	struct ckpt_opts o = { .size = sizeof o, .job = "job", .store = dir, .world = 1 };

	(void)state;
	scratch_make(dir);
	snprintf(socket, sizeof socket, "%.80s/none", dir);
	o.socket = socket;
	assert_int_equal(ckpt_attach(&o, &c, &err), 0);
	assert_int_equal(ckpt_mesh(c, 1, (const char *const[]){ "x" }, &one, NULL, &mesh, &err), 0);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	(void)ckpt_detach(TAKE(c), 0);
	scratch_remove(dir);
	return 0;
}

static int add(const char *component, const char *name, uint32_t cls, const char *of,
	       uint32_t *ret_id)
{
	static const uint64_t four = 4;
	static const struct ckpt_placement whole = { .how = CKPT_REPLICATE };
	static const struct ckpt_local local = { .ptr = memory };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = of ? CKPT_BF16 : CKPT_F32, .cls = cls,
		    .component = component, .name = name, .of = of, .ndim = 1, .shape = &four,
		    .mesh = mesh, .nplace = 1, .place = &whole, .nlocal = 1, .local = &local);

	return ckpt_tensor_add(c, &t, ret_id, &err);
}

TEST(a_name_is_taken_until_its_tensor_is_dropped)
{
	uint32_t id, first;

	assert_int_equal(add("a", "bc", CKPT_STABLE, NULL, &first), 0);
	assert_int_equal(add("ab", "c", CKPT_STABLE, NULL, &id), 0);
	assert_int_equal(add("ab", "c", CKPT_STABLE, NULL, NULL), -EALREADY);
	assert_non_null(strstr(err.msg, "ab/c is declared twice"));
	for (uint32_t i = 0; i < 1000; i++) {
		assert_int_equal(ckpt_tensor_drop(c, id), 0);
		assert_int_equal(ckpt_tensor_drop(c, id), -EINVAL);
		assert_null(named_find(c, "ab/c", 2, "c"));
		assert_int_equal(add("ab", "c", CKPT_STABLE, NULL, &id), 0);
		assert_ptr_equal(named_find(c, "ab/c", 2, "c"), &c->tensor[id]);
		assert_int_equal(add("ab", "c", CKPT_STABLE, NULL, NULL), -EALREADY);
		assert_ptr_equal(named_find(c, "a", 1, "bc"), &c->tensor[first]);
	}
}

/* Of 2 elements of a row of `shape`, by rank 1 of 2. */
static int cut_add(const char *name, const uint64_t *shape, uint32_t two, const float *at,
		   uint32_t *ret_id)
{
	static const struct ckpt_placement cut = { .how = CKPT_SHARD };
	struct ckpt_local local = { .ptr = (void *)(uintptr_t)at };
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "model",
				   .name = name, .ndim = 1, .shape = shape, .mesh = two,
				   .nplace = 1, .place = &cut, .nlocal = 1, .local = &local);

	return ckpt_tensor_add(c, &t, ret_id, &err);
}

TEST(a_tensor_that_is_dropped_and_added_again_takes_no_more_room_and_has_its_new_layout)
{
	static const uint64_t shape[] = { 4, 6, 0 };
	uint32_t id, again, two, dim = 2;
	const uint32_t rank[] = { 1, 0 };
	size_t bytes = 0;

	c->world = 2;
	assert_int_equal(ckpt_mesh(c, 1, (const char *const[]){ "y" }, &dim, rank, &two, &err), 0);
	c->world = 1;
	assert_int_equal(cut_add("w", &shape[0], two, memory, &id), 0);
	assert_int_equal(cut_add("v", &shape[0], two, memory, NULL), 0);
	for (uint32_t i = 0; i < 10000; i++) {
		assert_int_equal(ckpt_tensor_drop(c, id), 0);
		assert_int_equal(cut_add("w", &shape[0], two, memory + i % 2, &again), 0);
		assert_int_equal(again, id);
		assert_ptr_equal(c->tensor[id].local->ptr, memory + i % 2);
		assert_true(i == 0 || c->arena.total_bytes == bytes);
		bytes = c->arena.total_bytes;
		if (i % 1000 == 0)
			assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
	}
	assert_int_equal(c->ntensor, 2);
	assert_true(c->tensor[id].share.numel == 2 && c->tensor[id].share.dim[0].run->start == 2);
	/* What is refused stays dropped, and is not in the way. */
	assert_int_equal(ckpt_tensor_drop(c, id), 0);
	assert_int_equal(cut_add("w", &shape[1], two, NULL, &again), -EINVAL);
	assert_null(named_find(c, "model", 5, "w"));
	assert_int_equal(ckpt_tensor_move(c, id, NULL, 0, &err), -EINVAL);
	assert_int_equal(cut_add("w", &shape[1], two, memory, &again), 0);
	assert_true(c->tensor[again].share.numel == 3 &&
		    c->tensor[again].share.dim[0].run->start == 3);
	assert_int_equal(cut_add("w", &shape[1], two, memory, NULL), -EALREADY);
	assert_int_equal(ckpt_tensor_drop(c, again), 0);
	assert_int_equal(cut_add("w", &shape[2], two, memory, &again), 0);
	assert_int_equal(c->tensor[again].share.numel, 0);
	assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
}

TEST(of_a_hundred_thousand_each_is_found_at_once)
{
	clock_t begun = clock();
	char name[32], of[64];
	uint64_t sum;

	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "layers.%u.weight", i);
		snprintf(of, sizeof of, "master/%s", name);
		assert_int_equal(add("model", name, CKPT_DERIVED, of, NULL), 0);
		assert_int_equal(add("master", name, CKPT_STABLE, NULL, NULL), 0);
	}
	assert_int_equal(add("model", name, CKPT_STABLE, NULL, NULL), -EALREADY);
	for (uint32_t i = 0; i < 2 * MANY; i++)
		assert_int_equal(ckpt_fingerprint(c, i, &sum), 0);
	for (uint32_t i = 0; i < MANY; i += 2) /* their masters */
		assert_int_equal(ckpt_tensor_drop(c, 2 * i + 1), 0);
	for (uint32_t i = 0; i < MANY; i++) {
		snprintf(name, sizeof name, "layers.%u.weight", i);
		assert_ptr_equal(named_find(c, "master", 6, name),
				 i % 2 ? &c->tensor[2 * i + 1] : NULL);
	}
	print_message("%.2f s\n", (double)(clock() - begun) / CLOCKS_PER_SEC);
	assert_true((double)(clock() - begun) / CLOCKS_PER_SEC < CEILING_S);
}

TEST(of_ten_thousand_blobs_each_name_is_taken_once)
{
	static const uint64_t len = 1;
	char name[32];

	for (uint32_t twice = 0; twice < 2; twice++)
		for (uint32_t i = 0; i < 10000; i++) {
			snprintf(name, sizeof name, "rng.%u", i);
			assert_int_equal(ckpt_blob_add(c, name, 0, memory, &len, 8, &err),
					 twice ? -EALREADY : 0);
		}
	assert_non_null(strstr(err.msg, "blob rng.9999 is declared twice"));
	assert_int_equal(c->nblob, 10000);
}

static const struct part_of *added_at(void *ptr, uint32_t cls)
{
	static const struct ckpt_placement whole = { .how = CKPT_REPLICATE };
	static uint64_t four = 4;
	static uint32_t n;
	char name[32];
	struct ckpt_local local = { .ptr = ptr };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "at", .cls = cls,
		    .name = name, .ndim = 1, .shape = &four, .mesh = mesh, .nplace = 1,
		    .place = &whole, .nlocal = 1, .local = &local);
	uint32_t id;

	snprintf(name, sizeof name, "%u", n++);
	assert_int_equal(ckpt_tensor_add(c, &t, &id, &err), 0);
	return c->tensor[id].local;
}

TEST(memory_is_found_in_the_segment_that_has_all_of_it)
{
	enum { N = 40 };
	static uint8_t *base[N];
	const struct part_of *p;
	uint64_t bytes;

	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(ckpt_alloc(c, 100, (void **)&base[i], &err), 0);
	for (uint32_t i = 0; i < N; i++) {
		bytes = c->seg[i].bytes;
		for (uint64_t off = 0; off < bytes; off += bytes - 16) {
			p = added_at(base[i] + off, CKPT_STABLE);
			assert_false(p->own);
			assert_int_equal(p->seg, i);
			assert_int_equal(p->off, off);
		}
		/* its end is in the next segment, or in none */
		assert_true(added_at(base[i] + bytes - 12, CKPT_STABLE)->own);
	}
	assert_true(added_at((void *)16, CKPT_STABLE)->own);
	assert_true(added_at((void *)(WIRE_OWN_BYTES - 64), CKPT_STABLE)->own);
	/* The library's own copies are not the trainer's memory. */
	(void)added_at((void *)16, CKPT_VOLATILE);
	assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
	assert_true(c->shadow < c->nseg);
	assert_true(added_at(c->seg[c->shadow].base, CKPT_STABLE)->own);
}

TEST(what_is_copied_by_value_is_the_newest_seals)
{
	static float big[64];
	const struct part_of *first, *second;

	for (uint32_t i = 0; i < 8; i++)
		(void)added_at(memory, i % 2 ? CKPT_STABLE : CKPT_SINK);
	first = added_at(big, CKPT_VOLATILE);
	assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
	assert_int_equal(c->nby_value, 1);
	assert_ptr_equal(c->by_value[0].part, first);
	second = added_at(big + 8, CKPT_VOLATILE);
	assert_int_equal(ckpt_tensor_drop(c, c->ntensor - 2), 0);
	assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
	assert_int_equal(c->nby_value, 1);
	assert_ptr_equal(c->by_value[0].part, second);
	big[8] = 3;
	shadow_copy(c, false);
	assert_true(*(float *)((uint8_t *)c->seg[second->seg].base + second->off) == 3);
}

TEST(split_factors_of_torch_become_an_order_or_are_refused_with_tensor_and_placement)
{
	static const uint32_t dim[] = { 3, 2 }, rank[] = { 1, 2, 3, 4, 0, 5 };
	static const uint64_t seven = 7;
	struct ckpt_placement place[] = {
		{ .how = CKPT_SHARD, .split_factor = 2 },
		{ .how = CKPT_SHARD, .mesh_dim = 1 },
	};
	struct ckpt_local local = { .ptr = memory };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .dtype = CKPT_F32, .component = "model", .name = "w",
		    .ndim = 1, .shape = &seven, .nplace = 2, .place = place, .nlocal = 1,
		    .local = &local, .mode = CKPT_TORCH_ORDER);
	const struct declared *d;
	uint32_t id, world = c->world;

	c->world = 6;
	assert_int_equal(
		ckpt_mesh(c, 2, (const char *const[]){ "dp", "tp" }, dim, rank, &t.mesh, &err), 0);
	c->world = world;
	place[0].split_factor = 3;
	assert_int_equal(ckpt_tensor_add(c, &t, &id, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "model/w: placement 0 (mesh dimension \"dp\"): its split "
					"factor 3"));
	assert_non_null(strstr(err.msg, "CKPT_CHUNK reads them literally"));
	place[0].split_factor = 2;
	place[1].tensor_dim = 1;
	assert_int_equal(ckpt_tensor_add(c, &t, &id, &err), -EINVAL);
	assert_non_null(strstr(err.msg, "model/w: placement 1"));
	place[1].tensor_dim = 0;
	assert_int_equal(ckpt_tensor_add(c, &t, &id, &err), 0);
	d = &c->tensor[id];
	assert_true(d->t.mode == CKPT_CHUNK && d->t.nplace == 2);
	assert_true(d->t.place[0].mesh_dim == 1 && d->t.place[1].mesh_dim == 0);
	assert_true(d->t.place[0].split_factor == 0 && d->t.place[1].split_factor == 0);
	/* Rank 0 is at (2, 0): nothing is left of the rows of tp 0 (docs/LAYOUTS.md). */
	assert_int_equal(d->share.numel, 0);
}

TEST(a_tensor_that_moves_at_each_step_needs_no_more_memory)
{
	const struct part_of *p = added_at(memory, CKPT_VOLATILE);
	struct ckpt_local at = { .ptr = memory };
	uint32_t id = c->ntensor - 1;
	static float room[64];
	size_t bytes = c->arena.total_bytes;

	assert_ptr_equal(p, c->tensor[id].local);
	for (uint32_t i = 0; i < 10000; i++) {
		at.ptr = room + i % 8;
		assert_int_equal(ckpt_tensor_move(c, id, &at, 1, &err), 0);
		assert_ptr_equal(c->tensor[id].local->ptr, at.ptr);
		if (i % 100)
			continue;
		assert_non_null(c->retired);
		assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
		assert_null(c->retired);
		assert_ptr_equal(c->by_value[0].part->ptr, at.ptr);
	}
	assert_int_equal(c->arena.total_bytes, bytes);
	/* What cannot be leaves it where it is. */
	at.ptr = NULL;
	assert_int_equal(ckpt_tensor_move(c, id, &at, 1, &err), -EINVAL);
	assert_int_equal(ckpt_tensor_move(c, id, NULL, 0, &err), -EINVAL);
	assert_ptr_equal(c->tensor[id].local->ptr, room + 9999 % 8);
}

TEST(how_long_a_blob_is_is_read_once_for_a_snapshot)
{
	static char bytes[64] = "twenty bytes of text";
	static uint64_t len = 20;
	const uint8_t *copy;
	le64 is;

	assert_int_equal(ckpt_blob_add(c, "grows", 0, bytes, &len, 20, &err), 0);
	assert_int_equal(ckpt_seal(c, 0, &err), CKPT_SKIPPED);
	copy = (uint8_t *)c->seg[c->shadow].base + c->blob[0].off;
	assert_null(blobs_look(c));
	len = 64; /* another thread of the trainer appends */
	blobs_by_value(c);
	memcpy(&is, copy, sizeof is);
	assert_int_equal(le64_get(is), 20);
	assert_memory_equal(copy + BLOB_HEAD, bytes, 20);
	assert_int_equal(copy[BLOB_HEAD + 20], 0);
	assert_ptr_equal(blobs_look(c), &c->blob[0]);
	assert_int_equal(c->blob[0].now, 64);
}

TEST(memory_of_ckpt_alloc_is_there_or_it_is_refused)
{
	const uint64_t bytes = 5 * MIB + 4096;
	unsigned char in[5 * 256 + 1];
	void *p, *q = NULL;

	assert_int_equal(ckpt_alloc(c, bytes, &p, &err), 0);
	assert_int_equal(mincore(p, bytes, in), 0);
	for (uint32_t i = 0; i < sizeof in; i++)
		assert_true(in[i] & 1);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(((uint8_t *)p)[i], 0);
	/* What would be overcommitted is refused, and nothing is lost. */
	assert_int_equal(ckpt_alloc(c, pages_available() + MIB, &q, &err), -ENOMEM);
	assert_non_null(strstr(err.msg, "no memory for"));
	assert_int_equal(ckpt_alloc(c, 4096, &q, &err), 0);
	memset(q, 1, 4096);
}

UNIT(.setup = setup, .teardown = teardown);
