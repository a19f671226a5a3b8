// SPDX-License-Identifier: Apache-2.0
//
// Descriptors that belong to one process alone: in a child of fork() their numbers refer to
// nothing. A socket that the child kept would tell the peers of a dead process that it lives.
#ifndef INCCL_BASE_OWN_FDS_H_
#define INCCL_BASE_OWN_FDS_H_

#include "base/fd.h"

namespace inccl {

// No fork() happens while it exists. The thread must not wait meanwhile, nor close a UniqueFd.
class OwnFdsLock {
 public:
  OwnFdsLock();
  ~OwnFdsLock();  // keeps errno
  OwnFdsLock(const OwnFdsLock&) = delete;
  OwnFdsLock& operator=(const OwnFdsLock&) = delete;

  void Add(int fd);
  void Remove(int fd);
};

// What `open` returns, a descriptor or -1 with errno, belongs to this process alone until it is
// closed.
template <typename Open>
UniqueFd OpenOwnFd(const Open& open) {
  OwnFdsLock lock;
  const int fd = open();
  lock.Add(fd);
  return UniqueFd(fd);
}

}  // namespace inccl

#endif  // INCCL_BASE_OWN_FDS_H_
