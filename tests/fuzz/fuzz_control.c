/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_control.c - a control connection, both directions. The first byte says what: an answer of
 * the daemon, a request to it, a report as arbitrary bytes, or changes (edits.h) to a report that
 * is good. What the checks let through is read whole: every string ends inside, every index is in
 * range.
 */
#include "ckpt/wire/wire.h"
#include "tests/fuzz/edits.h"

#define NJOB 2
#define NRANK 3
#define NSTEP 4
#define NAVERAGE 3
#define ENDS(s) assert(memchr(s, 0, sizeof(s)))

static void report_read(const void *p, uint64_t bytes)
{
	struct wire_report r = { 0 };
	struct ckpt_err err = { 0 };

	if (wire_report_check(p, bytes, &r, &err) < 0) {
		assert(err.code == -EPROTO && err.msg[0]);
		return;
	}
	assert((const void *)r.head == p &&
	       (const uint8_t *)(r.average + r.head->naverage) == (const uint8_t *)p + bytes);
	ENDS(r.head->version);
	for (uint32_t i = 0; i < r.head->njob; i++) {
		const struct wire_report_job *j = &r.job[i];

		ENDS(j->name);
		ENDS(j->store);
		ENDS(j->error);
		ENDS(j->failing);
		ENDS(j->device);
		assert(j->launch <= WIRE_ENDED && j->attached <= j->world && j->used <= j->held);
	}
	for (uint32_t i = 0; i < r.head->nrank; i++)
		assert(r.rank[i].job < r.head->njob && r.rank[i].state <= WIRE_DETACHED);
	for (uint32_t i = 0; i < r.head->nstep; i++) {
		const struct wire_report_step *s = &r.step[i];

		ENDS(s->text);
		assert(s->job < r.head->njob && s->state <= WIRE_THINNED && s->code <= 0 &&
		       s->written <= s->total);
	}
	for (uint32_t i = 0; i < r.head->naverage; i++) {
		const struct wire_report_average *a = &r.average[i];

		ENDS(a->name);
		ENDS(a->schedule);
		ENDS(a->worst_name);
		ENDS(a->convex_name);
		assert(a->job < r.head->njob && a->gate < WIRE_GATES);
	}
}

static void *report_good(uint64_t *ret_bytes)
{
	uint64_t bytes = wire_report_bytes(NJOB, NRANK, NSTEP, NAVERAGE);
	struct wire_report_head *h = calloc(1, bytes);
	struct wire_report_job *j = (struct wire_report_job *)(h + 1);
	struct wire_report_rank *k = (struct wire_report_rank *)(j + NJOB);
	struct wire_report_step *s = (struct wire_report_step *)(k + NRANK);
	struct wire_report_average *a = (struct wire_report_average *)(s + NSTEP);

	assert(h);
	h->magic = WIRE_MAGIC;
	h->njob = NJOB;
	h->nrank = NRANK;
	h->nstep = NSTEP;
	h->naverage = NAVERAGE;
	memset(h->version, 'v', sizeof h->version - 1);
	for (uint32_t i = 0; i < NJOB; i++) {
		memset(j[i].name, 'n', sizeof j->name - 1);
		memset(j[i].store, 's', sizeof j->store - 1);
		memset(j[i].error, 'e', sizeof j->error - 1);
		memset(j[i].failing, 'f', sizeof j->failing - 1);
		memset(j[i].device, 'd', sizeof j->device - 1);
		j[i].world = j[i].attached = 2;
		j[i].launch = WIRE_ENDED;
	}
	for (uint32_t i = 0; i < NRANK; i++)
		k[i].job = i / 2;
	for (uint32_t i = 0; i < NSTEP; i++) {
		s[i].job = i / 2;
		s[i].state = WIRE_SKIPPED;
		memset(s[i].text, 't', sizeof s->text - 1);
	}
	for (uint32_t i = 0; i < NAVERAGE; i++) {
		a[i].job = i / 2;
		a[i].gate = WIRE_GATES - 1;
		memset(a[i].name, 'a', sizeof a->name - 1);
		memset(a[i].schedule, 's', sizeof a->schedule - 1);
		memset(a[i].worst_name, 'w', sizeof a->worst_name - 1);
		memset(a[i].convex_name, 'c', sizeof a->convex_name - 1);
	}
	*ret_bytes = bytes;
	return h;
}

static void report_edited(const uint8_t *data, size_t size)
{
	uint64_t bytes;
	uint8_t *p = report_good(&bytes);
	struct wire_report r;
	struct ckpt_err err;
	struct edits e = { 0 };

	assert(wire_report_check(p, bytes, &r, &err) == 0);
	edits_region(&e, p, bytes);
	edits_apply(&e, data, size);
	report_read(p, bytes);
	free(p);
}

static void refusal(const void *msg, uint32_t bytes)
{
	struct ckpt_err err;
	int code = wire_refusal(msg, bytes, &err);

	assert(code < 0 && code == err.code && strlen(err.msg) < sizeof err.msg);
}

static void answer(const void *msg, uint32_t bytes, int nfd)
{
	const struct wire_head *head = msg;
	uint32_t ask = WIRE_CONTROL;

	while (ask <= WIRE_FORGET && wire_answer_check(ask, msg, bytes, nfd) < 0)
		ask++;
	if (ask > WIRE_FORGET)
		return;
	assert(nfd == (head->type == WIRE_STATUS_IS));
	if (head->type == WIRE_REFUSE)
		refusal(msg, bytes);
	if (head->type == WIRE_DRAINED)
		assert(strlen(((const struct wire_drained *)msg)->text) < 2048 &&
		       ((const struct wire_drained *)msg)->code <= 0);
}

static void request(const void *msg, uint32_t bytes, int nfd)
{
	const struct wire_head *head = msg;

	if (wire_request_check(msg, bytes, nfd) == 0 && head->type >= WIRE_CONTROL) {
		bool to = head->type == WIRE_DRAIN && ((const struct wire_drain *)msg)->flags;

		assert(head->type <= WIRE_FRESH && nfd == to &&
		       bytes <= sizeof(struct wire_forget));
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	void *p;

	if (size < 2 || size > WIRE_BYTES_MAX)
		return 0;
	p = malloc(size - 2 ? size - 2 : 1);
	assert(p);
	memcpy(p, data + 2, size - 2);
	switch (data[0] & 3) {
	case 0:
		answer(p, (uint32_t)size - 2, data[1] % 4);
		break;
	case 1:
		request(p, (uint32_t)size - 2, data[1] % 4);
		break;
	case 2:
		report_read(p, size - 2);
		break;
	default:
		report_edited(data + 2, size - 2);
	}
	free(p);
	return 0;
}
