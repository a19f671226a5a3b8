// SPDX-License-Identifier: Apache-2.0
//
// One call: its arguments, the record of a collective that ranks compare, and the signature that
// every slice carries; and how it is cut into windows, chunks and slices.
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
#include "collectives/schedule.h"
#include "compress/codec.h"
#include "compress/residual/residual.h"
#include "inccl/ccl.h"
#include "reduce/reducer.h"

namespace inccl {

// Keeps the library's own calls apart from the user's.
// kWarmUp: runs the code of a call without its effects.
enum class Purpose : uint8_t { kUser, kSplit, kGrow, kWarmUp };
inline constexpr int kPurposes = 3;  // without kWarmUp, which other ranks never see

enum class CallKind : uint8_t { kCollective, kSend, kRecv };

// One vector of an all-reduce of several.
struct FusedVector {
  const void* send = nullptr;
  void* recv = nullptr;
  uint64_t count = 0;
  std::shared_ptr<Residual> residual;
};

struct Call : CollectiveArgs {
  CallKind kind = CallKind::kCollective;
  Purpose purpose = Purpose::kUser;
  int peer = 0;                     // send and receive only, which use type, count and one buffer
  const void* scalar_at = nullptr;  // not null: the scalar is read here when the call runs
  const void* send = nullptr;
  void* recv = nullptr;
  std::shared_ptr<const Codec> codec;  // null: uncompressed
  int average_of = 0;                  // uncompressed kAvg: divides by this; 0: by nranks
  bool compressed_call = false;        // made by a ccl_*_compressed function, also if it runs
                                       // uncompressed
  std::shared_ptr<Residual> residual;  // null: no error feedback
  std::shared_ptr<ReducerState>
      reducer;  // not null: an all-reduce that runs as the reducer's rounds
  // Not null: an all-reduce of `count` elements in all, which are in these buffers.
  std::shared_ptr<const std::vector<FusedVector>> vectors;
  ccl_compression_stats_t* stats = nullptr;
  bool on_device = false;  // send and recv are in device memory
  int device = -1;         // the device that holds both; -1: not the same device
};

// What a codec sees of a call.
inline CollectiveArgs ArgsOf(const Call& call) {
  CollectiveArgs args = call;
  if (call.average_of != 0) args.nranks = call.average_of;
  return args;
}

// Elements of a rank's send and recv; 0: the rank has no such buffer.
struct Extent {
  uint64_t send, recv;
};
Extent ExtentOf(Collective collective, uint64_t count, int nranks, bool is_root);
Extent ExtentOf(const Call& call, int rank, int nranks);

// The memory of a call whose output overwrites its input; empty if there is none.
std::span<std::byte> InPlace(const Call& call, int rank);

// The arguments that must be equal on all ranks (all but scalar, nranks and rank), and the position
// in the order of calls.
struct CallRecord : CollectiveArgs {
  uint64_t sequence = 0;
  Purpose purpose = Purpose::kUser;
  // Or, with a '|' inside, the reducer and the shape of its tensor. Of several vectors: and their
  // number and a hash of their lengths.
  std::string codec;

  void Set(uint64_t sequence_number, const Call& call);  // reuses the memory of `codec`
  uint64_t Signature() const;
  bool SameCall(const CallRecord& other) const;
  // "allreduce(count=1024, float32, sum, codec=none)"
  std::string ToString() const;

  std::vector<std::byte> Encode() const;
  static Result<CallRecord> Decode(std::span<const std::byte> bytes);
};

// The only place with the arithmetic that divides a call into windows, chunks, channel shares and
// slices. All of it is by element index from the start of a vector, in whole superblocks of 256, so
// no result depends on slice size.

struct ChunkingOptions : CollectiveArgs {
  uint64_t window_elements = 0;      // multiple of kSuperblock
  uint32_t slice_elements = 0;       // of data lanes, multiple of kSuperblock
  uint32_t side_slice_elements = 0;  // of side lanes
  uint32_t group =
      1;  // slices of a chunk that a step handles before the next step; at most the lanes' depth
};

class Chunking {
 public:
  Chunking() = default;
  explicit Chunking(const ChunkingOptions& options);

  uint64_t windows() const { return windows_; }
  const ChunkingOptions& options() const { return options_; }

  // The channel's share of a chunk of a window; count 0 if it is empty.
  Range Part(uint64_t window, const Phase& phase, uint32_t chunk, uint32_t channel) const;
  uint32_t SliceElements(const Phase& phase) const {
    return phase.lane_class == LaneClass::kSide ? options_.side_slice_elements
                                                : options_.slice_elements;
  }
  uint32_t Group(const Phase& phase) const {
    return phase.lane_class == LaneClass::kSide ? 1 : options_.group;
  }
  // The number of slices of a part.
  uint32_t Slices(const Range& part, const Phase& phase) const {
    const uint32_t slice = SliceElements(phase);
    return (part.count + slice - 1) / slice;
  }
  // Slice `index` of a part.
  Range Slice(const Range& part, const Phase& phase, uint32_t index) const;
  // The position of a slice in the caller's buffers, in elements.
  uint64_t InputOffset(const Range& slice) const {
    return InputSegment(slice.segment) * options_.count + slice.first;
  }
  uint64_t OutputOffset(const Range& slice) const {
    return OutputSegment(slice.segment) * options_.count + slice.first;
  }

 private:
  // The index of a segment's vector in this rank's input or output. A rank that sends to several
  // ranks (or receives from several) has one vector for each, other ranks have one.
  uint64_t InputSegment(uint64_t segment) const;
  uint64_t OutputSegment(uint64_t segment) const;

  ChunkingOptions options_;
  uint64_t windows_ = 0;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_CALL_H_
