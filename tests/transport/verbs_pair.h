// SPDX-License-Identifier: Apache-2.0
//
// Two ranks in one thread, over RDMA devices of this process (fakes/verbs).
#ifndef INCCL_TESTS_TRANSPORT_VERBS_PAIR_H_
#define INCCL_TESTS_TRANSPORT_VERBS_PAIR_H_

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fakes/verbs/fake_verbs.h"
#include "transport/verbs/verbs_transport.h"

namespace inccl::test {

namespace fake = fake_verbs;

inline constexpr uint32_t kSlotBytes = 4096;
inline constexpr uint16_t kDepth = 4;
inline constexpr Time kLater = 3 * kSecond;  // a lost connection is reported after a second

inline LaneSpec SpecOf(int producer, int consumer, uint16_t depth = kDepth, uint8_t channel = 0) {
  return {.channel = channel,
          .producer = producer,
          .consumers = {consumer},
          .slot_bytes = kSlotBytes,
          .depth = depth};
}

inline fake::Gid GidOf(std::array<uint8_t, 16> bytes, ibv_gid_type type) {
  return {.bytes = bytes, .type = type};
}
inline const fake::Gid kLinkLocal =
    GidOf({0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1}, IBV_GID_TYPE_ROCE_V2);
inline const fake::Gid kIpv6 =
    GidOf({0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7}, IBV_GID_TYPE_ROCE_V2);
inline const fake::Gid kIpv4OfV1 =
    GidOf({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9}, IBV_GID_TYPE_ROCE_V1);
inline const fake::Gid kIpv4 =
    GidOf({0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 9}, IBV_GID_TYPE_ROCE_V2);

inline fake::Port PortWith(std::vector<fake::Gid> gids) {
  fake::Port port;
  port.gids = std::move(gids);
  return port;
}

#define EXPECT_HAS_PART(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

// Two ranks in one thread.
class VerbsTest : public ::testing::Test {
 protected:
  void SetUp() override { fake::Get().SetMachine(fake::Get().StandardMachine()); }
  void TearDown() override {
    lanes_.clear();
    ends_.clear();
    EXPECT_EQ(fake::Get().OpenObjects(), 0u);
    fake::Get().SetMachine({});
  }

  void Use(const std::vector<fake::DeviceModel>& devices) {
    fake::Machine machine = fake::Get().StandardMachine();
    machine.devices = devices;
    fake::Get().SetMachine(machine);
  }
  static Status CreateStatus(const VerbsOptions& options = {}) {
    return VerbsTransport::Create(0, 2, options).status();
  }

  void Connect(const VerbsOptions& of_0 = {}, const VerbsOptions& of_1 = {}) {
    ends_.push_back(VerbsTransport::Create(0, 2, of_0).value());
    ends_.push_back(VerbsTransport::Create(1, 2, of_1).value());
    bootstrap::Mac bytes{};
    for (int rank = 0; rank < 2; ++rank) {
      VerbsTransport* const end = ends_[static_cast<size_t>(rank)].get();
      ASSERT_TRUE(end->Attach(1 - rank, ends_[static_cast<size_t>(1 - rank)]->address(),
                              fmt::format("{}@host:{}", 1 - rank, 70 + rank))
                      .ok());
      ASSERT_TRUE(end->Protect(bootstrap::Key(bytes), bootstrap::AsBytes("test")).ok());
    }
  }
  // A lane from rank 0 to rank 1, open on both sides and granted.
  void OpenLane(uint16_t depth = kDepth) {
    send_ = ends_[0]->OpenSend(SpecOf(0, 1, depth)).value();
    recv_ = ends_[1]->OpenRecv(SpecOf(0, 1, depth)).value();
    Pump();
  }
  void Pump(Time now = 0) {
    for (int round = 0; round < 4; ++round) {
      for (const auto& end : ends_) EXPECT_TRUE(end->Progress(now).ok());
    }
  }
  bool CanSend() { return send_->TryAcquire().value().data != nullptr; }
  void SendOne(uint32_t number, uint32_t bytes = kSlotBytes) {
    const Span slot = send_->TryAcquire().value();
    ASSERT_NE(slot.data, nullptr) << "slice " << number;
    std::memset(slot.data, static_cast<int>(number + 1), bytes);
    ASSERT_TRUE(send_->Publish({.bytes = bytes, .slice = number, .signature = 5}).ok());
  }
  bool ReceiveOne(uint32_t number, uint32_t bytes = kSlotBytes) {
    RecvLane::Incoming incoming;
    if (!recv_->TryPeek(&incoming).value()) return false;
    EXPECT_EQ(incoming.header.slice, number);
    EXPECT_EQ(incoming.header.bytes, bytes);
    EXPECT_EQ(
        std::count(incoming.payload, incoming.payload + bytes, static_cast<std::byte>(number + 1)),
        static_cast<ptrdiff_t>(bytes));
    EXPECT_TRUE(recv_->Release().ok());
    return true;
  }
  // Queue pairs in the order of creation: that of rank 0, that of rank 1.
  static uint32_t QueuePairOf(size_t rank) { return fake::Get().Connections().at(rank).number; }
  Status ProgressOf(size_t rank, Time now) { return ends_[rank]->Progress(now).status(); }

  std::vector<std::unique_ptr<VerbsTransport>> ends_;
  std::unique_ptr<SendLane> send_;
  std::unique_ptr<RecvLane> recv_;
  std::vector<std::unique_ptr<SendLane>> lanes_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_TRANSPORT_VERBS_PAIR_H_
