// SPDX-License-Identifier: Apache-2.0
//
// What transport.h promises, for every transport.
#include "transport/transport.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/rng.h"
#include "memory/host_allocator.h"
#include "support/seed.h"
#include "support/transport_world.h"
#include "transport/emulated/emulated.h"
#include "world/limits.h"

namespace inccl::test {
namespace {

class TransportConformance : public ::testing::TestWithParam<WorldKind> {
 protected:
  void Run(int nranks, const std::function<void(RankContext&)>& body) {
    RunRanks(GetParam(), nranks, TestSeed(), body);
  }
  // A rank that can import what rank 0 registers, if the transport exports memory at all.
  static int OnTheHostOfRank0() { return GetParam() == WorldKind::kCompositeProcesses ? 2 : 1; }
};

LaneSpec Spec(int producer, std::vector<int> consumers, uint32_t slot_bytes, int depth,
              int channel = 0, LaneClass lane_class = LaneClass::kData) {
  LaneSpec spec;
  spec.lane_class = lane_class;
  spec.channel = static_cast<uint8_t>(channel);
  spec.producer = producer;
  spec.consumers = std::move(consumers);
  spec.slot_bytes = slot_bytes;
  spec.depth = static_cast<uint16_t>(depth);
  return spec;
}

LaneSpec Control(int producer, int consumer) {
  return Spec(producer, {consumer}, 0, 4, 0, LaneClass::kSendRecv);
}

// What slice `i` of lane `key` holds: both ends derive it for themselves.
struct Expected {
  Expected(uint64_t key, uint32_t i, uint32_t slot_bytes)
      : random(Mix64(key) ^ i),
        header{static_cast<uint32_t>(random.Below(slot_bytes + uint64_t{1})), i, random.Next()} {
    // The edges more often than chance has it.
    const uint64_t edge = random.Below(8);
    if (edge == 0) header.bytes = 0;
    if (edge == 1) header.bytes = slot_bytes;
  }
  void Fill(std::byte* data) {
    for (uint32_t at = 0; at < header.bytes; at += 8) {
      const uint64_t word = random.Next();
      std::memcpy(data + at, &word, std::min<uint32_t>(8, header.bytes - at));
    }
  }
  Rng random;
  SliceHeader header;
};

void SendSlice(RankContext& r, SendLane* lane, uint32_t i) {
  Expected expected(lane->spec().Key(), i, lane->spec().slot_bytes);
  const Span slot = r.Acquire(lane);
  ASSERT_EQ(reinterpret_cast<uintptr_t>(slot.data) % 64, 0u);
  ASSERT_GE(slot.bytes, lane->spec().slot_bytes);
  expected.Fill(slot.data);
  r.Publish(lane, expected.header);
}

void CheckSlice(const RecvLane::Incoming& incoming, const LaneSpec& spec, uint32_t i) {
  Expected expected(spec.Key(), i, spec.slot_bytes);
  ASSERT_EQ(incoming.header.slice, i);
  ASSERT_EQ(incoming.header.bytes, expected.header.bytes) << "slice " << i;
  ASSERT_EQ(incoming.header.signature, expected.header.signature) << "slice " << i;
  std::vector<std::byte> payload(expected.header.bytes);
  expected.Fill(payload.data());
  ASSERT_EQ(reinterpret_cast<uintptr_t>(incoming.payload) % 64, 0u);
  ASSERT_TRUE(payload.empty() || std::memcmp(payload.data(), incoming.payload, payload.size()) == 0)
      << "slice " << i << " of " << payload.size() << " bytes";
}

void ReceiveSlice(RankContext& r, RecvLane* lane, uint32_t i) {
  CheckSlice(r.Peek(lane), lane->spec(), i);
  r.Release(lane);
}

TEST_P(TransportConformance, OrderAndIntegrity) {
  for (const int depth : {1, 2, 5}) {
    const LaneSpec spec = Spec(0, {1}, 5000, depth);
    Run(2, [&](RankContext& r) {
      if (r.rank == 0) {
        auto lane = r.OpenSend(spec);
        for (uint32_t i = 0; i < 300; ++i) SendSlice(r, lane.get(), i);
        r.WaitUntil([&] { return r.CanAcquire(lane.get()); });
      } else {
        auto lane = r.OpenRecv(spec);
        for (uint32_t i = 0; i < 300; ++i) ReceiveSlice(r, lane.get(), i);
        EXPECT_FALSE(r.CanPeek(lane.get()));
      }
    });
  }
}

TEST_P(TransportConformance, EmptySlices) {
  for (const uint32_t slot_bytes : {0u, 64u}) {
    const LaneSpec spec = Spec(1, {0}, slot_bytes, 2);
    Run(2, [&](RankContext& r) {
      if (r.rank == 1) {
        auto lane = r.OpenSend(spec);
        for (uint32_t i = 0; i < 50; ++i) {
          ASSERT_NE(r.Acquire(lane.get()).data, nullptr);
          r.Publish(lane.get(), SliceHeader{0, i, ~uint64_t{i}});
        }
      } else {
        auto lane = r.OpenRecv(spec);
        for (uint32_t i = 0; i < 50; ++i) {
          const RecvLane::Incoming incoming = r.Peek(lane.get());
          EXPECT_EQ(incoming.header.bytes, 0u);
          EXPECT_EQ(incoming.header.slice, i);
          EXPECT_EQ(incoming.header.signature, ~uint64_t{i});
          r.Release(lane.get());
        }
      }
    });
  }
}

// Where a lane sends memory of the caller, the caller may change it once nothing is unsent.
TEST_P(TransportConformance, PayloadsOfTheCaller) {
  constexpr uint32_t kBytes = 100000;
  const LaneSpec spec = Spec(0, {1}, kBytes, 3);
  Run(2, [&](RankContext& r) {
    if (r.rank == 0) {
      auto lane = r.OpenSend(spec);
      std::vector<std::byte> memory(kBytes);
      (void)r.transport->exports()->Register(memory.data(), kBytes,
                                             {.keep = true});  // some ask for it
      for (uint32_t i = 0; i < 100; ++i) {
        Expected expected(spec.Key(), i, kBytes);
        const Span slot = r.Acquire(lane.get());
        const bool sends = lane->SendsFrom(memory.data(), expected.header.bytes, false);
        expected.Fill(sends ? memory.data() : slot.data);
        if (!sends) {
          r.Publish(lane.get(), expected.header);
          continue;
        }
        const Status status = lane->PublishFrom(expected.header, memory.data(), false);
        ASSERT_TRUE(status.ok()) << status.message();
        r.WaitUntil([&] { return !r.transport->unsent(); });
        std::fill(memory.begin(), memory.end(), std::byte{0xEE});
      }
      r.WaitUntil([&] { return lane->Drained().value(); });
    } else {
      auto lane = r.OpenRecv(spec);
      for (uint32_t i = 0; i < 100; ++i) ReceiveSlice(r, lane.get(), i);
    }
  });
}

TEST_P(TransportConformance, LargestPayload) {
  const uint32_t bytes = (3u << 20) + 13;
  const LaneSpec spec = Spec(0, {1}, bytes, 2);
  Run(2, [&](RankContext& r) {
    ASSERT_GE(r.transport->CapsFor(0, spec.consumers).max_slot_bytes, bytes);
    if (r.rank == 0) {
      auto lane = r.OpenSend(spec);
      for (uint32_t i = 0; i < 3; ++i) {
        const Span slot = r.Acquire(lane.get());
        ASSERT_GE(slot.bytes, bytes);
        std::memset(slot.data, static_cast<int>(i + 1), bytes);
        r.Publish(lane.get(), SliceHeader{bytes, i, 0});
      }
    } else {
      auto lane = r.OpenRecv(spec);
      for (uint32_t i = 0; i < 3; ++i) {
        const RecvLane::Incoming incoming = r.Peek(lane.get());
        ASSERT_EQ(incoming.header.bytes, bytes);
        EXPECT_EQ(
            std::count(incoming.payload, incoming.payload + bytes, static_cast<std::byte>(i + 1)),
            static_cast<ptrdiff_t>(bytes));
        r.Release(lane.get());
      }
    }
  });
}

TEST_P(TransportConformance, CreditsBlockWhenFull) {
  for (const int depth : {1, 3}) {
    const LaneSpec spec = Spec(0, {1}, 100, depth);
    Run(2, [&](RankContext& r) {
      if (r.rank == 0) {
        auto lane = r.OpenSend(spec);
        auto go = r.OpenSend(Control(0, 1));
        auto done = r.OpenRecv(Control(1, 0));
        uint32_t sent = 0;
        for (; sent < static_cast<uint32_t>(depth); ++sent) {
          SendSlice(r, lane.get(), sent);
        }
        for (int round = 0; round < 5; ++round) {
          for (int poll = 0; poll < 100; ++poll) {
            r.Progress();
            ASSERT_FALSE(r.CanAcquire(lane.get()));
          }
          r.Signal(go.get());  // the other end releases one
          r.Await(done.get());
          SendSlice(r, lane.get(), sent++);
        }
      } else {
        auto lane = r.OpenRecv(spec);
        auto go = r.OpenRecv(Control(0, 1));
        auto done = r.OpenSend(Control(1, 0));
        uint32_t received = 0;
        for (int round = 0; round < 5; ++round) {
          r.Await(go.get());
          ReceiveSlice(r, lane.get(), received++);
          r.Signal(done.get());
        }
        while (received < static_cast<uint32_t>(depth) + 5) ReceiveSlice(r, lane.get(), received++);
      }
    });
  }
}

TEST_P(TransportConformance, AcquireAndPeekAreIdempotent) {
  const LaneSpec spec = Spec(0, {1}, 256, 2);
  Run(2, [&](RankContext& r) {
    if (r.rank == 0) {
      auto lane = r.OpenSend(spec);
      auto done = r.OpenRecv(Control(1, 0));
      for (uint32_t i = 0; i < 20; ++i) {
        const Span first = r.Acquire(lane.get());
        for (int again = 0; again < 3; ++again) {
          r.Progress();
          EXPECT_EQ(r.Acquire(lane.get()).data, first.data);
        }
        SendSlice(r, lane.get(), i);
      }
      r.Await(done.get());
    } else {
      auto lane = r.OpenRecv(spec);
      auto done = r.OpenSend(Control(1, 0));
      for (uint32_t i = 0; i < 20; ++i) {
        const RecvLane::Incoming first = r.Peek(lane.get());
        for (int again = 0; again < 3; ++again) {
          r.Progress();
          const RecvLane::Incoming same = r.Peek(lane.get());
          EXPECT_EQ(same.payload, first.payload);
          CheckSlice(same, spec, i);
        }
        r.Release(lane.get());
      }
      r.Signal(done.get());
    }
  });
}

// Ranks 1 and 2 read on while rank 3 holds its first slice: the producer stops after `depth`.
TEST_P(TransportConformance, MulticastWaitsForTheSlowest) {
  const uint32_t depth = 3;
  const LaneSpec spec = Spec(0, {1, 2, 3}, 1000, depth);
  Run(4, [&](RankContext& r) {
    if (!r.transport->CapsFor(0, spec.consumers).multicast) {
      if (r.rank == 0) {
        EXPECT_EQ(r.transport->OpenSend(spec).status().code(), Code::kInvalidArgument);
      } else {
        EXPECT_EQ(r.transport->OpenRecv(spec).status().code(), Code::kInvalidArgument);
      }
      return;
    }
    if (r.rank == 0) {
      auto lane = r.OpenSend(spec);
      auto fast1 = r.OpenRecv(Control(1, 0));
      auto fast2 = r.OpenRecv(Control(2, 0));
      auto slow = r.OpenSend(Control(0, 3));
      for (uint32_t i = 0; i < depth; ++i) SendSlice(r, lane.get(), i);
      r.Await(fast1.get());
      r.Await(fast2.get());
      for (int poll = 0; poll < 100; ++poll) {
        r.Progress();
        ASSERT_FALSE(r.CanAcquire(lane.get()));
      }
      r.Signal(slow.get());
      for (uint32_t i = depth; i < 40; ++i) SendSlice(r, lane.get(), i);
    } else {
      auto lane = r.OpenRecv(spec);
      if (r.rank == 3) {
        auto slow = r.OpenRecv(Control(0, 3));
        const RecvLane::Incoming held = r.Peek(lane.get());
        r.Await(slow.get());
        CheckSlice(held, spec, 0);
        for (uint32_t i = 0; i < 40; ++i) ReceiveSlice(r, lane.get(), i);
      } else {
        auto fast = r.OpenSend(Control(r.rank, 0));
        for (uint32_t i = 0; i < depth; ++i) ReceiveSlice(r, lane.get(), i);
        EXPECT_FALSE(r.CanPeek(lane.get()));
        r.Signal(fast.get());
        for (uint32_t i = depth; i < 40; ++i) ReceiveSlice(r, lane.get(), i);
      }
    }
  });
}

// Every producer fans out to all others through the lanes of Split, which all open; both ends agree
// on them. A lane that may have several consumers is not split.
TEST_P(TransportConformance, SplitLanesReachEveryConsumerOnce) {
  constexpr int kRanks = 5;
  constexpr uint32_t kSlices = 20;
  Run(kRanks, [&](RankContext& r) {
    std::vector<std::unique_ptr<SendLane>> send;
    std::vector<std::unique_ptr<RecvLane>> recv;
    for (int producer = 0; producer < kRanks; ++producer) {
      std::vector<int> others;
      for (int rank = 0; rank < kRanks; ++rank) {
        if (rank != producer) others.push_back(rank);
      }
      const std::vector<std::vector<int>> sets = r.transport->Split(producer, others);
      EXPECT_EQ(sets.size() == 1, r.transport->CapsFor(producer, others).multicast);
      std::vector<int> seen;
      for (const std::vector<int>& set : sets) {
        seen.insert(seen.end(), set.begin(), set.end());
        const LaneSpec spec = Spec(producer, set, 1000, 2);
        if (set.size() > 1) {
          EXPECT_TRUE(r.transport->CapsFor(producer, set).multicast);
        }
        if (producer == r.rank) send.push_back(r.OpenSend(spec));
        if (std::find(set.begin(), set.end(), r.rank) != set.end()) {
          recv.push_back(r.OpenRecv(spec));
        }
      }
      std::sort(seen.begin(), seen.end());
      EXPECT_EQ(seen, others);
    }
    ASSERT_EQ(recv.size(), kRanks - 1u);
    std::vector<uint32_t> sent(send.size()), received(recv.size());
    size_t open = send.size() + recv.size();
    while (open > 0) {
      r.WaitUntil([&] {
        bool moved = false;
        for (size_t i = 0; i < send.size(); ++i) {
          if (sent[i] == kSlices || !r.CanAcquire(send[i].get())) continue;
          SendSlice(r, send[i].get(), sent[i]++);
          open -= sent[i] == kSlices ? 1 : 0;
          moved = true;
        }
        for (size_t i = 0; i < recv.size(); ++i) {
          if (received[i] == kSlices || !r.CanPeek(recv[i].get())) continue;
          ReceiveSlice(r, recv[i].get(), received[i]++);
          open -= received[i] == kSlices ? 1 : 0;
          moved = true;
        }
        return moved;
      });
    }
  });
}

TEST_P(TransportConformance, ConsumerOpensLate) {
  const LaneSpec spec = Spec(0, {1}, 77, 4);
  Run(2, [&](RankContext& r) {
    if (r.rank == 0) {
      auto go = r.OpenSend(Control(0, 1));
      auto lane = r.OpenSend(spec);
      uint32_t sent = 0;
      if (!r.transport->CapsFor(0, spec.consumers).consumer_grants) {
        for (; sent < 4; ++sent) {
          ASSERT_TRUE(r.CanAcquire(lane.get()));
          SendSlice(r, lane.get(), sent);
        }
      }
      ASSERT_FALSE(r.CanAcquire(lane.get()));
      r.Signal(go.get());
      for (; sent < 20; ++sent) SendSlice(r, lane.get(), sent);
    } else {
      auto go = r.OpenRecv(Control(0, 1));
      r.Await(go.get());
      auto lane = r.OpenRecv(spec);
      for (uint32_t i = 0; i < 20; ++i) ReceiveSlice(r, lane.get(), i);
    }
  });
}

TEST_P(TransportConformance, ProducerOpensLate) {
  const LaneSpec spec = Spec(0, {1}, 77, 2);
  Run(2, [&](RankContext& r) {
    if (r.rank == 0) {
      auto go = r.OpenRecv(Control(1, 0));
      r.Await(go.get());
      auto lane = r.OpenSend(spec);
      for (uint32_t i = 0; i < 20; ++i) SendSlice(r, lane.get(), i);
    } else {
      auto lane = r.OpenRecv(spec);
      for (int poll = 0; poll < 100; ++poll) {
        r.Progress();
        ASSERT_FALSE(r.CanPeek(lane.get()));
      }
      auto go = r.OpenSend(Control(1, 0));
      r.Signal(go.get());
      for (uint32_t i = 0; i < 20; ++i) ReceiveSlice(r, lane.get(), i);
    }
  });
}

// Every rank to every other one over several channels and classes, opened in random order, slices
// interleaved at random: each lane keeps its own order and content.
TEST_P(TransportConformance, ManyLanesAtRandom) {
  constexpr int kRanks = 4, kChannels = 6;
  constexpr uint32_t kSlices = 40;
  Run(kRanks, [&](RankContext& r) {
    struct End {
      std::unique_ptr<SendLane> send;
      std::unique_ptr<RecvLane> recv;
      uint32_t next = 0;
      bool held = false;
      uint64_t last = 0;  // end marker of slices still to come
    };
    std::vector<LaneSpec> specs;
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == r.rank) continue;
      for (int channel = 0; channel < kChannels; ++channel) {
        const auto lane_class = static_cast<LaneClass>(channel % 3);
        const uint32_t bytes = channel % 2 == 0 ? 300 : 5000;
        specs.push_back(Spec(r.rank, {peer}, bytes, 1 + channel % 3, channel, lane_class));
        specs.push_back(Spec(peer, {r.rank}, bytes, 1 + channel % 3, channel, lane_class));
      }
    }
    for (size_t i = specs.size(); i > 1; --i) std::swap(specs[i - 1], specs[r.rng.Below(i)]);
    std::vector<End> ends(specs.size());
    size_t open = 0, finished = 0;
    while (finished < ends.size()) {
      if (open < ends.size() && r.rng.Below(3) == 0) {
        const LaneSpec& spec = specs[open];
        if (spec.producer == r.rank) {
          ends[open].send = r.OpenSend(spec);
        } else {
          ends[open].recv = r.OpenRecv(spec);
        }
        ++open;
      }
      bool moved = false;
      const auto poll = [&] {
        for (int attempt = 0; attempt < 8 && open > 0; ++attempt) {
          End& end = ends[r.rng.Below(open)];
          if (end.next == kSlices) continue;
          if (end.send != nullptr && r.CanAcquire(end.send.get())) {
            SendSlice(r, end.send.get(), end.next++);
          } else if (end.recv != nullptr && r.CanPeek(end.recv.get())) {
            ReceiveSlice(r, end.recv.get(), end.next++);
          } else {
            continue;
          }
          moved = true;
          if (end.next == kSlices) ++finished;
        }
        return moved;
      };
      // With lanes still closed, or unlucky picks, there may be nothing that anybody rings for.
      r.Progress();
      if (poll() || open < ends.size()) continue;
      r.WaitUntil([&] {
        for (End& end : ends) {
          if (end.next == kSlices) continue;
          if (end.send != nullptr ? r.CanAcquire(end.send.get()) : r.CanPeek(end.recv.get())) {
            return true;
          }
        }
        return finished == ends.size();
      });
    }
  });
}

TEST_P(TransportConformance, WrapsAroundManyTimes) {
  // Over a link each turn of the slots takes a timer's resolution, in the simulator a switch of
  // threads.
  const bool mapped = GetParam() == WorldKind::kLoopback || GetParam() == WorldKind::kShmThreads ||
                      GetParam() == WorldKind::kShmProcesses;
  const uint32_t kSlices = mapped ? 100000 : 10000;
  const LaneSpec spec = Spec(0, {1}, 8, 3);
  Run(2, [&](RankContext& r) {
    if (r.rank == 0) {
      auto lane = r.OpenSend(spec);
      for (uint32_t i = 0; i < kSlices; ++i) {
        const Span slot = r.Acquire(lane.get());
        const uint64_t value = Mix64(i);
        std::memcpy(slot.data, &value, 8);
        r.Publish(lane.get(), SliceHeader{8, i, 0});
      }
    } else {
      auto lane = r.OpenRecv(spec);
      for (uint32_t i = 0; i < kSlices; ++i) {
        const RecvLane::Incoming incoming = r.Peek(lane.get());
        uint64_t value = 0;
        std::memcpy(&value, incoming.payload, 8);
        ASSERT_EQ(incoming.header.slice, i);
        ASSERT_EQ(value, Mix64(i));
        r.Release(lane.get());
      }
    }
  });
}

TEST_P(TransportConformance, BothDirectionsAtOnce) {
  constexpr uint32_t kSlices = 500;
  Run(2, [&](RankContext& r) {
    const int peer = 1 - r.rank;
    auto send = r.OpenSend(Spec(r.rank, {peer}, 2000, 2));
    auto recv = r.OpenRecv(Spec(peer, {r.rank}, 2000, 2));
    uint32_t sent = 0, received = 0;
    while (sent < kSlices || received < kSlices) {
      bool can_send = false, can_receive = false;
      r.WaitUntil([&] {
        can_send = sent < kSlices && r.CanAcquire(send.get());
        can_receive = received < kSlices && r.CanPeek(recv.get());
        return can_send || can_receive;
      });
      if (can_send) SendSlice(r, send.get(), sent++);
      if (can_receive) ReceiveSlice(r, recv.get(), received++);
    }
  });
}

// Every hop goes to a rank that has nothing else to do: it sleeps, or is about to.
TEST_P(TransportConformance, PingPongFromSleep) {
  const bool sim = GetParam() == WorldKind::kSim || GetParam() == WorldKind::kSimUnicast ||
                   GetParam() == WorldKind::kLinkSim;
  const bool slow = sim || GetParam() == WorldKind::kUcxBlind;
  const uint32_t kRounds = slow ? 1000 : 10000;
  Run(2, [&](RankContext& r) {
    auto send = r.OpenSend(Spec(r.rank, {1 - r.rank}, 8, 1));
    auto recv = r.OpenRecv(Spec(1 - r.rank, {r.rank}, 8, 1));
    WakeupEvent* wakeup_event = r.transport->wakeup_event();
    for (uint32_t i = 0; i < kRounds; ++i) {
      if (r.rank == 0) r.Signal(send.get());
      if (wakeup_event == nullptr) {
        r.Await(recv.get());
      } else {
        // Straight to sleep, at varying distance from the peer's publishing.
        for (uint64_t spin = r.rng.Below(200); spin > 0; --spin) {
          std::atomic_signal_fence(std::memory_order_seq_cst);
        }
        while (true) {
          const uint32_t token = wakeup_event->Arm();
          r.Progress();
          if (r.CanPeek(recv.get())) break;
          const Time event = NextEvent(*r.transport);
          const Time now = SystemClock().Now();
          const Time longest = 60 * kSecond;
          wakeup_event->Wait(token,
                             event == kNever ? longest : std::clamp<Time>(event - now, 0, longest));
          ASSERT_LT(SystemClock().Now() - now, longest / 2) << "lost a wake-up in round " << i;
        }
        wakeup_event->Disarm();
        r.Release(recv.get());
      }
      if (r.rank == 1) r.Signal(send.get());
    }
  });
}

TEST_P(TransportConformance, WrongUseIsAnError) {
  Run(3, [&](RankContext& r) {
    if (r.rank != 0) {
      auto other = r.OpenRecv(Spec(0, {r.rank}, 100, 2));
      if (r.rank == 1) r.Await(other.get());
      return;
    }
    const auto send_code = [&](const LaneSpec& spec) {
      Result<std::unique_ptr<SendLane>> lane = r.transport->OpenSend(spec);
      EXPECT_TRUE(lane.ok() || !lane.status().message().empty());
      return lane.ok() ? Code::kOk : lane.status().code();
    };
    EXPECT_EQ(send_code(Spec(1, {2}, 100, 1)), Code::kInvalidArgument);     // not the producer
    EXPECT_EQ(send_code(Spec(0, {}, 100, 1)), Code::kInvalidArgument);      // no consumer
    EXPECT_EQ(send_code(Spec(0, {0}, 100, 1)), Code::kInvalidArgument);     // itself
    EXPECT_EQ(send_code(Spec(0, {3}, 100, 1)), Code::kInvalidArgument);     // no such rank
    EXPECT_EQ(send_code(Spec(0, {-1}, 100, 1)), Code::kInvalidArgument);    // no such rank
    EXPECT_EQ(send_code(Spec(0, {2, 1}, 100, 1)), Code::kInvalidArgument);  // order
    EXPECT_EQ(send_code(Spec(0, {1, 1}, 100, 1)), Code::kInvalidArgument);  // twice
    EXPECT_EQ(send_code(Spec(0, {1}, 100, 0)), Code::kInvalidArgument);     // no slots
    EXPECT_EQ(send_code(Spec(0, {1}, UINT32_MAX, 1)), Code::kInvalidArgument);
    EXPECT_EQ(r.transport->OpenRecv(Spec(1, {2}, 100, 1)).status().code(), Code::kInvalidArgument);
    EXPECT_EQ(r.transport->OpenRecv(Spec(0, {1}, 100, 1)).status().code(), Code::kInvalidArgument);

    auto send = r.OpenSend(Spec(0, {1}, 100, 2));
    EXPECT_EQ(send_code(Spec(0, {1}, 100, 2)), Code::kInvalidUsage);  // twice
    auto recv = r.OpenRecv(Spec(1, {0}, 100, 2));
    EXPECT_EQ(r.transport->OpenRecv(Spec(1, {0}, 100, 2)).status().code(), Code::kInvalidUsage);
    EXPECT_EQ(send->Publish(SliceHeader{}).code(), Code::kInvalidUsage);
    r.Acquire(send.get());
    EXPECT_EQ(send->Publish(SliceHeader{101, 0, 0}).code(), Code::kInvalidArgument);
    EXPECT_TRUE(send->Publish(SliceHeader{100, 0, 0}).ok());
    EXPECT_EQ(send->Publish(SliceHeader{}).code(), Code::kInvalidUsage);
    EXPECT_EQ(recv->Release().code(), Code::kInvalidUsage);
    const Status status = r.transport->OpenSend(Spec(0, {7}, 100, 1)).status();
    EXPECT_NE(status.message().find("rank 0"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("7"), std::string::npos) << status.message();
  });
}

TEST_P(TransportConformance, CountsAndMemory) {
  Run(2, [&](RankContext& r) {
    const uint64_t before = r.transport->memory_bytes();
    if (r.rank == 0) {
      auto lane = r.OpenSend(Spec(0, {1}, 10000, 4));
      for (uint32_t i = 0; i < 30; ++i) {
        r.Acquire(lane.get());
        if (i == 0) {
          EXPECT_GE(r.transport->memory_bytes(), before + 10000);
        }
        r.Publish(lane.get(), SliceHeader{i * 7, i, 0});
      }
      EXPECT_EQ(r.transport->counters().slices, 30u);
      EXPECT_EQ(r.transport->counters().payload_bytes, 7u * 30 * 29 / 2);
      EXPECT_EQ(r.transport->counters().credits, 0u);
    } else {
      auto lane = r.OpenRecv(Spec(0, {1}, 10000, 4));
      for (uint32_t i = 0; i < 30; ++i) r.Await(lane.get());
      EXPECT_EQ(r.transport->counters().slices, 0u);
      EXPECT_EQ(r.transport->counters().credits, 30u);
    }
  });
}

// Memory that a rank registers, freed at the end.
class AllocatedMemory {
 public:
  AllocatedMemory() : data_(*HostAllocator::Instance().Allocate(kBytes)) {}
  ~AllocatedMemory() { EXPECT_TRUE(HostAllocator::Instance().Free(data_).ok()); }
  AllocatedMemory(const AllocatedMemory&) = delete;
  AllocatedMemory& operator=(const AllocatedMemory&) = delete;
  std::byte* data() const { return static_cast<std::byte*>(data_); }
  // Whether peers import memory that the transport registers. A network only sends from it.
  static bool PeersImport(Transport* transport) {
    const AllocatedMemory memory;
    const Result<MemoryHandle> handle =
        transport->exports()->Register(memory.data_, kBytes, {.access = Access::kReadWrite});
    return handle.ok() && handle->writable;
  }

  static constexpr size_t kBytes = size_t{1} << 20;

 private:
  void* const data_;
};

// Peers import regions in Progress, and an export wakes no sleeping peer. So the owner tells its
// peer to look, and the peer says when it has.
void AwaitImport(RankContext& r, const SendLane& lane, const MemoryHandle& memory) {
  const int consumer = lane.spec().consumers.front();
  auto tell = r.OpenSend(Control(0, consumer));
  auto done = r.OpenRecv(Control(consumer, 0));
  r.Signal(tell.get());
  r.Await(done.get());
  r.WaitUntil([&] { return lane.ReachableFrom(memory.region); });
}
void Import(RankContext& r) {
  auto told = r.OpenRecv(Control(0, r.rank));
  auto done = r.OpenSend(Control(r.rank, 0));
  r.Await(told.get());
  r.Progress();
  r.Signal(done.get());
}

// A transport exports memory of ccl_mem_alloc, or says why it does not.
TEST_P(TransportConformance, RegisteredMemory) {
  const int consumer = OnTheHostOfRank0();
  const LaneSpec spec = Spec(0, {consumer}, 64, 2);
  Run(consumer + 1, [&](RankContext& r) {
    if (r.rank != 0 && r.rank != consumer) return;
    constexpr size_t kSource = 8200, kTarget = 16384;
    if (r.rank == consumer) {
      auto lane = r.OpenRecv(spec);
      if (AllocatedMemory::PeersImport(r.transport)) Import(r);
      const RecvLane::Incoming incoming = r.Peek(lane.get());
      ASSERT_EQ(incoming.header.bytes, 7u);
      EXPECT_STREQ(reinterpret_cast<const char*>(incoming.payload), "source");
      EXPECT_EQ(incoming.target != nullptr, incoming.header.target.region != 0);
      if (incoming.target != nullptr) std::memcpy(incoming.target, "target", 7);
      r.Release(lane.get());
      return;
    }
    auto lane = r.OpenSend(spec);
    const AllocatedMemory memory;
    const Span slot = r.Acquire(lane.get());
    Result<MemoryHandle> handle = r.transport->exports()->Register(
        memory.data(), AllocatedMemory::kBytes, {.access = Access::kReadWrite, .keep = true});
    EXPECT_EQ(
        r.transport->exports()->CanRegister(memory.data(), AllocatedMemory::kBytes, false).ok(),
        handle.ok());
    if (!handle.ok() || !handle->writable) {
      EXPECT_TRUE(handle.ok() || !handle.status().message().empty());
      EXPECT_TRUE(!handle.ok() || lane->SendsFrom(memory.data(), AllocatedMemory::kBytes, false));
      EXPECT_FALSE(lane->ReachableFrom(handle.ok() ? handle->region : 1));
      std::memcpy(slot.data, "source", 7);
      r.Publish(lane.get(), SliceHeader{.bytes = 7});
      r.WaitUntil([&] { return *lane->Drained(); });
      return;
    }
    std::memcpy(memory.data() + kSource, "source", 7);
    AwaitImport(r, *lane, *handle);
    r.Publish(lane.get(), SliceHeader{.bytes = 7,
                                      .source = handle->At(memory.data() + kSource, 7),
                                      .target = handle->At(memory.data() + kTarget, 7)});
    r.WaitUntil([&] { return *lane->Drained(); });
    EXPECT_STREQ(reinterpret_cast<const char*>(memory.data() + kTarget), "target");
    EXPECT_EQ(handle->At(memory.data() + AllocatedMemory::kBytes, 1).region, 0u);
    r.transport->exports()->Deregister(*handle);
  });
}

// Other memory takes the place of memory that calls have found, and of no other.
TEST_P(TransportConformance, KeptMemoryStaysRegistered) {
  const int consumer = OnTheHostOfRank0();
  const LaneSpec spec = Spec(0, {consumer}, 64, 2);
  Run(consumer + 1, [&](RankContext& r) {
    if (r.rank != 0 && r.rank != consumer) return;
    if (r.rank == consumer) {
      auto lane = r.OpenRecv(spec);
      if (AllocatedMemory::PeersImport(r.transport)) Import(r);
      for (int i = 0; i < 2; ++i) {
        EXPECT_STREQ(reinterpret_cast<const char*>(r.Peek(lane.get()).payload), "source");
        r.Release(lane.get());
      }
      return;
    }
    auto lane = r.OpenSend(spec);
    const AllocatedMemory memory;
    std::memcpy(memory.data(), "source", 7);
    const Registration kept{.access = Access::kReadWrite, .keep = true};
    Result<MemoryHandle> handle =
        r.transport->exports()->Register(memory.data(), AllocatedMemory::kBytes, kept);
    const bool imported = handle.ok() && handle->writable;
    if (imported) AwaitImport(r, *lane, *handle);
    for (int i = 0; i < 40; ++i) {
      const AllocatedMemory other;
      const Result<MemoryHandle> found =
          r.transport->exports()->Register(other.data(), AllocatedMemory::kBytes, {});
      EXPECT_EQ(found.ok(), handle.ok());
      if (found.ok()) {
        EXPECT_NE(found->memory, handle->memory);
      }
    }
    if (handle.ok() && !imported) {
      EXPECT_TRUE(lane->SendsFrom(memory.data(), AllocatedMemory::kBytes, false));
    }
    for (int i = 0; i < 2; ++i) {
      SliceHeader header{.bytes = 7};
      const Span slot = r.Acquire(lane.get());
      std::memcpy(slot.data, "source", 7);
      if (imported) {
        std::memset(slot.data, 0, 7);
        EXPECT_TRUE(lane->ReachableFrom(handle->region));
        header.source = handle->At(memory.data(), 7);
        EXPECT_NE(header.source.region, 0u);
      }
      r.Publish(lane.get(), header);
    }
    r.WaitUntil([&] { return *lane->Drained(); });
  });
}

TEST_P(TransportConformance, LeavesNothingBehind) {
  const auto cycle = [&] {
    Run(3, [&](RankContext& r) {
      const int next = (r.rank + 1) % 3, before = (r.rank + 2) % 3;
      auto send = r.OpenSend(Spec(r.rank, {next}, 100000, 2));
      auto recv = r.OpenRecv(Spec(before, {r.rank}, 100000, 2));
      for (uint32_t i = 0; i < 5; ++i) {
        SendSlice(r, send.get(), i);
        ReceiveSlice(r, recv.get(), i);
      }
    });
  };
  cycle();  // what is opened once for ever (by sanitizers, say) is open now
  const int fds = CountFds();
  const std::set<std::string> names = ShmNames();
  for (int i = 0; i < 10; ++i) cycle();
  EXPECT_EQ(CountFds(), fds);
  EXPECT_EQ(NewShmNames(names, 20.0 * kSlowness), "");
}

INSTANTIATE_TEST_SUITE_P(All, TransportConformance, ::testing::ValuesIn(AllWorlds()),
                         [](const auto& param) { return std::string(Name(param.param)); });

}  // namespace
}  // namespace inccl::test
