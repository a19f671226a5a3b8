// SPDX-License-Identifier: Apache-2.0
//
// Joins ranks at a rendezvous, however its address and key are known.
#ifndef INCCL_BOOTSTRAP_JOIN_H_
#define INCCL_BOOTSTRAP_JOIN_H_

#include <string>

#include "base/status.h"
#include "bootstrap/bootstrap.h"
#include "bootstrap/crypto.h"
#include "bootstrap/mesh.h"
#include "bootstrap/rendezvous_client.h"

namespace inccl::bootstrap {

// Registers at the rendezvous and connects to the other ranks.
Result<Mesh> Join(const RootTarget& target, const JoinOptions& options);

Status CheckOptions(const JoinOptions& options);

// K = HKDF(secret | content of the secret file, salt: nonce)
Result<Key> DeriveKey(Bytes secret, const std::string& secret_file, Bytes nonce);

// "rank 1/4: init: ..."
Status OfRank(const JoinOptions& options, const Status& status);

std::string Hex(Bytes bytes);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_JOIN_H_
