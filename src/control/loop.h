// SPDX-License-Identifier: Apache-2.0
//
// The control thread: an epoll loop for the sockets and mailboxes of all communicators of this
// process.
#ifndef INCCL_CONTROL_LOOP_H_
#define INCCL_CONTROL_LOOP_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/status.h"

namespace inccl::control {

// What the loop serves. Its methods are called on the control thread.
class Member {
 public:
  virtual ~Member() = default;
  // epoll events of the socket that was watched with this tag.
  virtual void OnEvents(uint32_t tag, uint32_t events) = 0;
  // After Wake.
  virtual void OnWake() = 0;
  // At the time asked for, or `late` nanoseconds after it. Returns when to be called again.
  virtual Time OnTime(Time now, Time late) = 0;
};

class Loop {
 public:
  // Never destroyed: threads may still use it while the process exits.
  static Loop& Get();

  // The thread runs while there are members. Returns the number by which the others know it.
  Result<uint64_t> Join(std::shared_ptr<Member> member);
  // Afterwards no event of this member begins; one may be under way. Not on the control thread. In
  // a child of fork(), where the thread does not exist, only forgets.
  void Leave(uint64_t member);

  // Level-triggered. `fd` must be unwatched before it is closed.
  Status Watch(uint64_t member, uint32_t tag, int fd, uint32_t events);
  void ChangeEvents(uint64_t member, uint32_t tag, int fd, uint32_t events);
  void Unwatch(int fd);
  // OnWake will be called; any thread.
  void Wake(uint64_t member);
  // OnTime will be called at `at`; any thread.
  void CallAt(uint64_t member, Time at);

  // Whether this process is the one in which the thread was started.
  bool InOwnProcess() const;
  // kInvalidUsage in the child of a process that had members: locks of its threads, also of other
  // libraries, may be held for ever here.
  Status CheckProcess() const;

 private:
  Loop() = default;
  Status Start();  // holds lifecycle_mutex_
  void Stop();     // holds lifecycle_mutex_
  void Run(int epoll_fd, int event_fd);
  std::shared_ptr<Member> Find(uint64_t member);
  Time NextTime();
  // Calls for each member that `take`, holding mutex_, says yes to. Needs no memory.
  template <typename Take, typename Function>
  void ForEach(Take&& take, Function&& call);
  void CallThoseWoken();
  void CallThoseDue();

  std::mutex lifecycle_mutex_;  // never taken by the control thread
  std::thread thread_;
  std::atomic<pid_t> pid_{0};

  std::mutex mutex_;
  struct Entry {
    std::shared_ptr<Member> member;
    Time at = kNever;  // when to call OnTime
    bool woken = false;
  };
  std::map<uint64_t, Entry> members_;
  bool rung_ = false;  // somebody is woken, and the thread will look
  uint64_t next_member_ = 1;
  bool stopping_ = false;
  UniqueFd epoll_;
  UniqueFd event_;
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_LOOP_H_
