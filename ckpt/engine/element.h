/* SPDX-License-Identifier: Apache-2.0 */
/*
 * element.h - what the bytes of an element mean: numbers of every dtype, as double and as text.
 * Elements are little-endian, at any alignment.
 *
 * F8_E4M3 is OCP's (bias 7, no infinity, 0x7f and 0xff are NaN), F8_E5M2 is IEEE-like (bias 15),
 * F8_E8M0 is a power of two (2^(b - 127), 0xff is NaN). F8_E4M3FNUZ has bias 8, F8_E5M2FNUZ bias
 * 16; they have no infinity, and what would be -0, 0x80, is their only NaN. A BOOL that is not 0 is
 * true.
 *
 * F4 (OCP's e2m1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and a sign) is two values a byte. All functions here
 * but element_unpack take its values one a byte, in the low half.
 */
#ifndef CKPT_ENGINE_ELEMENT_H
#define CKPT_ENGINE_ELEMENT_H
#include <stdbool.h>
#include <stdint.h>

#define ELEMENT_BYTES 80 /* of an element as text */

/* n bytes of F4 as 2 n values: of each byte the low half first. ret does not overlap p. */
void element_unpack(const uint8_t *p, uint64_t n, uint8_t *ret);

/* Doubles that an element becomes: 2 of a complex one, else 1. */
uint32_t element_parts(uint32_t dtype);
/* n elements as n * element_parts doubles. Exact, but for integers beyond 2^53: they are
 * rounded. */
void element_reals(uint32_t dtype, const uint8_t *p, uint64_t n, double *ret);
bool element_is_integer(uint32_t dtype); /* U8 .. I64; BOOL is none */
/* An integer's value as its 64 bits, sign-extended where the dtype has a sign. */
uint64_t element_integer(uint32_t dtype, const uint8_t *p);
bool element_is_signed(uint32_t dtype);

/* The shortest text that is this value and no other of the dtype, of at most `digits` digits (0: as
 * many as it takes): "0.1", "-inf", "nan", "1+2j", "True"; integers are whole. Returns buf, of
 * ELEMENT_BYTES. */
char *element_print(uint32_t dtype, const uint8_t *p, int digits, char *buf);
/* The same of a real that is a value of the dtype (or a mean of values: F64). */
char *element_real_print(uint32_t dtype, double x, int digits, char *buf);
#endif
