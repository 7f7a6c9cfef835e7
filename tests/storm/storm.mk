# SPDX-License-Identifier: Apache-2.0
# The whole storm: minutes of kills. `make test` runs a short one (tests/e2e/test_storm.sh).
SEED     ?= $(shell date +%s)
KILLS    ?= 50
.PHONY: storm
storm: all
	tests/storm/storm.sh $(SEED) $(KILLS)
	tests/storm/storm.sh $(SEED) $(KILLS) --daemon
	tests/storm/storm.sh $(SEED) $(KILLS) --stop
#: make storm         50 SIGKILLs at random instants, 50 with the daemon among the victims, 50 with standstills; SEED= KILLS=
