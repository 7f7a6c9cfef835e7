// SPDX-License-Identifier: Apache-2.0
// spread_socket.c - see spread_socket.h. Called by walks over a schedule (spread.c).
// Invariant: a byte goes to memory only behind a header that names the round, the message and the
// length that are expected.
#include "ckpt/spread/spread_socket.h"
#include "ckpt/base/mutant.h"
#include "ckpt/base/text.h"
#include "ckpt/base/copy.h"
#include "ckpt/base/util.h"
#include "ckpt/spread/spread_segment.h"
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>

#define BYTES UINT64_C(0x0032444150534b43)  /* "CKSPAD2": the message's bytes follow */
#define SHARED UINT64_C(0x0032524853534b43) /* "CKSSHR2": they lie in a segment of the sender's */
#define TAKEN \
	UINT64_C(0x00324b4154534b43) /* "CKSTAK2": the oldest that was shared has been copied */
#define ENDED UINT64_C(0x0032444e45534b43) /* "CKSEND2": message: the rank at fault; bytes: errno */
#define IO_MAX ((uint64_t)1 << 20)	   /* of one system call: so all peers get their turn */
#define NAMED_MAX 4u			   /* ranks in a sentence */
#define ERRNO_MAX 4095			   /* of Linux */

struct frame { /* on one host: the machine's byte order */
	uint64_t magic, message, bytes;
	uint64_t segment, off; /* SHARED */
};

struct message {
	uint64_t at, bytes;
	uint64_t done; /* of the bytes */
};

struct lane { /* one direction of one socket */
	struct message *message;
	uint32_t n, cap, first; /* first: the one that moves */
	uint64_t number;	/* messages that have ended */
	struct frame frame;	/* on its way; of the first one, or TAKEN */
	uint64_t framed;	/* bytes of it that have moved; all: its message moves */
};

struct peer {
	int fd;
	struct lane out, in;
	uint32_t shared;	  /* messages of mine that it has not copied yet */
	uint32_t taken;		  /* messages of its that I have copied and not confirmed */
	bool told;		  /* it has my segments */
	struct segments segments; /* of its, mapped */
};

struct socket_transport {
	struct spread_transport t;
	struct peer *peer; /* [world] */
	struct pollfd *poll;
	struct segments own;
	bool ended;
	struct frame why; /* ENDED: what the others are sent then */
};

static struct socket_transport *of(struct spread_transport *t)
{
	return (struct socket_transport *)t;
}

static int lane_add(struct socket_transport *s, uint32_t peer, bool out, uint64_t at,
		    uint64_t bytes, struct ckpt_err *err)
{
	struct lane *l = out ? &s->peer[peer].out : &s->peer[peer].in;

	assert(peer < s->t.world && peer != s->t.rank);
	if (s->ended || s->peer[peer].fd < 0)
		return ckpt_error(err, -ECONNRESET, "rank %u has no connection to rank %u",
				  s->t.rank, peer);
	if (!ARRAY_GROW(l->message, l->n, l->cap))
		return ckpt_error(err, -ENOMEM, "no memory for a round");
	l->message[l->n++] = (struct message){ .at = at, .bytes = bytes };
	return 0;
}

static int socket_send(struct spread_transport *t, uint32_t peer, uint64_t from, uint64_t bytes,
		       struct ckpt_err *err)
{
	return lane_add(of(t), peer, true, from, bytes, err);
}

static int socket_recv(struct spread_transport *t, uint32_t peer, uint64_t to, uint64_t bytes,
		       struct ckpt_err *err)
{
	return lane_add(of(t), peer, false, to, bytes, err);
}

static bool lane_moves(const struct lane *l)
{
	return l->first < l->n;
}

static bool peer_reads(const struct peer *p)
{
	return lane_moves(&p->in) || (p->shared && !MUTANT(SPREAD_NOT_TAKEN));
}

static bool peer_writes(const struct peer *p)
{
	return lane_moves(&p->out) || p->taken;
}

/* --- what can go wrong --- */

/* The first error names the rank at fault; the others are sent that. */
static int failed(struct socket_transport *s, uint64_t rank, int code)
{
	if (!s->why.magic)
		s->why = (struct frame){ ENDED, rank, (uint64_t)-code, 0, 0 };
	return code;
}

/* The ranks from which something is awaited, or that do not take what is sent, but for one of them:
 * "1, 4 and others". *ret_first: the first. How many. */
static uint32_t waits_print(const struct socket_transport *s, uint32_t but, struct text *t,
			    uint32_t *ret_first)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->t.world; i++) {
		const struct peer *p = &s->peer[i];

		if (i == but || (!peer_reads(p) && !peer_writes(p)))
			continue;
		if (!n)
			*ret_first = i;
		if (n++ < NAMED_MAX)
			text_add(t, "%s%u", n > 1 ? ", " : "", i);
	}
	if (n > NAMED_MAX)
		text_add(t, " and others");
	return n;
}

/* The peer has ended its exchange because of this rank. If that was late, it waited for others. */
static int blamed(struct socket_transport *s, uint32_t peer, const struct frame *got,
		  const char *what, struct ckpt_err *err)
{
	char rank[NAMED_MAX * 16];
	struct text t = text_in(rank, sizeof rank);
	uint32_t first, n = got->bytes == ETIMEDOUT ? waits_print(s, peer, &t, &first) : 0;

	(void)failed(s, n ? first : s->t.rank, -(int)MIN(got->bytes, (uint64_t)ERRNO_MAX));
	return ckpt_error(err, -ECONNRESET,
			  "rank %u, round %" PRIu64 ": rank %u has ended its exchange, because "
			  "this rank %s%s%s",
			  s->t.rank, s->t.round, peer, what,
			  n > 1 ? "; it waits for ranks "
			  : n	? "; it waits for rank "
				: "",
			  rank);
}

/* The peer has ended its exchange because of another rank. */
static int passed_on(struct socket_transport *s, uint32_t peer, const struct frame *got,
		     struct ckpt_err *err)
{
	const char *what = got->bytes == ETIMEDOUT    ? "did not do its part in time"
			   : got->bytes == EPROTO     ? "sent something else than was expected"
			   : got->bytes == ECONNRESET ? "has closed its connection"
						      : "has failed";

	if (got->message == s->t.rank)
		return blamed(s, peer, got, what, err);
	if (got->message == peer)
		return ckpt_error(err, failed(s, peer, -ECONNRESET),
				  "rank %u, round %" PRIu64 ": rank %u has failed, and has ended "
				  "its exchange: its own error says why",
				  s->t.rank, s->t.round, peer);
	return ckpt_error(err, failed(s, got->message, -ECONNRESET),
			  "rank %u, round %" PRIu64 ": rank %" PRIu64
			  " %s, as rank %u reports, which has ended its exchange",
			  s->t.rank, s->t.round, got->message, what, peer);
}

static int in_step(struct socket_transport *s, uint32_t peer, struct ckpt_err *err);

/* Has the peer sent why it ended, behind all that was expected of it? */
static bool word_left(const struct peer *p, struct frame *ret)
{
	return !p->in.framed &&
	       recv(p->fd, ret, sizeof *ret, MSG_DONTWAIT | MSG_PEEK) == sizeof *ret &&
	       ret->magic == ENDED;
}

/* Bytes of the message that is on its way, with its frame. */
static uint64_t lane_moved(const struct lane *l)
{
	return l->framed + (lane_moves(l) ? l->message[l->first].done : 0);
}

/* Nothing can be sent to the peer any more, or nothing comes. What it sent before may say why. */
static int lost(struct socket_transport *s, uint32_t peer, bool out, struct ckpt_err *err)
{
	struct peer *p = &s->peer[peer];
	uint64_t had = UINT64_MAX, inside;
	struct frame word;
	int rc;

	while (out && peer_reads(p) && had != p->in.first + p->shared + lane_moved(&p->in)) {
		had = p->in.first + p->shared + lane_moved(&p->in);
		rc = in_step(s, peer, err);
		if (rc < 0)
			return rc;
	}
	if (word_left(p, &word))
		return passed_on(s, peer, &word, err);
	rc = failed(s, peer, -ECONNRESET);
	inside = lane_moved(&p->in) ? lane_moved(&p->in) : out ? lane_moved(&p->out) : 0;
	if (inside)
		return ckpt_error(err, rc,
				  "rank %u, round %" PRIu64 ": rank %u has closed its connection "
				  "inside of a message, after %" PRIu64 " of its bytes",
				  s->t.rank, s->t.round, peer, inside);
	return ckpt_error(err, rc, "rank %u, round %" PRIu64 ": rank %u has closed its connection",
			  s->t.rank, s->t.round, peer);
}

static int foreign(struct socket_transport *s, uint32_t peer, const char *what,
		   struct ckpt_err *err)
{
	return ckpt_error(err, failed(s, peer, -EPROTO),
			  "rank %u, round %" PRIu64 ": what rank %u sends is %s", s->t.rank,
			  s->t.round, peer, what);
}

static int unexpected(struct socket_transport *s, uint32_t peer, const struct frame *got,
		      struct ckpt_err *err)
{
	const struct lane *in = &s->peer[peer].in;
	char want[80] = "none";

	if (lane_moves(in))
		snprintf(want, sizeof want, "message %" PRIu64 " of %" PRIu64,
			 in->number + in->first, in->message[in->first].bytes);
	return ckpt_error(err, failed(s, peer, -EPROTO),
			  "rank %u, round %" PRIu64 ": rank %u sends its message %" PRIu64
			  " of %" PRIu64 " bytes, and %s is expected: the ranks' schedules differ",
			  s->t.rank, s->t.round, peer, got->message, got->bytes, want);
}

/* --- moving --- */

static void message_end(struct lane *l)
{
	l->first++;
	l->framed = 0;
}

/* n: a result of send or recv. *ret_n: how many bytes moved. */
static int moved(struct socket_transport *s, uint32_t peer, bool out, ssize_t n, uint64_t *ret_n,
		 struct ckpt_err *err)
{
	*ret_n = n > 0 ? (uint64_t)n : 0;
	if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)))
		return 0;
	if (n < 0 && errno == EBADMSG)
		return foreign(s, peer, "no memory that can be read", err);
	if (n < 0 && errno != EPIPE && errno != ECONNRESET)
		return ckpt_error_errno(err, -failed(s, peer, -errno),
					"rank %u, round %" PRIu64 ": the socket to rank %u",
					s->t.rank, s->t.round, peer);
	return lost(s, peer, out, err);
}

/* The message of a frame that has come. */
static int message_begin(struct socket_transport *s, uint32_t peer, struct ckpt_err *err)
{
	struct peer *p = &s->peer[peer];
	const struct frame *f = &p->in.frame;
	struct message *m = lane_moves(&p->in) ? &p->in.message[p->in.first] : NULL;
	uint64_t from;

	if (!m || ((f->message != p->in.number + p->in.first || f->bytes != m->bytes) &&
		   !MUTANT(SPREAD_ANY_MESSAGE)))
		return unexpected(s, peer, f, err);
	if (f->magic == SHARED) {
		from = segments_at(&p->segments, f->segment, f->off, f->bytes);
		if (!from)
			return foreign(s, peer, "no memory that it shares", err);
		copy_lines((void *)(uintptr_t)m->at, 0, (const void *)(uintptr_t)from, 0, m->bytes,
			   1);
		m->done = m->bytes;
		p->taken++;
	}
	if (m->done == m->bytes)
		message_end(&p->in);
	return 0;
}

static int frame_take(struct socket_transport *s, uint32_t peer, struct ckpt_err *err)
{
	struct peer *p = &s->peer[peer];
	const struct frame *f = &p->in.frame;

	if (f->magic == ENDED)
		return passed_on(s, peer, f, err);
	if (f->magic == BYTES || f->magic == SHARED)
		return message_begin(s, peer, err);
	if (f->magic != TAKEN || !p->shared)
		return foreign(s, peer, "no message", err);
	p->shared--;
	p->in.framed = 0;
	return 0;
}

/* Bytes of the first message of a lane. */
static int message_step(struct socket_transport *s, uint32_t peer, bool out, struct ckpt_err *err)
{
	struct peer *p = &s->peer[peer];
	struct lane *l = out ? &p->out : &p->in;
	struct message *m = &l->message[l->first];
	uint8_t *at = (uint8_t *)(uintptr_t)m->at + m->done;
	size_t n = (size_t)MIN(m->bytes - m->done, IO_MAX);
	uint64_t moves;
	int rc = moved(s, peer, out,
		       out ? send(p->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL)
			   : recv(p->fd, at, n, MSG_DONTWAIT),
		       &moves, err);

	m->done += moves;
	if (rc == 0 && m->done == m->bytes)
		message_end(l);
	return rc;
}

static int in_step(struct socket_transport *s, uint32_t peer, struct ckpt_err *err)
{
	struct peer *p = &s->peer[peer];
	struct lane *l = &p->in;
	uint64_t n;
	int rc;

	if (l->framed < sizeof l->frame) {
		rc = moved(s, peer, false,
			   segments_recv(&p->segments, p->fd, (uint8_t *)&l->frame + l->framed,
					 sizeof l->frame - l->framed),
			   &n, err);
		l->framed += n;
		return rc == 0 && n && l->framed == sizeof l->frame ? frame_take(s, peer, err) : rc;
	}
	return message_step(s, peer, false, err);
}

/* What is sent next: a confirmation goes before the next message. */
static struct frame frame_next(struct socket_transport *s, struct peer *p)
{
	const struct lane *l = &p->out;
	struct frame f = { .magic = TAKEN };
	const struct message *m;
	uint32_t segment;

	if (p->taken)
		return f;
	m = &l->message[l->first];
	f = (struct frame){ BYTES, l->number + l->first, m->bytes, 0, 0 };
	if (m->bytes >= SPREAD_SHARED_MIN &&
	    segments_find(&s->own, m->at, m->bytes, &segment, &f.off)) {
		f.magic = SHARED;
		f.segment = segment;
	}
	return f;
}

static void frame_sent(struct peer *p)
{
	struct lane *l = &p->out;

	if (l->frame.magic == TAKEN) {
		p->taken--;
		l->framed = 0;
		return;
	}
	p->told |= l->frame.magic == SHARED;
	p->shared += l->frame.magic == SHARED;
	if (l->frame.magic == SHARED || !l->message[l->first].bytes)
		message_end(l);
}

static int out_step(struct socket_transport *s, uint32_t peer, struct ckpt_err *err)
{
	struct peer *p = &s->peer[peer];
	struct lane *l = &p->out;
	uint64_t n;
	int rc;

	if (l->framed < sizeof l->frame) {
		const uint8_t *at = (uint8_t *)&l->frame + l->framed;
		bool tell;

		if (!l->framed)
			l->frame = frame_next(s, p);
		tell = l->frame.magic == SHARED && !p->told && !l->framed;
		n = sizeof l->frame - l->framed;
		rc = moved(s, peer, true,
			   tell ? segments_send(&s->own, p->fd, at, n)
				: send(p->fd, at, n, MSG_DONTWAIT | MSG_NOSIGNAL),
			   &n, err);
		l->framed += n;
		if (rc == 0 && l->framed == sizeof l->frame)
			frame_sent(p);
		return rc;
	}
	return message_step(s, peer, true, err);
}

/* How many sockets have something to move. */
static uint32_t polls_make(struct socket_transport *s)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < s->t.world; i++) {
		const struct peer *p = &s->peer[i];
		bool in = peer_reads(p), out = peer_writes(p);

		s->poll[i] = (struct pollfd){ .fd = in || out ? p->fd : -1,
					      .events = (short)((in ? POLLIN : 0) |
								(out ? POLLOUT : 0)) };
		n += in || out;
	}
	return n;
}

static int polled_move(struct socket_transport *s, struct ckpt_err *err)
{
	int rc = 0;

	for (uint32_t i = 0; i < s->t.world && rc == 0; i++) {
		short got = s->poll[i].fd < 0 ? 0 : s->poll[i].revents;
		bool bad = got & (POLLHUP | POLLERR | POLLNVAL);

		/* What has arrived before the end of a connection counts. */
		if (got & (POLLIN | POLLHUP | POLLERR) && peer_reads(&s->peer[i]))
			rc = in_step(s, i, err);
		if (rc == 0 && (got & POLLOUT || bad) && peer_writes(&s->peer[i]))
			rc = out_step(s, i, err);
	}
	return rc;
}

static void lane_clear(struct lane *l)
{
	l->number += l->n;
	l->n = l->first = 0;
}

static int late(struct socket_transport *s, struct ckpt_err *err)
{
	char rank[NAMED_MAX * 16];
	struct text t = text_in(rank, sizeof rank);
	uint32_t first = 0, n = waits_print(s, s->t.rank, &t, &first);

	return ckpt_error(err, failed(s, first, -ETIMEDOUT),
			  "rank %u, round %" PRIu64 ": the time is over, and rank%s %s %s not done "
			  "%s part",
			  s->t.rank, s->t.round, n > 1 ? "s" : "", rank, n > 1 ? "have" : "has",
			  n > 1 ? "their" : "its");
}

/* Once more when the time is over: what has come by then counts. */
static int socket_wait(struct socket_transport *s, uint64_t deadline_ns, struct ckpt_err *err)
{
	uint64_t now = now_ns();
	int ms = now < deadline_ns ? (int)MIN((deadline_ns - now) / NS_PER_MS + 1, UINT64_C(1000))
				   : 0;
	int n = poll(s->poll, s->t.world, ms);
	int rc = n > 0 ? polled_move(s, err) : 0;

	if (n < 0 && errno != EINTR)
		rc = ckpt_error_errno(err, errno, "rank %u, round %" PRIu64, s->t.rank, s->t.round);
	if (rc == 0 && now >= deadline_ns && polls_make(s) > 0)
		rc = late(s, err);
	return rc;
}

/* Only the next message of a peer may have come, or why it ended. What is there stays there. */
static int next_check(struct socket_transport *s, uint32_t peer, struct ckpt_err *err)
{
	const struct peer *p = &s->peer[peer];
	struct frame f;
	ssize_t n = recv(p->fd, &f, sizeof f, MSG_DONTWAIT | MSG_PEEK);

	if (n < (ssize_t)sizeof f.magic || f.magic == ENDED)
		return 0;
	if (f.magic != BYTES && f.magic != SHARED)
		return foreign(s, peer, "no message", err);
	return n == sizeof f && f.message != p->in.number ? unexpected(s, peer, &f, err) : 0;
}

static int next_checks(struct socket_transport *s, struct ckpt_err *err)
{
	int rc = 0, n;

	for (uint32_t i = 0; i < s->t.world; i++)
		s->poll[i] = (struct pollfd){ .fd = s->peer[i].fd, .events = POLLIN };
	n = poll(s->poll, s->t.world, 0);
	for (uint32_t i = 0; i < s->t.world && n > 0 && rc == 0; i++)
		if (s->poll[i].revents & POLLIN)
			rc = next_check(s, i, err);
	return rc;
}

static int socket_round_end(struct spread_transport *t, uint64_t deadline_ns, struct ckpt_err *err)
{
	struct socket_transport *s = of(t);
	bool some = false;
	int rc = 0;

	while (rc == 0 && polls_make(s) > 0)
		rc = socket_wait(s, deadline_ns, err);
	for (uint32_t i = 0; i < t->world && rc == 0; i++) {
		some |= s->peer[i].in.n || s->peer[i].out.n;
		lane_clear(&s->peer[i].in);
		lane_clear(&s->peer[i].out);
	}
	if (rc == 0 && !some)
		rc = next_checks(s, err);
	t->round += rc == 0;
	s->ended |= rc < 0;
	return rc;
}

/*
 * Every rank that waits for this one reads why, if this one is not inside of a message to it and
 * the socket has room. In any case it reads the end of the socket.
 */
static void socket_abort(struct spread_transport *t)
{
	struct socket_transport *s = of(t);

	(void)failed(s, t->rank, -ECANCELED);
	s->ended = true;
	for (uint32_t i = 0; i < t->world; i++) {
		const struct lane *l = &s->peer[i].out;

		if (s->peer[i].fd < 0)
			continue;
		if (!l->framed)
			(void)!send(s->peer[i].fd, &s->why, sizeof s->why,
				    MSG_DONTWAIT | MSG_NOSIGNAL);
		(void)shutdown(s->peer[i].fd, SHUT_RDWR);
	}
}

static void socket_close(struct spread_transport *t)
{
	struct socket_transport *s = of(t);

	for (uint32_t i = 0; s->peer && i < t->world; i++) {
		if (s->peer[i].fd >= 0)
			(void)close(s->peer[i].fd);
		segments_unmap(&s->peer[i].segments);
		free(s->peer[i].in.message);
		free(s->peer[i].out.message);
	}
	free(s->peer);
	free(s->poll);
	free(s);
}

int spread_socket_open(uint32_t rank, uint32_t world, const int *fd, struct spread_transport **ret,
		       struct ckpt_err *err)
{
	static const struct spread_calls calls = { socket_send, socket_recv, socket_round_end,
						   socket_abort, socket_close };
	struct socket_transport *s = calloc(1, sizeof *s);

	if (s) {
		s->t = (struct spread_transport){ .calls = &calls, .rank = rank, .world = world };
		s->peer = calloc(world, sizeof *s->peer);
		s->poll = calloc(world, sizeof *s->poll);
	}
	if (!s || !s->peer || !s->poll) {
		free(s ? s->peer : NULL);
		free(s ? s->poll : NULL);
		free(s);
		return ckpt_error(err, -ENOMEM, "no memory for %u sockets", world);
	}
	for (uint32_t i = 0; i < world; i++)
		s->peer[i].fd = i == rank ? -1 : fd[i];
	*ret = &s->t;
	return 0;
}

void spread_socket_share(struct spread_transport *t, const struct spread_segment *segment,
			 uint32_t n)
{
	struct socket_transport *s = of(t);

	assert(n <= SPREAD_SEGMENTS_MAX && !t->round);
	s->own.n = n;
	memcpy(s->own.at, segment, n * sizeof *segment);
}
