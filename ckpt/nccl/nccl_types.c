// SPDX-License-Identifier: Apache-2.0
// nccl_types.c - are the declarations of nccl_library.h those of nccl.h? Compared by the compiler
// where NCCL's header and the toolkit's are installed; elsewhere this file is empty.
#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wundef"
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#include <nccl.h>
#pragma GCC diagnostic pop
#include "ckpt/nccl/nccl_library.h"
#include <assert.h>

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION_MIN, "nccl.h is older than what we need");

#undef NCCL_RC
#undef NCCL_ID
#undef NCCL_CONFIG
#undef NCCL_TYPE
#define NCCL_RC ncclResult_t
#define NCCL_ID ncclUniqueId
#define NCCL_CONFIG ncclConfig_t
#define NCCL_TYPE ncclDataType_t
#define NCCL_SAME(member, symbol, result, args) \
	typedef result(*member##_as_here) args; \
	static_assert(__builtin_types_compatible_p(member##_as_here, __typeof__(&symbol)), #symbol);
NCCL_CALLS(NCCL_SAME)

static_assert(sizeof(struct nccl_id) == sizeof(ncclUniqueId) &&
		      NCCL_ID_BYTES == NCCL_UNIQUE_ID_BYTES,
	      "ncclUniqueId");
static_assert(sizeof(ncclResult_t) == sizeof(nccl_rc) && sizeof(ncclDataType_t) == sizeof(int),
	      "enumerations are as long as int");
#define SAME_FIELD(field)                                                                     \
	static_assert(offsetof(struct nccl_config, field) == offsetof(ncclConfig_t, field) && \
			      sizeof((struct nccl_config){ 0 }.field) ==                      \
				      sizeof((ncclConfig_t){ 0 }.field),                      \
		      "ncclConfig_t." #field)
SAME_FIELD(size);
SAME_FIELD(magic);
SAME_FIELD(version);
SAME_FIELD(blocking);
static_assert((int)NCCL_OK == (int)ncclSuccess, "ncclSuccess");
static_assert((int)NCCL_REMOTE_ERROR == (int)ncclRemoteError, "ncclRemoteError");
static_assert((int)NCCL_IN_PROGRESS == (int)ncclInProgress, "ncclInProgress");
static_assert((int)NCCL_UINT8 == (int)ncclUint8, "ncclUint8");
#else
typedef int without_nccl; /* ISO C wants a declaration */
#endif
