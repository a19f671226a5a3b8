// SPDX-License-Identifier: Apache-2.0
#include "support/hbi_oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>

#include "build_paths.h"

namespace inccl::test {
namespace {

constexpr size_t kBlockElements = 32, kSuperElements = 256, kWindowElements = size_t{1} << 20;
constexpr int kNotFinite = 1142;

float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// ---------------------------------------------------------------- scales

// The exponent of a code in fifths of an octave: code 1141 stands for 2^128.
int ExponentOf(int code) { return 5 * 128 - (1141 - code); }

double ScaleOf(int code) {
  static constexpr uint32_t kMantissa[5] = {0x3f800000, 0x3f93088c, 0x3fa8e5a3, 0x3fc20300,
                                            0x3fdedc67};
  const int q = ExponentOf(code);
  const int octave = static_cast<int>(std::floor(q / 5.0));
  return double{FloatOf(kMantissa[q - 5 * octave])} * std::pow(2.0, octave);
}

// By search: the first code whose scale is not below the magnitude.
uint16_t CodeOf(double magnitude) {
  if (!std::isfinite(magnitude)) return kNotFinite;
  if (magnitude == 0) return 0;
  static const std::vector<double> scales = [] {
    std::vector<double> all;
    for (int c = 1; c < kNotFinite; ++c) all.push_back(ScaleOf(c));
    return all;
  }();
  const auto found = std::lower_bound(scales.begin(), scales.end(), magnitude);
  return static_cast<uint16_t>(1 + (found - scales.begin()));
}

float Largest(const float* block) {
  float largest = 0;
  for (size_t j = 0; j < kBlockElements; ++j) {
    if (std::isnan(block[j])) return block[j];
    largest = std::max(largest, std::fabs(block[j]));
  }
  return largest;
}

using Eight = std::array<uint16_t, 8>;

// Superblocks with such a largest code have the layout of words with more room for distances.
bool HasThreeBits(int top) { return top > 320 && top < 570; }

// What a superblock's codes become when they share a word.
Eight Shared(const Eight& codes) {
  const int top = *std::max_element(codes.begin(), codes.end());
  Eight shared;
  for (size_t b = 0; b < 8; ++b) {
    const int least = HasThreeBits(top) ? std::max(top - 7, 321) : std::max(top - 3, 1);
    shared[b] =
        static_cast<uint16_t>(top == 0 || top == kNotFinite ? top : std::max<int>(codes[b], least));
  }
  return shared;
}

// The codes of 256 elements. k2 > 0: those of a result of so many levels, to nearest.
Eight CodesOf(const float* x, int k2) {
  Eight codes;
  const auto g = static_cast<float>(2.0 * k2 / (2.0 * k2 + 1));
  for (size_t b = 0; b < 8; ++b) {
    const float largest = Largest(x + b * kBlockElements);
    codes[b] = CodeOf(double{k2 > 0 ? largest * g : largest});
  }
  return Shared(codes);
}

Eight Merged(const Eight& a, const Eight& b) {
  Eight larger;
  for (size_t i = 0; i < 8; ++i) larger[i] = std::max(a[i], b[i]);
  return Shared(larger);
}

Eight EightAt(const uint16_t* codes) {
  Eight eight;
  std::copy_n(codes, 8, eight.begin());
  return eight;
}

bool Live(const uint16_t* codes) { return codes[0] != 0 && codes[0] != kNotFinite; }

// ---------------------------------------------------------------- the plan

int BitLength(int x) {
  int length = 0;
  for (; x != 0; x >>= 1) ++length;
  return length;
}

// Of a pair of values in `bits` bits: the largest number whose square is at most 2^bits.
int Base(int bits) {
  int base = 0;
  while ((base + 1) * (base + 1) <= 1 << bits) ++base;
  return base;
}

// What is planned for: the sum and its second quantization, a sum alone, one rank's payload.
enum class Kind { kAllReduce, kReduceScatter, kAllGather };

// What one element of the first rank's part meets before it is complete there.
struct Hops {
  std::vector<int> contributions;  // in the fields of each payload with K levels
  int sums = 0;                    // payloads with K2 levels and words of their own: sums of groups
};

bool InGroups(const HbiOptions& options, int n) { return options.m > 1 && options.m < n; }

Hops HopsOf(Kind kind, int n, const HbiOptions& options) {
  Hops hops;
  if (kind == Kind::kAllGather) return hops;
  if (kind == Kind::kAllReduce && InGroups(options, n)) {
    for (int first = 0; first < n; first += options.m) {
      const int members = std::min(options.m, n - first);
      const int plain = first == 0 || members > 1 ? members - 1 : 1;
      hops.contributions.insert(hops.contributions.end(), static_cast<size_t>(plain), 1);
      hops.sums += first != 0 && members > 1 ? 1 : 0;
    }
    return hops;
  }
  for (int h = 1; h < n; ++h) hops.contributions.push_back(options.ring ? h : 1);
  return hops;
}

// 64 times the bits of an element of K levels in the codes of a shape: those of the definition
// (compress/hbi_entropy_test.py).
int64_t CodeCost(int k, int shape) {
  static const std::map<std::pair<int, int>, int64_t> known = [] {
    std::map<std::pair<int, int>, int64_t> costs;
    std::ifstream file(INCCL_SOURCE_DIR "/tests/compress/hbi_entropy.txt");
    for (std::string line; std::getline(file, line);) {
      std::istringstream in(line);
      std::string kind;
      int levels = 0;
      uint32_t checksum = 0;
      in >> kind >> levels >> checksum;
      if (kind != "code") continue;
      for (int i = 0; i < 15; ++i) in >> costs[{levels, i}];
    }
    return costs;
  }();
  return known.at({k, shape});
}

int64_t PartsOfBit(const HbiOptions& options) { return options.entropy ? 64 : 8; }

// What a field of one code costs, in parts of a bit.
int64_t CostOfResult(int k, const HbiOptions& options) {
  if (!options.entropy) return 4 * HbiWidth(1, k);
  return CodeCost(k, k == 1 ? 0 : k == 2 ? 1 : 2);
}
int64_t CostOfContribution(int k, int n, const HbiOptions& options) {
  if (!options.entropy) return 4 * HbiWidth(1, k);
  const int shape = n < 4 ? 3 : n < 8 ? 4 : 5;
  return CodeCost(k, k == 1 ? std::min(shape - 1, 3) : shape);
}

struct Option {
  int64_t cost, error;
  int k, k2;
};

std::vector<Option> AllOptions(Kind kind, int n, const HbiOptions& options, bool drops) {
  const Hops hops = HopsOf(kind, n, options);
  const auto cost_of_sum = [&](int k, int k2) {
    int64_t cost = int64_t{4} * hops.sums * HbiWidth(1, k2);
    for (const int h : hops.contributions) {
      cost += h == 1 ? CostOfContribution(k, n, options) : 4 * HbiWidth(h, k);
    }
    return cost;
  };
  static const int kLevels[] = {1,   2,   3,   4,   5,   6,   7,    9,    10,   11,   13,  15,
                                19,  22,  23,  27,  31,  39,  44,   47,   55,   63,   90,  95,
                                127, 191, 255, 383, 511, 767, 1023, 1535, 2047, 3071, 4095};
  constexpr int64_t kOne = int64_t{1} << 36;
  const bool groups = kind == Kind::kAllReduce && InGroups(options, n);
  std::vector<Option> all;
  if (drops) all.push_back({0, kOne * 6 / 5, 0, 0});
  for (const int k : kLevels) {
    if (2 * n * k >= 65536) continue;
    const int64_t sum_error = kOne / (int64_t{k} * k);
    if (kind == Kind::kAllGather) all.push_back({CostOfResult(k, options), sum_error, k, 0});
    if (kind == Kind::kReduceScatter) all.push_back({cost_of_sum(k, 0), sum_error, k, 0});
    if (kind != Kind::kAllReduce) continue;
    for (const int k2 : kLevels) {
      if (2 * n * k2 >= 65536) continue;
      const int64_t steps = 2 * k2 + 1;
      const int64_t result_error = (groups ? 16 : 8) * kOne / (BitLength(n) * steps * steps);
      all.push_back({int64_t{n - 1} * CostOfResult(k2, options) + cost_of_sum(k, k2),
                     sum_error + result_error, k, k2});
    }
  }
  return all;
}

// From the cheapest option on, always to the one with the steepest way down, the farthest of
// equals.
std::vector<HbiChoice> Wrapped(const std::vector<Option>& all, const HbiOptions& options) {
  const auto before = [](const Option& a, const Option& b) {
    return std::tie(a.cost, a.error, a.k, a.k2) < std::tie(b.cost, b.error, b.k, b.k2);
  };
  Option now = *std::min_element(all.begin(), all.end(), before);
  std::vector<HbiChoice> hull = {{now.cost, now.k, now.k2, -(1 << 20)}};
  while (true) {
    const Option* best = nullptr;
    for (const Option& option : all) {
      if (option.error >= now.error) continue;
      if (best == nullptr) {
        best = &option;
        continue;
      }
      const int64_t mine = (now.error - option.error) * (best->cost - now.cost);
      const int64_t theirs = (now.error - best->error) * (option.cost - now.cost);
      const bool same = option.cost == best->cost && option.error == best->error;
      if (mine > theirs ||
          (mine == theirs && (same ? before(option, *best) : option.cost > best->cost))) {
        best = &option;
      }
    }
    if (best == nullptr) return hull;
    const auto gain = static_cast<double>(now.error - best->error);
    const auto price = 8.0 * static_cast<double>(best->cost - now.cost) / PartsOfBit(options);
    int d = 0;
    while (gain * std::pow(2.0, (d % 5) / 5.0) < price * std::pow(2.0, 33 - d / 5)) ++d;
    hull.push_back({best->cost, best->k, best->k2, d});
    now = *best;
  }
}

const std::vector<HbiChoice>& HullOf(Kind kind, int n, const HbiOptions& options, bool drops) {
  static thread_local std::map<std::tuple<Kind, int, bool, bool, bool, int>, std::vector<HbiChoice>>
      known;
  std::vector<HbiChoice>& hull = known[{kind, n, options.ring, options.entropy, drops, options.m}];
  if (hull.empty()) hull = Wrapped(AllOptions(kind, n, options, drops), options);
  return hull;
}

// Index of the option taken at this exponent and delta, if energies count 1 / scale.
size_t Taken(const std::vector<HbiChoice>& hull, int exponent, int delta, int scale) {
  size_t taken = 0;
  while (taken + 1 < hull.size() && scale * hull[taken + 1].threshold <= exponent - delta) ++taken;
  return taken;
}

int64_t BudgetOf(Kind kind, int n, const HbiOptions& options, size_t superblocks) {
  const auto all = static_cast<int64_t>(superblocks) * PartsOfBit(options) / 8;
  const int bits8 = options.bits8;
  if (kind == Kind::kAllGather) return (bits8 - 1) * all;
  const int coded = HopsOf(kind, n, options).sums;
  return ((n - 1) * (kind == Kind::kReduceScatter ? bits8 - 2 : 2 * bits8 - 3) - coded) * all;
}

void PlanWindow(Kind kind, const uint16_t* codes, size_t superblocks, int n,
                const HbiOptions& options, HbiTrace* trace) {
  if (options.k > 0) {
    for (size_t s = 0; s < superblocks; ++s) {
      const bool live = Live(codes + 8 * s);
      trace->k.push_back(live ? options.k : 0);
      trace->k2.push_back(live && kind == Kind::kAllReduce ? options.k2 : 0);
    }
    return;
  }
  std::vector<int> energies;
  for (size_t s = 0; s < superblocks; ++s) {
    if (Live(codes + 8 * s)) energies.push_back(HbiEnergy(codes + 8 * s));
  }
  const int64_t budget = BudgetOf(kind, n, options, superblocks);
  const std::vector<HbiChoice>* hull = &HullOf(kind, n, options, false);
  const bool even =
      !options.energy && hull->front().cost * static_cast<int64_t>(energies.size()) <= budget;
  if (!even && !options.unbiased) hull = &HullOf(kind, n, options, true);
  int scale = 1, first_delta = -1400, last_delta = 1400;
  if (even) {
    scale = 8;
    first_delta = -16384;
    last_delta = 1;
    const int most = energies.empty() ? 0 : *std::max_element(energies.begin(), energies.end());
    for (int& energy : energies) energy = std::max(energy - most, -40);
  }
  std::map<int, int64_t> how_many;
  for (const int energy : energies) ++how_many[energy];
  const auto cost_at = [&](int delta) {
    int64_t cost = 0;
    for (const auto& [exponent, count] : how_many) {
      cost += count * (*hull)[Taken(*hull, exponent, delta, scale)].cost;
    }
    return cost;
  };
  int low = first_delta, delta = last_delta;  // the smallest that fits
  while (low < delta) {
    const int middle = low + (delta - low) / 2;
    cost_at(middle) <= budget ? delta = middle : low = middle + 1;
  }
  int64_t spent = cost_at(delta);
  auto energy = energies.begin();
  for (size_t s = 0; s < superblocks; ++s) {
    if (!Live(codes + 8 * s)) {
      trace->k.push_back(0);
      trace->k2.push_back(0);
      continue;
    }
    size_t now = Taken(*hull, *energy, delta, scale);
    for (const size_t next = Taken(*hull, *energy, delta - 1, scale); now < next; ++now) {
      const int64_t extra = (*hull)[now + 1].cost - (*hull)[now].cost;
      if (spent + extra > budget) break;
      spent += extra;
    }
    ++energy;
    trace->k.push_back((*hull)[now].k);
    trace->k2.push_back((*hull)[now].k2);
  }
  trace->window_bits.push_back(static_cast<double>(spent) / PartsOfBit(options) * kSuperElements);
  trace->window_budget.push_back(static_cast<double>(budget) / PartsOfBit(options) *
                                 kSuperElements);
}

// ---------------------------------------------------------------- rounding

uint64_t Scramble64(uint64_t z) {
  z += 0x9e3779b97f4a7c15u;
  z ^= z >> 30;
  z *= 0xbf58476d1ce4e5b9u;
  z ^= z >> 27;
  z *= 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

uint32_t Scramble32(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

uint32_t Random16(uint64_t seed, uint64_t step, uint64_t element, uint64_t salt = 0) {
  const uint64_t block = element / 32, inside = element % 32;
  const uint64_t high = (block >> 28) ^ (salt << 32);
  const uint64_t key = Scramble64(seed ^ Scramble64(step ^ Scramble64(high)));
  const uint32_t hash = Scramble32(static_cast<uint32_t>(key + 16 * block + inside % 16));
  return inside < 16 ? hash % 65536 : hash / 65536;
}

// A rank's offset: r in the middle of its n-th of the circle, or where it is, and the rank's shift.
uint32_t RankOffset(const HbiOptions& options, uint32_t r, int rank, int n) {
  int64_t s = r;
  if (!options.unbiased) {
    const int64_t place = int64_t{r} * n % 65536;  // in its n-th, in units of 1/n
    s += 32768 / n - place * (65536 / n) / 65536;
  }
  return static_cast<uint32_t>((s + int64_t{65536} * rank / n + 65536) % 65536);
}

// The offset of an element's last quantization.
uint32_t ResultOffset(const HbiOptions& options, uint64_t element) {
  return options.unbiased ? Random16(options.seed, options.step, element, 1) : 0x8000;
}

// ---------------------------------------------------------------- one element

uint32_t QuantizeOne(float x, int code, int k, uint32_t offset) {
  const int64_t limit = int64_t{65536} * k;
  int64_t v = 0;
  if (code > 0 && code != kNotFinite && k > 0) {
    const auto f = static_cast<float>(k * 65536.0 / ScaleOf(code));
    const float product = x * f;
    v = std::clamp<int64_t>(std::llrint(product), -limit, limit);
  }
  return static_cast<uint32_t>((v + offset + limit) / 65536);
}

float DecodeOne(uint32_t field, int contributions, int code, int k, int divide) {
  const float s = static_cast<float>(static_cast<int64_t>(field) - int64_t{contributions} * k);
  if (code == kNotFinite) return s * std::numeric_limits<float>::quiet_NaN();
  if (code == 0 || k == 0) return s * 0.0f;
  const double step = ScaleOf(code) / (static_cast<double>(k) * divide);
  return s * static_cast<float>(std::min(step, double{std::numeric_limits<float>::max()}));
}

std::vector<float> Padded(const std::vector<float>& x) {
  std::vector<float> padded = x;
  padded.resize((x.size() + kSuperElements - 1) / kSuperElements * kSuperElements, 0.0f);
  return padded;
}

// ---------------------------------------------------------------- rotation

// The transform by its halves: sums and differences of neighbours first, then of pairs, and so on.
void Transform(float* x, size_t stride) {
  if (stride == kSuperElements) {
    for (size_t i = 0; i < kSuperElements; ++i) x[i] *= 0.0625f;
    return;
  }
  for (size_t base = 0; base < kSuperElements; base += 2 * stride) {
    for (size_t i = base; i < base + stride; ++i) {
      const float left = x[i], right = x[i + stride];
      x[i] = left + right;
      x[i + stride] = left - right;
    }
  }
  Transform(x, 2 * stride);
}

float SignOf(const HbiOptions& options, size_t element) {
  return Random16(options.seed, options.step, element, 2) % 2 == 1 ? -1.0f : 1.0f;
}

// Padded and, with rht, rotated.
std::vector<float> Rotated(const std::vector<float>& input, const HbiOptions& options) {
  std::vector<float> x = Padded(input);
  if (!options.rht) return x;
  for (size_t e = 0; e < x.size(); ++e) x[e] *= SignOf(options, e);
  for (size_t e = 0; e < x.size(); e += kSuperElements) Transform(&x[e], 1);
  return x;
}

// The way back, to `count` elements.
void RotateBack(const HbiOptions& options, size_t count, std::vector<float>* x) {
  if (options.rht) {
    for (size_t e = 0; e < x->size(); e += kSuperElements) Transform(&(*x)[e], 1);
    for (size_t e = 0; e < x->size(); ++e) {
      float& y = (*x)[e];
      y = std::isnan(y) ? std::numeric_limits<float>::quiet_NaN() : y * SignOf(options, e);
    }
  }
  x->resize(count);
}

// Codes of all inputs together, and the plan.
void CodesAndPlan(Kind kind, const std::vector<std::vector<float>>& inputs, int n,
                  const HbiOptions& options, HbiTrace* trace) {
  *trace = {};
  for (const std::vector<float>& input : inputs) {
    const std::vector<float> x = Rotated(input, options);
    trace->codes.resize(x.size() / 32, 0);
    for (size_t s = 0; s < x.size() / 256; ++s) {
      uint16_t* const codes = &trace->codes[8 * s];
      const Eight agreed = Merged(EightAt(codes), CodesOf(&x[256 * s], 0));
      std::copy(agreed.begin(), agreed.end(), codes);
    }
  }
  const size_t padded = trace->codes.size() * 32;
  for (size_t first = 0; first < padded; first += kWindowElements) {
    const size_t length = std::min(kWindowElements, padded - first);
    PlanWindow(kind, &trace->codes[first / 32], length / 256, n, options, trace);
  }
}

// The sum of all ranks' codes, decoded; padded.
std::vector<float> DecodedSum(Kind kind, const std::vector<std::vector<float>>& inputs,
                              const HbiOptions& options, int divide, HbiTrace* trace) {
  const int n = static_cast<int>(inputs.size());
  CodesAndPlan(kind, inputs, n, options, trace);
  const size_t padded = trace->codes.size() * 32;
  trace->total.assign(padded, 0);
  for (int r = 0; r < n; ++r) {
    const std::vector<uint32_t> codes =
        HbiQuantize(inputs[static_cast<size_t>(r)], r, n, *trace, options);
    for (size_t e = 0; e < padded; ++e) trace->total[e] += codes[e];
  }
  std::vector<float> result(padded);
  for (size_t e = 0; e < padded; ++e) {
    result[e] = DecodeOne(trace->total[e], n, trace->codes[e / 32], trace->k[e / 256], divide);
  }
  return result;
}

}  // namespace

std::vector<uint32_t> HbiQuantize(const std::vector<float>& input, int rank, int nranks,
                                  const HbiTrace& trace, const HbiOptions& options) {
  const std::vector<float> x = Rotated(input, options);
  std::vector<uint32_t> codes(x.size());
  for (size_t e = 0; e < x.size(); ++e) {
    const uint32_t offset =
        RankOffset(options, Random16(options.seed, options.step, e), rank, nranks);
    codes[e] = QuantizeOne(x[e], trace.codes[e / 32], trace.k[e / 256], offset);
  }
  return codes;
}

namespace {

using Vector = std::vector<float>;

// Sums on the agreed scales that are quantized anew where a group of m ends. `x` are all ranks'
// rotated elements; the sum of those of superblock s.
class GroupedSuperblock {
 public:
  GroupedSuperblock(const std::vector<Vector>& x, const HbiOptions& options, const HbiTrace& trace,
                    size_t s)
      : x_(x),
        options_(options),
        s_(s),
        n_(static_cast<int>(x.size())),
        k_(trace.k[s]),
        k2_(trace.k2[s]),
        agreed_(EightAt(&trace.codes[8 * s])) {}

  // That of neighbouring ranks, then of their sums.
  Vector Sum() const {
    Vector sum(256, 0.0f);
    if (k_ == 0) return sum;
    const int groups = (n_ + options_.m - 1) / options_.m;
    for (int g = 0; g < groups; ++g) {
      const int first = g * options_.m, members = std::min(options_.m, n_ - first);
      Fields fields(256, 0);
      for (int rank = first; rank < first + members; ++rank) {
        for (size_t j = 0; j < 256; ++j) {
          const uint32_t offset = RankOffset(options_, Random(j, 0), rank, n_);
          fields[j] +=
              QuantizeOne(x_[static_cast<size_t>(rank)][256 * s_ + j], agreed_[j / 32], k_, offset);
        }
      }
      Vector y = Decoded(fields, members, agreed_, k_);
      if (members > 1) y = Anew(y, static_cast<uint32_t>(65536 * g / groups));
      for (size_t j = 0; j < 256 && g > 0; ++j) sum[j] += y[j];
      if (g == 0) sum = y;
    }
    return sum;
  }

 private:
  using Fields = std::vector<uint32_t>;

  uint32_t Random(size_t j, uint64_t salt) const {
    return Random16(options_.seed, options_.step, 256 * s_ + j, salt);
  }
  Vector Anew(const Vector& y, uint32_t shift) const {
    const Eight own = Merged(CodesOf(y.data(), options_.unbiased ? 0 : k2_), agreed_);
    Fields fields;
    for (size_t j = 0; j < 256; ++j) {
      const uint32_t offset = options_.unbiased ? (Random(j, 3) + shift) % 65536 : 0x8000;
      fields.push_back(QuantizeOne(y[j], own[j / 32], k2_, offset));
    }
    return Decoded(fields, 1, own, k2_);
  }
  static Vector Decoded(const Fields& fields, int contributions, const Eight& codes, int k) {
    Vector y;
    for (size_t j = 0; j < 256; ++j) {
      y.push_back(DecodeOne(fields[j], contributions, codes[j / 32], k, 1));
    }
    return y;
  }

  const std::vector<Vector>& x_;
  const HbiOptions& options_;
  size_t s_;
  int n_, k_, k2_;
  Eight agreed_;
};

// All sums, before their second quantization; padded.
Vector GroupedSum(const std::vector<Vector>& inputs, const HbiOptions& options, HbiTrace* trace) {
  const int n = static_cast<int>(inputs.size());
  CodesAndPlan(Kind::kAllReduce, inputs, n, options, trace);
  std::vector<Vector> x;
  for (const Vector& input : inputs) x.push_back(Rotated(input, options));
  Vector result;
  for (size_t s = 0; s < trace->k.size(); ++s) {
    const Vector y = GroupedSuperblock(x, options, *trace, s).Sum();
    result.insert(result.end(), y.begin(), y.end());
  }
  return result;
}

}  // namespace

int HbiWidth(int contributions, int k) {
  const int most = 2 * contributions * k, width = 2 * BitLength(most);
  const bool pair = width > 5 && width <= 16 && Base(width - 1) > most;
  return pair ? width - 1 : width;
}

int HbiEnergy(const uint16_t* codes) {
  const int top = *std::max_element(codes, codes + 8);
  int64_t energy = 0;
  for (size_t b = 0; b < 8; ++b) {
    energy += std::llround(std::pow(2.0, 16 - 2 * (top - codes[b]) / 5.0));
  }
  int exponent = 2 * ExponentOf(top);
  for (int j = 1; j < 10; ++j) {
    if (energy < std::llround(std::pow(2.0, 19 - j / 5.0))) --exponent;
  }
  return exponent;
}

uint32_t HbiWord(const uint16_t* codes) {
  const int top = *std::max_element(codes, codes + 8);
  if (top == 0) return 0;
  if (top == kNotFinite) return 255;
  uint32_t word = static_cast<uint32_t>(top - 320);
  if (!HasThreeBits(top)) word = static_cast<uint32_t>(250 + top / 256 + top % 256 * 256);
  for (int b = 0; b < 8; ++b) {
    const int place = HasThreeBits(top) ? 8 + 3 * b : 16 + 2 * b;
    word += static_cast<uint32_t>(top - codes[b]) << place;
  }
  return word;
}

std::vector<uint16_t> HbiAgree(const std::vector<std::vector<float>>& inputs) {
  HbiTrace trace;
  HbiOptions fixed;
  fixed.k = 1;
  CodesAndPlan(Kind::kAllGather, inputs, 2, fixed, &trace);
  return trace.codes;
}

std::vector<HbiChoice> HbiHull(int nranks, const HbiOptions& options) {
  return HullOf(Kind::kAllReduce, nranks, options, !options.unbiased);
}

std::vector<float> HbiAllReduce(const std::vector<std::vector<float>>& inputs,
                                const HbiOptions& options, HbiTrace* trace) {
  const int n = static_cast<int>(inputs.size());
  HbiTrace local;
  HbiTrace& t = trace != nullptr ? *trace : local;
  const int divide = options.average ? n : 1;
  std::vector<float> result = InGroups(options, n) ? GroupedSum(inputs, options, &t)
                                                   : DecodedSum(Kind::kAllReduce, inputs, options,
                                                                options.exact ? divide : 1, &t);
  for (size_t s = 0; s < t.k.size() && !options.exact; ++s) {
    const int k2 = t.k2[s];
    const Eight own = k2 == 0 ? Eight{} : CodesOf(&result[256 * s], options.unbiased ? 0 : k2);
    t.own.insert(t.own.end(), own.begin(), own.end());
    for (size_t e = 256 * s; e < 256 * s + 256; ++e) {
      const int code = own[e / 32 % 8];
      const uint32_t field = QuantizeOne(result[e], code, k2, ResultOffset(options, e));
      result[e] = t.codes[8 * s] == kNotFinite ? std::numeric_limits<float>::quiet_NaN()
                                               : DecodeOne(field, 1, code, k2, divide);
    }
  }
  RotateBack(options, inputs[0].size(), &result);
  return result;
}

std::vector<std::vector<float>> HbiReduceScatter(const std::vector<std::vector<float>>& inputs,
                                                 const HbiOptions& options,
                                                 std::vector<HbiTrace>* traces) {
  const size_t n = inputs.size(), count = inputs[0].size() / n;
  std::vector<std::vector<float>> results;
  std::vector<HbiTrace> local;
  std::vector<HbiTrace>& t = traces != nullptr ? *traces : local;
  t.assign(n, {});
  for (size_t r = 0; r < n; ++r) {
    std::vector<std::vector<float>> segments;
    for (const std::vector<float>& input : inputs) {
      const auto first = input.begin() + static_cast<std::ptrdiff_t>(r * count);
      segments.emplace_back(first, first + static_cast<std::ptrdiff_t>(count));
    }
    const int divide = options.average ? static_cast<int>(n) : 1;
    results.push_back(DecodedSum(Kind::kReduceScatter, segments, options, divide, &t[r]));
    RotateBack(options, count, &results.back());
  }
  return results;
}

std::vector<float> HbiAllGather(const std::vector<std::vector<float>>& inputs,
                                const HbiOptions& options, std::vector<HbiTrace>* traces) {
  std::vector<float> result;
  std::vector<HbiTrace> local;
  std::vector<HbiTrace>& t = traces != nullptr ? *traces : local;
  t.assign(inputs.size(), {});
  for (size_t r = 0; r < inputs.size(); ++r) {
    std::vector<float> x = Rotated(inputs[r], options);
    CodesAndPlan(Kind::kAllGather, {inputs[r]}, static_cast<int>(inputs.size()), options, &t[r]);
    for (size_t e = 0; e < x.size(); ++e) {
      const int code = t[r].codes[e / 32], k = t[r].k[e / 256];
      t[r].total.push_back(QuantizeOne(x[e], code, k, ResultOffset(options, e)));
      x[e] = DecodeOne(t[r].total[e], 1, code, k, 1);
    }
    RotateBack(options, inputs[r].size(), &x);
    result.insert(result.end(), x.begin(), x.end());
  }
  return result;
}

std::vector<uint8_t> HbiPack(const std::vector<uint32_t>& fields, const std::vector<int>& k,
                             int contributions) {
  std::vector<uint8_t> out;
  for (size_t s = 0; s < k.size(); ++s) {
    const int width = k[s] == 0 ? 0 : HbiWidth(contributions, k[s]);
    std::vector<uint8_t> packed(static_cast<size_t>(16 * width), 0);
    const auto put = [&packed](size_t index, int bits, uint32_t value) {
      for (int bit = 0; bit < bits; ++bit) {
        const size_t at = index * static_cast<size_t>(bits) + static_cast<size_t>(bit);
        if ((value >> bit & 1) != 0) packed[at / 8] |= static_cast<uint8_t>(1 << at % 8);
      }
    };
    const uint32_t* const v = &fields[256 * s];
    for (size_t j = 0; j < 256 && width % 2 == 0; ++j) put(j, width / 2, v[j]);
    for (size_t g = 0; g < 4 && width % 2 != 0; ++g) {
      for (size_t j = 0; j < 32; ++j) {
        const auto base = static_cast<uint32_t>(Base(width));
        put(32 * g + j, width, v[64 * g + j] + base * v[64 * g + 32 + j]);
      }
    }
    out.insert(out.end(), packed.begin(), packed.end());
  }
  return out;
}

}  // namespace inccl::test
