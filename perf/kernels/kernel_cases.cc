// SPDX-License-Identifier: Apache-2.0
#include "perf/kernels/kernel_cases.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include "base/rng.h"
#include "base/types.h"
#include "compress/codec.h"
#include "compress/hbi/config.h"
#include "compress/hbi/format.h"
#include "compress/hbi/plan.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"
#include "compress/kernels/convert.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/reduce.h"
#include "compress/kernels/select_kernels.h"
#include "perf/kernels/codec_cases.h"

namespace inccl::perf {

namespace {

// Sums of four contributions of 7 levels have 6 bits, and those of three 5.5 in pairs.
constexpr uint32_t kLevels = 7, kContributions = 4, kWidth = 12;
static_assert(hbi::Width(kContributions, kLevels) == kWidth);
static_assert(hbi::Width(kContributions - 1, kLevels) == kWidth - 1);
constexpr uint32_t kOwnLevels = 31;  // 6 bits of one contribution
static_assert(hbi::Width(1, kOwnLevels) == kWidth);
constexpr double kPackedBytes = kWidth / 16.0;  // of an element
// 5.5 bits: sums of three of the above, and one contribution of 22 levels.
constexpr uint32_t kOddWidth = kWidth - 1, kOddOwnLevels = 22;
static_assert(hbi::Width(1, kOddOwnLevels) == kOddWidth);
constexpr double kOddBytes = kOddWidth / 16.0;

// fp32 multipliers by scale code.
struct Multipliers {
  std::array<float, hbi::kTableCodes> factor{}, step{};
  explicit Multipliers(uint32_t levels) {
    for (uint32_t c = 1; c <= hbi::kLastCode; ++c) {
      factor[c] = static_cast<float>(levels * 65536.0 / hbi::Magnitude(c));
      step[c] = static_cast<float>(hbi::Magnitude(c) / levels);
    }
  }
};

}  // namespace

class KernelWorkspace {
 public:
  explicit KernelWorkspace(uint32_t superblocks) : superblocks_(superblocks) {
    const size_t elements = x.size();
    Rng rng(1);
    for (size_t i = 0; i < elements; ++i) {
      // Every superblock has a magnitude of its own, as gradients have.
      const int octave = static_cast<int>(i / kSuperblock % 16) - 12;
      x[i] = static_cast<float>(std::ldexp(2 * rng.Uniform() - 1, octave));
      y[i] = static_cast<float>(std::ldexp(2 * rng.Uniform() - 1, octave));
    }
    hbi::ScalarKernels().side_words(x.data(), superblocks_, 1.0f, words.data());
    for (uint32_t s = 0; s < superblocks_; ++s) {
      for (uint32_t i = 0; i < kSuperblock; ++i) {
        tile[i] = static_cast<uint16_t>(rng.Below(2 * (kContributions - 1) * kLevels + 1));
      }
      const size_t at = size_t{s} * hbi::PackedBytes(kWidth);
      hbi::ScalarKernels().pack(tile.data(), kWidth, packed.data() + at, 1);
      hbi::ScalarKernels().pack(tile.data(), kOddWidth,
                                odd_packed.data() + size_t{s} * hbi::PackedBytes(kOddWidth), 1);
      // Fields up to 14: their sums with those above stay within 6 bits.
      for (uint16_t& field : tile) field = static_cast<uint16_t>(field % (2 * kLevels + 1));
      hbi::ScalarKernels().pack(tile.data(), kWidth, own_packed.data() + at, 1);
    }
    hbi::QuantizeArgs peer = Quantize(0, own, kOwnLevels, superblocks_);
    peer.x = y.data();
    hbi::ScalarKernels().encode(peer, kWidth, peer_packed.data());
    for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
      FromFloat(type, x.data(), typed(type), elements);
      FromFloat(type, y.data(), typed_other(type), elements);
    }
  }

  hbi::QuantizeArgs Quantize(uint32_t s, const Multipliers& multipliers, uint32_t levels,
                             uint32_t superblocks) const {
    return {.x = x.data() + size_t{s} * kSuperblock,
            .words = words.data() + size_t{s} * hbi::kWordBytes,
            .factor = multipliers.factor.data(),
            .k = levels,
            .counter = s * (kSuperblock / 2),
            .offsets = hbi::OffsetsOf(1, kContributions, false),
            .superblocks = superblocks};
  }
  hbi::DecodeArgs Decode(uint32_t s, uint32_t superblocks,
                         uint32_t contributions = kContributions) const {
    return {.words = words.data() + size_t{s} * hbi::kWordBytes,
            .step = few.step.data(),
            .zero = contributions * kLevels,
            .superblocks = superblocks};
  }
  // A slice of an all-reduce of two ranks.
  hbi::SliceContext Slice(DataType type, uint32_t superblocks) const {
    return {.kernels = &hbi::BestKernels(),
            .planner = &planner,
            .type = type,
            .offsets = hbi::OffsetsOf(0, 2, false),
            .count = superblocks * kSuperblock,
            .words = words.data(),
            .points = points.data()};
  }
  const std::byte* Elements(DataType type) {
    return type == DataType::kFloat32 ? reinterpret_cast<const std::byte*>(x.data())
                                      : static_cast<const std::byte*>(typed(type));
  }
  // Own elements to a payload, the owner's step, and a result to elements.
  void EncodeSlice(DataType type, uint32_t superblocks) {
    hbi::Source source{.elements = Elements(type)};
    hbi::SliceOutputs outputs;
    outputs.sum = {packed_out.data(), packed_out.data() + packed_out.size()};
    hbi::FoldSlice(Slice(type, superblocks), {&source, 1}, outputs);
  }
  void FoldResult(DataType type, uint32_t superblocks) {
    hbi::Source sources[] = {
        {.elements = Elements(type)},
        {.at = peer_packed.data(), .end = peer_packed.data() + peer_packed.size()}};
    hbi::SliceOutputs outputs;
    outputs.result = {result.data(), result.data() + result.size()};
    outputs.elements = reinterpret_cast<std::byte*>(out.data());
    hbi::FoldSlice(Slice(type, superblocks), sources, outputs);
  }
  void DecodeSlice(DataType type, uint32_t superblocks) {
    hbi::DecodeFields(Slice(type, superblocks), words.data(),
                      {.at = peer_packed.data(), .end = peer_packed.data() + peer_packed.size()},
                      reinterpret_cast<std::byte*>(out.data()));
  }
  void SliceWords(DataType type, uint32_t superblocks) {
    hbi::FoldOwnWords(Slice(type, superblocks), Elements(type), true, merged.data());
  }
  uint8_t* At(std::vector<uint8_t>& stream, uint32_t s) const {
    return stream.data() + size_t{s} * hbi::PackedBytes(kWidth);
  }
  void* typed(DataType type) { return typed_[Index(type)].data(); }
  void* typed_other(DataType type) { return typed_other_[Index(type)].data(); }

  const Multipliers few{kLevels}, own{kOwnLevels}, odd_own{kOddOwnLevels};
  const uint32_t superblocks_;
  std::vector<float> x = std::vector<float>(size_t{superblocks_} * kSuperblock), y = x, out = x;
  std::vector<uint32_t> places = std::vector<uint32_t>(x.size());
  select::Moments moments{};
  std::vector<uint8_t> words = std::vector<uint8_t>(size_t{superblocks_} * hbi::kWordBytes);
  std::vector<uint8_t> merged = words;
  std::vector<uint8_t> packed =
      std::vector<uint8_t>(size_t{superblocks_} * hbi::PackedBytes(kWidth) + hbi::kReadSlack);
  std::vector<uint8_t> own_packed = packed, odd_packed = packed;
  std::vector<uint8_t> peer_packed = packed;  // one contribution of kOwnLevels
  // With room for the widest fields, as slots have.
  std::vector<uint8_t> packed_out = std::vector<uint8_t>(
      size_t{superblocks_} * hbi::PackedBytes(hbi::kMostHalfBits) + hbi::kReadSlack);
  std::vector<uint8_t> result =
      std::vector<uint8_t>(packed_out.size() + size_t{superblocks_} * hbi::kWordBytes);
  // 6 bits in both phases; every superblock is live, so all have point 1.
  const hbi::Planner planner{Collective::kAllReduce, 2,
                             hbi::Config{.bits8 = 0, .k = kOwnLevels, .k2 = kOwnLevels}};
  const std::vector<uint8_t> points = std::vector<uint8_t>(superblocks_, 1);
  alignas(64) std::array<uint16_t, kSuperblock> tile{};

 private:
  static size_t Index(DataType type) {
    return type == DataType::kFloat16 ? 0 : type == DataType::kBfloat16 ? 1 : 2;
  }
  // Of `size` bytes; as fp64, for their alignment.
  std::vector<double> Typed(size_t size) const {
    return std::vector<double>(x.size() * size / sizeof(double));
  }
  std::array<std::vector<double>, 3> typed_ = {Typed(2), Typed(2), Typed(8)};
  std::array<std::vector<double>, 3> typed_other_ = typed_;
};

KernelCases::KernelCases(uint32_t superblocks)
    : work_(std::make_unique<KernelWorkspace>(superblocks)) {
  AddBaselines();
  AddScales();
  AddPacked();
  AddOdd();
  AddSlices();
  AddTiles();
  AddTypes();
  AddSelection();
  if (superblocks != kCaseSuperblocks) return;
  for (KernelCase& codec : CodecCases()) Add(std::move(codec));
}

KernelCases::~KernelCases() = default;

void KernelCases::AddBaselines() {
  KernelWorkspace* w = work_.get();
  Add({.name = "memcpy_fp32",
       .bytes = 8,
       .every_target = false,
       .counts_exactly = false,
       .run = [w](uint32_t superblocks) {
         std::memcpy(w->out.data(), w->x.data(), superblocks * kSuperblock * sizeof(float));
       }});
  Add({.name = "add_fp32", .bytes = 12, .run = [w](uint32_t superblocks) {
         const void* in[] = {w->out.data(), w->y.data()};
         void* out[] = {w->out.data()};
         FindReduce(DataType::kFloat32, ReduceOp::kSum)(
             {.in = in, .inputs = 2, .out = out, .outputs = 1, .count = superblocks * kSuperblock});
       }});
}

void KernelCases::AddScales() {
  KernelWorkspace* w = work_.get();
  Add({.name = "side_words",
       .bytes = 4 + 1 / 64.0,
       .counted = 16,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().side_words(w->x.data(), superblocks, 1.0f, w->words.data());
           },
       .goal = KernelCase::Goal{0.259, 0.468}});
  Add({.name = "merge_words", .bytes = 3 / 64.0, .counted = 32, .run = [w](uint32_t superblocks) {
         hbi::BestKernels().merge_words(w->words.data(), superblocks, w->merged.data());
       }});
}

void KernelCases::AddPacked() {
  KernelWorkspace* w = work_.get();
  Add({.name = "encode",
       .bytes = 4 + kPackedBytes,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().encode(w->Quantize(0, w->own, kOwnLevels, superblocks), kWidth,
                                       w->packed_out.data());
           },
       .goal = KernelCase::Goal{1.223, 2.234}});
  Add({.name = "add_encode",
       .bytes = 4 + 2 * kPackedBytes,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().add_encode(w->Quantize(0, w->few, kLevels, superblocks),
                                           w->packed.data(), kWidth, kWidth, w->packed_out.data());
           },
       .goal = KernelCase::Goal{1.418, 2.738}});
  Add({.name = "add_packed",
       .bytes = 3 * kPackedBytes,
       .every_target = false,
       .run =
           [w](uint32_t superblocks) {
             hbi::AddPacked(w->packed.data(), w->own_packed.data(),
                            superblocks * hbi::PackedBytes(kWidth) / 8, kWidth,
                            w->packed_out.data());
           },
       .goal = KernelCase::Goal{0.391, 0.391}});
  Add({.name = "unpack_decode",
       .bytes = 4 + kPackedBytes,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().unpack_decode(w->Decode(0, superblocks), w->packed.data(), kWidth,
                                              w->out.data());
           },
       .goal = KernelCase::Goal{0.570, 1.102}});
}

// The same at an odd width.
void KernelCases::AddOdd() {
  KernelWorkspace* w = work_.get();
  Add({.name = "encode_odd",
       .bytes = 4 + kOddBytes,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().encode(w->Quantize(0, w->odd_own, kOddOwnLevels, superblocks),
                                       kOddWidth, w->packed_out.data());
           },
       .goal = KernelCase::Goal{1.121, 2.195}});
  Add({.name = "add_encode_odd",
       .bytes = 4 + 2 * kOddBytes,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().add_encode(w->Quantize(0, w->few, kLevels, superblocks),
                                           w->odd_packed.data(), kOddWidth, kOddWidth,
                                           w->packed_out.data());
           },
       .goal = KernelCase::Goal{1.512, 2.910}});
  Add({.name = "unpack_decode_odd",
       .bytes = 4 + kOddBytes,
       .run =
           [w](uint32_t superblocks) {
             hbi::BestKernels().unpack_decode(w->Decode(0, superblocks, kContributions - 1),
                                              w->odd_packed.data(), kOddWidth, w->out.data());
           },
       .goal = KernelCase::Goal{0.707, 1.242}});
}

// Whole slices: what the codec does with a payload, in every type.
void KernelCases::AddSlices() {
  KernelWorkspace* w = work_.get();
  struct Goals {
    KernelCase::Goal words, encode, fold, decode;
  };
  const auto add = [&](const char* suffix, DataType type, const Goals& goals) {
    const auto size = static_cast<double>(SizeOf(type));
    const auto name = [&](const char* what) { return fmt::format("{}{}", what, suffix); };
    Add({.name = name("slice_words"),
         .bytes = size + 1 / 64.0,
         .counted = 16,
         .run = [w, type](uint32_t superblocks) { w->SliceWords(type, superblocks); },
         .goal = goals.words});
    Add({.name = name("slice_encode"),
         .bytes = size + kPackedBytes,
         .counted = 16,
         .run = [w, type](uint32_t superblocks) { w->EncodeSlice(type, superblocks); },
         .goal = goals.encode});
    Add({.name = name("fold_result"),
         .bytes = 2 * size + 2 * kPackedBytes + 1 / 64.0,
         .counted = 16,
         .run = [w, type](uint32_t superblocks) { w->FoldResult(type, superblocks); },
         .goal = goals.fold});
    Add({.name = name("slice_decode"),
         .bytes = size + kPackedBytes,
         .counted = 16,
         .run = [w, type](uint32_t superblocks) { w->DecodeSlice(type, superblocks); },
         .goal = goals.decode});
  };
  add("", DataType::kFloat32,
      {{0.259, 0.468}, {1.246, 2.047, 1.023}, {3.824, 5.831, 3.517}, {0.594, 1.129, 0.797}});
  add("_bf16", DataType::kBfloat16,
      {{0.263, 0.416}, {1.919, 2.360, 1.148}, {5.397, 6.840, 3.914}, {1.708, 2.047, 0.977}});
  add("_fp16", DataType::kFloat16,
      {{0.296, 0.499}, {1.856, 2.235, 1.082}, {4.828, 6.046, 3.640}, {1.202, 1.461, 0.797}});
}

// Those that go by way of a tile take one superblock at a call.
void KernelCases::AddTiles() {
  KernelWorkspace* w = work_.get();
  const auto each = [](auto one) {
    return [one](uint32_t superblocks) {
      const hbi::Kernels& kernels = hbi::BestKernels();
      for (uint32_t s = 0; s < superblocks; ++s) one(kernels, s);
    };
  };
  Add({.name = "quantize", .bytes = 6, .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
                                         kernels.quantize(w->Quantize(s, w->few, kLevels, 1),
                                                          w->tile.data());
                                       })});
  Add({.name = "quantize_add",
       .bytes = 8,
       .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
         kernels.quantize_add(w->Quantize(s, w->few, kLevels, 1), w->tile.data());
       })});
  Add({.name = "quantize_nearest",
       .bytes = 6,
       .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
         kernels.quantize_nearest(w->Quantize(s, w->few, kLevels, 1), w->tile.data());
       })});
  Add({.name = "unpack",
       .bytes = 2 + kPackedBytes,
       .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
         kernels.unpack(w->At(w->packed, s), kWidth, w->tile.data(), 1);
       })});
  Add({.name = "unpack_add",
       .bytes = 4 + kPackedBytes,
       .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
         kernels.unpack_add(w->At(w->packed, s), kWidth, w->tile.data(), 1);
       })});
  Add({.name = "pack",
       .bytes = 2 + kPackedBytes,
       .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
         kernels.pack(w->tile.data(), kWidth, w->At(w->packed_out, s), 1);
       })});
  Add({.name = "decode", .bytes = 6, .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
                                       kernels.decode(w->Decode(s, 1), w->tile.data(),
                                                      w->out.data() + size_t{s} * kSuperblock);
                                     })});
  Add({.name = "rotate", .bytes = 8, .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
                                       kernels.rotate(w->out.data() + size_t{s} * kSuperblock, s);
                                     })});
  Add({.name = "rotate_back", .bytes = 8, .run = each([w](const hbi::Kernels& kernels, uint32_t s) {
                                            kernels.rotate_back(
                                                w->out.data() + size_t{s} * kSuperblock, s);
                                          })});
}

void KernelCases::AddTypes() {
  KernelWorkspace* w = work_.get();
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat64}) {
    const std::string suffix = type == DataType::kFloat16    ? "fp16"
                               : type == DataType::kBfloat16 ? "bf16"
                                                             : "fp64";
    const auto size = static_cast<double>(SizeOf(type));
    Add({.name = "add_" + suffix, .bytes = 3 * size, .run = [w, type](uint32_t superblocks) {
           const void* in[] = {w->typed(type), w->typed_other(type)};
           void* out[] = {w->typed(type)};
           FindReduce(type, ReduceOp::kSum)({.in = in,
                                             .inputs = 2,
                                             .out = out,
                                             .outputs = 1,
                                             .count = superblocks * kSuperblock});
         }});
    Add({.name = "to_float_" + suffix, .bytes = 4 + size, .run = [w, type](uint32_t superblocks) {
           ToFloat(type, w->typed_other(type), w->out.data(), superblocks * kSuperblock);
         }});
    Add({.name = "from_float_" + suffix, .bytes = 4 + size, .run = [w, type](uint32_t superblocks) {
           FromFloat(type, w->x.data(), w->typed(type), superblocks * kSuperblock);
         }});
  }
}

void KernelCases::AddSelection() {
  KernelWorkspace* w = work_.get();
  Add({.name = "collect",
       .bytes = 4,
       .run =
           [w](uint32_t superblocks) {
             constexpr int32_t kAbove = 0x3F800000;
             select::BestKernels().collect(w->x.data(), superblocks * kSuperblock, kAbove, 0,
                                           {w->places.data(), w->out.data()});
           },
       .goal = KernelCase::Goal{1.000, 2.250}});
  Add({.name = "moments",
       .bytes = 4,
       .run =
           [w](uint32_t superblocks) {
             w->moments =
                 select::BestKernels().moments(w->x.data(), superblocks * kSuperblock, 0.5);
           },
       .goal = KernelCase::Goal{0.875, 1.750}});
}

}  // namespace inccl::perf
