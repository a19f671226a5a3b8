// SPDX-License-Identifier: Apache-2.0
//
// The types of callers' elements, and loads and stores of the eight elements of a lane. These use
// vectors of 16 bytes if the buffer is aligned to them and all eight elements exist.
#ifndef INCCL_COMPRESS_CUDA_ELEMENTS_H_
#define INCCL_COMPRESS_CUDA_ELEMENTS_H_

#include <bit>
#include <cstdint>
#include <cstring>

#include "base/host_device.h"
#include "compress/cuda/kernel_args.h"
#include "compress/float_types.h"

namespace inccl::cuda {

inline constexpr uint32_t kLaneElements = 8;

struct Fp32 {
  using Code = uint32_t;
  static constexpr float Decode(uint32_t code) { return std::bit_cast<float>(code); }
  static constexpr uint32_t Encode(float value) { return std::bit_cast<uint32_t>(value); }
};

struct Fp64 {
  using Code = uint64_t;
  static constexpr float Decode(uint64_t code) {
    return static_cast<float>(std::bit_cast<double>(code));
  }
  // NaN gets the same bits on all processors.
  static constexpr uint64_t Encode(float value) {
    if (value != value) return 0x7FF8000000000000u;
    return std::bit_cast<uint64_t>(static_cast<double>(value));
  }
};

struct alignas(16) Words4 {
  uint32_t at[4];
};

INCCL_HOST_DEVICE inline Words4 Load16(const void* from) {
#ifdef __CUDA_ARCH__
  const uint4 v = *static_cast<const uint4*>(from);
  return {{v.x, v.y, v.z, v.w}};
#else
  return *static_cast<const Words4*>(from);
#endif
}

INCCL_HOST_DEVICE inline void Store16(const Words4& words, void* to) {
#ifdef __CUDA_ARCH__
  *static_cast<uint4*>(to) = make_uint4(words.at[0], words.at[1], words.at[2], words.at[3]);
#else
  *static_cast<Words4*>(to) = words;
#endif
}

// Reads from a table that no kernel writes.
INCCL_HOST_DEVICE inline float LoadConstant(const float* from) {
#ifdef __CUDA_ARCH__
  return __ldg(from);
#else
  return *from;
#endif
}

INCCL_HOST_DEVICE inline bool IsAligned16(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
}

// Eight codes in memory format.
template <class Code>
struct EightCodes {
  static constexpr uint32_t kVectors = sizeof(Code) / 2;
  static constexpr uint32_t kPerVector = 8 / kVectors;
  Words4 vectors[kVectors];

  INCCL_HOST_DEVICE Code Get(uint32_t i) const {
    if constexpr (sizeof(Code) == 2) {
      return static_cast<Code>(vectors[0].at[i / 2] >> (i % 2 * 16));
    } else if constexpr (sizeof(Code) == 4) {
      return vectors[i / 4].at[i % 4];
    } else {
      const uint32_t* words = &vectors[i / 2].at[i % 2 * 2];
      return words[0] | uint64_t{words[1]} << 32;
    }
  }
  // Called for i in ascending order, from 0 on.
  INCCL_HOST_DEVICE void Set(uint32_t i, Code code) {
    if constexpr (sizeof(Code) == 2) {
      uint32_t& word = vectors[0].at[i / 2];
      word = i % 2 == 0 ? uint32_t{code} : word | uint32_t{code} << 16;
    } else if constexpr (sizeof(Code) == 4) {
      vectors[i / 4].at[i % 4] = code;
    } else {
      vectors[i / 2].at[i % 2 * 2] = static_cast<uint32_t>(code);
      vectors[i / 2].at[i % 2 * 2 + 1] = static_cast<uint32_t>(code >> 32);
    }
  }
};

// Loads elements first .. first + 7 of `count`; zeros beyond the end.
template <class Type>
INCCL_HOST_DEVICE void LoadEight(const void* elements, uint32_t first, uint32_t count, float* x) {
  using Code = typename Type::Code;
  const Code* from = static_cast<const Code*>(elements) + first;
  if (first + kLaneElements <= count && IsAligned16(elements)) {
    EightCodes<Code> codes;
    for (uint32_t v = 0; v < codes.kVectors; ++v) {
      codes.vectors[v] = Load16(from + v * codes.kPerVector);
    }
    for (uint32_t i = 0; i < kLaneElements; ++i) x[i] = Type::Decode(codes.Get(i));
  } else {
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      x[i] = first + i < count ? Type::Decode(from[i]) : 0.0f;
    }
  }
}

// Stores fp32 elements. A lane has 32 bytes, one sector of memory; a direct store would write half
// of every sector per instruction. So two neighbours exchange halves first, and each pair of lanes
// writes one sector at a time.
template <class Warp>
INCCL_HOST_DEVICE void StoreSectors(const Warp& warp, const EightCodes<uint32_t>& codes,
                                    uint32_t* to) {
  const bool odd = warp.lane() % 2 != 0;
  const Words4 &low = codes.vectors[0], &high = codes.vectors[1];
  Words4 first, second;
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t got = warp.Get(odd ? low.at[i] : high.at[i], warp.lane() ^ 1);
    first.at[i] = odd ? got : low.at[i];
    second.at[i] = odd ? high.at[i] : got;
  }
  // Start of the pair's elements.
  uint32_t* pair = odd ? to - kLaneElements + 4 : to;
  Store16(first, pair);
  Store16(second, pair + kLaneElements);
}

// Stores the lanes' eight elements of one superblock; lane l has first + 8 l .. first + 8 l + 7.
template <class Type, class Warp>
INCCL_HOST_DEVICE void StoreSuperblock(const Warp& warp, const float* y, void* elements,
                                       uint32_t first, uint32_t count) {
  using Code = typename Type::Code;
  EightCodes<Code> codes;
  for (uint32_t i = 0; i < kLaneElements; ++i) codes.Set(i, Type::Encode(y[i]));
  const uint32_t mine = first + warp.lane() * kLaneElements;
  Code* to = static_cast<Code*>(elements) + mine;
  if (first + kWarp * kLaneElements <= count && IsAligned16(elements)) {
    if constexpr (sizeof(Code) == 4) {
      StoreSectors(warp, codes, to);
    } else {
      for (uint32_t v = 0; v < codes.kVectors; ++v) {
        Store16(codes.vectors[v], to + v * codes.kPerVector);
      }
    }
  } else {
    for (uint32_t i = 0; i < kLaneElements; ++i) {
      if (mine + i < count) to[i] = codes.Get(i);
    }
  }
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_ELEMENTS_H_
