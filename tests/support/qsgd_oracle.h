// SPDX-License-Identifier: Apache-2.0
//
// What qsgd and qsgd_ms must send and return, bit for bit: the definition in
// compress/published/qsgd.h written down a second time, slowly, element by element and from the
// whole vector, sharing no code with the library.
#ifndef INCCL_TESTS_SUPPORT_QSGD_ORACLE_H_
#define INCCL_TESTS_SUPPORT_QSGD_ORACLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace inccl::test {

struct QsgdOptions {
  std::vector<int> q;    // one: qsgd; several: qsgd_ms
  bool average = false;  // where something is summed up
  uint64_t seed = 0;
  uint64_t step = 0;
};

// One vector of a call (one segment), or one sender's in an all-gather.
class QsgdVector {
 public:
  // inputs: those of the ranks whose contributions are summed up; `ranks` are their numbers. In an
  // all-gather that is the sender alone.
  QsgdVector(const std::vector<std::vector<float>>& inputs, const std::vector<int>& ranks,
             uint64_t segment, const QsgdOptions& options);

  // What travels about the superblocks that [first, first + count) has, `first` the beginning of
  // one. `who` is an index into inputs.
  uint32_t LargestOf(size_t who, size_t first, size_t count) const;  // the first side phase
  std::vector<uint8_t> IndicesOf(size_t who, size_t first, size_t count) const;  // the second one
  std::vector<uint8_t> Indices(size_t first, size_t count) const;                // agreed
  // Of the contributions of several.
  std::vector<uint8_t> Sum(const std::vector<size_t>& who, size_t first, size_t count) const;

  uint32_t Largest(size_t window) const { return largest_[window]; }  // agreed
  std::vector<float> Result() const;

 private:
  void Agree();
  void Quantize(size_t who);
  int FinestScale(size_t who, size_t element) const;
  double Factor(size_t window, int scale) const;
  std::vector<uint8_t> Fields(const std::vector<uint32_t>& by_element, int width, size_t first,
                              size_t count) const;

  QsgdOptions options_;
  std::vector<std::vector<float>> inputs_;
  std::vector<int> ranks_;
  uint64_t segment_;
  size_t length_;
  std::vector<uint32_t> largest_;             // by window
  std::vector<int> scale_;                    // by element
  std::vector<std::vector<uint32_t>> codes_;  // by input and element
};

}  // namespace inccl::test

#endif  // INCCL_TESTS_SUPPORT_QSGD_ORACLE_H_
