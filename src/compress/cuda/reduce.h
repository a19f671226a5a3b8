// SPDX-License-Identifier: Apache-2.0
//
// One thread's share of a plain reduction: it combines elements of all inputs and writes them to
// all outputs. Threads are independent. If all inputs and outputs have the same offset from 16-byte
// alignment, a thread uses vectors of 16 bytes, several at a time, and single elements before and
// after them; else it uses single elements only.
#ifndef INCCL_COMPRESS_CUDA_REDUCE_H_
#define INCCL_COMPRESS_CUDA_REDUCE_H_

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "base/host_device.h"
#include "compress/cuda/elements.h"
#include "compress/cuda/kernel_args.h"
#include "compress/cuda/reduce_elements.h"

namespace inccl::cuda {

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
