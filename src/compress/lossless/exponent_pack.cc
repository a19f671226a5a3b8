// SPDX-License-Identifier: Apache-2.0
#include "compress/lossless/exponent_pack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "compress/bit_fields.h"
#include "compress/codec.h"
#include "compress/kernels/exponent_kernels.h"

namespace inccl::lossless {
namespace {

// The largest number of counted exponents in a window of this length. Sets *first to the start of
// the first such window.
uint32_t FullestWindow(const uint16_t* histogram, uint32_t exponents, uint32_t length,
                       uint32_t* first) {
  constexpr uint32_t kOne = 1u << 16;  // counts above bit 16; below it the position, counted down
  uint32_t window = kOne - 1;
  for (uint32_t i = 0; i < std::min(exponents, length); ++i) window += histogram[i] * kOne;
  uint32_t fullest = window;
  for (uint32_t i = length; i < exponents; ++i) {
    window += (uint32_t{histogram[i]} - histogram[i - length]) * kOne - 1;
    fullest = std::max(fullest, window);  // no branch, since it would be unpredictable
  }
  *first = kOne - 1 - fullest % kOne;
  return fullest / kOne;
}

}  // namespace

Coding Choose(const uint16_t* histogram, uint32_t lo, uint32_t hi, uint32_t count,
              uint32_t escape_bits, uint32_t exponents) {
  const uint32_t zeros = histogram[0];
  if (lo == hi && (zeros == 0 || lo == 0)) return {.width = 0, .zero = 0, .base = lo, .escapes = 0};
  const uint32_t widest = WidestOf(exponents);
  Coding best;
  uint32_t cost = std::numeric_limits<uint32_t>::max();
  for (uint32_t width = 1; width <= widest && width * count < cost; ++width) {
    const uint32_t zero = zeros > 0 && width > 1 ? 1 : 0;
    Coding coding{.width = width, .zero = zero, .base = lo, .escapes = 0};
    uint32_t first = 0;
    const uint32_t most = FullestWindow(histogram + lo, hi - lo + 1, coding.direct(), &first);
    coding.base = std::min(lo + first, exponents - coding.direct());
    coding.escapes = count - most - zero * zeros;
    const uint32_t total = width * count + escape_bits * coding.escapes;
    if (total < cost) {
      cost = total;
      best = coding;
    }
  }
  return best;
}

bool IsZero(const std::byte* elements, uint32_t bytes) {
  return elements[0] == std::byte{0} && std::memcmp(elements, elements + 1, bytes - 1) == 0;
}

uint32_t PackZeros(std::byte* out) {
  *out = std::byte{kZeros};
  return 1;
}

uint32_t PackRaw(const std::byte* elements, uint32_t bytes, std::byte* out) {
  *out = std::byte{kRaw};
  std::memcpy(out + 1, elements, bytes);
  return 1 + bytes;
}

}  // namespace inccl::lossless

namespace inccl {
namespace {

using lossless::Choose;
using lossless::Coding;
using lossless::kHeader;
using lossless::kRaw;
using lossless::kZeros;
using lossless::PackRaw;

constexpr uint32_t kParts = 4;  // number of histograms

template <typename BitsType, uint32_t kMantissaBits, typename EscapeType>
struct Layout {
  using Bits = BitsType;
  using Escape = EscapeType;
  static constexpr uint32_t kMantissa = kMantissaBits;
  static constexpr uint32_t kExponents = 1u << (8 * sizeof(Bits) - 1 - kMantissa);
  static constexpr uint32_t kPlanes = (kMantissa + 1) / 8;
  static constexpr uint32_t kRest = (kMantissa + 1) % 8;

  static uint32_t Exponent(Bits bits) {
    return static_cast<uint32_t>(bits >> kMantissa) & (kExponents - 1);
  }
  // Moves the sign next to the mantissa, and back.
  static Bits Others(Bits bits) {
    const auto mantissa = static_cast<Bits>(bits & ((Bits{1} << kMantissa) - 1));
    const auto sign = static_cast<Bits>(bits >> (8 * sizeof(Bits) - 1));
    return static_cast<Bits>(mantissa | static_cast<Bits>(sign << kMantissa));
  }
  static Bits Join(Bits others, uint32_t exponent) {
    const auto mantissa = static_cast<Bits>(others & ((Bits{1} << kMantissa) - 1));
    const auto sign = static_cast<Bits>(others >> kMantissa);
    return static_cast<Bits>(mantissa |
                             static_cast<Bits>(static_cast<Bits>(exponent) << kMantissa) |
                             static_cast<Bits>(sign << (8 * sizeof(Bits) - 1)));
  }
};
using Bf16Layout = Layout<uint16_t, 7, uint8_t>;
using Fp16Layout = Layout<uint16_t, 10, uint8_t>;
using Fp32Layout = Layout<uint32_t, 23, uint8_t>;
using Fp64Layout = Layout<uint64_t, 52, uint16_t>;

// Counts into the first of kParts histograms. Neighbouring elements use different histograms, so
// that no increment waits for the previous one.
void CountExponents(const uint16_t* exponents, uint32_t count, uint32_t stride, uint32_t lo,
                    uint32_t hi, uint16_t* histograms) {
  uint32_t i = 0;
  for (; i + kParts <= count; i += kParts) {
    ++histograms[exponents[i]];
    ++histograms[stride + exponents[i + 1]];
    ++histograms[2 * stride + exponents[i + 2]];
    ++histograms[3 * stride + exponents[i + 3]];
  }
  for (; i < count; ++i) ++histograms[exponents[i]];
  for (uint32_t part = 1; part < kParts; ++part) {
    const uint16_t* other = histograms + part * stride;
    histograms[0] = static_cast<uint16_t>(histograms[0] + (lo > 0 ? other[0] : 0));
    for (uint32_t e = lo; e <= hi; ++e) {
      histograms[e] = static_cast<uint16_t>(histograms[e] + other[e]);
    }
  }
}

void EncodeExponents(const Coding& coding, const uint16_t* exponents, uint32_t count,
                     uint16_t* codes) {
  const auto base = static_cast<uint16_t>(coding.base), zero = static_cast<uint16_t>(coding.zero);
  // With w = 0 all exponents equal the base. Exponents below the base wrap to large differences.
  const auto direct = static_cast<uint16_t>(coding.width == 0 ? 0 : coding.direct());
  for (uint32_t i = 0; i < count; ++i) {
    const auto above = static_cast<uint16_t>(exponents[i] - base);
    codes[i] = static_cast<uint16_t>(std::min(above, direct) + zero);
  }
  if (zero == 0) return;
  for (uint32_t i = 0; i < count; ++i) {
    codes[i] = exponents[i] == 0 ? uint16_t{0} : codes[i];
  }
}

template <typename L>
void WritePlanes(const typename L::Bits* others, uint32_t count, std::byte* out) {
  for (uint32_t plane = 0; plane < L::kPlanes; ++plane) {
    for (uint32_t i = 0; i < count; ++i) {
      out[plane * count + i] = static_cast<std::byte>(others[i] >> (8 * plane));
    }
  }
}

// As the kernels do (kernels/exponent_kernels.h).
lossless::Sample SampleExponents(const uint16_t* exponents) {
  using lossless::kDistanceCount, lossless::kDistances, lossless::kSampled;
  uint32_t sampled[kSampled];
  lossless::Sample sample;
  for (uint32_t i = 0; i < kSampled; ++i) {
    sampled[i] = exponents[lossless::SampledElement(i)];
    sample.most = std::max(sample.most, sampled[i]);
    sample.zeros += sampled[i] == 0 ? 1 : 0;
  }
  const uint32_t others = kSampled - sample.zeros;
  uint32_t beyond[kDistanceCount] = {};
  for (uint32_t k = 0; k < kDistanceCount; ++k) {
    for (const uint32_t exponent : sampled) {
      beyond[k] += exponent != 0 && sample.most - exponent > kDistances[k] ? 1 : 0;
    }
  }
  sample.beyond = beyond[0];
  sample.cost = std::numeric_limits<uint32_t>::max();
  const lossless::CandidateTable& table = lossless::kCandidateTables[sample.zeros != 0 ? 1 : 0];
  for (uint32_t i = 0; i < lossless::kCandidateCount; ++i) {
    const uint32_t last = table.last[i], before = table.before[i];
    if (last == lossless::CandidateTable::kNone) continue;
    const uint32_t above = before == lossless::CandidateTable::kNone ? 0 : others - beyond[before];
    const uint32_t cost = table.fixed[i] + beyond[last] + above;
    if (cost < sample.cost) sample.best = i;
    sample.cost = std::min(sample.cost, cost);
  }
  return sample;
}

template <typename L>
Coding ChooseExactly(const uint16_t* exponents, uint32_t count, uint16_t* histograms) {
  // Every instruction set has signed minima. The transformation makes 0 the largest number.
  int16_t least = std::numeric_limits<int16_t>::max(), most = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto above = static_cast<int16_t>((exponents[i] - 1) ^ 0x8000);
    least = std::min(least, above);
    most = std::max(most, static_cast<int16_t>(exponents[i]));
  }
  const auto hi = static_cast<uint32_t>(most);
  const uint32_t lo = std::min(static_cast<uint32_t>(least + 0x8001), hi);  // 0 if all are 0
  CountExponents(exponents, count, L::kExponents, lo, hi, histograms);
  const Coding coding =
      Choose(histograms, lo, hi, count, 8 * sizeof(typename L::Escape), L::kExponents);
  for (uint32_t part = 0; part < kParts; ++part) {
    histograms[part * L::kExponents] = 0;
    std::fill_n(histograms + part * L::kExponents + lo, hi - lo + 1, uint16_t{0});
  }
  return coding;
}

// Sets coding->escapes to the number of exponents without a code.
void EncodeAndCount(const uint16_t* exponents, uint32_t count, Coding* coding, uint16_t* codes) {
  EncodeExponents(*coding, exponents, count, codes);
  uint32_t escapes = 0;
  for (uint32_t i = 0; i < count; ++i) escapes += codes[i] == coding->escape() ? 1 : 0;
  coding->escapes = coding->width == 0 ? 0 : escapes;
}

// Chooses a coding and encodes.
template <typename L>
Coding EncodeBest(const uint16_t* exponents, uint32_t count, uint16_t* histograms,
                  uint16_t* codes) {
  Coding guess;
  if (count == kSuperblock && lossless::ChooseFrom(SampleExponents(exponents), &guess)) {
    Coding coding = guess;
    EncodeAndCount(exponents, count, &coding, codes);
    if (!lossless::SampleMisled(guess, coding.escapes)) return coding;
  }
  Coding coding = ChooseExactly<L>(exponents, count, histograms);
  EncodeAndCount(exponents, count, &coding, codes);
  return coding;
}

template <typename L>
uint32_t PackAs(const std::byte* elements, uint32_t count, uint16_t* histograms, std::byte* out) {
  using Bits = typename L::Bits;
  Bits x[kSuperblock];
  uint16_t exponents[kSuperblock], coded[kSuperblock];
  std::memcpy(x, elements, count * sizeof(Bits));
  Bits any = 0;
  for (uint32_t i = 0; i < count; ++i) {
    exponents[i] = static_cast<uint16_t>(L::Exponent(x[i]));
    any = static_cast<Bits>(any | x[i]);
  }
  if (any == 0) {
    return lossless::PackZeros(out);
  }
  const Coding coding = EncodeBest<L>(exponents, count, histograms, coded);
  const uint32_t bits = (coding.width + L::kRest) * PlaneBytes(count);
  const uint32_t length = kHeader + L::kPlanes * count + bits +
                          coding.escapes * static_cast<uint32_t>(sizeof(typename L::Escape));
  if (length >= 1 + count * sizeof(Bits)) {
    return PackRaw(elements, count * static_cast<uint32_t>(sizeof(Bits)), out);
  }
  lossless::WriteHeader(coding, out);

  Bits others[kSuperblock];
  for (uint32_t i = 0; i < count; ++i) others[i] = L::Others(x[i]);
  WritePlanes<L>(others, count, out + kHeader);
  if (coding.escapes > 0) {
    // Without a branch, which would be unpredictable.
    typename L::Escape escapes[kSuperblock + 1];
    uint32_t used = 0;
    for (uint32_t i = 0; i < count; ++i) {
      escapes[used] = static_cast<typename L::Escape>(exponents[i]);
      used += coded[i] == coding.escape() ? 1 : 0;
    }
    std::memcpy(out + kHeader + L::kPlanes * count + bits, escapes, used * sizeof escapes[0]);
  }
  if constexpr (L::kRest > 0) {
    for (uint32_t i = 0; i < count; ++i) {
      const auto rest = static_cast<uint32_t>(others[i] >> (8 * L::kPlanes));
      coded[i] = static_cast<uint16_t>(coded[i] | rest << coding.width);
    }
  }
  PackPlanes(coded, count, coding.width + L::kRest, out + kHeader + L::kPlanes * count);
  return length;
}

// Decodes codes to exponents. Returns the number of escape bytes read, or UINT32_MAX on error.
template <typename L>
uint32_t DecodeExponents(const Coding& coding, const uint16_t* fields, uint32_t count,
                         const std::byte* escapes, uint64_t left, uint16_t* exponents) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  const auto mask = static_cast<uint16_t>(coding.escape());
  const auto first = static_cast<uint16_t>(coding.base - coding.zero);
  uint16_t top = 0, largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const auto code = static_cast<uint16_t>(fields[i] & mask);
    exponents[i] = static_cast<uint16_t>(first + code);
    largest = std::max(largest, code);
  }
  for (uint32_t i = 0; i < count && coding.zero != 0; ++i) {
    exponents[i] = (fields[i] & mask) == 0 ? uint16_t{0} : exponents[i];
  }
  uint32_t number = 0;
  for (uint32_t i = 0; i < count && coding.width > 0 && largest == mask; ++i) {
    number += (fields[i] & mask) == mask ? 1 : 0;
  }
  const auto used = static_cast<uint32_t>(number * sizeof(typename L::Escape));
  if (left < used) return kNone;
  if (number > 0) {
    typename L::Escape own[kSuperblock + 1];
    std::memcpy(own, escapes, used);
    own[number] = 0;
    uint32_t next = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const bool escaped = (fields[i] & mask) == mask;
      exponents[i] = escaped ? uint16_t{own[next]} : exponents[i];
      next += escaped ? 1 : 0;
    }
  }
  for (uint32_t i = 0; i < count; ++i) top = std::max(top, exponents[i]);
  return top < L::kExponents ? used : kNone;
}

template <typename L>
uint32_t UnpackAs(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements) {
  using Bits = typename L::Bits;
  Coding coding;
  if (bytes < kHeader || !lossless::ReadHeader(in, L::kExponents, &coding)) return 0;
  const uint32_t width = coding.width + L::kRest;
  const uint32_t fixed = kHeader + L::kPlanes * count + width * PlaneBytes(count);
  if (bytes < fixed) return 0;
  uint16_t fields[kSuperblock], exponents[kSuperblock];
  UnpackPlanes(in + kHeader + L::kPlanes * count, count, width, fields);
  const uint32_t escapes =
      DecodeExponents<L>(coding, fields, count, in + fixed, bytes - fixed, exponents);
  if (escapes == std::numeric_limits<uint32_t>::max()) return 0;
  Bits others[kSuperblock] = {};
  const std::byte* planes = in + kHeader;
  for (uint32_t plane = 0; plane < L::kPlanes; ++plane) {
    for (uint32_t i = 0; i < count; ++i) {
      const auto byte = std::to_integer<Bits>(planes[plane * count + i]);
      others[i] = static_cast<Bits>(others[i] | static_cast<Bits>(byte << (8 * plane)));
    }
  }
  Bits x[kSuperblock];
  for (uint32_t i = 0; i < count; ++i) {
    Bits other = others[i];
    if constexpr (L::kRest > 0) {
      const auto rest = static_cast<Bits>(fields[i] >> coding.width);
      other = static_cast<Bits>(other | static_cast<Bits>(rest << (8 * L::kPlanes)));
    }
    x[i] = L::Join(other, exponents[i]);
  }
  std::memcpy(elements, x, count * sizeof(Bits));
  return fixed + escapes;
}

uint32_t ExponentsOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return Fp16Layout::kExponents;
    case DataType::kFloat64: return Fp64Layout::kExponents;
    default: return Fp32Layout::kExponents;
  }
}

}  // namespace

ExponentPacker::ExponentPacker(DataType type)
    : type_(type), histograms_(size_t{kParts} * ExponentsOf(type)) {}

uint32_t ExponentPacker::Pack(const std::byte* elements, uint32_t count, std::byte* out) {
  return PackOne(lossless::BestExponentKernels(type_), elements, count, out);
}

uint32_t ExponentPacker::PackOne(const lossless::ExponentKernels* kernels,
                                 const std::byte* elements, uint32_t count, std::byte* out) {
  if (count == kSuperblock && kernels != nullptr) return kernels->pack(elements, out);
  uint16_t* histograms = histograms_.data();
  switch (type_) {
    case DataType::kFloat16: return PackAs<Fp16Layout>(elements, count, histograms, out);
    case DataType::kBfloat16: return PackAs<Bf16Layout>(elements, count, histograms, out);
    case DataType::kFloat64: return PackAs<Fp64Layout>(elements, count, histograms, out);
    default: return PackAs<Fp32Layout>(elements, count, histograms, out);
  }
}

uint64_t ExponentPacker::PackAll(const std::byte* elements, uint32_t count, std::byte* out,
                                 uint64_t room) {
  const lossless::ExponentKernels* kernels = lossless::BestExponentKernels(type_);
  const uint64_t size = SizeOf(type_), most = 1 + kSuperblock * size, raw = count * size;
  uint64_t length = 0;
  for (uint32_t at = 0; at < count; at += kSuperblock) {
    const uint32_t now = std::min(kSuperblock, count - at);
    if (room - length >= most) {
      length += PackOne(kernels, elements + at * size, now, out + length);
    } else {
      std::byte packed[1 + 8 * kSuperblock];
      const uint32_t bytes = PackOne(kernels, elements + at * size, now, packed);
      if (bytes > room - length) return length + bytes;
      std::memcpy(out + length, packed, bytes);
      length += bytes;
    }
    if (length >= raw) break;
  }
  return length;
}

uint32_t ExponentPacker::Unpack(const std::byte* in, uint64_t bytes, uint32_t count,
                                std::byte* elements) const {
  return UnpackOne(lossless::BestExponentKernels(type_), in, bytes, count, elements);
}

uint32_t ExponentPacker::UnpackOne(const lossless::ExponentKernels* kernels, const std::byte* in,
                                   uint64_t bytes, uint32_t count, std::byte* elements) const {
  if (bytes == 0) return 0;
  if (in[0] == std::byte{kZeros}) {
    std::memset(elements, 0, count * SizeOf(type_));
    return 1;
  }
  if (in[0] == std::byte{kRaw}) {
    const auto raw = static_cast<uint32_t>(count * SizeOf(type_));
    if (bytes < 1 + uint64_t{raw}) return 0;
    std::memcpy(elements, in + 1, raw);
    return 1 + raw;
  }
  if (count == kSuperblock && kernels != nullptr) return kernels->unpack(in, bytes, elements);
  switch (type_) {
    case DataType::kFloat16: return UnpackAs<Fp16Layout>(in, bytes, count, elements);
    case DataType::kBfloat16: return UnpackAs<Bf16Layout>(in, bytes, count, elements);
    case DataType::kFloat64: return UnpackAs<Fp64Layout>(in, bytes, count, elements);
    default: return UnpackAs<Fp32Layout>(in, bytes, count, elements);
  }
}

bool ExponentPacker::UnpackAll(const std::byte* in, uint64_t bytes, uint32_t count,
                               std::byte* elements, uint64_t* read) const {
  const lossless::ExponentKernels* kernels = lossless::BestExponentKernels(type_);
  const uint64_t size = SizeOf(type_);
  *read = 0;
  for (uint32_t at = 0; at < count; at += kSuperblock) {
    const uint32_t now = std::min(kSuperblock, count - at);
    const uint32_t length =
        UnpackOne(kernels, in + *read, bytes - *read, now, elements + at * size);
    if (length == 0) return false;
    *read += length;
  }
  return true;
}

}  // namespace inccl
