// SPDX-License-Identifier: Apache-2.0
#include "children.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "join.h"
#include "transport/bootstrap/bootstrap.h"

namespace inccl {
namespace {

// What every rank tells the others about the part it wants to be in.
struct Wish {
  int32_t color = 0, key = 0;
};

// The same from the ranks that make a new communicator's unique id.
struct Invitation {
  std::array<std::byte, kUniqueIdBytes> id{};
  uint32_t made = 0;
};

template <typename T>
Result<std::vector<T>> Exchange(Communicator* parent, const T& mine) {
  std::vector<T> all;
  const Status status = CatchOutOfMemory([&] {
    all.resize(static_cast<size_t>(parent->nranks()));
    Call call;
    call.collective = Collective::kAllGather;
    call.type = DataType::kUint8;
    call.count = sizeof(T);
    call.send = &mine;
    call.recv = all.data();
    call.purpose = Purpose::kSplit;
    return parent->Run(call);
  });
  // The other ranks are not to wait for this one.
  if (!status.ok()) return parent->MakeSticky(status);
  return all;
}

// Ranks of one process may be joined by other means only when they are made together.
InitOptions ForJoining(InitOptions options) {
  std::string& transport = options.environment.transport;
  if (transport == "loopback") transport.clear();
  return options;
}

}  // namespace

Result<std::shared_ptr<Communicator>> Split(Communicator* parent, int color, int key,
                                            const InitOptions& options) {
  const int rank = parent->rank();
  Result<std::vector<Wish>> wishes = Exchange(parent, Wish{color, key});
  if (!wishes.ok()) return wishes.status();
  std::vector<int> members;
  const bool takes_part = color >= 0;
  Invitation mine;
  const Status failure = CatchOutOfMemory([&] {
    for (int r = 0; r < parent->nranks(); ++r) {
      if ((*wishes)[static_cast<size_t>(r)].color == color) members.push_back(r);
    }
    std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
      return (*wishes)[static_cast<size_t>(a)].key < (*wishes)[static_cast<size_t>(b)].key;
    });
    if (!takes_part || members.front() != rank) return Status::Ok();
    Result<UniqueId> id = CreateUniqueId(options.environment, /*ranks_are_waiting=*/true);
    if (!id.ok()) return id.status();
    id->Encode(mine.id.data());
    mine.made = 1;
    return Status::Ok();
  });
  // Everybody takes part, whatever has happened: the others wait for it.
  Result<std::vector<Invitation>> invitations = Exchange(parent, mine);
  if (!failure.ok()) return failure;
  if (!invitations.ok()) return invitations.status();
  if (!takes_part) return std::shared_ptr<Communicator>();
  const Invitation& invitation = (*invitations)[static_cast<size_t>(members.front())];
  if (invitation.made == 0) {
    return RemoteError(fmt::format("rank {}/{}: split: rank {} could not make a unique id", rank,
                                   parent->nranks(), members.front()));
  }
  Result<UniqueId> id = UniqueId::Decode(invitation.id.data());
  if (!id.ok()) return id.status();
  const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
  return JoinProcesses(
      static_cast<int>(members.size()), static_cast<int>(place), ForJoining(options),
      [&](const JoinOptions& join) { return JoinWithId(*id, join); }, nullptr);
}

Result<Shrunk> Shrink(Communicator* parent, Survivors::Set excluded, const InitOptions& options) {
  const Time deadline = SystemClock().Now() + options.init_timeout_ms * kMillisecond;
  Shrunk shrunk;
  Survivors::Steps steps;
  steps.create_id = [&] { return CreateUniqueId(options.environment, /*ranks_are_waiting=*/true); };
  steps.join = [&](const UniqueId& id, const Survivors::Outcome& outcome,
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
    if (!joined.ok()) return joined.status();
    shrunk.communicator = *std::move(joined);
    return Status::Ok();
  };
  Result<Survivors::Outcome> outcome =
      parent->survivors()->Agree(excluded, parent->completed(), deadline, steps);
  if (!outcome.ok()) return outcome.status();
  shrunk.last_completed = outcome->last_completed;
  return shrunk;
}

}  // namespace inccl
