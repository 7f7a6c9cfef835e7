// SPDX-License-Identifier: Apache-2.0
// kernels.cu - what gpubench and gputest run on a device. kernels.ptx is made of this file, is in
// the tree too, and is what the programs contain: they need neither nvcc nor NVRTC. To make it
// anew:
//
//	nvcc -ptx -arch=compute_80 -fmad=false -o - tests/gpu/kernels.cu |
//		sed -e 's/^\.version .*/.version 7.0/' -e '/^\/\//d' -e '/^$/d'
//		>tests/gpu/kernels.ptx
//
// Version 7.0 is the oldest that has mma with BF16: drivers of CUDA 11 and later read it.
// gpu_device.c has the same functions in C, for the driver without a GPU.

typedef unsigned u32;
typedef unsigned long long u64;

__device__ static u64 mix(u64 x)
{
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
	return x ^ (x >> 31);
}

__device__ static u64 first(void)
{
	return blockIdx.x * (u64)blockDim.x + threadIdx.x;
}

__device__ static u64 stride(void)
{
	return gridDim.x * (u64)blockDim.x;
}

// Every word has a value that is a function of seed, position and step, and looks random.
extern "C" __global__ void gpu_fill(u64 *word, u64 n, u64 seed, u64 step)
{
	for (u64 i = first(); i < n; i += stride())
		word[i] = mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull + (step << 40));
}

// How many of them are not those of the step.
extern "C" __global__ void gpu_check(const u64 *word, u64 n, u64 seed, u64 step, u64 *bad)
{
	u64 wrong = 0;

	for (u64 i = first(); i < n; i += stride())
		wrong += word[i] != mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull + (step << 40));
	if (wrong)
		atomicAdd(bad, wrong);
}

// FP32 numbers of [-1, 1), and of [0, 2) if they are squares.
extern "C" __global__ void gpu_random(float *x, u64 n, u64 seed, u32 square)
{
	for (u64 i = first(); i < n; i += stride()) {
		u64 r = mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull);

		x[i] = (float)(int)(r >> 41) / 4194304.0f - (square ? 0.0f : 1.0f);
	}
}

// One step of Adam in place, with gradients that are drawn, not read.
extern "C" __global__ void gpu_adam(float *p, float *m, float *v, u64 n, u64 seed, u64 step)
{
	for (u64 i = first(); i < n; i += stride()) {
		u64 r = mix(seed + (i + 1) * 0x9e3779b97f4a7c15ull + (step << 40));
		float g = (float)(int)(r >> 41) / 4194304.0f - 1.0f;
		float mi = m[i] * 0.9f + g * 0.1f, vi = v[i] * 0.999f + g * g * 0.001f;

		m[i] = mi;
		v[i] = vi;
		p[i] -= 0.001f * mi / (sqrtf(vi) + 1e-8f);
	}
}

// As a GEMM does: each warp streams BF16 tiles from memory through its tensor cores, `rounds`
// times. in: words tiles of random bytes, a power of two; out: one float, so that nothing is left
// out.
extern "C" __global__ void gpu_work(const uint4 *in, u64 words, float *out, u32 rounds)
{
	u64 at = first();
	float c[8] = { 0, 0, 0, 0, 0, 0, 0, 0 }, sum = 0;

	for (u32 i = 0; i < rounds; i++) {
		uint4 t = in[at & (words - 1)];

		t.x &= 0xbfffbfffu; // below 2: sums stay finite
		t.y &= 0xbfffbfffu;
		t.z &= 0xbfffbfffu;
		t.w &= 0xbfffbfffu;
		for (u32 j = 0; j < 4; j++) {
			asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
				     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
				     : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
				     : "r"(t.x), "r"(t.y), "r"(t.z), "r"(t.w), "r"(t.y ^ j), "r"(t.w));
			asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
				     "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
				     : "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7])
				     : "r"(t.z), "r"(t.w), "r"(t.x), "r"(t.y), "r"(t.x ^ j), "r"(t.z));
		}
		at += stride();
	}
	for (u32 j = 0; j < 8; j++)
		sum += c[j];
	if (sum == 1.2345f) // never, and the compiler does not know it
		*out = sum;
}
