// SPDX-License-Identifier: Apache-2.0
//
// HBI over two levels: the bits of the direct algorithm, and the bytes of wider sums between hosts.
#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "base/rng.h"
#include "compress/codec_world.h"
#include "compress/codecs.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 4;
constexpr size_t kCount = 1 << 16;

struct Sent {
  std::vector<std::vector<float>> outputs;
  std::vector<uint64_t> payload_bytes;  // by rank
};

Sent AllReduce(Algorithm algorithm, const std::vector<std::vector<float>>& inputs) {
  CodecWorld world(*MakeCodec("hbi:bits=6"), kRanks);
  Sent sent;
  sent.outputs.assign(kRanks, std::vector<float>(kCount));
  std::vector<CodecBuffers> buffers;
  for (size_t r = 0; r < kRanks; ++r) {
    buffers.push_back({reinterpret_cast<const std::byte*>(inputs[r].data()),
                       reinterpret_cast<std::byte*>(sent.outputs[r].data())});
  }
  world.Run({.collective = Collective::kAllReduce, .nranks = kRanks, .count = kCount}, algorithm,
            buffers);
  for (int r = 0; r < kRanks; ++r) sent.payload_bytes.push_back(world.sent(r).payload_bytes);
  return sent;
}

// Two hosts of two ranks. Every rank sends as many parts and results as in the direct all-reduce,
// but one of its parts, a quarter of the vector, is the sum of two ranks. Twice as many values need
// a field that is one bit wider, or half a bit less after rounding to halves.
TEST(HbiHierarchical, SumsOfTwoRanksAreOneBitWider) {
  Rng rng(TestSeed());
  std::vector<std::vector<float>> inputs(kRanks, std::vector<float>(kCount));
  for (std::vector<float>& input : inputs) {
    for (float& x : input) x = static_cast<float>(rng.Below(2001)) - 1000.0f;
  }
  const Sent flat = AllReduce(Algorithm::kTwoShot, inputs);
  const Sent levels = AllReduce(Algorithm::kHierarchical, inputs);
  constexpr double kBit = kCount / 4 / 8.0;  // bytes, for a quarter of the elements
  for (size_t r = 0; r < kRanks; ++r) {
    EXPECT_EQ(std::memcmp(flat.outputs[r].data(), levels.outputs[r].data(), kCount * 4), 0);
    const double more =
        static_cast<double>(levels.payload_bytes[r]) - static_cast<double>(flat.payload_bytes[r]);
    EXPECT_GE(more, 0.5 * kBit) << "rank " << r;
    EXPECT_LE(more, 1.5 * kBit) << "rank " << r;
  }
}

}  // namespace
}  // namespace inccl::test
