// SPDX-License-Identifier: Apache-2.0
//
// Segmentation of a call into windows and slices, and the sizes of slots. They are a pure function
// of the call and of options on which all ranks have agreed. collectives/chunking.h has the
// arithmetic of chunks.
#ifndef INCCL_TUNING_SEGMENTATION_H_
#define INCCL_TUNING_SEGMENTATION_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "base/types.h"
#include "collectives/chunking.h"
#include "collectives/program.h"
#include "compress/codec.h"

namespace inccl {

inline constexpr uint16_t kDataDepth = 4;  // slots of a data lane
// Slices of a chunk that a step handles before the next step: no more than the slots of a lane that
// has found memory for half of them only.
inline constexpr uint32_t kSlicesPerStep = kDataDepth / 2;
// Calls that move fewer bytes find in their caches what they have written, without turns
// (RequestArgs::turns).
inline constexpr uint64_t kLeastTurns = uint64_t{4} << 20;

// How a call uses long links.
struct LongLinks {
  // A slice has as many elements as fit a slot, so that slots hold what the links do. Otherwise no
  // more than the slot holds uncompressed, which stay in the caches.
  bool full_slices = false;
  uint32_t slices_per_step = kSlicesPerStep;
};

// `under_way`: the bytes that a rank's links to other hosts hold; 0: they are short.
SlotOptions SlotsFor(uint32_t slice_bytes, uint64_t under_way = 0);
// More slices per step where all lanes have the slots for them: each rank has a host for itself.
LongLinks LongLinksFor(const SlotOptions& slots, const HostMap* hosts, uint64_t under_way);

Chunking CutCall(const CollectiveArgs& call, const Codec& codec, int channels, uint32_t slice_bytes,
                 const LongLinks& links = {});

// Decides whether the slots of a call are written with non-temporal stores. If the ranks' cores
// share a cache, readers find medium-sized slots there, which is fastest. If they do not, every
// line comes from the writer's private cache, which takes several times as long as memory. Neither
// the operating system of a virtual machine nor an instruction tells which is the case, and it can
// change, so the policy learns from the calls. The choice is a hint and changes no result.

// For one kind of call on one communicator. All ranks see the same calls, so they try the other
// kind of store in the same call.
class StorePolicy {
 public:
  static constexpr uint64_t kLeast = 32 * 1024;          // smaller: ordinary stores
  static constexpr uint64_t kLarge = uint64_t{4} << 20;  // from here on: non-temporal stores if
                                                         // nothing is known, or one way
  static constexpr uint64_t kMost = uint64_t{64} << 20;  // from here on: non-temporal stores
  // One call in this many tries the other kind of store; of a size with kFarProbe calls one in
  // kFarProbe, if that takes half as long again.
  static constexpr uint32_t kProbe = 32, kFarProbe = 256;
  static constexpr uint32_t kCold = 4;  // calls that may be the first to touch their slots

  struct Choice {
    bool non_temporal = false;
    // Set if a writing rank does not also read. The call must last until all ranks have read,
    // otherwise its time says nothing about the readers.
    bool until_read = false;
  };
  // For the next call of `bytes`. `one_way`: some ranks only write or only read.
  Choice Choose(uint64_t bytes, bool one_way);
  // Whether non-temporal stores have been faster so far; for calls that Learn does not see.
  bool NonTemporal(uint64_t bytes) const;
  // Whether Learn uses the time of such a call.
  static bool Learns(uint64_t bytes, bool one_way) {
    return bytes >= kLeast && bytes < (one_way ? kLarge : kMost);
  }
  // Takes the time of a call that has followed Choose's choice.
  void Learn(uint64_t bytes, bool one_way, const Choice& way, Time took);

 private:
  struct Size {
    uint32_t calls = 0;
    std::array<Time, 2> time = {0, 0};  // ordinary, non-temporal; 0: unknown
  };
  static size_t Place(uint64_t bytes);

  std::array<Size, 11> sizes_;  // by powers of two
};

}  // namespace inccl

#endif  // INCCL_TUNING_SEGMENTATION_H_
