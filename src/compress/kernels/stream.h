// SPDX-License-Identifier: Apache-2.0
//
// Copies with non-temporal stores, for data larger than the caches. The processor does not read a
// line that is written completely, and the stores do not evict other data from the caches.
#ifndef INCCL_COMPRESS_KERNELS_STREAM_H_
#define INCCL_COMPRESS_KERNELS_STREAM_H_

#include <cstddef>

namespace inccl {

// Like memcpy. The copy is ordered before later stores of the caller. Thread-safe.
void StreamCopy(void* to, const void* from, size_t bytes);

struct CopyTarget {
  void* data = nullptr;
  bool stream = false;  // with non-temporal stores
};
// Copies to both targets in one pass. Returns false, with nothing done, if both are to have
// non-temporal stores and have different offsets in a vector.
bool CopyToBoth(const CopyTarget& first, const CopyTarget& second, const void* from, size_t bytes);

}  // namespace inccl

#endif  // INCCL_COMPRESS_KERNELS_STREAM_H_
