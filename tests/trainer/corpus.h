/* SPDX-License-Identifier: Apache-2.0 */
/*
 * corpus.h - the text that the trainer learns: bytes, in an order that depends on nothing but the
 * folder.
 *
 * The corpus is the concatenation of the regular files of one folder, sorted by name as bytes.
 * Links are left out, so a text that Debian offers under two names counts once.
 */
#ifndef TRAINER_CORPUS_H
#define TRAINER_CORPUS_H
#include <stdint.h>

#define CORPUS_DIR "/usr/share/common-licenses" /* on every Debian machine: package base-files */
#define CORPUS_BYTES_MAX ((uint64_t)1 << 30)	/* a folder given by mistake must not fill memory */
#define CORPUS_BYTES_MIN ((uint64_t)1 << 10)	/* less than that is no text to learn from */

struct corpus {
	uint8_t *byte;
	uint64_t bytes;
	uint64_t hash; /* tells two corpora apart; not meant to resist an attack */
};

/* Reads the folder. 0, or a negative errno after having printed what, where, why and what to do.
 * The bytes stay until the process ends. */
int corpus_load(const char *dir, struct corpus *ret_corpus);

/* A strong 64-bit mix (splitmix64): every random choice of the trainer is this of a counter, so
 * that it is the same whoever makes it, in whatever order. */
static inline uint64_t mix64(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}
#endif
