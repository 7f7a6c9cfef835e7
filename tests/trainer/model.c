/* SPDX-License-Identifier: Apache-2.0 */
/*
 * model.c - the arithmetic of model.h. Called by train.c on every rank.
 *
 * Invariant: every float sum has one order, fixed by the shape alone. That is why the loops over
 * long rows are written with 8 explicit lanes instead of being left to the vectorizer, and why
 * fused multiply-add is off: whether a compiler fuses depends on the loop it happens to be in.
 */
#include "model.h"

#include <math.h>
#include <string.h>

#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#else
#pragma GCC optimize("O3", "no-math-errno", "fp-contract=off")
#endif

/* AVX2 changes the speed and never the bits. Sanitizers start before the resolvers that clones
 * need. */
#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && \
	!defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

#define LANES 8
#define ADAM_BETA1 0.9
#define ADAM_BETA2 0.99
#define ADAM_EPS 1e-8f
#define ADAM_DECAY 0.01f
#define WARM_UP_STEPS 20.0

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint16_t lanes_u16 __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef uint32_t lanes_u32 __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* Macros, because a function that takes or returns 8 lanes has another ABI with AVX2. */
#define LOAD(p) (*(const lanes *)(p))
#define LOAD_BF16(p) ((lanes)(__builtin_convertvector(*(const lanes_u16 *)(p), lanes_u32) << 16))

static inline float bf16_get(uint16_t x)
{
	uint32_t u = (uint32_t)x << 16;
	float f;

	memcpy(&f, &u, sizeof f);
	return f;
}

/* Round to nearest, ties to even; there are no NaNs here. */
static inline uint16_t bf16_of(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof u);
	return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static void shape_set(uint64_t hidden, uint64_t embed, struct model_shape *s)
{
	uint64_t in = MODEL_CONTEXT * embed;
	double wide = sqrt(3.0 / (double)in), deep = sqrt(3.0 / (double)hidden);

	*s = (struct model_shape){
		.embed = embed,
		.hidden = hidden,
		.tensor = {
			[T_EMB] = { "emb.weight", 2, { MODEL_VOCAB, embed }, 0, 1.5 },
			[T_KIND] = { "kind.weight", 2, { MODEL_KINDS, embed }, 0, 0.5 },
			[T_FC1_W] = { "fc1.weight", 2, { hidden, in }, 0, wide },
			[T_FC1_B] = { "fc1.bias", 1, { hidden, 1 }, 0, 0 },
			[T_FC2_W] = { "fc2.weight", 2, { hidden, hidden }, 0, deep },
			[T_FC2_B] = { "fc2.bias", 1, { hidden, 1 }, 0, 0 },
			[T_OUT_W] = { "out.weight", 2, { MODEL_VOCAB, hidden }, 0, deep / 2 },
			[T_OUT_B] = { "out.bias", 1, { MODEL_VOCAB, 1 }, 0, 0 },
		},
	};
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		uint64_t n = s->tensor[t].dim[0] * s->tensor[t].dim[1];

		s->tensor[t].at = s->gathered;
		s->params += n;
		s->gathered += (n + 31) & ~UINT64_C(31);
	}
}

void model_shape_for(uint64_t params, struct model_shape *ret_shape)
{
	struct model_shape below = { 0 };

	/* Embeddings grow with the hidden width: both matrices stay of one size class. */
	for (uint64_t hidden = 5;; hidden += hidden % 6 == 5 ? 2 : 4) {
		shape_set(hidden, hidden / 16 > 2 ? hidden / 16 : 2, ret_shape);
		if (ret_shape->params >= params)
			break;
		below = *ret_shape;
	}
	if (below.params > 0 && params - below.params < ret_shape->params - params)
		*ret_shape = below;
}

/* Floats of one value or gradient, rounded up so that every array starts on a cache line. */
static size_t batch_floats(uint64_t width)
{
	return ((size_t)width * MODEL_BATCH + 15) & ~(size_t)15;
}

size_t model_batch_bytes(const struct model_shape *s)
{
	size_t floats = 2 * batch_floats(MODEL_CONTEXT * s->embed) + 4 * batch_floats(s->hidden) +
			batch_floats(MODEL_VOCAB);

	return floats * sizeof(float) + MODEL_BATCH * (sizeof(double) + MODEL_CONTEXT);
}

void model_batch_at(const struct model_shape *s, void *mem, struct model_batch *ret_batch)
{
	uint64_t width[7] = { MODEL_CONTEXT * s->embed,
			      MODEL_CONTEXT * s->embed,
			      s->hidden,
			      s->hidden,
			      s->hidden,
			      s->hidden,
			      MODEL_VOCAB };
	float **array[7] = { &ret_batch->x0, &ret_batch->d0, &ret_batch->h1,  &ret_batch->d1,
			     &ret_batch->h2, &ret_batch->d2, &ret_batch->dout };
	float *at = mem;

	for (int i = 0; i < 7; i++) {
		*array[i] = at;
		at += batch_floats(width[i]);
	}
	ret_batch->loss = (double *)(void *)at;
	ret_batch->context = (uint8_t(*)[MODEL_CONTEXT])(ret_batch->loss + MODEL_BATCH);
}

void model_init(const struct model_shape *s, uint32_t tensor, uint64_t seed, struct model_part *p)
{
	double spread = s->tensor[tensor].spread;
	uint64_t n = p->rows * p->cols, base = p->first * p->cols;
	uint64_t stream = mix64(mix64(seed) ^ tensor);

	for (uint64_t i = 0; i < n; i++) {
		double unit = (double)(mix64(stream ^ (base + i)) >> 11) * 0x1p-52 - 1.0;

		p->master[i] = (float)(unit * spread);
		p->param[i] = bf16_of(p->master[i]);
		p->moment1[i] = p->moment2[i] = 0;
	}
}

static uint32_t byte_kind(uint8_t b)
{
	if ((b | 32) >= 'a' && (b | 32) <= 'z')
		return 0;
	return b <= '/' ? 1 : 2;
}

/* y[p] = w x[p] + bias for the positions of one micro-batch; y has `rows` columns. */
WIDE static void linear(const uint16_t *w, const uint16_t *bias, uint64_t rows, uint64_t cols,
			const float *x, float *y)
{
	for (uint64_t r = 0; r < rows; r++, w += cols) {
		lanes sum[MODEL_POSITIONS] = { { 0 } };
		uint64_t j = 0;

		for (; j + LANES <= cols; j += LANES) {
			lanes wj = LOAD_BF16(w + j);

			for (int p = 0; p < MODEL_POSITIONS; p++)
				sum[p] += wj * LOAD(x + (uint64_t)p * cols + j);
		}
		for (int p = 0; p < MODEL_POSITIONS; p++) {
			const float *xp = x + (uint64_t)p * cols;
			float total = bf16_get(bias[r]);

			for (int l = 0; l < LANES; l++)
				total += sum[p][l];
			for (uint64_t k = j; k < cols; k++)
				total += bf16_get(w[k]) * xp[k];
			y[(uint64_t)p * rows + r] = total;
		}
	}
}

#define ROWS_AT_ONCE 4

/* dx[p] = sum over rows of d[p][row] * w[row], in the order of rows. */
WIDE static void linear_back(const uint16_t *w, uint64_t rows, uint64_t cols, const float *d,
			     float *dx)
{
	memset(dx, 0, MODEL_POSITIONS * cols * sizeof *dx);
	for (uint64_t r = 0; r < rows; r += ROWS_AT_ONCE, w += ROWS_AT_ONCE * cols) {
		uint64_t n = rows - r < ROWS_AT_ONCE ? rows - r : ROWS_AT_ONCE, j = 0;

		for (; n == ROWS_AT_ONCE && j + LANES <= cols; j += LANES) {
			lanes wj[ROWS_AT_ONCE];

			for (uint64_t k = 0; k < ROWS_AT_ONCE; k++)
				wj[k] = LOAD_BF16(w + k * cols + j);
			for (uint64_t p = 0; p < MODEL_POSITIONS; p++) {
				lanes sum = LOAD(dx + p * cols + j);

				for (uint64_t k = 0; k < ROWS_AT_ONCE; k++)
					sum += wj[k] * d[p * rows + r + k];
				*(lanes *)(dx + p * cols + j) = sum;
			}
		}
		for (; j < cols; j++)
			for (uint64_t p = 0; p < MODEL_POSITIONS; p++)
				for (uint64_t k = 0; k < n; k++)
					dx[p * cols + j] +=
						bf16_get(w[k * cols + j]) * d[p * rows + r + k];
	}
}

static void tanh_all(float *x, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		x[i] = tanhf(x[i]);
}

static void tanh_back(const float *h, float *d, uint64_t n)
{
	for (uint64_t i = 0; i < n; i++)
		d[i] *= 1.0f - h[i] * h[i];
}

/* Turns a position's logits into gradients of the mean loss; returns its loss in nats. */
static double softmax_loss(float *logit, uint8_t target)
{
	float top = logit[0], sum = 0;

	for (int v = 1; v < MODEL_VOCAB; v++)
		top = logit[v] > top ? logit[v] : top;
	double below = (double)logit[target] - (double)top;

	for (int v = 0; v < MODEL_VOCAB; v++) {
		logit[v] = expf(logit[v] - top);
		sum += logit[v];
	}
	float scale = 1.0f / (sum * MODEL_BATCH);

	for (int v = 0; v < MODEL_VOCAB; v++)
		logit[v] *= scale;
	logit[target] -= 1.0f / MODEL_BATCH;
	return log((double)sum) - below;
}

void model_micro(const struct model_shape *s, const uint16_t *gathered, const struct corpus *c,
		 uint64_t seed, uint64_t step, uint32_t i, const struct model_batch *b)
{
	const struct model_tensor *t = s->tensor;
	uint64_t in = MODEL_CONTEXT * s->embed, h = s->hidden, q = (uint64_t)i * MODEL_POSITIONS;
	float *x0 = b->x0 + q * in, *d0 = b->d0 + q * in, *dout = b->dout + q * MODEL_VOCAB;
	float *h1 = b->h1 + q * h, *d1 = b->d1 + q * h, *h2 = b->h2 + q * h, *d2 = b->d2 + q * h;
	uint8_t target[MODEL_POSITIONS];

	for (uint64_t p = 0; p < MODEL_POSITIONS; p++) {
		uint64_t draw = mix64(mix64(mix64(seed) + step) ^ (q + p));
		const uint8_t *text = c->byte + draw % (c->bytes - MODEL_CONTEXT);

		memcpy(b->context[q + p], text, MODEL_CONTEXT);
		target[p] = text[MODEL_CONTEXT];
		for (uint64_t k = 0; k < MODEL_CONTEXT; k++) {
			const uint16_t *emb = gathered + t[T_EMB].at + text[k] * s->embed;
			const uint16_t *kind =
				gathered + t[T_KIND].at + byte_kind(text[k]) * s->embed;

			for (uint64_t e = 0; e < s->embed; e++)
				x0[p * in + k * s->embed + e] =
					bf16_get(emb[e]) + bf16_get(kind[e]);
		}
	}
	linear(gathered + t[T_FC1_W].at, gathered + t[T_FC1_B].at, h, in, x0, h1);
	tanh_all(h1, MODEL_POSITIONS * h);
	linear(gathered + t[T_FC2_W].at, gathered + t[T_FC2_B].at, h, h, h1, h2);
	tanh_all(h2, MODEL_POSITIONS * h);
	linear(gathered + t[T_OUT_W].at, gathered + t[T_OUT_B].at, MODEL_VOCAB, h, h2, dout);
	for (uint64_t p = 0; p < MODEL_POSITIONS; p++)
		b->loss[q + p] = softmax_loss(dout + p * MODEL_VOCAB, target[p]);
	linear_back(gathered + t[T_OUT_W].at, MODEL_VOCAB, h, dout, d2);
	tanh_back(h2, d2, MODEL_POSITIONS * h);
	linear_back(gathered + t[T_FC2_W].at, h, h, d2, d1);
	tanh_back(h1, d1, MODEL_POSITIONS * h);
	linear_back(gathered + t[T_FC1_W].at, h, in, d1, d0);
}

double model_loss(const struct model_batch *b)
{
	double sum = 0;

	for (int q = 0; q < MODEL_BATCH; q++)
		sum += b->loss[q];
	return sum / MODEL_BATCH;
}

#define TILE (4 * LANES) /* columns whose batch of inputs stays in the first-level cache */

/* grad[row] = sum over the batch of d[q][row] * x[q], in the order of positions. */
WIDE static void grad_matrix(const float *d, uint64_t d_width, const float *x,
			     const struct model_part *p)
{
	uint64_t cols = p->cols, j = 0;

	for (; j + TILE <= cols; j += TILE) {
		for (uint64_t r = 0; r < p->rows; r++) {
			const float *dr = d + p->first + r;
			lanes sum[TILE / LANES] = { { 0 } };

			for (uint64_t q = 0; q < MODEL_BATCH; q++)
				for (uint64_t l = 0; l < TILE / LANES; l++)
					sum[l] += dr[q * d_width] *
						  LOAD(x + q * cols + j + l * LANES);
			for (uint64_t l = 0; l < TILE / LANES; l++)
				*(lanes *)(p->grad + r * cols + j + l * LANES) = sum[l];
		}
	}
	for (; j < cols; j++) {
		for (uint64_t r = 0; r < p->rows; r++) {
			float sum = 0;

			for (uint64_t q = 0; q < MODEL_BATCH; q++)
				sum += d[q * d_width + p->first + r] * x[q * cols + j];
			p->grad[r * cols + j] = sum;
		}
	}
}

static void grad_vector(const float *d, uint64_t d_width, const struct model_part *p)
{
	for (uint64_t r = 0; r < p->rows; r++) {
		float sum = 0;

		for (uint64_t q = 0; q < MODEL_BATCH; q++)
			sum += d[q * d_width + p->first + r];
		p->grad[r] = sum;
	}
}

/* A row of a table is added to x0 once for each byte that it stands for. */
static void grad_table(const struct model_batch *b, int by_kind, const struct model_part *p)
{
	uint64_t cols = p->cols;

	memset(p->grad, 0, p->rows * cols * sizeof *p->grad);
	for (uint64_t q = 0; q < MODEL_BATCH; q++) {
		for (uint64_t k = 0; k < MODEL_CONTEXT; k++) {
			uint8_t byte = b->context[q][k];
			uint64_t row = by_kind ? byte_kind(byte) : byte;
			const float *d = b->d0 + (q * MODEL_CONTEXT + k) * cols;

			if (row < p->first || row - p->first >= p->rows)
				continue;
			for (uint64_t e = 0; e < cols; e++)
				p->grad[(row - p->first) * cols + e] += d[e];
		}
	}
}

void model_grad(const struct model_shape *s, uint32_t tensor, const struct model_batch *b,
		struct model_part *p)
{
	switch (tensor) {
	case T_EMB:
		grad_table(b, 0, p);
		break;
	case T_KIND:
		grad_table(b, 1, p);
		break;
	case T_FC1_W:
		grad_matrix(b->d1, s->hidden, b->x0, p);
		break;
	case T_FC1_B:
		grad_vector(b->d1, s->hidden, p);
		break;
	case T_FC2_W:
		grad_matrix(b->d2, s->hidden, b->h1, p);
		break;
	case T_FC2_B:
		grad_vector(b->d2, s->hidden, p);
		break;
	case T_OUT_W:
		grad_matrix(b->dout, MODEL_VOCAB, b->h2, p);
		break;
	case T_OUT_B:
		grad_vector(b->dout, MODEL_VOCAB, p);
		break;
	}
}

WIDE static void adamw(struct model_part *p, uint64_t n, const struct model_adam *a)
{
	float *restrict w = p->master, *restrict m = p->moment1, *restrict v = p->moment2;
	const float *restrict g = p->grad;
	uint16_t *restrict param = p->param;

	for (uint64_t i = 0; i < n; i++) {
		m[i] = a->keep1 * m[i] + a->gain1 * g[i];
		v[i] = a->keep2 * v[i] + a->gain2 * (g[i] * g[i]);
		w[i] -= a->rate *
			(m[i] * a->unbias1 / (sqrtf(v[i] * a->unbias2) + a->eps) + a->decay * w[i]);
		param[i] = bf16_of(w[i]);
	}
}

struct model_adam model_adam_at(const struct model_shape *s, uint32_t tensor, uint64_t step)
{
	double rate = 0.05 / sqrt((double)s->hidden + 400), warm = (double)step / WARM_UP_STEPS;
	const float keep1 = (float)ADAM_BETA1, keep2 = (float)ADAM_BETA2;

	return (struct model_adam){
		.keep1 = keep1,
		.gain1 = 1.0f - keep1,
		.keep2 = keep2,
		.gain2 = 1.0f - keep2,
		.unbias1 = (float)(1 / (1 - pow(ADAM_BETA1, (double)step))),
		.unbias2 = (float)(1 / (1 - pow(ADAM_BETA2, (double)step))),
		.eps = ADAM_EPS,
		.rate = (float)(rate * (warm < 1 ? warm : 1)),
		.decay = s->tensor[tensor].ndim > 1 ? ADAM_DECAY : 0,
	};
}

void model_update(const struct model_shape *s, uint32_t tensor, uint64_t step, struct model_part *p)
{
	struct model_adam a = model_adam_at(s, tensor, step);

	adamw(p, p->rows * p->cols, &a);
}

uint64_t model_wrong_rows(const struct model_part *p)
{
	uint64_t wrong = 0;

	for (uint64_t r = 0; r < p->rows; r++) {
		int differs = 0;

		for (uint64_t i = r * p->cols; i < (r + 1) * p->cols; i++)
			differs |= isfinite(p->master[i]) && p->param[i] != bf16_of(p->master[i]);
		wrong += (uint64_t)differs;
	}
	return wrong;
}
