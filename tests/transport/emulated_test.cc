// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of the emulated link, in virtual time: nothing here waits or can be disturbed.
#include "transport/emulated/emulated.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/rng.h"
#include "fakes/manual_clock.h"
#include "support/seed.h"
#include "transport/emulated/link_transport.h"
#include "transport/loopback/loopback.h"

namespace inccl {
namespace emulated {

struct LinkTestAccess {
  // When the slice that this lane shows next left its sender.
  static Time NextDeparture(RecvLane* lane) {
    SliceHeader header;
    Time departure = 0;
    EXPECT_TRUE(*static_cast<LinkRecvLane*>(lane)->inner_->PeekAhead(0, &header, &departure));
    return departure;
  }
};

}  // namespace emulated
namespace {

using test::ManualClock;

constexpr uint32_t k128K = 128 << 10;

// Slices of one lane, all of one size, sent as soon as there is a slot and consumed on sight.
struct Flow {
  int from = 0, to = 0;
  uint32_t bytes = k128K;
  uint32_t slices = 0;
  uint16_t depth = 4;
  uint8_t channel = 0;
  std::unique_ptr<SendLane> send = nullptr;
  std::unique_ptr<RecvLane> recv = nullptr;
  uint32_t sent = 0, received = 0;
  Time last = 0;                      // when the last slice became visible
  std::vector<Time> departures = {};  // by slice
  std::vector<Time> visible = {};
};

class LinkTest : public ::testing::Test {
 protected:
  void Start(int nranks, double gbps, double latency_us) {
    ends_.clear();
    gbps_ = gbps;
    latency_ = static_cast<Time>(latency_us * 1000);
    for (auto& end : MakeLoopback(nranks)) {
      ends_.push_back(EmulateLink(std::move(end), LinkOptions{gbps, latency_us, &clock_}));
    }
    start_ = clock_.now;
  }
  void Open(Flow* flow) {
    LaneSpec spec;
    spec.channel = flow->channel;
    spec.producer = flow->from;
    spec.consumers = {flow->to};
    spec.slot_bytes = flow->bytes;
    spec.depth = flow->depth;
    flow->send = *ends_[static_cast<size_t>(flow->from)]->OpenSend(spec);
    flow->recv = *ends_[static_cast<size_t>(flow->to)]->OpenRecv(spec);
  }
  bool Progress() {
    for (auto& end : ends_) {
      if (!end->Progress(clock_.now).ok()) return false;
    }
    return true;
  }
  void SendOne(Flow* flow) {
    ASSERT_NE(flow->send->TryAcquire()->data, nullptr);
    ASSERT_TRUE(flow->send->Publish(SliceHeader{flow->bytes, flow->sent++, 0}).ok());
  }
  void ReceiveAll(Flow* flow, bool* moved) {
    RecvLane::Incoming incoming;
    while (*flow->recv->TryPeek(&incoming)) {
      ASSERT_EQ(incoming.header.slice, flow->received++);
      flow->departures.push_back(emulated::LinkTestAccess::NextDeparture(flow->recv.get()));
      flow->visible.push_back(clock_.now);
      flow->last = clock_.now;
      ASSERT_TRUE(flow->recv->Release().ok());
      *moved = true;
    }
  }
  // All ranks poll until none finds anything, then time goes to the next event.
  void Run(std::vector<Flow>* flows) {
    for (Flow& flow : *flows) Open(&flow);
    while (true) {
      ASSERT_TRUE(Progress());
      bool moved = false, done = true;
      for (Flow& flow : *flows) {
        while (flow.sent < flow.slices && flow.send->TryAcquire()->data != nullptr) {
          SendOne(&flow);
          moved = true;
        }
        ReceiveAll(&flow, &moved);
        done = done && flow.received == flow.slices;
      }
      if (done) return;
      if (moved) continue;
      const Time next = NextEvent();
      ASSERT_NE(next, kNever) << "a rank would sleep for ever";
      ASSERT_GT(next, clock_.now) << "a rank would spin";
      clock_.now = next;
    }
  }
  Time NextEvent(const Transport& end) const { return inccl::NextEvent(end); }
  Time NextEvent() const {
    Time next = kNever;
    for (const auto& end : ends_) next = std::min(next, inccl::NextEvent(*end));
    return next;
  }
  // ns that `slices` of `bytes` take on a link.
  double Cost(double slices, double bytes) const { return slices * (64 + bytes) * 8 / gbps_; }
  // From the start to the last of these, without the latency.
  double Took(const std::vector<Flow>& flows) const {
    Time last = 0;
    for (const Flow& flow : flows) last = std::max(last, flow.last);
    return static_cast<double>(last - start_ - latency_);
  }

  ManualClock clock_;
  Time start_ = 0;
  double gbps_ = 0;
  Time latency_ = 0;
  std::vector<std::unique_ptr<Transport>> ends_;
};

TEST_F(LinkTest, OneSliceArrivesAfterItsTimeAndLatency) {
  Start(2, 1.0, 5.0);
  Flow flow{.from = 0, .to = 1, .bytes = 1000};
  Open(&flow);
  ASSERT_TRUE(Progress());
  SendOne(&flow);
  ASSERT_TRUE(Progress());
  RecvLane::Incoming incoming;
  EXPECT_FALSE(*flow.recv->TryPeek(&incoming));
  const Time arrival = start_ + (64 + 1000) * 8 + 5000;
  EXPECT_EQ(NextEvent(*ends_[1]), arrival);
  EXPECT_EQ(NextEvent(*ends_[0]), kNever);
  clock_.now = arrival - 1;
  ASSERT_TRUE(Progress());
  EXPECT_FALSE(*flow.recv->TryPeek(&incoming));
  clock_.now = arrival;
  EXPECT_FALSE(*flow.recv->TryPeek(&incoming)) << "time stands still until Progress";
  ASSERT_TRUE(Progress());
  EXPECT_TRUE(*flow.recv->TryPeek(&incoming));
  EXPECT_EQ(emulated::LinkTestAccess::NextDeparture(flow.recv.get()), arrival - 5000);
  EXPECT_EQ(NextEvent(*ends_[1]), kNever) << "what is visible is no event to come";
}

TEST_F(LinkTest, DepthOneWaitsForTheCreditToTravel) {
  Start(2, 1.0, 5.0);
  std::vector<Flow> flows;
  flows.push_back(Flow{.from = 0, .to = 1, .bytes = 1000, .slices = 10, .depth = 1});
  Run(&flows);
  // Each turn: slice, latency, credit of 16 bytes, latency.
  const double turn = Cost(1, 1000) + 5000 + 16 * 8 + 5000;
  EXPECT_NEAR(Took(flows), 9 * turn + Cost(1, 1000), 20);
}

TEST_F(LinkTest, FourSlotsKeepTheLinkBusy) {
  for (const double gbps : {1.0, 10.0}) {
    Start(2, gbps, 20.0);
    std::vector<Flow> flows;
    flows.push_back(Flow{.from = 0, .to = 1, .slices = 200});
    Run(&flows);
    EXPECT_GE(Took(flows), Cost(200, k128K) - 1);
    EXPECT_LE(Took(flows), Cost(200, k128K) * 1.0001) << gbps << " Gbit/s";
  }
}

// All ports full in both directions, credits among the data.
TEST_F(LinkTest, RingKeepsAllLinksBusy) {
  for (const double gbps : {1.0, 10.0}) {
    Start(4, gbps, 20.0);
    std::vector<Flow> flows;
    for (int rank = 0; rank < 4; ++rank) {
      flows.push_back(Flow{.from = rank, .to = (rank + 1) % 4, .slices = 200});
    }
    Run(&flows);
    EXPECT_GE(Took(flows), Cost(200, k128K) - 1);
    EXPECT_LE(Took(flows), (Cost(200, k128K) + 200 * 16 * 8 / gbps) * 1.001) << gbps << " Gbit/s";
  }
}

TEST_F(LinkTest, OneToThreeHasOneLinksRate) {
  Start(4, 10.0, 20.0);
  std::vector<Flow> flows;
  for (int to = 1; to < 4; ++to) flows.push_back(Flow{.from = 0, .to = to, .slices = 100});
  Run(&flows);
  EXPECT_GE(Took(flows), Cost(300, k128K) - 1);
  EXPECT_LE(Took(flows), Cost(300, k128K) * 1.001);
  EXPECT_EQ(ends_[0]->counters().slices, 300u);
  EXPECT_EQ(ends_[0]->counters().payload_bytes, uint64_t{300} * k128K);
  EXPECT_EQ(ends_[1]->counters().credits, 100u);
}

TEST_F(LinkTest, ThreeToOneHasOneLinksRate) {
  Start(4, 10.0, 20.0);
  std::vector<Flow> flows;
  for (int from = 1; from < 4; ++from) flows.push_back(Flow{.from = from, .to = 0, .slices = 100});
  Run(&flows);
  EXPECT_GE(Took(flows), Cost(300, k128K) - 1);
  EXPECT_LE(Took(flows), Cost(300, k128K) * 1.001);
  // Fair: they end together but for one round of slots.
  for (const Flow& flow : flows) {
    EXPECT_LE(Took(flows) - static_cast<double>(flow.last - start_ - latency_), Cost(12, k128K));
  }
}

TEST_F(LinkTest, DifferentPortsDoNotDisturbEachOther) {
  Start(4, 10.0, 0.0);
  std::vector<Flow> flows;
  flows.push_back(Flow{.from = 0, .to = 1, .slices = 100});
  flows.push_back(Flow{.from = 2, .to = 3, .slices = 100});
  Run(&flows);
  EXPECT_LE(Took(flows), Cost(100, k128K) * 1.0001);
}

TEST_F(LinkTest, ACreditOvertakesDataThatWaits) {
  Start(2, 1.0, 0.0);
  Flow forth{.from = 0, .to = 1, .bytes = 100, .depth = 1};
  Flow back{.from = 1, .to = 0};
  Open(&forth);
  Open(&back);
  ASSERT_TRUE(Progress());
  SendOne(&forth);
  for (int i = 0; i < 4; ++i) SendOne(&back);  // about 4 ms of data at the consumer's port
  clock_.now += 164 * 8;
  ASSERT_TRUE(Progress());
  bool received = false;
  ReceiveAll(&forth, &received);
  ASSERT_TRUE(received);
  ASSERT_TRUE(Progress());
  EXPECT_EQ(forth.send->TryAcquire()->data, nullptr);
  EXPECT_EQ(forth.send->Publish(SliceHeader{}).code(), Code::kInvalidUsage);
  EXPECT_EQ(NextEvent(*ends_[0]), clock_.now + 16 * 8);
  clock_.now += 16 * 8;
  ASSERT_TRUE(Progress());
  EXPECT_NE(forth.send->TryAcquire()->data, nullptr);
}

// What arrived while no rank looked was let through then, not when it is looked at.
TEST_F(LinkTest, ASlowConsumerFindsWhatHasArrived) {
  Start(3, 1.0, 0.0);
  Flow a{.from = 1, .to = 0, .bytes = 10000};
  Flow b{.from = 2, .to = 0, .bytes = 10000};
  Open(&a);
  Open(&b);
  ASSERT_TRUE(Progress());
  for (int i = 0; i < 4; ++i) SendOne(&a);
  clock_.now += static_cast<Time>(Cost(100, 10000));
  ASSERT_TRUE(Progress());
  SendOne(&b);
  clock_.now += static_cast<Time>(Cost(1, 10000));
  ASSERT_TRUE(Progress());
  bool received = false;
  ReceiveAll(&b, &received);
  EXPECT_TRUE(received) << "the port was idle";
  ReceiveAll(&a, &received);
  EXPECT_EQ(a.received, 4u) << "all arrived long ago";
}

// A small slice that arrives while a large one is coming in is not behind it, however late both are
// looked at and whichever lane is looked at first.
TEST_F(LinkTest, SlicesAreLetInInOrderOfArrival) {
  for (const bool large_first : {true, false}) {
    Start(3, 1.0, 0.0);
    Flow large{.from = 1, .to = 0, .bytes = 12500 - 64};  // 100 us
    Flow small{.from = 2, .to = 0, .bytes = 125 - 64};    // 1 us
    Open(large_first ? &large : &small);
    Open(large_first ? &small : &large);
    ASSERT_TRUE(Progress());
    SendOne(&large);
    clock_.now += 10 * kMicrosecond;
    SendOne(&small);
    bool moved = false;
    clock_.now = start_ + 100 * kMicrosecond;
    ASSERT_TRUE(Progress());
    ReceiveAll(&large, &moved);
    EXPECT_EQ(large.received, 0u) << "it shared the port with the small one";
    EXPECT_EQ(NextEvent(), start_ + 101 * kMicrosecond);
    ReceiveAll(&small, &moved);
    EXPECT_EQ(small.received, 1u);
    clock_.now = start_ + 101 * kMicrosecond;
    ASSERT_TRUE(Progress());
    ReceiveAll(&large, &moved);
    EXPECT_EQ(large.received, 1u);
  }
}

// At two ports at once the small one is through when it arrives.
TEST_F(LinkTest, ASmallSliceOvertakesALargeOneThatIsComingIn) {
  Start(3, 1.0, 0.0);
  Flow large{.from = 1, .to = 0, .bytes = 12500 - 64};
  Flow small{.from = 2, .to = 0, .bytes = 125 - 64};
  Open(&large);
  Open(&small);
  ASSERT_TRUE(Progress());
  SendOne(&large);
  clock_.now += 10 * kMicrosecond;
  SendOne(&small);
  ASSERT_TRUE(Progress());
  EXPECT_EQ(NextEvent(), start_ + 11 * kMicrosecond);
  clock_.now = NextEvent();
  ASSERT_TRUE(Progress());
  bool moved = false;
  ReceiveAll(&small, &moved);
  EXPECT_TRUE(moved);
  EXPECT_EQ(NextEvent(*ends_[0]), start_ + 101 * kMicrosecond);
}

TEST_F(LinkTest, RefusesMulticast) {
  Start(3, 1.0, 0.0);
  LaneSpec spec;
  spec.producer = 0;
  spec.consumers = {1, 2};
  EXPECT_FALSE(ends_[0]->CapsFor(0, spec.consumers).multicast);
  EXPECT_FALSE(ends_[0]->caps().shared_slots);
  spec.depth = 1;
  EXPECT_EQ(ends_[0]->OpenSend(spec).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ends_[1]->OpenRecv(spec).status().code(), Code::kInvalidArgument);
}

TEST_F(LinkTest, RefusesLanesWithoutStamps) {
  Start(2, 1.0, 0.0);
  for (auto& end : ends_) end = EmulateLink(std::move(end), LinkOptions{.clock = &clock_});
  LaneSpec spec;
  spec.consumers = {1};
  spec.depth = 1;
  for (const Status& status :
       {ends_[0]->OpenSend(spec).status(), ends_[1]->OpenRecv(spec).status()}) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message().find("over transport emulated link"), std::string::npos);
  }
}

// A slice at a port: when its first byte can be served, when its last one has been, and for how
// long it occupies the port.
struct Service {
  double begin, end, cost;
};

// In no interval more than what the rate allows.
void CheckRate(std::vector<Service> services) {
  std::sort(services.begin(), services.end(),
            [](const Service& a, const Service& b) { return a.end < b.end; });
  for (const Service& first : services) {
    double busy = 0;
    for (const Service& service : services) {
      if (service.begin < first.begin) continue;
      busy += service.cost;
      ASSERT_GE(service.end - first.begin, busy - 2) << "from " << first.begin;
    }
  }
}

TEST_F(LinkTest, NoPortExceedsItsRate) {
  Rng rng(test::TestSeed());
  for (int round = 0; round < 20; ++round) {
    const double rates[] = {0.5, 1.0, 10.0, 97.0};
    Start(4, rates[rng.Below(4)], static_cast<double>(rng.Below(50)));
    std::vector<Flow> flows;
    for (int lane = 0; lane < 32; ++lane) {
      const int from = lane / 8, to = lane / 2 % 4;
      if (from == to) continue;
      flows.push_back(Flow{.from = from,
                           .to = to,
                           .bytes = static_cast<uint32_t>(rng.Below(20000)),
                           .slices = static_cast<uint32_t>(rng.Below(30)),
                           .depth = static_cast<uint16_t>(1 + rng.Below(4)),
                           .channel = static_cast<uint8_t>(lane % 2)});
    }
    Run(&flows);
    for (int rank = 0; rank < 4; ++rank) {
      std::vector<Service> out, in;
      for (const Flow& flow : flows) {
        const double cost = Cost(1, flow.bytes);
        for (uint32_t i = 0; i < flow.slices; ++i) {
          const auto left = static_cast<double>(flow.departures[i]);
          const auto arrival = static_cast<double>(flow.departures[i] + latency_);
          const auto visible = static_cast<double>(flow.visible[i]);
          if (flow.from == rank) out.push_back({left - cost, left, cost});
          if (flow.to == rank) in.push_back({arrival - cost, visible, cost});
          ASSERT_GE(visible, arrival);
        }
      }
      SCOPED_TRACE(rank);
      CheckRate(std::move(out));
      CheckRate(std::move(in));
    }
  }
}

}  // namespace
}  // namespace inccl
