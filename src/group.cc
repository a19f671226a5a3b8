// SPDX-License-Identifier: Apache-2.0
#include "group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace inccl {
namespace {

// Without a destructor, for which a thread might find no memory: a thread that ends in a group
// leaves it behind.
thread_local Group* current = nullptr;

}  // namespace

Group* Group::Current() { return current; }

void Group::Start() {
  if (current == nullptr) {
    current = new Group;
  } else {
    ++current->depth_;
  }
}

Status Group::End() {
  if (current == nullptr) {
    return InvalidArgument("ccl_group_end: no group was started by this thread");
  }
  if (--current->depth_ > 0) return Status::Ok();
  const std::unique_ptr<Group> group(std::exchange(current, nullptr));  // what follows is in none
  if (group->spoiled_.code() == Code::kInvalidArgument) return group->spoiled_;
  if (!group->spoiled_.ok()) return group->FailParts(group->spoiled_);
  Status status = CatchOutOfMemory([&] { return group->RunJobs(); });
  return status.ok() ? group->RunParts() : status;
}

Status Group::FailParts(const Status& status) {
  Status first = status;
  for (auto part = parts_.rbegin(); part != parts_.rend(); ++part) {
    first = part->communicator->MakeSticky(status);
  }
  return first;
}

Group::Part& Group::PartOf(const std::shared_ptr<Communicator>& communicator,
                           const std::shared_ptr<Stream>& stream) {
  auto part = std::find_if(parts_.begin(), parts_.end(),
                           [&](const Part& p) { return p.communicator == communicator; });
  if (part == parts_.end()) {
    parts_.emplace_back().communicator = communicator;
    part = parts_.end() - 1;
  }
  if (stream == nullptr) {
    part->waits = true;
  } else if (std::find(part->streams.begin(), part->streams.end(), stream) == part->streams.end()) {
    part->streams.push_back(stream);
  }
  return *part;
}

void Group::Add(const std::shared_ptr<Communicator>& communicator,
                const std::shared_ptr<Stream>& stream, const Call& call) {
  PartOf(communicator, stream).batch.calls.push_back(call);
}

void Group::Add(const std::shared_ptr<Communicator>& communicator,
                const std::shared_ptr<Stream>& stream, const PointCall& call) {
  PartOf(communicator, stream).batch.points.push_back(call);
}

// They wait for each other, maybe: each needs a thread of its own.
Status Group::RunJobs() {
  if (jobs_.size() == 1) return jobs_.front()();
  std::vector<Status> results(jobs_.size());
  std::vector<std::thread> threads;
  threads.reserve(jobs_.size());
  for (size_t i = 0; i < jobs_.size(); ++i) {
    const Status started = CatchOutOfMemory([&]() -> Status {
      Result<std::thread> thread = StartThread("inccl-group", [this, i, &results] {
        try {
          results[i] = jobs_[i]();
        } catch (const std::exception& e) {
          results[i] = CatchOutOfMemory([&] { return SystemError(e.what()); });
        }
      });
      if (thread.ok()) threads.push_back(*std::move(thread));
      return thread.status();
    });
    if (!started.ok()) results[i] = started;
  }
  for (std::thread& thread : threads) thread.join();
  const auto failed =
      std::find_if(results.begin(), results.end(), [](const Status& s) { return !s.ok(); });
  return failed == results.end() ? Status::Ok() : *failed;
}

std::vector<Group::Entered> Group::EnterAll() {
  for (const Part& part : parts_) part.communicator->PrepareFor(part.batch.points);
  std::vector<Entered> all;
  const auto goes_to = [](const Part& part, const std::shared_ptr<Stream>& stream) {
    return std::find(part.streams.begin(), part.streams.end(), stream) != part.streams.end();
  };
  for (const Part& part : parts_) {
    for (const std::shared_ptr<Stream>& stream : part.streams) {
      if (std::any_of(all.begin(), all.end(),
                      [&](const Entered& e) { return e.stream == stream; })) {
        continue;
      }
      Entered& entered = all.emplace_back();
      entered.stream = stream;
      const auto users = std::count_if(parts_.begin(), parts_.end(),
                                       [&](const Part& p) { return goes_to(p, stream); });
      const auto turn = std::make_shared<Turn>(stream, static_cast<int>(users));
      entered.status = turn->Enter();
      if (entered.status.ok()) {
        entered.turn = turn;
      } else if (entered.status.code() == Code::kInvalidArgument) {
        // No longer an argument that is checked before anything happens.
        entered.status = InvalidUsage(entered.status.message());
      }
    }
  }
  return all;
}

void Group::TakeTurns(const std::vector<Entered>& all, Part* part) {
  for (const std::shared_ptr<Stream>& stream : part->streams) {
    const auto entered =
        std::find_if(all.begin(), all.end(), [&](const Entered& e) { return e.stream == stream; });
    if (entered->turn != nullptr) {
      part->batch.turns.push_back(entered->turn);
    } else if (part->refused.ok()) {
      part->refused = entered->status;
    }
  }
}

Status Group::RunParts() {
  if (parts_.size() == 1 && parts_[0].streams.empty() && parts_[0].communicator->idle()) {
    return parts_[0].communicator->RunBatch(parts_[0].batch);
  }
  std::shared_ptr<Completion> completion;
  const Status prepared = CatchOutOfMemory([&] {
    completion = std::make_shared<Completion>();
    const std::vector<Entered> all = EnterAll();
    for (Part& part : parts_) TakeTurns(all, &part);
    return Status::Ok();
  });
  if (!prepared.ok())
    return FailParts(prepared);  // places that have been taken leave by themselves
  // From here on nothing throws: batches that run use the caller's memory.
  Status first;
  for (Part& part : parts_) {
    if (part.waits) {
      completion->Add();
      part.batch.completion = completion;
    }
    Status status = part.refused;
    if (status.ok()) status = part.communicator->Enqueue(std::move(part.batch));
    if (status.ok()) continue;
    part.communicator->Fail(status);  // the other ranks are not to wait for it
    for (const std::shared_ptr<Turn>& turn : part.batch.turns) turn->Leave(status);
    if (part.waits) completion->Done(status);
    if (first.ok()) first = status;
  }
  Status status = completion->Wait();
  return first.ok() ? status : first;
}

}  // namespace inccl
