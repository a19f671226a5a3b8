// SPDX-License-Identifier: Apache-2.0
//
// Routers of all ranks in a simulated network: connections that keep their order and take any time,
// ranks that die or leave at any moment, hostile frames.
#include "control/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "control/control.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using control::Router;
using Body = std::vector<std::byte>;
using Data = std::span<const std::byte>;

Body Number(uint64_t number) {
  ByteWriter writer;
  writer.U64(number);
  return writer.bytes();
}

uint64_t NumberOf(Data body) {
  uint64_t number = 0;
  EXPECT_TRUE(ByteReader(body).U64(&number));
  return number;
}

// What a rank's handler would have been told.
struct Told {
  int from;
  int what;  // kind of a message, or -1 - Router::End
  Body body;
};

class Network {
 public:
  explicit Network(int nranks, std::vector<uint64_t> hosts = {}) : nranks_(nranks) {
    for (int rank = 0; hosts.size() < static_cast<size_t>(nranks); ++rank) {
      hosts.push_back(static_cast<uint64_t>(rank));
    }
    graph = ControlGraph(HostMap(hosts), 1);
    EXPECT_FALSE(graph.complete());
    std::vector<bootstrap::PublicKey> keys;
    std::vector<std::shared_ptr<const bootstrap::ServerKey>> pairs;
    for (int rank = 0; rank < nranks; ++rank) {
      pairs.push_back(*bootstrap::ServerKey::Create());
      keys.push_back(pairs.back()->public_key());
    }
    told.resize(static_cast<size_t>(nranks));
    for (int rank = 0; rank < nranks; ++rank) {
      Router::Terms terms{.rank = rank,
                          .nranks = nranks,
                          .graph = graph,
                          .key = pairs[static_cast<size_t>(rank)],
                          .keys = keys,
                          .communicator = {},
                          .resend_after = kSecond};
      routers.push_back(std::make_unique<Router>(
          std::move(terms), [this, rank](int neighbour, uint8_t kind, Data body) {
            EXPECT_TRUE(graph.Linked(rank, neighbour));
            if (closed_.contains(Link(rank, neighbour))) return;
            links_[{rank, neighbour}].push_back({kind, Body(body.begin(), body.end())});
            ++frames;
          }));
    }
  }

  // Ends the connection. What is on its way still arrives, then each end sees the end.
  void Cut(int a, int b, Router::End end) {
    if (!graph.Linked(a, b) || !closed_.insert(Link(a, b)).second) return;
    for (const auto& [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      links_[{from, to}].push_back({0, {static_cast<std::byte>(end)}});
    }
  }
  void Leave(int rank, Router::End end) {
    gone.insert(rank);
    if (end == Router::End::kLeft) routers[static_cast<size_t>(rank)]->SendReports();
    for (int peer = 0; peer < nranks_; ++peer) Cut(rank, peer, end);
  }

  // Delivers one frame of a random connection. False: there is none.
  bool Step(Rng* rng) {
    std::vector<std::pair<int, int>> ready;
    for (const auto& [link, frames_of] : links_) {
      if (!frames_of.empty()) ready.push_back(link);
    }
    if (ready.empty()) return false;
    const auto [from, to] = ready[rng->Below(ready.size())];
    Frame frame = std::move(links_[{from, to}].front());
    links_[{from, to}].pop_front();
    if (gone.contains(to)) return true;
    Router& router = *routers[static_cast<size_t>(to)];
    if (frame.kind == 0) {
      const auto end = static_cast<Router::End>(frame.body[0]);
      router.OnNeighbourGone(from, end, 0, now);
      told[static_cast<size_t>(to)].push_back({from, -1 - frame.body_byte(), {}});
    } else {
      EXPECT_TRUE(Give(from, to, frame.kind, frame.body)) << int{frame.kind};
    }
    TellGone(to);
    return true;
  }
  void Settle(Rng* rng) {
    while (Step(rng)) {
    }
  }
  // Time passes, until nothing more happens.
  void Run(Rng* rng) {
    for (int i = 0; i < 8; ++i) {
      Settle(rng);
      now += 2 * kSecond;
      for (int rank = 0; rank < nranks_; ++rank) {
        if (!gone.contains(rank)) routers[static_cast<size_t>(rank)]->OnTime(now);
      }
    }
    Settle(rng);
  }
  bool Give(int from, int to, uint8_t kind, Data body) {
    Router::Message message;
    const bool good = routers[static_cast<size_t>(to)]->OnFrame(from, kind, body, now, &message);
    if (message.from >= 0) {
      told[static_cast<size_t>(to)].push_back(
          {message.from, message.kind, Body(message.body.begin(), message.body.end())});
    }
    TellGone(to);
    return good;
  }
  // How often `rank` has been told that `peer` has ended, and how the first time; kNone: never.
  Router::End EndAt(int rank, int peer, int* times) const {
    Router::End end = Router::End::kNone;
    *times = 0;
    for (const Told& entry : told[static_cast<size_t>(rank)]) {
      if (entry.from != peer || entry.what >= 0) continue;
      if ((*times)++ == 0) end = static_cast<Router::End>(-1 - entry.what);
    }
    return end;
  }

  ControlGraph graph;
  std::vector<std::unique_ptr<Router>> routers;
  std::vector<std::vector<Told>> told;  // by rank
  std::set<int> gone;
  Time now = kSecond;
  size_t frames = 0;

 private:
  struct Frame {
    uint8_t kind = 0;  // 0: the end of the connection
    Body body;
    int body_byte() const { return std::to_integer<int>(body[0]); }
  };
  static std::pair<int, int> Link(int a, int b) { return {std::min(a, b), std::max(a, b)}; }
  void TellGone(int rank) {
    while (const auto next = routers[static_cast<size_t>(rank)]->NextGone()) {
      told[static_cast<size_t>(rank)].push_back({next->rank, -1 - static_cast<int>(next->end), {}});
    }
  }

  const int nranks_;
  std::map<std::pair<int, int>, std::deque<Frame>> links_;
  std::set<std::pair<int, int>> closed_;
};

// The messages of this kind that `rank` got from `from`, as numbers.
std::vector<uint64_t> Got(const Network& network, int rank, int from, int kind) {
  std::vector<uint64_t> numbers;
  for (const Told& entry : network.told[static_cast<size_t>(rank)]) {
    if (entry.from == from && entry.what == kind) numbers.push_back(NumberOf(entry.body));
  }
  return numbers;
}

std::vector<uint64_t> UpTo(uint64_t count) {
  std::vector<uint64_t> numbers;
  for (uint64_t i = 0; i < count; ++i) numbers.push_back(i);
  return numbers;
}

TEST(RouterTest, AllMessagesArriveOnceAndInOrder) {
  Rng rng(TestSeed());
  for (const int nranks : {6, 8, 13, 32}) {
    Network network(nranks);
    constexpr uint64_t kMessages = 6;
    for (uint64_t i = 0; i < kMessages; ++i) {
      for (int from = 0; from < nranks; ++from) {
        Router& router = *network.routers[static_cast<size_t>(from)];
        for (int to = 0; to < nranks; ++to) {
          if (to == from || network.graph.Linked(from, to)) continue;
          router.Send(to, 7, Number(i), network.now);
        }
        router.Broadcast(9, Number(i));
        for (uint64_t step = rng.Below(20); step > 0; --step) network.Step(&rng);
      }
    }
    network.Run(&rng);
    for (int rank = 0; rank < nranks; ++rank) {
      EXPECT_TRUE(network.routers[static_cast<size_t>(rank)]->acknowledged());
      for (int from = 0; from < nranks; ++from) {
        if (from == rank) continue;
        EXPECT_EQ(Got(network, rank, from, 9), UpTo(kMessages));
        EXPECT_EQ(Got(network, rank, from, 7),
                  UpTo(network.graph.Linked(from, rank) ? 0 : kMessages));
      }
    }
  }
}

TEST(RouterTest, EachOfSeveralMessagesIsAcknowledged) {
  Rng rng(TestSeed());
  Network network(8);
  int far = 1;
  while (network.graph.Linked(0, far)) ++far;
  for (uint64_t i = 0; i < 3; ++i) {
    network.routers[0]->Send(far, 7, Number(i), network.now);
    EXPECT_FALSE(network.routers[0]->acknowledged());
    network.Run(&rng);
    EXPECT_TRUE(network.routers[0]->acknowledged()) << i;
  }
}

// No path leads to it any more.
TEST(RouterTest, ARankWhoseNeighboursAreGoneIsLostUnlessTheyLeftInOrder) {
  Rng rng(TestSeed());
  for (const Router::End end : {Router::End::kLeft, Router::End::kClosed}) {
    constexpr int kRanks = 20, kAlone = 9;
    Network network(kRanks);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (network.graph.Linked(kAlone, rank)) network.Leave(rank, end);
    }
    network.Run(&rng);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == kAlone || network.gone.contains(rank)) continue;
      int times = 0;
      const Router::End found = network.EndAt(rank, kAlone, &times);
      EXPECT_EQ(times, end == Router::End::kLeft ? 0 : 1) << rank;
      EXPECT_TRUE(times == 0 || found == Router::End::kCutOff) << rank;
    }
  }
}

TEST(RouterTest, AFloodTakesTwoFramesPerConnectionAtMost) {
  Rng rng(TestSeed());
  Network network(32);
  network.routers[3]->Broadcast(9, Number(1));
  network.Run(&rng);
  size_t links = 0;
  for (int a = 0; a < 32; ++a) {
    for (int b = 0; b < a; ++b) links += network.graph.Linked(a, b) ? 1 : 0;
  }
  EXPECT_LE(network.frames, 2 * links);
  EXPECT_GE(network.frames, 31u);
}

// Whoever dies on the way: what one survivor sends another arrives, once and in order, as long as a
// path is left; and each hears of each death once.
TEST(RouterTest, SurvivorsLoseNothing) {
  Rng rng(TestSeed());
  for (int round = 0; round < 60; ++round) {
    const int nranks = 8 + static_cast<int>(rng.Below(12));
    Network network(nranks);
    std::vector<int> order;
    for (int rank = 0; rank < nranks; ++rank) order.push_back(rank);
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[rng.Below(i + 1)]);
    const size_t deaths = 1 + rng.Below(static_cast<uint64_t>(nranks) / 2);
    const bool clean = round % 3 == 0;
    std::set<int> victims(order.begin(), order.begin() + static_cast<ptrdiff_t>(deaths));
    std::vector<bool> out(static_cast<size_t>(nranks));
    for (const int victim : victims) out[static_cast<size_t>(victim)] = true;
    constexpr uint64_t kMessages = 5;
    size_t next_victim = 0;
    for (uint64_t i = 0; i < kMessages; ++i) {
      for (int from = 0; from < nranks; ++from) {
        if (victims.contains(from)) continue;
        Router& router = *network.routers[static_cast<size_t>(from)];
        for (int to = 0; to < nranks; ++to) {
          if (to == from || network.graph.Linked(from, to)) continue;
          router.Send(to, 7, Number(i), network.now);
        }
        router.Broadcast(9, Number(i));
        for (uint64_t step = rng.Below(30); step > 0; --step) network.Step(&rng);
        if (next_victim < deaths && rng.Below(4) == 0) {
          network.Leave(order[next_victim++], clean ? Router::End::kLeft : Router::End::kClosed);
        }
      }
    }
    while (next_victim < deaths) {
      network.Leave(order[next_victim++], clean ? Router::End::kLeft : Router::End::kClosed);
    }
    network.Run(&rng);
    for (int rank = 0; rank < nranks; ++rank) {
      if (victims.contains(rank)) continue;
      const std::vector<int> hops = network.graph.NextHops(rank, out);
      for (int peer = 0; peer < nranks; ++peer) {
        if (peer == rank) continue;
        SCOPED_TRACE(std::to_string(rank) + " of " + std::to_string(nranks) + " about " +
                     std::to_string(peer));
        int times = 0;
        const Router::End end = network.EndAt(rank, peer, &times);
        const bool reached = hops[static_cast<size_t>(peer)] >= 0;
        if (victims.contains(peer)) {
          bool told = false;  // by a neighbour of it that a path leads to
          for (int other = 0; other < nranks; ++other) {
            told = told || (network.graph.Linked(peer, other) && !out[static_cast<size_t>(other)] &&
                            (other == rank || hops[static_cast<size_t>(other)] >= 0));
          }
          EXPECT_GE(times, told || !clean ? 1 : 0);
          EXPECT_LE(times, 1);
          continue;
        }
        EXPECT_EQ(times, reached || clean ? 0 : 1);
        if (!reached) {
          EXPECT_EQ(end, clean ? Router::End::kNone : Router::End::kCutOff);
          continue;
        }
        if (!network.graph.Linked(rank, peer)) {
          EXPECT_EQ(Got(network, rank, peer, 7), UpTo(kMessages));
        }
        EXPECT_EQ(Got(network, rank, peer, 9), UpTo(kMessages));
      }
    }
  }
}

// All that a rank has sent comes before the news that it has left, if it waits for
// acknowledgements first.
TEST(RouterTest, TheEndComesLast) {
  Rng rng(TestSeed());
  for (int round = 0; round < 40; ++round) {
    Network network(12);
    const int leaver = static_cast<int>(rng.Below(12));
    Router& router = *network.routers[static_cast<size_t>(leaver)];
    for (uint64_t i = 0; i < 5; ++i) {
      for (int to = 0; to < 12; ++to) {
        if (to != leaver && !network.graph.Linked(leaver, to)) {
          router.Send(to, 7, Number(i), network.now);
        }
      }
      router.Broadcast(9, Number(i));
    }
    while (!router.acknowledged() && network.Step(&rng)) {
    }
    network.Leave(leaver, Router::End::kLeft);
    network.Run(&rng);
    for (int rank = 0; rank < 12; ++rank) {
      if (rank == leaver) continue;
      const std::vector<Told>& told = network.told[static_cast<size_t>(rank)];
      ASSERT_FALSE(told.empty());
      EXPECT_EQ(told.back().what, -1 - static_cast<int>(Router::End::kLeft));
      EXPECT_EQ(told.size(), network.graph.Linked(leaver, rank) ? 6u : 11u);
    }
  }
}

// Between two hosts all connections are cut: both sides lose all ranks of the other one.
TEST(RouterTest, APartitionIsSeenByAll) {
  Rng rng(TestSeed());
  constexpr int kRanks = 20;
  Network network(kRanks);
  const auto side = [](int rank) { return rank % 5 < 2; };
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < a; ++b) {
      if (side(a) != side(b)) network.Cut(a, b, Router::End::kSilent);
    }
  }
  network.Run(&rng);
  for (int a = 0; a < kRanks; ++a) {
    for (int b = 0; b < kRanks; ++b) {
      if (a == b) continue;
      int times = 0;
      const Router::End end = network.EndAt(a, b, &times);
      EXPECT_EQ(times, side(a) == side(b) ? 0 : 1) << a << " about " << b;
      if (side(a) != side(b)) {
        EXPECT_TRUE(end == Router::End::kSilent || end == Router::End::kCutOff);
      }
    }
  }
}

// Messages pass ranks that cannot read them, nor change or forge them.
TEST(RouterTest, OnlyTheEndsReadAndWriteARoutedMessage) {
  Network network(8);  // distances 3 and 5 have no connection
  const std::string secret = "a secret of ranks 0 and 3";
  std::vector<Body> seen;
  Router::Terms terms{.rank = 0,
                      .nranks = 8,
                      .graph = network.graph,
                      .key = nullptr,
                      .keys = {},
                      .communicator = {}};
  Result<std::shared_ptr<bootstrap::ServerKey>> own = bootstrap::ServerKey::Create();
  Result<std::shared_ptr<bootstrap::ServerKey>> other = bootstrap::ServerKey::Create();
  ASSERT_TRUE(own.ok() && other.ok());
  terms.key = *std::move(own);
  const auto other_key = *std::move(other);
  terms.keys.assign(8, other_key->public_key());
  terms.keys[0] = terms.key->public_key();
  Router sender(terms, [&](int, uint8_t kind, Data body) {
    if (kind == Router::kRouted) seen.emplace_back(body.begin(), body.end());
  });
  terms.rank = 3;
  terms.key = other_key;
  size_t acks = 0;
  Router receiver(terms, [&](int, uint8_t, Data) { ++acks; });
  sender.Send(3, 7, std::as_bytes(std::span(secret)), 0);
  sender.Send(3, 8, std::as_bytes(std::span(secret)), 0);
  ASSERT_EQ(seen.size(), 2u);
  for (const Body& frame : seen) {
    const std::string text(reinterpret_cast<const char*>(frame.data()), frame.size());
    EXPECT_EQ(text.find(secret.substr(0, 8)), std::string::npos);
  }
  Router::Message message;
  for (size_t i = 0; i < seen[0].size(); ++i) {
    if (i == 16) continue;  // hops
    Body forged = seen[0];
    forged[i] ^= std::byte{1};
    (void)receiver.OnFrame(2, Router::kRouted, forged, 0, &message);
    EXPECT_EQ(message.from, -1) << "byte " << i;
  }
  EXPECT_TRUE(receiver.OnFrame(2, Router::kRouted, seen[1], 0, &message));
  EXPECT_EQ(message.from, -1) << "not before the first";
  acks = 0;
  ASSERT_TRUE(receiver.OnFrame(2, Router::kRouted, seen[0], 0, &message));
  ASSERT_EQ(message.from, 0);
  EXPECT_EQ(message.kind, 7);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(message.body.data()), message.body.size()),
            secret);
  message = {};
  ASSERT_TRUE(receiver.OnFrame(2, Router::kRouted, seen[0], 0, &message));
  EXPECT_EQ(message.from, -1) << "a repetition";
  EXPECT_EQ(acks, 2u) << "is acknowledged again";
  ASSERT_TRUE(receiver.OnFrame(2, Router::kRouted, seen[1], 0, &message));
  EXPECT_EQ(message.kind, 8);
}

// Each of two ranks believes that only the other one leads on.
TEST(RouterTest, FramesDoNotGoInCirclesForEver) {
  Rng rng(TestSeed());
  constexpr int kRanks = 12, kTo = 6;
  Network network(kRanks);
  for (const auto& [rank, other] : {std::pair(0, 1), std::pair(1, 0)}) {
    ASSERT_FALSE(network.graph.Linked(rank, kTo));
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == other || !network.graph.Linked(rank, peer)) continue;
      network.routers[static_cast<size_t>(rank)]->OnNeighbourGone(peer, Router::End::kLeft, 0, 0);
    }
  }
  ByteWriter frame;
  frame.U32(kTo);
  frame.U32(3);
  frame.U64(1);
  frame.U8(0);
  frame.Raw(Body(40));
  EXPECT_TRUE(network.Give(1, 0, Router::kRouted, frame.bytes()));
  network.Settle(&rng);
  EXPECT_GT(network.frames, 10u) << "they do go in a circle";
  EXPECT_LE(network.frames, 64u);
}

TEST(RouterTest, MalformedFramesAreRefused) {
  Network network(8);
  const auto refused = [&](uint8_t kind, const ByteWriter& body) {
    return !network.Give(1, 0, kind, body.bytes());
  };
  const auto envelope = [](uint32_t to, uint32_t from, size_t rest) {
    ByteWriter body;
    body.U32(to);
    body.U32(from);
    body.U64(1);
    body.U8(0);
    body.Raw(Body(rest));
    return body;
  };
  EXPECT_TRUE(refused(Router::kRouted, {}));
  EXPECT_TRUE(refused(Router::kRouted, envelope(8, 3, 40)));
  EXPECT_TRUE(refused(Router::kRouted, envelope(0, 8, 40)));
  EXPECT_TRUE(refused(Router::kRouted, envelope(3, 3, 40)));
  EXPECT_TRUE(refused(Router::kRouted, envelope(0, UINT32_MAX, 40)));
  EXPECT_TRUE(refused(Router::kRouted, envelope(0, 3, 16))) << "no room for a kind";
  EXPECT_FALSE(refused(Router::kRouted, envelope(0, 3, 17))) << "it does not open";
  EXPECT_TRUE(refused(Router::kAck, envelope(0, 3, 1)));
  EXPECT_FALSE(refused(Router::kAck, envelope(0, 3, 0))) << "of nothing that was sent";
  const auto flood = [](uint32_t from, uint64_t number, uint8_t kind) {
    ByteWriter body;
    body.U32(from);
    body.U64(number);
    body.U8(kind);
    return body;
  };
  EXPECT_TRUE(refused(Router::kFlood, {}));
  EXPECT_TRUE(refused(Router::kFlood, flood(8, 1, 1)));
  EXPECT_TRUE(refused(Router::kFlood, flood(3, 1, 0)));
  EXPECT_TRUE(refused(Router::kFlood, flood(3, 1, kMostControlKind + 1)));
  EXPECT_TRUE(refused(Router::kFlood, flood(3, 2, 1))) << "a number is left out";
  EXPECT_TRUE(refused(Router::kFlood, flood(3, UINT64_MAX, 1)));
  EXPECT_FALSE(refused(Router::kFlood, flood(3, 1, 1)));
  EXPECT_FALSE(refused(Router::kFlood, flood(0, 9, 1))) << "its own";
  const auto report = [](uint32_t rank, uint8_t end, size_t bytes) {
    ByteWriter body;
    body.U32(rank);
    body.U8(end);
    body.Raw(Body(bytes));
    return body;
  };
  EXPECT_TRUE(refused(Router::kReport, report(8, 1, 4)));
  EXPECT_TRUE(refused(Router::kReport, report(3, 0, 4)));
  EXPECT_TRUE(refused(Router::kReport, report(3, 4, 4)));
  EXPECT_TRUE(refused(Router::kReport, report(3, 1, 3)));
  EXPECT_TRUE(refused(Router::kReport, report(3, 1, 5)));
  EXPECT_FALSE(refused(Router::kReport, report(0, 2, 4))) << "about the rank itself";
  EXPECT_FALSE(refused(Router::kReport, report(1, 2, 4))) << "about a neighbour";
  EXPECT_EQ(network.told[0].size(), 1u) << "the one flood";
  EXPECT_FALSE(refused(Router::kReport, report(3, 2, 4)));
  EXPECT_EQ(network.told[0].size(), 2u);
  EXPECT_TRUE(refused(254, {}));
}

TEST(RouterTest, RandomFramesDoNoHarm) {
  Rng rng(TestSeed());
  Network network(11);
  for (int i = 0; i < 20000; ++i) {
    Body body(rng.Below(60));
    for (std::byte& b : body) b = static_cast<std::byte>(rng.Below(i % 2 == 0 ? 3 : 256));
    const int to = static_cast<int>(rng.Below(11));
    (void)network.Give((to + 1) % 11, to, static_cast<uint8_t>(250 + rng.Below(4)), body);
    if (i % 100 == 0) network.routers[rng.Below(11)]->Broadcast(5, Number(1));
  }
}

// However many ranks one report names, what waits is sent again once.
TEST(RouterTest, AReportOfManyRanksRepeatsMessagesOnce) {
  constexpr int kRanks = 128, kTo = 3;
  Network network(kRanks);
  ASSERT_FALSE(network.graph.Linked(0, kTo));
  for (int i = 0; i < 10; ++i) network.routers[0]->Send(kTo, 7, Number(1), network.now);
  ASSERT_EQ(network.frames, 10u);
  ByteWriter report;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    if (rank == 0 || rank == kTo || network.graph.Linked(0, static_cast<int>(rank))) continue;
    report.U32(rank);
    report.U8(static_cast<uint8_t>(Router::End::kLeft));
    report.U32(0);
  }
  ASSERT_TRUE(network.Give(1, 0, Router::kReport, report.bytes()));
  EXPECT_LE(network.frames, 20u);
}

// A message for a rank that no path leads to any more waits for nothing, so the end of this rank
// does not wait for it either, though all have left in order.
TEST(RouterTest, NothingWaitsWithoutAPath) {
  constexpr int kRanks = 12, kTo = 6;
  Network network(kRanks);
  Router& router = *network.routers[0];
  ASSERT_FALSE(network.graph.Linked(0, kTo));
  router.Send(kTo, 7, Number(1), network.now);
  EXPECT_FALSE(router.acknowledged());
  for (int rank = 0; rank < kRanks; ++rank) {
    if (network.graph.Linked(0, rank)) router.OnNeighbourGone(rank, Router::End::kLeft, 0, 0);
  }
  EXPECT_TRUE(router.acknowledged());
  router.Send(kTo, 7, Number(2), network.now);
  EXPECT_TRUE(router.acknowledged());
  EXPECT_FALSE(router.NextGone().has_value());
}

// A rank that does not acknowledge costs bounded memory.
TEST(RouterTest, WhatWaitsForARankIsLimited) {
  Network network(8);
  size_t bytes = 0;
  for (int i = 0; i < 1000; ++i) network.routers[0]->Send(3, 1, Body(100000), network.now);
  bytes = network.frames * 100000;
  EXPECT_LE(bytes, 2 * kMaxControlBody);
  EXPECT_FALSE(network.routers[0]->acknowledged());
}

// A key on which libcrypto fails stands for a failure of any of its parts. Of 6 ranks, 0 and 3 are
// far from each other.
TEST(RouterTest, WithoutKeysAMessageIsAnErrorEachTime) {
  constexpr int kRanks = 6, kFar = 3;
  std::vector<uint64_t> hosts;
  for (uint64_t rank = 0; rank < kRanks; ++rank) hosts.push_back(rank);
  Router::Terms terms{.rank = 0,
                      .nranks = kRanks,
                      .graph = ControlGraph(HostMap(hosts), 1),
                      .key = *bootstrap::ServerKey::Create(),
                      .keys = std::vector<bootstrap::PublicKey>(kRanks),  // zero: of low order
                      .communicator = {},
                      .resend_after = kSecond};
  int emitted = 0;
  Router router(std::move(terms), [&](int, uint8_t, Data) { ++emitted; });
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(router.Send(kFar, 1, Number(7), 0), std::bad_alloc);
    EXPECT_TRUE(router.acknowledged());
  }
  EXPECT_EQ(emitted, 0);
}

}  // namespace
}  // namespace inccl::test
