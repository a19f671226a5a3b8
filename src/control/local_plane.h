// SPDX-License-Identifier: Apache-2.0
//
// Control plane between ranks that are threads of one process: mailboxes, which the control thread
// empties.
#ifndef INCCL_CONTROL_LOCAL_PLANE_H_
#define INCCL_CONTROL_LOCAL_PLANE_H_

#include <deque>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "control/control.h"
#include "control/loop.h"

namespace inccl::control {

// One rank's mailbox.
class LocalMember final : public Member {
 public:
  LocalMember(int nranks, ControlHandler* handler)
      : handler_(handler), senders_(static_cast<size_t>(nranks)) {}

  // Called before other ranks call Put.
  void Start(uint64_t id) { id_ = id; }
  // Any thread; does not block. Kinds as on the wire, 0 for disconnect.
  void Put(int from, uint8_t kind, std::span<const std::byte> body);
  // Afterwards no callback runs or will run.
  void Silence();

  void OnEvents(uint32_t, uint32_t) override {}
  void OnWake() override;
  Time OnTime(Time, Time) override { return kNever; }

 private:
  struct Letter {
    int from = 0;
    bool last = false;
    bool clean = false;
    uint8_t kind = 0;
    std::vector<std::byte> body;
  };
  struct Sender {
    size_t queued = 0;   // bytes, including the overhead of a letter
    bool ended = false;  // its last letter is in the mailbox
    // There was no memory for a letter, so the sender ends after its queued letters.
    bool ends = false, ends_clean = false;
  };

  bool Take(Letter* letter) INCCL_REQUIRES(box_mutex_);  // false: there is none

  ControlHandler* const handler_;
  uint64_t id_ = 0;
  Mutex dispatch_mutex_ INCCL_ACQUIRED_BEFORE(box_mutex_);  // held during callbacks
  bool silenced_ INCCL_GUARDED_BY(dispatch_mutex_) = false;
  Mutex box_mutex_;
  std::deque<Letter> letters_ INCCL_GUARDED_BY(box_mutex_);
  std::vector<Sender> senders_ INCCL_GUARDED_BY(box_mutex_);
  // The control thread will not read what is put in.
  bool sealed_ INCCL_GUARDED_BY(box_mutex_) = false;
};

class LocalPlane final : public ControlPlane {
 public:
  static Result<std::vector<std::unique_ptr<ControlPlane>>> MakeAll(
      const std::vector<ControlHandler*>& handlers);
  ~LocalPlane() override { Close(0); }
  void Send(int peer, uint8_t kind, std::span<const std::byte> body) override;
  void Close(Time flush_deadline) override;

 private:
  using Members = std::vector<std::shared_ptr<LocalMember>>;

  LocalPlane(int rank, Members members)
      : ControlPlane(static_cast<int>(members.size())), rank_(rank), members_(std::move(members)) {}

  const int rank_;
  const Members members_;  // by rank
  uint64_t id_ = 0;        // 0: the loop does not know the member
  Mutex close_mutex_;      // taken before the member's and the loop's; never by the control thread
  bool closed_ INCCL_GUARDED_BY(close_mutex_) = false;
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_LOCAL_PLANE_H_
