// SPDX-License-Identifier: Apache-2.0
//
// The side phases, in which ranks agree on the largest magnitude and then on the elements' scales.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "compress/qsgd/fields.h"
#include "compress/qsgd/qsgd_state.h"

namespace inccl::qsgd {

uint32_t State::LargestOf(const Range& range, const std::byte* elements) const {
  const Kernels& kernels = BestKernels();
  uint32_t largest = 0;
  // Cannot fail, because the body does not.
  (void)ForEachPart(range, [&](const Part& part) {
    float x[kSuperblock];
    largest = std::max(largest, kernels.largest(Load(part, elements, x), part.count));
    return Status::Ok();
  });
  return std::min(kPoison, largest);
}

Status State::Side(const Range& range, std::span<const Term> inputs, std::span<Term> outputs) {
  if (Status status = Enter(range); !status.ok()) return status;
  const Format side = outputs[0].format;
  if (side.contributions > (config_->index_bits() == 0 ? 0 : 1)) {
    return Error(range, fmt::format("there is no side phase {}", side.contributions));
  }
  const uint64_t bytes =
      side.contributions == 0 ? kLargestBytes : RangeBytes(range, config_->index_bits());
  for (const Term& input : inputs) {
    if (input.format.form == Form::kInput) {
      if (Status status = CheckElements(range, input); !status.ok()) return status;
    } else if (input.format != side) {
      return Error(range, fmt::format("{} cannot be an input here", Name(input.format.form)));
    } else if (input.bytes != bytes) {
      return WrongLength(range, input, bytes);
    }
  }
  for (Term& output : outputs) {
    if (output.format != side) {
      return Error(range, fmt::format("{} cannot be an output here", Name(output.format.form)));
    }
    if (output.data == nullptr) continue;
    if (Status status = CheckCapacity(range, output, bytes); !status.ok()) return status;
    output.bytes = static_cast<uint32_t>(bytes);
  }
  return side.contributions == 0 ? SideLargest(range, inputs, outputs)
                                 : SideScales(range, inputs, outputs);
}

Status State::SideLargest(const Range& range, std::span<const Term> inputs,
                          std::span<Term> outputs) {
  uint32_t largest = 0;
  for (const Term& input : inputs) {
    uint32_t bits = 0;
    if (input.format.form == Form::kInput) {
      bits = LargestOf(range, input.data);
    } else {
      std::memcpy(&bits, input.data, sizeof bits);
      if (bits > kPoison) return Error(range, fmt::format("{:#x} is no magnitude", bits));
    }
    largest = std::max(largest, bits);
  }
  for (const Term& output : outputs) {
    if (output.data == nullptr) {
      uint32_t& window = LargestOfWindow(range);
      window = std::max(window, largest);
    } else {
      std::memcpy(output.data, &largest, sizeof largest);
    }
  }
  return Status::Ok();
}

Status State::SideScales(const Range& range, std::span<const Term> inputs,
                         std::span<Term> outputs) {
  const uint32_t bits = config_->index_bits();
  return ForEachPart(range, [&](const Part& part) {
    uint8_t scales[kSuperblock];
    std::fill_n(scales, part.count, static_cast<uint8_t>(config_->scales.size() - 1));
    for (const Term& input : inputs) {
      if (Status status = FoldScales(range, part, input, scales); !status.ok()) return status;
    }
    for (const Term& output : outputs) {
      std::byte* to =
          output.data == nullptr ? Scales(range, part) : output.data + Offset(part, bits);
      PackIndices(scales, part.count, bits, to);
    }
    return Status::Ok();
  });
}

// Finds the finest scale whose codes hold the element. The element's value decides, not its rounded
// code, which would favour one side of the boundary.
Status State::FoldScales(const Range& range, const Part& part, const Term& input,
                         uint8_t* scales) const {
  if (input.format.form == Form::kInput) {
    float x[kSuperblock];
    BestKernels().finest(Load(part, input.data, x), {nullptr, config_->scales.size(), factor_},
                         config_->levels(), part.count, scales);
    return Status::Ok();
  }
  const uint32_t bits = config_->index_bits();
  uint8_t theirs[kSuperblock];
  const uint64_t at = Offset(part, bits);
  UnpackIndices(input.data + at, input.bytes - at, part.count, bits, theirs);
  for (uint32_t i = 0; i < part.count; ++i) {
    if (theirs[i] >= config_->scales.size()) {
      return Error(range, fmt::format("scale {} of {}", theirs[i], config_->scales.size()));
    }
    scales[i] = std::min(scales[i], theirs[i]);
  }
  return Status::Ok();
}

}  // namespace inccl::qsgd
