// SPDX-License-Identifier: Apache-2.0
//
// A lane of the simulator. Payloads are copied out of the producer's slot when they are published
// and into one private slot per consumer; whatever is not to be read any more is overwritten with
// kPoison: a producer's slot after Publish, a consumer's after Release.
#ifndef INCCL_TRANSPORT_SIM_SIM_LANE_H_
#define INCCL_TRANSPORT_SIM_SIM_LANE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/transport.h"

namespace inccl::sim {

inline constexpr std::byte kPoison{0xD5};

// 64-byte aligned memory full of poison.
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

// Both ends' state; owned by the world. Counts are of slices since the beginning.
struct SimLane {
  explicit SimLane(const LaneSpec& lane_spec);

  struct Consumer {
    int rank = -1;
    std::vector<PoisonedBuffer> slots;  // empty until this end is opened or something is sent to it
    std::vector<SliceHeader> headers;
    std::vector<Time> stamps;  // of releases, by slot
    uint64_t visible = 0;      // slices the consumer can see
    uint64_t released = 0;     // slices it has released
    uint64_t credited = 0;     // releases the producer can see
    Time last_visible = 0;     // virtual times that keep the order
    Time last_credited = 0;
    bool opened = false;
  };
  Consumer* Find(int rank);
  void NeedSlots(Consumer* consumer);
  uint64_t LeastCredited() const;

  LaneSpec spec;
  std::vector<Consumer> consumers;    // as spec.consumers
  std::vector<PoisonedBuffer> slots;  // the producer's, empty until it opens its end
  uint64_t published = 0;
};

}  // namespace inccl::sim

#endif  // INCCL_TRANSPORT_SIM_SIM_LANE_H_
