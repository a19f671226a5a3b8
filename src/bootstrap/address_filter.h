// SPDX-License-Identifier: Apache-2.0
//
// INCCL_SOCKET_ALLOW: the networks from which listeners accept TCP connections.
#ifndef INCCL_BOOTSTRAP_ADDRESS_FILTER_H_
#define INCCL_BOOTSTRAP_ADDRESS_FILTER_H_

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace inccl::bootstrap {

class AddressFilter {
 public:
  AddressFilter() = default;  // admits every address
  // A list like "10.0.0.0/8,192.0.2.7,2001:db8::/32"; "" admits every address. A kInvalidArgument
  // names the wrong word.
  static Result<AddressFilter> Parse(std::string_view list);

  bool Admits(const sockaddr_storage& address) const;
  // As Admits for the other end of a connection, and true if that is on this host.
  bool AdmitsPeerOf(int fd, const sockaddr_storage& peer) const;

  bool operator==(const AddressFilter&) const = default;

 private:
  struct Network {
    int family = AF_INET;
    std::array<std::byte, 16> address{};
    int bits = 0;

    bool operator==(const Network&) const = default;
  };
  std::vector<Network> networks_;
};

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_ADDRESS_FILTER_H_
