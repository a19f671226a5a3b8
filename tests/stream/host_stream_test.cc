// SPDX-License-Identifier: Apache-2.0
//
// The order of calls on streams of the host, and which error a caller gets of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "stream/batch.h"
#include "stream/stream.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

Stream::User User(const std::string& name) { return std::make_shared<const std::string>(name); }

bool GivesUpAtOnce(Time /*stalled*/) { return true; }

// Whether the stream lets this position run now.
bool IsTurnOf(HostStream* stream, uint64_t position) {
  return stream->WaitFor(position, GivesUpAtOnce);
}

TEST(HostStreamTest, PositionsHaveTheirTurnWhenAllBeforeHaveCompleted) {
  HostStream stream;
  Rng rng(TestSeed());
  uint64_t next = 0;
  std::vector<uint64_t> open;  // in order
  for (int i = 0; i < 500; ++i) {
    if (open.empty() || rng.Below(5) < 2) {
      const Result<uint64_t> position = stream.Enqueue(User("caller " + std::to_string(next)));
      ASSERT_TRUE(position.ok());
      ASSERT_EQ(*position, next++);
      open.push_back(*position);
    } else {
      const auto done = open.begin() + static_cast<ptrdiff_t>(rng.Below(open.size()));
      stream.Complete(*done, Status::Ok());
      open.erase(done);
    }
    EXPECT_EQ(stream.Query().code(), open.empty() ? Code::kOk : Code::kInProgress);
    for (const uint64_t position : open) {
      ASSERT_EQ(IsTurnOf(&stream, position), position == open.front()) << position;
      ASSERT_EQ(stream.Before(position),
                position == open.front() ? "none" : "caller " + std::to_string(open.front()));
    }
  }
}

// Synchronize and Query return the first error since one of them last returned one, whatever has
// come after it, in whatever order.
TEST(HostStreamTest, TheFirstErrorStaysUntilItIsReturned) {
  for (const bool query : {false, true}) {
    SCOPED_TRACE(query);
    HostStream stream;
    const auto result = [&] { return query ? stream.Query() : stream.Synchronize(); };
    const auto complete = [&](std::vector<Status> statuses, bool backwards) {
      std::vector<uint64_t> positions;
      for (size_t i = 0; i < statuses.size(); ++i) positions.push_back(*stream.Enqueue(User("a")));
      for (size_t i = 0; i < statuses.size(); ++i) {
        stream.Complete(positions[backwards ? statuses.size() - 1 - i : i], statuses[i]);
      }
    };
    EXPECT_TRUE(result().ok()) << "there was no call";
    complete({Status::Ok(), RemoteError("first"), Status::Ok()}, false);
    EXPECT_EQ(result().message(), "first");
    EXPECT_TRUE(result().ok()) << "it has been returned";
    complete({TimeoutError("first"), RemoteError("second"), Status::Ok()}, false);
    complete({Status::Ok()}, false);
    EXPECT_EQ(result().message(), "first");
    EXPECT_TRUE(result().ok());
    complete({RemoteError("completes first"), TimeoutError("completes last")}, true);
    EXPECT_EQ(result().message(), "completes first") << "by time, not by position";
    EXPECT_TRUE(result().ok());
  }
}

TEST(HostStreamTest, AnErrorIsNotReturnedWhileCallsRun) {
  HostStream stream;
  const uint64_t failed = *stream.Enqueue(User("a")), running = *stream.Enqueue(User("b"));
  stream.Complete(failed, RemoteError("failed"));
  EXPECT_EQ(stream.Query().code(), Code::kInProgress);
  EXPECT_EQ(stream.Query().code(), Code::kInProgress);
  stream.Complete(running, Status::Ok());
  EXPECT_EQ(stream.Query().message(), "failed");
}

// Synchronize waits for what came before it, not for what comes after.
TEST(HostStreamTest, SynchronizeWaitsForThePositionsTakenSoFar) {
  bool in_time = false;
  // Where the machine stands still, the waiter may begin only after the second one has been taken.
  for (int attempt = 0; attempt < 5 && !in_time; ++attempt) {
    HostStream stream;
    const uint64_t first = *stream.Enqueue(User("a"));
    std::atomic<bool> returned{false};
    Status status;
    std::thread waiter([&] {
      status = stream.Synchronize();
      returned = true;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    EXPECT_FALSE(returned);
    const uint64_t second = *stream.Enqueue(User("b"));
    stream.Complete(first, RemoteError("failed"));
    const Time limit = SystemClock().Now() + 4 * kSecond;
    while (!returned && SystemClock().Now() < limit) std::this_thread::yield();
    in_time = returned;
    stream.Complete(second, Status::Ok());
    waiter.join();
    EXPECT_EQ(status.message(), "failed");
    EXPECT_TRUE(stream.Synchronize().ok());
  }
  EXPECT_TRUE(in_time) << "it waits for the second one";
}

TEST(HostStreamTest, AWaitGivesUpWhenNothingHasCompletedForLong) {
  HostStream stream;
  const uint64_t first = *stream.Enqueue(User("a")), second = *stream.Enqueue(User("b"));
  std::vector<Time> stalls;
  const auto impatient = [&](Time stalled) {
    stalls.push_back(stalled);
    return stalled > 0 || stalls.size() > 1000;  // where the machine stands still all the time
  };
  for (int wait = 0; wait < 2; ++wait) {
    stalls.clear();
    EXPECT_FALSE(stream.WaitFor(second, impatient));
    EXPECT_EQ(stalls.front(), 0) << "a wait counts from its beginning";
    EXPECT_GE(stalls.size(), 2u);
  }
  stream.Complete(first, Status::Ok());
  EXPECT_TRUE(stream.WaitFor(second, impatient));
  stream.Complete(second, Status::Ok());
}

TEST(StandstillTest, CountsFromTheLastChange) {
  const auto sleep = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  // Where the machine stands still, the gap may count as one in which this thread did not run.
  Time took = kNever, found = 0;
  for (int i = 0; i < 100 && took > 190 * kMillisecond; ++i) {
    Standstill standstill;
    const Time before = SystemClock().Now();
    EXPECT_EQ(standstill.Look(5), 0);
    sleep(15);
    found = standstill.Look(5);
    EXPECT_EQ(standstill.Look(6), 0);
    took = SystemClock().Now() - before;
  }
  if (took <= 190 * kMillisecond) {
    EXPECT_GE(found, 15 * kMillisecond);
  }
  Standstill standstill;
  EXPECT_EQ(standstill.Look(6), 0);
  sleep(250);
  EXPECT_EQ(standstill.Look(6), 0);
}

// Of any two callers that share several streams, one is first on all of them.
TEST(EnqueueAllTest, TakesAllPositionsAtOneMoment) {
  constexpr int kCallers = 4, kCalls = 300;
  HostStream streams[3];
  std::vector<std::vector<uint64_t>> positions[kCallers];
  std::vector<std::thread> callers;
  for (int caller = 0; caller < kCallers; ++caller) {
    callers.emplace_back([&, caller] {
      const auto seed = TestSeed() + static_cast<uint64_t>(caller);
      Rng rng(seed);
      for (int call = 0; call < kCalls; ++call) {
        std::vector<Stream*> order = {&streams[0], &streams[1], &streams[2]};
        std::swap(order[0], order[rng.Below(3)]);
        std::swap(order[1], order[1 + rng.Below(2)]);
        std::vector<uint64_t> taken(3);
        const auto got = Stream::EnqueueAll(order, std::vector<Stream::User>(3, User("caller")));
        for (size_t i = 0; i < 3; ++i) {
          taken[static_cast<size_t>(static_cast<HostStream*>(order[i]) - streams)] = *got[i];
        }
        positions[caller].push_back(taken);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  std::vector<std::vector<uint64_t>> all;
  for (const auto& taken : positions) all.insert(all.end(), taken.begin(), taken.end());
  std::sort(all.begin(), all.end());
  for (uint64_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i], (std::vector<uint64_t>{i, i, i}));
    for (HostStream& stream : streams) stream.Complete(i, Status::Ok());
  }
  for (HostStream& stream : streams) EXPECT_TRUE(stream.Synchronize().ok());
}

// Batches that share a position complete it together, with the first of their errors.
TEST(StreamOrderTest, TheLastBatchCompletesThePositionWithTheFirstError) {
  const auto stream = std::make_shared<HostStream>();
  StreamOrder order(stream, 3);
  ASSERT_TRUE(order.Enqueue(User("group")).ok());
  const uint64_t next = *stream->Enqueue(User("next"));
  order.Complete(Status::Ok());
  order.Complete(TimeoutError("first"));
  EXPECT_FALSE(IsTurnOf(stream.get(), next));
  EXPECT_EQ(stream->Before(next), "group");
  order.Complete(RemoteError("second"));
  EXPECT_TRUE(IsTurnOf(stream.get(), next));
  stream->Complete(next, Status::Ok());
  EXPECT_EQ(stream->Synchronize().message(), "first");
}

// What comes after a group of which a batch has not been submitted must have its turn, too.
TEST(StreamOrderTest, ItsEndCompletesThePosition) {
  const auto stream = std::make_shared<HostStream>();
  for (const bool failed : {false, true}) {
    SCOPED_TRACE(failed);
    {
      StreamOrder order(stream, 2);
      ASSERT_TRUE(order.Enqueue(User("group")).ok());
      if (failed) order.Complete(RemoteError("failed"));
    }
    const Status status = stream->Query();
    EXPECT_EQ(status.code(), failed ? Code::kRemoteError : Code::kSystemError);
  }
  {
    const StreamOrder never_enqueued(stream, 1);
    StreamOrder complete(stream, 1);
    ASSERT_TRUE(complete.Enqueue(User("group")).ok());
    complete.Complete(Status::Ok());
  }
  EXPECT_TRUE(stream->Query().ok());
  EXPECT_EQ(*stream->Enqueue(User("next")), 3u);
}

TEST(CompletionTest, WaitsForAllAndReturnsTheFirstError) {
  Completion completion;
  for (int i = 0; i < 3; ++i) completion.Add();
  completion.Done(Status::Ok());
  completion.Done(TimeoutError("first"));
  std::atomic<bool> returned{false};
  Status status;
  std::thread waiter([&] {
    status = completion.Wait();
    returned = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_FALSE(returned);
  completion.Done(RemoteError("second"));
  waiter.join();
  EXPECT_EQ(status.message(), "first");
}

}  // namespace
}  // namespace inccl::test
