/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_declare.c - which tensor has a name: of many, dropped and declared again. Without a daemon.
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
