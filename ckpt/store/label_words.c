/* SPDX-License-Identifier: Apache-2.0 */
/* label_words.c - see label_words.h. Invariant: a label that does not count has no word. */
#include "ckpt/store/label_words.h"
#include "ckpt/base/text.h"
#include "ckpt/base/util.h"
#include "ckpt/layout/human.h"
#include <pwd.h>
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

void store_label_sentence(const struct store_step *st, const struct store_label *label, uint32_t n,
			  uint64_t now_ns, bool latest, uint32_t name_max, char *buf, size_t bytes)
{
	static const enum store_label_kind order[] = { LABEL_BAD, LABEL_TAG, LABEL_HOLD,
						       LABEL_ADOPTED, LABEL_VERIFIED };
	struct text t = text_in(buf, bytes);
	bool bad = false;
	char left[HUMAN_BYTES], name[STORE_LABEL_NAME_MAX + 1];

	if (latest)
		text_add(&t, "%slatest", t.len ? ", " : "");
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
					text_add(&t, "%squarantined (%s)", t.len ? ", " : "",
						 m->why);
				else
					text_add(&t, "%squarantined", t.len ? ", " : "");
				bad = true;
				break;
			case LABEL_TAG:
				text_add(&t, "%stag %s", t.len ? ", " : "", name);
				break;
			case LABEL_HOLD:
				if (!store_label_counts(m, now_ns))
					break;
				if (m->until_ns)
					text_add(&t, "%sheld by %s (%s left)", t.len ? ", " : "",
						 name, human_age(now_ns, m->until_ns, left));
				else
					text_add(&t, "%sheld by %s", t.len ? ", " : "", name);
				break;
			case LABEL_ADOPTED:
				text_add(&t, "%sadopted", t.len ? ", " : "");
				break;
			case LABEL_VERIFIED:
				/* Once, before the damage came or was seen. */
				if (!bad)
					text_add(&t, "%sverified", t.len ? ", " : "");
				break;
			}
		}
}
