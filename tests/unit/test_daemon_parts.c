/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_parts.c - which files of a step a restore opens: those with something of what is
 * wanted, and no others; all of them where nothing says which those are.
 */
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <stdatomic.h>

#define WORLD 64u
#define ELEMS 5000u

static struct io_ops ops;
static atomic_uint opened; /* parts, by different names */
static atomic_bool part_of[WORLD];

/* "w0003-....part" */
static int p_open(void *ctx, int dirfd, const char *name, int flags, uint32_t mode)
{
	size_t n = strlen(name);

	if (!(flags & O_CREAT) && n > 5 && !strcmp(name + n - 5, ".part") && name[0] == 'w') {
		uint32_t rank = (uint32_t)strtoul(name + 1, NULL, 10);

		if (rank < WORLD && !atomic_exchange(&part_of[rank], true))
			atomic_fetch_add(&opened, 1);
	}
	return io_ops_posix.open(ctx, dirfd, name, flags, mode);
}

static void forget(void)
{
	atomic_store(&opened, 0);
	for (uint32_t i = 0; i < WORLD; i++)
		atomic_store(&part_of[i], false);
}

static struct rank R[WORLD];

/* Tensor i lives at rank i alone; "all" is cut over all ranks. */
static void declare(struct rank *k, uint32_t tensor, uint32_t **ret)
{
	const uint64_t shape[] = { ELEMS };
	struct ckpt_placement only = { .how = CKPT_ONLY, .split_factor = tensor };
	struct ckpt_local local;
	char name[16];
	struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_U32, .component = "m", .ndim = 1,
				   .mesh = k->mesh_id, .nplace = 1, .shape = shape, .place = &only,
				   .local = &local);
	void *mem;

	snprintf(name, sizeof name, "t%02u", tensor);
	t.name = name;
	if (k->world == 1)
		t.nplace = 0;
	MUST_OK(ckpt_alloc(k->c, ELEMS * 4, &mem, &k->err), &k->err);
	local = (struct ckpt_local){ .ptr = mem };
	t.nlocal = k->world == 1 || k->rank == tensor;
	MUST_OK(ckpt_tensor_add(k->c, &t, NULL, &k->err), &k->err);
	*ret = mem;
}

static void save_all(void)
{
	struct plan_of_job p = plan("parts", "fsdp=64", .fresh = true);
	struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_FINAL };

	for (uint32_t r = 0; r < WORLD; r++) {
		uint32_t *at;

		must_attach(&R[r], &p, r);
		for (uint32_t i = 0; i < WORLD; i++)
			declare(&R[r], (i + r + 1) % WORLD, &at); /* its own one last */
		memset(at, (int)r + 1, ELEMS * 4);
	}
	for (uint32_t r = 0; r < WORLD; r++)
		(void)ckpt_seal(R[r].c, 0, &R[r].err);
	for (uint32_t r = 0; r < WORLD; r++)
		must_seal(&R[r]);
	for (uint32_t r = 0; r < WORLD; r++)
		MUST_BE(ckpt_snapshot(R[r].c, 1, &mark), 0);
	must_wait(&R[0], 1, CKPT_COMMITTED);
	ranks_close(R, WORLD);
}

TEST(a_restore_opens_the_parts_that_it_needs)
{
	struct plan_of_job p = plan("parts", "fsdp=1");
	uint32_t *at;

	ops = io_ops_posix;
	ops.open = p_open;
	host_start(&H, &ops);
	save_all();
	must_attach(&K, &p, 0);
	declare(&K, 17, &at);
	declare(&K, 40, &at);
	must_seal(&K);
	forget();
	must_restore(&K, 1, CKPT_FROM_DISK);
	for (uint32_t i = 0; i < ELEMS; i++)
		assert_int_equal(at[i], 41 * 0x01010101u);
	assert_int_equal(K.got.ntensor, 2);
	assert_int_equal(K.got.nunused, WORLD - 2);
	assert_int_equal(K.got.world_saved, WORLD);
	assert_true(atomic_load(&part_of[17]) && atomic_load(&part_of[40]));
	assert_int_equal(atomic_load(&opened), 2);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
