// SPDX-License-Identifier: Apache-2.0
//
// One thread's share of a plain reduction: it combines elements of all inputs and writes them to
// all outputs. Threads are independent. If all inputs and outputs have the same offset from 16-byte
// alignment, a thread uses vectors of 16 bytes, several at a time, and single elements before and
// after them; else it uses single elements only.
#ifndef INCCL_COMPRESS_CUDA_REDUCE_H_
#define INCCL_COMPRESS_CUDA_REDUCE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/host_device.h"
#include "base/types.h"
#include "compress/cuda/elements.h"
#include "compress/cuda/kernel_args.h"
#include "compress/float_types.h"

namespace inccl::cuda {

// The operations of plain reductions on one element (kernels/reduce.h). Code is its type in memory,
// Value its type in a fold. Encode replaces all NaNs by one, because GPUs use different bits.

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

inline constexpr uint32_t kReduceThreads = 256;  // threads per block
inline constexpr uint32_t kReducedAtOnce = 4;    // single elements per thread at a time

// Vectors per thread at a time. Together with the next ones, which are prefetched, they leave room
// for several thread blocks on a multiprocessor.
template <class Element>
inline constexpr uint32_t kReducedVectors = std::min<uint32_t>(sizeof(typename Element::Code), 4);

// The values that all threads share: single elements up to `head`, then vectors, then the rest.
struct ReducePlan {
  uint64_t head = 0;
  uint64_t vectors = 0;
  uint64_t single = 0;   // elements outside of vectors
  uint64_t scaled = 0;   // bit i: input i is multiplied
  uint64_t inverse = 0;  // for Reduction::Divided
  bool copies = false;   // one input, copied unchanged (including NaN)
};

// True if this reduction is supported. If not, *misaligned says whether a pointer is the reason.
inline bool IsReduction(const ReduceKernelArgs& args, bool* misaligned) {
  *misaligned = false;
  if (static_cast<int>(args.type) >= kDataTypes || static_cast<int>(args.op) >= kReduceOpKinds ||
      args.inputs < 1 || args.inputs > kMaxSources || args.outputs < 1 ||
      args.outputs > kMaxReduced || args.divisor < 1 || (args.divisor != 1 && IsFloat(args.type))) {
    return false;
  }
  const auto aligned = [&](const void* memory) {
    return reinterpret_cast<uintptr_t>(memory) % SizeOf(args.type) == 0;
  };
  *misaligned = !std::all_of(args.in, args.in + args.inputs, aligned) ||
                !std::all_of(args.out, args.out + args.outputs, aligned);
  return !*misaligned;
}

inline ReducePlan PlanReduction(const ReduceKernelArgs& args) {
  const uint64_t size = SizeOf(args.type);
  const auto beyond = [](const void* memory) { return reinterpret_cast<uintptr_t>(memory) % 16; };
  const uint64_t first = beyond(args.in[0]);
  const auto alike = [&](const void* memory) { return beyond(memory) == first; };
  ReducePlan plan;
  if (std::all_of(args.in, args.in + args.inputs, alike) &&
      std::all_of(args.out, args.out + args.outputs, alike)) {
    plan.head = std::min((16 - first) % 16 / size, args.count);
    plan.vectors = (args.count - plan.head) * size / 16;
  }
  plan.single = args.count - plan.vectors * 16 / size;
  plan.inverse = (size == 8 ? ~uint64_t{0} : ~uint32_t{0}) / args.divisor;
  if (args.op == ReduceOp::kPreMulSum || (args.op == ReduceOp::kAvg && IsFloat(args.type))) {
    plan.scaled = args.scaled;
  }
  plan.copies = args.inputs == 1 && args.divisor == 1 && (plan.scaled & 1) == 0;
  return plan;
}

// Number of thread blocks in which threads have work.
template <class Element>
uint64_t ReduceBlocks(const ReducePlan& plan) {
  const auto blocks = [](uint64_t units, uint64_t at_once) {
    return (units + kReduceThreads * at_once - 1) / (kReduceThreads * at_once);
  };
  return std::max(blocks(plan.vectors, kReducedVectors<Element>),
                  blocks(plan.single, kReducedAtOnce));
}

struct ReducePlace {
  uint32_t thread, block, blocks;
};

// The unit of loads and stores: a vector, or one element.
template <class Code>
struct OneReduced {
  using Unit = Code;
  static constexpr uint32_t kCodes = 1;
  INCCL_HOST_DEVICE static uint64_t ElementOf(const ReducePlan& plan, uint64_t unit) {
    return unit < plan.head ? unit : unit + plan.vectors * (16 / sizeof(Code));
  }
  INCCL_HOST_DEVICE static Code Load(const Code* from) { return *from; }
  INCCL_HOST_DEVICE static void Store(Code code, Code* to) { *to = code; }
  INCCL_HOST_DEVICE static Code Get(Code unit, uint32_t) { return unit; }
  INCCL_HOST_DEVICE static void Set(Code* unit, uint32_t, Code code) { *unit = code; }
};

template <class Code>
struct VectorReduced {
  using Unit = Words4;
  static constexpr uint32_t kCodes = 16 / sizeof(Code);
  static constexpr uint32_t kPerWord = sizeof(Code) < 4 ? 4 / sizeof(Code) : 1;
  INCCL_HOST_DEVICE static uint64_t ElementOf(const ReducePlan& plan, uint64_t unit) {
    return plan.head + unit * kCodes;
  }
  INCCL_HOST_DEVICE static Words4 Load(const Code* from) { return Load16(from); }
  // Inline assembly, because the compiler would generate four stores.
  INCCL_HOST_DEVICE static void Store(const Words4& words, Code* to) {
#ifdef __CUDA_ARCH__
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(words.at[0]), "r"(words.at[1]),
                   "r"(words.at[2]), "r"(words.at[3])
                 : "memory");
#else
    Store16(words, to);
#endif
  }
  INCCL_HOST_DEVICE static Code Get(const Words4& words, uint32_t i) {
    if constexpr (sizeof(Code) == 8) {
      return words.at[2 * i] | uint64_t{words.at[2 * i + 1]} << 32;
    } else {
      return static_cast<Code>(words.at[i / kPerWord] >> (i % kPerWord * 8 * sizeof(Code) % 32));
    }
  }
  // Called for i in ascending order, from 0 on.
  INCCL_HOST_DEVICE static void Set(Words4* words, uint32_t i, Code code) {
    if constexpr (sizeof(Code) == 8) {
      words->at[2 * i] = static_cast<uint32_t>(code);
      words->at[2 * i + 1] = static_cast<uint32_t>(code >> 32);
    } else {
      const uint32_t bits = static_cast<uint32_t>(code) << (i % kPerWord * 8 * sizeof(Code) % 32);
      uint32_t& word = words->at[i / kPerWord];
      word = i % kPerWord == 0 ? bits : word | bits;
    }
  }
};

// kUnits units of one thread from `first` on, at a distance of a block's threads.
template <class Element, class Access, uint32_t kUnits>
class ReduceUnits {
 public:
  using Code = typename Element::Code;
  using Value = typename Element::Value;
  using Unit = typename Access::Unit;

  INCCL_HOST_DEVICE ReduceUnits(const ReduceKernelArgs& args, const ReducePlan& plan,
                                uint64_t first, uint64_t count)
      : args_(args), plan_(plan) {
    for (uint32_t u = 0; u < kUnits; ++u) {
      const uint64_t unit = first + u * kReduceThreads;
      there_[u] = unit < count;
      at_[u] = Access::ElementOf(plan, unit);
    }
  }

  INCCL_HOST_DEVICE void Run(const Reduction<Element>& reduction) const {
    Unit now[kUnits], next[kUnits] = {};
    Load(0, now);
    if (plan_.copies) return Store(now);
    if (args_.inputs > 1) Load(1, next);
    Value sums[kValues];
    Decode(reduction, 0, now, sums);
    for (uint32_t k = 1; k < args_.inputs; ++k) {
      for (uint32_t u = 0; u < kUnits; ++u) now[u] = next[u];
      if (k + 1 < args_.inputs) Load(k + 1, next);
      Value x[kValues];
      Decode(reduction, k, now, x);
      reduction.template Fold<kValues>(x, sums);
    }
    if (reduction.divides()) {
      for (Value& sum : sums) sum = reduction.Divided(sum);
    }
    for (uint32_t i = 0; i < kValues; ++i) {
      Access::Set(&now[i / Access::kCodes], i % Access::kCodes,
                  Element::Encode(reduction.Final(sums[i])));
    }
    Store(now);
  }

 private:
  static constexpr uint32_t kValues = kUnits * Access::kCodes;

  INCCL_HOST_DEVICE void Load(uint32_t input, Unit* units) const {
    const auto* const in = static_cast<const Code*>(args_.in[input]);
    for (uint32_t u = 0; u < kUnits; ++u) units[u] = there_[u] ? Access::Load(in + at_[u]) : Unit{};
  }
  INCCL_HOST_DEVICE void Store(const Unit* units) const {
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (uint32_t k = 0; k < args_.outputs; ++k) {
      auto* const out = static_cast<Code*>(args_.out[k]);
      for (uint32_t u = 0; u < kUnits; ++u) {
        if (there_[u]) Access::Store(units[u], out + at_[u]);
      }
    }
  }
  INCCL_HOST_DEVICE void Decode(const Reduction<Element>& reduction, uint32_t input,
                                const Unit* units, Value* x) const {
    for (uint32_t i = 0; i < kValues; ++i) {
      x[i] = Element::Decode(Access::Get(units[i / Access::kCodes], i % Access::kCodes));
    }
    if ((plan_.scaled >> input & 1) == 0) return;
    for (uint32_t i = 0; i < kValues; ++i) x[i] = reduction.Scaled(x[i]);
  }

  const ReduceKernelArgs& args_;
  const ReducePlan& plan_;
  bool there_[kUnits];
  uint64_t at_[kUnits];  // elements
};

template <class Element>
INCCL_HOST_DEVICE void ReduceThread(const ReduceKernelArgs& args, const ReducePlan& plan,
                                    const ReducePlace& place) {
  using Code = typename Element::Code;
  constexpr uint32_t kVectors = kReducedVectors<Element>;
  const Reduction<Element> reduction(args, plan.inverse);
  uint64_t first = uint64_t{place.block} * kReduceThreads * kVectors + place.thread;
  for (; first < plan.vectors; first += uint64_t{place.blocks} * kReduceThreads * kVectors) {
    ReduceUnits<Element, VectorReduced<Code>, kVectors>(args, plan, first, plan.vectors)
        .Run(reduction);
  }
  first = uint64_t{place.block} * kReduceThreads * kReducedAtOnce + place.thread;
  for (; first < plan.single; first += uint64_t{place.blocks} * kReduceThreads * kReducedAtOnce) {
    ReduceUnits<Element, OneReduced<Code>, kReducedAtOnce>(args, plan, first, plan.single)
        .Run(reduction);
  }
}

// Calls function(Reduced...{}) for a type; returns `otherwise` for an unknown type.
template <class Function>
int WithReduced(DataType type, int otherwise, Function function) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8: return function(ReducedInteger<uint8_t>{});
    case DataType::kInt32:
    case DataType::kUint32: return function(ReducedInteger<uint32_t>{});
    case DataType::kInt64:
    case DataType::kUint64: return function(ReducedInteger<uint64_t>{});
    case DataType::kFloat16: return function(ReducedFloat16{});
    case DataType::kFloat32: return function(ReducedFloat32{});
    case DataType::kFloat64: return function(ReducedFloat64{});
    case DataType::kBfloat16: return function(ReducedBfloat16{});
    case DataType::kFloat8E4M3: return function(ReducedFloat8E4M3{});
    case DataType::kFloat8E5M2: return function(ReducedFloat8E5M2{});
  }
  return otherwise;
}

}  // namespace inccl::cuda

#endif  // INCCL_COMPRESS_CUDA_REDUCE_H_
