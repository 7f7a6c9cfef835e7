# SPDX-License-Identifier: Apache-2.0
# The program that plays the measured job; tests/bench/run.sh asks for it.
BENCH    := $(patsubst %.c,$(O)/%.o,$(wildcard tests/bench/*.c) tests/lib/many.c tests/lib/models.c tests/lib/onto.c)
# Of the library's inside, beside the library itself: what bench_canary.c measures.
BENCH_CLIENT := $(O)/ckpt/client/canary.o $(O)/ckpt/client/sealed.o
BENCH_ROOMS := daemon wire store move native format redist plan io table layout ema base
build/ckptbench: $(BENCH) $(BENCH_CLIENT) $(BENCH_ROOMS:%=$(O)/%.a) build/libckpt.so
	$(CC) $(LDFLAGS) -pie -o $@ $(BENCH) $(BENCH_CLIENT) $(BENCH_ROOMS:%=$(O)/%.a) $(LIBS.base) $(LIBS.io) $(LIBS.ema) -Lbuild -lckpt -Wl,-rpath,'$$ORIGIN' -lm
