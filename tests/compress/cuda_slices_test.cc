// SPDX-License-Identifier: Apache-2.0
//
// The bodies of the CUDA kernels on an emulated warp, against the scalar reference, byte for byte:
// what a GPU executes, but for its own arithmetic instructions and memory.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/rng.h"
#include "compress/cuda/reduce.h"
#include "compress/cuda/warp_fields.h"
#include "compress/float_types.h"
#include "compress/hbi/format.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/simd.h"
#include "fakes/warp_emulation.h"
#include "support/kernel_reduce.h"
#include "support/kernel_slices.h"
#include "support/kernel_target.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

TEST(CudaWarp, LanesSeeWhatTheOthersGive) {
  WarpEmulator warp;
  uint32_t found[32], any[32];
  warp.Run([&](const EmulatedWarp& lane) {
    uint32_t value = lane.lane() + 1;
    for (uint32_t apart = 1; apart < 32; apart *= 2) value += lane.Get(value, lane.lane() ^ apart);
    found[lane.lane()] = value + lane.Get(lane.lane(), lane.lane() + 33);
    any[lane.lane()] = (lane.Any(lane.lane() == 17) ? 2 : 0) + (lane.Any(false) ? 1 : 0);
  });
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(found[lane], 32 * 33 / 2 + (lane + 1) % 32);
    EXPECT_EQ(any[lane], 2u);
  }
  EXPECT_EQ(warp.meetings(), 8u);
}

TEST(CudaWarpDeathTest, LanesThatPartAreFound) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const auto early = [] {
    WarpEmulator().Run([](const EmulatedWarp& warp) {
      if (warp.lane() != 5) warp.Get(0, 0);
    });
  };
  const auto late = [] {
    WarpEmulator().Run([](const EmulatedWarp& warp) {
      warp.Get(0, 0);
      if (warp.lane() == 31) warp.Get(0, 0);
    });
  };
  const auto first = [] {
    WarpEmulator().Run([](const EmulatedWarp& warp) {
      if (warp.lane() == 0) warp.Get(0, 0);
    });
  };
  EXPECT_DEATH(early(), "emulated warp: lane");
  EXPECT_DEATH(late(), "emulated warp: lane");
  EXPECT_DEATH(first(), "emulated warp: lane");
}

TEST(CudaFields, PackAndUnpackEveryWidth) {
  Rng rng(TestSeed());
  WarpEmulator warp;
  for (uint32_t width = 4; width <= hbi::kMostHalfBits; ++width) {
    const uint32_t base = hbi::PairBase(width);
    if (width % 2 != 0 && base == 0) continue;
    SCOPED_TRACE(width);
    for (int round = 0; round < 12; ++round) {
      uint16_t tile[kSuperblock];
      const uint32_t most = base != 0 ? base - 1 : (1u << width / 2) - 1;
      for (uint16_t& field : tile) {
        const uint64_t kind = round == 0 ? 0 : rng.Below(3);
        field = static_cast<uint16_t>(kind == 0 ? most : kind == 1 ? 0 : rng.Below(most + 1));
      }
      if (round == 1) std::fill(std::begin(tile), std::end(tile), uint16_t{0});
      if (round < 4) tile[rng.Below(kSuperblock)] = static_cast<uint16_t>(most);
      const uint32_t bytes = hbi::PackedBytes(width);
      std::vector<uint8_t> expected(bytes + hbi::kWriteSlack);
      hbi::ScalarKernels().pack(tile, width, expected.data(), 1);
      EmulatedTarget target;
      const TargetBytes packed(&target, bytes, 4);
      uint32_t found[kSuperblock];
      warp.Run([&](const EmulatedWarp& lane) {
        cuda::Fields fields;
        for (uint32_t i = 0; i < 8; ++i) fields.at[i] = tile[8 * lane.lane() + i];
        cuda::Pack(lane, fields, width, packed.data());
      });
      const std::vector<uint8_t> written = packed.Take();
      ASSERT_EQ(std::memcmp(written.data(), expected.data(), bytes), 0);
      warp.Run([&](const EmulatedWarp& lane) {
        const cuda::Fields fields = cuda::Unpack(lane, packed.data(), width);
        std::copy_n(fields.at, 8, found + 8 * lane.lane());
      });
      for (uint32_t i = 0; i < kSuperblock; ++i) ASSERT_EQ(found[i], tile[i]) << i;
    }
  }
}

TEST(CudaSlices, SideWords) {
  Rng rng(TestSeed());
  EmulatedTarget target;
  CheckSideWords(&target, &rng);
}

TEST(CudaSlices, Casts) {
  Rng rng(TestSeed());
  EmulatedTarget target;
  ASSERT_TRUE(SetSimdTarget("scalar").ok());
  CheckCasts(&target, &rng);
  ASSERT_TRUE(SetSimdTarget("best").ok());
}

TEST(CudaReductions, NarrowTypesOfAnyNumber) {
  for (uint32_t upper = 0; upper < 65536; ++upper) {
    for (const uint32_t lower : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const float x = std::bit_cast<float>(upper << 16 | lower);
      const float positive = x != x ? std::abs(x) : x;
      ASSERT_EQ(cuda::EncodeSmall<Fp8E4m3>(x), Fp8E4m3::Encode(positive)) << x;
      ASSERT_EQ(cuda::EncodeSmall<Fp8E5m2>(x), Fp8E5m2::Encode(positive)) << x;
      const uint16_t code = cuda::ReducedBfloat16::Encode(x);
      ASSERT_EQ(code, x != x ? 0x7FC0 : Bf16::Encode(x)) << x;
    }
  }
}

TEST(CudaReductions, EqualTheCpu) {
  Rng rng(TestSeed());
  EmulatedTarget target;
  CheckReductions(&target, &rng);
}

TEST(CudaSlices, EveryWidthOfSums) {
  Rng rng(TestSeed());
  EmulatedTarget target;
  CheckEveryWidth(&target, &rng);
}

TEST(CudaSlices, RandomSlicesEqualTheReference) {
  Rng rng(TestSeed());
  EmulatedTarget target;
  for (int round = 0; round < 40 && !HasFatalFailure(); ++round) {
    CheckSlice(&target, RandomSlice(&rng, round % 10 == 0 ? 12000 : 2500), &rng);
  }
}

}  // namespace
}  // namespace inccl::test
