# SPDX-License-Identifier: Apache-2.0
# A store on NFS that two hosts use. Not part of `make test`: a case takes 5 to 30 s, and the kernel's packages (42 MB) are unpacked below
# build/nfs first.
CASES    ?=
.PHONY: nfs
build/nfs/guest: tests/nfs/guest.c
	@mkdir -p $(@D)
	$(Q)$(CC) -std=gnu17 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -o $@ $<
build/nfs/rank: tests/nfs/nfs_rank.c build/libckpt.so | build/nfs/guest
	$(Q)$(CC) -std=gnu17 -O1 -Wall -Wextra -Werror -I. -o $@ $< -Lbuild -lckpt
nfs: all build/nfs/guest build/nfs/rank
	@tests/nfs/nfs.sh $(CASES)
#: make nfs           two hosts and an NFS server in User-mode Linux, with the programs of build/; CASES='reader doctor' for some
