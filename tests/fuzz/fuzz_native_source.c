/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_native_source.c - a changed part of averages, which a main part names, with wrong and with
 * right checksums: it is refused with faults, or what it says holds together. */
#include "tests/fuzz/native_edits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return native_one("-001.part", data, size);
}
