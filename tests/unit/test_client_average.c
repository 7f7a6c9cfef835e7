/* SPDX-License-Identifier: Apache-2.0 */
/*
 * test_client_average.c - averages as the library declares them, beside a daemon that is a script:
 * it notes what comes and answers as a case says. What is malformed is refused by ckpt_average, all
 * that is wrong otherwise by ckpt_seal before anything is sent, and what is declared does not
 * depend on the order of calls.
 */
#include "ckpt/base/container.h"
#include "ckpt/base/pages.h"
#include "ckpt/client/handle.h"
#include "ckpt/table/encode.h"
#include "tests/lib/row.h"
#include "tests/lib/scratch.h"
#include "tests/lib/unit.h"
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define SLOT_BYTES (4u << 20)
#define SEEDS 32
#define DAEMONS 3 /* that follow upon each other */

/* What the daemon has heard; read by a case when it has been answered. */
static struct {
	char dir[SCRATCH_MAX], store[96], socket[96];
	_Atomic uint32_t over;
	int listener, sock;
	pthread_t thread;
	struct shared_job *job;
	struct shared_rank *rank;
	/* answers */
	_Atomic uint32_t nslot, page_nslot, refuse_seed;
	const char *averages; /* of RESTORED */
	bool rows;	      /* SEALED brings a row for each piece of the process's own memory */
	uint32_t page_then; /* what the page says of slots when the epoch is ready; 0: as SEALED */
	/* what came */
	char order[256]; /* the first letter of each request but BYE; 'e' for SEED */
	struct wire_hello hello;
	struct wire_adopt adopt[8];
	struct wire_seed seed[SEEDS];
	struct stat seed_dir[SEEDS];
	uint32_t nadopt, nseed;
	_Atomic uint32_t ndeclare;
	struct wire_declare declare;
	struct table decl; /* of the newest DECLARE */
	int slot_fd[WIRE_SLOTS_MAX];
} D = { .listener = -1, .sock = -1 };

static struct {
	pthread_mutex_t lock;
	char text[16384];
} said = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void hear(void *ctx, int level, const char *line)
{
	size_t n;

	(void)ctx, (void)level;
	pthread_mutex_lock(&said.lock);
	n = strlen(said.text);
	snprintf(said.text + n, sizeof said.text - n, "%s\n", line);
	pthread_mutex_unlock(&said.lock);
}

static uint32_t times_said(const char *text)
{
	uint32_t n = 0;

	pthread_mutex_lock(&said.lock);
	for (const char *p = said.text; (p = strstr(p, text)); p++)
		n++;
	pthread_mutex_unlock(&said.lock);
	return n;
}

/* --- the daemon --- */
static int page(uint64_t bytes, void *ret_map)
{
	struct ckpt_err err;
	int fd;

	assert_ok_err(wire_memfd("page", bytes, &fd, &err), &err);
	assert_ok_err(wire_map(fd, bytes, 0, ret_map, &err), &err);
	return fd;
}

static void pages_forget(void)
{
	if (D.rank)
		munmap(TAKE(D.rank), sizeof *D.rank);
	if (D.job)
		munmap(TAKE(D.job), sizeof *D.job);
}

static void welcome(const struct wire_head *ask)
{
	struct wire_welcome w = { .generation = 1, .nslot = D.hello.nslot };
	int fd[3];

	pages_forget();
	fd[0] = page(sizeof *D.rank, &D.rank);
	fd[1] = page(sizeof *D.job, &D.job);
	fd[2] = eventfd(0, EFD_NONBLOCK);
	D.rank->magic = D.job->magic = SHARED_MAGIC;
	D.rank->rank = D.hello.rank;
	D.job->world = D.hello.world;
	D.job->nslot = D.page_nslot;
	atomic_store(&D.job->beat_ns, now_ns());
	(void)wire_send(D.sock, &w, WIRE_WELCOME, sizeof w, ask->seq, fd, 3);
	wire_close_fds(fd, 3);
}

static void decode(int fd)
{
	struct table_section section[CONTAINER_SECT_MAX];
	struct container_view v;
	struct ckpt_err err;
	void *p;

	assert_ok_err(wire_map(fd, D.declare.bytes, 1, &p, &err), &err);
	assert_ok_err(container_decode(p, D.declare.bytes, CONTAINER_DECLARATION, &v, &err), &err);
	for (uint32_t i = 0; i < v.map.nsect; i++) {
		const struct container_bytes b = container_view_get(&v, v.map.sect[i].kind);

		section[i] = (struct table_section){ .kind = b.kind,
						     .rec_bytes = b.rec_bytes,
						     .len = b.len,
						     .count = b.count,
						     .bytes = b.p };
	}
	table_free(&D.decl);
	assert_ok_err(table_decode(section, v.map.nsect, NULL, 0, &D.decl, &err), &err);
	munmap(p, D.declare.bytes);
}

static void slots_close(void)
{
	for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
		if (D.slot_fd[i] > 0)
			(void)close(D.slot_fd[i]), D.slot_fd[i] = 0;
}

static int rows_make(uint32_t *ret_n)
{
	struct wire_row row[8];
	struct ckpt_err err;
	int fd;

	*ret_n = 0;
	for (uint32_t i = 0; i < D.decl.npiece; i++) {
		const struct table_piece *p = &D.decl.piece[i];

		if (D.decl.place[p->place].bytes == WIRE_OWN_BYTES)
			row[(*ret_n)++] = (struct wire_row)ROW(.tensor = p->tensor, .src = p->off,
							       .flags = WIRE_ROW_CLIENT,
							       .width = p->len, .rows = 1);
	}
	assert_int_not_equal(*ret_n, 0);
	assert_ok_err(wire_memfd_of("rows", row, *ret_n * sizeof *row, &fd, &err), &err);
	return fd;
}

static void on_declare(const struct wire_head *ask, int in)
{
	struct wire_sealed m = { .epoch = D.declare.epoch,
				 .rev = D.declare.rev,
				 .nslot = D.nslot,
				 .slot_bytes = SLOT_BYTES };
	int fd[WIRE_FDS_MAX], nfd = (int)m.nslot;
	struct ckpt_err err;

	decode(in);
	D.ndeclare++;
	slots_close();
	for (uint32_t i = 0; i < m.nslot; i++) {
		assert_ok_err(wire_memfd("slot", SLOT_BYTES, &fd[i], &err), &err);
		D.slot_fd[i] = fd[i];
	}
	if (D.rows)
		fd[nfd++] = rows_make(&m.nrow);
	atomic_store(&D.job->nslot, D.page_then ? D.page_then : m.nslot);
	atomic_store(&D.job->ready_epoch, m.epoch);
	(void)wire_send(D.sock, &m, WIRE_SEALED, sizeof m, ask->seq, fd, nfd);
	shared_event(D.job);
	if (m.nrow)
		(void)close(fd[m.nslot]);
}

static void restored(const struct wire_head *ask)
{
	struct wire_restored r = { .step = 7, .where = 2, .world_saved = 1, .ntensor = 3 };
	struct ckpt_err err;
	uint64_t none = 0;
	int fd;

	snprintf(r.averages, sizeof r.averages, "%s", D.averages ? D.averages : "");
	r.blob_bytes = sizeof none;
	assert_ok_err(wire_memfd("blobs", sizeof none, &fd, &err), &err);
	(void)wire_send(D.sock, &r, WIRE_RESTORED, sizeof r, ask->seq, &fd, 1);
	(void)close(fd);
}

static void answer_ok(const struct wire_head *ask)
{
	struct wire_ok ok = { 0 };

	(void)wire_send(D.sock, &ok, WIRE_OK, sizeof ok, ask->seq, NULL, 0);
}

static void on_seed(const struct wire_head *ask, const struct wire_seed *m, int fd)
{
	struct wire_refuse no = { .code = -EACCES, .text = "not that one" };

	if (D.refuse_seed) {
		(void)wire_send(D.sock, &no, WIRE_REFUSE, sizeof no, ask->seq, NULL, 0);
		return;
	}
	D.seed[D.nseed] = *m;
	if (!m->error)
		assert_int_equal(fstat(fd, &D.seed_dir[D.nseed]), 0);
	D.nseed++;
	answer_ok(ask);
}

/* False: the connection is over. */
static bool serve(void)
{
	static const char letter[] = {
		[WIRE_HELLO] = 'H',   [WIRE_SEGMENT] = 'S', [WIRE_ADOPT] = 'A',
		[WIRE_DECLARE] = 'D', [WIRE_RESTORE] = 'R', [WIRE_SEED] = 'e'
	};
	_Alignas(16) uint8_t in[WIRE_BYTES_MAX];
	const struct wire_head *head = (const struct wire_head *)in;
	int fd[WIRE_FDS_MAX], nfd;
	size_t n = strlen(D.order);
	int rc = wire_recv(D.sock, in, sizeof in, fd, &nfd);

	if (rc <= 0)
		return false;
	assert_int_equal(wire_request_check(in, (uint32_t)rc, nfd), 0);
	if (head->type < sizeof letter && letter[head->type] && n + 1 < sizeof D.order)
		D.order[n] = letter[head->type];
	switch (head->type) {
	case WIRE_HELLO:
		memcpy(&D.hello, in, sizeof D.hello);
		welcome(head);
		break;
	case WIRE_ADOPT:
		memcpy(&D.adopt[D.nadopt++ % ARRAY_LEN(D.adopt)], in, sizeof *D.adopt);
		answer_ok(head);
		break;
	case WIRE_SEED:
		on_seed(head, (const struct wire_seed *)in, fd[0]);
		break;
	case WIRE_DECLARE:
		memcpy(&D.declare, in, sizeof D.declare);
		on_declare(head, fd[0]);
		break;
	case WIRE_RESTORE:
		restored(head);
		break;
	default:
		answer_ok(head);
	}
	wire_close_fds(fd, nfd);
	return true;
}

static void *daemon_run(void *arg)
{
	struct pollfd p = { .events = POLLIN };

	(void)arg;
	while (!atomic_load(&D.over)) {
		if (D.job)
			atomic_store(&D.job->beat_ns, now_ns());
		p.fd = D.sock >= 0 ? D.sock : D.listener;
		if (poll(&p, 1, 10) <= 0)
			continue;
		if (D.sock < 0)
			D.sock = accept4(D.listener, NULL, NULL, SOCK_CLOEXEC);
		else if (!serve())
			(void)close(TAKE_FD(D.sock));
	}
	if (D.sock >= 0)
		(void)close(TAKE_FD(D.sock));
	return NULL;
}

static void daemon_start(void)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };

	strcpy(a.sun_path, D.socket);
	atomic_store(&D.over, 0);
	D.listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(D.listener, (struct sockaddr *)&a, sizeof a), 0);
	assert_int_equal(listen(D.listener, 8), 0);
	assert_int_equal(pthread_create(&D.thread, NULL, daemon_run, NULL), 0);
}

static void daemon_stop(void)
{
	atomic_store(&D.over, 1);
	pthread_join(D.thread, NULL);
	(void)close(TAKE_FD(D.listener));
	(void)unlink(D.socket);
}

/* --- the library --- */
static ckpt *c;
static struct ckpt_err err;
static uint8_t *memory;
static uint32_t mesh, param;

static const uint64_t shape[] = { 16 };
static const struct ckpt_placement place[] = { { .how = CKPT_REPLICATE } };

static int tensor_add(const char *component, const char *name, uint32_t cls, uint32_t role,
		      uint32_t *ret_id)
{
	struct ckpt_local at = { .ptr = memory };
	struct ckpt_tensor t =
		ROW(.size = sizeof t, .cls = cls, .role = role, .dtype = CKPT_F32,
		    .component = component, .name = name, .ndim = 1, .mesh = mesh, .nplace = 1,
		    .nlocal = 1, .shape = shape, .place = place, .local = &at);

	return ckpt_tensor_add(c, &t, ret_id, &err);
}

static void attach(uint32_t slots)
{
	struct ckpt_opts o =
		ROW(.size = sizeof o, .flags = CKPT_REQUIRE, .job = "j", .store = D.store,
		    .socket = D.socket, .world = 1, .slots = slots, .log = hear);
	uint32_t one = 1;
	void *p;

	D.page_nslot = slots;
	assert_ok_err(ckpt_attach(&o, &c, &err), &err);
	assert_ok_err(ckpt_mesh(c, 1, (const char *const[]){ "dp" }, &one, NULL, &mesh, &err),
		      &err);
	assert_ok_err(ckpt_alloc(c, 4096, &p, &err), &err);
	memory = p;
	assert_ok_err(tensor_add("model", "w", CKPT_STABLE, CKPT_PARAM, &param), &err);
}

static int setup(void **state)
{
	(void)state;
	memset(said.text, 0, sizeof said.text);
	memset(&D, 0, sizeof D); /* one process may run all cases */
	D.listener = D.sock = -1;
	scratch_make(D.dir);
	snprintf(D.socket, sizeof D.socket, "%s/s", D.dir);
	snprintf(D.store, sizeof D.store, "%s/store", D.dir);
	D.nslot = 2;
	daemon_start();
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	if (c)
		assert_int_equal(ckpt_detach(TAKE(c), 0), 0);
	daemon_stop();
	pages_forget();
	slots_close();
	table_free(&D.decl);
	return scratch_remove(D.dir);
}

static void average(const char *name, const char *spec)
{
	assert_ok_err(ckpt_average(c, name, spec, &err), &err);
}

static void seal(void)
{
	assert_ok_err(ckpt_seal(c, 60 * NS_PER_S, &err), &err);
}

static void must_say(const char *text)
{
	if (!strstr(err.msg, text))
		fail_msg("\"%s\" is not in: %s", text, err.msg);
}

/* Which averages were declared, as "fast=..., slow=...". */
static const char *declared(void)
{
	static char text[4096];
	size_t n = 0;

	text[0] = 0;
	for (uint32_t i = 0; i < D.decl.naverage; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, "%s%s: %s", i ? "; " : "",
				      D.decl.average[i].name, D.decl.average[i].schedule);
	return text;
}

/* --- the calls --- */
TEST(a_spec_that_does_not_parse_is_refused_at_once_and_nothing_is_kept)
{
	static const char *const wrong[] = { "",
					     " ",
					     "ewma decay=.9",
					     "constant",
					     "constant decay",
					     "constant decay=x",
					     "constant decay=.9 decay=.8",
					     "constant decay=.9 fast",
					     "constant decay=.9 w=often",
					     "constant decay=.9 w=(",
					     "uniform decay=.9",
					     "constant decay=.9\001" };
	char nul[8] = "";

	attach(0);
	for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
		err.msg[0] = 0;
		if (ckpt_average(c, "fast", wrong[i], &err) != -EINVAL)
			fail_msg("\"%s\" is taken", wrong[i]);
		must_say("average fast: ");
		assert_int_equal(ckpt_average(c, "fast", wrong[i], NULL), -EINVAL);
	}
	assert_int_equal(ckpt_average(c, NULL, "constant decay=.9", &err), -EINVAL);
	must_say("needs a name");
	assert_int_equal(ckpt_average(NULL, "fast", "constant decay=.9", &err), -EINVAL);
	assert_int_equal(ckpt_average(c, "fast", NULL, &err), -EINVAL);
	must_say("no average fast");
	assert_int_equal(ckpt_average(c, "fast", nul, &err), -EINVAL);
	seal();
	assert_string_equal(declared(), "");
}

TEST(a_declaration_has_a_record_of_each_average_with_its_canonical_spec)
{
	attach(0);
	average("fast", "constant decay=.999");
	seal();
	assert_string_equal(declared(), "fast: constant decay=0.999 start=0 source=master");
	assert_int_equal(D.decl.average[0].rule, 0);
	assert_int_equal(D.decl.average[0].flags, 0);
	assert_true(D.decl.average[0].last_step == EMA_NO_STEP);
	assert_int_equal(D.decl.average[0].updates, 0);
	assert_int_equal(D.decl.average[0].since, 0);
	assert_true(D.decl.average[0].product == 0);
	for (uint32_t i = 0; i < 16; i++)
		assert_int_equal(D.decl.average[0].history[i], 0);
	assert_string_equal(D.order, "HSD");
}

TEST(the_order_of_calls_does_not_matter)
{
	static const char *const spec[][2] =
		ROW({ "b", "uniform" }, { "a", "halflife fraction=.05" }, { "aa", "zero decay=.5" },
		    { "B", "uniform" });
	static const uint32_t order[][4] = { { 0, 1, 2, 3 }, { 3, 2, 1, 0 }, { 2, 0, 3, 1 } };
	char first[4096] = "";

	attach(0);
	for (size_t i = 0; i < ARRAY_LEN(order); i++) {
		for (size_t k = 0; k < 4; k++)
			average(spec[order[i][k]][0], spec[order[i][k]][1]);
		seal();
		if (!i)
			snprintf(first, sizeof first, "%s", declared());
		assert_string_equal(declared(), first);
		for (size_t k = 0; k < 4; k++)
			average(spec[k][0], NULL);
	}
	assert_int_equal(strncmp(first, "B: ", 3), 0);
	seal();
	assert_string_equal(declared(), "");
}

TEST(a_name_is_declared_once_and_changed_by_removing_it_first)
{
	attach(0);
	average("fast", "constant decay=.999");
	assert_int_equal(ckpt_average(c, "fast", "constant decay=.9", &err), -EALREADY);
	must_say("declared twice");
	seal();
	assert_string_equal(declared(), "fast: constant decay=0.999 start=0 source=master");
	average("fast", NULL);
	average("fast", "constant decay=.9");
	seal();
	assert_string_equal(declared(), "fast: constant decay=0.9 start=0 source=master");
}

TEST(each_change_is_another_epoch_and_until_it_is_sealed_snapshots_are_skipped)
{
	attach(0);
	assert_ok(ckpt_fresh(c));
	seal();
	assert_int_equal(D.declare.epoch, 1);
	for (uint32_t i = 0; i < 3; i++) {
		average(i % 2 ? "other" : "fast", i < 2 ? "uniform" : NULL);
		assert_int_equal(ckpt_snapshot(c, i + 1, NULL), CKPT_SKIPPED);
		seal();
		assert_int_equal(D.declare.epoch, i + 2);
		assert_int_equal(D.declare.rev, 0);
		assert_int_equal(D.decl.naverage, i < 2 ? i + 1 : 1);
	}
	/* A tensor that moves is a rev, in which the averages are the same. */
	assert_ok_err(
		ckpt_tensor_move(c, param, &(struct ckpt_local){ .ptr = memory + 256 }, 1, &err),
		&err);
	seal();
	assert_int_equal(D.declare.epoch, 4);
	assert_int_equal(D.declare.rev, 1);
	assert_string_equal(declared(), "other: uniform start=0 source=master");
}

TEST(all_mistakes_of_all_averages_are_listed_at_the_seal_and_nothing_is_sent)
{
	static const char *const spec[][2] =
		ROW({ "fast", "constant decay=1 b*=copy b*=skip" }, { "a/b", "uniform" },
		    { "slow", "power sigma_rel=.9" }, { "", "uniform" },
		    { "x.carry", "halflife fraction=-1" }, { "good", "constant decay=.5" },
		    { "seeded", "zero decay=2 seed=/nowhere/step-000000000030" });
	static const char *const lines[] = {
		"average fast: ", "average a/b: ",     "average slow: ",
		"average : ",	  "average x.carry: ", "average seeded: ",
	};
	char first[sizeof err.msg];
	uint32_t sent;

	attach(0);
	for (size_t i = 0; i < ARRAY_LEN(spec); i++)
		average(spec[i][0], spec[i][1]);
	sent = (uint32_t)strlen(D.order);
	assert_int_equal(ckpt_seal(c, 10 * NS_PER_S, &err), -EINVAL);
	for (size_t i = 0; i < ARRAY_LEN(lines); i++)
		must_say(lines[i]);
	assert_null(strstr(err.msg, "average good"));
	memcpy(first, err.msg, sizeof first);
	assert_int_equal(ckpt_seal(c, 0, &err), -EINVAL); /* again, in the same words */
	assert_string_equal(err.msg, first);
	assert_int_equal(strlen(D.order), sent);
	assert_int_equal(D.ndeclare, 0);
	/* Corrected, it is the first epoch, as on ranks whose declaration was good. */
	for (size_t i = 0; i < ARRAY_LEN(spec); i++)
		if (strcmp(spec[i][0], "good") != 0)
			average(spec[i][0], NULL);
	seal();
	assert_int_equal(D.declare.epoch, 1);
	assert_int_equal(D.decl.naverage, 1);
}

TEST(there_is_room_for_64_schedules_those_of_rules_included)
{
	char name[16], spec[EMA_SPEC_BYTES] = "uniform";
	size_t n = strlen(spec);

	attach(0);
	for (uint32_t i = 0; i < TABLE_AVERAGES_MAX; i++) {
		snprintf(name, sizeof name, "a%u", i);
		average(name, "uniform");
	}
	assert_int_equal(ckpt_average(c, "more", "uniform", &err), -E2BIG);
	must_say("at most 64");
	seal();
	assert_int_equal(D.decl.naverage, 64);
	for (uint32_t i = 1; i < TABLE_AVERAGES_MAX; i++) {
		snprintf(name, sizeof name, "a%u", i);
		average(name, NULL);
	}
	for (uint32_t i = 0; i < 62; i++)
		n += (size_t)snprintf(spec + n, sizeof spec - n, " r%u=(uniform)", i);
	average("rules", spec);
	assert_int_equal(ckpt_average(c, "more", "uniform", &err), -E2BIG);
	average("a0", NULL);
	assert_int_equal(ckpt_average(c, "more", "uniform r=(uniform)", &err), -E2BIG);
	must_say("it has 2 schedules");
	average("more", "uniform r=copy");
}

TEST(what_is_not_advised_is_logged_once_at_the_seal)
{
	attach(0);
	average("long", "constant decay=.999999");
	assert_int_equal(times_said("average long"), 0);
	seal();
	assert_int_equal(times_said("average long"), 1);
	average("other", "uniform");
	seal();
	assert_int_equal(times_said("average long"), 1);
	assert_int_equal(times_said("average other"), 0);
	average("long", NULL);
	average("long", "constant decay=.9999999");
	seal();
	assert_int_equal(times_said("average long"), 2);
}

TEST(components_of_averages_take_sinks_and_nothing_else)
{
	attach(0);
	for (uint32_t cls = CKPT_STABLE; cls < CKPT_SINK; cls++) {
		if (cls == CKPT_DERIVED)
			continue; /* of F32 it is refused for another reason */
		assert_int_equal(tensor_add("ema.fast", "w", cls, CKPT_AVERAGE, NULL), -EINVAL);
		must_say("ema.fast/w: components that begin with ema.");
	}
	assert_ok_err(tensor_add("ema.fast", "w", CKPT_SINK, CKPT_AVERAGE, NULL), &err);
	assert_ok_err(tensor_add("emax", "w", CKPT_STABLE, CKPT_PARAM, NULL), &err);
	assert_ok_err(tensor_add("ema", "w", CKPT_STABLE, CKPT_PARAM, NULL), &err);
	average("fast", "uniform");
	seal();
	assert_int_not_equal(table_find(&D.decl, "ema.fast", "w", TABLE_NONE), TABLE_NONE);
}

/* --- seeds --- */
TEST(a_seed_is_opened_by_the_library_and_sent_before_the_declaration)
{
	char cwd[4096], spec[256], step[128];
	struct stat st;

	attach(0);
	snprintf(step, sizeof step, "%s/step-000000000030", D.dir);
	assert_int_equal(mkdir(step, 0700), 0);
	assert_int_equal(stat(step, &st), 0);
	average("a", "uniform");
	snprintf(spec, sizeof spec, "uniform seed=%s", step);
	average("c", spec);
	assert_non_null(getcwd(cwd, sizeof cwd));
	assert_int_equal(chdir(D.dir), 0);
	average("b", "uniform seed=step-000000000030"); /* of the process's directory */
	seal();
	assert_int_equal(chdir(cwd), 0);
	assert_string_equal(D.order, "HSeeD");
	assert_int_equal(D.seed[0].average, 1);
	assert_string_equal(D.seed[0].path, "step-000000000030");
	assert_int_equal(D.seed[1].average, 2);
	assert_string_equal(D.seed[1].path, step);
	for (uint32_t i = 0; i < 2; i++)
		assert_true(D.seed_dir[i].st_ino == st.st_ino && D.seed_dir[i].st_dev == st.st_dev);
	/* Another rev of the epoch needs none, another epoch does, though it is there no more. */
	assert_int_equal(rmdir(step), 0);
	assert_ok_err(
		ckpt_tensor_move(c, param, &(struct ckpt_local){ .ptr = memory + 256 }, 1, &err),
		&err);
	seal();
	assert_string_equal(D.order, "HSeeDD");
	average("a", NULL);
	seal();
	assert_string_equal(D.order, "HSeeDDeeD");
	assert_int_equal(D.seed[2].average, 0);
	average("b", NULL);
	average("c", NULL);
	seal();
	assert_string_equal(D.order, "HSeeDDeeDD");
}

TEST(a_seed_that_the_daemon_refuses_is_said_by_the_seal)
{
	char spec[256];
	uint32_t files;

	attach(0);
	snprintf(spec, sizeof spec, "uniform seed=%s", D.dir);
	average("a", spec);
	D.refuse_seed = 1;
	assert_int_equal(ckpt_seal(c, 10 * NS_PER_S, &err), -EACCES);
	must_say("not that one");
	assert_int_equal(D.ndeclare, 0);
	D.refuse_seed = 0;
	seal();
	assert_int_equal(D.declare.epoch, 1);
	assert_int_equal(D.nseed, 1);
	/* What is removed and sealed leaves no descriptor behind; the script closes its own a
	 * moment after it has answered. */
	average("a", NULL);
	seal();
	files = open_files();
	for (uint32_t i = 0; i < 16; i++) {
		average("a", spec);
		seal();
		average("a", NULL);
		seal();
	}
	for (uint64_t until = now_ns() + 30 * NS_PER_S; open_files() > files && now_ns() < until;)
		usleep(2000);
	assert_true(open_files() <= files);
}

/* Whether it is needed the daemon decides. */
TEST(the_daemon_is_told_why_a_seed_cannot_be_opened)
{
	char spec[256], file[128], step[128];

	attach(0);
	snprintf(file, sizeof file, "%s/file", D.dir);
	(void)close(open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
	snprintf(spec, sizeof spec, "uniform seed=%s", file);
	average("a", spec);
	snprintf(step, sizeof step, "%s/later", D.dir);
	snprintf(spec, sizeof spec, "uniform seed=%s", step);
	average("b", spec);
	seal();
	assert_string_equal(D.order, "HSeeD");
	assert_int_equal(D.seed[0].error, ENOTDIR);
	assert_string_equal(D.seed[0].path, file);
	assert_int_equal(D.seed[1].error, ENOENT);
	/* Each seal tries it again. */
	assert_int_equal(mkdir(step, 0700), 0);
	average("c", "uniform");
	seal();
	assert_string_equal(D.order, "HSeeDeeD");
	assert_int_equal(D.seed[2].error, ENOTDIR);
	assert_int_equal(D.seed[3].error, 0);
}

/* --- slots --- */
static uint32_t slots_mapped(void)
{
	return c->sealed ? c->sealed->nslot : 0;
}

TEST(without_a_number_of_slots_the_daemon_says_how_many_and_may_say_another_in_each_epoch)
{
	attach(0);
	assert_int_equal(D.hello.nslot, 0);
	for (uint32_t n = 2; n <= WIRE_SLOTS_MAX; n++) {
		D.nslot = n;
		c->dirty = true;
		seal();
		assert_int_equal(atomic_load(&c->nslot), n);
		assert_int_equal(slots_mapped(), n);
		for (uint32_t i = 0; i < WIRE_SLOTS_MAX; i++)
			assert_true((c->slot[i].bytes > 0) == (i < n));
	}
	D.nslot = 3;
	c->dirty = true;
	seal();
	assert_int_equal(atomic_load(&c->nslot), 3);
	assert_int_equal(c->slot[3].bytes, 0);
}

TEST(a_number_of_slots_that_was_asked_for_is_asked_for)
{
	attach(4);
	assert_int_equal(D.hello.nslot, 4);
	D.nslot = 4;
	seal();
	assert_int_equal(slots_mapped(), 4);
}

TEST(a_ticket_of_the_third_slot_is_taken_if_there_are_three)
{
	attach(0);
	assert_ok(ckpt_fresh(c));
	for (uint32_t n = 2; n <= 3; n++) {
		D.nslot = n;
		c->dirty = true;
		seal();
		shared_gate_give(D.job, 2);
		assert_int_equal(ckpt_snapshot(c, n, NULL), n == 2 ? CKPT_SKIPPED : 0);
		(void)ckpt_guard(c, NULL);
		(void)shared_tear(D.rank);
	}
}

static uint64_t slot_memory(uint32_t slot)
{
	struct stat st;

	assert_int_equal(fstat(D.slot_fd[slot], &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* The helper prepares slots for its copier once the epoch is ready. */
TEST(the_library_takes_no_memory_of_a_slot_that_is_not_offered_nor_of_averages)
{
	uint64_t until = now_ns() + 60 * NS_PER_S, *own = calloc(16, 8);
	struct ckpt_local at = { .ptr = own };
	struct ckpt_tensor t = ROW(.size = sizeof t, .role = CKPT_PARAM, .dtype = CKPT_F64,
				   .component = "model", .name = "own", .ndim = 1, .nplace = 1,
				   .nlocal = 1, .shape = shape, .place = place, .local = &at);

	assert_non_null(own);
	attach(0);
	t.mesh = mesh;
	assert_ok_err(ckpt_tensor_add(c, &t, NULL, &err), &err);
	average("fast", "uniform");
	D.rows = true;
	D.nslot = 3;
	D.page_then = 2;
	seal();
	while (!slot_memory(1) && now_ns() < until)
		usleep(2000);
	for (uint32_t i = 0; i < 3; i++) /* once more around the helper's loop */
		helper_wake(c), usleep(20000);
	assert_in_range(slot_memory(0), 1, PAGES_HUGE);
	assert_in_range(slot_memory(1), 1, PAGES_HUGE);
	assert_in_range(slot_memory(2), 0, 4096); /* a page, in which it tries how to write */
	assert_int_equal(ckpt_detach(TAKE(c), 0), 0);
	free(own);
}

/* A pointer to the daemon's page is void after this. */
static void daemon_again(void)
{
	uint64_t until = now_ns() + 60 * NS_PER_S;
	uint32_t was = D.ndeclare;

	daemon_stop();
	memset(D.order, 0, sizeof D.order);
	D.nadopt = D.nseed = 0;
	daemon_start();
	while (atomic_load(&D.ndeclare) == was && now_ns() < until)
		usleep(2000);
	seal();
}

TEST(the_next_daemon_gets_the_same_averages_seeds_and_every_slot)
{
	char spec[256], before[4096];

	attach(0);
	snprintf(spec, sizeof spec, "uniform seed=%s", D.dir);
	average("slow", spec);
	average("fast", "constant decay=.99");
	D.nslot = 3;
	seal();
	snprintf(before, sizeof before, "%s", declared());
	for (uint32_t i = 0; i < DAEMONS; i++) {
		D.nslot = 3 + i % 2;
		c->redeclare = false;
		daemon_again();
		assert_int_equal(D.hello.nslot, 0);
		assert_string_equal(D.order, i == 2 ? "HSAAAAeD" : "HSAAAeD");
		assert_int_equal(D.seed[0].average, 1);
		assert_string_equal(declared(), before);
		assert_int_equal(D.declare.epoch, 1);
	}
}

/* --- restore --- */
TEST(a_restore_says_what_it_took_and_how_averages_go_on)
{
	struct ckpt_want want = { .size = sizeof want, .step = CKPT_LATEST };
	struct ckpt_got got = { .size = sizeof got };

	attach(0);
	average("fast", "uniform");
	seal();
	D.averages = "average fast goes on from step 7\naverage slow begins anew";
	assert_ok_err(ckpt_restore(c, &want, &got, &err), &err);
	assert_string_equal(got.averages, D.averages);
	assert_int_equal(times_said("step 7 is restored from disk: 3 tensors\n"), 1);
	assert_int_equal(times_said("client: job j: average fast goes on from step 7\n"), 1);
	assert_int_equal(times_said("client: job j: average slow begins anew\n"), 1);
	want.flags = CKPT_DRY_RUN;
	assert_ok_err(ckpt_restore(c, &want, &got, &err), &err);
	assert_int_equal(times_said("is restored"), 1);
	/* An older trainer's structure has no such field. */
	got.size = offsetof(struct ckpt_got, averages);
	memset(got.averages, 'x', sizeof got.averages);
	want.flags = 0;
	assert_ok_err(ckpt_restore(c, &want, &got, &err), &err);
	assert_int_equal(got.averages[0], 'x');
	/* Nor are there averages. */
	got.size = sizeof got;
	D.averages = NULL;
	assert_ok_err(ckpt_restore(c, &want, &got, &err), &err);
	assert_string_equal(got.averages, "");
}

UNIT(.setup = setup, .teardown = teardown);
