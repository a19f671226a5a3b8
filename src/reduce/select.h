// SPDX-License-Identifier: Apache-2.0
//
// Selects elements of large magnitude. A magnitude is the bits of an element without its sign, as
// an integer: the order is that of magnitudes, infinity comes after all finite values and NaN after
// infinity. Indices are ascending; the results are the same on every instruction set.
#ifndef INCCL_REDUCE_SELECT_H_
#define INCCL_REDUCE_SELECT_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

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

#endif  // INCCL_REDUCE_SELECT_H_
