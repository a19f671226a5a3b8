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
  if (!group->spoiled_.ok()) return group->spoiled_;
  Status status = group->RunJobs();
  return status.ok() ? group->RunParts() : status;
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
  for (size_t i = 0; i < jobs_.size(); ++i) {
    Result<std::thread> thread = StartThread("inccl-group", [this, i, &results] {
      try {
        results[i] = jobs_[i]();
      } catch (const std::exception& e) {
        results[i] = SystemError(e.what());
      }
    });
    if (thread.ok()) {
      threads.push_back(*std::move(thread));
    } else {
      results[i] = thread.status();
    }
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
      Result<uint64_t> place = stream->Enter();
      if (place.ok()) {
        const auto users = std::count_if(parts_.begin(), parts_.end(),
                                         [&](const Part& p) { return goes_to(p, stream); });
        entered.turn = std::make_shared<Turn>(stream, *place, static_cast<int>(users));
      } else {
        // No longer an argument that is checked before anything happens.
        const bool refused = place.status().code() == Code::kInvalidArgument;
        entered.status = {refused ? Code::kInvalidUsage : place.status().code(),
                          place.status().message()};
      }
    }
  }
  return all;
}

Status Group::RunParts() {
  if (parts_.size() == 1 && parts_[0].streams.empty() && parts_[0].communicator->idle()) {
    return parts_[0].communicator->RunBatch(parts_[0].batch);
  }
  const auto completion = std::make_shared<Completion>();
  const std::vector<Entered> all = EnterAll();
  Status first;
  for (Part& part : parts_) {
    Status status;
    for (const std::shared_ptr<Stream>& stream : part.streams) {
      const auto entered = std::find_if(all.begin(), all.end(),
                                        [&](const Entered& e) { return e.stream == stream; });
      if (entered->turn != nullptr) {
        part.batch.turns.push_back(entered->turn);
      } else if (status.ok()) {
        status = entered->status;
      }
    }
    if (part.waits) {
      completion->Add();
      part.batch.completion = completion;
    }
    const std::vector<std::shared_ptr<Turn>> turns = part.batch.turns;
    if (status.ok()) status = part.communicator->Enqueue(std::move(part.batch));
    if (status.ok()) continue;
    part.communicator->Fail(status);  // the other ranks are not to wait for it
    for (const std::shared_ptr<Turn>& turn : turns) turn->Leave(status);
    if (part.waits) completion->Done(status);
    if (first.ok()) first = status;
  }
  Status status = completion->Wait();
  return first.ok() ? status : first;
}

}  // namespace inccl
