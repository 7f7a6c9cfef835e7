/* SPDX-License-Identifier: Apache-2.0 */
/* view_parse.c - see view_parse.h. Called by view.c, and by verbs that read the text of a view. */
#include "ckpt/table/view_parse.h"
#include "ckpt/base/dtype.h"
#include "ckpt/base/util.h"
#include <stdarg.h>
#include <stdio.h>

/* --- names --- */

static bool is_digit(char c)
{
	return c >= '0' && c <= '9';
}

/* The number at `at`, all of its digits; false: there is none, it began before, or it is too large
 * for a part's. */
static bool take_number(const char *name, const char **at, uint64_t *ret)
{
	const char *p = *at;
	uint64_t n = 0;

	if (!is_digit(*p) || (p > name && is_digit(p[-1])))
		return false;
	for (; is_digit(*p); p++)
		if (ckpt_mul(n, 10, &n) || ckpt_add(n, (uint64_t)(*p - '0'), &n))
			return false;
	*at = p;
	*ret = n;
	return true;
}

/* One item of the pattern, neither its end nor a '*'. */
static bool take_item(const char **pattern, const char *name, const char **at, uint64_t *number)
{
	const char *p = *pattern;
	bool any = *p == '?';

	if (*p == '#') {
		++*pattern;
		return take_number(name, at, number);
	}
	p += *p == '\\';
	if (!**at || (!any && **at != *p))
		return false;
	*pattern = p + 1;
	++*at;
	return true;
}

bool view_match(const char *pattern, const char *name, struct view_match *ret)
{
	const char *p = pattern, *at = name, *behind = NULL; /* the last star */
	uint32_t star = 0;

	ret->number = 0;
	for (;;) {
		if (*p == '*') {
			behind = ++p;
			ret->star[star].at = at;
			ret->star[star++].len = 0;
			continue;
		}
		if (!*p && !*at)
			return true;
		if (*p && take_item(&p, name, &at, &ret->number))
			continue;
		/* The last star takes one character more; longer ones before it would not help. */
		if (!behind || !ret->star[star - 1].at[ret->star[star - 1].len])
			return false;
		p = behind;
		at = ret->star[star - 1].at + ++ret->star[star - 1].len;
	}
}

static bool name_add(char *buf, size_t *used, const char *s, size_t n)
{
	if (n >= VIEW_NAME_MAX - *used)
		return false;
	memcpy(buf + *used, s, n);
	*used += n;
	return true;
}

/* {1} .. {16} at p: which star, and behind it; NULL: it is none. */
static const char *star_ref(const char *p, uint32_t *ret)
{
	uint32_t n = 0;

	for (p++; is_digit(*p) && n <= VIEW_STARS_MAX; p++)
		n = 10 * n + (uint32_t)(*p - '0');
	*ret = n - 1;
	return *p == '}' && n && n <= VIEW_STARS_MAX ? p + 1 : NULL;
}

int view_expand(const char *template, const struct view_match *m, uint64_t number,
		char ret_name[VIEW_NAME_MAX])
{
	size_t used = 0;
	bool fits = true;
	uint32_t star;

	for (const char *p = template; *p && fits;) {
		if (*p == '{') {
			p = star_ref(p, &star);
			fits = name_add(ret_name, &used, m->star[star].at, m->star[star].len);
		} else if (*p == '#') {
			char digits[24];
			int n = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);

			fits = name_add(ret_name, &used, digits, (size_t)n);
			p++;
		} else {
			p += *p == '\\';
			fits = name_add(ret_name, &used, p++, 1);
		}
	}
	ret_name[used] = 0;
	return fits ? 0 : -ENAMETOOLONG;
}

/* --- words --- */

struct line {
	char *text; /* the words' bytes lie in it, ended by zeros */
	const char *where;
	uint32_t nword;
	char **word;
	uint32_t at; /* of word */
	struct ckpt_errlist *list;
	struct arena *a;
};

/* Always -EINVAL. at: in the line. */
__attribute__((format(printf, 3, 4))) static int refuse(struct line *l, const char *at,
							const char *fmt, ...)
{
	char why[512];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	ckpt_errlist_add(l->list, "%s: character %zu: %s", l->where, (size_t)(at - l->text) + 1,
			 why);
	return -EINVAL;
}

static const char *word_now(const struct line *l)
{
	return l->at < l->nword ? l->word[l->at] : "";
}

static bool is_word(const struct line *l, const char *s)
{
	return l->at < l->nword && !strcmp(l->word[l->at], s);
}

/* The start of the present word; after the last word, the end of the line. */
static const char *word_start(const struct line *l)
{
	const char *last;

	if (l->at < l->nword)
		return l->word[l->at];
	last = l->word[l->nword - 1];
	return last + strlen(last);
}

static bool is_blank(char c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

/* Cut the line into words. text ends with the line. */
static int line_cut(struct line *l)
{
	size_t room = 1;
	char *p = l->text;

	for (const char *q = p; *q; q++)
		room += is_blank(*q);
	room = MIN(room, (size_t)VIEW_WORDS_MAX);
	l->word = arena_array(l->a, room, sizeof *l->word);
	if (!l->word)
		return -ENOMEM;
	while (*p) {
		while (is_blank(*p))
			*p++ = 0;
		if (!*p || *p == '#') {
			*p = 0;
			break;
		}
		if (l->nword == room)
			return refuse(l, p, "more than %u words; take a '#' in the name",
				      VIEW_WORDS_MAX);
		l->word[l->nword++] = p;
		for (; *p && !is_blank(*p); p++) {
			if (*p == '\\' && !*++p)
				return refuse(l, p - 1,
					      "nothing follows the backslash; write the "
					      "character that it is for");
		}
	}
	return 0;
}

/* --- rules --- */

static const struct {
	const char *name, *form;
	bool one_src, one_dst, has_dim;
} verbs[] = {
	[VIEW_RENAME] = { "rename", "rename NAME -> NEW", true, true, false },
	[VIEW_TRANSPOSE] = { "transpose", "transpose NAME dims 1,0 -> NEW", true, true, false },
	[VIEW_SPLIT] = { "split", "split NAME dim 0 sizes 4,2 -> NEW NEW", true, false, true },
	[VIEW_CONCAT] = { "concat", "concat NAME NAME dim 0 -> NEW", false, true, true },
	[VIEW_STACK] = { "stack", "stack NAME NAME dim 0 -> NEW", false, true, true },
	[VIEW_UNSTACK] = { "unstack", "unstack NAME dim 0 -> NEW NEW", true, false, true },
	[VIEW_COPY] = { "copy", "copy NAME -> NEW", true, true, false },
	[VIEW_DROP] = { "drop", "drop NAME", true, true, false },
	[VIEW_RESHAPE] = { "reshape", "reshape NAME 32,-1,128", true, true, false },
	[VIEW_CAST] = { "cast", "cast NAME BF16", true, true, false },
};

/* The pattern: counts its stars. */
static int check_pattern(struct line *l, const char *s, uint32_t *ret_stars, bool *ret_number)
{
	*ret_stars = 0;
	*ret_number = false;
	for (const char *p = s; *p; p++) {
		if (*p == '\\') {
			p++;
		} else if (*p == '*') {
			if (++*ret_stars > VIEW_STARS_MAX)
				return refuse(l, p, "more than %u '*' in one name", VIEW_STARS_MAX);
		} else if (*p == '#') {
			if (*ret_number)
				return refuse(l, p, "a second '#' in one name; write '*' for one");
			*ret_number = true;
		} else if (*p == '{') {
			return refuse(l, p,
				      "{1} has nothing before it to repeat; write '*' here, "
				      "or \\{ for the character");
		}
	}
	return 0;
}

static int check_template(struct line *l, const char *s, uint32_t stars, bool *ret_number)
{
	uint32_t star;

	*ret_number = false;
	for (const char *p = s, *end; *p; p++) {
		if (*p == '\\') {
			p++;
		} else if (*p == '*' || *p == '?') {
			return refuse(l, p,
				      "only the first name is a pattern; write {1} for what its "
				      "first '*' matched, or \\%c for the character",
				      *p);
		} else if (*p == '#') {
			if (*ret_number)
				return refuse(l, p, "a second '#' in one name; write it once");
			*ret_number = true;
		} else if (*p == '{') {
			end = star_ref(p, &star);
			if (!end)
				return refuse(l, p,
					      "expected {1}, {2}, ..; write \\{ for the character");
			if (star >= stars)
				return refuse(l, p, "{%u}, but the first name has %u '*'", star + 1,
					      stars);
			p = end - 1;
		}
	}
	return 0;
}

/* "4096,1024" at the present word; rest: -1 is VIEW_REST. */
static int read_numbers(struct line *l, struct view_rule *x, bool rest, const char *example)
{
	const char *p = word_now(l);
	size_t room = 1;
	uint64_t *number;

	for (const char *q = p; *q; q++)
		room += *q == ',';
	if (room > VIEW_PARTS_MAX)
		return refuse(l, p, "more than %u sizes", VIEW_PARTS_MAX);
	number = arena_array(l->a, room, sizeof *number);
	if (!number)
		return -ENOMEM;
	for (;; p++) {
		uint64_t n = 0;

		if (rest && !strncmp(p, "-1", 2)) {
			n = VIEW_REST;
			p += 2;
		} else if (!is_digit(*p)) {
			return refuse(l, *word_now(l) ? p : word_start(l),
				      "expected a number; write %s, without blanks", example);
		}
		for (; n != VIEW_REST && is_digit(*p); p++)
			if (ckpt_mul(n, 10, &n) || ckpt_add(n, (uint64_t)(*p - '0'), &n) ||
			    n > INT64_MAX)
				return refuse(l, p, "no tensor is so large");
		number[x->n++] = n;
		if (!*p)
			break;
		if (*p != ',')
			return refuse(l, p, "expected a ',' or a blank; write %s", example);
	}
	l->at++;
	x->number = number;
	return 0;
}

/* "dim -1" */
static int read_dim(struct line *l, struct view_rule *x)
{
	const char *p;
	char *end;
	long n;

	if (!is_word(l, "dim"))
		return refuse(l, word_start(l), "expected \"dim\": %s", verbs[x->verb].form);
	l->at++;
	p = word_now(l);
	n = strtol(p, &end, 10);
	if ((*p != '-' && !is_digit(*p)) || !is_digit(end[-1]) || *end || n >= CKPT_DIMS_MAX ||
	    n < -CKPT_DIMS_MAX)
		return refuse(l, word_start(l),
			      "which dimension? write 0 for the first, -1 for the "
			      "last");
	x->dim = (int32_t)n;
	l->at++;
	return 0;
}

static int check_dims(struct line *l, const struct view_rule *x, const char *at)
{
	uint32_t seen = 0;

	for (uint32_t i = 0; i < x->n; i++) {
		if (x->n > CKPT_DIMS_MAX || x->number[i] >= x->n || seen >> x->number[i] & 1)
			return refuse(l, at, "each dimension may appear once: write 1,0 or 0,2,1");
		seen |= 1u << x->number[i];
	}
	return 0;
}

static int check_sizes(struct line *l, const struct view_rule *x, const char *at)
{
	for (uint32_t i = 0; i < x->n; i++)
		if (!x->number[i])
			return refuse(l, at, "size %u of these is 0; write sizes above 0", i + 1);
	return 0;
}

/* "32,-1,128" or "scalar" */
static int read_shape(struct line *l, struct view_rule *x)
{
	const char *at = word_start(l);
	uint32_t nrest = 0;
	int rc;

	x->arg = at;
	if (is_word(l, "scalar")) {
		l->at++;
		return 0;
	}
	rc = read_numbers(l, x, true, "a shape, as in 32,-1,128, or scalar");
	for (uint32_t i = 0; i < x->n && !rc; i++)
		nrest += x->number[i] == VIEW_REST;
	if (!rc && x->n > CKPT_DIMS_MAX)
		return refuse(l, at, "a tensor has at most %u dimensions", CKPT_DIMS_MAX);
	if (!rc && nrest > 1)
		return refuse(l, at, "only one size may be -1, which is what the others leave");
	return rc;
}

static int read_dtype(struct line *l, struct view_rule *x)
{
	x->dtype = dtype_of_name(word_now(l));
	if (!x->dtype)
		return refuse(l, word_start(l), "expected a dtype: F32, BF16, F16 or F64");
	l->at++;
	return 0;
}

static int read_options(struct line *l, struct view_rule *x)
{
	const char *at;
	int rc = verbs[x->verb].has_dim ? read_dim(l, x) : 0;

	if (x->verb == VIEW_RESHAPE)
		return read_shape(l, x);
	if (x->verb == VIEW_CAST)
		return read_dtype(l, x);
	if (!rc && x->verb == VIEW_TRANSPOSE) {
		if (!is_word(l, "dims"))
			return refuse(l, word_start(l), "expected \"dims\": %s",
				      verbs[x->verb].form);
		l->at++;
		at = word_start(l);
		rc = read_numbers(l, x, false, "dims 1,0");
		return rc ? rc : check_dims(l, x, at);
	}
	if (!rc && x->verb == VIEW_SPLIT && is_word(l, "sizes")) {
		l->at++;
		at = word_start(l);
		rc = read_numbers(l, x, false, "sizes 4096,1024");
		return rc ? rc : check_sizes(l, x, at);
	}
	return rc;
}

/* Rules that have one name and give no other. */
static bool is_in_place(const struct view_rule *x)
{
	return x->verb == VIEW_RESHAPE || x->verb == VIEW_CAST;
}

static bool ends_names(const struct line *l, const struct view_rule *x)
{
	return l->at == l->nword || (is_in_place(x) && x->nsrc) || is_word(l, "dim") ||
	       is_word(l, "dims") || is_word(l, "sizes") || is_word(l, "->");
}

static int read_sources(struct line *l, struct view_rule *x, uint32_t *ret_stars)
{
	bool number;
	int rc;

	x->src = (const char *const *)&l->word[l->at];
	if (ends_names(l, x))
		return refuse(l, word_start(l), "a name is missing; write %s", verbs[x->verb].form);
	rc = check_pattern(l, word_now(l), ret_stars, &x->src_numbers);
	for (l->at++, x->nsrc = 1; !rc && !ends_names(l, x); l->at++, x->nsrc++) {
		if (verbs[x->verb].one_src)
			return refuse(l, word_start(l), "%s takes one name; write %s",
				      verbs[x->verb].name, verbs[x->verb].form);
		if (x->src_numbers)
			return refuse(l, word_start(l),
				      "a name with '#' must be the only name, because it means all "
				      "parts; write ' dim' after it");
		rc = check_template(l, word_now(l), *ret_stars, &number);
		if (!rc && number)
			return refuse(l, word_start(l),
				      "a '#' among several names; write \\# for the "
				      "character");
	}
	if (!rc && x->src_numbers && verbs[x->verb].one_src)
		return refuse(l, x->src[0],
			      "'#' is for the parts of concat and stack; write '*', "
			      "or \\# for the character");
	return rc;
}

static int read_results(struct line *l, struct view_rule *x, uint32_t stars)
{
	bool parts = !verbs[x->verb].one_dst, number;
	int rc = 0;

	if (l->at == l->nword && x->verb == VIEW_TRANSPOSE)
		return 0;
	if (x->verb == VIEW_DROP || is_in_place(x))
		return l->at == l->nword
			       ? 0
			       : refuse(l, word_start(l), "expected the end of the line: %s",
					verbs[x->verb].form);
	if (!is_word(l, "->"))
		return refuse(l, word_start(l), "expected \"->\": %s", verbs[x->verb].form);
	l->at++;
	x->dst = (const char *const *)&l->word[l->at];
	if (l->at == l->nword)
		return refuse(l, word_start(l), "expected a new name after \"->\"");
	for (; !rc && l->at < l->nword; l->at++, x->ndst++) {
		if (x->ndst && !parts)
			return refuse(l, word_start(l), "%s makes one tensor; take this word away",
				      verbs[x->verb].name);
		rc = check_template(l, word_now(l), stars, &number);
		if (!rc && number && !parts)
			return refuse(l, word_start(l),
				      "'#' numbers the parts of split and unstack; "
				      "write \\# for the character");
		if (!rc && ((number && x->ndst) || (x->dst_numbers && x->ndst)))
			return refuse(l, word_start(l),
				      "a name with '#' must be the only name, because it means all "
				      "parts");
		x->dst_numbers = x->dst_numbers || number;
	}
	if (rc || x->verb != VIEW_SPLIT)
		return rc;
	if (x->dst_numbers && !x->n)
		return refuse(l, x->dst[0],
			      "the number of parts is missing; write sizes before \"->\"");
	if (!x->dst_numbers && x->n && x->n != x->ndst)
		return refuse(l, x->dst[0], "%u sizes, but %u names; write one for each", x->n,
			      x->ndst);
	return 0;
}

static int read_rule(struct line *l, struct view_rule *x)
{
	uint32_t stars = 0, verb = 0;
	int rc;

	for (; verb < ARRAY_LEN(verbs) && strcmp(word_now(l), verbs[verb].name) != 0; verb++)
		;
	if (verb == ARRAY_LEN(verbs))
		return refuse(
			l, word_start(l),
			"\"%.40s\" is not a rule; write rename, copy, drop, transpose, reshape, "
			"cast, split, concat, stack or unstack",
			word_now(l));
	*x = (struct view_rule){ .verb = (enum view_verb)verb, .where = l->where };
	l->at++;
	rc = read_sources(l, x, &stars);
	if (!rc)
		rc = read_options(l, x);
	return rc ? rc : read_results(l, x, stars);
}

static int read_line(char *text, const char *where, uint32_t number, struct arena *a,
		     struct ckpt_errlist *list, struct view_rule *rule, uint32_t *nrule)
{
	struct line l = { .text = text, .list = list, .a = a };
	size_t room = strlen(where) + 16;
	char *s;
	int rc;

	if (!text[strspn(text, " \t\r")] || text[strspn(text, " \t\r")] == '#')
		return 0;
	s = arena_alloc(a, room);
	if (!s)
		return -ENOMEM;
	snprintf(s, room, "%s:%u", where, number);
	l.where = s;
	rc = line_cut(&l);
	if (!rc)
		rc = read_rule(&l, &rule[*nrule]);
	*nrule += !rc;
	return rc == -EINVAL ? 0 : rc;
}

static int read_all(char *text, const char *where, struct arena *a, struct ckpt_errlist *list,
		    struct view *ret)
{
	uint32_t lines = 1, number = 0;
	struct view_rule *rule;
	int rc = 0;

	for (const char *p = text; (p = strchr(p, '\n')); p++)
		if (++lines > VIEW_RULES_MAX)
			return -E2BIG;
	rule = arena_array(a, lines, sizeof *rule);
	if (!rule)
		return -ENOMEM;
	for (char *p = text, *next; p && !rc; p = next) {
		next = strchr(p, '\n');
		if (next)
			*next++ = 0;
		rc = read_line(p, where, ++number, a, list, rule, &ret->nrule);
	}
	ret->rule = rule;
	return rc;
}

int view_parse(const char *text, const char *where, struct arena *a, struct view *ret,
	       struct ckpt_err *err)
{
	struct ckpt_errlist list = { .code = -EINVAL };
	char *copy = arena_str(a, text);
	int rc;

	*ret = (struct view){ 0 };
	rc = copy ? read_all(copy, where, a, &list, ret) : -ENOMEM;
	if (rc == -E2BIG)
		rc = ckpt_error(err, rc, "%s: more than %u lines", where, VIEW_RULES_MAX);
	else if (rc)
		rc = ckpt_error(err, rc, "out of memory for the rules of %s", where);
	else
		rc = ckpt_errlist_end(&list, err, "the view cannot be read");
	ckpt_errlist_free(&list);
	if (rc)
		ret->nrule = 0;
	return rc;
}
