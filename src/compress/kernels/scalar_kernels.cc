// SPDX-License-Identifier: Apache-2.0
//
// The scalar reference of docs/format.md: one element at a time.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "compress/bit_fields.h"
#include "compress/codec.h"
#include "compress/float_types.h"
#include "compress/hbi/format.h"
#include "compress/hbi/side_words.h"
#include "compress/kernels/hbi_kernels.h"
#include "compress/kernels/published_kernels.h"

namespace inccl::hbi {
namespace {

void SideWords(const float* x, size_t superblocks, float scale, uint8_t* words) {
  for (size_t s = 0; s < superblocks; ++s) {
    uint16_t codes[kBlocks];
    for (uint16_t& code : codes) {
      uint32_t largest = 0;
      for (uint32_t j = 0; j < kBlock; ++j) {
        largest = std::max(largest, std::bit_cast<uint32_t>(*x++) & 0x7fffffff);
      }
      // NaN may change its bits, but stays above infinity.
      const float scaled = std::bit_cast<float>(largest) * scale;
      code = CodeOfMagnitude(std::bit_cast<uint32_t>(scaled) & 0x7fffffff);
    }
    StoreWord(WordOf(codes), words, s);
  }
}

void SideWordsNarrow(const uint16_t* x, DataType type, size_t superblocks, uint8_t* words) {
  for (size_t s = 0; s < superblocks; ++s, x += kSuperblock, words += kWordBytes) {
    float wide[kSuperblock];
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      wide[i] = type == DataType::kBfloat16 ? Bf16::Decode(x[i]) : Fp16::Decode(x[i]);
    }
    SideWords(wide, 1, 1.0f, words);
  }
}

void MergeWords(const uint8_t* from, size_t superblocks, uint8_t* words) {
  for (size_t s = 0; s < superblocks; ++s) {
    StoreWord(Merged(LoadWord(words, s), LoadWord(from, s)), words, s);
  }
}

// True if element j of block `block` changes its sign.
bool Negated(uint32_t counter, uint32_t block, uint32_t j) {
  const uint32_t hash = LowBias32(counter + block * 16 + j % 16);
  return ((j < 16 ? hash : hash >> 16) & 1) != 0;
}

// Sums and differences with strides 1, 2, 4, .. 128, in this order, then times 1/16.
void Hadamard(float* x) {
  for (uint32_t stride = 1; stride < kSuperblock; stride *= 2) {
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      if ((i & stride) != 0) continue;
      const float a = x[i], b = x[i + stride];
      x[i] = a + b;
      x[i + stride] = a - b;
    }
  }
  for (uint32_t i = 0; i < kSuperblock; ++i) x[i] *= 1.0f / 16;
}

void Rotate(float* x, uint32_t counter) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    if (Negated(counter, i / kBlock, i % kBlock)) x[i] = -x[i];
  }
  Hadamard(x);
}

void RotateBack(float* x, uint32_t counter) {
  Hadamard(x);
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    if (Negated(counter, i / kBlock, i % kBlock)) x[i] = -x[i];
    if (std::isnan(x[i])) x[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

// Moves on to the next superblock.
void Advance(QuantizeArgs* args) {
  args->x += kSuperblock;
  args->words += kWordBytes;
  args->counter += kSuperblock / 2;
}

// Calls body(arguments of one superblock, its tile).
template <typename Body>
void ForEachSuperblock(const QuantizeArgs& args, uint16_t* tile, Body body) {
  QuantizeArgs one = args;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one), tile += kSuperblock) {
    body(one, tile);
  }
}

template <typename Store>
void QuantizeWithHash(const QuantizeArgs& args, Store store) {
  const uint32_t word = LoadWord(args.words, 0);
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    const uint32_t block = i / kBlock, j = i % kBlock;
    const uint32_t hash = LowBias32(args.counter + block * 16 + j % 16);
    const uint32_t offset = RoundingOffset(hash, j, args.offsets);
    const float factor = args.factor[CodeOf(word, block)];
    store(i, static_cast<uint16_t>(QuantizeElement(args.x[i], factor, args.k, offset)));
  }
}

void Quantize(const QuantizeArgs& args, uint16_t* tile) {
  ForEachSuperblock(args, tile, [](const QuantizeArgs& one, uint16_t* out) {
    QuantizeWithHash(one, [out](uint32_t i, uint16_t code) { out[i] = code; });
  });
}

void QuantizeAdd(const QuantizeArgs& args, uint16_t* tile) {
  ForEachSuperblock(args, tile, [](const QuantizeArgs& one, uint16_t* out) {
    QuantizeWithHash(
        one, [out](uint32_t i, uint16_t code) { out[i] = static_cast<uint16_t>(out[i] + code); });
  });
}

void QuantizeNearest(const QuantizeArgs& args, uint16_t* tile) {
  ForEachSuperblock(args, tile, [](const QuantizeArgs& one, uint16_t* out) {
    const uint32_t word = LoadWord(one.words, 0);
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      const float factor = one.factor[CodeOf(word, i / kBlock)];
      out[i] = static_cast<uint16_t>(QuantizeElement(one.x[i], factor, one.k, kRoundHalfUp));
    }
  });
}

// Reads `count` fields of `bits` bits.
void ReadFields(const uint8_t* in, uint32_t bits, uint32_t count, uint16_t* fields) {
  uint64_t pending = 0;
  uint32_t have = 0;
  for (uint32_t i = 0; i < count; ++i) {
    for (; have < bits; have += 8) pending |= uint64_t{*in++} << have;
    fields[i] = static_cast<uint16_t>(pending & ((1u << bits) - 1));
    pending >>= bits;
    have -= bits;
  }
}

void WriteFields(const uint16_t* fields, uint32_t bits, uint32_t count, uint8_t* out) {
  uint64_t pending = 0;
  uint32_t have = 0;
  for (uint32_t i = 0; i < count; ++i) {
    pending |= uint64_t{fields[i]} << have;
    for (have += bits; have >= 8; have -= 8) {
      *out++ = static_cast<uint8_t>(pending);
      pending >>= 8;
    }
  }
}

// The element of the lower value of a pair; the upper one is that of the next block.
constexpr uint32_t LowerOfPair(uint32_t pair) { return pair / kBlock * 2 * kBlock + pair % kBlock; }

template <typename Store>
void UnpackFields(const uint8_t* in, uint32_t width, Store store) {
  uint16_t fields[kSuperblock];
  const uint32_t base = PairBase(width);
  if (base == 0) {
    ReadFields(in, width / 2, kSuperblock, fields);
    for (uint32_t i = 0; i < kSuperblock; ++i) store(i, fields[i]);
    return;
  }
  ReadFields(in, width, kSuperblock / 2, fields);
  for (uint32_t i = 0; i < kSuperblock / 2; ++i) {
    const uint32_t at = LowerOfPair(i);
    store(at, static_cast<uint16_t>(fields[i] % base));
    store(at + kBlock, static_cast<uint16_t>(fields[i] / base));
  }
}

void Unpack(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks) {
  for (uint32_t s = 0; s < superblocks; ++s, in += PackedBytes(width), tile += kSuperblock) {
    UnpackFields(in, width, [tile](uint32_t i, uint16_t field) { tile[i] = field; });
  }
}

void UnpackAdd(const uint8_t* in, uint32_t width, uint16_t* tile, uint32_t superblocks) {
  for (uint32_t s = 0; s < superblocks; ++s, in += PackedBytes(width), tile += kSuperblock) {
    UnpackFields(in, width, [tile](uint32_t i, uint16_t field) {
      tile[i] = static_cast<uint16_t>(tile[i] + field);
    });
  }
}

void PackOne(const uint16_t* tile, uint32_t width, uint8_t* out) {
  const uint32_t base = PairBase(width);
  if (base == 0) return WriteFields(tile, width / 2, kSuperblock, out);
  uint16_t pairs[kSuperblock / 2];
  for (uint32_t i = 0; i < kSuperblock / 2; ++i) {
    const uint32_t at = LowerOfPair(i);
    pairs[i] = static_cast<uint16_t>(tile[at] + base * tile[at + kBlock]);
  }
  WriteFields(pairs, width, kSuperblock / 2, out);
}

void Pack(const uint16_t* tile, uint32_t width, uint8_t* out, uint32_t superblocks) {
  for (uint32_t s = 0; s < superblocks; ++s, tile += kSuperblock, out += PackedBytes(width)) {
    PackOne(tile, width, out);
  }
}

void Encode(const QuantizeArgs& args, uint32_t width, uint8_t* out) {
  uint16_t tile[kSuperblock];
  QuantizeArgs one = args;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one), out += PackedBytes(width)) {
    Quantize(one, tile);
    PackOne(tile, width, out);
  }
}

void AddEncode(const QuantizeArgs& args, const uint8_t* in, uint32_t in_width, uint32_t out_width,
               uint8_t* out) {
  uint16_t tile[kSuperblock];
  QuantizeArgs one = args;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.superblocks; ++s, Advance(&one)) {
    Unpack(in, in_width, tile, 1);
    QuantizeAdd(one, tile);
    PackOne(tile, out_width, out);
    in += PackedBytes(in_width);
    out += PackedBytes(out_width);
  }
}

void Decode(const DecodeArgs& args, const uint16_t* tile, float* y) {
  for (uint32_t s = 0; s < args.superblocks; ++s) {
    const uint32_t word = LoadWord(args.words, s);
    for (uint32_t i = 0; i < kSuperblock; ++i) {
      *y++ = DecodeElement(*tile++, args.zero, args.step[CodeOf(word, i / kBlock)]);
    }
  }
}

void Requantize(const RequantizeArgs& args, uint16_t* tile, uint8_t* words) {
  DecodeArgs one = args.sum;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.sum.superblocks; ++s) {
    float y[kSuperblock];
    Decode(one, tile, y);
    SideWords(y, 1, args.own, words);
    if (IsPoison(LoadWord(words, 0))) std::fill_n(y, kSuperblock, 0.0f);
    QuantizeNearest({.x = y, .words = words, .factor = args.factor, .k = args.k}, tile);
    one.words += kWordBytes;
    words += kWordBytes;
    tile += kSuperblock;
  }
}

void UnpackDecode(const DecodeArgs& args, const uint8_t* in, uint32_t width, float* y) {
  uint16_t tile[kSuperblock];
  DecodeArgs one = args;
  one.superblocks = 1;
  for (uint32_t s = 0; s < args.superblocks; ++s, one.words += kWordBytes, y += kSuperblock) {
    Unpack(in, width, tile, 1);
    Decode(one, tile, y);
    in += PackedBytes(width);
  }
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {SideWords,  SideWordsNarrow, MergeWords,  Rotate,
                                       RotateBack, Quantize,        QuantizeAdd, QuantizeNearest,
                                       Unpack,     UnpackAdd,       Pack,        Encode,
                                       AddEncode,  Decode,          Requantize,  UnpackDecode};
  return kKernels;
}

namespace {

// x + y + carry, by the processor's instruction if the compiler has an intrinsic for it.
inline uint64_t AddWithCarry(uint64_t x, uint64_t y, unsigned char* carry) {
#if defined(__x86_64__)
  unsigned long long sum;  // NOLINT(google-runtime-int): the intrinsic's type
  *carry = _addcarry_u64(*carry, x, y, &sum);
  return sum;
#else
  uint64_t partial, sum;
  const bool first = __builtin_add_overflow(x, y, &partial);
  const bool second = __builtin_add_overflow(partial, uint64_t{*carry}, &sum);
  *carry = first || second ? 1 : 0;
  return sum;
#endif
}

template <uint32_t kWords, uint32_t kWord = 0>
inline void AddWords(const uint8_t* a, const uint8_t* b, unsigned char carry, uint8_t* out) {
  if constexpr (kWord < kWords) {
    uint64_t x, y;
    std::memcpy(&x, a + 8 * kWord, sizeof x);
    std::memcpy(&y, b + 8 * kWord, sizeof y);
    const uint64_t sum = AddWithCarry(x, y, &carry);
    std::memcpy(out + 8 * kWord, &sum, sizeof sum);
    AddWords<kWords, kWord + 1>(a, b, carry, out);
  }
}

// 64 fields fill kWords words and carry nothing beyond them, so one chain of additions adds them.
template <uint32_t kWords>
void AddGroups(const uint8_t* a, const uint8_t* b, size_t groups, uint8_t* out) {
  for (size_t g = 0; g < groups; ++g) {
    AddWords<kWords>(a, b, 0, out);
    a += 8 * kWords;
    b += 8 * kWords;
    out += 8 * kWords;
  }
}

using AddFunction = void (*)(const uint8_t*, const uint8_t*, size_t, uint8_t*);

constexpr AddFunction kAdd[] = {
    nullptr,       AddGroups<1>,  AddGroups<2>,  AddGroups<3>,  AddGroups<4>,  AddGroups<5>,
    AddGroups<6>,  AddGroups<7>,  AddGroups<8>,  AddGroups<9>,  AddGroups<10>, AddGroups<11>,
    AddGroups<12>, AddGroups<13>, AddGroups<14>, AddGroups<15>, AddGroups<16>,
};

}  // namespace

void AddPacked(const uint8_t* a, const uint8_t* b, size_t words, uint32_t width, uint8_t* out) {
  const uint32_t bits = width % 2 != 0 ? width : width / 2;
  kAdd[bits](a, b, words / bits, out);
}

}  // namespace inccl::hbi

namespace inccl::qsgd {

// The scalar reference of docs/codecs.md: one element at a time.

namespace {

double ValueOf(const ScaleChoice& choice, uint32_t i) {
  return choice.by_scale[choice.index == nullptr ? 0 : choice.index[i]];
}

void AddCodes(const CodeArgs& args, uint32_t count, uint32_t* sums) {
  const double levels = args.levels;
  for (uint32_t i = 0; i < count; ++i) {
    const double scaled = static_cast<double>(args.x[i]) * ValueOf(args.factor, i);
    const double above = scaled > -levels ? scaled : -levels;  // NaN becomes -s
    const double code = above < levels ? above : levels;
    const uint32_t random = hbi::LowBias32(args.first + i);
    sums[i] += static_cast<uint32_t>(static_cast<int32_t>(code + levels + random * 0x1p-32));
  }
}

uint32_t AddFields(const uint16_t* fields, uint32_t count, uint32_t* sums) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; ++i) {
    largest = std::max<uint32_t>(largest, fields[i]);
    sums[i] += fields[i];
  }
  return largest;
}

void Narrow(const uint32_t* sums, uint32_t count, uint16_t* fields) {
  for (uint32_t i = 0; i < count; ++i) fields[i] = static_cast<uint16_t>(sums[i]);
}

void Decode(const uint32_t* sums, uint32_t zero, const ScaleChoice& unit, uint32_t count,
            float* y) {
  for (uint32_t i = 0; i < count; ++i) {
    y[i] = static_cast<float>(ValueOf(unit, i) * static_cast<int32_t>(sums[i] - zero));
  }
}

uint32_t Largest(const float* x, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFu);
  }
  return largest;
}

void Finest(const float* x, const ScaleChoice& factor, uint32_t levels, uint32_t count,
            uint8_t* scales) {
  for (uint32_t i = 0; i < count; ++i) {
    const double magnitude = std::fabs(static_cast<double>(x[i]));
    uint8_t& scale = scales[i];
    while (scale > 0 && !(magnitude * factor.by_scale[scale] <= levels)) --scale;
  }
}

void PackBytes(const uint8_t* fields, uint32_t width, std::byte* out) {
  PackFields(fields, kSuperblock, width, out);
}

void UnpackBytes(const std::byte* in, uint32_t width, uint8_t* fields) {
  UnpackFields(in, kSuperblock, width, fields);
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {AddCodes, AddFields, Narrow,    Decode,
                                       Largest,  Finest,    PackBytes, UnpackBytes};
  return kKernels;
}

}  // namespace inccl::qsgd

namespace inccl::dither {

// The scalar reference of docs/codecs.md: one element at a time.

namespace {

void Squares(const float* x, size_t block, double* sums) {
  for (size_t b = 0; b < kSuperblock; b += block) {
    double partial[kPartials] = {};
    for (size_t i = 0; i < block; ++i) {
      const auto value = static_cast<double>(x[b + i]);
      partial[i % kPartials] += value * value;
    }
    for (size_t n = kPartials / 2; n > 0; n /= 2) {
      for (size_t i = 0; i < n; ++i) partial[i] += partial[i + n];
    }
    sums[b / block] = partial[0];
  }
}

uint32_t Linear(float scaled, uint32_t levels, uint32_t hash) {
  const auto top = static_cast<float>(levels);
  const float value = scaled < top ? scaled : top;
  const auto below = static_cast<uint32_t>(value);
  const float random = static_cast<float>(hash >> 8) * 0x1p-24f;
  return below + (random < value - static_cast<float>(below) ? 1 : 0);
}

// Adding random bits to the mantissa carries into the exponent as often as it should round up.
uint32_t Power(float scaled, uint32_t levels, uint32_t hash) {
  const float value = scaled < 1.0f ? scaled : 1.0f;
  const float lowest = std::bit_cast<float>((128 - levels) << 23);  // of the first level
  if (value < lowest) {
    const float random = static_cast<float>(hash >> 8) * 0x1p-24f;
    return random < value * std::bit_cast<float>((126 + levels) << 23) ? 1 : 0;
  }
  return ((std::bit_cast<uint32_t>(value) + (hash >> 9)) >> 23) - 127 + levels;
}

void Encode(const float* x, uint32_t random, const Levels& levels, const float* factors,
            size_t block, uint8_t* codes) {
  for (uint32_t i = 0; i < kSuperblock; ++i) {
    const float scaled = std::fabs(x[i]) * factors[i / block];
    const uint32_t hash = hbi::LowBias32(random + i);
    const uint32_t level =
        levels.powers ? Power(scaled, levels.count, hash) : Linear(scaled, levels.count, hash);
    codes[i] =
        static_cast<uint8_t>(std::signbit(x[i]) ? levels.count - level : levels.count + level);
  }
}

float LevelOf(int32_t code, const Levels& levels) {
  const int32_t level = code - static_cast<int32_t>(levels.count);
  if (!levels.powers) return static_cast<float>(level);
  if (level == 0) return 0;
  const uint32_t exponent = 127 - levels.count + static_cast<uint32_t>(std::abs(level));
  const float power = std::bit_cast<float>(exponent << 23);
  return level < 0 ? -power : power;
}

uint32_t Add(const uint8_t* codes, const Levels& levels, const float* units, size_t block,
             bool first, float* sum) {
  if (first) std::fill_n(sum, kSuperblock, 0.0f);
  uint32_t largest = 0;
  for (size_t i = 0; i < kSuperblock; ++i) {
    largest = std::max<uint32_t>(largest, codes[i]);
    sum[i] += LevelOf(codes[i], levels) * units[i / block];
  }
  return largest;
}

void NonZero(const uint8_t* codes, uint32_t zero, uint64_t bits[4]) {
  std::fill_n(bits, 4, uint64_t{0});
  for (size_t i = 0; i < kSuperblock; ++i) {
    if (codes[i] != zero) bits[i / 64] |= uint64_t{1} << i % 64;
  }
}

}  // namespace

const Kernels& ScalarKernels() {
  static constexpr Kernels kKernels = {Squares, Encode, Add, NonZero};
  return kKernels;
}

}  // namespace inccl::dither
