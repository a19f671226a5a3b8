// SPDX-License-Identifier: Apache-2.0
//
// Makes one rank's end of a transport between processes. A rank makes the factory, its peers get
// the descriptors and the payload over authenticated connections, and each of them attaches.
#ifndef INCCL_TRANSPORT_TRANSPORT_FACTORY_H_
#define INCCL_TRANSPORT_TRANSPORT_FACTORY_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/mesh.h"
#include "transport/transport.h"

namespace inccl {

// While ranks wait for each other.
struct ConnectLimits {
  Time deadline = kNever;
  int timeout_ms = 0;      // the length of the deadline, for messages
  uint64_t under_way = 0;  // bytes that a rank's links to other hosts hold; 0: they are short
  std::function<Status()> check = [] { return Status::Ok(); };  // its error ends the wait
};

// Why data does not get from or to a peer.
struct PathFailure {
  int peer = -1;
  std::string why{};
};

class TransportFactory {
 public:
  virtual ~TransportFactory() = default;
  virtual std::vector<int> fds_to_share() const { return {}; }
  virtual std::vector<std::byte> payload() const { return {}; }
  // A transport that connects may do so before Attach: if all its peers, with their payloads, have
  // been announced, Begin begins, and Advance is called whenever the descriptor that Begin returns
  // is readable, until Connect. Begin returns -1 if it has nothing to do yet. Connect reports the
  // errors.
  virtual Status Announce(const PeerInfo& /*peer*/, std::span<const std::byte> /*payload*/) {
    return Status::Ok();
  }
  virtual int Begin(const Mesh& /*mesh*/, const ConnectLimits& /*limits*/) { return -1; }
  virtual void Advance() {}
  // `payload` is the peer's. Called once for each peer to which lanes will be opened.
  virtual Status Attach(Peer* peer, std::span<const std::byte> payload) = 0;
  // Called once, after all Attach, on all ranks at a time: makes the connections that take two. It
  // names the peer that fails, and ends by the deadline.
  virtual Status Connect(const Mesh& /*mesh*/, const ConnectLimits& /*limits*/) {
    return Status::Ok();
  }
  // Tries whether data gets to these peers and from them. Called after all ranks have connected;
  // the peers try this rank at the same time.
  virtual Result<std::vector<PathFailure>> TryPaths(std::span<const int> /*peers*/,
                                                    const ConnectLimits& /*limits*/) {
    return std::vector<PathFailure>();
  }
  // Called once, after Connect. `alone`: no rank of the communicator has another transport, so
  // all of them sleep on Transport::wakeup_event; else all sleep on Transport::wakeup_source.
  virtual std::unique_ptr<Transport> Take(bool alone) = 0;
};

}  // namespace inccl

#endif  // INCCL_TRANSPORT_TRANSPORT_FACTORY_H_
