// SPDX-License-Identifier: Apache-2.0
//
// A compressed call on all ranks of a communicator, run in one of many ways, and its data.
#ifndef INCCL_TESTS_INTEGRATION_COMPRESSED_WORLD_H_
#define INCCL_TESTS_INTEGRATION_COMPRESSED_WORLD_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "api/world.h"
#include "base/rng.h"
#include "base/types.h"
#include "build_paths.h"

namespace inccl::test {

using Vectors = std::vector<std::vector<float>>;

// Magnitudes vary by superblock over many octaves; some superblocks and many elements are zero,
// some denormal.
inline Vectors MakeInputs(int n, size_t count, uint64_t seed) {
  Vectors inputs(static_cast<size_t>(n), std::vector<float>(count));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t shared = Mix64(seed ^ Mix64(i / 256));
    const int exponent = shared % 11 == 0 ? -140 : static_cast<int>(shared % 40) - 30;
    for (size_t r = 0; r < inputs.size(); ++r) {
      const uint64_t own = Mix64(seed + 77 * (r + 1) + i * 1315423911u);
      if (shared % 13 == 0 || own % 17 == 0) continue;
      const double unit = static_cast<double>(static_cast<int64_t>(own)) * 0x1.0p-63;
      inputs[r][i] = static_cast<float>(std::ldexp(unit * unit * unit, exponent));
    }
  }
  return inputs;
}

// The recorded gradients of one step: data/gradients. Its files end with fp32 values.
inline Vectors Gradients(int step, int n) {
  constexpr size_t kCount = 81920;
  Vectors inputs;
  for (int rank = 0; rank < n; ++rank) {
    const std::string name =
        fmt::format("{}/data/gradients/step{}_rank{}.npy", INCCL_SOURCE_DIR, step, rank);
    std::ifstream file(name, std::ios::binary);
    std::vector<float> values(kCount);
    file.seekg(-static_cast<std::streamoff>(kCount * sizeof(float)), std::ios::end);
    file.read(reinterpret_cast<char*>(values.data()), kCount * sizeof(float));
    EXPECT_TRUE(file.good()) << name;
    inputs.push_back(std::move(values));
  }
  return inputs;
}

struct Route {
  const char* algorithm = "direct_two_shot";
  const char* channels = "1";
  const char* slice_bytes = "131072";
  const char* transport = "loopback";
  const char* simd = "best";
};

inline std::string Describe(const Route& way) {
  return std::string(way.algorithm) + " channels " + way.channels + " slices " + way.slice_bytes +
         " " + way.transport + " " + way.simd;
}

struct CallOptions {
  std::string spec = "hbi:bits=6,min_bytes=0";
  uint64_t seed = 0, step = 1;
  ccl_redop_t op = CCL_SUM;
  bool in_place = false;
};

struct Outcome {
  Vectors outputs;
  std::vector<ccl_compression_stats_t> stats;
};

// One rank's part of the call.
inline ccl_result_t CallCompressed(Collective collective, const void* send, void* recv,
                                   size_t count, ccl_datatype_t type, ccl_redop_t op,
                                   const ccl_compression_t* how, ccl_comm_t comm) {
  switch (collective) {
    case Collective::kReduceScatter:
      return ccl_reduce_scatter_compressed(send, recv, count, type, op, how, comm, nullptr);
    case Collective::kAllGather:
      return ccl_allgather_compressed(send, recv, count, type, how, comm, nullptr);
    default: return ccl_allreduce_compressed(send, recv, count, type, op, how, comm, nullptr);
  }
}

// All-reduce, reduce-scatter or all-gather of fp32; inputs[r] is what rank r sends.
inline Outcome RunCompressed(Collective collective, const Vectors& inputs,
                             const CallOptions& options, const Route& way) {
  const ScopedEnv env({{"INCCL_ALGO", way.algorithm},
                       {"INCCL_CHANNELS", way.channels},
                       {"INCCL_SLICE_BYTES", way.slice_bytes},
                       {"INCCL_TRANSPORT", way.transport},
                       {"INCCL_TEST_SIMD", way.simd}});
  const size_t n = inputs.size(), sent = inputs[0].size();
  const bool scatters = collective == Collective::kReduceScatter;
  const bool gathers = collective == Collective::kAllGather;
  const size_t count = scatters ? sent / n : sent;
  Outcome outcome;
  outcome.outputs.assign(n, std::vector<float>(gathers ? count * n : count, -1.0f));
  outcome.stats.assign(n, CCL_COMPRESSION_STATS_INIT);
  RunThreads(static_cast<int>(n), [&](int rank, ccl_comm_t comm) {
    const auto r = static_cast<size_t>(rank);
    ccl_codec_t codec = nullptr;
    ASSERT_EQ(ccl_codec_create(&codec, options.spec.c_str()), CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    ccl_compression_t compression = CCL_COMPRESSION_INIT;
    compression.codec = codec;
    compression.seed = options.seed;
    compression.step = options.step;
    compression.stats = &outcome.stats[r];
    std::vector<float>& out = outcome.outputs[r];
    std::vector<float> both = inputs[r];  // in place: the larger buffer
    const float* in = inputs[r].data();
    float* to = out.data();
    if (options.in_place && gathers) {
      std::copy(both.begin(), both.end(), out.begin() + rank * static_cast<int64_t>(count));
      in = out.data() + r * count;
    } else if (options.in_place) {
      in = both.data();
      to = both.data() + (scatters ? r * count : 0);
    }
    EXPECT_EQ(
        CallCompressed(collective, in, to, count, CCL_FLOAT32, options.op, &compression, comm),
        CCL_SUCCESS)
        << ccl_get_last_error(comm);
    if (options.in_place && !gathers) {
      for (size_t i = 0; i < both.size(); ++i) {
        const bool result = !scatters || i / count == r;
        if (result) {
          out[i % count] = both[i];
        } else {
          EXPECT_EQ(std::bit_cast<uint32_t>(both[i]), std::bit_cast<uint32_t>(inputs[r][i]))
              << "another rank's segment was written";
        }
      }
    }
    ccl_codec_destroy(codec);
  });
  return outcome;
}

// Elements whose bits differ; a NaN is like any other.
inline size_t Differences(const std::vector<float>& a, const std::vector<float>& b) {
  size_t differences = a.size() != b.size();
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    differences += !both_nan && std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  }
  return differences;
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_INTEGRATION_COMPRESSED_WORLD_H_
