# SPDX-License-Identifier: Apache-2.0
# The program that plays the measured job; tests/bench/run.sh asks for it.
BENCH    := $(patsubst %.c,$(O)/%.o,$(wildcard tests/bench/*.c))
build/ckptbench: $(BENCH) $(O)/base.a build/libckpt.so
	$(CC) $(LDFLAGS) -pie -o $@ $(BENCH) $(O)/base.a $(LIBS.base) -Lbuild -lckpt -Wl,-rpath,'$$ORIGIN' -lm
