// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/ordered_store.h"

#include <fmt/format.h>

#include "bootstrap/rendezvous_client.h"

namespace inccl::bootstrap {

Status OrderedStore::TimedOut(const char* request) const {
  return TimeoutError(fmt::format("{}: no answer of the launcher in time to {}", name(), request));
}

Result<std::string> OrderedStore::Share(const std::string& value, const Terms& terms) {
  const MutexLock lock(&mutex_);
  while (next_ != terms.index && broken_.ok()) {
    if (IsCancelled(terms)) return Cancelled();
    if (SystemClock().Now() >= terms.deadline) return TimedOut("an earlier request");
    changed_.WaitFor(&mutex_, kCancelLag);
  }
  if (!broken_.ok()) return broken_;
  Result<std::string> shared = ShareInTurn(value, terms);
  if (!shared.ok()) broken_ = shared.status();
  ++next_;
  changed_.NotifyAll();
  return shared;
}

}  // namespace inccl::bootstrap
