// SPDX-License-Identifier: Apache-2.0
//
// RDMA over devices of this process (fakes/verbs): which port a rank takes and how it connects,
// what a slice costs, and what happens when a device or a peer fails.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "transport/verbs/verbs_wire.h"
#include "transport/verbs_pair.h"

namespace inccl::test {
namespace {

TEST(VerbsPortsTest, HcaListsFollowNcclsGrammar) {
  struct Case {
    const char* list;
    const char* device;
    int port;
    bool admitted;
  };
  for (const Case& c :
       {Case{"", "mlx5_0", 1, true}, Case{"mlx5", "mlx5_0", 1, true},
        Case{"mlx5", "mlx4_0", 1, false}, Case{"mlx5_1", "mlx5_10", 1, true},
        Case{"=mlx5_1", "mlx5_10", 1, false}, Case{"=mlx5_1", "mlx5_1", 2, true},
        Case{"=mlx5_1:1", "mlx5_1", 2, false}, Case{"mlx4,mlx5", "mlx5_3", 1, true},
        Case{"^mlx5_1", "mlx5_0", 1, true}, Case{"^mlx5_1", "mlx5_1", 1, false},
        Case{"^=mlx5_1", "mlx5_10", 1, true}, Case{"^=mlx5_1:2", "mlx5_1", 1, true},
        Case{"^=mlx5_1:2", "mlx5_1", 2, false}, Case{"^mlx5_0,^mlx5_1", "mlx5_1", 1, false},
        Case{"mlx5_0:x", "mlx5_0", 1, false}}) {
    EXPECT_EQ(verbs::Admits(c.list, c.device, c.port), c.admitted)
        << c.list << " " << c.device << ":" << c.port;
  }
}

TEST_F(VerbsTest, TheReasonWhyAPortCannotBeUsed) {
  Use({});
  EXPECT_EQ(CreateStatus().code(), Code::kInvalidUsage);
  EXPECT_HAS_PART(CreateStatus().message(), "this machine has no RDMA device");
  fake::Port down = PortWith({kIpv4});
  down.state = IBV_PORT_DOWN;
  Use({{.name = "fake0", .ports = {down, PortWith({kLinkLocal, kIpv4OfV1})}}});
  EXPECT_EQ(CreateStatus().code(), Code::kSystemError);
  EXPECT_HAS_PART(CreateStatus().message(), "fake0:1: the port is DOWN");
  EXPECT_HAS_PART(CreateStatus().message(), "fake0:2: it has no GID of RoCE v2");
  VerbsOptions options;
  options.ports.hca = "=fake1";
  EXPECT_HAS_PART(CreateStatus(options).message(), "fake0:2: excluded by INCCL_IB_HCA==fake1");
  options.ports = {.gid_index = 7};
  EXPECT_HAS_PART(CreateStatus(options).message(), "fake0:2: it has no GID 7");
  options = {.protection = tcp::Protection::kEncrypt};
  EXPECT_HAS_PART(CreateStatus(options).message(), "INCCL_NET_SECURITY=encrypt");
}

TEST_F(VerbsTest, TheListOfPortsHasEveryPort) {
  fake::Port infiniband = PortWith({kIpv6});
  infiniband.ethernet = false;
  infiniband.mtu = IBV_MTU_4096;
  Use({{.name = "fake0", .ports = {PortWith({kLinkLocal})}},
       {.name = "fake1", .ports = {PortWith({kLinkLocal, kIpv6, kIpv4OfV1, kIpv4}), infiniband}}});
  const std::vector<VerbsPort> ports = ListVerbsPorts({}).value();
  ASSERT_EQ(ports.size(), 3u);
  EXPECT_FALSE(ports[0].why_not.empty());
  EXPECT_EQ(ports[1].device, "fake1");
  EXPECT_EQ(ports[1].gid_index, 3);  // IPv4 of RoCE v2
  EXPECT_EQ(ports[1].gid, "::ffff:192.0.2.9");
  EXPECT_EQ(ports[1].mtu, 1024);
  EXPECT_EQ(ports[1].why_not, "");
  EXPECT_EQ(ports[2].port, 2);
  EXPECT_FALSE(ports[2].ethernet);
  EXPECT_EQ(ports[2].mtu, 4096);
  EXPECT_EQ(ListVerbsPorts({.gid_index = 1}).value()[1].gid, "2001:db8::7");
}

TEST_F(VerbsTest, TheLimitOfLockedMemoryIsNamed) {
  fake::Get().SetLockableBytes(1 << 20);
  EXPECT_TRUE(CreateStatus().ok());
  const Status status = CreateStatus({.expected_bytes = 2 << 20});
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_HAS_PART(status.message(), "registration of 2048 KiB");
  EXPECT_HAS_PART(status.message(), "RLIMIT_MEMLOCK");
  EXPECT_HAS_PART(status.message(), "ulimit -l unlimited");
  Connect();
  fake::Get().SetLockableBytes(0);
  const Status lane = ends_[1]->OpenRecv(SpecOf(0, 1)).status();
  EXPECT_HAS_PART(lane.message(), "data lane 0 -> 1");
  EXPECT_HAS_PART(lane.message(), "RLIMIT_MEMLOCK");
}

TEST_F(VerbsTest, HowAQueuePairConnects) {
  fake::Port wide = PortWith({kIpv6});
  wide.mtu = IBV_MTU_4096;
  fake::Port narrow = PortWith({kLinkLocal, kIpv4});
  narrow.mtu = IBV_MTU_2048;
  Use({{.name = "wide", .ports = {wide}}, {.name = "narrow", .ports = {narrow}}});
  VerbsOptions of_0{.traffic_class = 106, .timeout = 17}, of_1;
  of_0.ports.hca = "wide";
  of_1.ports.hca = "narrow";
  std::vector<uint32_t> first_packets;
  for (int again = 0; again < 3; ++again) {
    Connect(of_0, of_1);
    const std::vector<fake::Connection> both = fake::Get().Connections();
    ASSERT_EQ(both.size(), 2u);
    const ibv_qp_attr &in = both[0].to_receive, &out = both[0].to_send;
    EXPECT_EQ(both[0].peer, both[1].number);
    EXPECT_EQ(in.path_mtu, IBV_MTU_2048);
    EXPECT_EQ(both[1].to_receive.path_mtu, IBV_MTU_2048);
    EXPECT_EQ(in.ah_attr.is_global, 1);
    EXPECT_EQ(in.ah_attr.grh.hop_limit, 255);
    EXPECT_EQ(in.ah_attr.grh.traffic_class, 106);
    EXPECT_EQ(std::memcmp(in.ah_attr.grh.dgid.raw, kIpv4.bytes.data(), 16), 0);
    EXPECT_EQ(both[1].to_receive.ah_attr.grh.sgid_index, 1);
    EXPECT_EQ(out.timeout, 17);
    EXPECT_EQ(both[1].to_send.timeout, 14);
    EXPECT_LT(out.retry_cnt, 7);  // soft RoCE takes 7 for infinitely many
    EXPECT_LT(out.rnr_retry, 7);  // 7 would wait for ever
    EXPECT_EQ(out.sq_psn, both[1].to_receive.rq_psn);
    EXPECT_EQ(in.rq_psn, both[1].to_send.sq_psn);
    EXPECT_NE(out.sq_psn, in.rq_psn);
    EXPECT_LT(out.sq_psn, 1u << 24);
    first_packets.push_back(out.sq_psn);
    OpenLane();
    SendOne(0);
    Pump();
    EXPECT_TRUE(ReceiveOne(0));
    ends_.clear();
  }
  EXPECT_NE(first_packets[0], first_packets[1]);
  EXPECT_NE(first_packets[1], first_packets[2]);
}

TEST_F(VerbsTest, InfiniBandAddressesByLid) {
  fake::Port port = PortWith({kIpv6});
  port.ethernet = false;
  port.lid = 12;
  Use({{.name = "fake0", .ports = {port}}});
  Connect();
  const fake::Connection connection = fake::Get().Connections()[0];
  const ibv_ah_attr& address = connection.to_receive.ah_attr;
  EXPECT_EQ(address.is_global, 0);
  EXPECT_EQ(address.dlid, 12);
}

TEST_F(VerbsTest, PortsOfDifferentKindsDoNotConnect) {
  fake::Port infiniband = PortWith({kIpv6});
  infiniband.ethernet = false;
  Use({{.name = "roce", .ports = {PortWith({kIpv4})}}, {.name = "ib", .ports = {infiniband}}});
  VerbsOptions of_0, of_1;
  of_0.ports.hca = "roce";
  of_1.ports.hca = "ib";
  ends_.push_back(VerbsTransport::Create(0, 2, of_0).value());
  ends_.push_back(VerbsTransport::Create(1, 2, of_1).value());
  const Status status = ends_[0]->Attach(1, ends_[1]->address(), "1@b:2");
  EXPECT_HAS_PART(status.message(), "rank 0: verbs: peer 1@b:2: this rank's port roce:1");
  EXPECT_HAS_PART(status.message(), "of Ethernet, that of the peer of InfiniBand");
}

TEST_F(VerbsTest, MalformedAddressesAreRefused) {
  ends_.push_back(VerbsTransport::Create(0, 2, {}).value());
  ends_.push_back(VerbsTransport::Create(1, 2, {}).value());
  const std::vector<std::byte> good = ends_[1]->address();
  for (size_t length = 0; length < good.size(); ++length) {
    EXPECT_EQ(ends_[0]->Attach(1, std::span(good).first(length), "").code(), Code::kInternalError);
  }
  EXPECT_EQ(ends_[0]->Attach(0, good, "").code(), Code::kInvalidArgument);
  EXPECT_EQ(ends_[0]->Attach(2, good, "").code(), Code::kInvalidArgument);
  EXPECT_TRUE(ends_[0]->Attach(1, good, "").ok());
  EXPECT_EQ(ends_[0]->Attach(1, good, "").code(), Code::kInvalidUsage);
}

// One work request and one completion per slice and per batch of credits, on either side.
TEST_F(VerbsTest, WhatASliceCosts) {
  constexpr uint32_t kSlices = 1000;
  Connect();
  OpenLane();
  fake::Get().ResetCounters();
  const uint64_t objects = fake::Get().OpenObjects();
  for (uint32_t i = 0; i < kSlices; ++i) {
    SendOne(i);
    Pump();
    ASSERT_TRUE(ReceiveOne(i));
  }
  Pump();
  const fake::Counters counted = fake::Get().Count();
  EXPECT_EQ(counted.sends, kSlices);
  EXPECT_EQ(counted.bytes, uint64_t{kSlices} * (kSlotBytes + kHeaderBytes));
  EXPECT_EQ(counted.credits, kSlices / 2);  // half a lane at a time
  EXPECT_EQ(counted.messages, kSlices + kSlices / 2);
  EXPECT_EQ(counted.send_completions, kSlices + kSlices / 2);
  EXPECT_EQ(counted.events, 0u);  // no rank slept
  EXPECT_LE(counted.receives, counted.messages);
  EXPECT_EQ(fake::Get().OpenObjects(), objects);
}

TEST_F(VerbsTest, ASendQueueThatIsFullDelaysSlices) {
  fake::Machine machine = fake::Get().StandardMachine();
  machine.max_qp_wr = 3;
  fake::Get().SetMachine(machine);
  Connect();
  OpenLane(8);
  fake::Get().Hold(QueuePairOf(0), true);
  for (uint32_t i = 0; i < 8; ++i) SendOne(i);
  EXPECT_FALSE(CanSend());
  EXPECT_TRUE(ends_[0]->unsent());
  EXPECT_FALSE(ends_[0]->delivered());
  std::vector<int> ranks;
  ends_[0]->AppendUnsent(&ranks);
  EXPECT_EQ(ranks, std::vector<int>{1});
  EXPECT_EQ(fake::Get().Count().sends, 3u + 1u);  // and the grant
  fake::Get().Hold(QueuePairOf(0), false);
  Pump();
  EXPECT_FALSE(ends_[0]->unsent());
  for (uint32_t i = 0; i < 8; ++i) EXPECT_TRUE(ReceiveOne(i)) << i;
  Pump();
  EXPECT_TRUE(ends_[0]->delivered());
}

// More lanes at once than the inbox has room for grants.
TEST_F(VerbsTest, ManyLanes) {
  constexpr int kLanes = 100;
  Connect();
  std::vector<std::unique_ptr<SendLane>> sends;
  std::vector<std::unique_ptr<RecvLane>> recvs;
  for (int i = 0; i < kLanes; ++i) {
    recvs.push_back(ends_[1]->OpenRecv(SpecOf(0, 1, 1, static_cast<uint8_t>(i))).value());
  }
  EXPECT_TRUE(ends_[1]->unsent());
  for (int i = 0; i < kLanes; ++i) {
    sends.push_back(ends_[0]->OpenSend(SpecOf(0, 1, 1, static_cast<uint8_t>(i))).value());
  }
  for (int round = 0; round < kLanes; ++round) Pump();
  EXPECT_FALSE(ends_[1]->unsent());
  // All slices come before the consumer looks, and find a receive each.
  for (const auto& lane : sends) {
    ASSERT_NE(lane->TryAcquire().value().data, nullptr);
    ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
  }
  EXPECT_EQ(fake::Get().Count().not_ready, 0u);
  for (int round = 0; round < kLanes; ++round) Pump();
  for (const auto& lane : recvs) {
    RecvLane::Incoming incoming;
    EXPECT_TRUE(lane->TryPeek(&incoming).value());
  }
}

TEST_F(VerbsTest, TooManyLanesForTheReceiveQueue) {
  fake::Machine machine = fake::Get().StandardMachine();
  machine.max_srq_wr = 100;
  fake::Get().SetMachine(machine);
  Connect();
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    status = ends_[1]->OpenRecv(SpecOf(0, 1, 16, static_cast<uint8_t>(i))).status();
  }
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_HAS_PART(status.message(), "INCCL_CHANNELS");
}

struct Failure {
  ibv_wc_status status;
  const char* text;
};

TEST_F(VerbsTest, AConnectionThatFailsNamesThePeer) {
  for (const Failure& failure :
       {Failure{IBV_WC_RETRY_EXC_ERR, "transport retry counter exceeded (its process or host"},
        Failure{IBV_WC_RNR_RETRY_EXC_ERR, "RNR retry counter exceeded"},
        Failure{IBV_WC_REM_ACCESS_ERR, "remote access error"}}) {
    SCOPED_TRACE(failure.text);
    Connect();
    OpenLane();
    fake::Get().FailNextSend(failure.status, false);
    SendOne(0);
    SendOne(1);
    EXPECT_TRUE(ProgressOf(0, 1).ok());  // a more precise report may come
    EXPECT_TRUE(ends_[0]->unsent());     // and the call must not end meanwhile
    EXPECT_TRUE(send_->TryAcquire().ok());
    const Status status = ProgressOf(0, 1 + kLater);
    EXPECT_EQ(status.code(), Code::kRemoteError);
    EXPECT_HAS_PART(status.message(), "rank 0: verbs: peer 1@host:70 is lost: ");
    EXPECT_HAS_PART(status.message(), failure.text);
    EXPECT_EQ(send_->TryAcquire().status().code(), Code::kRemoteError);
    ends_.clear();
  }
}

TEST_F(VerbsTest, ADeadPeerAndAPortThatIsDown) {
  Connect();
  OpenLane();
  ends_[1].reset();
  SendOne(0);
  EXPECT_TRUE(ProgressOf(0, 1).ok());
  EXPECT_HAS_PART(ProgressOf(0, 1 + kLater).message(), "transport retry counter exceeded");
  ends_.clear();

  Connect();
  OpenLane();
  fake::Get().SetPortState("fake0", 1, IBV_PORT_DOWN);
  SendOne(0);
  EXPECT_TRUE(ProgressOf(0, 1).ok());
  EXPECT_HAS_PART(ProgressOf(0, 1 + kLater).message(), "; fake0:1 is DOWN");
  fake::Get().SetPortState("fake0", 1, IBV_PORT_ACTIVE);
  ends_.clear();

  // As soft RoCE says it.
  Connect();
  OpenLane();
  fake::Get().FailNextSend(IBV_WC_LOC_QP_OP_ERR, false);
  SendOne(0);
  EXPECT_TRUE(ProgressOf(0, 1).ok());
  fake::Get().SetPortState("fake0", 1, IBV_PORT_DOWN);
  const Status status = ProgressOf(0, 1 + kLater);
  EXPECT_HAS_PART(status.message(), "peer 1@host:70 is lost: local QP operation error; fake0:1 ");
}

// The credits that no slice will use again are no reason to fail.
TEST_F(VerbsTest, APeerThatHasLeftTakesNoCredits) {
  Connect();
  OpenLane();
  for (uint32_t i = 0; i < 2; ++i) SendOne(i);
  Pump();
  ends_[0]->Quiesce(SystemClock().Now() + kSecond);
  EXPECT_TRUE(ReceiveOne(0));
  EXPECT_TRUE(ReceiveOne(1));
  EXPECT_TRUE(ProgressOf(1, 1).ok());
  EXPECT_TRUE(ProgressOf(1, 2).ok());  // sees that the credit has failed
  EXPECT_TRUE(ProgressOf(1, 2 + kLater).ok());
  EXPECT_FALSE(ends_[1]->unsent());
  EXPECT_TRUE(ends_[1]->delivered());
  RecvLane::Incoming incoming;
  EXPECT_EQ(recv_->TryPeek(&incoming).status().code(), Code::kRemoteError);
}

TEST_F(VerbsTest, ADeviceThatRefusesARequest) {
  Connect();
  OpenLane();
  fake::Get().FailNextPost(ENOMEM);
  SendOne(0);
  const Status status = ProgressOf(0, 1);
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_HAS_PART(status.message(), "rank 0: verbs: fake0:1: posting a request: Cannot allocate");
  EXPECT_EQ(status.message().find("peer"), std::string::npos) << status.message();
}

// What a device says of this end accuses no peer, and needs no better report.
TEST_F(VerbsTest, ADeviceThatCannotSendASlot) {
  for (const Failure& failure : {Failure{IBV_WC_LOC_PROT_ERR, "local protection error"},
                                 Failure{IBV_WC_LOC_LEN_ERR, "local length error"}}) {
    SCOPED_TRACE(failure.text);
    Connect();
    OpenLane();
    fake::Get().FailNextSend(failure.status, false);
    SendOne(0);
    SendOne(1);
    const Status status = ProgressOf(0, 1);
    EXPECT_EQ(status.code(), Code::kSystemError);
    EXPECT_HAS_PART(status.message(), "rank 0: verbs: fake0:1: it cannot send the slot at 0x");
    EXPECT_HAS_PART(status.message(), failure.text);
    EXPECT_EQ(status.message().find("peer"), std::string::npos) << status.message();
    EXPECT_EQ(send_->TryAcquire().status().message(), status.message());
    ends_.clear();
  }
}

// Receives are posted before a peer may send, so it never finds none; if it did, it would say so.
TEST_F(VerbsTest, AReceiveQueueThatIsEmpty) {
  Connect();
  OpenLane();
  fake::Get().TakeReceives();
  SendOne(0);
  EXPECT_TRUE(ProgressOf(0, 1).ok());
  EXPECT_HAS_PART(ProgressOf(0, 1 + kLater).message(), "RNR retry counter exceeded");
  EXPECT_EQ(fake::Get().Count().not_ready, 1u);
}

TEST_F(VerbsTest, EveryFlippedByteIsFound) {
  constexpr uint32_t kBytes = 100;
  for (uint32_t offset = 0; offset < kHeaderBytes + kBytes; ++offset) {
    Connect();
    OpenLane();
    fake::Get().FlipNextWrite(offset, 0x10);
    SendOne(0, kBytes);
    const Status status = ProgressOf(1, 1);
    EXPECT_EQ(status.code(), Code::kInternalError) << offset;
    EXPECT_HAS_PART(status.message(), "rank 1: verbs: peer 0@host:71 sent ");
    ends_.clear();
  }
}

TEST_F(VerbsTest, MessagesThatAreNotDueAreRefused) {
  using verbs::Immediate;
  struct Case {
    Immediate immediate;
    const char* text;
  };
  for (const Case& c : {
           Case{{.lane = 7, .value = 0}, "a slice of lane number 7, of 1"},
           Case{{.lane = 1, .value = 3}, "a slice in slot 3 of data lane 0 -> 1"},
           Case{{.lane = 1, .value = 0}, "a slice of 0 bytes in 64"},
           Case{{.credit = true, .lane = 2, .value = 1}, "a credit of lane number 2, of 0"},
           Case{{.credit = true, .lane = 0, .value = 8}, "a credit of 0 slices after 8"},
           Case{{.credit = true, .lane = 0, .value = 10}, "a credit of 2 slices after 8, of 1"},
       }) {
    SCOPED_TRACE(c.text);
    Connect();
    recv_ = ends_[1]->OpenRecv(SpecOf(0, 1)).value();
    fake::Get().Inject(QueuePairOf(1), Pack(c.immediate), kHeaderBytes);
    const Status status = ProgressOf(1, 1);
    EXPECT_EQ(status.code(), Code::kInternalError);
    if (c.immediate.credit || c.immediate.lane != 1 || c.immediate.value != 0) {
      EXPECT_HAS_PART(status.message(), c.text);
    }
    ends_.clear();
  }
}

TEST_F(VerbsTest, SlicesWithoutCreditAreRefused) {
  Connect();
  OpenLane();
  for (uint32_t i = 0; i < kDepth; ++i) SendOne(i);
  fake::Get().Inject(QueuePairOf(1), verbs::Pack({.lane = 1, .value = 0}), kHeaderBytes);
  Status status;
  for (int i = 0; i < 3 && status.ok(); ++i) status = ProgressOf(1, 1);
  EXPECT_HAS_PART(status.message(), "without credit");
}

TEST_F(VerbsTest, ImmediateDataKeepTheirFields) {
  for (const bool credit : {false, true}) {
    for (const uint16_t lane : {0, 1, 0x1234, 0x7fff}) {
      for (const uint16_t value : {0, 1, 0x8000, 0xffff}) {
        const verbs::Immediate back =
            verbs::Unpack(verbs::Pack({.credit = credit, .lane = lane, .value = value}));
        EXPECT_EQ(back.credit, credit);
        EXPECT_EQ(back.lane, lane);
        EXPECT_EQ(back.value, value);
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
