// SPDX-License-Identifier: Apache-2.0
//
// The agreement on who is left, between ShrinkAgreement whose messages a test hands over one at a
// time, in any order that their connections admit: whatever the ranks ask for, whichever die, and
// whatever a peer sends, each call ends, and those that agree agree on the same.
#include "failure/shrink_agreement.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "base/bytes.h"
#include "base/rng.h"
#include "support/seed.h"
#include "world/limits.h"
#include "world/stacks.h"

namespace inccl::test {
namespace {

using Bits = uint64_t;  // of the first ranks, for worlds of few
constexpr uint8_t kProposal = 16, kId = 17, kJoined = 18, kDone = 19;

struct Message {
  uint8_t kind = 0;
  std::vector<std::byte> body;
};

RankSet SetOf(int nranks, Bits bits) {
  RankSet set(nranks);
  for (int rank = 0; rank < nranks; ++rank) {
    if ((bits >> rank & 1) != 0) set.Add(rank);
  }
  return set;
}

// In a world of three ranks.
std::vector<std::byte> Proposal(uint64_t round, uint8_t proposes, uint8_t excluded) {
  ByteWriter body;
  body.U64(round);
  body.U8(proposes);
  body.U8(excluded);
  body.U64(5);
  return body.bytes();
}

// All ranks and what is on its way between them.
class World {
 public:
  explicit World(const std::vector<Bits>& excluded) : World(Sets(excluded), Hostile(excluded)) {}
  // `excluded`: by rank. `hostile`: a rank that ShrinkAgreement does not run; -1: none.
  World(std::vector<RankSet> excluded, int hostile)
      : n_(static_cast<int>(excluded.size())), hostile_(hostile), excluded_(std::move(excluded)) {
    std::vector<std::string> names;
    for (int rank = 0; rank < n_; ++rank) names.push_back(fmt::format("h:{}", rank + 100));
    ranks_.resize(excluded_.size());
    for (int rank = 0; rank < n_; ++rank) {
      Rank& r = at(rank);
      r.shrink_agreement = std::make_unique<ShrinkAgreement>(rank, n_, names);
      r.plane = std::make_unique<Plane>(n_, rank, this);
      r.shrink_agreement->Attach(r.plane.get());
    }
  }
  ~World() {
    for (Rank& r : ranks_) {
      if (r.thread.joinable()) r.thread.join();
    }
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int n() const { return n_; }
  ShrinkAgreement& shrink_agreement(int rank) { return *at(rank).shrink_agreement; }
  const RankSet& excluded(int rank) const { return excluded_[static_cast<size_t>(rank)]; }

  void Call(int rank, Time limit = 100 * kSecond) {
    Rank& r = at(rank);
    r.running = true;
    std::mutex mutex;
    std::condition_variable changed;
    bool started = false;
    r.thread = std::thread([this, rank, limit, &r, &mutex, &changed, &started] {
      {
        const std::lock_guard lock(mutex);
        r.tid = static_cast<pid_t>(syscall(SYS_gettid));
        started = true;
        changed.notify_one();
      }
      ShrinkAgreement::Steps steps;
      steps.create_id = [this, rank]() -> Result<UniqueId> { return CreateId(rank); };
      steps.join = [this, rank](const UniqueId& id, const ShrinkAgreement::Outcome& outcome,
                                const std::atomic<bool>* cancelled) {
        return Join(rank, id, outcome, cancelled);
      };
      r.result.emplace(r.shrink_agreement->Agree(excluded(rank), 10 + static_cast<uint64_t>(rank),
                                                 SystemClock().Now() + limit, steps));
      const std::lock_guard lock(mutex_);
      r.running = false;
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return started; });
  }

  // The process ends: what it has sent still comes.
  void Kill(int rank) {
    {
      const std::lock_guard lock(mutex_);
      at(rank).dead = true;
      for (int peer = 0; peer < n_; ++peer) queues_[{rank, peer}].push_back({});
    }
    at(rank).shrink_agreement->Cancel(RemoteError("killed"));
    changed_.notify_all();
  }

  // The pairs (from, to) between which something is on its way.
  std::vector<std::pair<int, int>> OnTheirWay() {
    const std::lock_guard lock(mutex_);
    std::vector<std::pair<int, int>> pairs;
    for (const auto& [pair, queue] : queues_) {
      if (!queue.empty() && !at(pair.second).dead) pairs.push_back(pair);
    }
    return pairs;
  }
  void Deliver(std::pair<int, int> pair) {
    Message message;
    {
      const std::lock_guard lock(mutex_);
      message = std::move(queues_[pair].front());
      queues_[pair].pop_front();
    }
    ShrinkAgreement& to = shrink_agreement(pair.second);
    if (message.kind == 0) {
      to.OnPeerClosed(pair.first);
    } else {
      const bool good = to.OnMessage(pair.first, message.kind, message.body);
      EXPECT_TRUE(good || pair.first == hostile_)
          << "kind " << int{message.kind} << " from " << pair.first;
    }
    changed_.notify_all();
  }
  void Send(int from, int to, uint8_t kind, std::vector<std::byte> body) {
    const std::lock_guard lock(mutex_);
    if (!at(from).dead) queues_[{from, to}].push_back({kind, std::move(body)});
  }

  // Until no rank has anything to do before the next message. What this says is a matter of which
  // orders are tried, not of what must hold in them.
  void Settle() {
    for (int quiet = 0; quiet < 2;) quiet = Quiet() ? quiet + 1 : 0;
  }
  bool Running(int rank) {
    const std::lock_guard lock(mutex_);
    return at(rank).running;
  }
  bool AnyRunning() {
    for (int rank = 0; rank < n_; ++rank) {
      if (Running(rank)) return true;
    }
    return false;
  }
  // Ends calls that wait for a rank that will not come; returns how many there were.
  int CancelTheRest() {
    int count = 0;
    for (int rank = 0; rank < n_; ++rank) {
      if (!Running(rank)) continue;
      ++count;
      shrink_agreement(rank).Cancel(TimeoutError("cancelled by the test"));
    }
    changed_.notify_all();
    for (Rank& r : ranks_) {
      if (r.thread.joinable()) r.thread.join();
    }
    return count;
  }
  const std::optional<Result<ShrinkAgreement::Outcome>>& result(int rank) {
    return at(rank).result;
  }
  bool dead(int rank) { return at(rank).dead; }

  static constexpr Bits kHostile = ~Bits{0};  // not run by ShrinkAgreement

 private:
  static std::vector<RankSet> Sets(const std::vector<Bits>& excluded) {
    std::vector<RankSet> sets;
    for (const Bits bits : excluded) {
      sets.push_back(SetOf(static_cast<int>(excluded.size()), bits == kHostile ? 0 : bits));
    }
    return sets;
  }
  static int Hostile(const std::vector<Bits>& excluded) {
    const auto found = std::find(excluded.begin(), excluded.end(), kHostile);
    return found == excluded.end() ? -1 : static_cast<int>(found - excluded.begin());
  }

  class Plane final : public ControlPlane {
   public:
    Plane(int nranks, int rank, World* world) : ControlPlane(nranks), rank_(rank), world_(world) {}
    void Send(int peer, uint8_t kind, std::span<const std::byte> body) override {
      if (peer != rank_) world_->Send(rank_, peer, kind, {body.begin(), body.end()});
    }
    void Close(Time /*flush_deadline*/) override {}

   private:
    const int rank_;
    World* const world_;
  };
  struct Rank {
    std::unique_ptr<ShrinkAgreement> shrink_agreement;
    std::unique_ptr<Plane> plane;
    std::thread thread;
    pid_t tid = 0;
    bool running = false, dead = false;
    const std::atomic<bool>* cancelled = nullptr;  // while it joins
    std::optional<Result<ShrinkAgreement::Outcome>> result;
  };
  // What is being made by those who join with one id.
  struct Joint {
    int maker = -1;
    std::vector<int> members;  // as the first to come says
    std::vector<int> here;     // in the order in which they come
    bool failed = false;
  };

  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  UniqueId CreateId(int rank) {
    const std::lock_guard lock(mutex_);
    UniqueId id;
    id.server_key[0] = std::byte{static_cast<uint8_t>(joints_.size())};
    id.server_key[1] = std::byte{static_cast<uint8_t>(joints_.size() >> 8)};
    joints_[id.name()].maker = rank;
    return id;
  }
  // All or none, as the library does it.
  Status Join(int rank, const UniqueId& id, const ShrinkAgreement::Outcome& outcome,
              const std::atomic<bool>* cancelled) {
    std::unique_lock lock(mutex_);
    Joint& joint = joints_[id.name()];
    if (joint.here.empty()) joint.members = outcome.members;
    if (joint.maker >= 0) {
      EXPECT_EQ(joint.maker, outcome.members.front());
    }
    if (joint.members != outcome.members) joint.failed = true;
    if (std::find(joint.here.begin(), joint.here.end(), rank) == joint.here.end()) {
      joint.here.push_back(rank);
    }
    const size_t all = joint.members.size();
    at(rank).cancelled = cancelled;
    changed_.notify_all();
    changed_.wait(lock,
                  [&] { return joint.here.size() == all || joint.failed || cancelled->load(); });
    at(rank).cancelled = nullptr;
    if (joint.here.size() == all && !joint.failed) return Status::Ok();
    joint.failed = true;
    changed_.notify_all();
    return RemoteError("not all have joined");
  }

  bool Quiet() {
    for (Rank& r : ranks_) {
      {
        const std::lock_guard lock(mutex_);
        if (!r.running) continue;
        if (r.cancelled != nullptr && r.cancelled->load()) {
          changed_.notify_all();
          return false;
        }
      }
      std::ifstream file(fmt::format("/proc/self/task/{}/stat", r.tid));
      std::string line;
      std::getline(file, line);
      const size_t state = line.rfind(')') + 2;
      if (state >= line.size() || line[state] != 'S') {
        std::this_thread::yield();
        return false;
      }
    }
    return true;
  }

  const int n_, hostile_;
  const std::vector<RankSet> excluded_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<Message>> queues_;
  std::map<bootstrap::Nonce, Joint> joints_;
};

// What must hold once all calls have ended. `all_honest`: no rank has died or sent nonsense.
void Check(World* world, bool all_honest) {
  for (int rank = 0; rank < world->n(); ++rank) {
    const auto& result = world->result(rank);
    if (!result || !result->ok() || world->dead(rank)) continue;
    const ShrinkAgreement::Outcome& outcome = **result;
    EXPECT_TRUE(std::is_sorted(outcome.members.begin(), outcome.members.end()));
    EXPECT_EQ(std::count(outcome.members.begin(), outcome.members.end(), rank), 1);
    uint64_t least = ~uint64_t{0};
    for (const int member : outcome.members) {
      EXPECT_GE(member, 0);
      EXPECT_LT(member, world->n());
      EXPECT_FALSE(world->excluded(rank).Contains(member)) << rank << " wanted no " << member;
      least = std::min(least, 10 + static_cast<uint64_t>(member));
      const auto& other = world->result(member);
      if (!other) continue;
      if (!other->ok()) {
        EXPECT_TRUE(!all_honest || world->dead(member))
            << member << " should be in it: " << other->status().message();
        continue;
      }
      EXPECT_EQ((*other)->members, outcome.members) << rank << " and " << member;
      EXPECT_EQ((*other)->round, outcome.round) << rank << " and " << member;
      EXPECT_EQ((*other)->last_completed, outcome.last_completed);
    }
    if (all_honest) {
      EXPECT_EQ(outcome.last_completed, least);
    }
  }
}

// `pick` chooses among those on their way.
template <typename Pick>
void DeliverAll(World* world, Pick&& pick) {
  while (true) {
    world->Settle();
    const std::vector<std::pair<int, int>> pairs = world->OnTheirWay();
    if (pairs.empty()) return;
    world->Deliver(pairs[pick(pairs.size())]);
  }
}

std::string Describe(const std::vector<Bits>& excluded) {
  std::string text;
  for (const Bits set : excluded) text += fmt::format(" {:#b}", set);
  return text;
}

// What rank may ask for: the sets without itself, by number.
Bits Choice(int rank, uint64_t number) {
  const Bits low = number & ((Bits{1} << rank) - 1);
  return low | (number >> rank) << (rank + 1);
}

// Rank 1 excludes 0 and 2, rank 2 excludes 1, rank 0 no rank, in every order in which the first
// proposals may come.
TEST(ShrinkAgreementTest, EveryOrderOfConflictingProposals) {
  const Watchdog watchdog(60.0 * kSlowness);
  std::vector<int> order = {0, 1, 2, 3, 4, 5};
  int agreed = 0;
  do {
    World world({0b000, 0b101, 0b010});
    for (int rank = 0; rank < 3; ++rank) world.Call(rank);
    world.Settle();
    const std::vector<std::pair<int, int>> first = world.OnTheirWay();
    ASSERT_GE(first.size(), 4u);  // rank 1 needs no peer, and may have said more
    for (const int i : order) {
      const auto pair = std::pair(i / 2, (i / 2 + 1 + i % 2) % 3);
      world.Settle();
      const auto now = world.OnTheirWay();
      if (std::find(now.begin(), now.end(), pair) != now.end()) world.Deliver(pair);
    }
    DeliverAll(&world, [](size_t) { return size_t{0}; });
    const bool stuck = world.CancelTheRest() > 0;
    Check(&world, !stuck);
    ASSERT_TRUE(world.result(1)->ok()) << world.result(1)->status().message();
    EXPECT_EQ((*world.result(1))->members, std::vector<int>{1});
    if (world.result(0)->ok()) {
      ++agreed;
      EXPECT_EQ((*world.result(0))->members, (std::vector<int>{0, 2}));
    } else {
      EXPECT_EQ(world.result(0)->status().code(), Code::kInvalidUsage);
      EXPECT_NE(world.result(0)->status().message().find("rank 1 has excluded this one"),
                std::string::npos);
    }
    if (HasFailure()) return;
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_GT(agreed, 0);
}

// Everything that three ranks may ask for, and some of what four may, in random orders.
TEST(ShrinkAgreementTest, WhateverTheRanksExclude) {
  const Watchdog watchdog(100.0 * kSlowness);
  const uint64_t seed = TestSeed();
  uint64_t state = seed;
  const auto below = [&](uint64_t limit) { return (state = Mix64(state)) % limit; };
  const uint64_t worlds = kSanitized ? 160 : 800;
  for (uint64_t i = 0; i < worlds; ++i) {
    const int n = i % 2 == 0 ? 3 : 4;
    std::vector<Bits> excluded;
    uint64_t number = i / 2;
    for (int rank = 0; rank < n; ++rank) {
      const uint64_t choices = uint64_t{1} << (n - 1);
      excluded.push_back(Choice(rank, n == 3 ? number % choices : below(choices)));
      number /= choices;
    }
    SCOPED_TRACE(fmt::format("seed {} world {}:{}", seed, i, Describe(excluded)));
    World world(excluded);
    for (int rank = 0; rank < n; ++rank) world.Call(rank);
    DeliverAll(&world, below);
    const bool stuck = world.CancelTheRest() > 0;
    Check(&world, !stuck);
    // Ranks that exclude the same, and that no other rank that is left excludes, agree.
    const Bits all = (Bits{1} << n) - 1;
    for (int rank = 0; rank < n; ++rank) {
      const Bits wanted = all & ~excluded[static_cast<size_t>(rank)];
      bool alike = true;
      for (int other = 0; other < n; ++other) {
        if ((wanted >> other & 1) != 0) {
          alike = alike && excluded[static_cast<size_t>(other)] == (all & ~wanted);
        }
      }
      if (!alike) continue;
      ASSERT_TRUE(world.result(rank)->ok()) << rank << world.result(rank)->status().message();
      EXPECT_EQ((*world.result(rank))->members.size(),
                static_cast<size_t>(__builtin_popcountll(wanted)));
    }
    if (HasFailure()) return;
  }
}

// One or two ranks die at any time; no rank is excluded.
TEST(ShrinkAgreementTest, DeathsAtAnyTime) {
  const Watchdog watchdog(100.0 * kSlowness);
  const uint64_t seed = TestSeed();
  uint64_t state = seed + 1;
  const auto below = [&](uint64_t limit) { return (state = Mix64(state)) % limit; };
  for (int i = 0; i < (kSanitized ? 60 : 300); ++i) {
    SCOPED_TRACE(fmt::format("seed {} world {}", seed, i));
    constexpr int kRanks = 4;
    World world{std::vector<Bits>(kRanks)};
    for (int rank = 0; rank < kRanks; ++rank) world.Call(rank);
    std::vector<uint64_t> deaths = {below(40), i % 2 == 0 ? ~uint64_t{0} : below(60)};
    uint64_t step = 0;
    const auto pick = [&](size_t size) {
      ++step;
      return static_cast<size_t>(below(size));
    };
    while (true) {
      world.Settle();
      for (uint64_t& death : deaths) {
        if (step < death) continue;
        death = ~uint64_t{0};
        const int victim = static_cast<int>(below(kRanks));
        if (!world.dead(victim)) world.Kill(victim);
      }
      const auto pairs = world.OnTheirWay();
      if (pairs.empty()) break;
      world.Deliver(pairs[pick(pairs.size())]);
    }
    EXPECT_EQ(world.CancelTheRest(), 0) << "those that are left agree without any limit of time";
    Check(&world, true);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (!world.dead(rank)) {
        EXPECT_TRUE(world.result(rank)->ok()) << world.result(rank)->status().message();
      }
    }
    if (HasFailure()) return;
  }
}

// A peer sends anything at any time. Two honest ranks end, and never with different communicators.
TEST(ShrinkAgreementTest, HostileMessages) {
  const Watchdog watchdog(100.0 * kSlowness);
  const uint64_t seed = TestSeed();
  uint64_t state = seed + 2;
  const auto below = [&](uint64_t limit) { return (state = Mix64(state)) % limit; };
  constexpr uint64_t kRounds[] = {0,         1,    2, 3, uint64_t{1} << 48, (uint64_t{1} << 48) + 1,
                                  ~0ull - 1, ~0ull};
  constexpr uint8_t kSets[] = {0b000, 0b001, 0b010, 0b011, 0b100, 0b111, 0xff, 0b11000};
  for (int i = 0; i < (kSanitized ? 60 : 300); ++i) {
    SCOPED_TRACE(fmt::format("seed {} world {}", seed, i));
    constexpr int kHostileRank = 2;
    World world({0, 0, World::kHostile});
    for (int rank = 0; rank < kHostileRank; ++rank) world.Call(rank);
    for (int step = 0; step < 40; ++step) {
      if (below(3) == 0) {
        ByteWriter body;
        body.U64(kRounds[below(std::size(kRounds))]);
        const auto kind = static_cast<uint8_t>(kProposal + below(4));
        if (kind == kProposal) body.U8(static_cast<uint8_t>(below(3)));
        if (kind == kProposal || kind == kDone) body.U8(kSets[below(std::size(kSets))]);
        if (kind == kProposal || kind == kId) body.U64(below(100));
        if (below(8) == 0) body.U8(0);
        world.Send(kHostileRank, static_cast<int>(below(2)), kind, body.bytes());
      }
      world.Settle();
      const auto pairs = world.OnTheirWay();
      if (!pairs.empty()) world.Deliver(pairs[below(pairs.size())]);
    }
    DeliverAll(&world, below);
    world.CancelTheRest();
    Check(&world, false);
    if (HasFailure()) return;
  }
}

// One message each: what is said of it, and of whom.
TEST(ShrinkAgreementTest, MalformedMessagesNameTheirSender) {
  ByteWriter late;
  late.U64((uint64_t{1} << 48) + 1);
  const std::pair<uint8_t, std::vector<std::byte>> messages[] = {
      {kProposal, Proposal(1, 1, 0b111)},         // everybody
      {kProposal, Proposal(1, 1, 0b010)},         // its sender
      {kProposal, Proposal(1, 1, 0b1000)},        // a rank that does not exist
      {kProposal, Proposal(~uint64_t{0}, 1, 0)},  // a round that would overflow
      {kProposal, Proposal((uint64_t{1} << 48) + 1, 1, 0)},
      {kProposal, Proposal(1, 2, 0)},
      {kProposal, std::vector<std::byte>(8)},
      {kId, std::vector<std::byte>(8 + kUniqueIdBytes)},
      {kJoined, late.bytes()},
      {kDone, std::vector<std::byte>(7)},
      {kDone, std::vector<std::byte>(8)},   // no set
      {kDone, std::vector<std::byte>(10)},  // a set of more than 8 ranks
  };
  for (const auto& [kind, body] : messages) {
    World world({0, World::kHostile, 0});
    EXPECT_FALSE(world.shrink_agreement(0).OnMessage(1, kind, body)) << int{kind};
    world.Call(0);
    while (world.Running(0)) std::this_thread::yield();
    ASSERT_FALSE(world.result(0)->ok());
    const Status& status = world.result(0)->status();
    EXPECT_EQ(status.code(), Code::kInternalError) << status.message();
    EXPECT_NE(status.message().find("rank 0/3: shrink: peer 1@h:101 sent"), std::string::npos)
        << status.message();
  }
  // A rank that is excluded may send what it likes.
  World world({0b010, World::kHostile, 0b010});
  EXPECT_FALSE(world.shrink_agreement(0).OnMessage(1, kProposal, Proposal(1, 1, 0b111)));
  world.Call(0);
  world.Call(2);
  DeliverAll(&world, [](size_t) { return size_t{0}; });
  EXPECT_EQ(world.CancelTheRest(), 0);
  EXPECT_TRUE(world.result(0)->ok()) << world.result(0)->status().message();
}

// A peer that proposes a later round all the time does not keep the others beyond their limit.
// The peer has given up; what this rank says names the cause.
TEST(ShrinkAgreementTest, ATimeoutNamesWhyJoiningFailedBefore) {
  ShrinkAgreement agreement(0, 3, {"h:100", "h:101", "h:102"});
  for (const int peer : {1, 2})
    EXPECT_TRUE(agreement.OnMessage(peer, kProposal, Proposal(1, 1, 0)));
  ShrinkAgreement::Steps steps;
  steps.create_id = [] { return Result<UniqueId>(UniqueId{}); };
  steps.join = [&](const UniqueId&, const ShrinkAgreement::Outcome&, const std::atomic<bool>*) {
    agreement.OnPeerClosed(2);
    return RemoteError("no room at the inn");
  };
  const Status status =
      agreement.Agree(RankSet(3), 5, SystemClock().Now() + 2 * kSecond, steps).status();
  EXPECT_EQ(status.code(), Code::kTimeout);
  for (const char* part :
       {"did not agree on the excluded ranks: peer 1@h:101;", "no room at the inn"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
  }
}

// Not those who wait as this rank does, or have given up: they cannot go on without the others.
TEST(ShrinkAgreementTest, ATimeoutNamesThoseWhoHaveNotCalled) {
  ShrinkAgreement agreement(0, 5, {"h:100", "h:101", "h:102", "h:103", "h:104"});
  const auto said = [&] {
    const Time deadline = SystemClock().Now() + 50 * kMillisecond;
    return agreement.Agree(RankSet(5), 5, deadline, {}).status().message();
  };
  for (const uint8_t calls : {1, 0}) {  // 1 gives up
    EXPECT_TRUE(agreement.OnMessage(1, kProposal, Proposal(1, calls, 0)));
  }
  EXPECT_TRUE(agreement.OnMessage(3, kProposal, Proposal(2, 1, 0b00100)));  // goes on without 2
  EXPECT_EQ(said(), "rank 0/5: shrink: did not call ccl_comm_shrink: peer 4@h:104");
  // In another call, those who have not called again.
  EXPECT_EQ(
      said(),
      "rank 0/5: shrink: did not call ccl_comm_shrink: peer 1@h:101 peer 2@h:102 peer 4@h:104");
  for (const int peer : {1, 2, 4}) {
    EXPECT_TRUE(agreement.OnMessage(peer, kProposal, Proposal(9, 1, 0b01000)));
  }
  EXPECT_TRUE(agreement.OnMessage(2, kProposal, Proposal(9, 0, 0b01000)));
  EXPECT_EQ(said(), "rank 0/5: shrink: ended its call of ccl_comm_shrink: peer 2@h:102");
}

TEST(ShrinkAgreementTest, EndlessProposalsEndAtTheLimit) {
  const Watchdog watchdog(60.0 * kSlowness);
  World world({0, World::kHostile, 0});
  world.Call(0, 100 * kMillisecond);
  for (uint64_t round = 1; world.Running(0); ++round) {
    EXPECT_TRUE(world.shrink_agreement(0).OnMessage(1, kProposal, Proposal(round, 1, 0)));
  }
  ASSERT_FALSE(world.result(0)->ok());
  const Status& status = world.result(0)->status();
  EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
  EXPECT_NE(status.message().find("peer 2@h:102"), std::string::npos) << status.message();
}

TEST(ShrinkAgreementTest, TheLastRoundIsAnError) {
  World world({0, World::kHostile, 0});
  EXPECT_TRUE(
      world.shrink_agreement(0).OnMessage(1, kProposal, Proposal(uint64_t{1} << 48, 1, 0b100)));
  world.Call(0);
  DeliverAll(&world, [](size_t) { return size_t{0}; });
  world.Kill(1);  // would begin another round
  DeliverAll(&world, [](size_t) { return size_t{0}; });
  EXPECT_EQ(world.CancelTheRest(), 0);
  EXPECT_FALSE(world.result(0)->ok());
  EXPECT_NE(world.result(0)->status().message().find("used up the rounds"), std::string::npos)
      << world.result(0)->status().message();
}

// More ranks than a word has bits: the ranks exclude every third one, and one more dies.
TEST(ShrinkAgreementTest, ManyRanks) {
  const Watchdog watchdog(200.0 * kSlowness);
  for (const int n : {65, 100, 300}) {
    if (kSanitized && n > 100) break;
    SCOPED_TRACE(n);
    RankSet excluded(n);
    std::vector<int> expected;
    const int victim = n - (n % 3 == 0 ? 2 : 1);  // the highest rank that is not excluded
    for (int rank = 0; rank < n; ++rank) {
      if (rank % 3 == 2) {
        excluded.Add(rank);
      } else if (rank != victim) {
        expected.push_back(rank);
      }
    }
    ASSERT_FALSE(excluded.Contains(victim));
    World world(std::vector<RankSet>(static_cast<size_t>(n), excluded), -1);
    for (const int rank : expected) world.Call(rank);
    world.Kill(victim);  // has not called
    while (world.AnyRunning()) {
      const std::vector<std::pair<int, int>> pairs = world.OnTheirWay();
      for (const std::pair<int, int>& pair : pairs) world.Deliver(pair);
      if (pairs.empty()) std::this_thread::yield();
    }
    EXPECT_EQ(world.CancelTheRest(), 0);
    for (const int rank : expected) {
      ASSERT_TRUE(world.result(rank)->ok()) << world.result(rank)->status().message();
      EXPECT_EQ((*world.result(rank))->members, expected);
      EXPECT_EQ((*world.result(rank))->last_completed, 10u);  // rank 0's
    }
    if (HasFailure()) return;
  }
}

TEST(ShrinkAgreementTest, OneCallAtATime) {
  World world({0, 0, 0});
  world.Call(0);
  world.Settle();
  const Result<ShrinkAgreement::Outcome> second =
      world.shrink_agreement(0).Agree(RankSet(3), 0, SystemClock().Now() + kSecond, {});
  EXPECT_EQ(second.status().code(), Code::kInvalidArgument);
  EXPECT_NE(second.status().message().find("rank 0/3 is in another call"), std::string::npos);
  EXPECT_EQ(world.CancelTheRest(), 1);
  EXPECT_EQ(world.result(0)->status().code(), Code::kTimeout);
  // For good.
  const Result<ShrinkAgreement::Outcome> later =
      world.shrink_agreement(0).Agree(RankSet(3), 0, SystemClock().Now() + kSecond, {});
  EXPECT_EQ(later.status().message(), "cancelled by the test");
}

}  // namespace
}  // namespace inccl::test
