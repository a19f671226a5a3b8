// SPDX-License-Identifier: Apache-2.0
//
// A schedule that is bound to lanes; the executor runs it. The communicator owns the lanes. All
// programs with equal specs share them, and a lane opens when a program first needs it.
#ifndef INCCL_COLLECTIVES_PROGRAM_H_
#define INCCL_COLLECTIVES_PROGRAM_H_

#include <memory>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "collectives/schedule.h"
#include "topology/host_map.h"
#include "transport/transport.h"

namespace inccl {

struct SlotOptions {
  uint32_t data_bytes = 0;
  uint32_t side_bytes = 0;
  uint16_t data_depth = 4;
  uint16_t side_depth = 2;
  // Of lanes between hosts: enough for what their links hold.
  uint16_t network_data_depth = 4;
  uint16_t network_side_depth = 2;
  // How many windows side information may run ahead of the data.
  uint16_t side_windows = kSideWindows;
};

// The lanes of one rank of a communicator, by key.
class LaneTable {
 public:
  // `hosts`: of the communicator's ranks; nullptr: one host. Both outlive the table.
  explicit LaneTable(Transport* transport, const HostMap* hosts = nullptr)
      : transport_(transport), hosts_(hosts) {}
  Result<SendLane*> Send(const LaneSpec& spec);
  Result<RecvLane*> Recv(const LaneSpec& spec);
  // The slots of a lane whose consumers are on one host.
  uint16_t DepthOf(const LaneSpec& spec, const SlotOptions& slots) const;
  Transport* transport() const { return transport_; }

 private:
  Transport* transport_;
  const HostMap* hosts_;
  std::unordered_map<uint64_t, std::unique_ptr<SendLane>> send_;
  std::unordered_map<uint64_t, std::unique_ptr<RecvLane>> recv_;
};

struct BoundOperand {
  Space space = Space::kInput;
  uint16_t scratch = 0;
  Format format;
  SendLane* send = nullptr;  // space == kLane, as an output
  RecvLane* recv = nullptr;  // space == kLane, as an input
  int peer = -1;             // the other end; for a lane of several consumers the first
  int receivers = 0;         // consumers of `send`
};

struct BoundStep {
  uint32_t chunk = 0;
  uint32_t first = 0;  // into BoundStrand::operands: inputs, then outputs
  uint16_t inputs = 0, outputs = 0;
};

struct BoundStrand {
  Phase phase;
  uint8_t channel = 0;
  std::vector<BoundStep> steps;
  std::vector<BoundOperand> operands;
  std::vector<Dependency> waits;
};

struct Program {
  Schedule schedule;
  SlotOptions slots;
  std::vector<BoundStrand> strands;
  uint32_t max_operands = 0;  // of one step
};

// Opens the lanes of `schedule`. Several lanes replace a lane of several consumers where the
// transport splits it (Transport::Split).
Result<std::unique_ptr<Program>> Bind(Schedule schedule, const SlotOptions& slots,
                                      LaneTable* lanes);

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_PROGRAM_H_
