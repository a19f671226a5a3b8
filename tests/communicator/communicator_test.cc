// SPDX-License-Identifier: Apache-2.0
//
// What communicator.h promises of calls, batches and errors, for ranks that are threads.
#include "communicator/communicator.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "transport/loopback/loopback.h"
#include "world/baseline.h"

namespace inccl::test {
namespace {

using Communicators = std::vector<std::unique_ptr<Communicator>>;

Communicators Make(int nranks, const CommOptions& options = {}) {
  std::vector<std::unique_ptr<Transport>> transports = MakeLoopback(nranks);
  Communicators communicators;
  std::vector<ControlHandler*> handlers;
  for (int rank = 0; rank < nranks; ++rank) {
    CommEnds ends;
    ends.rank = rank;
    ends.nranks = nranks;
    ends.peer_names.assign(static_cast<size_t>(nranks), "host:1");
    ends.transport = std::move(transports[static_cast<size_t>(rank)]);
    ends.pids.assign(static_cast<size_t>(nranks), getpid());
    ends.hosts = HostMap::OneHost(nranks);
    ends.id = "test";
    communicators.push_back(std::make_unique<Communicator>(std::move(ends), options));
    handlers.push_back(communicators.back()->liveness());
  }
  auto planes = MakeLocalControl(handlers);
  EXPECT_TRUE(planes.ok()) << planes.status().message();
  for (size_t i = 0; i < communicators.size(); ++i) {
    communicators[i]->AttachControl(std::move((*planes)[i]));
    communicators[i]->Begin();
  }
  return communicators;
}

// Runs the body of each rank in a thread and ends the communicators, all at the same time.
void OnAll(Communicators communicators, const std::function<void(Communicator*)>& body) {
  std::vector<std::thread> threads;
  for (auto& communicator : communicators) {
    threads.emplace_back([&body, mine = std::move(communicator)]() mutable {
      body(mine.get());
      mine.reset();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

Call AllReduce(const Communicator& communicator, std::vector<float>* send,
               std::vector<float>* recv) {
  Call call;
  call.nranks = communicator.nranks();
  call.rank = communicator.rank();
  call.count = send->size();
  call.send = send->data();
  call.recv = recv->data();
  return call;
}

Call SendOrRecv(const Communicator& communicator, CallKind kind, int peer,
                std::vector<float>* data) {
  Call call;
  call.kind = kind;
  call.nranks = communicator.nranks();
  call.rank = communicator.rank();
  call.peer = peer;
  call.count = data->size();
  call.send = call.recv = data->data();
  return call;
}

CommOptions Only(const char* algorithms) {
  CommOptions options;
  options.algorithms = *AlgorithmFilter::Parse(algorithms);
  return options;
}

// A call with kInvalidArgument has no effect, so all go on.
TEST(CommunicatorTest, AnInvalidCallHasNoEffect) {
  OnAll(Make(3, Only("tree")), [](Communicator* comm) {
    std::vector<float> send(6, 1.0f), recv(6);
    Call wrong = AllReduce(*comm, &send, &recv);
    wrong.collective = Collective::kReduceScatter;  // which has no tree
    wrong.count = 2;
    const Status status = comm->Run(wrong);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << status.message();
    EXPECT_TRUE(comm->error().ok());
    EXPECT_EQ(comm->completed(), 0u);
    EXPECT_TRUE(comm->Run(AllReduce(*comm, &send, &recv)).ok());
    EXPECT_EQ(recv, std::vector<float>(6, 3.0f));
    EXPECT_EQ(comm->completed(), 1u);
  });
}

// The calls of a batch run in order, sends and receives before collectives; what fails for its
// arguments does not keep the others from running, and the batch returns the first error.
TEST(CommunicatorTest, ABatchRunsItsCallsInOrder) {
  OnAll(Make(2, Only("tree")), [](Communicator* comm) {
    const int peer = 1 - comm->rank();
    std::vector<float> sent(4, 2.0f + static_cast<float>(comm->rank())), got(4), sum(4);
    Batch batch;
    batch.Add(AllReduce(*comm, &got, &sum));  // of what has been received
    Call wrong = AllReduce(*comm, &sent, &sum);
    wrong.collective = Collective::kReduceScatter;
    wrong.count = 2;
    batch.Add(wrong);
    batch.Add(AllReduce(*comm, &sum, &sum));
    batch.Add(SendOrRecv(*comm, CallKind::kSend, peer, &sent));
    batch.Add(SendOrRecv(*comm, CallKind::kRecv, peer, &got));
    EXPECT_EQ(comm->RunBatch(batch).code(), Code::kInvalidArgument);
    EXPECT_EQ(got, std::vector<float>(4, 2.0f + static_cast<float>(peer)));
    EXPECT_EQ(sum, std::vector<float>(4, 10.0f));
    EXPECT_TRUE(comm->error().ok());
    EXPECT_EQ(comm->completed(), 2u);
  });
}

// Of two errors the first one stays, on this rank and on the others, and no later call runs.
TEST(CommunicatorTest, TheFirstErrorStays) {
  OnAll(Make(3), [](Communicator* comm) {
    std::vector<float> data(4, 1.0f), result(4, -1.0f);
    if (comm->rank() == 1) {
      comm->Fail(TimeoutError("first"));
      comm->Fail(RemoteError("second"));
    }
    Batch batch;
    batch.Add(SendOrRecv(*comm, CallKind::kRecv, (comm->rank() + 1) % 3, &result));
    batch.Add(AllReduce(*comm, &data, &result));
    const Status status = comm->RunBatch(batch);
    EXPECT_EQ(status.code(), Code::kTimeout) << status.message();
    EXPECT_NE(status.message().find("first"), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("rank 1/3"), std::string::npos) << status.message();
    EXPECT_EQ(comm->MakeSticky(RemoteError("third")).message(), comm->error().message());
    EXPECT_EQ(comm->Run(AllReduce(*comm, &data, &result)).message(), status.message());
    EXPECT_EQ(result, std::vector<float>(4, -1.0f));
    EXPECT_EQ(comm->completed(), 0u);
  });
}

TEST(CommunicatorTest, OneThreadAtATimeCalls) {
  Communicators communicators = Make(2);
  Communicator* const comm = communicators[0].get();
  std::vector<float> data(4, 1.0f), result(4);
  std::thread first([&] { EXPECT_TRUE(comm->Run(AllReduce(*comm, &data, &result)).ok()); });
  Status status;
  do {  // until the first one is in its call, which waits for rank 1
    std::this_thread::yield();
    std::vector<float> none;
    status = comm->liveness()->RankStatuses()[0].position.in_call
                 ? comm->Run(AllReduce(*comm, &none, &none))
                 : Status::Ok();
  } while (status.ok());
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("rank 0/2 is in another call"), std::string::npos)
      << status.message();
  EXPECT_TRUE(comm->error().ok());
  std::vector<float> theirs(4, 2.0f), their_result(4);
  EXPECT_TRUE(communicators[1]->Run(AllReduce(*communicators[1], &theirs, &their_result)).ok());
  first.join();
  EXPECT_EQ(result, std::vector<float>(4, 3.0f));
  OnAll(std::move(communicators), [](Communicator*) {});
}

// Abort ends what is in progress, here and in the worker, and returns when it has ended.
TEST(CommunicatorTest, AbortReturnsWhenCallsHaveEnded) {
  Communicators communicators = Make(2);
  Communicator* const comm = communicators[0].get();
  std::vector<float> data(4, 1.0f), result(4);
  const auto stream = std::make_shared<HostStream>();
  for (int i = 0; i < 3; ++i) {
    Batch batch;
    batch.Add(AllReduce(*comm, &data, &result));
    batch.orders.push_back(std::make_shared<StreamOrder>(stream, 1));
    ASSERT_TRUE(batch.orders.back()->Enqueue(comm->label()).ok());
    ASSERT_TRUE(comm->Enqueue(std::move(batch)).ok());
  }
  EXPECT_FALSE(comm->idle());
  comm->Abort(InvalidUsage("on purpose"));
  EXPECT_TRUE(comm->idle());
  const Status status = stream->Synchronize();
  EXPECT_EQ(status.code(), Code::kInvalidUsage);
  EXPECT_NE(status.message().find("rank 0/2"), std::string::npos) << status.message();
  EXPECT_NE(status.message().find("on purpose"), std::string::npos) << status.message();
  OnAll(std::move(communicators), [](Communicator*) {});
}

// A call that waits for its turn on a stream says for whom, and this rank's limit applies.
TEST(CommunicatorTest, AWaitForAStreamHasTheLimitOfCalls) {
  CommOptions options;
  options.op_timeout = 100 * kMillisecond;
  Communicators communicators = Make(1, options);
  Communicator* const comm = communicators[0].get();
  const auto stream = std::make_shared<HostStream>();
  const uint64_t before = *stream->Enqueue(std::make_shared<const std::string>("somebody else"));
  std::vector<float> data(4, 1.0f), result(4, -1.0f);
  Batch batch;
  batch.Add(AllReduce(*comm, &data, &result));
  batch.completion = std::make_shared<Completion>();
  batch.completion->Add();
  const auto completion = batch.completion;
  batch.orders.push_back(std::make_shared<StreamOrder>(stream, 1));
  ASSERT_TRUE(batch.orders.back()->Enqueue(comm->label()).ok());
  ASSERT_TRUE(comm->Enqueue(std::move(batch)).ok());
  const Status status = completion->Wait();
  EXPECT_EQ(status.code(), Code::kTimeout);
  EXPECT_NE(status.message().find("(limit 100 ms) for its turn on a stream: before it comes "
                                  "somebody else"),
            std::string::npos)
      << status.message();
  EXPECT_EQ(result[0], -1);
  stream->Complete(before, Status::Ok());
}

// Errors leave nothing behind, wherever they come.
TEST(CommunicatorTest, FailedCommunicatorsHoldNothing) {
  const auto world = [] {
    OnAll(Make(3), [](Communicator* comm) {
      std::vector<float> data(1000, 1.0f), result(1000);
      EXPECT_TRUE(comm->Run(AllReduce(*comm, &data, &result)).ok());
      if (comm->rank() == 0) comm->Fail(RemoteError("failed"));
      EXPECT_FALSE(comm->Run(AllReduce(*comm, &data, &result)).ok());
    });
  };
  world();  // what the process makes once
  const Baseline baseline(1 << 14);
  for (int i = 0; i < 20; ++i) world();
}

}  // namespace
}  // namespace inccl::test
