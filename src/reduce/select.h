// SPDX-License-Identifier: Apache-2.0
//
// Selects elements of large magnitude. A magnitude is the bits of an element without its sign, as
// an integer: the order is that of magnitudes, infinity comes after all finite values and NaN after
// infinity. Indices are ascending; the results are the same on every instruction set. The union of
// what ranks have selected.
#ifndef INCCL_REDUCE_SELECT_H_
#define INCCL_REDUCE_SELECT_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "reduce/reducer.h"

namespace inccl {

inline uint32_t MagnitudeOf(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits & 0x7FFFFFFFu;
}

// Sets *indices to the `count` largest elements; of equal ones those with the lowest indices.
// count <= x.size().
void SelectLargest(std::span<const float> x, uint64_t count, std::vector<uint32_t>* indices);

// The magnitude of the element number `count` in descending order; 0 < count <= x.size().
uint32_t MagnitudeAt(std::span<const float> x, uint64_t count);

// `size` elements, a random one of each of as many equal stretches of x.
std::vector<float> SampleOf(std::span<const float> x, uint64_t size, uint64_t seed);

// Sets *indices to the elements with at least this magnitude.
void SelectFrom(std::span<const float> x, uint32_t magnitude, std::vector<uint32_t>* indices);

}  // namespace inccl

namespace inccl::sidco {

// The threshold estimate of SIDCo (arXiv 2101.10761): magnitudes follow a generalized Pareto
// distribution, whose parameters come from mean and variance. The first stage aims at a quarter of
// the elements, each later one fits the exceedances of the one before. Here a stage knows how many
// elements the stages before have left, and aims at the rest of the way, so their errors do not add
// up and the number of stages need not adapt; and of a large vector the first stage fits a sample.

inline constexpr int kStages = 4;
inline constexpr double kFirstRatio = 0.25;

// What the first stage fits; the later ones of kGamma fit a generalized Pareto distribution, too.
enum class Fit : uint8_t { kPareto, kExponential, kGamma };

// The threshold of |x| above which about a fraction `ratio` in (0, 1] of the elements lies; NaN or
// 0 where the data allow no estimate. *scratch grows to what the first stage leaves.
double Threshold(std::span<const float> x, double ratio, std::vector<float>* scratch,
                 int stages = kStages, Fit fit = Fit::kPareto);

}  // namespace inccl::sidco

namespace inccl {

// How topk finds about k * d elements of large magnitude of d.

enum class SelectorKind : uint8_t {
  kExact,    // the k * d largest elements
  kSampled,  // all above a threshold that leaves k of a random sample
  // All above a threshold of a fitted distribution; the latter two for comparisons with the paper.
  kSidco,
  kSidcoExponential,
  kSidcoGamma,
};
inline constexpr std::string_view kSelectorNames[] = {"exact", "sampled", "sidco", "sidco_exp",
                                                      "sidco_gamma"};

class Selector {
 public:
  explicit Selector(SelectorKind kind) : kind_(kind) {}

  // Whether the number of elements depends on x.size() alone.
  bool exact() const { return kind_ == SelectorKind::kExact; }
  // Sets *indices, ascending. Threshold selectors stay between half and twice k * d. `seed`: of
  // samples.
  void Select(std::span<const float> x, double k, uint64_t seed, std::vector<uint32_t>* indices);

 private:
  const SelectorKind kind_;
  std::vector<float> scratch_;
};

// The union of the ranks' bitmaps, in two rounds: an all-to-all gives each rank its n-th of all
// bitmaps, which it merges by OR; an all-gather gives the merged parts to all.
class BitmapUnion {
 public:
  static constexpr int kRounds = 2;

  // `extra`: words that each rank adds to its merged part.
  explicit BitmapUnion(uint64_t bits, size_t extra = 0) : bits_(bits), extra_(extra) {}

  void Begin(int nranks) { ranks_ = static_cast<size_t>(nranks); }
  InnerCall Call(int round) const;
  // Round 0. Returns the words of this rank's bitmap, all zero, for the caller to set.
  std::span<uint32_t> MakeBitmap(std::vector<std::byte>* out) const;
  void Merge(std::span<const std::byte> parts);
  // Round 1. Returns the extra words, for the caller to set.
  std::span<uint32_t> MakeMerged(std::vector<std::byte>* out) const;
  // Sets *members to the numbers of the bits that some rank has set, ascending. Errors name
  // `method`.
  Status Read(std::span<const std::byte> gathered, const char* method,
              std::vector<uint32_t>* members) const;
  std::span<const uint32_t> Extra(std::span<const std::byte> gathered, size_t rank) const;

 private:
  // 32-bit words that a rank merges.
  size_t SegmentWords() const { return ((bits_ + 31) / 32 + ranks_ - 1) / ranks_; }

  const uint64_t bits_;
  const size_t extra_;
  size_t ranks_ = 1;
  std::vector<uint32_t> segment_;  // merged by this rank
};

}  // namespace inccl

#endif  // INCCL_REDUCE_SELECT_H_
