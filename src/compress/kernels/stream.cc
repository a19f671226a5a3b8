// SPDX-License-Identifier: Apache-2.0
#include "compress/kernels/stream.h"

#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "compress/kernels/stream.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// After foreach_target.h.
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace inccl {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void StreamCopyTarget(void* to, const void* from, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t n = hn::Lanes(d);
  auto* out = static_cast<uint8_t*>(to);
  const auto* in = static_cast<const uint8_t*>(from);
  const size_t beyond = reinterpret_cast<uintptr_t>(out) % n;
  const size_t head = HWY_MIN(bytes, beyond == 0 ? 0 : n - beyond);
  std::memcpy(out, in, head);
  size_t i = head;
  for (; bytes - i >= 4 * n; i += 4 * n) {
    const auto a = hn::LoadU(d, in + i);
    const auto b = hn::LoadU(d, in + i + n);
    const auto c = hn::LoadU(d, in + i + 2 * n);
    const auto e = hn::LoadU(d, in + i + 3 * n);
    hn::Stream(a, d, out + i);
    hn::Stream(b, d, out + i + n);
    hn::Stream(c, d, out + i + 2 * n);
    hn::Stream(e, d, out + i + 3 * n);
  }
  std::memcpy(out + i, in + i, bytes - i);
  hwy::FlushStream();
}

template <bool kStream, class D, class V>
HWY_INLINE void Put(V v, D d, uint8_t* to) {
  if constexpr (kStream) {
    hn::Stream(v, d, to);
  } else {
    hn::StoreU(v, d, to);
  }
}

// Aligns `first`. With kStreamSecond both have equal offsets in a vector.
template <bool kStreamFirst, bool kStreamSecond>
void CopyInOnePass(uint8_t* first, uint8_t* second, const uint8_t* in, size_t bytes) {
  const hn::ScalableTag<uint8_t> d;
  const size_t n = hn::Lanes(d);
  const size_t beyond = reinterpret_cast<uintptr_t>(first) % n;
  const size_t head = HWY_MIN(bytes, beyond == 0 ? 0 : n - beyond);
  std::memcpy(first, in, head);
  std::memcpy(second, in, head);
  size_t i = head;
  for (; bytes - i >= 4 * n; i += 4 * n) {
    const auto a = hn::LoadU(d, in + i);
    const auto b = hn::LoadU(d, in + i + n);
    const auto c = hn::LoadU(d, in + i + 2 * n);
    const auto e = hn::LoadU(d, in + i + 3 * n);
    Put<kStreamFirst>(a, d, first + i);
    Put<kStreamFirst>(b, d, first + i + n);
    Put<kStreamFirst>(c, d, first + i + 2 * n);
    Put<kStreamFirst>(e, d, first + i + 3 * n);
    Put<kStreamSecond>(a, d, second + i);
    Put<kStreamSecond>(b, d, second + i + n);
    Put<kStreamSecond>(c, d, second + i + 2 * n);
    Put<kStreamSecond>(e, d, second + i + 3 * n);
  }
  std::memcpy(first + i, in + i, bytes - i);
  std::memcpy(second + i, in + i, bytes - i);
  if constexpr (kStreamFirst) hwy::FlushStream();
}

bool CopyToBothTarget(const CopyTarget& first, const CopyTarget& second, const void* from,
                      size_t bytes) {
  auto* const a = static_cast<uint8_t*>(first.data);
  auto* const b = static_cast<uint8_t*>(second.data);
  const auto* const in = static_cast<const uint8_t*>(from);
  const size_t n = hn::Lanes(hn::ScalableTag<uint8_t>());
  if (!first.stream && !second.stream) {
    CopyInOnePass<false, false>(a, b, in, bytes);
  } else if (!second.stream) {
    CopyInOnePass<true, false>(a, b, in, bytes);
  } else if (!first.stream) {
    CopyInOnePass<true, false>(b, a, in, bytes);
  } else if (reinterpret_cast<uintptr_t>(a) % n == reinterpret_cast<uintptr_t>(b) % n) {
    CopyInOnePass<true, true>(a, b, in, bytes);
  } else {
    return false;
  }
  return true;
}

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(StreamCopyTarget);

void StreamCopy(void* to, const void* from, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(StreamCopyTarget)(to, from, bytes);
}

HWY_EXPORT(CopyToBothTarget);

bool CopyToBoth(const CopyTarget& first, const CopyTarget& second, const void* from, size_t bytes) {
  return HWY_DYNAMIC_DISPATCH(CopyToBothTarget)(first, second, from, bytes);
}

}  // namespace inccl
#endif  // HWY_ONCE
