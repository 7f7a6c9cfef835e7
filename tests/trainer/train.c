/* SPDX-License-Identifier: Apache-2.0 */
/*
 * train.c - one rank, from attach to detach. Called by ranks_run.
 *
 * Invariant: nothing between two steps depends on the world: what the ranks exchange (gathered
 * parameters, batch) has one writer for each byte, and two barriers a step order writers and
 * readers.
 */
#include "train.h"
#include "ckpt/ckpt.h"
#include "events.h"
#include "gpu.h"
#include "train_stats.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define MS UINT64_C(1000000)
#define SEC UINT64_C(1000000000)
#define SEAL_WAIT (30 * SEC)   /* for the other ranks and for slots in memory */
#define READY_WAIT (120 * SEC) /* the same with --wait-ready */
#define FINAL_WAIT (120 * SEC) /* for the last step to be committed */
#define FINAL_SLICE (2 * SEC)  /* between two looks at how the other ranks fare */
#define RETRY_MS 50
#define ALIGN 64
#define TIMES 5	     /* a copy of the state is timed: the best counts */
#define PITCH_MORE 3 /* elements between two rows of a moment on a device */
#define OLDER_MAX 8  /* --go-back-to older: it is one of so many of the newest steps */
#define WRONG_STEPS 5
#define DECLARED_MAX (5 * MODEL_TENSORS + 1)

struct rank {
	const struct train_args *args;
	const struct corpus *corpus;
	const struct model_shape *shape;
	struct ranks *ranks;
	ckpt *ckpt; /* NULL with --no-checkpoint */
	struct events events;
	uint32_t shard, shards, copy; /* coordinates on fsdp and dp */
	/* Of boxes a part is one column: element `first` of the tensor and so many after it. */
	struct model_part part[MODEL_TENSORS];
	struct model_part grad[MODEL_TENSORS]; /* the rows that have them: only .grad is set */
	/* The gradients of as many steps as the host may be ahead, and one; those of grads_at are
	 * set */
	uint64_t grads, grads_at;
	uint16_t *gathered;	  /* shared */
	struct model_batch batch; /* shared */
	/* --frozen: this rank's rows of base.weight */
	uint64_t frozen_first, frozen_rows, frozen_all;
	uint64_t *frozen;
	bool base_trained; /* so it is declared */
	/* --device: addresses of what lies on the GPU that gpu_of names; its part[] and frozen are
	 * then in one memory of the host, which holds one parameter at a time (pull, push) */
	struct gpu *gpu[GPUS_MAX];
	struct gpu_part device[MODEL_TENSORS];
	struct ckpt_stream more[GPUS_MAX]; /* of the newest mark */
	uint64_t device_frozen, device_bytes;
	/* --move-every: where the state goes next, of what is not mapped anew each time */
	struct gpu_part device_spare[MODEL_TENSORS];
	uint64_t device_frozen_spare;
	void *state_spare;
	uint64_t count[MODEL_TENSORS][COUNTS_MAX]; /* of forward; on the host, or what was pulled */
	void *state
		[2]; /* where the parts' tensors lie, all but the gradients: of ckpt_alloc; own */
	uint64_t state_bytes[2];
	/* What declare_tensors has declared, in its order; base.weight is the last one. moving: it
	 * says where these lie now, and declares nothing */
	uint32_t id[DECLARED_MAX], nid, mesh, held_alike;
	bool moving;
	struct train_cursor cursor;
	uint64_t cursor_bytes, rng[RNG_WORDS], rng_bytes;
	struct ckpt_got got; /* got.where 0: nothing restored */
	uint64_t restore_ns; /* of the ckpt_restore that returned 0, of the slowest rank */
	int losses, masters; /* descriptors, or -1 */
	double loss;
	int last_error; /* of ckpt_snapshot: said once, not at every step */
	struct train_stats stats;
};

static void nap(uint64_t ns)
{
	struct timespec t = { .tv_sec = (time_t)(ns / SEC), .tv_nsec = (long)(ns % SEC) };

	nanosleep(&t, NULL);
}

static uint64_t left_until(uint64_t deadline)
{
	uint64_t now = now_ns();

	return now < deadline ? deadline - now : 0;
}

/* ---- memory ---- */

static size_t gathered_bytes(const struct model_shape *s)
{
	return (s->gathered * sizeof(uint16_t) + ALIGN - 1) & ~(size_t)(ALIGN - 1);
}

size_t train_shared_bytes(const struct model_shape *s)
{
	return gathered_bytes(s) + model_batch_bytes(s);
}

/* The rank's coordinates: mesh dimensions are row-major over the ranks. */
static void locate(struct rank *k)
{
	uint32_t rest = k->ranks->me;

	k->shards = 1;
	for (uint32_t i = k->args->ndim; i-- > 0;) {
		uint32_t at = rest % k->args->dim_size[i];

		rest /= k->args->dim_size[i];
		if ((int)i == train_args_dim(k->args, "fsdp")) {
			k->shard = at;
			k->shards = k->args->dim_size[i];
		} else {
			k->copy = at;
		}
	}
}

/* Rows of dimension 0 as torch.chunk cuts them: the last shards may be shorter, or empty. */
static void cut_rows(const struct rank *k, uint64_t all, uint64_t *ret_first, uint64_t *ret_rows)
{
	uint64_t chunk = (all + k->shards - 1) / k->shards;
	uint64_t first = k->shard * chunk < all ? k->shard * chunk : all;

	*ret_first = first;
	*ret_rows = (first + chunk < all ? first + chunk : all) - first;
}

static void cut(const struct rank *k, uint32_t tensor, struct model_part *p)
{
	const struct model_tensor *t = &k->shape->tensor[tensor];

	*p = (struct model_part){ .cols = t->dim[1] };
	cut_rows(k, t->dim[0], &p->first, &p->rows);
}

static uint64_t *frozen_row(const struct rank *k, uint64_t row)
{
	return k->frozen + row * BASE_WORDS;
}

static uint64_t frozen_bytes(const struct rank *k)
{
	return k->frozen_rows * BASE_WORDS * sizeof *k->frozen;
}

static uint64_t wrong_frozen_rows(const struct rank *k, uint64_t step)
{
	uint64_t n = 0, want[BASE_WORDS];

	for (uint64_t row = 0; row < k->frozen_rows; row++) {
		base_row(&k->events, k->frozen_first + row, step, want);
		n += memcmp(want, frozen_row(k, row), sizeof want) != 0;
	}
	return n;
}

/* A stretch of the row of all elements of all tensors, as long as every other rank's. */
static void cut_flat(const struct rank *k, uint32_t tensor, struct model_part *p)
{
	uint64_t chunk = (k->shape->params + k->shards - 1) / k->shards, begin = 0;
	uint64_t low = k->shard * chunk, high = low + chunk, end;

	for (uint32_t t = 0; t < tensor; t++)
		begin += k->shape->tensor[t].dim[0] * k->shape->tensor[t].dim[1];
	end = begin + k->shape->tensor[tensor].dim[0] * k->shape->tensor[tensor].dim[1];
	low = low < begin ? begin : low > end ? end : low;
	high = high < begin ? begin : high > end ? end : high;
	*p = (struct model_part){ .first = low - begin, .rows = high - low, .cols = 1 };
}

/* Which of the two blocks the i-th tensor is in. */
static bool in_own(const struct rank *k, uint32_t i)
{
	return k->args->memory == MEMORY_OWN || (k->args->memory == MEMORY_MIXED && i % 2);
}

/* The GPU that the t-th parameter lies on, or NULL; MODEL_TENSORS stands for the base. */
static struct gpu *gpu_of(const struct rank *k, uint32_t t)
{
	bool mixed = k->args->memory == MEMORY_MIXED;

	if (!k->args->ngpu || (mixed && t % 2))
		return NULL;
	return k->gpu[(mixed ? t / 2 : t) % k->args->ngpu];
}

static void gpu_must(struct rank *k, const struct gpu *g, int r)
{
	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", gpu_why(g));
}

static uint64_t counts_of(const struct rank *k, uint32_t t)
{
	return k->args->counters ? event_counts(t) : 0;
}

static void part_at(struct model_part *p, void *const tensor[4])
{
	p->param = tensor[0];
	p->master = tensor[1];
	p->moment1 = tensor[2];
	p->moment2 = tensor[3];
}

/* Lays the parts of the host out one after the other in each block; called without blocks to learn
 * the sizes. */
static void lay_out(struct rank *k, void *const base[2])
{
	uint64_t at[2] = { 0 };
	bool own;

	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		struct model_part *p = &k->part[t];
		uint64_t n = p->rows * p->cols;
		void *tensor[4];

		for (uint32_t i = 0; i < 4 && !gpu_of(k, t); i++) {
			own = in_own(k, t + i);
			tensor[i] = base ? (char *)base[own] + at[own] : NULL;
			at[own] += n * (i ? sizeof(float) : sizeof(uint16_t));
			at[own] = (at[own] + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
		}
		if (!gpu_of(k, t))
			part_at(p, tensor);
	}
	own = in_own(k, 0);
	if (!gpu_of(k, MODEL_TENSORS)) {
		k->frozen = base ? (uint64_t *)(void *)((char *)base[own] + at[own]) : NULL;
		at[own] += frozen_bytes(k);
	}
	memcpy(k->state_bytes, at, sizeof at);
}

static void *map_or_fail(struct rank *k, uint64_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		ranks_fail(k->ranks, exit_code_of(-errno),
			   "cannot map %" PRIu64 " bytes of memory "
			   "for the model: %s; use a smaller --params",
			   bytes, strerror(errno));
	return p;
}

/* The number of the i-th device of this rank. */
static uint32_t gpu_number(const struct rank *k, uint32_t i)
{
	return k->args->gpu[(k->ranks->me + i) % k->args->ngpu];
}

/* A file that lies beside the trainer. */
static void find_beside(char path[4096], const char *name)
{
	ssize_t n = readlink("/proc/self/exe", path, 4096 - 64);
	char *slash;

	path[n < 0 ? 0 : n] = 0;
	slash = strrchr(path, '/');
	strcpy(slash ? slash + 1 : path, name);
}

static void open_gpus(struct rank *k)
{
	const struct train_args *a = k->args;
	char fake[4096], nccl[4096];

	if (a->fake_gpu && a->ngpu) { /* it has as many devices as are asked for */
		uint32_t most = 0;
		char count[16];

		for (uint32_t i = 0; i < a->ngpu; i++)
			most = a->gpu[i] > most ? a->gpu[i] : most;
		snprintf(count, sizeof count, "%u", most + 1);
		setenv("FAKECUDA_DEVICES", count, 0);
	}
	find_beside(fake, "fakecuda/libcuda.so.1");
	for (uint32_t i = 0; i < a->ngpu; i++) {
		struct gpu **g = &k->gpu[i];

		gpu_must(
			k, *g,
			gpu_open(a->fake_gpu ? fake : NULL, gpu_number(k, i), a->legacy_stream, g));
	}
	find_beside(nccl, "fakenccl/libnccl.so.2");
	/* ckptd's library asks for libnccl.so.2, and gets this one, if it is there */
	if (a->fake_gpu && a->nccl)
		(void)dlopen(nccl, RTLD_NOW | RTLD_LOCAL);
}

/* Each tensor of the parameter is an allocation, and begins where few alignments hold. */
static void device_allocate(struct rank *k, uint32_t t, struct gpu_part *d)
{
	struct gpu *g = gpu_of(k, t);
	const struct model_part *p = &k->part[t];
	bool pitched = k->args->layout == LAYOUT_SHARDS && k->shape->tensor[t].ndim > 1;
	uint64_t n = p->rows * p->cols, skew = (2 * t + 1) * sizeof(float);

	*d = (struct gpu_part){
		.rows = p->rows,
		.cols = p->cols,
		.pitch = pitched ? p->cols + PITCH_MORE : p->cols,
		.ncount = counts_of(k, t),
	};
	gpu_must(k, g, gpu_alloc(g, n * sizeof(uint16_t), skew / 2, &d->param));
	gpu_must(k, g, gpu_alloc(g, n * sizeof(float), skew, &d->master));
	gpu_must(k, g, gpu_alloc(g, p->rows * d->pitch * sizeof(float), skew, &d->moment1));
	gpu_must(k, g, gpu_alloc(g, p->rows * d->pitch * sizeof(float), 3 * skew, &d->moment2));
	gpu_must(k, g, gpu_alloc(g, n * sizeof(float), 0, &d->grad));
	gpu_must(k, g, gpu_alloc(g, d->ncount * sizeof *k->count[t], 2 * skew, &d->count));
}

/* Memory of the host for one parameter at a time. */
static void device_allocate_all(struct rank *k)
{
	uint64_t frozen = frozen_bytes(k), most = 0;
	struct gpu *g = gpu_of(k, MODEL_TENSORS);
	char *mem;

	if (!g)
		return;
	for (uint32_t t = 0; t < MODEL_TENSORS; t++)
		most = k->part[t].rows * k->part[t].cols > most ? k->part[t].rows * k->part[t].cols
								: most;
	most = (most * sizeof(float) + ALIGN - 1) & ~(uint64_t)(ALIGN - 1);
	mem = map_or_fail(k, (4 * most > frozen ? 4 * most : frozen) + ALIGN);
	gpu_must(k, g, gpu_pin(g, mem, (4 * most > frozen ? 4 * most : frozen) + ALIGN));
	gpu_must(k, g, gpu_pin(g, k->gathered, gathered_bytes(k->shape)));
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		if (!gpu_of(k, t))
			continue;
		part_at(&k->part[t],
			(void *[4]){ mem, mem + most, mem + 2 * most, mem + 3 * most });
		device_allocate(k, t, &k->device[t]);
		if (k->args->move_every)
			device_allocate(k, t, &k->device_spare[t]);
		k->device_bytes +=
			k->part[t].rows * k->part[t].cols * (sizeof(uint16_t) + 3 * sizeof(float));
	}
	k->frozen = (uint64_t *)(void *)mem;
	gpu_must(k, g, gpu_alloc(g, frozen, ALIGN, &k->device_frozen));
	gpu_must(k, g, gpu_alloc(g, frozen, ALIGN, &k->device_frozen_spare));
	k->device_bytes += frozen;
}

typedef int carry_fn(struct gpu *g, void *host, uint64_t device, uint64_t pitch, uint64_t row_bytes,
		     uint64_t rows);

static int carry_up(struct gpu *g, void *host, uint64_t device, uint64_t pitch, uint64_t row_bytes,
		    uint64_t rows)
{
	return gpu_put(g, device, pitch, host, row_bytes, rows);
}

/* All of a parameter's state between the device and part[]; nothing for one that is on the host. */
static void carry(struct rank *k, uint32_t t, carry_fn *fn)
{
	const struct gpu_part *d = &k->device[t];
	const struct model_part *p = &k->part[t];
	struct gpu *g = gpu_of(k, t);
	uint64_t row = p->cols * sizeof(float), pitch = d->pitch * sizeof(float);

	if (!g)
		return;
	gpu_must(k, g, fn(g, p->param, d->param, row / 2, row / 2, p->rows));
	gpu_must(k, g, fn(g, p->master, d->master, row, row, p->rows));
	gpu_must(k, g, fn(g, p->moment1, d->moment1, pitch, row, p->rows));
	gpu_must(k, g, fn(g, p->moment2, d->moment2, pitch, row, p->rows));
	if (d->ncount) {
		uint64_t bytes = d->ncount * sizeof *k->count[t];

		gpu_must(k, g, fn(g, k->count[t], d->count, bytes, bytes, 1));
	}
	gpu_must(k, g, gpu_sync(g));
}

static void pull(struct rank *k, uint32_t t)
{
	carry(k, t, gpu_get);
}

static void push(struct rank *k, uint32_t t)
{
	carry(k, t, carry_up);
}

static void carry_frozen(struct rank *k, carry_fn *fn)
{
	struct gpu *g = gpu_of(k, MODEL_TENSORS);
	uint64_t bytes = frozen_bytes(k);

	if (!g || !bytes)
		return;
	gpu_must(k, g, fn(g, k->frozen, k->device_frozen, bytes, bytes, 1));
	gpu_must(k, g, gpu_sync(g));
}

static void sync_gpus(struct rank *k)
{
	for (uint32_t i = 0; i < k->args->ngpu; i++)
		gpu_must(k, k->gpu[i], gpu_sync(k->gpu[i]));
}

/* Memory that ckptd reads in place. */
static void *alloc_or_fail(struct rank *k, uint64_t bytes)
{
	struct ckpt_err e = { 0 };
	void *p;
	int r;

	if (!k->ckpt)
		return map_or_fail(k, bytes);
	r = ckpt_alloc(k->ckpt, bytes, &p, &e);
	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	return p;
}

static void allocate(struct rank *k)
{
	uint64_t grads = 0;

	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		struct model_part *p = &k->part[t], *g = &k->grad[t];
		uint64_t cols = k->shape->tensor[t].dim[1];

		(k->args->layout == LAYOUT_BOXES ? cut_flat : cut)(k, t, p);
		*g = (struct model_part){ .first = p->first * p->cols / cols, .cols = cols };
		if (p->rows)
			g->rows = ((p->first + p->rows) * p->cols + cols - 1) / cols - g->first;
		grads += g->rows * g->cols;
	}
	k->frozen_all = base_rows(k->shape, k->args->frozen);
	cut_rows(k, k->frozen_all, &k->frozen_first, &k->frozen_rows);
	lay_out(k, NULL);
	k->grads = grads;
	k->state[1] = map_or_fail(k, k->state_bytes[1] + ALIGN); /* each may be empty */
	k->state[0] = alloc_or_fail(k, k->state_bytes[0] + ALIGN);
	if (k->args->move_every)
		k->state_spare = alloc_or_fail(k, k->state_bytes[0] + ALIGN);
	lay_out(k, k->state);

	uint64_t grads_bytes = grads * (k->args->ahead + 1) * sizeof(float) + ALIGN;
	float *grads_at = map_or_fail(k, grads_bytes), *grad = grads_at;

	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		struct model_part *p = &k->part[t], *g = &k->grad[t];

		g->grad = grad;
		p->grad = grad + (p->first * p->cols - g->first * g->cols);
		grad += g->rows * g->cols;
	}
	if (k->args->ngpu)
		gpu_must(k, k->gpu[0], gpu_pin(k->gpu[0], grads_at, grads_bytes));
	k->gathered = k->ranks->shared;
	model_batch_at(k->shape, (char *)k->ranks->shared + gathered_bytes(k->shape), &k->batch);
	device_allocate_all(k);
}

/* ---- ckptd: attach and declare ---- */

static void on_log(void *ctx, int level, const char *line)
{
	const struct rank *k = ctx;

	/* Errors of every rank, warnings of rank 0. Level 5 says what came over NCCL. */
	if (level <= (k->ranks->me ? 3 : k->args->nccl ? 5 : 4))
		fprintf(stderr, "trainer: rank %u: %s\n", k->ranks->me, line);
}

static void attach(struct rank *k)
{
	const struct train_args *a = k->args;
	struct ckpt_err e = { 0 };
	struct ckpt_opts o = {
		.size = sizeof o,
		.flags = CKPT_REQUIRE | CKPT_AUTOSTART | CKPT_USE_ENV | (a->nccl ? CKPT_NCCL : 0u) |
			 a->attach,
		.job = a->job,
		.store = a->root,
		.socket = a->socket,
		.rank = k->ranks->me,
		.world = k->ranks->world,
		.agree = ranks_agree,
		.agree_ctx = k->ranks,
		.persist_every = a->persist_every,
		.restart_wait_ns = a->restart_wait_ns,
		.device = a->ngpu ? 1 + gpu_number(k, 0) : 0,
		.copy_rate = a->copy_rate,
		.guard = a->guard,
		.log = on_log,
		.log_ctx = k,
	};
	int r = ckpt_attach(&o, &k->ckpt, &e);

	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
}

#define BOXES_MAX 3

struct boxes {
	uint64_t start[BOXES_MAX][2], extent[BOXES_MAX][2];
	struct ckpt_local local[BOXES_MAX];
	uint32_t n;
};

/* So many rows, from a column on so many columns of them; they follow in memory. */
static void box_add(struct boxes *b, uint64_t row, uint64_t rows, uint64_t col, uint64_t cols,
		    size_t elem, char **ptr)
{
	if (rows == 0 || cols == 0)
		return;
	b->start[b->n][0] = row;
	b->start[b->n][1] = col;
	b->extent[b->n][0] = rows;
	b->extent[b->n][1] = cols;
	b->local[b->n] = (struct ckpt_local){ .ptr = *ptr,
					      .start = b->start[b->n],
					      .extent = b->extent[b->n] };
	b->n++;
	*ptr += rows * cols * elem;
}

/* Elements [from, to) of a tensor: the end of a row, full rows, and the beginning of one. */
static void boxes_of(const struct model_part *p, uint64_t cols, size_t elem, char *ptr,
		     struct boxes *b)
{
	uint64_t from = p->first, to = p->first + p->rows, row = from / cols, last = to / cols;

	b->n = 0;
	if (row == last) {
		box_add(b, row, 1, from % cols, to - from, elem, &ptr);
		return;
	}
	if (from % cols) {
		box_add(b, row, 1, from % cols, cols - from % cols, elem, &ptr);
		row++;
	}
	box_add(b, row, last - row, 0, cols, elem, &ptr);
	box_add(b, last, 1, 0, to % cols, elem, &ptr);
}

/* Of the ranks that hold the same stretch; without others this one is alone. */
static uint32_t replicas_mesh(struct rank *k)
{
	uint32_t rank[RANKS_MAX], n = 0, mesh = CKPT_ALONE;
	int dp = train_args_dim(k->args, "dp");
	/* Row-major: the coordinate of the last dimension is the one that changes first. */
	uint32_t step = dp == 0 && k->args->ndim == 2 ? k->shards : 1;
	uint32_t copies = dp < 0 ? 1 : k->args->dim_size[dp];
	struct ckpt_err e = { 0 };
	int r = 0;

	for (; n < copies; n++)
		rank[n] = k->ranks->me - k->copy * step + n * step;
	if (copies > 1)
		r = ckpt_mesh(k->ckpt, 1, (const char *const[]){ "dp" }, &copies, rank, &mesh, &e);
	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	return mesh;
}

static void declare_one(struct rank *k, struct ckpt_tensor *d)
{
	struct ckpt_err e = { 0 };
	uint32_t *id = &k->id[k->nid++];
	int r;

	d->size = sizeof *d;
	r = k->moving ? ckpt_tensor_move(k->ckpt, *id, d->local, d->nlocal, &e)
		      : ckpt_tensor_add(k->ckpt, d, id, &e);
	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
}

/* Dimension 0 is cut by fsdp; dp is not named: it replicates. */
static void declare_cut(struct rank *k, struct ckpt_tensor *d, uint64_t rows, void *ptr,
			const int64_t *stride)
{
	int fsdp = train_args_dim(k->args, "fsdp");
	struct ckpt_placement shard = { .how = CKPT_SHARD, .split_factor = 1 };
	struct ckpt_local local = { .ptr = ptr, .stride = stride };

	if (fsdp > 0)
		shard.mesh_dim = (uint16_t)fsdp;
	d->nplace = fsdp >= 0;
	d->place = &shard;
	d->nlocal = rows > 0;
	d->local = &local;
	declare_one(k, d);
}

static void declare_tensor(struct rank *k, uint32_t tensor, uint32_t role, const char *suffix,
			   void *ptr, const int64_t *stride)
{
	const struct model_tensor *t = &k->shape->tensor[tensor];
	char name[64], of[80];

	snprintf(name, sizeof name, "%s%s", t->name, suffix);
	snprintf(of, sizeof of, role == CKPT_PARAM ? "optim/%s.master" : "model/%s", t->name);
	struct ckpt_tensor d = {
		.size = sizeof d,
		.cls = role == CKPT_PARAM && k->args->derived ? CKPT_DERIVED : CKPT_STABLE,
		.role = role,
		.dtype = role == CKPT_PARAM ? CKPT_BF16 : CKPT_F32,
		.component = role == CKPT_PARAM ? "model" : "optim",
		.name = name,
		.of = role == CKPT_PARAM && !k->args->derived ? NULL : of,
		.ndim = t->ndim,
		.mesh = k->held_alike,
		.shape = t->dim,
	};
	struct boxes b;

	if (k->args->layout == LAYOUT_BOXES) {
		boxes_of(&k->part[tensor], t->dim[1],
			 role == CKPT_PARAM ? sizeof(uint16_t) : sizeof(float), ptr, &b);
		d.mode = CKPT_BOXES;
		d.nlocal = b.n;
		d.local = b.local;
		declare_one(k, &d);
		return;
	}
	declare_cut(k, &d, k->part[tensor].rows, ptr, stride);
}

static void *address(uint64_t at)
{
	return (void *)(uintptr_t)at; /* of a device: nothing here reads it */
}

static void declare_parameter(struct rank *k, uint32_t t)
{
	const struct model_part *p = &k->part[t];
	const struct gpu_part *d = &k->device[t];
	const int64_t strides[2] = { (int64_t)d->pitch, 1 };
	bool pitched = d->pitch != d->cols;
	void *at[4] = { p->param, p->master, p->moment1, p->moment2 };

	if (gpu_of(k, t)) {
		at[0] = address(d->param);
		at[1] = address(d->master);
		at[2] = address(d->moment1);
		at[3] = address(d->moment2);
	}
	declare_tensor(k, t, CKPT_PARAM, "", at[0], NULL);
	declare_tensor(k, t, CKPT_MASTER, ".master", at[1], NULL);
	declare_tensor(k, t, CKPT_MOMENT1, ".exp_avg", at[2], pitched ? strides : NULL);
	declare_tensor(k, t, CKPT_MOMENT2, ".exp_avg_sq", at[3], pitched ? strides : NULL);
}

/* Each rank counts the same. */
static void declare_counts(struct rank *k, uint32_t t)
{
	uint64_t n = counts_of(k, t);
	char name[64];
	struct ckpt_local local = {
		.ptr = gpu_of(k, t) ? address(k->device[t].count) : k->count[t],
	};
	struct ckpt_tensor d = {
		.cls = CKPT_VOLATILE,
		.role = CKPT_COUNTER,
		.dtype = CKPT_U64,
		.component = "forward",
		.name = name,
		.ndim = 1,
		.mesh = k->mesh,
		.shape = &n,
		.nlocal = 1,
		.local = &local,
	};

	snprintf(name, sizeof name, "%s.count", k->shape->tensor[t].name);
	if (n)
		declare_one(k, &d);
}

static void declare_frozen(struct rank *k)
{
	const uint64_t shape[] = { k->frozen_all, BASE_COLS };
	struct ckpt_tensor d = {
		.cls = k->base_trained ? CKPT_STABLE : CKPT_CONST,
		.role = CKPT_PARAM,
		.dtype = CKPT_BF16,
		.component = "base",
		.name = "base.weight",
		.ndim = 2,
		.mesh = k->mesh,
		.shape = shape,
	};

	if (k->frozen_all)
		declare_cut(k, &d, k->frozen_rows,
			    gpu_of(k, MODEL_TENSORS) ? address(k->device_frozen) : k->frozen, NULL);
}

/* Or says that they lie elsewhere now: k->moving. */
static void declare_tensors(struct rank *k)
{
	k->nid = 0;
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		declare_parameter(k, t);
		declare_counts(k, t);
	}
	declare_frozen(k);
}

static void declare(struct rank *k)
{
	struct ckpt_err e = { 0 };
	int r = ckpt_mesh(k->ckpt, k->args->ndim, k->args->dim_name, k->args->dim_size, NULL,
			  &k->mesh, &e);

	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	k->held_alike = k->args->layout == LAYOUT_BOXES ? replicas_mesh(k) : k->mesh;
	declare_tensors(k);
	k->cursor_bytes = sizeof k->cursor;
	k->rng_bytes = sizeof k->rng;
	r = ckpt_blob_add(k->ckpt, "cursor", 0, &k->cursor, &k->cursor_bytes, sizeof k->cursor, &e);
	if (r == 0)
		r = ckpt_blob_add(k->ckpt, "rng", CKPT_PER_RANK, k->rng, &k->rng_bytes,
				  sizeof k->rng, &e);
	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
}

static void declare_averages(struct rank *k)
{
	struct ckpt_err e = { 0 };

	for (uint32_t i = 0; i < k->args->naverage; i++) {
		int r = ckpt_average(k->ckpt, k->args->average[i].name, k->args->average[i].spec,
				     &e);

		if (r < 0)
			ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	}
}

/* No daemon has answered: this one, or the next one, may do so later. */
static int gone(int r)
{
	return r == -ECONNRESET || r == -ECONNREFUSED || r == -ETIMEDOUT;
}

/* Returns when snapshots can be taken; without --wait-ready also when that takes too long. */
static void seal(struct rank *k)
{
	uint64_t deadline = now_ns() + (k->args->wait_ready ? READY_WAIT : SEAL_WAIT), left;
	struct ckpt_err e = { 0 };
	int r;

	for (;;) {
		left = left_until(deadline);
		r = ckpt_seal(k->ckpt, left, &e);
		if (r == 0)
			return;
		if (r < 0 && !gone(r))
			ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
		if (left == 0)
			break;
		nap(RETRY_MS * MS);
	}
	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	if (k->args->wait_ready)
		ranks_fail(
			k->ranks, EXIT_TIMED_OUT,
			"job %s: no snapshot can be taken after %u s: "
			"not every rank has sealed, or ckptd is still getting memory for the slots; "
			"see ckptd's messages",
			k->args->job, (unsigned)(READY_WAIT / SEC));
	if (k->ranks->me == 0)
		fprintf(stderr,
			"trainer: job %s: the slots are not ready after %u s; training "
			"starts, and snapshots are skipped until they are\n",
			k->args->job, (unsigned)(SEAL_WAIT / SEC));
}

/* ---- resume ---- */

static void read_blob(struct rank *k, const char *name, uint32_t old_rank, void *buf,
		      uint64_t bytes)
{
	uint64_t len = 0;
	int r = ckpt_blob_read(k->ckpt, name, old_rank, buf, bytes, &len);

	if (r < 0 || len != bytes)
		ranks_fail(k->ranks, r < 0 && r != -ENOENT ? exit_code_of(r) : EXIT_MISFIT,
			   "step %" PRIu64 " of job %s: blob %s of rank %u has %" PRIu64
			   " bytes where "
			   "this trainer keeps %" PRIu64
			   " (%s): another program wrote it; resume with "
			   "that one, or give this run another --job",
			   k->got.step, k->args->job, name, old_rank, len, bytes,
			   r < 0 ? strerror(-r) : "read");
}

/* What was restored must be a state that this run could have had. */
static void check_restored(struct rank *k)
{
	struct train_cursor want, have;
	uint64_t rng[RNG_WORDS], rng_have[RNG_WORDS];
	uint32_t old_rank = k->ranks->me % (k->got.world_saved ? k->got.world_saved : 1);

	event_cursor(&k->events, k->corpus, k->got.step, &want);
	read_blob(k, "cursor", 0, &have, sizeof have);
	if (have.seed != want.seed)
		ranks_fail(k->ranks, EXIT_MISFIT,
			   "step %" PRIu64 " of job %s was trained with --seed %" PRIu64
			   ", this run has --seed %" PRIu64 ": the text would come in another "
			   "order; use --seed %" PRIu64 " or another --job",
			   k->got.step, k->args->job, have.seed, want.seed, have.seed);
	if (have.micro != want.micro || have.positions != want.positions)
		ranks_fail(k->ranks, EXIT_MISFIT,
			   "step %" PRIu64 " of job %s was trained with %" PRIu64
			   " micro-batches of %" PRIu64
			   ", this trainer has %d of %d; use the trainer "
			   "that wrote it or another --job",
			   k->got.step, k->args->job, have.micro, have.positions, MODEL_MICRO,
			   MODEL_POSITIONS);
	if (have.step != want.step)
		ranks_fail(k->ranks, EXIT_DAMAGED,
			   "step %" PRIu64 " of job %s: its cursor says step %" PRIu64
			   "; run ckptctl verify --data on it and resume from an older one",
			   k->got.step, k->args->job, have.step);
	if ((have.text_bytes != want.text_bytes || have.text_hash != want.text_hash) &&
	    k->ranks->me == 0)
		fprintf(stderr,
			"trainer: the text in %s is not the one that job %s was trained on so "
			"far; training goes on, with other losses than an uninterrupted run\n",
			k->args->text, k->args->job);
	read_blob(k, "rng", old_rank, rng_have, sizeof rng_have);
	event_rng(&k->events, old_rank, k->got.step, rng);
	if (memcmp(rng, rng_have, sizeof rng) != 0)
		ranks_fail(
			k->ranks, EXIT_DAMAGED,
			"step %" PRIu64 " of job %s: blob rng is not what "
			"rank %u had at that step; run ckptctl verify --data on it and resume from an "
			"older one",
			k->got.step, k->args->job, old_rank);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		uint64_t wrong;

		pull(k, t);
		for (uint64_t i = 0; i < counts_of(k, t); i++)
			if (k->count[t][i] != k->got.step * (2 * i + 1))
				ranks_fail(k->ranks, EXIT_DAMAGED,
					   "step %" PRIu64 " of job %s: count %" PRIu64
					   " of %s is %" PRIu64 ", and %" PRIu64
					   " at that step; run ckptctl verify --data on "
					   "it and resume from an older one",
					   k->got.step, k->args->job, i, k->shape->tensor[t].name,
					   k->count[t][i], k->got.step * (2 * i + 1));
		wrong = nan_wrong(k->shape, t, &k->events, k->got.step, &k->part[t]);
		if (wrong)
			ranks_fail(k->ranks, EXIT_DAMAGED,
				   "step %" PRIu64 " of job %s: %" PRIu64
				   " elements of %s are not the NaNs of that step; run ckptctl "
				   "verify --data on it and resume from an older one",
				   k->got.step, k->args->job, wrong, k->shape->tensor[t].name);
		wrong = model_wrong_rows(&k->part[t]);
		if (wrong)
			ranks_fail(
				k->ranks, EXIT_DAMAGED,
				"step %" PRIu64 " of job %s: %" PRIu64 " of "
				"the %" PRIu64 " rows of %s from row %" PRIu64 " on are not the "
				"rounding of their masters; run ckptctl verify --data on it and resume "
				"from an older one",
				k->got.step, k->args->job, wrong, k->part[t].rows,
				k->shape->tensor[t].name, k->part[t].first);
	}
	carry_frozen(k, gpu_get);
	if (wrong_frozen_rows(k, k->got.step))
		ranks_fail(k->ranks, EXIT_DAMAGED,
			   "step %" PRIu64 " of job %s: %" PRIu64 " of the %" PRIu64
			   " rows of base.weight from row %" PRIu64
			   " on are not those of this seed; run ckptctl verify --data on it and "
			   "resume from an older one",
			   k->got.step, k->args->job, wrong_frozen_rows(k, k->got.step),
			   k->frozen_rows, k->frozen_first);
}

/* Who tells why the job ends: the first rank whose error is no mere echo of another's. */
static uint32_t speaker(const int64_t *all, uint32_t world)
{
	uint32_t first = world;

	for (uint32_t i = 0; i < world; i++) {
		if (all[i] < 0 && all[i] != -ETIMEDOUT && all[i] != -ECONNRESET)
			return i;
		if (all[i] < 0 && first == world)
			first = i;
	}
	return first;
}

/* What all ranks got from a collective call: the same, or a rank with an error ends the job. Where
 * the daemon was gone before all had their answer, it was gone for all: those that had theirs may
 * have learned from the others (-EBADMSG) that it does not count, or that there was nothing. */
static int common_result(struct rank *k, int r, const struct ckpt_err *e)
{
	const int64_t *all = ranks_share(k->ranks, gone(r) ? -ECONNRESET : r);
	int same = 1, answered = 1, reset = 0;

	for (uint32_t i = 0; i < k->ranks->world; i++) {
		same &= all[i] == all[k->ranks->me];
		reset |= all[i] == -ECONNRESET;
		answered &= all[i] == 0 || all[i] == -ECONNRESET || all[i] == -EBADMSG ||
			    all[i] == -ENOENT;
	}
	if (same)
		return r;
	if (answered && reset)
		return -ECONNRESET;
	if (speaker(all, k->ranks->world) != k->ranks->me)
		ranks_yield();
	ranks_fail(k->ranks, exit_code_of(r), "%s", e->msg);
}

static uint64_t slowest(struct rank *k, uint64_t ns)
{
	const int64_t *all = ranks_share(k->ranks, (int64_t)ns);
	int64_t most = 0;

	for (uint32_t i = 0; i < k->ranks->world; i++)
		most = all[i] > most ? all[i] : most;
	return (uint64_t)most;
}

/* Fills the state from a checkpoint. 1: it did; 0: there is nothing and --resume allows that. */
static int restore(struct rank *k)
{
	enum resume how = k->args->resume;
	struct ckpt_want want = {
		.size = sizeof want,
		.flags = how == RESUME_MEMORY ? CKPT_FROM_MEMORY
			 : how == RESUME_DISK ? CKPT_FROM_DISK
					      : 0,
		.step = how == RESUME_STEP ? k->args->resume_step : CKPT_LATEST,
	};
	uint64_t deadline = now_ns() + SEAL_WAIT;
	struct ckpt_err e = { 0 };
	int r;

	if (how == RESUME_NONE) {
		r = ckpt_fresh(k->ckpt); /* whatever the store has */
		if (r < 0)
			ranks_fail(k->ranks, exit_code_of(r), "cannot start over: %s",
				   strerror(-r));
		return 0;
	}
	for (;;) {
		uint64_t begin = now_ns(), ns;

		k->got.size = sizeof k->got;
		r = ckpt_restore(k->ckpt, &want, &k->got, &e);
		ns = now_ns() - begin;
		r = common_result(k, r, &e);
		if (r == 0) {
			k->restore_ns = slowest(k, ns);
			return 1; /* the library has said what it passed over */
		}
		if (gone(r) && left_until(deadline) > 0) {
			nap(RETRY_MS * MS);
			seal(k);
			continue;
		}
		if (r == -ENOENT && how == RESUME_LATEST)
			return 0;
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	}
}

/* The state of step 0. */
static void begin_anew(struct rank *k)
{
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		model_init(k->shape, t, k->args->seed, &k->part[t]);
		memset(k->count[t], 0, sizeof k->count[t]);
		push(k, t);
	}
	for (uint64_t row = 0; row < k->frozen_rows; row++)
		base_row(&k->events, k->frozen_first + row, 0, frozen_row(k, row));
	carry_frozen(k, carry_up);
}

/* Brings the state to where training starts, and returns that step. */
static uint64_t start(struct rank *k)
{
	if (k->ckpt && restore(k)) {
		check_restored(k);
	} else {
		begin_anew(k);
		k->got = (struct ckpt_got){ 0 };
	}
	ranks_barrier(k->ranks); /* every rank is content with what it got */
	if (k->ranks->me == 0) {
		printf("trainer: mesh %s, %u ranks, %" PRIu64 " parameters, %" PRIu64
		       " bytes of text\n",
		       k->args->mesh, k->ranks->world, k->shape->params, k->corpus->bytes);
		if (k->got.where)
			printf("trainer: resumed from %s, step %" PRIu64
			       ", written by %u ranks, in %.1f ms\n",
			       k->got.where == 1 ? "memory" : "disk", k->got.step,
			       k->got.world_saved, (double)k->restore_ns * 1e-6);
		else
			printf("trainer: starts at step 0\n");
		fflush(stdout);
	}
	return k->got.step;
}

/* ---- training ---- */

static void open_losses(struct rank *k)
{
	k->losses = -1;
	if (!k->args->losses || k->ranks->me != 0)
		return;
	k->losses = open(k->args->losses, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
	if (k->losses < 0)
		ranks_fail(k->ranks, exit_code_of(-errno),
			   "cannot open %s to append losses: %s; name "
			   "a file that can be written with --losses",
			   k->args->losses, strerror(errno));
}

static void open_masters(struct rank *k)
{
	k->masters = -1;
	if (!k->args->masters)
		return;
	k->masters = open(k->args->masters, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
	if (k->masters < 0)
		ranks_fail(k->ranks, exit_code_of(-errno),
			   "cannot open %s to write masters: %s; name a file that can be written "
			   "with --masters",
			   k->args->masters, strerror(errno));
}

/* One write(2): whatever kills this process, a line is there or not. */
static void append_loss(struct rank *k, uint64_t step)
{
	char line[96];
	uint64_t bits;

	memcpy(&bits, &k->loss, sizeof bits);
	int n = snprintf(line, sizeof line, "%" PRIu64 " %016" PRIx64 " %.6f\n", step, bits,
			 k->loss);

	errno = 0; /* a short write sets none */
	if (k->losses < 0 || write(k->losses, line, (size_t)n) == n)
		return;
	fprintf(stderr,
		"trainer: cannot append step %" PRIu64 " to %s: %s; training goes on without "
		"the losses\n",
		step, k->args->losses, strerror(errno ? errno : ENOSPC));
	close(k->losses);
	k->losses = -1;
}

/* The parameters of all ranks behind a step, where all can read them. One replica writes each
 * row. */
static void gather(struct rank *k, uint64_t step)
{
	for (uint32_t t = 0; t < MODEL_TENSORS && k->copy == 0; t++) {
		const struct model_part *p = &k->part[t];
		uint16_t *to = k->gathered + k->shape->tensor[t].at + p->first * p->cols;
		uint64_t bytes = p->rows * p->cols * sizeof *p->param;
		struct gpu *g = gpu_of(k, t);

		if (bytes && g)
			gpu_must(k, g, gpu_get(g, to, k->device[t].param, bytes, bytes, 1));
		else if (bytes)
			memcpy(to, p->param, bytes);
	}
	sync_gpus(k);
	for (uint32_t t = 0; t < MODEL_TENSORS && k->copy == 0; t++)
		nan_forget(k->shape, t, &k->events, step, &k->part[t], k->gathered);
	ranks_barrier(k->ranks);
}

/* A device may still read those of the steps before. */
static void grads_turn(struct rank *k, uint64_t step)
{
	uint64_t to = step % (k->args->ahead + 1);

	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		k->part[t].grad += (int64_t)(to - k->grads_at) * (int64_t)k->grads;
		k->grad[t].grad += (int64_t)(to - k->grads_at) * (int64_t)k->grads;
	}
	k->grads_at = to;
}

static void forward_backward(struct rank *k, uint64_t step)
{
	grads_turn(k, step);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		struct gpu *g = gpu_of(k, t);
		uint64_t take = g == k->gpu[0] && t == 0 ? k->args->step_ms * MS : 0;

		if (g)
			gpu_must(k, g, gpu_forward(g, &k->device[t], take));
		for (uint64_t i = 0; !g && i < counts_of(k, t); i++)
			k->count[t][i] += 2 * i + 1;
	}
	for (uint32_t i = k->ranks->me; i < MODEL_MICRO; i += k->ranks->world)
		model_micro(k->shape, k->gathered, k->corpus, k->args->seed, step, i, &k->batch);
	ranks_barrier(k->ranks);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		uint64_t bytes = k->part[t].rows * k->part[t].cols * sizeof(float);
		struct gpu *g = gpu_of(k, t);

		model_grad(k->shape, t, &k->batch, &k->grad[t]);
		if (g && bytes)
			gpu_must(k, g,
				 gpu_put(g, k->device[t].grad, bytes, k->part[t].grad, bytes, 1));
	}
	k->loss = model_loss(&k->batch);
}

/* base.weight is declared anew, as what it is from now on. */
static void declare_frozen_anew(struct rank *k)
{
	int r = ckpt_tensor_drop(k->ckpt, k->id[--k->nid]);

	if (r < 0)
		ranks_fail(k->ranks, exit_code_of(r), "cannot drop base.weight: %s", strerror(-r));
	declare_frozen(k);
	seal(k);
}

/* Those rows of the base that this step changes. On a device they go there together. */
static void train_base(struct rank *k, uint64_t step)
{
	struct gpu *g = gpu_of(k, MODEL_TENSORS);
	uint64_t bytes = BASE_WORDS * sizeof *k->frozen, first = 0, n = 0;

	if (!k->frozen_all)
		return;
	if (k->ckpt && base_is_trained(&k->events, step) != k->base_trained) {
		k->base_trained = !k->base_trained;
		declare_frozen_anew(k);
	}
	for (uint64_t row = 0; row < k->frozen_rows; row++) {
		if (!base_row_changes(&k->events, k->frozen_first + row, step))
			continue;
		first = n ? first : row;
		base_row(&k->events, k->frozen_first + row, step, frozen_row(k, g ? n : row));
		n++;
	}
	if (g && n) {
		gpu_must(k, g,
			 gpu_put(g, k->device_frozen + first * bytes, BASE_TURNS * bytes, k->frozen,
				 bytes, n));
		gpu_must(k, g, gpu_sync(g));
	}
}

static void optimizer(struct rank *k, uint64_t step)
{
	for (uint32_t t = 0; t < MODEL_TENSORS; t++) {
		struct model_adam a = model_adam_at(k->shape, t, step);
		struct gpu *g = gpu_of(k, t);

		if (nan_step(&k->events, step - 1)) {
			pull(k, t);
			nan_mend(k->shape, t, &k->events, step - 1, &k->part[t]);
			push(k, t);
		}
		if (g)
			gpu_must(k, g, gpu_update(g, &k->device[t], &a));
		else
			model_update(k->shape, t, step, &k->part[t]);
		if (nan_step(&k->events, step)) {
			pull(k, t);
			nan_plant(k->shape, t, &k->events, step, &k->part[t]);
			push(k, t);
		}
	}
	train_base(k, step);
	event_cursor(&k->events, k->corpus, step, &k->cursor);
	event_rng(&k->events, k->ranks->me, step, k->rng);
}

/* The masters behind a step, in the order of the tensors: what averages are made of. */
static void write_masters(struct rank *k, uint64_t step)
{
	uint64_t at = step * k->shape->params;

	for (uint32_t t = 0; t < MODEL_TENSORS && k->copy == 0 && k->masters >= 0; t++) {
		const struct model_part *p = &k->part[t];
		size_t bytes = p->rows * p->cols * sizeof *p->master;

		pull(k, t);
		if (pwrite(k->masters, p->master, bytes,
			   (off_t)((at + p->first * p->cols) * sizeof *p->master)) !=
		    (ssize_t)bytes)
			ranks_fail(k->ranks, exit_code_of(-errno),
				   "step %" PRIu64 ": cannot write %s: %s", step, k->args->masters,
				   strerror(errno));
		at += k->shape->tensor[t].dim[0] * k->shape->tensor[t].dim[1];
	}
}

/* With the streams that change the state. */
static struct ckpt_mark mark_of(struct rank *k)
{
	struct ckpt_mark mark = { .size = sizeof mark };
	const struct train_args *a = k->args;

	if (!a->ngpu || a->mistake == MISTAKE_STREAM)
		return mark;
	mark.stream = gpu_stream(k->gpu[0]);
	for (uint32_t i = 1; i < a->ngpu; i++)
		k->more[mark.nstream++] = (struct ckpt_stream){
			.stream = gpu_stream(k->gpu[i]),
			.device = 1 + gpu_number(k, i),
		};
	mark.more = k->more;
	return mark;
}

static void guard(struct rank *k)
{
	struct ckpt_mark mark = mark_of(k);
	uint64_t preempted = preempted_times(), t = now_ns();
	int r = ckpt_guard(k->ckpt, &mark);
	uint64_t ns = now_ns() - t;

	train_stats_guard(&k->stats, r, ns, preempted_times() - preempted);
}

static int snapshot(struct rank *k, uint64_t step, uint32_t flags)
{
	struct ckpt_note note = {
		.key = "loss",
		.value = nan_step(&k->events, step) ? __builtin_nan("") : k->loss,
	};
	struct ckpt_mark mark = mark_of(k);

	mark.flags = flags;
	mark.note = &note;
	mark.nnote = 1;

	uint64_t preempted = preempted_times(), t = now_ns();
	int r = ckpt_snapshot(k->ckpt, step, &mark);
	uint64_t ns = now_ns() - t;

	train_stats_snapshot(&k->stats, r, ns, preempted_times() - preempted);
	return r;
}

#define POISON 0xa5 /* of memory that the state has left */

static void poison_device(struct rank *k, uint32_t t)
{
	const struct gpu_part *old = &k->device_spare[t];
	struct gpu *g = gpu_of(k, t);
	uint64_t row = old->cols * sizeof(float), pitch = old->pitch * sizeof(float);
	float *junk = k->part[t].master;

	memset(junk, POISON, old->rows * row);
	gpu_must(k, g, gpu_put(g, old->param, row / 2, junk, row / 2, old->rows));
	gpu_must(k, g, gpu_put(g, old->master, row, junk, row, old->rows));
	gpu_must(k, g, gpu_put(g, old->moment1, pitch, junk, row, old->rows));
	gpu_must(k, g, gpu_put(g, old->moment2, pitch, junk, row, old->rows));
	gpu_must(k, g, gpu_sync(g));
}

/* To its other memory on the device; all but the gradient, which lies in one place. */
static void move_device(struct rank *k, uint32_t t)
{
	struct gpu_part from = k->device[t], to = k->device_spare[t];

	pull(k, t);
	to.grad = from.grad;
	k->device[t] = to;
	k->device_spare[t] = from;
	push(k, t);
}

/* The state goes to other memory. The guard has been called; what it leaves is overwritten, and the
 * trainer's own is unmapped. */
static void move(struct rank *k)
{
	void *old[2] = { k->state[0], k->state[1] };
	uint64_t frozen = k->device_frozen;

	k->state[0] = k->state_spare;
	k->state[1] = map_or_fail(k, k->state_bytes[1] + ALIGN);
	k->state_spare = old[0];
	for (int i = 0; i < 2; i++)
		memcpy(k->state[i], old[i], k->state_bytes[i]);
	lay_out(k, k->state);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++)
		if (gpu_of(k, t))
			move_device(k, t);
	carry_frozen(k, gpu_get);
	k->device_frozen = k->device_frozen_spare;
	k->device_frozen_spare = frozen;
	carry_frozen(k, carry_up);
	k->moving = true;
	declare_tensors(k);
	k->moving = false;
	seal(k); /* this rank alone */
	memset(old[0], POISON, k->state_bytes[0]);
	munmap(old[1], k->state_bytes[1] + ALIGN);
	for (uint32_t t = 0; t < MODEL_TENSORS; t++)
		if (gpu_of(k, t))
			poison_device(k, t);
}

/* A checkpoint that fails while training is reported, and training goes on. */
static void report(struct rank *k, uint64_t step, int r)
{
	struct ckpt_err e = { 0 };

	if (k->ranks->me != 0)
		return;
	if (r == CKPT_FAILING && ckpt_why(k->ckpt, &e) < 0)
		fprintf(stderr,
			"trainer: job %s: a snapshot could not be written: %s; training goes on\n",
			k->args->job, e.msg);
	if ((r < 0 || r == CKPT_DETACHED) && r != k->last_error) {
		(void)ckpt_why(k->ckpt, &e);
		fprintf(stderr,
			"trainer: step %" PRIu64 " of job %s has no snapshot: %s; training "
			"goes on\n",
			step, k->args->job,
			e.msg[0] ? e.msg
			: r < 0	 ? strerror(-r)
				 : "no ckptd is attached; the library keeps looking for one");
	}
	k->last_error = r;
}

/*
 * The last step, until it is committed. The state does not change any more, so a snapshot that was
 * torn, skipped or lost with its daemon is simply marked again, by all ranks together.
 */
static void finish(struct rank *k, uint64_t step)
{
	enum { COMMITTED = 0, UNDER_WAY = 1, LOST = 2 };
	uint64_t deadline = now_ns() + FINAL_WAIT;
	struct ckpt_err e = { 0 };
	int mark = 1;

	for (int round = 0;; round++) {
		int mine = UNDER_WAY, r = mark ? snapshot(k, step, CKPT_FINAL) : 0;

		if (r == CKPT_FAILING) {
			report(k, step, r);
			r = 0; /* it was taken; whether it can be written is waited for */
		}
		/* A repeated mark may find that this rank's first one still counts: -EINVAL. */
		if (r > 0 || gone(r)) {
			mine = LOST;
		} else if (r < 0 && !(r == -EINVAL && round > 0)) {
			struct ckpt_err why = { 0 };

			mine = r;
			(void)ckpt_why(k->ckpt, &why);
			snprintf(e.msg, sizeof e.msg,
				 "step %" PRIu64 " of job %s, the last, has no "
				 "snapshot: %.3000s; run again with --resume latest",
				 step, k->args->job, why.msg[0] ? why.msg : strerror(-r));
		} else {
			uint64_t slice = left_until(deadline) < FINAL_SLICE ? left_until(deadline)
									    : FINAL_SLICE;

			r = ckpt_wait(k->ckpt, step, CKPT_COMMITTED, slice, &e);
			mine = r == 0			 ? COMMITTED
			       : r == -ETIMEDOUT	 ? UNDER_WAY
			       : r == -ENOENT || gone(r) ? LOST
							 : r;
		}

		/* Committed for one is committed: the step is the whole job's. */
		const int64_t *all = ranks_share(k->ranks, mine);
		int committed = 0, lost = 0, over;
		uint32_t fails = speaker(all, k->ranks->world);

		for (uint32_t i = 0; i < k->ranks->world; i++) {
			committed |= all[i] == COMMITTED;
			lost |= all[i] == LOST;
		}
		over = ranks_share(k->ranks, left_until(deadline) == 0)[0] != 0;
		if (committed)
			return;
		if (fails == k->ranks->me)
			ranks_fail(k->ranks, exit_code_of(mine), "%s", e.msg);
		if (fails < k->ranks->world)
			ranks_yield();
		if (over)
			ranks_fail(
				k->ranks, EXIT_TIMED_OUT,
				"step %" PRIu64 " of job %s, the last, is "
				"not committed after %u s: %s; see ckptd's messages, then run again "
				"with --resume latest",
				step, k->args->job, (unsigned)(FINAL_WAIT / SEC),
				e.msg[0] ? e.msg : "no snapshot of it could be taken");
		if (lost)
			nap(RETRY_MS * MS);
		mark = lost;
	}
}

static void write_stats(struct rank *k, uint64_t steps_run, double seconds)
{
	char head[640];
	uint64_t bits;
	int r;

	memcpy(&bits, &k->loss, sizeof bits);
	snprintf(head, sizeof head,
		 "{\"schema\":\"trainer.stats/1\",\"mesh\":\"%s\",\"world\":%u,\"params\":%" PRIu64
		 ",\"resumed_from\":\"%s\",\"resumed_step\":%" PRIu64 ",\"restore_ns\":%" PRIu64
		 ",\"steps\":%" PRIu64 ",\"last_step\":%" PRIu64
		 ",\"loss\":%.6f,\"loss_bits\":\"%016" PRIx64 "\",\"seconds\":%.6f,",
		 k->args->mesh, k->ranks->world, k->shape->params,
		 k->got.where == 1 ? "memory"
		 : k->got.where	   ? "disk"
				   : "none",
		 k->got.step, k->restore_ns, steps_run, k->got.step + steps_run, k->loss, bits,
		 seconds);
	r = train_stats_write(&k->stats, k->args->print_stats, head);
	if (r < 0)
		fprintf(stderr,
			"trainer: cannot write %s: %s; name a file that can be written with "
			"--print-stats\n",
			k->args->print_stats, strerror(-r));
}

static void tell_end(struct rank *k, uint64_t steps_run, uint64_t ns)
{
	struct ckpt_stats s = { .size = sizeof s };
	double seconds = (double)ns * 1e-9;

	printf("trainer: step %" PRIu64 ", loss %.6f, %" PRIu64 " steps in %.2f s\n",
	       k->got.step + steps_run, k->loss, steps_run, seconds);
	if (k->ckpt && ckpt_stats(k->ckpt, &s) == 0)
		printf("trainer: %" PRIu64 " snapshots asked for, %" PRIu64 " staged, %" PRIu64
		       " skipped, %" PRIu64 " torn, %" PRIu64
		       " committed, the last at step %" PRIu64 "\n",
		       k->stats.asked, s.staged, s.skipped, s.torn, s.committed,
		       s.last_committed_step);
	fflush(stdout);
	if (k->stats.on)
		write_stats(k, steps_run, seconds);
}

static void prepare_stats(struct rank *k)
{
	const int64_t *bytes = ranks_share(
		k->ranks, (int64_t)(k->state_bytes[0] + k->state_bytes[1] + k->device_bytes));
	uint64_t device_ns = 0;

	for (uint32_t i = 0; i < k->ranks->world; i++)
		k->stats.job_state_bytes += (uint64_t)bytes[i];
	k->stats.on = k->args->print_stats && k->ranks->me == 0;
	if (k->stats.on)
		train_stats_memcpy(&k->stats, k->state, k->state_bytes);
	for (int i = 0; k->stats.on && k->args->ngpu && i < TIMES; i++) {
		uint64_t begin = now_ns(), ns;

		for (uint32_t t = 0; t < MODEL_TENSORS; t++)
			pull(k, t);
		carry_frozen(k, gpu_get);
		ns = now_ns() - begin;
		device_ns = i == 0 || ns < device_ns ? ns : device_ns;
	}
	k->stats.memcpy_ns += device_ns;
	k->stats.state_bytes += k->device_bytes;
	ranks_barrier(k->ranks); /* the copy was alone on the machine */
}

/* One of the newest steps, the same for all ranks; or the newest, where nobody can say. */
static uint64_t older_step(struct rank *k, uint64_t step)
{
	struct ckpt_step have[OLDER_MAX];
	int n = k->ranks->me ? 0 : ckpt_steps(k->ckpt, have, OLDER_MAX);
	uint64_t draw = mix64(mix64(k->args->seed ^ step) ^ now_ns());

	return (uint64_t)ranks_share(k->ranks, n > 0 ? (int64_t)have[draw % (uint64_t)n].step
						     : (int64_t)CKPT_LATEST)[0];
}

/* As if the state had gone wrong: all ranks go on from a step that there is, which is returned;
 * from this one, when there is none. */
static uint64_t go_back(struct rank *k, uint64_t step, uint64_t which)
{
	struct ckpt_want want = { .size = sizeof want, .step = which };
	struct ckpt_got first = k->got;

	uint64_t deadline = now_ns() + SEAL_WAIT, to = step;
	struct ckpt_err e = { 0 };
	bool cut_off = false;
	int r;

	sync_gpus(k);
	for (;;) {
		k->got.size = sizeof k->got;
		r = ckpt_restore(k->ckpt, &want, &k->got, &e);
		r = common_result(k, r, &e);
		if (!gone(r) || left_until(deadline) == 0)
			break;
		cut_off = true;
		want.step = CKPT_LATEST; /* the other one may have been in its memory alone */
		nap(RETRY_MS * MS);
		seal(k);
	}
	if (r == 0) {
		check_restored(k);
		to = k->got.step;
	} else if (r == -EUCLEAN && cut_off) { /* the daemon died while it wrote to our memory */
		begin_anew(k);
		to = 0;
		r = ckpt_fresh(k->ckpt);
	}
	if (r < 0 && r != -ENOENT)
		ranks_fail(k->ranks, exit_code_of(r), "%s", e.msg);
	if (k->ranks->me == 0) {
		printf("trainer: went back from step %" PRIu64 " to %s %" PRIu64 "\n", step,
		       which == CKPT_LATEST && to ? "step" : "older step", to);
		fflush(stdout);
	}
	k->got = first;
	ranks_barrier(k->ranks);
	return to;
}

/* --wrong: one bit of the state of the last steps but one, where the state's first element of that
 * tensor lies; done twice it is right again. */
static void flip(struct rank *k, uint32_t t, uint16_t param, uint32_t master, uint32_t moment2)
{
	struct model_part *p = &k->part[t];
	uint32_t u;

	if (p->first || !p->rows)
		return;
	pull(k, t);
	p->param[0] ^= param;
	memcpy(&u, p->master, sizeof u);
	u ^= master;
	memcpy(p->master, &u, sizeof u);
	memcpy(&u, p->moment2, sizeof u);
	u ^= moment2;
	memcpy(p->moment2, &u, sizeof u);
	push(k, t);
}

static void flip_base(struct rank *k)
{
	if (!k->frozen_all)
		return;
	carry_frozen(k, gpu_get);
	if (!k->frozen_first && k->frozen_rows)
		k->frozen[0] ^= 1;
	carry_frozen(k, carry_up);
	declare_frozen_anew(k);
}

static void wrong(struct rank *k, uint64_t step)
{
	switch (k->args->steps - step) {
	case 4: /* of what has just moved */
		flip(k, T_EMB, 0, 0, 1);
		break;
	case 3:
		flip_base(k);
		break;
	case 2: /* not derived any more */
		flip(k, T_OUT_B, 1, 0, 0);
		break;
	case 1: /* still derived: the sign of both */
		flip(k, T_FC1_W, 0x8000, 0x80000000u, 0);
		break;
	}
	/* The last step has averages alone that are wrong: those of the step before it. */
}

/* A step that is committed before training goes on. */
static void commit(struct rank *k, uint64_t step)
{
	bool wrongly = k->args->wrong && step < k->args->steps;

	if (wrongly && step + WRONG_STEPS - 1 == k->args->steps)
		move(k);
	if (wrongly)
		wrong(k, step);
	finish(k, step);
	guard(k);
	if (wrongly)
		wrong(k, step);
}

static void train(struct rank *k, uint64_t from)
{
	const struct train_args *a = k->args;
	uint64_t begin = now_ns(), back = from + 1; /* the newest step that was gone back at */
	bool anew = true;

	for (uint64_t step = from + 1; step <= a->steps; step++) {
		uint64_t end = now_ns() + a->step_ms * MS;

		if (k->ckpt && a->go_back_every && step % a->go_back_every == 0 && step > back) {
			back = step;
			step--;
			if (a->go_back_older)
				step = go_back(k, step, older_step(k, step));
			/* Then every second time to the newest again. */
			if (!a->go_back_older || back / a->go_back_every % 2)
				step = go_back(k, step, CKPT_LATEST);
			anew = true;
			continue;
		}

		if (anew || step % (a->ahead + 1) == 0)
			gather(k, step - 1);
		else
			ranks_barrier(k->ranks);
		anew = false;
		forward_backward(k, step);
		append_loss(k, step);
		if (left_until(end) > 0 && !(a->ngpu && a->ahead)) /* its device takes as long */
			nap(left_until(end));
		if (k->ckpt && k->args->mistake != MISTAKE_NO_GUARD &&
		    k->args->mistake != MISTAKE_LATE_GUARD)
			guard(k);
		if (k->ckpt && a->move_every && (step + k->ranks->me) % a->move_every == 0)
			move(k);
		optimizer(k, step);
		if (k->ckpt && k->args->mistake == MISTAKE_LATE_GUARD)
			guard(k);
		write_masters(k, step);
		if (k->ckpt && step + (a->wrong ? WRONG_STEPS : 1) > a->steps) {
			commit(k, step);
		} else if (k->ckpt && step % a->snapshot_every == 0) {
			report(k, step, snapshot(k, step, 0));
		}
		if (k->ckpt)
			train_stats_look(&k->stats, k->ckpt);
	}
	if (k->ranks->me == 0)
		tell_end(k, a->steps - from, now_ns() - begin);
}

int train_rank(struct ranks *r, void *arg)
{
	const struct train_job *job = arg;
	struct rank k = {
		.args = job->args,
		.corpus = job->corpus,
		.shape = &job->shape,
		.ranks = r,
		.events = { job->args->seed, job->args->nan_every, job->args->thaw_every },
	};

	locate(&k);
	open_losses(&k);
	open_masters(&k);
	open_gpus(&k);
	if (!k.args->no_checkpoint)
		attach(&k);
	allocate(&k);
	if (k.ckpt) {
		declare(&k);
		declare_averages(&k);
		seal(&k);
	}
	uint64_t from = start(&k);

	if (from >= k.args->steps) {
		if (r->me == 0)
			printf("trainer: step %" PRIu64
			       " is the last that was asked for: nothing to do\n",
			       k.args->steps);
	} else {
		prepare_stats(&k);
		train(&k, from);
	}
	if (k.ckpt)
		ckpt_detach(k.ckpt, 0);
	return EXIT_SUCCESS;
}
