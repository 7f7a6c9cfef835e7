/* SPDX-License-Identifier: Apache-2.0 */
/* row.h - an initializer with named fields, several on a line: struct table_tensor x = ROW(.name =
 * "w", .ndim = 1); */
#ifndef TESTS_LIB_ROW_H
#define TESTS_LIB_ROW_H
#define ROW(...)            \
	{                   \
		__VA_ARGS__ \
	}
#endif
