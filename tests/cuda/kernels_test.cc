// SPDX-License-Identifier: Apache-2.0
//
// The CUDA kernels on a GPU, against the CPU, byte for byte. Where there is no GPU every test says
// so and is skipped, and ctest shows the program as skipped.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/rng.h"
#include "compress/kernels/hbi_kernels.h"
#include "cuda/device_target.h"
#include "support/kernel_reduce.h"
#include "support/kernel_slices.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << "no CUDA device: " << why;
  }

  Rng rng_{TestSeed()};
  DeviceTarget target_;
};

TEST_F(CudaKernels, SideWords) { CheckSideWords(&target_, &rng_); }

TEST_F(CudaKernels, Casts) { CheckCasts(&target_, &rng_); }

TEST_F(CudaKernels, Reductions) { CheckReductions(&target_, &rng_); }

// For compute-sanitizer, which takes its time.
TEST_F(CudaKernels, SomeReductions) {
  for (int type = 0; type < kDataTypes; ++type) {
    for (const uint32_t inputs : {2u, 5u}) {
      const auto op = static_cast<ReduceOp>(rng_.Below(kReduceOpKinds));
      CheckReduction(&target_, static_cast<DataType>(type), op, inputs, 3000, &rng_);
    }
  }
}

// More than the thread blocks of one launch begin with.
TEST_F(CudaKernels, LongReductionsEqualTheCpu) {
  const uint64_t count = (uint64_t{40} << 20) + 12345;
  CheckReduction(&target_, DataType::kUint8, ReduceOp::kSum, 2, count, &rng_);
  CheckReduction(&target_, DataType::kBfloat16, ReduceOp::kAvg, 3, count / 4, &rng_);
  CheckReduction(&target_, DataType::kFloat32, ReduceOp::kMax, 2, count / 4, &rng_);
}

TEST_F(CudaKernels, EveryWidthOfSums) { CheckEveryWidth(&target_, &rng_); }

TEST_F(CudaKernels, RandomSlicesEqualTheReference) {
  for (int round = 0; round < 400 && !HasFatalFailure(); ++round) {
    CheckSlice(&target_, RandomSlice(&rng_, round % 10 == 0 ? 40000 : 4000), &rng_);
  }
}

// INCCL_TEST_ELEMENTS of them in all (default 4 million), in windows of a million.
TEST_F(CudaKernels, ManyElementsEqualTheCpu) {
  const char* asked = std::getenv("INCCL_TEST_ELEMENTS");
  const uint64_t most = asked != nullptr ? std::strtoull(asked, nullptr, 10) : 4000000;
  uint64_t elements = 0;
  while (elements < most && !HasFatalFailure()) {
    SliceCase slice = RandomSlice(&rng_, 1);
    slice.nranks = 2 + static_cast<int>(rng_.Below(3));
    slice.count = kWindow - static_cast<uint32_t>(rng_.Below(3) == 0 ? rng_.Below(1000) : 0);
    CheckSlice(&target_, slice, &rng_, hbi::BestKernels());
    elements += slice.count;
  }
  RecordProperty("elements", std::to_string(elements));
}

TEST_F(CudaKernels, WrongArgumentsAreErrors) {
  const cuda::Launchers& launchers = target_.launchers();
  const TargetBytes bytes(&target_, 4096);
  const cuda::PackedArgs odd{.data = bytes.data() + 2};
  cuda::SliceArgs slice{.count = 256};
  EXPECT_NE(launchers.encode(cuda::ElementType::kFloat32, {.slice = slice, .out = odd}, nullptr),
            0);
  EXPECT_NE(launchers.decode(cuda::ElementType::kFloat32, {.slice = slice, .in = odd}, nullptr), 0);
  const cuda::PackedArgs eight{.data = bytes.data() + 8};
  const int error = launchers.add({.slice = slice, .a = eight}, nullptr);
  EXPECT_STREQ(launchers.error_name(error), "cudaErrorMisalignedAddress");
  const auto type = static_cast<cuda::ElementType>(cuda::kElementTypes);
  EXPECT_NE(launchers.side_words(type, bytes.data(), 256, bytes.data<uint32_t>(), nullptr), 0);
  EXPECT_EQ(launchers.side_words(cuda::ElementType::kFloat32, nullptr, 0, nullptr, nullptr), 0);
}

}  // namespace
}  // namespace inccl::test
