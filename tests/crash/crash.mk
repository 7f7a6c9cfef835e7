# SPDX-License-Identifier: Apache-2.0
# Memory that runs out: tests/unit/test_store_faults.c stands between the store and the allocator.
$(O)/unit/store_faults: LDFLAGS += -Wl,--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=reallocarray
