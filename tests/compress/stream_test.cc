// SPDX-License-Identifier: Apache-2.0
//
// Non-temporal copies, on every target, at every alignment: what memcpy gives, and not a byte
// beside it.
#include "compress/kernels/stream.h"

#include <algorithm>
#include <cstdint>
#include <string>
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

TEST(CopyToBoth, CopiesWhatItIsGivenAndNothingElse) {
  Rng rng(test::TestSeed() ^ 0xB07);
  constexpr size_t kMost = 1000, kMargin = 140;
  std::vector<uint8_t> from(kMost + 2 * kMargin);
  for (uint8_t& byte : from) byte = static_cast<uint8_t>(rng.Next());
  const std::vector<uint8_t> before(kMost + 2 * kMargin, 0x5A);
  const auto expected = [&](size_t source, size_t offset, size_t bytes) {
    std::vector<uint8_t> to = before;
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(source), bytes,
                to.begin() + static_cast<std::ptrdiff_t>(offset));
    return to;
  };
  for (const int64_t target : test::Targets()) {
    const test::ScopedTarget scoped(target);
    int copies = 0;
    for (size_t offset = 0; offset < kMargin; ++offset) {
      for (int ways = 0; ways < 4; ++ways) {
        const size_t bytes = rng.Below(kMost), source = rng.Below(kMargin);
        // Half of them have offsets that are equal in a vector.
        const size_t other = rng.Below(2) == 0 ? offset % 64 : rng.Below(kMargin);
        const bool streams[] = {(ways & 1) != 0, (ways & 2) != 0};
        std::vector<uint8_t> first = before, second = before;
        // Of equal alignment, so that the offsets tell.
        const auto aligned = [](std::vector<uint8_t>& to) {
          return (64 - reinterpret_cast<uintptr_t>(to.data()) % 64) % 64;
        };
        const size_t at = aligned(first) + offset, at_other = aligned(second) + other;
        SCOPED_TRACE(std::string(hwy::TargetName(target)) + " offsets " + std::to_string(offset) +
                     " and " + std::to_string(other) + " bytes " + std::to_string(bytes) +
                     " ways " + std::to_string(ways));
        const bool copied =
            CopyToBoth({first.data() + at, streams[0]}, {second.data() + at_other, streams[1]},
                       from.data() + source, bytes);
        if (!copied) {
          EXPECT_TRUE(streams[0] && streams[1] && offset % 64 != other % 64);
        }
        copies += copied ? 1 : 0;
        ASSERT_EQ(first, copied ? expected(source, at, bytes) : before);
        ASSERT_EQ(second, copied ? expected(source, at_other, bytes) : before);
      }
    }
    EXPECT_GT(copies, 3 * static_cast<int>(kMargin)) << hwy::TargetName(target);
  }
}

}  // namespace
}  // namespace inccl
