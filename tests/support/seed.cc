// SPDX-License-Identifier: Apache-2.0
#include "support/seed.h"

#include <cstdio>
#include <cstdlib>
#include <random>

namespace inccl::test {

uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* text = std::getenv("INCCL_TEST_SEED");
    const uint64_t value =
        text != nullptr ? std::strtoull(text, nullptr, 0) : std::random_device{}();
    std::printf("INCCL_TEST_SEED=%llu\n", static_cast<unsigned long long>(value));
    std::fflush(stdout);
    return value;
  }();
  return seed;
}

}  // namespace inccl::test
