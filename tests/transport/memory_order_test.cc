// SPDX-License-Identifier: Apache-2.0
//
// The lane protocol and the wakeup event in every interleaving of a few steps, and with every value
// that the memory orders let a load read (support/interleavings.h). What runs here are the sources
// of transport/mapped themselves, in a namespace in which std::atomic and the kernel's calls are
// the model's.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <linux/futex.h>
#include <sys/syscall.h>

#include <algorithm>
#include <climits>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <new>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

// All that the sources below include from elsewhere.
#include "base/clock.h"
#include "base/rng.h"
#include "base/status.h"
#include "support/interleavings.h"
#include "transport/emulated/emulated.h"
#include "transport/poll_wakeup_event.h"
#include "transport/transport.h"
#include "world/limits.h"

namespace inccl::mapped_model {

namespace std {
using namespace ::std;
template <typename T>
using atomic = ::inccl::test::ModelAtomic<T>;
}  // namespace std

template <typename... Rest>
long syscall(long number, uint32_t* futex, int operation, uint32_t value, const timespec* /*limit*/,
             Rest... /*rest*/) {
  EXPECT_EQ(number, SYS_futex);
  auto& model = ::inccl::test::Interleavings::Get();
  if ((operation & ~FUTEX_PRIVATE_FLAG) == FUTEX_WAIT) {
    model.FutexWait(futex, 0, value);
  } else {
    EXPECT_EQ(operation & ~FUTEX_PRIVATE_FLAG, FUTEX_WAKE);
    model.FutexWake(futex);
  }
  return 0;
}
inline ssize_t write(int fd, const void* /*data*/, size_t bytes) {
  ::inccl::test::Interleavings::Get().EventFdWrite(fd);
  return static_cast<ssize_t>(bytes);
}
inline ssize_t read(int fd, void* /*data*/, size_t bytes) {
  const bool readable = ::inccl::test::Interleavings::Get().EventFdRead(fd);
  return readable ? static_cast<ssize_t>(bytes) : -1;
}

}  // namespace inccl::mapped_model

// NOLINTBEGIN(bugprone-suspicious-include)
#define mapped mapped_model
#include "transport/mapped/mapped_transport.cc"
#include "transport/mapped/wakeup.cc"
#undef mapped
// NOLINTEND(bugprone-suspicious-include)

namespace inccl::mapped_model {
namespace {

using Bodies = std::vector<std::function<void()>>;
using test::Interleavings;
using ModelWord = test::ModelAtomic<uint32_t>;

constexpr int kEventFd = 100;

void ExpectNoFailure(const std::function<Bodies()>& make) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "the threads of the model are none to the sanitizer";
#endif
  const Interleavings::Outcome outcome = Interleavings::Explore(make);
  EXPECT_TRUE(outcome.failure.empty()) << outcome.failure;
  EXPECT_GT(outcome.runs, 1u);
  ::testing::Test::RecordProperty("runs", static_cast<int>(outcome.runs));
}

// As collectives/progress.cc waits.
void WaitUntil(WakeupEvent* event, const std::function<bool()>& look) {
  while (!look()) {
    const uint32_t token = event->Arm();
    if (look()) return event->Disarm();
    event->Wait(token, kNever);
  }
}
// As transport/poll_wakeup_event.cc waits, on one eventfd.
void WaitUntil(WakeupSource* source, const std::function<bool()>& look) {
  while (!look()) {
    source->Arm();
    if (look()) return source->Disarm(false);
    Interleavings::Get().EventFdPoll(kEventFd);
    source->Disarm(true);
  }
}

// Two peers, each with work of its own, and an owner that needs both.
struct Works {
  WakeupArea area{};
  ModelWord works[2];
  bool HasBoth() const { return works[0].load() == 1 && works[1].load() == 1; }
  void Work(int peer) {
    works[peer].store(1);
    RingIfSleeping(&area, FutexScope::kHost, kEventFd);
  }
};

TEST(WakeupOrderTest, NoWakeupOfTwoPeersIsLost) {
  std::unique_ptr<Works> world;
  ExpectNoFailure([&]() -> Bodies {
    world = std::make_unique<Works>();
    Works* const all = world.get();
    return {[all] {
              FutexWakeupEvent event(&all->area, FutexScope::kHost);
              WaitUntil(&event, [&] { return all->HasBoth(); });
            },
            [all] { all->Work(0); }, [all] { all->Work(1); }};
  });
}

TEST(WakeupOrderTest, NoWakeupOfTwoPeersIsLostByAnEventFd) {
  std::unique_ptr<Works> world;
  ExpectNoFailure([&]() -> Bodies {
    world = std::make_unique<Works>();
    Works* const all = world.get();
    return {[all] {
              EventFdWakeupSource source(&all->area, kEventFd);
              WaitUntil(&source, [&] { return all->HasBoth(); });
            },
            [all] { all->Work(0); }, [all] { all->Work(1); }};
  });
}

// Signal lets its caller publish the work with any memory order.
TEST(WakeupOrderTest, NoSignalIsLost) {
  std::unique_ptr<Works> world;
  ExpectNoFailure([&]() -> Bodies {
    world = std::make_unique<Works>();
    Works* const all = world.get();
    return {[all] {
              FutexWakeupEvent event(&all->area, FutexScope::kProcess);
              WaitUntil(&event, [&] { return all->works[0].load(std::memory_order_relaxed) == 1; });
            },
            [all] {
              all->works[0].store(1, std::memory_order_relaxed);
              FutexWakeupEvent(&all->area, FutexScope::kProcess).Signal();
            }};
  });
}

// The memory of an arena, which is used again by the next run.
class ModelMemory final : public ArenaMemory {
 public:
  explicit ModelMemory(int rank) : data_(Memory(rank)) {}
  ~ModelMemory() override {
    for (const auto& [offset, bytes] : committed_) std::memset(data_ + offset, 0, bytes);
  }
  std::byte* data() const override { return data_; }
  size_t bytes() const override { return kBytes; }
  Status Commit(size_t offset, size_t bytes) override {
    committed_.emplace_back(offset, bytes);
    return Status::Ok();
  }
  static constexpr size_t kBytes = kDataOffset + 8 * kPage;

 private:
  struct Page {
    alignas(kPage) std::byte bytes[kPage];
  };
  static std::byte* Memory(int rank) {
    static std::vector<Page> pages[3];
    std::vector<Page>& mine = pages[rank];
    mine.resize(kBytes / kPage);
    return mine.front().bytes;
  }
  std::byte* const data_;
  std::vector<std::pair<size_t, size_t>> committed_;
};

class End final : public MappedTransport {
 public:
  End(int rank, int nranks)
      : End(rank, nranks,
            std::move(*Arena::Create(std::make_unique<ModelMemory>(rank), rank, nranks))) {}
  static void Attach(const std::vector<std::unique_ptr<End>>& ends) {
    for (const auto& end : ends) {
      for (const auto& peer : ends) {
        if (end == peer) continue;
        auto view = ArenaView::Create(peer->arena()->At(0), ModelMemory::kBytes, peer->rank(),
                                      static_cast<int>(ends.size()));
        ASSERT_TRUE(view.ok()) << view.status().message();
        end->SetPeer(peer->rank(), std::move(*view), &peer->area_);
      }
    }
  }

 private:
  End(int rank, int nranks, std::unique_ptr<Arena> arena)
      : MappedTransport("model", rank, nranks, std::move(arena), &area_, FutexScope::kHost, 1 << 20,
                        UINT32_MAX) {}
  WakeupArea area_{};
};

// A lane of rank 0, on which `slices` go to all others.
class Lane {
 public:
  Lane(int nranks, int depth, uint32_t slices) : slices_(slices) {
    for (int rank = 0; rank < nranks; ++rank) {
      ends_.push_back(std::make_unique<End>(rank, nranks));
      if (rank != 0) spec_.consumers.push_back(rank);
    }
    End::Attach(ends_);
    spec_.slot_bytes = 64;
    spec_.depth = static_cast<uint16_t>(depth);
    recv_.resize(static_cast<size_t>(nranks));
  }
  ~Lane() {
    send_.reset();
    recv_.clear();
  }

  void Open() {
    OpenSend();
    for (const int rank : spec_.consumers) OpenRecv(rank);
    for (const int rank : spec_.consumers) EXPECT_FALSE(TryPeek(rank));
  }
  Bodies Threads() {
    Bodies bodies = {[this] { Send(); }};
    for (const int rank : spec_.consumers) bodies.emplace_back([this, rank] { Receive(rank); });
    return bodies;
  }

  void OpenSend() { send_ = *ends_[0]->OpenSend(spec_); }
  void OpenRecv(int rank) {
    recv_[static_cast<size_t>(rank)] = *ends_[static_cast<size_t>(rank)]->OpenRecv(spec_);
  }
  void Send() {
    if (send_ == nullptr) OpenSend();
    WakeupEvent* const event = ends_[0]->wakeup_event();
    for (uint32_t i = 0; i < slices_; ++i) {
      Span slot;
      WaitUntil(event, [&] {
        Result<Span> acquired = send_->TryAcquire();
        Check(acquired.status());
        if (acquired.ok()) slot = *acquired;
        return !acquired.ok() || slot.data != nullptr;
      });
      if (slot.data == nullptr) return;
      Interleavings::Get().Access(slot.data, true);
      *slot.data = std::byte{static_cast<uint8_t>(i + 1)};
      Check(send_->Publish(HeaderOf(i)));
    }
    WaitUntil(event, [&] {
      const Result<bool> drained = send_->Drained();
      Check(drained.status());
      return !drained.ok() || *drained;
    });
  }
  void Receive(int rank) {
    if (recv_[static_cast<size_t>(rank)] == nullptr) OpenRecv(rank);
    RecvLane* const lane = recv_[static_cast<size_t>(rank)].get();
    for (uint32_t i = 0; i < slices_; ++i) {
      WaitUntil(ends_[static_cast<size_t>(rank)]->wakeup_event(), [&] { return TryPeek(rank); });
      const SliceHeader expected = HeaderOf(i);
      const auto& [header, payload, target] = incoming_[rank];
      if (header.bytes != expected.bytes || header.slice != expected.slice ||
          header.signature != expected.signature || header.delivered != expected.delivered) {
        Interleavings::Get().Fail(fmt::format("a header is not that of slice {}", i));
        return;
      }
      Interleavings::Get().Access(payload, false);
      if (*payload != std::byte{static_cast<uint8_t>(i + 1)}) {
        Interleavings::Get().Fail(fmt::format("a payload is not that of slice {}", i));
      }
      Check(lane->Release());
    }
  }

 private:
  // Of each slice all fields differ.
  static SliceHeader HeaderOf(uint32_t slice) {
    SliceHeader header;
    header.bytes = 1 + slice % 60;
    header.slice = 7 + slice;
    header.signature = 1000 + slice;
    header.delivered = 1 + slice;
    return header;
  }
  static void Check(const Status& status) {
    if (!status.ok()) Interleavings::Get().Fail(status.message());
  }
  bool TryPeek(int rank) {
    const Result<bool> there = recv_[static_cast<size_t>(rank)]->TryPeek(&incoming_[rank]);
    Check(there.status());
    return there.ok() && *there;
  }

  const uint32_t slices_;
  LaneSpec spec_;
  std::vector<std::unique_ptr<End>> ends_;
  std::unique_ptr<SendLane> send_;
  std::vector<std::unique_ptr<RecvLane>> recv_;
  RecvLane::Incoming incoming_[3];
};

TEST(LaneOrderTest, SlicesAndCreditsOfOneSlot) {
  std::unique_ptr<Lane> lane;
  ExpectNoFailure([&] {
    lane = nullptr;
    lane = std::make_unique<Lane>(2, 1, 2);
    lane->Open();
    return lane->Threads();
  });
}

TEST(LaneOrderTest, TheEndsFindEachOther) {
  std::unique_ptr<Lane> lane;
  ExpectNoFailure([&] {
    lane = nullptr;
    lane = std::make_unique<Lane>(2, 1, 1);
    return lane->Threads();
  });
}

}  // namespace
}  // namespace inccl::mapped_model
