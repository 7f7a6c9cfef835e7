/* SPDX-License-Identifier: Apache-2.0 */
/*
 * peer.h - the library's side of the protocol by hand, for tests that do what libckpt does not: one
 * rank that has attached and declared, with its pages and slots mapped.
 */
#ifndef TESTS_LIB_PEER_H
#define TESTS_LIB_PEER_H
#include "ckpt/wire/shared.h"
#include "tests/lib/declaration.h"
#include "tests/lib/host.h"
#include "tests/lib/row.h"

struct peer {
	struct asker a;
	int store, segment_fd, bell;
	uint8_t *segment;
	struct shared_rank *rank;
	struct shared_job *job;
	uint8_t *slot[2];
	uint64_t slot_bytes;
};

#define PEER_BYTES (256u << 10)

static inline uint32_t peer_hello(struct peer *e, const char *job, uint32_t world)
{
	static uint64_t generation = 1000; /* its process lives, though it goes without a word */
	struct wire_hello h = { .world = world, .nslot = 2, .generation = ++generation };
	struct wire_welcome w;
	struct ckpt_err err = { 0 };
	int fd[WIRE_FDS_MAX];
	uint32_t type;
	void *p;

	*e = (struct peer){ .a.sock = ask_connect(H.socket), .bell = -1, .segment_fd = -1 };
	if (mkdir(H.store, 0700) < 0)
		MUST(errno == EEXIST);
	e->store = open(H.store, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	snprintf(h.job, sizeof h.job, "%s", job);
	type = ask_fd(&e->a, &h, WIRE_HELLO, sizeof h, e->store, &w, sizeof w, fd);
	if (type != WIRE_WELCOME)
		return type;
	MUST_OK(wire_map(fd[0], sizeof *e->rank, 0, &p, &err), &err);
	e->rank = p;
	MUST_OK(wire_map(fd[1], sizeof *e->job, 0, &p, &err), &err);
	e->job = p;
	e->bell = fd[2];
	(void)close(fd[0]);
	(void)close(fd[1]);
	return type;
}

/* One replicated tensor and a blob by value, in one segment. */
static inline void peer_declaration(void **ret, uint64_t *ret_len)
{
	const uint64_t shape[] = { 40, 1000 }, zero[] = { 0, 0 }, blob[] = { 164 };
	struct table_tensor w = ROW(.component = "m", .name = "w", .dtype = CKPT_F32,
				    .layout = TABLE_NONE, .rank = TABLE_NONE, .ndim = 2,
				    .shape = shape),
			    b = ROW(.component = "blob", .name = "rng", .dtype = CKPT_U8,
				    .layout = TABLE_NONE, .ndim = 1, .shape = blob,
				    .flags = TENSOR_BLOB);
	struct table_place place = { .name = "s", .bytes = PEER_BYTES, .rank = 0 };
	struct table t = { 0 };
	struct arena a = { 0 };
	struct ckpt_err err = { 0 };
	struct mesh mesh;
	struct indexset set;

	MUST_OK(mesh_parse("fsdp=1", &a, &mesh, &err), &err);
	MUST_OK(table_add_mesh(&t, &mesh, NULL, &err), &err);
	MUST_OK(table_add_place(&t, &place, NULL, &err), &err);
	MUST_OK(table_add_tensor(&t, &w, NULL, &err), &err);
	MUST_OK(table_add_tensor(&t, &b, NULL, &err), &err);
	MUST(indexset_box(2, zero, shape, &a, &set) == 0);
	MUST_OK(table_add_piece(&t, &(struct table_piece){ .tensor = 0, .set = set }, &err), &err);
	MUST(indexset_box(1, zero, blob, &a, &set) == 0);
	MUST_OK(table_add_piece(&t, &(struct table_piece){ .tensor = 1, .set = set, .off = 200000 },
				&err),
		&err);
	declaration_of(&t, ret, ret_len);
	arena_free(&a);
}

/* Attached, declared, with its slots mapped. */
static inline void peer_open(struct peer *e, const char *job)
{
	struct wire_segment seg = { .bytes = PEER_BYTES };
	struct wire_declare decl = { .epoch = 1 };
	struct wire_sealed sealed;
	struct ckpt_err err = { 0 };
	int fd, slot[WIRE_FDS_MAX];
	void *bytes, *p;

	MUST_BE(peer_hello(e, job, 1), WIRE_WELCOME);
	MUST_OK(wire_memfd("evil", PEER_BYTES, &e->segment_fd, &err), &err);
	MUST_OK(wire_map(e->segment_fd, PEER_BYTES, 0, &p, &err), &err);
	e->segment = p;
	MUST_BE(ask_fd(&e->a, &seg, WIRE_SEGMENT, sizeof seg, e->segment_fd, NULL, 0, NULL),
		WIRE_OK);
	peer_declaration(&bytes, &decl.bytes);
	MUST_OK(wire_memfd_of("decl", bytes, decl.bytes, &fd, &err), &err);
	free(bytes);
	if (ask_fd(&e->a, &decl, WIRE_DECLARE, sizeof decl, fd, &sealed, sizeof sealed, slot) !=
	    WIRE_SEALED)
		fail_msg("%s", e->a.refused.text);
	(void)close(fd);
	e->slot_bytes = sealed.slot_bytes;
	for (uint32_t i = 0; i < 2; i++) {
		MUST_OK(wire_map(slot[i], e->slot_bytes, 0, &p, &err), &err);
		e->slot[i] = p;
		(void)close(slot[i]);
	}
	ask_until(atomic_load(&e->job->ready_epoch) == 1);
}

static inline void peer_close(struct peer *e)
{
	if (e->segment)
		munmap(e->segment, PEER_BYTES);
	for (uint32_t i = 0; i < 2; i++)
		if (e->slot[i])
			munmap(e->slot[i], e->slot_bytes);
	if (e->rank)
		munmap(e->rank, sizeof *e->rank);
	if (e->job)
		munmap(e->job, sizeof *e->job);
	for (int *fd = (int[]){ e->a.sock, e->store, e->segment_fd, e->bell, -2 }; *fd != -2; fd++)
		if (*fd >= 0)
			(void)close(*fd);
}

static inline void peer_ring(const struct peer *e)
{
	const uint64_t one = 1;

	MUST(write(e->bell, &one, sizeof one) == sizeof one || errno == EAGAIN);
}
#endif
