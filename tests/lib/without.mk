# SPDX-License-Identifier: Apache-2.0
# The program that takes features of the kernel away (tests/lib/without.c), for tests/e2e/test_without.sh.
WITHOUT  := build/without
$(WITHOUT): build/obj/release/tests/lib/without.o
	$(Q)$(CC) $(LDFLAGS) -o $@ $<
