# SPDX-License-Identifier: Apache-2.0
# The whole storm: minutes of kills. `make test` runs a short one (tests/e2e/test_storm.sh).
SEED     ?= $(shell date +%s)
KILLS    ?= 50
.PHONY: storm
build/average_check: build/obj/release/tests/storm/average_check.o build/obj/release/tests/trainer/model.o build/obj/release/tests/trainer/corpus.o build/obj/release/ema.a build/obj/release/base.a
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $^ $(LIBS.ema) $(LIBS.base) -lm
CFLAGS.average_check := -ffp-contract=off
rigs: build/average_check
storm: all build/average_check
	tests/storm/storm.sh $(SEED) $(KILLS)
	tests/storm/storm.sh $(SEED) $(KILLS) --daemon
	tests/storm/storm.sh $(SEED) $(KILLS) --stop
	tests/storm/storm.sh $(SEED) $(KILLS) --device
	tests/storm/storm.sh $(SEED) $(KILLS) --daemon --device
	tests/storm/storm.sh $(SEED) $(KILLS) --stop --device
#: make storm         50 SIGKILLs at random instants, 50 with the daemon among the victims, 50 with standstills; all on a GPU, too; SEED= KILLS=
