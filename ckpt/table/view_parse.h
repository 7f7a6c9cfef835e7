/* SPDX-License-Identifier: Apache-2.0 */
/* view_parse.h - the rules of a view as they were written, and names by patterns. For
 * ckpt/table/view.c; view.h has the notation. Invariant: a rule that was read has the names and
 * numbers that its verb takes, and every {1} in it exists. */
#ifndef CKPT_TABLE_VIEW_PARSE_H
#define CKPT_TABLE_VIEW_PARSE_H
#include "ckpt/table/view.h"

#define VIEW_STARS_MAX 16u		      /* '*' in a pattern */
#define VIEW_NAME_MAX (2 * CKPT_NAME_MAX + 2) /* "component/name" with its zero */

enum view_verb {
	VIEW_RENAME,
	VIEW_TRANSPOSE,
	VIEW_SPLIT,
	VIEW_CONCAT,
	VIEW_STACK,
	VIEW_UNSTACK,
	VIEW_COPY,
	VIEW_DROP,
	VIEW_RESHAPE,
	VIEW_CAST,
};

#define VIEW_REST UINT64_MAX /* a size of reshape that the others leave: "-1" */

struct view_rule {
	enum view_verb verb;
	const char *where;	/* "views.txt:3" */
	const char *const *src; /* [nsrc] the first is the pattern, the others are templates */
	const char *const *dst; /* [ndst] templates; transpose may have none; drop, reshape, cast */
	uint32_t nsrc, ndst;
	bool src_numbers, dst_numbers; /* src[0], dst[0] has a '#' */
	int32_t dim;
	uint32_t n; /* dims of transpose; sizes of split, 0: equal parts; of reshape, 0: scalar */
	const uint64_t *number; /* [n] */
	uint32_t dtype;		/* of cast */
	const char *arg;	/* of reshape: the shape as it is written */
};

/* What a pattern matched. */
struct view_match {
	struct {
		const char *at;
		size_t len;
	} star[VIEW_STARS_MAX]; /* inside the name */
	uint64_t number;
};
bool view_match(const char *pattern, const char *name, struct view_match *ret);
/* A template with what was matched; -ENAMETOOLONG. */
int view_expand(const char *template, const struct view_match *m, uint64_t number,
		char ret_name[VIEW_NAME_MAX]);
#endif
