// SPDX-License-Identifier: Apache-2.0
//
// The transports that INCCL_TRANSPORT may name, one row each.
#ifndef INCCL_INIT_TRANSPORT_TABLE_H_
#define INCCL_INIT_TRANSPORT_TABLE_H_

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "config/variables.h"
#include "topology/host_map.h"
#include "transport/transport.h"
#include "transport/transport_factory.h"

namespace inccl {

struct FactoryArgs {
  int rank = 0, nranks = 1;
  const Environment* environment = nullptr;
  bool for_device = false;  // the rank works on a device
};

// Where the ranks run. Hosts are what INCCL_HOSTID says; machines have their own network, so unix
// sockets and shared memory end there.
struct Places {
  const HostMap& hosts;
  const HostMap& machines;
  const Environment& environment;
};

struct TransportRow {
  const char* name;
  Result<std::unique_ptr<TransportFactory>> (*make)(const FactoryArgs& args);
  // Transport::caps() of what `make` makes, on any rank.
  Caps (*caps)();
  // Why two ranks cannot use it, whatever their processes can do; "" if nothing prevents it.
  std::string (*unusable)(const Places& places, int a, int b);
  // A rank attaches to live peers, so all ranks must have attached before any leaves.
  bool attach_needs_peers;
  // Whether data gets from rank to rank shows only when it is tried (TransportFactory::TryPaths).
  bool tries_paths;
  // TransportFactory::Connect waits for the peers' calls.
  bool connects;
};

// In the order in which the parts of a composite transport are polled. INCCL_TRANSPORT has been
// checked, so every name has a row.
const TransportRow& RowOf(std::string_view name);

// The names in INCCL_TRANSPORT, each once; `standard` if it is not set.
std::vector<std::string> TransportNames(const Environment& environment,
                                        std::vector<std::string> standard);
// For messages: adds why `name` cannot be used, and " of INCCL_TRANSPORT=..." if it is set.
void AddReason(std::string_view name, const std::string& why, std::string* reasons);
std::string OfVariable(const Environment& environment);

// Bytes of slots that a rank commits when it is created.
size_t CommitAhead(int nranks, bool for_device);

}  // namespace inccl

#endif  // INCCL_INIT_TRANSPORT_TABLE_H_
