// SPDX-License-Identifier: Apache-2.0
#include "liveness.h"

#include <fmt/format.h>

#include <utility>

#include "base/bytes.h"

namespace inccl {
namespace {

enum Message : uint8_t { kRecord = 1, kError = 2 };

// Without progress for this long a rank tells the others which call it is in.
constexpr Time kTellAfter = 20 * kMillisecond;
// A slice of another call has come, yet no record explains it for this long.
constexpr Time kMismatchAfter = 1500 * kMillisecond;
// A peer that said goodbye may have left slices behind; without progress for this long they are not
// coming.
constexpr Time kDepartedAfter = 200 * kMillisecond;

}  // namespace

Liveness::Liveness(LivenessOptions options, Doorbell* doorbell)
    : options_(std::move(options)),
      doorbell_(doorbell),
      pending_(static_cast<size_t>(options_.nranks)),
      departed_(static_cast<size_t>(options_.nranks)) {}

Status Liveness::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::string Liveness::Where() const {
  std::string where = fmt::format("rank {}/{}", options_.rank, options_.nranks);
  if (in_call_.load() && latest_ != 0) {
    where += fmt::format(" in op {} {}", latest_, history_[latest_ % kHistory].ToString());
  }
  return where;
}

Status Liveness::Disagreement(int peer, const CallRecord& ours, const CallRecord& theirs) const {
  const bool we_first = options_.rank < peer;
  return InvalidUsage(fmt::format(
      "ranks disagree at op {}: rank {}/{} calls {}, rank {}/{} calls {}", ours.sequence,
      we_first ? options_.rank : peer, options_.nranks, (we_first ? ours : theirs).ToString(),
      we_first ? peer : options_.rank, options_.nranks, (we_first ? theirs : ours).ToString()));
}

Status Liveness::BeginCall(uint64_t sequence, const Call& call, uint64_t* signature) {
  Status disagreement;
  {
    const std::lock_guard lock(mutex_);
    CallRecord& record = history_[sequence % kHistory];
    record.Set(sequence, call);
    *signature = record.Signature();
    latest_ = sequence;
    in_call_.store(true, std::memory_order_release);
    if (any_pending_.load(std::memory_order_relaxed)) {
      bool left = false;
      for (size_t peer = 0; peer < pending_.size(); ++peer) {
        if (!pending_[peer]) continue;
        if (pending_[peer]->sequence > sequence) {
          left = true;
          continue;
        }
        if (pending_[peer]->sequence == sequence && !pending_[peer]->SameCall(record)) {
          disagreement = Disagreement(static_cast<int>(peer), record, *pending_[peer]);
        }
        pending_[peer].reset();
      }
      any_pending_.store(left, std::memory_order_relaxed);
    }
  }
  if (!disagreement.ok()) Fail(disagreement);
  return Check();
}

void Liveness::Fail(const Status& status) {
  {
    const std::lock_guard lock(mutex_);
    if (failed_.load()) return;
    error_ = status;
    failed_.store(true, std::memory_order_release);
  }
  Tell(status);
  if (doorbell_ != nullptr) doorbell_->Ring();
}

void Liveness::Tell(const Status& status) {
  ControlPlane* control = control_.load();
  if (control == nullptr) return;
  ByteWriter body;
  body.U32(static_cast<uint32_t>(status.code()));
  body.String(status.message());
  control->Broadcast(kError, body.bytes());
}

Status Liveness::OnStall(const Task& task, Time stalled) {
  if (stalled < kTellAfter) return Status::Ok();
  const Blocked blocked = task.blocked_on();
  std::vector<std::byte> tell;
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    if (told_sequence_ != latest_) {
      told_sequence_ = latest_;
      tell = history_[latest_ % kHistory].Encode();
    }
    if (blocked.peer >= 0 && stalled >= kDepartedAfter &&
        departed_[static_cast<size_t>(blocked.peer)].load()) {
      failure = RemoteError(
          fmt::format("{}: peer {}@{} closed its communicator without taking part; waited {} ms",
                      Where(), blocked.peer, options_.peer_names[static_cast<size_t>(blocked.peer)],
                      stalled / kMillisecond));
    } else if (task.mismatched_peer() >= 0 && stalled >= kMismatchAfter) {
      failure = InvalidUsage(
          fmt::format("{}: peer {}@{} sent data of another call", Where(), task.mismatched_peer(),
                      options_.peer_names[static_cast<size_t>(task.mismatched_peer())]));
    } else if (stalled >= options_.op_timeout) {
      failure = TimeoutError(fmt::format(
          "{}: no progress for {} ms (limit {} ms), waiting for peer {}@{} (connected, has not "
          "done its part; is it in another call?)",
          Where(), stalled / kMillisecond, options_.op_timeout / kMillisecond, blocked.peer,
          blocked.peer < 0 ? "-" : options_.peer_names[static_cast<size_t>(blocked.peer)]));
    }
  }
  ControlPlane* control = control_.load();
  if (!tell.empty() && control != nullptr) control->Broadcast(kRecord, tell);
  if (!failure.ok()) Fail(failure);
  return Check();
}

void Liveness::OnMessage(int peer, uint8_t kind, std::span<const std::byte> body) {
  if (kind == kRecord) {
    Result<CallRecord> record = CallRecord::Decode(body);
    if (record.ok()) return OnRecord(peer, *record);
  } else if (kind == kError) {
    return OnError(peer, body);
  }
  Fail(InternalError(fmt::format("rank {}/{}: malformed control message of kind {} from peer {}@{}",
                                 options_.rank, options_.nranks, kind, peer,
                                 options_.peer_names[static_cast<size_t>(peer)])));
}

void Liveness::OnRecord(int peer, const CallRecord& theirs) {
  Status disagreement;
  {
    const std::lock_guard lock(mutex_);
    if (theirs.sequence > latest_) {
      pending_[static_cast<size_t>(peer)] = theirs;
      any_pending_.store(true, std::memory_order_relaxed);
      return;
    }
    const CallRecord& ours = history_[theirs.sequence % kHistory];
    if (ours.sequence == theirs.sequence && !ours.SameCall(theirs)) {
      disagreement = Disagreement(peer, ours, theirs);
    }
  }
  if (!disagreement.ok()) Fail(disagreement);
}

void Liveness::OnError(int peer, std::span<const std::byte> body) {
  ByteReader reader(body);
  uint32_t code = 0;
  std::string text;
  if (!reader.U32(&code) || !reader.String(&text) || code < 1 ||
      code > static_cast<uint32_t>(Code::kTimeout)) {
    Fail(InternalError(fmt::format("malformed error message from peer {}", peer)));
    return;
  }
  Fail(Status(static_cast<Code>(code), std::move(text)));
}

void Liveness::OnPeerClosed(int peer, bool clean) {
  if (clean) {
    departed_[static_cast<size_t>(peer)].store(true);
    return;
  }
  Status failure;
  {
    const std::lock_guard lock(mutex_);
    failure = RemoteError(fmt::format(
        "{}: peer {}@{} failed: its control connection closed without goodbye (process died?)",
        Where(), peer, options_.peer_names[static_cast<size_t>(peer)]));
  }
  Fail(failure);
}

}  // namespace inccl
