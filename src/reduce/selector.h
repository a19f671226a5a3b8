// SPDX-License-Identifier: Apache-2.0
//
// How topk finds about k * d elements of large magnitude of d.
#ifndef INCCL_REDUCE_SELECTOR_H_
#define INCCL_REDUCE_SELECTOR_H_

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace inccl {

enum class SelectorKind : uint8_t {
  kExact,    // the k * d largest elements
  kSampled,  // all above a threshold that leaves k of a random sample
  kSidco,    // all above a threshold of a fitted distribution (sidco.h)
};
inline constexpr std::string_view kSelectorNames[] = {"exact", "sampled", "sidco"};

class Selector {
 public:
  Selector(SelectorKind kind, double k) : kind_(kind), k_(k) {}

  // Whether the number of elements depends on x.size() alone.
  bool exact() const { return kind_ == SelectorKind::kExact; }
  // Sets *indices, ascending. Threshold selectors stay between half and twice k * d. `seed`: of
  // samples.
  void Select(std::span<const float> x, uint64_t seed, std::vector<uint32_t>* indices);

 private:
  const SelectorKind kind_;
  const double k_;
  std::vector<float> scratch_;
};

}  // namespace inccl

#endif  // INCCL_REDUCE_SELECTOR_H_
