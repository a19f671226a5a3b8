// SPDX-License-Identifier: Apache-2.0
//
// Sets of ranks, compared with std::set.
#include <gtest/gtest.h>

#include <set>
#include <span>
#include <vector>

#include "base/rng.h"
#include "failure/shrink_agreement.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// Byte b of the encoding, from the definition.
std::vector<std::byte> Encoding(int nranks, const std::set<int>& ranks) {
  std::vector<std::byte> bytes(static_cast<size_t>((nranks + 7) / 8));
  for (const int rank : ranks) {
    bytes[static_cast<size_t>(rank / 8)] |= static_cast<std::byte>(1 << rank % 8);
  }
  return bytes;
}

bool Decodes(std::span<const std::byte> bytes, RankSet* set) {
  ByteReader reader(bytes);
  return set->Decode(&reader) && reader.remaining() == 0;
}

TEST(RankSetTest, EqualsASetOfAnySize) {
  Rng rng(TestSeed());
  for (const int n : {1, 2, 7, 8, 9, 63, 64, 65, 100, 128, 129, 300, 4096}) {
    for (int round = 0; round < 20; ++round) {
      RankSet a(n), b(n);
      std::set<int> in_a, in_b;
      for (uint64_t i = rng.Below(static_cast<uint64_t>(n) + 1); i > 0; --i) {
        const int rank = static_cast<int>(rng.Below(static_cast<uint64_t>(n)));
        (i % 2 == 0 ? a : b).Add(rank);
        (i % 2 == 0 ? in_a : in_b).insert(rank);
      }
      EXPECT_EQ(a == b, in_a == in_b);
      RankSet both = a;
      both |= b;
      in_a.insert(in_b.begin(), in_b.end());
      for (int rank = 0; rank < n; ++rank) {
        ASSERT_EQ(both.Contains(rank), in_a.count(rank) != 0) << rank << " of " << n;
      }
      ByteWriter writer;
      both.Encode(&writer);
      EXPECT_EQ(writer.bytes(), Encoding(n, in_a));
      RankSet decoded = b;
      EXPECT_TRUE(Decodes(writer.bytes(), &decoded));
      EXPECT_TRUE(decoded == both);
    }
  }
}

TEST(RankSetTest, OtherBytesAreNoSet) {
  for (const int n : {1, 7, 8, 9, 64, 65, 100, 300}) {
    const std::vector<std::byte> good = Encoding(n, {0, n - 1});
    RankSet set(n);
    EXPECT_TRUE(Decodes(good, &set));
    EXPECT_FALSE(Decodes(std::span(good).first(good.size() - 1), &set)) << n;
    std::vector<std::byte> longer = good;
    longer.push_back(std::byte{0});
    EXPECT_FALSE(Decodes(longer, &set)) << n;
    for (int beyond = n; beyond < (n + 7) / 8 * 8; ++beyond) {
      std::vector<std::byte> bad = good;
      bad.back() |= static_cast<std::byte>(1 << beyond % 8);
      EXPECT_FALSE(Decodes(bad, &set)) << beyond << " of " << n;
    }
  }
}

}  // namespace
}  // namespace inccl::test
