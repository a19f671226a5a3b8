// SPDX-License-Identifier: Apache-2.0
//
// The products of PowerSGD. Matrices are row-major. Each result is computed in one order of
// operations, which the code writes out; nothing is contracted, so it is the same everywhere.
#ifndef INCCL_REDUCE_MATRIX_H_
#define INCCL_REDUCE_MATRIX_H_

#include <cstddef>
#include <span>

namespace inccl {

// p = m q: m has `rows` rows; column c of q is row c of `qt`, which has `rank` rows; p has a row of
// `rank` elements for each row of m.
void MultiplyByColumns(std::span<const float> m, size_t rows, std::span<const float> qt,
                       size_t rank, std::span<float> p);

// The transpose of m^T p: `rank` rows as long as those of m.
void MultiplyTransposed(std::span<const float> m, size_t rows, std::span<const float> p,
                        size_t rank, std::span<float> qt);

// m = p q, with q as its transpose `qt`.
void MultiplyFactors(std::span<const float> p, size_t rows, std::span<const float> qt, size_t rank,
                     std::span<float> m);

// Makes the columns of p orthonormal, from the first to the last (modified Gram-Schmidt). A column
// that depends on those before it becomes zero. A column that is not finite becomes NaN.
void Orthonormalize(std::span<float> p, size_t rows, size_t rank);

}  // namespace inccl

#endif  // INCCL_REDUCE_MATRIX_H_
