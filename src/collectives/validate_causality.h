// SPDX-License-Identifier: Apache-2.0
//
// In place, the output of a chunk overwrites its input. So no step may write it before every step
// that reads that input is known to have run, in every interleaving. Vector clocks (Fidge 1988,
// Mattern 1989) express what is known: a step knows what its strand knew, and what the writers of
// the slices that it reads knew.
#ifndef INCCL_COLLECTIVES_VALIDATE_CAUSALITY_H_
#define INCCL_COLLECTIVES_VALIDATE_CAUSALITY_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "collectives/schedule.h"

namespace inccl {

// By strand of the communicator (ranks in order, strands in order): steps known to have run.
using StepClock = std::vector<uint32_t>;

class Causality {
 public:
  // The schedules have passed CheckStructure and outlive this.
  explicit Causality(std::span<const Schedule> schedules);

  // Adds `known` to the knowledge of `strand` (of the communicator).
  void Learn(size_t strand, const StepClock& known);
  // Runs a step of `strand` and returns what the strand then knows.
  const StepClock& Tick(size_t strand);
  const StepClock& of(size_t strand) const { return clocks_[strand]; }
  // Returns a step of this rank that might read the input of a chunk only after the given step of
  // window `window` has written its output, as in "strand 0 step 3"; "" if there is none. Side
  // information of a window (if chunks are segments: of the chunk) is read before any output is
  // written.
  std::string LateReader(size_t rank, size_t strand, size_t step, int window, int chunk) const;

 private:
  struct Reader {
    size_t strand, step;  // of the rank's schedule
  };

  std::string Late(const std::vector<Reader>& readers, size_t rank, size_t strand, size_t step,
                   int window) const;

  std::span<const Schedule> schedules_;
  std::vector<size_t> base_;       // by rank: its first strand
  std::vector<StepClock> clocks_;  // by strand of the communicator
  bool segmented_;                 // chunks of both phases are segments
  // By rank and segment (without segments: 0).
  std::vector<std::vector<std::vector<Reader>>> side_readers_;
  // By rank and cell: chunk * channels + channel of the data phase.
  std::vector<std::vector<std::vector<Reader>>> data_readers_;
};

}  // namespace inccl

#endif  // INCCL_COLLECTIVES_VALIDATE_CAUSALITY_H_
