/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_daemon_hostile.c - a trainer that means harm, or has gone mad, in the daemon's own protocol:
 * it writes anything into the pages that it shares with the daemon, sends more descriptors, jobs,
 * ranks and declarations than there may be, exchanges and changes the memory that it has handed
 * over. The daemon neither dies nor waits nor loses what is another job's; what it commits for the
 * hostile job has the right shape, whatever its bytes are. CKPT_TEST_LOG=1 shows the daemon's log.
 *
 * Messages that are malformed are in test_daemon_inprocess.c and test_daemon_control.c, parsers in
 * tests/fuzz.
 */
#include "tests/lib/draw.h"
#include "tests/lib/host.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"
#include "tests/lib/peer.h"
#include <dirent.h>

/* Under a sanitizer, which costs ten times as much, fewer. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define FEWER(n) ((n) / 8)
#else
#define FEWER(n) (n)
#endif

static uint64_t rng;

/* --- scribbling --- */

static uint64_t number(void)
{
	static const uint64_t telling[] = { 0, 1, 2, 3, 4, 255, UINT32_MAX, INT64_MAX, UINT64_MAX };
	uint64_t x = draw(&rng);

	return x % 3 ? telling[(x >> 8) % ARRAY_LEN(telling)] : x >> (x >> 58);
}

/* Any word of either page. */
static void scribble(struct peer *e)
{
	bool job = draw(&rng) & 1;
	uint64_t bytes = job ? offsetof(struct shared_job, trouble) : sizeof *e->rank;
	_Atomic uint64_t *word =
		job ? (_Atomic uint64_t *)(void *)e->job : (_Atomic uint64_t *)(void *)e->rank;

	atomic_store(&word[draw(&rng) % (bytes / 8)], number());
}

/* What looks like a mark: the next ticket, in a slot that may be free or not, and a record for
 * it. */
static void pretend(struct peer *e, uint64_t step)
{
	uint64_t g = atomic_load(&e->job->gate), seq = ((g >> 13 & 32767) + 1) & 32767,
		 slot = draw(&rng) % 8, n = atomic_load(&e->rank->marks) + 1;
	struct shared_snap *s = &e->rank->snap[n % SHARED_SNAPS];
	struct shared_record rec =
		ROW(.step = draw(&rng) % 9 ? step : number(),
		    .mark_ns = draw(&rng) % 3 ? now_ns() : number(),
		    .epoch = draw(&rng) % 9 ? 1 : (uint32_t)number(), .slot = (uint16_t)slot,
		    .flags = TICKET_PERSIST | (draw(&rng) % 2 ? TICKET_FINAL : 0),
		    .ticket_seq = (uint16_t)(seq ? seq : 1),
		    .nnote = (uint16_t)(draw(&rng) % 4 ? draw(&rng) % 20 : number()),
		    .unguarded = draw(&rng) % 9 ? atomic_load(&e->rank->unguarded) : number());

	for (uint32_t i = 0; i < SHARED_NOTES; i++) {
		memset(rec.note[i].key, (int)(draw(&rng) % 255) + 1, sizeof rec.note[i].key);
		rec.note[i].value = (double)number();
	}
	memcpy(&s->rec, &rec, sizeof rec);
	if (draw(&rng) % 9)
		atomic_store(&e->job->gate, step << 28 | (seq ? seq : 1) << 13 | (slot & 7) << 10 |
						    3u << 8 | (draw(&rng) & 0xff));
	atomic_store(&s->word, n << 8 | (draw(&rng) % 9 ? (draw(&rng) & 7) << 4 | SNAP_COPYING
							: draw(&rng) & 0xff));
	atomic_store(&e->rank->marks, draw(&rng) % 99 ? n : number());
	atomic_store(&e->rank->guarded_mark, draw(&rng) % 3 ? n : number());
	if (draw(&rng) % 5 == 0)
		atomic_store(&e->rank->updating, (uint32_t)number());
}

static struct plan_of_job sane(void)
{
	return plan("sane", "fsdp=1");
}

static void a_step_is_committed(struct rank *k, uint64_t step)
{
	int rc;

	while ((rc = rank_step(k, step, 0)) == -EAGAIN)
		usleep(2000);
	MUST_BE(rc, 0);
	must_wait(k, step, CKPT_STAGED);
	must_guard(k);
	must_wait(k, step, CKPT_COMMITTED);
}

TEST(whatever_a_trainer_writes_into_its_pages_hurts_only_itself)
{
	struct plan_of_job p = sane();
	struct asker a;
	uint64_t step = 1;
	uint32_t launches = 0, committed = 0;

	rng = draw_seed(__func__);
	host_start(&H, NULL);
	rank_open(&K, &p, 0);
	ask_open(&a, H.socket);
	for (uint32_t round = 0; round < FEWER((uint32_t)unit_scaled(64)); round++) {
		const struct wire_report_job *j;
		struct peer e;

		peer_open(&e, "evil");
		launches++;
		for (uint32_t i = 0; i < 400; i++) {
			if (round % 2 || draw(&rng) % 3 == 0)
				scribble(&e);
			if (draw(&rng) % 3)
				pretend(&e, ++step);
			e.segment[draw(&rng) % PEER_BYTES] = (uint8_t)draw(&rng);
			memset(e.slot[draw(&rng) % 2] + draw(&rng) % (e.slot_bytes - 8),
			       (int)draw(&rng), 8);
			if (draw(&rng) % 4 == 0)
				peer_ring(&e);
			if (draw(&rng) % 64 == 0)
				usleep(1000);
		}
		peer_ring(&e);
		if (round % 8 == 0)
			a_step_is_committed(&K, 1 + round / 8);
		j = ask_job(&a, "evil"); /* whatever it says, it can be said */
		MUST(j && ask_job(&a, "sane")->failed == 0);
		peer_close(&e);
	}
	a_step_is_committed(&K, 1000);
	rank_close(&K, 0);
	ask_close(&a);
	host_stop(&H);
	assert_true(host_has(&H, "sane", 1000));
	committed =
		host_count(&H, "evil", STORE_COMMITTED) + host_count(&H, "evil", STORE_SET_ASIDE);
	printf("# %u launches, %u steps committed\n", launches, committed);
	assert_true(committed > 0 || FEWER(8) == 1 ||
		    unit_scaled(64) < 64); /* its nonsense got as far as that */
	assert_int_equal(host_count(&H, "evil", STORE_DAMAGED), 0);
	assert_int_equal(host_count(&H, "evil", STORE_COLLECTING), 0);
}

/* Who writes into its slots while they are written to the disk has a checkpoint that does not
 * verify, and nobody else has. But never does the daemon trust a length that changes under its
 * eyes. */
TEST(lengths_of_blobs_that_change_all_the_time_are_read_once)
{
	struct peer e;
	uint64_t step = 1;
	uint32_t n = 0;

	rng = draw_seed(__func__);
	host_start(&H, NULL);
	peer_open(&e, "evil");
	for (uint32_t i = 0; i < FEWER((uint32_t)unit_scaled(4000)); i++) {
		uint64_t len = number();

		memcpy(e.segment + 200000, &len, sizeof len);
		for (uint32_t k = 0; k < 2; k++)
			for (uint64_t at = 0; at + 8 <= e.slot_bytes; at += 64)
				if (draw(&rng) % 64 == 0)
					memcpy(e.slot[k] + at, &len, sizeof len);
		if (i % 16 == 0) {
			pretend(&e, ++step);
			peer_ring(&e);
			usleep(200);
		}
	}
	/* A last one that is whole, but for the length. */
	atomic_store(&e.rank->unguarded, 0);
	for (uint32_t i = 0; i < 8; i++) {
		memset(e.segment + 200000, 0x7f, 8);
		memset(e.segment + 200000 + 1, 0, 7);
		pretend(&e, ++step);
		peer_ring(&e);
		usleep(2000);
	}
	peer_close(&e);
	host_stop(&H);
	for (uint64_t k = 2; k <= step; k++) {
		struct checkpoint *c;
		uint32_t b;

		if (!host_has(&H, "evil", k))
			continue;
		n++;
		c = host_open(&H, "evil", k);
		b = table_find(&c->table, "blob", "rng", 0);
		assert_true(b != TABLE_NONE && c->table.tensor[b].numel <= 100);
		checkpoint_free(c);
	}
	printf("# %u steps committed\n", n);
}

/* --- floods --- */

TEST(descriptors_that_nobody_asked_for_are_closed)
{
	struct msghdr m = { 0 };
	struct wire_plain s = { .head = ROW(.magic = WIRE_MAGIC, .abi = WIRE_ABI,
					    .type = WIRE_STATUS, .bytes = sizeof s) };
	struct iovec iov = { .iov_base = &s, .iov_len = sizeof s };
	static const int many[] = { 1, 4, 5, 17, 100, 253 };
	union {
		char buf[CMSG_SPACE(sizeof(int) * 253)];
		struct cmsghdr align;
	} control = { 0 };
	uint32_t before, n = 0;
	ssize_t sent;

	host_start(&H, NULL);
	ask_open(&A, H.socket);
	(void)ask_status(&A);
	before = open_files();
	for (uint32_t i = 0; i < 300; i++) {
		size_t nfd = (size_t)many[i % ARRAY_LEN(many)];
		int sock = ask_connect(H.socket);
		struct cmsghdr *c;

		m.msg_iov = &iov;
		m.msg_iovlen = 1;
		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * nfd);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * nfd);
		for (size_t k = 0; k < nfd; k++)
			memcpy(CMSG_DATA(c) + k * sizeof(int), &sock, sizeof sock);
		/* Its own socket among them: a circle that only the kernel could break. */
		/* who is not root may have so many on their way */
		ask_until((sent = sendmsg(sock, &m, MSG_NOSIGNAL)) >= 0 || errno != ETOOMANYREFS);
		n += sent == sizeof s;
		(void)close(sock);
	}
	assert_int_equal(n, 300);
	ask_until(open_files() <= before);
	(void)ask_status(&A);
}

/* A newer or older library: it gets a sentence that it can read, and nothing else happens. */
TEST(other_versions_are_refused_in_words_and_refusals_are_not_answered)
{
	static const uint16_t abi[] = { 0, 1, WIRE_ABI + 1, UINT16_MAX };
	static const uint32_t bytes[] = { 16, 40, 8192, 20000 };

	host_start(&H, NULL);
	for (size_t i = 0; i < ARRAY_LEN(abi) * ARRAY_LEN(bytes) * 2; i++) {
		static uint8_t msg[20000];
		_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
		const struct wire_refuse *r = (const struct wire_refuse *)in;
		bool refusal = i & 1;
		struct wire_head head = ROW(.magic = WIRE_MAGIC, .abi = abi[i / 2 % ARRAY_LEN(abi)],
					    .type = refusal ? WIRE_REFUSE : WIRE_HELLO,
					    .bytes = bytes[i / 2 / ARRAY_LEN(abi)], .seq = 77);
		int sock = ask_connect(H.socket);
		struct pollfd p = { .fd = sock, .events = POLLIN };
		char mine[40], theirs[40];

		if (refusal)
			head.bytes = MAX(head.bytes, 20u);
		memcpy(msg, &head, sizeof head);
		MUST(send(sock, msg, head.bytes, MSG_NOSIGNAL) == (ssize_t)head.bytes);
		MUST(poll(&p, 1, 20000) == 1);
		if (!refusal) {
			assert_int_equal(recv(sock, in, sizeof in, 0), sizeof *r);
			assert_true(r->head.magic == WIRE_MAGIC && r->head.abi == head.abi &&
				    r->head.type == WIRE_REFUSE && r->head.seq == 77 &&
				    r->head.bytes == sizeof *r && r->code == -EPROTO);
			snprintf(mine, sizeof mine, "protocol %u,", WIRE_ABI);
			snprintf(theirs, sizeof theirs, "protocol %u:", head.abi);
			assert_non_null(strstr(r->text, mine));
			assert_non_null(strstr(r->text, theirs));
			MUST(poll(&p, 1, 20000) == 1);
		}
		assert_int_equal(recv(sock, in, sizeof in, 0), 0); /* and the session is over */
		(void)close(sock);
	}
}

TEST(more_jobs_and_ranks_than_a_report_can_tell_are_refused)
{
	struct plan_of_job p = sane();
	struct peer e;
	uint32_t type = WIRE_WELCOME, n = 0;
	char job[64];

	host_start(&H, NULL);
	rank_open(&K, &p, 0);
	/* Launches of 4096 ranks, of which one comes: eight are as many ranks as may be. */
	for (; type == WIRE_WELCOME && n < 20; n++) {
		snprintf(job, sizeof job, "evil-%u", n);
		type = peer_hello(&e, job, WIRE_WORLD_MAX);
		if (type == WIRE_REFUSE)
			assert_int_equal(e.a.refused.code, -EAGAIN);
		peer_close(&e);
	}
	assert_int_equal(type, WIRE_REFUSE);
	assert_int_equal(n, 8); /* and the sane one's */
	assert_non_null(strstr(e.a.refused.text, "32768"));
	/* Who is there already is not turned away. */
	a_step_is_committed(&K, 1);
	rank_close(&K, 0);
	p.fresh = true;
	rank_open(&K, &p, 0);
	a_step_is_committed(&K, 2);
}

TEST(a_declaration_beyond_all_measure_is_refused_unread)
{
	struct wire_declare decl = { .epoch = 1, .bytes = (UINT64_C(1) << 30) + 4096 };
	struct ckpt_err err = { 0 };
	struct peer e;
	int fd;

	host_start(&H, NULL);
	MUST_BE(peer_hello(&e, "evil", 1), WIRE_WELCOME);
	MUST_OK(wire_memfd("huge", decl.bytes, &fd, &err), &err);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	MUST_BE(ask_fd(&e.a, &decl, WIRE_DECLARE, sizeof decl, fd, NULL, 0, NULL), WIRE_REFUSE);
	assert_int_equal(e.a.refused.code, -EFBIG);
	decl.bytes -= 4096; /* as much as there may be: read, and found to be nothing */
	(void)close(fd);
	MUST_OK(wire_memfd("huge", decl.bytes, &fd, &err), &err);
	MUST(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0);
	MUST_BE(ask_fd(&e.a, &decl, WIRE_DECLARE, sizeof decl, fd, NULL, 0, NULL), WIRE_REFUSE);
	assert_int_equal(e.a.refused.code, -EBADMSG);
	(void)close(fd);
	peer_close(&e);
}

TEST(more_segments_than_a_process_can_map_are_refused)
{
	const uint32_t fit = 49152 / WIRE_SEGMENTS_MAX;
	struct peer e[13];
	struct ckpt_err err = { 0 };
	uint64_t sent = 0;
	bool refused = false;
	int fd;

	host_start(&H, NULL);
	MUST_OK(wire_memfd("page", 4096, &fd, &err), &err);
	for (uint32_t r = 0; r < ARRAY_LEN(e); r++) {
		char job[32];

		snprintf(job, sizeof job, "evil-%u", r);
		MUST_BE(peer_hello(&e[r], job, 1), WIRE_WELCOME);
		for (uint32_t id = 0; id < WIRE_SEGMENTS_MAX && !refused; id++) {
			struct wire_segment seg = { .id = id, .bytes = 4096 };
			uint32_t type;

			/* Under a sanitizer only what is counted: the highest of each. */
			if (FEWER(8) == 1 && id < WIRE_SEGMENTS_MAX - 1)
				continue;
			type = ask_fd(&e[r].a, &seg, WIRE_SEGMENT, sizeof seg, fd, NULL, 0, NULL);
			sent += type == WIRE_OK;
			if (type == WIRE_OK)
				continue;
			MUST_BE(type, WIRE_REFUSE);
			assert_int_equal(e[r].a.refused.code, -E2BIG);
			assert_int_equal(r, fit);
			refused = true;
		}
	}
	assert_true(refused);
	printf("# %" PRIu64 " segments were taken\n", sent);
	(void)close(fd);
	for (uint32_t r = 0; r < ARRAY_LEN(e); r++)
		peer_close(&e[r]);
	/* When they are gone there is room again. */
	{
		struct wire_segment seg = { .bytes = 4096 };

		MUST_BE(peer_hello(&e[0], "again", 1), WIRE_WELCOME);
		MUST_OK(wire_memfd("page", 4096, &fd, &err), &err);
		ask_until(ask_fd(&e[0].a, &seg, WIRE_SEGMENT, sizeof seg, fd, NULL, 0, NULL) ==
			  WIRE_OK);
		(void)close(fd);
		peer_close(&e[0]);
	}
}

/* --- memory --- */

TEST(memory_that_was_handed_over_cannot_shrink_and_may_lose_its_pages)
{
	struct wire_segment seg = { .id = 1, .bytes = PEER_BYTES };
	struct peer e;
	int fd;

	rng = draw_seed(__func__);
	host_start(&H, NULL);
	peer_open(&e, "evil");
	assert_int_equal(ftruncate(e.segment_fd, 4096), -1);
	assert_int_equal(errno, EPERM);
	/* Holes are zeros and no signal, also while it copies. */
	for (uint64_t step = 1; step <= 40; step++) {
		pretend(&e, step);
		peer_ring(&e);
		assert_ok(fallocate(e.segment_fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
				    PEER_BYTES));
		usleep(500);
	}
	/* Only half of the seals, and what is no memory at all. */
	for (int seals = 0; seals < 2; seals++) {
		fd = memfd_create("half", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		MUST(ftruncate(fd, PEER_BYTES) == 0 &&
		     fcntl(fd, F_ADD_SEALS, seals ? F_SEAL_SHRINK : F_SEAL_GROW) == 0);
		MUST_BE(ask_fd(&e.a, &seg, WIRE_SEGMENT, sizeof seg, fd, NULL, 0, NULL),
			WIRE_REFUSE);
		assert_non_null(strstr(e.a.refused.text, "seals"));
		(void)close(fd);
	}
	fd = open("/dev/zero", O_RDWR | O_CLOEXEC);
	MUST_BE(ask_fd(&e.a, &seg, WIRE_SEGMENT, sizeof seg, fd, NULL, 0, NULL), WIRE_REFUSE);
	(void)close(fd);
	fd = open(H.dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* a file would be cut under it */
	if (fd >= 0 && ftruncate(fd, PEER_BYTES) == 0)
		MUST_BE(ask_fd(&e.a, &seg, WIRE_SEGMENT, sizeof seg, fd, NULL, 0, NULL),
			WIRE_REFUSE);
	if (fd >= 0)
		(void)close(fd);
	peer_close(&e);
	host_stop(&H);
}

UNIT(.setup = host_setup, .teardown = host_teardown);
