/* SPDX-License-Identifier: Apache-2.0 */
/* label_words.c - see label_words.h. Invariant: a label that does not count has no word. */
#include "ckpt/store/label_words.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void store_id_parse(const char *hex, uint8_t ret[16])
{
	memset(ret, 0, 16);
	for (uint32_t i = 0; i < 32 && hex[i]; i++) {
		static const char digit[] = "0123456789abcdef";
		const char *at = strchr(digit, hex[i]);

		ret[i / 2] = (uint8_t)(ret[i / 2] << 4 | (at ? at - digit : 0));
	}
}

void store_label_own_name(char ret[STORE_LABEL_NAME_MAX + 1])
{
	struct passwd *pw = getpwuid(geteuid());
	char host[128] = "", name[65];
	size_t n = 0;

	(void)gethostname(host, sizeof host - 1);
	if (pw && *pw->pw_name)
		snprintf(name, sizeof name, "%.40s-%.23s", pw->pw_name, host);
	else
		snprintf(name, sizeof name, "uid%u-%.23s", (unsigned)geteuid(), host);
	for (const char *p = name; *p; p++) {
		bool fine = (*p >= '0' && *p <= '9') || (*p >= 'A' && *p <= 'Z') ||
			    (*p >= 'a' && *p <= 'z') || *p == '_' || *p == '-' || (*p == '.' && n);

		ret[n++] = fine ? *p : '-';
	}
	while (n && ret[n - 1] == '-')
		n--;
	ret[n] = 0;
}

const char *store_state_word(enum store_state state)
{
	switch (state) {
	case STORE_COMMITTED:
		return "committed";
	case STORE_COLLECTING:
		return "collecting";
	case STORE_SET_ASIDE:
		return "set-aside";
	case STORE_DAMAGED:
		return "damaged";
	case STORE_QUARANTINED:
		return "quarantined";
	case STORE_MISPLACED:
		return "misplaced";
	case STORE_NEWER:
		return "newer";
	case STORE_OLDER:
		return "format 0.0";
	}
	return "?";
}

struct line {
	char *buf;
	size_t bytes, len;
};

__attribute__((format(printf, 2, 3))) static void words_add(struct line *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (l->len + 3 >= l->bytes)
		return;
	if (l->len)
		l->len += (size_t)snprintf(l->buf + l->len, l->bytes - l->len, ", ");
	va_start(ap, fmt);
	n = vsnprintf(l->buf + l->len, l->bytes - l->len, fmt, ap);
	va_end(ap);
	n = MAX(n, 0);
	l->len = MIN(l->len + (size_t)n, l->bytes - 1);
}

void store_label_sentence(const struct store_step *st, const struct store_label *label, uint32_t n,
			  uint64_t now_ns, bool latest, uint32_t name_max, char *buf, size_t bytes)
{
	static const enum store_label_kind order[] = { LABEL_BAD, LABEL_TAG, LABEL_HOLD,
						       LABEL_ADOPTED, LABEL_VERIFIED };
	struct line l = { buf, bytes, 0 };
	bool bad = false;
	char left[HUMAN_BYTES], name[STORE_LABEL_NAME_MAX + 1];

	buf[0] = 0;
	if (latest)
		words_add(&l, "latest");
	for (uint32_t k = 0; k < ARRAY_LEN(order); k++)
		for (uint32_t i = 0; i < n; i++) {
			const struct store_label *m = &label[i];

			if (m->kind != order[k] || !store_label_is(m, st) ||
			    (m->unread && (m->kind == LABEL_VERIFIED || m->kind == LABEL_ADOPTED)))
				continue;
			snprintf(name, sizeof name, "%s", m->name);
			if (name_max && strlen(name) > name_max)
				snprintf(name + name_max - 2, 3, "..");
			switch (m->kind) {
			case LABEL_BAD:
				if (m->why[0] && !name_max)
					words_add(&l, "quarantined (%s)", m->why);
				else
					words_add(&l, "quarantined");
				bad = true;
				break;
			case LABEL_TAG:
				words_add(&l, "tag %s", name);
				break;
			case LABEL_HOLD:
				if (!store_label_counts(m, now_ns))
					break;
				if (m->until_ns)
					words_add(&l, "held by %s (%s left)", name,
						  human_age(now_ns, m->until_ns, left));
				else
					words_add(&l, "held by %s", name);
				break;
			case LABEL_ADOPTED:
				words_add(&l, "adopted");
				break;
			case LABEL_VERIFIED:
				/* Once, before the damage came or was seen. */
				if (!bad)
					words_add(&l, "verified");
				break;
			}
		}
}
