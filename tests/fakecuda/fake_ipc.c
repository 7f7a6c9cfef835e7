// SPDX-License-Identifier: Apache-2.0
// fake_ipc.c - memory that another process opens by a handle (CUDA IPC). See fake_impl.h.
// Invariant: what is open here is mapped once, however often it is opened; it stays when its owner
// dies, unless a test wants it otherwise (FAKECUDA_ORPHANS).
#include "tests/fakecuda/fake_impl.h"
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

struct ipc { /* CUipcMemHandle */
	uint32_t magic;
	int pid, fd, device;
	uint64_t bytes, ino;
	char unused[32];
};
#define IPC_MAGIC 0x43504946u
static_assert(sizeof(struct ipc) == 64, "CUipcMemHandle");

cuda_rc fake_ipc_get(struct ipc *ret, cuda_ptr p)
{
	struct range *r;

	CALL("cuIpcGetMemHandle");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || r->kind != RANGE_DEVICE || r->imported, CUDA_INVALID_VALUE);
	FAIL_IF(flock(r->fd, LOCK_SH) < 0, CUDA_OUT_OF_MEMORY); /* until this process ends */
	*ret = (struct ipc){ .magic = IPC_MAGIC,
			     .pid = getpid(),
			     .fd = r->fd,
			     .device = r->device,
			     .bytes = r->bytes,
			     .ino = r->ino };
	return call_end(CUDA_OK);
}

cuda_rc fake_ipc_open(cuda_ptr *ret, struct ipc of, unsigned flags)
{
	struct range *r;
	char path[64];
	struct stat st;
	int fd;

	CALL("cuIpcOpenMemHandle");
	CONTEXT();
	FAIL_IF(flags != 1 || of.magic != IPC_MAGIC, CUDA_INVALID_VALUE); /* LAZY_ENABLE_PEER */
	FAIL_IF(of.pid == getpid() || of.device != current->device, CUDA_INVALID_CONTEXT);
	for (r = fake.range; r; r = r->next)
		if (r->imported && r->ino == of.ino)
			break;
	if (!r) {
		snprintf(path, sizeof path, "/proc/%d/fd/%d", of.pid, of.fd);
		fd = open(path, O_RDWR | O_CLOEXEC);
		FAIL_IF(fd < 0, CUDA_INVALID_HANDLE); /* its owner is dead, say */
		if (fstat(fd, &st) < 0 || st.st_ino != of.ino) {
			close(fd);
			return call_end(CUDA_INVALID_HANDLE);
		}
		r = range_map(of.device, fd, of.bytes);
		FAIL_IF(!r, CUDA_OUT_OF_MEMORY);
		r->owner = (int)syscall(SYS_pidfd_open, of.pid, 0);
	}
	r->imported++;
	*ret = (uintptr_t)r->base;
	return call_end(CUDA_OK);
}

cuda_rc fake_ipc_close(cuda_ptr p)
{
	struct range *r;

	CALL("cuIpcCloseMemHandle");
	CONTEXT();
	r = range_find((uintptr_t)p, 1);
	FAIL_IF(!r || !r->imported || (uintptr_t)r->base != p, CUDA_INVALID_VALUE);
	if (!--r->imported)
		device_drop(r);
	return call_end(CUDA_OK);
}

/* Whatever its owner had of it is closed. */
static bool is_orphan(const struct range *r)
{
	struct pollfd owner = { .fd = r->owner, .events = POLLIN };

	if (poll(&owner, 1, 0) == 1)
		return true;
	return flock(r->fd, LOCK_EX | LOCK_NB) == 0 && flock(r->fd, LOCK_UN) == 0;
}

void orphan_copied(uint8_t *to, size_t n, const struct range *r, struct CUctx_st *ctx)
{
	if (!is_orphan(r))
		return;
	memset(to, 0xdd, n);
	pthread_mutex_lock(&fake.lock);
	if (fake.orphans == ORPHANS_LOST)
		ctx->sticky = CUDA_ILLEGAL_ADDRESS;
	pthread_mutex_unlock(&fake.lock);
}
