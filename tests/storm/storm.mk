# SPDX-License-Identifier: Apache-2.0
# The whole storm: minutes of kills. `make test` runs a short one (tests/e2e/test_storm.sh).
SEED     ?= $(shell date +%s)
KILLS    ?= 50
.PHONY: storm
build/storm_check: $(patsubst %,build/obj/release/tests/%.o,storm/storm_check storm/step_files trainer/model trainer/events trainer/corpus trainer/train_args) build/obj/release/base.a
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $^ $(LIBS.base) -lm
CFLAGS.storm_check := -ffp-contract=off
rigs: build/storm_check
storm: all build/storm_check
	tests/storm/storm.sh $(SEED) $(KILLS)
	tests/storm/storm.sh $(SEED) $(KILLS) --daemon
	tests/storm/storm.sh $(SEED) $(KILLS) --stop
	tests/storm/storm.sh $(SEED) $(KILLS) --device
	tests/storm/storm.sh $(SEED) $(KILLS) --daemon --device
	tests/storm/storm.sh $(SEED) $(KILLS) --stop --device
#: make storm         50 SIGKILLs at random instants, 50 with the daemon among the victims, 50 with standstills; all on a GPU, too; SEED= KILLS=
