// SPDX-License-Identifier: Apache-2.0
//
// Copies past the caches: for results that are larger than a cache holds. A line that is written
// whole is not read from memory first, and nothing that is still needed makes room for it.
#ifndef INCCL_COMPRESS_KERNELS_STREAM_H_
#define INCCL_COMPRESS_KERNELS_STREAM_H_

#include <cstddef>

namespace inccl {

// As memcpy. What is copied is ordered before whatever the caller stores next. Thread-safe.
void StreamCopy(void* to, const void* from, size_t bytes);

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_STREAM_H_
