/* SPDX-License-Identifier: Apache-2.0 */
/* says.h - assertions about sentences: is this part in the text? */
#ifndef TESTS_LIB_SAYS_H
#define TESTS_LIB_SAYS_H
#include <string.h>

#define assert_says(text, part)                                                      \
	do {                                                                         \
		const char *text_ = (text);                                          \
		if (!strstr(text_, part))                                            \
			fail_msg("\"%s\" is not in:\n%s", part, text_ ? text_ : ""); \
	} while (0)
#define assert_silent(text, part)                                             \
	do {                                                                  \
		if (strstr(text, part))                                       \
			fail_msg("\"%s\" should not be in:\n%s", part, text); \
	} while (0)
#endif
