// SPDX-License-Identifier: Apache-2.0
//
// Which memory of a call peers may access (docs/zero-copy.md).
#include "communicator/zero_copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "communicator/recording_transport.h"
#include "compress/codec.h"

namespace inccl::test {
namespace {

constexpr int kRanks = 3;
constexpr uint32_t kSliceBytes = 4096;

class ZeroCopyTest : public ::testing::Test {
 protected:
  // A call of so many bytes per vector.
  Call CallOf(Collective collective, size_t bytes) {
    Call call;
    call.collective = collective;
    call.nranks = kRanks;
    call.rank = 1;
    call.count = bytes / 4;
    call.send = send_.data();
    call.recv = recv_.data();
    return call;
  }
  // What it registers, as "send 8192, recv 8192 writable".
  std::string Begin(const Call& call, Algorithm algorithm, bool on_device = false) {
    transport_.registered.clear();
    zero_copy_.Begin();
    if (on_device) {
      zero_copy_.BeginOnDevice(call, algorithm);
    } else {
      zero_copy_.Begin(call, algorithm);
    }
    std::string text;
    for (const auto& [data, bytes, how] : transport_.registered) {
      if (!text.empty()) text += ", ";
      text += (data == send_.data() ? "send " : "recv ") + std::to_string(bytes);
      if (how.access == Access::kReadWrite) text += " writable";
      if (how.on_device) text += " device";
      EXPECT_FALSE(how.keep);
    }
    EXPECT_EQ(zero_copy_.any(), !text.empty());
    return text;
  }

  RecordingTransport transport_;
  ZeroCopy zero_copy_{1, kRanks, kSliceBytes, &transport_};
  std::vector<float> send_ = std::vector<float>(64), recv_ = std::vector<float>(64);
};

TEST_F(ZeroCopyTest, CallsOfTwoSlicesAndMore) {
  for (const auto& [bytes, what] : {std::pair<size_t, const char*>{8188, ""},
                                    {8192, "recv 8192 writable, send 8192"},
                                    {8196, "recv 8196 writable, send 8196"}}) {
    EXPECT_EQ(Begin(CallOf(Collective::kAllReduce, bytes), Algorithm::kTwoShot), what) << bytes;
  }
}

TEST_F(ZeroCopyTest, WhatEachCollectiveExports) {
  const auto what = [&](Collective collective) {
    return Begin(CallOf(collective, 8192), Algorithm::kTwoShot);
  };
  EXPECT_EQ(what(Collective::kAllReduce), "recv 8192 writable, send 8192");
  EXPECT_EQ(what(Collective::kAllGather), "send 8192");
  EXPECT_EQ(what(Collective::kReduceScatter), "send 24576") << "a segment for each rank";
  EXPECT_EQ(what(Collective::kBroadcast), "") << "rank 0 has the input";
  Call root = CallOf(Collective::kBroadcast, 8192);
  root.root = 1;
  EXPECT_EQ(Begin(root, Algorithm::kTwoShot), "send 8192");
  for (const Collective other :
       {Collective::kReduce, Collective::kAllToAll, Collective::kGather, Collective::kScatter}) {
    EXPECT_EQ(what(other), "") << Name(other);
  }
  EXPECT_EQ(Begin(CallOf(Collective::kAllReduce, 8192), Algorithm::kTwoShot, true),
            "send 8192 device, recv 8192 device")
      << "peers only read";
}

TEST_F(ZeroCopyTest, CodecsAndOtherAlgorithmsUseSlots) {
  EXPECT_EQ(Begin(CallOf(Collective::kAllReduce, 8192), Algorithm::kRing), "");
  Call compressed = CallOf(Collective::kAllReduce, 8192);
  compressed.codec = *MakeCodec("hbi");
  EXPECT_EQ(Begin(compressed, Algorithm::kTwoShot), "");
}

TEST_F(ZeroCopyTest, ACallHasNoBuffersOfTheLastOne) {
  Begin(CallOf(Collective::kAllReduce, 8192), Algorithm::kTwoShot);
  EXPECT_EQ(Begin(CallOf(Collective::kAllReduce, 4096), Algorithm::kTwoShot), "");
  EXPECT_EQ(zero_copy_.input().region | zero_copy_.output().region | zero_copy_.result().region,
            0u);
  transport_.refuses_register = "not exported";
  EXPECT_EQ(Begin(CallOf(Collective::kAllReduce, 8192), Algorithm::kTwoShot), "");
}

// Writable memory first (Exports::RevokeAccess), and each once.
TEST_F(ZeroCopyTest, AfterAnErrorNothingIsAccessible) {
  Begin(CallOf(Collective::kAllReduce, 8192), Algorithm::kTwoShot);
  const uint32_t output = zero_copy_.output().region, input = zero_copy_.input().region;
  zero_copy_.RevokeAccess();
  EXPECT_EQ(transport_.revoked, (std::vector<uint32_t>{output, input, 0}));
  EXPECT_FALSE(zero_copy_.any());
}

}  // namespace
}  // namespace inccl::test
