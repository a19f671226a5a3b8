// SPDX-License-Identifier: Apache-2.0
//
// At which TCP ports a rank listens, and whose connections it accepts.
#ifndef INCCL_BOOTSTRAP_LISTEN_RULES_H_
#define INCCL_BOOTSTRAP_LISTEN_RULES_H_

#include "base/status.h"
#include "bootstrap/address_filter.h"
#include "config/variables.h"

namespace inccl {

struct ListenRules {
  PortRange ports;
  bootstrap::AddressFilter sources;

  bool operator==(const ListenRules&) const = default;
  // A kInvalidArgument says what is wrong with INCCL_SOCKET_ALLOW, without its name.
  static Result<ListenRules> Of(const Environment& environment) {
    Result<bootstrap::AddressFilter> sources =
        bootstrap::AddressFilter::Parse(environment.socket_allow);
    if (!sources.ok()) return sources.status();
    return ListenRules{environment.port_range, *std::move(sources)};
  }
};

}  // namespace inccl

#endif  // INCCL_BOOTSTRAP_LISTEN_RULES_H_
