// SPDX-License-Identifier: Apache-2.0
//
// How tests break schedules.
#ifndef INCCL_TESTS_COLLECTIVES_BROKEN_SCHEDULES_H_
#define INCCL_TESTS_COLLECTIVES_BROKEN_SCHEDULES_H_

#include <string>
#include <vector>

#include "collectives/schedule_cases.h"
#include "verify/validate.h"

namespace inccl::test {

using Schedules = std::vector<Schedule>;

inline Schedules Make(const Case& which, int nranks, bool side = false) {
  ScheduleRequest request = RequestOf(which, nranks);
  request.side_phases = side ? 1 : 0;
  return MakeAll(request);
}

// What Validate says.
inline std::string Refusal(const Schedules& schedules) {
  const Result<Proof> proof = Validate(schedules);
  if (proof.ok()) return "accepted";
  EXPECT_EQ(proof.status().code(), Code::kInternalError);
  return proof.status().message();
}

inline void ExpectRefused(const Schedules& schedules, const std::vector<std::string>& words) {
  const std::string text = Refusal(schedules);
  for (const std::string& word : words) {
    EXPECT_NE(text.find(word), std::string::npos) << "no \"" << word << "\" in: " << text;
  }
}

inline Step& StepAt(Schedule* schedule, size_t strand, size_t step) {
  return schedule->strands[strand].steps[step];
}

// Operand k of a step: inputs, then outputs.
inline Operand& OperandAt(Schedule* schedule, size_t strand, size_t step, size_t k) {
  return schedule->operands[StepAt(schedule, strand, step).first_operand + k];
}

// Gives a step other operands.
inline void SetStep(Schedule* schedule, size_t strand, size_t step,
                    const std::vector<Operand>& inputs, const std::vector<Operand>& outputs) {
  Step& changed = StepAt(schedule, strand, step);
  changed.first_operand = static_cast<uint32_t>(schedule->operands.size());
  changed.inputs = static_cast<uint16_t>(inputs.size());
  changed.outputs = static_cast<uint16_t>(outputs.size());
  schedule->operands.insert(schedule->operands.end(), inputs.begin(), inputs.end());
  schedule->operands.insert(schedule->operands.end(), outputs.begin(), outputs.end());
}

struct Operands {
  std::vector<Operand> inputs, outputs;
};

inline Operands OperandsOf(const Schedule& schedule, size_t strand, size_t step) {
  const Step& at = schedule.strands[strand].steps[step];
  const auto first = schedule.operands.begin() + at.first_operand;
  return {{first, first + at.inputs}, {first + at.inputs, first + at.inputs + at.outputs}};
}

}  // namespace inccl::test

#endif  // INCCL_TESTS_COLLECTIVES_BROKEN_SCHEDULES_H_
