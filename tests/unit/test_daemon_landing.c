/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_landing.c - a restore into memory that only its process may write: the daemon's
 * windows, emptied by hand or by the library's own code (ckpt/client/landing.c). Ranks speak the
 * protocol themselves, with windows so small that a small state goes through dozens of them. Where
 * the bytes lie is what a trainer's may: dense, with gaps, transposed, in hundreds of small
 * tensors.
 */
#include "tests/lib/declaration.h"
#include "tests/lib/host.h"
#include "ckpt/client/handle.h"
#include "ckpt/client/landing.h"
#include "ckpt/spread/spread.h"
#include "ckpt/wire/shared.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include <poll.h>
#include <stdatomic.h>

#define SMALL 300u /* tensors of few elements */
#define BIG 3u
#define TENSORS (BIG + SMALL)
#define ROWS 240u
#define COLS 700u
#define NOTHING 0x5au

static uint32_t value(uint32_t tensor, uint64_t row, uint64_t col, uint64_t step)
{
	return (uint32_t)((tensor * 7919u + row * 104729u + col * 31u + step * 1000003u) | 1u);
}

static uint64_t rows_of(uint32_t tensor)
{
	return tensor < BIG ? ROWS : 2 + tensor % 5;
}

static uint64_t cols_of(uint32_t tensor)
{
	return tensor < BIG ? COLS : 1 + tensor % 9;
}

static const char *name_of(uint32_t tensor, char buf[16])
{
	snprintf(buf, 16, "t%03u", tensor);
	return buf;
}

/* --- what is saved: by the library --- */
static void save_steps_of(const char *job, uint64_t first, uint64_t last, uint32_t ntensor)
{
	struct plan_of_job p = plan(job, "fsdp=1", .fresh = false);
	struct rank k = { 0 };
	uint32_t *at[TENSORS];
	uint64_t bytes = 0;
	void *mem;

	must_attach(&k, &p, 0);
	for (uint32_t i = 0; i < ntensor; i++)
		bytes += align_up(rows_of(i) * cols_of(i) * 4, 64);
	MUST_OK(ckpt_alloc(k.c, bytes, &mem, &k.err), &k.err);
	for (uint32_t i = 0; i < ntensor; i++) {
		const uint64_t shape[] = { rows_of(i), cols_of(i) };
		struct ckpt_local local = { .ptr = mem };
		char name[16];
		struct ckpt_tensor t = ROW(.size = sizeof t, .dtype = CKPT_U32, .component = "m",
					   .name = name_of(i, name), .ndim = 2, .mesh = k.mesh_id,
					   .nlocal = 1, .shape = shape, .local = &local);

		at[i] = mem;
		mem = (uint8_t *)mem + align_up(shape[0] * shape[1] * 4, 64);
		MUST_OK(ckpt_tensor_add(k.c, &t, NULL, &k.err), &k.err);
	}
	must_seal(&k);
	(void)rank_restore(&k, CKPT_LATEST, CKPT_DRY_RUN);
	MUST_BE(ckpt_fresh(k.c), 0);
	for (uint64_t step = first; step <= last; step++) {
		struct ckpt_mark mark = { .size = sizeof mark, .flags = CKPT_PERSIST };

		for (uint32_t i = 0; i < ntensor; i++)
			for (uint64_t e = 0; e < rows_of(i) * cols_of(i); e++)
				at[i][e] = value(i, e / cols_of(i), e % cols_of(i), step);
		MUST_BE(ckpt_snapshot(k.c, step, &mark), 0);
		must_wait(&k, step, CKPT_COMMITTED);
		must_guard(&k);
	}
	rank_close(&k, 0);
}

/* --- who restores: the protocol by hand --- */
struct raw {
	struct asker a;
	uint32_t rank, world;
	struct shared_job *job;
	struct shared_rank *page;
	int store, bell;
	uint8_t *mem; /* of all its tensors */
	uint64_t bytes;
	uint64_t at[TENSORS];		     /* in mem */
	int64_t stride[TENSORS][2];	     /* in elements */
	uint64_t first[TENSORS], n[TENSORS]; /* of the rows */
	struct landings to;
	uint32_t rounds;
	/* what the test does with a LANDED before it is answered; NULL: nothing */
	int (*landed)(struct raw *r, const struct wire_landed *m);
	uint32_t type; /* of the last answer */
	struct wire_restored got;
	struct wire_restore want;
};

/* Tensor 0 is dense, 1 has gaps behind its rows, 2 is transposed. */
static void lay_out(struct raw *r, uint32_t ntensor)
{
	for (uint32_t i = 0; i < ntensor; i++) {
		uint64_t rows = rows_of(i), cols = cols_of(i);

		r->first[i] = rows * r->rank / r->world;
		r->n[i] = rows * (r->rank + 1) / r->world - r->first[i];
		r->at[i] = r->bytes;
		r->stride[i][0] = i == 1 ? (int64_t)cols + 13 : i == 2 ? 1 : (int64_t)cols;
		r->stride[i][1] = i == 2 ? (int64_t)r->n[i] + 3 : 1;
		r->bytes += align_up((r->n[i] + 3) * (cols + 13) * 4, 64);
	}
	r->mem = malloc(r->bytes);
	MUST(r->mem);
	memset(r->mem, NOTHING, r->bytes);
}

static void raw_declaration(struct raw *r, uint32_t ntensor, void **ret, uint64_t *ret_len)
{
	struct table_place place = { .name = "own", .bytes = WIRE_OWN_BYTES, .rank = r->rank };
	struct table t = { 0 };
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh mesh;

	MUST_OK(mesh_parse(r->world == 2 ? "fsdp=2" : "fsdp=1", &a, &mesh, &err), &err);
	MUST_OK(table_add_mesh(&t, &mesh, NULL, &err), &err);
	MUST_OK(table_add_place(&t, &place, NULL, &err), &err);
	for (uint32_t i = 0; i < ntensor; i++) {
		const uint64_t shape[] = { rows_of(i), cols_of(i) }, start[] = { r->first[i], 0 },
			       extent[] = { r->n[i], cols_of(i) };
		char name[16];
		struct table_tensor x =
			ROW(.component = "m", .name = name_of(i, name), .of = "", .dtype = CKPT_U32,
			    .elem_bytes = 4, .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 2,
			    .shape = shape);
		struct table_piece p = { .rank = r->rank,
					 .off = (uintptr_t)r->mem + r->at[i],
					 .stride = i == 1 || i == 2 ? r->stride[i] : NULL };

		MUST_OK(table_add_tensor(&t, &x, &p.tensor, &err), &err);
		if (!r->n[i])
			continue;
		MUST(indexset_box(2, start, extent, &a, &p.set) == 0);
		MUST_OK(table_add_piece(&t, &p, &err), &err);
	}
	declaration_of(&t, ret, ret_len);
	arena_free(&a);
}

static void raw_open(struct raw *r, const char *job, uint32_t rank, uint32_t world,
		     uint32_t ntensor)
{
	static uint64_t generation = 1000; /* the process of the ranks before lives */
	struct wire_hello h = {
		.rank = rank, .world = world, .nslot = 2, .generation = generation += rank == 0
	};
	struct wire_declare decl = { .epoch = 1 };
	struct wire_sealed sealed;
	struct wire_welcome w;
	struct ckpt_err err = { 0 };
	int fd[WIRE_FDS_MAX];
	void *p;

	*r = (struct raw){ .a.sock = ask_connect(H.socket), .rank = rank, .world = world };
	r->store = open(H.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(h.job, sizeof h.job, "%s", job);
	if (ask_fd(&r->a, &h, WIRE_HELLO, sizeof h, r->store, &w, sizeof w, fd) != WIRE_WELCOME)
		fail_msg("%s", r->a.refused.text);
	MUST_OK(wire_map(fd[0], sizeof *r->page, 0, &p, &err), &err);
	r->page = p;
	MUST_OK(wire_map(fd[1], sizeof *r->job, 0, &p, &err), &err);
	r->job = p;
	r->bell = fd[2];
	(void)close(fd[0]);
	(void)close(fd[1]);
	lay_out(r, ntensor);
	raw_declaration(r, ntensor, &p, &decl.bytes);
	MUST_OK(wire_memfd_of("decl", p, decl.bytes, fd, &err), &err);
	free(p);
	if (ask_fd(&r->a, &decl, WIRE_DECLARE, sizeof decl, fd[0], &sealed, sizeof sealed, NULL) !=
	    WIRE_SEALED)
		fail_msg("%s", r->a.refused.text);
	(void)close(fd[0]);
	r->to = (struct landings){ .span = calloc(1, sizeof *r->to.span),
				   .nspan = 1,
				   .fd = { -1, -1 } };
	*r->to.span = (struct source_span){ (uintptr_t)r->mem, (uintptr_t)r->mem + r->bytes, 0 };
	r->want = (struct wire_restore){ .epoch = 1, .step = CKPT_LATEST };
}

static void raw_close(struct raw *r)
{
	landings_end(&r->to);
	munmap(r->job, sizeof *r->job);
	munmap(r->page, sizeof *r->page);
	(void)close(r->store);
	(void)close(r->bell);
	if (r->a.sock >= 0)
		(void)close(r->a.sock);
	free(r->mem);
}

static void *raw_restore(void *arg)
{
	struct raw *r = arg;

	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	int fd[WIRE_FDS_MAX];

	for (uint32_t i = 0; i < 2; i++)
		if (r->to.fd[i] >= 0)
			(void)close(TAKE_FD(r->to.fd[i]));
	r->rounds = 0;
	ask_send(&r->a, &r->want, WIRE_RESTORE, sizeof r->want);
	while ((r->type = ask_answer(&r->a, in, sizeof in, fd)) == WIRE_LANDED) {
		struct wire_land land = { 0 };
		struct wire_landed m;

		memcpy(&m, in, sizeof m);
		MUST_BE(m.round, ++r->rounds);
		MUST((m.round == 1) == (fd[0] >= 0 && fd[1] >= 0));
		land.round = m.round;
		if (fd[0] >= 0) {
			r->to.fd[0] = TAKE_FD(fd[0]);
			r->to.fd[1] = TAKE_FD(fd[1]);
		}
		if (r->landed)
			land.code = r->landed(r, &m);
		if (!land.code)
			land.code = landing_take(&r->to, &m, fd);
		if (land.code == 1) /* the test has ended the connection */
			return NULL;
		ask_send(&r->a, &land, WIRE_LAND, sizeof land);
	}
	if (r->type == WIRE_RESTORED)
		memcpy(&r->got, in, sizeof r->got);
	wire_close_fds(fd, WIRE_FDS_MAX);
	return NULL;
}

static void raw_restore_all(struct raw *r, uint32_t n)
{
	pthread_t t[2];

	for (uint32_t i = 0; i < n; i++)
		MUST(pthread_create(&t[i], NULL, raw_restore, &r[i]) == 0);
	for (uint32_t i = 0; i < n; i++)
		pthread_join(t[i], NULL);
}

/* Every element of the tensors [from, to) is that step's (0: untouched), and every byte between is
 * as it was. */
static void must_hold(const struct raw *r, uint32_t ntensor, uint32_t from, uint32_t to,
		      uint64_t step)
{
	uint8_t *seen = calloc(1, r->bytes);

	for (uint32_t i = 0; i < ntensor; i++)
		for (uint64_t row = 0; row < r->n[i]; row++)
			for (uint64_t col = 0; col < cols_of(i); col++) {
				uint64_t at = r->at[i] + 4 * (row * (uint64_t)r->stride[i][0] +
							      col * (uint64_t)r->stride[i][1]);
				bool there = step && i >= from && i < to;
				uint32_t is, want = there ? value(i, r->first[i] + row, col, step)
							  : NOTHING * 0x01010101u;

				memcpy(&is, r->mem + at, 4);
				memset(seen + at, 1, 4);
				if (is != want)
					fail_msg("rank %u tensor %u [%lu, %lu]: %x, not %x",
						 r->rank, i, row, col, is, want);
			}
	for (uint64_t i = 0; i < r->bytes; i++)
		if (!seen[i] && r->mem[i] != NOTHING)
			fail_msg("rank %u: byte %lu between the tensors was written", r->rank, i);
	free(seen);
}

static void start(void)
{
	H.opts.landing_bytes = 192 << 10;
	host_start(&H, NULL);
}

static struct raw R[2];

TEST(own_memory_is_restored_whatever_its_shape_from_memory_and_from_disk)
{
	start();
	save_steps_of("own", 1, 2, TENSORS);
	for (uint32_t world = 1; world <= 2; world++) {
		for (uint32_t r = 0; r < world; r++)
			raw_open(&R[r], "own", r, world, TENSORS);
		for (uint32_t disk = 0; disk < 2; disk++) {
			for (uint32_t r = 0; r < world; r++) {
				memset(R[r].mem, NOTHING, R[r].bytes);
				R[r].want.flags = disk ? CKPT_FROM_DISK : CKPT_FROM_MEMORY;
			}
			raw_restore_all(R, world);
			for (uint32_t r = 0; r < world; r++) {
				if (R[r].type != WIRE_RESTORED)
					fail_msg("%s", R[r].a.refused.text);
				assert_int_equal(R[r].got.step, 2);
				assert_int_equal(R[r].got.where, 1 + disk);
				assert_int_equal(R[r].got.ntensor, TENSORS);
				assert_true(R[r].rounds > 12 / world);
				must_hold(&R[r], TENSORS, 0, TENSORS, 2);
			}
		}
		for (uint32_t r = 0; r < world; r++)
			raw_close(&R[r]);
	}
}

/* --- whose a window is --- */
static int look_twice(struct raw *r, const struct wire_landed *m)
{
	uint8_t *a = malloc(2 * m->bytes), *b = a + m->bytes;

	MUST(a && pread(r->to.fd[m->window], a, m->bytes, 0) == (ssize_t)m->bytes);
	(void)poll(NULL, 0, 20);
	MUST(pread(r->to.fd[m->window], b, m->bytes, 0) == (ssize_t)m->bytes);
	MUST(memcmp(a, b, m->bytes) == 0);
	free(a);
	return 0;
}

TEST(a_window_is_not_written_before_it_is_handed_back)
{
	start();
	save_steps_of("own", 1, 1, TENSORS);
	raw_open(&R[0], "own", 0, 1, TENSORS);
	R[0].landed = look_twice;
	raw_restore_all(R, 1);
	assert_int_equal(R[0].type, WIRE_RESTORED);
	must_hold(&R[0], TENSORS, 0, TENSORS, 1);
	raw_close(&R[0]);
}

/* --- failures --- */
static int fault = -EFAULT;

static int says_fault(struct raw *r, const struct wire_landed *m)
{
	return r->rank == 1 && m->round == 3 ? fault : 0;
}

static int says_nothing(struct raw *r, const struct wire_landed *m)
{
	if (r->rank != 1 || m->round != 3)
		return 0;
	shutdown(r->a.sock, SHUT_RDWR);
	return 1;
}

TEST(memory_that_cannot_be_written_fails_the_restore_of_every_rank)
{
	/* Of a step nothing is wrong, whatever the library says of its memory. */
	static const int code[] = { -EFAULT, -EPROTO, -EIO };

	start();
	save_steps_of("own", 1, 2, TENSORS);
	for (uint32_t r = 0; r < 2; r++)
		raw_open(&R[r], "own", r, 2, TENSORS);
	for (uint32_t i = 0; i < ARRAY_LEN(code); i++) {
		fault = code[i];
		R[0].landed = R[1].landed = says_fault;
		raw_restore_all(R, 2);
		for (uint32_t r = 0; r < 2; r++) {
			assert_int_equal(R[r].type, WIRE_REFUSE);
			assert_int_equal(R[r].a.refused.code, -EFAULT);
			assert_non_null(strstr(R[r].a.refused.text, "rank 1 could not write"));
			R[r].landed = NULL;
		}
	}
	raw_restore_all(R, 2); /* mended */
	for (uint32_t r = 0; r < 2; r++) {
		assert_int_equal(R[r].type, WIRE_RESTORED);
		must_hold(&R[r], TENSORS, 0, TENSORS, 2);
		raw_close(&R[r]);
	}
}

TEST(a_rank_that_goes_amid_it_ends_it_for_all)
{
	start();
	save_steps_of("own", 1, 1, TENSORS);
	for (uint32_t r = 0; r < 2; r++) {
		raw_open(&R[r], "own", r, 2, TENSORS);
		R[r].landed = says_nothing;
	}
	raw_restore_all(R, 2);
	assert_int_equal(R[0].type, WIRE_REFUSE);
	assert_int_equal(R[0].a.refused.code, -ECONNRESET);
	for (uint32_t r = 0; r < 2; r++)
		raw_close(&R[r]);
	raw_open(&R[0], "own", 0, 1, TENSORS);
	raw_restore_all(R, 1);
	assert_int_equal(R[0].type, WIRE_RESTORED);
	raw_close(&R[0]);
}

TEST(a_land_that_nobody_asked_for_is_refused)
{
	struct wire_land land = { .round = 1 };

	start();
	save_steps_of("own", 1, 1, TENSORS);
	raw_open(&R[0], "own", 0, 1, TENSORS);
	ask_refused(&R[0].a, &land, WIRE_LAND, sizeof land, -EPROTO);
	raw_restore_all(R, 1);
	assert_int_equal(R[0].type, WIRE_RESTORED);
	ask_refused(&R[0].a, &land, WIRE_LAND, sizeof land, -EPROTO);
	raw_close(&R[0]);
}

/* What an exchange between ranks has not brought (WIRE_MISSING): of tensors that they do not divide
 * that is nothing. */
TEST(a_restore_of_what_is_missing_must_make_sense_and_writes_nothing_else)
{
	const struct wire_restore good = { .flags = WIRE_MISSING,
					   .epoch = 1,
					   .step = 1,
					   .chunk_bytes = SPREAD_CHUNK_MIN,
					   .rounds = UINT64_MAX };
	struct wire_restore bad[] = { good, good, good, good, good, good };

	bad[0].step = CKPT_LATEST;
	bad[1].chunk_bytes--;
	bad[2].chunk_bytes = SPREAD_CHUNK_MAX + 1;
	bad[3].flags |= WIRE_DIVIDED;
	bad[4].flags |= CKPT_LENIENT;
	bad[5].flags |= CKPT_PEEK;
	start();
	save_steps_of("own", 1, 1, TENSORS);
	raw_open(&R[0], "own", 0, 1, TENSORS);
	for (uint32_t i = 0; i < ARRAY_LEN(bad); i++)
		ask_refused(&R[0].a, &bad[i], WIRE_RESTORE, sizeof bad[i], -EPROTO);
	for (uint64_t rounds = 0; rounds < 2; rounds++) {
		R[0].want = good;
		R[0].want.rounds *= rounds;
		raw_restore_all(R, 1);
		assert_int_equal(R[0].type, WIRE_RESTORED);
		must_hold(&R[0], TENSORS, 0, 0, 0);
	}
	R[0].want = (struct wire_restore){ .epoch = 1, .step = 1 };
	raw_restore_all(R, 1);
	must_hold(&R[0], TENSORS, 0, TENSORS, 1);
	raw_close(&R[0]);
}

/* A byte of the last MiB: most windows have landed before it is found. */
static void damage_late(const char *job, uint64_t step)
{
	struct checkpoint *c = host_open(&H, job, step);
	int dir = host_step_fd(&H, job, step),
	    fd = openat(dir, c->file[0].name, O_RDWR | O_CLOEXEC);
	const struct chunk *k = &c->file[0].chunk[c->file[0].nchunk - 1];
	uint8_t b;

	assert_true(fd >= 0 && c->file[0].nchunk > 1 && k->raw_len);
	assert_int_equal(pread(fd, &b, 1, (off_t)k->off + 5), 1);
	b ^= 4;
	assert_int_equal(pwrite(fd, &b, 1, (off_t)k->off + 5), 1);
	(void)close(fd);
	(void)close(dir);
	checkpoint_free(c);
}

TEST(damage_that_is_found_amid_it_goes_back_to_the_older_step)
{
	start();
	save_steps_of("own", 1, 2, TENSORS);
	damage_late("own", 2);
	host_restart(&H);
	for (uint32_t r = 0; r < 2; r++)
		raw_open(&R[r], "own", r, 2, TENSORS);
	raw_restore_all(R, 2);
	for (uint32_t r = 0; r < 2; r++) {
		if (R[r].type != WIRE_RESTORED)
			fail_msg("%s", R[r].a.refused.text);
		assert_int_equal(R[r].got.step, 1);
		assert_int_equal(R[r].got.npassed, 1);
		must_hold(&R[r], TENSORS, 0, TENSORS, 1);
		raw_close(&R[r]);
	}
	assert_int_equal(host_count(&H, "own", STORE_QUARANTINED), 1);
}

TEST(lenient_leaves_alone_what_the_step_lacks_and_a_dry_run_all)
{
	start();
	save_steps_of("own", 1, 1, 200);
	raw_open(&R[0], "own", 0, 1, TENSORS);
	raw_restore_all(R, 1);
	assert_int_equal(R[0].a.refused.code, -EMEDIUMTYPE);
	must_hold(&R[0], TENSORS, 0, 0, 0);
	R[0].want.flags = CKPT_LENIENT | CKPT_DRY_RUN;
	raw_restore_all(R, 1);
	assert_int_equal(R[0].type, WIRE_RESTORED);
	assert_int_equal(R[0].rounds, 0);
	must_hold(&R[0], TENSORS, 0, 0, 0);
	R[0].want.flags = CKPT_LENIENT;
	raw_restore_all(R, 1);
	assert_int_equal(R[0].type, WIRE_RESTORED);
	assert_int_equal(R[0].got.nmissing, TENSORS - 200);
	must_hold(&R[0], TENSORS, 0, 200, 1);
	raw_close(&R[0]);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
