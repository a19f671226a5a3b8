// SPDX-License-Identifier: Apache-2.0
#include "control/local_plane.h"

#include <utility>

#include "base/log.h"
#include "control/socket_plane.h"

namespace inccl::control {

void LocalMember::Put(int from, uint8_t kind, std::span<const std::byte> body) {
  {
    const MutexLock lock(&box_mutex_);
    Sender& sender = senders_[static_cast<size_t>(from)];
    if (sender.ended || sealed_) return;
    Letter letter;
    letter.from = from;
    letter.kind = kind;
    letter.last = letter.clean = kind == kDisconnect;
    const bool full = sender.queued + sizeof(Letter) + body.size() > kMaxControlQueue;
    if (full) {
      letter.last = true;
      letter.clean = false;
      Log(LogLevel::kWarn, LogSubsystem::kControl, "control messages of rank {} are not taken",
          from);
    }
    const bool last = letter.last, clean = letter.clean;
    const size_t bytes = sizeof(Letter) + (full ? 0 : body.size());
    const Status kept = CatchOutOfMemory([&] {
      box_mutex_.AssertHeld();
      if (!full) letter.body.assign(body.begin(), body.end());
      letters_.push_back(std::move(letter));
      return Status::Ok();
    });
    sender.ended = last || !kept.ok();
    sender.ends = !kept.ok();
    sender.ends_clean = clean;
    if (kept.ok()) sender.queued += bytes;
  }
  Loop::Get().Wake(id_);
}

bool LocalMember::Take(Letter* letter) {
  if (!letters_.empty()) {
    *letter = std::move(letters_.front());
    letters_.pop_front();
    senders_[static_cast<size_t>(letter->from)].queued -= sizeof(Letter) + letter->body.size();
    return true;
  }
  for (size_t from = 0; from < senders_.size(); ++from) {
    if (!std::exchange(senders_[from].ends, false)) continue;
    *letter = {};
    letter->from = static_cast<int>(from);
    letter->last = true;
    letter->clean = senders_[from].ends_clean;
    return true;
  }
  return false;
}

void LocalMember::Silence() {
  const MutexLock dispatch(&dispatch_mutex_);
  silenced_ = true;
  const MutexLock lock(&box_mutex_);
  sealed_ = true;
  letters_.clear();
}

void LocalMember::OnWake() {
  const MutexLock dispatch(&dispatch_mutex_);
  while (!silenced_) {
    Letter letter;
    {
      const MutexLock lock(&box_mutex_);
      if (!Take(&letter)) return;
    }
    const Status status = CatchOutOfMemory([&] {
      if (letter.last) {
        handler_->OnPeerClosed(letter.from, letter.clean);
      } else {
        handler_->OnMessage(letter.from, letter.kind, letter.body);
      }
      return Status::Ok();
    });
    if (!status.ok()) handler_->OnOutOfMemory();
  }
}

Result<std::vector<std::unique_ptr<ControlPlane>>> LocalPlane::MakeAll(
    const std::vector<ControlHandler*>& handlers) {
  const int nranks = static_cast<int>(handlers.size());
  Members members;
  for (ControlHandler* handler : handlers) {
    members.push_back(std::make_shared<LocalMember>(nranks, handler));
  }
  std::vector<std::unique_ptr<ControlPlane>> planes;
  for (int rank = 0; rank < nranks; ++rank) {
    // The plane exists before its member joins the loop, so its destructor makes the member leave
    // after any error.
    auto* const plane = new LocalPlane(rank, members);
    planes.push_back(std::unique_ptr<ControlPlane>(plane));
    LocalMember& member = *members[static_cast<size_t>(rank)];
    Result<uint64_t> id = Loop::Get().Join(members[static_cast<size_t>(rank)]);
    if (!id.ok()) return id.status();
    plane->id_ = *id;
    member.Start(*id);
  }
  return planes;
}

void LocalPlane::Send(int peer, uint8_t kind, std::span<const std::byte> body) {
  if (peer < 0 || peer >= nranks_ || peer == rank_) return;
  if (kind == kDisconnect || kind > kMostControlKind) return;
  if (body.size() > kMaxControlBody) {
    Log(LogLevel::kWarn, LogSubsystem::kControl,
        "rank {}: a control message of {} bytes to rank {} is too large", rank_, body.size(), peer);
    return;
  }
  members_[static_cast<size_t>(peer)]->Put(rank_, kind, body);
}

void LocalPlane::Close(Time) {
  if (!Loop::Get().InOwnProcess()) return;
  const MutexLock lock(&close_mutex_);
  if (closed_) return;
  closed_ = true;
  if (id_ == 0) return;
  for (int peer = 0; peer < nranks_; ++peer) {
    if (peer != rank_) members_[static_cast<size_t>(peer)]->Put(rank_, kDisconnect, {});
  }
  members_[static_cast<size_t>(rank_)]->Silence();
  Loop::Get().Leave(id_);
}

}  // namespace inccl::control
