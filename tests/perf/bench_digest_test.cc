// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "base/rng.h"
#include "perf/support/digest.h"
#include "support/seed.h"

namespace inccl::perf {
namespace {

std::vector<std::byte> RandomBytes(size_t count) {
  Rng rng(test::TestSeed() + count);
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng.Next());
  return bytes;
}

TEST(BenchDigest, EveryFlippedBitChangesIt) {
  for (const size_t count : {1u, 7u, 8u, 9u, 31u, 32u, 33u, 40u, 100u}) {
    std::vector<std::byte> bytes = RandomBytes(count);
    std::set<uint64_t> digests = {Digest(bytes)};
    for (size_t bit = 0; bit < 8 * count; ++bit) {
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
      EXPECT_TRUE(digests.insert(Digest(bytes)).second) << count << " bytes, bit " << bit;
      bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    }
    EXPECT_TRUE(digests.contains(Digest(bytes)));
  }
}

TEST(BenchDigest, LengthOfZerosMatters) {
  const std::vector<std::byte> zeros(100);
  std::set<uint64_t> digests;
  for (size_t count = 0; count <= zeros.size(); ++count) {
    EXPECT_TRUE(digests.insert(Digest(std::span(zeros).first(count))).second) << count;
  }
}

TEST(BenchDigest, OrderMatters) {
  const std::vector<uint64_t> digests = {1, 2, 3, 4, 5};
  for (size_t i = 0; i + 1 < digests.size(); ++i) {
    std::vector<uint64_t> swapped = digests;
    std::swap(swapped[i], swapped[i + 1]);
    EXPECT_NE(CombineDigests(digests), CombineDigests(swapped));
  }
}

TEST(BenchDigest, DoesNotDependOnAlignment) {
  const std::vector<std::byte> bytes = RandomBytes(77);
  std::vector<std::byte> shifted(bytes.size() + 8);
  for (size_t shift = 0; shift < 8; ++shift) {
    std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(shift));
    EXPECT_EQ(Digest(std::span(shifted).subspan(shift, bytes.size())), Digest(bytes));
  }
}

// Digests stand in files and logs: a change of the function must be seen.
TEST(BenchDigest, KeepsItsValues) {
  std::vector<std::byte> bytes(70);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 37 + 11);
  EXPECT_EQ(DigestText(Digest({})), "21435b1487539502");
  EXPECT_EQ(DigestText(Digest(bytes)), "0cff3afec29e3f0c");
  EXPECT_EQ(DigestText(0x1234), "0000000000001234");
}

}  // namespace
}  // namespace inccl::perf
