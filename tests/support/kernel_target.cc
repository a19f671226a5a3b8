// SPDX-License-Identifier: Apache-2.0
#include "support/kernel_target.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "compress/cuda/reduce.h"
#include "compress/cuda/warp_casts.h"
#include "compress/cuda/warp_slice.h"
#include "fakes/warp_emulation.h"

namespace inccl::test {
namespace {

constexpr uint8_t kGuardByte = 0xa5;

// As the kernels do: thread blocks of kWarpsPerTile warps, one for each tile.
template <class Body>
int ForEachWarp(uint32_t tiles, Body body) {
  WarpEmulator warp;
  for (uint32_t tile = 0; tile < tiles; ++tile) {
    for (uint32_t part = 0; part < cuda::kWarpsPerTile; ++part) {
      warp.Run([&](const EmulatedWarp& lane) { body(lane, tile, part); });
    }
  }
  return 0;
}

template <class Function>
int WithType(cuda::ElementType type, Function function) {
  switch (type) {
    case cuda::ElementType::kFloat32: return function(cuda::Fp32{});
    case cuda::ElementType::kFloat16: return function(Fp16{});
    case cuda::ElementType::kBfloat16: return function(Bf16{});
    case cuda::ElementType::kFloat64: return function(cuda::Fp64{});
  }
  return 1;
}

int SideWords(cuda::ElementType type, const void* elements, uint32_t count, uint32_t* words,
              void*) {
  return WithType(type, [&](auto chosen) {
    return ForEachWarp(cuda::SliceArgs{.count = count}.tiles(), [&](const EmulatedWarp& warp,
                                                                    uint32_t tile, uint32_t part) {
      cuda::SideWordsTile<decltype(chosen)>(warp, elements, count, words, tile, part);
    });
  });
}

int Encode(cuda::ElementType type, const cuda::EncodeArgs& args, void*) {
  return WithType(type, [&](auto chosen) {
    using Type = decltype(chosen);
    return ForEachWarp(args.slice.tiles(),
                       [&](const EmulatedWarp& warp, uint32_t tile, uint32_t part) {
                         if (args.in.data != nullptr) {
                           cuda::EncodeTile<Type, true>(warp, args, tile, part);
                         } else {
                           cuda::EncodeTile<Type, false>(warp, args, tile, part);
                         }
                       });
  });
}

int Add(const cuda::AddArgs& args, void*) {
  return ForEachWarp(args.slice.tiles(),
                     [&](const EmulatedWarp& warp, uint32_t tile, uint32_t part) {
                       cuda::AddTile(warp, args, tile, part);
                     });
}

int Decode(cuda::ElementType type, const cuda::DecodeArgs& args, void*) {
  return WithType(type, [&](auto chosen) {
    return ForEachWarp(args.slice.tiles(),
                       [&](const EmulatedWarp& warp, uint32_t tile, uint32_t part) {
                         cuda::DecodeTile<decltype(chosen)>(warp, args, tile, part);
                       });
  });
}

int Fold(cuda::ElementType type, const cuda::FoldArgs& args, void*) {
  uint32_t contributions = args.own != nullptr ? 1 : 0;
  for (uint32_t i = 0; i < args.source_count; ++i) contributions += args.sources[i].contributions;
  return WithType(type, [&](auto chosen) {
    return ForEachWarp(args.slice.tiles(),
                       [&](const EmulatedWarp& warp, uint32_t tile, uint32_t part) {
                         cuda::FoldTile<decltype(chosen)>(warp, args, contributions, tile, part);
                       });
  });
}

int CastEncode(cuda::CastFormat format, const float* in, uint32_t count, uint8_t* out, void*) {
  return cuda::WithCast(format, 1, [&](auto cast) {
    return ForEachWarp(cuda::SliceArgs{.count = count}.tiles(),
                       [&](const EmulatedWarp& warp, uint32_t tile, uint32_t part) {
                         cuda::CastEncodeTile<decltype(cast)>(warp, in, count, out, tile, part);
                       });
  });
}

int CastDecode(cuda::CastFormat format, const uint8_t* in, uint32_t count, float* out, void*) {
  return cuda::WithCast(format, 1, [&](auto cast) {
    return ForEachWarp(cuda::SliceArgs{.count = count}.tiles(),
                       [&](const EmulatedWarp& warp, uint32_t tile, uint32_t part) {
                         cuda::CastDecodeTile<decltype(cast)>(warp, in, count, out, tile, part);
                       });
  });
}

// Threads know nothing of each other: one after the other, of few blocks, so that each goes on to
// more than it begins with.
int Reduce(const cuda::ReduceKernelArgs& args, void*) {
  bool misaligned = false;
  if (!cuda::IsReduction(args, &misaligned)) return 1;
  return cuda::WithReduced(args.type, 1, [&](auto element) {
    using Element = decltype(element);
    const cuda::ReducePlan plan = cuda::PlanReduction(args);
    const auto blocks =
        static_cast<uint32_t>(std::min(cuda::ReduceBlocks<Element>(plan), uint64_t{3}));
    for (uint32_t block = 0; block < blocks; ++block) {
      for (uint32_t thread = 0; thread < cuda::kReduceThreads; ++thread) {
        cuda::ReduceThread<Element>(args, plan, {thread, block, blocks});
      }
    }
    return 0;
  });
}

const char* ErrorName(int) { return "not a type"; }

}  // namespace

TargetBytes::TargetBytes(KernelTarget* target, size_t bytes, size_t offset)
    : target_(target),
      bytes_(bytes),
      offset_(offset),
      memory_(static_cast<uint8_t*>(target->Allocate(bytes + offset + 2 * kGuard))) {
  const std::vector<uint8_t> guards(Whole(), kGuardByte);
  target_->Write(memory_, guards.data(), guards.size());
}

TargetBytes::~TargetBytes() { target_->Free(memory_); }

void TargetBytes::Put(const void* from, size_t bytes) {
  if (bytes != 0) target_->Write(data(), from, bytes);
}

std::vector<uint8_t> TargetBytes::Take() const {
  std::vector<uint8_t> all(Whole());
  target_->Read(all.data(), memory_, all.size());
  const size_t first = kGuard + offset_;
  for (size_t i = 0; i < all.size(); ++i) {
    if (i >= first && i < first + bytes_) continue;
    if (all[i] != kGuardByte) {
      ADD_FAILURE() << "byte " << static_cast<long>(i) - static_cast<long>(first) << " of "
                    << bytes_ << " has been written";
      break;
    }
  }
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(bytes_)};
}

const cuda::Launchers& EmulatedTarget::launchers() const {
  static constexpr cuda::Launchers kLaunchers = {.side_words = SideWords,
                                                 .encode = Encode,
                                                 .add = Add,
                                                 .decode = Decode,
                                                 .fold = Fold,
                                                 .cast_encode = CastEncode,
                                                 .cast_decode = CastDecode,
                                                 .reduce = Reduce,
                                                 .error_name = ErrorName};
  return kLaunchers;
}

void* EmulatedTarget::Allocate(size_t bytes) {
  return std::aligned_alloc(256, (bytes + 255) / 256 * 256);
}
void EmulatedTarget::Free(void* memory) { std::free(memory); }
void EmulatedTarget::Write(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}
void EmulatedTarget::Read(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
}

}  // namespace inccl::test
