// SPDX-License-Identifier: Apache-2.0
#include "support/qsgd_oracle.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace inccl::test {
namespace {

constexpr size_t kSuper = 256, kWindowLength = size_t{1} << 20;
constexpr uint32_t kQsgdNotFinite = 0x7f800000;

uint64_t Mixed(uint64_t z) {
  z += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

uint32_t Hashed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7feb352d;
  x = (x ^ (x >> 15)) * 0x846ca68b;
  return x ^ (x >> 16);
}

uint32_t MagnitudeBits(float x) {
  if (!std::isfinite(x)) return kQsgdNotFinite;
  const float magnitude = std::fabs(x);
  uint32_t bits;
  std::memcpy(&bits, &magnitude, sizeof bits);
  return bits;
}

double ValueOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

double Levels(const QsgdOptions& options, int scale) {
  return std::pow(2.0, options.q[static_cast<size_t>(scale)]) - 1;
}

int BitsOf(uint64_t x) {
  int bits = 0;
  for (; x != 0; x /= 2) ++bits;
  return bits;
}

}  // namespace

QsgdVector::QsgdVector(const std::vector<std::vector<float>>& inputs, const std::vector<int>& ranks,
                       uint64_t segment, const QsgdOptions& options)
    : options_(options),
      inputs_(inputs),
      ranks_(ranks),
      segment_(segment),
      length_(inputs[0].size()) {
  Agree();
  for (size_t who = 0; who < inputs_.size(); ++who) Quantize(who);
}

uint32_t QsgdVector::LargestOf(size_t who, size_t first, size_t count) const {
  uint32_t largest = 0;
  for (size_t i = first; i < first + count; ++i) {
    largest = std::max(largest, MagnitudeBits(inputs_[who][i]));
  }
  return largest;
}

void QsgdVector::Agree() {
  for (size_t first = 0; first < length_; first += kWindowLength) {
    const size_t count = std::min(kWindowLength, length_ - first);
    uint32_t largest = 0;
    for (size_t who = 0; who < inputs_.size(); ++who) {
      largest = std::max(largest, LargestOf(who, first, count));
    }
    largest_.push_back(largest);
  }
  for (size_t i = 0; i < length_; ++i) {
    int scale = static_cast<int>(options_.q.size()) - 1;
    for (size_t who = 0; who < inputs_.size(); ++who) scale = std::min(scale, FinestScale(who, i));
    scale_.push_back(scale);
  }
}

double QsgdVector::Factor(size_t window, int scale) const {
  const uint32_t bits = largest_[window];
  return bits == 0 || bits == kQsgdNotFinite ? 0 : Levels(options_, scale) / ValueOf(bits);
}

int QsgdVector::FinestScale(size_t who, size_t element) const {
  const double magnitude = std::fabs(double{inputs_[who][element]});
  for (int k = static_cast<int>(options_.q.size()) - 1; k > 0; --k) {
    if (magnitude * Factor(element / kWindowLength, k) <= Levels(options_, 0)) return k;
  }
  return 0;
}

void QsgdVector::Quantize(size_t who) {
  const double levels = Levels(options_, 0);
  std::vector<uint32_t> codes(length_, static_cast<uint32_t>(levels));
  for (size_t element = 0; element < length_; ++element) {
    const uint64_t window = element / kWindowLength;
    if (Factor(window, 0) == 0) continue;
    const auto rank = static_cast<uint64_t>(ranks_[who]);
    const uint64_t of_place = Mixed(Mixed(window ^ Mixed(segment_)) ^ Mixed(rank));
    const uint64_t key = Mixed(options_.seed ^ Mixed(options_.step ^ of_place));
    const uint64_t counter = key + element % kWindowLength;
    const double random =
        std::ldexp(static_cast<double>(Hashed(static_cast<uint32_t>(counter))), -32);
    const double v = double{inputs_[who][element]} * Factor(window, scale_[element]);
    const double raised = std::max(-levels, std::min(levels, v)) + levels;
    codes[element] = static_cast<uint32_t>(std::floor(raised + random));
  }
  codes_.push_back(std::move(codes));
}

std::vector<uint8_t> QsgdVector::Fields(const std::vector<uint32_t>& by_element, int width,
                                        size_t first, size_t count) const {
  std::vector<uint8_t> bytes;
  for (size_t s = first; s < first + count; s += kSuper) {
    std::vector<bool> bits;
    for (size_t i = s; i < std::min(s + kSuper, first + count); ++i) {
      const uint32_t field = by_element[i];
      for (int bit = 0; bit < width; ++bit) bits.push_back((field >> bit & 1) != 0);
    }
    bits.resize((bits.size() + 7) / 8 * 8);
    for (size_t b = 0; b < bits.size(); b += 8) {
      int byte = 0;
      for (size_t bit = 0; bit < 8; ++bit) byte += bits[b + bit] ? 1 << bit : 0;
      bytes.push_back(static_cast<uint8_t>(byte));
    }
  }
  return bytes;
}

std::vector<uint8_t> QsgdVector::IndicesOf(size_t who, size_t first, size_t count) const {
  std::vector<uint32_t> scales(length_);
  for (size_t i = first; i < first + count; ++i) {
    scales[i] = static_cast<uint32_t>(FinestScale(who, i));
  }
  return Fields(scales, BitsOf(options_.q.size() - 1), first, count);
}

std::vector<uint8_t> QsgdVector::Indices(size_t first, size_t count) const {
  return Fields({scale_.begin(), scale_.end()}, BitsOf(options_.q.size() - 1), first, count);
}

std::vector<uint8_t> QsgdVector::Sum(const std::vector<size_t>& who, size_t first,
                                     size_t count) const {
  std::vector<uint32_t> sums(length_);
  for (const size_t input : who) {
    for (size_t i = first; i < first + count; ++i) sums[i] += codes_[input][i];
  }
  const auto most = 2 * who.size() * static_cast<size_t>(Levels(options_, 0));
  return Fields(sums, BitsOf(most), first, count);
}

std::vector<float> QsgdVector::Result() const {
  std::vector<float> result(length_);
  const double levels = Levels(options_, 0), n = static_cast<double>(inputs_.size());
  for (size_t element = 0; element < length_; ++element) {
    const uint32_t largest = largest_[element / kWindowLength];
    double unit = ValueOf(largest) / Levels(options_, scale_[element]);
    if (largest == kQsgdNotFinite) unit = std::numeric_limits<double>::quiet_NaN();
    if (options_.average) unit /= n;
    double sum = 0;
    for (const std::vector<uint32_t>& codes : codes_) sum += codes[element] - levels;
    // A sum is off by less than a unit for each code.
    const double value = unit * sum, top = std::numeric_limits<float>::max();
    const bool fits = std::fabs(value) - unit * n <= top;
    result[element] =
        static_cast<float>(std::fabs(value) > top && fits ? std::copysign(top, value) : value);
  }
  return result;
}

}  // namespace inccl::test
