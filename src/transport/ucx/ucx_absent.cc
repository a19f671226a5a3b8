// SPDX-License-Identifier: Apache-2.0
//
// Replaces the transport in a build without UCX.
#include "transport/ucx/ucx_transport.h"

namespace inccl {

bool UcxTransport::Built() { return false; }

Result<std::unique_ptr<UcxTransport>> UcxTransport::Create(int /*rank*/, int /*nranks*/,
                                                           const UcxOptions& /*options*/) {
  return InvalidUsage("this library was built without UCX (CMake option INCCL_UCX)");
}

}  // namespace inccl
