// SPDX-License-Identifier: Apache-2.0
//
// Owners of a file descriptor and of a memory mapping.
#ifndef INCCL_BASE_FD_H_
#define INCCL_BASE_FD_H_

#include <cstddef>
#include <utility>

namespace inccl {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) Reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~UniqueFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset(int fd = -1);

 private:
  int fd_ = -1;
};

class Mapping {
 public:
  Mapping() = default;
  Mapping(void* data, size_t bytes) : data_(data), bytes_(bytes) {}
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      Reset();
      data_ = std::exchange(other.data_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~Mapping() { Reset(); }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t bytes() const { return bytes_; }
  void* Release() {
    bytes_ = 0;
    return std::exchange(data_, nullptr);
  }
  void Reset();

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Descriptors that belong to one process alone: in a child of fork() their numbers refer to
// nothing. A socket that the child kept would tell the peers of a dead process that it lives.

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

#endif  // INCCL_BASE_FD_H_
