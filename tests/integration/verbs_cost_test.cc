// SPDX-License-Identifier: Apache-2.0
//
// What the library does for a slice over RDMA beside posting it: nothing that allocates memory or
// asks the kernel, whether the payload is in a slot or in registered memory of the caller. The
// devices are a stand-in's that does neither, too.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "fakes/verbs/fake_verbs.h"
#include "faults/interposer.h"
#include "gtest/gtest.h"
#include "support/kernel_calls.h"
#include "transport/verbs/verbs_transport.h"
#include "world/process_world.h"

namespace inccl::test {
namespace {

class TwoRanks {
 public:
  TwoRanks() {
    for (int rank = 0; rank < 2; ++rank) ends_[rank] = *VerbsTransport::Create(rank, 2, {});
    for (int rank = 0; rank < 2; ++rank) {
      EXPECT_TRUE(ends_[rank]->Attach(1 - rank, ends_[1 - rank]->address(), "").ok());
      EXPECT_TRUE(ends_[rank]->Protect({}, bootstrap::AsBytes("test")).ok());
    }
    const LaneSpec spec{.producer = 0, .consumers = {1}, .slot_bytes = 8192, .depth = 4};
    send_ = *ends_[0]->OpenSend(spec);
    recv_ = *ends_[1]->OpenRecv(spec);
    EXPECT_TRUE(ends_[0]->exports()->Register(memory_.data(), memory_.size(), {.keep = true}).ok());
    Progress();
  }
  void Progress() {
    for (const auto& end : ends_) EXPECT_TRUE(end->Progress(0).ok());
  }
  enum class From { kSlot, kRegistered };
  void Slices(int count, From from = From::kSlot, uint32_t bytes = 8192) {
    for (int i = 0; i < count; ++i) {
      const Result<Span> slot = send_->TryAcquire();
      ASSERT_TRUE(slot.ok() && slot->data != nullptr);
      const SliceHeader header{.bytes = bytes};
      const bool in_place = from == From::kRegistered;
      ASSERT_TRUE(!in_place || send_->SendsFrom(memory_.data(), bytes, false));
      std::memset(in_place ? memory_.data() : slot->data, i, bytes);
      const Status status =
          in_place ? send_->PublishFrom(header, memory_.data(), false) : send_->Publish(header);
      ASSERT_TRUE(status.ok()) << status.message();
      Progress();
      RecvLane::Incoming incoming;
      const Result<bool> there = recv_->TryPeek(&incoming);
      ASSERT_TRUE(there.ok() && *there);
      ASSERT_EQ(incoming.payload[bytes - 1], static_cast<std::byte>(i));
      ASSERT_FALSE(ends_[0]->unsent());
      ASSERT_TRUE(recv_->Release().ok());
      Progress();
    }
  }

 private:
  std::unique_ptr<VerbsTransport> ends_[2];
  std::unique_ptr<SendLane> send_;
  std::unique_ptr<RecvLane> recv_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(8192);
};

// Not a test: what the library and the stand-in cost for a slice of a few bytes, at both ends
// together.
TEST(VerbsCostTest, DISABLED_HowLongASliceTakes) {
  fake_verbs::Get().SetMachine(fake_verbs::Get().StandardMachine());
  {
    TwoRanks ranks;
    ranks.Slices(10'000, TwoRanks::From::kSlot, 64);
    constexpr int kSlices = 200'000;
    std::vector<double> nanoseconds;
    for (int round = 0; round < 9; ++round) {
      const Time start = SystemClock().Now();
      ranks.Slices(kSlices, TwoRanks::From::kSlot, 64);
      nanoseconds.push_back(static_cast<double>(SystemClock().Now() - start) / kSlices);
    }
    std::sort(nanoseconds.begin(), nanoseconds.end());
    std::printf("%.0f ns a slice\n", nanoseconds[4]);
  }
  fake_verbs::Get().SetMachine({});
}

TEST(VerbsCostTest, ASliceAllocatesNothingAndAsksTheKernelForNothing) {
  for (const auto from : {TwoRanks::From::kSlot, TwoRanks::From::kRegistered}) {
    SCOPED_TRACE(static_cast<int>(from));
    fake_verbs::Get().SetMachine(fake_verbs::Get().StandardMachine());
    ProcessWorld world({.nranks = 1, .baseline = false}, [from](const Side&) {
      TwoRanks ranks;
      ranks.Slices(1000, from);
      if (!KernelCalls::StartCounting()) return 11;
      interposer::Arm({});
      KernelCalls::Reset();
      const fake_verbs::Counters before = fake_verbs::Get().Count();
      ranks.Slices(1000, from);
      const fake_verbs::Counters after = fake_verbs::Get().Count();
      const uint64_t kernel = KernelCalls::Count();
      interposer::Disarm();
      EXPECT_EQ(kernel, 0u) << KernelCalls::Numbers();
      EXPECT_EQ(interposer::Calls(interposer::kNew) + interposer::Calls(interposer::kMalloc), 0u);
      EXPECT_EQ(after.sends - before.sends, 1000u);
      EXPECT_EQ(after.credits - before.credits, 500u);  // two slices each
      EXPECT_EQ(after.gathered - before.gathered, from == TwoRanks::From::kSlot ? 0u : 1000u);
      EXPECT_EQ(after.send_completions - before.send_completions, 1500u);
      EXPECT_EQ(after.messages - before.messages, 1500u);
      return 0;
    });
    world.ExpectAllExited();
  }
}

}  // namespace
}  // namespace inccl::test
