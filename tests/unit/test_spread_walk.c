/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_spread_walk.c - ranks as processes exchange their tensors over sockets: random meshes and
 * layouts on both sides, memory with and without strides. Every element is a function of its tensor
 * and its global index. And what happens to all if one of them dies, stops, or has another
 * schedule.
 */
#include "tests/unit/test_spread_job.h"
#include "ckpt/spread/spread_socket.h"
#include "tests/lib/says.h"
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* --- ranks --- */

struct outcome { /* shared */
	bool ready, ended;
	int rc;
	uint64_t wrong, rounds, ns, out_bytes, in_bytes;
	uint64_t unwritten, missing, missing_all, missing_none; /* bytes */
	struct ckpt_err err;
};

/* A rank of this number does something in round `round`. */
struct fault {
	enum { NONE, DIES, STOPS, OTHER_CHUNKS, LEAVES, CUT_OFF, FOREIGN, NO_SEGMENT } kind;
	uint32_t rank;
	uint64_t round;
};

static struct outcome *outcome; /* [WORLD_MAX] */
static struct fault fault;

struct faulty {
	const struct spread_calls *real;
	struct spread_calls calls;
	const int *fd;
};
static struct faulty faulty;

/* To all, behind what they have had. */
static void all_send(const struct spread_transport *t, const void *bytes, size_t n)
{
	for (uint32_t i = 0; i < t->world; i++)
		if (faulty.fd[i] >= 0)
			(void)!send(faulty.fd[i], bytes, n, MSG_NOSIGNAL);
}

static void foreign_send(const struct spread_transport *t)
{
	static const char text[] = "GET / HTTP/1.1\r\nHost: rank\r\nAccept: */*\r\n\r\n";
	const uint64_t frame[] = { UINT64_C(0x0032524853534b43), t->round, SPREAD_CHUNK_MIN, 0, 0 };

	if (fault.kind == CUT_OFF) {
		all_send(t, "CKSPAD2", 7);
		_exit(0);
	}
	if (fault.kind == FOREIGN)
		all_send(t, text, sizeof text - 1);
	if (fault.kind == NO_SEGMENT)
		all_send(t, frame, sizeof frame);
}

static int faulty_round_end(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err)
{
	if (t->round == fault.round && fault.kind == DIES)
		_exit(0);
	if (t->round == fault.round && fault.kind == STOPS)
		(void)raise(SIGSTOP);
	if (t->round == fault.round && fault.kind == LEAVES)
		return ckpt_error(err, -EIO, "rank %u does not want to", t->rank);
	if (t->round == fault.round)
		foreign_send(t);
	return faulty.real->round_end(t, deadline_ns, err);
}

static void fault_plant(struct spread_transport *t, const int *fd)
{
	faulty.fd = fd;
	faulty.real = t->calls;
	faulty.calls = *t->calls;
	faulty.calls.round_end = faulty_round_end;
	t->calls = &faulty.calls;
}

static uint64_t staging_make(struct spread_transport *t, uint64_t bytes, bool shared)
{
	struct spread_segment segment = { memfd_create("staging", MFD_ALLOW_SEALING), 0, bytes };
	void *p;

	assert_true(segment.fd >= 0 && ftruncate(segment.fd, (off_t)bytes) == 0);
	assert_int_equal(fcntl(segment.fd, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, segment.fd, 0);
	assert_true(p != MAP_FAILED);
	segment.base = (uintptr_t)p;
	if (shared)
		spread_socket_share(t, &segment, 1);
	return segment.base;
}

static int exchange(const struct job *j, struct spread *s, struct spread_transport *t,
		    struct memory *from, struct memory *to, struct ckpt_err *err)
{
	bool other = fault.kind == OTHER_CHUNKS && fault.rank == t->rank;
	struct spread_how how = { .chunk_bytes = j->chunk_bytes * (other ? 2 : 1),
				  .round_ns = (fault.kind == STOPS ? 4 : 15) * NS_PER_S,
				  .rounds = j->scheduled ? &j->rounds : NULL };
	struct spread_memory m = { .from = &from->t,
				   .to = &to->t,
				   .from_base = &from->base,
				   .to_base = &to->base,
				   .direct = j->chunk_bytes > SPREAD_CHUNK_MIN };
	uint64_t out_bytes, in_bytes;
	int rc;

	spread_staging(s, &how, &out_bytes, &in_bytes);
	m.out = staging_make(t, out_bytes, j->shared);
	m.in = (uintptr_t)aligned_alloc(4096, in_bytes);
	assert_true(m.in && m.out);
	memset((void *)(uintptr_t)m.out, 0, out_bytes);
	rc = spread_run(s, t, &m, &how, err);
	free((void *)(uintptr_t)m.in);
	assert_int_equal(munmap((void *)(uintptr_t)m.out, out_bytes), 0);
	return rc;
}

/* --- what has not arrived --- */

/* After the exchange, whatever came of it. */
static void missing_count(const struct job *j, struct spread *s, const struct memory *m,
			  struct outcome *ret)
{
	if (j->scheduled || (fault.kind && fault.kind != LEAVES)) {
		ret->wrong = ret->rc == 0 ? memory_wrong(m) : 0;
		return;
	}
	ret->missing_all = missing_bytes(j, s, m, 0, false);
	ret->missing_none = missing_bytes(j, s, m, UINT64_MAX, false);
	ret->unwritten = memory_wrong(m);
	ret->missing = missing_bytes(j, s, m, spread_rounds(s), true);
	ret->wrong = memory_wrong(m);
}

static void others_wait(const struct job *j, uint32_t rank)
{
	for (uint32_t r = 0; r < j->world; r++)
		while (r != rank && !__atomic_load_n(&outcome[r].ended, __ATOMIC_ACQUIRE))
			(void)poll(NULL, 0, 1);
}

/* On a busy machine a process may come late, which is no fault of a round. */
static void all_wait(const struct job *j, uint32_t rank)
{
	__atomic_store_n(&outcome[rank].ready, true, __ATOMIC_RELEASE);
	for (uint32_t r = 0; r < j->world; r++)
		while (!__atomic_load_n(&outcome[r].ready, __ATOMIC_ACQUIRE))
			(void)poll(NULL, 0, 1);
}

static void rank_run(const struct job *j, uint32_t rank, const int *fd, struct outcome *ret)
{
	const struct table *src = &j->table[0], *dst = &j->table[j->in_place ? 0 : 1];
	struct reshard_opts opts = { .who = HOLDERS_OWNERS };
	struct spread_transport *t;
	struct memory from, to;
	struct spread *s;

	assert_ok(spread_socket_open(rank, j->world, fd, &t, &ret->err));
	assert_ok_err(spread_open(src, dst, &opts, rank, &s, &ret->err), &ret->err);
	memory_make(src, rank, !j->in_place, &from);
	memory_fill(&from, rank, j->in_place);
	memory_make(dst, rank, false, &to);
	if (fault.kind && fault.rank == rank)
		fault_plant(t, fd);
	all_wait(j, rank);
	ret->ns = now_ns();
	ret->rc = exchange(j, s, t, &from, j->in_place ? &from : &to, &ret->err);
	ret->ns = now_ns() - ret->ns;
	ret->rounds = t->round;
	ret->out_bytes = spread_cost(s).out_bytes;
	ret->in_bytes = spread_cost(s).in_bytes;
	missing_count(j, s, j->in_place ? &from : &to, ret);
	memory_free(&from);
	memory_free(&to);
	spread_close(s);
	__atomic_store_n(&ret->ended, true, __ATOMIC_RELEASE);
	if (fault.kind == LEAVES &&
	    fault.rank == rank) /* what others see is not its sockets' end */
		others_wait(j, rank);
	t->calls->close(t);
}

static void ranks_run(const struct job *j)
{
	int fd[WORLD_MAX][WORLD_MAX];
	pid_t pid[WORLD_MAX];

	assert_true(j->world <= WORLD_MAX);
	memset(outcome, 0, WORLD_MAX * sizeof *outcome);
	for (uint32_t i = 0; i < j->world; i++)
		for (uint32_t k = 0; k <= i; k++) {
			int pair[2] = { -1, -1 };

			if (k < i)
				assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
			fd[i][k] = pair[0];
			fd[k][i] = pair[1];
		}
	fflush(NULL);
	for (uint32_t i = 0; i < j->world; i++) {
		pid[i] = fork();
		assert_true(pid[i] >= 0);
		if (pid[i])
			continue;
		for (uint32_t a = 0; a < j->world; a++)
			for (uint32_t b = 0; b < j->world; b++)
				if (a != i && fd[a][b] >= 0)
					close(fd[a][b]);
		rank_run(j, i, fd[i], &outcome[i]);
		fflush(NULL);
		_exit(0);
	}
	for (uint32_t i = 0; i < j->world; i++)
		for (uint32_t k = 0; k < j->world; k++)
			if (fd[i][k] >= 0)
				close(fd[i][k]);
	for (uint32_t i = 0; i < j->world; i++) {
		bool stops = fault.kind == STOPS && fault.rank == i;
		int status;

		if (stops)
			continue;
		assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
		assert_int_equal(status, 0);
	}
	if (fault.kind == STOPS) {
		kill(pid[fault.rank], SIGKILL);
		waitpid(pid[fault.rank], NULL, 0);
	}
}

static int shared_make(void **state)
{
	fault = (struct fault){ 0 };
	outcome = mmap(NULL, WORLD_MAX * sizeof *outcome, PROT_READ | PROT_WRITE,
		       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return outcome == MAP_FAILED ? -1 : 0;
}

static int shared_free(void **state)
{
	return munmap(outcome, WORLD_MAX * sizeof *outcome);
}

UNIT(.setup = shared_make, .teardown = shared_free);

TEST(what_ranks_exchange_arrives_element_by_element)
{
	uint64_t sent = 0, rounds = 0;

	naive_seed(__func__);
	for (uint64_t i = 0; i < unit_scaled(100); i++) {
		uint64_t out = 0, in = 0;
		struct job j;

		draw_job(&j);
		ranks_run(&j);
		for (uint32_t r = 0; r < j.world; r++) {
			const struct outcome *o = &outcome[r];

			if (!o->ended || o->rc || o->wrong)
				fail_msg("job %u, rank %u: %s, result %d (%s), %u bytes are wrong",
					 (unsigned)i, r, o->ended ? "ended" : "did not end", o->rc,
					 o->err.msg, (unsigned)o->wrong);
			assert_int_equal(o->unwritten + o->missing + o->missing_none, 0);
			assert_int_equal(o->missing_all, j.scheduled ? 0 : o->in_bytes);
			out += o->out_bytes;
			in += o->in_bytes;
			rounds += o->rounds;
		}
		assert_int_equal(out, in);
		sent += out;
		job_free(&j);
	}
	printf("%llu bytes between ranks, %llu rounds\n", (unsigned long long)sent,
	       (unsigned long long)rounds);
	assert_true(sent > 0 && rounds > unit_scaled(100));
}

/* Every rank but that of the fault ends with an error that names a rank and the round, in time. */
static void all_hear(int rc, const char *words)
{
	uint32_t first = 0;
	struct job j;

	plain_job(&j);
	ranks_run(&j);
	for (uint32_t r = 0; r < j.world; r++) {
		const struct outcome *o = &outcome[r];

		first += o->rc == rc && strstr(o->err.msg, words);
		if (r == fault.rank)
			continue;
		printf("rank %u: %s (%d ms)\n", r, o->err.msg, (int)(o->ns / NS_PER_MS));
		assert_true(o->ended && o->rc < 0 && o->err.code == o->rc);
		assert_non_null(strstr(o->err.msg, ", round "));
		assert_true(o->ns < 20 * NS_PER_S);
	}
	assert_true(first > 0);
	job_free(&j);
}

TEST(replicas_of_a_large_tensor_exchange_it_in_rounds)
{
	struct job j;

	plain_job(&j);
	ranks_run(&j);
	for (uint32_t r = 0; r < 4; r++) {
		assert_true(outcome[r].ended);
		assert_int_equal(outcome[r].rc, 0);
		assert_int_equal(outcome[r].wrong, 0);
		assert_int_equal(outcome[r].in_bytes, 3 << 20);
		assert_int_equal(outcome[r].out_bytes, 3 << 20);
		assert_true(outcome[r].rounds >= 16); /* 1 MiB to each, 64 KiB a round */
	}
	job_free(&j);
}

TEST(a_rank_that_dies_in_a_round_is_named_by_all)
{
	fault = (struct fault){ DIES, 2, 5 };
	all_hear(-ECONNRESET, "round 5: rank 2 has closed its connection");
}

TEST(what_has_not_arrived_is_what_the_failed_rounds_carry)
{
	struct job j;

	fault = (struct fault){ LEAVES, 3, 5 };
	plain_job(&j);
	ranks_run(&j);
	for (uint32_t r = 0; r < 4; r++) {
		const struct outcome *o = &outcome[r];

		assert_true(o->rc < 0);
		assert_int_equal(o->rounds, 5);
		assert_int_equal(o->missing, o->in_bytes - 5 * 3 * SPREAD_CHUNK_MIN);
		/* Nobody has written it; one byte in 256 is right as it is. */
		assert_true(o->unwritten <= o->missing && o->unwritten > o->missing * 98 / 100);
		assert_int_equal(o->wrong, 0);
	}
	job_free(&j);
}

TEST(a_rank_that_stops_is_named_when_the_time_is_over)
{
	fault = (struct fault){ STOPS, 1, 3 };
	all_hear(-ETIMEDOUT, "round 3: the time is over, and rank 1");
}

TEST(a_rank_that_gives_up_ends_the_exchange_for_all)
{
	fault = (struct fault){ LEAVES, 3, 7 };
	all_hear(-ECONNRESET, "round 7: rank 3 has failed");
	assert_int_equal(outcome[3].rc, -EIO);
}

TEST(ranks_whose_schedules_differ_say_so)
{
	fault = (struct fault){ OTHER_CHUNKS, 0, 0 };
	all_hear(-EPROTO, "is expected: the ranks' schedules differ");
}

TEST(a_stream_that_is_cut_off_inside_of_a_message_is_reported)
{
	fault = (struct fault){ CUT_OFF, 2, 4 };
	all_hear(-ECONNRESET,
		 "rank 2 has closed its connection inside of a message, after 7 of its bytes");
}

TEST(bytes_that_are_no_message_are_found_out)
{
	fault = (struct fault){ FOREIGN, 1, 4 };
	all_hear(-EPROTO, "round 4: what rank 1 sends is no message");
}

TEST(memory_that_a_rank_does_not_share_is_not_read)
{
	fault = (struct fault){ NO_SEGMENT, 1, 4 };
	all_hear(-EPROTO, "round 4: what rank 1 sends is no memory that it shares");
}

TEST(ranks_that_read_each_others_memory_have_it_before_it_changes)
{
	struct job j;

	plain_job(&j);
	j.shared = true; /* and each round's bytes lie where those of the round before lay */
	ranks_run(&j);
	for (uint32_t r = 0; r < 4; r++) {
		assert_int_equal(outcome[r].rc, 0);
		assert_int_equal(outcome[r].wrong, 0);
	}
	job_free(&j);
}

TEST(a_rank_that_dies_with_shared_memory_is_named)
{
	struct job j;

	fault = (struct fault){ DIES, 2, 5 };
	plain_job(&j);
	j.shared = true;
	ranks_run(&j);
	for (uint32_t r = 0; r < 4; r++)
		if (r != 2)
			assert_non_null(strstr(outcome[r].err.msg,
					       "round 5: rank 2 has closed its connection"));
	job_free(&j);
}

TEST(messages_of_no_byte_arrive_and_ranks_that_exchange_nothing_do_not_wait)
{
	struct spread_transport *t[2];
	struct ckpt_err err = { 0 };
	uint8_t from = 42, to = 0;
	int pair[2];

	assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	for (uint32_t r = 0; r < 2; r++) /* there is no way to rank 2 */
		assert_ok(spread_socket_open(
			r, 3, (const int[]){ r ? pair[1] : -1, r ? -1 : pair[0], -1 }, &t[r],
			&err));
	assert_ok(t[1]->calls->round_end(t[1], 0, &err)); /* its deadline was long ago */
	assert_ok(t[0]->calls->send(t[0], 1, 0, 0, &err));
	assert_ok(t[0]->calls->send(t[0], 1, (uintptr_t)&from, 1, &err));
	assert_ok(t[0]->calls->round_end(t[0], now_ns() + NS_PER_S * 15, &err));
	assert_ok(t[1]->calls->recv(t[1], 0, 0, 0, &err));
	assert_ok(t[1]->calls->recv(t[1], 0, (uintptr_t)&to, 1, &err));
	assert_ok_err(t[1]->calls->round_end(t[1], now_ns() + NS_PER_S * 15, &err), &err);
	assert_int_equal(to, 42);
	assert_int_equal(t[0]->calls->send(t[0], 2, 0, 0, &err), -ECONNRESET);
	t[0]->calls->close(t[0]);
	t[1]->calls->close(t[1]);
}

static int bytes_add(void *arg, const struct table_tensor *x, const struct indexset *part)
{
	*(uint64_t *)arg += part->numel * x->elem_bytes;
	return 0;
}

/* 3 x 2^40 elements of 8 bytes, whose first half goes from rank 0 to rank 1. */
TEST(streams_of_terabytes_are_cut_where_they_should_be)
{
	static const char *const name[] = { "dp" };
	static const struct ckpt_placement place[] = { { .how = CKPT_SHARD } };
	const uint64_t shape[] = { UINT64_C(3) << 40 }, bytes = UINT64_C(12) << 40;
	const uint32_t dim = 2, rank[2][2] = { { 0, 1 }, { 1, 0 } };
	const struct reshard_opts opts = { .who = HOLDERS_ONE };
	const struct schedule_rounds rounds = { 1000, 65536 };
	uint64_t out, in, missing = 0;
	struct table t[2] = { { .sealed = false } };
	struct spread_how how = { .rounds = &rounds };
	struct spread *s;

	for (int i = 0; i < 2; i++) {
		struct mesh mesh = { 1, name, &dim, 2, rank[i] };
		struct layout l = { .nplace = 1, .place = place };
		struct table_tensor x =
			ROW(.component = "model", .name = "w", .of = "", .dtype = CKPT_F64,
			    .cls = CKPT_STABLE, .rank = TABLE_NONE, .ndim = 1, .shape = shape);

		assert_ok(table_add_mesh(&t[i], &mesh, &l.mesh, NULL));
		assert_ok(table_add_layout(&t[i], &l, &x.layout, NULL));
		assert_ok(table_add_tensor(&t[i], &x, NULL, NULL));
		assert_ok(table_seal(&t[i], NULL));
	}
	assert_ok(spread_open(&t[0], &t[1], &opts, 1, &s, NULL));
	assert_int_equal(spread_cost(s).in_bytes, bytes);
	spread_staging(s, &how, &out, &in);
	assert_true(in >= bytes / 1000 && in < bytes / 1000 + 16384);
	assert_ok(spread_missing(s, SPREAD_CHUNK_MAX, 100000, bytes_add, &missing, NULL));
	assert_int_equal(missing, bytes - 100000 * SPREAD_CHUNK_MAX);
	spread_close(s);
	table_free(&t[0]);
	table_free(&t[1]);
}

/* What a walk calls, in its order, each kind once in a row: recv, send, End; carried out, in. */
struct calls_seen {
	char text[64];
	size_t n;
	const struct spread_memory *m;
	uint64_t out_bytes;
	int fails_at; /* this round_end; 0: none */
};
static struct calls_seen seen;

static void seen_add(char c)
{
	if ((!seen.n || seen.text[seen.n - 1] != c) && seen.n < sizeof seen.text - 1)
		seen.text[seen.n++] = c;
}

static int see_send(struct spread_transport *t, uint32_t peer, uint64_t from, uint64_t bytes,
		    struct ckpt_err *err)
{
	seen_add('s');
	return 0;
}

static int see_recv(struct spread_transport *t, uint32_t peer, uint64_t to, uint64_t bytes,
		    struct ckpt_err *err)
{
	seen_add('r');
	return 0;
}

static int see_end(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err)
{
	seen_add('E');
	return seen.fails_at && --seen.fails_at == 0 ? ckpt_error(err, -EIO, "it fails") : 0;
}

static void see_abort(struct spread_transport *t)
{
	seen_add('A');
}

static int see_carry(void *arg, const struct spread_lines *l, struct ckpt_err *err)
{
	seen_add(l->to >= seen.m->out && l->to < seen.m->out + seen.out_bytes ? 'o' : 'i');
	return 0;
}

/* Rank 0 of plain_job, in three rounds. Returns those that have arrived. */
static uint64_t calls_see(bool ahead, int fails_at)
{
	static const struct spread_calls calls = { see_send, see_recv, see_end, see_abort, NULL };
	struct spread_transport t = { .calls = &calls, .world = 4 };
	struct spread_how how = { .chunk_bytes = 6 * SPREAD_CHUNK_MIN, .ahead = ahead };
	struct reshard_opts opts = { .who = HOLDERS_OWNERS };
	uint64_t in_bytes, base = 1 << 30, rounds;
	struct ckpt_err err = { 0 };
	struct memory memory;
	struct spread_memory m = {
		.from_base = &base, .to_base = &base, .out = 4096, .carry = see_carry
	};
	struct spread *s;
	struct job j;

	plain_job(&j);
	assert_ok(spread_open(&j.table[0], &j.table[0], &opts, 0, &s, &err));
	memory_make(&j.table[0], 0, false, &memory);
	m.from = m.to = &memory.t;
	seen = (struct calls_seen){ .m = &m, .fails_at = fails_at };
	spread_staging(s, &how, &seen.out_bytes, &in_bytes);
	m.in = m.out + seen.out_bytes;
	assert_int_equal(spread_run(s, &t, &m, &how, &err), fails_at ? -EIO : 0);
	rounds = spread_rounds(s);
	spread_close(s);
	memory_free(&memory);
	job_free(&j);
	return rounds;
}

TEST(a_walk_that_goes_ahead_copies_beside_each_round_what_lies_before_and_behind_it)
{
	assert_int_equal(calls_see(false, 0), 3);
	assert_string_equal(seen.text, "orsEiorsEiorsEi");
	assert_int_equal(calls_see(true, 0), 3);
	assert_string_equal(seen.text, "orsoErsioErsiEi");
	/* A round has arrived when it is carried in. */
	assert_int_equal(calls_see(false, 2), 1);
	assert_string_equal(seen.text, "orsEiorsEA");
	assert_int_equal(calls_see(true, 2), 1);
	assert_string_equal(seen.text, "orsoErsioEA");
}

TEST(an_exchange_does_not_change_dtypes)
{
	struct ckpt_err err = { 0 };
	struct table other = { 0 };
	struct table_tensor x;
	struct spread *s;
	struct job j;

	plain_job(&j);
	x = j.table[0].tensor[0];
	x.dtype = CKPT_BF16;
	assert_ok(table_add_mesh(&other, &j.table[0].mesh[0], NULL, NULL));
	assert_ok(table_add_layout(&other, &j.table[0].layout[0], NULL, NULL));
	assert_ok(table_add_tensor(&other, &x, NULL, NULL));
	assert_ok(table_seal(&other, NULL));
	assert_int_equal(spread_open(&j.table[0], &other, NULL, 0, &s, &err), -EMEDIUMTYPE);
	assert_non_null(strstr(err.msg, "model/w0 is F32 here and BF16 there"));
	table_free(&other);
	job_free(&j);
}

TEST(a_round_of_shared_memory_ends_when_the_other_rank_has_copied_it)
{
	struct spread_transport *t[2];
	struct ckpt_err err = { 0 };
	uint8_t to[SPREAD_SHARED_MIN], *from;
	int pair[2];

	assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	for (uint32_t r = 0; r < 2; r++)
		assert_ok(spread_socket_open(
			r, 2, (const int[]){ r ? pair[1] : -1, r ? -1 : pair[0] }, &t[r], &err));
	from = (uint8_t *)(uintptr_t)staging_make(t[0], sizeof to, true);
	memset(from, 42, sizeof to);
	assert_ok(t[0]->calls->send(t[0], 1, (uintptr_t)from, sizeof to, &err));
	assert_int_equal(t[0]->calls->round_end(t[0], now_ns() + NS_PER_MS, &err), -ETIMEDOUT);
	assert_non_null(strstr(err.msg, "rank 1 has not done its part"));
	/* What it was sent is a frame: the bytes are read where they are. */
	from[0] = 43;
	assert_ok(t[1]->calls->recv(t[1], 0, (uintptr_t)to, sizeof to, &err));
	assert_ok_err(t[1]->calls->round_end(t[1], now_ns() + NS_PER_S * 15, &err), &err);
	assert_memory_equal(to, from, sizeof to);
	t[0]->calls->close(t[0]);
	t[1]->calls->close(t[1]);
	assert_int_equal(munmap(from, sizeof to), 0);
}

/* A rank of a world with sockets to some of the others. */
static struct spread_transport *rank_open(uint32_t rank, const int fd[3])
{
	struct spread_transport *t;

	assert_ok(spread_socket_open(rank, 3, fd, &t, NULL));
	return t;
}

TEST(garbage_of_a_rank_that_only_receives_is_found_by_an_empty_round)
{
	static const char garbage[] = "GET / HTTP/1.1";
	struct ckpt_err err = { 0 };
	struct spread_transport *t[2];
	uint8_t from = 42, to = 0;
	int pair[2];

	assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
	t[0] = rank_open(0, (const int[]){ -1, pair[0], -1 });
	t[1] = rank_open(1, (const int[]){ pair[1], -1, -1 });
	/* What a later round expects is not garbage. */
	assert_ok(t[1]->calls->send(t[1], 0, (uintptr_t)&from, 1, &err));
	assert_ok(t[1]->calls->round_end(t[1], now_ns() + NS_PER_S * 15, &err));
	assert_ok_err(t[0]->calls->round_end(t[0], 0, &err), &err);
	assert_ok(t[0]->calls->recv(t[0], 1, (uintptr_t)&to, 1, &err));
	assert_ok_err(t[0]->calls->round_end(t[0], now_ns() + NS_PER_S * 15, &err), &err);
	assert_int_equal(to, 42);
	assert_int_equal(send(pair[1], garbage, sizeof garbage, 0), sizeof garbage);
	assert_int_equal(t[0]->calls->round_end(t[0], 0, &err), -EPROTO);
	assert_says(err.msg, "rank 0, round 2: what rank 1 sends is no message");
	t[0]->calls->close(t[0]);
	t[1]->calls->close(t[1]);
}

TEST(a_rank_that_another_one_waited_for_names_the_rank_that_it_waits_for)
{
	struct ckpt_err err = { 0 };
	struct spread_transport *t[2];
	int a[2], b[2];
	uint8_t to;

	assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, a));
	assert_ok(socketpair(AF_UNIX, SOCK_STREAM, 0, b));
	t[0] = rank_open(0, (const int[]){ -1, a[0], -1 });
	t[1] = rank_open(1, (const int[]){ a[1], -1, b[0] });
	assert_ok(t[0]->calls->recv(t[0], 1, (uintptr_t)&to, 1, &err));
	assert_int_equal(t[0]->calls->round_end(t[0], 0, &err), -ETIMEDOUT);
	t[0]->calls->abort(t[0]);
	assert_ok(t[1]->calls->recv(t[1], 0, (uintptr_t)&to, 1, &err));
	assert_ok(t[1]->calls->recv(t[1], 2, (uintptr_t)&to, 1, &err));
	assert_int_equal(t[1]->calls->round_end(t[1], now_ns() + NS_PER_S * 15, &err), -ECONNRESET);
	assert_string_equal(err.msg, "rank 1, round 0: rank 0 has ended its exchange, because this "
				     "rank did not do its part in time; it waits for rank 2");
	t[0]->calls->close(t[0]);
	t[1]->calls->close(t[1]);
	assert_ok(close(b[1]));
}
