// SPDX-License-Identifier: Apache-2.0
#include "compress/lossless/exponent_pack.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "compress/bit_fields.h"
#include "compress/codec.h"

namespace inccl {
namespace {

constexpr uint8_t kRaw = 0xFF, kZeros = 0xFE;
constexpr uint32_t kMaxWidth = 6;
constexpr uint32_t kHeader = 3;  // control byte and base

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
  // The sign above the mantissa, and back.
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

// How the exponents of a superblock are coded.
struct Coding {
  uint32_t width = 0, zero = 0, base = 0, escapes = 0;
  uint32_t escape() const { return (1u << width) - 1; }
  uint32_t direct() const { return width == 0 ? 1 : escape() - zero; }  // exponents with codes
};

// The cheapest coding of exponents with this histogram, all of them in {0} and [lo, hi].
Coding Choose(const uint16_t* histogram, uint32_t lo, uint32_t hi, uint32_t count,
              uint32_t escape_bits) {
  const uint32_t zeros = histogram[0];
  if (lo == hi && (zeros == 0 || lo == 0)) return {.width = 0, .zero = 0, .base = lo, .escapes = 0};
  Coding best;
  uint32_t cost = std::numeric_limits<uint32_t>::max();
  for (uint32_t width = 1; width <= kMaxWidth && width * count < cost; ++width) {
    const uint32_t zero = zeros > 0 && width > 1 ? 1 : 0;
    Coding coding{.width = width, .zero = zero, .base = lo, .escapes = 0};
    const uint32_t direct = coding.direct();
    uint32_t inside = 0;
    for (uint32_t e = lo; e <= hi && e < lo + direct; ++e) inside += histogram[e];
    uint32_t most = inside;
    for (uint32_t e = lo + direct; e <= hi; ++e) {
      inside = inside + histogram[e] - histogram[e - direct];
      if (inside > most) {
        most = inside;
        coding.base = e - direct + 1;
      }
    }
    coding.escapes = count - most - zero * zeros;
    const uint32_t total = width * count + escape_bits * coding.escapes;
    if (total < cost) {
      cost = total;
      best = coding;
    }
  }
  return best;
}

uint32_t PackRaw(const std::byte* elements, uint32_t bytes, std::byte* out) {
  *out = std::byte{kRaw};
  std::memcpy(out + 1, elements, bytes);
  return 1 + bytes;
}

template <typename L>
void WritePlanes(const typename L::Bits* others, uint32_t count, std::byte* out) {
  for (uint32_t plane = 0; plane < L::kPlanes; ++plane) {
    for (uint32_t i = 0; i < count; ++i) {
      out[plane * count + i] = static_cast<std::byte>(others[i] >> (8 * plane));
    }
  }
}

template <typename L>
uint32_t PackAs(const std::byte* elements, uint32_t count, uint16_t* histogram, uint8_t* codes,
                std::byte* out) {
  using Bits = typename L::Bits;
  Bits x[kSuperblock];
  uint16_t exponents[kSuperblock];
  std::memcpy(x, elements, count * sizeof(Bits));
  uint32_t lo = L::kExponents, hi = 0;
  Bits any = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t e = L::Exponent(x[i]);
    exponents[i] = static_cast<uint16_t>(e);
    any = static_cast<Bits>(any | x[i]);
    lo = e == 0 ? lo : std::min(lo, e);
    hi = std::max(hi, e);
  }
  if (any == 0) {
    *out = std::byte{kZeros};
    return 1;
  }
  lo = std::min(lo, hi);  // all exponents 0
  for (uint32_t i = 0; i < count; ++i) ++histogram[exponents[i]];
  const Coding coding = Choose(histogram, lo, hi, count, 8 * sizeof(typename L::Escape));
  histogram[0] = 0;
  std::fill(histogram + lo, histogram + hi + 1, uint16_t{0});

  const uint32_t fields = FieldBytes(count, coding.width + L::kRest);
  const uint32_t length = kHeader + L::kPlanes * count + fields +
                          coding.escapes * static_cast<uint32_t>(sizeof(typename L::Escape));
  if (length >= 1 + count * sizeof(Bits)) {
    return PackRaw(elements, count * static_cast<uint32_t>(sizeof(Bits)), out);
  }
  out[0] = static_cast<std::byte>(coding.width | coding.zero << 4);
  const auto base = static_cast<uint16_t>(coding.base);
  std::memcpy(out + 1, &base, sizeof base);

  std::fill(codes + lo, codes + hi + 1, static_cast<uint8_t>(coding.escape()));
  codes[0] = static_cast<uint8_t>(coding.zero != 0 ? 0 : coding.escape());
  for (uint32_t d = 0; d < coding.direct() && coding.base + d < L::kExponents; ++d) {
    codes[coding.base + d] = static_cast<uint8_t>(coding.width == 0 ? 0 : d + coding.zero);
  }
  Bits others[kSuperblock];
  uint16_t coded[kSuperblock];
  for (uint32_t i = 0; i < count; ++i) {
    others[i] = L::Others(x[i]);
    coded[i] = codes[exponents[i]];
  }
  WritePlanes<L>(others, count, out + kHeader);
  std::byte* escape = out + kHeader + L::kPlanes * count + fields;
  for (uint32_t i = 0; i < count && coding.escapes > 0; ++i) {
    if (coded[i] != coding.escape()) continue;
    const auto e = static_cast<typename L::Escape>(exponents[i]);
    std::memcpy(escape, &e, sizeof e);
    escape += sizeof e;
  }
  if constexpr (L::kRest > 0) {
    for (uint32_t i = 0; i < count; ++i) {
      const auto rest = static_cast<uint32_t>(others[i] >> (8 * L::kPlanes));
      coded[i] = static_cast<uint16_t>(coded[i] | rest << coding.width);
    }
  }
  PackFields(coded, count, coding.width + L::kRest, out + kHeader + L::kPlanes * count);
  return length;
}

// Exponents of codes; how many bytes of escapes were read, or UINT32_MAX.
template <typename L>
uint32_t DecodeExponents(const Coding& coding, const uint16_t* fields, uint32_t count,
                         const std::byte* escapes, uint64_t left, uint16_t* exponents) {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  const uint32_t mask = coding.escape();
  uint32_t used = 0, top = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t code = fields[i] & mask;
    uint32_t e = coding.base + code - coding.zero;
    if (coding.zero != 0 && code == 0) e = 0;
    if (coding.width > 0 && code == mask) {
      typename L::Escape escape = 0;
      if (left - used < sizeof escape) return kNone;
      std::memcpy(&escape, escapes + used, sizeof escape);
      used += sizeof escape;
      e = escape;
    }
    top = std::max(top, e);
    exponents[i] = static_cast<uint16_t>(e);
  }
  return top < L::kExponents ? used : kNone;
}

template <typename L>
uint32_t UnpackAs(const std::byte* in, uint64_t bytes, uint32_t count, std::byte* elements) {
  using Bits = typename L::Bits;
  const uint32_t raw = count * static_cast<uint32_t>(sizeof(Bits));
  if (bytes == 0) return 0;
  const auto control = std::to_integer<uint32_t>(in[0]);
  if (control == kZeros) {
    std::memset(elements, 0, raw);
    return 1;
  }
  if (control == kRaw) {
    if (bytes < 1 + uint64_t{raw}) return 0;
    std::memcpy(elements, in + 1, raw);
    return 1 + raw;
  }
  Coding coding{.width = control & 15, .zero = control >> 4, .base = 0, .escapes = 0};
  if (coding.width > kMaxWidth || coding.zero > 1 || (coding.width < 2 && coding.zero != 0)) {
    return 0;
  }
  const uint32_t width = coding.width + L::kRest;
  const uint32_t fixed = kHeader + L::kPlanes * count + FieldBytes(count, width);
  if (bytes < fixed) return 0;
  uint16_t base = 0;
  std::memcpy(&base, in + 1, sizeof base);
  coding.base = base;
  uint16_t fields[kSuperblock], exponents[kSuperblock];
  UnpackFields(in + kHeader + L::kPlanes * count, count, width, fields);
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
  std::memcpy(elements, x, raw);
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
    : type_(type), histogram_(ExponentsOf(type)), code_(ExponentsOf(type)) {}

uint32_t ExponentPacker::Pack(const std::byte* elements, uint32_t count, std::byte* out) {
  uint16_t* histogram = histogram_.data();
  uint8_t* code = code_.data();
  switch (type_) {
    case DataType::kFloat16: return PackAs<Fp16Layout>(elements, count, histogram, code, out);
    case DataType::kBfloat16: return PackAs<Bf16Layout>(elements, count, histogram, code, out);
    case DataType::kFloat64: return PackAs<Fp64Layout>(elements, count, histogram, code, out);
    default: return PackAs<Fp32Layout>(elements, count, histogram, code, out);
  }
}

uint32_t ExponentPacker::Unpack(const std::byte* in, uint64_t bytes, uint32_t count,
                                std::byte* elements) const {
  switch (type_) {
    case DataType::kFloat16: return UnpackAs<Fp16Layout>(in, bytes, count, elements);
    case DataType::kBfloat16: return UnpackAs<Bf16Layout>(in, bytes, count, elements);
    case DataType::kFloat64: return UnpackAs<Fp64Layout>(in, bytes, count, elements);
    default: return UnpackAs<Fp32Layout>(in, bytes, count, elements);
  }
}

}  // namespace inccl
