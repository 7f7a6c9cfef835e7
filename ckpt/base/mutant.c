/* SPDX-License-Identifier: Apache-2.0 */
/* mutant.c - see mutant.h. Nothing of it is in a program that was not built for mistakes. */
#include "ckpt/base/mutant.h"
#ifdef CKPT_MUTANTS
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum mutant mutant_planted;

#define MUTANT_NAME_(name, room, step) #name,
static const char *const names[] = { "", MUTANTS(MUTANT_NAME_) };

__attribute__((constructor)) static void plant(void)
{
	const char *name = getenv("CKPT_MUTANT");

	if (!name || !*name)
		return;
	for (int i = 1; i < MUTANT_END; i++)
		if (strcmp(names[i], name) == 0)
			mutant_planted = (enum mutant)i;
	if (mutant_planted)
		return;
	(void)fprintf(stderr, "CKPT_MUTANT=%s: there is no such mistake (ckpt/base/mutants.h)\n",
		      name);
	_Exit(125);
}
#endif
