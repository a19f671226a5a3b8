// SPDX-License-Identifier: Apache-2.0
#include "collectives/validate_causality.h"

#include <fmt/format.h>

#include <algorithm>

namespace inccl {

Causality::Causality(std::span<const Schedule> schedules)
    : schedules_(schedules), segmented_(SegmentsOf(schedules[0].collective, 2) > 1) {
  size_t strands = 0;
  for (const Schedule& schedule : schedules) {
    base_.push_back(strands);
    strands += schedule.strands.size();
    const Phase& data = schedule.phases.back();
    side_readers_.emplace_back(segmented_ ? data.chunks : 1);
    data_readers_.emplace_back(size_t{data.chunks} * data.channels);
    for (size_t i = 0; i < schedule.strands.size(); ++i) {
      const Strand& strand = schedule.strands[i];
      const bool side = schedule.phases[strand.phase].lane_class == LaneClass::kSide;
      for (size_t s = 0; s < strand.steps.size(); ++s) {
        const Step& step = strand.steps[s];
        for (const Operand& input :
             std::span(schedule.operands).subspan(step.first_operand, step.inputs)) {
          if (input.space != Space::kInput) continue;
          const size_t cell = size_t{input.chunk} * data.channels + strand.channel;
          std::vector<Reader>& readers = side ? side_readers_.back()[segmented_ ? input.chunk : 0]
                                              : data_readers_.back()[cell];
          readers.push_back({i, s});
        }
      }
    }
  }
  clocks_.assign(strands, StepClock(strands, 0));
}

void Causality::Learn(size_t strand, const StepClock& known) {
  StepClock& clock = clocks_[strand];
  for (size_t i = 0; i < clock.size(); ++i) clock[i] = std::max(clock[i], known[i]);
}

const StepClock& Causality::Tick(size_t strand) {
  ++clocks_[strand][strand];
  return clocks_[strand];
}

std::string Causality::LateReader(size_t rank, size_t strand, size_t step, int window,
                                  int chunk) const {
  const Schedule& schedule = schedules_[rank];
  const size_t cell = static_cast<size_t>(chunk) * schedule.phases.back().channels +
                      schedule.strands[strand].channel;
  std::string late = Late(data_readers_[rank][cell], rank, strand, step, window);
  if (!late.empty()) return late;
  const size_t segment = segmented_ ? static_cast<size_t>(chunk) : 0;
  return Late(side_readers_[rank][segment], rank, strand, step, window);
}

std::string Causality::Late(const std::vector<Reader>& readers, size_t rank, size_t strand,
                            size_t step, int window) const {
  const StepClock& clock = clocks_[base_[rank] + strand];
  for (const Reader& reader : readers) {
    // This step reads and writes element by element.
    if (reader.strand == strand && reader.step == step) continue;
    const size_t steps = schedules_[rank].strands[reader.strand].steps.size();
    const size_t through = static_cast<size_t>(window) * steps + reader.step + 1;
    if (clock[base_[rank] + reader.strand] < through) {
      return fmt::format("strand {} step {}", reader.strand, reader.step);
    }
  }
  return "";
}

}  // namespace inccl
