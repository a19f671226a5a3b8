// SPDX-License-Identifier: Apache-2.0
//
// A 64-bit digest of a result's bytes: ranks compare it, and rows of different runs can be compared
// by it. Not cryptographic. Every step is a bijection of the state for fixed input, so two buffers
// of equal length that differ in one 8-byte word always have different digests; otherwise
// differing buffers collide with probability about 2^-64.
#ifndef INCCL_PERF_SUPPORT_DIGEST_H_
#define INCCL_PERF_SUPPORT_DIGEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace inccl::perf {

// Digest of `bytes`, read as little-endian words; a function of contents and length only.
uint64_t Digest(std::span<const std::byte> bytes);

// Digest of a sequence of digests, in order: of a result that lies in parts on the ranks.
uint64_t CombineDigests(std::span<const uint64_t> digests);

// 16 hexadecimal digits.
std::string DigestText(uint64_t digest);

}  // namespace inccl::perf

#endif  // INCCL_PERF_SUPPORT_DIGEST_H_
