# SPDX-License-Identifier: Apache-2.0
# Planted mistakes (ckpt/base/mutants.h), each held against the tests that should find it (tests/mutants/table).
MUTANTS  ?= ALL
.PHONY: mutants mutant-rigs
mutants:
	@tests/mutants/run.sh $(MUTANTS)
# What run.sh is about to run.
ifeq ($(V),mutant)
mutant-rigs: $(shell tests/mutants/run.sh --programs '$(MUTANTS)' $(B) $(O))
endif
#: make mutants       every planted mistake, and the test that finds it; MUTANTS='NAME NAME' for some, FAST for the quick ones
