/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mutant.h - MUTANT(NAME): is this mistake planted? False, and nothing of it in the program, unless
 * it was built by `make V=mutant`; there the environment variable CKPT_MUTANT names the one mistake
 * (of mutants.h) that the process makes. A name that is unknown ends the process.
 * Written as `if (!MUTANT(X))` around the step that the mistake leaves out, or as an `if
 * (MUTANT(X))` that does the wrong thing; the line reads right without it.
 */
#ifndef CKPT_MUTANT_H
#define CKPT_MUTANT_H
#ifdef CKPT_MUTANTS
#include "ckpt/base/mutants.h"

#define MUTANT_ENUM_(name, room, step) MUTANT_##name,
enum mutant { MUTANT_NONE, MUTANTS(MUTANT_ENUM_) MUTANT_END };
#undef MUTANT_ENUM_

extern enum mutant mutant_planted; /* set before main, never changed */
#define MUTANT(name) (mutant_planted == MUTANT_##name)
#else
#include <stdbool.h>
#define MUTANT(name) false
#endif
#endif
