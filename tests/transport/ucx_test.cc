// SPDX-License-Identifier: Apache-2.0
//
// What the UCX transport does besides what conformance asks of all: hostile messages, peers that
// die, and a process that does not notice that it has UCX in it.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "bootstrap/bootstrap_world.h"
#include "support/transport_world.h"
#include "transport/ucx/ucx_lanes.h"
#include "transport/ucx/ucx_transport.h"
#include "transport/ucx/ucx_worker.h"

namespace inccl {
namespace {

using test::kSlowness;
using ucx::Operation;
using ucx::Worker;

LaneSpec Spec(int producer, int consumer, uint32_t slot_bytes, int depth) {
  LaneSpec spec;
  spec.producer = producer;
  spec.consumers = {consumer};
  spec.slot_bytes = slot_bytes;
  spec.depth = static_cast<uint16_t>(depth);
  return spec;
}

std::unique_ptr<UcxTransport> Make(int rank, int nranks, const std::string& tls = "") {
  UcxOptions options;
  options.tls = tls;
  auto made = UcxTransport::Create(rank, nranks, options);
  EXPECT_TRUE(made.ok()) << made.status().message();
  return made.ok() ? std::move(*made) : nullptr;
}

Time Now() { return SystemClock().Now(); }

// Progress on all, until `done` or a limit.
template <typename Done>
bool Until(std::initializer_list<Transport*> ends, const Done& done, Time limit = 10 * kSecond) {
  const Time start = Now();
  while (!done()) {
    for (Transport* end : ends) {
      if (Result<int> events = end->Progress(Now()); !events.ok()) return false;
    }
    if (Now() - start > limit * kSlowness) return false;
  }
  return true;
}

TEST(UcxTest, CreateAndAttachCheckTheirArguments) {
  EXPECT_EQ(UcxTransport::Create(0, 0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(UcxTransport::Create(2, 2).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(UcxTransport::Create(-1, 2).status().code(), Code::kInvalidArgument);
  UcxOptions options;
  options.tls = "nosuch";
  const Status status = UcxTransport::Create(1, 2, options).status();
  EXPECT_EQ(status.code(), Code::kSystemError);
  EXPECT_CONTAINS(status.message(), "rank 1");
  EXPECT_CONTAINS(status.message(), "nosuch");

  auto zero = Make(0, 2), one = Make(1, 2);
  EXPECT_FALSE(one->address().empty());
  EXPECT_LE(one->address().size(), kMaxUcxAddressBytes);
  EXPECT_EQ(zero->Attach(0, one->address()).code(), Code::kInvalidArgument);
  EXPECT_EQ(zero->Attach(2, one->address()).code(), Code::kInvalidArgument);
  EXPECT_EQ(zero->Attach(-1, one->address()).code(), Code::kInvalidArgument);
  EXPECT_EQ(zero->Attach(1, {}).code(), Code::kInternalError);
  const std::vector<std::byte> large(kMaxUcxAddressBytes + 1);
  EXPECT_EQ(zero->Attach(1, large).code(), Code::kInternalError);
  const Status lane = zero->OpenSend(Spec(0, 1, 10, 1)).status();
  EXPECT_EQ(lane.code(), Code::kInvalidUsage);
  EXPECT_CONTAINS(lane.message(), "peer rank 1");
  EXPECT_EQ(zero->OpenRecv(Spec(1, 0, 10, 1)).status().code(), Code::kInvalidUsage);
  EXPECT_TRUE(zero->Attach(1, one->address()).ok());
  EXPECT_EQ(zero->Attach(1, one->address()).code(), Code::kInvalidUsage);
}

// A peer that has the right tags and sends what it likes.
class Hostile {
 public:
  explicit Hostile(UcxTransport* victim) : victim_(victim) {
    auto made = Worker::Create(1, 2, {});
    EXPECT_TRUE(made.ok()) << made.status().message();
    worker_ = *std::move(made);
    EXPECT_TRUE(worker_->Connect(0, victim->address()).ok());
    EXPECT_TRUE(victim->Attach(1, worker_->address()).ok());
  }
  void Send(uint64_t tag, std::span<const std::byte> bytes) {
    operations_.push_back(std::make_unique<Operation>());
    worker_->Send(0, bytes, tag, ucx::Traffic::kSlice, operations_.back().get());
    EXPECT_TRUE(Until({victim_}, [&] {
      worker_->Progress(Now());
      return !operations_.back()->in_flight;
    }));
  }

 private:
  UcxTransport* victim_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::unique_ptr<Worker> worker_;
};

template <typename T>
std::span<const std::byte> BytesOf(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Code and text of the first error that `poll` gives.
template <typename Poll>
Status FirstError(UcxTransport* end, const Poll& poll) {
  Status status;
  EXPECT_TRUE(Until({end}, [&] {
    status = poll();
    return !status.ok();
  })) << "no error came";
  return status;
}

TEST(UcxTest, BadSlicesAreErrorsThatNameThePeer) {
  constexpr uint32_t kSlot = 100;
  struct Message {
    ucx::WireHeader header;
    std::byte payload[2 * kSlot];
  };
  const LaneSpec spec = Spec(1, 0, kSlot, 2);
  const auto error = [&](uint32_t seq, uint32_t claimed, size_t bytes) {
    auto victim = Make(0, 2);
    Hostile peer(victim.get());
    auto lane = *victim->OpenRecv(spec);
    Message message{};
    message.header.seq = seq;
    message.header.bytes = claimed;
    peer.Send(ucx::LaneTags(spec).slice, BytesOf(message).first(bytes));
    return FirstError(victim.get(), [&] {
      RecvLane::Incoming incoming;
      return lane->TryPeek(&incoming).status();
    });
  };
  const size_t header = sizeof(ucx::WireHeader);
  struct Bad {
    uint32_t seq, claimed;
    size_t bytes;
    const char* part;
  };
  for (const Bad& bad :
       {Bad{1, 0, 10, "10 bytes"}, Bad{1, 0, 0, "0 bytes"}, Bad{2, 8, header + 8, "number 2"},
        Bad{0, 8, header + 8, "number 0"}, Bad{1, 50, header + 8, "50 bytes"},
        Bad{1, 8, header + 50, "8 bytes"}, Bad{1, kSlot + 1, header + kSlot, "101 bytes"},
        Bad{1, UINT32_MAX, header + 8, "4294967295 bytes"},
        Bad{1, kSlot + 1, header + kSlot + 1, "too long"},
        Bad{1, 2 * kSlot, header + 2 * kSlot, "too long"}}) {
    const Status status = error(bad.seq, bad.claimed, bad.bytes);
    EXPECT_EQ(status.code(), Code::kInternalError) << bad.part;
    EXPECT_CONTAINS(status.message(), "peer rank 1");
    EXPECT_CONTAINS(status.message(), bad.part);
  }
}

TEST(UcxTest, BadCreditsAreErrorsThatNameThePeer) {
  const LaneSpec spec = Spec(0, 1, 100, 1);
  const auto error = [&](uint64_t released, size_t bytes) {
    auto victim = Make(0, 2);
    Hostile peer(victim.get());
    auto lane = *victim->OpenSend(spec);
    EXPECT_NE(lane->TryAcquire()->data, nullptr);
    EXPECT_TRUE(lane->Publish({.bytes = 1}).ok());
    const std::array<ucx::CreditMessage, 2> credit = {ucx::CreditMessage{released, 0}};
    peer.Send(ucx::LaneTags(spec).credit, BytesOf(credit).first(bytes));
    return FirstError(victim.get(), [&] { return lane->TryAcquire().status(); });
  };
  const size_t right = sizeof(ucx::CreditMessage);
  for (const auto& [released, bytes] : {std::pair<uint64_t, size_t>(0, right),
                                        {2, right},
                                        {UINT64_MAX, right},
                                        {1, 8},
                                        {1, 0},
                                        {1, right + 1}}) {
    const Status status = error(released, bytes);
    EXPECT_EQ(status.code(), Code::kInternalError);
    EXPECT_CONTAINS(status.message(), "peer rank 1");
  }
}

TEST(UcxTest, ACreditForMoreThanWasPublishedIsAnError) {
  auto victim = Make(0, 2);
  Hostile peer(victim.get());
  auto lane = *victim->OpenSend(Spec(0, 1, 100, 2));
  peer.Send(ucx::LaneTags(lane->spec()).credit, BytesOf(ucx::CreditMessage{1, 0}));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(victim->Progress(Now()).ok());
  const Status status = lane->TryAcquire().status();
  EXPECT_EQ(status.code(), Code::kInternalError);
  EXPECT_CONTAINS(status.message(), "of 0 published");
}

struct Pair {
  explicit Pair(const std::string& tls = "") : zero(Make(0, 2, tls)), one(Make(1, 2, tls)) {
    EXPECT_TRUE(zero->Attach(1, one->address()).ok());
    EXPECT_TRUE(one->Attach(0, zero->address()).ok());
  }
  std::unique_ptr<UcxTransport> zero, one;
};

// More than UCX buffers: slices stay here until the consumer looks.
TEST(UcxTest, UnsentSaysWhatProgressMustStillSend) {
  Pair pair;
  const uint32_t bytes = 4 << 20;
  auto send = *pair.zero->OpenSend(Spec(0, 1, bytes, 2));
  auto recv = *pair.one->OpenRecv(Spec(0, 1, bytes, 2));
  EXPECT_FALSE(pair.zero->unsent());
  for (uint32_t i = 0; i < 2; ++i) {
    const Span slot = *send->TryAcquire();
    ASSERT_NE(slot.data, nullptr);
    std::memset(slot.data, 'a' + static_cast<int>(i), bytes);
    ASSERT_TRUE(send->Publish({.bytes = bytes, .slice = i}).ok());
  }
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(pair.zero->Progress(Now()).ok());
  EXPECT_TRUE(pair.zero->unsent());
  EXPECT_TRUE(Until({pair.zero.get(), pair.one.get()}, [&] { return !pair.zero->unsent(); }));
  for (uint32_t i = 0; i < 2; ++i) {
    RecvLane::Incoming incoming;
    ASSERT_TRUE(Until({pair.one.get()}, [&] { return *recv->TryPeek(&incoming); }));
    EXPECT_EQ(incoming.header.slice, i);
    EXPECT_EQ(incoming.payload[bytes - 1], static_cast<std::byte>('a' + i));
    ASSERT_TRUE(recv->Release().ok());
  }
}

TEST(UcxTest, ARingWakesASleeper) {
  Pair pair;
  WakeupEvent* wakeup_event = pair.zero->wakeup_event();
  const uint32_t token = wakeup_event->Arm();
  std::thread ringer([&] {
    usleep(50000);
    wakeup_event->Signal();
  });
  const Time start = Now();
  while (Now() - start < 20 * kSecond) {
    ASSERT_TRUE(pair.zero->Progress(Now()).ok());
    wakeup_event->Wait(token, 30 * kSecond);
    if (Now() - start > 40 * kMillisecond) break;  // UCX's own first events are over
    wakeup_event->Arm();
  }
  EXPECT_LT(Now() - start, 20 * kSecond);
  ringer.join();
  wakeup_event->Signal();  // before Arm: not news
  const uint32_t next = wakeup_event->Arm();
  wakeup_event->Signal();  // after it: is
  wakeup_event->Wait(next, 30 * kSecond);
  EXPECT_LT(Now() - start, 20 * kSecond);
}

TEST(UcxTest, NothingIsLeft) {
  Pair warm;  // what UCX keeps for ever is open now
  warm = Pair();
  const test::Baseline baseline;
  for (const char* tls : {"", "tcp"}) {
    for (int i = 0; i < 3; ++i) {
      Pair pair(tls);
      auto send = *pair.zero->OpenSend(Spec(0, 1, 1000, 1));
      auto recv = *pair.one->OpenRecv(Spec(0, 1, 1000, 1));
      ASSERT_NE(send->TryAcquire()->data, nullptr);
      ASSERT_TRUE(send->Publish({.bytes = 1000}).ok());
      if (i == 0) continue;  // unread
      RecvLane::Incoming incoming;
      ASSERT_TRUE(
          Until({pair.zero.get(), pair.one.get()}, [&] { return *recv->TryPeek(&incoming); }));
      ASSERT_TRUE(recv->Release().ok());
    }
  }
}

// SysV segments made by one of `creators`.
int CountSegmentsOf(const std::set<pid_t>& creators) {
  std::ifstream file("/proc/sysvipc/shm");
  std::string line;
  std::getline(file, line);
  int count = 0;
  while (std::getline(file, line)) {
    std::istringstream fields(line);
    std::string key, id, perms, size;
    pid_t creator = 0;
    fields >> key >> id >> perms >> size >> creator;
    if (creators.contains(creator)) ++count;
  }
  return count;
}

// Rank 1 sends one slice and is killed. Exit code 0: rank 0 read it, can go on sending into the
// void, hears of the loss where UCX can know it, and ends in bounded time.
int SurviveADeath(int socket, const std::string& tls, bool expect_loss) {
  auto zero = Make(0, 2, tls);
  std::vector<std::byte> theirs(kMaxUcxAddressBytes);
  const auto mine = zero->address();
  if (send(socket, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) return 2;
  const ssize_t got = recv(socket, theirs.data(), theirs.size(), 0);
  if (got <= 0) return 3;
  theirs.resize(static_cast<size_t>(got));
  if (!zero->Attach(1, theirs).ok()) return 4;
  auto receive = *zero->OpenRecv(Spec(1, 0, 1000, 1));
  auto lane = *zero->OpenSend(Spec(0, 1, 1 << 20, 2));
  RecvLane::Incoming incoming;
  const auto peeked = [&] {
    Result<bool> there = receive->TryPeek(&incoming);
    return there.ok() && *there;
  };
  if (!Until({zero.get()}, peeked, 60 * kSecond)) return 5;
  if (incoming.payload[999] != std::byte{7} || !receive->Release().ok()) return 6;
  char byte = 0;
  const auto dead = [&] { return recv(socket, &byte, 1, MSG_DONTWAIT) == 0; };
  if (!Until({zero.get()}, dead, 60 * kSecond)) return 7;
  for (int i = 0; i < 2; ++i) {
    if (lane->TryAcquire()->data == nullptr) return 8;
    if (!lane->Publish({.bytes = 1 << 20}).ok()) return 9;
  }
  if (expect_loss) {
    const Status status =
        FirstError(zero.get(), [&] { return receive->TryPeek(&incoming).status(); });
    if (status.code() != Code::kRemoteError) return 10;
    if (status.message().find("peer rank 1") == std::string::npos) return 11;
  } else {
    for (int i = 0; i < 1000; ++i) {
      if (!zero->Progress(Now()).ok()) return 12;
    }
  }
  const Time start = Now();
  zero->Quiesce(start + 300 * kMillisecond);
  if (Now() - start > (2 * kSecond) * kSlowness) return 13;
  zero.reset();
  return 0;
}

int SendAndDie(int socket, const std::string& tls) {
  auto one = Make(1, 2, tls);
  std::vector<std::byte> theirs(kMaxUcxAddressBytes);
  const auto mine = one->address();
  if (send(socket, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) return 2;
  const ssize_t got = recv(socket, theirs.data(), theirs.size(), 0);
  if (got <= 0) return 3;
  theirs.resize(static_cast<size_t>(got));
  if (!one->Attach(0, theirs).ok()) return 4;
  auto lane = *one->OpenSend(Spec(1, 0, 1000, 1));
  std::memset(lane->TryAcquire()->data, 7, 1000);
  if (!lane->Publish({.bytes = 1000}).ok()) return 5;
  const auto released = [&] {
    Result<Span> slot = lane->TryAcquire();
    return slot.ok() && slot->data != nullptr;
  };
  if (!Until({one.get()}, released, 60 * kSecond)) return 6;
  kill(getpid(), SIGKILL);
  return 7;
}

TEST(UcxTest, APeerIsKilled) {
  for (const char* tls : {"sysv", "tcp"}) {
    SCOPED_TRACE(tls);
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    test::Processes processes;
    const pid_t survivor = processes.Start([&] {
      close(ends[1]);
      return SurviveADeath(ends[0], tls, std::string(tls) == "tcp");
    });
    const pid_t victim = processes.Start([&] {
      close(ends[0]);
      return SendAndDie(ends[1], tls);
    });
    close(ends[0]);
    close(ends[1]);
    const int died = processes.Wait(victim);
    EXPECT_TRUE(WIFSIGNALED(died) && WTERMSIG(died) == SIGKILL) << died;
    EXPECT_EQ(processes.Wait(survivor), 0);
    EXPECT_EQ(CountSegmentsOf({survivor, victim}), 0);
  }
}

// The first bytes of functions that UCX is able to patch.
std::vector<unsigned char> CodeOfHooks() {
  std::vector<unsigned char> code;
  for (const char* name :
       {"mmap", "munmap", "mremap", "brk", "sbrk", "madvise", "shmat", "shmdt"}) {
    const auto* at = static_cast<const unsigned char*>(dlsym(RTLD_NEXT, name));
    if (at != nullptr) code.insert(code.end(), at, at + 16);
  }
  return code;
}

// In a process that has never loaded UCX.
int LeavesTheProcessAlone() {
  struct sigaction before[64], after[64];
  std::memset(before, 0, sizeof before);
  std::memset(after, 0, sizeof after);
  for (int s = 1; s < 64; ++s) sigaction(s, nullptr, &before[s]);
  stack_t stack_before{}, stack_after{};
  sigaltstack(nullptr, &stack_before);
  const std::vector<unsigned char> code = CodeOfHooks();
  int out[2];
  if (pipe(out) != 0) return 2;
  dup2(out[1], STDOUT_FILENO);
  dup2(out[1], STDERR_FILENO);
  close(out[1]);
  setenv("UCX_NO_SUCH_VARIABLE", "1", 1);  // UCX warns of these by default
  {
    UcxOptions wrong;
    wrong.tls = "nosuch";
    if (UcxTransport::Create(0, 2, wrong).ok()) return 3;
    Pair pair;
    auto send = *pair.zero->OpenSend(Spec(0, 1, 1000, 1));
    auto recv = *pair.one->OpenRecv(Spec(0, 1, 1000, 1));
    if (send->TryAcquire()->data == nullptr || !send->Publish({.bytes = 1000}).ok()) return 4;
  }
  for (int s = 1; s < 64; ++s) {
    sigaction(s, nullptr, &after[s]);
    constexpr int kRestorer = 0x04000000;  // the C library's, set with any action
    if (before[s].sa_handler != after[s].sa_handler ||
        (before[s].sa_flags | kRestorer) != (after[s].sa_flags | kRestorer)) {
      return 5;
    }
  }
  sigaltstack(nullptr, &stack_after);
  if (stack_before.ss_sp != stack_after.ss_sp) return 6;
  if (code != CodeOfHooks()) return 7;
  close(STDOUT_FILENO);
  close(STDERR_FILENO);
  char text[256];
  if (read(out[0], text, sizeof text) != 0) return 8;
  return 0;
}

// This process has loaded UCX by now, so it starts itself anew.
TEST(UcxTest, SignalsOutputAndFunctionsOfTheProcessAreLeftAlone) {
  test::Processes processes;
  const pid_t child = processes.Start([] {
    execl("/proc/self/exe", "ucx_test", "--gtest_also_run_disabled_tests",
          "--gtest_filter=DISABLED_UcxAloneTest.*", nullptr);
    return 100;
  });
  EXPECT_EQ(processes.Wait(child), 0);
}

// Run by the test above.
TEST(DISABLED_UcxAloneTest, LeavesTheProcessAlone) { _exit(LeavesTheProcessAlone()); }

}  // namespace
}  // namespace inccl
