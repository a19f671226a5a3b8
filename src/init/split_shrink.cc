// SPDX-License-Identifier: Apache-2.0
#include "init/split_shrink.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/socket.h"
#include "init/join.h"

namespace inccl {
namespace {

// What every rank sends to the others about the part that it wants to join.
struct Wish {
  int32_t color = 0, key = 0;
};

// What every rank sends next: why it cannot join its part, if it cannot. The first member of a part
// has made the unique id, which the others get over the control connections.
struct Readiness {
  int32_t code = 0;
  std::array<char, 252> why{};  // cut if it is longer; ends with a 0

  static Readiness Of(const Status& status) {
    Readiness readiness;
    readiness.code = static_cast<int32_t>(status.code());
    status.message().copy(readiness.why.data(), readiness.why.size() - 1);
    return readiness;
  }
};

template <typename T>
Result<std::vector<T>> Exchange(Communicator* parent, const T& mine) {
  std::vector<T> all;
  const Status status = CatchOutOfMemory([&] {
    all.resize(static_cast<size_t>(parent->nranks()));
    Call call;
    call.collective = Collective::kAllGather;
    call.type = DataType::kUint8;
    call.nranks = parent->nranks();
    call.rank = parent->rank();
    call.count = sizeof(T);
    call.send = &mine;
    call.recv = all.data();
    call.purpose = Purpose::kSplit;
    return parent->Run(call);
  });
  // Fails the parent, so that the other ranks do not wait for this one.
  if (!status.ok()) return parent->MakeSticky(status);
  return all;
}

// An id that this rank has made, for ranks that come at once. On destruction it serves no longer,
// which has no effect if all ranks have joined.
class OwnId {
 public:
  OwnId() = default;
  OwnId(const OwnId&) = delete;
  OwnId& operator=(const OwnId&) = delete;
  ~OwnId() { Withdraw(); }

  Result<UniqueId> Create(const Environment& environment) {
    Withdraw();
    Result<UniqueId> id = CreateUniqueId(environment, /*at_once=*/true);
    if (id.ok()) id_ = *id;
    return id;
  }
  void Withdraw() {
    if (id_) WithdrawUniqueId(*id_);
    id_.reset();
  }

 private:
  std::optional<UniqueId> id_;
};

// Ranks of one process can use other transports only if they are made together.
InitOptions ForJoining(InitOptions options) {
  std::string& transport = options.environment.transport;
  if (transport == "loopback") transport.clear();
  return options;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Split(Communicator* parent, int color, int key,
                                            const InitOptions& options) {
  const int rank = parent->rank();
  const uint64_t split = parent->NextSplit();
  Result<std::vector<Wish>> wishes = Exchange(parent, Wish{color, key});
  if (!wishes.ok()) return wishes.status();
  std::vector<int> members;
  const bool takes_part = color >= 0;
  UniqueId own;
  Status failure;
  OwnId id_of_this_rank;
  const Status prepared = CatchOutOfMemory([&] {
    for (int r = 0; r < parent->nranks(); ++r) {
      if ((*wishes)[static_cast<size_t>(r)].color == color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return (*wishes)[static_cast<size_t>(a)].key < (*wishes)[static_cast<size_t>(b)].key;
    });
    if (!takes_part) return Status::Ok();
    failure = bootstrap::EnsureDescriptors(members.size());
    if (!failure.ok() || members.front() != rank) return Status::Ok();
    Result<UniqueId> id = id_of_this_rank.Create(options.environment);
    failure = id.status();
    if (!id.ok()) return Status::Ok();
    own = *std::move(id);
    for (const int member : members) {
      if (member != rank) parent->invitations()->Send(member, split, own);
    }
    return Status::Ok();
  });
  if (!prepared.ok()) return parent->MakeSticky(prepared);
  // Every rank takes part, even after an error, because the others wait for it.
  Result<std::vector<Readiness>> all = Exchange(parent, Readiness::Of(failure));
  if (!failure.ok()) return failure;
  if (!all.ok()) return all.status();
  if (!takes_part) return std::shared_ptr<Communicator>();
  for (const int member : members) {
    const Readiness& theirs = (*all)[static_cast<size_t>(member)];
    if (theirs.code == 0) continue;
    const std::string_view why(theirs.why.data(), strnlen(theirs.why.data(), theirs.why.size()));
    return RemoteError(fmt::format("{}: split: rank {} cannot join: {}", parent->rank_name(),
                                   member, Escaped(why)));
  }
  const Time deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  Result<UniqueId> id =
      members.front() == rank
          ? Result<UniqueId>(own)
          : parent->invitations()->Await(members.front(), split, deadline, parent->failed_flag());
  if (!id.ok()) {
    return parent->CauseOf(
        Status(id.status().code(),
               fmt::format("{}: split: {}", parent->rank_name(), id.status().message())));
  }
  const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
  // The join ends when the parent fails, like any other call on the parent. Otherwise it would wait
  // for a member that has died before it joined, or, after an abort, for all members.
  Result<std::shared_ptr<Communicator>> joined = JoinProcesses(
      static_cast<int>(members.size()), static_cast<int>(place), ForJoining(options),
      [&](const JoinOptions& join) { return JoinWithId(*id, join); }, parent->failed_flag());
  if (!joined.ok()) return parent->CauseOf(joined.status());
  return joined;
}

Result<Shrunk> Shrink(Communicator* parent, const RankSet& excluded, const InitOptions& options) {
  const Time deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  Shrunk shrunk;
  ShrinkAgreement::Steps steps;
  OwnId id_of_this_round;
  steps.create_id = [&] { return id_of_this_round.Create(options.environment); };
  steps.join = [&](const UniqueId& id, const ShrinkAgreement::Outcome& outcome,
                   const std::atomic<bool>* cancelled) -> Status {
    const auto place =
        std::lower_bound(outcome.members.begin(), outcome.members.end(), parent->rank()) -
        outcome.members.begin();
    InitOptions joining = ForJoining(options);
    const Time left = std::max<Time>(deadline - SystemClock().Now(), kMillisecond);
    joining.init_timeout_ms = static_cast<int>((left + kMillisecond - 1) / kMillisecond);
    Result<std::shared_ptr<Communicator>> joined = JoinProcesses(
        static_cast<int>(outcome.members.size()), static_cast<int>(place), joining,
        [&](const JoinOptions& join) { return JoinWithId(id, join); }, cancelled);
    if (!joined.ok()) {
      id_of_this_round.Withdraw();
      return joined.status();
    }
    shrunk.communicator = *std::move(joined);
    return Status::Ok();
  };
  Result<ShrinkAgreement::Outcome> outcome =
      parent->shrink_agreement()->Agree(excluded, parent->completed(), deadline, steps);
  if (!outcome.ok()) {
    return WithCommName(outcome.status(), parent->rank(), parent->nranks(), parent->options().name);
  }
  shrunk.last_completed = outcome->last_completed;
  return shrunk;
}

}  // namespace inccl
