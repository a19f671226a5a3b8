// SPDX-License-Identifier: Apache-2.0
#include "perf/support/element.h"

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace inccl::perf {
namespace {

// A float of 1 + exponent_bits + mantissa_bits bits, bias 2^(exponent_bits-1) - 1.
struct SmallFormat {
  int exponent_bits, mantissa_bits;
  bool has_infinity;  // else the largest exponent is ordinary but for the pattern of all ones: NaN
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
  uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits; }
  uint32_t largest() const { return has_infinity ? infinity() - 1 : sign_bit() - 2; }
  uint32_t nan() const {
    return has_infinity ? infinity() | (1u << (mantissa_bits - 1)) : sign_bit() - 1;
  }
};

constexpr SmallFormat FormatOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {5, 10, true};
    case DataType::kBfloat16: return {8, 7, true};
    case DataType::kFloat8E4M3: return {4, 3, false};
    default: return {5, 2, true};
  }
}

uint32_t Encode(const SmallFormat& format, double value) {
  const uint32_t sign = std::signbit(value) ? format.sign_bit() : 0;
  if (std::isnan(value)) return sign | format.nan();
  const double magnitude = std::fabs(value);
  const uint32_t beyond = format.has_infinity ? format.infinity() : format.largest();
  if (std::isinf(value)) return sign | beyond;
  if (magnitude == 0) return sign;
  int exponent = std::ilogb(magnitude);
  if (exponent < 1 - format.bias()) exponent = 1 - format.bias();
  if (exponent > format.bias() + 1) return sign | beyond;
  // In units of the last place; a carry into the next binade adds up correctly.
  const double units = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const uint32_t bits =
      (static_cast<uint32_t>(exponent + format.bias() - 1) << format.mantissa_bits) +
      static_cast<uint32_t>(units);
  return sign | (bits > format.largest() ? beyond : bits);
}

double Decode(const SmallFormat& format, uint32_t bits) {
  const uint32_t magnitude = bits & (format.sign_bit() - 1);
  const double sign = (bits & format.sign_bit()) != 0 ? -1.0 : 1.0;
  if (format.has_infinity && magnitude == format.infinity()) {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (magnitude > format.largest()) return std::numeric_limits<double>::quiet_NaN();
  const auto exponent = static_cast<int>(magnitude >> format.mantissa_bits);
  const uint32_t mantissa = magnitude & ((1u << format.mantissa_bits) - 1);
  const uint32_t units = exponent == 0 ? mantissa : mantissa + (1u << format.mantissa_bits);
  const int unit_exponent = (exponent == 0 ? 1 : exponent) - format.bias() - format.mantissa_bits;
  return sign * std::ldexp(units, unit_exponent);
}

template <typename Bits>
void EncodeAll(const SmallFormat& format, std::span<const double> values, void* out) {
  auto* at = static_cast<std::byte*>(out);
  for (const double value : values) {
    const auto bits = static_cast<Bits>(Encode(format, value));
    std::memcpy(at, &bits, sizeof bits);
    at += sizeof bits;
  }
}

// All values of a format of 8 or 16 bits.
std::vector<double> MakeTable(DataType type) {
  const SmallFormat format = FormatOf(type);
  std::vector<double> table(size_t{1} << (8 * SizeOf(type)));
  for (size_t i = 0; i < table.size(); ++i) table[i] = Decode(format, static_cast<uint32_t>(i));
  return table;
}

const std::vector<double>& TableOf(DataType type) {
  static const std::vector<double> half = MakeTable(DataType::kFloat16);
  static const std::vector<double> bfloat = MakeTable(DataType::kBfloat16);
  static const std::vector<double> e4m3 = MakeTable(DataType::kFloat8E4M3);
  static const std::vector<double> e5m2 = MakeTable(DataType::kFloat8E5M2);
  switch (type) {
    case DataType::kFloat16: return half;
    case DataType::kBfloat16: return bfloat;
    case DataType::kFloat8E4M3: return e4m3;
    default: return e5m2;
  }
}

template <typename Bits>
void DecodeAll(const std::vector<double>& table, const void* elements, size_t count, double* out) {
  for (size_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, static_cast<const std::byte*>(elements) + i * sizeof bits, sizeof bits);
    out[i] = table[bits];
  }
}

constexpr std::array<const char*, kDataTypes> kTypeNames = {
    "int8", "uint8", "int32",  "uint32",   "int64",    "uint64",
    "half", "float", "double", "bfloat16", "fp8_e4m3", "fp8_e5m2"};

// Further names that people use, of nccl-tests, NCCL and frameworks.
struct Alias {
  std::string_view name;
  DataType type;
};
constexpr Alias kAliases[] = {{"char", DataType::kInt8},         {"int", DataType::kInt32},
                              {"fp16", DataType::kFloat16},      {"fp32", DataType::kFloat32},
                              {"fp64", DataType::kFloat64},      {"bf16", DataType::kBfloat16},
                              {"f8e4m3", DataType::kFloat8E4M3}, {"f8e5m2", DataType::kFloat8E5M2}};

}  // namespace

FloatLimits LimitsOf(DataType type) {
  if (type == DataType::kFloat64) {
    return {0x1p-53, std::numeric_limits<double>::denorm_min(), std::numeric_limits<double>::max()};
  }
  if (type == DataType::kFloat32) {
    return {0x1p-24, std::numeric_limits<float>::denorm_min(), std::numeric_limits<float>::max()};
  }
  const SmallFormat format = FormatOf(type);
  return {std::ldexp(1.0, -format.mantissa_bits - 1), Decode(format, 1),
          Decode(format, format.largest())};
}

const char* TableName(DataType type) { return kTypeNames[static_cast<size_t>(type)]; }
const char* TableName(ReduceOp op) { return Name(op); }

std::optional<DataType> ParseDataType(std::string_view name) {
  for (int i = 0; i < kDataTypes; ++i) {
    const auto type = static_cast<DataType>(i);
    if (name == TableName(type) || name == Name(type)) return type;
  }
  for (const Alias& alias : kAliases) {
    if (name == alias.name) return alias.type;
  }
  return std::nullopt;
}

std::optional<ReduceOp> ParseReduceOp(std::string_view name) {
  for (int i = 0; i < kReduceOps; ++i) {
    if (name == Name(static_cast<ReduceOp>(i))) return static_cast<ReduceOp>(i);
  }
  return std::nullopt;
}

void EncodeFloats(DataType type, std::span<const double> values, void* out) {
  if (type == DataType::kFloat64) {
    if (!values.empty()) std::memcpy(out, values.data(), values.size_bytes());
  } else if (type == DataType::kFloat32) {
    auto* at = static_cast<std::byte*>(out);
    for (const double value : values) {
      const auto single = static_cast<float>(value);
      std::memcpy(at, &single, sizeof single);
      at += sizeof single;
    }
  } else if (SizeOf(type) == 2) {
    EncodeAll<uint16_t>(FormatOf(type), values, out);
  } else {
    EncodeAll<uint8_t>(FormatOf(type), values, out);
  }
}

void DecodeFloats(DataType type, const void* elements, size_t count, double* out) {
  if (type == DataType::kFloat64) {
    if (count > 0) std::memcpy(out, elements, count * sizeof(double));
  } else if (type == DataType::kFloat32) {
    for (size_t i = 0; i < count; ++i) {
      float single;
      std::memcpy(&single, static_cast<const std::byte*>(elements) + i * sizeof single,
                  sizeof single);
      out[i] = single;
    }
  } else if (SizeOf(type) == 2) {
    DecodeAll<uint16_t>(TableOf(type), elements, count, out);
  } else {
    DecodeAll<uint8_t>(TableOf(type), elements, count, out);
  }
}

}  // namespace inccl::perf
