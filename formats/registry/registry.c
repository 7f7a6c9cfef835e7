/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - see registry.h. Called by the command, which gives it to the engine. */
#include "formats/registry/registry.h"
#include "formats/native/native.h"
#include "formats/safetensors/safetensors_format.h"

const struct format *const formats[] = { &format_native, &format_safetensors, NULL };
