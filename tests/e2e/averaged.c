/* SPDX-License-Identifier: Apache-2.0 */
/*
 * averaged.c - for test_ema.sh and test_json.sh: a trainer of one process whose weights are
 * averaged. It writes what average fast must be after the last step to DIR/fast.w, and the weights
 * to DIR/raw.w: computed here, plainly, element by element. Compiled by the scripts.
 *
 *	averaged STORE DIR STEPS [hold]		hold: at a line on stdin one more step, which no average takes in; ends
 *						at the next line
 */
#include <ckpt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT 60000000000ull
#define ROWS 300
#define COLS 64
#define N (ROWS * COLS)

static struct ckpt_err e;
static float fast[N];

static int failed(void)
{
	fprintf(stderr, "%s\n", e.msg);
	return 1;
}

static int add(ckpt *c, uint32_t mesh, struct ckpt_tensor t, void *at, uint32_t ndim,
	       const uint64_t *shape)
{
	struct ckpt_local local = { .ptr = at };
	uint32_t id;

	t.size = sizeof t;
	t.component = "model";
	t.mesh = mesh;
	t.nlocal = 1;
	t.local = &local;
	t.ndim = ndim;
	t.shape = shape;
	return ckpt_tensor_add(c, &t, &id, &e);
}

/* e + (1 - d)(p - e), as ckpt.h defines it. */
static float update(float old, float p, double d)
{
	float a = (float)(1 - d);

	return a < .5f ? fmaf(a, p - old, old) : fmaf(a - 1, p - old, p);
}

static int put(const char *dir, const char *name, const float *x)
{
	char path[4096];
	FILE *f;

	snprintf(path, sizeof path, "%s/%s", dir, name);
	f = fopen(path, "w");
	return !f || fwrite(x, sizeof *x, N, f) != N || fclose(f);
}

int main(int argc, char **argv)
{
	const uint64_t shape[] = { ROWS, COLS }, few[] = { 16 };
	const char *const dim[] = { "fsdp" };
	uint64_t steps = argc > 3 ? strtoull(argv[3], NULL, 10) : 0;
	uint32_t one = 1, mesh;
	float *w, *bias, *running, *frozen;
	int64_t *calls;
	ckpt *c;
	struct ckpt_opts o = { .size = sizeof o,
			       .flags = CKPT_REQUIRE | CKPT_USE_ENV,
			       .job = "averaged",
			       .world = 1 };

	if (argc < 4)
		return 2;
	o.store = argv[1];
	if (ckpt_attach(&o, &c, &e) < 0 || ckpt_mesh(c, 1, dim, &one, NULL, &mesh, &e) < 0 ||
	    ckpt_alloc(c, N * sizeof *w, (void **)&w, &e) < 0 ||
	    ckpt_alloc(c, 16 * sizeof *w, (void **)&bias, &e) < 0 ||
	    ckpt_alloc(c, 16 * sizeof *w, (void **)&running, &e) < 0 ||
	    ckpt_alloc(c, 16 * sizeof *w, (void **)&frozen, &e) < 0 ||
	    ckpt_alloc(c, sizeof *calls, (void **)&calls, &e) < 0)
		return failed();
	if (add(c, mesh, (struct ckpt_tensor){ .name = "w", .dtype = CKPT_F32, .role = CKPT_PARAM },
		w, 2, shape) < 0 ||
	    add(c, mesh,
		(struct ckpt_tensor){ .name = "bias", .dtype = CKPT_F32, .role = CKPT_PARAM }, bias,
		1, few) < 0 ||
	    add(c, mesh,
		(struct ckpt_tensor){ .name = "running", .dtype = CKPT_F32, .role = CKPT_BUFFER },
		running, 1, few) < 0 ||
	    add(c, mesh,
		(struct ckpt_tensor){ .name = "frozen",
				      .dtype = CKPT_F32,
				      .role = CKPT_PARAM,
				      .cls = CKPT_CONST },
		frozen, 1, few) < 0 ||
	    add(c, mesh,
		(struct ckpt_tensor){ .name = "calls", .dtype = CKPT_I64, .role = CKPT_BUFFER },
		calls, 0, NULL) < 0)
		return failed();
	if (ckpt_average(c, "fast", "constant decay=.9", &e) < 0 ||
	    ckpt_average(c, "slow", "constant decay=.99 kahan bias=(uniform)", &e) < 0)
		return failed();
	for (int i = 0; i < 16; i++)
		frozen[i] = (float)i;
	if (ckpt_seal(c, WAIT, &e) != 0)
		return failed();
	for (uint64_t step = 1; step <= steps + (argc > 4); step++) {
		struct ckpt_note loss = { "loss", 1. / (double)step };
		struct ckpt_mark mark = {
			.size = sizeof mark, .flags = CKPT_FINAL, .note = &loss, .nnote = 1
		};

		if (step > steps) {
			puts("done");
			fflush(stdout);
			(void)getchar();
			mark.flags |= CKPT_NO_EMA;
		}
		ckpt_guard(c, NULL);
		for (int i = 0; i < N; i++) {
			w[i] = sinf((float)i + (float)step);
			fast[i] = step == 1 ? w[i] : update(fast[i], w[i], .9);
		}
		for (int i = 0; i < 16; i++) {
			bias[i] = (float)step + (float)i;
			running[i] = 1e5f * (float)step; /* more than F16 has */
		}
		*calls = (int64_t)step;
		if (ckpt_snapshot(c, step, &mark) != 0 ||
		    ckpt_wait(c, step, CKPT_COMMITTED, WAIT, &e) < 0) {
			ckpt_why(c, &e);
			return failed();
		}
	}
	if (put(argv[2], "raw.w", w) || put(argv[2], "fast.w", fast))
		return 1;
	puts(argc > 4 ? "more" : "done");
	fflush(stdout);
	if (argc > 4)
		(void)getchar();
	ckpt_detach(c, 0);
	return 0;
}
