// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_TRANSPORT_UCX_UCX_FACTORY_H_
#define INCCL_TRANSPORT_UCX_UCX_FACTORY_H_

#include <memory>

#include "base/status.h"
#include "transport/transport_factory.h"
#include "transport/ucx/ucx_transport.h"

namespace inccl {

// Errors are those of UcxTransport::Create. A rank attaches to live peers: none of them leaves
// before all have attached.
Result<std::unique_ptr<TransportFactory>> MakeUcxFactory(int rank, int nranks,
                                                         const UcxOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_UCX_UCX_FACTORY_H_
