// SPDX-License-Identifier: Apache-2.0
#ifndef INCCL_TRANSPORT_VERBS_VERBS_FACTORY_H_
#define INCCL_TRANSPORT_VERBS_VERBS_FACTORY_H_

#include <memory>

#include "base/status.h"
#include "transport/transport_factory.h"
#include "transport/verbs/verbs_transport.h"

namespace inccl {

// Errors are those of VerbsTransport::Create.
Result<std::unique_ptr<TransportFactory>> MakeVerbsFactory(int rank, int nranks,
                                                           const VerbsOptions& options);

}  // namespace inccl

#endif  // INCCL_TRANSPORT_VERBS_VERBS_FACTORY_H_
