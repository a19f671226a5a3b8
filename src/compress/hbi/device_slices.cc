// SPDX-License-Identifier: Apache-2.0
#include "compress/hbi/device_slices.h"

#include <algorithm>
#include <span>

#include "compress/cuda/layout.h"
#include "compress/device_work.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/hbi/slice.h"

namespace inccl::hbi {

DeviceLevels::DeviceLevels(const Planner& planner) {
  std::vector<const LevelTable*> known;
  std::vector<LevelTable> tables;
  const auto index = [&](const LevelTable* table) {
    const auto found = std::find(known.begin(), known.end(), table);
    const auto at = static_cast<size_t>(found - known.begin());
    if (found == known.end()) {
      known.push_back(table);
      tables.push_back(*table);
    }
    return at;
  };
  planner.MakeTables();
  for (const Point& point : planner.points()) {
    levels_.push_back(
        {.k = point.k, .k2 = point.k2, .sum = index(point.sum), .result = index(point.result)});
  }
  tables_ = std::make_shared<const std::vector<LevelTable>>(std::move(tables));
}

DeviceLevels::Choices DeviceLevels::WithTablesAt(const LevelTable* tables) {
  const MutexLock lock(&mutex_);
  for (const auto& [address, choices] : choices_) {
    if (address == tables) return choices;
  }
  std::vector<cuda::LevelChoice> choices;
  for (const Levels& levels : levels_) {
    choices.push_back({.k = levels.k,
                       .k2 = levels.k2,
                       .sum = tables + levels.sum,
                       .result = tables + levels.result});
  }
  choices_.emplace_back(tables,
                        std::make_shared<const std::vector<cuda::LevelChoice>>(std::move(choices)));
  return choices_.back().second;
}

Result<const cuda::LevelChoice*> DeviceLevels::On(DeviceWork* work) {
  const Result<const std::byte*> tables =
      work->Constant(std::as_bytes(std::span(*tables_)), tables_);
  if (!tables.ok()) return tables.status();
  const Choices choices = WithTablesAt(reinterpret_cast<const LevelTable*>(*tables));
  const Result<const std::byte*> there =
      work->Constant(std::as_bytes(std::span(*choices)), choices);
  if (!there.ok()) return there.status();
  return reinterpret_cast<const cuda::LevelChoice*>(*there);
}

namespace {

constexpr size_t kFieldAlignment = 4;  // PackedArgs::data

cuda::ElementType TypeOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return cuda::ElementType::kFloat16;
    case DataType::kBfloat16: return cuda::ElementType::kBfloat16;
    case DataType::kFloat64: return cuda::ElementType::kFloat64;
    default: return cuda::ElementType::kFloat32;
  }
}

uint32_t* Words(std::byte* bytes) { return reinterpret_cast<uint32_t*>(bytes); }
const std::byte* AsBytes(const uint8_t* bytes) { return reinterpret_cast<const std::byte*>(bytes); }

// The arguments of one kernel for one slice.
class DeviceSlice {
 public:
  DeviceSlice(const SliceContext& slice, DeviceLevels* levels, DeviceWork* work);

  const cuda::SliceArgs& args() const { return args_; }
  size_t WordsBytes() const { return size_t{slice_.superblocks()} * kWordBytes; }

  // A packed sum of h contributions.
  cuda::PackedArgs SumIn(const uint8_t* payload, uint64_t bytes, uint32_t h);
  cuda::PackedArgs SumOut(uint32_t h, Sink* sink);
  // A second quantization: its own side words, then fields of k2 levels.
  cuda::PackedArgs ResultIn(const uint8_t* payload, const uint32_t** words);
  cuda::PackedArgs ResultOut(Sink* sink, uint32_t** words);

  template <class Launch>
  Status Run(const Launch& launch) const {
    return buffers_.Run([&](const cuda::Launchers& kernels, void* stream) {
      return launch(kernels, TypeOf(slice_.type), stream);
    });
  }

 private:
  static constexpr uint32_t kResult = 0;  // in place of contributions
  // Makes PackedArgs::tiles. *bytes becomes the size of all superblocks.
  const uint32_t* Tiles(uint32_t contributions, uint64_t* bytes);
  std::byte* Place(Sink* sink, uint64_t bytes);

  const SliceContext& slice_;
  DeviceBuffers buffers_;
  cuda::SliceArgs args_;
  // Cache of the last result, as most sources have the same number of contributions.
  const uint32_t* tiles_ = nullptr;
  uint32_t contributions_ = 0;
  uint64_t bytes_ = 0;
};

DeviceSlice::DeviceSlice(const SliceContext& slice, DeviceLevels* levels, DeviceWork* work)
    : slice_(slice), buffers_(work) {
  const size_t superblocks = slice.superblocks();
  args_ = {.words = Words(buffers_.Copy(slice.words, superblocks * kWordBytes)),
           .points = Unsigned(buffers_.Copy(slice.points, superblocks)),
           .count = slice.count,
           .counter = slice.counter,
           .result_counter = slice.result_counter,
           .offsets = slice.offsets,
           .nearest = slice.nearest,
           .unbiased = slice.unbiased,
           .average = slice.average};
  const Result<const cuda::LevelChoice*> choices = levels->On(work);
  if (choices.ok()) args_.choices = *choices;
  if (!choices.ok()) buffers_.Fail(choices.status());
}

const uint32_t* DeviceSlice::Tiles(uint32_t contributions, uint64_t* bytes) {
  if (tiles_ == nullptr || contributions != contributions_) {
    auto* const tiles =
        reinterpret_cast<uint32_t*>(buffers_.Scratch(args_.tiles() * sizeof(uint32_t)));
    if (tiles == nullptr) return nullptr;
    const std::span<const Point> points = slice_.planner->points();
    const auto width = [&](uint8_t point) {
      return contributions == kResult ? Width(1, points[point].k2)
                                      : Width(contributions, points[point].k);
    };
    bytes_ = cuda::TileStarts({slice_.points, slice_.superblocks()}, width, tiles);
    tiles_ = tiles;
    contributions_ = contributions;
  }
  *bytes = bytes_;
  return tiles_;
}

std::byte* DeviceSlice::Place(Sink* sink, uint64_t bytes) {
  if (bytes == 0) return nullptr;
  auto* host = reinterpret_cast<std::byte*>(sink->at);
  std::byte* const there = buffers_.Out(&host, bytes, kFieldAlignment, kChecksumBytes);
  if (there != nullptr) *sink = {Unsigned(host), Unsigned(host) + bytes + kChecksumBytes};
  return there;
}

cuda::PackedArgs DeviceSlice::SumIn(const uint8_t* payload, uint64_t bytes, uint32_t h) {
  uint64_t expected = 0;
  const uint32_t* const tiles = Tiles(h, &expected);
  return {Unsigned(buffers_.In(AsBytes(payload), bytes, kFieldAlignment)), tiles, h};
}

cuda::PackedArgs DeviceSlice::SumOut(uint32_t h, Sink* sink) {
  uint64_t bytes = 0;
  const uint32_t* const tiles = Tiles(h, &bytes);
  return {Unsigned(Place(sink, bytes)), tiles, h};
}

cuda::PackedArgs DeviceSlice::ResultIn(const uint8_t* payload, const uint32_t** words) {
  uint64_t bytes = 0;
  const uint32_t* const tiles = Tiles(kResult, &bytes);
  std::byte* const at = buffers_.In(AsBytes(payload), WordsBytes() + bytes, kFieldAlignment);
  if (at == nullptr) return {};
  *words = Words(at);
  return {Unsigned(at) + WordsBytes(), tiles, 1};
}

cuda::PackedArgs DeviceSlice::ResultOut(Sink* sink, uint32_t** words) {
  uint64_t bytes = 0;
  const uint32_t* const tiles = Tiles(kResult, &bytes);
  std::byte* const at = Place(sink, WordsBytes() + bytes);
  if (at == nullptr) return {};
  *words = Words(at);
  return {Unsigned(at) + WordsBytes(), tiles, 1};
}

// Sorts the sources of FoldSlice.
struct Fold {
  const Source* own = nullptr;
  uint32_t packed = 0, contributions = 0;
  explicit Fold(std::span<const Source> sources) {
    for (const Source& source : sources) {
      if (source.elements != nullptr) own = &source;
      packed += source.elements != nullptr ? 0 : 1;
      contributions += source.contributions;
    }
  }
};

cuda::PackedArgs Packed(DeviceSlice* device, const Source& source) {
  return device->SumIn(source.at, static_cast<uint64_t>(source.end - source.at),
                       source.contributions);
}

Status Encode(DeviceSlice* device, std::span<const Source> sources, const Fold& fold, Sink* sum) {
  cuda::EncodeArgs args{.slice = device->args(), .elements = fold.own->elements};
  for (const Source& source : sources) {
    if (source.elements == nullptr) args.in = Packed(device, source);
  }
  args.out = device->SumOut(fold.contributions, sum);
  return device->Run([&](const cuda::Launchers& kernels, cuda::ElementType type, void* stream) {
    return kernels.encode(type, args, stream);
  });
}

Status DecodeSum(DeviceSlice* device, const Source& sum, std::byte* elements) {
  const cuda::DecodeArgs args{.slice = device->args(),
                              .words = device->args().words,
                              .in = Packed(device, sum),
                              .elements = elements};
  return device->Run([&](const cuda::Launchers& kernels, cuda::ElementType type, void* stream) {
    return kernels.decode(type, args, stream);
  });
}

}  // namespace

Result<std::byte*> LaunchWords(const SliceContext& slice, const std::byte* elements,
                               DeviceWork* work) {
  DeviceBuffers buffers(work);
  std::byte* const words = buffers.Scratch(size_t{slice.superblocks()} * kWordBytes);
  const Status status = buffers.Run([&](const cuda::Launchers& kernels, void* stream) {
    return kernels.side_words(TypeOf(slice.type), elements, slice.count, Words(words), stream);
  });
  if (!status.ok()) return status;
  return words;
}

Status LaunchFold(const SliceContext& slice, DeviceLevels* levels, std::span<const Source> sources,
                  DeviceWork* work, SliceOutputs* outputs) {
  DeviceSlice device(slice, levels, work);
  const Fold fold(sources);
  const bool requantizes = slice.planner->requantizes();
  const bool sum_only = outputs->result.at == nullptr && outputs->elements == nullptr;
  if (sum_only && fold.own != nullptr && fold.packed <= 1) {
    return Encode(&device, sources, fold, &outputs->sum);
  }
  if (sources.size() == 1 && fold.own == nullptr && outputs->sum.at == nullptr && !requantizes) {
    return DecodeSum(&device, sources[0], outputs->elements);
  }
  cuda::FoldArgs args{.slice = device.args(),
                      .own = fold.own != nullptr ? fold.own->elements : nullptr,
                      .requantize = requantizes,
                      .elements = outputs->elements};
  for (const Source& source : sources) {
    if (source.elements == nullptr) args.sources[args.source_count++] = Packed(&device, source);
  }
  if (outputs->sum.at != nullptr) args.sum = device.SumOut(fold.contributions, &outputs->sum);
  if (outputs->result.at != nullptr) {
    args.result = device.ResultOut(&outputs->result, &args.result_words);
  }
  return device.Run([&](const cuda::Launchers& kernels, cuda::ElementType type, void* stream) {
    return kernels.fold(type, args, stream);
  });
}

Status LaunchDecode(const SliceContext& slice, DeviceLevels* levels, const uint8_t* payload,
                    std::byte* elements, DeviceWork* work) {
  DeviceSlice device(slice, levels, work);
  if (!slice.planner->requantizes()) {
    const Source sum{.at = payload,
                     .end = payload + ResultBytes(slice),
                     .contributions = slice.planner->contributions()};
    return DecodeSum(&device, sum, elements);
  }
  cuda::DecodeArgs args{.slice = device.args(), .result = true, .elements = elements};
  args.in = device.ResultIn(payload, &args.words);
  return device.Run([&](const cuda::Launchers& kernels, cuda::ElementType type, void* stream) {
    return kernels.decode(type, args, stream);
  });
}

}  // namespace inccl::hbi
