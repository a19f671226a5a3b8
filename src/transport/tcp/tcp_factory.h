// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_TRANSPORT_TCP_TCP_FACTORY_H_
#define INCCL_TRANSPORT_TCP_TCP_FACTORY_H_

#include <memory>
#include <string>

#include "base/status.h"
#include "bootstrap/interfaces.h"
#include "transport/tcp/tcp_frame.h"
#include "transport/transport_factory.h"

namespace inccl {

struct TcpOptions {
  std::string interfaces;    // INCCL_SOCKET_IFNAME
  ListenRules listen;        // INCCL_PORT_RANGE, INCCL_SOCKET_ALLOW
  int sockets_per_peer = 0;  // 0: as many as the links require
  tcp::Protection protection = tcp::Protection::kAuth;
};

// Listens on the interface that the options select, until all connections are made. Of two ranks
// the higher one connects: when the communicator is made, in one of up to INCCL_CONTROL_ALL_PAIRS
// ranks, else when a lane between them is first needed. Errors: kInvalidUsage (no such interface),
// kSystemError.
Result<std::unique_ptr<TransportFactory>> MakeTcpFactory(int rank, int nranks,
                                                         const TcpOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_TCP_TCP_FACTORY_H_
