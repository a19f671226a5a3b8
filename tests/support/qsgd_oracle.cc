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
constexpr uint32_t kNotFinite = 0x7f800000;

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

// By long multiplication and long division.
int FieldProduct(int a, int b) {
  int product = 0;
  for (int bit = 0; bit < 8; ++bit) product ^= (b >> bit & 1) != 0 ? a << bit : 0;
  for (int bit = 14; bit >= 8; --bit) product ^= (product >> bit & 1) != 0 ? 0x11d << (bit - 8) : 0;
  return product;
}

int FieldInverse(int a) {
  for (int b = 1; b < 256; ++b) {
    if (FieldProduct(a, b) == 1) return b;
  }
  return 0;
}

int FieldPower(int exponent) {
  int power = 1;
  for (int i = 0; i < exponent; ++i) power = FieldProduct(power, 2);
  return power;
}

// The step's slice of the sweep's permutation.
std::vector<int> Slice(const QsgdOptions& options, uint64_t* key) {
  const uint64_t m = static_cast<uint64_t>(options.selected), steps = (kSuper + m - 1) / m;
  *key = Mixed(options.seed ^ Mixed(options.step / steps));
  std::vector<int> places;
  for (int i = 0; i < 256; ++i) places.push_back(i);
  uint64_t t = 0;
  for (size_t i = 255; i > 0; --i, ++t) {
    const uint64_t random = Mixed(*key + t * 0x9e3779b97f4a7c15);
    // The upper half of a product of 64 by at most 9 bits, from its two parts.
    const uint64_t high = (random >> 32) * (i + 1), low = (random & 0xffffffff) * (i + 1);
    std::swap(places[i], places[(high + (low >> 32)) >> 32]);
  }
  const uint64_t first = options.step % steps * m, end = std::min<uint64_t>(kSuper, first + m);
  return {places.begin() + static_cast<long>(first), places.begin() + static_cast<long>(end)};
}

std::vector<std::vector<int>> Selections(const QsgdOptions& options, uint64_t segment,
                                         size_t length) {
  std::vector<std::vector<int>> all;
  uint64_t key = 0;
  std::vector<int> slice;
  if (options.selected < 256) slice = Slice(options, &key);
  for (size_t first = 0; first < length; first += kSuper) {
    const int here = static_cast<int>(std::min(kSuper, length - first));
    std::vector<int> places;
    if (options.selected == 256) {
      for (int i = 0; i < here; ++i) places.push_back(i);
    } else {
      const uint64_t z = Mixed(key ^ Mixed((first / kSuper) ^ (segment << 48)));
      const int factor = FieldPower(static_cast<int>((z & 0xffffffff) * 255 >> 32));
      const int c = static_cast<int>(z >> 32 & 255), d = static_cast<int>(z >> 40 & 255);
      for (const int t : slice) {
        const int place = FieldProduct(factor, FieldInverse(t ^ c)) ^ d;
        if (place < here) places.push_back(place);
      }
    }
    all.push_back(places);
  }
  return all;
}

uint32_t MagnitudeBits(float x) {
  if (!std::isfinite(x)) return kNotFinite;
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
  selected_ = Selections(options, segment, length_);
  Agree();
  for (size_t who = 0; who < inputs_.size(); ++who) Quantize(who);
}

uint32_t QsgdVector::LargestOf(size_t who, size_t first, size_t count) const {
  uint32_t largest = 0;
  for (size_t s = first; s < first + count; s += kSuper) {
    for (const int place : selected_[s / kSuper]) {
      largest = std::max(largest, MagnitudeBits(inputs_[who][s + static_cast<size_t>(place)]));
    }
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
  return bits == 0 || bits == kNotFinite ? 0 : Levels(options_, scale) / ValueOf(bits);
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
  for (size_t s = 0; s < selected_.size(); ++s) {
    const uint64_t window = s / 4096;
    if (Factor(window, 0) == 0) continue;
    const auto rank = static_cast<uint64_t>(ranks_[who]);
    const uint64_t of_place = Mixed(Mixed(window ^ Mixed(segment_)) ^ Mixed(rank));
    const uint64_t key = Mixed(options_.seed ^ Mixed(options_.step ^ of_place));
    for (const int place : selected_[s]) {
      const size_t element = s * kSuper + static_cast<size_t>(place);
      const uint64_t counter = key + 256 * (s % 4096) + static_cast<uint64_t>(place);
      const double random =
          std::ldexp(static_cast<double>(Hashed(static_cast<uint32_t>(counter))), -32);
      const double v = double{inputs_[who][element]} * Factor(window, scale_[element]);
      const double raised = std::max(-levels, std::min(levels, v)) + levels;
      codes[element] = static_cast<uint32_t>(std::floor(raised + random));
    }
  }
  codes_.push_back(std::move(codes));
}

std::vector<uint8_t> QsgdVector::Fields(const std::vector<uint32_t>& by_element, int width,
                                        size_t first, size_t count) const {
  std::vector<uint8_t> bytes;
  for (size_t s = first; s < first + count; s += kSuper) {
    std::vector<bool> bits;
    for (const int place : selected_[s / kSuper]) {
      const uint32_t field = by_element[s + static_cast<size_t>(place)];
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
  size_t slice = 256;
  if (options_.selected < 256) {
    uint64_t unused = 0;
    slice = Slice(options_, &unused).size();
  }
  for (size_t s = 0; s < selected_.size(); ++s) {
    const uint32_t largest = largest_[s / 4096];
    for (const int place : selected_[s]) {
      const size_t element = s * kSuper + static_cast<size_t>(place);
      double unit = ValueOf(largest) / Levels(options_, scale_[element]);
      if (largest == kNotFinite) unit = std::numeric_limits<double>::quiet_NaN();
      if (options_.average) unit /= n;
      if (options_.unbiased) unit *= 256.0 / static_cast<double>(slice);
      double sum = 0;
      for (const std::vector<uint32_t>& codes : codes_) sum += codes[element] - levels;
      result[element] = static_cast<float>(unit * sum);
    }
  }
  return result;
}

}  // namespace inccl::test
