# SPDX-License-Identifier: Apache-2.0
# What the tests of power, clock and limits run besides the programs; and many power cuts in a row.
POWER_RIGS := build/rig/power_off build/rig/nosync.so build/rig/clock_shim.so
SEED     ?= $(shell date +%s)
CYCLES   ?= 50
.PHONY: power rigs
rigs: $(POWER_RIGS) $(WITHOUT)
build/rig/power_off: build/obj/release/tests/power/power_off.o build/obj/release/io.a build/obj/release/base.a
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $^ $(LIBS.io) $(LIBS.base)
build/rig/%.so: build/obj/release/tests/power/%.o
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -o $@ $< -ldl
.SECONDARY: $(POWER_RIGS:build/rig/%.so=build/obj/release/tests/power/%.o)
power: all $(POWER_RIGS)
	tests/power/power.sh $(SEED) $(CYCLES) ext4 xfs
#: make power         50 power cuts on ext4 and as many on XFS while a job saves (as root); SEED= CYCLES=
