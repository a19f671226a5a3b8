// SPDX-License-Identifier: Apache-2.0
//
// Unique ids: 128 bytes of an unknown origin. What is accepted encodes to what it was decoded from.
#include <cstring>

#include "bootstrap/unique_id.h"
#include "fuzz/fuzz.h"

namespace inccl::fuzz {

void Run(Data data) {
  std::vector<std::byte> bytes(kUniqueIdBytes);
  std::copy_n(data.begin(), std::min(data.size(), bytes.size()), bytes.begin());
  const Result<UniqueId> id = UniqueId::Decode(bytes.data());
  if (!id.ok()) {
    Require(!id.status().message().empty(), "a refusal says why");
    return;
  }
  Require(id->addresses.size() <= UniqueId::kMaxAddresses, "few addresses");
  std::vector<std::byte> again(kUniqueIdBytes);
  id->Encode(again.data());
  Require(again == bytes, "what was accepted encodes to itself");
}

std::vector<std::vector<std::byte>> Examples() {
  std::vector<std::vector<std::byte>> examples;
  for (size_t addresses = 0; addresses <= UniqueId::kMaxAddresses; ++addresses) {
    UniqueId id;
    for (size_t i = 0; i < addresses; ++i) {
      UniqueIdAddress address;
      address.family = i == 0 ? 4 : 6;
      address.address[0] = std::byte{127};
      address.port = 4711;
      id.addresses.push_back(address);
    }
    id.needs_secret_file = addresses == 1;
    id.secret = bootstrap::Key(bootstrap::Mac{});
    examples.emplace_back(kUniqueIdBytes);
    id.Encode(examples.back().data());
  }
  return examples;
}

}  // namespace inccl::fuzz
