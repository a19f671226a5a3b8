// SPDX-License-Identifier: Apache-2.0
#include "perf/accuracy/numpy_random.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <numbers>

namespace inccl::tools {
namespace {

// ---------------------------------------------------------------- SeedSequence

using Pool = std::array<uint32_t, 4>;

// A multiplicative hash whose constant moves on with every value.
struct WordHash {
  uint32_t constant;
  uint32_t multiplier;
  uint32_t operator()(uint32_t value) {
    value ^= constant;
    constant *= multiplier;
    value *= constant;
    return value ^ value >> 16;
  }
};

Pool MixEntropy(uint32_t seed) {
  WordHash hash{0x43b0d7e5, 0x931e8875};
  Pool pool{};
  for (size_t i = 0; i < pool.size(); ++i) pool[i] = hash(i == 0 ? seed : 0);
  for (size_t from = 0; from < pool.size(); ++from) {
    for (size_t to = 0; to < pool.size(); ++to) {
      if (from == to) continue;
      const uint32_t mixed = 0xca01f9dd * pool[to] - 0x4973f715 * hash(pool[from]);
      pool[to] = mixed ^ mixed >> 16;
    }
  }
  return pool;
}

// ---------------------------------------------------------------- ziggurat

constexpr int kLayers = 256;
constexpr double kTail = 3.6541528853610087963519472518;  // where the base layer's tail begins
constexpr uint64_t kFraction = (uint64_t{1} << 52) - 1;

// Layers of equal area below exp(-x^2/2). Layer 0 is the base with the tail; the edges of layers
// 1 to 255 grow to kTail.
struct Ziggurat {
  std::array<uint64_t, kLayers> inside;  // below it a 52-bit fraction needs no further test
  std::array<double, kLayers> width;     // edge / 2^52
  std::array<double, kLayers> height;    // exp(-edge^2/2)
};

long double Density(long double x) { return std::exp(-x * x / 2); }

Ziggurat MakeZiggurat() {
  constexpr long double kScale = 0x1p52L;
  const long double tail = kTail;
  const long double pi = std::numbers::pi_v<long double>;
  const long double area =
      tail * Density(tail) + std::sqrt(pi / 2) * std::erfc(tail / std::sqrt(2.0L));
  Ziggurat z{};
  const long double base = area / Density(tail);
  z.inside[0] = static_cast<uint64_t>(tail / base * kScale);
  z.width[0] = static_cast<double>(base / kScale);
  z.height[0] = 1.0;
  long double edge = tail;
  for (size_t i = kLayers - 1; i > 0; --i) {
    const long double next = i > 1 ? std::sqrt(-2 * std::log(area / edge + Density(edge))) : 0.0L;
    z.inside[i] = static_cast<uint64_t>(next / edge * kScale);
    z.width[i] = static_cast<double>(edge / kScale);
    z.height[i] = static_cast<double>(Density(edge));
    edge = next;
  }
  return z;
}

const Ziggurat& Layers() {
  static const Ziggurat ziggurat = MakeZiggurat();
  return ziggurat;
}

constexpr unsigned __int128 Wide(uint64_t high, uint64_t low) {
  return static_cast<unsigned __int128>(high) << 64 | low;
}

}  // namespace

NumpyRandom::NumpyRandom(uint32_t seed) {
  const Pool pool = MixEntropy(seed);
  WordHash hash{0x8b51f9dd, 0x58f38ded};
  std::array<uint64_t, 4> words{};
  for (size_t i = 0; i < 8; ++i) {
    words[i / 2] |= uint64_t{hash(pool[i % pool.size()])} << (i % 2 * 32);
  }
  increment_ = Wide(words[2], words[3]) << 1 | 1;
  Next();
  state_ += Wide(words[0], words[1]);
  Next();
}

uint64_t NumpyRandom::Next() {
  state_ = state_ * Wide(0x2360ED051FC65DA4, 0x4385DF649FCCF645) + increment_;
  const auto high = static_cast<uint64_t>(state_ >> 64);
  return std::rotr(high ^ static_cast<uint64_t>(state_), static_cast<int>(high >> 58));
}

double NumpyRandom::Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

double NumpyRandom::Normal() {
  const Ziggurat& z = Layers();
  for (;;) {
    const uint64_t bits = Next();
    const size_t layer = bits & 0xFF;
    const uint64_t fraction = bits >> 9 & kFraction;
    const double magnitude = static_cast<double>(fraction) * z.width[layer];
    const double x = (bits >> 8 & 1) != 0 ? -magnitude : magnitude;
    if (fraction < z.inside[layer]) return x;
    if (layer == 0) {
      for (;;) {
        const double beyond = -std::log1p(-Uniform()) / kTail;
        const double y = -std::log1p(-Uniform());
        if (y + y > beyond * beyond) {
          return (fraction >> 8 & 1) != 0 ? -(kTail + beyond) : kTail + beyond;
        }
      }
    }
    const double y = z.height[layer] + (z.height[layer - 1] - z.height[layer]) * Uniform();
    if (y < std::exp(-0.5 * x * x)) return x;
  }
}

double NumpyRandom::Laplace() {
  for (;;) {
    const double u = Uniform();
    if (u >= 0.5) return -std::log(2.0 - u - u);
    if (u > 0) return std::log(u + u);
  }
}

double NumpyRandom::GammaThreeHalves() {
  const double b = 1.5 - 1.0 / 3.0;
  const double c = 1.0 / std::sqrt(9.0 * b);
  for (;;) {
    double x = 0, root = 0;
    do {
      x = Normal();
      root = 1.0 + c * x;
    } while (root <= 0);
    const double v = root * root * root;
    const double u = Uniform();
    if (u < 1.0 - 0.0331 * (x * x) * (x * x)) return b * v;
    if (std::log(u) < 0.5 * x * x + b * (1.0 - v + std::log(v))) return b * v;
  }
}

double NumpyRandom::StudentT3() {
  const double numerator = Normal();
  return std::sqrt(1.5) * numerator / std::sqrt(GammaThreeHalves());
}

}  // namespace inccl::tools
