// SPDX-License-Identifier: Apache-2.0
//
// Puts a chaos proxy into the TCP connections that the main thread of this process makes: it stands
// between connect() and the C library. Connections count from 0 in the order of connect(). Linked
// into the programs that use it.
#ifndef INCCL_TESTS_FAULTS_CONNECTION_PROXY_H_
#define INCCL_TESTS_FAULTS_CONNECTION_PROXY_H_

#include "world/chaos_proxy.h"

namespace inccl::test {

// At most one at a time, made by the main thread.
class ConnectionProxy {
 public:
  ConnectionProxy();
  ~ConnectionProxy();
  ConnectionProxy(const ConnectionProxy&) = delete;
  ConnectionProxy& operator=(const ConnectionProxy&) = delete;

  ChaosProxy* operator->() { return &proxy_; }

 private:
  ChaosProxy proxy_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAULTS_CONNECTION_PROXY_H_
