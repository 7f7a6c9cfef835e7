# SPDX-License-Identifier: Apache-2.0
# All that looks for lost data, for as long as it takes: minutes to hours. `make test` has the quick half of each.
SEED     ?= $(shell date +%s)
SECONDS  ?= 600
RIGS     ?=
.PHONY: torture
torture: $(if $(filter list,$(RIGS)),,build/.deps-test)
	$(if $(filter list,$(RIGS)),,$(MAKEJ) all units rigs)
	$(if $(filter list,$(RIGS)),,$(MAKEJ) V=tsan units-threaded)
	$(if $(filter list,$(RIGS)),,$(MAKEJ) V=asan all)
	@tests/torture/torture.sh $(SEED) $(SECONDS) $(RIGS)
#: make torture       other seeds, a million crash states, full fault matrices, all mutants, power cuts, storms, fuzzers; SEED= SECONDS= RIGS='states power', RIGS=list
