/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_native_part.c - a changed main part of a committed checkpoint, with wrong and with right
 * checksums: it is refused with faults, or what it says holds together. */
#include "tests/fuzz/native_edits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return native_one("-004.part", data, size);
}
