// SPDX-License-Identifier: Apache-2.0
//
// All-reduces of fp32 by the codecs onebit and dither, for tests that compare them with their
// definitions.
#ifndef INCCL_TESTS_COMPRESS_BLOCK_CODE_CALLS_H_
#define INCCL_TESTS_COMPRESS_BLOCK_CODE_CALLS_H_

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "compress/codec_world.h"

namespace inccl::test {

using Floats = std::vector<float>;
using Vectors = std::vector<Floats>;

inline constexpr Algorithm kAll[] = {Algorithm::kTwoShot, Algorithm::kRing, Algorithm::kTree,
                                     Algorithm::kOneShot, Algorithm::kRecursiveDoubling};

inline Floats Gauss(size_t count, Rng* rng) {
  Floats x(count);
  for (size_t i = 0; i < count; ++i) {
    double gauss = -6;
    for (int k = 0; k < 12; ++k) gauss += rng->Uniform();
    x[i] = static_cast<float>(std::ldexp(gauss, -static_cast<int>(i / 300 % 5)));
  }
  return x;
}

inline Vectors Inputs(size_t n, size_t count, Rng* rng) {
  Vectors inputs;
  for (size_t r = 0; r < n; ++r) inputs.push_back(Gauss(count, rng));
  return inputs;
}

// The result of an all-reduce, equal on all ranks.
inline Floats Sum(CodecWorld* world, Algorithm algorithm, const Vectors& inputs, uint64_t seed = 0,
                  uint64_t step = 0) {
  const size_t n = inputs.size(), count = inputs[0].size();
  Vectors outputs(n, Floats(count));
  std::vector<CodecBuffers> buffers;
  for (size_t r = 0; r < n; ++r) {
    buffers.push_back({reinterpret_cast<const std::byte*>(inputs[r].data()),
                       reinterpret_cast<std::byte*>(outputs[r].data())});
  }
  world->Run({.nranks = static_cast<int>(n), .count = count, .seed = seed, .step = step}, algorithm,
             buffers);
  for (const Floats& output : outputs) {
    EXPECT_EQ(std::memcmp(output.data(), outputs[0].data(), count * sizeof(float)), 0);
  }
  return outputs[0];
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COMPRESS_BLOCK_CODE_CALLS_H_
