// SPDX-License-Identifier: Apache-2.0
//
// Every algorithm, damaged at every step, operand and lane: Validate refuses it.
#include <functional>
#include <string>

#include "collectives/broken_schedules.h"

namespace inccl {
namespace {

using namespace test;  // NOLINT(google-build-using-namespace)

// Calls visit for every step of every rank.
void ForEachStep(const Schedules& schedules,
                 const std::function<void(size_t rank, size_t strand, size_t step)>& visit) {
  for (size_t r = 0; r < schedules.size(); ++r) {
    for (size_t s = 0; s < schedules[r].strands.size(); ++s) {
      for (size_t t = 0; t < schedules[r].strands[s].steps.size(); ++t) visit(r, s, t);
    }
  }
}

// Every algorithm, damaged everywhere in one way.
class EveryDamage : public testing::TestWithParam<Case> {
 protected:
  void ForEach(const std::function<void(Schedule*, size_t strand, size_t step)>& damage) {
    for (int n : {2, 3, 5, 6}) {
      for (bool side : {false, true}) {
        if (side && GetParam().collective != Collective::kAllReduce) continue;
        const Schedules whole = Make(GetParam(), n, side);
        ForEachStep(whole, [&](size_t rank, size_t strand, size_t step) {
          Schedules broken = whole;
          damage(&broken[rank], strand, step);
          const std::string text = Refusal(broken);
          EXPECT_NE(text.find("rank "), std::string::npos)
              << n << " ranks: rank " << rank << " strand " << strand << " step " << step << ": "
              << text;
        });
      }
    }
  }
};

TEST_P(EveryDamage, AStepIsMissing) {
  ForEach([](Schedule* schedule, size_t strand, size_t step) {
    auto& steps = schedule->strands[strand].steps;
    steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(step));
  });
}

TEST_P(EveryDamage, AStepIsThereTwice) {
  ForEach([](Schedule* schedule, size_t strand, size_t step) {
    auto& steps = schedule->strands[strand].steps;
    steps.insert(steps.begin() + static_cast<std::ptrdiff_t>(step), Step(steps[step]));
  });
}

TEST_P(EveryDamage, AStepWorksOnAnotherChunk) {
  ForEach([](Schedule* schedule, size_t strand, size_t step) {
    Operands operands = OperandsOf(*schedule, strand, step);
    const int chunks = schedule->phases[schedule->strands[strand].phase].chunks;
    for (auto* list : {&operands.inputs, &operands.outputs}) {
      for (Operand& operand : *list) {
        operand.chunk = static_cast<uint16_t>(chunks == 1 ? 1 : (operand.chunk + 1) % chunks);
      }
    }
    SetStep(schedule, strand, step, operands.inputs, operands.outputs);
  });
}

TEST_P(EveryDamage, AnInputIsMissing) {
  for (bool last : {false, true}) {
    ForEach([&](Schedule* schedule, size_t strand, size_t step) {
      Operands operands = OperandsOf(*schedule, strand, step);
      operands.inputs.erase(last ? operands.inputs.end() - 1 : operands.inputs.begin());
      SetStep(schedule, strand, step, operands.inputs, operands.outputs);
    });
  }
}

TEST_P(EveryDamage, AnOutputIsMissing) {
  for (bool last : {false, true}) {
    ForEach([&](Schedule* schedule, size_t strand, size_t step) {
      Operands operands = OperandsOf(*schedule, strand, step);
      operands.outputs.erase(last ? operands.outputs.end() - 1 : operands.outputs.begin());
      SetStep(schedule, strand, step, operands.inputs, operands.outputs);
    });
  }
}

TEST_P(EveryDamage, AnInputIsThereTwice) {
  ForEach([](Schedule* schedule, size_t strand, size_t step) {
    Operands operands = OperandsOf(*schedule, strand, step);
    operands.inputs.push_back(Operand(operands.inputs[0]));
    SetStep(schedule, strand, step, operands.inputs, operands.outputs);
  });
}

TEST_P(EveryDamage, ContributionsAreMiscounted) {
  for (int by : {-1, 1}) {
    int sums = 0;
    for (int n : {2, 3, 5, 6}) {
      const Schedules whole = Make(GetParam(), n);
      for (size_t rank = 0; rank < whole.size(); ++rank) {
        for (size_t i = 0; i < whole[rank].operands.size(); ++i) {
          if (whole[rank].operands[i].format.form != Form::kSum) continue;
          ++sums;
          Schedules broken = whole;
          auto& count = broken[rank].operands[i].format.contributions;
          count = static_cast<uint16_t>(count + by);
          ExpectRefused(broken, {"rank ", "strand ", "step "});
        }
      }
    }
    EXPECT_EQ(sums > 0, Reduces(GetParam().collective));
  }
}

TEST_P(EveryDamage, ALaneGoesElsewhere) {
  for (int n : {3, 5, 6}) {
    const Schedules whole = Make(GetParam(), n);
    for (size_t rank = 0; rank < whole.size(); ++rank) {
      for (size_t i = 0; i < whole[rank].lanes.size(); ++i) {
        Schedules broken = whole;
        ScheduleLane& lane = broken[rank].lanes[i];
        if (lane.consumers.size() > 1) {
          lane.consumers.pop_back();
        } else {
          lane.consumers[0] = (lane.consumers[0] + 1) % n;
        }
        ExpectRefused(broken, {"rank ", "lane "});
        broken = whole;
        broken[rank].lanes[i].channel ^= 1;
        ExpectRefused(broken, {"rank ", "lane "});
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Schedules, EveryDamage, testing::ValuesIn(test::AllCases()),
                         test::CaseName);

}  // namespace
}  // namespace inccl
