// SPDX-License-Identifier: Apache-2.0
//
// Several ports of a host, and the trial of the path between two ranks.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/verbs_pair.h"

namespace inccl::test {
namespace {

using Ends = std::vector<std::unique_ptr<VerbsTransport>>;

class VerbsRailsTest : public VerbsTest {
 protected:
  void Join(int nranks, const std::vector<VerbsOptions>& options) {
    for (int rank = 0; rank < nranks; ++rank) {
      const size_t which = static_cast<size_t>(rank) % options.size();
      ends_.push_back(VerbsTransport::Create(rank, nranks, options[which]).value());
    }
    for (int rank = 0; rank < nranks; ++rank) {
      VerbsTransport* const end = ends_[static_cast<size_t>(rank)].get();
      for (int peer = 0; peer < nranks; ++peer) {
        if (peer == rank) continue;
        ASSERT_TRUE(end->Attach(peer, ends_[static_cast<size_t>(peer)]->address(),
                                fmt::format("{}@host:{}", peer, 70 + peer))
                        .ok());
      }
      ASSERT_TRUE(end->Protect({}, bootstrap::AsBytes("test")).ok());
    }
  }
  // What each rank finds out about the others.
  std::vector<std::vector<PathFailure>> TryAll(Time limit = 5 * kSecond) {
    std::vector<std::vector<PathFailure>> found(ends_.size());
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < ends_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<int> peers;
        for (size_t peer = 0; peer < ends_.size(); ++peer) {
          if (peer != rank) peers.push_back(static_cast<int>(peer));
        }
        found[rank] =
            ends_[rank]->TryPaths(peers, {.deadline = SystemClock().Now() + limit}).value();
      });
    }
    for (std::thread& thread : threads) thread.join();
    return found;
  }
  // A slice from each rank to each other one.
  void SendAll() {
    std::vector<std::unique_ptr<SendLane>> sends;
    std::vector<std::unique_ptr<RecvLane>> recvs;
    const auto n = static_cast<int>(ends_.size());
    for (int from = 0; from < n; ++from) {
      for (int to = 0; to < n; ++to) {
        if (from == to) continue;
        sends.push_back(ends_[static_cast<size_t>(from)]->OpenSend(SpecOf(from, to)).value());
        recvs.push_back(ends_[static_cast<size_t>(to)]->OpenRecv(SpecOf(from, to)).value());
      }
    }
    Pump();
    for (const auto& lane : sends) {
      ASSERT_NE(lane->TryAcquire().value().data, nullptr);
      ASSERT_TRUE(lane->Publish({.bytes = kSlotBytes}).ok());
    }
    Pump();
    for (const auto& lane : recvs) {
      RecvLane::Incoming incoming;
      EXPECT_TRUE(lane->TryPeek(&incoming).value());
    }
  }
};

fake::DeviceModel Model(const std::string& name, fake::Port port = PortWith({kIpv4})) {
  return {.name = name, .ports = {std::move(port)}};
}

std::map<std::string, int> UsedPorts() {
  std::map<std::string, int> used;
  for (const fake::Connection& connection : fake::Get().Connections()) {
    ++used[fmt::format("{}:{}", connection.device, connection.to_receive.ah_attr.port_num)];
  }
  return used;
}

TEST_F(VerbsRailsTest, ConnectionsUseAllPorts) {
  fake::DeviceModel two = Model("b");
  two.ports.push_back(PortWith({kIpv4}));
  Use({Model("a"), two});
  Join(6, {{}});
  const std::map<std::string, int> used = UsedPorts();
  ASSERT_EQ(used.size(), 3u);
  for (const auto& [port, connections] : used) EXPECT_EQ(connections, 10) << port;
  for (const auto& failures : TryAll()) EXPECT_TRUE(failures.empty());
  SendAll();
}

// A sleeping rank wakes for every port.
TEST_F(VerbsRailsTest, AWaitIsForAllPorts) {
  Use({Model("a"), Model("b")});
  Join(3, {{}});
  for (const int from : {1, 2}) {  // over different ports
    auto send = ends_[static_cast<size_t>(from)]->OpenSend(SpecOf(from, 0)).value();
    auto recv = ends_[0]->OpenRecv(SpecOf(from, 0)).value();
    Pump();
    std::thread sender([&] {
      ASSERT_NE(send->TryAcquire().value().data, nullptr);
      ASSERT_TRUE(send->Publish({.bytes = 8}).ok());
    });
    RecvLane::Incoming incoming;
    WakeupEvent* const event = ends_[0]->wakeup_event();
    while (true) {
      const uint32_t token = event->Arm();
      ASSERT_TRUE(ends_[0]->Progress(0).ok());
      if (recv->TryPeek(&incoming).value()) {
        event->Disarm();
        break;
      }
      event->Wait(token, 60 * kSecond);
    }
    sender.join();
  }
}

// The creation has been aborted, or another rank has failed.
TEST_F(VerbsRailsTest, ATrialEndsWhenItsCallerGivesUp) {
  Use({Model("a")});
  Join(2, {{}});
  const std::vector<int> peers = {1};  // which does not try
  int asked = 0;
  const auto failures = ends_[0]->TryPaths(
      peers, {.deadline = SystemClock().Now() + 600 * kSecond,
              .check = [&] { return ++asked < 3 ? Status::Ok() : RemoteError("given up"); }});
  EXPECT_EQ(failures.status().code(), Code::kRemoteError);
  EXPECT_EQ(failures.status().message(), "given up");
}

TEST_F(VerbsRailsTest, OnlyTheFastestPortsOfOneKind) {
  fake::Port slow = PortWith({kIpv4});
  slow.speed = 32;
  fake::Port infiniband = PortWith({kIpv6});
  infiniband.ethernet = false;
  Use({Model("slow", slow), Model("fast0"), Model("ib", infiniband), Model("fast1")});
  Join(4, {{}});
  EXPECT_EQ(UsedPorts(), (std::map<std::string, int>{{"fast0:1", 4}, {"fast1:1", 8}}));
  EXPECT_EQ(ListVerbsPorts({}).value()[0].gbps, 100);
  EXPECT_EQ(ListVerbsPorts({}).value()[1].gbps, 200);
}

TEST_F(VerbsRailsTest, PortsNearToABoundProcessComeFirst) {
  const std::filesystem::path dir = std::filesystem::path(::testing::TempDir()) / "inccl-rails";
  std::vector<fake::DeviceModel> devices = {Model("far"), Model("near")};
  for (size_t node = 0; node < devices.size(); ++node) {
    devices[node].path = dir / devices[node].name;
    std::filesystem::create_directories(dir / devices[node].name / "device");
    std::ofstream(dir / devices[node].name / "device" / "numa_node") << node << "\n";
  }
  Use(devices);
  VerbsOptions bound, elsewhere;
  bound.ports.nodes = {1};
  elsewhere.ports.nodes = {7};
  Join(3, {bound, elsewhere, {}});
  std::map<std::string, int> used = UsedPorts();
  EXPECT_EQ(used["far:1"] + used["near:1"], 6);
  EXPECT_EQ(used["far:1"], 1);  // of rank 2 to rank 0
  EXPECT_EQ(ListVerbsPorts({}).value()[1].node, 1);
  SendAll();
  std::filesystem::remove_all(dir);
}

TEST_F(VerbsRailsTest, APortThatGoesDownIsNamed) {
  Use({Model("a"), Model("b")});
  Join(3, {{}});
  auto send = ends_[0]->OpenSend(SpecOf(0, 2)).value();   // rail 0
  auto other = ends_[0]->OpenSend(SpecOf(0, 1)).value();  // rail 1
  auto recv = ends_[2]->OpenRecv(SpecOf(0, 2)).value();
  auto other_recv = ends_[1]->OpenRecv(SpecOf(0, 1)).value();
  Pump();
  fake::Get().SetPortState("a", 1, IBV_PORT_DOWN);
  for (SendLane* const lane : {send.get(), other.get()}) {
    ASSERT_NE(lane->TryAcquire().value().data, nullptr);
    ASSERT_TRUE(lane->Publish({.bytes = 8}).ok());
  }
  EXPECT_TRUE(ends_[0]->Progress(1).ok());
  const Status status = ends_[0]->Progress(1 + kLater).status();
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_HAS_PART(status.message(), "rank 0: verbs: peer 2@host:72 is lost: ");
  EXPECT_HAS_PART(status.message(), "; a:1 is DOWN");
  EXPECT_TRUE(ProgressOf(1, 1).ok());
  RecvLane::Incoming incoming;
  EXPECT_TRUE(other_recv->TryPeek(&incoming).value());  // over b:1
}

// It sends nothing, and the producer is not in a call, so only a probe finds it.
TEST_F(VerbsRailsTest, ARankThatOnlyWaitsLearnsOfABrokenConnection) {
  Use({Model("a"), Model("b")});
  Join(3, {{}});
  auto send = ends_[0]->OpenSend(SpecOf(0, 2)).value();        // rail 0
  auto other_send = ends_[1]->OpenSend(SpecOf(1, 2)).value();  // rail 1
  auto recv = ends_[2]->OpenRecv(SpecOf(0, 2)).value();
  auto other = ends_[2]->OpenRecv(SpecOf(1, 2)).value();
  Pump();
  RecvLane::Incoming incoming;
  Time now = 1;
  const auto wait = [&](Time time) {
    Status status;
    for (const Time end = now + time; now < end && status.ok(); now += 10 * kMillisecond) {
      EXPECT_TRUE(ProgressOf(2, now).ok());
      EXPECT_FALSE(other->TryPeek(&incoming).value());
      status = recv->TryPeek(&incoming).status();
    }
    return status;
  };
  fake::Get().ResetCounters();
  EXPECT_TRUE(wait(10 * kSecond).ok());
  EXPECT_GE(fake::Get().Count().send_completions, 2u * 4);
  EXPECT_LE(fake::Get().Count().send_completions, 2u * 10);
  Pump();
  EXPECT_EQ(fake::Get().Count().messages, 0u);  // the producers notice nothing
  fake::Get().SetPortState("a", 1, IBV_PORT_DOWN);
  const Status status = wait(5 * kSecond);
  EXPECT_EQ(status.code(), Code::kRemoteError);
  EXPECT_HAS_PART(status.message(), "rank 2: verbs: peer 0@host:70 is lost: transport retry");
  EXPECT_HAS_PART(status.message(), "; a:1 is DOWN");
}

TEST_F(VerbsRailsTest, APathIsTriedWithThePacketsThatItWillCarry) {
  fake::Port port = PortWith({kIpv4});
  port.mtu = IBV_MTU_4096;
  fake::Machine machine = fake::Get().StandardMachine();
  machine.devices = {Model("a", port)};
  fake::Get().SetMachine(machine);
  Join(3, {{}});
  fake::Get().ResetCounters();
  for (const auto& failures : TryAll()) EXPECT_TRUE(failures.empty());
  EXPECT_EQ(fake::Get().Count().bytes, 6u * 4096);
  EXPECT_EQ(fake::Get().Count().not_ready, 0u);
  SendAll();
  ends_.clear();
  machine.largest_packet = 1500;
  fake::Get().SetMachine(machine);
  Join(2, {{}});
  for (const auto& failures : TryAll()) {
    ASSERT_EQ(failures.size(), 1u);
    EXPECT_HAS_PART(failures[0].why, "a:1: transport retry counter exceeded");
  }
}

// A partition key of one rank's port that the others' do not have, and a network apart.
TEST_F(VerbsRailsTest, PathsThatDoNotExistAreFound) {
  for (const bool pkey : {true, false}) {
    fake::Port apart = PortWith({kIpv4});
    if (pkey) apart.pkey = 0x8001;
    if (!pkey) apart.network = 1;
    Use({Model("a"), Model("b", apart)});
    VerbsOptions on_a, on_b;
    on_a.ports.hca = "a";
    on_b.ports.hca = "b";
    Join(3, {on_a, on_a, on_b});
    const auto found = TryAll();
    for (const size_t rank : {0, 1}) {
      ASSERT_EQ(found[rank].size(), 1u);
      EXPECT_EQ(found[rank][0].peer, 2);
      EXPECT_HAS_PART(found[rank][0].why, "a:1: transport retry counter exceeded");
    }
    EXPECT_EQ(found[2].size(), 2u);
    ends_.clear();
  }
}

TEST_F(VerbsRailsTest, ATrialEndsInTime) {
  Join(2, {{}});
  fake::Get().Hold(QueuePairOf(0), true);
  const auto found = TryAll(50 * kMillisecond);
  for (const size_t rank : {0, 1}) {
    ASSERT_EQ(found[rank].size(), 1u);
    EXPECT_HAS_PART(found[rank][0].why, rank == 0 ? "fake0:1: no acknowledgement came in time"
                                                  : "fake0:1: nothing of the peer came in time");
  }
  fake::Get().Hold(QueuePairOf(0), false);
}

}  // namespace
}  // namespace inccl::test
