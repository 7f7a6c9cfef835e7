/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu_rows.h - rows: what an experiment measured, and the document that they are merged into.
 *
 * An experiment is a process. It writes its rows, without verdicts, as lines of JSON (row_put; the
 * scripts in Python write the same lines). gpubench reads them, judges them, prints them, and
 * merges them into the document, where they take the place of all rows of that experiment.
 *
 * A line, every key but experiment and row optional:
 *	{"experiment": "E3", "row": "noise", "what": "...", "unit": "1", "value": 0.001,
 *	 "low": 0, "high": .002, "numerator": 1.001, "denominator": 1, "bound": "<=", "limit": .002,
 *	 "n": 500, "time": true, "why": "...", "failed": "..."}
 * what: also the figure itself, where it is a text: then there is no value. low, high: the interval
 * of the value, 95 %. time: the row is about time or about memory of a device, and means nothing on
 * a driver without a GPU. why: this sentence says why the row is not judged. failed: it fails,
 * whatever the value is.
 *
 * Verdicts: "fail: SENTENCE" where the row or its experiment failed; "not judged: WHY"; "info"
 * where there is no bound; "pass" or "fail" where all of the interval is on one side of the limit;
 * "not judged: the interval contains the limit" otherwise.
 *
 * The document: {"schema": "ckptd.gpu/1", "device", "driver", "machine", "rows": [...]}, a row a
 * line.
 */
#ifndef TESTS_GPU_ROWS_H
#define TESTS_GPU_ROWS_H
#include "ckpt/base/error.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum row_bound { ROW_INFO, ROW_AT_MOST, ROW_AT_LEAST };

struct row {
	const char *name, *what, *unit;
	double value, low, high;       /* low == high == 0: there is no interval */
	double numerator, denominator; /* denominator 0: there are none */
	enum row_bound bound;
	double limit;
	uint64_t n;
	bool time;
	const char *why, *failed;
};

/* What a row has of a struct stat_value (gpu_stat.h). */
#define ROW_STAT(v)                                                                  \
	.value = (v).value, .low = (v).low, .high = (v).high, .numerator = (v).of_b, \
	.denominator = (v).of_a, .n = (v).n

/* In the process of an experiment. */
void rows_to(FILE *f, const char *experiment);
void row_put(const struct row *r);
/* A row that is not judged, and why. */
__attribute__((format(printf, 2, 3))) void row_skip(const char *name, const char *fmt, ...);
__attribute__((format(printf, 2, 3))) void row_fail(const char *name, const char *fmt, ...);

/* A line that another program wrote. */
void rows_line(const char *line);

/* In gpubench. */
struct rows_from { /* where the rows were measured */
	char device[128], driver[32], machine[256];
	bool fake;
};
struct rows_count {
	uint32_t passed, failed, unjudged, info;
};
/* Reads lines from f and judges them; prints a table; and merges them into the document at `path`
 * (NULL: into none). A line that is no row is a failed row. -EINVAL: the document is of another
 * device, or is none; or results of a driver without a GPU are to go among the results that are
 * kept (a path with docs/results). -errno: it cannot be read or written. */
int rows_merge(FILE *f, const struct rows_from *from, const char *path, struct rows_count *count,
	       struct ckpt_err *err);
/* May results of this device go to path? As above. */
int rows_may(const struct rows_from *from, const char *path, struct ckpt_err *err);
#endif
