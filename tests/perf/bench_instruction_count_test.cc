// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "perf/support/instruction_count.h"

namespace inccl::perf {
namespace {

#if defined(__x86_64__)

TEST(InstructionCount, CountsEveryInstruction) {
  const Result<uint64_t> few = CountInstructions([] { asm volatile(".rept 100\n\tnop\n\t.endr"); });
  ASSERT_TRUE(few.ok()) << few.status().message();
  const Result<uint64_t> many =
      CountInstructions([] { asm volatile(".rept 1100\n\tnop\n\t.endr"); });
  ASSERT_TRUE(many.ok()) << many.status().message();
  EXPECT_EQ(*many - *few, 1000u);
  EXPECT_GT(*few, 100u);
}

TEST(InstructionCount, CodeThatDoesNotReturnIsAnError) {
  const Result<uint64_t> ended = CountInstructions([] { std::_Exit(7); });
  ASSERT_FALSE(ended.ok());
  EXPECT_EQ(ended.status().code(), Code::kInternalError);
  const Result<uint64_t> died = CountInstructions([] { asm volatile("ud2"); });
  ASSERT_FALSE(died.ok());
  EXPECT_NE(died.status().message().find("signal 4"), std::string::npos) << died.status().message();
}

#endif  // __x86_64__

}  // namespace
}  // namespace inccl::perf
