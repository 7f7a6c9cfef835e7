/* SPDX-License-Identifier: Apache-2.0 */
/*
 * registry.h - all formats that the programs can read or write, in the order in which help lists
 * them. A format is one line here, and its folder. NULL ends. The first is the one that stores are
 * made of. A program that wants others defines `formats` itself: then this one is not linked.
 */
#ifndef FORMATS_REGISTRY_H
#define FORMATS_REGISTRY_H
#include "formats/format.h"

extern const struct format *const formats[];
#endif
