// SPDX-License-Identifier: Apache-2.0
//
// The control plane: the same promises over sockets, between neighbours and between ranks without a
// connection to each other, and in memory.
#include "control/control.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/rng.h"
#include "bootstrap/bootstrap_world.h"
#include "bootstrap/meshes.h"
#include "bootstrap/messages.h"
#include "control/router.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

using Body = std::vector<std::byte>;

Time Soon() { return SystemClock().Now() + 10 * kSecond; }

Body Number(uint64_t number) {
  Body body(sizeof number);
  std::memcpy(body.data(), &number, sizeof number);
  return body;
}

// Keeps what it is told.
class Recorder : public ControlHandler {
 public:
  struct Event {
    int peer;
    int kind;  // -1: closed cleanly, -2: closed otherwise
    Body body;
  };
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override {
    Add({peer, kind, Body(body.begin(), body.end())});
  }
  void OnPeerClosed(int peer, bool clean) override { Add({peer, clean ? -1 : -2, {}}); }

  // Waits for so many events in all; the events so far.
  std::vector<Event> WaitFor(size_t count) {
    std::unique_lock lock(mutex_);
    const bool enough = changed_.wait_for(lock, std::chrono::seconds(20 * kSlowness),
                                          [&] { return events_.size() >= count; });
    EXPECT_TRUE(enough) << events_.size() << " events instead of " << count;
    return events_;
  }
  size_t count() {
    const std::lock_guard lock(mutex_);
    return events_.size();
  }

 private:
  void Add(Event event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Event> events_;
};

using Planes = std::vector<std::unique_ptr<ControlPlane>>;

Planes MakeOverSockets(const std::vector<ControlHandler*>& handlers) {
  Planes planes;
  Result<UniqueId> id = CreateUniqueId(TestEnvironment());
  EXPECT_TRUE(id.ok());
  std::vector<Result<Mesh>> meshes = JoinThreads(*id, static_cast<int>(handlers.size()));
  for (size_t i = 0; i < handlers.size(); ++i) {
    EXPECT_TRUE(meshes[i].ok()) << meshes[i].status().message();
    auto plane = StartControl(*std::move(meshes[i]), handlers[i]);
    EXPECT_TRUE(plane.ok()) << plane.status().message();
    planes.push_back(*std::move(plane));
  }
  return planes;
}

// The ranks of a test are ranks 0, 3, 6 and 9 of a communicator of 12, in which ranks at distances
// of 3, 6 and 9 have no connection; the other ranks only pass on what they get.
class FarRanks {
 public:
  static constexpr int kRanks = 12, kApart = 3;

  static Planes Make(const std::vector<ControlHandler*>& handlers) {
    EXPECT_LE(handlers.size(), static_cast<size_t>(kRanks / kApart));
    const auto all = std::make_shared<FarRanks>();
    all->open_ = static_cast<int>(handlers.size());
    std::vector<Mesh> meshes = MakeMeshes(kRanks, 1);
    const ControlGraph graph = meshes[0].graph;
    Planes planes;
    for (int rank = 0; rank < kRanks; ++rank) {
      const auto number = static_cast<size_t>(rank / kApart);
      const bool tested = rank % kApart == 0 && number < handlers.size();
      Relay& relay = all->relays_.emplace_back();
      if (tested) relay.handler = handlers[number];
      for (int peer = 0; peer < rank; ++peer) {
        EXPECT_FALSE(tested && peer % kApart == 0 && graph.Linked(peer, rank));
      }
      auto plane = StartControl(std::move(meshes[static_cast<size_t>(rank)]), &relay);
      EXPECT_TRUE(plane.ok()) << plane.status().message();
      if (tested) {
        planes.push_back(
            std::make_unique<Plane>(static_cast<int>(handlers.size()), *std::move(plane), all));
      } else {
        all->others_.push_back(*std::move(plane));
      }
    }
    return planes;
  }

 private:
  struct Relay : ControlHandler {
    void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override {
      if (handler != nullptr) handler->OnMessage(peer / kApart, kind, body);
    }
    void OnPeerClosed(int peer, bool clean) override {
      if (handler != nullptr && peer % kApart == 0) handler->OnPeerClosed(peer / kApart, clean);
    }
    ControlHandler* handler = nullptr;
  };
  class Plane final : public ControlPlane {
   public:
    Plane(int nranks, std::unique_ptr<ControlPlane> plane, std::shared_ptr<FarRanks> all)
        : ControlPlane(nranks), plane_(std::move(plane)), all_(std::move(all)) {}
    ~Plane() override { Close(0); }
    void Send(int peer, uint8_t kind, std::span<const std::byte> body) override {
      if (peer < nranks_) plane_->Send(kApart * peer, kind, body);
    }
    void Broadcast(uint8_t kind, std::span<const std::byte> body) override {
      plane_->Broadcast(kind, body);
    }
    bool Disconnect(Time until) override { return plane_->Disconnect(until); }
    void Close(Time flush_deadline) override {
      plane_->Close(flush_deadline);
      if (!closed_.exchange(true) && --all_->open_ == 0) all_->others_.clear();
    }

   private:
    const std::unique_ptr<ControlPlane> plane_;
    const std::shared_ptr<FarRanks> all_;
    std::atomic<bool> closed_{false};
  };

  std::atomic<int> open_{0};  // tested ranks
  std::deque<Relay> relays_;
  Planes others_;
};

Planes MakeInMemory(const std::vector<ControlHandler*>& handlers) {
  Result<Planes> planes = MakeLocalControl(handlers);
  EXPECT_TRUE(planes.ok());
  return *std::move(planes);
}

using Factory = Planes (*)(const std::vector<ControlHandler*>&);

class ControlTest : public ::testing::TestWithParam<std::pair<const char*, Factory>> {
 protected:
  Planes Make(std::vector<Recorder>* recorders) {
    std::vector<ControlHandler*> handlers;
    for (Recorder& recorder : *recorders) handlers.push_back(&recorder);
    return GetParam().second(handlers);
  }
  static void CloseAll(Planes* planes) {
    for (auto& plane : *planes) plane->Close(Soon());
  }

  const Baseline baseline_;
};

TEST_P(ControlTest, EveryMessageArrivesOnceAndInOrder) {
  constexpr int kRanks = 4, kMessages = 500;
  std::vector<Recorder> recorders(kRanks);
  Planes planes = Make(&recorders);
  OnThreads(kRanks, [&](int rank) {
    Rng rng(TestSeed() + static_cast<uint64_t>(rank));
    for (uint64_t i = 0; i < kMessages; ++i) {
      for (int peer = 0; peer < kRanks; ++peer) {
        if (peer == rank) continue;
        Body body = Number(i);
        body.resize(sizeof i + rng.Below(i % 50 == 0 ? 50000 : 100), std::byte{0x77});
        planes[static_cast<size_t>(rank)]->Send(
            peer, static_cast<uint8_t>(1 + i % kMostControlKind), body);
      }
    }
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    std::map<int, uint64_t> next;
    for (const auto& event :
         recorders[static_cast<size_t>(rank)].WaitFor((kRanks - 1) * kMessages)) {
      uint64_t number = 0;
      ASSERT_GE(event.body.size(), sizeof number);
      std::memcpy(&number, event.body.data(), sizeof number);
      ASSERT_NE(event.peer, rank);
      ASSERT_EQ(number, next[event.peer]) << "from " << event.peer;
      ASSERT_EQ(event.kind, static_cast<int>(1 + number % kMostControlKind));
      ++next[event.peer];
    }
    EXPECT_EQ(next.size(), static_cast<size_t>(kRanks - 1));
  }
  CloseAll(&planes);
}

TEST_P(ControlTest, BroadcastReachesAllOthers) {
  std::vector<Recorder> recorders(3);
  Planes planes = Make(&recorders);
  planes[1]->Broadcast(9, Number(5));
  for (const size_t rank : {0u, 2u}) {
    const auto events = recorders[rank].WaitFor(1);
    EXPECT_EQ(events[0].peer, 1);
    EXPECT_EQ(events[0].kind, 9);
    EXPECT_EQ(events[0].body, Number(5));
  }
  EXPECT_EQ(recorders[1].count(), 0u);
  CloseAll(&planes);
}

TEST_P(ControlTest, GoodbyeComesAfterTheLastMessage) {
  std::vector<Recorder> recorders(2);
  Planes planes = Make(&recorders);
  for (uint64_t i = 0; i < 100; ++i) planes[0]->Send(1, 1, Body(10000));
  planes[0]->Close(Soon());
  planes[0]->Send(1, 1, {});  // no effect
  const auto events = recorders[1].WaitFor(101);
  ASSERT_EQ(events.size(), 101u);
  for (size_t i = 0; i < 100; ++i) EXPECT_EQ(events[i].kind, 1);
  EXPECT_EQ(events[100].kind, -1) << "a clean end";
  planes[1]->Send(0, 1, {});  // to one who has gone: no effect
  planes[1]->Close(Soon());
  planes[1]->Close(Soon());
  EXPECT_EQ(recorders[1].count(), 101u);
}

TEST_P(ControlTest, NoCallbackAfterClose) {
  for (int round = 0; round < 50; ++round) {
    std::vector<Recorder> recorders(2);
    Planes planes = Make(&recorders);
    std::atomic<bool> stop{false};
    std::thread sender([&] {
      while (!stop) {
        planes[0]->Send(1, 1, Number(1));
        std::this_thread::yield();
      }
    });
    recorders[1].WaitFor(static_cast<size_t>(1 + round % 7));
    planes[1]->Close(SystemClock().Now());
    const size_t at_close = recorders[1].count();
    usleep(500);
    EXPECT_EQ(recorders[1].count(), at_close);
    stop = true;
    sender.join();
    planes[0]->Close(Soon());
  }
}

TEST_P(ControlTest, ManyThreadsSendAndClose) {
  std::vector<Recorder> recorders(3);
  Planes planes = Make(&recorders);
  OnThreads(6, [&](int thread) {
    ControlPlane& plane = *planes[static_cast<size_t>(thread % 3)];
    for (int i = 0; i < 300; ++i) plane.Broadcast(3, Number(static_cast<uint64_t>(i)));
    plane.Close(Soon());
  });
}

// No rank that leaves at the same time counts as dead, in whatever order peers see it.
TEST_P(ControlTest, LeavingTogetherIsCleanForAll) {
  for (int round = 0; round < 50; ++round) {
    std::vector<Recorder> recorders(4);
    Planes planes = Make(&recorders);
    OnThreads(4, [&](int rank) {
      if (rank == round % 4) usleep(200);
      planes[static_cast<size_t>(rank)]->Close(Soon());
    });
    for (Recorder& recorder : recorders) {
      for (const auto& event : recorder.WaitFor(0)) EXPECT_EQ(event.kind, -1) << event.peer;
    }
  }
}

// A handler that answers from within its callback.
class Echo : public ControlHandler {
 public:
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override {
    if (kind < 100) plane.load()->Send(peer, static_cast<uint8_t>(kind + 1), body);
  }
  void OnPeerClosed(int, bool) override {
    if (plane.load() != nullptr) plane.load()->Broadcast(101, {});
  }
  std::atomic<ControlPlane*> plane{nullptr};
};

TEST_P(ControlTest, HandlersMaySend) {
  Echo echo;
  Recorder recorder;
  Planes planes = GetParam().second({&echo, &recorder});
  echo.plane = planes[0].get();
  planes[1]->Send(0, 10, Number(99));
  const auto events = recorder.WaitFor(1);
  EXPECT_EQ(events[0].kind, 11);
  EXPECT_EQ(events[0].body, Number(99));
  planes[1]->Close(Soon());
  planes[0]->Close(Soon());
}

TEST_P(ControlTest, WhatCannotBeSentIsNot) {
  std::vector<Recorder> recorders(2);
  Planes planes = Make(&recorders);
  planes[0]->Send(1, 5, Body(kMaxControlBody + 1));
  planes[0]->Send(1, 0, {});
  planes[0]->Send(1, kMostControlKind + 1, {});
  planes[0]->Send(1, 255, {});
  planes[0]->Send(0, 5, {});
  planes[0]->Send(-1, 5, {});
  planes[0]->Send(2, 5, {});
  planes[0]->Send(1, 6, Body(kMaxControlBody));
  const auto events = recorders[1].WaitFor(1);
  EXPECT_EQ(events[0].kind, 6);
  EXPECT_EQ(events[0].body.size(), kMaxControlBody);
  CloseAll(&planes);
}

// A handler that does not return for a while; its queue is bounded.
class Stuck : public Recorder {
 public:
  void OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return free_; });
    Recorder::OnMessage(peer, kind, body);
  }
  void Free() {
    const std::lock_guard lock(mutex_);
    free_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool free_ = false;
};

TEST_P(ControlTest, APeerThatTakesNothingIsGivenUp) {
  Recorder recorder;
  Stuck stuck;
  Planes planes = GetParam().second({&recorder, &stuck});
  const Body large(kMaxControlBody);
  const double start = Seconds();
  for (int i = 0; i < 30; ++i) planes[0]->Send(1, 1, large);  // three times what may wait
  EXPECT_LT(Seconds() - start, 5.0 * kSlowness) << "sending does not wait";
  stuck.Free();
  if (GetParam().second == &FarRanks::Make) {  // there is no connection to close
    for (size_t i = 0; i < 2; ++i) planes[i]->Close(Soon());
    EXPECT_LT(stuck.count(), 30u) << "all arrived, and none waited";
    for (const auto& event : stuck.WaitFor(1)) EXPECT_TRUE(event.kind == 1 || event.kind == -1);
    return;
  }
  for (size_t seen = 1;; ++seen) {
    const auto events = stuck.WaitFor(seen);
    if (events.back().kind == -2) break;
    ASSERT_LT(events.size(), 30u) << "all arrived, and none waited";
  }
  planes[0]->Close(Soon());
  planes[1]->Close(Soon());
}

// When those of earlier tests have ended.
size_t SettledThreads() {
  size_t threads = 0;
  for (int same = 0; same < 5; usleep(10'000)) {
    const size_t now = Holdings::Now().threads;
    same = now == threads ? same + 1 : 0;
    threads = now;
  }
  return threads;
}

TEST_P(ControlTest, PlanesOfSeveralCommunicatorsShareOneThread) {
  const size_t threads = SettledThreads();
  std::vector<std::vector<Recorder>> recorders;
  for (int c = 0; c < 4; ++c) recorders.emplace_back(2);
  std::vector<Planes> all;
  for (std::vector<Recorder>& pair : recorders) all.push_back(Make(&pair));
  for (Planes& planes : all) planes[0]->Send(1, 1, {});
  for (std::vector<Recorder>& pair : recorders) pair[1].WaitFor(1);
  const double limit = Seconds() + 10 * kSlowness;
  while (Holdings::Now().threads > threads + 1 && Seconds() < limit) usleep(1000);
  EXPECT_EQ(Holdings::Now().threads, threads + 1) << "rendezvous threads have ended";
  for (Planes& planes : all) CloseAll(&planes);
  EXPECT_EQ(Holdings::Now().threads, threads);
}

TEST_P(ControlTest, TwoHundredLives) {
  for (int i = 0; i < 200; ++i) {
    std::vector<Recorder> recorders(2);
    Planes planes = Make(&recorders);
    planes[0]->Send(1, 1, Number(static_cast<uint64_t>(i)));
    if (i % 2 == 0) recorders[1].WaitFor(1);
    if (i % 3 == 0) {
      CloseAll(&planes);
    } else {
      planes.clear();  // destructors close
    }
  }
}

TEST_P(ControlTest, DestructionWithoutCloseSaysGoodbyeToo) {
  std::vector<Recorder> recorders(2);
  Planes planes = Make(&recorders);
  planes[0].reset();
  EXPECT_EQ(recorders[1].WaitFor(1)[0].kind, -1);
  planes[1].reset();
}

// Rank 1 sends through rank 0 more than the queue of a connection takes, to a rank behind rank 11,
// which reads nothing meanwhile. That does not end the connection of ranks 0 and 11.
TEST(SparseControlTest, ARankBreaksNoConnectionOfOthers) {
  struct Fence : ControlHandler {
    void OnMessage(int, uint8_t, std::span<const std::byte>) override { passed = true; }
    void OnPeerClosed(int, bool) override { closed = true; }
    std::atomic<bool> passed{false}, closed{false};
  } handler;
  constexpr int kRanks = 12, kTo = 7, kBusy = 1, kVictim = 11;
  std::vector<Mesh> meshes = MakeMeshes(kRanks, 1);
  ASSERT_EQ(meshes[0].graph.NextHops(0, std::vector<bool>(kRanks))[kTo], kVictim);
  const int busy = meshes[kBusy].peers[0].control.get();
  const int victim = meshes[kVictim].peers[0].control.get();
  auto plane = StartControl(std::move(meshes[0]), &handler);
  ASSERT_TRUE(plane.ok());
  std::vector<std::byte> out;
  for (uint64_t number = 1; number <= 20; ++number) {
    ByteWriter routed;
    routed.U32(kTo);
    routed.U32(5);
    routed.U64(number);
    routed.U8(0);
    routed.Raw(Body(kMaxControlBody));
    ASSERT_TRUE(bootstrap::AppendFrame(control::Router::kRouted, routed.bytes(), &out, nullptr));
  }
  ByteWriter flood;
  flood.U32(kBusy);
  flood.U64(1);
  flood.U8(9);
  ASSERT_TRUE(bootstrap::AppendFrame(control::Router::kFlood, flood.bytes(), &out, nullptr));
  for (size_t at = 0; at < out.size();) {
    pollfd ready = {.fd = busy, .events = POLLOUT, .revents = 0};
    ASSERT_GE(poll(&ready, 1, -1), 0);
    const ssize_t sent = send(busy, out.data() + at, out.size() - at, MSG_NOSIGNAL);
    if (sent > 0) at += static_cast<size_t>(sent);
    ASSERT_TRUE(sent > 0 || errno == EAGAIN);
  }
  while (!handler.passed) sched_yield();
  std::vector<std::byte> in(1 << 20);
  pollfd ready = {.fd = victim, .events = POLLIN, .revents = 0};
  size_t arrived = 0;
  while (poll(&ready, 1, 100) > 0) {
    const ssize_t got = recv(victim, in.data(), in.size(), 0);
    ASSERT_GT(got, 0) << "the end of the connection, after " << arrived << " bytes";
    arrived += static_cast<size_t>(got);
  }
  EXPECT_GT(arrived, size_t{kMaxControlBody});
  EXPECT_FALSE(handler.closed);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ControlTest,
                         ::testing::Values(std::pair("sockets", &MakeOverSockets),
                                           std::pair("far_ranks", &FarRanks::Make),
                                           std::pair("memory", &MakeInMemory)),
                         [](const auto& param) { return param.param.first; });

}  // namespace
}  // namespace inccl::test
