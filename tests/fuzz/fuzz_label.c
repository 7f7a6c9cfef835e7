/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_label.c - store_label_parse: any name and content is a label that prints and parses as the
 * same one, a label whose content says nothing, or no label. The first line of the input is the name.
 */
#include "tests/fuzz/fuzz.h"
#include "ckpt/store/label.h"

static void terminated(const char *p, size_t bytes)
{
	assert(memchr(p, 0, bytes));
	for (; *p; p++)
		assert((uint8_t)*p >= 0x20 && *p != 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	const uint8_t *line = bytes ? memchr(data, '\n', bytes) : NULL;
	size_t n = line ? (size_t)(line - data) : bytes;
	char name[256], *text, print[STORE_LABEL_BYTES_MAX];
	struct store_label m, again;
	uint32_t len;
	int r;

	if (n >= sizeof name)
		return -1;
	memcpy(name, data, n);
	name[n] = 0;
	n += line != NULL;
	text = malloc(bytes - n + 1); /* so that the sanitizer sees the end */
	assert(text);
	memcpy(text, data + n, bytes - n);
	r = store_label_parse(name, text, bytes - n, &m);
	free(text);
	if (r == 0)
		return 0;
	terminated(m.name, sizeof m.name);
	terminated(m.by, sizeof m.by);
	terminated(m.why, sizeof m.why);
	assert((m.kind == LABEL_HOLD || m.kind == LABEL_TAG) == (m.name[0] != 0));
	assert(m.kind == LABEL_HOLD || m.until_ns == 0);
	if (r < 0) {
		assert(r == -EPROTO && m.unread && !m.made_ns && !m.until_ns && !m.by[0] &&
		       !m.why[0]);
		return 0;
	}
	assert(!m.unread);
	len = store_label_print(&m, print);
	assert(len < sizeof print);
	r = store_label_parse(name, print, len, &again);
	assert(r == 1);
	assert(memcmp(&m, &again, sizeof m) == 0);
	return 0;
}
