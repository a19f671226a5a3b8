// SPDX-License-Identifier: Apache-2.0
//
// All collectives over TCP between four hosts: exact results of integers, the bits of one host for
// every codec, registered buffers, split and shrink.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "integration/collectives_on_hosts.h"
#include "integration/compressed_world.h"
#include "support/hbi_oracle.h"
#include "support/seed.h"
#include "world/baseline.h"
#include "world/hosts.h"
#include "world/limits.h"
#include "world/process_world.h"

namespace inccl::test {
namespace {

constexpr int kHosts = 4;
constexpr size_t kCount = 24000;  // divisible by the numbers of ranks
constexpr const char* kCodecs[] = {"hbi:bits=6", "hbi:k=7,k2=15", "hbi:bits=3,code=entropy",
                                   "hbi:m=2",    "bf16",          "fp16",
                                   "fp8",        "mxfp8",         "qsgd:q=8",
                                   "lossless",   "qsgd_ms",       "onebit"};
constexpr Collective kCompressed[] = {Collective::kAllReduce, Collective::kReduceScatter,
                                      Collective::kAllGather};

struct Network {
  int ranks_per_host = 1;
  const char* security = "auth";
  const char* sockets = "1";
  bool ipv4 = true, ipv6 = true;
  bool long_links = false;  // as the ranks are told: deep lanes, inputs in place of small sums
};

uint64_t Digest(const std::vector<float>& values) {
  uint64_t digest = 0;
  for (const float value : values) digest = Mix64(digest ^ std::bit_cast<uint32_t>(value));
  return digest | 1;  // a counter that is not set is 0
}

std::vector<float> Compressed(const char* spec, Collective collective, const Vectors& inputs,
                              int rank, ccl_comm_t comm) {
  const size_t n = inputs.size(), sent = inputs[0].size();
  const size_t count = collective == Collective::kReduceScatter ? sent / n : sent;
  std::vector<float> out(collective == Collective::kAllGather ? sent * n : count, -1.0f);
  ccl_compression_stats_t stats = CCL_COMPRESSION_STATS_INIT;
  ccl_compression_t how = CCL_COMPRESSION_INIT;
  how.seed = 9;
  how.step = 3;
  how.stats = &stats;
  EXPECT_EQ(ccl_codec_create(&how.codec, spec), CCL_SUCCESS) << ccl_get_last_error(nullptr);
  EXPECT_EQ(CallCompressed(collective, inputs[static_cast<size_t>(rank)].data(), out.data(), count,
                           CCL_FLOAT32, CCL_SUM, &how, comm),
            CCL_SUCCESS)
      << ccl_get_last_error(comm);
  EXPECT_EQ(stats.compressed, 1);
  ccl_codec_destroy(how.codec);
  return out;
}

// Digests of all compressed results of a rank become its counters.
void DigestAll(const Side& side, const Vectors& inputs, ccl_comm_t comm) {
  size_t counter = 0;
  for (const char* spec : kCodecs) {
    for (const Collective collective : kCompressed) {
      ++counter;
      if (std::string(spec) == "hbi:m=2" && collective != Collective::kAllReduce) continue;
      side.mine().counters[counter] =
          Digest(Compressed(spec, collective, inputs, side.rank(), comm));
    }
  }
}

class NetworkCollectivesTest : public ::testing::TestWithParam<Network> {
 protected:
  void SetUp() override {
    const std::string missing = Hosts::Missing();
    if (!missing.empty()) GTEST_SKIP() << missing;
    if (kSanitized && GetParam().ranks_per_host > 1) GTEST_SKIP() << "takes too long here";
    std::ofstream(constants_) << "cost network_latency_ns 20000000\ncost network_byte_ps 8500\n";
    hosts_ = std::make_unique<Hosts>(HostsOptions{.count = kHosts});
    if (!hosts_->has_ipv6() && !GetParam().ipv4) GTEST_SKIP() << "no IPv6 here";
    for (int host = 0; host < kHosts; ++host) {
      if (!GetParam().ipv4) Flush(host, "-4");
      if (!GetParam().ipv6) Flush(host, "-6");
    }
  }

  void TearDown() override { std::remove(constants_.c_str()); }

  using JoinedBody = std::function<void(const Side&, ccl_comm_t)>;
  std::unique_ptr<ProcessWorld> Run(bool on_hosts, const JoinedBody& body) {
    const Network& network = GetParam();
    const ScopedEnv env({{"INCCL_SOCKET_IFNAME", on_hosts ? "e0" : "lo"},
                         {"INCCL_TUNER_FILE", network.long_links ? constants_.c_str() : ""},
                         {"INCCL_NET_SECURITY", network.security},
                         {"INCCL_SOCKETS_PER_PEER", network.sockets}});
    WorldOptions options{.nranks = kHosts * network.ranks_per_host,
                         .deadline_seconds = 120.0 * kSlowness};
    if (on_hosts) options.enter = hosts_->Ranks(network.ranks_per_host);
    auto world = std::make_unique<ProcessWorld>(options, [&](const Side& side) {
      ccl_comm_t comm = nullptr;
      EXPECT_EQ(side.Init(&comm, CCL_CONFIG_INIT), CCL_SUCCESS) << side.mine().text;
      if (comm == nullptr) return 10;
      body(side, comm);
      return ccl_comm_destroy(comm) == CCL_SUCCESS ? 0 : 12;
    });
    world->ExpectAllExited();
    return world;
  }
  static int Ranks() { return kHosts * GetParam().ranks_per_host; }

 private:
  void Flush(int host, const char* family) {
    std::string output;
    EXPECT_EQ(hosts_->Run(host, {"ip", family, "address", "flush", "dev", "e0"}, &output), 0)
        << output;
  }

  const Baseline baseline_;
  const std::string constants_ = testing::TempDir() + fmt::format("inccl-long-links-{}", getpid());
  std::unique_ptr<Hosts> hosts_;
};

TEST_P(NetworkCollectivesTest, EveryCollective) {
  for (const char* slice_bytes : {"4096", "131072"}) {
    const ScopedEnv env({{"INCCL_SLICE_BYTES", slice_bytes}});
    Run(true, [](const Side& side, ccl_comm_t comm) {
      for (const size_t count : {1, 777, 20011}) {
        CollectivesOnHosts(side.rank(), Ranks(), comm, count).RunAll();
      }
    });
  }
}

TEST_P(NetworkCollectivesTest, CompressedResultsHaveTheBitsOfOneHost) {
  const Vectors inputs = MakeInputs(Ranks(), kCount, TestSeed());
  // Sums of floats depend on the order, which the algorithm fixes.
  const ScopedEnv env({{"INCCL_SLICE_BYTES", "8192"}, {"INCCL_ALGO", "direct"}});
  const auto digest = [&](const Side& side, ccl_comm_t comm) { DigestAll(side, inputs, comm); };
  const auto one = Run(false, digest);
  const auto many = Run(true, digest);
  for (int rank = 0; rank < Ranks(); ++rank) {
    size_t counter = 0;
    for (const char* spec : kCodecs) {
      for (const Collective collective : kCompressed) {
        ++counter;
        EXPECT_EQ(one->report(rank).counters[counter], many->report(rank).counters[counter])
            << "rank " << rank << " " << spec << " " << Name(collective);
      }
    }
  }
}

// What a rank keeps of its own contribution is no other's business, so such calls do not send
// inputs in place of sums.
TEST_P(NetworkCollectivesTest, ResidualsGiveTheBitsOfOneHost) {
  const Vectors inputs = MakeInputs(Ranks(), kCount, TestSeed() + 2);
  const ScopedEnv env({{"INCCL_ALGO", "direct"}});
  const auto run = [&](const Side& side, ccl_comm_t comm) {
    ccl_compression_t how = CCL_COMPRESSION_INIT;
    ASSERT_EQ(ccl_codec_create(&how.codec, "hbi:bits=4"), CCL_SUCCESS);
    ASSERT_EQ(ccl_residual_create(&how.residual, kCount, nullptr), CCL_SUCCESS);
    std::vector<float> out(kCount);
    for (size_t call = 1; call <= 3; ++call) {
      how.step = call;
      EXPECT_EQ(
          CallCompressed(Collective::kAllReduce, inputs[static_cast<size_t>(side.rank())].data(),
                         out.data(), kCount, CCL_FLOAT32, CCL_SUM, &how, comm),
          CCL_SUCCESS)
          << ccl_get_last_error(comm);
      side.mine().counters[call] = Digest(out);
    }
    ccl_codec_destroy(how.codec);
    ccl_residual_destroy(how.residual);
  };
  const auto one = Run(false, run);
  const auto many = Run(true, run);
  for (int rank = 0; rank < Ranks(); ++rank) {
    for (size_t call = 1; call <= 3; ++call) {
      EXPECT_EQ(one->report(rank).counters[call], many->report(rank).counters[call]) << call;
    }
    EXPECT_NE(one->report(rank).counters[1], one->report(rank).counters[2]) << "no feedback";
  }
}

TEST_P(NetworkCollectivesTest, HbiHasTheBitsOfTheOracle) {
  const Vectors inputs = MakeInputs(Ranks(), kCount, TestSeed() + 1);
  const std::vector<float> expected = HbiAllReduce(inputs, {.bits8 = 48, .seed = 9, .step = 3});
  for (const char* algorithm : {"direct", "ring", "tree", "hierarchical"}) {
    if (algorithm == std::string("hierarchical") && GetParam().ranks_per_host == 1) continue;
    SCOPED_TRACE(algorithm);
    const ScopedEnv env({{"INCCL_ALGO", algorithm}, {"INCCL_SLICE_BYTES", "16384"}});
    Run(true, [&](const Side& side, ccl_comm_t comm) {
      const std::vector<float> result =
          Compressed("hbi:bits=6", Collective::kAllReduce, inputs, side.rank(), comm);
      EXPECT_EQ(Differences(result, expected), 0u);
    });
  }
}

TEST_P(NetworkCollectivesTest, RegisteredBuffersSplitAndShrink) {
  Run(true, [](const Side& side, ccl_comm_t comm) {
    constexpr size_t kFloats = 500'000;
    void* memory = nullptr;
    ASSERT_EQ(ccl_mem_alloc(&memory, kFloats * sizeof(float)), CCL_SUCCESS);
    void* handle = nullptr;
    ASSERT_EQ(ccl_comm_register(comm, memory, kFloats * sizeof(float), &handle), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    auto* const values = static_cast<float*>(memory);
    for (int call = 0; call < 10; ++call) {
      for (size_t i = 0; i < kFloats; ++i) values[i] = static_cast<float>(i % 1000 + call);
      ASSERT_EQ(ccl_allreduce(values, values, kFloats, CCL_FLOAT32, CCL_SUM, comm, nullptr),
                CCL_SUCCESS)
          << ccl_get_last_error(comm);
      for (size_t i = 0; i < kFloats; ++i) {
        ASSERT_EQ(values[i], static_cast<float>(Ranks()) * static_cast<float>(i % 1000 + call));
      }
    }
    EXPECT_EQ(ccl_comm_deregister(comm, handle), CCL_SUCCESS);
    EXPECT_EQ(ccl_mem_free(memory), CCL_SUCCESS);

    ccl_comm_t part = nullptr;
    ASSERT_EQ(ccl_comm_split(comm, side.rank() % 2, -side.rank(), &part, nullptr), CCL_SUCCESS)
        << ccl_get_last_error(comm);
    const int place = (Ranks() - 1 - side.rank()) / 2;  // in the order of the keys
    CollectivesOnHosts(place, Ranks() / 2, part, 3001).RunAll();
    EXPECT_EQ(ccl_comm_destroy(part), CCL_SUCCESS);

    const int excluded = 1;
    if (side.rank() == excluded) return;
    ccl_comm_t smaller = nullptr;
    ASSERT_EQ(ccl_comm_shrink(comm, &excluded, 1, &smaller, nullptr, CCL_SHRINK_DEFAULT),
              CCL_SUCCESS)
        << ccl_get_last_error(nullptr);
    CollectivesOnHosts(side.rank() - (side.rank() > excluded ? 1 : 0), Ranks() - 1, smaller, 3001)
        .RunAll();
    EXPECT_EQ(ccl_comm_destroy(smaller), CCL_SUCCESS);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, NetworkCollectivesTest,
    ::testing::Values(
        Network{.ranks_per_host = 1},
        Network{.ranks_per_host = 2, .security = "auth", .sockets = "3", .ipv6 = false},
        Network{.ranks_per_host = 1, .security = "encrypt", .sockets = "3", .ipv4 = false},
        Network{.ranks_per_host = 2, .security = "none", .sockets = "1", .ipv4 = false},
        Network{.ranks_per_host = 1, .security = "auth", .sockets = "", .long_links = true},
        Network{.ranks_per_host = 2, .security = "encrypt", .sockets = "7", .long_links = true}),
    [](const auto& of) {
      const Network& network = of.param;
      return fmt::format("{}_{}_sockets_{}_ranks{}{}{}", network.security, network.sockets,
                         network.ranks_per_host, network.ipv4 ? "_v4" : "",
                         network.ipv6 ? "_v6" : "", network.long_links ? "_long" : "");
    });

}  // namespace
}  // namespace inccl::test
