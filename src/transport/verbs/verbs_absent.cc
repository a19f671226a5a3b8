// SPDX-License-Identifier: Apache-2.0
//
// Replaces the transport in a build without libibverbs.
#include "transport/verbs/verbs_transport.h"

namespace inccl {
namespace {

constexpr const char* kAbsent =
    "this library was built without RDMA (CMake option INCCL_VERBS, libibverbs-dev)";

}  // namespace

bool VerbsTransport::Built() { return false; }

Result<std::unique_ptr<VerbsTransport>> VerbsTransport::Create(int /*rank*/, int /*nranks*/,
                                                               const VerbsOptions& /*options*/) {
  return InvalidUsage(kAbsent);
}

Result<std::vector<VerbsPort>> ListVerbsPorts(const VerbsPortOptions& /*options*/) {
  return InvalidUsage(kAbsent);
}

}  // namespace inccl
