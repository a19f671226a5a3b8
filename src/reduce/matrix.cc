// SPDX-License-Identifier: Apache-2.0
#include "reduce/matrix.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace inccl {
namespace {

constexpr double kDependent = 1e-6;  // of the column's length before the others were subtracted

// Element i goes to sum i mod 16; then the sums are added in pairs.
float Dot(const float* a, const float* b, size_t count) {
  constexpr size_t kSums = 16;
  std::array<float, kSums> sums{};
  size_t i = 0;
  for (; i + kSums <= count; i += kSums) {
    for (size_t lane = 0; lane < kSums; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (size_t lane = 0; i < count; ++i, ++lane) sums[lane] += a[i] * b[i];
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

// y += factor * x
void AddScaled(float factor, const float* x, size_t count, float* y) {
  for (size_t i = 0; i < count; ++i) y[i] += factor * x[i];
}

double ColumnDot(std::span<const float> p, size_t rows, size_t rank, size_t a, size_t b) {
  double sum = 0;
  for (size_t i = 0; i < rows; ++i) {
    sum += static_cast<double>(p[i * rank + a]) * static_cast<double>(p[i * rank + b]);
  }
  return sum;
}

}  // namespace

void MultiplyByColumns(std::span<const float> m, size_t rows, std::span<const float> qt,
                       size_t rank, std::span<float> p) {
  const size_t cols = m.size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < rank; ++c) {
      p[i * rank + c] = Dot(m.data() + i * cols, qt.data() + c * cols, cols);
    }
  }
}

void MultiplyTransposed(std::span<const float> m, size_t rows, std::span<const float> p,
                        size_t rank, std::span<float> qt) {
  const size_t cols = m.size() / rows;
  std::fill(qt.begin(), qt.end(), 0.0f);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < rank; ++c) {
      AddScaled(p[i * rank + c], m.data() + i * cols, cols, qt.data() + c * cols);
    }
  }
}

void MultiplyFactors(std::span<const float> p, size_t rows, std::span<const float> qt, size_t rank,
                     std::span<float> m) {
  const size_t cols = m.size() / rows;
  std::fill(m.begin(), m.end(), 0.0f);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t c = 0; c < rank; ++c) {
      AddScaled(p[i * rank + c], qt.data() + c * cols, cols, m.data() + i * cols);
    }
  }
}

void Orthonormalize(std::span<float> p, size_t rows, size_t rank) {
  for (size_t c = 0; c < rank; ++c) {
    // The second pass removes what the rounding of the first one has left along the others.
    for (int pass = 0; pass < 2; ++pass) {
      const double before = std::sqrt(ColumnDot(p, rows, rank, c, c));
      for (size_t b = 0; b < c; ++b) {
        const double along = ColumnDot(p, rows, rank, b, c);
        for (size_t i = 0; i < rows; ++i) {
          p[i * rank + c] = static_cast<float>(static_cast<double>(p[i * rank + c]) -
                                               along * static_cast<double>(p[i * rank + b]));
        }
      }
      const double length = std::sqrt(ColumnDot(p, rows, rank, c, c));
      const double factor = length <= kDependent * before ? 0 : 1 / length;
      for (size_t i = 0; i < rows; ++i) {
        p[i * rank + c] = static_cast<float>(static_cast<double>(p[i * rank + c]) * factor);
      }
    }
  }
}

}  // namespace inccl
