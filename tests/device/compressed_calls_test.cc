// SPDX-License-Identifier: Apache-2.0
//
// Compressed calls on memory of a device whose kernels are those of CUDA, on emulated warps: the
// bytes of results are those of the same call on memory of the host, kernels do the work, and no
// element passes through the host.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/rng.h"
#include "device/collective_table.h"
#include "device/comparison.h"
#include "device/device_world.h"
#include "fakes/fake_kernels.h"
#include "support/seed.h"
#include "world/algorithms.h"
#include "world/limits.h"
#include "world/world.h"

namespace inccl::test {
namespace {

struct Way {
  int nranks = 3;
  const char* algorithm = "";  // any
  const char* transport = "loopback";
  bool registering = true;
  bool two_devices = false;
};

template <ccl_datatype_t type, ccl_redop_t op>
ccl_result_t AllReduce(const void* send, void* recv, size_t count, const ccl_compression_t* with,
                       ccl_comm_t comm, ccl_stream_t stream) {
  return ccl_allreduce_compressed(send, recv, count, type, op, with, comm, stream);
}

const Collective kAllReduces[] = {
    {"allreduce of bfloat16", true, InPlace::kNo, AllReduce<CCL_BFLOAT16, CCL_SUM>},
    {"allreduce of averages of float16", true, InPlace::kNo, AllReduce<CCL_FLOAT16, CCL_AVG>},
    {"allreduce of float64", true, InPlace::kNo, AllReduce<CCL_FLOAT64, CCL_SUM>},
};

// What the device has done for a call.
struct Done {
  uint64_t kernels = 0;
  uint64_t copies = 0;  // between its memory and that of the host, of elements
};

// Ranks on a device with kernels.
class Calls {
 public:
  Calls(const Way& way, size_t most, Rng* rng)
      : way_(way),
        environment_({{"INCCL_SLICE_BYTES", "8192"},
                      {"INCCL_ALGO", WhereItExists(way.algorithm).c_str()},
                      {"INCCL_TRANSPORT", way.transport}}),
        world_(way.nranks, way.two_devices),
        comparison_(&world_, rng, most) {
    world_.device().registering = way.registering;
    world_.device().SetKernels(&FakeKernels());
  }

  Done Compare(const Collective& c, const std::string& codec, size_t count, bool in_place = false) {
    SCOPED_TRACE(fmt::format("{} by {}{}, {} elements: {} ranks, algorithm \"{}\", {}{}{}", c.name,
                             codec, in_place ? " in place" : "", count, way_.nranks, way_.algorithm,
                             way_.transport, way_.registering ? "" : ", slots not reached",
                             way_.two_devices ? ", two devices" : ""));
    return Run(c, Compression(codec), count, in_place);
  }
  Done Run(const Collective& c, const Compression& with, size_t count, bool in_place = false) {
    const uint64_t kernels = LaunchesSoFar().all(), copies = world_.device().copies;
    comparison_.Run(c, with.get(), in_place, count);
    return {LaunchesSoFar().all() - kernels, world_.device().copies - copies};
  }
  const FakeDevice& device() { return world_.device(); }

 private:
  const Way way_;
  const ScopedEnv environment_;
  DeviceWorld world_;
  Comparison comparison_;
};

constexpr size_t kSlice = 2048;  // elements of fp32 in INCCL_SLICE_BYTES

const Collective& Find(const char* name) {
  for (const Collective& c : kCollectives) {
    if (std::strcmp(c.name, name) == 0) return c;
  }
  ADD_FAILURE() << "no collective " << name;
  return kCollectives[0];
}

// All of them; where sanitizers watch every step of emulated lanes, one.
std::vector<std::string> Some(const std::vector<std::string>& codecs, Rng* rng) {
  if (!kSanitized) return codecs;
  return {codecs[rng->Below(codecs.size())]};
}

// By all algorithms, on slots that the device reaches and does not. Kernels did all of it: a rank
// codes its elements, quantizes them and decodes the result; nothing was copied to be worked on.
TEST(CompressedCallsTest, AllReduceByEveryAlgorithm) {
  Rng rng(TestSeed());
  const Way ways[] = {{.nranks = 2, .algorithm = "direct"},
                      {.nranks = 3, .algorithm = "ring", .two_devices = true},
                      {.nranks = 4, .algorithm = "recursive_doubling"},
                      {.nranks = 4, .algorithm = "tree", .registering = false},
                      {.nranks = 3, .algorithm = "direct", .transport = "shm"}};
  for (const Way& way : ways) {
    constexpr size_t kCount = kSanitized ? 3001 : 7001;
    Calls calls(way, kCount, &rng);
    const std::vector<std::string> codecs = {
        "hbi:bits=8,min_bytes=0", "hbi:bits=6,min_bytes=0,checksum=1",
        "hbi:bits=4,min_bytes=0,ag=exact", "hbi:k=7,k2=31,min_bytes=0,unbiased=1"};
    for (const std::string& codec : Some(codecs, &rng)) {
      const bool in_place = rng.Below(2) == 0;
      const Done done = calls.Compare(Find("allreduce"), codec, kCount, in_place);
      EXPECT_EQ(done.copies, 0u) << codec;
      EXPECT_GE(done.kernels, static_cast<uint64_t>(3 * way.nranks)) << codec;
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(CompressedCallsTest, TypesAndAverages) {
  Rng rng(TestSeed());
  constexpr size_t kCount = 3334;
  Calls calls({}, kCount, &rng);
  for (const Collective& c : kAllReduces) {
    for (const std::string& codec :
         Some({"hbi:bits=6,min_bytes=0", "hbi:bits=5,min_bytes=0,ag=exact"}, &rng)) {
      EXPECT_EQ(calls.Compare(c, codec, kCount).copies, 0u) << c.name;
    }
  }
  EXPECT_EQ(calls.Compare(Find("allreduce of averages"), "hbi:bits=6,min_bytes=0", 777).copies, 0u);
}

TEST(CompressedCallsTest, ReduceScatterAndAllGather) {
  Rng rng(TestSeed());
  for (const char* algorithm : {"direct", "ring"}) {
    for (const bool registering : {true, false}) {
      constexpr size_t kCount = 2777;
      Calls calls({.algorithm = algorithm, .registering = registering}, kCount, &rng);
      for (const char* name : {"reduce_scatter", "allgather"}) {
        for (const std::string& codec :
             Some({"hbi:bits=6,min_bytes=0", "hbi:k=9,min_bytes=0,checksum=1"}, &rng)) {
          const bool in_place = rng.Below(2) == 0;
          const Done done = calls.Compare(Find(name), codec, kCount, in_place);
          EXPECT_EQ(done.copies, 0u) << name;
          EXPECT_GT(done.kernels, 0u) << name;
        }
      }
      if (::testing::Test::HasFailure()) return;
    }
  }
}

TEST(CompressedCallsTest, AtMostThreeKernelsForASliceOfARank) {
  Rng rng(TestSeed());
  constexpr int kRanks = 4;
  constexpr uint64_t kSlices = 8;
  for (const char* algorithm : {"direct", "ring"}) {
    Calls calls({.nranks = kRanks, .algorithm = algorithm}, kSlices * kSlice, &rng);
    const Done done = calls.Compare(Find("allreduce"), "hbi:bits=6,min_bytes=0", kSlices * kSlice);
    EXPECT_LE(done.kernels, 3 * kSlices * kRanks) << algorithm;
    // Each of these is a part of the work on any slice but the rank's own.
    EXPECT_GE(done.kernels, 2 * kSlices * (kRanks - 1)) << algorithm;
  }
}

// Casts are kernels, sums of what they make are not.
TEST(CompressedCallsTest, Casts) {
  Rng rng(TestSeed());
  constexpr size_t kCount = 3001;
  Calls calls({}, kCount, &rng);
  for (const std::string& codec :
       Some({"bf16", "fp16", "fp8:format=e4m3", "fp8:format=e5m2", "mxfp8"}, &rng)) {
    const Done all_reduce = calls.Compare(Find("allreduce"), codec, kCount);
    EXPECT_GT(all_reduce.kernels, 0u) << codec;
    const Done all_gather = calls.Compare(Find("allgather"), codec, kCount, true);
    EXPECT_GT(all_gather.kernels, 0u) << codec;
    EXPECT_EQ(all_gather.copies, 0u) << codec;
    calls.Compare(Find("reduce_scatter"), codec, kCount);
  }
}

// What has no kernels is copied, beside what has.
TEST(CompressedCallsTest, WithoutKernels) {
  Rng rng(TestSeed());
  constexpr size_t kCount = 2001;
  Calls calls({}, kCount, &rng);
  for (const char* codec : {"hbi:bits=6,min_bytes=0,rht=1", "hbi:bits=6,min_bytes=0,m=2",
                            "hbi:code=entropy,min_bytes=0", "lossless", "qsgd:q=8"}) {
    const Done done = calls.Compare(Find("allreduce"), codec, kCount);
    EXPECT_EQ(done.kernels, 0u) << codec;
    EXPECT_GT(done.copies, 0u) << codec;
  }
}

TEST(CompressedCallsTest, WarmCallsAllocateAndRegisterNothing) {
  Rng rng(TestSeed());
  constexpr size_t kCount = 5000;
  Calls calls({}, kCount, &rng);
  const Compression with("hbi:bits=6,min_bytes=0");
  uint64_t blocks = 0, registered = 0;
  for (int round = 0; round < 5; ++round) {
    calls.Run(Find("allreduce"), with, kCount);
    if (round == 2) {
      blocks = calls.device().host_blocks;
      registered = calls.device().registered;
    }
  }
  EXPECT_EQ(calls.device().host_blocks, blocks);
  EXPECT_EQ(calls.device().registered, registered);
}

// Codecs come and go, and other tables come to where theirs have been.
TEST(CompressedCallsTest, ManyCodecsOneAfterTheOther) {
  Rng rng(TestSeed());
  constexpr size_t kCount = 600;
  Calls calls({.nranks = 2}, kCount, &rng);
  for (int round = 0; round < (kSanitized ? 12 : 40) && !::testing::Test::HasFailure(); ++round) {
    const auto codec =
        fmt::format("hbi:bits={},min_bytes=0", 4 + static_cast<double>(round % 9) / 2);
    EXPECT_EQ(calls.Compare(Find("allreduce"), codec, kCount).copies, 0u);
  }
}

}  // namespace
}  // namespace inccl::test
