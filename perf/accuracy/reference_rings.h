// SPDX-License-Identifier: Apache-2.0
//
// What a compressed sum is compared with: rings that decode, add and encode again at every hop, as
// formats without a homomorphic sum must. The partial sum starts at rank 0 and passes the ranks in
// order; a real ring starts each part at another rank, which changes who rounds, not how much.
// Plain CPU code, no state.
#ifndef INCCL_PERF_ACCURACY_REFERENCE_RINGS_H_
#define INCCL_PERF_ACCURACY_REFERENCE_RINGS_H_

#include <cstdint>
#include <span>
#include <vector>

namespace inccl::tools {

// Bits per element that travel.
inline constexpr double kBf16Bits = 16.0;
inline constexpr double kMxfp8Bits = 8.25;  // 8 per element, 8 per block of 32

// Elements that share a scale in MXFP8.
inline constexpr uint64_t kMxBlock = 32;

// `x` rounded to bf16, ties to even. NaN stays NaN.
float RoundToBf16(float x);

// Encodes and decodes up to kMxBlock values in place as OCP Microscaling MXFP8 (specification 1.0,
// 2023): elements E4M3 (largest 448, subnormals down to 2^-9), rounded to nearest, ties to even,
// saturating; the scale E8M0, 2^(floor(log2 of the largest magnitude) - 8) within 2^-127..2^127.
// Finite input only.
void RoundToMxfp8(std::span<double> block);

// Sum over ranks (equal lengths, at least one rank), rounded to bf16 after each hop.
std::vector<float> Bf16Ring(std::span<const std::vector<float>> ranks);

// Sum over ranks through MXFP8, encoded at every hop; what the last hop encoded is the result.
std::vector<float> Mxfp8Ring(std::span<const std::vector<float>> ranks);

}  // namespace inccl::tools

#endif  // INCCL_PERF_ACCURACY_REFERENCE_RINGS_H_
