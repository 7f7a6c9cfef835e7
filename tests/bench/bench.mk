# SPDX-License-Identifier: Apache-2.0
# The program that plays the measured job; tests/bench/run.sh asks for it.
BENCH    := $(patsubst %.c,$(O)/%.o,$(wildcard tests/bench/*.c) tests/lib/many.c tests/lib/models.c)
BENCH_ROOMS := store move native plan io table layout base
build/ckptbench: $(BENCH) $(BENCH_ROOMS:%=$(O)/%.a) build/libckpt.so
	$(CC) $(LDFLAGS) -pie -o $@ $(BENCH) $(BENCH_ROOMS:%=$(O)/%.a) $(LIBS.base) $(LIBS.io) -Lbuild -lckpt -Wl,-rpath,'$$ORIGIN' -lm
