// SPDX-License-Identifier: Apache-2.0
#include "memory/memfd.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace inccl::shm {
namespace {

constexpr unsigned kNoExecSeal = 0x8;   // MFD_NOEXEC_SEAL, Linux 6.3
constexpr int kFutureWriteSeal = 0x10;  // F_SEAL_FUTURE_WRITE, Linux 5.1
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr size_t kCommitStep = size_t{4} << 20;

// ftruncate beyond the limit raises SIGXFSZ, so the limit is checked before.
Status CheckFileSizeLimit(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0) return Status::Ok();
  if (limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur) return Status::Ok();
  return SystemError(
      fmt::format("shared memory of {} bytes (sparse) exceeds the file size limit of {} bytes; "
                  "raise `ulimit -f`",
                  bytes, limit.rlim_cur));
}

Status Failed(const char* call, size_t bytes, int error) {
  return SystemErrorErrno(fmt::format("shared memory: {} of {} bytes", call, bytes), error);
}

}  // namespace

Result<Memfd> CreateMemfd(const char* name, size_t bytes, bool peers_read_only) {
  if (Status status = CheckFileSizeLimit(bytes); !status.ok()) return status;
  Memfd memfd;
  constexpr unsigned kFlags = MFD_CLOEXEC | MFD_ALLOW_SEALING;
  memfd.fd.Reset(memfd_create(name, kFlags | kNoExecSeal));
  if (!memfd.fd.valid() && errno == EINVAL) memfd.fd.Reset(memfd_create(name, kFlags));
  const int fd = memfd.fd.get();
  if (fd < 0) return Failed("memfd_create", bytes, errno);
  int rc;
  do {
    rc = ftruncate(fd, static_cast<off_t>(bytes));
  } while (rc != 0 && errno == EINTR);
  if (rc != 0) return Failed("ftruncate", bytes, errno);
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap", bytes, errno);
  memfd.mapping = Mapping(data, bytes);
  const int future = peers_read_only ? kFutureWriteSeal : 0;
  rc = fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL | future);
  if (rc != 0 && errno == EINVAL && future != 0) {
    rc = fcntl(fd, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL);
  }
  if (rc != 0) return Failed("sealing", bytes, errno);
  return memfd;
}

Status CommitPages(int fd, size_t offset, size_t bytes) {
  // In steps: a signal makes fallocate start over, so under a fast timer a large step might never
  // finish.
  while (bytes > 0) {
    const size_t step = std::min(bytes, kCommitStep);
    if (fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(step)) != 0) {
      if (errno == EINTR) continue;
      return SystemErrorErrno(
          fmt::format("shared memory: no memory for {} bytes more, {} bytes in use", bytes, offset),
          errno);
    }
    offset += step;
    bytes -= step;
  }
  return Status::Ok();
}

Result<Mapping> MapSealed(int fd, size_t bytes, bool writable) {
  // Check the seals before the size: a peer can still change a size that is not sealed.
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals) {
    return InternalError(fmt::format("shared memory: size is not sealed (seals {})", seals));
  }
  struct stat info {};
  if (fstat(fd, &info) != 0) return SystemErrorErrno("fstat of shared memory", errno);
  if (!S_ISREG(info.st_mode)) return InternalError("shared memory: descriptor is not a file");
  if (info.st_size <= 0 || static_cast<size_t>(info.st_size) != bytes) {
    return InternalError(fmt::format("shared memory: size {}, expected {}", info.st_size, bytes));
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* data = mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return Failed("mmap", bytes, errno);
  return Mapping(data, bytes);
}

}  // namespace inccl::shm
