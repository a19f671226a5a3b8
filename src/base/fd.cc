// SPDX-License-Identifier: Apache-2.0
#include "base/fd.h"

#include <sys/mman.h>
#include <unistd.h>

#include "base/own_fds.h"

namespace inccl {

void UniqueFd::Reset(int fd) {
  if (fd_ >= 0) {
    OwnFdsLock lock;
    lock.Remove(fd_);
    close(fd_);
  }
  fd_ = fd;
}

void Mapping::Reset() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
  bytes_ = 0;
}

}  // namespace inccl
