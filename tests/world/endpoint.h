// SPDX-License-Identifier: Apache-2.0
//
// Addresses of sockets for tests that use plain sockets.
#ifndef INCCL_TESTS_WORLD_ENDPOINT_H_
#define INCCL_TESTS_WORLD_ENDPOINT_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdint>
#include <string>

namespace inccl::test {

// Any family.
struct Endpoint {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // An IPv4 or IPv6 address in digits.
  static Endpoint Tcp(const std::string& address, uint16_t port = 0) {
    Endpoint endpoint;
    auto* const v4 = reinterpret_cast<sockaddr_in*>(&endpoint.storage);
    auto* const v6 = reinterpret_cast<sockaddr_in6*>(&endpoint.storage);
    if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
      v4->sin_family = AF_INET;
      v4->sin_port = htons(port);
      endpoint.length = sizeof *v4;
    } else {
      EXPECT_EQ(inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr), 1) << address;
      v6->sin6_family = AF_INET6;
      v6->sin6_port = htons(port);
      endpoint.length = sizeof *v6;
    }
    return endpoint;
  }
  uint16_t port() const {  // at the same place in both families
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  }
  int family() const { return storage.ss_family; }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

// Makes a listener of a socket. Where *endpoint has port 0, it gets the port.
inline void Listen(int fd, Endpoint* endpoint) {
  EXPECT_EQ(bind(fd, endpoint->get(), endpoint->length), 0) << errno;
  EXPECT_EQ(listen(fd, 128), 0) << errno;
  endpoint->length = sizeof endpoint->storage;
  EXPECT_EQ(getsockname(fd, endpoint->get(), &endpoint->length), 0);
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_WORLD_ENDPOINT_H_
