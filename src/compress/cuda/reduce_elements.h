// SPDX-License-Identifier: Apache-2.0
//
// The operations of plain reductions on one element (kernels/reduce.h). Code is its type in memory,
// Value its type in a fold. Encode replaces all NaNs by one, because GPUs use different bits.
#ifndef INCCL_COMPRESS_CUDA_REDUCE_ELEMENTS_H_
#define INCCL_COMPRESS_CUDA_REDUCE_ELEMENTS_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/host_device.h"
#include "base/types.h"
#include "compress/cuda/kernel_args.h"
#include "compress/float_types.h"

namespace inccl::cuda {

// The GPU's fp16 instructions match Fp16 except for the bits of NaN. Without them the conversion
// needs many instructions.
INCCL_HOST_DEVICE inline float HalfToFloat(uint16_t code) {
#ifdef __CUDA_ARCH__
  float value;
  asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(code));
  return value;
#else
  return Fp16::Decode(code);
#endif
}

INCCL_HOST_DEVICE inline uint16_t FloatToHalf(float value) {
#ifdef __CUDA_ARCH__
  uint16_t code;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(code) : "f"(value));
  return code;
#else
  return Fp16::Encode(value);
#endif
}

struct ReducedFloat64 {
  using Code = uint64_t;
  using Value = double;
  static constexpr double kLargest = std::numeric_limits<double>::max();
  static constexpr double Decode(uint64_t code) { return std::bit_cast<double>(code); }
  static constexpr uint64_t Encode(double value) {
    return value != value ? 0x7FF8000000000000u : std::bit_cast<uint64_t>(value);
  }
};

struct ReducedFloat32 {
  using Code = uint32_t;
  using Value = float;
  static constexpr float kLargest = std::numeric_limits<float>::max();
  static constexpr float Decode(uint32_t code) { return std::bit_cast<float>(code); }
  static constexpr uint32_t Encode(float value) {
    return value != value ? 0x7FC00000u : std::bit_cast<uint32_t>(value);
  }
};

struct ReducedBfloat16 {
  using Code = uint16_t;
  using Value = float;
  static constexpr float kLargest = Bf16::Decode(0x7F7F);
  static constexpr float Decode(uint16_t code) { return Bf16::Decode(code); }
  // Bf16::Encode without branches, at which lanes would diverge.
  static constexpr uint16_t Encode(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    const uint32_t code = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return static_cast<uint16_t>(value != value ? 0x7FC0u : code);
  }
};

struct ReducedFloat16 {
  using Code = uint16_t;
  using Value = float;
  static constexpr float kLargest = Fp16::Largest();
  INCCL_HOST_DEVICE static float Decode(uint16_t code) { return HalfToFloat(code); }
  INCCL_HOST_DEVICE static uint16_t Encode(float value) {
    return value != value ? uint16_t{0x7E00} : FloatToHalf(value);
  }
};

// Small::Encode without branches; NaN becomes positive.
template <class Small>
constexpr uint8_t EncodeSmall(float value) {
  const uint32_t sign = std::bit_cast<uint32_t>(value) & 0x80000000u;
  const uint32_t bits = std::bit_cast<uint32_t>(value) ^ sign;
  const uint32_t odd = (bits >> Small::kShift) & 1;
  const uint32_t normal =
      (bits - Small::kRebias + (1u << (Small::kShift - 1)) - 1 + odd) >> Small::kShift;
  const uint32_t denormal =
      std::bit_cast<uint32_t>(std::bit_cast<float>(bits) + std::bit_cast<float>(Small::kDenormal)) -
      Small::kDenormal;
  uint32_t code = bits < Small::kMinNormal ? denormal : normal;
  code = bits >= Small::kOverflow ? Small::kTop : code;
  code |= sign >> Small::kSignShift;
  return static_cast<uint8_t>(bits > 0x7F800000u ? Small::kNan : code);
}

// e5m2 is the upper half of fp16.
struct ReducedFloat8E5M2 {
  using Code = uint8_t;
  using Value = float;
  static constexpr float kLargest = Fp8E5m2::Largest();
  INCCL_HOST_DEVICE static float Decode(uint8_t code) {
    return HalfToFloat(static_cast<uint16_t>(code << 8));
  }
  static constexpr uint8_t Encode(float value) { return EncodeSmall<Fp8E5m2>(value); }
};

// Shifted to fp16, the bits of e4m3 give 2^-8 of its value, because the biases differ. NaN is a
// number there, so it is handled separately.
struct ReducedFloat8E4M3 {
  using Code = uint8_t;
  using Value = float;
  static constexpr float kLargest = Fp8E4m3::Largest();
  INCCL_HOST_DEVICE static float Decode(uint8_t code) {
    const uint32_t magnitude = code & 0x7Fu, sign = code & 0x80u;
    const float value = HalfToFloat(static_cast<uint16_t>(sign << 8 | magnitude << 7)) * 256.0f;
    return magnitude == 0x7F ? std::bit_cast<float>(0x7FC00000u) : value;
  }
  static constexpr uint8_t Encode(float value) { return EncodeSmall<Fp8E4m3>(value); }
};

// Signed and unsigned integers. In a computed Value the bits above those of a Code are undefined.
template <class Unsigned>
struct ReducedInteger {
  using Code = Unsigned;
  using Value = std::conditional_t<sizeof(Unsigned) == 8, uint64_t, uint32_t>;
  static constexpr Value Decode(Code code) { return code; }
  static constexpr Code Encode(Value value) { return static_cast<Code>(value); }
};

// The upper 32 bits of the product.
INCCL_HOST_DEVICE inline uint32_t MultiplyHigh(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(uint64_t{a} * b >> 32);
}
INCCL_HOST_DEVICE inline uint64_t MultiplyHigh(uint64_t a, uint64_t b) {
#ifdef __CUDA_ARCH__
  return __umul64hi(a, b);
#else
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#endif
}

constexpr bool IsSigned(DataType type) {
  return type == DataType::kInt8 || type == DataType::kInt32 || type == DataType::kInt64;
}

// The operation of a call for one element type.
template <class Element>
class Reduction {
 public:
  using Code = typename Element::Code;
  using Value = typename Element::Value;
  static constexpr bool kFloat = std::is_floating_point_v<Value>;

  INCCL_HOST_DEVICE Reduction(const ReduceKernelArgs& args, uint64_t inverse)
      : op_(args.op), divisor_(args.divisor) {
    if constexpr (kFloat) {
      scale_ = static_cast<Value>(args.scale);
    } else {
      scale_ = static_cast<Value>(args.factor);
      sign_ = IsSigned(args.type) ? Value{1} << (8 * sizeof(Code) - 1) : 0;
      inverse_ = static_cast<Value>(inverse);
    }
  }

  // Rounds the product as a payload would.
  INCCL_HOST_DEVICE Value Scaled(Value value) const {
    return Element::Decode(Element::Encode(value * scale_));
  }

  // sums[i] = sums[i] op x[i].
  template <uint32_t kValues>
  INCCL_HOST_DEVICE void Fold(const Value* x, Value* sums) const {
    switch (op_) {
      case ReduceOp::kMax:
        for (uint32_t i = 0; i < kValues; ++i) sums[i] = Larger(sums[i], x[i]);
        break;
      case ReduceOp::kMin:
        for (uint32_t i = 0; i < kValues; ++i) sums[i] = Smaller(sums[i], x[i]);
        break;
      case ReduceOp::kProd:
        for (uint32_t i = 0; i < kValues; ++i) sums[i] *= x[i];
        break;
      case ReduceOp::kAvg:
        for (uint32_t i = 0; i < kValues; ++i) sums[i] = Bounded(sums[i], x[i]);
        break;
      default:
        for (uint32_t i = 0; i < kValues; ++i) sums[i] += x[i];
    }
  }

  // In an average of floats, numbers beyond the type's largest one become that one.
  INCCL_HOST_DEVICE Value Final(Value sum) const {
    if constexpr (kFloat) {
      if (op_ == ReduceOp::kAvg && IsNumber(sum)) return Limited(sum, Element::kLargest);
    }
    return sum;
  }

  INCCL_HOST_DEVICE bool divides() const { return divisor_ != 1; }
  // Divides, truncating toward zero. With the largest Value m, the inverse is at least
  // (m + 1) / divisor - 1, so a quotient is too small by at most one.
  INCCL_HOST_DEVICE Value Divided(Value sum) const {
    if constexpr (kFloat) {
      return sum;
    } else {
      const Value value = Element::Encode(sum), divisor = divisor_;
      const bool negative = (value & sign_) != 0;
      const Value magnitude = negative ? Element::Encode(Value{0} - value) : value;
      Value quotient = MultiplyHigh(magnitude, inverse_);
      quotient += magnitude - quotient * divisor >= divisor ? 1 : 0;
      return negative ? Value{0} - quotient : quotient;
    }
  }

 private:
  static constexpr bool IsNumber(Value x) {
    constexpr Value kTop = std::numeric_limits<Value>::max();
    return x <= kTop && x >= -kTop;
  }
  static constexpr Value Limited(Value x, Value top) { return x > top ? top : x < -top ? -top : x; }
  // The sum of two terms of an average: that of numbers is a number.
  INCCL_HOST_DEVICE Value Bounded(Value a, Value b) const {
    if constexpr (kFloat) {
      const Value sum = a + b;
      const bool numbers = IsNumber(a) && IsNumber(b);
      return numbers ? Limited(sum, std::numeric_limits<Value>::max()) : sum;
    } else {
      return a + b;
    }
  }
  // A NaN in `a` stays, a NaN in `b` is taken. Equal numbers differ only in the sign of zeros.
  INCCL_HOST_DEVICE Value Larger(Value a, Value b) const {
    if constexpr (kFloat) {
      const Value number = a == b ? OfBits(Bits(a) & Bits(b)) : a > b ? a : b;
      return a == a ? number : a;
    } else {
      return (a ^ sign_) > (b ^ sign_) ? a : b;
    }
  }
  INCCL_HOST_DEVICE Value Smaller(Value a, Value b) const {
    if constexpr (kFloat) {
      const Value number = a == b ? OfBits(Bits(a) | Bits(b)) : a < b ? a : b;
      return a == a ? number : a;
    } else {
      return (a ^ sign_) < (b ^ sign_) ? a : b;
    }
  }
  using Word = std::conditional_t<sizeof(Value) == 8, uint64_t, uint32_t>;
  static constexpr Word Bits(Value value) { return std::bit_cast<Word>(value); }
  static constexpr Value OfBits(Word bits) { return std::bit_cast<Value>(bits); }

  ReduceOp op_;
  uint32_t divisor_;
  Value scale_{};
  Value sign_{}, inverse_{};  // for integers
};

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_REDUCE_ELEMENTS_H_
