// SPDX-License-Identifier: Apache-2.0
//
// A lane of the simulator. Publish copies the payload from the producer's slot into a private slot
// per consumer. Memory that must not be read any more is overwritten with kPoison: the producer's
// slot after Publish, a consumer's slot after Release.
#ifndef INCCL_TRANSPORT_SIM_SIM_LANE_H_
#define INCCL_TRANSPORT_SIM_SIM_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace inccl::sim {

inline constexpr std::byte kPoison{0xD5};

// 64-byte aligned memory, filled with kPoison.
class PoisonedBuffer {
 public:
  explicit PoisonedBuffer(size_t bytes);
  std::byte* data() const { return data_; }
  void Poison();

 private:
  size_t bytes_;
  std::unique_ptr<std::byte[]> storage_;
  std::byte* data_;
};

// The state of both ends, owned by the world. Counts are totals since the beginning.
struct SimLane {
  explicit SimLane(const LaneSpec& lane_spec);

  struct Consumer {
    int rank = -1;
    std::vector<PoisonedBuffer> slots;  // empty until this end opens or receives a slice
    std::vector<SliceHeader> headers;
    // Of slices and of releases, by slot.
    std::vector<Time> slice_stamps, credit_stamps;
    uint64_t visible = 0;   // slices the consumer can see
    uint64_t released = 0;  // slices it has released
    uint64_t credited = 0;  // releases the producer can see
    Time last_visible = 0;  // last scheduled times, which keep the order
    Time last_credited = 0;
    bool opened = false;
    bool cut = false;  // a slice was dropped, so no later one becomes visible
  };
  Consumer* Find(int rank);
  void NeedSlots(Consumer* consumer);
  uint64_t LeastCredited() const;

  LaneSpec spec;
  std::vector<Consumer> consumers;    // in the order of spec.consumers
  std::vector<PoisonedBuffer> slots;  // the producer's; empty until it opens its end
  uint64_t published = 0;
};

}  // namespace inccl::sim

#endif  // INCCL_TRANSPORT_SIM_SIM_LANE_H_
