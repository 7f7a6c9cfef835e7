# SPDX-License-Identifier: Apache-2.0
# One non-recursive makefile. A room's sources are all .c files in its folder; each room is an archive, and a program links only the
# archives that the dependency law allows its room: an arrow that points up does not link. CONTRIBUTING.md has the map of the rooms.
# `make help` lists the targets; Q= shows the commands.

V        ?= release
ifeq ($(origin CC),default)
CC       := $(if $(filter clang fuzz,$(V)),clang,gcc)
endif
O        := build/obj/$(V)
B        := $(if $(filter release,$(V)),build,build/$(V))
Q        := @
# A compiler cache, where one is installed; CACHE= for none.
CACHE    ?= $(if $(filter coverage,$(V)),,$(shell command -v ccache))
WARN     := -Wall -Wextra -Wshadow -Wconversion -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wundef -Werror
OPT.release := -O2 -g -D_FORTIFY_SOURCE=2
OPT.clang := $(OPT.release)
OPT.asan := -O1 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
OPT.fuzz := $(OPT.asan) -fsanitize=fuzzer-no-link
OPT.tsan := -O1 -g1 -fsanitize=thread -fno-omit-frame-pointer
OPT.coverage := -O0 -g --coverage -fprofile-update=atomic
OPT.mutant := -O1 -g1 -DCKPT_MUTANTS
ifeq ($(OPT.$(V)),)
$(error V=$(V) is none of release, asan, tsan, clang, fuzz, coverage, mutant)
endif
CFLAGS   += -std=gnu17 -D_GNU_SOURCE -I. -ffile-prefix-map='$(CURDIR)'=. -fPIC -fvisibility=hidden -fstack-protector-strong $(OPT.$(V)) $(WARN) -MMD -MP
LDFLAGS  += $(filter -fsanitize% --coverage,$(OPT.$(V))) -Wl,-z,relro,-z,now,-z,noexecstack -pthread

# The rooms, lowest first, and what each may use besides itself; LINKS are rooms that the used ones need: they are linked, and
# the room neither includes their headers nor calls them. tests/law reads these lines.
ROOMS    := base ema wire layout table io coding json format plan redist spread native safetensors registry store move engine draw answer output host device nccl client daemon cli
DIR.base := ckpt/base
DIR.ema  := ema
DIR.wire := ckpt/wire
DIR.layout := ckpt/layout
DIR.table := ckpt/table
DIR.io := ckpt/io
DIR.coding := ckpt/coding
DIR.plan := ckpt/plan
DIR.redist := ckpt/redist
DIR.spread := ckpt/spread
DIR.store := ckpt/store
DIR.format := formats
DIR.native := formats/native
DIR.json := formats/json
DIR.safetensors := formats/safetensors
DIR.registry := formats/registry
DIR.move := ckpt/move
DIR.engine := ckpt/engine
DIR.draw := ckpt/draw
DIR.answer := ckpt/answer
DIR.output := ckpt/output
DIR.host := ckpt/host
DIR.device := ckpt/device
DIR.nccl := ckpt/nccl
DIR.client := ckpt/client
DIR.daemon := daemon
DIR.cli := ckpt/cli
USES.base :=
USES.ema := base
USES.wire := base
USES.layout := base
USES.table := layout base
USES.io := base
USES.coding := base
USES.plan := table layout base
USES.redist := plan layout base
LINKS.redist := table
USES.spread := plan table layout base
USES.format := table layout base
USES.native := format table layout base
USES.json := base
USES.safetensors := json format table layout base
USES.registry := safetensors native format table layout base
LINKS.registry := json
USES.store := format table layout io base
USES.move := format plan coding io table layout base
USES.engine := move format plan coding io table layout ema base
USES.draw := redist plan table layout base
USES.answer := draw redist engine move format plan coding io table layout base
USES.output := draw layout base
LINKS.output := redist plan table
USES.host := wire store format table layout io base
USES.device := base
USES.nccl := wire spread device plan table layout base
USES.client := wire device table layout ema base
USES.daemon := wire engine move store native format spread plan coding io table device layout ema base
USES.cli := wire host output answer draw redist engine move store registry safetensors format plan coding io table layout ema base
LINKS.cli := json native
# Libraries besides libc and pthread: the rooms named here are the only ones that include their headers. They are linked statically where their
# archive is there, so that the programs run on machines that do not have them (`make wheel`).
static   = $(if $(filter /%,$(shell $(CC) -print-file-name=lib$(1).a)),-l:lib$(1).a,-l$(1))
LIBS.io := $(call static,uring)
LIBS.coding := $(call static,z) $(call static,zstd)
LIBS.ema := -lm
LIBS.draw := -lm
LIBS.engine := -lm
LIBS.answer := $(call static,jansson) -lm
LIBS.output := $(call static,jansson) -lm
LIBS.cli := -lm

all: $(B)/ckptctl $(B)/ckptd $(B)/libckpt.so $(B)/libckpt-nccl.so $(B)/trainer $(if $(filter release,$(V)),$(B)/share/.made)

reverse = $(if $(1),$(call reverse,$(wordlist 2,$(words $(1)),$(1))) $(firstword $(1)))
define room
SRC.$(1) := $$(filter-out %/ckptctl.c %/ckptd.c,$$(wildcard $$(DIR.$(1))/*.c))
OBJ.$(1) := $$(SRC.$(1):%.c=$(O)/%.o)
$(O)/$(1).a: $$(OBJ.$(1)) $(O)/$(1).list
	$$(Q)rm -f $$@
	$$(Q)$$(AR) rcs $$@ $$(OBJ.$(1))
ARCH.$(1) := $$(foreach r,$$(call reverse,$$(ROOMS)),$$(patsubst %,$(O)/%.a,$$(filter $$(r),$(1) $$(USES.$(1)) $$(LINKS.$(1)))))
LINK.$(1) = $$(ARCH.$(1)) $$(sort $$(foreach r,$(1) $$(USES.$(1)) $$(LINKS.$(1)),$$(LIBS.$$(r))))
endef
$(foreach r,$(ROOMS),$(eval $(call room,$(r))))

# A file that holds TEXT and is touched only when TEXT changes: other flags recompile, a source that went away leaves its archive.
stamp = $(if $(if $(wildcard $(1)),,missing)$(filter-out $(strip $(2)),$(strip $(file <$(1))))$(filter-out $(strip $(file <$(1))),$(strip $(2))),$(shell mkdir -p $(dir $(1)))$(file >$(1),$(2)))
ifeq ($(filter clean help deps demo golden test test-frameworks check bench bench-frameworks bench-results tidy law-data uninstall,$(MAKECMDGOALS)),)
$(call stamp,$(O)/flags,$(CC) $(CFLAGS))
$(foreach r,$(ROOMS),$(call stamp,$(O)/$(r).list,$(SRC.$(r)) $(LIBS.$(r))))
endif
$(O)/flags $(ROOMS:%=$(O)/%.list): ;

$(O)/%.o: %.c $(O)/flags | build/.deps-build
	@mkdir -p $(@D)
	@echo "  CC $(if $(filter-out release,$(V)),$(V) )$<"
	$(Q)$(CACHE) $(CC) $(CFLAGS) $(CFLAGS.$(basename $(notdir $<))) -c -o $@ $<
CFLAGS.hash_avx2 := -mavx2
CFLAGS.hash_avx512 := -mavx2 -mavx512f -mavx512vl -mavx512bw -mavx512dq
CFLAGS.round_avx2 := -mavx2 -mf16c
CFLAGS.round_avx512 := $(CFLAGS.hash_avx512)
# A decay has the same bits whatever the processor can do.
CFLAGS.wide := -ffp-contract=off
CFLAGS.schedule := -ffp-contract=off
# What an average becomes is the same everywhere: a product and a sum are two roundings where kernel.h says so.
CFLAGS.kernel := -ffp-contract=off
CFLAGS.kernel_avx2 := -mavx2 -mfma -mf16c -ffp-contract=off
CFLAGS.kernel_avx512 := $(CFLAGS.hash_avx512) -mfma -ffp-contract=off
CFLAGS.test_ema_kernel := -ffp-contract=off
# Where the CUDA toolkit's headers are, if they are installed: cuda_types.c compares ours with them.
CUDA_HOME ?= /usr/local/cuda
CFLAGS.cuda_types := -isystem $(CUDA_HOME)/include
CFLAGS.nccl_types := $(CFLAGS.cuda_types)

# A CUDA driver without a GPU (tests/fakecuda): LD_LIBRARY_PATH=build/fakecuda.
# `trainer --device fake` opens it beside itself.
FAKECUDA := $(B)/fakecuda/libcuda.so.1
$(FAKECUDA): $(patsubst %.c,$(O)/%.o,$(wildcard tests/fakecuda/*.c))
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ -lm
# What ranks with GPUs load besides, for ckpt_restore over NCCL.
$(B)/libckpt-nccl.so: $(ARCH.nccl) ckpt/nccl/libckpt-nccl.map
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libckpt-nccl.so -Wl,--version-script=ckpt/nccl/libckpt-nccl.map \
		$(if $(filter release,$(V)),-Wl$(comma)--no-undefined) -o $@ -Wl,--whole-archive $(O)/nccl.a -Wl,--no-whole-archive $(filter-out $(O)/nccl.a,$(ARCH.nccl))
# NCCL without GPUs (tests/fakenccl), beside it.
FAKENCCL := $(B)/fakenccl/libnccl.so.2
$(FAKENCCL): $(patsubst %.c,$(O)/%.o,$(wildcard tests/fakenccl/*.c))
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libnccl.so.2 -o $@ $^
TRAINER  := $(patsubst %.c,$(O)/%.o,$(wildcard tests/trainer/*.c))
$(O)/tests/trainer/gpu.o: tests/trainer/kernels.ptx
$(B)/ckptctl: $(O)/ckpt/cli/ckptctl.o $(ARCH.cli)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $< $(LINK.cli)
$(B)/ckptd: $(O)/daemon/ckptd.o $(ARCH.daemon)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $< $(LINK.daemon)
$(B)/libckpt.so: $(ARCH.client) ckpt/client/libckpt.map
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -shared -Wl,-soname,libckpt.so.0 -Wl,--version-script=ckpt/client/libckpt.map $(if $(filter release,$(V)),-Wl$(comma)--no-undefined) \
		-o $@ -Wl,--whole-archive $(O)/client.a -Wl,--no-whole-archive $(filter-out $(O)/client.a,$(ARCH.client))
	$(Q)ln -sf libckpt.so $(B)/libckpt.so.0
$(B)/trainer: $(TRAINER) $(B)/libckpt.so | $(FAKECUDA) $(FAKENCCL)
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $(TRAINER) -L$(B) -lckpt -Wl,-rpath,'$$ORIGIN' -lm
comma    := ,
define newline


endef
# Man pages and completions: made from the programs, so that installing needs nothing but copying.
$(B)/share/.made: $(B)/ckptctl $(B)/ckptd ckpt/ckpt.h $(wildcard docs/man_*.awk) docs/install.sh
	$(Q)docs/install.sh pages $(B) $(B)/share
	$(Q)touch $@

# Where `make install` puts things. DESTDIR comes before all of them and is remembered nowhere.
PREFIX   ?= /usr/local
BINDIR   ?= $(PREFIX)/bin
LIBDIR   ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
DATADIR  ?= $(PREFIX)/share
MANDIR   ?= $(DATADIR)/man
DOCDIR   ?= $(DATADIR)/doc/ckptd
BASHCOMPDIR ?= $(DATADIR)/bash-completion/completions
ZSHCOMPDIR ?= $(DATADIR)/zsh/site-functions
FISHCOMPDIR ?= $(DATADIR)/fish/vendor_completions.d
INSTALL_DIRS := PREFIX BINDIR LIBDIR INCLUDEDIR DATADIR MANDIR DOCDIR BASHCOMPDIR ZSHCOMPDIR FISHCOMPDIR DESTDIR
install: all $(B)/share/.made
	$(Q)$(foreach d,$(INSTALL_DIRS),$(d)='$($(d))') docs/install.sh install $(B) $(B)/share
uninstall:
	$(Q)$(foreach d,$(INSTALL_DIRS),$(d)='$($(d))') docs/install.sh uninstall

# The Python package with the library and the programs in it, for pip: build/wheel/ckptd-VERSION-py3-none-manylinux_X_Y_ARCH.whl.
wheel: $(B)/libckpt.so $(B)/libckpt-nccl.so $(B)/ckptd $(B)/ckptctl
	$(Q)python3 python/backend.py $(B)/wheel

# tests/unit/test_ROOM_SUBJECT.c: all files of a room are one program (tests/lib/unit.h), which links what ROOM may use, and cmocka. A file
# that takes the place of a part of the product, or of the system under it, is a program of its own.
UNIT     := $(patsubst tests/unit/test_%.c,%,$(wildcard tests/unit/test_*.c))
APART    := cli_faults cli_foreign client_daemons daemon_cuda daemon_turned device_cuda device_driver daemon_release move_memory native_memory wire_calls wire_last wire_shared
unit_room = $(firstword $(subst _, ,$(1)))
UNIT_ROOMS := $(sort $(foreach u,$(UNIT),$(call unit_room,$(u))))
# What several tests use, and their main; what those of one room use; what takes the place of functions of the C library, and where.
TEST_LIB := $(patsubst %.c,$(O)/%.o,$(filter-out %/without.c %/libc.c %/cli_rig.c,$(wildcard tests/lib/*.c)))
RIG.store := $(patsubst %.c,$(O)/%.o,$(wildcard tests/crash/*.c))
RIG.cli  := $(O)/tests/lib/cli_rig.o
OWN_LIBC := $(O)/tests/lib/libc.o
HAS_OWN_LIBC := io store native_memory move_memory cli cli_faults cli_foreign
$(O)/tests.a: $(TEST_LIB)
	$(Q)rm -f $@
	$(Q)$(AR) rcs $@ $(TEST_LIB)
$(TEST_LIB) $(RIG.store) $(RIG.cli): | build/.deps-test
# The tests of a room that need a room above it, or beside it: those of the daemon have a trainer in the same process;
# those of move and cli write parts as the daemon does (daemon/part_file.h).
BESIDE.daemon := $(O)/client.a $(O)/nccl.a
BESIDE.move := $(O)/daemon.a $(O)/native.a
BESIDE.cli := $(O)/daemon.a
BESIDE.store := $(O)/native.a
BESIDE.engine := $(O)/native.a
define unit
UNIT_OBJ.$(1) := $(2:%=$(O)/tests/unit/test_%.o) $(RIG.$(call unit_room,$(1))) $(if $(filter $(1),$(HAS_OWN_LIBC)),$(OWN_LIBC))
$(O)/unit/$(1): $$(UNIT_OBJ.$(1)) $(O)/tests.a $(BESIDE.$(call unit_room,$(1))) $(ARCH.$(call unit_room,$(1)))
	@mkdir -p $$(@D)
	$$(Q)$$(CC) $$(LDFLAGS) -o $$@ $$(UNIT_OBJ.$(1)) $(O)/tests.a $(BESIDE.$(call unit_room,$(1))) $$(LINK.$(call unit_room,$(1))) -lcmocka -lm
unit-$(1): $(O)/unit/$(1)
	$$< $$(CASE:%='%')
endef
define subject
$(O)/unit/$(1): $(O)/unit/$(call unit_room,$(1))
	$$(Q)ln -sf $$(<F) $$@
unit-$(1): $(O)/unit/$(1)
	$$< $$(CASE:%='%')
endef
$(foreach r,$(UNIT_ROOMS),$(eval $(call unit,$(r),$(filter-out $(APART),$(filter $(r)_%,$(UNIT))))))
$(foreach u,$(APART),$(eval $(call unit,$(u),$(u))))
$(foreach u,$(filter-out $(APART),$(UNIT)),$(eval $(call subject,$(u))))
# These tests wait more than they compute: with a sanitizer half the time to compile them is worth
# more than their speed.
ifneq ($(filter asan tsan,$(V)),)
$(foreach u,$(filter-out daemon_average daemon_turned,$(filter daemon_% cli_% client_% io_%,$(UNIT))),$(eval CFLAGS.test_$(u) := -O0))
endif
CFLAGS.test_device_cuda := -DFAKECUDA='"$(FAKECUDA)"'
CFLAGS.test_daemon_cuda += $(CFLAGS.test_device_cuda)
CFLAGS.test_daemon_turned += $(CFLAGS.test_device_cuda)
CFLAGS.test_daemon_replicas += $(CFLAGS.test_device_cuda)
CFLAGS.test_device_driver := $(CFLAGS.test_device_cuda)
$(O)/unit/device_cuda $(O)/unit/device_driver $(O)/unit/daemon_cuda $(O)/unit/daemon_turned $(O)/unit/daemon_replicas: | $(FAKECUDA)
CFLAGS.test_nccl_transport := $(CFLAGS.test_device_cuda) -DFAKENCCL='"$(FAKENCCL)"'
$(O)/unit/nccl: | $(FAKECUDA) $(FAKENCCL)
# It compares its table of calls with what the library exports.
CFLAGS.test_daemon_calls += -DLIBCKPT='"$(B)/libckpt.so"'
$(O)/unit/daemon: | $(B)/libckpt.so $(O)/unit/libckpt-nccl.so $(FAKECUDA) $(FAKENCCL)
$(O)/unit/libckpt-nccl.so: $(B)/libckpt-nccl.so
	@mkdir -p $(@D)
	$(Q)ln -sf $(abspath $<) $@
CFLAGS.test_daemon_nccl += -DFAKECUDA='"$(FAKECUDA)"' -DFAKENCCL='"$(FAKENCCL)"'
$(UNIT:%=$(O)/tests/unit/test_%.o): | build/.deps-test

# `make test` runs every unit with ASan and UBSan, and those where several threads meet with TSan. Without a sanitizer it runs those whose
# draws sanitizers scale down, or that look at times, in the variant V=mutant with no mistake chosen, because the mistakes need these
# programs anyway; RELEASED ones as people get them (V=release). test_without.sh runs those of REDUCED where features of the kernel are
# missing, also without a sanitizer. `make torture RIGS=variants` runs the rest, and all of them with V=release.
THREADED := $(filter-out move_subset,$(filter base_thread% device_cuda io_queue% move_% engine_sink daemon% client% wire%,$(UNIT)))
RELEASED := base_hash io_ops io_queue io_xfer
REDUCED  := io_ops io_queue io_probe io_xfer store_commit store_claim store_scan move_view move_part move_write daemon_inprocess cli_export
PLAIN    := $(filter base_thread io_faults store_crash store_faults store_power move_part move_write move_rot move_layouts move_window \
	move_subset table_view wire_shared wire_last client_canary daemon_boxes daemon_faults daemon_hostile daemon_launches cli_faults native_read \
	layout_properties redist_own safetensors_read safetensors_write,$(UNIT))
RACING   := $(filter-out daemon_drift move_rot move_damage move_part move_partial move_memory move_forged move_view move_padding move_cast move_reduce \
	move_layouts,$(THREADED))

# tests/fuzz/fuzz_X.c: in `make test` with a driver of our own, in `make fuzz-X` with libFuzzer (ARGS= goes to it).
FUZZ     := $(patsubst tests/fuzz/fuzz_%.c,%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_ROOMS := cli daemon client device spread $(USES.cli) $(LINKS.cli)
FUZZ_MAIN = $(if $(filter fuzz,$(V)),,$(O)/tests/fuzz/driver.o)
$(FUZZ:%=$(O)/fuzz/%): $(O)/fuzz/%: $(O)/tests/fuzz/fuzz_%.o $(FUZZ_MAIN) $(O)/tests.a $(FUZZ_ROOMS:%=$(O)/%.a)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) $(if $(filter fuzz,$(V)),-fsanitize=fuzzer) -o $@ $(filter %.o,$^) \
		-Wl,--start-group $(O)/tests.a $(FUZZ_ROOMS:%=$(O)/%.a) -Wl,--end-group $(sort $(foreach r,$(FUZZ_ROOMS),$(LIBS.$(r)))) -lm
.SECONDARY: $(FUZZ:%=$(O)/tests/fuzz/fuzz_%.o)
$(FUZZ:%=fuzz-%): fuzz-%: build/.deps-tidy
	$(MAKEJ) V=fuzz build/obj/fuzz/fuzz/$*
	@mkdir -p build/fuzz/$*
	build/obj/fuzz/fuzz/$* -artifact_prefix=build/fuzz/ $(ARGS) build/fuzz/$* $(wildcard tests/fuzz/corpus/$*)

# What the recipes below build by a second make, in parallel unless the first one was told a number.
MAKEJ    = +$(Q)$(MAKE) --no-print-directory $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

units: $(UNIT:%=$(O)/unit/%)
units-threaded: $(THREADED:%=$(O)/unit/%)
objects: $(foreach r,$(ROOMS),$(OBJ.$(r))) $(TRAINER) $(O)/tests/storm/storm_check.o $(O)/tests/storm/step_files.o $(UNIT:%=$(O)/tests/unit/test_%.o) $(TEST_LIB) $(RIG.store) $(RIG.cli) $(OWN_LIBC) $(O)/daemon/ckptd.o $(O)/ckpt/cli/ckptctl.o \
	$(FUZZ:%=$(O)/tests/fuzz/fuzz_%.o) $(O)/tests/fuzz/driver.o $(patsubst %.c,$(O)/%.o,$(wildcard tests/bench/*.c))

SCRIPTS  := $(sort $(wildcard tests/law/test_*.sh tests/python/test_*.sh tests/cli/test_*.sh tests/e2e/test_*.sh tests/mutants/test_*.sh))

# What `make test` runs, in the words of tests/run.sh: all, or TESTS='asan:store_find script:tests/e2e/test_tour.sh'; and what these need.
TESTS    ?= $(SCRIPTS:%=script:%) $(RACING:%=tsan:%) $(UNIT:%=asan:%) $(PLAIN:%=plain:%) $(RELEASED:%=unit:%) $(FUZZ:%=fuzz:%)
unexport TESTS
# As many at once as make was told; otherwise tests/run.sh decides.
JOBS = $(patsubst -j%,TEST_JOBS=%,$(filter-out -j,$(filter -j%,$(MAKEFLAGS))))
of = $(patsubst $(1):%,%,$(filter $(1):%,$(TESTS)))
NEED.release = $(if $(call of,script),all rigs) $(patsubst %,build/obj/release/unit/%,$(call of,unit))
NEED.asan = $(patsubst %,build/obj/asan/unit/%,$(call of,asan)) $(patsubst %,build/obj/asan/fuzz/%,$(call of,fuzz))
NEED.tsan = $(patsubst %,build/obj/tsan/unit/%,$(call of,tsan))
NEED.mutant = $(patsubst %,build/obj/mutant/unit/%,$(call of,plain) $(if $(filter %/test_without.sh %/test_golden.sh,$(call of,script)),$(REDUCED)) $(if $(filter %/test_golden.sh,$(call of,script)),cli_foreign)) \
	$(if $(filter %/test_mutants.sh,$(call of,script)),mutant-rigs)
test: build/.deps-test
	$(foreach v,release asan tsan mutant,$(if $(strip $(NEED.$(v))),$(MAKEJ) -s V=$(v) MUTANTS=FAST $(NEED.$(v))$(newline)))
	@$(JOBS) env -u SCALE tests/run.sh $(TESTS)

# All units of a room, or of all rooms, as they are after a change: a tenth of the draws and of the states of a disk.
CHECKED  = $(if $(ROOM),$(foreach r,$(ROOM),$(or $(filter $(r)_%,$(UNIT)),$(error ROOM=$(r) has no units; there are: $(UNIT_ROOMS)))),$(UNIT))
SCALE    ?= 10
check: build/.deps-test
	$(MAKEJ) -s V=release $(CHECKED:%=build/obj/release/unit/%)
	@$(JOBS) SCALE=$(SCALE) tests/run.sh $(CHECKED:%=unit:%)

# What people read on the terminal, as tests/golden has it: written anew, and gone where no test asks for it.
golden: build/.deps-test
	$(MAKEJ) -s $(O)/unit/cli $(O)/unit/cli_foreign
	@rm -rf tests/golden
	@for u in cli cli_foreign; do GOLDEN=tests/golden $(O)/unit/$$u || exit; done >build/golden.log 2>&1 || { grep -v '  OK \]\|RUN  ' build/golden.log; exit 1; }
	@git status --short tests/golden

demo: build/.deps-build
	$(MAKEJ) all
	@tests/demo/demo.sh
bench: build/.deps-bench
	$(MAKEJ) all
	@tests/bench/run.sh
bench-results: build/.deps-bench build/.deps-frameworks
	$(MAKEJ) all build/ckptbench
	@tests/bench/record.sh
bench-frameworks: build/.deps-frameworks
	$(MAKEJ) all build/ckptbench
	@tests/bench/frameworks.sh
tidy: build/.deps-tidy
	@tests/tidy

# Real torch. TORCH=2.4.1 for that version, in a venv of its own; TESTS='torch:matrix' for some.
test-frameworks: build/.deps-build
	$(MAKEJ) all $(FAKECUDA) $(FAKENCCL)
	@env -u SCALE TORCH=$(TORCH) tests/frameworks/run.sh $(if $(filter command line environment,$(origin TESTS)),$(TESTS))

# What is missing is installed by `make deps`, `make demo` and `make test`; a plain `make` only says so.
deps:
	@.ci/deps install all
INSTALLING := $(filter demo golden test test-frameworks check torture coverage bench bench-frameworks bench-results tidy fuzz-%,$(MAKECMDGOALS))
build/.deps-%: .ci/deps
	@.ci/deps $(if $(INSTALLING),install,check) $*
	@mkdir -p build && touch $@

# For tests/law: one line a room: its name, folder, what it may use; and one for what it only links.
law-data:
	@$(foreach r,$(ROOMS),echo "room $(r) $(DIR.$(r)) $(USES.$(r))"; echo "links $(r) $(LINKS.$(r))";)

clean:
	rm -rf build
help:
	@sed -n 's/^#: //p' Makefile tests/*/*.mk
#: make               build/ckptctl build/ckptd build/libckpt.so build/libckpt-nccl.so build/trainer
#: make demo          train, kill, resume on other meshes: the whole product in a minute
#: make check         every unit test, quickly: after each change; ROOM=store for those of one room, SCALE=1 for all their draws
#: make test          every test; TESTS='asan:io_queue script:tests/e2e/test_tour.sh' for some (tests/run.sh)
#: make bench         what it costs, as ratios against what the machine can do: build/bench.json (ROWS='stall* sums_cpu': these rows)
#: make bench-frameworks  the same beside PyTorch, which comes into build/venv (5 GB)
#: make bench-results  rows of both, kept as a section of docs/results/README.md (tests/bench/record.sh)
#: make test-frameworks  the Python package with real PyTorch, which comes into build/venv (5 GB); TORCH=2.4.1 for that version, SEED= for its draws
#: make tidy          clang-format, and gcc and clang with all warnings as errors
#: make deps          install what all of the above needs (apt; elsewhere it prints what to install)
#: make install       programs, library, manual pages, completions below PREFIX=/usr/local; DESTDIR= for packages
#: make uninstall     remove exactly what that put there
#: make wheel         the Python package, with library and programs: build/wheel/*.whl
#: make unit-NAME     tests/unit/test_NAME.c, or a room; CASE='a_word*' for some cases; V=asan or V=tsan for the sanitizers
#: make golden        write tests/golden anew: what ckptctl shows to people; review it with git diff
#: make fuzz-NAME     tests/fuzz/fuzz_NAME.c with libFuzzer, until you stop it; ARGS=-max_total_time=60
#: make clean         remove build/

.PHONY: all clean help wheel deps demo golden test test-frameworks bench bench-frameworks bench-results tidy install uninstall check units units-threaded objects law-data $(UNIT:%=unit-%) $(FUZZ:%=fuzz-%)
-include $(wildcard tests/*/*.mk)
-include $(shell find $(O) -name '*.d' 2>/dev/null)
