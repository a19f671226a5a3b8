// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/ordered_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/thread.h"
#include "bootstrap/socket.h"

namespace inccl::bootstrap {

Status OrderedStore::Cancelled() {
  return RemoteError("this rank ended the creation of the communicator");
}

Status OrderedStore::TimedOut(const char* request) const {
  return TimeoutError(fmt::format("{}: no answer of the launcher in time to {}", name(), request));
}

Result<std::string> OrderedStore::Share(const std::string& value, const Terms& terms) {
  const auto turn = std::make_shared<Turn>(Turn{.value = value, .rank = terms.rank});
  const MutexLock lock(&mutex_);
  if (!broken_.ok()) return broken_;
  turns_.emplace(terms.index, turn);
  if (!busy_ && turns_.contains(next_)) {
    if (thread_.joinable()) thread_.join();  // it has taken the turns that there were
    Result<std::thread> thread = StartThread("inccl-store", [this] { TakeTurns(); });
    if (!thread.ok()) return thread.status();  // the next call starts it, for this turn, too
    thread_ = *std::move(thread);
    busy_ = true;
  }
  while (!turn->result) {
    if (IsCancelled(terms)) return Cancelled();
    const Time now = SystemClock().Now();
    if (now >= terms.deadline) {
      return TimedOut(terms.index == next_ ? "a barrier of all ranks, or rank 0's value"
                                           : "an earlier request");
    }
    changed_.WaitFor(&mutex_, std::min(terms.deadline - now, kCancelLag));
  }
  return *turn->result;
}

void OrderedStore::TakeTurns() {
  const MutexLock lock(&mutex_);
  while (true) {
    const auto at = turns_.find(next_);
    if (at == turns_.end()) break;
    const std::shared_ptr<Turn> turn = at->second;
    const int index = next_;
    turns_.erase(at);
    Result<std::string> result = broken_;
    if (broken_.ok()) {
      const MutexUnlock unlock(&mutex_);
      const Status memory = CatchOutOfMemory([&] {
        result =
            ShareInTurn(turn->value, {.rank = turn->rank, .index = index, .cancelled = &stopped_});
        return Status::Ok();
      });
      if (!memory.ok()) result = memory;
    }
    if (!result.ok()) broken_ = result.status();
    turn->result = std::move(result);
    ++next_;
    changed_.NotifyAll();
  }
  busy_ = false;
}

void OrderedStore::Stop() {
  stopped_ = true;
  std::thread thread;
  {
    const MutexLock lock(&mutex_);
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
}

}  // namespace inccl::bootstrap
