// SPDX-License-Identifier: Apache-2.0
// exp_link.c - E0, E1, E2, E11: the machine, the link, registering host memory, copies on the
// device. None of them needs ckptd.
#include "ckpt/base/util.h"
#include "tests/gpu/gpu_link.h"
#include "tests/gpu/gpu_stat.h"
#include "tests/gpu/gpu_train.h"
#include "tests/gpu/gpubench.h"
#include <pthread.h>
#include <math.h>
#include <stdatomic.h>
#include <sys/resource.h>

#define SEED 11u
#define LINK_FLOOR .98
#define HBM_PER_GIB (2 * MIB)

/* --- E0 --- */
static void number_put(const char *name, const char *unit, double x)
{
	row_put(&(struct row){ .name = name, .unit = unit, .value = x });
}

static void file_put(const char *name, const char *path)
{
	char text[256] = "";
	FILE *f = fopen(path, "re");

	if (!f || !fgets(text, sizeof text, f)) {
		row_skip(name, "%s cannot be read", path);
	} else {
		text[strcspn(text, "\n")] = 0;
		row_put(&(struct row){ .name = name, .what = text, .value = NAN });
	}
	if (f)
		(void)fclose(f);
}

static void attribute_put(const char *name, unsigned attr)
{
	int x = 0;

	GPU(gpu.cu->device_attr(&x, attr, gpu.number));
	number_put(name, "", x);
}

void e0_machine(void)
{
	struct rlimit lock = { 0 };

	attribute_put("multiprocessors", CUDA_ATTR_MULTIPROCESSORS);
	attribute_put("async_engines", CUDA_ATTR_ASYNC_ENGINES);
	attribute_put("host_numa", CUDA_ATTR_HOST_NUMA);
	attribute_put("host_register", CUDA_ATTR_HOST_REGISTER);
	attribute_put("unified_addressing", CUDA_ATTR_UNIFIED_ADDRESSING);
	attribute_put("compute_mode", CUDA_ATTR_COMPUTE_MODE);
	attribute_put("integrated", CUDA_ATTR_INTEGRATED);
	number_put("write_value", "", gpu.cu->stream_write != NULL);
	number_put("batched_copies", "", gpu.cu->copy_many || gpu.cu->copy_many_12);
	number_put("hbm_free", "GiB", (double)gpu_free_bytes() / (double)GIB);
	number_put("cores", "", (double)sysconf(_SC_NPROCESSORS_ONLN));
	getrlimit(RLIMIT_MEMLOCK, &lock);
	number_put("memlock", "GiB",
		   lock.rlim_cur == RLIM_INFINITY ? -1 : (double)lock.rlim_cur / (double)GIB);
	file_put("thp", "/sys/kernel/mm/transparent_hugepage/enabled");
	file_put("thp_shmem", "/sys/kernel/mm/transparent_hugepage/shmem_enabled");
	file_put("huge_pages", "/proc/sys/vm/nr_hugepages");
	file_put("memory_limit", "/sys/fs/cgroup/memory.max");
	file_put("memory", "/proc/meminfo");
}

/* --- E1 --- */
static void size_text(char *buf, size_t bytes, const char *kind, uint64_t size, uint32_t depth)
{
	if (size >= MIB)
		snprintf(buf, bytes, "%s_%lluM_x%u", kind, (unsigned long long)(size / MIB), depth);
	else
		snprintf(buf, bytes, "%s_%lluK_x%u", kind, (unsigned long long)(size / KIB), depth);
}

/* A table of one kind of memory. */
static void link_table(cuda_stream s, const struct link_host *h, cuda_ptr from, uint64_t span,
		       bool all_depths)
{
	char name[64];

	for (uint64_t size = 64 * KIB; size <= span; size *= 4)
		for (uint32_t depth = all_depths ? 1 : LINK_DEPTH;
		     depth <= (all_depths ? 4 : LINK_DEPTH); depth++) {
			uint64_t whole = MAX(size * 8, span), total = MIN(whole, size * 2000);
			double gbps = link_copy_out(s, h, from, span, total, size, depth);

			size_text(name, sizeof name, link_kind_name[h->kind], size, depth);
			row_put(&(struct row){ .name = name,
					       .unit = "GB/s",
					       .value = gbps,
					       .numerator = (double)total,
					       .denominator = (double)total / gbps,
					       .n = total / size });
		}
}

/* Beside cuMemHostAlloc, in blocks A B B A. */
static void link_judge(cuda_stream s, const struct link_host *reference, const struct link_host *h,
		       cuda_ptr from, uint64_t span)
{
	struct stat_side a = { 0 }, b = { 0 };
	struct stat_value v;
	char name[64];

	for (uint32_t i = 0; i < 2 * bench.blocks; i++) {
		bool second = i % 4 == 1 || i % 4 == 2;
		struct stat_side *side = second ? &b : &a;

		stat_block(side);
		for (int k = 0; k < 5; k++)
			stat_add(side, link_copy_out(s, second ? h : reference, from, span, span,
						     MIN(LINK_CHUNK, span / 4), LINK_DEPTH));
	}
	v = stat_ratio(&a, &b);
	snprintf(name, sizeof name, "%s_of_host_alloc", link_kind_name[h->kind]);
	row_put(&(struct row){ .name = name,
			       .what = "copies of 16 MiB, three in flight, into registered memfd, "
				       "beside the same into cuMemHostAlloc",
			       .unit = "ratio",
			       ROW_STAT(v),
			       .bound = ROW_AT_LEAST,
			       .limit = LINK_FLOOR,
			       .time = true });
}

void e1_link(void)
{
	uint64_t span = bench.small ? 4 * MIB : GIB;
	cuda_stream s = gpu_stream();
	cuda_ptr from = gpu_alloc(span);
	struct link_host reference, h;
	char why[256];

	gpu_fill(from, span / 8, SEED, 0, s);
	if (!link_host_make(&reference, LINK_HOST_ALLOC, span, 0, why))
		gpu_die("%s", why);
	link_table(s, &reference, from, span, true);
	for (enum link_kind k = LINK_MEMFD; k < LINK_KINDS; k++) {
		if (!link_host_make(&h, k, span, 0, why)) {
			/* Slots are of the first kind; the others depend on the machine. */
			if (k == LINK_MEMFD)
				row_fail(link_kind_name[k], "%s", why);
			else
				row_skip(link_kind_name[k], "%s", why);
			continue;
		}
		link_table(s, &h, from, span, false);
		if (k != LINK_PAGEABLE)
			link_judge(s, &reference, &h, from, span);
		link_host_free(&h);
	}
	link_host_free(&reference);
}

/* --- E2 --- */
/* Launches kernels all the time, and notes how long each call took. */
struct launcher {
	pthread_t thread;
	_Atomic bool stop;
	struct train train;
	struct stat_side calls;
	double longest;
};

static void *launcher_run(void *arg)
{
	struct launcher *l = arg;
	uint64_t begin;

	gpu_enter();
	stat_block(&l->calls);
	while (!atomic_load(&l->stop)) {
		begin = now_ns();
		gpu_work(l->train.in, l->train.words, l->train.out, l->train.rounds,
			 l->train.stream);
		stat_add(&l->calls, (double)(now_ns() - begin));
		l->longest = MAX(l->longest, (double)(now_ns() - begin));
		GPU(gpu.cu->stream_sync(l->train.stream));
	}
	return NULL;
}

static void register_one(enum link_kind kind, uint64_t bytes, uint64_t step, struct train *train)
{
	struct launcher l = { .train = *train };
	uint64_t hbm = gpu_free_bytes(), begin, ns;
	double gib = (double)bytes / (double)GIB, per_gib;
	struct link_host h;
	char why[256], name[64];
	bool done;

	if (!link_host_touch(&h, kind, bytes, why)) {
		if (step == bytes / 8) /* once is enough */
			row_skip(link_kind_name[kind], "%s", why);
		return;
	}
	if (pthread_create(&l.thread, NULL, launcher_run, &l))
		gpu_die("no thread");
	begin = now_ns();
	done = link_host_register(&h, step, why);
	ns = now_ns() - begin;
	atomic_store(&l.stop, true);
	pthread_join(l.thread, NULL);
	snprintf(name, sizeof name, "%s_step_%lluM", link_kind_name[kind],
		 (unsigned long long)(step >> 20));
	if (!done) {
		row_fail(name, "%s", why);
		link_host_free(&h);
		return;
	}
	per_gib = (double)hbm - (double)gpu_free_bytes();
	per_gib = MAX(per_gib, 0.) / gib;
	row_put(&(struct row){
		.name = name,
		.what = "time of cuMemHostRegister for a GiB, beside a loop of launches",
		.unit = "s/GiB",
		.value = (double)ns / 1e9 / gib,
		.numerator = (double)ns / 1e9,
		.denominator = gib });
	snprintf(name, sizeof name, "%s_step_%lluM_launch", link_kind_name[kind],
		 (unsigned long long)(step >> 20));
	row_put(&(struct row){ .name = name,
			       .what = "the longest launch meanwhile; denominator: their p99",
			       .unit = "ms",
			       .value = l.longest / 1e6,
			       .numerator = l.longest / 1e6,
			       .denominator = stat_side_quantile(&l.calls, .99) / 1e6,
			       .bound = ROW_AT_MOST,
			       .limit = 1,
			       .n = l.calls.n[0],
			       .time = true });
	snprintf(name, sizeof name, "%s_step_%lluM_hbm", link_kind_name[kind],
		 (unsigned long long)(step >> 20));
	row_put(&(struct row){ .name = name,
			       .what = "device memory that a registered GiB takes",
			       .unit = "MiB",
			       .value = per_gib / (double)MIB,
			       .numerator = per_gib * gib / (double)MIB,
			       .denominator = gib,
			       .bound = ROW_AT_MOST,
			       .limit = (double)HBM_PER_GIB / (double)MIB,
			       .time = true });
	link_host_free(&h);
}

void e2_register(void)
{
	uint64_t bytes = bench.small ? 8 * MIB : 8 * GIB;
	static const enum link_kind kinds[] = { LINK_MEMFD, LINK_MEMFD_THP, LINK_MEMFD_HUGE };
	struct train t;

	train_make(&t, 12 * MIB, gpu_stream());
	train_window(&t, 1.4e6);
	for (size_t k = 0; k < ARRAY_LEN(kinds); k++)
		for (uint64_t step = bytes / 8; step <= bytes / 2; step *= 4)
			register_one(kinds[k], bytes, step, &t);
}

/* --- E11 --- */
/* What a guard would cost that copies the late rest aside on the device, instead of waiting. */
void e11_spill(void)
{
	uint64_t span = bench.small ? 4 * MIB : GIB;
	cuda_stream s = gpu_stream();
	cuda_ptr from = gpu_alloc(span), to = gpu_alloc(span);
	struct link_host h;
	char why[256], name[64];

	gpu_fill(from, span / 8, SEED, 0, s);
	if (!link_host_make(&h, LINK_HOST_ALLOC, span, 0, why))
		gpu_die("%s", why);
	for (uint64_t bytes = span / 16; bytes <= span; bytes *= 4) {
		struct stat_side a = { 0 }, b = { 0 };
		struct stat_value v;

		for (uint32_t i = 0; i < 2 * bench.blocks; i++) {
			bool second = i % 4 == 1 || i % 4 == 2;

			stat_block(second ? &b : &a);
			for (int k = 0; k < 5; k++) {
				uint64_t begin;

				GPU(gpu.cu->stream_sync(s));
				begin = now_ns();
				if (second)
					GPU(gpu.cu->copy_out(h.p, from, bytes, s));
				else
					GPU(gpu.cu->copy_on(to, from, bytes, s));
				GPU(gpu.cu->stream_sync(s));
				stat_add(second ? &b : &a, (double)(now_ns() - begin));
			}
		}
		v = stat_ratio(&a, &b);
		snprintf(name, sizeof name, "aside_%lluK", (unsigned long long)(bytes / KIB));
		row_put(&(struct row){ .name = name,
				       .what = "waiting for a copy to the host, beside a copy on "
					       "the device (ckptd has no such spill)",
				       .unit = "ratio",
				       ROW_STAT(v),
				       .bound = ROW_AT_LEAST,
				       .limit = 20,
				       .time = true });
	}
	link_host_free(&h);
}
