// SPDX-License-Identifier: Apache-2.0
//
// One call: its arguments; and of a collective its record that ranks compare, and the signature
// that every slice carries.
#ifndef INCCL_COLLECTIVES_CALL_H_
#define INCCL_COLLECTIVES_CALL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/types.h"
#include "compress/codec.h"
#include "inccl/ccl.h"

namespace inccl {

// Calls that the library makes on its own behalf are never taken for a user's.
enum class Purpose : uint8_t { kUser, kSplit };
inline constexpr int kPurposes = 2;

enum class CallKind : uint8_t { kCollective, kSend, kRecv };

struct Call {
  CallKind kind = CallKind::kCollective;
  Purpose purpose = Purpose::kUser;
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int peer = 0;                     // of a send or receive, which takes type, count and one buffer
  Scalar scalar{};                  // kPreMulSum: this rank's factor; the ranks' may differ
  const void* scalar_at = nullptr;  // where it is read when the call runs, unless null
  uint64_t count = 0;               // elements of one vector (SegmentsOf)
  const void* send = nullptr;
  void* recv = nullptr;
  std::shared_ptr<const Codec> codec;  // null: uncompressed
  bool compressed_call = false;  // one of the ccl_*_compressed calls, whatever codec it ended with
  uint64_t seed = 0, step = 0;
  ccl_compression_stats_t* stats = nullptr;
  bool on_device = false;  // send and recv are memory of a device:
  int device = -1;         // this one, or (-1) not both of the same
};

// What a rank's send and recv hold, in elements; 0: there is no such buffer.
struct Extent {
  uint64_t send, recv;
};
Extent ExtentOf(Collective collective, uint64_t count, int nranks, bool is_root);
Extent ExtentOf(const Call& call, int rank, int nranks);

// The memory of a call whose output lies where its input was; empty: there is none.
std::span<std::byte> InPlace(const Call& call, int rank);

// What must be equal on all ranks, and the place in the order of calls.
struct CallRecord {
  uint64_t sequence = 0;
  Purpose purpose = Purpose::kUser;
  Collective collective = Collective::kAllReduce;
  DataType type = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int32_t root = 0;
  uint64_t count = 0, seed = 0, step = 0;
  std::string codec;

  void Set(uint64_t sequence_number, const Call& call);  // reuses the memory of `codec`
  uint64_t Signature() const;
  bool SameCall(const CallRecord& other) const;
  // "allreduce(count=1024, float32, sum, codec=none)"
  std::string ToString() const;

  std::vector<std::byte> Encode() const;
  static Result<CallRecord> Decode(std::span<const std::byte> bytes);
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_CALL_H_
