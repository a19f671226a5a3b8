// SPDX-License-Identifier: Apache-2.0
//
// The configuration of one call: its codec, and what is wrong in it. The oracle of a compressed
// call is the same call of libinccl's own interface.
#include <gtest/gtest.h>
#include <inccl/nccl_options.h>

#include <cmath>
#include <random>
#include <vector>

#include "nccl/ranks.h"

namespace inccl::test {
namespace {

// As NCCL_COLLCONFIG_INITIALIZER of 2.32.
CollConfig CallConfig(nccl::ConfigExt* options) {
  CollConfig config{};
  config.size = sizeof config;
  config.magic = nccl::kConfigMagic;
  config.version = 23203;
  config.ext = options;
  for (int CollConfig::*field :
       {&CollConfig::min_ctas, &CollConfig::max_ctas, &CollConfig::nvls_ctas,
        &CollConfig::cga_cluster_size, &CollConfig::cta_policy}) {
    config.*field = nccl::kUndefined;
  }
  config.force_alg_selection = 1;
  return config;
}

nccl::ConfigExt CodecOption(const char* spec) {
  nccl::ConfigExt option{};
  option.key = {INCCL_NCCL_VENDOR_ID, INCCL_NCCL_OPTION_CODEC};
  option.val.s = spec;
  return option;
}

constexpr int kRanks = 3;
constexpr size_t kCount = 3 * 4096;

std::vector<float> Input(int rank) {
  std::mt19937 random(static_cast<unsigned>(100 + rank));
  std::normal_distribution<float> normal;
  std::vector<float> data(kCount);
  for (float& value : data) value = normal(random);
  return data;
}

double GreatestError(const std::vector<float>& result, size_t first) {
  double error = 0;
  std::vector<double> sum(kCount);
  for (int rank = 0; rank < kRanks; ++rank) {
    const std::vector<float> data = Input(rank);
    for (size_t i = 0; i < kCount; ++i) sum[i] += static_cast<double>(data[i]);
  }
  for (size_t i = 0; i < result.size(); ++i) {
    error = std::max(error, std::abs(sum[first + i] - static_cast<double>(result[i])));
  }
  return error;
}

TEST(CallConfigTest, TheCodecOfACall) {
  Ranks(kRanks, [](int rank, NcclComm comm) {
    nccl::ConfigExt foreign{};
    foreign.key = {INCCL_NCCL_VENDOR_ID + 1, 77};
    nccl::ConfigExt codec = CodecOption("hbi:bits=6");
    foreign.next = &codec;
    const CollConfig compressed = CallConfig(&foreign), plain = CallConfig(nullptr);
    const std::vector<float> data = Input(rank);
    std::vector<float> result(kCount), part(kCount / kRanks), all(kRanks * kCount);
    NCCL_OK(ncclAllReduceConfig(data.data(), result.data(), kCount, kFloat32, kSum, comm, nullptr,
                                &compressed));
    EXPECT_GT(GreatestError(result, 0), 1e-3);
    EXPECT_LT(GreatestError(result, 0), 0.5);
    NCCL_OK(ncclReduceScatterConfig(data.data(), part.data(), part.size(), kFloat32, kSum, comm,
                                    nullptr, &compressed));
    EXPECT_GT(GreatestError(part, static_cast<size_t>(rank) * part.size()), 1e-3);
    EXPECT_LT(GreatestError(part, static_cast<size_t>(rank) * part.size()), 0.5);
    NCCL_OK(
        ncclAllGatherConfig(data.data(), all.data(), kCount, kFloat32, comm, nullptr, &compressed));
    EXPECT_NE(all[0], Input(0)[0]);
    EXPECT_NEAR(all[0], Input(0)[0], 0.5);
    for (const CollConfig* config : {&plain, static_cast<const CollConfig*>(nullptr)}) {
      NCCL_OK(ncclAllReduceConfig(data.data(), result.data(), kCount, kFloat32, kSum, comm, nullptr,
                                  config));
      EXPECT_LT(GreatestError(result, 0), 1e-5);
    }
    NCCL_OK(ncclBroadcastConfig(data.data(), result.data(), kCount, kFloat32, 1, comm, nullptr,
                                &plain));
    EXPECT_EQ(result, Input(1));
    // Integers stay exact.
    std::vector<int> numbers(kCount, rank + 1000001);
    NCCL_OK(ncclAllReduceConfig(numbers.data(), numbers.data(), kCount, kInt32, kSum, comm, nullptr,
                                &compressed));
    EXPECT_EQ(numbers[kCount - 1], 3000006);
    NCCL_OK(ncclCommDestroy(comm));
  });
}

TEST(CallConfigTest, InAGroupItCountsForItsCallAlone) {
  NcclComm comms[2];
  NCCL_OK(ncclCommInitAll(comms, 2, nullptr));
  nccl::ConfigExt codec = CodecOption("bf16");
  const CollConfig config = CallConfig(&codec);
  std::vector<float> first(4096, 1.001F), second(4096, 1.001F), third = first, fourth = second;
  NCCL_OK(ncclGroupStart());
  for (const auto& [comm, a, b] :
       {std::tuple{comms[0], &first, &third}, {comms[1], &second, &fourth}}) {
    NCCL_OK(
        ncclAllReduceConfig(a->data(), a->data(), 4096, kFloat32, kSum, comm, nullptr, &config));
    NCCL_OK(ncclAllReduce(b->data(), b->data(), 4096, kFloat32, kSum, comm, nullptr));
  }
  NCCL_OK(ncclGroupEnd());
  EXPECT_NE(first[7], 2 * 1.001F);
  EXPECT_NEAR(first[7], 2 * 1.001F, 0.02);
  EXPECT_EQ(first, second);
  EXPECT_EQ(third[7], 2 * 1.001F);
  for (NcclComm comm : comms) NCCL_OK(ncclCommDestroy(comm));
}

TEST(CallConfigTest, WrongOnesAreInvalidArgumentsThatTheTextNames) {
  NcclComm comm = nullptr;
  NCCL_OK(ncclCommInitAll(&comm, 1, nullptr));
  float value = 1;
  const auto call = [&](const CollConfig& config) {
    return ncclAllReduceConfig(&value, &value, 1, kFloat32, kSum, comm, nullptr, &config);
  };
  const auto expect_wrong = [&](const CollConfig& config, const char* text) {
    EXPECT_EQ(call(config), kInvalidArgument) << text;
    EXPECT_TRUE(LastErrorSays(text)) << text << ": " << ncclGetLastError(nullptr);
    EXPECT_TRUE(LastErrorSays("ncclAllReduceConfig")) << ncclGetLastError(nullptr);
  };
  for (const char* spec : {"hbi:bits=99", "gzip", "", "hbi:bots=6"}) {
    nccl::ConfigExt option = CodecOption(spec);
    expect_wrong(CallConfig(&option), "config->ext: codec \"");
  }
  nccl::ConfigExt option = CodecOption(nullptr), second = CodecOption("bf16");
  expect_wrong(CallConfig(&option), "is NULL");
  option = CodecOption("bf16");
  option.next = &second;
  expect_wrong(CallConfig(&option), "twice");
  option.key.option_id = 9;
  expect_wrong(CallConfig(&option), "option 9");
  option.key.vendor_id = 1;
  option.next = &option;
  expect_wrong(CallConfig(&option), "circular");
  std::vector<nccl::ConfigExt> options(1024, option);  // as many as may be
  for (size_t i = 0; i < options.size(); ++i) {
    options[i].next = i + 1 < options.size() ? &options[i + 1] : nullptr;
  }
  EXPECT_EQ(call(CallConfig(options.data())), kSuccess) << ncclGetLastError(nullptr);
  CollConfig config = CallConfig(nullptr);
  config.magic = 1;
  expect_wrong(config, "NCCL_COLLCONFIG_INITIALIZER");
  config = CallConfig(nullptr);
  config.size = 16;
  expect_wrong(config, "size");
  config = CallConfig(nullptr);
  config.min_ctas = 4;
  config.max_ctas = 2;
  expect_wrong(config, "minCTAs");
  config = CallConfig(nullptr);
  config.launch_completion_event = &value;
  expect_wrong(config, "launchCompletionEvent");
  // 2.31 did not have it: what lies behind its struct is not read.
  config.version = 23100;
  config.size = offsetof(CollConfig, launch_completion_event);
  EXPECT_EQ(call(config), kSuccess) << ncclGetLastError(nullptr);
  second.next = nullptr;
  config = CallConfig(&second);
  EXPECT_EQ(ncclBroadcastConfig(&value, &value, 1, kFloat32, 0, comm, nullptr, &config),
            kInvalidArgument);
  EXPECT_TRUE(LastErrorSays("ncclBroadcastConfig")) << ncclGetLastError(nullptr);
  // The communicator is as before; in a group the error is that of its end, too.
  EXPECT_EQ(call(config), kSuccess);
  config.magic = 1;
  NCCL_OK(ncclGroupStart());
  EXPECT_EQ(call(config), kInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), kInvalidArgument);
  EXPECT_EQ(value, 1);
  NCCL_OK(ncclCommDestroy(comm));
}

}  // namespace
}  // namespace inccl::test
