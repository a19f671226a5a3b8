// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "reduce/local_ranks.h"
#include "support/seed.h"

namespace inccl::test {
namespace {

// Ranks lead in turn: the sum at the leader's largest elements, and the filtered residuals.
TEST(CltKTest, TheLeadersLargestAreSummedAndResidualsFiltered) {
  for (const float beta : {1.0f, 0.25f}) {
    for (const int n : {1, 2, 3, 8}) {
      constexpr size_t kCount = 1500, kSelected = 30;
      LocalRanks ranks(beta == 1 ? "clt_k:beta=1,k=0.02" : "clt_k:beta=0.25,k=0.02", n, 1, kCount);
      Vectors residuals(static_cast<size_t>(n), std::vector<float>(kCount));
      for (size_t step = 0; step < 10; ++step) {
        const Vectors inputs = NormalInputs(n, kCount, TestSeed() + step);
        Vectors z = inputs;
        for (size_t r = 0; r < z.size(); ++r) {
          for (size_t i = 0; i < kCount; ++i) z[r][i] += residuals[r][i];
        }
        const std::vector<float>& leads = z[step % z.size()];
        std::vector<size_t> order(kCount);
        std::iota(order.begin(), order.end(), size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
          return std::fabs(leads[a]) > std::fabs(leads[b]);
        });
        std::vector<float> sum(kCount);
        for (size_t j = 0; j < kSelected; ++j) {
          const size_t i = order[j];
          for (size_t r = 0; r < z.size(); ++r) {
            sum[i] = r == 0 ? z[r][i] : sum[i] + z[r][i];
            z[r][i] = 0;
          }
        }
        for (size_t r = 0; r < z.size(); ++r) {
          for (size_t i = 0; i < kCount; ++i) {
            residuals[r][i] = beta == 1 ? z[r][i] : 0.75f * residuals[r][i] + 0.25f * z[r][i];
          }
        }
        ASSERT_EQ(ranks.Run(inputs)[0], sum) << "step " << step;
        ASSERT_EQ(Residuals(&ranks), residuals);
        const size_t words = step % z.size() == 0 ? kSelected : 0;  // rank 0 leads, or does not
        ASSERT_EQ(ranks.sent(), (std::vector<size_t>{4 * words, 4 * kSelected}));
      }
    }
  }
}

}  // namespace
}  // namespace inccl::test
