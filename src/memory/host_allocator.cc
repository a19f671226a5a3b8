// SPDX-License-Identifier: Apache-2.0
#include "memory/host_allocator.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "memory/memfd.h"

namespace inccl {
namespace {

// Each file costs a descriptor, and zero copy does not pay below this size.
constexpr size_t kLeastShared = size_t{1} << 20;

size_t PageSize() {
  static const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return page;
}

// With strict overcommit (mode 2) the first touch of a file's page can raise SIGBUS, while
// anonymous memory is reserved by mmap.
bool MemoryIsCounted() {
  static const bool counted = [] {
    const UniqueFd fd(open("/proc/sys/vm/overcommit_memory", O_RDONLY | O_CLOEXEC));
    char mode = '0';
    return fd.valid() && read(fd.get(), &mode, 1) == 1 && mode == '2';
  }();
  return counted;
}

}  // namespace

HostAllocator& HostAllocator::Instance() {
  static auto* const memory = [] {
    auto* made = new HostAllocator;
    // The forking thread takes the mutexes before, and gives them up in the parent and in the
    // child.
    pthread_atfork(
        []() INCCL_NO_THREAD_SAFETY_ANALYSIS {
          Instance().observers_mutex_.Lock();
          Instance().mutex_.Lock();
        },
        []() INCCL_NO_THREAD_SAFETY_ANALYSIS {
          Instance().mutex_.Unlock();
          Instance().observers_mutex_.Unlock();
        },
        []() INCCL_NO_THREAD_SAFETY_ANALYSIS {
          Instance().ForkedChild();
          Instance().mutex_.Unlock();
          Instance().observers_mutex_.Unlock();
        });
    return made;
  }();
  return *memory;
}

Result<void*> HostAllocator::Allocate(size_t size) {
  const size_t bytes = (size + PageSize() - 1) / PageSize() * PageSize();
  Piece piece;
  piece.bytes = bytes;
  Mapping mapping;
  if (bytes >= kLeastShared && !MemoryIsCounted()) {
    Result<shm::Memfd> file = shm::CreateMemfd("inccl-memory", bytes, /*peers_read_only=*/false);
    if (file.ok()) {
      piece.file = std::move(file->fd);
      mapping = std::move(file->mapping);
    }
  }
  if (mapping.data() == nullptr) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return SystemErrorErrno(fmt::format("{} bytes", size), errno);
    mapping = Mapping(memory, bytes);
  }
  madvise(mapping.data(), bytes, MADV_HUGEPAGE);
  const MutexLock lock(&mutex_);
  const bool shared = piece.file.valid();
  if (shared) piece.taken.resize(bytes / PageSize());
  piece.generation = shared ? next_generation_++ : 0;
  pieces_.emplace(mapping.data(), std::move(piece));
  if (shared) shared_.fetch_add(1);
  return mapping.Release();
}

void HostAllocator::Observe(FreeObserver* observer) {
  const MutexLock lock(&observers_mutex_);
  observers_.push_back(observer);
}

void HostAllocator::Forget(FreeObserver* observer) {
  const MutexLock lock(&observers_mutex_);
  std::erase(observers_, observer);
}

void HostAllocator::Announce(const std::byte* begin, const std::byte* end) {
  const MutexLock lock(&observers_mutex_);
  for (FreeObserver* const observer : observers_) observer->OnFree(begin, end);
}

Status HostAllocator::Free(void* data) {
  const MutexLock observers(&observers_mutex_);
  const MutexLock lock(&mutex_);
  const auto found = pieces_.find(static_cast<const std::byte*>(data));
  if (found == pieces_.end()) {
    return InvalidArgument(fmt::format("ptr: {} is not of ccl_mem_alloc, or freed", data));
  }
  const Piece& piece = found->second;
  for (FreeObserver* const observer : observers_) {
    observer->OnFree(found->first, found->first + piece.bytes);
  }
  // Peers keep the file mapped until they notice; punching a hole returns its memory at once.
  if (piece.generation != 0) {
    fallocate(piece.file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
              static_cast<off_t>(piece.bytes));
    shared_.fetch_sub(1);
  }
  munmap(data, piece.bytes);
  pieces_.erase(found);
  return Status::Ok();
}

HostAllocator::Pieces::iterator HostAllocator::Holding(const std::byte* data, size_t bytes) {
  auto after = pieces_.upper_bound(data);
  if (after == pieces_.begin()) return pieces_.end();
  const auto found = std::prev(after);
  const auto offset = static_cast<size_t>(data - found->first);
  if (offset > found->second.bytes || bytes > found->second.bytes - offset) return pieces_.end();
  return found;
}

Region HostAllocator::Find(const void* data, size_t bytes) {
  if (shared_.load(std::memory_order_relaxed) == 0) return {};
  const MutexLock lock(&mutex_);
  const auto found = Holding(static_cast<const std::byte*>(data), bytes);
  if (found == pieces_.end() || found->second.generation == 0) return {};
  const Piece& piece = found->second;
  return {piece.generation, const_cast<std::byte*>(found->first), piece.bytes, piece.file.get()};
}

Status HostAllocator::WhyNotShared(const void* data, size_t bytes) {
  const MutexLock lock(&mutex_);
  const auto found = Holding(static_cast<const std::byte*>(data), bytes);
  if (found == pieces_.end()) return InvalidArgument("not memory of ccl_mem_alloc");
  if (found->second.file.valid()) {
    return InvalidArgument(
        "a call on this memory of ccl_mem_alloc has failed, or the process forked");
  }
  if (found->second.bytes < kLeastShared) {
    return InvalidArgument(
        fmt::format("memory of ccl_mem_alloc of less than {} bytes", kLeastShared));
  }
  return InvalidArgument("the kernel had no memory file for this memory of ccl_mem_alloc");
}

Status HostAllocator::RevokeAccess(const std::byte* begin, const std::byte* end,
                                   Contents contents) {
  if (begin >= end) return Status::Ok();
  const auto bytes = static_cast<size_t>(end - begin);
  const MutexLock observers(&observers_mutex_);
  for (FreeObserver* const observer : observers_) observer->OnReplace(begin, end);
  const MutexLock lock(&mutex_);
  const auto found = Holding(begin, bytes);
  if (found == pieces_.end()) return Status::Ok();  // freed concurrently
  Piece& piece = found->second;
  if (piece.generation != 0) shared_.fetch_sub(1);
  piece.generation = 0;
  const auto first = static_cast<size_t>(begin - found->first) / PageSize();
  const size_t last = first + (bytes + PageSize() - 1) / PageSize();
  if (contents == Contents::kLost) {
    if (mmap(const_cast<std::byte*>(begin), bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS, -1, 0) == MAP_FAILED) {
      return SystemErrorErrno(fmt::format("private pages for {} bytes", bytes), errno);
    }
  } else if (!MakePrivate(found->first, piece, first, last)) {
    return SystemErrorErrno(fmt::format("private pages for {} bytes", bytes), errno);
  }
  std::fill(piece.taken.begin() + static_cast<std::ptrdiff_t>(first),
            piece.taken.begin() + static_cast<std::ptrdiff_t>(last), true);
  return Status::Ok();
}

// Replaces pages [first, last) by private pages with the same contents. Pages that are private
// already stay as they are.
bool HostAllocator::MakePrivate(const std::byte* data, const Piece& piece, size_t first,
                                size_t last) {
  while (first < last) {
    size_t end = first;
    while (end < last && !piece.taken[end]) ++end;
    const size_t offset = first * PageSize(), bytes = (end - first) * PageSize();
    if (end > first &&
        mmap(const_cast<std::byte*>(data + offset), bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_FIXED, piece.file.get(), static_cast<off_t>(offset)) == MAP_FAILED) {
      return false;
    }
    first = end + 1;
  }
  return true;
}

// Gives the child of a fork private pages, so that its writes do not reach the parent. Pages that
// the child has not written still show later writes of the parent.
void HostAllocator::ForkedChild() {
  observers_.clear();
  for (auto& entry : pieces_) {
    Piece& piece = entry.second;
    if (!piece.file.valid()) continue;
    piece.generation = 0;
    // A fork handler cannot report an error.
    (void)MakePrivate(entry.first, piece, 0, piece.taken.size());
  }
  shared_.store(0);
}

}  // namespace inccl
