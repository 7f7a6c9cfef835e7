/* SPDX-License-Identifier: Apache-2.0 */
/*
 * address.h - how people name a checkpoint, the same in every verb:
 *
 *	latest, latest~2	the newest committed step, the second before it
 *	30, step:30		step 30; so is step-000000000030, the name of its directory
 *	tag:best		the step that has this tag
 *	.old-000000000030-s3	the step that was set aside under this name
 *	JOB@latest, JOB@30	each of them of this job in the store
 *	runs/demo@30		the same of a job, or of a store with one job, at a path
 *	./30, runs/demo/step-000000000030
 *				a directory: whatever has a '/' and does not end in @ and one of the above
 *
 * The text alone decides, not what happens to lie in the current directory: 30 is a step, and a
 * directory of this name is ./30. Only a word that is none of these may be a directory's name.
 */
#ifndef CKPT_STORE_ADDRESS_H
#define CKPT_STORE_ADDRESS_H
#include <limits.h>
#include <stdbool.h>
#include "ckpt/ckpt.h"

enum address_kind { ADDRESS_PATH, ADDRESS_LATEST, ADDRESS_STEP, ADDRESS_ENTRY, ADDRESS_TAG };

struct address {
	enum address_kind kind;
	bool bare;	    /* STEP: a number and nothing else */
	uint64_t n;	    /* LATEST: how many before it; STEP: its number */
	const char *what;   /* behind the '@', or all of it; a part of the text that was parsed */
	const char *tag;    /* TAG: its name */
	char job[PATH_MAX]; /* in front of the '@': a job's name, or, with a '/', a path; "": none */
};

/* Pure. -EINVAL: it is meant as one of these and has no number, an impossible one, an impossible
 * tag, or nothing in front of its '@'. */
int address_parse(const char *text, struct address *ret, struct ckpt_err *err);
#endif
