// SPDX-License-Identifier: Apache-2.0
//
// Non-temporal copies, on every target, at every alignment: what memcpy gives, and not a byte
// beside it.
#include "compress/kernels/stream.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/rng.h"
#include "compress/reduce_targets.h"
#include "gtest/gtest.h"
#include "support/seed.h"

namespace inccl {
namespace {

TEST(StreamCopy, CopiesWhatItIsGivenAndNothingElse) {
  Rng rng(test::TestSeed());
  constexpr size_t kMost = 1000, kMargin = 70;
  std::vector<uint8_t> from(kMost + 2 * kMargin);
  for (uint8_t& byte : from) byte = static_cast<uint8_t>(rng.Next());
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    for (size_t offset = 0; offset < kMargin; ++offset) {
      for (const size_t bytes : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{255},
                                 size_t{256}, size_t{300}, static_cast<size_t>(rng.Below(kMost))}) {
        const size_t source = rng.Below(kMargin);
        std::vector<uint8_t> to(kMost + 2 * kMargin, 0x5A), expected = to;
        std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), bytes,
                    expected.begin() + static_cast<std::ptrdiff_t>(offset));
        StreamCopy(to.data() + offset, from.data() + source, bytes);
        ASSERT_EQ(to, expected) << hwy::TargetName(target) << " offset " << offset << " bytes "
                                << bytes;
      }
    }
  }
}

}  // namespace
}  // namespace inccl
