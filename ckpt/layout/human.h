/* SPDX-License-Identifier: Apache-2.0 */
/* human.h - numbers as people read them. Every function writes to buf and returns it;
 * HUMAN_BYTES is enough for all but shapes and sets. */
#ifndef CKPT_LAYOUT_HUMAN_H
#define CKPT_LAYOUT_HUMAN_H
#include "ckpt/layout/layout.h"
#include <stddef.h>

#define HUMAN_BYTES 64

char *human_bytes(uint64_t bytes, char *buf); /* "512 B", "1.19 MiB", "23.4 GiB" */
char *human_count(uint64_t n, char *buf);     /* "1,203,200" */
uint32_t human_digits(uint64_t n);	      /* of n in decimal */
char *human_age(uint64_t then_ns, uint64_t now_ns,
		char *buf); /* "now", "12s", "5m", "3h", "4d", "7w", "3y"; "-" for 0 */
char *human_ago(uint64_t then_ns, uint64_t now_ns, char *buf); /* "2m ago", "now" */
char *human_span(uint64_t ns, char *buf);      /* "85 us", "1.24 s", "2m 10s", "3h 5m", "4d 2h" */
char *human_us(double us, char *buf);	       /* the same of a price; no fraction of a ns */
char *human_time(uint64_t wall_ns, char *buf); /* local: "2026-11-02 10:11:12 CET" */
char *human_time_utc(uint64_t wall_ns, char *buf); /* RFC 3339: "2026-11-02T10:11:12Z" */
char *human_shape(uint32_t ndim, const uint64_t *shape, char *buf,
		  size_t bytes); /* "[8192, 1024]", "[]" */
/* "0:2048, :"; more than a few runs: "0:2, 8:10 .. 24:26 (4 runs)". shape NULL: never ":". */
char *human_set(const struct indexset *set, const uint64_t *shape, char *buf, size_t bytes);

/* The same without a buffer: the text lives as long as the block that it is written in. */
#define BYTES_TEXT(bytes) human_bytes(bytes, (char[HUMAN_BYTES]){ 0 })
#define COUNT_TEXT(n) human_count(n, (char[HUMAN_BYTES]){ 0 })
#define SPAN_TEXT(ns) human_span(ns, (char[HUMAN_BYTES]){ 0 })
#define US_TEXT(us) human_us(us, (char[HUMAN_BYTES]){ 0 })

/* Adds to the text in buf; sep stands between the two where buf is not empty. What does not fit is
 * cut. */
char *human_add(char *buf, size_t bytes, const char *sep, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

/* What people type. A whole number or a decimal fraction, then a unit: B, K, M, G, T, P, E (powers
 * of 1024; "KiB" and "KB" mean the same, capitals do not matter; none: bytes), or ms, s, m, h, d
 * (none: seconds). 0; -EINVAL where it is none; -ERANGE where it does not fit. */
int human_parse_bytes(const char *s, uint64_t *ret);
int human_parse_time(const char *s, uint64_t *ret_ns);
/* A moment after now_ns (both since 1970): a duration from then on, always with a unit, "w" (weeks)
 * too; or RFC 3339 to the second, "2026-11-22T18:00:00Z". -EINVAL; -ERANGE: a date that is not
 * after now_ns. */
int human_parse_moment(const char *s, uint64_t now_ns, uint64_t *ret_ns);

/* How far apart two names are (insertions, deletions, replacements, swaps of neighbours);
 * UINT32_MAX beyond max. */
uint32_t human_distance(const char *a, const char *b, uint32_t max);
#endif
