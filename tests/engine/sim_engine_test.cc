// SPDX-License-Identifier: Apache-2.0
#include "fakes/sim_engine.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "support/seed.h"

namespace inccl {
namespace {

using test::SimEngine;

// outputs[0] = sum of the inputs, byte by byte.
class ByteSum final : public CodecState {
 public:
  Status Begin(const CollectiveArgs&) override { return Status::Ok(); }
  Status Combine(const Range&, std::span<const Term> inputs, std::span<Term> outputs) override {
    if (fail) return InternalError("as told");
    for (uint32_t i = 0; i < inputs[0].bytes; ++i) {
      unsigned sum = 0;
      for (const Term& input : inputs) sum += static_cast<unsigned>(input.data[i]);
      outputs[0].data[i] = static_cast<std::byte>(sum);
    }
    outputs[0].bytes = inputs[0].bytes;
    return Status::Ok();
  }
  void Finish(CodecStats*) override {}
  bool fail = false;
};

struct Operands {
  Operands() {
    a.fill(std::byte{3});
    b.fill(std::byte{4});
    out.fill(std::byte{9});
    inputs = {Term{{}, a.data(), 5}, Term{{}, b.data(), 5}};
    outputs = {Term{{}, out.data(), 8}};
  }
  std::array<std::byte, 8> a, b, out;
  std::vector<Term> inputs, outputs;
};

TEST(SimEngineTest, ResultsComeLaterAndAreNotThereBefore) {
  SimWorld world(1, test::TestSeed());
  SimEngine engine(&world, 0, 1, /*immediate=*/0);
  ByteSum state;
  Operands operands;
  const CompletionId completion =
      *engine.Combine(&state, Range{}, operands.inputs, operands.outputs);
  ASSERT_NE(completion, 0u);
  EXPECT_FALSE(*engine.Done(completion));
  for (const std::byte byte : operands.out) EXPECT_EQ(byte, sim::kPoison);
  ASSERT_TRUE(world.Step());
  EXPECT_EQ(operands.outputs[0].bytes, 5u);
  EXPECT_EQ(operands.out[4], std::byte{7});
  EXPECT_EQ(engine.pending(), 1u);
  EXPECT_TRUE(*engine.Done(completion));
  EXPECT_EQ(engine.pending(), 0u);
  EXPECT_FALSE(engine.Done(completion).ok());
}

TEST(SimEngineTest, ImmediateResultsNeedNoCompletion) {
  SimWorld world(1, test::TestSeed());
  SimEngine engine(&world, 0, 1, /*immediate=*/1);
  ByteSum state;
  Operands operands;
  EXPECT_EQ(*engine.Combine(&state, Range{}, operands.inputs, operands.outputs), 0u);
  EXPECT_EQ(operands.out[0], std::byte{7});
  EXPECT_TRUE(*engine.Done(0));
  EXPECT_FALSE(world.Step());
}

TEST(SimEngineTest, InPlaceOutputsKeepTheirInput) {
  SimWorld world(1, test::TestSeed());
  SimEngine engine(&world, 0, 1, /*immediate=*/0);
  ByteSum state;
  Operands operands;
  operands.outputs[0].data = operands.a.data();
  const CompletionId completion =
      *engine.Combine(&state, Range{}, operands.inputs, operands.outputs);
  while (world.Step()) continue;
  EXPECT_TRUE(*engine.Done(completion));
  EXPECT_EQ(operands.a[0], std::byte{7});
}

TEST(SimEngineTest, ErrorsComeWithDoneAndTheDeadNeverFinish) {
  SimWorld world(2, test::TestSeed());
  SimEngine engine(&world, 0, 1, /*immediate=*/0), dead(&world, 1, 1, /*immediate=*/0);
  ByteSum state;
  state.fail = true;
  Operands first, second;
  const CompletionId failing = *engine.Combine(&state, Range{}, first.inputs, first.outputs);
  const CompletionId lost = *dead.Combine(&state, Range{}, second.inputs, second.outputs);
  world.Crash(1);
  while (world.Step()) continue;
  EXPECT_EQ(engine.Done(failing).status().message(), "as told");
  EXPECT_FALSE(*dead.Done(lost));
}

}  // namespace
}  // namespace inccl
