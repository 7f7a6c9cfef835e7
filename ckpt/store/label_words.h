/* SPDX-License-Identifier: Apache-2.0 */
/*
 * label_words.h - steps and their labels in words, for people: ls, show, hold and what removes
 * steps. Pure, but for store_label_own_name.
 */
#ifndef CKPT_STORE_LABEL_WORDS_H
#define CKPT_STORE_LABEL_WORDS_H
#include "ckpt/store/label.h"

/* "committed", "set-aside", ...: the word that all verbs have for it. */
const char *store_state_word(enum store_state state);
/*
 * "latest, tag best, held by eval-17 (5h left), verified": the labels of a step. Of longer names
 * name_max characters are printed; 0: all of them, and why it is quarantined. "" without any.
 */
void store_label_sentence(const struct store_step *st, const struct store_label *label, uint32_t n,
			  uint64_t now_ns, bool latest, uint32_t name_max, char *buf, size_t bytes);
/* The name of a hold for which none is given: user-host, of characters that a name may have. */
void store_label_own_name(char ret[STORE_LABEL_NAME_MAX + 1]);
/* An id of 32 hexadecimal digits; any other character counts as 0. */
void store_id_parse(const char *hex, uint8_t ret[16]);
#endif
