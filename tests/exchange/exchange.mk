# SPDX-License-Identifier: Apache-2.0
# What ranks exchange, between real processes: tests/e2e/test_exchange.sh runs it.
EXCHANGE := $(patsubst %.c,$(O)/%.o,$(wildcard tests/exchange/*.c))
$(B)/exchange: $(EXCHANGE) $(O)/spread.a $(ARCH.cli)
	@mkdir -p $(@D)
	$(Q)$(CC) $(LDFLAGS) -pie -o $@ $(EXCHANGE) $(O)/spread.a $(LINK.cli)
rigs: $(B)/exchange
objects: $(EXCHANGE)
