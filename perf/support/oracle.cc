// SPDX-License-Identifier: Apache-2.0
#include "perf/support/oracle.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "perf/support/element.h"

namespace inccl::perf {
namespace {

constexpr uint64_t kBlock = 4096;  // elements at a time
constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The factor g of the header plus the oracle's own error.
double RelativeSlack(DataType type, ReduceOp op, int nranks) {
  if (nranks == 1) return 0;
  const double u = LimitsOf(type).roundoff;
  const double inner = SizeOf(type) < 4 ? 0x1p-24 : u;
  const int steps = op == ReduceOp::kAvg ? nranks + 1 : nranks - 1;
  // expm1 and log1p: (1 + u)^k - 1 without cancellation for the u of fp64.
  return std::expm1(steps * (std::log1p(u) + std::log1p(inner))) + nranks * 0x1p-53;
}

// Running state of one float element.
struct FloatFold {
  double value = 0, magnitude = 0;
  bool non_finite = false;
};

double MaxOrNan(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::max(a, b);
}
double MinOrNan(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? a + b : std::min(a, b);
}

void Fold(ReduceOp op, bool first, double x, FloatFold* fold) {
  fold->non_finite |= !std::isfinite(x);
  if (first) {
    fold->value = x;
    fold->magnitude = std::fabs(x);
    return;
  }
  fold->magnitude += std::fabs(x);
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: fold->value += x; break;
    case ReduceOp::kProd: fold->value *= x; break;
    case ReduceOp::kMax: fold->value = MaxOrNan(fold->value, x); break;
    case ReduceOp::kMin: fold->value = MinOrNan(fold->value, x); break;
    case ReduceOp::kPreMulSum: fold->value = std::nan(""); break;  // no benchmark has scalars
  }
}

// The slack of one element, fold finished but for the division of an average.
double SlackOf(const FloatFold& fold, ReduceOp op, double relative, int nranks,
               const FloatLimits& limits) {
  if (nranks == 1 || op == ReduceOp::kMax || op == ReduceOp::kMin || fold.non_finite) return 0;
  double scale = op == ReduceOp::kProd ? std::fabs(fold.value) : fold.magnitude;
  if (op == ReduceOp::kAvg) scale /= nranks;
  if (scale * (1 + relative) >= limits.largest) return kInfinity;
  return relative * scale + nranks * limits.tiny;
}

void MakeFloats(const Inputs& inputs, Oracle* oracle) {
  const int n = inputs.nranks();
  const FloatLimits limits = LimitsOf(oracle->type);
  const double relative = RelativeSlack(oracle->type, oracle->op, n);
  oracle->value.resize(oracle->period);
  oracle->slack.resize(oracle->period);
  std::vector<double> x(kBlock);
  std::vector<FloatFold> folds(kBlock);
  for (uint64_t first = 0; first < oracle->period; first += kBlock) {
    const uint64_t now = std::min(kBlock, oracle->period - first);
    std::fill(folds.begin(), folds.end(), FloatFold());
    for (int rank = 0; rank < n; ++rank) {
      inputs.Floats(rank, oracle->type, oracle->op, first, std::span(x).first(now));
      for (uint64_t i = 0; i < now; ++i) Fold(oracle->op, rank == 0, x[i], &folds[i]);
    }
    for (uint64_t i = 0; i < now; ++i) {
      const FloatFold& fold = folds[i];
      oracle->value[first + i] = oracle->op == ReduceOp::kAvg ? fold.value / n : fold.value;
      oracle->slack[first + i] = SlackOf(fold, oracle->op, relative, n, limits);
      if (!fold.non_finite) continue;
      oracle->non_finite.resize(oracle->period);
      oracle->non_finite[first + i] = true;
    }
  }
}

// Integers are folded as 64-bit numbers, extended by the sign of the type; the truncation of the
// end makes sums and products right modulo 2^bits.
uint64_t Extend(DataType type, uint64_t bits) {
  if (!IsSigned(type)) return bits;
  const size_t shift = 64 - 8 * SizeOf(type);
  return static_cast<uint64_t>(static_cast<int64_t>(bits << shift) >> shift);
}

bool Less(DataType type, uint64_t a, uint64_t b) {
  return IsSigned(type) ? static_cast<int64_t>(a) < static_cast<int64_t>(b) : a < b;
}

uint64_t FoldInteger(DataType type, ReduceOp op, uint64_t a, uint64_t b) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg: return a + b;
    case ReduceOp::kProd: return a * b;
    case ReduceOp::kMax: return Less(type, a, b) ? b : a;
    case ReduceOp::kMin: return Less(type, b, a) ? b : a;
    case ReduceOp::kPreMulSum: break;  // no benchmark has scalars
  }
  return 0;
}

uint64_t Divide(DataType type, uint64_t sum, int nranks) {
  if (!IsSigned(type)) return sum / static_cast<uint64_t>(nranks);
  return static_cast<uint64_t>(static_cast<int64_t>(sum) / nranks);
}

void MakeIntegers(const Inputs& inputs, Oracle* oracle) {
  const DataType type = oracle->type;
  const size_t width = 8 * SizeOf(type);
  const uint64_t mask = width == 64 ? ~uint64_t{0} : (uint64_t{1} << width) - 1;
  oracle->bits.resize(oracle->period);
  std::vector<uint64_t> x(kBlock);
  for (uint64_t first = 0; first < oracle->period; first += kBlock) {
    const uint64_t now = std::min(kBlock, oracle->period - first);
    for (int rank = 0; rank < inputs.nranks(); ++rank) {
      inputs.Integers(rank, type, oracle->op, first, std::span(x).first(now));
      for (uint64_t i = 0; i < now; ++i) {
        uint64_t& bits = oracle->bits[first + i];
        const uint64_t value = Extend(type, x[i]);
        bits = rank == 0 ? value : FoldInteger(type, oracle->op, bits, value);
      }
    }
    for (uint64_t i = 0; i < now; ++i) {
      uint64_t& bits = oracle->bits[first + i];
      if (oracle->op == ReduceOp::kAvg) bits = Divide(type, bits, inputs.nranks());
      bits &= mask;
    }
  }
}

}  // namespace

Oracle MakeOracle(const Inputs& inputs, DataType type, ReduceOp op) {
  Oracle oracle;
  oracle.type = type;
  oracle.op = op;
  oracle.period = inputs.period();
  if (IsFloat(type)) {
    MakeFloats(inputs, &oracle);
  } else {
    MakeIntegers(inputs, &oracle);
  }
  return oracle;
}

}  // namespace inccl::perf
