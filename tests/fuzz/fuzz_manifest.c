/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz_manifest.c - a changed MANIFEST, with wrong and with right checksums: it is refused with
 * faults, or what it says holds together. */
#include "tests/fuzz/native_edits.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	return native_one(NATIVE_MANIFEST, data, size);
}
