/* SPDX-License-Identifier: Apache-2.0 */
/* test_wire_messages.c - messages, their descriptors, and shared memory that comes from a peer. */
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include "ckpt/wire/wire.h"
#include "tests/lib/unit.h"
#include "tests/lib/row.h"

static const struct {
	uint32_t type, bytes;
	int nfd;
} request[] = ROW(
	{ WIRE_HELLO, sizeof(struct wire_hello), 1 },
	{ WIRE_SEGMENT, sizeof(struct wire_segment), 1 },
	{ WIRE_ADOPT, sizeof(struct wire_adopt), 1 },
	{ WIRE_DECLARE, sizeof(struct wire_declare), 1 },
	{ WIRE_RESTORE, sizeof(struct wire_restore), 0 },
	{ WIRE_STEPS, sizeof(struct wire_steps), 0 }, { WIRE_BYE, sizeof(struct wire_plain), 0 },
	{ WIRE_CONTROL, sizeof(struct wire_plain), 0 },
	{ WIRE_STATUS, sizeof(struct wire_plain), 0 },
	{ WIRE_TRIGGER, sizeof(struct wire_trigger), 0 },
	{ WIRE_DRAIN, sizeof(struct wire_drain), 0 },
	{ WIRE_FORGET, sizeof(struct wire_forget), 0 },
	{ WIRE_FRESH, sizeof(struct wire_plain), 0 }, { WIRE_LAND, sizeof(struct wire_land), 0 },
	{ WIRE_LIST, sizeof(struct wire_list), 0 }, { WIRE_SEED, sizeof(struct wire_seed), 1 },
	{ WIRE_CLAIM, sizeof(struct wire_plain), 0 }, { WIRE_KEEP, sizeof(struct wire_keep), 0 });

TEST(a_request_passes_with_its_size_and_descriptors_and_no_others)
{
	_Alignas(16) uint8_t buf[WIRE_BYTES_MAX] = { 0 };
	struct wire_head *head = (struct wire_head *)buf;

	for (uint32_t type = 0; type < 70; type++) {
		uint32_t passed = 0;

		head->type = (uint16_t)type;
		for (uint32_t bytes = 0; bytes <= sizeof buf; bytes++)
			for (int nfd = 0; nfd <= WIRE_FDS_MAX + 1; nfd++) {
				bool good = false;

				for (size_t i = 0; i < ARRAY_LEN(request); i++)
					good |= request[i].type == type &&
						request[i].bytes == bytes && request[i].nfd == nfd;
				assert_int_equal(wire_request_check(buf, bytes, nfd),
						 good ? 0 : -EPROTO);
				passed += good;
			}
		assert_int_equal(passed, type >= WIRE_HELLO && type <= WIRE_KEEP);
	}
	head->type = UINT16_MAX;
	assert_int_equal(wire_request_check(buf, sizeof(struct wire_plain), 0), -EPROTO);
}

TEST(a_drain_brings_a_directory_where_it_says_so_and_then_for_one_job)
{
	for (uint32_t flags = 0; flags < 5; flags++)
		for (uint64_t job = 0; job < 2; job++)
			for (uint32_t pad = 0; pad < 2; pad++)
				for (int nfd = 0; nfd <= WIRE_FDS_MAX; nfd++) {
					struct wire_drain m =
						ROW(.head.type = WIRE_DRAIN, .flags = flags,
						    .pad = pad, .job = job);
					bool good = !pad && ((flags == 0 && nfd == 0) ||
							     ((flags == WIRE_TO ||
							       flags == (WIRE_TO | WIRE_COPY)) &&
							      nfd == 1 && job));

					assert_int_equal(wire_request_check(&m, sizeof m, nfd),
							 good ? 0 : -EPROTO);
				}
}

TEST(a_seed_brings_a_directory_or_says_why_there_is_none)
{
	for (uint32_t i = 0; i < 4; i++)
		for (int nfd = 0; nfd <= WIRE_FDS_MAX; nfd++) {
			static const uint32_t error[] = { 0, ENOENT, INT32_MAX, UINT32_MAX };
			struct wire_seed m = { .head.type = WIRE_SEED, .error = error[i] };
			bool good = i ? i < 3 && nfd == 0 : nfd == 1;

			assert_int_equal(wire_request_check(&m, sizeof m, nfd), good ? 0 : -EPROTO);
		}
}

TEST(strings_in_requests_end)
{
	struct wire_hello h = { .head.type = WIRE_HELLO };
	struct wire_restore r = { .head.type = WIRE_RESTORE };
	struct wire_seed s = { .head.type = WIRE_SEED };

	memset(h.job, 'x', sizeof h.job - 1);
	memset(r.only, 'x', sizeof r.only - 1);
	memset(s.path, 'x', sizeof s.path - 1);
	assert_int_equal(wire_request_check(&h, sizeof h, 1), 0);
	assert_int_equal(wire_request_check(&r, sizeof r, 0), 0);
	assert_int_equal(wire_request_check(&s, sizeof s, 1), 0);
	h.job[sizeof h.job - 1] = 'x';
	r.only[sizeof r.only - 1] = 'x';
	s.path[sizeof s.path - 1] = 'x';
	assert_int_equal(wire_request_check(&h, sizeof h, 1), -EPROTO);
	assert_int_equal(wire_request_check(&r, sizeof r, 0), -EPROTO);
	assert_int_equal(wire_request_check(&s, sizeof s, 1), -EPROTO);
}

TEST(sealed_brings_two_to_four_slots_and_rows_where_there_are_some)
{
	for (uint32_t nslot = 0; nslot < 8; nslot++)
		for (uint32_t nrow = 0; nrow < 3; nrow++)
			for (int nfd = 0; nfd <= WIRE_FDS_MAX; nfd++) {
				struct wire_sealed m =
					ROW(.head.type = WIRE_SEALED, .nslot = nslot, .nrow = nrow);
				bool good = nslot >= 2 && nslot <= WIRE_SLOTS_MAX &&
					    nfd == (int)(nslot + (nrow > 0));

				assert_int_equal(wire_answer_check(WIRE_DECLARE, &m, sizeof m, nfd),
						 good ? 0 : -EPROTO);
			}
}

static void pair(int sock[2])
{
	assert_ok(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, sock));
}

static int fds_open(void)
{
	int n = 0;

	for (int fd = 0; fd < 256; fd++)
		n += fcntl(fd, F_GETFD) >= 0;
	return n;
}

/* What a peer that does not keep to wire_send might send. */
static void send_raw(int sock, const void *bytes, size_t len, int nfd)
{
	union {
		char buf[CMSG_SPACE(sizeof(int) * 32)];
		struct cmsghdr align;
	} control = { 0 };
	struct iovec iov = { .iov_base = (void *)(uintptr_t)bytes, .iov_len = len };
	struct msghdr m = { .msg_iov = &iov, .msg_iovlen = 1 };

	if (nfd) {
		struct cmsghdr *c;
		int fd[32] = { 0 };

		m.msg_control = control.buf;
		m.msg_controllen = CMSG_SPACE(sizeof(int) * (size_t)nfd);
		c = CMSG_FIRSTHDR(&m);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int) * (size_t)nfd);
		memcpy(CMSG_DATA(c), fd, sizeof(int) * (size_t)nfd);
	}
	assert_int_equal(sendmsg(sock, &m, MSG_NOSIGNAL), len);
}

TEST(messages_and_descriptors_arrive)
{
	struct wire_sealed m = { .epoch = 3, .nslot = 4, .slot_bytes = 5 }, got;
	_Alignas(16) uint8_t buf[WIRE_BYTES_MAX];
	int sock[2], fd[WIRE_FDS_MAX], nfd, before = fds_open();

	pair(sock);
	for (int n = 0; n <= WIRE_FDS_MAX; n++) {
		assert_ok(wire_send(sock[0], &m, WIRE_SEALED, sizeof m, 77,
				    (int[WIRE_FDS_MAX]){ 1, 1, 2, 1, 1, 1, 1, 2 }, n));
		assert_int_equal(wire_recv(sock[1], buf, sizeof buf, fd, &nfd), sizeof m);
		memcpy(&got, buf, sizeof got);
		assert_true(got.head.type == WIRE_SEALED && got.head.seq == 77 && got.epoch == 3 &&
			    got.slot_bytes == 5);
		assert_int_equal(nfd, n);
		for (int i = 0; i < WIRE_FDS_MAX; i++) {
			assert_int_equal(fd[i] >= 0, i < n);
			if (i < n)
				assert_int_equal(fcntl(fd[i], F_GETFD), FD_CLOEXEC);
		}
		wire_close_fds(fd, nfd);
		assert_int_equal(fd[0], -1);
	}
	assert_int_equal(wire_recv(sock[1], buf, sizeof buf, fd, &nfd), -EAGAIN);
	(void)close(sock[0]);
	assert_int_equal(wire_recv(sock[1], buf, sizeof buf, fd, &nfd), 0);
	assert_int_equal(wire_send(sock[1], &m, WIRE_SEALED, sizeof m, 1, NULL, 0), -EPIPE);
	(void)close(sock[1]);
	assert_int_equal(fds_open(), before);
}

TEST(what_is_not_a_message_is_refused_and_its_descriptors_closed)
{
	_Alignas(16) uint8_t buf[WIRE_BYTES_MAX + 64], in[WIRE_BYTES_MAX];
	struct wire_plain good = { .head = ROW(.magic = WIRE_MAGIC, .abi = WIRE_ABI,
					       .type = WIRE_BYE, .bytes = sizeof good) };
	int sock[2], fd[WIRE_FDS_MAX], nfd, before;

	pair(sock);
	before = fds_open();
	for (int how = 0; how < 10; how++) {
		struct wire_plain bad = good;
		size_t len = sizeof bad;
		int n = how % 2;

		switch (how / 2) {
		case 0:
			bad.head.magic ^= 1;
			break;
		case 1:
			bad.head.abi++;
			break;
		case 2:
			bad.head.bytes--;
			break;
		case 3:
			len = sizeof bad.head - 1;
			break;
		case 4:
			n = how == 8 ? WIRE_FDS_MAX + 1
				     : 32; /* more than fit: seen, or cut off by the kernel */
			break;
		}
		memset(buf, 0, sizeof buf);
		memcpy(buf, &bad, sizeof bad);
		send_raw(sock[0], buf, len, n);
		assert_int_equal(wire_recv(sock[1], in, sizeof in, fd, &nfd),
				 how / 2 == 1 ? -EPROTONOSUPPORT : -EPROTO);
		assert_int_equal(nfd, 0);
		assert_int_equal(fds_open(), before);
	}
	good.head.bytes = WIRE_BYTES_MAX + 64;
	memcpy(buf, &good, sizeof good);
	send_raw(sock[0], buf, sizeof buf, 2);
	assert_int_equal(wire_recv(sock[1], in, sizeof in, fd, &nfd), -EPROTO);
	assert_int_equal(fds_open(), before);
	good.head.bytes = sizeof good;
	send_raw(sock[0], &good, sizeof good, 0);
	assert_int_equal(wire_recv(sock[1], in, sizeof in, fd, &nfd), sizeof good);
	(void)close(sock[0]);
	(void)close(sock[1]);
}

/* What every version understands of every other one. */
TEST(a_refusal_is_read_whatever_its_version_and_length)
{
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	static struct {
		struct wire_head head;
		int32_t code;
		char text[2 * WIRE_BYTES_MAX];
	} r;
	static const size_t text[] = {
		0, 1, 40, WIRE_TEXT_MAX, WIRE_TEXT_MAX + 9, WIRE_BYTES_MAX, sizeof r.text
	};
	struct ckpt_err err;
	int sock[2], fd[WIRE_FDS_MAX], nfd, before;

	pair(sock);
	before = fds_open();
	memset(r.text, 'x', sizeof r.text);
	for (uint16_t abi = 0; abi < WIRE_ABI; abi++)
		for (size_t i = 0; i < ARRAY_LEN(text); i++)
			for (int nfds = 0; nfds <= 20; nfds += 10) {
				size_t bytes = offsetof(struct wire_refuse, text) + text[i];
				int n;

				r.head = (struct wire_head)ROW(.magic = WIRE_MAGIC, .abi = abi,
							       .type = WIRE_REFUSE,
							       .bytes = (uint32_t)bytes, .seq = 7);
				r.code = i == 2 ? 4096 : i == 3 ? INT32_MIN : -EAGAIN;
				send_raw(sock[0], &r, bytes, nfds);
				n = wire_recv(sock[1], in, sizeof in, fd, &nfd);
				assert_int_equal(n, MIN(bytes, sizeof in));
				assert_int_equal(nfd, 0);
				assert_int_equal(wire_answer_check(WIRE_BYE, in, (uint32_t)n, 0),
						 0);
				assert_int_equal(wire_refusal(in, (uint32_t)n, &err),
						 i == 2 || i == 3 ? -EPROTO : -EAGAIN);
				assert_int_equal(strspn(err.msg, "x"),
						 MIN(text[i], sizeof err.msg - 3));
				assert_int_equal(fds_open(), before);
			}
	/* And is written so that the asker's version reads it: ABI 1 took only its own. */
	r.head.abi = 1;
	assert_int_equal(wire_refuse_other(sock[0], &r.head, "both"), 0);
	assert_int_equal(recv(sock[1], in, sizeof in, 0), sizeof(struct wire_refuse));
	memcpy(&r, in, sizeof(struct wire_refuse));
	assert_true(r.head.magic == WIRE_MAGIC && r.head.abi == 1 && r.head.type == 33 &&
		    r.head.bytes == sizeof(struct wire_refuse) && r.head.seq == 7 &&
		    r.code == -EPROTO);
	assert_string_equal(r.text, "both");
	(void)close(sock[0]);
	(void)close(sock[1]);
}

TEST(a_doorbell_is_an_eventfd_that_makes_nobody_wait)
{
	struct ckpt_err err;
	int pair_[2], good = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	int bad[] = ROW(eventfd(0, EFD_CLOEXEC),
			timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC),
			memfd_create("bell", MFD_CLOEXEC),
			open("/dev/null", O_RDWR | O_NONBLOCK | O_CLOEXEC),
			open("/", O_RDONLY | O_NONBLOCK | O_CLOEXEC), -1, -1, -1, -1);

	assert_int_equal(pipe2(pair_, O_NONBLOCK | O_CLOEXEC), 0);
	bad[5] = pair_[0];
	bad[6] = pair_[1];
	pair(&bad[7]);
	assert_int_equal(wire_bell_check(good, &err), 0);
	for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
		assert_true(bad[i] >= 0);
		assert_int_equal(wire_bell_check(bad[i], &err), -EPROTO);
		(void)close(bad[i]);
	}
	assert_int_equal(wire_bell_check(-1, &err), -EPROTO);
	(void)close(good);
}

TEST(memory_of_a_peer_is_mapped_only_when_it_cannot_shrink)
{
	struct ckpt_err err = { 0 };
	void *p;
	int fd, plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING), file;
	char path[] = "/tmp/ckpt-wire-XXXXXX";

	assert_int_equal(wire_memfd("good", 8192, &fd, &err), 0);
	assert_int_equal(wire_map(fd, 4096, 0, &p, &err), -EPROTO);
	assert_int_equal(wire_map(fd, 8193, 0, &p, &err), -EPROTO);
	assert_int_equal(wire_map(fd, 8192, 1, &p, &err),
			 -EPROTO); /* to be read only: it may still be written */
	assert_int_equal(wire_map(fd, 8192, 0, &p, &err), 0);
	memset(p, 1, 8192);
	assert_int_equal(ftruncate(fd, 4096), -1);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1); /* it is mapped */
	munmap(p, 8192);
	assert_int_equal(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), 0);
	assert_int_equal(wire_map(fd, 8192, 1, &p, &err), 0);
	assert_int_equal(*(uint8_t *)p, 1);
	munmap(p, 8192);
	(void)close(fd);

	assert_int_equal(ftruncate(plain, 8192), 0);
	assert_int_equal(wire_map(plain, 8192, 0, &p, &err), -EPROTO);
	assert_non_null(strstr(err.msg, "seals"));
	assert_int_equal(fcntl(plain, F_ADD_SEALS, F_SEAL_SHRINK), 0);
	assert_int_equal(wire_map(plain, 8192, 0, &p, &err), -EPROTO);
	(void)close(plain);
	file = mkstemp(path);
	assert_true(file >= 0 && ftruncate(file, 8192) == 0);
	assert_int_equal(wire_map(file, 8192, 0, &p, &err), -EPROTO);
	(void)unlink(path);
	(void)close(file);
	assert_int_equal(wire_memfd("too much", UINT64_MAX, &fd, &err), -EFBIG);
	assert_int_equal(wire_memfd("empty", 0, &fd, &err), 0);
	assert_int_equal(wire_map(fd, 0, 0, &p, &err), -EPROTO);
	(void)close(fd);
}

TEST(the_default_socket_is_in_a_directory_of_this_user_alone)
{
	char path[108], dir[108];
	struct ckpt_err err = { 0 };
	struct stat st;

	assert_int_equal(wire_socket_path(path, 1, &err), 0);
	snprintf(dir, sizeof dir, "%s", path);
	*strrchr(dir, '/') = 0;
	assert_int_equal(stat(dir, &st), 0);
	assert_true(st.st_uid == geteuid() && (st.st_mode & 0777) == 0700);
}
