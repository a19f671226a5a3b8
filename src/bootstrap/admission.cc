// SPDX-License-Identifier: Apache-2.0
#include "bootstrap/admission.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

namespace inccl::bootstrap {
namespace {

constexpr size_t kLeastTotal = 256, kLeastPerProcess = 16;
constexpr size_t kRanksPerLimit = 32;

size_t QuarterOfDescriptors() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return kLeastTotal;
  return std::max<size_t>(kLeastPerProcess, limit.rlim_cur / 4);
}

}  // namespace

uint64_t Source::Key() const {
  uint64_t key = 0;
  if (address.is_unix()) {
    key = uint64_t{peer.uid} << 32 | static_cast<uint32_t>(peer.pid);
  } else if (address.storage.ss_family == AF_INET6) {
    std::memcpy(&key, &reinterpret_cast<const sockaddr_in6*>(&address.storage)->sin6_addr,
                sizeof key);
  } else {
    key = reinterpret_cast<const sockaddr_in*>(&address.storage)->sin_addr.s_addr;
  }
  return key;
}

std::string Source::ToString() const {
  if (!address.is_unix()) return address.ToString();
  return fmt::format("process {} of uid {}", peer.pid, peer.uid);
}

Budget BudgetFor(size_t ranks, bool unix_sockets) {
  const size_t total = std::min(std::max(kLeastTotal, 4 * ranks), QuarterOfDescriptors());
  const size_t per_source = unix_sockets ? std::max(kLeastPerProcess, 2 * ranks) : total / 2;
  return {.total = total, .per_source = std::min(total, per_source)};
}

Time LimitFor(Time limit, size_t ranks) {
  return limit * static_cast<Time>(std::max<size_t>(1, ranks / kRanksPerLimit));
}

size_t MakesRoom(std::span<const uint64_t> pending, uint64_t source, const Budget& budget,
                 uint64_t random) {
  const auto of_source = static_cast<size_t>(std::count(pending.begin(), pending.end(), source));
  if (of_source < budget.per_source) {
    return pending.size() < budget.total ? pending.size() : random % pending.size();
  }
  size_t skip = random % of_source;
  for (size_t i = 0; i < pending.size(); ++i) {
    if (pending[i] == source && skip-- == 0) return i;
  }
  return pending.size();
}

}  // namespace inccl::bootstrap
