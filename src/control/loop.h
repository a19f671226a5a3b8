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
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/mutex.h"
#include "base/status.h"
#include "base/thread.h"

namespace inccl::control {

// A client of the loop. The control thread calls its methods.
class Member {
 public:
  virtual ~Member() = default;
  // Reports epoll events of the socket that is watched with this tag.
  virtual void OnEvents(uint32_t tag, uint32_t events) = 0;
  // Follows a call of Wake.
  virtual void OnWake() = 0;
  // Called `late` nanoseconds after the requested time. Returns the time of the next call.
  virtual Time OnTime(Time now, Time late) = 0;
};

class Loop {
 public:
  // Never destroyed, because threads may still use it while the process exits.
  static Loop& Get();

  // Adds a member and returns its number for the other calls. The thread runs while there are
  // members.
  Result<uint64_t> Join(std::shared_ptr<Member> member);
  // Removes a member. Afterwards no callback of this member begins, but one may be running. Not on
  // the control thread. In a child of fork(), which has no control thread, it only drops the entry.
  void Leave(uint64_t member);

  // Watches a descriptor, level-triggered. The caller unwatches `fd` before it closes it.
  Status Watch(uint64_t member, uint32_t tag, int fd, uint32_t events);
  void ChangeEvents(uint64_t member, uint32_t tag, int fd, uint32_t events);
  void Unwatch(int fd);
  // Makes the control thread call OnWake; any thread.
  void Wake(uint64_t member);
  // Makes the control thread call OnTime at `at`, if it would not do so earlier; any thread.
  void CallAt(uint64_t member, Time at);

  // True if this process started the control thread.
  bool InOwnProcess() const;
  // Returns kInvalidUsage in the child of a process that had members: a lock that another thread
  // held during the fork, even one of another library, stays locked in the child for ever.
  Status CheckProcess() const;

 private:
  friend class NoDestructor<Loop>;
  Loop() = default;
  Status Start() INCCL_REQUIRES(lifecycle_mutex_);
  void Stop() INCCL_REQUIRES(lifecycle_mutex_);
  void Run(int epoll_fd, int event_fd);
  std::shared_ptr<Member> Find(uint64_t member);
  Time NextTime();
  // Calls `call` for each member for which `take`, under mutex_, returns true. Does not allocate.
  template <typename Take, typename Function>
  void ForEach(Take&& take, Function&& call);
  void CallThoseWoken();
  void CallThoseDue();

  // Never taken by the control thread.
  Mutex lifecycle_mutex_ INCCL_ACQUIRED_BEFORE(mutex_);
  std::thread thread_ INCCL_GUARDED_BY(lifecycle_mutex_);
  std::atomic<pid_t> pid_{0};

  Mutex mutex_;
  struct Entry {
    std::shared_ptr<Member> member;
    Time at = kNever;  // when to call OnTime
    bool woken = false;
  };
  std::map<uint64_t, Entry> members_ INCCL_GUARDED_BY(mutex_);
  bool rung_ INCCL_GUARDED_BY(mutex_) = false;  // a member is woken, and the thread will look
  uint64_t next_member_ INCCL_GUARDED_BY(mutex_) = 1;
  bool stopping_ INCCL_GUARDED_BY(mutex_) = false;
  // Opened by Start and closed by Stop; other functions use them while there are members.
  UniqueFd epoll_;
  UniqueFd event_;
};

}  // namespace inccl::control

#endif  // INCCL_CONTROL_LOOP_H_
