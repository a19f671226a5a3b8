// SPDX-License-Identifier: Apache-2.0
//
// The thread that runs a communicator's batches.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "stream/batch.h"

namespace inccl::test {
namespace {

Stream::User User() { return std::make_shared<const std::string>("a caller"); }

Batch Numbered(int number) {
  Batch batch;
  Call call;
  call.count = static_cast<uint64_t>(number);
  batch.Add(call);
  return batch;
}

bool Never(const StreamOrder& /*order*/, Time /*stalled*/) { return false; }

TEST(WorkerTest, RunsBatchesInTheOrderOfTheirSubmission) {
  std::vector<uint64_t> ran;
  {
    Worker worker(
        [&](const Batch& batch) {
          ran.push_back(batch.calls.front().count);
          return Status::Ok();
        },
        Never);
    EXPECT_TRUE(worker.idle());
    worker.WaitIdle();
    for (int i = 0; i < 100; ++i) ASSERT_TRUE(worker.Enqueue(Numbered(i)).ok());
    worker.WaitIdle();
    EXPECT_TRUE(worker.idle());
    EXPECT_EQ(ran.size(), 100u);
    for (int i = 100; i < 200; ++i) ASSERT_TRUE(worker.Enqueue(Numbered(i)).ok());
  }  // runs what is queued
  ASSERT_EQ(ran.size(), 200u);
  for (size_t i = 0; i < ran.size(); ++i) EXPECT_EQ(ran[i], i);
}

TEST(WorkerTest, SendsAndReceivesAreApartFromCollectives) {
  Batch batch;
  Call call;
  for (const CallKind kind : {CallKind::kSend, CallKind::kCollective, CallKind::kRecv}) {
    call.kind = kind;
    batch.Add(call);
  }
  ASSERT_EQ(batch.send_recv.size(), 2u);
  EXPECT_EQ(batch.send_recv[0].kind, CallKind::kSend);
  EXPECT_EQ(batch.send_recv[1].kind, CallKind::kRecv);
  ASSERT_EQ(batch.calls.size(), 1u);
}

// A batch waits for its turn on all its streams, then gives them and its completion its own result.
TEST(WorkerTest, ABatchWaitsForItsStreamsAndCompletesThem) {
  const auto one = std::make_shared<HostStream>(), two = std::make_shared<HostStream>();
  const uint64_t before = *two->Enqueue(User());
  std::atomic<int> runs{0};
  Worker worker(
      [&](const Batch& batch) {
        ++runs;
        return batch.calls.front().count == 1 ? RemoteError("failed") : Status::Ok();
      },
      Never);
  std::vector<std::shared_ptr<Completion>> completions;
  for (int i = 0; i < 3; ++i) {
    Batch batch = Numbered(i);
    batch.completion = std::make_shared<Completion>();
    batch.completion->Add();
    completions.push_back(batch.completion);
    for (const auto& stream : {one, two}) {
      batch.orders.push_back(std::make_shared<StreamOrder>(stream, 1));
      ASSERT_TRUE(batch.orders.back()->Enqueue(User()).ok());
    }
    ASSERT_TRUE(worker.Enqueue(std::move(batch)).ok());
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(runs, 0);
  EXPECT_FALSE(worker.idle());
  EXPECT_EQ(one->Query().code(), Code::kInProgress);
  two->Complete(before, Status::Ok());
  EXPECT_TRUE(completions[0]->Wait().ok());
  EXPECT_EQ(completions[1]->Wait().message(), "failed");
  EXPECT_TRUE(completions[2]->Wait().ok());
  EXPECT_EQ(runs, 3);
  EXPECT_EQ(one->Synchronize().message(), "failed");
  EXPECT_EQ(two->Synchronize().message(), "failed");
}

// A caller that was notified may call at once: the worker must be idle by then.
TEST(WorkerTest, IsIdleBeforeItTellsThatABatchHasEnded) {
  Worker worker([](const Batch&) { return Status::Ok(); }, Never);
  for (int i = 0; i < 2000; ++i) {
    const auto stream = std::make_shared<HostStream>();
    Batch batch = Numbered(i);
    const std::shared_ptr<Completion> completion =
        i % 2 == 0 ? std::make_shared<Completion>() : nullptr;
    batch.completion = completion;
    if (completion != nullptr) {
      completion->Add();
    } else {
      batch.orders.push_back(std::make_shared<StreamOrder>(stream, 1));
      ASSERT_TRUE(batch.orders.back()->Enqueue(User()).ok());
    }
    ASSERT_TRUE(worker.Enqueue(std::move(batch)).ok());
    ASSERT_TRUE(completion != nullptr ? completion->Wait().ok() : stream->Synchronize().ok());
    ASSERT_TRUE(worker.idle()) << i;
  }
}

// It asks with the order that it waits for, and a batch that gives up runs all the same: `run` then
// finds the error that made it give up.
TEST(WorkerTest, GivesUpWaitingWhenItIsTold) {
  const auto stream = std::make_shared<HostStream>();
  const uint64_t before = *stream->Enqueue(User());
  std::atomic<const StreamOrder*> asked{nullptr};
  std::atomic<bool> give_up{false};
  Worker worker([](const Batch&) { return TimeoutError("gave up"); },
                [&](const StreamOrder& order, Time /*stalled*/) {
                  asked = &order;
                  return give_up.load();
                });
  Batch batch = Numbered(0);
  batch.orders.push_back(std::make_shared<StreamOrder>(stream, 1));
  const StreamOrder* const order = batch.orders.back().get();
  ASSERT_TRUE(batch.orders.back()->Enqueue(User()).ok());
  ASSERT_TRUE(worker.Enqueue(std::move(batch)).ok());
  while (asked == nullptr) std::this_thread::yield();
  EXPECT_EQ(asked, order);
  EXPECT_FALSE(worker.idle());
  give_up = true;
  worker.WaitIdle();
  stream->Complete(before, Status::Ok());
  EXPECT_EQ(stream->Synchronize().message(), "gave up");
}

}  // namespace
}  // namespace inccl::test
