# SPDX-License-Identifier: Apache-2.0
# Planted mistakes (ckpt/base/mutants.h), each held against the tests that should find it.
ifeq ($(V),mutant)
$(UNIT:%=$(O)/unit/%): LDFLAGS += $(O)/tests/mutants/filter.o
$(UNIT:%=$(O)/unit/%): $(O)/tests/mutants/filter.o
endif
