// SPDX-License-Identifier: Apache-2.0
// gpu_pull.c - see gpu_pull.h. Called by E5 (exp_pull.c, exp_pull_kill.c).
#include "tests/gpu/gpu_pull.h"
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_link.h"
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NAP_NS 20000
#define WAIT_NS (60 * NS_PER_S)

enum { OPEN, DONE, TORN };
static_assert(sizeof(struct pull_page) <= 4096, "it is one page, which the driver registers");

static uint64_t word_of(uint32_t number, unsigned state)
{
	return (uint64_t)number << 2 | state;
}

void pull_nap(void)
{
	const struct timespec t = { 0, NAP_NS };

	nanosleep(&t, NULL);
}

static struct pull_page *page_map(int fd)
{
	void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

	if (p == MAP_FAILED)
		gpu_die("a page that two processes share: %s", strerror(errno));
	return p;
}

int pull_page_make(struct pull_page **ret)
{
	int fd = memfd_create("gpubench-pull", 0); /* both processes inherit it */
	pthread_mutexattr_t attr;

	if (fd < 0 || ftruncate(fd, 4096) < 0)
		gpu_die("a page that two processes share: %s", strerror(errno));
	*ret = page_map(fd);
	(*ret)->chunk_bytes = LINK_CHUNK;
	pthread_mutexattr_init(&attr);
	pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
	pthread_mutex_init(&(*ret)->owner, &attr);
	pthread_mutexattr_destroy(&attr);
	return fd;
}

struct pull_page *pull_page_find(void)
{
	const char *fd = getenv(PULL_ENV);

	return page_map(fd ? atoi(fd) : -1);
}

/* --- the owner --- */

bool pull_give(struct pull_page *page, const cuda_ptr at[PULL_TENSORS], uint64_t bytes,
	       cuda_ptr *ret_page, char why[300])
{
	char name[32];

	GPU(gpu.cu->host_register(page, 4096, CUDA_REGISTER_PORTABLE | CUDA_REGISTER_DEVICEMAP));
	GPU(gpu.cu->host_device_ptr(ret_page, page, 0));
	for (uint32_t i = 0; i < PULL_TENSORS; i++) {
		cuda_rc rc = gpu.ipc_get(&page->handle[i], at[i]);

		if (rc) {
			snprintf(why, 300, "cuIpcGetMemHandle: %s",
				 cuda_error_name(gpu.cu, rc, name));
			return false;
		}
		page->bytes[i] = bytes;
	}
	if (pthread_mutex_lock(&page->owner))
		gpu_die("the owner's mutex cannot be locked");
	atomic_store(&page->pid, (int)getpid());
	return true;
}

void pull_mark(struct pull_page *page, cuda_ptr page_at, uint32_t number, cuda_stream s)
{
	atomic_store(&page->word, word_of(number, OPEN));
	GPU(gpu.cu->stream_write(s, page_at + offsetof(struct pull_page, stable), number, 0));
}

bool pull_guard(struct pull_page *page, uint32_t number, uint64_t ns)
{
	uint64_t open = word_of(number, OPEN), until = now_ns() + ns;

	while (atomic_load(&page->word) == open && !atomic_load(&page->give_up) && now_ns() < until)
		pull_nap();
	(void)atomic_compare_exchange_strong(&page->word, &open, word_of(number, TORN));
	return atomic_load(&page->word) == word_of(number, DONE);
}

/* --- the second process --- */
struct puller {
	struct pull_page *page;
	cuda_ptr at[PULL_TENSORS];
	struct link_host host;
	cuda_stream s;
	cuda_event done[LINK_DEPTH];
	uint32_t next; /* of done */
	int owner;     /* pidfd */
	bool orphan;   /* the owner has died */
};

static bool pull_open(struct puller *p)
{
	struct pull_page *page = p->page;
	uint64_t begin = now_ns(), bytes = 0;
	char name[32];

	p->owner = (int)syscall(SYS_pidfd_open, atomic_load(&page->pid), 0);
	for (uint32_t i = 0; i < PULL_TENSORS; i++) {
		cuda_rc rc = gpu.ipc_open(&p->at[i], page->handle[i], 1);

		if (rc) {
			snprintf(page->why, sizeof page->why,
				 "cuIpcOpenMemHandle in the second process: %s",
				 cuda_error_name(gpu.cu, rc, name));
			return false;
		}
		bytes += page->bytes[i];
	}
	atomic_store(&page->open_ns, now_ns() - begin);
	if (!link_host_make(&p->host, LINK_MEMFD, bytes, 4 * GIB, page->why))
		return false;
	p->s = gpu_stream();
	for (uint32_t i = 0; i < LINK_DEPTH; i++)
		p->done[i] = gpu_event(false);
	return true;
}

/* false: what it had may have been released. */
static bool owner_lives(struct puller *p)
{
	if (!p->orphan)
		p->orphan = pthread_mutex_trylock(&p->page->owner) != EBUSY;
	return !p->orphan;
}

/* Until nothing of the owner is there any more. */
static void owner_buried(struct puller *p)
{
	struct pollfd one = { .fd = p->owner, .events = POLLIN };

	if (p->owner < 0 || poll(&one, 1, (int)(WAIT_NS / NS_PER_MS)) != 1)
		gpu_die("the owner was killed, and does not die");
}

static void change_await(struct puller *p, uint32_t number)
{
	uint64_t until = now_ns() + WAIT_NS;

	atomic_store(&p->page->give_up, true);
	while (atomic_load(&p->page->changed) <= number) {
		if (now_ns() > until || !owner_lives(p))
			gpu_die("the owner has not changed its memory");
		pull_nap();
	}
}

static void kill_drawn(struct puller *p, uint32_t number, uint32_t chunk)
{
	const struct pull_kill *k = &p->page->kill;

	if (number != k->number || chunk != k->chunk)
		return;
	if (k->moment == PULL_CHANGED || k->moment == PULL_SPARED)
		change_await(p, number);
	if (k->moment == PULL_SPARED)
		return;
	atomic_store(&p->page->killed_ns, now_ns());
	if (kill(atomic_load(&p->page->pid), SIGKILL) < 0)
		gpu_die("the owner cannot be killed: %s", strerror(errno));
	if (k->moment != PULL_AT_ONCE)
		owner_buried(p);
}

/* One tensor, in chunks, so many in flight. false: the guard has given the snapshot up. */
static bool tensor_pull(struct puller *p, uint32_t i, uint8_t *to, uint32_t number, uint32_t *chunk)
{
	uint64_t size = p->page->chunk_bytes;

	for (uint64_t b = 0; b < p->page->bytes[i]; b += size) {
		uint64_t n = MIN(size, p->page->bytes[i] - b);
		cuda_event e = p->done[p->next++ % LINK_DEPTH];

		gpu_wait(e);
		kill_drawn(p, number, (*chunk)++);
		if (atomic_load(&p->page->word) != word_of(number, OPEN) &&
		    !p->page->kill.blind_guard)
			return false;
		GPU(gpu.cu->copy_out(to + b, p->at[i] + b, n, p->s));
		GPU(gpu.cu->event_record(e, p->s));
	}
	return true;
}

static uint64_t words_wrong(const struct puller *p, uint32_t number)
{
	const uint8_t *at = p->host.p;
	uint64_t bad = 0, have;

	for (uint32_t i = 0; i < PULL_TENSORS; at += p->page->bytes[i++])
		for (uint64_t k = 0; k < p->page->bytes[i] / 8; k++) {
			memcpy(&have, at + k * 8, 8);
			bad += have != gpu_word(PULL_SEED + i, k, number);
		}
	return bad;
}

/* All of it was copied: is it accepted? */
static enum pull_end accept_or_not(struct puller *p, uint32_t number)
{
	const struct pull_kill *k = &p->page->kill;
	uint64_t open = word_of(number, OPEN);

	if (!owner_lives(p) && !k->blind_death)
		return PULL_ORPHAN;
	if (!atomic_compare_exchange_strong(&p->page->word, &open, word_of(number, DONE)) &&
	    !k->blind_guard)
		return PULL_GIVEN_UP;
	return PULL_ACCEPTED;
}

static enum pull_end snapshot_pull(struct puller *p, uint32_t number)
{
	uint64_t begin = now_ns(), wrong = 0;
	uint8_t *to = p->host.p;
	uint32_t chunk = 0;
	enum pull_end end;
	bool all = true;

	for (uint32_t i = 0; i < PULL_TENSORS && all; to += p->page->bytes[i++])
		all = tensor_pull(p, i, to, number, &chunk);
	GPU(gpu.cu->stream_sync(p->s));
	if (!all)
		return PULL_GIVEN_UP;
	kill_drawn(p, number, chunk);
	atomic_fetch_add(&p->page->copied, p->host.bytes);
	atomic_fetch_add(&p->page->copy_ns, now_ns() - begin);
	if (atomic_load(&p->page->check))
		wrong = words_wrong(p, number);
	end = accept_or_not(p, number);
	if (end != PULL_ACCEPTED)
		return end;
	atomic_fetch_add(&p->page->wrong, wrong);
	atomic_fetch_add(&p->page->accepted, 1);
	atomic_fetch_add(&p->page->torn, wrong != 0);
	return end;
}

void pull_run(struct pull_page *page)
{
	struct puller p = { .page = page };
	bool opened = pull_open(&p);
	uint32_t last = 0;

	atomic_store(&page->ready, true);
	while (opened && !atomic_load(&page->stop) && owner_lives(&p)) {
		uint32_t number = atomic_load(&page->stable);

		if (number == last)
			pull_nap();
		else
			atomic_store(&page->end, (int)snapshot_pull(&p, last = number));
		if (last && last == page->kill.number && page->kill.moment == PULL_SPARED)
			atomic_store(&page->stop, true);
	}
	for (uint32_t i = 0; i < PULL_TENSORS && opened; i++)
		GPU(gpu.ipc_close(p.at[i]));
}
