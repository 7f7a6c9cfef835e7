# SPDX-License-Identifier: Apache-2.0
# Programs that measure and test on a GPU, and the folder that has all they need (docs/GPU.md).
GPU_LIB  := $(patsubst %.c,$(O)/%.o,$(wildcard tests/gpu/gpu_*.c))
GPU_BENCH := $(O)/tests/gpu/gpubench.o $(patsubst %.c,$(O)/%.o,$(wildcard tests/gpu/exp_*.c))
GPU_ARCH := $(O)/device.a $(O)/base.a
GPU_LINK = $(GPU_ARCH) -L$(B) -lckpt -Wl,-rpath,'$$ORIGIN' $(call static,jansson) -lm
$(O)/tests/gpu/gpu_device.o: tests/gpu/kernels.ptx
$(B)/gpubench: $(GPU_BENCH) $(GPU_LIB) $(GPU_ARCH) $(B)/libckpt.so
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $(GPU_BENCH) $(GPU_LIB) $(GPU_LINK)
GPU_TEST := $(patsubst %,$(O)/tests/gpu/%.o,gputest gpu_device gpu_job)
$(B)/gputest: $(GPU_TEST) $(GPU_ARCH) $(B)/libckpt.so
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $(GPU_TEST) $(GPU_LINK)
rigs: gpu-folder $(FAKECUDA) $(FAKENCCL)
objects: $(GPU_BENCH) $(GPU_LIB) $(O)/tests/gpu/gputest.o

GPU_PROGRAMS := gpubench gputest ckptd ckptctl trainer libckpt.so libckpt-nccl.so
gpu-folder: build/gpu/.made
build/gpu/.made: $(GPU_PROGRAMS:%=build/%) tests/gpu/run.sh tests/gpu/torch_gpu.py $(wildcard python/ckptd/*.py)
	@rm -rf build/gpu.new && mkdir -p build/gpu.new/python/ckptd build/gpu/results
	$(Q)cp $(GPU_PROGRAMS:%=build/%) tests/gpu/run.sh tests/gpu/torch_gpu.py build/gpu.new
	$(Q)strip --strip-debug $(GPU_PROGRAMS:%=build/gpu.new/%)
	$(Q)ln -s libckpt.so build/gpu.new/libckpt.so.0
	$(Q)cp python/ckptd/*.py build/gpu.new/python/ckptd
	$(Q)cp -r build/gpu/results build/gpu.new
	$(Q)rm -rf build/gpu && mv build/gpu.new build/gpu
	$(Q)touch $@

# E=E4,E6 for some; OUT=FILE, otherwise docs/results/GPU-DATE.json; DEVICE=N.
bench-gpu: build/.deps-build
	$(MAKEJ) gpu-folder
	@build/gpu/run.sh bench $(E:%=E=%) --out '$(or $(OUT),docs/results/GPU-$(shell date +%F).json)' $(DEVICE:%=--device %)
test-gpu: build/.deps-build
	$(MAKEJ) gpu-folder
	@build/gpu/run.sh test $(DEVICE:%=--device %)
#: make gpu-folder    build/gpu: what test-gpu and bench-gpu need on a machine without compiler and packages: build/gpu/run.sh
#: make test-gpu      correctness on a CUDA device (docs/GPU.md)
#: make bench-gpu     experiments on a CUDA device, into docs/results/GPU-DATE.json; E=E4,E6 for some
.PHONY: gpu-folder bench-gpu test-gpu
