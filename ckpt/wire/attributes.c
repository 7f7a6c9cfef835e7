// SPDX-License-Identifier: Apache-2.0
// attributes.c - what an attribute may be, and the section that carries them. Called by the library
// and the daemon.
#include "ckpt/wire/attributes.h"
#include <errno.h>
#include <string.h>

static bool is_tensor_key(const char *s)
{
	const char *slash = strchr(s, '/');

	return slash && slash != s && slash[1] && strlen(s) <= 2 * CKPT_NAME_MAX + 1;
}

static bool is_tail(unsigned char c)
{
	return (c & 0xc0) == 0x80;
}

/* Bytes of the character at s, which ends with a zero; 0: it is no UTF-8. */
static uint32_t utf8_bytes(const unsigned char *s)
{
	if (s[0] < 0x80)
		return 1;
	if (s[0] < 0xe0)
		return s[0] >= 0xc2 && is_tail(s[1]) ? 2 : 0;
	if (s[0] < 0xf0) /* neither overlong nor a surrogate */
		return is_tail(s[1]) && is_tail(s[2]) && (s[0] != 0xe0 || s[1] >= 0xa0) &&
				       (s[0] != 0xed || s[1] < 0xa0)
			       ? 3
			       : 0;
	return s[0] <= 0xf4 && is_tail(s[1]) && is_tail(s[2]) && is_tail(s[3]) &&
			       (s[0] != 0xf0 || s[1] >= 0x90) && (s[0] != 0xf4 || s[1] < 0x90)
		       ? 4
		       : 0;
}

static bool is_utf8(const char *text)
{
	const unsigned char *s = (const unsigned char *)text;
	uint32_t n = 1;

	while (*s && (n = utf8_bytes(s)))
		s += n;
	return n;
}

int attribute_check(const char *key, const char *value, struct ckpt_err *err)
{
	const size_t head = strlen(ATTRIBUTE_ALIAS);
	size_t n = strnlen(key, ATTRIBUTE_KEY_MAX + 1);

	if (!n || n > ATTRIBUTE_KEY_MAX)
		return ckpt_error(err, -EINVAL, "the key of an attribute has 1 to %u bytes",
				  ATTRIBUTE_KEY_MAX);
	for (const char *p = key; *p; p++)
		if ((unsigned char)*p < ' ' || *p == 0x7f)
			return ckpt_error(err, -EINVAL,
					  "the key of an attribute has a control character, 0x%02x",
					  (unsigned char)*p);
	if (strnlen(value, ATTRIBUTE_VALUE_MAX + 1) > ATTRIBUTE_VALUE_MAX)
		return ckpt_error(err, -EINVAL,
				  "attribute %.200s: its value is longer than %u bytes", key,
				  ATTRIBUTE_VALUE_MAX);
	if (!is_utf8(key) || !is_utf8(value))
		return ckpt_error(err, -EINVAL, "attribute %.200s: its %s is not UTF-8", key,
				  is_utf8(key) ? "value" : "key");
	if (strncmp(key, "ckpt.", 5) != 0)
		return 0;
	if (strncmp(key, ATTRIBUTE_ALIAS, head) != 0)
		return ckpt_error(err, -EINVAL,
				  "attribute %.200s: keys that begin with ckpt. belong to ckptd; "
				  "of these a program may give " ATTRIBUTE_ALIAS
				  "COMPONENT/NAME alone",
				  key);
	if (!is_tensor_key(key + head) || !is_tensor_key(value))
		return ckpt_error(err, -EINVAL,
				  "attribute %.200s, value %.200s: an alias and the tensor that it "
				  "stands for are both COMPONENT/NAME",
				  key, value);
	if (strcmp(key + head, value) == 0)
		return ckpt_error(err, -EINVAL, "attribute %.200s: it is an alias of itself", key);
	return 0;
}

/* The string at *at; NULL: it does not end. */
static const char *string_next(const char *bytes, uint64_t len, uint64_t *at)
{
	const char *s = bytes + *at, *end = *at < len ? memchr(s, 0, len - *at) : NULL;

	if (!end)
		return NULL;
	*at = (uint64_t)(end - bytes) + 1;
	return s;
}

bool attributes_next(const char *bytes, uint64_t len, uint64_t *at, const char **ret_key,
		     const char **ret_value)
{
	return *at < len && (*ret_key = string_next(bytes, len, at)) &&
	       (*ret_value = string_next(bytes, len, at));
}

int attributes_check(const void *bytes, uint64_t len, uint32_t *ret_n, struct ckpt_err *err)
{
	const char *before = NULL, *key, *value;
	uint64_t at = 0;
	uint32_t n = 0;

	while (at < len) {
		struct ckpt_err why;

		if (!attributes_next(bytes, len, &at, &key, &value) || n == ATTRIBUTES_MAX)
			return ckpt_error(err, -EPROTO,
					  "attribute %u does not end, or there are more than %u", n,
					  ATTRIBUTES_MAX);
		if (attribute_check(key, value, &why) < 0)
			return ckpt_error(err, -EPROTO, "%s", why.msg);
		if (before && strcmp(before, key) >= 0)
			return ckpt_error(err, -EPROTO, "attributes are not in order: %.200s", key);
		before = key;
		n++;
	}
	*ret_n = n;
	return 0;
}
