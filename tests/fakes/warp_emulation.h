// SPDX-License-Identifier: Apache-2.0
//
// A warp of 32 lanes on the CPU, for code that is written for a GPU's (compress/cuda): each lane
// runs the same function on a stack of its own, and all of them meet at every shuffle. A lane that
// leaves early, or comes to another shuffle than its neighbours, ends the process with a message:
// on a GPU it would hang or read rubbish.
#ifndef INCCL_TESTS_FAKES_WARP_EMULATION_H_
#define INCCL_TESTS_FAKES_WARP_EMULATION_H_

#include <cstdint>
#include <functional>
#include <memory>

namespace inccl::test {

class WarpEmulator;

// What a lane sees of its warp.
class EmulatedWarp {
 public:
  EmulatedWarp(WarpEmulator* warp, uint32_t lane) : warp_(warp), lane_(lane) {}
  uint32_t lane() const { return lane_; }
  uint32_t Get(uint32_t value, uint32_t lane) const;
  bool Any(bool condition) const;

 private:
  WarpEmulator* warp_;
  uint32_t lane_;
};

// Runs one warp after the other.
class WarpEmulator {
 public:
  WarpEmulator();
  ~WarpEmulator();
  WarpEmulator(const WarpEmulator&) = delete;
  WarpEmulator& operator=(const WarpEmulator&) = delete;

  // `body` in every lane; it must not throw.
  void Run(const std::function<void(const EmulatedWarp&)>& body);
  // Shuffles and votes of all warps so far, each counted once.
  uint64_t meetings() const;

 private:
  friend class EmulatedWarp;
  struct Lanes;
  std::unique_ptr<Lanes> lanes_;
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_FAKES_WARP_EMULATION_H_
