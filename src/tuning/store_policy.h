// SPDX-License-Identifier: Apache-2.0
//
// Whether the slots of a call are written with non-temporal stores. Where the ranks' cores share a
// cache, readers find medium-sized slots there, which is fastest; where they do not, every line
// comes out of the writer's private cache, which takes several times as long as memory does.
// Neither the operating system of a virtual machine nor an instruction says which it is, and it can
// change; so it is learnt from the calls. The choice is a hint and changes no result.
#ifndef INCCL_TUNING_STORE_POLICY_H_
#define INCCL_TUNING_STORE_POLICY_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"

namespace inccl {

// Of one kind of call on one communicator. All ranks see the same calls, so they try the other way
// in the same one.
class StorePolicy {
 public:
  static constexpr uint64_t kLeast = 32 * 1024;         // smaller: through the caches
  static constexpr uint64_t kMost = uint64_t{4} << 20;  // from here on: non-temporal
  static constexpr uint32_t kProbe = 32;                // one call in so many tries the other way
  static constexpr uint32_t kCold = 4;  // calls that may be the first to touch their slots

  struct Choice {
    bool non_temporal = false;
    // Where a rank that writes does not read: the call is to last until all have read, else its
    // time says nothing.
    bool until_read = false;
  };
  // For the next call of so many bytes. `one_way`: some ranks write only, or read only.
  Choice Choose(uint64_t bytes, bool one_way);
  // The way that has been faster so far, for calls that are not to be learnt from.
  bool NonTemporal(uint64_t bytes) const;
  // Whether Learn would learn anything.
  static bool Learns(uint64_t bytes) { return bytes >= kLeast && bytes < kMost; }
  // How long it took; only after Choose said what to do, and if it was done.
  void Learn(uint64_t bytes, bool one_way, const Choice& way, Time took);

 private:
  struct Size {
    uint32_t calls = 0;
    std::array<Time, 2> time = {0, 0};  // through the caches, non-temporal; 0: not known
  };
  static size_t Place(uint64_t bytes);

  std::array<Size, 7> sizes_;  // by powers of two
};

}  // namespace inccl

#endif  // INCCL_TUNING_STORE_POLICY_H_
