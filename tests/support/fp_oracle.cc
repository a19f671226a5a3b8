// SPDX-License-Identifier: Apache-2.0
#include "support/fp_oracle.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace inccl::test {
namespace {

struct Fields {
  int exponent_bits, mantissa_bits;
  bool infinity;
};

Fields FieldsOf(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {5, 10, true};
    case DataType::kBfloat16: return {8, 7, true};
    case DataType::kFloat8E4M3: return {4, 3, false};
    case DataType::kFloat8E5M2: return {5, 2, true};
    case DataType::kFloat32: return {8, 23, true};
    default: return {11, 52, true};
  }
}

// The value of a magnitude if every exponent were one of numbers.
double PlainValue(const Fields& f, uint64_t magnitude) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const uint64_t exponent = magnitude >> f.mantissa_bits;
  const uint64_t mantissa = magnitude & ((uint64_t{1} << f.mantissa_bits) - 1);
  const uint64_t hidden = exponent == 0 ? 0 : uint64_t{1} << f.mantissa_bits;
  const int power = std::max<int>(static_cast<int>(exponent), 1) - bias - f.mantissa_bits;
  return std::ldexp(static_cast<double>(hidden + mantissa), power);
}

uint64_t Infinity(const Fields& f) {
  return ((uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
}

// Least magnitude that is not a finite number: infinity, or NaN where there is none.
uint64_t FirstSpecial(const Fields& f) {
  return f.infinity ? Infinity(f) : Infinity(f) + (uint64_t{1} << f.mantissa_bits) - 1;
}

uint64_t SignBit(const Fields& f) { return uint64_t{1} << (f.exponent_bits + f.mantissa_bits); }

// Values of the magnitudes 0 .. FirstSpecial, the last as if it were a number.
const std::vector<double>& Magnitudes(DataType type) {
  static std::array<std::vector<double>, kDataTypes> tables;
  std::vector<double>& table = tables[static_cast<size_t>(type)];
  if (table.empty()) {
    const Fields f = FieldsOf(type);
    for (uint64_t m = 0; m <= FirstSpecial(f); ++m) table.push_back(PlainValue(f, m));
  }
  return table;
}

using Int128 = __int128;

// The integer that `bits` mean in a type, and back modulo 2^bits.
Int128 IntegerValue(DataType type, uint64_t bits) {
  const int width = static_cast<int>(SizeOf(type)) * 8;
  const bool has_sign =
      type == DataType::kInt8 || type == DataType::kInt32 || type == DataType::kInt64;
  Int128 value = bits;
  if (has_sign && ((bits >> (width - 1)) & 1) != 0) value -= Int128{1} << width;
  return value;
}

uint64_t IntegerBits(DataType type, Int128 value) {
  const int width = static_cast<int>(SizeOf(type)) * 8;
  const auto low = static_cast<uint64_t>(static_cast<unsigned __int128>(value));
  return width == 64 ? low : low & ((uint64_t{1} << width) - 1);
}

uint64_t FoldInteger(DataType type, ReduceOp op, const std::vector<FoldOperand>& operands,
                     int nranks, bool divide) {
  const auto operand = [&](size_t i) {
    const Int128 value = IntegerValue(type, operands[i].bits);
    if (op != ReduceOp::kPreMulSum || !operands[i].scaled) return value;
    const auto product = static_cast<unsigned __int128>(value) *
                         static_cast<unsigned __int128>(IntegerValue(type, operands[i].factor));
    return IntegerValue(type, IntegerBits(type, static_cast<Int128>(product)));
  };
  Int128 value = operand(0);
  for (size_t i = 1; i < operands.size(); ++i) {
    const Int128 next = operand(i);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kPreMulSum:
      case ReduceOp::kAvg: value += next; break;
      case ReduceOp::kProd:  // modulo 2^128 is modulo 2^bits
        value = static_cast<Int128>(static_cast<unsigned __int128>(value) *
                                    static_cast<unsigned __int128>(next));
        break;
      case ReduceOp::kMax: value = std::max(value, next); break;
      case ReduceOp::kMin: value = std::min(value, next); break;
    }
    value = IntegerValue(type, IntegerBits(type, value));
  }
  if (op == ReduceOp::kAvg && divide) value /= nranks;
  return IntegerBits(type, value);
}

// IEEE 754-2019 maximum: NaN from anywhere, +0 above -0.
double Maximum(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::quiet_NaN();
  if (a == 0 && b == 0) return std::signbit(a) ? b : a;
  return a > b ? a : b;
}

// The nearest fp32, as a double. A sum or product of two fp32 numbers that is first rounded to fp64
// rounds to the same fp32 as the exact one (Figueroa, When is double rounding innocuous?, 1995).
double AsFloat(double value) { return static_cast<double>(static_cast<float>(value)); }

double ElementValue(DataType type, uint64_t bits) {
  if (type == DataType::kFloat64) return std::bit_cast<double>(bits);
  if (type == DataType::kFloat32) {
    return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits)));
  }
  return NarrowValue(type, static_cast<uint32_t>(bits));
}

uint64_t ElementBits(DataType type, double value) {
  if (type == DataType::kFloat64) return std::bit_cast<uint64_t>(value);
  if (type == DataType::kFloat32) return std::bit_cast<uint32_t>(static_cast<float>(value));
  return NarrowCode(type, value);
}

double LargestValue(DataType type) { return ElementValue(type, FirstSpecial(FieldsOf(type)) - 1); }

uint64_t FoldFloat(DataType type, ReduceOp op, const std::vector<FoldOperand>& operands,
                   int nranks) {
  const bool wide = type == DataType::kFloat64;
  const auto operand = [&](size_t i) {
    const double value = ElementValue(type, operands[i].bits);
    if (!operands[i].scaled) return value;
    const double average = wide ? 1.0 / nranks : AsFloat(1.0 / nranks);
    const double scale =
        op == ReduceOp::kPreMulSum ? ElementValue(type, operands[i].factor) : average;
    const double product = wide ? value * scale : AsFloat(value * scale);
    return std::isnan(product) ? product : ElementValue(type, ElementBits(type, product));
  };
  // In an average, what rounds beyond the largest number of a type is that number.
  const auto bounded = [](DataType by, double exact) {
    const double most = LargestValue(by);
    return std::fabs(exact) > most ? std::copysign(most, exact) : exact;
  };
  double value = operand(0);
  for (size_t i = 1; i < operands.size(); ++i) {
    const double next = operand(i);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kPreMulSum: value = value + next; break;
      case ReduceOp::kAvg: {
        const bool numbers = std::isfinite(value) && std::isfinite(next);
        value = value + next;
        if (numbers) value = bounded(wide ? type : DataType::kFloat32, value);
        break;
      }
      case ReduceOp::kProd: value = value * next; break;
      case ReduceOp::kMax: value = Maximum(value, next); break;
      case ReduceOp::kMin: value = -Maximum(-value, -next); break;
    }
    if (!wide) value = AsFloat(value);
  }
  if (op == ReduceOp::kAvg && std::isfinite(value)) value = bounded(type, value);
  return std::isnan(value) ? QuietNan(type) : ElementBits(type, value);
}

}  // namespace

double NarrowValue(DataType type, uint32_t code) {
  const Fields f = FieldsOf(type);
  const uint64_t magnitude = code & (SignBit(f) - 1);
  double value = PlainValue(f, magnitude);
  if (magnitude >= FirstSpecial(f)) {
    value = f.infinity && magnitude == Infinity(f) ? std::numeric_limits<double>::infinity()
                                                   : std::numeric_limits<double>::quiet_NaN();
  }
  return (code & SignBit(f)) != 0 ? -value : value;
}

uint32_t NarrowCode(DataType type, double value) {
  const Fields f = FieldsOf(type);
  const uint64_t sign = std::signbit(value) ? SignBit(f) : 0;
  const double magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint32_t>(sign | QuietNan(type));
  const std::vector<double>& table = Magnitudes(type);
  const auto above = std::lower_bound(table.begin(), table.end(), magnitude);
  if (above == table.end()) return static_cast<uint32_t>(sign | FirstSpecial(f));
  auto code = static_cast<uint64_t>(above - table.begin());
  if (*above != magnitude) {
    const double middle = (*above + *(above - 1)) / 2;
    if (magnitude < middle || (magnitude == middle && code % 2 == 1)) --code;
  }
  return static_cast<uint32_t>(sign | code);
}

uint64_t QuietNan(DataType type) {
  const Fields f = FieldsOf(type);
  // An 8-bit NaN is all ones; elsewhere the quiet bit leads the mantissa.
  if (SizeOf(type) == 1) return SignBit(f) - 1;
  return Infinity(f) | (uint64_t{1} << (f.mantissa_bits - 1));
}

uint64_t LargestCode(DataType type) { return FirstSpecial(FieldsOf(type)) - 1; }

bool IsNanCode(DataType type, uint64_t code) {
  const Fields f = FieldsOf(type);
  const uint64_t magnitude = code & (SignBit(f) - 1);
  return f.infinity ? magnitude > Infinity(f) : magnitude == FirstSpecial(f);
}

uint64_t FoldElement(DataType type, ReduceOp op, const std::vector<FoldOperand>& operands,
                     int nranks, bool divide) {
  return IsFloat(type) ? FoldFloat(type, op, operands, nranks)
                       : FoldInteger(type, op, operands, nranks, divide);
}

uint64_t LoadBits(DataType type, const void* data, size_t index) {
  uint64_t bits = 0;  // the host is little-endian
  std::memcpy(&bits, static_cast<const char*>(data) + index * SizeOf(type), SizeOf(type));
  return bits;
}

void StoreBits(DataType type, void* data, size_t index, uint64_t bits) {
  std::memcpy(static_cast<char*>(data) + index * SizeOf(type), &bits, SizeOf(type));
}

}  // namespace inccl::test
