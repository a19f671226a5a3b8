// SPDX-License-Identifier: Apache-2.0
#include "faults/connection_proxy.h"

#include <netinet/in.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace inccl::test {
namespace {

ChaosProxy* current = nullptr;
size_t connects = 0;

}  // namespace

ConnectionProxy::ConnectionProxy() : proxy_(Endpoint::Tcp("127.0.0.1"), {}) {
  if (gettid() != getpid() || current != nullptr) std::abort();
  connects = 0;
  current = &proxy_;
}

ConnectionProxy::~ConnectionProxy() { current = nullptr; }

}  // namespace inccl::test

// The proxy's own thread connects to the servers.
extern "C" int connect(int fd, const sockaddr* address, socklen_t length) {
  using namespace inccl::test;  // NOLINT(google-build-using-namespace)
  if (current == nullptr || address->sa_family != AF_INET || gettid() != getpid()) {
    return static_cast<int>(syscall(SYS_connect, fd, address, length));
  }
  Endpoint server;
  std::memcpy(&server.storage, address, length);
  server.length = length;
  // Loopback accepts in the order of connect().
  current->SetServer(connects++, server);
  const Endpoint& proxy = current->address();
  return static_cast<int>(syscall(SYS_connect, fd, proxy.get(), proxy.length));
}
