/* SPDX-License-Identifier: Apache-2.0 */
/*
 * json.h - a JSON scanner that keeps nothing. The caller holds the text and asks for one token
 * after the other; a token points into the text. Formats read their headers and indexes with it.
 *
 * What is good is what the reference's parser (serde_json) takes:
 *   - RFC 8259 and nothing more: one value, blanks (space, tab, LF, CR) around tokens, no comments, no comma
 *     behind the last element, no NaN, no leading zero, no byte order mark;
 *   - UTF-8 as of RFC 3629; no control character inside a string;
 *   - \uD800 to \uDBFF only with \uDC00 to \uDFFF behind it, and the latter never alone;
 *   - at most JSON_DEPTH_MAX values in each other.
 * Duplicate keys are the caller's to refuse: the scanner remembers none.
 *
 * Pure functions; a struct json is one thread's. Errors are -EPROTO and a sentence that names the
 * text, the byte in it (from 0) and what is wrong there. After an error the scanner stays at it.
 */
#ifndef CKPT_JSON_H
#define CKPT_JSON_H
#include "ckpt/ckpt.h"
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

#define JSON_DEPTH_MAX 127 /* serde_json's limit */

enum json_kind {
	JSON_END, /* of the text: the value is complete */
	JSON_OBJECT,
	JSON_OBJECT_END,
	JSON_ARRAY,
	JSON_ARRAY_END,
	JSON_KEY, /* of an object's member; its value comes next */
	JSON_STRING,
	JSON_UINT,  /* 0 to 2^64 - 1, without sign, fraction and exponent: number */
	JSON_INT,   /* -2^63 to -1: number, in two's complement */
	JSON_FLOAT, /* every other number, also 2.0, 1e2 and -0: text alone */
	JSON_TRUE,
	JSON_FALSE,
	JSON_NULL
};

struct json_token {
	enum json_kind kind;
	bool escaped;	  /* KEY, STRING: text has escapes, so json_unescape is needed to read it */
	uint64_t off;	  /* of its first byte in the text */
	const char *text; /* KEY, STRING: between the quotes; numbers: as written. No 0 behind it */
	uint64_t len;
	uint64_t number;
};

struct json { /* private */
	const char *text, *at, *end, *what;
	struct ckpt_err *err;
	uint64_t object[2]; /* bit d: the value at depth d is an object */
	uint32_t depth;
	uint8_t want;
	int bad; /* the error that ended it */
};

/* text outlives the scanner. what: its name in messages. err may be NULL. */
void json_begin(struct json *j, const void *text, uint64_t len, const char *what,
		struct ckpt_err *err);
/* The next token. After JSON_END: JSON_END. */
int json_next(struct json *j, struct json_token *ret);
/* The next token, which must be of this kind: else "byte 12 of WHAT: MEMBER must be a string". */
int json_want(struct json *j, enum json_kind kind, const char *member, struct json_token *ret);
/* Behind the value that `first` began (of an object or array: all of it). */
int json_skip(struct json *j, const struct json_token *first);
/* Behind a value that ends before byte `off` of the text, in place of the value that comes next: for whoever
 * has read it already, and changed its bytes. */
void json_jump(struct json *j, uint64_t off);
/* Ends the scan with this code, and "byte 12 of WHAT: <sentence>". */
int json_refuse(struct json *j, const struct json_token *at, int code, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));
#define json_fail(j, at, ...) json_refuse(j, at, -EPROTO, __VA_ARGS__)

/*
 * The bytes that a KEY or STRING means, in UTF-8: at most t->len, without a 0 behind them, but
 * maybe with zeros among them (\u0000). buf may be t->text itself. Returns how many.
 */
uint64_t json_unescape(const struct json_token *t, char *buf);
/* Is a text UTF-8, as strings of JSON must be? */
bool json_is_utf8(const char *text);
#define JSON_IS_MAX 64
/* Does a KEY or STRING mean this text, of at most JSON_IS_MAX bytes? */
bool json_is(const struct json_token *t, const char *text);
#endif
