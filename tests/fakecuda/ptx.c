// SPDX-License-Identifier: Apache-2.0
// ptx.c - see ptx.h.
// Invariant: a register holds its value in the low bits, and zeros above them.
#include "tests/fakecuda/ptx.h"
#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("fp-contract=off")
#endif

#define NAME_BYTES 48
#define CODE_MAX 512
#define NAMES_MAX 64
#define REGISTERS_MAX 256
#define TIMER_NAP_NS 20000 /* a thread that looks at the clock waits for something */
#define NONE UINT16_MAX

enum op {
	OP_MOV, /* and every conversion to as many bytes or fewer, or to more with zeros */
	OP_TIMER,
	OP_ADD,
	OP_SUB,
	OP_MUL,
	OP_MAD,
	OP_DIV,
	OP_AND,
	OP_OR,
	OP_XOR,
	OP_SHL,
	OP_SHR,
	OP_MIN,
	OP_MAX,
	OP_FADD,
	OP_FSUB,
	OP_FMUL,
	OP_FDIV,
	OP_FSQRT,
	OP_EQ,
	OP_NE,
	OP_LT,
	OP_LE,
	OP_GT,
	OP_GE,
	OP_PARAM,
	OP_LOAD,
	OP_STORE,
	OP_BRA,
	OP_RET,
};

/* name: "add.u32"; bytes: of the result, or of what is loaded or stored. */
struct form {
	const char *name;
	enum op op;
	uint8_t bytes, nsrc;
	bool dst;
};
#define FORM(name, op, bytes, nsrc, dst)   \
	{                                  \
		name, op, bytes, nsrc, dst \
	}
#define UNSIGNED(base, op, nsrc) \
	FORM(base ".u32", op, 4, nsrc, true), FORM(base ".u64", op, 8, nsrc, true)
#define INT(base, op, nsrc)                                             \
	UNSIGNED(base, op, nsrc), FORM(base ".s32", op, 4, nsrc, true), \
		FORM(base ".s64", op, 8, nsrc, true)
#define BITS(base, op, nsrc, dst)                                                 \
	FORM(base ".b16", op, 2, nsrc, dst), FORM(base ".b32", op, 4, nsrc, dst), \
		FORM(base ".b64", op, 8, nsrc, dst)
#define SETP(name, op) \
	FORM("setp." name ".u32", op, 4, 2, true), FORM("setp." name ".u64", op, 8, 2, true)
#define ANY(base, op, nsrc, dst)                                                          \
	BITS(base, op, nsrc, dst), FORM(base ".u16", op, 2, nsrc, dst),                   \
		FORM(base ".u32", op, 4, nsrc, dst), FORM(base ".u64", op, 8, nsrc, dst), \
		FORM(base ".f32", op, 4, nsrc, dst)

static const struct form forms[] = {
	ANY("mov", OP_MOV, 1, true),
	FORM("cvt.u64.u32", OP_MOV, 8, 1, true),
	FORM("cvt.u64.u16", OP_MOV, 8, 1, true),
	FORM("cvt.u32.u64", OP_MOV, 4, 1, true),
	FORM("cvt.u32.u16", OP_MOV, 4, 1, true),
	FORM("cvt.u16.u32", OP_MOV, 2, 1, true),
	FORM("cvta.to.global.u64", OP_MOV, 8, 1, true),
	INT("add", OP_ADD, 2),
	INT("sub", OP_SUB, 2),
	INT("mul.lo", OP_MUL, 2),
	INT("mad.lo", OP_MAD, 3),
	FORM("mul.wide.u32", OP_MUL, 8, 2, true),
	FORM("mad.wide.u32", OP_MAD, 8, 3, true),
	UNSIGNED("div", OP_DIV, 2),
	UNSIGNED("min", OP_MIN, 2),
	UNSIGNED("max", OP_MAX, 2),
	UNSIGNED("shr", OP_SHR, 2),
	BITS("and", OP_AND, 2, true),
	BITS("or", OP_OR, 2, true),
	BITS("xor", OP_XOR, 2, true),
	BITS("shl", OP_SHL, 2, true),
	BITS("shr", OP_SHR, 2, true),
	FORM("add.rn.f32", OP_FADD, 4, 2, true),
	FORM("sub.rn.f32", OP_FSUB, 4, 2, true),
	FORM("mul.rn.f32", OP_FMUL, 4, 2, true),
	FORM("div.rn.f32", OP_FDIV, 4, 2, true),
	FORM("sqrt.rn.f32", OP_FSQRT, 4, 1, true),
	SETP("eq", OP_EQ),
	SETP("ne", OP_NE),
	SETP("lt", OP_LT),
	SETP("le", OP_LE),
	SETP("gt", OP_GT),
	SETP("ge", OP_GE),
	ANY("ld.param", OP_PARAM, 0, true),
	ANY("ld.global", OP_LOAD, 0, true),
	ANY("st.global", OP_STORE, 1, false),
	FORM("bra", OP_BRA, 0, 0, false),
	FORM("bra.uni", OP_BRA, 0, 0, false),
	FORM("ret", OP_RET, 0, 0, false),
	FORM("exit", OP_RET, 0, 0, false),
};

struct insn {
	const struct form *form;
	enum op op;
	uint16_t dst, src[3];
	uint16_t guard; /* a predicate, or NONE */
	bool guard_not;
	uint16_t address; /* of memory: a register; of a parameter: its number */
	uint64_t offset;
	unsigned target; /* of a branch */
};

struct name { /* registers "%f<20>" or "%p"; a label; a parameter */
	char text[NAME_BYTES];
	unsigned at, n; /* n 0: the name has no number behind it */
	size_t bytes;
};

enum special { TID, CTAID, NTID, NCTAID, SPECIALS };
static const char *const special_name[SPECIALS] = { "%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x" };

struct ptx_kernel {
	char name[NAME_BYTES];
	struct ptx_kernel *next;
	struct insn code[CODE_MAX];
	unsigned ncode;
	struct name param[PTX_PARAMS_MAX], reg[NAMES_MAX], label[NAMES_MAX], jump[CODE_MAX];
	unsigned nparam, nreg, nlabel;
	uint64_t constant[REGISTERS_MAX]; /* what each register holds at first */
	unsigned nregister;
};

struct ptx_module {
	struct ptx_kernel *kernel;
};

/* --- reading --- */
struct reader {
	const char *at;
	unsigned line;
	char token[NAME_BYTES]; /* a word, or one other character; "" at the end */
	char *why;		/* "" until something is wrong */
	struct ptx_kernel *k;
};

__attribute__((format(printf, 2, 3))) static void wrong(struct reader *r, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (r->why[0])
		return;
	n = snprintf(r->why, PTX_WHY_BYTES, "PTX line %u: ", r->line);
	va_start(ap, fmt);
	vsnprintf(r->why + n, PTX_WHY_BYTES - (size_t)n, fmt, ap);
	va_end(ap);
}

static bool word_char(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '%' || c == '$';
}

static void next(struct reader *r)
{
	size_t n = 0;

	for (;;) {
		if (r->at[0] == '/' && r->at[1] == '/') {
			r->at += strcspn(r->at, "\n");
		} else if (r->at[0] == '\n') {
			r->line++;
			r->at++;
		} else if (isspace((unsigned char)r->at[0])) {
			r->at++;
		} else {
			break;
		}
	}
	while (word_char(r->at[n]) && n < NAME_BYTES - 1)
		n++;
	if (!n && r->at[0])
		n = 1;
	memcpy(r->token, r->at, n);
	r->token[n] = 0;
	r->at += n;
}

static bool is(const struct reader *r, const char *token)
{
	return strcmp(r->token, token) == 0;
}

static bool take(struct reader *r, const char *token)
{
	if (!is(r, token))
		return false;
	next(r);
	return true;
}

static void expect(struct reader *r, const char *token)
{
	if (!take(r, token))
		wrong(r, "'%s' where '%s' is needed", r->token, token);
}

static size_t type_bytes(struct reader *r)
{
	static const struct {
		const char *name;
		size_t bytes;
	} type[] = { { ".pred", 1 }, { ".b16", 2 }, { ".u16", 2 }, { ".b32", 4 }, { ".u32", 4 },
		     { ".s32", 4 },  { ".f32", 4 }, { ".b64", 8 }, { ".u64", 8 }, { ".s64", 8 } };

	for (size_t i = 0; i < sizeof type / sizeof *type; i++)
		if (take(r, type[i].name))
			return type[i].bytes;
	wrong(r, "'%s' is no type that is known here", r->token);
	return 0;
}

static uint64_t number(struct reader *r)
{
	bool minus = take(r, "-");
	const char *s = r->token;
	uint64_t v = 0;
	char *end = NULL;

	if (s[0] == '0' && (s[1] == 'f' || s[1] == 'F') && strlen(s) == 10)
		v = strtoull(s + 2, &end, 16);
	else if (isdigit((unsigned char)s[0]))
		v = strtoull(s, &end, 0);
	if (!end || (*end && strcmp(end, "U") != 0))
		wrong(r, "'%s' is no number", s);
	next(r);
	return minus ? 0 - v : v;
}

static uint16_t register_new(struct reader *r, unsigned n)
{
	unsigned at = r->k->nregister;

	if (at + n > REGISTERS_MAX) {
		wrong(r, "more than %d registers and constants", REGISTERS_MAX);
		return 0;
	}
	r->k->nregister += n;
	return (uint16_t)at;
}

static uint16_t constant(struct reader *r, uint64_t value)
{
	uint16_t at = register_new(r, 1);

	r->k->constant[at] = value;
	return at;
}

static uint16_t register_named(struct reader *r)
{
	const struct ptx_kernel *k = r->k;

	for (unsigned i = 0; i < SPECIALS; i++)
		if (take(r, special_name[i]))
			return (uint16_t)i;
	for (unsigned i = 0; i < k->nreg; i++) {
		const struct name *x = &k->reg[i];
		size_t len = strlen(x->text);
		char *end = NULL;
		unsigned long at = 0;

		if (strncmp(r->token, x->text, len) != 0)
			continue;
		if (x->n && isdigit((unsigned char)r->token[len]))
			at = strtoul(r->token + len, &end, 10);
		if (x->n ? !end || *end || at >= x->n : r->token[len] != 0)
			continue;
		next(r);
		return (uint16_t)(x->at + at);
	}
	wrong(r, "'%s' is no register that is declared", r->token);
	next(r);
	return 0;
}

static uint16_t operand(struct reader *r, unsigned bytes)
{
	uint64_t v;

	if (r->token[0] == '%')
		return register_named(r);
	v = number(r);
	return constant(r, bytes < 8 ? v & ((UINT64_C(1) << 8 * bytes) - 1) : v);
}

static void registers(struct reader *r)
{
	struct ptx_kernel *k = r->k;

	type_bytes(r);
	do {
		struct name *x = &k->reg[k->nreg];

		if (k->nreg == NAMES_MAX)
			wrong(r, "more than %d names of registers", NAMES_MAX);
		if (r->why[0])
			return;
		k->nreg++;
		strcpy(x->text, r->token);
		next(r);
		if (take(r, "<")) {
			x->n = (unsigned)number(r);
			expect(r, ">");
		}
		x->at = register_new(r, x->n ? x->n : 1);
	} while (take(r, ","));
	expect(r, ";");
}

static void parameters(struct reader *r)
{
	struct ptx_kernel *k = r->k;

	expect(r, "(");
	while (!r->why[0] && !is(r, ")")) {
		struct name *x = &k->param[k->nparam];

		if (k->nparam == PTX_PARAMS_MAX) {
			wrong(r, "more than %d parameters", PTX_PARAMS_MAX);
			return;
		}
		k->nparam++;
		expect(r, ".param");
		x->bytes = type_bytes(r);
		strcpy(x->text, r->token);
		next(r);
		if (!is(r, ")"))
			expect(r, ",");
	}
	expect(r, ")");
}

/* [%d1+4], or [name of a parameter] */
static void address(struct reader *r, struct insn *i)
{
	const struct ptx_kernel *k = r->k;

	expect(r, "[");
	if (i->op == OP_PARAM) {
		while (i->address < k->nparam && strcmp(k->param[i->address].text, r->token) != 0)
			i->address++;
		if (i->address == k->nparam)
			wrong(r, "'%s' is no parameter", r->token);
		else if (k->param[i->address].bytes != i->form->bytes)
			wrong(r, "%s of parameter %s, which has %zu bytes", i->form->name, r->token,
			      k->param[i->address].bytes);
		next(r);
	} else {
		i->address = register_named(r);
		if (take(r, "+"))
			i->offset = number(r);
	}
	expect(r, "]");
}

static void instruction(struct reader *r)
{
	struct ptx_kernel *k = r->k;
	struct insn *i = &k->code[k->ncode];
	bool memory;
	size_t f = 0;

	if (k->ncode == CODE_MAX) {
		wrong(r, "more than %d instructions", CODE_MAX);
		return;
	}
	i->guard = NONE;
	if (take(r, "@")) {
		i->guard_not = take(r, "!");
		i->guard = register_named(r);
	}
	while (f < sizeof forms / sizeof *forms && !is(r, forms[f].name))
		f++;
	if (f == sizeof forms / sizeof *forms) {
		wrong(r, "'%s' is no instruction that is known here", r->token);
		return;
	}
	next(r);
	i->form = &forms[f];
	i->op = i->form->op;
	memory = i->op == OP_PARAM || i->op == OP_LOAD || i->op == OP_STORE;
	if (i->form->dst)
		i->dst = register_named(r);
	if (memory) {
		if (i->form->dst)
			expect(r, ",");
		address(r, i);
	}
	for (unsigned s = 0; s < i->form->nsrc; s++) {
		expect(r, ",");
		if (i->op == OP_MOV && is(r, "%globaltimer")) {
			i->op = OP_TIMER;
			next(r);
		} else {
			i->src[s] = operand(r, i->form->bytes);
		}
	}
	if (i->op == OP_BRA) {
		strcpy(k->jump[k->ncode].text, r->token);
		next(r);
	}
	expect(r, ";");
	k->ncode++;
}

static void jumps(struct reader *r)
{
	struct ptx_kernel *k = r->k;

	for (unsigned i = 0; i < k->ncode; i++) {
		unsigned l = 0;

		if (k->code[i].op != OP_BRA)
			continue;
		while (l < k->nlabel && strcmp(k->label[l].text, k->jump[i].text) != 0)
			l++;
		if (l == k->nlabel)
			wrong(r, "%s: there is no label '%s'", k->name, k->jump[i].text);
		k->code[i].target = k->label[l].at;
	}
}

static void body(struct reader *r)
{
	struct ptx_kernel *k = r->k;

	expect(r, "{");
	while (!r->why[0] && !is(r, "}")) {
		const char *colon = r->at + strspn(r->at, " \t");

		if (!r->token[0]) {
			wrong(r, "the text ends within %s", k->name);
		} else if (take(r, ".reg")) {
			registers(r);
		} else if (*colon == ':' && r->token[0] != '@') {
			if (k->nlabel == NAMES_MAX) {
				wrong(r, "more than %d labels", NAMES_MAX);
				return;
			}
			strcpy(k->label[k->nlabel].text, r->token);
			k->label[k->nlabel++].at = k->ncode;
			next(r);
			expect(r, ":");
		} else {
			instruction(r);
		}
	}
	expect(r, "}");
	if (!r->why[0])
		jumps(r);
}

struct ptx_module *ptx_load(const char *text, char why[PTX_WHY_BYTES])
{
	struct ptx_module *m = calloc(1, sizeof *m);
	struct reader r = { .at = text, .line = 1, .why = why };

	why[0] = 0;
	if (!m)
		abort();
	next(&r);
	expect(&r, ".version");
	next(&r);
	expect(&r, ".target");
	next(&r);
	expect(&r, ".address_size");
	expect(&r, "64");
	while (!why[0] && r.token[0]) {
		struct ptx_kernel *k = calloc(1, sizeof *k);

		if (!k)
			abort();
		k->next = m->kernel;
		m->kernel = r.k = k;
		k->nregister = SPECIALS;
		take(&r, ".visible");
		expect(&r, ".entry");
		strcpy(k->name, r.token);
		next(&r);
		parameters(&r);
		body(&r);
	}
	if (!why[0])
		return m;
	ptx_unload(m);
	return NULL;
}

void ptx_unload(struct ptx_module *m)
{
	while (m->kernel) {
		struct ptx_kernel *k = m->kernel;

		m->kernel = k->next;
		free(k);
	}
	free(m);
}

const struct ptx_kernel *ptx_find(const struct ptx_module *m, const char *name)
{
	const struct ptx_kernel *k = m->kernel;

	while (k && strcmp(k->name, name) != 0)
		k = k->next;
	return k;
}

unsigned ptx_params(const struct ptx_kernel *k, size_t ret_bytes[PTX_PARAMS_MAX])
{
	for (unsigned i = 0; i < k->nparam; i++)
		ret_bytes[i] = k->param[i].bytes;
	return k->nparam;
}

/* --- running --- */
struct block {
	const struct ptx_kernel *k;
	void *const *param;
	unsigned threads;
	uint64_t *reg; /* [nregister][threads] */
	unsigned pc[PTX_THREADS_MAX];
	uint8_t on[PTX_THREADS_MAX]; /* the threads that this instruction is for */
	ptx_memory_fn *memory;
	struct ptx_memory seen; /* the last one */
	enum ptx_end end;
};

static float as_float(uint64_t bits)
{
	uint32_t u = (uint32_t)bits;
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

static uint64_t as_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return u;
}

/* A race with a copy is what the driver is here to show, so sanitizers do not look. */
#define RACY __attribute__((no_sanitize("thread"), no_sanitize("address")))

RACY static uint64_t racy_load(const uint8_t *p, unsigned bytes)
{
	const volatile void *v = p;

	return bytes == 8   ? *(const volatile uint64_t *)v
	       : bytes == 4 ? *(const volatile uint32_t *)v
			    : *(const volatile uint16_t *)v;
}

RACY static void racy_store(uint8_t *p, unsigned bytes, uint64_t value)
{
	volatile void *v = p;

	if (bytes == 8)
		*(volatile uint64_t *)v = value;
	else if (bytes == 4)
		*(volatile uint32_t *)v = (uint32_t)value;
	else
		*(volatile uint16_t *)v = (uint16_t)value;
}

/* NULL: the kernel has failed. */
static uint8_t *memory_at(struct block *b, uint64_t at, unsigned bytes)
{
	struct ptx_memory *s = &b->seen;

	if (at % bytes) {
		b->end = PTX_MISALIGNED;
		return NULL;
	}
	if (at - s->at >= s->bytes || s->bytes - (at - s->at) < bytes) {
		*s = (struct ptx_memory){ 0 };
		if (!b->memory(at, s) || s->bytes - (at - s->at) < bytes) {
			*s = (struct ptx_memory){ 0 };
			b->end = PTX_NO_MEMORY_THERE;
			return NULL;
		}
	}
	return s->host + (at - s->at);
}

static uint64_t timer(void)
{
	struct timespec t = { 0, TIMER_NAP_NS };

	nanosleep(&t, NULL);
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void memory_run(struct block *b, const struct insn *i)
{
	unsigned bytes = i->form->bytes;
	const uint64_t *at = b->reg + (size_t)i->address * b->threads;
	const uint64_t *value = b->reg + (size_t)i->src[0] * b->threads;
	uint64_t *dst = b->reg + (size_t)i->dst * b->threads;

	for (unsigned t = 0; t < b->threads; t++) {
		uint8_t *p;

		if (!b->on[t])
			continue;
		p = memory_at(b, at[t] + i->offset, bytes);
		if (!p)
			return;
		if (i->op == OP_LOAD)
			dst[t] = racy_load(p, bytes);
		else
			racy_store(p, bytes, value[t]);
	}
}

#define EACH(value)                                  \
	do {                                         \
		for (unsigned t = 0; t < n; t++)     \
			if (b->on[t])                \
				d[t] = (value)&mask; \
	} while (0)
#define EACH_FLOAT(op) EACH(as_bits(as_float(x[t]) op as_float(y[t])))

static void arithmetic_run(struct block *b, const struct insn *i)
{
	unsigned n = b->threads, bytes = i->form->bytes, bits = 8 * bytes;
	uint64_t mask = bytes == 8 ? UINT64_MAX : (UINT64_C(1) << bits) - 1, now;
	uint64_t *d = b->reg + (size_t)i->dst * n;
	const uint64_t *x = b->reg + (size_t)i->src[0] * n, *y = b->reg + (size_t)i->src[1] * n,
		       *z = b->reg + (size_t)i->src[2] * n;

	switch (i->op) {
	case OP_MOV:
		EACH(x[t]);
		break;
	case OP_TIMER:
		now = timer();
		EACH(now);
		break;
	case OP_PARAM:
		now = racy_load(b->param[i->address], bytes);
		EACH(now);
		break;
	case OP_ADD:
		EACH(x[t] + y[t]);
		break;
	case OP_SUB:
		EACH(x[t] - y[t]);
		break;
	case OP_MUL:
		EACH(x[t] * y[t]);
		break;
	case OP_MAD:
		EACH(x[t] * y[t] + z[t]);
		break;
	case OP_DIV:
		EACH(y[t] ? x[t] / y[t] : UINT64_MAX);
		break;
	case OP_AND:
		EACH(x[t] & y[t]);
		break;
	case OP_OR:
		EACH(x[t] | y[t]);
		break;
	case OP_XOR:
		EACH(x[t] ^ y[t]);
		break;
	case OP_SHL:
		EACH(y[t] < bits ? x[t] << y[t] : 0);
		break;
	case OP_SHR:
		EACH(y[t] < bits ? x[t] >> y[t] : 0);
		break;
	case OP_MIN:
		EACH(x[t] < y[t] ? x[t] : y[t]);
		break;
	case OP_MAX:
		EACH(x[t] > y[t] ? x[t] : y[t]);
		break;
	case OP_FADD:
		EACH_FLOAT(+);
		break;
	case OP_FSUB:
		EACH_FLOAT(-);
		break;
	case OP_FMUL:
		EACH_FLOAT(*);
		break;
	case OP_FDIV:
		EACH_FLOAT(/);
		break;
	case OP_FSQRT:
		EACH(as_bits(sqrtf(as_float(x[t]))));
		break;
	case OP_EQ:
		EACH(x[t] == y[t]);
		break;
	case OP_NE:
		EACH(x[t] != y[t]);
		break;
	case OP_LT:
		EACH(x[t] < y[t]);
		break;
	case OP_LE:
		EACH(x[t] <= y[t]);
		break;
	case OP_GT:
		EACH(x[t] > y[t]);
		break;
	case OP_GE:
		EACH(x[t] >= y[t]);
		break;
	case OP_LOAD:
	case OP_STORE:
		memory_run(b, i);
		break;
	case OP_BRA:
	case OP_RET:
		break;
	}
}

/* The threads that are least far run the next instruction together. False: all have ended. */
static bool step(struct block *b)
{
	unsigned least = UINT32_MAX;
	const struct insn *i;
	const uint64_t *guard;

	for (unsigned t = 0; t < b->threads; t++)
		least = b->pc[t] < least ? b->pc[t] : least;
	if (least >= b->k->ncode)
		return false;
	i = &b->k->code[least];
	guard = b->reg + (size_t)(i->guard == NONE ? 0 : i->guard) * b->threads;
	for (unsigned t = 0; t < b->threads; t++) {
		b->on[t] =
			b->pc[t] == least && (i->guard == NONE || (guard[t] != 0) != i->guard_not);
		if (b->pc[t] == least)
			b->pc[t] = !b->on[t]	     ? least + 1
				   : i->op == OP_BRA ? i->target
				   : i->op == OP_RET ? b->k->ncode
						     : least + 1;
	}
	arithmetic_run(b, i);
	return b->end == PTX_DONE;
}

enum ptx_end ptx_run(const struct ptx_kernel *k, void *const *param, unsigned blocks,
		     unsigned threads, ptx_memory_fn *memory)
{
	struct block *b = calloc(1, sizeof *b);
	enum ptx_end end;

	if (!b)
		abort();
	*b = (struct block){ .k = k, .param = param, .threads = threads, .memory = memory };
	b->reg = calloc((size_t)k->nregister * threads, sizeof *b->reg);
	if (!b->reg)
		abort();
	for (unsigned at = 0; at < k->nregister; at++)
		for (unsigned t = 0; t < threads; t++)
			b->reg[(size_t)at * threads + t] = k->constant[at];
	for (unsigned block = 0; block < blocks && b->end == PTX_DONE; block++) {
		for (unsigned t = 0; t < threads; t++) {
			b->reg[TID * threads + t] = t;
			b->reg[CTAID * threads + t] = block;
			b->reg[NTID * threads + t] = threads;
			b->reg[NCTAID * threads + t] = blocks;
			b->pc[t] = 0;
		}
		while (step(b))
			;
	}
	end = b->end;
	free(b->reg);
	free(b);
	return end;
}
