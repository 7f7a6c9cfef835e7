/* SPDX-License-Identifier: Apache-2.0 */
/*
 * step_files.h - a committed step as docs/FORMAT.md describes it, read without a line of ckptd: so
 * a mistake of its reader does not hide one of its writer. Called by storm_check.c.
 *
 * It reads what is right, from files whose sums `ckptctl verify --data --all` has checked. What
 * does not have the form of that text, or lies outside of its file, ends the program with exit
 * status 2.
 */
#ifndef STORM_STEP_FILES_H
#define STORM_STEP_FILES_H
#include <stdbool.h>
#include <stdint.h>

struct step_file;

struct step_average { /* a record of AVERAGES */
	const char *name, *schedule;
	uint64_t updates, last_step, since;
	uint8_t history[16];
	uint32_t rule;
};
struct step_tensor { /* a record of TENSORS */
	const char *component, *name, *of;
	const struct step_average *average; /* NULL: a rank declared it */
	uint32_t dtype, cls, ndim, rank, elem_bytes;
	bool blob;
	const uint8_t *shape; /* le64 */
	uint64_t numel;
};
struct step_files {
	char path[512];
	uint64_t step;
	uint32_t world, ntensor, naverage, nnote, npart;
	struct step_tensor *tensor;
	struct step_average *average;
	struct step_file *manifest, *part;
	uint64_t nderived,
		nlinked; /* pieces that were rounded; parts that were written for another step */
};

/* false: there is no MANIFEST. */
bool step_open(const char *path, struct step_files *ret);
void step_close(struct step_files *s);
/* NULL: it has no such note. */
const uint8_t *step_note(const struct step_files *s, const char *key);
/* All elements of a tensor, packed row-major; the caller frees it. NULL, and a sentence: an element
 * is in no piece, or in two. */
void *step_read(struct step_files *s, const struct step_tensor *t, char why[200]);
#endif
