# SPDX-License-Identifier: Apache-2.0
# One non-recursive makefile. A room's sources are all .c files in its folder; each room is an archive, and a program links only the archives that the
# dependency law (README, "The house") allows its room: an arrow that points up does not link.
#
#   make                build/ckptctl build/ckptd build/libckpt.so build/trainer
#   make V=release|asan|tsan ...   the variant; asan is ASan + UBSan
#   make unit-NAME      build and run tests/unit/test_NAME.c in variant V

V        ?= release
CC       ?= gcc
O        := build/obj/$(V)
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Werror
OPT.release := -O2 -g -D_FORTIFY_SOURCE=2
OPT.asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT.tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
CFLAGS   += -std=gnu17 -D_GNU_SOURCE -I. -fPIC -fvisibility=hidden -fstack-protector-strong $(OPT.$(V)) $(WARN) -MMD -MP
LDFLAGS  += $(filter -fsanitize%,$(OPT.$(V))) -Wl,-z,relro,-z,now,-z,noexecstack -pthread

# The rooms, lowest first, and what each may use besides itself.
ROOMS    := base layout table io plan store native move device client daemon cli
DIR.base := ckpt/base
DIR.layout := ckpt/layout
DIR.table := ckpt/table
DIR.io := ckpt/io
DIR.plan := ckpt/plan
DIR.store := ckpt/store
DIR.native := formats/native
DIR.move := ckpt/move
DIR.device := ckpt/device
DIR.client := ckpt/client
DIR.daemon := daemon
DIR.cli := ckpt/cli
USES.base :=
USES.layout := base
USES.table := layout base
USES.io := base
USES.plan := table layout base
USES.native := table layout base
USES.store := native table layout io base
USES.move := native plan io table layout base
USES.device := base
USES.client := device table layout base
USES.daemon := move store native plan io table device layout base
USES.cli := move store native plan io table layout base
LIBS.io := -luring
LIBS.base := -lisal
LIBS.cli := -ljansson

all: build/ckptctl build/ckptd build/libckpt.so build/trainer

define room
SRC.$(1) := $$(filter-out %/main.c,$$(wildcard $$(DIR.$(1))/*.c))
OBJ.$(1) := $$(SRC.$(1):%.c=$(O)/%.o)
$(O)/$(1).a: $$(OBJ.$(1))
	@rm -f $$@
	$$(AR) rcs $$@ $$^
ARCH.$(1) := $(O)/$(1).a $$(USES.$(1):%=$(O)/%.a)
LINK.$(1) = $$(ARCH.$(1)) $$(sort $$(foreach r,$(1) $$(USES.$(1)),$$(LIBS.$$(r))))
endef
$(foreach r,$(ROOMS),$(eval $(call room,$(r))))

$(O)/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(CFLAGS.$(basename $(notdir $<))) -c -o $@ $<
CFLAGS.hash_avx2 := -mavx2
CFLAGS.hash_avx512 := -mavx2 -mavx512f -mavx512vl -mavx512bw -mavx512dq

build/ckptctl: $(O)/ckpt/cli/main.o $(ARCH.cli)
	$(CC) $(LDFLAGS) -pie -o $@ $< $(LINK.cli)
build/ckptd: $(O)/daemon/main.o $(ARCH.daemon)
	$(CC) $(LDFLAGS) -pie -o $@ $< $(LINK.daemon)
build/libckpt.so: $(ARCH.client) ckpt/client/libckpt.map
	$(CC) $(LDFLAGS) -shared -Wl,-soname,libckpt.so.0 -Wl,--version-script=ckpt/client/libckpt.map -Wl,--no-undefined \
		-o $@ -Wl,--whole-archive $(O)/client.a -Wl,--no-whole-archive $(filter-out $(O)/client.a,$(ARCH.client))
	@ln -sf libckpt.so build/libckpt.so.0
build/trainer: $(patsubst %.c,$(O)/%.o,$(wildcard tests/trainer/*.c)) build/libckpt.so
	$(CC) $(LDFLAGS) -pie -o $@ $(filter %.o,$^) -Lbuild -lckpt -Wl,-rpath,'$$ORIGIN' -lm

# tests/unit/test_ROOM_subject.c (or test_ROOM.c) links what ROOM may use, and cmocka.
UNIT     := $(patsubst tests/unit/test_%.c,%,$(wildcard tests/unit/test_*.c))
unit_room = $(firstword $(subst _, ,$(1)))
define unit
$(O)/unit/$(1): $(O)/tests/unit/test_$(1).o $(ARCH.$(call unit_room,$(1)))
	@mkdir -p $$(@D)
	$$(CC) $$(LDFLAGS) -o $$@ $$< $$(LINK.$(call unit_room,$(1))) -lcmocka -lm
unit-$(1): $(O)/unit/$(1)
	$$<
endef
$(foreach u,$(UNIT),$(eval $(call unit,$(u))))

.PHONY: all
-include $(shell find build/obj -name '*.d' 2>/dev/null)
