// SPDX-License-Identifier: Apache-2.0
#include "perf/support/inputs.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "perf/support/datasets.h"
#include "perf/support/element.h"

namespace inccl::perf {
namespace {

constexpr uint64_t kSuperblock = 256;
constexpr uint64_t kSuperblocks = 4133;  // a prime; a bit more than a window of 2^20 elements

double ForProduct(double x) {
  const double magnitude = std::fabs(x);
  const double fraction = std::isfinite(x) ? magnitude / (1.0 + magnitude) : 1.0;
  return std::copysign(0.75 + 0.5 * fraction, x);
}

uint64_t Truncate(DataType type, uint64_t bits) {
  const size_t width = 8 * SizeOf(type);
  return width == 64 ? bits : bits & ((uint64_t{1} << width) - 1);
}

uint64_t ForInteger(DataType type, ReduceOp op, float x, int nranks) {
  const uint64_t bits = Truncate(type, Mix64(std::bit_cast<uint32_t>(x)));
  if (op != ReduceOp::kAvg) return bits;
  const auto n = static_cast<uint64_t>(nranks);
  if (!IsSigned(type)) return bits / n;
  const size_t shift = 64 - 8 * SizeOf(type);
  const auto value = static_cast<int64_t>(bits << shift) >> shift;
  return Truncate(type, static_cast<uint64_t>(value / static_cast<int64_t>(n)));
}

void StoreIntegers(DataType type, std::span<const uint64_t> values, std::byte* out) {
  const size_t bytes = SizeOf(type);
  for (const uint64_t value : values) {
    std::memcpy(out, &value, bytes);  // little-endian: the low bytes
    out += bytes;
  }
}

}  // namespace

uint64_t PatternPeriod(uint64_t natural, uint64_t max_count, int nranks) {
  uint64_t superblocks = kSuperblocks;
  // All patterns lie in every process: at most 64 MB of them.
  while (superblocks * kSuperblock * static_cast<uint64_t>(nranks) > (16u << 20)) {
    superblocks = superblocks / 2 | 1;
  }
  return std::max<uint64_t>(1, std::min(max_count, std::max(superblocks * kSuperblock, natural)));
}

Result<std::vector<float>> Inputs::MakePattern(const World& world, const std::string& data,
                                               uint64_t max_count, uint64_t seed) {
  Result<uint64_t> natural = NaturalCount(data);
  if (!natural.ok()) return natural.status();
  const uint64_t period = PatternPeriod(*natural, max_count, world.size());
  return MakeData(data, world.rank(), world.size(), period, seed);
}

Result<Inputs> Inputs::Gather(World& world, const std::vector<float>& pattern) {
  std::vector<float> patterns(pattern.size() * static_cast<size_t>(world.size()));
  Status s = world.AllGather(std::as_bytes(std::span(pattern)),
                             std::as_writable_bytes(std::span(patterns)));
  if (!s.ok()) return s;
  return Inputs(world.size(), pattern.size(), std::move(patterns));
}

Inputs::Inputs(int nranks, uint64_t period, std::vector<float> patterns)
    : nranks_(nranks), period_(period), patterns_(std::move(patterns)) {}

void Inputs::Floats(int rank, DataType type, ReduceOp op, uint64_t first,
                    std::span<double> out) const {
  const std::span<const float> from = pattern(rank).subspan(first, out.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = op == ReduceOp::kProd ? ForProduct(from[i]) : from[i];
  }
  if (type == DataType::kFloat64 || (type == DataType::kFloat32 && op != ReduceOp::kProd)) return;
  std::vector<std::byte> rounded(out.size() * SizeOf(type));
  EncodeFloats(type, out, rounded.data());
  DecodeFloats(type, rounded.data(), out.size(), out.data());
}

void Inputs::Integers(int rank, DataType type, ReduceOp op, uint64_t first,
                      std::span<uint64_t> out) const {
  const std::span<const float> from = pattern(rank).subspan(first, out.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = ForInteger(type, op, from[i], nranks_);
}

void Inputs::Fill(int rank, DataType type, ReduceOp op, uint64_t first, uint64_t count,
                  void* out) const {
  const size_t bytes = SizeOf(type);
  auto* at = static_cast<std::byte*>(out);
  const uint64_t fresh = std::min(count, period_);
  // One period from the pattern, element by element; the rest repeats it.
  uint64_t from = first % period_;
  for (uint64_t done = 0; done < fresh;) {
    const uint64_t now = std::min(fresh - done, period_ - from);
    if (IsFloat(type)) {
      std::vector<double> values(now);
      Floats(rank, type, op, from, values);
      EncodeFloats(type, values, at + done * bytes);
    } else {
      std::vector<uint64_t> values(now);
      Integers(rank, type, op, from, values);
      StoreIntegers(type, values, at + done * bytes);
    }
    done += now;
    from = 0;
  }
  for (uint64_t done = fresh; done < count;) {
    const uint64_t now = std::min(count - done, done);  // done is a multiple of the period
    std::memcpy(at + done * bytes, at, now * bytes);
    done += now;
  }
}

}  // namespace inccl::perf
