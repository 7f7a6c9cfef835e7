/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_json.c - the JSON scanner on any bytes: tokens ascend and lie inside the text, what is open
 * is closed, a string's meaning is not longer than its text, and an error has a sentence. Skipping
 * a value arrives where reading it arrives.
 */
#include "tests/fuzz/fuzz.h"
#include "formats/json/json.h"

static int read_all(const char *text, size_t bytes, struct ckpt_err *err, uint64_t *ret_tokens)
{
	uint64_t at = 0, depth = 0;
	struct json_token t;
	struct json j;
	int rc;

	json_begin(&j, text, bytes, "it", err);
	for (*ret_tokens = 0;; ++*ret_tokens) {
		rc = json_next(&j, &t);
		if (rc)
			break;
		assert(t.off >= at && t.off <= bytes);
		assert(t.text >= text && t.text + t.len <= text + bytes);
		at = t.off + (t.kind != JSON_END);
		depth += t.kind == JSON_OBJECT || t.kind == JSON_ARRAY;
		assert(depth <= JSON_DEPTH_MAX);
		if (t.kind == JSON_OBJECT_END || t.kind == JSON_ARRAY_END)
			assert(depth-- > 0);
		if (t.kind == JSON_KEY || t.kind == JSON_STRING) {
			char *buf = malloc(t.len + 1);
			uint64_t n = json_unescape(&t, buf);

			assert(n <= t.len && (t.escaped || n == t.len));
			if (n <= JSON_IS_MAX) {
				buf[n] = 0;
				assert(strlen(buf) < n || json_is(&t, buf));
			}
			free(buf);
		}
		if (t.kind == JSON_END) {
			assert(!depth && t.off == bytes);
			break;
		}
	}
	return rc;
}

static int skip_all(const char *text, size_t bytes)
{
	struct json_token t;
	struct json j;
	int rc;

	json_begin(&j, text, bytes, "it", NULL);
	rc = json_next(&j, &t);
	if (!rc)
		rc = json_skip(&j, &t);
	return rc ? rc : json_want(&j, JSON_END, "it", &t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	struct ckpt_err err = { 0 };
	uint64_t n;
	int rc = read_all((const char *)data, bytes, &err, &n);

	assert(rc == (rc ? -EPROTO : 0) && (!rc || (err.code == rc && err.msg[0])));
	assert(skip_all((const char *)data, bytes) == rc);
	return 0;
}
