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

}  // namespace HWY_NAMESPACE
}  // namespace inccl
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace inccl {

HWY_EXPORT(StreamCopyTarget);

void StreamCopy(void* to, const void* from, size_t bytes) {
  HWY_DYNAMIC_DISPATCH(StreamCopyTarget)(to, from, bytes);
}

}  // namespace inccl
#endif  // HWY_ONCE
