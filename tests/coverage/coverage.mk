# SPDX-License-Identifier: Apache-2.0
# Which branches of the rooms that write and read checkpoints no test takes. The programs are those whose
# subject these rooms are; what other tests reach by the way proves less and is not counted. The simulator of
# crashes is left out: it takes minutes without optimization, and looks at states rather than at branches.
COVERAGE_ROOMS ?= store move native
COVERAGE_UNITS := $(filter-out store_crash,$(foreach r,$(COVERAGE_ROOMS),$(filter $(r)_%,$(UNIT))))
COVERAGE_FUZZ := $(filter native_part manifest label,$(FUZZ))
.PHONY: coverage coverage-programs
coverage-programs: $(COVERAGE_UNITS:%=$(O)/unit/%) $(COVERAGE_FUZZ:%=$(O)/fuzz/%)
coverage: build/.deps-test
	$(MAKEJ) V=coverage coverage-programs
	@tests/coverage/coverage.sh build/obj/coverage $(foreach r,$(COVERAGE_ROOMS),$(DIR.$(r))) -- \
		$(COVERAGE_UNITS:%=unit/%) $(COVERAGE_FUZZ:%=fuzz/%)
#: make coverage      branches of ckpt/store, ckpt/move, formats/native that their tests take, and those that none takes
