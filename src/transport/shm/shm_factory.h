// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_TRANSPORT_SHM_SHM_FACTORY_H_
#define INCCL_TRANSPORT_SHM_SHM_FACTORY_H_

#include <memory>

#include "base/status.h"
#include "transport/shm/shm_transport.h"
#include "transport/transport_factory.h"

namespace inccl {

// Errors are those of ShmTransport::Create.
Result<std::unique_ptr<TransportFactory>> MakeShmFactory(int rank, int nranks,
                                                         const ShmOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_SHM_SHM_FACTORY_H_
