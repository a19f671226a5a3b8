// SPDX-License-Identifier: Apache-2.0
#include "support/hbi_oracle.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <tuple>

namespace inccl::test {
namespace {

constexpr size_t kBlockElements = 32, kSuperElements = 256, kWindowElements = size_t{1} << 20;
constexpr int kNotFinite = 255;

float FloatOf(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

// ---------------------------------------------------------------- scales

// The exponent of a code in quarter octaves, from a table that is walked up step by step.
const std::array<int, 246>& Exponents() {
  static const std::array<int, 246> table = [] {
    std::array<int, 246> q{};
    q[1] = -392;
    for (size_t c = 2; c < q.size(); ++c) q[c] = q[c - 1] + (c <= 17 || c > 217 ? 16 : 1);
    return q;
  }();
  return table;
}

double ScaleOf(int code) {
  static constexpr uint32_t kMantissa[4] = {0x3f800000, 0x3f9837f0, 0x3fb504f3, 0x3fd744fd};
  const int q = Exponents()[static_cast<size_t>(code)];
  const int octave = static_cast<int>(std::floor(q / 4.0));
  return double{FloatOf(kMantissa[q - 4 * octave])} * std::pow(2.0, octave);
}

// By search: the first code whose scale is not below the largest magnitude.
int CodeOf(const float* block) {
  double largest = 0;
  for (size_t j = 0; j < kBlockElements; ++j) {
    if (!std::isfinite(block[j])) return kNotFinite;
    largest = std::max(largest, std::fabs(double{block[j]}));
  }
  if (largest == 0) return 0;
  static const std::vector<double> scales = [] {
    std::vector<double> all;
    for (int c = 1; c <= 245; ++c) all.push_back(ScaleOf(c));
    return all;
  }();
  return 1 +
         static_cast<int>(std::lower_bound(scales.begin(), scales.end(), largest) - scales.begin());
}

// ---------------------------------------------------------------- the plan

int BitLength(int x) {
  int length = 0;
  for (; x != 0; x >>= 1) ++length;
  return length;
}

struct Option {
  int cost;
  double error;
  int k, k2;
  int from;  // smallest exponent minus delta at which it is taken
};

// What is planned for: the sum and its second quantization, a sum alone, one rank's payload.
enum class Kind { kAllReduce, kReduceScatter, kAllGather };

// What one element of the first rank's part meets before it is complete there.
struct Hops {
  std::vector<int> contributions;  // in the fields of each payload with K levels
  int sums = 0;                    // payloads with K2 levels: sums of groups
  int coded = 0;                   // payloads that have scale codes of their own
};

bool InGroups(const HbiOptions& options, int n) { return options.m > 1 && options.m < n; }

Hops HopsOf(Kind kind, int n, const HbiOptions& options) {
  Hops hops;
  if (kind == Kind::kAllGather) return hops;
  if (InGroups(options, n)) {
    for (int first = 0; first < n; first += options.m) {
      const int members = std::min(options.m, n - first);
      if (first == 0 || members == 1) {
        hops.contributions.insert(hops.contributions.end(),
                                  static_cast<size_t>(first == 0 ? members - 1 : 1), 1);
        continue;
      }
      hops.contributions.insert(hops.contributions.end(), static_cast<size_t>(members - 1), 1);
      ++hops.sums;
      ++hops.coded;
    }
    return hops;
  }
  for (int h = 1; h < n; ++h) hops.contributions.push_back(options.ring ? h : 1);
  return hops;
}

std::vector<Option> Options(Kind kind, int n, const HbiOptions& options) {
  const Hops hops = HopsOf(kind, n, options);
  const auto cost_of_sum = [&](int k, int k2) {
    int cost = hops.sums * BitLength(2 * k2);
    for (const int h : hops.contributions) cost += BitLength(2 * h * k);
    return cost;
  };
  static const int kLevels[] = {1,   2,   3,   4,   5,    6,    7,    9,    11,  13,  15,
                                19,  23,  27,  31,  39,   47,   55,   63,   95,  127, 191,
                                255, 383, 511, 767, 1023, 1535, 2047, 3071, 4095};
  std::vector<Option> all;
  if (!options.unbiased) all.push_back({0, n * 0.10, 0, 0, 0});
  for (const int k : kLevels) {
    if (2 * n * k >= 65536) continue;
    if (kind == Kind::kAllGather) {
      all.push_back({BitLength(2 * k), n / (12.0 * k * k), k, 0, 0});
      continue;
    }
    if (kind == Kind::kReduceScatter) {
      all.push_back({cost_of_sum(k, 0), n / (12.0 * k * k), k, 0, 0});
      continue;
    }
    for (const int k2 : kLevels) {
      if (2 * n * k2 >= 65536) continue;
      const int cost = (n - 1) * BitLength(2 * k2) + cost_of_sum(k, k2);
      const double result_weight = (InGroups(options, n) ? 1.32 : 0.66) * n;
      const double sum_error = (n + 1) / (12.0 * k * k);
      const double result_error = result_weight / (12.0 * k2 * k2);
      all.push_back({cost, sum_error + result_error, k, k2, 0});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Option& a, const Option& b) {
    return a.cost != b.cost ? a.cost < b.cost : a.error < b.error;
  });
  std::vector<Option> hull;
  for (const Option& option : all) {
    if (!hull.empty() && option.error >= hull.back().error) continue;
    if (!hull.empty() && option.cost == hull.back().cost) hull.pop_back();
    while (hull.size() > 1) {
      const Option& a = hull[hull.size() - 2];
      const Option& b = hull.back();
      const double left = (b.error - a.error) * (option.cost - a.cost);
      const double right = (option.error - a.error) * (b.cost - a.cost);
      if (left < right) break;
      hull.pop_back();
    }
    hull.push_back(option);
  }
  hull[0].from = -(1 << 20);
  for (size_t i = 1; i < hull.size(); ++i) {
    const double gain = (hull[i - 1].error - hull[i].error) / (hull[i].cost - hull[i - 1].cost);
    int d = -400;
    const auto reached = [&] {
      const bool odd = d % 2 != 0;
      return gain * std::pow(2.0, std::floor(d / 2.0)) * (odd ? 1.4142135623730951 : 1.0) >= 1.0;
    };
    while (!reached()) ++d;
    hull[i].from = d;
  }
  return hull;
}

// Index of the option taken at this exponent and delta.
int Taken(const std::vector<Option>& options, int exponent, int delta) {
  int taken = 0;
  for (size_t i = 1; i < options.size(); ++i) {
    if (exponent - delta >= options[i].from) taken = static_cast<int>(i);
  }
  return taken;
}

int64_t BudgetOf(Kind kind, int n, const HbiOptions& options, size_t superblocks) {
  const auto all = static_cast<int64_t>(superblocks);
  const int bits8 = options.bits8;
  if (kind == Kind::kAllGather) return (bits8 - 2) * all;
  const int coded = HopsOf(kind, n, options).coded;
  return ((n - 1) * (kind == Kind::kReduceScatter ? bits8 - 4 : 2 * bits8 - 6) - 2 * coded) * all;
}

void PlanWindow(Kind kind, const uint8_t* codes, size_t superblocks, int n,
                const HbiOptions& options, HbiTrace* trace) {
  std::vector<int> top(superblocks, 0);
  for (size_t s = 0; s < superblocks; ++s) {
    for (size_t b = 0; b < 8; ++b) {
      const int code = codes[8 * s + b];
      if (code != kNotFinite) top[s] = std::max(top[s], code);
    }
  }
  if (options.k > 0) {
    for (const int code : top) {
      trace->k.push_back(code > 0 ? options.k : 0);
      trace->k2.push_back(code > 0 && kind == Kind::kAllReduce ? options.k2 : 0);
    }
    return;
  }
  static std::map<std::tuple<Kind, int, bool, bool, int>, std::vector<Option>> known;
  std::vector<Option>& hull = known[{kind, n, options.ring, options.unbiased, options.m}];
  if (hull.empty()) hull = Options(kind, n, options);

  std::map<int, int64_t> how_many;
  for (const int code : top) ++how_many[code];
  how_many.erase(0);
  const int64_t budget = BudgetOf(kind, n, options, superblocks);
  const auto cost8 = [&](int delta) {
    int64_t cost = 0;
    for (const auto& [code, count] : how_many) {
      const int taken = Taken(hull, Exponents()[static_cast<size_t>(code)], delta);
      cost += 8 * count * hull[static_cast<size_t>(taken)].cost;
    }
    return cost;
  };
  int delta = -1200;
  while (cost8(delta) > budget && delta < 1200) ++delta;
  int64_t spent = cost8(delta);
  std::map<int, std::pair<int, int>> taken_at;  // by code: at delta, at delta - 1
  for (const auto& [code, count] : how_many) {
    const int exponent = Exponents()[static_cast<size_t>(code)];
    taken_at[code] = {Taken(hull, exponent, delta), Taken(hull, exponent, delta - 1)};
  }
  for (const int code : top) {
    if (code == 0) {
      trace->k.push_back(0);
      trace->k2.push_back(0);
      continue;
    }
    auto [now, next] = taken_at[code];
    for (; now < next; ++now) {
      const int64_t extra = 8 * int64_t{hull[static_cast<size_t>(now) + 1].cost -
                                        hull[static_cast<size_t>(now)].cost};
      if (spent + extra > budget) break;
      spent += extra;
    }
    trace->k.push_back(hull[static_cast<size_t>(now)].k);
    trace->k2.push_back(hull[static_cast<size_t>(now)].k2);
  }
  trace->window_bits.push_back(static_cast<double>(spent) / 8 * kSuperElements);
  trace->window_budget.push_back(static_cast<double>(budget) / 8 * kSuperElements);
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
    for (size_t b = 0; b < trace->codes.size(); ++b) {
      trace->codes[b] = std::max(trace->codes[b], static_cast<uint8_t>(CodeOf(&x[32 * b])));
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
  const auto shift = static_cast<uint32_t>(65536 * static_cast<int64_t>(rank) / nranks);
  std::vector<uint32_t> codes(x.size());
  for (size_t e = 0; e < x.size(); ++e) {
    const uint32_t offset = (Random16(options.seed, options.step, e) + shift) % 65536;
    codes[e] = QuantizeOne(x[e], trace.codes[e / 32], trace.k[e / 256], offset);
  }
  return codes;
}

namespace {

using Vector = std::vector<float>;

// Sums on the agreed scales that are quantized anew where a group of m ends. `x` are all ranks'
// rotated elements; the sum of those of block b.
class GroupedBlock {
 public:
  GroupedBlock(const std::vector<Vector>& x, const HbiOptions& options, const HbiTrace& trace,
               size_t block)
      : x_(x),
        options_(options),
        b_(block),
        n_(static_cast<int>(x.size())),
        k_(trace.k[block / 8]),
        k2_(trace.k2[block / 8]),
        agreed_(trace.codes[block]) {}

  // That of neighbouring ranks, then of their sums.
  Vector Sum() const {
    Vector sum(32, 0.0f);
    if (k_ == 0) return sum;
    const int groups = (n_ + options_.m - 1) / options_.m;
    for (int g = 0; g < groups; ++g) {
      const int first = g * options_.m, members = std::min(options_.m, n_ - first);
      Fields fields(32, 0);
      for (int rank = first; rank < first + members; ++rank) {
        Quantize(Of(rank), agreed_, k_, 0, static_cast<uint32_t>(65536 * rank / n_), &fields);
      }
      Vector y = Decoded(fields, members, agreed_, k_);
      if (members > 1) {
        const int own = CodeOf(y.data());
        fields.assign(32, 0);
        if (options_.unbiased) {
          Quantize(y, own, k2_, 3, static_cast<uint32_t>(65536 * g / groups), &fields);
        } else {
          for (size_t j = 0; j < 32; ++j) fields[j] = QuantizeOne(y[j], own, k2_, 0x8000);
        }
        y = Decoded(fields, 1, own, k2_);
      }
      for (size_t j = 0; j < 32 && g > 0; ++j) sum[j] += y[j];
      if (g == 0) sum = y;
    }
    return sum;
  }

 private:
  using Fields = std::vector<uint32_t>;

  Vector Of(int rank) const {
    const auto first = x_[static_cast<size_t>(rank)].begin() + static_cast<std::ptrdiff_t>(32 * b_);
    return {first, first + 32};
  }
  void Quantize(const Vector& y, int code, int k, uint64_t salt, uint32_t shift,
                Fields* fields) const {
    for (size_t j = 0; j < 32; ++j) {
      const uint32_t random = Random16(options_.seed, options_.step, 32 * b_ + j, salt);
      (*fields)[j] += QuantizeOne(y[j], code, k, (random + shift) % 65536);
    }
  }
  static Vector Decoded(const Fields& fields, int contributions, int code, int k) {
    Vector y;
    for (const uint32_t field : fields) y.push_back(DecodeOne(field, contributions, code, k, 1));
    return y;
  }

  const std::vector<Vector>& x_;
  const HbiOptions& options_;
  size_t b_;
  int n_, k_, k2_, agreed_;
};

// All sums, before their second quantization; padded.
Vector GroupedSum(const std::vector<Vector>& inputs, const HbiOptions& options, HbiTrace* trace) {
  const int n = static_cast<int>(inputs.size());
  CodesAndPlan(Kind::kAllReduce, inputs, n, options, trace);
  std::vector<Vector> x;
  for (const Vector& input : inputs) x.push_back(Rotated(input, options));
  Vector result;
  for (size_t b = 0; b < trace->codes.size(); ++b) {
    const Vector y = GroupedBlock(x, options, *trace, b).Sum();
    result.insert(result.end(), y.begin(), y.end());
  }
  return result;
}

}  // namespace

std::vector<float> HbiAllReduce(const std::vector<std::vector<float>>& inputs,
                                const HbiOptions& options, HbiTrace* trace) {
  const int n = static_cast<int>(inputs.size());
  HbiTrace local;
  HbiTrace& t = trace != nullptr ? *trace : local;
  const int divide = options.average ? n : 1;
  std::vector<float> result = InGroups(options, n) ? GroupedSum(inputs, options, &t)
                                                   : DecodedSum(Kind::kAllReduce, inputs, options,
                                                                options.exact ? divide : 1, &t);
  if (!options.exact) {
    for (size_t b = 0; b < t.codes.size(); ++b) {
      const int code = CodeOf(&result[32 * b]), k2 = t.k2[b / 8];
      for (size_t e = 32 * b; e < 32 * b + 32; ++e) {
        const uint32_t field = QuantizeOne(result[e], code, k2, ResultOffset(options, e));
        result[e] = t.codes[b] == kNotFinite ? std::numeric_limits<float>::quiet_NaN()
                                             : DecodeOne(field, 1, code, k2, divide);
      }
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
    const int width = k[s] == 0 ? 0 : BitLength(2 * contributions * k[s]);
    std::vector<uint8_t> packed(static_cast<size_t>(32 * width), 0);
    for (size_t j = 0; j < kSuperElements; ++j) {
      for (int bit = 0; bit < width; ++bit) {
        const size_t at = j * static_cast<size_t>(width) + static_cast<size_t>(bit);
        if ((fields[256 * s + j] >> bit & 1) != 0)
          packed[at / 8] |= static_cast<uint8_t>(1 << at % 8);
      }
    }
    out.insert(out.end(), packed.begin(), packed.end());
  }
  return out;
}

}  // namespace inccl::test
