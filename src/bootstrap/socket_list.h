// SPDX-License-Identifier: Apache-2.0
//
// The connections of one communicator between this rank and others, so that its status can say what
// the kernel has counted on each of them. Thread-safe.
#ifndef INCCL_BOOTSTRAP_SOCKET_LIST_H_
#define INCCL_BOOTSTRAP_SOCKET_LIST_H_

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"

namespace inccl {

class SocketList {
 public:
  enum class Use : uint8_t { kControl, kData };
  struct Traffic {
    int peer = -1;
    Use use = Use::kControl;
    bool tcp = false;                 // else a unix socket, of which the kernel counts nothing
    uint64_t sent = 0, received = 0;  // bytes; `sent` with those that were sent again
    uint64_t acknowledged = 0;        // bytes of `sent` that the peer's machine has
    uint64_t retransmits = 0;         // segments
    uint64_t rtt_us = 0;
    uint64_t quiet_ms = 0;  // since data arrived
  };

  void Add(int peer, Use use, int fd);
  // The owner calls these before it closes the descriptors, whose numbers may then be reused.
  void Remove(int fd);
  void RemoveAll(Use use);
  std::vector<Traffic> Read() const;
  // Since data of `peer` arrived on any TCP connection for data; kNever: there is none.
  Time QuietFor(int peer) const;

 private:
  struct Entry {
    int peer;
    Use use;
    int fd;
  };

  mutable Mutex mutex_;
  std::vector<Entry> entries_ INCCL_GUARDED_BY(mutex_);
};

// The least round trip that the kernel has seen on a TCP connection, in microseconds; 0 for others.
uint32_t RoundTripUs(int fd);

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_SOCKET_LIST_H_
