// SPDX-License-Identifier: Apache-2.0
//
// What ranks and the rendezvous tell each other in frames after the handshake.
#ifndef INCCL_BOOTSTRAP_MESSAGES_H_
#define INCCL_BOOTSTRAP_MESSAGES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bootstrap/crypto.h"
#include "bootstrap/mesh.h"

namespace inccl::bootstrap {

// Rank to root: kRegister at once, kDone when its mesh is complete, kFailed if that cannot be.
// Root to rank: kTable when all ranks are there, kGo when all are done; kFailed instead of either.
enum class MessageKind : uint8_t {
  kRegister = 1,
  kTable = 2,
  kDone = 3,
  kGo = 4,
  kFailed = 5,
};

inline constexpr size_t kMaxHostName = 255;
inline constexpr size_t kMaxAgreement = 32 * 1024;
inline constexpr size_t kMaxErrorText = 64 * 1024;

// One rank as the others come to know it.
struct RankRecord {
  uint32_t rank = 0;
  uint32_t pid = 0;
  uint32_t uid = 0;
  uint64_t host_id = 0;
  std::string host;             // decoded: fit for messages (Escaped)
  std::string mesh_name;        // of its unix socket
  std::vector<std::byte> blob;  // at most kMaxBlob bytes
};

struct Registration {
  RankRecord record;
  uint32_t nranks = 0;
  uint32_t timeout_ms = 0;  // for people
  Time remaining = 0;       // of its deadline, as it was sent
  std::string agreement;

  std::vector<std::byte> Encode() const;
  // kInternalError saying which field is wrong.
  static Result<Registration> Decode(Bytes bytes);
};

struct RankTable {
  Nonce session{};  // fresh, so that the mesh has keys of its own
  std::vector<RankRecord> ranks;

  std::vector<std::byte> Encode() const;
  static Result<RankTable> Decode(Bytes bytes, uint32_t nranks);
};

std::vector<std::byte> EncodeError(const Status& status);
// The status that was sent, its text escaped, or kInternalError if it makes no sense.
Status DecodeError(Bytes bytes);

}  // namespace inccl::bootstrap

#endif  // INCCL_BOOTSTRAP_MESSAGES_H_
